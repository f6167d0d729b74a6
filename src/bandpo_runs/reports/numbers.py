"""Find the numbers of a rule: which one is free, which others it has, and the rule with another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bandpo.errors import UserError
from bandpo.trust_regions.base import Region, places


def free_number(region: Region) -> tuple[str, ...]:
    """Return the fields that are one number, unless others are named; UserError where that is not clear."""
    if region.free:
        return region.free
    numbers = numbers_of(region)
    raise UserError(f"{region.label} has {len(numbers)} numbers, {numbers}; name the one to find (--parameter)")


def numbers_of(region: Region) -> list[str]:
    """List the fields that are numbers, those of rules within too, as `region.delta`."""
    found: list[str] = []
    for place, value in places(region):
        found += [place] if isinstance(value, float) else []
        found += [f"{place}.{name}" for name in numbers_of(value)] if isinstance(value, Region) else []
    return found


def with_number(region: Region, names: Sequence[str], value: float) -> Region:
    """Return the rule with that number in these fields."""
    for name in names:
        region = _put(region, name.split("."), value)
    return region


def _put(thing: Any, path: list[str], value: float) -> Any:
    if not path:
        return value
    head, *rest = path
    if isinstance(thing, tuple):
        return tuple(_put(each, rest, value) if str(i) == head else each for i, each in enumerate(thing))
    return dataclasses.replace(thing, **{head: _put(getattr(thing, head), rest, value)})
