"""Files of answers that other programs wrote: one made of known arrays in each form must give these arrays again."""

from __future__ import annotations

import csv
import json
import math
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.data.questions import Question
from bandpo_runs.evals.columns import NAMES
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
    wording = [(None, 0.3), (None, -0.5), (True, -1.0), (0.0, 1.0)]
    rows = [{"input": "a", "gts": str(i), "acc": acc, "score": score} for i, (acc, score) in enumerate(wording)]
    (graded,), by = read_dump(write(tmp_path / "a.jsonl", rows))
    assert (graded.data, by) == ("validation", "verl's reward function")
    np.testing.assert_array_equal(graded.score, [[1], [0], [1], [0]])  # one question, but four problems
    (graded,), by = read_dump(tmp_path / "a.jsonl", {"score": "score"})
    assert by == "verl's score"
    np.testing.assert_array_equal(graded.score, [[1], [0], [0], [1]])
    with pytest.raises(UserError, match=r"no metric 'scor' .*; it has \['reward function', 'score'"):
        read_dump(tmp_path / "a.jsonl", {"score": "scor"})


def test_of_several_metrics_of_lighteval_those_that_are_shares(tmp_path):
    path, wording = tmp_path / "a.parquet", []
    of_all = {"pass@k:k=1&n=4": np.mean, "pass@k:k=4&n=4": np.max, "maj@n:n=4": np.max}
    (graded,), by = read_dump(write(path, details(**of_all)), say=wording.append)
    assert (graded.data, by) == ("aime24", "lighteval's pass@k:k=1&n=4")
    assert wording == ["not shown, as not all values are 0 or 1: pass@k:k=4&n=4, maj@n:n=4"]
    np.testing.assert_array_equal(graded.score.sum(1), RIGHT.sum(1))
    # Of eight responses only the first two were asked: its name says so.
    graded, _ = read_dump(write(path, details(**{"avg@n:n=2": lambda row: row[:2].mean(), **of_all})))
    assert [(each.data, each.scorer) for each in graded] == [
        ("aime24", "lighteval's avg@n:n=2"),
        ("aime24", "lighteval's pass@k:k=1&n=4"),
    ]
    np.testing.assert_array_equal(graded[0].score.sum(1), RIGHT[:, :2].sum(1))
    assert graded[0].score.shape == (6, 2)
    single = [{**row, "model_response": {"text": ["7"]}} for row in details(em=np.max)]
    (graded,), by = read_dump(write(path, single))
    np.testing.assert_array_equal(graded.score[:, 0], RIGHT.max(1))
    for value, wording in ((float("nan"), "'score' is missing"), ("x", "'score' is 'x'")):
        with pytest.raises(UserError, match=wording):
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
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert (result["prompts"], result["b"]) == (6, 1.0)
    assert result["difference"] == pytest.approx(1 - RIGHT.mean())
    assert main(["table", "a.csv", "b.parquet", *columns]) == 0
    assert f"{100 * RIGHT.mean():.1f}" in capsys.readouterr().out
    before = Path("a.csv").read_bytes()
    assert main(["table", "A=a.csv", "b.parquet", *columns, "-o", str(tmp_path / "a.csv")]) == 2
    assert "--output must be another file than those that are read, a.csv, b.parquet" in capsys.readouterr().err
    assert Path("a.csv").read_bytes() == before
    assert main(["score", "a.csv", "-k", "5", *columns]) == 2
    assert "k must be from 1 to the 4 samples of a.csv, got 5" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["score", "compare", "table"])
def test_a_column_of_folders_is_an_error_and_no_option_without_effect(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
    for name in ("c.jsonl", "d.jsonl"):
        write(name, answers())
    folders = " is for a file of answers, got only folders of bandpo eval or logs: a, Label=b"
    for files, options, wording in (
        (["a", "Label=b"], ["--column", "extracted=read"], f"--column{folders}"),
        (["a", "Label=b"], ["--drop-incomplete"], f"--drop-incomplete{folders}"),
        (["a", "c.jsonl"], ["--column", "score=correct"], "a holds no evaluation"),
        (["c.jsonl", "d.jsonl"], ["--column", "scor=correct"], "--column must name one of prompt, "),
        (["c.jsonl", "d.jsonl"], ["--column", "score"], "must be NAME=VALUE, got 'score'"),
    ):
        assert main([command, *files, *options]) == 2
        assert wording in capsys.readouterr().err


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
         "resps": [[TEXTS[i][0]]], "filtered_resps": ["7" if RIGHT[i, j] else "[invalid]"], "filter": kind,
         "metrics": ["exact_match"], "doc_hash": "a", "exact_match": float(RIGHT[i, j]), **more}
        for j, kind in enumerate(filters)
        for i in range(6)
    ]  # fmt: skip


def test_filters_of_lm_eval_are_graders_of_one_data_set(tmp_path):
    path = write(tmp_path / "samples_gsm8k_2025-09-09T13-31-53.431753.jsonl", lm_eval())
    graded, by = read_dump(path)
    names = ["lm-eval's exact_match,strict-match", "lm-eval's exact_match,flexible-extract"]
    assert by == " and ".join(names)
    assert [(each.data, each.scorer) for each in graded] == [("gsm8k", name) for name in names]
    assert len(read_dump(path, {"score": "exact_match"})[0]) == 2
    assert read_dump(path, {"score": "exact_match,flexible-extract"})[1] == names[1]
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
    graded, by = read_dump(path)
    assert by == "lm-eval's exact_match and lm-eval's math_verify"
    assert [each.score.all() for each in graded] == [False, True]
    write(path, lm_eval(("none",), metrics=["exact_match", "mcc"], mcc=[1, 0]))
    assert read_dump(path)[1] == "lm-eval's exact_match"
    write(path, lm_eval(("none",), metrics=["f1", "bleu"], f1=0.5, bleu=0.25))
    with pytest.raises(UserError, match=r"has the metrics \['f1', 'bleu'\]; --column score=NAME"):
        read_dump(path)
    write(path, lm_eval(("none",), metrics=["exact_match", "math_verify"], math_verify=1))
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


def test_scorers_of_inspect_are_graders_and_its_log_may_have_none(tmp_path):
    path, wording = tmp_path / "a.json", []
    path.write_text(json.dumps(inspect({"match": letter, "judge": lambda right: {"strict": int(right), "kind": 3}})))
    graded, by = read_dump(path, say=wording.append)
    assert by == "inspect_ai's match and inspect_ai's judge.strict"
    assert wording == ["not shown, as not all values are 0 or 1: judge.kind"]
    assert {each.data for each in graded} == {"inspect_evals/aime"}
    (graded,), by = read_dump(path, {"score": "judge.strict"})
    assert by == "inspect_ai's judge.strict"
    np.testing.assert_array_equal(graded.score, RIGHT[:3, :2])
    log = inspect({"match": letter, "judge": letter})
    del log["samples"][1]["scores"]["judge"]
    path.write_text(json.dumps(log))
    with pytest.raises(UserError, match="row 2: 'score' is missing; --drop-incomplete leaves its problem out"):
        read_dump(path)
    graded, _ = read_dump(path, drop_incomplete=True)
    assert [len(each.score) for each in graded] == [3, 2]
    path.write_text(json.dumps(inspect({"match": lambda right: "P"})))
    with pytest.raises(UserError, match="row 1: 'score' is 'P'; 1 or true"):
        read_dump(path)
    path.write_text(json.dumps(inspect({})))
    (graded,), by = read_dump(path, say=wording.append)
    assert (by, wording[-1]) == ("math", "graded by math: a.json has no scores")
    np.testing.assert_array_equal(graded.score, RIGHT[:3, :2])
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
        wording = [
            ("user", "?"),
            ("assistant", "I look it up."),
            ("tool", "x"),
            ("assistant", text),
            ("user", "Thanks."),
        ]
        nodes = [{"message": {"role": of, "content": x}, "sampled": of == "assistant"} for of, x in wording]
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


# ---- files as people keep them


def each(row):
    """A row for each of six problems: `row` gets its number, its first response, and whether that is right."""
    return [row(i, TEXTS[i][0], bool(RIGHT[i, 0])) for i in range(6)]


def whole(name, rows, **more):
    return json.dumps({"model": "m", "metadata": {"temperature": 0.6}, name: rows, **more}, indent=2)


def review(i, text, right):
    """As evalscope writes its reviews."""
    score = {"value": {"acc": float(right)}, "extracted_prediction": "7" if right else "8", "prediction": text}
    return {"index": i, "input": f"problem {i}", "target": "7", "sample_score": {"score": score, "sample_id": i}}


QWEN = each(lambda i, text, right: {"idx": i, "question": f"problem {i}", "gt": "7", "answer": "$7", "code": [text],
                                    "pred": ["7" if right else "8"], "report": [None], "score": [right]})  # fmt: skip
NEMO = each(lambda i, text, right: {"problem": f"problem {i}", "expected_answer": "7", "generation": text,
                                    "predicted_answer": "7" if right else "8", "symbolic_correct": right})  # fmt: skip
OPEN_R1 = each(lambda i, text, right: {"problem": f"problem {i}", "solution": "It is 7.", "answer": "7",
                                       "uuid": f"u{i}", "generations": [text], "correctness_math_verify": [right],
                                       "correctness_llama": None, "is_reasoning_complete": [True]})  # fmt: skip
CHAT = each(lambda i, text, right: {"messages": [{"role": "user", "content": f"problem {i}"},
                                                 {"role": "assistant", "content": text}], "answer": "7"})  # fmt: skip
PREDICTED = each(lambda i, text, right: {"origin_prompt": [{"role": "HUMAN", "prompt": f"problem {i}"}],
                                         "prediction": text, "gold": "7"})  # fmt: skip
JUDGED = each(lambda i, text, right: {"prompt": f"problem {i}", "origin_prediction": text, "predictions": "7",
                                      "references": "7", "correct": right})  # fmt: skip
SAMPLED = each(lambda i, text, right: {"question": f"problem {i}", "expected_answer": "7", "best_score": 1.0,
                                       "completions": [{"model_answer": "7", "full_model_response": text,
                                                        "score": float(right)}]})  # fmt: skip
BATCH = each(lambda i, text, right: {"custom_id": f"{i}", "gold_answer": "7", "response": {"status_code": 200, "body": {
    "choices": [{"message": {"role": "assistant", "content": text}}]}}})  # fmt: skip
KEPT = {  # file -> (content, scorer, what is said)
    "qwen.jsonl": (QWEN, "column 'score'", ""),
    "nemo.jsonl": (NEMO, "column 'symbolic_correct'", ""),
    "open_r1.parquet": (OPEN_R1, "column 'correctness_math_verify'", ""),
    "chat.jsonl": (CHAT, "math", "graded by math: chat.jsonl has no scores"),
    "batch.jsonl": (BATCH, "math", "graded by math: batch.jsonl has no scores"),
    "evalscope.jsonl": (
        each(review),
        "column 'sample_score.score.value.acc'",
        "read: response sample_score.score.predic",
    ),
    "capitals.csv": (
        each(lambda i, text, right: {"Question": i, "Model Output": text, "Is_Correct": int(right)}),
        "column 'Is_Correct'",
        "",
    ),
    "list.json": (json.dumps(NEMO, indent=2), "column 'symbolic_correct'", ""),
    "lines.json": ("".join(f"{json.dumps(row)}\n" for row in NEMO), "column 'symbolic_correct'", ""),
    "object.json": (whole("per_q", SAMPLED), "column 'completions.score'", "read: the 6 objects in 'per_q'"),
    "pretty.jsonl": (whole("results", NEMO), "column 'symbolic_correct'", "read: the 6 objects in 'results'"),
    "line.json": (json.dumps({"results": NEMO}), "column 'symbolic_correct'", "read: the 6 objects in 'results'"),
    "sets.json": (
        whole("categories", [{"name": "a", "datasets": [{"name": "b", "score": 0.4, "results": SAMPLED}]}]),
        "column 'completions.score'",
        "read: the 6 objects in 'categories.datasets.results'",
    ),
    "opencompass.json": (
        json.dumps({f"{i}": row for i, row in enumerate(PREDICTED)}, indent=4),
        "math",
        "read: the 6 objects in 'opencompass.json'",
    ),
    "judged.json": (
        whole("details", {"type": "GEN", **{f"{i}": row for i, row in enumerate(JUDGED)}}, accuracy=50),
        "column 'correct'",
        "read: the 6 objects in 'details'",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_files_are_read_as_people_keep_them(tmp_path, name, capsys):
    content, scorer, told = KEPT[name]
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        write(path, content)
    wording = []
    (graded,), by = read_dump(path, say=wording.append)
    assert (by, graded.data) == (scorer, "b" if name == "sets.json" else "answers")
    assert told in " ".join(wording)
    if name == "chat.jsonl":
        assert graded.questions[0] == ([{"role": "user", "content": "problem 0"}], "7")
    assert bool(wording) == bool(told)
    np.testing.assert_array_equal(graded.score, RIGHT[:, :1])
    if name not in ("capitals.csv", "judged.json"):
        (graded,), _ = read_dump(path, {}, "math")
        np.testing.assert_array_equal(graded.score, RIGHT[:, :1])
    again = shutil.copy(path, tmp_path / f"again{path.suffix}")
    for command in (["score", str(path)], ["compare", str(path), str(again)], ["table", str(path)]):
        assert main(command) == 0
        assert told in " ".join(capsys.readouterr().out.replace("\\_", "_").split())


def test_ids_tell_problems_apart_where_texts_do_not(tmp_path):
    rows = [{"id": i, "question": "What is 7 + 7?" if i < 2 else f"{i}", "score": i % 2} for i in range(6)]
    (graded,), _ = read_dump(write(tmp_path / "a.jsonl", rows))
    assert graded.score.tolist() == [[0], [1], [0], [1], [0], [1]]
    assert graded.prompt_ids[:2] != graded.prompt_ids[1:3]
    twice = [{**row, "score": 1 - row["score"]} for row in rows]
    (graded,), _ = read_dump(write(tmp_path / "b.jsonl", [*rows, *twice]))
    assert graded.score.tolist() == [[0, 1], [1, 0]] * 3
    other = [{**row, "question": f"other {row['question']}"} for row in rows]
    (another,), _ = read_dump(write(tmp_path / "other.jsonl", other))
    (single,), _ = read_dump(write(tmp_path / "single.jsonl", rows[1:]))
    assert not {*graded.prompt_ids} & {*another.prompt_ids}  # equal ids of other problems
    assert single.prompt_ids[0] == Question("any", 0, "What is 7 + 7?", "").id  # its text suffices
    # Ids of answers: a problem with fewer of them is not two problems.
    answered = [{"id": i, "question": f"{i // 4}", "score": 1} for i in range(10)]
    with pytest.raises(UserError, match=r"have from 2 to 4 answers, .* '0' has most; .* --column problem=COLUMN"):
        read_dump(write(tmp_path / "c.jsonl", answered))
    (graded,), _ = read_dump(write(tmp_path / "d.jsonl", answered[:8]))
    assert graded.score.shape == (2, 4)
    (graded,), _ = read_dump(write(tmp_path / "e.jsonl", [{"id": i, "score": 1} for i in (3, 3, 4, 4)]))
    assert graded.score.shape == (2, 2)


def test_the_page_lists_the_names_that_are_looked_for():
    page = Path(__file__).parents[2].joinpath("docs/evaluate.md").read_text()
    for role, names in NAMES.items():
        assert f"| `{role}` | {', '.join(f'`{name}`' for name in names)}" in page


# ---- folders


def put(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, rows)


def run_of_lm_eval(folder, right):
    """Two tasks, of which one has two filters, and one ran twice."""
    for task, filters in (("gsm8k", ("strict-match", "flexible-extract")), ("aime24", ("none",))):
        rows = [{**row, "exact_match": float(right[row["doc_id"]])} for name in filters for row in lm_eval((name,))]
        put(folder / f"samples_{task}_2025-09-09T13-31-53.431753.jsonl", rows)
    put(folder / "samples_aime24_2025-08-09T13-31-53.431753.jsonl", lm_eval(("none",), exact_match=0))
    (folder / "results_2025-09-09T13-31-53.431753.json").write_text('{"results": {}}')


def test_a_folder_of_lm_eval_is_one_result(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_of_lm_eval(Path("a/m"), RIGHT[:, 0])
    run_of_lm_eval(Path("b/m"), ~RIGHT[:, 0])
    assert main(["score", "a", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(row["scorer"], [each["data"] for each in row["results"]]) for row in result] == [
        ("lm-eval's exact_match", ["aime24"]),
        ("lm-eval's exact_match,strict-match", ["gsm8k"]),
        ("lm-eval's exact_match,flexible-extract", ["gsm8k"]),
    ]
    assert result[0]["results"][0]["mean@1"]["value"] == pytest.approx(RIGHT[:, 0].mean())  # the later run counts
    assert main(["compare", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert out.count("Is B better?") == out.count("By lm-eval's exact_match") == 3
    assert "average" not in out
    assert main(["compare", "a", "b", "--json"]) == 0
    assert [[each["prompts"] for each in one["results"]] for one in json.loads(capsys.readouterr().out)] == [[6]] * 3
    assert main(["table", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert out.count("| Method | gsm8k |") == 2
    assert "Average" not in out
    assert "80 prompts" not in out
    assert main(["score", "."]) == 2
    assert "holds the results of several models, a/m, b/m; one is expected" in capsys.readouterr().err


def test_two_results_need_a_metric_in_common(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for side, names in (("a", ("x", "y")), ("b", ("v", "w"))):
        write(f"{side}.jsonl", lm_eval(names))
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 2
    assert "no metric is of both: A has lm-eval's exact_match,x and" in " ".join(capsys.readouterr().err.split())


def test_folders_of_lighteval_inspect_verl_and_others(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def scored(path):
        assert main(["score", path, "--json"]) == 0
        return [
            (each["data"], each["prompts"], each["samples"])
            for each in json.loads(capsys.readouterr().out)[0]["results"]
        ]

    for time in ("2025-01-01T10-00-00.1", "2025-01-02T10-00-00.1"):
        put(tmp_path / f"light/details/org/m/{time}/details_aime24_{time}.parquet", details(**{"avg@n:n=4": np.mean}))
    assert scored("light") == [("aime24", 6, 4)]
    for time, id in (("2025-01-01T10-00-00-04-00", "a"), ("2025-01-02T10-00-00+00-00", "b")):
        path = tmp_path / f"logs/{time}_aime_{22 * id}.eval"
        path.parent.mkdir(exist_ok=True)
        log = inspect({"match": letter})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("header.json", json.dumps({"eval": log["eval"]}))
            for sample in log["samples"]:
                archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    assert scored("logs") == [("inspect_evals/aime", 3, 2)]
    for step in (10, 20):
        put(tmp_path / f"run/dumps/{step}.jsonl", [{"input": "a", "gts": "7", "score": 1.0, "step": step}])
    assert scored("run") == [("validation", 1, 1)]
    for task in ("aime24", "amc23"):
        put(tmp_path / f"qwen/{task}/test_s0_e-1.jsonl", QWEN)
        for j in range(3):
            put(tmp_path / f"nemo/{task}/output-rs{j}.jsonl", NEMO)
    assert scored("qwen") == [("aime24", 6, 1), ("amc23", 6, 1)]
    assert scored("nemo") == [("aime24/output", 6, 3), ("amc23/output", 6, 3)]
    for name in ("x", "y"):
        Path(f"json/{name}.json").parent.mkdir(exist_ok=True)
        Path(f"json/{name}.json").write_text(whole("results", NEMO))
    assert scored("json") == [("x", 6, 1), ("y", 6, 1)]
    Path("json/summary.json").write_text(json.dumps({"model": "m", "mean": 0.5}, indent=1))
    assert main(["score", "json"]) == 2
    assert "json/summary.json: one object, with the keys model, mean" in capsys.readouterr().err
    for name in ("x", "y"):
        put(tmp_path / f"twice/{name}.jsonl", [{**row, "dataset": "aime"} for row in NEMO])
    assert main(["score", "twice"]) == 2
    assert "several files in it have answers of 'aime'" in capsys.readouterr().err


def test_models_whose_folders_have_one_name_are_no_runs_of_one_method(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for model in ("a", "b"):
        put(tmp_path / f"{model}/math_eval/aime24/test.jsonl", QWEN)
    assert main(["table", "a/math_eval", "b/math_eval"]) == 0
    out = capsys.readouterr().out
    assert "2 runs" not in out
    assert out.count("| math\\_eval |") == 2


def zipped(path, model, rows):
    """As inspect_ai writes a log, here of one model."""
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps({"eval": {"task": "aime", "model": model}}))
        for sample in rows:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))


def test_logs_of_two_models_in_one_folder_are_not_one_result(tmp_path, monkeypatch, capsys):
    """inspect_ai writes the logs of all models into one folder; the last run must not stand for another model's."""
    monkeypatch.chdir(tmp_path)
    for day, model in enumerate(("base", "trained"), 1):
        path = Path(f"logs/2025-01-0{day}T10-00-00+00-00_aime_{22 * model[0]}.eval")
        zipped(path, model, inspect({"match": letter})["samples"])
    assert main(["score", "logs"]) == 2
    assert "logs holds the results of several models, base, trained; one is expected" in capsys.readouterr().err


def test_a_step_of_dumps_is_read_by_a_scorer_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for step in (10, 20):
        put(Path(f"mine/{step}.jsonl"), [{"input": "a", "output": f"Answer: {step}", "gts": "10", "score": 0.0}])
    assert main(["table", "mine", "--step", "10", "--scorer", "math"]) == 0
    assert "| 100.0 [" in capsys.readouterr().out


def test_a_filter_of_one_task_leaves_the_comparison_of_another(tmp_path, monkeypatch, capsys):
    """A has two filters of gsm8k, which B does not have, and both have aime24."""
    monkeypatch.chdir(tmp_path)
    for side, tasks in (("a", ("gsm8k", "aime24")), ("b", ("aime24",))):
        for task in tasks:
            filters = ("none",) if task == "aime24" else ("strict-match", "flexible-extract")
            put(Path(side, f"samples_{task}_2025-09-09T13-31-53.4.jsonl"), lm_eval(filters))
    assert main(["compare", "a", "b", "--json"]) == 0
    assert [row["data"] for row in json.loads(capsys.readouterr().out)["results"]] == ["aime24"]
    assert main(["table", "a", "b"]) == 0
    assert capsys.readouterr().out.count("| b |") == 1
    put(Path("c/samples_gsm8k_2025-09-09T13-31-53.4.jsonl"), lm_eval(("strict-match",)))
    assert main(["compare", "a", "c", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)  # once, by the filter of both
    assert [row["data"] for row in result["results"]] == ["gsm8k"]


def test_grades_of_several_graders_are_no_more_answers(tmp_path):
    rows = [
        {
            "question": f"{i}",
            "response": "7",
            "target": "7" if i % 2 else "8",
            "judge_correct": 1,
            "rule_correct": i % 2,
        }
        for i in range(4)
    ]
    graded, by = read_dump(write(tmp_path / "a.jsonl", rows))
    assert by == "column 'judge_correct' and column 'rule_correct'"
    assert [each.score.shape for each in graded] == [(4, 1), (4, 1)]
