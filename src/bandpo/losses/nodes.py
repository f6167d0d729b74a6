"""Read what may stand for an objective: a rule, a method, a node or a text.

Methods are objectives that papers propose, with their values, in methods.yaml beside this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from ..errors import unknown
from ..trust_regions.base import EXAMPLE, Region
from ..trust_regions.nodes import kinds, made_of, node_of_text, read_node, trust_region
from .objective import Method, Objective
from .surrogates import SurrogateWeight

_METHODS = Path(__file__).with_name("methods.yaml")


@cache
def methods(path: Path = _METHODS) -> tuple[Method, ...]:
    """Return the methods of a YAML file, which maps names to the fields of `Method`.

    The objective is a node, and its average stands beside it as `average`, because trainers have one of their own.
    """
    import yaml  # not at the top: importing bandpo loads torch alone

    text, loader = path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: dict[str, dict[str, Any]] = yaml.load(text, loader)
    return tuple(
        Method(
            name,
            objective=dataclasses.replace(
                cast(Objective, method_or_objective(entry.pop("objective"))),
                aggregation=entry.pop("average", None),
            ),
            **entry,
        )
        for name, entry in entries.items()
    )


def method(name: str) -> Method:
    """Return the method of that name.

    >>> import bandpo
    >>> bandpo.losses.method("gspo").objective
    Objective(Clip(eps_low=0.0003, eps_high=0.0004), ratio='sequence-mean', aggregation='seq-mean-token-mean')
    >>> bandpo.objective("gspo") == bandpo.losses.method("gspo").objective
    True

    Raises ValueError with the nearest name.
    """
    named = _find(name)
    if named is not None:
        return named
    rule = str(name).partition(":")[0].lower()
    if rule in kinds():
        raise ValueError(f"{name!r} is not a method but a rule, which bandpo.objective({name!r}) takes")
    names = [*(each.name for each in methods()), *kinds()]
    words = _key(name).split("-")
    meant = f"band:{name}" if _find(f"band-{rule}") else words[0] if {*words} <= {*names} else None
    # A number, or Python.
    hint = "" if any(map(str.isalpha, str(name))) and "(" not in str(name) else EXAMPLE
    raise ValueError(unknown("method or rule", name, names, meant=meant) + hint)


def _find(name: object) -> Method | None:
    """Return the method with that name or title in any capitals, or None."""
    return next((each for each in methods() if _key(name) in (each.name, _key(each.title))), None)


def _key(text: object) -> str:
    return "-".join(str(text).lower().replace("_", " ").split())


def objective(node: Mapping[str, Any] | str | Region | Method | Objective) -> Objective:
    """Return the objective of a rule, a method, a config node, a text, or itself.

    >>> import bandpo
    >>> node = {"type": "objective", "trust_region": {"type": "clip"}, "ratio": "sequence-mean", "beta": 0.04}
    >>> bandpo.objective(node)
    Objective(Clip(eps_low=0.2, eps_high=0.2), ratio='sequence-mean', beta=0.04)
    >>> bandpo.objective(bandpo.objective(node).to_config()) == bandpo.objective(node)
    True
    >>> bandpo.objective("clip:0.2:0.28") == bandpo.objective("clip-higher")
    True
    >>> bandpo.objective({"type": "method", "name": "cispo"})
    Objective(Clip(eps_low=1.0, eps_high=4.0), surrogate='weight', aggregation='token-mean')

    A trust region stands for the paper's objective with it. A text is a method's name, a rule's short word, or a
    YAML node. Where a method and a rule have one name, as `dcpo`, it is the method.

    Raises ValueError naming what is wrong and the nearest known word, and for a method whose ratio is to the sampler.
    """
    value = method_or_objective(node)
    if isinstance(value, Objective):
        return value
    if value.from_sampler:
        raise ValueError(
            f"method {value.name!r} is more than its objective: its ratio is to the sampler's policy; call policy_loss "
            f"with {value.arguments} and bandpo.losses.method({value.name!r}).objective"
        )
    return value.objective


def method_or_objective(node: Any) -> Method | Objective:
    """Return the method that stands here, or else the objective. See `objective`."""
    if isinstance(node, str):
        node = node_of_text(node)
    if isinstance(node, str):
        is_rule = node.partition(":")[0].lower() in kinds() and not _find(node)
        return Objective(trust_region(node)) if is_rule else method(node)
    if not isinstance(node, Mapping):
        return node if isinstance(node, Method | Objective) else Objective(trust_region(node))
    values = {str(key): value for key, value in cast("Mapping[Any, Any]", node).items()}
    kind = values.pop("type", None)
    types = [*kinds(), "objective", "method"]
    if kind == "objective":
        return made_of(Objective, values, "objective", _field)
    if kind == "method" and set(values) != {"name"}:
        raise ValueError(
            f"a method's node is {{type: method, name: ...}}, got {sorted(values)} beside the type; for other values "
            "write an objective, beginning with bandpo.losses.method(name).without_average.to_config()"
        )
    if kind == "method":
        return method(values["name"])
    # Module:Class is a user's rule.
    if kind is not None and str(kind).lower() not in types and ":" not in str(kind):
        raise ValueError(unknown("trust region type", kind, types))
    return Objective(trust_region(cast(Any, node)))


def _field(name: str, value: Any) -> Any:
    if name == "trust_region":
        return trust_region(value)
    if name == "surrogate" and isinstance(value, list | tuple):
        return tuple(_field(name, each) for each in cast("list[Any]", value))
    if name == "surrogate" and isinstance(value, Mapping):
        return read_node(cast("Mapping[str, Any]", value), SurrogateWeight)
    return value
