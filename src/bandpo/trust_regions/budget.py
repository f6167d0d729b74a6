"""Limit what the tokens of a response move together: each by what those before it have moved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..band.divergences import Divergence, divergence
from ..band.operator import band_bounds, divergence_at
from ..bounds import Bounds
from ..numerics import LOG_P_MAX, LOG_P_MIN, LOWEST, output_dtype, working_copy
from .base import Context, Part, Region, check_number
from .rules import Band

__all__ = ["PrefixBudget"]


@dataclass(frozen=True)
class PrefixBudget(Region):
    """CPPO (arXiv 2606.10968): a band for each token, narrowed by what the tokens before it have spent.

    Token t of a response of T is inside if w_t D_t <= min(delta, delta + budget W_{t-1} - S_{t-1}). D_t is what its
    move costs at least, see `divergence_at`: |pi - pi_old| for TV. S_{t-1} is the sum of w D over all tokens before it,
    inside or not, W_{t-1} that of w, and w_t falls in a straight line from 1 to `least_weight` at the end of the
    response. So the token has the band of radius min(...) / w_t, and r = 1 alone once the prefix has overspent. The
    rule does not ask for signs: a move back costs what a move away does. Needs context.logps; a token's bounds depend
    on the tokens before it, on no later one, and on no other response.

    Args:
        divergence: as in `Band`. The paper's radii are for TV.
        delta: the radius of the first token, positive and finite; 0.15 in the paper.
        budget: what a token adds to what its successors may spend, at least 0 and finite; 0.015 in the paper.
        least_weight: the weight of a response's last token, in (0, 1].
    """

    kind: ClassVar[str] = "prefix_budget"
    needs: ClassVar[tuple[str, ...]] = ("logps",)
    is_of_single_tokens: ClassVar[bool] = True
    divergence: str | Divergence = "tv"
    delta: float = 0.15
    budget: float = 0.015
    least_weight: float = 0.8

    def __post_init__(self) -> None:
        if (kind := divergence(self.divergence)).is_registered:  # equal nodes are equal
            object.__setattr__(self, "divergence", kind.name)
        check_number(self, "delta", 0, math.inf, open_low=True, open_high=True)
        check_number(self, "budget", 0, math.inf, open_high=True)
        check_number(self, "least_weight", 0, 1, open_low=True)

    @torch.no_grad()
    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return the band of the radius that is left for each token."""
        left, weight = self._left(old_logps, context)
        band = band_bounds(working_copy(old_logps), self.divergence, (left / weight).clamp(min=1e-300))
        ends = (torch.where(left <= 0, x.clamp(0, 0), x) for x in (band.log_low, band.log_high))
        low, high = (x.to(old_logps.device, output_dtype(old_logps)) for x in ends)
        return Bounds(low, high)

    @torch.no_grad()
    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """Ask whether w_t g_f(p, r) <= what is left; nothing is solved. r = 1 is inside."""
        left, weight = self._left(old_logps, context)
        spent = weight * divergence_at(working_copy(log_ratio), working_copy(old_logps), self.divergence)
        return (spent <= left).to(log_ratio.device) | (log_ratio == 0) | (old_logps == -torch.inf)

    def cases(self) -> list[Part]:
        """List the bands at both ends of a response."""
        first, last = (Band(self.divergence, self.delta / weight) for weight in (1, self.least_weight))
        return [Part("first token", first), Part("last token, nothing overspent", last)]

    def _left(self, old_logps: Tensor, context: Context | None) -> tuple[Tensor, Tensor]:
        """Return what w_t D_t may be, and w_t."""
        log_p, log_ratio, mask = moves(old_logps, context, self)
        # In a compiled graph tensors, else every new number would make a new graph.
        delta, budget, least = (log_p.new_zeros(()) + x for x in (self.delta, self.budget, self.least_weight))
        place = mask.cumsum(-1).to(log_p.dtype) - 1
        weight = 1 - (1 - least) * place / (mask.sum(-1, keepdim=True) - 1).clamp(min=1)
        gain = weight * (budget - divergence_at(log_ratio, log_p, self.divergence))
        # Of the tokens before; not all of them minus its own, since infinity minus infinity is NaN.
        balance = pad(torch.where(mask, gain, 0.0), (1, 0))[..., :-1].cumsum(-1)
        return delta + balance.clamp(max=0), weight


def moves(old_logps: Tensor, context: Context | None, region: Region) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p, log r and the mask, in float64: near pi = 1 the difference of two float32 is all of log(1 - pi).

    What has no cost has r = 1: padding, a NaN, which is that of its own token alone, and tokens of p = 0.
    """
    context = context or Context()
    old, new = (working_copy(x.detach()) for x in (old_logps, context.require("logps", region)))
    mask = torch.ones_like(old, dtype=torch.bool) if context.response_mask is None else context.response_mask
    mask = mask.to(old.device)
    log_p = torch.where(old.isnan(), -1.0, old).clamp(LOG_P_MIN, LOG_P_MAX)
    # The new probability is kept, also of a p that is not.
    log_ratio = torch.minimum(new.clamp(LOWEST, LOG_P_MAX) - log_p, -log_p)
    return log_p, torch.where(mask & (old > -torch.inf) & ~new.isnan(), log_ratio, 0.0), mask
