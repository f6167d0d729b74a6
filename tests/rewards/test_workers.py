"""Hard limits for every task, and no process that stays behind."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import worker_tasks
from commands import missing

from bandpo.rewards.workers import processes
from bandpo.rewards.workers.pool import Pool, Raised, Stopped

GOOD = [["same", i] for i in range(20)]


@pytest.fixture(scope="module")
def pool():
    pool = Pool("worker_tasks:run", seconds=0.3, wall_seconds=4, size=2)
    yield pool
    pool.close()


@pytest.fixture
def make():
    """Make a pool of its own, which is closed after the test."""
    pools = []

    def make(function="worker_tasks:run", seconds=1, size=1, **settings):
        pools.append(Pool(function, seconds=seconds, size=size, **settings))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def alive(pids):
    """Those that still run; a zombie does not."""
    everything = psutil.process_iter(["status"])
    running = {process.pid for process in everything if process.info["status"] != psutil.STATUS_ZOMBIE}
    return [pid for pid in pids if pid in running]


def template_of(pool):
    return psutil.Process(pool.pids()[0]).ppid()


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def gone(pids):
    """A kill that is on its way takes its time on a busy machine; without one they stay for ever."""
    return wait_for(lambda: not alive(pids), seconds=10)


# ---- results


def test_results_come_in_order(pool):
    values = [["same", value] for value in (*range(500), None, [1, {"a": 2}], "é\ud800\x00\n", "x" * 300_000)]
    assert (pool.map(values), pool.map([]), len(pool.pids())) == ([value for _, value in values], [], 2)


def test_a_worker_is_small_and_of_its_own(pool):
    (about,) = pool.map([["about"]])
    assert (about.pop("pid") in pool.pids(), Path(about.pop("main")).name) == (True, "template.py")
    assert about == {"torch": False, "hash": "0", "threads": 1}


def test_what_a_task_prints_is_no_result(pool, capfd):
    assert (pool.map([["shout"]] * 3), capfd.readouterr()) == (["quiet"] * 3, ("", ""))


def test_what_the_function_raises_stands_in_the_place_of_a_result(make):
    """It ends no call; it is counted, kept, and said once."""
    pool = make(size=2)
    with pytest.warns(RuntimeWarning) as warned:
        results = pool.map([*GOOD, ["wrong"], *GOOD, *[["deep"]] * 20])
    assert results[:20] == results[21:41] == list(range(20))
    assert {type(result) for result in (results[20], *results[41:])} == {Raised}
    (warning,) = warned
    assert not missing(str(warning.message), "worker_tasks:run raised ValueError: what is that at ", 'task ["wrong"]')
    assert pool.map([["wrong"], *GOOD])[1:] == list(range(20))  # and a warning would be an error
    assert (warning.filename, pool.raised, len(pool.faults)) == (__file__, 22, 10)
    assert pool.faults[0].endswith('for the task ["wrong"]')


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (["wrong"], f"ValueError: what is that at {worker_tasks.__file__}:"),
        (["deep"], "RecursionError: "),
        (["mute"], "Mute at "),
        (["wordy"], "ValueError: " + "x" * 300 + "... (1000000 characters) at "),
        (["no_json"], "TypeError: Object of type set is not JSON serializable at "),
        (["exit"], "SystemExit: 3 at "),
        (["same"], "TypeError: same() missing 1 required positional argument: 'value' at "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.filterwarnings("ignore:worker_tasks")
def test_whatever_it_raises(pool, bad, reason):
    assert pool.map([*GOOD, bad])[-1].reason.startswith(reason)


@pytest.mark.filterwarnings("ignore:worker_tasks")
def test_a_worker_whose_task_raised_is_used_no_more(make):
    """What an exception in the middle of something has left behind is seen by no other task."""
    pool = make()
    assert pool.map([["remember", 1], ["remember", 2], ["wrong"], ["remember", 3]])[1::2] == [[1, 2], [3]]


def test_a_value_that_is_no_json_is_its_callers_error(pool):
    """And not that of the call whose tasks are in the same batch."""
    with ThreadPoolExecutor(1) as beside:
        results = beside.submit(pool.map, [["sleep", 0.02]] * 100)
        with pytest.raises(TypeError, match="Object of type set is not JSON serializable"):
            pool.map([["same", 1], ["same", {1}]])
        assert results.result(60) == ["slept"] * 100


def test_a_path_that_is_no_string(make, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("elsewhere")])
    assert make().map([["same", 1]]) == [1]


def test_a_worker_that_does_not_get_ready(make, monkeypatch):
    monkeypatch.setattr(processes, "_START_SECONDS", 0.001)
    pool = make()
    reason = r"^no worker for worker_tasks:run can be started: it was not ready after 0.001 s$"
    with pytest.raises(RuntimeError, match=reason):
        pool.map([["same", 1]])


DIES = """
import os, pathlib, signal
starts = pathlib.Path({starts!r})
starts.write_text(starts.read_text() + "x")
if len(starts.read_text()) <= {deaths}:
    os.kill(os.getpid(), signal.SIGKILL)
same = len
"""


@pytest.mark.parametrize("deaths", [2, 9])
def test_killed_while_it_starts(make, tmp_path, monkeypatch, deaths):
    """It is started again; not for ever."""
    starts = tmp_path / "starts"
    starts.touch()
    (tmp_path / "dies_early.py").write_text(DIES.format(starts=str(starts), deaths=deaths))
    monkeypatch.syspath_prepend(tmp_path)
    pool = make("dies_early:same")
    if deaths == 2:
        assert pool.map(["ab", "abc"]) == [2, 3]
    else:
        with pytest.raises(RuntimeError, match=r"^no worker for dies_early:same can be started: it was killed, or end"):
            pool.map(["ab", "abc"])
        assert len(starts.read_text()) == 5


@pytest.mark.parametrize(
    ("function", "warm_up", "reason"),
    [
        ("no_such_module:run", (), "No module named"),
        ("worker_tasks:walk", (), "no attribute 'walk'"),
        ("worker_tasks:run", [(["same", 1], 1), (["same", 1], 2)], r"ValueError: of \['same', 1\] it makes 1, and not"),
        ("worker_tasks:run", [(["wrong"], 1)], "ValueError: what is that"),
    ],
)
def test_what_fails_for_every_task_is_the_callers_error(make, function, warm_up, reason):
    pool = make(function, size=2, warm_up=warm_up)
    with pytest.raises(RuntimeError, match=f"a worker cannot load {function}.*{reason}"):
        pool.map(GOOD)
    pool.close()
    assert pool.pids() == []


def test_seconds_must_be_positive():
    with pytest.raises(ValueError, match="seconds must be positive, got 0"):
        Pool("worker_tasks:run", seconds=0)


def test_a_closed_pool_says_so(make):
    pool = make()
    results, pids = pool.map([["same", 1]]), pool.pids()
    pool.close()
    assert (results, gone(pids)) == ([1], True)
    with pytest.raises(RuntimeError, match="the pool of workers is closed"):
        pool.map([["same", 1]])


def test_as_many_workers_as_there_is_work(make):
    pool = make(size=3)
    for tasks, workers in ([["same", 1]], 1), ([["sleep", 0.2]] * 3, 3):
        pool.map(tasks)
        assert len(pool.pids()) == workers


def test_a_worker_is_replaced_in_time(make):
    pool = make(tasks_per_process=40)
    pids = {pool.map([["about"]])[0]["pid"] for _ in range(100)}
    assert (len(pids), len(alive(pids))) == (3, 1)


# ---- the template


def test_workers_know_what_the_template_has_learnt_and_nothing_from_one_another(make):
    pool = make(tasks_per_process=1, warm_up=[(["remember", 0], [0])])
    assert pool.map([["remember", 1]]) == pool.map([["remember", 1]]) == [[0, 1]]


def test_a_task_that_ends_its_worker_costs_no_import(pool):
    pool.map(GOOD)
    before = template_of(pool)
    assert pool.map([["power"], ["leave"]] * 3) == [Stopped.TIME, Stopped.DIED] * 3
    pool.map(GOOD)
    assert template_of(pool) == before


@pytest.mark.slow
def test_a_worker_that_dies_without_a_task_costs_the_next_one_no_try(pool, tmp_path):
    pool.map([["sleep", 0.1]] * 2)
    for pid in (pids := pool.pids()):
        os.kill(pid, signal.SIGKILL)
    assert (len(pids), gone(pids)) == (2, True)
    assert pool.map([["die_once", str(tmp_path / name)] for name in "ab"]) == ["second try"] * 2


def kill_in_the_middle(pool, folder, pid):
    paths = [folder / name for name in "ab"]
    with ThreadPoolExecutor(1) as caller:
        results = caller.submit(pool.map, [["touch_and_sleep", str(path), 1.0] for path in paths])
        assert wait_for(lambda: all(path.exists() for path in paths))
        os.kill(pid(), signal.SIGKILL)
        assert results.result(60) == ["slept", "slept"]


def test_a_template_that_is_killed_in_the_middle_of_tasks(pool, tmp_path):
    kill_in_the_middle(pool, tmp_path, lambda: template_of(pool))


@pytest.mark.slow
def test_a_template_that_does_not_answer_is_replaced(pool, monkeypatch):
    pool.map(GOOD)
    before = template_of(pool)
    monkeypatch.setattr(processes, "_REPLY_SECONDS", 2)
    os.kill(before, signal.SIGSTOP)
    assert pool.map([["leave"]]) == [Stopped.DIED]
    assert gone([before])
    monkeypatch.undo()
    assert pool.map(GOOD) == list(range(20))


@pytest.mark.filterwarnings("ignore:worker_tasks")
def test_where_nothing_may_be_forked_each_worker_is_a_program_of_its_own(make, monkeypatch):
    monkeypatch.setattr(processes, "_FORKS", False)
    pool = make(seconds=0.3, wall_seconds=4, size=2)
    stopped, died, raised, *rest = pool.map([["power"], ["leave"], ["wrong"], *GOOD])
    assert (stopped, died, rest, pool.map(GOOD)) == (Stopped.TIME, Stopped.DIED, [*range(20)], [*range(20)])
    assert raised.reason.startswith("ValueError: what is that")
    pids = pool.pids()
    assert {psutil.Process(pid).ppid() for pid in pids} == {os.getpid()}
    pool.close()
    assert gone(pids)


# ---- limits


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (["power"], Stopped.TIME), (["pattern"], Stopped.TIME), (["spin", 100], Stopped.TIME),
        (["sleep", 100], Stopped.TIME), (["stubborn"], Stopped.TIME), (["eight_gigabytes"], Stopped.DIED),
        (["crash"], Stopped.DIED), (["leave"], Stopped.DIED), (["babble"], Stopped.DIED),
        (["same", "x" * 20_000_000], Stopped.DIED),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value.value,
)  # fmt: skip
@pytest.mark.slow
def test_a_bad_task_costs_itself_alone(pool, bad, why):
    began = time.monotonic()
    assert pool.map([*GOOD, bad, *GOOD]) == [*range(20), why, *range(20)]
    assert time.monotonic() - began < 60
    assert len(alive(pool.pids())) == len(pool.pids()) <= 2


def test_the_limit_is_of_processor_time(pool, make):
    """Waiting does not count: a second of sleep is within 0.3 s, and a task is not charged for those before it."""
    assert pool.map([["sleep", 1.0], *[["spin", 0.1]] * 12]) == ["slept", *["spun"] * 12]
    patient, began = make(seconds=0.3, wall_seconds=100), time.monotonic()
    assert (patient.map([["power"]]), time.monotonic() - began < 50) == ([Stopped.TIME], True)


@pytest.mark.slow
def test_a_worker_that_dies_from_without_costs_nothing(pool, tmp_path):
    assert pool.map([["die_once", str(tmp_path / "seen")], *GOOD]) == ["second try", *range(20)]
    kill_in_the_middle(pool, tmp_path, lambda: pool.pids()[0])


@pytest.mark.slow
def test_a_stopped_worker_is_killed(pool):
    pool.map(GOOD)
    for pid in pool.pids():
        os.kill(pid, signal.SIGSTOP)
    assert set(pool.map([["same", 1]] * 2)) <= {1, Stopped.TIME}
    assert pool.map(GOOD) == list(range(20))


# ---- who calls


def test_many_threads_share_it(pool):
    with ThreadPoolExecutor(8) as threads:
        tasks = [[["same", [number, i]] for i in range(50)] for number in range(8)]
        assert [*threads.map(pool.map, tasks)] == [[[number, i] for i in range(50)] for number in range(8)]
    assert len(pool.pids()) <= 2


def from_a_daemon(queue):
    pool = Pool("worker_tasks:run", seconds=1, size=1)
    queue.put((pool.map([["same", 1], ["power"]]), pool.pids()))
    time.sleep(100)


def test_in_a_daemon_process_which_may_have_no_children_of_multiprocessing():
    """Killed, it leaves no worker."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=from_a_daemon, args=(queue,), daemon=True)
    process.start()
    results, pids = queue.get(timeout=120)
    assert (results, alive(pids)) == ([1, Stopped.TIME], pids)
    process.kill()
    assert gone(pids)
    process.join()


# No guard: a worker must not import the script again.
SCRIPT = """
import os, sys, threading, time
from bandpo.rewards.workers.pool import Pool
pool = Pool("worker_tasks:run", seconds={seconds}, size=2)
pool.map([["sleep", 0.2]] * 2)
print(*pool.pids(), flush=True)
{then}
"""


def script(then, seconds=1.0, **more):
    """A program that has a pool, and the processes of it: its workers, and the template."""
    code = SCRIPT.format(then=then, seconds=seconds)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, **more
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    pids.append(psutil.Process(pids[0]).ppid())
    assert (len(pids), alive(pids)) == (3, pids)
    return process, pids


@pytest.mark.parametrize("task", [None, ["power"], ["stubborn"]], ids=["idle", "busy", "stubborn"])
@pytest.mark.slow
def test_no_worker_outlives_a_killed_parent(task):
    """Neither an idle one nor one in the middle of an operation."""
    process, pids = script("time.sleep(100)" if task is None else f"pool.map([{task!r}] * 2)", seconds=100.0)
    if task is not None:
        at_work = [psutil.Process(pid) for pid in pids[:2]]
        before = [sum(each.cpu_times()) for each in at_work]
        assert wait_for(lambda: all(sum(p.cpu_times()) > b for p, b in zip(at_work, before, strict=True)))
    with process:
        process.kill()
    assert gone(pids)


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("os.kill(os.getpid(), 15); time.sleep(9)", -15),
        ("os._exit(5)", 5),
        # Its thread says nothing of its end: Python aborts where two write to stderr while it shuts down.
        (
            "threading.excepthook = lambda args: None\n"
            "threading.Thread(target=pool.map, args=([['sleep', 100]],), daemon=True).start(); time.sleep(0.3)",
            0,
        ),
        ("if os.fork() == 0: sys.exit()\nos.wait(); assert pool.map([['same', 7]]) == [7]", 0),
    ],
    ids=["end", "exit", "error", "terminated", "at-once", "in-a-call", "fork"],
)
@pytest.mark.slow
def test_no_worker_outlives_its_parent(then, code):
    process, pids = script("sys.stdin.readline()\n" + then.replace("1 / 0", "sys.stderr.close(); 1 / 0"))
    process.communicate("\n", timeout=30)
    assert (process.returncode, gone(pids)) == (code, True)


@pytest.mark.slow
def test_an_interrupt_ends_the_call_and_not_the_pool():
    """Ctrl-C reaches the whole group; the workers leave it to the parent."""
    then = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background is started with none
try:
    pool.map([["sleep", 50]] * 2)
except KeyboardInterrupt:
    print(pool.map([["same", 7]] * 8), flush=True)
"""
    process, pids = script(then, seconds="1.0, wall_seconds=2", start_new_session=True)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode, gone(pids)) == ("[7, 7, 7, 7, 7, 7, 7, 7]\n", 0, True)


CHILD = """
import multiprocessing, os, signal, sys, time, types
sys.modules["bandpo"] = types.ModuleType("bandpo")  # without the package's own __init__, which loads torch
sys.modules["bandpo"].__path__ = [{package!r}]
from bandpo_runs.training.processes import end_with_parent

def work(pids):
    end_with_parent()
    pids.put(os.getpid())
    while True:
        time.sleep(100)

def main():
    for name in ("SIGTERM", "SIGHUP"):  # nohup, or whatever started the tests, may have had them ignored
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    context = multiprocessing.get_context("spawn")
    pids = context.SimpleQueue()
    for _ in range(2):
        context.Process(target=work, args=(pids,)).start()
    print(pids.get(), pids.get(), flush=True)
    time.sleep(100)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
@pytest.mark.slow
def test_a_process_of_multiprocessing_ends_with_its_parent(tmp_path, name):
    file = tmp_path / "parent.py"
    file.write_text(CHILD.format(package=str(Path(processes.__file__).parents[2])))
    process = subprocess.Popen([sys.executable, "-P", str(file)], stdout=subprocess.PIPE, text=True)
    try:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        for pid, number in itertools.product(pids, (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)):
            os.kill(pid, number)  # what goes to the whole family is the parent's
        time.sleep(0.1)
        assert len(alive(pids)) == 2
        process.send_signal(getattr(signal, name))
        process.wait(60)
    finally:
        process.kill()  # else a test that fails waits for it for ever
        process.communicate()
    assert gone(pids)
