"""A radius that steers itself, on simulated plants: what is measured falls with the radius, late and noisily."""

import dataclasses
import json
import math
import random
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bandpo import (
    DCPO,
    PI,
    RIPO,
    AdaptiveKL,
    Band,
    BySign,
    Capped,
    Clip,
    Context,
    ControlLaw,
    Controlled,
    Decaying,
    Hysteresis,
    Objective,
    Quantile,
    Region,
    Table,
    Union,
    objective,
    policy_loss,
    trust_region,
)
from bandpo.trust_regions.combinators import depends_on_probability
from bandpo.trust_regions.control import MEASURES, controlled_of
from bandpo_runs.reports import explain
from bandpo_runs.reports.runs import ratio_bounds

OLD = torch.linspace(-9, 0, 40, dtype=torch.float64)
LAWS = [PI(), Hysteresis(), Quantile(), AdaptiveKL()]


def rule_of(law=None, target=0.02, **changes):
    fields = {"region": Band("kl", 0.05), "parameter": "delta", "measure": "clip/fraction", "low": 0.001, "high": 2.0}
    return Controlled(**{**fields, "target": target, "law": law or PI(), **changes})


# ---------------------------------------------------------------------------------------------------------- the plants
@dataclass
class Plant:
    """A clip rate that falls with the radius: a sigmoid of its logarithm, 0.02 at `at`, seen `late` steps later among
    `tokens` tokens (0: without noise)."""

    at: float = 0.05
    slope: float = 1.0
    late: int = 1
    tokens: int = 2000
    seed: int = 0

    def __post_init__(self):
        self.rng, self.seen = random.Random(self.seed), []

    def rate(self, value):
        middle = math.log(0.02 / 0.98) + self.slope * math.log(self.at)
        return 1 / (1 + math.exp(self.slope * math.log(value) - middle))

    def __call__(self, value):
        self.seen.append(value)
        rate = self.rate(self.seen[max(0, len(self.seen) - self.late)])
        if not self.tokens:
            return rate
        spread = math.sqrt(rate * (1 - rate) / self.tokens)
        return min(max(self.rng.gauss(rate, spread), 0.0), 1.0)


def run(rule, plant, steps, state=None):
    """The values, the measurements, and the state after them."""
    state, values, found = state or rule.start(), [], []
    for _ in range(steps):
        values.append(rule.value(state))
        found.append(plant(values[-1]))
        _, state = rule.radius(state, {rule.measure: found[-1]})
    return values, found, state


def mean(numbers):
    return sum(numbers) / len(numbers)


@pytest.mark.parametrize("slope", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("at", [0.01, 0.3])
def test_pi_reaches_its_target_and_holds_it(slope, at):
    plant = Plant(at=at, slope=slope)
    values, found, _ = run(rule_of(), plant, 500)
    # 5 / (ki slope) steps, five time constants of the slowest plant.
    assert mean(found[-100:]) == pytest.approx(0.02, rel=0.06)
    assert mean([math.log(v) for v in values[-100:]]) == pytest.approx(math.log(at), abs=0.25 / slope)
    reached = next(i for i, v in enumerate(values) if abs(math.log(v / at)) < 0.2 / slope)
    assert reached < 60 + 5 / (0.05 * slope)


def test_it_follows_a_step_of_the_target_and_one_of_the_plant():
    plant = Plant(slope=1.0)
    rule = rule_of()
    *_, state = run(rule, plant, 200)
    _, found, state = run(rule_of(target=0.06), plant, 200, state)
    assert mean(found[-100:]) == pytest.approx(0.06, rel=0.05)
    assert mean(found[60:100]) == pytest.approx(0.06, rel=0.15)
    plant.at = 0.2  # the policy moves further than it did
    _, found, _ = run(rule_of(target=0.06), plant, 200, state)
    assert found[1] > 0.15
    assert mean(found[60:100]) == pytest.approx(0.06, rel=0.15)
    assert mean(found[-100:]) == pytest.approx(0.06, rel=0.05)


@pytest.mark.parametrize("slope", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_both_gains_of_pi_may_be_doubled(slope, times):
    law = PI(kp=0.5 * times, ki=0.05 * times)
    values, *_ = run(rule_of(law), Plant(at=0.2, slope=slope, late=3, tokens=0), 1200)
    logs = [math.log(v / 0.2) for v in values]
    assert max(map(abs, logs[-50:])) < 0.01
    assert max(logs) < (0.7 if times <= 1 else 1.2)  # overshoot, after a start of log 4 below


def test_ten_times_the_gains_oscillate():
    # The limit that the doc has is one: at slope 3 and three steps late, 8 / 3 times the gains.
    law = PI(kp=5, ki=0.5, rate=math.inf)
    values, *_ = run(rule_of(law), Plant(at=0.2, slope=3, late=3, tokens=0), 600)
    assert max(values[-50:]) > 2 * min(values[-50:])


def largest_slope(kp, ki, smoothing, late):
    """Where the linear loop leaves the unit circle: x(k + 1) = I + kp e, e the smoothed S x, `late` steps ago."""

    def grows(slope):
        n = late + 2  # x now and before, the smoothed measurement, the integral
        step = np.zeros((n, n))
        smoothed, integral = n - 2, n - 1
        step[smoothed, smoothed], step[smoothed, late - 1] = smoothing, -(1 - smoothing) * slope
        step[integral] = ki * step[smoothed]
        step[integral, integral] += 1
        step[0] = step[integral] + kp * step[smoothed]
        for i in range(1, late):
            step[i, i - 1] = 1
        return abs(np.linalg.eigvals(step)).max() > 1

    return next(slope for slope in np.arange(0.1, 1000, 0.1) if grows(slope))


def test_the_documented_limits_of_the_gains_are_those_of_the_linear_loop():
    pi, late = PI(), 4  # three steps later than at once, which is the step after
    assert largest_slope(pi.kp, pi.ki, 0.9, 2) == pytest.approx(18, abs=0.5)
    assert largest_slope(pi.kp, pi.ki, 0.9, late) == pytest.approx(8, abs=0.5)
    for smoothing in (0.8, 0.9, 0.95, 0.99):
        assert pi.ki * largest_slope(pi.ki / (1 - smoothing), pi.ki, smoothing, late) > 0.35
    for gain in (0.01, 0.05, 0.1):  # of the laws that only integrate
        assert gain * largest_slope(0, gain, 0.9, late) > 0.3


@dataclass(frozen=True)
class Winding(PI):
    """PI that integrates whatever happens."""

    kind: ClassVar[str] = "winding_of_tests"

    def step(self, state, gap, target, low, high):
        error = max(-1.0, min(1.0, gap / target))
        return {**super().step(state, gap, target, low, high), "integral": state["integral"] + self.ki * error}


def steps_to_recover(law, end):
    """After 200 steps at a limit, against which the plant drives: until the value is within a tenth of its place."""
    rule = rule_of(law, low=0.02, high=0.2)
    plant = Plant(at=5.0 if end == "high" else 1e-4, tokens=0)  # out of reach
    values, _, state = run(rule, plant, 200)
    assert values[-1] == pytest.approx(0.2 if end == "high" else 0.02, rel=1e-12)
    plant.at = 0.06
    values, *_ = run(rule, plant, 600, state)
    return next(i for i in range(600) if all(abs(math.log(v / 0.06)) < 0.1 for v in values[i : i + 100]))


@pytest.mark.parametrize("end", ["high", "low"])
def test_nothing_has_to_be_unwound_after_200_steps_at_a_limit(end):
    assert steps_to_recover(PI(), end) <= 100
    assert steps_to_recover(Winding(), end) > 150


def test_the_number_moves_no_faster_than_the_rate():
    values, *_ = run(rule_of(PI(rate=0.03), low=0.001, high=100.0), Plant(at=50.0), 100)
    moves = [abs(math.log(b / a)) for a, b in pairwise(values)]
    assert max(moves) == pytest.approx(0.03, rel=1e-9)
    assert mean(moves[:90]) == pytest.approx(0.03, rel=0.2)


def test_more_than_twice_the_target_counts_as_twice():
    rule = rule_of(PI(rate=math.inf), smoothing=0.0)
    twice, more = (rule.radius(rule.start(), {"clip/fraction": found})[0] for found in (0.04, 0.9))
    assert twice == pytest.approx(more, rel=1e-12)


# ------------------------------------------------------------------------------------------------------- the other laws
@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.012, 0.028), min_size=1, max_size=40), st.floats(0.01, 0.4), st.floats(0.001, 0.1))
def test_pi_within_its_limits_is_the_textbooks(found, kp, ki):
    rule = rule_of(PI(kp, ki, math.inf), low=1e-9, high=1e9, smoothing=0.0)
    state, total = rule.start(), 0.0
    for each in found:
        value, state = rule.radius(state, {"clip/fraction": each})
        error = each / 0.02 - 1  # too many outside: wider
        total += error
        assert value == pytest.approx(math.exp(math.log(0.05) + kp * error + ki * total), rel=1e-9)
        assert state["integral"] == pytest.approx(math.log(0.05) + ki * total, rel=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=40))
def test_a_measurement_is_smoothed_from_the_target_on(found):
    rule = rule_of(smoothing=0.8)
    state = rule.start()
    for each in found:
        _, state = rule.radius(state, {"clip/fraction": each})
    n = len(found)
    expected = 0.8**n * 0.02 + sum(0.2 * 0.8 ** (n - 1 - i) * each for i, each in enumerate(found))
    assert state["measured"] == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_adaptive_kl_is_the_controller_of_a_coefficient_upside_down(found):
    rule = rule_of(AdaptiveKL(horizon=5), 0.1, measure="kl_old/k3", low=1e-9, high=1e9, smoothing=0.0)
    state, coefficient = rule.start(), 0.05
    for each in found:
        value, state = rule.radius(state, {"kl_old/k3": each})
        coefficient *= 1 + float(np.clip(-(each / 0.1 - 1), -0.2, 0.2)) * 1 / 5
    assert value == pytest.approx(coefficient, rel=1e-9)


def test_adaptive_kl_holds_a_divergence():
    kl = lambda value: 0.3 * value  # noqa: E731
    rule = rule_of(AdaptiveKL(), 0.06, measure="kl_old/k3")
    values, found, _ = run(rule, kl, 400)
    assert found[-1] == pytest.approx(0.06, rel=1e-3)
    assert values[0] == 0.05
    assert max(abs(b / a - 1) for a, b in pairwise(values)) <= 0.02 + 1e-12


def test_hysteresis_keeps_its_value_within_the_band_and_has_two():
    rule = rule_of(Hysteresis(0.25), 0.4, measure="entropy", low=0.01, high=0.1, smoothing=0.0)
    state, values = rule.start(), []
    for entropy in (0.4, 0.31, 0.3, 0.35, 0.45, 0.5, 0.51, 0.45, 0.31, 0.2, math.nan, 0.6):
        value, state = rule.radius(state, {"entropy": entropy})
        values.append(value)
    assert values == [0.05, 0.05, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.1, 0.1, 0.01]


def test_quantile_tracks_the_quantile_of_the_ratios():
    rng = np.random.default_rng(0)
    rule = rule_of(
        Quantile(2.0), 0.1, region=Clip(0.2, 0.2), parameter=["eps_low", "eps_high"], low=0.01, high=1.0, smoothing=0.0
    )
    state, values = rule.start(), []
    for step in range(800):
        spread = 0.05 if step < 400 else 0.1
        moved = abs(np.exp(rng.normal(0, spread, 500)) - 1)
        value, state = rule.radius(state, {"clip/fraction": float((moved > state["value"]).mean())})
        values.append(value)
    fresh = abs(np.exp(rng.normal(0, 1, 200_000) * 0.05) - 1), abs(np.exp(rng.normal(0, 1, 200_000) * 0.1) - 1)
    for end, sample in zip((400, 800), fresh, strict=True):
        assert mean(values[end - 200 : end]) == pytest.approx(np.quantile(sample, 0.9), rel=0.05)


# ----------------------------------------------------------------------------------------------------- signs and states
WIDER_MAKES_LESS = ["clip/fraction", "clip/high_fraction", "clip/low_fraction", "clip/tail_high_share"]
WIDER_MAKES_LESS += ["cut/fraction", "cut/high_fraction", "cut/low_fraction", "cut/good_tail", "log_ratio/p01"]
WIDER_MAKES_MORE = ["entropy", "kl_old/k1", "kl_old/k3", "log_ratio/p99"]


def test_every_measure_is_one_of_the_metrics_and_has_a_sign():
    assert set(MEASURES) == {*WIDER_MAKES_LESS, *WIDER_MAKES_MORE}
    batch = -torch.rand(2, 3), -torch.rand(2, 3), torch.ones(2), torch.ones(2, 3)
    found = policy_loss(*batch, Band(), entropies=torch.rand(2, 3), metrics="all")[1].compute()
    assert set(MEASURES) <= set(found)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
@pytest.mark.parametrize("measure", MEASURES)
def test_the_number_moves_to_where_the_measure_is_its_target(measure, law):
    less, negative = measure in WIDER_MAKES_LESS, measure == "log_ratio/p01"
    target = -0.1 if negative else 0.1
    rule = rule_of(law, target, measure=measure)
    for found, wider in ((target / 2, not less or negative), (target * 2, less and not negative)):
        state = rule.start()
        for _ in range(20):
            value, state = rule.radius(state, {measure: found})
        assert value > 0.05 if wider else value < 0.05


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_what_is_missing_or_no_number_changes_nothing(law):
    rule = rule_of(law)
    *_, state = run(rule, Plant(at=0.2), 7)
    for found in ({}, {"clip/fraction": math.nan}, {"clip/fraction": math.inf}):
        assert rule.radius(state, found) == (state["value"], state)
    with pytest.raises(ValueError, match="measurements must have 'clip/fraction', which"):
        rule.radius(state, {"clip/count": 3.0})
    with pytest.raises(ValueError, match=r"the value of a state of .* must be in \[low, high\], got 1000"):
        rule.radius(state | {"value": 1000.0}, {})


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_a_state_that_went_through_json_goes_on_exactly_and_a_lost_one_does_not(law):
    rule = rule_of(law, low=0.005, high=0.2)
    whole, _, end = run(rule, Plant(at=0.15, seed=3), 60)
    plant = Plant(at=0.15, seed=3)
    *_, state = run(rule, plant, 25)
    assert all(type(number) is float for number in state.values())
    rest, _, again = run(rule, plant, 35, json.loads(json.dumps(state)))
    assert rest == whole[25:]
    assert again == end
    plant = Plant(at=0.15, seed=3)
    run(rule, plant, 25)
    lost, *_ = run(rule, plant, 35, rule.start())
    assert lost != whole[25:]


def test_radius_is_pure():
    rule = rule_of()
    state = rule.start()
    before = dict(state)
    assert rule.radius(state, {"clip/fraction": 0.3}) == rule.radius(state, {"clip/fraction": 0.3})
    assert state == before
    with pytest.raises(
        ValueError, match=r"the state of .* must have \['value', 'measured', 'integral'\], got \['value'"
    ):
        rule.radius(rule_of(Quantile()).start(), {})


# ------------------------------------------------------------------------------------------------------------- the rule
def same(a, b):
    return a.log_low.equal(b.log_low) and a.log_high.equal(b.log_high)


def test_its_bounds_are_those_of_the_rule_with_the_number_in_force():
    moved = torch.linspace(-1, 1, 40, dtype=torch.float64)
    pairs = [
        (rule_of(), Band("kl", 0.3)),
        (rule_of(region=Band("kl", 0.05, delta_high=0.1), parameter="delta_high"), Band("kl", 0.05, delta_high=0.3)),
        (rule_of(region=Clip(0.2, 0.2), parameter=("eps_low", "eps_high"), high=1.0), Clip(0.3, 0.3)),
        (rule_of(region=DCPO(0.1, 0.2), parameter="eps_high"), DCPO(0.1, 0.3)),
    ]
    for rule, expected in pairs:
        context = Context(controlled=0.3)
        assert rule.at(0.3) == expected
        assert same(rule.bounds(OLD, context), expected.bounds(OLD))
        assert rule.contains(moved, OLD, context).equal(expected.contains(moved, OLD))
        for call in (lambda rule=rule: rule.bounds(OLD), lambda rule=rule: rule.contains(moved, OLD, Context(step=1))):
            with pytest.raises(ValueError, match=r"Controlled needs context\.controlled, .* pass controlled to policy"):
                call()
    with pytest.raises(ValueError, match=r"controlled must be in \[0\.001, 2\] for Controlled.*, got 2\.5"):
        rule_of().bounds(OLD, Context(controlled=2.5))


def test_the_loss_is_that_of_the_rule_in_force():
    rng = torch.Generator().manual_seed(0)
    old, advantages, mask = -3 * torch.rand(4, 8, generator=rng), torch.randn(4, generator=rng), torch.ones(4, 8) > 0
    new = (old + 0.4 * torch.randn(4, 8, generator=rng)).clamp(max=0).requires_grad_()
    losses = [
        policy_loss(new, old, advantages, mask, Objective(region), controlled=0.01)[0]
        for region in (Capped(rule_of(), 1.2), Capped(Band("kl", 0.01), 1.2), Capped(Band("kl", 0.05), 1.2))
    ]
    gradients = [torch.autograd.grad(loss, new)[0] for loss in losses]
    assert losses[0] == losses[1] != losses[2]
    assert gradients[0].equal(gradients[1])
    assert not gradients[0].equal(gradients[2])


def test_nodes_and_labels():
    rules = [rule_of(law) for law in LAWS]
    rules += [
        rule_of(region=Clip(0.2, 0.2), parameter=["eps_low", "eps_high"], high=1.0),
        Capped(BySign(rule_of(smoothing=0.95), Clip(0.2, 0.2)), 3.0),
        rule_of(target=-0.2, measure="log_ratio/p01"),
    ]
    for rule in rules:
        node = json.loads(json.dumps(rule.to_config()))
        assert trust_region(node) == rule
        assert objective({"type": "objective", "trust_region": node}) == Objective(rule)
        assert hash(trust_region(node)) == hash(rule)
    assert len({rule.label for rule in rules}) == len(rules)
    assert rules[0].label == "Band-KL 0.05, delta in 0.001..2.0 for clip/fraction 0.02 (PI)"
    assert Capped(rules[0], 3.0).label == f"({rules[0].label}) cap 3.0"
    assert rules[4].label.startswith("GRPO 0.2/0.2, eps_low, eps_high in 0.001..1.0")
    assert rules[0].to_config()["law"] == {"type": "pi", "kp": 0.5, "ki": 0.05, "rate": 0.1}
    node = rules[0].to_config() | {"target": "2e-2", "law": {"type": "pi"}}
    assert trust_region(node) == rules[0]


@dataclass(frozen=True)
class Bang(ControlLaw):
    """A law of one's own: a fixed step to the side that is needed."""

    kind: ClassVar[str] = "bang_of_tests"
    size: float = 0.01

    def step(self, state, gap, target, low, high):
        return {**state, "value": min(max(state["value"] + math.copysign(self.size, gap), low), high)}


def test_a_law_of_ones_own_is_a_node_too():
    rule = rule_of(Bang(), low=0.02, high=0.2)
    assert trust_region(rule.to_config()) == rule
    *_, found, _ = run(rule, Plant(at=0.1, tokens=0), 200)
    assert mean(found[-100:]) == pytest.approx(0.02, rel=0.1)


def test_the_one_controlled_rule_is_found_and_two_are_refused():
    rule = rule_of()
    nested = BySign(Capped(Union(Clip(0.1, 0.1), rule), 5.0), Clip(0.2, 0.2))
    assert controlled_of(nested) is rule
    assert controlled_of(rule) is rule
    assert controlled_of(Capped(Band(), 5.0)) is None
    for two in (BySign(rule, rule), Union(rule, Capped(rule_of(target=0.1), 3.0))):
        with pytest.raises(
            ValueError, match=r"a rule may have one Controlled in it, got \[Controlled\(.*, Controlled\("
        ):
            Objective(two)


def test_it_goes_with_the_other_combinators_or_says_why_not():
    assert not depends_on_probability(rule_of(region=Clip(0.2, 0.2), parameter="eps_high"))
    assert depends_on_probability(rule_of())
    Objective(rule_of(region=Clip(0.2, 0.2), parameter="eps_high"), ratio="sequence-mean")
    with pytest.raises(ValueError, match="region of Decaying must not be Controlled"):
        Decaying(rule_of(), "target", 0.01, 10)
    with pytest.raises(ValueError, match=r"region of Table must depend on the old probability alone: Controlled needs"):
        Table(rule_of())
    inner = Decaying(Capped(rule_of(), 5.0), "max_ratio", 2.0, 10)
    now = inner.bounds(OLD, Context(step=10, controlled=0.3))
    assert same(now, Capped(Band("kl", 0.3), 2.0).bounds(OLD))


@dataclass(frozen=True)
class Uncertain(Region):
    """A rule that needs entropies, of which nothing is known before there are some."""

    kind: ClassVar[str] = "uncertain_of_tests"
    needs: ClassVar[tuple[str, ...]] = ("entropies",)
    eps: float = 0.2

    def bounds(self, old_logps, context=None):
        entropies = (context or Context()).require("entropies", self)
        return Clip(0.2, self.eps).bounds(old_logps + 0 * entropies)


WRONG = [
    (
        {"measure": "clip/fractoin"},
        r"measure of Controlled must be one of \['clip/fraction', .*did you mean 'clip/frac",
    ),
    ({"measure": "tokens"}, "measure of Controlled must be one of"),
    ({"target": 0.0}, r"target of Controlled must be a number in \(0, 1\), got 0\.0"),
    ({"target": 1.0}, r"target of Controlled must be a number in \(0, 1\)"),
    ({"measure": "entropy", "target": -1.0}, r"target of Controlled must be a number in \(0, inf\)"),
    ({"measure": "log_ratio/p01", "target": 0.1}, r"target of Controlled must be a number in \(-inf, 0\)"),
    (
        {"law": "pi"},
        "law of Controlled must be a bandpo.ControlLaw, of .*'adaptive_kl', .*'hysteresis', 'pi', 'quantile'",
    ),
    ({"low": 0.0}, r"low of Controlled must be a number in \(0, inf\)"),
    ({"low": 0.06}, r"delta of Band.* must be in \[low, high\] = \[0\.06, 2\]"),
    ({"high": 0.04}, r"delta of Band.* must be in \[low, high\] = \[0\.001, 0\.04\]"),
    ({"high": 0.001}, r"high of Controlled must be a number in \(0\.001, inf\)"),
    ({"smoothing": 1.0}, r"smoothing of Controlled must be a number in \[0, 1\)"),
    ({"parameter": "delt"}, r"parameter of Controlled must name a finite number of Band, of \['delta'\], got 'delt'"),
    ({"parameter": "delta_low"}, r"parameter of Controlled must name a finite number of Band"),
    ({"parameter": []}, r"parameter of Controlled must name a finite number of Band"),
    (
        {"region": Clip(0.2, 0.28), "parameter": ["eps_low", "eps_high"], "high": 1.0},
        r"must be equal to begin with, got \{'eps_low': 0\.2, 'eps_high': 0\.28\}",
    ),
    ({"region": Clip(0.2, 0.28), "parameter": "eps_low"}, r"eps_low of Clip must be a number in \[0, 1\], got 2\.0"),
    (
        {"region": RIPO(0.05, 0.5, 10.0), "parameter": "min_ratio", "high": 0.9},
        r"parameter of Controlled must name a number that makes RIPO.* wider when it grows, got 'min_ratio'",
    ),
    ({"region": rule_of(), "parameter": "target", "low": 0.01, "high": 0.5}, "a rule may have one Controlled in it"),
    ({"region": "band"}, "region of Controlled must be a trust region, got 'band'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[re.sub(r"\W+", "-", str(c))[:60] for c, _ in WRONG])
def test_what_is_wrong_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Objective(rule_of(**changes))


def test_the_laws_refuse_what_is_out_of_range():
    for make, message in [
        (lambda: PI(kp=-1), r"kp of PI must be a number in \[0, inf\)"),
        (lambda: PI(ki=0), r"ki of PI must be a number in \(0, inf\)"),
        (lambda: PI(rate=0), r"rate of PI must be a number in \(0, inf\]"),
        (lambda: Hysteresis(1.0), r"width of Hysteresis must be a number in \(0, 1\)"),
        (lambda: Quantile(0.0), r"gain of Quantile must be a number in \(0, inf\)"),
        (lambda: AdaptiveKL(0.5), r"horizon of AdaptiveKL must be a number in \[1, inf\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(ValueError, match=r"law type must be one of .*, got 'pid', did you mean 'pi'"):
        trust_region(rule_of().to_config() | {"law": {"type": "pid"}})


def test_a_rule_that_needs_more_is_taken_at_its_word():
    rule = rule_of(region=Uncertain(), parameter="eps")
    context = Context(entropies=torch.ones(40), controlled=0.5)
    assert rule.bounds(OLD, context).log_high.max() == pytest.approx(math.log(1.5))


def test_reports_show_it_at_its_limits_and_as_it_begins():
    text = explain(rule_of(low=0.01, high=0.5), p=[0.08])
    assert "at delta = 0.01" in text
    assert "at delta = 0.5" in text
    p = np.array([0.1, 0.5])
    for a, b in zip(
        ratio_bounds(Capped(rule_of(), 1.5), p), ratio_bounds(Capped(Band("kl", 0.05), 1.5), p), strict=True
    ):
        assert (a == b).all()


def test_it_is_frozen_and_equal_to_its_like():
    assert rule_of() == rule_of()
    assert rule_of() != rule_of(target=0.03)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule_of().target = 0.1


@pytest.mark.slow
def test_a_compiled_loss_makes_no_new_graph_for_a_new_number():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    rule = Capped(rule_of(), 3.0)

    @torch.compile(backend=counter, fullgraph=True)
    def bounds(old_logps, value):
        return rule.bounds(old_logps, Context(controlled=value)).log_high

    for value in (0.05, 0.06, 0.07, 0.0123, 0.5, 0.0021):
        torch.testing.assert_close(bounds(OLD, value), Capped(Band("kl", value), 3.0).bounds(OLD).log_high)
    assert counter.frame_count <= 3
