"""Steer the number of a `Controlled` rule by other laws than `Quantile`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from bandpo.trust_regions.base import check_number

from .control import ControlLaw, State


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
        check_number(self, "kp", "[0, inf)")
        check_number(self, "ki", "(0, inf)")
        check_number(self, "rate", "(0, inf]")

    def start(self, value: float) -> State:
        """The integral, which is log v until there is an error."""
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
        check_number(self, "width", "(0, 1)")

    def step(self, state: State, gap: float, target: float, low: float, high: float) -> State:
        """See the class."""
        error = gap / target
        value = high if error >= self.width else low if error < -self.width else state["value"]
        return {**state, "value": value}


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
        check_number(self, "horizon", "[1, inf)")

    def step(self, state: State, gap: float, target: float, low: float, high: float) -> State:
        """See the class."""
        value = state["value"] * (1 + _within(gap / target, -0.2, 0.2) / self.horizon)
        return {**state, "value": _within(value, low, high)}


def _within(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)
