"""Compute losses: what bounds do to a policy's gradient, and what is measured.

Read in this order: surrogates, aggregation, kl, objective, nodes, metrics, policy;
advantages, token_logps and packing make what it takes.
"""

from .advantages import group_advantages
from .aggregation import aggregate
from .kl import kl_penalty
from .metrics import Metrics
from .nodes import method, objective
from .objective import Method, Objective
from .packing import unpack
from .policy import policy_loss
from .surrogates import Decay, Preserve, Sapo, Vespo, surrogate
from .token_logps import token_logps

__all__ = [
    "Decay",
    "Method",
    "Metrics",
    "Objective",
    "Preserve",
    "Sapo",
    "Vespo",
    "aggregate",
    "group_advantages",
    "kl_penalty",
    "method",
    "objective",
    "policy_loss",
    "surrogate",
    "token_logps",
    "unpack",
]
