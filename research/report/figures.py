"""The two figures of the report, from its rows: see __main__.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from bandpo_runs.reports.charts import LIGHT
from research.statistics import Estimate

_INK, _FAINT, _AREA = "#1f2328", "#8c959f", "#e5e7ea"
_MARKERS = "osD^v"
_LOOK: dict[Any, Any] = {
    "text.color": _INK, "axes.edgecolor": _FAINT, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "legend.frameon": False,
    "svg.hashsalt": "bandpo", "svg.fonttype": "none",
}  # fmt: skip


def save(path: Path, draw: Callable[[Figure], None], height: float) -> None:
    with matplotlib.style.context(["default", _LOOK]):
        figure = Figure(figsize=(8.2, height), layout="constrained", facecolor="white")
        draw(figure)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _ends(estimates: Sequence[Estimate]) -> Any:
    return np.abs(np.array([[one.low, one.high] for one in estimates]).T - [one.value for one in estimates])


def reuse(
    differences: Mapping[str, Mapping[int, Estimate]], shares: Mapping[str, Mapping[int, float]],
    public: Mapping[str, tuple[tuple[float, float], float]], alike: float,
) -> Callable[[Figure], None]:  # fmt: skip
    """Draw by uses of each answer: rewards minus no clip's, and tokens outside in percent.

    `public` has the range of these in public logs, and their share in the world with as many mini-batches.
    """

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        left.axhspan(-alike, alike, color=_AREA, lw=0)
        left.axhline(0, color=_FAINT, lw=0.8)
        for i, (rule, by_uses) in enumerate(differences.items()):
            x = [np.log2(uses) + 0.07 * (i - (len(differences) - 1) / 2) for uses in by_uses]
            estimates = list(by_uses.values())
            look: dict[str, Any] = {"fmt": f"{_MARKERS[i]}-", "color": LIGHT[i], "markersize": 4, "lw": 1}
            left.errorbar(x, [one.value for one in estimates], yerr=_ends(estimates), elinewidth=1, label=rule, **look)
            if rule in shares:
                percent = shares[rule]
                right.plot(
                    np.log2(list(percent)), list(percent.values()), f"{_MARKERS[i]}-", color=LIGHT[i], ms=4, lw=1
                )
                ends, same = public[rule]
                right.vlines(-0.25, *ends, color=LIGHT[i], lw=4, alpha=0.5)
                right.plot([-0.1], [same], _MARKERS[i], color=LIGHT[i], ms=4, fillstyle="none")
        right.set(yscale="log", ylabel="tokens outside, percent")
        left.set(ylabel="reward at the end, minus no clip's")
        for ax in (left, right):
            ax.set_xticks(range(4), ["1", "2", "4", "8"])
            ax.set(xlabel="uses of each answer", xlim=(-0.3, 3.3))
        figure.legend(loc="outside upper center", ncols=len(differences))

    return draw


def dots(groups: Mapping[str, Mapping[str, Estimate]], label: str) -> Callable[[Figure], None]:
    """Draw a line at 0, and on each side of it values with their intervals, by name and in groups."""

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.axvline(0, color=_FAINT, lw=0.8)
        at, names = 0.0, {}
        for i, (group, some) in enumerate(groups.items()):
            estimates = list(some.values())
            lines = at + np.arange(len(estimates))
            look: dict[str, Any] = {"fmt": _MARKERS[i], "color": LIGHT[i], "markersize": 5, "elinewidth": 1}
            ax.errorbar([one.value for one in estimates], lines, xerr=_ends(estimates), label=group, **look)
            names |= dict(zip(lines, some, strict=True))
            at += len(estimates) + 0.6
        ax.set_yticks(list(names), list(names.values()))
        ax.invert_yaxis()
        ax.set_xlabel(label)
        ax.grid(axis="x", color=_AREA, linewidth=0.6)
        ax.set_axisbelow(True)
        figure.legend(loc="outside upper center", ncols=len(groups))

    return draw
