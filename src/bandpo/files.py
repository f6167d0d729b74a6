"""Read JSON, JSON lines and YAML of plain values. The files may be damaged.

Each reader returns a value of the shape that was asked for, or raises a `UserError` of one line: the file, the line,
the field, what is there and what is expected.
"""

from __future__ import annotations

import functools
import json
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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


def content_of(path: Path) -> bytes:
    """Read a regular file. Raises UserError for another one."""
    return b"".join(lines_of(path))


def read_json(path: Path, schema: Any = dict[str, Any], *, shown: bool = True) -> Any:
    """Read a JSON document, and check it by `checked`. With `shown` refuse texts that a page cannot have."""
    return checked(_parsed(content_of(path), str(path), shown), schema, str(path))


class Lines(NamedTuple):
    """Hold the `rows` of a file. `whole`: bytes of ended lines. `rest`: the line that a killed process began."""

    rows: list[Any]
    whole: int
    rest: bytes


def read_json_lines(path: Path, schema: Any = dict[str, Any], *, ended: bool = False) -> Lines:
    """Read JSON lines, and check each by `checked`. Raises UserError with the number of a damaged one.

    Blank lines do not count. A last line without a newline counts if it is whole, but not with `ended`.
    """
    rows, whole = [], 0
    for number, line in enumerate(lines_of(path), 1):
        is_ended = line.endswith(b"\n")
        if ended and not is_ended:
            return Lines(rows, whole, line.strip())
        try:
            if line.strip():
                rows.append(json_line(line, f"{path}, line {number}", schema))
        except UserError:
            if is_ended:
                raise
            return Lines(rows, whole, line)
        whole += len(line) if is_ended else 0
    return Lines(rows, whole, b"")


def json_line(line: bytes, where: str, schema: Any = dict[str, Any]) -> Any:
    """Read the row of one line. Raises UserError with `where`."""
    row = _parsed(line, where)
    if not isinstance(row, dict):
        raise UserError(f"{where}: corrupt: one JSON object is expected, got {shortened(row)}")
    return checked(row, schema, where)


def line_of(row: Any) -> bytes:
    """Write a row as a JSON line, in ASCII. Some servers send lone surrogates, which have no other bytes."""
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _parsed(content: bytes, where: str, shown: bool = False) -> Any:
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise UserError(f"{where}: {_TOO_DEEP}") from None
    except ValueError as error:  # of UTF-8, of JSON, or of an integer with more than 4,300 digits
        got, reason = shortened(content.decode(errors="replace")), getattr(error, "msg", str(error))
        raise UserError(f"{where}: corrupt: one JSON object is expected ({reason}), got {got}") from None
    return _plain(value, where, shown)


def read_yaml(path: Path) -> Any:
    """Read a YAML file as `parse_yaml` does."""
    return parse_yaml(content_of(path), str(path))


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
        names = [(key.tag, str(key.value)) for key, _ in node.value]
        for i, (key, _) in enumerate(node.value):
            if names[i] in names[:i]:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is there twice", problem_mark=key.start_mark)
        within = [value for _, value in node.value]
    for each in within:
        _refuse_twice(each)


def checked(value: Any, schema: Any, where: str) -> Any:
    """Return a value of a schema, a type for pydantic. It is strict here: "1" does not become 1.

    Raises UserError for another value, with the field, its value, shortened, and what is expected.
    """
    if schema == dict[str, Any]:  # pydantic need not be installed to read a log
        if isinstance(value, dict):
            return value
        raise UserError(f"{where}: corrupt: names and values are expected, got {shortened(value)}")
    import pydantic

    try:
        found = _adapter(schema).validate_python(value, strict=True)
        return value if found == value else found  # in its own order, which pydantic changes
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]  # a wrong type of a union is an error for each member
    members = ("int", "float", "str", "bool", "finite-float")
    field = ".".join(str(part) for part in first["loc"] if part not in members and "[" not in str(part))
    if first["type"] == "missing":
        raise UserError(f"{where}: {field!r} is missing")
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    place = repr(field) if field else "corrupt: the content"
    raise UserError(f"{where}: {place} is {shortened(first['input'])}; {expected} is expected")


@functools.cache
def _adapter(schema: Any) -> Any:
    import pydantic

    return pydantic.TypeAdapter(schema)


def _plain(value: Any, where: str, shown: bool, depth: int = 0) -> Any:
    """Refuse too deep a value, and too large integers. If `shown`, refuse strings that are not text, too."""
    if isinstance(value, dict | list):
        if depth > _DEPTH:
            raise UserError(f"{where}: {_TOO_DEEP}")
        for each in (*value, *value.values()) if isinstance(value, dict) else value:
            if type(each) is not float:  # most of a long log
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
