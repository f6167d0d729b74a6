"""OpenRLHF 0.11.2: the bounds of each token for its own loss.

`openrlhf/trainer/ray/ppo_actor.py` calls `PolicyLoss`.
Save this as bandpo_recipe.py where every worker can import it. Add to the end of that file:

    from bandpo_recipe import BandPOLoss as PolicyLoss
"""

import torch
from openrlhf.models import PolicyLoss

import bandpo


class BandPOLoss(PolicyLoss):
    region = bandpo.Band("kl", 0.05)

    def forward(self, log_probs, old_log_probs, advantages, action_mask, **named):
        bounds = self.region.bounds(torch.where(action_mask.bool(), old_log_probs, -1.0))
        self.clip_eps_low, self.clip_eps_high = bounds.eps_low, bounds.eps_high
        return super().forward(log_probs, old_log_probs, advantages, action_mask, **named)
