"""Log-probabilities from hidden states or logits, a few hundred tokens at a time."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..numerics import is_traced, output_dtype


def token_logps(
    hidden: Tensor, weight: Tensor | None, tokens: Tensor, *, temperature: float = 1.0, entropies: bool = False,
    chunk: int = 512,
) -> Any:  # fmt: skip
    """Compute log_softmax(hidden @ weight.T / temperature) at each token. The result is at least float32.

    >>> import torch, bandpo
    >>> logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [1.0, 3.0, 0.0, 0.0]]])
    >>> bandpo.losses.token_logps(logits, None, torch.tensor([[2, 1]])).exp()
    tensor([[0.2500, 0.8098]])

    Only `chunk` rows of logits exist at a time; the backward pass makes them again. Leave padding out with a mask:
    `token_logps(hidden[mask], ...)`. A half-precision `weight` has its gradient added up in that precision.

    Without entropies, hidden states and a weight in one precision of at least float32 go to torch 2.13's
    `linear_cross_entropy`, which takes two thirds of the time and half of the memory, and has no second derivatives.

    Args:
        hidden: (..., H), the last hidden state before each token: `hidden[:, :-1]` where tokens are `ids[:, 1:]`.
        weight: (V, H), the output matrix, such as `lm_head.weight`; None where `hidden` are logits, (..., V).
        tokens: (...), integers in [0, V); labels of -100 are left out with the mask, or set to 0.
        temperature: that of the sampler.
        entropies: return the entropies of the distributions too, in nats.
        chunk: rows of logits at a time.

    Returns:
        `logps`, or (`logps`, `entropies`), of the shape of `tokens`, both with a gradient.

    Raises:
        ValueError: shapes that do not fit, a number out of range.
    """
    if tokens.shape != hidden.shape[:-1] or (
        weight is not None and weight.shape[1:] != hidden.shape[-1:]
    ):
        shapes = [None if x is None else tuple(x.shape) for x in (hidden, weight, tokens)]
        raise ValueError(
            f"hidden (..., H), weight (V, H) or None and tokens (...) must fit together, got {shapes}"
        )
    if not 0 < temperature < float("inf") or chunk < 1:
        raise ValueError(f"temperature and chunk must be positive, got {temperature!r} and {chunk!r}")

    if weight is not None and not entropies and _torch_has_it(hidden, weight):
        rows = hidden.reshape(-1, hidden.shape[-1])
        loss = functional.linear_cross_entropy(
            rows if temperature == 1 else rows / temperature,
            weight,
            tokens.flatten().long(),
            reduction="none",
            # The default leaves out tokens of -100; here these are an error.
            ignore_index=torch.iinfo(torch.int64).min,
            options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk, chunking_method=None),
        )
        return -loss.view(tokens.shape)

    def of_rows(rows: Tensor, weight: Tensor | None, chosen: Tensor) -> tuple[Tensor, Tensor]:
        logits = rows if weight is None else functional.linear(rows, weight)
        logps = torch.log_softmax(logits.to(output_dtype(logits)) / temperature, -1)
        own = logps.gather(-1, chosen[:, None])[:, 0]
        # 0 times -inf is NaN.
        return own, -(logps.exp() * logps.clamp(min=-1e3)).sum(-1) if entropies else own

    pieces = zip(
        hidden.reshape(-1, hidden.shape[-1]).split(chunk), tokens.flatten().split(chunk), strict=True
    )
    parts: Any = [
        checkpoint(of_rows, rows, weight, chosen, use_reentrant=False) for rows, chosen in pieces
    ]
    logps, entropy = (torch.cat(each).view(tokens.shape) for each in zip(*parts, strict=True))
    return (logps, entropy) if entropies else logps


def _torch_has_it(hidden: Tensor, weight: Tensor) -> bool:
    """Tell where torch's own function gives the same. It computes in the dtype of its inputs, and eagerly."""
    return (
        hasattr(torch.nn, "LinearCrossEntropyOptions")
        and hidden.dtype == weight.dtype == output_dtype(hidden)
        and not torch.is_autocast_enabled(hidden.device.type)
        and not (is_traced(hidden) or is_traced(weight))
        and hidden.numel() > 0
    )
