"""Show the result of `bandpo calibrate`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.explain import node_text

from ..progress import console, grid
from ..reports.calibration import TAIL, Calibration, Found, Measured, calibrate, percent
from ..reports.tokens import Tokens, read_tokens
from ..statistics.intervals import LEVEL


def calibrate_and_show(
    files: Sequence[Path], columns: Mapping[str, str | None], *, as_json: bool,
    rules: Sequence[Any] | None, match: Any, rate: float | None, **options: Any,
) -> None:  # fmt: skip
    """Run `bandpo calibrate`."""
    if rate is not None and match is not None:
        raise UserError("--rate and --match exclude each other; leave out one")
    if options["parameter"] and len(rules or []) != 1:
        raise UserError(f"--parameter is a field of one rule; --rule must give one, got {len(rules or [])}")
    tokens = read_tokens(files, columns)
    found = calibrate(tokens, rules, rate=rate, match=match, **options)
    if as_json:
        data = {"files": [*map(str, files)], "columns": dict(tokens.columns), "level": LEVEL, **vars(found)}
        fields = lambda value: {name: each for name, each in vars(value).items() if name != "region"}  # noqa: E731
        print(json.dumps(json.loads(json.dumps(data, default=fields), parse_constant=lambda name: None), indent=2))
        return
    _show(files, tokens, found)


def _show(files: Sequence[Path], tokens: Tokens, found: Calibration) -> None:
    names = ", ".join(f"{name} ({role})" for role, name in tokens.columns.items())
    where = f"{found.responses:,} responses in {', '.join(map(str, files))}"
    console.print(f"{found.tokens:,} tokens of {where}; columns {names}.", style="dim")
    console.print("\n".join([_answer(found), *(f"Note: {warning}" for warning in found.warnings)]), soft_wrap=True)
    rows = [] if found.reference is None else [[found.reference.label, "", "", *_cells(found.reference)]]
    for one in found.rules:
        if one.measured is None:
            rows.append([one.label, f"{one.parameter}: none"])
        else:
            rows.append([one.label, f"{_fields(one)} = {one.value:.6g}", _interval(one), *_cells(one.measured)])
    heads = "rule", "number", f"{100 * LEVEL:.0f} % interval", "cut" if found.cut else "outside", "above", "below"
    console.print(grid((*heads, "rare of these"), rows, left=3))
    for one in found.rules:
        for note in (*one.notes, *([f"not found: {one.why}."] if one.why else [])):
            console.print(f"{one.label}, {_fields(one)}: {note}", soft_wrap=True)
    if nodes := [one.measured.node for one in found.rules if one.measured and one.measured.node is not None]:
        verl = f"'+actor_rollout_ref.actor.policy_loss.trust_region={node_text(nodes[0])}'"
        console.print(
            "\n".join(
                [
                    "To paste, as trust_region of a recipe, of BandPOConfig in TRL, or of verl's policy_loss:",
                    *(f"  trust_region: {node_text(node)}" for node in nodes),
                    f"TRL   BandPOConfig(trust_region={json.dumps(nodes[0])}, ...)",
                    f"verl  {verl}, with the other lines of docs/verl.md",
                ]
            ),
            soft_wrap=True,
        )
    cut = "Cut: outside its interval on the side to which its advantage drives it, so without a gradient."
    outside = "Outside: beyond its interval, above or below, whatever its advantage; as clip/fraction in the log."
    console.print(
        f"{cut if found.cut else outside} Numbers are rounded up; the shares are those of the rounded ones. Intervals "
        "are over whole responses, since tokens of one response depend on one another.", style="dim", soft_wrap=True,
    )  # fmt: skip


def _fields(one: Found) -> str:
    return one.parameter.replace(",", " = ")


def _answer(found: Calibration) -> str:
    """Return the first sentences: the rate, and the first rule that has a number."""
    verb = "cuts" if found.cut else "stops"
    if (reference := found.reference) is None:
        words = f"You asked for {percent(found.rate)} of the tokens."
    else:
        rare = f"({percent(reference.rare)} of these are rare, p <= {TAIL})"
        words = f"At your ratios {reference.label} {verb} {percent(reference.rate)} of the tokens {rare}."
    if (first := next((one for one in found.rules if one.value is not None), None)) is None:
        return f"{words} No number of any of the rules does the same."
    name = first.label.rpartition(" ")[0] or first.label
    spread = "" if first.interval is None else f" ({100 * LEVEL:.0f} % interval {_interval(first)})"
    return f"{words} {name} {verb} as many at {_fields(first)} = {first.value:.6g}{spread}."


def _interval(one: Found) -> str:
    if one.interval is None:
        return "–"  # noqa: RUF001
    low, high = one.interval
    return f"{low:.3g} to {'none' if math.isinf(high) else f'{high:.3g}'}"


def _cells(one: Measured) -> list[str]:
    return [percent(x) for x in (one.rate, one.high, one.low, one.rare)]
