"""Measure the effect of the bounds on a batch. Counts and sums cannot be biased by micro-batches, padding or ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed
from torch import Tensor

from ..bounds import Bounds
from ..errors import counted
from ..numerics import MISTAKEN, expm1, whole

MetricSet = Literal["main", "all"]

TAIL = 0.2  # the paper's tail: old probabilities up to this
# Its logarithm in each dtype: a token of 0.2 is in the tail, however it is rounded.
_LOG_TAIL = {
    dtype: torch.tensor(TAIL, dtype=dtype).log().item() for dtype in (torch.float32, torch.float64)
}

NO_LOGPS = 1e-3  # samplers round log-probabilities up to 1e-6; what is above this is something else


@dataclass(frozen=True, eq=False)
class Metrics:
    """Hold counts and sums over the tokens of one or many batches. Nothing waits for the device before `compute`.

    Attributes:
        totals: detached numbers by name, which add up over batches.
        maxima: detached numbers by name, of which the largest counts.
    """

    totals: dict[str, Tensor]
    maxima: dict[str, Tensor]

    def merge(self, other: Metrics) -> Metrics:
        """Return the metrics of both batches together."""
        totals = other.totals | {
            n: x + other.totals[n] if n in other.totals else x for n, x in self.totals.items()
        }
        maxima = {
            n: torch.maximum(x, other.maxima.get(n, x)) for n, x in (other.maxima | self.maxima).items()
        }
        return Metrics(totals, maxima)

    def all_reduce(self, group: torch.distributed.ProcessGroup | None = None) -> Metrics:
        """Return the metrics over all ranks of a torch.distributed group. It takes one sum and one max.

        Those of DTensors are over all ranks already.
        """
        if any(hasattr(x, "full_tensor") for x in (self.totals | self.maxima).values()):
            return self
        op = torch.distributed.ReduceOp
        return Metrics(_reduced(self.totals, op.SUM, group), _reduced(self.maxima, op.MAX, group))

    def compute(self) -> dict[str, float]:
        """Return the numbers to log; NaN where there is nothing to divide by. This waits for the device.

        >>> import torch, bandpo
        >>> old, new = torch.tensor([[0.1, 0.5]]).log(), torch.tensor([[0.2, 0.5]]).log()
        >>> _, metrics = bandpo.policy_loss(new, old, torch.ones(1), torch.ones(1, 2), bandpo.Clip(0.2, 0.2))
        >>> numbers = metrics.compute()
        >>> numbers["clip/fraction"], numbers["clip/tail_high_share"]        # one of two is above, and it is rare
        (0.5, 1.0)

        With n tokens, `high` above and `low` below the interval whatever the sign of the advantage A (the public BandPO
        code's convention), `tail` of old probability in (0, 0.2]. Of "main":

        `tokens`: n.
        `clip/fraction`: (high + low) / n, the paper's Fig. 4a; `clip/high_fraction`, `clip/low_fraction` its parts.
        `clip/tail_high_share`: high tail / (high + low), Fig. 4b; `clip/count` and `clip/tail_high_count` its parts.
        `cut/good_tail`: tail tokens with A > 0 that are above, over all tail tokens with A > 0; its parts are
            `cut/good_tail_count`, `clip/good_tail_tokens`.
        `kl_old/k3`: mean of r - 1 - log r, r of each token; on samples of pi_old an unbiased estimate of
            KL(pi_old || pi).
        `log_ratio/max`, `log_ratio/min`: the largest log r, at least 0, and the least, at most 0.
        `entropy`: mean over tokens of the given entropies, Fig. 4c; absent if none were given.
        `kl_ref`: mean of the KL penalty before beta; absent without one.

        Of "all" also:

        `sequences`: responses with a token.
        `cut/fraction`: (high with A > 0 + low with A < 0) / n, gradients really removed by clip and mask;
            `cut/high_fraction`, `cut/low_fraction` its two parts.
        `not_finite/count`: tokens whose loss is infinite or NaN; `dual_clip/fraction`: held by the dual clip / n.
        `kl_old/k1`: mean of -log r, the other unbiased estimate.
        `log_ratio/saturated_fraction`: log-ratios clamped to a finite range / n.

        Raises ValueError as `numbers` does.
        """
        x = self.numbers()
        if "tokens" not in x:
            return {}
        n = x["tokens"]
        out = {
            "tokens": n,
            "clip/count": x["high"] + x["low"],
            "clip/fraction": _ratio(x["high"] + x["low"], n),
            "clip/high_fraction": _ratio(x["high"], n),
            "clip/low_fraction": _ratio(x["low"], n),
            "clip/tail_high_count": x["tail_high"],
            "clip/tail_high_share": _ratio(x["tail_high"], x["high"] + x["low"]),
            "clip/good_tail_tokens": x["good_tail"],
            "cut/good_tail_count": x["good_tail_high"],
            "cut/good_tail": _ratio(x["good_tail_high"], x["good_tail"]),
            "kl_old/k3": _ratio(x["kl_old_k3"], n),
            "log_ratio/max": x["log_ratio_max"] if n else math.nan,
            "log_ratio/min": -x["minus_log_ratio_max"] if n else math.nan,
        }
        out |= {name: _ratio(x[name], n) for name in ("entropy", "kl_ref") if name in x}
        if "sequences" not in x:
            return out
        return out | {
            "sequences": x["sequences"],
            "cut/fraction": _ratio(x["cut_high"] + x["cut_low"], n),
            "cut/high_fraction": _ratio(x["cut_high"], n),
            "cut/low_fraction": _ratio(x["cut_low"], n),
            "not_finite/count": x.get("not_finite", 0.0),
            "dual_clip/fraction": _ratio(x.get("dual_clipped", 0.0), n),
            "kl_old/k1": _ratio(x["kl_old_k1"], n),
            "log_ratio/saturated_fraction": _ratio(x.get("saturated", 0.0), n),
        }

    def numbers(self) -> dict[str, float]:
        """Return the sums and maxima by name. This waits for the device.

        Raises ValueError for log-probabilities above 0.001, and under a ratio of whole responses for those whose tokens
        have different advantages.
        """
        named = {n: whole(x) for n, x in (self.totals | self.maxima).items()}
        values: list[float] = (
            torch.stack([x.to(_wide(x)) for x in named.values()]).tolist() if named else []
        )
        numbers = dict(zip(named, values, strict=True))
        if numbers.get("log_probability", 0.0) > NO_LOGPS:
            raise ValueError(
                f"logps, old_logps and ref_logps must be log-probabilities, at most 0; the largest is "
                f"{numbers['log_probability']:.4g}. {MISTAKEN}"
            )
        if numbers.get("mixed"):
            raise ValueError(
                "advantages must be the same for all tokens of a response, which has one ratio under this objective; "
                f"they vary in {counted(int(numbers['mixed']), 'row')}. Are several responses packed into a row? "
                "bandpo.losses.unpack lays them out"
            )
        return numbers


@torch.no_grad()
def measure(
    log_ratio: Tensor,
    bounds: Bounds,
    old_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    level: MetricSet = "main",
    *,
    token_log_ratio: Tensor | None = None,
) -> Metrics:
    """Measure one batch. All tensors are (B, T) or broadcast to it; the mask is bool, and log p is -1 outside it.

    `log_ratio` is clamped to a finite range, and may be that of whole responses; `token_log_ratio` is that of each
    token, for `kl_old`.
    """
    padding = ~mask
    inside = log_ratio.masked_fill(padding, 0.0)
    high, low, tail = (
        inside > bounds.log_high,
        inside < bounds.log_low,
        old_logps <= _LOG_TAIL[old_logps.dtype],
    )
    good_tail = tail & (advantages > 0)
    flags = {"tokens": mask, "high": high, "low": low, "tail_high": tail & high, "good_tail": good_tail}
    totals = {name: x.sum() for name, x in (flags | {"good_tail_high": good_tail & high}).items()}
    moved = inside if token_log_ratio is None else token_log_ratio.masked_fill(padding, 0.0)
    totals["kl_old_k3"] = (expm1(moved) - moved).sum(dtype=_wide(moved))
    maxima = {"log_ratio_max": highest(inside), "minus_log_ratio_max": highest(-inside)}
    if level == "all":
        totals |= {
            "sequences": (mask.sum(-1) > 0).sum(),
            "kl_old_k1": -moved.sum(dtype=_wide(moved)),
            "cut_high": (high & (advantages > 0)).sum(),
            "cut_low": (low & (advantages < 0)).sum(),
        }
    return Metrics(totals, maxima)


def highest(x: Tensor) -> Tensor:
    """Return the largest number; 0 if there is none."""
    return x.amax() if x.numel() else x.new_zeros(())


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _reduced(tensors: dict[str, Tensor], op: Any, group: Any) -> dict[str, Tensor]:
    if not tensors:
        return {}
    flat = torch.stack([x.to(_wide(x)) for x in tensors.values()])
    torch.distributed.all_reduce(flat, op, group=group)
    return dict(zip(tensors, flat, strict=True))
