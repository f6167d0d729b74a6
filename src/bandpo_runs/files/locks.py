"""One process at a time writes to a folder."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from bandpo.errors import UserError


@contextlib.contextmanager
def locked(file: Path, *, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Lock a folder for one writing process: the one that holds this lock file in it.

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
    lock = FileLock(file)
    try:
        _acquire(lock, folder, 1)
    except Timeout:
        said = f"another process{_holder(file)} is writing to {folder}"
        if waiting is None:
            raise UserError(f"{said}; wait for it to end, or choose another folder") from None
        waiting(said)
        _acquire(lock, folder, -1)
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


def _acquire(lock: FileLock, folder: Path, timeout: float) -> None:
    """Take the lock, in a folder that its last holder, who had made it, may remove at any moment."""
    for attempt in range(_ATTEMPTS):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=timeout)
            return
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1:
                raise


_ATTEMPTS = 100


def _holder(file: Path) -> str:
    """Name the process of a lock: its number, and its machine where that is another one."""
    try:
        pid, _, node = file.read_text(encoding="utf-8").partition("\n")[0].partition(" ")
    except (OSError, ValueError):
        return ""
    return f" ({pid}{'' if node == socket.gethostname() else f' on {node}'})" if pid.isdecimal() else ""
