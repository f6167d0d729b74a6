"""Estimators against brute force over all subsets and draws."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandpo_runs.statistics.estimators import (
    best_at_k_bootstrap,
    best_at_k_expected,
    maj_at_k_bootstrap,
    pass_at_k,
    per_prompt,
)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_pass_at_k_is_the_mean_over_all_subsets(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        right = [1] * c + [0] * (n - c)
        subsets = [max(s) for s in itertools.combinations(right, k)]
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


def test_without_k_it_is_the_mean_of_the_samples():
    np.testing.assert_array_equal(per_prompt([[1, 0, 0, 0], [1, 1, 1, 1]]), [0.25, 1])


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_best_at_k_expected_is_the_mean_over_all_draws_with_replacement(n):
    for c, k in itertools.product(range(n + 1), range(1, 5)):
        right = [1] * c + [0] * (n - c)
        draws = [max(d) for d in itertools.product(right, repeat=k)]
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
    winner = max(votes, key=lambda answer: votes[answer])
    return values[list(answers).index(winner)]


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
