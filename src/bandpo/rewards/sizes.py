"""Bound the value of a formula before it is computed."""

from __future__ import annotations

import math
from typing import Any

import sympy

# Bits of the largest number that is computed.
_BITS = 50_000
_TERMS = 10_000


class Refused(Exception):
    """Refuse to look any further at an answer. It is wrong then."""


def size(expr: Any) -> float:
    """Return a bound of the bits of the value and of its parts. Raises Refused for values too large to compute."""
    if isinstance(expr, (sympy.Tuple, sympy.MatrixBase, list, tuple)):
        parts: Any = expr
        return max(map(size, parts), default=1.0)
    if not isinstance(expr, sympy.Basic):
        return 1.0
    match expr:
        case sympy.Rational():
            bits = math.log2(max(abs(expr.p), expr.q, 1))
        case sympy.Float():
            bits = max(1.0, abs(math.log2(abs(expr))) if expr else 1.0)
        case sympy.Pow():
            bits = size(expr.base) * max(1.0, _value(expr.exp))
        case sympy.exp():
            bits = 1.5 * _value(expr.args[0])
        case sympy.factorial() | sympy.gamma() | sympy.factorial2():
            count = _value(expr.args[0])
            bits = count * math.log2(count + 2)
        case sympy.binomial():
            above, below = map(_value, expr.args)
            bits = min(above, 2 * below * math.log2(above + 2))
            if sympy.Integer(0) not in expr.args and above > _BITS and below > 100:
                raise Refused
        case sympy.Sum() | sympy.Product():
            terms = sum(_value(end) for limits in expr.args[1:] for end in limits.args[1:])
            bits = size(expr.args[0]) * (terms if isinstance(expr, sympy.Product) else 1)
            if terms > _TERMS:
                raise Refused
        case sympy.Mul():
            bits = sum(map(size, expr.args))
        case sympy.Add():
            bits = max(map(size, expr.args)) + math.log2(len(expr.args))
        case _:
            bits = max((size(arg) for arg in expr.args), default=3.0)
    if bits > _BITS:
        raise Refused
    return bits


def _value(expr: Any) -> float:
    """Return the largest possible absolute value."""
    bits = size(expr)
    if bits > 40:
        raise Refused
    return abs(float(expr)) if isinstance(expr, sympy.Rational) and expr.q else 2.0**bits
