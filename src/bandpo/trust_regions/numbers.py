"""The numbers of a rule: which one is free, the rule with another one, and from which one on a token is inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from ..errors import UserError
from .base import Region


def free_number(region: Region) -> tuple[str, ...]:
    """The fields that are one number, unless others are named; UserError where that is not clear."""
    if region.free:
        return region.free
    numbers = numbers_of(region)
    raise UserError(f"{region.label} has {len(numbers)} numbers, {numbers}; name the one to find (--parameter)")


def numbers_of(region: Any) -> list[str]:
    """The fields that are numbers, those of rules within too."""
    found: list[str] = []
    for field in dataclasses.fields(region) if dataclasses.is_dataclass(region) else ():
        value = getattr(region, field.name)
        if field.init and isinstance(value, float):
            found.append(field.name)
        for place, inner in _rules_in(field.name, value):
            found += [f"{place}.{name}" for name in numbers_of(inner)]
    return found


def _rules_in(name: str, value: Any) -> list[tuple[str, Region]]:
    """The rules that a field holds, with the place of each."""
    places = {f"{name}.{i}": each for i, each in enumerate(value)} if isinstance(value, tuple) else {name: value}
    return [(place, each) for place, each in places.items() if isinstance(each, Region)]


def with_number(region: Region, names: Sequence[str], value: float) -> Region:
    """The rule with that number in these fields."""
    for name in names:
        head, _, rest = name.partition(".")
        inner: Any = getattr(region, head)
        if isinstance(inner, tuple):
            place, _, rest = rest.partition(".")
            inner = tuple(with_number(each, [rest], value) if str(i) == place else each for i, each in enumerate(inner))
        else:
            inner = with_number(inner, [rest], value) if rest else value
        region = dataclasses.replace(cast(Any, region), **{head: inner})
    return region
