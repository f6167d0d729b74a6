"""Put BandPO into TRL 1.16's experimental AsyncGRPOTrainer.

Its loss clamps the ratio of each token of a packed row between 1 - epsilon_low and 1 + epsilon_high, which hold the
bounds of each token here. Its old log-probabilities are the sampler's, and so is the anchor. A dual clip is refused, as
all that is more than a clamp: the loss has no place for it.
"""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer  # pyright: ignore

from ..losses.packing import unpack
from . import Limits, Rule
from .trl_settings import UnusedEpsilon, check_losses


class AsyncBandPOTrainer(AsyncGRPOTrainer):
    """Train by asynchronous GRPO with a trust region, as `objective_for` takes it."""

    def __init__(self, *arguments: Any, trust_region: Rule | None = None, **named: Any) -> None:
        check_losses(type(self), AsyncGRPOTrainer)
        self._limits = Limits("AsyncGRPO", trust_region, "epsilon_low", "epsilon_high")
        named = inspect.signature(AsyncGRPOTrainer).bind_partial(*arguments, **named).arguments
        args = named["args"] = copy.copy(named.get("args") or AsyncGRPOConfig("AsyncBandPO"))
        if (args.epsilon, args.epsilon_high) != (0.2, None):
            raise ValueError(
                f"trust_region replaces epsilon = {args.epsilon}, epsilon_high = {args.epsilon_high}: leave both out"
            )
        vars(args)["epsilon"] = UnusedEpsilon(f"replaced by the trust region {self._limits.region}")
        super().__init__(**named)

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *others: Any, **named: Any) -> Any:
        """Compute TRL's loss of a packed row with the bounds of its tokens."""
        of_policy = inputs["token_index"] >= 0
        responses, old, advantages = (
            inputs[name][of_policy] for name in ("segment_id", "old_log_probs", "advantages")
        )
        mask, old, advantages = unpack(responses, torch.ones_like(responses), old, advantages)
        bounds = self._limits({}, old, advantages, mask)
        before = self.epsilon_low, self.epsilon_high
        if any(isinstance(each, int | float) for each in before):
            raise ValueError(
                f"trust_region replaces epsilon_low, epsilon_high = {before}, set since: leave them alone"
            )
        vars(self).update({name: x[mask] if isinstance(x, Tensor) else x for name, x in bounds.items()})
        try:
            return super().compute_loss(model, inputs, *others, **named)
        finally:
            self.epsilon_low, self.epsilon_high = before
