"""Check a setup. `installed` looks at packages, a module each at the settings of a trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# From research/log.md: reuse_once.yaml, with the share as it is counted, and reuse_eight.yaml.
ONCE = "In a small world at one use GRPO's clip stopped {} % of tokens, and 14 of 14 rules ended within 0.02 of no clip"
EIGHT = "at eight uses it stopped 1 % and ended 0.024 below no clip"

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """Hold one line of the report: the case (`what`) and its `cure`."""

    level: Level
    what: str
    cure: str = ""


def spread(uses: int, steps: float | None, said: str, more: str, anchor: object = "old") -> Finding:
    """Say how often each answer is used, and in how many optimizer steps. None is one: ratios to the trainer are 1."""
    used = "each answer is used " + {1: "once", 2: "twice"}.get(uses, f"{uses} times")
    if steps is None and anchor == "sampler":
        return Finding("ok", f"{used}, in one optimizer step ({said}); the ratio is to the sampler")
    if steps is None:
        what = f"the ratio is 1 by design: {used}, in one optimizer step ({said}), and no rule acts"
        return Finding("problem", what, more)
    cure = f"bandpo doctor LOG says what share of tokens the rule stops. {ONCE.format(0.16)}"
    cure += f"; {EIGHT}" if uses > 1 else ""
    return Finding("ok", f"{used}, and a batch is spread over {steps:.3g} optimizer steps ({said})", cure)
