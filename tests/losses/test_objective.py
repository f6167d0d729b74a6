"""The objective as one value: its node, what contradicts itself, and what trainers do not take of it."""

import dataclasses
import itertools
import math
import pickle
import re
from typing import get_args

import pytest
import torch
import yaml
from regions import IN_YAML, Bare, Wider, name_of
from textbook import ragged, step

import bandpo
from bandpo import Band, BySign, Capped, Clip, Objective, Union, objective
from bandpo.band import Divergence
from bandpo.integrations import TRAINERS, objective_for
from bandpo.losses import Decay, Preserve, Sapo, Vespo
from bandpo.losses.aggregation import Aggregation
from bandpo.losses.kl import KLPenalty
from bandpo.trust_regions import Relaxed

PRESERVE = Preserve(0.5, 0.75)
# One of each kind: every field, every value of those that have names, pairs, and what goes together.
OBJECTIVES = [
    Objective(),
    *(Objective(region) for region in IN_YAML),
    *(Objective(Clip(0.2, 0.28), surrogate=surrogate) for surrogate in ("mask", "mask_two_sided", "weight", PRESERVE)),
    Objective(BySign(Clip(0, 0), Clip(0.2, math.inf)), surrogate=("weight", "clip")),
    Objective(Clip(), surrogate=(PRESERVE, "mask"), dual_clip=3.0),
    Objective(Clip(), surrogate=("clip", Preserve(0, 0))),
    *(Objective(Clip(0.2, 0.28), surrogate=surrogate) for surrogate in ("quadratic", Decay(2, 1), ("clip", Sapo()))),
    Objective(Clip(1.0, math.inf), surrogate=Sapo(1, 2)),
    Objective(Clip(3e-4, 4e-4), ratio="sequence-mean", max_log_ratio=20.0),
    Objective(Capped(BySign(Relaxed(Clip(), Clip(0.2, 0.1)), Clip(0.1, 0.1)), 1.5), ratio="sequence-mean"),
    Objective(Band("tv", 0.1), ratio="mean-of-clipped", dual_clip=1.5),
    Objective(Union(Band("kl", 0.03), Clip(0.2, 0.2)), ratio="sequence", surrogate="weight"),
    *(Objective(beta=0.04, kl_penalty=kind) for kind in get_args(KLPenalty)),
    *(Objective(aggregation=kind) for kind in get_args(Aggregation)),
]


@pytest.mark.parametrize("value", OBJECTIVES, ids=repr)
def test_an_objective_is_its_node_and_its_node_is_it(value):
    """Equal ones are one key of a dictionary."""
    node = value.to_config()
    again = objective(yaml.safe_load(yaml.safe_dump(node)))
    assert (again.to_config(), node["type"]) == (node, "objective")
    assert objective(value) is value
    names = vars(bandpo.trust_regions) | vars(bandpo.losses) | {"inf": math.inf, "Wider": Wider}
    copies = [again, pickle.loads(pickle.dumps(value)), dataclasses.replace(value), eval(repr(value), names)]
    assert {each: hash(each) for each in copies} == {value: hash(value)}
    assert (value == Objective()) == (value.changed() == {} and value.trust_region == Band("kl", 0.05))
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.surrogate = "mask"


# A field, and another value of it.
DIFFERING = {
    "surrogate": "mask",
    "ratio": "sequence",
    "dual_clip": 3.0,
    "beta": 0.1,
    "aggregation": "seq-mean-token-sum-norm",
    "max_log_ratio": 20.0,
    "positive_weight": 0.9,
}


@pytest.mark.parametrize(("field", "value"), [*DIFFERING.items()])
def test_different_objectives_are_different(field, value):
    assert len(set(OBJECTIVES)) > len(OBJECTIVES) - 6  # defaults occur more than once
    other = Objective(**{field: value})
    assert other != Objective()
    assert (other.changed(), repr(other)) == ({field: value}, f"Objective({Band()!r}, {field}={value!r})")


def test_the_yaml_that_people_write():
    text = """
    type: objective
    trust_region: {type: clip, eps_low: 0.2, eps_high: 2.8e-1}
    surrogate: [{type: preserve, low: 0.5, high: 1e0}, clip]
    dual_clip: 3
    """
    expected = Objective(Clip(0.2, 0.28), surrogate=(Preserve(0.5, 1.0), "clip"), dual_clip=3.0)
    assert (objective(yaml.safe_load(text)), objective({"type": "objective"})) == (expected, Objective())
    assert objective({"type": "objective", "beta": "1e-3"}).beta == 1e-3  # a string in PyYAML
    # The node of a bare region, and the region, are the paper's objective with it.
    for region in IN_YAML:
        assert objective(region.to_config()) == objective(region) == Objective(region)
    # A pair of one is that one.
    assert Objective(surrogate=("mask", "mask")) == Objective(surrogate=["mask", "mask"]) == Objective(surrogate="mask")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Bare(), r"Bare has no config node; give it a kind"),
        (Relaxed(Bare(), Clip()), r"Bare has no config node; give it a kind"),
        (Band(Divergence("my own", lambda u: (u - 1) ** 2)), "my own"),
    ],
    ids=name_of,
)
def test_a_region_or_divergence_without_a_node_has_none_here(rule, message):
    for value in (rule, Objective(rule)):
        with pytest.raises(ValueError, match=message):
            value.to_config()


ROOT_OF_CLIP = "trust_region must be made of Clip for ratio 'sequence-mean', got .*no divergence ball"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trust_region": "band"}, "trust_region of Objective must be a trust region, got 'band'"),
        ({"trust_region": Band}, "trust_region of Objective must be a trust region, got <class"),
        ({"trust_region": Objective()}, r"trust_region of Objective must be a trust region, got Objective\("),
        (
            {"surrogate": "weight", "dual_clip": 3.0},
            "dual_clip must be None for surrogate = 'weight', which bounds r .* got 3.0",
        ),
        ({"surrogate": "quadratic", "dual_clip": 3.0}, "dual_clip must be None for surrogate = 'quadratic'.*, got 3.0"),
        ({"surrogate": ("clip", Sapo()), "dual_clip": 3.0}, "dual_clip must be None for surrogate = .*Sapo.*, got 3.0"),
        ({"surrogate": ("clip", "mask_two_sided"), "dual_clip": 3.0}, "dual_clip must be None for surrogate = "),
        ({"surrogate": "mask_two_sided", "dual_clip": 3.0}, "dual_clip must be None for surrogate = 'mask_two_sided'"),
        (
            {"surrogate": ("clip", "weight"), "dual_clip": 3.0},
            r"None for surrogate = \('clip', 'weight'\)",
        ),
        ({"surrogate": "preserve"}, r"surrogate must be one of \['clip', .*Preserve\(low, high\).*, got 'preserve'"),
        ({"surrogate": None}, "surrogate must be one of .*, got None"),
        ({"surrogate": ("clip", "clamp")}, r"surrogate must be one of .*, got \('clip', 'clamp'\)"),
        ({"surrogate": ("mask",)}, r"surrogate must be one of .* got \('mask',\)"),
        ({"surrogate": {"type": "preserve"}}, "surrogate must be one of .* got {'type': 'preserve'}"),
        ({"surrogate": Sapo()}, r"trust_region must be Clip\(1, inf\), no clip, for surrogate = Sapo.*, got Band"),
        (
            {"surrogate": Sapo(), "trust_region": Clip(0.2, 0.2)},
            "does not read a rule's bounds; 'quadratic' and Decay",
        ),
        ({"ratio": "response"}, r"ratio of Objective must be one of \['token', .*\], got 'response'"),
        ({"trust_region": Band(), "ratio": "sequence-mean"}, ROOT_OF_CLIP),
        ({"trust_region": BySign(Clip(), Band()), "ratio": "sequence-mean"}, ROOT_OF_CLIP),
        ({"trust_region": Relaxed(Clip(), Band()), "ratio": "sequence-mean"}, ROOT_OF_CLIP),
        (
            {"kl_penalty": "k2"},
            "kl_penalty = 'k2' and beta = 0 do not go together: the penalty is off",
        ),
        (
            {"surrogate": "mask", "ratio": "mean-of-clipped"},
            "must be 'clip' for ratio 'mean-of-clipped', got 'mask'",
        ),
        (
            {"surrogate": ("clip", PRESERVE), "ratio": "mean-of-clipped"},
            "must be 'clip' for .*, got .*Preserve",
        ),
        ({"dual_clip": 1.0}, r"dual_clip of Objective must be a number in \(1, inf\), got 1.0"),
        ({"positive_weight": -0.1}, r"positive_weight of Objective must be a number in \[0, inf\), got -0.1"),
        ({"positive_weight": math.inf}, r"positive_weight of Objective must be a number in \[0, inf\), got inf"),
        ({"dual_clip": math.inf}, r"dual_clip of Objective must be a number in \(1, inf\), got inf"),
        ({"dual_clip": math.nan}, r"dual_clip of Objective must be a number in \(1, inf\), got nan"),
        ({"dual_clip": True}, r"dual_clip of Objective must be a number in \(1, inf\), got True"),
        ({"beta": -0.1}, r"beta of Objective must be a number in \[0, inf\), got -0.1"),
        ({"beta": math.nan}, r"beta of Objective must be a number in \[0, inf\), got nan"),
        ({"beta": None}, r"beta of Objective must be a number in \[0, inf\), got None"),
        ({"kl_penalty": "k4", "beta": 0.1}, r"kl_penalty of Objective must be one of \['k1', .*, got 'k4'"),
        ({"aggregation": "mean"}, r"aggregation of Objective must be one of \['token-mean', .*, got 'mean'"),
        ({"max_log_ratio": 0}, r"max_log_ratio of Objective must be a number in \(0, 60\], got 0"),
        ({"max_log_ratio": 61.0}, r"max_log_ratio of Objective must be a number in \(0, 60\], got 61.0"),
        ({"max_log_ratio": math.nan}, r"max_log_ratio of Objective must be a number in \(0, 60\], got nan"),
    ],
)
def test_what_contradicts_itself_cannot_be_made(fields, message):
    with pytest.raises(ValueError, match=message):
        Objective(**fields)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Objective(), **fields)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "a", (0.5, 1)], ids=str)
@pytest.mark.parametrize(("make", "interval"), [(Decay, "(0"), (Sapo, "(0"), (Vespo, "(0"), (Preserve, "[0")])
def test_numbers_of_gates_are_positive_and_finite(make, interval, value, place):
    """Those of `Preserve` may be 0."""
    if (make, value) == (Preserve, 0):
        value = -0.5
    message = f"of {make.__name__} must be a number in {interval}, inf), got {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        make(*((value, 1), (1, value))[place])


@pytest.mark.parametrize("region", [Band("kl", 0.05), Clip(0.2, 0.28), Bare()], ids=str)
def test_a_bare_region_is_the_papers_objective_with_it(region):
    data = ragged(dtype=torch.float32)
    (*one, numbers), (*other, same) = (step(data, value) for value in (region, Objective(region)))
    assert all(map(torch.equal, (*one, *numbers.totals.values()), (*other, *same.totals.values())))
    assert Objective().trust_region == Band("kl", 0.05)


# ---- what trainers take of it


@pytest.mark.parametrize(("host", "field"), list(itertools.product(TRAINERS, DIFFERING)))
def test_what_a_trainer_cannot_do_is_refused_by_name_and_nothing_else(host, field):
    value = Objective(Clip(0.2, 0.2), **{field: DIFFERING[field]})
    if field in TRAINERS[host].refused(host):
        for given in (value, value.to_config()):
            with pytest.raises(ValueError, match=f"^{field} must be .* through {host}, got .*: .+"):
                objective_for(host, given)
    else:
        assert objective_for(host, value) == objective_for(host, value.to_config()) == value


@pytest.mark.parametrize("host", TRAINERS)
def test_every_trainer_takes_the_papers_and_a_bare_region(host):
    assert objective_for(host, None) == Objective()
    assert objective_for(host, Band("tv", 0.1)) == Objective(Band("tv", 0.1))
    keeps_its_loss = host not in ("TRL", "axolotl", "verl", "SkyRL", "tinker", "prime-rl", "rLLM")
    assert set(TRAINERS[host].refused(host)) == (set(DIFFERING) if keeps_its_loss else {"beta", "aggregation"})
