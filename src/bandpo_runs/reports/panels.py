"""Name curves and numbers. A page and `bandpo watch` show the curves, a report's tables the numbers."""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..evals.results import in_paper, papers_order
from ..files.logs import VALIDATED
from ..statistics.collapse import Curves, mean_of_known

Line = tuple[np.ndarray, np.ndarray]  # x and y


class Curve(NamedTuple):
    """A method in a figure: a line for each of several seeds, and their mean."""

    seeds: list[Line]
    mean: Line


class Figure(NamedTuple):
    """The curves of a panel, by label."""

    panel: "Panel"
    axis: str
    curves: dict[str, Curve]


@dataclass(frozen=True)
class Panel:
    """A curve: the metric `key`, or the ratio of two logged sums (`parts`)."""

    key: str
    title: str
    unit: str
    meaning: str
    parts: tuple[str, str] | None = None
    top: float | None = None

    @property
    def percent(self) -> str:
        """Return what stands behind a number of this unit."""
        return " %" if self.unit.startswith("%") else ""

    def curve(self, run: Curves) -> np.ndarray:
        return (100 if self.percent else 1) * run.share(self.key, self.parts)

    def last(self, run: Curves) -> float:
        """Return the last known value; NaN if none is."""
        return mean_of_known(self.curve(run), last=1)

    def figure(self, axis: str, methods: Mapping[str, Sequence[Curves]]) -> Figure:
        """Return the curves of all methods; the mean is over finished runs, if any."""
        curves = {}
        for label, runs in methods.items():
            lines = [(run.x, self.curve(run)) for run in runs]
            finished = [line for line, run in zip(lines, runs, strict=True) if run.finished]
            seeds = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in lines if np.isfinite(y).any()]
            curves[label] = Curve(seeds if len(runs) > 1 else [], mean_curve(finished or lines))
        return Figure(self, axis, curves)


def mean_curve(curves: Sequence[Line]) -> Line:
    """Return the mean over seeds, up to the last round that every seed reached."""
    end = min(x[-1] if x.size else -math.inf for x, _ in curves)
    x, y = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    counts = (x <= end) & np.isfinite(y)
    x, place, count = np.unique(x[counts], return_inverse=True, return_counts=True)
    return x, np.bincount(place, y[counts], len(x)) / count


CLIP_RATE = ("clip/count", "tokens")
TAIL_SHARE = ("clip/tail_high_count", "clip/count")
GOOD_TAIL_CUT = ("cut/good_tail_count", "clip/good_tail_tokens")
# By their names in `bandpo watch`; what no run has is left out.
PANELS = {
    "reward": Panel("reward", "Reward", "mean per completion", "Σ reward / number of completions."),
    "P(work)": Panel(
        "lab/work",
        "P(work)",
        "share of completions",
        "Completions that work step by step / all completions.",
        top=1,
    ),
    "entropy": Panel(
        "entropy",
        "Entropy (paper, Fig. 4c)",
        "nats per token",
        "−Σ π log π over the vocabulary, mean over tokens; under verl averaged as its loss is.",
    ),
    "clipped": Panel(
        "clip/fraction",
        "Overall clip rate (Fig. 4a)",
        "% of tokens",
        "Clipped tokens (ratio out of bounds) / all tokens.",
        CLIP_RATE,
    ),
    "above": Panel(
        "clip/high_fraction",
        "Clipped above",
        "% of tokens",
        "Tokens above their upper bound / all tokens.",
        ("clip/high_count", "tokens"),
    ),
    "below": Panel(
        "clip/low_fraction",
        "Clipped below",
        "% of tokens",
        "Tokens below their lower bound / all tokens.",
        ("clip/low_count", "tokens"),
    ),
    "tail share": Panel(
        "clip/tail_high_share",
        "Tail share of the clips (Fig. 4b)",
        "% of clipped tokens",
        "Clipped tokens above the upper bound with old p ≤ 0.2 / all clipped tokens.",
        TAIL_SHARE,
        top=100,
    ),
    "good tail cut": Panel(
        "cut/good_tail",
        "Good tail cut",
        "% of these tokens",
        "Tokens with old p ≤ 0.2 and A > 0 that are above their bound / all such tokens.",
        GOOD_TAIL_CUT,
    ),
    "cut": Panel(
        "cut/fraction",
        "Cut",
        "% of tokens",
        "Tokens that lose their gradient / all tokens. If only the "
        "trainer’s own number is logged (TRL’s clip_ratio, verl’s pg_clipfrac): a mean of means.",
    ),
    "KL": Panel(
        "kl_old/k3",
        "KL to the old policy",
        "nats per token",
        "Mean of r − 1 − log r.",
        ("kl_old/k3_nats", "tokens"),
    ),
    "log r max": Panel(
        "log_ratio/max", "Largest log-ratio", "log r", "Maximum of log r, for r = π / π_old."
    ),
    "log r min": Panel("log_ratio/min", "Smallest log-ratio", "log r", "Minimum of log r."),
    "radius": Panel(
        "controlled/value",
        "Controlled radius",
        "the number of the rule",
        "The number that the rule steers, in the last step of a row.",
    ),
    "held out": Panel(
        "val-core/*/mean@*",
        "Evaluation (mean@n)",
        "share right, or mean reward",
        "On held-out questions: mean over samples, questions and data sets.",
    ),
}


def validations(runs: Sequence[Curves]) -> list[Panel]:
    """List mean@n and verl's best@n of the paper's table. Each is of the average, and of each data set."""
    logged: list[set[tuple[str, int, str]]] = []  # by run: the kind of number, n, the data set
    for run in runs:
        names = {name for row in run.rows for name, value in row.items() if value is not None}
        matches = [VALIDATED.fullmatch(name) for name in names if name.startswith("val-core/")]
        logged.append(
            {(match[2], int(match[3]), match[1]) for match in matches if match and match[2] != "worst"}
        )
    sets = {frozenset(data for _, _, data in each) for each in logged if each}
    columns = papers_order([data for each in sets for data in sorted(each)])
    panels = []
    for kind, n in sorted({(kind, n) for each in logged for kind, n, _ in each}, reverse=True):
        shown = [data for data in columns if any((kind, n, data) in each for each in logged)]
        # Else an average would be of other sets elsewhere.
        if len(columns) > 1 and len(sets) == 1 and shown == columns:
            shown = ["*", *columns]
        for data in shown:
            name, is_mean = "Average" if data == "*" else in_paper(data), kind == "mean"
            panels.append(
                Panel(
                    f"val-core/{data}/acc/{f'mean@{n}' if is_mean else f'best@{n}/mean'}",
                    f"{name} mean@{n}" if is_mean else f"{name} best@{n} (verl)",
                    "share",
                    "Right answers / all answers, mean over problems; average: over data sets."
                    if is_mean
                    else "verl’s best@n/mean, which the paper prints as pass@32; average: over data sets.",
                )
            )
    return panels


@dataclass(frozen=True)
class Number:
    """A row of the tables; {x} in its texts stands for "round" or "step"."""

    name: str
    meaning: str
    digits: int
    of: Callable[[Curves], float]  # NaN: undefined; infinity: not reached
    whole: bool = False  # a count: the value of one seed has no decimals


def first_round(run: Curves, key: str) -> float:
    """Return the first round with the metric at 0.5 or more; infinity if none has it."""
    y = run.mean(key)
    return float(next(iter(run.x[y >= 0.5]), math.inf)) if np.isfinite(y).any() else math.nan


def share(run: Curves, parts: tuple[str, str], key: str = "", where: Any = slice(None)) -> float:
    """Return the percentage over the run, as a ratio of sums.

    Where the counts were not logged it is the mean of the metric `key`.
    """
    top, bottom = (run.total(part)[where] for part in parts)
    counted = np.isfinite(top) & np.isfinite(bottom)
    if key and not counted.any():
        return mean_of_known(100 * run.mean(key))
    total = bottom[counted].sum()
    return float(100 * top[counted].sum() / total) if total > 0 else math.nan


def entropy_at_half(run: Curves) -> float:
    """Return the entropy in the first round with a reward of 0.5 or more."""
    return float(next(iter(run.mean("entropy")[run.mean("reward") >= 0.5]), math.nan))


NUMBERS = (
    Number(
        "First {x} in which half work",
        "P(work) ≥ 0.5",
        1,
        lambda run: first_round(run, "lab/work"),
        whole=True,
    ),
    Number(
        "First {x} with reward 0.5",
        "mean reward ≥ 0.5",
        1,
        lambda run: first_round(run, "reward"),
        whole=True,
    ),
    Number(
        "Reward over the run",
        "mean over all {x}s",
        3,
        lambda run: mean_of_known(run.mean("reward")),
    ),
    Number(
        "Reward at the end",
        "mean over the last 3 {x}s",
        3,
        lambda run: mean_of_known(run.mean("reward"), last=3),
    ),
    Number(
        "Entropy at the end",
        "nats per token, last {x}",
        2,
        lambda run: mean_of_known(run.mean("entropy"), last=1),
    ),
    Number(
        "Entropy at reward 0.5",
        "nats per token, in the first {x} with reward ≥ 0.5",
        2,
        entropy_at_half,
    ),
    Number(
        "Clip rate, %",
        "clipped tokens / all tokens, sums over the run",
        2,
        lambda run: share(run, CLIP_RATE, "clip/fraction"),
    ),
    Number(
        "Early tail share, %",
        "clipped above the upper bound with old p ≤ 0.2 / all clipped tokens, sums over the {x}s with P(work) < 0.05",
        1,
        lambda run: share(run, TAIL_SHARE, where=run.mean("lab/work") < 0.05),
    ),
    Number(
        "Good tail cut, %",
        "tokens with old p ≤ 0.2 and positive advantage that lose their gradient / all such tokens",
        1,
        lambda run: share(run, GOOD_TAIL_CUT, "cut/good_tail"),
    ),
)


def last_of(panel: Panel) -> Number:
    """Return the last value of a share, in percent."""
    return Number(
        f"{panel.title}, %",
        f"{panel.meaning.removesuffix('.')}; last validation",
        1,
        lambda run: 100 * panel.last(run),
    )
