"""Put BandPO into torchrl 0.14. `BandPOLoss` is `GRPOLoss` with a trust region instead of `clip_epsilon`.

    loss = BandPOLoss(policy, trust_region="band:kl:0.05", masking_strategy="rlhf", entropy_bonus=False)

GRPOLoss clamps the log-ratio between its `_clip_bounds`, which hold the bounds of each token here. The anchor is what
collected the batch, `("log_probs", "full")`: the sampler. The average is torchrl's: aggregation "prompt_mean" is the
paper's; "token_mean", the default, is a mean of means over micro-batches. As in GRPOLoss, log-ratios above 88 overflow,
and `clip_fraction` counts padding too.
"""

# pyright: reportMissingImports=false

from typing import Any

from torch import Tensor
from torchrl.objectives.llm import GRPOLoss

from . import Rule, bounds_of, prepare_objective, refuse_replaced


class BandPOLoss(GRPOLoss):
    """Compute GRPO with a trust region per token (eq:bandpo_full).

    `trust_region` is as for `objective_for`, None `Band("kl", 0.05)`; the rest as for `GRPOLoss`.

    Raises ValueError for an objective that torchrl cannot do, and for `clip_epsilon`, which `trust_region` replaces.
    """

    def __init__(
        self, actor_network: Any = None, *, trust_region: Rule | None = None, **named: Any
    ) -> None:
        refuse_replaced("torchrl", named, ["clip_epsilon"])
        super().__init__(actor_network, **named)
        self.trust_region = prepare_objective(
            "torchrl", trust_region, average=self.aggregation
        ).trust_region
        self._bounds: tuple[Tensor, Tensor] | None = None

    def _log_weight(self, tensordict: Any, adv_shape: Any) -> Any:
        *_, mask = out = super()._log_weight(tensordict, adv_shape)
        old = tensordict.get(
            self.tensor_keys.sample_log_prob,
            as_padded_tensor=True,
            padding_side="left",
            padding_value=0.0,
        )
        advantages = tensordict.get(self.tensor_keys.advantage, as_padded_tensor=True)[..., 0]
        bounds = bounds_of(self.trust_region, old, advantages, mask)
        self._bounds = bounds.log_low.unsqueeze(-1), bounds.log_high.unsqueeze(-1)
        return out

    @property
    def _clip_bounds(self) -> Any:
        return super()._clip_bounds if self._bounds is None else self._bounds
