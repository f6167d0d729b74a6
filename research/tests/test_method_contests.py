"""A family of a contest that is named by a method has its published values among its settings."""

from pathlib import Path

import pytest
import torch

import bandpo
from bandpo.losses.nodes import methods
from research.bench import read_contest
from research.bench.contest import grid_of, learner_of
from research.rules.kl3 import KL3
from research.rules.trgppo import TRGPPO
from research.worlds import Learner
from research.worlds.training import why_not_numba

FOLDER = Path(__file__).parents[1] / "contests"
METHODS = {each.name: each for each in [*methods(), *methods(Path(__file__).parents[1] / "methods.yaml")]}
# As they were known when the contest was run.
PUBLISHED = {
    "gppo": bandpo.Objective(bandpo.Clip(0.2, 0.2), surrogate=bandpo.losses.Preserve(1.0, 1.0)),
    "trgppo": bandpo.Objective(TRGPPO(0.03, 0.2)),
    "atr-grpo": bandpo.Objective(KL3(0.02)),
}


def objectives(name: str) -> dict[str, list[bandpo.Objective]]:
    """What each family of a contest tries, without controls and learning rates."""
    contest = read_contest(FOLDER / f"{name}.yaml")
    control = contest.controls[0]
    return {
        family.name: [
            bandpo.objective(learner_of(family, control, {**point, "learning_rate": 0.02})["objective"])
            for point in grid_of(family.grid)
        ]
        for family in contest.families
    }


def test_methods_take_part_with_their_published_values_and_are_compiled():
    families = objectives("methods")
    named = {name: family for family in families for name in family.split(" and ") if name in METHODS}
    assert len(named) >= 20
    for name, family in named.items():
        assert PUBLISHED.get(name, METHODS[name].without_average) in families[family], name
    for family, tried in families.items():
        assert [why_not_numba(Learner(each, 0.02)) for each in tried] == [None] * len(tried), family


def test_divergences_are_compared_at_equal_steps_of_a_token_of_one_half():
    half = torch.tensor(0.5, dtype=torch.float64).log()
    for family, (objective,) in objectives("divergences").items():
        bounds, move = objective.trust_region.bounds(half), float(family.split()[-1])
        low, high = (0.5 * float(x.exp()) for x in (bounds.log_low, bounds.log_high))
        assert (0.5 - low, high - 0.5) == pytest.approx((move, move), rel=1e-4), family
