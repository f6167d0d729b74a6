"""f-divergences D_f(pi || pi_old) = sum_a pi_old(a) f(pi(a) / pi_old(a)) (eq:f_divergence_def), by generator and, where
there is one, by closed form.

A move of one token from p to q = r p costs least when all other tokens are rescaled by one factor c
(lem:complement_rescaling), so every divergence enters the library as a function of two numbers: g_f(p, r) = p f(r) + (1
- p) f(c), the divergence between two coins.
"""

# pyright: reportUnnecessaryIsInstance=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import nearest
from ..numerics import excess, expm1, is_number, made_to_last
from .closed_forms import chi2_log_bounds, hellinger_log_bounds, neyman_log_bounds, tv_log_bounds
from .solver import Interval, Radius, kl_log_bounds

# More than the largest radius, 1e10, over the smallest probability that is solved, e^-300.
_FAR = 1e141


@dataclass(frozen=True)
class Divergence:
    """A divergence, given by its generator alone or with faster exact forms.

    Args:
        name: what a config file calls it, after `register_divergence`.
        f: the generator, elementwise on float64 tensors: convex, f(1) = 0, not linear; f(0) may be inf, kinks are
            allowed. It may overflow to inf far from 1, but only from values of 1e141 on. This is checked for u from
            1e-6 to 1e6, to about 1e-9 of f.
        direction: how the divergence is written, for people; "D_f(pi || pi_old)" if empty.
        log_bounds: optional `(log_p, delta) -> (log_low, log_high)` for log_p in [-inf, 0], saturation included. Its
            dtype, float32 or float64, says how precise the result must be; it is best computed in float64 always.
        log_f: optional, f as a function of log u in [-inf, 700], with its minimum 0 at log u = 0 and no cancellation
            near it. With f alone, float64 results lose digits for small radii; float32 ones do not.

    Raises:
        ValueError: f is not a generator; the message names the points u at which it fails.

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
    log_f: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"name must be a non-empty string, got {self.name!r}")
        with made_to_last():
            _check_generator(self.name, self.f)

    def generator(self, log_u: Tensor) -> Tensor:
        """f(u)."""
        return self.f(torch.exp(log_u)) if self.log_f is None else self.log_f(log_u)

    def to_config(self) -> str:
        """The registered name. Raises ValueError if there is none."""
        if not self.is_registered:
            raise ValueError(f"{self.name!r} is an unregistered Divergence; call bandpo.register_divergence first")
        return self.name

    @property
    def title(self) -> str:
        """The name in labels: of an unregistered one it is said that it is its user's own."""
        if not self.is_registered:
            return f"{self.name} (own)"
        return self.name.upper() if self.name in ("kl", "tv") else self.name

    @property
    def is_registered(self) -> bool:
        """True if its name stands for it in config files."""
        try:
            return divergence(self.name) == self
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"{self.name}: {self.direction or 'D_f(pi || pi_old)'}"


def constant(function: Any) -> Any:
    """torch.compiler.assume_constant_result, which would load the compiler on import to set this one attribute."""
    function._dynamo_marked_constant = True
    return function


def divergence(name: str | Divergence) -> Divergence:
    """The registered divergence of that name; a `Divergence` passes through. Raises ValueError for an unknown name."""
    if isinstance(name, Divergence):
        return name
    if isinstance(name, str) and name.startswith("cressie_read("):
        return _POWERS[_named_power(name)]
    name = name.lower() if isinstance(name, str) and name.lower() in _REGISTRY else name
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ValueError(
            f"divergence must be one of {sorted(_REGISTRY)} or a bandpo.Divergence (an own one gets a name by "
            f"bandpo.register_divergence), got {name!r}{nearest(str(name), sorted(_REGISTRY))}"
        )
    return _REGISTRY[name]


@constant  # the generator of a new one is checked, which no graph can hold
def _named_power(name: str) -> str:
    """The same name as `_POWERS` has it, of a divergence that is there from now on."""
    power = re.fullmatch(r"cressie_read\(([^()]+)\)", name)
    if power is None:
        raise ValueError(f"a power divergence is named cressie_read(order), got {name!r}")
    return cressie_read(_as_number(power[1])).name


def register_divergence(new: Divergence) -> Divergence:
    """Give a divergence its name in config files. Raises ValueError if another one has the name already."""
    if _REGISTRY.setdefault(new.name, new) != new:
        raise ValueError(f"name {new.name!r} is taken by {_REGISTRY[new.name]}; choose another")
    return new


def _as_number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _check_generator(name: str, f: Callable[[Tensor], Tensor]) -> None:
    below = torch.cat([torch.logspace(-6, -0.01, 512), 1 - torch.logspace(-1.65, -5, 128)]).double()
    u = torch.cat([below, below.new_ones(1), below.flip(0).reciprocal()])
    # Beside each point seven more, of which only rounding is wanted.
    step = torch.minimum(1e-4 * u, 0.02 * (u - 1).abs()) * (u - 1).sign()
    beside = u[:, None] + step[:, None] * torch.arange(8, dtype=torch.float64)
    try:
        value = f(u)
        rough = f(beside.flatten())
        at_zero = f(u.new_zeros(1))
    except Exception as error:
        raise ValueError(
            f"f of divergence {name!r} must map a float64 tensor to a tensor, it raised: {error}"
        ) from error
    if not isinstance(value, Tensor) or value.shape != u.shape or value.dtype != u.dtype:
        got = f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"f of divergence {name!r} must keep shape {tuple(u.shape)} and dtype {u.dtype}, got {got}")
    _check_finite(name, f, u, value)
    if torch.isnan(at_zero).any() or (at_zero == -torch.inf).any():
        raise ValueError(f"f of divergence {name!r} must be a number or inf at u = 0, f(0) = {at_zero[0]:.4g}")
    at_one = float(value[u == 1][0])
    if abs(at_one) > 1e-12:
        raise ValueError(f"f of divergence {name!r} must be 0 at u = 1, f(1) = {at_one:.4g}")
    u, value, rough = u[value < torch.inf], value[value < torch.inf], rough.view(-1, 8)[value < torch.inf]
    # The terms of a sum may be far larger than the sum: how much of it is rounding is seen in third differences, and
    # the median of neighbours tells rounding, which is everywhere, from a kink.
    noise = rough.diff(n=3).abs().amax(1).nan_to_num(0.0, 0.0)
    noise = torch.nn.functional.pad(noise[None], (16, 16), "replicate")[0].unfold(0, 33, 1).median(1).values
    linear = True
    for apart in (1, 4, 16, 64, 256):
        (a, b, c), (at_a, at_b, at_c) = ((x[: -2 * apart], x[apart:-apart], x[2 * apart :]) for x in (u, value))
        left, right = at_a * ((c - b) / (c - a)), at_c * ((b - a) / (c - a))
        above = at_b - (left + right)
        # torch's softplus, for one, leaves out 2e-9 from a point on.
        rounding = 1e-9 * (left.abs() + at_b.abs() + right.abs()) + 32 * torch.finfo(u.dtype).eps * (b + 1)
        rounding = rounding + 16 * noise[apart:-apart]
        if (above > rounding).any():
            where = int((above - rounding).argmax())
            raise ValueError(
                f"f of divergence {name!r} must be convex, but f({b[where]:.6g}) = {at_b[where]:.6g} is above the line "
                f"from f({a[where]:.6g}) = {at_a[where]:.6g} to f({c[where]:.6g}) = {at_c[where]:.6g}"
            )
        linear = linear and bool((above >= -rounding).all())
    if linear:
        slope = (value[-1] - value[0]) / (u[-1] - u[0])
        raise ValueError(
            f"f of divergence {name!r} must not be linear (slope {slope:.4g} everywhere): "
            "D_f is 0, nothing is ever clipped"
        )


def _check_finite(name: str, f: Callable[[Tensor], Tensor], u: Tensor, value: Tensor) -> None:
    """Far from 1 f may overflow, but no sooner than all that it is ever compared with: a radius over a probability."""
    middle = len(u) // 2
    for outwards in (torch.arange(middle, len(u)), torch.arange(middle, -1, -1)):
        bad = (~torch.isfinite(value[outwards])).nonzero()
        if not len(bad):
            continue
        first = int(bad[0])
        inner, outer = u[outwards[max(first - 1, 0)]][None], u[outwards[first]][None]
        for _ in range(100):
            between = 0.5 * (inner + outer)
            inner, outer = (between, outer) if torch.isfinite(f(between)).all() else (inner, between)
        last, beyond = float(f(inner)), value[outwards[first:]]
        if not (last >= _FAR and (beyond == torch.inf).all()):
            raise ValueError(
                f"f of divergence {name!r} must be finite for u > 0, up to an overflow from {_FAR:g} on; "
                f"f({float(inner):.6g}) = {last:.4g} and f({float(outer):.6g}) = {float(f(outer)):.4g}"
            )


# ---- generators as functions of x = log u, without cancellation near x = 0


def _reverse_kl(x: Tensor) -> Tensor:
    """u log u - u + 1 = u (1/u - 1 + log u), the KL generator of the coin seen from the other side."""
    x = x.clamp(min=-700)
    return torch.exp(x) * excess(-x)


def _jensen_shannon(x: Tensor) -> Tensor:
    """Half of what u and 1 cost against their mean m = (1 + u) / 2: m (k(u / m) + k(1 / m)) / 2, k of reverse KL."""
    half = torch.log1p(0.5 * expm1(x))
    return 0.5 * torch.exp(half) * (_reverse_kl(x.clamp(min=-700) - half) + _reverse_kl(-half))


# Made once each: equal names are equal objects, and a compiled graph only looks a name up.
_POWERS: dict[str, Divergence] = {}


def cressie_read(order: float) -> Divergence:
    """The power divergence f(u) = (u^(l+1) - 1 - (l+1)(u - 1)) / (l (l+1)) of order l (Cressie and Read, 1984).

    Order 0 is `reverse_kl`, -1 is `kl`, 1 is half of `chi2`, -2 half of `neyman_chi2`, -1/2 four times `hellinger`; an
    alpha-divergence is the order alpha - 1. In a config file its name is `cressie_read(l)`.

    Args:
        order: l in [-20, 20].

    Raises:
        ValueError: order is not a number in that range.

    >>> import torch, bandpo
    >>> log_p = torch.tensor([0.08]).log()
    >>> half, whole = bandpo.band_bounds(log_p, bandpo.cressie_read(1), 0.05), bandpo.band_bounds(log_p, "chi2", 0.1)
    >>> torch.testing.assert_close(half.log_high, whole.log_high)
    """
    if not is_number(order) or not -20 <= order <= 20:
        raise ValueError(f"order of cressie_read must be a number in [-20, 20], got {order!r}")
    order = float(order) + 0.0  # -0.0 is 0.0
    name = f"cressie_read({order!r})"
    if name in _POWERS:
        return _POWERS[name]

    form = _power if order >= -0.5 else _dual_power

    def log_f(x: Tensor) -> Tensor:
        return form(order, x)

    new = Divergence(name, lambda u: log_f(torch.log(u)), f"power divergence of order {order:g}", log_f=log_f)
    return _POWERS.setdefault(name, new)


def _power(order: float, x: Tensor) -> Tensor:
    """For l >= -1/2: (k(u) + u (u^l - 1 - l log u) / l) / (1 + l) with k of reverse KL."""
    x = x.clamp(min=-700)
    bend = torch.exp(x) * excess(order * x) / order if order else 0.0
    return (_reverse_kl(x) + bend) / (1 + order)


def _dual_power(order: float, x: Tensor) -> Tensor:
    """For l < -1/2: u f(1/u) of order -1 - l, which is (k(u) - (u^(1+l) - 1 - (1+l) log u) / (1+l)) / -l, k of KL."""
    if order == -1:
        return excess(x)
    far = (expm1((1 + order) * x) / (1 + order) - expm1(x)) / order
    return torch.where(x < -1, far, (excess(x) - excess((1 + order) * x) / (1 + order)) / -order)


_REGISTRY = {
    d.name: d
    for d in (
        Divergence("kl", lambda u: u - 1 - torch.log(u), "KL(pi_old || pi)", kl_log_bounds, excess),
        Divergence("reverse_kl", lambda u: torch.xlogy(u, u) - u + 1, "KL(pi || pi_old)", None, _reverse_kl),
        Divergence(
            "tv", lambda u: 0.5 * (u - 1).abs(), "TV(pi, pi_old)", tv_log_bounds, lambda x: 0.5 * expm1(x).abs()
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
            neyman_log_bounds,
            lambda x: 4 * torch.sinh(0.5 * x) ** 2,
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
            None,
            _jensen_shannon,
        ),
    )
}
