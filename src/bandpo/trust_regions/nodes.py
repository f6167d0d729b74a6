"""Read rules from config nodes, texts, and words such as `band:kl:0.05`."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from ..errors import UserError, nearest, unknown
from ..numerics import listed
from .base import EXAMPLE, Node, Region, holds_rule

__all__ = ["trust_region"]

OWN = r"[\w.]+:\w+"  # the type of a rule that a user wrote, module:Class


def kinds() -> list[str]:
    """List the possible values of `type` in a rule's node."""
    return sorted(Region.kinds)


def trust_region(node: Mapping[str, Any] | Region | str) -> Region:
    """Make the rule of a config node or of a short word.

    >>> import bandpo
    >>> from bandpo.trust_regions import trust_region
    >>> trust_region("band:kl:0.05") == trust_region({"type": "band", "divergence": "kl", "delta": 0.05})
    True
    >>> region = trust_region({"type": "capped", "region": {"type": "band", "delta": 0.05}, "max_ratio": 10})
    >>> region == bandpo.Capped(bandpo.Band("kl", 0.05), 10.0) and trust_region(region.to_config()) == region
    True

    A word is a kind and its fields in their order; the last ones may be left out. A rule that holds other rules is
    written as a node. The type may be `module:Class`, a `Region` that you wrote: the module is imported, which runs
    what is in it.

    Raises ValueError naming the key and the nearest known one, or what a module lacks; of anything else what to write.
    """
    if isinstance(node, str):
        node = _node_of_word(node)
    if isinstance(node, Mapping):
        return cast(Region, read_node(node, Region))
    if isinstance(node, Region):
        return node
    raise ValueError(f"{node!r} is not a trust region{EXAMPLE}")


def usage(kind: str) -> str:
    """Write a rule of that kind with its fields. It is a short word, or a node if the rule holds rules."""
    fields = _fields_of_words(kind)
    if any(map(holds_rule, fields)):
        values = [f"{field.name}: {'{type: band}' if holds_rule(field) else '...'}" for field in fields]
        return f"{{{', '.join([f'type: {kind}', *values])}}}"
    return ":".join([kind, *(field.name for field in fields)])


def _fields_of_words(kind: str) -> list[dataclasses.Field[Any]]:
    """List the fields that a short word has. Those that are None unless set are for nodes."""
    return [
        field
        for field in dataclasses.fields(cast(Any, Region.kinds[kind]))
        if field.init and field.default is not None
    ]


def _node_of_word(word: str) -> dict[str, Any]:
    """Return the node of a short word, such as "band:kl:0.05"."""
    kind, *values = word.split(":")
    kind = _known_kind(kind, Region)
    names = [field.name for field in _fields_of_words(kind)]
    if len(values) > len(names):
        raise ValueError(f"{word!r} has more than the fields of {usage(kind)}")
    return {"type": kind} | dict(zip(names, values, strict=False))


def _known_kind(kind: object, family: type[Node]) -> str:
    """Return the kind as it is registered, whatever its capitals."""
    spellings = [each for each in (str(kind), str(kind).lower()) if each in family.kinds]
    if not spellings:
        raise ValueError(unknown(f"{family.family} type", kind, sorted(family.kinds)))
    return spellings[0]


def read_node(node: Mapping[str, Any], family: type[Node]) -> Any:
    """Make the object of a node: a rule, the weight of a surrogate."""
    values = {str(key): value for key, value in node.items()}
    kind = values.pop("type", None)
    if kind is None:
        raise ValueError(
            f"the type of a {family.family} is missing, as in {{type: {next(iter(family.kinds))}}}"
        )
    is_own = isinstance(kind, str) and re.fullmatch(OWN, kind)
    cls = _own(kind, family) if is_own else family.kinds[_known_kind(kind, family)]
    # A rule of your own may have other nodes in it than rules, which its `read_field` reads.
    return made_of(cls, values, f"{family.family} {kind!r}", getattr(cls, "read_field", read_field))


def read_field(name: str, value: Any) -> Any:
    """Return the value of a field, with the rules of its nodes."""
    if isinstance(value, Mapping):
        return read_node(cast("Mapping[str, Any]", value), Region)
    if any(isinstance(each, Mapping) for each in listed(value)):  # rules in a tuple
        return tuple(read_field(name, each) for each in listed(value))
    return value


def _own(kind: str, base: type[Node]) -> type[Node]:
    """Import the class `module:Class`."""
    name, _, of_class = kind.partition(":")
    what = f"{base.family} type {kind!r}"
    try:
        cls = getattr(importlib.import_module(name), of_class, None)
    except Exception as error:  # whatever the module does when it is imported
        # Only `bandpo train` looks there by itself: the working directory may be a stranger's folder.
        hint = "; PYTHONPATH=. before the command lets Python look in the working directory, too"
        hint = hint if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(
            f"{what}: {name!r} cannot be imported: {type(error).__name__}: {error}{hint}"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, base) and dataclasses.is_dataclass(cls)):
        raise ValueError(f"{what}: {name!r} has no {base.__name__} {of_class!r}, a frozen dataclass")
    return cls


def made_of(cls: type[Any], values: Mapping[str, Any], what: str, read: Callable[[str, Any], Any]) -> Any:
    """Make a dataclass of its node's values. `read` makes each of its name and what the node has.

    Raises ValueError for a key that the class has not, with the nearest one that it has, and for one that is missing.
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]
    names = [field.name for field in fields]
    for key in values:
        if key not in names:
            raise ValueError(f"unknown key {key!r} in {what}{nearest(key, names)}; it has {names}")
    missing = [
        field.name
        for field in fields
        if field.default is field.default_factory is dataclasses.MISSING and field.name not in values
    ]
    if missing:
        raise ValueError(f"{what} lacks {', '.join(missing)}; it has {names}")
    return cls(**{key: read(key, value) for key, value in values.items()})


def node_of_text(text: str) -> Mapping[str, Any] | str:
    """Return the node that a text is, or else the text, for a short word.

    Raises ValueError for what is neither.
    """
    if re.fullmatch(r"[\w.:+()/-]+", text):
        return text
    from ..files import parse_yaml  # a short word must do without what it loads

    try:
        node = parse_yaml(text, "the node")
    except UserError:
        node = None
    if not isinstance(node, dict) and re.search("[{:]", text):
        raise ValueError(
            "a rule is a short word such as band:kl:0.05 or a YAML node such as {type: band, delta: 0.05}, "
            f"got {text!r}"
        )
    return node if isinstance(node, dict) else text
