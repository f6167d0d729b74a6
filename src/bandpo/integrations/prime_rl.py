"""BandPO in prime-rl 0.8: a custom loss. In the trainer's TOML:

    [trainer.loss]
    type = "custom"
    import_path = "bandpo.integrations.prime_rl.loss"

    [trainer.loss.kwargs]
    trust_region = { type = "band", divergence = "kl", delta = 0.05 }

A gate: the loss is `bandpo.policy_loss`, of any objective but another average or penalty. prime-rl calls it for one
sequence at a time and divides the sum by the tokens of the whole batch, so a sum over `loss_mask` is returned, times
`loss_weights` where it has them. The anchor is the sampler, `inference_logprobs`, by design. prime-rl's default loss is
`{ type = "objective", trust_region = { type = "band", divergence = "tv", delta = 0.2 }, apply = "mask" }` and 0.001
times the square of log r: `kl_tau = 0.001` here.

Nothing of prime-rl is imported; it reads `.loss` and `.metrics` of what is returned. It is not on PyPI, so the tests
here call this with inputs of the same fields.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from torch import Tensor

from ..losses.policy import policy_loss
from . import Rule, take


class LossOutputs(NamedTuple):
    """Outputs that prime-rl reads from a loss: a scalar, and scalars that it logs as means over sequences."""

    loss: Tensor
    metrics: dict[str, Tensor]


def loss(inputs: Any, trust_region: Rule | None = None, kl_tau: float = 0.0) -> LossOutputs:
    """Compute the loss of one sequence as prime-rl calls it; the metrics are counts of tokens.

    Args:
        inputs: prime-rl's `LossInputs`, all (tokens,): `trainer_logprobs`, which has the gradient,
            `inference_logprobs`, `advantages`, `loss_mask`, `loss_weights` or None.
        trust_region: as for `objective_for`; None is `Band("kl", 0.05)`. No rule that needs entropies or a step.
        kl_tau: weight of (log r)^2, as in prime-rl's own losses.

    Raises:
        ValueError: a node that is none, an objective that is not for prime-rl (`REFUSED`).
    """
    objective = take("prime-rl", trust_region, average="the mean over tokens")
    objective = dataclasses.replace(objective, aggregation="none")
    batch = inputs.trainer_logprobs, inputs.inference_logprobs, inputs.advantages, inputs.loss_mask
    logps, anchor, advantages, mask = (x[None] for x in batch)
    if kl_tau:
        objective = dataclasses.replace(objective, beta=2 * kl_tau, kl_penalty="k2")
    reference = anchor if kl_tau else None
    per_token, metrics = policy_loss(logps, anchor, advantages, mask, objective, ref_logps=reference, metrics="all")
    if inputs.loss_weights is not None:
        per_token = per_token * inputs.loss_weights
    sums = metrics.totals
    return LossOutputs(
        per_token.sum(),
        {
            "bandpo/tokens": sums["tokens"].float(),
            "bandpo/clip_low_tokens": sums["low"].float(),
            "bandpo/clip_high_tokens": sums["high"].float(),
            "bandpo/cut_tokens": (sums["cut_low"] + sums["cut_high"]).float(),
        },
    )
