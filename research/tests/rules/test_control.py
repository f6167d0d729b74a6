"""A radius that steers itself, on simulated plants: what is measured falls with the radius, late and noisily."""

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plants import Plant, check_missing, check_resumed, largest_slope, mean, run
from regions import Narrowing

from bandpo import (
    DCPO,
    Band,
    BySign,
    Capped,
    Clip,
    Context,
    Objective,
    Region,
    Union,
    objective,
    policy_loss,
)
from bandpo.explain import explain
from bandpo.trust_regions import trust_region
from bandpo.trust_regions.base import depends_on_probability
from research.rules.control import MEASURES, ControlLaw, Controlled, Quantile, find_one

OLD = torch.linspace(-9, 0, 40, dtype=torch.float64)


def rule_of(law=None, target=0.02, **changes):
    fields = {"region": Band("kl", 0.05), "parameter": "delta", "measure": "clip/fraction", "low": 0.001, "high": 2.0}
    return Controlled(**{**fields, "target": target, "law": law or Quantile(), **changes})


def test_the_documented_limit_of_the_gain_is_that_of_the_linear_loop():
    for gain in (0.01, 0.05, 0.1):
        assert gain * largest_slope(0, gain, 0.9, 4) > 0.3


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
    found = policy_loss(*batch, Band(), extra={"entropies": torch.rand(2, 3)}, metrics="all")[1].compute()
    assert set(MEASURES) <= set(found)


@pytest.mark.parametrize("measure", MEASURES)
def test_the_number_moves_to_where_the_measure_is_its_target(measure):
    less, negative = measure in WIDER_MAKES_LESS, measure == "log_ratio/p01"
    target = -0.1 if negative else 0.1
    rule = rule_of(None, target, measure=measure)
    for found, wider in ((target / 2, not less or negative), (target * 2, less and not negative)):
        state = rule.start()
        for _ in range(20):
            value, state = rule.radius(state, {measure: found})
        assert value > 0.05 if wider else value < 0.05


def test_what_is_missing_or_no_number_changes_nothing():
    check_missing(rule_of())


def test_a_state_that_went_through_json_goes_on_exactly_and_a_lost_one_does_not():
    check_resumed(rule_of(low=0.005, high=0.2))


def test_radius_is_pure():
    rule = rule_of()
    state = rule.start()
    before = dict(state)
    assert rule.radius(state, {"clip/fraction": 0.3}) == rule.radius(state, {"clip/fraction": 0.3})
    assert state == before
    with pytest.raises(
        ValueError, match=r"the state of .* must have \['value', 'measured'\], got \['value', 'measured', 'integral'\]"
    ):
        rule.radius(rule.start() | {"integral": 0.0}, {})


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
        context = Context(extra={"controlled": 0.3})
        assert rule.at(0.3) == expected
        assert same(rule.bounds(OLD, context), expected.bounds(OLD))
        assert rule.bounds(OLD, context).contains(moved).equal(expected.bounds(OLD).contains(moved))
        for call in (
            lambda rule=rule: rule.bounds(OLD),
            lambda rule=rule: rule.bounds(OLD, Context(extra={"step": 1})),
        ):
            with pytest.raises(
                ValueError, match=r"Controlled needs controlled, .* pass extra=\{'controlled': \.\.\.\} to"
            ):
                call()
    with pytest.raises(ValueError, match=r"controlled must be in \[0\.001, 2\] for Controlled.*, got 2\.5"):
        rule_of().bounds(OLD, Context(extra={"controlled": 2.5}))


def test_the_loss_is_that_of_the_rule_in_force():
    rng = torch.Generator().manual_seed(0)
    old, advantages, mask = -3 * torch.rand(4, 8, generator=rng), torch.randn(4, generator=rng), torch.ones(4, 8) > 0
    new = (old + 0.4 * torch.randn(4, 8, generator=rng)).clamp(max=0).requires_grad_()
    losses = [
        policy_loss(new, old, advantages, mask, Objective(region), extra={"controlled": 0.01})[0]
        for region in (Capped(rule_of(), 1.2), Capped(Band("kl", 0.01), 1.2), Capped(Band("kl", 0.05), 1.2))
    ]
    gradients = [torch.autograd.grad(loss, new)[0] for loss in losses]
    assert losses[0] == losses[1] != losses[2]
    assert gradients[0].equal(gradients[1])
    assert not gradients[0].equal(gradients[2])


def test_nodes_and_labels():
    rules = [
        rule_of(),
        rule_of(Quantile(2.0)),
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
    assert rules[0].label == "Band-KL 0.05, delta in 0.001..2.0 for clip/fraction 0.02 (Quantile 1.0, smoothing 0.9)"
    assert Capped(rules[0], 3.0).label == f"({rules[0].label}) cap 3.0"
    assert rules[2].label.startswith("GRPO 0.2/0.2, eps_low, eps_high in 0.001..1.0")
    assert rules[0].to_config()["law"] == {"type": "research.rules.control:Quantile", "gain": 1.0}
    node = rules[0].to_config() | {"target": "2e-2", "law": {"type": "quantile"}}
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
    assert find_one(nested, Controlled) is rule
    assert find_one(rule, Controlled) is rule
    assert find_one(Capped(Band(), 5.0), Controlled) is None
    for two in (BySign(rule, rule), Union(rule, Capped(rule_of(target=0.1), 3.0))):
        with pytest.raises(
            ValueError, match=r"a rule may have one Controlled in it, got \[Controlled\(.*, Controlled\("
        ):
            find_one(two, Controlled)


def test_it_goes_with_the_other_combinators():
    assert not depends_on_probability(rule_of(region=Clip(0.2, 0.2), parameter="eps_high"))
    assert depends_on_probability(rule_of())
    Objective(rule_of(region=Clip(0.2, 0.2), parameter="eps_high"), ratio="sequence-mean")
    now = Capped(rule_of(), 2.0).bounds(OLD, Context(extra={"controlled": 0.3}))
    assert same(now, Capped(Band("kl", 0.3), 2.0).bounds(OLD))


@dataclass(frozen=True)
class Uncertain(Region):
    """A rule that needs entropies, of which nothing is known before there are some."""

    kind: ClassVar[str] = "uncertain_of_tests"
    required: ClassVar[tuple[str, ...]] = ("entropies",)
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
        "law of Controlled must be a ControlLaw, of .*'quantile'",
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
        {"region": Narrowing(), "parameter": "slope", "high": 0.9},
        r"parameter of Controlled must name a number that makes Narrowing.* wider when it grows, got 'slope'",
    ),
    ({"region": "band"}, "region of Controlled must be a trust region, got 'band'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[re.sub(r"\W+", "-", str(c))[:60] for c, _ in WRONG])
def test_what_is_wrong_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Objective(rule_of(**changes))


def test_a_law_refuses_what_is_out_of_range():
    with pytest.raises(ValueError, match=r"gain of Quantile must be a number in \(0, inf\)"):
        Quantile(0.0)
    with pytest.raises(ValueError, match=r"law type must be one of .*, got 'quantil', did you mean 'quantile'"):
        trust_region(rule_of().to_config() | {"law": {"type": "quantil"}})


def test_a_rule_that_needs_more_is_taken_at_its_word():
    rule = rule_of(region=Uncertain(), parameter="eps")
    context = Context(extra={"entropies": torch.ones(40), "controlled": 0.5})
    assert rule.bounds(OLD, context).log_high.max() == pytest.approx(math.log(1.5))


def test_it_is_explained_at_its_limits():
    text = explain(rule_of(low=0.01, high=0.5), p=[0.08])
    assert "at delta = 0.01" in text
    assert "at delta = 0.5" in text


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
        return rule.bounds(old_logps, Context(extra={"controlled": value})).log_high

    for value in (0.05, 0.06, 0.07, 0.0123, 0.5, 0.0021):
        torch.testing.assert_close(bounds(OLD, value), Capped(Band("kl", value), 3.0).bounds(OLD).log_high)
    assert counter.frame_count <= 3
