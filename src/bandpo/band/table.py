"""Tabulate the bounds of a divergence ball of one radius. The solver makes some thousand points, which are looked up.

Both bounds lie on one curve, by the symmetry of lem:complement_rescaling (`falling_curve`). Along it log |log r| and
log |log c| are smooth functions of the log-odds, but for the point where the curve reaches the simplex's edge. So the
cells of the table are equal parts of the octaves of the distance from there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..bounds import Bounds
from ..numerics import LOG_P_MIN, clamp_log_p, expm1, is_number, outside_torch_modes, working_copy
from .closed_forms import Interval
from .divergences import Divergence
from .divergences import divergence as lookup
from .solver import Generator, solve_lower

# In each octave 32 cells, in each cell a polynomial of degree 6.
_BITS, _DEGREE = 5, 6
# Octaves of the distance: from a point of saturation or, where there is none, from p = delta, where the curve bends.
_FIRST_AT_EDGE, _FIRST_AT_BEND, _END = -30, -3, 10
# What the polynomials may be off between their nodes, in log |log r|: half of float32's unit in the last place; and, by
# the rounding of log-odds in float64, more where the distance itself is nothing but their last digits.
_TOLERANCE, _ROUNDING = 2.0**-24, 2.0**-40
# Below this log r, float32 has no ratio. An own f(u) ends there, because no u is below e^-745: its curve has a kink.
_LOWEST = -150.0


class BandTable:
    """Look up the bounds of one divergence and radius in constant time. They are as precise as float32.

    `band_bounds` does so by itself for float32 log-probabilities where a divergence has neither a formula nor its own
    solver. A table of KL, or of one with a formula, is for those who want a lookup.

    Args:
        divergence: a registered name or a `Divergence`.
        delta: the radius; it counts as at least 1e-10 and at most 1e10.
        device: where log-probabilities will be looked up.

    Attributes:
        fits: False if the curve between the nodes is not that of the polynomials, because f has kinks. The table is of
            no use then.

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
        with outside_torch_modes():
            self._make(torch.device(device))

    def _make(self, device: torch.device) -> None:
        generator, delta = self.divergence.generator, self.delta
        edge = _saturation(generator, delta)
        saturates = edge > -math.inf
        self.slopes = self.divergence.slopes
        self.edge = min(edge, 1e3) if saturates else math.log(min(delta, 1.0))
        self.first = _FIRST_AT_EDGE if saturates else _FIRST_AT_BEND
        self.least, self.cells = 2.0**self.first if saturates else 0.0, (_END - self.first) << _BITS
        number = torch.arange(self.cells + 1, dtype=torch.float64)
        ends = torch.exp2(number // 2**_BITS + self.first) * (1 + number % 2**_BITS / 2**_BITS)
        start, width = ends[:-1], ends.diff()

        # Chebyshev points with both ends, so that the bounds have no jumps. Between them the fit is checked.
        nodes = 0.5 - 0.5 * torch.cos(torch.linspace(0, math.pi, _DEGREE + 1, dtype=torch.float64))
        points = torch.cat([nodes, 0.5 * (nodes[1:] + nodes[:-1])])
        distance = start[:, None] + width[:, None] * points
        if not saturates:  # nothing happens at distance 0: the first cell begins there
            distance[0] = (start[0] + width[0]) * points
        log_odds = self.edge + torch.stack([distance] if saturates else [distance, -distance])
        log_odds = log_odds.clamp(-350, 350)
        sides = (
            torch.sigmoid(log_odds),
            torch.sigmoid(-log_odds),
            -torch.nn.functional.softplus(log_odds, threshold=700),
        )
        curve = torch.stack(solve_lower(*sides, torch.tensor(delta, dtype=torch.float64), generator))
        value = torch.log(curve.abs())  # (r and c, sides of the edge, cells, points)
        powers = _offset(distance, start[:, None])[..., None] ** torch.arange(_DEGREE + 1)
        at_nodes, between = value[..., : _DEGREE + 1], value[..., _DEGREE + 1 :]
        table = torch.inverse(powers[:, : _DEGREE + 1]) @ at_nodes[..., None]
        error = ((powers[:, _DEGREE + 1 :] @ table)[..., 0] - between).abs()
        used = (log_odds[..., :1].abs() < -LOG_P_MIN) & (curve[..., _DEGREE + 1 :] > _LOWEST)
        allowed = _TOLERANCE + saturates * _ROUNDING * (1 + abs(self.edge)) / start[:, None]
        self.fits = not bool((used & ~(error <= allowed)).any())
        table = table[..., 0]
        if saturates:  # beyond the edge r is 0 and q is 0
            table = torch.cat([table, torch.zeros_like(table)], 1)
            table[:, 1, :, 0] = torch.inf
        self.curves = table.flatten(1, 2).transpose(1, 2).contiguous().to(device)  # (r and c, powers, cells)

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
        within, beyond = clamp_log_p(log_p)
        log_odds = within - torch.log(-expm1(within))
        log_low = torch.exp(self._read(self.curves[0], log_odds)).neg_().add_(self.slopes[0] * beyond)
        log_high = torch.exp(self._read(self.curves[1], -log_odds)).add_(self.slopes[1] * beyond)
        return log_low, torch.minimum(log_high, -working_copy(log_p))

    def _read(self, curve: Tensor, log_odds: Tensor) -> Tensor:
        """Return log |log r| or log |log c| where a side of the coin falls."""
        signed = log_odds - self.edge
        distance = signed.abs().clamp_(min=self.least)
        # The leading bits of a float32 are its cell and its start; beyond the ends it is the first or last cell.
        shift = 23 - _BITS
        leading = distance.float().view(torch.int32) >> shift
        last = 2.0**_END - 2.0 ** (_END - 1 - _BITS)
        start = (leading << shift).view(torch.float32).clamp_(2.0**self.first, last).double()
        cell = leading.sub_((127 + self.first) << _BITS).clamp_(0, self.cells - 1)
        cell = cell.add_(signed < 0, alpha=self.cells).flatten()
        x = _offset(distance, start).flatten()
        value = curve[_DEGREE].index_select(0, cell)
        for power in range(_DEGREE - 1, -1, -1):
            value = value.mul_(x).add_(curve[power].index_select(0, cell))
        return value.view_as(log_odds)


def _offset(distance: Tensor, start: Tensor) -> Tensor:
    """Return where in its cell a distance is, from 0 to at most 1."""
    return (distance - start) / start * 2**_BITS


def _saturation(generator: Generator, delta: float) -> float:
    """Return the log-odds up to which a side may fall to 0. It is -inf if that takes more than delta for all of them.

    It takes g = p f(0) + (1 - p) f(1 / (1 - p)), which rises with p.
    """
    low, high = torch.tensor([LOG_P_MIN, -LOG_P_MIN], dtype=torch.float64)
    for _ in range(60):
        middle = 0.5 * (low + high)
        rest = torch.nn.functional.softplus(middle, threshold=700)  # log(1 / (1 - p))
        g = torch.sigmoid(middle) * generator(torch.full_like(middle, -torch.inf)) + torch.exp(-rest) * generator(rest)
        low, high = (middle, high) if g <= delta else (low, middle)
    if high == -LOG_P_MIN:
        return math.inf
    return float(low) if low > LOG_P_MIN else -math.inf
