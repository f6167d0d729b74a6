"""The report docs/report: its figures, and its rows as a table, from the rows that contests gave.

    python -m research.report                        writes rows.csv and the figures anew
    python -m research.report --take runs/bench/X    first keeps what is needed of a finished contest, as
                                                 research/contests/X.jsonl.xz

The text is written by hand. A number in it that was measured is a link with the id of its row,
`[0.940](rows.csv#3fa91c)`, or of two for a difference on the same seeds, `[+0.075](rows.csv#3fa91c-8be210)` or
`[0.075 above](...)`. The site shows the rows on a page that filters them. research/tests/test_report.py computes each
number from its rows and compares it with what is written.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from research.statistics import Estimate

from . import figures
from .rows import ROOT, Kept, Pair, all_rows, as_csv, forms, judged, shape, statements, take

PAGES = ROOT / "docs" / "report"
TEXTS = [
    PAGES / "index.md",
    ROOT / "docs" / "choose.md",
    ROOT / "README.md",
    *(ROOT / "research" / "pages").glob("*.md"),
]
ROWS = PAGES / "rows.csv"
STEPS = 16  # optimizer steps on a round
AS_THEY = "calibrated, minibatches 4, epochs 1"  # as many as in the public runs
RULES = ("GRPO .2/.2", "Clip-Higher .2/.28", "Band-KL .05", "fixed clip", "Band-KL")
# Contests of the uses of each answer. The last has tighter clips and bands in the worlds with a rare strategy.
REUSE = ("reuse once", "reuse more", "reuse eight", "reuse others", "reuse rare narrow")
# Percent of tokens outside, in four steps of the authors' logs, of some 360,000 tokens each: docs/paper.md.
PUBLIC = {"GRPO .2/.2": (0.12, 0.15), "Clip-Higher .2/.28": (0.05, 0.07), "Band-KL .05": (0.002, 0.008)}
ALIKE = 0.02  # what was called equivalent before the rows were there
# What the figure says of a setting of a world.
PLAIN = {
    "p work 0.004": "0.4 % work", "p bad 0.2": "20 % bad", "start seed": "start",
    "responses per prompt 8": "8 answers a prompt", "responses per prompt 32": "32 answers a prompt",
}  # fmt: skip


def text() -> str:
    """Return all that is written by hand."""
    return "\n".join(path.read_text(encoding="utf-8") for path in TEXTS)


def by_uses() -> dict[int, dict[str, Kept]]:
    """Return the rows of the calibrated world with as many optimizer steps on a round, by uses of each answer."""
    by_use: dict[int, dict[str, Kept]] = {}
    for one in all_rows():
        (contest, _, control), (uses, minibatches) = one.place, shape(one)
        if contest in ("reuse once", "reuse more", "reuse eight") and control == "none" and uses * minibatches == STEPS:
            by_use.setdefault(uses, {})[one.told["family"]] = one
    return dict(sorted(by_use.items()))


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


def draw(folder: Path) -> None:
    """Draw both figures."""
    some = by_uses()
    differences = {
        rule: {uses: Pair(rows[rule], rows["no clip"]).difference for uses, rows in some.items()} for rule in RULES
    }
    percent = {rule: {uses: float(rows[rule].outside) for uses, rows in some.items()} for rule in RULES[:3]}
    same = {
        rule: (ends, float(judged()[("reuse once", AS_THEY, "none"), rule].outside)) for rule, ends in PUBLIC.items()
    }
    tuned = {"GRPO .2/.2": "GRPO .2/.2", "fixed clip": "best clip", "Band-KL": "best Band-KL"}
    named = {tuned.get(rule, rule): result for rule, result in differences.items()}
    figures.save(folder / "reuse.svg", figures.reuse(named, percent, same, ALIKE), 3.4)
    once, more, whole, small = "1 use", "2 to 8 uses", "4 to 8 uses, 240 settings", "a small transformer, 8 uses"
    groups: dict[str, dict[str, Estimate]] = {once: {}, more: {}, whole: {}, small: {}}
    for pair in against_clips():
        (contest, world, _), (uses, minibatches) = pair.one.place, shape(pair.one)
        group = whole if contest.startswith("whole") else small if contest.startswith("lab") else (once, more)[uses > 1]
        base = re.split(", (?:prompts per round|minibatches|epochs)", world)[0]
        for setting, plain in PLAIN.items():
            base = base.replace(setting, plain)
        name = f"{base}, {uses} use{'s' * (uses > 1)}" + f", {minibatches} mini-batches" * (contest in REUSE)
        groups[group][name] = pair.difference
    ordered = {name: dict(sorted(some.items(), key=lambda item: -item[1].value)) for name, some in groups.items()}
    figures.save(
        folder / "worlds.svg",
        figures.dots(ordered, "reward at the end: best Band-KL minus best clip (right of 0: the band is ahead)"),
        7.2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--take", type=Path, action="append", default=[], metavar="FOLDER")
    options = parser.parse_args()
    for folder in options.take:
        print(take(folder))
    ROWS.write_text(as_csv(all_rows()), encoding="utf-8")
    draw(PAGES)
    for words, name, one in statements(text()):
        if words not in forms(one):
            print(f"{name}: the text says {words!r}; its rows say {forms(one)}", file=sys.stderr)


if __name__ == "__main__":
    main()
