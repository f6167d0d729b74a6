"""Write numbers and lists as text."""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

import math
from collections.abc import Iterable, Sequence

import numpy as np

MIN_SEEDS = 3  # fewer have no standard deviation worth printing


def join(words: Iterable[object]) -> str:
    """Write `a, b and c`."""
    *most, last = [str(word) for word in words]
    return f"{', '.join(most)} and {last}" if most else last


def show(value: float, digits: int, sign: str = "") -> str:
    """Write a value as 12.0, "–" if undefined, or "not reached". A difference to what was not reached is a limit."""
    if math.isinf(value):
        return (">\xa00" if value > 0 else "<\xa00") if sign else "not reached"
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}".replace("-", "−")


def three_digits(value: float) -> str:
    """Write a number with about three digits.

    >>> [three_digits(x) for x in (0.0005, 0.0123, 1.5, 71.23, 999.7, 1234.4)]
    ['5.0e-04', '0.012', '1.50', '71.2', '999.7', '1,234']
    """
    size = abs(value)
    if not math.isfinite(value):
        return "–"
    if size >= 1000 or 0 < size < 0.001:
        return f"{value:,.0f}" if 1000 <= size < 1e7 else f"{value:.1e}"
    return f"{value:.{2 if size >= 1 or not size else 3}f}" if size < 10 else f"{value:.1f}"


def summarize(values: Sequence[float], digits: int, sign: str = "", noun: str = "") -> str:
    """Write mean ± standard deviation over seeds. It is the median if a seed did not reach it, which has no mean."""
    defined = np.array([value for value in values if not math.isnan(value)])
    if not len(defined):
        return "–"
    infinite = defined[np.isinf(defined)]
    if len(infinite):
        middle = float(np.median(defined)) if len({*infinite}) == 1 else math.nan
        text = f"{'median ' * math.isfinite(middle)}{show(middle, digits, sign)}"
        text += f" ({len(infinite)} of {len(defined)} {noun}not reached)"
    else:
        text = show(float(defined.mean()), digits, sign)
        text += f" ± {defined.std(ddof=1):.{digits}f}" if len(defined) >= MIN_SEEDS else ""
    return text if len(defined) == len(values) else f"{text} (defined in {len(defined)} of {len(values)})"


def points(value: float, sign: str = "", digits: int = 1) -> str:
    """Write a share in points: 0.2345 -> 23.5 (with `sign` "+": +23.5)."""
    return f"{100 * value:{sign}.{digits}f}"


def percent(share: float) -> str:
    """Write a share with three digits that count: 0.02345 -> 2.35 %."""
    return "–" if math.isnan(share) else f"{100 * share:.3g} %"
