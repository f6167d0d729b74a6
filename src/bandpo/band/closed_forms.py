"""Bounds that need no solver: those of TV and chi2 (prop:closedform), of Hellinger and of Neyman's chi2.

Each is `(log_p, delta) -> (log_low, log_high)` in float64, saturation included, in the form that does not cancel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..numerics import LOG_P_MIN, expm1, log1mexp, log_double, working_copy

Radius = float | Tensor
Interval = tuple[Tensor, Tensor]


def _odds(delta: Any) -> Any:
    return delta / (1 + delta)


def _log_odds(delta: Tensor) -> Tensor:
    return -torch.log1p(1 / delta)


def _twice_less_square(delta: Any) -> Any:
    return delta * (2 - delta)


def tv_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """Return r = 1 +- delta / p (eq:tv_bounds) within [0, 1/p] (eq:clamp_final_bounds)."""
    log_p = working_copy(log_p)
    log_delta, tail = log_double(delta)
    excess = log_p - log_delta - tail  # log(p / delta), exact to the last bit even where the lower bound saturates
    within = log_p.clamp(min=2 * LOG_P_MIN)
    s = delta * torch.exp(-within)  # delta / p, without the rounding of a sum of logarithms
    log_low = torch.where(s < 0.5, torch.log1p(-s.clamp(max=0.5)), log1mexp(-excess.clamp(min=0)))
    return log_low, torch.minimum(torch.log1p(s) - (log_p - within), -log_p)


def chi2_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """Return r = 1 +- s, s^2 = delta (1 - p) / p (eq:chi2_bounds), within [0, 1/p] (eq:clamp_final_bounds).

    The lower bound saturates at p* = delta / (1 + delta). Near it 1 - s cancels; with p = p* e^x, s^2 = 1 + (1 + delta)
    (e^-x - 1), so 1 - s = (1 + delta) (1 - e^-x) / (1 + s), where x is exact.
    """
    log_p = working_copy(log_p)
    within = log_p.clamp(min=2 * LOG_P_MIN)
    s = torch.sqrt(delta * -expm1(log_p)) * torch.exp(-0.5 * within)
    log_saturation, tail = log_double(delta, _odds, _log_odds)
    x = (log_p - log_saturation - tail).clamp(min=0)
    gap = (1 + delta) * -expm1(-x) / (1 + s)
    log_low = torch.where(s < 0.5, torch.log1p(-s.clamp(max=0.5)), torch.log(gap))
    return log_low, torch.minimum(torch.log1p(s) - 0.5 * (log_p - within), -log_p)


def hellinger_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """Return the ends of an arc of 2 arcsin sqrt(delta / 2) to each side, on the circle (sqrt q, sqrt(1 - q)).

    sqrt(r) = (1 - delta) +- s with s = sqrt(delta (2 - delta) (1 - p) / p); the lower end saturates at p* = delta (2 -
    delta), the upper one where sqrt(p) = 1 - delta. Near p* the difference cancels; with p = p* e^x it is
    (1 - e^-x) / (1 - delta + s).
    """
    log_p = working_copy(log_p)
    delta = delta.clamp(max=1.0) if isinstance(delta, Tensor) else min(delta, 1.0)
    log_saturation, tail = log_double(delta, _twice_less_square)
    delta = delta if isinstance(delta, Tensor) else log_p.new_full((), delta)
    s = torch.sqrt(delta * (2 - delta) * -expm1(log_p)) * torch.exp(-0.5 * log_p.clamp(min=2 * LOG_P_MIN))
    x = (log_p - log_saturation - tail).clamp(min=0)
    gap = torch.where(x == 0, 0.0, -expm1(-x) / (1 - delta + s))  # at p = 1 and delta = 1 it would be 0 / 0
    fall = delta + s
    log_low = 2 * torch.where(fall < 0.5, torch.log1p(-fall.clamp(max=0.5)), torch.log(gap))
    log_high = 2 * torch.log1p(s - delta) - (log_p - log_p.clamp(min=2 * LOG_P_MIN))
    return log_low, torch.where(0.5 * log_p >= torch.log1p(-delta), -log_p, torch.minimum(log_high, -log_p))


def neyman_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """Return Wilson's score interval: the roots of (q - p)^2 = delta q (1 - q), inside the simplex.

    With S = sqrt(delta^2 + 4 delta p (1 - p)), r_high - 1 = 2 delta (1 - p) / (S + delta (2 p - 1)) and 1 - r_low = 2
    delta (1 - p) / (S - delta (2 p - 1)), each written without its cancellation; r_low r_high (1 + delta) = 1.
    """
    log_p = working_copy(log_p)
    beyond = log_p.clamp(max=LOG_P_MIN) - LOG_P_MIN
    log_p = log_p.clamp(min=LOG_P_MIN)
    delta = delta if isinstance(delta, Tensor) else log_p.new_full((), delta)
    p, rest = torch.exp(log_p), -expm1(log_p)
    root, lean = torch.sqrt(4 * p * rest / delta + 1), rest - p  # S / delta, 1 - 2 p
    wide, narrow = root + lean.abs(), 2 * rest
    # S - |lean| = 4 p (1 - p) (1 + 1/delta) / (S + |lean|), all over delta
    other = 4 * p * rest * (1 + 1 / delta) / wide
    common = p > rest
    log_high = torch.log1p(narrow / torch.where(common, wide, other))
    fall = narrow / torch.where(common, other, wide)
    log_low = torch.where(fall < 0.5, torch.log1p(-fall.clamp(max=0.5)), -torch.log1p(delta) - log_high)
    return log_low + beyond, torch.minimum(log_high, -log_p) - beyond
