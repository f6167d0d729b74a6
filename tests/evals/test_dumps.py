"""Files of answers that other programs wrote: one made of known arrays in each form must give these arrays again."""

import json
import math
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from commands import missing, refusal
from disk import write

from bandpo_runs.data.questions import Question
from bandpo_runs.evals.columns import NAMES
from bandpo_runs.evals.dumps import read_dump
from bandpo_runs.statistics.estimators import pass_at_k, per_prompt

RIGHT = np.random.default_rng(0).random((6, 4)) < 0.4
TEXTS = [[f"I think ... Answer: {7 if right else 8}" for right in row] for row in RIGHT]


def answers(**names):
    """A row for each answer, in the order in which several workers might write them; `names` renames columns."""
    rows = [
        {"prompt": f"problem {i}", "response": TEXTS[i][j], "answer": "7", "correct": bool(RIGHT[i, j])}
        for j in range(4) for i in range(6)
    ]  # fmt: skip
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


def read(path, columns=None, scorer=None, **more):
    """The scores of each data set, as lists, and what graded them."""
    graded, by = read_dump(path, columns or {}, scorer, **more)
    return [(each.data, each.score.tolist()) for each in graded], by


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
    assert (graded.answers, len({*graded.prompt_ids})) == (None, 6)


@pytest.mark.parametrize("name", ["answers.csv", "problems.parquet", "details.parquet"])
def test_a_scorer_grades_the_responses_and_heeds_no_score(tmp_path, name):
    rows, _ = FORMS[name]
    wrong = [{key: value for key, value in row.items() if key not in ("correct", "score")} for row in rows]
    (graded,), by = read_dump(write(tmp_path / name, wrong), {}, "dapo-strict")
    right = RIGHT.tolist()
    assert (graded.score.tolist(), (graded.answers == "7").tolist(), by) == (right, right, "dapo-strict")


def test_data_sets_are_told_apart_and_what_was_read_votes(tmp_path):
    rows = [
        {**row, "data_source": f"set {i % 2}", "pred": "7" if row["correct"] else ""} for i, row in enumerate(answers())
    ]
    graded, _ = read_dump(write(tmp_path / "a.jsonl", rows))
    arrays = [(x.data, x.score.tolist(), (x.answers == "7").tolist(), x.parsed.tolist()) for x in graded]
    assert arrays == [(f"set {i}", *[RIGHT[i::2].tolist()] * 3) for i in (0, 1)]


def test_of_verl_any_score_above_0_is_right_and_acc_comes_first(tmp_path):
    wording = [(None, 0.3), (None, -0.5), (True, -1.0), (0.0, 1.0)]
    rows = [{"input": "a", "gts": str(i), "acc": acc, "score": score} for i, (acc, score) in enumerate(wording)]
    path = write(tmp_path / "a.jsonl", rows)
    assert read(path) == ([("validation", [[1], [0], [1], [0]])], "verl's reward function")  # one question, 4 problems
    assert read(path, {"score": "score"}) == ([("validation", [[1], [0], [0], [1]])], "verl's score")


def test_of_several_metrics_of_lighteval_those_that_are_shares(tmp_path):
    path, wording = tmp_path / "a.parquet", []
    of_all = {"pass@k:k=1&n=4": np.mean, "pass@k:k=4&n=4": np.max, "maj@n:n=4": np.max}
    (graded,), by = read_dump(write(path, details(**of_all)), say=wording.append)
    left_out = "not shown, as not all values are 0 or 1: pass@k:k=4&n=4, maj@n:n=4"
    assert (graded.data, by, wording) == ("aime24", "lighteval's pass@k:k=1&n=4", [left_out])
    np.testing.assert_array_equal(graded.score.sum(1), RIGHT.sum(1))
    # Of eight responses only the first two were asked: its name says so.
    graded, _ = read_dump(write(path, details(**{"avg@n:n=2": lambda row: row[:2].mean(), **of_all})))
    assert [(each.data, each.scorer, each.score.sum(1).tolist(), each.score.shape[1]) for each in graded] == [
        ("aime24", "lighteval's avg@n:n=2", RIGHT[:, :2].sum(1).tolist(), 2),
        ("aime24", "lighteval's pass@k:k=1&n=4", RIGHT.sum(1).tolist(), 4),
    ]
    single = [{**row, "model_response": {"text": ["7"]}} for row in details(em=np.max)]
    assert read(write(path, single))[0] == [("aime24", RIGHT.max(1, keepdims=True).tolist())]


REFUSED = {  # rows of a file, the columns that are named, and why not
    "no question": ([{"text": "a", "correct": 1}], {}, "no column of the prompt; looked for prompt, question, "),
    "no score": ([{"prompt": "a", "x": 1}], {}, "names it, or --scorer math grades the responses"),
    "misspelt": ([{"prompt": "a", "is_right": 1}], {"score": "is_rihgt"}, "did you mean 'is_right'?; it has prompt"),
    "a part": ([{"prompt": "a", "score": 1}, {"prompt": "b", "score": 0.5}], {}, "row 2: 'score' is 0.5; 1 or true"),
    "a word": ([{"prompt": "a", "score": "good"}], {}, "row 1: 'score' is 'good'; 1 or true"),
    "infinite, of verl": ([{"input": "a", "gts": "b", "score": float("inf")}], {}, "row 1: 'score' is inf; 1 or true"),
    "no score of verl": (
        [{"input": "a", "gts": "b", "score": 1}],
        {"score": "scor"},
        "; it has ['reward function', 'score'",
    ),
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
    "NaN of lighteval": (details(em=lambda row: math.nan), {}, "'score' is missing"),
}


def test_score_compare_and_table_take_the_same_files(here, cli):
    write("a.csv", answers(prompt="q", correct="ok"))
    write("b.parquet", [{**row, "ok": True} for row in answers(prompt="q", correct="ok")])
    columns = ["--column", "prompt=q", "--column", "score=ok"]
    first, second = cli.json("score", "a.csv", "Best=b.parquet", *columns, "--json")
    values = [first["results"][0][name]["value"] for name in ("mean@4", "pass@2")]
    assert values == pytest.approx([RIGHT.mean(), pass_at_k(4, RIGHT.sum(1), 2).mean()])
    assert [(each["source"], each["label"], each["scorer"]) for each in (first, second)] == [
        ("a.csv", "a", "column 'ok'"), ("b.parquet", "Best", "column 'ok'"),
    ]  # fmt: skip
    (result,) = cli.json("compare", "a.csv", "b.parquet", *columns, "--json")["results"]
    assert (result["prompts"], result["b"], result["difference"]) == (6, 1.0, pytest.approx(1 - RIGHT.mean()))
    assert f"{100 * RIGHT.mean():.1f}" in cli.out("table", "a.csv", "b.parquet", *columns)


@pytest.mark.parametrize("command", ["score", "compare", "table"])
def test_a_column_of_folders_is_an_error_and_no_option_without_effect(command, here, cli):
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
        assert wording in cli.error(command, *files, *options)


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


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_scorer_of_texts_compares_with_the_text_as_it_is(tmp_path, name):
    text = "There are 12 of them. So she has 5 left at the end.\n#### 5"
    row = {"prompt": "x", "completion": [{"role": "assistant", "content": text}], "gold": text}
    assert read(write(tmp_path / name, [row]), {}, "exact")[0] == [("answers", [[1.0]])]


SEVERAL = {
    "texts": ["Answer: 7", "Answer: 8"],
    "conversations": [TURNS, [{"role": "assistant", "content": "Answer: 8"}]],
    "repetitions of lm-eval": [["Answer: 7", "Answer: 8"]],
    "choices": {"choices": [{"message": MESSAGE}, {"message": {"role": "assistant", "content": None}}]},
    "texts of vLLM": [{"text": "Answer: 7"}, {"text": "8"}],
}


@pytest.mark.parametrize("name", [*SEVEN, *SEVERAL])
def test_the_last_message_of_the_assistant_is_the_answer_and_a_list_of_answers_has_a_sample_in_each(tmp_path, name):
    path = write(tmp_path / "a.jsonl", [{"prompt": "x", "completion": (SEVEN | SEVERAL)[name], "answer": "7"}])
    for scorer in ("math", "last-number", "dapo-strict"):
        assert read(path, {}, scorer) == ([("answers", [[1.0] if name in SEVEN else [1.0, 0.0]])], scorer)


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


# ---- what other harnesses write


FILTERS = "strict-match", "flexible-extract"


def lm_eval(filters=FILTERS, **more):
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
    names = [f"lm-eval's exact_match,{name}" for name in FILTERS]
    right = [RIGHT[:, j : j + 1].tolist() for j in (0, 1)]
    assert by == " and ".join(names)
    assert [(x.data, x.scorer, x.score.tolist(), x.parsed.tolist()) for x in graded] == [
        ("gsm8k", name, of, of) for name, of in zip(names, right, strict=True)
    ]
    assert read(path, {"score": "exact_match"}) == read(path)
    assert read(path, {"score": "exact_match,flexible-extract"}) == ([("gsm8k", right[1])], names[1])
    assert graded[0].prompt_ids == graded[1].prompt_ids
    # GSM8K's right answers stand behind ####; the answers of both filters are the same.
    assert read(path, {}, "math") == ([("gsm8k", right[0])], "math")


CHOICES = [
    {"doc_id": i, "doc": {"q": i}, "target": 1, "resps": [[[-1.0, False]], [[-2.0, False]]], "acc": i % 2,
     "doc_hash": "a", "filtered_resps": [[-1.0, False], [-2.0, False]], "arguments": [["q", "a"], ["q", "b"]]}
    for i in range(4)
]  # fmt: skip


def test_samples_of_lm_eval_with_likelihoods_or_several_metrics(tmp_path):
    path, first, all_right = tmp_path / "a.jsonl", ("gsm8k", RIGHT[:, :1].tolist()), ("gsm8k", [[1.0]] * 6)
    assert read(write(path, CHOICES)) == ([("answers", [[0], [1], [0], [1]])], "lm-eval's acc")
    assert read_dump(path)[0][0].answers is None
    path = tmp_path / "samples_gsm8k_2025-09-09T13-31-53.4.jsonl"
    write(path, lm_eval(("none",), metrics=["exact_match", "math_verify"], math_verify=1))
    assert read(path) == ([first, all_right], "lm-eval's exact_match and lm-eval's math_verify")
    assert read(path, {"score": "math_verify"}) == ([all_right], "lm-eval's math_verify")
    write(path, lm_eval(("none",), metrics=["exact_match", "mcc"], mcc=[1, 0]))
    assert read(path) == ([first], "lm-eval's exact_match")


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


def zipped(path, log):
    """As inspect_ai packs a log."""
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({"eval": log["eval"]}))
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    return path


@pytest.mark.parametrize("ending", ["json", "eval"])
def test_logs_of_inspect_are_read_by_their_letters(tmp_path, ending, cli):
    path = (write if ending == "json" else zipped)(tmp_path / f"a.{ending}", inspect({"match": letter}))
    expected = [("inspect_evals/aime", RIGHT[:3, :2].tolist())]
    assert (read(path), read(path, {}, "math")) == ((expected, "inspect_ai's match"), (expected, "math"))
    cli.out("score", path)


def test_scorers_of_inspect_are_graders_and_its_log_may_have_none(tmp_path):
    path, wording, right = tmp_path / "a.json", [], [("inspect_evals/aime", RIGHT[:3, :2].tolist())]
    write(path, inspect({"match": letter, "judge": lambda right: {"strict": int(right), "kind": 3}}))
    assert read(path, say=wording.append) == (right * 2, "inspect_ai's match and inspect_ai's judge.strict")
    assert read(path, {"score": "judge.strict"}) == (right, "inspect_ai's judge.strict")
    assert read(write(path, inspect({})), say=wording.append) == (right, "math")
    assert wording == ["not shown, as not all values are 0 or 1: judge.kind", "graded by math: a.json has no scores"]
    for content in (b"PK", b""):
        why = refusal(read_dump, write(tmp_path / "b.eval", content))
        assert not missing(why, "b.eval cannot be read as a log of inspect_ai", "bandpo[inspect]")


@pytest.mark.parametrize("lost", ["judge", "match"])
def test_a_sample_of_inspect_without_a_score_leaves_its_problem_out_on_request(tmp_path, lost):
    """One scorer has none, or the sample ended in an error."""
    log = inspect({"match": letter, lost: letter})
    del log["samples"][1]["scores"][lost]
    path = write(tmp_path / "a.json", log)
    assert "row 2: 'score' is missing; --drop-incomplete leaves its problem out" in refusal(read_dump, path)
    whole, part = RIGHT[:3, :2].tolist(), RIGHT[[0, 2], :2].tolist()
    assert [score for _, score in read(path, drop_incomplete=True)[0]] == ([whole, part] if lost == "judge" else [part])


def each(row, count=1):
    """A row for each of six problems: `row` gets its number, its first responses, and whether each is right."""
    return [row(i, TEXTS[i][j], bool(RIGHT[i, j])) for i in range(6) for j in range(count)]


def trace(right, text, name="solver", trainable=True):
    wording = [("user", "?"), ("assistant", "I look it up."), ("tool", "x"), ("assistant", text), ("user", "Thanks.")]
    nodes = [{"message": {"role": of, "content": x}, "sampled": of == "assistant"} for of, x in wording]
    rewards = {"correct": {"score": float(right), "weight": 1.0}, "short": {"score": 0.5, "weight": 0.0}, "late": None}
    return {"agent": {"name": name, "trainable": trainable}, "nodes": nodes, "rewards": rewards}


def episode(i, traces):
    task = {"type": "T", "data": {"idx": i, "prompt": f"problem {i}", "answer": "7"}}
    return {"env": {"id": "gsm8k", "name": "math"}, "task": task, "ok": True, "traces": traces}


ROLLOUTS = {  # rows, and the data set and who graded it
    "verifiers": (
        each(lambda i, text, right: {
            "example_id": i, "prompt": [{"role": "user", "content": f"problem {i}"}], "task": "gsm8k", "answer": "7",
            "completion": [{"role": "assistant", "content": text}], "reward": float(right)}, 4),
        "answers", "column 'reward'",
    ),
    # Made by verifiers 0.4, whose records prime-rl keeps; this is what of them is read.
    "verifiers 1": (
        each(lambda i, text, right: episode(i, [trace(right, text), trace(1.0, "7", "judge", trainable=False)]), 4),
        "math", "verifiers's sum of rewards",
    ),
    "SkyRL": (  # right where the reward is above 0
        each(lambda i, text, right: {
            "input_prompt": f"<|im_start|>user\nproblem {i}", "output_response": text, "stop_reason": "stop",
            "score": [0.0, 0.0, float(right)] if i else float(right), "env_class": "gsm8k", "data_source": "gsm8k",
            "env_extras": {"reward_spec" if i else "reward_model": {"ground_truth": "7"}}}, 4),
        "gsm8k", "SkyRL's reward function",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "data", "scorer"), ROLLOUTS.values(), ids=ROLLOUTS)
def test_rollouts_are_right_where_their_reward_says_so(tmp_path, rows, data, scorer):
    path, right = write(tmp_path / "gsm8k.jsonl", rows), [(data, RIGHT.tolist())]
    assert (read(path), read(path, {}, "math")) == ((right, scorer), (right, "math"))


def test_a_reward_of_verifiers_is_one_of_several_by_its_name(tmp_path):
    path = write(tmp_path / "a.jsonl", ROLLOUTS["verifiers 1"][0])
    assert read(path, {"score": "correct"})[0] == [("math", RIGHT.tolist())]


HARNESSES = {  # the same as REFUSED, of what harnesses write
    "a reward of verifiers": ([{**ROLLOUTS["verifiers"][0][0], "reward": 1.2}], {}, "'reward' is 1.2; 1 or true"),
    "a share of verifiers 1": (ROLLOUTS["verifiers 1"][0], {"score": "short"}, "row 1: 'score' is 0.5; 1 or true"),
    # It failed before its first trace.
    "an episode without a trace": (
        [*ROLLOUTS["verifiers 1"][0], episode(6, [])], {}, "row 25: 'score' is missing; --drop-incomplete leaves its"
    ),
    "metrics that are no shares": (
        lm_eval(("none",), metrics=["f1", "bleu"], f1=0.5, bleu=0.25), {}, "has the metrics ['f1', 'bleu']; --column "
    ),
    "a share of lm-eval": (lm_eval(("none",), exact_match=0.5), {}, "row 1: 'score' is 0.5; 1 or true"),
    "another letter of inspect": (inspect({"match": lambda right: "P"}), {}, "row 1: 'score' is 'P'; 1 or true"),
}  # fmt: skip
UNGRADED = {  # what a scorer cannot grade
    **{f"no answer {i}": ([{"prompt": "x", "completion": completion, "answer": gold}], {}, why)
       for i, (completion, gold, why) in enumerate(NO_ANSWER)},
    "likelihoods": (CHOICES, {}, "row 1: 'response' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*REFUSED, *HARNESSES, *UNGRADED])
def test_what_cannot_be_read_is_one_line_that_says_where_and_what_is_expected(tmp_path, name):
    rows, columns, message = (REFUSED | HARNESSES | UNGRADED)[name]
    path = write(tmp_path / ("a.json" if isinstance(rows, dict) else "a.jsonl"), rows)
    why = refusal(read_dump, path, columns, "math" if name in UNGRADED else None)
    assert (why.startswith(str(path)), why if message not in why else "") == (True, "")


# ---- problems with other numbers of answers


def test_incomplete_problems_are_left_out_on_request_and_that_is_told(here, cli):
    counts = {"a": 4, "b": 4, "c": 2, "d": 4, "twice": 8, "failed": 0}
    rows = [{"prompt": name, "score": j % 2} for name, count in counts.items() for j in range(count)]
    write("a.jsonl", [*rows, {"prompt": "failed", "score": None}])
    write("b.jsonl", rows)
    left_out = (
        "answers: left out 2 of 6 problems, which have fewer than 4 answers, and 4 answers beyond the first 4 of a "
        "problem"
    )
    of_lack, of_number = (
        "'score' is missing; --drop-incomplete leaves its",
        "leaves out problems with fewer answers than",
    )
    for command, why in (
        ("score a.jsonl", of_lack), ("score b.jsonl", of_number), ("compare a.jsonl b.jsonl", of_lack),
        ("table a.jsonl b.jsonl", of_lack),
    ):  # fmt: skip
        assert why in cli.error(*command.split())
        out = cli.out(*command.split(), "--drop-incomplete")
        assert command.startswith("score") or left_out in " ".join(out.split())
    both = cli.json("score", "a.jsonl", "b.jsonl", "--drop-incomplete", "--json")
    counts = [(each["results"][0]["prompts"], each["results"][0]["mean@4"]["value"]) for each in both]
    assert (both[0]["left_out"], counts) == ([left_out], [(4, 0.5)] * 2)


# ---- files as people keep them


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
CHAT = each(lambda i, text, right: {"messages": [{"role": "user", "content": f"problem {i}"},
                                                 {"role": "assistant", "content": text}], "answer": "7"})  # fmt: skip
SAMPLED = each(lambda i, text, right: {"question": f"problem {i}", "expected_answer": "7", "best_score": 1.0,
                                       "completions": [{"model_answer": "7", "full_model_response": text,
                                                        "score": float(right)}]})  # fmt: skip
KEPT = {  # file -> (content, scorer, what is said)
    "qwen.jsonl": (QWEN, "column 'score'", ""),
    "nemo.jsonl": (NEMO, "column 'symbolic_correct'", ""),
    "open_r1.parquet": (
        each(lambda i, text, right: {
            "problem": f"problem {i}", "solution": "It is 7.", "answer": "7", "uuid": f"u{i}", "generations": [text],
            "correctness_math_verify": [right], "correctness_llama": None, "is_reasoning_complete": [True]}),
        "column 'correctness_math_verify'", "",
    ),
    "chat.jsonl": (CHAT, "math", "graded by math: chat.jsonl has no scores"),
    "batch.jsonl": (
        each(lambda i, text, right: {"custom_id": f"{i}", "gold_answer": "7", "response": {"status_code": 200, "body": {
            "choices": [{"message": {"role": "assistant", "content": text}}]}}}),
        "math", "graded by math: batch.jsonl has no scores",
    ),
    "evalscope.jsonl": (
        each(review), "column 'sample_score.score.value.acc'", "read: response sample_score.score.predic",
    ),
    "capitals.csv": (
        each(lambda i, text, right: {"Question": i, "Model Output": text, "Is_Correct": int(right)}),
        "column 'Is_Correct'", "",
    ),
    "list.json": (json.dumps(NEMO, indent=2), "column 'symbolic_correct'", ""),
    "lines.json": ("".join(f"{json.dumps(row)}\n" for row in NEMO), "column 'symbolic_correct'", ""),
    "object.json": (whole("per_q", SAMPLED), "column 'completions.score'", "read: the 6 objects in 'per_q'"),
    "pretty.jsonl": (whole("results", NEMO), "column 'symbolic_correct'", "read: the 6 objects in 'results'"),
    "line.json": (json.dumps({"results": NEMO}), "column 'symbolic_correct'", "read: the 6 objects in 'results'"),
    "sets.json": (
        whole("categories", [{"name": "a", "datasets": [{"name": "b", "score": 0.4, "results": SAMPLED}]}]),
        "column 'completions.score'", "read: the 6 objects in 'categories.datasets.results'",
    ),
    "opencompass.json": (
        json.dumps(dict(enumerate(each(lambda i, text, right: {
            "origin_prompt": [{"role": "HUMAN", "prompt": f"problem {i}"}], "prediction": text,
            "gold": "7"}))), indent=4),
        "math", "read: the 6 objects in 'opencompass.json'",
    ),
    "judged.json": (
        whole("details", {"type": "GEN", **dict(enumerate(each(lambda i, text, right: {
            "prompt": f"problem {i}", "origin_prediction": text, "predictions": "7", "references": "7",
            "correct": right})))}, accuracy=50),
        "column 'correct'", "read: the 6 objects in 'details'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_files_are_read_as_people_keep_them(tmp_path, name, cli):
    content, scorer, told = KEPT[name]
    path, wording = write(tmp_path / name, content), []
    right = [("b" if name == "sets.json" else "answers", RIGHT[:, :1].tolist())]
    assert read(path, say=wording.append) == (right, scorer)
    assert (told in " ".join(wording), bool(wording)) == (True, bool(told))
    if name not in ("capitals.csv", "judged.json"):
        assert read(path, {}, "math") == (right, "math")
    again = shutil.copy(path, tmp_path / f"again{path.suffix}")
    for command in (["score", path], ["compare", path, again], ["table", path]):
        assert told in " ".join(cli.out(*command).replace("\\_", "_").split())


ASKED = [[{"role": "user", "content": f"problem {i}"}] for i in range(6)]


@pytest.mark.parametrize(
    ("name", "rows", "questions"),
    [
        ("a.jsonl", answers(), [f"problem {i}" for i in range(6)]),
        ("a.parquet", [{"prompt": ASKED[0], "acc": 1}], ASKED[:1]),
        ("chat.jsonl", CHAT, ASKED),  # messages of which the last is the answer
    ],
)
def test_a_question_has_the_hash_that_it_has_in_a_folder(tmp_path, name, rows, questions):
    (graded,), _ = read_dump(write(tmp_path / name, rows))
    assert graded.prompt_ids == [Question("any", i, content, "7").id for i, content in enumerate(questions)]


def test_messages_are_the_question_of_their_answer(tmp_path):
    (graded,), _ = read_dump(write(tmp_path / "chat.jsonl", CHAT))
    assert graded.questions[0] == ([{"role": "user", "content": "problem 0"}], "7")


def test_ids_are_those_of_problems_where_no_text_is_or_on_request(tmp_path):
    rows = [{"id": i, "question": "What is 7 + 7?" if i < 2 else f"{i}", "score": i % 2} for i in range(6)]
    path = write(tmp_path / "a.jsonl", rows)
    why = refusal(read_dump, path)
    assert not missing(why, "from 1 to 2 answers, ", "'What is 7 + 7?' has most; ", " --column problem=COLUMN")
    expected = [("answers", [[0], [1], [0], [1], [0], [1]])], "column 'score'"
    assert read(path, {"problem": "id"}) == expected
    assert read(write(path, [{"id": i, "score": i % 2} for i in range(6)])) == expected


def test_the_page_lists_the_names_that_are_looked_for():
    page = Path(__file__).parents[2].joinpath("docs/evaluate.md").read_text()
    for role, names in NAMES.items():
        assert f"| `{role}` | {', '.join(f'`{name}`' for name in names)}" in page


# ---- folders


def run_of_lm_eval(folder, right):
    """Two tasks, of which one has two filters, and one ran twice."""
    for task, filters in (("gsm8k", FILTERS), ("aime24", ("none",))):
        rows = [{**row, "exact_match": float(right[row["doc_id"]])} for name in filters for row in lm_eval((name,))]
        write(folder / f"samples_{task}_2025-09-09T13-31-53.431753.jsonl", rows)
    write(folder / "samples_aime24_2025-08-09T13-31-53.431753.jsonl", lm_eval(("none",), exact_match=0))
    write(folder / "results_2025-09-09T13-31-53.431753.json", {"results": {}})


def test_a_folder_of_lm_eval_is_one_result(here, cli):
    run_of_lm_eval(Path("a/m"), RIGHT[:, 0])
    run_of_lm_eval(Path("b/m"), ~RIGHT[:, 0])
    right, by = pytest.approx(RIGHT[:, 0].mean()), "lm-eval's exact_match"  # of two runs the later one counts
    assert [
        (row["scorer"], [(each["data"], each["mean@1"]["value"]) for each in row["results"]])
        for row in cli.json("score", "a", "--json")
    ] == [(by, [("aime24", right)]), *((f"{by},{each}", [("gsm8k", right)]) for each in FILTERS)]
    out = cli.out("compare", "a", "b")
    assert [out.count(text) for text in ("Is B better?", "By lm-eval's exact_match", "average")] == [3, 3, 0]
    results = cli.json("compare", "a", "b", "--json")
    assert [[each["prompts"] for each in one["results"]] for one in results] == [[6]] * 3
    out = cli.out("table", "a", "b")
    assert [out.count(text) for text in ("| Method | gsm8k |", "Average", "80 prompts")] == [2, 0, 0]


TIMES, MEAN = ("2025-01-01T10-00-00.1", "2025-01-02T10-00-00.1"), details(**{"avg@n:n=4": np.mean})
LOG, TASKS = inspect({"match": letter}), ("aime24", "amc23")
FOLDERS = {  # the files of a folder, and the data sets in it, or why it holds no result
    "lighteval": (
        {f"details/org/m/{time}/details_aime24_{time}.parquet": MEAN for time in TIMES}, [("aime24", 6, 4)]
    ),
    "inspect": (
        {f"2025-01-01T10-00-00-04-00_aime_{22 * 'a'}.eval": LOG,
         f"2025-01-02T10-00-00+00-00_aime_{22 * 'b'}.eval": LOG},
        [("inspect_evals/aime", 3, 2)],
    ),
    "verl": (
        {f"dumps/{step}.jsonl": [{"input": "a", "gts": "7", "score": 1.0, "step": step}] for step in (10, 20)},
        [("validation", 1, 1)],
    ),
    "Qwen": ({f"{task}/test_s0_e-1.jsonl": QWEN for task in TASKS}, [("aime24", 6, 1), ("amc23", 6, 1)]),
    "NeMo": (
        {f"{task}/output-rs{j}.jsonl": NEMO for task in TASKS for j in range(3)},
        [("aime24/output", 6, 3), ("amc23/output", 6, 3)],
    ),
    "objects": ({f"{name}.json": whole("results", NEMO) for name in "xy"}, [("x", 6, 1), ("y", 6, 1)]),
    "a summary": (
        {"x.json": whole("results", NEMO), "summary.json": json.dumps({"model": "m", "mean": 0.5}, indent=1)},
        "it/summary.json: one object, with the keys model, mean",
    ),
    "twice": (
        {f"{name}.jsonl": [{**row, "dataset": "aime"} for row in NEMO] for name in "xy"},
        "several files in it have answers of 'aime'",
    ),
    "lm-eval's models": (
        {f"{name}/samples_gsm8k_2025-09-09T13-31-53.4.jsonl": lm_eval() for name in ("a/m", "b/m")},
        "it holds the results of several models, it/a/m, it/b/m; one is expected",
    ),
    # inspect_ai writes the logs of all models into one folder; the last run must not stand for another model's.
    "inspect's models": (
        {f"2025-01-0{day}T10-00-00+00-00_aime_{22 * model[0]}.eval": {**LOG, "eval": {"task": "aime", "model": model}}
         for day, model in enumerate(("base", "trained"), 1)},
        "it holds the results of several models, base, trained; one is expected",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "expected"), FOLDERS.values(), ids=FOLDERS)
def test_folders_of_harnesses_are_one_result_or_say_why_not(here, cli, files, expected):
    for name, content in files.items():
        (zipped if name.endswith(".eval") else write)(Path("it", name), content)
    if isinstance(expected, str):
        assert expected in cli.error("score", "it")
    else:
        results = cli.json("score", "it", "--json")[0]["results"]
        assert [(each["data"], each["prompts"], each["samples"]) for each in results] == expected


def test_models_whose_folders_have_one_name_are_no_runs_of_one_method(here, cli):
    for model in ("a", "b"):
        write(f"{model}/math_eval/aime24/test.jsonl", QWEN)
    out = cli.out("table", "a/math_eval", "b/math_eval")
    assert (out.count("2 runs"), out.count("| math\\_eval |")) == (0, 2)


def test_a_step_of_dumps_is_read_by_a_scorer_too(here, cli):
    for step in (10, 20):
        write(f"mine/{step}.jsonl", [{"input": "a", "output": f"Answer: {step}", "gts": "10", "score": 0.0}])
    assert "| 100.0 [" in cli.out("table", "mine", "--step", "10", "--scorer", "math")


def test_a_filter_of_one_task_leaves_the_comparison_of_another(here, cli):
    """A has two filters of gsm8k, which B does not have, and both have aime24; C has one of these filters, D others."""
    for file, filters in {
        "a/samples_gsm8k": FILTERS, "a/samples_aime24": ("none",),
        "b/samples_aime24": ("none",), "c/samples_gsm8k": ("strict-match",), "d/samples_gsm8k": ("x", "y"),
    }.items():  # fmt: skip
        write(f"{file}_2025-09-09T13-31-53.4.jsonl", lm_eval(filters))
    for other, data in (("b", "aime24"), ("c", "gsm8k")):  # once, by the filter of both
        assert [row["data"] for row in cli.json("compare", "a", other, "--json")["results"]] == [data]
    assert "no metric is of both: A has " in cli.error("compare", "a", "d")
    assert cli.out("table", "a", "b").count("| b |") == 1


def test_grades_of_several_graders_are_no_more_answers(tmp_path):
    rows = [
        {"question": f"{i}", "response": "7", "target": str(8 - i % 2), "judge_correct": 1, "rule_correct": i % 2}
        for i in range(4)
    ]
    both = [("answers", [[1]] * 4), ("answers", [[0], [1]] * 2)]
    assert read(write(tmp_path / "a.jsonl", rows)) == (both, "column 'judge_correct' and column 'rule_correct'")


# ---- logs that inspect_ai itself writes, read back by it and by us

RIGHT_IN_FOUR = np.array([[(7 * question + 3 * epoch) % 5 < 2 for epoch in range(4)] for question in range(5)])


def sample_of_inspect(question, epoch):
    """A sample_of_inspect of a log: `C` where it is right."""
    answer = {"role": "assistant", "content": str(question + 1) if RIGHT_IN_FOUR[question, epoch] else "no"}
    wanted = [{"role": "user", "content": f"{question} + 1 ="}]
    return {
        "id": question + 1, "epoch": epoch + 1, "input": wanted, "target": str(question + 1),
        "messages": [*wanted, answer],
        "scores": {"exact": {"value": "C" if RIGHT_IN_FOUR[question, epoch] else "I", "answer": answer["content"]}},
        "output": {"model": "m", "choices": [{"message": answer, "stop_reason": "stop"}]},
    }  # fmt: skip


def test_inspect_and_we_read_the_same_scores_from_what_it_wrote(tmp_path):
    log = pytest.importorskip("inspect_ai.log")
    spec = {
        "created": "2026-11-26T20:00:00+00:00", "task": "org/aime", "model": "m",
        "dataset": {"name": "org/aime", "samples": 5, "sample_ids": [*range(1, 6)]},
        "config": {"epochs": 4, "epochs_reducer": ["mean", "pass_at_2", "pass_at_4"]},
    }  # fmt: skip
    samples = [sample_of_inspect(question, epoch) for question in range(5) for epoch in range(4)]
    made = log.EvalLog.model_validate({"status": "success", "eval": spec, "samples": samples})
    log.recompute_metrics(made)
    path = tmp_path / "a.eval"
    log.write_eval_log(made, str(path))
    means = {score.reducer: score.metrics["mean"].value for score in log.read_eval_log(str(path)).results.scores}
    (ours,), by = read_dump(path)
    assert (ours.data, by) == ("org/aime", "inspect_ai's exact")
    np.testing.assert_array_equal(ours.score, RIGHT_IN_FOUR)
    np.testing.assert_array_equal(read_dump(path, {}, "exact")[0][0].score, RIGHT_IN_FOUR)
    expected = {"mean": 1, "pass_at_2": 2, "pass_at_4": 4}
    assert means == pytest.approx({name: per_prompt(ours.score, k).mean() for name, k in expected.items()})
