"""Define rules that see more of a batch: outcomes, entropies, age, prefix.

A loop gives them what they need by `policy_loss(..., extra={"group_mean": ..., "staleness": ...})`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from bandpo.band.divergences import Divergence
from bandpo.band.operator import band_bounds, divergence_at
from bandpo.bounds import Bounds
from bandpo.numerics import LOG_P_MAX, LOG_P_MIN, LOWEST, output_dtype, working_copy
from bandpo.trust_regions.base import Context, Region, check_number, depends_on_probability
from bandpo.trust_regions.rules import Band, Clip, make_bounds, name_divergence

from .adaptive import QUANTITIES

# More that a `Tilt` may go by: the mean reward of the response's group (of rewards of 0 or 1 the share of 1), their
# standard deviation, divided by the size of the group, and the updates since the response was sampled.
QUANTITIES.update(success=("group_mean",), spread=("group_std",), staleness=("staleness",))


@dataclass(frozen=True)
class GroupClip(Region):
    """Clip wider above where fewer answers of a group are right (GAPO, 2609.00444). 1 - eps_low <= r <= 1 + eps_high.

    Of c right answers among k, eps_high = eps_low + (eps_high_max - eps_low) (k - c) / (k - 1): eps_high_max if one is
    right, eps_low if all are. c / k is extra["group_mean"], of rewards that are 0 or 1: of others
    it is another number, which is limited to what the formula allows.

    Raises ValueError unless 0 <= eps_low <= 1, eps_high_max is finite and at least eps_low, and group_size an integer
    of at least 2.
    """

    kind: ClassVar[str] = "group_clip"
    label_format: ClassVar[str] = "Clip {eps_low}/{eps_low}..{eps_high_max} by the right ones of {group_size}"
    required: ClassVar[tuple[str, ...]] = ("group_mean",)
    sees_probability: ClassVar[bool] = False
    eps_low: float
    eps_high_max: float
    group_size: int

    def __post_init__(self) -> None:
        check_number(self, "eps_low", "[0, 1]")
        check_number(self, "eps_high_max", f"[{self.eps_low}, inf)")
        check_number(self, "group_size", "[2, inf)")
        if self.group_size % 1:
            raise ValueError(f"group_size of GroupClip must be an integer, got {self.group_size!r}")
        object.__setattr__(self, "group_size", int(self.group_size))

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return the clip of the response's group; where none is right, that of one."""
        mean = working_copy((context or Context()).require("group_mean", self))
        rare = ((1 - mean) * (self.group_size / (self.group_size - 1))).clamp(0, 1)
        log_high = torch.log1p(self.eps_low + (self.eps_high_max - self.eps_low) * rare)
        fixed = Clip(self.eps_low, self.eps_low).bounds(old_logps)
        return make_bounds(old_logps, fixed.log_low, fixed.log_low.clamp(0, 0) + log_high.to(fixed.log_low))

    def branches(self) -> dict[str, Region]:
        """List the clips at both ends."""
        widest, narrowest = Clip(self.eps_low, self.eps_high_max), Clip(self.eps_low, self.eps_low)
        return {"one right answer": widest, "all right": narrowest}


@dataclass(frozen=True)
class EntropyRatio(Region):
    """Keep a rule while the entropy stays near the old one, low < H / H_old < high. Elsewhere r = 1 and no more.

    H is extra["entropies"], H_old extra["old_entropies"], of the token's whole distribution. With `surrogate`
    "mask_two_sided" a token outside is dropped (unless r is 1 exactly), which is what ERC does (arXiv 2512.05591); with
    "clip" only its gradient away from r = 1 is. Raises ValueError unless 0 <= low < 1 < high.
    """

    kind: ClassVar[str] = "entropy_ratio"
    label_format: ClassVar[str] = "{region} for entropy ratios in {low}..{high}"
    required: ClassVar[tuple[str, ...]] = ("entropies", "old_entropies")
    sees_probability: ClassVar[bool] = False
    valid_range: ClassVar[Mapping[str, str]] = {"low": "[0, 1)", "high": "(1, inf]"}
    region: Region
    low: float = 0.95
    high: float = 1.05

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return those of the rule, or no move; NaN where an entropy is."""
        context = context or Context()
        found = (context.require(name, self) for name in self.required)
        now, then = (x.to(output_dtype(x)) + 1e-8 for x in found)  # so that a ratio of two that are 0 is 1
        ratio = now / then
        inner = self.region.bounds(torch.where(ratio.isnan(), torch.nan, old_logps.detach()), context)
        near = (ratio > self.low) & (ratio < self.high)
        low, high = (torch.where(near, x, x.clamp(0, 0)) for x in (inner.log_low, inner.log_high))
        return Bounds(low, high)

    def branches(self) -> dict[str, Region]:
        """List the rule, and no move."""
        return {f"entropy ratio in {self.low}..{self.high}": self.region, "elsewhere": Clip(0.0, 0.0)}


@dataclass(frozen=True)
class Stale(Region):
    """Widen a rule's interval of log r d times, where the sampler is d updates behind.

    d is extra["staleness"], at least 1. With the sampler's log-probabilities as the old ones
    (`old_logps=rollout_logps`) this has the gradient of A-3PO (arXiv 2512.06547), which clips pi / prox by the rule
    and weighs by prox / pi_rollout, for a policy prox between the two, log prox = log pi_rollout / d + (1 - 1 / d)
    log pi: then pi / prox is r^(1 / d).

    For rules that are the same for every p: another one would have to know prox, from which it measures, and d times
    the bounds of a band are no band. Raises ValueError for those.
    """

    kind: ClassVar[str] = "stale"
    label_format: ClassVar[str] = "{region} times staleness"
    required: ClassVar[tuple[str, ...]] = ("staleness",)
    sees_probability: ClassVar[bool] = False
    region: Region

    def __post_init__(self) -> None:
        super().__post_init__()
        if depends_on_probability(self.region):
            raise ValueError(
                f"region of Stale must be made of Clip, whose interval is the same for every old probability, got "
                f"{self.region!r}: the policy from which staleness measures has other probabilities"
            )

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return d times both."""
        staleness = (context or Context()).require("staleness", self)
        inner = self.region.bounds(old_logps, context)
        d = (staleness + inner.log_low.new_zeros(())).clamp(min=1).to(inner.log_low)
        return Bounds(inner.log_low * d, inner.log_high * d)

    def branches(self) -> dict[str, Region]:
        """List the rule as it is."""
        return {"staleness 1": self.region}


@dataclass(frozen=True)
class PrefixBudget(Region):
    """Narrow each token's band by what the prefix spent (CPPO, arXiv 2606.10968).

    Token t of a response of T is inside if w_t D_t <= min(delta, delta + budget W_{t-1} - S_{t-1}). D_t is what its
    move costs at least, see `divergence_at`: |pi - pi_old| for TV. S_{t-1} is the sum of w D over all tokens before it,
    inside or not, W_{t-1} that of w, and w_t falls in a straight line from 1 to `least_weight` at the end of the
    response. So the token has the band of radius min(...) / w_t, and r = 1 alone once the prefix has overspent. The
    rule does not ask for signs: a move back costs what a move away does. Needs extra["logps"]; a token's bounds depend
    on the tokens before it, on no later one, and on no other response.

    The paper's radii are for TV: delta 0.15, budget 0.015. Raises ValueError unless delta is positive and finite,
    budget at least 0 and finite, and least_weight in (0, 1].
    """

    kind: ClassVar[str] = "prefix_budget"
    label_format: ClassVar[str] = "Prefix-{divergence} {delta}, {budget} a token, weights to {least_weight}"
    required: ClassVar[tuple[str, ...]] = ("logps",)
    valid_range: ClassVar[Mapping[str, str]] = {"delta": "(0, inf)", "budget": "[0, inf)", "least_weight": "(0, 1]"}
    divergence: str | Divergence = "tv"
    delta: float = 0.15
    budget: float = 0.015
    least_weight: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        name_divergence(self)

    @torch.no_grad()
    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return the band of the radius that is left for each token. That is (what w_t D_t may be) / w_t."""
        log_p, log_ratio, mask = moves(old_logps, context, self)
        # In a compiled graph tensors, else every new number would make a new graph.
        delta, budget, least = (log_p.new_zeros(()) + x for x in (self.delta, self.budget, self.least_weight))
        place = mask.cumsum(-1).to(log_p.dtype) - 1
        weight = 1 - (1 - least) * place / (mask.sum(-1, keepdim=True) - 1).clamp(min=1)
        gain = weight * (budget - divergence_at(log_ratio, log_p, self.divergence))
        # Of the tokens before; not all of them minus its own, since infinity minus infinity is NaN.
        balance = pad(torch.where(mask, gain, 0.0), (1, 0))[..., :-1].cumsum(-1)
        left = delta + balance.clamp(max=0)
        band = band_bounds(working_copy(old_logps), self.divergence, (left / weight).clamp(min=1e-300))
        return make_bounds(
            old_logps, *(torch.where(left <= 0, x.clamp(0, 0), x) for x in (band.log_low, band.log_high))
        )

    def branches(self) -> dict[str, Region]:
        """List the bands at both ends of a response."""
        first, last = (Band(self.divergence, self.delta / weight) for weight in (1, self.least_weight))
        return {"first token": first, "last token, nothing overspent": last}


def moves(old_logps: Tensor, context: Context | None, region: Region) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p, log r and the mask, in float64. Near pi = 1 the difference of two float32 is all of log(1 - pi).

    What has no cost has r = 1: padding, a NaN, which is that of its own token alone, and tokens of p = 0.
    """
    context = context or Context()
    old, new = (working_copy(x.detach()) for x in (old_logps, context.require("logps", region)))
    mask = torch.ones_like(old, dtype=torch.bool) if context.response_mask is None else context.response_mask
    mask = mask.to(old.device)
    log_p = torch.where(old.isnan(), -1.0, old).clamp(LOG_P_MIN, LOG_P_MAX)
    # The new probability is kept, also of a p that is not.
    log_ratio = torch.minimum(new.clamp(LOWEST, LOG_P_MAX) - log_p, -log_p)
    return log_p, torch.where(mask & (old > -torch.inf) & ~new.isnan(), log_ratio, 0.0), mask
