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


def counted(count: int, name: str) -> str:
    """A count with its noun: "1 row", "2,000 rows"."""
    plural = {"family": "families"}.get(name, f"{name}s")
    return f"{count:,} {name if count == 1 else plural}"


def without_password(text: str) -> str:
    """A text as it may be shown and written: in an address what stands before the @, and each value of its query, which
    may be a key, are blanked out."""
    text = re.sub(r"://[^/\s?]+@", "://***@", text)
    return re.sub(r"://\S+", lambda address: re.sub(r"([?&][^=&\s]*=)[^&\s'\"#]+", r"\1***", address[0]), text)
