"""Files of answers that other programs wrote: one made of known arrays in each form must give these arrays again."""

from __future__ import annotations

import csv
import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.data.questions import Question
from bandpo_runs.evals.dumps import read_dump
from bandpo_runs.statistics.estimators import pass_at_k

RIGHT = np.random.default_rng(0).random((6, 4)) < 0.4
TEXTS = [[f"I think ... Answer: {7 if right else 8}" for right in row] for row in RIGHT]


def answers(**names):
    """A row for each answer, in the order in which several workers might write them; `names` renames columns."""
    rows = []
    for j in range(4):
        for i in range(6):
            row = {"prompt": f"problem {i}", "response": TEXTS[i][j], "answer": "7", "correct": bool(RIGHT[i, j])}
            rows.append({names.get(key, key): value for key, value in row.items()})
    return rows


def problems():
    """A row for each problem, with lists."""
    return [
        {"question": f"problem {i}", "responses": TEXTS[i], "gold": "7", "score": [float(x) for x in RIGHT[i]]}
        for i in range(6)
    ]


def details(**metrics):
    """As lighteval writes its details: the fields of its Doc and ModelResponse that are read here, and some others."""
    return [
        {"doc": {"query": f"problem {i}", "choices": ["1", "7"], "gold_index": [1], "task_name": "aime24", "id": "1"},
         "metric": {name: float(f(RIGHT[i])) for name, f in metrics.items()},
         "model_response": {"input": "...", "text": TEXTS[i], "output_tokens": [[1, 2]] * 4, "logprobs": []}}
        for i in range(6)
    ]  # fmt: skip


def write(path, rows):
    path = Path(path)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    return path


FORMS = {
    "answers.jsonl": (answers(), {}), "answers.json": (answers(), {}), "answers.csv": (answers(), {}),
    "answers.parquet": (answers(), {}), "problems.jsonl": (problems(), {}), "problems.parquet": (problems(), {}),
    "own.parquet": (answers(prompt="q", correct="ok"), {"prompt": "q", "score": "ok"}),
    "nested.jsonl": ([{"a": row} for row in answers()], {"prompt": "a.prompt", "score": "a.correct"}),
    "minus.jsonl": ([{**row, "correct": 2 * row["correct"] - 1} for row in answers()], {}),
    "texts.csv": ([{**row, "correct": str(int(row["correct"]))} for row in answers()], {}),
    "digits.csv": ([{**row, "correct": "1.00" if row["correct"] else "-0.000"} for row in answers()], {}),
    "named.jsonl": ([{**row, "prompt": "the same", "problem_id": row["prompt"]} for row in answers()], {}),
    "messages.parquet": ([{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in answers()], {}),
    "details.parquet": (details(**{"avg@n:n=4": np.mean}), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_answers(tmp_path, name):
    rows, columns = FORMS[name]
    (graded,), by = read_dump(write(tmp_path / name, rows), columns)
    np.testing.assert_array_equal(graded.score.sum(1), RIGHT.sum(1))
    if name != "details.parquet":  # where it is not known which ones are right
        np.testing.assert_array_equal(graded.score, RIGHT)
        assert by == f"column {columns.get('score', 'score' if 'problems' in name else 'correct')!r}"
    assert graded.answers is None
    assert len(set(graded.prompt_ids)) == 6


@pytest.mark.parametrize("name", ["answers.csv", "problems.parquet", "details.parquet"])
def test_a_scorer_grades_the_responses_and_heeds_no_score(tmp_path, name):
    rows, _ = FORMS[name]
    wrong = [{key: value for key, value in row.items() if key not in ("correct", "score")} for row in rows]
    (graded,), by = read_dump(write(tmp_path / name, wrong), {}, "dapo-strict")
    np.testing.assert_array_equal(graded.score, RIGHT)
    assert by == "dapo-strict"
    assert graded.answers is not None
    np.testing.assert_array_equal(graded.answers == "7", RIGHT)


def test_a_question_has_the_hash_that_it_has_in_a_folder(tmp_path):
    (graded,), _ = read_dump(write(tmp_path / "a.jsonl", answers()))
    assert graded.prompt_ids == [Question("any", i, f"problem {i}", "7").id for i in range(6)]
    messages = [{"role": "user", "content": "hi"}]
    (graded,), _ = read_dump(write(tmp_path / "a.parquet", [{"prompt": messages, "acc": 1}]))
    assert graded.prompt_ids == [Question("any", 0, messages, "7").id]


def test_data_sets_are_told_apart_and_what_was_read_votes(tmp_path):
    rows = [
        {**row, "data_source": f"set {i % 2}", "pred": "7" if row["correct"] else ""} for i, row in enumerate(answers())
    ]
    graded, _ = read_dump(write(tmp_path / "a.jsonl", rows))
    assert [each.data for each in graded] == ["set 0", "set 1"]
    for first, each in enumerate(graded):
        np.testing.assert_array_equal(each.score, RIGHT[first::2])
        assert each.answers is not None
        assert each.parsed is not None
        np.testing.assert_array_equal(each.answers == "7", RIGHT[first::2])
        np.testing.assert_array_equal(each.parsed, RIGHT[first::2])


def test_of_verl_any_score_above_0_is_right_and_acc_comes_first(tmp_path):
    said = [(None, 0.3), (None, -0.5), (True, -1.0), (0.0, 1.0)]
    rows = [{"input": "a", "gts": str(i), "acc": acc, "score": score} for i, (acc, score) in enumerate(said)]
    (graded,), by = read_dump(write(tmp_path / "a.jsonl", rows))
    assert (graded.data, by) == ("validation", "verl's reward function")
    np.testing.assert_array_equal(graded.score, [[1], [0], [1], [0]])  # one question, but four problems
    (graded,), by = read_dump(tmp_path / "a.jsonl", {"score": "score"})
    assert by == "verl's score"
    np.testing.assert_array_equal(graded.score, [[1], [0], [0], [1]])
    with pytest.raises(UserError, match=r"no metric 'scor' .*; it has \['reward function', 'score'"):
        read_dump(tmp_path / "a.jsonl", {"score": "scor"})


def test_of_several_metrics_of_lighteval_the_one_that_is_a_share(tmp_path):
    path = tmp_path / "a.parquet"
    of_all = {"pass@k:k=1&n=4": np.mean, "pass@k:k=4&n=4": np.max, "maj@n:n=4": np.max}
    (graded,), by = read_dump(write(path, details(**of_all)))
    assert (graded.data, by) == ("aime24", "lighteval's pass@k:k=1&n=4")
    np.testing.assert_array_equal(graded.score.sum(1), RIGHT.sum(1))
    # Of eight responses only the first two were asked: its name says so.
    (graded,), _ = read_dump(write(path, details(**{"avg@n:n=2": lambda row: row[:2].mean(), **of_all})))
    np.testing.assert_array_equal(graded.score.sum(1), RIGHT[:, :2].sum(1))
    assert graded.score.shape == (6, 2)
    single = [{**row, "model_response": {"text": ["7"]}} for row in details(em=np.max)]
    (graded,), by = read_dump(write(path, single))
    np.testing.assert_array_equal(graded.score[:, 0], RIGHT.max(1))
    for value, said in ((float("nan"), "'score' is missing"), ("x", "'score' is 'x'")):
        with pytest.raises(UserError, match=said):
            read_dump(write(path, [{**row, "metric": {"em": value}} for row in single]))


REFUSED = {
    "no question": ([{"text": "a", "correct": 1}], {}, "no column of the prompt; looked for prompt, question, "),
    "no score": ([{"prompt": "a", "x": 1}], {}, "names it, or --scorer math grades the responses"),
    "misspelt": ([{"prompt": "a", "is_right": 1}], {"score": "is_rihgt"}, "did you mean 'is_right'?; it has prompt"),
    "a part": ([{"prompt": "a", "score": 1}, {"prompt": "b", "score": 0.5}], {}, "row 2: 'score' is 0.5; 1 or true"),
    "a word": ([{"prompt": "a", "score": "good"}], {}, "row 1: 'score' is 'good'; 1 or true"),
    "infinite, of verl": ([{"input": "a", "gts": "b", "score": float("inf")}], {}, "row 1: 'score' is inf; 1 or true"),
    "a column, of verl": ([{"input": "a", "gts": "b", "score": 1}], {"data": "x"}, "--column data is for other files"),
    "none": ([{"prompt": "a", "score": 1}, {"prompt": "b"}], {}, "row 2: 'score' is missing"),
    "no prompt": ([{"prompt": "a", "score": 1}, {"score": 1}], {}, "row 2: 'prompt' is missing"),
    "uneven": ([{"prompt": x, "score": 1} for x in "aab"], {}, "problems of 'answers' have from 1 to 2 answers, expec"),
    "lists": ([{"prompt": "a", "score": [1, 0], "pred": ["7"]}], {}, "row 1: 'pred' has 1 values, 'score' has 2"),
    "texts": ([{"prompt": "a", "responses": ["x", "y"], "scores": [1]}], {}, "has 2 texts, 'scores' has 1"),
    "two right answers": (
        [{"prompt": "a", "score": 1, "gold": "7"}, {"prompt": "a", "score": 1, "gold": "8"}],
        {},
        "row 2: two right answers, '7' and '8', to the question 'a'",
    ),
    "empty": ([], {}, "empty; expected an answer a row"),
    "which metric": (details(em=np.max, f1=np.max), {}, "has the metrics ['em', 'f1']; --column score=NAME says which"),
    "no metric": (details(em_x=np.max), {"score": "em"}, "no metric 'em' (--column score=em), did you mean 'em_x'?"),
    "no share": (details(em=np.max), {"score": "em"}, "row 1: 'score' is '1.0 for 4 responses'"),
    "a part of lighteval": (details(**{"avg@n:n=4": lambda row: 0.3}), {}, "row 1: 'score' is '0.3 for 4 responses'"),
    "no details": ([{"doc": {}, "model_response": {}, "metric": {"em": 1}}], {}, ": not as lighteval writes it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_one_line_that_says_what_is_expected(tmp_path, case):
    rows, columns, message = REFUSED[case]
    with pytest.raises(UserError) as raised:
        read_dump(write(tmp_path / "a.jsonl", rows), columns)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "a.jsonl"))


def test_a_scorer_needs_responses_and_right_answers(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": "a", "score": 1, "response": "b"}])
    with pytest.raises(UserError, match=r"no column of the answer; looked for gts, answer, .* --column answer=COLUMN"):
        read_dump(path, {}, "math")
    with pytest.raises(UserError, match=r"scorer must be one of math, .*, got 'maths', did you mean 'math'"):
        read_dump(path, {}, "maths")


def test_a_csv_may_hold_long_answers(tmp_path):
    (tmp_path / "a.csv").write_text(f"prompt,response,score\nq,{'x' * 150_000},1\n")
    (graded,), _ = read_dump(tmp_path / "a.csv", {})
    assert graded.score.tolist() == [[1.0]]


def test_score_compare_and_table_take_the_same_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("a.csv", answers(prompt="q", correct="ok"))
    write("b.parquet", [{**row, "ok": True} for row in answers(prompt="q", correct="ok")])
    columns = ["--column", "prompt=q", "--column", "score=ok"]
    assert main(["score", "a.csv", "Best=b.parquet", *columns, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["results"][0]["mean@4"]["value"] == pytest.approx(RIGHT.mean())
    assert first["results"][0]["pass@2"]["value"] == pytest.approx(pass_at_k(4, RIGHT.sum(1), 2).mean())
    assert (first["source"], first["label"], first["scorer"]) == ("a.csv", "a", "column 'ok'")
    assert (second["source"], second["label"]) == ("b.parquet", "Best")
    assert main(["compare", "a.csv", "b.parquet", *columns, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert (found["prompts"], found["b"]) == (6, 1.0)
    assert found["difference"] == pytest.approx(1 - RIGHT.mean())
    assert main(["table", "a.csv", "b.parquet", *columns]) == 0
    assert f"{100 * RIGHT.mean():.1f}" in capsys.readouterr().out
    before = Path("a.csv").read_bytes()
    assert main(["table", "A=a.csv", "b.parquet", *columns, "-o", str(tmp_path / "a.csv")]) == 2
    assert "--output must be another file than those that are read, a.csv, b.parquet" in capsys.readouterr().err
    assert Path("a.csv").read_bytes() == before
    assert main(["score", "a.csv", "-k", "5", *columns]) == 2
    assert "k must be from 1 to the 4 samples of a.csv, got 5" in capsys.readouterr().err


def test_a_column_answer_without_responses_may_be_what_the_model_answered(tmp_path):
    rows = [{"prompt": "a", "score": score, "answer": answer} for score, answer in ((1, "7"), (0, "8"))]
    (graded,), _ = read_dump(write(tmp_path / "a.jsonl", rows))
    assert graded.score.tolist() == [[1, 0]]


def test_answers_judged_wrong_are_shown_with_what_was_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = ["Answer: 7", "Answer: 8", "no idea"]
    write("a.jsonl", [{"prompt": "What\nis 3+4?", "answer": "7", "response": text, "score": 0} for text in texts])
    assert main(["score", "a.jsonl", "--scorer", "math", "--wrong", "5"]) == 0
    out = capsys.readouterr().out
    assert "answers, sample 1: What is 3+4?\n  right: 7; read: 8\n" in out
    assert "answers, sample 2: What is 3+4?\n  right: 7; unparsed\n" in out
    assert main(["score", "a.jsonl", "--wrong", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)[0]["wrong"]
    assert (row["sample"], row["right"], row["read"], row["status"]) == (0, "7", None, "what was read is not recorded")


@pytest.mark.parametrize("command", ["score", "compare", "table"])
def test_a_column_of_folders_is_an_error_and_no_option_without_effect(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
    write("c.jsonl", answers())
    folders = " is for a file of answers, got only folders of bandpo eval or logs: a, Label=b"
    for files, options, said in (
        (["a", "Label=b"], ["--column", "extracted=read"], f"--column{folders}"),
        (["a", "Label=b"], ["--drop-incomplete"], f"--drop-incomplete{folders}"),
        (["a", "c.jsonl"], ["--column", "score=correct"], "a holds no evaluation"),
        (["c.jsonl", "c.jsonl"], ["--column", "scor=correct"], "--column must name one of prompt, "),
        (["c.jsonl", "c.jsonl"], ["--column", "score"], "must be NAME=VALUE, got 'score'"),
    ):
        assert main([command, *files, *options]) == 2
        assert said in capsys.readouterr().err


# ---- chat completions, and whatever else holds an answer

TURNS = [
    {"role": "assistant", "content": "Answer: 8", "tool_calls": [{"function": {"name": "python"}}]},
    {"role": "tool", "content": "Answer: 9"},
    {"role": "assistant", "content": "Answer: 7"},
]
MESSAGE = TURNS[-1]
PARTS = [
    {"type": "reasoning", "reasoning": "Answer: 8"},
    {"type": "text", "text": "Answer: "},
    {"type": "thinking", "text": "8"},
    {"type": "text", "text": "7"},
]
SEVEN = {
    "a text": "Answer: 7", "one message in a list": [MESSAGE], "turns with a tool": TURNS, "a message": MESSAGE,
    "a message without a role": {"content": "Answer: 7"}, "parts": [{"role": "assistant", "content": PARTS}],
    "parts alone": PARTS,
    "parts that are texts": [{"role": "assistant", "content": ["Answer: ", "7"]}],
    "a list of conversations": [TURNS],
    "as lm-eval has it": [["Answer: 7"]],
    "JSON without a message": '{"content": "x", "Answer": "7"}\nAnswer: 7',
    "a reply of a server": {"id": "x", "choices": [{"index": 0, "message": MESSAGE}]},
    "a completion of a server": {"choices": [{"text": "Answer: 7"}]},
    "a line of a batch": {"status_code": 200, "body": {"choices": [{"message": MESSAGE}]}},
    "Gemini's role": [{"role": "user", "content": "x"}, {"role": "model", "content": "Answer: 7"}],
}  # fmt: skip


@pytest.mark.parametrize("name", SEVEN)
def test_the_last_message_of_the_assistant_is_the_one_answer(tmp_path, name):
    path = write(tmp_path / "a.jsonl", [{"prompt": "x", "completion": SEVEN[name], "answer": "7"}])
    for scorer in ("math", "last-number", "dapo-strict"):
        (graded,), _ = read_dump(path, {}, scorer)
        np.testing.assert_array_equal(graded.score, [[1.0]])


def test_a_scorer_of_texts_compares_with_the_text_as_it_is(tmp_path):
    text = "There are 12 of them. So she has 5 left at the end.\n#### 5"
    row = {"prompt": "x", "completion": [{"role": "assistant", "content": text}], "gold": text}
    for name in ("a.jsonl", "a.parquet"):
        (graded,), _ = read_dump(write(tmp_path / name, [row]), {}, "exact")
        np.testing.assert_array_equal(graded.score, [[1.0]])


SEVERAL = {
    "texts": ["Answer: 7", "Answer: 8"],
    "conversations": [TURNS, [{"role": "assistant", "content": "Answer: 8"}]],
    "repetitions of lm-eval": [["Answer: 7", "Answer: 8"]],
    "choices": {"choices": [{"message": MESSAGE}, {"message": {"role": "assistant", "content": None}}]},
    "texts of vLLM": [{"text": "Answer: 7"}, {"text": "8"}],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_list_of_answers_has_a_sample_in_each(tmp_path, name):
    path = write(tmp_path / "a.jsonl", [{"prompt": "x", "completion": SEVERAL[name], "answer": "7"}])
    (graded,), _ = read_dump(path, {}, "math")
    np.testing.assert_array_equal(graded.score, [[1.0, 0.0]])


USER, PART = [{"role": "user", "content": "7"}], [{"role": "assistant", "content": [{"type": "text"}]}]
NO_ANSWER = [
    (USER, "7", "row 1: 'completion' has no message of the assistant, but [{"),
    ({"pred": "7"}, "7", "row 1: 'completion' is {'pred': '7'}; text, chat messages with one of the assistant, or"),
    (["7", {"role": "assistant", "content": "7"}], "7", "row 1: 'completion' is ['7', {"),
    ([[[-1.5, False]]], "7", "row 1: 'completion' is False; text, chat messages"),
    (PART, "7", "'completion' has a message with the part {'type': "),
    ([], "7", "row 1: 'completion' is missing; --drop-incomplete leaves its problem out"),
    (math.nan, "7", "row 1: 'completion' is missing; --drop-incomplete leaves its problem out"),
    ("7", ["7", "8"], "row 1: 'answer' is ['7', '8']: answer has several values, where one is expected"),
    ("7", None, "row 1: 'answer' is None: no answer"),
    ("7", USER, "row 1: 'answer' is [{'content': '7', 'role': 'user'}]: answer is messages"),
    ("7", "So it is.\n#### 7", "answer is a whole solution; bandpo data prepare --answer-from hashes"),
]


@pytest.mark.parametrize(("completion", "gold", "message"), NO_ANSWER)
def test_what_holds_no_answer_is_named_with_its_file_row_and_column(tmp_path, completion, gold, message):
    path = write(tmp_path / "a.jsonl", [{"prompt": "x", "completion": completion, "answer": gold}])
    with pytest.raises(UserError) as raised:
        read_dump(path, {}, "math")
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{path}, row 1")


# ---- what other harnesses write


def lm_eval(filters=("strict-match", "flexible-extract"), **more):
    """As lm-eval writes its samples: a row for each document and filter."""
    return [
        {"doc_id": i, "doc": {"question": f"problem {i}", "answer": "So.\n#### 7"}, "target": "So.\n#### 7",
         "arguments": {"gen_args_0": {"arg_0": f"Question: problem {i}", "arg_1": {"until": ["Q:"]}}},
         "resps": [[TEXTS[i][j]]], "filtered_resps": ["7" if RIGHT[i, j] else "[invalid]"], "filter": kind,
         "metrics": ["exact_match"], "doc_hash": "a", "exact_match": float(RIGHT[i, j]), **more}
        for j, kind in enumerate(filters)
        for i in range(6)
    ]  # fmt: skip


def test_samples_of_lm_eval_are_a_data_set_for_each_filter(tmp_path):
    path = write(tmp_path / "samples_gsm8k_2025-09-09T13-31-53.431753.jsonl", lm_eval())
    graded, by = read_dump(path)
    assert by == "lm-eval's exact_match"
    assert [each.data for each in graded] == ["gsm8k strict-match", "gsm8k flexible-extract"]
    for j, each in enumerate(graded):
        np.testing.assert_array_equal(each.score, RIGHT[:, j, None])
        np.testing.assert_array_equal(each.parsed, RIGHT[:, j, None])
    assert graded[0].prompt_ids == graded[1].prompt_ids
    here, by = read_dump(path, {}, "math")  # GSM8K's right answers stand behind ####
    assert ([each.data for each in here], by) == (["gsm8k"], "math")  # the answers of both filters are the same
    np.testing.assert_array_equal(here[0].score, RIGHT[:, 0, None])


def test_samples_of_lm_eval_with_likelihoods_or_several_metrics(tmp_path):
    choices = [
        {"doc_id": i, "doc": {"q": i}, "target": 1, "resps": [[[-1.0, False]], [[-2.0, False]]], "acc": i % 2,
         "doc_hash": "a", "filtered_resps": [[-1.0, False], [-2.0, False]], "arguments": [["q", "a"], ["q", "b"]]}
        for i in range(4)
    ]  # fmt: skip
    path = write(tmp_path / "a.jsonl", choices)
    (graded,), by = read_dump(path)
    assert (graded.data, by, graded.answers) == ("answers", "lm-eval's acc", None)
    np.testing.assert_array_equal(graded.score[:, 0], [0, 1, 0, 1])
    with pytest.raises(UserError, match=r"row 1: 'response' is missing"):
        read_dump(path, {}, "math")
    write(path, lm_eval(("none",), metrics=["exact_match", "math_verify"], math_verify=1))
    with pytest.raises(UserError, match=r"has the metrics \['exact_match', 'math_verify'\]; --column score=NAME"):
        read_dump(path)
    (graded,), by = read_dump(path, {"score": "math_verify"})
    assert (graded.score.all(), by) == (True, "lm-eval's math_verify")
    with pytest.raises(UserError, match=r"row 1: 'score' is 0\.5; 1 or true"):
        read_dump(write(path, lm_eval(("none",), exact_match=0.5)))


def inspect(scores):
    """As inspect_ai writes a log: two epochs of each of three problems."""
    samples = [
        {"id": i, "epoch": epoch, "target": "7",
         "input": [{"id": f"{epoch}{i}", "role": "user", "content": f"problem {i}"}] if i else "problem 0",
         "messages": [{"role": "user", "content": f"problem {i}"}],
         "output": {"model": "m", "choices": [{"message": {"role": "assistant", "content": TEXTS[i][epoch]}}]},
         "scores": {name: {"value": f(RIGHT[i, epoch]), "answer": "7"} for name, f in scores.items()}}
        for epoch in (0, 1)
        for i in range(3)
    ]  # fmt: skip
    return {"version": 2, "status": "success", "eval": {"task": "inspect_evals/aime"}, "samples": samples}


def letter(right):
    return "C" if right else "I"


@pytest.mark.parametrize("ending", ["json", "eval"])
def test_logs_of_inspect_are_read_by_their_letters(tmp_path, ending):
    path, log = tmp_path / f"a.{ending}", inspect({"match": letter})
    if ending == "json":
        path.write_text(json.dumps(log, indent=2))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("header.json", json.dumps({"eval": log["eval"]}))
            for sample in log["samples"]:
                archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    (graded,), by = read_dump(path)
    assert (graded.data, by) == ("inspect_evals/aime", "inspect_ai's match")
    np.testing.assert_array_equal(graded.score, RIGHT[:3, :2])
    (graded,), by = read_dump(path, {}, "math")
    np.testing.assert_array_equal(graded.score, RIGHT[:3, :2])
    assert main(["score", str(path)]) == 0


def test_logs_of_inspect_that_do_not_say_what_is_right(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(inspect({"match": letter, "judge": lambda right: {"strict": int(right), "kind": 0}})))
    with pytest.raises(
        UserError, match=r"has the metrics \['match', 'judge.strict', 'judge.kind'\]; --column score=NAME"
    ):
        read_dump(path)
    (graded,), by = read_dump(path, {"score": "judge.strict"})
    assert by == "inspect_ai's judge.strict"
    np.testing.assert_array_equal(graded.score, RIGHT[:3, :2])
    path.write_text(json.dumps(inspect({"match": lambda right: "P"})))
    with pytest.raises(UserError, match="row 1: 'score' is 'P'; 1 or true"):
        read_dump(path)
    path.write_text(json.dumps(inspect({})))
    with pytest.raises(UserError, match="its samples have no scores; --scorer math grades the responses"):
        read_dump(path)
    log = inspect({"match": letter})
    log["samples"][1]["scores"] = {}  # an error of the sample
    path.write_text(json.dumps(log))
    with pytest.raises(UserError, match="row 2: 'score' is missing; --drop-incomplete leaves its problem out"):
        read_dump(path)
    (graded,), _ = read_dump(path, drop_incomplete=True)
    np.testing.assert_array_equal(graded.score, RIGHT[[0, 2], :2])
    for content in (b"PK", b""):
        (tmp_path / "b.eval").write_bytes(content)
        with pytest.raises(UserError, match=r"b\.eval cannot be read as a log of inspect_ai .*bandpo\[inspect\]"):
            read_dump(tmp_path / "b.eval")


def test_rollouts_of_verifiers_are_right_where_their_reward_says_so(tmp_path):
    rows = [
        {"example_id": i, "prompt": [{"role": "user", "content": f"problem {i}"}], "task": "gsm8k", "answer": "7",
         "completion": [{"role": "assistant", "content": TEXTS[i][j]}], "reward": float(RIGHT[i, j])}
        for i in range(6) for j in range(4)
    ]  # fmt: skip
    (graded,), by = read_dump(write(tmp_path / "results.jsonl", rows))
    assert by == "column 'reward'"
    np.testing.assert_array_equal(graded.score, RIGHT)
    (graded,), _ = read_dump(tmp_path / "results.jsonl", {}, "math")
    np.testing.assert_array_equal(graded.score, RIGHT)
    with pytest.raises(UserError, match=r"'reward' is 1\.2; 1 or true .* --scorer math grades the responses"):
        read_dump(write(tmp_path / "a.jsonl", [{**rows[0], "reward": 1.2}]))


def test_rollouts_of_verifiers_1_are_right_where_the_sum_of_their_rewards_says_so(tmp_path):
    """Made by verifiers 0.4, whose records prime-rl keeps; this is what of them is read."""

    def trace(right, text, name="solver", trainable=True):
        said = [("user", "?"), ("assistant", "I look it up."), ("tool", "x"), ("assistant", text), ("user", "Thanks.")]
        nodes = [{"message": {"role": of, "content": x}, "sampled": of == "assistant"} for of, x in said]
        rewards = {"correct": {"score": right, "weight": 1.0}, "short": {"score": 0.5, "weight": 0.0}, "late": None}
        return {"agent": {"name": name, "trainable": trainable}, "nodes": nodes, "rewards": rewards}

    def episode(i, traces):
        task = {"type": "T", "data": {"idx": i, "prompt": f"problem {i}", "answer": "7"}}
        return {"env": {"id": "gsm8k", "name": "math"}, "task": task, "ok": True, "traces": traces}

    rows = [
        episode(i, [trace(float(RIGHT[i, j]), TEXTS[i][j]), trace(1.0, "7", "judge", trainable=False)])
        for i in range(6) for j in range(4)
    ]  # fmt: skip
    path = write(tmp_path / "traces.jsonl", rows)
    (graded,), by = read_dump(path)
    assert (graded.data, by) == ("math", "verifiers's sum of rewards")
    np.testing.assert_array_equal(graded.score, RIGHT)
    np.testing.assert_array_equal(read_dump(path, {}, "math")[0][0].score, RIGHT)
    np.testing.assert_array_equal(read_dump(path, {"score": "correct"})[0][0].score, RIGHT)
    with pytest.raises(UserError, match=r"row 1: 'score' is 0\.5; 1 or true"):
        read_dump(path, {"score": "short"})
    write(path, [*rows, episode(6, [])])  # it failed before its first trace
    with pytest.raises(UserError, match="row 25: 'score' is missing; --drop-incomplete leaves its problem out"):
        read_dump(path)


def test_dumps_of_skyrl_are_right_where_their_reward_is_above_0(tmp_path):
    rows = [
        {"input_prompt": f"<|im_start|>user\nproblem {i}", "output_response": TEXTS[i][j], "stop_reason": "stop",
         "score": [0.0, 0.0, float(RIGHT[i, j])] if i else float(RIGHT[i, j]), "env_class": "gsm8k",
         "env_extras": {"reward_spec" if i else "reward_model": {"ground_truth": "7"}}, "data_source": "gsm8k"}
        for i in range(6) for j in range(4)
    ]  # fmt: skip
    path = write(tmp_path / "gsm8k.jsonl", rows)
    (graded,), by = read_dump(path)
    assert (graded.data, by) == ("gsm8k", "SkyRL's reward function")
    np.testing.assert_array_equal(graded.score, RIGHT)
    np.testing.assert_array_equal(read_dump(path, {}, "math")[0][0].score, RIGHT)


# ---- problems with other numbers of answers


def test_incomplete_problems_are_left_out_on_request_and_that_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    counts = {"a": 4, "b": 4, "c": 2, "d": 4, "twice": 8, "failed": 0}
    rows = [{"prompt": name, "score": j % 2} for name, count in counts.items() for j in range(count)]
    write("a.jsonl", [*rows, {"prompt": "failed", "score": None}])
    assert main(["score", "a.jsonl"]) == 2
    assert "'score' is missing; --drop-incomplete leaves its problem out" in capsys.readouterr().err
    write("b.jsonl", rows)
    left_out = (
        "answers: left out 2 of 6 problems, which have fewer than 4 answers, and 4 answers beyond the first 4 of a "
        "problem"
    )
    for command in (["score", "b.jsonl"], ["compare", "a.jsonl", "b.jsonl"], ["table", "a.jsonl", "b.jsonl"]):
        assert main(command) == 2
        assert main([*command, "--drop-incomplete"]) == 0
        out, err = capsys.readouterr()
        assert "'score' is missing" in err or "leaves out problems with fewer answers than most" in err
        assert command[0] == "score" or left_out in " ".join(out.split())
    assert main(["score", "a.jsonl", "b.jsonl", "--drop-incomplete", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["left_out"] == [left_out]
    assert first["results"][0]["prompts"] == second["results"][0]["prompts"] == 4
    assert first["results"][0]["mean@4"]["value"] == 0.5
