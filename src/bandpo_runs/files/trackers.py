"""Read logs of trackers and terminals. They are wandb's CSV, tensorboard's event files, and what a trainer printed."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.files import lines_of

Row = dict[str, Any]
EVENTS, PRINTED = "events.out.tfevents.*", (".log", ".out", ".txt")
_OWN = re.compile("^_|__MIN$|__MAX$")  # columns of wandb about a row, and what it averaged in a value of a chart
# Columns of steps, of which the first counts: wandb's own _step counts rows, and TRL writes several of one step.
_STEPS = ("Step", "train/global_step", "training/global_step", "trainer/global_step", "_step")


def files_of(log: Path) -> list[Path]:
    """List the files of a log. It is a file, a pattern such as `logs/*.csv`, or a run in either: `FILE.csv/RUN`."""
    place = log.parent if log.parent.suffix == ".csv" else log
    return sorted(place.parent.glob(place.name)) if "*" in place.name else [place] * place.is_file()


def is_tracked(log: Path) -> bool:
    """Tell these logs from others, by name."""
    return log.suffix in (".csv", *PRINTED) or log.parent.suffix == ".csv" or "tfevents" in log.name


def rows_in(log: Path) -> list[Row]:
    """Read the rows of a log with their steps.

    Raises:
        UserError: it cannot be read, has no column of steps, or has several runs and none is named.
    """
    if log.suffix in PRINTED or "tfevents" in log.name:
        return _events(log) if "tfevents" in log.name else _printed(log)
    runs: dict[str, list[Row]] = {}
    for path in files_of(log) or [log]:
        for run, rows in _of_table(path).items():
            runs.setdefault(run, []).extend(rows)
    run = log.name if log.parent.suffix == ".csv" else ""
    if run not in runs and len(runs) > 1:
        such = f"{files_of(log)[0]}/{next(iter(runs))}"
        raise UserError(f"{log} must name one of the runs {', '.join(runs)}, as in {such}")
    return runs.get(run) or next(iter(runs.values()), [])


def runs_of(path: Path) -> list[str]:
    """List the runs in wandb's CSV of a chart. That of a run's history has one, "", and another file none."""
    with contextlib.suppress(UserError):
        return list(_of_table(path))
    return []


def _of_table(path: Path) -> dict[str, list[Row]]:
    """Read the rows of each run. Columns of a chart are RUN - METRIC."""
    runs: dict[str, list[Row]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            names = table.fieldnames or ()
            step = next((name for name in _STEPS if name in names), None)
            if step is None:
                what = f"wandb's CSV of a chart or of run.history(), with one of the columns {', '.join(_STEPS)}"
                raise UserError(f"{path}: {what} is expected; it has {', '.join([*names][:8]) or 'none'}")
            kept = [name for name in names if name not in (step, "") and not _OWN.search(name)]
            for cells in table:
                found: dict[str, Row] = {}
                for name in kept:
                    if (value := _number(cells[name])) is not None:
                        run, _, metric = name.rpartition(" - ")
                        row = found.setdefault(run.replace("/", "-"), {"step": _number(cells[step])})
                        row[metric] = value
                for run, row in found.items():
                    runs.setdefault(run, []).append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV: {error}") from None
    return runs


def _events(log: Path) -> list[Row]:
    try:
        from tensorboard.backend.event_processing import event_accumulator  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"{log} needs the package tensorboard: pip install 'bandpo[trackers]'") from None
    rows: dict[int, Row] = {}
    if not files_of(log):
        raise UserError(f"{log}: no such file")
    path = str(log.parent if "*" in log.name else log)
    found = event_accumulator.EventAccumulator(path, size_guidance={"scalars": 0}).Reload()
    for name in found.Tags()["scalars"]:
        for event in found.Scalars(name):
            rows.setdefault(event.step, {"step": event.step})[name] = event.value
    return list(rows.values())


def _printed(path: Path) -> list[Row]:
    """Read the steps that are printed. verl has a line `step:3 - name:value`, SkyRL a dictionary below `Step 3:`."""
    rows: list[Row] = []
    is_open = False  # a dictionary
    for line in lines_of(path):
        text = re.sub(r"\x1b\[[\d;]*m", "", line.decode(errors="replace"))
        pairs: Iterable[tuple[str, ...]] = ()
        if found := re.search(r"\bstep:(\d+) - (.+)|\bStep (\d+): *$", text):
            rows.append({"step": int(found[1] or found[3])})
            pairs = [tuple(part.rsplit(":", 1)) for part in (found[2] or "").split(" - ") if ":" in part]
            is_open = found[1] is None
        elif is_open:
            pairs = re.findall(r"'([^']+)': '?([^\s',}]+)", text)
            is_open = "}" not in text
        for name, number in pairs:
            rows[-1] |= {} if (value := _number(number)) is None else {name: value}
    return rows


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError, TypeError):  # a row of a CSV may be short
        return float(re.sub(r"np\.\w+\((.*)\)", r"\1", text))  # how numpy 2 prints its own
    return None
