"""From published data sets to files that are trained on: the files of the paper, killed runs, data of one's own."""
# ruff: noqa: RUF001  (letters of other scripts and their punctuation are meant)

import json
import re
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
import recipe
import yaml
from commands import missing, refusal
from disk import write
from hypothesis import given
from hypothesis import strategies as st
from published import (
    BEFORE,
    BEHIND,
    CHINESE,
    LEAKED,
    PLACES,
    aime24,
    aime25,
    amc23,
    dapo,
    dapo_raw,
    gsm8k,
    math,
    own,
    problem,
    put,
    rows_of,
)

from bandpo.errors import UserError
from bandpo_runs.config.recipe import build
from bandpo_runs.data import readers, sources
from bandpo_runs.data.leaks import RUN, SHARE, Leaks, same_text, words
from bandpo_runs.data.preparation import account_of
from bandpo_runs.data.problems import corrected
from bandpo_runs.data.readers import file_hash
from bandpo_runs.data.rows import rows_and_reward
from bandpo_runs.files.writing import locked

# ---- the paper's files


@pytest.fixture
def paper(make, tmp_path):
    """The data sets of the paper: their accounts, what was said, the report, and the rows of each file."""
    outcome, wording = make("paper")
    files = {path.stem: rows_of(path) for path in (tmp_path / "out").glob("*.parquet")}
    report = (tmp_path / "out/report.md").read_text()
    return SimpleNamespace(outcome=outcome, wording=wording, report=report, files=files)


def test_paper_gives_the_five_files_that_its_recipes_read(paper, tmp_path):
    base = yaml.safe_load((Path(__file__).parents[2] / "recipes/paper/paper.yaml").read_text())["data"]
    wanted = [Path(name) for name in [*base["train_files"], *base["val_files"]]]
    assert {path.parent for path in wanted} == {Path("data/paper")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*(path.name for path in wanted), "report.md"}


def test_keys_answers_and_origins(paper):
    assert {name: {row["data_source"] for row in rows} for name, rows in paper.files.items()} == {
        "dapo-math-17k": {"math_dapo"}, "math-levels-3-5": {"math_dapo"}, "aime2024": {"aime_2024"},
        "aime2025": {"aime_2025"}, "amc2023": {"aime_amc2023"},
    }  # fmt: skip
    for row in (row for rows in paper.files.values() for row in rows):
        assert row["reward_model"] == {"ground_truth": row["answer"], "style": "rule"}
    answers = {name: [row["answer"] for row in rows] for name, rows in paper.files.items()}
    firsts = {"aime2024": ["204", "25", "110", "204"], "amc2023": ["-3", "-2", "-1", "0", "1"]}
    firsts["math-levels-3-5"] = [r"\frac{1}{2}"] * 12
    assert {name: answers[name][: len(first)] for name, first in firsts.items()} == firsts
    infos = [row["extra_info"] for row in paper.files["math-levels-3-5"]]
    assert [info["index"] for info in infos] == [i for i in range(20) if 1 + i % 5 >= 3]
    source = {"split": "train", "index": 2, "problem": problem(402), "source": "nlile/hendrycks-MATH-benchmark"}
    assert infos[0] == source


def test_a_run_on_trl_reads_the_file_as_it_is(make, tmp_path):
    make("dapo-math-17k")
    data = {"source": "file", "path": str(tmp_path / "out/dapo-math-17k.parquet")}
    node = recipe.node(tmp_path, tmp_path / "run", rounds=10, reward="exact") | {"data": data}
    rows, _, _ = rows_and_reward(build(node))
    by_problem = {row["prompt"][0]["content"]: row["answer"] for row in rows}
    assert by_problem[BEFORE + problem(305) + BEHIND] == "5"
    assert rows[0]["extra_info"]["problem"] in rows[0]["prompt"][0]["content"]  # other columns go to the reward


# ---- which rows make a file

CONTRADICTING = {1: ["5", "5"], 2: ["5", "6"], 3: ["5", "6", "6", "5"], 4: ["4"]}
SAME = [(1, r"\frac{1}{2}"), (1, r"$\dfrac{1}{2}$"), (1, r"\tfrac{1}{ 2}"), (2, r"\left( 1 \right)"), (2, "(1)")]
# A data set, its rows, the settings, the answers that are left, and what the account says.
MADE = {
    "a hundredfold data set becomes one": (
        "dapo-math-17k-raw", [dapo_raw(problem(i), str(i), i) for _ in range(100) for i in range(9)], {},
        [str(i) for i in range(9)], {"read": 900, "rows": 9, "dropped": {"duplicate": 891}},
    ),
    "of problems with contradicting answers none": (
        "dapo-math-17k", [dapo(problem(i), answer, i) for i, each in CONTRADICTING.items() for answer in each], {},
        ["5", "4"], {"dropped": {"same problem with different answers": 6, "duplicate": 1}},
    ),
    "answers that only look different": (
        "math-levels-3-5", [math(problem(seed), answer, 5, i) for i, (seed, answer) in enumerate(SAME)], {},
        [r"\frac{1}{2}", r"\left( 1 \right)"], {"dropped": {"duplicate": 3}},
    ),
    "as published duplicates are counted and stay": (
        "dapo-math-17k", [dapo(problem(1), a, i) for i, a in enumerate(["5", "5", "6"])], {"as_published": True},
        ["5", "5", "6"], {"dropped": {}, "kept_though": {"duplicate": 1, "same problem with different answers": 1}},
    ),
    "no answer of math is touched, where the last digits can be 07": (
        "math-levels-3-5", [math(problem(i), a, 5, i) for i, a in enumerate(["07", "2.0", "1,000"])], {},
        ["07", "2.0", "1,000"], {"corrected": {}},
    ),
    **{
        f"{answer!r} is no integer, and no scorer reads it as one": (
            "dapo-math-17k", [dapo(problem(1), answer, 0), dapo(problem(2), "2", 1)], {},
            [answer, "2"], {"kept_though": {"answer is not an integer": 1}},
        )
        for answer in ("1/2", "\uff11\uff12", "\u0663")
    },
    "the answer of gsm8k stands behind its mark": (
        "gsm8k-train",
        [gsm8k(problem(1), "1,024"), gsm8k(problem(2), "7"), {"question": "x?", "answer": "no mark"}], {},
        ["1024", "7"], {"dropped": {"no answer": 1}, "corrected": {"commas taken out": 1}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "settings", "answers", "account"), MADE.values(), ids=MADE)
def test_which_rows_of_a_data_set_are_left(make, copies, tmp_path, name, rows, settings, answers, account):
    put(copies, name, rows)
    outcome, wording = make(name, **settings)
    left = rows_of(tmp_path / f"out/{name}.parquet")
    assert {key: outcome[name][key] for key in account} == account
    assert [row["answer"] for row in left] == answers
    assert {row["prompt"][0]["content"].count(BEFORE.strip()) for row in left} == {1}
    told = f"warning: {name}: 1 row: answer is not an integer" in wording
    assert told == ("answer is not an integer" in account.get("kept_though", {}))


def test_a_group_makes_all_of_its_files(make, copies, tmp_path):
    for name, number in (("gsm8k-train", 1), ("gsm8k-test", 2)):
        put(copies, name, [gsm8k(problem(number), str(number))])
    assert make("gsm8k")[0].keys() == {"gsm8k-train", "gsm8k-test"}
    assert [row["answer"] for row in rows_of(tmp_path / "out/gsm8k-test.parquet")] == ["2"]


def test_a_conversation_is_all_that_the_user_says(make, tmp_path):
    """The last message of several is not a problem of its own, and one before it can be an evaluation problem."""

    def talks(name, *conversations):
        rows = [
            {"prompt": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(each)],
             "answer": "1"} for each in conversations
        ]  # fmt: skip
        return own(tmp_path, rows, name)

    held = own(tmp_path, [{"prompt": problem(9), "answer": "1"}], "held.jsonl")
    one, two, three, four, nine = (problem(i) for i in (1, 2, 3, 4, 9))
    first = talks("first.jsonl", (one, "7", "Sure?"), (two, "7", "Sure?"), (one, "8", "Sure?"), (nine, "7", "Sure?"),
                  (three,))  # fmt: skip
    second = talks("second.jsonl", (two, "7", "Sure?"), (four, "7", "Sure?"))
    outcome, _ = make(first, second, against=(held,))
    assert [outcome[name]["dropped"] for name in ("first", "second")] == [
        {"duplicate": 1, f"holds a problem of {held}": 1}, {"same problem as in " + first: 1},
    ]  # fmt: skip


def test_the_same_problem_in_another_writing_is_a_duplicate(make, tmp_path):
    texts = ["Find $x+1$ now.", " find  $X + 1$\nnow.", "Find $x-1$ now.", "Find $x+1$ now!"]
    entry = make(own(tmp_path, [{"prompt": text, "answer": "1"} for text in texts]))[0]["own"]
    assert [row["extra_info"]["index"] for row in rows_of(tmp_path / "out/own.parquet")] == [0, 2, 3]
    assert (entry["dropped"], entry["examples"]["duplicate"][0][-8:]) == ({"duplicate": 1}, "of row 0")


def test_of_an_evaluation_set_only_what_cannot_be_asked_or_graded_is_dropped(make, tmp_path):
    answers = ["1", "1", "2", "proof", "", ["3", "4"]]
    rows = [{"prompt": problem(1), "answer": answer} for answer in answers]
    outcome, _ = make(own(tmp_path, [*rows, {"prompt": "", "answer": "1"}]), columns={"evaluation": True})
    gone = {"no answer": 1, "answer has several values, where one is expected": 1, "no problem": 1}
    assert (outcome["own"]["rows"], outcome["own"]["dropped"]) == (4, gone)
    assert outcome["own"]["kept_though"].items() >= {"duplicate": 1, "same problem with different answers": 2}.items()


# ---- the report


def test_the_report_has_hashes_counts_and_examples(paper, tmp_path):
    for name, account in paper.outcome.items():
        path = tmp_path / f"out/{name}.parquet"
        assert account_of(path) == account
        assert account["rows"] == len(paper.files[name]) == account["read"] - sum(account["dropped"].values())
        assert f"`{file_hash(path)}`" in paper.report
        assert account["from"]["files"] == {str(path): file_hash(Path(path)) for path in account["from"]["files"]}
    assert not missing(paper.report, "- 8 x level outside 3 to 5", "was `025`, now `25`")


def test_a_folder_can_be_filled_bit_by_bit(make, tmp_path):
    make("aime24")
    write(tmp_path / "out/foreign.parquet", [{"a": 1}])  # which is left alone
    make("amc23")
    heads = re.findall(r"^## (.*)", (tmp_path / "out/report.md").read_text(), re.M)
    assert heads == ["aime2024.parquet", "amc2023.parquet"]


# ---- after a kill

KILLED = """
import json, os, signal, sys
from pathlib import Path
from bandpo_runs.data import preparation
from bandpo_runs.data.sources import find

def dying(original, count):
    left = [count]
    def call(*args, **kwargs):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    return call

for point, count, folder in json.loads(sys.argv[2]):
    child = os.fork()
    if not child:
        home, name = (preparation, "problem_of") if point == "reading" else (Path, "replace")
        setattr(home, name, dying(getattr(home, name), count))
        preparation.prepare(find("paper"), Path(folder), preparation.Settings(copies=Path(sys.argv[1])))
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
# Where a run dies, at which call, and how many files there are then.
DEATHS = [("reading", 35, 1), ("replacing", 1, 0), ("replacing", 4, 3), ("replacing", 6, 5)]


@pytest.mark.slow
def test_a_killed_run_leaves_whole_files_and_can_be_repeated(make, copies, tmp_path):
    def state(folder):
        return {path.name: path.read_bytes() for path in Path(folder).glob("*.parquet")}

    make("paper", output=tmp_path / "whole")
    whole = state(tmp_path / "whole")
    runs = [(point, count, str(tmp_path / f"{point}-{count}")) for point, count, _ in DEATHS]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(copies), json.dumps(runs)], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(int(signal.SIGKILL))] * len(runs), done.stderr
    for (_, _, folder), (_, _, files) in zip(runs, DEATHS, strict=True):
        assert (len(state(folder)), state(folder).items() <= whole.items()) == (files, True)
        make("paper", output=Path(folder))
        assert state(folder) == whole
        assert not [path.name for path in Path(folder).iterdir() if path.name.startswith(".")]


# ---- other data


def test_other_columns(make, tmp_path):
    path = own(tmp_path, [{"question": problem(i), "meta": {"gold": i + 0.5}, "id": "x"} for i in range(3)])
    outcome, _ = make(path, columns={"prompt": "question", "answer": "meta.gold"})
    row = rows_of(tmp_path / "out/own.parquet")[1]
    assert (row["prompt"], outcome["own"]["warnings"]) == ([{"role": "user", "content": problem(1)}], [])
    assert (row["answer"], row["data_source"], row["extra_info"]["source"]) == ("1.5", "math_dapo", path)


def test_messages_stay(make, tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": problem(1)}]
    path = own(tmp_path, [{"prompt": messages, "answer": 3}])
    make(path)
    row = rows_of(tmp_path / "out/own.parquet")[0]
    assert (row["prompt"], row["extra_info"]["problem"]) == (messages, problem(1))
    assert "its problems are chat messages already, so a template has no place" in refusal(make, path, template="boxed")


# ---- mistakes


def test_other_mistakes(make, copies, tmp_path):
    assert not missing(refusal(make, "aime24", template="no place"), "template must be one of ", " or a text with")
    (copies / PLACES["aime24"]).unlink()
    assert not missing(
        refusal(make, "aime24"), "no files train*.parquet ", " in ", "/HuggingFaceH4/aime_2024; --from takes a"
    )
    make("aime25")
    assert "aime2025.parquet would be written over itself" in refusal(make, str(tmp_path / "out/aime2025.parquet"))
    assert "two data sets would be written to aime2025.parquet" in refusal(make, "aime25", "aime25")


# ---- the command line


def test_the_command_prepares_and_says_what_it_did(copies, tmp_path, cli):
    out = tmp_path / "out"
    command = ["data", "prepare", "aime24", "math-levels-3-5", "-o", str(out), "--from", str(copies)]
    message = cli.out(*command, "--template", "plain")
    assert not missing(
        message,
        f"math-levels-3-5: {out / 'math-levels-3-5.parquet'}, 12 rows of 20",
        "  dropped: 8 level outside 3 to 5",
        "  put right: 11 zeros before an integer taken off",
    )
    assert message.endswith(f"{out / 'report.md'}\n")


def test_one_schema_for_all_files_so_that_they_can_be_laid_together(paper, tmp_path):
    """As verl does with the files of a list; the real ones have structs with different fields."""
    first, *others = (pyarrow.parquet.read_schema(tmp_path / f"out/{name}.parquet") for name in paper.files)
    assert [first] * 4 == others
    assert {*first.names} >= {"data_source", "prompt", "ability", "reward_model", "extra_info", "answer"}


def test_a_folder_that_another_process_prepares_into_is_refused(make, tmp_path):
    with locked(tmp_path / "out" / ".lock"), pytest.raises(UserError, match=r"another process is writing to"):
        make("amc23")
    assert not (tmp_path / "out").exists()


# ---- a row becomes a problem: its texts, its answer, and what will not do


def test_the_prompt_texts_are_the_public_ones(paper):
    for name, rows in paper.files.items():
        space = "" if name == "dapo-math-17k" else " "  # which has none
        text = BEFORE + space + rows[0]["extra_info"]["problem"] + space + BEHIND
        assert rows[0]["prompt"] == [{"role": "user", "content": text}]
    problems = [row["extra_info"]["problem"] for row in paper.files["dapo-math-17k"]]
    assert (problems[0], problems[-1]) == (problem(300), CHINESE.format(7))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain", "{}"),
        ("boxed", "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."),
        ("Q: {prompt} {x}\n{prompt}", "Q: {0} {{x}}\n{0}"),
    ],
)
def test_another_template_takes_the_public_text_off(make, tmp_path, template, text):
    make("dapo-math-17k", "aime25", template=template)
    for name, seed in (("dapo-math-17k", 300), ("aime2025", 100)):
        row = rows_of(tmp_path / "out" / f"{name}.parquet")[0]
        assert row["prompt"] == [{"role": "user", "content": text.format(problem(seed))}]


def test_each_correction_is_counted(paper):
    zeros = "zeros before an integer taken off"
    assert {name: account["corrected"] for name, account in paper.outcome.items()} == {
        "dapo-math-17k": {}, "math-levels-3-5": {}, "aime2024": {zeros: 11},  # 10 x 025, and 033
        "aime2025": {}, "amc2023": {"decimals of an integer taken off": 40},
    }  # fmt: skip
    assert f"  put right: 11 {zeros}" in paper.wording
    assert paper.outcome["aime2024"]["examples"][zeros][0] == f"row 1, problem `{problem(1)}`, was `025`, now `25`"


def test_as_published_keeps_the_zeros(make, tmp_path):
    assert make("aime24", "amc23", as_published=True)[0]["aime2024"]["corrected"] == {}
    answers = {
        name: [row["answer"] for row in rows_of(tmp_path / f"out/{name}.parquet")] for name in ("aime2024", "amc2023")
    }
    assert (answers["aime2024"][1], answers["amc2023"][4]) == ("025", "1")  # the scores are those of integers


@given(st.integers(-(10**20), 10**20), st.integers(0, 4), st.booleans(), st.integers(0, 3), st.booleans())
def test_a_corrected_integer_is_the_same_number_as_it_is_usually_written(number, zeros, commas, decimals, padded):
    digits = f"{abs(number):,}" if commas else "0" * zeros + str(abs(number))
    text = ("-" if number < 0 else "") + digits + ("." + "0" * decimals if decimals else "")
    answer, changes = corrected(text, padded=padded)
    assert Decimal(answer) == number
    if not (padded and zeros and not commas):
        assert answer == str(number)
    assert (bool(changes), corrected(answer, padded=padded)) == (answer != text, (answer, []))


@pytest.mark.parametrize(
    "answer", ["1,23", "12,3456", "1/2", "0.5", "27.50", r"\frac{1}{2}", "x", "1 000", "٣", "", "1e3"]
)
def test_what_is_no_integer_stays(answer):
    assert corrected(answer, padded=False) == (answer, [])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "own.jsonl: of 0 rows none is left"),
        (
            [{"question": "x", "answer": 1}],
            "needs the columns 'prompt' and 'answer', and has no 'prompt'; row 1 has question, answer; bandpo data",
        ),
        ([{"prompt": "x", "gold": 1}], "has no 'answer'; row 1 has prompt, gold; bandpo data prepare"),
        ([{"prompt": 5, "answer": 1}], "row 1: 'prompt' must be text or messages, got 5"),
        ([{"prompt": ["x"], "answer": 1}], "row 1: 'prompt' must be text or messages"),
        ([{"prompt": "", "answer": 1}], "of 1 row none is left (1 no problem; e.g. row 0, problem ``, answer `1`)"),
        ([{"prompt": "x", "answer": float("nan")}], "of 1 row none is left (1 no answer; e.g. row 0, problem `x`"),
        ([{"prompt": "a \ud800", "answer": 1}], "own.parquet: 'utf-8' codec can't encode character '\\ud800'"),
    ],
)
def test_rows_that_will_not_do_are_named(make, tmp_path, rows, message):
    assert not missing(refusal(make, own(tmp_path, rows)), message, "own.")


# ---- which texts are the same problem, and which training rows hold one of an evaluation set


@given(st.text(max_size=20), st.data())
def test_same_text_forgets_white_space_and_case_and_nothing_else(text, draw):
    spaced = "".join(c + draw.draw(st.sampled_from(["", " ", "\n", "\t "])) for c in text)
    assert same_text(spaced) == same_text(text)
    assert same_text(text + "+1") != same_text(text + "-1") != same_text(text)


def test_a_planted_leak_is_found_however_it_is_written(make, copies, tmp_path):
    text = LEAKED["problem"]
    written = [
        text,
        text.replace("$", "").replace(r"\tfrac{9}{2}", r"\dfrac92").upper().replace(r"\OMEGA", r"\omega"),
        "A warm-up. " + problem(50) + " And now: " + text,
        # The start alone, without what all such problems end with.
        r"Let \(ABC\) be a triangle with \(AB=5\) and \(BC=\frac{9}{2}\), inscribed in a circle. What is its area?",
    ]
    clean = r"The mean of four numbers is $\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers."
    # The ending does not leak: three evaluation problems have it.
    endings = ["", f" The result, {text[text.index('which is') :]}", " The result, "]
    problems = [*((i, "") for i in range(27)), None, (60, endings[1]), (61, endings[2])]
    put(copies, "aime24", [aime24(problem(x[0]) + x[1], "1", x[0]) if x else LEAKED for x in problems])
    put(copies, "dapo-math-17k", [dapo(each, "33", i) for i, each in enumerate([*written, clean, problem(301)])])
    mine = own(tmp_path, [{"prompt": problem(301), "answer": "1"}], "mine.jsonl")
    entry = make("dapo-math-17k", against=("aime24", mine))[0]["dapo-math-17k"]
    assert entry["dropped"] == {"holds a problem of aime24": 4, f"holds a problem of {mine}": 1}
    assert [row["extra_info"]["index"] for row in rows_of(tmp_path / "out/dapo-math-17k.parquet")] == [4]
    shown = entry["examples"]["holds a problem of aime24"][0]
    assert f"evaluation row 27, share 1.00, holds `{text[:100]}" in shown


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("find 2^10", 0),
        ("What is $\\pi$?", 1),
        ("Find $2^{11}$.", None),
        ("Find $2^{10}$ and then something else of some length, as one does.", None),
    ],
)
def test_a_short_problem_is_held_by_the_same_words_only(text, row):
    result = Leaks([("short", ["Find $2^{10}$.", "What is pi?"])]).find(text)
    assert (result and (result.name, result.row)) == (None if row is None else ("short", row))


def test_a_repetition_of_a_leak_is_a_leak(make, copies):
    put(copies, "dapo-math-17k", [dapo(LEAKED["problem"], answer, 0) for answer in ("33", "33", "34")])
    why = refusal(make, "dapo-math-17k", against=("aime24",))
    assert not missing(why, "of 3 rows none is left", "3 holds a problem of aime24")


# Rows of a training file of the paper, and why they are dropped.
HELD = {
    "math-levels-3-5": (
        [math(problem(seed), answer, 5, 0) for seed, answer in ((300, "0"), (301, "7"), (9, "1"), (409, "1"))],
        {"same problem as in dapo-math-17k": 2, "holds a problem of aime24": 1},
    ),
    "dapo-math-17k": (
        [dapo(problem(seed), "1", seed) for seed in (5, 105, 205, 300)],
        {f"holds a problem of {name}": 1 for name in ("aime24", "aime25", "amc23")},
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_paper_holds_its_training_rows_against_its_evaluation_sets_and_each_other(make, copies, name):
    rows, dropped = HELD[name]
    put(copies, name, rows)
    assert make("paper")[0][name]["dropped"] == dropped


SENTENCE = st.lists(st.sampled_from("ab"), max_size=14).map(" ".join)


@given(st.lists(SENTENCE, min_size=1, max_size=6), SENTENCE)
def test_the_index_finds_what_comparing_all_pairs_finds(problems, text):
    def runs(sentence):
        split = sentence.split()
        return {tuple(split[i : i + RUN]) for i in range(len(split) - RUN + 1)}

    distinct = list(dict.fromkeys(problems))
    common = {run for each in distinct for run in runs(each) if sum(run in runs(other) for other in distinct) >= 3}
    shares = [len(own & runs(text)) / len(own) if (own := runs(each) - common) else 0.0 for each in distinct]
    best = 1.0 if text in distinct else max(shares)
    result = Leaks([("set", problems)]).find(text)
    if best < SHARE:
        assert result is None
    else:
        assert result.share == pytest.approx(best)
        assert result.problem == text if text in distinct else shares[distinct.index(result.problem)] == result.share


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"$\dfrac{1}{2}$", r"\frac12"),
        (r"\left( x+1 \right)", "(x+1)"),
        (r"\text{lcm}(a,b)", "lcm(a, b)"),
        (r"$1,2,\ldots,n$", "1, 2, ..., n"),
        ("Ａ＝２", "a = 2"),
        ("2x", "2 x"),
    ],
)
def test_words_do_not_see_how_a_formula_looks(one, other):
    assert words(one) == words(other)


def test_words_see_numbers_letters_and_chinese_characters():
    assert words("求 $x^{12}$，x是整数") == ["求", "x", "12", "x", "是", "整", "数"]
    assert words("$x_1$") != words("$x_2$")


def test_who_holds_nothing_against_training_rows_is_told(make):
    for name, told in (("dapo-math-17k", 1), ("paper", 0)):
        text = "\n".join(make(name)[1])
        assert text.count("training rows are not held against evaluation sets") == told


# ---- rows of files, of copies on disk and of the hub


@pytest.fixture
def online(monkeypatch):
    """Whatever HF_HUB_OFFLINE says where the tests run."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return monkeypatch


def test_several_files_of_a_split_are_one(make, copies, tmp_path):
    first = put(copies, "aime25", [aime25(problem(i), "1", i) for i in range(15)])
    more = [aime25(problem(50 + i), "2", i) for i in range(15)]
    write(first.with_name("train-00001-of-00002.parquet"), more)
    make("aime25")
    assert [row["answer"] for row in rows_of(tmp_path / "out/aime2025.parquet")] == ["1"] * 15 + ["2"] * 15


def test_a_failure_of_the_network_is_one_line_that_says_what_to_do(make, online, tmp_path):
    def unreachable(*args, **kwargs):
        raise ConnectionError("[Errno -2] Name or service\nnot known")

    online.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    download = "hf download math-ai/amc23 --repo-type dataset --local-dir copies/math-ai/amc23"
    file = "for data.eval_path, the file that `bandpo data prepare` writes with --from copies"
    run = recipe.node(tmp_path, tmp_path / "run", reward="exact") | {"data": {"source": "hub", "path": "math-ai/amc23"}}
    for text, how, then in (
        (refusal(make, "amc23", copies=None), download, f"--from copies; {file}"),
        (refusal(rows_and_reward, build(run)), "", "data.source=file data.path=FILE"),
    ):
        assert not missing(text, "math-ai/amc23 cannot be loaded", "([Errno -2] Name or service not known).", how)
        assert (text.endswith(f"then here: {then}"), "\n" in text) == (True, False)


def test_the_hub_is_read_through_datasets(copies, tmp_path, monkeypatch):
    """As far as that goes without a network: datasets takes a folder for a data set of the hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    folder = copies / "openai/gsm8k"
    card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/test-*\n---\n"
    write(folder / "README.md", card)
    rows, commit = readers.hub_rows(str(folder), "main", "test")
    assert (list(rows), commit) == ([gsm8k(problem(3), "-3")], None)
    assert "cannot be loaded from the Hugging Face hub" in refusal(readers.hub_rows, str(folder), "socratic", "test")


def test_the_commit_is_asked_for_first_and_then_read(online, make, tmp_path):
    wanted = []

    def load(*args, **kwargs):
        wanted.append((*args, kwargs))
        return [amc23(problem(i), "1.0", i) for i in range(40)]

    online.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, hub, **kwargs: SimpleNamespace(sha="c0ffee"))
    online.setattr(datasets, "load_dataset", load)
    outcome, _ = make("amc23", copies=None)
    assert wanted == [("math-ai/amc23", None, {"split": "test", "revision": "c0ffee"})]
    assert outcome["amc2023"]["from"]["commit"] == "c0ffee"
    assert "commit c0ffee" in (tmp_path / "out/report.md").read_text()


def test_offline_the_cache_is_read_and_nothing_is_asked(monkeypatch, make):
    rows = [amc23(problem(i), "1.0", i) for i in range(40)]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *args, **kwargs: pytest.fail("it was asked"))
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, revision, **kwargs: rows)
    assert make("amc23", copies=None)[0]["amc2023"]["from"]["commit"] is None


# ---- which data set a name stands for, and the recorded table that real runs are checked against


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("aime2024", {}, r"^no data set 'aime2024', did you mean 'aime24'\?; known are paper, gsm8k, dapo-math-17k, "),
        ("aime24", {"prompt": "x"}, r"^--prompt does not go with aime24"),
        ("paper", {"evaluation": True}, r"^--evaluation does not go with paper"),
        ("nothing.jsonl", {}, r"^'nothing\.jsonl' is not a file$"),
    ],
)
def test_a_name_that_will_not_do_is_explained(make, name, columns, message):
    with pytest.raises(UserError, match=message):
        make(name, columns=columns)


def test_counts_that_are_not_the_recorded_ones_are_said_and_written_down(paper):
    for warning in ("dapo-math-17k: 40 rows, expected 17,398", "math-levels-3-5: 20 rows, expected 12,000"):
        assert (f"warning: {warning}" in paper.wording, f"**Warning**: {warning}." in paper.report) == (True, True)
    assert not paper.outcome["aime2024"]["warnings"]


def test_the_recorded_table_is_what_official_notes_say():
    table = {name: (s.hub, s.config, s.split, s.rows, s.data_source, s.levels) for name, s in sources.SOURCES.items()}
    assert table == {
        "dapo-math-17k": ("open-r1/DAPO-Math-17k-Processed", "all", "train", 17_398, "math_dapo", None),
        "dapo-math-17k-raw": ("BytedTsinghua-SIA/DAPO-Math-17k", None, "train", 1_791_700, "math_dapo", None),
        "math-levels-3-5": ("nlile/hendrycks-MATH-benchmark", None, "train", 12_000, "math_dapo", (3, 5)),
        "gsm8k-train": ("openai/gsm8k", "main", "train", 7_473, "math_dapo", None),
        "gsm8k-test": ("openai/gsm8k", "main", "test", 1_319, "math_dapo", None),
        "aime24": ("HuggingFaceH4/aime_2024", None, "train", 30, "aime_2024", None),
        "aime25": ("yentinglin/aime_2025", None, "train", 30, "aime_2025", None),
        "amc23": ("math-ai/amc23", None, "test", 40, "aime_amc2023", None),
    }
