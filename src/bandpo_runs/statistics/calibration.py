"""Search for the number of a rule that leaves as many tokens outside as wanted, and its interval.

The larger the number of a rule, such as the radius of a band, the fewer tokens are outside. So each token has a
*critical* number: it is outside for all numbers below it, and inside from it on. The number that leaves a share of the
tokens outside is a quantile of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bandpo.errors import UserError

from .estimators import Floats
from .intervals import LEVEL, Interval, t_quantile

Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]
# How far from the wanted count of tokens outside critical numbers are found, in half widths of a plain interval.
_FAR = 4


def smallest_number(critical: Floats, most: float) -> float:
    """Return the smallest number that leaves at most `most` tokens outside.

    It is 0 if no token need be inside, and inf if more than `most` tokens are outside whatever the number is.
    """
    inside = len(critical) - math.floor(most * (1 + 1e-12) + 1e-9)
    return float(np.partition(critical, inside - 1)[inside - 1]) if inside > 0 else 0.0


def number_interval(critical: Floats, responses: Integers, wanted: Floats, *, level: float = LEVEL) -> Interval:
    """Return the numbers that a t test over responses does not reject.

    The test sums over responses the tokens outside minus those wanted, as tokens of one response depend on one another
    and responses do not. What is wanted may be the count of another rule in the same responses. The error is that at
    the tested number, or at the answer if that is larger and the tokens outside are fewer than wanted: few tokens
    outside would give a small error. (With that at the answer everywhere: Woodruff, J. Am. Stat. Assoc. 47, 1952.)

    Args:
        critical: of each token.
        responses: the response of each token, from 0 to len(wanted) - 1; two at least.
        wanted: how many tokens of each response may be outside, e.g. a rate times its length.
        level: of the interval.
    """
    value, count = smallest_number(critical, float(wanted.sum())), len(wanted)
    order = np.argsort(-critical)
    falling, of = critical[order], responses[order]  # when k are outside, they are the first k
    same = np.argsort(of, kind="stable")
    lengths = np.bincount(of, minlength=count)
    place = np.empty(len(of))
    place[same] = np.arange(len(of)) - (lengths.cumsum() - lengths)[of[same]]  # within its response
    excess = np.arange(len(of) + 1) - wanted.sum()
    squares = np.append(0.0, (2 * (place - wanted[of]) + 1).cumsum()) + (wanted**2).sum()
    variance = np.maximum(squares - excess**2 / count, 0) * count / (count - 1)
    answer = int((critical > value).sum())
    variance[:answer] = np.maximum(variance[:answer], variance[answer])
    rejected = np.abs(excess) > t_quantile(0.5 + level / 2, count - 1) * np.sqrt(variance)
    rejected[1:-1] &= falling[1:] < falling[:-1]  # of tokens with the very same number all are outside, or none
    rejected[answer] = False  # and so it may be far from the count that is wanted
    fewest = int(np.append(-1, np.flatnonzero(rejected[:answer])).max()) + 1
    most = int(np.append(np.flatnonzero(rejected[answer:]) + answer, len(rejected)).min()) - 1
    low, high = falling[most] if most < len(of) else 0.0, falling[fewest - 1] if fewest else math.inf
    return Interval(float(low), float(high))


def critical_numbers(
    outside: Callable[[float, Integers], Bools], numbers: Sequence[float], responses: Integers, wanted: Floats
) -> Floats:
    """Find critical numbers by bisection, if there is no formula.

    They are found around the answer, as far as the interval reaches, at 128 numbers there and at the answer itself,
    which is found to a millionth; each is the next of these from above. The others are only on the right side of them.

    Args:
        outside: which of some tokens, given by their indices, are outside at a number.
        numbers: that may be asked for, rising. A token that is inside at the first one has the critical number 0, one
            that is outside at the last one has inf.
        responses: as for `number_interval`.
        wanted: as for `number_interval`.

    Raises:
        UserError: of 20,000 tokens one gets outside where the number grows.
    """
    some = np.linspace(0, len(responses) - 1, min(len(responses), 20_000)).astype(np.int64)
    before = np.ones(len(some), np.bool_)
    for i, number in enumerate(numbers):
        now = outside(number, some)
        if (worse := int((now & ~before).sum())) > 0:
            raise UserError(
                f"from {numbers[i - 1]:g} to {number:g} it gets wider for some tokens and narrower for {worse} of "
                f"{len(some)}; a number is found only where a larger one allows every token more"
            )
        before = now
    low, high, everyone = numbers[0], numbers[-1], np.arange(len(responses))
    never, held = outside(high, everyone), outside(low, everyone)
    between = np.flatnonzero(held & ~never)

    def narrowed(rank: float) -> float:
        """Return the smallest number that leaves so many outside, from above."""
        below, above, tokens, more = low, high, between, int(never.sum())
        while above > below * (1 + 1e-6) and len(tokens):
            middle = math.sqrt(below * above)
            is_outside = outside(middle, tokens)
            if more + is_outside.sum() > rank:
                below, tokens = middle, tokens[is_outside]
            else:
                above, tokens, more = middle, tokens[~is_outside], more + int(is_outside.sum())
        return above

    value = narrowed(math.floor(wanted.sum() + 1e-9))
    differ = np.bincount(responses[outside(value, everyone)], minlength=len(wanted)) - wanted
    far = t_quantile(0.5 + LEVEL / 2, max(len(wanted) - 1, 1)) * math.sqrt(2 * float(differ @ differ)) + 10
    few, many = max(wanted.sum() - far, 0.0), min(wanted.sum() + _FAR * far, len(responses) - 1.0)
    critical = np.where(never, np.inf, np.where(held, high, 0.0))
    first, last = narrowed(math.ceil(many)), narrowed(max(math.floor(few), int(never.sum())))
    between = between[~outside(last, between)]
    for number in np.unique([*np.geomspace(first, last, 128), value]):
        is_outside = outside(float(number), between)
        critical[between[~is_outside]] = number
        between = between[is_outside]
    return critical
