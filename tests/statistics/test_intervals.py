"""Intervals and estimators against what must hold of them and against all subsets, draws, signs and deals; coverage in
small (measured by interval_coverage.py)."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mp
from scripts import load

from bandpo_runs.statistics import comparison, estimators
from bandpo_runs.statistics.comparison import Judged, common_prompts, compare, reshuffle_p, sign_flip_p
from bandpo_runs.statistics.estimators import (
    Graded,
    best_at_k_bootstrap,
    best_at_k_expected,
    maj_at_k_bootstrap,
    pass_at_k,
    per_prompt,
    powers,
)
from bandpo_runs.statistics.intervals import (
    Spread,
    average,
    clustered_error,
    sampling_error,
    summarize,
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
    assert 0.88 < 1 - (high - low) < 0.051 ** (1 / 30)


def test_more_samples_narrow_one_interval_and_more_prompts_the_other():
    rng = np.random.default_rng(0)
    p = rng.beta(0.3, 0.7, 4000)

    def widths(prompts, n):
        score = (rng.random((prompts, n)) < p[:prompts, None]).astype(float)
        return [s.interval()[1] - s.interval()[0] for s in (sampling_error(score), clustered_error(per_prompt(score)))]

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
    assert (both.value, both.centre, both.error, both.df) == pytest.approx(
        (0.4, 0.4, 0.025, (9 + 16) ** 2 / ((81 + 256) / 10))
    )


# ---- coverage


@pytest.fixture(scope="module")
def coverage():
    return load("research/measurements/interval_coverage.py")


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
    for k in range(1, n + 1):
        means = [np.mean([max(s) for s in itertools.combinations([1] * c + [0] * (n - c), k)]) for c in range(n + 1)]
        np.testing.assert_allclose(pass_at_k(n, np.arange(n + 1), k), means, rtol=1e-14, atol=1e-15)
    assert not np.signbit(pass_at_k(n, 0, 1))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_pass_at_k_is_exact_up_to_ten_thousand_samples(data):
    n = data.draw(st.integers(1, 10_000))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert math.isclose(float(pass_at_k(n, c, k)), float(exact), rel_tol=1e-11)


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
    assert (np.mean(places), float(pass_at_k(32, 1, 32))) == (pytest.approx(0.638, abs=0.01), 1.0)
    assert min(places) < 0.62 < 0.65 < max(places)


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


# ---- two checkpoints, and what is said of a data set


def graded(score, data="aime", answers=None, ids=None, **more):
    score = np.asarray(score, float)
    ids = ids or [f"p{i}" for i in range(len(score))]
    none = dict.fromkeys(("tokens", "truncated", "parsed"))
    return Graded(data=data, score=score, answers=answers, prompt_ids=ids, **{**none, **more})


# ---- comparison


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-6, 6), min_size=1, max_size=9))
@example([-1, 5, -4])  # sevenths of them add up to 0 only up to rounding
def test_sign_flips_are_all_of_them(steps):
    seen = abs(sum(steps))
    sums = [abs(sum(s * d for s, d in zip(signs, steps, strict=True)))
            for signs in itertools.product((-1, 1), repeat=len(steps))]  # fmt: skip
    expected = sum(s >= seen for s in sums) / len(sums)
    for differences in ([Fraction(d, 6) for d in steps], [d / 7 for d in steps]):
        p, exact = sign_flip_p(differences)
        assert (p, exact) == (pytest.approx(expected, abs=1e-12), True)


def test_many_differences_without_a_common_denominator_are_drawn():
    d = np.random.default_rng(0).normal(0.3, 1, 40)
    p, exact = sign_flip_p([float(x) for x in d])
    by_counting, _ = sign_flip_p([Fraction(round(x * 1000), 1000) for x in d])
    assert (exact, p) == (False, pytest.approx(by_counting, abs=0.005))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=3))
def test_reshuffling_is_all_deals(counts):
    """Every way to deal the samples of each prompt out again, three to A and two to B."""
    deals = []
    for a, b in counts:
        cards = [1] * (a + b) + [0] * (5 - a - b)
        deals.append([Fraction(sum(cards) - sum(hand), 2) - Fraction(sum(hand), 3)
                      for hand in itertools.combinations(cards, 3)])  # fmt: skip
    seen = sum(Fraction(b, 2) - Fraction(a, 3) for a, b in counts)
    sums = [sum(deal) for deal in itertools.product(*deals)]
    expected = pytest.approx(sum(abs(s) >= abs(seen) for s in sums) / len(sums), abs=1e-10)
    assert reshuffle_p([(a, 3, b, 2) for a, b in counts]) == (expected, True)


def test_reshuffling_too_fine_a_grid_is_normal(monkeypatch):
    tables = [(c, 100, c + 4, 100) for c in range(20, 60)]
    p, is_exact = reshuffle_p(tables)
    monkeypatch.setattr(comparison, "MOST_WORK", 100)
    normal, is_still = reshuffle_p(tables)
    flips = sign_flip_p([Fraction(b - a, n) for a, n, b, _ in tables])
    assert (is_exact, is_still, flips[1], normal) == (True, False, False, pytest.approx(p, rel=0.1))


def errors_of(result):
    return result.sampling_error, result.clustered_error


def models(seed, shift, prompts=30, n=32):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 1.0, prompts)
    a = rng.random((prompts, n)) < p[:, None]
    b = rng.random((prompts, n)) < np.clip(p + shift, 0, 1)[:, None]
    return graded(a), graded(b)


def test_a_clear_difference_is_found_with_its_size():
    (result,) = compare(*([side] for side in models(0, 0.2)))
    assert result.difference == pytest.approx(result.b - result.a)
    assert result.clustered_error.interval[0] > 0.1
    assert [error.p < 1e-4 and error.exact and error.settled for error in errors_of(result)] == [True, True]


def test_settled_takes_the_interval_and_the_test():
    """A p-value below 0.05 beside an interval that holds 0 is not settled, nor the other way round."""
    (none,) = compare(*([side] for side in models(0, 0.0)))
    assert [error.settled for error in errors_of(none)] == [False, False]
    for centre, p, settled in ((0.3, 0.04, True), (0.3, 0.06, False), (0.1, 0.04, False)):
        assert Judged.of(Spread(centre, centre, 0.1), p, True).settled == settled


def test_one_sample_of_each_is_compared_in_pairs():
    """Greedy answers to 500 prompts that differ in 20, 18 of them for the better (McNemar: p = 0.0004). The models
    apart would have intervals of 6 points each way."""
    a = np.arange(500)[:, None] < 250
    b = a ^ (np.arange(500)[:, None] >= 482) ^ (np.arange(500)[:, None] < 2)
    (result,) = compare([graded(a)], [graded(b)])
    assert (result.difference, result.clustered_error.p) == (
        pytest.approx(16 / 500),
        pytest.approx(2 * sum(math.comb(20, i) for i in range(3)) / 2**20),
    )
    wald = 1.96 * math.sqrt(20 - 16**2 / 500) / 500
    interval = pytest.approx((16 / 500 - wald, 16 / 500 + wald), abs=0.001)
    assert [(error.interval, error.settled) for error in errors_of(result)] == [(interval, True)] * 2
    (same,) = compare([graded(a)], [graded(a)])
    assert same.clustered_error.interval.high > 0.003  # where none differs, some of others may


def test_the_same_model_twice_is_no_difference():
    a, _ = models(0, 0)
    (result,) = compare([a], [a])
    assert (result.difference, result.sampling_error.p, result.clustered_error.p) == (0, 1, 1)
    low, high = result.clustered_error.interval  # not of width zero: sampled again it would differ
    assert low < 0 < high


def test_prompts_are_matched_by_content_and_the_rest_is_left_out():
    a = graded([[1, 1], [0, 0], [1, 0]], ids=["x", "y", "z"])
    b = graded([[0, 0], [1, 1], [1, 1]], ids=["z", "x", "other"])
    left, right = common_prompts(a, b)
    assert (left.tolist(), right.tolist()) == ([[1, 1], [1, 0]], [[1, 1], [0, 0]])
    (result,) = compare([a], [b])
    assert (result.prompts, result.difference) == (2, pytest.approx(-0.25))


# ---- summary


def test_powers_are_verls():
    assert [powers(n) for n in (1, 2, 32, 24)] == [[], [2], [2, 4, 8, 16, 32], [2, 4, 8, 16, 24]]


def test_the_summary_has_every_number_with_its_intervals():
    score = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1.0]])
    answers = np.array([["7", "7", "8", None], ["1", "2", "1", None], ["9"] * 4], object)
    tokens = np.arange(12).reshape(3, 4) + 1
    truncated, parsed = tokens > 10, answers != np.array(None)
    out = summarize(graded(score, answers=answers, tokens=tokens, truncated=truncated, parsed=parsed))
    expected = {"mean@4": 0.5, "pass@2": (5 / 6 + 0 + 1) / 3, "pass@4": 2 / 3, "truncated": 2 / 12, "unparsed": 2 / 12}
    assert ({name: out[name]["value"] for name in expected}, out["best@4/mean"]["expected"]) == (
        pytest.approx(expected),
        pytest.approx((1 - 0.5**4 + 1) / 3),
    )
    assert out["best@4/mean"]["value"] == pytest.approx(out["best@4/mean"]["expected"], abs=0.02)
    assert out["maj@4/mean"]["value"] == maj_at_k_bootstrap(answers, score, 4).mean()
    assert out["tokens"] == {
        "mean": 6.5, "median": 6.5, "p90": pytest.approx(10.9), "max": 12.0,
        "mean_right": pytest.approx((1 + 2 + 9 + 10 + 11 + 12) / 6), "mean_wrong": pytest.approx((3 + 4 + 26) / 6),
    }  # fmt: skip
    low, high = out["mean@4"]["clustered_error"]
    assert low < 0.5 < high > low + np.diff(out["mean@4"]["sampling_error"])


def test_the_summary_leaves_out_what_was_not_recorded():
    assert set(summarize(graded([[1], [0]]))) == {"data", "prompts", "samples", "level", "mean@1", "pass@1"}
