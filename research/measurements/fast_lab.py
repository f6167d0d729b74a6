"""Does the lab's own loop do what TRL's trainer does?

    python -m research.measurements.fast_lab --pairs 19 [--scenes tail]    runs of both, in fast_lab_pairs.csv
    python -m research.measurements.fast_lab --pairs-table    their differences

Two scenes, two rules. Pairs are of runs in which the model learns, of two warm starts and many seeds of prompts and
sampler. A run of either has the same warm start and the same prompts as the other's of that seed, and random numbers of
the sampler of its own, so differences are taken seed by seed; their interval is Student's.
"""

import argparse
import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from scipy import stats

from bandpo.losses import method
from bandpo_runs import toy
from bandpo_runs.provenance import hardware, source_commit, versions
from bandpo_runs.training.on_trl import run
from bandpo_runs.training.side_by_side import plan
from research.csv_rows import read_rows, write_rows
from research.fast_lab import Row, train

PAIRS = Path(__file__).with_name("fast_lab_pairs.csv")
RULES = ("grpo", "band-kl")
# The rounds in which the model learns.
SHORT = (("storm", 3e-4, 24), ("tail", 5e-5, 12))
WAYS, STARTS = ("TRL", "fast loop"), 2


def about() -> dict[str, Any]:
    releases = versions(("torch", "transformers", "trl"))
    return {"hardware": hardware(gpu=False), **{k: releases[k] for k in ("torch", "trl")}, "commit": source_commit()}


def compared(pairs: list[tuple[float, float]]) -> str:
    """Means of both, and of the difference with its interval."""
    means = [statistics.mean(values) for values in zip(*pairs, strict=True)]
    gaps = [b - a for a, b in pairs]
    half = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
    gap = statistics.mean(gaps)
    return f"{means[0]:.3f} | {means[1]:.3f} | {gap:+.3f} [{gap - half:+.3f}, {gap + half:+.3f}]"


def make_pairs(count: int, scenes: list[str]) -> None:
    have = {(row["scene"], int(row["seed"]), row["way"]) for row in read_rows(PAIRS, missing_ok=True)}
    for seed in range(count):
        start, rule = seed % STARTS, RULES[seed // STARTS % len(RULES)]
        for (scene, rate, rounds), way in itertools.product(SHORT, WAYS):
            if scene in scenes and (scene, seed, way) not in have:
                began = time.process_time()
                if way == "TRL":
                    rows: list[Row] = []
                    changes = {"rounds": rounds, "save_every": 0, "trainer": {"learning_rate": rate}}
                    through_trl(scene, rows.append, rule, seed, start, changes)
                else:
                    (rows,) = train(scene, rule, [seed], start_seed=start, learning_rate=rate, rounds=rounds)
                label = method(rule).objective.trust_region.label
                row = {"scene": scene, "learning_rate": rate, "label": label, "start": start, "seed": seed}
                rewards = [each["reward"] for each in rows]
                row |= {"rounds": rounds, "way": way, "reward_mean": round(statistics.mean(rewards), 4)}
                row |= {"rewards": " ".join(f"{x:.4g}" for x in rewards)}
                row |= {"cpu_seconds": round(time.process_time() - began, 1)}
                write_rows(PAIRS, [row | about()], add=True)
                print(scene, rule, seed, way, row["reward_mean"], flush=True)


def pairs_table() -> None:
    runs = {(row["way"], row["scene"], row["seed"]): float(row["reward_mean"]) for row in read_rows(PAIRS)}
    print("| runs | pairs | mean reward, TRL | the loop | difference, 95 % | lower |\n|---|---|---|---|---|---|")
    for where in (*(scene for scene, *_ in SHORT), "all"):
        # One that was interrupted between both ways has no pair.
        keys = [key[1:] for key in runs if key[0] == WAYS[0] and where in (key[1], "all")]
        pairs = [(runs[WAYS[0], *key], runs[WAYS[1], *key]) for key in keys if (WAYS[1], *key) in runs]
        print(f"| {where} | {len(pairs)} | {compared(pairs)} | {sum(b < a for a, b in pairs)} |")


def through_trl(
    scene: str, on_row: Callable[[Row], None], rule: str, seed: int, start: int, changes: dict[str, Any]
) -> None:
    """A run of `bandpo lab`, but with the warm start of the seed `start`: one for each seed would take too long."""
    start_folder = toy.warm_start(toy.SCENES[scene].p_work, start)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(toy, "warm_start", return_value=start_folder):
        (job,) = plan(scene, [rule], [seed], Path(folder), changes)
        run(job.config, on_row=on_row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, metavar="COUNT")
    parser.add_argument("--scenes", default=",".join(scene for scene, *_ in SHORT))
    parser.add_argument("--pairs-table", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    if args.pairs:
        make_pairs(args.pairs, args.scenes.split(","))
    if args.pairs_table:
        pairs_table()


if __name__ == "__main__":
    main()
