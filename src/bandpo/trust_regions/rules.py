"""Define the single rules: the fixed clip, DCPO's and RIPO's intervals, the band."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..band.divergences import Divergence, divergence
from ..band.operator import band_bounds
from ..bounds import Bounds
from ..numerics import LOG_P_MIN, log1mexp, output_dtype, working_copy
from .base import Context, Region

__all__ = ["DCPO", "RIPO", "Band", "Clip"]


@dataclass(frozen=True)
class Clip(Region):
    """Keep r within [1 - eps_low, 1 + eps_high], as PPO and GRPO. Clip-Higher (arXiv 2503.14476) has a larger eps_high.

    >>> import torch, bandpo
    >>> bandpo.Clip(0.2, 0.28).bounds(torch.tensor([0.01, 0.9]).log()).log_high.exp()
    tensor([1.2800, 1.2800])

    `Clip(1.0, inf)` clips nothing; `Clip(0, 0)` pins r to 1, which with `surrogate="weight"` is REINFORCE.
    """

    kind: ClassVar[str] = "clip"
    sees_probability: ClassVar[bool] = False
    valid_range: ClassVar[Mapping[str, str]] = {"eps_low": "[0, 1]", "eps_high": "[0, inf]"}
    eps_low: float = 0.2
    eps_high: float = 0.2

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Return constants, but NaN where log p is. The two epsilons themselves travel with them."""
        with torch.no_grad():  # as a decorator, a rule that is made inside of a compiled graph breaks it
            zero, epsilons = (
                old_logps.to(output_dtype(old_logps)).clamp(0, 0),
                (self.eps_low, self.eps_high),
            )
            return Bounds(
                zero + _log1p(-self.eps_low, zero), zero + _log1p(self.eps_high, zero), epsilons=epsilons
            )

    @property
    def label(self) -> str:
        low, high = self.eps_low, self.eps_high
        name = "GRPO" if low == high else "Clip-Higher" if (low, high) == (0.2, 0.28) else "Clip"
        return {(1, math.inf): "No clip", (0, 0): "Ratio 1"}.get((low, high), f"{name} {low}/{high}")

    @property
    def tunable(self) -> tuple[str, ...]:
        return ("eps_low", "eps_high") if self.eps_low == self.eps_high else ("eps_high",)

    def suspicion(self) -> str:
        low, high = self.eps_low, self.eps_high
        if not 0.5 <= low < 1 < high <= 2:
            return ""
        return (
            f"Clip({low:g}, {high:g}) lets the ratio go from {1 - low:.4g} to {1 + high:.4g}: its numbers are "
            f"distances from 1, not the bounds; did you mean Clip({1 - low:.4g}, {high - 1:.4g})?"
        )


@dataclass(frozen=True)
class DCPO(Region):
    """Clip dynamically: |r - 1| r <= eps / p on each side (DCPO, arXiv 2509.02333). The upper bound is capped.

    >>> import torch, bandpo
    >>> bandpo.DCPO(0.16, 0.2).bounds(torch.tensor([0.01, 0.9]).log()).log_high.exp()
    tensor([5.0000, 1.1872])

    r_low = 1/2 + 1/2 sqrt(max(1 - 4 eps_low / p, 0)), r_high = min(1/2 + 1/2 sqrt(1 + 4 eps_high / p), max_ratio).
    The defaults are those of the baseline in the public BandPO scripts. r_high may exceed the simplex limit 1/p.
    """

    kind: ClassVar[str] = "dcpo"
    tunable: ClassVar[Any] = ("eps_low", "eps_high")
    valid_range: ClassVar[Mapping[str, str]] = {
        "eps_low": "(0, inf)",
        "eps_high": "(0, inf)",
        "max_ratio": "(1, inf]",
    }
    eps_low: float = 0.16
    eps_high: float = 0.2
    max_ratio: float = 10.0

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        unclamped = working_copy(old_logps.detach()).clamp(max=0)
        log_p = unclamped.clamp(min=LOG_P_MIN)
        odds = 4 * torch.exp(-log_p)
        low = 0.5 + 0.5 * torch.sqrt((1 - self.eps_low * odds).clamp(min=0))
        # p -> 0: r_high = sqrt(eps_high / p)
        log_high = torch.log(0.5 + 0.5 * torch.sqrt(1 + self.eps_high * odds)) + 0.5 * (log_p - unclamped)
        return make_bounds(old_logps, torch.log(low), log_high.clamp(max=math.log(self.max_ratio)))

    @property
    def label(self) -> str:
        return f"DCPO {self.eps_low}/{self.eps_high}" + (
            f" cap {self.max_ratio}" if self.max_ratio != 10 else ""
        )


@dataclass(frozen=True)
class RIPO(Region):
    """Keep |r - 1| <= sqrt(delta / p) (RIPO, arXiv 2607.10169). It is chi2 without its factor 1 - p.

    >>> import torch
    >>> RIPO(0.05).bounds(torch.tensor([0.05, 0.2]).log()).log_high.exp()
    tensor([2.0000, 1.5000])

    sqrt(delta / p) and the default delta were checked against two summaries of the paper, not the paper. One public
    implementation keeps the ratio within [0.5, 10] too: `Intersect(RIPO(), Clip(0.5, 9))`. r_high may exceed the
    simplex limit 1/p.
    """

    kind: ClassVar[str] = "ripo"
    valid_range: ClassVar[Mapping[str, str]] = {"delta": "(0, inf)"}
    delta: float = 0.05

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        log_p = working_copy(old_logps.detach()).clamp(max=0)
        log_eps = 0.5 * (torch.log(log_p.new_zeros(()) + self.delta) - log_p)
        return make_bounds(
            old_logps,
            log1mexp(log_eps.clamp(max=0)),
            torch.logaddexp(log_eps, torch.zeros_like(log_eps)),
        )


@dataclass(frozen=True)
class Band(Region):
    """Keep a token where D_f(pi || pi_old) <= delta (BandPO, eq:band_operator). The paper is arXiv 2603.04918.

    >>> import torch, bandpo
    >>> bandpo.Band("kl", 0.05).bounds(torch.tensor([0.01, 0.9]).log()).log_high.exp()     # rare tokens have more room
    tensor([7.8098, 1.0764])
    >>> bandpo.Band("tv", 0.1).to_config()
    {'type': 'band', 'divergence': 'tv', 'delta': 0.1}

    DPPO's binary masks (arXiv 2602.04879; verl's `dppo_kl`, `dppo_tv`) stop the same tokens as Band KL and Band TV,
    if the sampler is taken for the old policy; the gradient of the others is the same up to DPPO's cap of r.

    Args:
        divergence: a registered name, or a `Divergence` (without a config node until it is registered).
        delta: the radius, positive; 0.05 for KL is the paper's recommendation (sec:delta_radius).
        delta_low: another radius for the lower bound, or None.
        delta_high: another radius for the upper bound, or None.
    """

    kind: ClassVar[str] = "band"
    valid_range: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("delta", "delta_low", "delta_high"), "(0, inf)"
    )
    divergence: str | Divergence = "kl"
    delta: float = 0.05
    delta_low: float | None = None
    delta_high: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        name_divergence(self)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        return band_bounds(
            old_logps, self.divergence, self.delta, delta_low=self.delta_low, delta_high=self.delta_high
        )

    @property
    def label(self) -> str:
        low, high = self.delta_low or self.delta, self.delta_high or self.delta
        return f"Band-{divergence(self.divergence).title} {low if low == high else f'{low}/{high}'}"


def name_divergence(rule: Any) -> None:
    """Replace a registered divergence by its name, so that equal nodes are equal."""
    kind = divergence(rule.divergence)
    if kind.is_registered:
        object.__setattr__(rule, "divergence", kind.name)


def _log1p(x: float, of: Tensor) -> float | Tensor:
    """Return log(1 + x). In a compiled graph it is a tensor, else every new epsilon would make a new graph."""
    if torch.compiler.is_compiling():
        return torch.log1p(working_copy(of).new_zeros(()) + x)
    return math.log1p(x) if x > -1 else -math.inf


def make_bounds(old_logps: Tensor, log_low: Tensor, log_high: Tensor) -> Bounds:
    """Make bounds on the device of the log-probabilities. Their dtype is the same, but at least float32."""
    device, dtype = old_logps.device, output_dtype(old_logps)
    return Bounds(log_low.to(device, dtype), log_high.to(device, dtype))
