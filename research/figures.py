"""The paper's Fig. 1a, 1b and 2 (regions-3d, variation, ratio), for any rules.

    python -m research.figures -o runs/figures --only variation --regions clip:0.2:0.2 band:tv:0.1

Each figure is a function from rules to a matplotlib figure and its caption, 3.3 inches wide, one column of a paper.
Rules differ in colour, in dashes and in markers, so that they can be told apart in grey and by the colour-blind.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from bandpo.errors import UserError, nearest
from bandpo.trust_regions import trust_region
from bandpo.trust_regions.base import Region
from bandpo.trust_regions.rules import DCPO, Band, Clip
from bandpo_runs.files.writing import write_atomically
from bandpo_runs.reports.charts import DASHES, LIGHT

# The rules of the paper's Figures 1b and 2. DCPO has the epsilons of DAPO there, and no cap.
PAPER = (Clip(0.2, 0.28), DCPO(0.2, 0.28, math.inf), Band("kl", 0.1), Band("tv", 0.1), Band("chi2", 0.1))
PAIR = (Band("kl", 0.1), Clip(0.2, 0.28))  # of Figure 1a
TOP, TOP_3D = 4.0, 10.0  # highest ratios of Figures 2 and 1a
WIDTH = 3.3
# Only one, only the other, both, none: told apart in grey too.
CLASSES = ("#0072b2", "#e69f00", "#a9d8f5", "#e8e8e8")
_LOOK: dict[Any, Any] = {
    "font.size": 7, "axes.labelsize": 7.5, "legend.fontsize": 6.5, "xtick.labelsize": 6.5, "ytick.labelsize": 6.5,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.linewidth": 1.2,
    "lines.markersize": 3.2, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "legend.handlelength": 3.4, "legend.labelspacing": 0.3, "svg.hashsalt": "bandpo", "pdf.fonttype": 42,
    "savefig.dpi": 600,
}  # fmt: skip
_NO_DATES: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


def stretches(state: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[float, float, int]]:
    """List the stretches of p with one value of an integer function. Each is (from, to, value); p is in (0, 1).

    Changes are looked for between e^-30 and 1 - 1e-6 in steps of 0.011 in log(p / (1 - p)), then bisected to full
    precision.
    """

    def at(x: torch.Tensor) -> torch.Tensor:
        return state(torch.nn.functional.logsigmoid(x))

    logit = torch.linspace(-30.0, 13.8, 4001, dtype=torch.float64)
    values = at(logit)
    changes = (values[1:] != values[:-1]).nonzero()[:, 0]
    low, high, first = logit[changes], logit[changes + 1], values[changes]
    for _ in range(60):
        middle = 0.5 * (low + high)
        same = at(middle) == first
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    edges = [0.0, *torch.sigmoid(high).tolist(), 1.0]
    states = [int(values[0]), *values[changes + 1].tolist()]
    return list(zip(edges[:-1], edges[1:], states, strict=True))


def write_figures(
    output: Path, names: Sequence[str] = (), regions: Sequence[Region] = PAPER, pair: Sequence[Region] = PAIR
) -> list[tuple[Path, str]]:
    """Draw figures as PDF, SVG and PNG; the same rules give the same bytes.

    Args:
        output: a folder.
        names: of figures.
        regions: the rules of `variation` and `ratio`.
        pair: the two rules of `regions-3d`.

    Returns:
        The path without suffix, and the caption, of each.

    Raises:
        UserError: an unknown name.
    """
    for name in names:
        if name not in FIGURES:
            raise UserError(f"a figure must be one of {list(FIGURES)}, got {name!r}{nearest(name, list(FIGURES))}")
    output.mkdir(parents=True, exist_ok=True)
    written = []
    # "default" first: a user's matplotlibrc must not change a byte.
    with matplotlib.style.context("default"), matplotlib.rc_context(_LOOK):
        for name in names or FIGURES:
            figure, caption = FIGURES[name](pair if name == "regions-3d" else regions)
            for kind, metadata in _NO_DATES.items():
                file = io.BytesIO()
                figure.savefig(file, format=kind, metadata=metadata)
                write_atomically(output / f"{name}.{kind}", file.getvalue())
            written.append((output / name, caption))
    return written


def regions_3d(pair: Sequence[Region]) -> tuple[Figure, str]:
    """Draw Fig. 1a: the ratios that two rules allow, on the surface new / old."""
    a, b = pair
    figure = Figure(figsize=(WIDTH, 3.0))
    ax: Any = figure.add_axes((0.0, 0.03, 0.94, 0.87), projection="3d", computed_zorder=False)
    # At one p the surface is a straight line in r, on which the two rules' bounds are marks. Where they cross, or leave
    # the picture, must be a p of the grid.
    most = math.log(TOP_3D)

    def order(log_p: torch.Tensor) -> torch.Tensor:
        x, y = a.bounds(log_p), b.bounds(log_p)
        over = (x.log_high > most, y.log_high > most, x.log_high > y.log_high, x.log_low > y.log_low)
        return torch.stack([2**i * flag for i, flag in enumerate(over)]).sum(0)

    corners = [1 / TOP_3D, *(start for start, _, _ in stretches(order) if start > 0)]
    p = np.unique([*np.linspace(0.05, 1, 120) ** 2, *corners])
    lows, highs = zip(*(_ratios(region, p) for region in (a, b)), strict=True)
    top = np.minimum(TOP_3D, 1 / p)
    marks = np.sort(np.minimum([0 * p, *lows, *highs, top], top), axis=0)

    def mean(x: np.ndarray) -> np.ndarray:
        return (x[1:] + x[:-1]) / 2

    for r0, r1 in pairwise(marks):
        # Between two neighbouring p: which of the rules allow what is between two marks, and is there anything?
        middle = mean((r0 + r1) / 2)
        by_a, by_b = ((mean(x) < middle) & (middle < mean(y)) for x, y in zip(lows, highs, strict=True))
        kinds = np.select([mean(r1 - r0) < 1e-9, by_a & by_b, by_a, by_b], [-1, 2, 0, 1], 3)
        # One polygon for each stretch of one kind: seen from here the surface has no fold, so none hides another, and
        # many small ones would show seams.
        for kind, cells in groupby(range(len(kinds)), key=lambda i: kinds[i]):
            cells = list(cells)
            at = [*cells, cells[-1] + 1]
            edge = [(p[i], p[i] * r0[i], r0[i]) for i in at] + [(p[i], p[i] * r1[i], r1[i]) for i in reversed(at)]
            if kind >= 0:
                ax.add_collection3d(Poly3DCollection([edge], facecolor=CLASSES[kind], linewidth=0))
    for bound in (*lows, *highs, top):
        inside = np.where(bound <= top * (1 + 1e-9), bound, np.nan)
        ax.plot(p, p * inside, inside, color="black", linewidth=0.5)
    for i in (0, -1):
        ax.plot(p[[i, i]], [0, p[i] * top[i]], [0, top[i]], color="black", linewidth=0.5)
    ax.set(xlim=(0, 1), ylim=(0, 1), zlim=(0, TOP_3D), xlabel="old probability", ylabel="new probability")
    ax.set_zlabel("ratio")
    ax.set(xticks=np.arange(0, 0.9, 0.2), yticks=np.arange(0.2, 1.1, 0.2))  # none twice where two axes meet
    ax.zaxis.set_major_locator(MaxNLocator(5, prune="lower"))
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_pane_color("white")
        axis.labelpad = -6
        axis.set_tick_params(pad=-3)
        axis._axinfo["grid"] |= {"color": "#d8d8d8", "linewidth": 0.4}
    ax.view_init(elev=30, azim=-40)
    names = [f"only {a.label} allows", f"only {b.label} allows", "both allow", "both clip"]
    keys = [Patch(facecolor=c, edgecolor="black", linewidth=0.5) for c in CLASSES]
    figure.legend(keys, names, loc="upper center", ncols=2 if max(map(len, names)) < 36 else 1, handlelength=1.2)
    return figure, (
        f"(As Fig. 1a of the paper.) What {a.label} and {b.label} allow, on the surface ratio = new / old "
        f"probability, up to a ratio of {TOP_3D:g}."
    )


def variation(regions: Sequence[Region]) -> tuple[Figure, str]:
    """Draw Fig. 1b: (r - 1) p at both bounds against p."""
    p = np.linspace(1e-4, 1, 400)
    figure, ax = _both_bounds(regions, p, lambda bound: (bound - 1) * p)
    for limit, edge in ((1 - p, 1), (-p, -1)):
        ax.fill_between(p, limit, edge, **_OUTSIDE)
    ax.set(xlim=(0, 1), ylim=(-1, 1), xlabel="old probability p", ylabel="change of probability (r $-$ 1) p")
    return figure, (
        "(As Fig. 1b of the paper.) How far each rule lets a probability p move: (r - 1) p at its two bounds. "
        f"Grey: new probabilities below 0 or above 1.{_note(regions)}"
    )


def ratio(regions: Sequence[Region]) -> tuple[Figure, str]:
    """Draw Fig. 2: both bounds of the ratio against p."""
    p = np.linspace(1e-3, 1, 999)
    figure, ax = _both_bounds(regions, p, lambda bound: bound)
    inside = p[p >= 1 / TOP]
    ax.fill_between(inside, 1 / inside, TOP, **_OUTSIDE)
    ax.set(xlim=(0, 1), ylim=(0, TOP), xlabel="old probability p", ylabel="ratio r = new / old probability")
    return figure, (
        "(As Fig. 2 of the paper.) The lowest and the highest ratio that each rule allows. Grey: ratios above 1/p, "
        f"which no policy has.{_note(regions)}"
    )


def _note(regions: Sequence[Region]) -> str:
    """Say how the two figures above differ from the paper's."""
    if not any(isinstance(region, Band) and region.divergence == "tv" for region in regions):
        return ""
    return (
        " Differs from the paper, which draws Band-TV as +-delta for every p, out of the simplex: here it ends at the "
        "simplex, as the rule does. A fixed clip and DCPO know no such limit and do leave it near p = 1."
    )


FIGURES: dict[str, Callable[[Sequence[Region]], tuple[Figure, str]]] = {
    "regions-3d": regions_3d,
    "variation": variation,
    "ratio": ratio,
}
_OUTSIDE: dict[str, Any] = {"facecolor": "#e8e8e8", "edgecolor": "black", "linewidth": 0.6}


def _ratios(region: Region, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest ratio."""
    bounds = region.bounds(torch.from_numpy(p).log())
    return bounds.log_low.exp().numpy(), bounds.log_high.exp().numpy()


def _both_bounds(
    regions: Sequence[Region], p: np.ndarray, of: Callable[[np.ndarray], np.ndarray]
) -> tuple[Figure, Axes]:
    """Draw `of` both bounds of each rule against p, below a legend."""
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    ax, step = figure.add_subplot(), len(p) // 6
    keys: list[Any] = []
    for i, region in enumerate(regions):
        style: dict[str, Any] = {"color": LIGHT[i % 7], "linestyle": DASHES[i % 4], "marker": "osD^vPX"[i % 7]}
        keys.append(Line2D([], [], **style))
        start = (2 * i + 1) * step // (2 * len(regions))  # no two markers at one place
        for bound in _ratios(region, p):
            ax.plot(p, of(bound), **style, markevery=(start, step))
    labels = [*(region.label for region in regions), "outside the simplex"]
    columns = 2 if max(map(len, labels)) < 24 else 1
    figure.set_figheight(2.3 + 0.13 * math.ceil(len(labels) / columns))
    figure.legend([*keys, Patch(**_OUTSIDE)], labels, loc="outside upper center", ncols=columns)
    return figure, ax


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw figures into a folder, and print their captions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/figures"), help="folder")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some figures [default: all three]")
    parser.add_argument("--regions", nargs="+", type=trust_region, default=PAPER, metavar="RULE", help="to draw")
    parser.add_argument("--pair", nargs=2, type=trust_region, default=PAIR, metavar="RULE", help="of regions-3d")
    options = parser.parse_args(arguments)
    for path, caption in write_figures(options.output, options.only, options.regions, options.pair):
        print(f"{path}.pdf .svg .png\n  {caption}")


if __name__ == "__main__":
    main()
