"""Put BandPO into Liger-Kernel 0.8. Its GRPO takes hidden states, and makes no logits.

    loss = BandPOLoss(trust_region="band:kl:0.05", beta=0.0, use_ref_model=False, loss_type="grpo")
    value, metrics = loss(hidden, lm_head.weight, completion_ids, completion_mask, advantages, old_per_token_logps=old)

replaces `LigerFusedLinearGRPOLoss`. Its epsilons hold the bounds of each token; Liger does not cut them into its chunks
of sequences, so the batch is one chunk. The anchor is `old_per_token_logps`; without them the batch is on-policy, and
clipping has no effect. The average is Liger's, by `loss_type`: over micro-batches a mean of means, except for "dapo"
with `num_items_in_batch`. Not for `triton_grpo_loss`.
"""

# pyright: reportMissingImports=false

import inspect
from typing import Any

from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOLoss

from . import LOSS_TYPES, Limits, Rule, refuse_replaced


class BandPOLoss(LigerFusedLinearGRPOLoss):
    """Compute Liger's GRPO with a trust region per token (eq:bandpo_full).

    `trust_region` is as for `objective_for`, None `Band("kl", 0.05)`; the rest as for `LigerFusedLinearGRPOLoss`.

    Raises ValueError for an objective that Liger cannot do, for `epsilon_low`, `epsilon_high` or `chunk_size`, which
    are set here, and for a loss without a hard clip per token.
    """

    def __init__(self, trust_region: Rule | None = None, **named: Any) -> None:
        refuse_replaced("Liger", named, ["epsilon_low", "epsilon_high", "chunk_size"])
        super().__init__(**named)
        if self.loss_type not in LOSS_TYPES or self.importance_sampling_level != "token":
            raise ValueError(
                f"loss_type must be one of {list(LOSS_TYPES)} and importance_sampling_level 'token' for a trust region "
                f"per token, got {self.loss_type!r} and {self.importance_sampling_level!r}"
            )
        self.limits = Limits("Liger", trust_region, "epsilon_low", "epsilon_high", average=self.loss_type)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        bound = inspect.signature(super().forward).bind(*arguments, **named).arguments
        old, mask = bound.get("old_per_token_logps"), bound["attention_mask"].bool()
        self.chunk_size = len(mask)
        loss = self if old is None else self.limits(self, old, bound["advantages"][:, None], mask)
        return super(BandPOLoss, loss).forward(*arguments, **named)
