"""Average per-token terms as trainers do, with denominators over a whole batch."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from ..numerics import is_number

Aggregation = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "none"
]
AVERAGE: Aggregation = "seq-mean-token-mean"  # the paper's


def aggregate(
    values: Tensor,
    response_mask: Tensor,
    aggregation: Aggregation = AVERAGE,
    normalizer: float | Tensor | None = None,
) -> Tensor:
    """Average per-token values (B, T) over a batch; the modes and names are verl's.

    >>> import torch, bandpo
    >>> values, mask = torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[1, 1], [1, 0]])
    >>> for name in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
    ...     print(name, bandpo.losses.aggregate(values, mask, name).item())
    token-mean 3.0
    seq-mean-token-mean 3.5
    seq-mean-token-sum 4.5

    | aggregation | sum | default `normalizer` |
    |---|---|---|
    | token-mean | of all tokens | number of tokens |
    | seq-mean-token-mean | over sequences of the mean over their tokens | number of non-empty sequences |
    | seq-mean-token-sum | over sequences of the sum over their tokens | number of non-empty sequences |
    | seq-mean-token-sum-norm | of all tokens | number of non-empty sequences times T |
    | none | - (returns (B, T), 0 in padding) | - |

    Given the `normalizer` of the whole batch, the sum of the results over micro-batches and ranks is the result for the
    whole batch. (Where a framework averages gradients over ranks, multiply by the number of ranks.) An empty mask then
    gives 0.

    Raises ValueError for what does not fit, such as an empty mask without a normalizer.
    """
    if values.shape != response_mask.shape or values.dim() != 2:
        raise ValueError(
            f"values and response_mask must be (B, T), got {tuple(values.shape)} and {tuple(response_mask.shape)}"
        )
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation must be one of {list(get_args(Aggregation))}, got {aggregation!r}")
    mask = as_mask(response_mask)
    values = values.masked_fill(~mask, 0.0)
    if aggregation == "none":
        if normalizer is not None:
            raise ValueError(
                f"normalizer must be None for aggregation 'none', which divides by nothing, got {normalizer!r}"
            )
        return values
    tokens = mask.sum(-1, dtype=torch.int32)  # summing bools makes a copy of them in this dtype
    total = (values.sum(-1) / tokens.clamp(min=1)).sum() if aggregation == AVERAGE else values.sum()
    if normalizer is None:
        if not torch.compiler.is_compiling() and not bool(mask.any()):
            raise ValueError(
                "response_mask is empty: no token to learn from; pass a normalizer if other micro-batches have some"
            )
        count = tokens.sum() if aggregation == "token-mean" else (tokens > 0).sum()
        return total / (count * mask.shape[-1] if aggregation == "seq-mean-token-sum-norm" else count)
    on_device = isinstance(normalizer, Tensor) and normalizer.device.type != "cpu"
    is_one = (isinstance(normalizer, Tensor) and normalizer.numel() == 1) or is_number(normalizer)
    if not (on_device or torch.compiler.is_compiling()) and not (is_one and 0 < normalizer < math.inf):
        raise ValueError(f"normalizer must be positive and finite, got {normalizer!r}")
    return total / normalizer


def as_mask(mask: Tensor) -> Tensor:
    """Return the mask as bool. It looks at the values if it must, which waits for the device."""
    if (
        mask.dtype != torch.bool
        and not torch.compiler.is_compiling()
        and not bool(((mask == 0) | (mask == 1)).all())
    ):
        raise ValueError(
            f"response_mask must be bool or hold 0 and 1 only, got a {mask[(mask != 0) & (mask != 1)][0].item()!r}"
        )
    return mask.bool()
