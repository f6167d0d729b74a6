"""Methods by name: objectives that papers propose, with their values, read from methods.yaml beside this file."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import unknown
from ..trust_regions.base import kinds
from .objective import Method, objective_of_node


@cache
def methods() -> tuple[Method, ...]:
    """Return every method of the library, in the order of methods.yaml."""
    return read_methods(Path(__file__).with_name("methods.yaml"))


def read_methods(path: Path) -> tuple[Method, ...]:
    """Read methods from a YAML file: a mapping of names, each with the fields of `Method`.

    The objective is a node, and its average stands beside it as `average`, because trainers have one of their own.
    """
    import yaml  # not at the top: importing bandpo loads torch alone

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: dict[str, dict[str, Any]] = yaml.load(path.read_text(encoding="utf-8"), loader)
    return tuple(_method(name, **entry) for name, entry in entries.items())


def _method(name: str, objective: Any, average: Any = None, **rest: Any) -> Method:
    value = dataclasses.replace(objective_of_node(objective), aggregation=average)
    return Method(name=name, objective=value, **rest)


def find_method(name: object) -> Method | None:
    """Return the method with that name or title in any capitals, or None."""
    return next((each for each in methods() if _key(name) in (each.name, _key(each.title))), None)


def _key(text: object) -> str:
    return "-".join(str(text).lower().replace("_", " ").split())


def method(name: str) -> Method:
    """Return the method of that name.

    Raises ValueError with the nearest name.

    >>> import bandpo
    >>> bandpo.method("gspo").objective
    Objective(Clip(eps_low=0.0003, eps_high=0.0004), ratio='sequence-mean', aggregation='seq-mean-token-mean')
    >>> bandpo.objective("gspo") == bandpo.method("gspo").objective
    True
    """
    if (found := find_method(name)) is not None:
        return found
    rule = str(name).partition(":")[0].lower()
    if rule in kinds():
        raise ValueError(f"{name!r} is not a method but a rule, which bandpo.objective({name!r}) takes")
    known = [*(each.name for each in methods()), *kinds()]
    words = _key(name).split("-")
    meant = f"band:{name}" if find_method(f"band-{rule}") else words[0] if {*words} <= {*known} else None
    raise ValueError(unknown("method or rule", name, known, meant=meant))
