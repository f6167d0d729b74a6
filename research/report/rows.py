"""The rows of docs/report: which are kept of a contest, and what may be written of one."""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import lzma
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.bench.cells import cell, cell_of, holds_lock
from research.statistics import (
    Estimate,
    bootstrap,
    extinction_rate,
    interquartile_mean,
    probability_of_improvement,
    swap_test,
)
from research.worlds import Learner, train

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "research" / "contests"
TABLES_OF = {
    "extinction.csv": "research/measurements",
    "tuning.csv": "research/measurements",
    "lab_start.csv": "research/measurements",
    "smollm2.csv": "benchmarks",
    "smollm2_summary.csv": "benchmarks",
}
FOR_COURSES = 128  # of the seeds that judge
GONE = 0.05  # below this P("work") at the end, the rare strategy is lost
NUMBERS = ("final", "work", "half")  # of those that a contest gives, what the pages are of
_DIGITS = 4
_TOLD = ("family", "point", "searched", "more", "edges", "chosen_with", "p_adjusted")
_SAID = r"\[([^\[\]]*(?:\[[^\[\]]*\])?[^\[\]]*)\]"
LINK = re.compile(_SAID + r"\((?:\.\./)+research/contests#([0-9a-f]{6}(?:[0-9a-f]{2})?)(?:-([0-9a-f]{6}))?\)")
TABLE = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Kept:
    """A judged row: what was chosen of a family under a control in a world, and its runs on seeds that chose nothing.

    `told` has what the contest's results said: family, control, point, searched, more, edges, chosen_with, commit; the
    names of all `numbers` that the contest gave; and, in a world and without a control, `course`: the mean reward
    before each round, of the first seeds that judged.
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

    @functools.cached_property
    def middle(self) -> Estimate:
        return bootstrap(lambda x: interquartile_mean(x, -1), self.final)

    @functools.cached_property
    def lost(self) -> Estimate:
        return extinction_rate(np.array([0.0 if x is None else x for x in self.row["work"]]), GONE)

    @property
    def half(self) -> float:
        return float(np.mean(self.row["half"]))

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

    @functools.cached_property
    def better(self) -> float:
        """The chance that a run of the first beats one of the other."""
        return float(probability_of_improvement(*self.runs))


@dataclass(frozen=True, eq=False)
class Measured:
    """A row of a table that is no contest's: columns that say of what, then value, low and high."""

    file: str
    row: Mapping[str, str]

    @property
    def name(self) -> str:
        return Path(self.file).name

    @functools.cached_property
    def about(self) -> str:
        names = list(self.row)
        return ", ".join(self.row[name] for name in names[: names.index("value")])

    @functools.cached_property
    def id(self) -> str:
        return hashlib.sha256(f"{self.name}: {self.about}".encode()).hexdigest()[:8]

    @functools.cached_property
    def value(self) -> Estimate:
        return Estimate(*(float(self.row[name] or "nan") for name in ("value", "low", "high")))

    @property
    def with_interval(self) -> str:
        return with_interval(self.value) if self.row["low"] else number(self.value.value)


@functools.cache
def measured() -> tuple[Measured, ...]:
    """All rows of the tables in `TABLES_OF`, each with an id of its own."""
    found: list[Measured] = []
    for file, folder in TABLES_OF.items():
        with (ROOT / folder / file).open(encoding="utf-8", newline="") as rows:
            found += [Measured(file, row) for row in csv.DictReader(rows)]
    if len({one.id for one in found}) < len(found):
        raise ValueError(f"two rows of {' or '.join(TABLES_OF)} have the same id: of the same, or ids too short")
    return tuple(found)


@functools.cache
def kept() -> tuple[Kept, ...]:
    """Return all judged rows; families with the same setting have the same row.

    Raises:
        ValueError: a row's key is not that of its content, or two rows share an id.
    """
    found: list[Kept] = []
    keys: dict[str, str] = {}
    for path in sorted(KEPT.glob("*.jsonl.xz")):
        for line in lzma.decompress(path.read_bytes()).decode().splitlines():
            one = Kept(**json.loads(line))
            found.append(one)
            first, count = one.row["seeds"]
            seeds = range(first, first + count)
            if cell(one.row["world"], one.row["learner"], seeds, one.told["numbers"]).key != one.row["key"]:
                raise ValueError(f"{path.name}, {one.id}: the key belongs to another world, learner or seeds")
            if keys.setdefault(found[-1].id, found[-1].row["key"]) != found[-1].row["key"]:
                raise ValueError(f"two rows have the id {found[-1].id}: take more digits")
    return tuple(found)


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
            if table["control"] == "none" and not holds_lock(cell_of(row, one["family"])):  # seconds, and not an hour
                told["course"] = course_of(row)
            lines.append(json.dumps({"told": told, "row": shown(row)}))
    path = KEPT / f"{name.replace(' ', '-')}.jsonl.xz"
    path.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    return path


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the pages need of a row: what it is of, and NUMBERS with fewer digits."""
    kept = {name: row[name] for name in ("key", "world", "learner", "seeds")}
    return kept | {name: [x if x is None else round(x, _DIGITS) for x in row[name]] for name in NUMBERS}


def course_of(row: Mapping[str, Any]) -> list[float]:
    """The mean reward before each round, and at the end."""
    first, count = row["seeds"]
    seeds = range(first, first + min(count, FOR_COURSES))
    found = train(row["world"], [Learner(**row["learner"])], seeds, curves=True)["reward"][0]
    return [round(x, 5) for x in found.mean(0).tolist()]


# What is written of a number.


def number(x: float, sign: str = "") -> str:
    return f"{x:{sign}.3f}"


def share(x: float) -> str:
    return f"{100 * x:.1f} %"


def with_interval(estimate: Estimate, sign: str = "") -> str:
    return f"{number(estimate.value, sign)} [{number(estimate.low, sign)}, {number(estimate.high, sign)}]"


def share_with_interval(estimate: Estimate) -> str:
    return f"{share(estimate.value)} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def chance(p: float, *, bare: bool = False) -> str:
    """`p < 0.001`, `p = 0.02`; bare `< 0.001`, `0.02`, as under the head of a column."""
    if p < 0.001:
        return "< 0.001" if bare else "p < 0.001"
    return ("" if bare else "p = ") + (f"{p:.3f}" if p < 0.1 else f"{p:.2f}")


def forms(one: Kept | Pair | Measured) -> list[str]:
    """All that may be written of it."""
    if isinstance(one, Measured):
        x = one.value
        bare = [number(x.value), number(x.value, "+"), share(x.value), f"{x.value:.3g}"]
        return [*bare, with_interval(x), with_interval(x, "+"), share_with_interval(x)] if one.row["low"] else bare
    if isinstance(one, Pair):
        x = one.difference
        side = f"{number(abs(x.value))} {'below' if x.value < 0 else 'above'}"
        return [number(x.value, "+"), with_interval(x, "+"), chance(one.p), side]
    told = [number(one.value.value), with_interval(one.value), share(one.lost.value), share_with_interval(one.lost)]
    return [*told, f"{one.half:.0f} rounds", one.setting]


def of_link(first: str, second: str) -> Kept | Pair | Measured:
    if not second and (other := {one.id: one for one in measured()}.get(first)):
        return other
    rows = {one.id: one for one in kept()}
    return Pair(rows[first], rows[second]) if second else rows[first]


def statements(text: str) -> list[tuple[str, str, Kept | Pair | Measured]]:
    """Each number of the text that stands on rows: as it is written, its id, and what it is of."""
    return [(said, "-".join(filter(None, ids)), of_link(*ids)) for said, *ids in LINK.findall(TABLE.sub("", text))]
