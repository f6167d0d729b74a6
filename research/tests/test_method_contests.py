"""A family of a contest that is named by a method has its published values among its settings."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import bandpo
from bandpo.losses.nodes import methods
from research.bench import Contest, read_contest
from research.bench.contest import Family, grid_of, learner_of
from research.rules.adaptive import Adaptive
from research.rules.budget import Budget
from research.rules.control import Controlled
from research.rules.decaying import Decaying
from research.rules.kl3 import KL3
from research.rules.trgppo import TRGPPO
from research.worlds import Learner
from research.worlds.scenes import SCENES
from research.worlds.training import why_not_numba

FOLDER = Path(__file__).parents[1] / "contests"
FILES = ("methods", "slow_methods")
METHODS = {each.name: each for each in [*methods(), *methods(Path(__file__).parents[1] / "methods.yaml")]}


@functools.cache
def contest(name: str) -> Contest:
    return read_contest(FOLDER / f"{name}.yaml")


@functools.cache
def objectives(name: str) -> dict[str, list[bandpo.Objective]]:
    """What each family of a contest tries, without controls and learning rates."""
    read = contest(name)
    return {
        family.name: [_objective(read, family, point) for point in grid_of(family.grid)] for family in read.families
    }


def _objective(read: Contest, family: Family, point: dict[str, Any]) -> bandpo.Objective:
    return bandpo.objective(learner_of(family, read.controls[0], {**point, "learning_rate": 0.02})["objective"])


def named_by(family: str) -> list[str]:
    return [name for name in family.split(" and ") if name in METHODS]


# As they were known when the contests were run.
PUBLISHED = {
    "gppo": bandpo.Objective(bandpo.Clip(0.2, 0.2), surrogate=bandpo.losses.Preserve(1.0, 1.0)),
    "trgppo": bandpo.Objective(TRGPPO(0.03, 0.2)),
    "atr-grpo": bandpo.Objective(KL3(0.02)),
}


NAMED = sorted({name for file in FILES for family in contest(file).families for name in named_by(family.name)})


@pytest.mark.parametrize("name", NAMED)
def test_a_method_takes_part_with_its_published_values(name):
    learner, value = Learner(METHODS[name], 0.02), PUBLISHED.get(name, METHODS[name].without_average)
    holding = [(file, family) for file in FILES for family in objectives(file) if name in named_by(family)]
    wanted = "methods" if why_not_numba(learner) is None else "slow_methods"
    assert wanted in [file for file, _ in holding]
    assert all(value in objectives(file)[family] for file, family in holding)


def test_the_contest_of_methods_is_compiled_and_holds_methods_and_the_best_fixed_clip():
    read = contest("methods")
    unnamed = [family.name for family in read.families if named_by(family.name) != family.name.split(" and ")]
    assert unnamed == [read.baseline] == ["fixed clip"]
    for family, tried in objectives("methods").items():
        assert [why_not_numba(Learner(each, 0.02)) for each in tried] == [None] * len(tried), family


def test_the_slow_contest_has_the_fixed_rule_of_each_kind_that_adapts():
    made = objectives("slow_methods")
    assert contest("slow_methods").baseline in made
    assert {type(each.trust_region) for each in made["fixed clip"] + made["symmetric clip"]} == {bandpo.Clip}
    assert {type(each.trust_region) for each in made["Band-KL"]} == {bandpo.Band}
    moving = {type(tried[0].trust_region) for tried in made.values()}
    assert {Adaptive, Budget, Controlled, Decaying} <= moving
    regions: list[Any] = [each.trust_region for tried in made.values() for each in tried]
    laws = {region.law.kind for region in regions if hasattr(region, "law")}
    assert laws == {"tilt", "pi", "quantile", "adaptive_kl", "hysteresis"}


def test_every_scene_is_in_a_contest_with_families_of_the_first():
    both, others = contest("rare_and_noisy"), [contest(name) for name in ("scenes", "hidden", "large", "others")]
    named = {world for read in [both, *others] for world in read.worlds if isinstance(world, str)}
    assert named | {"calibrated"} == {*SCENES}  # which is the contests' of re-use
    known = [family.objective for family in both.families] + [{"type": "clip", "eps_low": 0.2, "eps_high": 1}]
    for read in others:
        assert read.per_world
        assert (read.baseline, read.searched) == (both.baseline, read.settings)
        assert {*others[2].controls} <= {*read.controls} <= {*others[0].controls}
        assert all(family.objective in known for family in read.families)


def test_divergences_are_compared_at_equal_steps_of_a_token_of_one_half():
    half = torch.tensor(0.5, dtype=torch.float64).log()
    for family, (objective,) in objectives("divergences").items():
        bounds, move = objective.trust_region.bounds(half), float(family.split()[-1])
        low, high = (0.5 * float(x.exp()) for x in (bounds.log_low, bounds.log_high))
        assert (0.5 - low, high - 0.5) == pytest.approx((move, move), rel=1e-4), family


def test_methods_and_sides_have_all_controls_of_the_first_contests():
    whole, sides = contest("methods"), contest("sides")
    one_sided = [control for control in contest("controls").controls if control.objective is not None]
    assert len(one_sided) == 2
    by_chance = [control for control in contest("rare_and_noisy").controls if control.by_chance]
    assert [*whole.controls] == [control for control in contest("rare_and_noisy").controls if control not in by_chance]
    assert [*sides.controls] == by_chance + one_sided
    firsts = {name: tried[0] for name, tried in objectives("methods").items()}
    bounds = {name for name, first in firsts.items() if first == bandpo.Objective(first.trust_region)}
    no_use = {"no-clip", "a-3po"}  # has no bound; is the clip of grpo where nothing is stale
    wanted = [family for family in whole.families if family.name in bounds - no_use]
    assert [*sides.families] == wanted
    assert (sides.stages, sides.learning_rates) == (whole.stages, whole.learning_rates)


def test_laws_for_a_radius_are_searched_as_long_as_the_fixed_rules_of_the_first_contest():
    both, laws = contest("rare_and_noisy"), contest("adaptive")
    assert (laws.stages, laws.learning_rates, laws.controls) == (both.stages, both.learning_rates, both.controls)
    fixed = [family for family in both.families if family.name in ("fixed clip", "Band-KL")]
    assert [*laws.families][:2] == fixed
    assert {len(grid_of(family.grid)) for family in laws.families} == {len(grid_of(fixed[0].grid))}
