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
from ..numerics import LOWEST, output_dtype, warn_of_half, without_looking
from ..trust_regions.base import Context, Region
from .aggregation import AVERAGE, aggregate, as_mask
from .kl import kl_penalty
from .metrics import Metrics, MetricSet, highest, measure
from .nodes import objective as objective_of
from .objective import Method, Objective
from .surrogates import MAX_LOG_RATIO, as_pair, clip_by_sign, surrogate_of

_LOGPS = ("logps", "old_logps", "ref_logps")
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
    tensors = {
        "logps": logps,
        "old_logps": old_logps,
        "advantages": advantages,
        "response_mask": response_mask,
    }
    optional = {"ref_logps": ref_logps, "rollout_is_weights": rollout_is_weights}
    tensors |= {name: x for name, x in optional.items() if x is not None}
    tensors = {name: _checked_tensor(name, x, logps) for name, x in tensors.items()}
    extra = _checked_extra({} if extra is None else extra, logps)
    # Not one comparison of two bools: a compiler has beta as a symbol.
    if objective.beta > 0 if ref_logps is None else objective.beta == 0:
        raise ValueError(
            f"beta > 0 and ref_logps go together, got beta = {objective.beta!r} and ref_logps = {_shape(ref_logps)}"
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
    padding: Tensor
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
    metrics = Metrics({}, {})
    limit = objective.max_log_ratio or MAX_LOG_RATIO
    if level is not None:
        token_log_ratio = None
        if not objective.is_per_token:  # the KL to the old policy is that of tokens, whatever the ratio
            token_log_ratio = (new.clamp(min=LOWEST) - old.clamp(min=LOWEST)).clamp(-limit, limit)
        metrics = measure(
            terms.limited, terms.bounds, old, advantages, mask, level, token_log_ratio=token_log_ratio
        )
        for name, x in (("entropy", batch.extra.get("entropies")), ("kl_ref", terms.penalty)):
            if x is not None:
                metrics.totals[name] = x.to(old.dtype).masked_fill(batch.padding, 0.0).sum()
    likeliest = torch.maximum(new, old)
    if batch.reference is not None:
        likeliest = likeliest.maximum(batch.reference)
    metrics.maxima["log_probability"] = highest(likeliest)
    if objective.ratio != "token" and advantages.shape[1] > 1:
        top, bottom = (
            x.masked_fill(batch.padding, -torch.inf).amax(-1) for x in (advantages, -advantages)
        )
        metrics.totals["mixed"] = (top > -bottom).sum()
    if level == "all":
        metrics.totals["not_finite"] = (~terms.values.isfinite() & mask).sum()
        metrics.totals["saturated"] = ((terms.log_ratio.abs() > limit) & mask).sum()
        if objective.dual_clip is not None:
            held = (terms.log_ratio > math.log(objective.dual_clip)) & (advantages < 0)
            metrics.totals["dual_clipped"] = (held & mask).sum()
    return metrics


def _clean(tensors: dict[str, Tensor], extra: Mapping[str, Any], positive_weight: float) -> _Batch:
    """Replace values in padding before any arithmetic, because NaN times 0 is NaN."""
    mask = as_mask(tensors["response_mask"])
    padding = ~mask
    dtype = output_dtype(tensors["logps"])
    filled = {
        name: x.to(dtype).masked_fill(padding, -1.0) for name, x in tensors.items() if name in _LOGPS
    }
    advantages = tensors["advantages"].to(dtype)
    if advantages.shape == mask.shape:
        advantages = advantages.masked_fill(padding, 0.0)
    weights = advantages
    if "rollout_is_weights" in tensors:
        weights = weights * tensors["rollout_is_weights"].to(dtype)
    if positive_weight != 1:
        weights = torch.where(advantages > 0, positive_weight * weights, weights)
    if weights.shape == mask.shape:
        weights = weights.masked_fill(padding, 0.0)
    return _Batch(
        new=filled["logps"],
        old=filled["old_logps"],
        reference=filled.get("ref_logps"),
        advantages=advantages,
        weights=weights,
        mask=mask,
        padding=padding,
        extra=extra,
    )


def _check_finite(batch: _Batch) -> None:
    """Refuse numbers that make the loss NaN or infinite. Metrics "all" count them instead."""
    bad = {
        "advantages": ~batch.advantages.isfinite(),
        "rollout_is_weights": ~batch.weights.isfinite(),
        "logps": batch.new.isnan(),
        "old_logps": batch.old.isnan(),
    }
    if batch.reference is not None:
        bad["ref_logps"] = batch.reference.isnan()
    sums = torch.stack([batch.mask.sum(), *((x & batch.mask).sum() for x in bad.values())])
    tokens, *counts = cast("list[int]", sums.tolist())  # pyright: ignore[reportUnknownMemberType]
    for name, count in zip(bad, counts, strict=True):
        if count:
            allowed, what = ("numbers", "NaN") if name in _LOGPS else ("finite", "NaN or infinite")
            of = counted(tokens, "response token")
            raise ValueError(f"{name} must be {allowed}, got {what} at {count:,} of {of}")


def _checked_tensor(name: str, x: Any, logps: Tensor) -> Tensor:
    """Check one input. Return it detached, unless it is `logps`, and (B,) as (B, 1)."""
    if not isinstance(x, Tensor):
        cure = f"; torch.as_tensor({name}) makes one of it" if hasattr(x, "__len__") else ""
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}{cure}")
    checked = _of_batch(name, x, logps, of_tokens=name != "advantages", detach=name != "logps")
    if name != "response_mask" and not x.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {x.dtype}")
    if x.device != logps.device:
        raise ValueError(f"{name} must be on device {logps.device} like logps, got {x.device}")
    return checked


def _checked_extra(extra: Any, logps: Tensor) -> dict[str, Any]:
    """Check what is for rules alone, and return it detached."""
    named = cast("Mapping[str, Any]", extra)
    if not isinstance(extra, Mapping) or any(name in Context.__dataclass_fields__ for name in named):
        raise TypeError(
            f"extra must map names that Context does not have to values, got {reprlib.repr(named)}"
        )
    checked: dict[str, Any] = {}
    for name, x in named.items():
        if name == "entropies":  # whose mean is measured
            checked[name] = _checked_tensor(name, x, logps)
        elif isinstance(x, Tensor) and x.dim():
            checked[name] = _of_batch(f"extra[{name!r}]", x, logps)
        else:
            checked[name] = x.detach() if isinstance(x, Tensor) else x
    return checked


def _of_batch(
    name: str, x: Tensor, logps: Tensor, *, of_tokens: bool = False, detach: bool = True
) -> Tensor:
    """Return a tensor of a batch detached, and (B,) as (B, 1)."""
    if x.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got {x.layout}")
    if logps.dim() != 2:
        packed = "; bandpo.losses.unpack lays out a packed row" if logps.dim() == 1 else ""
        raise ValueError(f"logps must be (B, T), got {_shape(logps)}{packed}")
    rows, columns = logps.shape
    if of_tokens and x.shape != logps.shape:
        raise ValueError(f"{name} must be {(rows, columns)} like logps, got {_shape(x)}")
    if x.shape not in ((rows, columns), (rows, 1), (rows,)):
        raise ValueError(f"{name} must be {(rows, columns)}, {(rows, 1)} or {(rows,)}, got {_shape(x)}")
    if detach and x.requires_grad:
        x = x.detach()
    return x[:, None] if x.dim() == 1 else x


def _over_responses(x: Tensor, mask: Tensor, *, mean: bool) -> Tensor:
    """Return the sum (or the mean) over the tokens of each response, at each of them."""
    total = torch.where(mask, x, 0.0).sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True).clamp(min=1) if mean else total).expand_as(x)


def _shape(x: Any) -> tuple[int, ...] | None:
    return tuple(x.shape) if isinstance(x, Tensor) else None
