"""Let a number of a rule move so that a measured quantity is held at a target.

Everything here is a pure function of numbers. The state is a dict of floats, so JSON: keep it in the checkpoint, and a
run goes on exactly. Where every process has the same measurements, summed over all of them, each has the same state.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from bandpo.bounds import Bounds
from bandpo.errors import nearest
from bandpo.numerics import listed, outside_torch_modes
from bandpo.trust_regions.base import Context, Node, Region, check_number, check_part, init_fields, walk
from bandpo.trust_regions.nodes import read_field, read_node

__all__ = ["ControlLaw", "Controlled", "Quantile"]

State = dict[str, float]
R = TypeVar("R", bound=Region)


# Of each quantity that can be held: whether it rises (1) or falls (-1) as the rule gets wider, and the interval in
# which a target must lie. The clip rates and cut rates are shares of tokens.
_SHARES = (f"{of}/{which}" for of in ("clip", "cut") for which in ("fraction", "high_fraction", "low_fraction"))
MEASURES: dict[str, tuple[int, tuple[float, float]]] = {
    **dict.fromkeys((*_SHARES, "clip/tail_high_share", "cut/good_tail"), (-1, (0.0, 1.0))),
    **dict.fromkeys(("entropy", "kl_old/k1", "kl_old/k3", "log_ratio/p99"), (1, (0.0, math.inf))),
    "log_ratio/p01": (-1, (-math.inf, 0.0)),
}


class Law(Node, ABC, family="law"):
    """Say how a rule's number moves: by token (`TokenLaw`) or by step (`ControlLaw`)."""


def read_law(name: str, value: Any) -> Any:
    """Read a field of a rule with a law."""
    return read_node(value, Law) if name == "law" and isinstance(value, Mapping) else read_field(name, value)


def find_one(region: Region, kind: type[R]) -> R | None:
    """Find the rule of a class in a rule, itself included; None without one.

    Raises ValueError for two, because a context has one number for it.
    """
    rules = [each for each in walk(region) if isinstance(each, kind)]
    if len(rules) > 1:
        raise ValueError(f"a rule may have one {kind.__name__} in it, got {rules}")
    return rules[0] if rules else None


class ControlLaw(Law, ABC):
    """Move a `Controlled` rule's number; derive a frozen dataclass with a `kind`."""

    def start(self, value: float) -> State:
        """Return its memory at the beginning, besides the value. By default it has none."""
        return {}

    @abstractmethod
    def step(self, state: State, gap: float, target: float, low: float, high: float) -> State:
        """Return the next state, with the new "value" in [low, high].

        Args:
            state: "value", the number in force; "measured", the smoothed measurement; and what `start` gave.
            gap: how far the measurement is from the target, positive where the rule must get wider to bring it there.
            target: |target|, to divide the gap by.
            low: the least value.
            high: the largest value.
        """


@dataclass(frozen=True)
class Quantile(ControlLaw):
    """Follow a quantile, for a target that is a share of tokens. The number becomes the bound that this share exceeds.

    log v <- log v + gain gap, e.g. gap = clip/fraction - target, which is the Robbins-Monro step to the root of
    P(token outside the bounds of v) = target. The idea is SAT's (arXiv 2607.18722). If the measurement changes by the
    share S for each share of the number, `smoothing` is 0.9 and the answer comes within three steps, it is stable while
    gain target S < 0.3.
    """

    kind: ClassVar[str] = "quantile"
    valid_range: ClassVar[Mapping[str, str]] = {"gain": "(0, inf)"}
    gain: float = 1.0

    def step(self, state: State, gap: float, target: float, low: float, high: float) -> State:
        """Return v exp(gain gap) within the limits. The exponent is at most 1, because e^gap could overflow."""
        limited = min(max(self.gain * gap, -1.0), 1.0)
        return {**state, "value": min(max(state["value"] * math.exp(limited), low), high)}


@dataclass(frozen=True)
class Controlled(Region):
    """Move one number of a rule so that a measured quantity is held at a target. Needs extra["controlled"].

    `Controlled(Band("kl", 0.05), "delta", "clip/fraction", 0.01, Quantile(), low=0.005, high=0.5)` widens the band
    while more than 1 % of the tokens are outside and narrows it while fewer are. A loop
    begins with `state = rule.start()`, passes `extra={"controlled": rule.value(state)}` to `policy_loss`, and after
    each optimizer step takes
    `value, state = rule.radius(state, metrics.compute())`, of all its micro-batches and ranks.

    The first optimizer step on a batch has ratio 1: nothing is clipped. So measurements are smoothed, over 1 / (1 -
    smoothing) steps; with more optimizer steps a batch than that, take more. Quantiles are held to within 25 %.

    Args:
        region: the rule; its number is the one in force at the beginning.
        parameter: the name of its number, or several that are equal and stay so: `["eps_low", "eps_high"]`.
        measure: the quantity, a name of `Metrics.compute`: a share of tokens or one of those above.
        target: a share in (0, 1), a positive entropy, KL or `log_ratio/p99`, a negative `log_ratio/p01`.
        law: how: `Quantile`, or a `ControlLaw` that you wrote.
        low: the least value of the number, positive.
        high: its largest value.
        smoothing: how much of the last smoothed measurement is kept in the next one, in [0, 1); it starts at the
            target. A measurement that is missing or not finite changes nothing at all.

    Raises:
        ValueError: a number that does not go with the others; another quantity; a rule that is not wider at `high` than
            at `low`, as far as that is known from the old probability alone.
    """

    kind: ClassVar[str] = "controlled"
    label_format: ClassVar[str] = (
        "{region}, {parameter} in {low}..{high} for {measure} {target} ({law}, smoothing {smoothing})"
    )
    required: ClassVar[tuple[str, ...]] = ("controlled",)
    sees_probability: ClassVar[bool] = False
    region: Region
    parameter: str | tuple[str, ...]
    measure: str
    target: float
    law: ControlLaw
    low: float
    high: float
    smoothing: float = 0.9

    read_field = staticmethod(read_law)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_part(self, "law", of=ControlLaw)
        names = listed(self.parameter) or [""]
        object.__setattr__(self, "parameter", names[0] if len(names) == 1 else tuple(names))
        numbers = {each: x for each in init_fields(self.region) if isinstance(x := getattr(self.region, each), float)}
        for each in names:
            if not math.isfinite(numbers.get(each, math.nan)):
                raise ValueError(
                    f"parameter of Controlled must name a finite number of {type(self.region).__name__}, of "
                    f"{list(numbers)}, got {each!r}"
                )
        if self.measure not in MEASURES:
            raise ValueError(
                f"measure of Controlled must be one of {list(MEASURES)}, got {self.measure!r}"
                f"{nearest(str(self.measure), list(MEASURES))}"
            )
        least, most = MEASURES[self.measure][1]
        check_number(self, "target", f"({least:g}, {most:g})")
        check_number(self, "low", "(0, inf)")
        check_number(self, "high", f"({self.low}, inf)")
        check_number(self, "smoothing", "[0, 1)")
        starts = {each: numbers[each] for each in names}
        if len(set(starts.values())) > 1:
            raise ValueError(f"the numbers that Controlled moves together must be equal to begin with, got {starts}")
        if not self.low <= self._first <= self.high:
            raise ValueError(
                f"{self.parameter} of {self.region!r} must be in [low, high] = [{self.low:g}, {self.high:g}], where "
                "Controlled begins"
            )
        narrow, wide = self.at(self.low), self.at(self.high)
        if not narrow.all_required() and not _is_wider(wide, narrow):
            raise ValueError(
                f"parameter of Controlled must name a number that makes {self.region!r} wider when it grows, got "
                f"{self.parameter!r}"
            )

    @property
    def _first(self) -> float:
        return getattr(self.region, listed(self.parameter)[0])

    def at(self, value: float) -> Region:
        """Return the rule in force when its number is `value`. Raises ValueError outside [low, high]."""
        if not self.low <= value <= self.high:
            raise ValueError(f"controlled must be in [{self.low:g}, {self.high:g}] for {self!r}, got {value!r}")
        return dataclasses.replace(cast(Any, self.region), **dict.fromkeys(listed(self.parameter), value))

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        context = context or Context()
        return self.at(context.require("controlled", self)).bounds(old_logps, context)

    def branches(self) -> dict[str, Region]:
        names = " = ".join(listed(self.parameter))
        return {f"at {names} = {value:g}": self.at(value) for value in (self.low, self.high)}

    def start(self) -> State:
        """Return the first state, a dict of floats. It has "value", "measured" and what the law remembers."""
        return {"value": self._first, "measured": self.target, **self.law.start(self._first)}

    def value(self, state: Mapping[str, float]) -> float:
        """Return the number that a state has in force. Raises ValueError for the state of another law."""
        if state.keys() != (wanted := self.start()).keys():
            raise ValueError(f"the state of {self!r} must have {list(wanted)}, got {list(state)}")
        if not self.low <= state["value"] <= self.high:
            raise ValueError(f"the value of a state of {self!r} must be in [low, high], got {state['value']!r}")
        return state["value"]

    def radius(self, state: Mapping[str, float], measurements: Mapping[str, float]) -> tuple[float, State]:
        """Return the number for the next optimizer step, and the state after this one.

        `measurements` is what was measured in it: `Metrics.compute()`, over all micro-batches and ranks.
        """
        self.value(state)
        if measurements and self.measure not in measurements:
            raise ValueError(f"measurements must have {self.measure!r}, which {self!r} holds, got {list(measurements)}")
        found, after = measurements.get(self.measure, math.nan), dict(state)
        if math.isfinite(found):
            after["measured"] += (1 - self.smoothing) * (found - after["measured"])
            gap = MEASURES[self.measure][0] * (self.target - after["measured"])
            after = self.law.step(after, gap, abs(self.target), self.low, self.high)
        return after["value"], after


def _is_wider(wide: Region, narrow: Region) -> bool:
    with outside_torch_modes():
        log_p = torch.linspace(-8, 0, 33)
        a, b = narrow.bounds(log_p), wide.bounds(log_p)
        more = torch.stack([a.log_low - b.log_low, b.log_high - a.log_high]).nan_to_num()
    return bool((more >= 0).all() and (more > 0).any())
