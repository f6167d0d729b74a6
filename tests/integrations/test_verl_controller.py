"""The controller of a rule in verl alone, with verl's engine stood in for; with verl's own it is in tests/cluster."""

from dataclasses import replace
from functools import reduce
from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from bandpo import Band, Controlled, policy_loss
from bandpo.integrations.control import NAME
from bandpo.integrations.verl_context import Controller
from bandpo.losses.metrics import Metrics
from research.rules.laws import PI

RULE = Controlled(Band("kl", 0.001), "delta", "clip/fraction", 0.3, PI(0.5, 0.2, 0.3), 1e-5, 1.0, smoothing=0.5)


def engine_of(**contents):
    """What the controller has of verl's FSDP engine."""
    scheduler = LambdaLR(torch.optim.SGD([torch.zeros(1)], 0.1), lambda step: 1.0)
    contents = {f"checkpoint_{name}_contents": ["model", "optimizer", "extra"] for name in ("save", "load")} | contents
    return SimpleNamespace(
        lr_scheduler=scheduler, checkpoint_manager=SimpleNamespace(lr_scheduler=scheduler, **contents)
    )


def micro_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(4, 9, generator=generator)
    new = (old + torch.randn(old.shape, generator=generator) * 0.1).clamp(max=0)
    return policy_loss(new, old, torch.ones(4), torch.ones(4, 9), Band("kl", 0.001))[1]


def update(engine, seeds):
    """As one of verl's: a micro-batch per seed, and a step of the schedule."""
    controller = Controller(RULE, engine)
    for seed in seeds:
        controller.add(micro_batch(seed))
    engine.lr_scheduler.last_epoch += 1
    controller.keep()
    return getattr(engine.lr_scheduler, NAME)["state"]


@pytest.fixture
def reductions(monkeypatch):
    """How often metrics were summed over ranks; here there is another one, of one micro-batch."""
    calls = []

    def all_reduce(self, group=None):
        calls.append(group)
        return self.merge(micro_batch(99))

    monkeypatch.setattr(Metrics, "all_reduce", all_reduce)
    return calls


def test_an_update_is_one_step_of_the_law_and_one_sum_over_ranks(reductions):
    engine, state = engine_of(), RULE.start()
    for seeds in ((1, 2, 3), (4,), (5, 6)):
        expected = [micro_batch(seed) for seed in (*seeds, 99)]
        _, state = RULE.radius(state, reduce(Metrics.merge, expected).compute())
        assert update(engine, seeds) == state
    assert reductions == [None] * 3


def test_the_state_is_in_the_checkpoint_of_the_scheduler(reductions, tmp_path):
    """As verl's checkpoint manager writes and reads it, before the first update of the run that goes on."""
    whole, first, second = engine_of(), engine_of(), engine_of()
    states = [update(whole, (seed,)) for seed in range(4)]
    assert [update(first, (seed,)) for seed in range(2)] == states[:2]
    torch.save({"lr_scheduler": first.lr_scheduler.state_dict()}, tmp_path / "extra.pt")
    kept = torch.load(tmp_path / "extra.pt", weights_only=False)
    second.lr_scheduler.load_state_dict(kept["lr_scheduler"])
    assert Controller(RULE, second).value == states[1]["value"]
    assert [update(second, (seed,)) for seed in (2, 3)] == states[2:]


@pytest.mark.parametrize("name", ["save", "load"])
def test_contents_without_the_state_are_refused(name):
    engine = engine_of(**{f"checkpoint_{name}_contents": ["model", "optimizer"]})
    message = rf"actor\.checkpoint\.{name}_contents must have 'extra', .*, got \['model', 'optimizer'\]"
    with pytest.raises(ValueError, match=message):
        Controller(RULE, engine)


@pytest.mark.parametrize("before", [0, 2])
def test_a_checkpoint_of_a_run_without_a_controlled_rule_is_refused(reductions, before):
    """Also where there was one earlier, whose state verl's checkpoints carry on."""
    engine = engine_of()
    for seed in range(before):
        update(engine, (seed,))
    engine.lr_scheduler.last_epoch += 1
    with pytest.raises(ValueError, match=f"the checkpoint of step {before + 1} has no state of a controlled rule"):
        Controller(RULE, engine)


@pytest.mark.parametrize("lacking", ["lr_scheduler", "checkpoint_manager", "torch's scheduler", "this scheduler"])
def test_an_engine_whose_checkpoints_would_not_have_the_state_is_refused(lacking):
    engine = engine_of()
    if lacking == "torch's scheduler":  # Megatron's has keys of its own in its state
        engine.lr_scheduler = engine.checkpoint_manager.lr_scheduler = SimpleNamespace(state_dict=dict)
    elif lacking == "this scheduler":
        engine.checkpoint_manager.lr_scheduler = None
    else:
        delattr(engine, lacking)
    with pytest.raises(ValueError, match="needs verl's FSDP engine, whose checkpoints have its state; those of Simple"):
        Controller(RULE, engine)


def test_an_update_without_a_measurement_is_an_update():
    """As in distillation without a policy loss, which is not refused in the second update."""
    engine = engine_of()
    controller = Controller(RULE, engine)
    engine.lr_scheduler.last_epoch = 1
    controller.keep()
    again = Controller(RULE, engine)
    assert again.state == RULE.start()
    assert again.value == 0.001


def test_a_state_that_is_not_of_the_rule_is_refused():
    engine = engine_of()
    setattr(engine.lr_scheduler, NAME, {"rule": repr(RULE), "state": {"value": 0.1, "measured": 0.3}, "step": 0})
    with pytest.raises(ValueError, match=r"must have \['value', 'measured', 'integral'\], got \['value', 'measured'\]"):
        Controller(RULE, engine)
    setattr(engine.lr_scheduler, NAME, {"rule": repr(RULE), "state": RULE.start(), "step": 0})
    with pytest.raises(ValueError, match="has the state of another controlled rule"):
        Controller(replace(RULE, high=0.5), engine)
