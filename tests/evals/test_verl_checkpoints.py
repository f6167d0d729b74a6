"""A made checkpoint of verl; tests/cluster/test_verl_checkpoints.py has verl's own."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.evals.generate import Model, find_model, whole_weights

RUN = Path("checkpoints/paper/band")


def write(step):
    """A step's actor, as two ranks of verl's FSDP leave it."""
    actor = RUN / f"global_step_{step}" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface" / "config.json").write_text("{}")
    for rank in range(2):
        torch.save({"weight": torch.ones(2)}, actor / f"model_world_size_2_rank_{rank}.pt")
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 2}')
    return actor


@pytest.fixture
def actor(here):
    return write(800)


@pytest.mark.parametrize(
    "end", ["", "/global_step_800", "/global_step_800/actor", "/global_step_800/actor/huggingface"]
)
def test_every_folder_of_a_checkpoint_stands_for_its_actor_and_names_what_is_to_be_run(actor, end, home, capsys):
    passed = f"{RUN}{end}"
    assert find_model(passed) == Model(str(actor), "paper/band-800", "paper / band, step 800")
    assert main(["eval", passed, "--data", "lab"]) == 2
    command = f"python -m verl.model_merger merge --backend fsdp --local_dir {actor} --target_dir {actor}/huggingface"
    assert capsys.readouterr().err == (
        f"error: {actor} has its weights in parts. Where verl is installed, this makes a model of them: {command}\n"
    )
    shutil.copytree(
        home / "model", actor / "huggingface", dirs_exist_ok=True
    )  # as that command, or hf_model, leaves it
    assert main(["eval", passed, "--data", "lab", "--limit", "1", "-n", "1", "--backend", "transformers"]) == 0
    assert "paper / band, step 800 on lab" in capsys.readouterr().out
    assert json.loads(Path("runs/eval/paper/band-800/eval.json").read_text())["model"] == f"{actor}/huggingface"


def test_the_newest_step_is_the_one_that_verl_says_it_finished(actor, capsys):
    write(1000)
    last = RUN / "latest_checkpointed_iteration.txt"
    for message, step in ((None, 1000), ("800", 800), ("1000", 1000), ("1200", 1000), ("?", 1000)):
        if message:
            last.write_text(message)
        assert find_model(str(RUN)).name == f"paper/band-{step}"
        printed = capsys.readouterr().out
        assert f"step {step} is the newest of 2 in {RUN}" in printed
        assert ("is missing or names another" in printed) == (message != str(step))
    result = find_model(str(RUN.rename(f"{RUN}-seed2")))  # a table has runs of one label in one row
    assert (result.name, result.label) == ("paper/band-seed2-1000", "paper / band, step 1000")


def test_a_checkpoint_that_is_not_whole_is_refused(actor):
    actor.with_name("critic").mkdir()
    (actor / "fsdp_config.json").rename(actor.with_name("critic") / "fsdp_config.json")
    for end in ("", "/actor", "/critic"):
        with pytest.raises(UserError, match=r"global_step_800\S* holds no actor of verl's FSDP"):
            find_model(f"{RUN}/global_step_800{end}")


def test_lora_is_never_taken_for_its_base(actor):
    """verl's hf_model names LoRA's weights as no model does; its merger leaves the adapter apart."""
    (actor / "huggingface" / "model.safetensors").touch()
    assert whole_weights(str(actor)) == f"{actor}/huggingface"
    (actor / "lora_train_meta.json").write_text("{}")
    with pytest.raises(UserError, match=r"add .*/huggingface/lora_adapter to it by peft's merge_and_unload"):
        whole_weights(str(actor))
    (actor / "huggingface").rename("by hand")
    Path("by hand/lora_adapter").mkdir()
    with pytest.raises(UserError, match="by hand holds a base's weights, and its LoRA apart"):
        find_model("by hand")
