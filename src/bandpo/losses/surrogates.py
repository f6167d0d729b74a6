"""Compute each token's surrogate: what its ratio earns inside and outside bounds.

PPO's clip (arXiv 1707.06347), which is the paper's (eq:bandpo_token_loss), is min(r A, clip(r, r_low, r_high) A). Every
other surrogate departs from r A in the column "outside" only: where r is beyond the bound to which A drives it.

| surrogate | outside, A > 0 | outside, A < 0 | else | paper |
|---|---|---|---|---|
| clip | r_high A, no gradient | r_low A, no gradient | r A | PPO 1707.06347, BandPO |
| mask | 0 | 0 | r A | DPPO 2602.04879 |
| Preserve(low, high) | high r_high / r r A | low r_low / r r A | r A | CE-GPPO 2509.20712, eq. 8 |
| Decay(low, high) | (r_high / r)^high r A | (r / r_low)^low r A | r A | DGPO 2603.14389 |
| mask_two_sided | 0 | 0 | r A, 0 beyond the other bound too | IcePop 2510.18855 |
| weight | r_high A log pi | r_low A log pi | clip(r) A log pi | CISPO 2506.13585 |
| quadratic | as inside | as inside | r A - abs(A) (r - 1)^2 / (2 e) | SPO 2401.16025, CFPO 2601.22801 |
| Sapo(tau_positive, tau_negative) | as inside | as inside | (4 / tau) sigmoid(tau (r - 1)) A | SAPO 2511.20347 |
| Vespo(k_positive, ...) | as inside | as inside | sg(r^k e^(lambda (1 - r))) A log pi | VESPO 2602.10693 |

What multiplies r A outside is detached, as is the ratio in "weight": the token keeps a weighted gradient. In
"quadratic" e is the distance from 1 to the bound on the side of r. The interval is closed: a token on its bound is
inside.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from ..bounds import Bounds
from ..numerics import expm1, is_number, listed, output_dtype
from ..trust_regions.base import Node

# Log-ratios are clamped to +-60: e^60 = 1e26 still sums in float32, and no gradient so large could be used.
MAX_LOG_RATIO = 60.0


class SurrogateWeight(Node, ABC, family="surrogate"):
    """Hold the numbers of a surrogate that weighs tokens. It is a config node, as {type: preserve, low: 0.5, high: 1}.

    Attributes:
        has_bounds: False where it takes the place of an interval; its weight is then of A, at every ratio.
        gradient: its gradient in log pi in words, for `explain`, where A >= 0 and where A < 0; fields in braces.
    """

    has_bounds: ClassVar[bool] = True
    gradient: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def weight(self, log_ratio: Tensor, edge: Tensor, positive: Tensor) -> Tensor:
        """Return the factor of r A outside. `edge` is the log of the bound, `positive` is A >= 0."""


@dataclass(frozen=True)
class Preserve(SurrogateWeight):
    """Keep a share of the bound's gradient (CE-GPPO, arXiv 2509.20712). It is `low` below and `high` above.

    >>> import torch, bandpo
    >>> bounds, log_ratio = bandpo.Clip(0.2, 0.2).bounds(torch.tensor([[-1.0]])), torch.tensor([[1.5]]).log()
    >>> bandpo.losses.surrogate(log_ratio, torch.ones(1, 1), bounds, surrogate=Preserve(0.5, 0.75))   # 0.75 of 1.2
    tensor([[0.9000]])

    The paper's are `Preserve(0.5, 1.0)` and `Preserve(0.75, 1.0)`; `Preserve(0, 0)` has the gradient of clip.
    """

    kind: ClassVar[str] = "preserve"
    valid_range: ClassVar[Mapping[str, str]] = {"low": "[0, inf)", "high": "[0, inf)"}
    gradient: ClassVar[Any] = "r A, {high:g} r_high A above r_high", "r A, {low:g} r_low A below r_low"
    low: float
    high: float

    def weight(self, log_ratio: Tensor, edge: Tensor, positive: Tensor) -> Tensor:
        at_bound = torch.exp(edge - log_ratio)  # r_bound / r, so that r times it is the bound
        return torch.where(positive, self.high * at_bound, self.low * at_bound)


@dataclass(frozen=True)
class Decay(SurrogateWeight):
    """Weigh a token outside by a power of its distance (DGPO, arXiv 2603.14389).

    >>> import torch, bandpo
    >>> bounds, log_ratio = bandpo.Clip(0.2, 0.2).bounds(torch.tensor([[-1.0]])), torch.tensor([[1.5]]).log()
    >>> bandpo.losses.surrogate(log_ratio, torch.ones(1, 1), bounds, surrogate=Decay(1, 2))    # (1.2 / 1.5)^2 1.5
    tensor([[0.9600]])

    The weight is 1 at the bound, so the gradient has no jump. The paper's n = 1 and m = 2 are `Decay(1, 0.5)`.
    """

    kind: ClassVar[str] = "decay"
    valid_range: ClassVar[Mapping[str, str]] = {"low": "(0, inf)", "high": "(0, inf)"}
    gradient: ClassVar[Any] = (
        "r A, (r_high / r)^{high:g} r A above r_high",
        "r A, (r / r_low)^{low:g} r A below r_low",
    )
    low: float = 1.0
    high: float = 0.5

    def weight(self, log_ratio: Tensor, edge: Tensor, positive: Tensor) -> Tensor:
        return torch.exp(
            torch.where(positive, self.high * (edge - log_ratio), self.low * (log_ratio - edge))
        )


@dataclass(frozen=True)
class Sapo(SurrogateWeight):
    """Gate every token softly, without bounds (SAPO, arXiv 2511.20347).

    tau is `tau_positive` where A >= 0 and `tau_negative` elsewhere; log r counts as at most 20, as in verl. An
    `Objective` of it has no rule: `Objective(Clip(1, inf), surrogate=Sapo())`. The defaults are those of TRL and verl.
    """

    kind: ClassVar[str] = "sapo"
    has_bounds: ClassVar[bool] = False
    valid_range: ClassVar[Mapping[str, str]] = {"tau_positive": "(0, inf)", "tau_negative": "(0, inf)"}
    gradient: ClassVar[Any] = (
        "4 s (1 - s) r A, s = sigmoid({tau_positive:g} (r - 1))",
        "4 s (1 - s) r A, s = sigmoid({tau_negative:g} (r - 1))",
    )
    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def weight(self, log_ratio: Tensor, edge: Tensor, positive: Tensor) -> Tensor:
        # Tensors, else a compiler would make a new graph for each new number.
        one, other = (log_ratio.new_full((), tau) for tau in (self.tau_positive, self.tau_negative))
        tau = torch.where(positive, one, other)
        return 4 / tau * torch.sigmoid(tau * _ratio_minus_1(log_ratio.clamp(max=_HIGHEST)))


@dataclass(frozen=True)
class Vespo(SurrogateWeight):
    """Weigh log pi by r^k e^(lambda (1 - r)) (VESPO, arXiv 2602.10693).

    The weight is detached, and there are no bounds. The value is the weight times A. The paper has r of a response, and
    the defaults: `Objective(Clip(1, inf), surrogate=Vespo(), ratio="sequence")`.
    """

    kind: ClassVar[str] = "vespo"
    has_bounds: ClassVar[bool] = False
    valid_range: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("k_positive", "lambda_positive", "k_negative", "lambda_negative"), "(0, inf)"
    )
    gradient: ClassVar[Any] = (
        "r^{k_positive:g} e^({lambda_positive:g} (1 - r)) A",
        "r^{k_negative:g} e^({lambda_negative:g} (1 - r)) A",
    )
    k_positive: float = 2.0
    lambda_positive: float = 3.0
    k_negative: float = 3.0
    lambda_negative: float = 2.0

    def weight(self, log_ratio: Tensor, edge: Tensor, positive: Tensor) -> Tensor:
        """Return the weight, with its own value as its slope in log r."""
        moved = _ratio_minus_1(log_ratio)
        if_positive = self.k_positive * log_ratio - self.lambda_positive * moved
        if_negative = self.k_negative * log_ratio - self.lambda_negative * moved
        weight = torch.where(positive, if_positive, if_negative).exp().detach()
        # e^(log r - sg(log r)) is 1 and has the slope of log r: the gradient is that of weight log pi.
        return weight * (log_ratio - log_ratio.detach()).exp()


Name = Literal["clip", "mask", "mask_two_sided", "weight", "quadratic"]
Surrogate = Name | SurrogateWeight
# Where r is held on both sides already, a dual clip would be a second rule for the same thing.
_HOLDS_BOTH_SIDES = ("mask_two_sided", "weight", "quadratic")
# In the value of "weight" log pi counts as at least this: a probability of 0 has a finite value.
_LOWEST_LOG_PI = -1e6
# Where r is squared, or in the exponent, log r counts as at most this.
_HIGHEST = 20.0
# "quadratic" divides by the distance from 1 to a bound; below this it is clip.
_LEAST_DISTANCE = 1e-6


def surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    bounds: Bounds,
    *,
    dual_clip: float | None = None,
    surrogate: Surrogate | tuple[Surrogate, Surrogate] = "clip",
) -> Tensor:
    """Compute min(r A, clip(r, r_low, r_high) A) or another surrogate of each token. See eq:bandpo_token_loss.

    >>> import torch, bandpo
    >>> bounds = bandpo.Clip(0.2, 0.28).bounds(torch.tensor([[-1.0, -1.0]]))
    >>> log_ratio = torch.tensor([[1.5, 0.5]]).log()                      # one token above, one below
    >>> bandpo.losses.surrogate(log_ratio, torch.tensor([[1.0, -1.0]]), bounds)
    tensor([[ 1.2800, -0.8000]])

    It is to be maximised, and the KL term is not in it.

    Args:
        log_ratio: log r, (B, T); clamped to +-60, beyond which it has no gradient.
        advantages: A, broadcasts to `log_ratio`.
        bounds: the interval of log r, broadcasts to `log_ratio`.
        dual_clip: c > 1, or None: where A < 0, r counts as at most c (arXiv 1912.09729). For clip, mask, `Preserve`
            and `Decay`; the others hold r there already.
        surrogate: a row of the module's table, or a pair: one for A >= 0, one for A < 0.

    For "weight", log r takes the place of log pi: the gradient is the same, and the value differs by a constant.

    Raises:
        ValueError: an unknown surrogate, or arguments that do not go together.
    """
    log_ratio = log_ratio.to(output_dtype(log_ratio)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    advantages = advantages.detach()
    return surrogate_of(
        log_ratio,
        advantages >= 0,
        advantages,
        bounds,
        as_pair(surrogate, dual_clip),
        dual_clip,
        log_ratio,
    )


def surrogate_of(
    log_ratio: Tensor,
    positive: Tensor,
    weights: Tensor,
    bounds: Bounds,
    by_advantage_sign: tuple[Surrogate, Surrogate],
    dual_clip: float | None,
    log_pi: Tensor,
) -> Tensor:
    """Compute the surrogate of log r. `positive` is A >= 0, and `weights` multiply the ratio."""
    if_positive, if_negative = by_advantage_sign
    value = _one_surrogate(if_positive, log_ratio, positive, weights, bounds, dual_clip, log_pi)
    if if_negative is if_positive:  # a compiler cannot ask whether they are equal
        return value
    other = _one_surrogate(if_negative, log_ratio, positive, weights, bounds, dual_clip, log_pi)
    return torch.where(positive, value, other)


def _one_surrogate(
    kind: Surrogate,
    log_ratio: Tensor,
    positive: Tensor,
    weights: Tensor,
    bounds: Bounds,
    dual_clip: float | None,
    log_pi: Tensor,
) -> Tensor:
    """Compute one surrogate, the same for both signs of A."""
    if kind == "clip":
        return clip_by_sign(log_ratio, positive, bounds, dual_clip).exp() * weights
    # The clipped ratio is a constant, so a token outside keeps the gradient of log pi.
    if kind == "weight":
        return bounds.clamp(log_ratio).detach().exp() * weights * log_pi.clamp(min=_LOWEST_LOG_PI)
    if isinstance(kind, SurrogateWeight) and not kind.has_bounds:
        return kind.weight(log_ratio, log_ratio, positive) * weights
    if kind == "mask_two_sided":
        clipped = bounds.clamp(log_ratio).detach()
        # 0 times the bound, not 0: a bound that is NaN stays NaN.
        return torch.where(clipped == log_ratio, log_ratio.exp(), 0 * clipped.exp()) * weights
    if kind == "quadratic":
        moved = _ratio_minus_1(log_ratio.clamp(max=_HIGHEST))
        distance = expm1(torch.where(moved > 0, bounds.log_high, bounds.log_low)).abs()
        # The products in this order stay finite where the distance is small.
        penalty = 0.5 * moved * (moved * (weights.abs() / distance.clamp(min=_LEAST_DISTANCE)))
        clipped = clip_by_sign(log_ratio, positive, bounds, None).exp() * weights
        return torch.where(distance < _LEAST_DISTANCE, clipped, (1 + moved) * weights - penalty)
    # The others go by the bound to which A drives the token.
    edge = torch.where(positive, bounds.log_high, bounds.log_low)
    # Not above the bound, rather than at most it: a NaN, of the ratio or the bound, is outside, and shows.
    outside = torch.where(positive, ~(log_ratio <= edge), ~(log_ratio >= edge))
    # 0, or NaN where the bound is.
    weight = edge - edge if kind == "mask" else kind.weight(log_ratio, edge, positive)
    limited = (
        log_ratio
        if dual_clip is None
        else torch.where(positive, log_ratio, log_ratio.clamp(max=math.log(dual_clip)))
    )
    return torch.where(outside, weight.detach(), 1.0) * limited.exp() * weights


def clip_by_sign(log_ratio: Tensor, positive: Tensor, bounds: Bounds, dual_clip: float | None) -> Tensor:
    """Clamp log r from above where A >= 0, from below where A < 0. Its exp times A is min(r A, clip(r) A).

    At the bound itself clamp keeps the whole gradient; `minimum` would halve it.
    """
    highest = math.inf if dual_clip is None else math.log(dual_clip)
    low = bounds.log_low.masked_fill(positive, -math.inf)
    return log_ratio.clamp(low, bounds.log_high.masked_fill(~positive, highest))


def _ratio_minus_1(log_ratio: Tensor) -> Tensor:
    """Return r - 1. The derivative of expm1 alone has few digits where r is near 0."""
    return torch.where(log_ratio < -0.5, log_ratio.exp() - 1, expm1(log_ratio))


def as_pair(value: Any, dual_clip: Any) -> tuple[Surrogate, Surrogate]:
    """Return the surrogate for A >= 0 and that for A < 0.

    Raises ValueError for anything else, and for a dual clip that does not go with it.
    """
    names = get_args(Name)
    pair = listed(value) if isinstance(value, tuple | list) else [value, value]
    if len(pair) != 2 or not all(isinstance(each, SurrogateWeight) or each in names for each in pair):
        raise ValueError(
            f"surrogate must be one of {list(names)}, Preserve(low, high) ({{type: preserve, low: ..., high: ...}} in "
            f"YAML), Decay(), Sapo(), Vespo(), or a pair of them for A >= 0 and A < 0, got {value!r}"
        )
    if dual_clip is not None and not (is_number(dual_clip) and dual_clip > 1):
        raise ValueError(f"dual_clip must be above 1 or None, got {dual_clip!r}")
    holds_both = pair[1] in _HOLDS_BOTH_SIDES or not getattr(pair[1], "has_bounds", True)
    if dual_clip is not None and holds_both:
        raise ValueError(
            f"dual_clip must be None for surrogate = {value!r}, which bounds r where A < 0, got {dual_clip!r}"
        )
    return pair[0], pair[1]
