"""Simulated plants for laws that steer a radius: what is measured falls with the radius, late and noisily."""

import json
import math
import random
from dataclasses import dataclass

import numpy as np
import pytest


@dataclass
class Plant:
    """A clip rate that falls with the radius: a sigmoid of its logarithm, 0.02 at `at`, seen `late` steps later among
    `tokens` tokens (0: without noise)."""

    at: float = 0.05
    slope: float = 1.0
    late: int = 1
    tokens: int = 2000
    seed: int = 0

    def __post_init__(self):
        self.rng, self.seen = random.Random(self.seed), []

    def rate(self, value):
        middle = math.log(0.02 / 0.98) + self.slope * math.log(self.at)
        return 1 / (1 + math.exp(self.slope * math.log(value) - middle))

    def __call__(self, value):
        self.seen.append(value)
        rate = self.rate(self.seen[max(0, len(self.seen) - self.late)])
        if not self.tokens:
            return rate
        spread = math.sqrt(rate * (1 - rate) / self.tokens)
        return min(max(self.rng.gauss(rate, spread), 0.0), 1.0)


def run(rule, plant, steps, state=None):
    """The values, the measurements, and the state after them."""
    state, values, found = state or rule.start(), [], []
    for _ in range(steps):
        values.append(rule.value(state))
        found.append(plant(values[-1]))
        _, state = rule.radius(state, {rule.measure: found[-1]})
    return values, found, state


def mean(numbers):
    return sum(numbers) / len(numbers)


def largest_slope(kp, ki, smoothing, late):
    """Where the linear loop leaves the unit circle: x(k + 1) = I + kp e, e the smoothed S x, `late` steps ago."""

    def grows(slope):
        n = late + 2  # x now and before, the smoothed measurement, the integral
        step = np.zeros((n, n))
        smoothed, integral = n - 2, n - 1
        step[smoothed, smoothed], step[smoothed, late - 1] = smoothing, -(1 - smoothing) * slope
        step[integral] = ki * step[smoothed]
        step[integral, integral] += 1
        step[0] = step[integral] + kp * step[smoothed]
        for i in range(1, late):
            step[i, i - 1] = 1
        return abs(np.linalg.eigvals(step)).max() > 1

    return next(slope for slope in np.arange(0.1, 1000, 0.1) if grows(slope))


def check_missing(rule):
    """Check that a measurement that is missing or no finite number changes nothing."""
    *_, state = run(rule, Plant(at=0.2), 7)
    for found in ({}, {"clip/fraction": math.nan}, {"clip/fraction": math.inf}):
        assert rule.radius(state, found) == (state["value"], state)
    with pytest.raises(ValueError, match="measurements must have 'clip/fraction', which"):
        rule.radius(state, {"clip/count": 3.0})
    with pytest.raises(ValueError, match=r"the value of a state of .* must be in \[low, high\], got 1000"):
        rule.radius(state | {"value": 1000.0}, {})


def check_resumed(rule):
    """Check that a state that went through JSON goes on exactly, and that one that is lost does not."""
    whole, _, end = run(rule, Plant(at=0.15, seed=3), 60)
    plant = Plant(at=0.15, seed=3)
    *_, state = run(rule, plant, 25)
    assert all(type(number) is float for number in state.values())
    rest, _, again = run(rule, plant, 35, json.loads(json.dumps(state)))
    assert rest == whole[25:]
    assert again == end
    plant = Plant(at=0.15, seed=3)
    run(rule, plant, 25)
    lost, *_ = run(rule, plant, 35, rule.start())
    assert lost != whole[25:]
