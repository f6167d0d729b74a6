"""Rules in words: `band:kl:0.05` becomes a trust region, and a trust region its name in tables and legends."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, cast

from ..band.divergences import Divergence
from ..errors import UserError
from ..files.yaml import parse_yaml
from ..numerics import listed
from .adaptive import Adaptive, Tilt
from .base import OWN, Law, Region, TrustRegion, trust_region
from .batch import ByEntropy, EntropyRatio, GroupClip, Stale, TailContracted
from .budget import Budget, PrefixBudget
from .combinators import TRGPPO, ByProbability, BySign, Capped, Decaying, Intersect, Relaxed, Table, Union
from .control import Controlled
from .exact import Exact
from .rules import DCPO, KL3, RIPO, Band, Clip, Tapered


def parse_region(text: str) -> Region:
    """The rule that a text describes, a short word or a YAML node such as `{type: band, delta: 0.05}`.

    A short word is a kind and its fields in their order, `kind:field:field`; the last ones may be left out. A rule in
    a rule stands in the place of the field, with all of its own: `capped:band:kl:0.05:10`. Radii for each side of a
    band need the node.

    Raises ValueError naming the text, what is wrong with it and what is allowed.

    >>> from bandpo import Band, Clip, Relaxed
    >>> parse_region("relaxed:band:kl:0.05:clip:0.2:0.28") == Relaxed(Band("kl", 0.05), Clip(0.2, 0.28))
    True
    >>> parse_region("{type: band, divergence: tv}") == parse_region("band:tv") == Band("tv", 0.05)
    True
    """
    try:
        return cast(Region, trust_region(node_of_text(text)))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def node_of_text(text: str) -> Mapping[str, Any] | str:
    """The node that a text is, or else the text, for a short word."""
    if re.fullmatch(r"[\w.:+()/-]+", text):
        return text
    try:
        node = parse_yaml(text, "the node")  # a short word must do without a library for it
    except UserError:
        node = None
    except ModuleNotFoundError:
        raise ValueError("a YAML node needs PyYAML (pip install pyyaml); band:kl:0.05 does not") from None
    if not isinstance(node, dict) and re.search("[{:]", text):
        raise ValueError("a rule is a short word such as band:kl:0.05 or a YAML node such as {type: band, delta: 0.05}")
    return node if isinstance(node, dict) else text


def own_type(node: Any) -> str | None:
    """Find the first `module:Class` that is the type of a rule, or of a part of one, in a node; None without one.

    `trust_region` and all that call it would import that module, which runs what is in it. Who reads what a stranger
    wrote looks here first.
    """
    if isinstance(node, str):
        try:
            node = node_of_text(node)
        except ValueError:
            return None
    if isinstance(node, Mapping):
        values = cast("Mapping[Any, Any]", node)
        for key, value in values.items():
            if str(key) == "type" and isinstance(value, str) and re.fullmatch(OWN, value):
                return value
        node = list(values.values())
    parts = cast("list[Any]", node) if isinstance(node, list | tuple) else []
    return next((found for each in parts if (found := own_type(each)) is not None), None)


def not_loaded(kind: str) -> str:
    """Say what a reader shows in the place of such a rule."""
    return f"a rule of one's own, {kind}, not loaded; --trust loads it"


def label_of(region: TrustRegion) -> str:
    """The name of a rule in tables and legends, e.g. `Band-KL 0.05`; the same however the rule was written."""
    match region:
        case Clip(1.0, math.inf):
            return "No clip"
        case Clip(0.0, 0.0):
            return "Ratio 1"
        case Clip(low, high):
            # Clip-Higher is DAPO's one; a much wider clip is another proposal.
            name = "GRPO" if low == high else "Clip-Higher" if (low, high) == (0.2, 0.28) else "Clip"
            return f"{name} {low}/{high}"
        case Band(kind, delta, low, high):
            low, high = low or delta, high or delta
            return f"Band-{_divergence(kind)} {low if low == high else f'{low}/{high}'}"
        case Budget(kind, delta):
            return f"Budget-{_divergence(kind)} {delta}"
        case PrefixBudget(kind, delta, budget, least):
            weights = f", weights to {least}" if least != PrefixBudget.least_weight else ""
            return f"Prefix-{_divergence(kind)} {delta}, {budget} a token{weights}"
        case DCPO(low, high, cap):
            return f"DCPO {low}/{high}" + (f" cap {cap}" if cap != DCPO.max_ratio else "")
        case RIPO(delta, low, high):
            return f"RIPO {delta}" + (f" in {low}..{high}" if (low, high) != (RIPO.min_ratio, RIPO.max_ratio) else "")
        case KL3(delta):
            return f"KL3 {delta}"
        case Tapered(low, high, slope):
            return f"Clip {low}/({high} - {slope} pi)"
        case GroupClip(low, high, size):
            return f"Clip {low}/{low}..{high} by the right ones of {size}"
        case Exact(delta):
            return f"Exact divergence {delta}"
        case TRGPPO(delta, eps):
            return f"TRGPPO {delta}/{eps}"
        case BySign(positive, negative):
            return f"{_part(positive)} for A >= 0, {_part(negative)} for A < 0"
        case ByProbability(threshold, below, above):
            return f"{_part(below)} for p <= {threshold}, {_part(above)} for p > {threshold}"
        case ByEntropy(quantile, below, above):
            return f"{_part(below)} up to quantile {quantile} of entropy, {_part(above)} beyond"
        case EntropyRatio(inner, low, high):
            return f"{_part(inner)} for entropy ratios in {low}..{high}"
        case Stale(inner):
            return f"{_part(inner)} times staleness"
        case TailContracted(inner, quantile, exponent):
            return f"{_part(inner)} contracted beyond quantile {quantile} by exponent {exponent}"
        case Decaying(inner, field, end, steps, shape):
            kind = f" ({shape})" if shape != "linear" else ""
            return f"{label_of(inner)}, {', '.join(listed(field))} to {end} in {steps} steps{kind}"
        case Adaptive(inner, Tilt(of, gain, limit)):
            within = f" within {limit}" if limit != Tilt.limit else ""
            return f"{label_of(inner)} by {of} {gain:+g}{within}"
        case Controlled(inner, parameter, measure, target, law, low, high, smoothing):
            names = ", ".join(listed(parameter))
            slowly = f", smoothing {smoothing}" if smoothing != Controlled.smoothing else ""
            return f"{label_of(inner)}, {names} in {low}..{high} for {measure} {target} ({_law(law)}{slowly})"
        case Table(inner, tolerance):
            within = f" within {tolerance}" if tolerance != Table.tolerance else ""
            return f"{label_of(inner)} (table{within})"
        case Capped(inner, cap):
            return f"{_part(inner)} cap {cap}"
        case Relaxed(Band() as inner, Clip(0.2, 0.28)):  # the paper's
            return f"Relaxed {label_of(inner)}"
        case Relaxed(a, b) | Union(a, b):
            return f"{_part(a)} or {_part(b)}"
        case Intersect(a, b):
            return f"{_part(a)} and {_part(b)}"
        case _:
            fields = dataclasses.fields(region) if dataclasses.is_dataclass(region) else ()
            return " ".join([type(region).__name__, *(str(getattr(region, field.name)) for field in fields)])


def _law(law: Law) -> str:
    """Its name, and those of its numbers that are not the usual ones."""
    fields = dataclasses.fields(cast(Any, law))
    changed = [(field.name, value) for field in fields if (value := getattr(law, field.name)) != field.default]
    return ", ".join([type(law).__name__, *(f"{name} {value}" for name, value in changed)])


def _divergence(kind: str | Divergence) -> str:
    if not isinstance(kind, str):
        return f"{kind.name} (own)"
    return kind.upper() if kind in ("kl", "tv") else kind


def _part(region: TrustRegion) -> str:
    """The label of a rule within that of another."""
    several = Adaptive | BySign | ByProbability | Controlled | Decaying | Intersect | Relaxed | Union
    several = several | ByEntropy | EntropyRatio | Stale | TailContracted
    return f"({label_of(region)})" if isinstance(region, several) else label_of(region)
