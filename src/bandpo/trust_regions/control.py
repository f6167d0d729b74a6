"""A radius that steers itself: `Controlled` holds a measured quantity at a target by moving a number of its rule.

Everything here is a pure function of numbers. The state is a dict of floats, so JSON: keep it in the checkpoint, and a
run goes on exactly. Where every process has the same measurements, summed over all of them, each has the same state.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch

from ..errors import nearest
from ..numerics import listed, made_to_last
from .base import Context, Law, Moving, Part, Region, check_law, check_number, check_numbers, check_region, find_one

State = dict[str, float]

# Of each quantity that can be held: whether it rises (1) or falls (-1) as the rule gets wider, and the interval in
# which a target must lie. The clip rates and cut rates are shares of tokens.
_SHARE, _AMOUNT = (0.0, 1.0), (0.0, math.inf)
MEASURES: dict[str, tuple[int, tuple[float, float]]] = {
    "clip/fraction": (-1, _SHARE),
    "clip/high_fraction": (-1, _SHARE),
    "clip/low_fraction": (-1, _SHARE),
    "clip/tail_high_share": (-1, _SHARE),
    "cut/fraction": (-1, _SHARE),
    "cut/high_fraction": (-1, _SHARE),
    "cut/low_fraction": (-1, _SHARE),
    "cut/good_tail": (-1, _SHARE),
    "entropy": (1, _AMOUNT),
    "kl_old/k1": (1, _AMOUNT),
    "kl_old/k3": (1, _AMOUNT),
    "log_ratio/p99": (1, _AMOUNT),
    "log_ratio/p01": (-1, (-math.inf, 0.0)),
}


class ControlLaw(Law, ABC):
    """How a `Controlled` rule's number answers to what was measured: `PI`, `Hysteresis`, `Quantile`, `AdaptiveKL`.

    One of your own is a frozen dataclass with a `kind` and a `step`.
    """

    def start(self, value: float) -> State:
        """What it remembers at the beginning, beside the value itself: nothing, unless it says so."""
        return {}

    @abstractmethod
    def step(self, state: State, gap: float, target: float, low: float, high: float) -> State:
        """The next state, with the new "value" in [low, high].

        Args:
            state: "value", the number in force; "measured", the smoothed measurement; and what `start` gave.
            gap: how far the measurement is from the target, positive where the rule must get wider to bring it there.
            target: |target|, to divide the gap by.
            low: the least value.
            high: the largest value.
        """


@dataclass(frozen=True)
class PI(ControlLaw):
    """Proportional and integral control of log v, v the number, with a rate limit and without windup.

    With e = gap / |target|, limited to [-1, 1] (twice the target counts as far off as anything beyond):
    log v = I + kp e, I <- I + ki e, no further than `rate` from the last log v, and within the limits of `Controlled`.
    I starts at log v. While log v is at a limit or at the rate limit, and e pushes further, I stands still (clamping,
    K. J. Astrom and T. Hagglund, PID Controllers, 1995, sec. 3.5, from memory), so that nothing has to be unwound.

    A rule that changes the measurement by the share S for each share that its number changes (a slope of S in logs) is
    brought to its target in about 1 / (ki S) steps. With the defaults, and `smoothing` 0.9, the loop is stable for S up
    to 18 where the measurement answers one step late, and up to 8 where it does so three steps late: at S = 3 both
    gains may be doubled. For another smoothing take kp = ki / (1 - smoothing), which cancels its lag, and ki S < 0.3.

    Raises ValueError unless kp >= 0, ki > 0 and both finite, and rate > 0 (inf: no limit).
    """

    kind: ClassVar[str] = "pi"
    kp: float = 0.5
    ki: float = 0.05
    rate: float = 0.1

    def __post_init__(self) -> None:
        check_number(self, "kp", 0, math.inf, open_high=True)
        check_number(self, "ki", 0, math.inf, open_low=True, open_high=True)
        check_number(self, "rate", 0, math.inf, open_low=True)

    def start(self, value: float) -> State:
        """The integral, which is log v while there is no error."""
        return {"integral": math.log(value)}

    def step(self, state: State, gap: float, target: float, low: float, high: float) -> State:
        """See the class."""
        error = _within(gap / target, -1.0, 1.0)
        last, integral = math.log(state["value"]), state["integral"] + self.ki * error
        wanted = integral + self.kp * error
        reached = _within(_within(wanted, last - self.rate, last + self.rate), math.log(low), math.log(high))
        if (wanted - reached) * error > 0:
            integral = state["integral"]
        return {**state, "value": _within(math.exp(reached), low, high), "integral": integral}


@dataclass(frozen=True)
class Hysteresis(ControlLaw):
    """Two values, the limits of `Controlled`, and a band around the target in which the last one stays.

    v = high where gap >= width |target|, v = low where gap < -width |target|, else as it was. So does FlexEC-OD
    (arXiv 2602.09782, by its authors' post): entropy at or below one threshold raises, above another lowers. Its upper
    threshold falls over the run, from the first entropy to a fifth of it, and its two sides are two rules; here the
    band is fixed, and both sides are one rule with two radii.

    Raises ValueError unless 0 < width < 1.
    """

    kind: ClassVar[str] = "hysteresis"
    width: float = 0.2

    def __post_init__(self) -> None:
        check_number(self, "width", 0, 1, open_low=True, open_high=True)

    def step(self, state: State, gap: float, target: float, low: float, high: float) -> State:
        """See the class."""
        error = gap / target
        value = high if error >= self.width else low if error < -self.width else state["value"]
        return {**state, "value": value}


@dataclass(frozen=True)
class Quantile(ControlLaw):
    """Tracking of a quantile, for a target that is a share of tokens: the number becomes the bound that this share of
    them exceeds.

    log v <- log v + gain gap, e.g. gap = clip/fraction - target, which is the Robbins-Monro step to the root of
    P(token outside the bounds of v) = target, of constant size, because the policy that makes the ratios moves too. SAT
    (arXiv 2607.18722) is where the idea is from: its bounds turn tighter beyond the 0.90 quantile of |log r| in a
    batch, taken afresh from each batch; here it is followed from step to step.

    One step widens the rule by gain times the share outside at most, and narrows it by gain times the target at most,
    which is small, so that it closes slowly. Stable while gain target S < 0.3, S as
    in `PI`, `smoothing` 0.9 and an answer within three steps.

    Raises ValueError unless gain is positive and finite.
    """

    kind: ClassVar[str] = "quantile"
    gain: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "gain", 0, math.inf, open_low=True, open_high=True)

    def step(self, state: State, gap: float, target: float, low: float, high: float) -> State:
        """See the class."""
        limited = _within(self.gain * gap, -1.0, 1.0)  # e^gap may overflow where the quantity is no share
        return {**state, "value": _within(state["value"] * math.exp(limited), low, high)}


@dataclass(frozen=True)
class AdaptiveKL(ControlLaw):
    """The classic controller of a KL coefficient, with the sign turned for a radius.

    v <- v (1 + clip(gap / |target|, -0.2, 0.2) / horizon). The coefficient of arXiv 1909.08593, read in verl, is
    multiplied by 1 + clip(KL / target - 1, -0.2, 0.2) n / horizon, n samples a step: it grows where KL is above its
    target. A radius then shrinks. Here the horizon is in optimizer steps, so its n is 1.

    One step is 0.2 / horizon at most, a share of v: with 10, 2 %. Stable while S < 0.3 horizon, S as in `PI`,
    `smoothing` 0.9 and an answer within three steps. Raises ValueError unless horizon >= 1.
    """

    kind: ClassVar[str] = "adaptive_kl"
    horizon: float = 10.0

    def __post_init__(self) -> None:
        check_number(self, "horizon", 1, math.inf, open_high=True)

    def step(self, state: State, gap: float, target: float, low: float, high: float) -> State:
        """See the class."""
        value = state["value"] * (1 + _within(gap / target, -0.2, 0.2) / self.horizon)
        return {**state, "value": _within(value, low, high)}


@dataclass(frozen=True)
class Controlled(Moving):
    """A rule of which one number moves so that a measured quantity is held at a target; needs context.controlled.

    `Controlled(Band("kl", 0.05), "delta", "clip/fraction", 0.01, PI(), low=0.005, high=0.5)` widens the band while more
    than 1 % of the tokens are outside and narrows it while fewer are. `BandPOTrainer` does all of what follows, and
    the plug-in for verl, once in an update. In a loop of one's own:

        state = rule.start()                                  # or the one of the checkpoint
        for batch in batches:
            loss, metrics = policy_loss(..., rule, controlled=rule.value(state))
            ...                                               # metrics.merge over micro-batches, all_reduce over ranks
            value, state = rule.radius(state, metrics.compute())

    What a wider rule does to each quantity that can be held:

    - falls: `clip/fraction`, `clip/high_fraction`, `clip/low_fraction`, `cut/fraction`, `cut/high_fraction`,
      `cut/low_fraction`, `cut/good_tail`, shares of tokens that fewer are in when fewer are outside; and
      `clip/tail_high_share`, where the rule frees the tail above, as `eps_high` and a band do;
    - rises: `kl_old/k1`, `kl_old/k3`, `log_ratio/p99`, as far as the policy has tokens to move; and `entropy`, where
      the upper bound is what keeps rare tokens rare (arXiv 2503.14476). `log_ratio/p01` is negative and falls.

    These are what is expected; only for the shares outside it is so by construction, and only at a given policy. The
    quantiles are known to within 25 % (`Metrics.compute`), and are held to that.

    The first optimizer step on a batch has ratio 1: nothing is clipped, and nothing has moved. That is why measurements
    are smoothed, over 1 / (1 - smoothing) steps; with more optimizer steps a batch than that, take more.

    Args:
        region: the rule; its number is the one in force at the beginning.
        parameter: the name of its number, or several that are equal and stay so: `["eps_low", "eps_high"]`.
        measure: the quantity, a name of `Metrics.compute`, one of those above.
        target: what it is held at; a share in (0, 1), a positive entropy, KL or `log_ratio/p99`, a negative
            `log_ratio/p01`.
        law: how: `PI`, `Hysteresis`, `Quantile`, `AdaptiveKL` or one of your own, see `ControlLaw`.
        low: the least value of the number, positive.
        high: its largest value.
        smoothing: how much of the last smoothed measurement is kept in the next one, in [0, 1); it starts at the
            target. A measurement that is missing or not finite changes nothing at all.

    Raises:
        ValueError: a number that does not go with the others; a quantity that is none of those above; a rule that is
            not wider at `high` than at `low` (where its bounds depend on nothing but the old probability: else that is
            not known).
    """

    kind: ClassVar[str] = "controlled"
    needs: ClassVar[tuple[str, ...]] = ("controlled",)
    sees_probability: ClassVar[bool] = False
    region: Region
    parameter: str | tuple[str, ...]
    measure: str
    target: float
    law: ControlLaw
    low: float
    high: float
    smoothing: float = 0.9

    def __post_init__(self) -> None:
        check_region(self, "region")
        check_law(self, ControlLaw)
        if self.measure not in MEASURES:
            raise ValueError(
                f"measure of Controlled must be one of {list(MEASURES)}, got {self.measure!r}"
                f"{nearest(str(self.measure), list(MEASURES))}"
            )
        least, most = MEASURES[self.measure][1]
        check_number(self, "target", least, most, open_low=True, open_high=True)
        check_number(self, "low", 0, math.inf, open_low=True, open_high=True)
        check_number(self, "high", self.low, math.inf, open_low=True, open_high=True)
        check_number(self, "smoothing", 0, 1, open_high=True)
        starts = check_numbers(self, "parameter", self.region)
        if len(set(starts.values())) > 1:
            raise ValueError(f"the numbers that Controlled moves together must be equal to begin with, got {starts}")
        if not self.low <= self._first <= self.high:
            raise ValueError(
                f"{self.parameter} of {self.region!r} must be in [low, high] = [{self.low:g}, {self.high:g}], where "
                "Controlled begins"
            )
        self._check_widens()

    @property
    def _first(self) -> float:
        return getattr(self.region, listed(self.parameter)[0])

    def _check_widens(self) -> None:
        narrow, wide = self.at(self.low), self.at(self.high)
        try:
            with made_to_last():
                log_p = torch.linspace(-8, 0, 33)
                a, b = narrow.bounds(log_p), wide.bounds(log_p)
        except ValueError:  # it needs more than the old probability
            return
        outside = (b.log_low > a.log_low) | (b.log_high < a.log_high)
        if outside.any() or not ((b.log_low < a.log_low) | (b.log_high > a.log_high)).any():
            raise ValueError(
                f"parameter of Controlled must name a number that makes {self.region!r} wider when it grows, got "
                f"{self.parameter!r}"
            )

    def at(self, value: float) -> Region:
        """The rule in force when its number is `value`; ValueError if that is outside [low, high]."""
        if not self.low <= value <= self.high:
            raise ValueError(f"controlled must be in [{self.low:g}, {self.high:g}] for {self!r}, got {value!r}")
        return dataclasses.replace(cast(Any, self.region), **dict.fromkeys(listed(self.parameter), value))

    def in_force(self, context: Context) -> Region:
        """That of context.controlled."""
        return self.at(context.require("controlled", self))

    @property
    def label(self) -> str:
        """The rule, its numbers, and what holds them."""
        slowly = f", smoothing {self.smoothing}" if self.smoothing != Controlled.smoothing else ""
        held = f"for {self.measure} {self.target} ({self.law.label}{slowly})"
        return f"{self.region.label}, {', '.join(listed(self.parameter))} in {self.low}..{self.high} {held}"

    def cases(self) -> list[Part]:
        """At both limits."""
        names = " = ".join(listed(self.parameter))
        return [Part(f"at {names} = {value:g}", self.at(value)) for value in (self.low, self.high)]

    def start(self) -> State:
        """The state at the beginning, of floats: "value", "measured" and what the law remembers."""
        return {"value": self._first, "measured": self.target, **self.law.start(self._first)}

    def value(self, state: Mapping[str, float]) -> float:
        """The number that a state has in force; ValueError for the state of another law."""
        if state.keys() != (wanted := self.start()).keys():
            raise ValueError(f"the state of {self!r} must have {list(wanted)}, got {list(state)}")
        if not self.low <= state["value"] <= self.high:
            raise ValueError(f"the value of a state of {self!r} must be in [low, high], got {state['value']!r}")
        return state["value"]

    def radius(self, state: Mapping[str, float], measurements: Mapping[str, float]) -> tuple[float, State]:
        """The number for the next optimizer step, and the state after this one, of what was measured in it
        (`Metrics.compute()`, over all micro-batches and ranks)."""
        self.value(state)
        if measurements and self.measure not in measurements:
            raise ValueError(f"measurements must have {self.measure!r}, which {self!r} holds, got {list(measurements)}")
        found, after = measurements.get(self.measure, math.nan), dict(state)
        if math.isfinite(found):
            after["measured"] += (1 - self.smoothing) * (found - after["measured"])
            gap = MEASURES[self.measure][0] * (self.target - after["measured"])
            after = self.law.step(after, gap, abs(self.target), self.low, self.high)
        return after["value"], after


def controlled_of(region: Region) -> Controlled | None:
    """The `Controlled` in a rule that is made of rules, or None; ValueError for two, because there is one number."""
    return find_one(region, Controlled)


def _within(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)
