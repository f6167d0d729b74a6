"""Take one rule for a response's uncertain tokens and another for the rest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bandpo.numerics import output_dtype
from bandpo.trust_regions.base import Context, Region
from bandpo.trust_regions.combinators import Choice


@dataclass(frozen=True)
class ByEntropy(Choice):
    """One rule for tokens whose entropy is at most the quantile of those of its response, another for those above it.

    ASPO (arXiv 2510.06062) clips at 0.2 up to the quantile of 0.8 and at 0.4 above it. Needs extra["entropies"]; the
    quantile is interpolated between two tokens. Raises ValueError unless quantile is in (0, 1).
    """

    kind: ClassVar[str] = "by_entropy"
    label_format: ClassVar[str] = "{below} up to quantile {quantile} of entropy, {above} beyond"
    required: ClassVar[tuple[str, ...]] = ("entropies",)
    sees_probability: ClassVar[bool] = False
    valid_range: ClassVar[Mapping[str, str]] = {"quantile": "(0, 1)"}
    quantile: float
    below: Region
    above: Region

    def quantity(self, old_logps: Tensor, context: Context) -> Tensor:
        """Return how far the entropy is above the quantile over the tokens of its response."""
        entropies, mask = context.require("entropies", self), context.response_mask
        x = entropies.detach().to(output_dtype(entropies))
        x = x if mask is None else torch.where(mask, x, torch.nan)
        return entropies - torch.nanquantile(x, self.quantile, dim=-1, keepdim=True)

    def branches(self) -> dict[str, Region]:
        """List the two rules."""
        return {f"entropy up to quantile {self.quantile}": self.below, "entropy above it": self.above}
