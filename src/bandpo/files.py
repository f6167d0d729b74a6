"""Read JSON and YAML of plain values. The files may be damaged.

Each reader returns a value, or raises a `UserError` of one line: the file, the line, what is there and what is
expected.
"""

import json
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from .errors import UserError

# Lists and mappings in one another; Python's own limit is about a thousand.
_DEPTH, _TOO_DEEP = 100, "corrupt: it is nested more than 100 deep"
# What is read of a stranger's file. A row holds a response of a million tokens at most, YAML settings.
LONGEST_LINE, YAML_BYTES, _YAML_NODES = 2**25, 2**20, 10_000
_UNSHOWABLE = re.compile("[\0\ud800-\udfff]")  # neither a page nor a terminal can have these

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlevel = 3
shortened = _short.repr  # a value for a message


def lines_of(path: Path, longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield the lines of a regular file, with newlines.

    Raises UserError for another file, and for a line of more than `longest` bytes, which is not read; -1 allows all.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device may have no end
            raise UserError(f"{path} is a folder or a device; a regular file is expected")
        with path.open("rb") as file:
            most = longest + 1 if longest > 0 else -1
            for number, line in enumerate(iter(lambda: file.readline(most), b""), 1):
                if 0 < longest < len(line):
                    raise UserError(
                        f"{path}, line {number}: corrupt: it is longer than {longest:,} bytes"
                    )
                yield line
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

    if len(text) > YAML_BYTES:
        raise UserError(
            f"{where} is too large: {len(text):,} bytes, of which YAML may have {YAML_BYTES:,}"
        )
    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, which is ten times as fast
    # UTF-16, too.
    shown = text if isinstance(text, str) else text.replace(b"\0", b"").decode(errors="replace")
    try:
        if shown.count("%TAG") > 9:  # libyaml compares each with all before it
            raise yaml.YAMLError("more than nine %TAG directives")
        values = depth = 0
        for event in yaml.parse(text, kind):  # nodes are made to any depth, and documents to any number
            values += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            _check_size(where, values, 0, depth)
        loader = kind(text)
        node = loader.get_single_node()
        _size(node, where, {})
        value = None if node is None else loader.construct_document(node)
    except RecursionError:
        raise UserError(f"{where}: {_TOO_DEEP}") from None
    except UserError:
        raise
    except (
        yaml.YAMLError,
        ValueError,
        OverflowError,
        AttributeError,
        LookupError,
    ) as error:  # of a date, a number
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    return _plain(value, where, shown=True)


def _check_size(where: str, values: int, characters: int, depth: int = 0) -> None:
    if depth > _DEPTH:
        raise RecursionError
    if values > _YAML_NODES or characters > YAML_BYTES:
        raise UserError(
            f"{where} is too large: more than {_YAML_NODES:,} values or {YAML_BYTES:,} characters, counting what "
            "aliases repeat"
        )


def _size(node: Any, where: str, sizes: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Count the values and characters of a node, those behind an alias each time.

    Raises UserError for too many, and YAMLError for a repeated key, of which PyYAML takes the last, and for a number
    that takes long to read.
    """
    import yaml

    if id(node) in sizes:
        return sizes[id(node)]
    sizes[id(node)] = 1, 0  # for an alias within
    is_mapping = isinstance(node, yaml.MappingNode)
    within = node.value if isinstance(node, yaml.SequenceNode) else []
    within = [each for pair in node.value for each in pair] if is_mapping else within
    parts = [_size(each, where, sizes) for each in within]
    characters = len(node.value) if isinstance(node, yaml.ScalarNode) else sum(part[1] for part in parts)
    sizes[id(node)] = 1 + sum(part[0] for part in parts), characters
    _check_size(where, *sizes[id(node)])
    names = set[tuple[str, str]]()
    for key in within[::2] if is_mapping else ():
        name = (key.tag, str(key.value))
        if name in names:
            raise yaml.MarkedYAMLError(
                problem=f"key {key.value!r} is there twice", problem_mark=key.start_mark
            )
        names.add(name)
    if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":int") and characters > 400:
        raise yaml.MarkedYAMLError(
            problem="an integer of more than 400 digits", problem_mark=node.start_mark
        )
    return sizes[id(node)]


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
