"""The paper's figures of trust regions, and three of our own, for any rules.

Every curve is made of a region's `bounds`. Each figure is a function from its parameters to a matplotlib figure, 3.3
inches wide, one column of a paper; scaled up it is a slide. Rules differ in colour, in dashes and in markers, so that
they can be told apart in grey and by the colour-blind.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from bandpo.band.divergences import divergence
from bandpo.band.operator import divergence_at
from bandpo.errors import UserError, nearest
from bandpo.explain.explanation import stretches
from bandpo.trust_regions.base import Region
from bandpo.trust_regions.combinators import Capped
from bandpo.trust_regions.rules import DCPO, Band, Clip

from ..files.writing import write_atomically
from .charts import DASHES, LIGHT

# Those of the paper's Figures 1b and 2. DCPO has the epsilons of DAPO there, and no cap.
PAPER = (Clip(0.2, 0.28), DCPO(0.2, 0.28, math.inf), Band("kl", 0.1), Band("tv", 0.1), Band("chi2", 0.1))
SCRIPTS = Capped(Band("kl", 0.05), 10.0)  # the cap of the public scripts
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


@dataclass(frozen=True)
class Parameters:
    """All that can be changed.

    Attributes:
        regions: the rules of `variation`, `ratio` and `half-width`.
        top: the highest ratio in `ratio`.
        pair: the two rules of `regions-3d`.
        top_3d: the highest ratio in `regions-3d`.
        capped: the rule of `cap`.
        equal: the divergences of `equal-half-width`.
        half_width: how far a token of old probability `at` may move under each of them.
        at: see `half_width`.
    """

    regions: Sequence[Region] = PAPER
    top: float = 4.0
    pair: Sequence[Region] = (Band("kl", 0.1), Clip(0.2, 0.28))
    top_3d: float = 10.0
    capped: Capped = SCRIPTS
    equal: Sequence[str] = ("kl", "tv", "chi2")
    half_width: float = 0.1
    at: float = 0.5

    def __post_init__(self) -> None:
        for name in ("top", "top_3d"):
            if not 1 < getattr(self, name) < math.inf:
                raise UserError(f"{name} must be a ratio above 1, got {getattr(self, name):g}")
        if not 0 < self.at < 1:
            raise UserError(f"at must be a probability in (0, 1), got {self.at:g}")
        if not 0 < self.half_width < 1 - self.at:
            raise UserError(f"half_width must be in (0, 1 - at) = (0, {1 - self.at:g}), got {self.half_width:g}")
        if not isinstance(self.capped, Capped):
            raise UserError(f"capped must be a rule of type capped, e.g. capped:band:kl:0.05:10, got {self.capped}")
        for name in self.equal:
            divergence(name)


def write_figures(output: Path, parameters: Parameters, names: Sequence[str] = ()) -> list[tuple[Path, str]]:
    """Draw figures (all, if none is named) as PDF, SVG and PNG; returns path without suffix, and caption, of each.

    The same parameters give the same bytes.

    Raises UserError for an unknown name.
    """
    for name in names:
        if name not in FIGURES:
            raise UserError(f"a figure must be one of {list(FIGURES)}, got {name!r}{nearest(name, list(FIGURES))}")
    output.mkdir(parents=True, exist_ok=True)
    written = []
    # "default" first: a user's matplotlibrc must not change a byte.
    with matplotlib.style.context("default"), matplotlib.rc_context(_LOOK):
        for name in names or FIGURES:
            figure, caption = FIGURES[name](parameters)
            for kind, metadata in _NO_DATES.items():
                file = io.BytesIO()
                figure.savefig(file, format=kind, metadata=metadata)
                write_atomically(output / f"{name}.{kind}", file.getvalue())
            written.append((output / name, caption))
    return written


# ------------------------------------------------------------------------------------------------ the paper's figures
def regions_3d(parameters: Parameters) -> tuple[Figure, str]:
    """Draw Fig. 1a: which ratios each of two rules allows, on the surface ratio = new / old probability."""
    a, b = parameters.pair
    figure = Figure(figsize=(WIDTH, 3.0))
    ax: Any = figure.add_axes((0.0, 0.03, 0.94, 0.87), projection="3d", computed_zorder=False)
    # At one p the surface is a straight line in r, on which the two rules' bounds are marks. Where they cross, or leave
    # the picture, must be a p of the grid.
    most = math.log(parameters.top_3d)

    def order(log_p: torch.Tensor) -> torch.Tensor:
        x, y = a.bounds(log_p), b.bounds(log_p)
        over = (x.log_high > most, y.log_high > most, x.log_high > y.log_high, x.log_low > y.log_low)
        return torch.stack([2**i * flag for i, flag in enumerate(over)]).sum(0)

    corners = [1 / parameters.top_3d, *(start for start, _, _ in stretches(order) if start > 0)]
    p = np.unique([*np.linspace(0.05, 1, 120) ** 2, *corners])
    lows, highs = zip(*(_ratios(region, p) for region in (a, b)), strict=True)
    top = np.minimum(parameters.top_3d, 1 / p)
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
    ax.set(xlim=(0, 1), ylim=(0, 1), zlim=(0, parameters.top_3d), xlabel="old probability", ylabel="new probability")
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
        f"probability, up to a ratio of {parameters.top_3d:g}."
    )


def variation(parameters: Parameters) -> tuple[Figure, str]:
    """Draw Fig. 1b: (r - 1) p at both bounds against p."""
    figure, ax = _axes()
    p = np.linspace(1e-4, 1, 400)
    for region, style in _styled(parameters.regions, len(p)):
        for bound in _ratios(region, p):
            ax.plot(p, (bound - 1) * p, **style)
    for limit, edge in ((1 - p, 1), (-p, -1)):
        ax.fill_between(p, limit, edge, **_OUTSIDE)
    ax.set(xlim=(0, 1), ylim=(-1, 1), xlabel="old probability p", ylabel="change of probability (r $-$ 1) p")
    _key(figure, parameters.regions, Patch(**_OUTSIDE), "outside the simplex")
    return figure, (
        "(As Fig. 1b of the paper.) How far each rule lets a probability p move: (r - 1) p at its two bounds. "
        f"Grey: new probabilities below 0 or above 1.{_note(parameters.regions)}"
    )


def ratio(parameters: Parameters) -> tuple[Figure, str]:
    """Draw Fig. 2: both bounds of the ratio against p."""
    figure, ax = _axes()
    p = np.linspace(1e-3, 1, 999)
    for region, style in _styled(parameters.regions, len(p)):
        for bound in _ratios(region, p):
            ax.plot(p, bound, **style)
    inside = p[p >= 1 / parameters.top]
    ax.fill_between(inside, 1 / inside, parameters.top, **_OUTSIDE)
    ax.set(xlim=(0, 1), ylim=(0, parameters.top), xlabel="old probability p", ylabel="ratio r = new / old probability")
    _key(figure, parameters.regions, Patch(**_OUTSIDE), "outside the simplex")
    return figure, (
        "(As Fig. 2 of the paper.) The lowest and the highest ratio that each rule allows. Grey: ratios above 1/p, "
        f"which no policy has.{_note(parameters.regions)}"
    )


def _note(regions: Sequence[Region]) -> str:
    """Say how the two figures above differ from the paper's."""
    if not any(isinstance(region, Band) and region.divergence == "tv" for region in regions):
        return ""
    return (
        " Differs from the paper, which draws Band-TV as +-delta for every p, out of the simplex: here it ends at the "
        "simplex, as the rule does. A fixed clip and DCPO know no such limit and do leave it near p = 1."
    )


# --------------------------------------------------------------------------------------------------------------- ours
def equal_half_width(parameters: Parameters) -> tuple[Figure, str]:
    """Draw the room for a rare token by divergence, with radii that allow one common token the same."""
    h, at = parameters.half_width, parameters.at
    log_at, move = (torch.tensor(x, dtype=torch.float64).log() for x in (at, 1 + h / at))
    radii = {name: float(divergence_at(move, log_at, name)) for name in parameters.equal}
    regions = [Clip(min(h / at, 1.0), h / at), *(Band(name, delta) for name, delta in radii.items())]
    figure, ax = _axes()
    p = np.geomspace(1e-4, 1, 401)[:-1]
    for region, style in _styled(regions, len(p)):
        ax.plot(p, _moves(region, p)[1], **style)
    ax.fill_between(p, 1 - p, 1, **_OUTSIDE)
    ax.plot(at, h, "o", color="black", markersize=7, fillstyle="none")
    _log(ax, "largest rise of probability", ylim=(1e-5, 1))
    names = [f"Clip {h / at:.3g}", *(f"{Band(name, 1).label.split()[0]} {radii[name]:.3g}" for name in radii)]
    _key(figure, regions, Patch(**_OUTSIDE), "outside the simplex", names)
    said = ", ".join(f"{name} {delta:.4g}" for name, delta in radii.items())
    return figure, (
        f"How far a probability may rise, with radii at which p = {at:g} may rise by {h:g} (circle): {said}; beside "
        f"them the clip of {h / at:.4g}. For small moves a radius is f''(1) / 2 times the square of the half-width "
        "over p (1 - p), so that of chi2 (f'' = 2) is twice that of KL (f'' = 1) wherever they are matched; TV has a "
        "kink, no f'', and is matched at this p only."
    )


def cap(parameters: Parameters) -> tuple[Figure, str]:
    """Draw the place where a ratio cap binds."""
    region, inner = parameters.capped, parameters.capped.region

    def binding(log_p: torch.Tensor) -> torch.Tensor:
        return (region.bounds(log_p).log_high < torch.minimum(inner.bounds(log_p).log_high, -log_p)).int()

    binds = [(start, end) for start, end, flag in stretches(binding) if flag]
    figure, ax = _axes()
    p = np.geomspace(1e-4, 1, 401)
    for start, end in binds:
        ax.axvspan(max(start, p[0]), max(end, p[0]), color="#e8e8e8", linewidth=0)
    for each, style in _styled([inner, region], len(p)):
        ax.plot(p, _ratios(each, p)[1], **style)
    (simplex,) = ax.plot(p, 1 / p, color="black", linewidth=0.6)
    _log(ax, "highest ratio r", ylim=(0.3, 1e4))
    said = " and ".join(f"p < {end:.2g}" if start == 0 else f"{start:.2g} < p < {end:.2g}" for start, end in binds)
    said = f"binds for {said}" if binds else "never binds"
    ax.text(0.02, 0.03, f"the cap {said}", transform=ax.transAxes)  # below the ratio 1 there is no curve
    _key(figure, [inner, region], simplex, "simplex, 1/p")
    return figure, f"The highest ratio with and without the cap of {region.label}, which {said} (grey)."


def half_width(parameters: Parameters) -> tuple[Figure, str]:
    """Draw half the length of the interval of the new probability against p."""
    figure, ax = _axes()
    p = np.linspace(1e-4, 1, 400)
    for region, style in _styled(parameters.regions, len(p)):
        low, high = _moves(region, p)
        ax.plot(p, (high - low) / 2, **style)
    ax.set(xlim=(0, 1), xlabel="old probability p", ylabel="half-width of the interval")
    ax.set_ylim(bottom=0)
    _key(figure, parameters.regions)
    return figure, (
        "Half the length of the interval that each rule leaves the new probability, within the simplex. Under a "
        "divergence it is the same for p and 1 - p; a fixed clip's grows with p until the simplex ends it."
    )


FIGURES: dict[str, Callable[[Parameters], tuple[Figure, str]]] = {
    "regions-3d": regions_3d,
    "variation": variation,
    "ratio": ratio,
    "equal-half-width": equal_half_width,
    "cap": cap,
    "half-width": half_width,
}


# ------------------------------------------------------------------------------------------------------------ drawing
_OUTSIDE: dict[str, Any] = {"facecolor": "#e8e8e8", "edgecolor": "black", "linewidth": 0.6}


def _ratios(region: Region, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest ratio."""
    bounds = region.bounds(torch.from_numpy(p).log())
    return bounds.log_low.exp().numpy(), bounds.log_high.exp().numpy()


def _moves(region: Region, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest (at most 0) and the highest change of probability, within the simplex."""
    log_p = torch.from_numpy(p).log()
    low, high = region.bounds(log_p).variation(log_p)
    return low.numpy(), high.numpy()


def _styled(regions: Sequence[Region], points: int = 1) -> list[tuple[Region, dict[str, Any]]]:
    """Yield each rule with its look; six markers on a curve of so many points, none where another rule has one."""
    step = max(1, points // 6)
    return [
        (region, {"color": LIGHT[i % 7], "linestyle": DASHES[i % 4], "marker": "osD^vPX"[i % 7],
                  "markevery": ((2 * i + 1) * step // (2 * len(regions)), step)})
        for i, region in enumerate(regions)
    ]  # fmt: skip


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    return figure, figure.add_subplot()


def _key(
    figure: Figure, regions: Sequence[Region], other: Any = None, name: str = "", names: Sequence[str] = ()
) -> None:
    """Draw the legend above the axes, for which the figure grows."""
    keys: list[Any] = [Line2D([], [], **style) for _, style in _styled(regions)]
    labels = list(names) or [region.label for region in regions]
    if other is not None:
        keys, labels = [*keys, other], [*labels, name]
    columns = 2 if max(map(len, labels)) < 24 else 1
    figure.set_figheight(2.3 + 0.13 * math.ceil(len(keys) / columns))
    figure.legend(keys, labels, loc="outside upper center", ncols=columns)


def _log(ax: Axes, ylabel: str, ylim: tuple[float, float]) -> None:
    ax.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=ylim, xlabel="old probability p", ylabel=ylabel)
    for axis in ax.xaxis, ax.yaxis:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
