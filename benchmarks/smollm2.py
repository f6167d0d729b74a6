"""Does a pretrained model learn, and better under another rule? SmolLM2-135M-Instruct on chain_sum of reasoning_gym.

    python examples/smollm2.py models/smollm2
    python benchmarks/smollm2.py recipes/smollm2/band-kl.yaml [more recipes] [--seeds 0 1 2] [--set rounds=12 ...]
    python benchmarks/smollm2.py --summary [--baseline "Clip 0.02/1.0"]

A run gives rows in benchmarks/smollm2.csv: the share of right answers at temperature 1 before and after, on questions
that were not trained on, with 95 % intervals over questions; and the mean reward over all rounds of the training. A run
that has its rows is not trained again, and one that was interrupted goes on.

The summary, benchmarks/smollm2_summary.csv, is over runs that differ in nothing but rule and seed: means, and
differences from the baseline on the seeds that both have, with 95 % intervals of Student's t over runs. Nothing is
adjusted for there being several rules and measures. Fewer than three runs are not summed up.
"""

import argparse
import csv
import hashlib
import io
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo_runs.config.recipe import RunConfig, load
from bandpo_runs.data.rows import rows_and_reward
from bandpo_runs.files.writing import write_atomically
from bandpo_runs.provenance import hardware, source_commit, versions
from bandpo_runs.statistics.intervals import Spread, clustered_error, training_runs
from bandpo_runs.training.on_trl import run

CSV = Path(__file__).with_suffix(".csv")
SUMMARY = CSV.with_stem("smollm2_summary")
SHARED = ("settings", "rounds", "completions", "learning_rate")  # of runs that are compared
MADE_BY = ("seconds", "hardware", "torch")
COLUMNS: tuple[str, ...] = ("rule", "seed", *SHARED, "measure", "value", "low", "high", *MADE_BY, "commit")
SAMPLES = 16
ENOUGH = 3  # runs for an interval: two that happen to end alike would seem to know it all


@torch.no_grad()
def right(model_path: str | Path, config: RunConfig) -> Spread:
    """The share of right answers, SAMPLES to each of the distinct held-out questions."""
    _, held_out, reward = rows_and_reward(config)
    answers = dict(zip(held_out["prompt"], held_out["answer"], strict=True))
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    torch.manual_seed(0)
    shares: list[float] = []
    questions = list(answers)
    for i in range(0, len(questions), 8):
        batch = questions[i : i + 8]
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
        scores = reward(completions=texts, answer=[answers[prompt] for prompt in batch for _ in range(SAMPLES)])
        shares += torch.tensor(scores, dtype=torch.float64).view(-1, SAMPLES).mean(1).tolist()
    return clustered_error(shares)


def read() -> list[dict[str, str]]:
    if not CSV.exists():
        return []
    with CSV.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def row(told: dict[str, Any], measure: str, found: Spread | float, lowest: float = 0.0) -> dict[str, Any]:
    value, interval = (found.value, found.interval(low=lowest)) if isinstance(found, Spread) else (found, None)
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
    if any(told.items() <= one.items() for one in read()):
        print(f"{name}: its rows are there", flush=True)
        return
    folder = Path(config.output)
    run(config, resume=(folder / "run.json").exists(), on_row=lambda one: _say(name, one), say=print)
    if config.model not in before:
        before[config.model] = right(config.model, config)
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    measures = {
        "right before": before[config.model],
        "right after": right(folder / "model", config),
        "mean reward": statistics.fmean(one["reward"] for one in rows if "reward" in one),
    }
    made_by = {
        "seconds": round(json.loads((folder / "run.json").read_text())["wall_seconds"]),
        "hardware": f"{hardware(False)}, {torch.get_num_threads()} threads",
        "torch": versions(("torch",))["torch"], "commit": source_commit(),
    }  # fmt: skip
    new = not CSV.exists()
    with CSV.open("a", newline="", encoding="utf-8") as file:  # other processes may add theirs meanwhile
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(row(told, measure, found) | made_by for measure, found in measures.items())
    print(f"{name}: {measures['right after'].value:.3f} are right", flush=True)


def _say(name: str, one: dict[str, Any]) -> None:
    if "reward" in one:
        print(f"{name}: round {one['round']}, reward {one['reward']:.3f}", flush=True)


def summarize(baseline: str) -> None:
    values: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}
    for one in read():
        if one["measure"] != "right before":
            rules = values.setdefault(tuple(one[name] for name in (*SHARED, "measure")), {})
            rules.setdefault(one["rule"], {})[one["seed"]] = float(one["value"])
    out: list[dict[str, Any]] = []
    for (*shared, measure), rules in values.items():
        base = rules.get(baseline, {})
        for rule, found in rules.items():
            common = [seed for seed in found if seed in base and rule != baseline]
            for name, each in (
                (measure, found),
                (f"{measure}, minus {baseline}", {seed: found[seed] - base[seed] for seed in common}),
            ):
                if len(each) >= ENOUGH and (mean := training_runs(list(each.values()))) is not None:
                    told = {"rule": rule, "seed": " ".join(each), **dict(zip(SHARED, shared, strict=True))}
                    lowest = 0.0 if name == measure else -1.0
                    out.append(row(told, name, mean, lowest) | {"commit": source_commit()})
    if not any(one["measure"].endswith(f"minus {baseline}") for one in out):
        raise SystemExit(f"no rule has {ENOUGH} runs with the settings and seeds of {ENOUGH} of {baseline!r}")
    for one in out:
        print(", ".join(str(one[name]) for name in ("rule", "seed", "measure", "value", "low", "high")))
    text = io.StringIO()
    writer = csv.DictWriter(text, [name for name in COLUMNS if name not in MADE_BY], lineterminator="\n")
    writer.writeheader()
    writer.writerows(out)
    write_atomically(SUMMARY, text.getvalue().encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of the recipes")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--baseline", default="Clip 0.02/1.0", metavar="RULE")
    args = parser.parse_args()
    before: dict[str, Spread] = {}
    for seed in args.seeds:
        for recipe in args.recipes:
            config = load(recipe, [*args.set, f"seed={seed}"])
            config = config.model_copy(update={"output": f"{config.output}-{digest(config)}-{seed}"})
            if config.threads:
                torch.set_num_threads(config.threads)
            train(config, before)
    if args.summary:
        summarize(args.baseline)


if __name__ == "__main__":
    main()
