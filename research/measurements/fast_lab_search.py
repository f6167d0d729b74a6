"""Is there a scene of the transformer lab in which a rare strategy can be lost for good? A search with the fast loop,
one row a run in fast_lab_search.csv.

    python -m research.measurements.fast_lab_search [NAME ...] [--seeds 8] [--rules grpo,clip-wide]

Small batches that are used many times, from a start that works rarely: fewer prompts and completions than scene storm,
labels that are wrong, other learning rates and starts. A setting counts as found if under GRPO's clip or Clip(0.2, 1.0)
10 to 60 % of the runs end with P(work) below 0.05 while others end above 0.9. Runs that have a row are not repeated.

All runs of a setting and rule begin at the same warm start, `start_seed`, and are trained side by side. Columns:
`p_work_end`, the probability of working, exact, mean over the last three rounds; `p_work_least` and `p_work_most`, its
extremes over the rounds; `right_end`, the share of right answers, before labels are inverted, over the last six rounds.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

from bandpo_runs import toy
from bandpo_runs.provenance import hardware, source_commit, versions
from research.csv_rows import read_rows, write_rows
from research.fast_lab import train
from research.lab_settings import Settings

CSV = Path(__file__).with_suffix(".csv")
STORM = Settings.of("storm", p_work=0.01, learning_rate=2e-4)
SMALL = dataclasses.replace(STORM, prompts=4, flip=0.05)
SETTINGS = {
    "4x8": SMALL,
    "4x8-lr4": dataclasses.replace(SMALL, learning_rate=4e-4),
    "4x8-lr1": dataclasses.replace(SMALL, learning_rate=1e-4),
    "4x8-lr1-noflip": dataclasses.replace(SMALL, learning_rate=1e-4, flip=0.0),
}
KEY = ("name", "rule", "start_seed", "seed")


def runs(name: str, rule: str, start_seed: int, seeds: list[int]) -> list[dict[str, Any]]:
    """A row for each seed."""
    settings = SETTINGS[name]
    began = time.monotonic()
    start = toy.warm_start(settings.p_work, start_seed, print)[1]
    out = []
    for seed, rows in zip(seeds, train(settings, rule, seeds, start_seed=start_seed, measure=False), strict=True):
        works = [row["lab/p_work"] for row in rows]
        right = [row.get("lab/right", row["reward"]) for row in rows]
        row = {"name": name, "rule": rule, "start_seed": start_seed, "seed": seed, **vars(settings)}
        row |= {
            "start_p_work": round(start["p_work"], 4),
            "start_right_if_work": round(start["right_if_work"], 4),
            "p_work_end": round(sum(works[-3:]) / 3, 5),
            "p_work_least": round(min(works), 5),
            "p_work_most": round(max(works), 5),
            "right_end": round(sum(right[-6:]) / 6, 4),
        }
        out.append(row)
    seconds = round((time.monotonic() - began) / len(seeds), 1)
    about = {"seconds": seconds, "hardware": hardware(gpu=False), "torch": versions(("torch",))["torch"]}
    return [row | about | {"commit": source_commit()} for row in out]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SETTINGS)} (default: all)")
    parser.add_argument("--seeds", default="0:8", help="first:end")
    parser.add_argument("--start-seed", type=int, default=0)
    parser.add_argument("--rules", default="grpo")
    args = parser.parse_args()
    for name in args.names or SETTINGS:
        for rule in args.rules.split(","):
            have = {tuple(row[key] for key in KEY) for row in read_rows(CSV, missing_ok=True)}
            seeds = list(range(*map(int, args.seeds.split(":"))))
            seeds = [seed for seed in seeds if (name, rule, str(args.start_seed), str(seed)) not in have]
            if seeds:
                rows = runs(name, rule, args.start_seed, seeds)
                write_rows(CSV, rows, add=True)
                ends = sorted(row["p_work_end"] for row in rows)
                print(name, rule, "P(work) at the end:", *(f"{end:.3f}" for end in ends), flush=True)


if __name__ == "__main__":
    main()
