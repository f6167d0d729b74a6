"""Rules that see more of a batch than the old log-probabilities: the group's outcomes, entropies now and then, the age
of the sampler, how far all tokens have moved."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..bounds import Bounds
from ..numerics import output_dtype, working_copy
from .base import Context, Part, Region, check_integer, check_number, check_region
from .combinators import chosen, depends_on_probability
from .rules import Clip

# Added to both entropies, so that a ratio of two that are 0 is 1.
_TINY = 1e-8
# No token is cut by more: a factor of 0 times an interval without an end would be NaN.
_MOST = 1e100


@dataclass(frozen=True)
class GroupClip(Region):
    """1 - eps_low <= r <= 1 + eps_high, eps_high the larger the fewer of its group are right (GAPO, arXiv 2609.00444).

    Of c right answers among k, eps_high = eps_low + (eps_high_max - eps_low) (k - c) / (k - 1): eps_high_max if one is
    right, eps_low if all are. c / k is context.group_mean, of rewards that are 0 or 1: of others
    it is another number, which is limited to what the formula allows; `BandPOTrainer` warns of them.

    Raises ValueError unless 0 <= eps_low <= 1, eps_high_max is finite and at least eps_low, and group_size an integer
    of at least 2.
    """

    kind: ClassVar[str] = "group_clip"
    needs: ClassVar[tuple[str, ...]] = ("group_mean",)
    sees_probability: ClassVar[bool] = False
    eps_low: float
    eps_high_max: float
    group_size: int

    def __post_init__(self) -> None:
        check_number(self, "eps_low", 0, 1)
        check_number(self, "eps_high_max", self.eps_low, math.inf, open_high=True)
        check_integer(self, "group_size", 2)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class; where none is right, what would be beyond eps_high_max is that."""
        mean = working_copy((context or Context()).require("group_mean", self))
        rare = ((1 - mean) * (self.group_size / (self.group_size - 1))).clamp(0, 1)
        log_high = torch.log1p(self.eps_low + (self.eps_high_max - self.eps_low) * rare)
        fixed = Clip(self.eps_low, self.eps_low).bounds(old_logps)
        like = fixed.log_low.clamp(0, 0)
        return Bounds(fixed.log_low, like + log_high.to(like.device, like.dtype))

    @property
    def label(self) -> str:
        """The clips at both ends."""
        low = self.eps_low
        return f"Clip {low}/{low}..{self.eps_high_max} by the right ones of {self.group_size}"

    def cases(self) -> list[Part]:
        """The clips at both ends."""
        widest, narrowest = Clip(self.eps_low, self.eps_high_max), Clip(self.eps_low, self.eps_low)
        return [Part("one right answer", widest), Part("all right", narrowest)]


@dataclass(frozen=True)
class EntropyRatio(Region):
    """A rule where the policy is about as uncertain as it was, low < H / H_old < high; elsewhere r = 1 and no more.

    H is context.entropies, H_old context.old_entropies, of the token's whole distribution. With `apply`
    "mask_two_sided" a token outside is dropped (unless r is 1 exactly), which is what ERC does (arXiv 2512.05591); with
    "clip" only its gradient away from r = 1 is. Raises ValueError unless 0 <= low < 1 < high.
    """

    kind: ClassVar[str] = "entropy_ratio"
    needs: ClassVar[tuple[str, ...]] = ("entropies", "old_entropies")
    is_phrase: ClassVar[bool] = True
    is_of_single_tokens: ClassVar[bool] = True
    sees_probability: ClassVar[bool] = False
    region: Region
    low: float = 0.95
    high: float = 1.05

    def __post_init__(self) -> None:
        check_region(self, "region")
        check_number(self, "low", 0, 1, open_high=True)
        check_number(self, "high", 1, math.inf, open_low=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Those of the rule, or 0 and 0."""
        found = ((context or Context()).require(name, self) for name in ("entropies", "old_entropies"))
        now, then = (x.to(output_dtype(x)) + _TINY for x in found)
        ratio = now / then
        old = _nan_where(ratio, old_logps)
        inside = (ratio > self.low) & (ratio < self.high)
        return chosen(inside, self.region.bounds(old, context), Clip(0.0, 0.0).bounds(old))

    @property
    def label(self) -> str:
        """The rule, and where it holds."""
        return f"{self.region.part_label} for entropy ratios in {self.low}..{self.high}"

    def cases(self) -> list[Part]:
        """The rule, and no move."""
        return [Part(f"entropy ratio in {self.low}..{self.high}", self.region), Part("elsewhere", Clip(0.0, 0.0))]


@dataclass(frozen=True)
class ByEntropy(Region):
    """One rule for tokens whose entropy is at most the quantile of those of its response, another for those above it.

    ASPO (arXiv 2510.06062) clips at 0.2 up to the quantile of 0.8 and at 0.4 above it. Needs context.entropies; the
    quantile is interpolated between two tokens. Raises ValueError unless quantile is in (0, 1).
    """

    kind: ClassVar[str] = "by_entropy"
    needs: ClassVar[tuple[str, ...]] = ("entropies",)
    is_phrase: ClassVar[bool] = True
    is_of_single_tokens: ClassVar[bool] = True
    sees_probability: ClassVar[bool] = False
    quantile: float
    below: Region
    above: Region

    def __post_init__(self) -> None:
        check_number(self, "quantile", 0, 1, open_low=True, open_high=True)
        check_region(self, "below")
        check_region(self, "above")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Those of the rule for the token's entropy."""
        context = context or Context()
        entropies = context.require("entropies", self)
        old = _nan_where(entropies, old_logps)
        low = entropies <= _quantile(entropies, context, self.quantile)
        return chosen(low, self.below.bounds(old, context), self.above.bounds(old, context))

    @property
    def label(self) -> str:
        """The two rules by the quantile."""
        below, above = self.below.part_label, self.above.part_label
        return f"{below} up to quantile {self.quantile} of entropy, {above} beyond"

    def cases(self) -> list[Part]:
        """The two rules."""
        return [Part(f"entropy up to quantile {self.quantile}", self.below), Part("entropy above it", self.above)]


@dataclass(frozen=True)
class Stale(Region):
    """Another rule's interval of log r, d times as wide, where the sampler is d updates behind: context.staleness, at
    least 1.

    With the sampler's log-probabilities as the old ones (`old_logps=rollout_logps`) this has the gradient of A-3PO
    (arXiv 2512.06547), which clips pi / prox by the rule and weighs by prox / pi_rollout, for a policy prox between the
    two, log prox = log pi_rollout / d + (1 - 1 / d) log pi: then pi / prox is r^(1 / d).

    For rules that are the same for every p: another one would have to know prox, from which it measures, and d times
    the bounds of a band are no band. Raises ValueError for those.
    """

    kind: ClassVar[str] = "stale"
    needs: ClassVar[tuple[str, ...]] = ("staleness",)
    is_phrase: ClassVar[bool] = True
    sees_probability: ClassVar[bool] = False
    region: Region

    def __post_init__(self) -> None:
        check_region(self, "region")
        if depends_on_probability(self.region):
            raise ValueError(
                f"region of Stale must be made of Clip, whose interval is the same for every old probability, got "
                f"{self.region!r}: the policy that staleness puts in the place of the old one has other probabilities"
            )

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """d times both."""
        staleness = (context or Context()).require("staleness", self)
        inner = self.region.bounds(old_logps, context)
        if isinstance(staleness, Tensor):
            d = staleness.clamp(min=1).to(inner.log_low.device, inner.log_low.dtype)
        else:
            d = max(staleness, 1)
        return Bounds(inner.log_low * d, inner.log_high * d, inner.capped)

    @property
    def label(self) -> str:
        """The rule, as many times as wide."""
        return f"{self.region.part_label} times staleness"

    def cases(self) -> list[Part]:
        """The rule as it is."""
        return [Part("staleness 1", self.region)]


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
    needs: ClassVar[tuple[str, ...]] = ("logps",)
    is_phrase: ClassVar[bool] = True
    sees_probability: ClassVar[bool] = False
    region: Region
    quantile: float = 0.9
    exponent: float = 2.0

    def __post_init__(self) -> None:
        check_region(self, "region")
        check_number(self, "quantile", 0, 1, open_low=True, open_high=True)
        check_number(self, "exponent", 0, math.inf, open_low=True, open_high=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        context = context or Context()
        old_logps = old_logps.detach().to(output_dtype(old_logps))
        moved = context.log_ratio(old_logps, self)
        limit = _quantile(moved.abs(), context, self.quantile, of_all=True)
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
        return Bounds(low, high, inner.capped)

    @property
    def label(self) -> str:
        """The rule, and how it is contracted."""
        rule = self.region.part_label
        return f"{rule} contracted beyond quantile {self.quantile} by exponent {self.exponent}"

    def cases(self) -> list[Part]:
        """The rule where it is not contracted."""
        return [Part(f"|log r| up to quantile {self.quantile}", self.region)]


def _quantile(x: Tensor, context: Context, q: float, *, of_all: bool = False) -> Tensor:
    """The quantile over the tokens of each response, or of all of them, between two of them; NaN where there is none.

    As torch.nanquantile has it, without sorting what is below.
    """
    x = x.detach().to(output_dtype(x))
    mask = ~x.isnan() if context.response_mask is None else ~x.isnan() & context.response_mask
    x = torch.where(mask, x, -torch.inf)
    x, mask = (x.flatten(), mask.flatten()) if of_all else (x, mask)
    top = x.topk(min(int((1 - q) * x.shape[-1]) + 2, x.shape[-1]), dim=-1).values
    last = working_copy(mask.sum(-1, keepdim=True) - 1).clamp(min=0)
    place = last - q * last  # from above
    i, j = (k.long().to(x.device) for k in (place, torch.minimum(place.floor() + 1, last)))
    first, second = top.gather(-1, i), top.gather(-1, j)
    return first + place.frac().to(x.device, x.dtype) * (second - first)


def _nan_where(seen: Tensor, old_logps: Tensor) -> Tensor:
    """The old log-probabilities, NaN where what a rule goes by is."""
    return torch.where(seen.isnan(), torch.nan, old_logps)
