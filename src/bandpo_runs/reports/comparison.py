"""Show two results side by side: the output of `bandpo compare`."""

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..evals.results import Result, answered, share, unparsed
from ..statistics.comparison import Comparison, Judged, compare
from ..statistics.intervals import LEVEL, Interval
from .texts import points


def _bracket(interval: Interval) -> str:
    return f"[{points(interval.low, '+')}, {points(interval.high, '+')}]"


def _p(p: float, equals: str = "") -> str:
    if p < 1e-4:
        return "< 0.0001"
    return f"{equals}{p:.{4 if p < 0.01 else 3 if p < 0.1 else 2}f}"


def matched(a: Result, b: Result) -> tuple[Result, Result]:
    """Give the only data sets of two results one name: a file may not name its own."""
    names = [[graded.data for graded in side.graded] for side in (a, b)]
    if names[0] == names[1] or not len(names[0]) == len(names[1]) == 1:
        return a, b
    note = f"its data set {names[1][0]} is compared with A's {names[0][0]}, as each has no other"
    one, other = (
        replace(side, graded=[replace(side.graded[0], data=f"{names[0][0]} | {names[1][0]}")])
        for side in (a, b)
    )
    return one, replace(other, notes=(*b.notes, note))


def compare_results(a: Result, b: Result) -> list[Comparison]:
    """Compare B with A, data set by data set and on average.

    Raises:
        UserError: nothing in common, or no answers.
    """
    return compare(answered(a).graded, answered(b).graded)


def comparison_text(a: Result, b: Result, comparisons: Sequence[Comparison], width: int = 100) -> str:
    """Return the output of `bandpo compare`; words are one line for each paragraph.

    Where its table is wider than `width`, names of data sets have lines of their own.
    """
    last = comparisons[-1]
    on_average = f" on average over {len(comparisons) - 1} data sets" if len(comparisons) > 1 else ""
    return "\n".join(
        [
            f"A = {a.label} ({a.source})",
            f"B = {b.label} ({b.source})",
            "",
            *_table(_rows(comparisons), width),
            "",
            "Is B better?",
            "  " + _better(f"On these problems{on_average}", last.difference, last.sampling_error),
            "  " + _better(f"On problems like these{on_average}", last.difference, last.clustered_error),
            "  Of the method: nothing, because another training run may differ by more. "
            "Several runs of each: bandpo table",
            "",
            *_notes(a, b, comparisons),
        ]
    )


def _rows(comparisons: Sequence[Comparison]) -> list[list[str]]:
    samples = comparisons[-1].samples
    rows = [
        [
            f"mean@{'|'.join(map(str, dict.fromkeys(samples)))}",
            "prompts",
            "A",
            "B",
            "B - A",
            "sampling error",
            "p",
            "clustered error",
            "p",
        ]
    ]
    for c in comparisons:
        shares = points(c.a), points(c.b), points(c.difference, "+")
        errors = [
            (_bracket(error.interval), _p(error.p)) for error in (c.sampling_error, c.clustered_error)
        ]
        rows.append([c.data, str(c.prompts), *shares, *errors[0], *errors[1]])
    return rows


def _table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Write columns side by side."""
    first, *rest = (max(map(len, column)) for column in zip(*rows, strict=True))
    numbers = ["  ".join(map(str.rjust, row[1:], rest)).rstrip() for row in rows]
    if max(map(len, numbers)) + first + 2 > width:
        return [line for row, line in zip(rows, numbers, strict=True) for line in (row[0], line)]
    return [f"{row[0].ljust(first)}  {line}" for row, line in zip(rows, numbers, strict=True)]


def _better(where: str, difference: float, error: Judged) -> str:
    span = f"{_bracket(error.interval)}, p {_p(error.p, '= ')}"
    if not error.settled:
        return f"{where}: not settled. B - A is {points(difference, '+')} points, {span}."
    verdict = "yes," if difference > 0 else "no, B is worse"
    return f"{where}: {verdict} by {points(abs(difference))} points, {span}."


def _notes(a: Result, b: Result, comparisons: Sequence[Comparison]) -> list[str]:
    notes = [
        "95% intervals: sampling error for these problems, clustered error for problems like these. "
        "More: docs/evaluate.md"
    ]
    for side, result in (("A", a), ("B", b)):
        shares = {
            "cut at the length limit": share([result], "truncated"),
            "without an answer that could be read": unparsed([result]),
        }
        facts = [f"{points(value)}% {text}" for text, value in shares.items() if value is not None]
        facts += [] if result.collapse is None else [f"its training run {result.collapse}"]
        notes.append(f"{side}: {'; '.join([f'scorer {result.scorer}', *facts, *result.notes])}.")
    if a.scorer != b.scorer:
        notes.append("A and B were graded by different scorers: the difference is theirs too.")
    notes += different_sampling([a, b])
    sizes_a, sizes_b = ({graded.data: len(graded.score) for graded in side.graded} for side in (a, b))
    for c in [c for c in comparisons if c.data in sizes_a]:
        if max(sizes_a[c.data], sizes_b[c.data]) > c.prompts:
            notes.append(
                f"{c.data}: {c.prompts} prompts in common, of {sizes_a[c.data]} of A and {sizes_b[c.data]} of B; the "
                "others do not count."
            )
    if sizes_a.keys() != sizes_b.keys():
        notes.append(f"Only one of the two has {', '.join(sorted(sizes_a.keys() ^ sizes_b.keys()))}.")
    return notes


def different_sampling(results: Sequence[Result]) -> list[str]:
    """List the settings of sampling that differ between the results."""
    recorded = [result for result in results if result.sampling]
    different = []
    for key in dict.fromkeys(
        key for result in recorded for key in result.sampling if key not in ("n", "seed")
    ):
        values = list(dict.fromkeys(str(result.sampling.get(key)) for result in recorded))
        different += [f"{key} ({', '.join(values)})"] if len(values) > 1 else []
    return [f"Sampled differently: {'; '.join(different)}."] if different else []


def comparison_data(a: Result, b: Result, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the comparison as plain data, for --json; shares, not points."""
    sides = {
        name: {
            "label": side.label,
            "source": str(side.source),
            "scorer": side.scorer,
            "truncated": share([side], "truncated"),
            "unparsed": unparsed([side]),
            "collapse": None if side.collapse is None else vars(side.collapse),
        }
        for name, side in (("a", a), ("b", b))
    }
    return {
        **sides,
        "metric": "mean@n",
        "level": LEVEL,
        "results": [dataclasses.asdict(c) for c in comparisons],
    }
