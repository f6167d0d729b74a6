"""Training that runs, looked at from outside: what its logs hold by now, and that as a page that refreshes itself.

Read it in this order: `Watch.look` (what is seen of the logs of a path), `PANELS`.
"""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from bandpo.errors import UserError
from bandpo.losses.metrics import BINS

from ..config.run_folder import Info, read_info
from ..evals.results import split_label
from ..files.logs import Followed, logs_at, lost_in, name_of
from ..files.writing import write_atomically
from ..statistics.collapse import WINDOW, Collapse, find_collapse
from . import runs
from .charts import DARK, LIGHT, draw_panel, draw_swatch, method_styles, svg
from .content_security import POLICY
from .logs import Curves, by_step, renamed
from .page import PAGES
from .runs import GOOD_TAIL_CUT, Panel, number

State = Literal["waiting", "running", "finished", "stopped", "silent", "gone"]
GONE = 0.1  # share of the first entropy below which the latest is told
SILENT = 600.0  # seconds without a line after which a run is said to have stopped writing

_ABOVE = Panel("clip/high_fraction", "Clipped above", "% of tokens", "Tokens above their upper bound / all tokens.",
               ("clip/high_count", "tokens"))  # fmt: skip
_BELOW = Panel("clip/low_fraction", "Clipped below", "% of tokens", "Tokens below their lower bound / all tokens.",
               ("clip/low_count", "tokens"))  # fmt: skip
_K3 = Panel(
    "kl_old/k3", "KL to the old policy", "nats per token", "Mean of r − 1 − log r.", ("kl_old/k3_nats", "tokens")
)
# What is shown of a run, with the names by which a table knows it; what no run has is left out.
PANELS = {
    "reward": runs.PANELS[1],
    "P(work)": runs.PANELS[0],
    "entropy": runs.PANELS[2],
    "clipped": runs.PANELS[3],
    "above": _ABOVE,
    "below": _BELOW,
    "tail share": runs.PANELS[4],
    "good tail cut": Panel("cut/good_tail", "Good tail cut", "% of these tokens", "Tokens with old p ≤ 0.2 and A > 0 "
                           "that are above their bound / all such tokens.", GOOD_TAIL_CUT),
    "cut": runs.CUT,
    "KL": _K3,
    "radius": runs.PANELS[6],
    "held out": runs.PANELS[7],
}  # fmt: skip
# Quantiles of the log-ratio, and clip rates by side and by the token's old probability: numbers of the last row.
QUANTILES = {name: Panel(f"log_ratio/{name}", name, "log r", "") for name in ("min", "p01", "p50", "p99", "max")}
BY_P = {
    side: {
        name: Panel(f"clip/{key}/{name}", side, "% of the bin", "", (f"clip/{key}_count/{name}", f"tokens/{name}"))
        for name in BINS
    }
    for side, key in (("above", "high"), ("below", "low"))
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Seen(Curves):
    """View of a run: besides its curves its standing, and remarks on it.

    Attributes:
        label: its name.
        state: "waiting" for its first row, "running", "finished", "stopped" by numbers that are not finite, "silent"
            for too long, or "gone": no log any more.
        end: the round (or step) at which it is to end; None: not known.
        age: seconds since its log was written to; None: never.
        collapse: what the rule of `bandpo_runs.statistics.collapse` finds; None: nothing.
        points: at which a reward is known.
        notes: what else one should know.
    """

    label: str
    state: State
    end: int | None
    age: float | None
    collapse: Collapse | None
    points: int
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "stopped")

    @property
    def collapsed(self) -> bool:
        """Return True if reward and entropy collapsed and did not recover."""
        return self.collapse is not None and self.collapse.certain and self.collapse.recovered is None

    @property
    def word(self) -> str:
        """Return the word on collapse; "" before the first row."""
        if self.collapse is not None:
            return str(self.collapse)
        if not self.points:
            return "no reward in its log, so no word on collapse" if len(self.x) else ""
        if self.points < 2 * WINDOW:
            return f"too early to tell a collapse: {self.points} of {2 * WINDOW} {self.axis}s"
        return "no collapse of the reward"

    @property
    def now(self) -> str:
        """Return `round 12 of 48`."""
        return f"{self.axis} {self.x[-1]:g}" + (f" of {self.end}" if self.end else "") if len(self.x) else "nothing yet"

    @property
    def standing(self) -> str:
        """Return the standing in words."""
        ago = "" if self.age is None else f"last line {duration(self.age)} ago"
        return {
            "waiting": "waiting for its first line",
            "running": f"running, {ago}",
            "finished": "finished",
            "stopped": "stopped, as its numbers were not finite",
            "silent": f"has stopped writing: {ago}. Did it crash, or is one step so long?",
            "gone": "its log is gone (deleted or moved away); this was in it",
        }[self.state]


def last(panel: Panel, run: Curves) -> float:
    """Return the last known value; NaN if none is."""
    known = np.flatnonzero(np.isfinite(y := panel.curve(run)))
    return float(y[known[-1]]) if len(known) else math.nan


def duration(seconds: float) -> str:
    """Write 12 s, 14 min, 3 h, 2 days."""
    for unit, length in ("days", 172800), ("h", 7200), ("min", 120):
        if seconds >= length:
            return f"{seconds / {'days': 86400, 'h': 3600, 'min': 60}[unit]:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


class Watch:
    """Looks at runs again and again; each is PATH or LABEL=PATH, and need not be there yet."""

    def __init__(self, given: Sequence[str], silent: float = SILENT) -> None:
        self.given, self.silent = [split_label(text) for text in given], silent
        self._logs: dict[Path, tuple[str | None, Followed]] = {}
        self._drawn: dict[Path, dict[str, Any]] = {}

    @property
    def complete(self) -> bool:
        """Check that no run can be added to the runs seen: none was given by a folder of many."""
        return {path for _, path in self.given} == set(self._logs)

    def look(self, now: float) -> list[Seen]:
        """Read the new rows. `now`: in seconds since 1970."""
        for label, path in self.given:
            for key, file in logs_at(path).items():
                log = self._logs.setdefault(key, (label, Followed(file, renamed)))[1]
                log.path = file
        seen, names = {}, []
        for key, (label, log) in list(self._logs.items()):
            changed = log.poll()
            if log.written is None and any(key in other.parents for other in self._logs):
                del self._logs[key]  # the folder that was waited for has come, and holds several
                continue
            info = _info_of(key)
            if changed or key not in self._drawn:
                self._drawn[key] = _measured(log, str(key))
            seen[key] = self._seen(log, info, self._drawn[key], now)
            names.append(label or (name_of(key) if info is None else f"{info['label']}, seed {info['seed']}"))
        return [
            Seen(label=name if names.count(name) == 1 else f"{name} ({key})", **fields)
            for name, (key, fields) in zip(names, seen.items(), strict=True)
        ]

    def _seen(self, log: Followed, info: Info | None, drawn: dict[str, Any], now: float) -> dict[str, Any]:
        age = None if log.written is None else max(0.0, now - log.written)
        end = (info or {}).get("rounds") if drawn["axis"] == "round" else log.last_step
        state: State = "running"
        if (info is not None and info["finished"]) or log.ended:
            state = "finished"
        elif info is not None and info.get("stopped"):
            state, drawn = "stopped", {**drawn, "notes": (*drawn["notes"], f"Why: {info.get('stopped')}")}
        elif age is None or not (log.at or log.fault):
            state = "waiting"
        elif not log.path.exists():
            state = "gone"
        elif age > self.silent:
            state = "silent"
        return {**drawn, "state": state, "end": end, "age": age}


def _info_of(folder: Path) -> Info | None:
    try:
        return read_info(folder)
    except UserError:  # no run of ours, or one that is just beginning
        return None


def _measured(log: Followed, name: str) -> dict[str, Any]:
    axis, x, rows = by_step(log.rows, name)
    curves = Curves(axis=axis, x=x, rows=rows)
    reward = curves.mean("reward")
    notes = []
    if log.fault and log.at:
        notes.append(f"The log cannot be read now: {log.fault}")
    elif log.fault and log.written is not None:
        notes.append(log.fault)
    if log.damaged:
        notes.append(f"Left out: {log.damaged} of its lines, which are damaged or have no step.")
    if log.went_back:
        notes.append(
            f"The log went back (how often: {log.went_back}), as after a resume; what was written last is shown."
        )
    if lost := lost_in(log.rows):
        notes.append(f"The {lost}. `bandpo doctor {log.path}` says what to do.")
    notes += _hints(curves, log.path)
    collapse = find_collapse(reward, curves.mean("entropy"), x, axis=axis)
    points = int(np.isfinite(reward).sum())
    told = {"collapse": collapse, "points": points, "notes": tuple(notes)}
    return {"axis": axis, "x": x, "rows": rows, "sums": curves.sums, **told}


def _hints(curves: Curves, log: Path) -> Iterator[str]:
    """Name the faults behind a healthy reward: a rule that never acts, and an entropy that is gone."""
    for name, what in (("clipped", "was outside its bounds"), ("cut", "lost its gradient to the clip")):
        y = PANELS[name].curve(curves)
        known = y[np.isfinite(y)]
        if len(known):
            if len(known) >= WINDOW and not known.any():
                yield f"No token {what} in any {curves.axis}. If that is not meant, `bandpo doctor {log}` says why."
            break
    entropy = curves.mean("entropy")
    entropy = entropy[np.isfinite(entropy)]
    first, latest = entropy[:WINDOW], entropy[-WINDOW:]
    if len(entropy) >= 2 * WINDOW and latest.mean() < GONE * first.mean():
        share = f"Entropy is down to {latest.mean() / first.mean():.0%} of what it was at first."
        yield f"{share} If the task is not solved, docs/choose.md has what to try."


# ------------------------------------------------------------------------------------------------------------- the page


@dataclass(frozen=True)
class _Together:
    """Runs with one axis, as the drawings of the report take them."""

    axis: str
    methods: dict[str, dict[int, Seen]]


def render(seen: Sequence[Seen], now: float, refresh: int | None = 10) -> str:
    """Render the page; a browser loads it again every `refresh` seconds."""
    groups = [
        _Together(axis, {run.label: {0: run} for run in seen if run.axis == axis})
        for axis in dict.fromkeys(run.axis for run in seen)
    ]
    styles: Any = method_styles(groups)  # type: ignore[arg-type]
    figures = []
    for group in groups:
        for panel in PANELS.values():
            there = {m: each for m, each in group.methods.items() if not math.isnan(last(panel, each[0]))}
            if there:
                one: Any = _Together(group.axis, there)
                name = f"{panel.title}, {panel.unit}, by {group.axis}, for {', '.join(there)}"
                drawing = svg(lambda ax, panel=panel, one=one: draw_panel(ax, panel, one, styles), name)
                figures.append((panel.title, drawing, panel.meaning))
    return PAGES.get_template("watch.html.jinja").render(
        policy=Markup(POLICY),
        light=LIGHT,
        dark=DARK,
        refresh=refresh,
        when=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)),
        runs=[
            (run, svg(lambda ax, look=styles[run.label]: draw_swatch(ax, look), run.label, 14, bare=True))
            for run in seen
        ],
        figures=figures,
        tables=[*_tables(seen)],
    )


def _tables(seen: Sequence[Seen]) -> Iterator[dict[str, Any]]:
    """Return the tables of ratios: what each run has, where it was last known."""
    wanted = [("Quantiles of log r, for r = π / π_old, as last known", [*QUANTILES], QUANTILES)]
    for side, panels in BY_P.items():
        what = f"Tokens {side} their interval by old probability p, % of the bin, as last known"
        wanted.append((what, bin_labels(), panels))
    for caption, names, panels in wanted:
        values = {run.label: [last(panel, run) for panel in panels.values()] for run in seen}
        rows = [(label, [*map(number, each)]) for label, each in values.items() if not all(map(math.isnan, each))]
        if rows:
            yield {"caption": caption, "head": [("run", ""), *((name, "") for name in names)], "rows": rows}


def bin_labels() -> list[str]:
    """Name the bins of old probability: "≤ 0.2", ..."""
    return [f"≤ {name[1:]}" for name in BINS]


def write_page(path: Path, seen: Sequence[Seen], now: float, refresh: int | None = 10) -> None:
    """Write the page in one step, so that a browser never loads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render(seen, now, refresh).encode())
