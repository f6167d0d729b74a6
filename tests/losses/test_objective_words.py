"""What an objective is called in tables, and how far it lets a token go in words."""

from __future__ import annotations

import math

import pytest
from regions import Wider

from bandpo import Band, Clip, Objective, objective
from bandpo.losses import method
from bandpo.notation import describe, label_of_objective


def test_a_label_is_the_rules_or_the_methods_or_says_what_differs():
    assert label_of_objective(Objective(Clip(0.2, 0.28))) == "Clip-Higher 0.2/0.28"
    assert label_of_objective(objective("gspo")) == "GSPO"
    assert label_of_objective(Objective(Clip(0.2, 0.28), dual_clip=3.0)) == "Clip-Higher 0.2/0.28, dual_clip 3.0"
    pair = Objective(Clip(0.2, 0.2), surrogate=("mask", "clip"))
    assert label_of_objective(pair) == "GRPO 0.2/0.2, surrogate mask / clip"
    assert label_of_objective(method("dis").without_average) == "Clip 0.3/5.0, surrogate mask_two_sided"
    assert label_of_objective(method("dapo").objective) == "Clip-Higher 0.2/0.28"
    mean = Objective(Clip(0.2, 0.28), aggregation="seq-mean-token-sum")
    assert label_of_objective(mean) == "Clip-Higher 0.2/0.28, aggregation seq-mean-token-sum"


WORDS = {
    Clip(0.8, 1.2): "Clip(0.8, 1.2): a token's ratio may go from 0.2 to 2.2",
    Clip(1.0, math.inf): "Clip(1, inf): no bound on a token's ratio",
    Band("tv", 0.1): 'Band("tv", 0.1): a token of probability 0.5 may go from 0.4 to 0.6, one of 0.001 up to 0.101',
    Wider(0.3): "Wider 0.3: how far a token may go depends on more than its probability",
    method("gspo"): 'Objective(Clip(0.0003, 0.0004), ratio="sequence-mean"): a response\'s mean ratio may go from '
    "0.9997 to 1.0004",
    method("cispo"): 'Objective(Clip(1, 4), surrogate="weight"): a token\'s ratio has the interval from 0 to 5; '
    'outside it the gradient does not stop (surrogate "weight")',
    method(
        "sapo"
    ): "Objective(Clip(1, inf), surrogate=Sapo(1, 1.05)): no bound on a token's ratio (surrogate Sapo(1, 1.05))",
    method("dual-clip"): "Objective(Clip(0.2, 0.2), dual_clip=3): a token's ratio may go from 0.8 to 1.2; dual clip 3",
    method(
        "two-level-clip"
    ): "ByProbability(0.5, Clip(0.05, 0.7), Clip(0.05, 0.005)): a token of probability 0.5 may go "
    "from 0.475 to 0.85, one of 0.001 up to 0.0017",
}


@pytest.mark.parametrize("rule", WORDS, ids=str)
def test_a_rule_in_words(rule):
    assert describe(objective(rule)) == WORDS[rule]
