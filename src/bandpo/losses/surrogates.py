"""What is done with a token that is outside its interval: the applications of the same bounds, by sign of A.

Each is a value and its derivative in log pi, both known once the log-ratio is, so neither is left to autograd.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from ..bounds import Bounds
from ..numerics import LOWEST, expm1, is_number, listed, output_dtype
from ..trust_regions.base import Node, check_number


class Tokens(NamedTuple):
    """What a surrogate is made of, all detached, (B, T) or broadcasting to it."""

    log_ratio: Tensor
    limited: Tensor  # the same, within the finite range that the loss allows
    clipped: Tensor  # the same, within the bounds too: they differ from `limited` where a token is outside
    log_low: Tensor
    log_high: Tensor
    log_pi: Tensor
    up: Tensor  # A >= 0
    weights: Tensor  # A times what else the ratio is multiplied by
    mask: Tensor


class Slopes(NamedTuple):
    """The value of a surrogate, 0 outside the mask, its derivative in log pi, and the derivative of that.

    NaN gives NaN in each: it counts as inside, and what is dropped is multiplied by 0, once padding is gone.
    """

    value: Tensor
    slope: Tensor
    curve: Tensor | None = None  # None is the slope itself: of an exponential


class Application(Node, ABC, family="apply"):
    """An application that has numbers of its own.

    Attributes:
        has_bounds: False where it stands in the place of an interval.
    """

    has_bounds: ClassVar[bool] = True

    @abstractmethod
    def slopes(self, tokens: Tokens, dual_clip: float | None) -> Slopes:
        """Value and derivatives of each token."""


@dataclass(frozen=True)
class Preserve(Application):
    """The application "preserve" of `surrogate` with its weights, of at least 0, below and above the interval.

    The paper's (CE-GPPO, arXiv 2509.20712) are `Preserve(0.5, 1.0)` and `Preserve(0.75, 1.0)`; `Preserve(0, 0)` has the
    gradient of clip. In YAML `{type: preserve, low: 0.5, high: 1.0}`.
    """

    kind: ClassVar[str] = "preserve"
    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            check_number(self, name, 0, math.inf, open_high=True)

    def slopes(self, tokens: Tokens, dual_clip: float | None) -> Slopes:
        """See `surrogate`."""
        value, slope, _ = _clip(tokens, dual_clip)
        kept = torch.where(tokens.up, self.high * value, self.low * value)  # there, the ratio that is held is the bound
        return _outside(tokens, kept, value, slope)


@dataclass(frozen=True)
class Decay(Application):
    """The application "decay" of `surrogate`: what a token outside weighs falls as a power of its distance.

    r A, but sg((r / r_low)^low) r A below the interval and sg((r_high / r)^high) r A above it, where clip would cut.
    The weight is 1 at the bound, so that the gradient has no jump. DGPO's (arXiv 2603.14389), n = 1 and m = 2, is
    `Decay(1, 0.5)`; there pi is what is weighed, and the weight divided by it, which is the same. In YAML
    `{type: decay, low: 1, high: 0.5}`. Raises ValueError unless both powers are positive and finite.
    """

    kind: ClassVar[str] = "decay"
    low: float = 1.0
    high: float = 0.5

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            check_number(self, name, 0, math.inf, open_low=True, open_high=True)

    def slopes(self, tokens: Tokens, dual_clip: float | None) -> Slopes:
        """See the class."""
        _, limited, clipped, *_, up, weights, mask = tokens
        beyond = limited - clipped
        kept = torch.exp(limited + torch.where(up, -self.high * beyond, self.low * beyond))
        return _outside(tokens, torch.where(mask, kept * weights, 0.0), *_clip(tokens, dual_clip)[:2])


@dataclass(frozen=True)
class Sapo(Application):
    """SAPO's soft gate (arXiv 2511.20347), which stands in the place of an interval: (4 / tau) sigmoid(tau (r - 1)) A.

    tau is `tau_positive` where A > 0 and `tau_negative` elsewhere. The gradient in log pi is 4 s (1 - s) r A with
    s = sigmoid(tau (r - 1)): r A at r = 1, and nearly none where r is far from 1, on both sides. log r counts as at
    most 20, as in verl. It has no bounds, so that an `Objective` of it has no rule: `Objective(Clip(1, inf),
    apply=Sapo())`. In YAML `{type: sapo, tau_positive: 1, tau_negative: 1.05}`; the defaults are those of TRL and verl.
    Raises ValueError unless both are positive and finite.
    """

    kind: ClassVar[str] = "sapo"
    has_bounds: ClassVar[bool] = False
    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        for name in ("tau_positive", "tau_negative"):
            check_number(self, name, 0, math.inf, open_low=True, open_high=True)

    def slopes(self, tokens: Tokens, dual_clip: float | None) -> Slopes:
        """See the class."""
        log_ratio, limited, *_, up, weights, mask = tokens
        held = limited.clamp(max=_HIGHEST)
        positive, negative = (torch.full_like(held, tau) for tau in (self.tau_positive, self.tau_negative))
        tau, r = torch.where(up, positive, negative), torch.exp(held)
        x = tau * expm1(held)
        gate, closed = torch.sigmoid(x), torch.sigmoid(-x)
        value = torch.where(mask, 4 / tau * gate * weights, 0.0)
        slope = torch.where(mask, 4 * gate * closed * r * weights, 0.0) * _uncut(held, log_ratio)
        return Slopes(value, slope, torch.where(mask, slope * (1 + tau * r * (closed - gate)), 0.0))


_Name = Literal["clip", "mask", "mask_two_sided", "weight", "soft", "quadratic"]
Apply = _Name | Application
# Where r is held on both sides already, a dual clip would be a second rule for the same thing.
_BOUND_BOTH_SIDES = ("mask_two_sided", "weight", "quadratic")
# What log pi counts as at least, in the value of "weight" only: 0 probability has a finite value too.
_LOWEST_LOG_PI = -1e6
# What log r counts as at most where r is squared ("quadratic") or multiplied by e^-r (`Sapo`).
_HIGHEST = 20.0
# How close to 1 a bound of r is at least, for "quadratic", which divides by that.
_LEAST_DISTANCE = 1e-6


def surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    bounds: Bounds,
    *,
    dual_clip: float | None = None,
    apply: Apply | tuple[Apply, Apply] = "clip",
) -> Tensor:
    """The surrogate per token, to be maximised (eq:bandpo_token_loss without the KL term), in one of these ways.

    clip: min(r A, clip(r, r_low, r_high) A), PPO (arXiv 1707.06347) and BandPO: for A >= 0 min(r, r_high) A, for
        A < 0 max(r, r_low) A, one clamp per sign. `clamp`, not `minimum`: on the bound itself (on policy at p = 1)
        `minimum` would halve the gradient.
    mask: r A, but 0 where r is outside and A drives it further out (DPPO, arXiv 2602.04879). The gradient of clip.
    mask_two_sided: r A inside, 0 outside on either side. (IcePop, arXiv 2510.18855, masks like this, but asks how far
        the trainer's old policy is from the sampler: see `rollout_weights`.)
    weight: sg(clip(r, r_low, r_high)) A log pi, no token loses its gradient (CISPO, arXiv 2506.13585).
    Preserve(low, high): r A, but beta sg(bound / r) r A where clip would cut (CE-GPPO, arXiv 2509.20712, eq. 8); beta
        is `low` below and `high` above.
    soft: r A, but sg((bound - 1) / (r - 1)) r A where clip would cut: the share of the way from 1 to r that is inside.
        With `Band("tv", delta)` it is the gate of CPPO's appendix (arXiv 2606.10968, eq. 19 and 20) without its budget
        over the prefix: min(1, delta / |pi - pi_old|).
    Decay(low, high): r A, but sg((bound / r)^power) r A where clip would cut (DGPO, arXiv 2603.14389); see `Decay`.
    quadratic: r A - |A| (r - 1)^2 / (2 e), e the distance from 1 to the bound on the side of r (SPO, arXiv 2401.16025;
        CFPO, arXiv 2601.22801). Inside too the gradient is another one: r A at r = 1, 0 at the bound to which A drives
        r, and back beyond it. log r counts as at most 20; where e is below 1e-6 it is clip.
    Sapo(tau_positive, tau_negative): (4 / tau) sigmoid(tau (r - 1)) A, without bounds (arXiv 2511.20347).

    Value, and the derivative in log pi in brackets where it is another one:

    | apply | A > 0: below | inside | above | A < 0: below | inside | above |
    |---|---|---|---|---|---|---|
    | clip | r A | r A | r_high A (0) | r_low A (0) | r A | r A |
    | mask | r A | r A | 0 | 0 | r A | r A |
    | mask_two_sided | 0 | r A | 0 | 0 | r A | 0 |
    | weight: w A log pi (w A) | w = r_low | w = r | w = r_high | w = r_low | w = r | w = r_high |
    | Preserve | r A | r A | high r_high A | low r_low A | r A | r A |
    | soft | r A | r A | (r_high - 1) r / (r - 1) A | (1 - r_low) r / (1 - r) A | r A | r A |
    | Decay | r A | r A | (r_high / r)^high r A | (r / r_low)^low r A | r A | r A |

    The interval is closed: on a bound is inside. A dual clip c (arXiv 1912.09729) puts min(r, c) in the place of r
    where A < 0, for clip, mask, soft, Preserve and Decay; in the others r is held there already.

    Args:
        log_ratio: log r, (B, T).
        advantages: A, broadcasts to `log_ratio`.
        bounds: the interval, of the shape of `log_ratio`.
        dual_clip: c > 1, or None.
        apply: one of these, those without numbers by their names, or a pair: one for A >= 0, one for A < 0.

    For weight, log r stands in the place of log pi here, the same gradient and a value that differs by a constant; in
    `policy_loss` it is log pi, counted as at least -1e6.

    Raises:
        ValueError: an unknown application, or arguments that do not go together.
    """
    pair = by_sign(apply, dual_clip)
    mask = torch.ones_like(log_ratio, dtype=torch.bool)
    fixed, advantages = log_ratio.detach().to(output_dtype(log_ratio)), advantages.detach()
    log_low, log_high = bounds.log_low, bounds.log_high
    tokens = Tokens(fixed, fixed, bounds.clamp(fixed), log_low, log_high, fixed, advantages >= 0, advantages, mask)
    return -negative_surrogate(log_ratio, tokens, pair, dual_clip)


def has_bounds(apply: Apply) -> bool:
    """Say whether an application has the rule's bounds, or stands in their place."""
    return getattr(apply, "has_bounds", True)


def by_sign(apply: Any, dual_clip: Any) -> tuple[Apply, Apply]:
    """The application for A >= 0 and that for A < 0; ValueError for what is none, or does not go with the dual clip."""
    pair, known = listed(apply), get_args(_Name)
    pair = pair if isinstance(apply, tuple | list) else pair * 2
    if len(pair) != 2 or not all(isinstance(each, Application) or each in known for each in pair):
        raise ValueError(
            f"apply must be one of {list(known)}, Preserve(low, high) ({{type: preserve, low: ..., high: ...}} in "
            f"YAML), Decay(low, high), Sapo(tau_positive, tau_negative), or a pair of them for A >= 0 and A < 0, got "
            f"{apply!r}"
        )
    if dual_clip is not None and not (is_number(dual_clip) and dual_clip > 1):
        raise ValueError(f"dual_clip must be above 1 or None, got {dual_clip!r}")
    if dual_clip is not None and (pair[1] in _BOUND_BOTH_SIDES or not has_bounds(pair[1])):
        raise ValueError(f"dual_clip must be None for apply = {apply!r}, which bounds r where A < 0, got {dual_clip!r}")
    return pair[0], pair[1]


def negative_surrogate(
    logps: Tensor,
    tokens: Tokens,
    pair: tuple[Apply, Apply],
    dual_clip: float | None,
) -> Tensor:
    """Minus the surrogate, 0 outside the mask; its gradient goes to `logps`, everything else is detached."""
    value, slope, curve = _slopes(pair[0], tokens, dual_clip)
    if pair[1] is not pair[0]:  # the compiler cannot ask whether two are equal
        other, other_slope, other_curve = _slopes(pair[1], tokens, dual_clip)
        up = tokens.up
        if curve is not None or other_curve is not None:
            first, second = slope if curve is None else curve, other_slope if other_curve is None else other_curve
            curve = torch.where(up, first, second)
        value, slope = torch.where(up, value, other), torch.where(up, slope, other_slope)
    return _negative(logps, value, slope, curve)


def negative_mean_of_clipped(logps: Tensor, tokens: Tokens, dual_clip: float | None) -> Tensor:
    """Minus A times the geometric mean over a response of its clipped ratios, at each of its tokens (GMPO)."""
    mask, held = tokens.mask, _held(tokens, dual_clip)
    inside = (held == tokens.log_ratio) | held.isnan()
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    moving = (torch.where(mask, logps.to(held.dtype), 0.0) * inside).sum(-1, keepdim=True) / count
    mean = torch.where(mask, held, 0.0).sum(-1, keepdim=True) / count
    value = torch.where(mask, torch.exp(mean) * tokens.weights, 0.0)
    slope = value.clone()  # the compiler does not take one tensor for two arguments
    return _negative(moving.expand_as(held), value, slope, None)


def _far(tokens: Tokens) -> Tensor:
    """Outside, and A drives it further out; also where a bound is NaN, which is then seen in the loss."""
    return torch.where(tokens.up, ~(tokens.limited <= tokens.clipped), ~(tokens.limited >= tokens.clipped))


def _held(tokens: Tokens, dual_clip: float | None) -> Tensor:
    """The log-ratio, stopped at the bound that binds given the sign of A."""
    held = torch.where(_far(tokens), tokens.clipped, tokens.limited)
    return held if dual_clip is None else torch.where(tokens.up, held, held.clamp(max=math.log(dual_clip)))


def _uncut(held: Tensor, log_ratio: Tensor) -> Tensor:
    """False where the log-ratio counts as another one, which does not move with it."""
    return (held == log_ratio) | held.isnan()


def _clip(tokens: Tokens, dual_clip: float | None) -> Slopes:
    held = _held(tokens, dual_clip)
    value = torch.where(tokens.mask, torch.exp(held) * tokens.weights, 0.0)
    return Slopes(value, value * _uncut(held, tokens.log_ratio))


def _outside(tokens: Tokens, kept: Tensor, value: Tensor, slope: Tensor) -> Slopes:
    """Where clip would cut, r A with a weight that is stopped; value and slope of clip elsewhere."""
    far = _far(tokens)
    return Slopes(torch.where(far, kept, value), torch.where(far, kept, slope))


def _slopes(apply: Apply, tokens: Tokens, dual_clip: float | None) -> Slopes:
    """Of one application."""
    if isinstance(apply, Application):
        return apply.slopes(tokens, dual_clip)
    log_ratio, limited, clipped, log_low, log_high, log_pi, _, weights, mask = tokens
    if apply == "weight":
        slope = torch.where(mask, torch.exp(clipped) * weights, 0.0)
        value = torch.where(mask, slope * log_pi.clamp(min=_LOWEST_LOG_PI), 0.0)
        return Slopes(value, slope, slope.new_zeros(()).expand_as(slope))
    if apply == "mask_two_sided":
        # The clipped ratio, which is the ratio itself inside: that of a token far outside may overflow, and inf times 0
        # is NaN.
        value = torch.where(mask, torch.exp(clipped) * weights, 0.0)
        value = value * _uncut(clipped, limited)
        return Slopes(value, value * _uncut(limited, log_ratio))
    if apply == "quadratic":
        held = limited.clamp(max=_HIGHEST)
        r, moved = torch.exp(held), expm1(held)
        distance = expm1(torch.where(moved > 0, log_high, log_low)).abs()
        pull = weights.abs() / distance.clamp(min=_LEAST_DISTANCE)
        value = torch.where(mask, r * weights - 0.5 * moved * (moved * pull), 0.0)
        slope = torch.where(mask, r * (weights - moved * pull), 0.0) * _uncut(held, log_ratio)
        curve = torch.where(mask, slope - r * (r * pull), 0.0) * _uncut(held, log_ratio)
        # Where the rule pins r to 1 the penalty would be endless: what moves is stopped, as by clip.
        pinned, (stopped, still, _) = distance < _LEAST_DISTANCE, _clip(tokens, None)
        choose = (torch.where(pinned, a, b) for a, b in ((stopped, value), (still, slope), (still, curve)))
        return Slopes(*choose)

    value, slope, _ = _clip(tokens, dual_clip)
    if apply == "clip":
        return Slopes(value, slope)
    if apply == "soft":
        # r (bound - 1) / (r - 1), which no r overflows.
        kept = expm1(clipped) / -expm1(-limited)
        return _outside(tokens, torch.where(mask, kept * weights, 0.0), value, slope)
    return Slopes(torch.where(_far(tokens), 0.0 * value, value), slope)


def _negative(logps: Tensor, value: Tensor, slope: Tensor, curve: Tensor | None) -> Tensor:
    return cast(Tensor, _Negative.apply(logps, value, slope, curve))  # pyright: ignore[reportUnknownMemberType]


class _Negative(torch.autograd.Function):
    """Minus a value whose derivative is known: what autograd would find too, in a fraction of its time."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logps: Tensor, value: Tensor, slope: Tensor, curve: Tensor | None) -> Tensor:
        return -value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        logps, _, slope, curve = inputs
        ctx.save_for_backward(logps, slope, curve)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logps, slope, curve = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: every further derivative of exp is exp again
            finite = logps.to(slope.dtype).clamp(min=LOWEST)  # -inf minus -inf is NaN
            moved = finite - finite.detach()
            slope = slope * torch.exp(moved) if curve is None else slope + curve * moved
        return -(gradients[0] * slope).to(logps.dtype), None, None, None
