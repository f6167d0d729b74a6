"""Put BandPO into SkyRL 0.3 as a policy loss. In the entry script, before `initialize_ray`:

    from bandpo.integrations.skyrl import register_bandpo_loss
    register_bandpo_loss("band:kl:0.05")                            # and trainer.algorithm.policy_loss_type=bandpo

The loss is `bandpo.policy_loss`, a masked sum, for SkyRL divides the advantages before it and adds KL and entropy terms
after it; `eps_clip_*` and `clip_ratio_c` are not read. bandpo must be installed on the workers. Log-ratios are clamped
to +-20, as SkyRL does, unless the objective has a `max_log_ratio`.
"""

# pyright: reportMissingImports=false

from functools import partial
from typing import Literal

import torch
from skyrl.backends.skyrl_train.utils.ppo_utils import (
    PolicyLossRegistry,
    apply_off_policy_correction,
    reduce_loss,
)

from . import COUNTS, Rule, loss_per_token


def register_bandpo_loss(
    trust_region: Rule | None = None, *, name: str = "bandpo", anchor: Literal["old", "rollout"] = "old"
) -> None:
    """Register the rule in SkyRL as the policy loss `name`.

    `trust_region` is as for `objective_for`, None `Band("kl", 0.05)`. The `anchor` of ratio and bounds is "old", the
    trainer's old policy, corrected by SkyRL's off-policy correction; or "rollout", the sampler's, as in SkyRL's `dppo`
    and for asynchronous training. Raises ValueError for an objective that SkyRL cannot do, or a name that is taken.
    """
    if anchor not in ("old", "rollout"):
        raise ValueError(f"anchor must be 'old' or 'rollout', got {anchor!r}")
    per_token = loss_per_token("SkyRL", trust_region, anchor="sampler" if anchor == "rollout" else "old")
    PolicyLossRegistry.register(name, partial(_loss, per_token, anchor))


# What follows the first two is what SkyRL calls it with; all tensors are (B, T).
def _loss(
    per_token, anchor, log_probs, old_log_probs, advantages, config, loss_mask=None, rollout_logprobs=None
):
    if anchor == "rollout" and (
        rollout_logprobs is None or config.off_policy_correction.tis_ratio_type is not None
    ):
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
    return reduce_loss(values, mask), {
        "clip_ratio": max(0.0, counted["cut/fraction"])
    } | logged | corrected
