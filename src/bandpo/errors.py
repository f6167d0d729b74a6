"""Define errors for users, and write the words in them."""

import difflib
import re


class UserError(ValueError):
    """Report what the user wrote or left on the disk and cannot work. The command line prints the message alone."""


def nearest(word: str, names: list[str]) -> str:
    """Return ", did you mean ...?" if a known word is close, else nothing. Capitals do not matter."""
    folded = {each.lower(): each for each in reversed(names)}
    close = difflib.get_close_matches(word.lower(), list(folded), n=1)
    return f", did you mean {folded[close[0]]!r}?" if close else ""


def unknown(what: str, word: object, names: list[str], *, most: int = 8, meant: str | None = None) -> str:
    """Say that a word is unknown, and what is known. That is all up to `most`, else the nearest or what was `meant`."""
    near = nearest(word, names) if isinstance(word, str) else ""  # None is near to "union"
    near = near if meant is None else f", did you mean {meant!r}?"
    if len(names) <= most:
        return f"{what} must be one of {names}, got {word!r}{near}"
    return f"no {what} is called {word!r}{near or ';'} `bandpo methods` lists all"


def counted(count: int, name: str) -> str:
    """Write a count with its noun: "1 row", "2,000 rows"."""
    plural = {"family": "families"}.get(name, f"{name}s")
    return f"{count:,} {name if count == 1 else plural}"


def printable(text: str) -> str:
    r"""Write control characters as \x1b. They could rewrite what a terminal shows.

    Newline and tab stay, and a carriage return at either end of a line, where it is that of a progress bar.
    """
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


_CONTROL = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|(?<=.)\r(?=.)"
)


def without_password(text: str) -> str:
    """Blank out what is before the @ of an address in a text. So is each value of its query: it may be a key."""
    text = re.sub(r"://[^/\s?]+@", "://***@", text)
    return re.sub(
        r"://\S+", lambda address: re.sub(r"([?&][^=&\s]*=)[^&\s'\"#]+", r"\1***", address[0]), text
    )
