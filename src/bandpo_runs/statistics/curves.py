"""Read the rows of a log as curves: sums and means of each round (or step)."""

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .collapse import Collapse, find_collapse
from .estimators import Floats


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
