"""Why runs lose a rare strategy in `rare and noisy`: updates frozen for a whole run.

    python -m research.measurements.extinction freeze|summary [--write]

A run is lost if P("work") < .05 at its end. Rows are long: one number, with its 95 % interval where it has one.

- `freeze`: the advantages of some tokens are set to 0 for a whole run. "common" is an old probability of at least .2;
  "first" is the token that chooses, "later" those after "work"; a round is "quiet" where no response works. A freeze of
  one sign also moves the balance of the two, as a weight does. "half of" draws such tokens anew in each round. Those of
  groups freeze both signs: "guesses alone" are the groups in which every response guesses, "a bad answer" is in the
  others, and "as many other groups" are drawn from all rounds in the place of the latter. `lost` has Wilson's interval,
  `saved` and `killed` count runs that are lost without the freeze alone and with it alone, and `had` those that are
  lost although P("work") was above 1/2 before. "first r = 1" and "balanced" are no freezes: the ratio of first tokens
  is held at 1 (no clip alone), and advantages are balanced at each step.
- `summary`: a freeze's share of lost runs over all rules and rates of `rare and noisy`, without an interval, since all
  have the same seeds.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bandpo import Band, Clip
from bandpo_runs.provenance import hardware, source_commit
from research.csv_rows import read_rows, replace_rows
from research.statistics import extinction_rate
from research.worlds import Learner, arithmetic, compiled, make_world, scene
from research.worlds.world import GUESS, WORK

CSV = Path(__file__).with_suffix(".csv")
LOST, COMMON = 0.05, 0.2
RATES = (0.007, 0.014, 0.028, 0.056)
ONE_EPOCH = (0.056, 0.112, 0.224, 0.448)  # eight times as high, for an eighth of the steps
HIDDEN = (0.001, 0.002, 0.005)
Rule = tuple[Any, dict[str, Any]]
RULES: dict[str, Rule] = {
    "Clip(.2, 1)": (Clip(0.2, 1), {}),
    "Clip(.2, .2)": (Clip(0.2, 0.2), {}),
    "Band-KL .05": (Band("kl", 0.05), {}),
    "no clip": (Clip(1, math.inf), {}),
}
Views = dict[str, Any]
Frozen = Callable[[Views], Any]


def _cell(first: bool, common: bool, up: bool) -> Frozen:
    return lambda v: (v["first"] == first) & (v["common"] == common) & (v["up"] == up)


_NAMES = (("later", "first"), ("rare", "common"), ("-", "+"))
FREEZES: dict[str, Frozen] = {
    "nothing": lambda v: np.zeros_like(v["up"]),
    **{" ".join(n[i] for n, i in zip(_NAMES, x, strict=True)): _cell(*x) for x in product((True, False), repeat=3)},
    "guess +": lambda v: v["guess"] & v["up"],
    "guess + and -": lambda v: v["guess"],
    "work -": lambda v: v["work"] & ~v["up"],
    "bad -": lambda v: v["bad"] & ~v["up"],
    "all in quiet rounds": lambda v: v["quiet"],
    "quiet rounds, groups of guesses alone": lambda v: v["quiet"] & ~v["bad group"],
    "quiet rounds, groups with a bad answer": lambda v: v["quiet"] & v["bad group"],
    "as many other groups": lambda v: v["other group"],
    "half of first common +": lambda v: v["coin"] & v["first"] & v["common"] & v["up"],
    "half of first common -": lambda v: v["coin"] & v["first"] & v["common"] & ~v["up"],
    "half of first common + and -": lambda v: v["coin"] & v["first"] & v["common"],
    "first common + in quiet rounds": lambda v: v["quiet"] & v["first"] & v["common"] & v["up"],
    "first common + in other rounds": lambda v: ~v["quiet"] & v["first"] & v["common"] & v["up"],
}
_QUIET = ("all in quiet rounds", "quiet rounds, groups of guesses alone", "quiet rounds, groups with a bad answer")
ELSEWHERE = (
    "nothing",
    "first common +",
    "guess + and -",
    "first rare -",
    *_QUIET,
    "as many other groups",
    "half of first common + and -",
)
BAD = (0.005, 0.0005)  # P("bad") at the start, which is .05 in `rare and noisy`


class Runs(compiled._Piece):  # pyright: ignore[reportPrivateUsage]
    """Runs of the compiled engine, some of whose advantages are 0; `pinned`: r = 1 for first tokens, without a clip."""

    def __init__(self, world: Any, lanes: Sequence[tuple[Learner, int]], frozen: Frozen, pinned: bool = False) -> None:
        super().__init__(world, lanes, compiled.examine(lanes[0][0])[1])
        self.frozen, self.pinned = frozen, pinned
        self.coins, self.others = np.random.default_rng(0), np.random.default_rng(1)
        self.owed: Any = 0  # of each run, how many other groups are still to be taken
        if pinned:
            self.loss = self.loss._replace(up=arithmetic.WEIGHT, down=arithmetic.WEIGHT)

    def views(self, advantages: Any) -> Views:
        """What a freeze may look at, (L, N, T)."""
        drawn = self.drawn
        first = np.broadcast_to(np.arange(drawn.tokens.shape[2]) == 0, drawn.tokens.shape)
        work = drawn.mask & first & (drawn.tokens == WORK)
        quiet, bad_group = ~work.any((1, 2), keepdims=True), self.bad_groups(first)[..., None]
        other = self.other_groups((quiet & bad_group)[..., 0], (advantages != 0).any(2))[..., None]
        return {
            "first": first,
            "common": drawn.logps >= math.log(COMMON),
            "up": advantages > 0,
            "work": work,
            "guess": first & (drawn.tokens == GUESS),
            "bad": first & (drawn.tokens > GUESS),
            "bad group": np.broadcast_to(bad_group, drawn.tokens.shape),
            "other group": np.broadcast_to(other, drawn.tokens.shape),
            "coin": np.broadcast_to(self.coins.random(drawn.tokens.shape[:2])[..., None] < 0.5, drawn.tokens.shape),
            "quiet": np.broadcast_to(quiet, drawn.tokens.shape),
        }

    def bad_groups(self, first: Any) -> Any:
        """Whether a response of its group is bad, (L, N)."""
        bad = (first & (self.drawn.tokens > GUESS)).any(2)
        size = self.scene.responses_per_prompt
        return bad.reshape(len(bad), -1, size).any(2).repeat(size, 1)

    def other_groups(self, taken: Any, live: Any) -> Any:
        """Random groups that are not taken and have an advantage, as many as have been taken so far, (L, N)."""
        size = self.scene.responses_per_prompt
        taken, live = (each.reshape(len(each), -1, size).any(2) for each in (taken, live))
        self.owed = self.owed + taken.sum(1)
        free = live & ~taken
        order = np.where(free, self.others.random(free.shape), 2.0).argsort(1).argsort(1)
        chosen = free & (order < self.owed[:, None])
        self.owed = self.owed - chosen.sum(1)
        return chosen.repeat(size, 1)

    def bounds_of_round(self, round: int) -> tuple[Any, Any, Any, Any]:
        advantages, place, low, high = super().bounds_of_round(round)
        views = self.views(advantages)
        advantages = np.where(self.frozen(views), 0.0, advantages)
        if self.pinned:
            low, high = low.copy(), high.copy()
            at = place[views["first"] & self.drawn.mask & (advantages != 0)]
            low[at] = high[at] = 0.0
        return np.ascontiguousarray(advantages), place, low, high


def train(
    node: Any,
    rule: Rule,
    rates: Sequence[float],
    seeds: Sequence[int],
    frozen: Frozen = FREEZES["nothing"],
    pinned: bool = False,
) -> Any:
    """P("work") of all runs, (rates, seeds, rounds + 1)."""
    world = make_world(scene(node), seeds)
    lanes = [(Learner(rule[0], rate, **rule[1]), i) for rate in rates for i in range(len(seeds))]
    pieces = [Runs(world, lanes[i : i + 200], frozen, pinned).train().p_work for i in range(0, len(lanes), 200)]
    return np.concatenate(pieces).reshape(len(rates), len(seeds), -1)


def _row(part: str, node: Any, rule: str, rate: float | str, what: str, measure: str, *value: Any) -> dict[str, Any]:
    name = node if isinstance(node, str) else ", ".join(str(x) for x in node.values())
    row = {"part": part, "scene": name, "rule": rule, "learning_rate": rate, "what": what, "measure": measure}
    return row | dict(zip(("value", "low", "high"), [f"{x:.4f}" for x in value] + ["", ""], strict=False))


def freeze(first: int = 50_000, count: int = 192) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    one = {"base": "rare and noisy", "epochs": 1}
    todo = [("rare and noisy", name, rule, RATES, FREEZES) for name, rule in RULES.items()]
    todo += [("hidden", name, RULES[name], HIDDEN, ELSEWHERE) for name in ("Clip(.2, 1)", "no clip")]
    todo += [(one, "no clip", RULES["no clip"], ONE_EPOCH, ("nothing", "first common +", "guess + and -"))]
    todo += [
        ({"base": "rare and noisy", "p_bad": p}, name, RULES[name], RATES, ("nothing",))
        for p in BAD
        for name in ("Clip(.2, 1)", "no clip")
    ]
    todo += [
        ({"base": "rare and noisy", "luck": 0.0}, name, RULES[name], RATES, ("nothing", _QUIET[2]))
        for name in ("Clip(.2, 1)", "no clip")
    ]
    for node, name, rule, rates, freezes in todo:
        kinds = [(what, rule, FREEZES[what], False) for what in freezes]
        if node == "rare and noisy":
            kinds += [("balanced", (rule[0], {"balanced": True}), FREEZES["nothing"], False)]
        if node == "rare and noisy" and name == "no clip":
            kinds += [("first r = 1", rule, FREEZES["nothing"], True)]
        base = None
        for what, changed, frozen, pinned in kinds:
            p = train(node, changed, rates, range(first, first + count), frozen, pinned)
            base = p if base is None else base
            for i, rate in enumerate(rates):
                start, end = ("freeze", node, name, rate, what), p[i, :, -1]
                lost, before = end < LOST, base[i, :, -1] < LOST
                rows.append(_row(*start, "lost", *extinction_rate(end, LOST)))
                rows.append(_row(*start, "below .001", *extinction_rate(end, 0.001)))
                rows.append(_row(*start, "saved", (before & ~lost).sum()))
                rows.append(_row(*start, "killed", (lost & ~before).sum()))
                rows.append(_row(*start, "had", (lost & (p[i].max(1) > 0.5)).sum()))
            print(node, name, what, (p[..., -1] < LOST).mean(1).round(3), flush=True)
    return [row | {"seeds": count, "first_seed": first} for row in rows]


def summary() -> list[dict[str, Any]]:
    told = read_rows(CSV)
    rows: list[dict[str, Any]] = []
    lost = [row for row in told if (row["part"], row["scene"], row["measure"]) == ("freeze", "rare and noisy", "lost")]
    for what in dict.fromkeys(row["what"] for row in lost):
        some = [row for row in lost if row["what"] == what]
        share = np.mean([float(row["value"]) for row in some])
        rows.append(_row("summary", "rare and noisy", "all", "all", what, "lost", share))
    for row in rows:
        print(row["what"], row["measure"], row["value"])
    return [row | {"seeds": "", "first_seed": ""} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    todo = {"freeze": freeze, "summary": summary}
    parser.add_argument("part", choices=list(todo))
    parser.add_argument("--write", action="store_true", help="write the part's rows, and keep those of the others")
    args = parser.parse_args()
    same = {
        "hardware": hardware(False),
        "torch": torch.__version__,
        "numba": version("numba"),
        "commit": source_commit(),
    }
    rows = [row | same for row in todo[args.part]()]
    if args.write:
        replace_rows(CSV, rows, ["part"])


if __name__ == "__main__":
    main()
