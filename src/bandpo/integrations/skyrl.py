"""BandPO in SkyRL 0.3: a policy loss of its registry, in the entry script before Ray starts (before `initialize_ray`).

    from bandpo.integrations.skyrl import register_bandpo_loss
    register_bandpo_loss(bandpo.Band("kl", 0.05))                   # and trainer.algorithm.policy_loss_type=bandpo

The rule travels to the workers with the registered function; bandpo must be installed there. A gate: the loss is
`bandpo.policy_loss`, of any objective but another average or penalty; SkyRL's `eps_clip_*` and `clip_ratio_c`
are not read. The anchor is the trainer's own old policy, corrected by SkyRL's off-policy correction; with
`anchor="rollout"` it is the sampler, as in SkyRL's `dppo`, which is what its fully asynchronous training asks for.

SkyRL divides the advantages before the loss (`loss_reduction`, over the mini-batch) and adds KL and entropy terms after
it, so a masked sum is returned. Bounds do not depend on the scale of an advantage. Log-ratios are clamped to +-20,
unless the objective has a `max_log_ratio`.
"""

# SkyRL is not installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import torch
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry, apply_off_policy_correction, reduce_loss

from ..losses.policy import policy_loss
from . import Rule, take

# Of `Metrics.compute`. SkyRL logs the mean over micro-batches: a share of all tokens is the ratio of two of these.
COUNTS = ("tokens", "sequences", "clip/count", "clip/tail_high_count", "clip/good_tail_tokens", "cut/good_tail_count")


def register_bandpo_loss(
    trust_region: Rule | None = None,
    *,
    name: str = "bandpo",
    anchor: Literal["old", "rollout"] = "old",
) -> None:
    """Make the rule known to SkyRL as the policy loss `name`.

    Args:
        trust_region: as for `objective_for`; None is `Band("kl", 0.05)`. No rule that needs entropies or a step.
        name: what `trainer.algorithm.policy_loss_type` is set to.
        anchor: the policy that the ratio and the bounds are taken against.

    Raises:
        ValueError: a node that is none, an objective that is not for SkyRL (`REFUSED`), or SkyRL's: the name is taken.
    """
    if anchor not in ("old", "rollout"):
        raise ValueError(f"anchor must be 'old' or 'rollout', got {anchor!r}")
    objective = take("SkyRL", trust_region, anchor="sampler" if anchor == "rollout" else "old")
    objective = dataclasses.replace(objective, aggregation="none", max_log_ratio=objective.max_log_ratio or 20.0)
    per_token = functools.partial(policy_loss, objective=objective, metrics="all")
    PolicyLossRegistry.register(name, functools.partial(_loss, per_token, anchor))


# What follows the first two is what SkyRL calls it with; all tensors are (B, T).
def _loss(per_token, anchor, log_probs, old_log_probs, advantages, config, loss_mask=None, rollout_logprobs=None):
    if anchor == "rollout" and (rollout_logprobs is None or config.off_policy_correction.tis_ratio_type is not None):
        raise ValueError(
            "anchor = 'rollout' needs the sampler's log-probabilities (generator.sampling_params.logprobs=1), and "
            "off_policy_correction.tis_ratio_type must be null: the ratio holds that correction already"
        )
    old = rollout_logprobs if anchor == "rollout" else old_log_probs
    mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask
    values, metrics = per_token(log_probs, old, advantages, mask)
    values, mask, corrected = apply_off_policy_correction(
        values, old_log_probs, rollout_logprobs, mask, config.off_policy_correction
    )
    counted = metrics.compute()
    logged = {f"bandpo/{name}": counted[name] for name in COUNTS}
    return reduce_loss(values, mask), {"clip_ratio": max(0.0, counted["cut/fraction"])} | logged | corrected
