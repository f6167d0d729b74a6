"""Evaluation inside training: verl's names, the samples' own numbers, and resuming as exact as without."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import recipe

from bandpo.errors import UserError
from bandpo_runs import config, toy
from bandpo_runs.cli import show_training
from bandpo_runs.reports.page import write_report
from bandpo_runs.reports.sections import read_runs
from bandpo_runs.statistics.estimators import pass_at_k
from bandpo_runs.training import on_trl
from bandpo_runs.training.validation import DATA, ROW, Validation, metrics

pytestmark = pytest.mark.slow

EVALUATION = {
    "eval_strategy": "steps",
    "eval_steps": 4,
    "eval_on_start": True,
    "per_device_eval_batch_size": 8,
    "num_generations_eval": 4,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return recipe.make(tmp_path_factory.mktemp("home"))


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_names_and_values():
    scores = np.array([[1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0]])
    result = metrics("aime_2024", "acc", scores)
    assert list(result) == [
        "val-core/aime_2024/acc/mean@6", "val-aux/aime_2024/acc/best@2/mean", "val-aux/aime_2024/acc/pass@2",
        "val-aux/aime_2024/acc/best@4/mean", "val-aux/aime_2024/acc/pass@4", "val-core/aime_2024/acc/best@6/mean",
        "val-core/aime_2024/acc/pass@6",
    ]  # fmt: skip
    assert result["val-core/aime_2024/acc/mean@6"] == pytest.approx(9 / 24)
    assert result["val-core/aime_2024/acc/pass@6"] == 3 / 4
    # Of the 15 pairs of samples, 9 have one of 2 right ones, 5 have the only one.
    assert result["val-aux/aime_2024/acc/pass@2"] == pytest.approx((9 / 15 + 0 + 1 + 5 / 15) / 4)
    assert 0.6 < result["val-core/aime_2024/acc/best@6/mean"] < 0.75
    assert list(metrics("x", "reward", [[0.5], [1.5]])) == ["val-core/x/reward/mean@1"]
    assert not any("pass" in name for name in metrics("x", "reward", [[0.5, 1.0], [1.5, 2.0]]))


def test_only_marked_rows_are_kept_and_the_reward_does_not_see_the_marks():
    seen = []

    def reward(completions, **columns):
        seen.append(columns)
        return [float(text) if text else None for text in completions]

    validation = Validation(reward, accuracy=True)
    assert validation.reward(completions=["1", "0"], answer=["a", "b"]) == [1, 0]
    assert validation.take() == {}
    marks = {DATA: ["d", "d", "d", "e"], ROW: [0, 0, 1, 0]}
    validation.reward(completions=["1", "0", "0", "1"], answer=[0] * 4, **marks)
    validation.reward(completions=["0", "", "1", "1"], answer=[0] * 4, **{DATA: ["d"] * 3 + ["e"], ROW: [1, 1, 1, 0]})
    assert all(columns.keys() == {"answer"} for columns in seen)
    result = validation.take()
    assert result["val-core/d/acc/mean@2"] == 0.25  # the third of row 1 is one more than row 0 has
    assert result["val-core/d/acc/pass@2"] == 0.5
    assert result["val-core/e/acc/mean@2"] == 1
    assert validation.take() == {}


def test_the_metrics_of_a_run_are_those_of_its_samples(home, tmp_path, monkeypatch):
    rest = []

    def watch(completions, completion_ids, **columns):
        right = [float(text.split()[0:1] == ["a"]) for text in completions]
        rest.append((columns["prompts"], right))
        return right

    monkeypatch.setattr(recipe, "share_of_even", watch)
    monkeypatch.setattr(on_trl, "ACCURACIES", ("recipe:share_of_even",))
    node = recipe.node(home, tmp_path / "run", rounds=2, save_every=0, data={"eval_size": 5}, trainer=EVALUATION)
    wording, settings = [], config.build(node)
    on_trl.run(settings, on_row=lambda row: wording.append(show_training._line(row, settings, [1.0])))
    result = [row for row in rows(tmp_path / "run") if "eval/reward" in row]
    assert [row["step"] for row in result] == [0, 4, 8]
    held_out = {row["prompt"] for row in toy.prompts(recipe.ROWS, 0)[-5:]}
    calls = iter(rest)
    for row in result:
        scores = {}
        while sum(map(len, scores.values())) < 5 * 4:
            prompts, right = next(calls)
            if prompts[0] in held_out:
                for prompt, value in zip(prompts, right, strict=True):
                    scores.setdefault(prompt, []).append(value)
        values = np.array(list(scores.values()))
        assert values.shape == (5, 4)
        assert row["val-core/rows/acc/mean@4"] == pytest.approx(values.mean())
        assert row["val-core/rows/acc/mean@4"] == pytest.approx(row["eval/reward"])
        assert row["val-core/rows/acc/pass@4"] == pytest.approx((values.max(1)).mean())
        assert row["val-aux/rows/acc/pass@2"] == pytest.approx(pass_at_k(4, values.sum(1), 2).mean())
    assert not any(key.startswith("val-") for row in rows(tmp_path / "run") if "eval/reward" not in row for key in row)
    line = next(text for text in wording if "held-out" in text)
    assert line == f"before  held-out reward {result[0]['eval/reward']:.3f}"

    assert "rows mean@4" in Path(write_report([tmp_path / "run"], tmp_path / "report.html")).read_text()
    (run,) = read_runs([tmp_path / "run"])
    curve = run.mean("val-core/*/mean@*")
    by_round = [[row["val-core/rows/acc/mean@4"] for row in result if row["round"] == r] for r in (0, 1, 2)]
    assert curve.tolist() == pytest.approx([np.mean(values) for values in by_round])


def test_other_data_are_evaluated_on_by_name(home, tmp_path):
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in toy.prompts(3, seed=9)))
    once = {**EVALUATION, "eval_on_start": False}
    node = recipe.node(home, tmp_path / "run", rounds=1, save_every=0, data={"eval_path": f"{file},lab"}, trainer=once)
    on_trl.run(config.build(node))
    (row,) = [row for row in rows(tmp_path / "run") if "eval/reward" in row]
    assert {"val-core/sums/reward/mean@4", "val-core/lab/reward/mean@4"} <= row.keys()
    assert all(math.isfinite(value) for key, value in row.items() if key.startswith("val-"))


MISTAKES = {
    "gone": ({"eval_path": "gone.jsonl"}, {}, "gone.jsonl"),
    "batch": ({"eval_path": "lab"}, {}, "trainer: "),
}


@pytest.mark.parametrize(("data", "changes", "message"), MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_evaluated_on_is_said_before_anything_is_written(home, tmp_path, data, changes, message):
    trainer = EVALUATION | ({"per_device_eval_batch_size": 7} if message == "trainer: " else {})
    node = recipe.node(home, tmp_path / "run", data=data, trainer=trainer, **changes)
    with pytest.raises(UserError, match=message):
        on_trl.run(config.build(node))
    assert not (tmp_path / "run").exists()
