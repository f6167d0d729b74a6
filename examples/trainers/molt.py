"""labs-molt, commit 2d62608: the bounds of each token for its own loss.

`molt/models/loss.py` has the loss `ppo`, the default of `--actor.loss_mode`. It takes no name of yours.
Save this as bandpo_recipe.py where every worker can import it. Add to the end of that file:

    import bandpo_recipe
"""

import torch
from molt.models.loss import POLICY_LOSSES

import bandpo

region, own = bandpo.Band("kl", 0.05), POLICY_LOSSES["ppo"]


def loss(ratio, advantages, log_probs, action_mask, *, policy_log_ratio, **named):
    old = (log_probs - policy_log_ratio).detach().clamp(max=0)
    bounds = region.bounds(torch.where(action_mask.bool(), old, -1.0))
    named |= {"clip_eps_low": bounds.eps_low, "clip_eps_high": bounds.eps_high}
    return own(ratio, advantages, log_probs, action_mask, **named)


POLICY_LOSSES["ppo"] = loss
