"""The doctor: every fault that it knows is found in a planted one, and a good configuration has none."""

import importlib.metadata
import json
import subprocess
import sys

import pytest
import torch
from commands import missing
from disk import write

from bandpo_runs.doctor.examine import examine, installation

LOSS = "actor_rollout_ref.actor.policy_loss"
GOOD = [
    f"{LOSS}.loss_mode=bandpo",
    f"{LOSS}._target_=bandpo.integrations.verl.BandPOLossConfig",
    f"+{LOSS}.trust_region={{type: band, divergence: kl, delta: 0.05}}",
    "data.train_batch_size=128",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
]


def findings(*arguments):
    return list(examine(arguments))


def of_level(result, *levels):
    return [f.what for f in result if f.level in levels]


ACTOR = "actor_rollout_ref.actor"
NEWER, OLDER = "trainer.use_legacy_worker_impl=disable", f"{ACTOR}.fsdp_config.dtype=float32"
MORE = [*GOOD, f"+{LOSS}.anchor=sampler"]


@pytest.mark.parametrize(
    ("installed", "level"),
    [({}, "warning"), ({"verl": "0.9.1"}, "problem"), ({"verl": "0.9.1", "flash-attn": "2.8"}, "note")],
)
def test_half_precision_is_a_problem_where_verl_is_and_a_warning_where_it_may_be_elsewhere(
    monkeypatch, installed, level
):
    versions(monkeypatch, **installed)
    assert [f.level for f in findings(*GOOD[:-1]) if "the actor computes in" in f.what] == [level]
    assert not of_level(findings(f"{ACTOR}.ppo_mini_batch_size=32"), "problem"), "that loss is verl's own"


@pytest.mark.parametrize(
    ("verl", "settings", "levels"),
    [
        ({"verl": "0.8.0"}, MORE, []),
        ({"verl": "0.7.1"}, [*GOOD, OLDER], []),
        ({"verl": "0.7.1"}, GOOD, ["problem"]),
        ({"verl": "0.7.1"}, [*GOOD, OLDER, NEWER], ["problem"]),
        ({"verl": "0.7.1"}, [*MORE, OLDER], ["problem"]),
        ({"verl": "0.7.1", "flash-attn": "2.8"}, [*MORE, NEWER], []),
    ],
)
def test_verl_07_has_settings_of_its_own(monkeypatch, verl, settings, levels):
    """Its newer workers compute in half precision whatever is set; its older ones cannot show a rule more."""
    versions(monkeypatch, **verl)
    result = [f for f in findings(*settings) if f.level in ("problem", "warning")]
    assert [f.level for f in result] == levels
    for each in result:
        if "anchor" in settings[-2]:
            assert each.cure == NEWER
        elif each.level == "problem":
            assert not missing(
                each.what + each.cure, "the actor computes in bf16", "dtype=float32 with the older worker"
            )


def versions(monkeypatch, **installed):
    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


BROKEN = {
    "metrics.jsonl": (
        '{"step": 1, "reward": 0.5, "loss": 0.1}\n{"step": 2, "reward": 0.5, "loss": null}\n',
        "FAIL the run was stopped: step 2: weights are not finite FAIL metrics.jsonl: numbers are not finite: loss "
        "in 1 row, first at step 2",
    ),
    "trainer_state.json": (
        '{"log_history": [{"step": 7, "loss": 0.0, "grad_norm": NaN}]}',
        "trainer_state.json: numbers are not finite: grad_norm in 1 row, first at step 7",
    ),
    "verl.jsonl": (
        '{"step": 3, "data": {"actor/pg_loss": NaN, "actor/bandpo/not_finite/count": 2.0}}\n',
        "actor/pg_loss in 1 row, first at step 3; tokens in 1 row, first at step 3",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_log_of_a_run_that_broke_is_a_problem(here, cli, name):
    content, wording = BROKEN[name]
    info = {"label": "a", "seed": 0, "finished": False, "learning_rate": None}
    write("run.json", {**info, "stopped": "step 2: weights are not finite"})
    write(name, content)
    assert wording in " ".join(cli.out("doctor", name, code=1).split())


def test_a_run_that_was_stopped_is_a_problem(here, cli):
    write("metrics.jsonl", "")
    info = {"label": "a", "seed": 0, "finished": False, "learning_rate": None}
    write("run.json", {**info, "stopped": "step 2: weights are not finite"})
    out = " ".join(cli.out("doctor", "metrics.jsonl", code=1).split())
    assert "the run was stopped: step 2: weights are not finite" in out


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [("", "torch"), ("train.py", "1 epoch over each batch"), ("log.jsonl", "% of tokens"),
     ("num_iterations=2", "2 epochs over each batch")],
)  # fmt: skip
def test_the_doctor_runs_in_the_base_installation(here, argument, wanted):
    write("train.py", "from trl import GRPOConfig\nargs = GRPOConfig(steps_per_generation=4)\n")
    write("log.jsonl", '{"step": 1, "clip/fraction": 0.02}\n')
    extras = ("scipy", "matplotlib", "jinja2", "transformers", "trl", "numba", "pyarrow", "datasets")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras})); "
    code += "from bandpo_runs.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "doctor", *argument.split()], capture_output=True, text=True)
    assert (done.returncode, done.stderr, wanted in done.stdout) == (0, "", True)


def gpus(monkeypatch, count, cuda="13.0"):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H200")


OURS = {"torch": "2.11.0+cu130", "transformers": "5.9.0", "verl": "0.9.1", "ray": "2.60.0"}
ALL = {**OURS, "trl": "0.27.0", "vllm": "0.24.0", "flash-attn": "2.8.3", "TransferQueue": "0.1.11"}


@pytest.mark.parametrize(
    ("installed", "count", "cuda", "level", "told"),
    [
        ({"torch": "2.13.0+cpu", "verl": "0.10.0"}, 8, "13.0", "problem",
         ["verl 0.10.0: bandpo needs 0.7.x to 0.9.x", "EasyR1's own package verl see docs/hosts.md"]),
        ({"torch": "2.13.0+cpu", "trl": "0.23.1"}, 8, "13.0", "problem", ["trl 0.23.1: bandpo needs 0.24.x to 1.16.x"]),
        ({"torch": "2.13.0+cpu", "trl": "1.9.2", "verl": "0.9.4"}, 8, "13.0", "ok",
         ["trl 1.9.2 (tested with 1.16.0, 0.24.0)", "verl 0.9.4 (tested with 0.9.1, 0.9.0, 0.8.0, 0.7.1)"]),
        (OURS, 8, "13.0", "warning", ["vllm is not", "TransferQueue is not", "flash-attn is not"]),
        (OURS, 8, "13.0", "ok", ["torch 2.11.0+cu130 (tested with 2.13.0)", "8 x NVIDIA H200"]),
        (ALL, 8, "13.0", "warning", []),
        (ALL, 8, "13.0", "problem", []),
        ({"verl": "0.9.1"}, 0, "13.0", "warning", ["no GPU is seen by torch "]),
        ({"verl": "0.9.1"}, 0, None, "warning", [" is a build for CPUs"]),
        ({}, 0, None, "note", [" is a build for CPUs", "verl is not installed (tested with 0.9.1, "]),  # TRL trains
    ],
)  # fmt: skip
def test_what_is_installed_is_told_with_what_is_lacking_or_untested(monkeypatch, installed, count, cuda, level, told):
    gpus(monkeypatch, count, cuda)
    versions(monkeypatch, **installed)
    texts = [f"{each.what} {each.cure}" for each in installation() if each.level == level]
    assert (missing("\n".join(texts), *told), bool(texts)) == ([], bool(told))


def test_verl_08_keeps_its_batches_itself_and_a_broken_driver_is_told(monkeypatch):
    versions(monkeypatch, verl="0.8.0", ray="2.60.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1 // 0)
    assert "TransferQueue" not in " ".join(of_level(installation(), "warning"))
    assert of_level(installation(), "problem")[0].startswith("torch cannot be used: ZeroDivisionError: ")


def test_the_command(cli, tmp_path):
    on_policy = [*GOOD, f"{ACTOR}.ppo_mini_batch_size=128"]
    cli.out("doctor", *GOOD)
    out = cli.out("doctor", *on_policy, code=1)
    assert not missing(
        out, "FAIL  clipping has no effect: every ratio is 1", "      -> a smaller ppo_mini_batch_size, or more ppo_ep"
    )
    assert [row["level"] for row in cli.json("doctor", *GOOD, "--json")] == ["ok", "note", "ok"]
    result = json.loads(cli.out("doctor", *on_policy, "--json", code=1))
    assert result == [vars(finding) for finding in findings(*on_policy)]
    log = write(tmp_path / "log.jsonl", "no json")
    assert "must be a log of a training, such as JSON lines" in cli.error("doctor", log)


def test_a_binary_file_is_named_as_one(cli, tmp_path):
    weights = write(tmp_path / "model.safetensors", b"\xc0\6\0\0\0\0\0\0{}")
    assert f"error: {weights} is not YAML" in cli.error("doctor", weights)
    settings = write(tmp_path / "grpo.yaml", "num_iterations: 2\n".encode("utf-16"))  # as PowerShell's > writes
    assert "2 epochs over each batch" in cli.out("doctor", settings)
