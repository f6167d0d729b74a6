"""Objectives in words: `gspo` becomes an objective, and an objective its name in tables and legends."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, cast

from ..errors import nearest
from ..trust_regions.base import kinds
from ..trust_regions.notation import label_of, node_of_text
from .methods import METHODS, method
from .nodes import method_of, objective
from .objective import Method, Objective


def parse_objective(text: str) -> Method | Objective:
    """What a text describes: a method's name, a rule's short word (see `parse_region`), or a YAML node of any of them.

    Where a rule and a method have the same name, as `dcpo`, the word alone is the method, the same rule with the
    paper's values.

    Raises ValueError naming the text, what is wrong with it and what is allowed.

    >>> parse_objective("gspo").objective == parse_objective("{type: method, name: gspo}").objective
    True
    >>> parse_objective("band:kl:0.05")
    Objective(Band(divergence='kl', delta=0.05, delta_low=None, delta_high=None))
    """
    names = [each.name for each in METHODS]
    if text in names:
        return method(text)
    if re.fullmatch(r"[\w-]+", text) and text not in kinds():
        raise ValueError(
            f"{text!r} is no method and no rule{nearest(text, [*names, *kinds()])}; methods are {', '.join(names)}; "
            f"rules {', '.join(kinds())}"
        )
    try:
        node = node_of_text(text)
        return method_of(node) or objective(node)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def label_of_objective(value: Objective) -> str:
    """The name of an objective in tables and legends: that of its rule; where it has more than a rule, that of the
    method, e.g. `GSPO`, or the rule's and the other fields."""
    bare = dataclasses.replace(value, aggregation=None)
    named = [
        each.title
        for each in METHODS
        if each.is_complete and value.aggregation in (None, each.objective.aggregation) and each.without_average == bare
    ]
    if not bare.changed() and (value.aggregation is None or named):
        return label_of(value.trust_region)
    fields = (f"{name} {_show(x)}" for name, x in value.changed().items())
    return named[0] if named else ", ".join([label_of(value.trust_region), *fields])


def _show(value: Any) -> str:
    return " / ".join(map(str, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else str(value)


def short_node(value: Objective) -> dict[str, Any]:
    """The node of an objective, of its rule where that is all of it."""
    return value.to_config() if value.changed() else value.to_config()["trust_region"]
