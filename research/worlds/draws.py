"""Randomness by counter: each number is a function of (seed, purpose, round, index) and of nothing else.

So a run is the same alone and among others, in torch and in numba, today and on another machine. The function is
SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), its mixing step once for each part of the key.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What a number is drawn for.
TEACHER, FEATURES, NOISE, HIDDEN, PROMPTS, TOKENS, LUCK, FLIP, GATE, HARDER = (np.uint64(i) for i in range(1, 11))

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_UNIT = 2.0**-53


def mix(z: Any) -> Any:
    """SplitMix64's output function of uint64 numbers; the kernel compiles this one too."""
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    return z ^ (z >> _31)


def uniforms(seeds: Sequence[int] | NDArray[Any], purpose: np.uint64, round: int, count: int) -> NDArray[np.float64]:
    """(S, count) numbers in [0, 1), multiples of 2^-53, of one purpose in one round."""
    key = np.asarray(seeds, dtype=np.uint64)
    for part in (purpose, np.uint64(round)):
        key = mix(key + GOLDEN) + part
    index = np.arange(1, count + 1, dtype=np.uint64)
    return (mix(mix(key + GOLDEN)[:, None] + index * GOLDEN) >> _11) * _UNIT


def normals(seeds: Sequence[int] | NDArray[Any], purpose: np.uint64, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """(S, *shape) standard normal numbers, by Box and Muller; the logarithm and cosine are numpy's."""
    count = int(np.prod(shape))
    first, second = uniforms(seeds, purpose, 0, count), uniforms(seeds, purpose, 1, count)
    return (np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)).reshape(-1, *shape)
