"""Compare a run with others whose rules clipped as many tokens.

These are the points of docs/report/index.md.
"""

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from bandpo.doctor import Finding
from bandpo.errors import counted

# Written by `python -m research.report`. Of each point: what a rule moved, and the percentage of tokens it clipped.
POINTS = Path(__file__).with_name("points.csv")
_FACTOR = 3  # a rule that clips a third to three times as many tokens is near
_NAMED = 2  # public runs and models that are named
_WORLDS = {
    "several right answers, each rule at its best learning rate": "at the best learning rate",
    "a learning rate four times too high": "at four times the best",
}


def nearest(percent: float) -> Finding:
    """Say what rules that clip about this percentage of tokens moved.

    In small worlds, and in the nearest language models and public runs. Shares of whole responses are left out.

    >>> nearest(2.0).level
    'note'
    """
    with POINTS.open(encoding="utf-8", newline="") as file:
        points = [
            point
            for point in csv.DictReader(file)
            if point["clipped"] and point["counted"] != "sequences"
        ]
    near = [point for point in points if _distance(point, percent) < math.log(_FACTOR)]
    parts: list[str] = []
    for kind, words in _WORLDS.items():
        some = [point for point in near if point["kind"] == kind]
        moved = [
            _span(some, column, name) for column, name in (("pass1", "pass@1"), ("coverage", "coverage"))
        ]
        if some:
            parts.append(
                f"{words} {' and '.join(filter(None, moved))} from no clip, in {counted(len(some), 'setting')}"
            )
    others = [point for point in near if point["kind"] == "public run" or "SmolLM2" in point["run"]]
    named = [
        _told(point) for point in sorted(others, key=lambda point: _distance(point, percent))[:_NAMED]
    ]
    low, high = (float(f"{min(100, x):.1g}") for x in (percent / _FACTOR, percent * _FACTOR))
    what = f"rules that clip {low:g} to {high:g} % of tokens moved, in small worlds: {'; '.join(parts) or 'not tried'}"
    models = f". As many were clipped by {'; and by '.join(named)}" if named else ""
    return Finding("note", what + models, "docs/report/index.md says when a clip matters")


def _told(point: Mapping[str, str]) -> str:
    """Write what is known of a public run or of a language model."""
    result = point["note"]
    if point["pass1"]:
        result = f"{float(point['pass1']):+.2g} from {point['against']}" + (
            f", {result}" if result else ""
        )
    return f"{point['rule']} in {point['run']} ({'; '.join(filter(None, (result, point['source'])))})"


def _distance(point: Mapping[str, str], percent: float) -> float:
    return abs(math.log(float(point["clipped"]) / percent))


def _span(points: list[dict[str, str]], column: str, words: str) -> str:
    values = [float(f"{float(point[column]):.2g}") for point in points if point[column]]
    ends = sorted({min(values), max(values)}) if values else []
    return f"{words} by {' to '.join(f'{end:+g}' for end in ends)}" if values else ""
