"""Bound the value of a formula before it is computed."""

from __future__ import annotations

import math
from typing import Any

import sympy

# Bits of the largest number that is computed.
_BITS = 50_000


class Refused(Exception):
    """Refuse to look any further at an answer. It is wrong then."""


def size(expr: Any) -> float:
    """Return a bound of the bits of the value and of its parts. Raises Refused for values too large to compute."""
    parts: Any = expr.flat() if isinstance(expr, sympy.MatrixBase) else getattr(expr, "args", ())
    match expr:
        case sympy.Rational():
            bits = math.log2(max(abs(expr.p), expr.q, 1))
        case sympy.Float():
            bits = 1.0 + abs(sum(expr._mpf_[2:]))
        case sympy.Pow():
            bits = size(expr.base) * max(1.0, _value(expr.exp))
        case sympy.exp():
            bits = 1.5 * _value(*parts)
        case sympy.factorial() | sympy.gamma() | sympy.factorial2():
            count = _value(*parts)
            bits = count * math.log2(count + 2)
        case sympy.binomial():
            above, below = map(_value, parts)
            bits = min(above, 2 * below * math.log2(above + 2))
        case sympy.Sum() | sympy.Product():
            terms = sum(_value(end) for limits in parts[1:] for end in limits.args[1:])
            bits = (
                size(parts[0]) * (1 if isinstance(expr, sympy.Sum) else terms) + 5 * terms
            )  # at most 10,000 terms
        case sympy.Mul():
            bits = sum(map(size, parts))
        case sympy.Add():
            bits = max(map(size, parts)) + math.log2(len(parts))
        case _:
            bits = max(map(size, parts), default=3.0)
    if bits > _BITS:
        raise Refused
    return bits


def _value(expr: Any) -> float:
    """Return the largest possible absolute value."""
    bits = size(expr)
    if bits > 40:
        raise Refused
    return abs(float(expr)) if isinstance(expr, sympy.Rational) and expr.q else 2.0**bits
