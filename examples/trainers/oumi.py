"""Oumi, commit d8ed077: the bounds of each token for its own loss.

`oumi/builders/training.py` looks `trl.GRPOTrainer` up when it builds `TRL_GRPO`. Leave `epsilon` out of its `grpo`
settings. Its `VERL_GRPO` takes verl's three settings as `verl_config_overrides` (read, not run).
Save this as bandpo_recipe.py where every worker can import it. Then train by this file.
"""

from functools import partial

import oumi
import trl

from bandpo import Band
from bandpo.integrations.trl import BandPOTrainer

trl.GRPOTrainer = partial(BandPOTrainer, trust_region=Band("kl", 0.05))
if __name__ == "__main__":
    oumi.train(oumi.core.configs.TrainingConfig.from_yaml("train.yaml"))
