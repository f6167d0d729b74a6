"""Rules of every kind, for the tests that hold for all of them."""

import math
import re
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from bandpo import (
    DCPO,
    Band,
    Bounds,
    ByProbability,
    BySign,
    Capped,
    Clip,
    Context,
    Intersect,
    Objective,
    Region,
    Union,
)
from bandpo.band import Divergence
from bandpo.losses import Decay, Preserve, Sapo
from bandpo.trust_regions import RIPO, Relaxed, trust_region
from bandpo.trust_regions.nodes import node_of_text


def parse_region(text: str) -> Region:
    """The rule of a text: a short word or YAML."""
    return trust_region(node_of_text(text))


@dataclass(frozen=True)
class Wider(Region):
    """A rule of one's own: a clip that is wider where the policy is uncertain."""

    kind: ClassVar[str] = "wider_where_uncertain"
    required: ClassVar[tuple[str, ...]] = ("entropies",)
    eps: float = 0.2

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        entropies = (context or Context()).require("entropies", self)
        width = torch.log1p(self.eps * (1 + entropies.to(torch.promote_types(old_logps.dtype, torch.float32))))
        width = torch.where(old_logps.isnan(), torch.nan, width)
        return Bounds(-width, width)


@dataclass(frozen=True)
class Bare(Region):
    """A rule of one's own without a node."""

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        return Clip(0.1, 0.1).bounds(old_logps, context)


@dataclass(frozen=True)
class Narrowing(Region):
    """A rule whose number narrows it."""

    kind: ClassVar[str] = "narrowing"
    slope: float = 0.05

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        return Clip(0.2 / (1 + self.slope), 0.2 / (1 + self.slope)).bounds(old_logps)


HELLINGER = Divergence("my hellinger", lambda u: (u.sqrt() - 1) ** 2)
IN_YAML = [
    Clip(),
    Clip(0.2, 0.28),
    Clip(1.0, math.inf),
    Clip(0.0, 0.1),
    DCPO(),
    DCPO(0.01, 0.3, math.inf),
    Band(),
    Band("tv", 0.1),
    Band("chi2", 1e-3),
    Relaxed(Band("kl", 0.05), Clip(0.2, 0.28)),
    Capped(Band("kl", 0.05)),
    Relaxed(Capped(Band("tv", 0.05), 3.0), Capped(DCPO(), 2.0)),
    RIPO(),
    Intersect(RIPO(0.2), Clip(0.5, 9.0)),
    BySign(Band("kl", 0.05), Clip(0.2, 0.2)),
    BySign(Clip(0, 0), Capped(DCPO(), 2.0)),
    Union(Band("tv", 0.05), Capped(Band("kl", 0.05), 3.0)),
    Intersect(Band("kl", 0.05), Clip(0.2, 1.0)),
    Intersect(Union(Band("kl", 0.02), Clip(0.1, 0.1)), Capped(DCPO(), 2.0)),
    ByProbability(0.2, Band("kl", 0.05), Clip(0.2, 0.2)),
    ByProbability(0.5, Intersect(Band("tv", 0.05), Clip()), BySign(Clip(), Band())),
    Wider(0.3),
]
IN_YAML += [  # every other rule of the library that has defaults and asks for p alone
    kind()
    for kind in Region.kinds.values()
    if kind.__module__.startswith("bandpo.")
    and not kind.required
    and kind not in map(type, IN_YAML)
    and not any(field.default is MISSING for field in fields(kind))
]
REGIONS = [*IN_YAML, Band(HELLINGER, 0.05), Relaxed(Bare(), Clip(0.05, 0.3))]


# Every surrogate, and every ratio that it goes with.
PRESERVE, DECAY, SAPO = Preserve(0.5, 0.75), Decay(1.5, 0.25), Sapo(0.7, 1.6)
BY_BOUNDS = ["clip", "mask", "mask_two_sided", "weight", "quadratic", PRESERVE, DECAY]
APPLICATIONS = [*BY_BOUNDS, SAPO]
RATIOS = ["token", "sequence", "sequence-mean", "mean-of-clipped"]
WAYS = [(kind, ratio) for ratio in RATIOS[:3] for kind in APPLICATIONS] + [("clip", RATIOS[3])]
NO_CLIP = Clip(1.0, math.inf)


def region_for(ratio: str, kind: Any = "clip") -> Region:
    return NO_CLIP if kind == SAPO else Clip(0.2, 0.28) if ratio == "sequence-mean" else Band("kl", 0.05)


def ways(**fields: Any) -> list[Objective]:
    """Objectives of every way, under a plain rule and under one by sign."""
    return [
        Objective(region, surrogate=kind, ratio=ratio, **fields)
        for kind, ratio in WAYS
        for region in (region_for(ratio, kind), BySign(Clip(0, 0), Clip(1, 0)))[: 1 if kind == SAPO else 2]
    ]


def sides(bounds: Bounds) -> Tensor:
    """Both bounds in one tensor."""
    return torch.stack([bounds.log_low, bounds.log_high])


def name_of(value: Any) -> str:
    """For the ids of tests: no address is in it, so that two processes find the same tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
