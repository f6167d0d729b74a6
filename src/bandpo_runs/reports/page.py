"""Write the report as one HTML page. It needs no network; page.html.jinja has its form, and escapes all texts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..files.writing import write_atomically
from .charts import LEFT, RIGHT, WIDTH, Styles, draw, key, method_styles, svg
from .panels import Figure
from .report import Report, make_report
from .sections import read_sections
from .templates import LIGHT, rendered
from .texts import join, three_digits

_MOST_READ = 200  # places at which a curve is read
_SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")


def _drawn(figure: Figure, styles: Styles, title: str) -> tuple[Any, ...]:
    """Return title, drawing, meaning, and the values for page.js."""
    limits: list[tuple[float, float]] = []

    def drawing(ax: Axes) -> None:
        draw(ax, figure, styles)
        limits.append(ax.get_xlim())

    panel = figure.panel
    picture = svg(
        drawing, f"{title}: {panel.title}, {panel.unit}, by {figure.axis}, for {join(figure.curves)}"
    )
    return (
        panel.title,
        picture,
        panel.meaning,
        _values(figure, styles, *limits) if limits else None,
    )


def _values(figure: Figure, styles: Styles, limits: tuple[float, float]) -> dict[str, Any]:
    """Return values of each line, and their places as shares of the width."""
    means = {
        label: dict(zip(curve.mean[0].tolist(), curve.mean[1].tolist(), strict=True))
        for label, curve in figure.curves.items()
    }
    at = np.unique([x for mean in means.values() for x in mean])
    if not len(at):
        return {}
    at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), _MOST_READ)).astype(int))]
    shares = (at - limits[0]) / (limits[1] - limits[0])
    return {
        "at": ((LEFT + (WIDTH - LEFT - RIGHT) * shares) / WIDTH).round(4).tolist(),
        "x": [f"{figure.axis} {x:g}" for x in at],
        "lines": [
            (
                label,
                LIGHT.index(styles[label]["color"]),
                [
                    f"{three_digits(mean[x])}{figure.panel.percent}" if x in mean else None
                    for x in at.tolist()
                ],
            )
            for label, mean in means.items()
        ],
    }


def write_page(report: Report, output: Path) -> None:
    """Write the page whole, or not at all."""
    styles = method_styles(report.labels)
    page = rendered(
        "page.html.jinja",
        _SCRIPT,
        report=report,
        names=join(report.labels),
        parts=[
            (
                part,
                key(styles, part.labels, part.title),
                [_drawn(figure, styles, part.title) for figure in part.figures],
            )
            for part in report.parts
        ],
    )
    write_atomically(output, page.encode())


def write_report(runs: Iterable[Path | str], output: Path, *, baseline: str | None = None) -> Path:
    """Write the page about runs: PATH or LABEL=PATH of a folder or a log.

    `baseline` is the label that the others are compared with; by default the first that starts with "GRPO".

    Raises:
        UserError: a run is missing, corrupt or ambiguous. Then nothing is written.
    """
    write_page(make_report(read_sections([*runs], baseline)), Path(output))
    return Path(output)
