"""Put BandPO into axolotl 0.19. In its YAML, with `rl: grpo` or `rl: gdpo`:

    plugins: [bandpo.integrations.axolotl.Plugin]
    trust_region: {type: band, divergence: kl, delta: 0.05}

The other options of `BandPOConfig`, such as `anchor: sampler`, stand beside `trust_region`; remove `trl.epsilon`. The
trainer is `BandPOTrainer` over axolotl's own. A rule acts where a batch serves several steps: make
`trl.generation_batch_size` that many times the batch of a step. axolotl trains on, without a word of ours in the log,
if it cannot import a plug-in or finds none.
"""

from functools import cache
from typing import Annotated, Any

from axolotl.integrations.base import BasePlugin, PluginManager  # pyright: ignore[reportMissingImports]
from pydantic import Field, create_model

from . import Anchor, objective_for

TRAINER = f"{__name__}.BandPOTrainer"
_FIELDS = {"trust_region": Any, "anchor": Anchor, "all_metrics": bool, "stop_if_not_finite": bool, "tokens_path": str}
_FIELDS |= {"tokens_share": Annotated[float, Field(gt=0, le=1)]}
Options = create_model("Options", **{name: (kind | None, None) for name, kind in _FIELDS.items()})  # pyright: ignore
_WRONG: dict[str, str] = dict.fromkeys(("epsilon", "epsilon_high"), "trust_region replaces it, with {type: clip} too")
_WRONG |= dict.fromkeys(("async_prefetch", "use_data_producer", "use_liger_loss"), "no rule acts in the loss of that")


class Plugin(BasePlugin):
    """Train by `BandPOTrainer`. ValueError, before a model is loaded, for what axolotl cannot do."""

    def get_input_args(self) -> str:
        return f"{__name__}.Options"

    def register(self, cfg: Any) -> None:
        if f"{__name__}.Plugin" not in (cfg.get("plugins") or ()):
            return  # it is left from another YAML of this process
        trl, wrong = cfg.get("trl") or {}, ""
        if (rl := cfg.get("rl")) not in ("grpo", "gdpo"):
            wrong = f"rl must be 'grpo' or 'gdpo', got {rl!r}: other losses have no ratio to clip"
        if (cfg.get("context_parallel_size") or 1) > 1:
            wrong = "context_parallel_size must be 1: for more, axolotl's trainer asks TRL for names that it has not"
        if (cfg.get("trainer_cls") or TRAINER) != TRAINER:
            wrong = f"remove trainer_cls, got {cfg['trainer_cls']!r}: the trainer is {TRAINER}"
        for name in (name for name in _WRONG if trl.get(name)):
            wrong = f"remove trl.{name}, got {trl[name]!r}: {_WRONG[name]}"
        if wrong:
            raise ValueError(f"axolotl: {wrong}")
        anchor, average = cfg.get("anchor") or "old", trl.get("loss_type")
        objective_for("axolotl", cfg.get("trust_region"), anchor=anchor, average=average)
        cfg["trainer_cls"] = TRAINER  # one of `get_trainer_cls` would be made without the model and the rewards

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        if cfg.trainer_cls == TRAINER and not isinstance(trainer, _trainer()):
            raise ValueError(f"axolotl: remove the plug-in of {type(trainer).__name__}, which takes no trust_region")


@cache
def _trainer() -> type:  # late: between plug-ins and TRL's trainer axolotl puts its kernels into TRL
    from axolotl.core.trainers.grpo.trainer import AxolotlGRPOTrainer  # pyright: ignore[reportMissingImports]

    from .trl import BandPOTrainer

    def init(self: Any, *arguments: Any, args: Any, **named: Any) -> None:
        cfg = PluginManager.get_instance().cfg
        vars(args).update({name: cfg[name] for name in _FIELDS if cfg.get(name) is not None})
        BandPOTrainer.__init__(self, *arguments, args=args, **named)

    return type("BandPOTrainer", (BandPOTrainer, AxolotlGRPOTrainer), {"__init__": init})


def __getattr__(name: str) -> type:
    if f"{__name__}.{name}" != TRAINER:
        raise AttributeError(f"{__name__} has no {name!r}")
    return _trainer()
