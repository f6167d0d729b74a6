"""Provide trust regions for LLM reinforcement learning. This is the reference implementation of BandPO (ICML 2026,
arXiv 2603.04918).

Read the core in this order, beside the paper: numerics, bounds, band, trust_regions, losses. It loads torch only, and
each part is loaded when a name of it is asked for: `bandpo --help` does not wait for torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .band import band_bounds as band_bounds
    from .bounds import Bounds as Bounds
    from .control import Controller as Controller
    from .losses import Objective as Objective
    from .losses import group_advantages as group_advantages
    from .losses import objective as objective
    from .losses import policy_loss as policy_loss
    from .losses import token_logps as token_logps
    from .trust_regions import *  # noqa: F403

__version__ = "0.1.0"

# The names at the top, by the part that each comes from; all others are in bandpo.band, .trust_regions and .losses.
_PARTS = {
    "band": ("band_bounds",),
    "bounds": ("Bounds",),
    "control": ("Controller",),
    "losses": ("Objective", "group_advantages", "objective", "policy_loss", "token_logps"),
    "trust_regions": (
        "Band", "ByProbability", "BySign", "Capped", "Clip", "Context", "DCPO", "Intersect",
        "Region", "Relaxed", "Union",
    ),
}  # fmt: skip
_NAMES = {name: part for part, names in _PARTS.items() for name in names}
_ELSEWHERE = {
    **{name: f"from bandpo.integrations.trl import {name}" for name in ("BandPOTrainer", "BandPOConfig")},
    **{name: f"import bandpo.integrations.{name}" for name in ("trl", "verl")},
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
        if name in _ELSEWHERE:  # `hasattr` is False; `from bandpo import` asks by a function
            asks = sys._getframe(1).f_code.co_name == "_handle_fromlist"
            raise (ImportError if asks else AttributeError)(f"use: {_ELSEWHERE[name]}")
        if name not in _NAMES:
            from .errors import nearest

            near = nearest(name, __all__) or ";"
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}{near} "
                "bandpo.losses, bandpo.trust_regions, bandpo.band and bandpo.integrations have more"
            )
        globals()[name] = value = getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
        return value
