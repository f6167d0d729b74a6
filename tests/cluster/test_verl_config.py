"""Wrong settings end a run in the driver, before Ray starts, with the key's name; a plug-in that does not load too."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import verl_toy
from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.config.actor import PolicyLossConfig
from verl_toy import BAND, DUAL, LOSS, OURS, region

import bandpo
from bandpo.integrations import verl as plugin
from bandpo.integrations.verl import BandPOLossConfig


def resolved(*settings):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[*verl_toy.run_settings("folder", "out", 1), *settings])


def actor(*settings):
    return omega_conf_to_dataclass(resolved(*settings).actor_rollout_ref.actor)


@pytest.mark.parametrize(
    ("settings", "rule", "fields"),
    [
        ([], bandpo.Band("kl", 0.05), {}),
        ([BAND], bandpo.Band("kl", 0.05), {}),
        ([DUAL], bandpo.Band("kl", 0.05), {"dual_clip": 3.0}),
        (
            [region(type="objective", trust_region="{type:band,delta:0.1}", dual_clip=10, max_log_ratio=30)],
            bandpo.Band("kl", 0.1),
            {"dual_clip": 10.0, "max_log_ratio": 30.0},
        ),
    ],
)
def test_options_arrive(settings, rule, fields):
    """The average is verl's, as is how far a log-ratio goes."""
    options = actor(*OURS, *settings, f"+{LOSS}.tokens_share=0.2").policy_loss
    expected = bandpo.Objective(rule, **{"aggregation": "none", "max_log_ratio": 20.0} | fields)
    assert (type(options), options.objective, options.tokens_share) == (BandPOLossConfig, expected, 0.2)


def test_an_option_of_ours_has_no_name_of_verls():
    there = resolved().actor_rollout_ref.actor.policy_loss.keys()
    verls = {field.name for field in dataclasses.fields(PolicyLossConfig)}
    ours = {field.name for field in dataclasses.fields(BandPOLossConfig) if field.init} - verls
    assert "trust_region" in ours
    assert not ours & set(there)


@pytest.mark.parametrize(
    "rule",
    [
        bandpo.Capped(bandpo.Band("kl", 0.05), 10.0),
        bandpo.trust_regions.Relaxed(bandpo.Band("tv", 0.1), bandpo.Clip(0.2, 0.28)),
        bandpo.BySign(bandpo.Clip(0.2, 0.28), bandpo.DCPO()),
    ],
)
def test_every_node_is_the_same_as_elsewhere(rule):
    def text(node):
        inner = ",".join(f"{k}:{text(v) if isinstance(v, dict) else v}" for k, v in node.items())
        return f"{{{inner}}}"

    objective = actor(*OURS, f"+{LOSS}.trust_region={text(rule.to_config())}").policy_loss.objective
    assert objective.trust_region == rule


def test_pairs_arrive_as_lists():
    options = actor(*OURS, region(type="objective", surrogate="[clip,{type:preserve,low:0.5,high:1}]")).policy_loss
    assert options.objective.surrogate == ("clip", bandpo.losses.Preserve(0.5, 1.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([region(type="bandd")], r"policy_loss\.trust_region: no trust region type is called 'bandd'"),
        ([region(type="band", detla=0.05)], r"policy_loss\.trust_region.*unknown key 'detla'.*did you mean 'delta'"),
        ([region(type="band", delta=-1)], r"policy_loss\.trust_region.*delta of Band must be a number"),
        ([f"+{LOSS}.anchor=rollout"], r"policy_loss\.anchor must be 'old' or 'sampler', got 'rollout'"),
        ([f"+{LOSS}.trust_region=dis"], r"method 'dis': its ratio .*; set actor\.policy_loss\.anchor=sampler"),
        ([f"+{LOSS}.trust_region=bandkl"], r"policy_loss\.trust_region: no method or rule is called .* 'band-kl'"),
        ([region(type="objective", surrogate="cut")], r"policy_loss\.trust_region: surrogate must be one of"),
        ([region(type="objective", surrogate=3)], r"policy_loss\.trust_region: surrogate must be one of"),
        ([region(type="objective", preserve="[0.5,1]")], r"policy_loss\.trust_region: unknown key 'preserve'"),
        ([region(type="objective", ratio="sequence-mean")], r"policy_loss\.trust_region: trust_region must be made of"),
        ([region(type="objective", dual_clip=1)], r"policy_loss\.trust_region: dual_clip of Objective must be"),
        ([region(type="objective", beta=0.1)], r"trust_region: beta must be 0\.0 through verl.*use_kl_loss"),
        ([region(type="objective", aggregation="token-mean")], "aggregation must be .* through verl.*loss_agg_mode"),
        ([region(type="controlled")], "no trust region type is called 'controlled'"),
        ([region(type="objective", surrogate="[clip,cut]")], "surrogate must be one of"),
        ([f"+{LOSS}.dual_clip=10"], "dual_clip"),
        ([f"+{LOSS}.tokens_share=3"], r"policy_loss\.tokens_share must be a share"),
        ([f"{LOSS}.loss_mode=vanilla"], r"policy_loss\.loss_mode must be 'bandpo'"),
        ([f"+{LOSS}.trust_regoin={{type:band}}"], "trust_regoin"),
    ],
)
def test_a_wrong_setting_is_named_by_the_drivers_own_check(settings, message):
    config = resolved(*OURS, *settings)
    with pytest.raises(Exception, match=f"(?s){message}"):
        validate_config(config, use_reference_policy=False, use_critic=False)


@pytest.mark.parametrize("release", ["0.7.1", "0.8.0"])
def test_what_verls_batches_lacked_before_0_9_is_refused_at_the_start(monkeypatch, release):
    monkeypatch.setattr(plugin, "VERL", release)
    with pytest.raises(Exception, match=f"(?s)tokens_path needs the step, .* from 0.9 on, got verl {release}"):
        actor(*OURS, f"+{LOSS}.tokens_path=tokens")


def test_a_method_of_the_sampler_arrives_where_the_anchor_is_the_sampler():
    options = actor(*OURS, f"+{LOSS}.trust_region=dis", f"+{LOSS}.anchor=sampler").policy_loss
    assert (options.objective.surrogate, options.of_batch) == ("mask_two_sided", {"anchor"})
    assert actor(*OURS, BAND).policy_loss.of_batch == frozenset()


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


REGISTERED = "from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as r; print('bandpo' in r)"


def test_a_fresh_process_knows_the_loss():
    assert python(f"import verl; {REGISTERED}", **verl_toy.BY_HAND) == ["True"]


def test_the_config_alone_makes_it_known():
    """Without verl's plug-ins, as where they fail: `_target_` imports the module."""
    code = (
        f"{REGISTERED}; from hydra.utils import instantiate;"
        "instantiate({'_target_': 'bandpo.integrations.verl.BandPOLossConfig', 'loss_mode': 'bandpo'});" + REGISTERED
    )
    assert python(code, VERL_USE_EXTERNAL_PLUGINS="none") == ["False", "True"]


def main_ppo(tmp_path, *settings, **environment):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *verl_toy.run_settings("folder", tmp_path, 1), *settings]
    return subprocess.run(
        command,
        env=os.environ | verl_toy.ENVIRONMENT | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_a_plug_in_that_does_not_import_ends_the_run_before_ray(tmp_path):
    """verl itself goes on: it logs a failed plug-in at debug level. Hydra tells the cause if asked to."""
    (tmp_path / "bandpo").mkdir()
    (tmp_path / "bandpo" / "__init__.py").write_text("raise ImportError('a broken installation')")
    assert python(f"import verl; {REGISTERED}", PYTHONPATH=str(tmp_path)) == ["False"]
    done = main_ppo(tmp_path, *OURS, BAND, PYTHONPATH=str(tmp_path), HYDRA_FULL_ERROR="1")
    assert done.returncode == 1
    assert "Error locating target 'bandpo.integrations.verl.BandPOLossConfig'" in done.stderr
    assert "a broken installation" in done.stderr
    assert "Ray" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "path", ["agentlightning/agentlightning/verl/config.yaml", "rllm/rllm/trainer/config/agent_ppo_trainer.yaml"]
)
def test_the_three_settings_pass_in_configurations_of_trainers_that_run_verl(path):
    """Checkouts of theirs are in the folder BANDPO_HOSTS. Their own code is not imported."""
    file = Path(os.environ.get("BANDPO_HOSTS", "none"), path).absolute()
    if not file.exists():
        pytest.skip(f"BANDPO_HOSTS names no folder with {path}")
    OmegaConf.register_new_resolver("mul", lambda x, y: int(x) * int(y), replace=True)  # of rLLM's trainer

    def checked(*settings):
        with initialize_config_dir(str(file.parent), version_base=None):
            config = compose(file.stem, overrides=[*verl_toy.run_settings("folder", "out", 1), *settings])
        validate_config(config, use_reference_policy=False, use_critic=False)
        return omega_conf_to_dataclass(config.actor_rollout_ref.actor).policy_loss

    assert type(checked()) is PolicyLossConfig
    assert checked(*OURS, BAND).objective.trust_region == bandpo.Band("kl", 0.05)
    with pytest.raises(Exception, match=r"(?s)no trust region type is called 'bandd'"):
        checked(*OURS, region(type="bandd"))
