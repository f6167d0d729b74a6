"""Compare a run with others whose rules clipped as many tokens.

These are the points of docs/report/index.md.
"""

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from bandpo.doctor import Finding

# Written by `python -m research.report`. Of each point: what a rule moved, and the percentage of tokens it clipped.
POINTS = Path(__file__).with_name("points.csv")
_FACTOR = 3  # a rule that clips a third to three times as many tokens is near
_NAMED = 2  # public runs and models that are named


def nearest(percent: float) -> Finding:
    """Say what rules that clip about this percentage of tokens moved.

    In small worlds, and in the nearest language models and public runs.

    >>> nearest(2.0).level
    'note'
    """
    with POINTS.open(encoding="utf-8", newline="") as file:
        points = [point for point in csv.DictReader(file) if point["clipped"]]
    near = [point for point in points if _distance(point, percent) < math.log(_FACTOR)]
    worlds = [point for point in near if point["pass1_half_width"] and "SmolLM2" not in point["run"]]
    others = [point for point in points if point not in worlds and _is_named(point)]
    parts = []
    for too_high, words in ((False, "at the best learning rate"), (True, "at four times the best")):
        some = [point for point in worlds if ("too high" in point["kind"]) == too_high]
        moved = [
            _span(some, column, name) for column, name in (("pass1", "pass@1"), ("coverage", "coverage"))
        ]
        if some:
            parts.append(
                f"{' and '.join(filter(None, moved))} {words} ({len(some)} runs of small worlds)"
            )
    for point in sorted(others, key=lambda point: _distance(point, percent))[:_NAMED]:
        result = f": pass@1 {float(point['pass1']):+.2g}" if point["pass1"] else ""
        parts.append(f"{point['run']}, {point['rule']}, {point['clipped']} %{result} ({point['source']})")
    low, high = (float(f"{min(100, x):.1g}") for x in (percent / _FACTOR, percent * _FACTOR))
    what = (
        f"rules that clip {low:g} to {high:g} % of tokens moved {'; '.join(parts)}"
        if worlds
        else "; ".join(parts)
    )
    return Finding("note", what, "docs/report/index.md says when a clip matters")


def _is_named(point: Mapping[str, str]) -> bool:
    return point["kind"] == "public run" or "SmolLM2" in point["run"]


def _distance(point: Mapping[str, str], percent: float) -> float:
    return abs(math.log(float(point["clipped"]) / percent))


def _span(points: list[dict[str, str]], column: str, words: str) -> str:
    values = [float(point[column]) for point in points if point[column]]
    return f"{words} by {min(values):+.2g} to {max(values):+.2g}" if values else ""
