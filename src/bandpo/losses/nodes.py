"""What may stand for an objective: itself, a trust region, a method, or a config node or a text for one of these."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any, cast

from ..trust_regions.base import EXAMPLE, Law, Region, instead, kinds, trust_region
from .methods import find_method, method
from .objective import Method, Objective, objective_of_node
from .surrogates import Application


def objective(node: Mapping[str, Any] | str | Region | Method | Objective) -> Objective:
    """Return the objective that stands here, as itself, a method, a trust region, a config node or a text.

    A trust region stands for the paper's objective with that region. A text is a method's name, a rule's short word,
    Python such as `Clip(0.2, 0.28)`, which is read and not run, or a YAML node. The word `dcpo`, a rule and a method,
    is the method, which is the rule with the paper's values.

    Raises ValueError naming what is wrong and the nearest known word, and for a method that is more than its objective.

    >>> import bandpo
    >>> node = {"type": "objective", "trust_region": {"type": "clip"}, "ratio": "sequence-mean", "beta": 0.04}
    >>> bandpo.objective(node)
    Objective(Clip(eps_low=0.2, eps_high=0.2), ratio='sequence-mean', beta=0.04)
    >>> bandpo.objective(bandpo.objective(node).to_config()) == bandpo.objective(node)
    True
    >>> bandpo.objective("Clip(0.2, 0.28)") == bandpo.objective("clip:0.2:0.28") == bandpo.objective("clip-higher")
    True
    >>> bandpo.objective({"type": "method", "name": "cispo"})
    Objective(Clip(eps_low=1.0, eps_high=4.0), apply='weight', aggregation='token-mean')
    """
    found = method_or_objective(node)
    if isinstance(found, Objective):
        return found
    if found.from_sampler:
        raise ValueError(
            f"method {found.name!r} is more than its objective: its ratio is to the sampler's policy; call policy_loss "
            f"with {found.arguments} and bandpo.method({found.name!r}).objective"
        )
    return found.objective


def method_or_objective(node: Any) -> Method | Objective:
    """Return the method that stands here where it is one, else the objective; see `objective`."""
    if isinstance(node, Method | Objective):
        return node
    if isinstance(node, str):
        try:
            return _of_text(node)
        except ValueError as error:
            raise ValueError(str(error) if repr(node) in str(error) else f"{node!r}: {error}") from None
    values = {str(key): x for key, x in cast("Mapping[Any, Any]", node).items()} if isinstance(node, Mapping) else {}
    if values.pop("type", None) != "method":
        return objective_of_node(cast(Any, node))
    if set(values) != {"name"}:
        raise ValueError(
            f"a method's node is {{type: method, name: ...}}, got {sorted(values)} beside the type; for other values "
            "write an objective, beginning with bandpo.method(name).without_average.to_config()"
        )
    return method(values["name"])


def _of_text(text: str) -> Method | Objective:
    from ..trust_regions.notation import node_of_text  # which loads what reads YAML

    if re.match(r"[\w.]+\(", text):
        return method_or_objective(_of_python(text))
    if not isinstance(node := node_of_text(text), str):
        return method_or_objective(node)
    if (found := find_method(text)) is not None:
        return found
    is_rule = text.partition(":")[0].lower() in kinds() or instead(text)
    return objective_of_node(text) if is_rule else method(text)  # which says what is near


def _of_python(text: str) -> Any:
    try:
        return read_python(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"{text!r} cannot be read as Python: {error}{EXAMPLE}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"a text of {len(text)} characters is too deep to be a rule{EXAMPLE}") from None


def read_python(code: ast.expr) -> Any:
    """Make the value of Python code that holds plain values and calls of rules alone; nothing is run.

    Raises ValueError where there is more in it, and TypeError for arguments that a rule does not take.
    """
    from ..trust_regions.notation import not_loaded, own_type

    classes = (*Region.kinds.values(), *Law.kinds.values(), *Application.kinds.values())
    makers: dict[str, Any] = {name: each for each in classes for name in (each.__name__, each.__name__.lower())}
    makers |= {"Objective": Objective, "method": method, "trust_region": trust_region, "float": float}
    called = code.func if isinstance(code, ast.Call) else code
    name = called.attr if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
    make = makers.get(getattr(called, "id", name))
    if isinstance(code, ast.Call):
        if make is None or any(keyword.arg is None for keyword in code.keywords):
            raise ValueError(_more(code))
        given = [*code.args, *(keyword.value for keyword in code.keywords)]
        if make is trust_region and (own := own_type([ast.literal_eval(each) for each in given])) is not None:
            raise ValueError(not_loaded(own))
        named = {str(keyword.arg): read_python(keyword.value) for keyword in code.keywords}
        return make(*map(read_python, code.args), **named)
    if make is not None:
        return make
    if isinstance(code, ast.Tuple):
        return tuple(map(read_python, code.elts))
    if "inf" in (name, getattr(code, "id", "")):  # inf or math.inf
        return math.inf
    try:
        return ast.literal_eval(code)
    except ValueError:
        raise ValueError(_more(code)) from None


def _more(code: ast.expr) -> str:
    return f"{ast.unparse(code)} is more than plain values and rules, and code is not run{EXAMPLE}"
