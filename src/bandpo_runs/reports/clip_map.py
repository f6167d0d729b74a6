"""Draw a run's tokens by old probability and ratio, with a rule's interval. Its numbers are calibrate's.

Tokens that are outside, and count, are coloured; the others are grey. What is beyond the frame is drawn on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bandpo.trust_regions.base import Region

from ..files.writing import write_atomically
from ..statistics.estimators import Bools, Floats
from .calibration import TAIL, Measured, measure, percent
from .charts import DOTTED, INK, svg
from .runs import ratio_bounds
from .templates import LIGHT, Table, rendered
from .tokens import Tokens

_DOTS = 2500
_FARTHEST = 1e-4, 1 - 1e-4
_P = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
_RATIOS = (0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)


class ClipMap(NamedTuple):
    """A rule's effect on tokens; `outside` marks those that it stops."""

    words: str
    found: Measured
    region: Region
    tokens: Tokens
    outside: Bools


def clip_map(tokens: Tokens, region: Region, *, cut: bool = False) -> ClipMap:
    """Measure a rule's effect on the tokens.

    Raises:
        UserError: a rule that needs more than tokens have.
    """
    found, outside = measure(tokens, region, cut=cut)
    words = (
        f"Of {tokens.count:,} tokens {found.label} has {percent(found.rate)} {'cut' if cut else 'outside'}: "
        f"{percent(found.high)} above its interval (orange) and {percent(found.low)} below (blue). "
    )
    words += f"{percent(found.rare)} of these are rare (p ≤ {TAIL}). " if found.rate else ""
    words += f"{_DOTS:,} random tokens are drawn. " if tokens.count > _DOTS else ""
    words += "Green: the ends of the interval. Dotted: the new probability is 1."
    return ClipMap(words, found, region, tokens, outside)


def write_clip_map(path: Path, maps: Sequence[ClipMap], what: str, notes: Sequence[str], about: str) -> None:
    """Write a page with the first two maps and the numbers of all."""
    head = [*((name, "") for name in ("rule", "tokens", what, "above", "below")), ("rare of these", f"p ≤ {TAIL}")]
    rows = []
    for each in maps:
        shares = map(percent, (each.found.rate, each.found.high, each.found.low, each.found.rare))
        rows.append((each.found.label, [(f"{each.tokens.count:,}",), *((share,) for share in shares)]))
    drawn, shares = [draw_map(each) for each in maps[:2]], Table("Shares of the tokens", head, rows, notes)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, rendered("clip_map.html.jinja", about=about, maps=drawn, shares=shares).encode())


def _logit(p: Floats) -> Floats:
    return np.log(p) - np.log1p(-p)


def draw_map(of: ClipMap) -> tuple[str, Markup, str]:
    """Return title, picture and words."""
    name = f"Clip map of {of.found.label}: ratio by old probability of {of.tokens.count:,} tokens; {of.words}"
    return of.found.label, svg(lambda ax: _draw(ax, of), name, 300), of.words


def _draw(ax: Axes, of: ClipMap) -> None:
    """Draw some tokens as dots, and both bounds as lines."""
    low, high = _logit(np.array(_FARTHEST)).tolist()
    # Of a run whose tokens hardly move the band would fill the picture, and of one that is lost it would be a line.
    top = float(np.clip(1.3 * np.quantile(np.abs(of.tokens.log_ratio), 0.999), 0.25, 3.4))
    # Not every tenth: responses may be as long as that.
    some = np.sort(np.random.default_rng(0).permutation(of.tokens.count)[:_DOTS])
    x = _logit(np.exp(of.tokens.old[some]).clip(*_FARTHEST))
    y, outside = of.tokens.log_ratio[some].clip(-top, top), of.outside[some]
    # One path for all dots of a colour: lines of no length, with round ends.
    for kind, colour, width in ((~outside, INK, 1.6), (outside & (y < 0), LIGHT[0], 2.6),
                                (outside & (y > 0), LIGHT[1], 2.6)):  # fmt: skip
        here = [np.repeat(values[kind], 3) for values in (x, y)]
        for values in here:
            values[2::3] = np.nan
        here[0][1::3] += 1e-3
        ax.plot(*here, color=colour, linewidth=width, solid_capstyle="round", alpha=0.5 if colour == INK else 0.9)
    grid = np.linspace(low, high, 241)
    with np.errstate(divide="ignore"):
        for bound in ratio_bounds(of.region, 1 / (1 + np.exp(-grid))) or ():
            ax.plot(grid, np.log(bound).clip(-2 * top, 2 * top), color=LIGHT[2], linewidth=2)
    ax.plot(grid, np.log1p(np.exp(-grid)), color=matplotlib.rcParams["axes.edgecolor"], **DOTTED)
    ax.set(xlim=(low, high), ylim=(-top, top))
    ax.xaxis.set_major_locator(FixedLocator(_logit(np.array(_P)).tolist()))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{1 / (1 + math.exp(-value)):.3g}"))
    shown = [ratio for ratio in _RATIOS if abs(math.log(ratio)) <= top]
    shown = shown[len(shown) // 2 % 2 :: 2] if len(shown) > 9 else shown  # with 1 in the middle
    ax.yaxis.set_major_locator(FixedLocator([math.log(ratio) for ratio in shown]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{math.exp(value):.3g}"))
    for axis in ax.xaxis, ax.yaxis:
        axis.set_minor_locator(NullLocator())
    ax.set_title("new / old probability", loc="left")
    ax.set_xlabel("old probability p", loc="right")
