"""The doctor of a run's log: ours, TRL's trainer_state.json, verl's file logger."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bandpo.doctor.findings import Finding
from bandpo.errors import UserError
from bandpo.files import read_json_lines, shortened

from ..config.run_folder import read_info
from ..files.logs import STATE, lost_in, read_rows, row_of

_ROUNDING = 1e-4  # a log-ratio of which kernels and precisions make that much
# How our own metrics are called in metrics.jsonl, in TRL's log and in verl's; and the clip rates that the two log.
_OURS = ("", "bandpo/", "actor/bandpo/")
_THEIRS = ("clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac")
_MORE_STEPS = (
    "more optimizer steps per batch: steps_per_generation or num_iterations (TRL), a smaller ppo_mini_batch_size or "
    "more ppo_epochs (verl)"
)


def logged(path: Path) -> Iterator[Finding]:
    """Check that the rule acted, and verl's names of numbers in its log.

    Raises:
        UserError: no such log.
    """
    if path.name == STATE:
        rows = stepped = read_rows(path)
    else:
        lines = read_json_lines(path)
        if lines.rest and not lines.rows:
            raise UserError(f"{path} must be a log of verl's file logger or of bandpo train, one JSON object a line")
        rows, stepped = lines.rows, map(row_of, lines.rows)
        if any("data" in row for row in rows) or not any("reward" in row for row in rows):
            rows = []
            for row in lines.rows:
                if not isinstance(row.get("data"), dict):
                    raise UserError(
                        f"{path} must be a log of verl's file logger, or of bandpo train with a reward in its lines: "
                        f"'data' is {shortened(row.get('data'))}"
                    )
                rows.append(row["data"])
            yield from _of_verl(rows, path)
    with contextlib.suppress(UserError):  # no folder of ours
        if path.name == "metrics.jsonl" and (why := read_info(path.parent).get("stopped")):
            yield Finding("problem", f"the run was stopped: {why}")
    if lost := lost_in(stepped):
        cure = (
            "go on from a checkpoint before that, with a smaller learning rate, gradient clipping, or bf16 for fp16; "
            "where grad_norm alone is named, a loss scaler or verl may have skipped these steps, which does no harm"
        )
        yield Finding("problem", f"{path}: {lost}", cure)
    yield from _clips(rows, path)


def _of_verl(data: Sequence[Mapping[str, Any]], path: Path) -> Iterator[Finding]:
    """Find names that verl reduces in another way than by their mean, and half precision.

    verl logs the largest of several numbers whose name holds "max" anywhere, and the smallest for "min".
    """
    names = sorted({name for step in data for name in step})
    yield Finding("ok", f"{len(data)} steps, {len(names)} metrics in {path}")
    for name in names:
        for word in ("max", "min"):
            if word in name and not re.search(rf"(^|[/_@.]){word}($|[/_@.])", name):
                what = f"{name} is logged as the {word} over micro-batches, because its name holds {word!r}"
                yield Finding("warning", what, "give it another name")
    if any(step.get("actor/bandpo/half_precision") for step in data):
        cure = "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32, or install flash-attn"
        yield Finding(
            "problem", "log-probabilities reached the loss in half precision: ratios are wrong by percents", cure
        )
    if data and not any(name.startswith("actor/bandpo/") for name in names):
        yield Finding("note", "no metric actor/bandpo/...: another loss, or diagnostics=false")


def _clips(rows: Sequence[Mapping[str, Any]], path: Path) -> Iterator[Finding]:
    """Check that any token was outside, and that it could have been."""

    def values(*names: str) -> list[float]:
        found = [row.get(name) for row in rows for name in names]
        return [x for x in found if isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)]

    for prefix in _OURS:
        ratios = [abs(x) for x in values(f"{prefix}log_ratio/max", f"{prefix}log_ratio/min")]
        shares = values(*(f"{prefix}clip/{name}" for name in ("fraction", "high_fraction", "low_fraction")))
        if not shares:
            continue
        if not ratios:  # as in verl's log
            yield _rate_alone(f"{prefix}clip", shares)
        elif max(ratios) <= _ROUNDING:
            what = "the ratio is 1 by design: each batch is used for one optimizer step, and no rule acts; no log-ratio"
            yield Finding("problem", f"{what} in {path} is farther from 0 than {max(ratios):.2g}", _MORE_STEPS)
        elif not max(shares):
            what = f"dead clip: no token in {path} was outside, though log-ratios go as far as {max(ratios):.3g}"
            yield Finding("warning", what, "bandpo calibrate finds the number at which a rule acts; docs/choose.md")
        else:
            yield Finding("ok", f"the rule acts: up to {100 * max(shares):.3g} % of the tokens of a row were outside")
        return
    for name in _THEIRS:
        if shares := values(name):
            yield _rate_alone(name, shares)
            return
    what = f"no clip rate is in {path}, under bandpo's names, TRL's or verl's, so nothing can be said of the clip"
    yield Finding("note", what, "docs/run.md has the names, and what logs them")


def _rate_alone(name: str, shares: Sequence[float]) -> Finding:
    """Judge a log without ratios, which cannot tell a ratio of 1 from a wide clip."""
    if max(shares):
        return Finding("ok", f"the clip acts: {name} is up to {100 * max(shares):.3g} %")
    what = f"{name} is 0 in all {len(shares)} rows: the ratio is 1 by design (one optimizer step per batch)"
    return Finding("warning", f"{what}, or the clip is wider than every ratio", _MORE_STEPS)
