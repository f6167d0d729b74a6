"""Solve g_f(p, r) = delta for any convex f. Bisection comes first (thm:bisection_global), then secants.

The solver moves along the exponential tilt of a coin, q = p e^t / (1 + p (e^t - 1)): the change t of its log-odds. It
solves one problem, how far one side of the coin may fall: the token's own fall is its lower bound, the fall of all
others its upper bound. Every loop has a fixed length: no wait for the device, and no token depends on others.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..numerics import LOG_P_MIN, clamp_log_p, expm1, log1mexp
from .closed_forms import Interval, Radius
from .kl import tilted

Generator = Callable[[Tensor], Tensor]

# Halvings of the interval of log |t|, and steps of the secant method after them, most of which are for the last digits
# next to saturation. Secants overshoot at kinks.
_STEPS, _AT_KINKS = (14, 6), (56, 0)
_LEAST, MOST = math.exp(-40.0), 1e131  # |t| of all tilts that matter
# An f that takes u, and not log u, sees 0 below e^-745, where it may be infinite.
MOST_OF_U = 735.0


def tilt_log_bounds(
    log_p: Tensor,
    delta: Radius,
    generator: Generator,
    slopes: tuple[float, float] = (0.0, 0.0),
    smooth: bool = True,
    max_tilt: float = MOST,
) -> Interval:
    """Solve for both bounds, for any convex f.

    `generator` is f as a function of log u, in [-inf, 700], `slopes` are of `limit_slopes`, `smooth` is False for an f
    with kinks. `max_tilt` is the largest tilt, `MOST_OF_U` for an f of u.
    """
    steps = _STEPS if smooth else _AT_KINKS
    log_p, beyond = clamp_log_p(log_p)
    radius = (delta if isinstance(delta, Tensor) else log_p.new_full((), delta)).clamp(1e-10, 1e10)
    log_p = log_p.expand(torch.broadcast_shapes(log_p.shape, radius.shape))
    sides, logs = (torch.exp(log_p), -expm1(log_p)), (log1mexp(log_p), log_p)
    side, other, log_other = torch.stack(sides), torch.stack(sides[::-1]), torch.stack(logs)
    log_r, log_c = solve_lower(side, other, log_other, radius, generator, steps, max_tilt)
    return log_r[0] + slopes[0] * beyond, log_c[1] + slopes[1] * beyond


def limit_slopes(generator: Generator) -> tuple[float, float]:
    """Return the slopes of both bounds over log p for p -> 0. There p f(r) = delta, and f is a power of u."""
    log_p = torch.tensor([LOG_P_MIN, LOG_P_MIN + 1], dtype=torch.float64)
    low, high = (
        float(x.diff().nan_to_num())
        for x in tilt_log_bounds(log_p, 1e-3, generator, smooth=False, max_tilt=MOST_OF_U)
    )
    return low, high


def solve_lower(
    side: Tensor,
    other: Tensor,
    log_other: Tensor,
    delta: Tensor,
    generator: Generator,
    steps: tuple[int, int] = _STEPS,
    max_tilt: float = MOST,
) -> Interval:
    """Let a side of a coin fall as far as delta allows. Return its log r, and log c of the other side.

    g is solved for in log |t| of the rarer side, a curve whose slope is 2 for a smooth f near t = 0 and changes slowly.
    Where g has a largest value, -log(1 - g / largest) takes the place of g: near saturation that is linear in t.
    """
    rare, mu = side < other, torch.minimum(side, other)
    sign = torch.where(rare, -1.0, 1.0)

    def g(t: Tensor) -> Tensor:
        log_r, log_c = tilted(sign * t, mu)
        return mu * generator(log_r) + (1 - mu) * generator(log_c)

    max_divergence = side * generator(torch.full_like(side, -torch.inf)) + other * generator(-log_other)
    max_divergence = torch.where(max_divergence.isnan(), torch.inf, max_divergence)
    low, high = torch.full_like(side, _LEAST), torch.full_like(side, max_tilt)
    for _ in range(steps[0]):
        t = low.sqrt() * high.sqrt()
        inside = g(t) <= delta
        low, high = torch.where(inside, t, low), torch.where(inside, high, t)
    # Far below its largest value g itself is the better coordinate; a scale of 1000 delta makes it that.
    scale = torch.minimum(max_divergence, 1000 * delta)

    def level(g: Tensor) -> Tensor:
        return torch.log(-torch.log1p(-(g / scale).clamp(1e-300, 1 - 1e-16)))

    t, last = low, high
    y, slope = level(g(high)) - level(delta), torch.full_like(t, 2.0)
    for _ in range(steps[1]):
        last_y, y = y, level(g(t)) - level(delta)
        low, high = torch.where(y <= 0, t, low), torch.where(y > 0, t, high)
        way = torch.log(t / last)
        secant = (y - last_y) / way
        slope = torch.where((way.abs() > 1e-6) & (secant > 0) & (secant < torch.inf), secant, slope)
        last, t = t, t * torch.exp(-y / slope)
        t = torch.where((t < low) | (t > high), low.sqrt() * high.sqrt(), t)
    log_r, log_c = tilted(sign * t, mu)
    log_r, log_c = torch.where(rare, log_r, log_c), torch.where(rare, log_c, log_r)
    saturated = max_divergence <= delta
    return torch.where(saturated, -torch.inf, log_r), torch.where(saturated, -log_other, log_c)
