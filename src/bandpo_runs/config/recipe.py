"""Describe a run. A recipe (YAML) with `key=value` overrides becomes a checked `RunConfig`, and back."""

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import pydantic
import yaml

from bandpo.errors import UserError, nearest
from bandpo.files import parse_yaml, shortened
from bandpo.losses.nodes import method_or_objective, objective
from bandpo.losses.objective import Method, Objective
from bandpo.notation import label_of_objective, short_node

from ..files.reading import read_yaml
from ..toy import SCENES
from .trust import check_mappings, secret_in

DEFAULT_RULE = {"type": "band", "divergence": "kl", "delta": 0.05}
# The keys of `data` that each source reads, besides `source` and `eval_path`.
_ROWS = {"template", "chat", "size", "eval_size"}
_FILE = {*_ROWS, "path", "prompt", "answer"}
_USED = {
    "lab": set[str](),
    "largest-of-three": _ROWS,
    "file": _FILE,
    "hub": {*_FILE, "split"},
}


class _Node(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Node):
    """Describe where prompts and answers come from.

    >>> DataConfig(source="hub", path="openai/gsm8k", prompt="question").split
    'train'

    Attributes:
        source: `file` (JSON lines, CSV or Parquet), `hub` (of Hugging Face), `largest-of-three` (questions
            after the largest of three numbers of two digits), or `lab`.
        path: file or hub name.
        split: of a hub data set.
        prompt: column with the prompt: text, or chat messages.
        answer: column with the answer that rewards compare with.
        template: text with {prompt} in it, e.g. instructions around the question.
        chat: send a text prompt as one user message through the model's chat template.
        size: rows to use or to generate; None takes all of a file.
        eval_size: how many of the last rows are held out for evaluation.
        eval_path: other data to evaluate on in training, as for `bandpo eval --data`: `aime24,aime25`, a file, `lab`.
    """

    source: Literal["lab", "file", "hub", "largest-of-three"] = "lab"
    path: str | None = None
    split: str = "train"
    prompt: str = "prompt"
    answer: str = "answer"
    template: str = pydantic.Field(default="{prompt}", pattern=r"\{prompt\}")
    chat: bool = False
    size: pydantic.StrictInt | None = pydantic.Field(default=None, ge=1)
    eval_size: pydantic.StrictInt = pydantic.Field(default=0, ge=0)
    eval_path: str | None = None

    @pydantic.model_validator(mode="after")
    def _complete(self) -> Self:
        if self.source in ("file", "hub") and self.path is None:
            raise ValueError(f"path is missing; data.source {self.source!r} needs it")
        for name, field in type(self).model_fields.items():
            if (
                name not in {"source", "eval_path", *_USED[self.source]}
                and getattr(self, name) != field.default
            ):
                raise ValueError(f"{name} is set, but data.source {self.source!r} does not use it")
        if self.eval_size and self.eval_path is not None:
            raise ValueError("eval_size and eval_path are two sets to evaluate on; keep one")
        return self


class RunConfig(_Node):
    """Describe one training run.

    Attributes:
        label: the name of the rule in reports; made from `trust_region` by default.
        scene: `tail`, `storm` or `rare-and-noisy` of the lab, which sets what is not set here; None for a real model.
        model: a Hugging Face model name or a local folder; `smollm2` is SmolLM2-135M-Instruct, `lab` the lab's own.
        reward: `exact`, `last-number`, `math`, `dapo-strict`, `dapo`, `lab`, or `module:function` for TRL.
        trust_region: the node of a rule or an objective. A recipe may also name a method, or write band:kl:0.05.
        rounds: how often to generate and learn.
        seed: of everything.
        output: the folder of the run.
        save_every: rounds between checkpoints; 0 saves the final model alone.
        lora: rank of LoRA on all linear layers, scaled by twice the rank; None trains all weights.
        shared_prompts: sample and score by `SharedPrompts`, which is faster on CPUs, where TRL's own numbers come out.
        threads: of torch on the CPU, in each process; None leaves them.
        tokens_share: share of the responses whose tokens are written to `tokens/`, for `bandpo calibrate`; None for a
            sample of 20 MB; 0 for none.
        stop_if_not_finite: end at the first weight or reward that is not finite; see `BandPOConfig`.
        trainer: any field of TRL's GRPOConfig, except those that could run code (`trust.ALLOWED`). The batch sizes per
            device are those of all processes together: however many they are, a step takes the same batch.
    """

    label: str | None = None
    scene: Literal["tail", "storm", "rare-and-noisy"] | None = None
    model: str = "lab"
    data: DataConfig = DataConfig()
    reward: str = "lab"
    trust_region: dict[str, Any] = DEFAULT_RULE
    rounds: pydantic.StrictInt = pydantic.Field(ge=1, le=10**9)
    seed: pydantic.StrictInt = pydantic.Field(default=0, ge=0, lt=2**32)
    output: str = "runs/bandpo"
    save_every: pydantic.StrictInt = pydantic.Field(default=0, ge=0)
    lora: pydantic.StrictInt | None = pydantic.Field(default=None, ge=1)
    shared_prompts: pydantic.StrictBool = False
    threads: pydantic.StrictInt | None = pydantic.Field(default=None, ge=1)
    tokens_share: pydantic.StrictFloat | pydantic.StrictInt | None = pydantic.Field(
        default=None, ge=0, le=1
    )
    stop_if_not_finite: pydantic.StrictBool = True
    trainer: dict[str, Any] = {}
    _method: str | None = None

    @property
    def method(self) -> str | None:
        """Return the name of the recipe's method. A stored configuration has none."""
        return self._method

    @property
    def objective(self) -> Objective:
        """Return the objective to maximise. For a rule it is the paper's objective with that rule."""
        return objective(self.trust_region)

    @property
    def steps_per_round(self) -> int:
        """Return the number of optimizer steps between two generations."""
        return self._quotient(("steps_per_generation", "num_iterations"), "gradient_accumulation_steps")

    @property
    def prompts_per_round(self) -> int:
        """Return the number of prompts in one generation, of all processes together."""
        return self._quotient(("per_device_train_batch_size", "steps_per_generation"), "num_generations")

    def _quotient(self, factors: tuple[str, str], divisor: str) -> int:
        """Divide settings of the trainer. Raises UserError for one that is missing, and for a remainder."""
        settings = {"num_iterations": 1, "gradient_accumulation_steps": 1} | self.trainer
        for key in (*factors, divisor):
            if settings.get(key) is None or settings[key] < 1:
                raise UserError(f"trainer.{key} must be a positive number, got {settings.get(key)!r}")
        product, by = settings[factors[0]] * settings[factors[1]], settings[divisor]
        if product % by:
            raise UserError(
                f"trainer: {' x '.join(factors)} = {product} must be a multiple of {divisor} = {by}"
            )
        return product // by

    @pydantic.model_validator(mode="after")
    def _together(self) -> Self:
        for name, value in (
            ("model", self.model),
            ("data.source", self.data.source),
            ("reward", self.reward),
        ):
            if (value == "lab") != (self.scene is not None):
                raise ValueError(
                    f"{name} is {value!r} and scene is {self.scene!r}; set all of model, data.source and reward, or "
                    "none of them for the lab"
                )
        evaluates = self.trainer.get("eval_on_start") or self.trainer.get("eval_strategy", "no") not in (
            "no",
            None,
        )
        if evaluates and not self.data.eval_size and self.data.eval_path is None:
            raise ValueError(
                "trainer.eval_strategy or eval_on_start needs data.eval_size or data.eval_path"
            )
        if self.data.eval_path is not None and not evaluates:
            raise ValueError(
                "data.eval_path needs trainer.eval_strategy and eval_steps, or trainer.eval_on_start"
            )
        return self

    def to_yaml(self) -> str:
        """Return the resolved recipe as YAML."""
        return yaml.safe_dump(
            self.model_dump(exclude_none=True), sort_keys=False, allow_unicode=True, width=100
        )


# The trainer's settings that have a key of their own here.
RESERVED = {
    "output_dir": "output",
    "resume_from_checkpoint": "--resume",
    "generation_batch_size": "trainer.steps_per_generation",
    **dict.fromkeys(("seed", "shuffle_dataset"), "seed"),
    **dict.fromkeys(("max_steps", "num_train_epochs"), "rounds"),
    **dict.fromkeys(("save_steps", "save_strategy"), "save_every"),
    **dict.fromkeys(("epsilon", "epsilon_high", "trust_region"), "trust_region"),
}
# The trainer's settings that must keep their defaults.
FIXED = {
    "disable_tqdm": "the command line draws its own progress",
    "all_metrics": "the report reads all of them",
    "logging_nan_inf_filter": "a loss that is not finite must show",
    "trust_remote_code": "bandpo never runs code from a model repository",
    "save_only_model": "resuming needs whole checkpoints",
    "ignore_data_skip": "resuming goes on with the next prompts",
    "enable_jit_checkpoint": "a checkpoint must be where the next step generates",
    "auto_find_batch_size": "a step takes the batch of the recipe",
}
# What transformers renamed in 5.23; recipes have the new name, and mean the same with an older release.
FORMERLY = {"activation_checkpointing": "gradient_checkpointing"}


def load(recipe: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe with `a.b=value` overrides. Values are YAML, and every key and type is checked.

    Raises:
        UserError: a missing file, an unknown key, a wrong type, or settings that exclude each other.
    """
    return build(read_settings(recipe, overrides))


def read_settings(recipe: str | Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a recipe with `a.b=value` overrides, unchecked. Raises UserError for what is not YAML."""
    node = read_recipe(Path(recipe)) if recipe is not None else {}
    if any(text.startswith("trust_region") for text in overrides):
        node.pop("label", None)  # it named the other rule
    for text in overrides:
        put(node, *setting(text))
    return node


def setting(text: str) -> tuple[str, Any]:
    """Read `key=value`, the value as YAML; raise UserError for another text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"{text!r} is not a setting; write key=value, e.g. trust_region.delta=0.1")
    return key, parse_yaml(value, f"the value of {key}")


def put(node: dict[str, Any], key: str, value: Any) -> None:
    """Set node["a"]["b"] for "a.b"; raise UserError where `a` has another value."""
    *parents, last = key.split(".")
    for i, parent in enumerate(parents):
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise UserError(
                f"{key} cannot be set: {'.'.join(parents[: i + 1])} is {node!r}, not a mapping"
            )
    node[last] = value


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `("a.b", 1)` of {"a": {"b": 1}}. An empty mapping is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def rule_of(node: Mapping[str, Any]) -> Method | Objective:
    """Return the method or objective that a recipe trains with. Raises UserError where it cannot be one."""
    try:
        named = method_or_objective(node.get("trust_region", DEFAULT_RULE))
        objective(named)  # which refuses methods of the sampler
    except ValueError as error:
        raise UserError(f"trust_region: {error}") from None
    return named


def build(node: Mapping[str, Any]) -> RunConfig:
    """Build a checked `RunConfig` from a plain mapping. Raises UserError as `load` does."""
    scene = node.get("scene", "tail" if node.get("model", "lab") == "lab" else None)
    if isinstance(scene, str) and scene in SCENES:
        node = merge({"scene": scene, **SCENES[scene].defaults}, node)
    named = rule_of(node)
    rule = named.without_average if isinstance(named, Method) else named
    node = {"label": label_of_objective(rule), **node, "trust_region": short_node(rule)}
    if isinstance(node.get("trainer"), Mapping):
        node["trainer"] = _check_trainer(node["trainer"])
    config = _validated(RunConfig, node)
    config._method = named.name if isinstance(named, Method) else None
    _ = config.steps_per_round, config.prompts_per_round
    return config


def _validated(model: Any, node: Mapping[str, Any], above: str = "") -> Any:
    """Check settings by a model of pydantic. Raises UserError with the first mistake in one line."""
    try:
        return model.model_validate(node)
    except pydantic.ValidationError as error:
        # An unknown key first: a misspelt one is also missing.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    where = above + ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        fields = (DataConfig if first["loc"][0] == "data" else model).model_fields
        raise UserError(f"unknown key {where!r}{nearest(str(first['loc'][-1]), list(fields))}")
    if first["type"] == "missing":
        raise UserError(f"{where} is missing; it must be set")
    if first["type"] == "value_error":
        raise UserError(f"{where and f'{where}.'}{first['msg'].removeprefix('Value error, ')}")
    raise UserError(f"{where}: {first['msg']}, got {first['input']!r}")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`. Mappings are merged, but a rule is replaced whole (its keys depend on its type)."""
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping) and key != "trust_region"
        out[key] = merge(out[key], value) if both else value
    return out


def read_recipe(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a recipe over the one that it names as its `base`."""
    if path.resolve() in above:
        raise UserError(f"recipe {path} is its own base")
    if not path.exists():
        raise UserError(
            f"recipe {path.absolute()} does not exist"
            f"{nearest(path.name, [each.name for each in path.parent.glob('*.y*ml')])}"
            f"{f'; {above[-1]} has it as base' if above else ''}"
        )
    node = read_yaml(path)
    if not isinstance(node, dict) or not all(isinstance(key, str) for key in node):
        raise UserError(f"recipe {path} must hold settings by name, got {shortened(node)}")
    base = node.pop("base", None)
    if not isinstance(base, str | None):
        raise UserError(f"base of {path} must be the name of a recipe, got {base!r}")
    return (
        node if base is None else merge(read_recipe(path.parent / base, (*above, path.resolve())), node)
    )


def _check_trainer(settings: Mapping[str, Any]) -> dict[str, Any]:
    secret = secret_in(leaves(settings))
    if secret is not None:
        raise UserError(
            f"trainer.{secret} looks like a secret, which the run's files would hold; remove it, and log in with "
            "`hf auth login` or set HF_TOKEN (for a server: ~/.netrc)"
        )
    model, renamed = _trainer(), {}
    for key, value in settings.items():
        if key in RESERVED:
            raise UserError(f"trainer.{key} is set by {RESERVED[key]}; remove it")
        if key in FIXED:
            raise UserError(f"trainer.{key} cannot be set, got {value!r}: {FIXED[key]}; leave it out")
        is_no = value is False and str(key).endswith("_strategy")  # YAML takes "no" for a truth value
        renamed[key if key in model.model_fields else FORMERLY.get(key, key)] = "no" if is_no else value
    checked = _validated(model, renamed, "trainer.").model_dump(exclude_unset=True)
    if (checked.get("learning_rate") or 0.0) < 0:
        raise UserError(f"trainer.learning_rate must be 0 or larger, got {checked['learning_rate']!r}")
    check_mappings(checked)
    return checked


@functools.cache
def _trainer() -> type[pydantic.BaseModel]:
    """Make a model of TRL's settings. Simple types and mappings are checked, others are handed on."""
    from trl import GRPOConfig  # pyright: ignore[reportPrivateImportUsage]

    # Not the types in its fields, from which transformers' HfArgumentParser takes the None.
    annotated = typing.get_type_hints(GRPOConfig)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(GRPOConfig):
        hint = annotated[field.name]
        types = typing.get_args(hint) or (hint,)
        if any(dict in (each, typing.get_origin(each)) for each in types):
            hint = dict[str, Any] | None  # and not text, which would be JSON or the name of a file
        elif not set(types) <= {int, float, bool, str, type(None)}:
            hint = Any
        fields[field.name] = (hint, None)
    return pydantic.create_model(
        "GRPOConfig",
        __config__=pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=()),
        **fields,
    )
