"""Does the lab's own loop do what TRL's trainer does, and how much time does it save?

    python -m research.measurements.fast_lab [--seeds 0,1,2]    runs that have no row yet, in fast_lab.csv
    python -m research.measurements.fast_lab --table    their differences from TRL's rows in lab.csv
    python -m research.measurements.fast_lab --pairs 19 [--scenes tail]    runs of both, in fast_lab_pairs.csv
    python -m research.measurements.fast_lab --pairs-table    their differences, and those of each round
    python -m research.measurements.fast_lab --time 3    rows of times in fast_lab_time.csv
    python -m research.measurements.fast_lab --profile storm    where the time of a run through TRL goes

Two scenes, two rules. A run of either has the same warm start and the same prompts as the other's of that seed, and
random numbers of the sampler of its own, so differences are taken seed by seed; their interval is Student's.

Pairs are of shorter runs, in which the model learns, of two warm starts and many seeds of prompts and sampler: enough
to tell a small difference from chance. A row has the reward of each round, too: in the first one both have the same
policy, so that a difference there is the sampler's.

Times: per round, in seconds of the wall clock and of this process on the CPU, which other people's processes disturb
less; the ways are run in turn, so that each of them meets the same of those. TRL's first round, which also loads the
model, does not count. "side by side" is eight runs in one process, per round of one of them.
"""

import argparse
import cProfile
import itertools
import pstats
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

CSV, TIMES, PAIRS = (
    Path(__file__).with_name(name) for name in ("fast_lab.csv", "fast_lab_time.csv", "fast_lab_pairs.csv")
)
TRL = CSV.with_name("lab.csv")
SWEEPS = (("storm", 3e-4, 64), ("tail", 5e-5, 24))
RULES = ("grpo", "band-kl")
# The rounds in which the model learns.
SHORT = (("storm", 3e-4, 24), ("tail", 5e-5, 12))
WAYS, STARTS = ("TRL", "fast loop"), 2
NUMBERS = ("half_work", "reward_mean", "reward_last3", "entropy_end", "clip_percent")
KEY = ("scene", "learning_rate", "label", "seed", "rounds")


def about() -> dict[str, Any]:
    found = versions(("torch", "transformers", "trl"))
    return {"hardware": hardware(gpu=False), **{k: found[k] for k in ("torch", "trl")}, "commit": source_commit()}


def numbers(rows: list[Row]) -> dict[str, Any]:
    """As lab.py has them of TRL's rows."""
    reward = [row["reward"] for row in rows]
    outside, tokens = (sum(row[name] for row in rows) for name in ("clip/count", "tokens"))
    return {
        "half_work": next((row["round"] for row in rows if row["lab/work"] >= 0.5), ""),
        "reward_mean": round(statistics.mean(reward), 4),
        "reward_last3": round(statistics.mean(reward[-3:]), 4),
        "entropy_end": round(rows[-1]["entropy"], 4),
        "clip_percent": round(100 * outside / tokens, 4),
    }


def key_of(row: dict[str, Any]) -> tuple[str, float, str, int, int]:
    return row["scene"], float(row["learning_rate"]), row["label"], int(row["seed"]), int(row["rounds"])


def agree(seeds: list[int]) -> None:
    have = {key_of(row) for row in read_rows(CSV, missing_ok=True)}
    for scene, rate, rounds in SWEEPS:
        for rule in RULES:
            label = method(rule).objective.trust_region.label
            left = [seed for seed in seeds if (scene, rate, label, seed, rounds) not in have]
            if not left:
                continue
            began = time.monotonic()
            found = train(scene, rule, left, learning_rate=rate, rounds=rounds)
            seconds = round((time.monotonic() - began) / len(left), 1)
            named = [dict(zip(KEY, (scene, rate, label, seed, rounds), strict=True)) for seed in left]
            rows = [a | numbers(b) | {"seconds": seconds} | about() for a, b in zip(named, found, strict=True)]
            write_rows(CSV, rows, add=True)
            print(scene, rule, f"{seconds} s each", flush=True)


def table() -> None:
    theirs, ours = {key_of(row): row for row in read_rows(TRL)}, read_rows(CSV)
    print("| scene | rule | pairs | number | TRL | fast loop | difference, 95 % |\n|---|---|---|---|---|---|---|")
    for scene, rate, rounds in SWEEPS:
        for rule in RULES:
            label = method(rule).objective.trust_region.label
            mine = [row for row in ours if (*key_of(row)[:3], key_of(row)[4]) == (scene, rate, label, rounds)]
            pairs = [(theirs[key_of(row)], row) for row in mine if key_of(row) in theirs]
            for name in NUMBERS:
                known = [(float(a[name]), float(b[name])) for a, b in pairs if a[name] and b[name]]
                print(f"| {scene} {rate:g} | {label} | {len(known)} | {name} | {compared(known)} |")


def compared(known: list[tuple[float, float]]) -> str:
    """Means of both, and of the difference with its interval."""
    means = [statistics.mean(values) for values in zip(*known, strict=True)]
    gaps = [b - a for a, b in known]
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
                row |= {"rounds": rounds, "way": way, **numbers(rows)}
                row |= {"rewards": " ".join(f"{each['reward']:.4g}" for each in rows)}
                row |= {"cpu_seconds": round(time.process_time() - began, 1)}
                write_rows(PAIRS, [row | about()], add=True)
                print(scene, rule, seed, way, row["reward_mean"], flush=True)


def pairs_table() -> None:
    runs = {(row["way"], row["scene"], row["seed"]): row for row in read_rows(PAIRS)}
    # One that was interrupted between both ways has no pair.
    whole = [key[1:] for key in runs if key[0] == WAYS[0] and (WAYS[1], *key[1:]) in runs]
    pairs = [(runs[WAYS[0], *key], runs[WAYS[1], *key]) for key in whole]

    def line(where: str, number: str, known: list[tuple[float, float]]) -> None:
        lower = sum(b < a for a, b in known)
        print(f"| {where} | {len(known)} | {number} | {compared(known)} | {lower} |")

    def numbers_of(pairs: list[tuple[dict[str, str], dict[str, str]]], name: str) -> list[tuple[float, float]]:
        return [(float(a[name]), float(b[name])) for a, b in pairs if a[name] and b[name]]

    print("| runs | pairs | number | TRL | fast loop | difference, 95 % | lower |\n|---|---|---|---|---|---|---|")
    line("all", "reward_mean", numbers_of(pairs, "reward_mean"))
    for scene, rate, rounds in SHORT:
        mine, where = [pair for pair in pairs if pair[0]["scene"] == scene], f"{scene} {rate:g}"
        for start in map(str, range(STARTS)):
            of_start = [pair for pair in mine if pair[0]["start"] == start]
            line(f"{where}, start {start}", "reward_mean", numbers_of(of_start, "reward_mean"))
        for name in NUMBERS:
            line(where, name, numbers_of(mine, name))
        rewards = [[row["rewards"].split() for row in pair] for pair in mine]
        for i in range(rounds):
            line(where, f"reward of round {i + 1}", [(float(a[i]), float(b[i])) for a, b in rewards])


def through_trl(
    scene: str, on_row: Callable[[Row], None], rule: str, seed: int, start: int, changes: dict[str, Any]
) -> None:
    """A run of `bandpo lab`, but with the warm start of the seed `start`: one for each seed would take too long."""
    found = toy.warm_start(toy.SCENES[scene].p_work, start)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(toy, "warm_start", return_value=found):
        (job,) = plan(scene, [rule], [seed], Path(folder), changes)
        run(job.config, on_row=on_row)


def measure(repeats: int) -> None:
    def clocks() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def trl(scene: str, rounds: int) -> tuple[float, float]:
        """Per round, from the end of the first."""
        at: list[tuple[float, float]] = []
        changes = {"rounds": rounds + 1, "save_every": 0}
        through_trl(scene, lambda row: at.append(clocks()), "grpo", 0, 0, changes)
        return (at[rounds][0] - at[0][0]) / rounds, (at[rounds][1] - at[0][1]) / rounds

    def fast(scene: str, rounds: int, count: int, measure: bool) -> tuple[float, float]:
        before = clocks()
        train(scene, "grpo", range(count), start_seed=0, rounds=rounds, measure=measure)
        after = clocks()
        return (after[0] - before[0]) / rounds / count, (after[1] - before[1]) / rounds / count

    for _ in range(repeats):
        for scene, rounds in (("storm", 4), ("tail", 1)):
            ways = {
                "TRL": trl(scene, rounds),
                "fast, one run": fast(scene, rounds, 1, True),
                "fast, side by side": fast(scene, rounds, 8, True),
                "fast, side by side, not measured": fast(scene, rounds, 8, False),
            }
            for way, (wall, cpu) in ways.items():
                row = {"scene": scene, "way": way, "wall_seconds": round(wall, 4), "cpu_seconds": round(cpu, 4)}
                write_rows(TIMES, [row | about()], add=True)
    for scene in ("storm", "tail"):
        rows = [row for row in read_rows(TIMES) if row["scene"] == scene]
        base = {}
        for way in dict.fromkeys(row["way"] for row in rows):
            mine = [row for row in rows if row["way"] == way]
            medians = {k: statistics.median(float(row[k]) for row in mine) for k in ("wall_seconds", "cpu_seconds")}
            base = base or medians
            ratios = " ".join(f"{k} {value:.3f}, TRL / this {base[k] / value:.1f};" for k, value in medians.items())
            print(f"{scene}, {way}, median of {len(mine)}: {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--pairs", type=int, metavar="COUNT")
    parser.add_argument("--scenes", default=",".join(scene for scene, *_ in SHORT))
    parser.add_argument("--pairs-table", action="store_true")
    parser.add_argument("--time", type=int, metavar="REPEATS")
    parser.add_argument("--profile", metavar="SCENE")
    args = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    if args.table:
        table()
    elif args.pairs:
        make_pairs(args.pairs, args.scenes.split(","))
    elif args.pairs_table:
        pairs_table()
    elif args.time:
        measure(args.time)
    elif args.profile:
        profile = cProfile.Profile()
        changes = {"rounds": 8, "save_every": 0}
        profile.runcall(through_trl, args.profile, lambda row: None, "grpo", 0, 0, changes)
        pstats.Stats(profile).sort_stats("cumulative").print_stats("trl|trainer|qwen2|optim|run_backward|generate")
    else:
        agree([int(seed) for seed in args.seeds.split(",")])


if __name__ == "__main__":
    main()
