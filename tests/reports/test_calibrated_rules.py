"""Numbers of rules found from tokens: against counting with the rule itself, and where the rate is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from regions import Narrowing, Wider
from scipy.special import erfc

import bandpo
from bandpo import DCPO, Band, Bounds, BySign, Capped, Clip, Intersect, Region, Union
from bandpo.control import replace_number
from bandpo.errors import UserError
from bandpo.losses.metrics import measure
from bandpo.trust_regions import RIPO, Relaxed
from bandpo_runs.reports.calibration import RULES, calibrate, free_number, numbers_of
from bandpo_runs.reports.tokens import Tokens


def tokens(count=6000, seed=0, spread=0.3, length=20):
    """Logits that moved by noise, so that likely tokens change little in ratio."""
    generator = np.random.default_rng(seed)
    p = generator.beta(0.7, 0.4, count).clip(1e-4, 1 - 1e-6)
    odds = np.log(p) - np.log1p(-p) + spread * generator.standard_normal(count)
    ratio = -np.log1p(np.exp(-odds)) - np.log(p)
    return Tokens(np.log(p), ratio, generator.standard_normal(count), np.arange(count) // length, {})


def contained(region, of):
    """One token at a time would be slow; all of them, by the bounds."""
    context = bandpo.Context(advantages=torch.from_numpy(of.advantages))
    bounds = region.bounds(torch.from_numpy(of.old), context)
    return bounds.contains(torch.from_numpy(of.log_ratio)).numpy()


OTHERS = (
    Union(Band("kl", 0.05), Clip(0.2, 0.2)),
    Capped(Band("kl", 0.05), 3.0),
    Union(Band("kl", 0.05), Clip(0.05, 0.05)),
    Relaxed(Band("tv", 0.05), Clip(0.02, 0.02)),
    BySign(Clip(0.1, 0.1), Clip(0.3, 0.3)),
    Band("hellinger", 0.05),
    Band("kl", 0.05, delta_low=0.2),
    Intersect(RIPO(0.05), Clip(0.5, 1.0)),
    DCPO(0.1, 0.1, 2.0),
    Clip(0.3, 0.1),
)


RATES = 0.003, 0.05, 0.4


@pytest.mark.parametrize(
    ("region", "rate"),
    [
        pytest.param(region, rate, marks=[] if i % 3 == j else [pytest.mark.slow])
        for i, region in enumerate([*RULES, *OTHERS])
        for j, rate in enumerate(RATES)
    ],
    ids=str,
)
def test_a_smaller_number_leaves_more_outside(region, rate):
    of = tokens()
    (found,) = calibrate(of, [region], rate=rate).rules
    names = found.parameter.split(",")
    if found.value is None:
        largest = 1.0 if "eps_low" in found.parameter and not isinstance(region, DCPO) else 1e4
        outside = ~contained(replace_number(region, names, largest), of)
        smallest = ~contained(replace_number(region, names, 1e-8), of)
        assert outside.mean() > rate or smallest.mean() < rate
        return
    outside = (~contained(replace_number(region, names, found.exact * (1 + 1e-9)), of)).sum()
    more = (~contained(replace_number(region, names, found.exact * (1 - 2e-4)), of)).sum()
    assert outside <= rate * of.count < more
    assert found.exact <= found.value < found.exact * 1.01
    assert found.interval.low <= found.exact <= found.interval.high
    measured = ~contained(replace_number(region, names, found.value), of)
    assert found.measured.rate == measured.mean()
    assert found.measured.high == (measured & (of.log_ratio > 0)).mean()
    assert found.measured.low == (measured & (of.log_ratio < 0)).mean()
    assert found.measured.rare == (measured & (of.old <= math.log(0.2))).sum() / measured.sum()


def test_a_formula_and_the_search_agree():
    of = tokens()
    one, other = calibrate(of, [Band("kl"), Relaxed(Band("kl"), Clip(0.0, 0.0))], rate=0.05).rules
    assert other.exact == pytest.approx(one.exact, rel=2e-4)
    assert tuple(other.interval) == pytest.approx(tuple(one.interval), rel=0.02)


@pytest.mark.parametrize(
    "region",
    [Band("kl", 0.02), Band("tv", 0.08), Band("chi2", 0.03), RIPO(0.02)],
)
def test_a_known_radius_is_recovered_from_its_own_clipping(region):
    """Matched with itself exactly, within a token; with another half of the responses' rate, within its interval."""
    of = tokens(40_000)
    (found,) = calibrate(of, [region], match=region).rules
    assert found.exact <= region.delta * (1 + 2e-4)
    assert found.exact == pytest.approx(region.delta, rel=0.02)
    rate = (~contained(region, tokens(400_000, seed=1))).mean()
    (found,) = calibrate(of, [region], rate=rate).rules
    assert found.interval.low <= region.delta <= found.interval.high


@pytest.mark.parametrize("eps", [0.1, 0.2])
def test_of_normal_log_ratios_the_rate_is_known(eps):
    """P(r > 1 + eps) = erfc(log(1 + eps) / sigma sqrt 2) / 2, and below in the same way."""
    sigma, n = 0.1, 200_000
    ratio = sigma * np.random.default_rng(0).standard_normal(n)
    of = Tokens(np.full(n, -5.0), ratio, None, np.arange(n) // 50, {})
    up, down = (erfc(abs(math.log1p(x)) / sigma / math.sqrt(2)) / 2 for x in (eps, -eps))
    (both,) = calibrate(of, [Clip(0.3, 0.3)], rate=up + down).rules
    assert both.interval.low <= eps <= both.interval.high
    assert both.exact == pytest.approx(eps, rel=0.02)
    (upper,) = calibrate(of, [Clip(1.0, 0.3)], rate=up).rules
    assert upper.interval.low <= eps <= upper.interval.high
    # On both sides g_f of p = e^-5 at the ratio's own size; a band stops at the number of one side what it must.
    (band,) = calibrate(of, [Band("chi2")], rate=up + down).rules
    chi2 = math.exp(-5) * (eps**2) / (1 - math.exp(-5))
    assert band.interval.low <= chi2 <= band.interval.high


def test_cut_tokens_are_those_of_the_metrics():
    of = tokens()
    result = calibrate(of, [Band("kl"), Clip(0.2, 0.28)], cut=True)
    for found in (result.reference, *(each.measured for each in result.rules)):
        region = bandpo.trust_regions.trust_region(found.node)
        ratio, old, advantages = (torch.from_numpy(x)[None] for x in (of.log_ratio, of.old, of.advantages))
        everything = torch.ones_like(old, dtype=torch.bool)
        metrics = measure(ratio, region.bounds(old), old, advantages, everything, "all").compute()
        assert found.rate == metrics["cut/fraction"]
        assert (found.high, found.low) == (metrics["cut/high_fraction"], metrics["cut/low_fraction"])
    assert result.rules[0].measured.rate == pytest.approx(result.reference.rate, abs=2 / of.count + 0.001)


def test_what_is_free_in_a_rule():
    assert free_number(Clip(0.3, 0.3)) == ("eps_low", "eps_high")
    assert free_number(Clip(0.2, 0.28)) == ("eps_high",)
    assert free_number(Capped(Relaxed(Clip(0.2, 0.2), Band()), 5.0)) == (
        "region.inner.eps_low",
        "region.inner.eps_high",
    )
    changed = replace_number(Capped(Band("kl", 0.05, delta_low=0.1), 5.0), ["region.delta_low", "max_ratio"], 7.0)
    assert changed == Capped(Band("kl", 0.05, delta_low=7.0), 7.0)


@dataclass(frozen=True)
class Tightest(bandpo.Region):
    kind = "tightest"
    regions: tuple[bandpo.Region, ...]

    def bounds(self, old_logps, context=None):
        each = [region.bounds(old_logps, context) for region in self.regions]
        low, high = torch.stack([b.log_low for b in each]), torch.stack([b.log_high for b in each])
        return Bounds(low.amax(0), high.amin(0))


def test_the_number_of_a_rule_in_a_tuple_has_its_place_in_its_name():
    region = Tightest((Band("kl", 0.3), Clip(0.5, 0.7)))
    assert free_number(region) == ("regions.0.delta",)
    assert numbers_of(region) == ["regions.0.delta", "regions.1.eps_low", "regions.1.eps_high"]
    assert replace_number(region, ["regions.1.eps_high"], 2.0) == Tightest((Band("kl", 0.3), Clip(0.5, 2.0)))
    of = tokens()
    beyond = (~contained(Clip(0.5, 0.7), of)).sum()
    (found,) = calibrate(of, [region], rate=(beyond + 50.5) / of.count).rules
    assert found.parameter == "regions.0.delta"
    assert (~contained(replace_number(region, ["regions.0.delta"], found.exact), of)).sum() == beyond + 50


@pytest.mark.parametrize(
    ("region", "parameter", "side"),
    [
        (Band("kl", delta_high=1.0), "delta_high", 1),
        (Band("kl", delta_low=1.0), "delta_low", -1),
        (Clip(0.2, 0.2), "eps_low", -1),
        (Capped(Band("kl", 5.0), 5.0), "max_ratio", 1),
    ],
)
def test_another_number_by_its_name(region, parameter, side):
    of = tokens()
    other = (~contained(region, of) & (np.sign(of.log_ratio) == -side)).sum()
    rate = (other + 55.5) / of.count
    (found,) = calibrate(of, [region], rate=rate, parameter=[parameter]).rules
    outside = ~contained(replace_number(region, [parameter], found.exact), of)
    assert (outside & (np.sign(of.log_ratio) == side)).sum() == 55
    assert found.parameter == parameter


@dataclass(frozen=True)
class AroundTheMean(Region):
    """Wider for tokens that are rarer than the mean of those it is given."""

    kind: ClassVar[str] = "around_the_mean_of_tests"
    delta: float

    def bounds(self, old_logps, context=None):
        width = self.delta * (1 + (old_logps.mean() - old_logps).clamp(0, 1))
        return Bounds(-width, width)


REFUSED = {
    "no number of that name": (Band(), "eps", r"--parameter: Band-KL 0\.05 has no number 'eps'"),
    "another batch": (
        AroundTheMean(0.1),
        "delta",
        "gives a token other bounds in another batch",
    ),
    "more of a batch": (
        Wider(),
        "eps",
        "needs more than old log-probabilities and advantages",
    ),
    "more than p": (Wider(), "eps", r"needs context\.entropies"),
    "narrower": (Narrowing(), "slope", "Narrowing 0.05, slope: from .* narrower for"),
    "no such rule": (RIPO(0.01), "delta,eps_high", "has no number 'eps_high'; it has"),
}


@pytest.mark.parametrize(("region", "parameter", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_number_is_refused(region, parameter, message):
    with pytest.raises(UserError, match=message):
        calibrate(tokens(600, spread=1.5), [region], rate=0.1, parameter=parameter.split(","))


def test_no_answer_says_why():
    of = tokens()
    frozen = Tokens(of.old, np.where(np.arange(of.count) % 4 == 0, of.log_ratio, 0.0), None, of.responses, {})
    (found,) = calibrate(frozen, [Band("kl")], rate=0.3).rules
    assert (found.value, found.measured) == (None, None)
    assert found.why == "at most 25 % of the tokens are outside, whatever delta is"
    below = (of.log_ratio < math.log(0.9)).mean()
    (found,) = calibrate(of, [Clip(0.1, 0.2)], rate=below / 2).rules
    assert found.why.endswith("of the tokens are outside, whatever eps_high is, which is more than wanted")
    doubled = tokens(spread=3.0)
    share = (np.abs(np.expm1(doubled.log_ratio)) > 1).mean()  # an eps_low of more than 1 there is not
    (found,) = calibrate(doubled, [Clip()], rate=share / 2).rules
    assert found.why.startswith(f"{100 * share:.3g} % of the tokens are outside, whatever eps_low = eps_high is, which")
    (found,) = calibrate(of, [Band("kl")], rate=0.9, cut=True).rules
    driven = (of.log_ratio * of.advantages > 0).mean()
    assert found.why == f"at most {100 * driven:.3g} % of the tokens are cut, whatever delta is"


def test_what_is_sought_by_default_is_not_what_is_matched():
    of, clips, bands = tokens(), (Clip,), (Band,)
    for options, left_out in (({}, clips), ({"match": Band("kl")}, bands), ({"rate": 0.01}, ())):
        names = [found.label.split()[0] for found in calibrate(of, **options).rules]  # without the number
        assert names[-2:] == ["DCPO", "RIPO"]
        kinds = [(Band if name.startswith("Band") else Clip) for name in names[:-2]]
        assert kinds == [type(rule) for rule in RULES[:-2] if not isinstance(rule, left_out)]


def test_what_does_not_hold_is_said():
    of = tokens()
    few = calibrate(of, [Band("kl")], rate=0.001)
    assert few.warnings[0].startswith("Only 6 tokens are to be outside.")
    assert calibrate(of, [Band("kl")], rate=0.01).warnings == ()
    alone = Tokens(of.old, of.log_ratio, None, np.zeros(of.count, np.int64), {})
    assert calibrate(alone, [Band("kl"), Relaxed(Band(), Clip())], rate=0.01).rules[0].interval is None
    (capped,) = calibrate(of, [Capped(Band("kl"), 1.5)], rate=0.2).rules
    stopped = (of.log_ratio > math.log(1.5)).mean()
    assert capped.notes[0].startswith(f"{100 * stopped / capped.measured.rate:.3g} % of the tokens that it stops")
    assert capped.notes[0].endswith(
        "at every region.delta that was tried: a cap or the other side stops them, or their ratio is very far from 1."
    )
    coarse = Tokens(of.old, np.round(of.log_ratio * 5) / 5, None, of.responses, {})
    (found,) = calibrate(coarse, [Clip()], rate=0.1).rules
    assert any("the very same ratio" in note for note in found.notes)


def test_a_batch_that_is_used_once_has_nothing_to_calibrate():
    still = Tokens(np.full(10, -1.0), np.full(10, 1e-8), None, np.arange(10), {})
    with pytest.raises(UserError, match="every ratio is 1, so no rule acts: either each batch is used for one"):
        calibrate(still)
    of = tokens(spread=0.001)
    with pytest.raises(UserError, match=r"GRPO 0\.2/0\.2 leaves none of 6,000 tokens outside"):
        calibrate(of)
    with pytest.raises(UserError, match="where their advantages are"):
        calibrate(Tokens(of.old, of.log_ratio, None, of.responses, {}), cut=True, rate=0.1)
