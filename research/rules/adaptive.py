"""Give each token a radius. The band is wider where a law says so, and on average as wide as without it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from bandpo.band.operator import band_bounds
from bandpo.bounds import Bounds
from bandpo.numerics import output_dtype
from bandpo.trust_regions.base import Context, Node, Region
from bandpo.trust_regions.nodes import read_field, read_node
from bandpo.trust_regions.rules import Band

__all__ = ["Adaptive", "Tilt", "TokenLaw"]


class TokenLaw(Node, ABC, family="law"):
    """Weigh each token's radius; derive a frozen dataclass with a `kind` from it."""

    @abstractmethod
    def weights(self, old_logps: Tensor, context: Context) -> Tensor:
        """Return positive numbers that broadcast to `old_logps`, (B, T), detached. Only their ratios matter."""


@dataclass(frozen=True)
class Tilt(TokenLaw):
    """Weigh by exp(gain x) of a quantity x, kept within [1 / limit, limit].

    A positive gain widens the band where x is large, a negative one narrows it there. x is, for each token of old
    probability p, named by `of`:

    - entropy: of the old policy there, in nats ("old_entropies" of the context's `extra`);
    - surprise: -log p, in nats, so that the weight is p^-gain;
    - position: the share of the response before the token, from 0 to nearly 1.
    """

    kind: ClassVar[str] = "tilt"
    valid_range: ClassVar[Mapping[str, str]] = {"gain": "(-inf, inf)", "limit": "(1, inf)"}
    of: str
    gain: float
    limit: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of not in QUANTITIES:
            raise ValueError(f"of of Tilt must be one of {list(QUANTITIES)}, got {self.of!r}")

    @property
    def required(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return QUANTITIES[self.of]

    @property
    def label(self) -> str:
        within = f" within {self.limit}" if self.limit != Tilt.limit else ""
        return f"{self.of} {self.gain:+g}{within}"

    def weights(self, old_logps: Tensor, context: Context) -> Tensor:
        x = -old_logps.clamp(max=0)
        for name in self.required:
            x = context.require(name, self)
        if self.of == "position":
            x = (x.cumsum(-1) - 1) / x.sum(-1, keepdim=True).clamp(min=1)
        x, most = (old_logps.new_zeros(()) + x).to(output_dtype(old_logps)), math.log(self.limit)
        return (self.gain * x).clamp(-most, most).exp()


# The fields of the context that each is made of.
QUANTITIES: dict[str, tuple[str, ...]] = {
    "entropy": ("old_entropies",),
    "surprise": (),
    "position": ("response_mask",),
}


@dataclass(frozen=True)
class Adaptive(Region):
    """Give a band another radius for each token: delta_t = delta w_t / mean(w). The weights w are a law's.

    The paper leaves such a delta_t as future work. A law gives some tokens more room and others less; the mean radius
    stays delta. The rule is a `Band`; anything else raises ValueError.

    The mean is over all response tokens that the loss is given, also where the band governs some of them only, as in
    `ByProbability`. With micro-batches or processes add up `sums` over all parts, and pass total / count as
    `mean_weight` of the context's `extra`.

    >>> import torch
    >>> from bandpo.trust_regions import Band, Context
    >>> from research.rules.adaptive import Adaptive, Tilt
    >>> region = Adaptive(Band("tv", 0.1), Tilt("surprise", 0.5))
    >>> mask = torch.ones(1, 2, dtype=torch.bool)
    >>> bounds = region.bounds(torch.tensor([[0.04, 0.64]]).log(), Context(response_mask=mask))
    >>> bounds.variation(torch.tensor([[0.04, 0.64]]).log()).high        # weights 5 and 1.25
    tensor([[0.1600, 0.0400]])
    """

    kind: ClassVar[str] = "adaptive"
    label_format: ClassVar[str] = "{region} by {law}"
    region: Region
    law: TokenLaw

    @staticmethod
    def read_field(name: str, value: Any) -> Any:
        return read_node(value, TokenLaw) if name == "law" and isinstance(value, Mapping) else read_field(name, value)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.law, TokenLaw):
            raise ValueError(f"law of Adaptive must be a TokenLaw, of {sorted(TokenLaw.kinds)}, got {self.law!r}")
        if not isinstance(self.region, Band):
            raise ValueError(f"region of Adaptive must be a Band, got {self.region!r}")

    @property
    def required(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("response_mask", *self.law.required)

    def branches(self) -> dict[str, Region]:
        return {"a token of mean weight": self.region}

    def weights(self, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """Return w of each token, (B, T), before the mean is taken. Padding does not matter."""
        return self.law.weights(old_logps.detach(), context or Context()).expand(old_logps.shape)

    def sums(self, old_logps: Tensor, context: Context) -> Tensor:
        """Return the sum of w over the response tokens, and their number, (2,).

        Both add up over parts of a batch, and their ratio is the `mean_weight`. Tokens whose weight is NaN count in
        neither.
        """
        weights = self.weights(old_logps, context)
        counted = context.require("response_mask", self) & ~weights.isnan()
        return torch.stack([torch.where(counted, weights, 0.0).sum(), counted.sum().to(weights.dtype)])

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        context, band = context or Context(), cast(Band, self.region)
        weights, mask, mean = self.weights(old_logps, context), context.response_mask, context.extra.get("mean_weight")
        if mean is None:
            total, count = self.sums(old_logps, context).unbind()
            mean = total / count.clamp(min=1)
        is_number = ~weights.isnan()
        # Padding, in which anything may stand, has the mean. A token with NaN as its weight gets NaN as its bounds.
        scale = torch.where(is_number if mask is None else mask & is_number, weights / mean, 1.0)
        radii = {name: value * scale for name in ("delta", "delta_low", "delta_high") if (value := getattr(band, name))}
        return band_bounds(torch.where(is_number, old_logps, torch.nan), band.divergence, **radii)
