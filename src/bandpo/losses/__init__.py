"""The objective: what bounds do to the gradient of a policy, and what was measured on the way.

Read in this order: surrogates, aggregation, kl, metrics, policy; advantages and token_logps make what it takes.
"""

from .advantages import group_advantages
from .aggregation import aggregate
from .kl import kl_penalty
from .metrics import Metrics
from .policy import policy_loss, rollout_weights
from .surrogates import surrogate
from .token_logps import token_logps

__all__ = [
    "Metrics",
    "aggregate",
    "group_advantages",
    "kl_penalty",
    "policy_loss",
    "rollout_weights",
    "surrogate",
    "token_logps",
]
