"""Progress of a long command: whole lines, and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich import progress
from rich.console import Console
from rich.segment import Segment

from bandpo.errors import printable

_WIDE = 100_000


class _Console(Console):
    """A console whose own control characters, and no others, reach the terminal."""

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def lines(*, stderr: bool = False) -> Console:
    """Return the console for a command's output.

    Brackets in a label or a path are theirs; where nobody watches no line is wrapped.
    """
    console = _Console(highlight=False, markup=False, stderr=stderr)
    if not console.is_terminal:
        console.width = _WIDE
    return console


console = lines()


class Progress:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(
        self, unit: str, total: int | None = None, done: int = 0, *, title: str = "", pause: float = 30.0,
        console: Console = console,
    ) -> None:  # fmt: skip
        """Start the count at `done` of `total` (None: not known).

        `pause` is the time between two lines, in seconds.
        """
        self.unit, self.total, self.before, self.console = unit, total, done, console
        self.title = f"{title}: " if title else ""
        self.pause = 0.1 if console.is_terminal else pause
        self.began = self.told = time.monotonic()
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"), progress.TimeElapsedColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task(self.title + unit, total=total, completed=done, note="")

    def update(self, done: int, note: str = "") -> None:
        now = time.monotonic()
        if now - self.told < self.pause:
            return
        self.told = now
        left = ""
        if self.total is not None and done > self.before:  # rich's own time left would count what was there as done now
            minutes = (self.total - done) * (now - self.began) / (done - self.before) / 60
            left = f"about {minutes:.1f} min left"
        note = ", ".join(filter(None, (note, left)))
        if self.console.is_terminal:
            self.bar.update(self.task, completed=done, note=note, total=self.total)
            return
        of = "" if self.total is None else f"of {self.total:,} "
        self.console.print(", ".join(filter(None, (f"{self.title}{done:,} {of}{self.unit}", note))))

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()
