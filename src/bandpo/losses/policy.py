"""Compute the BandPO objective (eq:bandpo_full) for any trust region. It is a surrogate per token, a KL penalty and an
average.

`_objective` is the algorithm: read it beside the paper. `policy_loss` checks what it is given, and averages.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..bounds import Bounds
from ..errors import counted
from ..numerics import LOWEST, check_tensor, output_dtype, warn_of_half, without_looking
from ..trust_regions.base import Context, Region
from .aggregation import AVERAGE, aggregate, as_mask
from .kl import kl_penalty
from .metrics import Metrics, MetricSet, highest, measure
from .nodes import objective as objective_of
from .objective import Method, Objective
from .surrogates import MAX_LOG_RATIO, as_pair, clip_by_sign, surrogate_of

_LOGPS, _OPTIONAL = ("logps", "old_logps", "ref_logps"), ("ref_logps", "rollout_is_weights")
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
    metrics: MetricSet | None = "main",
    extra: Mapping[str, Any] | None = None,
) -> tuple[Tensor, Metrics]:
    """Compute the loss -J and its metrics (eq:bandpo_full). J = 1/G sum_i 1/T_i sum_t [min(r A, clip(r, r_low, r_high)
    A) - beta KL_t].

    >>> import torch, bandpo
    >>> old = torch.tensor([[0.08, 0.9]]).log()
    >>> new = torch.tensor([[0.12, 0.9]]).log().requires_grad_()             # the rare token grew by half
    >>> for region in bandpo.Clip(0.2, 0.2), bandpo.Band("kl", 0.05):
    ...     loss, metrics = bandpo.policy_loss(new, old, torch.ones(1), torch.ones(1, 2), region)
    ...     gradient, = torch.autograd.grad(loss, new)
    ...     print(f"{gradient[0, 0].abs():.2f} {metrics.compute()['cut/good_tail']:.0f}")   # 0: the clip stops it
    0.00 1
    0.75 0

    Everything but `logps` is detached. Half precision is computed in float32, with a warning. Padding, NaN included,
    reaches neither value nor gradient. A log-ratio beyond +-60 (or `max_log_ratio`), infinite ones too, is clamped to
    that value and has no gradient; `log_ratio/saturated_fraction` counts them. So value and gradient are finite for all
    log-probabilities in [-inf, 1e-6] (float16 gradients may overflow). NaN at a response token gives NaN, where it is
    not refused.

    Args:
        logps: log pi of the sampled tokens, (B, T), float; the only input with a gradient.
        old_logps: log pi_old of the same tokens, (B, T).
        advantages: (B, T), or one per sequence as (B, 1) or (B,); (B,) is per sequence also if B == T.
        response_mask: (B, T), bool or 0/1.
        objective: an `Objective`, a trust region such as `bandpo.Band("kl", 0.05)`, a `Method`, or its name: "gspo".
        ref_logps: log pi_ref of the same tokens, (B, T); required if the objective's beta > 0, else not allowed.
        rollout_is_weights: pi_old over the sampler's policy, (B, T), kept in bounds; multiplied to the surrogate after
            clipping, neither to the KL term nor to the denominator.
        normalizer: the denominator over all micro-batches and ranks; see `aggregate`.
        metrics: "main": the eight numbers that trainers log by default, and their parts; "all": some 20, see
            `Metrics.compute`; None: none, and `compute` only checks.
        extra: what rules of yours need, by name: numbers, or tensors (B, T), (B, 1) or (B,). Of "entropies", those of
            the policy at each token, (B, T), the mean is measured.

    Returns:
        The loss (a scalar; (B, T), 0 in padding, for aggregation "none") and the `Metrics` of this batch.

    `torch.func.grad`, `jvp`, second derivatives, and with a bool mask and a normalizer `vmap` work.

    Raises:
        TypeError, ValueError: what does not fit, such as a log-probability above 0.001 (what else was passed?), or
            advantages that vary within a response which has one ratio (a packed row?). The value checks read from the
            device; with a bool mask and a normalizer they are left to `Metrics.compute`. Without these two, NaN, and
            infinite advantages and weights, are errors that count them, unless `metrics="all"` counts them
            (`not_finite/count`).
    """
    objective = objective_of(objective)
    if metrics not in ("main", "all", None):
        raise ValueError(f"metrics must be 'main', 'all' or None, got {metrics!r}")
    inputs = {
        "logps": logps,
        "old_logps": old_logps,
        "advantages": advantages,
        "response_mask": response_mask,
        "ref_logps": ref_logps,
        "rollout_is_weights": rollout_is_weights,
    }
    tensors = {
        name: _checked(name, x, logps, 3 if name == "advantages" else 1)
        for name, x in inputs.items()
        if x is not None or name not in _OPTIONAL
    }
    extra = _checked_extra({} if extra is None else extra, logps)
    # Not one comparison of two bools: a compiler has beta as a symbol.
    if objective.beta > 0 if ref_logps is None else objective.beta == 0:
        raise ValueError(
            f"beta > 0 and ref_logps go together, got beta = {objective.beta!r} and ref_logps = "
            f"{None if ref_logps is None else tuple(ref_logps.shape)}"
        )
    if old_logps.requires_grad and not logps.requires_grad:
        raise ValueError("logps has no gradient and old_logps has one; are the two swapped?")
    warn_of_half(logps=logps, old_logps=old_logps)
    batch = _clean(tensors, extra, objective.positive_weight)
    terms = _objective(batch, objective)
    measured = _measured(batch, terms, objective, metrics)
    if not torch.compiler.is_compiling() and (normalizer is None or response_mask.dtype != torch.bool):
        measured.numbers()
        if metrics != "all":
            _check_finite(batch)
    return -aggregate(terms.values, batch.mask, objective.aggregation or AVERAGE, normalizer), measured


class _Batch(NamedTuple):
    """The tensors of a batch in one dtype, (B, T) or (B, 1), without NaN in padding."""

    new: Tensor
    old: Tensor
    reference: Tensor | None
    advantages: Tensor
    weights: Tensor  # advantages times what else the ratio is multiplied by
    mask: Tensor
    extra: Mapping[str, Any]


class _Terms(NamedTuple):
    """The terms of the objective, and what they were made of."""

    values: Tensor
    log_ratio: Tensor
    limited: Tensor  # the log-ratio within its finite range
    bounds: Bounds
    penalty: Tensor | None


def _objective(batch: _Batch, objective: Objective) -> _Terms:
    """Compute each token's min(r A, clip(r, r_low, r_high) A) - beta KL_t. That is eq:bandpo_full before its averages.

    r = pi / pi_old. In a ratio "sequence" or "sequence-mean", r, pi and pi_old are those of the whole response.
    """
    log_pi, log_old, mask = batch.new, batch.old, batch.mask
    log_ratio = log_pi.clamp(min=LOWEST) - log_old.clamp(min=LOWEST)  # -inf minus -inf would be NaN
    if objective.ratio in ("sequence", "sequence-mean"):
        mean, far = objective.ratio == "sequence-mean", log_ratio.clamp(-_FAR, _FAR)
        log_ratio, log_pi, log_old = (_over_responses(x, mask, mean=mean) for x in (far, log_pi, log_old))
    limit = objective.max_log_ratio or MAX_LOG_RATIO
    limited = log_ratio.clamp(-limit, limit)
    positive = batch.advantages >= 0

    context = Context(mask, batch.advantages, batch.extra)
    with without_looking():
        bounds = objective.trust_region.bounds(log_old, context)

    # By sign of A, because min(r A, clip(r) A) clamps r from above where A >= 0 and from below where A < 0.
    if objective.ratio == "mean-of-clipped":
        clipped = clip_by_sign(limited, positive, bounds, objective.dual_clip)
        values = _over_responses(clipped, mask, mean=True).exp() * batch.weights
    else:
        by_advantage_sign = as_pair(objective.surrogate, objective.dual_clip)
        values = surrogate_of(
            limited, positive, batch.weights, bounds, by_advantage_sign, objective.dual_clip, log_pi
        )
    # Each token has its share of the response's surrogate, and they sum to it.
    if objective.ratio == "sequence":
        values = values / mask.sum(-1, keepdim=True).clamp(min=1)
    if batch.reference is None:
        return _Terms(values, log_ratio, limited, bounds, None)
    penalty = kl_penalty(batch.new, batch.reference, objective.kl_penalty)
    return _Terms(values - objective.beta * penalty, log_ratio, limited, bounds, penalty)


@torch.no_grad()
def _measured(batch: _Batch, terms: _Terms, objective: Objective, level: MetricSet | None) -> Metrics:
    """Count the effect of the bounds, and the inputs of the checks."""
    new, old, advantages, mask = batch.new, batch.old, batch.advantages, batch.mask
    limit = objective.max_log_ratio or MAX_LOG_RATIO
    # The KL to the old policy is that of tokens, whatever the ratio.
    of_tokens = (
        None
        if objective.is_per_token
        else (new.clamp(min=LOWEST) - old.clamp(min=LOWEST)).clamp(-limit, limit)
    )
    metrics = (
        Metrics({}, {})
        if level is None
        else measure(terms.limited, terms.bounds, old, advantages, mask, level, token_log_ratio=of_tokens)
    )
    means = {"entropy": batch.extra.get("entropies"), "kl_ref": terms.penalty} if level else {}
    metrics.totals.update(
        {name: x.to(old.dtype).where(mask, 0.0).sum() for name, x in means.items() if x is not None}
    )
    likeliest = torch.maximum(new, old)
    metrics.maxima["log_probability"] = highest(
        likeliest if batch.reference is None else likeliest.maximum(batch.reference)
    )
    if objective.ratio != "token" and advantages.shape[1] > 1:
        top, bottom = (x.where(mask, -torch.inf).amax(-1) for x in (advantages, -advantages))
        metrics.totals["mixed"] = (top > -bottom).sum()
    if level == "all":
        log_ratio, most = terms.log_ratio, math.log(objective.dual_clip or math.inf)
        metrics.totals.update(
            {
                "not_finite": (~terms.values.isfinite() & mask).sum(),
                "saturated": ((log_ratio.abs() > limit) & mask).sum(),
                "dual_clipped": ((log_ratio > most) & (advantages < 0) & mask).sum(),
            }
        )
    return metrics


def _clean(tensors: dict[str, Tensor], extra: Mapping[str, Any], positive_weight: float) -> _Batch:
    """Replace values in padding before any arithmetic, because NaN times 0 is NaN."""
    mask = as_mask(tensors["response_mask"])
    padding = ~mask
    dtype = output_dtype(tensors["logps"])
    filled = {
        name: x.to(dtype).masked_fill(padding, -1.0 if name in _LOGPS else 0.0)
        if x.shape == mask.shape
        else x.to(dtype)
        for name, x in tensors.items()
        if name != "response_mask"
    }
    weights = advantages = filled["advantages"]
    if "rollout_is_weights" in filled:  # whose 0 in padding may meet a NaN of the whole response
        weights = (advantages * filled["rollout_is_weights"]).masked_fill(padding, 0.0)
    if positive_weight != 1:
        weights = torch.where(advantages > 0, positive_weight * weights, weights)
    return _Batch(
        new=filled["logps"],
        old=filled["old_logps"],
        reference=filled.get("ref_logps"),
        advantages=advantages,
        weights=weights,
        mask=mask,
        extra=extra,
    )


def _check_finite(batch: _Batch) -> None:
    """Refuse numbers that make the loss NaN or infinite. Metrics "all" count them instead."""
    looked_at = {"logps": batch.new, "old_logps": batch.old, "ref_logps": batch.reference}
    looked_at |= {"advantages": batch.advantages, "rollout_is_weights": batch.weights}
    bad = {
        name: (x.isnan() if name in _LOGPS else ~x.isfinite()) & batch.mask
        for name, x in looked_at.items()
        if x is not None
    }
    sums = torch.stack([batch.mask.sum(), *(x.sum() for x in bad.values())])
    tokens, *counts = cast("list[int]", sums.tolist())  # pyright: ignore[reportUnknownMemberType]
    for name, count in zip(bad, counts, strict=True):
        if count:
            allowed, what = ("numbers", "NaN") if name in _LOGPS else ("finite", "NaN or infinite")
            raise ValueError(
                f"{name} must be {allowed}, got {what} at {count:,} of {counted(tokens, 'response token')}"
            )


def _checked(name: str, x: Any, logps: Tensor, shapes: int) -> Tensor:
    """Check one input. Return it detached, unless it is `logps`, and (B,) as (B, 1).

    `shapes` says how many of (B, T), (B, 1), (B,) and () it may have; what may have all is for rules alone.
    """
    check_tensor(name, x)
    if x.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got {x.layout}")
    if logps.dim() != 2:
        raise ValueError(
            f"logps must be (B, T), got {tuple(logps.shape)}; bandpo.losses.unpack lays out packed rows"
        )
    rows, columns = logps.shape
    allowed = [(rows, columns), (rows, 1), (rows,), ()][:shapes]
    if x.shape not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise ValueError(f"{name} must be {wanted} like logps, got {tuple(x.shape)}")
    if shapes < 4 and name != "response_mask" and not x.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {x.dtype}")
    if x.dim() and x.device != logps.device:
        raise ValueError(f"{name} must be on device {logps.device} like logps, got {x.device}")
    x = x.detach() if x.requires_grad and name != "logps" else x
    return x[:, None] if x.dim() == 1 else x


def _checked_extra(extra: Mapping[str, Any], logps: Tensor) -> dict[str, Any]:
    """Check what is for rules alone, and the entropies, whose mean is measured."""
    if not isinstance(extra, Mapping) or any(name in Context.__dataclass_fields__ for name in extra):
        raise TypeError(
            f"extra must map names that Context does not have to values, got {reprlib.repr(extra)}"
        )
    checked = {
        name: _checked(f"extra[{name!r}]", x, logps, 4) if isinstance(x, Tensor) else x
        for name, x in extra.items()
    }
    if "entropies" in extra:
        checked["entropies"] = _checked("entropies", extra["entropies"], logps, 1)
    return checked


def _over_responses(x: Tensor, mask: Tensor, *, mean: bool) -> Tensor:
    """Return the sum (or the mean) over the tokens of each response, at each of them."""
    total = torch.where(mask, x, 0.0).sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True).clamp(min=1) if mean else total).expand_as(x)
