"""`bandpo train` in two processes: the same numbers as in one, exact after a kill, and nothing left behind."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import recipe
import torch
import two_processes
import yaml
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

import bandpo
from bandpo.errors import UserError
from bandpo_runs import config
from bandpo_runs.cli import show_training
from bandpo_runs.training import checkpoints, on_trl

pytestmark = pytest.mark.slow

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


class Launched:
    """Two processes under a launcher."""

    def __init__(self, tmp_path, node):
        self.node, self.recipe, self.processes = node, tmp_path / "recipe.yaml", tmp_path / "processes"
        self.recipe.write_text(yaml.safe_dump(node, sort_keys=False))

    def __call__(self, launcher, *arguments):
        self.processes.unlink(missing_ok=True)
        path = os.pathsep.join([str(Path(bandpo.__file__).parents[1]), *sys.path])
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PROCESSES": str(self.processes)}
        return subprocess.run(
            [sys.executable, "-m", *launcher, two_processes.__file__, *arguments],
            env=env, cwd=self.recipe.parent, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def left(self):
        """The processes that are still there."""
        numbers = [int(line) for line in self.processes.read_text().split()]
        assert len(numbers) == 2
        return [number for number in numbers if Path(f"/proc/{number}").exists()]


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_train_the_same_model_as_one_and_go_on_exactly_after_a_kill(tmp_path, monkeypatch):
    home = recipe.make(tmp_path)
    one = Path(recipe.node(home, tmp_path / "one")["output"])
    with monkeypatch.context() as patch:
        patch.setattr(Qwen2ForCausalLM, "generate", two_processes.fixed_completions)
        on_trl.run(config.build(recipe.node(home, one, **CHANGES)))

    launched = Launched(tmp_path, recipe.node(home, tmp_path / "two", **CHANGES))
    done = launched(TORCHRUN, "train", str(launched.recipe))
    assert done.returncode == 0, done.stderr
    two = tmp_path / "two"
    assert done.stdout.count("round 1 of ") == 4  # three steps and an evaluation, said by one
    assert done.stdout.splitlines()[-1] == str(two)
    assert not launched.left()
    facts = json.loads((two / "run.json").read_text())
    assert facts["finished"]
    assert facts["processes"] == 2
    assert facts["command"] == f"torchrun --nproc-per-node 2 -m bandpo train {launched.recipe}"
    assert (two / "config.yaml").read_text().replace(str(two), str(one)) == (one / "config.yaml").read_text()
    alone, shared = rows(one), rows(two)
    assert len(alone) == 15 + 5
    assert sum(row.get("clip/count", 0) for row in alone) > 0
    for a, b in zip(alone, shared, strict=True):
        for row in (a, b):
            for key in [key for key in row if key.startswith("clip_ratio/")]:  # TRL's: means of means of micro-batches
                del row[key]
        assert a == pytest.approx(b, rel=1e-5, abs=1e-5)
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-6, abs=1e-6)
    start = load_file(home / "model" / "model.safetensors")
    first, second = (load_file(folder / "model" / "model.safetensors") for folder in (one, two))
    assert max((first[name] - start[name]).abs().max() for name in first) > 0.01
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-6, atol=1e-6)

    launched = Launched(tmp_path, {**launched.node, "output": str(tmp_path / "killed")})
    killed = launched(ACCELERATE, "--kill-at", "8", "train", str(launched.recipe))
    assert killed.returncode
    assert not launched.left()
    folder = tmp_path / "killed"
    assert [path.name for path in (folder / "checkpoints").glob("checkpoint-*")] == ["checkpoint-6"]
    mark, wrong = checkpoints.newest_whole(folder)
    assert (mark.processes, wrong) == (2, [])
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= set(mark.files)

    resumed = launched(ACCELERATE, "train", str(launched.recipe), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "going on after step 6" in resumed.stdout
    assert (folder / "metrics.jsonl").read_text() == (two / "metrics.jsonl").read_text()
    assert (folder / "model" / "model.safetensors").read_bytes() == (two / "model" / "model.safetensors").read_bytes()


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
def test_what_breaks_in_one_process_ends_both_and_no_checkpoint_is_lost(tmp_path):
    changes = {**CHANGES, "trainer": {**CHANGES["trainer"], "save_total_limit": 1}}
    launched = Launched(tmp_path, recipe.node(recipe.make(tmp_path), tmp_path / "run", **changes))
    done = launched(TORCHRUN, "--break-at", "8", "train", str(launched.recipe))
    assert done.returncode
    assert not launched.left()
    folder = tmp_path / "run"
    message = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(message) == 1  # by the first process, which had no such weight before the step
    assert message[0].startswith(f"error: {folder}, step 8: weights (15, first model.embed_tokens.weight) are not")
    assert f"the last whole checkpoint is {folder / 'checkpoints' / 'checkpoint-6'}." in message[0]
    assert [row["step"] for row in rows(folder) if "loss" in row] == [*range(1, 8)]
    assert "step 8" in json.loads((folder / "run.json").read_text())["stopped"]
    assert checkpoints.newest_whole(folder)[0].step == 6


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
    with pytest.raises(UserError, match="does not exist"):
        show_training.train_and_show(str(tmp_path / "no.yaml"), [], False, "")
    assert waited == waits
