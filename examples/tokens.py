"""Writes the tokens of a short run of the lab, for `bandpo calibrate`: python examples/tokens.py

They are in runs/tokens/tokens-0.jsonl then. A run of your own needs no setting: `BandPOTrainer` writes a sample to
`tokens` in its output_dir.
"""

import shutil

import torch
from datasets import Dataset

from bandpo import Clip
from bandpo.integrations.trl import BandPOConfig, BandPOTrainer
from bandpo_runs import toy

OUTPUT = "runs/tokens"
SCENE = toy.SCENES["storm"]
ROUNDS = 16


def main():
    torch.set_num_threads(1)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    start, _ = toy.warm_start(SCENE.p_work, 0, print)
    settings = SCENE.defaults["trainer"] | {"temperature": 1.0, "seed": 0, "report_to": "none", "save_strategy": "no"}
    steps = ROUNDS * settings["steps_per_generation"] * settings["num_iterations"]
    trainer = BandPOTrainer(
        str(start),
        toy.reward,
        BandPOConfig(output_dir=OUTPUT, max_steps=steps, tokens_path=OUTPUT, tokens_share=1.0, **settings),
        Dataset.from_list(toy.prompts(128, seed=0)),
        processing_class=toy.tokenizer(),
        trust_region=Clip(0.2, 0.2),
    )
    trainer.train()
    print(f"{OUTPUT}/tokens-0.jsonl")


if __name__ == "__main__":
    main()
