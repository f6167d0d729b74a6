"""BandPO in torchrl 0.14: `BandPOLoss` is `GRPOLoss` with a trust region instead of `clip_epsilon`.

    loss = BandPOLoss(policy, trust_region=bandpo.Band("kl", 0.05), masking_strategy="rlhf", entropy_bonus=False)

Bounds: GRPOLoss clamps the log-ratio between its `_clip_bounds`, which hold the bounds of each token here; all else is
its own. The anchor is what collected the batch, `("log_probs", "full")`: the sampler. A rule acts only where a batch is
used for several optimizer steps.

The average is torchrl's too, over the tokens (aggregation "token_mean", the default) or over the sequences
("prompt_mean", the paper's) of one call: over uneven micro-batches "token_mean" is a mean of means; take "none", and
divide its sum by the tokens of the whole batch. As in GRPOLoss, log-ratios above 88 overflow, and `clip_fraction`
counts tokens outside on either side, over padding too.
"""

# torchrl is not installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrl.objectives.llm import GRPOLoss

from ..trust_regions.base import Context, Region
from . import Rule, take


class BandPOLoss(GRPOLoss):
    """GRPO with a trust region per token (eq:bandpo_full).

    Args:
        actor_network: as for `GRPOLoss`, like everything not named here.
        trust_region: as for `objective_for`; None is `Band("kl", 0.05)`. No rule that needs entropies or a step.

    Raises:
        ValueError: a node that is none; an objective that torchrl cannot do (`REFUSED`); `clip_epsilon`, which would be
            a second rule.
    """

    def __init__(
        self,
        actor_network: Any = None,
        *,
        trust_region: Rule | None = None,
        **named: Any,
    ) -> None:
        if "clip_epsilon" in named:
            raise ValueError(
                f"clip_epsilon = {named['clip_epsilon']} beside a trust region is a second rule; "
                "pass trust_region=bandpo.Clip(eps_low, eps_high) instead"
            )
        super().__init__(actor_network, **named)
        self.trust_region: Region = take("torchrl", trust_region, average=self.aggregation).trust_region
        self._bounds: tuple[Tensor, Tensor] | None = None

    def _log_weight(self, tensordict: Any, adv_shape: Any) -> Any:
        *_, mask = out = super()._log_weight(tensordict, adv_shape)
        old_logps = tensordict.get(
            self.tensor_keys.sample_log_prob, as_padded_tensor=True, padding_side="left", padding_value=0.0
        )
        advantages = tensordict.get(self.tensor_keys.advantage, as_padded_tensor=True)[..., 0]
        context = Context(response_mask=mask, advantages=advantages, positions=mask.cumsum(-1) - 1)
        bounds = self.trust_region.bounds(torch.where(mask, old_logps.detach(), -1.0), context)
        self._bounds = bounds.log_low.unsqueeze(-1), bounds.log_high.unsqueeze(-1)
        return out

    @property
    def _clip_bounds(self) -> Any:
        return super()._clip_bounds if self._bounds is None else self._bounds
