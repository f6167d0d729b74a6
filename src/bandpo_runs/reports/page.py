"""Write the report as one HTML page. It needs no network; page.html.jinja has its form, and escapes all texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..files.writing import write_atomically
from .charts import LEFT, RIGHT, WIDTH, Styles, draw, draw_bounds, key, method_styles, svg
from .report import GRID, Report, make_report
from .runs import Figure, number, percent_of, read_sections
from .templates import LIGHT, rendered
from .verdicts import join

_MOST_READ = 200  # places at which a curve is read
_SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")


def drawn(figure: Figure, styles: Styles, title: str = "", read: bool = False) -> tuple[Any, ...]:
    """Return title, drawing, meaning and, if asked, the values for page.js."""
    limits: list[tuple[float, float]] = []

    def drawing(ax: Axes) -> None:
        draw(ax, figure, styles)
        limits.append(ax.get_xlim())

    picture = svg(drawing, f"{title}{figure.title}, {figure.unit}, by {figure.axis}, for {join(figure.curves)}")
    return figure.title, picture, figure.meaning, _values(figure, styles, *limits) if read and limits else None


def _values(figure: Figure, styles: Styles, limits: tuple[float, float]) -> dict[str, Any]:
    """Return values of each line, and their places as shares of the width."""
    known = {m: dict(zip(x.tolist(), y.tolist(), strict=True)) for m, (x, y) in
             ((m, curve.mean) for m, curve in figure.curves.items())}  # fmt: skip
    at = np.unique([x for of in known.values() for x in of])
    at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), _MOST_READ)).astype(int))] if len(at) else at
    lines = []
    for label, of in known.items():
        lines.append(
            (
                label,
                LIGHT.index(styles[label]["color"]),
                [f"{number(of[x])}{percent_of(figure.unit)}" if x in of else None for x in at.tolist()],
            )
        )
    shares = (at - limits[0]) / (limits[1] - limits[0])
    places = ((LEFT + (WIDTH - LEFT - RIGHT) * shares) / WIDTH).round(4).tolist()
    return {"at": places, "x": [f"{figure.axis} {x:g}" for x in at], "lines": lines} if places else {}


def render(report: Report) -> str:
    """Render the whole page."""
    styles = method_styles(report.labels)
    bounds: tuple[Any, ...] = ()
    if report.bounds:
        picture = svg(
            lambda ax: draw_bounds(ax, GRID, report.bounds, styles),
            f"Bounds of the probability ratio by old probability, for {join(report.bounds)}; numbers in the table",
            300,
        )
        bounds = (
            "Bounds of the ratio",
            picture,
            "lower ≤ π(a) / π_old(a) ≤ upper, for p = π_old(a). Dotted: 1/p, where the new probability is 1. "
            "A line that leaves the picture goes to 0 or to infinity.",
        )
    return rendered(
        "page.html.jinja",
        _SCRIPT,
        report=report,
        names=join(report.labels),
        parts=[
            (
                part,
                key(styles, part.labels, part.title),
                [drawn(x, styles, f"{part.title}: ", True) for x in part.figures],
            )
            for part in report.parts
        ],
        bounds=bounds,
    )


def write_page(report: Report, output: Path) -> None:
    """Write the page whole, or not at all."""
    write_atomically(output, render(report).encode())


def write_report(runs: Iterable[Path | str], output: Path, *, baseline: str | None = None, trust: bool = False) -> Path:
    """Write the page about runs: PATH or LABEL=PATH of a folder or a log.

    `baseline` is the label that the others are compared with; by default the first that starts with "GRPO". With
    `trust`, the module of a user's rule is imported; without, the page names the rule and draws no bounds.

    Raises:
        UserError: a run is missing, corrupt or ambiguous. Then nothing is written.
    """
    write_page(make_report(read_sections([*runs], baseline, trust=trust)), Path(output))
    return Path(output)
