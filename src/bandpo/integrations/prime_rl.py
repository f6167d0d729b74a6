"""Put BandPO into prime-rl 0.8 as a custom loss. In the trainer's TOML:

    [trainer.loss]
    type = "custom"
    import_path = "bandpo.integrations.prime_rl.loss"

    [trainer.loss.kwargs]
    trust_region = { type = "band", divergence = "kl", delta = 0.05 }

The loss is `bandpo.policy_loss`, a sum, which prime-rl divides by the tokens of the whole batch; the anchor is the
sampler. prime-rl's default loss was, to 2026-08-27, `{ type = "objective", trust_region = { type = "band", divergence =
"tv", delta = 0.2 }, surrogate = "mask" }`, then "ipo", both with `kl_tau = 0.001`; since 2026-09-18 it is IPO at 0.3,
without `kl_tau`. Nothing of prime-rl, which is not on PyPI, is imported.
"""

import dataclasses
from typing import Any, NamedTuple

from torch import Tensor

from ..losses.policy import policy_loss
from . import Rule, prepare_objective


class LossOutputs(NamedTuple):
    """Hold a scalar loss, and scalars for the log, means over sequences."""

    loss: Tensor
    metrics: dict[str, Tensor]


def loss(inputs: Any, trust_region: Rule | None = None, kl_tau: float = 0.0) -> LossOutputs:
    """Compute the loss of one sequence, with counts of tokens as metrics.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> logps, ones = torch.tensor([0.5, 0.1]).log(), torch.ones(2)
    >>> inputs = SimpleNamespace(trainer_logprobs=logps, inference_logprobs=logps, advantages=ones)
    >>> inputs.loss_mask, inputs.loss_weights = ones.bool(), None
    >>> loss(inputs, "band:kl:0.05").loss
    tensor(-2.)

    Args:
        inputs: prime-rl's `LossInputs`, all (tokens,): `trainer_logprobs`, which has the gradient,
            `inference_logprobs`, `advantages`, `loss_mask`, `loss_weights` or None.
        trust_region: as for `objective_for`; None is `Band("kl", 0.05)`. ValueError for one that prime-rl cannot do.
        kl_tau: weight of (log r)^2, as in prime-rl's own losses.
    """
    objective = prepare_objective("prime-rl", trust_region)
    batch = inputs.trainer_logprobs, inputs.inference_logprobs, inputs.advantages, inputs.loss_mask
    logps, anchor, advantages, mask = (x[None] for x in batch)
    if kl_tau:
        objective = dataclasses.replace(objective, beta=2 * kl_tau, kl_penalty="k2")
    reference = anchor if kl_tau else None
    per_token, metrics = policy_loss(
        logps, anchor, advantages, mask, objective, ref_logps=reference, metrics="all"
    )
    weights = 1.0 if inputs.loss_weights is None else inputs.loss_weights
    x = metrics.totals
    counts = {
        "tokens": x["tokens"],
        "clip/count": x["low"] + x["high"],
        "clip/low_count": x["low"],
        "cut/count": x["cut_low"] + x["cut_high"],
    }
    return LossOutputs(
        (per_token * weights).sum(), {f"bandpo/{name}": count.float() for name, count in counts.items()}
    )
