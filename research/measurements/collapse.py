"""False alarms and delay of the collapse detector, on made logs and on runs of the lab.

    python -m research.measurements.collapse [--trials 100] [--write]    made logs
    python -m research.measurements.collapse --runs FOLDER... [--write]    runs of the lab: what it says of each
    python -m research.measurements.collapse --page    the tables of research/pages/evaluation_measured.md

Made logs: reward and entropy with noise that is correlated from point to point. `rate_certain` is the share of logs in
which a lasting collapse is found, entropy and all; of healthy ones that is the rate of false alarms. Of
`rate_reward_alone` the reward fell and the entropy stayed. `delay` is how many points after the break the rule could
tell, `error` how far from it the break was put.

Of the lab's runs, a run has lost the task if the mean reward of its last 8 rounds is at most half of its best 8 rounds
in a row, and kept it if it is at least 0.8 of them; what lies between is neither.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bandpo_runs.files.logs import read
from bandpo_runs.provenance import hardware, source_commit
from bandpo_runs.statistics.collapse import WINDOW, Collapse, Curves, by_step, find_collapse
from research.csv_rows import as_table, read_rows, replace_rows

HERE = Path(__file__).resolve().parent
ROWS, PAGE = HERE / "collapse.csv", HERE.parent / "pages" / "evaluation_measured.md"
HEALTHY = (
    "rises",
    "flat",
    "never learns",
    "rises slowly while the entropy goes to zero",
    "a dip of 6 points",
    "harder data",
)
LOST = ("breaks, entropy rises", "breaks, entropy goes to zero", "slides over 60 points", "loses 60%")
Array = np.ndarray


def made(rng: np.random.Generator, kind: str, length: int, noise: float) -> tuple[Array, Array, int]:
    """Reward, entropy and the point at which it breaks (or begins to slide)."""
    x, at = np.arange(length, dtype=float), int(length * rng.uniform(0.45, 0.6))
    slope = 6 / length
    reward = 0.15 + 0.6 / (1 + np.exp(-(x - 0.2 * length) * 2 * slope))
    entropy = 0.2 + 0.6 * np.exp(-x * slope)
    after = x >= at
    if kind == "flat":
        reward[:], entropy[:] = 0.4, 0.5
    elif kind == "never learns":
        reward[:], entropy[:] = 0.05, 0.5
    elif kind == "rises slowly while the entropy goes to zero":
        reward, entropy = 0.2 + 0.5 * x / length, 0.6 * np.exp(-3 * x / length)
    elif kind == "a dip of 6 points":
        reward[at : at + 6] *= 0.2
        entropy[at : at + 6] *= 2
    elif kind == "harder data":
        reward[after] *= 0.35
    elif kind == "breaks, entropy rises":
        reward[after] = 0.05
        entropy[after] = entropy[at] * np.minimum(6, 1 + (x[after] - at) / 4)
    elif kind == "breaks, entropy goes to zero":
        reward[after] = 0.05
        entropy[after] = entropy[at] * np.exp(-(x[after] - at) / 8)
    elif kind == "slides over 60 points":
        reward[after] *= np.maximum(0.05, 1 - (x[after] - at) / 60)
        entropy[after] *= np.minimum(5, 1 + (x[after] - at) / 20)
    elif kind == "loses 60%":
        reward[after] *= 0.4
        entropy[after] *= np.minimum(3, 1 + (x[after] - at) / 6)
    shocks = rng.normal(0, noise, length)
    for i in range(1, length):
        shocks[i] = 0.5 * shocks[i - 1] + shocks[i] * np.sqrt(0.75)
    return np.clip(reward + shocks, 0, 1), entropy * np.exp(rng.normal(0, 0.1, length)), at


def made_rows(trials: int) -> Iterator[dict[str, Any]]:
    for length in (80, 800):
        for noise in (0.02, 0.08):
            for kind in (*HEALTHY, *LOST):
                rng = np.random.default_rng([length, int(noise * 100), len(kind)])
                collapses: list[Collapse | None] = []
                places = []
                for _ in range(trials):
                    reward, entropy, at = made(rng, kind, length, noise)
                    collapses.append(find_collapse(reward, entropy))
                    places.append(at)
                lasting = [
                    (c, at) for c, at in zip(collapses, places, strict=True) if c is not None and not c.recovered
                ]
                right = [(c, at) for c, at in lasting if c.certain]
                told = kind in LOST and bool(right)
                yield {
                    "log": kind,
                    "collapses": kind in LOST,
                    "points": length,
                    "noise": noise,
                    "trials": trials,
                    "rate_certain": round(len(right) / trials, 4),
                    "rate_reward_alone": round((len(lasting) - len(right)) / trials, 4),
                    "median_delay": float(np.median([c.detected - at for c, at in right])) if told else "",
                    "p90_delay": float(np.quantile([c.detected - at for c, at in right], 0.9)) if told else "",
                    "median_error": float(np.median([abs(c.step - at) for c, at in right])) if told else "",
                }


def of_runs(paths: list[Path]) -> Iterator[dict[str, Any]]:
    counts: dict[tuple[str, str], int] = {}
    files = sorted({file for path in paths for file in path.rglob("metrics.jsonl")})
    for file in files:
        log = Curves(**by_step(read(file).rows))
        reward = log.mean("reward")
        reward = reward[np.isfinite(reward)]
        if len(reward) < 3 * WINDOW:
            continue
        best = max(reward[i : i + 8].mean() for i in range(len(reward) - 7))
        left = reward[-8:].mean() / best
        truth = "lost" if left <= 0.5 else "kept" if left >= 0.8 else "neither"
        c = log.collapse
        verdict = (
            "no collapse" if c is None else "recovered" if c.recovered else "collapse" if c.certain else "reward fell"
        )
        counts[truth, verdict] = counts.get((truth, verdict), 0) + 1
        print(f"{truth:8} {left:5.2f}  {file.parent}  {c or ''}")
    for (truth, verdict), count in sorted(counts.items()):
        yield {"log": f"lab runs that {truth}: {verdict}", "collapses": truth == "lost", "trials": count}


def tables(rows: list[dict[str, str]]) -> str:
    """The part of research/pages/evaluation_measured.md between its two marks."""
    made = [row for row in rows if row["points"]]
    places = list(dict.fromkeys((row["points"], row["noise"]) for row in made))
    head = ["made log", *(f"{points} points, noise {noise}" for points, noise in places)]
    of = {(row["log"], row["points"], row["noise"]): row for row in made}
    kinds = list(dict.fromkeys(row["log"] for row in made))
    false_alarms = {kind: max(float(of[kind, *place]["rate_certain"]) for place in places) for kind in kinds}
    quiet = [kind for kind in kinds if not false_alarms[kind]]
    lines = [[f"{len(quiet)} healthy kinds, each", *["0%"] * len(places)]]
    for kind in [each for each in kinds if each not in quiet]:
        lines.append([kind])
        for row in (of[kind, *place] for place in places):
            delay = f" ({float(row['median_delay']):.0f})" if row["median_delay"] else ""
            lines[-1].append(f"{100 * float(row['rate_certain']):.0f}%{delay}")
    alone = {kind: [100 * float(of[kind, *place]["rate_reward_alone"]) for place in places] for kind in kinds}
    told = (f"{kind} {min(x):.0f} to {max(x):.0f}%" for kind, x in alone.items() if max(x))
    runs = (f"{r['trials']} {r['log'].removeprefix('lab runs that ')}" for r in rows if not r["points"])
    last = f'Only "reward fell" was told of: {", ".join(told)}.\n\nRuns of the lab: {"; ".join(runs)}.'
    return f"{as_table(head, lines)}\n\n{last}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--runs", nargs="+", type=Path, help="folders with runs of the lab")
    parser.add_argument("--write", action="store_true", help="replace these rows of collapse.csv")
    parser.add_argument("--page", action="store_true", help="write the tables of research/pages/evaluation_measured.md")
    args = parser.parse_args()
    if args.page:
        from research.measurements.interval_coverage import page

        rows = read_rows(ROWS)
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), "collapse", tables(rows)), encoding="utf-8")
        return 0
    rows = list(of_runs(args.runs) if args.runs else made_rows(args.trials))
    for row in rows:
        print(*(f"{value!s:>8}" for value in row.values()))
    if args.write:
        command = f"python -m research.measurements.collapse {'--runs RUNS ' if args.runs else ''}--write"
        facts = {"hardware": hardware(gpu=False), "commit": source_commit()}
        rows = [{**row, **facts, "command": command} for row in rows]
        columns = (*next(made_rows(1)), *facts, "command")
        replace_rows(ROWS, rows, ["command"], columns, order=lambda row: row["command"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
