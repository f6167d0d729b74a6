"""Output of `bandpo calibrate`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bandpo.errors import UserError
from bandpo.losses.nodes import objective
from bandpo.losses.notation import label_of_objective
from bandpo.losses.objective import Method
from bandpo.trust_regions.base import Region
from bandpo.trust_regions.rules import Clip

from ..progress import console
from ..reports.calibration import TAIL, Calibration, Found, Measured, calibrate
from ..reports.tokens import Tokens, read_tokens
from ..statistics.intervals import LEVEL


def calibrate_and_show(
    files: Sequence[Path], columns: Mapping[str, str | None], rules: Sequence[Any] | None, *, as_json: bool,
    clip_map: Path | None = None, match: Any = None, rate: float | None = None, **options: Any,
) -> None:  # fmt: skip
    """Run `bandpo calibrate`."""
    if rate is not None and match is not None:
        raise UserError("--rate and --match exclude each other; leave out one")
    if options["parameter"] and len(rules or []) != 1:
        raise UserError(f"--parameter is a field of one rule; --rule must give one, got {len(rules or [])}")
    options |= {"rules": [_region(rule) for rule in rules]} if rules else {}
    tokens = read_tokens(files, columns)
    match = None if match is None else _region(match)
    found = calibrate(tokens, rate=rate, match=match, **options)
    if clip_map is not None:
        from ..reports.clip_map import clip_map as map_of  # drawing takes a second to load
        from ..reports.clip_map import write_clip_map

        to_match = [] if rate is not None else [match or Clip(0.2, 0.2)]
        regions = [*to_match, *(one.region for one in found.rules if one.region is not None)]
        maps = [map_of(tokens, region, cut=found.cut) for region in regions]
        write_clip_map(clip_map, maps, "cut" if found.cut else "outside", found.warnings, _answer(found))
    if as_json:
        print(json.dumps(_data(files, tokens, found), indent=2, allow_nan=False))
    else:
        _show(files, tokens, found)
        if clip_map is not None:
            print(clip_map)


def _region(value: Any) -> Region:
    found = value.objective if isinstance(value, Method) else objective(value)
    if found.ratio != "token":
        name = value.title if isinstance(value, Method) else label_of_objective(found)
        raise UserError(f"{name} has one ratio for a response; a number is found for rules of a token's ratio")
    return found.trust_region


def _data(files: Sequence[Path], tokens: Tokens, found: Calibration) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Found | Calibration | Measured):
            return {name: plain(each) for name, each in vars(value).items() if name != "region"}
        if isinstance(value, tuple):
            return [*map(plain, value)]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {"files": [*map(str, files)], "columns": dict(tokens.columns), "level": LEVEL, **plain(found)}


def _show(files: Sequence[Path], tokens: Tokens, found: Calibration) -> None:
    names = ", ".join(f"{name} ({role})" for role, name in tokens.columns.items())
    where = f"{found.responses:,} responses in {', '.join(map(str, files))}"
    console.print(f"{found.tokens:,} tokens of {where}; columns {names}.", style="dim")
    console.print(_answer(found), soft_wrap=True)
    for warning in found.warnings:
        console.print(f"Note: {warning}", soft_wrap=True)
    table = Table("rule", "number", f"{100 * LEVEL:.0f} % interval")
    for name in ("cut" if found.cut else "outside", "above", "below", "rare of these"):
        table.add_column(name, justify="right")
    if (reference := found.reference) is not None:
        table.add_row(reference.label, "", "", *_cells(reference), style="dim")
    nodes = []
    for one in found.rules:
        if one.measured is None:
            table.add_row(one.label, f"{one.parameter}: none", "", "", "", "", "")
        else:
            nodes += [one.measured.node] if one.measured.node is not None else []
            table.add_row(one.label, f"{_fields(one)} = {one.value:.6g}", _interval(one), *_cells(one.measured))
    console.print(table)
    for one in found.rules:
        for note in (*one.notes, *([f"not found: {one.why}."] if one.why else [])):
            console.print(f"{one.label}, {_fields(one)}: {note}", soft_wrap=True)
    if nodes:
        console.print("To paste, as trust_region of a recipe, of BandPOConfig in TRL, or of verl's policy_loss:")
        for node in nodes:
            console.print(f"  trust_region: {_node(node)}", soft_wrap=True)
        console.print(f"TRL   BandPOConfig(trust_region={json.dumps(nodes[0])}, ...)", soft_wrap=True)
        verl = f"'+actor_rollout_ref.actor.policy_loss.trust_region={_node(nodes[0])}'"
        console.print(f"verl  {verl}, with the other lines of docs/verl.md", soft_wrap=True)
    what = "Outside: beyond its interval, above or below, whatever its advantage; as clip/fraction in the log."
    if found.cut:
        what = "Cut: outside its interval on the side to which its advantage drives it, so without a gradient."
    console.print(
        f"{what} Numbers are rounded up; the shares are those of the rounded ones. Intervals are over whole responses, "
        "since tokens of one response depend on one another.", style="dim", soft_wrap=True,
    )  # fmt: skip


def _fields(one: Found) -> str:
    return one.parameter.replace(",", " = ")


def _answer(found: Calibration) -> str:
    """Return the first sentences: the rate, and the first rule that has a number."""
    verb = "cuts" if found.cut else "stops"
    if (reference := found.reference) is None:
        words = f"You asked for {_share(found.rate)} of the tokens."
    else:
        rare = f"({_share(reference.rare)} of these are rare, p <= {TAIL})"
        words = f"At your ratios {reference.label} {verb} {_share(reference.rate)} of the tokens {rare}."
    if (first := next((one for one in found.rules if one.value is not None), None)) is None:
        return f"{words} None of the rules has a number that does the same."
    name = first.label.rpartition(" ")[0] or first.label
    spread = "" if first.interval is None else f" ({100 * LEVEL:.0f} % interval {_interval(first)})"
    return f"{words} {name} {verb} as many at {_fields(first)} = {first.value:.6g}{spread}."


def _interval(one: Found) -> str:
    if one.interval is None:
        return "-"
    low, high = (_outwards(*end) for end in zip(one.interval, (math.floor, math.ceil), strict=True))
    return f"{low:g} to {'none' if math.isinf(high) else f'{high:g}'}"


def _outwards(end: float, way: Callable[[float], int]) -> float:
    """Round to three digits, so that the interval does not shrink."""
    if not 0 < end < math.inf:
        return end
    step = 10.0 ** (math.floor(math.log10(end)) - 2)
    return float(f"{way(end / step + (1e-9 if way is math.floor else -1e-9)) * step:.3g}")


def _cells(one: Measured) -> list[str]:
    return [_share(x) for x in (one.rate, one.high, one.low, one.rare)]


def _share(x: float) -> str:
    return "-" if math.isnan(x) else f"{100 * x:.3g} %"


def _node(node: Any) -> str:
    if isinstance(node, Mapping):
        return f"{{{', '.join(f'{key}: {_node(value)}' for key, value in node.items())}}}"
    return f"[{', '.join(map(_node, node))}]" if isinstance(node, list) else str(node)
