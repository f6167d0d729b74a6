"""research/measurements/tuning.py: the expected best of some settings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scripts import load

tuning = load("research/measurements/tuning.py")


@pytest.mark.parametrize("drawn", [1, 2, 4, 6])
def test_the_expected_best_is_the_mean_over_all_draws(drawn):
    rng = np.random.default_rng(drawn)
    search, other = rng.random((6, 5)), rng.random((6, 7))
    means = search.mean(1)
    chosen = [max(some, key=lambda i: means[i]) for some in itertools.combinations(range(6), drawn)]
    expected = np.mean([other[i] for i in chosen], axis=0)
    np.testing.assert_allclose(tuning.expected(search, other, drawn), expected)


def test_its_contest_says_of_every_setting_what_it_is_worth():
    contest = tuning.read_contest(tuning.CONTEST)
    sizes = {len(tuning.settings_of(contest, contest.axes(family))) for family in contest.families}
    assert sizes == {contest.stages.best}
    assert not contest.widens


def test_rewards_are_those_of_the_rows_of_each_stage():
    contest = tuning.read_contest(tuning.CONTEST).smaller()
    family, control = contest.families[0], contest.controls[0]
    points = tuning.settings_of(contest, contest.axes(family))
    rows, wanted = {}, []
    for i, seeds in enumerate((contest.stages.search.range, contest.stages.choose.range)):
        wanted.append([[float(i), float(j)] for j in range(len(points))])
        for j, point in enumerate(points):
            key = tuning.cell(contest.worlds[0], tuning.learner_of(family, control, point), seeds, contest.numbers).key
            rows[key] = {"final": wanted[-1][j]}
    for found, want in zip(tuning.rewards(contest, rows, family, control), wanted, strict=True):
        np.testing.assert_array_equal(found, want)
