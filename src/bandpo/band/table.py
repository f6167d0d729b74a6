"""Tabulate the bounds of a divergence ball. The solver makes some thousand points, between which one interpolates.

Both bounds lie on one curve, by the symmetry of lem:complement_rescaling: as one side of a coin falls, the other rises.
Along the log-odds of that side log |log r| and log |log c| are smooth, but for the point where the curve reaches the
simplex's edge: there they are smooth in the logarithm of the distance. At equal distance they are smooth in the
logarithm of the radius too. So a handful of radii is solved, and the curve of any other radius is a weighted sum of
theirs: a radius that moves costs hardly more than a fixed one, and its bounds do not depend on when it came first.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..bounds import Bounds
from ..numerics import LOG_P_MIN, expm1, is_number, made_to_last, solved_part, working_copy
from .closed_forms import Interval
from .divergences import Divergence
from .divergences import divergence as lookup
from .solver import Generator, fall

# An octave of radii has 4 panels, in each of which 5 radii are solved. Their curves are solved at 11 nodes in each
# quarter of an octave of distance. Where that is not enough, the curve of one radius is, in each sixteenth.
_PANELS, _RADII = 4, 5
_PARTS, _PARTS_OF_ONE, _NODES = 4, 16, 11
# A table has 128 cells an octave, in each a polynomial of degree 4.
_BITS, _DEGREE = 7, 4
# The octaves. Distances from a point of saturation begin at 2^-30. Where there is none, nothing happens at a distance
# of 0; it counts from 1 on, from the log-odds at which the curve bends.
_FIRST_AT_EDGE, _FIRST_AT_BEND, _END = -30, 0, 10
# What interpolation may be off in log |log r|: half of float32's unit in the last place; and, by the rounding of
# log-odds in float64, more where the distance itself is nothing but their last digits.
_TOLERANCE, _ROUNDING = 2.0**-24, 2.0**-40
# Below this log r, float32 has no ratio. An own f(u) ends there, because no u is below e^-745: its curve has a kink.
_LOWEST = -150.0


class BandTable:
    """Look up the bounds of one divergence and radius in constant time. They are as precise as float32.

    `band_bounds` does so by itself for float32 log-probabilities where a divergence has no closed form.

    Args:
        divergence: a registered name or a `Divergence`.
        delta: the radius; it counts as at least 1e-10 and at most 1e10.
        device: where log-probabilities will be looked up.

    Attributes:
        fits: False if the curve between the nodes is not what they say, because f has kinks. The table is of no use
            then.

    Raises:
        ValueError: delta is not a positive number; the divergence is unknown.

    >>> import torch, bandpo.band
    >>> log_p = torch.tensor([0.08]).log()
    >>> bounds = bandpo.band.BandTable("kl", 0.05).bounds(log_p)
    >>> f"{bounds.log_low.exp().item():.3f} {bounds.log_high.exp().item():.3f}"
    '0.262 2.411'
    """

    def __init__(self, divergence: str | Divergence, delta: float, device: torch.device | str = "cpu") -> None:
        if not is_number(delta) or not delta > 0:
            raise ValueError(f"delta must be a positive number, got {delta!r}")
        self.divergence, self.delta = lookup(divergence), min(max(float(delta), 1e-10), 1e10)
        with made_to_last():
            self._make(torch.device(device))

    def _make(self, device: torch.device) -> None:
        radius = torch.tensor([self.delta], dtype=torch.float64)
        parts, panel = _PARTS, _panel(self.divergence, math.floor(_PANELS * math.log2(self.delta)))
        if panel is None:  # its radii do not tell the curves of those between
            parts, panel = _PARTS_OF_ONE, _solve_panel(self.divergence, radius, radius, _PARTS_OF_ONE)
        self.fits = panel is not None
        if panel is None:
            return
        self.edge, self.slopes = panel.edge(radius).item(), self.divergence.slopes
        self.saturates = panel.values.shape[2] == 1
        # From values at nodes to powers of the distance from a cell's start: (r and c, powers, sides and cells).
        table = torch.einsum("rscn,fpn->rpscf", panel.curve(radius)[0], _refinement(parts)).flatten(3)
        _, width = _cells(self.saturates, 2**_BITS)
        table = (table / (width ** torch.arange(_DEGREE + 1)[:, None])[:, None]).flatten(2)
        if self.saturates:  # one cell more: beyond the edge r is 0 and q is 0
            table = torch.nn.functional.pad(table, (0, 1))
            table[:, 0, -1] = torch.inf
        self.curves, self.cells = table.to(device), len(width)

    def bounds(self, old_logps: Tensor) -> Bounds:
        """Return the bounds of the log-ratio, in float32. Raises ValueError if the table does not fit.

        `old_logps` is log p of the sampled tokens, any shape, in [-inf, 1e-6], on the table's device.
        """
        if not self.fits:
            raise ValueError(f"{self.divergence.name!r} has kinks, no table of radius {self.delta:g} fits it")
        log_p = old_logps.detach().clamp(max=0)
        log_low, log_high = self.look_up(log_p)
        return Bounds(log_low.clamp(max=0).float(), torch.minimum(log_high.clamp(min=0).float(), -log_p.float()))

    def look_up(self, log_p: Tensor) -> Interval:
        """Return (log_low, log_high) in float64, for log p in [-inf, 0]."""
        within, beyond = solved_part(log_p)
        log_odds = within - torch.expm1(within).neg_().log_()
        log_low = self._read(self.curves[0], log_odds).exp_().neg_().add_(beyond, alpha=self.slopes[0])
        log_high = self._read(self.curves[1], log_odds.neg_()).exp_().add_(beyond, alpha=self.slopes[1])
        return log_low, torch.minimum(log_high, -working_copy(log_p))

    def _read(self, curve: Tensor, log_odds: Tensor) -> Tensor:
        """Return log |log r| or log |log c| where a side of the coin falls."""
        signed = log_odds - self.edge
        distance = signed.abs()
        distance = distance.clamp(min=2.0**_FIRST_AT_EDGE) if self.saturates else distance.add_(1.0)
        # The leading bits of a float64 are its cell, and the float64 that has no others is the cell's start.
        bits, shift = distance.view(torch.int64), 52 - _BITS
        first = _FIRST_AT_EDGE if self.saturates else _FIRST_AT_BEND
        cell = (bits >> shift).sub_((1023 + first) << _BITS)
        cell = cell.add_((signed.view(torch.int64) >> 63).bitwise_and_(self.cells)).flatten()
        cell = cell.clamp(0, curve.shape[1] - 1)  # NaN has a cell, too
        x = (distance - (bits & -(1 << shift)).view(torch.float64)).flatten()
        value = curve[_DEGREE].index_select(0, cell)
        for power in range(_DEGREE - 1, -1, -1):
            value = value.mul_(x).add_(curve[power].index_select(0, cell))
        return value.view_as(log_odds)


def _nodes(count: int) -> Tensor:
    """Return Chebyshev points from 0 to 1, both ends among them: neighbours have no jumps between them."""
    return 0.5 - 0.5 * torch.cos(torch.linspace(0, math.pi, count, dtype=torch.float64))


def _weights(nodes: Tensor, at: Tensor) -> Tensor:
    """Return how much each node counts at each of some points: Lagrange's polynomials, (..., nodes)."""
    own = torch.eye(len(nodes), dtype=torch.bool)
    between = (nodes[:, None] - nodes).masked_fill(own, 1.0)
    return ((at[..., None, None] - nodes) / between).masked_fill(own, 1.0).prod(-1)


@cache
def _refinement(parts: int) -> Tensor:
    """Return what makes values at the nodes of a part the polynomials of its cells: (cells, powers, nodes)."""
    with made_to_last():
        cells, inner = 2**_BITS // parts, _nodes(_DEGREE + 1)
        at = (torch.arange(cells)[:, None] + inner) / cells
        return torch.linalg.inv(torch.vander(inner, increasing=True)) @ _weights(_nodes(_NODES), at)


class _Panel(NamedTuple):
    """Curves of some radii, between which those of others are interpolated."""

    log_radii: Tensor
    values: Tensor  # log |log r| and log |log c|: (radii, r and c, sides of the edge, parts, nodes)
    log_radii_of_edges: Tensor
    edges: Tensor

    def curve(self, radii: Tensor) -> Tensor:
        return torch.tensordot(_weights(self.log_radii, radii.log2()), self.values, 1)

    def edge(self, radii: Tensor) -> Tensor:
        return _weights(self.log_radii_of_edges, radii.log2()) @ self.edges


@lru_cache(maxsize=64)
def _panel(kind: Divergence, number: int) -> _Panel | None:
    """Solve a panel. It is None where it would not have the curves of the radii between."""
    radii, radii_of_edges = (torch.exp2((number + _nodes(count)) / _PANELS) for count in (_RADII, _NODES))
    return _solve_panel(kind, radii, radii_of_edges, _PARTS)


def _solve_panel(kind: Divergence, radii: Tensor, radii_of_edges: Tensor, parts: int) -> _Panel | None:
    """Return the curves of the radii, or None if they are not between the nodes what they are interpolated to be."""
    nodes = _nodes(_NODES)
    middle, between = 0.5 * (nodes[1:] + nodes[:-1]), (radii[:1] * radii[:2][-1:]).sqrt()
    values, _, _, _ = _curves(kind.generator, radii, parts, nodes)
    expected, edge, matters, rounding = _curves(kind.generator, between, parts, middle)
    panel = _Panel(radii.log2(), values, radii_of_edges.log2(), _edges(kind.generator, radii_of_edges)[0])
    error = (panel.curve(between) @ _weights(nodes, middle).T - expected).abs()
    fits = not bool((matters & ~(error <= _TOLERANCE + rounding)).any())
    return panel if fits and bool((panel.edge(between) - edge).abs() <= _ROUNDING * (1 + edge.abs())) else None


def _curves(generator: Generator, radii: Tensor, parts: int, at: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve some points of each part. Return curves, edges, which points matter, and what rounding may do to them."""
    edges, saturates = _edges(generator, radii)
    start, width = _cells(saturates, parts)
    distance = start[:, None] + width[:, None] * at
    signed = distance[None] if saturates else torch.stack([distance - 1, 1 - distance])
    log_odds = (edges[:, None, None, None] + signed).clamp(-350, 350)
    rest = -torch.nn.functional.softplus(log_odds, threshold=700)
    sides = torch.sigmoid(log_odds), torch.sigmoid(-log_odds), rest
    curve = torch.stack(fall(*sides, radii[:, None, None, None], generator), 1)
    matters = (log_odds.abs() < -LOG_P_MIN)[:, None] & (curve > _LOWEST)
    rounding = saturates * _ROUNDING * (1 + edges.abs().max()) / start[:, None]
    return torch.log(curve.abs()), edges, matters, rounding


def _cells(saturates: bool, parts: int) -> tuple[Tensor, Tensor]:
    """Return starts and widths of equal parts of the octaves of distance."""
    first = _FIRST_AT_EDGE if saturates else _FIRST_AT_BEND
    number = torch.arange((_END - first) * parts, dtype=torch.float64)
    octave = torch.exp2(number // parts + first)
    return octave * (1 + number % parts / parts), octave / parts


def _edges(generator: Generator, radii: Tensor) -> tuple[Tensor, bool]:
    """Return the log-odds up to which a side may fall to 0, and whether it may at all.

    That takes g = p f(0) + (1 - p) f(1 / (1 - p)), which rises with p. If f(0) is infinite, the log-odds are returned
    at which the curve bends, of p = delta / (1 + delta).
    """
    at_zero = generator(radii.new_full((), -torch.inf))
    if not at_zero < torch.inf:
        return -torch.log1p(1 / radii), False
    low, width = torch.full_like(radii, LOG_P_MIN), -2 * LOG_P_MIN
    for _ in range(6):
        log_odds = low[:, None] + width * torch.arange(1025) / 1024
        rest = torch.nn.functional.softplus(log_odds, threshold=700)  # log(1 / (1 - p))
        g = torch.sigmoid(log_odds) * at_zero + torch.exp(-rest) * generator(rest)
        low = low + width * ((g <= radii[:, None]).sum(-1) - 1).clamp(min=0) / 1024
        width /= 1024
    return torch.where(low < -LOG_P_MIN, low, 2 * low), True
