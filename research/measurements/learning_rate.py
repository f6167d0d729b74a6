"""Measure what a wrong learning rate costs at one use of each answer, and a rule at the public clip rate.

    python -m research.measurements.learning_rate    five minutes on one core

In the calibrated world with four mini-batches, on the seeds that judged reuse_once.yaml there: no clip at the rate that
was chosen for it, at half and at twice that; and the published rules at 0.06, where GRPO's clip has as many tokens
outside (`percent`, of 16 runs, with the standard error) as in the public logs, 0.12 to 0.15 %, and not at its own rate
of 0.073. A difference is from no clip at the chosen rate, seed by seed, with a 95 % interval.
"""

import statistics
from pathlib import Path

import numpy as np

from bandpo_runs.provenance import source_commit
from research.csv_rows import write_rows
from research.measurements.reuse_rates import PUBLISHED, shares
from research.report.rows import judged
from research.statistics import bootstrap
from research.worlds import Learner, train

CSV = Path(__file__).with_suffix(".csv")
PLACE = ("reuse once", "calibrated, minibatches 4, epochs 1", "none")
TIMES, AS_PUBLIC = (1.0, 0.5, 2.0), 0.06
COLUMNS = ("rule", "learning_rate", "reward", "difference", "low", "high", "seeds", "percent", "error", "commit")


def main() -> None:
    none, *published = (judged()[PLACE, rule].row for rule in ("no clip", *PUBLISHED))
    first, count = none["seeds"]
    rules = {("no clip", none["learner"]["learning_rate"] * times): none["learner"] for times in TIMES}
    rules |= {(name, AS_PUBLIC): row["learner"] for name, row in zip(PUBLISHED, published, strict=True)}
    learners = [Learner(**rule | {"learning_rate": rate}) for (_, rate), rule in rules.items()]
    rewards = np.asarray(train(none["world"], learners, range(first, first + count))["final"])
    rows = []
    for (name, rate), reward, learner in zip(rules, rewards, learners, strict=True):
        ends = bootstrap(lambda x, y: (x - y).mean(-1), reward, rewards[0])
        outside = [shares(none["world"], learner, first + i)[0] for i in range(16)]
        share = f"{statistics.fmean(outside):.4f}", f"{statistics.stdev(outside) / len(outside) ** 0.5:.4f}"
        numbers = [f"{rate:.4f}", f"{reward.mean():.3f}", *(f"{x:+.3f}" for x in ends), count]
        rows.append(dict(zip(COLUMNS, (name, *numbers, *share, source_commit()), strict=True)))
    write_rows(CSV, rows)


if __name__ == "__main__":
    main()
