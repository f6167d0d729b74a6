"""Follow a training through its logs."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bandpo.errors import UserError

from ..config.run_folder import Info, read_info
from ..evals.results import split_label
from ..files.logs import Followed, files_of, logs_at, name_of
from ..statistics.collapse import WINDOW, Curves, by_step

State = Literal["waiting", "running", "finished", "stopped", "silent", "gone"]


@dataclass(frozen=True, eq=False, kw_only=True)
class WatchedRun(Curves):
    """View of a run: its curves and how it stands.

    Attributes:
        state: "waiting" for its first row, "running", "finished", "stopped" by numbers that are not finite, "silent"
            for too long, or "gone": its log was deleted.
        end: the round (or step) at which it is to end; None: not known.
        age: seconds since its log was written to; None: never.
    """

    state: State = "waiting"
    end: int | None = None
    age: float | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "stopped")

    @property
    def collapsed(self) -> bool:
        return self.collapse is not None and self.collapse.lasting

    @property
    def on_collapse(self) -> str:
        """Say whether the run has collapsed; "" before the first row."""
        texts = {  # the first that holds
            str(self.collapse): self.collapse is not None,
            "": not len(self.x),
            "no finite reward in its log, so no word on collapse": not self.points,
            f"too early to tell a collapse: {self.points} of {2 * WINDOW} {self.axis}s": self.points
            < 2 * WINDOW,
            "no collapse of the reward": True,
        }
        return next(text for text, holds in texts.items() if holds)

    @property
    def now(self) -> str:
        """Return `round 12 of 48`."""
        return (
            f"{self.axis} {self.x[-1]:g}" + (f" of {self.end}" if self.end else "")
            if len(self.x)
            else "nothing yet"
        )

    @property
    def standing(self) -> str:
        ago = "" if self.age is None else f"last line {duration(self.age)} ago"
        return {
            "waiting": "waiting for its first line",
            "running": ago,  # a log does not tell whether its process lives
            "finished": "finished",
            "stopped": "stopped, as its numbers were not finite",
            "silent": f"has stopped writing: {ago}. Did it crash, or is one step so long?",
            "gone": "its log is gone (deleted or moved away); this was in it",
        }[self.state]


def duration(seconds: float) -> str:
    """Write 12 s, 14 min, 3 h, 2 days."""
    for unit, length in ("days", 86400), ("h", 3600), ("min", 60):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


class Watch:
    """Reader of runs; each is PATH or LABEL=PATH, and need not be there yet."""

    def __init__(self, sources: Sequence[str], silent: float = 600.0) -> None:
        self.sources, self.silent = [split_label(text) for text in sources], silent
        self._logs: dict[Path, tuple[str | None, Followed]] = {}
        self._runs: dict[Path, WatchedRun] = {}  # without label and state

    @property
    def complete(self) -> bool:
        """Check that no run can be added: none was given by a folder of many."""
        return {path for _, path in self.sources} == set(self._logs)

    def look(self, now: float) -> list[WatchedRun]:
        """Read the new rows. `now`: in seconds since 1970."""
        for label, path in self.sources:
            for place, file in logs_at(path).items():
                self._logs.setdefault(place, (label, Followed(file)))[1].path = file
        runs: dict[Path, WatchedRun] = {}
        for place, (label, log) in list(self._logs.items()):
            changed = log.poll()
            if log.written is None and any(place in other.parents for other in self._logs):
                del self._logs[place]  # the folder that was waited for has come, and holds several
                continue
            info = None
            # A run of another trainer, or one that is just beginning.
            with contextlib.suppress(UserError):
                info = read_info(place)
            if changed or place not in self._runs:
                self._runs[place] = WatchedRun(**by_step(log.rows), notes=tuple(_notes(log)))
            runs[place] = self._watched(
                self._runs[place],
                log,
                info,
                now,
                label or (name_of(place) if info is None else f"{info['label']}, seed {info['seed']}"),
            )
        names = [run.label for run in runs.values()]
        return [
            run if names.count(run.label) == 1 else replace(run, label=f"{run.label} ({place})")
            for place, run in runs.items()
        ]

    def _watched(
        self, run: WatchedRun, log: Followed, info: Info | None, now: float, label: str
    ) -> WatchedRun:
        age, stopped = (
            None if log.written is None else max(0.0, now - log.written),
            (info or {}).get("stopped"),
        )
        states: dict[State, bool] = {  # the first that holds
            "finished": (info is not None and info["finished"]) or log.ended,
            "stopped": bool(stopped),
            "waiting": age is None or not (log.at or log.fault),
            "gone": not files_of(log.path),
            "silent": age is not None and age > self.silent,
            "running": True,
        }
        state = next(each for each, holds in states.items() if holds)
        return replace(
            run,
            label=label,
            state=state,
            end=(info or {}).get("rounds") if run.axis == "round" else log.last_step,
            age=age,
            finished=state == "finished",
            notes=(*run.notes, f"Why: {stopped}") if state == "stopped" else run.notes,
        )


def _notes(log: Followed) -> Iterator[str]:
    if log.fault and log.written is not None:
        yield f"The log cannot be read now: {log.fault}" if log.at else log.fault
    for note in log.notes:
        yield f"{note[0].upper()}{note[1:]}."
