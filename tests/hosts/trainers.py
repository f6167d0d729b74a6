"""Each trainer: how its loss is called, its own or with a rule, and what it must then be. Stand-ins for its modules.

A trainer's own functions run where it is installed, and with BANDPO_HOSTS=FOLDER: it has a checkout or an unpacked
wheel of each, in a folder of its package's name (FOLDER/xtuner/xtuner/v1). Then what these import of others is a
stand-in, and torch.compile is off. The model's log-probabilities are put in.
"""

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import textwrap
import tomllib
import typing
from abc import ABCMeta
from argparse import Namespace
from collections import defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import typing_extensions
import yaml
from made import BANDS, DECADES, RATIOS, docstring, executed, lines
from scripts import ROOT

import bandpo

FOLDER = os.environ.get("BANDPO_HOSTS")
CLIP = bandpo.Clip(0.2, 0.28)
PROBABILITIES = tuple(p for p in DECADES if p >= 1e-7)
MODERATE = tuple(r for r in RATIOS if r < 15)  # a log-ratio of 88 overflows in Liger
FLOAT32, BOTH = (torch.float32,), (torch.float32, torch.float64)


# ---- stand-ins


class Sources:
    """Find a trainer's modules in a folder. Packages run no `__init__` unless `whole`; `absent` ones are stand-ins.

    With `alone` all modules that are not `whole` are stand-ins, of classes.
    """

    def __init__(self, folder, package, absent=(), whole=(), alone=False):
        self.folder, self.package, self.absent, self.whole, self.alone = folder, package, absent, whole, alone

    def find_spec(self, name, path=None, target=None):
        place, spec = self.folder / name.replace(".", "/"), importlib.util.spec_from_file_location
        if any(f"{name}.".startswith(f"{each}.") for each in self.absent):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if name.split(".")[0] != self.package:
            return None
        if name in self.whole or not (self.alone or place.is_dir()):
            return spec(name, place / "__init__.py" if place.is_dir() else place.with_suffix(".py"))
        hollow = importlib.machinery.ModuleSpec(name, self if self.alone else None, is_package=True)
        hollow.submodule_search_locations = [str(place)]
        return hollow

    def create_module(self, spec):
        module = ModuleType(spec.name)
        anything = partial(Anything.__getattr__, None)
        module.__getattr__ = anything if self.alone else lambda name: MagicMock(name=name)
        return module

    def exec_module(self, module):
        pass


class Anything(ABCMeta):
    """A class that does whatever it is asked for, also as a base, a decorator or a context."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __call__(cls, *args, **named):
        return args[0] if args and callable(args[0]) else cls

    def __enter__(cls, *index):
        return cls

    def __exit__(cls, *anything):
        pass

    __getitem__, __delattr__ = __enter__, __exit__

    def __get_pydantic_core_schema__(cls, *arguments):
        return {"type": "any"}


def stand_in(patch, name, ours=None, **names):
    """Put a module of these names in the place of a trainer's, and import our module `ours` over it."""
    module = ModuleType(name)
    vars(module).update(names)
    patch.setitem(sys.modules, name, module)
    if ours is None:
        return module
    patch.delitem(sys.modules, f"bandpo.integrations.{ours}", raising=False)
    imported = importlib.import_module(f"bandpo.integrations.{ours}")
    patch.delitem(sys.modules, imported.__name__)
    return imported


def use_sources(patch, sources):
    """Take a trainer's modules from BANDPO_HOSTS, else the installed ones, or skip."""
    if FOLDER is not None:
        if not sources.folder.is_dir():
            pytest.skip(f"BANDPO_HOSTS has no folder {sources.package}")
        patch.setattr(sys, "meta_path", [sources, *sys.meta_path])
        patch.setattr(torch, "compile", lambda fn=None, **named: fn or (lambda fn: fn))
    elif importlib.util.find_spec(sources.package) is None:
        pytest.skip(f"{sources.package} is not installed, and BANDPO_HOSTS names no folder")


def forget(before, *packages):
    """Let what came from BANDPO_HOSTS be imported anew."""
    for each in set(sys.modules) - before if FOLDER is not None else ():
        if each.split(".")[0] in packages:
            del sys.modules[each]


def place(package):
    """Return the folder that has a trainer's package."""
    folder = Path(FOLDER or "", package)
    return folder / "src" if (folder / "src").is_dir() else folder


def node(region, page):
    """Return what our page has where the region is the same, else the region's own node."""
    return page["trust_region"] if region == BANDS[0] else region.to_config()


class Asking(bandpo.Region):
    """A rule that requires a field of the context."""

    def __init__(self, field):
        self.required = (field,)

    def bounds(self, old_logps, context=None):
        return CLIP.bounds(old_logps)


# ---- trainers of two numbers, in whose place the bounds stand: the loss of log-probabilities, its own (None) or of a
# region, called as the trainer calls it


def xtuner(host, region, old, advantages, mask):
    config = {"loss_type": "vanilla", "cliprange_low": 0.2, "cliprange_high": 0.28}
    if region is not None:
        config = executed("xtuner")["policy_loss_cfg"]
        config["trust_region"] = node(region, config)
    (made,) = names_of("xtuner.v1.rl.loss.loss_fn", "get_policy_loss_fn")
    return lambda x: made(config["loss_type"])(x, old, advantages, mask.to(old.dtype) / mask.sum(), config)


def trinity(host, region, old, advantages, mask):
    (registry,) = names_of("trinity.utils.registry", "Registry")
    numbers = {"clip_range_low": 0.2, "clip_range_high": 0.28}
    its = "trinity.algorithm.policy_loss_fn.ppo_policy_loss.PPOPolicyLossFn", numbers
    ours = "bandpo.integrations.trinity.BandPOLoss", {"trust_region": region and region.to_config()}
    name, named = its if region is None else ours
    loss = registry("policy_loss_fn").get(name)(backend="verl", **named)
    assert set(loss.select_keys) == {"old_log_probs", "response_mask", "advantages"}
    return lambda x: loss(logprob=x, old_log_probs=old, response_mask=mask, advantages=advantages)[0]


def rlinf(host, region, old, advantages, mask):
    losses, registry = map(importlib.import_module, ("rlinf.algorithms.losses", "rlinf.algorithms.registry"))
    if region is not None:
        importlib.import_module("bandpo.integrations.rlinf").register_bandpo_loss(region)
    named = {
        "task_type": "reasoning",
        "loss_type": "actor" if region is None else "bandpo",
        "clip_ratio_c": 3.0,
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.28,
        "fast_path_zero_loss_mask": True,
        "loss_agg_func": losses.masked_mean,
        "advantages": advantages,
        "loss_mask": mask,
        "old_logprobs": old,
    }
    return lambda x: registry.policy_loss(logprobs=x, **named)[0]


def names_of(module, *names):
    """Import names where a case asks for them: not every trainer is installed."""
    return [getattr(importlib.import_module(module), name) for name in names]


def flags(host):
    """Return what the flags of our page set."""
    words = lines(host).split()
    return Namespace(**{flag[2:].replace("-", "_"): x for flag, x in zip(words[::2], words[1::2], strict=True)})


def megatron(name, loss, region, old, advantages, mask):
    """slime and miles: one sample a row, one list of tensors a field."""
    off = ("use_rollout_logprobs", "use_opsm", "get_mismatch_metrics", "use_tis", "use_kl_loss", "dump_details")
    args = Namespace(
        **dict.fromkeys(off),
        eps_clip=0.2,
        eps_clip_high=0.28,
        eps_clip_c=3.0,
        advantage_estimator="grpo",
        calculate_per_token_loss=True,
        entropy_coef=0.0,
        skip_actor_forward_only=False,
        rollout_top_p=1.0,
        custom_pg_loss_reducer_function_path=None,
        qkv_format="thd",
        observe_training_entropy=False,
        trust_region=region and node(region, yaml.safe_load(re.search("holds `(.*?)`", docstring(name))[1])),
    )
    lengths = [old.shape[1]] * len(old)
    rows = {
        "advantages": list(advantages),
        "log_probs": list(old),
        "loss_masks": list(mask.to(old.dtype)),
        "response_lengths": lengths,
        "total_lengths": lengths,
        "unconcat_tokens": None,
    }

    def mean(values):
        return (torch.stack(values.split(lengths)) * mask).sum() / mask.sum()

    return lambda x: loss(args, rows, {"log_probs": list(x), "entropy": list(torch.zeros_like(x))}, mean)[0]


def slime(host, region, old, advantages, mask):
    losses = importlib.import_module("slime.backends.megatron_utils.loss")
    host.patch.setattr(losses, "get_log_probs_and_entropy", lambda logits, **named: (None, logits))
    own = (
        losses.policy_loss_function
        if region is None
        else losses.load_function(flags("slime").custom_loss_function_path)
    )
    return megatron("slime", own, region, old, advantages, mask)


def miles(host, region, old, advantages, mask):
    one = SimpleNamespace(cp=SimpleNamespace(size=1, rank=0))
    importlib.import_module("miles.backends.training_utils.parallel").set_parallel_state(one)
    losses = importlib.import_module("miles.backends.training_utils.loss_hub.losses")
    host.patch.setattr(losses, "get_log_probs_and_entropy", lambda logits, **named: logits)
    loss = losses.policy_loss_function if region is None else losses.get_loss_function(flags("miles"))
    return megatron("miles", loss, region, old, advantages, mask)


def torchtitan(host, region, old, advantages, mask):
    dapo = importlib.import_module("torchtitan.experiments.rl.losses.dapo")
    no_entropy = lambda logits, labels, **named: (logits, torch.zeros_like(logits))  # noqa: E731
    host.patch.setattr(dapo, "compute_logprobs", no_entropy)
    kind, settings = dapo.DAPOLoss, {"ratio_clip_low": 0.2, "ratio_clip_high": 0.28}
    if region is not None:
        (kind,), settings = names_of("bandpo.integrations.torchtitan", "BandPOLoss"), {"trust_region": region}
    named = {"generator_logprobs": old.flatten(), "advantages": advantages.flatten(), "loss_mask": mask.flatten()}
    return lambda x: kind.Config(**settings).build()(x.flatten(), None, mask.sum().item(), **named)[0]


# ---- trainers that are changed by a file of examples/trainers, of what these make


def areal(module, old, advantages, mask):
    """Its own caller of the loss, which looks the name up. Its statistics are of one batch until they are logged."""
    module.stats_tracker.export()
    data = {"logprobs": old, "prox_logp": old, "advantages": advantages, "loss_mask": mask}
    return lambda x: module.grpo_loss_fn(x, torch.zeros_like(x), data, 0.2, 0.28, 3.0)


def openrlhf(module, old, advantages, mask):
    loss = module.PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.28, dual_clip=3.0)
    return lambda x: loss(x, old, advantages, action_mask=mask.to(old.dtype), rollout_log_probs=None)[0]


def nemo_rl(module, old, advantages, mask):
    """It wants the first token of the prompt too, and adds 1e-8 to the number of tokens."""
    padded = [torch.nn.functional.pad(x.to(old.dtype), (1, 0)) for x in (old, advantages, mask)]
    data = dict(zip(("prev_logprobs", "advantages", "token_mask"), padded, strict=True))
    data |= {"generation_logprobs": data["prev_logprobs"], "sample_mask": torch.ones(len(old))}
    settings = {"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "ratio_clip_c": 3.0, "reference_policy_kl_penalty": 0.0}
    loss = module.ClippedPGLossFn(module.ClippedPGLossConfig(**settings))
    return lambda x: loss(x, data, torch.ones(()), mask.sum().item() - 1e-8)[0]


def open_instruct(module, old, advantages, mask):
    config = SimpleNamespace(loss_fn=module.GRPOLossType.dapo, clip_lower=0.2, clip_higher=0.28)

    def loss(x):
        new, before = (torch.where(mask, each, 1.0) for each in (x, old))  # as its `mask_logprobs` does
        named = {"advantages": advantages, "ref_logprobs": None, "config": config, "rho_weights": torch.ones_like(x)}
        per_token, *_ = module.compute_grpo_loss(new_logprobs=new, ratio=(new - before).exp(), **named)
        return (per_token * mask).sum() / mask.sum()

    return loss


def roll(path, module, old, advantages, mask):
    """It multiplies advantages by the mask when it makes them."""
    path, _, name = path.rpartition(".")
    theirs = importlib.import_module(f"roll.pipeline.{path}")
    theirs.get_episode_scores = lambda data: SimpleNamespace(to=lambda device: advantages[:, 0])  # for its log
    worker = object.__new__(getattr(theirs, name))
    worker._pg_config_cache, worker._pg_variant_logged, worker.logger = {"pg_variant": "ppo"}, True, None
    config = (
        {"enable_old_logprobs_recompute": True, "importance_sampling": "token", "loss_agg_mode": "token-mean"}
        | dict.fromkeys(("difficulty_loss_weight", "length_loss_weight", "use_kl_loss"), False)
        | {
            "use_pg_clip_range": True,
            "pg_clip": 0.2,
            "pg_clip_low": 0.2,
            "pg_clip_high": 0.28,
            "dual_clip_loss": True,
            "rl_loss_coef": 1.0,
            "entropy_loss_coef": 0.0,
            "ratio_type": "token",
        }
    )
    no_weight = SimpleNamespace(is_weight=SimpleNamespace(enabled=False))
    worker.pipeline_config = SimpleNamespace(**config, train_infer_correction=no_weight)
    worker.strategy = SimpleNamespace(
        op_compute_log_probs=lambda logits, **named: logits,
        op_compute_entropy=lambda logits, **named: torch.zeros_like(logits),
    )
    rows = {
        "old_log_probs": old,
        "ref_log_probs": old,
        "advantages": advantages * mask,
        "input_ids": None,
        "response_mask": torch.nn.functional.pad(mask, (1, 0)),
        "train_infer_is_weight": None,
    }
    counts = {"batch_num_tokens": {"response_mask": mask.sum()}, "global_valid_samples": {"response_mask": len(old)}}
    return lambda x: worker.loss_func(SimpleNamespace(batch=rows, meta_info=counts, non_tensor_batch={}), x)[0]


def swift(module, old, advantages, mask):
    factory = importlib.import_module("swift.trainers").TrainerFactory
    trainer = object.__new__(factory.get_trainer_cls(SimpleNamespace(rlhf_type="grpo")))
    off = """
        compute_entropy overlong_filter log_rollout_offpolicy_metrics disable_rollout_importance_sampling
        rollout_importance_sampling_mode _has_teacher off_policy_sequence_mask_delta chord_sft_iterator
    """
    settings = dict.fromkeys(off.split()) | {
        "loss_type": "bnpo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.0,
        "sdar_loss_coef": 0.0,
        "args": SimpleNamespace(delta=None),
        "accelerator": SimpleNamespace(gather_for_metrics=lambda x: x),
    }
    vars(trainer).update(settings, model=torch.nn.Identity())
    without = dict.fromkeys(("truncated_mask", "rollout_per_token_logps", "teacher_per_token_logps"))
    rows = SimpleNamespace(completion_mask=mask, old_per_token_logps=old, advantages=advantages, **without)

    def loss(x):
        vars(trainer)["_get_per_token_logps_and_entropies"] = lambda *arguments, **named: (x, None)
        return trainer._compute_loss_and_metrics(None, {}, rows)[0]

    return loss


def twinkle(module, old, advantages, mask):
    theirs = importlib.import_module("twinkle.loss").BNPOLoss  # of whose averages this one is the mean over tokens
    ours = getattr(sys.modules["bandpo_recipe"], "BandPOLoss", None)
    kind = theirs if ours is None else type("Loss", (ours, theirs), {})
    loss, labels = kind(epsilon=0.2, epsilon_high=0.28), torch.where(mask, 1, -100)
    named = {"old_logps": old, "advantages": advantages}
    return lambda x: loss({"labels": labels}, {"logps": x}, **named)["loss"]


def molt(module, old, advantages, mask):
    loss = module.PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.28, dual_clip=3.0)
    rows = {"action_mask": mask, "batch_num_tokens": mask.sum(), "dp_size": 1}
    return lambda x: loss(x, old, advantages, **rows)[0]


def easyr1(module, old, advantages, mask):
    """Its own loss has 1e-8 added to the number of tokens."""
    limits = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_dual": 3.0}
    named = limits | {"tau_positive": 1.0, "tau_negative": 1.05, "loss_type": "default", "loss_avg_mode": "token"}
    rows = {"old_log_probs": old, "advantages": advantages, "response_mask": mask.to(old.dtype)}
    own = not hasattr(sys.modules["bandpo_recipe"], "REGION")
    scale = 1 + 1e-8 / mask.sum().item() if own else 1.0
    return lambda x: scale * module.compute_policy_loss(log_probs=x, **rows, **named)[0]


def sdpo(module, old, advantages, mask):
    """Its log-probabilities are put in as logits."""
    trainer = object.__new__(getattr(sys.modules["bandpo_recipe"], "BandPOTrainer", module.SDPOTrainer))
    settings = {
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "importance_sampling_level": "token",
        "loss_type": "dapo",
        "accelerator": SimpleNamespace(gather=lambda x: x),
        "_metrics": defaultdict(lambda: defaultdict(list)),
    }
    vars(trainer).update(settings, model=torch.nn.Identity())
    rows = {
        "completion_ids": None,
        "completion_mask": mask.to(old.dtype),
        "old_per_token_logps": old,
        "advantages": advantages,
    }
    return lambda x: trainer._compute_policy_loss(rows, x)


RULE = 'bandpo.Band("kl", 0.05)'


# A file of examples/trainers: a trainer's file, the name in it, the line for that file's end, and the lines.
Recipe = namedtuple("Recipe", "host file name line text")


def recipe_of(path):
    """Read what the file says of itself."""
    remark, _, text = path.read_text(encoding="utf-8")[3:].partition('"""')
    host, file, name = re.match(r"(.+?)(?: [\d.]+|,.*)?: .*?`([\w/]+\.py)` .*?`([\w.]+)`", remark, re.DOTALL).groups()
    line = re.search("^    (.*bandpo_recipe.*)", remark, re.MULTILINE)
    return Recipe(host, file, name, line[1] if line else "", text)


RECIPES = {path.stem: recipe_of(path) for path in sorted((ROOT / "examples" / "trainers").glob("*.py"))}


def by_recipe(call, host, region, *tensors):
    """Import the trainer's file anew, and change it by the lines of its recipe, with the region for theirs."""
    key, patch = host.key, host.patch
    recipe, package = RECIPES[key], PACKAGES.get(key, key)
    if key != "sdpo":  # which is in the TRL that is installed
        forget(host.before, package, *ABSENT.split())
    if key == "easyr1":  # else what it takes from the package is a stand-in
        importlib.import_module("verl.utils.torch_functional")
    path = recipe.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module = importlib.import_module(path)
    if key == "sdpo":
        patch.setattr(module, "selective_log_softmax", lambda logits, ids: logits)
    its_lines = stand_in(patch, "bandpo_recipe")
    if region is not None:
        its_lines.REGION = region
        if recipe.line.startswith("from"):
            patch.setattr(module, recipe.name, getattr(module, recipe.name))
        if package == "swift":
            mapping = importlib.import_module("swift.trainers").TrainerFactory.TRAINER_MAPPING
            patch.setitem(mapping, "grpo", mapping["grpo"])
        exec(recipe.text.replace(RULE, "REGION"), vars(its_lines))
        exec(recipe.line, vars(module))
    return call(module, *tensors)


# ---- trainers that call a loss of ours


class Policy:
    """What torchrl's GRPOLoss asks of a policy: a distribution over the sequence, with the mask of the response."""

    in_keys = ()

    def __init__(self, logps, mask):
        self.dist = SimpleNamespace(log_prob=lambda action: logps, mask=mask)

    def get_dist(self, tensordict, logits_key):
        return self.dist


def torchrl(aggregation, host, region, old, advantages, mask, calls=1):
    (TensorDict,) = names_of("tensordict", "TensorDict")
    (GRPOLoss,), (BandPOLoss,) = (
        names_of("torchrl.objectives.llm", "GRPOLoss"),
        names_of("bandpo.integrations.torchrl", "BandPOLoss"),
    )
    fields = {("tokens", "full"): torch.zeros(mask.shape, dtype=torch.long), ("log_probs", "full"): old}
    sequences = TensorDict(fields | {"advantage": advantages[..., None]}, batch_size=[len(mask)])
    named = {"entropy_bonus": False, "aggregation": aggregation}

    def ours(policy, trust_region=region, **ignored):  # the line of our page has the other settings too
        return BandPOLoss(policy, trust_region=trust_region, **named)

    def loss(x):
        policy = Policy(x, mask)
        if region is None:
            module = GRPOLoss(policy, clip_epsilon=(0.2, 0.28), **named)
        elif region == BANDS[0]:
            module = executed("torchrl", policy=policy, BandPOLoss=ours)["loss"]
        else:
            module = ours(policy)
        for _ in range(calls):
            out = module(sequences)
        host.logged["clip_fraction"] = out.clip_fraction.item()
        return out.loss_objective.sum()

    return loss


def hidden_states(logps):
    """Hidden states whose first token of a vocabulary of two has these log-probabilities, with the identity as head."""
    logps = logps.double().clamp(max=-1e-9)
    return torch.stack([logps - torch.log(-torch.expm1(logps)), torch.zeros_like(logps)], -1).float()


def liger_settings(loss_type):
    settings = {"loss_type": loss_type, "beta": 0.0, "use_ref_model": False, "compiled": False}
    return settings | ({"max_completion_length": 20} if loss_type == "dr_grpo" else {})


def liger(loss_type, host, region, old, advantages, mask, on_policy=False, module=None, **named):
    """From hidden states, in one chunk, as ours needs."""
    settings, (ours,) = liger_settings(loss_type), names_of("bandpo.integrations.liger", "BandPOLoss")
    if module is None and region is None:
        (theirs,) = names_of("liger_kernel.chunked_loss.grpo_loss", "LigerFusedLinearGRPOLoss")
        module = theirs(epsilon_low=0.2, epsilon_high=0.28, chunk_size=len(mask), **settings)
    module = module or ours(region.to_config(), **settings)
    arguments = torch.eye(2), torch.zeros(mask.shape, dtype=torch.long), mask.long(), advantages[:, 0].float()
    named["old_per_token_logps"] = None if on_policy else old.float()

    def loss(hidden):
        value, metrics = module(hidden, *arguments, **named)
        host.logged["cut/fraction"] = metrics[-1].item()
        return value

    return loss


def let_pydantic_take_typed_dicts(patch):
    """It refuses those of SkyRL 0.3.0 on Python 3.11."""
    if sys.version_info < (3, 12):
        patch.setattr(typing, "TypedDict", typing_extensions.TypedDict)


def of_skyrl(patch):
    """Its registry of losses, which is as before afterwards, its settings, and our function."""
    (registry,) = names_of("skyrl.backends.skyrl_train.utils.ppo_utils", "PolicyLossRegistry")
    patch.setattr(registry, "_functions", dict(registry._functions))
    (settings,) = names_of("skyrl.train.config", "AlgorithmConfig")
    return registry, settings, *names_of("bandpo.integrations.skyrl", "register_bandpo_loss")


def skyrl(kind, host, region, old, advantages, mask, rollout=None, **settings):
    """As its worker calls them. `rollout` has the sampler as anchor."""
    (registry, config_of, register), name = of_skyrl(host.patch), "bandpo"
    if region is None:
        name = "dual_clip" if kind == "dual_clip" else "regular"
        settings |= {"eps_clip_low": 0.2, "eps_clip_high": 0.28, "clip_ratio_c": 3.0}
    elif kind == "rollout":
        old, rollout = old - 0.1, old
        register(region, anchor="rollout")
    elif region == BANDS[0] and kind == "regular":
        executed("skyrl")
    else:
        register(bandpo.Objective(region, dual_clip=3.0 if kind == "dual_clip" else None).to_config())
    config = config_of(policy_loss_type=name, **settings)

    def loss(x):
        named = {"config": config, "loss_mask": mask.to(x.dtype), "rollout_logprobs": rollout}
        value, logged = registry.get(name)(x, old, advantages, **named)
        logged["cut/fraction"] = logged.pop("clip_ratio")
        host.log(logged)
        return value

    return loss


def ppo(old, advantages, mask, limit=None):
    """The textbook's: minus the sum of min(r A, clip(r, 0.8, 1.28) A)."""

    def loss(x):
        ratio = (x - old if limit is None else (x - old).clamp(-limit, limit)).exp()
        return -torch.where(mask, torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages), 0.0).sum()

    return loss


def datums(
    old, advantages, mask, make=SimpleNamespace, to_input=lambda x: SimpleNamespace(to_torch=lambda: x), drop=()
):
    """One datum of tinker's a response, of its length."""
    data = []
    for before, its, inside in zip(old, advantages, mask, strict=True):
        n = max(1, int(inside.nonzero().max()) + 1) if inside.any() else 1
        rows = {
            "target_tokens": torch.zeros(n, dtype=torch.long),
            "logprobs": before[:n],
            "advantages": its[:n],
            "mask": inside[:n].to(old.dtype),
        }
        data.append(make({name: to_input(x) for name, x in rows.items() if name not in drop}))
    return data


def tinker_loss(host, region, old, advantages, mask):
    """Our loss, called with what another server of tinker's API has; without tinker. Its own is the textbook's."""
    if region is None:
        return ppo(old, advantages, mask)
    (ours,) = names_of("bandpo.integrations.tinker", "bandpo_loss")
    data = datums(old, advantages, mask, lambda rows: SimpleNamespace(loss_fn_inputs=rows))

    def loss(x):
        rows = [row[: len(datum.loss_fn_inputs["mask"].to_torch())] for row, datum in zip(x, data, strict=True)]
        value, logged = ours(region)(data, rows)
        host.log(logged)
        return value

    return loss


def tinker_datum(rows):
    tinker = importlib.import_module("tinker")
    tokens = tinker.ModelInput.from_ints([1] * len(rows["target_tokens"].to_torch()))
    return tinker.types.Datum(model_input=tokens, loss_fn_inputs=rows)


def tinker(masked, host, region, old, advantages, mask, drop=()):
    """By the code of `TrainingClient` that runs a loss; what it sends back to its server is minus the gradient."""
    if region is None:
        return ppo(old, advantages, mask)
    theirs, (ours,) = importlib.import_module("tinker"), names_of("bandpo.integrations.tinker", "bandpo_loss")
    as_data = theirs.TensorData.from_torch
    data = datums(old, advantages, mask, tinker_datum, as_data, drop or (() if masked else ("mask",)))
    fn = ours(bandpo.Objective(region).to_config())
    if region == BANDS[0]:
        calls = []
        client = SimpleNamespace(forward_backward_custom=lambda *arguments: calls.append(arguments))
        executed("tinker", training_client=client, data=data)
        ((_, fn),) = calls

    def loss(x):
        rows = [row[: len(each.loss_fn_inputs["target_tokens"].to_torch())] for row, each in zip(x, data, strict=True)]
        outputs = [{"logprobs": as_data(row.detach().float())} for row in rows]
        server = theirs.ForwardBackwardOutput(loss_fn_output_type="logprobs", loss_fn_outputs=outputs, metrics={})
        result = theirs.TrainingClient._compute_custom_loss(data, fn, server)
        host.log(result.metrics)
        slopes = [-datum.loss_fn_inputs["weights"].to_torch() for datum in result.data]
        moved = sum((row * slope).sum() for row, slope in zip(rows, slopes, strict=True))
        return result.loss_sum + moved - moved.detach()

    return loss


def prime_rl_module(host):
    """prime-rl's module of losses, with stand-ins for its configuration classes."""
    module = importlib.import_module("prime_rl.trainer.rl.loss")
    for name in ("CustomLossConfig", "IPOLossConfig"):
        host.patch.setattr(module, name, type(name, (SimpleNamespace,), {}))
    return module


def prime_rl(from_source, host, region, old, advantages, mask, weights=None, settings=None, **kwargs):
    """A packed batch by our loss, or by prime-rl's own of these settings; what calls it is as read in 0.8.0."""
    from bandpo.integrations.prime_rl import loss as ours

    page = tomllib.loads(lines("prime_rl"))["trainer"]["loss"]
    if region is None and settings is None:  # the example of its page on custom losses
        textbook = ppo(old, advantages, mask)
        return lambda x: textbook(x) / mask.sum()
    if region is not None:
        kwargs = kwargs or (page["kwargs"] if region == BANDS[0] else {"trust_region": region.to_config()})

    def loss(x):
        rows = [None if each is None else [*each] for each in (x, old, advantages, mask, weights)]
        if from_source:
            theirs = prime_rl_module(host)
            config = theirs.CustomLossConfig(**page | {"kwargs": kwargs})
            if settings is not None:
                config = (theirs.IPOLossConfig if "ipo_threshold" in settings else SimpleNamespace)(**settings)
            call = theirs.setup_rl_loss_fn(config)
            shared = rows[0], rows[1], None, rows[2], rows[3], rows[4], None, None
            value, metrics = theirs.compute_loss(*shared, call, int(mask.sum()), 1, 1)
            logged = [{name: number.sum() for name, number in metrics.items()}]
        else:
            logged, value = [], torch.zeros(())
            names = ("trainer_logprobs", "inference_logprobs", "advantages", "loss_mask", "loss_weights")
            for row in zip(*rows[:4], rows[4] or [None] * len(x), strict=True):
                out = ours(SimpleNamespace(**dict(zip(names, row, strict=True)), ref_logprobs=None), **kwargs)
                logged.append(out.metrics)
                value = value + out.loss / mask.sum()
        host.log({name: sum(row[name] for row in logged).item() for name in logged[0]})
        return value

    return loss


def rllm(kind, host, region, old, advantages, mask, params=None, rollout=None):
    """On a stand-in for rLLM's `register_loss`, after what our page's `loss_plugins` name was imported.

    By pull request 713: a loss is given a `LossContext`, by verl a batch (B, T), by tinker and Fireworks one response
    (T,), and returns a scalar that `ctx.aggregate` made. rLLM's main does not have it.
    """
    if region is None:
        return ppo(old, advantages, mask, limit=20.0)
    losses, page = {}, yaml.safe_load(lines("rllm"))["algorithm"]
    (ours,) = page["loss_plugins"]
    register = lambda name, *, agg_mode=None: lambda loss: losses.setdefault(name, loss)  # noqa: E731
    stand_in(host.patch, "rllm", ours.rpartition(".")[2], register_loss=register)
    params = params or {"trust_region": node(region, page["loss_params"])}
    if kind == "sampler":
        params["anchor"], old, rollout = "sampler", old - 0.1, old
    mask = mask.to(old.dtype)

    def loss(x):
        values = []
        rows = zip(x, old, advantages, mask, strict=True) if kind == "each" else [(x, old, advantages, mask)]
        for new, before, its, inside in rows:
            context = {
                "logp_curr": new,
                "logp_old": before,
                "advantages": its,
                "action_mask": inside,
                "params": {"eps_clip": 0.2, "eps_clip_high": None, "kl_beta": 0.0} | params,
                "backend": "verl",
                "obs_mask": torch.zeros_like(inside),
                "logp_ref": None,
                "logp_rollout": rollout,
                "aggregate": lambda values, mask, mode=None: (values * mask).sum(),
            }
            value, numbers = losses[page["loss_fn"]](SimpleNamespace(**context))
            values.append(value)
            for name in ("tokens", "clip/count"):
                host.logged[name] = host.logged.get(name, 0) + numbers[f"bandpo/{name}"]
        return torch.stack(values).sum()

    host.logged.clear()
    return loss


# ---- unsloth, which cannot train here: its own `compute_loss`, `grpo_accumulated_loss`, `UnslothEfficientGRPO` and
# `grpo_compute_loss`, uncompiled, over a model that only has logits


UNSLOTH = {
    "loss_type": "bnpo",
    "epsilon": 0.2,
    "epsilon_high": None,
    "generation_kwargs": None,
    "temperature": 1.0,
    "importance_sampling_level": "token",
    "delta": None,
}


def unsloth_modules(patch):
    """Return the module of unsloth_zoo's loss, and unsloth's `compute_loss`, from the wheels of both."""
    pytest.importorskip("trl")
    if FOLDER is None:
        pytest.skip("BANDPO_HOSTS names no folder")
    read = inspect.getsource
    on = dict.fromkeys(("UNSLOTH_ALLOW_CPU", "UNSLOTH_COMPILE_DISABLE", "UNSLOTH_IS_PRESENT"), "1")
    off = dict.fromkeys(("UNSLOTH_GRPO_SEQ_PACKING", "UNSLOTH_GRPO_PREFIX_GROUPER"), "0")
    for name, value in (on | off | {"ACCELERATE_MIXED_PRECISION": "no"}).items():
        patch.setenv(name, value)
    packages = {"unsloth_zoo": [], "unsloth": ["unsloth.device_type", "unsloth.models._utils"]}
    for name, absent in packages.items():
        use_sources(patch, Sources(place(name), name, absent))
    patch.setattr(inspect, "getsource", lambda of: "" if isinstance(of, MagicMock) else read(of))
    zoo = importlib.import_module("unsloth_zoo.rl_replacements")
    patch.setattr(zoo, "device_synchronize", lambda: None)
    theirs = importlib.import_module("unsloth.models.rl_replacements")
    space = {**vars(theirs), **vars(zoo), "nanmin": torch.min, "nanmax": torch.max}
    exec(textwrap.dedent(theirs.grpo_trainer_compute_loss("compute_loss", "")), space)
    return zoo, space["compute_loss"]


def wide(x, left):
    """Move rows without a token of left padding by one, as unsloth does."""
    nothing = torch.zeros_like(x[:, :1])
    return torch.where(left[:, None], torch.cat([x, nothing], 1), torch.cat([nothing, x], 1))


def has_left_padding(mask):
    return torch.arange(len(mask)) % 2 == 0


def three_logits(logps):
    """Logits of three tokens, of which the last is padding, and of one token more."""
    logps = wide(logps, has_left_padding(logps)).double().clamp(max=-1e-9)
    logits = torch.stack([logps, torch.log(-torch.expm1(logps)), torch.full_like(logps, -60.0)], -1)
    return torch.nn.functional.pad(logits, (0, 0, 0, 1)).float()


def of_three_logits(logits):
    logps = logits[:, :-1].log_softmax(-1)[..., 0]
    return torch.where(has_left_padding(logps)[:, None], logps[:, :-1], logps[:, 1:])


class Logits(torch.nn.Module):
    """A model that has its logits."""

    def __init__(self, logits):
        super().__init__()
        self.logits, self.taken = logits, 0
        self.head, self.device, self.config = torch.nn.Linear(7, 3), torch.device("cpu"), SimpleNamespace()

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, **named):
        first, self.taken = self.taken, self.taken + len(input_ids)
        return SimpleNamespace(logits=self.logits[first : self.taken])


def unsloth(loss_type, host, region, old, advantages, mask):
    from bandpo.integrations.unsloth import _Bounded

    left = has_left_padding(mask)
    calls = {"gather": lambda x: x[None], "unwrap_model": lambda model, **named: model}
    accelerator = SimpleNamespace(num_processes=1, scaler=None, **calls)
    args = UNSLOTH | {
        "loss_type": loss_type,
        "max_completion_length": 20,
        "unsloth_num_chunks": -1,
        "unsloth_grpo_mini_batch": 4,
        "unsloth_logit_chunk_multiplier": 2,
        "steps_per_generation": None,
    }

    class Theirs:
        compute_loss = host.modules[1]

        def __init__(self):
            self.args, self.accelerator, self.beta, self.use_vllm = SimpleNamespace(**args), accelerator, 0.0, False
            self.epsilon_low, self.epsilon_high, self.loss_type = 0.2, 0.28, loss_type
            self.processing_class, self._metrics = SimpleNamespace(pad_token_id=2), {"train": defaultdict(list)}
            self.current_gradient_accumulation_steps = 1

        def _get_per_token_logps(self, *arguments):
            return None

    trainer = Theirs() if region is None else type("Ours", (_Bounded, Theirs), {})(trust_region=region)
    prompts = torch.where(left[:, None], torch.tensor([[2, 0]]), torch.tensor([[0, 0]]))
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": (prompts != 2).long(),
        "completion_mask": mask.long(),
        "completion_ids": torch.where(mask, 0, 2),
        "advantages": advantages[:, 0].float(),
        "old_per_token_logps": wide(old, left).float(),
        "max_left_pad": 1,
    }

    def loss(logits):
        trainer.model = Logits(logits)
        value = trainer.compute_loss(trainer.model, inputs)
        ratios = trainer._metrics["train"]
        host.logged |= {name: min(ratios[name]) for name in ("clip_ratio/low_mean", "clip_ratio/high_mean")}
        return value

    return loss


# ---- the table


@dataclass(frozen=True)
class Case:
    """How a trainer is called, and what its loss with a rule must be: `bandpo.policy_loss` of this.

    Args:
        loss: of an `Opened` case, a region (None: its own with 0.2 and 0.28) and a batch, the loss of the leaf.
        package: what must be installed, or be in BANDPO_HOSTS; "" for none.
        sources: how its package is searched in BANDPO_HOSTS, if it is.
        exact: `Clip` is its own loss bit for bit; else within `rtol`, or it is the textbook's.
        dual_clip, limit, aggregation, normalizer: of the objective; the last by the mask.
        dtypes, decades, ratios: of the batches; `clip_dtypes` of those with `Clip`, if they are others.
        leaf, logps: what has the gradient, of the log-probabilities, and the other way round.
        rtol: of the value, if float32 adds up in another order.
        sure: of log-probabilities, the tokens that have a gradient in its float32 wherever the rule has one.
        adds_up: the losses of parts of a batch sum to that of the whole.
        takes_empty: a response may be empty.
    """

    loss: Callable
    package: str = ""
    sources: Callable | None = None
    exact: bool = True
    dual_clip: float | None = None
    limit: float | None = None
    aggregation: str = "token-mean"
    normalizer: Callable | None = None
    dtypes: tuple = BOTH
    clip_dtypes: tuple = ()
    decades: tuple = tuple(DECADES)
    ratios: tuple = tuple(RATIOS)
    leaf: Callable = torch.clone
    logps: Callable = torch.clone
    rtol: float | None = None
    sure: Callable = lambda logps: True
    adds_up: bool = False
    takes_empty: bool = True

    def expected(self, region, tensors):
        """Return what value and gradient must be."""
        leaf, others = self.leaf(tensors[0]).requires_grad_(), tensors[1:]
        logps = self.logps(leaf)
        named = {"dual_clip": self.dual_clip, "max_log_ratio": self.limit, "aggregation": self.aggregation}
        arguments = (x.to(logps.dtype) if x.is_floating_point() else x for x in others)
        normalizer = self.normalizer and self.normalizer(others[-1])
        loss, _ = bandpo.policy_loss(logps, *arguments, bandpo.Objective(region, **named), normalizer=normalizer)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]


# Packages that are not here, and `__init__`s that run.
TITAN = ["spmd_types", *(f"torchtitan.{name}" for name in ("distributed", "tools", "observability", "config.manager"))]
TITAN_OWN = ["torchtitan.config", "torchtitan.experiments.rl.losses"]
PRIME = ["beartype", "jaxtyping", "wandb", "prime_rl.configs", "prime_rl.utils.logger", "prime_rl.utils.pathing"]
MILES = ["ray", "miles.utils.http_utils", "miles.utils.ft_utils"]
ABSENT = (
    "accelerate codetiming datasets deepspeed einops pandas ray swanlab tensordict torchdata transformers trl wandb"
)
PACKAGES = {"easyr1": "verl", "sdpo": "trl"}  # where that is not the name
OWN = """
    areal.trainer.ppo.actor areal.utils.functional areal.utils.functional.functional
    openrlhf.trainer.ray.ppo_actor openrlhf.models openrlhf.models.loss openrlhf.models.utils
    nemo_rl.algorithms.grpo nemo_rl.algorithms.ppo nemo_rl.algorithms.single_controller_utils.setup
    nemo_rl.algorithms.utils nemo_rl.algorithms.loss
    nemo_rl.algorithms.loss.interfaces nemo_rl.algorithms.loss.loss_functions
    open_instruct.grpo_utils open_instruct.rl_utils
    roll.pipeline.rlvr.actor_worker roll.pipeline.rlvr.actor_pg_worker roll.pipeline.base_worker
    roll.pipeline.agentic.agentic_actor_worker roll.pipeline.agentic.agentic_actor_pg_worker roll.utils.functionals
    swift.rlhf_trainers swift.rlhf_trainers.grpo_trainer swift.trainers swift.trainers.trainer_factory
    swift.utils.import_utils
    twinkle.loss twinkle.loss.base twinkle.loss.grpo twinkle.data_format twinkle.data_format.output
    molt.models.loss molt.models.utils
    verl.workers.actor.dp_actor verl.trainer.core_algos verl.utils.torch_functional
"""
ACTORS = """
    rlvr.actor_worker.ActorWorker rlvr.actor_pg_worker.ActorPGWorker base_worker.ActorWorker
    agentic.agentic_actor_worker.ActorWorker agentic.agentic_actor_pg_worker.ActorWorker
"""


def clamping(loss, absent, whole=(), **more):
    """A trainer of two numbers."""
    name = loss.__name__
    sources = partial(Sources, package=name, absent=absent, whole=whole)
    return Case(loss, name, sources, decades=PROBABILITIES, **more)


def recipe(call, key, **more):
    """A trainer of examples/trainers."""
    package = PACKAGES.get(key, key)
    sources = (
        None
        if key == "sdpo"
        else partial(Sources, package=package, absent=ABSENT.split(), whole=OWN.split(), alone=True)
    )
    return Case(partial(by_recipe, call), package, sources, decades=PROBABILITIES, **more)


def summing(loss, *arguments, package="", **more):
    """A trainer that sums over tokens."""
    more = {"normalizer": lambda mask: 1.0, "adds_up": True} | more
    return Case(partial(loss, *arguments), package, **more)


_SEQUENCE = {"aggregation": "seq-mean-token-mean", "normalizer": lambda mask: float(len(mask))}
_HIDDEN = {
    "leaf": hidden_states,
    "logps": lambda x: x.double().log_softmax(-1)[..., 0],
    "dtypes": FLOAT32,
    "rtol": 1e-4,
    "sure": lambda logps: (logps < -(2**-23))[..., None],
    "ratios": MODERATE,
    "package": "liger_kernel",
}
_THREE = {"leaf": three_logits, "logps": of_three_logits, "dtypes": FLOAT32, "package": "unsloth", "rtol": 1e-5}
_NORM = {"aggregation": "seq-mean-token-sum-norm", "normalizer": lambda mask: 20.0 * len(mask)}
_TINKER = {"package": "tinker", "dtypes": FLOAT32, "rtol": 1e-4, "exact": False}
_CLIP32 = {"clip_dtypes": FLOAT32}
# A word behind the key of a trainer tells of several ways or places of it.
CASES = {
    "trinity": clamping(trinity, ["trinity.utils.log"], dual_clip=3.0, limit=20.0),
    "xtuner": clamping(xtuner, [], dual_clip=3.0, limit=20.0),
    "rlinf": clamping(rlinf, ["rlinf.scheduler"], dual_clip=3.0, dtypes=FLOAT32),  # it refuses float64
    "miles": clamping(miles, MILES, dual_clip=3.0, limit=20.0, dtypes=FLOAT32),  # its ratios are of float32
    "slime": clamping(slime, ["megatron", "slime.utils.http_utils"], dual_clip=3.0),
    "torchtitan": clamping(torchtitan, TITAN, TITAN_OWN, limit=10.0),
    "areal": recipe(areal, "areal", dual_clip=3.0, dtypes=FLOAT32),  # its statistics refuse float64
    "openrlhf": recipe(openrlhf, "openrlhf", dual_clip=3.0, limit=20.0),
    "nemo_rl": recipe(nemo_rl, "nemo_rl", dual_clip=3.0),
    "open_instruct": recipe(open_instruct, "open_instruct"),
    **{f"roll {path}": recipe(partial(roll, path), "roll", dual_clip=1.4) for path in ACTORS.split()},
    "swift": recipe(swift, "swift"),
    "twinkle": recipe(twinkle, "twinkle", limit=20.0),
    "molt": recipe(molt, "molt", dual_clip=3.0, limit=30.0, dtypes=FLOAT32),  # its ratios are of float32
    "easyr1": recipe(easyr1, "easyr1", dual_clip=3.0, limit=20.0, exact=False),  # its clamp is replaced as a whole
    "sdpo": recipe(sdpo, "sdpo"),
    "torchrl token_mean": Case(partial(torchrl, "token_mean"), "torchrl", **_CLIP32),
    "torchrl prompt_mean": Case(partial(torchrl, "prompt_mean"), "torchrl", **_CLIP32, **_SEQUENCE),
    "torchrl none": summing(torchrl, "none", package="torchrl", **_CLIP32),
    "liger grpo": Case(partial(liger, "grpo"), **_HIDDEN, **_SEQUENCE),  # it counts an empty response
    "liger bnpo": Case(partial(liger, "bnpo"), **_HIDDEN),
    "liger dapo": Case(partial(liger, "dapo"), **_HIDDEN),
    "liger dr_grpo": Case(partial(liger, "dr_grpo"), **_HIDDEN, **_NORM),
    "skyrl regular": summing(skyrl, "regular", package="skyrl", **_CLIP32, limit=20.0, ratios=(-25.0, *RATIOS, 25.0)),
    "skyrl dual_clip": summing(skyrl, "dual_clip", package="skyrl", **_CLIP32, limit=20.0, dual_clip=3.0),
    "skyrl rollout": summing(skyrl, "rollout", package="skyrl", **_CLIP32, limit=20.0, exact=False),
    "tinker": summing(tinker, True, **_TINKER),
    "tinker without a mask": summing(tinker, False, takes_empty=False, **_TINKER),
    "tinker_loss": summing(tinker_loss, rtol=1e-4, exact=False),
    "prime_rl": Case(partial(prime_rl, False), exact=False),
    "prime_rl source": Case(
        partial(prime_rl, True), "prime_rl", partial(Sources, package="prime_rl", absent=PRIME), exact=False
    ),
    "rllm": summing(rllm, "", limit=20.0, exact=False),
    "rllm each": summing(rllm, "each", limit=20.0, exact=False),
    "rllm sampler": summing(rllm, "sampler", limit=20.0, exact=False),
    "unsloth grpo": Case(partial(unsloth, "grpo"), **_THREE, **_SEQUENCE),
    "unsloth bnpo": Case(partial(unsloth, "bnpo"), **_THREE),
    "unsloth dr_grpo": Case(partial(unsloth, "dr_grpo"), **_THREE, **_NORM),
}  # fmt: skip


class Opened:
    """A case, opened for a test."""

    def __init__(self, key, patch):
        self.key, self.patch, self.before = key.split()[0], patch, set(sys.modules)
        self.case, self.logged = CASES[key], {}
        package, sources = self.case.package, self.case.sources
        let_pydantic_take_typed_dicts(patch)
        if self.key == "easyr1" and FOLDER is None:
            pytest.skip("a package verl that is installed is another one")
        if sources is not None:
            use_sources(patch, sources(place(self.key)))
        elif self.key == "unsloth":
            self.modules = unsloth_modules(patch)
        elif package:
            pytest.importorskip(package)

    def log(self, numbers):
        self.logged |= {name.removeprefix("bandpo/"): number for name, number in numbers.items()}

    def run(self, region, tensors, **named):
        """Return value, gradient of the leaf, and what the trainer logs."""
        leaf = self.case.leaf(tensors[0]).requires_grad_()
        self.logged = {}
        with pytest.MonkeyPatch.context() as self.patch:
            loss = self.case.loss(self, region, *tensors[1:], **named)
            value = loss(leaf)
            return value.detach(), torch.autograd.grad(value, leaf)[0], self.logged

    def close(self):
        """Forget the stand-ins, and what was imported over them."""
        sys.modules.pop(f"bandpo.integrations.{self.key}", None)
        absent = [] if self.case.sources is None else ABSENT.split() + TITAN + PRIME + MILES + ["megatron"]
        forget(self.before, self.case.package, "unsloth_zoo", *(name.split(".")[0] for name in absent))
