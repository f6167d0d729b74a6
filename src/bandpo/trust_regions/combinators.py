"""Combine rules: the wider or narrower of two, a cap, one for each sign.

What they make is a rule again, so they may stand in each other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..bounds import Bounds
from ..numerics import output_dtype
from .base import Context, Region, init_fields, parts_of
from .rules import Band, Clip

__all__ = ["ByProbability", "BySign", "Capped", "Intersect", "Relaxed", "Union"]


class Pair(Region, ABC):
    """Take each bound from one of two rules, the wider one. A subclass may take the other.

    Every rule here allows r = 1, so that the union of two intervals is an interval.
    """

    sees_probability: ClassVar[bool] = False
    ends: ClassVar[tuple[Callable[..., Tensor], Callable[..., Tensor]]] = torch.minimum, torch.maximum

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        a, b = (getattr(self, name).bounds(old_logps, context) for name in init_fields(self))
        lower, upper = self.ends
        return Bounds(lower(a.log_low, b.log_low), upper(a.log_high, b.log_high))


@dataclass(frozen=True)
class Union(Pair):
    """Take the wider of two rules on each side. A token may go where either lets it.

    >>> import torch, bandpo
    >>> rule = bandpo.Union(bandpo.Band("tv", 0.1), bandpo.Clip(0.2, 0.2))
    >>> rule.bounds(torch.tensor([0.1, 0.8]).log()).log_high.exp()
    tensor([2.0000, 1.2000])

    `Union(Band("kl", delta), Clip(eps, eps))` is TRGPPO's rule (arXiv 1901.10314).
    """

    kind: ClassVar[str] = "union"
    label_format: ClassVar[str] = "{first} or {second}"
    first: Region
    second: Region


@dataclass(frozen=True)
class Intersect(Pair):
    """Take the narrower of two rules on each side. A token may go where both let it.

    `Intersect(Band("kl", 0.05), Clip(0.2, 1.0))` gives rare tokens the clip's room and likely tokens the band's.
    """

    kind: ClassVar[str] = "intersect"
    ends: ClassVar[tuple[Callable[..., Tensor], Callable[..., Tensor]]] = torch.maximum, torch.minimum
    label_format: ClassVar[str] = "{first} and {second}"
    first: Region
    second: Region


@dataclass(frozen=True)
class Relaxed(Pair):
    """Take `Union` by the paper's name (sec:relaxed_band_analysis). The paper's is `Relaxed(Band("kl", 0.05), Clip(0.2,
    0.28))`.
    """

    kind: ClassVar[str] = "relaxed"
    label_format: ClassVar[str] = "{inner} or {outer}"
    inner: Region
    outer: Region

    @property
    def label(self) -> str:
        is_papers = self.outer == Clip(0.2, 0.28) and isinstance(self.inner, Band)
        return f"Relaxed {self.inner.label}" if is_papers else super().label


class Choice(Region, ABC):
    """Take one of two rules for each token. It is the first where a quantity is at most 0, the second above."""

    @abstractmethod
    def quantity(self, old_logps: Tensor, context: Context) -> Tensor:
        """Return what decides; where it is NaN, so are the bounds."""

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        old_logps = old_logps.detach().to(output_dtype(old_logps))
        x = self.quantity(old_logps, context or Context())
        old = torch.where(x.isnan(), torch.nan, old_logps)
        a, b = (part.bounds(old, context) for _, part in parts_of(self))
        return Bounds(
            torch.where(x <= 0, a.log_low, b.log_low), torch.where(x <= 0, a.log_high, b.log_high)
        )


@dataclass(frozen=True)
class ByProbability(Choice):
    """Take one rule for rare tokens, p <= threshold, and another for likely ones.

    >>> import torch, bandpo
    >>> rule = bandpo.ByProbability(0.2, bandpo.Clip(0.2, 1.0), bandpo.Clip(0.2, 0.2))
    >>> rule.bounds(torch.tensor([0.1, 0.8]).log()).log_high.exp()
    tensor([2.0000, 1.2000])

    The bounds jump at the threshold. `ByProbability(0.2, Band("kl", 0.05), Clip(0.2, 0.2))` is the band where the paper
    counts the tail, and GRPO's clip elsewhere.
    """

    kind: ClassVar[str] = "by_probability"
    label_format: ClassVar[str] = "{below} for p <= {threshold}, {above} for p > {threshold}"
    valid_range: ClassVar[Mapping[str, str]] = {"threshold": "(0, 1)"}
    threshold: float
    below: Region
    above: Region

    def quantity(self, old_logps: Tensor, context: Context) -> Tensor:
        return old_logps - math.log(self.threshold)


@dataclass(frozen=True)
class Capped(Region):
    """Cut another rule's upper ratio bound at `max_ratio` > 1.

    >>> import torch, bandpo
    >>> bandpo.Capped(bandpo.Band("tv", 0.1), 10).bounds(torch.tensor([0.001, 0.1]).log()).log_high.exp()
    tensor([10.,  2.])

    The public BandPO scripts cap at 10, the paper does not: at KL radius 0.05 the cap binds for p < 0.0071, the tail
    that the paper is about.
    """

    kind: ClassVar[str] = "capped"
    label_format: ClassVar[str] = "{region} cap {max_ratio}"
    sees_probability: ClassVar[bool] = False
    valid_range: ClassVar[Mapping[str, str]] = {"max_ratio": "(1, inf)"}
    region: Region
    max_ratio: float = 10.0

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        inner = self.region.bounds(old_logps, context)
        return Bounds(inner.log_low, inner.log_high.clamp(max=math.log(self.max_ratio)))


@dataclass(frozen=True)
class BySign(Choice):
    """Take one rule where A >= 0 and another where A < 0. Needs the advantages.

    >>> import torch, bandpo
    >>> rule, seen = bandpo.BySign(bandpo.Clip(0.2, 1.0), bandpo.Clip(0.2, 0.2)), torch.tensor([[1.0, -1.0]])
    >>> rule.bounds(torch.tensor([[-1.0, -1.0]]), bandpo.Context(advantages=seen)).log_high.exp()
    tensor([[2.0000, 1.2000]])

    With the minimum of PPO one side of each binds: the upper one of `positive`, the lower one of `negative`. As weights
    both do: TOPR (arXiv 2503.14286) is `BySign(Clip(0, 0), Clip(1, 0))` with `surrogate="weight"`.
    """

    kind: ClassVar[str] = "by_sign"
    label_format: ClassVar[str] = "{positive} for A >= 0, {negative} for A < 0"
    required: ClassVar[tuple[str, ...]] = ("advantages",)
    sees_probability: ClassVar[bool] = False
    positive: Region
    negative: Region

    def quantity(self, old_logps: Tensor, context: Context) -> Tensor:
        return -context.require("advantages", self)

    def branches(self) -> dict[str, Region]:
        return {"A >= 0": self.positive, "A < 0": self.negative}
