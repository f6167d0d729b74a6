"""The loss `bandpo` against verl's own losses, on the same tensors, called as verl calls them."""

import contextlib
import dataclasses
import math
import re
import sys
from functools import partial
from types import SimpleNamespace
from typing import ClassVar, get_args

import made
import own_loop
import pytest
import torch
from disk import json_rows
from made import BANDS, DECADES, around, assert_near
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.trainer.ppo.core_algos import kl_penalty as verl_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_rejection_mask
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, PolicyLossConfig
from verl_toy import IS_OLD, MODES, AsRLLM

import bandpo
from bandpo.integrations import _SAID
from bandpo.integrations import verl as plugin
from bandpo.integrations.verl import BandPOLossConfig
from bandpo.losses.aggregation import Aggregation

GLOBAL = {"dp_size": 2, "batch_num_tokens": 1000, "global_batch_size": 24, "loss_scale_factor": None}


def actor(policy_loss, global_batch_info=None, **settings):
    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_loss, **settings
    )
    config.global_batch_info.update(global_batch_info or {})
    return config


def bandpo_actor(region, global_batch_info=None, *, dual_clip=None, surrogate="clip", **options):
    node = bandpo.Objective(region, dual_clip=dual_clip, surrogate=surrogate).to_config()
    return actor(BandPOLossConfig(loss_mode="bandpo", trust_region=node, **options), global_batch_info)


def batch(log_ratios, advantages, dtype=torch.float32):
    return named(made.batch(DECADES, log_ratios, advantages, dtype))


def named(tensors):
    """By verl's names, with garbage in the padding of the advantages too."""
    logps, old, advantages, mask = tensors
    advantages = torch.where(mask, advantages, 4 * advantages)
    return {"old_log_prob": old, "log_prob": logps, "advantages": advantages, "response_mask": mask}


def run(name, config, tensors, mode="token-mean", weights=None):
    logps = tensors["log_prob"].clone().requires_grad_()
    loss, metrics = POLICY_LOSS_REGISTRY[name](
        **{**tensors, "log_prob": logps}, loss_agg_mode=mode, config=config, rollout_is_weights=weights
    )
    (gradient,) = torch.autograd.grad(loss, logps)
    return loss.detach(), gradient, metrics


OURS = {"logps": "log_prob", "old_logps": "old_log_prob", "advantages": "advantages", "mask": "response_mask"}
RATIOS = [-25.0, -3.0, -0.5, -0.2, -0.1, 0.0, 0.1, 0.2, 0.25, 0.4, 1.2, 3.0, 25.0]
EXACT = [2.0, 1.0, 0.0, -0.5, -4.0]  # powers of two: no product with them is rounded


@pytest.mark.parametrize("info", [{}, GLOBAL], ids=["one-micro-batch", "global"])
@pytest.mark.parametrize("dual_clip", [3.0, 10.0])
@pytest.mark.parametrize("mode", MODES)
def test_clip_is_vanilla_bit_for_bit(mode, dual_clip, info):
    """Value, gradient and verl's three metrics, where products with the advantages are exact."""
    tensors = batch(RATIOS, EXACT)
    vanilla = actor(PolicyLossConfig(), info, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=dual_clip)
    ours = bandpo_actor(bandpo.Clip(0.2, 0.28), info, dual_clip=dual_clip)
    loss, gradient, metrics = run("vanilla", vanilla, tensors, mode)
    our_loss, our_gradient, our_metrics = run("bandpo", ours, tensors, mode)
    assert all(map(torch.equal, (our_loss, our_gradient), (loss, gradient)))
    assert gradient.count_nonzero() > 100
    assert {k: our_metrics[k] for k in metrics} == pytest.approx(metrics, rel=1e-6)
    assert all(metrics.values())


def sapo(positive, negative):
    ours = bandpo_actor(bandpo.Clip(1.0, math.inf), GLOBAL, surrogate=bandpo.losses.Sapo(positive, negative))
    return actor(PolicyLossConfig(), GLOBAL, tau_pos=positive, tau_neg=negative), ours


VANILLA = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 10.0}
METHOD = {"type": "method", "name": "gpg"}
# verl's loss: its configuration and ours; and how near its gradient and value are. In float64: far out verl's 1 -
# sigmoid rounds to 0 sooner than what it stands for.
THEIRS = {
    "vanilla": (
        lambda: (actor(PolicyLossConfig(), GLOBAL, **VANILLA),
                 bandpo_actor(bandpo.Clip(0.2, 0.28), GLOBAL, dual_clip=10.0)),
        MODES, torch.float32, (4e-7, 0), 1e-5,
    ),
    "gpg": (
        lambda: (actor(PolicyLossConfig(), GLOBAL),
                 actor(BandPOLossConfig(loss_mode="bandpo", trust_region=METHOD), GLOBAL)),
        MODES, torch.float64, (1e-12, 0), 1e-12,
    ),
    "sapo": (lambda: sapo(1.0, 1.05), ["seq-mean-token-mean"], torch.float64, (1e-6, 1e-15), 1e-12),
    "sapo by other temperatures": (
        lambda: sapo(0.5, 3.0), ["seq-mean-token-mean"], torch.float64, (1e-6, 1e-15), 1e-12
    ),
}  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, case in THEIRS.items() for mode in case[1]])
def test_clip_gpg_and_sapo_are_verls_to_rounding_for_any_advantage(name, mode, weighted):
    configs, _, dtype, (rtol, atol), rtol_of_loss = THEIRS[name]
    tensors = batch(RATIOS, [1.7, 1.0, 0.0, 0.3, -0.3, -1.1], dtype)
    weights = torch.rand(tensors["log_prob"].shape, generator=torch.Generator().manual_seed(1)) * 2
    theirs, ours = configs()
    loss, gradient, _ = run(name.split()[0], theirs, tensors, mode, weights if weighted else None)
    our_loss, our_gradient, _ = run("bandpo", ours, tensors, mode, weights if weighted else None)
    torch.testing.assert_close(our_gradient, gradient, rtol=rtol, atol=atol)
    torch.testing.assert_close(our_loss, loss, rtol=rtol_of_loss, atol=0)
    assert gradient.count_nonzero() > 100


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("delta", [0.05, 0.3])
@pytest.mark.parametrize("name", ["kl", "tv"])
def test_band_has_the_gradient_of_dppo(name, delta, mode):
    """DPPO writes r A as sg(r) A log pi: same gradient, another value. Tokens lie 1 % inside and outside of the bounds;
    in float64, because DPPO decides by 1 - p."""
    tensors = named(around(bandpo.Band(name, delta)))
    # A cap above every ratio here: verl's losses truncate r on both sides of A, also where it is far inside.
    theirs = actor(PolicyLossConfig(), GLOBAL, clip_ratio_low=delta, clip_ratio_high=delta, clip_ratio_c=1e9)
    _, gradient, metrics = run(f"dppo_{name}", theirs, tensors, mode)
    for surrogate in ("clip", "mask"):
        ours = bandpo_actor(bandpo.Band(name, delta), GLOBAL, surrogate=surrogate)
        _, our_gradient, our_metrics = run("bandpo", ours, tensors, mode)
        assert torch.equal(our_gradient != 0, gradient != 0)
        torch.testing.assert_close(our_gradient, gradient, rtol=1e-12, atol=0)
        assert our_metrics["actor/pg_clipfrac"] == pytest.approx(metrics["actor/pg_clipfrac"], rel=1e-6)
    assert 0 < metrics["actor/pg_clipfrac"] < 1


@pytest.mark.parametrize("info", [{}, GLOBAL], ids=["one-micro-batch", "global"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode in get_args(Aggregation)])
@pytest.mark.parametrize("region", [*BANDS, bandpo.Capped(bandpo.Band("kl", 0.05), 2.0)])
def test_band_is_policy_loss(region, mode, dtype, info):
    logps, *rest = tensors = around(region, dtype=dtype)
    normalizer = {"token-mean": 1000 / 2, "seq-mean-token-sum-norm": 24 * logps.shape[1] / 2}.get(mode, 24 / 2)
    rest += [bandpo.Objective(region, aggregation=mode, max_log_ratio=20.0)]
    normalizer = normalizer if info else None
    wanted = made.gradient(lambda x: bandpo.policy_loss(x, *rest, normalizer=normalizer)[0], logps)
    assert_near(run("bandpo", bandpo_actor(region, info), named(tensors), mode)[:2], wanted, dtype)


def in_a_loop(tensors, objective, **more):
    """Value and gradient of `policy_loss` without a trainer, by the mean over tokens."""
    logps, *rest = (tensors[name] for name in OURS.values())
    rest += [dataclasses.replace(objective, aggregation="token-mean")]
    return made.gradient(lambda x: bandpo.policy_loss(x, *rest, **more)[0], logps)


def test_dro_is_gpg_with_a_penalty_to_the_old_policy():
    tensors = batch(RATIOS, [1.7, 0.3, -0.3, -1.1], torch.float64)
    loss, gradient, _ = run("dro", actor(PolicyLossConfig(dro_beta=0.3)), tensors)
    objective = dataclasses.replace(bandpo.losses.method("gpg").objective, beta=0.3, kl_penalty="k2")
    our_loss, our_gradient = in_a_loop(tensors, objective, ref_logps=tensors["old_log_prob"])
    torch.testing.assert_close((our_loss, our_gradient), (loss, gradient), rtol=1e-12, atol=1e-15)


def test_clip_cov_is_a_clip_with_weights_of_0():
    """All tokens of that covariance are dropped, so that nothing is left to chance."""
    tensors = batch([-0.5, -0.1, 0.1, 0.5], [1.7, 0.3, -0.3, -1.1], torch.float64)
    cov = PolicyLossConfig(clip_cov_ratio=1.0, clip_cov_lb=1.0, clip_cov_ub=5.0)
    _, gradient, metrics = run("clip_cov", actor(cov, clip_ratio_low=0.2, clip_ratio_high=0.2), tensors)
    mask, (a, log_pi) = tensors["response_mask"], (tensors[name] for name in ("advantages", "log_prob"))
    covariance = (a - a[mask].mean()) * (log_pi - log_pi[mask].mean())
    kept = 1.0 - ((covariance > 1) & (covariance < 5)).double()
    _, our_gradient = in_a_loop(tensors, bandpo.Objective(bandpo.Clip(0.2, 0.2)), rollout_is_weights=kept)
    torch.testing.assert_close(our_gradient, gradient, rtol=1e-12, atol=1e-15)
    assert 0.05 < metrics["actor/pg_clipfrac"] < 0.5


@pytest.mark.parametrize("share", [0.0002, 0.1])
def test_the_lines_for_kl_cov_have_its_loss(share):
    tensors = batch(RATIOS[2:-2], [1.7, 0.3, -0.3, -1.1], torch.float64)
    tensors["log_prob"] = tensors["log_prob"] - torch.rand(tensors["log_prob"].shape) / 1000  # no two are equal
    loss, gradient, _ = run("kl_cov", actor(PolicyLossConfig(kl_cov_ratio=share, ppo_kl_coef=1.0)), tensors)
    data = {new: tensors[old] for new, old in OURS.items()} | {"advantages": tensors["advantages"][:, 0]}
    our_loss, our_gradient = own_loop.run(own_loop.PAPERS.kl_cov, data, share=share)
    torch.testing.assert_close((our_loss, our_gradient), (loss, gradient), rtol=1e-12, atol=1e-15)


def test_the_lines_for_trm_keep_the_responses_that_rollout_rs_keeps():
    tensors = batch([-0.5, -0.32, -0.1, 0.0, 0.1, 0.32, 0.5], [1.7, -1.1], torch.float64)  # k3 of +-0.32: 0.057, 0.046
    data = {new: tensors[old] for new, old in OURS.items()} | {"rollout_logps": tensors["old_log_prob"]}
    kept = own_loop.of_batch(own_loop.PAPERS.trm, data)
    log_ratio = tensors["log_prob"] - tensors["old_log_prob"]
    mask, _ = compute_rollout_rejection_mask(log_ratio, tensors["response_mask"], "seq_max_k3", "0.05")
    assert torch.equal(tensors["response_mask"] & kept[:, None], mask.bool())
    assert 0.2 < kept.double().mean() < 0.8


@pytest.mark.parametrize(("kind", "name"), [("k1", "kl"), ("k2", "mse"), ("abs", "abs"), ("k3", "low_var_kl")])
def test_kl_penalties_are_verls(kind, name):
    """Value and gradient; of k3 where its value is below 10, at which verl cuts it."""
    span = 1.2 if kind == "k3" else 60
    logps = torch.linspace(-span, -1e-3, 301, dtype=torch.float64, requires_grad=True)
    ref_logps = torch.linspace(-1e-3, -span, 301, dtype=torch.float64)
    values = bandpo.losses.kl_penalty(logps, ref_logps, kind), verl_kl_penalty(logps, ref_logps, name)
    ours, theirs = ((x, torch.autograd.grad(x.sum(), logps)[0]) for x in values)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


def test_the_host_averages_over_micro_batches_and_ranks():
    """Four ranks of two uneven micro-batches each: the mean over ranks of their sums is the loss of the whole batch."""
    tensors = batch([-0.5, 0.1, 0.4], EXACT)
    info = {
        "dp_size": 4,
        "batch_num_tokens": int(tensors["response_mask"].sum()),
        "global_batch_size": int(tensors["response_mask"].any(-1).sum()),
        "loss_scale_factor": 7,
    }
    region = bandpo.Band("kl", 0.05)
    parts = torch.arange(len(tensors["log_prob"])).tensor_split(8)
    for mode in MODES:
        whole, gradient, _ = run("bandpo", bandpo_actor(region, {**info, "dp_size": 1}), tensors, mode)
        losses, gradients = [], torch.zeros_like(gradient)
        for part in parts:
            some = {name: x[part] for name, x in tensors.items()}
            loss, gradients[part], _ = run("bandpo", bandpo_actor(region, info), some, mode)
            losses.append(loss)
        torch.testing.assert_close(torch.stack(losses).sum() / 4, whole, rtol=1e-5, atol=0)
        torch.testing.assert_close(gradients / 4, gradient, rtol=1e-6, atol=0)


# Of `Metrics.compute`, the share, and the two counts that are logged.
SHARES = {
    "clip/high_fraction": ("clip/high_count", "tokens"),
    "clip/low_fraction": ("clip/low_count", "tokens"),
    "clip/fraction": ("clip/count", "tokens"),
    "cut/high_fraction": ("cut/high_count", "tokens"),
    "cut/low_fraction": ("cut/low_count", "tokens"),
    "kl_old/k1": ("kl_old/k1_nats", "tokens"),
    "kl_old/k3": ("kl_old/k3_nats", "tokens"),
    "clip/tail_high_share": ("clip/tail_high_count", "clip/count"),
    "cut/good_tail": ("cut/good_tail_count", "clip/good_tail_tokens"),
}


def test_counts_are_those_of_the_metrics():
    tensors, region = batch(RATIOS, EXACT), bandpo.Capped(bandpo.Band("kl", 0.05), 2.0)
    _, _, logged = run("bandpo", bandpo_actor(region, dual_clip=3.0), tensors)
    objective = bandpo.Objective(region, dual_clip=3.0, max_log_ratio=20.0)
    expected = bandpo.policy_loss(*(tensors[name] for name in OURS.values()), objective, metrics="all")[1].compute()
    ours = {name.removeprefix("actor/bandpo/"): x for name, x in logged.items()}
    values = {share: ours[count] / ours[of] for share, (count, of) in SHARES.items()}
    values |= {name: ours[name] for name in ("tokens", "clip/count", "clip/tail_high_count", "clip/good_tail_tokens")}
    values["dual_clip/fraction"] = logged["actor/pg_clipfrac_lower"]
    assert values == pytest.approx({name: expected[name] for name in values}, rel=1e-12)
    assert min(values.values()) > 0


def test_tokens_that_are_not_finite_are_counted_and_no_name_is_reduced_by_its_spelling():
    """verl takes max, min or sum of what has these letters in its name."""
    tensors, counts = batch([0.0, 0.1], [1.0, -1.0]), []
    for bad in (tensors["log_prob"][0, 0].item(), math.nan):
        tensors["log_prob"][0, 0] = bad
        _, _, logged = run("bandpo", bandpo_actor(bandpo.Band()), tensors)
        counts.append(logged["actor/bandpo/not_finite/count"])
        assert len(logged) > 15
        assert all(name.startswith("actor/") and type(value) is float for name, value in logged.items())
        assert not [name for name in logged for word in ("max", "min", "sum", "total") if word in name]
    assert counts == [0, 1]


def test_an_empty_micro_batch_gives_zeros():
    tensors = batch([0.1], [1.0, -1.0])
    tensors["response_mask"] = torch.zeros_like(tensors["response_mask"])
    loss, gradient, logged = run("bandpo", bandpo_actor(bandpo.Band(), GLOBAL), tensors)
    assert (loss, gradient.any(), set(logged.values())) == (0, False, {0.0})


@pytest.mark.parametrize(
    ("version", "cure"),
    [("0.9.1", r"mixed_precision\.param_dtype=fp32"), ("0.7.1", r"fsdp_config\.dtype=float32 with the older workers")],
)
def test_half_precision_warns_once_with_what_helps_in_this_release_and_is_a_metric(monkeypatch, version, cure):
    _SAID.clear()
    monkeypatch.setattr(plugin, "VERL", version)
    tensors = batch([0.1], [1.0, -1.0])
    half = {**tensors, "log_prob": tensors["log_prob"].bfloat16()}
    with pytest.warns(UserWarning, match=f"reach the loss as torch.bfloat16.*{cure}") as warned:
        runs = [run("bandpo", bandpo_actor(bandpo.Band()), each) for each in (half, half, half, tensors)]
    told = [(logged["actor/bandpo/half_precision"], gradient.dtype) for _, gradient, logged in runs]
    assert (len(warned), told) == (1, [*[(1, torch.bfloat16)] * 3, (0, torch.float32)])


def test_without_options_the_rule_is_the_papers():
    tensors = batch(RATIOS, EXACT)
    plain = run("bandpo", actor(PolicyLossConfig(loss_mode="bandpo"), GLOBAL), tensors)
    expected = run("bandpo", bandpo_actor(bandpo.Band("kl", 0.05), GLOBAL), tensors)
    assert all(map(torch.equal, plain[:2], expected[:2]))


# ---- what is of the batch, by the wrapped update; what comes of it is in test_verl_worker.py


@pytest.fixture
def worker(monkeypatch):
    """verl's worker in a group of one process, where ours is looked for; `seen` has the losses of its updates."""
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 1)
    monkeypatch.setattr(torch.distributed, "all_gather_object", lambda out, mine, group: out.__setitem__(0, mine))

    class Worker:
        engine = SimpleNamespace(get_data_parallel_group=lambda: None, is_mp_src_rank_with_outputs=lambda: True)
        seen: ClassVar[list] = []

        def __init__(self, loss_fn):
            self.loss_fn = loss_fn

        def train_mini_batch(self, data):
            self.seen.append(self.loss_fn)
            return self.loss_fn(model_output={}, data=data)

    monkeypatch.setitem(sys.modules, "verl.workers.engine_workers", SimpleNamespace(TrainingWorker=Worker))
    return Worker


def test_workers_that_cannot_be_patched_are_refused(monkeypatch):
    """As verl 0.7 loads them before it checks the configuration."""
    monkeypatch.delitem(sys.modules, "verl.workers.engine_workers", raising=False)
    asking = {"loss_mode": "bandpo", "anchor": "sampler"}
    assert BandPOLossConfig(**asking).of_batch  # in a driver that has loaded no workers
    monkeypatch.setitem(sys.modules, "verl.workers.fsdp_workers", SimpleNamespace())
    with pytest.raises(ValueError, match=r"'anchor'\] of the batch is needed.*set trainer\.use_legacy_worker_impl"):
        BandPOLossConfig(**asking)
    assert not BandPOLossConfig(loss_mode="bandpo").of_batch


@pytest.mark.skipif(IS_OLD, reason="verl's batches have the step from 0.9 on")
def test_an_update_is_patched_where_the_batch_is_needed_and_is_as_before_afterwards(worker, tmp_path):
    inner, batches = worker.train_mini_batch, []
    plain = bandpo_actor(bandpo.Band())
    assert worker.train_mini_batch is inner  # nothing is needed
    asking = bandpo_actor(bandpo.Band(), tokens_path=str(tmp_path))
    wrapped = worker.train_mini_batch
    bandpo_actor(bandpo.Band(), tokens_path=str(tmp_path))
    assert worker.train_mini_batch is wrapped is not inner  # once
    data = TensorDict({}, batch_size=2)
    tu.assign_non_tensor_stack(data, "global_steps", [3, 5])  # the step is that of the newest prompt

    def loss(config, model_output, data, dp_group=None):
        batches.append(dict(plugin._OF_BATCH))
        if len(batches) == 3:
            raise RuntimeError("lost")

    def critic(config, model_output, data):
        batches.append(dict(plugin._OF_BATCH))

    for loss_fn, expected in (
        (partial(loss, config=asking), {"step": 4, "writes": True}),
        (partial(loss, config=plain), {}),
        (partial(loss, config=asking), {"step": 4, "writes": True}),
        (partial(critic, config=SimpleNamespace()), {}),
        (AsRLLM(loss, asking), {"step": 4, "writes": True}),
        (AsRLLM(loss, plain), {}),
        (lambda model_output, data: batches.append({}), {}),
    ):
        one = worker(loss_fn)
        with pytest.raises(RuntimeError, match="lost") if len(batches) == 2 else contextlib.nullcontext():
            one.train_mini_batch(data)
        assert (batches[-1], one.loss_fn, plugin._OF_BATCH) == (expected, loss_fn, {})
        assert (worker.seen[-1] is loss_fn) == (not expected)


@pytest.mark.skipif(IS_OLD, reason="verl's batches have the step from 0.9 on")
def test_tokens_are_written_by_the_setting_by_one_of_the_ranks_that_share_them(tmp_path, worker):
    tensors = batch([-0.5, 0.0, 0.3], [1.0, -1.0])
    data = TensorDict({}, batch_size=2)
    options = {"tokens_path": str(tmp_path / "tokens"), "tokens_share": 1.0}
    config = bandpo_actor(bandpo.Clip(0.2, 0.2), GLOBAL, **options)

    def loss(config, model_output, data, dp_group=None):
        return run("bandpo", config, tensors)

    for step, now in ((1, True), (2, False), (3, True), (2, True)):
        worker.engine.is_mp_src_rank_with_outputs = lambda now=now: now
        tu.assign_non_tensor(data, global_steps=step)
        found = worker(partial(loss, config=config)).train_mini_batch(data)
    plain = run("bandpo", bandpo_actor(bandpo.Clip(0.2, 0.2), GLOBAL), tensors)
    assert all(map(torch.equal, found[:2], plain[:2]))
    rows = json_rows(tmp_path / "tokens" / "tokens-0.jsonl")
    lengths = tensors["response_mask"].sum(1).tolist()
    # The last batch is one of stragglers, which cuts nothing off.
    assert [row["step"] for row in rows] == [step for step in (0, 2, 2) for length in lengths if length]
    assert sum(len(row["logps"]) for row in rows) == 3 * sum(lengths)
    kept = tensors["response_mask"][0]
    for name, column in (("old_logps", "old_log_prob"), ("logps", "log_prob"), ("advantage", "advantages")):
        assert rows[0][name] == pytest.approx(tensors[column][0][kept].tolist())
    for wrong in ({"tokens_share": 2}, {"tokens_path": ""}):
        with pytest.raises(ValueError, match=r"policy_loss\.tokens_\w+ must be "):
            bandpo_actor(bandpo.Clip(0.2, 0.2), **wrong)


@pytest.mark.skipif(IS_OLD, reason="verl's batches have the step from 0.9 on")
def test_a_loss_outside_of_an_update_says_what_is_missing(tmp_path):
    with pytest.raises(RuntimeError, match=r"'step'\] of the batch is missing: verl called the loss outside of "):
        run("bandpo", bandpo_actor(bandpo.Band(), tokens_path=str(tmp_path)), batch([0.1], [1.0]))


@pytest.mark.skipif(IS_OLD, reason="verl's batches have the step from 0.9 on")
@pytest.mark.parametrize("name", list(plugin.SOURCES))
def test_what_a_batch_lacks_is_named_with_who_puts_it_there(worker, tmp_path, name):
    source, by = plugin.SOURCES[name]
    options = {"anchor": {"anchor": "sampler"}, "step": {"tokens_path": str(tmp_path)}}[name]
    loss = partial(run, config=bandpo_actor(bandpo.Band(), **options))
    message = f"{name} is made of '{source}', which this batch lacks: {by} puts it there"
    with pytest.raises(ValueError, match=re.escape(message)):
        worker(loss).train_mini_batch(TensorDict({}, batch_size=2))


def test_the_samplers_ratio_is_not_corrected_twice(monkeypatch):
    tensors = batch(RATIOS, EXACT)
    config, weights = (
        bandpo_actor(bandpo.Clip(0.2, 0.2), GLOBAL, anchor="sampler"),
        torch.ones_like(tensors["advantages"]),
    )
    moved = tensors | {"old_log_prob": tensors["old_log_prob"] - 0.1}
    monkeypatch.setitem(plugin._OF_BATCH, "anchor", moved["old_log_prob"])
    with pytest.raises(ValueError, match=r"anchor = 'sampler' and .*rollout_correction count the same ratio twice"):
        run("bandpo", config, tensors, weights=weights)
    found = run("bandpo", config, tensors)
    plugin._OF_BATCH.clear()
    expected = run("bandpo", bandpo_actor(bandpo.Clip(0.2, 0.2), GLOBAL), moved)
    assert all(map(torch.equal, found[:2], expected[:2]))
