"""A real run: Ray, actor worker, vLLM's rollout, reward loop; then its checkpoint, and the death of a worker."""

import contextlib
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import verl_toy
from disk import json_rows
from safetensors.torch import load_file
from verl_toy import LOSS, OURS, region

pytestmark = pytest.mark.slow

RULE = [*OURS, region(type="band", divergence="kl", delta=0.0001)]
STEPS = 3


def running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    verl_toy.write(folder)
    return folder


class Run:
    """main_ppo with its output in `name`.txt and its step log in `name`.jsonl; on leaving, all its processes end."""

    def __init__(self, folder, name, steps, *settings):
        self.text, self.log = folder / f"{name}.txt", folder / f"{name}.jsonl"
        command = [sys.executable, "-m", "verl.trainer.main_ppo", *verl_toy.run_settings(folder, folder, steps), *RULE]
        command += ["trainer.save_freq=1", "actor_rollout_ref.model.external_lib=verl_dump", *settings]
        environment = os.environ | verl_toy.ENVIRONMENT
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment |= {
            "PYTHONPATH": path,
            "VERL_TEST_DUMP": str(folder / "first_batch.pt"),
            "VERL_FILE_LOGGER_PATH": str(self.log),
        }
        with self.text.open("w") as out:
            self.main = psutil.Popen(command, env=environment, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        self.children = set()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in (self.main, *self.children):
            with contextlib.suppress(psutil.NoSuchProcess):  # psutil kills no other process with the same number
                process.kill()

    def until(self, condition, limit):
        """Wait; the run's processes are noted meanwhile, because orphans have no parent to be found by."""
        began = time.monotonic()
        while not condition():
            if self.main.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.children |= set(self.main.children(recursive=True))
            else:
                assert condition(), self.printed()[-5000:]
            assert time.monotonic() - began < limit, self.printed()[-5000:]
            time.sleep(0.5)

    def ended(self):
        return self.main.poll() is not None

    def alive(self):
        return [p for p in self.children if running(p)]

    def steps(self):
        return {row["step"]: row["data"] for row in (json_rows(self.log) if self.log.exists() else ())}

    def printed(self):
        return self.text.read_text()


@pytest.fixture(scope="module")
def finished(folder):
    with Run(folder, "first", STEPS) as run:
        run.until(run.ended, 400)
        assert run.main.returncode == 0, run.printed()[-5000:]
        return run.steps()


def test_the_log_has_our_metrics_of_every_step(finished):
    assert list(finished) == list(range(1, STEPS + 1))
    for data in finished.values():
        ours = {name: value for name, value in data.items() if name.startswith("actor/bandpo/")}
        assert len(ours) > 10
        assert all(map(math.isfinite, [*ours.values(), data["actor/grad_norm"]]))
        assert ours["actor/bandpo/half_precision"] == 0
        # 8 prompts x 4 samples in micro-batches of 8, of at most 8 tokens each.
        assert 8 <= ours["actor/bandpo/tokens"] <= 64
        # The sampler's and the actor's probabilities agree, so bounds are those of the policy that sampled.
        assert data["training/rollout_probs_diff_max"] < 1e-5
    # The second update of the first step is off policy, and a band this narrow cuts.
    assert finished[1]["actor/bandpo/clip/count"] > 0


def test_the_first_step_repeats_outside_of_ray(finished, folder):
    """Its dumped batch through TrainingWorker: the same metrics, and the weights of the checkpoint."""
    settings = [*verl_toy.run_settings(folder, folder, STEPS), *RULE]
    case = {"settings": settings, "dump": str(folder / "first_batch.pt")}
    [[results], _] = verl_toy.update_actor(folder, folder / "replay", {"first": case})
    metrics = results["first"]["metrics"]
    logged = {name: value for name, value in finished[1].items() if "bandpo" in name}
    logged["grad_norm"] = finished[1]["actor/grad_norm"]
    assert {name: metrics[name] for name in logged} == pytest.approx(logged, rel=1e-6)
    saved = torch.load(
        folder / "checkpoints" / "global_step_1" / "actor" / "model_world_size_1_rank_0.pt", weights_only=False
    )
    before = load_file(folder / "model" / "model.safetensors")
    weights = results["first"]["weights"]
    assert weights.keys() == saved.keys()
    for name, value in saved.items():
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-7)
        assert name not in before or not torch.allclose(value, before[name], atol=1e-5)


def test_what_the_loss_needs_is_in_the_batch_of_a_run(finished, folder):
    """The sampler's log-probabilities and the step; sampled by the model that the step began with."""
    rule = [
        *OURS,
        region(type="'verl_rule:Watching'"),
        f"+{LOSS}.anchor=sampler",
        f"+{LOSS}.tokens_path={folder}/tokens",
    ]
    case = {"settings": [*verl_toy.run_settings(folder, folder, STEPS), *rule], "dump": str(folder / "first_batch.pt")}
    [[results], _] = verl_toy.update_actor(folder, folder / "watched", {"first": case})
    seen, call = results["first"]["seen"][0], results["first"]["calls"][0]
    mask = seen["response_mask"]
    torch.testing.assert_close(seen["old_logps"][mask], call["old_log_prob"]["value"][mask], atol=1e-4, rtol=0)
    assert {row["step"] for row in json_rows(folder / "tokens" / "tokens-0.jsonl")} == {0}


def test_a_checkpoint_resumes_half_precision_is_told_and_a_dead_worker_ends_the_run(finished, folder):
    half = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16"
    with Run(folder, "second", 1000, half) as run:
        run.until(run.steps, 400)
        assert f"Resuming from {folder}/checkpoints/global_step_{STEPS}" in run.printed()
        assert min(run.steps()) == STEPS + 1
        assert run.steps()[STEPS + 1]["actor/bandpo/tokens"] > 0
        assert run.steps()[STEPS + 1]["actor/bandpo/half_precision"] == 1
        # On the driver's console, where Ray brings what its workers print.
        run.until(lambda: "UserWarning: log-probabilities reach the loss as torch.bfloat16" in run.printed(), 60)
        (worker,) = [p for p in run.alive() if "WorkerDict" in " ".join(p.cmdline())]
        worker.kill()
        run.until(run.ended, 120)
        assert run.main.returncode == 1
        assert "ActorDiedError: The actor died unexpectedly" in run.printed()
        run.until(lambda: not run.alive(), 120)
