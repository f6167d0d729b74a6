"""Weights for the mismatch of a trainer and its sampler: IcePop, TIS, and any rule around the sampler's policy."""

from typing import Literal

import torch
from torch import Tensor

from bandpo.losses.surrogates import MAX_LOG_RATIO
from bandpo.numerics import LOWEST, output_dtype
from bandpo.trust_regions.base import Context, Region


def rollout_weights(
    old_logps: Tensor,
    rollout_logps: Tensor,
    mask: Tensor,
    trust_region: Region,
    apply: Literal["mask", "weight"] = "mask",
) -> Tensor:
    """Compute `rollout_is_weights`, rho = pi_old / pi_rollout kept in bounds, (B, T); 0 in padding.

    mask: rho inside, 0 outside. IcePop (arXiv 2510.18855) is `Clip(0.5, 4)`, rho in [0.5, 5].
    weight: clip(rho, low, high). TIS, min(rho, C), is `Clip(1, C - 1)`.
    """
    dtype = torch.promote_types(output_dtype(old_logps), rollout_logps.dtype)
    old, rollout = (torch.where(mask, x.detach().to(dtype), -1.0) for x in (old_logps, rollout_logps))
    log_ratio = (old.clamp(min=LOWEST) - rollout.clamp(min=LOWEST)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    bounds = trust_region.bounds(rollout, Context(response_mask=mask))
    clipped = bounds.clamp(log_ratio)
    weights = clipped.exp()
    if apply == "mask":
        weights = torch.where((clipped == log_ratio) | clipped.isnan(), weights, 0.0)
    return torch.where(mask, weights, 0.0)
