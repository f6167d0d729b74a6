"""Data sets to evaluate on, by name and from files."""

import pytest
from published import BEFORE, BEHIND, gsm8k, own, problem, put

from bandpo.errors import UserError
from bandpo_runs.data import evaluation_set


def contents(found):
    return [question.content[0]["content"] for question in found.questions]


def answers(found):
    return [question.answer for question in found.questions]


def test_an_evaluation_set_by_name(copies):
    found = evaluation_set("aime24", copies=copies)
    assert (found.name, found.scorer, len(found.questions), found.warnings) == ("aime24", "math", 30, [])
    question = found.questions[1]
    assert question.content == [{"role": "user", "content": f"{BEFORE} {problem(1)} {BEHIND}"}]
    assert (question.answer, question.more) == ("25", {"id": "61", "data_source": "aime_2024"})
    assert contents(evaluation_set("aime24", copies=copies, template="boxed"))[1].startswith(problem(1))
    assert len(evaluation_set("aime24", copies=copies, size=3).questions) == 3


def test_an_evaluation_set_from_a_prepared_file_has_the_same_questions(make, copies, tmp_path):
    make("aime24", "dapo-math-17k")
    path = str(tmp_path / "out/aime2024.parquet")
    assert evaluation_set(path).name == "aime2024"
    for template in (None, "boxed"):
        found, known = (
            evaluation_set(path, template=template),
            evaluation_set("aime24", copies=copies, template=template),
        )
        assert [vars(q) | {"data": ""} for q in found.questions] == [vars(q) | {"data": ""} for q in known.questions]
    found = evaluation_set(str(tmp_path / "out/dapo-math-17k.parquet"), template="plain")
    assert contents(found)[0] == problem(300)


def test_gsm8k_is_evaluated_on_its_test(copies):
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    found = evaluation_set("gsm8k", copies=copies)
    assert (found.name, answers(found)) == ("gsm8k-test", ["-3"])
    assert found.warnings == ["gsm8k-test: 1 row, expected 1,319"]


def test_an_evaluation_set_of_ones_own(tmp_path):
    path = own(tmp_path, [{"q": "1+1?", "a": 2}, {"q": "1+2?", "a": 3}])
    found = evaluation_set(path, prompt="q", answer="a", template="Q: {prompt}")
    assert (contents(found), answers(found)) == (["Q: 1+1?", "Q: 1+2?"], ["2", "3"])
    with pytest.raises(UserError, match="row 2 has no answer"):
        evaluation_set(own(tmp_path, [{"prompt": "x", "answer": 1}, {"prompt": "x", "answer": None}]))
    with pytest.raises(UserError, match="paper is 3 evaluation sets"):
        evaluation_set("paper")
