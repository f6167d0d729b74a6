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

from ..bounds import Bounds
from ..numerics import LOG_P_MIN, is_number, made_to_last, solved_part
from .closed_forms import Interval
from .divergences import Divergence
from .divergences import divergence as lookup
from .solver import Generator, fall

# Radii that are solved in each octave of radii, for the curves and for where they reach the edge; and nodes in each
# quarter of an octave of distance. Where these are not enough, one radius is solved, at the nodes of each sixteenth.
_RADII, _RADII_OF_EDGES, _NODES = 7, 13, 11
_PARTS, _PARTS_OF_ONE = 4, 16
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
# Where tokens have radii of their own, what these may span at most: an octave has some megabytes.
_OCTAVES = 12


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

    def __init__(
        self, divergence: str | Divergence, delta: float, device: torch.device | str = "cpu"
    ) -> None:
        if not is_number(delta) or not delta > 0:
            raise ValueError(f"delta must be a positive number, got {delta!r}")
        self.divergence, self.delta = lookup(divergence), min(max(float(delta), 1e-10), 1e10)
        with made_to_last():
            self._make(torch.device(device))

    def _make(self, device: torch.device) -> None:
        at = math.log2(self.delta)
        parts, panel = _PARTS, _panel(self.divergence, math.floor(at))
        if panel is None:  # the radii of the octave do not say what is between them
            parts, panel = _PARTS_OF_ONE, _solve_panel(self.divergence, [at], [at], _PARTS_OF_ONE)
        self.fits = panel is not None
        if panel is not None:
            self._edge = panel.edge(at)
            self._table = _table(panel.curve(at)[None], parts, self.divergence, device)

    def bounds(self, old_logps: Tensor) -> Bounds:
        """Return the bounds of the log-ratio, in float32. Raises ValueError if the table does not fit.

        `old_logps` is log p of the sampled tokens, any shape, in [-inf, 1e-6], on the table's device.
        """
        if not self.fits:
            raise ValueError(
                f"{self.divergence.name!r} has kinks, no table of radius {self.delta:g} fits it"
            )
        log_p = old_logps.detach().clamp(max=0)
        log_low, log_high = self.look_up(log_p)
        return Bounds(
            log_low.clamp(max=0).float(), torch.minimum(log_high.clamp(min=0).float(), -log_p.float())
        )

    def look_up(self, log_p: Tensor) -> Interval:
        """Return (log_low, log_high) in float64, for log p in [-inf, 0]. log_high may be above -log p."""
        return self._table.look_up(log_p, self._edge)


def look_up_each(kind: Divergence, log_p: Tensor, radii: Tensor) -> Interval | None:
    """Look up bounds of one radius for each token. None where there is no table of all. It waits for the device."""
    log_p, radii = torch.broadcast_tensors(log_p, radii)
    octave = radii.clamp(1e-10, 1e10).log2()
    whole = octave.floor()
    first, last = torch.stack(torch.aminmax(whole)).tolist() if whole.numel() else (0.0, 0.0)
    if not last - first < _OCTAVES:  # NaN, too
        return None
    tables = _octaves(kind, int(first), int(last), radii.device)
    if tables is None:
        return None
    table, edges = tables
    number, place = (whole - first).long().flatten(), (2 * (octave - whole) - 1).flatten()
    return table.look_up(log_p, _polynomial(edges, number, place), number, place)


@lru_cache(maxsize=4)
def _octaves(
    kind: Divergence, first: int, last: int, device: torch.device
) -> tuple[_Table, Tensor] | None:
    """Return the table of some octaves of radii, and the polynomials of their edges."""
    with made_to_last():
        panels: list[_Panel] = []
        for octave in range(first, last + 1):
            panel = _panel(kind, octave)
            if panel is None:
                return None
            panels.append(panel)
        places = (
            2 * torch.tensor(_nodes(count), dtype=torch.float64) - 1
            for count in (_RADII, _RADII_OF_EDGES)
        )
        powers, powers_of_edges = (torch.linalg.vander(place).inverse() for place in places)
        tables = [_table(torch.tensordot(powers, x.values, 1), _PARTS, kind, device) for x in panels]
        edges = torch.stack([powers_of_edges @ x.values.new_tensor(x.edges) for x in panels], 1)
        return tables[0]._replace(curves=torch.cat([x.curves for x in tables], -1)), edges.to(device)


class _Table(NamedTuple):
    """Hold the polynomials of all cells."""

    curves: Tensor  # (r and c, powers of the radius, powers of the distance, cells)
    saturates: bool
    cells: int  # on one side of the edge, of one octave of radii
    slopes: tuple[float, float]

    def look_up(
        self,
        log_p: Tensor,
        edge: float | Tensor,
        octave: Tensor | None = None,
        place: Tensor | None = None,
    ) -> Interval:
        """Return (log_low, log_high) in float64, for log p in [-inf, 0]. log_high may be above -log p.

        Where each token has a radius, they have an octave, and a place in it from -1 to 1.
        """
        within, beyond = solved_part(log_p)
        log_odds = (within - torch.expm1(within).neg_().log_()).flatten()
        low = self._read(0, log_odds - edge, octave, place).view_as(within)
        high = self._read(1, log_odds.neg_() - edge, octave, place).view_as(within)
        return low.exp_().neg_().add_(beyond, alpha=self.slopes[0]), high.exp_().add_(
            beyond, alpha=self.slopes[1]
        )

    def _read(self, which: int, signed: Tensor, octave: Tensor | None, place: Tensor | None) -> Tensor:
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
        value = _polynomial(self.curves[which, -1], cell, x)
        if place is not None:
            for power in range(_RADII - 2, -1, -1):
                value = value.mul_(place).add_(_polynomial(self.curves[which, power], cell, x))
        return value


def _table(values: Tensor, parts: int, kind: Divergence, device: torch.device) -> _Table:
    """Turn values at nodes into polynomials. They are (powers of the radius, r and c, sides, parts, nodes)."""
    saturates = values.shape[2] == 1
    # From powers of the place in a cell, from 0 to 1, to powers of the distance from its start.
    scale = (2**_BITS // parts / _cells(saturates, parts)[1]) ** torch.arange(_DEGREE + 1)[:, None]
    table = torch.einsum("krscn,fpn->rkpscf", values, _refinement(parts)) * scale[:, None, :, None]
    table = table.flatten(3)
    if saturates:  # one cell more: beyond the edge r is 0 and q is 0
        table = torch.nn.functional.pad(table, (0, 1))
        table[:, 0, 0, -1] = torch.inf
    cells = values.shape[3] * 2**_BITS // parts
    return _Table(table.to(device), saturates, cells, kind.slopes)


def _polynomial(powers: Tensor, cell: Tensor, x: Tensor) -> Tensor:
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


@cache
def _refinement(parts: int) -> Tensor:
    """Return what makes polynomials of values at nodes. It is (cells of a part, powers, nodes)."""
    with made_to_last():
        nodes, inner, cells = _nodes(_NODES), _nodes(_DEGREE + 1), 2**_BITS // parts
        weights = [[_weights(nodes, (cell + x) / cells) for x in inner] for cell in range(cells)]
        return torch.linalg.vander(torch.tensor(inner, dtype=torch.float64)).inverse() @ torch.tensor(
            weights, dtype=torch.float64
        )


class _Panel(NamedTuple):
    """Hold the curves of some radii, between which those of others are interpolated."""

    log_radii: list[float]
    values: Tensor  # log |log r| and log |log c|: (radii, r and c, sides of the edge, parts, nodes)
    log_radii_of_edges: list[float]
    edges: list[float]

    def curve(self, log_radius: float) -> Tensor:
        weights = self.values.new_tensor(_weights(self.log_radii, log_radius))
        return (weights @ self.values.flatten(1)).view(self.values.shape[1:])

    def edge(self, log_radius: float) -> float:
        weights = _weights(self.log_radii_of_edges, log_radius)
        return sum(weight * edge for weight, edge in zip(weights, self.edges, strict=True))


@lru_cache(maxsize=64)
def _panel(kind: Divergence, octave: int) -> _Panel | None:
    """Solve an octave of radii. It is None where these do not say what is between them."""
    radii, radii_of_edges = ([octave + x for x in _nodes(count)] for count in (_RADII, _RADII_OF_EDGES))
    return _solve_panel(kind, radii, radii_of_edges, _PARTS)


def _solve_panel(
    kind: Divergence, log_radii: list[float], log_radii_of_edges: list[float], parts: int
) -> _Panel | None:
    """Solve some radii. It is None if interpolation between them, or between nodes, is off."""
    nodes, between = _nodes(_NODES), 0.5 * (log_radii[0] + log_radii[:2][-1])
    middle = [0.5 * (x + y) for x, y in itertools.pairwise(nodes)]
    radii = torch.exp2(torch.tensor([*log_radii, between, *log_radii_of_edges], dtype=torch.float64))
    edges, saturates = _edges(kind.generator, radii)
    n = len(log_radii)
    values, _ = _curves(kind.generator, radii[:n], edges[:n], saturates, parts, nodes)
    expected, matters = _curves(
        kind.generator, radii[n : n + 1], edges[n : n + 1], saturates, parts, middle
    )
    panel = _Panel(log_radii, values, log_radii_of_edges, edges[n + 1 :].tolist())
    to_middle = values.new_tensor([_weights(nodes, x) for x in middle])
    error, edge = (panel.curve(between) @ to_middle.T - expected[0]).abs(), float(edges[n])
    off, (start, _) = _ROUNDING * (1 + abs(edge)), _cells(saturates, parts)
    fits = (error <= _TOLERANCE + saturates * off / start[:, None]) | ~matters[0]
    return panel if bool(fits.all()) and abs(panel.edge(between) - edge) <= off else None


def _curves(
    generator: Generator, radii: Tensor, edges: Tensor, saturates: bool, parts: int, at: list[float]
) -> tuple[Tensor, Tensor]:
    """Solve some points of each part. Return the curves, and which points matter."""
    start, width = _cells(saturates, parts)
    distance = start[:, None] + width[:, None] * start.new_tensor(at)
    signed = distance[None] if saturates else torch.stack([distance - 1, 1 - distance])
    log_odds = (edges[:, None, None, None] + signed).clamp(-350, 350)
    rest = -torch.nn.functional.softplus(log_odds, threshold=700)
    sides = torch.sigmoid(log_odds), torch.sigmoid(-log_odds), rest
    curve = torch.stack(fall(*sides, radii[:, None, None, None], generator), 1)
    return torch.log(curve.abs()), (log_odds.abs() < -LOG_P_MIN)[:, None] & (curve > _LOWEST)


@cache
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
