"""Draw the figures of a page as inline SVG: curves, and keys."""

import io
import re
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib
import matplotlib.style
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from .panels import Figure
from .templates import LIGHT

DASHES = ("-", (0, (5, 1.6)), (0, (1.5, 1.2)), (0, (6, 1.6, 1.5, 1.6)))
INK, RULE = "#000001", "#000002"  # stand in for two colours of the page, see `svg`
LEFT, RIGHT, WIDTH = 46, 8, 360  # px: beside the axes of a drawing, and of a drawing
Styles = dict[str, dict[str, Any]]


def method_styles(labels: Iterable[str]) -> Styles:
    """Return colour, dash and marker of each method; colour is never the only sign."""
    return {
        label: {"color": LIGHT[i % 7], "linestyle": DASHES[i % 4], "marker": "osD^vPX"[i % 7]}
        for i, label in enumerate(labels)
    }


def draw(ax: Axes, figure: Figure, styles: Styles) -> None:
    """Draw seeds as thin lines and their mean as a thick one."""
    for index, (label, curve) in enumerate(figure.curves.items()):
        for seed in curve.seeds:
            ax.plot(*seed, color=styles[label]["color"], linewidth=0.8, alpha=0.45, clip_on=False)
        x, y = curve.mean
        every = max(1, len(x) // 5)
        # Markers of two methods do not coincide.
        start = min(index * every // len(styles), max(0, len(x) - 1))
        if len(x):
            ax.plot(x, y, **styles[label], markevery=(start, every), clip_on=False)
    ax.set_title(figure.panel.unit, loc="left")
    ax.set_xlabel(figure.axis, loc="right")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.margins(x=0.015)
    top = figure.panel.top
    ax.set_ylim(min(0, ax.dataLim.ymin), 1.03 * top if top else ax.get_ylim()[1])


def key(styles: Styles, labels: Iterable[str], name: str = "") -> list[tuple[str, Markup]]:
    """Return each label with its line and marker; `name` tells keys of one page apart."""

    def swatch(ax: Axes, look: dict[str, Any]) -> None:
        ax.plot([0, 1, 2], [0, 0, 0], **look, markevery=[1])
        ax.set_axis_off()

    return [
        (
            label,
            svg(lambda ax, look=styles[label]: swatch(ax, look), f"{name} {label}", 14, bare=True),
        )
        for label in labels
    ]


def _look(name: str) -> dict[Any, Any]:
    inked = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
    return (
        dict.fromkeys(inked, INK)
        | dict.fromkeys(
            (
                (
                    "font.size",
                    "axes.titlesize",
                    "axes.labelsize",
                    "legend.fontsize",
                    "xtick.labelsize",
                    "ytick.labelsize",
                )
            ),
            12,
        )
        | {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.spines.left": False,
            "ytick.major.size": 0,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "grid.color": RULE,
            "axes.axisbelow": True,
            "axes.titlepad": 8,
            "lines.linewidth": 2,
            "lines.markersize": 4.8,
            "svg.fonttype": "none",
            "svg.hashsalt": name,
            "text.parse_math": False,  # a label is a name, whatever dollars are in it
        }
    )


def svg(draw: Callable[[Axes], Any], name: str, height: int = 240, bare: bool = False) -> Markup:
    """Return a drawing as inline SVG in colours of the page; `bare` for a key."""
    width = 48 if bare else WIDTH
    # "default" first: a user's matplotlibrc must not change a byte. The name salts ids that must differ on the page.
    with matplotlib.style.context("default"), matplotlib.rc_context(_look(name)):
        figure = Drawing(figsize=(width / 72, height / 72))
        draw(
            figure.add_axes(
                (0, 0, 1, 1)
                if bare
                else ((LEFT / WIDTH, 38 / height, (WIDTH - LEFT - RIGHT) / WIDTH, 1 - 66 / height))
            )
        )
        file, no_dates = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_dates)
    # Before that: a style sheet that would hold for the whole page.
    body = file.getvalue().split("</defs>", 1)[1]
    # Drop ids that only count (nothing refers to them, the next figure has them too), matplotlib's font, and no-ops.
    body = re.sub(
        r' id="[a-zA-Z.]+\w*_\d+"| font-family: [^;]*;| transform="rotate\(-0 [^"]*"|\n', " ", body
    )
    for colour, variable in zip(
        (*LIGHT, RULE, INK), (*(f"--c{i}" for i in range(7)), "--rule", "--ink"), strict=True
    ):
        body = body.replace(colour, f"var({variable})")
    role = 'aria-hidden="true"' if bare else f'role="img" aria-label="{escape(name)}"'
    return Markup(f'<svg class="plot" viewBox="0 0 {width} {height}" {role}>{body}')
