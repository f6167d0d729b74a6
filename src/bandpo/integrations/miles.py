"""Put BandPO into miles. Give its training script

    --loss-type custom_loss --custom-loss-function-path bandpo.integrations.miles.loss --custom-config-path rule.yaml

where rule.yaml holds `trust_region: {type: band, divergence: kl, delta: 0.05}`. The loss is miles' own, with its dual
clip, average and KL; `--eps-clip` and `--eps-clip-high` are not read. The anchor is the old policy, with
`--use-rollout-logprobs` the sampler. Not for the estimator gspo, whose loss has the ratio of a response.
"""

from functools import partial

from miles.backends.training_utils.loss_hub.losses import policy_loss_function  # pyright: ignore[reportMissingImports]

from . import slime_loss

loss = partial(slime_loss, "miles", policy_loss_function, ("gspo",))
