"""Compute intervals for numbers that come from samples. `summarize` has all numbers of one data set with theirs.

Intervals answer three questions:

- `sampling_error`: the same checkpoint on these very problems, sampled again. Only the sampling varies.
- `clustered_error`: the same checkpoint on other problems of the same kind. Problems vary, each with its samples as a
  cluster.
- `training_runs`: another run of the same training. Runs vary; it takes several of them.

research/pages/evaluation_measured.md has the formulas, and the coverage of each interval.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit  # scipy.stats takes a second to load

from .estimators import (
    Floats,
    Graded,
    best_at_k_bootstrap,
    best_at_k_expected,
    log_choose,
    maj_at_k_bootstrap,
    pass_at_k,
    per_prompt,
    powers,
)

LEVEL = 0.95


class Interval(NamedTuple):
    low: float
    high: float


class Spread(NamedTuple):
    """Hold an estimate with the interval `centre` +- t(df) * `error`."""

    value: float
    centre: float
    error: float
    df: float = math.inf

    def interval(self, level: float = LEVEL, low: float = 0.0, high: float = 1.0) -> Interval:
        """Cut at `low` and `high`, and never without the value itself."""
        half = t_quantile(0.5 + level / 2, self.df) * self.error
        return Interval(
            min(max(self.centre - half, low), self.value),
            max(min(self.centre + half, high), self.value),
        )


def average(parts: Sequence[Spread]) -> Spread:
    """Average independent estimates, with Welch's degrees of freedom."""
    variances = np.array([part.error**2 for part in parts])
    below = sum(v**2 / part.df for v, part in zip(variances, parts, strict=True))
    df = math.inf if below == 0 else max(1.0, float(variances.sum() ** 2 / below))
    mean = [float(np.mean([getattr(part, name) for part in parts])) for name in ("value", "centre")]
    return Spread(mean[0], mean[1], math.sqrt(variances.sum()) / len(parts), df)


def t_quantile(p: float, df: float) -> float:
    """Return a quantile of Student's t; degrees of freedom are rounded down."""
    return float(stdtrit(np.floor(df + 1e-6), p))


def sampling_variance(score: Floats, k: int | None = None) -> Floats:
    """Return the variance of each prompt's mean@n or pass@k under repeated sampling.

    With the chance of a right sample at (c + 1/2) / (n + 1): a prompt that was always right, or always wrong, was
    sampled a finite number of times, and has a variance too.
    """
    n = score.shape[-1]
    if n == 1:  # one sample tells nothing of its variance; that of all prompts together is an upper bound
        p = _shrunk(score)
        return np.full(len(score), p * (1 - p))
    right, where = np.unique(score.sum(-1).astype(np.int64), return_inverse=True)
    p = (right + 0.5) / (n + 1)
    if k is None:
        return (p * (1 - p) / (n - 1))[where]
    c = np.arange(n + 1)
    chance = np.exp(log_choose(n, c) + c * np.log(p)[:, None] + (n - c) * np.log1p(-p)[:, None])
    value = pass_at_k(n, c, k)
    return (chance @ value**2 - (chance @ value) ** 2).clip(0)[where]


def _shrunk(score: Floats) -> float:
    """Return the share of right samples after Agresti and Coull."""
    return float((score.sum() + 2) / (score.size + 4))


def sampling_error(score: ArrayLike, k: int | None = None) -> Spread:
    """Estimate mean@n, or pass@k, with the error of sampling alone.

    Prompts are fixed. The variance is the sum of those of the prompts, each from its own count; with one sample a
    prompt it is that of Agresti and Coull for all prompts together, an upper bound. Near pass@n it is wide: whether a
    prompt without a right sample has a chance of 0 or of 1/n cannot be told.
    """
    score = np.asarray(score, np.float64)
    value = float(per_prompt(score, k).mean())
    if score.shape[-1] == 1:
        p = _shrunk(score)
        return Spread(value, p, math.sqrt(p * (1 - p) / (len(score) + 4)))
    return Spread(value, value, math.sqrt(sampling_variance(score, k).sum()) / len(score))


def clustered_error(values: ArrayLike) -> Spread:
    """Average numbers in [0, 1], one a prompt, with the error over prompts.

    The error is that for a population of prompts, by Student's t. One prompt that is always right (1) and one that is
    always wrong (0) are added before the interval is computed, so that a cell where all prompts agree does not claim to
    know all others. The value itself is without them. Sampling noise is in the numbers already.
    """
    values = np.asarray(values, np.float64)
    more = np.concatenate([values, [0.0, 1.0]])
    return Spread(
        float(values.mean()),
        float(more.mean()),
        float(more.std(ddof=1)) / math.sqrt(len(more)),
        len(more) - 1,
    )


def training_runs(values: Sequence[float]) -> Spread | None:
    """Average over training runs, with Student's error; None for one run.

    With two runs it is t with one degree of freedom, 12.7 standard errors: that is how much two runs say.
    """
    if len(values) < 2:
        return None
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Spread(mean, mean, error, len(values) - 1)


def difference(a: Spread, b: Spread) -> Spread:
    """Subtract A from B, two independent estimates, with Welch's degrees of freedom."""
    half = average([b, a._replace(value=-a.value, centre=-a.centre)])
    return Spread(2 * half.value, 2 * half.centre, 2 * half.error, half.df)


def summarize(graded: Graded, ks: Sequence[int] = ()) -> dict[str, Any]:
    """Summarize one data set as plain data: numbers with their intervals.

    `mean@n` and `pass@k` (k = 1, 2, 4 .. n, and `ks`; unbiased) with `sampling_error` and `clustered_error`;
    `best@k/mean` and `maj@k/mean` are verl's bootstraps. `tokens`: mean, median, 90% and longest, also of right and of
    wrong ones. `truncated` and `unparsed` are shares with an interval over prompts. What was not recorded is absent.
    """
    score, n = graded.score, graded.score.shape[-1]
    out: dict[str, Any] = {"data": graded.data, "prompts": len(score), "samples": n, "level": LEVEL}

    def spread(values: Floats, sampling: Spread | None = None) -> dict[str, Any]:
        clustered = clustered_error(values)
        return {
            "value": clustered.value,
            **({} if sampling is None else {"sampling_error": list(sampling.interval())}),
            "clustered_error": list(clustered.interval()),
        }

    out[f"mean@{n}"] = spread(per_prompt(score), sampling_error(score))
    for k in dict.fromkeys([1, *powers(n), *ks]):
        out[f"pass@{k}"] = spread(per_prompt(score, k), sampling_error(score, k))
    for k in dict.fromkeys([*powers(n), *(k for k in ks if k > 1)]):
        out[f"best@{k}/mean"] = {
            "value": float(best_at_k_bootstrap(score, k).mean()),
            "expected": float(best_at_k_expected(n, graded.right, k).mean()),
        }
        if graded.answers is not None:
            out[f"maj@{k}/mean"] = {"value": float(maj_at_k_bootstrap(graded.answers, score, k).mean())}
    if graded.tokens is not None:
        tokens, right = np.asarray(graded.tokens, np.float64), score == 1
        out["tokens"] = {
            "mean": float(tokens.mean()),
            "median": float(np.median(tokens)),
            "p90": float(np.quantile(tokens, 0.9)),
            "max": float(tokens.max()),
            "mean_right": float(tokens[right].mean()) if right.any() else None,
            "mean_wrong": float(tokens[~right].mean()) if (~right).any() else None,
        }
    if graded.truncated is not None:
        out["truncated"] = spread(graded.truncated.mean(-1))
    if graded.parsed is not None:
        out["unparsed"] = spread(1 - graded.parsed.mean(-1))
    return out
