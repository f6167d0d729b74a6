"""Rules made of two rules: the laws that unions and intersections have, and that what they make is a rule again."""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from regions import parse_region

from bandpo import (
    DCPO,
    Band,
    ByProbability,
    BySign,
    Capped,
    Clip,
    Context,
    Intersect,
    Region,
    Union,
    objective,
)
from bandpo.explain import explain, stops
from bandpo.trust_regions import RIPO, Relaxed, trust_region
from bandpo.trust_regions.base import depends_on_probability, walk

OLD = torch.cat([torch.linspace(-12, -1e-6, 60), torch.tensor([0.0, -torch.inf, -80.0, math.log(0.2)])])
CONTEXT = Context(advantages=torch.where(torch.arange(len(OLD)) % 2 == 0, 1.0, -1.0))

simple = st.one_of(
    st.builds(Clip, st.floats(0, 1), st.floats(0, 5)),
    st.builds(Band, st.sampled_from(["kl", "tv", "chi2", "hellinger"]), st.floats(1e-3, 1)),
    st.builds(DCPO, st.floats(0.01, 1), st.floats(0.01, 1)),
    st.builds(RIPO, st.floats(1e-3, 1)),
)
regions = st.recursive(
    simple,
    lambda part: st.one_of(
        st.builds(Union, part, part),
        st.builds(Intersect, part, part),
        st.builds(ByProbability, st.floats(0.01, 0.99), part, part),
        st.builds(BySign, part, part),
        st.builds(Capped, part, st.floats(1.1, 20)),
    ),
    max_leaves=4,
)


@dataclass(frozen=True)
class Narrowest(Region):
    """The narrowest of any number of rules."""

    kind: ClassVar[str] = "narrowest_of_tests"
    sees_probability: ClassVar[bool] = False
    rules: tuple[Region, ...]

    def bounds(self, old_logps, context=None):
        return functools.reduce(Intersect, self.rules).bounds(old_logps, context)


def test_rules_in_a_tuple_are_parts_of_a_rule():
    clips, many = Narrowest((Clip(0.1, 0.3), Clip(0.2, 0.2))), Narrowest((Clip(0.2, 0.2), Capped(Band(), 5.0)))
    for rule in (clips, many):
        assert trust_region(rule.to_config()) == rule
    assert walk(many) == [many, Clip(0.2, 0.2), Capped(Band(), 5.0), Band()]
    assert not depends_on_probability(clips)
    assert depends_on_probability(many)


def ends(region):
    bounds = region.bounds(OLD, CONTEXT)
    return bounds.log_low, bounds.log_high


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(ends(a), ends(b), strict=True))


def inside(a, b):
    (low, high), (low_b, high_b) = ends(a), ends(b)
    return bool((low >= low_b).all() and (high <= high_b).all())


@settings(max_examples=30, deadline=None)
@given(a=regions, b=regions, c=regions)
def test_the_laws_of_a_lattice(a, b, c):
    assert all(inside(Intersect(a, b), each) and inside(each, Union(a, b)) for each in (a, b))
    for pair in (Union, Intersect):
        assert same(pair(a, a), a)
        assert same(pair(a, b), pair(b, a))
        assert same(pair(pair(a, b), c), pair(a, pair(b, c)))
    assert same(Union(a, Intersect(a, b)), a)
    assert same(Intersect(a, Union(a, b)), a)
    assert same(Intersect(a, Union(b, c)), Union(Intersect(a, b), Intersect(a, c)))
    low, high = ends(Intersect(a, b))
    assert ((low <= 0) & (high >= 0)).all()  # r = 1 is always allowed


@settings(max_examples=30, deadline=None)
@given(region=regions)
def test_a_node_goes_there_and_back_and_a_label_tells_rules_apart(region):
    assert trust_region(region.to_config()) == region
    assert parse_region(str(region.to_config()).replace("'", "")) == region
    assert objective(region.to_config()).trust_region == region
    assert Union(region, Clip(0.3, 0.3)).label != Intersect(region, Clip(0.3, 0.3)).label


def test_a_token_outside_one_is_outside_the_intersection_and_inside_the_union():
    """By membership, token by token, and not by bounds."""
    torch.manual_seed(0)
    old = -8 * torch.rand(4000)
    log_ratio = torch.randn(4000).clamp(max=-old.min())
    a, b = Band("kl", 0.05), Clip(0.2, 0.5)
    in_a, in_b = (rule.bounds(old).contains(log_ratio) for rule in (a, b))
    assert torch.equal(Intersect(a, b).bounds(old).contains(log_ratio), in_a & in_b)
    assert torch.equal(Union(a, b).bounds(old).contains(log_ratio), in_a | in_b)
    assert 100 < (in_a & in_b).sum() < (in_a | in_b).sum() < 3900
    rare = old <= math.log(0.2)
    found = ByProbability(0.2, a, b).bounds(old).contains(log_ratio)
    assert torch.equal(found, torch.where(rare, in_a, in_b))


def test_the_threshold_itself_is_rare():
    region = ByProbability(0.2, Clip(0.5, 0.5), Clip(0.1, 0.1))
    p = torch.tensor([0.1, 0.2, 0.2001, 0.9], dtype=torch.float64)
    assert region.bounds(p.log()).log_high.exp().tolist() == pytest.approx([1.5, 1.5, 1.1, 1.1])
    assert region.bounds(torch.tensor([torch.nan])).log_high.isnan()


CLIP = Clip(0.1, 0.3)
CLIPS_ALONE = [Union(CLIP, CLIP), Intersect(CLIP, Relaxed(CLIP, CLIP)), BySign(CLIP, Union(CLIP, CLIP))]
OTHERS = [Union(CLIP, Band()), Intersect(Band(), CLIP), ByProbability(0.2, CLIP, CLIP)]


@pytest.mark.parametrize("region", [*CLIPS_ALONE, *OTHERS], ids=str)
def test_a_rule_of_clips_alone_does_not_see_probabilities(region):
    assert depends_on_probability(region) == (region in OTHERS)


TAIL, BOTH = ByProbability(0.2, Band("kl", 0.05), Clip(0.2, 0.2)), Intersect(Band("kl", 0.05), Clip(0.2, 1.0))
LABELS = {
    TAIL: "Band-KL 0.05 for p <= 0.2, GRPO 0.2/0.2 for p > 0.2",
    BOTH: "Band-KL 0.05 and Clip 0.2/1.0",
    Union(BOTH, Clip(0.1, 0.1)): "(Band-KL 0.05 and Clip 0.2/1.0) or GRPO 0.1/0.1",
    Capped(BOTH, 3.0): "(Band-KL 0.05 and Clip 0.2/1.0) cap 3.0",
}


def test_labels_and_explanations_name_the_parts():
    assert {rule: rule.label for rule in LABELS} == LABELS
    log_p = torch.tensor([0.01, 0.2, 0.5], dtype=torch.float64).log()
    assert stops(TAIL, log_p) == [("below band",) * 2, ("below band",) * 2, ("above clip",) * 2]
    assert [pair[1] for pair in stops(BOTH, log_p)] == ["second clip", "first band", "first band"]
    assert stops(Union(BOTH, Clip(0.9, 0.1)), log_p)[0][1] == "first second clip"
    text = explain(TAIL, [0.01, 0.5], BOTH)
    assert "  below: Band-KL 0.05\n  above: GRPO 0.2/0.2\n" in text
    assert "  first: Band-KL 0.05\n  second: Clip 0.2/1.0" in text
