"""The paper: a divergence and a radius become the bounds of a token's ratio.

Read in this order: solver, table, closed_forms, divergences, dispatch, operator.
"""

from .divergences import Divergence, cressie_read, divergence, register_divergence
from .operator import band_bounds, band_contains, complement, divergence_at

__all__ = [
    "Divergence",
    "band_bounds",
    "band_contains",
    "complement",
    "cressie_read",
    "divergence",
    "divergence_at",
    "register_divergence",
]
