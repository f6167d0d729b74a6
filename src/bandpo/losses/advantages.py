"""Group-relative advantages: how good a response is among the responses to the same prompt."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Baseline = Literal["mean", "leave-one-out"]


def group_advantages(
    rewards: Tensor,
    group_size: int,
    *,
    normalize: bool = True,
    baseline: Baseline = "mean",
    epsilon: float = 1e-6,
) -> Tensor:
    """A_i = (R_i - mu) / sigma over the G responses to one prompt (sec:preliminaries; arXiv 2402.03300).

    A group whose rewards are all equal teaches nothing: its advantages are 0.

    Args:
        rewards: (N,), float; the responses of one prompt stand next to each other, N is a multiple of `group_size`.
        group_size: G, at least 2.
        normalize: divide by sigma, the standard deviation with G - 1 in the denominator (False: Dr. GRPO, arXiv
            2503.20783).
        baseline: "mean", or "leave-one-out": mu is the mean of the other G - 1 rewards (RLOO, arXiv 2402.14740);
            without `normalize` then.
        epsilon: added to sigma.

    Returns:
        (N,), in at least float32.

    Raises:
        ValueError: a shape that is not (N,) with N a multiple of G, G < 2, an unknown baseline, both leave-one-out and
            normalize.

    >>> import torch, bandpo
    >>> bandpo.group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), group_size=4)
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000,  0.0000,  0.0000,  0.0000,  0.0000])
    """
    if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 2:
        raise ValueError(f"group_size must be an integer of at least 2, got {group_size!r}")
    if rewards.dim() != 1 or len(rewards) == 0 or len(rewards) % group_size:
        raise ValueError(
            f"rewards must be (N,) with N a positive multiple of group_size {group_size}, got {tuple(rewards.shape)}"
        )
    if not rewards.is_floating_point():
        raise ValueError(f"rewards must be floating point, got {rewards.dtype}")
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon!r}")
    groups = rewards.to(torch.promote_types(rewards.dtype, torch.float32)).view(-1, group_size)
    groups = groups - groups[:, :1]  # equal rewards are then equal to their mean exactly
    centred = groups - groups.mean(1, keepdim=True)
    if baseline == "leave-one-out":
        if normalize:
            raise ValueError(
                "baseline 'leave-one-out' goes with normalize=False: dividing by sigma would bias it again"
            )
        centred = centred * (group_size / (group_size - 1))
    elif baseline != "mean":
        raise ValueError(f"baseline must be 'mean' or 'leave-one-out', got {baseline!r}")
    if normalize:
        centred = centred / (groups.std(1, keepdim=True) + epsilon)
    return centred.flatten()
