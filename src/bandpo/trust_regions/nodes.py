"""Read rules and laws from config nodes, texts, and words such as `band:kl:0.05`."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from ..errors import UserError, nearest, unknown
from ..numerics import listed
from .base import EXAMPLE, Law, Node, Region

__all__ = ["trust_region"]

OWN = r"[\w.]+:\w+"  # the type of a rule that a user wrote, module:Class


def kinds() -> list[str]:
    """List the possible values of `type` in a rule's node."""
    return sorted(Region.kinds)


def trust_region(node: Mapping[str, Any] | Region | str) -> Region:
    """Make the rule of a config node or of a short word.

    A node is such as `{"type": "band", "divergence": "kl", "delta": 0.05}`. A word is a kind and its fields in their
    order, such as "band:kl:0.05"; the last ones may be left out. A rule in a rule stands where the field does, with all
    of its own: "capped:band:kl:0.05:10". The type may be `module:Class`, a `Region` that you wrote: the module is
    imported, which runs what is in it.

    Raises ValueError naming the key and the nearest known one, or what a module lacks; of anything else what to write.

    >>> import bandpo
    >>> from bandpo.trust_regions import trust_region
    >>> region = trust_region({"type": "capped", "region": {"type": "band", "delta": 0.05}, "max_ratio": 10})
    >>> region == bandpo.Capped(bandpo.Band("kl", 0.05), 10.0) and trust_region(region.to_config()) == region
    True
    """
    if isinstance(node, str):
        words = node.split(":")
        node = _take(words, Region)
        if words:
            raise ValueError(f"{':'.join(words)!r} is too much; {usage(node['type'])}")
    if isinstance(node, Mapping):
        return cast(Region, read_node(node, Region))
    if isinstance(node, Region):
        return node
    raise ValueError(f"{node!r} is not a trust region{EXAMPLE}")


def usage(kind: str, family: type[Node] = Region) -> str:
    """Say how a short word of that kind is written."""
    words = ":".join([kind, *(field.name for field in _given(family.kinds[kind]))])
    return f"a {'law' if family is Law else 'rule'} of type {kind} is written {words}"


def _given(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    """List the fields that a short word gives. Those that are None unless set are for nodes."""
    return [field for field in dataclasses.fields(cls) if field.init and field.default is not None]


def _take(words: list[str], family: type[Node]) -> dict[str, Any]:
    """Take a rule or law from the beginning of `words`, and return its node."""
    kind = _known_kind(words.pop(0), family)
    node: dict[str, Any] = {"type": kind}
    for field in _given(family.kinds[kind]):
        of = Law if field.name == "law" else Region
        if words:
            node[field.name] = _take(words, of) if of is Law or words[0].lower() in Region.kinds else words.pop(0)
        elif field.default is dataclasses.MISSING:
            raise ValueError(f"{field.name} is missing; {usage(kind, family)}")
    return node


def _known_kind(kind: object, family: type[Node]) -> str:
    """Return the kind as it is known, whatever its capitals."""
    found = next((each for each in (str(kind), str(kind).lower()) if each in family.kinds), None)
    if found is None:
        known = sorted(family.kinds)
        raise ValueError(unknown(f"{family.family} type", kind, known, most=8 if family is Region else len(known)))
    return found


def read_node(node: Mapping[str, Any], family: type[Node]) -> Any:
    """Make the object of a node: a rule, a law, an application."""
    values = {str(key): value for key, value in node.items()}
    kind = values.pop("type", None)
    if kind is None:
        example = "band, delta: 0.05" if family is Region else min(family.kinds)
        raise ValueError(f"the type of a {family.family} is missing, as in {{type: {example}}}")
    is_own = isinstance(kind, str) and re.fullmatch(OWN, kind)
    cls = _own(kind, family) if is_own else family.kinds[kind := _known_kind(kind, family)]
    return made_of(cls, values, f"{family.family} {kind!r}", _field)


def _field(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return read_node(cast("Mapping[str, Any]", value), Law if name == "law" else Region)
    if any(isinstance(each, Mapping) for each in listed(value)):  # rules in a tuple
        return tuple(_field(name, each) for each in listed(value))
    return value


def _own(kind: str, base: type[Node]) -> type[Node]:
    """Import the class `module:Class`."""
    name, _, of_class = kind.partition(":")
    what = f"{base.family} type {kind!r}"
    try:
        module = importlib.import_module(name)
    except Exception as error:  # whatever the module does when it is imported
        # Only `bandpo train` looks there by itself: the working directory may be a stranger's folder.
        hint = "; PYTHONPATH=. before the command lets Python look in the working directory, too"
        hint = hint if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(f"{what}: {name!r} cannot be imported: {type(error).__name__}: {error}{hint}") from error
    classes = {key: each for key, each in vars(module).items() if isinstance(each, type) and issubclass(each, base)}
    found = classes.get(of_class)
    if found is None or not dataclasses.is_dataclass(found):
        wanted = f"{base.__name__} {of_class!r}, a frozen dataclass"
        raise ValueError(f"{what}: {name!r} has no {wanted}{nearest(of_class, list(classes)) if found is None else ''}")
    return found


def made_of(cls: type[Any], values: Mapping[str, Any], what: str, read: Callable[[str, Any], Any]) -> Any:
    """Make a dataclass of its node's values. `read` makes each of its name and what the node has.

    Raises ValueError for a key that the class has not, with the nearest one that it has, and for one that is missing.
    """
    fields, empty = [field for field in dataclasses.fields(cls) if field.init], dataclasses.MISSING
    known = [field.name for field in fields]
    for key in values:
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {what}{nearest(key, known)}; it has {known}")
    needed = [field.name for field in fields if field.default is field.default_factory is empty]
    if missing := [name for name in needed if name not in values]:
        raise ValueError(f"{what} lacks {', '.join(missing)}; it has {known}")
    return cls(**{key: read(key, value) for key, value in values.items()})


def node_of_text(text: str) -> Mapping[str, Any] | str:
    """Return the node that a text is, or else the text, for a short word.

    Raises ValueError for what is neither, and where a node needs PyYAML.
    """
    if re.fullmatch(r"[\w.:+()/-]+", text):
        return text
    from ..files import parse_yaml  # a short word must do without what it loads

    try:
        node = parse_yaml(text, "the node")
    except UserError:
        node = None
    except ModuleNotFoundError:
        raise ValueError("a YAML node needs PyYAML (pip install pyyaml); band:kl:0.05 does not") from None
    if not isinstance(node, dict) and re.search("[{:]", text):
        raise ValueError("a rule is a short word such as band:kl:0.05 or a YAML node such as {type: band, delta: 0.05}")
    return node if isinstance(node, dict) else text
