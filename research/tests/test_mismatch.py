"""Weights for the mismatch of sampler and trainer, against their formulas."""

import itertools
import math

import pytest
import torch

from bandpo import Band, Clip, Intersect
from research.worlds.mismatch import rollout_weights

F64 = torch.float64
LOGPS = [-math.inf, -1e30, -1e4, -500.0, -80.0, -1.0, -1e-8, 0.0, 1e-7, 1e-6]
NO_CLIP = Clip(1.0, math.inf)


def test_icepop_keeps_rho_inside_and_drops_the_rest():
    torch.manual_seed(0)
    old, rollout = torch.rand(4, 50, dtype=F64).log(), torch.rand(4, 50, dtype=F64).log()
    mask = torch.rand(4, 50) < 0.8
    got = rollout_weights(old, rollout, mask, Clip(0.5, 4))
    rho = (old - rollout).exp()
    expected = torch.where((rho >= 0.5) & (rho <= 5) & mask, rho, 0.0)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    assert 0 < (expected == 0).sum() - (~mask).sum() < mask.sum()


def test_tis_caps_rho():
    torch.manual_seed(1)
    old, rollout = torch.rand(4, 50, dtype=F64).log(), torch.rand(4, 50, dtype=F64).log()
    mask = torch.ones(4, 50, dtype=torch.bool)
    got = rollout_weights(old, rollout, mask, Clip(1.0, 2.0 - 1), apply="weight")
    torch.testing.assert_close(got, (old - rollout).exp().clamp(max=2.0), rtol=1e-12, atol=0)
    assert (got == 2).any()


def test_a_band_gates_the_mismatch_around_the_sampler():
    old, rollout = torch.tensor([[0.5, 0.05, 0.14]]).log(), torch.tensor([[0.45, 0.5, 0.05]]).log()
    weights = rollout_weights(old, rollout, torch.ones(1, 3, dtype=torch.bool), Band("kl", 0.05))
    torch.testing.assert_close(weights, torch.tensor([[0.5 / 0.45, 0.0, 2.8]]))
    assert not Band("kl", 0.05).bounds(old).contains(old - rollout)[0, 2]  # around the trainer's it would be outside


@pytest.mark.parametrize("phi", [0.1, 0.75, 2.0])
def test_kpop_keeps_what_is_near_in_both_directions_of_kl(phi):
    """As verl writes it: no weight, 1 where the larger of the two divergences of coins is at most phi."""
    torch.manual_seed(0)
    old, rollout = (torch.rand(2, 20, 100, dtype=F64) * 0.9998 + 1e-4).log()
    p, q = old.exp().clamp(1e-6, 1 - 1e-6), rollout.exp().clamp(1e-6, 1 - 1e-6)
    one = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    other = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
    both = Intersect(Band("kl", phi), Band("reverse_kl", phi))
    stays = rollout_weights(old, rollout, torch.ones(20, 100, dtype=torch.bool), both) > 0
    assert torch.equal(stays, torch.maximum(one, other) <= phi)
    assert (one > other).any()
    assert (stays != (one <= phi)).any()
    assert (stays != (other <= phi)).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, F64], ids=str)
def test_rollout_weights_are_finite_detached_and_zero_in_padding(dtype):
    pairs = torch.tensor([*itertools.product(LOGPS, LOGPS), (math.nan, 0.0), (0.0, math.nan), (math.inf, 0.0)])
    old, rollout = pairs.to(dtype).T.contiguous()[:, None]
    mask = torch.arange(103)[None] < 100
    for apply, region in itertools.product(("mask", "weight"), (Band(), NO_CLIP, Clip(), Clip(1.0, 1.0))):
        weights = rollout_weights(old.requires_grad_(), rollout, mask, region, apply)
        assert weights.dtype == torch.promote_types(dtype, torch.float32)
        assert weights.isfinite().all()
        assert not weights.requires_grad
        assert not weights[~mask].any()
    old, rollout = (torch.tensor([[x, 0.0]], dtype=dtype) for x in (-1.0, math.nan))
    assert rollout_weights(old, rollout, torch.ones(1, 2, dtype=torch.bool), Clip()).isnan().tolist() == [[True, False]]
