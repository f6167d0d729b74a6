"""Load the function once, and fork a worker whenever one is needed. It is the program at the other end.

That takes some hundredths of a second: a task that ends its worker is cheap. This file is run by its path; it imports
neither torch nor the parent's main module, needs no guard in a script and can be started from any thread, and from
processes that may have no children by `multiprocessing` (daemons, such as some reward workers).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

_SHOWN = 300  # characters of a task in a warning, and of an exception's own words


def _run() -> None:
    import importlib
    import logging
    import resource

    # Nobody reads what is written here; math-verify warns in every call.
    logging.disable(logging.CRITICAL)
    connection = socket.socket(fileno=0)
    # Ctrl-C is the parent's; the limit of time is the kernel's, which asks no Python code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    setup = json.loads(connection.makefile("rb").readline())
    if not _die_with(setup["parent"]):
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path[:] = setup["path"]
    module, _, name = setup["function"].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        for value, expected in setup["warm_up"]:
            result = json.loads(json.dumps(function(value)))
            if result != expected:
                raise ValueError(f"of {value!r} it makes {result!r}, and not {expected!r}")
    except BaseException as error:
        _send(connection, {"error": _reason(error)})
        return
    gc.collect()
    gc.freeze()  # else a collection in a worker would write to, and so copy, all the pages that it shares
    _send(connection, {"result": "ready"})
    if setup["forks"]:
        connection = _fork_on_request(connection)
    if connection is not None:
        _work(connection, function, setup)


def _die_with(parent: int) -> bool:
    """Check that the parent is still there. On Linux this process is killed together with it from now on."""
    if sys.platform == "linux":
        import ctypes

        die_with_parent = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
        return os.getppid() == parent
    return True


def _fork_on_request(control: socket.socket) -> socket.socket | None:
    """Fork a worker for each request. Returns its socket in each worker; None in the template, at the end."""
    template, workers = os.getpid(), set()
    while True:
        request, files, _, _ = socket.recv_fds(control, 1 << 10, 1)
        if not request:
            return None
        request = json.loads(request)
        if "fork" in request:
            try:
                pid = os.fork()
            except OSError as error:
                _send(control, {"error": _reason(error)})
            else:
                if pid == 0:
                    os.dup2(files[0], 0)  # and the control is closed
                    os.close(files[0])
                    return control if _die_with(template) else None
                workers.add(pid)
                _send(control, {"pid": pid})
            os.close(files[0])
        else:
            code = None
            pid = request["end"]
            if pid in workers:
                workers.remove(pid)
                os.kill(pid, signal.SIGKILL)  # one that is at its end keeps the reason
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            _send(control, {"code": code})


def _work(connection: socket.socket, function: Callable[[Any], Any], setup: dict[str, Any]) -> None:
    import resource

    if setup["memory"] is not None:
        with contextlib.suppress(OSError, ValueError):  # where the platform has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (setup["memory"], setup["memory"]))
    _send(connection, {"result": "ready"})
    for line in connection.makefile("rb"):
        for value in json.loads(line):
            signal.setitimer(signal.ITIMER_PROF, setup["seconds"])
            try:
                message = json.dumps({"result": function(value)})
            except MemoryError:
                return
            except BaseException as error:
                message = json.dumps({"raised": _reason(error)})
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(message.encode() + b"\n")


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _reason(error: BaseException) -> str:
    """Return the exception in one line, and where it was raised."""
    try:
        words = " ".join(str(error).split())
    except Exception:  # its own fault
        words = ""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + (f": {shortened(words)}" if words else "") + place


def shortened(text: str) -> str:
    """Shorten a text for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


if __name__ == "__main__":
    try:
        _run()
    finally:
        os._exit(0)  # whatever state a task has left the interpreter in
