"""Why runs lose a rare strategy in `rare and noisy`: updates frozen, steps taken apart, and a chain.

    python -m research.measurements.extinction freeze|drift|chain|summary [--write]

A run is lost if P("work") < .05 at its end. Rows are long: one number, with its 95 % interval where it has one.

- `freeze`: the advantages of some tokens are set to 0 for a whole run. "common" is an old probability of at least .2;
  "first" is the token that chooses, "later" those after "work"; a round is "quiet" where no response works. A freeze of
  one sign also moves the balance of the two, as a weight does. "half of" draws such tokens anew in each round. Those of
  groups freeze both signs: "guesses alone" are the groups in which every response guesses, "a bad answer" is in the
  others, and "as many other groups" are drawn from all rounds in the place of the latter. `lost` has Wilson's interval,
  `saved` and `killed` count runs that are lost without the freeze alone and with it alone, and `had` those that are
  lost although P("work") was above 1/2 before. "first r = 1" and "balanced" are no freezes: the ratio of first tokens
  is held at 1 (no clip alone), and advantages are balanced at each step.
- `drift`: rounds before P("work") reaches .05, all runs together, 95 % intervals by resampling runs. `change` is that
  of the log-odds of "work" in a round, in the mean over prompts, and the sum of three: `momentum`, the same steps with
  all advantages 0; `plain`, what the advantages add at r = 1, where the sum of r A over a prompt is 0 in a quiet round;
  `ratio`, what the ratio and the clip add. `ratio_work` is the part of `ratio` by which the logit of "work" moves,
  which in a quiet round is due to sums of r A alone; `sum` is sum r A after the round's last step, without the tokens
  that the rule cuts, by response. Each part is a counterfactual round from the same weights and moments of Adam.
- `chain`: log-odds x of the mean P("work") as a Markov chain with normal steps, whose mean and variance at x are those
  of the 128 steps that are nearest in x, of the first 16 rounds of some training seeds. `observed` is the share of 256
  other seeds that is lost after so many rounds. Rules of `design` were seen when the chain was chosen, those of
  `report` were not. `line` is exp(-2 mu d / s^2) with mean and variance of the steps below P = .05 and one d for all,
  the best for `design`; `rate` and `share` know no rule: the mean of `design` at this learning rate, and at all.
  `after 16` is the share of the training runs that are below P = .05 when the chain begins to be asked.
- `summary`: of the rows of the other parts. A freeze's share of lost runs over all rules and rates of `rare and noisy`,
  without an interval, since all have the same seeds; and of each prediction the cells of `report` in which it is off
  by more than .1, the root mean square of what it is off by, and the rank correlation with what was observed.
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
from scipy.stats import spearmanr

from bandpo import Band, ByProbability, BySign, Clip
from bandpo_runs.provenance import hardware, source_commit
from research.csv_rows import read_rows, replace_rows
from research.statistics import extinction_rate
from research.worlds import Learner, arithmetic, compiled, make_world, scene
from research.worlds.world import GUESS, WORK, log_softmax

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
REPORTED: dict[str, Rule] = {
    "Clip(.02, .7)": (Clip(0.02, 0.7), {}),
    "Clip(.1, .1)": (Clip(0.1, 0.1), {}),
    "Clip(.05, .5)": (Clip(0.05, 0.5), {}),
    "Clip(.4, .4)": (Clip(0.4, 0.4), {}),
    "Band-TV .05": (Band("tv", 0.05), {}),
    "Band-chi2 .05": (Band("chi2", 0.05), {}),
    "Band-KL .005": (Band("kl", 0.005), {}),
    "Band-KL .001": (Band("kl", 0.001), {}),
    "two-level clip": (BySign(ByProbability(0.3, Clip(0.2, 1), Clip(0.2, 0.01)), Clip(0.05, 1)), {}),
    "Clip(.2, 1), positive x .95": (Clip(0.2, 1), {"positive_weight": 0.95}),
    "Clip(.2, .2), positive x .97": (Clip(0.2, 0.2), {"positive_weight": 0.97}),
}
NEAREST, PARTICLES, SEEN = 128, 20_000, 16

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
        found = free & (order < self.owed[:, None])
        self.owed = self.owed - found.sum(1)
        return found.repeat(size, 1)

    def asked(self, round: int) -> tuple[Any, Any, Any, Any]:
        advantages, place, low, high = super().asked(round)
        views = self.views(advantages)
        advantages = np.where(self.frozen(views), 0.0, advantages)
        if self.pinned:
            low, high = low.copy(), high.copy()
            at = place[views["first"] & self.drawn.mask & (advantages != 0)]
            low[at] = high[at] = 0.0
        return np.ascontiguousarray(advantages), place, low, high


class Apart(Runs):
    """Runs that take each round several times from the same weights, and keep what moved."""

    def __init__(self, world: Any, lanes: Sequence[tuple[Learner, int]]) -> None:
        super().__init__(world, lanes, FREEZES["nothing"])
        self.parts: list[Any] = []  # of each round (L, 8): P("work"), whether it is quiet, and `PARTS`

    def logits(self, lanes: Any) -> Any:
        count = len(lanes.seed)
        features = self.worlds.features[lanes.seed].reshape(count, self.scene.prompts, self.scene.length, -1)
        return features[:, :, 0] @ lanes.weights[0]

    def asked(self, round: int) -> tuple[Any, Any, Any, Any]:
        advantages, place, low, high = super().asked(round)
        count, none, zero = len(self.lanes.seed), np.zeros_like(advantages), np.zeros_like(low)
        plain = self.loss._replace(up=arithmetic.WEIGHT, down=arithmetic.WEIGHT)
        before = self.logits(self.lanes)
        moved: list[Any] = []
        ends: list[Any] = []
        takes = (advantages, low, high, self.loss), (advantages, zero, zero, plain), (none, low, high, self.loss)
        for a, lo, hi, loss in takes:
            lanes = self.lanes._replace(weights=self.lanes.weights.copy(), hidden=self.lanes.hidden.copy())
            start = self.sizes, self.worlds, lanes, round, self.drawn
            self.kernel.learn(*start, a, place, lo, hi, loss, np.zeros((count, 4)), np.zeros((count, 4)))
            ends.append(self.logits(lanes))
            odds = [_log_odds(log_softmax(x)[..., WORK]).mean(1) for x in (before, ends[-1])]
            moved.append((odds[1] - odds[0], (ends[-1] - before)[..., WORK].mean(1)))
        prompts = np.repeat(self.worlds.prompts[self.lanes.seed, round], self.scene.responses_per_prompt, 1)
        logps = log_softmax(ends[0])[np.arange(count)[:, None], prompts, self.drawn.tokens[:count, :, 0]]
        up, at, log_ratio = advantages[:count, :, 0], place[:count, :, 0], logps - self.drawn.logps[:count, :, 0]
        inside = np.where(up > 0, log_ratio <= high[at], log_ratio >= low[at])
        (change, work), (pinned, pinned_work), (momentum, _) = moved
        p_work = np.exp(log_softmax(before)[..., WORK]).mean(1)
        quiet = self.views(advantages)["quiet"][:count, 0, 0]
        sums = (np.exp(log_ratio) * up * inside).mean(1)
        parts = (p_work, quiet, change, momentum, pinned - momentum, change - pinned, work - pinned_work, sums)
        self.parts.append(np.stack(parts, 1))
        return advantages, place, low, high


PARTS = ("change", "momentum", "plain", "ratio", "ratio_work", "sum")


def _log_odds(log_p: Any) -> Any:
    return log_p - np.log(-np.expm1(log_p))


def train(
    node: Any, rule: Rule, rates: Sequence[float], seeds: Sequence[int], frozen: Frozen = FREEZES["nothing"],
    pinned: bool = False,
) -> Any:  # fmt: skip
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


def drift(first: int = 51_000, count: int = 96) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for node, rates in (("rare and noisy", RATES), ({"base": "rare and noisy", "epochs": 1}, ONE_EPOCH)):
        world = make_world(scene(node), range(first, first + count))
        for name, (region, controls) in RULES.items():
            for rate in rates:
                piece = Apart(world, [(Learner(region, rate, **controls), i) for i in range(count)])
                piece.train()
                parts = np.stack(piece.parts, 1)  # (L, rounds, 8)
                early = parts[..., 0] < LOST
                for what, quiet in (("quiet rounds", 1), ("other rounds", 0)):
                    here = early & (parts[..., 1] == quiet)
                    sums = np.where(here[..., None], parts[..., 2:], 0).sum(1)
                    each = np.concatenate([here.sum(1)[:, None], early.sum(1)[:, None], sums], 1)
                    draw = np.random.default_rng(0).integers(count, size=(1000, count))
                    many = each[draw].sum(1)
                    for k, measure in enumerate(PARTS):
                        low, high = np.quantile(many[:, 2 + k] / many[:, 0], (0.025, 0.975))
                        value = each[:, 2 + k].sum() / each[:, 0].sum()
                        rows.append(_row("drift", node, name, rate, what, measure, value, low, high))
                    share = each[:, 0].sum() / each[:, 1].sum()
                    rows.append(_row("drift", node, name, rate, what, "share of rounds", share))
            print(node, name, flush=True)
    return [row | {"seeds": count, "first_seed": first} for row in rows]


def predicted(x: Any, rounds: int) -> float:
    """The share below P = .05 after some rounds of a chain that steps as the courses x, (runs, rounds + 1), do."""
    draw = np.random.default_rng(0)
    at, steps = x[:, :-1].ravel(), np.diff(x, axis=1).ravel()
    order = np.argsort(at, kind="stable")
    at, steps, k = at[order], steps[order], min(NEAREST, len(at))
    one, two = (np.concatenate([[0], np.cumsum(steps**power)]) for power in (1, 2))
    now = np.resize(x[:, 0], PARTICLES)
    for _ in range(rounds):
        i = np.clip(np.searchsorted(at, now) - k // 2, 0, len(at) - k)
        mean = (one[i + k] - one[i]) / k
        variance = np.maximum((two[i + k] - two[i]) / k - mean**2, 0)
        now = now + mean + np.sqrt(variance) * draw.normal(size=PARTICLES)
    return float((now < _log_odds(math.log(LOST))).mean())


def chain(first: int = 52_000, count: int = 256) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    slopes: dict[tuple[str, float], float] = {}
    shares: dict[tuple[str, float], float] = {}
    for what, rules in (("design", RULES), ("report", REPORTED)):
        for name, rule in rules.items():
            seen = train({"base": "rare and noisy", "rounds": SEEN}, rule, RATES, range(first, first + count))
            other = train(
                {"base": "rare and noisy", "rounds": 128}, rule, RATES, range(first + 1000, first + 1000 + count)
            )
            for i, rate in enumerate(RATES):
                x, start = _log_odds(np.log(seen[i])), ("chain", "rare and noisy", name, rate, what)
                rows.append(_row(*start, f"after {SEEN}", *extinction_rate(seen[i, :, -1], LOST)))
                for rounds in (64, 128):
                    rows.append(_row(*start, f"observed {rounds}", *extinction_rate(other[i, :, rounds], LOST)))
                    for runs in (32, 64, count):
                        rows.append(_row(*start, f"chain of {runs}, {rounds}", predicted(x[:runs], rounds)))
                steps = np.diff(x, axis=1)[x[:, :-1] < _log_odds(math.log(LOST))]
                slopes[name, rate] = 2 * steps.mean() / steps.var()
                shares[name, rate] = (other[i, :, 64] < LOST).mean()
            print(what, name, *(f"{row['measure']} {row['value']}" for row in rows[-8:]), flush=True)

    def line(name: str, rate: float, d: float) -> float:
        return min(1.0, math.exp(-slopes[name, rate] * d))

    design = [(name, rate) for name in RULES for rate in RATES]
    best = min(np.linspace(0.05, 10, 200), key=lambda d: sum((line(*x, d) - shares[x]) ** 2 for x in design))
    for name, rate in shares:
        start = ("chain", "rare and noisy", name, rate, "design" if name in RULES else "report")
        rows.append(_row(*start, "line", line(name, rate, best)))
        rows.append(_row(*start, "rate", np.mean([shares[x, rate] for x in RULES])))
        rows.append(_row(*start, "share", np.mean([shares[x] for x in design])))
    return [row | {"seeds": count, "first_seed": first + 1000} for row in rows]


def summary() -> list[dict[str, Any]]:
    told = read_rows(CSV)
    rows: list[dict[str, Any]] = []
    lost = [row for row in told if (row["part"], row["scene"], row["measure"]) == ("freeze", "rare and noisy", "lost")]
    for what in dict.fromkeys(row["what"] for row in lost):
        some = [row for row in lost if row["what"] == what]
        rows.append(
            _row(
                "summary", "rare and noisy", "all", "all", what, "lost", np.mean([float(row["value"]) for row in some])
            )
        )
    found = {
        (row["rule"], row["learning_rate"], row["measure"]): float(row["value"])
        for row in told
        if (row["part"], row["what"]) == ("chain", "report")
    }
    cells = sorted({(rule, rate) for rule, rate, _ in found})
    for measure in sorted({measure for *_, measure in found if not measure.startswith("observed")}):
        observed = np.array([found[*x, f"observed {128 if measure.endswith(' 128') else 64}"] for x in cells])
        said = np.array([found[*x, measure] for x in cells])
        start = ("summary", "rare and noisy", "all", "all", measure)
        rows.append(_row(*start, "cells", len(cells)))
        rows.append(_row(*start, "off by more than .1", (abs(said - observed) > 0.1).sum()))
        rows.append(_row(*start, "root mean square", np.sqrt(((said - observed) ** 2).mean())))
        if said.std() > 0:
            rows.append(_row(*start, "rank correlation", spearmanr(said, observed)[0]))
    for row in rows:
        print(row["what"], row["measure"], row["value"])
    return [row | {"seeds": "", "first_seed": ""} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    todo = {"freeze": freeze, "drift": drift, "chain": chain, "summary": summary}
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
