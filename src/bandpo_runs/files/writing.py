"""Write files that survive a kill. One process at a time replaces them in one step, or appends lines."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from bandpo.errors import UserError
from bandpo.files import line_of

from .reading import read_json_lines


@contextlib.contextmanager
def locked(file: Path, *, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a lock file while this process writes to its folder.

    The system frees the lock when its process ends, however it ends. A missing folder is made, and removed if
    nothing else was written to it.

    Args:
        file: the lock file.
        waiting: wait for the other process, and call this with the reason. Without it: refuse after a second, which a
            killed process may need to end.

    Raises:
        UserError: another process holds the lock.
        OSError: the folder cannot be written to.
    """
    is_new = not file.parent.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        reason = f"another process is writing to {file.parent}"
        if waiting is None:
            raise UserError(f"{reason}; wait for it to end, or choose another folder") from None
        waiting(reason)
        lock.acquire()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
            if is_new:
                file.parent.rmdir()  # fails where something is in it
        lock.release()


def cache_folder() -> Path:
    """Return $BANDPO_CACHE, or bandpo in the user's cache. It has what is made once on this machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "bandpo")
    return Path(os.environ.get("BANDPO_CACHE") or cache).expanduser()


# What marks a folder as that of one command: a file that it writes, and what stands in it.
_MARKS = {
    "run.json": (b"", "a training run"),
    "eval.json": (b"", "an evaluation"),
    "report.md": (b"# Prepared data", "prepared data"),
    "config.json": (b'"model_type"', "a model"),
}


def check_own(folder: Path, mark: str = "") -> None:
    """Check that a folder holds nothing of another kind than `mark` says. Raises UserError."""
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        raise UserError(f"{folder} is not a folder, and one is expected to write to")
    for name, (content, kind) in {} if (folder / mark).is_file() else _MARKS.items():
        if (folder / name).is_file() and content in (folder / name).read_bytes():
            raise UserError(f"{folder} holds {kind} ({name}); choose another folder with -o")


def write_atomically(path: Path, content: bytes) -> None:
    """Write the whole content or, if interrupted or if the disk is full, nothing.

    A missing folder is made. A link stays, and its target is replaced; a device or a pipe, such as /dev/stdout, is
    written to as it is.

    Raises:
        OSError: it cannot be written; the error names the path.
    """
    target = path.resolve()
    part = target.with_name(f".{target.name}.part")  # the next process takes that of a killed one
    with _naming(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
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
    """Bring the names in a folder onto the disk, where its file system can. A loss of power may undo a rename."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the path in errors of the system; that of a full disk names none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)
        raise


class Appender:
    """Append JSON lines to a file, one process at a time.

    Opening cuts off the line that a killed process began; `rows` are the whole ones, checked by the schema. A killed
    process loses no row that was added, a loss of power those after the last `sync`.
    """

    def __init__(self, path: Path, schema: Any = dict[str, Any]) -> None:
        self.path = path
        with contextlib.ExitStack() as held:
            held.enter_context(locked(path.with_name(f".{path.name}.lock")))
            self.rows, whole = read_json_lines(path, schema) if path.exists() else ([], 0)
            self._file: BinaryIO = held.enter_context(path.open("ab", buffering=0))
            self._file.truncate(whole)
            self._held = held.pop_all()

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Append rows."""
        content = memoryview(b"".join(map(line_of, rows)))
        with _naming(self.path):
            while content:  # the system may take less than all of it
                content = content[self._file.write(content) :]

    def sync(self) -> None:
        """Flush to the disk."""
        with _naming(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush, and free the lock."""
        if not self._file.closed:
            with self._held:
                self.sync()

    def __enter__(self) -> "Appender":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
