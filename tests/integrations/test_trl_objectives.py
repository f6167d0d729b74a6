"""Objectives that are more than a clamp, through BandPOTrainer: against TRL's own losses, and against `policy_loss`."""

import dataclasses
import functools
import inspect
import itertools
import math
import textwrap

import pytest
import torch
from test_trl import CISPO, GSPO, Recording, build, full, policy_losses, same_run, train
from trl import GRPOTrainer
from trl.trainer import grpo_trainer

import bandpo
import tiny
from bandpo import Band, BySign, Clip, Objective
from bandpo.integrations.trl import BandPOTrainer
from bandpo.integrations.trl_settings import LOSS_TYPES
from bandpo.losses import Preserve, Sapo
from bandpo.losses.metrics import Metrics

SOURCE = inspect.getsource(GRPOTrainer._compute_loss)
# Clip(0.2, 0.2) on the way of the others: no log-ratio is as large.
CLIP = Objective(Clip(0.2, 0.2), max_log_ratio=59.0)


def needs(text):
    """Skip where the installed TRL's loss does not have it."""
    return pytest.mark.skipif(text not in SOURCE, reason=f"this TRL has no {text}")


class Both(BandPOTrainer):
    """Trains by our loss, and keeps what TRL's own gives for the same inputs: both values and gradients."""

    def __init__(self, *args, theirs, extra=False, loss=GRPOTrainer._compute_loss, **kwargs):
        self.pairs, self.theirs, self.extra, self.loss = [], theirs, extra, loss
        super().__init__(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.logps = out[0]
        return out

    def _compute_loss(self, model, inputs):
        if self.extra:  # what a sampler of its own and tools add to the inputs
            mask = inputs["completion_mask"]
            self.use_vllm = self.vllm_importance_sampling_correction = True
            inputs = inputs | {"importance_sampling_ratio": torch.rand(mask.shape) * 2}
            if '"tool_mask"' in SOURCE:
                inputs |= {"tool_mask": (torch.rand(mask.shape) < 0.8).long()}
        kept = {name: getattr(self, name) for name in self.theirs}
        vars(self).update(self.theirs)
        theirs = self.loss(self, model, inputs)
        grads = torch.autograd.grad(theirs, self.logps)
        vars(self).update(kept)
        ours = super()._compute_loss(model, inputs)
        self.pairs.append(
            (ours.detach(), theirs.detach(), *torch.autograd.grad(ours, self.logps, retain_graph=True), *grads)
        )
        self.use_vllm = False
        return ours


def compare(folder, objective, theirs, extra=False, cuts=True, values=True, rounding=1e-6, loss=None, **changes):
    """The trainer, after every value and gradient of its run was TRL's."""
    start = str(folder / "start")  # TRL loads the reference model from where the model came from
    tiny.model().save_pretrained(start)
    make = functools.partial(Both, theirs=theirs, extra=extra, loss=loss or GRPOTrainer._compute_loss)
    trainer = build(make, full(folder, max_steps=6, **changes), objective, start)
    torch.manual_seed(0)
    trainer.train()
    for ours, value, grad, expected in trainer.pairs:
        if values:
            torch.testing.assert_close(ours, value, rtol=1e-6, atol=1e-6 * max(1e-2, float(value.abs())))
        torch.testing.assert_close(grad, expected, rtol=1e-6, atol=rounding * float(expected.abs().max()))
    assert any(grad.any() for _, _, grad, _ in trainer.pairs)
    row = trainer.state.log_history[-2]
    assert row["bandpo/tokens"] > 0
    assert (sum(row.get("bandpo/cut/fraction", 0) for row in trainer.state.log_history) > 0.02) == cuts
    return trainer


EPSILONS = {"epsilon_low": 0.2, "epsilon_high": 0.2}
EXTRA = {"extra": True, "beta": 0.04, "gradient_accumulation_steps": 2, "top_entropy_quantile": 0.7}
MORE = pytest.mark.parametrize(
    "more", [pytest.param({}, id="plain", marks=pytest.mark.slow), pytest.param(EXTRA, id="everything")]
)


@MORE
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_clip_in_the_place_of_trls_term_is_trls_loss(tmp_path, loss_type, more):
    trainer = compare(tmp_path, CLIP, EPSILONS, loss_type=loss_type, **more)
    assert trainer._replaces
    assert ("kl" in trainer.state.log_history[0]) == bool(more)


SEQUENCE_LEVEL = {"importance_sampling_level": "sequence", "epsilon_low": 0.02, "epsilon_high": 0.02}
# Our objective, what TRL's loss is told, and how they are compared. TRL averages CISPO as dapo. SAPO has no bounds, so
# that nothing counts as cut; 1 - sigmoid is rounded in TRL's float32.
TRLS = {
    "gspo": (GSPO, SEQUENCE_LEVEL, {"loss_type": "grpo"}),
    "cispo": (CISPO, {"loss_type": "cispo", "epsilon_high": 1.1}, {"loss_type": "dapo"}),
    "sapo": (
        Objective(Clip(1.0, math.inf), surrogate=Sapo()),
        {"loss_type": "sapo"},
        {"loss_type": "grpo", "cuts": False, "rounding": 1e-5},
    ),
}


@MORE
@pytest.mark.parametrize("name", ["gspo", *(pytest.param(x, marks=needs(f'"{x}"')) for x in ("cispo", "sapo"))])
def test_gspo_cispo_and_sapo_are_trls(tmp_path, name, more):
    objective, theirs, how = TRLS[name]
    if name == "gspo" and more and "use_bias_correction_kl" in SOURCE:
        more = more | {"use_bias_correction_kl": False}  # TRL's penalty is weighed by the ratio of the level
    compare(tmp_path, objective, theirs, **how, **more)


@needs('"vespo"')
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_vespo_has_the_gradient_of_trls_under_every_average(tmp_path, loss_type):
    """TRL itself averages it as dapo does. For the others, its own lines with VESPO's terms in the place of theirs."""
    scope = dict(vars(grpo_trainer))
    of_vespo = SOURCE.replace('self.loss_type == "vespo"', "True")
    of_vespo = of_vespo.replace('self.loss_type in ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"]', "False")
    exec(textwrap.dedent(of_vespo), scope)
    theirs, loss = ({"loss_type": "vespo"}, None) if loss_type == "dapo" else ({}, scope["_compute_loss"])
    objective = bandpo.losses.method("vespo").without_average
    more = {"beta": 0.04, "gradient_accumulation_steps": 2}
    compare(tmp_path, objective, theirs, loss=loss, cuts=False, values=False, loss_type=loss_type, **more)


PRESERVE = Preserve(0.5, 1.0)
# One of each kind that TRL's clamp is not.
OBJECTIVES = {
    "DPPO": Objective(Band("tv", 0.05), surrogate="mask"),
    "DIS": Objective(Clip(0.2, 0.2), surrogate="mask_two_sided"),
    "CISPO": CISPO,
    "CE-GPPO": Objective(Clip(0.2, 0.2), surrogate=PRESERVE),
    "UP": Objective(BySign(Clip(0, 0), Clip(0.2, math.inf)), surrogate=("weight", "clip")),
    "GSPO": GSPO,
    "GMPO": Objective(Clip(0.2, 0.2), ratio="mean-of-clipped"),
    "whole responses": Objective(Band("kl", 0.05), ratio="sequence"),
    "dual clip": Objective(Band("kl", 0.05), dual_clip=1.1),
    "cut": Objective(Clip(0.2, 0.2), max_log_ratio=0.1),
    "quadratic": Objective(Band("tv", 0.05), surrogate="quadratic"),
}


def measured(trainer):
    """Metrics of the recorded batches by `policy_loss`."""
    objective = dataclasses.replace(trainer.objective, aggregation="none")
    names = ("old_per_token_logps", "advantages", "completion_mask")
    batches = [
        bandpo.policy_loss(logps, *(inputs[name] for name in names), objective)[1]
        for inputs, logps, _ in trainer.records
    ]
    values = functools.reduce(Metrics.merge, batches).compute()
    return {f"bandpo/{key}": value for key, value in values.items() if not math.isnan(value)}


@pytest.mark.parametrize(
    ("name", "loss_type"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] if i % 2 else [])
        for i, pair in enumerate(zip(OBJECTIVES, itertools.cycle(LOSS_TYPES), strict=False))
    ],
)
def test_every_objective_has_the_loss_gradient_and_metrics_of_policy_loss(tmp_path, name, loss_type):
    objective = OBJECTIVES[name]
    trainer = train(Recording, full(tmp_path, loss_type=loss_type, max_steps=6, logging_steps=6), objective)
    assert trainer._replaces
    for record in trainer.records:
        (value, slope), (loss, gradient), _ = policy_losses(trainer, record, objective)
        torch.testing.assert_close(value, loss, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(slope, gradient, rtol=1e-6, atol=1e-9)
    (row, *_), expected = trainer.state.log_history, measured(trainer)
    assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-6)
    assert not any(math.isnan(x) for x in row.values())
    assert row["bandpo/log_ratio/saturated_fraction" if name == "cut" else "bandpo/clip/count"] > 0
    assert not [key for key in row if key.startswith("clip_ratio/")]  # TRL's own, of a ratio that is not there


def test_a_token_whose_ratio_overflows_has_a_finite_gradient(tmp_path):
    """TRL's ratio of it is infinite, and 0 times that would be NaN."""

    class Far(Recording):
        def _compute_loss(self, model, inputs):
            old = inputs["old_per_token_logps"].clone()
            old[0, 0] = -200.0
            return super()._compute_loss(model, inputs | {"old_per_token_logps": old})

    trainer = train(Far, full(tmp_path, max_steps=1), Objective(Clip(0.2, 0.2), surrogate="mask"))
    assert trainer.state.log_history[0]["bandpo/log_ratio/saturated_fraction"] > 0
    assert all(
        x.isfinite().all() for x in (*(logps.grad for _, logps, _ in trainer.records), *trainer.model.parameters())
    )


# ---- losses that TRL has itself


@pytest.mark.parametrize(
    ("objective", "epsilons", "settings"),
    [
        (GSPO, {"epsilon": 0.02}, {"importance_sampling_level": "sequence", "loss_type": "grpo"}),
        (
            Objective(Clip(0.01, 0.02), ratio="sequence-mean"),
            {"epsilon": 0.01, "epsilon_high": 0.02},
            {"importance_sampling_level": "sequence", "loss_type": "dapo"},
        ),
        pytest.param(
            GSPO,
            {"epsilon": 0.02},
            {"importance_sampling_level": "sequence", "loss_type": "luspo"},
            marks=needs('"luspo"'),
        ),
        pytest.param(CISPO, {"epsilon_high": 1.1}, {"loss_type": "cispo"}, marks=needs('"cispo"')),
    ],
    ids=["gspo", "gspo with dapo", "luspo", "cispo"],
)
def test_what_trl_has_itself_is_trls_bit_for_bit(tmp_path, objective, epsilons, settings):
    theirs = train(GRPOTrainer, tiny.settings(tmp_path, **settings, **epsilons))
    ours = train(Recording, full(tmp_path, **settings), objective)
    assert not ours._replaces
    assert same_run(ours, theirs)
    rows = [row for row in ours.state.log_history if "bandpo/tokens" in row]
    expected = measured(ours)  # the ratio of the response, where that is what is clipped
    assert sum(row["bandpo/clip/count"] for row in rows) == expected["bandpo/clip/count"] > 0
    assert max(row["bandpo/log_ratio/max"] for row in rows) == pytest.approx(expected["bandpo/log_ratio/max"])
