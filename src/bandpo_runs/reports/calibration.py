"""Search for a number of a rule by the share of tokens outside its bounds. It may be that of another rule."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bandpo.control import replace_number
from bandpo.errors import UserError, nearest
from bandpo.losses.metrics import TAIL
from bandpo.trust_regions.base import Context, Region, flat_fields
from bandpo.trust_regions.rules import DCPO, RIPO, Band, Clip

from ..statistics.calibration import critical_numbers, number_interval, smallest_number
from ..statistics.estimators import Bools, Floats, Integers
from ..statistics.intervals import Interval
from .texts import percent
from .tokens import Tokens

RULES: tuple[Region, ...] = (
    Band("kl"),
    Band("tv"),
    Band("chi2"),
    Clip(0.2, 0.2),
    Clip(0.2, 0.28),
    DCPO(),
    RIPO(),
)
FEW = 20  # tokens outside their bounds, with fewer of which an interval is not to be trusted
_PIECE = 2**20  # tokens that are worked on at once
# What is tried first: from nearly nothing to nearly everything, and ratios just above 1.
_TRIED = sorted({*np.logspace(-8, 4, 25).tolist(), *(1 + np.logspace(-3, -0.125, 12)).tolist()})


@dataclass(frozen=True)
class Measured:
    """Shares of the tokens that a rule leaves outside; `rare` is a share of those."""

    label: str
    node: Mapping[str, Any] | None
    rate: float
    high: float
    low: float
    rare: float


@dataclass(frozen=True)
class Calibrated:
    """A rule with its number, or `why` there is none."""

    label: str
    parameter: str  # its fields
    exact: float | None = None
    value: float | None = None  # `exact` rounded up
    interval: Interval | None = None
    measured: Measured | None = None  # of the rule with `value`
    notes: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Calibration:
    """The wanted rate, the rule that gave it if any, and the number of each rule."""

    tokens: int
    responses: int
    cut: bool
    rate: float
    reference: Measured | None
    rules: tuple[Calibrated, ...]
    warnings: tuple[str, ...]


# ------------------------------------------------------------------------------------------------- numbers of a rule
def free_number(region: Region) -> tuple[str, ...]:
    """Return the fields that are one number; UserError where that is not clear."""
    if region.tunable:
        return region.tunable
    numbers = numbers_of(region)
    raise UserError(
        f"{region.label} has {len(numbers)} numbers, {numbers}; name the one to find (--parameter)"
    )


def numbers_of(region: Region) -> list[str]:
    """List the fields that are numbers, also those of rules within, as `region.delta`."""
    numbers: list[str] = []
    for place, value in flat_fields(region):
        if isinstance(value, float):
            numbers.append(place)
        elif isinstance(value, Region):
            numbers += [f"{place}.{name}" for name in numbers_of(value)]
    return numbers


# ---------------------------------------------------------------------------------------------------- tokens and rules
def _pieces(tokens: Tokens, some: Integers | None = None) -> Iterator[tuple[Tensor, Tensor, Context]]:
    """Yield log-ratios, old log-probabilities and contexts in pieces. They are of all tokens or `some`."""
    index = np.arange(tokens.count) if some is None else some
    for start in range(0, len(index), _PIECE):
        part = index[start : start + _PIECE]
        yield (
            torch.from_numpy(tokens.log_ratio[part]),
            torch.from_numpy(tokens.old[part]),
            Context(
                advantages=None
                if tokens.advantages is None
                else torch.from_numpy(tokens.advantages[part])
            ),
        )


def _outside(tokens: Tokens, region: Region, cut: bool, some: Integers | None = None) -> Bools:
    """Mark the tokens outside. With `cut` only those count that their advantage drives further out."""
    parts = [
        ~region.bounds(old, context).contains(ratio) for ratio, old, context in _pieces(tokens, some)
    ]
    outside = torch.cat(parts).numpy() if parts else np.zeros(0, np.bool_)
    return outside & (_driven_out(tokens)[slice(None) if some is None else some] if cut else True)


def _driven_out(tokens: Tokens) -> Bools:
    return cast(Floats, tokens.advantages) * np.sign(tokens.log_ratio) > 0


def _check(tokens: Tokens, region: Region, cut: bool) -> None:
    """Refuse a rule that needs more than is known, or mixes tokens of a batch."""
    if cut and tokens.advantages is None:
        raise UserError(
            "which tokens are clipped is known where their advantages are; no column `advantages` has them"
        )
    some = np.linspace(0, tokens.count - 1, min(tokens.count, 1000)).astype(np.int64)
    half = (len(some) + 1) // 2
    try:
        whole, part = (
            region.bounds(old, context)
            for each in (some, some[:half])
            for _, old, context in _pieces(tokens, each)
        )
    except ValueError as error:
        raise UserError(
            f"{region.label} needs more than old log-probabilities and advantages, which is all that is known here "
            f"({error})"
        ) from error
    pairs = (whole.log_low, part.log_low), (whole.log_high, part.log_high)
    if not all(
        torch.allclose(one[:half], other, rtol=1e-9) for one, other in pairs
    ):  # up to the order of sums
        raise UserError(
            f"{region.label} gives a token other bounds in another batch, which are not known from a file of tokens; "
            "find the number of the rule that it is made of"
        )


def measure(tokens: Tokens, region: Region, *, cut: bool = False) -> tuple[Measured, Bools]:
    """Measure a rule on tokens, and mark those outside. Raises UserError as `calibrate` does."""
    _check(tokens, region, cut)
    outside = _outside(tokens, region, cut)
    rare = outside & (tokens.old <= math.log(TAIL))
    try:
        node = _plain(cast(Any, region).to_config())
    except (ValueError, AttributeError):  # a divergence without a name
        node = None
    return Measured(
        region.label,
        node,
        rate=float(outside.mean()),
        high=float((outside & (tokens.log_ratio > 0)).mean()),
        low=float((outside & (tokens.log_ratio <= 0)).mean()),
        rare=float(rare.sum() / outside.sum()) if outside.any() else math.nan,
    ), outside


def _plain(node: Any) -> Any:
    """Return a node as YAML, JSON and Python can all write it."""
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items()}
    return str(node) if isinstance(node, float) and math.isinf(node) else node


# ---------------------------------------------------------------------------------------------------------- the search
def calibrate(
    tokens: Tokens,
    rules: Sequence[Region] | None = None,
    *,
    rate: float | None = None,
    match: Region | None = None,
    cut: bool = False,
    parameter: Sequence[str] = (),
) -> Calibration:
    """Find the number of each rule that leaves a share of the tokens outside.

    Args:
        tokens: of a run.
        rules: whose number is sought; the number that they have does not matter. None: `RULES`, without those of the
            type of `match`, which would be found to be `match` itself.
        rate: the share; None: that of `match`.
        match: another rule; None: GRPO's `Clip(0.2, 0.2)`.
        cut: count only tokens that are outside on the side to which their advantage drives them.
        parameter: the fields that the number stands in, for all rules; empty: `free_number` of each.

    Raises:
        UserError: a question that these tokens do not answer, or a rule or a field that does not fit.
    """
    if not np.any(np.abs(tokens.log_ratio) > 1e-6):  # less is rounding alone
        raise UserError(
            "clipping has no effect: every ratio is 1. Each batch gets one optimizer step, or these are the "
            "log-probabilities of its first step; write those of a later one"
        )
    reference = None
    if rate is None:
        match = match or Clip(0.2, 0.2)
        reference, outside = measure(tokens, match, cut=cut)
        if not outside.any():
            raise UserError(
                f"none of {tokens.count:,} tokens is outside the bounds of {reference.label}, so its share cannot be "
                "matched; --rate sets one"
            )
        rules = rules or [rule for rule in RULES if type(rule) is not type(match)]
        wanted = np.bincount(tokens.responses[outside], minlength=tokens.response_count).astype(
            np.float64
        )
    else:
        wanted = rate * np.bincount(tokens.responses).astype(np.float64)
    most = float(wanted.sum())
    few = (
        f"Only {most:.3g} tokens would be outside their bounds. With fewer than {FEW} the number is a guess, and its "
        "interval is wide, perhaps without an upper end: take the tokens of more responses."
    )
    return Calibration(
        tokens.count,
        tokens.response_count,
        cut,
        most / tokens.count,
        reference,
        tuple(
            _find(rule, tuple(parameter) or free_number(rule), tokens, cut, wanted)
            for rule in rules or RULES
        ),
        (few,) if most < FEW else (),
    )


def _find(
    region: Region, names: tuple[str, ...], tokens: Tokens, cut: bool, wanted: Floats
) -> Calibrated:
    label, fields, numbers = region.label, " = ".join(names), numbers_of(region)
    for name in names:
        if name not in numbers:
            raise UserError(
                f"--parameter: {label} has no number {name!r}{nearest(name, numbers)}; it has {numbers}"
            )
    _check(tokens, region, cut)
    critical = _all_critical(region, names, tokens, cut, wanted)
    critical = np.where((tokens.log_ratio != 0) & (_driven_out(tokens) if cut else True), critical, 0.0)
    most, never = float(wanted.sum()), int(np.isinf(critical).sum())
    exact = smallest_number(critical, most)
    if exact == 0:
        counted = "clipped" if cut else "outside their bounds"
        why = (
            f"at most {percent((critical > 0).mean())} of the tokens are {counted}, whatever {fields} is"
        )
        return Calibrated(label, ",".join(names), why=why)
    if math.isinf(exact):
        always = f"{percent(never / tokens.count)} of the tokens are outside their bounds, whatever {fields} is"
        return Calibrated(label, ",".join(names), why=f"{always}; that is more than you asked for")
    value = _rounded_up(exact)
    measured, outside = measure(tokens, replace_number(region, names, value), cut=cut)
    notes = {
        f"{percent(never / max(1, int(outside.sum())))} of its tokens outside their bounds are there at every {fields} "
        "that was tried: by a cap or the other side, or because their ratio is very far from 1.": never
        > 0,
        "It leaves fewer tokens outside their bounds than you asked for: many have the same ratio. Were the "
        "log-probabilities written with few digits?": outside.sum() < 0.8 * most and most >= FEW,
    }
    return Calibrated(
        measured.label,
        ",".join(names),
        exact,
        value,
        number_interval(critical, tokens.responses, wanted) if len(wanted) > 1 else None,
        measured,
        tuple(note for note, holds in notes.items() if holds),
    )


def _all_critical(
    region: Region, names: tuple[str, ...], tokens: Tokens, cut: bool, wanted: Floats
) -> Floats:
    """Return the number of each token from which on it is inside."""
    numbers = []
    for value in _TRIED:
        with contextlib.suppress(ValueError):  # the rule may not have it
            replace_number(region, names, value)
            numbers.append(value)
    if len(numbers) < 2:
        raise UserError(
            f"{region.label}: no two of the numbers from 1e-8 to 10,000 may stand in {','.join(names)}"
        )

    def outside(value: float, some: Integers) -> Bools:
        return _outside(tokens, replace_number(region, names, value), cut, some)

    try:
        return critical_numbers(outside, numbers, tokens.responses, wanted)
    except ValueError as error:
        raise UserError(f"{region.label}, {','.join(names)}: {error}") from None


def _rounded_up(x: float) -> float:
    """Round up to three digits: then no more tokens are outside than at x."""
    step = 10.0 ** (math.floor(math.log10(x)) - 2)
    return float(f"{math.ceil(x / step - 1e-9) * step:.3g}")
