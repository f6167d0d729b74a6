"""Files that survive a kill: replaced in one step, or appended to line by line."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from bandpo.errors import UserError
from bandpo.files.reading import kind_of, line_of, read_json_lines

from .locks import locked

SECONDS_BETWEEN_SYNCS = 1.0  # what a loss of power may cost; a killed process loses nothing that was appended


def write_atomically(path: Path, content: bytes) -> None:
    """Write the whole content or, if interrupted or if the disk is full, nothing: what was there before stays.

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
            sync_folder(target.parent)
        finally:
            part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder onto the disk, where its file system can: a loss of power may undo a rename."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to an error of the system, as that of a full disk has none."""
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
        """Flush to the disk."""
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
