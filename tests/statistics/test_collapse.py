"""The collapse detector on made logs: what it must find, what it must not, and the formats it reads."""

from pathlib import Path

import numpy as np
import pytest
from scripts import load

from bandpo_runs.statistics import collapse
from bandpo_runs.statistics.collapse import WINDOW, _break, find_collapse, running_median, trailing_mean


@pytest.fixture(scope="module")
def benchmark():
    return load("research/measurements/collapse.py")


def like_the_papers(at=340, length=800, seed=0, entropy_after=0.02):
    """A run whose reward rises to 0.6 and breaks at `at`, with scores of +-1 as verl logs them."""
    rng = np.random.default_rng(seed)
    x = np.arange(length)
    accuracy = np.where(x < at, 0.3 + 0.3 * x / at, 0.05) + rng.normal(0, 0.02, length)
    entropy = np.where(x < at, 0.6 - 0.4 * x / at, entropy_after) * np.exp(rng.normal(0, 0.1, length))
    return 2 * accuracy - 1, entropy


def test_a_collapse_at_step_340_is_told_with_its_step():
    reward, entropy = like_the_papers()
    collapse = find_collapse(reward, entropy, np.arange(1, 801))
    assert (collapse.step, collapse.certain, collapse.recovered, collapse.entropy) == (341, True, None, "fell")
    assert collapse.detected < 341 + 2 * WINDOW
    assert str(collapse) == "collapsed at step 341: reward 0.19 before, -0.89 after, entropy fell"


def test_the_break_is_where_two_levels_fit_best():
    part = np.random.default_rng(0).normal(0, 1, 40)
    costs = [part[:i].var() * i + part[i:].var() * (40 - i) for i in range(1, 40)]
    assert _break(np.r_[9.0, part], 1, 40) == 2 + np.argmin(costs)


def test_half_is_half_of_what_lies_above_the_lowest_reward():
    """Scores of +-1 from -0.8 to -0.2 and back to -0.4 have lost a third, from -0.2 to -0.7 most of it."""
    x = np.arange(300)
    noise, rising = np.random.default_rng(0).normal(0, 0.01, 300), np.minimum(-0.2, -0.8 + 0.01 * x)
    assert find_collapse(np.where(x < 150, rising, -0.4) + noise) is None
    assert find_collapse(np.where(x < 150, rising, -0.7) + noise).step == 150


@pytest.mark.parametrize(
    ("entropy_after", "moved"), [(0.02, "fell"), (0.9, "rose"), (0.2, "stayed"), (None, "not logged")]
)
def test_the_entropy_is_the_second_witness(entropy_after, moved):
    reward, entropy = like_the_papers(entropy_after=entropy_after or 0.02)
    collapse = find_collapse(reward, None if entropy_after is None else entropy)
    assert (collapse.entropy, collapse.certain) == (moved, moved != "stayed")
    assert str(collapse).startswith("collapsed" if collapse.certain else "reward fell")


@pytest.mark.parametrize("lasts", [False, True])
def test_what_comes_back_has_recovered_and_a_collapse_that_lasts_goes_before_it(lasts):
    x = np.arange(300)
    reward = np.where(((x >= 80) & (x < 120)) | (x >= 200) & lasts, 0.05, 0.6)
    collapse = find_collapse(reward + np.random.default_rng(0).normal(0, 0.01, 300), 0.2 + 0.0 * x)
    assert (collapse.step, collapse.recovered is None) == ((200, True) if lasts else (80, False))
    assert lasts or (120 < collapse.recovered < 120 + 3 * WINDOW and "recovered at step" in str(collapse))


@pytest.mark.parametrize(
    ("kind", "noise", "certain"),
    [
        ("rises", 0.08, None),
        ("flat", 0.08, None),
        ("rises slowly while the entropy goes to zero", 0.08, None),
        ("a dip of 6 points", 0.08, None),
        ("harder data", 0.02, False),
        ("breaks, entropy rises", 0.02, True),
        ("breaks, entropy goes to zero", 0.02, True),
    ],
)
def test_breaks_are_found_where_they_are_and_healthy_logs_give_no_alarm(benchmark, kind, noise, certain):
    for seed in range(12):
        reward, entropy, at = benchmark.made(np.random.default_rng(seed), kind, 300, noise)
        found = find_collapse(reward, entropy)
        assert (found and found.certain) == certain
        assert not certain or (abs(found.step - at) <= 1 and found.detected - at <= 2 * WINDOW)


def test_a_run_that_never_learned_has_nothing_to_lose():
    runs = [np.zeros(300), np.full(50, np.nan), [], *(np.random.default_rng(x).normal(0, 0.02, 800) for x in range(20))]
    assert [find_collapse(reward) for reward in runs] == [None] * 23


def test_what_is_not_known_is_left_out():
    reward, entropy = like_the_papers()
    reward[::7] = np.nan
    assert abs(find_collapse(reward, entropy, np.arange(800.0)).step - 340) <= 1


def test_the_trailing_mean_is_of_the_known_values():
    np.testing.assert_array_equal(trailing_mean([1, np.nan, 3, 5], 2), [np.nan, np.nan, 2, 4])


# ----------------------------------------------------------------------------------------------------------------- logs


def test_the_running_median_is_that_of_the_values_so_far():
    values = np.random.default_rng(0).integers(0, 9, 300) / 8
    np.testing.assert_array_equal(running_median(values), [np.median(values[: i + 1]) for i in range(300)])
    assert running_median(values[:0]) == []


def test_a_noisy_log_takes_two_medians_however_long_it_is(monkeypatch):
    """A median over all rows at each low row took minutes for 400,000 rows."""
    calls = []

    def counting(values):
        calls.append(len(values))
        return running_median(values)

    monkeypatch.setattr(collapse, "running_median", counting)
    monkeypatch.setattr(np, "median", None)
    assert (find_collapse(np.random.default_rng(0).random(3000)), calls) == (None, [2999, 2977])


# ------------------------------------------------------------------------------------------------------------ the page


def test_the_tables_of_the_page_are_those_of_the_rows(benchmark):
    """If not: `python -m research.measurements.interval_coverage --page`, and `collapse` with `--page`."""
    coverage = load("research/measurements/interval_coverage.py")
    text = (Path(__file__).parents[2] / "research" / "pages" / "evaluation_measured.md").read_text(encoding="utf-8")
    for name, script in (("coverage", coverage), ("collapse", benchmark)):
        assert coverage.page(text, name, script.tables(script.read_rows(script.ROWS))) == text
