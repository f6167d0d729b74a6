"""The error budget of the band operator: errors of log r and of log(1 - q) over all float32 log-probabilities.

    python -m research.measurements.numerics [--divergence kl ...] [--dtype float32] [--mode eager compiled] [--write]
    python -m research.measurements.numerics --check [--write]    the reference itself against mpmath
    python -m research.measurements.numerics --page    the tables of research/pages/numerics.md from the rows

For each divergence, radius and mode: 2^16 log-probabilities in each of the 255 float32 exponents (`--mantissas`), 2^4
in each float64 exponent, and the special points. `--write` replaces those rows of numerics.csv that were
measured again, after each divergence, so a run that was stopped can go on with the divergences that are left.

The reference is solved in numpy, in float64 for float32 bounds and in 80-bit floats for float64 bounds and near
saturation, by Newton's method on the definition of g_f in the tilt t of the coin. The start may come from the bounds
that are measured; the root does not depend on it, and where Newton's method does not settle, bisection takes its place.
"""

import argparse
import itertools
import math
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import bandpo
from bandpo.numerics import LOG_P_MAX, log1mexp
from bandpo_runs.provenance import hardware, source_commit
from research.csv_rows import as_table, read_rows, replace_rows

Array = NDArray[Any]
# A power divergence, by its generator as the reference below has it.
POWER = bandpo.band.Divergence(
    "cressie_read(0.5)",
    lambda u: (u.sqrt() - 1) ** 2 * (u.sqrt() + 0.5) / 0.75,
    log_f=lambda x: torch.expm1(x / 2) ** 2 * (torch.exp(x / 2) + 0.5) / 0.75,
)
DIVERGENCES = ("kl", "tv", "chi2", "neyman_chi2", "hellinger", "reverse_kl", "jensen_shannon", "cressie_read(0.5)")
DTYPES = ("float32", "float64")
RADII = (1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.3, 1.0, 10.0, 1e3)
HERE = Path(__file__).resolve().parent
ROWS, PAGE = HERE / "numerics.csv", HERE.parent / "pages" / "numerics.md"
# Below this log p the reference is the limit p -> 0, which is then exact to e^-300.
DEEP = -600.0
# Below it the operator does not solve but continues by the limit; errors there are a column of their own.
SOLVED_FROM = -300.0
# In float64, at and above p = 1 - e^-300 the operator takes all others together for e^-300.
LEAST = {"float32": 0.0, "float64": math.exp(-300)}

# ---- the reference


def _kl(x: Array) -> Array:
    """e^x - 1 - x."""
    near = np.clip(x, -0.5, 0.5)
    series = np.ones_like(near)
    for n in range(14 if x.dtype == np.float64 else 18, 2, -1):
        series *= near
        series /= n
        series += 1
    series *= near * near / 2
    return np.where(abs(x) < 0.5, series, np.expm1(x) - x)


def _jensen_shannon(x: Array) -> Array:
    """(1 + u) / 4 (x w + log(1 - w^2)) with w = tanh(x / 2), the terms of which do not cancel."""
    far, w = abs(x), np.tanh(x / 2)
    tail = 2 * np.log(x.dtype.type(2)) - 2 * np.log1p(np.exp(-far)) - 2 * far / (np.exp(far) + 1)
    return (1 + np.exp(x)) / 4 * np.where(far < 1, x * w + np.log1p(-w * w), tail)


class Generator(NamedTuple):
    """f as a function of x = log u, with f(1) = f'(1) = 0; its derivative by x; f(0)."""

    f: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    at_zero: float


GENERATORS = {
    "kl": Generator(_kl, np.expm1, math.inf),
    "tv": Generator(lambda x: abs(np.expm1(x)) / 2, lambda x: np.copysign(np.exp(x), x) / 2, 0.5),
    "chi2": Generator(lambda x: np.expm1(x) ** 2, lambda x: 2 * np.exp(x) * np.expm1(x), 1.0),
    "neyman_chi2": Generator(lambda x: 4 * np.sinh(x / 2) ** 2, lambda x: 2 * np.sinh(x), math.inf),
    "hellinger": Generator(lambda x: np.expm1(x / 2) ** 2 / 2, lambda x: np.expm1(x / 2) * np.exp(x / 2) / 2, 0.5),
    "reverse_kl": Generator(lambda x: np.exp(x) * _kl(-x), lambda x: x * np.exp(x), 1.0),
    "jensen_shannon": Generator(_jensen_shannon, lambda x: np.exp(x) * (np.log1p(np.tanh(x / 2))) / 2, math.log(2) / 2),
    "cressie_read(0.5)": Generator(
        lambda x: np.expm1(x / 2) ** 2 * (np.exp(x / 2) + 0.5) / 0.75,
        lambda x: 2 * np.exp(x) * np.expm1(x / 2),
        2 / 3,
    ),
}


class Side(NamedTuple):
    """One bound of many tokens."""

    log_ratio: Array  # log r
    log_others: Array  # log c
    tilt: Array  # log r - log c
    by_log_p: Array  # d log r / d log p
    by_delta: Array
    others_by_log_n: Array  # d log c / d log(1 - p)
    others_by_delta: Array
    off_edge: Array  # |g at saturation / delta - 1|


class Coin(NamedTuple):
    """The two sides of a coin, each exact: the side that wins and the side that loses."""

    m: Array
    log_m: Array
    n: Array
    log_n: Array

    def ratios(self, t: Array) -> tuple[Array, Array]:
        """Log-ratios of both after a tilt t > 0."""
        grown = self.m * np.expm1(np.minimum(t, 700))
        loses = -np.where(t < 700, np.log1p(grown), self.log_m + t)
        common = -np.log1p(self.n * np.expm1(-t))
        rare = np.where(t > 1, -np.log(self.m + self.n * np.exp(-t)), t + loses)
        return np.where(self.m < 0.5, rare, common), loses


def coin(log_p: Array) -> Coin:
    p, rest = np.exp(log_p), -np.expm1(log_p)
    with np.errstate(divide="ignore"):
        return Coin(p, log_p, rest, np.where(log_p > -0.7, np.log(rest), np.log1p(-p)))


def reference(name: str, log_p: Array, delta: float, high: bool, start: Array) -> Side:
    """One bound in the precision of log_p (numpy's float64 or longdouble), for -600 <= log p < 0.

    Args:
        name: the divergence.
        log_p: log-probabilities.
        delta: the radius.
        high: the upper bound, else the lower one.
        start: a guess of log r - log c, of either sign; may be anything.
    """
    c = coin(log_p)
    c = c if high else Coin(c.n, c.log_n, c.m, c.log_m)
    f, slope, at_zero = GENERATORS[name]
    radius = log_p.dtype.type(delta)
    zero = log_p.dtype.type(at_zero) if name != "jensen_shannon" else np.log(log_p.dtype.type(2)) / 2
    zero = zero if name != "cressie_read(0.5)" else log_p.dtype.type(2) / 3
    with np.errstate(all="ignore"):
        most = c.m * f(-c.log_m) + c.n * zero
        saturated = most <= radius

        def level(t: Array, c: Coin) -> tuple[Array, Array, Array, Array]:
            wins, loses = c.ratios(t)
            return wins, loses, c.m * f(wins) + c.n * f(loses), np.exp(c.log_m + wins)

        def newton(t: Array, c: Coin, steps: int) -> tuple[Array, Array]:
            move = t
            for _ in range(steps):
                wins, loses, g, q = level(t, c)
                by_t = c.m * slope(wins) * c.n * np.exp(loses) - c.n * slope(loses) * q
                move = np.log(g / radius) * g / (by_t * t)  # of log t
                t = t * np.exp(-np.clip(move, -3, 3))
            return t, ~(abs(move) < (1e-7 if t.dtype == np.float64 else 1e-10))

        t = np.where(np.isfinite(start) & (start != 0), abs(start), 1.0).astype(log_p.dtype)
        t, unsettled = newton(t, c, 2)
        unsettled &= ~saturated
        if name == "kl" and unsettled.any():
            part = Coin(*(x[unsettled] for x in c))
            t[unsettled], unsettled[unsettled] = newton(_start_of_kl(part, radius), part, 7)
        if unsettled.any():
            part = Coin(*(x[unsettled] for x in c))
            low, top = np.full_like(part.m, -75), np.full_like(part.m, 709)
            for _ in range(75):
                middle = (low + top) / 2
                inside = level(np.exp(middle), part)[2] <= radius
                low, top = np.where(inside, middle, low), np.where(inside, top, middle)
            t[unsettled] = np.exp(low)
        wins, loses = c.ratios(t)
        wins, loses = np.where(saturated, -c.log_m, wins), np.where(saturated, -np.inf, loses)
        log_r, log_c = (wins, loses) if high else (loses, wins)
        wins_by, loses_by = _slopes(name, wins, loses, c.m, saturated), _slopes(name, loses, wins, c.n, saturated)
        wins_by[0][saturated], loses_by[0][saturated] = -1, 0
        own, others = (wins_by, loses_by) if high else (loses_by, wins_by)
        side = Side(log_r, log_c, t if high else -t, *own, *others, abs(most / radius - 1))
    # Near saturation g is nearly flat, and needs more digits.
    near = side.off_edge < 1e-4
    if log_p.dtype == np.float64 and near.any():
        again = reference(name, log_p[near].astype(np.longdouble), delta, high, side.tilt[near])
        for all_of, better in zip(side, again, strict=True):
            all_of[near] = better.astype(np.float64)
    return side


def _slopes(name: str, own: Array, others: Array, mass: Array, saturated: Array) -> tuple[Array, Array]:
    """(d log r / d log p, d log r / d delta) of one side of a coin, by the implicit function theorem.

    With q = r p, dg/dq = f'(r) - f'(c) and dg/dp = h(r) - h(c), where h(u) = f(u) - u f'(u).
    """
    f, slope, _ = GENERATORS[name]
    pull = slope(own) - np.exp(own - others) * slope(others)
    by_log_p = -(f(own) - slope(own) - f(others) + slope(others)) / pull - 1
    return np.where(saturated, 0, by_log_p), np.where(saturated, 0, 1 / (mass * pull))


def _start_of_kl(c: Coin, delta: Any) -> Array:
    """For upper bounds next to 1 / p, which say nothing of 1 - q: K's parabola, exponential or asymptote."""
    parabola = np.sqrt(2 * delta / (c.m * c.n))
    grown = np.logaddexp(0.0, delta + np.log(-np.expm1(-delta)) - c.log_m).astype(c.m.dtype)
    rare = np.maximum(grown, np.minimum(parabola, (delta - c.log_m) / c.n))
    return np.where(c.m < 0.5, rare, np.maximum(parabola, delta / c.n))


def deep_reference(name: str, log_p: Array, delta: float) -> tuple[Array, Array, Array]:
    """(log_low, log_high, log(1 - q_high)) for p -> 0: of log q what is left when p counts nothing against 1."""
    number = log_p.dtype.type
    d = number(delta)
    low = np.full_like(log_p, -np.inf)
    if name in ("kl", "tv", "hellinger", "neyman_chi2", "jensen_shannon"):
        with np.errstate(all="ignore"):
            q = {
                "kl": lambda: -np.expm1(-d),
                "tv": lambda: min(d, number(1)),
                "hellinger": lambda: d * (2 - d) if d < 1 else number(1),
                "neyman_chi2": lambda: d / (1 + d),
                "jensen_shannon": lambda: _jensen_shannon_from_nothing(d),
            }[name]()
            log_rest = -d if name == "kl" else -np.log1p(d) if name == "neyman_chi2" else np.log1p(-q)
            log_q = np.log(-np.expm1(-d)) if name == "kl" else np.log(q)
        if name == "neyman_chi2":
            low = log_p - np.log(d)
        return low, log_q - log_p, np.full_like(log_p, log_rest)
    if name == "reverse_kl":  # q (log q - log p) + (1 - q) log(1 - q) = delta, for q << 1 nearly q (-log p) = delta
        x = np.log(d / -log_p)
        for _ in range(60):
            q = np.exp(x)
            others = np.where(q < 1, (1 - q) * np.log1p(-np.minimum(q, 1 - 1e-9)), 0)
            gap = q * (x - log_p) + others - d
            x = np.minimum(x - gap / (q * (x - log_p - np.log1p(-np.minimum(q, 1 - 1e-9)))), -1e-12)
        x = np.where(-log_p <= d, 0, x)
        with np.errstate(divide="ignore"):
            return low, x - log_p, np.log(-np.expm1(x))
    # All is in the term of r: q^2 / p = delta, and q^1.5 / p^0.5 = 0.75 delta.
    log_q = (np.log(d) + log_p) / 2 if name == "chi2" else (np.log(d * number(0.75)) + log_p / 2) / number(1.5)
    with np.errstate(divide="ignore"):
        return low, np.where(log_q < 0, log_q - log_p, -log_p), np.where(log_q < 0, np.log1p(-np.exp(log_q)), -np.inf)


def _jensen_shannon_from_nothing(d: Any) -> Any:
    """q with JS((0, 1), (q, 1 - q)) = (q log 2 + (1 - q) log(1 - q) - (2 - q) log(1 - q / 2)) / 2 = d."""
    if d >= np.log(type(d)(2)):
        return type(d)(1)
    low, high = type(d)(0), type(d)(1)
    for _ in range(90):
        q = (low + high) / 2
        v = (1 - q) * np.log1p(-q) - (2 - q) * np.log1p(-q / 2) + q * np.log(type(d)(2))
        low, high = (q, high) if v / 2 <= d else (low, q)
    return low


class Truth(NamedTuple):
    low: Side
    high: Side
    log_rest: Array  # log(1 - q) at the upper bound


def truth(name: str, log_p: Array, delta: float, low: Array, high: Array, others: Array) -> Truth:
    """Both bounds of every log p < 0, from starts: log_low, log_high and, for p > 1/2, log c of the upper bound."""
    deep = log_p < DEEP
    near = np.where(deep, -1.0, log_p).astype(log_p.dtype)
    with np.errstate(all="ignore"):
        c = coin(near)
        down = low - np.log1p(-c.m * np.expm1(low) / c.n)
        rises = high - np.log1p(-c.m * np.expm1(high) / c.n)
        up = np.where(near > -0.7, np.log1p(-c.n * np.expm1(others) / c.m) - others, rises)
    below, above = reference(name, near, delta, False, down), reference(name, near, delta, True, up)
    with np.errstate(invalid="ignore"):
        log_rest = c.log_n + above.log_others
    if deep.any():
        for side, value in zip(
            (below.log_ratio, above.log_ratio, log_rest), deep_reference(name, log_p[deep], delta), strict=True
        ):
            side[deep] = value
        above.log_others[deep] = log_rest[deep]
        for side in (below, above):  # no allowance for the inputs here: the bound is half an ulp of the result
            side.by_log_p[deep] = side.by_delta[deep] = 0
            side.off_edge[deep] = 1
    return Truth(below, above, log_rest)


# ---- the log-probabilities


def single(mantissas: int = 2**16, seed: int = 0, exponents: range = range(255)) -> Iterator[Array]:
    """Negative float32 log-probabilities, an exponent at a time: one in each of so many equal parts of its mantissas.

    Exponent 0 holds the subnormal numbers, whose own binades are treated alike.
    """
    rng = np.random.default_rng(seed)

    def parts(width: int) -> Array:
        count = min(mantissas, width)
        return np.arange(count) * (width // count) + rng.integers(0, width // count, count)

    for exponent in exponents:
        bits = parts(2**23) + (exponent << 23)
        if exponent == 0:
            bits = np.concatenate([2**k + parts(2**k) for k in range(23)])
        yield (bits + 2**31).astype(np.uint32).view(np.float32)


def double(mantissas: int = 2**4, seed: int = 0) -> Iterator[Array]:
    """Negative float64 log-probabilities of every exponent from e^-300 to 1e300."""
    rng = np.random.default_rng(seed)
    exponents = np.arange(-432, 996)
    yield -np.ldexp(1 + rng.random((exponents.size, mantissas)), exponents[:, None]).ravel()


def special(name: str, delta: float, dtype: Any) -> Array:
    """Up to 1000 ulp to each side of every point at which something changes."""
    at = [-math.log(2), -0.5, -1.0, -300.0, -88.72284, -103.97, -744.44, -1e-6, -1e-7, -1.0 / 2**24, -1e-20, -1e30]
    at += [DEEP, *_saturation(name, delta)]
    ulps = np.array([0, *(s * k for k in (1, 2, 5, 10, 100, 1000) for s in (-1, 1))])
    kind = np.dtype(dtype)
    bits = np.array([x for x in at if x < 0], dtype).view(f"i{kind.itemsize}")
    most = max(float(np.finfo(dtype).min), -1e300)
    limits = [most, *(-k * np.finfo(dtype).smallest_subnormal for k in (1, 2, 3))]
    return np.concatenate([(bits[:, None] + ulps).ravel().view(dtype), np.array(limits, dtype)])


def _saturation(name: str, delta: float) -> tuple[float, ...]:
    """log p where the lower bound becomes 0, and where the upper one becomes 1 / p."""
    f, _, zero = GENERATORS[name]
    if math.isinf(zero):
        return ()
    low, high = np.longdouble(-700), np.longdouble(-1e-30)
    for _ in range(120):
        x = (low + high) / 2
        rest = -np.expm1(x)
        with np.errstate(all="ignore"):
            g = np.exp(x) * np.longdouble(zero) + rest * f(-np.log1p(-np.exp(x)).reshape(1))[0]
        low, high = (x, high) if g <= delta else (low, x)
    return (float(low), float(np.log1p(-np.exp(low)))) if -699 < low < -1e-29 else ()


# ---- the measurement


Bounds = Callable[[torch.Tensor, float], bandpo.Bounds]


def operator(name: str, mode: str) -> Bounds:
    """band_bounds with the radius as a number (eager), as a tensor (tensor), in a compiled graph, or on a GPU."""

    def tensor(delta: float) -> torch.Tensor:
        return torch.tensor(delta, dtype=torch.float64)

    def on_gpu(x: torch.Tensor, delta: float) -> bandpo.Bounds:
        both = bandpo.band_bounds(x.cuda(), name, delta)
        return bandpo.Bounds(both.log_low.cpu(), both.log_high.cpu())

    if mode == "compiled":
        graph = torch.compile(lambda x, delta: bandpo.band_bounds(x, name, delta), fullgraph=True, dynamic=True)
        return lambda x, delta: graph(x, tensor(delta))
    return {
        "eager": lambda x, delta: bandpo.band_bounds(x, name, delta),
        "tensor": lambda x, delta: bandpo.band_bounds(x, name, tensor(delta)),
        "cuda": on_gpu,
    }[mode]


class Worst:
    """The largest of many numbers and the log p of it."""

    def __init__(self) -> None:
        self.value, self.at = 0.0, math.nan

    def add(self, values: Array, log_p: Array) -> None:
        if not values.size:
            return
        i = int(np.argmax(np.where(np.isnan(values), np.inf, values)))
        value = float(values[i])
        if not value <= self.value:
            self.value, self.at = (math.inf if math.isnan(value) else value), float(log_p[i])


class Budget:
    """Largest errors of one divergence, radius, precision and mode."""

    def __init__(self) -> None:
        self.tokens = 0
        names = ("low_bound", "high_bound", "deep_bound", "rest_bound", "gap_bound")
        self.worst = {name: Worst() for name in names}
        self.blind = 0.0  # the largest 1 - p at which log r no longer says what 1 - q is

    def add(self, log_p: Array, got: "Got", exact: Truth, dtype: Any, delta: float) -> None:
        wide = exact.high.log_ratio.dtype
        x = log_p.astype(wide)
        self.tokens += log_p.size
        radius = np.spacing(delta) / 2
        bounds: list[Array] = []
        for part, value, side in (("low", got.log_low, exact.low), ("high", got.log_high, exact.high)):
            unit = ulp(side.log_ratio, dtype)
            error = difference(value, side, dtype)
            bound = unit / 2 + abs(side.by_log_p) * ulp(x, dtype) / 2 + abs(side.by_delta) * radius
            deep = log_p < SOLVED_FROM
            self.worst[f"{part}_bound"].add((error / bound)[~deep], log_p[~deep])
            self.worst["deep_bound"].add((error / bound)[deep], log_p[deep])
            bounds.append(bound)
        common = log_p > -math.log(2)
        if common.any():
            self.add_rest(log_p[common], x[common], got.of(common), exact, common, bounds[1][common], dtype, delta)

    def add_rest(
        self, log_p: Array, x: Array, got: "Got", exact: Truth, common: Array, bound: Array, dtype: Any, delta: float
    ) -> None:
        """log(1 - q) for p > 1/2: from the lower bound of the others, and from log r, as 1 - r p."""
        side, n = Side(*(y[common] for y in exact.high)), -np.expm1(x)
        others, log_n, radius = side.log_others, np.log(n), np.spacing(delta) / 2
        with np.errstate(all="ignore"):
            unit = ulp(others, dtype)
            rest_bound = (
                unit / 2 + abs(side.others_by_log_n) * ulp(log_n, dtype) / 2 + abs(side.others_by_delta) * radius
            )
            # The bound may saturate for p, but not for the rounded 1 - p, or the other way round.
            edge = np.isinf(others) | np.isinf(got.others)
            error = np.where(edge, 0, abs(got.others.astype(x.dtype) - others))
            self.worst["rest_bound"].add(error / rest_bound, log_p)
            both = np.isinf(others) & np.isinf(got.others_from_r)
            gap = np.where(both, 0, abs(got.others_from_r.astype(x.dtype) - others))
            upper = x + side.log_ratio + bound
            lost = (upper >= 0) | np.isinf(others)
            swing = np.maximum(
                np.log(-np.expm1(upper - 2 * bound)) - log_n - others, others - np.log(-np.expm1(upper)) + log_n
            )
            swing = swing + (unit + ulp(log_n + others, dtype)) / 2
        self.worst["gap_bound"].add(np.where(lost, 0, gap / swing), log_p)
        if (lost & ~np.isinf(others)).any():
            self.blind = max(self.blind, float(n[lost & ~np.isinf(others)].max()))

    def row(self) -> dict[str, Any]:
        out: dict[str, Any] = {"tokens": self.tokens}
        for name, worst in self.worst.items():
            out[name] = f"{worst.value:.4g}"
            out[f"{name}_at"] = repr(worst.at) if worst.value else ""
        return {**out, "blind_below": f"{self.blind:.2g}"}


class Got(NamedTuple):
    """What the library returned: both bounds, and log c of the upper one in two ways."""

    log_low: Array
    log_high: Array
    others: Array  # as the lower bound of all other tokens
    others_from_r: Array  # of log_high

    def of(self, index: Array) -> "Got":
        return Got(*(x[index] for x in self))


def ulp(x: Array, dtype: Any) -> Array:
    """The distance of neighbouring floats of that type at x, in the type of x."""
    finite = np.where(np.isfinite(x), x, 1)
    with np.errstate(over="ignore"):
        size = np.minimum(abs(finite).astype(dtype), np.nextafter(np.finfo(dtype).max, dtype(0)))
    return np.spacing(size).astype(x.dtype)


def difference(value: Array, side: Side, dtype: Any) -> Array:
    """|got - exact|; 0 where both are beyond what the type holds, or where p is within a rounding of saturation."""
    exact = side.log_ratio
    with np.errstate(all="ignore"):
        error = abs(value.astype(exact.dtype) - exact)
        # Below e^-300 a lower bound of KL only stays below -1e100: r = 0 in any float.
        least = -np.finfo(dtype).max
        beyond = (value < least) & (exact < least) | (value < -1e100) & (exact < -1e100)
        edge = (np.isinf(value) != np.isinf(exact)) & (side.off_edge < 1e-15)
    return np.where(beyond | edge, 0, error)


def bounds_of(name: str, log_p: Array, delta: float, bounds: Bounds) -> Got:
    x = torch.from_numpy(log_p)
    both = bounds(x, delta)
    # For p > 1/2 the token and all others change places; elsewhere p stands in, so that one shape is compiled.
    common = log_p > -math.log(2)
    with np.errstate(divide="ignore"):
        wide = log_p.astype(np.longdouble if log_p.dtype == np.float64 else np.float64)
        others = np.where(common, np.log(-np.expm1(wide)), -1).astype(log_p.dtype)
    log_c = bounds(torch.from_numpy(others), delta).log_low if common.any() else x
    gap, at = x, x.double().clamp(max=LOG_P_MAX)
    if common.any():
        gap = (log1mexp(both.log_high.double() + at) - log1mexp(at)).to(both.log_high.dtype)
    return Got(both.log_low.numpy(), both.log_high.numpy(), log_c.numpy(), gap.numpy())


def sweep(
    name: str, delta: float, dtype: Any, modes: dict[str, Bounds], parts: Iterable[Array]
) -> dict[str, dict[str, Any]]:
    """The budget of each mode over these log-probabilities."""
    budgets = {mode: Budget() for mode in modes}
    for log_p in parts:
        log_p = log_p[log_p <= -LEAST[np.dtype(dtype).name]]
        exact = None
        for mode, bounds in modes.items():
            got = bounds_of(name, log_p, delta, bounds)
            if exact is None:
                wide = np.longdouble if dtype == np.float64 else np.float64
                exact = truth(name, log_p.astype(wide), delta, *(y.astype(wide) for y in got[:3]))
            budgets[mode].add(log_p, got, exact, dtype, delta)
    return {mode: budget.row() for mode, budget in budgets.items()}


# ---- the reference itself against mpmath


def check(name: str, dtype: Any, count: int, radii: Sequence[float] = RADII, seed: int = 0) -> dict[str, Any]:
    """The budget of the reference for this dtype: so many random log-probabilities and all special ones, by mpmath."""
    sys.path.insert(0, str(HERE.parents[1] / "tests"))
    from oracle import GENERATORS as DEFINITIONS  # pyright: ignore[reportMissingImports]
    from oracle import power  # pyright: ignore[reportMissingImports]

    f = DEFINITIONS[name] if name in DEFINITIONS else power(float(name[13:-1]))
    rng, budget = np.random.default_rng(seed), Budget()
    for delta in radii:
        if dtype == np.float32:
            some = (rng.integers(1, 0x7F800000, count // len(radii)) + 2**31).astype(np.uint32).view(np.float32)
        else:
            some = -np.ldexp(rng.random(count // len(radii)) + 1, rng.integers(-432, 996, count // len(radii)))
        log_p = np.concatenate([special(name, delta, dtype), some])
        log_p = log_p[log_p <= -LEAST[np.dtype(dtype).name]]
        wide = np.longdouble if dtype == np.float64 else np.float64
        got = bounds_of(name, log_p, delta, operator(name, "eager"))
        own = truth(name, log_p.astype(wide), delta, *(y.astype(wide) for y in got[:3]))
        low, high = (Side(*(x.astype(np.longdouble) for x in side)) for side in (own.low, own.high))
        for i, x in enumerate(log_p.tolist()):
            down, up = float(own.low.tilt[i]), float(own.high.tilt[i])
            if x < DEEP:
                down, up = float(own.low.log_ratio[i]), float(own.high.log_ratio[i])
            log_rest = float(own.log_rest[i]) if x < DEEP else 0.0
            low.log_ratio[i] = _solved(f, x, delta, down, False)[0]
            high.log_ratio[i], high.log_others[i] = _solved(f, x, delta, up, True, log_rest)
        c = coin(log_p.astype(np.longdouble))
        exact = Truth(low, high, c.log_n + high.log_others)
        others = own.high.log_others
        budget.add(log_p, Got(own.low.log_ratio, own.high.log_ratio, others, others), exact, dtype, delta)
    return budget.row()


def _solved(
    f: Callable[[Any], Any], log_p: float, delta: float, tilt: float, high: bool, log_rest: float = 0
) -> tuple[Any, Any]:
    """(log r, log c) of one bound by the definition of g at 250 digits, by the secant method from a tilt nearby.

    Where log p is so large that floats near it say nothing of q, a log(1 - q) that is not 0 gives the start.
    """
    from mpmath import mp, mpf

    def rounded(x: Any) -> Any:
        head = float(x) if abs(x) < mpf(2) ** 1024 or mp.isinf(x) else math.copysign(math.inf, x)
        return np.longdouble(head) + np.longdouble(float(x - head) if math.isfinite(head) else 0)

    # More where log p is huge, or 1 - p so small that the tilt is.
    with mp.workdps(250 + int(math.log10(1 - log_p)) + 350 * (log_p > -1e-40)):
        a, radius = mpf(log_p), mpf(delta)
        p, n = mp.exp(a), -mp.expm1(a)
        most = p * f(1 / p) + n * f(mpf(0)) if high else p * f(mpf(0)) + n * f(1 / n)
        saturated = most <= radius * (1 + mpf(10) ** -200)
        if high and saturated:
            return rounded(-a), np.longdouble(-np.inf)
        if saturated or not math.isfinite(tilt):  # or beyond float64, and so is log r
            return np.longdouble(-np.inf), np.longdouble(0)

        def gap(t: Any) -> Any:
            z = p * mp.exp(t) + n
            return mp.log((p * f(mp.exp(t) / z) + n * f(1 / z)) / radius)

        # Near the start log(1 - q) is a small number or log q is.
        t = mpf(tilt)
        if log_rest and math.isfinite(log_rest):
            t = mp.log(mp.expm1(-mpf(log_rest))) - a + mp.log(n)
        for _ in range(12):
            here = gap(t)
            step = here * t * mpf(10) ** -60 / (gap(t * (1 + mpf(10) ** -60)) - here)
            t -= step
            if abs(step) < mpf(10) ** -25 * abs(t):
                log_z = mp.log(p * mp.exp(t) + n)
                return rounded(t - log_z), rounded(-log_z)
    raise AssertionError(f"no root near a tilt of {tilt} at log p = {log_p!r}, delta = {delta}")


# ---- rows and tables


def write(rows: list[dict[str, Any]]) -> None:
    """Put rows into the file in the place of those of the same divergence, dtype, mode and radius."""
    order = {name: i for i, name in enumerate(DIVERGENCES)}
    replace_rows(
        ROWS, rows, ("divergence", "dtype", "mode", "delta"),
        order=lambda row: (row["mode"], row["dtype"], order[row["divergence"]], float(row["delta"] or 0)),
    )  # fmt: skip


def tables() -> dict[str, str]:
    """The tables of the page by name."""
    rows = read_rows(ROWS)

    def worst(row: dict[str, Any]) -> float:
        return max(float(row["low_bound"]), float(row["high_bound"]))

    out: dict[str, str] = {}
    errors = []
    for name in DIVERGENCES:
        modes = {dtype: [row for row in rows if (row["dtype"], row["divergence"]) == (dtype, name)] for dtype in DTYPES}
        eager = {dtype: [row for row in rows if row["mode"] == "eager"] for dtype, rows in modes.items()}
        cells = [
            f"{max(worst(row) for row in of_dtype if row['mode'] != 'reference'):.2g}" for of_dtype in modes.values()
        ]
        cells += [f"{max(float(row['rest_bound']) for row in of_dtype):.2g}" for of_dtype in eager.values()]
        cells.append(next(row["blind_below"] for row in eager["float32"] if float(row["delta"]) == 0.05))
        errors.append([name, *cells])
    out["errors"] = as_table(
        ["divergence", *DTYPES, *(f"log(1 - q), {dtype}" for dtype in DTYPES), "blind below 1 - p ="], errors
    )
    lines = []
    for dtype in DTYPES:
        each = [row for row in rows if (row["mode"], row["dtype"]) == ("reference", dtype)]
        points = sum(int(row["tokens"]) for row in each)
        rest = max(float(row["rest_bound"]) for row in each)
        lines.append(f"- for {dtype} {max(map(worst, each)):.2g}, of log(1 - q) {rest:.2g} ({points:,} points)")
    out["reference"] = "\n".join(lines)
    return out


def page() -> None:
    """Put the tables between their marks in the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        mark = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = mark.sub(lambda m, table=table: f"{m[1]}{table}\n{m[2]}", text)
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    bandpo.band.register_divergence(POWER)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--divergence", nargs="+", choices=DIVERGENCES, default=DIVERGENCES)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES)
    modes = ["eager", "tensor", "compiled", "cuda"]
    parser.add_argument("--mode", nargs="+", choices=modes, default=["eager", "cuda"][: 1 + torch.cuda.is_available()])
    parser.add_argument("--delta", nargs="+", type=float, default=RADII)
    parser.add_argument("--mantissas", type=int, help="of each exponent: 2^16 in float32 and 2^4 in float64")
    parser.add_argument("--check", action="store_true", help="the reference against mpmath")
    parser.add_argument("--points", type=int, default=10_000, help="random points of --check")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    if args.page:
        return page()
    torch.set_num_threads(1)
    large = torch.ones(7_500_000)  # once it is freed, malloc keeps what is freed: see cost.py
    del large
    facts = {
        "hardware": hardware(gpu=False),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "commit": source_commit(),
    }
    for name in args.divergence:
        for dtype in (np.dtype(x).type for x in args.dtype):
            rows: list[dict[str, Any]] = []
            for mode, delta, mantissas, row, wall in _measure(args, name, dtype):
                head = {"divergence": name, "dtype": dtype.__name__, "mode": mode, "delta": delta}
                rows.append({**head, "mantissas": mantissas, **row, "wall_s": f"{wall:.1f}", **facts})
                errors = "  ".join(f"{k} {row[k]}" for k in row if k.endswith(("bound", "below")))
                print(f"{name} {dtype.__name__} {mode} {delta}: {errors}  ({wall:.1f} s)", flush=True)
            if args.write:
                write(rows)


def _measure(args: argparse.Namespace, name: str, dtype: Any) -> Iterator[tuple[str, Any, Any, dict[str, Any], float]]:
    """(mode, delta, mantissas, row, seconds) of every row that was asked for."""
    if args.check:
        began = time.perf_counter()
        yield "reference", "", "", check(name, dtype, args.points), time.perf_counter() - began
        return
    mantissas = args.mantissas or (2**16 if dtype == np.float32 else 2**4)
    operators = {mode: operator(name, mode) for mode in args.mode}
    for delta in args.delta:
        began = time.perf_counter()
        parts = single(mantissas) if dtype == np.float32 else double(mantissas)
        if mantissas < 2**12:  # an exponent alone is too few to be fast
            parts = iter(np.array_split(np.concatenate(list(parts)), max(1, mantissas * 255 // 2**16)))
        parts = itertools.chain([special(name, delta, dtype)], parts)
        for mode, row in sweep(name, delta, dtype, operators, parts).items():
            yield mode, delta, mantissas, row, time.perf_counter() - began


if __name__ == "__main__":
    main()
