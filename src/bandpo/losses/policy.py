"""The BandPO objective (eq:bandpo_full) for any trust region: a surrogate per token, a KL penalty, an average."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from typing import Any, Literal, NamedTuple, Unpack, cast

import torch
from torch import Tensor

from ..errors import nearest
from ..numerics import LOWEST, output_dtype, piece_size
from ..trust_regions.base import Context, Known, Region
from .aggregation import AVERAGE, aggregate_masked, as_mask
from .kl import kl_penalty
from .metrics import NO_LOGPS, ROUNDED, Metrics
from .nodes import objective as objective_of
from .objective import MAX_LOG_RATIO, Method, Objective
from .packing import Packing
from .surrogates import Tokens, by_sign, negative_mean_of_clipped, negative_surrogate

_OF_TOKENS = ("entropies", "old_entropies", "divergences")
# Where log-ratios are added up, each is clamped to this first: sums stay finite.
_FAR = 1e30


def policy_loss(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    objective: Objective | Region | Method | str,
    *,
    ref_logps: Tensor | None = None,
    rollout_is_weights: Tensor | None = None,
    normalizer: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    longest: int | None = None,
    **known: Unpack[Known],
) -> tuple[Tensor, Metrics]:
    """The negative of J = 1/G sum_i 1/T_i sum_t [ min(r A, clip(r, r_low, r_high) A) - beta KL_t ] (eq:bandpo_full).

    Everything but `logps` is detached. Half precision is computed in float32. What stands in padding, NaN included,
    reaches neither value nor gradient. A log-ratio beyond +-60 (or `max_log_ratio`), infinite ones included, is clamped
    to that value and has no gradient; `log_ratio/saturated_fraction` counts them, so value and gradient are finite for
    all log-probabilities in [-inf, 1e-6] (the gradient of float16 log-probabilities, being float16, may overflow). NaN
    at a response token gives NaN. Where an application puts another ratio in the place of r ("weight", "soft",
    `Preserve`, `Decay`), a token keeps its gradient.

    Args:
        logps: log pi of the sampled tokens, (B, T), float; the only input with a gradient.
        old_logps: log pi_old of the same tokens, (B, T).
        advantages: (B, T), or one per sequence as (B, 1) or (B,); (B,) is per sequence also if B == T.
        response_mask: (B, T), bool or 0/1.
        objective: see `Objective`; or a trust region, e.g. `bandpo.Band("kl", 0.05)`, for the paper's with that; or a
            `Method` or its name, e.g. "gspo".
        ref_logps: log pi_ref of the same tokens, (B, T); given exactly if the objective's beta > 0.
        rollout_is_weights: pi_old over the sampler's policy, (B, T), see `rollout_weights`; multiplied to the surrogate
            after clipping, neither to the KL term nor to the denominator.
        normalizer: the denominator over all micro-batches and ranks; see `aggregate`.
        sequence_ids: for packed rows, several responses in a row: the response of each token, integers (B, T), the same
            for all of its tokens, which stand together. The tokens are laid out as a batch (N, L) of one response per
            row, and the result is that batch's. `advantages` and what else is one number per response may be (N,), in
            the order of the rows then. Tensors of one long row may be (T,) instead of (1, T).
        longest: L, by default the tokens of the longest response, which is read from the device. On a GPU nothing is
            read where it is given and the advantages are (N,); `Metrics.compute` objects to numbers that do not fit.
        known: what a rule asks for beside these tensors, as a field of `Context` with that name, such as `step=100` for
            `Decaying`; of a tensor (B, T), (B, 1) or (B,). `entropies` are measured too.

    Returns:
        The loss (a scalar; (B, T), 0 in padding, for aggregation "none") and the `Metrics` of this batch.

    `torch.func.grad`, `vmap` and second derivatives work; `vmap` with a bool mask and a normalizer only, because other
    masks are looked at. Forward mode (`torch.func.jvp`) does not.

    Raises:
        TypeError: what should be a tensor is none.
        ValueError: shapes or dtypes that do not fit, a mask that is not 0/1, no response token while `normalizer` is
            not given, no objective, tensors that do not go with it, a log-probability above 0.001 (what else was
            passed?), advantages that vary within a response which has one ratio (a packed row?). The value checks read
            from the device; with a bool mask and a normalizer they are left to `Metrics.compute`.

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
    objective = objective_of(objective)
    tensors: dict[str, Any] = {
        "logps": logps,
        "old_logps": old_logps,
        "advantages": advantages,
        "response_mask": response_mask,
        "ref_logps": ref_logps,
        "rollout_is_weights": rollout_is_weights,
    }
    _check_types(tensors)
    if sequence_ids is not None:
        _check_types({"sequence_ids": sequence_ids})
        return _of_packed_rows(tensors, objective, normalizer, sequence_ids, longest, known)
    if longest is not None:
        raise ValueError(f"longest goes with sequence_ids, of packed rows; got {longest!r} without them")
    _check_shapes(tensors)
    known = _check_known(known, logps)
    beta, ratio, aggregation = objective.beta, objective.ratio, objective.aggregation or AVERAGE
    given = ref_logps is not None
    if not given if beta > 0 else given:
        raise ValueError(f"beta > 0 and ref_logps go together, got beta = {beta!r} and ref_logps = {_shape(ref_logps)}")
    mask = as_mask(response_mask, may_be_empty=normalizer is not None or aggregation == "none")

    dtype = output_dtype(logps)
    advantages = advantages.detach().to(dtype)
    advantages = advantages[:, None] if advantages.dim() == 1 else advantages
    # What stands in padding is replaced before any arithmetic, because NaN times 0 is NaN.
    old_logps = torch.where(mask, old_logps.detach().to(dtype), -1.0)
    seen = old_logps
    if torch.compiler.is_compiling():
        # Any log-probability would do. One that is read per response makes a compiled graph walk through the bounds row
        # by row, and so in one loop with the sums over tokens: one tensor of the batch less in memory.
        seen = torch.where(mask, old_logps, -1.0 - advantages[:, :1].isnan().to(dtype))
    # A response has the ratio of its tokens' sum or mean, and so its bounds.
    over, current = {"sequence": False, "sequence-mean": True}.get(ratio), logps.detach()
    if over is not None:
        seen, current = (_over_responses(x.to(dtype), mask, mean=over) for x in (old_logps, current))
    positions = mask.cumsum(-1, dtype=torch.int32) - 1
    context = Context(response_mask=mask, advantages=advantages, positions=positions, logps=current, **known)
    bounds = objective.trust_region.bounds(seen, context)
    weights = advantages if rollout_is_weights is None else advantages * rollout_is_weights.detach().to(dtype)
    if objective.positive_weight != 1:
        weights = torch.where(advantages > 0, objective.positive_weight * weights, weights)
    low, high = bounds.log_low.expand(mask.shape), bounds.log_high.expand(mask.shape)
    capped = None if bounds.capped is None else bounds.capped.expand(mask.shape)
    batch = _Batch(logps, old_logps, ref_logps, known.get("entropies"), advantages, weights, mask, low, high, capped)
    del context, bounds, current
    done = [_per_token(rows, objective) for rows in _pieces(batch, piece_size(logps))]
    per_token = done[0][0] if len(done) == 1 else torch.cat([values for values, _ in done])
    metrics = reduce(Metrics.merge, [measured for _, measured in done])
    if not torch.compiler.is_compiling() and (normalizer is None or response_mask.dtype != torch.bool):
        metrics.check()
    return aggregate_masked(per_token, mask, aggregation, normalizer), metrics


def _of_packed_rows(
    tensors: dict[str, Any],
    objective: Objective,
    normalizer: float | Tensor | None,
    sequence_ids: Tensor,
    longest: int | None,
    known: Mapping[str, Any],
) -> tuple[Tensor, Metrics]:
    """The loss of the same tokens with one response in each row."""
    shape = tuple(tensors["logps"].shape)
    given: dict[str, Any] = {**tensors, **known, "sequence_ids": sequence_ids}
    if len(shape) == 1:
        given = {name: x[None] if _shape(x) == shape else x for name, x in given.items()}
    ids, advantages = given.pop("sequence_ids"), given["advantages"]
    _check_shapes({name: given[name] for name in tensors if name != "advantages"})
    was_looked_at = normalizer is None or given["response_mask"].dtype != torch.bool
    given["response_mask"] = mask = as_mask(given["response_mask"], may_be_empty=True)
    packing = Packing(ids, mask, longest=longest, responses=len(advantages) if advantages.dim() == 1 else None)
    laid_out: dict[str, Any] = {name: packing.pad(x) if _shape(x) == mask.shape else x for name, x in given.items()}
    loss, metrics = policy_loss(**laid_out, objective=objective, normalizer=normalizer)
    metrics = metrics.with_misfit(packing.misfit)
    if was_looked_at and not torch.compiler.is_compiling():
        metrics.check()
    return loss if loss.dim() == 0 else packing.pack(loss).view(shape), metrics


class _Batch(NamedTuple):
    logps: Tensor
    old_logps: Tensor
    ref_logps: Tensor | None
    entropies: Tensor | None
    advantages: Tensor
    weights: Tensor  # advantages times what else the ratio is multiplied by
    mask: Tensor
    log_low: Tensor
    log_high: Tensor
    capped: Tensor | None


def _pieces(batch: _Batch, tokens: int) -> list[_Batch]:
    """Some responses at a time: what is made on the way is little then, and stays in the cache."""
    responses, length = batch.mask.shape
    rows = max(1, tokens // max(1, length))
    if responses <= rows:
        return [batch]
    starts = range(0, responses, rows)
    # Not by slices: the backward pass of each makes a tensor of the whole batch.
    logps = torch.split(batch.logps, rows)  # pyright: ignore[reportUnknownMemberType]
    parts = (_Batch(*cast(Any, [None if x is None else x[i : i + rows] for x in batch])) for i in starts)
    return [part._replace(logps=mine) for part, mine in zip(parts, logps, strict=True)]


def _per_token(batch: _Batch, objective: Objective) -> tuple[Tensor, Metrics]:
    """Minus the objective of each token, 0 outside the mask, and what was measured."""
    ratio, dual_clip = objective.ratio, objective.dual_clip
    limit = MAX_LOG_RATIO if objective.max_log_ratio is None else objective.max_log_ratio
    logps, old_logps, ref_logps, entropies, advantages, weights, mask, log_low, log_high, capped = batch
    log_ratio = logps.detach().to(old_logps.dtype).clamp(min=LOWEST) - old_logps.clamp(min=LOWEST)
    moving = logps  # what the gradient of the surrogate goes to
    own = None  # of each token, where the ratio is that of its response
    if ratio in ("sequence", "sequence-mean"):
        mean = ratio == "sequence-mean"
        own = log_ratio.clamp(-limit, limit)
        moving = _over_responses(logps.to(old_logps.dtype), mask, mean=mean)
        log_ratio = _over_responses(log_ratio.clamp(-_FAR, _FAR), mask, mean=mean)
    limited = log_ratio.clamp(-limit, limit)
    clipped = limited.clamp(log_low, log_high)
    log_pi = moving.detach().to(old_logps.dtype)
    tokens = Tokens(log_ratio, limited, clipped, log_low, log_high, log_pi, advantages >= 0, weights, mask)
    if ratio == "mean-of-clipped":
        per_token = negative_mean_of_clipped(logps, tokens, dual_clip)
    else:
        per_token = negative_surrogate(moving, tokens, by_sign(objective.apply, dual_clip), dual_clip)

    highest = torch.maximum(logps.detach().to(old_logps.dtype), old_logps)
    if ref_logps is not None:
        highest = torch.maximum(highest, ref_logps.detach().to(old_logps.dtype))
    sums = {
        "saturated": ((log_ratio.abs() > limit) & mask).sum(),
        "above_zero": ((highest > ROUNDED) & mask).sum(),
        "far_above_zero": ((highest > NO_LOGPS) & mask).sum(),
    }
    if ratio != "token" and advantages.shape[1] > 1:
        top, bottom = (torch.where(mask, x, -torch.inf).amax(-1) for x in (advantages, -advantages))
        sums["mixed"] = (top > -bottom).sum()
    broken = log_ratio.isnan()
    if capped is not None:
        sums["capped"] = (capped & mask).sum()
    if ref_logps is not None:
        current, reference = torch.where(mask, logps, -1.0), torch.where(mask, ref_logps.detach(), -1.0)
        kl = kl_penalty(current, reference, objective.kl_penalty) * mask
        per_token = per_token + objective.beta * kl
        broken = broken | ~kl.detach().isfinite()
        sums |= {"kl_ref": kl.detach().sum(), "kl_ref_tokens": mask.sum()}
    if dual_clip is not None:
        sums["dual_clipped"] = ((log_ratio > math.log(dual_clip)) & (advantages < 0) & mask).sum()
    if entropies is not None:
        entropy = torch.where(mask, entropies.detach().to(old_logps.dtype), 0.0).sum()
        sums |= {"entropy": entropy, "entropy_tokens": mask.sum()}
    if weights.shape[1] == 1:  # by response: else a compiled graph would keep one more tensor of the batch
        counts = torch.where(weights.isfinite(), (broken & mask).sum(-1, keepdim=True), mask.sum(-1, keepdim=True))
    else:
        counts = (broken | ~weights.isfinite()) & mask
    sums["not_finite"] = counts.sum()
    return per_token, Metrics.of(limited, clipped, old_logps, advantages, mask, sums, own=own)


def rollout_weights(
    old_logps: Tensor,
    rollout_logps: Tensor,
    response_mask: Tensor,
    trust_region: Region,
    apply: Literal["mask", "weight"] = "mask",
) -> Tensor:
    """`rollout_is_weights` for `policy_loss`: rho = pi_old / pi_rollout, the mismatch of trainer and sampler, kept in
    bounds.

    mask: rho inside, 0 outside. IcePop (arXiv 2510.18855) is `Clip(0.5, 4)`, rho in [0.5, 5].
    weight: clip(rho, low, high). TIS, min(rho, C), is `Clip(1, C - 1)`.

    A band works too: the sampler's policy stands in the place of the old one. A log-ratio beyond +-60 counts as that.

    Args:
        old_logps: log pi_old of the sampled tokens, by the trainer, (B, T).
        rollout_logps: log-probabilities of the same tokens by the sampler that drew them, (B, T).
        response_mask: (B, T), bool or 0/1.
        trust_region: the rule for rho; of the context it is given the mask and the positions only.
        apply: mask or weight.

    Returns:
        (B, T), detached, at least float32, 0 in padding.

    Raises:
        ValueError: shapes or dtypes that do not fit, no trust region, or one that needs more context.
    """
    if apply not in ("mask", "weight"):
        raise ValueError(f"apply must be 'mask' or 'weight', got {apply!r}")
    _check_region(trust_region)
    for name, x in (("rollout_logps", rollout_logps), ("response_mask", response_mask)):
        if x.shape != old_logps.shape:
            raise ValueError(f"{name} must be {_shape(old_logps)} like old_logps, got {_shape(x)}")
    for name, x in (("old_logps", old_logps), ("rollout_logps", rollout_logps)):
        if not x.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {x.dtype}")
    mask = as_mask(response_mask, may_be_empty=True)
    dtype = torch.promote_types(output_dtype(old_logps), rollout_logps.dtype)
    old, rollout = (torch.where(mask, x.detach().to(dtype), -1.0) for x in (old_logps, rollout_logps))
    log_ratio = (old.clamp(min=LOWEST) - rollout.clamp(min=LOWEST)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    try:
        bounds = trust_region.bounds(rollout, Context(response_mask=mask, positions=mask.cumsum(-1) - 1))
    except ValueError as error:
        raise ValueError(
            f"trust_region of rollout_weights is given probabilities, mask and positions only: {error}"
        ) from error
    clipped = bounds.clamp(log_ratio)
    weights = clipped.exp()
    if apply == "mask":
        weights = torch.where((clipped == log_ratio) | clipped.isnan(), weights, 0.0)
    return torch.where(mask, weights, 0.0)


def _check_region(trust_region: Any) -> None:
    if not isinstance(trust_region, Region):
        raise ValueError(f"trust_region must be a trust region such as bandpo.Band(), got {trust_region!r}")


def _over_responses(x: Tensor, mask: Tensor, *, mean: bool) -> Tensor:
    """The sum over the tokens of each response (or the mean), at each of them."""
    total = torch.where(mask, x, 0.0).sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True).clamp(min=1) if mean else total).expand_as(x)


def _check_types(tensors: Mapping[str, Any]) -> None:
    for name, x in tensors.items():
        optional = name in ("ref_logps", "rollout_is_weights")
        if not (isinstance(x, Tensor) or (optional and x is None)):
            more = f"; torch.as_tensor({name}) makes one of it" if hasattr(x, "__len__") else ""
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}{more}")


def _check_shapes(tensors: Mapping[str, Tensor | None]) -> None:
    logps = cast(Tensor, tensors["logps"])
    if logps.dim() != 2:
        packed = "; a packed row goes with sequence_ids, the response of each token" if logps.dim() == 1 else ""
        raise ValueError(f"logps must be (B, T), got {_shape(logps)}{packed}")
    rows, columns = logps.shape
    for name, x in tensors.items():
        if x is None:
            continue
        if name == "advantages":
            if x.shape not in ((rows, columns), (rows, 1), (rows,)):
                raise ValueError(f"advantages must be {(rows, columns)}, {(rows, 1)} or {(rows,)}, got {_shape(x)}")
        elif x.shape != logps.shape:
            raise ValueError(f"{name} must be {_shape(logps)} like logps, got {_shape(x)}")
        if name != "response_mask" and not x.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {x.dtype}")


def _check_known(known: Mapping[str, Any], logps: Tensor) -> Known:
    """What was given of the context, detached, one number per response as (B, 1)."""
    names = list(Known.__annotations__)
    rows, columns = logps.shape
    checked: dict[str, Any] = {}
    for name, x in known.items():
        if name not in names:
            raise TypeError(
                f"policy_loss has no argument {name!r}{nearest(name, names)}; of the context it takes {names}"
            )
        if isinstance(x, Tensor) and x.dim() > 0:
            allowed = (rows, columns), (rows, 1), (rows,)
            if x.shape not in (allowed[:1] if name in _OF_TOKENS else allowed):
                what = f"{allowed[0]} like logps" if name in _OF_TOKENS else ", ".join(map(str, allowed))
                raise ValueError(f"{name} must be {what}, got {_shape(x)}")
            if name != "staleness" and not x.is_floating_point():
                raise ValueError(f"{name} must be floating point, got {x.dtype}")
            x = x.detach()[:, None] if x.dim() == 1 else x.detach()
        checked[name] = x
    return cast(Known, checked)


def _shape(x: Any) -> tuple[int, ...] | None:
    return tuple(x.shape) if isinstance(x, Tensor) else None
