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
import io
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from re import Match

import numpy as np
import report_figures as figures
from report_rows import (
    LINK,
    TABLE,
    Kept,
    Pair,
    chance,
    forms,
    kept,
    measured,
    number,
    share,
    share_with_interval,
    statements,
    take,
    with_interval,
)
from scipy.stats import rankdata

from bandpo.statistics.contest import Estimate, SigmoidFit, bootstrap, sigmoid_fit

PAGES = Path(__file__).parent / "report"
TEXT, ROWS = PAGES / "index.md", PAGES / "rows.md"


def fit_of(one: Kept) -> SigmoidFit:
    """ScaleRL's sigmoid of its course, in rounds."""
    return sigmoid_fit(one.told["course"][1:])


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


def freezes_table(*columns: str) -> str:
    """The share of lost runs by what is frozen; a column is scene, rule and learning rate, with : between them."""
    head = [column.split(":") for column in columns]
    found = {
        (row["what"], row["scene"], row["rule"], row["learning_rate"]): one
        for one in measured()
        if one.file == "extinction.csv" and (row := one.row)["part"] == "freeze" and row["measure"] == "lost"
    }
    lines = []
    for what in dict.fromkeys(what for what, *place in found if place in head):
        cells = [found.get((what, *place)) for place in head]
        lines.append([what, *("" if one is None else f"[{share(one.value.value)}](rows.md#{one.id})" for one in cells)])
    return table(["frozen", *(f"{rule}, {scene}, rate {rate}" for scene, rule, rate in head)], lines)


def tuning_table() -> str:
    """The expected reward of the best of so many settings, drawn at random."""
    rewards = [one for one in measured() if one.file == "tuning.csv" and one.row["measure"] == "reward"]
    rewards = [one for one in rewards if one.row["control"] == "none"]
    found = {(one.row["family"], one.row["settings"]): one for one in rewards}
    counts = list(dict.fromkeys(count for _, count in found))
    lines = []
    for family in dict.fromkeys(family for family, _ in found):
        cells = [found[family, count] for count in counts]
        lines.append([family, *(f"[{number(one.value.value)}](rows.md#{one.id})" for one in cells)])
    return table(["rule", *(f"best of {count}" for count in counts)], lines)


def radii_table(contest: str, control: str) -> str:
    """The reward of families that are named by their number, such as "KL 0.05", with the learning rate of each."""
    worlds = dict.fromkeys(one.told["world"] for one in kept() if one.told["contest"] == contest)
    columns = {world: at(contest, world, control) for world in worlds}
    lines = []
    names = sorted(next(iter(columns.values())), key=lambda name: (name.split()[0], float(name.split()[-1])))
    for family in names:
        cells = [some[family] for some in columns.values()]
        told = [
            (f"[{with_interval(x.value)}](rows.md#{x.id})", f"{x.told['point']['learning_rate']:.2g}") for x in cells
        ]
        lines.append([family, *(text for pair in told for text in pair)])
    return table(["rule", *(text for world in worlds for text in (world, "rate"))], lines)


def sides_table(contest: str, control: str) -> str:
    """The reward in every world, a line each, of families that are named by their number; bold as in `differences`."""
    some = [one for one in kept() if (one.told["contest"], one.told["control"]) == (contest, control)]
    names = sorted({one.told["family"] for one in some}, key=lambda name: float(name.split()[-1]))
    lines = []
    for world in dict.fromkeys(one.told["world"] for one in some):
        found = at(contest, world, control)
        texts = [f"[{number(found[name].value.value)}](rows.md#{found[name].id})" for name in names]
        sure = [(found[name].told["p_adjusted"] or 1) < 0.05 for name in names]
        lines.append([world, *(f"**{text}**" if bold else text for text, bold in zip(texts, sure, strict=True))])
    return table(["world", *names], lines)


def carried_table(contest: str, world: str, other: str, other_world: str, control: str) -> str:
    """The reward of the families that two contests have, in a world of each, and the rank correlation of the two."""
    first, second = at(contest, world, control), at(other, other_world, control)
    both = sorted(first.keys() & second.keys(), key=lambda name: -first[name].value.value)
    lines = [
        [name, *(f"[{with_interval(one.value)}](rows.md#{one.id})" for one in (first[name], second[name]))]
        for name in both
    ]
    x, y = (np.stack([some[name].final for name in both]) for some in (first, second))
    found, p = rank_correlation(x, y)
    said = f"rank correlation {with_interval(found)} over seeds, for these rules; over rules {chance(p)}"
    return f"{table(['rule', world, other_world], lines)}\nOf the two columns: {said}.\n"


def pretrained_table(baseline: str, settings: str) -> str:
    """The share of right answers of a pretrained model after each run, and over runs; settings is their digest."""
    found: dict[str, dict[str, str]] = {}
    names = {"right after": "mean", f"right after, minus {baseline}": f"minus {baseline}"}
    for one in measured():
        row = one.row
        if row.get("settings") != settings or row["measure"] not in names:
            continue
        single = one.file == "smollm2.csv"
        column = f"seed {row['seed']}" if single else names[row["measure"]]
        sign = "+" if row["measure"] != "right after" else ""
        text = number(one.value.value) if single else with_interval(one.value, sign)
        found.setdefault(row["rule"], {})[column] = f"[{text}](rows.md#{one.id})"
    seeds = sorted({name for cells in found.values() for name in cells if name.startswith("seed")})
    columns = [*seeds, *names.values()]
    order = sorted(found, key=lambda rule: (rule != baseline, rule))
    return table(["rule", *columns], ([rule, *(found[rule].get(name, "") for name in columns)] for rule in order))


def rank_correlation(x: np.ndarray, y: np.ndarray) -> tuple[Estimate, float]:
    """Spearman's, of the means of [rules, seeds], and how often the rules in another order give one as far from 0.

    For the interval seeds are drawn anew, for x and y apart; the rules stay.
    """

    def of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b = (rankdata(z.mean(-1), axis=-1) for z in (x, y))
        a, b = (z - z.mean(-1, keepdims=True) for z in (a, b))
        return (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))

    orders = np.array(list(itertools.permutations(range(len(x)))))
    by_chance = np.abs(of(x.mean(-1, keepdims=True)[orders], y.mean(-1, keepdims=True)[None]))
    found = bootstrap(of, x, y, paired=False, groups=[0] * len(x))
    return found, float((by_chance >= abs(found.value) - 1e-9).mean())


TABLES: dict[str, Callable[..., str]] = {
    "fits": fits_table,
    "main": main_table,
    "controls": control_table,
    "worlds": worlds_table,
    "freezes": freezes_table,
    "tuning": tuning_table,
    "radii": radii_table,
    "sides": sides_table,
    "carried": carried_table,
    "pretrained": pretrained_table,
}


def filled(text: str) -> str:
    """The text with its tables anew: `<!-- table: kind; argument; ... -->` to `<!-- end -->`."""

    def anew(match: Match[str]) -> str:
        kind, *arguments = (part.strip() for part in match[2].split(";"))
        return f"{match[1]}\n{TABLES[kind](*arguments)}\n{match[3]}"

    return TABLE.sub(anew, text)


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
    linked = {first for _, first, _ in LINK.findall(text)}
    others = [one for one in measured() if one.id in linked]
    if others:
        made.write("\n## Rows of other measurements\n\n")
        made.write(table(["row", "file", "of", "value"], ([
            f"[{one.id}]{{#{one.id}}}", f"[{one.file}](../../benchmarks/{one.file})", one.about, one.with_interval,
        ] for one in others)))  # fmt: skip
    return made.getvalue()


def _named(one: Kept) -> str:
    return f"{one.told['family']}, {one.told['world']}, {one.told['control']}"


def print_pdf(path: Path) -> None:
    """The same pages as one, by the same builder as the site, printed by chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("--pdf needs chromium (or google-chrome) on the PATH")
    settings = {
        "extensions": ["myst_parser"],
        "myst_enable_extensions": ["attrs_inline", "dollarmath"],
        "suppress_warnings": ["myst.xref_missing"],
        "html_theme": "basic",
        "html_static_path": [str(PAGES)],
        "html_css_files": ["print.css"],
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "conf.py").write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
        command = [sys.executable, "-m", "sphinx", "-Q", "-c", folder, "-b", "singlehtml", PAGES, folder]
        subprocess.run(command, check=True)
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
