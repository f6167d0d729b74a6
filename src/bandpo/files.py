"""Files: the one place that reads what may be damaged, and the one that writes what must survive a kill.

Whatever lies in a file, reading it ends in a value of the shape that was asked for, or in a `UserError` of one line
that names the file, the line, the field, what is there and what is expected. It takes bounded time and memory, too: no
pipe is waited for, nothing is nested deeper than `DEPTH`, and no alias of YAML grows into more than `NODES`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import reprlib
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from .errors import UserError

DEPTH = 100  # lists and mappings in one another; Python's own limit is about a thousand
NODES = 1_000_000  # of a YAML file, after its aliases
DOCUMENT = 64 * 2**20  # bytes of a file that is read as a whole
LINE = 64 * 2**20  # bytes of one line
SECONDS_BETWEEN_SYNCS = 1.0  # what a loss of power may cost; a killed process loses nothing that was appended


# -------------------------------------------------------------------------------------------------------------- reading
def read_json(path: Path, schema: Any = dict[str, Any], *, shown: bool = True, most: int = DOCUMENT) -> Any:
    """What a JSON file holds, checked by `checked`.

    Args:
        path: the file.
        schema: see `checked`.
        shown: names and texts in it must be such as can be shown and written.
        most: bytes.

    Raises:
        UserError: no regular file, or not what is expected in it.
    """
    return checked(_parsed(_content(path, most), str(path), shown), schema, str(path))


@dataclass(frozen=True)
class Lines:
    """The rows of a file of JSON lines; how many bytes the lines take that a newline ends; and what follows them and is
    no row: a line that was being written when its process was killed."""

    rows: list[Any]
    whole: int
    rest: bytes


def read_json_lines(path: Path, schema: Any = dict[str, Any], *, ended: bool = False) -> Lines:
    """The rows of a file of JSON lines, each checked by `checked`. Blank lines do not count.

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
    """The row of one line; `where` says which in errors, and what is wrong is a UserError as above."""
    row = _parsed(line, where)
    if not isinstance(row, dict):
        raise UserError(f"{where}: corrupt: one JSON object is expected, got {shortened(row)}")
    return checked(row, schema, where)


def read_yaml(path: Path) -> Any:
    """What a YAML file holds; see `parse_yaml`."""
    return parse_yaml(_text(_content(path), str(path)), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """YAML of plain values. Nothing in it is executed; a key that is there twice is an error, not the last one's win.

    Args:
        text: the YAML.
        where: what to call it in errors.

    Raises:
        UserError: no YAML, a key twice in one mapping, nested too deep, aliases that grow without bound, or a number
            or text that nothing can hold.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # Before anything recurses: the events come one by one.
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise UserError(f"{where}, line {event.start_mark.line + 1}: {_TOO_DEEP}")
        node = yaml.compose(text, Loader=loader)
        if node is not None:
            _check_nodes(node, where)
        value = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    except UserError:
        raise
    except (
        ValueError,
        OverflowError,
        RecursionError,
        AttributeError,
        LookupError,
    ) as error:  # of a date, of an integer with 5,000 digits
        raise UserError(f"{where}: a value in it cannot be read: {' '.join(str(error).split())}") from None
    _check(value, where, shown=True)
    return value


def _check_nodes(root: Any, where: str) -> None:
    """Refuse a key that is twice in one mapping, and aliases that contain themselves or grow without bound."""
    import yaml

    known: dict[int, tuple[int, int] | None] = {}  # of each node: how many there are in it, and how deep

    def measure(node: Any) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        line = node.start_mark.line + 1
        if id(node) in known:
            if (size := known[id(node)]) is None:
                raise UserError(f"{where}, line {line}: an alias stands within what it is an alias of")
            return size
        known[id(node)] = None
        children = node.value
        if isinstance(node, yaml.MappingNode):
            seen: dict[tuple[str, str], int] = {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    at, name = key.start_mark.line + 1, (key.tag, key.value)
                    if name in seen:
                        both = f"in lines {seen[name]} and {at}"
                        raise UserError(f"{where}: key {shortened(key.value)} is there twice, {both}")
                    seen[name] = at
            children = [each for pair in node.value for each in pair]
        sizes = [measure(child) for child in children]
        count, depth = 1 + sum(c for c, _ in sizes), 1 + max((d for _, d in sizes), default=0)
        if count > NODES:
            raise UserError(f"{where}, line {line}: its aliases grow into more than {NODES:,} values")
        if depth > DEPTH:
            raise UserError(f"{where}, line {line}: {_TOO_DEEP}")
        known[id(node)] = count, depth
        return count, depth

    measure(root)


def checked(value: Any, schema: Any, where: str) -> Any:
    """The value, if it is of the schema: a type for pydantic, which is strict here, so that no "1" becomes a 1.

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
    """Whether a part of a place is pydantic's name of a member of a union, as in ("reward", "int")."""
    return part in ("int", "float", "str", "bool", "finite-float") or (isinstance(part, str) and "[" in part)


def shortened(value: Any) -> str:
    """A value for a message, however large it is."""
    return _short.repr(value)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlevel = 3

_TOO_DEEP = f"it is nested more than {DEPTH} deep"


def _content(path: Path, most: int = DOCUMENT) -> bytes:
    with _open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{path} has more than {most >> 20} MiB, which is too large for what it should hold")
    return content


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a regular file, with their newlines; raises UserError for one that is too long."""
    with _open(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE + 1), b""), 1):
            if len(line) > LINE:
                raise UserError(f"{path}, line {number}: it has more than {LINE >> 20} MiB")
            yield line


def _open(path: Path) -> BinaryIO:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for, a device may have no end
            raise UserError(f"{path} is a {kind_of(path)}; a regular file is expected")
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise error if isinstance(error, UserError) else UserError(f"{str(path)!r} cannot be a path: {error}") from None


def kind_of(path: Path) -> str:
    """What a path leads to, in words."""
    mode = path.stat().st_mode
    kinds = {"folder": stat.S_ISDIR, "pipe": stat.S_ISFIFO, "socket": stat.S_ISSOCK}
    return next((kind for kind, fits in kinds.items() if fits(mode)), "device")


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: corrupt: byte {error.start + 1} is not UTF-8") from None


def _parsed(content: bytes, where: str, shown: bool = False) -> Any:
    text = _text(content, where)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        got = f", got {shortened(text.strip())}" if text.strip() else ", and it is empty"
        raise UserError(f"{where}: corrupt: one JSON object is expected ({error.msg}){got}") from None
    except ValueError:  # int() takes no more than 4,300 digits
        raise UserError(f"{where}: corrupt: {_TOO_LARGE}") from None
    except RecursionError:
        raise UserError(f"{where}: corrupt: {_TOO_DEEP}") from None
    _check(value, where, shown)
    return value


_TOO_LARGE = "it holds an integer of more than 300 digits, which no number can hold"
# NUL ends a name of the system; a lone surrogate is no character, and neither a page nor a terminal can have it.
_UNSHOWABLE = re.compile("[\0\ud800-\udfff]")


def _check(value: Any, where: str, shown: bool) -> None:
    """Refuse what would break its reader later: too deep, too large a number and, in what is `shown`, no text."""
    level, depth = [value], 0
    while level:
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
                if shown:
                    below += each.keys()
            elif isinstance(each, list | tuple | set):
                below += each
            elif isinstance(each, int):
                if abs(each) >= 10**300:
                    raise UserError(f"{where}: corrupt: {_TOO_LARGE}")
            elif shown and isinstance(each, str) and _UNSHOWABLE.search(each):
                raise UserError(f"{where}: corrupt: {shortened(each)} holds a character that no text can have")
        level, depth = below, depth + 1
        if depth > DEPTH + 1:
            raise UserError(f"{where}: corrupt: {_TOO_DEEP}")


def check_text(text: str, name: str) -> str:
    """The text, if it can be shown and written; raises UserError."""
    if _UNSHOWABLE.search(text):
        raise UserError(f"{name} {shortened(text)} holds a character that no text can have")
    return text


# -------------------------------------------------------------------------------------------------------------- writing
def write_atomically(path: Path, content: bytes) -> None:
    """All of it or, if interrupted or if the disk is full, nothing: what was there before stays.

    A link stays, and what it leads to is replaced; a device or a pipe, such as /dev/stdout, is written to as it is.

    Raises:
        UserError: the path is a folder.
        OSError: it cannot be written; the error names the path.
    """
    with _naming(path):
        if path.exists() and not path.is_file():
            if path.is_dir():
                raise UserError(f"{path}: is a folder; expected the name of a file to write")
            with path.open("wb") as file:
                file.write(content)
            return
        target = path.resolve()
        short = os.fsdecode(os.fsencode(target.name)[:200])  # a name has 255 bytes at most
        part = target.with_name(f".{short}.part")  # of a process that was killed, the next one takes it
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """An error of the system names the path, which that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


class Appender:
    """A file of JSON lines that one process at a time adds to.

    Opening cuts off a line that was being written when the last process was killed; `rows` are the whole ones, checked
    by the schema.
    """

    def __init__(self, path: Path, schema: Any = dict[str, Any]) -> None:
        self.path = path
        if path.exists() and not path.is_file():  # to open a pipe is to wait for its reader
            raise UserError(f"{path} is a {kind_of(path)}; a regular file is expected")
        self._held = contextlib.ExitStack()
        self._held.enter_context(locked(path.with_name(f".{path.name}.lock")))
        try:
            self._file: BinaryIO = self._held.enter_context(path.open("ab", buffering=0))
            lines = read_json_lines(path, schema, ended=True)
            self.rows = lines.rows
            if lines.whole < path.stat().st_size:
                self._file.truncate(lines.whole)
                os.fsync(self._file.fileno())
        except BaseException:
            self._held.close()
            raise
        self._synced = time.monotonic()

    def add(self, *rows: Mapping[str, Any]) -> None:
        content = memoryview(b"".join(map(line_of, rows)))
        with _naming(self.path):
            while content:  # the system may take less than all of it
                content = content[self._file.write(content) :]
        if time.monotonic() - self._synced > SECONDS_BETWEEN_SYNCS:
            self.sync()

    def sync(self) -> None:
        """Onto the disk."""
        with _naming(self.path):
            os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        if not self._file.closed:
            with self._held:
                self.sync()

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def line_of(row: Any) -> bytes:
    """A row as a JSON line. ASCII: a lone surrogate, which some servers send, has no other bytes."""
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


# --------------------------------------------------------------------------------------------- what others will read
# Our pages have no script and fetch nothing: a browser that is asked for either by what was in a file refuses.
POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'\">"
)

# eos_token and pad_token are none.
_CLEARLY = r"(?:hub|auth|access|api|bearer)_token|api_?key|access_?key|secret(?:_?key)?|passw(?:or)?d"
_NAME = rf"(?:(?:[\w.-]*[._-])?(?:{_CLEARLY})|(?:[\w.]*\.)?token)"
_SECRET = re.compile(_NAME, re.I)
# key=value in a command, and what a URL has before its @.
_IN_TEXT = re.compile(rf"((?<![\w.-]){_NAME}\s*[=:]\s*)[^\s'\",}}]+|(?<=://)[^/\s]+(?=@)", re.I)


def secret_in(node: Any, above: str = "") -> str | None:
    """The first setting that looks like a secret and has a value: by its name, or as a URL with a password in it."""
    for key, value in node.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            if found := secret_in(value, f"{name}."):
                return found
        elif isinstance(value, str) and value and (_SECRET.fullmatch(str(key)) or re.search(r"://[^/\s]+@", value)):
            return name
    return None


def blanked(node: Any) -> Any:
    """The same with *** for what looks like a secret, for pages and files that others read."""
    if isinstance(node, Mapping):
        return {
            key: "***" if isinstance(value, str) and value and _SECRET.fullmatch(str(key)) else blanked(value)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [blanked(each) for each in node]
    return _IN_TEXT.sub(lambda found: f"{found[1] or ''}***", node) if isinstance(node, str) else node


# -------------------------------------------------------------------------------------------------------------- locking
@contextlib.contextmanager
def locked(file: Path, *, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Only one process at a time writes to a folder: the one that holds this lock file in it.

    The kernel keeps the lock, so it is free as soon as its process is gone, however that ended; the file that a killed
    process leaves means nothing. A folder that is made here and has nothing else in it at the end is removed again.

    Args:
        file: the lock file, such as `folder / ".lock"`; its folder is made if it is not there.
        waiting: wait for the other process, and tell this who it is. Without it: refuse, after a second, which one that
            was killed may need to be gone.

    Raises:
        UserError: another process holds the lock.
        OSError: the folder cannot be written to.
    """
    folder = file.parent
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        said = f"another process{_holder(file)} is writing to {folder}"
        if waiting is None:
            raise UserError(f"{said}; wait for it to end, or choose another folder") from None
        waiting(said)
        lock.acquire()
    try:
        # Not where a locked file can be opened once only. Nothing is cut off: that takes milliseconds on some disks.
        with contextlib.suppress(OSError), file.open("r+", encoding="utf-8") as text:
            text.write(f"{os.getpid()} {socket.gethostname()}\n")
        yield
    finally:
        with contextlib.suppress(OSError):  # until a folder is not empty
            file.unlink()
            for each in made:
                each.rmdir()
        lock.release()


def _holder(file: Path) -> str:
    """Which process: its number, and its machine where that is another one."""
    try:
        pid, _, node = file.read_text(encoding="utf-8").partition("\n")[0].partition(" ")
    except (OSError, ValueError):
        return ""
    return f" ({pid}{'' if node == socket.gethostname() else f' on {node}'})" if pid.isdecimal() else ""
