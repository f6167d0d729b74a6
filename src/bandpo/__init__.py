"""bandpo: trust regions for LLM reinforcement learning, and the reference implementation of BandPO (arXiv 2603.04918).

Read the core in this order, beside the paper: numerics, bounds, band, trust_regions, losses. It loads torch only, and
each part is loaded when a name of it is asked for: `bandpo --help` does not wait for torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .band import *  # noqa: F403
    from .bounds import Bounds as Bounds
    from .bounds import Variation as Variation
    from .losses import *  # noqa: F403
    from .trust_regions import *  # noqa: F403

__version__ = "0.1.0"

# The public names, and the part that each comes from.
_NAMES = {
    "DCPO": "trust_regions",
    "RIPO": "trust_regions",
    "Adaptive": "trust_regions",
    "Band": "trust_regions",
    "Bounds": "bounds",
    "ByEntropy": "trust_regions",
    "ByProbability": "trust_regions",
    "BySign": "trust_regions",
    "Capped": "trust_regions",
    "Clip": "trust_regions",
    "Context": "trust_regions",
    "ControlLaw": "trust_regions",
    "Controlled": "trust_regions",
    "Decay": "losses",
    "Decaying": "trust_regions",
    "Divergence": "band",
    "EntropyRatio": "trust_regions",
    "GroupClip": "trust_regions",
    "Intersect": "trust_regions",
    "Law": "trust_regions",
    "Method": "losses",
    "Metrics": "losses",
    "Objective": "losses",
    "PrefixBudget": "trust_regions",
    "Preserve": "losses",
    "Quantile": "trust_regions",
    "Region": "trust_regions",
    "Relaxed": "trust_regions",
    "Sapo": "losses",
    "Stale": "trust_regions",
    "Tilt": "trust_regions",
    "TokenLaw": "trust_regions",
    "Union": "trust_regions",
    "Variation": "bounds",
    "aggregate": "losses",
    "band_bounds": "band",
    "band_contains": "band",
    "complement": "band",
    "divergence_at": "band",
    "group_advantages": "losses",
    "kl_penalty": "losses",
    "method": "losses",
    "objective": "losses",
    "policy_loss": "losses",
    "register_divergence": "band",
    "rollout_weights": "losses",
    "surrogate": "losses",
    "token_logps": "losses",
    "trust_region": "trust_regions",
}
_CORE = ("numerics", "bounds", "band", "trust_regions", "losses")
__all__ = list(_NAMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    there = (name for name in globals() if name.startswith("__") or f"{__name__}.{name}" in sys.modules)
    return sorted({*_NAMES, *_CORE, *there})


if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name: str) -> Any:
        if name in _CORE:
            return import_module(f"{__name__}.{name}")
        if name not in _NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
        return found
