"""Run several processes: those of a launcher, and the workers of a comparison."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from bandpo.errors import UserError


def count() -> int:
    """Return the number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Check that this process is the one that writes and speaks."""
    return os.environ.get("RANK", "0") == "0"


def end_with_launcher() -> None:
    """Let the kernel kill one of several processes when its launcher is gone.

    On Linux; elsewhere it ends when the others cannot be reached any more.
    """
    if count() == 1 or sys.platform != "linux":
        return
    import ctypes

    launcher = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != launcher:
        os._exit(1)


def end_with_parent() -> None:
    """End a process of `multiprocessing` at once when its parent is gone. It does not matter how that ended.

    The signals of a terminal and of a supervisor, which go to the whole family, are left to the parent.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(
        target=lambda: (parent.join(), os._exit(1)), name="bandpo-parent", daemon=True
    ).start()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


@contextlib.contextmanager
def workers(number: int, goes_on: str) -> Iterator[ProcessPoolExecutor]:
    """Start fresh processes for tasks. None of them is left behind, however this one ends.

    On an error every child that was started meanwhile is killed. Raises UserError where one was killed, and says what
    `goes_on`.
    """
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        try:
            yield pool
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()
            if isinstance(error, BrokenProcessPool):
                raise UserError(f"a worker was killed, by you or for want of memory; {goes_on}") from None
            raise
