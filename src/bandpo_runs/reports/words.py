"""Outcome of a comparison in sentences: only what was seen, and how far so many runs can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ..statistics.collapse import WINDOW
from ..statistics.comparison import sign_flip_p
from ..statistics.intervals import Interval, Spread, average, training_runs
from .runs import MIN_SEEDS, NUMBERS, Number, Run, Section, Value, exact, show, subtract

# The first of them that a finished run has, unless all have it from their first row on: the number, what it is of, and
# what one with less, or more, of it is.
_HEADLINES = (
    (NUMBERS[0], "half of the completions work", "sooner", "later"),
    (NUMBERS[1], "the reward reaches 0.5", "sooner", "later"),
    (NUMBERS[3], "the reward at the end is", "lower", "higher"),
)

_MANY = 5  # comparisons, of which one may well be luck


def join(words: Iterable[object]) -> str:
    *most, last = [str(word) for word in words]
    return f"{', '.join(most)} and {last}" if most else last


def in_short(section: Section) -> list[str]:
    """Write a sentence or two for each compared method, and one on collapse."""
    done = {label: [*runs.values()] for label, runs in section.finished.items() if runs}
    if not done:
        return ["No run has finished, so there is nothing to conclude yet."]
    runs = [run for each in done.values() for run in each]
    said = []
    for number, what, less, more in _HEADLINES:
        values = {run: number.of(run) for run in runs}
        at_once = number.whole and all(math.isnan(high) or high == run.x[0] for run, (_, high) in values.items())
        if not at_once and any(math.isfinite(low) and math.isfinite(high) for low, high in values.values()):
            found = [*_of_methods(section, done, values, (number, what, less, more))]
            verdicts = {verdict for _, verdict in found}
            alike = verdicts.pop() if len(found) > 1 and len(verdicts) == 1 else ""
            said = [f"{text}{'' if alike else f' {verdict}'}".strip() for text, verdict in found]
            said += [f"Of each of them: {alike[0].lower()}{alike[1:]}"] if alike else []
            if len(found) >= _MANY and not alike:
                said.append("Each is compared on its own: of twenty methods that change nothing, one seems to differ.")
            break
    return [*(said or ["No reward is in these logs, so there is no word on who learned more."]), _on_collapse(section)]


def _of_methods(
    section: Section, done: dict[str, list[Run]], values: dict[Run, Value], headline: tuple[Number, str, str, str]
) -> Iterator[tuple[str, str]]:
    """Write the observations of each method, and their consequence."""
    number, what, less, more = headline
    others = [label for label in done if label != section.baseline]
    if section.baseline not in done or not others:
        for label, runs in done.items():
            known = [values[run] for run in runs if not math.isnan(values[run][0])]
            if known:
                certain = _certain(known)
                over = f" ({_kind(certain)} of {_runs(len(known))})" if len(known) > 1 else ""
                yield f"{label}: {what} {_central(known, number, section.axis, certain)}{over}.", ""
        return
    for label in others:
        pairs = [(values[a], values[b]) for a, b in section.pairs[label]]
        pairs = [pair for pair in pairs if not math.isnan(pair[0][0] + pair[1][0])]
        both = [[values[run] for run in done[each]] for each in (label, section.baseline)]
        a, b = zip(*pairs, strict=True) if pairs else ([v for v in each if not math.isnan(v[0])] for each in both)
        if not a or not b:
            yield (
                f"{label} and {section.baseline} cannot be compared here: the log of one of them lacks the numbers.",
                "",
            )
            continue
        certain = _certain((*a, *b))  # or a mean would stand beside a median
        text = f"{label}: {what} {_central(a, number, section.axis, certain)}"
        text += f", with {section.baseline} {_central(b, number, section.axis, certain)}"
        unit = f" {section.axis}s" if number.whole else ""
        if pairs:
            gaps = [subtract(*pair) for pair in pairs]
            over = f" ({_kind(certain)} of {_runs(len(a), 'pair')})" if len(a) > 1 else ""
            yield f"{text}{over}; {_counted(gaps, less, more)}.", _told(gaps, number, unit)
        else:
            runs = f"{_runs(len(a))} and {_runs(len(b))}" if len(a) != len(b) else f"{_runs(len(a))} each"
            text += f" ({f'{_kind(certain)} of ' if max(len(a), len(b)) > 1 else ''}{runs})."
            yield text, _told_apart(a, b, number, unit)


def _runs(n: int, noun: str = "run") -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def _certain(values: Iterable[Value]) -> bool:
    return all(low == high for low, high in values)


def _kind(certain: bool) -> str:
    return "means" if certain else "medians"


def _central(values: Sequence[Value], number: Number, axis: str, certain: bool) -> str:
    """Return the mean, or with limits among the values the median as far as it is known."""
    limits = np.array(values, float)
    low, high = limits.mean(axis=0) if certain else np.median(limits, axis=0)
    if not number.whole:
        return show((low, high), number.digits)
    if math.isinf(high):
        return f"not by {axis} {low:g}"
    return f"at {axis} {show((low, high), 0 if len(values) == 1 else number.digits)}"


def _counted(gaps: Sequence[Value], less: str, more: str) -> str:
    """Write `sooner in 2 of 3 pairs of seeds`."""
    below, above = sum(high < 0 for _, high in gaps), sum(low > 0 for low, _ in gaps)
    if not below and not above:
        return f"no pair of seeds {'shows which comes first' if less == 'sooner' else 'differs'}"
    word, count = (less, below) if below >= above else (more, above)
    return f"{word} in {count} of {len(gaps)} pairs of seeds" if len(gaps) > 1 else f"{word} in the one pair of seeds"


def _told(gaps: Sequence[Value], number: Number, unit: str) -> str:
    """Say that so many pairs can or cannot tell the difference from luck."""
    n = len(gaps)
    if n < MIN_SEEDS:
        return f"No difference can be told from {_runs(n, 'pair')} of seeds: luck alone could do that."
    # A difference of two whole numbers is rounded twice.
    spread = _spread([low for low, _ in gaps], 2 * number.whole) if all(low == high for low, high in gaps) else None
    if spread is not None:
        return _by_interval(spread.interval(low=-math.inf, high=math.inf), f"{n} pairs of seeds", number, unit)
    below, above = sum(high < 0 for _, high in gaps), sum(low > 0 for low, _ in gaps)
    most = max(below, above)
    # What is not known speaks against the difference, and never for the opposite one.
    p = 1.0 if 2 * most <= n else sign_flip_p([1.0] * most + [-1.0] * (n - most))[0]
    if p < 0.05:
        return f"That is more than luck does with {n} pairs (sign test, p = {p:.2g})."
    return f"No difference can be told from {n} pairs of seeds (sign test, p = {p:.2g})."


def _told_apart(a: Sequence[Value], b: Sequence[Value], number: Number, unit: str) -> str:
    """Say the same of runs that have no twin."""
    few = min(len(a), len(b))
    if few < MIN_SEEDS:
        return f"No difference can be told from {_runs(few)} of a method: luck alone could do that."
    parts = [_spread([sign * low for low, _ in values], number.whole) for sign, values in ((1, a), (-1, b))]
    known = [part for part in parts if part is not None]
    if any(low != high for low, high in (*a, *b)) or len(known) < 2:
        return "No difference can be told: for some of these runs only limits are known, or they do not vary."
    low, high = average(known).interval(low=-math.inf, high=math.inf)
    return _by_interval(Interval(2 * low, 2 * high), f"{len(a)} and {len(b)} runs", number, unit)


def _spread(values: Sequence[float], rounded: int) -> Spread | None:
    """Return `training_runs` of values; None if they do not vary.

    No error is below that of rounding to whole numbers `rounded` times.
    """
    spread = training_runs(values)
    if spread is None:
        return None
    error = max(spread.error, math.sqrt(rounded / 12 / len(values)))
    return spread._replace(error=error) if error > 0 else None


def _by_interval(interval: Interval, of: str, number: Number, unit: str) -> str:
    low, high = (show(exact(limit), number.digits, "+") for limit in interval)
    if interval.low <= 0 <= interval.high:
        return f"No difference can be told from {of}: its 95\u00a0% interval, {low} to {high}{unit}, holds 0."
    return f"The 95\u00a0% interval of the difference, from {of}, is {low} to {high}{unit}."


def _on_collapse(section: Section) -> str:
    """Write on collapse in all runs: one that collapsed is often stopped early."""
    lost, points, passing = {}, 0, False
    for label, runs in section.methods.items():
        for run in runs.values():
            points = max(points, int(np.isfinite(run.mean("reward")).sum()))
            if run.collapse is not None and run.collapse.certain and run.collapse.recovered is None:
                lost[label] = lost.get(label, 0) + 1
            passing = passing or run.collapse is not None
    if lost:
        each = (f"{label} in {n} of {_runs(len(section.methods[label]))}" for label, n in lost.items())
        return f"Collapsed: {join(each)}."
    if passing:
        return "No lasting collapse is found; the notes say what happened."
    if not points:
        return "No reward is logged, so nothing can be said of a collapse."
    if points < 2 * WINDOW:
        return f"The runs are too short to tell a collapse, which takes {2 * WINDOW} points."
    return "No collapse is found in these runs."
