"""The report docs/report/: its tables, figures and list of rows, from the rows that contests gave.

    python docs/report.py                        writes the tables of index.md, rows.md and the figures anew
    python docs/report.py --pdf report.pdf       and prints the pages (sphinx, and chromium as the printer)
    python docs/report.py --take runs/bench/X    first keeps what is needed of a finished contest, as
                                                 benchmarks/contest/X.jsonl.gz, with the courses of some of its runs

The text of index.md is written by hand. A number in it that was measured is a link to the row that it stands on:
`[0.940](rows.md#3fa91c)`, or for a difference of two, on the same seeds, `[+0.075](rows.md#3fa91c-8be210)`.
tests/test_report.py computes each from its rows and compares it with what is written.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import report_figures as figures

from bandpo.bench.cells import cell_of
from bandpo.statistics.contest import (
    Estimate,
    SigmoidFit,
    bootstrap,
    extinction_rate,
    interquartile_mean,
    sigmoid_fit,
    swap_test,
)
from bandpo.worlds import Learner, train

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "benchmarks" / "contest"
PAGES = ROOT / "docs" / "report"
TEXT, ROWS = PAGES / "index.md", PAGES / "rows.md"
FOR_COURSES = 128  # of the seeds that judge
GONE = 0.05  # below this P("work") at the end, the rare strategy is lost
_TOLD = ("family", "point", "searched", "more", "edges", "chosen_with", "p_adjusted")
_LINK = re.compile(r"\[([^\[\]]*(?:\[[^\[\]]*\])?[^\[\]]*)\]\(rows\.md#([0-9a-f]{6})(?:-([0-9a-f]{6}))?\)")
_TABLE = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Kept:
    """A judged row: what was chosen of a family under a control in a world, and its runs on seeds that chose nothing.

    `told` has what the contest's results said: family, control, point, searched, more, edges, chosen_with, commit; and,
    where there was no control, `course`: the mean reward before each round, of the first seeds that judged.
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
        return ", ".join(f"{names.get(name, name)} {value:g}" for name, value in self.told["point"].items())


@dataclass(frozen=True)
class Pair:
    """The difference of two rows, on the same seeds."""

    one: Kept
    other: Kept

    @property
    def id(self) -> str:
        return f"{self.one.id}-{self.other.id}"

    @functools.cached_property
    def difference(self) -> Estimate:
        if self.one.row["seeds"] != self.other.row["seeds"]:
            raise ValueError(f"{self.id}: rows of different seeds, {self.one.row['seeds']}, {self.other.row['seeds']}")
        return bootstrap(lambda x, y: (x - y).mean(-1), self.one.final, self.other.final)

    @functools.cached_property
    def p(self) -> float:
        return swap_test(self.one.final, self.other.final)


@functools.cache
def kept() -> tuple[Kept, ...]:
    """All judged rows. Two families may have chosen the same setting, and then have the same row."""
    found: list[Kept] = []
    keys: dict[str, str] = {}
    for path in sorted(KEPT.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            found.append(Kept(**json.loads(line)))
            cell_of(found[-1].row, f"{path.name}, {found[-1].id}")  # whose key is that of its content
            if keys.setdefault(found[-1].id, found[-1].row["key"]) != found[-1].row["key"]:
                raise ValueError(f"two rows have the id {found[-1].id}: take more digits")
    return tuple(found)


def take(folder: Path) -> Path:
    """Keep the judged rows of a contest, with what was said of them."""
    results = json.loads((folder / "results.json").read_text())
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
            if table["control"] == "none":
                told["course"] = course_of(row)
            lines.append(json.dumps({"told": told, "row": row}))
    path = KEPT / f"{name.replace(' ', '-')}.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    return path


def course_of(row: Mapping[str, Any]) -> list[float]:
    """The mean reward before each round, and at the end."""
    first, count = row["seeds"]
    seeds = range(first, first + min(count, FOR_COURSES))
    found = train(row["world"], [Learner(**row["learner"])], seeds, curves=True)["reward"][0]
    return [round(x, 5) for x in found.mean(0).tolist()]


def fit_of(one: Kept) -> SigmoidFit:
    """ScaleRL's sigmoid of its course, in rounds."""
    return sigmoid_fit(one.told["course"][1:])


# What is written of a number.


def number(x: float, sign: str = "") -> str:
    return f"{x:{sign}.3f}"


def share(x: float) -> str:
    return f"{100 * x:.1f} %"


def with_interval(estimate: Estimate, sign: str = "") -> str:
    return f"{number(estimate.value, sign)} [{number(estimate.low, sign)}, {number(estimate.high, sign)}]"


def share_with_interval(estimate: Estimate) -> str:
    return f"{share(estimate.value)} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def forms(one: Kept | Pair) -> list[str]:
    """All that may be written of it."""
    if isinstance(one, Pair):
        return [number(one.difference.value, "+"), with_interval(one.difference, "+"), chance(one.p)]
    told = [number(one.value.value), with_interval(one.value), share(one.lost.value), share_with_interval(one.lost)]
    return [*told, f"{one.half:.0f} rounds", one.setting]


def of_link(first: str, second: str) -> Kept | Pair:
    rows = {one.id: one for one in kept()}
    return Pair(rows[first], rows[second]) if second else rows[first]


def statements(text: str) -> list[tuple[str, str, Kept | Pair]]:
    """Each number of the text that stands on rows: as it is written, its id, and what it is of."""
    return [(said, "-".join(filter(None, ids)), of_link(*ids)) for said, *ids in _LINK.findall(_TABLE.sub("", text))]


# Tables and pages.


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown: the first column to the left, the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def at(contest: str, world: str, control: str) -> dict[str, Kept]:
    """By family."""
    return {one.told["family"]: one for one in kept() if one.place == (contest, world, control)}


def baseline_of(some: Mapping[str, Kept]) -> Kept:
    return some["fixed clip"]


def main_table(contest: str, world: str, control: str) -> str:
    """Every family beside the best fixed clip, the best first."""
    some = at(contest, world, control)
    base, lines = baseline_of(some), []
    for one in sorted(some.values(), key=lambda one: -one.value.value):
        pair = Pair(one, base)
        p = one.told["p_adjusted"]
        lines.append([
            f"{one.told['family']}{'*' if one.told['edges'] else ''}", one.setting,
            f"[{with_interval(one.value)}](rows.md#{one.id})",
            "" if one is base else with_interval(pair.difference, "+"),
            "" if p is None else chance(p).removeprefix("p ").removeprefix("= "),
            share(one.lost.value), f"{one.half:.0f}",
        ])  # fmt: skip
    head = ["rule", "chosen setting", "reward at the end", "minus best fixed clip", "p (Holm)", "lost", "half"]
    return table(head, lines)


def control_table(contest: str, world: str) -> str:
    """For every family, under each control, its reward minus that of the best fixed clip under the same control."""
    controls = dict.fromkeys(one.told["control"] for one in kept() if one.place[:2] == (contest, world))
    return differences({control: at(contest, world, control) for control in controls})


def worlds_table(contest: str, control: str) -> str:
    """For every family and world its reward minus that of the best fixed clip there."""
    worlds = dict.fromkeys(one.told["world"] for one in kept() if one.told["contest"] == contest)
    return differences({world: at(contest, world, control) for world in worlds})


def differences(columns: Mapping[str, Mapping[str, Kept]]) -> str:
    """Every family minus the best fixed clip of its column, ordered by the first; bold where p < 0.05 after Holm."""
    bases = [baseline_of(some) for some in columns.values()]
    lines = [["**fixed clip itself**", *(f"[{number(base.value.value)}](rows.md#{base.id})" for base in bases)]]
    first = sorted(next(iter(columns.values())).values(), key=lambda one: -one.value.value)
    for family in (one.told["family"] for one in first if one.told["family"] != "fixed clip"):
        cells = []
        for some in columns.values():
            text = number(Pair(some[family], baseline_of(some)).difference.value, "+")
            cells.append(f"**{text}**" if some[family].told["p_adjusted"] < 0.05 else text)
        lines.append([family, *cells])
    return table(["rule", *columns], lines)


def fits_table(contest: str, world: str) -> str:
    """ScaleRL's sigmoid of each family's mean reward, or why it has none."""
    lines = []
    for family, one in at(contest, world, "none").items():
        fit = fit_of(one)
        numbers = [number(fit.asymptote), f"{fit.middle:.1f}", f"{fit.exponent:.1f}"] if not fit.why_not else [""] * 3
        lines.append([family, *numbers, number(fit.residual), fit.why_not])
    return table(
        ["rule", "asymptote A", "half of the gain (rounds)", "steepness B", "residual", "no fit, because"], lines
    )


TABLES = {"fits": fits_table, "main": main_table, "controls": control_table, "worlds": worlds_table}


def filled(text: str) -> str:
    """The text with its tables anew: `<!-- table: kind; argument; ... -->` to `<!-- end -->`."""

    def anew(match: re.Match[str]) -> str:
        kind, *arguments = (part.strip() for part in match[2].split(";"))
        return f"{match[1]}\n{TABLES[kind](*arguments)}\n{match[3]}"

    return _TABLE.sub(anew, text)


def rows_page(text: str) -> str:
    """Every judged row, and every difference that the text states."""
    made = io.StringIO()
    made.write(
        "# The rows of the report\n\nWritten by `python docs/report.py` from the rows in "
        "[benchmarks/contest](../../benchmarks/contest). A row is one rule with one setting under one control in one "
        "world, on seeds by which nothing was chosen. Its id is the beginning of a hash of all that it depends on. "
        '`lost` is the share of runs that end with P("work") < 0.05, `half` the mean number of rounds until '
        'P("work") > 1/2, `chosen with` the reward on the seeds of the choice, '
        "`tried` the number of settings, with those of a grid that was widened after the +.\n"
    )
    head = ["row", "rule", "setting", "reward", "middle half", "lost", "half", "chosen with", "tried"]
    seen: set[str] = set()

    def name(one: Kept) -> str:
        """What links lead to, once."""
        again = one.id in seen
        seen.add(one.id)
        return one.id if again else f"[{one.id}]{{#{one.id}}}"

    for place in dict.fromkeys(one.place for one in kept()):
        contest, world, control = place
        some = at(*place)
        seeds = next(iter(some.values())).row["seeds"]
        made.write(f"\n## {contest}: {world}, {control}\n\nSeeds {seeds[0]} to {seeds[0] + seeds[1] - 1}.\n\n")
        made.write(table(head, ([
            name(one), one.told["family"], one.setting, with_interval(one.value),
            number(one.middle.value), share_with_interval(one.lost), f"{one.half:.1f}",
            number(one.told["chosen_with"]), f"{one.told['searched']} + {one.told['more']}",
        ] for one in some.values())))  # fmt: skip
    pairs = {one.id: one for _, _, one in statements(text) if isinstance(one, Pair)}
    if pairs:
        made.write("\n## Differences that the report states\n\nOf two rows on the same seeds; p by swapping them.\n\n")
        made.write(table(["rows", "of", "minus", "difference", "p"], ([
            f"[{one.id}]{{#{one.id}}}", _named(one.one), _named(one.other), with_interval(one.difference, "+"),
            chance(one.p),
        ] for one in pairs.values())))  # fmt: skip
    return made.getvalue()


def _named(one: Kept) -> str:
    return f"{one.told['family']}, {one.told['world']}, {one.told['control']}"


def print_pdf(path: Path) -> None:
    """The same pages as one, by the same builder as the site, printed by chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("--pdf needs chromium (or google-chrome) on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "extensions": "myst_parser", "myst_enable_extensions": "attrs_inline,dollarmath", "html_theme": "basic",
            "suppress_warnings": "myst.xref_missing", "html_static_path": ".", "html_css_files": "print.css",
        }  # fmt: skip
        given = [f"-D{name}={value}" for name, value in options.items()]
        subprocess.run(
            [sys.executable, "-m", "sphinx", "-Q", "-C", *given, "-b", "singlehtml", PAGES, folder], check=True
        )
        printed = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={path}"]
        subprocess.run([browser, *printed, f"{folder}/index.html"], check=True, capture_output=True)


def draw(folder: Path) -> None:
    """All figures."""
    weights = {"as it is": "none", "positive advantages x 0.85": "positives x .85", "entropy bonus": "entropy bonus"}
    by_family = {
        family: {label: at("both", "both", control)[family].value for label, control in weights.items()}
        for family in at("both", "both", "none")
    }
    by_family = dict(sorted(by_family.items(), key=lambda item: -item[1]["as it is"].value))
    label = "expected reward at the end, and 95 % interval"
    figures.save(folder / "both.svg", figures.forest(by_family, label, None), 5)
    plain = at("both", "both", "none")
    runs = {name: plain[name].final for name in ("head band", "two-level clip", "fixed clip", "Band-KL", "no clip")}
    runs["fixed clip, positives x 0.85"] = at("both", "both", "positives x .85")["fixed clip"].final
    figures.save(folder / "profiles.svg", figures.profiles(runs, "reward at the end"), 3.6)
    curves = {}
    for name in ("head band", "two-level clip", "fixed clip", "Band-KL", "symmetric clip"):
        fit = fit_of(plain[name])
        rounds = np.arange(1, len(plain[name].told["course"]))
        fitted = fit.start + (fit.asymptote - fit.start) / (1 + (fit.middle / rounds) ** fit.exponent)
        curves[name] = plain[name].told["course"], None if fit.why_not else fitted.tolist()
    figures.save(folder / "courses.svg", figures.courses(curves, "mean expected reward"), 3.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--take", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument("--pdf", type=Path, metavar="FILE")
    options = parser.parse_args()
    for folder in options.take:
        print(take(folder))
    TEXT.write_text(filled(TEXT.read_text(encoding="utf-8")), encoding="utf-8")
    ROWS.write_text(rows_page(TEXT.read_text(encoding="utf-8")), encoding="utf-8")
    draw(PAGES)
    if options.pdf:
        print_pdf(options.pdf)
    for said, name, one in statements(TEXT.read_text(encoding="utf-8")):
        if said not in forms(one):
            print(f"{name}: the text says {said!r}; its rows say {forms(one)}", file=sys.stderr)


if __name__ == "__main__":
    main()
