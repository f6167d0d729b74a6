"""Read JSON and YAML of plain values. The files may be damaged.

Each reader returns a value, or raises a `UserError` of one line: the file, the line, what is there and what is
expected.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from .errors import UserError

# Lists and mappings in one another; Python's own limit is about a thousand.
_DEPTH, _TOO_DEEP = 100, "corrupt: it is nested more than 100 deep"
_UNSHOWABLE = re.compile("[\0\ud800-\udfff]")  # neither a page nor a terminal can have these

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlevel = 3
shortened = _short.repr  # a value for a message


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file, with newlines. Raises UserError for another file."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device may have no end
            raise UserError(f"{path} is a folder or a device; a regular file is expected")
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def json_line(line: bytes, where: str) -> dict[str, Any]:
    """Read the row of one line. Raises UserError with `where`."""
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise UserError(f"{where}: corrupt: one JSON object is expected, got {shortened(row)}")
    return cast("dict[str, Any]", row)


def line_of(row: Any) -> bytes:
    """Write a row as a JSON line, in ASCII. Some servers send lone surrogates, which have no other bytes."""
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def parse_json(content: bytes, where: str, shown: bool = False) -> Any:
    """Parse JSON of plain values. With `shown` refuse texts that a page cannot have."""
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise UserError(f"{where}: {_TOO_DEEP}") from None
    except ValueError as error:  # of UTF-8, of JSON, or of an integer with more than 4,300 digits
        got, reason = shortened(content.decode(errors="replace")), getattr(error, "msg", str(error))
        raise UserError(f"{where}: corrupt: one JSON object is expected ({reason}), got {got}") from None
    return _plain(value, where, shown)


def parse_yaml(text: str | bytes, where: str) -> Any:
    """Parse YAML of plain values, and execute nothing in it.

    Raises UserError for what is not YAML, a key that is there twice in one mapping, or a value too deep or too large.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _refuse_twice(node)
        value = None if node is None else loader.construct_document(node)
    except RecursionError:
        raise UserError(f"{where}: {_TOO_DEEP}") from None
    except (yaml.YAMLError, ValueError, OverflowError, AttributeError, LookupError) as error:  # of a date, a number
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    return _plain(value, where, shown=True)


def _refuse_twice(node: Any) -> None:
    """Refuse a repeated key. PyYAML takes the last."""
    import yaml

    within = node.value if isinstance(node, yaml.CollectionNode) else []
    if isinstance(node, yaml.MappingNode):
        names = set[tuple[str, str]]()
        for key, _ in node.value:
            if (name := (key.tag, str(key.value))) in names:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is there twice", problem_mark=key.start_mark)
            names.add(name)
        within = [value for _, value in node.value]
    for each in within:
        _refuse_twice(each)


def _plain(value: Any, where: str, shown: bool, depth: int = 0) -> Any:
    """Refuse too deep a value, and too large integers. If `shown`, refuse strings that are not text, too."""
    if isinstance(value, dict | list):
        if depth > _DEPTH:
            raise UserError(f"{where}: {_TOO_DEEP}")
        for each in (*value, *value.values()) if isinstance(value, dict) else value:
            if type(each) is not float and (shown or type(each) is not str):  # most of a long log
                _plain(each, where, shown, depth + 1)
    elif isinstance(value, int) and abs(value) >= 10**300:
        raise UserError(f"{where}: corrupt: it holds an integer of more than 300 digits")
    elif shown and isinstance(value, str):
        check_text(value, f"{where}: corrupt:")
    return value


def check_text(text: str, name: str) -> str:
    """Return a text if it can be shown and written. Raises UserError for another."""
    if _UNSHOWABLE.search(text):
        raise UserError(f"{name} {shortened(text)} holds a character that no text can have")
    return text
