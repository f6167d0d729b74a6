"""Intervals against what must hold of them; their coverage in small (measured by interval_coverage.py)."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scripts import load

from bandpo_runs.statistics import estimators
from bandpo_runs.statistics.estimators import (
    best_at_k_bootstrap,
    best_at_k_expected,
    maj_at_k_bootstrap,
    pass_at_k,
    per_prompt,
)
from bandpo_runs.statistics.intervals import (
    Spread,
    average,
    clustered_error,
    difference,
    runs_needed,
    sampling_error,
    t_quantile,
    training_runs,
)


@pytest.mark.parametrize("df", [1, 2, 3, 8, 29, 30, 500, 20_000])
def test_quantiles_of_students_t_are_those_of_the_incomplete_beta(df):
    for p in (0.6, 0.9, 0.975, 0.995):
        t = t_quantile(p, df)
        upper = mp.betainc(mp.mpf(df) / 2, mp.mpf(1) / 2, 0, mp.mpf(df) / (df + mp.mpf(t) ** 2), regularized=True) / 2
        assert math.isclose(float(1 - upper), p, rel_tol=1e-9)


def test_of_infinitely_many_degrees_of_freedom_it_is_normal():
    assert math.isclose(t_quantile(0.975, math.inf), 1.959963985, rel_tol=1e-9)
    assert math.isclose(t_quantile(0.975, 9999), t_quantile(0.975, math.inf), rel_tol=1e-3)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.data())
def test_every_interval_holds_its_value_and_none_is_of_width_zero(prompts, n, data):
    right = data.draw(st.lists(st.integers(0, n), min_size=prompts, max_size=prompts))
    score = np.array([[1] * c + [0] * (n - c) for c in right], float)
    for k in (None, 1, n):
        sampling, clustered = sampling_error(score, k), clustered_error(estimators.per_prompt(score, k))
        for spread in (sampling, clustered):
            low, high = spread.interval()
            assert 0 <= low <= spread.value <= high <= 1
            assert high - low > 1e-6


@pytest.mark.parametrize("all_of_them", [0.0, 1.0])
def test_thirty_problems_that_agree_do_not_answer_for_all_others(all_of_them):
    """At the far end of the interval, thirty problems like these would still be seen in one sample of twenty."""
    low, high = clustered_error(np.full(30, all_of_them)).interval()
    assert 0.05 < high - low < 0.12
    assert (1 - (high - low)) ** 30 < 0.051


def test_more_samples_narrow_one_interval_and_more_prompts_the_other():
    rng = np.random.default_rng(0)
    p = rng.beta(0.3, 0.7, 4000)

    def widths(prompts, n):
        score = (rng.random((prompts, n)) < p[:prompts, None]).astype(float)
        spreads = sampling_error(score), clustered_error(per_prompt(score))
        return [s.interval()[1] - s.interval()[0] for s in spreads]

    few, many_samples, many_prompts = widths(30, 8), widths(30, 800), widths(3000, 8)
    assert many_samples[0] < few[0] / 5
    assert many_samples[1] > few[1] / 1.5  # no number of samples tells how other problems are
    assert many_prompts[1] < few[1] / 5


def test_the_interval_over_training_runs_is_students():
    spread = training_runs([0.40, 0.44, 0.45])
    half = 4.302653 * np.std([0.40, 0.44, 0.45], ddof=1) / math.sqrt(3)
    np.testing.assert_allclose(spread.interval(), [0.43 - half, 0.43 + half], rtol=1e-6)
    assert training_runs([0.4]) is None
    np.testing.assert_allclose(training_runs([0.4, 0.42]).error * 12.7062, 0.127062, rtol=1e-4)


def test_the_average_adds_variances():
    both = average([Spread(0.2, 0.21, 0.03, 10), Spread(0.6, 0.59, 0.04, 10)])
    assert (both.value, both.centre) == pytest.approx((0.4, 0.4))
    assert (both.error, both.df) == (pytest.approx(0.025), pytest.approx((9 + 16) ** 2 / ((81 + 256) / 10)))


# ---- coverage


@pytest.fixture(scope="module")
def coverage():
    return load("research/measurements/interval_coverage.py")


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 1.2), (0.0, 1.0)])  # deviations; 0: of pairs there is one
def test_so_many_runs_tell_a_difference_in_four_of_five_cases_and_one_fewer_do_not(a, b):
    rng = np.random.default_rng(0)
    needed = int(runs_needed(1.5, [a**2, b**2] if a else [b**2]))

    def told(n):
        sides = rng.normal(0, a, (4000, n)) if a else None, rng.normal(1.5, b, (4000, n))
        known = [[training_runs(row) for row in side.tolist()] for side in sides if side is not None]
        gaps = [difference(*each) if a else each[0] for each in zip(*known, strict=True)]
        return np.mean([gap.interval(low=-math.inf, high=math.inf).low > 0 for gap in gaps])

    assert told(needed) > 0.77  # Welch's degrees are rounded down
    assert told(needed - 1) < 0.8
    assert (runs_needed(0.0, [1.0]), runs_needed(1.0, [0.0])) == (math.inf, 2)


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say(coverage):
    """In small, 200 trials: four standard errors below 95% are 89%."""
    names = ("mixed: Beta(0.25, 0.75)", "hard: Beta(0.1, 2.4)", "all or none: 30% always right")
    rows = list(coverage.intervals(200, ((30, 32),), names))
    assert len(rows) == 12
    for row in rows:
        assert row["result"] >= 0.89, row
    narrow = [row["mean_width_points"] for row in rows if row["what"].endswith("mean@n, sampling error")]
    assert max(narrow) < 5  # points: not by being wide


def test_tests_err_as_often_as_they_may(coverage):
    rows = [row for row in coverage.differences(100, ((30, 8),)) if row["population"] == "the same"]
    assert len(rows) == 4
    for row in rows:
        if row["what"].startswith("p <"):
            assert row["result"] <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 100), row
        else:
            assert row["result"] >= 0.87, row


@pytest.mark.slow
def test_pass_at_k_has_no_bias_and_best_at_k_has(coverage):
    rows = [row for row in coverage.bias(200) if "k = 32" in row["what"] and row["samples"] == 32]
    of = {row["what"].split(",")[1].strip(): row for row in rows if row["population"].startswith("hard")}
    unbiased, replaced = of["pass@k as an estimate of pass@k"], of["best@k"]
    assert abs(unbiased["result"]) < 4 * unbiased["standard_error"]
    assert replaced["result"] < -3


# ---- estimators against brute force over all subsets and draws


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_pass_at_k_is_the_mean_over_all_subsets(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = [max(s) for s in itertools.combinations(([1] * c + [0] * (n - c)), k)]
        assert math.isclose(float(pass_at_k(n, c, k)), sum(subsets) / len(subsets), abs_tol=1e-15)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_pass_at_k_is_exact_up_to_ten_thousand_samples(data):
    n = data.draw(st.integers(1, 10_000))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert math.isclose(float(pass_at_k(n, c, k)), float(exact), rel_tol=1e-11)


def test_pass_at_k_takes_arrays_of_counts():
    np.testing.assert_allclose(pass_at_k(4, [[0, 1], [2, 4]], 2), [[0, 0.5], [5 / 6, 1]], rtol=1e-14)
    assert not np.signbit(pass_at_k(4, 0, 2))


@pytest.mark.parametrize("k", [0, 5])
def test_a_k_without_so_many_samples_is_refused(k):
    with pytest.raises(ValueError, match=f"k must be from 1 to the number of samples 4, got {k}"):
        pass_at_k(4, 1, k)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_best_at_k_expected_is_the_mean_over_all_draws_with_replacement(n):
    for c, k in itertools.product(range(n + 1), range(1, 5)):
        draws = [max(d) for d in itertools.product(([1] * c + [0] * (n - c)), repeat=k)]
        assert math.isclose(float(best_at_k_expected(n, c, k)), sum(draws) / len(draws), abs_tol=1e-15)


def test_verls_best_at_32_of_one_right_sample_is_not_one():
    """1 - (31/32)^32 = 0.638; the bootstrap is one draw of it, which depends on where the right sample stands."""
    assert round(float(best_at_k_expected(32, 1, 32)), 3) == 0.638
    places = [float(best_at_k_bootstrap(np.eye(32)[i], 32)) for i in range(32)]
    assert abs(np.mean(places) - 0.638) < 0.01
    assert min(places) < 0.62
    assert max(places) > 0.65
    assert float(pass_at_k(32, 1, 32)) == 1.0


def test_the_bootstrap_is_that_of_numpys_legacy_generator():
    """As verl does it: seed 42 for every prompt, choice with replacement, the mean of 1000 maxima."""
    values = np.random.default_rng(1).random((5, 16))
    for row, ours in zip(values, best_at_k_bootstrap(values, 8), strict=True):
        np.random.seed(42)
        chosen = np.random.choice(16, size=(1000, 8), replace=True)
        assert float(np.mean([np.max(row[draw]) for draw in chosen])) == ours


def majority(answers, values):
    """What verl takes: the most frequent, of equally frequent ones the first; the value of its first sample."""
    votes = Counter(answers)
    return values[list(answers).index(max(votes, key=lambda answer: votes[answer]))]


def test_the_bootstrap_of_the_majority_is_verls():
    rng = random.Random(3)
    answers = [[rng.choice(["7", "12", None, "x"]) for _ in range(8)] for _ in range(6)]
    values = [[float(a == "7") for a in row] for row in answers]
    values[0] = [rng.random() for _ in range(8)]  # values that differ between equal answers
    ours = maj_at_k_bootstrap(answers, values, 4)
    for row, value, result in zip(answers, values, ours, strict=True):
        np.random.seed(42)
        chosen = np.random.choice(8, size=(1000, 4), replace=True)
        assert float(np.mean([majority([row[i] for i in d], [value[i] for i in d]) for d in chosen])) == result


def test_without_k_it_is_the_mean_of_the_samples():
    np.testing.assert_array_equal(per_prompt([[1, 0, 0, 0], [1, 1, 1, 1]]), [0.25, 1])
