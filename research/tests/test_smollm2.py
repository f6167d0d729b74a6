"""benchmarks/smollm2.py: what its rows say of runs, here of a tiny model, and what the summary makes of them."""

from __future__ import annotations

import csv
import itertools
import json
import statistics

import pytest
import recipe
import yaml
from scripts import load

smollm2 = load("benchmarks/smollm2.py")


def of_odd_length(completions, answer, **columns):
    """A reward that a model without any skill earns now and then; all answers to a question come together."""
    assert all(len([*same]) % 4 == 0 for _, same in itertools.groupby(answer))
    return [float(len(text) % 2) for text in completions]


def no_run(*arguments, **options):
    raise AssertionError("a run")


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "CSV", tmp_path / "smollm2.csv")
    monkeypatch.setattr(smollm2, "SUMMARY", tmp_path / "summary.csv")
    return smollm2.read


def test_a_run_gives_its_rows_once(rows, tmp_path, monkeypatch):
    home = recipe.make(tmp_path)
    node = recipe.node(
        home, tmp_path / "run", rounds=2, reward="test_smollm2:of_odd_length", data={"eval_size": 5},
        trust_region={"type": "clip", "eps_low": 0.02, "eps_high": 1.0},
    )  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(node))
    command = ["smollm2.py", str(tmp_path / "recipe.yaml"), "--seeds", "0", "3", "--set", "trainer.learning_rate=0.001"]
    monkeypatch.setattr("sys.argv", command)
    smollm2.main()
    found = rows()
    assert [(row["rule"], row["seed"], row["measure"]) for row in found] == [
        ("Clip 0.02/1.0", seed, name) for seed in ("0", "3") for name in ("right before", "right after", "mean reward")
    ]
    assert {(row["rounds"], row["completions"], row["learning_rate"]) for row in found} == {("2", "16", "0.001")}
    assert len({row["settings"] for row in found}) == 1
    for before, after, trained in (found[:3], found[3:]):
        assert before["value"] == found[0]["value"]
        for row in (before, after):
            assert 0 <= float(row["low"]) < float(row["value"]) < float(row["high"]) <= 1
            assert float(row["value"]) * 5 * smollm2.SAMPLES == pytest.approx(
                round(float(row["value"]) * 5 * smollm2.SAMPLES), abs=0.01
            )
        (log,) = tmp_path.glob(f"run-*-{trained['seed']}/metrics.jsonl")
        rewards = [json.loads(line)["reward"] for line in log.read_text().splitlines() if '"reward"' in line]
        assert float(trained["value"]) == pytest.approx(statistics.fmean(rewards), abs=1e-4)
        assert trained["low"] == ""
    assert {found[1]["value"], found[4]["value"]} != {found[0]["value"]}  # another model than before

    monkeypatch.setattr(smollm2, "run", no_run)
    smollm2.main()
    assert rows() == found
    monkeypatch.setattr("sys.argv", [*command, "trainer.max_completion_length=5"])
    with pytest.raises(AssertionError, match="a run"):
        smollm2.main()  # another setting is another run


def test_the_summary_pairs_runs_by_their_seeds_and_takes_three(rows, monkeypatch, capsys):
    base = "Clip 0.02/1.0"
    values = {base: [0.5, 0.6, 0.4], "a rule": [0.6, 0.8, 0.5, 0.1], "another": [0.9, 0.9]}
    told = {"settings": "aaaaaa", "rounds": "12", "completions": "64", "learning_rate": "1e-05"}
    with smollm2.CSV.open("w", newline="") as file:
        writer = csv.DictWriter(file, smollm2.COLUMNS)
        writer.writeheader()
        for rule, each in values.items():
            for seed, value in enumerate(each):
                for measure, x in (("right before", 0.1), ("right after", value)):
                    writer.writerow({"rule": rule, "seed": seed, "measure": measure, "value": x, **told})
        writer.writerow({"rule": "a rule", "seed": 0, "measure": "right after", "value": 1, **told, "settings": "b"})
        for seed, value in enumerate((0.0, 0.9, 0.1)):  # so far apart that its interval would begin below 0
            row = {"rule": "wild", "seed": seed, "measure": "right after", "value": value, **told, "settings": "c"}
            writer.writerow(row)
    monkeypatch.setattr("sys.argv", ["smollm2.py", "--summary"])
    smollm2.main()
    with smollm2.SUMMARY.open() as file:
        made = {(row["rule"], row["measure"]): row for row in csv.DictReader(file)}
    assert list(made) == [
        (base, "right after"), ("a rule", "right after"), ("a rule", f"right after, minus {base}"),
        ("wild", "right after"),
    ]  # fmt: skip
    assert float(made["wild", "right after"]["low"]) == 0
    gap = made["a rule", f"right after, minus {base}"]
    assert (gap["seed"], gap["settings"]) == ("0 1 2", "aaaaaa")
    gaps = [0.1, 0.2, 0.1]
    half = 4.3027 * statistics.stdev(gaps) / 3**0.5  # Student's t with two degrees of freedom
    wanted = (statistics.fmean(gaps), statistics.fmean(gaps) - half, statistics.fmean(gaps) + half)
    assert [float(gap[name]) for name in ("value", "low", "high")] == pytest.approx(wanted, abs=1e-3)
    assert made["a rule", "right after"]["seed"] == "0 1 2 3"
    assert "a rule, 0 1 2 3, right after, 0.5000" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["smollm2.py", "--summary", "--baseline", "another"])
    with pytest.raises(SystemExit, match="no rule has 3 runs with the settings and seeds of 3 of 'another'"):
        smollm2.main()
