"""Show `bandpo watch`: the curves of one run, or a line for each of several."""

import math
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from rich.console import Group
from rich.live import Live
from rich.text import Text

from bandpo.errors import UserError

from .. import signals
from ..progress import console
from ..reports.panels import PANELS, Panel
from ..reports.texts import three_digits
from ..reports.watching import Watch, WatchedRun
from ..statistics.collapse import mean_of_known

_STYLES = {
    **dict.fromkeys(("silent", "gone", "stopped"), "bold red"),
    **dict.fromkeys(("running", "finished", "waiting"), ""),
}
_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-~=+*#"
# A pause is so many times as long as a look takes, so watching takes 2 % of a core at most.
_PAUSE = 50


def watch_and_show(
    sources: Sequence[str],
    *,
    every: float = 2.0,
    silent: float,
    once: bool = False,
) -> None:
    """Run `bandpo watch`."""
    watch = Watch(sources, silent)
    runs = watch.look(time.time())
    if once and not any(len(run.x) or run.ended for run in runs):
        reason = f"no log is at {watch.sources[0][1]}" if runs[0].age is None else "no line is in its log"
        raise UserError(f"{runs[0].label}: nothing to show; {' '.join(runs[0].notes) or reason}")
    if once:
        console.print(view(runs))
    try:
        if not once:
            _follow(watch, runs, every)
    except KeyboardInterrupt as end:
        if end.args and end.args[0] != signal.SIGINT:  # Ctrl-C is how one ends it
            raise
        signals.came.clear()


def _follow(watch: Watch, runs: list[WatchedRun], every: float) -> None:
    """Show the runs until all are finished.

    A terminal gets a view that is drawn again and again, other output a line a row.
    """
    shown: dict[str, Any] = {}
    began = time.time()
    screen = Live(console=console, auto_refresh=False, vertical_overflow="crop")
    with screen if console.is_terminal and not console.is_dumb_terminal else nullcontext():
        while True:
            signals.check()
            if screen.is_started:
                screen.update(view(runs), refresh=True)
            else:
                now = {run.label: (run.state, run.rows, run.notes) for run in runs}
                for run in [run for run in runs if shown.get(run.label) != now[run.label]]:
                    console.print(_line(run), soft_wrap=True)
                shown = now
            if watch.complete and all(run.ended for run in runs):
                return
            time.sleep(max(every, _PAUSE * (time.time() - began)))
            began = time.time()
            runs = watch.look(began)


def view(runs: Sequence[WatchedRun], width: int | None = None) -> Group:
    """Return the text of the terminal."""
    if len(runs) > 1:
        return Group(
            Text("\n", no_wrap=True, overflow="ellipsis").join(
                Text(_line(run), "bold red" if run.collapsed else _STYLES[run.state]) for run in runs
            )
        )
    return Group(*_one(runs[0], width or (console.width if console.is_terminal else 100)))


def _one(run: WatchedRun, width: int) -> list[Any]:
    lines = [
        Text(run.label, "bold"),
        Text.assemble(f"{run.now}, ", (run.standing, _STYLES[run.state])),
        *([Text(run.on_collapse, "bold red" if run.collapsed else "dim")] if run.on_collapse else []),
        *(Text(note, "yellow") for note in run.notes),
        Text(),
    ]
    wide = min(60, width - 30)  # columns of a curve
    for name, panel in PANELS.items():
        if not math.isnan(panel.last(run)):
            curve = _curve(panel.curve(run), wide) if wide >= 8 else ""
            indented = f"  {name}" if name in ("above", "below") else name
            lines.append(Text.assemble(f"{indented:<15}{_last(panel, run):>10}   ", (curve, "cyan")))
    return lines


def _line(run: WatchedRun) -> str:
    """Write what is wrong before the numbers: a terminal cuts the end of a line."""
    names = ("reward", "entropy", "clipped", "tail share", "radius")
    return "  ".join(
        [
            run.label,
            run.now,
            *([run.standing] if run.state != "running" else []),
            *([run.on_collapse] if run.collapsed else []),
            *(
                f"{name} {_last(PANELS[name], run)}"
                for name in names
                if not math.isnan(PANELS[name].last(run))
            ),
            *run.notes,
        ]
    )


def _last(panel: Panel, run: WatchedRun) -> str:
    return three_digits(panel.last(run)) + panel.percent


def _curve(y: np.ndarray, width: int) -> str:
    """Draw the values as blocks in at most so many columns; blank if unknown."""
    means = [mean_of_known(part) for part in np.array_split(y, min(width, len(y)))]
    low, high = np.nanmin(means), np.nanmax(means)
    spread, blocks = high - low or 1.0, _BLOCKS if console.encoding.startswith("utf") else _ASCII
    return "".join(
        " " if math.isnan(mean) else blocks[round((mean - low) / spread * 7)] for mean in means
    )
