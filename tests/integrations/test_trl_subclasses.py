"""Subclasses of GRPOTrainer under BandPOTrainer, by two bases; what is set after construction; other trainers."""

import functools
import importlib
import re
from pathlib import Path

import pytest
import torch
import trl
from packaging.version import Version
from test_trl import build, clipped_shares, full, in_two_processes, same_run, same_weights, train
from trl import GRPOTrainer

import tiny
from bandpo import Band, Clip, Objective
from bandpo.integrations.trl import BandPOTrainer

NOT_KNOWN = r"\.{} is not known to clamp the ratio .*: it must call super\(\)\.{} for that"


class Theirs(GRPOTrainer):
    """Arguments, rewards, advantages of each token and a loss of its own, around TRL's."""

    def __init__(self, model, reward_funcs, args=None, *, weight, **named):
        super().__init__(model, reward_funcs, args=args, **named)
        self.weight = weight

    def _generate_and_score_completions(self, inputs):
        outputs = super()._generate_and_score_completions(inputs)
        slope = torch.linspace(0.5, 1.0, outputs["completion_mask"].shape[1])
        return outputs | {"advantages": outputs["advantages"][:, None] * slope}

    def _compute_loss(self, model, inputs):
        return self.weight * super()._compute_loss(model, inputs)


class Ours(BandPOTrainer, Theirs):
    pass


@pytest.mark.parametrize("rule", [Clip(0.2, 0.2), Objective(Clip(0.2, 0.2), dual_clip=1e6)], ids=["clamp", "loss"])
def test_a_trainer_of_two_bases_is_theirs_under_a_rule(tmp_path, rule):
    given = {"reward_funcs": tiny.count_a, "train_dataset": tiny.rows(), "processing_class": tiny.toy.tokenizer()}
    theirs = Theirs(tiny.model(), args=tiny.settings(tmp_path, max_grad_norm=1e9), weight=2.0, **given)
    theirs.train()
    ours = train(functools.partial(Ours, weight=2.0), full(tmp_path, max_grad_norm=1e9), rule)
    plain = train(BandPOTrainer, full(tmp_path, max_grad_norm=1e9), Clip(0.2, 0.2))
    band = train(functools.partial(Ours, weight=2.0), full(tmp_path, max_grad_norm=1e9), Band("kl", 0.05))
    assert min(clipped_shares(ours)) > 0.02
    assert same_run(ours, theirs) or not isinstance(rule, Clip)
    for mine, its in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-5)
    assert not any(same_weights(other, theirs) for other in (plain, band))


def test_positional_arguments_are_trls(tmp_path):
    with pytest.raises(TypeError, match=r"multiple values for .*train_dataset"):
        build(BandPOTrainer, tiny.settings(tmp_path), Band(), train_dataset=tiny.rows())
    with pytest.raises(TypeError, match="weight"):  # of Theirs, which needs it
        build(Ours, tiny.settings(tmp_path), Band())


class Other(GRPOTrainer):
    """A loss that is not around TRL's."""

    def _compute_loss(self, model, inputs):
        return self._get_per_token_logps_and_entropies(model, *inputs)[0].sum()


class Loss(GRPOTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs).loss


def bare(function):
    return lambda *args, **named: function(*args, **named)


LOSSES = [
    *(((first, second), {}) for one in (Other, Loss) for first, second in ((one, BandPOTrainer), (BandPOTrainer, one))),
    *(
        ((BandPOTrainer,), {"_compute_loss": loss})
        for loss in (
            functools.partialmethod(Theirs._compute_loss),
            bare(Theirs._compute_loss),
            print,
            lambda self, model, inputs: GRPOTrainer._compute_loss(self, model, inputs),  # not by way of ours
        )
    ),
]


@pytest.mark.parametrize(("bases", "members"), LOSSES)
def test_a_loss_that_does_not_call_ours_or_cannot_be_read_is_refused_before_anything_is_loaded(
    tmp_path, bases, members
):
    whose = "Made" if members else ({*bases} - {BandPOTrainer}).pop().__name__
    name = "compute_loss" if Loss in bases else "_compute_loss"
    with pytest.raises(ValueError, match=f"^{whose}{NOT_KNOWN.format(name, name)}, in a plain"):
        build(type("Made", bases, members), tiny.settings(tmp_path), Band(), "no/such-model")


# Every subclass of GRPOTrainer that comes with TRL.
FOLDER = Path(trl.__file__).parent / "experimental"
FOUND = [
    (".".join(["trl", "experimental", *path.relative_to(FOLDER).with_suffix("").parts]), name)
    for path in sorted(FOLDER.rglob("*.py"))
    for name in re.findall(r"^class (\w+)\(_?GRPOTrainer\)", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.skipif(Version(trl.__version__) < Version("1.16"), reason="older releases have others")
def test_trl_has_one_subclass():
    assert [name for _, name in FOUND] == ["GMPOTrainer"]


@pytest.mark.parametrize(("module", "name"), FOUND)
def test_each_subclass_of_trl_works_or_is_refused(tmp_path, module, name, record_property):
    """GMPO's epsilons are those of a log-ratio. What has no loss of its own trains. Older releases have up to six."""
    theirs = getattr(importlib.import_module(module), name)
    made = type("Made", (BandPOTrainer, theirs), {})
    own = {"_compute_loss", "compute_loss"} & vars(theirs).keys()
    if own:
        with pytest.raises(ValueError, match=f"^{name}{NOT_KNOWN.format(*own, *own)}"):
            build(made, tiny.settings(tmp_path), Band(), "no/such-model")
        record_property("under Clip", "refused")
        return
    config = getattr(importlib.import_module(module.rpartition(".")[0]), name.replace("Trainer", "Config"))
    settings = functools.partial(tiny.settings, tmp_path, config, max_steps=8)
    model, named = tiny.model, {"reward_funcs": tiny.count_a, "train_dataset": tiny.rows()}
    named |= {"processing_class": tiny.toy.tokenizer()}
    trainers = []
    for rule in (None, Clip(0.2, 0.2), Band("kl", 0.05)):
        kind = theirs if rule is None else functools.partial(made, trust_region=rule)
        trainers.append(kind(model=model(), args=settings(), **named))
        try:
            trainers[-1].train()  # before the next one is made, which sets the seed
        except ValueError as error:
            if rule is not None:
                raise
            record_property("under Clip", "does not train by itself")
            pytest.skip(f"{name} of TRL {trl.__version__}: {error}")
    assert [same_weights(trainers[0], ours) for ours in trainers[1:]] == [True, False]
    record_property("under Clip", "bit for bit")


LATE = [
    ("loss_type", "sapo"),
    ("loss_type", "grpo"),
    ("importance_sampling_level", "sequence"),
    ("temperature", 0.5),
    ("epsilon_low", 5.0),
    ("epsilon_high", 0.28),
    ("trust_region", Clip(0.2, 0.2)),
    ("objective", Objective(dual_clip=3.0)),
    ("anchor", "sampler"),
    ("delta", 1.5),
]


@pytest.mark.parametrize("cls", [BandPOTrainer, functools.partial(Ours, weight=1.0)], ids=["ours", "two bases"])
@pytest.mark.parametrize(("name", "value"), LATE)
def test_a_setting_that_is_changed_later_is_noticed_at_the_first_loss(tmp_path, cls, name, value):
    trainer = build(cls, tiny.settings(tmp_path), Band())
    setattr(trainer.args if name in ("anchor", "delta") else trainer, name, value)
    message = (
        f"^{name} is {re.escape(repr(value))}, and was .* when the rule was checked(: set it in the args of a new)?"
    )
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0


def weights_after(folder, cls, rule):
    more = {} if rule is None else {"trust_region": rule}
    args = tiny.settings(folder, per_device_train_batch_size=8, beta=0.04, ddp_find_unused_parameters=False)
    start = f"{folder}/start"  # TRL loads the reference model from where the model came from
    trainer = cls(start, tiny.count_a, args, tiny.rows(), processing_class=tiny.toy.tokenizer(), **more)
    trainer.train()
    assert torch.distributed.get_world_size() == 2
    clipped = sum(row.get("clip_ratio/region_mean", 0.0) for row in trainer.state.log_history)
    return clipped, list(trainer.accelerator.unwrap_model(trainer.model).parameters())


@pytest.mark.slow
def test_two_processes_have_trls_weights_under_clip_and_equal_ones(tmp_path):
    results = []
    for cls, rule in ((GRPOTrainer, None), (BandPOTrainer, Clip(0.2, 0.2)), (BandPOTrainer, Band("kl", 0.05))):
        folder = tmp_path / str(len(results))
        tiny.model().save_pretrained(folder / "start")
        (clipped, mine), (_, other) = in_two_processes(weights_after, folder, cls, rule)
        assert all(map(torch.equal, mine, other))
        results.append((clipped, mine))
    (clipped, theirs), (_, clip), (_, band) = results
    assert clipped > 0.2  # the sum over 12 steps
    assert [all(map(torch.equal, theirs, ours)) for ours in (clip, band)] == [True, False]
