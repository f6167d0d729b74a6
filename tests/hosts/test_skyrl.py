"""The loss that SkyRL calls, against SkyRL's own losses on the same tensors, called as its worker calls them."""

import pickle
import sys
import typing

import cloudpickle
import pytest
import torch
import typing_extensions
from made import BANDS, RATIOS, around, assert_near, batch, executed, gradient, policy_loss

import bandpo

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # SkyRL 0.3.0 itself is refused by pydantic on Python 3.11

from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.train.config import AlgorithmConfig

from bandpo.integrations import skyrl
from bandpo.integrations.skyrl import register_bandpo_loss


@pytest.fixture(autouse=True)
def _clean():
    before = dict(PolicyLossRegistry._functions)
    yield
    PolicyLossRegistry._functions.clear()
    PolicyLossRegistry._functions.update(before)


def run(name, tensors, rollout=None, **settings):
    logps, old, advantages, mask = tensors
    config = AlgorithmConfig(policy_loss_type=name, **settings)
    metrics = {}

    def loss(x):
        value, logged = PolicyLossRegistry.get(name)(
            x, old, advantages, config=config, loss_mask=mask.to(x.dtype), rollout_logprobs=rollout
        )
        metrics.update(logged)
        return value

    return *gradient(loss, logps), metrics


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_clip_is_skyrls_own_loss_bit_for_bit(dual_clip):
    register_bandpo_loss(bandpo.Objective(bandpo.Clip(0.2, 0.28), dual_clip=dual_clip))
    theirs = "regular" if dual_clip is None else "dual_clip"
    tensors = batch(ratios=[-25.0, *RATIOS, 25.0])  # beyond 20 both cut
    value, slope, metrics = run(theirs, tensors, eps_clip_low=0.2, eps_clip_high=0.28, clip_ratio_c=3.0)
    our_value, our_slope, ours = run("bandpo", tensors)
    assert our_value == value
    assert torch.equal(our_slope, slope)
    assert slope.count_nonzero() > 100
    assert ours["clip_ratio"] == pytest.approx(metrics["clip_ratio"], rel=1e-6)
    assert 0 < metrics["clip_ratio"] < 1


@pytest.mark.parametrize("delta", [0.05, 0.2])
@pytest.mark.parametrize("name", ["kl", "tv"])
def test_band_against_the_sampler_has_the_gradient_of_skyrls_dppo(name, delta):
    """There the anchor is the sampler too."""
    region = bandpo.Band(name, delta)
    register_bandpo_loss(bandpo.Objective(region, surrogate="mask"), anchor="rollout")
    logps, rollout, advantages, mask = around(region)
    tensors = logps, torch.full_like(logps, -1.0), advantages, mask
    dppo = {"dppo_type": f"binary_{name}", "delta_low": delta, "delta_high": delta}
    _, slope, metrics = run("dppo", tensors, rollout, dppo=type(AlgorithmConfig().dppo)(**dppo))
    _, our_slope, ours = run("bandpo", tensors, rollout)
    torch.testing.assert_close(our_slope, slope, rtol=1e-6, atol=0)
    assert torch.equal(our_slope != 0, slope != 0)
    assert ours["clip_ratio"] == pytest.approx(metrics["clip_ratio"], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("region", BANDS)
def test_band_is_policy_loss(region, dtype):
    register_bandpo_loss(region.to_config())
    tensors = around(region, dtype=dtype)
    assert_near(run("bandpo", tensors)[:2], policy_loss(*tensors, region, 1.0), dtype)


@pytest.mark.parametrize("region", BANDS)
def test_band_is_policy_loss_with_skyrls_correction_for_the_sampler(region):
    logps, old, advantages, mask = around(region, dtype=torch.float32)  # in which SkyRL corrects
    rollout = old + 0.3 * torch.sin(100 * old)
    register_bandpo_loss(region.to_config())
    off = type(AlgorithmConfig().off_policy_correction)(tis_ratio_type="token", token_tis_ratio_clip_high=1.2)
    value, slope, logged = run("bandpo", (logps, old, advantages, mask), rollout, off_policy_correction=off)
    weights = (old - rollout).exp().clamp(max=1.2)
    expected = policy_loss(logps, old, advantages, mask, region, 1.0, rollout_is_weights=weights)
    assert_near((value, slope), expected, torch.float32)
    assert logged["bandpo/tokens"] == mask.sum()
    assert 0 < logged["bandpo/clip/count"] < logged["bandpo/tokens"]
    assert 0 < logged["tis_token_clip_high_ratio"] < 1


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean", "seq_mean_token_sum_norm"])
def test_micro_batches_add_up_to_the_mean_that_skyrl_divided_the_advantages_for(reduction):
    logps, old, advantages, mask = batch(empty=False)
    register_bandpo_loss()
    scaled = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
        advantages, mask.float(), reduction, micro_batch_size=5, max_seq_len=99
    )
    parts = torch.arange(len(logps)).split(5)
    runs = [run("bandpo", (logps[i], old[i], scaled[i], mask[i])) for i in parts]
    aggregation, normalizer = {
        "token_mean": ("token-mean", None),
        "sequence_mean": ("seq-mean-token-mean", None),
        "seq_mean_token_sum_norm": ("seq-mean-token-sum-norm", 99.0 * len(logps)),
    }[reduction]

    def loss(x):
        objective = bandpo.Objective(bandpo.Band("kl", 0.05), aggregation=aggregation)
        return bandpo.policy_loss(x, old, advantages, mask, objective, normalizer=normalizer)[0]

    expected, slope = gradient(loss, logps)
    torch.testing.assert_close(sum(value for value, _, _ in runs), expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.cat([x for _, x, _ in runs]), slope, rtol=1e-5, atol=0)
    assert len(runs[-1][1]) == 5


def test_the_registered_loss_travels_as_skyrl_sends_it():
    register_bandpo_loss(bandpo.Objective(bandpo.Band("tv", 0.1), surrogate="mask"), name="other")
    value, slope, _ = run("other", batch())
    sent = cloudpickle.dumps(PolicyLossRegistry._functions.pop("other"))
    PolicyLossRegistry._functions["other"] = pickle.loads(sent)
    again, again_slope, _ = run("other", batch())
    assert value == again
    assert torch.equal(slope, again_slope)


def test_the_lines_of_the_docstring_register_what_they_say():
    executed("skyrl")
    found = run("bandpo", batch())
    register_bandpo_loss(bandpo.Band("kl", 0.05), name="other")
    assert torch.equal(found[1], run("other", batch())[1])


def test_without_a_mask_every_token_counts_and_an_empty_micro_batch_gives_zeros():
    register_bandpo_loss()
    logps, old, advantages, mask = batch()
    everything = run("bandpo", (logps, old, advantages, torch.ones_like(mask)))
    loss, config = PolicyLossRegistry.get("bandpo"), AlgorithmConfig(policy_loss_type="bandpo")
    value, logged = loss(logps, old, advantages, config)
    assert value == everything[0]
    assert logged == everything[2]
    value, slope, logged = run("bandpo", (logps, old, advantages, torch.zeros_like(mask)))
    assert value == 0
    assert not slope.any()
    assert set(logged.values()) == {0.0}


def test_wrong_input_is_named_at_registration():
    for node, options, message in [
        (None, {"anchor": "sampler"}, "anchor must be 'old' or 'rollout', got 'sampler'"),
        (bandpo.Objective(aggregation="token-mean"), {}, "aggregation must be None through SkyRL"),
        (None, {"name": "regular"}, "'regular' already registered"),
    ]:
        with pytest.raises(ValueError, match=message):
            register_bandpo_loss(node, **options)
    assert "bandpo" not in PolicyLossRegistry._functions


def test_the_sampler_as_anchor_is_asked_for():
    register_bandpo_loss(anchor="rollout")
    with pytest.raises(ValueError, match="needs the sampler's log-probabilities"):
        run("bandpo", batch())
    off = type(AlgorithmConfig().off_policy_correction)(tis_ratio_type="token")
    with pytest.raises(ValueError, match="tis_ratio_type must be null"):
        run("bandpo", batch(), batch()[1], off_policy_correction=off)


def test_skyrl_has_the_names_that_are_leant_on():
    assert {"apply_off_policy_correction", "reduce_loss", "PolicyLossRegistry"} <= set(vars(skyrl))
    assert ppo_utils.reduce_loss(torch.ones(2, 2), torch.tensor([[1.0, 0.0], [1.0, 1.0]])) == 3
