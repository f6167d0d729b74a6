"""Writes research/pages/paper_table.md: what the paper's Table 1 (tab:main_results) can and cannot say, from its own digits.

    python research/pages/paper_table.py

research/pages/paper_table.csv holds the digits as printed. Everything on the page is computed from them here: on which grids the
cells lie, how large the error of a difference may be, and what is left of the sentences about the table.
research/tests/test_paper_table.py compares the committed page with a new one.
"""
# ruff: noqa: E501  (sentences)

import csv
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bandpo_runs.statistics.estimators import best_at_k_bootstrap, best_at_k_expected

HERE = Path(__file__).parent
DIGITS, PAGE = HERE / "paper_table.csv", HERE / "paper_table.md"
SAMPLES = 32
PROBLEMS = {"AMC2023": 40, "AIME2024": 30, "AIME2025": 30}
BAND, GRPO, HIGHER, RELAXED = "Band 0.05", "GRPO", "Clip-Higher", "Relaxed Band 0.05"
SHORT = {
    "DeepSeek-R1-Distill-Qwen-1.5B": "1.5B",
    "Qwen2.5-3B-Instruct": "3B",
    "DeepSeek-R1-Distill-Qwen-7B": "7B",
    "DeepSeek-R1-Distill-Llama-8B": "8B",
}


@dataclass(frozen=True)
class Cell:
    model: str
    method: str
    data: str
    mean: float
    best: float  # the column "pass@32"
    bold_mean: bool
    bold_best: bool

    @property
    def name(self) -> str:
        return f"{self.model} {self.method} {self.data}"


@cache
def cells() -> tuple[Cell, ...]:
    with DIGITS.open(encoding="utf-8") as file:
        return tuple(
            Cell(
                SHORT[r["model"]],
                r["method"],
                r["data"],
                float(r["mean"]),
                float(r["pass"]),
                r["bold_mean"] == "1",
                r["bold_pass"] == "1",
            )
            for r in csv.DictReader(file)
        )


def single() -> list[Cell]:
    """The cells that are no averages."""
    return [cell for cell in cells() if cell.data != "Average"]


def cell(model: str, method: str, data: str) -> Cell:
    return next(c for c in cells() if (c.model, c.method, c.data) == (model, method, data))


def models() -> list[str]:
    return list(dict.fromkeys(c.model for c in cells()))


def gaps(a: str, b: str, data: Iterable[str] = PROBLEMS, what: str = "mean") -> dict[str, float]:
    """Method a minus method b, by "model data", as printed: two decimals."""
    return {
        f"{m} {d}": round(getattr(cell(m, a, d), what) - getattr(cell(m, b, d), what), 2)
        for m in models()
        for d in data
    }


# ---- grids


def on_grid(value: float, count: int) -> bool:
    """Whether a value of two decimals can be 100 k / count, rounded; a tie may be rounded either way."""
    k = round(value * count / 100)
    return any(abs(value - 100 * i / count) <= 0.005 + 1e-9 for i in (k - 1, k, k + 1))


@cache
def chance_of_grid(count: int) -> float:
    """The share of all numbers 0.00 to 100.00 that lie on the grid."""
    return sum(on_grid(i / 100, count) for i in range(10_001)) / 10_001


def grid_of(c: Cell, runs: int = 1) -> int:
    return PROBLEMS[c.data] * SAMPLES * runs


def chance_of_so_many(counts: Sequence[float], hits: int) -> float:
    """P(at least `hits`) of independent events of these chances."""
    table = np.array([1.0])
    for p in counts:
        table = np.append(table * (1 - p), 0) + np.append(0, table * p)
    return float(table[hits:].sum())


def solved(c: Cell) -> tuple[int, int]:
    """How many problems had a right sample, at least and at most, if the cell is verl's best@32.

    A problem with one adds at most 1 and at least what the bootstrap gives for one right sample at the worst place;
    0.005 for the rounding.
    """
    least = float(best_at_k_bootstrap(np.eye(SAMPLES), SAMPLES).min())
    count = PROBLEMS[c.data]
    low, high = (c.best - 0.005) * count / 100, (c.best + 0.005) * count / 100
    right = round(c.mean * grid_of(c) / 100)
    return math.ceil(low - 1e-9), min(math.floor(high / least + 1e-9), count, right)


# ---- errors


def sampling_error(a: Cell, b: Cell) -> float:
    """Largest standard error of the difference from sampling alone, in points: all problems equally hard.

    The variance of a mean of independent samples with chances p_i is the mean of p_i (1 - p_i) over their number, and
    largest, at a given mean, when all are equal.
    """
    return 100 * math.sqrt(sum(x.mean / 100 * (1 - x.mean / 100) / grid_of(x) for x in (a, b)))


def population_error(a: Cell, b: Cell) -> float:
    """Largest standard error for other problems of the kind if A and B have nothing in common, in points: every problem
    always right or always wrong. What the two share makes it smaller; the table does not tell how much."""
    return 100 * math.sqrt(sum(x.mean / 100 * (1 - x.mean / 100) / PROBLEMS[x.data] for x in (a, b)))


# ---- the page


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|:--|{'--:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def signed(value: float) -> str:
    return f"{value:+.2f}"


def listed(items: dict[str, float]) -> str:
    return ", ".join(f"{name} {signed(value)}" for name, value in items.items())


def average_faults() -> list[str]:
    """Averages that are not the mean of their three cells, to the rounding of all four."""
    wrong = []
    for m in models():
        for method in dict.fromkeys(c.method for c in cells() if c.model == m):
            for what in ("mean", "best"):
                three = [getattr(cell(m, method, d), what) for d in PROBLEMS]
                printed = getattr(cell(m, method, "Average"), what)
                if abs(printed - sum(three) / 3) > 0.005 + 0.005 + 1e-9:
                    wrong.append(f"{m} {method} {what}: {printed} printed, {sum(three) / 3:.3f} computed")
    return wrong


def grids_text() -> str:
    means = single()
    off = [c for c in means if not on_grid(c.mean, grid_of(c))]
    chances = [chance_of_grid(grid_of(c)) for c in means]
    third = [chance_of_grid(grid_of(c)) / chance_of_grid(grid_of(c, 3)) for c in means]
    log_p, log_third = (math.log10(chance_of_so_many(x, len(means) - len(off))) for x in (chances, third))
    return (
        f"mean@32 of one run is k / 960 for 30 problems, k / 1280 for 40. **{len(means) - len(off)} of the {len(means)} "
        f"cells are such numbers.** Of all numbers with two decimals {100 * chance_of_grid(960):.1f}% and "
        f"{100 * chance_of_grid(1280):.1f}% are: by chance so many would be with probability $10^{{{log_p:.0f}}}$. Of means "
        f"over three runs one in {1 / np.mean(third):.1f} would be: $10^{{{log_third:.0f}}}$. "
        "So the numbers are those of one evaluation of one checkpoint."
    )


def pass_text() -> str:
    passes = single()
    on = [c for c in passes if on_grid(c.best, PROBLEMS[c.data])]
    three = [c for c in passes if on_grid(c.best, 3 * PROBLEMS[c.data])]
    full = [c for c in on if c.best == 95.0]
    one = [float(best_at_k_expected(SAMPLES, c, SAMPLES)) for c in (1, 2, 3, 8)]
    few = " and ".join(
        f"{'-'.join(map(str, solved(cell('3B', method, 'AIME2024'))))} under {method}" for method in (GRPO, BAND)
    )
    return (
        "From 32 samples the share of problems with a right one is k / 30 or k / 40. "
        f"**Only {len(on)} of the {len(passes)} cells are such numbers** ({len(full)} of them are 95.00), and {len(three)} "
        "could be means over three runs. They are what verl logs as best@32/mean, draws with replacement: a problem with 1, "
        f"2, 3 or 8 right samples of 32 counts {one[0]:.3f}, {one[1]:.3f}, {one[2]:.3f} or {one[3]:.3f}, not 1. If it is "
        f"that, 3B solved, of AIME2024's 30 problems, {few}."
    )


def errors_text() -> str:
    beyond, count, sure = {}, 0, 0
    for m in models():
        for d in PROBLEMS:
            band = cell(m, BAND, d)
            for other in (GRPO, HIGHER, RELAXED):
                base = cell(m, other, d)
                gap, half = band.mean - base.mean, 1.96 * sampling_error(band, base)
                count += 1
                sure += abs(gap) > 1.96 * population_error(band, base)
                if abs(gap) > half:
                    beyond.setdefault(other, []).append(f"{m} {d} {signed(gap)} ± {half:.2f}")
    lists = "; ".join(f"over {other} {', '.join(some)}" for other, some in beyond.items())
    return (
        "*Sampling*: the same checkpoints answer the same problems again. This error can be bounded from the digits. "
        f"*Problems*: other problems of the kind. That error is at most {math.sqrt(SAMPLES):.1f} times as large. Training "
        "runs add to both.\n\n"
        f"**{sum(map(len, beyond.values()))} of {count} differences of Band 0.05 in mean@32 are larger than sampling explains** (of {count} without any "
        f"difference up to {0.05 * count:.1f} would be), {sure} larger than problems may. With 1.96 of the largest standard "
        f"error: {lists}."
    )


@dataclass(frozen=True)
class Claim:
    """A sentence about the table, what the digits say, and the verdict."""

    text: str
    digits: Callable[[], str]
    verdict: str


HOLDS, PARTLY, OPEN = "holds", "holds in part", "cannot be told"


def sign_of_all() -> str:
    wins = [gap for other in (GRPO, HIGHER, RELAXED) for gap in gaps(BAND, other).values()]
    smallest = {name: gap for name, gap in gaps(BAND, HIGHER).items() if gap < 0.35}
    return (
        f"{sum(g > 0 for g in wins)} of {len(wins)} differences are above 0, the smallest over Clip-Higher by "
        f"{', '.join(str(round(g * grid_of(cell(*_place(n, HIGHER))) / 100)) for n, g in smallest.items())} samples."
    )


def _place(name: str, method: str) -> tuple[str, str, str]:
    model, data = name.split(" ")
    return model, method, data


def below(limit: float, a: str, b: str, what: str = "mean") -> dict[str, float]:
    return {name: gap for name, gap in gaps(a, b, what=what).items() if gap < limit}


def relative(m: str, a: str, b: str, what: str) -> float:
    return 100 * (getattr(cell(m, a, "Average"), what) / getattr(cell(m, b, "Average"), what) - 1)


def of_average(a: str, b: str, what: str = "mean") -> str:
    return listed({name.split()[0]: gap for name, gap in gaps(a, b, ["Average"], what).items()})


def radii(what: str) -> str:
    parts = []
    for m in ("3B", "7B"):
        values = {d: getattr(cell(m, f"Band {d}", "Average"), what) for d in ("0.03", "0.05", "0.10")}
        parts.append(f"{m} " + ", ".join(f"{v:.2f} at {d}" for d, v in values.items()))
    return "; ".join(parts)


def worse_in_pass() -> str:
    lost = {}
    for other in (HIGHER, RELAXED):
        lost |= {f"{name} against {other}": gap for name, gap in below(0, BAND, other, "best").items()}
    level = sum(gap == 0 for other in (HIGHER, RELAXED) for gap in gaps(BAND, other, what="best").values())
    best = {d: cell("7B", f"Band {d}", "Average").best for d in ("0.03", "0.05")}
    return (
        f"on average; behind in {len(lost)} of 24 cells, by up to {-min(lost.values()):.2f}, level in {level}. With radius "
        f"0.03, 7B has the best average, {best['0.03']:.2f} against {best['0.05']:.2f}."
    )


CLAIMS = (
    Claim(
        "consistently outperforms all baselines in mean@32",
        sign_of_all,
        HOLDS,
    ),
    Claim(
        "at least 2.0 points over GRPO across all settings",
        lambda: f"averages {of_average(BAND, GRPO)}; {len(below(2.0, BAND, GRPO))} of 12 benchmarks are below 2.",
        PARTLY,
    ),
    Claim(
        "Clip-Higher suffers ... on the 7B AIME benchmarks (dropping 1-2 points)",
        lambda: (
            listed({n: g for n, g in gaps(HIGHER, GRPO).items() if n.startswith("7B AIME")})
            + f"; sampling alone moves it by up to {1.96 * sampling_error(cell('7B', HIGHER, 'AIME2024'), cell('7B', GRPO, 'AIME2024')):.1f}."
        ),
        PARTLY,
    ),
    Claim(
        "1.5B GRPO ... consistently collapsing around training step 340",
        lambda: (
            f"its row, headed 800 steps, has averages {cell('1.5B', GRPO, 'Average').mean:.2f} and "
            f"{cell('1.5B', GRPO, 'Average').best:.2f}: no collapse. Of which checkpoint is not said."
        ),
        OPEN,
    ),
    Claim(
        "lifts pass@32 (e.g., a 28.9% relative gain on 3B)",
        lambda: (
            f"{relative('3B', BAND, GRPO, 'best'):.1f}% over GRPO, {relative('3B', BAND, HIGHER, 'best'):.1f}% over "
            "Clip-Higher, in verl's best@32."
        ),
        PARTLY,
    ),
    Claim("consistently surpasses ... Clip-Higher and Relaxed-Band", worse_in_pass, PARTLY),
    Claim(
        "relaxation leads to consistent overall performance degradation",
        lambda: f"averages from Band: mean {of_average(RELAXED, BAND)}; pass {of_average(RELAXED, BAND, 'best')}.",
        HOLDS,
    ),
    Claim(
        "delta = 0.05 consistently yields superior performance ... for both model sizes",
        lambda: (
            f"averages {radii('mean')}. Of 12 single cells, "
            f"{sum(g > 0 for d in ('0.03', '0.10') for n, g in radius_gaps(d).items())} are above 0, one is a tie."
        ),
        HOLDS,
    ),
    Claim(
        "All experiments are repeated three times",
        lambda: "no spread is reported, and the cells are of single evaluations.",
        OPEN,
    ),
)


def radius_gaps(delta: str) -> dict[str, float]:
    """Band 0.05 minus another radius, for the two models that have it."""
    return {
        f"{m} {d} against {delta}": round(cell(m, BAND, d).mean - cell(m, f"Band {delta}", d).mean, 2)
        for m in ("3B", "7B")
        for d in PROBLEMS
    }


def sign_text() -> str:
    gap = gaps(BAND, HIGHER)
    p = 2 * 0.5 ** len(gap)
    by_model = {m: np.mean([g for n, g in gap.items() if n.startswith(m)]) for m in models()}
    return (
        f"All {len(gap)} differences to Clip-Higher have the same sign: p = {p:.1g}, were they independent. But the three of "
        "one model share a training run. Four models are independent, "
        f"{', '.join(f'{m} {signed(float(v))}' for m, v in by_model.items())} on average: p = {2 * 0.5**4:.3f} by signs, the "
        "least that four can give."
    )


def claims_of(verdict: str) -> str:
    items = (f"- “{claim.text}”: {claim.digits()}" for claim in CLAIMS if claim.verdict == verdict)
    return "\n".join(textwrap.fill(item, 158, subsequent_indent="  ") for item in items)


def page() -> str:
    claims = "\n\n".join(f"**{verdict.capitalize()}**:\n\n{claims_of(verdict)}" for verdict in (HOLDS, PARTLY, OPEN))
    text = f"""# The paper's Table 1, re-read from its digits

In all: **holds in part**. BandPO is ahead in every mean@32, mostly by what sampling alone can explain. The digits are those of single evaluations, and "pass@32" is verl's bootstrap.

Written by `python research/pages/paper_table.py` from [the digits as printed](paper_table.csv).

## One run

{grids_text()}

## pass@32

{pass_text()}

## How large a difference must be

{errors_text()}

{sign_text()}

## What the text says of the table

{claims}
"""
    return (
        "\n\n".join(block if block[0] in "|#-" else textwrap.fill(block, 158) for block in text.strip().split("\n\n"))
        + "\n"
    )


def main() -> int:
    wrong = average_faults()
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
