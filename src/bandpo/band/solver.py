"""The roots of g_f(p, r) = delta for a divergence without a closed form, and for KL, where the equation is simpler.

Both solvers move along the exponential tilt of a coin, q = p e^t / (1 + p (e^t - 1)): the change t of its log-odds.
Exchanging the token with all other tokens changes the sign of t, so the two roots for the rarer side of the coin, mu =
min(p, 1 - p), are the bounds of the token and of its complement. The square root of a smooth divergence is nearly
linear in t, which is why few steps suffice. Every loop has a fixed length: one graph, no wait for the device, and no
token's result depends on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..numerics import LOG_P_MAX, LOG_P_MIN, excess, expm1, working_copy

Radius = float | Tensor
Interval = tuple[Tensor, Tensor]
Generator = Callable[[Tensor], Tensor]

# ---- KL(pi_old || pi)

# From 40 nats on, what is left out of K's asymptotes is below float64: K is a line, and so is its inverse.
_LINE = 40.0


def kl_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """The band of KL(pi_old || pi): log r = t - log Z and log c = -log Z with Z = 1 + p (e^t - 1).

    The binding equation is K(t) = log Z - p t = delta, the cumulant generating function of a centred coin. At a root,
    log r = (1 - p) t - delta and log c = -p t - delta; the positive root is the upper bound, the negative one the
    lower. Halley's method on sqrt(K) - sqrt(delta) is within 3e-4 of the roots after one step from these starts, and
    within 1e-10 after two, for every p and every delta from 1e-6 on. In place wherever it can be: fresh memory costs as
    much as the arithmetic.
    """
    single = log_p.dtype == torch.float32
    log_p = working_copy(log_p)
    beyond = log_p.clamp(max=LOG_P_MIN) - LOG_P_MIN
    log_p = log_p.clamp(LOG_P_MIN, LOG_P_MAX)
    # Below 1e-10 K drowns in rounding.
    delta = (delta if isinstance(delta, Tensor) else log_p.new_full((), delta)).clamp(min=1e-10)
    curved = delta.clamp(max=_LINE)
    p = torch.exp(log_p)
    if single:  # to 1e-12, with no long series
        rest = torch.where(log_p > -1e-4, (log_p * (1 / 6) + 0.5).mul_(log_p).add_(1).mul_(-log_p), 1 - p)
    else:
        rest = -expm1(log_p)
    rare = p < rest
    mu = torch.minimum(p, rest)
    nu = 1 - mu
    odds, per_mu = mu / nu, 1 / mu
    # The starts: log Z = delta + mu t, for a t that is the parabola's at K's minimum for small delta, and near that
    # of K's asymptote for large delta; and a parabola further down.
    log_z = (curved * odds).add_(2).mul_(curved * odds).sqrt_().add_(curved)
    x = torch.exp(log_z).sub_(1)
    up = (x * per_mu).add_(1).log_()
    down = (2 * curved * odds).add_(curved * curved / 4).sqrt_().add_(curved / 2).mul_(per_mu).neg_()
    up = _halley(up, x, log_z, mu, nu, torch.sqrt(curved))
    up = up + _last_step(up, mu, nu, curved)[0]
    down = _halley(down, *_tilted(down, mu), mu, nu, torch.sqrt(curved))
    dt, x, slope = _last_step(down, mu, nu, curved)
    down = down + dt
    if not single:
        up, down = _polish(up, mu, nu, curved), _polish(down, mu, nu, curved)
    up, down = up + (delta - curved) * (odds * per_mu), down - (delta - curved) * per_mu
    sinking = (nu * down).sub_(delta)
    log_low = torch.where(rare, sinking, (mu * up).add_(delta).neg_())
    # The upper bound of a common token is -log Z at the lower root of the others, where mu t + delta would cancel.
    if single:  # x moves by slope (e^dt - 1), a parabola; dt is longer than 1 only where e^t is 0
        dt = dt.clamp_(-1, 1)
        rising, emptying = (nu * up).sub_(delta), x.addcmul_(slope, (dt * 0.5).add_(1).mul_(dt)).log1p_().neg_()
    else:
        rising = torch.where(up > 1, torch.exp(-up).mul_(nu).add_(mu).log_().neg_(), nu * up - delta)
        emptying = expm1(down).mul_(mu).log1p_().neg_()
    log_high = torch.where(rare, rising, emptying)
    # Below e^-300, r_high p stays what it is; log r_low = -delta / p is beyond -1e118, and need only stay there.
    return log_low.add_(beyond, alpha=1e200), log_high.sub_(beyond)


def _tilted(t: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """x = mu (e^t - 1) and log Z = log(1 + x).

    exp and log instead of expm1 and log1p are off by 1e-16 of 1, which is 1e-8 of K = delta = 1e-8, and half as fast
    again.
    """
    x = torch.exp(t).sub_(1).mul_(mu)
    return x, torch.log(1 + x)


def _halley(t: Tensor, x: Tensor, log_z: Tensor, mu: Tensor, nu: Tensor, root: Tensor) -> Tensor:
    """One step of Halley's method on gap = sqrt(K(t)) - root, for the rarer side mu of the coin, nu = 1 - mu.

    With x = mu (e^t - 1), K' = x nu / (1 + x) and K'' = (x + mu) nu / (1 + x)^2, neither of which cancels, the step is
    4 gap K x (1 + x) / (x^2 nu (2 sqrt(K) + gap) - 2 gap K (x + mu)). x and log_z are used up.
    """
    k = log_z.addcmul_(mu, t, value=-1)
    s = k.clamp(min=1e-300).sqrt_()
    gap = s - root
    denominator = s.mul_(2).add_(gap).mul_(x).mul_(x).mul_(nu)
    numerator = gap.mul_(k).mul_(2)
    denominator.addcmul_(numerator, x + mu, value=-1)
    return t.addcdiv(numerator.mul_(x).mul_(x.add_(1)), denominator, value=-2)


def _last_step(t: Tensor, mu: Tensor, nu: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dt of the same step from within 1e-3 of the root, and x = mu (e^t - 1) and its slope mu e^t before it.

    There sqrt(K / delta) is 1 + h to 1e-11, with h = y / 2 - y^2 / 8 and y = K / delta - 1.
    """
    x, k = _tilted(t, mu)
    k.addcmul_(mu, t, value=-1)
    y = (k * (1 / delta)).sub_(1)
    h = (y * -0.125).add_(0.5).mul_(y)
    numerator, slope = k.mul_(h).mul_(2), x + mu
    denominator = h.mul_(3).add_(2).mul_(x).mul_(x).mul_(nu).addcmul_(numerator, slope, value=-1)
    return numerator.mul_(x).mul_(x + 1).div_(denominator).mul_(-2), x, slope


def _polish(t: Tensor, mu: Tensor, nu: Tensor, delta: Tensor) -> Tensor:
    """One step of Newton's method with K(t) = mu (e^t - 1 - t) - (Z - 1 - log Z), which does not cancel for small t."""
    x = mu * expm1(t)
    log_z = torch.log1p(x)
    k = torch.where(t.abs() < 1, mu * excess(t) - excess(log_z), log_z - mu * t)
    return t - (k - delta) * (1 + x) / (x * nu)


# ---- any convex f

# Six are enough for float32 and every smooth f that was tried, p from e^-300 to 1 - 1e-15 and delta from 1e-8 to 1e3
# (research/log.md), and seven for float64 as a rule; the rest is for the last digits next to saturation.
_STEPS = {torch.float32: 6, torch.float64: 12}
_NEAR = -7.0
# log y of the knots at which the generator is inverted: delta / mu from 1e-10 to 1e10 / e^-300.
_FIRST, _LAST, _KNOTS = -30.0, 330.0, 4321


def invert(generator: Generator) -> Tensor:
    """Where the generator reaches e^y, on a grid of y: log |log u| for u < 1 and u > 1, (2, knots).

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
    """Both bounds for any convex f.

    g = mu f(r) + nu f(c) is a sum of two terms that are not negative, once f has its minimum at 1. So at the root
    neither exceeds delta and one is at least delta / 2: the inverse of f, tabulated, gives a bracket of the root that
    holds for every convex f, and is narrow. In it the secant method, with the curvature of the last two secants,
    solves log g = log delta in log |t|, a curve whose slope is 2 for a smooth f near t = 0 and changes slowly. Where g
    has a largest value, -log(1 - g / largest) takes the place of g: near saturation that is linear in t.

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
    """Slopes of log_low and -log_high for p -> 0, where all is in the term of r: p f(r) = delta, f a power of u."""
    fall, rise = inverse[:, -2:].exp().diff().nan_to_num()[:, 0] * (_KNOTS - 1) / (_LAST - _FIRST)
    return fall, rise


def falling_curve(log_odds: Tensor, delta: float, generator: Generator, inverse: Tensor) -> Interval:
    """log r and log c of a coin, one side of which falls as far as delta allows, for its log-odds in [-350, 350].

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
    """The coin (mu, nu), mu <= 1/2, and how far it may be tilted to either side."""

    def __init__(self, mu: Tensor, log_mu: Tensor, generator: Generator, inverse: Tensor) -> None:
        self.mu, self.nu, self.log_mu, self.log_nu = mu, 1 - mu, log_mu, torch.log1p(-mu)
        self.generator, self.inverse = generator, inverse.to(mu.device)

    def ratios(self, t: Tensor) -> Interval:
        """log r of mu and log c of nu after a tilt by t."""
        log_z = torch.log1p(self.mu * expm1(t.clamp(max=600))) + (t - 600).clamp(min=0)
        return torch.where(t > 1, -torch.log(self.mu + self.nu * torch.exp(-t)), t - log_z), -log_z

    def divergence(self, t: Tensor) -> Tensor:
        """g_f after a tilt by t."""
        log_r, log_c = self.ratios(t)
        return self.mu * self.generator(log_r) + self.nu * self.generator(log_c)

    def farthest(self, sign: int, delta: Tensor, steps: int | None) -> Interval:
        """log r and log c where g_f = delta, with mu rising (sign 1) or falling (-1); the simplex limit if nowhere.

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
        log_r, log_c = self.ratios(t)
        saturated = most <= delta
        return torch.where(saturated, limit[0], log_r), torch.where(saturated, limit[1], log_c)

    def _bisection(self, sign: int, delta: Tensor) -> Tensor:
        """The tilt, from within the ball: log |t| to 1e-15, for any convex f."""
        low, high = torch.full_like(self.mu, _LEAST_LOG_T), torch.full_like(self.mu, _MOST_LOG_T)
        for _ in range(_BISECTIONS):
            x = 0.5 * (low + high)
            inside = self.divergence(sign * torch.exp(x)) <= delta
            low, high = torch.where(inside, x, low), torch.where(inside, high, x)
        return sign * torch.exp(low)

    def _secants(self, sign: int, delta: Tensor, most: Tensor, steps: int) -> Tensor:
        """The tilt, for a smooth f; `most` is the largest g."""
        # Far below its largest value g itself is the better coordinate; a scale of 1000 delta makes it that.
        scale = torch.minimum(most, 1000 * delta)

        def level(g: Tensor) -> Tensor:
            return torch.log(-torch.log1p(-(g / scale).clamp(1e-300, 1 - 1e-16)))

        target = level(delta.expand_as(scale))
        low, high = self._bracket(sign, delta)
        x, slope = low, torch.full_like(low, 2.0)
        move = torch.zeros_like(x)
        last = before = last_y = size = x
        for step in range(steps):
            size = torch.exp(x)
            y = level(self.divergence(sign * size)) - target
            low, high = torch.where(y <= 0, x, low), torch.where(y > 0, x, high)
            move = y / slope
            if step > 0:
                dx = x - last
                secant = (y - last_y) / dx
                usable = (dx.abs() > 1e-7) & (secant > 0) & (secant < torch.inf)
                secant = torch.where(usable, secant, slope)
                move = y / secant
                if step > 1:
                    # Newton's step with the derivative at x, and its correction of second order.
                    curvature = 2 * (secant - slope) / (x - before)
                    here = secant + 0.5 * curvature * dx
                    newton = y / here
                    bend = curvature * newton / here
                    usable = usable & (dx.abs() > 1e-6) & (here > 0) & (bend.abs() < 0.5)
                    move = torch.where(usable, newton * (1 + 0.5 * bend), move)
                slope = secant
            before, last, last_y = last, x, y
            x = x - move
            # Out of the bracket the middle, but at first its end: the root is often there, and secants overshoot it.
            away = (x < low) | (x > high)
            x = torch.where(away, 0.5 * (low + high) if step > 0 else x.clamp(low, high), x)
            move = torch.where(away, last - x, move)
        # Not e^x: g was found at `size`, and the rounding of x, which may be 300, is more than that of the last move.
        return sign * size * torch.exp(-move)

    def _bracket(self, sign: int, delta: Tensor) -> Interval:
        """log |t| with g_f <= delta, and with g_f >= delta."""
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
        """|log u| at the knot below (end 0) or above (end 1) the one where f(u) = e^y."""
        at = ((y - _FIRST) * ((_KNOTS - 1) / (_LAST - _FIRST))).clamp(0, _KNOTS - 2).nan_to_num()
        return torch.exp(self.inverse[side][at.long() + end])
