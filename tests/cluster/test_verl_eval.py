"""vLLM as the back end of `bandpo eval`; and the names of our metrics in training, by verl's own trainer."""

import json
import math
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import verl_toy
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo_runs.evals.folder import read_graded, read_metadata, read_samples
from bandpo_runs.training.validation import metrics

QUESTIONS = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(6)]

# One engine for all: it takes half a minute to start. The command line's own, and then more of it.
SCRIPT = """
import json, sys
from pathlib import Path
from bandpo_runs.evals import generate
from bandpo_runs.evals.backends.local import VLLM
from bandpo_runs.cli import main
from bandpo.errors import UserError
from bandpo_runs.evals.folder import read_metadata, read_questions, read_samples
from bandpo_runs.evals.samples import Request, Sampling, seed_of

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    # vLLM 0.28 takes back a seeded generator's last step when a prompt is cut in two, which one of the CPU cannot do.
    options = {"dtype": "float32", "max_model_len": 64, "enforce_eager": True, "enable_chunked_prefill": False}
    engine = VLLM(str(folder / "model"), **options)
    generate.VLLM = lambda model: engine
    command = ["eval", str(folder / "model"), "--data", str(folder / "sums.jsonl"), "--max-tokens", "8", "-n", "6"]
    command += ["--scorer", "exact"]
    assert main([*command, "-o", str(folder / "out")]) == 0

    def texts(requests, sampling):
        answers = {}
        engine.generate(requests, sampling, lambda sample: answers.update({str(sample.key): sample.text}))
        return answers

    questions, sampling = read_questions(folder / "out", read_metadata(folder / "out")), Sampling(n=6, max_tokens=8)
    every = [Request((q.data, q.prompt, i), q.content, seed_of(0, q, i)) for q in questions for i in range(6)]
    alone = {}
    for request in every[::7]:
        alone |= texts([request], sampling)
    turned = texts(every[::-2], sampling)
    again = texts(every[:3], sampling)
    many = [Request(("many", 0, i), questions[0].content, i) for i in range(2000)]
    first = texts(many, Sampling(n=1, max_tokens=1))
    greedy = texts(every[:1], Sampling(n=1, temperature=0.0, max_tokens=1))
    long = [{"role": "user", "content": "1+1=" * 40}]
    try:
        texts([Request(("long", 0, 0), long, 0)], sampling)
    except UserError as error:
        refused = str(error)
    result = {"alone": alone, "turned": turned, "again": again, "first": list(first.values())}
    result |= {"greedy": list(greedy.values()), "refused": refused}
    (folder / "result.json").write_text(json.dumps(result))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    verl_toy.write(folder)
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), str(folder)],
        env=os.environ | verl_toy.ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def test_the_command_line_takes_vllm_where_it_is_installed(folder):
    facts = read_metadata(folder / "out")
    assert (facts["backend"], facts["dtype"]) == ("vllm", "float32")
    (graded,) = read_graded(folder / "out")
    assert (graded.score.shape, graded.truncated.any()) == ((6, 6), True)
    assert 1 <= graded.tokens.min() <= graded.tokens.max() <= 8


def test_a_sample_of_vllm_depends_on_its_seed_and_not_on_who_shares_its_batch(folder):
    result = json.loads((folder / "result.json").read_text())
    whole = {str(s.key): s.text for s in read_samples(folder / "out")}
    assert len(set(whole.values())) > 20
    for name, count in (("alone", 6), ("turned", 18), ("again", 3)):
        assert len(result[name]) == count
        assert result[name].items() <= whole.items()
    assert result["refused"].endswith("tokens, the model's context only 64")


def test_vllm_draws_from_the_models_own_probabilities(folder):
    result = json.loads((folder / "result.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    message = [{"role": "user", "content": QUESTIONS[0]["prompt"]}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        chances = model(**ids).logits[0, -1].double().softmax(-1)
    best = int(chances[3:].argmax()) + 3  # no special token, whose text is empty
    p, count = chances[best].item(), len(result["first"])
    seen = sum(text == tokenizer.decode([best]) for text in result["first"])
    assert abs(seen / count - p) < 4.5 * math.sqrt(p * (1 - p) / count)
    assert result["greedy"] == [tokenizer.decode([int(chances.argmax())], skip_special_tokens=True)]


@pytest.mark.parametrize("kind", ["acc", "reward"])
def test_metrics_in_training_have_the_names_and_values_of_verls(kind):
    rng = np.random.default_rng(0)
    scores = rng.random((7, 6)).round() if kind == "acc" else rng.normal(size=(7, 6))
    uids = [f"u{i}" for i in range(7) for _ in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    theirs = PPOTrainer._val_metrics_update(None, ["aime_2024"] * 42, uids, {kind: scores.ravel().tolist()}, [])
    ours = metrics("aime_2024", kind, scores)
    shared = {name: value for name, value in ours.items() if "/pass@" not in name}
    assert (len(shared), {name: theirs[name] for name in shared}) == (4, pytest.approx(shared, rel=1e-12))
