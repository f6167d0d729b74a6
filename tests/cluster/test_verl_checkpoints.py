"""bandpo eval of checkpoints that verl's own worker wrote, on one and two ranks, merged by verl's own merger."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import verl_toy
from test_verl_resume import ACTOR, CLIP, settings_of
from transformers import AutoModelForCausalLM

from bandpo_runs.cli import main
from bandpo_runs.evals.folder import read_metadata, read_samples
from bandpo_runs.evals.verl_checkpoints import whole_weights

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
def test_the_logits_are_those_of_the_trained_model(trained, case, ranks, capsys):
    folder, weights = trained
    actor = folder / str(ranks) / case / "global_step_1" / "actor"
    found = whole_weights(str(actor))
    assert found == str(actor / ("huggingface" if case == "whole" else "merged_by_bandpo"))
    model = AutoModelForCausalLM.from_pretrained(found, dtype=torch.float32)
    dtype = torch.float32 if case == "whole" else torch.bfloat16
    torch.testing.assert_close(logits(model), expected(folder, weights[ranks][case], dtype), rtol=1e-4, atol=1e-5)
    assert ("merged in" in capsys.readouterr().out) == (case != "whole")
    assert whole_weights(str(actor)) == found
    assert "merged in" not in capsys.readouterr().out


def test_eval_draws_after_a_kill_and_merges_anew_what_has_changed(trained, capsys, monkeypatch):
    folder, _ = trained
    monkeypatch.chdir(folder)
    shutil.copytree("2/plain", "project/run", ignore=shutil.ignore_patterns("merged_by_bandpo"))
    Path("sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    command = ["eval", "project/run", "--data", "sums.jsonl", "--max-tokens=2", "-n", "2", "--backend=transformers"]
    actor = Path("project/run/global_step_1/actor")
    script = f"from bandpo_runs.cli import main; main({command})"
    with subprocess.Popen([sys.executable, "-c", script], process_group=0) as killed:
        while not [*actor.glob(".merged-*")]:
            assert killed.poll() is None
            time.sleep(0.05)
        os.killpg(killed.pid, signal.SIGKILL)
    assert [*actor.glob(".merged-*")]
    assert not (actor / "merged_by_bandpo").exists()
    assert (main(command), len(read_samples(Path("runs/eval/project/run-1")))) == (0, 2)
    assert read_metadata(Path("runs/eval/project/run-1"))["label"] == "project / run, step 1"
    assert not [*actor.glob(".merge*")]
    part = actor / "model_world_size_2_rank_1.pt"
    weights = torch.load(part, weights_only=False)
    weights["model.norm.weight"].to_local().fill_(math.nan)
    torch.save(weights, part)
    capsys.readouterr()
    assert main([*command, "-o", "broken"]) == 2
    said = capsys.readouterr()
    assert "merged in" in said.out
    assert f"{actor}/merged_by_bandpo' cannot be loaded: its weights are not finite" in said.err
    torch.save({}, part)
    assert main([*command, "-o", "broken"]) == 2
    assert "verl's merger ended with code 1: KeyError: " in capsys.readouterr().err
    assert not [*actor.glob(".merge*")]
