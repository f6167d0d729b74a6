"""The rows of a training log as curves, under one set of names whoever wrote them."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bandpo.errors import UserError

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
    """A run's metrics.

    Attributes:
        axis: "round" or "step".
        x: its rounds (or steps).
        rows: the lines of its log in the order of `x`; some may be of the same round.
        sums: what was summed of them so far, by metric.
    """

    axis: str
    x: np.ndarray
    rows: list[dict[str, Any]]
    sums: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    def total(self, key: str) -> np.ndarray:
        """Sum a metric for each of `x`; NaN where no line has it. A key with * stands for all that it fits."""
        return self._sums(key)[0]

    def mean(self, key: str) -> np.ndarray:
        """Average a metric for each of `x`; NaN where no line has it."""
        total, count = self._sums(key)
        return total / np.maximum(count, 1)

    def _sums(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        if key not in self.sums:
            names = fnmatch.filter({name for row in self.rows for name in row}, key) if "*" in key else [key]
            total, count = np.zeros(len(self.x)), np.zeros(len(self.x), int)
            for name in sorted(names if len(self.x) else ()):
                values = np.array([row.get(name) for row in self.rows], float)
                known = np.isfinite(values)
                total += np.add.reduceat(np.where(known, values, 0.0), self._first)
                count += np.add.reduceat(known, self._first, dtype=int)
            self.sums[key] = np.where(count > 0, total, np.nan), count
        return self.sums[key]

    @functools.cached_property
    def _first(self) -> np.ndarray:
        """Mark the first row of each of `x`."""
        return np.searchsorted(np.array([row[self.axis] for row in self.rows], float), self.x)


def by_step(rows: Sequence[dict[str, Any]], name: str) -> tuple[str, np.ndarray, list[dict[str, Any]]]:
    """Return `axis`, `x` and `rows` of `Curves`: by round where all rows have one, else by step.

    Raises:
        UserError: a row has neither.
    """
    axis = "round" if all(row.get("round") is not None for row in rows) else "step"
    if any(row.get(axis) is None for row in rows):
        raise UserError(f"{name}: expected 'round' or 'step' in every line")
    rows = sorted(rows, key=lambda row: row[axis])
    return axis, np.unique(np.array([row[axis] for row in rows], float)), rows


def finite(value: float | None) -> float | None:
    """Return a number, or None for other values and for numbers too large to be summed."""
    return None if value is None or not abs(value) < 1e300 else value


def renamed(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of a row under our names.

    Where both have one it is ours: sums over counts, where TRL has a mean of
    means."""
    numbers = {name: finite(value) for name, value in row.items() if type(value) in (int, float, bool, type(None))}
    out = {ours: numbers[theirs] for theirs, ours in reversed(_NAMES) if theirs in numbers} | numbers
    for name in numbers:
        if name.startswith(_OURS):
            out[name.partition("bandpo/")[2]] = out.pop(name)
    high, low = (out.get(f"clip/{side}_fraction") for side in ("high", "low"))
    if high is not None and low is not None:  # BandPOTrainer logs the two sides
        out.setdefault("clip/fraction", high + low)
    return out
