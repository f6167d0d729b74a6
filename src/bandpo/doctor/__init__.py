"""Check a setup. `installed` looks at packages, a module each at the settings of a trainer."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..clipping import MORE, ONCE, OUTSIDE
from ..trust_regions.nodes import OWN, node_of_text

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """Hold one line of the report: the case (`what`) and its `cure`."""

    level: Level
    what: str
    cure: str = ""


def split(level: Level, message: str, cure: str = "") -> Finding:
    """Make a finding of an error's message. Its own cure stands behind the first semicolon."""
    what, _, own = message.partition("; ")
    return Finding(level, what, own or cure)


def spread(uses: int, steps: float | None, sizes: str, more: str, anchor: object = "old") -> Finding:
    """Say how often each answer is used, and in how many optimizer steps. None is one: ratios to the trainer are 1."""
    often = used(uses)
    if steps is not None:
        cure = f"bandpo doctor LOG says what share of tokens the rule clips. {ONCE.format(OUTSIDE)}"
        what = f"{often}, and a batch is spread over {steps:.3g} optimizer steps ({sizes})"
        return Finding("ok", what, f"{cure}; {MORE}" if uses > 1 else cure)
    if anchor == "sampler":
        return Finding("ok", f"{often}, in one optimizer step ({sizes}); the ratio is to the sampler")
    what = f"the ratio is 1 by design: {often}, in one optimizer step ({sizes}), and no rule acts"
    return Finding("problem", what, more)


def used(uses: int) -> str:
    """Say how often each answer is used."""
    return "each answer is used " + {1: "once", 2: "twice"}.get(uses, f"{uses} times")


def not_judged(why: str, uses: object = None, cure: str = "") -> Finding:
    """Say that the optimizer steps of a batch depend on what is not there. How often answers are used may be known."""
    often = f"{used(uses)}; " if isinstance(uses, int) and uses > 0 else ""
    return Finding("note", f"{often}the optimizer steps of a batch are not judged: {why}", cure)


def absent(name: str, own: object, host: str) -> str:
    """Say that a setting is not given. The trainer's own value is named as that."""
    return f"{name} is not given here" + (f"; {host}'s default would be {own}" if own is not None else "")


# The geometric mean over an answer moves some hundred times less than the ratio of a token.
_GSPO = "those of an answer's mean ratio, which GSPO's paper sets to 0.0003 and 0.0004"


def of_sequences(limits: Iterable[object]) -> tuple[Level, str]:
    """Say what limits of GSPO's ratio are, and whether they are those of a token's."""
    least = min((x for x in limits if isinstance(x, int | float)), default=0)
    return (
        ("warning", f"{_GSPO}; at {least:g} nothing is ever clipped")
        if least >= 0.01
        else ("note", _GSPO)
    )


def in_half(what: str, cure: str) -> Finding:
    """Warn of log-probabilities that are not float32 with a model in half precision."""
    return Finding(
        "warning",
        f"{what}: log-probabilities are computed in the precision of the model; in bfloat16 ratios are wrong by "
        "percents",
        cure,
    )


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
    parts = (
        [*node.values()] if isinstance(node, Mapping) else node if isinstance(node, list | tuple) else []
    )
    kinds = (
        [value for key, value in node.items() if str(key) == "type"] if isinstance(node, Mapping) else []
    )
    if kinds and isinstance(kinds[0], str) and re.fullmatch(OWN, kinds[0]):
        return kinds[0]
    return next(filter(None, map(own_type, parts)), None)


def not_loaded(kind: str) -> str:
    """Return the reader's text for such a rule."""
    return f"a rule of one's own, {kind}, not loaded; --trust loads it"
