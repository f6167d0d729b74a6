"""BandPO's bounds of log r, r = pi / pi_old, and PPO's loss clipped by them, in JAX.

Copy what you need. Apache-2.0; please cite Li et al., BandPO, ICML 2026, arXiv 2603.04918.
"""

import math
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np

LOG_P = -69.0, -1e-30  # log p counts as within these: neither p nor 1 - p is 0


def band_kl(old_logps, delta=0.05):
    """Solve KL(pi_old || pi) = delta for the smallest and the largest log r.

    The policies at that distance that move a token most tilt its odds by e^t, and log(1 + p (e^t - 1)) - p t = delta.
    """
    log_p = jnp.clip(jax.lax.stop_gradient(old_logps), *LOG_P)
    p, rest = jnp.exp(log_p), -jnp.expm1(log_p)
    mu = jnp.minimum(p, rest)  # the rarer side of the coin: token or not
    t = jnp.stack([(delta - jnp.log(mu)) / (1 - mu), (jnp.log1p(-mu) - delta) / mu])  # beyond both roots
    for _ in range(16):  # Newton comes down a convex curve
        x = mu * jnp.expm1(t)
        t = t + (delta - (jnp.log1p(x) - mu * t)) * (1 + x) / (x * (1 - mu))
    log_c = -jnp.log1p(mu * jnp.expm1(t))  # of the other side
    log_r = t + log_c
    return jnp.where(p < rest, log_r[1], log_c[0]), jnp.where(p < rest, log_r[0], log_c[1])


def band_tv(old_logps, delta=0.05):
    """Return log r for r = 1 - delta / p and 1 + delta / p, within 0 and 1 / p."""
    log_p = jnp.clip(jax.lax.stop_gradient(old_logps), *LOG_P)
    low = jnp.log(remaining(log_p, Decimal(delta)))
    return low, jnp.minimum(jnp.log1p(delta * jnp.exp(-log_p)), -log_p)


def band_chi2(old_logps, delta=0.05):
    """Return log r for r = 1 - s and 1 + s with s^2 = delta (1 - p) / p, within 0 and 1 / p."""
    log_p = jnp.clip(jax.lax.stop_gradient(old_logps), *LOG_P)
    s = jnp.sqrt(delta * -jnp.expm1(log_p) * jnp.exp(-log_p))
    low = jnp.log((1 + delta) * remaining(log_p, 1 / (1 + 1 / Decimal(delta))) / (1 + s))
    return low, jnp.minimum(jnp.log1p(s), -log_p)


def remaining(log_p, point):
    """Return 1 - point / p, or 0. Next to 0 it takes more digits of log(point) than one number has."""
    head = float(np.float32(math.log(point)))
    tail = math.expm1(point.ln() - Decimal(head))
    away = jnp.expm1(head - log_p)
    return jnp.maximum(-away - tail * (1 + away), 0)


def clipped_loss(logps, old_logps, advantages, mask, log_low, log_high):
    """Return the mean over tokens of -min(r A, clip(r) A)."""
    log_r = jnp.where(mask, logps - old_logps, 0.0)
    r, clipped = jnp.exp(log_r), jnp.exp(jnp.clip(log_r, log_low, log_high))
    token = jnp.minimum(r * advantages, clipped * advantages)
    return -jnp.where(mask, token, 0.0).sum() / mask.sum()
