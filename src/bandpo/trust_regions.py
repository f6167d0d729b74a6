"""The rules that say how far a token's probability may move in one round: each makes `Bounds` from the old
log-probabilities.

A rule is a frozen dataclass of plain data, so that it is also its node in a config file: `Band("kl", 0.05)` is
`{type: band, divergence: kl, delta: 0.05}`. `bandpo.trust_region(node)` and `region.to_config()` go there and back.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from .band import band_bounds, band_contains
from .bounds import Bounds
from .divergences import Divergence, divergence, nearest
from .numerics import LOG_P_MIN, output_dtype, working_copy


@dataclass(frozen=True, eq=False)
class Context:
    """What a rule may know of a batch beside the old log-probabilities; the loss and each integration fill what they
    have.

    Attributes (all optional; (B, T) unless said otherwise):
        response_mask: True at the tokens of the response.
        entropies: entropy of the policy at each token, in nats, from the logits.
        advantages: (B, T) or (B, 1).
        positions: index of each token in its response.
        step: optimizer step, an int.
        staleness: updates between the sampling policy and the current one, an int or a tensor.
    """

    response_mask: Tensor | None = None
    entropies: Tensor | None = None
    advantages: Tensor | None = None
    positions: Tensor | None = None
    step: int | None = None
    staleness: int | Tensor | None = None

    def require(self, field: str, region: object) -> Any:
        """The named field; ValueError, naming the field and the region, if it was not filled."""
        value = getattr(self, field)
        if value is None:
            raise ValueError(
                f"{type(region).__name__} needs context.{field}, which was not given; pass Context({field}=...)"
            )
        return value


@runtime_checkable
class TrustRegion(Protocol):
    """What every rule can do, and all that is asked of one's own; derive from `Region` to get `contains` and YAML."""

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """The interval of the log-ratio for each token, detached, same shape as `old_logps`, in at least float32."""
        ...

    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """True where the log-ratio is allowed; for gradients this is all that matters."""
        ...


_KINDS: dict[str, type[Region]] = {}


class Region(ABC):
    """Base of the built-in rules: membership by bounds, and the way to and from a config node.

    A subclass is a frozen dataclass with a `kind`, its `type` in a config file; defining it makes the kind known.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if not isinstance(getattr(cls, "kind", None), str):
            raise ValueError(f"{cls.__qualname__} needs a kind, its type in a config file: kind: ClassVar[str] = ...")
        taken = _KINDS.get(cls.kind)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"kind {cls.kind!r} of {cls.__qualname__} is taken by {taken.__qualname__}")
        _KINDS[cls.kind] = cls

    @abstractmethod
    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """The interval of the log-ratio for each token."""

    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """True where the log-ratio is inside `bounds`."""
        return self.bounds(old_logps, context).contains(log_ratio)

    def to_config(self) -> dict[str, Any]:
        """The YAML node: `type` and the fields. Raises ValueError for a divergence or a rule without a name in YAML."""
        node: dict[str, Any] = {"type": self.kind}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Region | Divergence):
                value = value.to_config()
            elif isinstance(value, TrustRegion):
                raise ValueError(f"{field.name} has no config node; derive {type(value).__name__} from bandpo.Region")
            if value is not None:
                node[field.name] = value
        return node


@dataclass(frozen=True)
class Clip(Region):
    """1 - eps_low <= r <= 1 + eps_high: PPO and GRPO; eps_high > eps_low is Clip-Higher (arXiv 2503.14476).

    `Clip(1.0, inf)` clips nothing. Raises ValueError unless 0 <= eps_low <= 1 and eps_high >= 0, not both 0.
    """

    kind: ClassVar[str] = "clip"
    eps_low: float = 0.2
    eps_high: float = 0.2

    def __post_init__(self) -> None:
        _number(self, "eps_low", 0, 1)
        _number(self, "eps_high", 0, math.inf)
        if self.eps_low == self.eps_high == 0:
            raise ValueError("eps_low and eps_high must not both be 0: no token could move")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Constant, but NaN where log p is; the two epsilons themselves travel with them."""
        like = old_logps.detach().to(output_dtype(old_logps)).clamp(0, 0)
        low = math.log1p(-self.eps_low) if self.eps_low < 1 else -math.inf
        return Bounds(like + low, like + math.log1p(self.eps_high), epsilons=(self.eps_low, self.eps_high))


@dataclass(frozen=True)
class DCPO(Region):
    """Dynamic clipping of DCPO (arXiv 2509.02333): |r - 1| r <= eps / p on each side, the upper bound capped.

    r_low = 1/2 + 1/2 sqrt(max(1 - 4 eps_low / p, 0)), r_high = min(1/2 + 1/2 sqrt(1 + 4 eps_high / p), max_ratio).
    The defaults are those of the baseline in the public BandPO scripts. r_high may exceed the simplex limit 1/p.

    Raises ValueError unless both epsilons are positive and finite and max_ratio > 1 (inf: no cap).
    """

    kind: ClassVar[str] = "dcpo"
    eps_low: float = 0.16
    eps_high: float = 0.2
    max_ratio: float = 10.0

    def __post_init__(self) -> None:
        _number(self, "eps_low", 0, math.inf, open_low=True, open_high=True)
        _number(self, "eps_high", 0, math.inf, open_low=True, open_high=True)
        _number(self, "max_ratio", 1, math.inf, open_low=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        unclamped = working_copy(old_logps.detach()).clamp(max=0)
        log_p = unclamped.clamp(min=LOG_P_MIN)
        odds = 4 * torch.exp(-log_p)
        low = 0.5 + 0.5 * torch.sqrt((1 - self.eps_low * odds).clamp(min=0))
        # p -> 0: r_high = sqrt(eps_high / p)
        log_high = torch.log(0.5 + 0.5 * torch.sqrt(1 + self.eps_high * odds)) + 0.5 * (log_p - unclamped)
        dtype, device = output_dtype(old_logps), old_logps.device
        return _cap(Bounds(torch.log(low).to(device, dtype), log_high.to(device, dtype)), self.max_ratio)


@dataclass(frozen=True)
class Band(Region):
    """BandPO: the token stays where D_f(pi || pi_old) <= delta (arXiv 2603.04918, eq:band_operator).

    The gradients of Band KL and Band TV are those of DPPO's binary masks (arXiv 2602.04879; verl's `dppo_kl`,
    `dppo_tv`).

    Args:
        divergence: a registered name, or a `Divergence` (then there is no config node until it is registered).
        delta: the radius, positive; 0.05 for KL is the paper's recommendation (sec:delta_radius). inf: the simplex.
        delta_low: another radius for the lower bound, or None.
        delta_high: another radius for the upper bound, or None.
    """

    kind: ClassVar[str] = "band"
    divergence: str | Divergence = "kl"
    delta: float = 0.05
    delta_low: float | None = None
    delta_high: float | None = None

    def __post_init__(self) -> None:
        if (kind := divergence(self.divergence)).is_registered:  # equal nodes are equal
            object.__setattr__(self, "divergence", kind.name)
        for name in ("delta", "delta_low", "delta_high"):
            if name == "delta" or getattr(self, name) is not None:
                _number(self, name, 0, math.inf, open_low=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """`band_bounds` of these parameters."""
        return band_bounds(old_logps, self.divergence, self.delta, delta_low=self.delta_low, delta_high=self.delta_high)

    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """g_f(p, r) <= delta; nothing is solved."""
        return band_contains(
            log_ratio, old_logps, self.divergence, self.delta, delta_low=self.delta_low, delta_high=self.delta_high
        )


@dataclass(frozen=True)
class Relaxed(Region):
    """The wider of two rules on each side. `Relaxed(Band("kl", 0.05), Clip(0.2, 0.28))` is the paper's Relaxed Band
    (sec:relaxed_band_analysis), which is TRGPPO's rule (arXiv 1901.10314)."""

    kind: ClassVar[str] = "relaxed"
    inner: TrustRegion
    outer: TrustRegion

    def __post_init__(self) -> None:
        _region(self, "inner")
        _region(self, "outer")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """The lower of the lower bounds, the higher of the upper ones."""
        a, b = self.inner.bounds(old_logps, context), self.outer.bounds(old_logps, context)
        capped = None
        if a.capped is not None or b.capped is not None:
            none = torch.zeros_like(a.log_high, dtype=torch.bool)
            capped = torch.where(
                a.log_high >= b.log_high, none if a.capped is None else a.capped, none if b.capped is None else b.capped
            )
        return Bounds(torch.minimum(a.log_low, b.log_low), torch.maximum(a.log_high, b.log_high), capped)


@dataclass(frozen=True)
class Capped(Region):
    """Another rule with its upper ratio bound cut at `max_ratio` > 1.

    The public BandPO scripts cap at 10, the paper does not: at KL radius 0.05 the cap binds for p < 0.0071, the tail
    that the paper is about.
    """

    kind: ClassVar[str] = "capped"
    region: TrustRegion
    max_ratio: float = 10.0

    def __post_init__(self) -> None:
        _region(self, "region")
        _number(self, "max_ratio", 1, math.inf, open_low=True, open_high=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """min(r_high, max_ratio), and where that is the cap."""
        return _cap(self.region.bounds(old_logps, context), self.max_ratio)


def trust_region(node: Mapping[str, Any] | TrustRegion) -> TrustRegion:
    """The rule described by a config node, e.g. `{"type": "band", "divergence": "kl", "delta": 0.05}`.

    Raises ValueError naming the key and the nearest known one.

    >>> import bandpo
    >>> region = bandpo.trust_region({"type": "capped", "region": {"type": "band", "delta": 0.05}, "max_ratio": 10})
    >>> region == bandpo.Capped(bandpo.Band("kl", 0.05), 10.0) and bandpo.trust_region(region.to_config()) == region
    True
    """
    if not isinstance(node, Mapping):
        if isinstance(node, TrustRegion) and not isinstance(node, type):
            return node
        raise ValueError(
            f"trust_region must be a mapping with a type, one of {sorted(_KINDS)}, or a region, got {node!r}"
        )
    values = {str(key): value for key, value in node.items()}
    kind = values.pop("type", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        known = sorted(_KINDS)
        raise ValueError(f"trust_region type must be one of {known}, got {kind!r}{nearest(str(kind), known)}")
    cls = _KINDS[kind]
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"unknown key {key!r} in trust region {kind!r}{nearest(key, known)}; it has {known}")
        if isinstance(value, Mapping):
            values[key] = trust_region(cast(Mapping[str, Any], value))
    try:
        return cls(**values)
    except TypeError as error:  # a missing field: the only one that can be left
        raise ValueError(f"trust region {kind!r}: {error}") from error


def _cap(bounds: Bounds, max_ratio: float) -> Bounds:
    log_max = math.log(max_ratio)
    capped = bounds.log_high > log_max
    if bounds.capped is not None:
        capped = capped | bounds.capped
    return Bounds(bounds.log_low, bounds.log_high.clamp(max=log_max), capped)


def _number(
    region: Region, name: str, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Check a numeric field and store it as a float, so that equal nodes are equal.

    A number in a string counts as one: "1e-3" is a number in YAML 1.2 and a string in PyYAML.
    """
    value = getattr(region, name)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of many numbers
        number = math.nan
    inside = (low < number if open_low else low <= number) and (number < high if open_high else number <= high)
    if not inside:
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise ValueError(f"{name} of {type(region).__name__} must be a number in {interval}, got {value!r}")
    object.__setattr__(region, name, number)


def _region(region: Region, name: str) -> None:
    value = getattr(region, name)
    if isinstance(value, type) or not isinstance(value, TrustRegion):
        raise ValueError(f"{name} of {type(region).__name__} must be a trust region, got {value!r}")
