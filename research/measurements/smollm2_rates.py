"""What does a rule forgive in a language model? SmolLM2-135M at one learning rate for all rules.

    python -m research.measurements.smollm2_rates [--minutes 60] [--seeds 10] [--part 1/2]

It learns `bandpo train`'s own task, of 704,880 questions: 12 rounds of 64 answers, 4 epochs over each. Seeds 0 and 1
choose no clip's learning rate, by pass@1. Then the rules of the claim are trained at four times that rate, and at
twice, on seeds from 100 on; then Clip-Higher, and all of them at the rate itself. A run is a row of smollm2_rates.csv,
and is not trained again. The row has exact pass@k of 16 answers to each of 400 held-out questions, and `counts`, the
right ones of each in base 32. The end of the output compares rules on the same seeds. One core needs a quarter of an
hour for a run; with `--part 1/2` and `--part 2/2` two processes share the runs.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from bandpo_runs.config.recipe import build, read_settings
from bandpo_runs.provenance import hardware, source_commit
from bandpo_runs.training import on_trl
from bandpo_runs.training.preflight import SMOLLM2_RECIPE, prepare
from research.csv_rows import as_table, read_rows, write_rows
from research.measurements.smollm2_reuse import RULES as REUSED
from research.measurements.smollm2_reuse import SAMPLES, right

CSV = Path(__file__).with_suffix(".csv")
RULES = {
    "no clip": REUSED["no clip"], "GRPO 0.2/0.2": REUSED["GRPO 0.2/0.2"],
    "Clip-Higher": {"type": "clip", "eps_low": 0.2, "eps_high": 0.28}, "Band-KL 0.05": REUSED["Band-KL 0.05"],
}  # fmt: skip
RATES, CHOOSE, JUDGE = (6.25e-7, 1.25e-6, 2.5e-6, 5e-6), (0, 1), 100
CLAIMED = ["no clip", "Band-KL 0.05", "GRPO 0.2/0.2"]
# Of no clip's learning rate: those of the claim first, and where most is expected.
ORDER = (4, CLAIMED), (2, CLAIMED), (4, ["Clip-Higher"]), (2, ["Clip-Higher"]), (1, [*RULES])
EPOCHS, ROUNDS = 4, 12
OUTCOMES = {"pass1": "right (pass@1)", "pass16": "pass@16", "entropy": "entropy, nats"}
Run = tuple[str, float, int]  # rule, learning rate, seed


def train(rule: str, rate: float, seed: int, changed: dict[str, Any]) -> dict[str, Any]:
    """Train one run in a folder that is deleted, and return its row.

    `changed` are settings; "courses" in it is more to keep of each round, by its name in a row and in the log.
    """
    courses = {"reward": "reward", "entropy": "entropy"} | changed.pop("courses", {})
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "seed": seed, "rounds": ROUNDS, "output": folder + "/run", "save_every": 0,
            "trainer.learning_rate": rate, "trainer.num_iterations": EPOCHS, "trainer.per_device_train_batch_size": 16,
            "trainer.steps_per_generation": 4, "trainer.logging_steps": 4 * EPOCHS, "trainer.eval_strategy": "no",
            "trainer.eval_on_start": False, **changed,
        }  # fmt: skip
        overrides = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        config = build(prepare(read_settings(SMOLLM2_RECIPE, overrides), is_recipe=False)[0])
        began = time.monotonic()
        on_trl.run(config)
        rows = list(map(json.loads, Path(config.output, "metrics.jsonl").read_text().splitlines()))
        rows = [row for row in rows if "reward" in row]
        device = "cpu" if config.trainer["use_cpu"] else "cuda"
        scored = config.model_copy(update={"reward": "last-number"})  # whatever it was trained by
        counts = [round(SAMPLES * share) for share in right(Path(config.output) / "model", scored, device)]
        mean = {name: statistics.fmean(row[f"cut/{name}_fraction"] for row in rows) for name in ("high", "low")}
        return {
            "rule": rule, "learning_rate": rate, "seed": seed,
            **{f"pass{k}": f"{pass_at(k, counts):.4f}" for k in (1, 4, 16)},
            "entropy": f"{rows[-1]['entropy']:.4f}", "reward": f"{statistics.fmean(row['reward'] for row in rows):.4f}",
            "clipped_above": f"{mean['high']:.6f}", "clipped_below": f"{mean['low']:.6f}",
            "highest_log_ratio": f"{max(row['log_ratio/max'] for row in rows):.2f}",
            **{f"{name}_course": " ".join(f"{row[key]:.3f}" for row in rows) for name, key in courses.items()},
            "clipped_course": " ".join(f"{row['cut/fraction']:.4f}" for row in rows),
            "counts": "".join(np.base_repr(count, 32) for count in counts), "seconds": round(time.monotonic() - began),
            "hardware": hardware(gpu=device != "cpu"), "torch": torch.__version__, "commit": source_commit(),
        }  # fmt: skip


def pass_at(k: int, counts: list[int]) -> float:
    """Return the exact chance that one of k answers is right, by the right ones among SAMPLES to each question."""
    none = [math.comb(SAMPLES - count, k) / math.comb(SAMPLES, k) for count in counts]
    return 1 - statistics.fmean(none)


def values(csv: Path | None = None) -> dict[Run, list[float]]:
    """Return the OUTCOMES of every run that has its row."""
    rows = read_rows(csv or CSV, missing_ok=True)
    return {
        (row["rule"], float(row["learning_rate"]), int(row["seed"])): [float(row[name]) for name in OUTCOMES]
        for row in rows
    }


def best_rate(csv: Path | None = None) -> float | None:
    """Return no clip's best learning rate; None while its search is not over."""
    runs = {run: right for run, (right, *_) in values(csv).items()}
    by_rate = {rate: [runs.get(("no clip", rate, seed)) for seed in CHOOSE] for rate in RATES}
    if any(None in some for some in by_rate.values()):
        return None
    return max(by_rate, key=lambda rate: sum(by_rate[rate]))  # type: ignore[arg-type]


def todo(
    seeds: int,
    part: int = 0,
    parts: int = 1,
    csv: Path | None = None,
    order: Sequence[tuple[int, Sequence[str]]] = ORDER,
    rate: float | None = None,
) -> list[Run]:
    """Return the runs of a part that have no row, the next first. Without a rate no clip's best one is found first."""
    rate = rate or best_rate(csv)
    runs = [("no clip", each, seed) for seed in CHOOSE for each in RATES]
    if rate is not None:
        runs = [(rule, k * rate, seed) for k, rules in order for seed in range(JUDGE, JUDGE + seeds) for rule in rules]
    done = values(csv)
    return [run for run in runs[part::parts] if run not in done]


def settings(rule: str) -> dict[str, Any]:
    """Return what differs from the recipe by rule."""
    return {"trust_region": RULES[rule]}


def report(
    seeds: int,
    csv: Path | None = None,
    rules: Sequence[str] = (*RULES,),
    factors: Sequence[int] = (4, 2, 1),
    rate: float | None = None,
    other: str = "GRPO 0.2/0.2",
) -> None:
    """Print a table of every factor of no clip's best learning rate, in which rules are compared with two."""
    rate = rate or best_rate(csv)
    if rate in (RATES[0], RATES[-1]):
        print(f"no clip's best learning rate, {rate:g}, is at the end of {RATES}: it may be beyond")
    for factor in factors if rate else ():
        print(table(factor * rate, range(JUDGE, JUDGE + seeds), csv, rules, ("no clip", other)), end="\n\n")


def table(rate: float, seeds: Iterable[int], csv: Path | None, rules: Sequence[str], bases: Sequence[str]) -> str:
    """Return the means of rules at a learning rate, and their differences from `bases` on the seeds of both.

    An interval is of Student's t over pairs, and one of 98.3 %: three looks at the rows have 95 % together.
    """
    runs = values(csv)
    ends = {rule: {seed: runs[rule, rate, seed] for seed in seeds if (rule, rate, seed) in runs} for rule in rules}
    lines = [
        [rule, str(len(by_seed)), *(f"{mean:.3f}" for mean in np.mean([*by_seed.values()], 0))]
        for rule, by_seed in ends.items()
        if by_seed
    ]
    for i, base in enumerate(bases):
        for rule in [rule for rule in rules if rule not in bases[: i + 1]]:
            gaps = [np.subtract(ends[rule][seed], ends[base][seed]) for seed in ends[rule].keys() & ends[base].keys()]
            if len(gaps) > 1:
                half = stats.t.ppf(1 - 0.05 / 6, len(gaps) - 1) * stats.sem(gaps)
                told = (f"{gap:+.3f} ± {width:.3f}" for gap, width in zip(np.mean(gaps, 0), half, strict=True))
                lines.append([f"{rule} minus {base}", str(len(gaps)), *told])
    return as_table([f"learning rate {rate:g}", "seeds", *OUTCOMES.values()], lines)


def main(
    description: str | None,
    csv: Path,
    seeds: int,
    todo: Callable[[int, int, int], list[Run]],
    report: Callable[[int], None],
    settings: Callable[[str], dict[str, Any]],
) -> None:
    """Train the runs that are to do, and report. `settings` are a rule's, in place of the recipe's."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run after so many")
    parser.add_argument("--seeds", type=int, default=seeds, help="that judge")
    parser.add_argument("--part", default="1/1", help="of the runs, for several processes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * args.minutes
    part, parts = map(int, args.part.split("/"))
    while time.monotonic() < end and todo(args.seeds, 0, 1):
        runs = todo(args.seeds, part - 1, parts)
        if not runs:  # another part has not finished what decides the next ones
            print("waiting for the runs of another part", flush=True)
            time.sleep(60)
            continue
        row = train(*runs[0], settings(runs[0][0]))
        print(", ".join(f"{name} {row[name]}" for name in [*row][:7]), flush=True)
        write_rows(csv, [row], add=True)
    report(args.seeds)


if __name__ == "__main__":
    main(__doc__, CSV, 10, todo, report, settings)
