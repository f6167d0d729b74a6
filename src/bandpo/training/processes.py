"""Several processes that train together, as `torchrun` and `accelerate launch` start them, or `bandpo lab` itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading


def count() -> int:
    """How many there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this is the one that writes and speaks."""
    return os.environ.get("RANK", "0") == "0"


def end_with_launcher() -> None:
    """One of several processes is killed as soon as its launcher is gone: nobody else would end it while it waits for
    the others. On Linux; elsewhere it ends when the others cannot be reached any more."""
    if count() == 1 or sys.platform != "linux":
        return
    import ctypes

    launcher = os.getppid()
    die_with_parent = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)


def end_with_parent() -> None:
    """In a process of `multiprocessing`: end at once when its parent is gone, however that ended.

    The signals of a terminal and of a supervisor, which go to the whole family, are left to the parent; one that ends
    in an orderly way has to kill it, as Python waits for its children.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), name="bandpo-parent", daemon=True).start()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
