"""The lab over five seeds, three learning rates and both scenes: one row a run in benchmarks/lab.csv.

    python benchmarks/lab.py [tail-5e-6 tail-1.5e-5 tail-5e-5 storm-3e-4] [-o runs/bench] [--jobs 2]

Runs that have a row are not repeated, so an interrupted sweep goes on with the same command. `--rows FOLDER` only turns
finished runs into rows. A number that was not reached is empty; `censored_at` then says how far the run went.
"""

import argparse
import csv
import warnings
from pathlib import Path
from typing import Any

from bandpo.compare import METHODS, plan, run_all
from bandpo.report import NUMBERS, Run, read_runs

CSV = Path(__file__).with_suffix(".csv")
SEEDS = range(5)
SWEEPS = {
    "tail-5e-6": ("tail", 5e-6, 36),
    "tail-1.5e-5": ("tail", 1.5e-5, 30),
    "tail-5e-5": ("tail", 5e-5, 24),
    "storm-3e-4": ("storm", 3e-4, 64),
}
NAMES = (
    "half_work",
    "half_reward",
    "reward_mean",
    "reward_last3",
    "entropy_end",
    "entropy_at_half_reward",
    "clip_percent",
    "early_tail_share_percent",
    "good_tail_cut_percent",
)


def row_of(run: Run) -> dict[str, Any]:
    """What came out of one finished run."""
    info = run.info
    row: dict[str, Any] = {key: info[key] for key in ("scene", "learning_rate", "label", "seed", "rounds")}
    for name, number in zip(NAMES, NUMBERS, strict=True):
        low, high = number.of(run)
        row[name] = round(low, 4) if low == high else ""
    row["censored_at"] = info["rounds"] if row["half_work"] == "" else ""
    start = info.get("warm_start") or {}
    return row | {
        "start_p_work": round(start.get("p_work", float("nan")), 4),
        "start_right_if_work": round(start.get("right_if_work", float("nan")), 4),
        "seconds": info["wall_seconds"],
        "hardware": info["hardware"],
        "torch": info["versions"]["torch"],
        "trl": info["versions"]["trl"],
        "commit": info["commit"],
        "command": f"python benchmarks/lab.py {info['scene']}-{info['learning_rate']:g}".replace("e-0", "e-"),
    }


def key_of(row: dict[str, Any]) -> tuple[str, float, str, int, int]:
    return row["scene"], float(row["learning_rate"]), row["label"], int(row["seed"]), int(row["rounds"])


def known() -> set[tuple[str, float, str, int, int]]:
    if not CSV.exists():
        return set()
    with CSV.open(newline="", encoding="utf-8") as file:
        return {key_of(row) for row in csv.DictReader(file)}


def write(folders: list[Path]) -> None:
    """Append a row for each finished run that has none."""
    rows = [row_of(run) for run in read_runs(folders) if run.finished]
    have = known()
    rows = [row for row in rows if key_of(row) not in have]
    new = not CSV.exists()
    with CSV.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0])) if rows else None
        if writer is not None:
            if new:
                writer.writeheader()
            writer.writerows(rows)
    print(f"{len(rows)} new rows in {CSV}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=f"of {', '.join(SWEEPS)} (default: all)")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows", type=Path, help="only read the runs in this folder")
    args = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    if args.rows is not None:
        write([args.rows])
        return
    for name in args.sweeps or SWEEPS:
        scene, rate, rounds = SWEEPS[name]
        overrides = {"rounds": rounds, "trainer": {"learning_rate": rate}}
        have = known()
        for seed in SEEDS:
            jobs = plan(scene, list(METHODS), [seed], args.output / name, overrides)
            jobs = [job for job in jobs if (scene, rate, job.config.label, seed, rounds) not in have]
            if jobs:
                command = f"python benchmarks/lab.py {name}"
                run_all(jobs, workers=args.jobs, resume=True, command=command, on_row=lambda job, row: None, say=print)
                write([job.folder for job in jobs])


if __name__ == "__main__":
    main()
