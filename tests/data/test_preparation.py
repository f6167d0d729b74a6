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
from published import BEFORE, BEHIND, PLACES, amc23, dapo, gsm8k, own, problem, put, rows_of

from bandpo.errors import UserError
from bandpo_runs import progress
from bandpo_runs.cli import main
from bandpo_runs.config.recipe import build
from bandpo_runs.data.preparation import Settings, account_of, prepare
from bandpo_runs.data.readers import file_hash
from bandpo_runs.data.rows import rows_and_reward
from bandpo_runs.data.sources import find
from bandpo_runs.files.locks import locked

# ---- the paper's files


def test_paper_gives_the_five_files_that_its_recipes_read(make, tmp_path):
    make("paper")
    base = recipe_data()
    wanted = {Path(name).name for name in [*base["train_files"], *base["val_files"]]}
    assert {path.name for path in (tmp_path / "out").glob("*.parquet")} == wanted
    assert {Path(name).parent for name in [*base["train_files"], *base["val_files"]]} == {Path("data/paper")}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted([*wanted, "report.md"])


def recipe_data():
    import yaml

    return yaml.safe_load((Path(__file__).parents[2] / "recipes" / "paper" / "base.yaml").read_text())["data"]


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


# ---- again, and after a kill


def state(folder):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.glob("*.parquet")}


def test_finished_files_are_not_made_again(make, tmp_path):
    make("paper")
    before, report = state(tmp_path / "out"), (tmp_path / "out/report.md").read_bytes()
    _, said = make("paper")
    assert state(tmp_path / "out") == before
    assert (tmp_path / "out/report.md").read_bytes() == report
    assert sum("is finished" in line for line in said) == 5
    assert sum(line.startswith("warning: ") for line in said) == 3  # what is wrong is said each time


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
from bandpo_runs.data import preparation, selection
from bandpo_runs.data.sources import find

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
        selection.problem_of = dying(selection.problem_of, count)
    if point == "writing":
        half = lambda table, path, *rest: Path(path).write_bytes(b"PAR1 and then nothing")
        pyarrow.parquet.write_table = dying(pyarrow.parquet.write_table, count, half)
    if point == "replacing":
        Path.replace = dying(Path.replace, count)
    preparation.prepare(find("paper"), Path(folder), preparation.Settings(copies=Path(sys.argv[1])))

for point, count, folder in json.loads(sys.argv[2]):
    child = os.fork()
    if not child:
        run(point, count, folder)
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
# Where a run dies, at which call, and how many files there are then.
DEATHS = [("reading", 35, 1), ("writing", 3, 2), ("replacing", 1, 0), ("replacing", 4, 3), ("replacing", 6, 5)]


@pytest.mark.slow
def test_a_killed_run_leaves_whole_files_and_goes_on(make, copies, tmp_path):
    make("paper", output=tmp_path / "whole")
    whole = {name: data for name, (data, _) in state(tmp_path / "whole").items()}
    runs = [(point, count, str(tmp_path / f"{point}-{count}")) for point, count, _ in DEATHS]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(copies), json.dumps(runs)], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(int(signal.SIGKILL))] * len(runs), done.stderr
    for (_, _, folder), (point, count, files) in zip(runs, DEATHS, strict=True):
        found = state(Path(folder))
        assert len(found) == files, (point, count)
        assert all(data == whole[name] for name, (data, _) in found.items())
        _, said = make("paper", output=Path(folder))
        assert len(made(said)) == 5 - files
        assert {name: data for name, (data, _) in state(Path(folder)).items()} == whole
        assert not [path.name for path in Path(folder).iterdir() if path.name.startswith(".")]


def test_a_folder_that_another_process_prepares_into_is_refused(make, tmp_path):
    with locked(tmp_path / "out" / ".lock"), pytest.raises(UserError, match=r"another process is writing to"):
        make("amc23")
    assert not (tmp_path / "out").exists()


# ---- data of one's own


def test_columns_of_ones_own(make, tmp_path):
    rows = [{"question": problem(i), "meta": {"gold": i + 0.5}, "id": "x"} for i in range(3)]
    path = own(tmp_path, rows)
    outcome, _ = make(path, columns={"prompt": "question", "answer": "meta.gold", "split": "dev"})
    row = rows_of(tmp_path / "out/own.parquet")[1]
    assert row["prompt"] == [{"role": "user", "content": problem(1)}]
    assert (row["answer"], row["data_source"], row["extra_info"]["split"]) == ("1.5", "math_dapo", "dev")
    assert row["extra_info"]["source"] == path
    assert outcome["own"]["warnings"] == []


def test_messages_of_ones_own_stay(make, tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": problem(1)}]
    path = own(tmp_path, [{"prompt": messages, "answer": 3}])
    make(path)
    row = rows_of(tmp_path / "out/own.parquet")[0]
    assert row["prompt"] == messages
    assert row["extra_info"]["problem"] == problem(1)
    with pytest.raises(UserError, match="its problems are chat messages already, so a template has no place"):
        make(path, template="boxed")


def test_rows_without_a_problem_or_an_answer_are_dropped_and_said(make, tmp_path):
    rows = [{"prompt": problem(0), "answer": 1}, {"prompt": " ", "answer": 1}, {"prompt": problem(2), "answer": None}]
    outcome, said = make(own(tmp_path, [*rows, {"prompt": None, "answer": 1}]))
    assert outcome["own"]["dropped"] == {"no problem": 2, "no answer": 1}
    assert "warning: " in "".join(said)


# ---- mistakes


def test_other_mistakes(make, copies, tmp_path):
    with pytest.raises(UserError, match=r"template must be one of .* or a text with"):
        make("aime24", template="no place")
    with pytest.raises(
        UserError, match=r"no files train\*\.parquet .* in .*nowhere/HuggingFaceH4/aime_2024; --from takes a"
    ):
        make("aime24", copies=tmp_path / "nowhere")
    (copies / PLACES["aime24"]).unlink()
    with pytest.raises(UserError, match=r"no files train\*\.parquet .* in .*/HuggingFaceH4/aime_2024; --from"):
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


def test_the_command_takes_columns_and_options(tmp_path, capsys):
    pytest.importorskip("reasoning_gym")
    path = own(tmp_path, [{"q": problem(1), "a": "08"}])
    out = str(tmp_path / "out")
    columns = ["--prompt", "q", "--answer", "a", "--evaluation"]
    assert main(["data", "prepare", path, "-o", out, *columns]) == 0
    assert rows_of(tmp_path / "out/own.parquet")[0]["answer"] == "08"
    task = ["data", "prepare", "reasoning-gym:chain_sum", "-o", out, "--size", "3"]
    assert main([*task, "--option", "min_terms=2", "--option", "max_terms=2"]) == 0
    assert all(row["answer"] for row in rows_of(tmp_path / "out/chain_sum.parquet"))
    capsys.readouterr()
    assert main([*task, "--option", "min_terms"]) == 2
    assert "must be KEY=VALUE, got 'min_terms'" in capsys.readouterr().err


def test_progress_is_shown_while_rows_are_read(copies, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", iter(range(0, 10**6, 4)).__next__)
    prepare(find("aime24"), tmp_path / "out", Settings(copies=copies))
    assert capsys.readouterr().err.splitlines()[:2] == ["aime24: 2 rows", "aime24: 5 rows"]
