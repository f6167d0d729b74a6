"""The lab over five seeds, both scenes and several learning rates: one row a run in lab.csv.

    python -m research.measurements.lab [SWEEP ...] [-o runs/bench] [--jobs 2]
    python -m research.measurements.lab --table    print the rows as Markdown tables

Runs that have a row are not repeated, so an interrupted sweep goes on with the same command. `--rows FOLDER` only turns
finished runs into rows. A number that was not reached is empty; `censored_at` then says how far the run went.
"""

import argparse
import math
import warnings
from pathlib import Path
from typing import Any

from bandpo.losses import method
from bandpo_runs.reports.panels import NUMBERS
from bandpo_runs.reports.sections import Run, read_runs
from bandpo_runs.reports.texts import summarize
from bandpo_runs.training.side_by_side import plan, run_all
from research.csv_rows import as_table, read_rows, write_rows

CSV = Path(__file__).with_suffix(".csv")
SEEDS = range(5)
METHODS = ("grpo", "clip-higher", "band-kl", "band-tv", "band-chi2", "band-relaxed", "dcpo", "no-clip", "clip-wide")
SWEEPS = {
    "tail-5e-6": ("tail", 5e-6, 36),
    "tail-1.5e-5": ("tail", 1.5e-5, 30),
    "tail-5e-5": ("tail", 5e-5, 24),
    "storm-3e-4": ("storm", 3e-4, 64),
    "storm-4e-4": ("storm", 4e-4, 64),
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
        value = number.of(run)
        row[name] = round(value, 4) if math.isfinite(value) else ""
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
        "command": info["command"],
    }


def key_of(row: dict[str, Any]) -> tuple[str, float, str, int, int]:
    return row["scene"], float(row["learning_rate"]), row["label"], int(row["seed"]), int(row["rounds"])


def rows_there() -> set[tuple[str, float, str, int, int]]:
    return {key_of(row) for row in read_rows(CSV, missing_ok=True)}


def write(folders: list[Path]) -> None:
    """Append a row for each finished run that has none."""
    rows = [row_of(run) for run in read_runs(folders) if run.finished]
    have = rows_there()
    rows = [row for row in rows if key_of(row) not in have]
    if rows:
        write_rows(CSV, rows, add=True)
    print(f"{len(rows)} new rows in {CSV}")


def table() -> None:
    """Markdown: a table for each sweep, then one that sets the learning rates of a scene side by side."""
    rows = read_rows(CSV)
    labels = [method(name).objective.trust_region.label for name in METHODS]
    sweeps: dict[str, dict[str, list[dict[str, str]]]] = {}
    for name, (scene, rate, rounds) in SWEEPS.items():
        here = [row for row in rows if key_of(row)[:2] == (scene, rate) and int(row["rounds"]) == rounds]
        # Seeds differ much: only those that every rule has run are compared.
        by_label = {label: [row for row in here if row["label"] == label] for label in labels}
        seeds = set.intersection(*({row["seed"] for row in mine} for mine in by_label.values()))
        if seeds:
            sweeps[name] = {label: [row for row in mine if row["seed"] in seeds] for label, mine in by_label.items()}
    columns = {"half_work": 1, "reward_mean": 3, "reward_last3": 3, "entropy_end": 2, "clip_percent": 2}
    columns |= {"early_tail_share_percent": 0, "good_tail_cut_percent": 1}
    for name, by_label in sweeps.items():
        _print(
            f"{name}, {SWEEPS[name][2]} rounds",
            ["seeds", *columns],
            {label: [str(len(mine)), *(_cell(mine, *c) for c in columns.items())] for label, mine in by_label.items()},
        )
    for scene, head, cell in (
        ("tail", "half_work", lambda mine: _cell(mine, "half_work", 1)),
        ("storm", "reward_last3: mean, and in how many seeds above 0.5", _kept),
    ):
        names = [name for name in sweeps if SWEEPS[name][0] == scene]
        _print(
            f"{scene}, {head}",
            [f"lr {name.partition('-')[2]}" for name in names],
            {label: [cell(sweeps[name][label]) for name in names] for label in labels},
        )


def _print(title: str, columns: list[str], cells: dict[str, list[str]]) -> None:
    print(f"\n{title}\n\n{as_table(['rule', *columns], ([label, *row] for label, row in cells.items()))}")


def _cell(rows: list[dict[str, str]], column: str, digits: int) -> str:
    # A missing round was not reached, another missing number was not defined.
    return summarize(
        [float(row[column] or (math.inf if column.startswith("half") else math.nan)) for row in rows], digits
    )


def _kept(rows: list[dict[str, str]]) -> str:
    """A mean of runs that keep the skill and runs that lose it describes neither: the count of those that keep it."""
    ends = [float(row["reward_last3"]) for row in rows]
    return f"{sum(ends) / len(ends):.2f}, {sum(end > 0.5 for end in ends)} of {len(ends)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=f"of {', '.join(SWEEPS)} (default: all)")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows", type=Path, help="only read the runs in this folder")
    parser.add_argument("--table", action="store_true", help="only print the rows")
    args = parser.parse_args()
    if args.table:
        table()
        return
    warnings.simplefilter("ignore", FutureWarning)
    if args.rows is not None:
        write([args.rows])
        return
    for name in args.sweeps or SWEEPS:
        scene, rate, rounds = SWEEPS[name]
        overrides = {"rounds": rounds, "trainer": {"learning_rate": rate}}
        have = rows_there()
        for seed in SEEDS:
            jobs = plan(scene, METHODS, [seed], args.output / name, overrides)
            jobs = [job for job in jobs if (scene, rate, job.config.label, seed, rounds) not in have]
            if jobs:
                command = f"python -m research.measurements.lab {name}"
                run_all(jobs, workers=args.jobs, resume=True, command=command, on_row=lambda job, row: None, say=print)
                write([job.folder for job in jobs])


if __name__ == "__main__":
    main()
