"""bandpo: trust regions for LLM reinforcement learning, and the reference implementation of BandPO (arXiv 2603.04918).

Read the core in this order, beside the paper: numerics, bounds, solver, tables, closed_forms, divergences, band,
trust_regions, rules, combinators, surrogates, losses. Importing it loads torch only.
"""

from .advantages import group_advantages
from .aggregation import aggregate
from .band import band_bounds, band_contains, complement, divergence_at
from .bounds import Bounds, Variation
from .combinators import TRGPPO, BySign, Capped, Decaying, Relaxed, Table
from .divergences import Divergence, cressie_read, register_divergence
from .linear import token_logps
from .losses import policy_loss, rollout_weights
from .metrics import Metrics
from .penalties import kl_penalty
from .rules import DCPO, RIPO, Band, Clip
from .surrogates import surrogate
from .trust_regions import Context, Region, TrustRegion, trust_region

__version__ = "0.1.0"

__all__ = [
    "DCPO",
    "RIPO",
    "TRGPPO",
    "Band",
    "Bounds",
    "BySign",
    "Capped",
    "Clip",
    "Context",
    "Decaying",
    "Divergence",
    "Metrics",
    "Region",
    "Relaxed",
    "Table",
    "TrustRegion",
    "Variation",
    "aggregate",
    "band_bounds",
    "band_contains",
    "complement",
    "cressie_read",
    "divergence_at",
    "group_advantages",
    "kl_penalty",
    "policy_loss",
    "register_divergence",
    "rollout_weights",
    "surrogate",
    "token_logps",
    "trust_region",
]
