"""Estimators of a contest against scipy, brute force, simulations and hand examples."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, mannwhitneyu, permutation_test

from research.statistics import (
    bootstrap,
    extinction_rate,
    holm,
    probability_of_improvement,
    swap_test,
)

values = st.lists(st.integers(-4, 4), min_size=1, max_size=12)


@given(values, values)
def test_probability_of_improvement_over_all_pairs_is_mann_whitneys(x, y):
    won = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(x, y)]
    assert probability_of_improvement(x, y) == pytest.approx(sum(won) / len(won))
    assert probability_of_improvement(x, y) == pytest.approx(mannwhitneyu(x, y).statistic / len(won))


@pytest.mark.parametrize(("lost", "runs"), [(0, 7), (3, 24), (12, 512), (9, 9)])
def test_the_extinction_rate_has_wilsons_interval(lost, runs):
    rate = extinction_rate([0.2] * lost + [0.5] * (runs - lost), below=0.5)
    expected = binomtest(lost, runs).proportion_ci(method="wilson")
    assert rate == pytest.approx((lost / runs, expected.low, expected.high), abs=1e-12)


def test_a_run_that_ends_in_nan_is_lost():
    assert extinction_rate([math.nan, 0.9], below=0.5).value == 0.5
    with pytest.raises(ValueError, match="at least one run"):
        extinction_rate([], 0.5)
    assert probability_of_improvement([math.nan], [0.1]) == 0
    assert probability_of_improvement([0.1], [math.nan]) == 1
    with pytest.raises(ValueError, match="at least one run"):
        probability_of_improvement([], [1])


def test_the_bootstrap_agrees_with_scipys():
    draw = np.random.default_rng(1)
    x = draw.exponential(size=60)
    y = x + draw.normal(0.1, 0.2, size=60)
    ours = bootstrap(lambda a, b: (b - a).mean(-1), x, y, resamples=20_000)
    theirs = scipy.stats.bootstrap(
        (x, y), lambda a, b, axis: (b - a).mean(axis), paired=True, method="percentile", n_resamples=20_000,
        vectorized=True, rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert ours.value == pytest.approx((y - x).mean())
    assert ours[1:] == pytest.approx(theirs, abs=0.004)


# torchrl's bootstrap_estimate and paired_comparison (pytorch/rl at 842fe63a, torchrl/collectors/_evaluation_stats.py;
# torchrl 0.14.1, the newest release, has not got them), with tensordict 0.14.3 and torch 2.13.0 in float64. Of each
# number of runs: the mean and its interval of x, and of x - y; made by
#
#     draw = torch.Generator().manual_seed(0)  # once for each number of runs: statistic "iqm", then "mean"
#     one = bootstrap_estimate(x, statistic=statistic, num_resamples=20_000, generator=draw)
#     pair = paired_comparison(x, y, statistic=statistic, num_resamples=20_000, generator=draw)
TORCHRL = [
    (7, 0.23261, 0.05991, 0.432044, 0.037842, -0.15408, 0.243759),
    (24, 0.299284, 0.190022, 0.41777, 0.011617, -0.146235, 0.170135),
    (61, 0.334095, 0.260119, 0.411212, 0.02595, -0.074476, 0.1279),
]


@pytest.mark.parametrize("row", TORCHRL, ids=lambda row: str(row[0]))
def test_estimates_and_intervals_are_torchrls(row):
    """Estimates to the last digit kept; ends of intervals within .04 of the width, as 20,000 draws leave them."""
    n, *expected = row
    i = np.arange(n)
    x, y = (37 * i % 101 / 101) ** 2, (53 * i % 97 / 97) ** 2
    one = bootstrap(lambda a: a.mean(-1), x, resamples=20_000, seed=1)
    pair = bootstrap(lambda a, b: (a - b).mean(-1), x, y, resamples=20_000, seed=2)
    for ours, theirs in ((one, expected[:3]), (pair, expected[3:])):
        assert ours.value == pytest.approx(theirs[0], abs=1e-6)
        assert ours[1:] == pytest.approx(theirs[1:], abs=0.04 * (theirs[2] - theirs[1]))


def test_the_bootstrap_covers_as_often_as_it_says():
    """800 data sets of two tasks with 30 runs: the binomial standard error of the share is .008."""
    draw = np.random.default_rng(3)
    data = draw.normal([[0.0], [2.0]], [[1.0], [3.0]], size=(800, 2, 30))
    intervals = [bootstrap(lambda x: x.mean((-2, -1)), each, resamples=400, seed=i) for i, each in enumerate(data)]
    assert 0.91 <= np.mean([one.low <= 1.0 <= one.high for one in intervals]) <= 0.97


def test_tasks_that_share_draws_are_drawn_together():
    """Two tasks with the very same noise are one task; two with opposite noise have none in their mean."""
    x = np.random.default_rng(4).normal(size=80)
    same, opposite = np.stack([x, x]), np.stack([x, -x])
    mean = lambda each: each.mean((-2, -1))  # noqa: E731
    alone = bootstrap(lambda each: each.mean(-1), x)
    width = alone.high - alone.low
    together = bootstrap(mean, same, groups=["a", "a"])
    assert together == pytest.approx(alone)
    apart = bootstrap(mean, same)
    assert apart.high - apart.low == pytest.approx(width / math.sqrt(2), rel=0.1)
    assert bootstrap(mean, opposite, groups=["a", "a"]) == pytest.approx((0, 0, 0), abs=1e-12)


@pytest.mark.parametrize(
    ("samples", "options", "told"),
    [
        ([[1, 2], [1, 2, 3]], {}, "same shape"),
        ([], {}, "at least one run"),
        ([[]], {}, "at least one run"),
        ([[1, 2]], {"groups": ["a", "b"]}, "one label"),
    ],
)
def test_the_bootstrap_refuses(samples, options, told):
    with pytest.raises(ValueError, match=told):
        bootstrap(lambda *x: x[0].mean(-1), *samples, **options)
    with pytest.raises(ValueError, match="reduce all axes"):
        bootstrap(lambda x: x, [1, 2])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=8))
def test_the_swap_test_is_scipys_permutation_test(pairs):
    x, y = (np.array(each, float) for each in zip(*pairs, strict=True))
    expected = permutation_test(
        (x, y), lambda a, b, axis: (a - b).sum(axis), permutation_type="samples", n_resamples=1000, vectorized=True
    )
    # scipy's two-sided p is twice the smaller tail; the sums of swaps are symmetric, so it is the same
    assert swap_test(x, y) == pytest.approx(min(1.0, expected.pvalue))


def test_the_swap_test_of_many_pairs_is_near_the_exact_one():
    draw = np.random.default_rng(7)
    x, y = draw.normal(0.25, 1, size=60), np.zeros(60)
    z = (x - y).sum() / math.sqrt(((x - y) ** 2).sum())
    assert swap_test(x, y) == pytest.approx(2 * scipy.stats.norm.sf(abs(z)), rel=0.15)
    assert swap_test(x + 5, y) == pytest.approx(1 / 20_001)
    with pytest.raises(ValueError, match="equally many"):
        swap_test([1, 2], [1])
    with pytest.raises(ValueError, match="x must hold finite numbers, got nan"):
        swap_test([math.nan, 1], [1, 2])
    with pytest.raises(ValueError, match="y must hold finite numbers, got inf"):
        swap_test([1, 2], [math.inf, 1])


def test_holm_by_hand():
    """statsmodels' multipletests(..., method="holm") gives these."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.02]) == pytest.approx([0.9, 0.04])
    assert holm([0.6, 0.7, 0.8]) == pytest.approx([1, 1, 1])
    assert holm([]).tolist() == []
    for wrong in ([1.2], [math.nan], [[0.1]]):
        with pytest.raises(ValueError, match=r"numbers in \[0, 1\]"):
            holm(wrong)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_procedure_rejects(p, alpha):
    """Go on from the smallest while p_(k) <= alpha / (m - k + 1)."""
    rejected = set()
    for k, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] * (len(p) - k) > alpha:
            break
        rejected.add(i)
    assert {i for i, each in enumerate(holm(p)) if each <= alpha} == rejected
