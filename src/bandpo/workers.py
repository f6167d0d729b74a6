"""Worker processes with a hard limit of time and memory for every task.

A worker is this file, run as a program of its own: it imports neither torch nor the parent's main module, needs no
guard in a script and can be started from any thread, and from processes that may have no children by `multiprocessing`
(daemons, such as some reward workers). Tasks and results are JSON values on a socket: whatever a task has become,
nothing that it sends is ever executed here.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_START_SECONDS = 300.0  # for a worker's imports, on a busy machine with a slow disk
_BATCH = 32  # tasks in one message, at most


class Stopped(enum.Enum):
    """What stands in the place of a result.

    Attributes:
        TIME: the task was killed at its limit of time.
        DIED: its worker died of it, twice; memory, or a crash of the interpreter.
    """

    TIME = "time"
    DIED = "died"


class Pool:
    """Processes that apply one function to JSON values, each task under a limit of time.

    The limit counts processor time, so that a busy machine turns no innocent task into a late one; the kernel itself
    ends a worker that is beyond it, whatever it is doing. `wall_seconds` is for what uses no processor: then the parent
    kills. Other tasks of the same batch go on in a new worker. A worker that dies for another reason (killed from
    outside, memory) costs its task one more try.

    Workers start when they are needed, ignore the terminal's interrupt, and end with this process, however it ends (on
    Linux at once; elsewhere as soon as their task does). The pool may be used from several threads.

    Args:
        function: `module:function`; modules of this package are imported without the package's own `__init__`, which
            loads torch.
        seconds: of processor time per task.
        wall_seconds: per task; default: 5 times `seconds`, and 5 more.
        memory: bytes of address space per worker, where the platform can limit it; None for no limit.
        size: processes, at most; default: the processors that this process may use, at most 8.
        tasks_per_process: a worker is replaced after so many, because parsers keep what they have learnt.
    """

    def __init__(
        self,
        function: str,
        *,
        seconds: float,
        wall_seconds: float | None = None,
        memory: int | None = 2**30,
        size: int | None = None,
        tasks_per_process: int = 10_000,
    ) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, got {seconds!r}")
        self.function, self.seconds, self.memory = function, seconds, memory
        self.wall_seconds = 5 * seconds + 5 if wall_seconds is None else wall_seconds
        self.size = min(8, _processors()) if size is None else size
        self.tasks_per_process = tasks_per_process
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: deque[_Task] = deque()
        self._busy = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._workers: set[_Worker] = set()
        atexit.register(self.close)

    def map(self, values: Sequence[Any]) -> list[Any]:
        """The function of every value, in order; `Stopped` where there is no result.

        Raises:
            RuntimeError: the function raised, workers do not start, or the pool is closed.
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
        return [task.result for task in tasks]

    def pids(self) -> list[int]:
        """The processes that are alive."""
        with self._lock:
            return sorted(worker.process.pid for worker in self._workers)

    def close(self) -> None:
        """End the workers. Done at the end of the program too."""
        if os.getpid() != self._pid:  # a forked copy; the workers are its parent's
            return
        with self._lock:
            self._closed = True
            workers, threads = list(self._workers), list(self._threads)
            self._wake.notify_all()
        for worker in workers:
            worker.process.kill()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)
        atexit.unregister(self.close)

    def _serve(self) -> None:
        """One thread for one worker: it takes tasks, and lives as long as the pool.

        On Linux a worker is killed when the *thread* that started it ends, so it must not be a caller's.
        """
        worker: _Worker | None = None
        while batch := self._take():
            try:
                if worker is None or worker.done >= self.tasks_per_process:
                    if worker is not None:
                        self._end(worker)
                    worker = self._start()
                for task, result in zip(batch, worker.results([task.value for task in batch]), strict=False):
                    task.finish(result)
                    batch = batch[1:]
            except _WorkerLost as lost:
                assert worker is not None
                self._end(worker)
                worker = None
                first, *others = batch
                first.deaths += 1
                if lost.reason is Stopped.TIME or first.deaths == 2:
                    first.finish({"stopped": lost.reason})
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
        worker = _Worker(self)
        with self._lock:
            self._workers.add(worker)
            closed = self._closed
        if closed:
            worker.process.kill()
        try:
            worker.wait_until_ready()
        except BaseException:
            self._end(worker)
            raise
        return worker

    def _end(self, worker: _Worker) -> None:
        worker.end()
        with self._lock:
            self._workers.discard(worker)


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
        self.result = message.get("stopped", message.get("result"))
        with self.call.lock:
            self.call.error = self.call.error or message.get("error")
            self.call.left -= 1
            if self.call.left == 0 or self.call.error is not None:
                self.call.done.set()


class _WorkerLost(Exception):
    def __init__(self, reason: Stopped) -> None:
        super().__init__(reason)
        self.reason = reason


class _Worker:
    """The parent's end of one process."""

    def __init__(self, pool: Pool) -> None:
        self.seconds, self.function = pool.wall_seconds, pool.function
        self.done = 0
        self.received = b""
        self.socket, theirs = socket.socketpair()
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
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.setup = {
            "function": pool.function,
            "path": [place for place in sys.path if isinstance(place, str)],  # imports skip others too
            "parent": os.getpid(),
            "seconds": pool.seconds,
            "memory": pool.memory,
        }

    def wait_until_ready(self) -> None:
        try:
            self._send(json.dumps(self.setup))
            message = self._receive(_START_SECONDS)
        except _WorkerLost:
            code = self.process.returncode
            what = f"ended before it was ready, exit code {code}"
            if code is None:
                what = f"was not ready after {_START_SECONDS:g} s"
            raise RuntimeError(f"a worker for {self.function} {what}") from None
        if "error" in message:
            raise RuntimeError(f"a worker cannot load {self.function}: {message['error']}")

    def results(self, values: list[str]) -> Iterator[dict[str, Any]]:
        """One message per value, as they come."""
        self._send(f"[{', '.join(values)}]")
        for _ in values:
            message = self._receive(self.seconds)
            self.done += 1
            yield message

    def _send(self, line: str) -> None:
        self.socket.settimeout(self.seconds + _START_SECONDS)
        try:
            self.socket.sendall(line.encode() + b"\n")
        except OSError as error:
            raise self._lost(error) from None

    def _receive(self, seconds: float) -> dict[str, Any]:
        self.socket.settimeout(seconds)
        try:
            while b"\n" not in self.received:
                more = self.socket.recv(1 << 16)
                if not more:
                    raise ConnectionError
                self.received += more
        except OSError as error:
            raise self._lost(error) from None
        line, _, self.received = self.received.partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):  # no message of ours, and the next ones cannot be told from others
            raise _WorkerLost(Stopped.DIED) from None

    def _lost(self, error: OSError) -> _WorkerLost:
        if isinstance(error, TimeoutError):  # it is killed when it is replaced
            return _WorkerLost(Stopped.TIME)
        code = self.process.wait()
        return _WorkerLost(Stopped.TIME if code == -signal.SIGPROF else Stopped.DIED)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.close()


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


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- the worker


def _work() -> None:
    import ctypes
    import importlib
    import resource
    import types

    connection = socket.socket(fileno=0)
    lines = connection.makefile("rb")

    def send(message: dict[str, Any]) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    # Ctrl-C is the parent's; the limit of time is the kernel's, which asks no Python code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    setup = json.loads(lines.readline())
    if sys.platform == "linux":
        die_with_parent = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
        if os.getppid() != setup["parent"]:
            return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path[:] = setup["path"]
    package = types.ModuleType("bandpo")
    package.__path__ = [str(Path(__file__).resolve().parent)]
    sys.modules["bandpo"] = package
    module, _, name = setup["function"].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except BaseException as error:
        send({"error": f"{type(error).__name__}: {error}"})
        return
    if setup["memory"] is not None:
        with contextlib.suppress(OSError, ValueError):  # where the platform has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (setup["memory"], setup["memory"]))
    send({"result": "ready"})
    for line in lines:
        for value in json.loads(line):
            signal.setitimer(signal.ITIMER_PROF, setup["seconds"])
            try:
                message = {"result": function(value)}
            except MemoryError:
                return
            except BaseException as error:
                message = {"error": f"{setup['function']} raised {type(error).__name__}: {error}"}
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(message)


if __name__ == "__main__":
    try:
        _work()
    finally:
        os._exit(0)  # whatever state a task has left the interpreter in
