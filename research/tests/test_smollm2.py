"""research/measurements/smollm2.py: what its rows say of runs, here of a tiny model."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest
import recipe
import yaml
from scripts import load

from research.measurements.smollm2_reuse import SAMPLES

smollm2 = load("research/measurements/smollm2.py")


def of_odd_length(completions, answer, **columns):
    """A reward that a model without any skill earns now and then; all answers to a question come together."""
    assert all(len([*same]) % 4 == 0 for _, same in itertools.groupby(answer))
    return [float(len(text) % 2) for text in completions]


def no_run(*arguments, **options):
    raise AssertionError("a run")


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "CSV", tmp_path / "smollm2.csv")
    return lambda: smollm2.read_rows(smollm2.CSV)


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
            assert float(row["value"]) * 5 * SAMPLES == pytest.approx(
                round(float(row["value"]) * 5 * SAMPLES), abs=0.01
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
