"""Checkpoints that verl's own worker wrote, on one and two ranks, and models of them by the command of bandpo eval."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import verl_toy
from peft import PeftModel
from test_verl_resume import ACTOR, CLIP, settings_of
from transformers import AutoModelForCausalLM

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.evals.folder import read_metadata, read_samples
from bandpo_runs.evals.models import find_model

LORA = ["actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8"]
HF_MODEL = f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
CASES = {"plain": CLIP, "whole": [*CLIP, HF_MODEL], "lora": [*CLIP, *LORA, HF_MODEL]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder, {ranks: {case: weights}}); the checkpoints are folder/RANKS/CASE/global_step_1."""
    folder = tmp_path_factory.mktemp("checkpoints")
    verl_toy.write(folder)
    weights = {}
    for ranks in (1, 2):
        out = folder / str(ranks)
        cases = {name: {"settings": lines, "save": [f"{name}/global_step_1/actor", 1]} for name, lines in CASES.items()}
        cases = {name: settings_of(folder, case, out) for name, case in cases.items()}
        [first, *_], _ = verl_toy.update_actor(folder, out, cases, ranks)
        weights[ranks] = {name: result["weights"] for name, result in first.items()}
    return folder, weights


def logits(model):
    ids = torch.randint(3, 40, (4, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(input_ids=ids).logits


def expected(folder, weights, dtype):
    """Of the trained weights, rounded as the merger does; LoRA's product is added in float32."""
    weights = {name.removeprefix("base_model.model."): x.to(dtype).float() for name, x in weights.items()}
    whole = {name.replace(".base_layer", ""): x for name, x in weights.items() if ".lora_" not in name}
    for name in (name for name in weights if ".lora_B." in name):
        whole[name.replace("lora_B.default.", "")] += 2.0 * weights[name] @ weights[name.replace("lora_B", "lora_A")]
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    before = logits(model)
    model.load_state_dict(whole)
    assert (logits(model) - before).abs().max() > 0.1
    return logits(model)


@pytest.mark.parametrize(("case", "ranks"), [("plain", 1), ("plain", 2), ("whole", 2), ("lora", 1), ("lora", 2)])
def test_the_logits_are_those_of_the_trained_model(trained, case, ranks):
    folder, weights = trained
    actor = folder / str(ranks) / case / "global_step_1" / "actor"
    place = actor / "huggingface"
    if case != "whole":
        with pytest.raises(UserError) as error:
            find_model(str(actor.parent))
        place = folder / f"{case} of {ranks}"
        command = shlex.split(re.search(r"python (-m verl.model_merger .*), then", str(error.value))[1])
        command = [str(place) if word == "MODEL" else word for word in command]
        environment = os.environ | verl_toy.ENVIRONMENT
        subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True)
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    if case == "lora":
        model = PeftModel.from_pretrained(model, place / "lora_adapter").merge_and_unload()
        for of_lora in (place, actor / "huggingface"):
            with pytest.raises(UserError, match="and its LoRA apart"):
                find_model(str(of_lora))
    else:
        assert find_model(str(place)).path == str(place)
    dtype = torch.float32 if case == "whole" else torch.bfloat16
    torch.testing.assert_close(logits(model), expected(folder, weights[ranks][case], dtype), rtol=1e-4, atol=1e-5)


def test_eval_draws_from_a_checkpoint_whose_weights_are_whole(trained, monkeypatch):
    folder, _ = trained
    monkeypatch.chdir(folder)
    Path("sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    command = ["eval", "2/whole/global_step_1/actor/huggingface", "--label", "whole, step 1", "-o", "out"]
    assert main([*command, "--data", "sums.jsonl", "--max-tokens=2", "-n", "2", "--backend=transformers"]) == 0
    assert (len(read_samples(Path("out"))), read_metadata(Path("out"))["label"]) == (2, "whole, step 1")
