"""A run that was killed and resumed is the run that was not; what a run writes; what it refuses."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import recipe
import torch
import yaml

from bandpo.errors import UserError
from bandpo_runs import config
from bandpo_runs.cli import main
from bandpo_runs.data.rows import rows_and_reward
from bandpo_runs.files.writing import locked
from bandpo_runs.training import checkpoints, on_trl

pytestmark = pytest.mark.slow


class Killed(BaseException):
    """Nothing catches it: the run stops where it is, like a process that is killed."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return recipe.make(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def whole(home, tmp_path_factory):
    """The run that nothing interrupted."""
    folder, _ = run(recipe.node(home, tmp_path_factory.mktemp("whole") / "run"))
    return folder


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(node, **options):
    notices = []
    folder = on_trl.run(config.build(node), say=notices.append, **options)
    return folder, notices


def run_until(node, step, *, resume=False, event="on_step_end"):
    """Run, and stop for good when the event comes at that step. A step's row is written after it has ended."""
    handle = getattr(on_trl._Recorder, event)

    def stop(self, args, state, control, **named):
        if state.global_step == step:
            raise Killed
        handle(self, args, state, control, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_trl._Recorder, event, stop)
        with pytest.raises(Killed):
            on_trl.run(config.build(node), resume=resume)
    return Path(node["output"])


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps(folder):
    return [row["step"] for row in rows(folder)]


def weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def saved(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("checkpoint-*"))


def assert_same_run(folder, other):
    assert (folder / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    assert weights(folder) == weights(other)


# ---- resuming


def test_tokens_of_a_run_that_was_killed_are_those_of_one_that_was_not(home, tmp_path):
    def node(name):
        return recipe.node(home, tmp_path / name, rounds=3, save_every=1, tokens_share=1.0)

    whole, _ = run(node("whole"))
    result = (whole / "tokens" / "tokens-0.jsonl").read_bytes()
    assert {json.loads(line)["step"] for line in result.splitlines()} == set(range(12))
    folder = run_until(node("killed"), 3)  # before there is a checkpoint
    run_until(node("killed"), 7, resume=True)
    with (folder / "tokens" / "tokens-0.jsonl").open("ab") as file:
        file.write(b'{"step":7,"resp')
    run(node("killed"), resume=True)
    assert (folder / "tokens" / "tokens-0.jsonl").read_bytes() == result
    assert_same_run(folder, whole)


EVALUATION = {"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True, "per_device_eval_batch_size": 8}
EVALUATION |= {"num_generations_eval": 2}
VARIANTS = {
    "killed within a round": ({}, 14, list(range(1, 14))),
    "prompts that are shared, as bandpo train chooses": ({"shared_prompts": True}, 14, list(range(1, 14))),
    "a row a round": ({"trainer": {"logging_steps": 4}}, 14, [4, 8, 12]),
    "gradient accumulation and a reference model": (
        {"trainer": {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "num_generations": 8, "beta": 0.1}},
        14,
        list(range(1, 14)),
    ),
    "evaluation": (
        {"data": {"eval_size": 4}, "trainer": EVALUATION | {"logging_steps": 4}},
        14,
        [0, 3, 4, 6, 8, 9, 12, 12],
    ),
    "checkpoints every third round": ({"trainer": {"logging_steps": 6}}, 19, [6, 12, 18]),
}


@pytest.mark.parametrize(("changes", "stop", "before"), VARIANTS.values(), ids=VARIANTS)
def test_resuming_is_exact(home, tmp_path, changes, stop, before):
    whole, _ = run(recipe.node(home, tmp_path / "whole", **changes))
    node = recipe.node(home, tmp_path / "stopped", **changes)
    folder = run_until(node, stop)
    assert steps(folder) == before
    assert max(before) > int(saved(folder)[-1].removeprefix("checkpoint-"))  # so there is something to cut off
    run(node, resume=True)
    assert_same_run(folder, whole)


def test_the_run_is_worth_comparing(home, whole, tmp_path):
    # Guards the tests above: the weights move, the rule acts, and the prompts differ from pass to pass.
    start = (home / "model" / "model.safetensors").read_bytes()
    assert weights(whole) != start
    assert len({row["reward"] for row in rows(whole) if "reward" in row}) == 5
    assert sum(row["clip/count"] for row in rows(whole)) > 0
    other, _ = run(recipe.node(home, tmp_path / "other", seed=1))
    assert weights(other) != weights(whole)


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
    mark = json.loads((rest / checkpoints.MARK).read_text())
    (rest / checkpoints.MARK).write_text(json.dumps(mark | {"wall_seconds": 1000.0}))
    moved = stopped.folder.with_name("moved")
    stopped.folder.rename(moved)
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
    # Now the other one is lost as well: what is left of the first must not be trained on.
    rest = tmp_path / "kept"
    shutil.move(folder / "checkpoints" / "checkpoint-16", rest)
    assert checkpoints.newest_whole(folder) == (None, [])
    shutil.move(rest, folder / "checkpoints" / "checkpoint-16")
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
    "missing": (Path.unlink, "is missing"),
    "truncated": (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes and had"),
    "garbled": (lambda file: file.write_bytes(b"\1" + file.read_bytes()[1:]), "is not what was written"),
}
FILES = [
    "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin",
    "config.json", "tokenizer.json",
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_the_file_is_named(two_saved, damage, message):
    for name in FILES:
        file = two_saved.folder / "checkpoints" / "checkpoint-16" / name
        before = file.read_bytes()
        damage(file)
        mark, (wrong,) = checkpoints.newest_whole(two_saved.folder)
        assert mark.step == 8, name
        assert wrong.startswith(f"{file} ")
        assert message in wrong
        file.write_bytes(before)
    assert checkpoints.newest_whole(two_saved.folder)[0].step == 16


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"step": "x"}', "[" * 100_000, "\xff", {"wall_seconds": -1}, {"wall_seconds": "x"}, {"rows": [-1, 0]}],
)
def test_a_mark_that_is_not_what_was_written_marks_nothing(two_saved, content):
    mark = two_saved.folder / "checkpoints" / "checkpoint-16" / checkpoints.MARK
    if isinstance(content, dict):  # numbers that nobody writes
        content = json.dumps(json.loads(mark.read_text()) | content)
    mark.write_bytes(content.encode("latin-1"))
    result, wrong = checkpoints.newest_whole(two_saved.folder)
    assert result.step == 8
    assert wrong == [f"{mark} is not what was written"]


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
    with pytest.raises(UserError, match=r"no checkpoint of .* is whole: .*16/optimizer.pt is missing; .*8/rng_state"):
        run(two_saved.node, resume=True)
    assert {path: path.stat().st_mtime_ns for path in two_saved.folder.rglob("*")} == before


def test_a_copy_under_another_name_is_no_checkpoint(two_saved):
    rest = two_saved.folder / "checkpoints"
    shutil.copytree(rest / "checkpoint-16", rest / "checkpoint-16-before")
    shutil.copytree(rest / "checkpoint-16", rest / "checkpoint-20")
    result, (wrong,) = checkpoints.newest_whole(two_saved.folder)
    assert result.step == 16
    assert wrong == f"{rest / 'checkpoint-20'} is the checkpoint of step 16"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: lines[:12], "bytes and had"),
        (lambda lines: [*lines[:11], *lines[12:]], "is not what was written"),  # the last one is cut within, and a row
        (lambda lines: [line.replace('"step": 12', '"step": 13') for line in lines], "is not what was written"),
        (lambda lines: [*lines[:11], "\0" * len(lines[11]), *lines[12:]], "is not what was written"),
    ],
    ids=["the end is gone", "one is gone", "one is changed", "garbage"],
)
def test_rows_that_are_gone_or_changed_take_their_checkpoint_with_them(two_saved, whole, damage, message):
    path = two_saved.folder / "metrics.jsonl"
    path.write_text("".join(damage(path.read_text().splitlines(keepends=True))))  # after the checkpoint at 8
    _, notices = run(two_saved.node, resume=True)
    assert notices[0].startswith(str(path))
    assert message in notices[0]
    assert notices[-1] == "going on after step 8"
    assert_same_run(two_saved.folder, whole)


def test_everything_is_on_the_disk_before_the_mark_says_so(two_saved, monkeypatch):
    synced, marked = set(), []
    fsync, write = os.fsync, checkpoints.write_atomically
    monkeypatch.setattr(os, "fsync", lambda file: (synced.add(os.fstat(file).st_ino), fsync(file)))
    monkeypatch.setattr(checkpoints, "write_atomically", lambda *args: (marked.append(set(synced)), write(*args)))
    folder = two_saved.folder / "checkpoints" / "checkpoint-16"
    checkpoints.write_mark(two_saved.folder, 16, 1.0, 1)
    wanted = [two_saved.folder / "metrics.jsonl", *(folder / name for name in FILES)]
    assert {path.stat().st_ino for path in wanted} <= marked[0]


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_says_so(home, tmp_path):
    changes = {"rounds": 3, "data": {"eval_size": 4}, "trainer": EVALUATION}
    whole, _ = run(recipe.node(home, tmp_path / "whole", **changes))
    node = recipe.node(home, tmp_path / "stopped", **changes)
    folder = run_until(node, 7)
    assert steps(folder) == [0, 1, 2, 3, 3, 4, 5, 6, 6]
    _, notices = run(node, resume=True)
    assert notices == [f"no whole checkpoint in {folder}: starting again"]
    assert_same_run(folder, whole)


def test_a_run_killed_after_its_last_step_only_saves_its_model(home, tmp_path):
    changes = {"rounds": 4}
    whole, _ = run(recipe.node(home, tmp_path / "whole", **changes))
    node = recipe.node(home, tmp_path / "stopped", **changes)
    folder = run_until(node, 16, event="on_train_end")
    assert not (folder / "model").exists()
    run(node, resume=True)
    assert_same_run(folder, whole)


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
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(node))
    with monkeypatch.context() as patch:
        break_at(patch, 15)
        assert main(["train", str(file)]) == 2
    folder = Path(node["output"])
    message = capsys.readouterr().err.splitlines()[-1]
    rest = folder / "checkpoints" / "checkpoint-8"
    assert message.startswith(
        f"error: {folder}, step 15: weights (15, first model.embed_tokens.weight) are not finite; the "
    )
    for part in (f"the last whole checkpoint is {rest}.", "Try a smaller learning_rate", f"model={rest} begins from"):
        assert part in message
    assert "; stop_if_not_finite=False goes on all the same" in message
    assert steps(folder) == [*range(1, 15)]
    assert saved(folder) == ["checkpoint-8"]
    facts = json.loads((folder / "run.json").read_text())
    assert not facts["finished"]
    assert facts["stopped"] in message
    assert main(["train", str(file), "--resume"]) == 0
    assert_same_run(folder, whole)
    assert "stopped" not in json.loads((folder / "run.json").read_text())


def test_a_broken_checkpoint_is_not_marked_and_none_is_deleted_for_it(home, whole, tmp_path, monkeypatch):
    node = recipe.node(home, tmp_path / "run", save_every=1, trainer={"save_total_limit": 1, "beta": 0.0})
    on = {**node, "stop_if_not_finite": False}
    with monkeypatch.context() as patch:
        break_at(patch, 15)
        notices = []
        message = "probability tensor contains"  # torch's own: nothing can be sampled
        with pytest.warns(UserWarning, match="stop_if_not_finite is False"), pytest.raises(RuntimeError, match=message):
            on_trl.run(config.build(on), say=notices.append)
    folder = Path(node["output"])
    assert notices == ["checkpoint-16 has weights that are not finite: it does not count, and none is deleted for it"]
    assert saved(folder) == ["checkpoint-12", "checkpoint-16"]
    assert checkpoints.newest_whole(folder)[0].step == 12
    _, notices = run(node, resume=True)  # now with the guard: that is not another setting
    passed = f"{folder / 'checkpoints' / 'checkpoint-16'} has no bandpo.json, which is written last"
    assert notices == [f"{passed}: that checkpoint is passed over", "going on after step 12"]
    assert_same_run(folder, whole)


# ---- save_every


@pytest.mark.parametrize(
    ("save_every", "changes", "every"),
    [
        (1, {}, 4),
        (3, {}, 12),
        (1, {"logging_steps": 4}, 4),
        (1, {"logging_steps": 8}, 8),
        (3, {"logging_steps": 8}, 16),
        (1, {"gradient_accumulation_steps": 2}, 2),
        (1, {"gradient_accumulation_steps": 2, "logging_steps": 3}, 6),
    ],
)
def test_checkpoints_come_at_multiples_of_rounds_and_of_rows(home, tmp_path, save_every, changes, every):
    node = recipe.node(home, tmp_path / "run", save_every=save_every, trainer=changes)
    settings, notice = on_trl._trainer_settings(config.build(node), tmp_path)
    assert settings["save_steps"] == every
    per_round = 4 // changes.get("gradient_accumulation_steps", 1)
    rounded = f"save_every: {save_every} rounded up to {every // per_round} rounds" in (notice or "")
    assert rounded == (notice is not None) == (every != save_every * per_round)


# ---- what a run writes


@pytest.fixture(scope="module")
def finished(home, tmp_path_factory):
    node = recipe.node(
        home,
        tmp_path_factory.mktemp("finished") / "run",
        rounds=2,
        trust_region={"type": "clip", "eps_low": 1, "eps_high": math.inf},
        data={"eval_size": 4},
        trainer={"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 8},
    )
    on_trl.run(config.build(node), command="bandpo train it")
    return SimpleNamespace(node=node, folder=Path(node["output"]))


def test_metrics_have_a_line_for_each_logged_step_and_each_evaluation(finished):
    result = [(row["step"], "eval/reward" in row) for row in rows(finished.folder)]
    train_rows = [(step, False) for step in range(1, 9)]
    assert result == [*train_rows[:4], (4, True), *train_rows[4:], (8, True)]
    assert [row["round"] for row in rows(finished.folder) if "reward" in row] == [1, 2]
    assert all(row["round"] == (row["step"] + 3) // 4 for row in rows(finished.folder))
    keys = {key for row in rows(finished.folder) for key in row}
    assert {"loss", "reward", "entropy", "clip/fraction", "eval/reward"} <= keys
    assert not {key for key in keys if re.search("time|second|speed", key)}  # nothing depends on the clock


def test_a_number_that_is_not_finite_is_null_in_the_metrics(tmp_path):
    settings = SimpleNamespace(steps_per_round=4, trainer={})
    scores = SimpleNamespace(take=dict)
    recorder = on_trl._Recorder(tmp_path, settings, 0.0, scores, None, on_row=lambda row: None, say=print)
    state = SimpleNamespace(global_step=5, is_world_process_zero=True)
    recorder.on_log(None, state, None, {"loss": math.nan, "bandpo/x": math.inf, "eval_y": -math.inf, "reward": 0.5})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text) == {"step": 5, "round": 2, "loss": None, "eval/y": None, "reward": 0.5, "x": None}
    assert text.count("\n") == 1


def test_run_json_says_what_ran_and_config_yaml_is_the_resolved_recipe(finished):
    facts = json.loads((finished.folder / "run.json").read_text())
    assert facts["finished"] is True
    assert facts["command"] == "bandpo train it"
    assert (facts["seed"], facts["rounds"], facts["steps_per_round"], facts["scene"]) == (0, 2, 4, None)
    assert facts["label"] == "No clip"
    assert facts["learning_rate"] == 5e-3
    assert facts["wall_seconds"] > 0
    assert facts["versions"]["torch"] == torch.__version__
    assert set(facts["versions"]) == {"bandpo", "python", "torch", "transformers", "trl", "accelerate", "datasets"}
    assert config.load(finished.folder / "config.yaml") == config.build(finished.node)


def test_prompts_come_in_the_order_of_the_rows_under_every_rule(home, tmp_path, monkeypatch):
    seen = []

    def watch(completions, prompts, **columns):
        seen.extend(prompts[::4])
        return [0.0] * len(completions)

    monkeypatch.setattr(recipe, "share_of_even", watch)
    clip = {"type": "clip", "eps_low": 0.2, "eps_high": 0.2}
    for name, rule in (("band", {"type": "band", "delta": 0.05}), ("clip", clip)):
        node = recipe.node(home, tmp_path / name, rounds=4, save_every=0, trust_region=rule)
        run(node)
        wanted, _, _ = rows_and_reward(config.build(node))
        assert len(seen) == 16
        assert seen == list(wanted["prompt"])
        seen.clear()


# ---- refusals


def test_a_folder_with_rows_is_refused_and_left_alone(home, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="already holds a run"):
        run(recipe.node(home, tmp_path))
    assert (tmp_path / "metrics.jsonl").read_text() == "{}\n"


def test_processes_that_do_not_meet_train_nothing(home, tmp_path):
    """Each would train a model of its own, with a part of the batch, into the same folder."""
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe.node(home, tmp_path / "run")))
    command = [sys.executable, "-m", "bandpo", "train", str(tmp_path / "recipe.yaml")]
    env = {**os.environ, "WORLD_SIZE": "2"}  # and nothing else of a launcher's
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.search("^error: .*(MASTER_ADDR|2 processes were started)", done.stderr, re.MULTILINE)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_another_process_writes_to_is_refused_and_left_alone(stopped, home, tmp_path):
    def state(folder):
        return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}

    with locked(stopped.folder / ".lock"):
        before = state(stopped.folder)
        with pytest.raises(UserError, match=rf"another process is writing to {stopped.folder}; wait"):
            run(stopped.node, resume=True)
        assert state(stopped.folder) == before
    new = recipe.node(home, tmp_path / "new")
    with locked(tmp_path / "new" / ".lock"), pytest.raises(UserError, match="another process"):
        run(new)
    assert not (tmp_path / "new").exists()


def test_a_run_that_another_process_has_finished_meanwhile_is_not_trained_again(home, tmp_path, monkeypatch):
    """Both found the folder empty; the second gets the lock when the first is done."""
    node = recipe.node(home, tmp_path / "run", rounds=1, save_every=0)

    def late(file):
        monkeypatch.undo()
        run(node)
        return locked(file)

    monkeypatch.setattr(on_trl, "locked", late)
    with pytest.raises(UserError, match="already holds a run"):
        run(node)
    assert steps(tmp_path / "run") == [1, 2, 3, 4]


def test_steps_after_the_last_log_step_have_a_row_too(home, tmp_path):
    run(recipe.node(home, tmp_path / "run", trainer={"logging_steps": 7}, save_every=0))
    run(recipe.node(home, tmp_path / "each", save_every=0))
    assert steps(tmp_path / "run") == [7, 14, 20]
    tokens = [sum(row["tokens"] for row in rows(tmp_path / name)) for name in ("run", "each")]
    assert tokens[0] == tokens[1]


# ---- several processes (test_processes.py starts some)


def test_processes_share_the_batch_of_the_recipe(home, tmp_path):
    config_ = config.build(recipe.node(home, tmp_path, data={"eval_size": 4}, trainer=EVALUATION))
    for count in (1, 2, 4, 8):
        settings, _ = on_trl._trainer_settings(config_, tmp_path, count)
        assert settings["per_device_train_batch_size"] * count == 8
        assert settings["per_device_eval_batch_size"] * count == 8
        assert settings.get("ddp_find_unused_parameters", False) == (count > 1)
    with pytest.raises(UserError, match=r"trainer.per_device_train_batch_size is 8, .* 3 processes cannot share"):
        on_trl._trainer_settings(config_, tmp_path, 3)


def test_a_run_is_resumed_by_as_many_processes_as_trained_it(two_saved):
    mark = two_saved.folder / "checkpoints" / "checkpoint-16" / checkpoints.MARK
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"processes": 2}))
    with pytest.raises(UserError, match=r"was trained with WORLD_SIZE 2, not 1; start as many processes"):
        run(two_saved.node, resume=True)


def test_the_other_processes_are_silent(home, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    _, notices = run(recipe.node(home, tmp_path / "run", rounds=1, save_every=0), on_row=pytest.fail)
    assert notices == []
