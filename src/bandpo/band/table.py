"""Tabulate the bounds of a divergence ball. The solver makes some thousand points, between which one interpolates.

Both bounds lie on one curve, by the symmetry of lem:complement_rescaling: as one side of a coin falls, the other rises.
Along the log-odds of that side log |log r| and log |log c| are smooth, but for the point where the curve reaches the
simplex's edge: there they are smooth in the logarithm of the distance. At equal distance they are smooth in the
logarithm of the radius, too. So seven radii of each octave are solved, and the curve of any other radius is a weighted
sum of theirs. A radius that moves costs little more than a fixed one, and its bounds do not depend on when it came.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import math
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics import LOG_P_MIN, clamp_log_p, outside_torch_modes, working_device
from .closed_forms import Interval, Radius
from .divergences import Divergence
from .solver import Generator, solve_lower

# Radii that are solved in each octave of radii, for the curves and for where they reach the edge; and nodes in each of
# the parts of an octave of distance.
_RADII, _RADII_OF_EDGES, _NODES, _PARTS = 7, 13, 11, 4
# A table has 256 cells an octave of distance, in each a polynomial of degree 3.
_BITS, _DEGREE = 8, 3
# The octaves. Distances from a point of saturation begin at 2^-30. Where there is none, nothing happens at a distance
# of 0, which is where the curve bends: there it counts from 1 on.
_FIRST_AT_EDGE, _FIRST_AT_BEND, _END = -30, 0, 10
# What interpolation may be off in log |log r|: half of float32's unit in the last place; and, by the rounding of
# log-odds in float64, more where the distance itself is nothing but their last digits.
_TOLERANCE, _ROUNDING = 2.0**-24, 2.0**-40
# Below this log r, float32 has no ratio. An own f(u) ends there, because no u is below e^-745: its curve has a kink.
_LOWEST = -150.0
# Beyond the edge r is 0: this is log |log r| there, whose exponential is infinite.
_GONE = 1000.0
# Where tokens have radii of their own, what these may span at most: an octave has some megabytes.
_OCTAVES = 12


def look_up(kind: Divergence, log_p: Tensor, delta: Radius) -> Interval | None:
    """Look up (log_low, log_high), as precise as float32, for log p in [-inf, 0]. log_high may be above -log p.

    The result is None where no table fits: f has kinks, or the radius is far from everyday ones. For a radius of each
    token this waits for the device.
    """
    if isinstance(delta, Tensor):
        try:
            return _look_up_each(kind, log_p, delta)
        except RuntimeError:  # of vmap: there is nothing to look at
            return None
    table = table_of(kind, delta, working_device(log_p))
    return None if table is None else table.look_up(log_p)


@lru_cache(maxsize=64)  # a table has half a megabyte
def table_of(kind: Divergence, delta: float, device: torch.device) -> BandTable | None:
    """Make the table of one radius, which counts as at least 1e-10 and at most 1e10."""
    log_radius = math.log2(min(max(delta, 1e-10), 1e10))
    octave = math.floor(log_radius)
    with outside_torch_modes():
        panel = _panel(kind, octave)
        if panel is None:
            return None
        curves = _between(panel.curves, log_radius - octave)
        edges = _between(panel.edges, log_radius - octave)
        return panel._replace(curves=curves[None].to(device), edges=edges.to(device))


def _look_up_each(kind: Divergence, log_p: Tensor, radii: Tensor) -> Interval | None:
    """Look up bounds of one radius for each token."""
    log_p, radii = torch.broadcast_tensors(log_p, radii)
    log_radii = radii.clamp(1e-10, 1e10).log2()
    whole = log_radii.floor()
    first, last = torch.stack(torch.aminmax(whole)).tolist() if whole.numel() else (0.0, 0.0)
    if not last - first < _OCTAVES:  # NaN, too
        return None
    table = _octaves(kind, int(first), int(last), radii.device)
    octave, place = (whole - first).long().flatten(), (2 * (log_radii - whole) - 1).flatten()
    return None if table is None else table.look_up(log_p, octave, place)


@lru_cache(maxsize=4)
def _octaves(kind: Divergence, first: int, last: int, device: torch.device) -> BandTable | None:
    """Make the table of some octaves of radii. It has polynomials of the place of a radius in its octave."""
    with outside_torch_modes():
        panels = [_panel(kind, octave) for octave in range(first, last + 1)]
        fitting = [panel for panel in panels if panel is not None]
        if len(fitting) < len(panels):
            return None
        curves = torch.cat([_powers(panel.curves) for panel in fitting], -1)
        edges = torch.stack([_powers(panel.edges) for panel in fitting], 1)
        return fitting[0]._replace(curves=curves.to(device), edges=edges.to(device))


class BandTable(NamedTuple):
    """Hold the polynomials of all cells. They are of one radius, of those solved in an octave, or of some octaves."""

    curves: Tensor  # (radii, or powers of their place; r and c; powers of the distance; cells)
    edges: Tensor
    saturates: bool
    cells: int  # on one side of the edge, of one octave of radii
    slopes: tuple[float, float]

    def look_up(
        self, log_p: Tensor, octave: Tensor | None = None, place: Tensor | float = 0.0
    ) -> Interval:
        """Return (log_low, log_high) in float64, for log p in [-inf, 0]. log_high may be above -log p.

        Where each token has a radius, they have an octave, and a place in it from -1 to 1.
        """
        within, beyond = clamp_log_p(log_p)
        log_odds = (within - torch.expm1(within).neg_().log_()).flatten()
        edge = self.edges if octave is None else _polynomial(self.edges, octave, place)
        low = self._read(0, log_odds - edge, octave, place).view_as(within)
        high = self._read(1, log_odds.neg_() - edge, octave, place).view_as(within)
        return low.exp_().neg_().add_(beyond, alpha=self.slopes[0]), high.exp_().add_(
            beyond, alpha=self.slopes[1]
        )

    def _read(self, which: int, signed: Tensor, octave: Tensor | None, place: Tensor | float) -> Tensor:
        """Return log |log r| or log |log c| at a signed distance from the edge."""
        distance, cells, first = signed.abs(), 2 * self.cells, _FIRST_AT_BEND
        if self.saturates:
            distance, cells, first = (
                distance.clamp(min=2.0**_FIRST_AT_EDGE),
                self.cells + 1,
                _FIRST_AT_EDGE,
            )
        else:
            distance = distance.add_(1.0)
        # The leading bits of a float64 are its cell, and the float64 that has no others is the cell's start.
        bits, shift = distance.view(torch.int64), 52 - _BITS
        cell = (bits >> shift).sub_((1023 + first) << _BITS)
        cell = cell.add_((signed.view(torch.int64) >> 63).bitwise_and_(self.cells))
        cell = cell.clamp(0, cells - 1)  # NaN has a cell, too
        if octave is not None:
            cell = cell.add_(octave, alpha=cells)
        x = distance - (bits & -(1 << shift)).view(torch.float64)
        value = _polynomial(self.curves[-1, which], cell, x)
        for power in range(len(self.curves) - 2, -1, -1):
            value = value.mul_(place).add_(_polynomial(self.curves[power, which], cell, x))
        return value


def _polynomial(powers: Tensor, cell: Tensor, x: Tensor | float) -> Tensor:
    """Return the value at x of each cell's polynomial."""
    value = powers[-1].index_select(0, cell)
    for power in range(len(powers) - 2, -1, -1):
        value = value.mul_(x).add_(powers[power].index_select(0, cell))
    return value


def _nodes(count: int) -> list[float]:
    """Return Chebyshev points from 0 to 1. Both ends are among them, so neighbours meet without a jump."""
    return [0.5 - 0.5 * math.cos(math.pi * i / (count - 1)) for i in range(count)]


def _weights(nodes: list[float], at: float) -> list[float]:
    """Return the weight of each node's value at some point (Lagrange)."""
    return [math.prod((at - y) / (x - y) for y in nodes if y != x) for x in nodes]


def _between(values: Tensor, at: float) -> Tensor:
    """Interpolate values at the nodes of an octave of radii."""
    return torch.tensordot(values.new_tensor(_weights(_nodes(len(values)), at)), values, 1)


def _powers(values: Tensor) -> Tensor:
    """Turn values at the nodes of an octave of radii into a polynomial. The place is from -1 to 1."""
    places = 2 * values.new_tensor(_nodes(len(values))) - 1
    return torch.tensordot(torch.linalg.vander(places).inverse(), values, 1)


@lru_cache(maxsize=24)  # a panel has some megabytes
def _panel(kind: Divergence, octave: int) -> BandTable | None:
    """Solve an octave of radii. It is None where interpolation between them, or between nodes, is off."""
    nodes, between = _nodes(_NODES), 0.5 * _nodes(_RADII)[1]
    middle = [0.5 * (x + y) for x, y in itertools.pairwise(nodes)]
    places = torch.tensor([*_nodes(_RADII), between, *_nodes(_RADII_OF_EDGES)], dtype=torch.float64)
    radii, solved, one = torch.exp2(octave + places), slice(_RADII), slice(_RADII, _RADII + 1)
    edges, saturates = _edges(kind.generator, radii)
    values, _ = _curves(kind.generator, radii[solved], edges[solved], saturates, nodes)
    expected, matters = _curves(kind.generator, radii[one], edges[one], saturates, middle)
    to_middle = values.new_tensor([_weights(nodes, x) for x in middle])
    error = (_between(values, between) @ to_middle.T - expected[0]).abs()
    off = _ROUNDING * (1 + edges[one].abs())
    start, width = _cells(saturates)
    fits = (error <= _TOLERANCE + saturates * off / start[:, None]) | ~matters[0]
    if not fits.all() or (_between(edges[_RADII + 1 :], between) - edges[one]).abs() > off:
        return None
    # From powers of the place in a cell, from 0 to 1, to powers of the distance from its start.
    scale = (2**_BITS // _PARTS / width) ** torch.arange(_DEGREE + 1)[:, None]
    curves = torch.einsum("krscn,fpn->krpscf", values, _refinement()) * scale[:, None, :, None]
    curves = torch.nn.functional.pad(curves.flatten(3), (0, int(saturates)))
    if saturates:
        curves[:, :, 0, -1] = _GONE
    return BandTable(curves, edges[_RADII + 1 :], saturates, len(start) * 2**_BITS // _PARTS, kind.slopes)


@cache
def _refinement() -> Tensor:
    """Return what makes polynomials of values at nodes. It is (cells of a part, powers, nodes)."""
    nodes, inner, cells = _nodes(_NODES), _nodes(_DEGREE + 1), 2**_BITS // _PARTS
    weights = [[_weights(nodes, (cell + x) / cells) for x in inner] for cell in range(cells)]
    return torch.linalg.vander(torch.tensor(inner, dtype=torch.float64)).inverse() @ torch.tensor(
        weights, dtype=torch.float64
    )


def _curves(
    generator: Generator, radii: Tensor, edges: Tensor, saturates: bool, at: list[float]
) -> tuple[Tensor, Tensor]:
    """Solve some points of each part. Return the curves, and which points matter."""
    start, width = _cells(saturates)
    distance = start[:, None] + width[:, None] * start.new_tensor(at)
    signed = distance[None] if saturates else torch.stack([distance - 1, 1 - distance])
    log_odds = (edges[:, None, None, None] + signed).clamp(-350, 350)
    rest = -torch.nn.functional.softplus(log_odds, threshold=700)
    sides = torch.sigmoid(log_odds), torch.sigmoid(-log_odds), rest
    curve = torch.stack(solve_lower(*sides, radii[:, None, None, None], generator), 1)
    return torch.log(curve.abs()), (log_odds.abs() < -LOG_P_MIN)[:, None] & (curve > _LOWEST)


def _cells(saturates: bool) -> tuple[Tensor, Tensor]:
    """Return starts and widths of equal parts of the octaves of distance."""
    first = _FIRST_AT_EDGE if saturates else _FIRST_AT_BEND
    number = torch.arange((_END - first) * _PARTS, dtype=torch.float64)
    octave = torch.exp2(number // _PARTS + first)
    return octave * (1 + number % _PARTS / _PARTS), octave / _PARTS


def _edges(generator: Generator, radii: Tensor) -> tuple[Tensor, bool]:
    """Return the log-odds up to which a side may fall to 0, and whether it may at all.

    That takes g = p f(0) + (1 - p) f(1 / (1 - p)), which rises with p. If f(0) is infinite, the log-odds are returned
    at which the curve bends, of p = delta / (1 + delta).
    """
    at_zero = generator(radii.new_full((), -torch.inf))
    if not at_zero < torch.inf:
        return -torch.log1p(1 / radii), False
    low, high = torch.full_like(radii, LOG_P_MIN), torch.full_like(radii, -LOG_P_MIN)
    for _ in range(60):
        log_odds = 0.5 * (low + high)
        rest = torch.nn.functional.softplus(log_odds, threshold=700)  # log(1 / (1 - p))
        falls = torch.sigmoid(log_odds) * at_zero + torch.exp(-rest) * generator(rest) <= radii
        low, high = torch.where(falls, log_odds, low), torch.where(falls, high, log_odds)
    return torch.where(low < -LOG_P_MIN, low, 2 * low), True
