"""What a contest of methods says, each with many training runs: estimators, intervals and tests.

Two are of rliable (arXiv 2108.13264): the probability of improvement, and the percentile bootstrap stratified by task.
The others are the share of runs that are lost, a paired permutation test, and Holm's correction.
"""

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
    "probability_of_improvement",
    "swap_test",
]

_AT_ONCE = 4_000_000  # numbers of the resampled data that are in memory at once


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float
    high: float


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> Any:
    """P(X > Y) + P(X = Y) / 2: how likely a run of X beats one of Y (arXiv 2108.13264, section 4.3).

    Each run is compared with each: it is the Mann-Whitney statistic divided by the number of pairs. A run that ended in
    NaN is worse than any number.

    Args:
        x: values of runs, [..., runs].
        y: of the other method, [..., runs]; leading axes as those of `x`.

    Returns:
        The probability, [...]; for several tasks rliable takes the mean over them.

    Raises:
        ValueError: no runs.
    """
    a, b = (np.where(np.isnan(each), -np.inf, each) for each in (np.asarray(x, np.float64), np.asarray(y, np.float64)))
    if not a.shape[-1:] > (0,) or not b.shape[-1:] > (0,):
        raise ValueError(f"x and y must hold at least one run each, got shapes {a.shape} and {b.shape}")
    a, b = a[..., :, None], b[..., None, :]
    return ((a > b) + 0.5 * (a == b)).mean((-2, -1))


def extinction_rate(values: ArrayLike, below: float) -> Estimate:
    """The share of runs that end below a value, with Wilson's interval.

    With k of n runs and the normal quantile z: (k + z^2/2 +- z sqrt(k (n - k) / n + z^2/4)) / (n + z^2), which leaves
    room above 0 where no run was lost (Wilson 1927).
    """
    numbers = np.asarray(values, np.float64).ravel()
    n = len(numbers)
    if not n:
        raise ValueError("values must hold at least one run, got none")
    k = int((~(numbers >= below)).sum())  # a run that ended in NaN is lost too
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    centre, half = k + z * z / 2, z * math.sqrt(k * (n - k) / n + z * z / 4)
    # At the ends the formula is 0 and 1 but for rounding.
    low = 0.0 if k == 0 else (centre - half) / (n + z * z)
    high = 1.0 if k == n else (centre + half) / (n + z * z)
    return Estimate(k / n, low, high)


def bootstrap(
    statistic: Callable[..., Any],
    *samples: ArrayLike,
    groups: Sequence[Hashable] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """A statistic with its stratified percentile bootstrap interval over runs (arXiv 2108.13264, section 4.1).

    Runs are drawn with replacement within each task, never tasks. The statistic is computed for many draws at once.

    Args:
        statistic: takes as many arrays as there are samples, each with one more axis in front, and reduces all but
            that: `lambda x, y: (x - y).mean(-1)`, or over tasks `lambda x: x.mean((-2, -1))`.
        samples: of each method [runs], or [tasks, runs]. Run i of each had the same seed: the same are drawn for all.
        groups: for each task a label; tasks with the same label share their random numbers run by run, so the same
            runs are drawn for them. None: every task has its own.
        resamples: draws.
        seed: of the draws.

    Returns:
        The statistic of the samples themselves, and the quantiles of its draws.

    Raises:
        ValueError: samples of different shapes, no runs, or a label missing.
    """
    arrays = [np.asarray(sample, np.float64) for sample in samples]
    shapes = [array.shape for array in arrays]
    if not arrays or any(array.ndim not in (1, 2) or not array.size for array in arrays):
        raise ValueError(f"samples must be arrays [runs] or [tasks, runs] with at least one run, got shapes {shapes}")
    if len(set(shapes)) > 1:
        raise ValueError(f"samples must have the same shape, got {shapes}")
    if groups is not None and len(groups) != arrays[0][..., 0].size:
        raise ValueError(f"groups must have one label for each of {arrays[0][..., 0].size} tasks, got {len(groups)}")
    value = np.asarray(statistic(*(array[None] for array in arrays)))
    if value.shape != (1,):
        raise ValueError(f"statistic must reduce all axes but the first, got shape {value.shape} for one draw")
    draw = np.random.default_rng(seed)
    most = max(1, _AT_ONCE // arrays[0].size)
    parts: list[Floats] = []
    for first in range(0, resamples, most):
        drawn = _draws(draw, min(most, resamples - first), arrays[0], groups)
        taken = (np.take_along_axis(array[None], drawn, -1) for array in arrays)
        parts.append(np.asarray(statistic(*taken), np.float64))
    ends = np.quantile(np.concatenate(parts), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(value[0]), float(ends[0]), float(ends[1]))


def _draws(draw: np.random.Generator, count: int, array: Floats, groups: Sequence[Hashable] | None) -> Any:
    """Which runs are taken, [count, runs] or [count, tasks, runs]."""
    runs = array.shape[-1]
    if array.ndim == 1:
        return draw.integers(runs, size=(count, runs))
    labels = list(range(len(array)) if groups is None else groups)
    names = list(dict.fromkeys(labels))
    return draw.integers(runs, size=(count, len(names), runs))[:, [names.index(label) for label in labels]]


def swap_test(x: ArrayLike, y: ArrayLike) -> float:
    """Two-sided p-value of "for each seed, the runs of X and Y might as well be swapped".

    The share of the 2^n ways to swap pairs in which the sum of x - y is as far from 0 as it is (Fisher's paired
    permutation test). Exact up to 20 pairs that differ, else from 20,000 random swaps, at least 1 / 20,001.

    Args:
        x: of each seed one number, [seeds]; of several tasks that share seeds their mean.
        y: of the other method with the same seeds, [seeds].

    Raises:
        ValueError: x and y are not equally many, or not finite.
    """
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"x and y must be one number for each seed, equally many, got shapes {a.shape} and {b.shape}")
    for name, values in (("x", a), ("y", b)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must hold finite numbers, got {values[~np.isfinite(values)][0]}")
    return sign_flip_p((a - b).tolist(), draws=20_000, seed=0)[0]


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
