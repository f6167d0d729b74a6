"""The paper: a divergence and a radius become the bounds of a token's ratio.

Read in this order: operator, divergences, closed_forms, kl, solver, table. A program that loads an exported graph
imports `bandpo.band` first: the graph calls the operator `bandpo::solve`.
"""

from .divergences import Divergence, divergence, register_divergence
from .operator import band_bounds, divergence_at

__all__ = [
    "Divergence",
    "band_bounds",
    "divergence",
    "divergence_at",
    "register_divergence",
]
