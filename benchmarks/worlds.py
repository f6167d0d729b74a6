"""Eight rules in the scene `both`, each at six learning rates: one row each in benchmarks/worlds.csv.

    python benchmarks/worlds.py [--seeds 256] [--write]            a minute or two on one core

A rare strategy that has to be found, in small batches with some wrong rewards that are used sixteen times. `final` is
the exact expected reward in the mean over the last four rounds and over seeds, with its standard error; `lost_percent`
the share of runs that end below 0.5; `half` the mean number of rounds until P("work") > 1/2; `best` marks a rule's
learning rate with the largest `final`, chosen on these seeds. `seconds_per_1000` is processor time.

The head band and the two-level clip need no class of their own: the lower side of a rule binds where A < 0, its upper
side where A > 0, so that `BySign` is "the lower bound of one rule, the upper one of another", and `ByProbability` is
"this rule for rare tokens, that one for likely ones".
"""

import argparse
import csv
import json
import math
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from bandpo import Band, ByProbability, BySign, Clip
from bandpo.provenance import hardware, source_commit
from bandpo.worlds import Learner, train

CSV = Path(__file__).with_suffix(".csv")
RATES = (0.01, 0.014, 0.02, 0.028, 0.04, 0.056)
HEAD_BAND = BySign(ByProbability(0.2, Clip(0.2, 1), Band("kl", 0.0005)), Clip(0.02, 1))
TWO_LEVELS = BySign(ByProbability(0.3, Clip(0.2, 1), Clip(0.2, 0.01)), Clip(0.05, 1))
RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "Clip(.2, .2)": (Clip(0.2, 0.2), {}),
    "Clip(.2, 1)": (Clip(0.2, 1), {}),
    "Clip(.02, .7)": (Clip(0.02, 0.7), {}),
    "Clip(.2, 1), positives x .95": (Clip(0.2, 1), {"positive_weight": 0.95}),
    "Band-KL .05": (Band("kl", 0.05), {}),
    "no clip": (Clip(1, math.inf), {}),
    "two-level clip": (TWO_LEVELS, {}),
    "head band": (HEAD_BAND, {}),
}


def rows_of(name: str, seeds: int) -> list[dict[str, Any]]:
    """One row for each learning rate of a rule."""
    region, controls = RULES[name]
    start = time.process_time()
    runs = train("both", [Learner(region, rate, **controls) for rate in RATES], range(seeds), engine="numba")
    seconds = time.process_time() - start
    final = runs["final"]
    best = int(final.mean(1).argmax())
    return [
        {
            "scene": "both",
            "rule": name,
            "node": json.dumps(region.to_config()),
            "learning_rate": rate,
            "best": int(i == best),
            "seeds": seeds,
            "final": f"{final[i].mean():.4f}",
            "final_se": f"{final[i].std(ddof=1) / math.sqrt(seeds):.4f}",
            "lost_percent": f"{100 * (final[i] < 0.5).mean():.1f}",
            "half": f"{runs['half'][i].mean():.1f}",
            "mean": f"{runs['mean'][i].mean():.4f}",
            "skill": f"{runs['skill'][i].mean():.4f}",
            "seconds_per_1000": f"{1000 * seconds / final.size:.2f}",
            "hardware": hardware(False),
            "torch": torch.__version__,
            "numba": version("numba"),
            "commit": source_commit(),
        }
        for i, rate in enumerate(RATES)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=256)
    parser.add_argument("--write", action="store_true", help="write the rows to benchmarks/worlds.csv")
    args = parser.parse_args()
    # Numba looks for the package `coverage`, and would find the script of that name beside this one.
    sys.path.remove(str(CSV.parent))
    train("both", [Learner(Clip(), 0.01)], [0], engine="numba")  # compiles
    rows = [row for name in RULES for row in rows_of(name, args.seeds)]
    for row in sorted(rows, key=lambda row: row["final"], reverse=True):
        if row["best"]:
            shown = ("rule", "learning_rate", "final", "final_se", "lost_percent", "half", "seconds_per_1000")
            print(*(f"{row[key]!s:>10}" for key in shown))
    if args.write:
        with CSV.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
