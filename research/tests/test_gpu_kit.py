"""research/measurements/gpu.py, whole on a CPU with tiny sizes; and its budget of time and its failures."""

from __future__ import annotations

import subprocess
import sys

import pytest
import recipe
from scripts import ROOT, load

from research.csv_rows import read_rows as rows


def kit(out, *arguments):
    command = [sys.executable, "-m", "research.measurements.gpu", "--device", "cpu", "--tiny", "--out", str(out)]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_part_gives_its_rows_once(tmp_path):
    recipe.make(tmp_path)
    arguments = tmp_path / "gpu.csv", "--minutes", "10", "--smollm2", str(tmp_path / "model")
    done = kit(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(tmp_path / "gpu.csv")
    parts = ["bounds", "loss", "compiled", "copy", "memory", "lab", "smollm2"]
    assert list(dict.fromkeys(row["part"] for row in found)) == parts
    numbers = {(row["case"], row["measure"]): row["value"] for row in found}
    for (case, measure), value in numbers.items():
        if "CPU" in measure:  # it is one
            assert float(value) == 0, (case, measure)
    assert 0 < float(numbers["reverse_kl float32", "high, B"]) <= 4
    assert 0 < float(numbers["reverse_kl float64", "relative error by the oracle"]) < 1e-9
    assert {row["case"] for row in found if row["measure"] == "waits" and row["value"] == "1"} == {"band-entropy"}
    assert float(numbers["storm band-kl", "seconds"]) > 0
    assert float(numbers["no clip", "clipped"]) == 0
    # Another start finds them all.
    assert kit(*arguments).stdout.splitlines() == [f"rows: {tmp_path / 'gpu.csv'}"]
    assert rows(tmp_path / "gpu.csv") == found


@pytest.mark.slow
def test_a_case_whose_time_is_over_is_stopped_and_named(tmp_path):
    done = kit(tmp_path / "gpu.csv", "--minutes", "0.01", "--only", "lab")  # it takes longer to load TRL
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "lab, storm band-kl: stopped", "did not fit: lab, storm band-kl", f"rows: {tmp_path / 'gpu.csv'}"
    ]  # fmt: skip
    assert rows(tmp_path / "gpu.csv") == []


def test_a_failure_is_a_row_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    gpu = load("research/measurements/gpu.py")
    answers, asked, ended = {}, [], []

    class Worker:
        def __init__(self, on):
            pass

        def ask(self, part, case, seconds):
            asked.append((part, case))
            return answers.get(case, [gpu.Row("ms", 1.5)])

        def end(self):
            ended.append(len(asked))

    monkeypatch.setattr(gpu, "Worker", Worker)
    command = ["gpu.py", "--device", "cpu", "--tiny", "--only", "loss", "copy", "--out", str(tmp_path / "gpu.csv")]
    monkeypatch.setattr("sys.argv", command)
    answers |= {"grpo": "RuntimeError: CUDA error", "band-tv": [gpu.Row("waits", 1, 0, "why")]}
    assert gpu.main() == 1
    assert ended == [1, len(asked)]  # after the failure, and at last
    found = {row["case"]: row for row in rows(tmp_path / "gpu.csv")}
    assert (found["grpo"]["measure"], found["grpo"]["note"]) == ("error", "RuntimeError: CUDA error")
    assert found["bounds kl"]["value"] == "1.5"
    said = capsys.readouterr().out
    assert "WRONG: loss, grpo: error  RuntimeError: CUDA error" in said
    assert "WRONG: loss, band-tv: waits 1 why" in said
    # What failed is tried again, and nothing else; a number that is not one is beyond every limit.
    asked.clear()
    answers["grpo"] = [gpu.Row("loss", float("nan"), 1.0)]
    assert gpu.main() == 1
    assert asked == [("loss", "grpo")]
    asked.clear()
    assert gpu.main() == 0
    assert asked == []


def test_a_process_that_ends_is_an_error(tmp_path):
    gpu = load("research/measurements/gpu.py")
    worker = object.__new__(gpu.Worker)
    context = gpu.multiprocessing.get_context("spawn")
    worker.pipe, theirs = context.Pipe()
    worker.process = context.Process(target=sys.exit, args=(3,))
    worker.process.start()
    theirs.close()
    assert worker.ask("loss", "grpo", 60) == "the process ended with status 3"


def test_a_part_that_is_not_there_is_refused(monkeypatch, capsys):
    gpu = load("research/measurements/gpu.py")
    monkeypatch.setattr("sys.argv", ["gpu.py", "--device", "cpu", "--only", "graph"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "--only takes bounds, loss, compiled, copy, memory, lab here, got graph" in capsys.readouterr().err
