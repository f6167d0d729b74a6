"""Arithmetic of the engine "numba": draws, e^x, the probabilities of a state, and the slope of a token's surrogate.

After a change here, or in draws.py, `kernel.MADE_WITH` has to be changed too; a test says to what.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUntypedFunctionDecorator=false

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from . import draws

# Sums may be taken in another order and products fused; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
# Wrappers take half as long to compile as what they wrap: none for C, and none for what compiled code alone calls.
OPTIONS: dict[str, Any] = {
    "nogil": True, "cache": True, "fastmath": _FAST, "error_model": "numpy", "no_cfunc_wrapper": True
}  # fmt: skip
INNER: dict[str, Any] = {**OPTIONS, "no_cpython_wrapper": True}
_EXACT: dict[str, Any] = {**OPTIONS, "fastmath": {"contract"}}

_mix: Any = numba.njit(**_EXACT)(draws.mix)
_GOLDEN, _11, _ONE = draws.GOLDEN, np.uint64(11), np.uint64(1)


@numba.njit(**_EXACT)
def key_of(seed, purpose, round):
    return _mix(_mix(_mix(seed + _GOLDEN) + purpose + _GOLDEN) + np.uint64(round) + _GOLDEN)


@numba.njit(**_EXACT)
def uniform(key, index):
    return float(_mix(key + (np.uint64(index) + _ONE) * _GOLDEN) >> _11) * 2.0**-53


def _as_bits(context, x):
    def made(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), made


def _as_float(context, x):
    def made(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.int64), made


_bits_of: Any = intrinsic(_as_bits)
_float_of: Any = intrinsic(_as_float)
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUNDING = 6755399441055744.0  # 1.5 2^52: adding it leaves the nearest integer in the low bits


@numba.njit(**_EXACT)
def exp(x):
    """e^x within 2 units in the last place, of x in [-708, 709]; below, that of -708. Plain arithmetic, which the
    compiler does for many numbers at once."""
    x = x if x > -708.0 else -708.0
    shifted = x * _LOG2_E + _ROUNDING
    k = shifted - _ROUNDING
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return _float_of(_bits_of(p) + (_bits_of(shifted) << 52))


@numba.njit(**INNER)
def forward(h, w, logits, p):
    """The logits of a state, its probabilities, and log sum exp of the logits."""
    tokens = logits.shape[0]
    for v in range(tokens):
        logits[v] = 0.0
    for k in range(h.shape[0]):
        a = h[k]
        for v in range(tokens):
            logits[v] += a * w[k, v]
    top = logits[0]
    for v in range(1, tokens):
        top = max(top, logits[v])
    total = 0.0
    for v in range(tokens):
        p[v] = exp(logits[v] - top)
        total += p[v]
    for v in range(tokens):
        p[v] /= total
    return top + math.log(total)


@numba.njit(**INNER)
def features(x, u, is_hidden, h):
    """h = x, or tanh(x u)."""
    size = x.shape[0]
    if not is_hidden:
        for j in range(size):  # h[:] = x takes the compiler as long as all the rest
            h[j] = x[j]
        return
    for j in range(size):
        h[j] = 0.0
    for k in range(size):
        a = x[k]
        for j in range(size):
            h[j] += a * u[k, j]
    for j in range(size):
        h[j] = 1.0 - 2.0 / (exp(2.0 * h[j]) + 1.0)


# What is done with a token outside; see `losses.surrogates`.
CLIP, TWO_SIDED, WEIGHT, PRESERVE, DECAY = range(5)


class Loss(NamedTuple):
    """The numbers of a loss and of the controls."""

    up: int  # application for A >= 0
    down: int
    preserve_low: float
    preserve_high: float
    decay_low: float
    decay_high: float
    dual_clip: float  # log c; inf for none
    limit: float  # of log r
    beta: float
    entropy_bonus: float
    balanced: bool
    by_chance: bool
    log_rare: float
    highest: float


@numba.njit(**INNER)
def slope_of(loss, log_ratio, advantage, low, high, up):
    """d surrogate / d log pi of a token, or of several with the sum of their advantages."""
    limited = min(max(log_ratio, -loss.limit), loss.limit)
    clipped = min(max(limited, low), high)
    apply = loss.up if up else loss.down
    if apply == WEIGHT:
        return exp(clipped) * advantage
    if apply == TWO_SIDED:
        return exp(limited) * advantage if clipped == limited and limited == log_ratio else 0.0
    if limited > clipped if up else limited < clipped:
        if apply == PRESERVE:
            return (loss.preserve_high if up else loss.preserve_low) * exp(clipped) * advantage
        if apply == DECAY:
            power = -loss.decay_high if up else loss.decay_low
            return exp(limited + power * (limited - clipped)) * advantage
        return 0.0
    if limited != log_ratio or (not up and limited > loss.dual_clip):
        return 0.0
    return exp(limited) * advantage


@numba.njit(**INNER)
def less(advantage, by):
    """advantage - by, or 0 where that has another sign."""
    return max(advantage - by, 0.0) if advantage > 0.0 else min(advantage - by, 0.0)
