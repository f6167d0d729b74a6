"""BandPO in tinker 0.38: a loss for `TrainingClient.forward_backward_custom`.

    from bandpo.integrations.tinker import bandpo_loss
    training_client.forward_backward_custom(data, bandpo_loss(bandpo.Band("kl", 0.05)))

A gate: the loss is `bandpo.policy_loss`, of any objective but another average or a KL penalty. It runs where your
program runs, on the log-probabilities that a forward pass of the server returns, and the server's backward pass gets
its derivative. The datums are those of tinker's own `ppo` and `importance_sampling`: `target_tokens`, `logprobs` (the
sampler's, which are the anchor), `advantages`. Keep the `mask` that tinker-cookbook's `trajectory_to_data` adds:
without it the metrics count prompt tokens too, whose advantage is 0. The loss is a sum over tokens, as tinker's own
are: divide the advantages for a mean. A rule acts only where a batch is used for several optimizer steps, or the
sampler is behind.

tinker-cookbook's `rl.train` takes names of the server's losses only: it needs a `train_step` of yours, which calls
`forward_backward_custom` in the place of `forward_backward`. Not through `create_custom_loss`, whose functions are
traced and run on the server. Nothing of tinker is imported; a datum is what it says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from ..losses.metrics import Metrics
from ..losses.policy import policy_loss
from . import Rule, take


def bandpo_loss(
    trust_region: Rule | None = None,
) -> Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, dict[str, float]]]:
    """Return the loss function for `forward_backward_custom`.

    It returns the sum and `Metrics.compute` under `bandpo/`.

    Args:
        trust_region: as for `objective_for`; None is `Band("kl", 0.05)`. No rule that needs entropies or a step.

    Raises:
        ValueError: a node that is none, an objective that is not for tinker (`REFUSED`); of the function: a datum
            without `logprobs` or `advantages`, or with tensors of another shape than `target_tokens`.
    """
    objective = dataclasses.replace(take("tinker", trust_region), aggregation="none")
    per_token = partial(policy_loss, objective=objective, metrics="all")

    def one(index: int, inputs: Mapping[str, Any], logprobs: Tensor) -> tuple[Tensor, Metrics]:
        if missing := {"logprobs", "advantages"} - set(inputs):
            raise ValueError(f"loss_fn_inputs of datum {index} lack {sorted(missing)}, got {sorted(inputs)}")
        old, advantages = inputs["logprobs"].to_torch(), inputs["advantages"].to_torch()
        mask = inputs["mask"].to_torch() if "mask" in inputs else torch.ones_like(old)
        for name, x in (("logprobs", old), ("advantages", advantages), ("mask", mask)):
            if logprobs.dim() != 1 or x.shape != logprobs.shape:
                raise ValueError(
                    f"{name} of datum {index} must be (tokens,) like target_tokens, got {tuple(x.shape)} and "
                    f"{tuple(logprobs.shape)}"
                )
        values, metrics = per_token(logprobs[None], old[None], advantages[None], mask[None])
        return values.sum(), metrics

    def loss(data: Sequence[Any], logprobs_list: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        pairs = enumerate(zip(data, logprobs_list, strict=True))
        done = [one(i, datum.loss_fn_inputs, logprobs) for i, (datum, logprobs) in pairs]
        values = reduce(Metrics.merge, [metrics for _, metrics in done]).compute()
        logged = {f"bandpo/{name}": value for name, value in values.items() if value == value}
        return torch.stack([value for value, _ in done]).sum(), logged

    return loss
