"""Rules that lost, or that only one method needs; in YAML by `research.rules.module:Class`.

Once this is imported they are known by their kinds too, such as `{type: stale}`, which contests write.
"""

from . import adaptive, batch, by_entropy, exact, full_divergence, kl3, trgppo

__all__ = ["adaptive", "batch", "by_entropy", "exact", "full_divergence", "kl3", "trgppo"]
