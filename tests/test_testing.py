"""The checks for users' own divergences and rules: they pass on ours, and find a planted fault of each kind."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from regions import Wider, name_of

import bandpo
from bandpo import DCPO, Band, Bounds, BySign, Capped, Clip, Context, Objective, Region, Union
from bandpo.band import Divergence
from bandpo.band.divergences import _REGISTRY, divergence
from bandpo.losses import Sapo
from bandpo.losses.nodes import methods
from bandpo.testing import check_divergence, check_objective, check_trust_region
from bandpo.trust_regions import RIPO, Relaxed

CHI2 = divergence("chi2")


GENERATORS = [Divergence("kink", lambda u: 3 * (u - 1).abs()), Divergence("f(0) = inf", lambda u: -u.log())]


@pytest.mark.parametrize("kind", [*_REGISTRY.values(), *GENERATORS], ids=lambda kind: kind.name)
def test_our_own_divergences_and_a_generator_alone_pass(kind):
    check_divergence(kind)


def with_bounds(change):
    def log_bounds(log_p, delta):
        return change(*CHI2.log_bounds(log_p, delta), log_p, delta)

    return Divergence("mine", CHI2.f, log_bounds=log_bounds)


FAULTS = {
    "log_f of another f": (Divergence("mine", CHI2.f, log_f=lambda x: x * x), r"log_f\(log u\) must be f"),
    "log_f with a slope at 1": (Divergence("mine", CHI2.f, log_f=lambda x: torch.exp(2 * x) - 1), "log_f"),
    "log_f without a value far out": (
        Divergence("mine", CHI2.f, log_f=lambda x: torch.expm1(x) ** 2 + 0 * torch.exp(2 * x)),
        "log_f must be a number or inf",
    ),
    "delta doubled": (with_bounds(lambda low, high, p, d: CHI2.log_bounds(p, 2 * d)), "either g = delta or the simpl"),
    "beyond the simplex": (with_bounds(lambda low, high, p, d: (low, high + 1)), r"r_high must be in \[1, 1/p\]"),
    "never saturates": (with_bounds(lambda low, high, p, d: (low.clamp(min=-3), high)), "at r_low either g = delta"),
    "turned round": (with_bounds(lambda low, high, p, d: (high, low)), "r_low must be at most 1"),
    "narrower for a wider radius": (
        with_bounds(lambda low, high, p, d: CHI2.log_bounds(p, d if d < 1 else 1e-4)),
        "either g = delta|must widen with the radius",
    ),
    "the first point is named": (
        with_bounds(lambda low, high, p, d: (low, -p + math.log(2))),
        r"p = 1e-06, r_low = .*, r_high = 2.*e\+06",
    ),
}


@pytest.mark.parametrize(("faulty", "message"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_divergence_is_found(faulty, message):
    with pytest.raises(AssertionError, match=message):
        check_divergence(faulty)


RULES = [
    (DCPO(),),
    (RIPO(),),
    (Union(Band("kl", 0.05), Clip(0.2, 0.2)),),
    # Reverse KL is solved as Jensen-Shannon is, and takes as long.
    *((Band(name, 0.05),) for name in _REGISTRY if name != "reverse_kl"),
    (Band("kl", delta_low=0.01, delta_high=0.1),),
    (Relaxed(Band(), Clip(0.2, 0.28)),),
    (Capped(Band(), 10.0),),
    (BySign(Clip(0.2, 0.2), Clip(0.2, 1.0)), Context(advantages=torch.linspace(-1, 1, 64)[None])),
    (Wider(0.3), Context(extra={"entropies": torch.rand(1, 64)})),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: name_of(rule[0]))
def test_our_own_rules_pass(rule):
    """Those that need a context with one."""
    check_trust_region(*rule)


def mine(bounds=None):
    """A rule like Clip(0.5, 1.0) with one method replaced."""

    class Mine(Region):
        def bounds(self, old_logps, context=None):
            inner = Clip(0.5, 1.0).bounds(old_logps)
            return inner if bounds is None else bounds(inner, old_logps)

    return Mine()


class Alone(Region):
    def bounds(self, old_logps):
        return Clip(0.5, 1.0).bounds(old_logps)


@dataclass(frozen=True)
class Faulty(Region):
    """A clip of 0.2 with one fault."""

    kind: ClassVar[str] = "faulty"
    fault: str = "batch"

    def bounds(self, old_logps, context=None):
        scales = {"batch": len(old_logps), "random": 0.5 + torch.rand(())}
        bounds, scale = Clip(0.2, 0.2).bounds(old_logps), scales.get(self.fault, 1)
        return Bounds(bounds.log_low * scale, bounds.log_high * scale)

    def to_config(self):
        return {"type": "clip"} if self.fault == "node" else super().to_config()


REGION_FAULTS = {
    "wrong sign": (mine(lambda b, p: Bounds(-b.log_low, b.log_high)), "log_low <= 0 <= log_high"),
    "wrong shape": (mine(lambda b, p: Bounds(b.log_low[..., :1], b.log_high)), "log_low must be"),
    "half precision": (
        mine(lambda b, p: Bounds(b.log_low.half(), b.log_high)),
        "log_low must be at least float32 .*, got torch.float16",
    ),
    "bounds of p alone": (Alone(), r"bounds must take \(self, old_logps, context=None\)"),
    "a gradient": (mine(lambda b, p: Bounds(b.log_low + 0 * p.clamp(-1, 0), b.log_high)), "log_low must be detached"),
    "NaN at p = 0": (mine(lambda b, p: Bounds(b.log_low, b.log_high + 0 * p.detach())), "log_low <= 0 <= log_high"),
    "NaN hidden": (mine(lambda b, p: Bounds(b.log_low.nan_to_num(-1.0), b.log_high)), "not so at log p = nan, log_low"),
    "NaN spread": (mine(lambda b, p: Bounds(b.log_low, b.log_high + 0 * b.log_high.sum())), "log_high must be NaN exa"),
    "its node is another rule": (Faulty("node"), "the config node .* must give"),
    "the batch matters": (
        mine(lambda b, p: Bounds(b.log_low, b.log_high * (1 + b.log_high.isfinite().sum(-1, keepdim=True)))),
        "must not depend on the other tokens",
    ),
}


@pytest.mark.parametrize(("region", "message"), REGION_FAULTS.values(), ids=REGION_FAULTS)
def test_a_faulty_rule_is_found(region, message):
    with pytest.raises(AssertionError, match=message):
        check_trust_region(region)


# ---- objectives


@pytest.mark.parametrize(
    "method",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] if i % 4 else []) for i, each in enumerate(methods())],
)
def test_every_method_passes(method):
    check_objective(method.objective)


OBJECTIVES = [
    (Objective(Clip(), beta=0.1), {}),
    (Objective(Band(), aggregation="none", surrogate=("mask", "weight")), {}),
    (Objective(Band("tv", 0.1), aggregation="token-mean", dual_clip=3.0), {}),
    (Objective(Band(), surrogate="quadratic", aggregation="seq-mean-token-sum-norm"), {}),
    (Objective(Clip(0.02, 0.02), ratio="sequence-mean", surrogate=(Sapo(), "quadratic")), {}),
    (Objective(Faulty("batch")), {"sees_batch": True}),  # on purpose
    (Objective(Wider(0.3)), {"extra": {"entropies": torch.linspace(0, 2, 48, dtype=torch.float64).view(6, 8)}}),
]


@pytest.mark.parametrize(("objective", "options"), OBJECTIVES, ids=[name_of(objective) for objective, _ in OBJECTIVES])
def test_objectives_pass(objective, options):
    check_objective(objective, **options)


@pytest.mark.parametrize(
    ("fault", "options", "message"),
    [
        (
            "batch",
            {},
            r"must not depend on the other responses.*; of a rule that .* sees_batch=True; not so at gradient",
        ),
        ("random", {}, "must be the same in a second call"),
        ("random", {"sees_batch": True}, "must be the same in a second call"),
        ("node", {}, "the config node .* must give"),
    ],
)
def test_a_faulty_rule_is_found_through_its_objective(fault, options, message):
    with pytest.raises(AssertionError, match=message):
        check_objective(Objective(Faulty(fault)), **options)


LOSS_FAULTS = {
    "value of parts": (
        lambda loss, x: loss * len(x),
        "the value of two micro-batches with one normalizer must be that",
    ),
    "gradient of parts": (
        lambda loss, x: loss + (len(x) - 1) * (loss - loss.detach()),
        "the gradient of two micro-batches with one normalizer must be that of the whole",
    ),
    "padding": (lambda loss, x: loss + 0 * x.sum(), "what stands in padding must not reach the value"),
    "infinite": (lambda loss, x: loss + torch.where(x.isinf().any(), torch.inf, 0.0), "the value must be finite at an"),
}


@pytest.mark.parametrize(("change", "message"), LOSS_FAULTS.values(), ids=LOSS_FAULTS)
def test_a_faulty_loss_is_found(monkeypatch, change, message):
    def faulty(logps, *others, **more):
        loss, metrics = bandpo.policy_loss(logps, *others, **more)
        return change(loss, logps), metrics

    monkeypatch.setattr(bandpo.testing, "policy_loss", faulty)
    with pytest.raises(AssertionError, match=message):
        check_objective(Objective(Clip()))
