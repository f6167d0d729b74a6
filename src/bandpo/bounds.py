"""`Bounds`: the interval in which a token's log-ratio may stay. Every rule makes one, every loss takes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .numerics import expm1


class Variation(NamedTuple):
    """The change of probability that a token is allowed, `low <= pi - pi_old <= high`."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True, eq=False)
class Bounds:
    """Hold an interval of each token's log-ratio. log_low <= log(pi / pi_old) <= log_high.

    >>> import bandpo, torch
    >>> bounds = bandpo.Clip(0.2, 0.28).bounds(torch.tensor([0.5, 0.1]).log())
    >>> bounds.clamp(torch.tensor([1.5, 0.9]).log()).exp()
    tensor([1.2800, 0.9000])

    Log space on purpose: in float32 the ratio 1/p overflows below p = e^-88, and 1 + 1e-8 rounds to 1.

    Attributes:
        log_low: at most 0; -inf where the token may vanish.
        log_high: at least 0; at p = 0 it may be +inf.
        epsilons: the two of `Clip` as the user wrote them, for trainers that clamp by epsilons.
    """

    log_low: Tensor
    log_high: Tensor
    epsilons: tuple[float, float] | None = None

    def clamp(self, log_ratio: Tensor) -> Tensor:
        """Clip the log-ratio to the bounds: Band(r) = clip(r, r_low, r_high). See eq:band_operator."""
        return torch.clamp(log_ratio, self.log_low, self.log_high)

    def contains(self, log_ratio: Tensor) -> Tensor:
        """Return True where the log-ratio is inside the closed interval."""
        return (self.log_low <= log_ratio) & (log_ratio <= self.log_high)

    def variation(self, old_logps: Tensor) -> Variation:
        """Return the allowed change of probability within the simplex. (r_low - 1) p <= dp <= (r_high - 1) p.

        It is eq:fixed_variation_range_set intersected with eq:theoretical_variation_range_set.
        """
        log_p = old_logps.to(self.log_low.dtype).clamp(max=0)
        p, log_q = log_p.exp(), self.log_high + log_p
        # p * expm1(s) keeps small moves exact; e^(s + log p) - p does not overflow for large ones.
        up = torch.where(self.log_high < 1, p * expm1(self.log_high.clamp(max=1)), log_q.exp() - p)
        up = torch.where(log_p == -torch.inf, log_q.new_zeros(()), up)  # a token of p = 0 has no ratio
        return Variation(p * expm1(self.log_low), torch.minimum(up, -expm1(log_p)))

    @property
    def eps_low(self) -> Tensor | float:
        """Return 1 - r_low, for trainers that clamp the ratio at 1 - eps_low."""
        return -expm1(self.log_low) if self.epsilons is None else self.epsilons[0]

    @property
    def eps_high(self) -> Tensor | float:
        """Return r_high - 1, for trainers that clamp at 1 + eps_high. It is +inf where float32 cannot hold it."""
        return expm1(self.log_high) if self.epsilons is None else self.epsilons[1]
