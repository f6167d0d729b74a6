"""Laws that steer a radius, on simulated plants: what is measured falls with the radius, late and noisily."""

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plants import Plant, check_missing, check_resumed, largest_slope, mean, run

from bandpo import Band, Objective
from bandpo.trust_regions import trust_region
from research.rules.control import MEASURES, Controlled
from research.rules.laws import PI, AdaptiveKL, Hysteresis

LAWS = [PI(), Hysteresis(), AdaptiveKL()]


def rule_of(law=None, target=0.02, **changes):
    fields = {"region": Band("kl", 0.05), "parameter": "delta", "measure": "clip/fraction", "low": 0.001, "high": 2.0}
    return Controlled(**{**fields, "target": target, "law": law or PI(), **changes})


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


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
@pytest.mark.parametrize("measure", MEASURES)
def test_the_number_moves_to_where_the_measure_is_its_target(measure, law):
    less, negative = MEASURES[measure][0] < 0, measure == "log_ratio/p01"
    target = -0.1 if negative else 0.1
    rule = rule_of(law, target, measure=measure)
    for found, wider in ((target / 2, not less or negative), (target * 2, less and not negative)):
        state = rule.start()
        for _ in range(20):
            value, state = rule.radius(state, {measure: found})
        assert value > 0.05 if wider else value < 0.05


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_what_is_missing_or_no_number_changes_nothing(law):
    check_missing(rule_of(law))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_a_state_that_went_through_json_goes_on_exactly_and_a_lost_one_does_not(law):
    check_resumed(rule_of(law, low=0.005, high=0.2))


def test_nodes_and_refusals():
    for law in LAWS:
        rule = rule_of(law)
        assert trust_region(json.loads(json.dumps(rule.to_config()))) == rule
        assert Objective(rule).trust_region is rule
    for make, message in [
        (lambda: PI(kp=-1), r"kp of PI must be a number in \[0, inf\)"),
        (lambda: PI(ki=0), r"ki of PI must be a number in \(0, inf\)"),
        (lambda: PI(rate=0), r"rate of PI must be a number in \(0, inf\]"),
        (lambda: Hysteresis(1.0), r"width of Hysteresis must be a number in \(0, 1\)"),
        (lambda: AdaptiveKL(0.5), r"horizon of AdaptiveKL must be a number in \[1, inf\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
