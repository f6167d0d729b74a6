"""Worker processes with a hard limit of time and memory for every task.

This file is run as a program of its own, the template: it imports neither torch nor the parent's main module, needs no
guard in a script and can be started from any thread, and from processes that may have no children by `multiprocessing`
(daemons, such as some reward workers). The template loads the function once, and forks a worker whenever one is needed,
which takes some hundredths of a second: a task that ends its worker is cheap. Tasks and results are JSON values on a
socket: whatever a task has become, nothing that it sends is ever executed here.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_START_SECONDS = 300.0  # for the template's imports, on a busy machine with a slow disk
_REPLY_SECONDS = 60.0  # for the template to fork, or to end a worker: it does nothing else
_ATTEMPTS = 5  # to start a worker, in a row
_BATCH = 32  # tasks in one message, at most
_SHOWN = 300  # characters of a task in a warning, and of an exception's own words
_KEPT = 10  # faults that are kept with their tasks
_LONGEST = 1 << 24  # bytes of a message
_HOME = str(Path(__file__).resolve().parents[2])  # this package may have been found by other means than the path
_FORKS = sys.platform == "linux"  # elsewhere each worker is a program of its own


class Stopped(enum.Enum):
    """What stands in the place of a result.

    Attributes:
        TIME: the task was killed at its limit of time.
        DIED: its worker died of it, twice; memory, or a crash of the interpreter.
    """

    TIME = "time"
    DIED = "died"


@dataclass(frozen=True)
class Raised:
    """What stands in the place of a result where the function raised; `reason` names the exception and the place."""

    reason: str


class Pool:
    """Processes that apply one function to JSON values, each task under a limit of time.

    The limit counts processor time, so that a busy machine turns no innocent task into a late one; the kernel itself
    ends a worker that is beyond it, whatever it is doing. `wall_seconds` is for what uses no processor: then the worker
    is killed from here. Other tasks of the same batch go on in a new worker. A worker that dies for another reason
    (killed from outside, memory) costs its task one more try.

    A task on which the function raises gets a `Raised` and ends its worker. It is counted in `raised`, the first ones
    are kept in `faults`, and the first of all is said in a warning: one task is no reason to end the work of the rest.

    Workers start when they are needed, ignore the terminal's interrupt, and end with this process, however it ends (on
    Linux at once; elsewhere as soon as their task does). The pool may be used from several threads.

    Args:
        function: `module:function`, looked for where this process looks for modules.
        seconds: of processor time per task.
        wall_seconds: per task; default: 5 times `seconds`, and 5 more.
        memory: bytes of address space per worker, where the platform can limit it; None for no limit.
        size: processes, at most; default: the processors that this process may use, at most 8.
        tasks_per_process: a worker is replaced after so many, because parsers keep what they have learnt.
        warm_up: pairs of a value and its result. If the function gives another one, no worker is started; what it
            learns on the way is known to all workers.
    """

    def __init__(
        self,
        function: str,
        *,
        seconds: float,
        wall_seconds: float | None = None,
        memory: int | None = 2**30,
        size: int | None = None,
        tasks_per_process: int = 1000,
        warm_up: Sequence[tuple[Any, Any]] = (),
    ) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, got {seconds!r}")
        self.function, self.seconds, self.memory, self.warm_up = function, seconds, memory, warm_up
        self.wall_seconds = 5 * seconds + 5 if wall_seconds is None else wall_seconds
        self.size = min(8, _processors()) if size is None else size
        self.tasks_per_process = tasks_per_process
        self.raised = 0
        self.faults: list[str] = []
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: deque[_Task] = deque()
        self._busy = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._workers: set[_Worker] = set()
        self._starting = threading.Lock()
        self._template: _Template | None = None
        atexit.register(self.close)

    def map(self, values: Sequence[Any]) -> list[Any]:
        """The function of every value, in order; `Stopped` or `Raised` where there is no result.

        Raises:
            RuntimeError: the function cannot be loaded, workers do not start, or the pool is closed.
            TypeError: a value is not of JSON.
        """
        if not values:
            return []
        call = _Call(len(values))
        tasks = [_Task(json.dumps(value), call) for value in values]
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool of workers is closed")
            self._queue.extend(tasks)
            while len(self._threads) < min(self.size, self._busy + len(self._queue)):
                thread = threading.Thread(target=self._serve, name="bandpo-worker", daemon=True)
                thread.start()
                self._threads.append(thread)
            self._wake.notify_all()
        try:
            call.done.wait()
        finally:
            call.given_up = True
        if call.error is not None:
            raise RuntimeError(call.error)
        self._count([task for task in tasks if isinstance(task.result, Raised)])
        return [task.result for task in tasks]

    def pids(self) -> list[int]:
        """The workers that are alive."""
        with self._lock:
            return sorted(worker.pid for worker in self._workers)

    def close(self) -> None:
        """End the workers. Done at the end of the program too."""
        if os.getpid() != self._pid:  # a forked copy; the workers are its parent's
            return
        with self._lock:
            self._closed = True
            workers, threads, template = list(self._workers), list(self._threads), self._template
            self._wake.notify_all()
        for worker in workers:
            worker.kill()
        if template is not None:
            template.kill()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)
        atexit.unregister(self.close)

    def _count(self, tasks: list[_Task]) -> None:
        if not tasks:
            return
        faults = [f"{task.result.reason}, for the task {_short(task.value)}" for task in tasks[:_KEPT]]
        with self._lock:
            first, self.raised = self.raised == 0, self.raised + len(tasks)
            self.faults += faults[: _KEPT - len(self.faults)]
        if first:
            warnings.warn(
                f"{self.function} raised {faults[0]}. It has no result, and the work goes on. This is a fault of the "
                "function, please report it; others like it are counted, but no longer said.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _serve(self) -> None:
        """One thread for one worker: it takes tasks, and lives as long as the pool.

        On Linux a process is killed when the *thread* that started it ends, so it must not be a caller's.
        """
        worker: _Worker | None = None
        while batch := self._take():
            try:
                if worker is not None and (worker.done >= self.tasks_per_process or worker.is_lost()):
                    self._end(worker)
                    worker = None
                if worker is None:
                    worker = self._start()
                for task, result in zip(batch, worker.results([task.value for task in batch]), strict=False):
                    task.finish(result)
                    batch = batch[1:]
                    if "raised" in result:  # nobody knows what state it has left
                        self._end(worker)
                        worker = None
                        self._put_back(batch)
                        break
            except _Lost as lost:
                assert worker is not None
                code = self._end(worker)
                worker = None
                first, *others = batch
                first.deaths += 1
                late = lost.late or code == -signal.SIGPROF
                if late or first.deaths == 2:
                    first.finish({"stopped": Stopped.TIME if late else Stopped.DIED})
                else:
                    others = batch
                self._put_back(others)
            except Exception as error:  # no worker can be started
                for task in batch:
                    task.finish({"error": str(error)})
            finally:
                with self._lock:
                    self._busy -= 1
        if worker is not None:
            self._end(worker)

    def _take(self) -> list[_Task]:
        """The next tasks of a worker, a fair share of what waits; none when the pool is closed."""
        with self._lock:
            while True:
                while self._queue and self._queue[0].call.given_up:
                    self._queue.popleft()
                if self._closed:
                    for task in self._queue:
                        task.finish({"error": "the pool of workers was closed"})
                    self._queue.clear()
                    return []
                if self._queue:
                    share = min(_BATCH, -(-len(self._queue) // (4 * self.size)))
                    self._busy += 1
                    return [self._queue.popleft() for _ in range(share)]
                self._wake.wait()

    def _put_back(self, tasks: list[_Task]) -> None:
        with self._lock:
            self._queue.extendleft(reversed(tasks))
            self._wake.notify_all()

    def _start(self) -> _Worker:
        """A worker that is ready. What is killed while it starts is started again, so many times."""
        why = ""
        for _ in range(_ATTEMPTS):
            template = worker = None
            try:
                template = self._loaded()
                worker = template.fork()
                with self._lock:
                    self._workers.add(worker)
                worker.wait_until_ready()
                return worker
            except _Lost as lost:
                why = str(lost)
                if worker is not None:
                    self._end(worker)
                elif template is not None:
                    template.kill()
                if lost.late:
                    break
            if self._closed:
                raise RuntimeError("the pool of workers was closed")
        raise RuntimeError(f"no worker for {self.function} can be started: {why}")

    def _loaded(self) -> _Template:
        """The template, or a new one if it is gone."""
        with self._starting:
            if _FORKS and self._template is not None and self._template.process.poll() is None:
                return self._template
            template = _Template(self)
            with self._lock:
                self._template, closed = template, self._closed
            if closed:
                template.kill()
            try:
                template.wait_until_ready()
            except BaseException:
                template.kill()
                raise
            return template

    def _end(self, worker: _Worker) -> int | None:
        code = worker.end()
        with self._lock:
            self._workers.discard(worker)
        return code


class _Call:
    """One call of `map`."""

    def __init__(self, tasks: int) -> None:
        self.lock = threading.Lock()
        self.left = tasks
        self.done = threading.Event()
        self.error: str | None = None
        self.given_up = False


class _Task:
    def __init__(self, value: str, call: _Call) -> None:
        self.value, self.call = value, call  # as JSON: ASCII, lone surrogates too
        self.result: Any = None
        self.deaths = 0

    def finish(self, message: dict[str, Any]) -> None:
        self.result = (
            Raised(message["raised"]) if "raised" in message else message.get("stopped", message.get("result"))
        )
        with self.call.lock:
            self.call.error = self.call.error or message.get("error")
            self.call.left -= 1
            if self.call.left == 0 or self.call.error is not None:
                self.call.done.set()


class _Lost(Exception):
    """The process at the other end has closed it, or sends what it never would; or it is late."""

    def __init__(self, what: str, late: bool = False) -> None:
        super().__init__(what)
        self.late = late


class _Line:
    """The parent's end of a socket with one JSON value a line."""

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
        end, searched = time.monotonic() + seconds, 0
        try:
            while (length := self.received.find(b"\n", searched)) < 0:
                if (searched := len(self.received)) > _LONGEST:
                    raise _Lost(f"it sent more than {_LONGEST} bytes")
                self.socket.settimeout(max(1e-3, end - time.monotonic()))
                more = self.socket.recv(1 << 16)
                if not more:
                    raise ConnectionError
                self.received += more
            line = self.received[:length]
            del self.received[: length + 1]
            message = json.loads(line)
        except OSError as error:
            raise self._lost(error, seconds) from None
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):  # no message of ours, and the next ones cannot be told from others
            raise _Lost("it sent what is no message")
        return message

    def _lost(self, error: OSError, seconds: float) -> _Lost:
        late = isinstance(error, TimeoutError)
        return _Lost(f"it was not ready after {seconds:g} s" if late else "it was killed, or ended by itself", late)


class _Template:
    """The parent's end of the process that has loaded the function, and forks workers."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.lock = threading.Lock()
        ours, theirs = socket.socketpair()
        self.line = _Line(ours)
        # The same hashes in every run, so that nothing depends on the order of a set; and no threads of BLAS.
        environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", __file__],
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
            "function": self.pool.function,
            "path": [place for place in sys.path if isinstance(place, str)] + [_HOME],  # imports skip others too
            "parent": os.getpid(),
            "seconds": self.pool.seconds,
            "memory": self.pool.memory,
            "warm_up": list(self.pool.warm_up),
            "forks": _FORKS,
        }
        self.line.send(json.dumps(setup), _START_SECONDS)
        message = self.line.receive(_START_SECONDS)
        if "error" in message:
            raise RuntimeError(f"a worker cannot load {self.pool.function}: {message['error']}")

    def fork(self) -> _Worker:
        if not _FORKS:
            return _Worker(self, self.line, self.process.pid)
        ours, theirs = socket.socketpair()
        try:
            pid = self._ask({"fork": True}, file=theirs.fileno())["pid"]
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return _Worker(self, _Line(ours), pid)

    def end(self, pid: int) -> int | None:
        """Kill that worker; its exit code, None where nobody knows it."""
        if not _FORKS:
            return self.kill()
        try:
            return self._ask({"end": pid})["code"]
        except _Lost:  # and with it all that it had forked
            self.kill()
            return None

    def _ask(self, request: dict[str, Any], file: int | None = None) -> dict[str, Any]:
        with self.lock:
            self.line.send(json.dumps(request), _REPLY_SECONDS, file=file)
            message = self.line.receive(_REPLY_SECONDS)
        if "error" in message:
            raise _Lost(message["error"])
        return message

    def kill(self) -> int:
        self.process.kill()
        code = self.process.wait()
        with self.lock:  # whoever waits for a reply has seen the end
            self.line.socket.close()
        return code


class _Worker:
    """The parent's end of one worker."""

    def __init__(self, template: _Template, line: _Line, pid: int) -> None:
        self.template, self.line, self.pid = template, line, pid
        self.seconds = template.pool.wall_seconds
        self.done = 0

    def wait_until_ready(self) -> None:
        self.line.receive(_START_SECONDS)

    def is_lost(self) -> bool:
        """Whether it died, or said something, while it had no task: that costs the next task no try."""
        try:
            self.line.socket.setblocking(False)
            self.line.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def results(self, values: list[str]) -> Iterator[dict[str, Any]]:
        """One message per value, as they come."""
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


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


# ---- the template


def _run() -> None:
    import importlib
    import resource

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
            if (found := json.loads(json.dumps(function(value)))) != expected:
                raise ValueError(f"of {value!r} it makes {found!r}, and not {expected!r}")
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
    """Whether the parent is still there; this process is killed together with it from now on, where Linux is."""
    if sys.platform == "linux":
        import ctypes

        die_with_parent = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
        return os.getppid() == parent
    return True


def _fork_on_request(control: socket.socket) -> socket.socket | None:
    """The socket of a worker, in each worker; None in the template, at the end."""
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
            if (pid := request["end"]) in workers:
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
    """The exception in one line, and where it was raised."""
    try:
        words = " ".join(str(error).split())
    except Exception:  # its own fault
        words = ""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + (f": {_short(words)}" if words else "") + place


if __name__ == "__main__":
    try:
        _run()
    finally:
        os._exit(0)  # whatever state a task has left the interpreter in
