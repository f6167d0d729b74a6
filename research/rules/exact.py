"""The rule that asks the divergence itself, where somebody has computed it."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bandpo.bounds import Bounds
from bandpo.numerics import output_dtype
from bandpo.trust_regions.base import Context, Region, check_number
from bandpo.trust_regions.rules import Clip


@dataclass(frozen=True)
class Exact(Region):
    """All or nothing by the whole distribution: a token may go anywhere where context.divergences is at most delta, and
    may move no further where it is not.

    A band stops a token once its own move must cost more than delta; this rule stops it, in the direction in which it
    went, once the policy there has moved by more than delta, whichever token moved it. The bounds are the simplex, 0 to
    1 / p, or r = 1. With `surrogate="mask"` it is DPPO's mask (arXiv 2602.04879) by the divergence that it is given:
    `full_divergence`, or for the sampler's k likeliest tokens `top_k_divergence`, by total variation in the paper's
    runs. Of each token, so that it goes with `ratio="token"`. Raises ValueError unless delta is positive and finite.
    """

    kind: ClassVar[str] = "exact"
    required: ClassVar[tuple[str, ...]] = ("divergences",)
    delta: float

    def __post_init__(self) -> None:
        check_number(self, "delta", "(0, inf)")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class; NaN where log p or the divergence is."""
        spent = (context or Context()).require("divergences", self)
        log_p = old_logps.detach().to(output_dtype(old_logps)).clamp(max=0)
        stopped = spent.detach().to(log_p).clamp(0, 0) + log_p.clamp(0, 0)  # 0, or NaN
        inside = spent <= self.delta
        return Bounds(torch.where(inside, stopped - torch.inf, stopped), torch.where(inside, stopped - log_p, stopped))

    @property
    def label(self) -> str:
        """The radius."""
        return f"Exact divergence {self.delta}"

    def branches(self) -> dict[str, Region]:
        """All, and nothing."""
        inside, outside = Clip(1.0, math.inf), Clip(0.0, 0.0)
        return {f"a divergence of at most {self.delta:g}": inside, f"a divergence above {self.delta:g}": outside}
