"""Combine rules: the wider or narrower of two, a cap, one for each sign, a decay.

What they make is a rule again, so they may stand in each other.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from ..bounds import Bounds
from ..numerics import listed, output_dtype
from .base import Context, Part, Region, check_number, given, parts_of
from .control import Moving
from .rules import Band, Clip

__all__ = ["ByProbability", "BySign", "Capped", "Decaying", "Intersect", "Relaxed", "Union"]


class Pair(Region, ABC):
    """Take each bound from one of two rules, the wider one. A subclass may take the other.

    Every rule here allows r = 1, so that the union of two intervals is an interval.
    """

    sees_probability: ClassVar[bool] = False
    ends: ClassVar[tuple[Callable[..., Tensor], Callable[..., Tensor]]] = torch.minimum, torch.maximum

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return one of the two lower bounds, and one of the two upper ones."""
        a, b = (getattr(self, name).bounds(old_logps, context) for name in given(self))
        lower, upper = self.ends
        return Bounds(lower(a.log_low, b.log_low), upper(a.log_high, b.log_high))


@dataclass(frozen=True)
class Union(Pair):
    """Take the wider of two rules on each side. A token may go where either lets it.

    `Union(Band("kl", delta), Clip(eps, eps))` is TRGPPO's rule (arXiv 1901.10314).
    """

    kind: ClassVar[str] = "union"
    words: ClassVar[str] = "{first} or {second}"
    first: Region
    second: Region


@dataclass(frozen=True)
class Intersect(Pair):
    """Take the narrower of two rules on each side. A token may go where both let it.

    `Intersect(Band("kl", 0.05), Clip(0.2, 1.0))` gives rare tokens the clip's room and likely tokens the band's.
    """

    kind: ClassVar[str] = "intersect"
    ends: ClassVar[tuple[Callable[..., Tensor], Callable[..., Tensor]]] = torch.maximum, torch.minimum
    words: ClassVar[str] = "{first} and {second}"
    first: Region
    second: Region


@dataclass(frozen=True)
class Relaxed(Pair):
    """Take `Union` by the paper's name (sec:relaxed_band_analysis). The paper's is `Relaxed(Band("kl", 0.05), Clip(0.2,
    0.28))`.
    """

    kind: ClassVar[str] = "relaxed"
    words: ClassVar[str] = "{inner} or {outer}"
    inner: Region
    outer: Region

    @property
    def label(self) -> str:
        """Return the paper's name if the rule is the paper's."""
        is_papers = self.outer == Clip(0.2, 0.28) and isinstance(self.inner, Band)
        return f"Relaxed {self.inner.label}" if is_papers else super().label


class Choice(Region, ABC):
    """Take one of two rules for each token. It is the first where a quantity is at most 0, the second above."""

    @abstractmethod
    def quantity(self, old_logps: Tensor, context: Context) -> Tensor:
        """Return what decides; where it is NaN, so are the bounds."""

    def sides(self) -> list[Region]:
        """Return the two rules."""
        return [part for _, part in parts_of(self)]

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return those of the token's rule."""
        old_logps = old_logps.detach().to(output_dtype(old_logps))
        x = self.quantity(old_logps, context or Context())
        old = torch.where(x.isnan(), torch.nan, old_logps)
        a, b = (each.bounds(old, context) for each in self.sides())
        return Bounds(torch.where(x <= 0, a.log_low, b.log_low), torch.where(x <= 0, a.log_high, b.log_high))


@dataclass(frozen=True)
class ByProbability(Choice):
    """Take one rule for rare tokens, p <= threshold, and another for likely ones.

    The bounds jump at the threshold. `ByProbability(0.2, Band("kl", 0.05), Clip(0.2, 0.2))` is the band where the paper
    counts the tail, and GRPO's clip elsewhere. Raises ValueError unless threshold is in (0, 1).
    """

    kind: ClassVar[str] = "by_probability"
    words: ClassVar[str] = "{below} for p <= {threshold}, {above} for p > {threshold}"
    limits: ClassVar[Mapping[str, str]] = {"threshold": "(0, 1)"}
    threshold: float
    below: Region
    above: Region

    def quantity(self, old_logps: Tensor, context: Context) -> Tensor:
        """Return log(p / threshold)."""
        return old_logps - math.log(self.threshold)


@dataclass(frozen=True)
class Capped(Region):
    """Cut another rule's upper ratio bound at `max_ratio` > 1.

    The public BandPO scripts cap at 10, the paper does not: at KL radius 0.05 the cap binds for p < 0.0071, the tail
    that the paper is about.
    """

    kind: ClassVar[str] = "capped"
    words: ClassVar[str] = "{region} cap {max_ratio}"
    stopped_by: ClassVar[str] = "cap"
    sees_probability: ClassVar[bool] = False
    limits: ClassVar[Mapping[str, str]] = {"max_ratio": "(1, inf)"}
    region: Region
    max_ratio: float = 10.0

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return r_low and min(r_high, max_ratio)."""
        inner = self.region.bounds(old_logps, context)
        return Bounds(inner.log_low, inner.log_high.clamp(max=math.log(self.max_ratio)))


@dataclass(frozen=True)
class BySign(Choice):
    """Take one rule where A >= 0 and another where A < 0. Needs context.advantages.

    With the minimum of PPO one side of each binds: the upper one of `positive`, the lower one of `negative`. As weights
    both do: TOPR (arXiv 2503.14286) is `BySign(Clip(0, 0), Clip(1, 0))` with `apply="weight"`.
    """

    kind: ClassVar[str] = "by_sign"
    words: ClassVar[str] = "{positive} for A >= 0, {negative} for A < 0"
    needs: ClassVar[tuple[str, ...]] = ("advantages",)
    sees_probability: ClassVar[bool] = False
    positive: Region
    negative: Region

    def quantity(self, old_logps: Tensor, context: Context) -> Tensor:
        """Return -A."""
        return -context.require("advantages", self)

    def cases(self) -> list[Part]:
        """List one for each sign."""
        return [Part("A >= 0", self.positive, 0), Part("A < 0", self.negative, 1)]


@dataclass(frozen=True)
class Decaying(Moving):
    """Move one number of a rule to `end` over `steps` optimizer steps. Needs context.step.

    `Decaying(Band("kl", 0.2), field="delta", end=0.02, steps=1000)`. With t = min(step / steps, 1): linear is
    start + (end - start) t, and cosine is linear in (1 - cos(pi t)) / 2.

    Args:
        region: the rule at step 0.
        field: the name of its number, or several that all go to `end`: `["eps_low", "eps_high"]`.
        end: the value from `steps` on.
        steps: at least 1.
        shape: linear or cosine.
    """

    kind: ClassVar[str] = "decaying"
    words: ClassVar[str] = "{region}, {field} to {end} in {steps} steps ({shape})"
    needs: ClassVar[tuple[str, ...]] = ("step",)
    region: Region
    field: str | tuple[str, ...]
    end: float
    steps: int
    shape: str = "linear"

    def __post_init__(self) -> None:
        self._starts("field")
        check_number(self, "end", "(-inf, inf)")
        check_number(self, "steps", "[1, inf)", integer=True)
        if self.shape not in _SHAPES:
            raise ValueError(f"shape of Decaying must be one of {list(_SHAPES)}, got {self.shape!r}")
        if "controlled" in self.region.needs:
            raise ValueError("region of Decaying must not be Controlled, whose controller would not know what decays")
        self.at(self.steps)

    def at(self, step: int) -> Region:
        """Return the rule in force at a step."""
        t, names = min(max(step / self.steps, 0.0), 1.0), listed(self.field)
        values = {name: _SHAPES[self.shape](getattr(self.region, name), self.end, t) for name in names}
        return dataclasses.replace(cast(Any, self.region), **values)

    def in_force(self, context: Context) -> Region:
        """Return that of context.step."""
        return self.at(context.require("step", self))

    def cases(self) -> list[Part]:
        """List it at the first step and from the last one on."""
        return [Part("step 0", self.at(0)), Part(f"from step {self.steps}", self.at(self.steps))]


def _linear(start: float, end: float, t: float) -> float:
    return start * (1 - t) + end * t  # both ends without rounding


_SHAPES: dict[str, Callable[[float, float, float], float]] = {
    "linear": _linear,
    "cosine": lambda start, end, t: _linear(start, end, (1 - math.cos(math.pi * t)) / 2),
}
