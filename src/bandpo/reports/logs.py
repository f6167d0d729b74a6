"""The rows of a training log as curves, under one set of names whoever wrote them."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ..errors import UserError

# What TRL and verl call what has a name of ours, the first one that is there. Where they count something else (their
# clip rates are of tokens that lose their gradient, and means of means) it is our name for that.
_NAMES = (
    ("critic/score/mean", "reward"),
    ("critic/rewards/mean", "reward"),
    ("actor/entropy", "entropy"),
    ("actor/bandpo/controlled", "controlled/value"),
    ("actor/pg_clipfrac", "cut/fraction"),
    ("clip_ratio/region_mean", "cut/fraction"),
    ("clip_ratio/high_mean", "cut/high_fraction"),
    ("clip_ratio/low_mean", "cut/low_fraction"),
    ("actor/ppo_kl", "kl_old/k1"),
)
_OURS = ("actor/bandpo/", "bandpo/")


@dataclass(frozen=True, eq=False, kw_only=True)
class Curves:
    """A run's metrics. `x` are its rounds (or steps, as `axis` says), `rows` the lines of its log for each of them."""

    axis: str
    x: np.ndarray
    rows: list[list[dict[str, Any]]]

    def total(self, key: str) -> np.ndarray:
        """The sum of a metric for each of `x`; NaN where no line has it. A key with * stands for all that it fits."""
        return self._sums(key)[0]

    def mean(self, key: str) -> np.ndarray:
        """The mean of a metric for each of `x`; NaN where no line has it."""
        total, count = self._sums(key)
        return total / np.maximum(count, 1)

    def _sums(self, key: str) -> tuple[np.ndarray, list[int]]:
        known = [_values(rows, key) for rows in self.rows]
        total = np.array([math.fsum(values) if values else math.nan for values in known], float)
        return total, [len(values) for values in known]


def _values(rows: Sequence[dict[str, Any]], key: str) -> list[float]:
    found = (row[k] for row in rows for k in (fnmatch.filter(row, key) if "*" in key else [key]) if k in row)
    return [value for value in found if value is not None]


def by_step(rows: Sequence[dict[str, Any]], name: str) -> tuple[str, np.ndarray, list[list[dict[str, Any]]]]:
    """`axis`, `x` and `rows` of `Curves`: by round where all rows have one, else by step.

    Raises:
        UserError: a row has neither.
    """
    axis = "round" if all(row.get("round") is not None for row in rows) else "step"
    if any(row.get(axis) is None for row in rows):
        raise UserError(f"{name}: expected 'round' or 'step' in every line")
    by_x = groupby(sorted(rows, key=lambda row: row[axis]), key=lambda row: row[axis])
    grouped = {x: list(lines) for x, lines in by_x}
    return axis, np.array([*grouped], float), [*grouped.values()]


def finite(value: float | None) -> float | None:
    """A number, or None for what is none, or too large to be summed."""
    return None if value is None or not abs(value) < 1e300 else value


def renamed(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers of a row under our names. Where both have one it is ours: sums over counts, where TRL has a mean of
    means."""
    numbers = {name: finite(value) for name, value in row.items() if type(value) in (int, float, bool, type(None))}
    out = {ours: numbers[theirs] for theirs, ours in reversed(_NAMES) if theirs in numbers}
    for name in sorted(numbers, key=lambda name: name.startswith(_OURS)):
        out[next((name[len(start) :] for start in _OURS if name.startswith(start)), name)] = numbers[name]
    high, low = (out.get(f"clip/{side}_fraction") for side in ("high", "low"))
    if high is not None and low is not None:  # BandPOTrainer logs the two sides
        out.setdefault("clip/fraction", high + low)
    return out
