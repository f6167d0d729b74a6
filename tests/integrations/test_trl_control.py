"""A number of a rule that is steered in TRL: moved by each row of the log, and exact in a run that goes on."""

import json
from pathlib import Path

import pytest
import torch
from test_trl import Recording, build, full, history, join, leave, same_weights

import tiny
from bandpo import Band, Capped, Clip, Controller, Objective
from bandpo.integrations.trl import BandPOTrainer, ControlCallback

RULE = Band("kl", 0.05)
MASKED = Objective(Capped(RULE, 20.0), surrogate="mask")
SAVING = {"save_strategy": "steps", "save_steps": 8, "max_steps": 16}


def controller(path="delta", measure="bandpo/clip/high_fraction", target=0.05, **changes):
    return Controller(path, measure, target, **{"low": 1e-4, "high": 1.0, "gain": -0.3, "smoothing": 0.5} | changes)


def steered(args, rule=RULE, made=None, cls=BandPOTrainer, **named):
    trainer = build(cls, args, rule, **named)
    trainer.add_callback(ControlCallback(trainer, controller() if made is None else made))
    return trainer


def steps(trainer):
    return [row for row in trainer.state.log_history if "loss" in row]


def rows(trainer, name="value"):
    return [row[f"bandpo/controlled/{name}"] for row in steps(trainer)]


@pytest.mark.parametrize("path", ["delta", "region.delta"], ids=["clamp", "mask"])
def test_each_row_of_the_log_moves_the_number_for_the_next_step(tmp_path, path):
    rule = RULE if path == "delta" else MASKED
    trainer = steered(tiny.settings(tmp_path, gradient_accumulation_steps=2, max_steps=8), rule, controller(path))
    trainer.train()
    again, region = controller(path), rule if path == "delta" else rule.trust_region
    values = []
    for row in steps(trainer):
        region = again.begin(region)
        values.append(again.value)
        region = again.step(region, row)
    assert rows(trainer) == values
    assert len(set(values)) > 5
    assert trainer.trust_region == trainer.objective.trust_region == region


def test_the_loss_of_a_step_has_the_number_in_force(tmp_path):
    """A clip whose upper number is moved once trains as a run with that number from there on."""
    moved = controller("eps_high", "entropy", 0.01, low=0.05, high=0.5, gain=9.0, smoothing=0.0)
    trainer = steered(tiny.settings(tmp_path, max_steps=8), Clip(0.2, 0.2), moved, Recording)
    trainer.train()
    assert rows(trainer) == [0.2, *[0.05] * 7]  # the entropy is far above its target
    values = [record[0]["advantages"].shape for record in trainer.records]
    assert len(values) == 8
    shares = [row["bandpo/clip/high_fraction"] for row in steps(trainer)]
    narrow = build(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), Clip(0.2, 0.05))
    narrow.train()
    assert shares[:2] == [row["bandpo/clip/high_fraction"] for row in steps(narrow)][:2]  # ratio 1, then the same step
    assert max(shares[1:]) > 0


def test_a_gain_of_next_to_nothing_is_the_fixed_rule_bit_for_bit(tmp_path):
    fixed = build(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), RULE)
    fixed.train()
    still = steered(tiny.settings(tmp_path, max_steps=8), made=controller(gain=1e-300))
    still.train()
    moving = steered(tiny.settings(tmp_path, max_steps=8))
    moving.train()
    assert history(still) == history(fixed)
    assert same_weights(still, fixed)
    assert not same_weights(moving, fixed)


def test_an_evaluation_moves_nothing(tmp_path):
    settings = {"max_steps": 8, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 16}
    evaluated = steered(tiny.settings(tmp_path, **settings), eval_dataset=tiny.rows(4))
    evaluated.train()
    before = evaluated.trust_region
    evaluated.evaluate()
    assert evaluated.trust_region == before
    again, region = controller(), RULE
    for row in steps(evaluated):
        region = again.step(region, row)
    assert region == before


def test_a_run_that_goes_on_from_a_checkpoint_is_exact(tmp_path):
    args = tiny.settings(tmp_path / "whole", **SAVING)
    whole = steered(args)
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-8"
    kept = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["bandpo_controller"]
    assert kept["state"]["value"] == rows(whole)[8]
    resumed = steered(args)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert rows(resumed) == rows(whole)
    assert rows(resumed, "measured") == rows(whole, "measured")
    assert same_weights(resumed, whole)
    assert [list(row) for row in resumed.state.log_history[8:]] == [list(row) for row in whole.state.log_history[8:]]


def test_a_checkpoint_without_the_state_or_of_another_controller_is_refused(tmp_path):
    args = tiny.settings(tmp_path, save_strategy="steps", save_steps=8, max_steps=8)
    build(BandPOTrainer, args, RULE).train()
    checkpoint = str(tmp_path / "checkpoint-8")
    args = tiny.settings(tmp_path, max_steps=10)
    with pytest.raises(ValueError, match="the checkpoint of step 8 has no Controller's state"):
        steered(args).train(resume_from_checkpoint=checkpoint)
    path = Path(checkpoint) / "trainer_state.json"
    state = json.loads(path.read_text())
    state["stateful_callbacks"]["bandpo_controller"] = {"controller": repr(controller(target=0.1)), "step": 8}
    path.write_text(json.dumps(state))
    with pytest.raises(ValueError, match="the checkpoint has the state of another Controller, Controller"):
        steered(args).train(resume_from_checkpoint=checkpoint)


def test_training_again_begins_again(tmp_path):
    trainer = steered(tiny.settings(tmp_path, max_steps=4))
    trainer.train()
    assert rows(trainer)[0] == 0.05
    assert trainer.trust_region != RULE
    trainer.train()
    assert rows(trainer)[0] == 0.05


@pytest.mark.parametrize("settings", [{"logging_steps": 4}, {"logging_strategy": "epoch"}])
def test_a_row_of_several_steps_is_refused(tmp_path, settings):
    with pytest.raises(ValueError, match="logging_steps must be 1 for a Controller"):
        steered(full(tmp_path, max_steps=4, **settings)).train()


def test_a_share_of_nothing_changes_nothing(tmp_path):
    """As that of the first step of a batch, in which no token is clipped: its row has no such number."""
    made = controller(measure="clip/tail_high_share", target=0.5, smoothing=0.0)
    trainer = steered(tiny.settings(tmp_path, max_steps=2), made=made)
    trainer.train()
    assert "bandpo/clip/tail_high_share" not in steps(trainer)[0]
    assert rows(trainer) == [0.05, 0.05]


def test_a_measure_that_is_not_logged_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"numbers must have 'clip/fractoin', which the Controller holds, got \["):
        steered(full(tmp_path, max_steps=2), made=controller(measure="clip/fractoin")).train()


def one_of_two_processes(rank, folder):
    join(rank, folder)
    args = full(folder, max_steps=8, per_device_train_batch_size=8, ddp_find_unused_parameters=False)
    trainer = steered(args)
    trainer.train()
    torch.save(trainer.trust_region.delta, Path(folder) / f"{rank}.pt")
    leave()


@pytest.mark.slow
def test_two_processes_have_the_same_number(tmp_path):
    torch.multiprocessing.spawn(one_of_two_processes, (str(tmp_path),), nprocs=2)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert one == other != 0.05
