"""Regions: rules that make bounds of old log-probabilities, and are YAML nodes.

Read in this order: base, rules, control, combinators, batch, budget, exact, adaptive; notation writes and reads a
region in short words.
"""

from .adaptive import Adaptive, Tilt, TokenLaw
from .base import Context, Law, Region, trust_region
from .batch import ByEntropy, EntropyRatio, GroupClip, Stale, TailContracted
from .budget import Budget, PrefixBudget
from .combinators import TRGPPO, ByProbability, BySign, Capped, Decaying, Intersect, Relaxed, Table, Union
from .control import PI, AdaptiveKL, ControlLaw, Controlled, Hysteresis, Quantile
from .exact import Exact
from .rules import DCPO, KL3, RIPO, Band, Clip, Tapered

__all__ = [
    "DCPO",
    "KL3",
    "PI",
    "RIPO",
    "TRGPPO",
    "Adaptive",
    "AdaptiveKL",
    "Band",
    "Budget",
    "ByEntropy",
    "ByProbability",
    "BySign",
    "Capped",
    "Clip",
    "Context",
    "ControlLaw",
    "Controlled",
    "Decaying",
    "EntropyRatio",
    "Exact",
    "GroupClip",
    "Hysteresis",
    "Intersect",
    "Law",
    "PrefixBudget",
    "Quantile",
    "Region",
    "Relaxed",
    "Stale",
    "Table",
    "TailContracted",
    "Tapered",
    "Tilt",
    "TokenLaw",
    "Union",
    "trust_region",
]
