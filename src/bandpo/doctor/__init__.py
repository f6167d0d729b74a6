"""Check a setup. `installed` looks at packages, a module each at the settings of a trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from ..clipping import MORE as MORE
from ..clipping import ONCE as ONCE
from ..clipping import OUTSIDE as OUTSIDE
from ..trust_regions.nodes import OWN, node_of_text

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """Hold one line of the report: the case (`what`) and its `cure`."""

    level: Level
    what: str
    cure: str = ""


def spread(uses: int, steps: float | None, said: str, more: str, anchor: object = "old") -> Finding:
    """Say how often each answer is used, and in how many optimizer steps. None is one: ratios to the trainer are 1."""
    used = "each answer is used " + {1: "once", 2: "twice"}.get(uses, f"{uses} times")
    if steps is None and anchor == "sampler":
        return Finding("ok", f"{used}, in one optimizer step ({said}); the ratio is to the sampler")
    if steps is None:
        what = f"the ratio is 1 by design: {used}, in one optimizer step ({said}), and no rule acts"
        return Finding("problem", what, more)
    cure = f"bandpo doctor LOG says what share of tokens the rule stops. {ONCE.format(OUTSIDE)}"
    cure += f"; {MORE}" if uses > 1 else ""
    return Finding("ok", f"{used}, and a batch is spread over {steps:.3g} optimizer steps ({said})", cure)


def in_half(what: str, cure: str) -> Finding:
    """Warn of log-probabilities that are not float32 with a model in half precision."""
    why = "log-probabilities are computed in the precision of the model; in bfloat16 ratios are wrong by percents"
    return Finding("warning", f"{what}: {why}", cure)


def own_type(node: Any) -> str | None:
    """Find the first `module:Class` that is a type in a node, at any depth. None without one.

    `trust_region` and all that call it would import that module, which runs what is in it. Who reads what a stranger
    wrote looks here first.
    """
    if isinstance(node, str):
        try:
            node = node_of_text(node)
        except ValueError:
            return None
    if isinstance(node, Mapping):
        values = cast("Mapping[Any, Any]", node)
        for key, value in values.items():
            if str(key) == "type" and isinstance(value, str) and re.fullmatch(OWN, value):
                return value
        node = list(values.values())
    parts = cast("list[Any]", node) if isinstance(node, list | tuple) else []
    return next((found for each in parts if (found := own_type(each)) is not None), None)


def not_loaded(kind: str) -> str:
    """Return the reader's text for such a rule."""
    return f"a rule of one's own, {kind}, not loaded; --trust loads it"
