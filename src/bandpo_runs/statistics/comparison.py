"""Compare two checkpoints. `compare` sets B against A on the prompts that both answered.

It returns the difference with the intervals of `intervals.py`, and exact paired tests.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np

from bandpo.errors import UserError

from .estimators import Floats, Graded, log_choose, per_prompt
from .intervals import LEVEL, Interval, Spread, average, sampling_variance

MOST_WORK = 3e8  # additions of an exact test, a second or so; beyond that the sums are as good as normal


def _p_of_sum(
    steps: Sequence[Fraction], chances: Sequence[Floats], seen: Fraction, middle: Fraction
) -> float | None:
    """Compute the chance of a sum as far from its middle as was seen. None where it is too much work.

    The sum is of `steps` times independent whole numbers, each with its `chances` of 0, 1, 2 ...; exact by convolution
    on the grid that the steps have in common.
    """
    scale = math.lcm(*(step.denominator for step in steps))
    divisor = math.gcd(*(int(step * scale) for step in steps))
    whole, per_unit = [int(step * scale) // divisor for step in steps], Fraction(scale, divisor)
    size = sum(step * (len(chance) - 1) for step, chance in zip(whole, chances, strict=True))
    if size * sum(map(len, chances)) > MOST_WORK:
        return None
    total = np.ones(1)
    for step, chance in zip(whole, chances, strict=True):
        wide = np.zeros(len(total) + step * (len(chance) - 1))
        for i, p in enumerate(chance):
            wide[i * step : i * step + len(total)] += p * total
        total = wide
    far = np.abs(np.arange(len(total)) - float(middle * per_unit))
    return min(1.0, float(total[far >= abs(float((seen - middle) * per_unit)) - 1e-6].sum()))


def sign_flip_p(
    differences: Sequence[Fraction | float], *, draws: int = 100_000, seed: int = 0
) -> tuple[float, bool]:
    """Compute the p-value of differences by random signs, and if it is exact.

    It is the share of all 2^P choices of signs with a sum as far from 0. Exact by convolution for fractions with a
    common denominator that is not too large (means of samples are such), exact by enumeration up to 20 differences that
    are not 0, otherwise from random signs.
    """
    differences = [d for d in differences if d != 0]
    if not differences:
        return 1.0, True
    fractions = [d for d in differences if isinstance(d, Fraction)]
    if len(fractions) == len(differences):
        sizes = [abs(d) for d in fractions]  # what is added up are those with a plus
        middle = sum(sizes, Fraction(0)) / 2
        p = _p_of_sum(
            sizes, [np.full(2, 0.5)] * len(sizes), middle + sum(fractions, Fraction(0)) / 2, middle
        )
        if p is not None:
            return p, True
    size = np.abs(np.array([float(d) for d in differences]))
    seen = (
        abs(math.fsum(float(d) for d in differences)) - 1e-12 * size.sum()
    )  # equal sums are equal up to rounding
    if len(size) <= 20:
        sums = functools.reduce(
            lambda one, step: np.concatenate([one - step, one + step]), size, np.zeros(1)
        )
        return float((np.abs(sums) >= seen).mean()), True
    signs = np.random.default_rng(seed)
    sums = np.concatenate(
        [signs.choice([-1.0, 1.0], (1000, len(size))) @ size for _ in range(draws // 1000)]
    )
    return float(((np.abs(sums) >= seen).sum() + 1) / (len(sums) + 1)), False


def reshuffle_p(
    tables: Sequence[tuple[int, int, int, int]], weights: Sequence[Fraction] | None = None
) -> tuple[float, bool]:
    """Compute the p-value of equal chances at every prompt, and if it is exact.

    Each table is (right of A, samples of A, right of B, samples of B) of a prompt. At a prompt the samples of both are
    put together and dealt out again: hypergeometric. The distribution of the weighted sum over prompts of B's mean
    minus A's is exact, if it fits a table; else normal. (A stratified permutation test.)
    """
    weights = [Fraction(1, len(tables))] * len(tables) if weights is None else weights
    steps, seen, middle, variance, chances = [], Fraction(0), Fraction(0), 0.0, []
    for (a, n_a, b, n_b), weight in zip(tables, weights, strict=True):
        total, step = a + b, weight * (Fraction(1, n_a) + Fraction(1, n_b))
        low, high = max(0, total - n_a), min(total, n_b)
        if low == high:
            continue
        c = np.arange(low, high + 1)
        chance = np.exp(log_choose(n_b, c) + log_choose(n_a, total - c) - log_choose(n_a + n_b, total))
        chances.append(chance / chance.sum())
        steps.append(step)
        seen += step * (b - low)
        middle += step * (Fraction(total * n_b, n_a + n_b) - low)
        variance += float(step) ** 2 * float(chances[-1] @ c**2 - (chances[-1] @ c) ** 2)
    if not steps or seen == middle:
        return 1.0, True
    p = _p_of_sum(steps, chances, seen, middle)
    if p is not None:
        return p, True
    return 2 * NormalDist().cdf(-abs(float(seen - middle)) / math.sqrt(variance)), False


@dataclass(frozen=True)
class Judged:
    """Judge a difference against one kind of error. It has an interval, a p-value, and its exactness.

    It is settled if the interval excludes 0, and the test agrees.
    """

    interval: Interval
    p: float
    exact: bool
    settled: bool

    @classmethod
    def of(cls, spread: Spread, p: float, exact: bool) -> "Judged":
        low, high = interval = spread.interval(low=-1.0)
        return cls(interval, p, exact, (low > 0 or high < 0) and p < 1 - LEVEL)


@dataclass(frozen=True)
class Comparison:
    """Hold B minus A on the prompts that both answered, in mean@n."""

    data: str
    prompts: int
    samples: tuple[int, int]
    a: float
    b: float
    difference: float
    sampling_error: Judged
    clustered_error: Judged


def common_prompts(a: Graded, b: Graded) -> tuple[Floats, Floats]:
    """Return the scores of the prompts that both have, in the order of A."""
    place = {prompt: i for i, prompt in enumerate(b.prompt_ids)}
    both = [(i, place[prompt]) for i, prompt in enumerate(a.prompt_ids) if prompt in place]
    if not both:
        raise UserError(
            f"the two results have no prompt of {a.data!r} in common, so they cannot be compared; they are matched by "
            "what the model was sent, template and all"
        )
    return a.score[[i for i, _ in both]], b.score[[j for _, j in both]]


def compare(a: Sequence[Graded], b: Sequence[Graded]) -> list[Comparison]:
    """Compare B with A on each common data set and, of several, on average.

    >>> a, b = (Graded("d", np.array(score), None, None, None, None, ["p", "q"]) for score in (
    ...     [[1, 0], [0, 0]], [[1, 1], [1, 0]]))
    >>> [comparison] = compare([a], [b])
    >>> comparison.a, comparison.b, comparison.sampling_error.settled
    (0.25, 0.75, False)

    Errors: of sampling alone, and over problems (Student's t of the paired differences, whose variance is never taken
    below that of their sampling). Tests: samples are reshuffled within prompts; or the signs of the prompts'
    differences are flipped, which assumes that without a difference between the models each would be as likely with
    the other sign. Neither knows anything of training: they compare two checkpoints, not two methods.

    Raises:
        UserError: no data set, or none of the prompts of one, in common.
    """
    of_b = {graded.data: graded for graded in b}
    pairs = [(graded, of_b[graded.data]) for graded in a if graded.data in of_b]
    if not pairs:
        have = ["; ".join(g.data for g in side) or "nothing" for side in (a, b)]
        raise UserError(f"the two results have no data set in common: A has {have[0]}, B has {have[1]}")
    cells = [_Cell(one.data, *common_prompts(one, other)) for one, other in pairs]
    results = [_compare([cell], cell.data) for cell in cells]
    return results if len(cells) == 1 else [*results, _compare(cells, "average")]


class _Cell:
    """Hold the paired numbers of one data set."""

    def __init__(self, data: str, a: Floats, b: Floats) -> None:
        self.data, self.prompts, self.samples = data, len(a), (a.shape[-1], b.shape[-1])
        right = [score.sum(-1).astype(int).tolist() for score in (a, b)]
        self.tables = [(one, a.shape[-1], other, b.shape[-1]) for one, other in zip(*right, strict=True)]
        self.values = per_prompt(a), per_prompt(b)
        difference = self.values[1] - self.values[0]
        noise = float(np.mean(sampling_variance(a) + sampling_variance(b)))
        paired = self.samples == (1, 1)
        if paired:  # the bounds for each model alone do not see what both get right
            noise = _discordance(difference)
        # One prompt: anything may be.
        spread = float(difference.var(ddof=1)) if self.prompts > 1 else 1.0
        mean, df = float(difference.mean()), max(1, self.prompts - 1)
        self.sampling = Spread(mean, mean, math.sqrt(noise / self.prompts), df if paired else math.inf)
        self.clustered = Spread(mean, mean, math.sqrt(max(spread, noise) / self.prompts), df)


def _discordance(difference: Floats) -> float:
    """Return the variance over prompts of the difference of two samples.

    It is at least that of their sampling. Half a prompt is added to each of the four outcomes (Agresti and Min 2005).
    """
    up, down = (np.sum(difference == sign) + 0.5 for sign in (1, -1))
    n = len(difference) + 2
    return float((up + down) / n - ((up - down) / n) ** 2)


def _compare(cells: Sequence[_Cell], data: str) -> Comparison:
    weights = [Fraction(1, len(cells) * cell.prompts) for cell in cells for _ in range(cell.prompts)]
    sampling, clustered = (
        average([cell.sampling for cell in cells]),
        average([cell.clustered for cell in cells]),
    )
    tables = [table for cell in cells for table in cell.tables]
    flipped = sign_flip_p(
        [
            weight * (Fraction(b, m) - Fraction(a, n))
            for (a, n, b, m), weight in zip(tables, weights, strict=True)
        ]
    )
    means = [float(np.mean([cell.values[side].mean() for cell in cells])) for side in (0, 1)]
    return Comparison(
        data=data,
        prompts=sum(cell.prompts for cell in cells),
        samples=cells[0].samples,
        a=means[0],
        b=means[1],
        difference=sampling.value,
        sampling_error=Judged.of(sampling, *reshuffle_p(tables, weights)),
        clustered_error=Judged.of(clustered, *flipped),
    )
