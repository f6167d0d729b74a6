"""Endings of a command: by a signal, or with output that nobody reads any more."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO, cast

from bandpo.errors import printable


@contextlib.contextmanager
def lenient_output() -> Iterator[None]:
    """Let a command work on after the reader of its output leaves (`| head -1`).

    The results are in files. A character
    that the terminal does not have, or should not have (`printable`), is written by its number."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and cast("TextIO", _Printable(stream)) for stream in before)
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError):
                stream.flush()
        sys.stdout, sys.stderr = before


class _Lenient:
    """A stream that swallows what nobody reads any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        with self._going_on():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._going_on():
            self._stream.flush()

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The stream tries again what it still holds, at the latest when Python ends: into nothing.
            with contextlib.suppress(OSError, ValueError):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, self._stream.fileno())
                os.close(nothing)
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, "the output") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Printable(_Lenient):
    """The same; others' control characters do not pass. rich, which has its own, writes to `rich_proxied_file`."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.rich_proxied_file = _Lenient(stream)

    def write(self, text: str) -> int:
        return super().write(printable(text))


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """End a command on SIGTERM and SIGHUP as on Ctrl-C, without a process or half a file left behind.

    Whatever else is raised on the way out (a terminal that is gone, a worker that is) is of no interest.
    Left alone: signals that somebody else handles or ignores (nohup), and one process among several, which may be
    waiting for another where no Python runs; their launcher ends them.
    """
    received: list[int] = []

    def end(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        numbers = []
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    except BaseException as error:
        if received and not (isinstance(error, KeyboardInterrupt) and error.args):
            raise KeyboardInterrupt(received[0]) from error
        raise
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
