"""The typed description of a run: a recipe (YAML) with `key=value` overrides becomes a `RunConfig`, and back.

A recipe may name another one as its `base`, or a `scene` of the lab; it then only holds what differs.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic
import yaml

from bandpo.errors import UserError, nearest
from bandpo.files.yaml import parse_yaml, read_yaml
from bandpo.losses.nodes import method_or_objective, objective
from bandpo.losses.notation import label_of_objective, short_node
from bandpo.losses.objective import Method, Objective
from bandpo.trust_regions.base import Region
from bandpo_runs.toy import SCENES

from .secrets import secret_in
from .trust import check_mapping


class _Node(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Node):
    """Sources of prompts and answers.

    Attributes:
        source: `lab` (the running sum), `file` (JSON lines, CSV or Parquet at `path`), `hub` (data set `path` of the
            Hugging Face hub), or `reasoning_gym` (`task` with its `options`).
        path: file or hub name.
        split: of a hub data set.
        prompt: column with the prompt: text, or chat messages.
        answer: column with the answer that rewards compare with.
        template: text with {prompt} in it, e.g. instructions around the question.
        chat: send a text prompt as one user message through the model's chat template.
        task: name of a reasoning_gym task.
        options: its settings.
        size: rows to use or to generate; None takes all of a file.
        eval_size: rows held out from them for evaluation, the last ones.
        eval_path: other data to evaluate on in training, as for `bandpo eval --data`: `aime24,aime25`, a file, `lab`.
    """

    source: Literal["lab", "file", "hub", "reasoning_gym"] = "lab"
    path: str | None = None
    split: str = "train"
    prompt: str = "prompt"
    answer: str = "answer"
    template: str = "{prompt}"
    chat: bool = False
    task: str | None = None
    options: dict[str, Any] = {}
    size: pydantic.StrictInt | None = pydantic.Field(default=None, ge=1)
    eval_size: pydantic.StrictInt = pydantic.Field(default=0, ge=0)
    eval_path: str | None = None


class RunConfig(_Node):
    """One training run.

    Attributes:
        label: the name of the rule in reports; default: made from `trust_region`.
        scene: `tail`, `storm` or `both` of the lab, which sets what is not set here; None for a real model.
        model: a Hugging Face model name or a local folder; `lab` is the lab's own.
        data: see `DataConfig`.
        reward: `exact`, `last-number`, `math`, `dapo-strict`, `reasoning-gym`, `lab`, or `module:function` with TRL's
            signature.
        trust_region: the node of the rule, or of an objective. A recipe may name a method or have a short word, such as
            band:kl:0.05, whose objective it becomes.
        rounds: generate, then learn, so many times.
        seed: of everything.
        output: the folder of the run.
        save_every: rounds between checkpoints, 0 for none but the final model.
        threads: of torch on the CPU, in each process; None leaves them.
        tokens_share: of the responses so many have their tokens written to `tokens/` in the folder of the run, which
            `bandpo calibrate` and `bandpo report` read; None for none.
        stop_if_not_finite: end at the first loss, weight or reward that is not finite; see `BandPOConfig`.
        trainer: any field of TRL's GRPOConfig, except those that could run code (`trust.ALLOWED`). The batch sizes per
            device are those of all processes together: however many they are, a step takes the same batch.
    """

    label: str | None = None
    scene: Literal["tail", "storm", "both"] | None = None
    model: str = "lab"
    data: DataConfig = DataConfig()
    reward: str = "lab"
    trust_region: dict[str, Any] = {"type": "band", "divergence": "kl", "delta": 0.05}
    rounds: pydantic.StrictInt = pydantic.Field(ge=1, le=10**9)
    seed: pydantic.StrictInt = pydantic.Field(default=0, ge=0, lt=2**32)
    output: str = "runs/bandpo"
    save_every: pydantic.StrictInt = pydantic.Field(default=0, ge=0)
    threads: pydantic.StrictInt | None = pydantic.Field(default=None, ge=1)
    tokens_share: pydantic.StrictFloat | pydantic.StrictInt | None = pydantic.Field(default=None, gt=0, le=1)
    stop_if_not_finite: pydantic.StrictBool = True
    trainer: dict[str, Any] = {}
    _method: str | None = None

    @property
    def method(self) -> str | None:
        """Return the name of the recipe's method; a stored configuration has its objective alone."""
        return self._method

    @property
    def objective(self) -> Objective:
        """Return the objective to maximise: of a rule's node the paper's objective, with that rule."""
        return objective(self.trust_region)

    @property
    def region(self) -> Region:
        """Return the rule of the objective."""
        return self.objective.trust_region

    @property
    def steps_per_round(self) -> int:
        """Return the number of optimizer steps between two generations."""
        micro_steps = self._trainer("steps_per_generation") * self._trainer("num_iterations", 1)
        accumulation = self._trainer("gradient_accumulation_steps", 1)
        if micro_steps % accumulation:
            raise UserError(
                f"trainer.steps_per_generation x num_iterations = {micro_steps} must be a multiple of "
                f"gradient_accumulation_steps = {accumulation}, so that a round ends with an optimizer step"
            )
        return micro_steps // accumulation

    @property
    def prompts_per_round(self) -> int:
        """Return the number of prompts in one generation, of all processes together."""
        completions = self._trainer("per_device_train_batch_size") * self._trainer("steps_per_generation")
        group = self._trainer("num_generations")
        if completions % group:
            raise UserError(
                f"trainer.per_device_train_batch_size x steps_per_generation = {completions} must be a multiple of "
                f"num_generations = {group}"
            )
        return completions // group

    def _trainer(self, key: str, default: int | None = None) -> int:
        value = self.trainer.get(key, default)
        if value is None:
            raise UserError(f"trainer.{key} is missing; it must be set")
        if value < 1:
            raise UserError(f"trainer.{key} must be at least 1, got {value}")
        return value

    def to_yaml(self) -> str:
        """Return the resolved recipe as YAML."""
        return yaml.safe_dump(self.model_dump(exclude_none=True), sort_keys=False, allow_unicode=True, width=100)


# The keys of `data` that each source reads.
_ROWS = {"source", "template", "chat", "size", "eval_size", "eval_path"}
_USED = {
    "lab": {"source", "eval_path"},
    "file": {*_ROWS, "path", "prompt", "answer"},
    "hub": {*_ROWS, "path", "split", "prompt", "answer"},
    "reasoning_gym": {*_ROWS, "task", "options"},
}

# The trainer's settings that have a key of their own here.
RESERVED = {
    "output_dir": "output",
    "seed": "seed",
    "max_steps": "rounds",
    "num_train_epochs": "rounds",
    "save_steps": "save_every",
    "save_strategy": "save_every",
    "epsilon": "trust_region",
    "epsilon_high": "trust_region",
    "trust_region": "trust_region",
    "resume_from_checkpoint": "--resume",
    "generation_batch_size": "trainer.steps_per_generation",
    "shuffle_dataset": "seed",
}
# The trainer's settings that must keep their defaults.
FIXED = {
    "disable_tqdm": "the command line draws its own progress",
    "all_metrics": "the report reads all of them",
    "logging_nan_inf_filter": "a loss that is not finite must show",
    "trust_remote_code": "bandpo never runs code from a model repository",
    # With these a run could not be resumed exactly.
    "save_only_model": "resuming needs whole checkpoints",
    "ignore_data_skip": "resuming goes on with the next prompts",
    "enable_jit_checkpoint": "a checkpoint must be where the next step generates",
    "auto_find_batch_size": "a step takes the batch of the recipe",
}
# What transformers renamed in 5.23; recipes have the new name, and mean the same with an older release.
FORMERLY = {"activation_checkpointing": "gradient_checkpointing"}


def load(recipe: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe, apply `a.b=value` overrides (values are YAML), and check every key and type.

    Raises:
        UserError: a file that is missing or is not a mapping, an unknown key (with the nearest known one), a wrong
            type, or settings that cannot go together. The message names the key.
    """
    node = read_recipe(Path(recipe)) if recipe is not None else {}
    has_rule = "trust_region" in node
    if any(text.startswith("trust_region") for text in overrides):
        node.pop("label", None)  # it named the other rule
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"{text!r} is not a setting; write key=value, e.g. trust_region.delta=0.1")
        target = node
        *parents, last = key.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise UserError(f"{key} cannot be set: {parent} is {target!r}, not a mapping")
        target[last] = parse_yaml(value, f"the value of {key}")
    rule: Any = node.get("trust_region")
    if not has_rule and isinstance(rule, dict) and "type" not in rule:  # trust_region.delta=0.1: of the default rule
        node["trust_region"] = {**RunConfig.model_fields["trust_region"].default, **rule}
    return build(node)


def build(node: Mapping[str, Any]) -> RunConfig:
    """Build a checked `RunConfig` from a plain mapping; raises UserError as `load`."""
    scene = node.get("scene", "tail" if node.get("model", "lab") == "lab" else None)
    if scene is not None:
        if not isinstance(scene, str) or scene not in SCENES:
            raise UserError(f"scene must be one of {sorted(SCENES)}, got {scene!r}")
        node = merge({"scene": scene, **SCENES[scene].defaults}, node)
    rule: Any = node.get("trust_region")
    method = ""
    try:
        if "trust_region" in node and (not isinstance(rule, Mapping) or rule.get("type") == "method"):
            named = method_or_objective(rule)
            found = objective(named)  # which refuses methods of the sampler
            if isinstance(named, Method):
                method, found = named.name, named.without_average
            node = {**node, "trust_region": short_node(found)}
    except ValueError as error:
        raise UserError(f"trust_region: {error}") from None
    try:
        config = RunConfig.model_validate(node)
        config = config.model_copy(update={"trainer": _check_trainer(config.trainer)})
    except pydantic.ValidationError as error:
        raise UserError(_explain(error)) from None
    try:
        found = config.objective
    except ValueError as error:
        raise UserError(f"trust_region: {error}") from None
    config._method = method or None
    _ = config.steps_per_round, config.prompts_per_round
    source = config.data.source
    for key in {"file": ["path"], "hub": ["path"], "reasoning_gym": ["task"]}.get(source, []):
        if getattr(config.data, key) is None:
            raise UserError(f"data.{key} is missing; data.source {source!r} needs it")
    for key, known in DataConfig.model_fields.items():
        if key not in _USED[source] and getattr(config.data, key) != known.default:
            raise UserError(f"data.{key} is set, but data.source {source!r} does not use it")
    evaluates = config.trainer.get("eval_on_start") or config.trainer.get("eval_strategy", "no") not in ("no", None)
    if evaluates and not config.data.eval_size and config.data.eval_path is None:
        raise UserError(
            "data.eval_size is 0, so there is nothing for trainer.eval_strategy or eval_on_start; set it, or "
            "data.eval_path"
        )
    if config.data.eval_path is not None and not evaluates:
        raise UserError(
            "data.eval_path is set, but nothing evaluates on it; set trainer.eval_strategy and eval_steps, or "
            "eval_on_start"
        )
    if config.data.eval_size and config.data.eval_path is not None:
        raise UserError("data.eval_size and data.eval_path are two sets to evaluate on; keep one")
    if "{prompt}" not in config.data.template:
        raise UserError(f"data.template must contain {{prompt}}, got {config.data.template!r}")
    for ours, theirs in (("model", config.model), ("data.source", source), ("reward", config.reward)):
        if theirs == "lab" and scene is None:
            raise UserError(f"{ours} must be set: 'lab', the default, goes with the lab's model alone")
        if theirs != "lab" and scene is not None:
            raise UserError(
                f"{ours} is {theirs!r} and scene is {scene!r}: the lab's model, data and reward go together"
            )
    return config if config.label else config.model_copy(update={"label": label_of_objective(found)})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`; mappings are merged, but a rule is replaced whole (its keys depend on its type)."""
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping) and key != "trust_region"
        out[key] = merge(out[key], value) if both else value
    return out


def read_recipe(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a recipe over those that it names as its `base`, one or several."""
    if path.resolve() in above:
        raise UserError(f"recipe {path} is its own base")
    if not path.exists():
        folder = path.absolute().parent
        there = f"it was looked for in {folder}" if folder.is_dir() else f"there is no folder {folder}"
        close = nearest(path.name, [each.name for each in folder.glob("*.y*ml")]) if folder.is_dir() else ""
        base = f"; {above[-1]} has it as base" if above else ""
        raise UserError(f"recipe {path} does not exist: {there}{close}{base}")
    try:
        node = read_yaml(path)
    except UserError as error:
        raise UserError(f"recipe {path} cannot be read: {error}") from None
    if not isinstance(node, dict):
        raise UserError(f"recipe {path} must hold a mapping of settings, got {type(node).__name__}")
    if unnamed := [key for key in node if not isinstance(key, str)]:
        raise UserError(f"recipe {path}: {unnamed[0]!r} is not the name of a setting")
    bases = node.pop("base", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"base of {path} must be the name of a recipe or a list of names, got {bases!r}")
    out: dict[str, Any] = {}
    for base in bases:
        out = merge(out, read_recipe(path.parent / base, (*above, path.resolve())))
    return merge(out, node)


def _check_trainer(settings: Mapping[str, Any]) -> dict[str, Any]:
    # The one place that knows these fields.
    from trl import GRPOConfig  # pyright: ignore[reportPrivateImportUsage]

    # Not the types in its fields, from which transformers' HfArgumentParser takes the None.
    annotated = typing.get_type_hints(GRPOConfig)
    hints: dict[str, Any] = {field.name: annotated[field.name] for field in dataclasses.fields(GRPOConfig)}
    out = {}
    if (secret := secret_in(settings)) is not None:
        raise UserError(
            f"trainer.{secret} looks like a secret, and the run's files would hold it for everyone who reads them; "
            "remove it, and log in with `hf auth login` or set HF_TOKEN (for a server: ~/.netrc)"
        )
    for key, value in settings.items():
        if key in RESERVED:
            raise UserError(f"trainer.{key} is set by {RESERVED[key]}; remove it")
        if key in FIXED:
            raise UserError(f"trainer.{key} cannot be set, got {value!r}: {FIXED[key]}; leave it out")
        if key not in hints:
            key = FORMERLY.get(key, key)
        if key not in hints:
            raise UserError(f"unknown key 'trainer.{key}'{nearest(key, list(hints))}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"trainer.{key} must be a finite number, got {value}")
        if key.endswith("_strategy") and value is False:
            value = "no"  # which YAML takes for a truth value
        hint = hints[key]
        types = typing.get_args(hint) or (hint,)
        if any(dict in (each, typing.get_origin(each)) for each in types):
            check_mapping(key, value)
        simple = set(types) <= {int, float, bool, str, type(None)}
        try:
            out[key] = pydantic.TypeAdapter(hint).validate_python(value) if simple else value
        except pydantic.ValidationError as error:
            raise UserError(f"trainer.{key}: {error.errors()[0]['msg']}, got {value!r}") from None
    return out


def _explain(error: pydantic.ValidationError) -> str:
    """Explain the first mistake in one line."""
    # An unknown key first: a misspelt one is also missing.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    *parents, last = (str(part) for part in first["loc"])
    where = ".".join((*parents, last))
    if first["type"] == "extra_forbidden":
        model = DataConfig if parents == ["data"] else RunConfig
        return f"unknown key {where!r}{nearest(last, list(model.model_fields))}"
    if first["type"] == "missing":
        return f"{where} is missing; it must be set"
    return f"{where}: {re.sub(r'^Value error, ', '', first['msg'])}, got {first['input']!r}"
