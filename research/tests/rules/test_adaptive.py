"""Radii that differ from token to token: their mean, what they are made of, and what a part of a batch must be told."""

import dataclasses
import math
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bandpo import Band, Clip, Context, Objective, policy_loss
from bandpo.band import divergence_at
from bandpo.explain import explain
from bandpo.testing import check_trust_region
from bandpo.trust_regions import trust_region
from research.rules.adaptive import Adaptive, Tilt, TokenLaw

F64 = torch.float64
MASK = torch.arange(6) < torch.tensor([[6], [3], [5], [0]])


def batch(seed=0):
    """Old and new log-probabilities, and what a rule may ask for, with garbage in padding."""
    rng = torch.Generator().manual_seed(seed)
    old, new, entropies = (torch.rand(4, 6, generator=rng, dtype=F64) for _ in range(3))
    old, new = (0.98 * old + 0.01).log(), (0.98 * new + 0.01).log()
    old, new, entropies = (torch.where(MASK, x, torch.nan) for x in (old, new, 3 * entropies))
    return old, new, {"old_entropies": entropies}


def context(old, known):
    return Context(response_mask=MASK, extra=known)


def textbook(old, known, of, gain, limit=10.0):
    """Weights of the response tokens, one by one."""
    out = {}
    for i in range(4):
        length = int(MASK[i].sum())
        for t in range(length):
            x = {
                "entropy": known["old_entropies"][i, t],
                "surprise": -old[i, t],
                "position": t / length,
            }[of]
            out[i, t] = min(max(math.exp(gain * float(x)), 1 / limit), limit)
    return out


QUANTITIES = ["entropy", "surprise", "position"]


@pytest.mark.parametrize("of", QUANTITIES)
@pytest.mark.parametrize("gain", [0.7, -1.5, 4.0])
@pytest.mark.parametrize("kind", ["kl", "tv"])
def test_a_token_may_go_where_its_own_divergence_is_its_share_of_the_radius(of, gain, kind):
    old, _, known = batch()
    weights = textbook(old, known, of, gain)
    mean = sum(weights.values()) / len(weights)
    bounds = Adaptive(Band(kind, 0.02), Tilt(of, gain)).bounds(old, context(old, known))
    for (i, t), weight in weights.items():
        radius = 0.02 * weight / mean
        for end in (bounds.log_low, bounds.log_high):
            spent = float(divergence_at(end[i, t], old[i, t], kind))
            # Less where the simplex ends: the token may have any probability, or none.
            at_the_end = end[i, t] == -math.inf or float(end[i, t] + old[i, t]) > -1e-9
            assert spent == pytest.approx(radius, rel=1e-6) or (at_the_end and spent <= radius * (1 + 1e-9))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(QUANTITIES), st.floats(-5, 5), st.floats(1.01, 100), st.integers(0, 1000))
def test_the_mean_radius_is_the_one_asked_for(of, gain, limit, seed):
    old, _, known = batch(seed)
    old = torch.where(MASK, -math.log(2.0), old)  # TV at one half: the radius can be read off the bound
    bounds = Adaptive(Band("tv", 1e-3), Tilt(of, gain, limit)).bounds(old, context(old, known))
    radii = (bounds.log_high.expm1() / 2)[MASK]
    assert float(radii.mean()) == pytest.approx(1e-3, rel=1e-9)
    assert float(radii.max() / radii.min()) <= limit**2 * (1 + 1e-9)


def test_each_side_of_a_band_keeps_its_own_radius():
    old, _, known = batch()
    seen = context(old, known)
    both = Adaptive(Band("kl", 0.5, delta_low=0.01, delta_high=0.03), Tilt("entropy", 1.0)).bounds(old, seen)
    low, high = (Adaptive(Band("kl", d), Tilt("entropy", 1.0)).bounds(old, seen) for d in (0.01, 0.03))
    torch.testing.assert_close(both.log_low, low.log_low, equal_nan=True)
    torch.testing.assert_close(both.log_high, high.log_high, equal_nan=True)


def test_no_gain_is_the_band():
    old, _, known = batch()
    found = Adaptive(Band("kl", 0.05), Tilt("entropy", 0.0)).bounds(old, context(old, known))
    torch.testing.assert_close(found.log_high, Band("kl", 0.05).bounds(old).log_high, equal_nan=True)


@pytest.mark.parametrize("of", QUANTITIES)
def test_parts_of_a_batch_are_the_batch_once_they_know_its_mean(of):
    old, new, known = batch()
    region, advantages = Adaptive(Band("kl", 0.02), Tilt(of, 1.3)), torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=F64)
    rule = Objective(region, surrogate="weight")  # whose gradient is the bound, where it holds

    def gradient(rows, **extra):
        leaf = new[rows].clone().requires_grad_()
        own = {name: value[rows] for name, value in known.items()}
        extra |= own
        loss, metrics = policy_loss(leaf, old[rows], advantages[rows], MASK[rows], rule, normalizer=4, extra=extra)
        return torch.autograd.grad(loss, leaf)[0], metrics.compute()["clip/count"]

    weights = region.weights(old, context(old, known))
    mean = torch.where(MASK, weights, 0.0).sum() / MASK.sum()
    whole, limited = gradient(slice(None))
    parts = [gradient(slice(i, i + 2), mean_weight=mean) for i in (0, 2)]
    torch.testing.assert_close(torch.cat([part for part, _ in parts]), whole)
    assert sum(n for _, n in parts) == limited > 0
    alone = torch.cat([gradient(slice(i, i + 2))[0] for i in (0, 2)])
    assert not torch.allclose(alone, whole, rtol=1e-3)  # the halves have other means


def test_what_stands_in_padding_does_not_matter():
    old, _, known = batch()
    region = Adaptive(Band("kl", 0.02), Tilt("entropy", 1.0))
    clean = {name: torch.nan_to_num(value, nan=0.3) for name, value in known.items()}
    seen = [region.bounds(a, context(a, k)) for a, k in ((old, known), (old.nan_to_num(-0.5), clean))]
    torch.testing.assert_close(seen[0].log_high[MASK], seen[1].log_high[MASK])


def test_what_is_not_known_of_a_token_is_seen_in_its_bounds_and_in_no_others():
    old, _, known = batch()
    hole = known | {"old_entropies": known["old_entropies"].clone()}
    hole["old_entropies"][0, 2] = torch.nan
    found = Adaptive(Band("kl", 0.02), Tilt("entropy", 1.0)).bounds(old, context(old, hole))
    nan = found.log_high.isnan() & MASK
    assert nan.nonzero().tolist() == [[0, 2]]


@pytest.mark.parametrize("of", ["entropy", "surprise"])
def test_it_is_a_rule_like_others(of):
    seen = Context(torch.ones(1, 64, dtype=torch.bool), extra={"old_entropies": torch.linspace(0, 3, 64)[None]})
    check_trust_region(Adaptive(Band("tv", 0.05), Tilt(of, 0.5)), seen)


@dataclasses.dataclass(frozen=True)
class Late(TokenLaw):
    """A law of one's own."""

    kind: ClassVar[str] = "late_of_tests"
    required: ClassVar[tuple[str, ...]] = ("positions",)

    def weights(self, old_logps, context):
        return 1.0 + context.require("positions", self)


def test_a_law_of_ones_own_is_a_node():
    region = Adaptive(Band("tv", 0.1), Late())
    assert trust_region(region.to_config()) == region
    old = torch.full((1, 3), 0.5).log()
    seen = Context(response_mask=torch.ones(1, 3, dtype=torch.bool), extra={"positions": torch.arange(3)[None]})
    found = region.bounds(old, seen).variation(old).high
    torch.testing.assert_close(found, torch.tensor([[0.05, 0.1, 0.15]]))


def test_words_nodes_and_labels():
    region = Adaptive(Band("kl", 0.05), Tilt("entropy", 0.5))
    assert trust_region(region.to_config()) == region
    assert region.label == "Band-KL 0.05 by entropy +0.5"
    assert Adaptive(Band("kl", 0.05), Tilt("surprise", -1, 4)).label == "Band-KL 0.05 by surprise -1 within 4.0"
    assert "a token of mean weight" in explain(region)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adaptive(Clip(), Tilt("entropy", 1)), "region of Adaptive must be a Band, got Clip"),
        (lambda: Adaptive(Band(), Band()), r"law of Adaptive must be a TokenLaw, of \["),
        (lambda: Tilt("entrpy", 1), "of of Tilt must be one of .*, got 'entrpy'"),
        (lambda: Tilt("entropy", math.inf), "gain of Tilt must be a number in"),
        (lambda: Tilt("entropy", 1, 1.0), r"limit of Tilt must be a number in \(1, inf\)"),
        (
            lambda: trust_region({"type": "adaptive", "region": {"type": "band"}, "law": {"type": "tlt"}}),
            "law type must",
        ),
        (lambda: trust_region({"type": "adaptive", "region": {"type": "band"}}), "law"),
        (lambda: Adaptive(Band(), Tilt("entropy", 1)).bounds(torch.zeros(1, 1)), "Tilt needs old_entropies"),
        (
            lambda: Adaptive(Band(), Tilt("surprise", 1)).bounds(torch.zeros(1, 1)),
            "Adaptive needs response_mask",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
