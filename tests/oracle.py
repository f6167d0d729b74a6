"""The bounds of the paper at 60 digits, by mpmath, and by plain bisection, for the tests to compare with.

Shares no code and no method with `src`: TV and chi2 by the closed forms of prop:closedform, KL by Newton's method on
the binding equation itself.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from mpmath import mp, mpf
from torch import Tensor

mp.dps = 60


class Exact(NamedTuple):
    """log r_low, log r_high, and log(1 - q_high): what the upper bound leaves to all other tokens."""

    log_low: mpf
    log_high: mpf
    log_rest: mpf


def exact_bounds(divergence: str, log_p: float, delta: float) -> Exact:
    """Both bounds of the token of exactly this log p, at exactly this radius; from log p = 0 on, the limits p -> 1."""
    log_p, delta = mpf(log_p), mpf(delta)
    if log_p >= 0:
        log_low = {"kl": -delta, "tv": _log(1 - delta), "chi2": mpf(0), "hellinger": 2 * _log(1 - delta)}[divergence]
        return Exact(log_low, mpf(0), -mp.inf)
    p, rest = mp.exp(log_p), -mp.expm1(log_p)
    if divergence == "kl":
        log_rest = _farthest_down(mp.log(rest), p, delta)  # the others lose what the token wins
        return Exact(_farthest_down(log_p, rest, delta) - log_p, mp.log1p(-mp.exp(log_rest)) - log_p, log_rest)
    if divergence == "hellinger":  # an arc on the quarter circle of (sqrt q, sqrt(1 - q))
        at, arc = mp.asin(mp.sqrt(p)), 2 * mp.asin(mp.sqrt(min(delta, mpf(1)) / 2))
        low, high = max(at - arc, mpf(0)), min(at + arc, mp.pi / 2)
        return Exact(2 * _log(mp.sin(low)) - log_p, 2 * mp.log(mp.sin(high)) - log_p, 2 * _log(mp.cos(high)))
    move = delta / p if divergence == "tv" else mp.sqrt(delta * rest / p)
    log_high = min(mp.log1p(move), -log_p)
    return Exact(_log(1 - move), log_high, _log(-mp.expm1(log_high + log_p)))


def power(order: float) -> Callable[[mpf], mpf]:
    """The generator of the power divergence, order not 0 or -1."""
    order = mpf(order)

    def f(u: mpf) -> mpf:
        if u == 0:
            return mp.inf if order < -1 else 1 / (order + 1)
        return (u ** (order + 1) - 1 - (order + 1) * (u - 1)) / (order * (order + 1))

    return f


# By their definitions, u = pi / pi_old.
GENERATORS: dict[str, Callable[[mpf], mpf]] = {
    "kl": lambda u: u - 1 - mp.log(u) if u else mp.inf,
    "reverse_kl": lambda u: u * mp.log(u) - u + 1 if u else mpf(1),
    "tv": lambda u: abs(u - 1) / 2,
    "chi2": lambda u: (u - 1) ** 2,
    "neyman_chi2": lambda u: (u - 1) ** 2 / u if u else mp.inf,
    "hellinger": lambda u: (mp.sqrt(u) - 1) ** 2 / 2,
    "jensen_shannon": lambda u: ((u * mp.log(u) if u else 0) - (u + 1) * mp.log((u + 1) / 2)) / 2,
}


def exact_bounds_of(f: Callable[[mpf], mpf], log_p: float, delta: float) -> Exact:
    """Both bounds for any generator, by bisection and false position on the definition, in log q and in log(1 - q)."""
    log_p, delta = mpf(log_p), mpf(delta)
    p, rest = mp.exp(log_p), -mp.expm1(log_p)

    def of_q(x: mpf) -> mpf:
        return p * f(mp.exp(x - log_p)) + rest * f(-mp.expm1(x) / rest) - delta

    def of_rest(y: mpf) -> mpf:
        return p * f(-mp.expm1(y) / p) + rest * f(mp.exp(y) / rest) - delta

    with mp.workdps(max(100, mp.dps)):
        log_q = _first_below(of_q, log_p) if p * f(mpf(0)) + rest * f(1 / rest) > delta else -mp.inf
        log_rest = _first_below(of_rest, mp.log(rest)) if p * f(1 / p) + rest * f(mpf(0)) > delta else -mp.inf
    return Exact(log_q - log_p, mp.log1p(-mp.exp(log_rest)) - log_p, log_rest)


def bisected(f: Callable[[Tensor], Tensor], p: Tensor, delta: float) -> Tensor:
    """Both ratios at which g_f(p, r) = delta, or the simplex ends, by the bisection of the paper in float64."""
    ends = []
    for far in (torch.zeros_like(p), 1 / p):
        near = torch.ones_like(p)
        for _ in range(100):
            r = (near + far) / 2
            inside = p * f(r) + (1 - p) * f((1 - r * p) / (1 - p)) <= delta
            near, far = torch.where(inside, r, near), torch.where(inside, far, r)
        ends.append(near)
    return torch.stack(ends)


def _first_below(g: Callable[[mpf], mpf], start: mpf) -> mpf:
    """The x < start where the convex g, negative at start, becomes 0; to 40 digits, by the signs at both ends."""
    step = mpf(10) ** -20
    high, g_high = start, g(start)
    while (g_low := g(start - step)) < 0:
        high, g_high, step = start - step, g_low, 8 * step
    low, last = start - step, 0
    for i in range(4000):
        x = (low + high) / 2 if i % 4 == 3 else (low * g_high - high * g_low) / (g_high - g_low)
        value = g(x)
        # An end that stays counts half (the Illinois method), so that both come close.
        if value >= 0:
            low, g_low, g_high, last = x, value, g_high / 2 if last > 0 else g_high, 1
        else:
            high, g_high, g_low, last = x, value, g_low / 2 if last < 0 else g_low, -1
        if high - low < mpf(10) ** -40 * (start - low):
            return low
    raise AssertionError("no root")


def saturation_point(divergence: str, delta: float) -> float:
    """log p*: at and below p* the lower bound is 0 (prop:saturation)."""
    delta = mpf(delta)
    return float(
        mp.log({"kl": mpf(0), "tv": delta, "chi2": delta / (1 + delta), "hellinger": delta * (2 - delta)}[divergence])
    )


def two_coins(f: Callable[[mpf], mpf], log_p: float, log_q: mpf, log_rest: mpf) -> mpf:
    """D_f between the coins (q, 1 - q) and (p, 1 - p), by its definition eq:f_divergence_def; log_rest = log(1 - q)."""
    p, rest = mp.exp(mpf(log_p)), -mp.expm1(mpf(log_p))
    return p * f(mp.exp(log_q) / p) + rest * f(mp.exp(log_rest) / rest)


def _farthest_down(log_p: mpf, rest: mpf, delta: mpf) -> mpf:
    """The smaller root x = log q of g(x) = p (log p - x) + (1 - p) (log(1 - p) - log(1 - e^x)) = delta.

    g is convex and falls until x = log p. Without its last logarithm, which is not negative, it is a line; where that
    line is delta, g is at least delta, and from there Newton's method climbs to the root without overshooting.
    """
    p, log_rest = mp.exp(log_p), mp.log(rest)
    x = log_p - (delta - rest * log_rest) / p
    for _ in range(60):
        q = mp.exp(x)
        excess = p * (log_p - x) + rest * (log_rest - mp.log1p(-q)) - delta
        step = excess / (p - rest * q / (1 - q))
        x += step
        if abs(step) < mpf(10) ** -40 * abs(x - log_p):
            return x
    raise AssertionError(f"no root at log p = {log_p}, delta = {delta}")


def _log(x: mpf) -> mpf:
    return mp.log(x) if x > 0 else -mp.inf
