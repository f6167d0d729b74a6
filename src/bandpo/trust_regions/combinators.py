"""Rules made of rules: the wider or the narrower of two, a cap, one for each sign of the advantage or on each side of a
probability, a radius that decays. What they make is a rule again, so they may stand in each other."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from ..band.table import Octaves
from ..bounds import Bounds
from ..numerics import is_traced, listed, made_to_last, output_dtype
from .base import (
    Context,
    Moving,
    Part,
    Region,
    check_integer,
    check_number,
    check_numbers,
    check_region,
)
from .control import Controlled
from .rules import Band, Clip, cap


class Pair(Region, ABC):
    """A rule that takes each of its bounds from one of two rules, its fields."""

    is_phrase: ClassVar[bool] = True

    @abstractmethod
    def of_first(self, old_logps: Tensor) -> tuple[Tensor, Tensor]:
        """Say where the lower bound is that of the first rule, and where the upper one is."""

    def _own_stops(self, log_p: Tensor) -> list[tuple[str, str]]:
        (a, first), (b, second) = self._named()
        each = zip(first.stops(log_p), second.stops(log_p), *self.of_first(log_p), strict=True)
        return [
            (f"{a} {x[0]}" if low else f"{b} {y[0]}", f"{a} {x[1]}" if high else f"{b} {y[1]}")
            for x, y, low, high in each
        ]

    def legend(self) -> list[str]:
        """The two rules by the names of their fields."""
        return [f"  {name}: {part.label}" for name, part in self._named()]

    def _named(self) -> list[tuple[str, Region]]:
        names = [field.name for field in dataclasses.fields(cast(Any, self))]
        return list(zip(names[-2:], self.parts, strict=True))


class Wider(Pair, ABC):
    """The wider of two rules on each side."""

    sees_probability: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """Both, with an or."""
        first, second = self.parts
        return f"{first.part_label} or {second.part_label}"

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """The lower of the lower bounds, the higher of the upper ones."""
        a, b = (part.bounds(old_logps, context) for part in self.parts)
        capped = _capped(a.log_high >= b.log_high, a, b)
        return Bounds(torch.minimum(a.log_low, b.log_low), torch.maximum(a.log_high, b.log_high), capped)

    def of_first(self, old_logps: Tensor) -> tuple[Tensor, Tensor]:
        """Where it is the wider one."""
        a, b = (part.bounds(old_logps) for part in self.parts)
        return a.log_low <= b.log_low, a.log_high >= b.log_high


@dataclass(frozen=True)
class Union(Wider):
    """The wider of two rules on each side: a token may go where either of them lets it.

    Every rule here allows r = 1, so that the union of two intervals is an interval.
    """

    kind: ClassVar[str] = "union"
    first: Region
    second: Region

    def __post_init__(self) -> None:
        check_region(self, "first")
        check_region(self, "second")


@dataclass(frozen=True)
class Intersect(Pair):
    """The narrower of two rules on each side: a token may go where both of them let it.

    `Intersect(Band("kl", 0.05), Clip(0.2, 1.0))` gives rare tokens the clip's room and likely tokens the band's.
    """

    kind: ClassVar[str] = "intersect"
    sees_probability: ClassVar[bool] = False
    first: Region
    second: Region

    def __post_init__(self) -> None:
        check_region(self, "first")
        check_region(self, "second")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """The higher of the lower bounds, the lower of the upper ones."""
        a, b = self.first.bounds(old_logps, context), self.second.bounds(old_logps, context)
        capped = _capped(a.log_high <= b.log_high, a, b)
        return Bounds(torch.maximum(a.log_low, b.log_low), torch.minimum(a.log_high, b.log_high), capped)

    @property
    def label(self) -> str:
        """Both, with an and."""
        return f"{self.first.part_label} and {self.second.part_label}"

    def of_first(self, old_logps: Tensor) -> tuple[Tensor, Tensor]:
        """Where it is the narrower one."""
        a, b = self.first.bounds(old_logps), self.second.bounds(old_logps)
        return a.log_low >= b.log_low, a.log_high <= b.log_high


@dataclass(frozen=True)
class Relaxed(Wider):
    """The wider of two rules on each side, by the paper's name. `Relaxed(Band("kl", 0.05), Clip(0.2, 0.28))` is its
    Relaxed Band (sec:relaxed_band_analysis), which is TRGPPO's rule (arXiv 1901.10314). See `Union`."""

    kind: ClassVar[str] = "relaxed"
    inner: Region
    outer: Region

    def __post_init__(self) -> None:
        check_region(self, "inner")
        check_region(self, "outer")

    @property
    def label(self) -> str:
        """The paper's name where it is the paper's."""
        is_papers = self.outer == Clip(0.2, 0.28) and isinstance(self.inner, Band)
        return f"Relaxed {self.inner.label}" if is_papers else super().label


@dataclass(frozen=True)
class TRGPPO(Region):
    """The KL ball of radius delta, widened to contain 1 +- eps (arXiv 1901.10314).

    It is `Union(Band("kl", delta), Clip(eps, eps))` by its own name.

    That its bounds are min(l_delta, 1 - eps) and max(u_delta, 1 + eps) was not checked against the paper, nor was a
    default of delta, so there is none. Raises ValueError unless delta is positive and finite and 0 <= eps <= 1.
    """

    kind: ClassVar[str] = "trgppo"
    delta: float
    eps: float = 0.2

    def __post_init__(self) -> None:
        check_number(self, "delta", 0, math.inf, open_low=True, open_high=True)
        check_number(self, "eps", 0, 1)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        return Union(Band("kl", self.delta), Clip(self.eps, self.eps)).bounds(old_logps, context)

    @property
    def label(self) -> str:
        """The radius and the epsilon."""
        return f"TRGPPO {self.delta}/{self.eps}"

    @property
    def free(self) -> tuple[str, ...]:
        """The radius."""
        return ("delta",)


@dataclass(frozen=True)
class Capped(Region):
    """Another rule with its upper ratio bound cut at `max_ratio` > 1.

    The public BandPO scripts cap at 10, the paper does not: at KL radius 0.05 the cap binds for p < 0.0071, the tail
    that the paper is about.
    """

    kind: ClassVar[str] = "capped"
    sees_probability: ClassVar[bool] = False
    region: Region
    max_ratio: float = 10.0

    def __post_init__(self) -> None:
        check_region(self, "region")
        check_number(self, "max_ratio", 1, math.inf, open_low=True, open_high=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """min(r_high, max_ratio), and where that is the cap."""
        return cap(self.region.bounds(old_logps, context), self.max_ratio)

    @property
    def label(self) -> str:
        """That of the rule, with the cap."""
        return f"{self.region.part_label} cap {self.max_ratio}"

    def _own_stops(self, log_p: Tensor) -> list[tuple[str, str]]:
        return self.region.stops(log_p)

    def legend(self) -> list[str]:
        """That of the rule."""
        return self.region.legend()

    def critical(self, names: Sequence[str], log_ratio: Tensor, old_logps: Tensor) -> Tensor | None:
        """That of the rule, for ratios up to the cap."""
        inner = tuple(name.removeprefix("region.") for name in names)
        if not all(name.startswith("region.") for name in names):
            return None
        found = self.region.critical(inner, log_ratio, old_logps)
        return None if found is None else torch.where(log_ratio > math.log(self.max_ratio), torch.inf, found)


@dataclass(frozen=True)
class BySign(Region):
    """One rule for tokens with advantage A >= 0 and another for those with A < 0; needs context.advantages.

    With the minimum of PPO one side of each binds: the upper one of `positive`, the lower one of `negative`. As weights
    both do: TOPR (arXiv 2503.14286) is `BySign(Clip(0, 0), Clip(1, 0))` with `apply="weight"`.
    """

    kind: ClassVar[str] = "by_sign"
    needs: ClassVar[tuple[str, ...]] = ("advantages",)
    sees_probability: ClassVar[bool] = False
    is_phrase: ClassVar[bool] = True
    positive: Region
    negative: Region

    def __post_init__(self) -> None:
        check_region(self, "positive")
        check_region(self, "negative")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Those of the rule for the token's sign."""
        up = self._up(context)
        a, b = self.positive.bounds(old_logps, context), self.negative.bounds(old_logps, context)
        return chosen(up, a, b)

    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """What the rule for the token's sign says."""
        a, b = (region.contains(log_ratio, old_logps, context) for region in (self.positive, self.negative))
        return torch.where(self._up(context), a, b)

    @property
    def label(self) -> str:
        """The two rules by the sign."""
        return f"{self.positive.part_label} for A >= 0, {self.negative.part_label} for A < 0"

    def cases(self) -> list[Part]:
        """One for each sign."""
        return [Part("A >= 0", self.positive, 0), Part("A < 0", self.negative, 1)]

    def _up(self, context: Context | None) -> Tensor:
        return (context or Context()).require("advantages", self) >= 0


@dataclass(frozen=True)
class ByProbability(Pair):
    """One rule for rare tokens, of old probability p <= threshold, and another for the likely ones.

    The bounds jump at the threshold. `ByProbability(0.2, Band("kl", 0.05), Clip(0.2, 0.2))` is the band where the paper
    counts the tail, and GRPO's clip elsewhere. Raises ValueError unless threshold is in (0, 1).
    """

    kind: ClassVar[str] = "by_probability"
    threshold: float
    below: Region
    above: Region

    def __post_init__(self) -> None:
        check_number(self, "threshold", 0, 1, open_low=True, open_high=True)
        check_region(self, "below")
        check_region(self, "above")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Those of the rule for the token's probability."""
        rare, _ = self.of_first(old_logps)
        a, b = self.below.bounds(old_logps, context), self.above.bounds(old_logps, context)
        return chosen(rare, a, b)

    def of_first(self, old_logps: Tensor) -> tuple[Tensor, Tensor]:
        """Where the token is rare."""
        rare = old_logps.detach() <= math.log(self.threshold)
        return rare, rare

    @property
    def label(self) -> str:
        """The two rules by the threshold."""
        below, above = self.below.part_label, self.above.part_label
        return f"{below} for p <= {self.threshold}, {above} for p > {self.threshold}"


@dataclass(frozen=True)
class Decaying(Moving):
    """A rule of which one number changes with context.step, from what it is to `end`, over `steps` optimizer steps.

    `Decaying(Band("kl", 0.2), field="delta", end=0.02, steps=1000)`. With t = min(step / steps, 1): linear is
    start + (end - start) t, exponential start (end / start)^t, cosine linear in (1 - cos(pi t)) / 2.

    Args:
        region: the rule at step 0.
        field: the name of its number, or several that all go to `end`: `["eps_low", "eps_high"]`.
        end: the value from `steps` on.
        steps: at least 1.
        shape: linear, exponential (both ends positive) or cosine.
    """

    kind: ClassVar[str] = "decaying"
    needs: ClassVar[tuple[str, ...]] = ("step",)
    sees_probability: ClassVar[bool] = False
    region: Region
    field: str | tuple[str, ...]
    end: float
    steps: int
    shape: str = "linear"

    def __post_init__(self) -> None:
        check_region(self, "region")
        check_number(self, "end", -math.inf, math.inf, open_low=True, open_high=True)
        check_integer(self, "steps", 1)
        if self.shape not in _SHAPES:
            raise ValueError(f"shape of Decaying must be one of {list(_SHAPES)}, got {self.shape!r}")
        for name, start in check_numbers(self, "field", self.region).items():
            if self.shape == "exponential" and not (start > 0 and self.end > 0):
                raise ValueError(
                    f"an exponential needs positive ends, got {name} of {type(self.region).__name__} from {start} to "
                    f"{self.end}"
                )
        if isinstance(self.region, Controlled):
            raise ValueError("region of Decaying must not be Controlled, whose controller would not know what decays")
        self.at(self.steps)

    def at(self, step: int) -> Region:
        """The rule in force at a step."""
        t = min(max(step / self.steps, 0.0), 1.0)
        region = cast(Any, self.region)
        values = {
            name: self.end if t == 1 else _SHAPES[self.shape](getattr(region, name), self.end, t)
            for name in listed(self.field)
        }
        return dataclasses.replace(region, **values)

    def in_force(self, context: Context) -> Region:
        """That of context.step."""
        return self.at(context.require("step", self))

    @property
    def label(self) -> str:
        """The rule at step 0, and where its numbers go."""
        kind = f" ({self.shape})" if self.shape != "linear" else ""
        return f"{self.region.label}, {', '.join(listed(self.field))} to {self.end} in {self.steps} steps{kind}"

    def cases(self) -> list[Part]:
        """At the first step and from the last one on."""
        return [Part("step 0", self.at(0)), Part(f"from step {self.steps}", self.at(self.steps))]


_SHAPES: dict[str, Callable[[float, float, float], float]] = {
    "linear": lambda start, end, t: start + (end - start) * t,
    "exponential": lambda start, end, t: start * (end / start) ** t,
    "cosine": lambda start, end, t: start + (end - start) * (1 - math.cos(math.pi * t)) / 2,
}


@dataclass(frozen=True)
class Table(Region):
    """Another rule, looked up: two linear interpolations instead of its formulas (the paper's O(1) lookup,
    sec:discussion).

    r_low and log r_high are tabulated over x = -log p, in 2^k cells per octave of x from 2^-30 to 2^9 (p = e^-512;
    beyond, the last cell's lines go on, and nothing is promised). k is the smallest for which both are *proven* to be
    within `tolerance`, but for the rounding of float32: if, while p falls, r_low falls, log r_high rises, and r_high p
    falls, then r_low is confined to a rectangle between two knots and log r_high to a parallelogram. A `Band` is like
    that by prop:monotonicity, and so are the other rules here but `ByProbability`; of that and of one's own rule it is
    checked at the knots, not between them. The error itself is much smaller than what can be proven without looking at
    the formulas.

    Args:
        region: a rule whose bounds depend on nothing but the old probability.
        tolerance: of r_low, and of log r_high where -log p < 1; beyond, of log r_high / -log p. In [1e-4, 1).

    Attributes:
        error: the proven limit of the error, for rules that are monotone in that sense.

    Raises:
        ValueError: the bounds need more than the probability, do not widen while p falls, are NaN, or would need more
            than 2^14 cells per octave.
    """

    kind: ClassVar[str] = "table"
    sees_probability: ClassVar[bool] = False
    region: Region
    tolerance: float = 5e-3
    error: float = dataclasses.field(init=False, repr=False, compare=False)
    _bits: int = dataclasses.field(init=False, repr=False, compare=False)
    _knots: dict[torch.device, list[Tensor]] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_region(self, "region")
        check_number(self, "tolerance", 1e-4, 1, open_high=True)
        with made_to_last():
            bits, (knots, error) = 6, _tabulate(self.region, 6)
            while error > self.tolerance and bits < 14:
                bits += 1
                knots, error = _tabulate(self.region, bits)
        if error > self.tolerance:
            raise ValueError(
                f"tolerance of Table must be at least {error:.2g} for {self.region!r}, got {self.tolerance!r}"
            )
        for name, value in {"error": error, "_bits": bits, "_knots": {torch.device("cpu"): knots}}.items():
            object.__setattr__(self, name, value)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Those of the region, within `error`."""
        old = old_logps.detach()
        x = (-old).to(torch.float32).clamp(min=0).flatten()
        if x.device not in self._knots and not is_traced(x):
            with made_to_last():
                self._knots[x.device] = [knot.to(x.device) for knot in self._knots[torch.device("cpu")]]
        knots = self._knots.get(x.device) or [knot.to(x.device) for knot in self._knots[torch.device("cpu")]]
        low, fall, high, rise, capped, limits = knots
        cell, start = Octaves(_FIRST, _END, self._bits).find(x)
        offset = (x - start) / start
        r_low = torch.addcmul(low.index_select(0, cell), fall.index_select(0, cell), offset)
        log_high = torch.addcmul(high.index_select(0, cell), rise.index_select(0, cell), offset)
        impossible = x == torch.inf
        log_low = torch.where(impossible, limits[0], r_low.clamp_(0, 1).log_())
        log_high = torch.where(impossible, limits[1], log_high.clamp_(min=0))
        dtype = output_dtype(old)
        return Bounds(
            log_low.view_as(old).to(dtype),
            log_high.view_as(old).to(dtype),
            capped.index_select(0, cell).view_as(old) if len(capped) else None,
        )

    @property
    def label(self) -> str:
        """That of the rule, and a tolerance that is not the usual one."""
        within = f" within {self.tolerance}" if self.tolerance != Table.tolerance else ""
        return f"{self.region.label} (table{within})"


# The octaves of -log p.
_FIRST, _END = -30, 9


def _tabulate(region: Region, bits: int) -> tuple[list[Tensor], float]:
    """Value and slope of r_low and of log r_high in each cell, whether a cap holds, the limits for p = 0; the error."""
    ends = Octaves(_FIRST, _END, bits).starts()
    start, x = ends[:-1], torch.cat([ends, ends.new_tensor([torch.inf])])
    x[0] = 0.0  # nothing happens between p = 1 - 1e-9 and 1: the first cell begins there
    try:
        bounds = region.bounds(-x.to(torch.float32))
    except ValueError as error:
        raise ValueError(f"region of Table must depend on the old probability alone: {error}") from error
    low, high = bounds.log_low.double().exp(), bounds.log_high.double()
    limits = [bounds.log_low[-1], bounds.log_high[-1]]
    x, low, high = x[:-1], low[:-1], high[:-1]
    width, fall, rise = x.diff(), low.diff(), high.diff()
    rise = torch.where(high[1:] == high[:-1], 0.0, rise)  # also of two infinite ones
    rounding = 1e-6 * (1 + x[1:])
    wrong = ~((fall <= rounding) & (rise >= -rounding) & (rise <= width + rounding))  # NaN is wrong too
    fall, rise = fall.clamp(max=0), rise.clamp(min=0)
    if wrong.any():
        p = math.exp(-float(x[1:][wrong][0]))
        raise ValueError(
            f"region of Table must allow smaller tokens a wider interval of ratios and not more probability; "
            f"{region!r} does not at p = {p:.3g}"
        )
    error = torch.maximum(-fall, rise * (1 - rise / width) / x[:-1].clamp(min=1)).max()
    # At an offset of (x - start) / start; the first cell is wider than it starts.
    scale = start / width
    low[0], high[0] = low[0] + fall[0] * start[0] / width[0], high[0] + rise[0] * start[0] / width[0]
    capped = torch.empty(0, dtype=torch.bool)
    if bounds.capped is not None:
        capped = bounds.capped[:-2] & bounds.capped[1:-1]
    cells = [low[:-1], fall * scale, high[:-1], rise * scale]
    return [*(each.to(torch.float32) for each in cells), capped, torch.stack(limits)], float(error)


def depends_on_probability(region: Region) -> bool:
    """False if the bounds are the same for every old probability: for `Clip`, say, and for what is made of it alone."""
    return region.sees_probability or any(depends_on_probability(part) for part in region.parts)


def chosen(first: Tensor, a: Bounds, b: Bounds) -> Bounds:
    """Those of `a` where `first`, else those of `b`."""
    log_low, log_high = torch.where(first, a.log_low, b.log_low), torch.where(first, a.log_high, b.log_high)
    return Bounds(log_low, log_high, _capped(first, a, b))


def _capped(first: Tensor, a: Bounds, b: Bounds) -> Tensor | None:
    """Where a cap set the upper bound, which is that of `a` where `first`, else that of `b`."""
    if a.capped is None and b.capped is None:
        return None
    none = torch.zeros_like(a.log_high, dtype=torch.bool)
    return torch.where(first, none if a.capped is None else a.capped, none if b.capped is None else b.capped)
