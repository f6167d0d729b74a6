"""Define a trust region: a rule that makes `Bounds` of old log-probabilities.

A rule is a frozen dataclass of plain data, so that it is also its node in a config file: `Band("kl", 0.05)` is
`{type: band, divergence: kl, delta: 0.05}`. A rule answers for itself: its label, what it requires, its branches.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import Tensor

from ..bounds import Bounds
from ..numerics import check_old_logps, listed, without_looking

__all__ = ["Context", "Region"]

EXAMPLE = "; a rule is written Band('kl', 0.05) or Clip(0.2, 0.28), as text band:kl:0.05 or clip:0.2:0.28"


@dataclass(frozen=True, eq=False)
class Context:
    """Hold what a rule may see of a batch besides the old log-probabilities. The loss makes it.

    Attributes:
        response_mask: (B, T), True at the tokens of the response.
        advantages: (B, T) or (B, 1).
        extra: what rules of your own need by other names, numbers or tensors, (B, T) or (B, 1).
    """

    response_mask: Tensor | None = None
    advantages: Tensor | None = None
    # dict[str, Any] is what torch.compile cannot call.
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]

    def require(self, name: str, rule: Node) -> Any:
        """Return a field, or what `extra` has by that name.

        Raises ValueError if it was not filled or is not in the rule's `required`.
        """
        kind = type(rule).__name__
        if name not in rule.required:
            raise ValueError(
                f"{kind} asks for {name}; write required: ClassVar[tuple[str, ...]] = ({name!r},)"
            )
        value = self.extra.get(name, getattr(self, name, None))
        if value is None:
            what = f"{name}=..." if hasattr(self, name) else f"extra={{{name!r}: ...}}"
            raise ValueError(
                f"{kind} needs {name}, which was not given; pass {what} to policy_loss, or a Context({what})"
            )
        return value


class Node:
    """Make a frozen dataclass a config node too, if it has a `kind`. The kind is its `type` in a config file.

    The kind is known once the class is defined. In another process, where it is not, `module:Class` is the type, which
    `to_config` writes. `required` names what it asks of `Context`, `valid_range` the intervals of its
    numbers, such as "[0, 1)", `label_format` its label with fields in braces.
    """

    required: ClassVar[tuple[str, ...]] = ()
    valid_range: ClassVar[Mapping[str, str]] = {}
    label_format: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    family: ClassVar[str]
    kinds: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, *, family: str = "") -> None:
        if family:
            cls.family, cls.kinds = family, {}
        if ABC in cls.__bases__:  # a family, or what stands between it and its kinds
            return
        members = {name for base in cls.__mro__[1:] if ABC in base.__bases__ for name in dir(base)}
        annotations = vars(cls).get("__annotations__", {})
        hidden = members.intersection(
            name for name, of in annotations.items() if "ClassVar" not in str(of)
        )
        if hidden:
            raise TypeError(
                f"field {min(hidden)!r} of {cls.__qualname__} hides what every {cls.family} has by that name; rename "
                "it, or annotate it as ClassVar"
            )
        taken = cls.kinds.get(cls.kind, cls)
        if (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"kind {cls.kind!r} of {cls.__qualname__} is taken by {taken.__qualname__}")
        if cls.kind:
            cls.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        """Check the fields that are rules, and the numbers that have limits. Raises ValueError."""
        for field in dataclasses.fields(cast(Any, self)):
            if holds_rule(field):
                check_part(self, field.name)
        check_numbers(self, self.valid_range)

    @property
    def label(self) -> str:
        """Return the name in tables and legends. It is `label_format` with its fields, or else as `Wide 0.2`."""
        shown = {name: _shown(getattr(self, name)) for name in init_fields(self)}
        return self.label_format.format(**shown) or " ".join([type(self).__name__, *shown.values()])

    def to_config(self) -> dict[str, Any]:
        """Return the YAML node, `type` and the fields. Raises ValueError for what has no name in YAML."""
        cls = type(self)
        if not cls.kind:
            raise ValueError(f"{cls.__name__} has no config node; give it a kind: ClassVar[str] = ...")
        is_hidden = cls.__module__.startswith(("bandpo.", "__main__")) or "." in cls.__qualname__
        return node_of(self, self.kind if is_hidden else f"{cls.__module__}:{cls.__qualname__}")


def holds_rule(field: dataclasses.Field[Any]) -> bool:
    """Check that the annotation of a field is `Region`."""
    return str(getattr(field.type, "__name__", field.type)).rpartition(".")[2] == "Region"


def _shown(value: Any) -> str:
    """Return the label of a rule within another one, or a plain value. A rule of rules is put in brackets."""
    if isinstance(value, tuple):
        return ", ".join(map(_shown, cast("tuple[Any, ...]", value)))
    if not isinstance(value, Node):
        return str(value)
    return (
        f"({value.label})"
        if any(isinstance(each, Node) for _, each in flat_fields(value))
        else value.label
    )


class Region(Node, ABC, family="trust region"):
    """Bound each token's log-ratio; derive from it and write `bounds`. A frozen dataclass with a `kind` has a config
    node too.

    >>> import torch, bandpo
    >>> class Wide(bandpo.Region):
    ...     def bounds(self, old_logps, context=None):
    ...         width = -0.1 * old_logps.detach()                      # of the log-ratio: rare tokens have more
    ...         return bandpo.Bounds(-width, width)
    >>> Wide().bounds(torch.tensor([-1.0, -7.0])).log_high
    tensor([0.1000, 0.7000])

    Attributes:
        sees_probability: False where bounds are the same for every old probability if those of the rules in it are.
    """

    sees_probability: ClassVar[bool] = True

    def __init_subclass__(cls, **family: str) -> None:
        super().__init_subclass__(**family)
        if "bounds" in vars(cls):
            setattr(cls, "bounds", _looking(vars(cls)["bounds"]))  # noqa: B010, which a type checker would refuse

    @abstractmethod
    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Make each token's interval of the log-ratio. It is detached, like `old_logps`, in at least float32.

        Called by itself, not by a loss, it refuses a list, a number, and log-probabilities above 1e-6.
        """

    def all_required(self) -> dict[str, str]:
        """List what it and its parts ask of `Context`. Each has the name of the rule that asks."""
        return {name: type(rule).__name__ for rule in reversed(walk(self)) for name in rule.required}

    @property
    def tunable(self) -> tuple[str, ...]:
        """Name the fields of the number that `calibrate` finds. They are the first part's, `delta`, or the only one."""
        for place, part in parts_of(self):
            return tuple(f"{place}.{each}" for each in part.tunable)
        numbers = [place for place, value in flat_fields(self) if isinstance(value, float)]
        return ("delta",) if "delta" in numbers else tuple(numbers) if len(numbers) == 1 else ()

    def branches(self) -> dict[str, Region]:
        """Name the rule that it is in each case. It is empty where it is one rule that asks for p alone."""
        return {}

    def suspicion(self) -> str:
        """Say where its numbers look like others that were meant; else nothing."""
        return next(filter(None, (part.suspicion() for _, part in parts_of(self))), "")


def _looking(bounds: Callable[..., Bounds]) -> Callable[..., Bounds]:
    """Make a class's `bounds` look at the log-probabilities first. Those of its parts do not again."""

    @functools.wraps(bounds)
    def checked(self: Region, old_logps: Tensor, *context: Any, **named: Any) -> Bounds:
        check_old_logps(old_logps)
        with without_looking():
            return bounds(self, old_logps, *context, **named)

    return checked


def walk(region: Region) -> list[Region]:
    """List the rule itself and all rules that it is made of."""
    return [region] + [each for _, part in parts_of(region) for each in walk(part)]


def depends_on_probability(region: Region) -> bool:
    """Return False if the bounds are the same for every old probability. So they are for `Clip` and what is made of it
    alone.
    """
    return any([each.sees_probability for each in walk(region)])  # no generator: the compiler reads this


def parts_of(region: Region) -> list[tuple[str, Region]]:
    """List the rules that a rule is made of, with the place of each."""
    return [(place, value) for place, value in flat_fields(region) if isinstance(value, Region)]


def flat_fields(thing: Any) -> list[tuple[str, Any]]:
    """List a dataclass's fields with their values. Those of a tuple stand one by one, as `rules.0`."""
    values = [(name, getattr(thing, name)) for name in init_fields(thing)]
    return [
        (f"{name}.{i}" if isinstance(value, tuple) else name, each)
        for name, value in values
        for i, each in enumerate(listed(value))
    ]


def init_fields(thing: Any) -> list[str]:
    """Name the fields that a dataclass is made of."""
    return (
        [field.name for field in dataclasses.fields(thing) if field.init]
        if dataclasses.is_dataclass(thing)
        else []
    )


def node_of(thing: Any, kind: str) -> dict[str, Any]:
    """Write the YAML node of a dataclass: its `type`, and fields that are not None."""
    values = {name: getattr(thing, name) for name in init_fields(thing)}
    return {"type": kind} | {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in cast("tuple[Any, ...]", value)]  # YAML has no tuples
    return value.to_config() if hasattr(value, "to_config") else value


def check_part(thing: object, name: str) -> None:
    """Check a field that holds a rule."""
    value = getattr(thing, name)
    if not isinstance(value, Region):
        raise ValueError(
            f"{name} of {type(thing).__name__} must be a trust region, got {value!r}{EXAMPLE}"
        )


def check_numbers(thing: object, intervals: Mapping[str, str]) -> None:
    """Check numeric fields. A field that is None unless set may be None."""
    for name, interval in intervals.items():
        if getattr(thing, name) is not None or getattr(type(thing), name, 0) is not None:
            check_number(thing, name, interval)


def check_number(thing: object, name: str, interval: str) -> None:
    """Check a numeric field and store it as a float. The interval is written as "[0, inf)".

    Then equal nodes are equal. A number in a string counts: "1e-3" is a number in YAML 1.2 and a string in PyYAML.
    """
    value = getattr(thing, name)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of many numbers
        number = math.nan
    low, high = map(float, interval[1:-1].split(","))
    above = low < number if interval[0] == "(" else low <= number
    if not above or not (number < high if interval[-1] == ")" else number <= high):
        raise ValueError(
            f"{name} of {type(thing).__name__} must be a number in {interval}, got {value!r}"
        )
    object.__setattr__(thing, name, number)
