"""Put BandPO into slime 0.3. Give its training script

    --loss-type custom_loss --custom-loss-function-path bandpo.integrations.slime.loss --custom-config-path rule.yaml

where rule.yaml holds `trust_region: {type: band, divergence: kl, delta: 0.05}`. The loss is slime's own, with its dual
clip, average and KL; `--eps-clip` and `--eps-clip-high` are not read. The anchor is the old policy, with
`--use-rollout-logprobs` the sampler. Not for the estimators gspo and cispo, whose losses have other limits. With one
optimizer step a batch slime's own loss takes the old log-probabilities of the update itself; with any `custom_loss`
slime makes a forward pass more for the same numbers, and clipping has no effect.
"""

from functools import partial

from slime.backends.megatron_utils.loss import policy_loss_function  # pyright: ignore[reportMissingImports]

from . import slime_loss

loss = partial(slime_loss, "slime", policy_loss_function, ("gspo", "cispo"))
