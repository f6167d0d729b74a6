"""BandPO in Liger-Kernel 0.8: GRPO from hidden states, without the logits, and with a trust region.

    loss = BandPOLoss(trust_region=bandpo.Band("kl", 0.05), beta=0.0, use_ref_model=False, loss_type="grpo")
    value, metrics = loss(hidden, lm_head.weight, completion_ids, completion_mask, advantages, old_per_token_logps=old)

in the place of `LigerFusedLinearGRPOLoss`. Bounds: Liger clamps the ratio at 1 - `epsilon_low` and 1 + `epsilon_high`,
which hold the bounds of each token here. Epsilons of a batch are not cut into Liger's chunks of sequences, so the batch
is one chunk; its log-probabilities are still taken a block of the vocabulary at a time. The anchor is
`old_per_token_logps`; without them the batch is on policy and no rule acts. With `temperature`, they must be of it.

The average is Liger's own, by `loss_type`: "grpo" is the paper's. Over micro-batches that is a mean of means, except
for "dapo" with `num_items_in_batch`. As in Liger, log-ratios above 88 overflow. Not for its Triton loss
(`triton_grpo_loss`), whose epsilons are constants; not through TRL, where `use_liger_kernel` is refused.
"""

# Liger is not installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import inspect
from typing import Any

import torch
from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOLoss

from ..trust_regions.base import Context, Region
from . import Rule, take

# The losses that clamp the ratio of each token between the two epsilons.
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")


class BandPOLoss(LigerFusedLinearGRPOLoss):
    """Liger's GRPO with a trust region per token (eq:bandpo_full).

    Args:
        trust_region: as for `objective_for`; None is `Band("kl", 0.05)`. No rule that needs entropies or a step.
        named: as for `LigerFusedLinearGRPOLoss`.

    Raises:
        ValueError: a node that is none; an objective that Liger cannot do (`REFUSED`); `epsilon_low`, `epsilon_high` or
            `chunk_size`, which are set here; a loss without a hard clip per token.
    """

    def __init__(self, trust_region: Rule | None = None, **named: Any) -> None:
        if taken := {"epsilon_low", "epsilon_high", "chunk_size"} & set(named):
            raise ValueError(
                f"{sorted(taken)} cannot be given beside a trust region; for a plain clip pass bandpo.Clip"
            )
        super().__init__(**named)
        if self.loss_type not in LOSS_TYPES or self.importance_sampling_level != "token":
            raise ValueError(
                f"loss_type must be one of {list(LOSS_TYPES)} and importance_sampling_level 'token' for a trust region "
                f"per token, got {self.loss_type!r} and {self.importance_sampling_level!r}"
            )
        self.trust_region: Region = take("Liger", trust_region, average=self.loss_type).trust_region

    def forward(self, *arguments: Any, **named: Any) -> Any:
        given = inspect.signature(super().forward).bind(*arguments, **named).arguments
        old_logps, mask = given.get("old_per_token_logps"), given["attention_mask"].bool()
        before = self.epsilon_low, self.epsilon_high
        self.chunk_size = len(mask)
        if old_logps is not None:
            advantages, positions = given["advantages"][:, None], mask.cumsum(-1) - 1
            context = Context(response_mask=mask, advantages=advantages, positions=positions)
            bounds = self.trust_region.bounds(torch.where(mask, old_logps.detach(), -1.0), context)
            self.epsilon_low, self.epsilon_high = bounds.eps_low, bounds.eps_high
        try:
            return super().forward(*arguments, **named)
        finally:
            self.epsilon_low, self.epsilon_high = before
