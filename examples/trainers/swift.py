"""ms-swift 4.6.0: the bounds of each token for its own loss.

`swift/rlhf_trainers/grpo_trainer.py` calls `_compute_loss_and_metrics`. Its Megatron trainer is another one.
Save this as bandpo_recipe.py where every worker can import it. Pass it to ms-swift: --external_plugins bandpo_recipe.py
"""

import torch
from swift.rlhf_trainers import GRPOTrainer
from swift.trainers import TrainerFactory

import bandpo


class BandPOTrainer(GRPOTrainer):
    region = bandpo.Band("kl", 0.05)

    def _compute_loss_and_metrics(self, model, model_inputs, grpo_batch):
        old = -1.0 if grpo_batch.old_per_token_logps is None else grpo_batch.old_per_token_logps  # None: ratios are 1
        bounds = self.region.bounds(torch.where(grpo_batch.completion_mask.bool(), old, -1.0))
        self.epsilon_low, self.epsilon_high = bounds.eps_low, bounds.eps_high
        return super()._compute_loss_and_metrics(model, model_inputs, grpo_batch)


TrainerFactory.TRAINER_MAPPING["grpo"] = f"{__name__}.BandPOTrainer"
