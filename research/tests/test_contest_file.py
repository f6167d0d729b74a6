"""A contest is checked before anything runs, and what is wrong is named by its place."""

import copy
import dataclasses
import itertools
import math
import re
from pathlib import Path

import pytest
from contests import node_of

import bandpo
from bandpo.errors import UserError
from bandpo.losses.nodes import objective
from research.bench import Contest, read_contest
from research.bench.cells import settings_of
from research.bench.contest import Control, Family, grid_of, learner_of
from research.bench.reading import make_contest
from research.worlds import Learner


def test_a_grid_has_every_combination_and_the_learning_rate_last(small):
    grid = grid_of(small.axes(small.families[0]))
    assert len(grid) == 15 == small.searched
    assert grid[:4] == [
        {"up": 0.1, "learning_rate": 0.01},
        {"up": 0.1, "learning_rate": 0.02},
        {"up": 0.1, "learning_rate": 0.04},
        {"up": 0.2, "learning_rate": 0.01},
    ]


def test_the_contest_of_the_page_is_one(tmp_path):
    page = Path(__file__).parents[1] / "pages" / "bench.md"
    first, labs = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for text in (first, re.sub(r"worlds:.*\n(  - .*\n)+", lambda _: labs, first)):
        (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
        assert len(read_contest(tmp_path / "mine.yaml").worlds) == 2


def test_runs_are_counted_beforehand(small):
    assert small.fewest_runs == 2 * (15 * 4 + 3 * 6 + 40)
    two = make_contest(
        node_of(worlds=["rare and noisy", "storm"], controls=[{"name": "none"}, {"name": "chance", "by_chance": True}])
    )
    assert two.fewest_runs == 4 * small.fewest_runs


def test_parameters_are_put_where_their_names_stand():
    family = Family(name="two", objective={"type": "clip", "eps_low": "$low", "eps_high": "$up"})
    point = {"low": 0.02, "up": math.inf, "learning_rate": 0.5}
    made = learner_of(family, Control(name="none"), point)
    assert made["learning_rate"] == 0.5
    assert set(made) == {"objective", "learning_rate"}
    assert objective(made["objective"]) == bandpo.Objective(bandpo.Clip(0.02, math.inf))


def test_a_control_changes_the_learner_or_the_rule():
    family = Family(name="gspo", objective="cispo")
    upper = {"type": "by_sign", "positive": "$rule", "negative": {"type": "clip", "eps_low": 1, "eps_high": math.inf}}
    control = Control(name="upper side alone", objective=upper, positive_weight=0.95)
    made = learner_of(family, control, {"learning_rate": 0.1})
    assert made["positive_weight"] == 0.95
    assert "entropy_bonus" not in made
    changed_objective = objective(made["objective"])
    assert changed_objective.trust_region == bandpo.BySign(bandpo.Clip(1, 4), bandpo.Clip(1, math.inf))
    assert changed_objective.surrogate == "weight"  # the rest of the objective stays


def test_what_a_control_can_change_is_what_a_learner_has():
    of_learner = {each.name: each.default for each in dataclasses.fields(Learner)}
    ours = {name: each.default for name, each in Control.model_fields.items() if name not in ("name", "objective")}
    assert ours == {name: of_learner[name] for name in ours}
    assert {*ours, "objective", "learning_rate"} == set(of_learner)


def changed(*path_and_value):
    *path, value = path_and_value
    node = copy.deepcopy(node_of())
    target = node
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return node


WRONG = {
    "no mapping": ([1], "keys such as worlds"),
    "a typo": (changed("famlies", []), "unknown key 'famlies', did you mean 'families'"),
    "a typo within": (changed("families", 1, "gird", {}), r"unknown key 'families\.1\.gird', did you mean 'grid'"),
    "a typo of stages": (changed("stages", "serch", {}), "'stages.serch', did you mean 'search'"),
    "missing": ({k: v for k, v in node_of().items() if k != "baseline"}, "baseline is missing"),
    "a wrong type": (changed("stages", "search", "count", "four"), r"stages\.search\.count is 'four'"),
    "no seeds": (changed("stages", "judge", "count", 0), r"stages\.judge\.count is 0; expected is .*greater"),
    "an unknown world": (changed("worlds", ["raer"]), r"worlds\.0: .*did you mean 'rare'"),
    "a world's field": (changed("worlds", ["rare", {"base": "rare", "flop": 1}]), r"worlds\.1: .*'flip'"),
    "a world twice": (changed("worlds", ["rare", "rare"]), r"worlds\.1: 'rare' is there twice"),
    "a name twice": (changed("families", 1, "name", "clip"), r"families\.1\.name: 'clip' is there twice"),
    "no baseline": (changed("baseline", "clap"), "baseline: .*did you mean 'clip'"),
    "seeds that overlap": (
        changed("stages", "judge", "first", 105),
        r"stages\.judge: its seeds 105 to 144 overlap those of choose, 100 to 105",
    ),
    "unequal grids": (
        changed("families", 0, "grid", "up", [0.1, 0.2]),
        r"families\.0\.grid: 'clip' would have 6 settings .* and 'band' has 15",
    ),
    "a name without values": (changed("families", 0, "grid", {}), r"families\.0\.grid: has no values for \$up"),
    "values without a name": (
        changed("families", 1, "grid", "eps", [1]), r"families\.1\.grid\.eps: is nowhere in the objective",
    ),
    "a value twice": (changed("families", 0, "grid", "up", [1, 2, 2, 3, 4]), r"families\.0\.grid\.up: .*got 2 twice"),
    "a range": (changed("families", 1, "grid", "delta", {"from": 0, "to": 1, "count": 5}), r"grid\.delta: from and to"),
    "a range's keys": (changed("families", 1, "grid", "delta", {"from": 1}), r"from, to and count, got \['from'\]"),
    "an objective": (
        changed("families", 0, "objective", "type", "clp"),
        r"families\.0\.objective at up = 0\.1: .*did you mean 'clip'",
    ),
    "a parameter": (
        changed("families", 1, "grid", "delta", [-1, 0.1, 0.2, 0.3, 0.4]), r"families\.1\.objective at delta = -1: ",
    ),
    "a learning rate": (changed("learning_rates", [0, 0.1, 0.2]), "learning_rates: must be numbers above 0"),
    "a control": (changed("controls", [{"name": "x", "positive_weight": -1}]), r"controls\.0\.positive_weight is -1"),
    "a control's rule": (
        changed("controls", [{"name": "x", "objective": {"type": "clip"}}]),
        r"controls\.0\.objective: must hold \$rule",
    ),
    "a control that cannot be": (
        {**changed("families", [{"name": "clip", "objective": "gspo"}]),
         "controls": [{"name": "none"}, {"name": "chance", "by_chance": True}]},
        r"families\.0\.objective, under controls\.1 \(chance\): .*by_chance",
    ),
    "a metric that is not kept": (changed("metric", "skill"), "numbers: must hold 'skill'"),
    "a metric of which less is better": (
        changed("metric", "half"), "metric: must be one of final, mean, peak, work, skill, .* got 'half'",
    ),
    "a typo of a metric": (changed("metric", "finl"), "metric: .* got 'finl', did you mean 'final'"),
    "a reward that is not kept": (changed("numbers", ["mean", "work"]), "numbers: must hold 'final'"),
    "what tells lost runs": (changed("numbers", ["final", "half"]), "numbers: must hold 'work', got .*'half'"),
    "a reward to be lost below": (changed("lost_below", 5), "lost_below is 5; expected is less than or equal to 1"),
    "a number twice": (changed("numbers", ["final", "mean", "half", "final"]), r"numbers\.3: 'final' is there twice"),
    "an unknown number": (changed("numbers", ["final", "skil"]), r"numbers\.1 .* got 'skil', did you mean 'skill'"),
    "a world twice, by its content": (
        changed("worlds", ["rare", "storm", {"base": "rare"}]), r"worlds\.2: .* is there twice, as worlds\.0 'rare'",
    ),
    "a parameter named learning_rate": (
        {**changed("families", [{
            "name": "clip", "objective": {"type": "clip", "eps_high": "$learning_rate"},
            "grid": {"learning_rate": [1, 2]},
        }])},
        r"families\.0\.grid\.learning_rate: give the family learning_rates",
    ),
    "positive_from alone": (
        changed("controls", [{"name": "x"}, {"name": "y", "positive_from": 0.5}]),
        r"controls\.1\.positive_from: does nothing without a positive_weight",
    ),
    "a control that is nothing": (
        changed("controls", [{"name": "none"}, {"name": "w", "positive_weight": 0.9}, {"name": "also none"}]),
        r"controls\.2: 'also none' is for every family what 'none' is, controls\.0",
    ),
    "a control that all families have": (
        {**changed("families", [{
            "name": "clip", "objective": {"type": "objective", "trust_region": {"type": "clip"}, "beta": 0.01},
        }]), "controls": [{"name": "none"}, {"name": "penalty", "beta": 0.01}]},
        r"controls\.1: 'penalty' is for every family what 'none' is, controls\.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_by_its_place(name):
    node, told = WRONG[name]
    with pytest.raises(UserError, match=told) as error:
        make_contest(node, "x.yaml")
    assert str(error.value).startswith("x.yaml: ")


def test_a_control_may_be_nothing_for_some_of_the_families():
    own = {"type": "objective", "trust_region": {"type": "clip", "eps_high": "$up"}, "beta": 0.01}
    node = changed("families", 0, "objective", own)
    node["controls"] = [{"name": "none"}, {"name": "penalty", "beta": 0.01}]
    assert len(make_contest(node).controls) == 2


def test_a_contest_is_read_from_a_file(tmp_path):
    (tmp_path / "one.yaml").write_text("name: x\nname: y\n")
    with pytest.raises(UserError, match="there twice"):
        read_contest(tmp_path / "one.yaml")
    with pytest.raises(UserError, match=r"does not exist, did you mean 'one\.yaml'"):
        read_contest(tmp_path / "on.yaml")


def test_a_smoke_test_keeps_families_and_controls_and_an_equal_search(small):
    less = small.smaller()
    assert isinstance(less, Contest)
    assert [each.name for each in less.families] == ["clip", "band"]
    assert (less.controls, less.searched) == (small.controls, 2)
    assert less.fewest_runs == 2 * (2 * 3 + 1 * 3 + 6)
    assert less.widens
    assert less.worlds == ({"base": "rare and noisy", "rounds": 4},)
    assert [settings_of(less, less.axes(family)) for family in less.families] == [
        [{"up": 0.4, "learning_rate": 0.01}, {"up": 0.4, "learning_rate": 0.02}],
        [{"delta": 0.01, "learning_rate": 0.01}, {"delta": 0.01, "learning_rate": 0.02}],
    ]


@pytest.mark.parametrize("first", [1000, 1_000_190])
def test_a_smoke_test_sees_none_of_the_seeds_of_the_contest(first):
    contest = make_contest(changed("stages", "judge", "first", first))
    stages = ("search", "choose", "judge")
    real, seen = ([getattr(one.stages, name).range for name in stages] for one in (contest, contest.smaller()))
    assert all(set(a).isdisjoint(b) for a in real for b in seen)
    assert all(set(a).isdisjoint(b) for a, b in itertools.combinations(seen, 2))
    assert [len(seeds) for seeds in seen] == [3, 3, 6]


def test_only_some_families_with_the_baseline(small):
    assert [each.name for each in small.only(["band"]).families] == ["clip", "band"]
    assert [each.name for each in small.only(["clip", "band"]).families] == ["clip", "band"]
    with pytest.raises(UserError, match=r"'clip' is the baseline, and alone compares nothing; name some of \['band'\]"):
        small.only(["clip"])
    with pytest.raises(UserError, match="did you mean 'band'"):
        small.only(["bnd"])
