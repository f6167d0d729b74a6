"""A contest of a few runs, and worlds that answer at once."""

import math
import os
import signal
from typing import Any

import numpy as np
import yaml

import bandpo

SMALL = """
name: small
worlds: [rare and noisy]
baseline: clip
learning_rates: [0.01, 0.02, 0.04]
stages:
  search: {first: 0, count: 4}
  choose: {first: 100, count: 6, best: 3}
  judge: {first: 1000, count: 40}
families:
  - name: clip
    objective: {type: clip, eps_low: 0.2, eps_high: $up}
    grid: {up: [0.1, 0.2, 0.4, 0.8, 1.6]}
  - name: band
    objective: {type: band, divergence: kl, delta: $delta}
    grid: {delta: {from: 0.001, to: 0.1, count: 5}}
"""


def node_of(**changes: Any) -> dict[str, Any]:
    node = yaml.safe_load(SMALL.replace(", best: 3", "").replace("judge:", "best: 3\n  judge:"))
    return {**node, **changes}


def killed(*tasks: Any) -> None:
    """In the place of what a worker does: its process is killed at it."""
    os.kill(os.getpid(), signal.SIGKILL)


class FakeWorlds:
    """A `train` whose runs are best at up = .4 or delta = .01 and learning rate .02, with noise by seed and world."""

    def __init__(self) -> None:
        self.runs: list[tuple[Any, ...]] = []
        self.stop_after: int | None = None
        self.band = 0.0  # how much better bands are
        self.best_up = 0.4
        self.noise = 0.01  # of each run alone

    def train(self, scene: Any, learners: Any, seeds: Any, **_: Any) -> dict[str, Any]:
        results = {name: np.empty((len(learners), len(seeds))) for name in ("final", "mean", "half", "work")}
        for i, learner in enumerate(learners):
            region: Any = learner.objective.trust_region
            if isinstance(region, bandpo.BySign):
                region = region.positive
            x, best = (region.delta, 0.01) if isinstance(region, bandpo.Band) else (region.eps_high, self.best_up)
            base = 0.8 - 0.05 * math.log(x / best) ** 2 - 0.05 * math.log(learner.learning_rate / 0.02) ** 2
            base += self.band * isinstance(region, bandpo.Band) + 0.1 * (learner.positive_weight != 1)
            for j, seed in enumerate(seeds):
                if self.stop_after is not None and len(self.runs) >= self.stop_after:
                    raise KeyboardInterrupt
                self.runs.append((scene, learner, seed))
                own = np.random.default_rng([seed, int(1e6 * x), int(1e6 * learner.learning_rate)]).normal()
                shared = np.random.default_rng([seed, int(1000 * scene.flip)]).normal()
                value = base + 0.05 * shared + self.noise * own
                results["final"][i, j], results["mean"][i, j] = value, value / 2
                results["half"][i, j], results["work"][i, j] = (20, 0.9) if value > 0.5 else (65, 0.01)
        return results
