"""Measure what a wrong learning rate costs at one use of each answer, and GRPO's clip at the public clip rate.

    python -m research.measurements.learning_rate       five minutes on one core

In the calibrated world with four mini-batches, on the seeds that judged reuse_once.yaml there: no clip at the rate that
was chosen for it, at half and at twice that; and GRPO's clip at 0.06, where it has as many tokens outside (`percent`,
of 16 runs, with the standard error) as in the public logs, 0.12 to 0.15 %, and not at its own rate of 0.073. A
difference is from no clip at the chosen rate, seed by seed, with a 95 % interval.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from bandpo_runs.provenance import source_commit, write_rows
from research.measurements.reuse_rates import shares
from research.report.rows import judged
from research.statistics import bootstrap
from research.worlds import Learner, train

CSV = Path(__file__).with_suffix(".csv")
PLACE = ("reuse once", "calibrated, minibatches 4, epochs 1", "none")
TIMES, AS_PUBLIC = (1.0, 0.5, 2.0), 0.06
COLUMNS = ("rule", "learning_rate", "reward", "difference", "low", "high", "seeds", "percent", "error", "commit")


def main() -> None:
    none, grpo = (judged()[PLACE, rule].row for rule in ("no clip", "GRPO .2/.2"))
    first, count = none["seeds"]
    rates = [none["learner"]["learning_rate"] * times for times in TIMES] + [AS_PUBLIC]
    rules = [none["learner"]] * len(TIMES) + [grpo["learner"]]
    learners = [Learner(**rule | {"learning_rate": rate}) for rule, rate in zip(rules, rates, strict=True)]
    rewards = np.asarray(train(none["world"], learners, range(first, first + count))["final"])
    outside = [shares(none["world"], learners[-1], first + i)[0] for i in range(16)]
    rows = []
    told = [f"{statistics.fmean(outside):.3f}", f"{statistics.stdev(outside) / len(outside) ** 0.5:.3f}"]
    for rate, reward, learner in zip(rates, rewards, learners, strict=True):
        ends = bootstrap(lambda x, y: (x - y).mean(-1), reward, rewards[0])
        name, share = ("GRPO .2/.2", told) if learner is learners[-1] else ("no clip", ["0", "0"])
        numbers = [f"{rate:.4f}", f"{reward.mean():.3f}", *(f"{x:+.3f}" for x in ends), count]
        rows.append(dict(zip(COLUMNS, (name, *numbers, *share, source_commit()), strict=True)))
    write_rows(CSV, rows)


if __name__ == "__main__":
    main()
