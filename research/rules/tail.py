"""Contract a rule for the tokens that have moved furthest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bandpo.bounds import Bounds
from bandpo.numerics import LOWEST, output_dtype, working_copy
from bandpo.trust_regions.base import Context, Region, check_number, check_part

# No token is cut by more: a factor of 0 times an interval without an end would be NaN.
_MOST = 1e100


@dataclass(frozen=True)
class TailContracted(Region):
    """Another rule, narrower for the tokens that have moved furthest, on the side to which they have moved.

    With q the quantile of |log r| over the tokens that the loss is given, and |log r| > q > 0: the upper epsilon of the
    rule where log r > 0, the lower one where log r < 0, times 1 / (1 + ((|log r| - q) / q)^exponent). Needs
    context.logps, which `policy_loss` fills; a micro-batch has the quantile of its own tokens.

    That far tokens get less is the idea of SAT (arXiv 2607.18722). The factor, 1 at q, is ours: SAT's was not found.
    Raises ValueError unless quantile is in (0, 1) and exponent positive and finite.
    """

    kind: ClassVar[str] = "tail_contracted"
    words: ClassVar[str] = "{region} contracted beyond quantile {quantile} by exponent {exponent}"
    needs: ClassVar[tuple[str, ...]] = ("logps",)
    sees_probability: ClassVar[bool] = False
    region: Region
    quantile: float = 0.9
    exponent: float = 2.0

    def __post_init__(self) -> None:
        check_part(self, "region")
        check_number(self, "quantile", "(0, 1)")
        check_number(self, "exponent", "(0, inf)")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        context = context or Context()
        old_logps = old_logps.detach().to(output_dtype(old_logps))
        now, mask = context.require("logps", self), context.response_mask
        moved = now.to(old_logps.dtype).clamp(min=LOWEST) - old_logps.clamp(min=LOWEST)
        moved = moved if mask is None else torch.where(mask, moved, 0.0)
        counted = moved.abs() if mask is None else torch.where(mask, moved.abs(), torch.nan)
        limit = torch.nanquantile(counted, self.quantile)
        inner = self.region.bounds(old_logps, context)
        moved, limit = working_copy(moved), working_copy(limit)
        beyond = torch.where((moved.abs() > limit) & (limit > 0), moved.abs() / limit - 1, 0.0 * moved)
        cut = (beyond**self.exponent).clamp(max=_MOST)
        up = (moved > 0).to(old_logps.device)
        # log(1 + f (e^bound - 1)) of f = 1 / (1 + cut), also of bounds whose ratio overflows.
        bound = torch.where(up, inner.log_high, inner.log_low)
        less = torch.logaddexp(working_copy(bound), torch.log(cut)) - torch.log1p(cut)
        less = less.to(bound.device, bound.dtype)
        low = torch.where(up, inner.log_low, less.clamp(max=0))
        high = torch.where(up, less.clamp(min=0), inner.log_high)
        return Bounds(low, high)

    def cases(self) -> dict[str, Region]:
        """The rule where it is not contracted."""
        return {f"|log r| up to quantile {self.quantile}": self.region}
