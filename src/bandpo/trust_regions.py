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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from .band import band_bounds, band_contains
from .bounds import Bounds
from .divergences import Divergence, divergence, nearest
from .numerics import LOG_P_MIN, log1mexp, output_dtype, working_copy


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
                f"{type(region).__name__} needs context.{field}, which was not given; pass {field} to policy_loss, "
                f"or a Context({field}=...)"
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
            elif isinstance(value, tuple):
                value = list(cast("tuple[Any, ...]", value))  # YAML has no tuples
            elif isinstance(value, TrustRegion):
                raise ValueError(f"{field.name} has no config node; derive {type(value).__name__} from bandpo.Region")
            if value is not None:
                node[field.name] = value
        return node


@dataclass(frozen=True)
class Clip(Region):
    """1 - eps_low <= r <= 1 + eps_high: PPO and GRPO; eps_high > eps_low is Clip-Higher (arXiv 2503.14476).

    `Clip(1.0, inf)` clips nothing; `Clip(0, 0)` pins r to 1, which with `apply="weight"` is REINFORCE. Raises
    ValueError unless 0 <= eps_low <= 1 and eps_high >= 0.
    """

    kind: ClassVar[str] = "clip"
    eps_low: float = 0.2
    eps_high: float = 0.2

    def __post_init__(self) -> None:
        _number(self, "eps_low", 0, 1)
        _number(self, "eps_high", 0, math.inf)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Constant, but NaN where log p is; the two epsilons themselves travel with them."""
        like = old_logps.detach().to(output_dtype(old_logps)).clamp(0, 0)
        epsilons = self.eps_low, self.eps_high
        return Bounds(like + _log1p(-self.eps_low, like), like + _log1p(self.eps_high, like), epsilons=epsilons)


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
class RIPO(Region):
    """|r - 1| <= sqrt(delta / p), within [min_ratio, max_ratio] (arXiv 2607.10169): chi2 without its factor 1 - p.

    sqrt(delta / p) and the default delta were checked against a summary of the paper, not the paper; the outer interval
    [0.5, 10] is that of a public implementation and was not found in the summary: `RIPO(delta, 0, inf)` is without it.
    r_high may exceed the simplex limit 1/p.

    Raises ValueError unless delta is positive and finite, 0 <= min_ratio < 1 and max_ratio > 1 (inf: no cap).
    """

    kind: ClassVar[str] = "ripo"
    delta: float = 0.05
    min_ratio: float = 0.5
    max_ratio: float = 10.0

    def __post_init__(self) -> None:
        _number(self, "delta", 0, math.inf, open_low=True, open_high=True)
        _number(self, "min_ratio", 0, 1, open_high=True)
        _number(self, "max_ratio", 1, math.inf, open_low=True)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        log_p = working_copy(old_logps.detach()).clamp(max=0)
        log_eps = 0.5 * (torch.log(log_p.new_zeros(()) + self.delta) - log_p)
        log_min = math.log(self.min_ratio) if self.min_ratio > 0 else -math.inf
        log_low = log1mexp(log_eps.clamp(max=0)).clamp(min=log_min)
        log_high = torch.logaddexp(log_eps, torch.zeros_like(log_eps))
        dtype, device = output_dtype(old_logps), old_logps.device
        return _cap(Bounds(log_low.to(device, dtype), log_high.to(device, dtype)), self.max_ratio)


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
        capped = _capped(a.log_high >= b.log_high, a, b)
        return Bounds(torch.minimum(a.log_low, b.log_low), torch.maximum(a.log_high, b.log_high), capped)


@dataclass(frozen=True)
class TRGPPO(Region):
    """The KL ball of radius delta, widened to contain 1 +- eps (arXiv 1901.10314).

    It is `Relaxed(Band("kl", delta), Clip(eps, eps))` by its own name.

    That its bounds are min(l_delta, 1 - eps) and max(u_delta, 1 + eps) was not checked against the paper, nor was a
    default of delta, so there is none. Raises ValueError unless delta is positive and finite and 0 <= eps <= 1.
    """

    kind: ClassVar[str] = "trgppo"
    delta: float
    eps: float = 0.2

    def __post_init__(self) -> None:
        _number(self, "delta", 0, math.inf, open_low=True, open_high=True)
        _number(self, "eps", 0, 1)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """See the class."""
        return Relaxed(Band("kl", self.delta), Clip(self.eps, self.eps)).bounds(old_logps, context)


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


@dataclass(frozen=True)
class BySign(Region):
    """One rule for tokens with advantage A >= 0 and another for those with A < 0; needs context.advantages.

    With the minimum of PPO one side of each binds: the upper one of `positive`, the lower one of `negative`. As weights
    both do: TOPR (arXiv 2503.14286) is `BySign(Clip(0, 0), Clip(1, 0))` with `apply="weight"`.
    """

    kind: ClassVar[str] = "by_sign"
    positive: TrustRegion
    negative: TrustRegion

    def __post_init__(self) -> None:
        _region(self, "positive")
        _region(self, "negative")

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Those of the rule for the token's sign."""
        up = self._up(context)
        a, b = self.positive.bounds(old_logps, context), self.negative.bounds(old_logps, context)
        log_low, log_high = torch.where(up, a.log_low, b.log_low), torch.where(up, a.log_high, b.log_high)
        return Bounds(log_low, log_high, _capped(up, a, b))

    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """What the rule for the token's sign says."""
        a, b = (region.contains(log_ratio, old_logps, context) for region in (self.positive, self.negative))
        return torch.where(self._up(context), a, b)

    def _up(self, context: Context | None) -> Tensor:
        return (context or Context()).require("advantages", self) >= 0


@dataclass(frozen=True)
class Decaying(Region):
    """A rule of which one number changes with context.step, from what it is to `end`, over `steps` optimizer steps.

    `Decaying(Band("kl", 0.2), field="delta", end=0.02, steps=1000)`. With t = min(step / steps, 1): linear is
    start + (end - start) t, exponential start (end / start)^t, cosine linear in (1 - cos(pi t)) / 2.

    Args:
        region: the rule at step 0.
        field: the name of its number, or several that all go to `end`: `["eps_low", "eps_high"]`.
        end: the value from `steps` on.
        steps: at least 1.
        shape: linear, exponential (both ends positive) or cosine.
    """

    kind: ClassVar[str] = "decaying"
    region: TrustRegion
    field: str | tuple[str, ...]
    end: float
    steps: int
    shape: str = "linear"

    def __post_init__(self) -> None:
        _region(self, "region")
        _number(self, "end", -math.inf, math.inf, open_low=True, open_high=True)
        _number(self, "steps", 1, math.inf, open_high=True)
        if self.steps != int(self.steps):
            raise ValueError(f"steps of Decaying must be an integer, got {self.steps!r}")
        object.__setattr__(self, "steps", int(self.steps))
        if self.shape not in _SHAPES:
            raise ValueError(f"shape of Decaying must be one of {list(_SHAPES)}, got {self.shape!r}")
        names = [self.field] if isinstance(self.field, str) else list(self.field) or [""]
        object.__setattr__(self, "field", names[0] if len(names) == 1 else tuple(names))
        name = type(self.region).__name__
        known = [f.name for f in dataclasses.fields(self.region)] if dataclasses.is_dataclass(self.region) else []
        for field in names:
            start = getattr(self.region, field, None) if field in known else None
            if not isinstance(start, float) or not math.isfinite(start):
                numbers = [each for each in known if isinstance(getattr(self.region, each), float)]
                raise ValueError(f"field of Decaying must name a finite number of {name}, of {numbers}, got {field!r}")
            if self.shape == "exponential" and not (start > 0 and self.end > 0):
                raise ValueError(
                    f"an exponential needs positive ends, got {field} of {name} from {start} to {self.end}"
                )
        self.at(self.steps)

    def at(self, step: int) -> TrustRegion:
        """The rule in force at a step."""
        t = min(max(step / self.steps, 0.0), 1.0)
        names = (self.field,) if isinstance(self.field, str) else self.field
        region = cast(Any, self.region)
        values = {
            name: self.end if t == 1 else _SHAPES[self.shape](getattr(region, name), self.end, t) for name in names
        }
        return dataclasses.replace(region, **values)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Those of the rule in force."""
        return self.at((context or Context()).require("step", self)).bounds(old_logps, context)

    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """What the rule in force says."""
        return self.at((context or Context()).require("step", self)).contains(log_ratio, old_logps, context)


_SHAPES: dict[str, Callable[[float, float, float], float]] = {
    "linear": lambda start, end, t: start + (end - start) * t,
    "exponential": lambda start, end, t: start * (end / start) ** t,
    "cosine": lambda start, end, t: start + (end - start) * (1 - math.cos(math.pi * t)) / 2,
}


def depends_on_probability(region: TrustRegion) -> bool:
    """False if the bounds are the same for every old probability, i.e. for what is made of `Clip` alone."""
    if isinstance(region, BySign | Capped | Decaying | Relaxed):
        parts = [getattr(region, field.name) for field in dataclasses.fields(region)]
        return any(depends_on_probability(part) for part in parts if isinstance(part, TrustRegion))
    return not isinstance(region, Clip)


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


def _capped(first: Tensor, a: Bounds, b: Bounds) -> Tensor | None:
    """Where a cap set the upper bound, which is that of `a` where `first`, else that of `b`."""
    if a.capped is None and b.capped is None:
        return None
    none = torch.zeros_like(a.log_high, dtype=torch.bool)
    return torch.where(first, none if a.capped is None else a.capped, none if b.capped is None else b.capped)


def _log1p(x: float, like: Tensor) -> float | Tensor:
    """log(1 + x); in a compiled graph a tensor, else every new epsilon would make a new graph."""
    if torch.compiler.is_compiling():
        return torch.log1p(working_copy(like).new_zeros(()) + x)
    return math.log1p(x) if x > -1 else -math.inf


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
