"""Data sets to evaluate on, by name and from files."""

import pytest
from published import BEFORE, BEHIND, gsm8k, own, problem, put

from bandpo.errors import UserError
from bandpo_runs.data.evaluation_sets import evaluation_set


def test_an_evaluation_set_by_name(copies):
    found = evaluation_set("aime24", copies=copies)
    assert (found.name, len(found.rows), found.warnings) == ("aime24", 30, [])
    assert found.rows[1] == {
        "messages": [{"role": "user", "content": f"{BEFORE} {problem(1)} {BEHIND}"}],
        "answer": "25",
        "problem": problem(1),
        "id": "61",
        "data_source": "aime_2024",
    }
    again = evaluation_set("aime24", copies=copies, template="boxed")
    assert again.rows[1]["messages"][0]["content"].startswith(problem(1))
    assert len(evaluation_set("aime24", copies=copies, size=3).rows) == 3


def test_an_evaluation_set_from_a_prepared_file_has_the_same_rows(make, copies, tmp_path):
    make("aime24", "dapo-math-17k")
    found = evaluation_set(str(tmp_path / "out/aime2024.parquet"))
    assert found.name == "aime2024"
    assert found.rows == evaluation_set("aime24", copies=copies).rows
    boxed = evaluation_set(str(tmp_path / "out/aime2024.parquet"), template="boxed")
    assert boxed.rows == evaluation_set("aime24", copies=copies, template="boxed").rows
    assert evaluation_set(str(tmp_path / "out/dapo-math-17k.parquet")).rows[0]["problem"] == problem(300)


def test_gsm8k_is_evaluated_on_its_test(copies):
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    found = evaluation_set("gsm8k", copies=copies)
    assert (found.name, [row["answer"] for row in found.rows]) == ("gsm8k-test", ["-3"])
    assert found.warnings == ["gsm8k-test: 1 row, expected 1,319"]


def test_an_evaluation_set_of_ones_own(tmp_path):
    path = own(tmp_path, [{"q": "1+1?", "a": 2}, {"q": "1+2?", "a": 3}])
    found = evaluation_set(path, prompt="q", answer="a", template="Q: {prompt}")
    assert [row["messages"][0]["content"] for row in found.rows] == ["Q: 1+1?", "Q: 1+2?"]
    assert [row["answer"] for row in found.rows] == ["2", "3"]
    with pytest.raises(UserError, match="row 2 has no answer"):
        evaluation_set(own(tmp_path, [{"prompt": "x", "answer": 1}, {"prompt": "x", "answer": None}]))
    with pytest.raises(UserError, match="paper is 3 evaluation sets"):
        evaluation_set("paper")
