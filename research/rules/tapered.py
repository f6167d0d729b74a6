"""Let a clip's upper side fall with the current probability."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bandpo.bounds import Bounds
from bandpo.numerics import working_copy
from bandpo.trust_regions.base import Context, Region, check_number
from bandpo.trust_regions.rules import Clip


@dataclass(frozen=True)
class Tapered(Region):
    """1 - eps_low <= r <= 1 + eps_high - slope * pi: the more probable a token is by now, the less it may still grow.

    Solved for r, the upper bound is (1 + eps_high) / (1 + slope p), p old; at least 1. It is that of FlexEC
    (arXiv 2602.09782), where beta is eps_high and alpha, which is negative, -slope; checked against its authors' own
    page, which gives neither number, and no formula of its lower bound.

    Raises ValueError unless 0 <= eps_low <= 1 and the other two are at least 0 and finite.
    """

    kind: ClassVar[str] = "tapered"
    eps_low: float
    eps_high: float
    slope: float

    def __post_init__(self) -> None:
        check_number(self, "eps_low", "[0, 1]")
        check_number(self, "eps_high", "[0, inf)")
        check_number(self, "slope", "[0, inf)")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        log_p = working_copy(old_logps.detach()).clamp(max=0)
        log_high = math.log1p(self.eps_high) - torch.log1p(self.slope * log_p.exp())
        low = Clip(self.eps_low, 0.0).bounds(old_logps).log_low
        return Bounds(low, log_high.clamp(min=0).to(low))

    @property
    def label(self) -> str:
        """A clip whose upper side falls with pi."""
        return f"Clip {self.eps_low}/({self.eps_high} - {self.slope} pi)"
