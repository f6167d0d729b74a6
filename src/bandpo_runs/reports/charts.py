"""Runs as figures: the panels of a section and the bounds of its rules, as inline SVG or as one PNG."""

from __future__ import annotations

import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from bandpo.trust_regions.base import Region

from .reading import Run
from .runs import Panel, Section, mean_curve, ratio_bounds

# The colours of Okabe and Ito without yellow, which vanishes on white; DARK: the same hues for dark paper.
LIGHT = ("#0072b2", "#d55e00", "#008f68", "#b5558c", "#b97f00", "#2f93cc", "#6b6b6b")
DARK = ("#4aa8e8", "#ff8a4c", "#2cc79b", "#e79ac6", "#f2b632", "#8fd0f5", "#b5b5b5")
DASHES = ("-", (0, (5, 1.6)), (0, (1.5, 1.2)), (0, (6, 1.6, 1.5, 1.6)))
DOTTED: dict[str, Any] = {"linestyle": (0, (1, 3)), "linewidth": 0.8}
INK, RULE = "#000001", "#000002"  # stand in for two colours of the page, see `svg`
Styles = dict[str, dict[str, Any]]


# Methods whose look never changes, by how their labels begin; that of another one is drawn from its label.
_FAMILIES = ("GRPO", "Band-KL", "Clip-Higher", "Clip ", "No clip")
_LOOKS = 28  # all that differ in dash or in colour and marker


def method_styles(sections: Sequence[Section]) -> Styles:
    """Colour, dash and marker of each method, the same all over the page: colour is never the only sign.

    They belong to the label: on a page with other methods it keeps them, unless one of these has the same.
    """
    labels = dict.fromkeys(label for section in sections for label in section.methods)
    family = {label: next((i for i, name in enumerate(_FAMILIES) if label.startswith(name)), None) for label in labels}
    first = {i: label for label, i in reversed(family.items()) if i is not None}
    places: dict[str, int] = {}
    for label in [*first.values(), *sorted(labels.keys() - first.values())]:
        own, found, used = zlib.crc32(label.encode()) % 7, family[label], Counter(i % 7 for i in places.values())
        wanted = own if found is None else found
        free = sorted({*range(_LOOKS)} - {*places.values()}) or range(_LOOKS)
        places[label] = min(free, key=lambda i: (used[i % 7], (i - wanted) % 7))
    return {
        label: {"color": LIGHT[i % 7], "linestyle": DASHES[i % 4], "marker": "osD^vPX"[i % 7]}
        for label, i in ((label, places[label]) for label in labels)
    }


def thick_line(panel: Panel, runs: Iterable[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the finished runs of a method, or of all if none is."""
    runs = list(runs)
    finished = [run for run in runs if run.finished]
    return mean_curve((run.x, panel.curve(run)) for run in finished or runs)


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Thin a curve of many points without a change of its look.

    Each column of the picture keeps its first, lowest, highest and last point.
    """
    if len(x) <= 4 * _COLUMNS:
        return x, y
    column = np.minimum((x - x[0]) * (_COLUMNS / (x[-1] - x[0])), _COLUMNS - 1).astype(int)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    by_height = np.lexsort((y, column))  # within each column from its lowest point to its highest
    ends = np.append(first[1:], len(x)) - 1
    shown = np.unique(np.concatenate([first, by_height[first], by_height[ends], ends]))
    return x[shown], y[shown]


_COLUMNS = 1600  # more than any of the pictures has pixels beside one another


def draw_panel(ax: Axes, panel: Panel, section: Section, styles: Styles, ends: bool = False) -> None:
    """Draw seeds as thin lines, their mean as a thick one.

    `ends`: with its name at the mean's end, for which there must be room.
    """
    last: dict[str, tuple[float, float]] = {}
    for index, (label, runs) in enumerate(section.methods.items()):
        for run in runs.values() if len(runs) > 1 else []:
            y = panel.curve(run)
            known = np.isfinite(y)  # gaps are bridged: a point between two gaps would not be seen
            # No line without a point: unclipped, it would count as one in the corner of the figure for the layout.
            if known.any():
                seed = thinned(run.x[known], y[known])
                ax.plot(*seed, color=styles[label]["color"], linewidth=0.8, alpha=0.45, clip_on=False)
        x, y = thinned(*thick_line(panel, runs.values()))
        every = max(1, len(x) // 5)
        start = min(index * every // len(styles), max(0, len(x) - 1))  # markers of two methods do not coincide
        if len(x):
            ax.plot(x, y, **styles[label], markevery=(start, every), clip_on=False)
            last[label] = x[-1], y[-1]
    if panel.key == "lab/work":
        ax.axhline(0.5, color=matplotlib.rcParams["axes.edgecolor"], **DOTTED)
    ax.set_title(panel.unit, loc="left")
    ax.set_xlabel(section.axis, loc="right")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.margins(x=0.015)
    top = 1.03 * panel.top if panel.top else ax.get_ylim()[1]
    ax.set_ylim(min(0, ax.dataLim.ymin), top)
    if ends:
        _name_ends(ax, last, styles)


def end_names(labels: Iterable[str]) -> dict[str, str]:
    """Name the ends of the methods' curves: its label, without its numbers if that is enough, and not too long:
    its beginning, or its end where another one begins so. Nothing for one that is alone, or where there are too many.
    """
    labels = list(labels)
    if not 2 <= len(labels) <= 7:
        return {}
    names = [re.sub(r"[ ,]+[\d./e-]+$", "", label) for label in labels]
    if len(set(names)) < len(names):
        names = labels
    return {label: _cut(name, {*labels} - {label}) for label, name in zip(labels, names, strict=True)}


def _cut(name: str, others: Iterable[str], most: int = 13) -> str:
    if len(name) <= most:
        return name
    head = name[: most - 1]
    return f"…{name[1 - most :]}" if any(other.startswith(head.rstrip()) for other in others) else f"{head}…"


def _name_ends(ax: Axes, last: dict[str, tuple[float, float]], styles: Styles) -> None:
    """Write a name at each curve, none on top of another, with a line of the curve's colour that leads to it."""
    low, high = ax.get_ylim()
    height = ax.figure.get_figheight() * 72 * ax.get_position().height  # type: ignore[union-attr]
    gap = 1.15 * matplotlib.rcParams["font.size"] / height
    order = sorted(last, key=lambda label: last[label][1])
    places: list[float] = []
    for label in order:
        place = (last[label][1] - low) / (high - low)
        places.append(max([place, *(places[-1:] and [places[-1] + gap])]))
    for i in reversed(range(len(places))):  # down again, where that left the picture
        places[i] = min(places[i], 1 - gap * (len(places) - 1 - i))
    names = end_names(styles)
    for label, place in zip(order, places, strict=True):
        if label in names:
            lead = {"arrowstyle": "-", "color": styles[label]["color"], "linewidth": 1}
            lead |= {"relpos": (0, 0.5), "shrinkA": 2, "shrinkB": 2}
            ax.annotate(names[label], last[label], (1.045, place), textcoords="axes fraction", va="center",
                        arrowprops=lead, annotation_clip=False)  # fmt: skip


def draw_bounds(ax: Axes, rules: dict[str, Region], styles: Styles) -> None:
    """Draw both bounds of the ratio by p. A bound of 0 or infinity leaves the picture."""
    p, highest = np.logspace(-4, 0, 161), 10.0
    for index, (label, region) in enumerate(rules.items()):
        for bound in ratio_bounds(region, p) or ():
            highest = max([highest, *bound[np.isfinite(bound)]])
            ax.plot(p, bound, **styles[label], markevery=(10 + 40 * index // len(rules), 40))
    ax.plot(p, 1 / p, color=matplotlib.rcParams["axes.edgecolor"], **DOTTED)
    ax.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(0.05, min(2 * highest, 1e4)))
    ax.set_title("new / old probability", loc="left")
    ax.set_xlabel("old probability p", loc="right")
    for axis in ax.xaxis, ax.yaxis:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())


def draw_swatch(ax: Axes, look: dict[str, Any]) -> None:
    ax.plot([0, 1, 2], [0, 0, 0], **look, markevery=[1])
    ax.set_axis_off()


def _look(size: float, ink: str, rule: str, salt: str = "") -> dict[Any, Any]:
    inked = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
    sized = ("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")
    return dict.fromkeys(inked, ink) | dict.fromkeys(sized, size) | {
        "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "ytick.major.size": 0,
        "axes.grid": True, "axes.grid.axis": "y", "grid.color": rule, "axes.axisbelow": True, "axes.titlepad": 8,
        "lines.linewidth": size / 6, "lines.markersize": size * 0.4, "svg.fonttype": "none", "svg.hashsalt": salt,
        "text.parse_math": False,  # a label is a name, whatever dollars are in it
    }  # fmt: skip


def svg(draw: Callable[[Axes], Any], name: str, height: int = 240, bare: bool = False, right: int = 8) -> Markup:
    """Return a drawing as inline SVG with colours and font from the page.

    It is 360 px wide like a phone, `bare` for a key; `right` of its axes there is room.
    """
    width = 48 if bare else 360
    # "default" first: a user's matplotlibrc must not change a byte. The name salts ids that must differ on the page.
    with matplotlib.style.context("default"), matplotlib.rc_context(_look(12, INK, RULE, name)):
        figure = Figure(figsize=(width / 72, height / 72))
        draw(figure.add_axes((0, 0, 1, 1) if bare else (46 / 360, 38 / height, (314 - right) / 360, 1 - 66 / height)))
        file, no_dates = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_dates)
    body = file.getvalue().split("</defs>", 1)[1]  # before that: a style sheet that would hold for the whole page
    # Drop ids that only count (nothing refers to them, the next figure has them too), matplotlib's font, and no-ops.
    body = re.sub(r' id="[a-zA-Z.]+\w*_\d+"| font-family: [^;]*;| transform="rotate\(-0 [^"]*"|\n', " ", body)
    for colour, variable in zip((*LIGHT, RULE, INK), (*(f"--c{i}" for i in range(7)), "--rule", "--ink"), strict=True):
        body = body.replace(colour, f"var({variable})")
    role = 'aria-hidden="true"' if bare else f'role="img" aria-label="{escape(name)}"'
    return Markup(f'<svg class="plot" viewBox="0 0 {width} {height}" {role}>{body}')


def draw_png(sections: Sequence[Section]) -> bytes:
    """Draw the panels and the bounds of every section as one picture on white, 1600 px wide."""
    styles = method_styles(sections)
    rows = [math.ceil((len(section.panels) + 1) / 3) for section in sections]
    with matplotlib.style.context("default"), matplotlib.rc_context(_look(8, "#24292f", "#e6e6e2")):
        figure = Figure(figsize=(8, sum(0.5 + 2 * n for n in rows)), dpi=200, layout="constrained")
        parts = figure.subfigures(len(sections), 1, squeeze=False, height_ratios=[0.5 + 2 * n for n in rows])[:, 0]
        for part, section, n in zip(parts, sections, rows, strict=True):
            axes = list(part.subplots(n, 3, squeeze=False).flat)
            for ax, panel in zip(axes, section.panels, strict=False):
                draw_panel(ax, panel, section, styles)
                ax.set_title(f"{panel.title}\n{panel.unit}", loc="left")
            draw_bounds(
                axes[len(section.panels)],
                {run.label: run.region for run in section.runs if run.region is not None},
                styles,
            )
            axes[len(section.panels)].set_title("Bounds of the ratio\nnew / old probability", loc="left")
            for ax in axes[len(section.panels) + 1 :]:
                ax.set_axis_off()
            key = [axes[0].plot([], [], **styles[label])[0] for label in section.methods]
            part.legend(key, section.methods, title=section.title, loc="outside upper left", alignment="left",
                        ncols=4, frameon=False, handlelength=4)  # fmt: skip
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()
