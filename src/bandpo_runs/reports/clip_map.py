"""The clip map: tokens of a run by old probability and ratio, and a rule's interval; its numbers are calibrate's.

Tokens that are outside, and count, are coloured; the others are grey. What is beyond the frame is drawn on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bandpo.errors import UserError
from bandpo.trust_regions.base import Region
from bandpo.trust_regions.notation import not_loaded

from .calibration import TAIL, Among, Measured, measure
from .charts import DOTTED, INK, LIGHT, svg
from .runs import Section, ratio_bounds
from .tokens import Bools, Floats, Tokens, read_tokens

FOLDER = "tokens"  # of a run, that has its tokens
_DOTS = 2500
_FARTHEST = 1e-4, 1 - 1e-4
_P = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
_RATIOS = (0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)


def _logit(p: Floats) -> Floats:
    return np.log(p) - np.log1p(-p)


def _draw(ax: Axes, region: Region, old: Floats, log_ratio: Floats, outside: Bools, top: float) -> None:
    """Draw some tokens as dots, and both bounds as lines."""
    low, high = _logit(np.array(_FARTHEST)).tolist()
    # Not every tenth: responses may be as long as that.
    some = np.sort(np.random.default_rng(0).permutation(len(old))[:_DOTS])
    x = _logit(np.exp(old[some]).clip(*_FARTHEST))
    y, of = log_ratio[some].clip(-top, top), outside[some]
    # One path for all dots of a colour: lines of no length, with round ends.
    for kind, colour, width in ((~of, INK, 1.6), (of & (y < 0), LIGHT[0], 2.6), (of & (y > 0), LIGHT[1], 2.6)):
        here = [np.repeat(values[kind], 3) for values in (x, y)]
        for values in here:
            values[2::3] = np.nan
        here[0][1::3] += 1e-3
        ax.plot(*here, color=colour, linewidth=width, solid_capstyle="round", alpha=0.5 if colour == INK else 0.9)
    grid = np.linspace(low, high, 241)
    p = 1 / (1 + np.exp(-grid))
    with np.errstate(divide="ignore"):
        for bound in ratio_bounds(region, p) or ():
            ax.plot(grid, np.log(bound).clip(-2 * top, 2 * top), color=LIGHT[2], linewidth=2)
    ax.plot(grid, -np.log(p), color=matplotlib.rcParams["axes.edgecolor"], **DOTTED)
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


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.3g} %"  # noqa: RUF001


def clip_map(
    tokens: Tokens, region: Region, *, among: Among = "all", cut: bool = False
) -> tuple[tuple[str, Markup, str], Measured]:
    """Return title, picture, words and numbers of a rule's effect on the tokens.

    Raises:
        UserError: a rule that needs more than tokens have, or no tokens to look at.
    """
    found, old, log_ratio, outside = measure(tokens, region, among=among, cut=cut)
    # Of a run whose tokens hardly move the band would fill the picture, and of one that is lost it would be a line.
    top = float(np.clip(1.3 * np.quantile(np.abs(log_ratio), 0.999), 0.25, 3.4))
    what = "cut" if cut else "outside"
    words = (
        f"Of {len(old):,} tokens {found.label} has {percent(found.rate)} {what}: {percent(found.high)} above its "
        f"interval (orange) and {percent(found.low)} below (blue). "
    )
    if found.rate:
        words += f"{percent(found.rare)} of these are rare (p ≤ {TAIL}). "
    if len(old) > _DOTS:
        words += f"{_DOTS:,} of them, by chance, are drawn. "
    words += "Green: the ends of the interval. Dotted: the new probability is 1."
    name = f"Clip map of {found.label}: ratio by old probability of {len(old):,} tokens; {words}"
    picture = svg(lambda ax: _draw(ax, region, old, log_ratio, outside, top), name, 300)
    return (found.label, picture, words), found


def head_of(what: str = "outside") -> list[tuple[str, str]]:
    return [*((name, "") for name in ("rule", "tokens", what, "above", "below")), ("rare of these", f"p ≤ {TAIL}")]


def cells_of(count: int, found: Measured) -> list[str]:
    return [f"{count:,}", *(percent(share) for share in (found.rate, found.high, found.low, found.rare))]


def of_sections(sections: Sequence[Section]) -> dict[str, Any]:
    """Draw the maps of the runs that stored tokens: a map of each method of a section, of all its seeds."""
    figures, rows, notes = [], [], []
    for section in sections:
        for label, by_seed in section.methods.items():
            name, runs = f"{section.title}: {label}" if sections[1:] else label, [*by_seed.values()]
            paths = [path for run in runs for path in sorted((run.folder / FOLDER).glob("*.jsonl"))]
            if not (files := [path for path in paths if path.stat().st_size]):
                continue
            if runs[0].own is not None:
                notes.append(f"{name}: no map. Its rule is {not_loaded(runs[0].own)}.")
                continue
            if runs[0].objective is None:
                cure = f"`bandpo calibrate {files[0]} --map` draws it"
                notes.append(f"{name}: no map, because a log does not say its rule; {cure}.")
                continue
            if (region := runs[0].region) is None:
                notes.append(f"{name} has one ratio for a whole response, and so no map.")
                continue
            try:
                tokens = read_tokens(files)
                (_, picture, words), found = clip_map(tokens, region)
            except UserError as error:
                notes.append(f"{name}: no map. {error}")
                continue
            figures.append((name, picture, words))
            rows.append((name, cells_of(tokens.count, found)))
    return {"figures": figures, "head": head_of(), "rows": rows, "notes": notes}
