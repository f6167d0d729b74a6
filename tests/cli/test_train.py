"""`bandpo train MODEL --data FILE`, from the line that a person types to the end."""

import json
import re
import shutil
from pathlib import Path

import pytest
import recipe

from bandpo_runs.cli import main
from bandpo_runs.training.on_trl import HELD_OUT
from bandpo_runs.training.shared_prompts import SharedPrompts

LINE = ["train", "./model", "--data", "rows.jsonl", "--reward", "test_train:share_of_even", "--rounds", "2"]
LINE += [
    "data.eval_size=4",
    "trainer.max_completion_length=5",
    "trainer.learning_rate=0.01",
    "data.template='{prompt} ='",
]


def share_of_even(completions, **columns):
    """A reward that tells completions apart from the start."""
    return [sum(map(ord, text)) % 7 / 6 for text in completions]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(recipe.make(tmp_path))
    rows = [{"question": " ".join("ab"[i >> bit & 1] for bit in range(7)), "answer": "a"} for i in range(80)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def lines_of(capsys):
    return capsys.readouterr().out.splitlines()


def test_a_model_learns_from_a_file(home, capsys):
    Path("runs/model/band-kl-0.05").mkdir(parents=True)
    Path("runs/model/band-kl-0.05/report.md").write_text("# My report, and no prepared data\n")
    assert main(LINE) == 0
    out = lines_of(capsys)
    folder = Path(out[-1])
    assert folder == Path("runs/model/band-kl-0.05")
    for start in ("before  held-out reward ", "round 1 of 2  reward 0.", "round 2 of 2  held-out reward", "Machine:"):
        assert any(line.startswith(start) for line in out), start
    (round_1,) = [line for line in out if line.startswith("round 1 of 2  reward")]
    assert re.search(r"clipped .* min left$", round_1)
    evaluations = [json.loads(line) for line in (folder / HELD_OUT).read_text().splitlines()]
    assert [each["step"] for each in evaluations] == [0, 4, 8]
    assert all(len(each["scores"]) == 4 and len(each["answers"]) == 3 for each in evaluations)
    (result,) = [line for line in out if line.startswith("Reward on 4 held-out questions: ")]
    before, after = (sum(each["scores"].values()) / 4 for each in (evaluations[0], evaluations[-1]))
    assert re.search(rf": {before:.3f} \[.*, {after:.3f} \[", result)
    question = evaluations[0]["answers"][0][0].removesuffix(" =")
    place = out.index(f"  {question}")
    assert out[place + 1] == f"    before: {' '.join(evaluations[0]['answers'][0][1].split())}".rstrip()
    assert any(line.startswith("The rule clipped") for line in out)
    assert f"Curves: {folder / 'report.html'}" in out
    assert "<svg" in (folder / "report.html").read_text()
    assert any("--rule grpo -o runs/model/grpo-seed0" in line for line in out)

    assert main(LINE) == 2  # nothing is lost
    assert f"{folder} already holds a run, which is finished; choose another output" in capsys.readouterr().err
    assert main([*LINE, "--resume"]) == 0
    assert f"{folder} is finished; nothing to resume" in lines_of(capsys)


def test_what_was_chosen_before_holds_for_a_resumed_run(home, capsys, monkeypatch):
    assert main(LINE) == 0
    chosen = Path("runs/model/band-kl-0.05/config.yaml")
    chosen.write_text(chosen.read_text().replace("gradient_accumulation_steps: 1", "gradient_accumulation_steps: 2"))
    chosen.write_text(chosen.read_text().replace("steps_per_generation: 4", "steps_per_generation: 8"))
    assert main([*LINE, "--resume"]) == 0  # not "other settings", as where another program takes memory now
    assert main([*LINE, "--resume", "trainer.steps_per_generation=12"]) == 2
    assert "was started with other settings (trainer.steps_per_generation)" in capsys.readouterr().err


def test_lora_leaves_adapters(home, capsys):
    assert (
        main([*LINE, "--lora", "--rule", "grpo", "-o", "out"]),
        lines_of(capsys)[-1],
        json.loads(Path("out/model/adapter_config.json").read_text())["r"],
    ) == (0, "out", 16)


def test_where_it_cannot_train_as_trl_does_trl_trains(home, capsys, monkeypatch):
    def refuse(*some, **named):
        raise AssertionError

    monkeypatch.setattr(SharedPrompts, "__init__", refuse)
    assert main([*LINE, "trainer.beta=0.01"]) == 0
    assert "TRL samples and scores the answers, which takes longer: beta adds a penalty" in lines_of(capsys)


def test_without_a_model_it_is_the_recipe_that_ships(calls_of_train):
    assert main(["train"]) == 0
    assert main(["train", "--rounds", "2", "--rule", "grpo", "seed=3"]) == 0
    assert main(["train", "Qwen/Qwen3-0.6B", "--data", "openai/gsm8k"]) == 0
    assert main(["train", "--data", "a.csv", "model=./mine"]) == 0
    assert main(["train", "data.eval_size=16"]) == 0
    first, second, third, fourth, fifth = calls_of_train
    assert {Path(each[0]).name for each in (first, second, fifth)} == {"smollm2.yaml"}
    assert second[1] == ["seed=3", 'trust_region="grpo"', "rounds=2"]
    assert third[:2] == (None, ['model="Qwen/Qwen3-0.6B"', 'data.source="hub"', 'data.path="openai/gsm8k"'])
    assert fourth[:2] == (None, ["model=./mine", 'data.source="file"', 'data.path="a.csv"'])


@pytest.fixture
def calls_of_train(monkeypatch):
    from bandpo_runs.cli import show_training

    calls = []
    monkeypatch.setattr(show_training, "train_and_show", lambda *given: calls.append(given))
    return calls


def test_the_outcome_says_what_was_learned(capsys):
    """With intervals by hand: of shares, one right and one wrong question more; of gains, Student's."""
    from types import SimpleNamespace

    from bandpo_runs.cli import show_training

    config = SimpleNamespace(reward="last-number", data=SimpleNamespace(template="<{prompt}>"))
    before = {"scores": dict(enumerate([0.0, 0.0, 1.0, 0.0] * 25)), "answers": [["<1 + 1>", "3"]]}
    after = {"scores": dict(enumerate([1.0, 0.0, 1.0, 1.0] * 25)), "answers": [["<1 + 1>", "2,\n yes"]]}
    after["scores"][100] = 1.0  # which was not scored before
    show_training._show_held_out(before, after, config)
    _, result, *answers = capsys.readouterr().out.splitlines()
    assert result == (
        "Right on 100 held-out questions: 25.0 % [16.9, 34.1] before, 75.0 % [65.9, 83.1] after: +50.0 points "
        "[+40.0, +60.0]."
    )
    assert answers == ["  1 + 1", "    before: 3", "    after:  2, yes"]


def test_half_a_line_of_a_killed_evaluation_is_cut_off(home, capsys):
    assert main(LINE) == 0
    folder = Path(lines_of(capsys)[-1])
    whole = (folder / HELD_OUT).read_text()
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "finished": False}))
    first, _, _ = whole.splitlines(keepends=True)
    (folder / HELD_OUT).write_text(first + '{"step": 4, "sco')
    for checkpoint in (folder / "checkpoints").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)  # the evaluation comes before it
    assert main([*LINE, "--resume"]) == 0
    rows = [json.loads(line) for line in (folder / HELD_OUT).read_text().splitlines()]
    assert (rows[0], rows[-1]["step"]) == (json.loads(first), 8)
