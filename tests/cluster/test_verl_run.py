"""A real run: Ray, actor worker, vLLM's rollout, reward loop; then its checkpoint, and the death of a worker."""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import verl_toy
from safetensors.torch import load_file
from verl_rule import Stepped
from verl_toy import OURS, region

from bandpo import Controlled, Quantile
from bandpo.integrations import HOSTS

pytestmark = pytest.mark.slow

# It asks for the step, and for the number that its controller has; both are shown to it in Ray's workers by the
# wrapped update.
CONTROLLED = Controlled(Stepped(), "delta", "clip/fraction", 0.5, Quantile(), low=0.0001, high=0.01, smoothing=0.5)
NODE = {key: re.sub(r"'(\w+)': ", r"\1:", str(value)) for key, value in CONTROLLED.to_config().items()}
RULE = [*OURS, region(**NODE)]
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
        environment |= {"PYTHONPATH": path, "VERL_TEST_DUMP": str(folder / "first_batch.pt")}
        environment |= {"VERL_FILE_LOGGER_PATH": str(self.log)}
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
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return {row["step"]: row["data"] for row in map(json.loads, lines)}

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
        assert all(math.isfinite(value) for value in ours.values())
        assert ours["actor/bandpo/half_precision"] == 0
        # 8 prompts x 4 samples in micro-batches of 8, of at most 8 tokens each.
        assert 8 <= ours["actor/bandpo/tokens"] <= 64
        # The sampler's and the actor's probabilities agree, so bounds are those of the policy that sampled.
        assert data["training/rollout_probs_diff_max"] < 1e-5
        assert math.isfinite(data["actor/grad_norm"])
    # The second update of the first step is off policy, and a band this narrow cuts.
    assert finished[1]["actor/bandpo/clip/count"] > 0


def controlled(steps):
    """What the number of the rule is after these rows of the log, in whose updates all mini-batches are equal."""
    state = CONTROLLED.start()
    for data in steps:
        assert data["actor/bandpo/controlled"] == pytest.approx(state["value"], rel=1e-9)
        found = data["actor/bandpo/clip/count"] / data["actor/bandpo/tokens"]
        _, state = CONTROLLED.radius(state, {"clip/fraction": found})
    return state["value"]


def test_each_step_moves_the_number_of_the_rule(finished):
    assert controlled(finished.values()) != CONTROLLED.start()["value"]
    assert len({data["actor/bandpo/controlled"] for data in finished.values()}) == STEPS


def test_the_first_step_repeats_outside_of_ray(finished, folder):
    """Its dumped batch through TrainingWorker: the same metrics, and the weights of the checkpoint."""
    settings = [*verl_toy.run_settings(folder, folder, STEPS), *RULE]
    case = {"settings": settings, "dump": str(folder / "first_batch.pt")}
    [[results], _] = verl_toy.update_actor(folder, folder / "replay", {"first": case})
    metrics = results["first"]["metrics"]
    logged = {name: value for name, value in finished[1].items() if "bandpo" in name}
    assert {name: metrics[name] for name in logged} == pytest.approx(logged, rel=1e-6)
    assert metrics["grad_norm"] == pytest.approx(finished[1]["actor/grad_norm"], rel=1e-6)
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


def test_what_rules_ask_for_is_in_the_batch_of_a_run(finished, folder):
    """Sampled by the model that the step began with."""
    fields = ".".join(sorted({*HOSTS["verl"].shown} - {"mean_weight", "controlled"}))
    rule = [*OURS, region(type="'verl_rule:Watching'", fields=fields)]
    case = {"settings": [*verl_toy.run_settings(folder, folder, STEPS), *rule], "dump": str(folder / "first_batch.pt")}
    [[results], _] = verl_toy.update_actor(folder, folder / "watched", {"first": case})
    seen = results["first"]["seen"]
    assert {context["step"] for context in seen} == {0}
    mask, old, new = (seen[0][name] for name in ("response_mask", "old_entropies", "entropies"))
    torch.testing.assert_close(new[mask], old[mask], atol=1e-4, rtol=0)  # before the first step


def test_a_checkpoint_resumes_half_precision_is_told_and_a_dead_worker_ends_the_run(finished, folder):
    half = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16"
    with Run(folder, "second", 1000, half) as run:
        run.until(run.steps, 400)
        assert f"Resuming from {folder}/checkpoints/global_step_{STEPS}" in run.printed()
        assert min(run.steps()) == STEPS + 1
        assert run.steps()[STEPS + 1]["actor/bandpo/tokens"] > 0
        assert run.steps()[STEPS + 1]["actor/bandpo/half_precision"] == 1
        number = controlled(finished.values())  # whose state is in the checkpoint
        assert run.steps()[STEPS + 1]["actor/bandpo/controlled"] == pytest.approx(number, rel=1e-9)
        # On the driver's console, where Ray brings what its workers print.
        run.until(lambda: "UserWarning: log-probabilities reach the loss as torch.bfloat16" in run.printed(), 60)
        (worker,) = [p for p in run.alive() if "WorkerDict" in " ".join(p.cmdline())]
        worker.kill()
        run.until(run.ended, 120)
        assert run.main.returncode == 1
        assert "ActorDiedError: The actor died unexpectedly" in run.printed()
        run.until(lambda: not run.alive(), 120)
