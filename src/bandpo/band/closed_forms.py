"""Compute bounds that need no solver. TV and chi2 have them in the paper (prop:closedform); Hellinger's are added here.

Each is `(log_p, delta) -> (log_low, log_high)` in float64, saturation included, in the form that does not cancel.
"""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..numerics import LOG_P_MIN, expm1, log1mexp, working_copy

Radius = float | Tensor
Interval = tuple[Tensor, Tensor]

# At and below p* the lower bound is 0 (prop:saturation): p* of a radius, and log p* of one that is a tensor.
_TV: Any = (lambda d: d, torch.log)
_CHI2: Any = (lambda d: d / (1 + d), lambda d: -torch.log1p(1 / d))
_HELLINGER: Any = (lambda d: d * (2 - d), lambda d: torch.log(d * (2 - d)))


def _above(
    log_p: Tensor, delta: Radius, point: Callable[[Any], Any], log_point: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return log(p / p*), at least 0 and exact to the last bit.

    At 1 ulp from p* it is as small as the rounding error of log p*, which is therefore a sum of two numbers. For a
    tensor (every radius is one inside a compiled graph) it is one: the result is exact for a delta within one ulp.
    """
    head, tail = (log_point(delta), 0.0) if isinstance(delta, Tensor) else _log_double(delta, point)
    return (log_p - head - tail).clamp(min=0)


@lru_cache(maxsize=256)
def _log_double(delta: float, point: Callable[[Any], Any]) -> tuple[float, float]:
    with localcontext() as context:
        context.prec = 50
        exact = point(Decimal(delta)).ln()
        return float(exact), float(exact - Decimal(float(exact)))


def tv_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """Return r = 1 +- delta / p within [0, 1/p] (eq:tv_bounds, eq:clamp_final_bounds)."""
    log_p = working_copy(log_p)
    within = log_p.clamp(min=2 * LOG_P_MIN)
    s = delta * torch.exp(-within)  # delta / p, without the rounding of a sum of logarithms
    gap = log1mexp(-_above(log_p, delta, *_TV))
    log_low = torch.where(s < 0.5, torch.log1p(-s.clamp(max=0.5)), gap)
    return log_low, torch.minimum(torch.log1p(s) - (log_p - within), -log_p)


def chi2_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """Return r = 1 +- s, s^2 = delta (1 - p) / p, within [0, 1/p] (eq:chi2_bounds).

    The lower bound saturates at p* = delta / (1 + delta). Near it 1 - s cancels; with p = p* e^x, s^2 = 1 + (1 + delta)
    (e^-x - 1), so 1 - s = (1 + delta) (1 - e^-x) / (1 + s), where x is exact.
    """
    log_p = working_copy(log_p)
    within = log_p.clamp(min=2 * LOG_P_MIN)
    s = torch.sqrt(delta * -expm1(log_p)) * torch.exp(-0.5 * within)
    gap = (1 + delta) * -expm1(-_above(log_p, delta, *_CHI2)) / (1 + s)
    log_low = torch.where(s < 0.5, torch.log1p(-s.clamp(max=0.5)), torch.log(gap))
    return log_low, torch.minimum(torch.log1p(s) - 0.5 * (log_p - within), -log_p)


def hellinger_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """Return the ends of an arc on the circle (sqrt q, sqrt(1 - q)). It has 2 arcsin sqrt(delta / 2) to each side.

    sqrt(r) = (1 - delta) +- s with s = sqrt(delta (2 - delta) (1 - p) / p); the lower end saturates at p* = delta (2 -
    delta), the upper one where sqrt(p) = 1 - delta. Near p* the difference cancels; with p = p* e^x it is
    (1 - e^-x) / (1 - delta + s).
    """
    log_p = working_copy(log_p)
    delta = delta.clamp(max=1.0) if isinstance(delta, Tensor) else min(delta, 1.0)
    x = _above(log_p, delta, *_HELLINGER)
    delta = delta if isinstance(delta, Tensor) else log_p.new_full((), delta)
    within = log_p.clamp(min=2 * LOG_P_MIN)
    s = torch.sqrt(delta * (2 - delta) * -expm1(log_p)) * torch.exp(-0.5 * within)
    # At p = 1 and delta = 1 it would be 0 / 0.
    gap = torch.where(x == 0, 0.0, -expm1(-x) / (1 - delta + s))
    fall = delta + s
    log_low = 2 * torch.where(fall < 0.5, torch.log1p(-fall.clamp(max=0.5)), torch.log(gap))
    log_high = 2 * torch.log1p(s - delta) - (log_p - within)
    return log_low, torch.where(
        0.5 * log_p >= torch.log1p(-delta), -log_p, torch.minimum(log_high, -log_p)
    )
