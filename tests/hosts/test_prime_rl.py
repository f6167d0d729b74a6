"""The loss that prime-rl calls, on stand-ins for its dataclasses: it is not on the package registry.

What is imitated was read in prime-rl 0.8.0: the fields of LossInputs, and that the losses of a packed batch are summed
and divided by the number of tokens of the whole batch.
"""

from types import SimpleNamespace

import pytest
import torch
from made import BANDS, around, assert_near, batch, gradient, policy_loss

import bandpo
from bandpo.integrations.prime_rl import loss


def run(tensors, weights=None, **kwargs):
    logps, old, advantages, mask = tensors
    logged = []

    def packed(x):
        total = 0.0
        for i in range(len(x)):
            inputs = SimpleNamespace(
                trainer_logprobs=x[i],
                inference_logprobs=old[i],
                ref_logprobs=None,
                advantages=advantages[i],
                loss_mask=mask[i],
                loss_weights=None if weights is None else weights[i],
            )
            out = loss(inputs, **kwargs)
            logged.append(out.metrics)
            total = total + out.loss
        return total / mask.sum()

    value, slope = gradient(packed, logps)
    return value, slope, {k: torch.stack([row[k] for row in logged]).sum() for k in logged[0]}


def test_clip_is_the_loss_of_prime_rls_documentation():
    """The example of its page on custom losses: -min(r A, clip(r, 1 - eps, 1 + eps) A), summed over the mask."""
    logps, old, advantages, mask = tensors = batch(ratios=[-3.0, -0.5, -0.1, 0.0, 0.1, 0.4, 3.0])

    def documented(x):
        ratio = torch.exp(x - old)
        surrogates = ratio * advantages, ratio.clamp(0.8, 1.2) * advantages
        return -torch.min(*surrogates)[mask].sum() / mask.sum()

    expected, expected_slope = gradient(documented, logps)
    value, slope, _ = run(tensors, trust_region={"type": "clip", "eps_low": 0.2, "eps_high": 0.2})
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-6, atol=0)
    assert slope.count_nonzero() > 100


@pytest.mark.parametrize("weighted", [False, True])
def test_its_default_loss_is_a_row_of_this_one(weighted):
    """DPPO's mask on the difference of probabilities, and 0.001 (log r)^2 for every token."""
    logps, old, advantages, mask = tensors = around(bandpo.Band("tv", 0.2))
    weights = torch.linspace(0.5, 2.0, mask.numel(), dtype=torch.float64).view_as(old) if weighted else None

    def default(x):
        log_ratio = x - old
        moved = x.exp() - old.exp()
        masked = torch.where(advantages > 0, moved > 0.2, moved < -0.2)
        per_token = 0.001 * log_ratio**2 * mask - (mask & ~masked) * advantages * log_ratio.exp()
        return (per_token * (1.0 if weights is None else weights)).sum() / mask.sum()

    expected, expected_slope = gradient(default, logps)
    node = {"type": "objective", "trust_region": {"type": "band", "divergence": "tv", "delta": 0.2}, "apply": "mask"}
    value, slope, _ = run(tensors, weights, trust_region=node, kl_tau=0.001)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("region", BANDS)
def test_band_is_policy_loss(region, dtype):
    tensors = around(region, dtype=dtype)
    tokens = tensors[3].sum()
    value, slope, logged = run(tensors, trust_region=region.to_config())
    assert_near((value, slope), policy_loss(*tensors, region, float(tokens)), dtype)
    _, metrics = bandpo.policy_loss(*tensors, region, metrics="all")
    counted = metrics.compute()
    assert logged["bandpo/tokens"] == tokens
    assert logged["bandpo/clip/count"] == counted["clip/count"] > 0
    assert logged["bandpo/clip/low_count"] == pytest.approx(counted["clip/low_fraction"] * float(tokens))
    assert logged["bandpo/cut/count"] == pytest.approx(counted["cut/fraction"] * float(tokens))
    assert all(value.dim() == 0 for value in logged.values())


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match=r"beta must be 0.0 through prime-rl, got 0.1: "):
        run(batch(), trust_region=bandpo.Objective(beta=0.1))
