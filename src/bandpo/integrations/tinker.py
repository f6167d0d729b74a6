"""Put BandPO into tinker 0.38. It is for `TrainingClient.forward_backward_custom`, not `create_custom_loss`.

    from bandpo.integrations.tinker import bandpo_loss
    training_client.forward_backward_custom(data, bandpo_loss("band:kl:0.05"))

The loss is `bandpo.policy_loss`, a sum over tokens as tinker's own are: divide the advantages for a mean. The datums
are those of tinker's `ppo`: `target_tokens`, `logprobs` (the sampler's, the anchor), `advantages`. Keep the `mask` of
tinker-cookbook's `trajectory_to_data`, or the metrics count prompt tokens too. The cookbook's `rl.train` takes names of
the server's losses only: write a `train_step` that calls `forward_backward_custom`. The loss runs where you are, from
log-probabilities, so it is the same with another server of that API (Fireworks' was read; none was called).
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..losses.metrics import Metrics
from ..losses.policy import policy_loss
from . import Rule, prepare_objective


def bandpo_loss(
    trust_region: Rule | None = None,
) -> Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, dict[str, float]]]:
    """Return the loss function for `forward_backward_custom`.

    It returns the sum, and `Metrics.compute` under `bandpo/`. `trust_region` is as for `objective_for`, None
    `Band("kl", 0.05)`; ValueError for one that tinker cannot do.
    """
    objective = prepare_objective("tinker", trust_region)

    def one(inputs: Any, logprobs: Tensor) -> tuple[Tensor, Metrics]:
        old, advantages = inputs["logprobs"].to_torch(), inputs["advantages"].to_torch()
        mask = inputs["mask"].to_torch() if "mask" in inputs else torch.ones_like(old)
        batch = (x[None] for x in (logprobs, old, advantages, mask))
        values, metrics = policy_loss(*batch, objective=objective, metrics="all")
        return values.sum(), metrics

    def loss(data: Sequence[Any], logprobs_list: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        pairs = zip(data, logprobs_list, strict=True)
        sums, metrics = zip(
            *(one(datum.loss_fn_inputs, logprobs) for datum, logprobs in pairs), strict=True
        )
        values = reduce(Metrics.merge, metrics).compute()
        return torch.stack(sums).sum(), {
            f"bandpo/{name}": value for name, value in values.items() if value == value
        }

    return loss
