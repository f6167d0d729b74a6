"""research/pages/paper_table.md is what its script writes; its digits add up, and its bounds hold what they say."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scripts import load

from bandpo_runs.statistics.estimators import best_at_k_bootstrap


@pytest.fixture(scope="module")
def page():
    return load("research/pages/paper_table.py")


def test_the_committed_page_is_the_one_that_the_script_writes(page):
    """If not: `python research/pages/paper_table.py`."""
    assert page.PAGE.read_text(encoding="utf-8") == page.page()


def test_the_digits_add_up(page):
    """A digit copied wrong would break an average, of 20 rows and two columns."""
    assert page.average_faults() == []
    assert len(page.cells()) == 80
    assert len(page.single()) == 60


def test_a_digit_copied_wrong_is_found(page, monkeypatch):
    broken = [replace(c, mean=c.mean + 0.1) if c.name == "3B GRPO AIME2024" else c for c in page.cells()]
    monkeypatch.setattr(page, "cells", lambda: broken)
    assert page.average_faults() == ["3B GRPO mean: 17.57 printed, 17.603 computed"]


@pytest.mark.parametrize("count", [30, 40, 960, 1280])
def test_the_grid_is_that_of_all_counts(page, count):
    grid = {f"{x:.2f}" for k in range(count + 1) for x in (100 * k / count - 1e-9, 100 * k / count + 1e-9)}
    grid.discard("-0.00")
    on_grid = {f"{i / 100:.2f}" for i in range(10_001) if page.on_grid(i / 100, count)}
    assert on_grid == grid - {f"{100.01:.2f}"}
    assert page.chance_of_grid(count) == len(on_grid) / 10_001


def made(page, rng, data="AIME2024"):
    """A cell of a made model, with its counts."""
    p = rng.beta(0.3, rng.uniform(0.3, 3), page.PROBLEMS[data])
    right = rng.binomial(page.SAMPLES, p)
    score = np.array([rng.permutation([1.0] * c + [0.0] * (page.SAMPLES - c)) for c in right])
    best = 100 * float(best_at_k_bootstrap(score, page.SAMPLES).mean())
    cell = page.Cell("m", "a", data, round(100 * score.mean(), 2), round(best, 2), False, False)
    return cell, p, right


def test_the_bounds_of_solved_problems_hold_the_truth(page):
    rng = np.random.default_rng(0)
    for _ in range(200):
        cell, _, right = made(page, rng)
        low, high = page.solved(cell)
        assert low <= int((right > 0).sum()) <= high


def test_the_errors_are_upper_bounds(page):
    """Of sampling, for any chances of the problems; of problems, for any population, too."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        a, p, _ = made(page, rng)
        b, q, _ = made(page, rng)
        exact = [page.Cell("m", "x", "AIME2024", 100 * float(x.mean()), 0.0, False, False) for x in (p, q)]
        sampling = math.sqrt(((p * (1 - p)).mean() + (q * (1 - q)).mean()) / 960) * 100
        assert sampling <= page.sampling_error(*exact) + 1e-12
        population = math.sqrt((p.var() + q.var()) / 30 + (sampling / 100) ** 2) * 100
        assert population <= page.population_error(*exact) + 1e-12
        assert a.data == b.data
    alike = page.Cell("m", "x", "AIME2024", 30.0, 0.0, False, False)
    assert math.isclose(page.sampling_error(alike, alike), 100 * math.sqrt(2 * 0.3 * 0.7 / 960))
