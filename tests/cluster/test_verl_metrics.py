"""verl's validation metrics: ours of the same name are the same numbers, to the last digit."""

import numpy as np
import pytest
from verl.trainer.ppo.metric_utils import bootstrap_metric, process_validation_metrics

from bandpo_runs.statistics.estimators import (
    best_at_k_bootstrap,
    best_at_k_expected,
    maj_at_k_bootstrap,
    per_prompt,
    powers,
)

PROMPTS = 12


def validation(n, seed=0):
    """Scores and predictions [prompts, n], some prompts always right and some never."""
    rng = np.random.default_rng(seed)
    p = np.r_[0.0, 1.0, rng.beta(0.3, 0.7, PROMPTS - 2)]
    score = (rng.random((PROMPTS, n)) < p[:, None]).astype(float)
    wrong = rng.integers(0, 4, score.shape).astype(str).astype(object)
    return score, np.where(score == 1, "42", np.where(wrong == "3", "[INVALID]", wrong))


@pytest.mark.parametrize("n", [2, 6, 32])
def test_the_metrics_of_the_same_name_are_verls(n):
    score, answers = validation(n)
    uids = np.repeat([f"u{i}" for i in range(PROMPTS)], n).tolist()
    infos = {"acc": score.ravel().tolist(), "pred": answers.ravel().tolist()}
    theirs = process_validation_metrics(["aime"] * len(uids), uids, infos)["aime"]["acc"]
    ours = {f"mean@{n}": np.mean(per_prompt(score))}
    for k in powers(n):
        ours[f"best@{k}/mean"] = np.mean(best_at_k_bootstrap(score, k))
        ours[f"maj@{k}/mean"] = np.mean(maj_at_k_bootstrap(answers, score, k))
    assert {name: theirs[name] for name in ours} == ours
    assert {name for name in theirs if name.endswith("/mean") and not name.startswith("worst")} <= set(ours)


def test_values_that_are_no_scores_too():
    values = np.random.default_rng(1).normal(size=24)
    for k in (1, 3, 24):
        ((theirs, _),) = bootstrap_metric(values.tolist(), k, [np.max])
        assert theirs == best_at_k_bootstrap(values, k)


def test_what_verl_estimates_is_the_number_with_replacement():
    """Many seeds of verl's own function, averaged."""
    values = [1.0] * 2 + [0.0] * 14
    seeds = [bootstrap_metric(values, 8, [np.max], n_bootstrap=200, seed=seed)[0][0] for seed in range(60)]
    assert abs(np.mean(seeds) - float(best_at_k_expected(16, 2, 8))) < 4 * np.std(seeds) / np.sqrt(60)
