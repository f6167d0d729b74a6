"""Runs, and the numbers that come out of them.

A run folder holds `run.json` (what ran), `config.yaml` (its settings) and `metrics.jsonl` (what happened, one JSON
object a line); a log of TRL or verl has the last only. Runs with the same scene and learning rate form a section; in
it, runs with the same label are the seeds of one method, and runs with the same seed are a pair: they began alike, so
their difference is the fairest comparison. The seed of a log is not known, and so it has no twin.

Read it in this order: `PANELS` and `NUMBERS` (all that is shown of a run), `summarize` (how seeds become one cell of a
table), `Section.table`.
"""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bandpo.errors import UserError
from bandpo.trust_regions.base import Context, Region
from bandpo.trust_regions.control import controlled_of

from .logs import Curves
from .reading import Run, read_runs

MIN_SEEDS = 3  # with fewer, a standard deviation says next to nothing
# What is known of a number; (3, 3): it is 3; (30, inf): more than 30; (nan, nan): undefined.
Value = tuple[float, float]


# ----------------------------------------------------------------------------------------------- what is shown of a run
CLIP_RATE = ("clip/count", "tokens")
TAIL_SHARE = ("clip/tail_high_count", "clip/count")
GOOD_TAIL_CUT = ("cut/good_tail_count", "clip/good_tail_tokens")


@dataclass(frozen=True)
class Panel:
    """A curve: the metric `key`, or the ratio of two sums (`parts`) where those were logged."""

    key: str
    title: str
    unit: str
    meaning: str
    parts: tuple[str, str] | None = None
    top: float | None = None
    optional: bool = False  # runs without it lack nothing
    needs: str = ""  # what a trainer needs to log it

    def curve(self, run: Curves) -> np.ndarray:
        scale = 100 if self.unit.startswith("%") else 1
        if self.parts and np.isfinite(run.total(self.parts[0])).any():
            below = run.total(self.parts[1])
            return scale * run.total(self.parts[0]) / np.where(below > 0, below, np.nan)
        return scale * run.mean(self.key)


_OUR_LOSS = (
    "under TRL BandPOTrainer logs it, which with the rule clip trains as GRPOTrainer does; under verl the loss of "
    "bandpo, with diagnostics=true, the default"
)
CUT = Panel("cut/fraction", "Cut", "% of tokens", "Tokens that lose their gradient / all tokens. Where the "
            "trainer’s own number is all there is (TRL’s clip_ratio, verl’s pg_clipfrac): a mean of means.",
            optional=True)  # fmt: skip
PANELS = (
    Panel("lab/work", "P(work)", "share of completions",
          "Completions that work step by step / all completions. Dotted: half of them.", top=1, optional=True),
    Panel("reward", "Reward", "mean per completion", "Σ reward / number of completions.",
          needs="TRL and verl log it by themselves; in rows of another program it is called reward"),
    Panel("entropy", "Entropy (paper, Fig. 4c)", "nats per token", "−Σ π log π over the vocabulary, mean over tokens.",
          needs="TRL and verl log it by themselves; in rows of another program it is called entropy"),
    Panel("clip/fraction", "Overall clip rate (Fig. 4a)", "% of tokens",
          "Clipped tokens (ratio out of bounds) / all tokens.", CLIP_RATE, needs=_OUR_LOSS),
    Panel("clip/tail_high_share", "Tail share of the clips (Fig. 4b)", "% of clipped tokens",
          "Clipped tokens above the upper bound with old p ≤ 0.2 / all clipped tokens.", TAIL_SHARE, top=100,
          needs=_OUR_LOSS),
    CUT,
    Panel("controlled/value", "Controlled radius", "the number of the rule",
          "The number that the rule steers, in the last step of a row.", optional=True),
    Panel("val-core/*/mean@*", "Evaluation (mean@n)", "share right, or mean reward",
          "On questions that are not trained on: mean over samples, questions and data sets.", optional=True),
)  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A row of the tables: `of` computes it from a run; {x} in the texts stands for "round" or "step"."""

    name: str
    meaning: str
    digits: int
    of: Callable[[Run], Value]
    whole: bool = False  # a count: the value of one seed has no decimals


def exact(value: float) -> Value:
    return float(value), float(value)


def average(values: np.ndarray, last: int = 0) -> Value:
    """Average the known values, or the last of them."""
    known = values[np.isfinite(values)][-last:]
    return exact(known.mean() if known.size else math.nan)


def first_round(run: Run, key: str) -> Value:
    """Return the first round with the metric at 0.5 or more.

    If none, "more than the last round that has it" (censored).
    """
    y = run.mean(key)
    known = run.x[np.isfinite(y)]
    if not known.size:
        return exact(math.nan)
    return next((exact(x) for x in run.x[y >= 0.5]), (float(known[-1]), math.inf))


def share(run: Run, parts: tuple[str, str], key: str = "", where: Any = slice(None)) -> Value:
    """Return the percentage over the run, as a ratio of sums.

    A mean of ratios would count a quiet round like a busy one.

    Where the counts were not logged it is the mean of the metric `key` after all.
    """
    top, bottom = (run.total(part)[where] for part in parts)
    known = np.isfinite(top) & np.isfinite(bottom)
    if key and not known.any():
        return average(100 * run.mean(key))
    below = bottom[known].sum()
    return exact(100 * top[known].sum() / below if below > 0 else math.nan)


def entropy_at_half(run: Run) -> Value:
    return exact(next(iter(run.mean("entropy")[run.mean("reward") >= 0.5]), math.nan))


NUMBERS = (
    Number("First {x} in which half work", "P(work) ≥ 0.5", 1, lambda r: first_round(r, "lab/work"), whole=True),
    Number("First {x} with reward 0.5", "mean reward ≥ 0.5", 1, lambda r: first_round(r, "reward"), whole=True),
    Number("Reward over the run", "mean over all {x}s", 3, lambda r: average(r.mean("reward"))),
    Number("Reward at the end", "mean over the last 3 {x}s", 3, lambda r: average(r.mean("reward"), last=3)),
    Number("Entropy at the end", "nats per token, last {x}", 2, lambda r: average(r.mean("entropy"), last=1)),
    Number("Entropy at reward 0.5", "nats per token, in the first {x} with reward ≥ 0.5", 2, entropy_at_half),
    Number("Clip rate, %", "clipped tokens / all tokens, sums over the run", 2,
           lambda r: share(r, CLIP_RATE, "clip/fraction")),
    Number("Early tail share, %", "clipped above the upper bound with old p ≤ 0.2 / all clipped tokens, sums over the "
           "{x}s with P(work) < 0.05", 1, lambda r: share(r, TAIL_SHARE, where=r.mean("lab/work") < 0.05)),
    Number("Good tail cut, %", "tokens with old p ≤ 0.2 and positive advantage that lose their gradient / all such "
           "tokens", 1, lambda r: share(r, GOOD_TAIL_CUT, "cut/good_tail")),
)  # fmt: skip


def ratio_bounds(region: Region, p: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lowest and the highest ratio for a token of old probability p.

    Of a rule that changes, as it is at the beginning; of one that asks for the sign of A, the bound that binds: the
    lower one for A < 0, the upper one for A > 0. None for a rule that asks for more.
    """
    log_p, rule = torch.from_numpy(p).log(), controlled_of(region)
    first = None if rule is None else rule.value(rule.start())
    known = {"step": 0, "controlled": first}
    try:
        down, up = (region.bounds(log_p, Context(advantages=torch.full_like(log_p, s), **known)) for s in (-1.0, 1.0))
    except ValueError:
        return None
    return down.log_low.double().exp().numpy(), up.log_high.double().exp().numpy()


# ----------------------------------------------------------------------------------------------------------- arithmetic
def subtract(a: Value, b: Value) -> Value:
    """Return a - b as far as it is known: 12 minus "more than 30" is "less than -18"."""
    return a[0] - b[1], a[1] - b[0]


def show(value: Value, digits: int, sign: str = "") -> str:
    """Write a value as 12.0, "> 30", "< −18", "12 to 30", "unknown"; "–" for undefined ones."""
    low, high = (f"{v:{sign}.{digits}f}".replace("-", "−") for v in value)
    if low == high:
        return low if math.isfinite(value[0]) else "–"
    low, high = low.removesuffix(".0"), high.removesuffix(".0")
    if math.isinf(value[0]):
        return "unknown" if math.isinf(value[1]) else f"< {high}"
    return f"> {low}" if math.isinf(value[1]) else f"{low} to {high}"


def number(value: float) -> str:
    """Write a number with three digits that count: 0.0123, 1.50, 71.2, 1,234."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1000 or 0 < size < 0.001:
        return f"{value:,.0f}" if 1000 <= size < 1e7 else f"{value:.1e}"
    return f"{value:.{2 if size >= 1 or not size else 3}f}" if size < 10 else f"{value:.1f}"


def summarize(values: Sequence[Value], digits: int, sign: str = "", noun: str = "") -> str:
    """Write mean ± standard deviation over seeds, or a median as soon as a seed is censored.

    A mean would need the values that nobody saw. The median often does not; where it does, a limit of it is known.
    """
    known = np.array([value for value in values if not math.isnan(value[0])]).reshape(-1, 2)
    if not len(known):
        return "–"
    censored = int((known[:, 0] != known[:, 1]).sum())
    if censored:
        low, high = (float(limit) for limit in np.median(known, axis=0))
        text = f"{show((low, high), digits, sign).removesuffix('.0')} ({censored} of {len(known)} {noun}not reached)"
        text = f"median {text}" if math.isfinite(low) and math.isfinite(high) else text
    else:
        text = show(exact(known[:, 0].mean()), digits, sign)
        text += f" ± {known[:, 0].std(ddof=1):.{digits}f}" if len(known) >= MIN_SEEDS else ""
    return text if len(known) == len(values) else f"{text} (defined in {len(known)} of {len(values)})"


def mean_curve(curves: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over the seeds that have a value, up to the last round that every seed reached."""
    curves = list(curves)
    end = min(x[-1] if x.size else -math.inf for x, _ in curves)
    x, y = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    known = (x <= end) & np.isfinite(y)
    x, place, count = np.unique(x[known], return_inverse=True, return_counts=True)
    return x, np.bincount(place, y[known], len(x)) / count


@dataclass(frozen=True)
class Row:
    """One of `NUMBERS` over the finished runs of a section, ready to print, by method."""

    name: str
    meaning: str
    summaries: dict[str, str]
    differences: dict[str, str]  # of its pairs: minus the baseline with the same seed
    pairs: dict[str, list[str]]  # each of them


@dataclass(frozen=True, eq=False)
class Section:
    """The runs of one scene and learning rate: each method's by seed, the baseline first."""

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
        """List the panels that a run has values for.

        Tokens cut count only if a method lacks the paper's clip rate.
        """
        there = {panel: [self.has(panel, label) for label in self.methods] for panel in PANELS}
        clip_rate = next(panel for panel in PANELS if panel.key == "clip/fraction")
        return [panel for panel in PANELS if any(there[panel]) and not (panel is CUT and all(there[clip_rate]))]

    def has(self, panel: Panel, label: str) -> bool:
        """Check that a run of the method has a value of it."""
        return any(np.isfinite(panel.curve(run)).any() for run in self.methods[label].values())

    @property
    def finished(self) -> dict[str, dict[int | Path, Run]]:
        """Return the runs that are in the table."""
        return {label: {s: r for s, r in runs.items() if r.finished} for label, runs in self.methods.items()}

    @property
    def pairs(self) -> dict[str, list[tuple[Run, Run]]]:
        """Pair the finished runs of each other method with the baseline's of the same seed.

        There are none if the baseline did not run.
        """
        if self.baseline is None:
            return {}
        done = self.finished
        twins = done.pop(self.baseline)
        return {label: [(run, twins[seed]) for seed, run in done[label].items() if seed in twins] for label in done}

    def table(self) -> list[Row]:
        """Return the numbers that at least one finished run has."""
        done, pairs, rows = self.finished, self.pairs, []
        for number in NUMBERS:
            values = {run: number.of(run) for runs in done.values() for run in runs.values()}
            if all(math.isnan(low) for low, _ in values.values()):
                continue
            digits = number.digits
            gaps = {m: [subtract(values[run], values[twin]) for run, twin in pairs[m]] for m in pairs}
            rows.append(
                Row(
                    name=number.name.format(x=self.axis),
                    meaning=number.meaning.format(x=self.axis),
                    summaries={m: summarize([values[run] for run in done[m].values()], digits) for m in done},
                    differences={m: summarize(gaps[m], digits, "+", "pairs ") for m in pairs},
                    pairs={m: [show(gap, 0 if number.whole else digits, "+") for gap in gaps[m]] for m in pairs},
                )
            )
        return rows


def make_sections(runs: Sequence[Run], baseline: str | None = None) -> list[Section]:
    """Group the runs by section. Refuse two runs of one method and seed, and one label for two objectives."""
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
    for key, methods in groups.items():
        first = baseline or next((label for label in methods if label.startswith("GRPO")), next(iter(methods)))
        order = sorted(methods, key=lambda label, first=first: label != first)
        by_seed = {
            label: dict(sorted(methods[label].items(), key=lambda seed: (isinstance(seed[0], Path), seed[0])))
            for label in order
        }
        scene, rate, axis = key
        sections.append(Section(scene, rate, axis, by_seed, first if first in methods else None))
    # The tail goes before the storm, which answers the question that the tail leaves; then both.
    place = {"tail": 0, "storm": 1, "both": 2}
    return sorted(
        sections,
        key=lambda s: (s.scene is None, place.get(s.scene or "", len(place)), str(s.scene), s.learning_rate or 0),
    )


def read_sections(given: Sequence[Path | str], baseline: str | None = None, *, trust: bool = False) -> list[Section]:
    """Read the runs at or below each PATH or LABEL=PATH for a comparison; for `trust` see `read_runs`."""
    return make_sections(read_runs(given, trust=trust), baseline)
