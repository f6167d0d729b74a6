"""Which way a bound is found, on one screen: `log_bounds`. Nothing else in the library chooses.

| the divergence | radius | tokens | way |
|---|---|---|---|
| with a formula: TV, chi2, Hellinger, Neyman's chi2, your own | any | any | its formula (closed_forms.py) |
| KL | a number | float32, eager | looked up in the table of that radius (table.py) |
| KL | any | else | its own solver (solver.py) |
| any other f | a number | float32, eager | looked up, unless f has kinks |
| any other f | any | in a compiled graph | the operator `bandpo::solve`, which comes back here when the graph runs |
| any other f | any | else | secants; for an f with kinks bisection (solver.py) |
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..numerics import is_traced, made_to_last
from .divergences import Divergence, constant, divergence
from .solver import Interval, Radius, invert, kl_log_bounds, tilt_log_bounds
from .table import BandTable

Made = TypeVar("Made")

# Radii whose tables are made to see whether f has kinks.
_PROBES = (1e-6, 1e-3, 0.05, 0.7, 30.0)
# What was made of divergences, the last ones; a table is a third of a megabyte.
_KEPT = 64
_MADE: dict[tuple[Any, ...], tuple[Divergence, Any]] = {}


def log_bounds(kind: Divergence, log_p: Tensor, delta: Radius) -> Interval:
    """(log_low, log_high) of a divergence ball, saturation included, for log p in [-inf, 0] and 0 < delta < inf."""
    is_kl, traced = kind.log_bounds is kl_log_bounds, is_traced(log_p)
    if kind.log_bounds is not None and not is_kl:
        return kind.log_bounds(log_p, delta)
    if traced and not is_kl:
        radius = delta if isinstance(delta, Tensor) else torch.tensor(delta, dtype=torch.float64)
        return _solve(log_p, radius, _key(kind))
    smooth = None
    if not (isinstance(delta, Tensor) or traced or (is_kl and log_p.dtype == torch.float64)):
        table = table_of(kind, delta, log_p.device)
        if table.fits and log_p.dtype == torch.float32:
            return table.bounds(log_p)
        smooth = table.fits
    if is_kl:
        return kl_log_bounds(log_p, delta)
    return tilt_log_bounds(log_p, delta, kind.generator, _inverse(kind), _is_smooth(kind) if smooth is None else smooth)


def table_of(kind: Divergence, delta: float, device: torch.device) -> BandTable:
    """The bounds for one radius, made when it is first used."""
    inverse = _inverse(kind)
    return _kept(kind, (delta, device), lambda: BandTable(kind.generator, inverse, delta, device))


def _inverse(kind: Divergence) -> Tensor:
    """What `invert` says of the generator."""
    return _kept(kind, "inverse", lambda: invert(kind.generator))


def _is_smooth(kind: Divergence) -> bool:
    """False if f has kinks, where secants overshoot. A curve of bounds meets all of them, from p = 1 to e^-300."""
    inverse, cpu = _inverse(kind), torch.device("cpu")
    return _kept(kind, "smooth", lambda: all(BandTable(kind.generator, inverse, d, cpu).fits for d in _PROBES))


def _kept(kind: Divergence, what: Any, make: Callable[[], Made]) -> Made:
    # By identity, for a generator need not be hashable; the divergence is kept too, so that its id stays its own.
    key = (id(kind), what)
    if (known := _MADE.get(key)) is not None:
        return known[1]
    with made_to_last():
        made = make()
    for old in list(_MADE)[: len(_MADE) - _KEPT + 1]:
        _MADE.pop(old, None)
    _MADE[key] = kind, made
    return made


# ---- in a compiled graph

# There the solver is one opaque operator: tables are used there too, and the compiler, which would work a minute or two
# on its loops, does not see them. The operator knows a divergence by its name in config files or, if it has none, by
# one of this process.
_UNNAMED: dict[str, Divergence] = {}


@constant
def _key(kind: Divergence) -> str:
    if kind.is_registered:
        return kind.name
    for key, known in _UNNAMED.items():
        if known is kind:
            return key
    key = f"{kind.name}#{len(_UNNAMED)}"
    _UNNAMED[key] = kind
    return key


@torch.library.custom_op("bandpo::solve", mutates_args=())
def _solve(log_p: Tensor, delta: Tensor, key: str) -> tuple[Tensor, Tensor]:
    if "#" in key and key not in _UNNAMED:
        raise ValueError(
            f"divergence {key.partition('#')[0]!r} of this graph is not known in this process; export graphs of "
            "divergences only that are registered under their name"
        )
    kind = _UNNAMED[key] if "#" in key else divergence(key)
    # A radius on the CPU can be read without waiting for a device.
    radius = float(delta) if delta.dim() == 0 and delta.device.type == "cpu" else delta
    log_low, log_high = log_bounds(kind, log_p, radius)
    return log_low.contiguous(), log_high.contiguous()


@_solve.register_fake
def _(log_p: Tensor, delta: Tensor, key: str) -> tuple[Tensor, Tensor]:
    shape = torch.broadcast_shapes(log_p.shape, delta.shape)
    return log_p.new_empty(shape, dtype=torch.float64), log_p.new_empty(shape, dtype=torch.float64)
