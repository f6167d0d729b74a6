"""Measure how far a sampler with rounded logits is from its trainer in the calibrated world (sampler.csv).

    python -m research.measurements.sampler    half a minute

Of the tokens that were drawn, as trainers log it: the mean of |log pi_trainer - log pi_sampler|, KL(sampler || trainer)
of their states in nats, and the percent of tokens at which TIS truncates (ratio above 2) and which IcePop masks (ratio
outside [0.5, 5]). No clip at a rate of 0.06, old log-probabilities from the trainer, two seeds of the search.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from research.bench import read_contest
from research.csv_rows import write_rows
from research.worlds import Learner, make_world, reference, scene
from research.worlds.rounds import Trace
from research.worlds.world import sample

CSV = Path(__file__).with_suffix(".csv")
CONTEST = Path(__file__).parents[1] / "contests" / "reuse_sampler.yaml"
COLUMNS = ("sampler", "rounds", "difference", "kl", "percent_above_2", "percent_outside")


class _Run(reference._Run):  # pyright: ignore[reportPrivateUsage]
    found: list[Any]

    def learn(self, round: int, old: Any, drawn: Any) -> None:
        batch = sample(self.world, self.index, drawn, round)
        states, tokens = batch.states[batch.mask], batch.tokens[batch.mask]
        log_ratio = (old - drawn)[states, tokens]
        ratio, kl = np.exp(log_ratio), (np.exp(drawn) * (drawn - old)).sum(-1)[states]
        outside = (ratio < 0.5) | (ratio > 5)
        self.found.append([np.abs(log_ratio).mean(), kl.mean(), 100 * (ratio > 2).mean(), 100 * outside.mean()])
        super().learn(round, old, drawn)


def measured(world: Any, seeds: range) -> np.ndarray:
    """(seeds, rounds, 4): the four numbers of each round."""
    chosen, runs = scene(world), []
    for index in seeds:
        learner = Learner("no-clip", 0.06, anchor="trainer")
        run = _Run(make_world(chosen, seeds), learner, index, Trace.empty(chosen, 1), 0)
        run.found = []
        run.train()
        runs.append(run.found)
    return np.array(runs)


def main() -> None:
    rows = []
    for world in read_contest(CONTEST).worlds:
        found = measured(world, range(2))
        for name, some in (("first", found[:, :1]), ("all", found)):
            numbers = [f"{x:.2g}" for x in some.mean((0, 1))]
            rows.append(dict(zip(COLUMNS, (scene(world).sampler, name, *numbers), strict=True)))
    write_rows(CSV, rows)


if __name__ == "__main__":
    main()
