"""Read a rule from a text, a short word or YAML, and find in it what would import a module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from ..errors import UserError
from ..files import parse_yaml
from .nodes import OWN


def node_of_text(text: str) -> Mapping[str, Any] | str:
    """Return the node that a text is, or else the text, for a short word.

    Raises ValueError for what is neither, and where a node needs PyYAML.
    """
    if re.fullmatch(r"[\w.:+()/-]+", text):
        return text
    try:
        node = parse_yaml(text, "the node")  # a short word must do without a library for it
    except UserError:
        node = None
    except ModuleNotFoundError:
        raise ValueError("a YAML node needs PyYAML (pip install pyyaml); band:kl:0.05 does not") from None
    if not isinstance(node, dict) and re.search("[{:]", text):
        raise ValueError("a rule is a short word such as band:kl:0.05 or a YAML node such as {type: band, delta: 0.05}")
    return node if isinstance(node, dict) else text


def own_type(node: Any) -> str | None:
    """Find the first `module:Class` that is the type of a rule, or of a part of one, in a node; None without one.

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
