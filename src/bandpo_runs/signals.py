"""End a command on a signal. A library may swallow the KeyboardInterrupt of it, as Python does in a `__del__`."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

came: list[int] = []  # the signals of the command that runs; one that ends well on a signal clears it


def check() -> None:
    """Raise KeyboardInterrupt for a signal that came, again if it was swallowed."""
    if came and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt(came[0])


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """End what runs here on SIGTERM and SIGHUP as on Ctrl-C. No process and no half a file is left behind.

    A signal that somebody ignores (nohup) stays ignored. One of several processes of torchrun may wait for another
    where no Python runs; its launcher ends it.
    """

    def end(number: int, frame: object) -> None:
        came.append(number)
        check()

    alone, usual = os.environ.get("WORLD_SIZE", "1") == "1", (signal.SIG_DFL, signal.default_int_handler)
    numbers = [
        getattr(signal, name)
        for name in ("SIGINT", "SIGTERM", "SIGHUP")
        if alone and hasattr(signal, name)
    ]
    before = {
        number: signal.signal(number, end) for number in numbers if signal.getsignal(number) in usual
    }
    try:
        yield
        check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        came.clear()  # a training that is called next in this process would end by it
