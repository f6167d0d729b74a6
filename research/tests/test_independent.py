"""research/independent.py: its bounds against mpmath, its gradient against finite differences, and a tiny run."""

import ast
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest

from research import independent


@pytest.mark.parametrize("radius", [0.05, 0.005])
@pytest.mark.parametrize("p", [1e-6, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_bound_is_where_the_coins_are_a_radius_apart(p, radius):
    bounds = independent.band_kl(np.log([p, p]), radius, np.array([False, True]))
    assert bounds[0] < 0 < bounds[1]
    with mpmath.workdps(400):  # 1 - r p, with r down to e^-50000
        for bound in bounds:
            inside, outside = (apart(p, mpmath.mpf(bound) * (1 + by)) for by in (-1e-9, 1e-9))
            assert inside < radius < outside


def apart(p, log_ratio):
    """KL between the coin of p and that of r p, which is infinite where r p is not below 1."""
    old = mpmath.exp(mpmath.mpf(np.log(p)))
    new = old * mpmath.exp(log_ratio)
    return old * mpmath.log(old / new) + (1 - old) * mpmath.log((1 - old) / (1 - new)) if new < 1 else mpmath.inf


@pytest.mark.parametrize("name", independent.RULES)
def test_the_gradient_is_that_of_the_clipped_surrogate(name):
    """PPO's: the mean of min(r A, clip(r) A) over the tokens that count, and a bonus times their mean entropy."""
    rule, bonus = independent.RULES[name]
    rng = np.random.default_rng(0)
    logits, drawn = rng.normal(size=(2, 1, 3, 5)), rng.normal(size=(2, 1, 3, 5))
    tokens = rng.integers(5, size=(2, 1, 8, 3))
    counts = (tokens[..., :1] > 1) | (np.arange(3) == 0)
    advantages = rng.normal(size=(2, 1, 8, 1))
    up = np.broadcast_to(advantages > 0, tokens.shape)

    def of_tokens(logits):
        return np.take_along_axis(independent.log_softmax(logits)[:, :, None], tokens[..., None], -1)[..., 0]

    old = of_tokens(drawn)
    bounds = independent.bound(rule, old, up)

    def objective(logits):
        ratio, now = np.exp(of_tokens(logits) - old), independent.log_softmax(logits)
        # Where A > 0 only the upper bound matters, where A < 0 only the lower one.
        clipped = np.where(up, np.minimum(ratio, np.exp(bounds)), np.maximum(ratio, np.exp(bounds)))
        entropy = -(np.exp(now) * now).sum(-1)[:, :, None]
        total = np.where(counts, clipped * advantages + bonus * entropy, 0).sum((1, 2, 3))
        return (total / counts.sum((1, 2, 3))).sum()

    gradient, lost = independent.gradient(
        independent.log_softmax(logits), old, tokens, counts, advantages, bounds, bonus
    )
    assert lost.any() == (name not in ("no clip", "bonus .05"))
    for place in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-6
        slope = (objective(logits + step) - objective(logits - step)) / 2e-6
        assert gradient[place] == pytest.approx(slope, abs=1e-8)


def test_the_worlds_begin_as_they_are_described():
    several = independent.stacked(independent.ways, range(40), 2)
    assert (several.ways.sum(-1) == 16).all()
    assert several.harder.sum(-1).mean() == pytest.approx(8, abs=0.2)
    drawn = independent.stacked(independent.ways, range(40), 2, False)
    assert drawn.ways.mean() == pytest.approx(0.33, abs=0.005)
    reward, coverage, _ = independent.measured(several, several.weights)
    assert reward.mean() == pytest.approx(1 / 3, abs=0.02)
    assert coverage.mean() == pytest.approx(0.83, abs=0.03)
    rare = independent.stacked(independent.calibrated, range(20), 2)
    first = np.exp(independent.log_softmax(rare.features[:, :, 0] @ rare.weights)).mean(1)
    np.testing.assert_allclose(first[:, :2], [[0.03, 0.92]] * 20)
    np.testing.assert_allclose(first[:, 2:4] / first[:, 3:4], [[2, 1]] * 20)
    skill = (independent.measured(rare, rare.weights)[0].mean() - 0.06 * 0.92) / 0.03
    assert skill == pytest.approx(0.65, abs=0.06)  # as in research.worlds


def test_answers_are_rewarded_as_often_as_the_exact_number_says():
    """A quarter of the rewards is flipped."""
    for make in (independent.ways, independent.calibrated):
        worlds = independent.stacked(make, range(20), 60)
        seeds = np.arange(20)[:, None]
        rewards = []
        for round in range(60):
            prompts = worlds.order[:, round]
            old = independent.log_softmax(worlds.features[seeds, prompts] @ worlds.weights[:, None])
            tokens, counts, of_round = independent.answers(worlds, round, old, 0.25)
            assert (counts.sum(-1) == np.where(tokens[..., 0] == 0, tokens.shape[-1], 1)).all()
            rewards.append(of_round.mean())
        expected = independent.measured(worlds, worlds.weights)[0].mean()
        assert np.mean(rewards) == pytest.approx(0.75 * expected + 0.25 * (1 - expected), abs=0.006)


def test_a_short_run_has_all_rows_and_learns():
    first = independent.table("1", range(3), range(2), rounds=2)
    assert [len(first), len(independent.table("2", range(3), rounds=2))] == [5 * 10 * 4, 8 * 4]
    rows = independent.table("4", range(3), rounds=3)
    assert {(row["rule"], row["minus"]) for row in rows} >= {("GRPO .2/.2", "no clip"), ("Band-KL .05", "GRPO .2/.2")}
    worlds = independent.stacked(independent.ways, range(2), 12)
    numbers = independent.train(worlds, "no clip", 0.08, 8, 2, 0)
    assert (numbers["reward"] > 0.6).all()
    assert (numbers["lost"] == 0).all()


def test_it_shares_no_code():
    nodes = list(ast.walk(ast.parse(Path(independent.__file__).read_text(encoding="utf-8"))))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"}
