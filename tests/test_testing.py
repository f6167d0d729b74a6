"""The checks for users' own divergences and rules: they pass on ours, and find a planted fault of each kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from regions import Wider, name_of

import bandpo
from bandpo import DCPO, Band, Bounds, BySign, Capped, Clip, Context, Decaying, Objective, Region, Union
from bandpo.band import Divergence
from bandpo.band.divergences import _REGISTRY, divergence
from bandpo.losses import Sapo
from bandpo.losses.nodes import methods
from bandpo.testing import check_divergence, check_objective, check_trust_region
from bandpo.trust_regions import RIPO, Relaxed

CHI2 = divergence("chi2")


@pytest.mark.parametrize("name", [*_REGISTRY])
def test_our_own_divergences_pass(name):
    check_divergence(divergence(name))


@pytest.mark.parametrize(
    "f",
    [lambda u: 3 * (u - 1).abs(), lambda u: -u.log(), lambda u: torch.xlogy(u, u), lambda u: (u - 1) ** 2 / (u + 1)],
    ids=["kink", "f(0) = inf", "slope at 1", "le cam"],
)
def test_a_generator_alone_passes(f):
    check_divergence(Divergence("mine", f))


def with_bounds(change):
    def log_bounds(log_p, delta):
        return change(*CHI2.log_bounds(log_p, delta), log_p, delta)

    return Divergence("mine", CHI2.f, log_bounds=log_bounds)


FAULTS = {
    "log_f of another f": (Divergence("mine", CHI2.f, log_f=lambda x: x * x), r"log_f\(log u\) must be f"),
    "log_f with a slope at 1": (Divergence("mine", CHI2.f, log_f=lambda x: torch.exp(2 * x) - 1), "log_f"),
    "delta doubled": (
        with_bounds(lambda low, high, p, d: CHI2.log_bounds(p, 2 * d)),
        "either g = delta or the simplex",
    ),
    "beyond the simplex": (with_bounds(lambda low, high, p, d: (low, high + 1)), r"r_high must be in \[1, 1/p\]"),
    "never saturates": (with_bounds(lambda low, high, p, d: (low.clamp(min=-3), high)), "at r_low either g = delta"),
    "turned round": (with_bounds(lambda low, high, p, d: (high, low)), "r_low must be at most 1"),
    "narrower for a wider radius": (
        with_bounds(lambda low, high, p, d: CHI2.log_bounds(p, d if d < 1 else 1e-4)),
        "either g = delta|must widen with the radius",
    ),
}


@pytest.mark.parametrize(("faulty", "message"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_divergence_is_found(faulty, message):
    with pytest.raises(AssertionError, match=message):
        check_divergence(faulty)


REGIONS = [
    DCPO(),
    RIPO(),
    Union(Band("kl", 0.05), Clip(0.2, 0.2)),
    # Reverse KL is solved as Jensen-Shannon is, and takes as long: every day one of them.
    *(pytest.param(Band(x, 0.05), marks=[pytest.mark.slow] if x == "reverse_kl" else []) for x in _REGISTRY),
    Band("kl", delta_low=0.01, delta_high=0.1),
    Relaxed(Band(), Clip(0.2, 0.28)),
    Capped(Band(), 10.0),
]


@pytest.mark.parametrize("region", REGIONS, ids=name_of)
def test_our_own_rules_pass(region):
    check_trust_region(region)


def test_rules_with_a_context_pass():
    check_trust_region(BySign(Clip(0.2, 0.2), Clip(0.2, 1.0)), Context(advantages=torch.linspace(-1, 1, 64)[None]))
    check_trust_region(Decaying(Band("kl", 0.2), "delta", 0.02, 100), Context(step=50))


def mine(bounds=None, contains=None, **fields):
    """A rule like Clip(0.5, 1.0) with one method replaced."""

    class Mine(Region):
        def bounds(self, old_logps, context=None):
            inner = Clip(0.5, 1.0).bounds(old_logps)
            return inner if bounds is None else bounds(inner, old_logps)

        def contains(self, log_ratio, old_logps, context=None):
            inner = self.bounds(old_logps, context).contains(log_ratio)
            return inner if contains is None else contains(inner, log_ratio)

    return Mine()


REGION_FAULTS = {
    "wrong sign": (mine(lambda b, p: Bounds(-b.log_low, b.log_high)), "log_low <= 0 <= log_high"),
    "wrong shape": (mine(lambda b, p: Bounds(b.log_low[..., :1], b.log_high)), "log_low must be"),
    "half precision": (mine(lambda b, p: Bounds(b.log_low.half(), b.log_high)), "log_low is torch.float16"),
    "a gradient": (mine(lambda b, p: Bounds(b.log_low + 0 * p.clamp(-1, 0), b.log_high)), "log_low must be detached"),
    "NaN at p = 0": (mine(lambda b, p: Bounds(b.log_low, b.log_high + 0 * p.detach())), "log_low <= 0 <= log_high"),
    "NaN hidden": (
        mine(lambda b, p: Bounds(b.log_low.nan_to_num(-1.0), b.log_high)),
        "log_low must be NaN exactly where log p is; not so at log p = nan, log_low = -1",
    ),
    "NaN spread": (mine(lambda b, p: Bounds(b.log_low, b.log_high + 0 * b.log_high.sum())), "log_high must be NaN exa"),
    "the batch matters": (
        mine(lambda b, p: Bounds(b.log_low, b.log_high * (1 + b.log_high.isfinite().sum(-1, keepdim=True)))),
        "must not depend on the other tokens",
    ),
    "an open interval": (mine(contains=lambda inside, s: inside & (s.abs() < 0.6)), "contains must be True at"),
    "everything inside": (mine(contains=lambda inside, s: torch.ones_like(inside)), "contains must be False at"),
}


@pytest.mark.parametrize(("region", "message"), REGION_FAULTS.values(), ids=REGION_FAULTS)
def test_a_faulty_rule_is_found(region, message):
    with pytest.raises(AssertionError, match=message):
        check_trust_region(region)


def test_a_rule_that_does_not_survive_yaml_is_found():
    @dataclass(frozen=True)
    class Forgetful(bandpo.Region):
        kind: ClassVar[str] = "forgetful_in_a_test"
        eps: float = 0.2

        def bounds(self, old_logps, context=None):
            return Clip(self.eps, self.eps).bounds(old_logps)

        def to_config(self):
            return {"type": self.kind}

    check_trust_region(Forgetful())
    with pytest.raises(AssertionError, match=r"the config node .* must give"):
        check_trust_region(Forgetful(0.1))


def test_the_first_point_is_named():
    with pytest.raises(AssertionError, match=r"p = 1e-06, r_low = .*, r_high = 2.*e\+06"):
        check_divergence(with_bounds(lambda low, high, p, d: (low, -p + math.log(2))))


# ---- objectives


@pytest.mark.parametrize(
    "method",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] if i % 4 else []) for i, each in enumerate(methods())],
)
def test_every_method_passes(method):
    numbers = {"entropies": 1.0, "old_entropies": 1.02, "group_mean": 0.5, "divergences": 0.1}
    more = {name: torch.tensor(x) for name, x in numbers.items()}
    check_objective(method.objective, step=3, staleness=2, **more)


@pytest.mark.parametrize(
    "objective",
    [
        Objective(Clip(), beta=0.1),
        Objective(Band(), aggregation="none", apply=("mask", "weight")),
        Objective(Band("tv", 0.1), aggregation="token-mean", dual_clip=3.0),
        Objective(Band(), apply="quadratic", aggregation="seq-mean-token-sum-norm"),
        Objective(Clip(0.02, 0.02), ratio="sequence-mean", apply=(Sapo(), "quadratic")),
    ],
    ids=name_of,
)
def test_objectives_pass(objective):
    check_objective(objective)


@dataclass(frozen=True)
class Faulty(Region):
    """A clip of 0.2 with one fault."""

    kind: ClassVar[str] = "faulty"
    fault: str = "batch"

    def bounds(self, old_logps, context=None):
        width = torch.full_like(old_logps.detach(), math.log(1.2))
        if self.fault == "batch":
            width = width * len(old_logps)
        elif self.fault == "random":
            width = width * (0.5 + torch.rand(()))
        return Bounds(-width, width)

    def to_config(self):
        return {"type": "clip"} if self.fault == "node" else super().to_config()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "batch",
            r"must not depend on the other responses.*; of a rule that .* sees_batch=True; not so at gradient = ",
        ),
        ("random", "must be the same in a second call"),
        ("node", "the config node .* must give"),
    ],
)
def test_a_faulty_rule_is_found_through_its_objective(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_objective(Objective(Faulty(fault)))


def test_a_rule_may_see_the_batch_on_purpose():
    """All else is asked of it as of the others."""
    check_objective(Objective(Faulty("batch")), sees_batch=True)
    with pytest.raises(AssertionError, match="must be the same in a second call"):
        check_objective(Objective(Faulty("random")), sees_batch=True)


def test_tensors_of_the_batch_go_with_their_responses():
    """Widths that are all the same but for one response."""
    check_objective(Objective(Wider(0.3)), entropies=torch.linspace(0, 2, 48, dtype=torch.float64).view(6, 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda loss, leaf, mask: loss * len(leaf), "the value of two micro-batches with one normalizer must be that"),
        (
            lambda loss, leaf, mask: loss + (len(leaf) - 1) * (loss - loss.detach()),
            "the gradient of two micro-batches with one normalizer must be that of the whole",
        ),
        (lambda loss, leaf, mask: loss + 0 * leaf.sum(), "what stands in padding must not reach the value"),
        (
            lambda loss, leaf, mask: loss + torch.where(leaf.isinf().any(), torch.inf, 0.0),
            "the value must be finite at an old log p of ",
        ),
    ],
    ids=["value of micro-batches", "gradient of micro-batches", "padding", "infinite"],
)
def test_a_faulty_loss_is_found(monkeypatch, change, message):
    def faulty(logps, old_logps, advantages, mask, objective, **more):
        loss, metrics = bandpo.policy_loss(logps, old_logps, advantages, mask, objective, **more)
        return change(loss, logps, mask), metrics

    monkeypatch.setattr(bandpo.testing, "policy_loss", faulty)
    with pytest.raises(AssertionError, match=message):
        check_objective(Objective(Clip()))
