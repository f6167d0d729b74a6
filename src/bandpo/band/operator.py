"""Compute the Band operator. It projects an f-divergence ball around the old policy to an interval of each token's
log-ratio.
"""

# pyright: reportUnnecessaryIsInstance=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from ..bounds import Bounds
from ..numerics import (
    check_old_logps,
    clamp_log_p,
    expm1,
    holds_somewhere,
    is_number,
    is_traced,
    local,
    log1mexp,
    output_dtype,
    working_copy,
)
from .closed_forms import Interval, Radius
from .divergences import Divergence
from .divergences import divergence as lookup
from .solver import MOST, MOST_OF_U, tilt_log_bounds
from .table import look_up


def divergence_at(log_ratio: Tensor, old_logps: Tensor, divergence: str | Divergence = "kl") -> Tensor:
    """Return g_f(p, r) = p f(r) + (1 - p) f(c), the least cost of a move to r p. The source is thm:scalar_reduction.

    >>> import torch, bandpo.band
    >>> log_p, log_ratio = torch.tensor([0.08, 0.08]).log(), torch.tensor([2.0, 3.0]).log()
    >>> bandpo.band.divergence_at(log_ratio, log_p, "kl")        # from 0.08 to 0.16 is inside of 0.05, to 0.24 is not
    tensor([0.0282, 0.0879])

    c = (1 - r p) / (1 - p) is the ratio of all other tokens: of all policies that give this token r p, the one that
    rescales the others by one factor is closest to the old policy, in every f-divergence (lem:complement_rescaling).
    g_f is the f-divergence between the coins (r p, 1 - r p) and (p, 1 - p): convex in r, 0 at r = 1
    (lem:gf_monotone_intervals), inf for r p > 1; at another r it rises with p (eq:bregman_identity). The token is
    inside the band of radius delta exactly if g_f <= delta: no equation has to be solved to know it.

    Args:
        log_ratio: log r, any shape, any float dtype; computed in float64, returned in at least float32.
        old_logps: log p in [-inf, 1e-6], same shape.
        divergence: a registered name or a `Divergence`.
    """
    log_p, beyond = clamp_log_p(old_logps)
    # Below e^-300 what counts is the new probability: keep r p, not r.
    moved, generator = working_copy(log_ratio) + beyond, lookup(divergence).generator
    outside = moved + log_p > 0
    moved = torch.where(outside, 0.0, moved)
    log_c = log1mexp(moved + log_p) - log1mexp(log_p)
    g = torch.where(outside, torch.inf, log_p.exp() * generator(moved) - expm1(log_p) * generator(log_c))
    return g.to(log_ratio.device, output_dtype(log_ratio))


@torch.no_grad()
def band_bounds(
    old_logps: Tensor,
    divergence: str | Divergence = "kl",
    delta: Radius = 0.05,
    *,
    delta_low: Radius | None = None,
    delta_high: Radius | None = None,
) -> Bounds:
    """Solve g_f(p, r) = delta for both roots r. Without a root the bound is the simplex limit 0 or 1/p
    (prop:saturation).

    TV, chi2 and Hellinger have closed forms (prop:closedform). KL is solved as an exponential tilt, any other f by a
    bracketed solver (thm:bisection_global). Float32 bounds that have no closed form are looked up: of an octave of
    radii, such as 1/32 to 1/16, seven are solved when the first is used, for some 10,000 tokens in all, and all others
    are interpolated. So a radius that moves costs little more than a fixed one, and its bounds are the same to the last
    bit whatever radii came before. Where one solves, radii count as 1e-10 to 1e10.

    Always log_high <= max(-log p, 0). Both ratios move towards 1 as p rises (prop:monotonicity). For p -> 0, r_high p
    tends to the root of q C + f(1 - q) = delta with C = lim f(u) / u (prop:limits): 1 - e^-delta for KL, 0 if C is
    infinite, as for chi2. At log p = 0 the other tokens together count as e^-300.

    Args:
        old_logps: log p of the sampled tokens under the old policy, any shape, in [-inf, 1e-6].
        divergence: a registered name or a `Divergence`.
        delta: the radius, a positive finite float, or a tensor that broadcasts against `old_logps`.
        delta_low: another radius for the lower bound.
        delta_high: another radius for the upper bound.

    Returns:
        Bounds of the log-ratio, detached, computed in float64 and returned in at least float32. Both have the shape
        that `old_logps` and all radii broadcast to.

    Raises:
        TypeError: old_logps is not a tensor.
        ValueError: old_logps is not floating point, or above 1e-6 (NaN gives NaN); a radius is not positive, or of
            another shape; the divergence is unknown. A compiled graph looks at no numbers.

    The paper's tail token, p = 0.08 (sec:bottlenecks): a fixed clip of 0.2 lets it grow by 0.016, the band of radius
    0.05 by 0.113.

    >>> import torch, bandpo
    >>> log_p = torch.tensor([0.08]).log()
    >>> clip, band = bandpo.Clip(0.2, 0.2).bounds(log_p), bandpo.band_bounds(log_p, "kl", delta=0.05)
    >>> [f"{bounds.variation(log_p).high.item():.3f}" for bounds in (clip, band)]
    ['0.016', '0.113']
    >>> f"{band.log_low.exp().item():.3f} {band.log_high.exp().item():.3f}"
    '0.262 2.411'
    """
    # A DTensor: no token needs others, so each process has the bounds of its own.
    if hasattr(old_logps, "to_local"):
        radii = {"delta": local(delta), "delta_low": local(delta_low), "delta_high": local(delta_high)}
        own, whole = band_bounds(local(old_logps), divergence, **radii), cast(Any, old_logps)
        layout = {"shape": whole.shape, "stride": whole.stride()}
        return Bounds(
            *(
                whole.from_local(x, whole.device_mesh, whole.placements, **layout)
                for x in (own.log_low, own.log_high)
            )
        )
    check_old_logps(old_logps)
    dtype, device, kind = output_dtype(old_logps), old_logps.device, lookup(divergence)
    both = _radius("delta", delta, old_logps)
    low = both if delta_low is None else _radius("delta_low", delta_low, old_logps)
    high = both if delta_high is None else _radius("delta_high", delta_high, old_logps)
    log_p = old_logps.to(dtype).clamp(max=0)
    log_low, log_high = log_bounds(kind, log_p, low)
    if high is not low:
        log_low, log_high = torch.broadcast_tensors(log_low, log_bounds(kind, log_p, high)[1])
    log_low, log_high = log_low.to(device, dtype).clamp(max=0), log_high.to(device, dtype).clamp(min=0)
    return Bounds(log_low, torch.minimum(log_high, -log_p))


def log_bounds(kind: Divergence, log_p: Tensor, delta: Radius) -> Interval:
    """Return (log_low, log_high) of a divergence ball, saturation included. log p is in [-inf, 0], 0 < delta < inf.

    A closed form is used where there is one. Float32 is looked up, but for KL with a radius in a tensor and in graphs:
    they have its solver. In a compiled graph all else is one opaque operator, of which the compiler sees no loops.
    """
    has_form = kind.log_bounds is not None and (isinstance(delta, Tensor) or not kind.iterates)
    looks_up = log_p.dtype == torch.float32 and not (has_form or kind.kinks or is_traced(log_p))
    bounds = look_up(kind, log_p, delta) if looks_up else None
    if bounds is not None:
        return bounds
    if kind.log_bounds is not None:
        return kind.log_bounds(log_p, delta)
    if is_traced(log_p):
        return _solve(log_p, torch.as_tensor(delta, dtype=torch.float64), kind.to_config())
    # What no table fits may have kinks that nobody declared.
    smooth, max_tilt = not (kind.kinks or looks_up), MOST if kind.log_f else MOST_OF_U
    return tilt_log_bounds(log_p, delta, kind.generator, kind.slopes, smooth, max_tilt)


@torch.library.custom_op("bandpo::solve", mutates_args=())
def _solve(log_p: Tensor, delta: Tensor, name: str) -> tuple[Tensor, Tensor]:
    # A radius on the CPU can be read without waiting for a device.
    radius = float(delta) if delta.dim() == 0 and delta.device.type == "cpu" else delta
    log_low, log_high = log_bounds(lookup(name), log_p, radius)
    return log_low.contiguous(), log_high.contiguous()


@_solve.register_fake
def _(log_p: Tensor, delta: Tensor, name: str) -> tuple[Tensor, Tensor]:
    shape = torch.broadcast_shapes(log_p.shape, delta.shape)
    return log_p.new_empty(shape, dtype=torch.float64), log_p.new_empty(shape, dtype=torch.float64)


def _radius(name: str, delta: Radius, like: Tensor) -> Radius:
    """Return a positive float, or a tensor in float64. Raises ValueError for anything else."""
    if isinstance(delta, Tensor):
        try:
            torch.broadcast_shapes(delta.shape, like.shape)
        except RuntimeError:
            fits = f"broadcasts to old_logps, {tuple(like.shape)}"
            raise ValueError(
                f"{name} must be a number, or a tensor that {fits}, got {tuple(delta.shape)}"
            ) from None
        if holds_somewhere(~((delta > 0) & (delta < math.inf))):
            lowest, highest = float(delta.min()), float(delta.max())
            raise ValueError(
                f"{name} must be positive and finite everywhere, got values from {lowest} to {highest}"
            )
        return working_copy(delta.to(like.device))
    if not is_number(delta) or not 0 < delta < math.inf:
        raise ValueError(f"{name} must be a positive finite number or tensor, got {delta!r}")
    # In a compiled graph an operation with a float is one of the few that do not make a constant of it, and so a new
    # graph for each new radius. It is on the CPU, where `_solve` can read it.
    if torch.compiler.is_compiling():
        return torch.zeros((), dtype=torch.float64, device="cpu") + delta
    return float(delta)
