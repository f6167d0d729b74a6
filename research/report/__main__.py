"""The report docs/report/: its tables, figures and list of rows, from the rows that contests gave.

    python -m research.report                        writes the tables of the pages, rows.md and the figures anew
    python -m research.report --pdf report.pdf       and prints the pages (sphinx, and chromium as the printer)
    python -m research.report --take runs/bench/X    first keeps what is needed of a finished contest, as
                                                 research/contests/X.jsonl.xz, with the courses of some of its runs

The text of the pages is written by hand. A number in it that was measured is a link with the id of the row that it
stands on, `[0.940](../../research/contests#3fa91c)`, or of two for a difference on the same seeds,
`[+0.075](...#3fa91c-8be210)` or `[0.075 above](...#3fa91c-8be210)`. rows.md, which git does not keep, lists what each
id is of.
research/tests/test_report.py computes each from its rows and compares it with what is written.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from . import figures
from .rows import (
    LINK,
    ROOT,
    TABLES_OF,
    Kept,
    Pair,
    chance,
    forms,
    kept,
    measured,
    number,
    share_with_interval,
    statements,
    take,
    with_interval,
)
from .tables import at, filled, fit_of, table

PAGES = ROOT / "docs" / "report"
NAMES = ("index", "worlds", "methods", "radius", "deaths", "models", "../choose", "../../research/pages/others")
TEXTS = [PAGES / f"{name}.md" for name in NAMES]
ROWS = ROOT / "research" / "report" / "rows.md"  # to look at; git does not keep it


def text() -> str:
    """All that is written by hand, and its tables."""
    return "\n".join(path.read_text(encoding="utf-8") for path in TEXTS)


def rows_page(text: str) -> str:
    """Every judged row, and every difference that a text states."""
    made = io.StringIO()
    made.write(
        "# The rows of the report\n\nWritten by `python -m research.report` from the rows in "
        "[research/contests](../contests). A row is one rule with one setting under one control in one "
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
            f"[{one.id}]{{#{one.id}}}", f"[{one.file}](../../{TABLES_OF[one.file]}/{one.file})",
            one.about, one.with_interval,
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
    figures.save(folder / "both.svg", figures.forest(by_family, label), 5)
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
    for path in TEXTS:
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    ROWS.write_text(rows_page(text()), encoding="utf-8")
    draw(PAGES)
    if options.pdf:
        print_pdf(options.pdf)
    for said, name, one in statements(text()):
        if said not in forms(one):
            print(f"{name}: the text says {said!r}; its rows say {forms(one)}", file=sys.stderr)


if __name__ == "__main__":
    main()
