"""KL3's clip and the rule by entropy against their formulas."""

import math

import mpmath
import pytest
import torch

import bandpo
from bandpo import Band, Clip, Context, band_bounds
from bandpo.losses import method
from bandpo.testing import check_trust_region
from bandpo.trust_regions import trust_region
from research.rules.by_entropy import ByEntropy
from research.rules.kl3 import kl3_clip

F64 = torch.float64


def batch(rows=5, columns=7):
    """Return old log-probabilities, a mask and entropies."""
    rng = torch.Generator().manual_seed(0)
    old, entropies = (torch.rand(rows, columns, generator=rng, dtype=F64) for _ in range(2))
    mask = torch.arange(columns) < torch.randint(1, columns + 1, (rows, 1), generator=rng)
    return (0.98 * old + 0.01).log(), mask, entropies


@pytest.mark.parametrize("delta", [1e-10, 7e-10, 1e-6, 0.005, 0.02, 0.1, 1.0, 30.0, 1e4])
def test_kl3_ends_where_lambert_w_has_its_two_branches(delta):
    """r - 1 - log r = delta at r = -W(-e^(-1 - delta)), here of 60 digits."""
    clip = kl3_clip(delta)
    with mpmath.workdps(60):
        ends = [-mpmath.lambertw(-mpmath.exp(-1 - mpmath.mpf(delta)), k).real for k in (0, -1)]
        low, high = float(1 - ends[0]), float(ends[1] - 1)
    assert (clip.eps_low, clip.eps_high) == pytest.approx((low, high), rel=1e-12, abs=0)
    assert clip.eps_high > clip.eps_low
    assert -mpmath.log(ends[0]) > mpmath.log(ends[1])  # in log r it is wider below


def test_the_method_has_the_numbers_of_a_radius_of_0_02():
    clip, ours = method("atr-grpo").objective.trust_region, kl3_clip(0.02)
    assert (clip.eps_low, clip.eps_high) == pytest.approx((ours.eps_low, ours.eps_high), rel=1e-12)


@pytest.mark.parametrize("delta", [0, -1, math.inf, math.nan])
def test_a_radius_out_of_range_is_refused(delta):
    with pytest.raises(ValueError, match=rf"delta of kl3_clip must be a number in \(0, 1e\+10\], got {delta}"):
        kl3_clip(delta)


def test_kl3_is_what_the_estimate_k3_says():
    """By membership: `kl_penalty`'s k3 of the current and the old policy is pi_old / pi - 1 - log(pi_old / pi)."""
    torch.manual_seed(0)
    old = -8 * torch.rand(4000, dtype=torch.float64)
    new = old + 0.3 * torch.randn(4000, dtype=torch.float64)
    inside = kl3_clip(0.02).bounds(old).contains(new - old)
    assert torch.equal(inside, bandpo.losses.kl_penalty(old, new, "k3") <= 0.02)
    assert 1000 < inside.sum() < 3900


def test_kl3_is_the_kl_band_of_rare_tokens():
    """p (r - 1 - log r) is what KL(coin of p || coin of r p) tends to where p is small: a radius of p delta."""
    log_p = torch.tensor([1e-3, 1e-5, 1e-7], dtype=torch.float64).log()
    ours, band = kl3_clip(0.02).bounds(log_p), band_bounds(log_p, "kl", 0.02 * log_p.exp())
    for got, expected in ((ours.log_low, band.log_low), (ours.log_high, band.log_high)):
        assert ((got / expected - 1).abs() < log_p.exp()).all()


@pytest.mark.parametrize("columns", [1, 2, 6, 11, 301])
@pytest.mark.parametrize("q", [0.01, 0.5, 0.8, 0.99])
def test_the_quantile_is_torchs_for_every_length(columns, q):
    old, mask, entropies = batch(40, columns)
    context = Context(response_mask=mask, extra={"entropies": entropies})
    bounds = ByEntropy(q, Clip(0.2, 0.2), Clip(0.4, 0.4)).bounds(old, context)
    limit = torch.nanquantile(torch.where(mask, entropies, torch.nan), q, dim=-1, keepdim=True)
    expected = torch.where(entropies <= limit + 1e-15, math.log1p(0.2), math.log1p(0.4)).to(F64)
    torch.testing.assert_close(bounds.log_high[mask], expected[mask], rtol=1e-6, atol=0)


def test_by_entropy_holds_what_every_rule_holds():
    rule = ByEntropy(0.8, Clip(0.2, 0.2), Band("kl", 0.05))
    check_trust_region(rule, Context(extra={"entropies": torch.linspace(0.1, 2, 64)[None]}))
    assert trust_region(rule.to_config()) == rule
    assert rule.label == "GRPO 0.2/0.2 up to quantile 0.8 of entropy, Band-KL 0.05 beyond"
    with pytest.raises(ValueError, match=r"quantile of ByEntropy must be a number in \(0, 1\), got 0"):
        ByEntropy(0, Clip(), Clip())
