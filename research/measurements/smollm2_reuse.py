"""What does a rule buy a pretrained model, with each answer used once or several times? SmolLM2-135M on chain_sum.

    python examples/smollm2.py models/smollm2
    python -m research.measurements.smollm2_reuse [--uses 1 8] [--workers 1] [--minutes 60] [--until 20]

The task and all settings but rule, learning rate, seed and number of uses are those of recipes/smollm2/base.yaml. Three
seeds choose the learning rate of each rule, by the share of right answers at the end; seeds that chose nothing then
judge it, for all rules in turn. A run is one row of smollm2_reuse.csv: `right` is that share, at temperature 1, on
questions that were not trained on; `reward` is the mean over the training; `clipped` the share of tokens outside the
bounds. A run that has its row is not trained again. The end of the output compares each rule with no clip, on the
same seeds, with 95 % intervals of Student's t.

It trains on a GPU where torch sees one.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import queue
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bandpo_runs.statistics.intervals import training_runs

CSV = Path(__file__).with_suffix(".csv")
RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2" / "base.yaml"
RULES: dict[str, dict[str, Any]] = {
    "no clip": {"type": "method", "name": "no-clip"},
    "GRPO 0.2/0.2": {"type": "clip", "eps_low": 0.2, "eps_high": 0.2},
    "weighted clip": {"type": "method", "name": "weighted-clip"},
    "Band-KL 0.05": {"type": "band", "divergence": "kl", "delta": 0.05},
}
RATES = {1: (5e-6, 1e-5, 2e-5, 4e-5), 8: (1.25e-6, 2.5e-6, 5e-6, 1e-5)}  # by uses
SEARCH, JUDGE = range(3), 100
SAMPLES = 16  # answers to each held-out question
RUN = ("rule", "uses", "learning_rate", "seed", "rounds")
COLUMNS = (*RUN, "right", "reward", "clipped", "seconds", "hardware", "torch", "commit")


def train(task: dict[str, Any], model: str, device: str) -> dict[str, Any]:
    """Train one run in a folder that is deleted, and return its row."""
    import torch

    from bandpo_runs.config.recipe import load
    from bandpo_runs.provenance import hardware, source_commit
    from bandpo_runs.training.on_trl import run

    with tempfile.TemporaryDirectory() as folder:
        changed = {
            "trust_region": RULES[task["rule"]], "seed": task["seed"], "rounds": task["rounds"], "model": model,
            "output": folder + "/run", "save_every": 0, "trainer.use_cpu": device == "cpu",
            "trainer.learning_rate": task["learning_rate"], "trainer.num_iterations": task["uses"],
            "trainer.logging_steps": 4 * task["uses"],
        }  # fmt: skip
        config = load(RECIPE, [f"{name}={json.dumps(value)}" for name, value in changed.items()])
        began = time.monotonic()
        run(config, say=lambda text: None)
        seconds = time.monotonic() - began
        rows = list(map(json.loads, Path(config.output, "metrics.jsonl").read_text().splitlines()))
        reward = statistics.fmean(row["reward"] for row in rows if "reward" in row)
        outside = [row["clip/high_fraction"] + row["clip/low_fraction"] for row in rows if "clip/low_fraction" in row]
        return task | {
            "right": f"{right(Path(config.output) / 'model', config, device):.4f}", "reward": f"{reward:.4f}",
            "clipped": f"{statistics.fmean(outside):.6f}", "seconds": round(seconds),
            "hardware": hardware(gpu=device != "cpu"), "torch": torch.__version__, "commit": source_commit(),
        }  # fmt: skip


def right(folder: Path, config: Any, device: str) -> float:
    """Return the share of right answers, SAMPLES to each held-out question."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from bandpo_runs.data.rows import rows_and_reward

    _, held_out, reward = rows_and_reward(config)
    answers = dict(zip(held_out["prompt"], held_out["answer"], strict=True))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    torch.manual_seed(0)
    scores: list[float] = []
    questions, at_once = list(answers), 8 if device == "cpu" else 64
    for batch in (questions[i : i + at_once] for i in range(0, len(questions), at_once)):
        tokens = tokenizer(batch, return_tensors="pt", padding=True, add_special_tokens=False).to(device)
        out = model.generate(
            **tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=SAMPLES,
            max_new_tokens=config.trainer["max_completion_length"], pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        texts = tokenizer.batch_decode(out[:, tokens["input_ids"].shape[1] :], skip_special_tokens=True)
        scores += reward(completions=texts, answer=[answers[prompt] for prompt in batch for _ in range(SAMPLES)])
    return statistics.fmean(scores)


def work(tasks: Any, rows: Any, model: str, device: str) -> None:
    """Train runs until none is left; an error is a row without numbers, which nobody writes."""
    import torch

    torch.set_num_threads(1)
    while (task := tasks.get()) is not None:
        try:
            rows.put(train(task, model, device))
        except Exception as error:
            rows.put(task | {"error": f"{type(error).__name__}: {error}"})


def read() -> list[dict[str, str]]:
    """Return all rows of the file."""
    if not CSV.exists():
        return []
    with CSV.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def add(row: dict[str, Any]) -> None:
    """Append a row."""
    new = not CSV.exists()
    with CSV.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def task_of(rule: str, uses: int, rate: float, seed: int, rounds: int) -> dict[str, Any]:
    """Return what names a run, as its row has it."""
    return {"rule": rule, "uses": uses, "learning_rate": rate, "seed": seed, "rounds": rounds}


def chosen(uses: int, rounds: int) -> dict[str, float]:
    """Return each rule's best learning rate, where all runs of the search are there."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in read():
        if (row["uses"], row["rounds"]) == (str(uses), str(rounds)) and int(row["seed"]) in SEARCH:
            found.setdefault(row["rule"], {}).setdefault(float(row["learning_rate"]), []).append(float(row["right"]))
    whole = {rule: x for rule, x in found.items() if [len(x.get(rate, ())) for rate in RATES[uses]] == [3] * 4}
    return {rule: max(rates, key=lambda rate: statistics.fmean(rates[rate])) for rule, rates in whole.items()}


def left(uses: int, rounds: int, until: int) -> list[dict[str, Any]]:
    """Return the runs to do next: those of the search, then those that judge."""
    done = {tuple(row[name] for name in RUN) for row in read()}
    search = [task_of(rule, uses, rate, seed, rounds) for seed in SEARCH for rate in RATES[uses] for rule in RULES]
    rates = chosen(uses, rounds)
    judge = [
        task_of(r, uses, rates[r], seed, rounds) for seed in range(JUDGE, JUDGE + until) for r in RULES if r in rates
    ]
    missing = [task for task in search if tuple(map(str, task.values())) not in done]
    return missing or [task for task in judge if tuple(map(str, task.values())) not in done]


def report(uses: int, rounds: int) -> None:
    """Print each rule's learning rate and its difference from no clip, on the same seeds."""
    values: dict[str, dict[str, float]] = {}
    for row in read():
        if (row["uses"], row["rounds"]) == (str(uses), str(rounds)) and int(row["seed"]) >= JUDGE:
            values.setdefault(row["rule"], {})[row["seed"]] = float(row["right"])
    for rule, rate in chosen(uses, rounds).items():
        base = values.get("no clip", {})
        gaps = [x - base[seed] for seed, x in values.get(rule, {}).items() if seed in base]
        said = f"{rule}, {uses} uses, learning rate {rate:g}, {len(values.get(rule, {}))} seeds"
        if values.get(rule):
            said += f", right {statistics.fmean(values[rule].values()):.3f}"
        if rule != "no clip" and len(gaps) > 2 and (mean := training_runs(gaps)) is not None:
            low, high = mean.interval(low=-1.0)
            said += f", minus no clip {mean.value:+.3f} [{low:+.3f}, {high:+.3f}]"
        print(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/smollm2")
    parser.add_argument("--uses", type=int, nargs="+", default=[1, 8], choices=sorted(RATES))
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run after so many, and stop those left")
    parser.add_argument("--until", type=int, default=20, metavar="SEEDS", help="that judge")
    args = parser.parse_args()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    end = time.monotonic() + 60 * args.minutes
    context = multiprocessing.get_context("spawn")
    tasks, rows = context.Queue(), context.Queue()
    workers = [
        context.Process(target=work, args=(tasks, rows, args.model, device), daemon=True) for _ in range(args.workers)
    ]
    for worker in workers:
        worker.start()
    for uses in args.uses:
        while todo := left(uses, args.rounds, args.until):
            for task in todo:
                tasks.put(task)
            failed = 0
            for _ in todo:
                try:
                    row = rows.get(timeout=max(0.0, end - time.monotonic()))
                except queue.Empty:
                    print(f"the time is over; rows of finished runs are in {CSV}")
                    break
                failed += "error" in row
                if "error" not in row:
                    add(row)
                print(", ".join(str(x) for x in row.values()), flush=True)
            else:
                if failed:
                    raise SystemExit(f"{failed} runs failed")
                continue
            break
        report(uses, args.rounds)
    for worker in workers:
        worker.kill()


if __name__ == "__main__":
    main()
