"""The lines of docs/recipes.md, run against the function of each trainer that they change.

As in test_limits.py where a trainer is installed, or with BANDPO_HOSTS=FOLDER, which has a checkout or a wheel of each.
Of these only the modules in OWN run; all others, and the packages in ABSENT, are stand-ins.
"""

import importlib
import importlib.machinery
import re
import sys
from abc import ABCMeta
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from made import BANDS, batch, gradient
from scripts import ROOT
from test_limits import (
    CLIP,
    FOLDER,
    PROBABILITIES,
    Sources,
    assert_band_is_policy_loss,
    assert_clip_is_its_own,
    dtypes,
    find,
    forget,
)

import bandpo

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
# Of each recipe: the trainer, its file and the name in it, the line that goes to the file's end, and the lines.
FOUND = re.findall(
    r"^\*\*([\w-]+)\*\*.*?`([\w/]+\.py)` \w+ `(\w+)`(?:.*?\n`(from bandpo_recipe .*?)`)?.*?```python\n(.*?)```",
    PAGE,
    re.MULTILINE | re.DOTALL,
)
RECIPES = {file.split("/")[0]: (host, file, name, line, text) for host, file, name, line, text in FOUND}
RULE = 'bandpo.Band("kl", 0.05)'


# ---- each trainer: the loss of log-probabilities, called as it calls it, of what the recipe makes


def areal(module, tensors):
    """Its own caller of the loss, which looks the name up. Its statistics are of one batch until they are logged."""
    _, old, advantages, mask = tensors
    module.stats_tracker.export()
    data = {"logprobs": old, "prox_logp": old, "advantages": advantages, "loss_mask": mask}
    return lambda x: module.grpo_loss_fn(x, torch.zeros_like(x), data, 0.2, 0.28, 3.0)


def openrlhf(module, tensors):
    _, old, advantages, mask = tensors
    loss = module.PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.28, dual_clip=3.0)
    return lambda x: loss(x, old, advantages, action_mask=mask.to(old.dtype), rollout_log_probs=None)[0]


def nemo_rl(module, tensors):
    """It wants the first token of the prompt too, and adds 1e-8 to the number of tokens."""
    padded = [torch.nn.functional.pad(x.to(tensors[0].dtype), (1, 0)) for x in tensors[1:]]
    data = dict(zip(("prev_logprobs", "advantages", "token_mask"), padded, strict=True))
    data |= {"generation_logprobs": data["prev_logprobs"], "sample_mask": torch.ones(len(tensors[0]))}
    settings = {"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "ratio_clip_c": 3.0, "reference_policy_kl_penalty": 0.0}
    loss = module.ClippedPGLossFn(module.ClippedPGLossConfig(**settings))
    return lambda x: loss(x, data, torch.ones(()), tensors[3].sum().item() - 1e-8)[0]


def open_instruct(module, tensors):
    _, old, advantages, mask = tensors
    config = SimpleNamespace(loss_fn=module.GRPOLossType.dapo, clip_lower=0.2, clip_higher=0.28)

    def loss(x):
        new, before = (torch.where(mask, each, 1.0) for each in (x, old))  # as its `mask_logprobs` does
        given = {"advantages": advantages, "ref_logprobs": None, "config": config, "rho_weights": torch.ones_like(x)}
        found, *_ = module.compute_grpo_loss(new_logprobs=new, ratio=(new - before).exp(), **given)
        return (found * mask).sum() / mask.sum()

    return loss


def roll(module, tensors):
    """It multiplies advantages by the mask when it makes them."""
    _, old, advantages, mask = tensors
    worker = object.__new__(getattr(sys.modules["bandpo_recipe"], "BandPOWorker", module.ActorWorker))
    config = {"enable_old_logprobs_recompute": True, "importance_sampling": "token", "loss_agg_mode": "token-mean"}
    config |= dict.fromkeys(("difficulty_loss_weight", "length_loss_weight", "use_kl_loss"), False)
    config |= {"use_pg_clip_range": True, "pg_clip": 0.2, "pg_clip_low": 0.2, "pg_clip_high": 0.28}
    config |= {"dual_clip_loss": True, "rl_loss_coef": 1.0, "entropy_loss_coef": 0.0}
    no_weight = SimpleNamespace(is_weight=SimpleNamespace(enabled=False))
    worker.pipeline_config = SimpleNamespace(**config, train_infer_correction=no_weight)
    worker.strategy = SimpleNamespace(op_compute_log_probs=lambda logits, **named: logits)
    rows = {"old_log_probs": old, "ref_log_probs": old, "advantages": advantages * mask, "input_ids": None}
    rows |= {"response_mask": torch.nn.functional.pad(mask, (1, 0)), "train_infer_is_weight": None}
    counts = {"batch_num_tokens": {"response_mask": mask.sum()}, "global_valid_samples": {"response_mask": len(old)}}
    return lambda x: worker.loss_func(SimpleNamespace(batch=rows, meta_info=counts, non_tensor_batch={}), x)[0]


def swift(module, tensors):
    _, old, advantages, mask = tensors
    factory = importlib.import_module("swift.trainers").TrainerFactory
    trainer = object.__new__(factory.get_trainer_cls(SimpleNamespace(rlhf_type="grpo")))
    off = "compute_entropy overlong_filter log_rollout_offpolicy_metrics disable_rollout_importance_sampling"
    off += " rollout_importance_sampling_mode _has_teacher off_policy_sequence_mask_delta chord_sft_iterator"
    settings = dict.fromkeys(off.split()) | {"loss_type": "bnpo", "importance_sampling_level": "token"}
    settings |= {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.0, "sdar_loss_coef": 0.0}
    settings |= {"args": SimpleNamespace(delta=None), "accelerator": SimpleNamespace(gather_for_metrics=lambda x: x)}
    vars(trainer).update(settings, model=torch.nn.Identity())
    rows = SimpleNamespace(completion_mask=mask, old_per_token_logps=old, advantages=advantages)
    rows.truncated_mask = rows.rollout_per_token_logps = rows.teacher_per_token_logps = None

    def loss(x):
        vars(trainer)["_get_per_token_logps_and_entropies"] = lambda *given, **named: (x, None)
        return trainer._compute_loss_and_metrics(None, {}, rows)[0]

    return loss


# What calls it, its dual clip, and its limit of the log-ratio.
RUNS = {
    "areal": (areal, 3.0, None),
    "openrlhf": (openrlhf, 3.0, 20.0),
    "nemo_rl": (nemo_rl, 3.0, None),
    "open_instruct": (open_instruct, None, None),
    "roll": (roll, 1.4, None),
    "swift": (swift, None, None),
}
OWN = """
    areal.trainer.ppo.actor areal.utils.functional areal.utils.functional.functional
    openrlhf.trainer.ray.ppo_actor openrlhf.models openrlhf.models.loss openrlhf.models.utils
    nemo_rl.algorithms.grpo nemo_rl.algorithms.utils nemo_rl.algorithms.loss
    nemo_rl.algorithms.loss.interfaces nemo_rl.algorithms.loss.loss_functions
    open_instruct.grpo_utils open_instruct.rl_utils
    roll.pipeline.rlvr.actor_worker roll.pipeline.base_worker roll.utils.functionals
    swift.rlhf_trainers swift.rlhf_trainers.grpo_trainer swift.trainers swift.trainers.trainer_factory
    swift.utils.import_utils
"""
ABSENT = "accelerate codetiming datasets deepspeed pandas ray swanlab tensordict torchdata transformers trl wandb"


class Anything(ABCMeta):
    """A class that does whatever it is asked for, also as a base, a decorator or a context."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __call__(cls, *args, **named):
        return args[0] if args and callable(args[0]) else cls

    def __getitem__(cls, index):
        return cls

    def __enter__(cls):
        return cls

    def __exit__(cls, *error):
        pass

    def __delattr__(cls, name):
        pass

    def __get_pydantic_core_schema__(cls, *given):
        return {"type": "any"}


class Own(Sources):
    """Run these modules of a package. All others, and what they are asked for, are stand-ins."""

    def find_spec(self, name, path=None, target=None):
        inside, own = f"{name}.".startswith(f"{self.package}."), name in self.whole
        if not inside or own:
            return super().find_spec(name, path, target)
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(self.folder / name.replace(".", "/"))]
        return spec

    def create_module(self, spec):
        module = ModuleType(spec.name)
        module.__getattr__ = partial(Anything.__getattr__, None)
        return module


def look(folder, package):
    """Fail with the file and the name if it does not have it."""
    host, file, name, *_ = RECIPES[package]
    text = (folder / file).read_text(encoding="utf-8") if (folder / file).exists() else ""
    if not re.search(rf"\b{name}\(", text):
        pytest.fail(f"{host}: {folder / file} has no {name}(, which its recipe in docs/recipes.md changes")


@pytest.fixture
def trainer(request, monkeypatch):
    """Return `loss(region, tensors)` of a trainer, from its own files and the lines of the page."""
    package = request.param
    _, file, name, line, text = RECIPES[package]
    folder, before = Path(FOLDER or "") / package, set(sys.modules)
    find(monkeypatch, Own(folder, package, ABSENT.split(), OWN.split()))
    if FOLDER is not None:
        look(folder, package)
    replaced = pytest.MonkeyPatch()

    def loss(region, tensors):
        replaced.undo()
        forget(before, package, *ABSENT.split())
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        recipe = ModuleType("bandpo_recipe")
        monkeypatch.setitem(sys.modules, recipe.__name__, recipe)
        if region is not None:
            recipe.REGION = region
            if line:
                replaced.setattr(module, name, getattr(module, name))
            if package == "swift":
                mapping = importlib.import_module("swift.trainers").TrainerFactory.TRAINER_MAPPING
                replaced.setitem(mapping, "grpo", mapping["grpo"])
            exec(text.replace(RULE, "REGION"), vars(recipe))
            exec(line, vars(module))
        return RUNS[package][0](module, tensors)

    yield package, loss
    replaced.undo()
    forget(before, package, *ABSENT.split())


@pytest.mark.parametrize("trainer", RUNS, indirect=True)
def test_clip_is_the_trainers_own_loss_bit_for_bit(trainer):
    assert_clip_is_its_own(trainer[1], dtypes(trainer[0]))


@pytest.mark.parametrize("region", BANDS)
@pytest.mark.parametrize("trainer", RUNS, indirect=True)
def test_band_is_policy_loss(trainer, region):
    package, loss = trainer
    assert_band_is_policy_loss(loss, region, dtypes(package), *RUNS[package][1:])


@pytest.mark.parametrize("trainer", RUNS, indirect=True)
def test_a_rule_that_needs_more_is_refused_at_the_first_loss(trainer):
    tensors = batch(PROBABILITIES)
    with pytest.raises(ValueError, match=r"BySign needs context\.advantages"):
        gradient(trainer[1](bandpo.BySign(CLIP, BANDS[0]), tensors), tensors[0])


def test_each_recipe_is_ten_lines_at_most_with_a_rule_to_replace():
    assert list(RECIPES) == list(RUNS)
    for *_, text in RECIPES.values():
        assert text.count(RULE) == 1
        assert len([line for line in text.splitlines() if line]) <= 10


def test_what_moved_is_named_with_its_file(tmp_path):
    folder = tmp_path / "areal" / "trainer" / "ppo"
    folder.mkdir(parents=True)
    (folder / "actor.py").write_text("loss = ppo_actor_loss_fn(logprobs)")
    look(tmp_path, "areal")
    for text in ("loss = another_ppo_actor_loss_fn(logprobs)", None):
        if text is None:
            (folder / "actor.py").unlink()
        else:
            (folder / "actor.py").write_text(text)
        with pytest.raises(pytest.fail.Exception, match=r"AReaL: .*/areal/trainer/ppo/actor.py has no ppo_actor_loss"):
            look(tmp_path, "areal")
