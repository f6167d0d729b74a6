"""Find the clip that is the interval of the estimate k3 of one token."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bandpo.bounds import Bounds
from bandpo.trust_regions.base import Context, Region, check_number
from bandpo.trust_regions.rules import Clip


def kl3_clip(delta: float) -> Clip:
    """Return the clip that r - 1 - log r <= delta is, the estimate of KL(pi_old || pi) by one token.

    ATR-GRPO (arXiv 2602.05494) has this rule. One interval for every p, wider above than below: delta 0.02 is
    0.813 <= r <= 1.214. Its ends are -W(-e^(-1 - delta)) on the two real branches of Lambert's W. It is the limit of
    small p of the KL band of radius p delta.

    The formula and the interval were checked against two summaries of the paper, no delta of it is known: there is no
    default. Raises ValueError unless delta is in (0, 1e10].
    """
    if not 0 < delta <= 1e10:
        raise ValueError(f"delta of kl3_clip must be a number in (0, 1e+10], got {delta!r}")
    root = math.sqrt(2 * delta)
    # From a point outside each root: the function is convex, so Newton's steps only come closer.
    low, high = _root(-root - delta, delta), _root(math.log1p(root + delta), delta)
    return Clip(-math.expm1(low), math.expm1(high))


def _root(s: float, delta: float) -> float:
    """Return where e^s - 1 - s = delta, by Newton's steps from s, beyond the root."""
    for _ in range(20):
        # The sum of s^n / n! where the difference cancels.
        value = math.expm1(s) - s if abs(s) > 0.5 else math.fsum(s**n / math.factorial(n) for n in range(2, 18))
        s -= (value - delta) / math.expm1(s)
    return s


@dataclass(frozen=True)
class KL3(Region):
    """The rule of `kl3_clip` by its own name and number, as contests have it. Raises ValueError as that does."""

    kind: ClassVar[str] = "kl3"
    sees_probability: ClassVar[bool] = False
    delta: float

    def __post_init__(self) -> None:
        check_number(self, "delta", "(0, 1e10]")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return those of the clip."""
        found = kl3_clip(self.delta).bounds(old_logps)
        return Bounds(found.log_low, found.log_high)
