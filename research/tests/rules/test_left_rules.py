"""KL3's clip, the tapered clip, the contracted tail and the rule by entropy against their formulas."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch

import bandpo
from bandpo import Band, Capped, Clip, Context, Objective, band_bounds, policy_loss
from bandpo.losses import method
from bandpo.testing import check_trust_region
from bandpo.trust_regions import trust_region
from bandpo.trust_regions.base import depends_on_probability
from research.rules.by_entropy import ByEntropy
from research.rules.kl3 import kl3_clip
from research.rules.tail import TailContracted
from research.rules.tapered import Tapered

F64 = torch.float64
LOG_P = torch.cat([torch.linspace(-12.0, -1e-3, 50), torch.tensor([-69.0, -1e-7, 0.0, 1e-6])])


def batch(rows=5, columns=7, seed=0):
    rng = torch.Generator().manual_seed(seed)
    old = (0.98 * torch.rand(rows, columns, generator=rng, dtype=F64) + 0.01).log()
    new = (old + 0.4 * torch.randn(rows, columns, generator=rng, dtype=F64)).clamp(max=-1e-3)
    mask = torch.arange(columns) < torch.randint(1, columns + 1, (rows, 1), generator=rng)
    advantages = torch.randn(rows, generator=rng, dtype=F64)
    return {"logps": new, "old_logps": old, "advantages": advantages, "response_mask": mask}


def gradient(data, objective):
    leaf = data["logps"].clone().requires_grad_()
    loss, _ = policy_loss(**(data | {"logps": leaf}), objective=objective)
    return torch.autograd.grad(loss.sum(), leaf)[0]


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
    found, ours = method("atr-grpo").objective.trust_region, kl3_clip(0.02)
    assert (found.eps_low, found.eps_high) == pytest.approx((ours.eps_low, ours.eps_high), rel=1e-12)


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


@pytest.mark.parametrize("slope", [0.0, 0.1, 2.0])
def test_tapered_is_a_clip_whose_upper_epsilon_falls_with_the_current_probability(slope):
    bounds = Tapered(0.2, 0.28, slope).bounds(LOG_P.double())
    for x, low, high in zip(LOG_P.double().tolist(), bounds.log_low.tolist(), bounds.log_high.tolist(), strict=True):
        p, r = math.exp(min(x, 0.0)), math.exp(high)
        assert math.exp(low) == pytest.approx(0.8, rel=1e-12)
        # On the bound r = 1 + eps_high - slope pi with pi = r p; where that is below 1 the token may not grow at all.
        assert r == pytest.approx(max(1.28 - slope * r * p, 1.0), rel=1e-12)
    assert (bounds.log_high == 0).any() == (slope == 2)
    torch.testing.assert_close(Tapered(0.2, 0.28, 0).bounds(LOG_P).log_high, Clip(0.2, 0.28).bounds(LOG_P).log_high)


@pytest.mark.parametrize("region", [Clip(0.2, 0.28), Clip(1.0, math.inf), Band("kl", 0.05)], ids=repr)
@pytest.mark.parametrize(("q", "n"), [(0.5, 2.0), (0.9, 2.0), (0.5, 1.0)])
def test_tail_contracted_scales_the_outward_epsilon_of_the_far_tokens(region, q, n):
    data = batch(rows=40)
    mask, old, new = data["response_mask"], data["old_logps"], data["logps"]
    bounds = TailContracted(region, q, n).bounds(old, Context(response_mask=mask, logps=new))
    inner = region.bounds(old)
    moved = (new - old).numpy()
    limit = np.quantile(np.abs(moved[mask.numpy()]), q)
    met = {"above": 0, "below": 0, "near": 0}
    for i, j in mask.nonzero().tolist():
        d, factors = moved[i, j], [1.0, 1.0]
        if abs(d) > limit:
            factors[int(d > 0)] = 1 / (1 + (abs(d) / limit - 1) ** n)
            met["above" if d > 0 else "below"] += 1
        else:
            met["near"] += 1
        low, high = math.exp(inner.log_low[i, j]), math.exp(inner.log_high[i, j])
        assert math.exp(bounds.log_low[i, j]) == pytest.approx(1 - factors[0] * (1 - low), rel=1e-12, abs=1e-15)
        assert math.exp(bounds.log_high[i, j]) == pytest.approx(1 + factors[1] * (high - 1), rel=1e-12)
    assert min(met.values()) > 2
    assert (bounds.log_low >= inner.log_low).all()
    assert (bounds.log_high <= inner.log_high).all()


def test_tail_contracted_leaves_a_batch_alone_that_has_not_moved():
    data = batch()
    mask, old = data["response_mask"], data["old_logps"]
    bounds = TailContracted(Clip(), 0.5).bounds(old, Context(response_mask=mask, logps=old))
    assert torch.equal(bounds.log_high, Clip().bounds(old).log_high)
    one = torch.where(torch.arange(7) == 0, old + 0.5, old)  # most have not: their quantile is 0
    bounds = TailContracted(Clip(), 0.5).bounds(old, Context(response_mask=mask.fill_(True), logps=one))
    assert torch.equal(bounds.log_high, Clip().bounds(old).log_high)


def test_tail_contracted_is_finite_however_far_tokens_are():
    old = torch.tensor([[-1.0, -1.0, -1.0, -torch.inf, -1.0, 0.0]])
    new = torch.tensor([[-1.1, -0.9, -torch.inf, -1.0, -80.0, -1e-3]])
    regions = (Clip(0.2, 0.2), Clip(1.0, math.inf), Band("kl", 0.05))
    for region, exponent in itertools.product(regions, (2.0, 20.0)):
        bounds = TailContracted(region, 0.5, exponent).bounds(old, Context(logps=new))
        assert not bounds.log_low.isnan().any()
        assert not bounds.log_high.isnan().any()
        assert ((bounds.log_low <= 0) & (bounds.log_high >= 0)).all()
    assert bounds.log_low[0, 2] > -1e-6  # no room is left


def test_tail_contracted_sees_the_ratio_of_a_response_where_that_is_the_ratio():
    data = batch()
    mask = data["response_mask"]
    objective = Objective(TailContracted(Clip(0.05, 0.05), 0.5), ratio="sequence-mean")
    found = gradient(data, objective)
    moved = data["logps"] - data["old_logps"]
    mean = torch.where(mask, moved, 0.0).sum(1) / mask.sum(1)
    limit = np.quantile(mean.abs()[:, None].expand(5, 7)[mask].numpy(), 0.5)
    expected = torch.zeros_like(found)
    for i in range(5):
        d, a = mean[i].item(), data["advantages"][i].item()
        factor = 1 / (1 + (abs(d) / limit - 1) ** 2) if abs(d) > limit else 1
        stopped = d > math.log1p(0.05 * factor) if a > 0 else d < math.log1p(-0.05 * factor)
        expected[i][mask[i]] = 0 if stopped else -math.exp(d) * a / mask[i].sum().item() / 5
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


RULES = [TailContracted(Clip(0.2, 0.28)), TailContracted(Band("kl", 0.05), 0.5, 1.0)]
RULES += [Tapered(0.2, 0.28, 0.1), Tapered(1, 0.2, 0.5)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_what_every_rule_promises(rule):
    log_p = torch.linspace(-12, -1e-3, 64)[None]
    check_trust_region(rule, Context(logps=log_p + log_p.sin() - 0.4))
    assert trust_region(rule.to_config()) == rule
    assert rule.to_config()["type"].startswith("research.rules.t")


def test_wrong_numbers_are_refused_and_what_is_needed_is_named():
    for make, message in [
        (lambda: Tapered(1.2, 0.2, 0.1), r"eps_low of Tapered must be a number in \[0, 1\], got 1.2"),
        (lambda: Tapered(0.2, math.inf, 0.1), r"eps_high of Tapered must be a number in \[0, inf\), got inf"),
        (lambda: Tapered(0.2, 0.2, -0.1), r"slope of Tapered must be a number in \[0, inf\), got -0.1"),
        (lambda: TailContracted(Clip(), 1), r"quantile of TailContracted must be a number in \(0, 1\), got 1"),
        (lambda: TailContracted(Clip(), 0.9, 0), r"exponent of TailContracted must be a number in \(0, inf\), got 0"),
        (lambda: TailContracted(Clip()).bounds(torch.zeros(2, 3)), r"TailContracted needs context\.logps"),
        (lambda: Objective(TailContracted(Band()), ratio="sequence-mean"), "must be made of Clip"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    assert depends_on_probability(TailContracted(Band()))
    assert not depends_on_probability(TailContracted(Clip()))
    still, capped = -torch.ones(1, 3), TailContracted(Capped(Clip(0.2, 4.0), 3.0))
    assert torch.equal(capped.bounds(still, Context(logps=still)).log_high, capped.region.bounds(still).log_high)


def entropies_of(rows, columns):
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(100), dtype=F64)


def quantile(values: list[float], q: float) -> float:
    """Between the two sorted values around the place q (n - 1)."""
    values = sorted(values)
    place = q * (len(values) - 1)
    i = min(int(place), len(values) - 2) if len(values) > 1 else 0
    return values[i] + (place - i) * (values[min(i + 1, len(values) - 1)] - values[i])


@pytest.mark.parametrize("q", [0.3, 0.5, 0.8])
def test_by_entropy_goes_by_the_quantile_of_each_response(q):
    data, entropies = batch(), entropies_of(5, 7)
    mask, old = data["response_mask"], data["old_logps"]
    below, above = Clip(0.2, 0.2), Band("kl", 0.3)
    bounds = ByEntropy(q, below, above).bounds(old, Context(response_mask=mask, entropies=entropies))
    kinds = set()
    for i in range(5):
        limit = quantile(entropies[i][mask[i]].tolist(), q)
        for j in range(7):
            if mask[i, j]:
                low = entropies[i, j].item() <= limit + 1e-15
                inner = (below if low else above).bounds(old[i, j])
                assert (bounds.log_low[i, j], bounds.log_high[i, j]) == (inner.log_low, inner.log_high)
                kinds.add(low)
    assert kinds == {True, False}
    # Half precision is taken as it is, and a response of one token has that token's entropy as its quantile.
    one = Context(entropies=torch.tensor([[0.5]], dtype=torch.bfloat16))
    assert ByEntropy(q, Clip(0.1, 0.1), Clip(0.3, 0.3)).bounds(torch.tensor([[-1.0]]), one).log_high.exp().item() < 1.2


@pytest.mark.parametrize("columns", [1, 2, 6, 11, 301])
@pytest.mark.parametrize("q", [0.01, 0.5, 0.8, 0.99])
def test_the_quantile_is_torchs_for_every_length(columns, q):
    data, entropies = batch(40, columns), entropies_of(40, columns)
    mask, old = data["response_mask"], data["old_logps"]
    bounds = ByEntropy(q, Clip(0.2, 0.2), Clip(0.4, 0.4)).bounds(old, Context(response_mask=mask, entropies=entropies))
    limit = torch.nanquantile(torch.where(mask, entropies, torch.nan), q, dim=-1, keepdim=True)
    expected = torch.where(entropies <= limit + 1e-15, math.log1p(0.2), math.log1p(0.4)).to(F64)
    torch.testing.assert_close(bounds.log_high[mask], expected[mask], rtol=1e-6, atol=0)


def test_by_entropy_holds_what_every_rule_holds():
    rule = ByEntropy(0.8, Clip(0.2, 0.2), Band("kl", 0.05))
    check_trust_region(rule, Context(entropies=torch.linspace(0.1, 2, 64)[None]))
    assert trust_region(rule.to_config()) == rule
    assert rule.label == "GRPO 0.2/0.2 up to quantile 0.8 of entropy, Band-KL 0.05 beyond"
    with pytest.raises(ValueError, match=r"quantile of ByEntropy must be a number in \(0, 1\), got 0"):
        ByEntropy(0, Clip(), Clip())
