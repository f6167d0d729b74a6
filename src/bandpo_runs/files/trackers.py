"""Read logs of trackers and terminals. They are wandb's history, tensorboard's events, and what a trainer printed."""

import contextlib
import csv
import itertools
import re
from pathlib import Path
from typing import Any

from bandpo.errors import UserError, counted

from .reading import content_of

Row = dict[str, Any]
EVENTS, PRINTED = "events.out.tfevents.*", (".log", ".out", ".txt")
# Columns of wandb about a row, and what it averaged in a value of a chart.
_OWN = re.compile("^_|__MIN$|__MAX$")
# Columns of steps, of which the first counts: wandb's own _step counts rows, and TRL writes several of one step.
_STEPS = ("Step", "train/global_step", "training/global_step", "trainer/global_step", "_step")
_OWN_STEPS = (
    "step",
    "round",
    "global_step/max_steps",
    "global_step",
    *_STEPS,
)  # of a row that is JSON, or printed

# What verl prints; progress bars without a name; where a terminal or another process breaks a row; SkyRL's title; where
# a dictionary begins, and what is in it.
_STEP = re.compile(r"(?<![\w/])step:(\d{1,15})(?= -\s|\s*$)", re.MULTILINE)
_METRIC = re.compile(r"(?=[^\s/]*/)\S*:(?:np\.\w+\()?[-+]?(?:\d[\d.e+-]*|nan|inf)\)?")
_BAR = re.compile(
    r"(?<!: )(?<!:  )(?<!:   )(?<!\d)\d{1,3}%(?:\|[^|\n]{0,500}\|)? *(\d{1,15})/(\d{1,15}) \[[^\]\n]{0,99}\]"
)
_BREAK = re.compile(rf"(?<![,{{])\n(?: {{0,2}}{_BAR.pattern})?|{_BAR.pattern}")
_TITLE = re.compile(r"\bStep (\d{1,15}): *\n(?:\([^()\n]*\) *)?\Z")
_OPENING = re.compile(r"""\{(?<!['"]: \{)(?=\s*['"])""")  # and not of a dictionary in another one
_ENTRY = re.compile(r"""(['"])((?:(?!\1)[^,{}])+)\1: *['"]?([^\s,'"{}\[\]]+)(?=['"]?\s*(?:[,}]|$))""")
_TRAINED = {"loss", "reward"}


def files_of(log: Path) -> list[Path]:
    """List the files of a log. It is a file, a pattern such as `logs/*.csv`, or a run in either: `FILE.csv/RUN`."""
    place = log.parent if log.parent.suffix == ".csv" else log
    return sorted(place.parent.glob(place.name)) if "*" in place.name else [place] * place.is_file()


def is_tracked(log: Path) -> bool:
    """Tell these logs from others, by name."""
    return log.suffix in (".csv", *PRINTED) or log.parent.suffix == ".csv" or "tfevents" in log.name


def rows_in(log: Path) -> list[Row]:
    """Read the rows of a chart, a history or events with their steps.

    Raises:
        UserError: it cannot be read, has no column of steps, or has several runs and none is named.
    """
    if "tfevents" in log.name:
        return _events(log)
    runs: dict[str, list[Row]] = {}
    for path in files_of(log) or [log]:
        _of_table(path, runs)
    run = log.name if log.parent.suffix == ".csv" else ""
    if run not in runs and len(runs) > 1:
        such = f"{files_of(log)[0]}/{next(iter(runs))}"
        raise UserError(f"{log} must name one of the runs {', '.join(runs)}, as in {such}")
    return runs.get(run) or next(iter(runs.values()), [])


def runs_of(path: Path) -> list[str]:
    """List the runs in wandb's CSV of a chart. That of a run's history has one, "", and another file none."""
    runs: dict[str, list[Row]] = {}
    with contextlib.suppress(UserError):
        _of_table(path, runs)
    return [*runs]


def _of_table(path: Path, runs: dict[str, list[Row]]) -> None:
    """Add the rows of each run. Columns of a chart are RUN - METRIC."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            names = table.fieldnames or ()
            step = next((name for name in _STEPS if name in names), None)
            if step is None:
                what = f"wandb's CSV of a chart or of run.history(), with one of the columns {', '.join(_STEPS)}"
                raise UserError(f"{path}: {what} is expected; it has {', '.join([*names][:8]) or 'none'}")
            columns = [name for name in names if name not in (step, "") and not _OWN.search(name)]
            for cells in table:
                for run, group in itertools.groupby(
                    columns, lambda name: name.rpartition(" - ")[0].replace("/", "-")
                ):
                    row = _numbers({name.rpartition(" - ")[2]: cells[name] or "" for name in group})
                    if row:
                        runs.setdefault(run, []).append({"step": _number(cells[step]), **row})
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV: {error}") from None


def _events(log: Path) -> list[Row]:
    try:
        from tensorboard.backend.event_processing import event_accumulator  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"{log} needs the package tensorboard: pip install 'bandpo[trackers]'") from None
    rows: dict[int, Row] = {}
    if not files_of(log):
        raise UserError(f"{log}: no such file")
    events = event_accumulator.EventAccumulator(
        str(log.parent if "*" in log.name else log), size_guidance={"scalars": 0}
    ).Reload()
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            rows.setdefault(event.step, {"step": event.step})[name] = event.value
    return list(rows.values())


def with_steps(rows: list[Row]) -> list[Row]:
    """Give rows of wandb's history or of ms-swift their steps. Rows that have steps of their own stay."""
    column = next((name for name in _OWN_STEPS if any(name in row for row in rows)), "step")
    if column in ("step", "round"):
        return rows
    placed = [
        {**row, "step": str(row.get(column)).partition("/")[0]} for row in rows
    ]  # ms-swift has 3/50
    return [
        _numbers({name: value for name, value in row.items() if not _OWN.search(name)}) for row in placed
    ]


def _numbers(row: Row) -> Row:
    numbers = {name: _number(value) if isinstance(value, str) else value for name, value in row.items()}
    return {name: value for name, value in numbers.items() if value is not None}


def printed(path: Path) -> tuple[list[Row], list[str], int | None]:
    """Read the rows that a trainer prints. verl has lines `step:3 - name:value`, others dictionaries.

    Returns remarks, too, and to how many decimals the numbers are rounded, if they are: only then do they end in 0.
    """
    content = content_of(path)
    text = content.decode(
        "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", errors="replace"
    )
    # PowerShell's ends, and colours.
    text = re.sub(r"\r\n?", "\n", re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text))
    rows, remarks = _lines_of_verl(text)
    if not rows:
        rows, remarks = _dictionaries(text)
    fractions = [str(value).partition(".")[2] for row in rows for value in row.values()]
    longest = max(filter(str.isdecimal, fractions), key=len, default="")
    is_rounded = len(longest) > 1 and any(
        len(each) == len(longest) and each.endswith("0") for each in fractions
    )
    return [_numbers(row) for row in rows], remarks, len(longest) if is_rounded else None


def _lines_of_verl(text: str) -> tuple[list[Row], list[str]]:
    """Read verl's rows. One may be on several lines: one metric on each, or wrapped by a terminal at any letter."""
    rows: list[Row] = []
    cut = 0
    steps = [*_STEP.finditer(text)]
    ends = [*(each.start() for each in steps[1:]), len(text)]
    for step, end in zip(steps, ends, strict=False):
        before = text[text.rfind("\n", 0, step.start()) + 1 : step.start()]  # Ray's name of the process
        metrics = [""]
        for line in text[step.end() : end].splitlines():
            parts = re.split(r"\s+-(?:\s+|$)", f"{metrics[-1]}\n{line.removeprefix(before)}")
            parts = [part.replace("\n", "").strip() for part in parts]
            is_more = sum(map(bool, map(_METRIC.fullmatch, parts))) > bool(_METRIC.fullmatch(metrics[-1]))
            # Else another process wrote the line.
            if is_more or (metrics == [""] and line.startswith(" -")):
                metrics[-1:] = parts
        row: Row = dict(metric.rsplit(":", 1) for metric in metrics if ":" in metric)
        if row:
            rows.append({**row, "step": int(step[1])})
            cut += end < len(text) and re.search(r":.*[^.:-]$", metrics[-1]) is None
    what = "cut within a metric, as by a terminal; what came after it is missing"
    return rows, [f"{counted(cut, 'row')} {what}"] if cut else []


def _dictionaries(text: str) -> tuple[list[Row], list[str]]:
    """Read dictionaries. transformers prints them beside a progress bar, SkyRL below `Step 3:`.

    Bars, warnings and what other processes write may stand anywhere, within a row too. A bar that is not above a row is
    below it: tqdm draws it again.
    """
    entries: list[tuple[Row, Any]] = []
    bar = title = None
    is_below = False
    for piece in _OPENING.split(text):
        content = _BREAK.sub("", piece.rpartition("}")[0])
        row: Row = {each[2]: each[3] for each in _ENTRY.finditer(content)} | (
            {"step": int(title[1])} if title else {}
        )
        bars = [*_BAR.finditer(piece)]
        if is_below or not entries or row != entries[-1][0]:  # each process may print it
            entries.append((row, bar if is_below or not bars else bars[0]))
        bar = bars[-1] if bars else bar
        is_below = bool(bars) and not piece[bars[-1].end() :].strip()
        title = _TITLE.search(piece, max(0, len(piece) - 200))
    logged = [entry for entry in entries if entry[0].keys() & _TRAINED]
    ours = [entry for entry in entries if entry[0].keys() & {*_OWN_STEPS}] or logged
    if any("epoch" in row for row, _ in logged):  # of transformers; an answer with its reward has none
        ours = [entry for entry in entries if "epoch" in entry[0]]
    rows = with_steps([row for row, _ in ours])
    return (rows, []) if any("step" in row for row in rows) else _counted(ours)


def _counted(entries: list[tuple[Row, Any]]) -> tuple[list[Row], list[str]]:
    """Give rows the steps of their bars. Where several follow one bar, as output in a buffer does, count them."""
    bars = [bar and bar.groups() for row, bar in entries if row.keys() & _TRAINED]
    is_beside = None not in bars and all(
        one != other and one[1] == other[1] for one, other in itertools.pairwise(bars)
    )
    most = int(bars[0][1]) if bars and is_beside else None
    step = 0
    for row, bar in entries:
        if row.keys() & _TRAINED:
            step = int(bar[1]) if most else step + 1
        row |= {"step": step, "max_steps": most}
    return [row for row, _ in entries], [] if most or not entries else [
        "its rows have no step; they are counted"
    ]


def _number(value: Any) -> float | None:
    """Return a number, or a text as one. numpy 2 and torch print theirs as np.float64(0.5)."""
    if isinstance(value, str) and "(" in value:
        value = re.sub(r"^[\w.]+\(([^()]*)\)?$", r"\1", value)
    with contextlib.suppress(ValueError, TypeError):  # a row of a CSV may be short
        return float(value)
    return None
