"""Lay out packed rows as a batch with one response in each row."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .aggregation import as_mask


def unpack(sequence_ids: Tensor, response_mask: Tensor, *of_tokens: Tensor) -> tuple[Tensor, ...]:
    """Lay out packed tokens as a batch (N, L). It has N responses of at most L tokens, one in each row.

    >>> import torch, bandpo
    >>> ids = torch.tensor([[7, 7, 7, 4, 4, 9]])
    >>> mask, logps = bandpo.losses.unpack(ids, ids != 9, torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]]))
    >>> logps
    tensor([[-1., -2., -3.],
            [-4., -5.,  0.]])

    A response is a run of tokens with one id in one row; tokens outside the mask do not count. Responses are numbered
    row by row, from left to right. This waits for the device.

    Args:
        sequence_ids: the response of each token, integers (B, T), or (T,) for one row.
        response_mask: of the same shape, bool or 0/1.
        of_tokens: what has one number for each token, of the same shape.

    Returns:
        The mask (N, L), bool, and each tensor of tokens (N, L), 0 in the padding. Gradients flow through.

    Raises ValueError for what does not fit, such as an id in two places of a row.
    """
    if sequence_ids.is_floating_point() or sequence_ids.is_complex() or sequence_ids.dtype == torch.bool:
        raise ValueError(
            f"sequence_ids must be integers, the response of each token, got {sequence_ids.dtype}"
        )
    shapes = [tuple(x.shape) for x in (sequence_ids, response_mask, *of_tokens)]
    if len({*shapes}) > 1 or sequence_ids.dim() not in (1, 2):
        raise ValueError(f"all tensors must have one shape, (B, T) or (T,), got {shapes}")
    mask, ids = (torch.atleast_2d(x) for x in (as_mask(response_mask), sequence_ids))
    rows = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
    responses, lengths = torch.stack([rows, ids], -1)[mask].unique_consecutive(dim=0, return_counts=True)
    once, times = responses.unique(dim=0, return_counts=True)
    if len(once) < len(responses):
        row, own = once[times > 1][0].tolist()
        raise ValueError(
            f"sequence_ids must be one run of equal numbers for each response of a row, got {own} again in row "
            f"{row} after other ids"
        )
    if not len(responses):
        return tuple(x.new_zeros(0, 0) for x in (mask, *of_tokens))
    parts = (torch.atleast_2d(x)[mask].split(lengths.tolist()) for x in (mask, *of_tokens))
    return tuple(pad_sequence(each, batch_first=True) for each in parts)
