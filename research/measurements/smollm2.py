"""Does a pretrained model learn? SmolLM2-135M-Instruct on chain_sum of reasoning_gym.

    python -m research.measurements.smollm2 recipes/smollm2/band-kl.yaml [--seeds 0 1 2] [--set rounds=12 ...]

A run gives rows in smollm2.csv: the share of right answers at temperature 1 before and after, on questions
that were not trained on, with 95 % intervals over questions; and the mean reward over all rounds of the training. A run
that has its rows is not trained again, and one that was interrupted goes on. Rules are compared by
smollm2_reuse.py, each with a learning rate of its own.
"""

import argparse
import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from bandpo_runs.config.recipe import RunConfig, load
from bandpo_runs.provenance import hardware, source_commit, versions
from bandpo_runs.statistics.intervals import Spread, clustered_error
from bandpo_runs.training.on_trl import run
from research.csv_rows import read_rows, write_rows
from research.measurements.smollm2_reuse import right

CSV = Path(__file__).with_suffix(".csv")
COLUMNS: tuple[str, ...] = (
    "rule", "seed", "settings", "rounds", "completions", "learning_rate", "measure", "value", "low", "high",
    "seconds", "hardware", "torch", "commit",
)  # fmt: skip


def row(told: dict[str, Any], measure: str, result: Spread | float) -> dict[str, Any]:
    value, interval = (result.value, result.interval(low=0.0)) if isinstance(result, Spread) else (result, None)
    bounds = {name: f"{x:.4f}" for name, x in interval._asdict().items()} if interval else {}
    return {**told, "measure": measure, "value": f"{value:.4f}", **bounds}


def digest(config: RunConfig, *without: str) -> str:
    """Of all settings but these, and but what makes no other run: folders, threads, and what is kept of it."""
    without = (*without, "seed", "output", "model", "threads", "save_every", "tokens_share")
    told = config.model_dump(mode="json", exclude=set(without))
    return hashlib.sha256(json.dumps(told | {"model": Path(config.model).name}).encode()).hexdigest()[:6]


def told_of(config: RunConfig) -> dict[str, str]:
    """What a row is of."""
    numbers = {
        "seed": config.seed, "settings": digest(config, "trust_region", "label"), "rounds": config.rounds,
        "completions": config.prompts_per_round * config.trainer["num_generations"],
        "learning_rate": f"{config.trainer['learning_rate']:g}",
    }  # fmt: skip
    return {"rule": config.label or "", **{name: str(value) for name, value in numbers.items()}}


def train(config: RunConfig, before: dict[str, Spread]) -> None:
    """The rows of one run; `before` has what each model was worth, where it is known."""
    told = told_of(config)
    name = f"{told['rule']}, seed {config.seed}"
    if any(told.items() <= one.items() for one in read_rows(CSV, missing_ok=True)):
        print(f"{name}: its rows are there", flush=True)
        return
    folder = Path(config.output)
    run(config, resume=(folder / "run.json").exists(), on_row=lambda one: _say(name, one), say=print)
    if config.model not in before:
        before[config.model] = clustered_error(right(config.model, config, "cpu"))
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    measures = {
        "right before": before[config.model],
        "right after": clustered_error(right(folder / "model", config, "cpu")),
        "mean reward": statistics.fmean(one["reward"] for one in rows if "reward" in one),
    }
    made_by = {
        "seconds": round(json.loads((folder / "run.json").read_text())["wall_seconds"]),
        "hardware": f"{hardware(False)}, {torch.get_num_threads()} threads",
        "torch": versions(("torch",))["torch"], "commit": source_commit(),
    }  # fmt: skip
    rows = [row(told, measure, result) | made_by for measure, result in measures.items()]
    write_rows(CSV, rows, COLUMNS, add=True)  # other processes may add theirs meanwhile
    print(f"{name}: {measures['right after'].value:.3f} are right", flush=True)


def _say(name: str, one: dict[str, Any]) -> None:
    if "reward" in one:
        print(f"{name}: round {one['round']}, reward {one['reward']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of the recipes")
    args = parser.parse_args()
    before: dict[str, Spread] = {}
    for seed in args.seeds:
        for recipe in args.recipes:
            config = load(recipe, [*args.set, f"seed={seed}"])
            config = config.model_copy(update={"output": f"{config.output}-{digest(config)}-{seed}"})
            if config.threads:
                torch.set_num_threads(config.threads)
            train(config, before)


if __name__ == "__main__":
    main()
