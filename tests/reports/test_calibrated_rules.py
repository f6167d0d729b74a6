"""Numbers of rules found from tokens: against counting with the rule itself, and where the rate is known."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from commands import missing, refusal
from regions import Narrowing, Wider
from scipy.special import erfc

import bandpo
from bandpo import DCPO, Band, Bounds, BySign, Capped, Clip, Intersect, Region, Union
from bandpo.band import divergence_at
from bandpo.control import replace_number
from bandpo.losses.metrics import measure
from bandpo.trust_regions import RIPO, Relaxed
from bandpo_runs.reports.calibration import RULES, calibrate, free_number, numbers_of
from bandpo_runs.reports.tokens import Tokens
from bandpo_runs.statistics.calibration import number_interval


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


@pytest.mark.parametrize(
    ("region", "rate"),
    [
        pytest.param(region, rate, marks=[] if i % 3 == j else [pytest.mark.slow])
        for i, region in enumerate([*RULES, *OTHERS])
        for j, rate in enumerate((0.003, 0.05, 0.4))
    ],
    ids=str,
)
def test_a_smaller_number_leaves_more_outside(region, rate):
    of = tokens()
    (found,) = calibrate(of, [region], rate=rate).rules

    def outside(number):
        return ~contained(replace_number(region, found.parameter.split(","), number), of)

    if found.value is None:
        largest = 1.0 if "eps_low" in found.parameter and not isinstance(region, DCPO) else 1e4
        assert outside(largest).mean() > rate or outside(1e-8).mean() < rate
        return
    assert outside(found.exact * (1 + 1e-9)).sum() <= rate * of.count < outside(found.exact * (1 - 2e-4)).sum()
    assert found.interval.low <= found.exact <= min(found.value, found.interval.high)
    assert found.value < found.exact * 1.01
    now, measured = outside(found.value), found.measured
    assert (measured.rate, measured.high, measured.low, measured.rare) == (
        now.mean(), (now & (of.log_ratio > 0)).mean(), (now & (of.log_ratio < 0)).mean(),
        (now & (of.old <= math.log(0.2))).sum() / now.sum(),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["kl", "chi2"])
def test_the_radius_is_a_quantile_of_the_tokens_divergences(kind):
    of = tokens()
    (rule,) = calibrate(of, [Band(kind)], rate=0.05).rules
    divergences = divergence_at(torch.from_numpy(of.log_ratio), torch.from_numpy(of.old), kind).numpy()
    assert rule.exact == pytest.approx(np.sort(divergences)[-int(0.05 * of.count) - 1], rel=2e-4)
    interval = number_interval(divergences, of.responses, 0.05 * np.bincount(of.responses))
    assert tuple(rule.interval) == pytest.approx(tuple(interval), rel=0.02)


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
    assert band.interval.low <= (math.exp(-5) * (eps**2) / (1 - math.exp(-5))) <= band.interval.high


def test_cut_tokens_are_those_of_the_metrics():
    of = tokens()
    result = calibrate(of, [Band("kl"), Clip(0.2, 0.28)], cut=True)
    for found in (result.reference, *(each.measured for each in result.rules)):
        region = bandpo.trust_regions.trust_region(found.node)
        ratio, old, advantages = (torch.from_numpy(x)[None] for x in (of.log_ratio, of.old, of.advantages))
        everything = torch.ones_like(old, dtype=torch.bool)
        metrics = measure(ratio, region.bounds(old), old, advantages, everything, "all").compute()
        names = ("cut/fraction", "cut/high_fraction", "cut/low_fraction")
        assert [found.rate, found.high, found.low] == [metrics[name] for name in names]
    assert result.rules[0].measured.rate == pytest.approx(result.reference.rate, abs=2 / of.count + 0.001)


def test_what_is_free_in_a_rule():
    for rule, names in (
        (Clip(0.3, 0.3), ("eps_low", "eps_high")),
        (Clip(0.2, 0.28), ("eps_high",)),
        (Capped(Relaxed(Clip(0.2, 0.2), Band()), 5.0), ("region.inner.eps_low", "region.inner.eps_high")),
    ):
        assert free_number(rule) == names
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
    assert numbers_of(region) == ["regions.0.delta", "regions.1.eps_low", "regions.1.eps_high"]
    assert replace_number(region, ["regions.1.eps_high"], 2.0) == Tightest((Band("kl", 0.3), Clip(0.5, 2.0)))
    of = tokens()
    beyond = (~contained(Clip(0.5, 0.7), of)).sum()
    (found,) = calibrate(of, [region], rate=(beyond + 50.5) / of.count).rules
    outside = ~contained(replace_number(region, ["regions.0.delta"], found.exact), of)
    assert (found.parameter, outside.sum()) == ("regions.0.delta", beyond + 50)


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
    rate = ((~contained(region, of) & (np.sign(of.log_ratio) == -side)).sum() + 55.5) / of.count
    (found,) = calibrate(of, [region], rate=rate, parameter=[parameter]).rules
    outside = ~contained(replace_number(region, [parameter], found.exact), of)
    assert ((outside & (np.sign(of.log_ratio) == side)).sum(), found.parameter) == (55, parameter)


@dataclass(frozen=True)
class AroundTheMean(Region):
    """Wider for tokens that are rarer than the mean of those it is given."""

    kind: ClassVar[str] = "around_the_mean_of_tests"
    delta: float

    def bounds(self, old_logps, context=None):
        width = self.delta * (1 + (old_logps.mean() - old_logps).clamp(0, 1))
        return Bounds(-width, width)


REFUSED = {
    "no number of that name": (Band(), "eps", "--parameter: Band-KL 0.05 has no number 'eps'"),
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
    "more than p": (Wider(), "eps", "needs entropies"),
    "narrower": (Narrowing(), "slope", " narrower for "),
    "no such rule": (RIPO(0.01), "delta,eps_high", "has no number 'eps_high'; it has"),
}


@pytest.mark.parametrize(("region", "parameter", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_number_is_refused(region, parameter, message):
    assert message in refusal(calibrate, tokens(600, spread=1.5), [region], rate=0.1, parameter=parameter.split(","))


def test_no_answer_says_why():
    of = tokens()

    def share_that_moved(some, mask=True):
        divergences = divergence_at(torch.from_numpy(some.log_ratio), torch.from_numpy(some.old), "kl").numpy()
        return 100 * ((divergences > 1e-8) & mask).mean()  # beyond the smallest radius that is tried

    frozen = Tokens(of.old, np.where(np.arange(of.count) % 4 == 0, of.log_ratio, 0.0), None, of.responses, {})
    doubled = tokens(spread=3.0)
    beyond = (np.abs(np.expm1(doubled.log_ratio)) > 1).mean()  # an eps_low of more than 1 there is not
    below = (of.log_ratio < math.log(0.9)).mean()
    for some, region, options, why in (
        (frozen, Band("kl"), {"rate": 0.3},
             f"at most {share_that_moved(frozen):.3g} % of the tokens are outside their bounds"),
        (of, Clip(0.1, 0.2), {"rate": below / 2}, f"{100 * below:.3g} % of the tokens are outside their bounds"),
        (doubled, Clip(), {"rate": beyond / 2}, f"{100 * beyond:.3g} % of the tokens are outside their bounds"),
        (of, Band("kl"), {"rate": 0.9, "cut": True},
         f"at most {share_that_moved(of, of.log_ratio * of.advantages > 0):.3g} % of the tokens are clipped"),
    ):  # fmt: skip
        (rule,) = calibrate(some, [region], **options).rules
        assert (rule.value, rule.measured, rule.why.partition(",")[0]) == (None, None, why)


def test_what_is_sought_by_default_is_not_what_is_matched():
    of, clips, bands = tokens(), (Clip,), (Band,)
    for options, left_out in (({}, clips), ({"match": Band("kl")}, bands), ({"rate": 0.01}, ())):
        names = [found.label.split()[0] for found in calibrate(of, **options).rules]  # without the number
        assert names[-2:] == ["DCPO", "RIPO"]
        kinds = [(Band if name.startswith("Band") else Clip) for name in names[:-2]]
        assert kinds == [type(rule) for rule in RULES[:-2] if not isinstance(rule, left_out)]


def test_what_does_not_hold_is_said():
    of = tokens()
    assert "Only 6 tokens would be outside their bounds." in calibrate(of, [Band("kl")], rate=0.001).warnings[0]
    assert calibrate(of, [Band("kl")], rate=0.01).warnings == ()
    alone = Tokens(of.old, of.log_ratio, None, np.zeros(of.count, np.int64), {})
    assert calibrate(alone, [Band("kl"), Relaxed(Band(), Clip())], rate=0.01).rules[0].interval is None
    (capped,) = calibrate(of, [Capped(Band("kl"), 1.5)], rate=0.2).rules
    stopped = (of.log_ratio > math.log(1.5)).mean()
    share = f"{100 * stopped / capped.measured.rate:.3g} % of its tokens outside their bounds are there"
    assert not missing(capped.notes[0], share, "at every region.delta that was tried: by a cap or ")
    coarse = Tokens(of.old, np.round(of.log_ratio * 5) / 5, None, of.responses, {})
    (found,) = calibrate(coarse, [Clip()], rate=0.1).rules
    assert any("many have the same ratio" in note for note in found.notes)
