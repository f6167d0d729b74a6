"""Write the log of a training with TRL, and say at its end what the clip did."""

import math
from numbers import Real
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..clipping import clip_in_words
from ..errors import counted
from ..files import line_of
from ..trust_regions.base import Region
from ..trust_regions.rules import Clip
from . import RULE

FILE = "metrics.jsonl"


class RunLog(TrainerCallback):
    """Write the rows of TRL's log to `metrics.jsonl` in `output_dir`.

    It does so whatever `save_strategy` is. The first process writes. A resumed run begins with the rows of its
    checkpoint; a new one keeps the file of the run before as `metrics-before.jsonl`, and with `replaces_tokens` deletes
    its tokens. `path` is None before a training.
    """

    def __init__(self, region: Region, replaces_tokens: bool) -> None:
        self.region, self.replaces_tokens = region, replaces_tokens
        self.path: Path | None = None

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Begin the file before the first step."""
        if not state.is_world_process_zero:
            return
        self.path = Path(str(args.output_dir), FILE)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if state.global_step == 0:
            if self.path.exists():
                self.path.replace(self.path.with_name("metrics-before.jsonl"))
            for old in self.path.parent.glob("tokens/tokens-*.jsonl") if self.replaces_tokens else ():
                old.unlink()
        self.path.write_bytes(b"".join(_line(row, state) for row in state.log_history))

    def on_log(self, args, state, control, **kwargs) -> None:
        """Add the row that TRL has just logged."""
        if self.path is not None and state.is_world_process_zero:
            with self.path.open("ab") as file:
                file.write(_line(state.log_history[-1], state))

    def on_train_end(self, args, state, control, **kwargs) -> None:
        """Say what the clip did. An error ends a training before this."""
        words = self.in_words(state)
        if words and state.is_world_process_zero:
            RULE.warning("%s. `bandpo doctor %s` says more", words, args.output_dir)

    def in_words(self, state: Any) -> str:
        """Say what share of the tokens the rule clipped, and what that means.

        Returns "" for a rule that does not clip, and where no token was seen.
        """
        rows = [row for row in state.log_history if row.get("bandpo/tokens")]
        if not rows or self.region == Clip(1.0, math.inf):
            return ""
        outside = ("bandpo/clip/high_fraction", "bandpo/clip/low_fraction", "bandpo/dual_clip/fraction")
        counts = [row["bandpo/tokens"] * sum(row.get(name, 0) for name in outside) for row in rows]
        ratios = [abs(row.get(f"bandpo/log_ratio/{side}", 0)) for row in rows for side in ("max", "min")]
        percent = 100 * sum(counts) / sum(row["bandpo/tokens"] for row in rows)
        return clip_in_words(percent, f"in {counted(state.global_step, 'step')}", max(ratios))[1]


def _line(row: dict[str, Any], state: Any) -> bytes:
    """Write the numbers of a row; None is for what is not finite. `max_steps` tells readers where the run will end."""
    numbers = {
        name: float(x) if math.isfinite(x) else None for name, x in row.items() if isinstance(x, Real)
    }
    return line_of(numbers | {"step": row["step"], "max_steps": state.max_steps})
