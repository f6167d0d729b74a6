"""Show `bandpo watch`: all that is known of one run, or a table of several."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Group
from rich.live import Live
from rich.text import Text

from bandpo.errors import UserError

from .. import signals
from ..progress import console, grid
from ..reports.runs import PANELS, number, percent_of
from ..reports.watching import Seen, Watch, write_page

_STYLES = {"silent": "bold red", "gone": "bold red", "stopped": "bold red", "running": "green"}
_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-~=+*#"
_MOST_LINE = 60  # columns of a curve
_PAUSE = 50  # a pause is so many times as long as a look and its page take, so it takes 2 % of a core at most
# The columns of the table of several runs; those at the end go where room is short.
_COLUMNS = ("reward", "entropy", "clipped", "tail share", "above", "below", "radius", "P(work)", "good tail cut", "KL")


def watch_and_show(
    given: Sequence[str], *, html: Path | None = None, every: float = 2.0, silent: float, once: bool = False,
    as_json: bool = False,
) -> None:  # fmt: skip
    """Run `bandpo watch`."""
    watch = Watch(given, silent)
    seen = watch.look(time.time())
    if once and not any(len(run.x) or run.ended for run in seen):
        why = f"no log is at {watch.given[0][1]}" if seen[0].age is None else "no line is in its log"
        raise UserError(f"{seen[0].label}: nothing to show; {' '.join(seen[0].notes) or why}")
    if as_json:
        print(json.dumps([_data(run) for run in seen], indent=2, allow_nan=False))
    elif once:
        console.print(view(seen))
    try:
        if not once:
            _follow(watch, seen, html, every)
    except KeyboardInterrupt as end:
        if end.args and end.args[0] != signal.SIGINT:  # Ctrl-C is how one ends it
            raise
        signals.came.clear()
    if html is not None:
        write_page(html, watch.look(time.time()), time.time(), refresh=None)


def _follow(watch: Watch, seen: list[Seen], html: Path | None, every: float) -> None:
    """Show the runs until all are finished.

    A terminal gets a view that is drawn again and again, other output a line a row.
    """
    told: dict[str, Any] = {}
    began = time.time()
    screen = Live(console=console, auto_refresh=False, vertical_overflow="crop")
    with screen if console.is_terminal and not console.is_dumb_terminal else nullcontext():
        if html is not None:
            console.print(f"The page, which loads itself again: {html}")
        while True:
            signals.check()
            if screen.is_started:
                screen.update(view(seen), refresh=True)
            now = {run.label: (run.state, run.rows, run.notes) for run in seen}
            for run in seen if not screen.is_started else []:
                if told.get(run.label) != now[run.label]:
                    console.print(_line(run), soft_wrap=True)
            if html is not None and now != told:
                write_page(html, seen, time.time())
            told = now
            if watch.complete and all(run.ended for run in seen):
                return
            time.sleep(max(every, _PAUSE * (time.time() - began)))
            began = time.time()
            seen = watch.look(began)


def view(seen: Sequence[Seen], width: int | None = None) -> Group:
    """Return the text of the terminal."""
    width = width or (console.width if console.is_terminal else 100)
    return Group(*(_one(seen[0], width) if len(seen) == 1 else _several(seen, width)))


def _one(run: Seen, width: int) -> list[Any]:
    lines = [Text(run.label, "bold"), _standing(run), *_words(run), Text()]
    wide = min(_MOST_LINE, width - 30)
    for name, panel in PANELS.items():
        if math.isnan(panel.last(run)):
            continue
        indent = "  " if name in ("above", "below") else ""
        lines.append(
            Text.assemble(
                f"{indent + name:<15}{_with_unit(name, run):>10}   ",
                (_curve(panel.curve(run), wide) if wide >= 8 else "", "cyan"),
            )
        )
    return lines


def _several(seen: Sequence[Seen], width: int) -> list[Any]:
    """Return a row for each run, with as many columns as fit, and the remarks below."""
    most = max(12, width // 3)
    axes = {run.axis for run in seen}
    columns = [
        ["run", *(_short(run.label, most) for run in seen)],
        [seen[0].axis if len(axes) == 1 else "at", *(_at(run, len(axes) > 1) for run in seen)],
        ["state", *(run.standing if run.state == "running" else run.state for run in seen)],
    ]
    for name in _COLUMNS:
        values = [PANELS[name].last(run) for run in seen]
        if not all(map(math.isnan, values)):
            columns.append([name + ", %" * bool(percent_of(PANELS[name].unit)), *map(number, values)])
    while len(columns) > 3 and sum(2 + max(map(cell_len, column)) for column in columns) > width:
        columns.pop()
    heads, *rows = zip(*columns, strict=True)
    cells = [
        [*row[:2], Text(row[2], _STYLES.get(run.state, "")), *row[3:]] for run, row in zip(seen, rows, strict=True)
    ]
    lines: list[Any] = [grid(heads, cells, left=3, box=None, pad_edge=False, padding=(0, 1))]
    for run in seen:
        if run.state not in ("running", "finished") or run.collapse is not None or run.notes:
            lines += [Text(), Text.assemble((f"{run.label}: ", "bold"), _standing(run)), *_words(run)]
    return lines


def _at(run: Seen, named: bool) -> str:
    at = f"{run.x[-1]:g}" if len(run.x) else "0"
    return (f"{run.axis} " if named else "") + at + (f"/{run.end}" if run.end else "")


def _standing(run: Seen) -> Text:
    return Text.assemble(f"{run.now}, ", (run.standing, _STYLES.get(run.state, "")))


def _words(run: Seen) -> list[Text]:
    words = [Text(run.word, "bold red" if run.collapsed else "dim")] if run.word else []
    return words + [Text(note, "yellow") for note in run.notes]


def _line(run: Seen) -> str:
    parts = [run.label, run.now]
    for name in ("reward", "entropy", "clipped", "tail share", "radius"):
        if not math.isnan(PANELS[name].last(run)):
            parts.append(f"{name} {_with_unit(name, run)}")
    parts += [run.standing] if run.state != "running" else []
    return "  ".join([*parts, *([run.word] if run.collapsed else []), *run.notes])


def _with_unit(name: str, run: Seen) -> str:
    return number(PANELS[name].last(run)) + percent_of(PANELS[name].unit)


def _data(run: Seen) -> dict[str, Any]:
    values = {panel.key: panel.last(run) / (100 if percent_of(panel.unit) else 1) for panel in PANELS.values()}
    return {
        "label": run.label, "state": run.state, run.axis: float(run.x[-1]) if len(run.x) else None, "end": run.end,
        "seconds_since_last_line": run.age, "collapsed": run.collapsed, "word": run.word, "notes": list(run.notes),
        "numbers": {key: value for key, value in values.items() if not math.isnan(value)},
    }  # fmt: skip


def _curve(y: np.ndarray, width: int) -> str:
    """Draw the values as blocks in at most so many columns; blank if unknown."""
    means = [part[np.isfinite(part)].mean() if np.isfinite(part).any() else math.nan
             for part in np.array_split(y, min(width, len(y)))]  # fmt: skip
    low, high = np.nanmin(means), np.nanmax(means)
    spread, blocks = high - low or 1.0, _BLOCKS if console.encoding.startswith("utf") else _ASCII
    return "".join(" " if math.isnan(mean) else blocks[round((mean - low) / spread * 7)] for mean in means)


def _short(text: str, most: int) -> str:
    """Return the beginning and the end of a name; the end holds the seed."""
    return text if len(text) <= most else f"{text[: most - 9]}..{text[-7:]}"
