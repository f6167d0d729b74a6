"""All numbers of one data set, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .estimators import Floats, Graded, best_at_k_bootstrap, best_at_k_expected, maj_at_k_bootstrap, per_prompt, powers
from .intervals import LEVEL, Spread, clustered_error, sampling_error

__all__ = ["summarize"]


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
        cell: dict[str, Any] = {"value": clustered.value}
        if sampling is not None:
            cell["sampling_error"] = list(sampling.interval())
        return {**cell, "clustered_error": list(clustered.interval())}

    out[f"mean@{n}"] = spread(per_prompt(score), sampling_error(score))
    for k in dict.fromkeys([1, *powers(n), *ks]):
        out[f"pass@{k}"] = spread(per_prompt(score, k), sampling_error(score, k))
    for k in dict.fromkeys([*powers(n), *(k for k in ks if k > 1)]):
        expected = float(best_at_k_expected(n, graded.right, k).mean())
        out[f"best@{k}/mean"] = {"value": float(best_at_k_bootstrap(score, k).mean()), "expected": expected}
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
    for name, share in (
        ("truncated", graded.truncated),
        ("unparsed", None if graded.parsed is None else ~np.asarray(graded.parsed, bool)),
    ):
        if share is not None:
            out[name] = spread(np.asarray(share, np.float64).mean(-1))
    return out
