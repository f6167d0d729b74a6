"""Packed rows: several responses in one row of tokens, laid out as a batch with one response in each row."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnnecessaryIsInstance=false

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

_FREE = ("cpu",)  # devices at which looking waits for nothing


class Packing:
    """Lay out the tokens of packed rows as a batch (N, L): N responses of at most L tokens, one in each row.

    A response is a run of tokens with one id in one row; tokens outside the mask do not count, and a run of such alone
    is padding. Responses are numbered row by row, from left to right.

    Args:
        sequence_ids: the response of each token, (B, T), integers.
        mask: (B, T), bool.
        longest: L; None: what the longest response has. Looking waits for the device.
        responses: N; None: as many as there are. Looking waits for the device.

    Attributes:
        misfit: 1 where ids of one response do not stand together, or `longest` or `responses` are not theirs, else 0.

    Raises:
        ValueError: ids that are not integers (B, T); and for a misfit, unless both numbers are given on a GPU, where
            nothing is looked at.
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
        if longest is not None and (not isinstance(longest, int) or isinstance(longest, bool) or longest < 1):
            raise ValueError(f"longest must be the most tokens of a response, a positive integer, got {longest!r}")
        begins = torch.ones_like(mask)
        begins[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
        run, inside = begins.flatten().cumsum(0) - 1, mask.flatten()
        tokens = torch.zeros_like(run).scatter_add(0, run, inside.long())  # of each run of equal ids
        found, most = (tokens > 0).sum(), tokens.amax() if len(tokens) else tokens.sum()
        again = _comes_back(sequence_ids.long(), mask, run.view(mask.shape))
        if longest is None or responses is None or mask.device.type in _FREE:
            looked_at: Any = torch.stack([found, most, again.any().long()])
            count, length, is_again = looked_at.tolist()
            longest = max(1, length) if longest is None else longest
            responses = count if responses is None else responses
            if is_again:
                row, column = again.nonzero()[0].tolist()
                raise ValueError(
                    f"sequence_ids must be one run of equal numbers for each response of a row, got "
                    f"{sequence_ids[row, column].item()} again in row {row} after other ids"
                )
            if length > longest:
                raise ValueError(f"longest must be the most tokens of a response, {length} here, got {longest}")
            if count != responses:
                raise ValueError(
                    f"advantages must be one per response, ({count},) by sequence_ids, or one per token, "
                    f"{tuple(mask.shape)}, got {responses} of them; a response that has no token in the mask does not "
                    "count"
                )
        self.longest, self.responses, self.mask = longest, cast(int, responses), mask
        self.misfit = (found != responses) | (most > longest) | again.any()
        position = inside.cumsum(0) - 1 - (tokens.cumsum(0) - tokens)[run]
        response = ((tokens > 0).cumsum(0) - 1)[run]
        fits = inside & (position < self.longest) & (response < self.responses)
        # The last place is for what is outside the mask.
        self._place = torch.where(fits, response * self.longest + position, self.responses * self.longest)

    def pad(self, x: Tensor) -> Tensor:
        """Lay out (B, T) as (N, L); 0 where there is no token."""
        flat = x.new_zeros(self.responses * self.longest + 1).scatter(0, self._place, x.flatten())
        return flat[:-1].view(self.responses, self.longest)

    def pack(self, x: Tensor) -> Tensor:
        """Lay out (N, L) as (B, T) again; 0 outside the mask."""
        return torch.cat([x.flatten(), x.new_zeros(1)])[self._place].view(self.mask.shape)


def _comes_back(ids: Tensor, mask: Tensor, run: Tensor) -> Tensor:
    """Mark the tokens whose id also stands in their row in an earlier run, (B, T)."""
    order = torch.where(mask, ids, torch.iinfo(ids.dtype).max).sort(dim=1, stable=True).indices
    ids, mask, run = (x.gather(1, order) for x in (ids, mask, run))
    back = torch.zeros_like(mask)
    back[:, 1:] = (ids[:, 1:] == ids[:, :-1]) & mask[:, 1:] & mask[:, :-1] & (run[:, 1:] != run[:, :-1])
    return torch.zeros_like(back).scatter(1, order, back)
