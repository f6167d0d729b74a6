"""Compare answers by math-verify in processes with limits of time and memory."""

from __future__ import annotations

import functools
import importlib.util
import os
import threading

from ...errors import UserError
from .pool import Pool

# Processor time of one comparison. Nearly all take less than 0.1 s.
SECONDS = 1.0
# Every worker knows what these teach: modules that sympy loads late, and the parser's tables. And where such a simple
# one is judged wrongly, math-verify or sympy is not what it should be, and no answer can be graded.
WARM_UP = [
    (["7", "7"], [True, "7"]),
    (["x+1", "1+x"], [True, "x + 1"]),
    (["\\sqrt{3}", "2\\sqrt{3}"], [False, "2*sqrt(3)"]),
    (["\\frac{1}{2}", "\\frac{\\pi}{3}"], [False, "pi/3"]),
    (["\\{1,2\\}", "\\{2,1\\}"], [True, "{1, 2}"]),
    (["[0,1)", "[0,1)"], [True, "Interval.Ropen(0, 1)"]),
    (["x^2+3x", "x^2+3x"], [True, "x**2 + 3*x"]),
    (["\\log_2 3", "\\sin x"], [False, "sin(x)"]),
]
_LOCK = threading.Lock()
_POOL: Pool | None = None


def pool() -> Pool:
    """Return the pool of this process, made on the first call."""
    global _POOL
    with _LOCK:
        if _POOL is None:
            _POOL = Pool("bandpo.rewards.equivalence:compare", seconds=SECONDS, warm_up=WARM_UP)
        return _POOL


def forget_pool() -> None:
    """Forget the pool in a forked process. The workers and their threads are the parent's."""
    global _POOL, _LOCK
    _POOL, _LOCK = None, threading.Lock()


os.register_at_fork(after_in_child=forget_pool)


@functools.cache
def check_math_verify() -> None:
    """Raise UserError where math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("scorer 'math' needs math-verify: pip install 'bandpo[math]'")
