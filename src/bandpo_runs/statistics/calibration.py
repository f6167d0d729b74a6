"""Find the number of a rule that leaves a wanted share of tokens outside. It comes with its interval.

The larger the number of a rule, such as the radius of a band, the fewer tokens are outside. So each token has a
*critical* number: it is outside for all numbers below it, and inside from it on. The number that leaves a share of the
tokens outside is a quantile of these.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from bandpo.errors import UserError

from .estimators import Bools, Floats, Integers
from .intervals import LEVEL, Interval, t_quantile


def smallest_number(critical: Floats, most: float) -> float:
    """Return the smallest number that leaves at most `most` tokens outside.

    It is 0 if no token need be inside, and inf if more than `most` tokens are outside whatever the number is.
    """
    inside = len(critical) - math.floor(most * (1 + 1e-12) + 1e-9)
    return float(np.partition(critical, inside - 1)[inside - 1]) if inside > 0 else 0.0


def number_interval(
    critical: Floats, responses: Integers, wanted: Floats, *, level: float = LEVEL
) -> Interval:
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
    # Of tokens with the very same number all are outside, or none.
    rejected[1:-1] &= falling[1:] < falling[:-1]
    rejected[answer] = False  # and so it may be far from the count that is wanted
    fewest = int(np.append(-1, np.flatnonzero(rejected[:answer])).max()) + 1
    most = int(np.append(np.flatnonzero(rejected[answer:]) + answer, len(rejected)).min()) - 1
    low, high = (
        falling[most] if most < len(of) else 0.0,
        falling[fewest - 1] if fewest else math.inf,
    )
    return Interval(float(low), float(high))


def critical_numbers(
    outside: Callable[[float, Integers], Bools],
    numbers: Sequence[float],
    responses: Integers,
    wanted: Floats,
) -> Floats:
    """Find critical numbers by trying numbers, without a formula.

    They are found on the grid of `numbers`, then on a finer one as far as the interval reaches, and the answer to a
    millionth. Each is the next tried number from above.

    Args:
        outside: which of some tokens, given by their indices, are outside at a number.
        numbers: the grid, rising. A token that is inside at the first one has the critical number 0, one that is
            outside at the last one has inf.
        responses: as for `number_interval`.
        wanted: as for `number_interval`.

    Raises:
        UserError: a token gets outside where the number grows.
    """
    critical, tried = np.full(len(responses), np.inf), np.array(numbers)
    before, everyone = np.ones(len(responses), np.bool_), np.arange(len(responses))
    for i, number in enumerate(numbers):
        now = outside(number, everyone)
        narrower = int((now & ~before).sum())
        if narrower > 0:
            raise UserError(
                f"from {numbers[i - 1]:g} to {number:g} it gets wider for some tokens and narrower for {narrower} of "
                f"{len(responses)}; a number is found only where a larger one allows every token more"
            )
        critical[before & ~now] = number if i else 0.0
        before = now

    def refine(low: float, high: float, count: int) -> None:
        """Try numbers between two, from above."""
        nonlocal tried
        tokens, more = (
            np.flatnonzero((critical > low) & (critical <= high)),
            np.geomspace(low, high, count)[1:-1],
        )
        for number in more[::-1]:
            tokens = tokens[~outside(float(number), tokens)]
            critical[tokens] = np.minimum(critical[tokens], number)
        tried = np.unique([*tried, *more])

    for _ in range(2 if len(wanted) > 1 else 0):
        low, high = np.searchsorted(tried, number_interval(critical, responses, wanted))
        refine(float(tried[max(low - 1, 0)]), float(tried[min(high + 1, len(tried) - 1)]), 130)
    while True:
        value = smallest_number(critical, float(wanted.sum()))
        below = tried[max(np.searchsorted(tried, value) - 1, 0)]
        if not 0 < value < math.inf or value <= below * (1 + 1e-6):
            return critical
        refine(below, value, 18)
