"""Checks of a file's content before use: its shape, its depth, its numbers and its texts."""

from __future__ import annotations

import functools
import re
import reprlib
from typing import Any

from ..errors import UserError

DEPTH = 100  # lists and mappings in one another; Python's own limit is about a thousand
TOO_DEEP = f"it is nested more than {DEPTH} deep"
TOO_LARGE = "it holds an integer of more than 300 digits, which no number can hold"
# NUL ends a name of the system; a lone surrogate is no character, and neither a page nor a terminal can have it.
_UNSHOWABLE = re.compile("[\0\ud800-\udfff]")


def checked(value: Any, schema: Any, where: str) -> Any:
    """Return the value if it is of the schema: a type for pydantic, which is strict here, so that no "1" becomes a 1.

    Raises:
        UserError: it is not. The message names the field, and has its value, shortened, and what is expected.
    """
    if schema == dict[str, Any]:  # pydantic need not be installed to read a log
        if not isinstance(value, dict):
            raise UserError(f"{where}: corrupt: names and values are expected, got {shortened(value)}")
        return value
    import pydantic

    try:
        found = _adapter(schema).validate_python(value, strict=True)
        # pydantic puts keys into the schema's order; what is read and written again should be the same file.
        return value if found == value else found
    except pydantic.ValidationError as error:
        # A wrong type of a union is an error for each of its members; one is enough.
        first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"] if not _of_union(part))
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if first["type"] == "missing":
        raise UserError(f"{where}: {field!r} is missing")
    if not field:
        raise UserError(f"{where}: corrupt: {expected} is expected, got {shortened(first['input'])}")
    raise UserError(f"{where}: {field!r} is {shortened(first['input'])}; {expected} is expected")


@functools.cache
def _adapter(schema: Any) -> Any:
    import pydantic

    return pydantic.TypeAdapter(schema)


def _of_union(part: int | str) -> bool:
    """Check for pydantic's name of a union member as part of a place, as in ("reward", "int")."""
    return part in ("int", "float", "str", "bool", "finite-float") or (isinstance(part, str) and "[" in part)


def shortened(value: Any) -> str:
    """Shorten a value for a message."""
    return _short.repr(value)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlevel = 3


def check_value(value: Any, where: str, shown: bool) -> None:
    """Refuse values that would break a reader later: too deep, too large a number and, in what is `shown`, no text."""
    level, depth = [value], 0
    while level:
        below: list[Any] = []
        for each in level:
            if type(each) is float or each is None:  # most of a long log
                continue
            if isinstance(each, dict):
                below += each.values()
                if shown:
                    below += each.keys()
            elif isinstance(each, list | tuple | set):
                below += each
            elif isinstance(each, int):
                if abs(each) >= 10**300:
                    raise UserError(f"{where}: corrupt: {TOO_LARGE}")
            elif shown and isinstance(each, str) and _UNSHOWABLE.search(each):
                raise UserError(f"{where}: corrupt: {shortened(each)} holds a character that no text can have")
        level, depth = below, depth + 1
        if depth > DEPTH + 1:
            raise UserError(f"{where}: corrupt: {TOO_DEEP}")


def check_text(text: str, name: str) -> str:
    """Return the text if it can be shown and written; raises UserError."""
    if _UNSHOWABLE.search(text):
        raise UserError(f"{name} {shortened(text)} holds a character that no text can have")
    return text
