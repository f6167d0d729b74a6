"""Hand tasks to workers. One that is late, or dies of its task, is replaced."""

from __future__ import annotations

import atexit
import enum
import json
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .processes import Lost, Template, Worker
from .template import shortened

_ATTEMPTS = 5  # to start a worker, in a row
_BATCH = 32  # tasks in one message, at most
_MAX_FAULTS = 10  # faults that are kept with their tasks


class Stopped(enum.Enum):
    """Mark a missing result.

    Attributes:
        TIME: the task was killed at its limit of time.
        DIED: its worker died of it, twice; memory, or a crash of the interpreter.
    """

    TIME = "time"
    DIED = "died"


@dataclass(frozen=True)
class Raised:
    """Mark a missing result of a function that raised. `reason` names the exception and the place."""

    reason: str


class Pool:
    """Apply one function to JSON values in processes. Each task is under a limit of time.

    The limit counts processor time, so that a busy machine turns no innocent task into a late one; the kernel itself
    ends a worker that is beyond it, whatever it is doing. `wall_seconds` is for what uses no processor: then the worker
    is killed from here. Other tasks of the same batch go on in a new worker. A worker that dies for another reason
    (killed from outside, memory) costs its task one more try.

    A task on which the function raises gets a `Raised` and ends its worker. It is counted in `raised`, the first ones
    are kept in `faults`, and the first of all is said in a warning: one task does not end the work of the rest.

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
        self._workers: set[Worker] = set()
        self._starting = threading.Lock()
        self._template: Template | None = None
        atexit.register(self.close)

    def map(self, values: Sequence[Any]) -> list[Any]:
        """Return the function's result for every value, in order. It is `Stopped` or `Raised` if there is none.

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
        """Return the process ids of the workers that are alive."""
        with self._lock:
            return sorted(worker.pid for worker in self._workers)

    def close(self) -> None:
        """End the workers. It is called at the end of the program too."""
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
        faults = [
            f"{task.result.reason}, for the task {shortened(task.value)}" for task in tasks[:_MAX_FAULTS]
        ]
        with self._lock:
            first, self.raised = self.raised == 0, self.raised + len(tasks)
            self.faults += faults[: _MAX_FAULTS - len(self.faults)]
        if first:
            warnings.warn(
                f"{self.function} raised {faults[0]}. It has no result, and the work goes on. This is a fault of the "
                "function, please report it; others like it are counted, but no longer said.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _serve(self) -> None:
        """Serve one worker from one thread. It takes tasks, and lives as long as the pool.

        On Linux a process is killed when the *thread* that started it ends, so it must not be a caller's.
        """
        worker: Worker | None = None
        while batch := self._take():
            try:
                if worker is not None and (worker.done >= self.tasks_per_process or worker.is_lost()):
                    self._end(worker)
                    worker = None
                if worker is None:
                    worker = self._start()
                for task, result in zip(
                    batch, worker.results([task.value for task in batch]), strict=False
                ):
                    task.finish(result)
                    batch = batch[1:]
                    if "raised" in result:  # nobody knows what state it has left
                        self._end(worker)
                        worker = None
                        self._put_back(batch)
                        break
            except Lost as lost:
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
        """Take a worker's next tasks, a fair share. There are none if the pool is closed."""
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

    def _start(self) -> Worker:
        """Start a worker and wait for it.

        What is killed while it starts is started again, so many times.
        """
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
            except Lost as lost:
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

    def _loaded(self) -> Template:
        """Return the template, or a new one if it is gone."""
        with self._starting:
            if self._template is not None and self._template.can_fork():
                return self._template
            setup = {"function": self.function, "seconds": self.seconds, "memory": self.memory}
            template = Template({**setup, "warm_up": list(self.warm_up)}, self.wall_seconds)
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

    def _end(self, worker: Worker) -> int | None:
        code = worker.end()
        with self._lock:
            self._workers.discard(worker)
        return code


class _Call:
    """Hold one call of `map`."""

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
            Raised(message["raised"])
            if "raised" in message
            else message.get("stopped", message.get("result"))
        )
        with self.call.lock:
            self.call.error = self.call.error or message.get("error")
            self.call.left -= 1
            if self.call.left == 0 or self.call.error is not None:
                self.call.done.set()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
