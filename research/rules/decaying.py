"""Move one number of a rule over the optimizer steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import Tensor

from bandpo.bounds import Bounds
from bandpo.numerics import listed
from bandpo.trust_regions.base import Context, Region, check_number


@dataclass(frozen=True)
class Decaying(Region):
    """Move one number of a rule to `end` over `steps` optimizer steps. Needs extra["step"].

    `Decaying(Band("kl", 0.2), field="delta", end=0.02, steps=1000)`. With t = min(step / steps, 1): linear is
    start + (end - start) t, and cosine is linear in (1 - cos(pi t)) / 2.

    Args:
        region: the rule at step 0.
        field: the name of its number, or several that all go to `end`: `["eps_low", "eps_high"]`.
        end: the value from `steps` on.
        steps: at least 1.
        shape: linear or cosine.
    """

    kind: ClassVar[str] = "decaying"
    label_format: ClassVar[str] = "{region}, {field} to {end} in {steps} steps ({shape})"
    required: ClassVar[tuple[str, ...]] = ("step",)
    sees_probability: ClassVar[bool] = False
    region: Region
    field: str | tuple[str, ...]
    end: float
    steps: int
    shape: str = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        names = listed(self.field)
        object.__setattr__(self, "field", names[0] if len(names) == 1 else tuple(names))
        check_number(self, "end", "(-inf, inf)")
        check_number(self, "steps", "[1, inf)", integer=True)
        if self.shape not in _SHAPES:
            raise ValueError(f"shape of Decaying must be one of {list(_SHAPES)}, got {self.shape!r}")
        for name in names or [""]:
            start = getattr(self.region, str(name), None)
            if not isinstance(start, float) or not math.isfinite(start):
                raise ValueError(f"field of Decaying must name a finite number of {self.region!r}, got {name!r}")
        self.at(self.steps)

    def at(self, step: int) -> Region:
        """Return the rule in force at a step."""
        t = min(max(step / self.steps, 0.0), 1.0)
        values = {name: _SHAPES[self.shape](getattr(self.region, name), self.end, t) for name in listed(self.field)}
        return dataclasses.replace(cast(Any, self.region), **values)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return those of the rule at extra["step"]."""
        context = context or Context()
        return self.at(context.require("step", self)).bounds(old_logps, context)

    def branches(self) -> dict[str, Region]:
        """List it at the first step and from the last one on."""
        return {"step 0": self.at(0), f"from step {self.steps}": self.at(self.steps)}


def _linear(start: float, end: float, t: float) -> float:
    return start * (1 - t) + end * t  # both ends without rounding


_SHAPES: dict[str, Callable[[float, float, float], float]] = {
    "linear": _linear,
    "cosine": lambda start, end, t: _linear(start, end, (1 - math.cos(math.pi * t)) / 2),
}
