"""The doctor of a run's log: ours, TRL's trainer_state.json, verl's file logger."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bandpo.doctor import Finding
from bandpo.errors import UserError

from ..config.run_folder import read_info
from ..files.logs import lost_in, read_rows

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
        UserError: not such a log.
    """
    rows = read_rows(path)
    if not rows:
        raise UserError(f"{path} must be a log of bandpo, TRL or verl, one JSON object a line")
    yield from _of_verl(rows)
    with contextlib.suppress(UserError):  # not a folder of ours
        if path.name == "metrics.jsonl" and (why := read_info(path.parent).get("stopped")):
            yield Finding("problem", f"the run was stopped: {why}")
    if lost := lost_in(rows):
        cure = (
            "go on from a checkpoint before that, with a smaller learning rate, gradient clipping, or bf16 for fp16; "
            "where grad_norm alone is named, a loss scaler or verl may have skipped these steps, which does no harm"
        )
        yield Finding("problem", f"{path}: {lost}", cure)
    yield _clip(rows, path)


def _of_verl(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Find names that verl reduces in another way than by their mean, and half precision.

    verl logs the largest of several numbers whose name holds "max" anywhere, and the smallest for "min".
    """
    names = sorted({name for row in rows for name in row})
    if not any(name.startswith("actor/") for name in names):
        return
    for name in names:
        for word in ("max", "min"):
            if word in name and not re.search(rf"(^|[/_@.]){word}($|[/_@.])", name):
                what = f"{name} is logged as the {word} over micro-batches, because its name holds {word!r}"
                yield Finding("warning", what, "give it another name")
    if any(row.get("actor/bandpo/half_precision") for row in rows):
        what = "log-probabilities reached the loss in half precision: ratios are wrong by percents"
        cure = "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32, or install flash-attn"
        yield Finding("problem", what, cure)
    if not any(name.startswith("actor/bandpo/") for name in names):
        yield Finding("note", "no metric actor/bandpo/...: another loss")


def _clip(rows: Sequence[Mapping[str, Any]], path: Path) -> Finding:
    """Check that any token was outside, and that it could have been."""

    def values(*names: str) -> list[float]:
        found = [row.get(name) for row in rows for name in names]
        return [abs(x) for x in found if isinstance(x, int | float) and math.isfinite(x)]

    sides = ("fraction", "high_fraction", "low_fraction")
    known = [(f"{of}clip", shares, of) for of in _OURS if (shares := values(*(f"{of}clip/{side}" for side in sides)))]
    known += [(name, shares, "-") for name in _THEIRS if (shares := values(name))]
    if not known:
        what = f"no clip rate is in {path}, under bandpo's names, TRL's or verl's, so nothing can be said of the clip"
        return Finding("note", what, "docs/run.md has the names, and what logs them")
    name, shares, of = known[0]
    ratios = values(f"{of}log_ratio/max", f"{of}log_ratio/min")  # verl's log has none
    if max(shares):
        return Finding("ok", f"the rule acts: {name} is up to {100 * max(shares):.3g} % of the tokens of a row")
    if not ratios:
        what = f"{name} is 0 in all {len(shares)} rows: the ratio is 1 by design (one optimizer step per batch)"
        return Finding("warning", f"{what}, or the clip is wider than every ratio", _MORE_STEPS)
    if max(ratios) <= _ROUNDING:
        what = "the ratio is 1 by design: each batch is used for one optimizer step, and no rule acts; no log-ratio"
        return Finding("problem", f"{what} in {path} is farther from 0 than {max(ratios):.2g}", _MORE_STEPS)
    what = f"dead clip: no token in {path} was outside, though log-ratios go as far as {max(ratios):.3g}"
    return Finding("warning", what, "bandpo calibrate finds the number at which a rule acts; docs/choose.md")
