"""Right answers as data sets hold them: what is read, what is refused and why, and what the report says of it."""

import json

import pytest
from commands import missing
from disk import write
from published import own, rows_of

from bandpo.errors import counted
from bandpo.rewards.grading import grade
from bandpo_runs.cli import main
from bandpo_runs.data.golds import BOX, HASHES, gold_fault, read_gold
from bandpo_runs.data.preparation import account_of

INSIDE, UNSEEN, BOXED = (
    "answer taken out of a list or mapping",
    "invisible characters taken off",
    "box around the answer taken off",
)
READ = [
    (" 34 ", "34", []), (34, "34", []), (None, "", []), (float("nan"), "", []), (["34", 34], "34", [INSIDE]),
    ('["34"]', "34", [INSIDE]), (r'["\\frac{1}{2}"]', r"\frac{1}{2}", [INSIDE]),
    ({"ground_truth": "34", "style": "rule"}, "34", [INSIDE]),
    ({"label": "34", "other": None}, "34", [INSIDE]),
    ("{'ground_truth': '34', 'style': 'rule'}", "34", [INSIDE]),
    ("[]", "", [INSIDE]),
    ("[1, 2]", "[1, 2]", []),  # an interval
    ("{1, 2}", "{1, 2}", []), (r"\{1, 2\}", r"\{1, 2\}", []), ("34\u200b", "34", [UNSEEN]),
    ("\ufeff34", "34", [UNSEEN]), ("1\u00a0000", "1 000", [UNSEEN]), ("\u2066-7\u2069", "-7", [UNSEEN]),
    ("\u00bd \u03c0", "\u00bd \u03c0", []), (r"\boxed{34}", "34", [BOXED]),
    (r"$\boxed{\frac{1}{\{2\}}}$.", r"\frac{1}{\{2\}}", [BOXED]),
    (r"\(\boxed{34}\)", "34", [BOXED]),
    (r"\boxed{3}^2", r"\boxed{3}^2", []),
]  # fmt: skip


# The answer of a solution stands behind its last mark.
BEHIND = [
    ("6 of 7 #### 6\nso\n#### 42", HASHES, "42", []), ("no mark", HASHES, "", []),
    (r"so \boxed{6}, that is $\boxed{\frac{4}{2}}$, as asked.", BOX, r"\frac{4}{2}", []),
    (r"so \fbox{6}", BOX, "6", []), (r"\boxed{6", BOX, "", []), ("no box", BOX, "", []),
    ("so\n#### 4\u200b2", HASHES, "42", [UNSEEN]), ("#### $\\boxed{42}$", HASHES, "42", [BOXED]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "after", "text", "changes"), [*((x, None, *rest) for x, *rest in READ), *BEHIND])
def test_what_a_cell_holds_is_one_text(value, after, text, changes):
    assert read_gold(value, after) == (text, changes)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (["34", "35"], "answer has several values, where one is expected"),
        ('["34", "35"]', "answer has several values, where one is expected"),
        ({"answer": "34", "target": "35"}, "answer has several values, where one is expected"),
        ([{"role": "user", "content": "34"}], "answer is messages"),
        ("[{'role': 'user', 'content': '34'}]", "answer is messages"),
        (r'["\frac{1}{2}"]', "answer is a list or mapping written as text, with characters that were lost"),
        (b"34", "answer is neither text nor a number, but bytes"),
    ],
)
def test_what_holds_no_single_answer_is_refused(value, reason):
    with pytest.raises(ValueError, match=f"^{reason}$"):
        read_gold(value)


SOLUTION, OPTION = "answer is a whole solution", "bandpo data prepare --answer-from"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("proof", "answer is a placeholder (proof, notfound, nan, None)"),
        ("NaN", "answer is a placeholder (proof, notfound, nan, None)"),
        ("array(['34'], dtype=object)", "answer is a list or mapping written as text"),
        ("{'answer': 34", "answer is a list or mapping written as text"),
        ("[{'a': 1}\n {'a': 2}]", "answer is a list or mapping written as text"),
        ("She sold 4.\n#### 4", f"{SOLUTION}; {OPTION} hashes takes what stands behind its ####"),
        (r"We get $\boxed{3}$.", rf"{SOLUTION}; {OPTION} box takes what its last \boxed{{}} holds"),
        ("There are 12 of them. So she has 5 left at the end.", SOLUTION),
        ("1" * 501, "answer of more than 500 characters"),
        ("1" * 500, None),
        ("none of them", None),
        ("D. Velocity", None),
        ("x = 5 or x = -3", None),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", None),
        ("{1, 2}", None),
    ],
)
def test_a_right_answer_that_nobody_can_give_is_told(text, fault):
    assert gold_fault(text) == fault


def prepared(tmp_path, rows, *options):
    """The rows made, and the account of the file, or the exit status where nothing is made."""
    made = tmp_path / "out/own.parquet"
    if status := main(["data", "prepare", own(tmp_path, rows), "-o", str(made.parent), *options]):
        return status, None
    return rows_of(made), account_of(made)


def test_messages_that_end_with_the_solution_are_cut_at_the_last_question(tmp_path):
    message = ("system", "brief"), ("user", "Find 0."), ("assistant", "of what?"), ("user", "Of x."), ("assistant", "0")
    messages = [{"role": role, "content": content} for role, content in message]
    whole = [{"role": "user", "content": "Find 9."}]
    passed = [{"messages": messages, "answer": 0}, {"messages": whole, "answer": 9}]
    rows, entry = prepared(tmp_path, passed, "--prompt", "messages")
    assert [row["prompt"] for row in rows] == [messages[:-1], whole]
    what = "messages behind the last user message taken off"
    assert (entry["corrected"], entry["examples"][what]) == ({what: 1}, ["row 0, problem `Of x.`, `0`"])
    assert f"- 1 x {what}" in (tmp_path / "out/report.md").read_text()


@pytest.mark.parametrize("text", [json.dumps, repr])
def test_messages_in_a_cell_of_csv_are_messages(tmp_path, cli, text):
    messages = [{"role": "user", "content": "Find 'x'."}, {"role": "assistant", "content": "7"}]
    mean = "[1, 2] has which mean?"
    path = write(tmp_path / "own.csv", [{"prompt": text(messages), "answer": "7"}, {"prompt": mean, "answer": "1.5"}])
    cli.out("data", "prepare", path, "-o", tmp_path)
    made = tmp_path / "own.parquet"
    assert [row["prompt"] for row in rows_of(made)] == [messages[:1], [{"role": "user", "content": mean}]]
    corrected = {"messages read out of text": 1, "messages behind the last user message taken off": 1}
    assert account_of(made)["corrected"] == corrected


def test_what_is_refused_is_counted_and_shown_and_nothing_else_is_lost(tmp_path, capsys):
    golds = ["1", "proof", "nan", '["3", "4"]', [5], "6\ufeff", "She sold 4.\n#### 4", "9" * 501, None, "Proof ", "2"]
    rows, entry = prepared(tmp_path, [{"prompt": f"Find {i}.", "answer": gold} for i, gold in enumerate(golds)])
    assert [row["answer"] for row in rows] == ["1", "5", "6", "2"]
    assert entry["read"] == len(golds) == entry["rows"] + sum(entry["dropped"].values())
    several = "answer has several values, where one is expected"
    assert entry["dropped"] == {
        "answer is a placeholder (proof, notfound, nan, None)": 3,
        several: 1,
        f"{SOLUTION}; bandpo data prepare --answer-from hashes takes what stands behind its ####": 1,
        "answer of more than 500 characters": 1,
        "no answer": 1,
    }
    assert entry["corrected"] == {INSIDE: 1, UNSEEN: 1}
    assert entry["examples"][several][0].endswith('answer `["3", "4"]`')
    out, report = capsys.readouterr().out, (tmp_path / "out/report.md").read_text()
    for what, count in entry["dropped"].items():
        warning = f"warning: {tmp_path / 'own.jsonl'}: {counted(count, 'row')}: {what}"
        assert (missing(out, f"{count} {what}", warning), missing(report, f"- {count} x {what}")) == ([], [])


@pytest.mark.parametrize(("gold", "text"), [("0.30000000000000004", "0.3"), ("350 (g)", "350")])
def test_the_scorer_math_takes_what_models_write_for_them(gold, text):
    (of_math,), (of_dapo,) = (grade([f"Answer: {text}"], [gold], scorer) for scorer in ("math", "dapo"))
    assert (of_math.score, of_dapo.score) == (1, 0)
