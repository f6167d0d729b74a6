"""Read a log as curves, and detect collapsed training runs by reward and entropy.

The rule of `find_collapse`: the mean reward of the last `window` points has lost half of what its best such mean had
above the floor, by more than `SIGMAS` standard errors of noise, for `window` points in a row; and the entropy has moved
with it: up to 1.5 times its lowest before the break or more, or down to half of what it was at the best point or less.
A reward that falls while the entropy stays is reported as such: harder data do so too. A reward that comes back above
the line for `window` points in a row has recovered.

research/measurements/collapse.py measures false alarms and delay on made logs and on runs of the lab;
research/pages/evaluation_measured.md has them.
"""

import fnmatch
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .estimators import Floats

WINDOW = 8
LOSS = 0.5  # of the best smoothed reward above the floor
SIGMAS = 6.0
ROSE, FELL = (
    1.5,
    0.5,
)  # the entropy: against its lowest before the break, against what it was at the best point
SHORT = 3  # points over which the entropy is averaged: at the start of training it changes fast
Entropy = Literal["rose", "fell", "stayed", "not logged"]


@dataclass(frozen=True)
class Collapse:
    """Describe the collapse of a reward.

    >>> print(Collapse(340, 352, 0.61, 0.05, "rose", recovered=None))
    collapsed at step 340: reward 0.61 before, 0.05 after, entropy rose

    Attributes:
        step: of the break.
        detected: the step at which the rule could tell.
        best: the best smoothed reward before.
        after: the mean reward after.
        entropy: what the entropy did.
        recovered: the step at which the reward came back; None: not to the end of the log.
        axis: "round" or "step".
    """

    step: float
    detected: float
    best: float
    after: float
    entropy: Entropy
    recovered: float | None
    axis: str = "step"

    @property
    def certain(self) -> bool:
        """Return True if the entropy moved too, or was not logged."""
        return self.entropy != "stayed"

    @property
    def lasting(self) -> bool:
        """Return True for a certain collapse that did not recover."""
        return self.certain and self.recovered is None

    def __str__(self) -> str:
        """Return `collapsed at step 340: reward 0.61 before, 0.05 after, entropy rose`."""
        what = f"{'collapsed' if self.certain else 'reward fell'} at {self.axis} {self.step:g}"
        what += f", recovered at {self.axis} {self.recovered:g}" if self.recovered is not None else ""
        return f"{what}: reward {self.best:.2f} before, {self.after:.2f} after, entropy {self.entropy}"


def trailing_mean(values: ArrayLike, window: int) -> Floats:
    """Return the mean of the last `window` known values; NaN before there are so many."""
    values = np.asarray(values, np.float64)
    finite, counts = values[np.isfinite(values)], np.cumsum(np.isfinite(values))
    means, enough = np.full(len(values), np.nan), counts >= window
    if enough.any():
        windows = np.lib.stride_tricks.sliding_window_view(finite, window)
        means[enough] = windows.mean(-1)[counts[enough] - window]
    return means


def find_collapse(
    reward: ArrayLike,
    entropy: ArrayLike | None = None,
    steps: ArrayLike | None = None,
    *,
    axis: str = "step",
) -> Collapse | None:
    """Find the first lasting collapse of a run, else the first that recovers.

    >>> print(find_collapse([0.6] * 40 + [0.05] * 20))
    collapsed at step 40: reward 0.60 before, 0.05 after, entropy not logged

    The floor of the rule is 0, or the lowest smoothed reward so far if that is lower.

    Args:
        reward: mean reward, point by point; NaN where it is not known.
        entropy: of the policy, in any unit, at the same points.
        steps: what the points are called; by default 0, 1, 2 ...
        axis: the word for `steps` in the message.
    """
    reward = np.asarray(reward, np.float64)
    entropy = np.full_like(reward, np.nan) if entropy is None else np.asarray(entropy, np.float64)
    steps = np.arange(len(reward), dtype=np.float64) if steps is None else np.asarray(steps, np.float64)
    finite = np.isfinite(reward)
    reward, entropy, steps = reward[finite], entropy[finite], steps[finite]
    smooth = trailing_mean(reward, WINDOW)
    steps_apart, windows_apart = _noise(reward, smooth)
    best, lowest, best_at, below, above = -math.inf, 0.0, 0, 0, 0
    passing: Collapse | None = None
    current: tuple[Collapse, int, int] | None = None  # with the places of its best point and of its break
    for i in range(WINDOW - 1, len(reward)):
        if current is None and smooth[i] > best:
            best, best_at = smooth[i], i
        lowest = min(lowest, smooth[i])
        line = lowest + LOSS * (best - lowest)
        if current is None:
            is_low = smooth[i] < line and best - smooth[i] > SIGMAS * max(
                steps_apart[i], windows_apart[best_at]
            )
            below = below + 1 if is_low else 0
        above = above + 1 if smooth[i] >= line else 0
        if current is None and below >= WINDOW:
            split = _break(reward, max(0, best_at - WINDOW + 1), i)
            after = float(reward[split : i + 1].mean())
            fall = Collapse(
                float(steps[split]), float(steps[i]), float(best), after, "not logged", None, axis
            )
            current = fall, best_at, split
        elif current is not None and above >= WINDOW:
            passing = passing or _with_entropy(*current, entropy[: i + 1], float(steps[i]))
            current, best, best_at, below = None, smooth[i], i, 0
    return passing if current is None else _with_entropy(*current, entropy, None)


def _noise(reward: Floats, smooth: Floats) -> tuple[list[float], list[float]]:
    """Return two standard errors of a smoothed reward, point by point.

    They come from the points so far. The first is from neighbouring points. The second is from three windows in a row,
    once there are 2 * WINDOW of those: they see noise that lasts for some points, and no steady rise.
    """
    neighbours = running_median(np.abs(np.diff(reward)))
    smooth = smooth[WINDOW - 1 :]
    bends = running_median(
        np.abs(smooth[2 * WINDOW :] - 2 * smooth[WINDOW:-WINDOW] + smooth[: -2 * WINDOW])
    )
    return (
        [0.0, *(1.4826 * median / math.sqrt(2 * WINDOW) for median in neighbours)],
        [0.0] * (5 * WINDOW - 2) + [1.4826 * median / math.sqrt(6) for median in bends[2 * WINDOW - 1 :]],
    )


def running_median(values: Floats) -> list[float]:
    """Return the median of the values up to each. Two heaps hold the lower and the upper half."""
    lower: list[float] = []  # with the sign turned, for its greatest comes first
    upper: list[float] = []
    medians: list[float] = []
    for value in values.tolist():
        heapq.heappush(upper, -heapq.heappushpop(lower, -value))
        if len(upper) > len(lower):
            heapq.heappush(lower, -heapq.heappop(upper))
        medians.append((upper[0] - lower[0]) / 2 if len(upper) == len(lower) else -lower[0])
    return medians


def _with_entropy(
    collapse: Collapse, best_at: int, split: int, entropy: Floats, recovered: float | None
) -> Collapse:
    """Add the entropy's change in the four windows after the break."""
    calm = trailing_mean(entropy, SHORT)
    before, after = calm[: split + 1], entropy[split : split + 4 * WINDOW]
    moved: Entropy = "not logged"
    if np.isfinite(before).any() and np.isfinite(after).any():
        level = float(np.nanmean(after))
        at_best = before[: best_at + 1][np.isfinite(before[: best_at + 1])]
        rose = level >= ROSE * float(np.nanmin(before))
        fell = bool(len(at_best)) and level <= FELL * float(at_best[-1])
        moved = "rose" if rose else "fell" if fell else "stayed"
    return replace(collapse, entropy=moved, recovered=recovered)


def _break(reward: Floats, first: int, last: int) -> int:
    """Find the break of two levels that fits the reward since the best point."""
    part = reward[first : last + 1]
    before = np.arange(1, len(part))
    gains = np.cumsum(part - part.mean())[:-1] ** 2 * (1 / before + 1 / (len(part) - before))
    return first + 1 + int(np.argmax(gains))


@dataclass(frozen=True, eq=False, kw_only=True)
class Curves:
    """Hold a run's metrics.

    >>> curves = Curves(**by_step([{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}]))
    >>> curves.mean("reward").tolist()
    [0.5, 0.75]

    Attributes:
        axis: "round" or "step".
        x: its rounds (or steps).
        rows: the lines of its log in the order of `x`; several may be of one round.
        label: of its method, or its own.
        finished: it came to its end, or its log cannot tell.
        notes: remarks on its log.
    """

    axis: str
    x: Floats
    rows: list[dict[str, Any]]
    label: str = ""
    finished: bool = True
    notes: tuple[str, ...] = ()
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def total(self, key: str) -> Floats:
        """Sum a metric for each of `x`; NaN where unknown. A key may have a *."""
        return self._summed(key)[0]

    def mean(self, key: str) -> Floats:
        """Average a metric for each of `x`; NaN where no line has it."""
        total, count = self._summed(key)
        return total / np.maximum(count, 1)

    def share(self, key: str, parts: tuple[str, str] | None = None) -> Floats:
        """Divide two logged sums (`parts`) for each of `x`. Average the metric where a log has none."""
        if parts and np.isfinite(self.total(parts[0])).any():
            below = self.total(parts[1])
            return self.total(parts[0]) / np.where(below > 0, below, np.nan)
        return self.mean(key)

    def _summed(self, key: str) -> tuple[Floats, Floats]:
        if key not in self._cache:
            names = (
                fnmatch.filter({name for row in self.rows for name in row}, key) if "*" in key else [key]
            )
            first = np.searchsorted(np.array([row[self.axis] for row in self.rows], float), self.x)
            total, count = np.zeros((2, len(self.x)))
            for name in sorted(names if len(self.x) else ()):
                values = np.array([row.get(name) for row in self.rows], float)
                finite = np.isfinite(values)
                total += np.add.reduceat(np.where(finite, values, 0.0), first)
                count += np.add.reduceat(finite, first, dtype=float)
            self._cache[key] = np.where(count > 0, total, np.nan), count
        return self._cache[key]

    @property
    def collapse(self) -> Collapse | None:
        if "" not in self._cache:
            self._cache[""] = find_collapse(
                self.mean("reward"), self.mean("entropy"), self.x, axis=self.axis
            )
        return self._cache[""]

    @property
    def points(self) -> int:
        """Count the rounds with a reward."""
        return int(np.isfinite(self.mean("reward")).sum())


def mean_of_known(values: Floats, last: int = 0) -> float:
    """Average the finite values, or the last of them; NaN if there are none."""
    finite = values[np.isfinite(values)][-last:]
    return float(finite.mean()) if finite.size else math.nan


def by_step(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return `axis`, `x` and `rows` of a `Followed`. By round where all have one, else by step."""
    axis = "round" if all(row.get("round") is not None for row in rows) else "step"
    rows = sorted(rows, key=lambda row: row[axis])
    return {
        "axis": axis,
        "x": np.unique(np.array([row[axis] for row in rows], float)),
        "rows": rows,
    }
