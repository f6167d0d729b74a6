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
from .metrics import Level, Metrics, highest, measure
from .nodes import objective as objective_of
from .objective import Method, Objective
from .surrogates import MAX_LOG_RATIO, by_sign, clip_by_sign, surrogate_of

# What must be a tensor of floats, but for the mask; of the advantages one for each response is enough.
_TENSORS = (
    *("logps", "response_mask", "old_logps", "advantages", "ref_logps"),
    *("rollout_is_weights", "entropies", "old_entropies"),
)
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
    metrics: Level | None = "main",
    entropies: Tensor | None = None,
    old_entropies: Tensor | None = None,
    step: int | Tensor | None = None,
    mean_weight: float | Tensor | None = None,
    controlled: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> tuple[Tensor, Metrics]:
    """Compute the loss -J and its metrics (eq:bandpo_full). J = 1/G sum_i 1/T_i sum_t [min(r A, clip(r, r_low, r_high)
    A) - beta KL_t].

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
        metrics: "main": the eight numbers that trainers log by default, and their parts; "all": some 25, see
            `Metrics.compute`; None: none, and `compute` only checks.
        entropies: of the policy at each token, (B, T); their mean is measured. This and all below is for rules that
            ask for it, see `Context`.
        old_entropies: of the old policy, (B, T).
        step: the optimizer step.
        mean_weight: the mean weight of the whole batch, for a micro-batch under `Adaptive`.
        controlled: the number in force of a `Controlled` rule.
        more: what a rule of yours needs by a name that `Context` does not have: a number, or a tensor as `advantages`.

    Returns:
        The loss (a scalar; (B, T), 0 in padding, for aggregation "none") and the `Metrics` of this batch.

    `torch.func.grad`, `jvp`, second derivatives, and with a bool mask and a normalizer `vmap` work.

    Raises:
        TypeError, ValueError: what does not fit, such as a log-probability above 0.001 (what else was passed?), or
            advantages that vary within a response which has one ratio (a packed row?). The value checks read from the
            device; with a bool mask and a normalizer they are left to `Metrics.compute`. Without these two, NaN, and
            infinite advantages and weights, are errors that count them, unless `metrics="all"` counts them
            (`not_finite/count`).

    >>> import torch, bandpo
    >>> old = torch.tensor([[0.08, 0.9]]).log()
    >>> new = torch.tensor([[0.12, 0.9]]).log().requires_grad_()             # the rare token grew by half
    >>> for region in bandpo.Clip(0.2, 0.2), bandpo.Band("kl", 0.05):
    ...     loss, metrics = bandpo.policy_loss(new, old, torch.ones(1), torch.ones(1, 2), region)
    ...     gradient, = torch.autograd.grad(loss, new)
    ...     print(f"{gradient[0, 0].abs():.2f} {metrics.compute()['cut/good_tail']:.0f}")   # 0: the clip stops it
    0.00 1
    0.75 0
    """
    objective = objective_of(objective)
    if metrics not in ("main", "all", None):
        raise ValueError(f"metrics must be 'main', 'all' or None, got {metrics!r}")
    given: dict[str, Any] = {"ref_logps": ref_logps, "rollout_is_weights": rollout_is_weights, "entropies": entropies}
    given |= {"old_entropies": old_entropies, "step": step, "mean_weight": mean_weight, "controlled": controlled}
    given = {name: x for name, x in given.items() if x is not None}
    given |= {"response_mask": response_mask, "old_logps": old_logps, "advantages": advantages}
    for name, x in {"logps": logps, **given}.items():
        given[name] = _checked(name, x, logps)
    more = {} if more is None else more
    if not isinstance(more, Mapping) or any(name in Context.__dataclass_fields__ for name in more):
        raise TypeError(f"more must map names that Context does not have to values, got {reprlib.repr(more)}")
    given["more"] = {name: _checked(f"more[{name!r}]", x, logps) for name, x in more.items()}
    # Not one comparison of two bools: a compiler has beta as a symbol.
    if objective.beta > 0 if ref_logps is None else objective.beta == 0:
        raise ValueError(
            f"beta > 0 and ref_logps go together, got beta = {objective.beta!r} and ref_logps = {_shape(ref_logps)}"
        )
    if old_logps.requires_grad and not logps.requires_grad:
        raise ValueError("logps has no gradient and old_logps has one; are the two swapped?")
    warn_of_half(logps=logps, old_logps=old_logps)
    batch = _clean(given, objective.positive_weight)
    found = _objective(batch, objective)
    measured = _measured(batch, found, objective, metrics)
    if not torch.compiler.is_compiling() and (normalizer is None or response_mask.dtype != torch.bool):
        measured.numbers()
        if metrics != "all":
            _check_finite(batch)
    return -aggregate(found.values, batch.mask, objective.aggregation or AVERAGE, normalizer), measured


class _Batch(NamedTuple):
    """The tensors of a batch in one dtype, (B, T) or (B, 1), without NaN in padding."""

    new: Tensor
    old: Tensor
    reference: Tensor | None
    advantages: Tensor
    weights: Tensor  # advantages times what else the ratio is multiplied by
    mask: Tensor
    padding: Tensor
    known: dict[str, Any]


class _Found(NamedTuple):
    """The terms of the objective, and what they were made of."""

    values: Tensor
    log_ratio: Tensor
    limited: Tensor  # the log-ratio within its finite range
    bounds: Bounds
    penalty: Tensor | None


def _objective(batch: _Batch, objective: Objective) -> _Found:
    """Compute each token's min(r A, clip(r, r_low, r_high) A) - beta KL_t. That is eq:bandpo_full before its averages.

    r = pi / pi_old. In a ratio "sequence" or "sequence-mean", r, pi and pi_old are those of the whole response.
    """
    log_pi, log_old, mask = batch.new, batch.old, batch.mask
    log_ratio = log_pi.clamp(min=LOWEST) - log_old.clamp(min=LOWEST)  # -inf minus -inf would be NaN
    if objective.ratio in ("sequence", "sequence-mean"):
        mean, far = objective.ratio == "sequence-mean", log_ratio.clamp(-_FAR, _FAR)
        log_ratio, log_pi, log_old = (_over_responses(x, mask, mean=mean) for x in (far, log_pi, log_old))
    limit = objective.max_log_ratio or MAX_LOG_RATIO
    limited, up = log_ratio.clamp(-limit, limit), batch.advantages >= 0

    known, needed = dict(batch.known), objective.trust_region.needed()
    if "positions" in needed:
        known["positions"] = mask.cumsum(-1, dtype=torch.int32) - 1
    if "logps" in needed:
        known["logps"] = log_pi.detach()
    context = Context(response_mask=mask, advantages=batch.advantages, **known)
    with without_looking():
        bounds = objective.trust_region.bounds(log_old, context)

    # By sign of A, because min(r A, clip(r) A) clamps r from above where A >= 0 and from below where A < 0.
    if objective.ratio == "mean-of-clipped":
        clipped = clip_by_sign(limited, up, bounds, objective.dual_clip)
        values = _over_responses(clipped, mask, mean=True).exp() * batch.weights
    else:
        pair = by_sign(objective.apply, objective.dual_clip)
        values = surrogate_of(limited, up, batch.weights, bounds, pair, objective.dual_clip, log_pi)
    if objective.ratio == "sequence":  # each token has its share of the response's surrogate, and they sum to it
        values = values / mask.sum(-1, keepdim=True).clamp(min=1)
    if batch.reference is None:
        return _Found(values, log_ratio, limited, bounds, None)
    penalty = kl_penalty(batch.new, batch.reference, objective.kl_penalty)
    return _Found(values - objective.beta * penalty, log_ratio, limited, bounds, penalty)


@torch.no_grad()
def _measured(batch: _Batch, found: _Found, objective: Objective, level: Level | None) -> Metrics:
    """Count the effect of the bounds, and the inputs of the checks."""
    new, old, reference, advantages, _, mask, padding, known = batch
    metrics, limit = Metrics({}, {}), objective.max_log_ratio or MAX_LOG_RATIO
    if level is not None:
        own = None if objective.is_per_token else (new.clamp(min=LOWEST) - old.clamp(min=LOWEST)).clamp(-limit, limit)
        metrics = measure(found.limited, found.bounds, old, advantages, mask, level, own=own)
        for name, x in (("entropy", known.get("entropies")), ("kl_ref", found.penalty)):
            if x is not None:
                metrics.totals[name] = x.to(old.dtype).masked_fill(padding, 0.0).sum()
    likeliest = torch.maximum(new, old) if reference is None else torch.maximum(new, old).maximum(reference)
    metrics.maxima["log_probability"] = highest(likeliest)
    if objective.ratio != "token" and advantages.shape[1] > 1:
        top, bottom = (x.masked_fill(padding, -torch.inf).amax(-1) for x in (advantages, -advantages))
        metrics.totals["mixed"] = (top > -bottom).sum()
    if level == "all":
        metrics.totals["not_finite"] = (~found.values.isfinite() & mask).sum()
        metrics.totals["saturated"] = ((found.log_ratio.abs() > limit) & mask).sum()
        if objective.dual_clip is not None:
            held = (found.log_ratio > math.log(objective.dual_clip)) & (advantages < 0)
            metrics.totals["dual_clipped"] = (held & mask).sum()
    return metrics


def _clean(given: dict[str, Any], positive_weight: float) -> _Batch:
    """Replace values in padding before any arithmetic, because NaN times 0 is NaN. What is left is for rules."""
    mask, dtype = as_mask(given.pop("response_mask")), output_dtype(given["logps"])
    padding = ~mask

    def filled(name: str) -> Any:
        x = given.pop(name, None)
        return x if x is None else x.to(dtype).masked_fill(padding, -1.0)

    new, old, reference = filled("logps"), filled("old_logps"), filled("ref_logps")
    advantages, rollout = given.pop("advantages").to(dtype), given.pop("rollout_is_weights", None)
    if advantages.shape == mask.shape:
        advantages = advantages.masked_fill(padding, 0.0)
    weights = advantages if rollout is None else advantages * rollout.to(dtype)
    if positive_weight != 1:
        weights = torch.where(advantages > 0, positive_weight * weights, weights)
    if weights.shape == mask.shape:
        weights = weights.masked_fill(padding, 0.0)
    return _Batch(new, old, reference, advantages, weights, mask, padding, given)


def _check_finite(batch: _Batch) -> None:
    """Refuse numbers that make the loss NaN or infinite. Metrics "all" count them instead."""
    new, old, reference, advantages, weights, mask, *_ = batch
    bad = {"advantages": ~advantages.isfinite(), "rollout_is_weights": ~weights.isfinite(), "logps": new.isnan()}
    bad |= {"old_logps": old.isnan()} | ({} if reference is None else {"ref_logps": reference.isnan()})
    sums = torch.stack([mask.sum(), *((x & mask).sum() for x in bad.values())])
    tokens, *counts = cast("list[int]", sums.tolist())  # pyright: ignore[reportUnknownMemberType]
    for name, count in zip(bad, counts, strict=True):
        if count:
            wanted, what = ("numbers", "NaN") if "logps" in name else ("finite", "NaN or infinite")
            raise ValueError(f"{name} must be {wanted}, got {what} at {count:,} of {counted(tokens, 'response token')}")


def _checked(name: str, x: Any, logps: Tensor) -> Any:
    """Check one input. Return it detached, unless it is `logps`, and (B,) as (B, 1)."""
    if not isinstance(x, Tensor):
        if name in _TENSORS:
            cure = f"; torch.as_tensor({name}) makes one of it" if hasattr(x, "__len__") else ""
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}{cure}")
        return x
    if x.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got {x.layout}")
    if logps.dim() != 2:
        packed = "; bandpo.losses.unpack lays out a packed row" if logps.dim() == 1 else ""
        raise ValueError(f"logps must be (B, T), got {_shape(logps)}{packed}")
    rows, columns = logps.shape
    if name in _TENSORS or x.dim():
        if name in _TENSORS and name != "advantages" and x.shape != logps.shape:
            raise ValueError(f"{name} must be {(rows, columns)} like logps, got {_shape(x)}")
        if x.shape not in ((rows, columns), (rows, 1), (rows,)):
            raise ValueError(f"{name} must be {(rows, columns)}, {(rows, 1)} or {(rows,)}, got {_shape(x)}")
    if name in _TENSORS and name != "response_mask" and not x.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {x.dtype}")
    if name in _TENSORS and x.device != logps.device:
        raise ValueError(f"{name} must be on device {logps.device} like logps, got {x.device}")
    x = x.detach() if x.requires_grad and name != "logps" else x
    return x[:, None] if x.dim() == 1 else x


def _over_responses(x: Tensor, mask: Tensor, *, mean: bool) -> Tensor:
    """Return the sum (or the mean) over the tokens of each response, at each of them."""
    total = torch.where(mask, x, 0.0).sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True).clamp(min=1) if mean else total).expand_as(x)


def _shape(x: Any) -> tuple[int, ...] | None:
    return tuple(x.shape) if isinstance(x, Tensor) else None
