"""Eight rules in the scene `rare and noisy`, for 64 and for 128 rounds, with the learning rate chosen of each.

    python -m research.measurements.worlds [--seeds 256] [--write]    some five minutes on one core
    python -m research.measurements.worlds --page    the table of research/pages/worlds.md, from the rows

A rare strategy that has to be found, in small batches with some wrong rewards that are used sixteen times. Each rule
is trained at eight learning rates on seeds 0 to 255, and at the best of them on seeds 1000 to 1255: those rows have
`judged` 1, and the table shows them. `final` is the exact expected reward in the mean over the last four rounds and
over seeds, with its standard error; `minus_wide` its difference to that of Clip(.2, 1) on the same seeds;
`below_half_percent` the share of runs that end below 0.5, be it lost or slow; `gone_percent` the share that end with
P("work") < .05; `half` the mean number of rounds until P("work") > 1/2 (one more than there are, if never).
`seconds_per_1000` is processor time.

The head band and the two-level clip need no class of their own: the lower side of a rule binds where A < 0, its upper
side where A > 0, so that `BySign` is "the lower bound of one rule, the upper one of another", and `ByProbability` is
"this rule for rare tokens, that one for likely ones".
"""

import argparse
import json
import math
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from bandpo import Band, ByProbability, BySign, Clip
from bandpo_runs.provenance import hardware, source_commit
from research.csv_rows import read_rows, write_rows
from research.worlds import Learner, train

CSV = Path(__file__).with_suffix(".csv")
PAGE = CSV.parents[1] / "pages" / "worlds.md"
RATES = (0.005, 0.007, 0.01, 0.014, 0.02, 0.028, 0.04, 0.056)
ROUNDS = (64, 128)
FRESH = 1000  # the first of the seeds that are judged
HEAD_BAND = BySign(ByProbability(0.2, Clip(0.2, 1), Band("kl", 0.0005)), Clip(0.02, 1))
TWO_LEVELS = BySign(ByProbability(0.3, Clip(0.2, 1), Clip(0.2, 0.01)), Clip(0.05, 1))
# Name on the page, rule, and what else is done.
RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "`Clip(0.2, 1)`": (Clip(0.2, 1), {}),
    "`Clip(0.2, 0.2)`": (Clip(0.2, 0.2), {}),
    "`Clip(0.02, 0.7)`": (Clip(0.02, 0.7), {}),
    "`Clip(0.2, 1)`, positive advantages x 0.95": (Clip(0.2, 1), {"positive_weight": 0.95}),
    '`Band("kl", 0.05)`': (Band("kl", 0.05), {}),
    "no clip": (Clip(1, math.inf), {}),
    "two-level clip": (TWO_LEVELS, {}),
    "head band": (HEAD_BAND, {}),
}
WIDE = next(iter(RULES))


def rows_of(name: str, rounds: int, seeds: int, wide: Any) -> tuple[list[dict[str, Any]], Any]:
    """One row for each learning rate of a rule, and one of the best on fresh seeds; the runs of that one."""
    region, controls = RULES[name]
    scene = {"base": "rare and noisy", "rounds": rounds}
    start = time.process_time()
    tried = train(scene, [Learner(region, rate, **controls) for rate in RATES], range(seeds), engine="numba")
    best = RATES[int(tried["final"].mean(1).argmax())]
    judged = train(scene, [Learner(region, best, **controls)], range(FRESH, FRESH + seeds), engine="numba")
    seconds = time.process_time() - start
    same = {
        "seconds_per_1000": f"{1000 * seconds / (seeds * (len(RATES) + 1)):.2f}",
        "hardware": hardware(False),
        "torch": torch.__version__,
        "numba": version("numba"),
        "commit": source_commit(),
    }
    rows = []
    for rate, runs, i in [*((rate, tried, i) for i, rate in enumerate(RATES)), (best, judged, 0)]:
        final = runs["final"][i]
        minus = final - (final if wide is None else wide) if runs is judged else None
        rows.append(
            {
                "rule": name,
                "node": json.dumps(region.to_config()),
                "controls": json.dumps(controls),
                "rounds": rounds,
                "learning_rate": rate,
                "judged": int(runs is judged),
                "first_seed": FRESH if runs is judged else 0,
                "seeds": seeds,
                "final": f"{final.mean():.4f}",
                "final_se": f"{_error(final):.4f}",
                "minus_wide": "" if minus is None else f"{minus.mean():.4f}",
                "minus_wide_se": "" if minus is None else f"{_error(minus):.4f}",
                "below_half_percent": f"{100 * (final < 0.5).mean():.1f}",
                "gone_percent": f"{100 * (runs['work'][i] < 0.05).mean():.1f}",
                "half": f"{runs['half'][i].mean():.1f}",
                "mean": f"{runs['mean'][i].mean():.4f}",
                "skill": f"{runs['skill'][i].mean():.4f}",
                **same,
            }
        )
    return rows, judged["final"][0]


def _error(values: Any) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def table() -> str:
    """What was judged, as Markdown: after 64 rounds the best first, and beside it after 128."""
    judged = {(row["rule"], int(row["rounds"])): row for row in read_rows(CSV) if row["judged"] == "1"}
    lines = [
        "| rule | reward after 64 rounds | minus `Clip(0.2, 1)` | below 0.5 | strategy gone | after 128 rounds | gone |"
    ]
    lines.append("|:--|--:|--:|--:|--:|--:|--:|")
    for name in sorted(RULES, key=lambda name: -float(judged[name, 64]["final"])):
        short, long = judged[name, 64], judged[name, 128]
        minus = "" if name == WIDE else _interval(short["minus_wide"], short["minus_wide_se"], "+.3f")
        lines.append(
            f"| {name} | {float(short['final']):.3f} | {minus} | {short['below_half_percent']} % | "
            f"{short['gone_percent']} % | {float(long['final']):.3f} | {long['gone_percent']} % |"
        )
    return "\n".join(lines)


def _interval(value: str, error: str, form: str) -> str:
    x, half = float(value), 1.96 * float(error)
    return f"{x:{form}} [{x - half:{form}}, {x + half:{form}}]"


def page() -> str:
    """research/pages/worlds.md with this table in the place of its own."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split("| rule |", 1)
    return before + table() + "\n\n" + rest.split("\n\n", 1)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=256)
    parser.add_argument("--write", action="store_true", help="write the rows to worlds.csv")
    parser.add_argument("--page", action="store_true", help="write the table of research/pages/worlds.md from the rows")
    args = parser.parse_args()
    if args.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    train("rare and noisy", [Learner(Clip(), 0.01)], [0], engine="numba")  # compiles
    rows: list[dict[str, Any]] = []
    for rounds in ROUNDS:
        wide = None
        for name in RULES:
            made, runs = rows_of(name, rounds, args.seeds, wide)
            wide = runs if name == WIDE else wide
            rows += made
            shown = ("rounds", "rule", "learning_rate", "final", "final_se", "minus_wide", "gone_percent")
            print(*(f"{made[-1][key]!s:>10}" for key in shown), flush=True)
    if args.write:
        write_rows(CSV, rows)


if __name__ == "__main__":
    main()
