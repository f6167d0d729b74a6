"""Put BandPO into unsloth 2026.10. `BandPOTrainer` is its GRPOTrainer with a trust region per token:

    import unsloth                                                  # first, as it asks
    from bandpo.integrations.unsloth import BandPOTrainer
    trainer = BandPOTrainer(model, reward, GRPOConfig(steps_per_generation=4), dataset, trust_region="band:kl:0.05")

The loss is unsloth's, made of a batch at once, so its epsilons can hold the bounds of each token. The anchor is the old
policy. `python -m bandpo.integrations.unsloth` compares the losses on a GPU, and prints a row.
"""

import os
from argparse import Namespace
from importlib import import_module, util
from typing import Any

import torch

from ..losses.objective import Objective
from ..losses.policy import policy_loss
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


def check(device: str) -> str:
    """Compare unsloth's loss with two epsilons, and with `policy_loss`."""
    apply = import_module("unsloth_zoo.rl_replacements").UnslothEfficientGRPO.apply
    old, advantages = (
        torch.linspace(-16, -0.01, 4096, device=device).view(64, 64),
        torch.ones(64, device=device),
    )
    x, mask, advantages[1::2] = (old * old.sin().exp()).requires_grad_(), torch.ones_like(old), -1

    def slope(limits: dict[str, Any]) -> torch.Tensor:
        positional = (x, old, None, None, None, mask.long(), mask, advantages, 0.0, None, 1)
        return torch.autograd.grad(apply(*positional, {"loss_type": "bnpo"} | limits)[0], x)[0]

    clip, band = (
        slope(Limits("unsloth", y, *NAMES)({}, old, advantages[:, None])) for y in ("clip:0.2:0.28", None)
    )
    ours = torch.autograd.grad(
        policy_loss(x, old, advantages, mask, Objective(aggregation="token-mean"))[0], x
    )[0]
    equal = torch.equal(clip, slope(dict(zip(NAMES, (0.2, 0.28), strict=True))))
    return f"Clip equal: {equal}, Band within {((band - ours).abs().max() / ours.abs().max()).item():.0e}"


if __name__ == "__main__":
    if not torch.cuda.is_available() or util.find_spec("unsloth") is None:
        raise SystemExit(
            "bandpo.integrations.unsloth needs a GPU that torch sees, and unsloth: pip install unsloth"
        )
    print(
        f"unsloth {import_module('unsloth').__version__}, {torch.cuda.get_device_name()}, {check('cuda')}"
    )
