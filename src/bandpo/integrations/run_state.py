"""Write the tokens of a run. The trainers of TRL and verl do."""

import hashlib
import math
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import UserError
from ..files import json_line, line_of, lines_of

SHARE = 0.1


def check_tokens(path: Any, share: Any, where: str = "") -> None:
    """Raise ValueError for settings that no `TokenWriter` can have."""
    if path is not None and not (isinstance(path, str | Path) and str(path)):
        raise ValueError(f"{where}tokens_path must be the name of a folder, got {path!r}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"{where}tokens_share must be a share of the responses in (0, 1], got {share!r}")


class TokenWriter:
    """Write the tokens of some responses to a file, for `bandpo calibrate`.

    A row of `tokens-PROCESS.jsonl` is a response in one optimizer step (of verl: in one update):

        {"step": 3, "response_id": "5d0c...", "share": 0.1, "advantage": 0.5, "old_logps": [...], "logps": [...]}

    A response is written in all the steps that it is used in, or in none. Where the file grows past `limit` bytes, the
    share is halved, and the rows of responses that are not in the smaller sample are dropped: every response of the run
    had the same chance to be in the file, whenever it came.

    What is resumed at a step cuts off the rows from that step on, and half a row, before it writes. Rows that are there
    at step 0 are of another run, which is a UserError unless the writer `replaces` it; a damaged row is one, too.
    """

    def __init__(
        self,
        folder: str | Path,
        share: float,
        process: int,
        *,
        limit: float = math.inf,
        replaces: bool = False,
    ) -> None:
        self.path, self.first, self.limit, self.step = (
            Path(folder) / f"tokens-{process}.jsonl",
            share,
            limit,
            -1,
        )
        self.share, self.replaces = share, replaces

    def write(
        self, step: int, old_logps: Tensor, logps: Tensor, advantages: Tensor, mask: Tensor, *, batch: int
    ) -> None:
        """Add rows for a micro-batch, of tensors (B, T); advantages may be (B,).

        `step` is the optimizer steps before this one; where it goes back, the run was resumed. `mask` is true at the
        tokens of the response. `batch` tells responses apart that are of different generations.
        """
        if self.step < 0 or step < self.step:
            self._cut(step)
        self.step, lines = step, []
        # Faster than tensors.
        columns = (x.detach().float().cpu().numpy() for x in (old_logps, logps, advantages))
        for old, new, advantage, inside in zip(*columns, mask.bool().cpu().numpy(), strict=True):
            old, new = old[inside], new[inside]
            name = hashlib.blake2b(old.tobytes() + batch.to_bytes(8, "little"), digest_size=8).digest()
            if not len(old) or not self._takes(name):
                continue
            both = *old.tolist(), *new.tolist()
            # Numbers that are not finite are of a run that is lost: no reader could use them.
            if all(map(math.isfinite, both)):
                value = advantage[inside] if advantage.ndim else advantage
                row = {
                    "step": step,
                    "response_id": name.hex(),
                    "share": self.share,
                    "advantage": value.tolist(),
                }
                # Nine digits, as many as float32 has. One format is faster than json's many.
                digits = ",".join(["%.9g"] * len(old))
                numbers = f',"old_logps":[{digits}],"logps":[{digits}]}}\n' % both
                lines.append(line_of(row)[:-2] + numbers.encode())
        with self.path.open("ab") as file:
            file.writelines(lines)
        while self.path.stat().st_size > self.limit:
            self._thin()

    def _takes(self, name: bytes) -> bool:
        """Tell whether a response is in the sample."""
        return int.from_bytes(name, "little") < self.share * 2**64

    def _thin(self) -> None:
        """Halve the share of the responses, in the file too."""
        before, after = (f'"share":{share}'.encode() for share in (self.share, self.share / 2))
        self.share /= 2
        lines: list[bytes] = []
        for line in lines_of(self.path):
            name = line.partition(b'"response_id":"')[2][:16]
            if self._takes(bytes.fromhex(name.decode())):
                lines.append(line.replace(before, after, 1))
        smaller = self.path.with_suffix(".new")  # a kill leaves one of the two whole
        smaller.write_bytes(b"".join(lines))
        smaller.replace(self.path)

    def _cut(self, step: int) -> None:
        """Leave only the rows before a step in the file. All rows have the share that was in force last."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size, self.share = 0, self.first
        is_there = self.path.exists()
        if step == 0 and is_there and self.path.stat().st_size and not self.replaces:
            raise UserError(
                f"{self.path} holds the tokens of another run already; give tokens_path another folder"
            )
        for number, line in enumerate(lines_of(self.path) if step and is_there else (), 1):
            if not line.endswith(b"\n"):
                break
            where = f"{self.path}, line {number}"
            row = json_line(line, where)
            if math.isfinite(self.limit) and isinstance(row.get("share"), float):
                self.share = row["share"]
            if not isinstance(row.get("step"), int):
                raise UserError(f"{where}: 'step' is {row.get('step')!r}; a whole number is expected")
            if row["step"] >= step:
                break
            size += len(line)
        if is_there:
            os.truncate(self.path, size)
