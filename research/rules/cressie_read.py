"""The power divergences, of which contests tried some."""

from __future__ import annotations

import torch
from torch import Tensor

from bandpo.band import Divergence
from bandpo.numerics import expm1, expm1_minus_x, is_number


def cressie_read(order: float) -> Divergence:
    """Return the power divergence of order l (Cressie and Read, 1984).

    f(u) = (u^(l+1) - 1 - (l+1)(u - 1)) / (l (l+1)).
    Order 0 is `reverse_kl`, -1 is `kl`, 1 is half of `chi2`, -2 half of `neyman_chi2`, -1/2 four times `hellinger`; an
    alpha-divergence is the order alpha - 1. Once registered, its name in a config file is `cressie_read(l)`.

    Args:
        order: l in [-20, 20].

    Raises:
        ValueError: order is not a number in that range.

    >>> import torch, bandpo
    >>> log_p = torch.tensor([0.08]).log()
    >>> half, whole = bandpo.band_bounds(log_p, cressie_read(1), 0.05), bandpo.band_bounds(log_p, "chi2", 0.1)
    >>> torch.testing.assert_close(half.log_high, whole.log_high)
    """
    if not is_number(order) or not -20 <= order <= 20:
        raise ValueError(f"order of cressie_read must be a number in [-20, 20], got {order!r}")
    order = float(order) + 0.0  # -0.0 is 0.0
    form = _power if order >= -0.5 else _dual_power

    def log_f(x: Tensor) -> Tensor:
        return form(order, x)

    name, direction = f"cressie_read({order!r})", f"power divergence of order {order:g}"
    return Divergence(name, lambda u: log_f(torch.log(u)), direction, log_f=log_f)


def _power(order: float, x: Tensor) -> Tensor:
    """Return f for l >= -1/2: (k(u) + u (u^l - 1 - l log u) / l) / (1 + l) with k of reverse KL."""
    x = x.clamp(min=-700)
    bend = torch.exp(x) * expm1_minus_x(order * x) / order if order else 0.0
    return (torch.exp(x) * expm1_minus_x(-x) + bend) / (1 + order)


def _dual_power(order: float, x: Tensor) -> Tensor:
    """Return f for l < -1/2: u f(1/u) of order -1 - l.

    That is (k(u) - (u^(1+l) - 1 - (1+l) log u) / (1+l)) / -l with k of KL.
    """
    if order == -1:
        return expm1_minus_x(x)
    far = (expm1((1 + order) * x) / (1 + order) - expm1(x)) / order
    return torch.where(x < -1, far, (expm1_minus_x(x) - expm1_minus_x((1 + order) * x) / (1 + order)) / -order)
