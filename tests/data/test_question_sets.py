"""Questions to evaluate on: of data sets and files, of a task, of what a recipe holds out, of the lab."""

from pathlib import Path

import recipe
from commands import refusal
from disk import write
from published import BEFORE, BEHIND, gsm8k, own, problem, put

from bandpo_runs import config, toy
from bandpo_runs.data import question_sets
from bandpo_runs.data.question_sets import evaluation_set
from bandpo_runs.data.rows import rows_and_reward


def test_questions_of_files(here):
    rows = [{"prompt": "1+1?", "answer": 2}, {"prompt": "2+2?", "answer": "4"}, {"prompt": "1+1?", "answer": "2"}]
    file = str(write("sums.jsonl", rows))
    result = question_sets.read(file)
    facts = result.name, result.scorer, result.metadata["repeated"], result.warnings
    assert facts == ("sums", "math", 1, ["sums: 1 repeated question left out"])
    assert [(q.prompt, q.content, q.answer) for q in result.questions] == [
        (0, [{"role": "user", "content": "1+1?"}], "2"),
        (1, [{"role": "user", "content": "2+2?"}], "4"),
    ]
    assert [q.content for q in question_sets.read(file, limit=1, chat=False).questions] == ["1+1?"]
    assert question_sets.read(file, template="Q: {prompt}", chat=False).questions[0].content == "Q: 1+1?"
    system = [{"role": "system", "content": "be good"}, {"role": "user", "content": "x"}]
    for name, wrong, options, why in (
        (
            "wrong.jsonl",
            [*rows, {"prompt": "1+1?", "answer": "3"}],
            {},
            "wrong: two answers, '2' and '3', to the quest",
        ),
        ("system.jsonl", [{"prompt": system, "answer": "1"}], {"chat": False}, "system: text prompts "),
    ):
        assert refusal(question_sets.read, str(write(name, wrong)), **options).startswith(why)
    for name, why in (("gone.jsonl", "gone.jsonl"), ("aime42", "no data set 'aime42', did you mean")):
        assert why in refusal(question_sets.read, name)


def test_questions_that_a_recipe_holds_out(here):
    home, run = recipe.make(here / "home"), Path("run")
    node = recipe.node(home, run, data={"eval_size": 5}, reward="last-number")
    mine = str(write("mine.yaml", node))
    _, held_out, _ = rows_and_reward(config.load(mine))
    result = question_sets.read(mine)
    assert "mine.yaml has a template of its own" in refusal(question_sets.read, mine, template="boxed")
    assert (result.name, result.scorer) == ("rows", "last-number")
    assert [(q.content, q.answer) for q in result.questions] == [(row["prompt"], row["answer"]) for row in held_out]
    write("runs/one/config.yaml", config.load(mine).to_yaml())
    assert question_sets.read("runs/one") == result
    write("none.yaml", recipe.node(home, run))
    assert "none.yaml holds out no rows (data.eval_size is 0)" in refusal(question_sets.read, "none.yaml")


def test_questions_of_the_lab_are_not_those_of_training():
    result = question_sets.read("lab")
    assert (len(result.questions), result.scorer) == (128, "lab")
    trained = {row["prompt"] for seed in range(3) for row in toy.prompts(2000, seed)}
    assert sum(q.content in trained for q in result.questions) < 128 * 3 * 2000 / 16**4 * 2 + 5


def contents(result):
    return [question.content[0]["content"] for question in result.questions]


def answers(result):
    return [question.answer for question in result.questions]


def test_an_evaluation_set_by_name(copies):
    result = evaluation_set("aime24", copies=copies)
    assert (result.name, result.scorer, len(result.questions), result.warnings) == ("aime24", "math", 30, [])
    of = result.questions[1]
    assert (contents(result)[1], of.answer) == (f"{BEFORE} {problem(1)} {BEHIND}", "25")
    assert (of.content[0]["role"], of.more) == ("user", {"data_source": "aime_2024"})
    assert contents(evaluation_set("aime24", copies=copies, template="boxed"))[1].startswith(problem(1))


def test_an_evaluation_set_from_a_prepared_file_has_the_same_questions(make, copies, tmp_path):
    make("aime24", "dapo-math-17k")
    path = str(tmp_path / "out/aime2024.parquet")
    assert evaluation_set(path).name == "aime2024"
    for template in (None, "boxed"):
        sets = evaluation_set(path, template=template), evaluation_set("aime24", copies=copies, template=template)
        one, other = ([vars(q) | {"data": ""} for q in each.questions] for each in sets)
        assert one == other
    result = evaluation_set(str(tmp_path / "out/dapo-math-17k.parquet"), template="plain")
    assert contents(result)[0] == problem(300)


def test_gsm8k_is_evaluated_on_its_test(copies):
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    result, told = evaluation_set("gsm8k", copies=copies), "gsm8k-test: 1 row, expected 1,319"
    assert (result.name, answers(result), result.warnings) == ("gsm8k-test", ["-3"], [told])


def test_what_is_not_one_set_of_questions_with_answers_is_refused(tmp_path):
    none = own(tmp_path, [{"prompt": "x", "answer": 1}, {"prompt": "x", "answer": None}], "none.jsonl")
    assert "row 2: no answer; its answer is None" in refusal(evaluation_set, none)
    path = own(tmp_path, [{"prompt": "x", "answer": "proof"}, {"prompt": "y", "answer": ["7"]}])
    result, told = evaluation_set(path), f"{path}: 1 row: answer is a placeholder (proof, notfound, nan, None)"
    assert (answers(result), result.warnings) == (["proof", "7"], [told])
    assert "paper is 3 evaluation sets" in refusal(evaluation_set, "paper")
