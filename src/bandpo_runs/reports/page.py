"""Write the report as one HTML page. It needs no network; page.html.jinja has its form, and escapes all texts."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..files.writing import write_atomically
from .charts import Styles, draw, draw_bounds, key, method_styles, svg
from .panels import Figure
from .report import GRID, Report, make_report
from .sections import read_sections
from .templates import rendered
from .texts import join


def drawn(figure: Figure, styles: Styles, title: str = "") -> tuple[str, Markup, str]:
    """Return title, drawing and meaning."""
    panel = figure.panel
    name = f"{title}{panel.title}, {panel.unit}, by {figure.axis}, for {join(figure.curves)}"
    return panel.title, svg(lambda ax: draw(ax, figure, styles), name), panel.meaning


def write_page(report: Report, output: Path) -> None:
    """Write the page whole, or not at all."""
    styles = method_styles(report.labels)
    bounds: tuple[Any, ...] = ()
    if report.bounds:
        bounds = (
            "Bounds of the ratio",
            svg(
                lambda ax: draw_bounds(ax, GRID, report.bounds, styles),
                f"Bounds of the probability ratio by old probability, for {join(report.bounds)}; numbers in the table",
                300,
            ),
            "lower ≤ π(a) / π_old(a) ≤ upper, for p = π_old(a). Dotted: 1/p, where the new probability is 1. "
            "A line that leaves the picture goes to 0 or to infinity.",
        )
    page = rendered(
        "page.html.jinja",
        report=report,
        names=join(report.labels),
        parts=[
            (
                part,
                key(styles, part.labels, part.title),
                [drawn(figure, styles, f"{part.title}: ") for figure in part.figures],
            )
            for part in report.parts
        ],
        bounds=bounds,
    )
    write_atomically(output, page.encode())


def write_report(
    runs: Iterable[Path | str], output: Path, *, baseline: str | None = None, trust: bool = False
) -> Path:
    """Write the page about runs: PATH or LABEL=PATH of a folder or a log.

    `baseline` is the label that the others are compared with; by default the first that starts with "GRPO". With
    `trust`, the module of a user's rule is imported; without, the page names the rule and draws no bounds.

    Raises:
        UserError: a run is missing, corrupt or ambiguous. Then nothing is written.
    """
    write_page(make_report(read_sections([*runs], baseline, trust=trust)), Path(output))
    return Path(output)
