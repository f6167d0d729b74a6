"""Objectives in words: `gspo` becomes an objective, and an objective its name in tables and legends."""

from __future__ import annotations

import ast
import math
import re
from typing import Any, cast

from ..trust_regions.base import EXAMPLE, Law, Region, trust_region
from ..trust_regions.notation import label_of, node_of_text
from .methods import METHODS, method
from .nodes import method_of, objective
from .objective import Method, Objective
from .surrogates import Application


def parse_objective(text: str) -> Method | Objective:
    """What a text describes: a method's name, a rule's short word (see `parse_region`), a YAML node of any of them, or
    Python such as `Band("kl", 0.05)`.

    Where a rule and a method have the same name, as `dcpo`, the word alone is the method, the same rule with the
    paper's values.

    Raises ValueError naming the text, what is wrong with it and what is allowed.

    >>> parse_objective("gspo").objective == parse_objective("{type: method, name: gspo}").objective
    True
    >>> parse_objective("band:kl:0.05") == parse_objective('Band("kl", 0.05)')
    True
    >>> parse_objective("band:kl:0.05")
    Objective(Band(divergence='kl', delta=0.05, delta_low=None, delta_high=None))
    """
    try:
        node = _of_python(text) if re.match(r"[\w.]+\(", text) else node_of_text(text)
        return method_of(node) or objective(node)
    except ValueError as error:
        raise ValueError(str(error) if repr(text) in str(error) else f"{text!r}: {error}") from None


def _of_python(text: str) -> Any:
    try:
        return read_python(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"{text!r} cannot be read as Python: {error}{EXAMPLE}") from None


def read_python(code: ast.expr) -> Any:
    """Make what Python code says in plain values and calls of rules, e.g. `Band("kl", 0.05)`; nothing is run.

    Raises ValueError where there is more in it, and TypeError for arguments that a rule does not take.
    """
    if isinstance(code, ast.Call):
        name = code.func.attr if isinstance(code.func, ast.Attribute) else getattr(code.func, "id", "")
        makers = {
            each.__name__: each for each in (*Region.kinds.values(), *Law.kinds.values(), *Application.kinds.values())
        }
        make: Any = {
            **makers,
            "Objective": Objective,
            "method": method,
            "trust_region": trust_region,
            "float": float,
        }.get(name)
        if make is None or any(keyword.arg is None for keyword in code.keywords):
            raise ValueError(f"{ast.unparse(code)} is more than plain values and rules, and code is not run{EXAMPLE}")
        named = {str(keyword.arg): read_python(keyword.value) for keyword in code.keywords}
        return make(*map(read_python, code.args), **named)
    if isinstance(code, ast.Tuple):
        return tuple(map(read_python, code.elts))
    if isinstance(code, ast.Attribute) and code.attr == "inf":
        return math.inf
    return ast.literal_eval(code)


def label_of_objective(value: Objective) -> str:
    """The name of an objective in tables and legends: that of its rule; where it has more than a rule, that of the
    method, e.g. `GSPO`, or the rule's and the other fields."""
    changed = value.changed()
    if not changed:
        return label_of(value.trust_region)
    for each in METHODS:
        if each.is_complete and each.objective == value:
            return each.title
    return ", ".join([label_of(value.trust_region), *(f"{name} {_show(x)}" for name, x in changed.items())])


def _show(value: Any) -> str:
    return " / ".join(map(str, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else str(value)


def short_node(value: Objective) -> dict[str, Any]:
    """The node of an objective, of its rule where that is all of it."""
    return value.to_config() if value.changed() else value.to_config()["trust_region"]
