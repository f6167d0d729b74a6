"""Put BandPO into RLinf 0.3. In a module of yours, which RLINF_EXT_MODULE names and each worker imports:

    from bandpo.integrations.rlinf import register_bandpo_loss
    def register():
        register_bandpo_loss("band:kl:0.05")

and in its YAML `algorithm.loss_type: bandpo`. The loss is RLinf's "actor", with its dual clip, average and KL;
`ratio_clip_eps`, `clip_ratio_low` and `clip_ratio_high` are not read. The anchor is `old_logprobs`. RLinf logs an error
of `register` and goes on to "Loss bandpo not registered". For tokens only: embodied tasks are refused.
"""

from functools import partial
from typing import Any

from rlinf.algorithms.registry import get_policy_loss, register_policy_loss  # pyright: ignore

from . import Limits, Rule


def register_bandpo_loss(trust_region: Rule | None = None, *, name: str = "bandpo") -> None:
    """Register RLinf's loss with a trust region per token. ValueError for what RLinf cannot do."""
    register_policy_loss(name)(
        partial(_loss, Limits("RLinf", trust_region, "clip_ratio_low", "clip_ratio_high"))
    )


def _loss(limits: Limits, **named: Any) -> Any:
    if named["task_type"] == "embodied":
        raise ValueError(
            "RLinf: runner.task_type must be one of tokens, got 'embodied'; actions take loss_type=actor"
        )
    old, advantages, mask = named["old_logprobs"], named["advantages"], named["loss_mask"]
    return get_policy_loss("actor")(**limits(named, old, advantages, mask))
