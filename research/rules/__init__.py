"""Rules and laws that lost, or that only one method needs; in YAML by `research.rules.module:Class`.

Once this is imported they are known by their kinds too, such as `{type: budget}`, which contests write.
"""

from . import adaptive, batch, budget, by_entropy, control, decaying, exact, full_divergence, kl3, laws, trgppo

__all__ = [
    "adaptive", "batch", "budget", "by_entropy", "control", "decaying", "exact", "full_divergence", "kl3", "laws",
    "trgppo",
]  # fmt: skip
