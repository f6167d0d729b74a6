"""What a comparison shows, in whole sentences: what was seen, and whether so many runs can tell it from luck."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bandpo.errors import counted

from ..statistics.collapse import WINDOW
from ..statistics.comparison import sign_flip_p
from ..statistics.intervals import Spread, average, training_runs
from .runs import MIN_SEEDS, NUMBERS, Number, Run, Section, Value, exact, show, subtract

# The first of them that a finished run has counts, unless all runs have it from their first row on.
_HEADLINES = (
    (NUMBERS[0], "half of the completions work"),
    (NUMBERS[1], "the reward reaches 0.5"),
    (NUMBERS[3], "the reward at the end is"),
)
SCENES = {
    "tail": "A tiny model can work step by step but almost never does. Does reward teach it that working pays? The "
    "trust region decides how fast a rare first token may grow.",
    "both": "A tiny model that almost never works step by step trains on small, noisy batches, each used many times. "
    "Does the rare strategy live long enough to be learned?",
    "storm": "A tiny model that has the skill trains on small, noisy batches, each used many times. Does it keep it?",
}
LIMITS = {
    "tail": "The tail scene shows what a clip costs a rare strategy, not what it protects. Entropy falls sooner under "
    "a rule that solves the task sooner: compare it at equal reward, not at equal rounds. Other rules with a wide "
    "upper side, such as a plain Clip(0.2, 1.0), do about the same here, and so does no clip at all. The early tail "
    "share says where a rule clips; it does not predict speed.",
    "storm": "The storm scene asks what a clip protects. Over five seeds (benchmarks/lab.csv), training without a clip "
    "mostly lost a skill that was there, and every clip mostly kept it. An unlucky seed was lost under all rules. A "
    "few seeds on one small task show that a clip matters; they do not rank the clips.",
    "both": "The scene both asks whether a rare strategy lives until it has been learned. A few rewards are inverted. "
    "Under GRPO’s clip about a third of the runs lost it for good (5 of 16, "  # noqa: RUF001
    "research/measurements/fast_lab_search.csv). The count of lost runs decides, and it takes dozens of seeds to "
    "compare. The scene was made to have this property; it does not say how often real runs have it.",
}


def join(words: Iterable[object]) -> str:
    *most, last = [str(word) for word in words]
    return f"{', '.join(most)} and {last}" if most else last


def verdicts(section: Section) -> list[str]:
    """Compare each method with the baseline in sentences, and tell a collapse."""
    done = {label: [*runs.values()] for label, runs in section.finished.items() if runs}
    if not done:
        return ["No run has finished, so there is nothing to conclude yet."]
    said = [("These logs hold no reward, so nothing is said of who learned more.", "")]
    for number, what in _HEADLINES:
        values = {run: number.of(run) for runs in done.values() for run in runs}
        at_once = number.whole and all(math.isnan(high) or high == run.x[0] for run, (_, high) in values.items())
        if not at_once and any(math.isfinite(low) and math.isfinite(high) for low, high in values.values()):
            said = [*_compared(section, done, values, number, what)]
            break
    verdict = {verdict for _, verdict in said}
    shared = [*verdict] if len(said) > 1 and len(verdict) == 1 else [""]  # said once
    lines = [text if shared[0] else f"{text} {verdict}".strip() for text, verdict in said]
    return [
        *lines,
        *(x.replace("The difference", "Each difference") for x in filter(None, shared)),
        _on_collapse(section),
    ]


def _compared(
    section: Section, done: dict[str, list[Run]], values: dict[Run, Value], number: Number, what: str
) -> Iterator[tuple[str, str]]:
    """Yield what was seen of each method, and whether it is more than luck."""
    base, unit = section.baseline, f" {section.axis}s" if number.whole else ""
    known = {label: [v for run in runs if not math.isnan((v := values[run])[0])] for label, runs in done.items()}
    others = [label for label in done if label != base]
    if base not in done or not others:
        for label in (label for label in done if known[label]):
            over = f" ({_kind(known[label])} of {len(known[label])} runs)" if len(known[label]) > 1 else ""
            yield f"{label}: {what} {_central(known[label], number, section.axis)}{over}.", ""
        return
    for label in others:
        pairs = [(values[a], values[b]) for a, b in section.pairs[label]]
        pairs = [pair for pair in pairs if not math.isnan(pair[0][0] + pair[1][0])]
        a, b = zip(*pairs, strict=True) if pairs else (known[label], known[base])
        if not a or not b:
            yield f"{label} and {base} cannot be compared: the log of one of them lacks the numbers.", ""
            continue
        kind = _kind((*a, *b))  # of both, or a mean would be compared with a median
        text = f"{label}: {what} {_central(a, number, section.axis, kind)}"
        text += f", under {base} {_central(b, number, section.axis, kind)}"
        if pairs:
            gaps = [subtract(*pair) for pair in pairs]
            over = f" ({kind} of {len(a)} pairs)" if len(a) > 1 else ""
            yield f"{text}{over}; {_direction(gaps, number)}.", _verdict_of_pairs(gaps, number, unit)
        else:
            over = f"{len(a)} and {len(b)} runs" if len(a) != len(b) else f"{counted(len(a), 'run')} each"
            yield f"{text} ({f'{kind} of ' if len(a) + len(b) > 2 else ''}{over}).", _verdict(a, b, number, unit)


def _kind(values: Iterable[Value]) -> str:
    return "means" if all(low == high for low, high in values) else "medians"


def _central(values: Sequence[Value], number: Number, axis: str, kind: str = "") -> str:
    """Write the mean, or with limits among the values the median."""
    limits = np.array(values, float)
    low, high = limits.mean(axis=0) if (kind or _kind(values)) == "means" else np.median(limits, axis=0)
    if not number.whole:
        return show((low, high), number.digits)
    if math.isinf(high):
        return f"not by {axis} {low:g}"
    return f"at {axis} {show((low, high), 0 if len(values) == 1 else number.digits)}"


def _direction(gaps: Sequence[Value], number: Number) -> str:
    below, above = sum(high < 0 for _, high in gaps), sum(low > 0 for low, _ in gaps)
    if not below and not above:
        return f"no pair of seeds {'shows which comes first' if number.whole else 'differs'}"
    word = ("sooner", "later") if number.whole else ("lower", "higher")
    return f"{word[below < above]} in {max(below, above)} of {counted(len(gaps), 'pair')} of seeds"


def _verdict_of_pairs(gaps: Sequence[Value], number: Number, unit: str) -> str:
    n = len(gaps)
    if n < MIN_SEEDS:
        return f"Too few pairs of seeds ({n}) to tell the rules apart."
    # A difference of two whole numbers is rounded twice.
    spread = _spread([low for low, _ in gaps], 2 * number.whole) if all(low == high for low, high in gaps) else None
    if spread is not None:
        return _by_interval(spread, f"{n} pairs of seeds", number, unit)
    below, above = sum(high < 0 for _, high in gaps), sum(low > 0 for low, _ in gaps)
    most = max(below, above)
    # What is not known speaks against the difference, and never for the opposite one.
    p = 1.0 if 2 * most <= n else sign_flip_p([1.0] * most + [-1.0] * (n - most))[0]
    return (
        f"The difference is {'' if p < 0.05 else 'not '}significant over {n} pairs of seeds (sign test, p = {p:.2g})."
    )


def _verdict(a: Sequence[Value], b: Sequence[Value], number: Number, unit: str) -> str:
    if (few := min(len(a), len(b))) < MIN_SEEDS:
        return f"Too few runs of a method ({few}) to tell the rules apart."
    parts = [_spread([sign * low for low, _ in values], number.whole) for sign, values in ((1, a), (-1, b))]
    known = [part for part in parts if part is not None]
    if any(low != high for low, high in (*a, *b)) or len(known) < 2:
        return "Nothing can be told from luck: some of these runs give limits only, or they do not vary."
    mean = average(known)
    double = mean._replace(value=2 * mean.value, centre=2 * mean.centre, error=2 * mean.error)
    return _by_interval(double, f"{len(a)} and {len(b)} runs", number, unit)


def _spread(values: Sequence[float], rounded: int) -> Spread | None:
    """Return `training_runs` with the error of rounding; None without any error."""
    spread = training_runs(values)
    if spread is None:
        return None
    error = max(spread.error, math.sqrt(rounded / 12 / len(values)))
    return spread._replace(error=error) if error > 0 else None


def _by_interval(spread: Spread, of: str, number: Number, unit: str) -> str:
    interval = spread.interval(low=-math.inf, high=math.inf)
    low, high = (show(exact(limit), number.digits, "+") for limit in interval)
    told = "not significant" if interval.low <= 0 <= interval.high else "significant"
    return f"The difference is {told}: its 95\u00a0% interval from {of} is {low} to {high}{unit}."


def _on_collapse(section: Section) -> str:
    """Write on collapse in all runs: one that collapsed is often stopped early."""
    lost: dict[str, int] = {}
    for run in section.runs:
        if run.collapse is not None and run.collapse.lasting:
            lost[run.label] = lost.get(run.label, 0) + 1
    points = max(run.points for run in section.runs)
    if lost:
        each = (f"{label} in {n} of {counted(len(section.methods[label]), 'run')}" for label, n in lost.items())
        return f"Collapsed: {join(each)}."
    if any(run.collapse is not None for run in section.runs):
        return "No lasting collapse was found; see the notes."
    if not points:
        return "No reward is logged, so nothing can be said of a collapse."
    if points < 2 * WINDOW:
        return f"The runs are too short to tell a collapse, which takes {2 * WINDOW} points."
    return "No collapse was found."
