"""Estimate a model from its counts of right answers. It is one number for every prompt. Needs numpy and scipy.

One data set of one model is a `Graded`: an array [prompts, samples] of right (1) and wrong (0), and what goes with it.

`per_prompt` and `pass_at_k` are unbiased; `best_at_k_bootstrap` and `maj_at_k_bootstrap` are verl's numbers, to the
digit; `best_at_k_expected` is what `best_at_k_bootstrap` estimates, which is at most pass@k.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bandpo.errors import UserError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Graded:
    """Hold one data set of one model. Arrays are [prompts, samples]; None: not recorded.

    >>> Graded("aime24", np.array([[1, 0], [1, 1]]), None, None, None, None, ["a", "b"]).right.tolist()
    [1, 2]

    `prompt_ids` are hashes of the prompts, so that two models are matched by content. `answers` are what the scorer
    read, normalised so that equal answers are equal strings (None: nothing). `questions`: each with its right answer.
    Several grades of the same answers are several of these, each with its `scorer`.
    """

    data: str
    score: Floats
    answers: NDArray[np.object_] | None
    tokens: Integers | None
    truncated: Bools | None
    parsed: Bools | None
    prompt_ids: list[str]
    status: NDArray[np.object_] | None = None
    questions: Sequence[tuple[Any, Any]] = ()
    scorer: str = ""

    @property
    def right(self) -> Integers:
        """Count the right samples of each prompt."""
        return self.score.sum(-1).astype(np.int64)


def pass_at_k(n: int, c: ArrayLike, k: int) -> Floats:
    """Compute the chance of a right one in k samples: 1 - C(n-c, k) / C(n, k).

    >>> pass_at_k(4, [0, 1, 4], 2).round(3).tolist()  # of 4 samples 0, 1 and 4 are right
    [0.0, 0.5, 1.0]

    The mean over all subsets of k samples, hence unbiased (Chen et al. 2021, arXiv 2107.03374). `c` are the right ones
    of n samples, and may be an array. Computed as -expm1 of a sum of log1p(-k/i): no factorial, so n may be 10,000 and
    more, and small values stay exact.

    Raises:
        UserError: k is not in 1..n.
    """
    if not 1 <= k <= n:
        raise UserError(f"k must be from 1 to the number of samples {n}, got {k!r}")
    with np.errstate(divide="ignore"):  # i = k: log 0, no subset without a right one
        logs = np.log1p(-k / np.arange(n, k - 1, -1, dtype=np.float64))
    # Log of C(n-c, k) / C(n, k), for c = 0 .. n-k+1.
    none_right = np.concatenate([[0.0], np.cumsum(logs)])
    return -np.expm1(none_right[np.minimum(np.asarray(c, np.int64), n - k + 1)]) + 0.0


def best_at_k_expected(n: int, c: ArrayLike, k: int) -> Floats:
    """Compute the expectation of verl's best@k: 1 - (1 - c/n)^k, with replacement.

    Not pass@k, and never above it: at n = k = 32 a prompt with one right sample counts 0.638, not 1. It also grows
    with the number of right samples, so it mixes mean@k into pass@k.
    """
    with np.errstate(divide="ignore"):
        return -np.expm1(k * np.log1p(-np.asarray(c) / n)) + 0.0


@lru_cache(maxsize=16)
def _draws(n: int, k: int, resamples: int, seed: int) -> Integers:
    """Draw resamples by verl's seed, the same ones for every prompt."""
    return np.random.RandomState(seed).choice(n, size=(resamples, k), replace=True)


def best_at_k_bootstrap(values: ArrayLike, k: int, *, resamples: int = 1000, seed: int = 42) -> Floats:
    """Compute verl's best@k/mean to the digit: the mean maximum over resamples.

    For each row of `values` [..., samples]. `verl.trainer.ppo.metric_utils.bootstrap_metric` with `numpy.max`. Its
    error against `best_at_k_expected` is that of 1000 draws, but the same ones for every prompt, so a mean over
    prompts does not average it out.
    """
    values = np.asarray(values, np.float64)
    draws = _draws(values.shape[-1], k, resamples, seed)
    rows = values.reshape(-1, values.shape[-1])
    return np.array([row[draws].max(-1).mean() for row in rows]).reshape(values.shape[:-1])


def maj_at_k_bootstrap(
    answers: ArrayLike, values: ArrayLike, k: int, *, resamples: int = 1000, seed: int = 42
) -> Floats:
    """Compute verl's maj@k/mean to the digit: the majority over resamples.

    As in `calc_maj_val`: a tie goes to the answer that was drawn first, and the value is that of its first drawn
    sample. What could not be read (None) votes like an answer, as verl's "[INVALID]" does.
    """
    answers, values = np.asarray(answers, object), np.asarray(values, np.float64)
    draws = _draws(values.shape[-1], k, resamples, seed)
    lines, places = np.arange(resamples)[:, None], np.arange(k)
    result = []
    for row, value in zip(
        answers.reshape(-1, answers.shape[-1]), values.reshape(-1, values.shape[-1]), strict=True
    ):
        numbers: dict[Any, int] = {}
        votes = np.array([numbers.setdefault(answer, len(numbers)) for answer in row])[draws]
        size = len(numbers)
        count = np.bincount((votes + lines * size).ravel(), minlength=resamples * size).reshape(
            resamples, size
        )
        first = np.full((resamples, size), k)
        np.minimum.at(first, (lines, votes), places)
        winner = (count * (k + 1) - first).argmax(-1)
        result.append(value[draws[lines[:, 0], first[lines[:, 0], winner]]].mean())
    return np.array(result).reshape(values.shape[:-1])


def log_choose(n: int, k: ArrayLike) -> Floats:
    """Compute the logarithm of a binomial coefficient."""
    from scipy.special import betaln  # not at the top: bandpo doctor reads curves without scipy

    k = np.asarray(k)
    return -betaln(n - k + 1, k + 1) - math.log1p(n)


def per_prompt(score: ArrayLike, k: int | None = None) -> Floats:
    """Return mean@n of each prompt, which is verl's mean@k, or its pass@k."""
    score = np.asarray(score, np.float64)
    return score.mean(-1) if k is None else pass_at_k(score.shape[-1], score.sum(-1), k)


def powers(n: int) -> list[int]:
    """List the k of verl's best@k: 2, 4, 8, ... below n, and n; none for one sample."""
    return [*(2**i for i in range(1, n.bit_length()) if 2**i < n), n] if n > 1 else []
