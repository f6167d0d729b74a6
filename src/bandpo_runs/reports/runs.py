"""Measure runs, and choose those to compare.

Runs with one scene and learning rate form a section. In it, runs with one label are the seeds of one method, and runs
with one seed are a pair: they began alike, so their difference is the fairest comparison. The seed of a log is known
if its name ends in -seedN; else it has no pair.
"""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bandpo.errors import UserError
from bandpo.trust_regions.base import Context, Region

from ..evals.results import in_paper, papers_order
from ..files.logs import VALIDATED
from ..statistics.curves import Curves
from .reading import Run, read_runs

MIN_SEEDS = 3  # fewer have no standard deviation worth printing
Line = tuple[np.ndarray, np.ndarray]  # x and y


# -------------------------------------------------------------------------------------------------- curves and numbers
class Curve(NamedTuple):
    """A method in a figure: a line for each of several seeds, and their mean."""

    seeds: list[Line]
    mean: Line


class Figure(NamedTuple):
    title: str
    unit: str
    axis: str
    meaning: str
    curves: dict[str, Curve]  # by label
    top: float | None = None


@dataclass(frozen=True)
class Panel:
    """A curve: the metric `key`, or the ratio of two logged sums (`parts`)."""

    key: str
    title: str
    unit: str
    meaning: str
    parts: tuple[str, str] | None = None
    top: float | None = None

    def curve(self, run: Curves) -> np.ndarray:
        return (100 if percent_of(self.unit) else 1) * run.share(self.key, self.parts)

    def last(self, run: Curves) -> float:
        """Return the last known value; NaN if none is."""
        known = np.flatnonzero(np.isfinite(y := self.curve(run)))
        return float(y[known[-1]]) if len(known) else math.nan

    def figure(self, axis: str, methods: Mapping[str, Sequence[Curves]]) -> Figure:
        """Return the curves of all methods; the mean is over finished runs, if any."""
        curves = {}
        for label, runs in methods.items():
            known = [(run.x[there], y[there]) for run in runs for y in [self.curve(run)] for there in [np.isfinite(y)]]
            curves[label] = Curve(
                [line for line in known if len(line[0])] if len(runs) > 1 else [],
                mean_curve((run.x, self.curve(run)) for run in [r for r in runs if r.finished] or runs),
            )
        return Figure(self.title, self.unit, axis, self.meaning, curves, self.top)


def percent_of(unit: str) -> str:
    """Return what stands behind a number of this unit."""
    return " %" if unit.startswith("%") else ""


def mean_curve(curves: Iterable[Line]) -> Line:
    """Return the mean over seeds, up to the last round that every seed reached."""
    curves = list(curves)
    end = min(x[-1] if x.size else -math.inf for x, _ in curves)
    x, y = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    known = (x <= end) & np.isfinite(y)
    x, place, count = np.unique(x[known], return_inverse=True, return_counts=True)
    return x, np.bincount(place, y[known], len(x)) / count


CLIP_RATE = ("clip/count", "tokens")
TAIL_SHARE = ("clip/tail_high_count", "clip/count")
GOOD_TAIL_CUT = ("cut/good_tail_count", "clip/good_tail_tokens")
# By their names in `bandpo watch`; what no run has is left out.
PANELS = {
    "reward": Panel("reward", "Reward", "mean per completion", "Σ reward / number of completions."),
    "P(work)": Panel("lab/work", "P(work)", "share of completions", "Completions that work step by step / all "
                     "completions.", top=1),
    "entropy": Panel("entropy", "Entropy (paper, Fig. 4c)", "nats per token",
                     "−Σ π log π over the vocabulary, mean over tokens; under verl averaged as its loss is."),
    "clipped": Panel("clip/fraction", "Overall clip rate (Fig. 4a)", "% of tokens",
                     "Clipped tokens (ratio out of bounds) / all tokens.", CLIP_RATE),
    "above": Panel("clip/high_fraction", "Clipped above", "% of tokens", "Tokens above their upper bound / all tokens.",
                   ("clip/high_count", "tokens")),
    "below": Panel("clip/low_fraction", "Clipped below", "% of tokens", "Tokens below their lower bound / all tokens.",
                   ("clip/low_count", "tokens")),
    "tail share": Panel("clip/tail_high_share", "Tail share of the clips (Fig. 4b)", "% of clipped tokens", "Clipped "
                        "tokens above the upper bound with old p ≤ 0.2 / all clipped tokens.", TAIL_SHARE, top=100),
    "good tail cut": Panel("cut/good_tail", "Good tail cut", "% of these tokens", "Tokens with old p ≤ 0.2 and A > 0 "
                           "that are above their bound / all such tokens.", GOOD_TAIL_CUT),
    "cut": Panel("cut/fraction", "Cut", "% of tokens", "Tokens that lose their gradient / all tokens. If only the "
                 "trainer’s own number is logged (TRL’s clip_ratio, verl’s pg_clipfrac): a mean of means."),
    "KL": Panel("kl_old/k3", "KL to the old policy", "nats per token", "Mean of r − 1 − log r.",
                ("kl_old/k3_nats", "tokens")),
    "log r max": Panel("log_ratio/max", "Largest log-ratio", "log r", "Maximum of log r, for r = π / π_old."),
    "log r min": Panel("log_ratio/min", "Smallest log-ratio", "log r", "Minimum of log r."),
    "radius": Panel("controlled/value", "Controlled radius", "the number of the rule",
                    "The number that the rule steers, in the last step of a row."),
    "held out": Panel("val-core/*/mean@*", "Evaluation (mean@n)", "share right, or mean reward",
                      "On held-out questions: mean over samples, questions and data sets."),
}  # fmt: skip
_VALIDATED = {
    "mean": "Right answers / all answers, mean over problems; average: over data sets.",
    "best": "verl’s best@n/mean, which the paper prints as pass@32; average: over data sets.",
}
_IN_REPORT = ("P(work)", "reward", "entropy", "clipped", "tail share", "cut", "radius", "held out")


@dataclass(frozen=True)
class Number:
    """A row of the tables; {x} in its texts stands for "round" or "step"."""

    name: str
    meaning: str
    digits: int
    of: Callable[[Run], float]  # NaN: undefined; infinity: not reached
    whole: bool = False  # a count: the value of one seed has no decimals


def mean(values: np.ndarray, last: int = 0) -> float:
    """Average the known values, or the last of them."""
    known = values[np.isfinite(values)][-last:]
    return float(known.mean()) if known.size else math.nan


def first_round(run: Run, key: str) -> float:
    """Return the first round with the metric at 0.5 or more; infinity if none has it."""
    y = run.mean(key)
    return float(next(iter(run.x[y >= 0.5]), math.inf)) if np.isfinite(y).any() else math.nan


def share(run: Run, parts: tuple[str, str], key: str = "", where: Any = slice(None)) -> float:
    """Return the percentage over the run, as a ratio of sums.

    Where the counts were not logged it is the mean of the metric `key`.
    """
    top, bottom = (run.total(part)[where] for part in parts)
    known = np.isfinite(top) & np.isfinite(bottom)
    if key and not known.any():
        return mean(100 * run.mean(key))
    below = bottom[known].sum()
    return float(100 * top[known].sum() / below) if below > 0 else math.nan


NUMBERS = (
    Number("First {x} in which half work", "P(work) ≥ 0.5", 1, lambda r: first_round(r, "lab/work"), whole=True),
    Number("First {x} with reward 0.5", "mean reward ≥ 0.5", 1, lambda r: first_round(r, "reward"), whole=True),
    Number("Reward over the run", "mean over all {x}s", 3, lambda r: mean(r.mean("reward"))),
    Number("Reward at the end", "mean over the last 3 {x}s", 3, lambda r: mean(r.mean("reward"), last=3)),
    Number("Entropy at the end", "nats per token, last {x}", 2, lambda r: mean(r.mean("entropy"), last=1)),
    Number("Entropy at reward 0.5", "nats per token, in the first {x} with reward ≥ 0.5", 2,
           lambda r: float(next(iter(r.mean("entropy")[r.mean("reward") >= 0.5]), math.nan))),
    Number("Clip rate, %", "clipped tokens / all tokens, sums over the run", 2,
           lambda r: share(r, CLIP_RATE, "clip/fraction")),
    Number("Early tail share, %", "clipped above the upper bound with old p ≤ 0.2 / all clipped tokens, sums over the "
           "{x}s with P(work) < 0.05", 1, lambda r: share(r, TAIL_SHARE, where=r.mean("lab/work") < 0.05)),
    Number("Good tail cut, %", "tokens with old p ≤ 0.2 and positive advantage that lose their gradient / all such "
           "tokens", 1, lambda r: share(r, GOOD_TAIL_CUT, "cut/good_tail")),
)  # fmt: skip


def last_of(panel: Panel) -> Number:
    """Return the last value of a share, in percent."""
    return Number(
        f"{panel.title}, %", f"{panel.meaning.removesuffix('.')}; last validation", 1, lambda run: 100 * panel.last(run)
    )


def ratio_bounds(region: Region, p: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lowest and the highest ratio for a token of old probability p.

    A rule that asks for the sign of A gives the bound that binds: the lower
    one for A < 0, the upper one for A > 0. None for a rule that asks for more.
    """
    log_p = torch.from_numpy(p).log()
    try:
        down, up = (region.bounds(log_p, Context(advantages=torch.full_like(log_p, s))) for s in (-1.0, 1.0))
    except ValueError:
        return None
    return down.log_low.double().exp().numpy(), up.log_high.double().exp().numpy()


# --------------------------------------------------------------------------------------------------------------- texts
def show(value: float, digits: int, sign: str = "") -> str:
    """Write a value as 12.0, "–" if undefined, or "not reached". A difference to what was not reached is a limit."""
    if math.isinf(value):
        return (">\xa00" if value > 0 else "<\xa00") if sign else "not reached"
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}".replace("-", "−")


def number(value: float) -> str:
    """Write a number with three digits that count: 0.0123, 1.50, 71.2, 1,234."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1000 or 0 < size < 0.001:
        return f"{value:,.0f}" if 1000 <= size < 1e7 else f"{value:.1e}"
    return f"{value:.{2 if size >= 1 or not size else 3}f}" if size < 10 else f"{value:.1f}"


def summarize(values: Sequence[float], digits: int, sign: str = "", noun: str = "") -> str:
    """Write mean ± standard deviation over seeds. It is the median if a seed did not reach it, which has no mean."""
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return "–"
    if censored := int(np.isinf(known).sum()):
        middle = float(np.median(known)) if len({*known[np.isinf(known)]}) == 1 else math.nan
        text = f"{'median ' * math.isfinite(middle)}{show(middle, digits, sign)}"
        text += f" ({censored} of {len(known)} {noun}not reached)"
    else:
        text = show(float(known.mean()), digits, sign)
        text += f" ± {known.std(ddof=1):.{digits}f}" if len(known) >= MIN_SEEDS else ""
    return text if len(known) == len(values) else f"{text} (defined in {len(known)} of {len(values)})"


# ------------------------------------------------------------------------------------------------------------- sections
@dataclass(frozen=True, eq=False)
class Section:
    """The runs of one scene and learning rate, the baseline first."""

    scene: str | None
    learning_rate: float | None
    axis: str
    methods: dict[str, dict[int | Path, Run]]  # by seed; by its log where that is not known
    baseline: str | None  # None: it did not run here

    @property
    def title(self) -> str:
        name = f"The {self.scene} scene" if self.scene else "Training"
        if self.learning_rate is None:
            return name
        return f"{name}, learning rate {np.format_float_scientific(self.learning_rate, trim='-', exp_digits=1)}"

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.methods.values() for run in runs.values()]

    @property
    def panels(self) -> list[Panel]:
        """List the panels with values; what is cut only where a clip rate is missing."""
        lacking = {name: self.lacking(name) for name in _IN_REPORT}
        shown = [name for name in _IN_REPORT if len(lacking[name]) < len(self.methods)]
        shown = [name for name in shown if name != "cut" or lacking["clipped"]]
        validated = self.validated
        return [*(PANELS[name] for name in shown if name != "held out" or not validated), *validated]

    @property
    def validated(self) -> list[Panel]:
        """List mean@n and verl's best@n of the paper's table. Each is of the average, and of each data set."""
        names = [
            {name for row in run.rows for name, x in row.items() if name.startswith("val-core/") and x is not None}
            for run in self.runs
        ]
        found = [[match for match in map(VALIDATED.fullmatch, each) if match and match[2] != "worst"] for each in names]
        sets = {frozenset(match[1] for match in each) for each in found if each}
        columns = papers_order([data for each in sets for data in sorted(each)])
        kinds: dict[tuple[str, int], set[str]] = {}
        for match in (match for each in found for match in each):
            kinds.setdefault((match[2], int(match[3])), set()).add(match[1])
        panels = []
        for (kind, n), there in sorted(kinds.items(), reverse=True):
            # An average over all sets. Otherwise it would be of other sets in other runs.
            whole = ["*"] if len(columns) > 1 and len(sets) == 1 and len(there) == len(columns) else []
            key, title = (f"mean@{n}", f"mean@{n}") if kind == "mean" else (f"best@{n}/mean", f"best@{n} (verl)")
            for data in [*whole, *(data for data in columns if data in there)]:
                name = f"{'Average' if data == '*' else in_paper(data)} {title}"
                panels.append(Panel(f"val-core/{data}/acc/{key}", name, "share", _VALIDATED[kind]))
        return panels

    def lacking(self, name: str) -> list[str]:
        """List the methods of which no run has a value for a panel."""
        return [
            label for label, runs in self.methods.items() if all(map(math.isnan, map(PANELS[name].last, runs.values())))
        ]

    @property
    def finished(self) -> dict[str, dict[int | Path, Run]]:
        """Return the runs that are in the tables."""
        return {label: {s: r for s, r in runs.items() if r.finished} for label, runs in self.methods.items()}

    @property
    def pairs(self) -> dict[str, list[tuple[Run, Run]]]:
        """Pair the finished runs with the baseline's of the same seed."""
        if self.baseline is None:
            return {}
        done = self.finished
        twins = done.pop(self.baseline)
        return {label: [(run, twins[seed]) for seed, run in done[label].items() if seed in twins] for label in done}


def make_sections(runs: Sequence[Run], baseline: str | None = None) -> list[Section]:
    """Group the runs by section.

    Raises:
        UserError: two runs of one method and seed, one label for two objectives, or no run of the baseline.
    """
    labels = sorted({run.label for run in runs})
    if baseline is not None and baseline not in labels:
        raise UserError(f"baseline {baseline!r}: no such run; expected one of {', '.join(labels)}")
    rules: dict[str, Run] = {}
    groups: dict[tuple, dict[str, dict[int | Path, Run]]] = {}
    for run in runs:
        other = rules.setdefault(run.label, run) if run.rule is not None else run
        if other.rule != run.rule:
            raise UserError(f"{run.folder}: label {run.label!r} stands for another objective in {other.folder}")
        key = (run.info.get("scene"), run.info["learning_rate"], run.axis) if run.info else (None, None, run.axis)
        seeds = groups.setdefault(key, {}).setdefault(run.label, {})
        twin = seeds.setdefault(run.folder if run.seed is None else run.seed, run)
        if twin is not run:
            raise UserError(f"{run.folder}: same label and seed as {twin.folder}; expected only one of them")
    sections = []
    for (scene, rate, axis), methods in groups.items():
        first = baseline or next((label for label in methods if label.upper().startswith("GRPO")), next(iter(methods)))
        by_seed = {
            label: dict(sorted(methods[label].items(), key=lambda seed: (isinstance(seed[0], Path), seed[0])))
            for label in sorted(methods, key=lambda label, first=first: label != first)
        }
        sections.append(Section(scene, rate, axis, by_seed, first if first in methods else None))
    return sorted(sections, key=lambda s: (s.scene is None, str(s.scene), s.learning_rate or 0))


def read_sections(given: Sequence[Path | str], baseline: str | None = None, *, trust: bool = False) -> list[Section]:
    """Read runs for a comparison, as `read_runs` does."""
    return make_sections(read_runs(given, trust=trust), baseline)
