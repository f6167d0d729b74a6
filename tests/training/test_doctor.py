"""The doctor: every fault that it knows is found in a planted one, and a good configuration has none."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bandpo.doctor import installed as module
from bandpo_runs.cli import main
from bandpo_runs.training.doctor import examine, installation, plug_in

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
PLANTED = {
    "no _target_": ([*GOOD[:1], *GOOD[2:]], "problem", "not set: the loss is Band KL 0.05, whatever is set"),
    "another loss_mode": ([*GOOD[1:]], "problem", "loss_mode is not set .* the loss is verl's own, and no option"),
    "options of another loss": ([*GOOD[2:]], "problem", "loss_mode is not set and _target_ is not set"),
    "a wrong node": ([*GOOD, f"{LOSS}.trust_region={{type: bond}}"], "problem", "called 'bond', did you mean 'band'"),
    "contradiction": (
        [*GOOD[:2], f"{LOSS}.trust_region={{type: objective, surrogate: weight, dual_clip: 3}}", *GOOD[3:]],
        "problem",
        "trust_region: dual_clip must be None for surrogate = 'weight'",
    ),
    "penalty": (
        [*GOOD[:2], f"{LOSS}.trust_region={{type: objective, beta: 0.1}}", *GOOD[3:]],
        "problem",
        "trust_region: beta must be 0.0 through verl, got 0.1: .*actor.use_kl_loss",
    ),
    "no rule": ([*GOOD[:2], *GOOD[3:]], "note", r"is given here; without one the loss of verl is .*kl.*0\.05"),
    "anchor": ([*GOOD, f"+{LOSS}.anchor=samplr"], "problem", r"anchor must be 'old' or 'sampler', got 'samplr'"),
    "share": ([*GOOD, f"+{LOSS}.tokens_share=3"], "problem", r"tokens_share must be a share .* got 3"),
    "bypass": ([*GOOD, "algorithm.rollout_correction.bypass_mode=true"], "warning", "own loss in place of 'bandpo'"),
    "epsilons": (
        [*GOOD, f"{ACTOR}.clip_ratio_high=0.28"],
        "problem",
        "clip_ratio_high=0.28: not read by the loss bandpo",
    ),
    "dual clip": ([*GOOD, f"{ACTOR}.clip_ratio_c=10"], "problem", "clip_ratio_c=10: not read by the loss bandpo"),
    "on policy": (
        [*GOOD, f"{ACTOR}.ppo_mini_batch_size=128"],
        "problem",
        "the ratio is 1 by design: .*used once, in one",
    ),
    "precision": ([*GOOD[:-1]], "warning", "the actor computes in bf16 by default: .* ratios are wrong by percents"),
    "no verl": (["trainer.lr=1"], "warning", "unknown settings: none is of TRL's GRPOConfig, rLLM, verl, SkyRL, "),
}


def test_half_precision_is_a_problem_where_verl_is_and_a_warning_where_it_may_be_elsewhere(monkeypatch):
    verl = {"verl": "0.9.1"}
    for installed, level in (({}, "warning"), (verl, "problem"), ({**verl, "flash-attn": "2.8"}, "note")):
        versions(monkeypatch, **installed)
        (message,) = (f for f in findings(*GOOD[:-1]) if "the actor computes in" in f.what)
        assert message.level == level
    versions(monkeypatch, **verl)
    assert not of_level(findings(f"{ACTOR}.ppo_mini_batch_size=32"), "problem"), "that loss is verl's own"


def test_verl_07_has_settings_of_its_own(monkeypatch):
    """Its newer workers compute in half precision whatever is set; its older ones cannot show a rule more."""
    newer, older = "trainer.use_legacy_worker_impl=disable", f"{ACTOR}.fsdp_config.dtype=float32"
    more = [*GOOD, f"+{LOSS}.anchor=sampler"]
    versions(monkeypatch, verl="0.8.0")
    assert of_level(findings(*more), "problem", "warning") == []
    versions(monkeypatch, verl="0.7.1")
    assert of_level(findings(*GOOD, older), "problem", "warning") == []
    for settings in (GOOD, [*GOOD, older, newer]):
        (result,) = [f for f in findings(*settings) if f.level == "problem"]
        assert "the actor computes in bf16" in result.what
        assert "fsdp_config.dtype=float32 with the older workers" in result.cure
    (result,) = [f for f in findings(*more, older) if f.level in ("problem", "warning")]
    assert (result.level, result.cure) == ("problem", newer)
    versions(monkeypatch, **{"verl": "0.7.1", "flash-attn": "2.8"})
    assert of_level(findings(*more, newer), "problem") == []


def versions(monkeypatch, **installed):
    def version(name):
        if name not in installed:
            raise module.importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(module.importlib.metadata, "version", version)


def test_a_log_of_a_run_that_broke_is_a_problem(tmp_path, capsys):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1, "reward": 0.5, "loss": 0.1}\n{"step": 2, "reward": 0.5, "loss": null}\n')
    assert main(["doctor", str(log)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"FAIL {log}: numbers are not finite: loss in 1 row, first at step 2" in out
    log.write_text("")
    info = {"label": "a", "seed": 0, "finished": False, "learning_rate": None}
    info["stopped"] = "step 2: weights are not finite"
    (tmp_path / "run.json").write_text(json.dumps(info))
    assert main(["doctor", str(log)]) == 1
    assert "the run was stopped: step 2: weights are not finite" in " ".join(capsys.readouterr().out.split())
    state = tmp_path / "trainer_state.json"
    state.write_text('{"log_history": [{"step": 7, "loss": 0.0, "grad_norm": NaN}]}')
    assert main(["doctor", str(state)]) == 1
    verl = tmp_path / "verl.jsonl"
    verl.write_text('{"step": 3, "data": {"actor/pg_loss": NaN, "actor/bandpo/not_finite/count": 2.0}}\n')
    assert main(["doctor", str(verl)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"{state}: numbers are not finite: grad_norm in 1 row, first at step 7" in out
    assert "actor/pg_loss in 1 row, first at step 3; tokens in 1 row, first at step 3" in out


def test_untested_and_unsupported_versions_are_told_apart(monkeypatch):
    versions(monkeypatch, torch="2.13.0+cpu", trl="1.9.2", verl="0.10.0")
    result = list(installation())
    assert of_level(result, "problem") == ["verl 0.10.0, bandpo needs 0.7.x to 0.9.x"]
    assert any("EasyR1's own package verl: docs/hosts.md" in each.cure for each in result)
    assert "trl 1.9.2 (tested with 1.16.0, 0.24.0)" in of_level(result, "ok")
    versions(monkeypatch, torch="2.13.0+cpu", trl="0.23.1", verl="0.9.4")
    result = list(installation())
    assert of_level(result, "problem") == ["trl 0.23.1, bandpo needs 0.24.x to 1.16.x"]
    lines = of_level(result, "ok")
    assert "torch 2.13.0+cpu" in lines
    assert "verl 0.9.4 (tested with 0.9.1, 0.9.0, 0.8.0, 0.7.1)" in lines


def test_the_doctor_runs_in_the_base_installation(tmp_path):
    (tmp_path / "train.py").write_text("from trl import GRPOConfig\nargs = GRPOConfig(steps_per_generation=4)\n")
    (tmp_path / "log.jsonl").write_text('{"step": 1, "clip/fraction": 0.02}\n')
    extras = ("scipy", "matplotlib", "jinja2", "transformers", "trl", "numba", "pyarrow", "datasets")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({extras})); from bandpo_runs.cli import main; sys.exit(main())"
    )
    for arguments, wanted in {
        ("--no-ray",): "torch", ("train.py",): "each answer is used once", ("log.jsonl",): "% of tokens",
        ("num_iterations=2",): "each answer is used twice",
    }.items():  # fmt: skip
        command = [sys.executable, "-c", code, "doctor", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert wanted in done.stdout


def gpus(monkeypatch, count, cuda="13.0"):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H200")


def test_what_verl_lacks_on_a_machine_with_gpus_is_told(monkeypatch):
    gpus(monkeypatch, 8)
    versions(monkeypatch, torch="2.11.0+cu130", transformers="5.9.0", verl="0.9.1", ray="2.60.0")
    result = list(installation())
    assert [what.partition(" ")[0] for what in of_level(result, "warning")] == ["vllm", "TransferQueue", "flash-attn"]
    assert "torch 2.11.0+cu130 (verl's version for GPUs; not run by us)" in of_level(result, "ok")
    assert of_level(result, "ok")[-1] == "8 x NVIDIA H200, CUDA 13.0"
    more = {"vllm": "0.24.0", "flash-attn": "2.8.3", "TransferQueue": "0.1.11"}
    versions(monkeypatch, torch="2.11.0+cu130", transformers="5.9.0", verl="0.9.1", ray="2.60.0", trl="0.27.0", **more)
    assert {finding.level for finding in installation()} == {"ok"}
    versions(monkeypatch, verl="0.8.0", ray="2.60.0")  # whose trainer keeps its batches itself
    assert "TransferQueue" not in " ".join(of_level(installation(), "warning"))


def test_gpus_that_are_not_seen_are_told(monkeypatch):
    gpus(monkeypatch, 0)
    versions(monkeypatch, verl="0.9.1")
    assert of_level(installation(), "warning")[-1].startswith("no GPU is seen by torch ")
    gpus(monkeypatch, 0, cuda=None)
    assert of_level(installation(), "warning")[-1].endswith(" is a build for CPUs")
    versions(monkeypatch)  # TRL trains on a CPU
    assert of_level(installation(), "note")[-1].endswith(" is a build for CPUs")

    def broken():
        raise RuntimeError("driver")

    monkeypatch.setattr(torch.cuda, "device_count", broken)
    assert of_level(installation(), "problem") == ["torch cannot be used: RuntimeError: driver"]


def test_the_versions_for_gpus_are_those_of_the_list():
    pins = (Path(__file__).parents[2] / "constraints/gpu.txt").read_text(encoding="utf-8").replace("_", "-")
    missing = [name for name, number in module.FOR_GPUS.items() if not re.search(f"{name}(==|-){number}\\b", pins)]
    assert missing == []


@pytest.mark.parametrize(
    ("out", "err", "level", "what"),
    [
        ("loss known\n", "", "ok", "verl knows the policy loss 'bandpo' in a fresh process"),
        ("loss unknown\n", "", "problem", "verl loaded no plug-in of that name"),
        ("", "Traceback ...\nImportError: boom\n", "problem", "in a fresh process: ImportError: boom"),
    ],
)
def test_a_plug_in_that_did_not_load_is_told(monkeypatch, out, err, level, what):
    versions(monkeypatch, verl="0.9.1", ray="2.60.0")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=out, stderr=err))
    (result, _) = plug_in()
    assert result.level == level
    assert what in result.what
    assert ("VERL_USE_EXTERNAL_PLUGINS" in result.cure) == ("unknown" in out)


def test_before_plug_ins_the_loss_is_imported_as_target_does(monkeypatch):
    scripts = []
    versions(monkeypatch, verl="0.8.0", ray="2.60.0")
    monkeypatch.setattr(
        module.subprocess,
        "run",
        lambda command, **_: scripts.append(command[-1]) or SimpleNamespace(stdout="loss known"),
    )
    (note, *result) = plug_in()
    assert note.what.startswith("verl 0.8.0 loads no plug-ins: the setting _target_ makes the loss known")
    assert [f.level for f in result] == ["ok", "ok"]
    assert all("import bandpo.integrations.verl\n" in script for script in scripts)


def test_the_command(capsys, tmp_path):
    assert main(["doctor", *GOOD]) == 0
    assert main(["doctor", *PLANTED["on policy"][0]]) == 1
    out = capsys.readouterr().out
    assert "FAIL  the ratio is 1 by design" in out
    assert "      -> a smaller ppo_mini_batch_size, or more ppo_epochs" in out
    assert main(["doctor", *GOOD, "--json"]) == 0
    assert [row["level"] for row in json.loads(capsys.readouterr().out)] == ["ok", "note", "ok"]
    assert main(["doctor", *PLANTED["on policy"][0], "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result == [vars(finding) for finding in findings(*PLANTED["on policy"][0])]
    log = tmp_path / "log.jsonl"
    log.write_text("no json", encoding="utf-8")
    assert main(["doctor", str(log)]) == 2
    assert "must be a log of a training, such as JSON lines" in capsys.readouterr().err


def test_a_binary_file_is_named_as_one(capsys, tmp_path):
    weights, settings = tmp_path / "model.safetensors", tmp_path / "grpo.yaml"
    weights.write_bytes(b"\xc0\6\0\0\0\0\0\0{}")
    assert main(["doctor", str(weights)]) == 2
    assert f"error: {weights} is a binary file; expected settings (.yaml, " in capsys.readouterr().err
    settings.write_text("num_iterations: 2\n", encoding="utf-16")  # as PowerShell's > writes
    assert main(["doctor", str(settings)]) == 0
    assert "each answer is used twice" in capsys.readouterr().out


def test_a_process_that_is_asked_imports_nothing_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_a_stranger.py").write_text("print('loss known')\n")
    (finding,) = module._ask("a fresh process", "import of_a_stranger")
    assert finding.level == "problem"
    assert "No module named 'of_a_stranger'" in finding.what
