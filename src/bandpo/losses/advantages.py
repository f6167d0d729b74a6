"""Compute group-relative advantages. A response is compared with the responses to the same prompt."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
import reprlib
import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ..numerics import check_tensor

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
        ValueError: arguments that do not go together, an infinite reward.
    """
    check_tensor("rewards", rewards)
    if rewards.dim() != 1 or len(rewards) == 0 or not rewards.is_floating_point():
        raise ValueError(
            f"rewards must be (N,) floats, N at least 1, got {tuple(rewards.shape)} of {rewards.dtype}"
        )
    if rewards.isinf().any():
        raise ValueError(
            f"rewards must be finite, or NaN where one is missing, got {int(rewards.isinf().sum())} of "
            f"{len(rewards)} infinite"
        )
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon!r}")
    # To divide by sigma would bias RLOO's baseline again.
    if baseline != "mean" and (baseline, normalize) != ("leave-one-out", False):
        raise ValueError(
            f"baseline must be 'mean', or 'leave-one-out' with normalize=False, got {baseline!r} and "
            f"normalize={normalize!r}"
        )
    group = _numbered(len(rewards), group_size, groups).to(rewards.device)
    rewards = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    counts = ~rewards.isnan()
    none = rewards.new_zeros(int(group.max()) + 1)

    def total(x: Tensor) -> Tensor:
        return none.index_add(0, group, torch.where(counts, x, 0.0))

    count = total(torch.ones_like(rewards))
    if (count == 1).any():
        warnings.warn(
            f"{int((count == 1).sum())} of {len(count)} groups have one reward; its advantage is 0",
            stacklevel=2,
        )
    least = (none + math.inf).scatter_reduce(0, group, rewards.nan_to_num(math.inf), "amin")
    shifted = rewards - least[group]  # equal rewards are then equal to their mean exactly
    centred = torch.where(counts, shifted - (total(shifted) / count)[group], 0.0)
    spread = total(centred.square() if normalize else centred.abs())
    # A square that overflows would make advantages of 0, and teach nothing in silence.
    if not spread.isfinite().all():
        raise ValueError(
            f"rewards of a group must be closer together for {rewards.dtype}, got up to "
            f"{float(rewards.nan_to_num().abs().max()):g}"
        )
    others = (count - 1).clamp(min=1)
    if baseline == "leave-one-out":
        return centred * (count / others)[group]
    return centred / ((spread / others).sqrt()[group] + epsilon) if normalize else centred


def _numbered(count: int, group_size: int | None, groups: Tensor | Sequence[Any] | None) -> Tensor:
    """Return the number of each response's group, from 0 on."""
    if (group_size is None) == (groups is None):
        raise ValueError(
            "group_size or groups must say which responses belong together, got "
            f"{'neither' if groups is None else 'both'}"
        )
    if group_size is not None:
        if (
            not isinstance(group_size, Integral) or group_size < 2 or count % group_size
        ):  # True and False are below 2
            raise ValueError(
                f"group_size must be an integer of at least 2 that divides the number of rewards, {count}, got "
                f"{group_size!r}; groups= takes groups of other sizes"
            )
        return torch.arange(count) // group_size
    values: Any = cast(Any, groups).tolist() if isinstance(groups, Tensor) else groups
    names: list[Any] = (
        [] if isinstance(values, str | bytes) or not hasattr(values, "__iter__") else list(values)
    )
    # A tensor or a NaN is equal to itself alone, so each would be a group.
    if len(names) != count or not all(isinstance(each, str | Integral | tuple) for each in names):
        raise ValueError(
            f"groups must be {count} texts, whole numbers or tuples, one for each reward, got "
            f"{reprlib.repr(names or groups)}"
        )
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names])
