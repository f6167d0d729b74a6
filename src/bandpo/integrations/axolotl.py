"""Put BandPO into axolotl 0.19. In its YAML, with `rl: grpo` or `rl: gdpo`:

    plugins: [bandpo.integrations.axolotl.Plugin]
    trust_region: {type: band, divergence: kl, delta: 0.05}

Other options of `BandPOConfig`, such as `anchor: sampler`, stand beside them. A rule has an effect with several
optimizer steps per batch: make `trl.generation_batch_size` that many times the batch of a step.
"""

from functools import cache
from typing import Annotated, Any

from axolotl.integrations.base import BasePlugin, PluginManager  # pyright: ignore[reportMissingImports]
from pydantic import Field, create_model

from . import Anchor, objective_for

TRAINER = f"{__name__}.BandPOTrainer"
_FIELDS = {
    "trust_region": Any,
    "anchor": Anchor,
    "all_metrics": bool,
    "stop_if_not_finite": bool,
    "tokens_path": str,
    "tokens_share": Annotated[float, Field(ge=0, le=1)],
}
Options = create_model("Options", **{name: (kind | None, None) for name, kind in _FIELDS.items()})  # pyright: ignore
_REPLACED, _OTHER_LOSS = (
    "trust_region replaces it, with {type: clip} too",
    "a rule has no effect there",
)
_WRONG = {
    "epsilon": _REPLACED,
    "epsilon_high": _REPLACED,
    "async_prefetch": _OTHER_LOSS,
    "use_data_producer": _OTHER_LOSS,
    "use_liger_loss": _OTHER_LOSS,
}


class Plugin(BasePlugin):
    """Train by `BandPOTrainer`. ValueError, before a model is loaded, for what axolotl cannot do."""

    def get_input_args(self) -> str:
        return f"{__name__}.Options"

    def register(self, cfg: Any) -> None:
        get = cfg.get
        if f"{__name__}.Plugin" not in (get("plugins") or ()):
            return  # it is left from another YAML of this process
        rl, trl, trainer = get("rl"), get("trl") or {}, get("trainer_cls") or TRAINER
        refused = {
            f"remove trl.{name}, got {trl.get(name)!r}: {why}": trl.get(name) for name, why in _WRONG.items()
        } | {
            f"remove trainer_cls, got {trainer!r}: the trainer is {TRAINER}": trainer != TRAINER,
            "context_parallel_size must be 1: else axolotl's trainer asks TRL for names that it has not":
                (get("context_parallel_size") or 1) > 1,
            f"rl must be 'grpo' or 'gdpo', got {rl!r}: other losses have no ratio to clip":
                rl not in ("grpo", "gdpo"),
        }  # fmt: skip
        wrong = [message for message, holds in refused.items() if holds]
        if wrong:
            raise ValueError(f"axolotl: {'; '.join(wrong)}")
        objective_for(
            "axolotl", get("trust_region"), anchor=get("anchor") or "old", average=trl.get("loss_type")
        )
        # One of `get_trainer_cls` would be made without the model and the rewards.
        cfg["trainer_cls"] = TRAINER

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        if cfg.trainer_cls == TRAINER and not isinstance(trainer, __getattr__("BandPOTrainer")):
            raise ValueError(
                f"axolotl: remove the plug-in of {type(trainer).__name__}, which takes no trust_region"
            )


@cache
# Late: between plug-ins and TRL's trainer axolotl puts its kernels into TRL.
def __getattr__(name: str) -> type:
    if f"{__name__}.{name}" != TRAINER:
        raise AttributeError(f"{__name__} has no {name!r}")
    from axolotl.core.trainers.grpo.trainer import AxolotlGRPOTrainer  # pyright: ignore[reportMissingImports]

    from .trl import BandPOTrainer

    def init(self: Any, *arguments: Any, args: Any, **named: Any) -> None:
        cfg = PluginManager.get_instance().cfg
        vars(args).update({name: cfg[name] for name in _FIELDS if cfg.get(name) is not None})
        BandPOTrainer.__init__(self, *arguments, args=args, **named)

    return type("BandPOTrainer", (BandPOTrainer, AxolotlGRPOTrainer), {"__init__": init})
