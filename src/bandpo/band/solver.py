"""The roots of g_f(p, r) = delta for any convex f, by secants or bisection (thm:bisection_global).

The solver moves along the exponential tilt of a coin, q = p e^t / (1 + p (e^t - 1)): the change t of its log-odds.
Exchanging the token with all other tokens changes the sign of t, so the two roots for the rarer side of the coin, mu =
min(p, 1 - p), are the bounds of the token and of its complement. The square root of a smooth divergence is nearly
linear in t, which is why few steps suffice. Every loop has a fixed length: no wait for the device, and no token's
result depends on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..numerics import LOG_P_MAX, LOG_P_MIN, expm1, working_copy
from .closed_forms import Interval, Radius
from .kl import tilted

Generator = Callable[[Tensor], Tensor]

# Steps of the secant method; most are for the last digits next to saturation.
_STEPS = {torch.float32: 8, torch.float64: 15}
_NEAR = -7.0
# log y of the knots at which the generator is inverted: delta / mu from 1e-10 to 1e10 / e^-300.
_FIRST, _LAST, _KNOTS = -30.0, 330.0, 4321


def invert(generator: Generator) -> Tensor:
    """Find where the generator reaches e^y, on a grid of y: log |log u| for u < 1 and u > 1, (2, knots).

    Before it is inverted, the linear part of f that no divergence depends on is taken off, so that it has its minimum
    0 at u = 1. Where f(0) < e^y or no float64 u is large enough the entry is +inf.
    """
    step = 1e-5
    near = torch.tensor([-step, step], dtype=torch.float64)
    slope = generator(torch.log1p(near)).diff() / (2 * step)

    def excess_over_slope(x: Tensor) -> Tensor:
        # Where u overflows, so does every generator that is not linear; with f(u) = inf - inf it would be NaN.
        value = generator(x) - slope * expm1(x)
        return torch.where(value.isnan(), torch.inf, value.clamp(min=0))

    y = torch.linspace(_FIRST, _LAST, _KNOTS, dtype=torch.float64)
    sides: list[Tensor] = []
    for sign in (-1.0, 1.0):
        # Closer to 1 than e^-7 the difference above is rounding: there f is a power of |log u|, a square as a rule.
        at = _NEAR - torch.tensor([1.0, 0.0], dtype=torch.float64)
        anchor = torch.log(excess_over_slope(sign * at.exp()))
        power = anchor.diff()
        low, high = torch.full_like(y, _NEAR), torch.full_like(y, 690.0)
        for _ in range(64):
            middle = 0.5 * (low + high)
            keep = torch.log(excess_over_slope(sign * middle.exp())) <= y
            low, high = torch.where(keep, middle, low), torch.where(keep, high, middle)
        low = torch.where(low > 689.0, torch.inf, low)
        small = (y < anchor[1]) & torch.isfinite(anchor).all()
        sides.append(torch.where(small, _NEAR + (y - anchor[1]) / power, low))
    return torch.stack(sides)


def tilt_log_bounds(
    log_p: Tensor, delta: Radius, generator: Generator, inverse: Tensor, smooth: bool = True
) -> Interval:
    """Solve for both bounds, for any convex f.

    g = mu f(r) + nu f(c) is a sum of two terms that are not negative, once f has its minimum at 1. So at the root
    neither exceeds delta and one is at least delta / 2: the inverse of f, tabulated, gives a narrow bracket of the
    root. In it the secant method solves log g = log delta in log |t|, a curve whose slope is 2 for a smooth f near t =
    0 and changes slowly. Where g has a largest value, -log(1 - g / largest) takes the place of g: near saturation that
    is linear in t.

    Args:
        log_p: log-probabilities.
        delta: the radius.
        generator: f as a function of log u, in [-inf, 700].
        inverse: from `invert`.
        smooth: False for an f with kinks, where secants overshoot, and between whose knots the inverse may be anything:
            then t is bisected, from all that it can be.
    """
    steps = _STEPS[log_p.dtype] if smooth else None
    log_p = working_copy(log_p)
    beyond = log_p.clamp(-1e300, LOG_P_MIN) - LOG_P_MIN
    log_p = log_p.clamp(LOG_P_MIN, LOG_P_MAX)
    delta = (delta if isinstance(delta, Tensor) else log_p.new_full((), delta)).clamp(1e-10, 1e10)
    p, rest = torch.exp(log_p), -expm1(log_p)
    rare = p < rest
    mu = torch.minimum(p, rest)
    coin = _Coin(mu, torch.where(rare, log_p, torch.log(mu)), generator, inverse)
    up_r, up_c = coin.farthest(1, delta, steps)
    down_r, down_c = coin.farthest(-1, delta, steps)
    fall, rise = limit_slopes(inverse)
    log_low = torch.where(rare, down_r + fall * beyond, up_c)
    log_high = torch.where(rare, up_r - rise * beyond, down_c)
    return log_low, log_high


def limit_slopes(inverse: Tensor) -> Interval:
    """Return the slopes of log_low and -log_high for p -> 0, where p f(r) = delta and f is a power of u."""
    fall, rise = inverse[:, -2:].exp().diff().nan_to_num()[:, 0] * (_KNOTS - 1) / (_LAST - _FIRST)
    return fall, rise


def falling_curve(log_odds: Tensor, delta: float, generator: Generator, inverse: Tensor) -> Interval:
    """Return log r and log c of a coin whose side falls as far as delta allows, for its log-odds in [-350, 350].

    The lower bound of a token is log r at its log-odds, and the upper bound is log c at those of its complement.
    """
    log_mu = -log_odds.abs() - torch.log1p(torch.exp(-log_odds.abs()))
    radius, steps = log_mu.new_tensor(delta), _STEPS[log_mu.dtype]
    log_r, log_c = torch.empty_like(log_mu), torch.empty_like(log_mu)
    rare = log_odds < 0
    for side, sign in ((rare, -1), (~rare, 1)):  # the rarer side falls, or the other one
        coin = _Coin(torch.exp(log_mu[side]), log_mu[side], generator, inverse)
        of_mu, of_nu = coin.farthest(sign, radius, steps)
        log_r[side], log_c[side] = (of_mu, of_nu) if sign < 0 else (of_nu, of_mu)
    return log_r, log_c


# log |t| of all tilts that matter, and how often that interval is halved.
_LEAST_LOG_T, _MOST_LOG_T, _BISECTIONS = -40.0, 690.0, 60


class _Coin:
    """Tilt a coin (mu, nu), mu <= 1/2, as far as delta allows."""

    def __init__(self, mu: Tensor, log_mu: Tensor, generator: Generator, inverse: Tensor) -> None:
        self.mu, self.nu, self.log_mu, self.log_nu = mu, 1 - mu, log_mu, torch.log1p(-mu)
        self.generator, self.inverse = generator, inverse.to(mu.device)

    def divergence(self, t: Tensor) -> Tensor:
        """Return g_f after a tilt by t."""
        log_r, log_c = tilted(t, self.mu)
        return self.mu * self.generator(log_r) + self.nu * self.generator(log_c)

    def farthest(self, sign: int, delta: Tensor, steps: int | None) -> Interval:
        """Return log r and log c where g_f = delta, mu rising (sign 1) or falling (-1), or the simplex limit.

        After so many steps of secants; None: by bisection.
        """
        limit = log_r, log_c = (
            (-self.log_mu, torch.full_like(self.mu, -torch.inf))
            if sign > 0
            else (torch.full_like(self.mu, -torch.inf), -self.log_nu)
        )
        most = self.mu * self.generator(log_r) + self.nu * self.generator(log_c)
        most = torch.where(most.isnan(), torch.inf, most)
        t = self._bisection(sign, delta) if steps is None else self._secants(sign, delta, most, steps)
        log_r, log_c = tilted(t, self.mu)
        saturated = most <= delta
        return torch.where(saturated, limit[0], log_r), torch.where(saturated, limit[1], log_c)

    def _bisection(self, sign: int, delta: Tensor) -> Tensor:
        """Find the tilt from within the ball: log |t| to 1e-15, for any convex f."""
        low, high = torch.full_like(self.mu, _LEAST_LOG_T), torch.full_like(self.mu, _MOST_LOG_T)
        for _ in range(_BISECTIONS):
            x = 0.5 * (low + high)
            inside = self.divergence(sign * torch.exp(x)) <= delta
            low, high = torch.where(inside, x, low), torch.where(inside, high, x)
        return sign * torch.exp(low)

    def _secants(self, sign: int, delta: Tensor, most: Tensor, steps: int) -> Tensor:
        """Find the tilt for a smooth f; `most` is the largest g."""
        # Far below its largest value g itself is the better coordinate; a scale of 1000 delta makes it that.
        scale = torch.minimum(most, 1000 * delta)

        def level(g: Tensor) -> Tensor:
            return torch.log(-torch.log1p(-(g / scale).clamp(1e-300, 1 - 1e-16)))

        target = level(delta.expand_as(scale))
        low, high = self._bracket(sign, delta)
        x = last = last_y = low
        slope = move = size = torch.full_like(low, 2.0)
        for step in range(steps):
            size = torch.exp(x)
            y = level(self.divergence(sign * size)) - target
            low, high = torch.where(y <= 0, x, low), torch.where(y > 0, x, high)
            secant = (y - last_y) / (x - last)
            usable = ((x - last).abs() > 1e-7) & (secant > 0) & (secant < torch.inf)
            slope = torch.where(usable, secant, slope)
            last, last_y, x = x, y, x - y / slope
            # Out of the bracket the middle, but at first its end: the root is often there, and secants overshoot it.
            middle = 0.5 * (low + high) if step > 0 else x.clamp(low, high)
            x = torch.where((x < low) | (x > high), middle, x)
            move = last - x
        # Not e^x: g was found at `size`, and the rounding of x, which may be 300, is more than that of the last move.
        return sign * size * torch.exp(-move)

    def _bracket(self, sign: int, delta: Tensor) -> Interval:
        """Return log |t| with g_f <= delta, and with g_f >= delta."""
        (gains, gain), (loses, loss) = (self.mu, self.log_mu), (self.nu, self.log_nu)
        if sign < 0:
            gains, gain, loses, loss = loses, loss, gains, gain
        log_delta = torch.log(delta)
        found: list[Tensor] = []
        for total, end in ((log_delta - math.log(2), 0), (log_delta, 1)):
            rise, fall = self._inverse(1, total - gain, end), self._inverse(0, total - loss, end)
            room = loses - gains * expm1(rise)
            tilt_of_rise = torch.where(room > 0, rise + loss - torch.log(room.clamp(min=1e-320)), torch.inf)
            tilt_of_fall = fall + torch.log1p(-loses / gains * expm1(-fall))
            found.append(torch.log(torch.minimum(tilt_of_rise, tilt_of_fall)).clamp(_LEAST_LOG_T, _MOST_LOG_T))
        return found[0], found[1]

    def _inverse(self, side: int, y: Tensor, end: int) -> Tensor:
        """Return |log u| at the knot below (end 0) or above (end 1) the one where f(u) = e^y."""
        at = ((y - _FIRST) * ((_KNOTS - 1) / (_LAST - _FIRST))).clamp(0, _KNOTS - 2).nan_to_num()
        return torch.exp(self.inverse[side][at.long() + end])
