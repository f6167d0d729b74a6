"""The BandPO objective (eq:bandpo_full) for any trust region: one clamp per sign of A, a KL penalty, an average."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from .bounds import Bounds
from .metrics import Metrics
from .numerics import expm1, output_dtype
from .trust_regions import Context, TrustRegion

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "none"]
KLPenalty = Literal["k1", "k2", "k3", "abs", "kl", "mse", "low_var_kl"]
_VERL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}

# Log-ratios are cut to +-60: e^60 = 1e26 still sums in float32, and no gradient so large could be used.
MAX_LOG_RATIO = 60.0
_MAX_KL_RATIO = 20.0
# What -inf counts as: -inf minus -inf is 0 then, not NaN.
_LOWEST = torch.finfo(torch.float32).min


def policy_loss(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    trust_region: TrustRegion,
    *,
    dual_clip: float | None = None,
    beta: float = 0.0,
    ref_logps: Tensor | None = None,
    kl_penalty: KLPenalty = "k3",
    rollout_is_weights: Tensor | None = None,
    aggregation: Aggregation = "seq-mean-token-mean",
    normalizer: float | Tensor | None = None,
    max_log_ratio: float | None = None,
    entropies: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """The negative of J = 1/G sum_i 1/T_i sum_t [ min(r A, clip(r, r_low, r_high) A) - beta KL_t ] (eq:bandpo_full).

    Everything but `logps` is detached. Half precision is computed in float32. What stands in padding, NaN included,
    reaches neither value nor gradient. A log-ratio beyond +-60 (or `max_log_ratio`), infinite ones included, is cut to
    that value and has no gradient; `log_ratio/saturated_fraction` counts them, so value and gradient are finite for all
    log-probabilities in [-inf, 1e-6] (the gradient of float16 log-probabilities, being float16, may overflow). NaN at a
    response token gives NaN.

    Args:
        logps: log pi of the sampled tokens, (B, T), float; the only input with a gradient.
        old_logps: log pi_old of the same tokens, (B, T).
        advantages: (B, T), or one per sequence as (B, 1) or (B,); (B,) is per sequence also if B == T.
        response_mask: (B, T), bool or 0/1.
        trust_region: the rule, e.g. `bandpo.Band("kl", 0.05)`.
        dual_clip: c > 1; where A < 0, r counts as at most c (arXiv 1912.09729).
        beta: weight of the KL penalty.
        ref_logps: log pi_ref of the same tokens, (B, T); given exactly if beta > 0.
        kl_penalty: see `kl_penalty`; verl's names are aliases.
        rollout_is_weights: pi_old over the sampler's policy, (B, T), multiplied to the surrogate after clipping;
            neither to the KL term nor to the denominator.
        aggregation: see `aggregate`; the default is the paper's.
        normalizer: the denominator over all micro-batches and ranks; see `aggregate`.
        max_log_ratio: cut log r to +- this before anything else (verl: 20).
        entropies: (B, T), from the logits, for the metrics and for rules that ask for them.

    Returns:
        The loss (a scalar; (B, T), 0 in padding, for aggregation "none") and the `Metrics` of this batch.

    Raises:
        ValueError: shapes or dtypes that do not fit, a mask that is not 0/1, no response token while `normalizer` is
            not given, an unknown name, a number out of range. The value checks read from the device; a bool mask
            together with a normalizer needs none.

    >>> import torch, bandpo
    >>> old = torch.tensor([[0.08, 0.9]]).log()
    >>> new = torch.tensor([[0.12, 0.9]]).log().requires_grad_()             # the rare token grew by half
    >>> for region in bandpo.Clip(0.2, 0.2), bandpo.Band("kl", 0.05):
    ...     loss, metrics = bandpo.policy_loss(new, old, torch.ones(1), torch.ones(1, 2), region)
    ...     gradient, = torch.autograd.grad(loss, new)
    ...     print(f"{-gradient[0, 0]:.2f} {metrics.compute()['cut/good_tail']:.0f}")   # 0: the clip stops it
    0.00 1
    0.75 0
    """
    _check_shapes(logps, old_logps, advantages, response_mask, ref_logps, rollout_is_weights, entropies)
    if not isinstance(trust_region, TrustRegion) or isinstance(trust_region, type):
        raise ValueError(f"trust_region must be a trust region such as bandpo.Band(), got {trust_region!r}")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must be above 1 or None, got {dual_clip!r}")
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta must be at least 0 and finite, got {beta!r}")
    given = ref_logps is not None
    if not given if beta > 0 else given:
        raise ValueError(f"beta > 0 and ref_logps go together, got beta = {beta!r} and ref_logps = {_shape(ref_logps)}")
    if max_log_ratio is not None and not 0 < max_log_ratio <= MAX_LOG_RATIO:
        raise ValueError(f"max_log_ratio must be in (0, {MAX_LOG_RATIO:g}] or None, got {max_log_ratio!r}")
    mask = _as_mask(response_mask, may_be_empty=normalizer is not None)

    dtype = output_dtype(logps)
    # What stands in padding is replaced before any arithmetic, because NaN times 0 is NaN.
    old_logps = torch.where(mask, old_logps.detach().to(dtype), -1.0)
    advantages = advantages.detach().to(dtype)
    advantages = advantages[:, None] if advantages.dim() == 1 else advantages
    context = Context(
        response_mask=mask,
        entropies=None if entropies is None else entropies.detach(),
        advantages=advantages,
        positions=mask.cumsum(-1) - 1,
    )
    log_ratio = logps.detach().to(dtype).clamp(min=_LOWEST) - old_logps.clamp(min=_LOWEST)
    limit = MAX_LOG_RATIO if max_log_ratio is None else max_log_ratio
    bounds = trust_region.bounds(old_logps, context)
    weights = advantages if rollout_is_weights is None else advantages * rollout_is_weights.detach().to(dtype)
    low, high = _binding_side(advantages, bounds, dual_clip, limit)
    per_token = -_surrogate(logps, log_ratio, low, high, weights, mask)

    sums = {"saturated": ((log_ratio.abs() > limit) & mask).sum()}
    if ref_logps is not None:
        kl = _kl(torch.where(mask, logps, -1.0), torch.where(mask, ref_logps.detach(), -1.0), kl_penalty) * mask
        per_token = per_token + beta * kl
        sums |= {"kl_ref": kl.detach().sum(), "kl_ref_tokens": mask.sum()}
    if dual_clip is not None:
        sums["dual_clipped"] = ((log_ratio > math.log(dual_clip)) & (advantages < 0) & mask).sum()
    if entropies is not None:
        sums |= {"entropy": torch.where(mask, entropies.detach().to(dtype), 0.0).sum(), "entropy_tokens": mask.sum()}
    metrics = Metrics.of(log_ratio.clamp(-limit, limit), old_logps, advantages, mask, bounds, sums)
    return _aggregate(per_token, mask, aggregation, normalizer), metrics


def surrogate(log_ratio: Tensor, advantages: Tensor, bounds: Bounds, *, dual_clip: float | None = None) -> Tensor:
    """min(r A, clip(r, r_low, r_high) A) per token, to be maximised (eq:bandpo_token_loss without the KL term).

    For A >= 0 that is min(r, r_high) A, for A < 0 max(r, r_low) A: one clamp per sign. Dual clip is one more clamp of
    the second: min(max(r, r_low), c) A. `clamp`, not `minimum`: on the bound itself (on policy at p = 1) `minimum`
    would halve the gradient.

    Args:
        log_ratio: log r, (B, T).
        advantages: A, broadcasts to `log_ratio`.
        bounds: the interval, of the shape of `log_ratio`.
        dual_clip: c > 1, or None.
    """
    low, high = _binding_side(advantages, bounds, dual_clip, math.inf)
    mask = torch.ones_like(log_ratio, dtype=torch.bool)
    return _surrogate(log_ratio, log_ratio.detach(), low, high, advantages.detach(), mask)


def _binding_side(advantages: Tensor, bounds: Bounds, dual_clip: float | None, limit: float) -> tuple[Tensor, Tensor]:
    """The interval that binds given the sign of the advantage, within +-limit."""
    up = advantages >= 0
    highest = limit if dual_clip is None else min(limit, math.log(dual_clip))
    low = torch.where(up, -limit, bounds.log_low.clamp(min=-limit))
    return low, torch.where(up, bounds.log_high.clamp(max=limit), highest)


def _surrogate(*arguments: Tensor) -> Tensor:
    return cast(Tensor, _Surrogate.apply(*arguments))  # pyright: ignore[reportUnknownMemberType]


class _Surrogate(torch.autograd.Function):
    """exp(clamp(s, low, high)) A, 0 outside the mask, and its derivative: the same inside the interval, 0 outside.

    What autograd would find too, in a fraction of its time. The bounds themselves count as inside: on policy at p = 1
    the ratio is on the bound, and the gradient is whole.
    """

    @staticmethod
    def forward(
        ctx: Any, logps: Tensor, log_ratio: Tensor, low: Tensor, high: Tensor, advantages: Tensor, mask: Tensor
    ) -> Tensor:
        clamped = log_ratio.clamp(low, high)
        value = torch.where(mask, torch.exp(clamped) * advantages, 0.0)
        slope = torch.where((clamped == log_ratio) | clamped.isnan(), value, 0.0)
        ctx.save_for_backward(logps, slope)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logps, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: every further derivative of exp is exp again
            slope = slope * torch.exp((logps - logps.detach()).to(slope.dtype))
        return (gradients[0] * slope).to(logps.dtype), None, None, None, None, None


def kl_penalty(logps: Tensor, ref_logps: Tensor, kind: KLPenalty = "k3") -> Tensor:
    """Per-token estimate of the divergence between the policy and the reference, from sampled tokens (Schulman, 2020).

    With d = log pi_ref - log pi: k1 (verl: kl) = -d, k2 (mse) = d^2 / 2, k3 (low_var_kl) = e^d - d - 1, abs = |d|.

    Which direction? The paper writes KL(pi || pi_ref) in eq:token_objective and KL(pi_ref || pi) in
    eq:bandpo_token_loss. If the tokens were sampled from pi itself (the first step of a round), then in expectation
    - the *values* of k1 and k3 are KL(pi || pi_ref) exactly, k2 to second order in d;
    - the *gradients* are those of: nothing (k1), KL(pi || pi_ref) (k2), KL(pi_ref || pi) (k3), each exactly.
    Later in the round the samples are from pi_old and all of this holds to first order in the step. abs is no
    divergence's estimate.

    d is cut to +-20, as in verl. Same shapes for both; computed in at least float32; the gradient flows to `logps`.
    """
    return _kl(logps, ref_logps, kind)


_kl_kinds = get_args(KLPenalty)


def _kl(logps: Tensor, ref_logps: Tensor, kind: str) -> Tensor:
    if kind not in _kl_kinds:
        raise ValueError(f"kl_penalty must be one of {list(_kl_kinds)}, got {kind!r}")
    logps, ref_logps = (x.to(output_dtype(x)).clamp(min=_LOWEST) for x in (logps, ref_logps))
    d = (ref_logps - logps).clamp(-_MAX_KL_RATIO, _MAX_KL_RATIO)
    match _VERL_NAMES.get(kind, kind):
        case "k1":
            return -d
        case "k2":
            return 0.5 * d * d
        case "k3":
            return expm1(d) - d
        case _:
            return d.abs()


def aggregate(
    values: Tensor,
    response_mask: Tensor,
    aggregation: Aggregation = "seq-mean-token-mean",
    normalizer: float | Tensor | None = None,
) -> Tensor:
    """Average per-token values (B, T) over a batch; the modes and names are verl's.

    | aggregation | sum | default `normalizer` |
    |---|---|---|
    | token-mean | of all tokens | number of tokens |
    | seq-mean-token-mean | over sequences of the mean over their tokens | number of non-empty sequences |
    | seq-mean-token-sum | over sequences of the sum over their tokens | number of non-empty sequences |
    | seq-mean-token-sum-norm | of all tokens | number of non-empty sequences times T |
    | none | - (returns (B, T), 0 in padding) | - |

    Given the `normalizer` of the whole batch, the sum of the results over micro-batches and ranks is the result for the
    whole batch. (Where a framework averages gradients over ranks, multiply by the number of ranks.) An empty mask then
    gives 0.

    Raises:
        ValueError: an unknown mode, a mask that is not 0/1, an empty mask without a normalizer, a normalizer that is
            not positive.
    """
    if values.shape != response_mask.shape or values.dim() != 2:
        raise ValueError(f"values and response_mask must be (B, T), got {_shape(values)} and {_shape(response_mask)}")
    mask = _as_mask(response_mask, may_be_empty=normalizer is not None)
    return _aggregate(torch.where(mask, values, 0.0), mask, aggregation, normalizer)


def _aggregate(values: Tensor, mask: Tensor, aggregation: str, normalizer: float | Tensor | None) -> Tensor:
    """Of values that are 0 outside the mask."""
    if aggregation == "none":
        return values
    if isinstance(normalizer, int | float) and not 0 < normalizer < math.inf:
        raise ValueError(f"normalizer must be positive and finite, got {normalizer!r}")
    tokens = mask.sum(-1)
    match aggregation:
        case "token-mean":
            total, count = values.sum(), tokens.sum()
        case "seq-mean-token-mean":
            total, count = (values.sum(-1) / tokens.clamp(min=1)).sum(), (tokens > 0).sum()
        case "seq-mean-token-sum":
            total, count = values.sum(), (tokens > 0).sum()
        case "seq-mean-token-sum-norm":
            total, count = values.sum(), (tokens > 0).sum() * mask.shape[-1]
        case _:
            raise ValueError(f"aggregation must be one of {list(get_args(Aggregation))}, got {aggregation!r}")
    return total / (count if normalizer is None else normalizer)


def _check_shapes(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    ref_logps: Tensor | None,
    rollout_is_weights: Tensor | None,
    entropies: Tensor | None,
) -> None:
    if logps.dim() != 2:
        raise ValueError(f"logps must be (B, T), got {_shape(logps)}")
    like = {
        "old_logps": old_logps,
        "response_mask": response_mask,
        "ref_logps": ref_logps,
        "rollout_is_weights": rollout_is_weights,
        "entropies": entropies,
    }
    for name, x in like.items():
        if x is not None and x.shape != logps.shape:
            raise ValueError(f"{name} must be {_shape(logps)} like logps, got {_shape(x)}")
    rows, columns = logps.shape
    if advantages.shape not in ((rows, columns), (rows, 1), (rows,)):
        raise ValueError(f"advantages must be {(rows, columns)}, {(rows, 1)} or {(rows,)}, got {_shape(advantages)}")
    for name, x in {"logps": logps, "advantages": advantages, **like}.items():
        if x is not None and name != "response_mask" and not x.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {x.dtype}")


def _as_mask(mask: Tensor, *, may_be_empty: bool) -> Tensor:
    """The mask as bool; looks at the values where it must, which waits for the device."""
    if not torch.compiler.is_compiling():
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            bad = mask[(mask != 0) & (mask != 1)][0].item()
            raise ValueError(f"response_mask must be bool or hold 0 and 1 only, got a {bad!r}")
        if not may_be_empty and not bool(mask.sum()):
            raise ValueError(
                "response_mask is empty: no token to learn from; pass a normalizer if other micro-batches have some"
            )
    return mask.bool()


def _shape(x: Tensor | None) -> tuple[int, ...] | None:
    return None if x is None else tuple(x.shape)
