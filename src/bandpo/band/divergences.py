"""Define f-divergences by their generators and, where there is one, a closed form. D_f(pi || pi_old) is the sum over
tokens a of pi_old(a) f(pi(a) / pi_old(a)) (eq:f_divergence_def).

A move of one token from p to q = r p costs least when all other tokens are rescaled by one factor c
(lem:complement_rescaling), so every divergence enters the library as a function of two numbers: g_f(p, r) = p f(r) + (1
- p) f(c), the divergence between two coins.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..errors import nearest
from ..numerics import expm1, expm1_minus_x, outside_torch_modes
from .closed_forms import (
    Interval,
    Radius,
    chi2_log_bounds,
    hellinger_log_bounds,
    tv_log_bounds,
)
from .kl import kl_log_bounds
from .solver import limit_slopes


@dataclass(frozen=True)
class Divergence:
    """Give a divergence by its generator, alone or with faster exact forms.

    Args:
        name: what a config file calls it, after `register_divergence`.
        f: the generator, elementwise on float64 tensors: convex, f(1) = 0, not linear; f(0) may be inf. It may
            overflow to inf only where its true value is above 1e141. `bandpo.testing.check_divergence` looks closely.
        direction: how the divergence is written, for people; "D_f(pi || pi_old)" if empty.
        log_bounds: optional `(log_p, delta) -> (log_low, log_high)` for log_p in [-inf, 0], saturation included. Its
            dtype, float32 or float64, says how precise the result must be; it is best computed in float64 always.
        log_f: optional, f as a function of log u in [-inf, 700], with its minimum 0 at log u = 0 and no cancellation
            near it. With f alone, results lose digits for small radii: float64 ones, and float32 ones below 1e-8.
        kinks: True if f has a kink at a point other than u = 1. Then the roots are bisected.
        iterates: True if `log_bounds` is a solver, without a closed form. Then float32 bounds are looked up.

    Raises:
        ValueError: f is not a generator; the message names the points u at which it fails.

    >>> import torch, bandpo
    >>> squared = bandpo.band.Divergence("squared", lambda u: (u - 1) ** 2)      # Pearson's chi2, by its generator only
    >>> log_p = torch.tensor([0.08]).log()
    >>> mine, closed = (bandpo.band_bounds(log_p, d, delta=0.05) for d in (squared, "chi2"))
    >>> torch.testing.assert_close(mine.log_high, closed.log_high)
    """

    name: str
    f: Callable[[Tensor], Tensor]
    direction: str = ""
    log_bounds: Callable[[Tensor, Radius], Interval] | None = field(default=None, repr=False)
    log_f: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)
    kinks: bool = False
    iterates: bool = False

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"name must be a non-empty string, got {self.name!r}")
        with outside_torch_modes():
            _check_generator(self.name, self.f)

    def __hash__(self) -> int:
        """Hash the name alone: a generator need not be hashable."""
        return hash(self.name)

    def generator(self, log_u: Tensor) -> Tensor:
        """Return f(u)."""
        return self.f(torch.exp(log_u)) if self.log_f is None else self.log_f(log_u)

    @cached_property
    def slopes(self) -> tuple[float, float]:
        """Return the result of `limit_slopes` for the generator, computed once."""
        with outside_torch_modes():
            return limit_slopes(self.generator)

    def to_config(self) -> str:
        """Return the registered name. Raises ValueError if there is none."""
        if not self.is_registered:
            raise ValueError(
                f"{self.name!r} is an unregistered Divergence; call bandpo.band.register_divergence first"
            )
        return self.name

    @property
    def title(self) -> str:
        """Return the name for labels, marked "(own)" if it is not registered."""
        name = self.name.upper() if self.name in ("kl", "tv") else self.name
        return name if self.is_registered else f"{self.name} (own)"

    @property
    def is_registered(self) -> bool:
        """Check that its name stands for it in config files."""
        return _REGISTRY.get(self.name) == self

    def __str__(self) -> str:
        return f"{self.name}: {self.direction or 'D_f(pi || pi_old)'}"


def divergence(name: str | Divergence) -> Divergence:
    """Return the registered divergence of that name; a `Divergence` passes through. Raises ValueError if unknown."""
    if isinstance(name, Divergence):
        return name
    registered = _REGISTRY.get(str(name)) or _REGISTRY.get(str(name).lower())
    if registered is None:
        raise ValueError(
            f"divergence must be one of {sorted(_REGISTRY)} or a bandpo.band.Divergence (an own one gets a name by "
            f"bandpo.band.register_divergence), got {name!r}{nearest(str(name), sorted(_REGISTRY))}"
        )
    return registered


def register_divergence(new: Divergence) -> Divergence:
    """Give a divergence its name in config files. Raises ValueError if another one has the name already."""
    if _REGISTRY.setdefault(new.name, new) != new:
        raise ValueError(f"name {new.name!r} is taken by {_REGISTRY[new.name]}; choose another")
    return new


def _check_generator(name: str, f: Callable[[Tensor], Tensor]) -> None:
    below = torch.cat([torch.logspace(-6, -0.01, 512), 1 - torch.logspace(-1.65, -5, 128)]).double()
    u = torch.cat([below.new_zeros(1), below, below.new_ones(1), below.flip(0).reciprocal()])
    value, what = f(u), f"f of divergence {name!r} must"
    if not isinstance(value, Tensor) or value.shape != u.shape or value.dtype != u.dtype:
        raise ValueError(
            f"{what} keep shape {tuple(u.shape)} and dtype {u.dtype}, got "
            f"{tuple(getattr(value, 'shape', ()))} of {getattr(value, 'dtype', type(value).__name__)}"
        )
    for holds, condition in (
        (value > -torch.inf, "be a number or inf"),
        ((value < torch.inf) | (u < 1e-3) | (u > 100), "be finite from 0.001 to 100"),
        ((value.abs() <= 1e-12) | (u != 1), "be 0 at u = 1"),
    ):
        if not holds.all():
            i = int((~holds).nonzero()[0])
            raise ValueError(f"{what} {condition}, f({u[i]:.6g}) = {value[i]:.4g}")
    u, value, bent = u[value < torch.inf], value[value < torch.inf], False
    for apart in (1, 4, 16, 64, 256):
        (a, b, c), (at_a, at_b, at_c) = (
            (x[: -2 * apart], x[apart:-apart], x[2 * apart :]) for x in (u, value)
        )
        left, right = at_a * ((c - b) / (c - a)), at_c * ((b - a) / (c - a))
        above = at_b - (left + right)
        rounding = 1e-9 * (left.abs() + at_b.abs() + right.abs() + b.clamp(max=1))
        if (above > rounding).any():
            i = int((above - rounding).argmax())
            raise ValueError(
                f"{what} be convex, but f({b[i]:.6g}) is above the line from u = {a[i]:.6g} to {c[i]:.6g}"
            )
        bent = bent or bool((above < -rounding).any())
    if not bent:
        raise ValueError(f"{what} not be linear: D_f is 0, nothing is ever clipped")


# ---- generators as functions of x = log u, without cancellation near x = 0


def _reverse_kl(x: Tensor) -> Tensor:
    """Return u log u - u + 1 as u (1/u - 1 + log u). It is KL's generator of the coin seen from the other side."""
    x = x.clamp(min=-700)
    return torch.exp(x) * expm1_minus_x(-x)


def _jensen_shannon(x: Tensor) -> Tensor:
    """Return half of the costs of u and 1 against their mean m. It is m (k(u / m) + k(1 / m)) / 2, k of reverse KL."""
    half = torch.log1p(0.5 * expm1(x))
    return 0.5 * torch.exp(half) * (_reverse_kl(x.clamp(min=-700) - half) + _reverse_kl(-half))


_REGISTRY = {
    d.name: d
    for d in (
        Divergence(
            "kl",
            lambda u: u - 1 - torch.log(u),
            "KL(pi_old || pi)",
            kl_log_bounds,
            expm1_minus_x,
            iterates=True,
        ),
        Divergence(
            "reverse_kl", lambda u: torch.xlogy(u, u) - u + 1, "KL(pi || pi_old)", log_f=_reverse_kl
        ),
        Divergence(
            "tv",
            lambda u: 0.5 * (u - 1).abs(),
            "TV(pi, pi_old)",
            tv_log_bounds,
            lambda x: 0.5 * expm1(x).abs(),
        ),
        Divergence(
            "chi2",
            lambda u: (u - 1) ** 2,
            "chi2(pi || pi_old), Pearson",
            chi2_log_bounds,
            lambda x: expm1(x) ** 2,
        ),
        Divergence(
            "neyman_chi2",
            lambda u: (u - 1) ** 2 / u,
            "chi2(pi_old || pi), Neyman",
            log_f=lambda x: 4 * torch.sinh(0.5 * x) ** 2,
        ),
        Divergence(
            "hellinger",
            lambda u: 0.5 * (torch.sqrt(u) - 1) ** 2,
            "H^2(pi, pi_old) = 1 - sum sqrt(pi pi_old)",
            hellinger_log_bounds,
            lambda x: 0.5 * expm1(0.5 * x) ** 2,
        ),
        Divergence(
            "jensen_shannon",
            lambda u: 0.5 * (torch.xlogy(u, u) - (u + 1) * torch.log(0.5 * (u + 1))),
            "JS(pi, pi_old), at most log 2",
            log_f=_jensen_shannon,
        ),
    )
}
