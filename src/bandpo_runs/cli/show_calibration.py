"""Show the result of `bandpo calibrate`."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.explain import node_text

from ..progress import console, grid
from ..reports.calibration import TAIL, Calibrated, Calibration, Measured, calibrate
from ..reports.texts import percent
from ..reports.tokens import Tokens, read_tokens
from ..statistics.intervals import LEVEL


def calibrate_and_show(
    files: Sequence[Path],
    *,
    as_json: bool,
    rules: Sequence[Any] | None,
    match: Any,
    rate: float | None,
    **options: Any,
) -> None:
    """Run `bandpo calibrate`."""
    if rate is not None and match is not None:
        raise UserError("--rate and --match exclude each other; leave out one")
    if options["parameter"] and len(rules or []) != 1:
        raise UserError(
            f"--parameter is a field of one rule; --rule must give one, got {len(rules or [])}"
        )
    tokens = read_tokens(files)
    calibration = calibrate(tokens, rules, rate=rate, match=match, **options)
    if as_json:
        print(
            json.dumps(
                json.loads(
                    json.dumps(
                        {
                            "files": [*map(str, files)],
                            "columns": dict(tokens.columns),
                            "level": LEVEL,
                            **vars(calibration),
                        },
                        default=vars,
                    ),
                    parse_constant=lambda name: None,
                ),
                indent=2,
            )
        )
    else:
        _show(files, tokens, calibration)


def _show(files: Sequence[Path], tokens: Tokens, calibration: Calibration) -> None:
    names = ", ".join(f"{name} ({role})" for role, name in tokens.columns.items())
    console.print(
        f"{calibration.tokens:,} tokens of {calibration.responses:,} responses in {', '.join(map(str, files))}; "
        f"columns {names}.",
        style="dim",
    )
    console.print(
        "\n".join([_answer(calibration), *(f"Note: {warning}" for warning in calibration.warnings)]),
        soft_wrap=True,
    )
    reference = calibration.reference
    rows = [] if reference is None else [[reference.label, "", *_cells(reference)]]
    for rule in calibration.rules:
        if rule.measured is None:
            rows.append([rule.label, "none"])
        else:
            rows.append([rule.label, _interval(rule), *_cells(rule.measured)])
    share = "clipped" if calibration.cut else "outside"
    console.print(
        grid(
            (
                "rule",
                f"{100 * LEVEL:.0f} % interval",
                share,
                "above",
                "below",
                "of these rare",
            ),
            rows,
            left=2,
        )
    )
    for rule in calibration.rules:
        for note in (*rule.notes, *([f"no number was found: {rule.why}."] if rule.why else [])):
            console.print(f"{rule.label}, {_fields(rule)}: {note}", soft_wrap=True)
    nodes = [
        rule.measured.node
        for rule in calibration.rules
        if rule.measured and rule.measured.node is not None
    ]
    if nodes:
        console.print(
            "\n".join(
                [
                    "To paste:",
                    *(f"  trust_region: {node_text(node)}" for node in nodes),
                    f"TRL   BandPOConfig(trust_region={json.dumps(nodes[0])}, ...)",
                    f"verl  '+actor_rollout_ref.actor.policy_loss.trust_region={node_text(nodes[0])}', with the other "
                    "lines of docs/verl.md",
                ]
            ),
            soft_wrap=True,
        )
    meaning = {
        "clipped": "clipped: outside its bounds on the side to which its advantage drives it, so without a gradient.",
        "outside": "outside: tokens outside their bounds, whatever their advantage, as clip/fraction in the log.",
    }
    console.print(
        f"{meaning[share]} Intervals are over whole responses. More: docs/run.md",
        style="dim",
        soft_wrap=True,
    )


def _fields(rule: Calibrated) -> str:
    return rule.parameter.replace(",", " = ")


def _answer(calibration: Calibration) -> str:
    """Return the first sentences: the rate, and the first rule that has a number."""
    share, reference = "clipped" if calibration.cut else "outside their bounds", calibration.reference
    text = f"You asked for {percent(calibration.rate)} of the tokens."
    if reference is not None:
        rare = f"({percent(reference.rare)} of these are rare, p <= {TAIL})"
        text = f"With {reference.label} {percent(reference.rate)} of your tokens are {share} {rare}."
    for rule in calibration.rules:
        if rule.value is not None:
            name = rule.label.rpartition(" ")[0] or rule.label
            spread = "" if rule.interval is None else f" ({100 * LEVEL:.0f} % interval {_interval(rule)})"
            return f"{text} {name} has as many at {_fields(rule)} = {rule.value:.6g}{spread}."
    return f"{text} No rule has as many, at any number."


def _interval(rule: Calibrated) -> str:
    if rule.interval is None:
        return "–"  # noqa: RUF001
    low, high = rule.interval
    return f"{low:.3g} to {'none' if math.isinf(high) else f'{high:.3g}'}"


def _cells(measured: Measured) -> list[str]:
    return [percent(share) for share in (measured.rate, measured.high, measured.low, measured.rare)]
