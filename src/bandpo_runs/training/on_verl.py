"""Make the command line of verl's trainer from a recipe.

A recipe is verl's own tree of settings (`actor_rollout_ref`, `data`, `trainer`, ...). Beside it stand `trust_region`,
the node of a rule or an objective, and what else our loss takes; `plan`, numbers of an estimate; `base`, a recipe
or several to lay this one on; `variants`, settings of which the one that `variant` names is laid on top; and `seed`,
which makes the run a repetition of its own.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from bandpo.doctor import own_type
from bandpo.errors import UserError, nearest
from bandpo.integrations import objective_for, say_average
from bandpo.notation import short_node
from bandpo.numerics import listed

from ..config.recipe import leaves, merge, put, read_recipe, setting

# What `integrations.verl.BandPOLossConfig` takes.
LOSS = ("trust_region", "anchor", "tokens_path", "tokens_share")
_LOSS_AT = "actor_rollout_ref.actor.policy_loss"
# verl's settings of a repetition and what they are of its seed. Each of vLLM's servers adds its number to its seed.
# verl's other seeds act in full_determinism, with a critic or with a reward model alone.
SEEDS = {
    "data.seed": 1,
    "actor_rollout_ref.actor.data_loader_seed": 1,
    "actor_rollout_ref.rollout.seed": 1000,
}


@dataclass(frozen=True)
class Run:
    """A resolved recipe.

    Attributes:
        settings: verl's tree.
        loss: the options of our loss.
        numbers: of the estimate.
        hydra: overrides in Hydra's own form (`+key=value`, `~key`), which go to verl unread.
    """

    settings: dict[str, Any]
    loss: dict[str, Any]
    numbers: dict[str, Any]
    hydra: tuple[str, ...] = ()

    def overrides(self) -> list[str]:
        """Return the arguments of `python -m verl.trainer.main_ppo`."""
        ours = [
            f"{_LOSS_AT}._target_=bandpo.integrations.verl.BandPOLossConfig",
            f"{_LOSS_AT}.loss_mode=bandpo",
        ]
        ours += [f"+{_LOSS_AT}.{key}={_hydra_text(value)}" for key, value in self.loss.items()]
        return [
            *(f"{key}={_hydra_text(value)}" for key, value in leaves(self.settings)),
            *ours,
            *self.hydra,
        ]

    def command(self) -> str:
        """Return the command for a shell, one override per line."""
        return " \\\n  ".join(["python -m verl.trainer.main_ppo", *map(shlex.quote, self.overrides())])

    def start(self) -> None:
        """Become verl's trainer: its exit code is ours, and an interrupt reaches it alone.

        Raises:
            UserError: verl is missing; so is a data file, where Ray runs on this machine alone.
        """
        if importlib.util.find_spec("verl") is None:
            raise UserError(
                "verl is not installed here (docs/verl.md); --print shows the command for where it is"
            )
        data = self.settings.get("data") or {}
        for name in (
            each for key in ("train_files", "val_files") for each in listed(data.get(key) or [])
        ):
            if not ("://" in name or os.environ.get("RAY_ADDRESS") or Path(name).expanduser().exists()):
                raise UserError(f"data file {name} does not exist; docs/reproduce.md says how it is made")
        self._keep_log()
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "verl.trainer.main_ppo", *self.overrides()])

    def _keep_log(self) -> None:
        """Move the log of the run so far aside. verl's file logger begins it anew where a run goes on."""
        trainer = self.settings.get("trainer") or {}
        if "file" not in listed(trainer.get("logger") or []):
            return
        name = Path(
            trainer.get("project_name") or "verl_examples", f"{trainer.get('experiment_name')}.jsonl"
        )
        log = Path(os.environ.get("VERL_FILE_LOGGER_ROOT", ".")).expanduser() / name
        log = Path(os.environ.get("VERL_FILE_LOGGER_PATH") or log)
        if log.is_file() and log.stat().st_size:
            older = next(path for path in (Path(f"{log}.{n}") for n in count(1)) if not path.exists())
            log.rename(older)
            print(f"the log so far is now {older}; verl begins {log} anew", file=sys.stderr)


def load(recipes: Sequence[str | Path], overrides: Sequence[str] = (), *, trust: bool = True) -> Run:
    """Lay recipes on one another, apply `a.b=value` overrides, and check the rule. Values are YAML.

    verl checks its own keys when it starts, before Ray does.

    Args:
        recipes: files, the later ones on top.
        overrides: `variant=NAME`, `seed=N`, a key of the recipe, or one of verl in Hydra's form (`+a.b=value`, `~a.b`).
        trust: import the module of a user's rule, which runs what is in it; else such a rule is not checked.

    Raises:
        UserError: a file that cannot be read, an unknown variant, a wrong seed, or a wrong rule.
    """
    raw = tuple(text for text in overrides if text.startswith(("+", "~")))
    changes = [text for text in overrides if text not in raw]
    variant = next(
        (text.removeprefix("variant=") for text in reversed(changes) if text.startswith("variant=")), None
    )
    node: dict[str, Any] = {}
    layers = [read_recipe(Path(recipe)) for recipe in recipes]
    variant = variant or next(
        (layer["variant"] for layer in reversed(layers) if layer.get("variant")), None
    )
    for layer in layers:
        variants = layer.pop("variants", None) or {}
        if variants and variant not in variants:
            close = nearest(str(variant), list(variants))
            raise UserError(f"variant must be one of {sorted(variants)}, got {variant!r}{close}")
        node = merge(merge(node, layer), variants.get(variant) or {})
    # A name of its own for whatever differs: verl goes on with the checkpoints that it finds under that name.
    unnamed = ("trainer.", "seed=")
    names = [
        *(Path(recipe).stem for recipe in recipes),
        *(t for t in overrides if not t.startswith(unnamed)),
    ]
    name = re.sub(r"[^\w.]+", "-", "-".join(names)).strip("-")
    if len(name) > 100:  # it becomes a file's name
        name = f"{name[:91]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    for text in changes:
        put(node, *setting(text))
    name = (node.get("trainer") or {}).get("experiment_name") or name
    seed = node.pop("seed", None)
    if seed is not None:
        if type(seed) is not int or not 0 <= seed < 10**6:
            raise UserError(f"seed must be an integer from 0 to 999999, got {seed!r}")
        twice = SEEDS.keys() & {text.lstrip("+").partition("=")[0] for text in overrides}
        if twice:
            raise UserError(f"{', '.join(sorted(twice))} is set by seed; remove one of them")
        for key, times in SEEDS.items():
            put(node, key, times * seed)
        name = f"{name}-seed{seed}"
    put(node, "trainer.experiment_name", name)
    node.pop("variant", None)
    loss = {key: node.pop(key) for key in LOSS if key in node}
    numbers, rule = node.pop("plan", None) or {}, loss.get("trust_region")
    try:
        if trust or own_type(rule) is None:
            mode = dict(leaves(node)).get("actor_rollout_ref.actor.loss_agg_mode", "token-mean")
            chosen = objective_for("verl", rule, anchor=loss.get("anchor", "old"), average=mode)
            say_average("verl", rule, mode)
            # The command and verl's record say what it is; the average is verl's setting.
            if isinstance(rule, str) or (
                rule and (rule.get("type") == "method" or "aggregation" in rule)
            ):
                loss["trust_region"] = short_node(chosen)
    except ValueError as error:
        raise UserError(f"trust_region: {error}") from None
    return Run(node, loss, numbers, raw)


def _hydra_text(value: Any) -> str:
    """Write a value in the grammar of Hydra's command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra_text, value)) + "]"
    text = str(value)
    if not isinstance(value, str) or (
        re.fullmatch(r"([\w./%@+-]|\$\{[\w.]+\})+", text) and isinstance(yaml.safe_load(text), str)
    ):
        return text
    # A backslash is itself, but for those before a quote.
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"
