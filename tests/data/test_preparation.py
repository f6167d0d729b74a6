"""From published data sets to files that are trained on: the files of the paper, killed runs, data of one's own."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import recipe
import yaml
from published import BEFORE, BEHIND, PLACES, dapo, dapo_raw, math, own, problem, put, rows_of

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.config.recipe import build
from bandpo_runs.data.preparation import account_of
from bandpo_runs.data.readers import file_hash
from bandpo_runs.data.rows import rows_and_reward
from bandpo_runs.files.writing import locked

# ---- the paper's files


def test_paper_gives_the_five_files_that_its_recipes_read(make, tmp_path):
    make("paper")
    base = yaml.safe_load((Path(__file__).parents[2] / "recipes/paper/base.yaml").read_text())["data"]
    wanted = [Path(name) for name in [*base["train_files"], *base["val_files"]]]
    assert {path.parent for path in wanted} == {Path("data/paper")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*(path.name for path in wanted), "report.md"}


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
        "problem": problem(402),
        "source": "nlile/hendrycks-MATH-benchmark",
    }


def test_a_run_on_trl_reads_the_file_as_it_is(make, tmp_path):
    make("dapo-math-17k")
    node = recipe.node(tmp_path, tmp_path / "run", rounds=10, reward="exact")
    rows, _, _ = rows_and_reward(
        build({**node, "data": {"source": "file", "path": str(tmp_path / "out/dapo-math-17k.parquet")}})
    )
    by_problem = {row["prompt"][0]["content"]: row["answer"] for row in rows}
    assert by_problem[BEFORE + problem(305) + BEHIND] == "5"
    assert rows[0]["extra_info"]["problem"] in rows[0]["prompt"][0]["content"]  # other columns go to the reward


# ---- which rows make a file


def test_a_hundredfold_data_set_becomes_one(make, copies, tmp_path):
    rows = [dapo_raw(problem(i), str(i), i) for i in range(9)]
    put(copies, "dapo-math-17k-raw", [row for _ in range(100) for row in rows])
    outcome, _ = make("dapo-math-17k-raw")
    entry = outcome["dapo-math-17k-raw"]
    assert (entry["read"], entry["rows"], entry["dropped"]) == (900, 9, {"duplicate": 891})
    prepared = rows_of(tmp_path / "out/dapo-math-17k-raw.parquet")
    assert [row["answer"] for row in prepared] == [str(i) for i in range(9)]
    assert prepared[0]["prompt"] == [{"role": "user", "content": BEFORE + problem(0) + BEHIND}]


def test_a_conversation_is_all_that_the_user_says(make, tmp_path):
    """The last message of several is not a problem of its own, and one before it can be an evaluation problem."""

    def talk(*message):
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(message)]
        return {"prompt": messages, "answer": "1"}

    held = own(tmp_path, [{"prompt": problem(9), "answer": "1"}], "held.jsonl")
    rows = [talk(problem(1), "7", "Sure?"), talk(problem(2), "7", "Sure?"), talk(problem(1), "8", "Sure?")]
    first = own(tmp_path, [*rows, talk(problem(9), "7", "Sure?"), talk(problem(3))], "first.jsonl")
    second = own(tmp_path, [talk(problem(2), "7", "Sure?"), talk(problem(4), "7", "Sure?")], "second.jsonl")
    outcome, _ = make(first, second, against=(held,))
    assert outcome["first"]["dropped"] == {"duplicate": 1, f"holds a problem of {held}": 1}
    assert outcome["second"]["dropped"] == {"same problem as in " + first: 1}


def test_the_same_problem_in_another_writing_is_a_duplicate(make, tmp_path):
    texts = ["Find $x+1$ now.", " find  $X + 1$\nnow.", "Find $x-1$ now.", "Find $x+1$ now!"]
    path = own(tmp_path, [{"prompt": text, "answer": "1"} for text in texts])
    outcome, _ = make(path)
    assert [row["extra_info"]["index"] for row in rows_of(tmp_path / "out/own.parquet")] == [0, 2, 3]
    assert outcome["own"]["dropped"] == {"duplicate": 1}
    assert outcome["own"]["examples"]["duplicate"][0].endswith("of row 0")


def test_of_problems_with_contradicting_answers_none_is_trained_on(make, copies, tmp_path):
    answers = {1: ["5", "5"], 2: ["5", "6"], 3: ["5", "6", "6", "5"], 4: ["4"]}
    rows = [dapo(problem(seed), answer, seed) for seed, each in answers.items() for answer in each]
    put(copies, "dapo-math-17k", rows)
    outcome, _ = make("dapo-math-17k")
    rest = [row["extra_info"]["problem"] for row in rows_of(tmp_path / "out/dapo-math-17k.parquet")]
    assert rest == [problem(1), problem(4)]
    assert outcome["dapo-math-17k"]["dropped"] == {"same problem with different answers": 6, "duplicate": 1}


def test_answers_that_only_look_different_do_not_contradict(make, copies):
    answers = [r"\frac{1}{2}", r"$\dfrac{1}{2}$", r"\tfrac{1}{ 2}", r"\left( 1 \right)", "(1)"]
    seeds = [1, 1, 1, 2, 2]
    rows = [math(problem(seed), answer, 5, i) for i, (seed, answer) in enumerate(zip(seeds, answers, strict=True))]
    put(copies, "math-levels-3-5", rows)
    outcome, _ = make("math-levels-3-5")
    assert outcome["math-levels-3-5"]["dropped"] == {"duplicate": 3}


def test_a_training_file_does_not_repeat_the_one_before_it(make, copies, tmp_path):
    again = [(300, "0"), (301, "7"), (9, "1"), (409, "1")]
    put(copies, "math-levels-3-5", [math(problem(seed), answer, 5, 0) for seed, answer in again])
    outcome, _ = make("paper")
    assert outcome["math-levels-3-5"]["dropped"] == {
        "same problem as in dapo-math-17k": 2,
        "holds a problem of aime24": 1,
    }


def test_as_published_counts_duplicates_and_keeps_them(make, copies, tmp_path):
    put(copies, "dapo-math-17k", [dapo(problem(1), a, i) for i, a in enumerate(["5", "5", "6"])])
    entry = make("dapo-math-17k", as_published=True)[0]["dapo-math-17k"]
    assert (entry["rows"], entry["dropped"]) == (3, {})
    assert entry["kept_though"] == {"duplicate": 1, "same problem with different answers": 1}


def test_of_an_evaluation_set_only_what_cannot_be_asked_or_graded_is_dropped(make, tmp_path):
    answers = ["1", "1", "2", "proof", "", ["3", "4"]]
    rows = [{"prompt": problem(1), "answer": answer} for answer in answers]
    outcome, _ = make(own(tmp_path, [*rows, {"prompt": "", "answer": "1"}]), columns={"evaluation": True})
    gone = {"no answer": 1, "answer has several values, where one is expected": 1, "no problem": 1}
    assert (outcome["own"]["rows"], outcome["own"]["dropped"]) == (4, gone)
    assert outcome["own"]["kept_though"].items() >= {"duplicate": 1, "same problem with different answers": 2}.items()


# ---- the report


def test_the_report_has_hashes_counts_and_examples(make, tmp_path):
    outcome, _ = make("paper")
    text = (tmp_path / "out/report.md").read_text()
    for name, account in outcome.items():
        path = tmp_path / f"out/{name}.parquet"
        assert account_of(path) == account
        rows = rows_of(path)
        assert account["rows"] == len(rows) == account["read"] - sum(account["dropped"].values())
        assert f"`{file_hash(path)}`" in text
        assert account["from"]["files"] == {str(path): file_hash(Path(path)) for path in account["from"]["files"]}
    assert "- 8 x level outside 3 to 5" in text
    assert "was `025`, now `25`" in text


def test_a_folder_can_be_filled_bit_by_bit(make, tmp_path):
    make("aime24")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "out/foreign.parquet")  # which is left alone
    make("amc23")
    assert re.findall(r"^## (.*)", (tmp_path / "out/report.md").read_text(), re.M) == [
        "aime2024.parquet",
        "amc2023.parquet",
    ]


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
        assert len(state(folder)) == files
        assert state(folder).items() <= whole.items()
        make("paper", output=Path(folder))
        assert state(folder) == whole
        assert not [path.name for path in Path(folder).iterdir() if path.name.startswith(".")]


# ---- other data


def test_other_columns(make, tmp_path):
    rows = [{"question": problem(i), "meta": {"gold": i + 0.5}, "id": "x"} for i in range(3)]
    path = own(tmp_path, rows)
    outcome, _ = make(path, columns={"prompt": "question", "answer": "meta.gold"})
    row = rows_of(tmp_path / "out/own.parquet")[1]
    assert row["prompt"] == [{"role": "user", "content": problem(1)}]
    assert (row["answer"], row["data_source"]) == ("1.5", "math_dapo")
    assert row["extra_info"]["source"] == path
    assert outcome["own"]["warnings"] == []


def test_messages_stay(make, tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": problem(1)}]
    path = own(tmp_path, [{"prompt": messages, "answer": 3}])
    make(path)
    row = rows_of(tmp_path / "out/own.parquet")[0]
    assert row["prompt"] == messages
    assert row["extra_info"]["problem"] == problem(1)
    with pytest.raises(UserError, match="its problems are chat messages already, so a template has no place"):
        make(path, template="boxed")


# ---- mistakes


def test_other_mistakes(make, copies, tmp_path):
    with pytest.raises(UserError, match=r"template must be one of .* or a text with"):
        make("aime24", template="no place")
    (copies / PLACES["aime24"]).unlink()
    with pytest.raises(UserError, match=r"no files train\*\.parquet .* in .*/HuggingFaceH4/aime_2024; --from takes a"):
        make("aime24")
    make("aime25")
    with pytest.raises(UserError, match=r"aime2025\.parquet would be written over itself"):
        make(str(tmp_path / "out/aime2025.parquet"))
    with pytest.raises(UserError, match=r"two data sets would be written to aime2025\.parquet"):
        make("aime25", "aime25")


# ---- the command line


def test_the_command_prepares_and_says_what_it_did(copies, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["data", "prepare", "aime24", "math-levels-3-5", "-o", str(out), "--from", str(copies)]
    assert main([*command, "--template", "plain"]) == 0
    message = capsys.readouterr().out
    assert f"math-levels-3-5: {out / 'math-levels-3-5.parquet'}, 12 rows of 20" in message
    assert "  dropped: 8 level outside 3 to 5" in message
    assert "  put right: 11 zeros before an integer taken off" in message
    assert "  checked: 0 rows with a problem of aime24" in message
    assert "Checked:\n\n- 0 x rows with a problem of aime24\n" in (out / "report.md").read_text()
    assert message.endswith(f"{out / 'report.md'}\n")


def test_one_schema_for_all_files_so_that_they_can_be_laid_together(make, tmp_path):
    """As verl does with the files of a list; the real ones have structs with different fields."""
    make("paper")
    paths = sorted((tmp_path / "out").glob("*.parquet"))
    parts = [datasets.Dataset(pyarrow.parquet.read_table(path)) for path in paths]
    assert all(part.features == parts[0].features for part in parts)
    together = datasets.concatenate_datasets(parts)
    assert len(together) == 30 + 30 + 40 + 40 + 12
    assert set(together.column_names) >= {"data_source", "prompt", "ability", "reward_model", "extra_info", "answer"}


def test_a_folder_that_another_process_prepares_into_is_refused(make, tmp_path):
    with locked(tmp_path / "out" / ".lock"), pytest.raises(UserError, match=r"another process is writing to"):
        make("amc23")
    assert not (tmp_path / "out").exists()
