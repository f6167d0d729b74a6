"""A cell is known by all that its row depends on, and a cell that is run again gives its row again."""

import json
import math
from typing import Any

import pytest
from contests import node_of

import research.worlds
from bandpo.errors import UserError
from research.bench import cells as module
from research.bench.cells import batches, cell, cell_of, row_of, run_cells, seconds_a_run, settings_of
from research.bench.contest import LARGER_IS_BETTER, grid_of
from research.bench.contest import NUMBERS as NUMBERS_KNOWN
from research.bench.reading import make_contest
from research.worlds import Learner

LEARNER = {"objective": {"type": "clip"}, "learning_rate": 0.02}
SHORT = {"base": "rare and noisy", "rounds": 3, "epochs": 2}
NUMBERS = ("final", "half")


def made(world: Any = "rare and noisy", learner=LEARNER, seeds=range(4), numbers=NUMBERS):
    return cell(world, learner, seeds, numbers)


def test_the_key_is_that_of_the_content():
    same = made({"base": "rare and noisy"}, dict(reversed(LEARNER.items())))
    assert same.key == made().key
    others = [
        made({"base": "rare and noisy", "flip": 0.1}), made(learner={**LEARNER, "learning_rate": 0.03}),
        made(seeds=range(1, 5)), made({"base": "rare and noisy", "sampler": "bfloat16"}),
        made(seeds=range(5)), made(numbers=("final",)), made(learner={**LEARNER, "by_chance": True}),
    ]  # fmt: skip
    assert len({each.key for each in [made(), *others]}) == 8
    assert "sampler" not in module._content('"rare and noisy"')  # nor in the keys of rows that are kept


def test_the_key_is_another_with_another_version_of_the_worlds(monkeypatch):
    before = made().key
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    assert made().key != before


def test_a_row_is_of_its_cell_and_says_so_when_it_was_changed():
    one = made(seeds=range(10, 12), learner={**LEARNER, "beta": math.inf})
    row = row_of(one, {"final": [0.123456789, math.nan], "half": [65.0, 3.0]})
    assert (row["final"], row["half"], row["seeds"]) == ([0.123457, None], [65.0, 3.0], [10, 2])
    row = json.loads(json.dumps(row))
    assert cell_of(row, "here") == one
    for change in ({"seeds": [11, 2]}, {"world": "storm"}, {"learner": LEARNER}, {"skill": [1, 2]}):
        with pytest.raises(UserError, match=r"here: its key .* is not that of its world, learner and seeds"):
            cell_of({**row, **change}, "here")
    with pytest.raises(UserError, match=r"says that it has 2 seeds, and has \[2, 3\] numbers"):
        cell_of({**row, "half": [1, 2, 3]}, "here")
    for broken in ({"key": "x"}, {**row, "seeds": 3}, {**row, "seeds": ["a", "b"]}, {**row, "world": "bth"}):
        with pytest.raises(UserError, match="here: no row of a contest"):
            cell_of(broken, "here")


def test_cells_together_and_each_alone_give_the_same_rows():
    """In the real worlds, which run one learner as they run it among others."""
    band = {"objective": {"type": "band", "delta": 0.05}, "learning_rate": 0.04}
    some = [cell(SHORT, learner, range(3), NUMBERS) for learner in (LEARNER, band)]
    together = run_cells(some)
    assert [row for each in some for row in run_cells([each])] == together
    assert together[0]["final"] != together[1]["final"]
    assert len(set(together[0]["final"])) == 3
    (last,) = run_cells([cell(SHORT, LEARNER, range(2, 3), NUMBERS)])
    assert last["final"] == together[0]["final"][2:]  # a seed means the same in every range
    with pytest.raises(ValueError, match="one world and the same seeds"):
        run_cells([some[0], cell(SHORT, band, range(4), NUMBERS)])
    with pytest.raises(UserError, match=r"numbers must be of what a run gives, final, mean.*, got 'skil'"):
        run_cells([cell(SHORT, band, range(1), ("skil",))])


def test_the_numbers_that_may_be_kept_are_those_of_a_run():
    results = research.worlds.train(SHORT, [Learner("grpo", 0.02)], [0])
    assert set(results) == set(NUMBERS_KNOWN)
    assert set(LARGER_IS_BETTER) < set(results)
    (row,) = run_cells([made(SHORT, seeds=range(1), numbers=NUMBERS_KNOWN)])
    assert all(0 <= row[name][0] <= 1 for name in LARGER_IS_BETTER)


def test_batches_hold_cells_of_one_world_and_the_same_seeds():
    some = [made(seeds=range(4))] * 5 + [made("storm")] * 2 + [made("storm", seeds=range(100))] * 2
    parts = batches(some, 12)
    assert [len(batch) for batch in parts] == [3, 2, 2, 1, 1]
    assert [each for batch in parts for each in batch] == some
    assert all(len({(each.world, each.seeds) for each in batch}) == 1 for batch in parts)
    assert batches([], 12) == []


def test_few_settings_are_drawn_from_the_grid_and_are_always_the_same():
    contest = make_contest(node_of(settings=8))
    axes = contest.axes(contest.families[0])
    points = settings_of(contest, axes)
    assert points == settings_of(contest, axes)
    assert len({tuple(point.values()) for point in points}) == 8
    assert {point["learning_rate"] for point in points} == {0.01, 0.02, 0.04}
    every = make_contest(node_of(settings=99))
    assert settings_of(every, axes) == grid_of(axes)


def test_the_time_of_a_run_is_measured():
    contest = make_contest(node_of(worlds=[SHORT]))
    assert 1e-6 < seconds_a_run(contest) < 10
