"""Measure on what share of tokens each judged rule of the contests reuse*.yaml acts (reuse_rates.csv).

    python -m research.measurements.reuse_rates    1 to 5 s for each run; what is in the file is not repeated

`percent` is the library's `clip/fraction` in the mean over all optimizer steps: tokens whose ratio is outside the
rule's interval, whatever the sign of their advantage, over all tokens. The public logs count the same. `cut` is
`cut/fraction`, the part of them that loses its gradient, which TRL and verl log; `error` is the standard error of
`percent`. The rule has the setting and the learning rate that its contest chose. Worlds keep no such number, so that
the runs are made again, on the first judging seeds and by the engine in torch. Of the three published rules in the
calibrated world without a control they are sixteen at one use of each answer and eight at more, else two. The oldest
rows have no `error` and no `cut`.
"""

import statistics
from pathlib import Path
from typing import Any

from bandpo_runs.provenance import source_commit
from research.csv_rows import read_rows, write_rows
from research.report.rows import Kept, all_rows, scene_name
from research.worlds import Learner, reference, train

CSV = Path(__file__).with_suffix(".csv")
PUBLISHED = ("GRPO .2/.2", "Clip-Higher .2/.28", "Band-KL .05")
COLUMNS = ("contest", "world", "control", "family", "setting", "percent", "error", "cut", "runs", "commit")


def shares(world: Any, learner: Learner, seed: int) -> tuple[float, float]:
    """Return `clip/fraction` and `cut/fraction` of a run, the means over its optimizer steps, in percent."""
    plain, numbers = reference.policy_loss, {}

    def counted(*args: Any, **more: Any) -> Any:  # more than once in some steps
        loss, metrics = plain(*args, **more)
        numbers[more["extra"]["step"]] = metrics.compute()
        return loss, metrics

    reference.policy_loss = counted
    try:
        train(world, [learner], [seed], engine="torch")
    finally:
        reference.policy_loss = plain
    of = [100 * statistics.fmean(step[name] for step in numbers.values()) for name in ("clip/fraction", "cut/fraction")]
    return of[0], of[1]


def wanted(one: Kept) -> int:
    """Return how many runs a row is of."""
    if one.told["family"] not in PUBLISHED or scene_name(one) != "calibrated" or one.place[2] != "none":
        return 2
    return 16 if one.place[0] == "reuse once" else 8


def row_of(one: Kept) -> dict[str, Any]:
    contest, world, control = one.place
    first, learner, family = one.row["seeds"][0], Learner(**one.row["learner"]), one.told["family"]
    runs = wanted(one)
    percents, cuts = zip(*(shares(one.row["world"], learner, first + i) for i in range(runs)), strict=True)
    error = statistics.stdev(percents) / runs**0.5
    numbers = [f"{x:.4f}" for x in (statistics.fmean(percents), error, statistics.fmean(cuts))]
    told = (contest, world, control, family, one.setting, *numbers, runs, source_commit())
    return dict(zip(COLUMNS, told, strict=True))


def main() -> None:
    rows: list[dict[str, Any]] = [*read_rows(CSV, missing_ok=True)]
    judged = {(*one.place, one.told["family"], one.setting) for one in all_rows()}
    done = {tuple(row[name] for name in COLUMNS[:5]): row for row in rows}
    done = {key: row for key, row in done.items() if key in judged}  # a contest may have chosen anew
    for one in all_rows():
        key = one.place
        row = done.get((*key, one.told["family"], one.setting))
        if not key[0].startswith("reuse") or (row and int(row["runs"]) >= wanted(one)):
            continue
        done[*key, one.told["family"], one.setting] = row_of(one)
        write_rows(CSV, done.values())


if __name__ == "__main__":
    main()
