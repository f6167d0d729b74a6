"""What may stand for an objective: names, nodes and short words; and what is said of anything else."""

import dataclasses
import math

import pytest
import torch
import yaml
from regions import Wider, parse_region

import bandpo
from bandpo import Band, Clip, Objective, objective, policy_loss
from bandpo.integrations import objective_for
from bandpo.losses import method
from bandpo.losses.nodes import method_or_objective, methods
from bandpo.notation import as_python, describe, label_of_objective, short_node

NAMES = {"inf": math.inf, **vars(bandpo.trust_regions), **vars(bandpo.losses), "Objective": Objective}
OF_THE_SAMPLER = [each.name for each in methods() if each.from_sampler]


@pytest.mark.parametrize("name", OF_THE_SAMPLER)
def test_a_method_of_the_sampler_is_more_than_its_objective(name):
    assert {*OF_THE_SAMPLER} >= {"dppo", "dis", "kpop"}
    for given in (name, method(name), method(name).to_config()):
        with pytest.raises(ValueError, match=f"method '{name}' is more .* call policy_loss with old_logps=rollout"):
            objective(given)
        assert method_or_objective(given) is method(name)
    with pytest.raises(ValueError, match=f"method '{name}': .* sampler's .* which Liger does .* old_logps=rollout"):
        objective_for("Liger", name)


@pytest.mark.parametrize("name", [each.name for each in methods() if not each.from_sampler])
def test_a_name_a_node_and_a_method_are_its_objective(name):
    found = method(name)
    node = yaml.safe_load(yaml.safe_dump(found.to_config()))
    assert node == {"type": "method", "name": name}
    assert objective(name) == objective(node) == objective(f"{node}") == objective(found) == found.objective
    assert objective(found.objective.to_config()) == objective(short_node(found.objective)) == found.objective
    assert objective(eval(as_python(found.objective), NAMES)) == found.objective
    assert hash(found) == hash(method_or_objective(name))
    assert method_or_objective(node) is found


@pytest.mark.parametrize("text", ["clip-higher", "clip:0.2:0.28", method("clip-higher")], ids=str)
def test_policy_loss_takes_what_objective_takes(text):
    batch = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.5]]), torch.ones(1), torch.ones(1, 2)
    assert policy_loss(*batch, text)[0] == policy_loss(*batch, Clip(0.2, 0.28))[0]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("gspoo", "^no method or rule is called 'gspoo', did you mean 'gspo'[?] `bandpo methods` lists all$"),
        ({"type": "method", "name": "cipso"}, "no method or rule is called 'cipso', did you mean 'cispo'."),
        ({"type": "method", "name": 3}, "no method or rule is called 3; `bandpo methods` lists all"),
        ({"type": "method"}, r"a method's node is {type: method, name: ...}, got \[\] beside the type"),
        ({"type": "method", "name": "gspo", "beta": 0.1}, r"got \['beta', 'name'\] beside the type; .* write an obj"),
        ({"type": "objectve"}, "no trust region type is called 'objectve', did you mean 'objective'"),
        ({"type": "objective", "surogate": "mask"}, "unknown key 'surogate' in objective, did you mean 'surrogate'"),
        ({"type": "objective", "preserve": [0.5, 1]}, r"unknown key 'preserve' in objective; it has \['trust_region'"),
        (
            {"type": "objective", "trust_region": 0.2},
            "^0.2 is not a trust region; a rule is written",
        ),
        ({"type": "objective", "trust_region": {"type": "clipp"}}, "called 'clipp', did you mean 'clip'"),
        (
            {"type": "objective", "trust_region": {"type": "objective"}},
            "no trust region type is called 'objective'",
        ),
        ({"type": "objective", "surrogate": {"type": "preserve", "low": 1}}, "surrogate 'preserve' lacks high"),
        (
            {"type": "objective", "surrogate": {"type": "preserve", "lo": 1}},
            "unknown key 'lo' in surrogate 'preserve', did you",
        ),
        (
            {"type": "objective", "surrogate": {"type": "clip"}},
            r"surrogate type must be one of \['decay', .*'preserve', 'sapo'.*\], got 'clip'",
        ),
        (
            {"type": "objective", "surrogate": ["clip", {"type": "mask"}]},
            "type must be one of .*, got 'mask'",
        ),
        ({"type": "objective", "beta": {}}, "beta of Objective must be a number"),
        ({"type": "bandd"}, "called 'bandd', did you mean 'band'"),
        ({}, "the type of a trust region is missing"),
        ({"type": "capped", "region": Objective().to_config()}, "no trust region type is called 'objective'"),
        ({"type": "capped", "region": Objective()}, "region of Capped must be a trust region"),
        (Objective, "^<class .*Objective'> is not a trust region; a rule is written"),
        ({"type": "methd"}, "called 'methd', did you mean 'method'"),
        ({"type": ["method"]}, r"called \['method'\]"),
        ("clp", "no method or rule is called 'clp', did you mean 'clip'?"),
        ("clip:x", "eps_low of Clip must be a number in .*, got 'x'"),
        ("{type: method, name: gsp}", "no method or .* 'gsp', did you mean 'gspo'"),
        ("{type: objective, surogate: mask}", "unknown key 'surogate' in objective, did you mean 'surrogate'"),
        ("gspo:0.1", "no method or rule is called 'gspo:0.1', did you mean 'gspo'"),
        ("ppo clip", "no method or rule is called 'ppo clip', did you mean 'ppo'"),
        ("KL", "no method or rule is called 'KL', did you mean 'band:KL'"),
        ("tv:0.1", "no method or rule is called 'tv:0.1', did you mean 'band:tv:0.1'"),
        ("0.2", "called '0.2'; .*a rule is written Band"),
        (
            "Clip(0.2, 0.28)",
            "called 'Clip.0.2, 0.28.'.* a rule is written .* as text band:kl:0.05 or clip:0.2:0.28$",
        ),
    ],
)
def test_what_is_none_is_named_with_what_is_nearest(node, message):
    with pytest.raises(ValueError, match=message):
        objective(node)


TEXTS = {
    **{
        text: method(name).objective
        for text, name in {"Band-KL": "band-kl", "GSPO": "gspo", "BandPO": "band-kl"}.items()
    },
    **dict.fromkeys(["dual_clip", "Dual clip"], method("dual-clip").objective),
    "clip:0.2:0.28": Objective(Clip(0.2, 0.28)),
    "clip": Objective(Clip()),
    "{type: objective, surrogate: mask}": Objective(surrogate="mask"),
    **dict.fromkeys(["band:kl:0.1", "Band:kl:0.1"], Objective(Band("kl", 0.1))),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_may_be_a_method_in_any_capitals_or_by_its_title_a_rule_or_an_objective(text):
    assert objective(text) == TEXTS[text]
    assert [objective(name).trust_region for name in ("dcpo", "ripo")] == [*map(parse_region, ("dcpo", "ripo"))]
    assert objective_for("verl", text) == dataclasses.replace(TEXTS[text], aggregation=None)


LABELS = {
    Objective(Clip(0.2, 0.28)): "Clip-Higher 0.2/0.28",
    "gspo": "GSPO",
    Objective(Clip(0.2, 0.28), dual_clip=3.0): "Clip-Higher 0.2/0.28, dual_clip 3.0",
    Objective(Clip(0.2, 0.2), surrogate=("mask", "clip")): "GRPO 0.2/0.2, surrogate mask / clip",
    method("dis").without_average: "Clip 0.3/5.0, surrogate mask_two_sided",
    method("dapo").objective: "Clip-Higher 0.2/0.28",
    Objective(Clip(0.2, 0.28), aggregation="seq-mean-token-sum"): (
        "Clip-Higher 0.2/0.28, aggregation seq-mean-token-sum"
    ),
}
WORDS = {
    Clip(0.8, 1.2): "Clip(0.8, 1.2): a token's ratio may go from 0.2 to 2.2",
    Clip(1.0, math.inf): "Clip(1, inf): no bound on a token's ratio",
    Band("tv", 0.1): 'Band("tv", 0.1): a token of probability 0.5 may go from 0.4 to 0.6, one of 0.001 up to 0.101',
    Wider(0.3): "Wider 0.3: how far a token may go depends on more than its probability",
    method("gspo"): 'Objective(Clip(0.0003, 0.0004), ratio="sequence-mean"): a response\'s mean ratio may go from '
    "0.9997 to 1.0004",
    method("cispo"): 'Objective(Clip(1, 4), surrogate="weight"): a token\'s ratio has the interval from 0 to 5; '
    'outside it the gradient does not stop (surrogate "weight")',
    method("sapo"): "Objective(Clip(1, inf), surrogate=Sapo(1, 1.05)): no bound on a token's ratio (surrogate "
    "Sapo(1, 1.05))",
    method("dual-clip"): "Objective(Clip(0.2, 0.2), dual_clip=3): a token's ratio may go from 0.8 to 1.2; dual clip 3",
    method("two-level-clip"): "ByProbability(0.5, Clip(0.05, 0.7), Clip(0.05, 0.005)): a token of probability 0.5 may "
    "go from 0.475 to 0.85, one of 0.001 up to 0.0017",
}


def test_an_objective_in_words_and_its_label_which_says_what_differs():
    assert {rule: describe(objective(rule)) for rule in WORDS} == WORDS
    assert {rule: label_of_objective(objective(rule)) for rule in LABELS} == LABELS
