"""Moves that a rule allows a token, as plain data: `bandpo explain --json`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bandpo.explain.explanation import (
    DEFAULT_P,
    Case,
    Rule,
    cases_of,
    differences,
    interval,
    label,
    objective_of,
    stops,
)
from bandpo.explain.gradient import sides

from ..losses.notation import short_node

_ROOM = {1: "more", 0: "same", -1: "less"}


def explanation_data(value: Rule, p: Sequence[float] = (), other: Rule | None = None) -> dict[str, Any]:
    """Return the content of `explanation.explain` as plain data.

    An infinite number is None. A rule of the mean ratio of a response has one interval.

    Raises ValueError as there.
    """
    given = [value] if other is None else [value, other]
    found = [objective_of(each) for each in given]
    cases = [cases_of(of.trust_region, label(each), sides(of)) for each, of in zip(given, found, strict=True)]
    rules = [
        {
            "label": label(each),
            "node": short_node(of),
            "ratio": of.ratio,
            "cases": [_case(case, p or DEFAULT_P, of.ratio) for case in own],
        }
        for each, of, own in zip(given, found, cases, strict=True)
    ]
    comparable = len(given) == 2 and found[0].ratio == found[1].ratio and len(cases[0]) == len(cases[1])
    pairs = zip(*cases, strict=True) if comparable else []
    return {"rules": rules, "differences": [_differing(case, of) for case, of in pairs]}


def _case(case: Case, p: Sequence[float], ratio: str) -> dict[str, Any]:
    if ratio == "sequence-mean":  # a geometric mean of ratios has no p
        p = [1.0]
    log_p = torch.tensor(p, dtype=torch.float64).log()
    rows = []
    for q, s, (below, above) in zip(p, log_p, stops(case.region, log_p), strict=True):
        low, high, new_low, new_high = (_finite(x) for x in interval(case.region, s))
        row = {"log_r_low": low, "log_r_high": high}
        if ratio != "sequence-mean":
            row = {"p": q, **row, "new_p_low": new_low, "new_p_high": new_high}
            row |= {"stopped_below": below, "stopped_above": above}
        rows.append(row)
    return {"label": case.label, "stops": case.stops, "tokens": rows}


def _differing(case: Case, other: Case) -> dict[str, Any]:
    """Say where the first rule leaves `room`: more than the other, less, or the same."""
    parts = {
        direction: [{"from": start, "to": end, "room": _ROOM[value]} for start, end, value in of]
        for direction, of in differences(case, other).items()
    }
    return {"rule": case.label, "against": other.label, **parts}


def _finite(x: Tensor) -> float | None:
    return float(x) if math.isfinite(x) else None
