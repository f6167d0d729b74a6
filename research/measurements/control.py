"""A radius that steers itself in the lab: is the target reached and held, from wherever it starts, and what does a
fixed radius do? One row a run in research/measurements/control.csv.

    python -m research.measurements.control [-o runs/control] [--jobs 2]    some minutes; finished runs are not repeated

Scene storm, where batches are small and used 16 times, for the clip rate; scene tail, 64 steps a round, for the 0.99
quantile of the log-ratio, which no radius moves in storm. The smoothing is over 20 and 50 steps, and kp = ki / (1 -
smoothing).

Columns: `rounds_to_target`, the first round from which the measure, over five rounds, stays within a fifth of the
target until the end (empty: never); `held`, the measure over the second half of the run, a ratio of sums over all its
tokens, and `off_percent`, how far it is from the target; `worst_round_percent`, the largest distance of a round's
measure there; `smoothed`, the mean over the second half of the smoothed measurement at the end of a round. What is held
is the mean of the steps; a quantile over a round's tokens is another number, so that its distances are those of the
smoothed measurement. For fixed radii target and distances are empty. `value_first`, `value_end`: the rule's number.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bandpo import Adaptive, Band, Controlled, Quantile, Region
from bandpo.trust_regions import Tilt
from bandpo.trust_regions.base import find_one
from bandpo_runs.reports.reading import Run, read_runs
from bandpo_runs.training.side_by_side import plan, run_all
from benchmarks.csv_rows import write_rows
from research.rules.laws import PI

CSV = Path(__file__).with_suffix(".csv")
# Rounds, learning rate, and what a fixed radius is compared by.
SCENES = {"storm": (48, 3e-4, "clip/fraction"), "tail": (8, 5e-5, "log_ratio/p99")}


def band(delta: float, law: Any) -> Controlled:
    return Controlled(Band("kl", delta), "delta", "clip/fraction", 0.02, law, low=0.001, high=1.0, smoothing=0.95)


def tail(delta: float, law: Any) -> Controlled:
    return Controlled(Band("kl", delta), "delta", "log_ratio/p99", 0.3, law, low=0.0005, high=0.5, smoothing=0.98)


FIXED: list[Region] = [Band("kl", delta) for delta in (0.005, 0.05, 0.3)]
STEERED: list[Region] = [*(band(delta, PI(kp=1.0)) for delta in (0.005, 0.05, 0.3)), band(0.05, Quantile(gain=5.0))]
# Over further seeds: fixed, steered, and wider where the old policy is unsure.
MORE: list[Region] = [Band("kl", 0.05), band(0.05, PI(kp=1.0)), Adaptive(Band("kl", 0.05), Tilt("entropy", 0.5))]
TAIL: list[Region] = [*(Band("kl", delta) for delta in (0.0005, 0.005, 0.05)), tail(0.05, PI(kp=2.5))]
RUNS: list[tuple[str, int, list[Region]]] = [
    ("storm", 0, [*FIXED, *STEERED]),
    ("storm", 1, MORE),
    ("storm", 2, MORE),
    ("tail", 0, TAIL),
]


def row_of(run: Run) -> dict[str, Any]:
    """What came out of one finished run."""
    rule = find_one(run.region, Controlled)
    scene = run.info["scene"]
    measure = SCENES[scene][2]
    tokens, value = run.total("tokens"), run.mean(measure)
    half = len(value) // 2
    held = float((value * tokens)[half:].sum() / tokens[half:].sum())
    row: dict[str, Any] = {
        "scene": scene,
        "label": run.region.label,
        "measure": measure,
        "target": "" if rule is None else rule.target,
        "rounds": run.info["rounds"],
        "steps_per_round": run.info["steps_per_round"],
        "rounds_to_target": "",
        "held": f"{held:.4g}",
        "smoothed": "",
        "off_percent": "",
        "worst_round_percent": "",
        "kl_old_k3": f"{run.mean('kl_old/k3')[half:].mean():.4g}",
        "reward_last8": f"{run.mean('reward')[-8:].mean():.3f}",
        "value_first": "",
        "value_end": "",
        "seed": run.info["seed"],
        "seconds": run.info["wall_seconds"],
        "hardware": run.info["hardware"],
        "torch": run.info["versions"]["torch"],
        "trl": run.info["versions"]["trl"],
        "commit": run.info["commit"],
    }
    if rule is not None:
        over, smoothed, radius = 5, run.mean("controlled/measured"), run.mean("controlled/value")
        if measure == "log_ratio/p99":
            value = smoothed
            held = value[half:].mean()
        several = np.convolve(value * tokens, np.ones(over), "valid") / np.convolve(tokens, np.ones(over), "valid")
        outside = [i for i, each in enumerate(several) if abs(each / rule.target - 1) > 0.2]
        last = outside[-1] + over if outside else over - 1
        row |= {
            "rounds_to_target": last + 1 if last < len(value) else "",
            "smoothed": f"{smoothed[half:].mean():.4g}",
            "off_percent": f"{100 * (held / rule.target - 1):.1f}",
            "worst_round_percent": f"{100 * abs(value[half:] / rule.target - 1).max():.0f}",
            "value_first": rule.value(rule.start()),
            "value_end": f"{radius[-1]:.4g}",
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/control"))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    jobs = []
    for scene, seed, rules in RUNS:
        rounds, rate, _ = SCENES[scene]
        overrides = {"rounds": rounds, "trainer": {"learning_rate": rate}}
        jobs += plan(scene, [json.dumps(rule.to_config()) for rule in rules], [seed], args.output, overrides)
    command = "python -m research.measurements.control"
    run_all(jobs, workers=args.jobs, resume=True, command=command, on_row=lambda job, row: None, say=print)
    runs = {run.folder: run for run in read_runs([job.folder for job in jobs])}
    rows = [row_of(runs[job.folder]) for job in jobs]
    for row in rows:
        print({key: value for key, value in row.items() if value != ""})
    write_rows(CSV, rows)


if __name__ == "__main__":
    main()
