"""Hold this process's ends of the template and of its workers.

Tasks and results are JSON values on a socket: whatever a task has become, nothing that it sends is ever executed here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import template

_START_SECONDS = 300.0  # for the template's imports, on a busy machine with a slow disk
_REPLY_SECONDS = 60.0  # for the template to fork, or to end a worker: it does nothing else
_LONGEST = 1 << 24  # bytes of a message
# This package may have been found by other means than the path.
_HOME = str(Path(__file__).resolve().parents[3])
_FORKS = sys.platform == "linux"  # elsewhere each worker is a program of its own


class Lost(Exception):
    """Report a lost process. It closed its end, sent what it never would, or is late."""

    def __init__(self, what: str, late: bool = False) -> None:
        super().__init__(what)
        self.late = late


class Line:
    """Hold the parent's end of a socket with one JSON value a line."""

    def __init__(self, ours: socket.socket) -> None:
        self.socket, self.received = ours, bytearray()

    def send(self, line: str, seconds: float, *, file: int | None = None) -> None:
        data = line.encode() + b"\n"
        try:
            self.socket.settimeout(seconds)
            if file is None:
                self.socket.sendall(data)
            else:
                socket.send_fds(self.socket, [data], [file])
        except OSError as error:
            raise self._lost(error, seconds) from None

    def receive(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        try:
            length = self.received.find(b"\n")
            while length < 0:
                searched = len(self.received)
                if searched > _LONGEST:
                    raise Lost(f"it sent more than {_LONGEST} bytes")
                self.socket.settimeout(max(1e-3, end - time.monotonic()))
                more = self.socket.recv(1 << 16)
                if not more:
                    raise ConnectionError
                self.received += more
                length = self.received.find(b"\n", searched)
            line = self.received[:length]
            del self.received[: length + 1]
            message = json.loads(line)
        except OSError as error:
            raise self._lost(error, seconds) from None
        except (ValueError, RecursionError):
            message = None
        # No message of ours, and the next ones cannot be told from others.
        if not isinstance(message, dict):
            raise Lost("it sent what is not a message")
        return message

    def _lost(self, error: OSError, seconds: float) -> Lost:
        late = isinstance(error, TimeoutError)
        return Lost(
            f"it was not ready after {seconds:g} s" if late else "it was killed, or ended by itself", late
        )


class Template:
    """Hold the parent's end of the template. That process has loaded the function, and forks workers.

    `setup` is what the process is told: the function, and its limits.
    """

    def __init__(self, setup: dict[str, Any], wall_seconds: float) -> None:
        self.setup, self.wall_seconds = setup, wall_seconds
        self.lock = threading.Lock()
        ours, theirs = socket.socketpair()
        self.line = Line(ours)
        # The same hashes in every run, so that nothing depends on the order of a set; and no threads of BLAS.
        environment = os.environ | {
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", template.__file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def wait_until_ready(self) -> None:
        setup = {
            **self.setup,
            "path": [place for place in sys.path if isinstance(place, str)]
            + [_HOME],  # imports skip others too
            "parent": os.getpid(),
            "forks": _FORKS,
        }
        self.line.send(json.dumps(setup), _START_SECONDS)
        message = self.line.receive(_START_SECONDS)
        if "error" in message:
            raise RuntimeError(f"a worker cannot load {self.setup['function']}: {message['error']}")

    def can_fork(self) -> bool:
        """Check that the template can fork another worker."""
        return _FORKS and self.process.poll() is None

    def fork(self) -> Worker:
        if not _FORKS:
            return Worker(self, self.line, self.process.pid)
        ours, theirs = socket.socketpair()
        try:
            pid = self._ask({"fork": True}, file=theirs.fileno())["pid"]
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Worker(self, Line(ours), pid)

    def end(self, pid: int) -> int | None:
        """Kill that worker, and return its exit code. None where nobody knows it."""
        if not _FORKS:
            return self.kill()
        try:
            return self._ask({"end": pid})["code"]
        except Lost:  # and with it all that it had forked
            self.kill()
            return None

    def _ask(self, request: dict[str, Any], file: int | None = None) -> dict[str, Any]:
        with self.lock:
            self.line.send(json.dumps(request), _REPLY_SECONDS, file=file)
            message = self.line.receive(_REPLY_SECONDS)
        if "error" in message:
            raise Lost(message["error"])
        return message

    def kill(self) -> int:
        self.process.kill()
        code = self.process.wait()
        with self.lock:  # whoever waits for a reply has seen the end
            self.line.socket.close()
        return code


class Worker:
    """Hold the parent's end of one worker."""

    def __init__(self, template: Template, line: Line, pid: int) -> None:
        self.template, self.line, self.pid = template, line, pid
        self.seconds = template.wall_seconds
        self.done = 0

    def wait_until_ready(self) -> None:
        self.line.receive(_START_SECONDS)

    def is_lost(self) -> bool:
        """Check that the worker died or spoke without a task. That costs the next task no try."""
        try:
            self.line.socket.setblocking(False)
            self.line.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def results(self, values: list[str]) -> Iterator[dict[str, Any]]:
        """Yield one message per value, as they come."""
        self.line.send(f"[{', '.join(values)}]", self.seconds + _START_SECONDS)
        for _ in values:
            message = self.line.receive(self.seconds)
            self.done += 1
            yield message

    def kill(self) -> int | None:
        return self.template.end(self.pid)

    def end(self) -> int | None:
        code = self.kill()
        self.line.socket.close()
        return code
