"""Measure on what share of tokens each judged rule of the contests reuse*.yaml acts (reuse_rates.csv).

    python -m research.measurements.reuse_rates       a minute for each world; what is in the file is not repeated

`percent` is the library's `clip/fraction` in the mean over all optimizer steps of two runs: tokens whose ratio is
outside the rule's interval, whatever the sign of their advantage, over all tokens. The public logs count the same. The
rule has the setting and the learning rate that its contest chose. Worlds keep no such number, so that the runs are made
again, on the first judging seeds and by the engine in torch.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

from bandpo_runs.provenance import source_commit
from research.report.rows import Kept, kept
from research.worlds import Learner, reference, train

CSV = Path(__file__).with_suffix(".csv")
RUNS = 2
COLUMNS = ("contest", "world", "control", "family", "setting", "percent", "runs", "commit")


def percent_outside(world: Any, learner: Learner, seed: int, name: str = "clip/fraction") -> float:
    """Return the mean of a metric over the optimizer steps of a run, in percent. TRL and verl log `cut/fraction`."""
    plain, shares = reference.policy_loss, {}

    def counted(*args: Any, **more: Any) -> Any:  # more than once in some steps
        loss, metrics = plain(*args, **more)
        shares[more["step"]] = metrics.compute()[name]
        return loss, metrics

    reference.policy_loss = counted
    try:
        train(world, [learner], [seed], engine="torch")
    finally:
        reference.policy_loss = plain
    return 100 * statistics.fmean(shares.values())


def row_of(one: Kept) -> dict[str, Any]:
    first, learner = one.row["seeds"][0], Learner(**one.row["learner"])
    percent = statistics.fmean(percent_outside(one.row["world"], learner, first + i) for i in range(RUNS))
    contest, world, control = one.place
    told = (contest, world, control, one.told["family"], one.setting, f"{percent:.4f}", RUNS, source_commit())
    return dict(zip(COLUMNS, told, strict=True))


def main() -> None:
    done: set[tuple[str, ...]] = set()
    if CSV.exists():
        with CSV.open(newline="") as there:
            done = {tuple(row[name] for name in COLUMNS[:5]) for row in csv.DictReader(there)}
    with CSV.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not done:
            writer.writeheader()
        for one in kept():
            contest, _, control = one.place
            known = (*one.place, one.told["family"], one.setting) in done
            if contest.startswith("reuse") and control == "none" and not known:
                writer.writerow(row_of(one))
                file.flush()


if __name__ == "__main__":
    main()
