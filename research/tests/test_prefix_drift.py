"""research/measurements/prefix_drift.py: its worlds, and what a denominator is."""

import pytest
import torch

from research.measurements import prefix_drift
from research.measurements.prefix_drift import DENOMINATORS, GROUP, draw, logps_of, make_world, train


def test_drawn_answers_follow_the_world():
    world, rng = make_world(5, seeds=2), torch.Generator().manual_seed(0)
    states, tokens, visits = draw(world, world.start, 5, 4096, rng)
    for seed in range(2):
        for answer in range(0, 4096, 512):
            state, good = states[seed, answer, 0].item(), 0
            for step in range(5):
                assert states[seed, answer, step] == state
                state = world.leads[seed, state, tokens[seed, answer, step]].item()
                good += world.good[seed, state].item()
            assert visits[seed, answer] == good
    assert (states[:, ::GROUP, 0] == states[:, GROUP - 1 :: GROUP, 0]).all()  # a group is of one prompt
    here = states[0] == states[0, 0, 0]  # all visits to one state
    chances = torch.bincount(tokens[0][here], minlength=8) / here.sum()
    logps = logps_of(world, world.start, states[0, 0, 0].expand(2, 1, 8), torch.arange(8).expand(2, 1, 8))
    assert chances == pytest.approx(logps[0, 0].exp(), abs=4 * (0.25 / here.sum().item()) ** 0.5)
    assert (visits >= world.enough[:, None]).float().mean(1).max() < 0.2


def test_fresh_samples_have_one_denominator_and_old_ones_several(monkeypatch):
    monkeypatch.setattr(prefix_drift, "ROUNDS", 3)
    world = make_world(6, seeds=2)
    fresh, old = ([train(world, 6, age, each, "no clip", 0.5)["entropy"] for each in DENOMINATORS] for age in (0, 1))
    assert all(torch.equal(each, fresh[0]) for each in fresh)
    assert len({tuple(each.tolist()) for each in old}) == len(DENOMINATORS)
