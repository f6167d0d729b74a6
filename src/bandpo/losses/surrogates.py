"""What is done with a token that is outside its interval: five applications of the same bounds, by sign of A.

Each is a value and its derivative in log pi, both known once the log-ratio is, so neither is left to autograd.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from ..bounds import Bounds
from ..numerics import LOWEST, is_number, listed, output_dtype
from ..trust_regions.base import check_number, node_of


@dataclass(frozen=True)
class Preserve:
    """The application "preserve" of `surrogate` with its weights, of at least 0, below and above the interval.

    The paper's (CE-GPPO, arXiv 2509.20712) are `Preserve(0.5, 1.0)` and `Preserve(0.75, 1.0)`; `Preserve(0, 0)` has the
    gradient of clip. In YAML `{type: preserve, low: 0.5, high: 1.0}`.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            check_number(self, name, 0, math.inf, open_high=True)

    def to_config(self) -> dict[str, Any]:
        """The YAML node."""
        return node_of(self, "preserve")


_Name = Literal["clip", "mask", "mask_two_sided", "weight"]
Apply = _Name | Preserve
# Where r is bounded on both sides already, a dual clip would be a second rule for the same thing.
_BOUND_BOTH_SIDES = ("mask_two_sided", "weight")
# What log pi counts as at least, in the value of "weight" only: 0 probability has a finite value too.
_LOWEST_LOG_PI = -1e6


def surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    bounds: Bounds,
    *,
    dual_clip: float | None = None,
    apply: Apply | tuple[Apply, Apply] = "clip",
) -> Tensor:
    """The surrogate per token, to be maximised (eq:bandpo_token_loss without the KL term), in one of five ways.

    clip: min(r A, clip(r, r_low, r_high) A), PPO (arXiv 1707.06347) and BandPO: for A >= 0 min(r, r_high) A, for
        A < 0 max(r, r_low) A, one clamp per sign. `clamp`, not `minimum`: on the bound itself (on policy at p = 1)
        `minimum` would halve the gradient.
    mask: r A, but 0 where r is outside and A drives it further out (DPPO, arXiv 2602.04879). The gradient of clip.
    mask_two_sided: r A inside, 0 outside on either side. (IcePop, arXiv 2510.18855, masks like this, but asks how far
        the trainer's old policy is from the sampler: see `rollout_weights`.)
    weight: sg(clip(r, r_low, r_high)) A log pi, no token loses its gradient (CISPO, arXiv 2506.13585).
    Preserve(low, high): r A, but beta sg(bound / r) r A where clip would cut (CE-GPPO, arXiv 2509.20712, eq. 8); beta
        is `low` below and `high` above.

    Value, and the derivative in log pi in brackets where it is another one:

    | apply | A > 0: below | inside | above | A < 0: below | inside | above |
    |---|---|---|---|---|---|---|
    | clip | r A | r A | r_high A (0) | r_low A (0) | r A | r A |
    | mask | r A | r A | 0 | 0 | r A | r A |
    | mask_two_sided | 0 | r A | 0 | 0 | r A | 0 |
    | weight: w A log pi (w A) | w = r_low | w = r | w = r_high | w = r_low | w = r | w = r_high |
    | Preserve | r A | r A | high r_high A | low r_low A | r A | r A |

    The interval is closed: on a bound is inside. A dual clip c (arXiv 1912.09729) puts min(r, c) in the place of r
    where A < 0, for clip, mask and Preserve; in the other two r is bounded there already.

    Args:
        log_ratio: log r, (B, T).
        advantages: A, broadcasts to `log_ratio`.
        bounds: the interval, of the shape of `log_ratio`.
        dual_clip: c > 1, or None.
        apply: one of the five, the names in quotes, or a pair: one for A >= 0, one for A < 0.

    For weight, log r stands in the place of log pi here, the same gradient and a value that differs by a constant; in
    `policy_loss` it is log pi, counted as at least -1e6.

    Raises:
        ValueError: an unknown application, or arguments that do not go together.
    """
    pair = by_sign(apply, dual_clip)
    mask = torch.ones_like(log_ratio, dtype=torch.bool)
    fixed, advantages = log_ratio.detach().to(output_dtype(log_ratio)), advantages.detach()
    tokens = Tokens(fixed, fixed, bounds.clamp(fixed), fixed, advantages >= 0, advantages, mask)
    return -negative_surrogate(log_ratio, tokens, pair, dual_clip)


def by_sign(apply: Any, dual_clip: Any) -> tuple[Apply, Apply]:
    """The application for A >= 0 and that for A < 0; ValueError for what is none, or does not go with the dual clip."""
    pair, known = listed(apply), get_args(_Name)
    pair = pair if isinstance(apply, tuple | list) else pair * 2
    if len(pair) != 2 or not all(isinstance(each, Preserve) or each in known for each in pair):
        raise ValueError(
            f"apply must be one of {list(known)}, Preserve(low, high) ({{type: preserve, low: ..., high: ...}} in "
            f"YAML), or a pair of them for A >= 0 and A < 0, got {apply!r}"
        )
    if dual_clip is not None and not (is_number(dual_clip) and dual_clip > 1):
        raise ValueError(f"dual_clip must be above 1 or None, got {dual_clip!r}")
    if dual_clip is not None and pair[1] in _BOUND_BOTH_SIDES:
        raise ValueError(f"dual_clip must be None for apply = {apply!r}, which bounds r where A < 0, got {dual_clip!r}")
    return pair[0], pair[1]


class Tokens(NamedTuple):
    """What a surrogate is made of, all detached, (B, T) or broadcasting to it."""

    log_ratio: Tensor
    limited: Tensor  # the same, within the finite range that the loss allows
    clipped: Tensor  # the same, within the bounds too: they differ from `limited` where a token is outside
    log_pi: Tensor
    up: Tensor  # A >= 0
    weights: Tensor  # A times what else the ratio is multiplied by
    mask: Tensor


def negative_surrogate(
    logps: Tensor,
    tokens: Tokens,
    pair: tuple[Apply, Apply],
    dual_clip: float | None,
) -> Tensor:
    """Minus the surrogate, 0 outside the mask; its gradient goes to `logps`, everything else is detached."""
    value, slope, linear = _value_and_slope(pair[0], tokens, dual_clip)
    if pair[1] is not pair[0]:  # the compiler cannot ask whether two are equal
        other, other_slope, other_linear = _value_and_slope(pair[1], tokens, dual_clip)
        up = tokens.up
        value, slope = torch.where(up, value, other), torch.where(up, slope, other_slope)
        linear = torch.where(up, _full(linear, up), _full(other_linear, up))
    return _negative(logps, value, slope, linear)


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
    """Outside, and A drives it further out."""
    return torch.where(tokens.up, tokens.limited > tokens.clipped, tokens.limited < tokens.clipped)


def _held(tokens: Tokens, dual_clip: float | None) -> Tensor:
    """The log-ratio, stopped at the bound that binds given the sign of A."""
    held = torch.where(_far(tokens), tokens.clipped, tokens.limited)
    return held if dual_clip is None else torch.where(tokens.up, held, held.clamp(max=math.log(dual_clip)))


def _value_and_slope(apply: Apply, tokens: Tokens, dual_clip: float | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Value and slope of one application, 0 outside the mask, and where the value is linear in log pi.

    NaN gives NaN in both: it counts as inside, and what is dropped is multiplied by 0, once padding is gone.
    """
    log_ratio, limited, clipped, log_pi, up, weights, mask = tokens
    if apply == "weight":
        slope = torch.where(mask, torch.exp(clipped) * weights, 0.0)
        return torch.where(mask, slope * log_pi.clamp(min=_LOWEST_LOG_PI), 0.0), slope, torch.ones_like(mask)
    if apply == "mask_two_sided":
        # The clipped ratio, which is the ratio itself inside: that of a token far outside may overflow, and inf times 0
        # is NaN.
        value = torch.where(mask, torch.exp(clipped) * weights, 0.0)
        value = value * ((clipped == limited) | limited.isnan())
        return value, value * ((limited == log_ratio) | limited.isnan()), None

    held = _held(tokens, dual_clip)
    value = torch.where(mask, torch.exp(held) * weights, 0.0)
    slope = value * ((held == log_ratio) | held.isnan())
    if apply == "clip":
        return value, slope, None
    far = _far(tokens)
    if not isinstance(apply, Preserve):
        return torch.where(far, 0.0 * value, value), slope, None
    kept = torch.where(up, apply.high * value, apply.low * value)  # there, the ratio that is held is the bound
    return torch.where(far, kept, value), torch.where(far, kept, slope), None


def _full(linear: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if linear is None else linear


def _negative(logps: Tensor, value: Tensor, slope: Tensor, linear: Tensor | None) -> Tensor:
    return cast(Tensor, _Negative.apply(logps, value, slope, linear))  # pyright: ignore[reportUnknownMemberType]


class _Negative(torch.autograd.Function):
    """Minus a value whose derivative is known: what autograd would find too, in a fraction of its time."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logps: Tensor, value: Tensor, slope: Tensor, linear: Tensor | None) -> Tensor:
        return -value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        logps, _, slope, linear = inputs
        ctx.save_for_backward(logps, slope, linear)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logps, slope, linear = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: every further derivative of exp is exp again, of a line it is 0
            finite = logps.to(slope.dtype).clamp(min=LOWEST)  # -inf minus -inf is NaN
            further = slope * torch.exp(finite - finite.detach())
            slope = further if linear is None else torch.where(linear, slope, further)
        return -(gradients[0] * slope).to(logps.dtype), None, None, None
