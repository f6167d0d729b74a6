"""Search for a rule's number that stops as many tokens of a run as wanted: at a rate, or as many as another rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from bandpo.errors import UserError, nearest
from bandpo.losses.metrics import EDGES
from bandpo.trust_regions.base import Context, Region
from bandpo.trust_regions.rules import DCPO, RIPO, Band, Clip

from ..statistics.calibration import (
    check_monotone,
    critical_numbers,
    number_interval,
    smallest_number,
)
from ..statistics.intervals import Interval
from .numbers import free_number, numbers_of, with_number
from .tokens import Bools, Floats, Integers, Tokens

Among = Literal["all", "tail", "positive", "negative"]
TAIL = EDGES[0]
RULES: tuple[Region, ...] = (
    Band("kl"),
    Band("tv"),
    Band("chi2"),
    Clip(0.2, 0.2),
    Clip(0.2, 0.28),
    DCPO(),
    RIPO(),
)
FEW = 20  # tokens outside, with fewer of which an interval is not to be trusted
_STILL = 1e-6  # log-ratios that are rounding alone
_PIECE = 2**20  # tokens that are worked on at once
# What is tried where a rule has no formula: from nearly nothing to nearly everything, and ratios just above 1.
_TRIED = sorted({*np.logspace(-8, 4, 25).tolist(), *(1 + np.logspace(-3, -0.125, 12)).tolist()})


@dataclass(frozen=True)
class Measured:
    """Effect of a rule on the tokens: shares of those that are looked at, except `rare`, a share of those outside."""

    label: str
    node: Mapping[str, Any] | None
    rate: float
    high: float
    low: float
    rare: float


@dataclass(frozen=True)
class Found:
    """A rule with the number that was found; `measured` is of the rule with `value`, which is `exact` rounded up to
    `digits` digits, and `region` is that. Without a value `why` says why there is none."""

    label: str
    parameter: str
    exact: float | None
    value: float | None
    interval: Interval | None
    measured: Measured | None
    notes: tuple[str, ...]
    why: str = ""
    digits: int = 3
    region: Region | None = None


@dataclass(frozen=True)
class Calibration:
    """The rate that was wanted, the rule whose rate it is (None: it was given), and the number of each rule."""

    tokens: int
    responses: int | None
    looked_at: int
    among: Among
    cut: bool
    rate: float
    reference: Measured | None
    times: float
    rules: tuple[Found, ...]
    warnings: tuple[str, ...]


# ---------------------------------------------------------------------------------------------------- tokens and rules
@dataclass(frozen=True, eq=False)
class _Sample:
    """The tokens that are looked at, and which of them count where they are outside."""

    tokens: Tokens
    index: Integers
    counted: Bools | None

    @property
    def responses(self) -> Integers | None:
        return None if self.tokens.responses is None else self.tokens.responses[self.index]

    def pieces(self, some: Integers | None = None) -> Iterator[tuple[Tensor, Tensor, Context]]:
        """Yield log-ratios, old log-probabilities and a rule's other inputs, a million at once.

        `some`: of these tokens alone.
        """
        index = self.index if some is None else self.index[some]
        for start in range(0, len(index), _PIECE):
            part = index[start : start + _PIECE]
            advantages = self.tokens.advantages
            context = Context(advantages=None if advantages is None else torch.from_numpy(advantages[part]))
            yield torch.from_numpy(self.tokens.log_ratio[part]), torch.from_numpy(self.tokens.old[part]), context

    def outside(self, region: Region, some: Integers | None = None) -> Bools:
        """Mark the tokens, all or some, that are outside and count."""
        parts = [~region.contains(ratio, old, context) for ratio, old, context in self.pieces(some)]
        outside = torch.cat(parts).numpy() if parts else np.zeros(0, np.bool_)
        return outside if self.counted is None else outside & (self.counted if some is None else self.counted[some])


def _sample(tokens: Tokens, among: Among, cut: bool) -> _Sample:
    advantages, ratio = tokens.advantages, tokens.log_ratio
    if cut and advantages is None:
        raise UserError(
            "which tokens are cut is known where their advantages are; no column has them (--advantage names one)"
        )
    counted = None
    if cut:
        counted = (cast(Floats, advantages) * np.sign(ratio)) > 0  # outside on the side to which A drives
    chosen = {
        "all": lambda: np.ones(tokens.count, np.bool_),
        "tail": lambda: tokens.old <= math.log(TAIL),
        "positive": lambda: cast(Floats, advantages) > 0,
        "negative": lambda: cast(Floats, advantages) < 0,
    }[among]()
    index = np.flatnonzero(chosen)
    if not len(index):
        what = {"tail": f"of old probability p <= {TAIL}", "positive": "with A > 0", "negative": "with A < 0"}[among]
        raise UserError(f"there is no token {what} among {tokens.count:,}")
    return _Sample(tokens, index, None if counted is None else counted[index])


def _check_alone(region: Region, sample: _Sample) -> None:
    """Raise UserError for a rule that needs what is not known here, or by which tokens of a batch depend on others."""
    some = np.linspace(0, len(sample.index) - 1, min(len(sample.index), 1000)).astype(np.int64)
    try:
        whole, half = (
            region.bounds(old, context)
            for each in (some, some[: (len(some) + 1) // 2])
            for _, old, context in sample.pieces(each)
        )
    except ValueError as error:
        raise UserError(
            f"{region.label} needs more than old log-probabilities and advantages, which is all that is known here "
            f"({error})"
        ) from error
    count = len(half.log_low)
    for one, other in (whole.log_low, half.log_low), (whole.log_high, half.log_high):
        if not torch.allclose(one[:count], other, rtol=1e-9):  # but for the order of sums
            raise UserError(
                f"{region.label} gives a token other bounds in another batch, which are not known from a file of "
                "tokens; find the number of the rule that it is made of"
            )


def _plain(node: Any) -> Any:
    """Return a node as YAML, JSON and Python can all write it; a number may be a text in all of them."""
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items()}
    return str(node) if isinstance(node, float) and math.isinf(node) else node


def _measure(region: Region, sample: _Sample) -> tuple[Measured, Bools]:
    outside = sample.outside(region)
    ratio, old = sample.tokens.log_ratio[sample.index], sample.tokens.old[sample.index]
    count = int(outside.sum())
    high = int((outside & (ratio > 0)).sum())
    rare = int((outside & (old <= math.log(TAIL))).sum())
    n = len(outside)
    try:
        node = _plain(cast(Any, region).to_config())
    except (ValueError, AttributeError):  # a divergence without a name
        node = None
    shares = count / n, high / n, (count - high) / n, rare / count if count else math.nan
    return Measured(region.label, node, *shares), outside


def measure(
    tokens: Tokens, region: Region, *, among: Among = "all", cut: bool = False
) -> tuple[Measured, Floats, Floats, Bools]:
    """Measure a rule on the tokens that `calibrate` would look at.

    Returns also their old log-probabilities and log-ratios, and which of them are outside and count.
    """
    cut = cut or among in ("positive", "negative")
    sample = _sample(tokens, among, cut)
    _check_alone(region, sample)
    measured, outside = _measure(region, sample)
    return measured, tokens.old[sample.index], tokens.log_ratio[sample.index], outside


# ------------------------------------------------------------------------------------------------------- what is found
def calibrate(
    tokens: Tokens,
    rules: Sequence[Region] | None = None,
    *,
    rate: float | None = None,
    match: Region | None = None,
    times: float = 1.0,
    among: Among = "all",
    cut: bool = False,
    parameter: Sequence[str] = (),
) -> Calibration:
    """Find the number of each rule that leaves a share of the tokens outside.

    Args:
        tokens: of a run.
        rules: whose number is sought; what it is does not matter. None: `RULES`, without those of the type of `match`,
            which would be found to be `match` itself.
        rate: the share; None: that of `match`.
        match: another rule; None: GRPO's `Clip(0.2, 0.2)`.
        times: the share is that of `match`, times this.
        among: all tokens, those of the tail (p <= 0.2), or those with a positive or a negative advantage, of which only
            those count that are `cut`.
        cut: count only tokens that are outside on the side to which their advantage drives them.
        parameter: the fields that the number stands in, for all rules; empty: `free_number` of each.

    Raises:
        UserError: a question that these tokens do not answer, or a rule or a field that does not fit.
    """
    if not np.any(np.abs(tokens.log_ratio) > _STILL):
        raise UserError(
            "every ratio is 1, so no rule acts: either each batch is used for one optimizer step, or these are the "
            "log-probabilities of the first step of each batch; write those of a later one"
        )
    cut = cut or among in ("positive", "negative")
    sample = _sample(tokens, among, cut)
    n, responses = len(sample.index), sample.responses
    grouped = np.arange(n) if responses is None else responses
    count = int(grouped.max()) + 1
    reference = None
    if rate is None:
        match = match or Clip(0.2, 0.2)
        _check_alone(match, sample)
        reference, outside = _measure(match, sample)
        if not outside.any():
            raise UserError(
                f"{reference.label} leaves none of {n:,} tokens outside, so there is no rate to match; --rate asks for "
                "one"
            )
        wanted = times * np.bincount(grouped[outside], minlength=count).astype(np.float64)
        rules = rules or [rule for rule in RULES if times != 1 or type(rule) is not type(match)]
    else:
        wanted = rate * np.bincount(grouped, minlength=count).astype(np.float64)
    found = tuple(
        _find(region, tuple(parameter) or free_number(region), sample, grouped, wanted) for region in rules or RULES
    )
    warnings = [*_warnings(tokens, wanted.sum(), responses)]
    return Calibration(
        tokens.count, tokens.response_count, n, among, cut, float(wanted.sum()) / n, reference, times, found,
        tuple(warnings),
    )  # fmt: skip


def _warnings(tokens: Tokens, wanted: float, responses: Integers | None) -> Iterator[str]:
    if wanted < FEW:
        yield (
            f"Only {wanted:.3g} tokens are to be outside. From fewer than {FEW} the number is a guess, and its "
            "interval wide, perhaps without an upper end: take the tokens of more responses."
        )
    if responses is None:
        yield (
            "No intervals: tokens of one response depend on one another, and the rows do not say which response a "
            "token belongs to. --response names the column that does."
        )
    elif (few := len(np.unique(responses))) < FEW:
        yield f"The tokens are of {few} responses only. How good an interval from fewer than {FEW} is was not measured."
    if tokens.saturated:
        yield (
            f"{tokens.saturated:,} tokens have a log-ratio beyond +-60, where the loss clamps it: something is wrong "
            "with the log-probabilities, or the policy has moved very far."
        )


def _find(region: Region, names: tuple[str, ...], sample: _Sample, responses: Integers, wanted: Floats) -> Found:
    label, parameter, shown = region.label, ",".join(names), " = ".join(names)
    known = numbers_of(region)
    for name in names:
        if name not in known and not (isinstance(region, Band) and name in ("delta_low", "delta_high")):
            raise UserError(f"--parameter: {label} has no number {name!r}{nearest(name, known)}; it has {known}")
    _check_alone(region, sample)
    critical = _all_critical(region, names, sample, responses, wanted)
    moved = sample.tokens.log_ratio[sample.index] != 0
    critical = np.where(moved if sample.counted is None else sample.counted, critical, 0.0)
    most = float(wanted.sum())
    exact, n = smallest_number(critical, most), len(critical)
    if exact == 0:
        what = "outside" if sample.counted is None else "cut"
        why = f"at most {_percent((critical > 0).mean())} of the tokens are {what}, whatever {shown} is"
        return Found(label, parameter, None, None, None, None, (), why)
    never = int(np.isinf(critical).sum())
    if math.isinf(exact):
        why = f"{_percent(never / n)} of the tokens are outside, whatever {shown} is, which is more than wanted"
        return Found(label, parameter, None, None, None, None, (), why)
    interval, digits = None, 3
    if sample.tokens.responses is not None and np.ptp(responses) > 0:
        interval = number_interval(critical, responses, wanted)
        if 0 < (width := interval.high - interval.low) < exact:  # so that rounding does not leave it
            digits = min(max(math.ceil(math.log10(exact / width)) + 1, 3), 4)
    value = _rounded_up(exact, digits)
    chosen = with_number(region, names, value)
    measured, outside = _measure(chosen, sample)
    notes: list[str] = []
    if never:
        notes.append(
            f"{_percent(never / max(1, int(outside.sum())))} of the tokens that it stops are stopped at every "
            f"{shown} that was tried: a cap or the other side stops them, or their ratio is very far from 1."
        )
    if outside.sum() < 0.8 * most and most >= FEW:
        notes.append(
            "It stops fewer than wanted, since many tokens have the very same ratio; were the log-probabilities "
            "written with few digits?"
        )
    notes += _saturation(chosen, sample)
    return Found(
        measured.label, parameter, exact, value, interval, measured, tuple(notes), digits=digits, region=chosen
    )


def _all_critical(
    region: Region, names: tuple[str, ...], sample: _Sample, responses: Integers, wanted: Floats
) -> Floats:
    parts = [region.critical(names, ratio, old) for ratio, old, _ in sample.pieces()]
    if all(part is not None for part in parts):
        return torch.cat(cast("list[Tensor]", parts)).numpy()

    def outside(value: float, some: Integers) -> Bools:
        return sample.outside(with_number(region, names, value), some)

    numbers = [value for value in _TRIED if _is_allowed(region, names, value)]
    if len(numbers) < 2:
        raise UserError(f"{region.label}: no two of the numbers from 1e-8 to 10,000 may stand in {','.join(names)}")
    try:
        check_monotone(outside, len(sample.index), numbers)
    except UserError as error:
        raise UserError(f"{region.label}, {','.join(names)}: {error}") from None
    return critical_numbers(outside, (numbers[0], numbers[-1]), responses, wanted)


def _is_allowed(region: Region, names: tuple[str, ...], value: float) -> bool:
    try:
        with_number(region, names, value)
    except ValueError:
        return False
    return True


def _saturation(region: Region, sample: _Sample) -> list[str]:
    """Say what share of the tokens a rule cannot stop, because both bounds are where probabilities end."""
    free = 0
    for _, old, context in sample.pieces():
        bounds = region.bounds(old, context)
        free += int(((bounds.log_low == -torch.inf) & (bounds.log_high >= -old - 1e-9)).sum())
    share = free / len(sample.index)
    return [f"It can stop {_percent(share)} of the tokens nowhere: all of [0, 1] is in reach."] if share >= 0.1 else []


def _rounded_up(x: float, digits: int) -> float:
    """Round up to so many digits: then no more tokens are outside than at x."""
    step = 10.0 ** (math.floor(math.log10(x)) - digits + 1)
    return float(f"{math.ceil(x / step - 1e-9) * step:.{digits}g}")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
