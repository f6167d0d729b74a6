"""Put BandPO into unsloth 2026.10. `BandPOTrainer` is its GRPOTrainer with a trust region per token:

    import unsloth                                                  # first, as it asks
    from bandpo.integrations.unsloth import BandPOTrainer
    trainer = BandPOTrainer(model, reward, GRPOConfig(steps_per_generation=4), dataset, trust_region="band:kl:0.05")

The loss is unsloth's, made of a batch at once, so its epsilons can hold the bounds of each token. The anchor is the old
policy. `python -m research.measurements.unsloth_loss` compares the losses on a GPU, and prints a row.
"""

import os
from argparse import Namespace
from importlib import import_module
from typing import Any

from ..losses.objective import Objective
from . import Limits, Rule
from .trl_settings import refusals

NAMES = ("epsilon_low", "epsilon_high")


class _Bounded:
    def __init__(self, *arguments: Any, trust_region: Rule | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        args: Any = Namespace(**vars(vars(self)["args"]))
        if (args.loss_type, args.epsilon_high) == ("dapo", 0.28):
            args.epsilon_high = None  # unsloth has set it
        if os.environ.get("UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD") == "1":
            raise ValueError(
                "unsloth: unset UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD; the bounds are of the old policy"
            )
        self._limits = Limits("unsloth", trust_region, *NAMES, average=args.loss_type)
        for message in refusals(args, Objective(self._limits.region), host="unsloth"):
            raise ValueError(f"unsloth: {message}")

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        before, old = {name: vars(self)[name] for name in NAMES}, inputs.get("old_per_token_logps")
        if old is not None:  # else every ratio is 1
            vars(self).update(self._limits({}, old, inputs["advantages"].view(len(old), -1)))
        try:
            return super().compute_loss(model, inputs, *arguments, **named)  # pyright: ignore
        finally:
            vars(self).update(before)


def BandPOTrainer(*arguments: Any, trust_region: Rule | None = None, **named: Any) -> Any:
    """Make unsloth's trainer with the rule of `objective_for`. ValueError for what unsloth cannot do."""
    import_module("unsloth")  # it replaces TRL's trainer
    theirs = import_module("trl").GRPOTrainer
    if not theirs.__name__.startswith("Unsloth"):
        raise RuntimeError(
            f"unsloth: it has not replaced TRL's {theirs.__name__}; import it before anything else"
        )
    return type("BandPOTrainer", (_Bounded, theirs), {})(*arguments, trust_region=trust_region, **named)
