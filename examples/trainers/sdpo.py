"""TRL's SDPO, 1.16.0: the bounds of each token for its own loss.

`trl/experimental/sdpo/sdpo_trainer.py` calls `_compute_policy_loss`, where `distillation_weight` is below 1.
Save this as bandpo_recipe.py where every worker can import it. Then use BandPOTrainer instead of SDPOTrainer.
"""

import torch
from trl.experimental.sdpo import SDPOTrainer

import bandpo


class BandPOTrainer(SDPOTrainer):
    region = bandpo.Band("kl", 0.05)

    def _compute_policy_loss(self, inputs, student_logits):
        old = inputs.get("old_per_token_logps")
        old = -1.0 if old is None else old  # None: ratios are 1
        bounds = self.region.bounds(torch.where(inputs["completion_mask"].bool(), old, -1.0))
        self.epsilon_low, self.epsilon_high = bounds.eps_low, bounds.eps_high
        return super()._compute_policy_loss(inputs, student_logits)
