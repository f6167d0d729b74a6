"""Steer a number of a rule by a number that is logged, outside of the loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar, cast

__all__ = ["Controller"]

Rule = TypeVar("Rule")


@dataclass(eq=False)
class Controller:
    """Hold a logged number at a target by moving a number of a rule after each batch.

    >>> import bandpo
    >>> controller = bandpo.Controller("eps_high", "entropy", 0.3, low=0.1, high=1.0, smoothing=0.0)
    >>> rule = bandpo.Clip(0.2, 0.28)
    >>> rule = controller.step(rule, {"entropy": 0.2})                # below its target: more room above
    >>> f"{rule.eps_high:.3f}"
    '0.289'

    It is an integral controller in log v, v <- v exp(gain e), with v kept in [low, high] and the error
    e = (target - measured) / |target| in [-1, 1]: v moves by at most the share `gain` in a step. What is measured is
    smoothed over 1 / (1 - smoothing) batches, because the first optimizer step on a batch has ratio 1 and clips no
    token. A number that is NaN or infinite changes nothing.

    Args:
        path: the field of the rule, such as "delta"; of a rule in a rule "region.delta", of an objective
            "trust_region.delta"; or several that are moved together, `("eps_low", "eps_high")`.
        measure: the name of what is logged, such as "entropy" or "clip/fraction".
        target: the value to hold, not 0.
        low: the least value of the field, positive.
        high: its largest value.
        gain: see above; negative where the measure falls as the field grows, as the share of clipped tokens does.
        smoothing: how much of the last smoothed measurement is kept in the next one, in [0, 1).

    Raises ValueError for a number that is not allowed.

    The state is two numbers. Keep `state_dict()` in the checkpoint, and a run goes on exactly:

    >>> other = bandpo.Controller("eps_high", "entropy", 0.3, low=0.1, high=1.0, smoothing=0.0)
    >>> other.load_state_dict(controller.state_dict())
    >>> other.begin(bandpo.Clip(0.2, 0.28)) == rule
    True
    """

    path: str | tuple[str, ...]
    measure: str
    target: float
    _: KW_ONLY
    low: float
    high: float
    gain: float = 0.1
    smoothing: float = 0.9

    def __post_init__(self) -> None:
        limits = {
            "low": (self.low > 0, "positive"),
            "high": (self.low < self.high < math.inf, f"finite, and above low = {self.low!r}"),
            "target": (math.isfinite(self.target) and self.target != 0, "finite and not 0"),
            "gain": (math.isfinite(self.gain) and self.gain != 0, "finite and not 0"),
            "smoothing": (0 <= self.smoothing < 1, "in [0, 1)"),
        }
        for name, (holds, allowed) in limits.items():
            if not holds:
                raise ValueError(f"{name} of Controller must be {allowed}, got {getattr(self, name)!r}")
        self.paths = (self.path,) if isinstance(self.path, str) else tuple(self.path)
        self.value: float | None = None  # before the first step: that of the rule
        self.measured = float(self.target)

    def step(self, rule: Rule, numbers: Mapping[str, float]) -> Rule:
        """Return the rule for the next batch. `numbers` are those of the last one, such as `Metrics.compute()`.

        Raises ValueError for a rule whose field is not in [low, high] to begin with, and without the measure.
        """
        self.begin(rule)
        if self.measure not in numbers:
            raise ValueError(
                f"numbers must have {self.measure!r}, which the Controller holds, got {list(numbers)}"
            )
        number = numbers[self.measure]
        if math.isfinite(number):
            self.measured += (1 - self.smoothing) * (number - self.measured)
            error = (self.target - self.measured) / abs(self.target)
            moved = cast(float, self.value) * math.exp(self.gain * min(max(error, -1.0), 1.0))
            self.value = min(max(moved, self.low), self.high)
        return self.begin(rule)

    def begin(self, rule: Rule) -> Rule:
        """Return the rule with the value in force, which in a new run is its own."""
        if self.value is None:
            values = {path: number_at(rule, path) for path in self.paths}
            first = values[self.paths[0]]
            if {*values.values()} != {first} or not self.low <= first <= self.high:
                raise ValueError(
                    f"a Controller must begin with one number in [{self.low:g}, {self.high:g}], "
                    f"got {values} of {rule!r}"
                )
            for value in (self.low, self.high):
                replace_number(rule, self.paths, value)  # ValueError where the rule may not have it
            self.value = first
        return replace_number(rule, self.paths, self.value)

    def state_dict(self) -> dict[str, float | None]:
        """Return the state, which JSON keeps exactly."""
        return {"value": self.value, "measured": self.measured}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Go on from a state. Raises ValueError for one that is not of this controller."""
        value, measured = state.get("value"), state.get("measured")
        if measured is None or not (value is None or self.low <= value <= self.high):
            raise ValueError(
                f"the state of a Controller must have a value in [low, high], got {dict(state)}"
            )
        self.value, self.measured = value, measured


def number_at(rule: Any, path: str) -> float:
    """Return the number in a field, `region.delta` for that of a rule in a rule."""
    value = rule
    for name in path.split("."):
        value = (
            value[int(name)]
            if isinstance(value, tuple) and name.isdigit()
            else getattr(value, name, None)
        )
    if not isinstance(value, float):
        raise ValueError(f"{path!r} must name a number of {rule!r}, got {value!r}")
    return value


def replace_number(rule: Rule, paths: Sequence[str], value: float) -> Rule:
    """Return the rule with another number in these fields. Rules in a tuple are `rules.0`."""
    for path in paths:
        rule = _replaced(rule, path.split("."), value)
    return rule


def _replaced(thing: Any, names: list[str], value: float) -> Any:
    if not names:
        return value
    first, *rest = names
    if isinstance(thing, tuple):
        parts = enumerate(cast("tuple[Any, ...]", thing))
        return tuple(_replaced(each, rest, value) if str(i) == first else each for i, each in parts)
    return dataclasses.replace(thing, **{first: _replaced(getattr(thing, first), rest, value)})
