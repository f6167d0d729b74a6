"""A number of a rule that is steered in TRL: moved by each row of the log, and exact in a run that goes on."""

import json

import pytest
from test_trl import build, full, in_two_processes, same_run, same_weights, train

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


def trained(args, *arguments, resume=None, **named):
    trainer = steered(args, *arguments, **named)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def steps(trainer):
    return [row for row in trainer.state.log_history if "loss" in row]


def rows(trainer, name="value"):
    return [row[f"bandpo/controlled/{name}"] for row in steps(trainer)]


@pytest.mark.parametrize(("path", "rule"), [("delta", RULE), ("region.delta", MASKED)], ids=["clamp", "mask"])
def test_each_row_of_the_log_moves_the_number_for_the_next_step(tmp_path, path, rule):
    args = tiny.settings(tmp_path, gradient_accumulation_steps=2, max_steps=8)
    trainer = trained(args, rule, controller(path))
    again, region, values = controller(path), getattr(rule, "trust_region", rule), []
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
    trainer = trained(tiny.settings(tmp_path, max_steps=8), Clip(0.2, 0.2), moved)
    assert rows(trainer) == [0.2, *[0.05] * 7]  # the entropy is far above its target
    narrow = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), Clip(0.2, 0.05))
    shares, its = ([row["bandpo/clip/high_fraction"] for row in steps(each)] for each in (trainer, narrow))
    assert shares[:2] == its[:2]  # ratio 1, then the same step
    assert max(shares[1:]) > 0


def test_a_gain_of_next_to_nothing_is_the_fixed_rule_bit_for_bit(tmp_path):
    args = tiny.settings(tmp_path, max_steps=8)
    fixed, still, moving = train(BandPOTrainer, args, RULE), trained(args, made=controller(gain=1e-300)), trained(args)
    assert [same_run(still, fixed), same_weights(moving, fixed)] == [True, False]


def test_an_evaluation_moves_nothing(tmp_path):
    settings = {"max_steps": 8, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 16}
    evaluated = trained(tiny.settings(tmp_path, **settings), eval_dataset=tiny.rows(4))
    before, again, region = evaluated.trust_region, controller(), RULE
    evaluated.evaluate()
    for row in steps(evaluated):
        region = again.step(region, row)
    assert evaluated.trust_region == before == region


def test_a_run_that_goes_on_from_a_checkpoint_is_exact(tmp_path):
    args, checkpoint = tiny.settings(tmp_path / "whole", **SAVING), tmp_path / "whole" / "checkpoint-8"
    whole = trained(args)
    state = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["bandpo_controller"]
    assert state["state"]["value"] == rows(whole)[8]
    resumed = trained(args, resume=str(checkpoint))
    assert [rows(resumed), rows(resumed, "measured")] == [rows(whole), rows(whole, "measured")]
    assert same_weights(resumed, whole)
    assert [list(row) for row in resumed.state.log_history[8:]] == [list(row) for row in whole.state.log_history[8:]]


def test_a_checkpoint_without_the_state_or_of_another_controller_is_refused(tmp_path):
    train(BandPOTrainer, tiny.settings(tmp_path, save_strategy="steps", save_steps=8, max_steps=8), RULE)
    args, path = tiny.settings(tmp_path, max_steps=10), tmp_path / "checkpoint-8" / "trainer_state.json"
    state = json.loads(path.read_text())
    other = {"bandpo_controller": {"controller": repr(controller(target=0.1)), "step": 8}}
    for more, message in (({}, "the checkpoint of step 8 has no"), (other, "the checkpoint has the state of another")):
        path.write_text(json.dumps(state | {"stateful_callbacks": state["stateful_callbacks"] | more}))
        with pytest.raises(ValueError, match=f"{message} Controller"):
            trained(args, resume=str(path.parent))


def test_training_again_begins_again(tmp_path):
    trainer = steered(tiny.settings(tmp_path, max_steps=4))
    for _ in range(2):
        trainer.train()
        assert rows(trainer)[0] == RULE.delta != trainer.trust_region.delta


def test_a_share_of_nothing_changes_nothing(tmp_path):
    """As that of the first step of a batch, in which no token is clipped: its row has no such number."""
    made = controller(measure="clip/tail_high_share", target=0.5, smoothing=0.0)
    trainer = trained(tiny.settings(tmp_path, max_steps=2), made=made)
    assert ("bandpo/clip/tail_high_share" in steps(trainer)[0], rows(trainer)) == (False, [0.05, 0.05])


@pytest.mark.parametrize(
    ("settings", "measure", "message"),
    [
        ({"logging_steps": 4}, "entropy", "logging_steps must be 1 for a Controller"),
        ({"logging_strategy": "epoch"}, "entropy", "logging_steps must be 1 for a Controller"),
        ({}, "clip/fractoin", r"numbers must have 'clip/fractoin', which the Controller holds, got \["),
    ],
)
def test_what_a_controller_cannot_follow_is_refused(tmp_path, settings, measure, message):
    with pytest.raises(ValueError, match=message):
        trained(full(tmp_path, max_steps=4, **settings), made=controller(measure=measure))


def radius_after(folder):
    args = full(folder, max_steps=8, per_device_train_batch_size=8, ddp_find_unused_parameters=False)
    return trained(args).trust_region.delta


@pytest.mark.slow
def test_two_processes_have_the_same_number(tmp_path):
    one, other = in_two_processes(radius_after, tmp_path)
    assert one == other != 0.05
