"""bandpo: trust regions for LLM reinforcement learning, and the reference implementation of BandPO (arXiv 2603.04918).

Read the core in this order, beside the paper: numerics, bounds, band, trust_regions, losses. It loads torch only, and
is loaded when the first name of it is asked for, or with torch: what needs neither, such as `bandpo --help`, does not
wait for them.
"""

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .band import (
        Divergence,
        band_bounds,
        band_contains,
        complement,
        cressie_read,
        divergence_at,
        register_divergence,
    )
    from .bounds import Bounds, Variation
    from .losses import (
        Decay,
        Method,
        Metrics,
        Objective,
        Preserve,
        Sapo,
        aggregate,
        group_advantages,
        kl_penalty,
        method,
        objective,
        policy_loss,
        rollout_weights,
        surrogate,
        token_logps,
    )
    from .trust_regions import (
        DCPO,
        RIPO,
        Adaptive,
        Band,
        ByEntropy,
        ByProbability,
        BySign,
        Capped,
        Clip,
        Context,
        ControlLaw,
        Controlled,
        Decaying,
        EntropyRatio,
        GroupClip,
        Intersect,
        Law,
        PrefixBudget,
        Quantile,
        Region,
        Relaxed,
        Stale,
        Tilt,
        TokenLaw,
        Union,
        trust_region,
    )

__version__ = "0.1.0"

__all__ = [
    "DCPO",
    "RIPO",
    "Adaptive",
    "Band",
    "Bounds",
    "ByEntropy",
    "ByProbability",
    "BySign",
    "Capped",
    "Clip",
    "Context",
    "ControlLaw",
    "Controlled",
    "Decay",
    "Decaying",
    "Divergence",
    "EntropyRatio",
    "GroupClip",
    "Intersect",
    "Law",
    "Method",
    "Metrics",
    "Objective",
    "PrefixBudget",
    "Preserve",
    "Quantile",
    "Region",
    "Relaxed",
    "Sapo",
    "Stale",
    "Tilt",
    "TokenLaw",
    "Union",
    "Variation",
    "aggregate",
    "band_bounds",
    "band_contains",
    "complement",
    "cressie_read",
    "divergence_at",
    "group_advantages",
    "kl_penalty",
    "method",
    "objective",
    "policy_loss",
    "register_divergence",
    "rollout_weights",
    "surrogate",
    "token_logps",
    "trust_region",
]

# The core: everything that the names above come from.
_CORE = ("numerics", "bounds", "band", "trust_regions", "losses")


def _load() -> None:
    for module in _CORE:
        found = vars(import_module(f"{__name__}.{module}"))
        globals().update({name: found[name] for name in __all__ if name in found})


def __dir__() -> list[str]:
    there = (name for name in globals() if name.startswith("__") or f"{__name__}.{name}" in sys.modules)
    return sorted({*__all__, *_CORE, *there})


if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name: str) -> Any:
        if name not in _CORE and name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _load()
        return globals()[name]


class _WithTorch(MetaPathFinder):
    """Loads the core as soon as torch is there: a graph that was exported looks for our operators, and asks torch."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == "torch" else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_load(module: Any) -> None:
                execute(module)
                sys.meta_path.remove(self)
                if not any(f"{__name__}.{part}" in sys.modules for part in _CORE):  # else one of them imports torch
                    _load()

            spec.loader.exec_module = execute_and_load
        return spec


if "torch" in sys.modules:
    _load()
else:
    sys.meta_path.insert(0, _WithTorch())
