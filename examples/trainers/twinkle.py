"""Twinkle, commit 1a1d884: the bounds of each token for its own loss.

`twinkle/loss/grpo.py` calls `_compute_per_token_loss`. Twinkle's server takes names of losses only.
Save this as bandpo_recipe.py where every worker can import it. Then call model.set_loss(BandPOLoss).
"""

from twinkle.loss import GRPOLoss

import bandpo


class BandPOLoss(GRPOLoss):
    region = bandpo.Band("kl", 0.05)

    def _compute_per_token_loss(self, ratio, advantages, per_token_logps):
        bounds = self.region.bounds((per_token_logps - ratio.log()).detach().clamp(max=0))
        self.epsilon, self.epsilon_high = bounds.eps_low, bounds.eps_high
        return super()._compute_per_token_loss(ratio, advantages, per_token_logps)
