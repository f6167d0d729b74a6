"""Put BandPO into xtuner v1. In the configuration of its loss:

    policy_loss_cfg=dict(
        loss_type="bandpo.integrations.xtuner.loss", trust_region=dict(type="band", divergence="kl", delta=0.05)
    )

The loss is xtuner's "vanilla", with its dual clip (`clip_ratio_c`, 3 unless set), its mean over tokens and its KL. Its
two clip ranges hold the bounds of each token, so remove them. The anchor is the old policy. Rows are packed.
"""

from typing import Any

from torch import Tensor
from xtuner.v1.rl.loss.loss_fn import pg_loss_fn  # pyright: ignore[reportMissingImports]

from . import Limits, refuse_replaced


def loss(
    new: Tensor, old: Tensor, advantages: Tensor, loss_weights: Tensor, policy_loss_cfg: dict[str, Any]
) -> Tensor:
    """Compute xtuner's loss with a trust region per token. ValueError for what xtuner cannot do."""
    node, names = policy_loss_cfg.get("trust_region"), ("cliprange_low", "cliprange_high")
    refuse_replaced("xtuner", policy_loss_cfg, names)
    config = Limits("xtuner", node, *names)(policy_loss_cfg, old, advantages, loss_weights != 0)
    return pg_loss_fn(new, old, advantages, loss_weights, config)
