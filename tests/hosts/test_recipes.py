"""The lines of docs/recipes.md, run against the function of each trainer that they change.

As in test_limits.py where a trainer is installed, or with BANDPO_HOSTS=FOLDER, which has a checkout or a wheel of each.
Of these only the modules in OWN run; all others, and the packages in ABSENT, are stand-ins. In all of their files every
place is looked for where they build or clamp the loss.
"""

import ast
import importlib
import importlib.machinery
import re
import sys
from abc import ABCMeta
from collections import defaultdict
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from made import BANDS, assert_near, batch, gradient
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
KEYS = {"ms-swift": "swift", "labs-molt": "molt", "TRL's SDPO": "sdpo"}  # else the name of the package


def parts(section):
    """Of a recipe: the trainer, its file and the name in it, the line that goes to the file's end, and the lines."""
    host, file, name = re.match(r"\*\*(.+?)\*\*.*?`([\w/]+\.py)` .*?`([\w.]+)`", section).groups()
    line = re.search(r"^`((?:from|import) bandpo_recipe.*)`$", section, re.MULTILINE)
    return host, file, name, line and line[1], re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


RECIPES = {
    KEYS.get(host, host.lower().replace("-", "_")): (host, *more)
    for host, *more in (parts(each) for each in re.split(r"\n(?=\*\*)", PAGE) if "```python" in each)
}
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


def roll(path, module, tensors):
    """It multiplies advantages by the mask when it makes them."""
    _, old, advantages, mask = tensors
    path, _, name = path.rpartition(".")
    theirs = importlib.import_module(f"roll.pipeline.{path}")
    theirs.get_episode_scores = lambda data: SimpleNamespace(to=lambda device: advantages[:, 0])  # for its log
    worker = object.__new__(getattr(theirs, name))
    worker._pg_config_cache, worker._pg_variant_logged, worker.logger = {"pg_variant": "ppo"}, True, None
    config = {"enable_old_logprobs_recompute": True, "importance_sampling": "token", "loss_agg_mode": "token-mean"}
    config |= dict.fromkeys(("difficulty_loss_weight", "length_loss_weight", "use_kl_loss"), False)
    config |= {"use_pg_clip_range": True, "pg_clip": 0.2, "pg_clip_low": 0.2, "pg_clip_high": 0.28}
    config |= {"dual_clip_loss": True, "rl_loss_coef": 1.0, "entropy_loss_coef": 0.0, "ratio_type": "token"}
    no_weight = SimpleNamespace(is_weight=SimpleNamespace(enabled=False))
    worker.pipeline_config = SimpleNamespace(**config, train_infer_correction=no_weight)
    worker.strategy = SimpleNamespace(
        op_compute_log_probs=lambda logits, **named: logits,
        op_compute_entropy=lambda logits, **named: torch.zeros_like(logits),
    )
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


def twinkle(module, tensors):
    _, old, advantages, mask = tensors
    theirs = importlib.import_module("twinkle.loss").BNPOLoss  # of whose averages this one is the mean over tokens
    ours = getattr(sys.modules["bandpo_recipe"], "BandPOLoss", None)
    kind = theirs if ours is None else type("Loss", (ours, theirs), {})
    loss, labels = kind(epsilon=0.2, epsilon_high=0.28), torch.where(mask, 1, -100)
    named = {"old_logps": old, "advantages": advantages}
    return lambda x: loss({"labels": labels}, {"logps": x}, **named)["loss"]


def molt(module, tensors):
    _, old, advantages, mask = tensors
    loss = module.PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.28, dual_clip=3.0)
    rows = {"action_mask": mask, "batch_num_tokens": mask.sum(), "dp_size": 1}
    return lambda x: loss(x, old, advantages, **rows)[0]


def easyr1(module, tensors):
    _, old, advantages, mask = tensors
    limits = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_dual": 3.0}
    named = limits | {"tau_positive": 1.0, "tau_negative": 1.05, "loss_type": "default", "loss_avg_mode": "token"}
    rows = {"old_log_probs": old, "advantages": advantages, "response_mask": mask.to(old.dtype)}
    return lambda x: module.compute_policy_loss(log_probs=x, **rows, **named)[0]


def sdpo(module, tensors):
    """Its log-probabilities are put in as logits."""
    _, old, advantages, mask = tensors
    trainer = object.__new__(getattr(sys.modules["bandpo_recipe"], "BandPOTrainer", module.SDPOTrainer))
    settings = {"epsilon_low": 0.2, "epsilon_high": 0.28, "importance_sampling_level": "token", "loss_type": "dapo"}
    settings |= {"accelerator": SimpleNamespace(gather=lambda x: x), "_metrics": defaultdict(lambda: defaultdict(list))}
    vars(trainer).update(settings, model=torch.nn.Identity())
    rows = {"completion_ids": None, "completion_mask": mask.to(old.dtype)}
    rows |= {"old_per_token_logps": old, "advantages": advantages}
    return lambda x: trainer._compute_policy_loss(rows, x)


# What calls it, its dual clip, and its limit of the log-ratio. A word more tells of several places of one trainer.
ACTORS = "rlvr.actor_worker.ActorWorker rlvr.actor_pg_worker.ActorPGWorker base_worker.ActorWorker"
ACTORS += " agentic.agentic_actor_worker.ActorWorker agentic.agentic_actor_pg_worker.ActorWorker"
RUNS = {
    "areal": (areal, 3.0, None),
    "openrlhf": (openrlhf, 3.0, 20.0),
    "nemo_rl": (nemo_rl, 3.0, None),
    "open_instruct": (open_instruct, None, None),
    **{f"roll {path}": (partial(roll, path), 1.4, None) for path in ACTORS.split()},
    "swift": (swift, None, None),
    "twinkle": (twinkle, None, 20.0),
    "molt": (molt, 3.0, 30.0),
    "easyr1": (easyr1, 3.0, 20.0),
    "sdpo": (sdpo, None, None),
}
EXACT = [name for name in RUNS if name != "easyr1"]  # whose own clamp is replaced as a whole
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
ABSENT = (
    "accelerate codetiming datasets deepspeed einops pandas ray swanlab tensordict torchdata transformers trl wandb"
)


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


# Of each trainer: what its recipe changes, the files that build or call it, and those that clamp between 1 - and 1 +.
NEMO, ROLL = (
    "nemo_rl/algorithms",
    [f"roll/pipeline/{path.rpartition('.')[0].replace('.', '/')}.py" for path in ACTORS.split()],
)
PLACES = {
    "areal": (r"ppo_actor_loss_fn\(", "areal/trainer/ppo/actor.py", "areal/utils/functional/functional.py"),
    "openrlhf": (r"PolicyLoss\(", "openrlhf/trainer/ray/ppo_actor.py", "openrlhf/models/loss.py"),
    "nemo_rl": (
        r"ClippedPGLossFn\(",
        f"{NEMO}/grpo.py {NEMO}/ppo.py {NEMO}/single_controller_utils/setup.py",
        f"{NEMO}/loss/loss_functions.py",
    ),
    "open_instruct": (
        r"compute_grpo_loss\(",
        "open_instruct/grpo_fast.py open_instruct/olmo_core_train_modules.py",
        "open_instruct/grpo_utils.py",
    ),
    "roll": (r"get_old_log_probs_with_cache\(", " ".join(ROLL), " ".join(ROLL)),
    "swift": (
        r"self\._compute_loss_and_metrics\(",
        "swift/rlhf_trainers/grpo_trainer.py",
        "swift/rlhf_trainers/grpo_trainer.py swift/megatron/trainers/grpo_trainer.py swift/rl_core/advantage.py",
    ),
    "twinkle": (r"self\._compute_per_token_loss\(", "twinkle/loss/grpo.py", "twinkle/loss/grpo.py"),
    "molt": (r"get_policy_loss\(", "molt/models/loss.py", "molt/models/loss.py"),
    "easyr1": (r"compute_policy_loss\(", "verl/workers/actor/dp_actor.py", ""),  # it clamps log-ratios
    "oumi": (r"trl\.GRPOTrainer\b", "oumi/builders/training.py", ""),
}
CLAMP = r"\bclamp\((?:[^()]|\([^()]*\))*?\b1(?:\.0)? - (?!1e-6)"


def place(package):
    """Return the folder that has a trainer's package."""
    folder = Path(FOLDER or "", package)
    return folder / "src" if (folder / "src").is_dir() else folder


def look(folder, package):
    """Fail with the files where a trainer builds or clamps its loss elsewhere than its recipe was written for."""
    called, *wanted = PLACES[package]
    root = folder / PACKAGES.get(package, package)
    texts = {
        str(file.relative_to(folder)): re.sub(r"(?m)^\s*(def|class|#).*$", "", file.read_text(encoding="utf-8"))
        for file in sorted(root.rglob("*.py"))
        if not file.name.startswith("test_")
    }
    for pattern, files in zip((called, CLAMP), wanted, strict=True):
        found = [file for file, text in texts.items() if re.search(pattern, text)]
        if found != sorted(files.split()):
            pytest.fail(f"{RECIPES[package][0]}: {pattern} is in {found}, and its recipe was written for {files}")


@pytest.fixture
def trainer(request, monkeypatch):
    """Return `loss(region, tensors)` of a trainer, from its own files and the lines of the page."""
    key = request.param.split()[0]
    package = PACKAGES.get(key, key)
    _, file, name, line, text = RECIPES[key]
    before = set(sys.modules)
    if key == "easyr1" and FOLDER is None:
        pytest.skip("a package verl that is installed is another one")
    if key == "sdpo":  # which is in the TRL that is installed
        pytest.importorskip("trl")
    else:
        find(monkeypatch, Own(place(key), package, ABSENT.split(), OWN.split()))
    stand_ins = [] if key == "sdpo" else [package, *ABSENT.split()]
    replaced = pytest.MonkeyPatch()

    def loss(region, tensors):
        replaced.undo()
        forget(before, *stand_ins)
        if key == "easyr1":  # else what it takes from the package is a stand-in
            importlib.import_module("verl.utils.torch_functional")
        module = importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        if key == "sdpo":
            replaced.setattr(module, "selective_log_softmax", lambda logits, ids: logits)
        recipe = ModuleType("bandpo_recipe")
        monkeypatch.setitem(sys.modules, recipe.__name__, recipe)
        if region is not None:
            recipe.REGION = region
            if line and line.startswith("from"):
                replaced.setattr(module, name, getattr(module, name))
            if package == "swift":
                mapping = importlib.import_module("swift.trainers").TrainerFactory.TRAINER_MAPPING
                replaced.setitem(mapping, "grpo", mapping["grpo"])
            exec(text.replace(RULE, "REGION"), vars(recipe))
            exec(line or "", vars(module))
        return RUNS[request.param][0](module, tensors)

    yield request.param, loss
    replaced.undo()
    forget(before, *stand_ins)


@pytest.mark.parametrize("trainer", EXACT, indirect=True)
def test_clip_is_the_trainers_own_loss_bit_for_bit(trainer):
    assert_clip_is_its_own(trainer[1], dtypes(trainer[0]))


@pytest.mark.parametrize("trainer", ["easyr1"], indirect=True)
def test_clip_is_the_trainers_own_loss(trainer):
    for dtype in dtypes(trainer[0]):
        tensors = batch(PROBABILITIES, dtype=dtype)
        theirs, ours = (gradient(trainer[1](region, tensors), tensors[0]) for region in (None, CLIP))
        more = 1 + 1e-8 / tensors[3].sum().item()  # it adds 1e-8 to the number of tokens
        assert_near(ours, [x * more for x in theirs], dtype)
        assert ours[1].count_nonzero() > 100


@pytest.mark.parametrize("region", BANDS)
@pytest.mark.parametrize("trainer", RUNS, indirect=True)
def test_band_is_policy_loss(trainer, region):
    name, loss = trainer
    assert_band_is_policy_loss(loss, region, dtypes(name), *RUNS[name][1:])


@pytest.mark.parametrize("trainer", EXACT, indirect=True)
def test_a_rule_that_needs_more_is_refused_at_the_first_loss(trainer):
    tensors = batch(PROBABILITIES)
    with pytest.raises(ValueError, match=r"BySign needs context\.advantages"):
        gradient(trainer[1](bandpo.BySign(CLIP, BANDS[0]), tensors), tensors[0])


@pytest.mark.parametrize("file", PLACES["nemo_rl"][1].split())
@pytest.mark.parametrize("trainer", ["nemo_rl"], indirect=True)
def test_each_trainer_of_nemo_rl_imports_the_class_that_is_changed(trainer, file):
    trainer[1](CLIP, batch(PROBABILITIES))
    lines = ast.parse((place("nemo_rl") / file).read_text(encoding="utf-8")).body
    (line,) = (x for x in lines if isinstance(x, ast.ImportFrom) and "ClippedPGLossFn" in {y.name for y in x.names})
    found = {}
    exec(compile(ast.Module([line], []), file, "exec"), found)
    assert found["ClippedPGLossFn"].__call__ is sys.modules["bandpo_recipe"].loss


@pytest.mark.parametrize("package", PLACES)
def test_every_place_where_a_trainer_builds_or_clamps_its_loss_was_there_when_its_recipe_was_written(package):
    if not place(package).is_dir():
        pytest.skip(f"BANDPO_HOSTS names no folder with {package}")
    look(place(package), package)


def test_each_recipe_is_ten_lines_at_most_with_a_rule_to_replace():
    assert list(RECIPES) == [*dict.fromkeys(name.split()[0] for name in RUNS), "oumi"]
    assert {*PLACES} == RECIPES.keys() - {"sdpo"}
    for name, (*_, text) in RECIPES.items():
        assert text.replace(RULE.removeprefix("bandpo."), "").count('"kl"') == 0
        assert text.count(RULE.removeprefix("bandpo.")) == 1, name
        assert len([line for line in text.splitlines() if line]) <= 10


def test_what_moved_is_named_with_its_file(tmp_path):
    files = ["areal/trainer/ppo/actor.py", "areal/utils/functional/functional.py", "areal/more.py"]
    texts = ["loss = ppo_actor_loss_fn(logprobs)", "x = torch.clamp(ratio, 1.0 - eps, 1.0 + eps)", ""]
    for file, text in zip(files, texts, strict=True):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    look(tmp_path, "areal")
    for text in texts[:2]:
        (tmp_path / files[2]).write_text(text)
        with pytest.raises(pytest.fail.Exception, match=r"AReaL: .* is in \[.*areal/more.py.*\], and its recipe was"):
            look(tmp_path, "areal")
    (tmp_path / files[2]).write_text("")
    (tmp_path / files[0]).write_text("loss = another_loss_fn(logprobs)")
    with pytest.raises(pytest.fail.Exception, match=r"AReaL: .* is in \[\], and its recipe was written for areal/tr"):
        look(tmp_path, "areal")
