"""The figures of the report, from its rows: see __main__.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from bandpo_runs.reports.charts import DASHES, LIGHT
from research.statistics import Estimate, performance_profile

_INK, _FAINT = "#1f2328", "#8c959f"
_MARKERS = "osD^v"
_LOOK: dict[Any, Any] = {
    "text.color": _INK, "axes.edgecolor": _FAINT, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "legend.frameon": False,
    "svg.hashsalt": "bandpo", "svg.fonttype": "path",
}  # fmt: skip


def save(path: Path, draw: Callable[[Figure], None], height: float) -> None:
    with matplotlib.style.context(["default", _LOOK]):
        figure = Figure(figsize=(8.2, height), layout="constrained", facecolor="white")
        draw(figure)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def forest(rows: Mapping[str, Mapping[str, Estimate]], label: str) -> Callable[[Figure], None]:
    """One line of the figure for each rule, one marker with its interval for each name within."""

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        names = list(dict.fromkeys(name for some in rows.values() for name in some))
        for j, name in enumerate(names):
            at = [i + 0.16 * (j - (len(names) - 1) / 2) for i, some in enumerate(rows.values()) if name in some]
            found = [some[name] for some in rows.values() if name in some]
            value = np.array([one.value for one in found])
            ends = np.abs(np.array([[one.low, one.high] for one in found]).T - value)
            ax.errorbar(value, at, xerr=ends, fmt=_MARKERS[j], color=LIGHT[j], markersize=4, elinewidth=1, label=name)
        ax.set_yticks(range(len(rows)), list(rows))
        ax.invert_yaxis()
        ax.set_xlabel(label)
        ax.grid(axis="x", color="#e5e7ea", linewidth=0.6)
        ax.set_axisbelow(True)
        if len(names) > 1:
            figure.legend(loc="outside upper center", ncols=len(names))

    return draw


def _line(i: int) -> dict[str, Any]:
    return {"color": LIGHT[i % len(LIGHT)], "linestyle": DASHES[i % len(DASHES)], "linewidth": 1.6}


def profiles(runs: Mapping[str, Any], label: str) -> Callable[[Figure], None]:
    """The share of runs above each reward."""

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        tau = np.linspace(0, 1, 201)
        for i, (name, final) in enumerate(runs.items()):
            ax.plot(tau, performance_profile(final, tau), label=name, **_line(i))
        ax.set(xlabel=label, ylabel="share of runs above it", xlim=(0, 1), ylim=(0, 1.02))
        ax.legend(loc="lower left")

    return draw


Course = tuple[Sequence[float], Sequence[float] | None]


def courses(curves: Mapping[str, Course], label: str) -> Callable[[Figure], None]:
    """Mean reward by round, and the fitted sigmoid of each where it has one, dotted."""

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        for i, (name, (reward, fitted)) in enumerate(curves.items()):
            ax.plot(reward, label=name, **_line(i))
            if fitted is not None:
                ax.plot(range(1, len(fitted) + 1), fitted, color=LIGHT[i % len(LIGHT)], linestyle=":", linewidth=0.9)
        ax.set(xlabel="rounds", ylabel=label, ylim=(0, 1))
        ax.legend(loc="lower right")

    return draw
