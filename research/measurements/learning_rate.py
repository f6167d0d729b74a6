"""Measure what half and twice the best learning rate cost at one use of each answer (learning_rate.csv).

    python -m research.measurements.learning_rate       two minutes on one core

No clip in the calibrated world at the rate that reuse_once.yaml chose for it, at half and at twice that, on the seeds
that judged there. A difference is from the chosen rate, seed by seed, with a 95 % interval.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from bandpo_runs.provenance import source_commit
from research.report.rows import judged
from research.statistics import bootstrap
from research.worlds import Learner, train

CSV = Path(__file__).with_suffix(".csv")
TIMES = (0.5, 1.0, 2.0)


def main() -> None:
    place = ("reuse once", "calibrated, minibatches 4, epochs 1", "none")
    one = judged()[place, "no clip"]
    first, count = one.row["seeds"]
    rate = one.row["learner"]["learning_rate"]
    learners = [Learner(**one.row["learner"] | {"learning_rate": rate * times}) for times in TIMES]
    rewards = np.asarray(train(one.row["world"], learners, range(first, first + count))["final"])
    with CSV.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["times", "learning_rate", "reward", "difference", "low", "high", "seeds", "commit"])
        for times, reward in zip(TIMES, rewards, strict=True):
            ends = bootstrap(lambda x, y: (x - y).mean(-1), reward, rewards[1])
            told = [f"{reward.mean():.3f}", *(f"{x:+.3f}" for x in ends)]
            writer.writerow([times, f"{rate * times:.4f}", *told, count, source_commit()])


if __name__ == "__main__":
    main()
