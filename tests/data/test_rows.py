"""Rows to train on: what every kind of file gives, what is held out, and in which order."""

import json

import pytest
import recipe
from commands import missing, refusal
from disk import write

from bandpo_runs import toy
from bandpo_runs.config.recipe import build
from bandpo_runs.data.rows import rows_and_reward

PROMPTS_A_ROUND = 4


@pytest.fixture
def prepared(tmp_path):
    """prepare() for rows in a file or for other data settings."""

    def prepared(rows=None, name="rows.jsonl", *, rounds=1, seed=0, reward="exact", **data):
        if rows is not None:
            data = {"source": "file", "path": str(write(tmp_path / name, rows)), **data}
        node = recipe.node(tmp_path, tmp_path / "run", rounds=rounds, seed=seed, reward=reward)
        return rows_and_reward(build({**node, "data": data}))

    return prepared


def numbered(count):
    return [{"prompt": f"p{i}", "answer": str(i)} for i in range(count)]


def by_prompt(rows):
    return sorted(rows, key=lambda row: row["prompt"])


# ---- files

WANTED = [{"prompt": f"p{i}", "answer": str(i), "level": level} for i, level in enumerate("abab")]
FORMS = {
    "rows.jsonl": "".join(json.dumps(row) + "\n\n" for row in WANTED),
    "mark.jsonl": "\ufeff" + "".join(json.dumps(row) + "\r\n" for row in WANTED),
    "rows.json": json.dumps(WANTED, indent=2),
    "lines.json": "\n".join(json.dumps(row) for row in WANTED),
    "rows.csv": "level,prompt,answer\na,p0,0\nb,p1,1\n\na,p2,2\nb,p3,3\n",
    "crlf.csv": "level,prompt,answer\r\na,p0,0\r\nb,p1,1\r\n\r\na,p2,2\r\nb,p3,3\r\n",
    "rows.parquet": WANTED,
}


@pytest.mark.parametrize("name", FORMS)
def test_every_kind_of_file_gives_the_same_rows(prepared, name):
    rows, held_out, _ = prepared(FORMS[name], name)
    assert (by_prompt(rows), held_out) == (WANTED, None)


def test_text_in_csv_stays_text_and_may_hold_commas_quotes_and_lines(prepared):
    rows, _, _ = prepared('prompt, answer\n"1, 2\n""3""",007\nb,NA\nc,7\nd,1e5\n', "rows.csv")
    assert {row["prompt"]: row["answer"] for row in rows} == {'1, 2\n"3"': "007", "b": "NA", "c": "7", "d": "1e5"}
    for answer in ("", " ", "work ####"):
        assert refusal(prepared, f"prompt,answer\nc,{answer}\n", "rows.csv").endswith("rows.csv': 'answer' is missing")


@pytest.mark.parametrize(
    ("answer", "text"), [("2024-01-01", "2024-01-01"), (7, "7"), (7.5, "7.5"), (10**30, str(10**30)), (True, "True")]
)
def test_an_answer_is_the_text_that_the_file_has(prepared, answer, text):
    # The other answers are numbers: no answer is changed into the type of the others.
    rows, _, reward = prepared([{"prompt": "x", "answer": answer}, *numbered(3), {"prompt": "y", "answer": 0.25}])
    assert text in rows["answer"]
    assert reward(completions=[text], answer=[text]) == [1.0]


def test_an_answer_in_a_container_is_that_one_answer(prepared):
    several = [{"prompt": "x", "answer": ["1", "2"]}]
    contained = [{"prompt": "x", "answer": {"ground_truth": "7"}}, {"prompt": "y", "answer": [8]}]
    rows, _, _ = prepared([*contained, *numbered(2)])
    assert {row["prompt"]: row["answer"] for row in rows}.items() >= {"x": "7", "y": "8"}.items()
    assert not missing(refusal(prepared, [*several, *numbered(4)]), "row 1 of ", "'answer' is ['1', '2']: ")
    rows, _, _ = prepared([*several, *numbered(3)], reward="os:getcwd")  # which may want all of it
    assert "['1', '2']" in rows["answer"]


def test_columns_are_renamed_and_the_others_go_to_the_reward(prepared):
    kinds = [1, "one", [1, "one"], {"one": [1]}]  # a column for the reward may hold anything
    given = [
        {"question": f"q{i}", "solution": i, "prompt": "old", "answer": "old", "kind": kind}
        for i, kind in enumerate(kinds)
    ]
    rows, _, _ = prepared(given, prompt="question", answer="solution")
    assert by_prompt(rows) == [{"prompt": f"q{i}", "answer": str(i), "kind": kind} for i, kind in enumerate(kinds)]
    rows, _, _ = prepared(numbered(4), prompt="answer", answer="prompt")
    assert by_prompt(rows)[1] == {"prompt": "1", "answer": "p1"}
    rows, _, _ = prepared([*numbered(4), {"prompt": "x", "answer": "x", "level": {"deep": 1}}], rounds=2)
    assert {row["prompt"]: row["level"] for row in rows}.items() >= {"x": {"deep": 1}, "p0": None}.items()


def test_the_template_surrounds_the_prompt_and_chat_makes_a_message_of_it(prepared):
    template = "Q: {prompt}\nEnd with {x}: {prompt}"
    rows, _, _ = prepared([{"prompt": "{answer} \\n", "answer": 1}, *numbered(3)], template=template)
    assert "Q: {answer} \\n\nEnd with {x}: {answer} \\n" in rows["prompt"]
    rows, _, _ = prepared(numbered(4), chat=True, template="Q: {prompt}")
    assert sorted(rows["prompt"], key=str)[0] == [{"role": "user", "content": "Q: p0"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    rows, _, _ = prepared([{"prompt": messages, "answer": 2}] * 4, template="not here: {prompt}")
    assert rows[0]["prompt"] == messages


# ---- held out


def test_the_last_of_the_first_rows_are_held_out_and_never_trained_on(prepared):
    again = [{"prompt": "p9", "answer": "other"}, {"prompt": "p8", "answer": "8"}]
    for given, options, held_out, trained in (
        (numbered(20), {"size": 8, "rounds": 3}, ["p6", "p7"], range(6)),
        ([*again, *numbered(10)], {"rounds": 6}, ["p8", "p9"], range(8)),
        ([*numbered(6), *numbered(6)[4:]], {"rounds": 3}, ["p4", "p5"], range(4)),
    ):
        rows, rest, _ = prepared(given, eval_size=2, **options)
        assert (sorted(rest["prompt"]), {*rows["prompt"]}) == (held_out, {f"p{i}" for i in trained})
    rows, rest, _ = prepared([*numbered(6), *numbered(6)[4:]], eval_size=2, chat=True, rounds=3)
    assert not [prompt for prompt in rows["prompt"] if prompt in rest["prompt"]]


# ---- order


def test_the_order_is_the_same_for_a_seed_and_another_for_another(prepared):
    first, again, other = ([*prepared(numbered(40), rounds=10, seed=seed)[0]["answer"]] for seed in (3, 3, 4))
    assert first == again != other
    assert sorted(first) == sorted(other) != sorted(first, key=int) != first


def test_passes_over_the_rows_follow_each_other_each_in_its_own_order(prepared):
    few, answers = ([*prepared(numbered(6), rounds=rounds)[0]["answer"]] for rounds in (2, 4))
    assert (len(answers), answers[: len(few)]) == (4 * PROMPTS_A_ROUND, few)
    first, second, third = answers[:6], answers[6:12], answers[12:]
    assert sorted(first) == sorted(second) == list("012345")
    assert (first != second, len(set(third))) == (True, 4)


# ---- mistakes


@pytest.mark.parametrize(
    ("rows", "name", "message"),
    [
        ("\n\n", "rows.jsonl", "has no rows"),
        ("[]", "rows.json", "has no rows"),
        ("prompt,answer\n", "rows.csv", "has no rows"),
        (
            '{"prompt": "a", "answer": 1}\n{"prompt": "b"',
            "rows.jsonl",
            "cannot be read: line 2: corrupt: one JSON object",
        ),
        ('[{"prompt": "a"', "rows.json", "cannot be read: "),
        ('{"prompt": "a", "answer": 1}\n7', "rows.jsonl", "line 2: corrupt: one JSON object is expected, got 7"),
        ("prompt,answer\na,1\nb,2,3\n", "rows.csv", "line 3 has more cells than the header"),
        ('prompt,answer\n"a,1\n', "rows.csv", "cannot be read: "),
        ("x", "rows.txt", "must end in .csv, .json, .jsonl or .parquet"),
        ('{"question": "a", "answer": 1}', "rows.jsonl", "which has ['question', 'answer']"),
        ("prompt,answer\na,1\nb\n", "rows.csv", "row 2 of"),
        ('{"prompt": "a", "answer": null}', "rows.jsonl", "row 1 of"),
        ('{"prompt": "a", "answer": 1}\n{"answer": 1}', "rows.jsonl", "'prompt' must be text or messages, got None"),
        ('{"prompt": "a", "answer": 1}\n{"prompt": [{}], "answer": 1}', "rows.jsonl", "some prompts are text, others"),
        ([*numbered(5), {"prompt": "a \ud800", "answer": "1"}], "rows.jsonl", "does not fit a table"),
        (b"PAR1 and then nothing PAR1", "bad.parquet", "cannot be read: "),
        (None, "gone.jsonl", "is not a file"),
        (numbered(1), "rows.jsonl", "1 row left to train on"),
    ],
)
def test_a_file_that_will_not_do_is_one_line_that_names_it(prepared, tmp_path, rows, name, message):
    file = {} if rows is not None else {"source": "file", "path": str(tmp_path / name)}
    why = refusal(prepared, rows, name, **file)
    assert (message in why, name in why or "left to train on" in why, "\n" in why) == (True, True, False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"size": 7}, "data.size is 7, but"),
        ({"eval_size": 6}, "0 rows left to train on"),
        ({"eval_size": 3}, "3 rows left to train on (data.eval_size 3 "),
        ({"prompt": "question"}, "data.prompt: column 'question' is not in"),
        ({"answer": "gold"}, "which has ['prompt', 'answer']; name yours by data.answer=COLUMN"),
    ],
)
def test_settings_that_the_rows_cannot_meet_are_named(prepared, data, message):
    assert message in refusal(prepared, numbered(6), **data)


# ---- the lab and made questions


def test_the_lab_makes_as_many_prompts_as_the_run_needs(tmp_path):
    rows, held_out, reward = rows_and_reward(build({"scene": "storm", "rounds": 3, "seed": 5}))
    assert (list(rows), held_out) == (toy.prompts(3 * 16, 5), None)
    right = [toy.ANSWER, toy.SYMBOLS.index(rows[0]["answer"]), toy.END]
    assert reward(completions=[""], completion_ids=[right], answer=[rows[0]["answer"]]) == [1.0]


LARGEST = {"source": "largest-of-three"}


def test_made_questions_take_template_chat_held_out_rows_and_another_reward(prepared):
    rows, held_out, _ = prepared(size=12, eval_size=3, chat=True, template="{prompt}!", **LARGEST)
    told = {(len(held_out), prompt[0]["role"], prompt[0]["content"][-2:]) for prompt in rows["prompt"]}
    assert told == {(3, "user", ".!")}
    rows, held_out, reward = prepared(reward="last-number", eval_size=3, rounds=2, **LARGEST)
    assert len({*rows["prompt"], *held_out["prompt"]}) == 2 * PROMPTS_A_ROUND + 3  # one for every prompt
    assert reward(completions=[f"so {answer}." for answer in rows["answer"]], answer=rows["answer"]) == [1.0] * 8


def test_made_questions_do_not_depend_on_the_seed_of_the_run(prepared):
    first, other = (prepared(size=8, seed=seed, rounds=2, **LARGEST)[0] for seed in (0, 1))
    assert (by_prompt(first), list(first) == list(other)) == (by_prompt(other), False)
