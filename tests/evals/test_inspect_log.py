"""Evaluations as logs of inspect_ai, read back by it and by us."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bandpo_runs.cli import main
from bandpo_runs.data.questions import Question
from bandpo_runs.evals.dumps import read_dump
from bandpo_runs.evals.folder import Evaluation, read_graded
from bandpo_runs.evals.grades import grade_folder
from bandpo_runs.evals.samples import Sample, Sampling
from bandpo_runs.statistics.estimators import per_prompt


@pytest.fixture
def folder(tmp_path):
    """Two data sets of 5 and 3 questions, as text and as messages, with four samples each."""
    asked = [Question("org/aime", i, [{"role": "user", "content": f"{i} + 1 ="}], str(i + 1)) for i in range(5)]
    asked += [Question("amc", i, f"{i} + 2 =", str(i + 2)) for i in range(3)]
    facts = {"label": "Mine", "model": "m", "weights": "w", "backend": "transformers", "scorer": "exact"}
    facts |= {"versions": {"torch": "2"}, "command": "bandpo eval m", "started": "2026-11-26T20:00:00+00:00"}
    with Evaluation(tmp_path / "eval", facts, Sampling(n=4, max_tokens=8), asked) as evaluation:
        for question, number, seed in evaluation.todo():
            text = question.answer if (7 * question.prompt + 3 * number) % 5 < 2 else "no"
            finish = ("stop", "length", "refused", "stop")[number]
            thoughts = "let me see" if number == 3 else None
            evaluation.add(Sample(question.data, question.prompt, number, seed, text, 2, finish, thoughts))
    grade_folder(tmp_path / "eval")
    return tmp_path / "eval"


def test_inspect_and_we_read_the_same_scores_from_what_we_wrote(folder, tmp_path, capsys):
    log = pytest.importorskip("inspect_ai.log")
    assert main(["score", str(folder), "--inspect", str(tmp_path / "logs"), "-k", "2,4"]) == 0
    out = capsys.readouterr().out
    for graded, name in zip(read_graded(folder), ("Mine_org-aime", "Mine_amc"), strict=True):
        path = tmp_path / "logs" / f"{name}.eval"
        assert str(path) in out
        read = log.read_eval_log(str(path))
        assert (read.status, read.eval.task, read.eval.model, len(read.samples)) == (
            "success", graded.data, "m", graded.score.size,
        )  # fmt: skip
        assert read.stats.model_usage["m"].output_tokens == 2 * graded.score.size
        assert {read.stats.started_at[:19], read.stats.completed_at[:19]} == {"2026-11-26T20:00:00"}
        found = {score.reducer: score.metrics["mean"].value for score in read.results.scores}
        want = {"mean": 1} | {f"pass_at_{k}": k for k in (2, 4)}
        assert found == pytest.approx({name: per_prompt(graded.score, k).mean() for name, k in want.items()})
        for sample in read.samples:
            at = sample.id - 1, sample.epoch - 1
            assert sample.model_usage["m"].output_tokens == 2
            assert sample.output.completion in (graded.asked[at[0]][1], "no")
            assert sample.scores["exact"].value == ("C" if graded.score[at] else "I")
            assert sample.output.stop_reason == ("stop", "max_tokens", "unknown", "stop")[at[1]]
            assert [message.role for message in sample.messages] == ["user", "assistant"]
            said = sample.output.message.content
            thoughts = [part.reasoning for part in said if part.type == "reasoning"] if isinstance(said, list) else []
            assert thoughts == (["let me see"] if at[1] == 3 else [])
        (ours,), by = read_dump(path)
        assert (ours.data, by) == (graded.data, "inspect_ai's exact")
        np.testing.assert_array_equal(ours.score, graded.score)
        np.testing.assert_array_equal(read_dump(path, {}, "exact")[0][0].score, graded.score)


def test_the_option_says_what_it_needs(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    assert main(["score", str(folder), "--inspect", str(tmp_path / "logs")]) == 2
    assert "--inspect needs the package inspect_ai: pip install 'bandpo[inspect]'" in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("prompt,score\na,1\n")
    assert main(["score", str(tmp_path / "a.csv"), "--inspect", str(tmp_path / "logs")]) == 2
    assert "--inspect writes a folder of bandpo eval, which has all answers; got" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()
