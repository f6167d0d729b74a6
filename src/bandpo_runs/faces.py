"""Hand on the names of a wing when they are asked for. Its files are slow to import."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(wing: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a wing; `homes` gives the file of each name."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {wing!r} has no attribute {name!r}")
        return getattr(import_module(f"{wing}.{homes[name]}"), name)

    return find
