"""Let one process at a time write to a folder."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from bandpo.errors import UserError


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
