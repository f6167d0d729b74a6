"""A run that was killed and resumed is the run that was not; what a run writes; what it refuses."""

import json
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import recipe
import torch
import two_processes
from commands import missing, refusal
from disk import contents, json_rows, write
from safetensors.torch import load_file
from stopped import Killed, run, run_until
from transformers import Qwen2ForCausalLM

import bandpo
from bandpo_runs import config, toy
from bandpo_runs.cli import main, show_training
from bandpo_runs.data.rows import rows_and_reward
from bandpo_runs.files.writing import locked
from bandpo_runs.reports.page import write_report
from bandpo_runs.reports.sections import read_runs
from bandpo_runs.statistics.estimators import pass_at_k
from bandpo_runs.training import checkpoints, on_trl
from bandpo_runs.training.validation import DATA, ROW, Validation, metrics

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return recipe.make(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def whole(home, tmp_path_factory):
    """The run that nothing interrupted."""
    return run(recipe.node(home, tmp_path_factory.mktemp("whole") / "run"))[0]


def steps(folder):
    return [row["step"] for row in rows(folder)]


def weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def saved(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("checkpoint-*"))


def change(file, **values):
    """Set values in a file of JSON."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def assert_same_run(folder, other):
    assert (folder / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    assert weights(folder) == weights(other)


def rows(folder):
    return json_rows(folder / "metrics.jsonl")


# ---- resuming


def test_tokens_of_a_run_that_was_killed_are_those_of_one_that_was_not(home, tmp_path):
    def node(name):
        return recipe.node(home, tmp_path / name, rounds=3, save_every=1, tokens_share=1.0)

    whole, _ = run(node("whole"))
    tokens = Path("tokens", "tokens-0.jsonl")
    assert {row["step"] for row in json_rows(whole / tokens)} == set(range(12))
    folder = run_until(node("killed"), 3)  # before there is a checkpoint
    run_until(node("killed"), 7, resume=True)
    with (folder / tokens).open("ab") as file:
        file.write(b'{"step":7,"resp')
    run(node("killed"), resume=True)
    assert (folder / tokens).read_bytes() == (whole / tokens).read_bytes()
    assert_same_run(folder, whole)


EVALUATION = {"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True, "per_device_eval_batch_size": 8,
              "num_generations_eval": 2}  # fmt: skip
# What changes, where it is killed, the steps that were logged by then, and the step that it goes on after.
VARIANTS = {
    "killed within a round": ({}, 14, list(range(1, 14)), 8),
    "prompts that are shared, as bandpo train chooses": ({"shared_prompts": True}, 14, list(range(1, 14)), 8),
    "a row a round": ({"trainer": {"logging_steps": 4}}, 14, [4, 8, 12], 8),
    "gradient accumulation and a reference model": (
        {"trainer": {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_generations": 8, "beta": 0.1}},
        14,
        list(range(1, 14)),
        8,
    ),
    "evaluation": (
        {"data": {"eval_size": 4}, "trainer": EVALUATION | {"logging_steps": 4}},
        14,
        [0, 3, 4, 6, 8, 9, 12, 12],
        8,
    ),
    "checkpoints every third round": ({"save_every": 3, "trainer": {"logging_steps": 6}}, 19, [6, 12, 18], 12),
    "killed before the first checkpoint": (
        {"rounds": 3, "data": {"eval_size": 4}, "trainer": EVALUATION},
        7,
        [0, 1, 2, 3, 3, 4, 5, 6, 6],
        None,
    ),
    "killed after the last step": ({"rounds": 4}, 16, list(range(1, 17)), 16),
}


@pytest.mark.parametrize(("changes", "stop", "before", "after"), VARIANTS.values(), ids=VARIANTS)
def test_resuming_is_exact(home, tmp_path, changes, stop, before, after):
    whole, _ = run(recipe.node(home, tmp_path / "whole", **changes))
    node = recipe.node(home, tmp_path / "stopped", **changes)
    folder = run_until(node, stop, event="on_train_end" if after == stop else "on_step_end")
    assert (steps(folder), (folder / "model").exists()) == (before, False)
    _, notices = run(node, resume=True)
    assert notices == [f"going on after step {after}" if after else f"no whole checkpoint in {folder}: starting again"]
    assert_same_run(folder, whole)


def test_the_run_is_worth_comparing(home, whole, tmp_path):
    # Guards the tests above: the weights move, the rule acts, and the prompts differ from pass to pass.
    other, _ = run(recipe.node(home, tmp_path / "other", seed=1))
    assert len({weights(home), weights(whole), weights(other)}) == 3
    assert len({row["reward"] for row in rows(whole) if "reward" in row}) == 5
    assert sum(row["clip/count"] for row in rows(whole)) > 0


@pytest.fixture
def stopped(home, tmp_path):
    """A run stopped at step 14, with a checkpoint at 8."""
    node = recipe.node(home, tmp_path / "stopped")
    return SimpleNamespace(node=node, folder=run_until(node, 14))


def test_what_was_being_written_is_not_used_and_the_run_may_have_been_moved(stopped, whole):
    path = stopped.folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:8]) + lines[8][:40])  # the first after the checkpoint
    # Only files of the newest are damaged, so that using it would fail or give another run.
    rest = stopped.folder / "checkpoints" / "checkpoint-8"
    newest = shutil.copytree(rest, rest.with_name("checkpoint-12"))
    (newest / checkpoints.MARK).unlink()
    (newest / "optimizer.pt").write_bytes(b"")
    change(rest / checkpoints.MARK, wall_seconds=1000.0)
    moved = stopped.folder.rename(stopped.folder.with_name("moved"))
    run({**stopped.node, "output": str(moved)}, resume=True)
    assert_same_run(moved, whole)
    assert not (moved / "checkpoints" / "checkpoint-12").exists()
    assert 1000 < json.loads((moved / "run.json").read_text())["wall_seconds"] < 1500  # that of all its parts


@pytest.mark.parametrize("limit", [1, 2])
def test_a_checkpoint_counts_only_from_its_mark_on_and_the_one_before_stays_until_then(home, whole, tmp_path, limit):
    node = recipe.node(home, tmp_path / "stopped", trainer={"save_total_limit": limit})
    folder = run_until(node, 16, event="on_save")  # every file of the second is there, its mark is not
    assert saved(folder) == ["checkpoint-16", "checkpoint-8"]
    _, notices = run(node, resume=True)
    passed = f"{folder / 'checkpoints' / 'checkpoint-16'} has no bandpo.json, which is written last"
    assert notices == [f"{passed}: that checkpoint is passed over", "going on after step 8"]
    assert_same_run(folder, whole)
    assert saved(folder) == ["checkpoint-16", "checkpoint-20"][-limit:]


@pytest.mark.parametrize("lost", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_run_killed_while_an_old_checkpoint_is_deleted_goes_on_from_a_whole_one(
    home, whole, tmp_path, monkeypatch, lost
):
    def killed(folder, **named):
        (folder / lost).unlink()
        raise Killed

    node = recipe.node(home, tmp_path / "stopped", trainer={"save_total_limit": 1})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.shutil, "rmtree", killed)
        with pytest.raises(Killed):
            run(node)
    folder = Path(node["output"])
    assert saved(folder) == ["checkpoint-16", "checkpoint-8"]
    # Were the other one lost as well, what is left of the first must not be trained on.
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints" / "checkpoint-16")
    assert checkpoints.newest_whole(copy) == (None, [])
    run(node, resume=True)
    assert_same_run(folder, whole)
    assert saved(folder) == ["checkpoint-20"]


@pytest.fixture(scope="module")
def stopped_at_18(home, tmp_path_factory):
    node = recipe.node(home, tmp_path_factory.mktemp("stopped") / "run")
    return SimpleNamespace(node=node, folder=run_until(node, 18))


@pytest.fixture
def two_saved(stopped_at_18, tmp_path):
    """A copy of a run stopped at step 18, with checkpoints at 8 and 16."""
    folder = tmp_path / "copy"
    shutil.copytree(stopped_at_18.folder, folder)
    return SimpleNamespace(node={**stopped_at_18.node, "output": str(folder)}, folder=folder)


DAMAGES = {
    "missing": Path.unlink,
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "garbled": lambda file: file.write_bytes(b"\1" + file.read_bytes()[1:]),
}
FILES = [
    "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin",
    "config.json", "tokenizer.json",
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_the_file_is_named(two_saved, damage):
    for name in FILES:
        file = two_saved.folder / "checkpoints" / "checkpoint-16" / name
        before = file.read_bytes()
        damage(file)
        mark, wrong = checkpoints.newest_whole(two_saved.folder)
        assert (mark.step, wrong) == (8, [f"{file} is missing or was changed"])
        file.write_bytes(before)
    assert checkpoints.newest_whole(two_saved.folder)[0].step == 16


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"step": "x"}', "[" * 100_000, "\xff", {"wall_seconds": -1}, {"wall_seconds": "x"}, {"rows": [-1, ""]}],
)
def test_a_mark_that_is_not_what_was_written_marks_nothing(two_saved, content):
    mark = two_saved.folder / "checkpoints" / "checkpoint-16" / checkpoints.MARK
    if isinstance(content, dict):  # numbers that nobody writes
        change(mark, **content)
    else:
        mark.write_bytes(content.encode("latin-1"))
    result, wrong = checkpoints.newest_whole(two_saved.folder)
    assert (result.step, wrong) == (8, [f"{mark} is not what was written, or an earlier release wrote it"])


def test_a_run_may_be_killed_again_and_again_and_the_clock_be_set_back(home, whole, tmp_path):
    node = recipe.node(home, tmp_path / "stopped")
    run_until(node, 3)
    run_until(node, 10, resume=True)
    folder = run_until(node, 18, resume=True)
    assert saved(folder) == ["checkpoint-16", "checkpoint-8"]
    for path in (folder / "checkpoints").iterdir():  # newer than all that come: the steps decide
        os.utime(path, (time.time() + 86400, time.time() + 86400))
    run(node, resume=True)
    assert_same_run(folder, whole)
    assert saved(folder) == ["checkpoint-16", "checkpoint-20"]


def test_a_run_of_damaged_checkpoints_only_is_left_alone_and_the_files_are_named(two_saved):
    for step, name in ((8, "rng_state.pth"), (16, "optimizer.pt")):
        (two_saved.folder / "checkpoints" / f"checkpoint-{step}" / name).unlink()
    before = {path: path.stat().st_mtime_ns for path in two_saved.folder.rglob("*")}
    assert not missing(
        refusal(run, two_saved.node, resume=True),
        "no checkpoint of ",
        " is whole: ",
        "16/optimizer.pt is missing or was changed; ",
        "8/rng_state",
    )
    assert {path: path.stat().st_mtime_ns for path in two_saved.folder.rglob("*")} == before


def test_a_copy_under_another_name_is_no_checkpoint(two_saved):
    rest = two_saved.folder / "checkpoints"
    for name in ("checkpoint-16-before", "checkpoint-20"):
        shutil.copytree(rest / "checkpoint-16", rest / name)
    result, wrong = checkpoints.newest_whole(two_saved.folder)
    assert (result.step, wrong) == (16, [f"{rest / 'checkpoint-20'} is the checkpoint of step 16"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[:12],
        lambda lines: [*lines[:11], *lines[12:]],  # the last one is cut within, and a row
        lambda lines: [line.replace('"step": 12', '"step": 13') for line in lines],
        lambda lines: [*lines[:11], "\0" * len(lines[11]), *lines[12:]],
    ],
    ids=["the end is gone", "one is gone", "one is changed", "garbage"],
)
def test_rows_that_are_gone_or_changed_take_their_checkpoint_with_them(two_saved, whole, damage):
    path = two_saved.folder / "metrics.jsonl"
    path.write_text("".join(damage(path.read_text().splitlines(keepends=True))))  # after the checkpoint at 8
    _, (why, *_, last) = run(two_saved.node, resume=True)
    assert (why.startswith(f"{path} is missing or was changed"), last) == (True, "going on after step 8")
    assert_same_run(two_saved.folder, whole)


def test_everything_is_on_the_disk_before_the_mark_says_so(two_saved, monkeypatch):
    synced, marked = set(), []
    fsync, write = os.fsync, checkpoints.write_atomically
    monkeypatch.setattr(os, "fsync", lambda file: (synced.add(os.fstat(file).st_ino), fsync(file)))
    monkeypatch.setattr(checkpoints, "write_atomically", lambda *args: (marked.append(set(synced)), write(*args)))
    checkpoints.write_mark(two_saved.folder, 16, 1.0, 1)
    wanted = ["metrics.jsonl", *(f"checkpoints/checkpoint-16/{name}" for name in FILES)]
    assert {(two_saved.folder / name).stat().st_ino for name in wanted} <= marked[0]


# ---- numbers that are not finite


def break_at(monkeypatch, step):
    """From that step on gradients are NaN, as after an overflow in a backward pass."""

    def begin(self, args, state, control, model=None, **named):
        if state.global_step + 1 == step:
            for parameter in model.parameters():
                parameter.register_hook(lambda gradient: gradient * math.nan)

    monkeypatch.setattr(on_trl._Recorder, "on_step_begin", begin, raising=False)


def test_a_run_that_breaks_ends_there_and_keeps_its_last_good_checkpoint(home, whole, tmp_path, monkeypatch, capsys):
    node = recipe.node(home, tmp_path / "run", trainer={"save_total_limit": 1}, shared_prompts=False)
    file, folder = write(tmp_path / "recipe.yaml", node), Path(node["output"])
    with monkeypatch.context() as patch:
        break_at(patch, 15)
        assert main(["train", str(file)]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert not missing(
        message, f"error: {folder}, step 15: weights (15, first model.embed_tokens.weight) are not finite; the ",
        f"the last whole checkpoint is {folder / 'checkpoints' / 'checkpoint-8'}.", "Try a smaller learning_rate",
        "model=CHECKPOINT begins from", "; stop_if_not_finite=False continues nevertheless",
    )  # fmt: skip
    assert (steps(folder), saved(folder)) == ([*range(1, 15)], ["checkpoint-8"])
    facts = json.loads((folder / "run.json").read_text())
    assert (facts["finished"], facts["stopped"] in message) == (False, True)
    assert main(["train", str(file), "--resume"]) == 0
    assert_same_run(folder, whole)
    assert "stopped" not in json.loads((folder / "run.json").read_text())


def test_a_broken_checkpoint_is_not_marked_and_none_is_deleted_for_it(home, whole, tmp_path, monkeypatch):
    node = recipe.node(home, tmp_path / "run", save_every=1, trainer={"save_total_limit": 1, "beta": 0.0})
    notices, message = [], "probability tensor contains"  # torch's own: nothing can be sampled
    with monkeypatch.context() as patch:
        break_at(patch, 15)
        with pytest.warns(UserWarning, match="stop_if_not_finite is False"), pytest.raises(RuntimeError, match=message):
            on_trl.run(config.build({**node, "stop_if_not_finite": False}), say=notices.append)
    folder = Path(node["output"])
    assert notices == ["checkpoint-16 has weights that are not finite: it does not count, and none is deleted for it"]
    assert (saved(folder), checkpoints.newest_whole(folder)[0].step) == (["checkpoint-12", "checkpoint-16"], 12)
    _, notices = run(node, resume=True)  # now with the guard: that is not another setting
    passed = f"{folder / 'checkpoints' / 'checkpoint-16'} has no bandpo.json, which is written last"
    assert notices == [f"{passed}: that checkpoint is passed over", "going on after step 12"]
    assert_same_run(folder, whole)


# ---- save_every


@pytest.mark.parametrize(
    ("save_every", "changes", "every"),
    [
        (1, {}, 4),
        (3, {"logging_steps": 4}, 12),
        (3, {"logging_steps": 6}, 12),
        (1, {"gradient_accumulation_steps": 2}, 2),
        (1, {"logging_steps": 8}, None),
        (3, {"logging_steps": 8}, None),
        (1, {"logging_steps": 0.5}, None),
    ],
)
def test_checkpoints_come_at_multiples_of_rounds_and_on_logged_steps(home, tmp_path, save_every, changes, every):
    config_ = config.build(recipe.node(home, tmp_path / "run", save_every=save_every, trainer=changes))
    if every is None:
        parts = "trainer.logging_steps", f"save_every = {save_every} ", str(changes["logging_steps"])
        assert not missing(refusal(on_trl._trainer_settings, config_, tmp_path), *parts)
    else:
        assert on_trl._trainer_settings(config_, tmp_path)["save_steps"] == every


# ---- what a run writes


def test_a_finished_run_has_its_rows_its_facts_and_its_resolved_recipe(home, tmp_path):
    node = recipe.node(
        home,
        tmp_path / "run",
        rounds=2,
        trust_region={"type": "clip", "eps_low": 1, "eps_high": math.inf},
        data={"eval_size": 4},
        trainer={"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 8},
    )
    folder, _ = run(node, command="bandpo train it")
    logged = rows(folder)
    trained = [(step, False, (step + 3) // 4) for step in range(1, 9)]
    result = [(row["step"], "eval/reward" in row, row["round"]) for row in logged]
    assert result == [*trained[:4], (4, True, 1), *trained[4:], (8, True, 2)]
    keys = {key for row in logged for key in row}
    assert {"loss", "reward", "entropy", "clip/fraction", "eval/reward"} <= keys
    assert not {key for key in keys if re.search("time|second|speed", key)}  # nothing depends on the clock
    facts = json.loads((folder / "run.json").read_text())
    expected = {
        "finished": True, "command": "bandpo train it", "seed": 0, "rounds": 2, "steps_per_round": 4, "scene": None,
        "label": "No clip", "learning_rate": 5e-3,
    }  # fmt: skip
    assert (facts | expected == facts, facts["wall_seconds"] > 0) == (True, True)
    assert {*facts["versions"]} == {"bandpo", "python", "torch", "transformers", "trl", "accelerate", "datasets"}
    assert config.load(folder / "config.yaml") == config.build(node)


def test_a_number_that_is_not_finite_is_null_in_the_metrics(tmp_path):
    settings = SimpleNamespace(steps_per_round=4, trainer={})
    scores = SimpleNamespace(take=dict)
    recorder = on_trl._Recorder(tmp_path, settings, 0.0, scores, None, on_row=lambda row: None, say=print)
    state = SimpleNamespace(global_step=5, is_world_process_zero=True)
    recorder.on_log(None, state, None, {"loss": math.nan, "bandpo/x": math.inf, "eval_y": -math.inf, "reward": 0.5})
    assert rows(tmp_path) == [{"step": 5, "round": 2, "loss": None, "eval/y": None, "reward": 0.5, "x": None}]


@pytest.mark.parametrize("rule", ["band:kl:0.05", "clip:0.2:0.2"])
def test_prompts_come_in_the_order_of_the_rows_under_every_rule(home, tmp_path, monkeypatch, rule):
    seen = []

    def watch(completions, prompts, **columns):
        seen.extend(prompts[::4])
        return [0.0] * len(completions)

    monkeypatch.setattr(recipe, "share_of_even", watch)
    node = recipe.node(home, tmp_path / "run", rounds=4, save_every=0, trust_region=rule)
    run(node)
    wanted, _, _ = rows_and_reward(config.build(node))
    assert (len(seen), seen) == (16, list(wanted["prompt"]))


# ---- refusals


def test_a_folder_with_rows_is_refused_and_left_alone(home, tmp_path):
    rest = write(tmp_path / "metrics.jsonl", "{}\n")
    assert ("already holds a run" in refusal(run, recipe.node(home, tmp_path)), rest.read_text()) == (True, "{}\n")


def test_processes_that_do_not_meet_train_nothing(home, tmp_path):
    """Each would train a model of its own, with a part of the batch, into the same folder."""
    file = write(tmp_path / "recipe.yaml", recipe.node(home, tmp_path / "run"))
    env = {**os.environ, "WORLD_SIZE": "2"}  # and nothing else of a launcher's
    command = [sys.executable, "-m", "bandpo", "train", str(file)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert re.search("^error: .*(MASTER_ADDR|2 processes were started)", done.stderr, re.MULTILINE)
    assert (done.returncode, (tmp_path / "run").exists()) == (2, False)


def test_a_folder_that_another_process_writes_to_is_refused_and_left_alone(stopped, home, tmp_path):
    new = recipe.node(home, tmp_path / "new")
    with locked(stopped.folder / ".lock"), locked(tmp_path / "new" / ".lock"):
        before, writing = contents(stopped.folder), "another process is writing to "
        assert f"{writing}{stopped.folder}; wait" in refusal(run, stopped.node, resume=True)
        assert (writing in refusal(run, new), contents(stopped.folder)) == (True, before)
    assert not (tmp_path / "new").exists()


def test_a_run_that_another_process_has_finished_meanwhile_is_not_trained_again(home, tmp_path, monkeypatch):
    """Both found the folder empty; the second gets the lock when the first is done."""
    node = recipe.node(home, tmp_path / "run", rounds=1, save_every=0)

    def late(file):
        monkeypatch.undo()
        run(node)
        return locked(file)

    monkeypatch.setattr(on_trl, "locked", late)
    assert ("already holds a run" in refusal(run, node), steps(tmp_path / "run")) == (True, [1, 2, 3, 4])


def test_steps_after_the_last_log_step_have_a_row_too(home, tmp_path):
    some, _ = run(recipe.node(home, tmp_path / "run", trainer={"logging_steps": 7}, save_every=0))
    each, _ = run(recipe.node(home, tmp_path / "each", save_every=0))
    assert steps(some) == [7, 14, 20]
    assert sum(row["tokens"] for row in rows(some)) == sum(row["tokens"] for row in rows(each))


# ---- several processes, without starting them


def test_processes_share_the_batch_of_the_recipe(home, tmp_path):
    config_ = config.build(recipe.node(home, tmp_path, data={"eval_size": 4}, trainer=EVALUATION))
    sizes = ("per_device_train_batch_size", "per_device_eval_batch_size")
    for count in (1, 2, 4, 8):
        settings = on_trl._trainer_settings(config_, tmp_path, count)
        assert [settings[size] * count for size in sizes] == [8, 8]
        assert settings.get("ddp_find_unused_parameters", False) == (count > 1)
    parts = "trainer.per_device_train_batch_size is 8, ", " 3 processes cannot share"
    assert not missing(refusal(on_trl._trainer_settings, config_, tmp_path, 3), *parts)


def test_a_run_is_resumed_by_as_many_processes_as_trained_it(two_saved):
    change(two_saved.folder / "checkpoints" / "checkpoint-16" / checkpoints.MARK, processes=2)
    assert "WORLD_SIZE 2, not 1; start as many" in refusal(run, two_saved.node, resume=True)


def test_the_other_processes_are_silent(home, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    _, notices = run(recipe.node(home, tmp_path / "run", rounds=1, save_every=0), on_row=pytest.fail)
    assert notices == []


# ---- `bandpo train` in two processes: the same numbers as in one, exact after a kill, and nothing left behind

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# With --cpu it starts a single process, unless there is MPI; the recipe's use_cpu decides.
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
# Both iterations take the whole batch of a round, in two halves, so that it is the same however it is shared. Plain
# descent: Adam would make a difference of rounding as large as any other.
CHANGES = {
    "trust_region": {"type": "band", "divergence": "kl", "delta": 0.002},
    "data": {"eval_size": 8},
    "trainer": {
        "gradient_accumulation_steps": 2, "num_iterations": 3, "optim": "sgd", "learning_rate": 0.05,
        "eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 8, "num_generations_eval": 2,
    },
}  # fmt: skip


TRAIN = "train", "recipe.yaml"


def launched(folder, launcher, *arguments):
    """How two processes under a launcher ended, and whether each of them is still there."""
    processes = write(folder / "processes", "")
    path = os.pathsep.join([str(Path(bandpo.__file__).parents[1]), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PROCESSES": str(processes)}
    done = subprocess.run(
        [sys.executable, "-m", *launcher, two_processes.__file__, *arguments],
        env=env, cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return done, [Path(f"/proc/{number}").exists() for number in processes.read_text().split()]


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_train_the_same_model_as_one_and_go_on_exactly_after_a_kill(tmp_path, monkeypatch):
    home = recipe.make(tmp_path)
    one, two, folder = (tmp_path / name for name in ("one", "two", "killed"))
    with monkeypatch.context() as patch:
        patch.setattr(Qwen2ForCausalLM, "generate", two_processes.fixed_completions)
        on_trl.run(config.build(recipe.node(home, one, **CHANGES)))

    write(tmp_path / "recipe.yaml", recipe.node(home, two, **CHANGES))
    done, left = launched(tmp_path, TORCHRUN, *TRAIN)
    assert (done.returncode, left) == (0, [False] * 2), done.stderr
    # Three steps and an evaluation, said by one.
    assert (done.stdout.count("round 1 of "), done.stdout.splitlines()[-1]) == (4, str(two))
    facts, command = (
        json.loads((two / "run.json").read_text()),
        "torchrun --nproc-per-node 2 -m bandpo train recipe.yaml",
    )
    assert facts | {"finished": True, "processes": 2, "command": command} == facts
    assert (two / "config.yaml").read_text().replace(str(two), str(one)) == (one / "config.yaml").read_text()
    # But for TRL's clip ratios: means of means of micro-batches.
    alone, shared = (
        [{key: x for key, x in row.items() if not key.startswith("clip_ratio/")} for row in rows(each)]
        for each in (one, two)
    )
    assert (len(alone), sum(row.get("clip/count", 0) for row in alone) > 0) == (15 + 5, True)
    for a, b in zip(alone, shared, strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-5)
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-6, abs=1e-6)
    start, first, second = (load_file(each / "model" / "model.safetensors") for each in (home, one, two))
    assert max((first[name] - start[name]).abs().max() for name in first) > 0.01
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-6, atol=1e-6)

    write(tmp_path / "recipe.yaml", recipe.node(home, folder, **CHANGES))
    killed, left = launched(tmp_path, ACCELERATE, "--kill-at", "8", *TRAIN)
    assert (killed.returncode != 0, left, saved(folder)) == (True, [False] * 2, ["checkpoint-6"])
    mark, wrong = checkpoints.newest_whole(folder)
    assert (mark.processes, wrong, {"rng_state_0.pth", "rng_state_1.pth"} <= set(mark.files)) == (2, [], True)

    resumed, _ = launched(tmp_path, ACCELERATE, *TRAIN, "--resume")
    assert (resumed.returncode, resumed.stdout.count("going on after step 6")) == (0, 1), resumed.stderr
    assert_same_run(folder, two)


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
def test_what_breaks_in_one_process_ends_both_and_no_checkpoint_is_lost(tmp_path):
    changes = {**CHANGES, "trainer": {**CHANGES["trainer"], "save_total_limit": 1}}
    folder = tmp_path / "run"
    write(tmp_path / "recipe.yaml", recipe.node(recipe.make(tmp_path), folder, **changes))
    done, left = launched(tmp_path, TORCHRUN, "--break-at", "8", *TRAIN)
    assert (done.returncode != 0, left) == (True, [False] * 2)
    # By the first process, which had no such weight before the step.
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert not missing(
        message, f"error: {folder}, step 8: weights (15, first model.embed_tokens.weight) are not",
        f"the last whole checkpoint is {folder / 'checkpoints' / 'checkpoint-6'}.",
    )  # fmt: skip
    assert [row["step"] for row in rows(folder) if "loss" in row] == [*range(1, 8)]
    stopped = json.loads((folder / "run.json").read_text())["stopped"]
    assert ("step 8" in stopped, checkpoints.newest_whole(folder)[0].step) == (True, 6)


LAUNCHER = """
import subprocess, sys, os
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline().decode(), flush=True)
child.wait()
"""
PROCESS = """
import time
from bandpo_runs.training import processes
processes.end_with_launcher()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal of a parent's end is Linux's")
def test_a_process_whose_launcher_is_killed_ends(tmp_path):
    env = {**os.environ, "WORLD_SIZE": "2", "PYTHONPATH": str(Path(bandpo.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, PROCESS], stdout=subprocess.PIPE, env=env) as launcher:
        number, ready = launcher.stdout.readline().split()
        assert ready == b"ready"
        watch = os.pidfd_open(int(number))
        launcher.send_signal(signal.SIGKILL)
        assert select.select([watch], [], [], 60)[0], "it lives on"
        os.close(watch)


@pytest.mark.parametrize(("rank", "waits"), [("0", []), ("1", [show_training._PATIENCE])])
def test_what_is_wrong_for_all_is_left_to_the_first_process(monkeypatch, tmp_path, rank, waits):
    waited = []
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(show_training.time, "sleep", waited.append)
    monkeypatch.setattr(show_training.console, "quiet", False)
    why = refusal(show_training.train_and_show, str(tmp_path / "no.yaml"), [], False, "")
    assert ("does not exist" in why, waited) == (True, waits)


# ---- evaluation inside training: verl's names, the samples' own numbers, and resuming as exact as without

VALIDATED = {**EVALUATION, "eval_steps": 4, "num_generations_eval": 4}


def test_names_and_values():
    """Of 15 pairs of samples, 9 have one of 2 right ones, 5 have the only one. best@k is a bootstrap."""
    scores = np.array([[1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0]])
    expected = {
        "core/aime_2024/acc/mean@6": 9 / 24, "aux/aime_2024/acc/best@2/mean": (9 / 15 + 0 + 1 + 5 / 15) / 4,
        "aux/aime_2024/acc/pass@2": (9 / 15 + 0 + 1 + 5 / 15) / 4, "aux/aime_2024/acc/best@4/mean": 0.65,
        "aux/aime_2024/acc/pass@4": (14 / 15 + 0 + 1 + 10 / 15) / 4, "core/aime_2024/acc/best@6/mean": 0.68,
        "core/aime_2024/acc/pass@6": 3 / 4,
    }  # fmt: skip
    assert metrics("aime_2024", "acc", scores) == {
        f"val-{name}": pytest.approx(value, abs=0.08 if "best" in name else 1e-9) for name, value in expected.items()
    }
    assert list(metrics("x", "reward", [[0.5], [1.5]])) == ["val-core/x/reward/mean@1"]
    assert not any("pass" in name for name in metrics("x", "reward", [[0.5, 1.0], [1.5, 2.0]]))


def test_only_marked_rows_are_kept_and_the_reward_does_not_see_the_marks():
    seen = []

    def reward(completions, **columns):
        seen.append({*columns})
        return [float(text) if text else None for text in completions]

    validation = Validation(reward, accuracy=True)
    assert (validation.reward(completions=["1", "0"], answer=["a", "b"]), validation.take()) == ([1, 0], {})
    for completions, rows in ((["1", "0", "0", "1"], [0, 0, 1, 0]), (["0", "", "1", "1"], [1, 1, 1, 0])):
        validation.reward(completions=completions, answer=[0] * 4, **{DATA: ["d", "d", "d", "e"], ROW: rows})
    assert seen == [{"answer"}] * 3
    result = validation.take()
    # The third of row 1 is one more than row 0 has.
    expected = {"val-core/d/acc/mean@2": 0.25, "val-core/d/acc/pass@2": 0.5, "val-core/e/acc/mean@2": 1}
    assert ({name: result[name] for name in expected}, validation.take()) == (expected, {})


def test_the_metrics_of_a_run_are_those_of_its_samples(home, tmp_path, monkeypatch):
    rest = []

    def watch(completions, completion_ids, **columns):
        right = [float(text.split()[0:1] == ["a"]) for text in completions]
        rest.append((columns["prompts"], right))
        return right

    monkeypatch.setattr(recipe, "share_of_even", watch)
    monkeypatch.setattr(on_trl, "ACCURACIES", ("recipe:share_of_even",))
    node = recipe.node(home, tmp_path / "run", rounds=2, save_every=0, data={"eval_size": 5}, trainer=VALIDATED)
    wording, settings = [], config.build(node)
    on_trl.run(settings, on_row=lambda row: wording.append(show_training._line(row, settings, [1.0])))
    logged = rows(tmp_path / "run")
    result = [row for row in logged if "eval/reward" in row]
    assert [row["step"] for row in result] == [0, 4, 8]
    held_out = [row["prompt"] for row in toy.prompts(recipe.ROWS, 0)[-5:]]
    scored = [(prompt, value) for prompts, right in rest for prompt, value in zip(prompts, right, strict=True)]
    of_question = [[value for prompt, value in scored if prompt == question] for question in held_out]
    for values, row in zip(np.array(of_question).reshape(5, 3, 4).swapaxes(0, 1), result, strict=True):
        mean, best, of_2 = values.mean(), values.max(1).mean(), pass_at_k(4, values.sum(1), 2).mean()
        expected = {"val-core/rows/acc/mean@4": mean, "val-core/rows/acc/pass@4": best, "val-aux/rows/acc/pass@2": of_2,
                    "eval/reward": mean}  # fmt: skip
        assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert not [key for row in logged if "eval/reward" not in row for key in row if key.startswith("val-")]
    assert wording[0] == f"before  held-out reward {result[0]['eval/reward']:.3f}"
    assert "rows mean@4" in Path(write_report([tmp_path / "run"], tmp_path / "report.html")).read_text()
    (run,) = read_runs([tmp_path / "run"])
    by_round = [[row["val-core/rows/acc/mean@4"] for row in result if row["round"] == r] for r in (0, 1, 2)]
    assert run.mean("val-core/*/mean@*").tolist() == pytest.approx([np.mean(values) for values in by_round])


def test_other_data_are_evaluated_on_by_name(home, tmp_path):
    file, once = write(tmp_path / "sums.jsonl", toy.prompts(3, seed=9)), {**VALIDATED, "eval_on_start": False}
    node = recipe.node(home, tmp_path / "run", rounds=1, save_every=0, data={"eval_path": f"{file},lab"}, trainer=once)
    on_trl.run(config.build(node))
    (row,) = [row for row in rows(tmp_path / "run") if "eval/reward" in row]
    assert {"val-core/sums/reward/mean@4", "val-core/lab/reward/mean@4"} <= row.keys()
    assert all(math.isfinite(value) for key, value in row.items() if key.startswith("val-"))


@pytest.mark.parametrize(("data", "batch", "message"), [("gone.jsonl", 8, "gone.jsonl"), ("lab", 7, "trainer: ")])
def test_what_cannot_be_evaluated_on_is_said_before_anything_is_written(home, tmp_path, data, batch, message):
    trainer = VALIDATED | {"per_device_eval_batch_size": batch}
    node = recipe.node(home, tmp_path / "run", data={"eval_path": data}, trainer=trainer)
    assert (message in refusal(run, node), (tmp_path / "run").exists()) == (True, False)
