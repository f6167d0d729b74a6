"""Name the union of a KL band and a clip as its paper does."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bandpo.bounds import Bounds
from bandpo.trust_regions.base import Context, Region, check_number
from bandpo.trust_regions.combinators import Union
from bandpo.trust_regions.rules import Band, Clip


@dataclass(frozen=True)
class TRGPPO(Region):
    """The KL ball of radius delta, widened to contain 1 +- eps (arXiv 1901.10314), as contests have it.

    It is `Union(Band("kl", delta), Clip(eps, eps))`. That its bounds are min(l_delta, 1 - eps) and max(u_delta,
    1 + eps) was not checked against the paper. Raises ValueError unless delta is positive and finite and 0 <= eps <= 1.
    """

    kind: ClassVar[str] = "trgppo"
    delta: float
    eps: float = 0.2

    def __post_init__(self) -> None:
        check_number(self, "delta", "(0, inf)")
        check_number(self, "eps", "[0, 1]")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return those of the union."""
        return Union(Band("kl", self.delta), Clip(self.eps, self.eps)).bounds(old_logps, context)
