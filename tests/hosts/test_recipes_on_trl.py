"""The recipes of examples/trainers for trainers of TRL, trained: SDPO, and GRPO by the builder of Oumi.

Oumi's builder is its own file, from a checkout in the folder `oumi` of BANDPO_HOSTS; what it imports of Oumi is a
stand-in.
"""

import functools
import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hosts.trainers import FOLDER, RECIPES, Sources, forget, place, use_sources

trl = pytest.importorskip("trl")
import tiny  # noqa: E402
from bandpo import Band, Clip  # noqa: E402
from bandpo.integrations.trl import BandPOTrainer  # noqa: E402

SDPO = pytest.importorskip("trl.experimental.sdpo")
RULE = 'Band("kl", 0.05)'


def executed(name, rule):
    """The names that a recipe makes, with a rule in the place of its own."""
    names = {"REGION": rule, "__name__": "bandpo_recipe"}
    exec(RECIPES[name].text.replace(f"bandpo.{RULE}", "REGION").replace(RULE, "REGION"), names)
    return names


def arguments(rows=64):
    """What trainers are made with beside a model and settings."""
    return {"reward_funcs": tiny.count_a, "train_dataset": tiny.rows(rows), "processing_class": tiny.toy.tokenizer()}


def weights(trainer):
    trainer.train()
    return [each.detach().clone() for each in trainer.model.parameters()]


def same(*models):
    return all(map(torch.equal, *models))


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_clip_trains_to_sdpos_own_weights_bit_for_bit(tmp_path, weight):
    """Eight steps, on a batch each; the teacher is loaded from where the model came from."""
    tiny.model().save_pretrained(tmp_path / "start")
    settings = functools.partial(tiny.settings, tmp_path, SDPO.SDPOConfig, max_steps=8, distillation_weight=weight)
    kinds = [
        SDPO.SDPOTrainer,
        *(executed("sdpo", rule)["BandPOTrainer"] for rule in (Clip(0.2, 0.2), Band("kl", 0.05))),
    ]
    theirs, clip, band = (
        weights(kind(model=str(tmp_path / "start"), args=settings(), **arguments(32))) for kind in kinds
    )
    assert [same(theirs, ours) for ours in (clip, band)] == [True, False]


@pytest.fixture
def build(monkeypatch):
    """Oumi's `build_trainer` for TRL_GRPO, which gives the trainer itself."""
    if FOLDER is None:
        pytest.skip("BANDPO_HOSTS names no folder")
    before = set(sys.modules)
    use_sources(monkeypatch, Sources(place("oumi"), "oumi", whole=["oumi.builders.training"], alone=True))
    builders = importlib.import_module("oumi.builders.training")
    names = ("TRL_SFT", "TRL_DPO", "TRL_KTO", "TRL_GRPO")
    monkeypatch.setattr(builders, "TrainerType", SimpleNamespace(**{name: name for name in names}))
    monkeypatch.setattr(builders, "HuggingFaceTrainer", lambda trainer, processor: trainer)
    monkeypatch.setattr(trl, "GRPOTrainer", trl.GRPOTrainer)  # set back afterwards
    monkeypatch.setitem(sys.modules, "oumi", ModuleType("oumi"))
    yield lambda: builders.build_trainer("TRL_GRPO", None)
    forget(before, "oumi")


def by_oumi(folder, build, rule):
    """A trainer of a rule, or TRL's own."""
    if rule is not None:
        executed("oumi", rule)
    args = SimpleNamespace(finalize_and_validate=lambda: None, to_hf=lambda config: tiny.settings(folder))
    trainer = build()(model=tiny.model(), args=args, **arguments())
    assert type(trainer).__name__ == ("GRPOTrainer" if rule is None else "BandPOTrainer")
    return trainer


def test_clip_trains_to_trls_own_weights_bit_for_bit_by_oumis_builder(tmp_path, build):
    theirs, clip = (weights(by_oumi(tmp_path, build, rule)) for rule in (None, Clip(0.2, 0.2)))
    assert same(theirs, clip)


def test_band_is_bandpotrainers_by_oumis_builder(tmp_path, build):
    ours = weights(
        BandPOTrainer(tiny.model(), args=tiny.settings(tmp_path), trust_region=Band("kl", 0.05), **arguments())
    )
    clip, band = (weights(by_oumi(tmp_path, build, rule)) for rule in (Clip(0.2, 0.2), Band("kl", 0.05)))
    assert [same(band, other) for other in (ours, clip)] == [True, False]
