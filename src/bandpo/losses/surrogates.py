"""Compute each token's surrogate: what its ratio earns inside and outside bounds.

PPO's clip (arXiv 1707.06347), which is the paper's (eq:bandpo_token_loss), is min(r A, clip(r, r_low, r_high) A). Every
other application departs from r A in the column "outside" only: where r is beyond the bound to which A drives it.

| apply | outside, A > 0 | outside, A < 0 | else | paper |
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


class Application(Node, ABC, family="apply"):
    """Hold the numbers of an application. It is a config node, as {type: preserve, low: 0.5, high: 1}.

    Attributes:
        has_bounds: False where it takes the place of an interval; its weight is then of A, at every ratio.
    """

    has_bounds: ClassVar[bool] = True

    @abstractmethod
    def weight(self, s: Tensor, edge: Tensor, up: Tensor) -> Tensor:
        """Return the factor of r A outside. `edge` is the log of the bound, `up` is A >= 0."""


@dataclass(frozen=True)
class Preserve(Application):
    """Keep a share of the bound's gradient (CE-GPPO, arXiv 2509.20712). It is `low` below and `high` above.

    The paper's are `Preserve(0.5, 1.0)` and `Preserve(0.75, 1.0)`; `Preserve(0, 0)` has the gradient of clip.
    """

    kind: ClassVar[str] = "preserve"
    limits: ClassVar[Mapping[str, str]] = {"low": "[0, inf)", "high": "[0, inf)"}
    low: float
    high: float

    def weight(self, s: Tensor, edge: Tensor, up: Tensor) -> Tensor:
        kept = torch.exp(edge - s)
        return torch.where(up, self.high * kept, self.low * kept)


@dataclass(frozen=True)
class Decay(Application):
    """Weigh a token outside by a power of its distance (DGPO, arXiv 2603.14389).

    The weight is 1 at the bound, so the gradient has no jump. The paper's n = 1 and m = 2 are `Decay(1, 0.5)`.
    """

    kind: ClassVar[str] = "decay"
    limits: ClassVar[Mapping[str, str]] = {"low": "(0, inf)", "high": "(0, inf)"}
    low: float = 1.0
    high: float = 0.5

    def weight(self, s: Tensor, edge: Tensor, up: Tensor) -> Tensor:
        return torch.exp(torch.where(up, self.high * (edge - s), self.low * (s - edge)))


@dataclass(frozen=True)
class Sapo(Application):
    """Gate every token softly, without bounds (SAPO, arXiv 2511.20347).

    tau is `tau_positive` where A >= 0 and `tau_negative` elsewhere; log r counts as at most 20, as in verl. An
    `Objective` of it has no rule: `Objective(Clip(1, inf), apply=Sapo())`. The defaults are those of TRL and verl.
    """

    kind: ClassVar[str] = "sapo"
    has_bounds: ClassVar[bool] = False
    limits: ClassVar[Mapping[str, str]] = {"tau_positive": "(0, inf)", "tau_negative": "(0, inf)"}
    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def weight(self, s: Tensor, edge: Tensor, up: Tensor) -> Tensor:
        tau = torch.where(up, s.new_full((), self.tau_positive), s.new_full((), self.tau_negative))
        return 4 / tau * torch.sigmoid(tau * _moved(s.clamp(max=_HIGHEST)))


@dataclass(frozen=True)
class Vespo(Application):
    """Weigh log pi by r^k e^(lambda (1 - r)) (VESPO, arXiv 2602.10693).

    The weight is detached, and there are no bounds. The value is the weight times A. The paper has r of a response, and
    the defaults: `Objective(Clip(1, inf), apply=Vespo(), ratio="sequence")`.
    """

    kind: ClassVar[str] = "vespo"
    has_bounds: ClassVar[bool] = False
    limits: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("k_positive", "lambda_positive", "k_negative", "lambda_negative"), "(0, inf)"
    )
    k_positive: float = 2.0
    lambda_positive: float = 3.0
    k_negative: float = 3.0
    lambda_negative: float = 2.0

    def weight(self, s: Tensor, edge: Tensor, up: Tensor) -> Tensor:
        """Return the weight, with its own value as its slope in log r."""
        positive = self.k_positive * s - self.lambda_positive * _moved(s)
        negative = self.k_negative * s - self.lambda_negative * _moved(s)
        return torch.where(up, positive, negative).exp().detach() * (s - s.detach()).exp()


_Name = Literal["clip", "mask", "mask_two_sided", "weight", "quadratic"]
Apply = _Name | Application
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
    apply: Apply | tuple[Apply, Apply] = "clip",
) -> Tensor:
    """Compute each token's surrogate, to be maximised (eq:bandpo_token_loss). The KL term is not in it.

    Args:
        log_ratio: log r, (B, T); clamped to +-60, beyond which it has no gradient.
        advantages: A, broadcasts to `log_ratio`.
        bounds: the interval of log r, broadcasts to `log_ratio`.
        dual_clip: c > 1, or None: where A < 0, r counts as at most c (arXiv 1912.09729). For clip, mask, `Preserve`
            and `Decay`; the others hold r there already.
        apply: an application of the module's table, or a pair: one for A >= 0, one for A < 0.

    For "weight", log r takes the place of log pi: the gradient is the same, and the value differs by a constant.

    Raises:
        ValueError: an unknown application, or arguments that do not go together.
    """
    s, advantages = log_ratio.to(output_dtype(log_ratio)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), advantages.detach()
    return surrogate_of(s, advantages >= 0, advantages, bounds, by_sign(apply, dual_clip), dual_clip, s)


def surrogate_of(
    s: Tensor,
    up: Tensor,
    weights: Tensor,
    bounds: Bounds,
    pair: tuple[Apply, Apply],
    dual_clip: float | None,
    log_pi: Tensor,
) -> Tensor:
    """Compute the surrogate of log r = s. `up` is A >= 0, and `weights` multiply the ratio."""
    value = _one_surrogate(pair[0], s, up, weights, bounds, dual_clip, log_pi)
    if pair[1] is pair[0]:  # a compiler cannot ask whether they are equal
        return value
    return torch.where(up, value, _one_surrogate(pair[1], s, up, weights, bounds, dual_clip, log_pi))


def _one_surrogate(
    apply: Apply, s: Tensor, up: Tensor, weights: Tensor, bounds: Bounds, dual_clip: float | None, log_pi: Tensor
) -> Tensor:
    """Compute the surrogate of one application, the same for both signs of A."""
    if apply == "clip":
        return clip_by_sign(s, up, bounds, dual_clip).exp() * weights
    if apply == "weight":
        return bounds.clamp(s).detach().exp() * weights * log_pi.clamp(min=_LOWEST_LOG_PI)
    if isinstance(apply, Application) and not apply.has_bounds:
        return apply.weight(s, s, up) * weights
    if apply == "mask_two_sided":
        clipped = bounds.clamp(s).detach()
        return torch.where(clipped == s, s.exp(), 0 * clipped.exp()) * weights  # NaN stays NaN
    if apply == "quadratic":
        moved = _moved(s.clamp(max=_HIGHEST))
        distance = expm1(torch.where(moved > 0, bounds.log_high, bounds.log_low)).abs()
        penalty = 0.5 * moved * (moved * (weights.abs() / distance.clamp(min=_LEAST_DISTANCE)))
        clipped = clip_by_sign(s, up, bounds, None).exp() * weights
        return torch.where(distance < _LEAST_DISTANCE, clipped, (1 + moved) * weights - penalty)
    edge = torch.where(up, bounds.log_high, bounds.log_low)
    outside = torch.where(up, ~(s <= edge), ~(s >= edge))  # also where the bound is NaN
    weight = edge - edge if apply == "mask" else apply.weight(s, edge, up)  # 0, or NaN
    tamed = s if dual_clip is None else torch.where(up, s, s.clamp(max=math.log(dual_clip)))
    return torch.where(outside, weight.detach(), 1.0) * tamed.exp() * weights


def clip_by_sign(s: Tensor, up: Tensor, bounds: Bounds, dual_clip: float | None) -> Tensor:
    """Clamp log r from above where A >= 0, from below where A < 0. Its exp times A is min(r A, clip(r) A).

    At the bound itself clamp keeps the whole gradient; `minimum` would halve it.
    """
    most = math.inf if dual_clip is None else math.log(dual_clip)
    return s.clamp(bounds.log_low.masked_fill(up, -math.inf), bounds.log_high.masked_fill(~up, most))


def _moved(s: Tensor) -> Tensor:
    """Return r - 1. The derivative of expm1 alone has few digits where r is near 0."""
    return torch.where(s < -0.5, s.exp() - 1, expm1(s))


def has_bounds(apply: Apply) -> bool:
    """Check that an application has the rule's bounds."""
    return not isinstance(apply, Application) or apply.has_bounds


def by_sign(apply: Any, dual_clip: Any) -> tuple[Apply, Apply]:
    """Return the application for A >= 0 and that for A < 0.

    Raises ValueError for anything else, and for a dual clip that does not go with it.
    """
    pair, known = listed(apply), get_args(_Name)
    pair = pair if isinstance(apply, tuple | list) else pair * 2
    if len(pair) != 2 or not all(isinstance(each, Application) or each in known for each in pair):
        raise ValueError(
            f"apply must be one of {list(known)}, Preserve(low, high) ({{type: preserve, low: ..., high: ...}} in "
            f"YAML), Decay(), Sapo(), Vespo(), or a pair of them for A >= 0 and A < 0, got {apply!r}"
        )
    if dual_clip is not None and not (is_number(dual_clip) and dual_clip > 1):
        raise ValueError(f"dual_clip must be above 1 or None, got {dual_clip!r}")
    if dual_clip is not None and (pair[1] in _HOLDS_BOTH_SIDES or not has_bounds(pair[1])):
        raise ValueError(f"dual_clip must be None for apply = {apply!r}, which bounds r where A < 0, got {dual_clip!r}")
    return pair[0], pair[1]
