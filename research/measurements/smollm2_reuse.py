"""What does a rule buy a pretrained model, with each answer used once or several times? SmolLM2-135M on chain_sum.

    python -m research.measurements.smollm2_reuse [--uses 1 8] [--rules "no clip" ...]
        [--workers 1] [--minutes 60] [--until 20]

All settings but rule, learning rate, seed, uses and rounds are SETTINGS; the 200 questions are reasoning_gym's. Three
seeds choose the learning rate of each rule, by the share of right answers at the end; a rate that is .15 behind another
one is given up. Seeds that chose nothing then judge it, for all rules in turn. A run is one row of smollm2_reuse.csv:
`right` is that share, at temperature 1, on questions that were not trained on; `reward` is the mean over the training;
`clipped` the share of tokens outside the bounds, of answers with an advantage (of all, in NVIDIA's rows of one use). A
run that has its row is not trained again. The end of the output compares each rule with no clip, on the same seeds,
with 95 % intervals of Student's t.

It trains on a GPU where torch sees one. `bandpo_runs.training.shared_prompts` samples: on two cores, with two workers,
a run of one use takes 9 to 27 minutes, where 2 of its 24 rounds took TRL's own trainer 5.
"""

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import reasoning_gym
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo_runs.config.recipe import build, merge
from bandpo_runs.data.rows import rows_and_reward
from bandpo_runs.provenance import hardware, source_commit
from bandpo_runs.statistics.intervals import training_runs
from bandpo_runs.training import on_trl
from bandpo_runs.training.processes import workers
from bandpo_runs.training.shared_prompts import sample
from research.csv_rows import read_rows, write_rows

CSV = Path(__file__).with_suffix(".csv")
SETTINGS: dict[str, Any] = {
    # SmolLM2's chat format without its system prompt, which would be half of the tokens.
    "data": {
        "template": "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n", "size": 4096, "eval_size": 64,
    },
    "reward": "last-number",
    "trainer": {
        "lr_scheduler_type": "constant", "loss_type": "dapo", "num_generations": 8, "per_device_train_batch_size": 32,
        "steps_per_generation": 4, "max_completion_length": 16, "activation_checkpointing": False, "bf16": False,
    },
}  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "no clip": {"type": "method", "name": "no-clip"},
    "GRPO 0.2/0.2": {"type": "clip", "eps_low": 0.2, "eps_high": 0.2},
    "weighted clip": {"type": "method", "name": "weighted-clip"},
    "Band-KL 0.05": {"type": "band", "divergence": "kl", "delta": 0.05},
}
RATES = {1: (5e-6, 1e-5, 2e-5, 4e-5), 8: (6.25e-7, 1.25e-6, 2.5e-6, 5e-6, 1e-5, 2e-5, 4e-5)}  # by uses
ROUNDS = {1: 24, 8: 6}  # at eight uses twice the optimizer steps, from a quarter of the answers
SEARCH, JUDGE = range(3), 100
BEHIND = 0.15  # of right answers; a learning rate so far behind another one is not searched further
SAMPLES = 16  # answers to each held-out question
AT_ONCE = 1024  # answers; each needs some 2 MB for the probabilities of its next token
RUN = ("rule", "uses", "learning_rate", "seed", "rounds")


def train(task: dict[str, Any], model: str, device: str) -> dict[str, Any]:
    """Train one run on one thread, in a folder that is deleted, and return its row."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        changed = {
            "trust_region": RULES[task["rule"]], "seed": task["seed"], "rounds": task["rounds"], "model": model,
            "output": folder + "/run", "save_every": 0, "shared_prompts": True,
            "data": {"source": "file", "path": write_questions(Path(folder, "chain_sum.jsonl"))},
            "trainer": {
                "use_cpu": device == "cpu", "learning_rate": task["learning_rate"], "num_iterations": task["uses"],
                "logging_steps": 4 * task["uses"],
            },
        }  # fmt: skip
        config = build(merge(SETTINGS, changed))
        began = time.monotonic()
        on_trl.run(config)
        seconds = time.monotonic() - began
        rows = list(map(json.loads, Path(config.output, "metrics.jsonl").read_text().splitlines()))
        reward = statistics.fmean(row["reward"] for row in rows if "reward" in row)
        outside = [row["clip/high_fraction"] + row["clip/low_fraction"] for row in rows if "with_advantage" in row]
        moved = [row["with_advantage"] for row in rows if "with_advantage" in row]
        after = statistics.fmean(right(Path(config.output) / "model", config, device))
        return task | {
            "right": f"{after:.4f}", "reward": f"{reward:.4f}",
            "clipped": f"{statistics.fmean(outside) / statistics.fmean(moved):.6f}", "seconds": round(seconds),
            "hardware": hardware(gpu=device != "cpu"), "torch": torch.__version__, "commit": source_commit(),
        }  # fmt: skip


def write_questions(path: Path) -> str:
    """Write the questions to a file, 4096 rows with repetitions, and return its name."""
    items = reasoning_gym.create_dataset(
        "chain_sum", size=4096, seed=0, min_terms=2, max_terms=2, min_digits=1, max_digits=1
    )
    rows = [{"prompt": item["question"], "answer": item["answer"]} for item in items]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def right(folder: str | Path, config: Any, device: str) -> list[float]:
    """Return the share of right answers to each held-out question, of SAMPLES."""
    _, held_out, reward = rows_and_reward(config)
    answers = dict(zip(held_out["prompt"], held_out["answer"], strict=True))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    prompts = [ids for ids in tokenizer(list(answers), add_special_tokens=False)["input_ids"] for _ in range(SAMPLES)]
    tokens: list[list[int]] = []
    for i in range(0, len(prompts), AT_ONCE):
        tokens += sample(
            model, prompts[i : i + AT_ONCE], [tokenizer.eos_token_id], config.trainer["max_completion_length"]
        )[0]
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    scores = reward(completions=texts, answer=[gold for gold in answers.values() for _ in range(SAMPLES)])
    return [statistics.fmean(scores[i : i + SAMPLES]) for i in range(0, len(scores), SAMPLES)]


def task_of(rule: str, uses: int, rate: float, seed: int) -> dict[str, Any]:
    """Return what names a run, as its row has it."""
    return {"rule": rule, "uses": uses, "learning_rate": rate, "seed": seed, "rounds": ROUNDS[uses]}


def is_of(row: dict[str, str], task: dict[str, Any]) -> bool:
    """Return whether a row of the file is of a run."""
    return all(row[name] == str(task[name]) for name in RUN)


def searched(rule: str, uses: int) -> dict[float, dict[int, float]]:
    """Return what the search found for a rule, by learning rate and seed."""
    by_rate: dict[float, dict[int, float]] = {rate: {} for rate in RATES[uses]}
    for row in read_rows(CSV, missing_ok=True):
        rate, seed = float(row["learning_rate"]), int(row["seed"])
        if seed in SEARCH and is_of(row, task_of(rule, uses, rate, seed)):
            by_rate[rate][seed] = float(row["right"])
    return by_rate


def is_behind(rates: dict[float, dict[int, float]], rate: float) -> bool:
    """Return whether another rate is better by more than BEHIND, over the seeds that both have."""
    gaps = ([other[seed] - rates[rate][seed] for seed in other if seed in rates[rate]] for other in rates.values())
    return any(gap and statistics.fmean(gap) > BEHIND for gap in gaps)


def chosen(rule: str, uses: int) -> float | None:
    """Return a rule's best learning rate, or None while the search is not over."""
    rates = searched(rule, uses)
    candidates = {rate: list(x.values()) for rate, x in rates.items() if not is_behind(rates, rate)}
    if any(len(x) < len(SEARCH) for x in candidates.values()):
        return None
    return max(candidates, key=lambda rate: statistics.fmean(candidates[rate]))


def left(rules: list[str], uses: int, until: int, running: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs to begin, the next first: seeds of the searches in turn, then those that judge."""
    done, tasks = read_rows(CSV, missing_ok=True), []
    for rule in rules:
        rate, rates = chosen(rule, uses), searched(rule, uses)
        if rate is None or any(x["rule"] == rule and x["uses"] == uses and x["seed"] in SEARCH for x in running):
            candidates = [rate for rate in rates if not is_behind(rates, rate)]
            tasks += [task_of(rule, uses, rate, seed) for rate in candidates for seed in SEARCH]
        else:
            tasks += [task_of(rule, uses, rate, seed) for seed in range(JUDGE, JUDGE + until)]
    tasks = [task for task in tasks if task not in running and not any(is_of(row, task) for row in done)]
    return sorted(tasks, key=lambda task: task["seed"])


def judged(uses: int, column: str = "right") -> dict[str, dict[int, float]]:
    """Return a column of the runs under each rule's learning rate, by rule and judging seed."""
    values: dict[str, dict[int, float]] = {}
    rates = {rule: rate for rule in RULES if (rate := chosen(rule, uses)) is not None}
    for row in read_rows(CSV, missing_ok=True):
        rule, seed = row["rule"], int(row["seed"])
        if seed >= JUDGE and rule in rates and is_of(row, task_of(rule, uses, rates[rule], seed)):
            values.setdefault(rule, {})[seed] = float(row[column])
    return values


def minus_no_clip(rule: str, values: dict[str, dict[int, float]]) -> str:
    """Return a rule's difference from no clip, on the seeds that both have, with its interval; "" for few seeds."""
    gaps = [x - values["no clip"][seed] for seed, x in values[rule].items() if seed in values.get("no clip", {})]
    if len(gaps) < 3 or (mean := training_runs(gaps)) is None:
        return ""
    low, high = mean.interval(low=-1.0)
    return f"{mean.value:+.3f} [{low:+.3f}, {high:+.3f}]"


def report(uses: int) -> None:
    """Print what each rule does, and its difference from no clip."""
    values = judged(uses)
    for rule, by_seed in values.items():
        line = f"{rule}, {uses} uses, learning rate {chosen(rule, uses):g}, {len(by_seed)} seeds, right "
        gap = "" if rule == "no clip" else minus_no_clip(rule, values)
        print(f"{line}{statistics.fmean(by_seed.values()):.3f}{gap and f', minus no clip {gap}'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--uses", type=int, nargs="+", default=[1, 8], choices=sorted(RATES))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run after so many, and stop those left")
    parser.add_argument("--until", type=int, default=20, metavar="SEEDS", help="that judge")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    end = time.monotonic() + 60 * args.minutes
    running: dict[Future[dict[str, Any]], dict[str, Any]] = {}
    failed: list[dict[str, Any]] = []
    try:
        with workers(args.workers, "the same command goes on") as pool:
            while True:
                todo = [task for uses in args.uses for task in left(args.rules, uses, args.until, [*running.values()])]
                todo = [task for task in todo if task not in failed] if len(failed) < args.workers else []
                for task in todo[: args.workers - len(running)]:
                    running[pool.submit(train, task, args.model, device)] = task
                if not running:
                    break
                ended, _ = wait(running, end - time.monotonic(), FIRST_COMPLETED)
                if not ended:
                    raise TimeoutError
                for run in sorted(ended, key=lambda run: run.exception() is not None):  # rows before a broken pool
                    task, error = running.pop(run), run.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise error
                    if error:
                        failed.append(task)
                        row = task | {"error": f"{type(error).__name__}: {error}"}
                    else:
                        write_rows(CSV, [row := run.result()], add=True)
                    print(", ".join(str(x) for x in row.values()), flush=True)
    except TimeoutError:
        print(f"the time is over; rows of finished runs are in {CSV}")
    for uses in args.uses:
        report(uses)
    if failed:
        raise SystemExit(f"{len(failed)} runs failed")


if __name__ == "__main__":
    main()
