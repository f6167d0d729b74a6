"""Compare unsloth's compiled loss with two epsilons, and with `policy_loss`, on a GPU. Prints a row."""

from importlib import import_module, util
from typing import Any

import torch

from bandpo import Objective, policy_loss
from bandpo.integrations import Limits
from bandpo.integrations.unsloth import NAMES


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

    clip, band = (slope(Limits("unsloth", y, *NAMES)({}, old, advantages[:, None])) for y in ("clip:0.2:0.28", None))
    ours = torch.autograd.grad(policy_loss(x, old, advantages, mask, Objective(aggregation="token-mean"))[0], x)[0]
    equal = torch.equal(clip, slope(dict(zip(NAMES, (0.2, 0.28), strict=True))))
    return f"Clip equal: {equal}, Band within {((band - ours).abs().max() / ours.abs().max()).item():.0e}"


if __name__ == "__main__":
    if not torch.cuda.is_available() or util.find_spec("unsloth") is None:
        raise SystemExit("unsloth_loss needs a GPU that torch sees, and unsloth: pip install unsloth")
    print(f"unsloth {import_module('unsloth').__version__}, {torch.cuda.get_device_name()}, {check('cuda')}")
