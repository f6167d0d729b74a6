"""Train rules at every learning rate of a grid, without tuning, and judge claims that were stated before.

    python -m research.grid research/grids/one_rate.yaml -o runs/one-rate

The folder keeps the runs of each world, so the same command goes on after a kill. Beside the YAML file it writes
`NAME.csv`, a row for each world, rule and rate; `NAME_rates.csv`, what a wrong rate costs; and `NAME_claims.csv`.
"""

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bandpo.errors import UserError
from bandpo_runs.files.reading import read_yaml
from research import fast_lab
from research.bench.labs import GROUP, LAST, is_lab, lab_of, run_of
from research.statistics import holm
from research.worlds import Learner, scene, train

Array = NDArray[np.float64]
MOVED = ("final", "harder", "entropy")  # of which differences are written
OUTCOMES = ("final", "pass4", "pass16", "pass64", "harder", "unseen1", "unseen16", "entropy")
STOPS = ("lost_up", "lost_down", "above", "below", "ratio")
CURVES = ("reward", "covered", "nats", "lost")
POINTS = 10  # of a curve
FACTORS = (0.25, 0.5, 1, 2, 4, 8)  # of the first rule's best rate
MARGIN = 0.02  # within which two numbers are the same, where a claim says no other
_SMOKE = 1_000_000  # the first seed of a smoke test
Runs = dict[str, Array]  # (rules, rates, seeds); curves have an axis more


def run(node: Mapping[str, Any], folder: Path) -> dict[str, Runs]:
    """Train what the folder has not yet, and return the runs of each world on the seeds that choose and that judge."""
    folder.mkdir(parents=True, exist_ok=True)
    worlds: dict[str, Runs] = {}
    for name, world in node["worlds"].items():
        path = folder / f"{name.replace(' ', '-')}.npz"
        if not path.exists():
            print(name, flush=True)
            part = path.with_suffix(".part.npz")
            np.savez_compressed(part, allow_pickle=False, **_train(node, world, _rates(node, name)))
            part.replace(path)
        with np.load(path, allow_pickle=False) as arrays:
            worlds[name] = dict(arrays)
    return worlds


def _rates(node: Mapping[str, Any], world: str) -> list[float]:
    rates = node["learning_rates"]
    return rates[world] if isinstance(rates, Mapping) else rates


def _train(node: Mapping[str, Any], world: Any, rates: Sequence[float]) -> Runs:
    seeds = [*_seeds(node["choose"]), *_seeds(node["judge"])]
    runs: dict[str, list[Array]] = {}
    for rule in node["rules"].values():
        for name, values in _runs(world, rule, rates, seeds).items():
            if name in CURVES:
                last = values.shape[-1] - 1
                values = values[..., np.linspace(0, last, POINTS + 1).round().astype(int)]
            if name in (*OUTCOMES, *STOPS, *CURVES):
                runs.setdefault(name, []).append(values)
    return {name: np.stack(values) for name, values in runs.items()}


def _runs(world: Any, rule: Mapping[str, Any], rates: Sequence[float], seeds: Sequence[int]) -> dict[str, Array]:
    """The runs of a rule, (rates, seeds) of each number; of a scene of the lab those that its loop has."""
    if not is_lab(world):
        learners = [Learner(learning_rate=rate, **rule) for rate in rates]
        return train(scene(world), learners, seeds, curves=True)
    by_rate = [_of_lab(world, {**rule, "learning_rate": rate}, seeds) for rate in rates]
    return {name: np.stack([runs[name] for runs in by_rate]) for name in by_rate[0]}


def _of_lab(world: Mapping[str, Any], learner: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Array]:
    lab = lab_of(world)
    settings, objective = run_of(lab, learner)
    runs: list[list[fast_lab.Row]] = []
    for i in range(0, len(seeds), GROUP):
        runs += fast_lab.train(settings, objective, seeds[i : i + GROUP], start_seed=lab.start_seed)
    courses = {name: np.array([[row.get(name, 0.0) for row in rows] for rows in runs]) for name in runs[0][0]}
    right, nats = courses.get("lab/right", courses["reward"]), courses["entropy"]
    return {
        "final": right[:, -LAST:].mean(-1), "entropy": nats[:, -LAST:].mean(-1),
        "lost_up": courses["cut/high_fraction"].mean(-1), "lost_down": courses["cut/low_fraction"].mean(-1),
        "above": courses["clip/high_fraction"].mean(-1), "below": courses["clip/low_fraction"].mean(-1),
        "ratio": np.exp(courses["log_ratio/max"].max(-1)),
        "reward": right, "nats": nats, "lost": courses["cut/fraction"],
    }  # fmt: skip


def _seeds(node: Mapping[str, int]) -> range:
    return range(node["first"], node["first"] + node["count"])


class World:
    """The runs of a world by rule, rate and outcome."""

    def __init__(self, node: Mapping[str, Any], name: str, runs: Runs) -> None:
        self.rules, self.rates, self.runs = list(node["rules"]), _rates(node, name), runs
        count = node["choose"]["count"]
        self.choosing, self.judging = slice(None, count), slice(count, None)
        self.best = runs["final"][..., self.choosing].mean(-1).argmax(-1)  # of each rule, by pass@1

    def at(self, factor: float) -> int | None:
        """The place of a multiple of the first rule's best rate; None where the grid does not reach it."""
        wanted = self.rates[self.best[0]] * factor
        near = [i for i, rate in enumerate(self.rates) if abs(math.log(rate / wanted)) < 0.2]
        return near[0] if near else None

    def values(self, rule: str, rate: float | str, outcome: str) -> Array:
        """(seeds,) of the seeds that judge, at a multiple of the first rule's best rate, or at the rule's "own" one."""
        place = self.rules.index(rule)
        column = self.best[place] if rate == "own" else self.at(float(rate))
        if column is None:
            raise UserError(f"learning_rates do not reach {rate} times the best of {self.rules[0]!r}")
        return self.runs[outcome][place, column, self.judging]


def difference(a: Array, b: Array) -> tuple[float, float, float]:
    """The mean of paired differences, half of their 95 % interval, and the t test's p."""
    gap = a - b
    if not gap.any():
        return 0.0, 0.0, 1.0
    error, freedom = gap.std(ddof=1) / math.sqrt(len(gap)), len(gap) - 1
    return gap.mean(), stats.t.ppf(0.975, freedom) * error, float(2 * stats.t.sf(abs(gap.mean()) / error, freedom))


def rows(node: Mapping[str, Any], worlds: Mapping[str, Runs]) -> Iterable[dict[str, Any]]:
    """Yield a row for each world, rule and rate, on the seeds that judge."""
    for name, runs in worlds.items():
        world = World(node, name, runs)
        for i, rule in enumerate(world.rules):
            for j, rate in enumerate(world.rates):
                here = {key: values[i, j, world.judging] for key, values in runs.items()}
                courses = {f"{key}_course": here[key].mean(0) for key in CURVES if key in here}
                yield {
                    "world": name, "rule": rule, "learning_rate": rate, "best": int(world.best[i] == j),
                    **{key: _short(here[key].mean()) for key in (*OUTCOMES, *STOPS[:-1]) if key in here},
                    "highest_ratio": _short(here["ratio"].max()),
                    **_minus_first(runs, (i, j), (0, j), world.judging),
                    **{name: " ".join(map(_short, course)) for name, course in courses.items()},
                }  # fmt: skip


def _minus_first(runs: Runs, one: tuple[int, int], first: tuple[int, int], judging: slice) -> dict[str, str]:
    """How far a rule at a rate is from the first rule at another, with half of the 95 % interval."""
    told: dict[str, str] = {}
    for name in filter(runs.__contains__, MOVED):
        gap, half, _ = difference(runs[name][one][judging], runs[name][first][judging])
        told |= {f"{name}_minus_first": _short(gap), f"{name}_half_width": _short(half)}
    return told


def costs(node: Mapping[str, Any], worlds: Mapping[str, Runs]) -> Iterable[dict[str, Any]]:
    """Yield what a rule moves at its own best rate, and what a rate that is wrong by a factor costs it.

    The costs are pass@1 at every factor, its mean over them, the worst, and the share of lost runs. A run is
    lost if it ends below the policy that it began with.
    """
    for name, runs in worlds.items():
        world = World(node, name, runs)
        reached = [factor for factor in FACTORS if world.at(factor) is not None]
        for i, rule in enumerate(world.rules):
            columns = [world.at(factor) for factor in reached]
            final = runs["final"][i][columns][:, world.judging]
            first = runs["final"][0][columns][:, world.judging]
            lost = final < runs["reward"][i][columns][:, world.judging, 0]
            gap, half, _ = difference(final.mean(0), first.mean(0))
            yield {
                "world": name, "rule": rule, "best_rate": world.rates[world.best[0]],
                "own_rate": world.rates[world.best[i]],
                **_minus_first(runs, (i, world.best[i]), (0, world.best[0]), world.judging),
                **{f"x{factor:g}": _short(x) for factor, x in zip(reached, final.mean(-1), strict=True)},
                "area": _short(final.mean()), "area_minus_first": _short(gap), "half_width": _short(half),
                "worst": _short(final.mean(-1).min()), "lost": _short(lost.mean()),
            }  # fmt: skip


def claims(node: Mapping[str, Any], worlds: Mapping[str, Runs]) -> list[dict[str, Any]]:
    """Judge the claims: `a` minus `b` is above, below or equal, with Holm's correction over all of the file."""
    told: list[dict[str, Any]] = []
    for claim in node["claims"]:
        for name in claim["worlds"]:
            world = World(node, name, worlds[name])
            for rate in claim.get("rates", ["own"]):
                for outcome in claim["outcomes"]:
                    a, b = (world.values(claim[side], rate, outcome) for side in "ab")
                    gap, half, p = difference(a, b)
                    told.append({
                        "claim": claim["claim"], "world": name, "rate": rate, "outcome": outcome, "a": claim["a"],
                        "b": claim["b"], "expected": claim["expected"], "a_mean": _short(a.mean()),
                        "b_mean": _short(b.mean()), "difference": gap, "half_width": half, "p": p,
                        "margin": claim.get("margin", MARGIN),
                    })  # fmt: skip
    for row, p in zip(told, holm([row["p"] for row in told]), strict=True):
        row["verdict"] = _verdict(row, p)
        row |= {"difference": _short(row["difference"]), "half_width": _short(row["half_width"])}
        row |= {"p": f"{row['p']:.2g}", "p_holm": f"{p:.2g}"}
    return told


def _verdict(row: Mapping[str, Any], p: float) -> str:
    gap, half = row["difference"], row["half_width"]
    if row["expected"] == "equal":
        if abs(gap) + half < row["margin"]:
            return "holds"
        return "refuted" if abs(gap) - half > row["margin"] else "open"
    gap = gap if row["expected"] == "above" else -gap
    if p < 0.05:
        return "holds" if gap > 0 else "refuted"
    return "open"


def _short(x: float) -> str:
    return f"{x:.4g}"


def write(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with the columns of all rows."""
    names = list(dict.fromkeys(name for row in table for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m research.grid", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("grid", type=Path, help="a YAML file of research/grids")
    parser.add_argument("-o", "--output", type=Path, help="folder [default: runs/grids/ and the file's name]")
    parser.add_argument("--smoke", action="store_true", help="eight other seeds; all is written to the folder")
    arguments = parser.parse_args(argv)
    node: Any = read_yaml(arguments.grid)
    folder = arguments.output or Path("runs/grids") / arguments.grid.stem
    if arguments.smoke:
        node |= {"choose": {"first": _SMOKE, "count": 4}, "judge": {"first": _SMOKE + 4, "count": 4}}
        folder = folder.with_name(folder.name + "-smoke")
    worlds = run(node, folder)
    judged = claims(node, worlds)
    beside = folder / arguments.grid.name if arguments.smoke else arguments.grid
    write(beside.with_suffix(".csv"), list(rows(node, worlds)))
    write(beside.with_name(f"{beside.stem}_rates.csv"), list(costs(node, worlds)))
    write(beside.with_name(f"{beside.stem}_claims.csv"), judged)
    for row in judged:
        print(*(row[name] for name in ("verdict", "claim", "world", "rate", "outcome", "a", "b")), sep=", ", end=": ")
        print(f"{row['difference']} ± {row['half_width']}")


if __name__ == "__main__":
    main(sys.argv[1:])
