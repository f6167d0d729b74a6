"""Regions: rules that make bounds of old log-probabilities, and are YAML nodes.

Read in this order: base, rules, combinators; notation writes and reads a region in short words.
"""

from .base import Context, Region, TrustRegion, trust_region
from .combinators import TRGPPO, BySign, Capped, Decaying, Relaxed, Table
from .rules import DCPO, RIPO, Band, Clip

__all__ = [
    "DCPO",
    "RIPO",
    "TRGPPO",
    "Band",
    "BySign",
    "Capped",
    "Clip",
    "Context",
    "Decaying",
    "Region",
    "Relaxed",
    "Table",
    "TrustRegion",
    "trust_region",
]
