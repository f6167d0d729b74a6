"""Put BandPO into rLLM v1, with each of its backends, verl, tinker and Fireworks. In its configuration:

    algorithm:
      loss_plugins: [bandpo.integrations.rllm]
      loss_fn: bandpo_rllm
      loss_params:
        trust_region: {type: band, divergence: kl, delta: 0.05}

The loss is `bandpo.policy_loss` for each token, averaged by rLLM's `loss_agg_mode`; `eps_clip` is not read. The anchor
is its `logp_old`: with verl the old policy, else and under `bypass_mode` the sampler's. `anchor: sampler` in
`loss_params` takes `logp_rollout`. Log-ratios are clamped to +-20, as in rLLM's own losses, unless the objective has a
`max_log_ratio`. A name that the backend knows goes to the backend, so this is not verl's "bandpo". rLLM's main has no
`register_loss` at commit 9beb6e0; there take `bandpo.integrations.verl`.
"""

# pyright: reportMissingImports=false

from typing import Any

import rllm
import torch
from torch import Tensor

from . import COUNTS, loss_per_token


@rllm.register_loss("bandpo_rllm")
def loss(ctx: Any) -> tuple[Tensor, dict[str, float]]:
    """Compute the loss from a `LossContext`, of a batch (B, T) or a response (T,)."""
    anchor = ctx.params.get("anchor", "old")
    if anchor not in ("old", "sampler"):
        raise ValueError(f"rLLM: loss_params.anchor must be 'old' or 'sampler', got {anchor!r}")
    per_token = loss_per_token("rLLM", ctx.params.get("trust_region"), anchor=anchor)
    old = ctx.logp_old if anchor == "old" else ctx.logp_rollout
    if old is None:
        raise ValueError(
            "rLLM: loss_params.anchor = 'sampler' needs logp_rollout; let verl keep rollout_log_probs"
        )
    batch = ctx.logp_curr, old, ctx.advantages, ctx.action_mask
    values, metrics = per_token(*map(torch.atleast_2d, batch))
    counted = metrics.compute()
    loss = ctx.aggregate(values.view_as(ctx.logp_curr), ctx.action_mask)
    return loss, {f"bandpo/{name}": counted[name] for name in COUNTS}
