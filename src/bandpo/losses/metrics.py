"""What the clip did to a batch, as counts and sums, so that micro-batches, padding and ranks cannot bias it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ..errors import counted

# Right-closed bins of the old probability: (0, .2], (.2, .4], ... The first is the paper's tail.
EDGES = (0.2, 0.4, 0.6, 0.8)
ALL_BINS = range(len(EDGES) + 1)
BINS = tuple(f"p{edge}" for edge in (*EDGES, 1.0))
INSIDE, LOW, HIGH = 0, 1, 2
NEGATIVE, ZERO, POSITIVE = 0, 1, 2
_CELLS = len(BINS) * 3 * 3

# The log-ratio histogram has edges SCALE * sinh((i + 1/2) * STEP): even near 0, geometric far out (a quarter per bin),
# to +-60.
SCALE, STEP, HALF = 1e-4, 0.25, 56

# Log-probabilities above 0: samplers round up to the second, and what is above that is something else.
ROUNDED, NO_LOGPS = 1e-6, 1e-3

SUMS = (
    "sequences",  # responses with at least one token
    "saturated",  # tokens whose log-ratio had to be clamped to a finite range
    "above_zero",  # tokens with a log-probability above ROUNDED
    "far_above_zero",  # tokens with one above NO_LOGPS
    "misfit",  # batches of packed rows whose ids do not go with the numbers given beside them
    "mixed",  # responses with one ratio whose tokens have different advantages
    "capped",  # tokens whose upper bound is a ratio cap's
    "not_finite",  # tokens whose loss is infinite or NaN
    "dual_clipped",  # tokens of negative advantage held by the dual clip
    "kl_old_k1",  # sum of log(pi_old / pi)
    "kl_old_k3",  # sum of r - 1 - log r
    "kl_ref",  # sum of the KL penalty, before beta
    "kl_ref_tokens",
    "entropy",
    "entropy_tokens",
)


@dataclass(frozen=True, eq=False)
class Metrics:
    """Counts and sums over the tokens of one or many batches, all detached; nothing waits for the device before
    `compute`.

    Attributes:
        counts: int64 (5, 3, 3): old-probability bin x (inside, below, above the interval) x sign of the advantage (-,
            0, +).
        histogram: int64 (2 HALF + 1,): log-ratios, on fixed edges.
        sums: float64 (len(SUMS),).
        maxima: float64 (2,): the largest log-ratio, and minus the smallest.
    """

    counts: Tensor
    histogram: Tensor
    sums: Tensor
    maxima: Tensor

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        log_ratio: Tensor,
        clipped: Tensor,
        old_logps: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        sums: Mapping[str, Tensor] | None = None,
        *,
        own: Tensor | None = None,
    ) -> Metrics:
        """Measure one batch; all (B, T), the mask bool. What stands in padding does not matter.

        `clipped` is `bounds.clamp(log_ratio)`, for whatever range both were clamped to. `sums` fills `SUMS`. Where
        `log_ratio` is that of whole responses, `own` is that of each token, for `kl_old`.
        """
        mask = response_mask
        # The logarithm in the same dtype: else the float32 nearest to 0.4 is above the edge.
        edges = torch.tensor(EDGES, dtype=old_logps.dtype).log()
        small = torch.uint8  # a quarter of a float32, and there may be very many tokens
        cell = sum((old_logps > edge).to(small) for edge in edges)
        cell = 3 * cell + LOW * (log_ratio < clipped).to(small) + HIGH * (log_ratio > clipped).to(small)
        cell = 3 * cell + (advantages > 0).to(small) + (advantages >= 0).to(small)
        counts = _tally(torch.where(mask, cell, _CELLS), _CELLS).view(len(BINS), 3, 3)

        clean = torch.where(mask, log_ratio, 0.0)
        bin_ = torch.round(torch.asinh(clean / SCALE) / STEP).nan_to_num(0.0).clamp(-HALF, HALF) + HALF
        histogram = _tally(torch.where(mask, bin_.to(small), 2 * HALF + 1), 2 * HALF + 1)

        values = dict(sums or {})
        if unknown := set(values) - set(SUMS):
            raise ValueError(f"sums must be among {SUMS}, got {sorted(unknown)}")
        values["sequences"] = mask.any(-1).sum()
        moved = clean if own is None else torch.where(mask, own, 0.0)
        values["kl_old_k1"] = -moved.sum(dtype=_wide(moved))
        wide = moved.to(_wide(moved))  # in which the difference may cancel
        values["kl_old_k3"] = (torch.expm1(wide) - wide).sum()
        zero = clean.new_zeros((), dtype=_wide(clean))
        total = torch.stack([values.get(name, zero).to(zero.dtype) for name in SUMS])
        maxima = zero.new_full((2,), -torch.inf)
        if mask.numel():
            largest = torch.where(mask, log_ratio, -torch.inf).amax()
            maxima = torch.stack([largest, -torch.where(mask, log_ratio, torch.inf).amin()]).to(zero.dtype)
        return cls(counts, histogram, total, maxima)

    def merge(self, other: Metrics) -> Metrics:
        """The metrics of both batches together."""
        return Metrics(
            self.counts + other.counts,
            self.histogram + other.histogram,
            self.sums + other.sums,
            torch.maximum(self.maxima, other.maxima),
        )

    def all_reduce(self, group: torch.distributed.ProcessGroup | None = None) -> Metrics:
        """The metrics over all ranks of a torch.distributed group: one sum and one max."""
        sizes = [x.numel() for x in (self.counts, self.histogram, self.sums)]
        flat = torch.cat([x.flatten().to(self.sums.dtype) for x in (self.counts, self.histogram, self.sums)])
        maxima = self.maxima.clone()
        torch.distributed.all_reduce(flat, torch.distributed.ReduceOp.SUM, group=group)
        torch.distributed.all_reduce(maxima, torch.distributed.ReduceOp.MAX, group=group)
        counts, histogram, sums = torch.split(flat, sizes)
        return Metrics(counts.to(torch.int64).view_as(self.counts), histogram.to(torch.int64), sums, maxima)

    def with_misfit(self, misfit: Tensor) -> Metrics:
        """Return the same with what `Packing` could not look at."""
        index = torch.tensor(SUMS.index("misfit"), device=self.sums.device)
        return dataclasses.replace(self, sums=self.sums.index_add(0, index, misfit.to(self.sums.dtype)[None]))

    def check(self) -> None:
        """Raise ValueError for a batch that cannot be what it was given as; waits for the device.

        That are log-probabilities above 0.001, under a ratio of whole responses those whose tokens have different
        advantages, and packed rows that `longest` or the advantages do not fit.
        """
        values: list[float] = self.sums.tolist()
        check_sums(dict(zip(SUMS, values, strict=True)))

    def compute(self) -> dict[str, float]:
        """The numbers to log; NaN where there is nothing to divide by. This and `check`, which it calls, are the only
        places that wait for the device.

        With n tokens, `high` above and `low` below the interval whatever the sign of the advantage A (the public BandPO
        code's convention), `tail` of old probability in (0, 0.2]:

        `tokens`, `sequences`: counts.
        `clip/fraction`: (high + low) / n, the paper's Fig. 4a.
        `clip/tail_high_share`: high tail / (high + low), Fig. 4b; its parts are `clip/tail_high_count`, `clip/count`.
        `entropy`: mean over tokens of the given entropies, Fig. 4c; absent if none were given.
        `clip/high_fraction`, `clip/low_fraction`: high / n, low / n.
        `cut/fraction`: (high with A > 0 + low with A < 0) / n, gradients really removed by clip and mask;
            `cut/high_fraction`, `cut/low_fraction` its two parts.
        `cut/good_tail`: tail tokens with A > 0 that are above, over all tail tokens with A > 0; its parts are
            `cut/good_tail_count`, `clip/good_tail_tokens`.
        `clip/high/p0.2` ...: high / n within the bin (0, 0.2], ...; `clip/low/...`; with the sign `cut/high/...`,
            `cut/low/...`.
        `tokens/p0.2` ...: share of the bin in n.
        `not_finite/count`: tokens whose loss is infinite or NaN; any of them spoils the weights.
        `cap/fraction`: tokens whose upper bound is a ratio cap's / n.
        `dual_clip/fraction`: tokens held by the dual clip / n.
        `kl_old/k1`, `kl_old/k3`: means of -log r and r - 1 - log r, r of each token; on samples of pi_old both
            estimate KL(pi_old || pi) without bias.
        `kl_ref`: mean of the KL penalty before beta; absent without one.
        `log_ratio/max`, `log_ratio/min`: extremes.
        `log_ratio/p01`, `p50`, `p99`: quantiles, from a histogram whose bins are 25 % wide (2.5e-5 around 0, and at x
            0.25 sqrt(x^2 + 1e-8)).
        `log_ratio/saturated_fraction`: log-ratios clamped to a finite range / n.
        `logps/above_zero_fraction`: tokens with a log-probability above 1e-6 / n; some samplers round so.
        """
        parts = [x.flatten().to(self.sums.dtype) for x in (self.counts, self.histogram, self.sums, self.maxima)]
        flat: list[float] = torch.cat(parts).tolist()
        cells, flat = flat[:_CELLS], flat[_CELLS:]
        histogram, flat = flat[: 2 * HALF + 1], flat[2 * HALF + 1 :]
        sums = dict(zip(SUMS, flat[: len(SUMS)], strict=True))
        top, bottom = flat[len(SUMS) :]
        check_sums(sums)

        def count(
            bins: Iterable[int] = ALL_BINS,
            sides: Iterable[int] = (INSIDE, LOW, HIGH),
            signs: Iterable[int] = (NEGATIVE, ZERO, POSITIVE),
        ) -> float:
            return sum(cells[(b * 3 + side) * 3 + sign] for b in bins for side in sides for sign in signs)

        n = count()
        high, low = count(sides=[HIGH]), count(sides=[LOW])
        cut_high, cut_low = count(sides=[HIGH], signs=[POSITIVE]), count(sides=[LOW], signs=[NEGATIVE])
        tail_high, good_tail = count([0], [HIGH]), count([0], signs=[POSITIVE])
        good_tail_cut = count([0], [HIGH], [POSITIVE])
        out = {
            "tokens": n,
            "sequences": sums["sequences"],
            "clip/count": high + low,
            "clip/fraction": _ratio(high + low, n),
            "clip/high_fraction": _ratio(high, n),
            "clip/low_fraction": _ratio(low, n),
            "clip/tail_high_count": tail_high,
            "clip/tail_high_share": _ratio(tail_high, high + low),
            "clip/good_tail_tokens": good_tail,
            "cut/fraction": _ratio(cut_high + cut_low, n),
            "cut/high_fraction": _ratio(cut_high, n),
            "cut/low_fraction": _ratio(cut_low, n),
            "cut/good_tail_count": good_tail_cut,
            "cut/good_tail": _ratio(good_tail_cut, good_tail),
            "not_finite/count": sums["not_finite"],
            "cap/fraction": _ratio(sums["capped"], n),
            "dual_clip/fraction": _ratio(sums["dual_clipped"], n),
            "kl_old/k1": _ratio(sums["kl_old_k1"], n),
            "kl_old/k3": _ratio(sums["kl_old_k3"], n),
            "log_ratio/max": top if n else math.nan,
            "log_ratio/min": -bottom if n else math.nan,
            "log_ratio/saturated_fraction": _ratio(sums["saturated"], n),
            "logps/above_zero_fraction": _ratio(sums["above_zero"], n),
        }
        for b, name in enumerate(BINS):
            in_bin = count([b])
            out[f"tokens/{name}"] = _ratio(in_bin, n)
            out[f"clip/high/{name}"] = _ratio(count([b], [HIGH]), in_bin)
            out[f"clip/low/{name}"] = _ratio(count([b], [LOW]), in_bin)
            out[f"cut/high/{name}"] = _ratio(count([b], [HIGH], [POSITIVE]), in_bin)
            out[f"cut/low/{name}"] = _ratio(count([b], [LOW], [NEGATIVE]), in_bin)
        for percent in (1, 50, 99):
            out[f"log_ratio/p{percent:02d}"] = _quantile(histogram, percent / 100)
        if sums["entropy_tokens"]:
            out["entropy"] = sums["entropy"] / sums["entropy_tokens"]
        if sums["kl_ref_tokens"]:
            out["kl_ref"] = sums["kl_ref"] / sums["kl_ref_tokens"]
        return out


def check_sums(sums: Mapping[Any, float]) -> None:
    """Raise ValueError as `Metrics.check` does, of the sums by name."""
    if sums["far_above_zero"]:
        tokens = counted(int(sums["far_above_zero"]), "response token")
        raise ValueError(
            f"logps, old_logps and ref_logps must be log-probabilities, at most 0; at {tokens} one is above "
            f"{NO_LOGPS:g}. Is it the negative log-likelihood, as cross_entropy returns it? Then pass its negative. Is "
            "it a probability? Then pass its logarithm"
        )
    if sums["misfit"]:
        raise ValueError(
            "longest and advantages must fit sequence_ids: the tokens of the longest response, and one number for each "
            "response that has a token in the mask, whose ids stand together in a row"
        )
    if sums["mixed"]:
        rows = counted(int(sums["mixed"]), "row")
        raise ValueError(
            "advantages must be the same for all tokens of a response, which has one ratio under this objective; they "
            f"vary in {rows}. Are several responses packed into a row? Then pass sequence_ids, the response of each "
            "token"
        )


# Opaque to the compiler, which would make an int64 tensor of the indices and another one of ones.
@torch.library.custom_op("bandpo::tally", mutates_args=())
def _tally(index: Tensor, size: int) -> Tensor:
    """How often each of 0 ... size - 1 occurs in a uint8 tensor; `size` is the bin for padding."""
    index = index.flatten()
    if index.device.type == "cpu":
        return torch.bincount(index, minlength=size + 1)[:size].clone()
    counts = torch.zeros(size + 1, dtype=torch.int64, device=index.device)
    for start in range(0, len(index), 1 << 20):  # bincount would wait for the device
        part = index[start : start + (1 << 20)].long()
        counts.scatter_add_(0, part, torch.ones_like(part))
    return counts[:size].clone()


@_tally.register_fake
def _(index: Tensor, size: int) -> Tensor:
    return index.new_empty(size, dtype=torch.int64)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _quantile(histogram: list[float], level: float) -> float:
    """The centre of the bin that holds the quantile."""
    rank, seen = level * sum(histogram), 0.0
    for i, n in enumerate(histogram):
        seen += n
        if n and seen >= rank:
            return SCALE * math.sinh((i - HALF) * STEP)
    return math.nan
