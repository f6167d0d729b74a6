"""Rules and laws that lost or that no trainer runs; in YAML by `research.rules.module:Class`.

Once this is imported they are known by their kinds too, such as `{type: budget}`, which contests write.
"""

from . import budget, by_entropy, exact, full_divergence, kl3, laws, tail, tapered, trgppo

__all__ = ["budget", "by_entropy", "exact", "full_divergence", "kl3", "laws", "tail", "tapered", "trgppo"]
