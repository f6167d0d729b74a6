"""What may stand for an objective: itself or its config node, a trust region or its node, a method or its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..errors import unknown
from ..trust_regions.base import Region
from ..trust_regions.nodes import kinds, made_of, read_node, trust_region
from .methods import find_method, method
from .objective import Method, Objective
from .surrogates import Application


def method_of(node: Any) -> Method | None:
    """The method that stands here, by itself, by its name or as its node; None where something else stands, such as the
    short word of a rule. Raises ValueError for a text that is neither."""
    if isinstance(node, Method):
        return node
    if isinstance(node, str):
        is_rule = node.partition(":")[0].lower() in kinds()
        return find_method(node) if is_rule else method(node)
    values = {str(key): x for key, x in cast("Mapping[Any, Any]", node).items()} if isinstance(node, Mapping) else {}
    if values.pop("type", None) != "method":
        return None
    if set(values) != {"name"}:
        raise ValueError(
            f"a method's node is {{type: method, name: ...}}, got {sorted(values)} beside the type; for other values "
            "write an objective, beginning with bandpo.method(name).without_average.to_config()"
        )
    return method(values["name"])


def objective(node: Mapping[str, Any] | str | Region | Method | Objective) -> Objective:
    """The objective that a config node describes, or that a method has, given by name, node or itself; of a trust
    region, its node or its short word, e.g. "band:kl:0.05", the paper's with that region.

    Raises ValueError naming the key and the nearest known one, and for a method that is more than its objective.

    >>> import bandpo
    >>> node = {"type": "objective", "trust_region": {"type": "clip"}, "ratio": "sequence-mean", "beta": 0.04}
    >>> bandpo.objective(node)
    Objective(Clip(eps_low=0.2, eps_high=0.2), ratio='sequence-mean', beta=0.04)
    >>> bandpo.objective(bandpo.objective(node).to_config()) == bandpo.objective(node)
    True
    >>> bandpo.objective({"type": "method", "name": "cispo"})
    Objective(Clip(eps_low=1.0, eps_high=4.0), apply='weight', aggregation='token-mean')
    """
    if isinstance(node, Objective):
        return node
    if (found := method_of(node)) is not None:
        if not found.is_complete:
            raise ValueError(
                f"method {found.name!r} is more than its objective: policy_loss is given {found.arguments} too, in a "
                f"loop of one's own, with bandpo.method({found.name!r}).objective"
            )
        return found.objective
    if not isinstance(node, Mapping):
        return Objective(trust_region(cast(Any, node)))
    values = {str(key): value for key, value in node.items()}
    kind = values.pop("type", None)
    if kind == "objective":
        return made_of(Objective, values, "objective", _field)
    known = [*kinds(), "objective", "method"]
    # module:Class is a rule of one's own.
    if kind is not None and str(kind).lower() not in known and ":" not in str(kind):
        raise ValueError(unknown("trust region type", kind, known))
    return Objective(trust_region(node))


def _field(name: str, value: Any) -> Any:
    if name == "trust_region":
        return trust_region(value)
    if name == "apply" and isinstance(value, list | tuple):
        return tuple(_field(name, each) for each in cast("list[Any]", value))
    if name == "apply" and isinstance(value, Mapping):
        return read_node(cast("Mapping[str, Any]", value), Application)
    return value
