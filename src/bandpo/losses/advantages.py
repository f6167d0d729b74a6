"""Compute group-relative advantages. A response is compared with the responses to the same prompt."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
import reprlib
import warnings
from collections.abc import Sequence, Sized
from numbers import Integral
from typing import Any, Literal, cast

import torch
from torch import Tensor

Baseline = Literal["mean", "leave-one-out"]


def group_advantages(
    rewards: Tensor,
    group_size: int | None = None,
    *,
    groups: Tensor | Sequence[Any] | None = None,
    normalize: bool = True,
    baseline: Baseline = "mean",
    epsilon: float = 1e-6,
) -> Tensor:
    """Compute A_i = (R_i - mu) / sigma over the responses to one prompt. See sec:preliminaries and arXiv 2402.03300.

    >>> import torch, bandpo
    >>> bandpo.group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), group_size=4)
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000,  0.0000,  0.0000,  0.0000,  0.0000])
    >>> bandpo.group_advantages(torch.tensor([1.0, 2.0, 0.0, 4.0, 2.0]), groups=list("ababa"), normalize=False)
    tensor([ 0., -1., -1.,  1.,  1.])

    A group whose rewards are all equal teaches nothing: its advantages are 0. A reward that is NaN is missing: it
    counts in no mu and no sigma, and its own advantage is 0. So is that of a reward which is the only one of its
    group; how many groups have but one is told in a warning.

    Args:
        rewards: (N,), float; NaN where a response has none.
        group_size: G, at least 2: the responses of one prompt stand next to each other, and N is a multiple of G.
        groups: instead, the prompt of each response: (N,) whole numbers, or N texts, whole numbers or tuples, in any
            order; groups may have different sizes.
        normalize: divide by sigma, the standard deviation with G - 1 in the denominator (False: Dr. GRPO, arXiv
            2503.20783).
        baseline: "mean", or "leave-one-out": mu is the mean of the other G - 1 rewards (RLOO, arXiv 2402.14740);
            without `normalize` then.
        epsilon: added to sigma.

    Returns:
        (N,), in at least float32. On a GPU the last bits may differ from run to run, as sums there do.

    Raises:
        TypeError: rewards that are not a tensor.
        ValueError: arguments that do not go together, an infinite reward, rewards too far apart for their type.
    """
    if not isinstance(rewards, Tensor):
        raise TypeError(
            f"rewards must be a torch.Tensor, got {type(rewards).__name__}; use torch.tensor(rewards)"
        )
    if rewards.dim() != 1 or len(rewards) == 0 or not rewards.is_floating_point():
        raise ValueError(
            f"rewards must be (N,) floats, N at least 1, got {tuple(rewards.shape)} of {rewards.dtype}"
        )
    infinite = rewards.isinf()
    if infinite.any():
        place = int(infinite.nonzero()[0])
        raise ValueError(f"rewards must be finite, or NaN where one is missing; rewards[{place}] is "
                         f"{rewards[place].item()} ({int(infinite.sum())} of {len(rewards)} are infinite)")  # fmt: skip
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon!r}")
    if baseline not in ("mean", "leave-one-out"):
        raise ValueError(f"baseline must be 'mean' or 'leave-one-out', got {baseline!r}")
    if baseline == "leave-one-out" and normalize:
        raise ValueError(
            "baseline 'leave-one-out' goes with normalize=False: dividing by sigma would bias it again"
        )
    group = _numbered(len(rewards), group_size, groups).to(rewards.device)
    rewards = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    counts = ~rewards.isnan()
    none = rewards.new_zeros(int(group.max()) + 1)

    def total(x: Tensor) -> Tensor:
        return none.index_add(0, group, torch.where(counts, x, 0.0))

    count = total(torch.ones_like(rewards))
    single = int((count == 1).sum())
    if single:
        warnings.warn(
            f"{single} of {len(count)} groups have one reward; its advantage is 0", stacklevel=2
        )
    least = (none + math.inf).scatter_reduce(0, group, rewards.nan_to_num(math.inf), "amin")
    shifted = rewards - least[group]  # equal rewards are then equal to their mean exactly
    centred = torch.where(counts, shifted - (total(shifted) / count)[group], 0.0)
    others = (count - 1).clamp(min=1)
    squares = total(centred.square() if normalize else centred.abs())
    if not squares.isfinite().all():
        place = int(rewards.nan_to_num(-math.inf).where(~squares.isfinite()[group], -math.inf).argmax())
        pair = f"rewards[{place}] is {rewards[place].item():g}, the least of its group {least[group[place]].item():g}"
        raise ValueError(f"rewards of a group are too far apart for {rewards.dtype}: {pair}")
    if baseline == "leave-one-out":
        return centred * (count / others)[group]
    return centred / ((squares / others).sqrt()[group] + epsilon) if normalize else centred


def _numbered(count: int, group_size: int | None, groups: Tensor | Sequence[Any] | None) -> Tensor:
    """Return the number of each response's group, from 0 on."""
    if (group_size is None) == (groups is None):
        both = "neither" if groups is None else "both"
        raise ValueError(f"group_size or groups must say which responses belong together, got {both}")
    if group_size is not None:
        if isinstance(group_size, bool) or not isinstance(group_size, Integral) or group_size < 2:
            raise ValueError(f"group_size must be an integer of at least 2, got {group_size!r}")
        if count % group_size:
            raise ValueError(f"rewards must be (N,) with N a positive multiple of group_size {group_size}, got "
                             f"({count},); groups= takes groups of other sizes")  # fmt: skip
        return torch.arange(count) // group_size
    groups = cast(Any, groups).tolist() if isinstance(groups, Tensor) else groups
    if isinstance(groups, str | bytes) or not isinstance(groups, Sized) or len(groups) != count:
        raise ValueError(
            f"groups must be a sequence of {count}, one for each reward, got {reprlib.repr(groups)}"
        )
    wrong = [place for place, group in enumerate(groups) if not isinstance(group, str | Integral | tuple)]
    if wrong:
        raise ValueError(f"groups must hold texts, whole numbers or tuples, got "
                         f"{reprlib.repr(groups[wrong[0]])} at {wrong[0]}")  # fmt: skip
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return torch.tensor([numbers[group] for group in groups])
