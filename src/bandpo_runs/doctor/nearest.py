"""Name the runs whose rules clipped as many tokens as another one's.

These are the language models and the public runs of docs/report/index.md.
"""

import csv
import math
from pathlib import Path

from . import Finding

# Written by `python -m research.report`. Of each point: what a rule moved, and the percentage of tokens it clipped.
POINTS = Path(__file__).with_name("points.csv")
_FACTOR = 3  # a rule that clips a third to three times as many tokens is near
_NAMED = 2


def nearest(percent: float) -> Finding:
    """Name the runs that clipped about this percentage of tokens. Shares of whole responses are left out.

    >>> nearest(2.0).level
    'note'
    """
    near: list[tuple[float, str]] = []
    for row in csv.DictReader(POINTS.read_text(encoding="utf-8").splitlines()):
        is_run = row["kind"] == "public run" or "SmolLM2" in row["run"]
        if row["clipped"] and row["counted"] != "sequences" and is_run:
            moved = f"{float(row['pass1']):+.2g} from {row['against']}" if row["pass1"] else ""
            facts = [", ".join(filter(None, (moved, row["note"]))), row["source"]]
            text = f"{row['rule']} in {row['run']} ({'; '.join(filter(None, facts))})"
            near.append((abs(math.log(float(row["clipped"]) / percent)), text))
    named = [text for distance, text in sorted(near) if distance < math.log(_FACTOR)][:_NAMED]
    what = f"runs that clipped about as many tokens: {'; '.join(named) or 'none of docs/report/index.md'}"
    return Finding("note", what, "docs/report/index.md says when a clip matters")
