"""f-divergences D_f(pi || pi_old) = sum_a pi_old(a) f(pi(a) / pi_old(a)), by generator and, where there is one, by
closed form.

A move of one token from p to q = r p costs least when all other tokens are rescaled by one factor c
(lem:complement_rescaling), so every divergence enters the library as a function of two numbers: g_f(p, r) = p f(r) + (1
- p) f(c), the divergence between two coins.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .numerics import LOG_P_MAX, LOG_P_MIN, expm1, log1mexp, log_double, working_copy

Radius = float | Tensor
Interval = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Divergence:
    """A divergence, given by its generator alone or with faster exact forms.

    Args:
        name: what a config file calls it, after `register_divergence`.
        f: the generator, elementwise on float64 tensors: convex, f(1) = 0, not linear; f(0) may be inf, a kink at 1 is
            allowed.
        direction: how the divergence is written, for people; "D_f(pi || pi_old)" if empty.
        log_bounds: optional `(log_p, delta) -> (log_low, log_high)` for log_p in [-inf, 0], saturation included. Its
            dtype, float32 or float64, says how precise the result must be; it is best computed in float64 always.
        coin: optional `(log_p, log_ratio) -> g_f(p, r)` in float64, for r p <= 1.

    Raises:
        ValueError: f is not a generator; the message names the point u at which it fails.

    >>> import torch, bandpo
    >>> squared = bandpo.Divergence("squared", lambda u: (u - 1) ** 2)      # Pearson's chi2, by its generator only
    >>> log_p = torch.tensor([0.08]).log()
    >>> mine, closed = (bandpo.band_bounds(log_p, d, delta=0.05) for d in (squared, "chi2"))
    >>> torch.testing.assert_close(mine.log_high, closed.log_high)
    """

    name: str
    f: Callable[[Tensor], Tensor]
    direction: str = ""
    log_bounds: Callable[[Tensor, Radius], Interval] | None = field(default=None, repr=False)
    coin: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"name must be a non-empty string, got {self.name!r}")
        _check_generator(self.name, self.f)

    def to_config(self) -> str:
        """The registered name. Raises ValueError if there is none."""
        if _REGISTRY.get(self.name) != self:
            raise ValueError(f"{self.name!r} is an unregistered Divergence; call bandpo.register_divergence first")
        return self.name

    def __str__(self) -> str:
        return f"{self.name}: {self.direction or 'D_f(pi || pi_old)'}"


def divergence(name: str | Divergence) -> Divergence:
    """The registered divergence of that name; a `Divergence` passes through. Raises ValueError for an unknown name."""
    if isinstance(name, Divergence):
        return name
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ValueError(
            f"divergence must be one of {sorted(_REGISTRY)} or a bandpo.Divergence, got {name!r}; "
            "an own one gets a name by bandpo.register_divergence"
        )
    return _REGISTRY[name]


def register_divergence(new: Divergence) -> Divergence:
    """Give a divergence its name in config files. Raises ValueError if another one has the name already."""
    if _REGISTRY.setdefault(new.name, new) != new:
        raise ValueError(f"name {new.name!r} is taken by {_REGISTRY[new.name]}; choose another")
    return new


def _check_generator(name: str, f: Callable[[Tensor], Tensor]) -> None:
    below = torch.logspace(-6, -0.01, 512, dtype=torch.float64)
    u = torch.cat([below, below.new_ones(1), below.flip(0).reciprocal()])
    try:
        value = f(u)
        at_zero = f(u.new_zeros(1))
    except Exception as error:
        raise ValueError(
            f"f of divergence {name!r} must map a float64 tensor to a tensor, it raised: {error}"
        ) from error
    if not isinstance(value, Tensor) or value.shape != u.shape or value.dtype != u.dtype:
        got = f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"f of divergence {name!r} must keep shape {tuple(u.shape)} and dtype {u.dtype}, got {got}")
    bad = ~torch.isfinite(value)
    if bad.any():
        raise ValueError(f"f of divergence {name!r} must be finite for u > 0, f({u[bad][0]:.4g}) = {value[bad][0]:.4g}")
    if torch.isnan(at_zero).any() or (at_zero == -torch.inf).any():
        raise ValueError(f"f of divergence {name!r} must be a number or inf at u = 0, f(0) = {at_zero[0]:.4g}")
    at_one = float(value[u == 1][0])
    if abs(at_one) > 1e-12:
        raise ValueError(f"f of divergence {name!r} must be 0 at u = 1, f(1) = {at_one:.4g}")
    slope = value.diff() / u.diff()
    noise = 32 * torch.finfo(u.dtype).eps * (value.abs() + u + 1)[1:] / u.diff()
    sinks = slope.diff() < -(noise[1:] + noise[:-1])
    if sinks.any():
        where = int(sinks.nonzero()[0])
        raise ValueError(
            f"f of divergence {name!r} must be convex, its slope falls from {slope[where]:.6g} "
            f"to {slope[where + 1]:.6g} at u = {u[where + 1]:.4g}"
        )
    if slope[-1] - slope[0] <= noise[0] + noise[-1]:
        raise ValueError(
            f"f of divergence {name!r} must not be linear (slope {slope[0]:.4g} everywhere): "
            "D_f is 0, nothing is ever clipped"
        )


# ---- KL(pi_old || pi): the "forward KL" of the paper and of TRPO


def _kl_coin(log_p: Tensor, log_ratio: Tensor) -> Tensor:
    """-p log r - (1 - p) log c; the linear terms of f cancel."""
    log_c = log1mexp(log_ratio + log_p) - log1mexp(log_p)
    return -log_p.exp() * log_ratio + expm1(log_p) * log_c


def _kl_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """The band of KL is an exponential tilt of the coin: q = p e^t / (1 + p (e^t - 1)).

    Then log r = t - log Z and log c = -log Z with Z = 1 + p (e^t - 1), and the binding equation is K(t) = log Z - p t =
    delta: the cumulant generating function of a centred coin. At a root, log r = (1 - p) t - delta and log c = -p t -
    delta. The positive root is the upper bound, the negative one the lower. Exchanging p and 1 - p changes the sign of
    t, so the two roots for mu = min(p, 1 - p) serve every token. sqrt(K) is nearly linear in t (K is a parabola at 0
    and a line far away), so Halley's method on sqrt(K) - sqrt(delta) reaches float64 from these starts in three steps,
    for every p and delta, and float32 in two (2e-7 up to delta = 2). In place wherever it can be: fresh
    memory costs as much as the arithmetic.
    """
    steps = 2 if log_p.dtype == torch.float32 and isinstance(delta, float) and delta <= 2 else 3
    log_p = working_copy(log_p)
    beyond = log_p.clamp(max=LOG_P_MIN) - LOG_P_MIN
    log_p = log_p.clamp(LOG_P_MIN, LOG_P_MAX)
    # At 100 nats the bounds are 0 and 1/p in any float, from 300 on e^t overflows; below 1e-10 K drowns in rounding.
    delta = (delta if isinstance(delta, Tensor) else log_p.new_full((), delta)).clamp(1e-10, 100.0)
    p, rest = torch.exp(log_p), -expm1(log_p)
    rare = p < rest
    mu = torch.minimum(p, rest)
    nu = 1 - mu
    spread = mu * nu
    half = nu * (0.5 * delta)
    # The starts solve e^delta = 1 + mu (e^t - 1), which leaves out -mu t, and a parabola through K's minimum.
    up = (expm1(delta) / mu).log1p_()
    down = (half * half).addcmul_(spread, 2 * delta).sqrt_().add_(half).div_(spread).neg_()
    root = torch.sqrt(delta)
    for _ in range(steps):
        up, down = _halley(up, mu, nu, root), _halley(down, mu, nu, root)
    sinking = (nu * down).sub_(delta)
    log_low = torch.where(rare, sinking, (mu * up).add_(delta).neg_())
    log_high = torch.where(rare, (nu * up).sub_(delta), sinking.exp().mul_(mu).neg_().log1p_().sub_(log_p))
    # Below e^-300, r_high p stays what it is; log r_low = -delta / p is beyond -1e118, and need only stay there.
    return log_low.add_(beyond, alpha=1e200), log_high.sub_(beyond)


def _halley(t: Tensor, mu: Tensor, nu: Tensor, root: Tensor) -> Tensor:
    """One step of Halley's method on gap = sqrt(K(t)) - root, for the rarer side mu of the coin, nu = 1 - mu.

    With x = mu (e^t - 1), K' = x nu / (1 + x) and K'' = (x + mu) nu / (1 + x)^2, neither of which cancels, the step is
    4 gap K x (1 + x) / (x^2 nu (2 sqrt(K) + gap) - 2 gap K (x + mu)).
    """
    x = expm1(t).mul_(mu)
    k = torch.log1p(x).addcmul_(mu, t, value=-1)
    s = k.clamp(min=1e-300).sqrt_()
    gap = s - root
    denominator = s.mul_(2).add_(gap).mul_(x).mul_(x).mul_(nu)
    numerator = gap.mul_(k).mul_(2)
    denominator.addcmul_(numerator, x + mu, value=-1)
    return t.addcdiv(numerator.mul_(x).mul_(x.add_(1)), denominator, value=-2)


# ---- total variation


def _tv_coin(log_p: Tensor, log_ratio: Tensor) -> Tensor:
    """p |r - 1|."""
    return log_p.exp() * expm1(log_ratio).abs()


def _tv_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """r = 1 +- delta / p (eq:tv_bounds) within [0, 1/p] (eq:clamp_final_bounds)."""
    log_p = working_copy(log_p)
    log_delta, tail = log_double(delta)
    excess = log_p - log_delta - tail  # log(p / delta), exact to the last bit even where the lower bound saturates
    return log1mexp(-excess.clamp(min=0)), torch.minimum(torch.logaddexp(torch.zeros_like(excess), -excess), -log_p)


# ---- Pearson's chi2


def _chi2_coin(log_p: Tensor, log_ratio: Tensor) -> Tensor:
    """p / (1 - p) (r - 1)^2."""
    return -torch.exp(log_p) / expm1(log_p) * expm1(log_ratio) ** 2


def _chi2_log_bounds(log_p: Tensor, delta: Radius) -> Interval:
    """r = 1 +- s with s = sqrt(delta (1 - p) / p) (eq:chi2_bounds) within [0, 1/p] (eq:clamp_final_bounds).

    The lower bound saturates at p* = delta / (1 + delta). Near it 1 - s cancels; with p = p* e^x, s^2 = 1 + (1 + delta)
    (e^-x - 1), so 1 - s = (1 + delta) (1 - e^-x) / (1 + s), where x is exact.
    """
    log_p = working_copy(log_p)
    log_s = 0.5 * (log_double(delta)[0] + torch.log(-expm1(log_p)) - log_p)
    s = torch.exp(log_s)
    log_saturation, tail = log_double(delta, odds=True)
    x = (log_p - log_saturation - tail).clamp(min=0)
    gap = (1 + delta) * -expm1(-x) / (1 + s)
    log_low = torch.where(s < 0.5, torch.log1p(-s.clamp(max=0.5)), torch.log(gap))
    return log_low, torch.minimum(torch.logaddexp(torch.zeros_like(log_s), log_s), -log_p)


_REGISTRY = {
    d.name: d
    for d in (
        Divergence("kl", lambda u: u - 1 - torch.log(u), "KL(pi_old || pi)", _kl_log_bounds, _kl_coin),
        Divergence("tv", lambda u: 0.5 * (u - 1).abs(), "TV(pi, pi_old)", _tv_log_bounds, _tv_coin),
        Divergence("chi2", lambda u: (u - 1) ** 2, "chi2(pi || pi_old), Pearson", _chi2_log_bounds, _chi2_coin),
    )
}
