"""Read files of JSON, JSON lines and YAML, and check them by a schema.

Each reader returns a value of the shape that was asked for, or raises a `UserError` of one line: the file, the line,
the field, what is there and what is expected.
"""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.files import YAML_BYTES, json_line, lines_of, parse_json, parse_yaml, shortened


def check_different(paths: Iterable[Path]) -> None:
    """Refuse a path that is there twice: it would count as two runs. Raises UserError."""
    places = [path.resolve() for path in paths]
    for place in places:
        if places.count(place) > 1:
            raise UserError(f"{place}: given twice; give each run, evaluation or file once")


def content_of(path: Path) -> bytes:
    """Read a regular file. Raises UserError for another one."""
    return b"".join(lines_of(path, -1))


def read_json(path: Path, schema: Any = dict[str, Any], *, shown: bool = True) -> Any:
    """Read a JSON document, and check it by `checked`. With `shown` refuse texts that a page cannot have."""
    return checked(parse_json(content_of(path), str(path), shown), schema, str(path))


def read_json_lines(path: Path, schema: Any = dict[str, Any]) -> tuple[list[Any], int]:
    """Read JSON lines, each checked by `checked`, and count the bytes of these lines. Blank ones are no rows.

    A last line without a newline is left out: a killed process began it. Raises UserError with the number of a damaged
    one.
    """
    rows, whole = [], 0
    for number, line in enumerate(lines_of(path), 1):
        if not line.endswith(b"\n"):
            break
        if line.strip():
            where = f"{path}, line {number}"
            rows.append(checked(json_line(line, where), schema, where))
        whole += len(line)
    return rows, whole


def read_yaml(path: Path) -> Any:
    """Read a YAML file as `parse_yaml` does. One that is too large for it is not read."""
    if path.is_file() and path.stat().st_size > YAML_BYTES:
        raise UserError(
            f"{path} is too large: {path.stat().st_size:,} bytes, of which YAML may have {YAML_BYTES:,}"
        )
    return parse_yaml(content_of(path), str(path))


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
        valid = _adapter(schema).validate_python(value, strict=True)
        return value if valid == value else valid  # in its own order, which pydantic changes
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
