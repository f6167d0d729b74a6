"""Which rule is easiest to tune? The reward that the best of n settings gives that were drawn at random, in the mean.

    python -m research.bench research/contests/tuning.yaml
    python -m research.measurements.tuning runs/bench/tuning    rows in tuning.csv

Of N settings in the order of their mean reward on the seeds of the search, the one at place k, from 0, is the best of n
that are drawn without return with probability C(N - 1 - k, n - 1) / C(N, n). `value` is the mean reward of what is
chosen so, on the seeds of the second stage, by which nothing was chosen here. The 95 % interval is by resampling these
seeds; the seeds of the search and the draws are not in it. `minus fixed clip` is the difference from the fixed clip
with as many settings, on the same seeds.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from bandpo_runs.provenance import source_commit
from research.bench import read_contest
from research.bench.cells import cell, settings_of
from research.bench.contest import Contest, learner_of
from research.csv_rows import write_rows
from research.statistics import bootstrap

CSV = Path(__file__).with_suffix(".csv")
CONTEST = CSV.parents[1] / "contests" / "tuning.yaml"
COUNTS = (1, 3, 5, 10, 20, 144)


def chances(settings: int, drawn: int) -> np.ndarray:
    """The probability of each place, from the best, to be the best of those drawn."""
    ways = [math.comb(settings - 1 - place, drawn - 1) for place in range(settings)]
    return np.array([way / math.comb(settings, drawn) for way in ways])


def expected(search: np.ndarray, other: np.ndarray, drawn: int) -> np.ndarray:
    """The mean reward of the choice on each seed of the second stage; both arrays are (settings, seeds)."""
    best_first = np.argsort(-search.mean(1), kind="stable")
    return chances(len(search), drawn) @ other[best_first]


def rewards(
    contest: Contest, rows: dict[str, dict[str, Any]], family: Any, control: Any
) -> tuple[np.ndarray, np.ndarray]:
    """(settings, seeds), of the search and of the second stage."""
    points = settings_of(contest, contest.axes(family))
    learners = [learner_of(family, control, point) for point in points]

    def of(seeds: range) -> np.ndarray:
        keys = [cell(contest.worlds[0], x, seeds, contest.numbers).key for x in learners]
        return np.array([[x or 0.0 for x in rows[key][contest.metric]] for key in keys])  # null is a run that broke

    return of(contest.stages.search.range), of(contest.stages.choose.range)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the finished contest tuning.yaml")
    folder = parser.parse_args().folder
    contest = read_contest(CONTEST)
    commit = json.loads((folder / "results.json").read_text())["commit"]
    rows = {row["key"]: row for row in map(json.loads, (folder / "rows.jsonl").read_text().splitlines())}
    out = []
    for control in contest.controls:
        found = {family.name: rewards(contest, rows, family, control) for family in contest.families}
        for drawn in COUNTS:
            base = expected(*found[contest.baseline], drawn)
            for name, both in found.items():
                each = expected(*both, drawn)
                told = {"control": control.name, "family": name, "settings": drawn}
                one = bootstrap(lambda x: x.mean(-1), each)
                two = bootstrap(lambda x: x.mean(-1), each - base)
                for measure, x in (("reward", one), ("minus fixed clip", two)):
                    value, low, high = (f"{y:.4f}" for y in (x.value, x.low, x.high))
                    out.append({**told, "measure": measure, "value": value, "low": low, "high": high})
                print(f"{control.name}, best of {drawn}: {name} {one.value:.3f}, {two.value:+.3f}")
    made_by = {"commit": commit, "counted_by": source_commit()}
    write_rows(CSV, [row | made_by for row in out])


if __name__ == "__main__":
    main()
