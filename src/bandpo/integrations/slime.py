"""Put BandPO into slime 0.3. Give its training script

    --loss-type custom_loss --custom-loss-function-path bandpo.integrations.slime.loss --custom-config-path rule.yaml

where rule.yaml holds `trust_region: {type: band, divergence: kl, delta: 0.05}`. The loss is slime's own, with its dual
clip, average and KL; `--eps-clip` and `--eps-clip-high` are not read. The anchor is the old policy, with
`--use-rollout-logprobs` the sampler. Not for the estimators gspo and cispo, whose losses have other limits. With one
optimizer step a batch slime's own loss takes the old log-probabilities of the update itself; with any `custom_loss`
slime makes a forward pass more for the same numbers, and no rule acts.
"""

from typing import Any

import torch
from slime.backends.megatron_utils.loss import policy_loss_function  # pyright: ignore[reportMissingImports]

from . import Limits


def loss(args: Any, batch: Any, logits: torch.Tensor, reduce: Any) -> Any:
    """Compute slime's loss with a trust region per token. ValueError for what slime cannot do."""
    if args.advantage_estimator in ("gspo", "cispo"):
        raise ValueError(
            f"slime: --advantage-estimator {args.advantage_estimator} has no clip per token; take grpo"
        )
    average = None if args.custom_pg_loss_reducer_function_path else str(args.calculate_per_token_loss)
    anchor, old = ("sampler", "rollout_log_probs") if args.use_rollout_logprobs else ("old", "log_probs")
    node = getattr(args, "trust_region", None)
    limits = Limits("slime", node, "eps_clip", "eps_clip_high", anchor=anchor, average=average)
    args = limits(args, torch.cat(batch[old]), torch.cat(batch["advantages"]))
    return policy_loss_function(args, batch, logits, reduce)
