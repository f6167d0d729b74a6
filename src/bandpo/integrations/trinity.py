"""Put BandPO into Trinity-RFT 0.6. In its YAML, in `algorithm:`

    policy_loss_fn: bandpo.integrations.trinity.BandPOLoss
    policy_loss_fn_args: {trust_region: {type: band, divergence: kl, delta: 0.05}, loss_agg_mode: token-mean}

The loss is Trinity's "ppo" with its dual clip (`clip_ratio_c`, 3 unless set). The anchor is the sampler, unless you set
`bypass_old_logprobs: false`. Trinity overwrites `loss_agg_mode` with that of `algorithm:`, where both are given.
"""

from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn  # pyright: ignore[reportMissingImports]

from . import Limits, refuse_replaced


class BandPOLoss(PPOPolicyLossFn):
    """Compute Trinity's PPO loss with a trust region per token. ValueError for what Trinity cannot do."""

    def __init__(self, backend="verl", trust_region=None, loss_agg_mode="token-mean", **named):
        limits = ("clip_range", "clip_range_low", "clip_range_high", "fallback_to_policy_gradient")
        refuse_replaced("Trinity-RFT", named, limits)
        self.limits = Limits(
            "Trinity-RFT", trust_region, "clip_range_low", "clip_range_high", average=loss_agg_mode
        )
        super().__init__(backend, clip_range=0.0, loss_agg_mode=loss_agg_mode, **named)

    def __call__(self, logprob, old_logprob, action_mask, advantages, **kwargs):
        loss = super(BandPOLoss, self.limits(self, old_logprob, advantages, action_mask))
        return loss.__call__(
            logprob, old_logprob=old_logprob, action_mask=action_mask, advantages=advantages
        )

    @classmethod
    def default_args(cls):
        return {"trust_region": None, "loss_agg_mode": "token-mean"}
