"""Width of a command's output: that of the terminal, or 100 columns where there is none."""

from __future__ import annotations

import shutil
import textwrap

PIPED = 100


def width() -> int:
    return shutil.get_terminal_size((PIPED, 24)).columns


def wrapped(text: str, column: int | None = None) -> str:
    """Wrap the long lines of a text. What goes on begins at `column`, or else 2 behind where its line does."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip()) + 2 if column is None else column
        fits = len(line) <= width()
        lines += [line] if fits else textwrap.wrap(
            line, width(), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )  # fmt: skip
    return "\n".join(lines)
