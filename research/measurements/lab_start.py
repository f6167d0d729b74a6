"""How does the lab's transformer answer at the start of a scene, before any reinforcement learning?

    python -m research.measurements.lab_start    # writes lab_start.csv

Of the warm start of scene `rare-and-noisy`, on fresh prompts: the probability that an answer begins with working, with
a guess, or with neither, which is a bad answer; exact for each prompt, in the mean. And how often working ends right.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from bandpo_runs.provenance import source_commit
from bandpo_runs.toy import ANSWER, BASE, prompts, tokenizer, warm_start
from research.csv_rows import write_rows
from research.lab_settings import Settings

CSV = Path(__file__).with_suffix(".csv")
PROMPTS = 2000
SCENE, START = "rare-and-noisy", 0


@torch.no_grad()
def measures() -> dict[str, float]:
    folder, skill = warm_start(Settings.of(SCENE).p_work, START, print)
    model = AutoModelForCausalLM.from_pretrained(folder)
    asked = tokenizer()([row["prompt"] for row in prompts(PROMPTS, seed=12345)], return_tensors="pt")["input_ids"]
    first = model(input_ids=asked).logits[:, -1].double().softmax(-1).mean(0)
    work, guess = first[:BASE].sum().item(), first[ANSWER].item()
    return {"work": work, "guess": guess, "neither": 1 - work - guess, "right if it works": skill["right_if_work"]}


def main() -> None:
    about = {"scene": SCENE, "start_seed": START, "prompts": PROMPTS}
    found = {name: f"{value:.4g}" for name, value in measures().items()}
    rows = [{"measure": name, "value": value, "commit": source_commit()} for name, value in found.items()]
    write_rows(CSV, [about | row for row in rows], (*about, "measure", "value", "low", "high", "commit"))
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
