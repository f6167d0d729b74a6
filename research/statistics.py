"""What a contest of methods says, each with many training runs: estimators, intervals and tests.

Aggregates over tasks and runs are those of rliable (arXiv 2108.13264): interquartile mean, probability of improvement,
performance profile, and the percentile bootstrap stratified by task. What it has not: the share of runs that are lost,
a paired permutation test, and Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bandpo_runs.statistics.comparison import sign_flip_p
from bandpo_runs.statistics.estimators import Floats
from bandpo_runs.statistics.intervals import LEVEL

__all__ = [
    "Estimate",
    "bootstrap",
    "extinction_rate",
    "holm",
    "interquartile_mean",
    "performance_profile",
    "probability_of_improvement",
    "swap_test",
]

_AT_ONCE = 4_000_000  # numbers of the resampled data that are in memory at once


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float
    high: float


def interquartile_mean(values: ArrayLike, axis: int | tuple[int, ...] | None = None) -> Any:
    """The mean of the middle half: the n // 4 lowest and the n // 4 highest of n values do not count.

    Over tasks and runs together it is rliable's IQM (arXiv 2108.13264, section 4.3), which few outliers do not move; so
    it also hides runs that are lost, if they are less than a quarter: see `extinction_rate`.

    Args:
        values: of any shape.
        axis: which axes are averaged over, as numpy's; None: all.

    Raises:
        ValueError: no values, or no such axis.
    """
    numbers = np.asarray(values, np.float64)
    axes = sorted(np.lib.array_utils.normalize_axis_tuple(range(numbers.ndim) if axis is None else axis, numbers.ndim))
    rest = [each for each in range(numbers.ndim) if each not in axes]
    flat = numbers.transpose(*rest, *axes).reshape(*(numbers.shape[each] for each in rest), -1)
    if not flat.shape[-1]:
        raise ValueError(f"values must hold at least one number along axis {axis}, got shape {numbers.shape}")
    cut = flat.shape[-1] // 4
    ends = [cut, flat.shape[-1] - cut - 1]  # a partition takes a third of the time of sorting
    return np.partition(flat, ends, -1)[..., cut : flat.shape[-1] - cut].mean(-1)


def probability_of_improvement(x: ArrayLike, y: ArrayLike, *, paired: bool = False) -> Any:
    """P(X > Y) + P(X = Y) / 2: how likely a run of X beats one of Y (arXiv 2108.13264, section 4.3).

    A run that ended in NaN is worse than any number.

    Args:
        x: values of runs, [..., runs].
        y: of the other method, [..., runs]; leading axes as those of `x`.
        paired: compare run i with run i, which had the same seed, rather than each with each: then both need as many.
            Over all pairs it is the Mann-Whitney statistic divided by the number of pairs.

    Returns:
        The probability, [...]; for several tasks rliable takes the mean over them.

    Raises:
        ValueError: no runs, or paired ones that are not equally many.
    """
    a, b = (np.where(np.isnan(each), -np.inf, each) for each in (np.asarray(x, np.float64), np.asarray(y, np.float64)))
    if not a.shape[-1:] > (0,) or not b.shape[-1:] > (0,):
        raise ValueError(f"x and y must hold at least one run each, got shapes {a.shape} and {b.shape}")
    if not paired:
        a, b = a[..., :, None], b[..., None, :]
    elif a.shape != b.shape:
        raise ValueError(f"paired runs must be equally many, got shapes {a.shape} and {b.shape}")
    wins = (a > b) + 0.5 * (a == b)
    return wins.mean(-1) if paired else wins.mean((-2, -1))


def performance_profile(values: ArrayLike, thresholds: ArrayLike) -> Floats:
    """The share of runs with a value above tau, for each tau: 1/N sum_n 1[x_n > tau] (arXiv 2108.13264, section 4.2).

    Args:
        values: [tasks, runs] or [runs]; every task has the same number of runs, and so the same weight.
        thresholds: tau, [T].

    Returns:
        Shares, [T], which fall with tau.
    """
    numbers = np.asarray(values, np.float64).ravel()
    if not len(numbers):
        raise ValueError("values must hold at least one run, got none")
    return (numbers > np.asarray(thresholds, np.float64)[:, None]).mean(-1)  # a run that ended in NaN is above nothing


def extinction_rate(values: ArrayLike, below: float, level: float = LEVEL) -> Estimate:
    """The share of runs that end below a value, with Wilson's interval.

    With k of n runs and the normal quantile z: (k + z^2/2 +- z sqrt(k (n - k) / n + z^2/4)) / (n + z^2), which leaves
    room above 0 where no run was lost (Wilson 1927).
    """
    numbers = np.asarray(values, np.float64).ravel()
    n = len(numbers)
    if not n:
        raise ValueError("values must hold at least one run, got none")
    k = int((~(numbers >= below)).sum())  # a run that ended in NaN is lost too
    z = NormalDist().inv_cdf(0.5 + _checked(level) / 2)
    centre, half = k + z * z / 2, z * math.sqrt(k * (n - k) / n + z * z / 4)
    # At the ends the formula is 0 and 1 but for rounding.
    low = 0.0 if k == 0 else (centre - half) / (n + z * z)
    high = 1.0 if k == n else (centre + half) / (n + z * z)
    return Estimate(k / n, low, high)


def bootstrap(
    statistic: Callable[..., Any],
    *samples: ArrayLike,
    paired: bool = True,
    groups: Sequence[Hashable] | None = None,
    level: float = LEVEL,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """A statistic with its stratified percentile bootstrap interval over runs (arXiv 2108.13264, section 4.1).

    Runs are drawn with replacement within each task, never tasks. The statistic is computed for many draws at once.

    Args:
        statistic: takes as many arrays as there are samples, each with one more axis in front, and reduces all but
            that: `lambda x, y: (x - y).mean(-1)`, or over tasks `lambda x: interquartile_mean(x, (-2, -1))`.
        samples: of each method [runs], or [tasks, runs].
        paired: run i of every sample had the same seed, and so the same runs are drawn for all samples.
        groups: for each task a label; tasks with the same label share their random numbers run by run, so the same
            runs are drawn for them. None: every task has its own.
        level: of the interval.
        resamples: draws.
        seed: of the draws.

    Returns:
        The statistic of the samples themselves, and the quantiles of its draws.

    Raises:
        ValueError: samples of different shapes although they are paired, no runs, or a label missing.
    """
    arrays = [np.asarray(sample, np.float64) for sample in samples]
    shapes = [array.shape for array in arrays]
    if not arrays or any(array.ndim not in (1, 2) or not array.size for array in arrays):
        raise ValueError(f"samples must be arrays [runs] or [tasks, runs] with at least one run, got shapes {shapes}")
    if paired and len(set(shapes)) > 1:
        raise ValueError(f"paired samples must have the same shape, got {shapes}")
    tasks = {len(array) if array.ndim == 2 else 1 for array in arrays}
    if groups is not None and tasks != {len(groups)}:
        raise ValueError(f"groups must have one label for each of {sorted(tasks)} tasks, got {len(groups)}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    low, high = (1 - _checked(level)) / 2, (1 + level) / 2
    value = np.asarray(statistic(*(array[None] for array in arrays)))
    if value.shape != (1,):
        raise ValueError(f"statistic must reduce all axes but the first, got shape {value.shape} for one draw")
    draw = np.random.default_rng(seed)
    most = max(1, _AT_ONCE // max(array.size for array in arrays))
    parts: list[Floats] = []
    for first in range(0, resamples, most):
        count = min(most, resamples - first)
        drawn = None
        taken = []
        for array in arrays:
            if drawn is None or not paired:
                drawn = _draws(draw, count, array, groups)
            taken.append(np.take_along_axis(array[None], drawn, -1))
        parts.append(np.asarray(statistic(*taken), np.float64))
    ends = np.quantile(np.concatenate(parts), [low, high])
    return Estimate(float(value[0]), float(ends[0]), float(ends[1]))


def _draws(draw: np.random.Generator, count: int, array: Floats, groups: Sequence[Hashable] | None) -> Any:
    """Which runs are taken, [count, runs] or [count, tasks, runs]."""
    runs = array.shape[-1]
    if array.ndim == 1:
        return draw.integers(runs, size=(count, runs))
    labels = list(range(len(array)) if groups is None else groups)
    names = list(dict.fromkeys(labels))
    return draw.integers(runs, size=(count, len(names), runs))[:, [names.index(label) for label in labels]]


def swap_test(x: ArrayLike, y: ArrayLike, *, draws: int = 20_000, seed: int = 0) -> float:
    """Two-sided p-value of "for each seed, the runs of X and Y might as well be swapped".

    The share of the 2^n ways to swap pairs in which the sum of x - y is as far from 0 as it is (Fisher's paired
    permutation test). Exact up to 20 pairs that differ, else from random swaps, at least 1 / (draws + 1).

    Args:
        x: of each seed one number, [seeds]; of several tasks that share seeds their mean.
        y: of the other method with the same seeds, [seeds].
        draws: random swaps, at least 1000; what is beyond a whole number of thousands does not count.
        seed: of these.

    Raises:
        ValueError: x and y are not equally many, or not finite; too few draws.
    """
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"x and y must be one number for each seed, equally many, got shapes {a.shape} and {b.shape}")
    for name, values in (("x", a), ("y", b)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must hold finite numbers, got {values[~np.isfinite(values)][0]}")
    if draws < 1000:
        raise ValueError(f"draws must be at least 1000, got {draws}")
    return sign_flip_p((a - b).tolist(), draws=draws, seed=seed)[0]


def holm(p_values: ArrayLike) -> Floats:
    """Adjusted p-values that hold for all tests together (Holm 1979).

    The k-th smallest of m becomes max over j <= k of min(1, (m - j + 1) p_(j)): those at most alpha may be called
    different with a chance of at most alpha that any of them is not, however the tests depend on one another.
    """
    p = np.asarray(p_values, np.float64)
    if p.ndim != 1 or not bool(((p >= 0) & (p <= 1)).all()):
        raise ValueError(f"p_values must be a list of numbers in [0, 1], got {p_values!r}")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), such as 0.95, got {level!r}")
    return level
