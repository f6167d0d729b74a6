"""Measure runs: the rows of a report's tables."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..statistics.curves import Curves, mean_of_known
from .panels import CLIP_RATE, GOOD_TAIL_CUT, TAIL_SHARE, Panel


@dataclass(frozen=True)
class Number:
    """A row of the tables; {x} in its texts stands for "round" or "step"."""

    name: str
    meaning: str
    digits: int
    of: Callable[[Curves], float]  # NaN: undefined; infinity: not reached
    whole: bool = False  # a count: the value of one seed has no decimals


def first_round(run: Curves, key: str) -> float:
    """Return the first round with the metric at 0.5 or more; infinity if none has it."""
    y = run.mean(key)
    return float(next(iter(run.x[y >= 0.5]), math.inf)) if np.isfinite(y).any() else math.nan


def share(run: Curves, parts: tuple[str, str], key: str = "", where: Any = slice(None)) -> float:
    """Return the percentage over the run, as a ratio of sums.

    Where the counts were not logged it is the mean of the metric `key`.
    """
    top, bottom = (run.total(part)[where] for part in parts)
    counted = np.isfinite(top) & np.isfinite(bottom)
    if key and not counted.any():
        return mean_of_known(100 * run.mean(key))
    total = bottom[counted].sum()
    return float(100 * top[counted].sum() / total) if total > 0 else math.nan


def entropy_at_half(run: Curves) -> float:
    """Return the entropy in the first round with a reward of 0.5 or more."""
    return float(next(iter(run.mean("entropy")[run.mean("reward") >= 0.5]), math.nan))


NUMBERS = (
    Number(
        "First {x} in which half work",
        "P(work) ≥ 0.5",
        1,
        lambda run: first_round(run, "lab/work"),
        whole=True,
    ),
    Number(
        "First {x} with reward 0.5",
        "mean reward ≥ 0.5",
        1,
        lambda run: first_round(run, "reward"),
        whole=True,
    ),
    Number(
        "Reward over the run",
        "mean over all {x}s",
        3,
        lambda run: mean_of_known(run.mean("reward")),
    ),
    Number(
        "Reward at the end",
        "mean over the last 3 {x}s",
        3,
        lambda run: mean_of_known(run.mean("reward"), last=3),
    ),
    Number(
        "Entropy at the end",
        "nats per token, last {x}",
        2,
        lambda run: mean_of_known(run.mean("entropy"), last=1),
    ),
    Number(
        "Entropy at reward 0.5",
        "nats per token, in the first {x} with reward ≥ 0.5",
        2,
        entropy_at_half,
    ),
    Number(
        "Clip rate, %",
        "clipped tokens / all tokens, sums over the run",
        2,
        lambda run: share(run, CLIP_RATE, "clip/fraction"),
    ),
    Number(
        "Early tail share, %",
        "clipped above the upper bound with old p ≤ 0.2 / all clipped tokens, sums over the {x}s with P(work) < 0.05",
        1,
        lambda run: share(run, TAIL_SHARE, where=run.mean("lab/work") < 0.05),
    ),
    Number(
        "Good tail cut, %",
        "tokens with old p ≤ 0.2 and positive advantage that lose their gradient / all such tokens",
        1,
        lambda run: share(run, GOOD_TAIL_CUT, "cut/good_tail"),
    ),
)


def last_of(panel: Panel) -> Number:
    """Return the last value of a share, in percent."""
    return Number(
        f"{panel.title}, %",
        f"{panel.meaning.removesuffix('.')}; last validation",
        1,
        lambda run: 100 * panel.last(run),
    )
