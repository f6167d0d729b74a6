"""Logs that inspect_ai itself writes, read back by it and by us."""

import numpy as np
import pytest

from bandpo_runs.evals.dumps import read_dump
from bandpo_runs.statistics.estimators import per_prompt

RIGHT = np.array([[(7 * question + 3 * epoch) % 5 < 2 for epoch in range(4)] for question in range(5)])


def sample(question, epoch):
    """A sample of a log: `C` where it is right."""
    answer = {"role": "assistant", "content": str(question + 1) if RIGHT[question, epoch] else "no"}
    wanted = [{"role": "user", "content": f"{question} + 1 ="}]
    return {
        "id": question + 1, "epoch": epoch + 1, "input": wanted, "target": str(question + 1),
        "messages": [*wanted, answer],
        "scores": {"exact": {"value": "C" if RIGHT[question, epoch] else "I", "answer": answer["content"]}},
        "output": {"model": "m", "choices": [{"message": answer, "stop_reason": "stop"}]},
    }  # fmt: skip


def test_inspect_and_we_read_the_same_scores_from_what_it_wrote(tmp_path):
    log = pytest.importorskip("inspect_ai.log")
    spec = {
        "created": "2026-11-26T20:00:00+00:00", "task": "org/aime", "model": "m",
        "dataset": {"name": "org/aime", "samples": 5, "sample_ids": [*range(1, 6)]},
        "config": {"epochs": 4, "epochs_reducer": ["mean", "pass_at_2", "pass_at_4"]},
    }  # fmt: skip
    samples = [sample(question, epoch) for question in range(5) for epoch in range(4)]
    made = log.EvalLog.model_validate({"status": "success", "eval": spec, "samples": samples})
    log.recompute_metrics(made)
    path = tmp_path / "a.eval"
    log.write_eval_log(made, str(path))
    means = {score.reducer: score.metrics["mean"].value for score in log.read_eval_log(str(path)).results.scores}
    (ours,), by = read_dump(path)
    assert (ours.data, by) == ("org/aime", "inspect_ai's exact")
    np.testing.assert_array_equal(ours.score, RIGHT)
    np.testing.assert_array_equal(read_dump(path, {}, "exact")[0][0].score, RIGHT)
    expected = {"mean": 1, "pass_at_2": 2, "pass_at_4": 4}
    assert means == pytest.approx({name: per_prompt(ours.score, k).mean() for name, k in expected.items()})
