"""From published data sets to files that are trained on: texts, answers, duplicates, leaks, counts, killed runs."""
# ruff: noqa: RUF001  (Chinese punctuation is meant)

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import datasets
import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
import recipe
from hypothesis import given
from hypothesis import strategies as st

from bandpo import lab, progress
from bandpo.cli import main
from bandpo.config.recipe import build
from bandpo.data import preparation, sources
from bandpo.data.leaks import RUN, SHARE, Leaks, same_text, words
from bandpo.data.preparation import Settings, evaluation_set, file_hash, find, prepare
from bandpo.data.rows import rows_and_reward
from bandpo.errors import UserError
from bandpo.files import locked

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
BEHIND = '\n\nRemember to put your answer on its own line after "Answer:".'

# ---- small copies with the columns and types of the real data sets

# Words that no two problems share runs of, so that a leak is one that was planted.
STOCK = re.findall(
    r"\w+",
    "apple barrel candle dragon engine falcon garden hammer island jacket kettle ladder magnet needle orchid pebble "
    "quiver ribbon saddle temple umbrella velvet window yellow zipper anchor basket copper desert ember",
)


def problem(seed):
    """A problem of its own for each number."""
    picked = [STOCK[(seed * 7 + i * (seed % 5 + 2)) % len(STOCK)] for i in range(6)]
    return f"There are ${seed}$ times {' '.join(picked)} {seed}. How many {picked[seed % 6]} number {seed} are left?"


CHINESE = "一个长方形的长是$12$厘米，宽是$5$厘米。求它的面积是多少平方厘米？编号{}"


def dapo(text, answer, i):
    return {
        "prompt": text,
        "solution": answer,
        "data_source": "math_dapo",
        "source_prompt": [{"content": BEFORE + text + BEHIND, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"0d8dee8a-{i}"},
    }


def dapo_raw(text, answer, i):
    row = dapo(text, answer, i)
    return {
        "prompt": row.pop("source_prompt"),
        **{k: row[k] for k in ("data_source", "ability", "reward_model", "extra_info")},
    }


def math(text, answer, level, i):
    name = f"train/algebra/{i}.json"
    return {
        "problem": text,
        "solution": "Thus.",
        "answer": answer,
        "subject": "Algebra",
        "level": level,
        "unique_id": name,
    }


def aime24(text, answer, i):
    link = "https://artofproblemsolving.com"
    return {"id": 60 + i, "problem": text, "solution": "So.", "answer": answer, "url": link, "year": "2024"}


def aime25(text, answer, i):
    return {"id": str(i), "problem": text, "answer": answer, "solution": "So.", "url": "u", "year": 2025}


def amc23(text, answer, i):
    return {"id": i, "question": text, "answer": answer, "url": "u"}


def gsm8k(text, answer):
    return {"question": text, "answer": f"He has <<2+2=4>>4.\nSo many.\n#### {answer}"}


PLACES = {
    "dapo-math-17k": "open-r1/DAPO-Math-17k-Processed/all/train-00000-of-00001.parquet",
    "dapo-math-17k-raw": "BytedTsinghua-SIA/DAPO-Math-17k/data/train-00000-of-00001.parquet",
    "math-levels-3-5": "nlile/hendrycks-MATH-benchmark/data/train-00000-of-00001.parquet",
    "aime24": "HuggingFaceH4/aime_2024/data/train-00000-of-00001.parquet",
    "aime25": "yentinglin/aime_2025/data/train-00000-of-00001.parquet",
    "amc23": "math-ai/amc23/test-00000-of-00001.parquet",
    "gsm8k-train": "openai/gsm8k/main/train-00000-of-00001.parquet",
    "gsm8k-test": "openai/gsm8k/main/test-00000-of-00001.parquet",
}


def put(copies, name, rows):
    path = copies / PLACES[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def rows_of(path):
    return pyarrow.parquet.read_table(path).to_pylist()


LEAKED = aime24(
    r"Let $ABC$ be a triangle with $AB=5$ and $BC=\tfrac{9}{2}$, inscribed in a circle $\omega$. Find its area, which "
    r"is $\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$.",
    "033",
    2,
)


@pytest.fixture
def copies(tmp_path):
    """The five data sets of the paper, small: 30, 30 and 40 problems, 40 DAPO rows (8 Chinese), 20 MATH rows."""
    folder = tmp_path / "copies"
    answers = ["204", "025", "110"]
    put(folder, "aime24", [*(aime24(problem(i), answers[i % 3], i) for i in range(29)), LEAKED])
    put(folder, "aime25", [aime25(problem(100 + i), str(70 + i), i) for i in range(30)])
    put(folder, "amc23", [amc23(problem(200 + i), f"{i - 3}.0", i) for i in range(40)])
    english = [dapo(problem(300 + i), str(i), i) for i in range(32)]
    put(folder, "dapo-math-17k", [*english, *(dapo(CHINESE.format(i), "60", 50 + i) for i in range(8))])
    put(folder, "math-levels-3-5", [math(problem(400 + i), r"\frac{1}{2}", 1 + i % 5, i) for i in range(20)])
    return folder


@pytest.fixture
def make(tmp_path, copies):
    """prepare() of names into one folder, from the copies; returns the outcome and what was said."""

    def make(*names, output=None, columns=None, **settings):
        found = [source for name in names for source in find(name, **(columns or {}))]
        said = []
        settings = Settings(**{"copies": copies, **settings})
        group = names[0] if names[0] in sources.GROUPS else None
        outcome = prepare(found, output or tmp_path / "out", settings, group=group, say=said.append)
        return outcome, said

    return make


def own(tmp_path, rows, name="own.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


# ---- the paper's files


def test_paper_gives_the_five_files_that_its_recipes_read(make, tmp_path):
    make("paper")
    base = recipe_data()
    wanted = {Path(name).name for name in [*base["train_files"], *base["val_files"]]}
    assert {path.name for path in (tmp_path / "out").glob("*.parquet")} == wanted
    assert {Path(name).parent for name in [*base["train_files"], *base["val_files"]]} == {Path("data/paper")}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted([*wanted, "report.json", "report.md"])


def recipe_data():
    import yaml

    return yaml.safe_load((Path(__file__).parents[2] / "recipes" / "paper" / "base.yaml").read_text())["data"]


def test_the_prompt_texts_are_the_public_ones(make, tmp_path):
    make("paper")
    out = tmp_path / "out"
    for name in ("aime2024", "aime2025", "amc2023", "math-levels-3-5"):
        row = rows_of(out / f"{name}.parquet")[0]
        text = row["extra_info"]["problem"]
        assert row["prompt"] == [{"role": "user", "content": f"{BEFORE} {text} {BEHIND}"}]
    rows = rows_of(out / "dapo-math-17k.parquet")
    assert rows[0]["prompt"] == [{"role": "user", "content": BEFORE + problem(300) + BEHIND}]  # no spaces of ours
    assert rows[0]["extra_info"]["problem"] == problem(300)
    assert rows[-1]["extra_info"]["problem"] == CHINESE.format(7)
    assert rows[-1]["prompt"][0]["content"] == BEFORE + CHINESE.format(7) + BEHIND


def test_keys_answers_and_origins(make, tmp_path):
    make("paper")
    files = {path.stem: rows_of(path) for path in (tmp_path / "out").glob("*.parquet")}
    assert {name: {row["data_source"] for row in rows} for name, rows in files.items()} == {
        "dapo-math-17k": {"math_dapo"},
        "math-levels-3-5": {"math_dapo"},
        "aime2024": {"aime_2024"},
        "aime2025": {"aime_2025"},
        "amc2023": {"aime_amc2023"},
    }
    for rows in files.values():
        assert all(row["answer"] == row["reward_model"]["ground_truth"] for row in rows)
        assert {row["reward_model"]["style"] for row in rows} == {"rule"}
    assert [row["answer"] for row in files["aime2024"][:4]] == ["204", "25", "110", "204"]
    assert [row["answer"] for row in files["amc2023"][:5]] == ["-3", "-2", "-1", "0", "1"]
    assert {row["answer"] for row in files["math-levels-3-5"]} == {r"\frac{1}{2}"}
    assert [row["extra_info"]["index"] for row in files["math-levels-3-5"]] == [i for i in range(20) if 1 + i % 5 >= 3]
    assert files["math-levels-3-5"][0]["extra_info"] == {
        "split": "train",
        "index": 2,
        "id": "train/algebra/2.json",
        "problem": problem(402),
        "source": "nlile/hendrycks-MATH-benchmark",
    }
    assert files["dapo-math-17k"][3]["extra_info"]["id"] == "0d8dee8a-3"
    assert files["aime2024"][3]["extra_info"]["id"] == "63"


def test_one_schema_for_all_files_so_that_they_can_be_laid_together(make, tmp_path):
    """As verl does with the files of a list; the real ones have structs with different fields."""
    make("paper")
    paths = sorted((tmp_path / "out").glob("*.parquet"))
    parts = [datasets.Dataset(pyarrow.parquet.read_table(path)) for path in paths]
    assert all(part.features == parts[0].features for part in parts)
    together = datasets.concatenate_datasets(parts)
    assert len(together) == 30 + 30 + 40 + 40 + 12
    assert set(together.column_names) >= {"data_source", "prompt", "ability", "reward_model", "extra_info", "answer"}


def test_a_run_on_trl_reads_the_file_as_it_is(make, tmp_path):
    make("dapo-math-17k")
    node = recipe.node(tmp_path, tmp_path / "run", rounds=10, reward="exact")
    rows, _, _ = rows_and_reward(
        build({**node, "data": {"source": "file", "path": str(tmp_path / "out/dapo-math-17k.parquet")}})
    )
    by_problem = {row["prompt"][0]["content"]: row["answer"] for row in rows}
    assert by_problem[BEFORE + problem(305) + BEHIND] == "5"
    assert rows[0]["extra_info"]["problem"] in rows[0]["prompt"][0]["content"]  # other columns go to the reward


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


def test_dapo_rows_without_the_text_get_it(make, copies, tmp_path):
    bare = dapo(problem(1), "1", 0) | {"source_prompt": [{"role": "user", "content": problem(1)}]}
    put(copies, "dapo-math-17k", [bare, dapo(problem(2), "2", 1)])
    outcome, _ = make("dapo-math-17k")
    rows = rows_of(tmp_path / "out/dapo-math-17k.parquet")
    assert rows[0]["prompt"][0]["content"] == f"{BEFORE} {problem(1)} {BEHIND}"
    assert rows[1]["prompt"][0]["content"] == BEFORE + problem(2) + BEHIND
    assert outcome.files["dapo-math-17k"]["corrected"] == {"instructions added": 1}


# ---- answers


def test_each_correction_is_counted(make, copies):
    outcome, said = make("paper")
    assert outcome.files["aime2024"]["corrected"] == {"zeros before an integer taken off": 11}  # 10 x 025, and 033
    assert outcome.files["amc2023"]["corrected"] == {"decimals of an integer taken off": 40}
    assert outcome.files["aime2025"]["corrected"] == outcome.files["math-levels-3-5"]["corrected"] == {}
    assert "  put right: 11 zeros before an integer taken off" in said
    examples = outcome.files["aime2024"]["examples"]["zeros before an integer taken off"]
    assert examples[0] == {"row": 1, "problem": problem(1), "was": "025", "now": "25"}


def test_as_published_keeps_the_zeros(make, tmp_path):
    outcome, _ = make("aime24", "amc23", as_published=True)
    assert rows_of(tmp_path / "out/aime2024.parquet")[1]["answer"] == "025"
    assert outcome.files["aime2024"]["corrected"] == {}
    # The published scores are those of integers.
    assert rows_of(tmp_path / "out/amc2023.parquet")[4]["answer"] == "1"


@given(st.integers(-(10**20), 10**20), st.integers(0, 4), st.booleans(), st.integers(0, 3), st.booleans())
def test_a_corrected_integer_is_the_same_number_as_it_is_usually_written(number, zeros, commas, decimals, padded):
    digits = f"{abs(number):,}" if commas else "0" * zeros + str(abs(number))
    text = ("-" if number < 0 else "") + digits + ("." + "0" * decimals if decimals else "")
    answer, changes = preparation._corrected(text, padded=padded)
    assert Decimal(answer) == number
    if not (padded and zeros and not commas):
        assert answer == str(number)
    assert bool(changes) == (answer != text)
    assert preparation._corrected(answer, padded=padded) == (answer, [])


@pytest.mark.parametrize(
    "answer", ["1,23", "12,3456", "1/2", "0.5", "27.50", r"\frac{1}{2}", "x", "1 000", "٣", "", "1e3"]
)
def test_what_is_no_integer_stays(answer):
    assert preparation._corrected(answer, padded=False) == (answer, [])


def test_no_answer_of_math_is_touched(make, copies, tmp_path):
    """The last two digits of a number can be 07."""
    put(copies, "math-levels-3-5", [math(problem(i), answer, 5, i) for i, answer in enumerate(["07", "2.0", "1,000"])])
    make("math-levels-3-5")
    assert [row["answer"] for row in rows_of(tmp_path / "out/math-levels-3-5.parquet")] == ["07", "2.0", "1,000"]


@pytest.mark.parametrize("answer", ["1/2", "\uff11\uff12", "\u0663"])  # digits that no scorer reads as such
def test_an_answer_that_should_be_an_integer_is_kept_and_warned_of(make, copies, tmp_path, answer):
    put(copies, "dapo-math-17k", [dapo(problem(1), answer, 0), dapo(problem(2), "2", 1)])
    outcome, said = make("dapo-math-17k")
    assert outcome.files["dapo-math-17k"]["kept_though"] == {"answer is no integer": 1}
    assert "warning: dapo-math-17k: 1 rows: answer is no integer" in said
    assert len(rows_of(tmp_path / "out/dapo-math-17k.parquet")) == 2


def test_the_answer_of_gsm8k_stands_behind_its_mark(make, copies, tmp_path):
    put(
        copies,
        "gsm8k-train",
        [gsm8k(problem(1), "1,024"), gsm8k(problem(2), "7"), {"question": "x?", "answer": "no mark"}],
    )
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    outcome, _ = make("gsm8k")
    assert [row["answer"] for row in rows_of(tmp_path / "out/gsm8k-train.parquet")] == ["1024", "7"]
    assert [row["answer"] for row in rows_of(tmp_path / "out/gsm8k-test.parquet")] == ["-3"]
    assert outcome.files["gsm8k-train"]["dropped"] == {"no answer": 1}
    assert outcome.files["gsm8k-train"]["corrected"] == {"commas taken out": 1}


# ---- duplicates


def test_a_hundredfold_data_set_becomes_one(make, copies, tmp_path):
    rows = [dapo_raw(problem(i), str(i), i) for i in range(9)]
    put(copies, "dapo-math-17k-raw", [row for _ in range(100) for row in rows])
    outcome, _ = make("dapo-math-17k-raw")
    entry = outcome.files["dapo-math-17k-raw"]
    assert (entry["read"], entry["rows"], entry["dropped"]) == (900, 9, {"duplicate": 891})
    prepared = rows_of(tmp_path / "out/dapo-math-17k-raw.parquet")
    assert [row["answer"] for row in prepared] == [str(i) for i in range(9)]
    assert prepared[0]["prompt"] == [{"role": "user", "content": BEFORE + problem(0) + BEHIND}]


def test_a_conversation_is_all_that_the_user_says(make, tmp_path):
    """The last message of several is no problem of its own, and one before it can be an evaluation problem."""

    def talk(*said):
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
        return {"prompt": messages, "answer": "1"}

    held = own(tmp_path, [{"prompt": problem(9), "answer": "1"}], "held.jsonl")
    rows = [talk(problem(1), "7", "Sure?"), talk(problem(2), "7", "Sure?"), talk(problem(1), "8", "Sure?")]
    first = own(tmp_path, [*rows, talk(problem(9), "7", "Sure?"), talk(problem(3))], "first.jsonl")
    second = own(tmp_path, [talk(problem(2), "7", "Sure?"), talk(problem(4), "7", "Sure?")], "second.jsonl")
    outcome, _ = make(first, second, against=(held,))
    assert outcome.files["first"]["dropped"] == {"duplicate": 1, f"holds a problem of {held}": 1}
    assert outcome.files["second"]["dropped"] == {"same problem as in " + first: 1}


def test_the_same_problem_in_another_writing_is_a_duplicate(make, tmp_path):
    texts = ["Find $x+1$ now.", " find  $X + 1$\nnow.", "Find $x-1$ now.", "Find $x+1$ now!"]
    path = own(tmp_path, [{"prompt": text, "answer": "1"} for text in texts])
    outcome, _ = make(path)
    assert [row["extra_info"]["index"] for row in rows_of(tmp_path / "out/own.parquet")] == [0, 2, 3]
    assert outcome.files["own"]["dropped"] == {"duplicate": 1}
    assert outcome.files["own"]["examples"]["duplicate"][0]["of_row"] == 0


def test_of_problems_with_contradicting_answers_none_is_trained_on(make, copies, tmp_path):
    answers = {1: ["5", "5"], 2: ["5", "6"], 3: ["5", "6", "6", "5"], 4: ["4"]}
    rows = [dapo(problem(seed), answer, seed) for seed, each in answers.items() for answer in each]
    put(copies, "dapo-math-17k", rows)
    outcome, _ = make("dapo-math-17k")
    kept = [row["extra_info"]["problem"] for row in rows_of(tmp_path / "out/dapo-math-17k.parquet")]
    assert kept == [problem(1), problem(4)]
    assert outcome.files["dapo-math-17k"]["dropped"] == {"same problem with different answers": 6, "duplicate": 1}


def test_answers_that_only_look_different_do_not_contradict(make, copies):
    answers = [r"\frac{1}{2}", r"$\dfrac{1}{2}$", r"\tfrac{1}{ 2}", r"\left( 1 \right)", "(1)"]
    seeds = [1, 1, 1, 2, 2]
    rows = [math(problem(seed), answer, 5, i) for i, (seed, answer) in enumerate(zip(seeds, answers, strict=True))]
    put(copies, "math-levels-3-5", rows)
    outcome, _ = make("math-levels-3-5")
    assert outcome.files["math-levels-3-5"]["dropped"] == {"duplicate": 3}


def test_a_training_file_does_not_repeat_the_one_before_it(make, copies, tmp_path):
    again = [(300, "0"), (301, "7"), (9, "1"), (409, "1")]
    put(copies, "math-levels-3-5", [math(problem(seed), answer, 5, 0) for seed, answer in again])
    outcome, _ = make("paper")
    assert outcome.files["math-levels-3-5"]["dropped"] == {
        "same problem as in dapo-math-17k": 1,
        "same problem as in dapo-math-17k, with another answer": 1,
        "holds a problem of aime24": 1,
    }


def test_as_published_counts_duplicates_and_keeps_them(make, copies, tmp_path):
    put(copies, "dapo-math-17k", [dapo(problem(1), a, i) for i, a in enumerate(["5", "5", "6"])])
    outcome, _ = make("dapo-math-17k", as_published=True)
    entry = outcome.files["dapo-math-17k"]
    assert (entry["rows"], entry["dropped"]) == (3, {})
    assert entry["kept_though"] == {"duplicate": 1, "same problem with different answers": 1}


def test_nothing_is_dropped_of_an_evaluation_set(make, copies):
    put(copies, "aime24", [aime24(problem(1), "5", i) for i in range(30)])
    outcome, _ = make("aime24")
    assert outcome.files["aime2024"]["rows"] == 30
    assert outcome.files["aime2024"]["kept_though"] == {"duplicate": 29}


@given(st.text(max_size=20), st.data())
def test_same_text_forgets_white_space_and_case_and_nothing_else(text, draw):
    spaced = "".join(c + draw.draw(st.sampled_from(["", " ", "\n", "\t "])) for c in text)
    assert same_text(spaced) == same_text(text)
    assert same_text(text + "+1") != same_text(text + "-1") != same_text(text)


# ---- leaks


def test_a_planted_leak_is_found_however_it_is_written(make, copies, tmp_path):
    written = [
        LEAKED["problem"],
        LEAKED["problem"].replace("$", "").replace(r"\tfrac{9}{2}", r"\dfrac92").upper().replace(r"\OMEGA", r"\omega"),
        "A warm-up. " + problem(50) + " And now: " + LEAKED["problem"],
        # The start alone, without what all such problems end with.
        r"Let \(ABC\) be a triangle with \(AB=5\) and \(BC=\frac{9}{2}\), inscribed in a circle. What is its area?",
    ]
    clean = r"The mean of four numbers is $\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers."
    # The ending is no leak: three evaluation problems have it.
    evaluation = [*(aime24(problem(i), "1", i) for i in range(27)), LEAKED]
    endings = [LEAKED["problem"][LEAKED["problem"].index("which is") :], ""]
    evaluation += [aime24(f"{problem(60 + i)} The result, {endings[0]}", "1", i) for i in range(2)]
    put(copies, "aime24", evaluation)
    rows = [dapo(text, "33", i) for i, text in enumerate([*written, clean, problem(301)])]
    put(copies, "dapo-math-17k", rows)
    outcome, _ = make("dapo-math-17k", against=("aime24",))
    entry = outcome.files["dapo-math-17k"]
    assert entry["dropped"] == {"holds a problem of aime24": 4}
    assert [row["extra_info"]["index"] for row in rows_of(tmp_path / "out/dapo-math-17k.parquet")] == [4, 5]
    shown = entry["examples"]["holds a problem of aime24"][0]
    assert (shown["row"], shown["evaluation_row"], shown["share"]) == (0, 27, 1.0)
    assert LEAKED["problem"].startswith(shown["holds"][:100])


def test_a_short_problem_is_held_by_the_same_words_only():
    leaks = Leaks([("short", ["Find $2^{10}$.", "What is pi?"])])
    assert leaks.find("find 2^10").name == "short"
    assert leaks.find("What is $\\pi$?").row == 1
    assert leaks.find("Find $2^{11}$.") is None
    assert leaks.find("Find $2^{10}$ and then something else of some length, as one does.") is None


def test_runs_that_stand_in_three_problems_say_nothing():
    ending = "where m and n are relatively prime positive integers; find the sum of m and n"
    problems = [f"{problem(i)} It is m over n, {ending}" for i in range(3)]
    assert Leaks([("set", problems[:2])]).find(f"Something else is m over n, {ending}").name == "set"
    assert Leaks([("set", problems)]).find(f"Something else is m over n, {ending}") is None
    assert Leaks([("set", problems)]).find(problems[1]).row == 1


def test_a_repetition_of_a_leak_is_a_leak(make, copies):
    put(copies, "dapo-math-17k", [dapo(LEAKED["problem"], answer, 0) for answer in ("33", "33", "34")])
    outcome = None
    with pytest.raises(UserError, match="of 3 rows none is left") as caught:
        outcome, _ = make("dapo-math-17k", against=("aime24",))
    assert outcome is None
    assert "3 holds a problem of aime24" in str(caught.value)


def test_paper_holds_its_training_rows_against_its_evaluation_sets(make, copies, tmp_path):
    rows = rows_of(copies / PLACES["dapo-math-17k"])
    planted = [problem(5), problem(105), problem(205)]  # of AIME 2024, AIME 2025, AMC 2023
    put(copies, "dapo-math-17k", [*rows, *(dapo(text, "1", 90 + i) for i, text in enumerate(planted))])
    outcome, _ = make("paper")
    assert outcome.files["dapo-math-17k"]["dropped"] == {
        "holds a problem of aime24": 1,
        "holds a problem of aime25": 1,
        "holds a problem of amc23": 1,
    }
    assert outcome.files["math-levels-3-5"]["dropped"] == {"level outside 3 to 5": 8}


def test_against_takes_files_and_knows_the_prepared_ones(make, copies, tmp_path):
    make("aime24")
    (copies / PLACES["aime24"]).unlink()
    path = own(tmp_path, [{"prompt": problem(302), "answer": "1"}], "mine.jsonl")
    put(copies, "dapo-math-17k", [dapo(problem(i), "1", i) for i in (5, 302, 303)])
    outcome, _ = make("dapo-math-17k", against=("aime24", path))
    assert outcome.files["dapo-math-17k"]["dropped"] == {
        "holds a problem of aime24": 1,
        f"holds a problem of {path}": 1,
    }


def test_a_part_of_an_evaluation_set_is_not_taken_for_it(make, copies, tmp_path):
    make("aime24", columns={"size": 3})
    put(copies, "dapo-math-17k", [dapo(problem(i), "1", i) for i in (5, 302)])
    outcome, _ = make("dapo-math-17k", against=("aime24",))
    assert outcome.files["dapo-math-17k"]["dropped"] == {"holds a problem of aime24": 1}


def test_as_published_counts_leaks_and_keeps_them(make, copies):
    put(copies, "dapo-math-17k", [dapo(problem(5), "1", 0)])
    outcome, _ = make("dapo-math-17k", "aime24", as_published=True)
    assert outcome.files["dapo-math-17k"]["kept_though"] == {"holds a problem of aime24": 1}
    assert outcome.files["dapo-math-17k"]["rows"] == 1


def test_who_holds_nothing_against_training_rows_is_told(make):
    _, said = make("dapo-math-17k")
    assert any(line.startswith("training rows are not held against evaluation sets") for line in said)
    _, said = make("paper")
    assert not any(line.startswith("training rows are not held") for line in said)


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
    found = Leaks([("set", problems)]).find(text)
    if best < SHARE:
        assert found is None
    else:
        assert found.share == pytest.approx(best)
        assert found.problem == text if text in distinct else shares[distinct.index(found.problem)] == found.share


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


# ---- lengths


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The lab's, with a chat template; text that it does not know is one token a word."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = lab.tokenizer()
    made.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %} a a a{% endif %}"
    )
    made.save_pretrained(folder)
    return folder


def test_prompts_that_are_too_long_are_dropped_and_counted(make, tmp_path, tokenizer):
    lengths = [3, 12, 13, 14, 30]
    path = own(tmp_path, [{"prompt": " ".join(["a", "b", "0"] * 10)[: 2 * n - 1], "answer": "1"} for n in lengths])
    outcome, _ = make(path, tokenizer=str(tokenizer), max_prompt_tokens=16)
    from transformers import AutoTokenizer

    counter = AutoTokenizer.from_pretrained(tokenizer)
    counts = []
    for row in rows_of(tmp_path / "out/own.parquet"):
        counts.append(len(counter.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)))
    entry = outcome.files["own"]
    assert entry["dropped"] == {"prompt longer than 16 tokens": 2}
    assert entry["prompt_tokens"] == {"median": sorted(counts)[1], "longest": max(counts)}
    assert counts == [6, 15, 16]
    assert [e["tokens"] for e in entry["examples"]["prompt longer than 16 tokens"]] == [17, 33]


def test_long_evaluation_prompts_stay_and_are_warned_of(make, tokenizer):
    outcome, said = make("aime24", tokenizer=str(tokenizer), max_prompt_tokens=5)
    assert outcome.files["aime2024"]["rows"] == 30
    assert "  found and kept: 30 prompt longer than 5 tokens" in said
    assert any("30 rows: prompt longer than 5 tokens; verl will leave them out" in line for line in said)


def test_a_tokenizer_that_cannot_count_is_named(make, tmp_path):
    lab.tokenizer().save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match=r"^--tokenizer .*bare has no chat template"):
        make("aime24", tokenizer=str(tmp_path / "bare"))
    with pytest.raises(UserError, match=r"^--tokenizer .*nothing cannot be loaded: "):
        make("aime24", tokenizer=str(tmp_path / "nothing"))


# ---- counts


def test_counts_that_are_not_the_recorded_ones_are_said_and_written_down(make, tmp_path):
    outcome, said = make("paper")
    wanted = [
        "dapo-math-17k: 40 rows, expected 17,398 (by its card: 14,116 English, 3,282 Chinese)",
        "math-levels-3-5: 20 rows, expected 12,000 (by MATH's 12,500",
        "math-levels-3-5: 12 rows of levels 3 to 5, expected 8,714 to 8,969 (by MATH's",
        "paper: 52 rows to train on, expected 26,112 to 26,367 (by the 102 steps of 256",
    ]
    text = (tmp_path / "out/report.md").read_text()
    for warning in wanted:
        assert any(line.startswith(f"warning: {warning}") for line in said)
        assert f"**Warning**: {warning}" in text
    assert not outcome.files["aime2024"]["warnings"]
    assert len(outcome.warnings) == 1


def test_the_recorded_counts_are_silent(make, copies, monkeypatch):
    monkeypatch.setattr(sources, "SOURCES", sources.SOURCES | {})
    source = dataclasses.replace(sources.SOURCES["math-levels-3-5"], rows=20, kept=(12, 15))
    monkeypatch.setitem(preparation.SOURCES, "math-levels-3-5", source)
    outcome, said = make("math-levels-3-5", strict=True)
    assert outcome.files["math-levels-3-5"]["warnings"] == []
    assert not any("warning" in line for line in said)
    monkeypatch.setitem(preparation.SOURCES, "math-levels-3-5", dataclasses.replace(source, kept=(13, 15)))
    with pytest.raises(UserError, match="12 rows of levels 3 to 5, expected 13 to 15"):
        make("math-levels-3-5", strict=True, force=True)


@pytest.mark.parametrize("count", [29, 31])
def test_one_row_too_few_or_too_many_is_said(make, copies, count):
    put(copies, "aime25", [aime25(problem(i), "1", i) for i in range(count)])
    outcome, _ = make("aime25")
    assert [w.partition(" (")[0] for w in outcome.files["aime2025"]["warnings"]] == [
        f"aime25: {count} rows, expected 30"
    ]


def test_strict_writes_no_file_of_the_wrong_size(make, tmp_path):
    with pytest.raises(
        UserError, match=r"^dapo-math-17k: 40 rows, expected 17,398 .*; --strict takes this for an error"
    ):
        make("paper", strict=True)
    assert sorted(p.name for p in (tmp_path / "out").glob("*.parquet")) == [
        "aime2024.parquet",
        "aime2025.parquet",
        "amc2023.parquet",
    ]
    make("paper")
    with pytest.raises(UserError, match="--strict"):  # a finished file is no excuse
        make("paper", strict=True)


def test_a_part_of_a_data_set_is_not_counted(make, tmp_path):
    outcome, said = make("paper", columns={"size": 5}, strict=True)
    assert [entry["read"] for entry in outcome.files.values()] == [5] * 5
    assert not any("warning" in line for line in said)


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


# ---- the report


def test_the_report_has_hashes_counts_and_examples(make, tmp_path):
    outcome, _ = make("paper")
    report = json.loads((tmp_path / "out/report.json").read_text())
    text = (tmp_path / "out/report.md").read_text()
    assert report["files"] == outcome.files
    for entry in report["files"].values():
        path = tmp_path / "out" / entry["file"]
        rows = rows_of(path)
        assert entry["sha256"] == file_hash(path)
        assert entry["rows"] == len(rows) == entry["read"] - sum(entry["dropped"].values())
        assert entry["rows_sha256"] == preparation.rows_hash(rows)
        assert f"`{entry['sha256']}`" in text
        assert entry["from"]["files"] == {str(path): file_hash(Path(path)) for path in entry["from"]["files"]}
    assert "- 8 x level outside 3 to 5" in text
    assert "was `025`, now `25`" in text
    assert report["groups"]["paper"]["training_rows"] == 52


def test_a_folder_can_be_filled_bit_by_bit(make, tmp_path):
    make("aime24")
    make("amc23")
    assert set(json.loads((tmp_path / "out/report.json").read_text())["files"]) == {"aime2024", "amc2023"}


def test_a_report_that_is_none_is_left_alone(make, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/report.json").write_text('{"mine": 1}')
    with pytest.raises(UserError, match=r"report\.json: 'files' is missing: it is not a report of bandpo data prepare"):
        make("aime24")
    assert (tmp_path / "out/report.json").read_text() == '{"mine": 1}'


# ---- again, and after a kill


def state(folder):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.glob("*.parquet")}


def test_finished_files_are_not_made_again(make, tmp_path):
    make("paper")
    before, report = state(tmp_path / "out"), (tmp_path / "out" / "report.json").read_bytes()
    _, said = make("paper")
    assert state(tmp_path / "out") == before
    assert (tmp_path / "out" / "report.json").read_bytes() == report
    assert sum("is finished" in line for line in said) == 5
    assert sum(line.startswith("warning: ") for line in said) == 4  # what is wrong is said each time
    make("paper", force=True)
    assert {n: b for n, (b, _) in state(tmp_path / "out").items()} == {n: b for n, (b, _) in before.items()}
    assert all(time != before[name][1] for name, (_, time) in state(tmp_path / "out").items())


def made(said):
    return {line.partition(":")[0] for line in said if ": reading " in line}


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({"template": "boxed"}, {"aime24", "aime25", "amc23", "dapo-math-17k", "math-levels-3-5"}),
        ({"as_published": True}, {"aime24", "aime25", "amc23", "dapo-math-17k", "math-levels-3-5"}),
        ({"max_prompt_tokens": 7}, set()),  # without a tokenizer it changes nothing
        ({"against": ("gsm8k-test",)}, {"dapo-math-17k", "math-levels-3-5"}),
    ],
)
def test_what_other_settings_change_is_made_again(make, copies, settings, again):
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    make("paper")
    assert made(make("paper", **settings)[1]) == again


def test_what_changed_or_broke_on_disk_is_made_again(make, copies, tmp_path):
    make("paper")
    put(copies, "amc23", [amc23(problem(500 + i), "1.0", i) for i in range(40)])
    assert made(make("paper")[1]) == {"amc23", "dapo-math-17k", "math-levels-3-5"}
    with (tmp_path / "out/aime2025.parquet").open("ab") as file:
        file.write(b"x")
    assert made(make("paper")[1]) == {"aime25"}
    (tmp_path / "out/math-levels-3-5.parquet").unlink()
    assert made(make("paper")[1]) == {"math-levels-3-5"}
    assert made(make("paper")[1]) == set()
    put(copies, "dapo-math-17k", [dapo(problem(410), "1", 0)])  # which the other training file repeats no more
    assert made(make("paper")[1]) == {"dapo-math-17k", "math-levels-3-5"}


KILLED = """
import json, os, signal, sys
from pathlib import Path
import pyarrow.parquet
from bandpo.data import preparation

def dying(original, count, first=lambda *args: None):
    left = [count]
    def call(*args, **kwargs):
        left[0] -= 1
        if not left[0]:
            first(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    return call

def run(point, count, folder):
    if point == "reading":
        preparation._problem = dying(preparation._problem, count)
    if point == "writing":
        half = lambda table, path, *rest: Path(path).write_bytes(b"PAR1 and then nothing")
        pyarrow.parquet.write_table = dying(pyarrow.parquet.write_table, count, half)
    if point == "replacing":
        Path.replace = dying(Path.replace, count)
    preparation.prepare(preparation.find("paper"), Path(folder), preparation.Settings(copies=Path(sys.argv[1])))

for point, count, folder in json.loads(sys.argv[2]):
    child = os.fork()
    if not child:
        run(point, count, folder)
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
# Where a run dies, at which call, and how many files and entries of the report there are then.
DEATHS = [
    ("reading", 35, 1, 1),
    ("writing", 3, 2, 2),
    ("replacing", 1, 0, 0),  # each file takes three of them: itself and the two reports
    ("replacing", 4, 1, 1),
    ("replacing", 5, 2, 1),
    ("replacing", 6, 2, 1),
    ("replacing", 15, 5, 4),
]


@pytest.mark.slow
def test_a_killed_run_leaves_whole_files_and_goes_on(make, copies, tmp_path):
    make("paper", output=tmp_path / "whole")
    whole = {name: data for name, (data, _) in state(tmp_path / "whole").items()}
    runs = [(point, count, str(tmp_path / f"{point}-{count}")) for point, count, _, _ in DEATHS]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(copies), json.dumps(runs)], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(int(signal.SIGKILL))] * len(runs), done.stderr
    for (_, _, folder), (point, count, files, entries) in zip(runs, DEATHS, strict=True):
        found = state(Path(folder))
        assert len(found) == files, (point, count)
        assert all(data == whole[name] for name, (data, _) in found.items())
        report = Path(folder) / "report.json"
        assert len(json.loads(report.read_text())["files"] if entries else {}) == entries, (point, count)
        _, said = make("paper", output=Path(folder))
        assert len(made(said)) == 5 - entries
        assert {name: data for name, (data, _) in state(Path(folder)).items()} == whole
        assert not [path.name for path in Path(folder).iterdir() if path.name.startswith(".")]


def test_a_folder_that_another_process_prepares_into_is_refused(make, tmp_path):
    with locked(tmp_path / "out" / ".lock"), pytest.raises(UserError, match=r"another process .* is writing to"):
        make("amc23")
    assert not (tmp_path / "out").exists()


# ---- data of one's own


def test_columns_of_ones_own(make, tmp_path):
    rows = [{"question": problem(i), "meta": {"gold": i + 0.5}, "id": "x"} for i in range(3)]
    path = own(tmp_path, rows)
    outcome, _ = make(
        path, columns={"prompt": "question", "answer": "meta.gold", "data_source": "mine", "split": "dev"}
    )
    row = rows_of(tmp_path / "out/own.parquet")[1]
    assert row["prompt"] == [{"role": "user", "content": problem(1)}]
    assert (row["answer"], row["data_source"], row["extra_info"]["split"]) == ("1.5", "mine", "dev")
    assert row["extra_info"]["source"] == path
    assert outcome.files["own"]["warnings"] == []


def test_messages_of_ones_own_stay(make, tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": problem(1)}]
    path = own(tmp_path, [{"prompt": messages, "answer": 3}])
    make(path)
    row = rows_of(tmp_path / "out/own.parquet")[0]
    assert row["prompt"] == messages
    assert row["extra_info"]["problem"] == problem(1)
    with pytest.raises(UserError, match="its problems are chat messages already, so a template has no place"):
        make(path, template="boxed")


def test_integers_of_ones_own_are_put_right_on_request(make, tmp_path):
    path = own(tmp_path, [{"prompt": problem(i), "answer": a} for i, a in enumerate(["007", 3.0, "1,000"])])
    make(path)
    assert [row["answer"] for row in rows_of(tmp_path / "out/own.parquet")] == ["007", "3.0", "1,000"]
    make(path, columns={"integers": True})
    assert [row["answer"] for row in rows_of(tmp_path / "out/own.parquet")] == ["7", "3", "1000"]


def test_rows_without_a_problem_or_an_answer_are_dropped_and_said(make, tmp_path):
    rows = [{"prompt": problem(0), "answer": 1}, {"prompt": " ", "answer": 1}, {"prompt": problem(2), "answer": None}]
    outcome, said = make(own(tmp_path, [*rows, {"prompt": None, "answer": 1}]))
    assert outcome.files["own"]["dropped"] == {"no problem": 2, "no answer": 1}
    assert "warning: " in "".join(said)


@pytest.mark.parametrize("ending", [".csv", ".json", ".jsonl", ".parquet"])
def test_any_kind_of_file_will_do(make, tmp_path, ending):
    path = tmp_path / f"own{ending}"
    if ending == ".csv":
        path.write_text("prompt,answer\nHow many?,007\n")
    elif ending == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["How many?"], "answer": ["007"]}), path)
    else:
        row = {"prompt": "How many?", "answer": "007"}
        path.write_text(json.dumps([row] if ending == ".json" else row))
    make(str(path))
    assert [(r["prompt"][0]["content"], r["answer"]) for r in rows_of(tmp_path / "out/own.parquet")] == [
        ("How many?", "007")
    ]


def test_a_task_of_reasoning_gym(make, tmp_path):
    gym = pytest.importorskip("reasoning_gym")
    outcome, _ = make("reasoning-gym:chain_sum", columns={"size": 7, "options": {"seed": 3, "min_digits": 2}})
    wanted = list(gym.create_dataset("chain_sum", size=7, seed=3, min_digits=2))
    rows = rows_of(tmp_path / "out/chain_sum.parquet")
    assert [(r["prompt"][0]["content"], r["answer"]) for r in rows] == [(w["question"], w["answer"]) for w in wanted]
    assert outcome.files["chain_sum"]["from"]["options"] == {"seed": 3, "min_digits": 2}


# ---- copies on disk, and the hub


@pytest.fixture
def online(monkeypatch):
    """Whatever HF_HUB_OFFLINE says where the tests run."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return monkeypatch


@pytest.mark.parametrize("layout", ["file", "folder", "name", "cache", "org"])
def test_every_layout_of_a_copy_is_found(make, copies, tmp_path, layout):
    original = copies / "openai"
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    put(copies, "gsm8k-train", [gsm8k(problem(4), "4")])
    place = {
        "file": original / "gsm8k/main/test-00000-of-00001.parquet",
        "folder": original / "gsm8k",
        "name": original,
        "org": copies,
        "cache": tmp_path / "hub",
    }[layout]
    if layout == "cache":
        old, new = (tmp_path / "hub/datasets--openai--gsm8k/snapshots" / name for name in ("abc", "def"))
        (new.parent).mkdir(parents=True)
        (original / "gsm8k").rename(new)
        (old / "main").mkdir(parents=True)
        os.utime(old, (1, 1))
    outcome, _ = make("gsm8k-test", copies=place)
    assert outcome.files["gsm8k-test"]["rows"] == 1
    if layout in ("file", "folder"):
        with pytest.raises(UserError, match=r"one file, but|has no folder openai/gsm8k"):
            make("gsm8k-test", "aime24", copies=place)


def test_several_files_of_a_split_are_one(make, copies, tmp_path):
    first = put(copies, "aime25", [aime25(problem(i), "1", i) for i in range(15)])
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([aime25(problem(50 + i), "2", i) for i in range(15)]),
        first.with_name("train-00001-of-00002.parquet"),
    )
    make("aime25")
    assert [row["answer"] for row in rows_of(tmp_path / "out/aime2025.parquet")] == ["1"] * 15 + ["2"] * 15


def test_a_failure_of_the_network_is_one_line_that_says_what_to_do(make, online):
    def unreachable(*args, **kwargs):
        raise ConnectionError("[Errno -2] Name or service\nnot known")

    online.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    with pytest.raises(UserError) as caught:
        make("amc23", copies=None)
    text = str(caught.value)
    assert text.startswith(
        "math-ai/amc23 cannot be loaded from the Hugging Face hub ([Errno -2] Name or service not known)."
    )
    assert "hf download math-ai/amc23 --repo-type dataset --local-dir copies/math-ai/amc23" in text
    assert text.endswith("--from copies")
    assert "\n" not in text


@pytest.mark.parametrize("stream", [False, True])
def test_the_hub_is_read_through_datasets(copies, tmp_path, monkeypatch, stream):
    """As far as that goes without a network: datasets takes a folder for a data set of the hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    folder = copies / "openai/gsm8k"
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/test-*\n---\n"
    )
    rows, commit = sources.hub_rows(str(folder), "main", "test", stream=stream)
    assert list(rows) == [gsm8k(problem(3), "-3")]
    assert commit is None
    with pytest.raises(UserError, match="cannot be loaded from the Hugging Face hub"):
        sources.hub_rows(str(folder), "socratic", "test", stream=stream)


@pytest.mark.parametrize(("name", "streamed"), [("amc23", False), ("dapo-math-17k-raw", True)])
def test_the_commit_is_asked_for_first_and_then_read(online, make, tmp_path, name, streamed):
    asked = {}

    class Info:
        sha = "c0ffee"

    online.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, hub, **kwargs: Info)

    def load(hub, config, *, split, streaming, revision):
        asked.update(hub=hub, config=config, split=split, streaming=streaming, revision=revision)
        return iter([{**dapo_raw(problem(i), "1", i), **amc23(problem(i), "1.0", i)} for i in range(40)])

    online.setattr(datasets, "load_dataset", load)
    outcome, _ = make(name, copies=None)
    source = sources.SOURCES[name]
    wanted = {"hub": source.hub, "config": None, "split": source.split, "streaming": streamed, "revision": "c0ffee"}
    assert asked == wanted
    assert outcome.files[source.file]["from"]["commit"] == "c0ffee"
    assert "commit c0ffee" in (tmp_path / "out/report.md").read_text()


def test_offline_the_cache_is_read_and_nothing_is_asked(monkeypatch, make):
    def asked(*args, **kwargs):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", asked)
    rows = [amc23(problem(i), "1.0", i) for i in range(40)]
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, revision, **kwargs: rows)
    outcome, _ = make("amc23", copies=None)
    assert outcome.files["amc2023"]["from"]["commit"] is None


def test_a_connection_that_breaks_off_leaves_no_file(monkeypatch, make, tmp_path):
    def broken(*args, **kwargs):
        yield amc23(problem(0), "1.0", 0)
        raise TimeoutError("read timed out")

    monkeypatch.setattr(preparation, "hub_rows", lambda *a, **k: (sources._hub_guarded(broken(), a[0], "X"), "c0ffee"))
    with pytest.raises(UserError, match=r"math-ai/amc23 cannot be loaded .*read timed out"):
        make("amc23", copies=None)
    assert not (tmp_path / "out").exists()


# ---- evaluation sets


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
    assert again.sha256 != found.sha256 == evaluation_set("aime24", copies=copies).sha256
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
    assert found.warnings == ["gsm8k-test: 1 rows, expected 1,319 (by its paper and card)"]


def test_an_evaluation_set_of_ones_own(tmp_path):
    path = own(tmp_path, [{"q": "1+1?", "a": 2}, {"q": "1+2?", "a": 3}])
    found = evaluation_set(path, prompt="q", answer="a", template="Q: {prompt}")
    assert [row["messages"][0]["content"] for row in found.rows] == ["Q: 1+1?", "Q: 1+2?"]
    assert [row["answer"] for row in found.rows] == ["2", "3"]
    with pytest.raises(UserError, match="row 2 has no answer"):
        evaluation_set(own(tmp_path, [{"prompt": "x", "answer": 1}, {"prompt": "x", "answer": None}]))
    with pytest.raises(UserError, match="paper is 3 evaluation sets"):
        evaluation_set("paper")


# ---- mistakes


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("aime2024", {}, r"^no data set 'aime2024', did you mean 'aime24'\?; known are paper, gsm8k, dapo-math-17k, "),
        ("aime24", {"prompt": "x"}, r"^--prompt has no place with aime24"),
        ("paper", {"evaluation": True}, r"^--evaluation has no place with paper"),
        ("aime24", {"options": {"a": 1}}, r"^--option has no place with aime24"),
        ("reasoning-gym:chain_sum", {"answer": "x"}, r"^--answer has no place with reasoning-gym:chain_sum"),
        ("reasoning-gym:no_such", {}, r"^task 'no_such' with options \{'seed': 0\}: "),
        ("nothing.jsonl", {}, r"^'nothing\.jsonl' is no file$"),
    ],
)
def test_a_name_that_will_not_do_is_explained(make, name, columns, message):
    with pytest.raises(UserError, match=message):
        make(name, columns=columns)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "own.jsonl has no rows"),
        ([{"question": "x", "answer": 1}], "column 'prompt' (--prompt) is not there; row 1 has ['question', 'answer']"),
        ([{"prompt": "x", "gold": 1}], "column 'answer' (--answer) is not there"),
        ([{"prompt": 5, "answer": 1}], "row 1: 'prompt' must be text or messages, got 5"),
        ([{"prompt": "x", "answer": [1]}], "row 1: 'answer' must be text or a number, got [1]"),
        ([{"prompt": ["x"], "answer": 1}], "row 1: 'prompt' must be text or messages"),
        ([{"prompt": "", "answer": 1}], "of 1 rows none is left (1 no problem)"),
        ([{"prompt": "x", "answer": float("nan")}], "of 1 rows none is left (1 no answer)"),
        ([{"prompt": "a \ud800", "answer": 1}], "row 1: '\\ud800' is half a character"),
        (
            [{"prompt": [{"role": r, "content": c} for r, c in (("system", "\udfff"), ("user", "x"))], "answer": 1}],
            "half",
        ),
    ],
)
def test_rows_that_will_not_do_are_named(make, tmp_path, rows, message):
    with pytest.raises(UserError) as caught:
        make(own(tmp_path, rows))
    assert message in str(caught.value)
    assert "own.jsonl" in str(caught.value)


def test_levels_must_be_numbers(make, copies):
    put(copies, "math-levels-3-5", [math(problem(1), "1", "Level 5", 0)])
    with pytest.raises(UserError, match="math-levels-3-5: row 1: 'level' must be a whole number, got 'Level 5'"):
        make("math-levels-3-5")


def test_other_mistakes(make, copies, tmp_path):
    with pytest.raises(UserError, match=r"template must be one of .* or a text with"):
        make("aime24", template="no place")
    with pytest.raises(UserError, match=r"--from .*nowhere does not exist"):
        make("aime24", copies=tmp_path / "nowhere")
    (copies / PLACES["aime24"]).unlink()
    with pytest.raises(UserError, match=r"no files train\*\.parquet .* of HuggingFaceH4/aime_2024 in "):
        make("aime24")
    (tmp_path / "a").mkdir()
    one, other = own(tmp_path, [{"prompt": "x", "answer": 1}]), own(tmp_path / "a", [{"prompt": "x", "answer": 1}])
    make("aime25")
    with pytest.raises(UserError, match=r"aime2025\.parquet would be written over itself"):
        make(str(tmp_path / "out/aime2025.parquet"))
    with pytest.raises(UserError, match=r"two of the data sets would be written to own\.parquet"):
        make(one, other)


# ---- the command line


def test_the_command_prepares_and_says_what_it_did(copies, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["data", "prepare", "aime24", "math-levels-3-5", "-o", str(out), "--from", str(copies)]
    assert main([*command, "--template", "plain"]) == 0
    said = capsys.readouterr().out
    assert f"math-levels-3-5: {out / 'math-levels-3-5.parquet'}, 12 rows of 20" in said
    assert "  dropped: 8 level outside 3 to 5" in said
    assert "  put right: 11 zeros before an integer taken off" in said
    assert said.endswith(f"{out / 'report.md'}\n")
    assert main([*command, "--template", "plain", "--strict"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: math-levels-3-5: 20 rows, expected 12,000")
    assert error.count("\n") == 1


def test_the_command_takes_columns_and_options(tmp_path, capsys):
    pytest.importorskip("reasoning_gym")
    path = own(tmp_path, [{"q": problem(1), "a": "08"}])
    out = str(tmp_path / "out")
    columns = ["--prompt", "q", "--answer", "a", "--integers", "--evaluation", "--data-source", "aime_mine"]
    assert main(["data", "prepare", path, "-o", out, *columns]) == 0
    row = rows_of(tmp_path / "out/own.parquet")[0]
    assert (row["answer"], row["data_source"]) == ("8", "aime_mine")
    task = ["data", "prepare", "reasoning-gym:chain_sum", "-o", out, "--size", "3"]
    assert main([*task, "--option", "min_terms=2", "--option", "max_terms=2"]) == 0
    assert all(row["answer"] for row in rows_of(tmp_path / "out/chain_sum.parquet"))
    capsys.readouterr()
    assert main([*task, "--option", "min_terms"]) == 2
    assert "must be KEY=VALUE, got 'min_terms'" in capsys.readouterr().err


def test_the_command_lists_what_is_known(capsys):
    assert main(["data", "list"]) == 0
    said = capsys.readouterr().out
    for name in [*sources.SOURCES, *sources.GROUPS]:
        assert re.search(rf"^{name} +", said, re.M)
    assert "17,398 rows" in said
    assert "licence: MIT" in said


def test_progress_is_shown_while_rows_are_read(copies, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", iter(range(0, 10**6, 4)).__next__)
    prepare(find("aime24"), tmp_path / "out", Settings(copies=copies))
    assert capsys.readouterr().err.splitlines()[:2] == ["aime24: 2 rows", "aime24: 5 rows"]
