"""The report docs/report: its figure and its rows as a table, from the rows that grids and contests gave.

    python -m research.report                        writes rows.csv, the figure and its points anew
    python -m research.report --take runs/bench/X    first keeps what is needed of a finished contest, as
                                                 research/contests/X.jsonl.xz

The text is written by hand. A number in it that was measured is a link with the id of its row,
`[0.940](rows.csv#3fa91c)`, or of two for a difference on the same seeds, `[+0.075](rows.csv#3fa91c-8be210)` or
`[0.075 above](...)`. The site shows the rows on a page that filters them. research/tests/test_report.py computes each
number from its rows and compares it with what is written.
"""

import argparse
import sys
from pathlib import Path

from bandpo_runs.doctor.examine import POINTS
from research import grid

from . import matter
from .rows import ROOT, Kept, Pair, all_rows, as_csv, forms, judged, statements, take

PAGES = ROOT / "docs" / "report"
TEXTS = [
    PAGES / "index.md",
    ROOT / "docs" / "choose.md",
    ROOT / "README.md",
    *(ROOT / "research" / "pages").glob("*.md"),
]
ROWS = PAGES / "rows.csv"
# Contests of the uses of each answer. The last has tighter clips and bands in the worlds with a rare strategy.
REUSE = ("reuse once", "reuse more", "reuse eight", "reuse others", "reuse rare narrow")


def text() -> str:
    """Return all that is written by hand."""
    return "\n".join(path.read_text(encoding="utf-8") for path in TEXTS)


def against_clips() -> list[Pair]:
    """Return the best Band-KL and the best clip of each world of REUSE, of the whole range, and of the lab.

    Best is what was best on the seeds that chose, of all contests of that world.
    """
    places: dict[tuple[str, str], tuple[list[Kept], list[Kept]]] = {}
    for ((contest, world, control), family), one in judged().items():
        if control == "none" and contest.startswith((*REUSE, "whole range", "lab")):
            bands, clips = places.setdefault((contest.split()[0], world), ([], []))
            bands += [one] * (family == "Band-KL")
            clips += [one] * (family in ("fixed clip", "narrow clip"))
    best = ([max(some, key=lambda x: x.told["chosen_with"]) for some in both] for both in places.values() if all(both))
    return [Pair(band, clip) for band, clip in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--take", type=Path, action="append", default=[], metavar="FOLDER")
    options = parser.parse_args()
    for folder in options.take:
        print(take(folder))
    ROWS.write_text(as_csv(all_rows()), encoding="utf-8")
    grid.write(POINTS, matter.points())
    matter.save(PAGES / "matter.svg", matter.points())
    for table in (matter.sides(), matter.forgiven()):
        if table not in text():
            print(f"the page of docs/report lacks this table:\n{table}", file=sys.stderr)
    for words, name, one in statements(text()):
        if words not in forms(one):
            print(f"{name}: the text says {words!r}; its rows say {forms(one)}", file=sys.stderr)


if __name__ == "__main__":
    main()
