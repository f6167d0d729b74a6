"""JSON files, and files of JSON lines, whatever lies in them."""

from __future__ import annotations

import contextlib
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import UserError
from .checks import TOO_DEEP, TOO_LARGE, check_value, checked, shortened

DOCUMENT = 64 * 2**20  # bytes of a file that is read as a whole
LINE = 64 * 2**20  # bytes of one line


def read_json(path: Path, schema: Any = dict[str, Any], *, shown: bool = True, most: int = DOCUMENT) -> Any:
    """Read a JSON file, checked by `checked`.

    Args:
        path: the file.
        schema: see `checked`.
        shown: names and texts in it must be such as can be shown and written.
        most: bytes.

    Raises:
        UserError: no regular file, or not what is expected in it.
    """
    return checked(_parsed(content_of(path, most), str(path), shown), schema, str(path))


@dataclass(frozen=True)
class Lines:
    """The rows of a file of JSON lines; how many bytes the lines take that a newline ends; and what follows them and is
    no row: a line that was being written when its process was killed."""

    rows: list[Any]
    whole: int
    rest: bytes


def read_json_lines(path: Path, schema: Any = dict[str, Any], *, ended: bool = False) -> Lines:
    """Read the rows of a file of JSON lines, each checked by `checked`. Blank lines do not count.

    Args:
        path: the file.
        schema: of each line.
        ended: only what a newline ends is a line; otherwise a last one without it is, if it is whole.

    Raises:
        UserError: no regular file, or a line that is not what is expected; the message has its number.
    """
    rows, whole = [], 0
    for number, line in enumerate(lines_of(path), 1):
        if not line.endswith(b"\n"):
            if not ended and line.strip():
                with contextlib.suppress(UserError):
                    rows.append(json_line(line, f"{path}, line {number}", schema))
                    line = b""
            return Lines(rows, whole, line.strip() and line)
        whole += len(line)
        if line.strip():
            rows.append(json_line(line, f"{path}, line {number}", schema))
    return Lines(rows, whole, b"")


def json_line(line: bytes, where: str, schema: Any = dict[str, Any]) -> Any:
    """Read the row of one line; `where` names the line in errors, which are UserErrors as above."""
    row = _parsed(line, where)
    if not isinstance(row, dict):
        raise UserError(f"{where}: corrupt: one JSON object is expected, got {shortened(row)}")
    return checked(row, schema, where)


def line_of(row: Any) -> bytes:
    """Write a row as a JSON line. ASCII: a lone surrogate, which some servers send, has no other bytes."""
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _parsed(content: bytes, where: str, shown: bool = False) -> Any:
    text = decoded(content, where)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        got = f", got {shortened(text.strip())}" if text.strip() else ", and it is empty"
        raise UserError(f"{where}: corrupt: one JSON object is expected ({error.msg}){got}") from None
    except ValueError:  # int() takes no more than 4,300 digits
        raise UserError(f"{where}: corrupt: {TOO_LARGE}") from None
    except RecursionError:
        raise UserError(f"{where}: corrupt: {TOO_DEEP}") from None
    check_value(value, where, shown)
    return value


def content_of(path: Path, most: int = DOCUMENT) -> bytes:
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{path} has more than {most >> 20} MiB, which is too large for what it should hold")
    return content


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file, with their newlines; raises UserError for one that is too long."""
    with open_regular(path) as file:
        yield from lines_in(file, str(path))


def lines_in(file: BinaryIO, where: str) -> Iterator[bytes]:
    """Yield the lines of an open file, from its position; raises UserError for one that is too long."""
    for number, line in enumerate(iter(lambda: file.readline(LINE + 1), b""), 1):
        if len(line) > LINE:
            raise UserError(f"{where}, line {number}: it has more than {LINE >> 20} MiB")
        yield line


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read; raises UserError for anything else."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for, a device may have no end
            raise UserError(f"{path} is a {kind_of(path)}; a regular file is expected")
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise error if isinstance(error, UserError) else UserError(f"{str(path)!r} cannot be a path: {error}") from None


def kind_of(path: Path) -> str:
    """Say in words what a path leads to."""
    mode = path.stat().st_mode
    kinds = {"folder": stat.S_ISDIR, "pipe": stat.S_ISFIFO, "socket": stat.S_ISSOCK}
    return next((kind for kind, fits in kinds.items() if fits(mode)), "device")


def decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: corrupt: byte {error.start + 1} is not UTF-8") from None
