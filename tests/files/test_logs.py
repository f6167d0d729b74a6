"""Logs that are being written, and what may happen to them meanwhile."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import missing, refusal
from disk import write
from hypothesis import given
from hypothesis import strategies as st

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.files import writing
from bandpo_runs.files.logs import Followed, logs_at, lost_in, read
from bandpo_runs.files.writing import locked


def line(step, **more):
    return json.dumps({"step": step, "reward": step / 10, **more}) + "\n"


BROKEN = {
    "ours": ([{"loss": 0.1}, {"loss": None}, {"loss": None, "grad_norm": None}],
             "loss in 2 rows, first at step 2; grad_norm in 1 row, first at step 3"),
    "TRL's": ([{"loss": 0.0, "grad_norm": math.nan, "other": math.nan}], "grad_norm in 1 row, first at step 1"),
    "verl's": ([{"actor/pg_loss": math.inf}, {"actor/bandpo/not_finite/count": 3.0}],
               "actor/pg_loss in 1 row, first at step 1; tokens in 1 row, first at step 2"),
    "a scaler's": ([{"grad_norm": None, "skipped_steps": 1}, {"grad_norm": math.inf, "bandpo/skipped_steps": 2}], ""),
    "whole": ([{"loss": 0.1, "reward": None, "not_finite/count": 0, "bandpo/not_finite/count": 0.0}], ""),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "said"), BROKEN.values(), ids=BROKEN)
def test_what_is_not_finite_in_a_log_is_said_with_its_first_step(rows, said):
    expected = f"numbers are not finite: {said}" if said else None
    assert lost_in({"step": step, **row} for step, row in enumerate(rows, 1)) == expected


NO_REWARD = "reward without a number in 1 row, first at step 2"


def test_a_reward_without_a_number_is_a_warning_of_its_own(path, capsys):
    text = line(1) + '{"step": 2, "reward": null, "loss": 0.0}\n{"step": 3, "loss": 0.1}\n'
    (note,) = followed(path, text).notes
    assert (note.partition(":")[0], main(["doctor", str(path)])) == (NO_REWARD, 0)
    assert not missing(" ".join(capsys.readouterr().out.split()), "WARN ", NO_REWARD)


def lines(*steps):
    return "".join(map(line, steps))


def add(path, text):
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def followed(path, text):
    path.write_text(text)
    log = Followed(path)
    assert log.poll()
    return log


def test_what_is_added_is_read_and_an_unchanged_file_is_not(path, monkeypatch):
    log = followed(path, lines(1, 2))
    assert [*log.at] == [1, 2]
    add(path, lines(3))
    assert (log.poll(), [*log.at], log.damaged, log.went_back, log.fault) == (True, [1, 2, 3], 0, 0, "")
    monkeypatch.setattr(log, "_read", None)
    assert not log.poll()


def test_a_log_that_is_cut_or_replaced_is_read_from_its_beginning(path):
    """`bandpo train --resume` cuts off the rows after the checkpoint, and writes them again."""
    log = followed(path, lines(1, 2, 3, 4))
    os.truncate(path, len(lines(1, 2)))
    add(path, line(3, reward=9))
    assert (log.poll(), [row["reward"] for row in log.rows]) == (True, [0.1, 0.2, 9])
    path.with_suffix(".new").write_text(lines(7))
    path.with_suffix(".new").rename(path)
    assert (log.poll(), [*log.at], log.went_back) == (True, [7], 0)


def test_the_rows_stay_when_a_log_is_emptied_or_deleted(path):
    log = followed(path, lines(1, 2))
    os.truncate(path, 0)
    assert (log.poll(), [*log.at], log.fault) == (True, [1, 2], "")
    path.unlink()
    assert (log.poll(), log.poll(), "No such file" in log.fault) == (True, False, True)
    path.write_text(lines(3))
    assert (log.poll(), [*log.at], log.fault) == (True, [3], "")


SAME = {"round": 1, "epoch": 0.5}
TEXTS = {  # with its rows, and how many lines are none
    "a last line without its newline": (lines(1, 2).rstrip("\n"), lines(1, 2), 0),
    "two processes in one line":
        (lines(1) + '{"step": 2, "rew' + lines(3) + 'ard": 0.2}\n' + "[4]\nnull\n\n" + lines(5), lines(1, 5), 4),
    "out of order, and a step in two":
        (lines(1) + line(3, **SAME) + lines(2) + json.dumps({"step": 3, "val": 1.0, **SAME}) + "\n",
         lines(1, 2) + line(3, val=1.0, **SAME), 0),
    "a name that becomes step": ('{"step": 1, "train/step": null, "reward": 0.1}\n', lines(1), 0),
    "no step": (lines(1) + '{"step": null, "reward": 1}\n{"step": NaN, "reward": 1}\n', lines(1), 2),
    "no number as step": (lines(1) + '{"step": "7"}\n{"step": true}\n{"step": 1e30}\n', lines(1), 3),
    "verl's": (json.dumps({"step": 3, "data": {"critic/score/mean": 0.5}}) + "\n",
               '{"critic/score/mean": 0.5, "reward": 0.5, "step": 3}', 0),
}  # fmt: skip


@pytest.mark.parametrize(("text", "rows", "damaged"), TEXTS.values(), ids=TEXTS)
def test_a_log_is_read_as_rows_in_order_and_what_is_none_is_counted(path, text, rows, damaged):
    log = followed(path, text)
    assert (log.rows, log.damaged, log.went_back) == ([json.loads(row) for row in rows.splitlines()], damaged, 0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_looked_at_again_and_again_or_once_it_is_the_same(tmp_path_factory, steps, data):
    whole = (
        "".join(line(step, at=i) for i, step in enumerate(steps)).encode() + data.draw(st.binary(max_size=20)) + b"\n"
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    folder = tmp_path_factory.mktemp("logs")
    growing = Followed(folder / "growing.jsonl")
    for start, end in itertools.pairwise([0, *cuts, len(whole)]):
        with growing.path.open("ab") as file:
            file.write(whole[start:end])
        growing.poll()
    (folder / "whole.jsonl").write_bytes(whole)
    at_once = Followed(folder / "whole.jsonl")
    at_once.poll()
    assert (growing.rows, growing.damaged, growing.went_back) == (at_once.rows, at_once.damaged, at_once.went_back)
    last: dict[int, int] = {}  # by the definition: a row takes the place of those from its step on
    for i, step in enumerate(steps):
        last = {each: j for each, j in last.items() if each < step} if step in last else last
        last[step] = i
    assert {row["step"]: row["at"] for row in at_once.rows} == last


def state(path, *steps, most=5):
    history = [{"step": step, "reward": step / 10} for step in steps]
    return write(path, {"global_step": steps[-1], "max_steps": most, "log_history": history})


def test_trls_state_is_read_anew_from_checkpoint_to_checkpoint(tmp_path):
    first, second = (tmp_path / f"checkpoint-{n}" / "trainer_state.json" for n in (2, 4))
    log = Followed(state(first, 1, 2))
    assert (log.poll(), log.poll()) == (True, False)
    log.path = state(second, 1, 2, 3, 4)
    assert (log.poll(), [*log.at], log.last_step, log.went_back) == (True, [1, 2, 3, 4], 5, 0)
    second.write_text(second.read_text()[:-9])  # while it is being written
    assert (log.poll(), log.poll(), [*log.at], "corrupt" in log.fault) == (True, False, [1, 2, 3, 4], True)
    state(second, 1, 2, 3, 4, 5)
    assert (log.poll(), len(log.rows), log.fault) == (True, 5, "")


def test_a_row_that_repeats_what_its_step_had_is_no_resume(path):
    """TRL's evaluation and its closing row repeat the count of tokens, and a controller's numbers."""
    rows = [
        {"step": 1, "reward": 0.5, "num_input_tokens_seen": 40, "train_runtime": 2.0},
        {"step": 2, "reward": 0.6, "num_input_tokens_seen": 80, "train_runtime": 3.0, "bandpo/controlled/radius": 0.1},
        {"step": 2, "eval_loss": 0.1, "num_input_tokens_seen": 80},
        {"step": 2, "train_runtime": 4.0, "bandpo/controlled/radius": 0.1, "total_flos": 0.0},
    ]
    log = followed(path, "".join(json.dumps(row) + "\n" for row in rows))
    assert ([row["reward"] for row in log.rows], log.went_back, log.at[2]["eval_loss"]) == ([0.5, 0.6], 0, 0.1)
    back = json.dumps({"step": 1, "reward": 0.5}) + "\n"  # of a step before the last
    assert (followed(path, lines(1, 2) + lines(1)).went_back, [*followed(path, lines(1, 2) + back).at]) == (1, [1])


def test_a_state_that_is_read_anew_is_counted_anew(tmp_path):
    log = Followed(tmp_path / "trainer_state.json")
    history = [{"step": step, "reward": reward} for step, reward in ((1, 0.1), (2, 0.1), (2, 0.2))] + [{"reward": 0.1}]
    for more in range(3):
        history.append({"step": 3 + more, "reward": 0.1})
        write(log.path, {"log_history": history})
        assert (log.poll(), len(log.rows), log.went_back, log.damaged) == (True, 3 + more, 1, 1)


def test_of_states_that_were_copied_the_last_step_counts(tmp_path):
    first, second = (state(tmp_path / f"checkpoint-{x}" / "trainer_state.json", 1) for x in (1000, 500))
    assert logs_at(tmp_path) == {tmp_path: first}  # though it was written first
    os.utime(first, (1e9, 1e9))  # of an older run
    assert logs_at(tmp_path) == {tmp_path: second}


@pytest.mark.parametrize("name", ["eval_loss", "val-core/math/mean@8"])
def test_a_step_that_is_evaluated_twice_keeps_what_was_trained(path, name):
    again = [json.dumps({"step": 10, name: value, "epoch": 0.5}) + "\n" for value in (0.3, 0.2)]
    log = followed(path, lines(9, 10) + "".join(again) + lines(11))
    evaluated = json.dumps({"step": 10, "reward": 1.0, name: 0.2, "epoch": 0.5})
    assert (log.rows, log.went_back) == ([*map(json.loads, (line(9), evaluated, line(11)))], 0)
    add(path, line(10, **{name: 0.1}))  # with what was trained: that step came again
    log.poll()
    assert ([*log.at], log.went_back) == ([9, 10], 1)


def test_no_regular_file_is_no_error_and_is_told(tmp_path):
    log = Followed(tmp_path)
    assert (log.poll(), "is a folder" in log.fault, "is a folder" in refusal(read, tmp_path)) == (True, True, True)


def test_what_is_followed_is_not_touched(path):
    log = followed(path, lines(1) + '{"st')
    before = path.read_bytes(), path.stat().st_mtime_ns
    path.chmod(0o400)
    log.poll()
    assert ((path.read_bytes(), path.stat().st_mtime_ns), [*path.parent.iterdir()]) == (before, [path])


# ---- the lock of a folder: one process at a time, and free when its process is gone

# Without the package's own __init__, which loads torch.
HOLD = f"""
import sys, types
from pathlib import Path
for name in ("bandpo", "bandpo_runs"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{str(Path(writing.__file__).parents[2])!r} + "/" + name]
from bandpo_runs.files.writing import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path / "run"."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run" / ".lock")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    (tmp_path / "run" / "content").touch()
    yield process
    process.kill()
    process.communicate()  # until it is gone


def test_a_second_process_is_refused(holder, tmp_path):
    file = tmp_path / "run" / ".lock"
    with pytest.raises(UserError, match=rf"^another process is writing to {file.parent}; wait"):
        locked(file).__enter__()


def test_a_lock_is_free_when_its_process_was_killed(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    with locked(tmp_path / "run" / ".lock"):
        pass


def test_who_waits_is_told_and_comes_next(holder, tmp_path):
    said = []

    def tell(text):
        said.append(text)
        holder.kill()

    with locked(tmp_path / "run" / ".lock", waiting=tell):
        assert said == [f"another process is writing to {tmp_path / 'run'}"]


def test_runs_are_found_below_a_folder_and_none_within_a_run_while_others_are_deleted(tmp_path, monkeypatch):
    runs = [write(tmp_path / name / "run.json", "{}").parent for name in ("one", "runs/model", "two")]
    write(tmp_path / "one" / "model" / "run.json", "{}")  # within one, and so none
    gone, whole = tmp_path / "gone", os.scandir
    gone.mkdir()

    def scandir(path):
        if Path(path).name == "gone":
            gone.rmdir()
        return whole(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert (logs_at(tmp_path), gone.exists()) == ({run: run / "metrics.jsonl" for run in runs}, False)


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    """Such as a worker that loads data: it may outlive its parent."""
    with locked(tmp_path / ".lock"):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
    with locked(tmp_path / ".lock"):
        os.close(write)
        os.waitpid(child, 0)
