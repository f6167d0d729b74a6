"""Say in sentences what a comparison shows. They tell differences from luck."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bandpo.errors import counted

from ..statistics.collapse import WINDOW
from ..statistics.comparison import sign_flip_p
from ..statistics.intervals import Spread, difference, training_runs
from .panels import NUMBERS, Number, last_of
from .sections import Run, Section
from .texts import MIN_SEEDS, join, show

# The first of them that a finished run has counts, unless all runs have it from their first row on.
_HEADLINES = (
    (NUMBERS[0], "half of the completions work"),
    (NUMBERS[1], "the reward reaches 0.5"),
    (NUMBERS[3], "the reward at the end is"),
)
SCENES = {
    "tail": "A tiny model can work step by step but almost never does. Does reward teach it that working pays? The "
    "trust region decides how fast a rare first token may grow.",
    "rare-and-noisy": "A tiny model that almost never works step by step trains on small, noisy batches, each used "
    "many times. Does the rare strategy live long enough to be learned?",
    "storm": "A tiny model that has the skill trains on small, noisy batches, each used many times. Does it keep it?",
}
LIMITS = {
    "tail": "The tail scene shows what a clip costs a rare strategy, not what it protects. Entropy falls sooner under "
    "a rule that solves the task sooner: compare it at equal reward, not at equal rounds. Other rules with a wide "
    "upper side, such as a plain Clip(0.2, 1.0), do about the same here, and so does no clip at all. The early tail "
    "share says where a rule clips; it does not predict speed.",
    "storm": "The storm scene asks what a clip protects. Over five seeds (research/measurements/lab.csv), training "
    "without a clip mostly lost a skill that was there, and every clip mostly kept it. An unlucky seed was lost under "
    "all rules. A few seeds on one small task show that a clip matters; they do not rank the clips.",
    "rare-and-noisy": "The rare-and-noisy scene asks whether a rare strategy lives until it has been learned. A few "
    "rewards are inverted. Under GRPO’s clip about a third of the runs lost it for good (5 of 16, "  # noqa: RUF001
    "research/measurements/fast_lab_search.csv). The count of lost runs decides, and it takes dozens of seeds to "
    "compare. The scene was made to have this property; it does not say how often real runs have it.",
}


def verdicts(section: Section) -> list[str]:
    """Compare each method with the baseline in sentences, and tell a collapse."""
    runs = {label: [*by_seed.values()] for label, by_seed in section.finished.items() if by_seed}
    if not runs:
        return ["No run has finished, so there is nothing to conclude yet."]
    sentences = ["These logs hold no reward, so nothing is said of who learned more."]
    for number, what in _HEADLINES:
        values = {run: number.of(run) for each in runs.values() for run in each}
        at_once = number.whole and all(math.isnan(x) or x == run.x[0] for run, x in values.items())
        # What a short run did not reach, it might have reached later.
        too_short = len({run.x[-1] for run in values}) > 1 and any(map(math.isinf, values.values()))
        if not at_once and not too_short and any(map(math.isfinite, values.values())):
            sentences = [*_compared(section, runs, number, what)]
            break
    for panel in section.validated[:1]:
        sentences += _compared(
            section, runs, last_of(panel), f"{panel.title} of the last validation, in %, is"
        )
    return [*sentences, _on_collapse(section)]


def _compared(
    section: Section, runs: Mapping[str, list[Run]], number: Number, what: str
) -> Iterator[str]:
    """Yield each method's number. Say whether its difference to the baseline is more than luck."""
    base, unit = section.baseline, f" {section.axis}s" if number.whole else ""
    values = {
        label: [x for x in map(number.of, each) if not math.isnan(x)] for label, each in runs.items()
    }
    others = [label for label in runs if label != base]

    def central(side: Sequence[float], kind: str) -> str:
        middle = float(np.mean(side) if kind == "means" else np.median(side))
        if math.isinf(middle):
            return "not within the run"
        if not number.whole:
            return show(middle, number.digits)
        return f"at {section.axis} {show(middle, 0 if len(side) == 1 else number.digits)}"

    if base is None or base not in runs or not others:
        for label, side in values.items():
            over = f" ({_kind(side)} of {len(side)} runs)" if len(side) > 1 else ""
            if side:
                yield f"{label}: {what} {central(side, _kind(side))}{over}."
        return
    few: dict[str, int] = {}  # pairs of seeds, where they are too few
    for label in others:
        pairs = [(number.of(run), number.of(twin)) for run, twin in section.pairs[label]]
        pairs = [pair for pair in pairs if not any(map(math.isnan, pair))]
        a, b = zip(*pairs, strict=True) if pairs else (values[label], values[base])
        if not a or not b:
            yield f"{label} and {base} cannot be compared: the log of one of them lacks the numbers."
            continue
        kind = _kind((*a, *b))  # of both, or a mean would be compared with a median
        text = f"{label}: {what} {central(a, kind)}, under {base} {central(b, kind)}"
        if not pairs:
            over = f"{len(a)} and {len(b)} runs" if len(a) != len(b) else f"{counted(len(a), 'run')} each"
            over = f"{kind} of {over}" if len(a) + len(b) > 2 else over
            yield f"{text} ({over}). {_verdict(a, b, number, unit)}"
            continue
        gaps = [x - y for x, y in pairs]
        text += f" ({kind} of {len(a)} pairs); {_direction(gaps, number)}." if len(a) > 1 else "."
        if len(a) < MIN_SEEDS:
            few[label] = len(a)
            yield text
        else:
            yield f"{text} {_verdict_of_pairs(gaps, number, unit)}"
    if few:
        yield f"Too few pairs of seeds ({join(sorted({*few.values()}))}) to tell {join(few)} from {base}."


def _kind(values: Iterable[float]) -> str:
    return "means" if all(map(math.isfinite, values)) else "medians"


def _direction(gaps: Sequence[float], number: Number) -> str:
    below, above = sum(gap < 0 for gap in gaps), sum(gap > 0 for gap in gaps)
    if not below and not above:
        return f"no pair of seeds {'shows which comes first' if number.whole else 'differs'}"
    words = ("sooner", "later") if number.whole else ("lower", "higher")
    return f"{words[below < above]} in {max(below, above)} of {counted(len(gaps), 'pair')} of seeds"


def _verdict_of_pairs(gaps: Sequence[float], number: Number, unit: str) -> str:
    n = len(gaps)
    spread = training_runs(gaps) if all(map(math.isfinite, gaps)) else None
    if spread is not None and spread.error > 0:
        return _by_interval(spread, f"{n} pairs of seeds", number, unit)
    most = max(sum(gap < 0 for gap in gaps), sum(gap > 0 for gap in gaps))
    # What is not known speaks against the difference, and never for the opposite one.
    p = 1.0 if 2 * most <= n else sign_flip_p([1.0] * most + [-1.0] * (n - most))[0]
    return f"The difference is {'not ' * (p >= 0.05)}significant over {n} pairs of seeds (sign test, p = {p:.2g})."


def _verdict(a: Sequence[float], b: Sequence[float], number: Number, unit: str) -> str:
    fewest = min(len(a), len(b))
    if fewest < MIN_SEEDS:
        return f"Too few runs of a method ({fewest}) to tell the rules apart."
    spreads = [training_runs(side) for side in (b, a) if all(map(math.isfinite, (*a, *b)))]
    spreads = [spread for spread in spreads if spread is not None and spread.error > 0]
    if len(spreads) < 2:
        return (
            "Nothing can be told from luck: some of these runs did not come to it, or they do not vary."
        )
    return _by_interval(difference(*spreads), f"{len(a)} and {len(b)} runs", number, unit)


def _by_interval(spread: Spread, of: str, number: Number, unit: str) -> str:
    interval = spread.interval(low=-math.inf, high=math.inf)
    low, high = (show(limit, number.digits, "+") for limit in interval)
    is_open = interval.low <= 0 <= interval.high
    return (
        f"The difference is {'not ' * is_open}significant: its 95\u00a0% interval from {of} is {low} to "
        f"{high}{unit}."
    )


def _on_collapse(section: Section) -> str:
    """Write on collapse in all runs: one that collapsed is often stopped early."""
    lost = Counter(run.label for run in section.runs if run.collapse is not None and run.collapse.lasting)
    points = max(run.points for run in section.runs)
    labels = [
        f"{label} in {n} of {counted(len(section.methods[label]), 'run')}" for label, n in lost.items()
    ]
    sentences = {
        f"Collapsed: {join(labels or [''])}.": bool(lost),
        "No lasting collapse was found; see the notes.": any(
            run.collapse is not None for run in section.runs
        ),
        "No reward is logged, so nothing can be said of a collapse.": not points,
        f"The runs are too short to tell a collapse, which takes {2 * WINDOW} points.": points
        < 2 * WINDOW,
        "No collapse was found.": True,
    }
    return next(sentence for sentence, holds in sentences.items() if holds)
