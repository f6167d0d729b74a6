"""A rule in words and numbers: what it allows a token, and what stops the token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..band.divergences import divergence
from ..numerics import expm1
from ..trust_regions.base import Region, TrustRegion
from ..trust_regions.combinators import Capped, Relaxed
from ..trust_regions.notation import label_of
from ..trust_regions.rules import DCPO, Band, Clip

DEFAULT_P = (0.001, 0.01, 0.08, 0.2, 0.5, 0.9, 0.99)
_PAPER_P = 0.08  # the tail token of sec:bottlenecks

# What can stop a token, and what that means.
_MEANING = {
    "clip": "the fixed epsilon",
    "DCPO": "DCPO's formula",
    "divergence": "the divergence from the old policy reaches delta",
    "cap": "the cap of the ratio",
    "simplex": "the new probability reaches 0 or 1 before the rule stops it",
    "rule": "the rule itself",
}


def explain(region: Region, p: Sequence[float] = (), other: Region | None = None) -> str:
    """What a rule allows tokens of old probability `p`, as a table and in words; with `other` also what differs."""
    regions = [region] if other is None else [region, other]
    log_p = torch.tensor(p or DEFAULT_P, dtype=torch.float64).log()
    lines = [line for each in regions for line in (f"{label_of(each)}: {_node(each.to_config())}", *_parts(each))]
    lines += ["", *_table(regions, log_p), ""]
    lines += [_sentence(each, q) for q in p or [_PAPER_P] for each in regions]
    reasons = dict.fromkeys(reason for each in regions for pair in limits(each, log_p) for reason in pair)
    lines += ["", "What stops a token:", *(f"  {reason}: {_MEANING[reason.split()[-1]]}" for reason in reasons)]
    if other is not None:
        lines += ["", *_differences(region, other)]
    return "\n".join(lines)


def _node(node: dict[str, Any]) -> str:
    parts = (f"{key}: {_node(value) if isinstance(value, dict) else value}" for key, value in node.items())
    return f"{{{', '.join(parts)}}}"


def _parts(region: TrustRegion) -> list[str]:
    """What the names in the column of limits stand for."""
    match region:
        case Band(divergence=name):
            return [f"  {divergence(name)}"]
        case Capped(region=inner):
            return _parts(inner)
        case Relaxed(inner=inner, outer=outer):
            return [f"  inner: {label_of(inner)}", f"  outer: {label_of(outer)}"]
        case _:
            return []


def limits(region: TrustRegion, log_p: Tensor) -> list[tuple[str, str]]:
    """For each p what stops the token (below, above): the rule, a part of it, its cap, or the simplex."""
    bounds = region.bounds(log_p)
    match region:
        case Relaxed(inner=inner, outer=outer):
            a, b = inner.bounds(log_p), outer.bounds(log_p)
            of_a, of_b = limits(inner, log_p), limits(outer, log_p)
            wider = zip(a.log_low <= b.log_low, a.log_high >= b.log_high, strict=True)
            own = [
                (f"inner {x[0]}" if low else f"outer {y[0]}", f"inner {x[1]}" if high else f"outer {y[1]}")
                for x, y, (low, high) in zip(of_a, of_b, wider, strict=True)
            ]
        case Capped(region=inner):
            own = limits(inner, log_p)
        case _:
            own = [({Clip: "clip", DCPO: "DCPO", Band: "divergence"}.get(type(region), "rule"),) * 2] * len(log_p)
    capped = torch.zeros_like(log_p, dtype=torch.bool) if bounds.capped is None else bounds.capped
    out = []
    for i, (below, above) in enumerate(own):
        if capped[i] and not above.endswith("cap"):  # else it is the cap of a part, and has its name
            above = "cap"
        # At 0 and at 1/p the simplex stops the token, whatever the rule would do.
        below = "simplex" if bounds.log_low[i] == -math.inf else below
        above = "simplex" if bounds.log_high[i] >= -log_p[i] else above
        out.append((below, above))
    return out


def _table(regions: Sequence[Region], log_p: Tensor) -> list[str]:
    """A row for each p and rule."""
    rows = [["p", "", "ratio r", "log r", "new probability r p", "1 - r_low", "r_high - 1", "stopped by"]]
    stops = [limits(region, log_p) for region in regions]
    for i, s in enumerate(log_p):
        for j, region in enumerate(regions):
            low, high, new_low, new_high = _interval(region, s)
            below, above = stops[j][i]
            rows.append([
                _show(s.exp()) if j == 0 else "", label_of(region) if len(regions) > 1 else "",
                f"{_show(low.exp())} to {_show(high.exp())}", f"{_show(low)} to {_show(high)}",
                f"{_show(new_low)} to {_show(new_high)}", _show(-expm1(low)), _show(expm1(high)),
                below if below == above else f"{below} / {above}",
            ])  # fmt: skip
    shown = [column for column in zip(*rows, strict=True) if any(column)]
    widths = [max(map(len, column)) for column in shown]
    padded = [[cell.rjust(width) for cell in column] for column, width in zip(shown[:-1], widths, strict=False)]
    return ["  ".join(row) for row in zip(*padded, shown[-1], strict=True)]


def _interval(region: Region, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The log-ratio's bounds, and the lowest and highest new probability, which ends at 1 whatever the rule says."""
    bounds = region.bounds(log_p)
    return bounds.log_low, bounds.log_high, (bounds.log_low + log_p).exp(), (bounds.log_high + log_p).clamp(max=0).exp()


def _sentence(region: Region, p: float) -> str:
    low, high, new_low, new_high = _interval(region, torch.tensor(p, dtype=torch.float64).log())
    return (
        f"{label_of(region)}: a token of p = {_show(p)} may fall to {_show(new_low)} (by {_show(p - new_low)}) and "
        f"rise to {_show(new_high)} (by {_show(new_high - p)}); the epsilons at this p are {_show(-expm1(low))} below "
        f"and {_show(expm1(high))} above."
    )


def _differences(region: Region, other: Region) -> list[str]:
    """Where which of two rules leaves more room, in each direction."""

    def up(log_p: Tensor) -> Tensor:
        a, b = (torch.minimum(each.bounds(log_p).log_high, -log_p) for each in (region, other))
        return _sign(a - b)

    def down(log_p: Tensor) -> Tensor:
        a, b = (each.bounds(log_p).log_low.exp() for each in (region, other))
        return _sign(b - a)

    words = {1: "leaves more room", -1: "is tighter", 0: "allows the same (to 1e-12)"}
    lines = []
    for direction, state in (("Up", up), ("Down", down)):
        found: dict[int, list[str]] = {}
        for start, end, value in stretches(state):
            found.setdefault(value, []).append(_where(start, end))
        said = ", ".join(f"{words[value]} {' and '.join(where)}" for value, where in found.items())
        lines.append(f"{direction}, against {label_of(other)}: {label_of(region)} {said}.")
    return lines


def _sign(gap: Tensor) -> Tensor:
    return torch.where(gap.abs() <= 1e-12, 0, gap.sign()).int()


def stretches(state: Callable[[Tensor], Tensor]) -> list[tuple[float, float, int]]:
    """(from, to, value) for each stretch of p in (0, 1) on which an integer function of log p is constant.

    Changes are looked for between e^-30 and 1 - 1e-6 in steps of 0.011 in log(p / (1 - p)), then bisected to full
    precision.
    """
    logit = torch.linspace(-30.0, 13.8, 4001, dtype=torch.float64)

    def at(x: Tensor) -> Tensor:
        return state(torch.nn.functional.logsigmoid(x))

    values = at(logit)
    changes = (values[1:] != values[:-1]).nonzero()[:, 0]
    low, high, first = logit[changes], logit[changes + 1], values[changes]
    for _ in range(60):
        middle = 0.5 * (low + high)
        same = at(middle) == first
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    edges = [0.0, *torch.sigmoid(high).tolist(), 1.0]
    kept = [int(values[0]), *values[changes + 1].tolist()]
    return list(zip(edges[:-1], edges[1:], kept, strict=True))


def _where(start: float, end: float) -> str:
    if start == 0.0:
        return "for every p" if end == 1.0 else f"for p < {_show(end)}"
    return f"for p > {_show(start)}" if end == 1.0 else f"for {_show(start)} < p < {_show(end)}"


def _show(value: float | Tensor) -> str:
    value = float(value) + 0.0  # not -0
    return f"1 - {1 - value:.3g}" if 0.99995 <= value < 1 else f"{value:.4g}"
