"""Simulated plants for laws that steer a radius: what is measured falls with the radius, late and noisily."""

import math
import random
from dataclasses import dataclass

import numpy as np


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
