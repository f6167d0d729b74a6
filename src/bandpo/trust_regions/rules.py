"""The rules themselves, each one dataclass: fixed and tapered clips, DCPO's and RIPO's intervals, and the band."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..band.divergences import Divergence, divergence
from ..band.operator import band_bounds, band_contains, divergence_at
from ..bounds import Bounds
from ..numerics import LOG_P_MIN, log1mexp, output_dtype, working_copy
from .base import Context, Region, check_number, instead


@dataclass(frozen=True)
class Clip(Region):
    """1 - eps_low <= r <= 1 + eps_high: PPO and GRPO; eps_high > eps_low is Clip-Higher (arXiv 2503.14476).

    `Clip(1.0, inf)` clips nothing; `Clip(0, 0)` pins r to 1, which with `apply="weight"` is REINFORCE. Raises
    ValueError unless 0 <= eps_low <= 1 and eps_high >= 0.
    """

    kind: ClassVar[str] = "clip"
    sees_probability: ClassVar[bool] = False
    stopped_by: ClassVar[str] = "clip"
    eps_low: float = 0.2
    eps_high: float = 0.2

    def __post_init__(self) -> None:
        check_number(self, "eps_low", 0, 1)
        check_number(self, "eps_high", 0, math.inf)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Constant, but NaN where log p is; the two epsilons themselves travel with them."""
        like = old_logps.detach().to(output_dtype(old_logps)).clamp(0, 0)
        epsilons = self.eps_low, self.eps_high
        return Bounds(like + _log1p(-self.eps_low, like), like + _log1p(self.eps_high, like), epsilons=epsilons)

    @property
    def label(self) -> str:
        """GRPO, Clip-Higher for DAPO's; a much wider clip is another proposal."""
        low, high = self.eps_low, self.eps_high
        if (low, high) in _NAMES:
            return _NAMES[low, high]
        name = "GRPO" if low == high else "Clip-Higher" if (low, high) == (0.2, 0.28) else "Clip"
        return f"{name} {low}/{high}"

    @property
    def free(self) -> tuple[str, ...]:
        """Both epsilons where they are equal, else the upper one."""
        return ("eps_low", "eps_high") if self.eps_low == self.eps_high else ("eps_high",)

    def critical(self, names: Sequence[str], log_ratio: Tensor, old_logps: Tensor) -> Tensor | None:
        """|r - 1|, of one side where the other epsilon stays."""
        moved = torch.expm1(log_ratio)
        if sorted(names) == ["eps_high", "eps_low"]:
            return torch.where(moved.abs() > 1, torch.inf, moved.abs())  # eps_low is at most 1
        if names == ("eps_high",):
            return torch.where(moved < -self.eps_low, torch.inf, moved.clamp(min=0))
        return None

    def doubt(self) -> str:
        """Say where the epsilons look like the bounds of the ratio."""
        low, high = self.eps_low, self.eps_high
        if not 0.5 <= low < 1 < high <= 2:
            return ""
        return (
            f"Clip({low:g}, {high:g}) lets the ratio go from {1 - low:.4g} to {1 + high:.4g}: its numbers are "
            f"distances from 1, not the bounds; did you mean Clip({1 - low:.4g}, {high - 1:.4g})?"
        )


_NAMES = {(1.0, math.inf): "No clip", (0.0, 0.0): "Ratio 1"}


@dataclass(frozen=True)
class KL3(Region):
    """r - 1 - log r <= delta, the estimate of KL(pi_old || pi) by one token (ATR-GRPO, arXiv 2602.05494).

    One interval for every p, wider above than below: delta 0.02 is 0.813 <= r <= 1.214. Its ends are -W(-e^(-1 -
    delta)) on the two real branches of Lambert's W. It is the limit of small p of the KL band of radius p delta.

    The formula and the interval were checked against two summaries of the paper, no delta of it is known: there is no
    default. Raises ValueError unless delta is in (0, 1e10].
    """

    kind: ClassVar[str] = "kl3"
    sees_probability: ClassVar[bool] = False
    delta: float
    _ends: tuple[float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number(self, "delta", 0, 1e10, open_low=True)
        root = math.sqrt(2 * self.delta)
        # From a point outside each root: the function is convex, so Newton's steps only come closer.
        ends = _kl3_root(-root - self.delta, self.delta), _kl3_root(math.log1p(root + self.delta), self.delta)
        object.__setattr__(self, "_ends", ends)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Constant, but NaN where log p is."""
        like = old_logps.detach().to(output_dtype(old_logps)).clamp(0, 0)
        return Bounds(like + self._ends[0], like + self._ends[1])

    @property
    def label(self) -> str:
        """The name and the radius."""
        return f"KL3 {self.delta}"


@dataclass(frozen=True)
class Tapered(Region):
    """1 - eps_low <= r <= 1 + eps_high - slope * pi: the more probable a token is by now, the less it may still grow.

    Solved for r, the upper bound is (1 + eps_high) / (1 + slope p), p old; at least 1. It is that of FlexEC
    (arXiv 2602.09782), where beta is eps_high and alpha, which is negative, -slope; checked against its authors' own
    page, which gives neither number, and no formula of its lower bound.

    Raises ValueError unless 0 <= eps_low <= 1 and the other two are at least 0 and finite.
    """

    kind: ClassVar[str] = "tapered"
    eps_low: float
    eps_high: float
    slope: float

    def __post_init__(self) -> None:
        check_number(self, "eps_low", 0, 1)
        check_number(self, "eps_high", 0, math.inf, open_high=True)
        check_number(self, "slope", 0, math.inf, open_high=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        log_p = working_copy(old_logps.detach()).clamp(max=0)
        log_high = _log1p(self.eps_high, log_p) - torch.log1p(self.slope * log_p.exp())
        like = old_logps.detach().to(output_dtype(old_logps)).clamp(0, 0)
        return Bounds(like + _log1p(-self.eps_low, like), log_high.clamp(min=0).to(like.device, like.dtype))

    @property
    def label(self) -> str:
        """A clip whose upper side falls with pi."""
        return f"Clip {self.eps_low}/({self.eps_high} - {self.slope} pi)"


@dataclass(frozen=True)
class DCPO(Region):
    """Dynamic clipping of DCPO (arXiv 2509.02333): |r - 1| r <= eps / p on each side, the upper bound capped.

    r_low = 1/2 + 1/2 sqrt(max(1 - 4 eps_low / p, 0)), r_high = min(1/2 + 1/2 sqrt(1 + 4 eps_high / p), max_ratio).
    The defaults are those of the baseline in the public BandPO scripts. r_high may exceed the simplex limit 1/p.

    Raises ValueError unless both epsilons are positive and finite and max_ratio > 1 (inf: no cap).
    """

    kind: ClassVar[str] = "dcpo"
    stopped_by: ClassVar[str] = "DCPO"
    eps_low: float = 0.16
    eps_high: float = 0.2
    max_ratio: float = 10.0

    def __post_init__(self) -> None:
        check_number(self, "eps_low", 0, math.inf, open_low=True, open_high=True)
        check_number(self, "eps_high", 0, math.inf, open_low=True, open_high=True)
        check_number(self, "max_ratio", 1, math.inf, open_low=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        unclamped = working_copy(old_logps.detach()).clamp(max=0)
        log_p = unclamped.clamp(min=LOG_P_MIN)
        odds = 4 * torch.exp(-log_p)
        low = 0.5 + 0.5 * torch.sqrt((1 - self.eps_low * odds).clamp(min=0))
        # p -> 0: r_high = sqrt(eps_high / p)
        log_high = torch.log(0.5 + 0.5 * torch.sqrt(1 + self.eps_high * odds)) + 0.5 * (log_p - unclamped)
        dtype, device = output_dtype(old_logps), old_logps.device
        return cap(Bounds(torch.log(low).to(device, dtype), log_high.to(device, dtype)), self.max_ratio)

    @property
    def label(self) -> str:
        """The epsilons, and a cap that is not the usual one."""
        return f"DCPO {self.eps_low}/{self.eps_high}" + (f" cap {self.max_ratio}" if self.max_ratio != 10 else "")

    @property
    def free(self) -> tuple[str, ...]:
        """Both epsilons."""
        return "eps_low", "eps_high"

    def critical(self, names: Sequence[str], log_ratio: Tensor, old_logps: Tensor) -> Tensor | None:
        """|r - 1| r p, of ratios that an epsilon can allow."""
        if sorted(names) != ["eps_high", "eps_low"]:
            return None
        ratio = log_ratio.exp()
        allowed = (ratio >= 0.5) & (ratio <= self.max_ratio)
        return torch.where(allowed, torch.expm1(log_ratio).abs() * ratio * old_logps.exp(), torch.inf)


@dataclass(frozen=True)
class RIPO(Region):
    """|r - 1| <= sqrt(delta / p) (arXiv 2607.10169): chi2 without its factor 1 - p.

    sqrt(delta / p) and the default delta were checked against two summaries of the paper, not the paper. Neither has an
    outer interval; one public implementation keeps the ratio within [0.5, 10] too: `RIPO(delta, 0.5, 10)`. r_high may
    exceed the simplex limit 1/p.

    Raises ValueError unless delta is positive and finite, 0 <= min_ratio < 1 and max_ratio > 1 (inf: no cap).
    """

    kind: ClassVar[str] = "ripo"
    delta: float = 0.05
    min_ratio: float = 0.0
    max_ratio: float = math.inf

    def __post_init__(self) -> None:
        check_number(self, "delta", 0, math.inf, open_low=True, open_high=True)
        check_number(self, "min_ratio", 0, 1, open_high=True)
        check_number(self, "max_ratio", 1, math.inf, open_low=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        log_p = working_copy(old_logps.detach()).clamp(max=0)
        log_eps = 0.5 * (torch.log(log_p.new_zeros(()) + self.delta) - log_p)
        log_min = math.log(self.min_ratio) if self.min_ratio > 0 else -math.inf
        log_low = log1mexp(log_eps.clamp(max=0)).clamp(min=log_min)
        log_high = torch.logaddexp(log_eps, torch.zeros_like(log_eps))
        dtype, device = output_dtype(old_logps), old_logps.device
        return cap(Bounds(log_low.to(device, dtype), log_high.to(device, dtype)), self.max_ratio)

    @property
    def label(self) -> str:
        """The radius, and an outer interval that is set."""
        outer = (self.min_ratio, self.max_ratio)
        return f"RIPO {self.delta}" + ("" if outer == (0, math.inf) else f" in {outer[0]}..{outer[1]}")

    @property
    def free(self) -> tuple[str, ...]:
        """The radius."""
        return ("delta",)

    def critical(self, names: Sequence[str], log_ratio: Tensor, old_logps: Tensor) -> Tensor | None:
        """p (r - 1)^2 within the outer interval."""
        if names != ("delta",):
            return None
        ratio = log_ratio.exp()
        allowed = (ratio >= self.min_ratio) & (ratio <= self.max_ratio)
        return torch.where(allowed, old_logps.exp() * torch.expm1(log_ratio).square(), torch.inf)


@dataclass(frozen=True)
class Band(Region):
    """BandPO: the token stays where D_f(pi || pi_old) <= delta (arXiv 2603.04918, eq:band_operator).

    DPPO's binary masks (arXiv 2602.04879; verl's `dppo_kl`, `dppo_tv`) stop the same tokens as Band KL and Band TV,
    with the sampler in the place of the old policy; the gradient of the others is the same up to DPPO's cap of r.

    Args:
        divergence: a registered name, or a `Divergence` (then there is no config node until it is registered).
        delta: the radius, positive; 0.05 for KL is the paper's recommendation (sec:delta_radius). inf: the simplex.
        delta_low: another radius for the lower bound, or None.
        delta_high: another radius for the upper bound, or None.
    """

    kind: ClassVar[str] = "band"
    stopped_by: ClassVar[str] = "divergence"
    divergence: str | Divergence = "kl"
    delta: float = 0.05
    delta_low: float | None = None
    delta_high: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.divergence, int | float) or re.fullmatch(r"[\d.e+-]+", str(self.divergence)):
            raise ValueError(f"divergence of Band must be a name, got {self.divergence!r}{instead(self.divergence)}")
        if (kind := divergence(self.divergence)).is_registered:  # equal nodes are equal
            object.__setattr__(self, "divergence", kind.name)
        for name in ("delta", "delta_low", "delta_high"):
            if name == "delta" or getattr(self, name) is not None:
                check_number(self, name, 0, math.inf, open_low=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """`band_bounds` of these parameters."""
        return band_bounds(old_logps, self.divergence, self.delta, delta_low=self.delta_low, delta_high=self.delta_high)

    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """g_f(p, r) <= delta; nothing is solved."""
        return band_contains(
            log_ratio, old_logps, self.divergence, self.delta, delta_low=self.delta_low, delta_high=self.delta_high
        )

    @property
    def label(self) -> str:
        """The divergence, and the radius of each side where they differ."""
        low, high = self.delta_low or self.delta, self.delta_high or self.delta
        return f"Band-{divergence(self.divergence).title} {low if low == high else f'{low}/{high}'}"

    @property
    def free(self) -> tuple[str, ...]:
        """The radius of both sides."""
        return ("delta",)

    def critical(self, names: Sequence[str], log_ratio: Tensor, old_logps: Tensor) -> Tensor | None:
        """What the move costs at least."""
        one = names == ("delta",) and self.delta_low is None and self.delta_high is None
        return divergence_at(log_ratio, old_logps, self.divergence) if one else None

    def legend(self) -> list[str]:
        """The divergence and its direction."""
        return [f"  {divergence(self.divergence)}"]


def _kl3_root(s: float, delta: float) -> float:
    """Where e^s - 1 - s = delta, by Newton's steps from s, beyond the root; they double its digits from the start."""
    for _ in range(20):
        # The sum of s^n / n! where the difference cancels.
        value = math.expm1(s) - s if abs(s) > 0.5 else math.fsum(s**n / math.factorial(n) for n in range(2, 18))
        s -= (value - delta) / math.expm1(s)
    return s


def _log1p(x: float, like: Tensor) -> float | Tensor:
    """log(1 + x); in a compiled graph a tensor, else every new epsilon would make a new graph."""
    if torch.compiler.is_compiling():
        return torch.log1p(working_copy(like).new_zeros(()) + x)
    return math.log1p(x) if x > -1 else -math.inf


def cap(bounds: Bounds, max_ratio: float) -> Bounds:
    log_max = math.log(max_ratio)
    capped = bounds.log_high > log_max
    if bounds.capped is not None:
        capped = capped | bounds.capped
    return Bounds(bounds.log_low, bounds.log_high.clamp(max=log_max), capped)
