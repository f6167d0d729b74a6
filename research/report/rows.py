"""The rows of docs/report: which are kept of a contest, what may be written of one, and all of them as rows.csv."""

import csv
import functools
import io
import json
import lzma
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.bench.cells import cell, cell_of
from research.bench.labs import is_lab, lab_of
from research.csv_rows import read_rows
from research.statistics import Estimate, bootstrap, swap_test
from research.worlds.scenes import scene

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "research" / "contests"
RATES = ROOT / "research" / "measurements" / "reuse_rates.csv"
COLUMNS = (
    "id",
    "contest",
    "world",
    "control",
    "uses",
    "mini-batches",
    "rule",
    "setting",
    "reward",
    "low",
    "high",
    "difference",
    "difference low",
    "difference high",
    "from",
    "p (Holm)",
    "outside %",
    "lost %",
    "half",
    "seeds",
    "settings tried",
    "at an edge",
)
GONE = 0.05  # below this P("work") at the end, the rare strategy is lost
_DIGITS = 4
_TOLD = ("family", "point", "searched", "more", "edges", "chosen_with", "p_adjusted")
LINK = re.compile(r"\[([^\[\]]*(?:\[[^\[\]]*\])?[^\[\]]*)\]\((?:[./\w]*/)?rows\.csv#([0-9a-f]{6})(?:-([0-9a-f]{6}))?\)")


@dataclass(frozen=True, eq=False)
class Kept:
    """A judged row: what was chosen of a family under a control in a world, and its runs on seeds that chose nothing.

    `told` has what the contest's results said: family, control, point, searched, more, edges, chosen_with, commit, and
    the names of all `numbers` that the contest gave.
    """

    told: Mapping[str, Any]
    row: dict[str, Any]

    @property
    def id(self) -> str:
        return self.row["key"][:6]

    @property
    def place(self) -> tuple[str, str, str]:
        return self.told["contest"], self.told["world"], self.told["control"]

    @functools.cached_property
    def final(self) -> Any:
        return np.array([0.0 if x is None else x for x in self.row["final"]])

    @functools.cached_property
    def value(self) -> Estimate:
        return bootstrap(lambda x: x.mean(-1), self.final)

    @property
    def outside(self) -> str:
        """The share of tokens outside its rule, in percent; "" if it was not measured."""
        return measured().get((*self.place, self.told["family"], self.setting), "")

    @property
    def setting(self) -> str:
        names = {"learning_rate": "lr"}
        point = self.told["point"].items()
        return ", ".join(f"{names.get(x, x)} {y if isinstance(y, str) else f'{y:g}'}" for x, y in point)


@dataclass(frozen=True)
class Pair:
    """The difference of two rows, on the seeds that both have: one of another contest may have more."""

    one: Kept
    other: Kept

    @property
    def id(self) -> str:
        return f"{self.one.id}-{self.other.id}"

    @functools.cached_property
    def runs(self) -> tuple[Any, Any]:
        """The rewards of the two, seed by seed."""
        ranges = [range(first, first + count) for first, count in (self.one.row["seeds"], self.other.row["seeds"])]
        first, end = max(x.start for x in ranges), min(x.stop for x in ranges)
        if first >= end:
            raise ValueError(f"{self.id}: rows that share no seed, {self.one.row['seeds']}, {self.other.row['seeds']}")
        x, y = (slice(first - its.start, end - its.start) for its in ranges)
        return self.one.final[x], self.other.final[y]

    @functools.cached_property
    def difference(self) -> Estimate:
        return bootstrap(lambda x, y: (x - y).mean(-1), *self.runs)

    @functools.cached_property
    def p(self) -> float:
        return swap_test(*self.runs)


@functools.cache
def all_rows() -> tuple[Kept, ...]:
    """Return all judged rows; families with the same setting have the same row.

    Raises:
        ValueError: a row's key is not that of its content, or two rows share an id.
    """
    rows: list[Kept] = []
    keys: dict[str, str] = {}
    for path in sorted(KEPT.glob("*.jsonl.xz")):
        for line in lzma.decompress(path.read_bytes()).decode().splitlines():
            one = Kept(**json.loads(line))
            rows.append(one)
            first, count = one.row["seeds"]
            seeds = range(first, first + count)
            if cell(one.row["world"], one.row["learner"], seeds, one.told["numbers"]).key != one.row["key"]:
                raise ValueError(f"{path.name}, {one.id}: the key belongs to another world, learner or seeds")
            if keys.setdefault(one.id, one.row["key"]) != one.row["key"]:
                raise ValueError(f"two rows have the id {one.id}: take more digits")
    return tuple(rows)


def take(folder: Path) -> Path:
    """Keep the judged rows of a contest, with what was said of them."""
    results = json.loads((folder / "results.json").read_text())
    if (results["contest"]["metric"], results["contest"]["lost_below"]) != ("final", GONE):
        raise ValueError(f"{folder}: the report shows contests with metric: final and lost_below: {GONE}")
    rows = {row["key"]: row for row in map(json.loads, (folder / "rows.jsonl").read_text().splitlines())}
    name = results["contest"]["name"]
    lines = []
    for table in results["tables"]:
        if len(table["worlds"]) != 1:
            raise ValueError(f"{folder}: the report shows contests with one setting for each world (per_world: true)")
        for one in table["families"]:
            told = {each: one[each] for each in _TOLD} | {"contest": name, "commit": results["commit"]}
            told |= {"world": table["worlds"][0], "control": table["control"]}
            row = rows[one["keys"][0]]
            told["numbers"] = cell_of(row, one["family"]).numbers
            lines.append(json.dumps({"told": told, "row": shown(row)}))
    path = KEPT / f"{name.replace(' ', '-')}.jsonl.xz"
    path.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    return path


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the pages need of a row: what it is of, its rewards, how many runs were lost, and when half had."""
    need = {name: row[name] for name in ("key", "world", "learner", "seeds")}
    need["final"] = [x if x is None else round(x, _DIGITS) for x in row["final"]]
    return need | {
        "lost": sum(x is None or x < GONE for x in row["work"]),
        "half": round(float(np.mean(row["half"])), 4),
    }


@functools.cache
def judged() -> dict[tuple[tuple[str, str, str], str], Kept]:
    """Return all judged rows, by place (contest, world, control) and family."""
    return {(one.place, one.told["family"]): one for one in all_rows()}


def baseline_of(one: Kept) -> Kept | None:
    """Return the row that its contest compares it with: no clip in the contests of re-use, else the best fixed clip."""
    name = "no clip" if one.told["contest"].startswith("reuse") else "fixed clip"
    return None if one.told["family"] == name else judged().get((one.place, name))


def shape(one: Kept) -> tuple[int, int]:
    """Return how often its world uses each answer, and the mini-batches of a round."""
    if is_lab(one.row["world"]):
        settings = lab_of(one.row["world"]).settings
        return settings.num_iterations, settings.steps_per_generation
    its = scene(one.row["world"])
    return its.epochs, its.minibatches


def scene_name(one: Kept) -> str:
    """Return the name of the scene of its world, which pages say: `rare`, `lab rare-and-noisy`."""
    return one.told["world"].partition(",")[0]


@functools.cache
def measured() -> dict[tuple[str, ...], str]:
    """Return the share of tokens outside each rule that was measured, in percent, by place, family and setting."""
    names = ("contest", "world", "control", "family", "setting")
    return {tuple(row[name] for name in names): row["percent"] for row in read_rows(RATES)}


def as_csv(some: Sequence[Kept]) -> str:
    """Return rows as a table: reward and difference have three digits, with 95 % intervals over seeds."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in some:
        base = baseline_of(one)
        pair = Pair(one, base) if base else None
        ends = [f"{x:.3f}" for x in one.value] + ([f"{x:+.3f}" for x in pair.difference] if pair else [""] * 3)
        p = one.told["p_adjusted"]
        writer.writerow(
            [
                one.id,
                *one.place,
                *shape(one),
                one.told["family"],
                one.setting,
                *ends,
                base.told["family"] if base else "",
                "" if p is None or not pair else f"{p:.4f}",
                one.outside,
                f"{100 * one.row['lost'] / len(one.final):.1f}",
                f"{one.row['half']:.1f}",
                one.row["seeds"][1],
                one.told["searched"] + one.told["more"],
                "yes" if one.told["edges"] else "",
            ]
        )
    return made.getvalue()


def number(x: float, sign: str = "") -> str:
    return f"{x:{sign}.3f}"


def with_interval(estimate: Estimate, sign: str = "") -> str:
    return f"{number(estimate.value, sign)} [{number(estimate.low, sign)}, {number(estimate.high, sign)}]"


def forms(one: Kept | Pair) -> list[str]:
    """Return all that a page may write of a row, or of the difference of two."""
    if isinstance(one, Pair):
        x = one.difference
        side = f"{number(abs(x.value))} {'below' if x.value < 0 else 'above'}"
        return [number(x.value, "+"), with_interval(x, "+"), side] + ["not significant"] * (x.low <= 0 <= x.high)
    return [number(one.value.value), *([f"{float(one.outside):.2g} %"] if one.outside else [])]


def of_link(first: str, second: str) -> Kept | Pair:
    rows = {one.id: one for one in all_rows()}
    return Pair(rows[first], rows[second]) if second else rows[first]


def statements(text: str) -> list[tuple[str, str, Kept | Pair]]:
    """Return each number of a text that stands on rows: as it is written, its id, and what it is of."""
    return [(words, "-".join(filter(None, ids)), of_link(*ids)) for words, *ids in LINK.findall(text)]
