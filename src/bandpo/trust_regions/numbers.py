"""The numbers of a rule: which one is free, the rule with another one, and from which one on a token is inside."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..band.operator import divergence_at
from ..errors import UserError
from .base import TrustRegion
from .combinators import TRGPPO, Capped
from .notation import label_of
from .rules import DCPO, RIPO, Band, Clip


def free_number(region: TrustRegion) -> tuple[str, ...]:
    """The fields that are one number, unless others are named: `delta`, both epsilons of a symmetric clip, eps_high of
    another one; of a rule in a rule the first one's, as `region.delta`, or `regions.0.delta` in a tuple."""
    match region:
        case Band() | RIPO() | TRGPPO():
            return ("delta",)
        case Clip(low, high):
            return ("eps_low", "eps_high") if low == high else ("eps_high",)
        case DCPO():
            return ("eps_low", "eps_high")
    for field in dataclasses.fields(cast(Any, region)) if dataclasses.is_dataclass(region) else ():
        for place, inner in _rules_in(field.name, getattr(region, field.name)):
            return tuple(f"{place}.{name}" for name in free_number(inner))
    numbers = numbers_of(region)
    if len(numbers) == 1:
        return (numbers[0],)
    raise UserError(f"{label_of(region)} has {len(numbers)} numbers, {numbers}; name the one to find (--parameter)")


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


def _rules_in(name: str, value: Any) -> list[tuple[str, TrustRegion]]:
    """The rules that a field holds, with the place of each."""
    places = {f"{name}.{i}": each for i, each in enumerate(value)} if isinstance(value, tuple) else {name: value}
    return [
        (place, each) for place, each in places.items() if isinstance(each, TrustRegion) and not isinstance(each, type)
    ]


def with_number(region: TrustRegion, names: Sequence[str], value: float) -> TrustRegion:
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


def critical_number(region: TrustRegion, names: Sequence[str], log_ratio: Tensor, old: Tensor) -> Tensor | None:
    """The number from which on the rule has each token inside, where there is a formula."""
    match region, sorted(names):
        case Band(divergence=kind, delta_low=None, delta_high=None), ["delta"]:
            return divergence_at(log_ratio, old, kind)
        case Clip(), ["eps_high", "eps_low"]:
            moved = torch.expm1(log_ratio).abs()
            return torch.where(moved > 1, torch.inf, moved)  # eps_low is at most 1
        case Clip(eps_low=eps), ["eps_high"]:
            moved = torch.expm1(log_ratio)
            return torch.where(moved < -eps, torch.inf, moved.clamp(min=0))
        case RIPO(min_ratio=lowest, max_ratio=highest), ["delta"]:
            ratio = log_ratio.exp()
            allowed = (ratio >= lowest) & (ratio <= highest)
            return torch.where(allowed, old.exp() * torch.expm1(log_ratio).square(), torch.inf)
        case DCPO(max_ratio=highest), ["eps_high", "eps_low"]:
            ratio = log_ratio.exp()
            allowed = (ratio >= 0.5) & (ratio <= highest)
            return torch.where(allowed, torch.expm1(log_ratio).abs() * ratio * old.exp(), torch.inf)
        case Capped(region=inner, max_ratio=highest), inside if all(name.startswith("region.") for name in inside):
            found = critical_number(inner, [name.removeprefix("region.") for name in inside], log_ratio, old)
            return None if found is None else torch.where(log_ratio > math.log(highest), torch.inf, found)
    return None
