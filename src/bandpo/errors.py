"""What a user is told."""

from __future__ import annotations

import difflib
import re


class UserError(ValueError):
    """Something that the user wrote or left on the disk cannot work; the command line prints the message alone."""


def nearest(word: str, known: list[str]) -> str:
    """ ", did you mean ...?" if a known word is close, else nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def without_password(text: str) -> str:
    """A text as it may be shown and written: of an address in it, what stands before the @ is blanked out."""
    return re.sub(r"://[^/\s]+@", "://***@", text)
