"""A controlled rule in TRL: its number is moved by each optimizer step, and a run that goes on goes on with it."""

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from test_trl import Recording, build, full, history, join, leave, same_weights, train

import tiny
from bandpo import Band, Capped, Controlled, Objective, policy_loss
from bandpo.integrations import HOSTS, objective_for
from bandpo.integrations.trl import MAIN_METRICS, BandPOConfig, BandPOTrainer
from bandpo.losses.metrics import Metrics
from bandpo.trust_regions import ControlLaw
from research.rules.laws import PI, AdaptiveKL, Hysteresis

RULE = Controlled(Band("kl", 0.05), "delta", "clip/fraction", 0.4, PI(0.5, 0.2, 0.3), 0.001, 1.0, smoothing=0.5)
MASKED = Objective(Capped(RULE, 20.0), apply="mask")


def rows(trainer, name="value"):
    key = f"bandpo/controlled/{name}"
    return [row[key] for row in trainer.state.log_history if key in row and "loss" in row]


def measured(records, region):
    """The metrics of micro-batches that a trainer recorded, under a region, by `policy_loss`."""
    names = ("old_per_token_logps", "advantages", "completion_mask")
    batches = [(logps.detach(), *(inputs[name] for name in names)) for inputs, logps, _ in records]
    # The first use of a batch is on policy, without stored log-probabilities.
    batches = [(new, new if old is None else old, a, mask.bool()) for new, old, a, mask in batches]
    return reduce(Metrics.merge, [policy_loss(*batch, region)[1] for batch in batches])


@pytest.mark.parametrize("given", [RULE, MASKED], ids=["clamp", "mask"])
def test_each_step_moves_the_number_by_what_was_measured_in_it(tmp_path, given):
    # Two micro-batches a step.
    trainer = build(Recording, tiny.settings(tmp_path, gradient_accumulation_steps=2, max_steps=8), given)
    trainer.train()
    state, value = RULE.start(), 0.05
    values, sums = [], []
    for step in range(8):
        region = Band("kl", value) if given is RULE else Capped(Band("kl", value), 20.0)
        found = measured(trainer.records[2 * step : 2 * step + 2], region).compute()
        values.append(value)
        value, state = RULE.radius(state, found)
        sums.append(state["integral"])
    assert rows(trainer) == values
    assert rows(trainer, "integral") == sums
    assert len(set(values)) > 6
    assert trainer._controller.state == state
    assert not {f"bandpo/{name}" for name in MAIN_METRICS} - trainer.state.log_history[2].keys()


@dataclass(frozen=True)
class Still(ControlLaw):
    """Never moves."""

    kind: ClassVar[str] = "still_of_tests"

    def step(self, state, gap, target, low, high):
        return state


def test_a_law_that_never_moves_is_the_fixed_rule_bit_for_bit(tmp_path):
    still = Controlled(Band("kl", 0.05), "delta", "clip/fraction", 0.05, Still(), 0.01, 1.0)
    fixed = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), Band("kl", 0.05))
    ours = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), still)
    assert history(ours) == history(fixed)
    assert same_weights(ours, fixed)
    assert rows(ours) == [0.05] * 8
    assert not rows(fixed)
    moving = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), RULE)
    assert not same_weights(moving, fixed)


def test_an_evaluation_moves_nothing(tmp_path):
    settings = {"max_steps": 8, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 16}
    args = tiny.settings(tmp_path, **settings)
    evaluated = build(Recording, args, RULE, eval_dataset=tiny.rows(4))
    evaluated.train()
    state = evaluated._controller.state
    evaluated.evaluate()
    assert evaluated._controller.state == state
    training = [record for record in evaluated.records if record[1].requires_grad]
    value, again = 0.05, RULE.start()
    for record in training:
        value, again = RULE.radius(again, measured([record], Band("kl", value)).compute())
    assert again == state


def test_a_row_of_several_steps_has_the_last_ones(tmp_path):
    every = train(BandPOTrainer, full(tmp_path, max_steps=8), RULE)
    third = train(BandPOTrainer, full(tmp_path, max_steps=8, logging_steps=4), RULE)
    assert rows(third) == [rows(every)[3], rows(every)[7]]
    assert same_weights(every, third)


SAVING = {"save_strategy": "steps", "save_steps": 8, "max_steps": 16}


@pytest.mark.slow
@pytest.mark.parametrize("law", [PI(0.5, 0.2, 0.3), Hysteresis(), AdaptiveKL(1.0)], ids=lambda law: law.kind)
def test_a_run_that_goes_on_from_a_checkpoint_is_exact(tmp_path, law):
    rule = Controlled(Band("kl", 0.05), "delta", "clip/fraction", 0.4, law, 0.001, 1.0, smoothing=0.5)
    args = tiny.settings(tmp_path / "whole", BandPOConfig, trust_region=rule.to_config(), **SAVING)
    whole, first = train(BandPOTrainer, args), build(BandPOTrainer, args)
    checkpoint = tmp_path / "whole" / "checkpoint-8"
    kept = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["bandpo_controlled"]
    assert kept["state"]["value"] == rows(whole)[8]
    first.train(resume_from_checkpoint=str(checkpoint))
    assert rows(first) == rows(whole)
    assert same_weights(first, whole)
    assert [list(row) for row in first.state.log_history[8:16]] == [list(row) for row in whole.state.log_history[8:16]]


def test_a_checkpoint_without_the_state_is_refused(tmp_path):
    args = tiny.settings(tmp_path, save_strategy="steps", save_steps=8, max_steps=8)
    train(BandPOTrainer, args, Band("kl", 0.05))
    checkpoint = str(tmp_path / "checkpoint-8")
    args = tiny.settings(tmp_path, max_steps=10)
    with pytest.raises(ValueError, match="the checkpoint of step 8 has no state of a controlled rule"):
        build(BandPOTrainer, args, RULE).train(resume_from_checkpoint=checkpoint)
    path = Path(checkpoint) / "trainer_state.json"
    state = json.loads(path.read_text())
    state["stateful_callbacks"]["bandpo_controlled"] = kept = {"rule": repr(RULE), "step": 8}
    kept["state"] = {"value": 0.05, "measured": 0.05}
    path.write_text(json.dumps(state))
    with pytest.raises(ValueError, match=r"the state of Controlled.* must have \['value', 'measured', 'integral'\]"):
        build(BandPOTrainer, args, RULE).train(resume_from_checkpoint=checkpoint)


def test_training_again_begins_again(tmp_path):
    trainer = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=4), RULE)
    assert rows(trainer)[0] == 0.05
    assert trainer._controller.value != 0.05
    trainer.train()
    assert rows(trainer)[0] == 0.05


def test_trainers_without_a_controller_refuse_it_by_name():
    for host in HOSTS:
        if host in ("TRL", "axolotl", "verl"):
            assert objective_for(host, RULE).trust_region == RULE
            assert objective_for(host, MASKED) == MASKED
        else:
            message = rf"Controlled needs context\.controlled, which {host} does not show a rule; .* TRL"
            with pytest.raises(ValueError, match=message):
                objective_for(host, RULE)


def one_of_two_processes(rank, folder):
    join(rank, folder)
    args = full(folder, max_steps=8, per_device_train_batch_size=8, ddp_find_unused_parameters=False)
    trainer = build(Recording, args, RULE)
    trainer.train()
    own, value, state = [], 0.05, RULE.start()
    for record in trainer.records:  # what this process alone would have made of its own half
        own.append(value)
        value, state = RULE.radius(state, measured([record], Band("kl", value)).compute())
    torch.save((rows(trainer), trainer._controller.state, own), Path(folder) / f"{rank}.pt")
    leave()


@pytest.mark.slow
def test_two_processes_hold_the_same_state(tmp_path):
    torch.multiprocessing.spawn(one_of_two_processes, (str(tmp_path),), nprocs=2)
    (values, state, own), (_, other, others) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert state == other
    assert state["value"] != 0.05
    assert len(set(values)) > 6
    assert own != others  # what each measured differs
