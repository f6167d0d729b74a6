"""The tokens of a run, written while it trains, in the form that `bandpo calibrate` and the explorer read.

A row is a response in one optimizer step (of verl: in one update), of its completion tokens only:

    {"step": 3, "response_id": "5d0c...", "old_logps": [...], "logps": [...], "advantage": 0.5}
"""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import UserError
from ..files import json_line, line_of, lines_of

SHARE = 0.1


def check_tokens(path: Any, share: Any) -> None:
    """Raise ValueError for settings that are none."""
    if path is not None and not (isinstance(path, str | Path) and str(path)):
        raise ValueError(f"tokens_path must be the name of a folder, got {path!r}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"tokens_share must be a share of the responses in (0, 1], got {share!r}")


class TokenWriter:
    """Writes the tokens of some responses to `tokens-PROCESS.jsonl` in a folder, a file of each process.

    Which responses goes by their own numbers and not by the step: one is written in all the steps that it is used in,
    or in none, so that the file has ratios at 1 and farther out in the proportion in which they were trained on.

    A killed process loses no row but, at most, a part of the last one. What is resumed at a step cuts off the rows from
    that step on, and half a row, before it writes: none is there twice, and none is missing.

    Args:
        folder: made if it is not there.
        share: of the responses, in (0, 1].
        process: the number of this process.

    Raises:
        UserError: at step 0, if the file has rows, which are of another run; or for a damaged row.
    """

    def __init__(self, folder: str | Path, share: float, process: int) -> None:
        self.path = Path(folder) / f"tokens-{process}.jsonl"
        self.share = share
        self.step: int | None = None

    def write(
        self, step: int, old_logps: Tensor, logps: Tensor, advantages: Tensor, mask: Tensor, *, batch: int
    ) -> None:
        """Add rows for a micro-batch.

        Args:
            step: optimizer steps before this one; where it goes back, the run was resumed.
            old_logps: (B, T).
            logps: (B, T).
            advantages: (B,) or (B, T).
            mask: (B, T), true at the tokens of the response.
            batch: tells responses apart that are of different generations.
        """
        if self.step is None or step < self.step:
            self._begin(step)
        self.step, lines = step, []
        columns = (x.detach().float().cpu() for x in (old_logps, logps, advantages))
        for old, new, advantage, kept in zip(*columns, mask.bool().cpu(), strict=True):
            old, new = old[kept], new[kept]
            name = hashlib.blake2b(old.numpy().tobytes() + batch.to_bytes(8, "little"), digest_size=8).digest()
            if not len(old) or int.from_bytes(name, "little") >= self.share * 2**64:
                continue
            if not (old.isfinite().all() and new.isfinite().all()):  # of a run that is lost: no reader could use it
                continue
            row = {"step": step, "response_id": name.hex(), "old_logps": _numbers(old), "logps": _numbers(new)}
            value = _numbers(advantage[kept]) if advantage.dim() else _number(advantage.item())
            lines.append(line_of(row | {"advantage": value}))
        with self.path.open("ab") as file:
            file.writelines(lines)

    def _begin(self, step: int) -> None:
        """Leave the rows before a step alone in the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            size = self.path.stat().st_size
            if size and step == 0:
                raise UserError(
                    f"{self.path} holds the tokens of another run already; give tokens_path another folder, or delete "
                    "the file"
                )
            os.truncate(self.path, self._bytes_before(step))

    def _bytes_before(self, step: int) -> int:
        kept = 0
        for number, line in enumerate(lines_of(self.path), 1):
            if not line.endswith(b"\n"):
                break
            where = f"{self.path}, line {number}"
            row = json_line(line, where)
            if type(row.get("step")) is not int:
                raise UserError(f"{where}: 'step' is {row.get('step')!r}; a whole number is expected")
            if row["step"] >= step:
                break
            kept += len(line)
        return kept


def _numbers(values: Tensor) -> list[float]:
    return [_number(x) for x in values.tolist()]


def _number(x: float) -> float:
    """Write a number with nine digits, as many as float32 has."""
    return float(f"{x:.9g}") if math.isfinite(x) else x
