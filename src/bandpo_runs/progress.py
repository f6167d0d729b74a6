"""Show the output of a long command: whole lines, tables, and progress."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from rich import progress
from rich.console import Console
from rich.segment import Segment
from rich.table import Column, Table

from bandpo.errors import printable

from . import signals


class _Console(Console):
    """A console whose own control characters, and no others, reach the terminal."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # for the command; rich would end the process with 1

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def lines(*, stderr: bool = False) -> Console:
    """Return the console of a command. It shows brackets as they are and wraps no line that is piped."""
    console = _Console(highlight=False, markup=False, stderr=stderr)
    if not console.is_terminal:
        console.width = 100_000
    return console


console = lines()


def grid(heads: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1, **look: Any) -> Table:
    """Return a table whose columns are aligned to the right from number `left` on."""
    table = Table(
        *(Column(head, justify="left" if i < left else "right") for i, head in enumerate(heads)), **look
    )
    for row in rows:
        table.add_row(*row)
    return table


class Progress:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(
        self, unit: str, total: int | None = None, done: int = 0, *, title: str = "", pause: float = 30.0,
        console: Console = console,
    ) -> None:  # fmt: skip
        """Start the count at `done` of `total`; None is unknown. Lines are `pause` seconds apart."""
        self.unit, self.total, self.before, self.console = unit, total, done, console
        self.title = f"{title}: " if title else ""
        self.pause = 0.1 if console.is_terminal else pause
        self.began = self.shown = time.monotonic()
        self.bar = progress.Progress(
            "{task.description}", progress.BarColumn(), progress.MofNCompleteColumn(), "{task.fields[note]}",
            progress.TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task(self.title + unit, total=total, completed=done, note="")

    def update(self, done: int, note: str = "") -> None:
        """Show the count, a note and the time left, unless something was shown just now."""
        signals.check()
        now = time.monotonic()
        if now - self.shown < self.pause:
            return
        self.shown = now
        minutes = self.minutes_left(done, now)
        if minutes is not None:
            note = ", ".join(filter(None, (note, f"about {minutes:.1f} min left")))
        self.bar.update(self.task, completed=done, note=note)
        if not self.console.is_terminal:
            of = "" if self.total is None else f"of {self.total:,} "
            self.console.print(", ".join(filter(None, (f"{self.title}{done:,} {of}{self.unit}", note))))

    def minutes_left(self, done: int, now: float) -> float | None:
        """Estimate the time left. Rich's own would count what was there before as done now."""
        if self.total is None or done <= self.before:
            return None
        return (self.total - done) * (now - self.began) / (done - self.before) / 60

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()
