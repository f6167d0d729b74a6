"""research/measurements/prefix_drift.py: its worlds, and what a denominator is."""

import re

import numpy as np
import pytest
import torch
from scripts import ROOT

from research.grid import difference
from research.measurements import prefix_drift
from research.measurements.prefix_drift import DENOMINATORS, GROUP, chosen, draw, logps_of, make_world, train


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
    assert (visits > world.enough[:, None]).float().mean(1).max() < 0.04  # drawn anew; many visit as often


def test_fresh_samples_have_one_denominator_and_old_ones_several(monkeypatch):
    monkeypatch.setattr(prefix_drift, "ROUNDS", 3)
    world = make_world(6, seeds=2)
    fresh, old = ([train(world, 6, age, each, "no clip", 0.5)["entropy"] for each in DENOMINATORS] for age in (0, 1))
    assert all(torch.equal(each, fresh[0]) for each in fresh)
    assert len({tuple(each.tolist()) for each in old}) == len(DENOMINATORS)


def test_the_page_has_the_differences_of_the_rows():
    rewards = {key: np.array(row["rewards"].split(), float) for key, row in chosen().items()}
    paragraph = re.search(
        r"world whose prefixes drift.*?\n\n", (ROOT / "research/pages/others.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert paragraph
    pairs = re.findall(r"(-?0\.\d+) ± (0\.\d+)", paragraph[0])
    grpo, none = "GRPO 0.2/0.2", "no clip"
    better = (("trainer", "sampler", grpo), ("trainer + TIS", "trainer", grpo), ("trainer + TIS", "trainer", none),
              ("trainer", "sampler", "Band-KL 0.05"))  # fmt: skip
    cells = [(one, other, rule, length) for one, other, rule in better for length in ("16", "64")]
    assert len(pairs) == len(cells)
    for (gap, half), (one, other, rule, length) in zip(pairs, cells, strict=True):
        ours, theirs = (rewards[length, "4", each, rule] for each in (one, other))
        assert (float(gap), float(half)) == pytest.approx(difference(ours, theirs)[:2], abs=0.0051)
    report = (ROOT / "docs/report/index.md").read_text(encoding="utf-8")
    short, long, *_ = pairs
    assert f"than to the trainer: by {' ± '.join(short)} (answers of 16 tokens) and {' ± '.join(long)} (64)" in report
