"""Two checkpoints: tests against all signs and all deals, and what is said of a data set."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bandpo_runs.statistics import comparison
from bandpo_runs.statistics.comparison import Judged, common_prompts, compare, reshuffle_p, sign_flip_p
from bandpo_runs.statistics.estimators import Graded, maj_at_k_bootstrap, powers
from bandpo_runs.statistics.intervals import Spread, summarize


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
    assert not exact
    assert abs(p - sign_flip_p([Fraction(round(x * 1000), 1000) for x in d])[0]) < 0.005


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
    p, exact = reshuffle_p([(a, 3, b, 2) for a, b in counts])
    assert exact
    assert p == pytest.approx(sum(abs(s) >= abs(seen) for s in sums) / len(sums), abs=1e-10)


def test_reshuffling_too_fine_a_grid_is_normal(monkeypatch):
    tables = [(c, 100, c + 4, 100) for c in range(20, 60)]
    p, is_exact = reshuffle_p(tables)
    monkeypatch.setattr(comparison, "MOST_WORK", 100)
    normal, is_still = reshuffle_p(tables)
    flips = sign_flip_p([Fraction(b - a, n) for a, n, b, _ in tables])
    assert (is_exact, is_still, flips[1]) == (True, False, False)
    assert abs(p - normal) < 0.1 * p


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
    for error in errors_of(result):
        assert error.interval == pytest.approx((16 / 500 - wald, 16 / 500 + wald), abs=0.001)
        assert error.settled
    (same,) = compare([graded(a)], [graded(a)])
    assert same.clustered_error.interval.high > 0.003  # where none differs, some of others may


def test_what_is_needed_counts_the_samples_of_each():
    """As many of both as are needed do not depend on how many there are now."""
    rng = np.random.default_rng(2)
    p = rng.uniform(0.2, 0.8, 20)
    a, b = (rng.random((20, 4000)) < x[:, None] for x in (p, p + 0.05))
    even = compare([graded(a)], [graded(b)])[0].needed.samples_here
    uneven = compare([graded(a[:, :400])], [graded(b)])[0]
    again = (compare([graded(a)], [graded(b)])[0].difference / uneven.difference) ** 2
    assert uneven.needed.samples_here == pytest.approx(even * again, rel=0.05)


def test_the_same_model_twice_is_no_difference():
    a, _ = models(0, 0)
    (result,) = compare([a], [a])
    assert (result.difference, result.sampling_error.p, result.clustered_error.p) == (0, 1, 1)
    low, high = result.clustered_error.interval
    assert low < 0 < high  # not a width of zero: sampled again it would differ
    assert result.needed is None


def test_prompts_are_matched_by_content_and_the_rest_is_left_out():
    a = graded([[1, 1], [0, 0], [1, 0]], ids=["x", "y", "z"])
    b = graded([[0, 0], [1, 1], [1, 1]], ids=["z", "x", "other"])
    left, right = common_prompts(a, b)
    assert (left.tolist(), right.tolist()) == ([[1, 1], [1, 0]], [[1, 1], [0, 0]])
    (result,) = compare([a], [b])
    assert (result.prompts, result.difference) == (2, pytest.approx(-0.25))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"data": "amc"}, "no data set in common: A has aime, B has amc"),
        ({"ids": ["other"]}, "no prompt of 'aime' in c"),
    ],
)
def test_nothing_in_common_is_an_error(other, message):
    with pytest.raises(ValueError, match=message):
        compare([graded([[1]])], [graded([[1]], **other)])


def test_the_average_is_over_data_sets_not_over_prompts():
    a = [graded([[0], [0], [0], [0]], "one"), graded([[0]], "two")]
    *_, mean = compare(a, [graded([[1], [0], [0], [0]], "one"), graded([[1]], "two")])
    assert (mean.data, mean.difference) == ("average", pytest.approx((0.25 + 1) / 2))


def test_what_is_said_to_be_needed_suffices_in_four_of_five():
    """With that many samples, the interval over sampling leaves 0 in about 80% of repetitions."""
    rng = np.random.default_rng(1)
    p, shift = rng.uniform(0.2, 0.8, 20), 0.05
    big = [graded(rng.random((20, 2000)) < x[:, None]) for x in (p, p + shift)]
    n = math.ceil(compare([big[0]], [big[1]])[0].needed.samples_here)
    hits = 0
    for _ in range(200):
        a, b = (graded(rng.random((20, n)) < x[:, None]) for x in (p, p + shift))
        low, high = compare([a], [b])[0].sampling_error.interval
        hits += low > 0 or high < 0
    assert 0.70 < hits / 200 < 0.90


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
    assert abs(out["best@4/mean"]["value"] - out["best@4/mean"]["expected"]) < 0.02
    assert out["maj@4/mean"]["value"] == maj_at_k_bootstrap(answers, score, 4).mean()
    assert out["tokens"] == {
        "mean": 6.5, "median": 6.5, "p90": pytest.approx(10.9), "max": 12.0,
        "mean_right": pytest.approx((1 + 2 + 9 + 10 + 11 + 12) / 6), "mean_wrong": pytest.approx((3 + 4 + 26) / 6),
    }  # fmt: skip
    low, high = out["mean@4"]["clustered_error"]
    assert low < 0.5 < high
    assert high - low > np.diff(out["mean@4"]["sampling_error"])


def test_the_summary_leaves_out_what_was_not_recorded():
    out = summarize(graded([[1], [0]]))
    assert set(out) == {"data", "prompts", "samples", "level", "mean@1", "pass@1"}


def test_swapping_the_models_swaps_the_sign():
    a, b = models(4, 0.05)
    (one,), (other,) = compare([a], [b]), compare([b], [a])
    assert one.difference == pytest.approx(-other.difference)
    assert [one.sampling_error.p, one.clustered_error.p] == pytest.approx(
        [other.sampling_error.p, other.clustered_error.p]
    )
