"""Does the lab's own loop do what TRL's trainer does, and how much time does it save?

    python benchmarks/fast_lab.py [--seeds 0,1,2]     runs that have no row yet, in benchmarks/fast_lab.csv
    python benchmarks/fast_lab.py --table             their differences from TRL's rows in benchmarks/lab.csv
    python benchmarks/fast_lab.py --time 3            rows of times in benchmarks/fast_lab_time.csv
    python benchmarks/fast_lab.py --profile storm     where the time of a run through TRL goes

Two scenes, two rules. A run of either has the same warm start and the same prompts as the other's of that seed, and
random numbers of the sampler of its own, so differences are taken seed by seed; their interval is Student's.

Times: per round, in seconds of the wall clock and of this process on the CPU, which other people's processes disturb
less; the ways are run in turn, so that each of them meets the same of those. TRL's first round, which also loads the
model, does not count. "side by side" is eight runs in one process, per round of one of them.
"""

import argparse
import cProfile
import csv
import pstats
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy import stats

from bandpo import method
from bandpo.provenance import hardware, source_commit, versions
from bandpo.training.fast_lab import Row, train
from bandpo.training.on_trl import run
from bandpo.training.side_by_side import plan
from bandpo.trust_regions.notation import label_of

CSV, TIMES, TRL = (Path(__file__).with_name(name) for name in ("fast_lab.csv", "fast_lab_time.csv", "lab.csv"))
SWEEPS = (("storm", 3e-4, 64), ("tail", 5e-5, 24))
RULES = ("grpo", "band-kl")
NUMBERS = ("half_work", "reward_mean", "reward_last3", "entropy_end", "clip_percent")
KEY = ("scene", "learning_rate", "label", "seed", "rounds")


def about() -> dict[str, Any]:
    found = versions(("torch", "transformers", "trl"))
    return {"hardware": hardware(gpu=False), **{k: found[k] for k in ("torch", "trl")}, "commit": source_commit()}


def numbers(rows: list[Row]) -> dict[str, Any]:
    """As benchmarks/lab.py has them of TRL's rows."""
    reward = [row["reward"] for row in rows]
    outside, tokens = (sum(row[name] for row in rows) for name in ("clip/count", "tokens"))
    return {
        "half_work": next((row["round"] for row in rows if row["lab/work"] >= 0.5), ""),
        "reward_mean": round(statistics.mean(reward), 4),
        "reward_last3": round(statistics.mean(reward[-3:]), 4),
        "entropy_end": round(rows[-1]["entropy"], 4),
        "clip_percent": round(100 * outside / tokens, 4),
    }


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)


def key_of(row: dict[str, Any]) -> tuple[str, float, str, int, int]:
    return row["scene"], float(row["learning_rate"]), row["label"], int(row["seed"]), int(row["rounds"])


def agree(seeds: list[int]) -> None:
    have = {key_of(row) for row in read(CSV)}
    for scene, rate, rounds in SWEEPS:
        for rule in RULES:
            label = label_of(method(rule).objective.trust_region)
            left = [seed for seed in seeds if (scene, rate, label, seed, rounds) not in have]
            if not left:
                continue
            began = time.monotonic()
            found = train(scene, rule, left, learning_rate=rate, rounds=rounds)
            seconds = round((time.monotonic() - began) / len(left), 1)
            named = [dict(zip(KEY, (scene, rate, label, seed, rounds), strict=True)) for seed in left]
            append(CSV, [a | numbers(b) | {"seconds": seconds} | about() for a, b in zip(named, found, strict=True)])
            print(scene, rule, f"{seconds} s each", flush=True)


def table() -> None:
    theirs = {key_of(row): row for row in read(TRL)}
    print("| scene | rule | pairs | number | TRL | fast loop | difference, 95 % |\n|---|---|---|---|---|---|---|")
    for scene, rate, rounds in SWEEPS:
        for rule in RULES:
            label = label_of(method(rule).objective.trust_region)
            mine = [
                row for row in read(CSV) if key_of(row)[:3] == (scene, rate, label) and row["rounds"] == str(rounds)
            ]
            pairs = [(theirs[key_of(row)], row) for row in mine if key_of(row) in theirs]
            for name in NUMBERS:
                known = [(float(a[name]), float(b[name])) for a, b in pairs if a[name] and b[name]]
                means = [statistics.mean(values) for values in zip(*known, strict=True)]
                gaps = [b - a for a, b in known]
                half = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
                gap = statistics.mean(gaps)
                cells = f"{means[0]:.3f} | {means[1]:.3f} | {gap:+.3f} [{gap - half:+.3f}, {gap + half:+.3f}]"
                print(f"| {scene} {rate:g} | {label} | {len(known)} | {name} | {cells} |")


def through_trl(scene: str, rounds: int, on_row: Callable[[Row], None] = lambda row: None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (job,) = plan(scene, ["grpo"], [0], Path(folder), {"rounds": rounds, "save_every": 0})
        run(job.config, on_row=on_row)


def measure(repeats: int) -> None:
    def clocks() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def trl(scene: str, rounds: int) -> tuple[float, float]:
        """Per round, from the end of the first."""
        at: list[tuple[float, float]] = []
        through_trl(scene, rounds + 1, lambda row: at.append(clocks()))
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
                append(TIMES, [row | about()])
    for scene in ("storm", "tail"):
        rows = [row for row in read(TIMES) if row["scene"] == scene]
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
    parser.add_argument("--time", type=int, metavar="REPEATS")
    parser.add_argument("--profile", metavar="SCENE")
    args = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    if args.table:
        table()
    elif args.time:
        measure(args.time)
    elif args.profile:
        profile = cProfile.Profile()
        profile.runcall(through_trl, args.profile, 8)
        pstats.Stats(profile).sort_stats("cumulative").print_stats("trl|trainer|qwen2|optim|run_backward|generate")
    else:
        agree([int(seed) for seed in args.seeds.split(",")])


if __name__ == "__main__":
    main()
