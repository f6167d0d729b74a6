"""BandPOTrainer ends at the first step after which a weight is not finite, and at rewards that are not."""

import math

import pytest
import test_trl
import torch
import torch.distributed as dist
from accelerate import Accelerator
from disk import write
from test_trl import in_two_processes
from transformers import TrainerCallback
from transformers.trainer_callback import TrainerControl, TrainerState

import tiny
from bandpo import Band, Clip, Objective
from bandpo.errors import UserError
from bandpo.integrations.trl import BandPOConfig, BandPOTrainer
from bandpo.integrations.trl_context import FiniteGuard, NotFiniteError

RULES = {"TRL's clamp": Band("kl", 0.05), "in the place of the clamp": Objective(Clip(0.2, 0.2), surrogate="mask")}


class At(TrainerCallback):
    """Does something to the model at the beginning of a step, the first of which is 1."""

    def __init__(self, step, do):
        self.step, self.do = step, do

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == self.step:
            self.do(model)


def build(tmp_path, reward=tiny.count_a, rule=RULES["TRL's clamp"], model=None, cls=BandPOTrainer, at=None, **changes):
    args = tiny.settings(tmp_path, kind=BandPOConfig, **{"max_steps": 8} | changes)
    return test_trl.build(cls, args, rule, model, reward, callbacks=at and [At(*at)])


def gradients_times(factor):
    return lambda model: [x.register_hook(lambda gradient: gradient * factor) for x in model.parameters()]


def spoil(value):
    return lambda model: model.model.norm.weight.data[3:4].fill_(value)


def logged(trainer, name):
    return [row.get(name) for row in trainer.state.log_history if "loss" in row]


def checkpoints(folder):
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*"))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("factor", [math.nan, pytest.param(math.inf, marks=pytest.mark.slow)])
def test_a_gradient_that_is_not_finite_ends_training_in_its_step(tmp_path, rule, factor):
    saves = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    trainer = build(tmp_path, rule=rule, at=(5, gradients_times(factor)), **saves)
    message = rf"^step 5: weights \(\d+, first model.embed_tokens.weight\) .* {tmp_path}/checkpoint-4\. .*learning_rate"
    with pytest.raises(NotFiniteError, match=f"{message}.*stop_if_not_finite=False"):
        trainer.train()
    assert (logged(trainer, "step"), checkpoints(tmp_path)) == ([1, 2, 3, 4], [4])
    assert issubclass(NotFiniteError, UserError)


@pytest.mark.parametrize("value", [math.nan, pytest.param(-math.inf, marks=pytest.mark.slow)])
def test_a_single_number_of_a_weight_is_seen_in_its_step(tmp_path, value):
    trainer = build(tmp_path, at=(3, spoil(value)))
    for name in ("1/trainer_state.json", "2/model", "9/trainer_state.json", "x/trainer_state.json"):
        write(tmp_path / f"checkpoint-{name}", "{}")  # one whole, and what is no whole one of this run
    with pytest.raises(NotFiniteError, match=rf"step 3: weights .* not finite; .* {tmp_path}/checkpoint-1\."):
        trainer.train()
    model = tiny.model()
    spoil(value)(model)
    said = r"before the first step: weights \(1, first model.norm.weight\) .* has no whole checkpoint.*Take a model"
    with pytest.raises(NotFiniteError, match=said):
        build(tmp_path, model=model).train()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_row_of_the_batch_that_is_not_finite_ends_training_in_its_step(tmp_path, rule):
    class Planted(BandPOTrainer):
        def _anchored(self, inputs):
            advantages = inputs["advantages"].clone()
            advantages[5] *= math.nan if self.state.global_step == 2 else 1.0
            return super()._anchored(inputs | {"advantages": advantages})

    trainer = build(tmp_path, rule=rule, cls=Planted, all_metrics=True)
    with pytest.raises(NotFiniteError, match=r"step 3: weights"):
        trainer.train()
    mask = trainer._buffered_inputs[2 % 4]["completion_mask"]
    assert trainer._measured.compute()["not_finite/count"] == mask[5].sum() > 0  # of the step, which has no row
    assert logged(trainer, "bandpo/not_finite/count") == [0, 0]


def test_who_wants_to_goes_on_is_warned_once_and_keeps_the_checkpoints(tmp_path):
    changes = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1, "stop_if_not_finite": False}
    trainer = build(tmp_path, at=(5, gradients_times(math.nan)), **changes)
    with pytest.warns(UserWarning, match="stop_if_not_finite is False") as warned:
        trainer.train()
    told = [str(each.message) for each in warned if "stop_if_not_finite" in str(each.message)]
    assert [text.partition(":")[0] for text in told] == ["step 5"]
    assert (logged(trainer, "step"), checkpoints(tmp_path)) == ([*range(1, 9)], [4, 6, 8])
    assert [*map(math.isnan, logged(trainer, "loss"))] == [False] * 5 + [True] * 3


# ---- rewards


def given(values):
    """A reward that gives these, again and again."""

    def reward(completions, **columns):
        return [values[i % len(values)] for i in range(len(completions))]

    return reward


LARGE = "so large that their deviation is infinite in float32"
BAD = {
    "infinite": ([1.0, math.inf], "infinite in float32"),
    "too large for float32": ([1.0, -1e39], "infinite in float32"),
    "none left": ([None, math.nan], "None or NaN for all completions"),
    "too far apart for float32": ([1e20, -1e20], LARGE),
}


def rewarded(trainer):
    return trainer._calculate_rewards([{}] * 16, [""] * 16, [""] * 16, [[0]] * 16)


@pytest.mark.filterwarnings("ignore:All reward functions returned None")
@pytest.mark.parametrize(("values", "what"), BAD.values(), ids=BAD)
def test_rewards_that_nothing_can_be_learned_from_end_training(tmp_path, values, what):
    trainer = build(tmp_path, given(values))
    start = [weight.clone() for weight in trainer.model.parameters()]
    with pytest.raises(NotFiniteError, match=f"step 1: rewards of reward are {what}.*Fix the reward function"):
        trainer.train()
    assert all(map(torch.equal, start, trainer.model.parameters()))
    with pytest.warns(UserWarning, match=f"step 1: rewards of reward are {what}"):
        rewarded(build(tmp_path, given(values), stop_if_not_finite=False, learning_rate=0.0))


def test_a_large_reward_is_fine_where_no_deviation_is_divided_by_and_evaluation_may_have_none(tmp_path):
    rewarded(build(tmp_path, given([1e20, -1e20]), scale_rewards="none", learning_rate=0.0))
    trainer = build(tmp_path, given([None]))
    trainer.model.eval()
    rewarded(trainer)


def test_a_missing_reward_is_nobodys_baseline_and_has_no_advantage(tmp_path):
    values, seen = [None, 2.0, 4.0, math.nan, 2.0, 4.0, 2.0, 4.0], []  # a group

    class Watched(BandPOTrainer):
        def _generate_and_score_completions(self, inputs):
            seen.append(super()._generate_and_score_completions(inputs))
            return seen[-1]

    build(tmp_path, given(values), cls=Watched).train()
    for advantages in seen[0]["advantages"].view(-1, 8):
        assert advantages.sign().tolist() == [0, -1, 1, 0, -1, 1, -1, 1]
        torch.testing.assert_close(advantages.sum(), torch.tensor(0.0), atol=1e-5, rtol=0)  # 3 is the mean


# ---- loss scalers


class Scaled(BandPOTrainer):
    """With the scaler that fp16 brings, which accelerate makes on a GPU only."""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu")


def scaled(tmp_path, bad, **changes):
    """Train with infinite gradients in the `bad` steps; return the steps that each row says were skipped."""
    trainer = build(tmp_path, cls=Scaled, **changes)
    trainer.model.lm_head.weight.register_hook(lambda g: g * (math.inf if trainer.state.global_step + 1 in bad else 1))
    trainer.train()
    return logged(trainer, "bandpo/skipped_steps")


@pytest.mark.parametrize("optim", [pytest.param("adamw_torch", marks=pytest.mark.slow), "adamw_torch_fused"])
def test_skipped_steps_are_counted_in_the_rows_and_are_no_reason_to_stop(tmp_path, optim):
    assert scaled(tmp_path, {1, 2, 4}, max_steps=6, logging_steps=3, optim=optim) == [2, 1]
    assert scaled(tmp_path, set(), max_steps=2, logging_steps=1, optim=optim) == [None, None]


# ---- several processes


class Shard(torch.nn.Module):
    """A weight as ZeRO-3 leaves it: empty, with the process's own part beside it."""

    def __init__(self, part):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(0))
        self.weight.ds_tensor = part


def test_the_part_of_a_weight_that_zero_3_leaves_a_process_is_looked_at(tmp_path):
    """What is frozen is looked at once, when training begins."""
    part, frozen, args = torch.ones(4), torch.ones(4), tiny.settings(tmp_path)  # which resets accelerate
    model = torch.nn.ModuleList([Shard(part), Shard(frozen).requires_grad_(False)])
    guard, state = FiniteGuard(Accelerator(cpu=True), True), TrainerState(global_step=7)
    guard.on_train_begin(args, state, TrainerControl(), model=model)
    frozen[1] = math.nan
    guard.on_step_end(args, state, TrainerControl(), model=model)
    part[2] = math.nan
    for look, message in (
        (guard.on_step_end, r"step 7: weights \(1, first 0.weight\)"),
        (guard.on_train_begin, r"step 7: weights \(2, first 0.weight\)"),
    ):
        with pytest.raises(NotFiniteError, match=message):
            look(args, state, TrainerControl(), model=model)


def look_at_shards(folder):
    from torch.distributed.fsdp import fully_shard

    args, model = tiny.settings(folder), torch.nn.Linear(3, 2, bias=False)  # a row for each process
    torch.nn.init.ones_(model.weight)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    guard, said = FiniteGuard(Accelerator(cpu=True), True), []
    for step, value in enumerate([1.0, math.nan], 1):
        if dist.get_rank() == 1:
            model.weight.data.to_local()[0, 0] = value
        try:
            guard.on_step_end(args, TrainerState(global_step=step), TrainerControl(), model=model)
            said.append("fine")
        except NotFiniteError as error:
            said.append(str(error).partition(";")[0])
    dist.barrier()
    return said


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")
def test_each_process_looks_at_its_shard_and_all_end_together(tmp_path):
    assert in_two_processes(look_at_shards, tmp_path) == [
        ["fine", "step 2: weights of another process are not finite"],
        ["fine", "step 2: weights (1, first weight) are not finite"],
    ]
