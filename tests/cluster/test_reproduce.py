"""The smoke run of docs/reproduce.md on a CPU: the page's own commands, with a toy model where the page has Qwen's.

Data are small copies in the hub's form. Ray, verl's trainer, vLLM, the log, the dumps and the checkpoints are real.
"""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch
import verl_toy
from published import BEFORE, BEHIND, aime24, aime25, amc23, dapo, math, problem, put
from scripts import ROOT, load
from tokenizers.pre_tokenizers import ByteLevel

from bandpo_runs.evals.folder import read_graded

PAGE = ROOT / "docs" / "reproduce.md"
TOY = [
    *verl_toy.cpu_settings(".", 160),
    "+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype=fp32",
    "data.train_batch_size=8", "data.max_prompt_length=144", "data.max_response_length=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.optim.lr=1.5e-3",
    "trainer.total_training_steps=4", "trainer.test_freq=2", "trainer.save_freq=2",
]  # fmt: skip


def copies(folder):
    """The five data sets of the paper, small. Each answer is 7, but for every second one of those to evaluate on."""
    for name, row, first in (("aime24", aime24, 0), ("aime25", aime25, 100), ("amc23", amc23, 200)):
        answers = [("007" if name == "aime24" else "7", "8")[i % 2] for i in range(8)]
        put(folder, name, [row(problem(first + i), answer, i) for i, answer in enumerate(answers)])
    put(folder, "dapo-math-17k", [dapo(problem(300 + i), "7", i) for i in range(64)])
    put(folder, "math-levels-3-5", [math(problem(400 + i), "7", 3 + i % 3, i) for i in range(64)])


def model(folder):
    """A tiny Qwen2 that says "Answer: " and some digit to whatever it is asked."""
    texts = [BEFORE + problem(i) + BEHIND for i in range(500)]
    template = verl_toy.tokenizer_of(sorted(ByteLevel.alphabet()))
    tokenizer = template.train_new_from_iterator(texts, 600)  # 75 tokens in a prompt
    tokenizer.chat_template = template.chat_template
    tokenizer.save_pretrained(folder)
    toy = verl_toy.qwen2(len(tokenizer))
    optimizer = torch.optim.Adam(toy.parameters(), 3e-3)
    for step in range(100):
        asked = [[{"role": "user", "content": text}] for text in texts[step * 8 % 496 :][:8]]
        whole = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        whole = [f"{text}Answer: {'1234777'[(step + i) % 7]}<|im_end|>" for i, text in enumerate(whole)]
        batch = tokenizer(whole, return_tensors="pt", padding=True, padding_side="left")
        labels = batch["input_ids"].clone()
        labels[:, :-5] = -100  # all but the answer and its end
        loss = toy(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    toy.save_pretrained(folder)


def added(command):
    """What stands behind a command of the page here: the data and the model are not on the hub, and there is no GPU."""
    if command.startswith("bandpo data prepare"):
        return " --from copies"
    if command.startswith("bandpo eval"):
        return " --from copies --backend transformers"
    return f" {shlex.join(TOY)}" if command.startswith("python -m verl.trainer") else ""


def meant(share):
    """What the doctor says of the share of tokens outside, in percent. It differs from run to run, and so does this."""
    if share <= 0.2:
        return "it can hardly matter: without a clip this run would have been nearly the same"
    return "it can matter" if share >= 1 else "it has an effect on few tokens, and may matter"


def plain(text):
    """Lines without numbers, signs, spaces and marks of notes, which differ from run to run."""
    return [re.sub(r"<sup>.*?</sup>|[\d.+<\s-]", "", line) for line in re.split("[\r\n]+", text)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    copies(folder / "copies")
    model(folder / "model")
    for name in ("recipes", "research"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "bin").mkdir()
    program = folder / "bin" / "bandpo"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom bandpo_runs.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return folder


def test_each_command_of_the_ten_minutes_prints_what_the_page_shows(folder):
    readme, text = load(".ci/readme.py"), PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Ten minutes") : text.index("## One row")]
    environment = os.environ | verl_toy.ENVIRONMENT | {"COLUMNS": "100"}
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    printed = ""
    for indent, language, block in re.findall(r"^( *)```(sh|text)\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL):
        block = re.sub(f"^{indent}", "", block, flags=re.MULTILINE)
        if language == "text":
            if share := re.search(r"The rule clipped at most ([\d.]+) % of tokens", printed):
                assert block.count("it can matter") == 1
                block = block.replace("it can matter", meant(float(share[1])))
            whole = "".join(plain(printed))  # a number that is longer breaks a line elsewhere
            missing = [line for line in block.splitlines() if plain(line)[0] not in whole]
            assert not missing, f"{missing} not in\n{printed[-9000:]}"
            continue
        printed = ""
        for command in readme.commands(block):
            done = subprocess.run(
                ["bash", "-c", command + added(command)],
                cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}\n{done.stdout[-9000:]}"
            printed += done.stdout
            with (folder / "printed.txt").open("a") as file:
                file.write(f"$ {command}\n{done.stdout}")
    # What was evaluated are the trained weights: nearer to the last validation than to that before training.
    rows = map(json.loads, (folder / "paper-smoke" / "band-kl-seed1.jsonl").read_text().splitlines())
    mean = {r["step"]: [x for name, x in r["data"].items() if name.endswith("acc/mean@4")] for r in rows}
    before, after = (sum(mean[step]) / 3 for step in (0, 4))
    evaluated = sum(graded.score.mean() for graded in read_graded(folder / "runs" / "eval" / "smoke")) / 3
    assert before + 0.05 < after
    assert abs(evaluated - after) < abs(evaluated - before)
