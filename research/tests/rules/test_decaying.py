"""A number that falls over the steps: its shape, its graphs, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from regions import Bare

from bandpo import Band, Clip, Context, policy_loss
from bandpo.explain import explain
from bandpo.trust_regions import RIPO, Relaxed, trust_region
from research.rules.decaying import Decaying

LOG_P = torch.linspace(-12.0, -1e-3, 50)


def test_words_labels_and_cases():
    decaying = Decaying(Band("kl", 0.2), "delta", 0.02, 1000, "cosine")
    assert trust_region(decaying.to_config()) == decaying
    assert Decaying(Clip(), "eps_low", 0.05, 10).label == "GRPO 0.2/0.2, eps_low to 0.05 in 10 steps (linear)"
    text = explain(Decaying(Clip(), ("eps_low", "eps_high"), 0.05, 1000), [0.5])
    assert "GRPO 0.2/0.2 (step 0)" in text
    assert "GRPO 0.05/0.05 (from step 1000)" in text


@pytest.mark.parametrize(
    ("shape", "formula"),
    [
        ("linear", lambda t: 0.2 + (0.02 - 0.2) * t),
        ("cosine", lambda t: 0.02 + (0.2 - 0.02) * (1 + math.cos(math.pi * t)) / 2),
    ],
)
def test_decaying_follows_its_shape_from_start_to_end_and_stays(shape, formula):
    region = Decaying(Band("kl", 0.2), field="delta", end=0.02, steps=1000, shape=shape)
    for step in (0, 1, 250, 500, 999, 1000, 5000):
        now = region.at(step)
        assert now.delta == pytest.approx(formula(min(step / 1000, 1)), rel=1e-12)
        bounds, expected = region.bounds(LOG_P, Context(extra={"step": step})), now.bounds(LOG_P)
        assert torch.equal(bounds.log_high, expected.log_high)
    assert (region.at(0), region.at(1000)) == (Band("kl", 0.2), Band("kl", 0.02))
    assert region.at(-1) == region.at(0)
    with pytest.raises(ValueError, match=r"Decaying needs step"):
        region.bounds(LOG_P)


def test_decaying_can_turn_several_numbers_and_nest():
    both = Decaying(Clip(0.2, 0.4), ["eps_low", "eps_high"], end=0.1, steps=10)
    assert both.at(5) == Clip(0.15000000000000002, 0.25)
    assert both == Decaying(Clip(0.2, 0.4), ("eps_low", "eps_high"), 0.1, 10)
    assert Decaying(Clip(), ["eps_low"], 0.1, 10) == Decaying(Clip(), "eps_low", 0.1, 10)
    outer = Relaxed(both, Decaying(Band("tv", 0.3), "delta", 0.1, 10))
    logps = torch.zeros(1, 1) - 0.5
    loss, _ = policy_loss(logps, logps - 0.4, torch.ones(1), logps < 0, outer, extra={"step": 10})
    high = max(1.1, 1 + 0.1 / math.exp(-0.9))
    assert loss.item() == pytest.approx(-high, rel=1e-6)
    with pytest.raises(ValueError, match=r"Decaying needs step"):
        policy_loss(logps, logps, torch.ones(1), logps < 0, outer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Decaying(3, "delta", 0.1, 10), "region of Decaying must be a trust region, got 3"),
        (lambda: Decaying(Band(), "dleta", 0.1, 10), r"field of .* finite number of Band.*, got 'dleta'"),
        (lambda: Decaying(Band(), "divergence", 0.1, 10), "finite number of Band.*, got 'divergence'"),
        (lambda: Decaying(Clip(1.0, math.inf), "eps_high", 0.1, 10), "finite number of Clip.*, got 'eps_high'"),
        (
            lambda: Decaying(Relaxed(Band(), Clip()), "inner", 0.1, 10),
            r"finite number of Relaxed.*, got 'inner'",
        ),
        (lambda: Decaying(Bare(), "delta", 0.1, 10), r"finite number of Bare.*, got 'delta'"),
        (lambda: Decaying(Band(), [], 0.1, 10), r"field of Decaying must name a finite number of Band.*, got ''"),
        (lambda: Decaying(Band(), "delta", 0, 10), r"delta of Band must be a number in \(0, inf\), got 0.0"),
        (lambda: Decaying(Band(), "delta", math.inf, 10), r"end of Decaying must be a number in .*, got inf"),
        (lambda: Decaying(Band(), "delta", 0.1, 0), r"steps of Decaying must be a number in \[1, inf\), got 0"),
        (lambda: Decaying(Band(), "delta", 0.1, 1.5), "steps of Decaying must be an integer, got 1.5"),
        (
            lambda: Decaying(Band(), "delta", 0.1, 9, "step"),
            r"shape of Decaying must be one of \['linear', .*, got 'step'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "region",
    [
        Decaying(Band("kl", 0.2), "delta", 0.02, 1000),
        Decaying(Clip(0.2, 0.2), ["eps_low", "eps_high"], 0.02, 1000, "cosine"),
        Decaying(RIPO(), "delta", 0.02, 1000, "cosine"),
    ],
    ids=repr,
)
@pytest.mark.slow
def test_a_decaying_rule_takes_three_graphs_for_all_steps(region):
    from torch._dynamo.testing import CompileCounterWithBackend  # loads the compiler

    old = torch.linspace(-4, -0.1, 24).view(4, 6)
    moved = (old + 0.3 * torch.sin(9 * old)).clamp(max=-1e-3).requires_grad_()
    data = (moved, old, torch.tensor([1.0, -1.0, 0.5, 2.0]), torch.ones(4, 6, dtype=torch.bool))
    for function in (
        lambda step: policy_loss(*data, region, extra={"step": step})[0],
        lambda rule: policy_loss(*data, rule)[0],
    ):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        compiled = torch.compile(function, backend=counter, fullgraph=True)
        for step in range(1, 1200, 100):
            argument = step if function.__code__.co_varnames[0] == "step" else region.at(step)
            torch.testing.assert_close(compiled(argument), function(argument), rtol=1e-6, atol=0)
        assert counter.frame_count <= 3  # the first step, all others, the end
    torch._dynamo.reset()
