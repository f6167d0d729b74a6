"""Lay out packed rows as a batch with one response in each row."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch
from torch import Tensor

from .aggregation import as_mask


def unpack(sequence_ids: Tensor, response_mask: Tensor, *of_tokens: Tensor) -> tuple[Tensor, ...]:
    """Lay out packed tokens as a batch (N, L). It has N responses of at most L tokens, one in each row.

    A response is a run of tokens with one id in one row. Tokens outside the mask do not count, and a run of such alone
    is padding. Responses are numbered row by row, from left to right; one without a token
    in the mask does not count. This waits for the device.

    Args:
        sequence_ids: the response of each token, integers (B, T), or (T,) for one row.
        response_mask: of the same shape, bool or 0/1.
        of_tokens: what has one number for each token, of the same shape.

    Returns:
        The mask (N, L), bool, and each tensor of tokens (N, L), 0 where there is no token. Gradients flow through.

    Raises:
        ValueError: ids that are not integers, another shape, a mask that is not 0/1, an id in two places of a row.

    >>> import torch, bandpo
    >>> ids = torch.tensor([[7, 7, 7, 4, 4, 9]])
    >>> mask, logps = bandpo.losses.unpack(ids, ids != 9, torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]]))
    >>> logps
    tensor([[-1., -2., -3.],
            [-4., -5.,  0.]])
    """
    if sequence_ids.is_floating_point() or sequence_ids.is_complex() or sequence_ids.dtype == torch.bool:
        raise ValueError(f"sequence_ids must be integers, the response of each token, got {sequence_ids.dtype}")
    shape = tuple(sequence_ids.shape)
    for name, x in [("response_mask", response_mask), *((f"tensor {i}", x) for i, x in enumerate(of_tokens))]:
        if tuple(x.shape) != shape or len(shape) not in (1, 2):
            both = f"{tuple(x.shape)} and {shape}"
            raise ValueError(f"{name} and sequence_ids must have one shape, (B, T) or (T,), got {both}")
    mask, ids = as_mask(response_mask, may_be_empty=True), sequence_ids[None] if len(shape) == 1 else sequence_ids
    inside, begins = mask.flatten(), torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    run = begins.flatten().cumsum(0) - 1
    tokens = torch.zeros_like(run).scatter_add(0, run, inside.long())  # of each run of equal ids
    rows = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
    named = torch.stack([rows[begins], ids[begins]], 1)[tokens[: int(begins.sum())] > 0]
    once, times = named.unique(dim=0, return_counts=True) if len(named) else (named, named[:, 0])
    if len(once) < len(named):
        row, own = once[times > 1][0].tolist()
        raise ValueError(
            f"sequence_ids must be one run of equal numbers for each response of a row, got {own} again in row "
            f"{row} after other ids"
        )
    count, longest = len(named), int(tokens.max()) if len(named) else 0
    position = inside.cumsum(0) - 1 - (tokens.cumsum(0) - tokens)[run]
    response = ((tokens > 0).cumsum(0) - 1)[run]
    place = torch.where(inside, response * longest + position, count * longest)  # the last is for what is outside

    def laid_out(x: Tensor) -> Tensor:
        return x.new_zeros(count * longest + 1).scatter(0, place, x.flatten())[:-1].view(count, longest)

    return tuple(map(laid_out, (mask, *of_tokens)))
