"""Refusal of values that look like a secret in a config, and blanks for them in output for others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# eos_token and pad_token are none.
_CLEARLY = r"(?:hub|auth|access|api|bearer)_token|api_?key|access_?key|secret(?:_?key)?|passw(?:or)?d"
_NAME = rf"(?:(?:[\w.-]*[._-])?(?:{_CLEARLY})|(?:[\w.]*\.)?token)"
_SECRET = re.compile(_NAME, re.I)
# key=value in a command, and what a URL has before its @.
_IN_TEXT = re.compile(rf"((?<![\w.-]){_NAME}\s*[=:]\s*)[^\s'\",}}]+|(?<=://)[^/\s]+(?=@)", re.I)


def secret_in(node: Any, above: str = "") -> str | None:
    """Return the first setting that looks like a secret and has a value.

    It looks so by its name, or as a URL with a password in it.
    """
    for key, value in node.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            if found := secret_in(value, f"{name}."):
                return found
        elif isinstance(value, str) and value and (_SECRET.fullmatch(str(key)) or re.search(r"://[^/\s]+@", value)):
            return name
    return None


def blanked(node: Any) -> Any:
    """Replace what looks like a secret by ***, for pages and files that others read."""
    if isinstance(node, Mapping):
        return {
            key: "***" if isinstance(value, str) and value and _SECRET.fullmatch(str(key)) else blanked(value)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [blanked(each) for each in node]
    return _IN_TEXT.sub(lambda found: f"{found[1] or ''}***", node) if isinstance(node, str) else node
