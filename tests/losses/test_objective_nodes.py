"""What may stand for an objective: names, nodes and short words; and what is said of anything else."""

from __future__ import annotations

import math

import pytest
import torch
import yaml
from regions import parse_region

import bandpo
from bandpo import Band, Clip, Objective, objective, policy_loss
from bandpo.integrations import objective_for
from bandpo.losses import method
from bandpo.losses.nodes import method_or_objective, methods
from bandpo.notation import as_python, short_node

NAMES = {"inf": math.inf, **vars(bandpo.trust_regions), **vars(bandpo.losses), "Objective": Objective}
OF_THE_SAMPLER = [each.name for each in methods() if each.from_sampler]


def test_a_method_of_the_sampler_is_more_than_its_objective():
    assert {*OF_THE_SAMPLER} >= {"dppo", "dis", "kpop"}
    for name in OF_THE_SAMPLER:
        for given in (name, method(name), method(name).to_config()):
            with pytest.raises(ValueError, match=f"method '{name}' is more .* call policy_loss with old_logps=rollout"):
                objective(given)
            assert method_or_objective(given) is method(name)
        with pytest.raises(ValueError, match=f"method '{name}': .* sampler's .* which Liger does .* losses.method"):
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


def test_policy_loss_takes_what_objective_takes():
    batch = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.5]]), torch.ones(1), torch.ones(1, 2)
    for text in ("clip-higher", "clip:0.2:0.28", method("clip-higher")):
        assert policy_loss(*batch, text)[0] == policy_loss(*batch, Clip(0.2, 0.28))[0]


@pytest.mark.parametrize("name", ["dcpo", "ripo"])
def test_a_method_named_like_a_rule_is_that_rule(name):
    assert objective(name).trust_region == parse_region(name)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Band-KL", "band-kl"),
        ("GSPO", "gspo"),
        ("BandPO", "band-kl"),
        ("dual_clip", "dual-clip"),
        ("Dual clip", "dual-clip"),
    ],
)
def test_a_method_is_known_in_any_capitals_and_by_its_title(text, same):
    assert method(text) is method(same)
    assert objective(text) == method(same).objective


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("gspoo", "^no method or rule is called 'gspoo', did you mean 'gspo'[?] `bandpo methods` lists all$"),
        ({"type": "method", "name": "cipso"}, "no method or rule is called 'cipso', did you mean 'cispo'."),
        ({"type": "method", "name": 3}, "no method or rule is called 3; `bandpo methods` lists all"),
        ({"type": "method"}, r"a method's node is {type: method, name: ...}, got \[\] beside the type"),
        ({"type": "method", "name": "gspo", "beta": 0.1}, r"got \['beta', 'name'\] beside the type; .* write an obj"),
        ({"type": "objectve"}, "no trust region type is called 'objectve', did you mean 'objective'"),
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


def test_a_text_may_be_a_rule_or_an_objective():
    assert objective("clip:0.2:0.28") == Objective(Clip(0.2, 0.28))
    assert objective("clip") == Objective(Clip())
    assert objective("{type: objective, surrogate: mask}") == Objective(surrogate="mask")


@pytest.mark.parametrize("text", ["band:kl:0.1", "Band:kl:0.1"])
def test_a_rule_is_known_by_its_short_word(text):
    assert objective(text) == objective_for("verl", text) == Objective(Band("kl", 0.1))
