"""Solve the band of KL(pi_old || pi), the paper's choice, by Halley's method."""

import torch
from torch import Tensor

from ..numerics import clamp_log_p, expm1, expm1_minus_x
from .closed_forms import Interval, Radius

# From 40 nats on, what is left out of K's asymptotes is below float64: K is a line, and so is its inverse.
_LINE = 40.0


def kl_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """Solve K(t) = log Z - p t = delta with Z = 1 + p (e^t - 1). The bounds are log r = t - log Z and log c = -log Z.

    K is the cumulant generating function of a centred coin; with q = p e^t / Z, K' = q - p and K'' = q (1 - q). The
    positive root is the upper bound, the negative one the lower. Both are solved for the rarer side of the coin, mu =
    min(p, 1 - p): exchanging the sides exchanges r and c, and the roots change their signs. From these starts one step
    of Halley's method is within 1e-3 of every root, two within 2e-10.
    """
    exact = log_p.dtype == torch.float64
    # Below e^-300, r_high p stays what it is; log r_low = -delta / p is beyond -1e118, and stays there.
    log_p, beyond = clamp_log_p(log_p)
    delta = (delta if isinstance(delta, Tensor) else log_p.new_full((), delta)).clamp(min=1e-10)
    curved = delta.clamp(max=_LINE)
    p, rest = torch.exp(log_p), -expm1(log_p)
    rare, mu = p < rest, torch.minimum(p, rest)
    nu = 1 - mu
    # Starts: log Z = delta + mu t for a t between that of K's parabola and that of its asymptote; below, a parabola.
    spread = curved * mu / nu
    z = torch.exp(curved + torch.sqrt(spread * (spread + 2)))
    up = torch.log(1 + (z - 1) / mu)
    down = -(curved / 2 + torch.sqrt(2 * spread + curved * curved / 4)) / mu
    # exp and log are off by 1e-16 of 1, at most 1e-6 of delta: enough for a first step.
    t, odds = torch.stack([up, down]), torch.stack([z - nu, mu * torch.exp(down)])
    t = t + _halley(torch.log(nu + odds) - mu * t - curved, odds / (nu + odds), mu)
    step = q = log_z = t
    for _ in range(2 if exact else 1):
        x = mu * expm1(t)
        log_z, q = torch.log1p(x), (x + mu) / (1 + x)
        # The first form of K = mu (e^t - 1 - t) - (Z - 1 - log Z) does not cancel for small t.
        k = (
            torch.where(t.abs() < 1, mu * expm1_minus_x(t) - expm1_minus_x(log_z), log_z - mu * t)
            if exact
            else log_z - mu * t
        )
        step = _halley(k - curved, q, mu)
        t = t + step
    if exact:
        log_r, log_c = tilted(t, mu)
        # The e^t of a large t has lost its last digits.
        log_c = torch.where(t > 1, -curved - mu * t, log_c)
    else:  # log Z is carried along the step by its two derivatives
        log_c = -(log_z + q * step * (1 + 0.5 * (1 - q) * step))
        log_r = t + log_c
    line = delta - curved
    log_low = torch.where(rare, log_r[1] - line / mu, log_c[0] - line / nu)
    return log_low, torch.where(rare, log_r[0], log_c[1]) - beyond


def _halley(gap: Tensor, q: Tensor, mu: Tensor) -> Tensor:
    """Return Halley's step to the root of gap = K - delta."""
    slope = q - mu
    return gap / (0.5 * gap * q * (1 - q) / slope - slope)


def tilted(t: Tensor, mu: Tensor) -> Interval:
    """Tilt a coin's log-odds by t. Return log r of its side mu <= 1/2, and log c of the other side."""
    log_z = torch.log1p(mu * expm1(t.clamp(max=600))) + (t - 600).clamp(min=0)
    return torch.where(t > 1, -torch.log(mu + (1 - mu) * torch.exp(-t)), t - log_z), -log_z
