"""Packed rows: several responses in one row of tokens, laid out as a batch with one response in each row."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Packing:
    """Lay out the tokens of packed rows as a batch (N, L): N responses of at most L tokens, one in each row.

    A response is a run of tokens with one id in one row; tokens outside the mask do not count, and a run of such alone
    is padding. Responses are numbered row by row, from left to right.

    Args:
        sequence_ids: the response of each token, (B, T), integers.
        mask: (B, T), bool.
        longest: L; None: what the longest response has. Looking waits for the device.
        responses: N; None: as many as there are. Looking waits for the device.

    Raises:
        ValueError: ids that are not integers (B, T); ids of one response that do not stand together; a response longer
            than `longest`, or not `responses` of them. On a GPU with both numbers given nothing is looked at: tokens
            that do not fit end in an assertion of the device then.
    """

    def __init__(
        self, sequence_ids: Tensor, mask: Tensor, *, longest: int | None = None, responses: int | None = None
    ) -> None:
        is_other = sequence_ids.is_floating_point() or sequence_ids.is_complex() or sequence_ids.dtype == torch.bool
        if sequence_ids.shape != mask.shape or is_other:
            raise ValueError(
                f"sequence_ids must be integers {tuple(mask.shape)}, the response of each token, got "
                f"{sequence_ids.dtype} {tuple(sequence_ids.shape)}"
            )
        if longest is not None and (isinstance(longest, bool) or not longest > 0):
            raise ValueError(f"longest must be the most tokens of a response, a positive integer, got {longest!r}")
        begins = torch.ones_like(mask)
        begins[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
        run, inside = begins.flatten().cumsum(0) - 1, mask.flatten()
        tokens = torch.zeros_like(run).scatter_add(0, run, inside.long())  # of each run of equal ids
        if longest is None or responses is None or mask.device.type == "cpu":
            most: int
            found: int
            looked_at: Any = torch.stack([(tokens > 0).sum(), tokens.amax() if len(tokens) else tokens.sum()])
            found, most = looked_at.tolist()
            _check_together(sequence_ids, begins, tokens, run, found)
            longest, responses = max(1, most) if longest is None else longest, found if responses is None else responses
            if most > longest:
                raise ValueError(f"longest must be the most tokens of a response, {most} here, got {longest}")
            if found != responses:
                raise ValueError(
                    f"advantages must be one per response, ({found},) by sequence_ids, or one per token, "
                    f"{tuple(mask.shape)}, got {responses} of them"
                )
        self.longest, self.responses, self.mask = longest, responses, mask
        position = inside.cumsum(0) - 1 - (tokens.cumsum(0) - tokens)[run]
        place = ((tokens > 0).cumsum(0) - 1)[run] * longest + torch.where(position < longest, position, 1 << 40)
        self._place = torch.where(inside, place, responses * longest)  # the last is for what is outside the mask

    def pad(self, x: Tensor) -> Tensor:
        """Lay out (B, T) as (N, L); 0 where there is no token."""
        flat = x.new_zeros(self.responses * self.longest + 1).scatter(0, self._place, x.flatten())
        return flat[:-1].view(self.responses, self.longest)

    def pack(self, x: Tensor) -> Tensor:
        """Lay out (N, L) as (B, T) again; 0 outside the mask."""
        return torch.cat([x.flatten(), x.new_zeros(1)])[self._place].view(self.mask.shape)


def _check_together(ids: Tensor, begins: Tensor, tokens: Tensor, run: Tensor, found: int) -> None:
    """Raise ValueError where an id comes back in its row after others."""
    rows = torch.arange(ids.shape[0], device=ids.device)[:, None].expand_as(ids)
    first = begins.flatten() & (tokens[run] > 0)
    named = torch.stack([rows.flatten()[first], ids.flatten()[first].long()])
    distinct, times = torch.unique(named, dim=1, return_counts=True)
    if distinct.shape[1] != found:
        row, again = distinct[:, times.argmax()].tolist()
        raise ValueError(
            f"sequence_ids must be one run of equal numbers for each response of a row, got {again} again in row {row} "
            "after other ids"
        )
