"""Does a real pretrained model learn? SmolLM2-135M-Instruct on chain_sum of reasoning_gym, on held-out questions.

    python examples/smollm2.py models/smollm2
    python benchmarks/smollm2.py recipes/smollm2/band-kl.yaml [key=value ...]

Appends one row to benchmarks/smollm2.csv: accuracy at temperature 1 before and after, on questions not trained
on, with 95 % intervals that treat the samples of one question as one cluster. `--resume` goes on after an interruption.
"""

import argparse
import csv
import math
import platform
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo.config.recipe import RunConfig, load
from bandpo.data.rows import rows_and_reward
from bandpo.provenance import source_commit
from bandpo.training.on_trl import run

SAMPLES = 16


@torch.no_grad()
def accuracy(model_path: str | Path, config: RunConfig) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval over distinct held-out questions, SAMPLES answers each."""
    _, held_out, reward = rows_and_reward(config)
    answers = dict(zip(held_out["prompt"], held_out["answer"], strict=True))
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    torch.manual_seed(0)
    means = []
    for prompts in torch.tensor(range(len(answers))).split(8):
        batch = [list(answers)[i] for i in prompts]
        tokens = tokenizer(batch, return_tensors="pt", padding=True, add_special_tokens=False)
        out = model.generate(
            **tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=SAMPLES,
            max_new_tokens=config.trainer["max_completion_length"],
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(out[:, tokens["input_ids"].shape[1] :], skip_special_tokens=True)
        right = reward(completions=texts, answer=[answers[p] for p in batch for _ in range(SAMPLES)])
        means.extend(torch.tensor(right).view(-1, SAMPLES).mean(1).tolist())
    means = torch.tensor(means, dtype=torch.float64)
    return means.mean().item(), 1.96 * means.std().item() / math.sqrt(len(means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    config = load(args.recipe, args.settings)
    if config.threads:
        torch.set_num_threads(config.threads)
    before, before_width = accuracy(config.model, config)
    print(f"before: {before:.3f} +- {before_width:.3f}", flush=True)
    began = time.monotonic()
    folder = run(
        config, resume=args.resume, on_row=lambda row: print(row["round"], row.get("reward"), flush=True), say=print
    )
    seconds = time.monotonic() - began
    after, after_width = accuracy(folder / "model", config)
    print(f"after: {after:.3f} +- {after_width:.3f}", flush=True)
    row = {
        "label": config.label,
        "seed": config.seed,
        "rounds": config.rounds,
        "completions_per_round": config.prompts_per_round * config.trainer["num_generations"],
        "learning_rate": config.trainer["learning_rate"],
        "before": round(before, 4),
        "before_interval": round(before_width, 4),
        "after": round(after, 4),
        "after_interval": round(after_width, 4),
        "seconds": round(seconds),
        "resumed": args.resume,
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "commit": source_commit(),
        "command": f"python benchmarks/smollm2.py {args.recipe} {' '.join(args.settings)}".strip(),
    }
    path = Path(__file__).with_suffix(".csv")
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
