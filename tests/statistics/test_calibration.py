"""Numbers of rules, against sorting and counting, numpy's quantiles and a t test of every number."""

import math

import numpy as np
import pytest
from commands import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bandpo_runs.statistics.calibration import critical_numbers, number_interval, smallest_number


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.25, 1.0, 3.0, math.inf]), min_size=1, max_size=30), st.floats(0, 30))
def test_no_smaller_number_leaves_as_few_outside(critical, most):
    critical = np.array(critical)
    found = smallest_number(critical, most)
    assert found == next(x for x in sorted({0.0, *critical}) if (critical > x).sum() <= most + 1e-9)


def test_a_count_that_is_rounded_is_the_count():
    assert smallest_number(np.arange(1.0, 101), 0.29 * 100) == 71  # 0.29 * 100 is 28.999999999999996


def plain(critical, responses, wanted, level):
    """The numbers around the answer that the t test does not reject, tested one by one; infinity is none."""
    tried = sorted({0.0, *critical})
    quantile = stats.t.ppf(0.5 + level / 2, len(wanted) - 1)
    value = smallest_number(critical, wanted.sum())

    def differences(number):
        return np.array([(critical[responses == i] > number).sum() for i in range(len(wanted))]) - wanted

    def held(number):
        each = differences(number)
        error = each.std(ddof=1)
        if each.sum() < differences(value).sum():
            error = max(error, differences(value).std(ddof=1))
        return abs(each.sum()) <= quantile * error * math.sqrt(len(wanted))

    low = tried.index(value)
    high = low + 1
    while low > 0 and held(tried[low - 1]):
        low -= 1
    while high < len(tried) and held(tried[high]):
        high += 1
    # A number between two of them leaves as many outside as the lower one: the interval ends below the next.
    return tried[low], tried[high] if high < len(tried) else math.inf


def simulated(generator, count, mean_length=20, spread=0.5):
    """Critical numbers whose size depends on the response too."""
    lengths = generator.integers(1, 2 * mean_length, count)
    responses = np.repeat(np.arange(count), lengths)
    size = spread * generator.standard_normal(count)
    return np.exp(size[responses] + generator.standard_normal(len(responses))), responses, lengths


@pytest.mark.parametrize("count", [3, 7, 40])
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("digits", [12, 1])
def test_the_interval_has_the_numbers_that_a_t_test_does_not_reject(count, rate, digits):
    for seed in range(3):
        critical, responses, lengths = simulated(np.random.default_rng(seed), count)
        critical = critical.round(digits)  # with one digit many are the same
        for wanted in (rate * lengths, 0.7 * np.bincount(responses[critical > 1.5], minlength=count)):
            for level in (0.95, 0.5):
                found = number_interval(critical, responses, wanted, level=level)
                assert found == pytest.approx(plain(critical, responses, wanted, level))


def test_tokens_that_no_number_lets_in_make_an_end_infinite():
    critical = np.concatenate([np.full(5, np.inf), np.linspace(0.1, 1, 95)])
    # All five are of one response.
    low, high = number_interval(critical, np.repeat(np.arange(20), 5), np.full(20, 0.3))
    assert low < 0.9 < high == math.inf == smallest_number(critical, 4)


@pytest.mark.slow
def test_the_interval_holds_the_number_of_the_population_as_often_as_it_says():
    """200 samples of 100 responses; of a fair interval 95 % hold it, more or less 3.

    research/measurements/calibration.py has more.
    """
    generator = np.random.default_rng(5)
    truth, held = np.quantile(simulated(generator, 200_000)[0], 0.95), 0
    for _ in range(200):
        critical, responses, lengths = simulated(generator, 100)
        low, high = number_interval(critical, responses, 0.05 * lengths)
        held += low <= truth <= high
    assert 0.92 <= held / 200 <= 0.99


@pytest.mark.parametrize("most", [0, 3, 7, 40, 333.3, 900])
def test_asking_finds_what_a_formula_gives(most):
    exact = np.random.default_rng(7).lognormal(sigma=2, size=1000)
    exact[:7], exact[7:50] = 1e9, 0.0
    responses = np.arange(1000) // 10
    found = critical_numbers(
        lambda number, tokens: exact[tokens] > number, np.geomspace(1e-4, 1e4, 20), responses, np.full(100, most / 100)
    )
    value, expected = smallest_number(found, most), smallest_number(exact, most)
    if most < 7:
        assert value == math.inf
        return
    assert expected <= value <= (1 + 2e-6) * expected
    assert (((found > value) == (exact > value)) & ((found == 0) == (exact == 0))).all()
    # As far as the interval reaches each is the next of a fine grid.
    exact[:7] = np.inf
    low, high = number_interval(exact, responses, np.full(100, most / 100))
    near = (low <= exact) & (exact <= high)
    assert ((exact[near] <= found[near]) & (found[near] <= 1.06 * exact[near])).all()
    assert number_interval(found, responses, np.full(100, most / 100)) == pytest.approx((low, high), rel=0.06)


def test_asking_says_where_no_number_leaves_as_many():
    exact, wanted = np.append(np.full(90, 1e-9), np.full(10, 1.0)), np.full(100, 0.3)
    found = critical_numbers(lambda number, of: exact[of] > number, (1e-4, 1e4), np.arange(100), wanted)
    assert smallest_number(found, 30) == 0


def test_a_rule_that_narrows_for_some_tokens_is_refused():
    def outside(number, tokens):
        return np.where(tokens % 10 == 0, number > 0.3, number < 0.5)

    assert "from 0.2 to 0.4 it gets wider for some tokens and narrower for 10 of 100" in refusal(
        critical_numbers, outside, [0.1, 0.2, 0.4, 0.8], np.arange(100), np.full(100, 0.3)
    )
