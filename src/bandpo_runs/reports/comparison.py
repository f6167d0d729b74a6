"""Show two results side by side: the output of `bandpo compare`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bandpo.errors import UserError, counted

from ..evals.results import Result, answered, share, unparsed
from ..statistics.comparison import Comparison, Judged, compare
from ..statistics.intervals import LEVEL, Interval


def points(value: float, sign: str = "", digits: int = 1) -> str:
    """Write a share in points: 0.2345 -> 23.5 (with `sign` "+": +23.5)."""
    return f"{100 * value:{sign}.{digits}f}"


def _bracket(interval: Interval) -> str:
    return f"[{points(interval.low, '+')}, {points(interval.high, '+')}]"


def _p(p: float | None, equals: str = "") -> str:
    if p is None:
        return ""
    if p < 1e-4:
        return "< 0.0001"
    return f"{equals}{p:.{4 if p < 0.01 else 3 if p < 0.1 else 2}f}"


def many(number: float | None) -> str:
    if number is None or not number <= 1e6:
        return "more than 1,000,000"
    number = math.ceil(number)
    return str(number) if number < 100 else f"about {float(f'{number:.2g}'):,.0f}"  # it is an estimate


def matched(a: Result, b: Result) -> tuple[Result, Result]:
    """Give the only data sets of two results one name: a file may not name its own."""
    names = [[graded.data for graded in side.graded] for side in (a, b)]
    if names[0] == names[1] or not len(names[0]) == len(names[1]) == 1:
        return a, b
    name = " | ".join((*names[0], *names[1]))
    one, other = (replace(side, graded=[replace(side.graded[0], data=name)]) for side in (a, b))
    return one, replace(
        other, notes=(*b.notes, f"its data set {names[1][0]} is compared with A's {names[0][0]}, as each has no other")
    )


def compare_results(a: Result, b: Result, k: int | None = None) -> list[Comparison]:
    """Compare B with A, data set by data set and on average.

    Raises:
        UserError: nothing in common, no answers, or k larger than the number of samples.
    """
    try:
        return compare(answered(a).graded, answered(b).graded, k)
    except ValueError as error:
        raise UserError(str(error)) from None


def comparison_text(
    a: Result, b: Result, comparisons: Sequence[Comparison], k: int | None = None, width: int = 100
) -> str:
    """Return the output of `bandpo compare`; words are one line for each paragraph.

    Where its table is wider than `width`, names of data sets have lines of their own.
    """
    last = comparisons[-1]
    samples, here, elsewhere = last.samples, last.sampling_error, last.clustered_error
    name = f"pass@{k}" if k else f"mean@{samples[0]}" if samples[0] == samples[1] else f"mean@{samples[0]}|{samples[1]}"
    lines = [*(f"{side} = {_named(each)}" for side, each in (("A", a), ("B", b))), ""]
    rows = [[name, "prompts", "A", "B", "B - A", "sampling error", "p", "clustered error", "p"]]
    for c in comparisons:
        rows.append(
            [
                c.data,
                str(c.prompts),
                points(c.a),
                points(c.b),
                points(c.difference, "+"),
                *[
                    text
                    for each in (c.sampling_error, c.clustered_error)
                    for text in (_bracket(each.interval), _p(each.p))
                ],
            ]
        )
    if here.p is None:  # pass@k has no such test
        rows = [[*row[:6], *row[7:]] for row in rows]
    where = f" on average over {len(comparisons) - 1} data sets" if len(comparisons) > 1 else ""
    lines += [
        *_table(rows, width), "", "Is B better?",
        "  " + _better(f"On these problems{where}", last.difference, here),
        "  " + _better(f"On problems like these{where}", last.difference, elsewhere),
        "  Of the method: nothing. This compares two checkpoints; another training run may differ by more. It takes "
        "several runs of each (bandpo table).", "", *_needed(last), "", *_notes(a, b, comparisons),
    ]  # fmt: skip
    return "\n".join(lines)


def _named(result: Result) -> str:
    """Write a result's label and its source, once if both are the same."""
    is_same = result.label in (str(result.source), result.source.name, result.source.stem)
    return str(result.source) if is_same else f"{result.label} ({result.source})"


def _table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Write columns side by side."""
    first, *rest = (max(map(len, column)) for column in zip(*rows, strict=True))
    numbers = ["  ".join(map(str.rjust, row[1:], rest)).rstrip() for row in rows]
    if max(map(len, numbers)) + first + 2 > width:
        return [line for row, line in zip(rows, numbers, strict=True) for line in (row[0], line)]
    return [f"{row[0].ljust(first)}  {line}" for row, line in zip(rows, numbers, strict=True)]


def _better(where: str, difference: float, error: Judged) -> str:
    span = _bracket(error.interval) + (f", p {_p(error.p, '= ')}" if error.p is not None else "")
    if not error.settled:
        return f"{where}: not settled. B - A is {points(difference, '+')} points, {span}."
    word = "yes, B is better" if difference > 0 else "no, B is worse"
    return f"{where}: {word} by {points(abs(difference))} points, {span}."


def _needed(last: Comparison) -> list[str]:
    if (needed := last.needed) is None:
        return ["What would settle it is computed for mean@n only: leave out -k."]
    if last.difference == 0:
        return ["What would settle it: nothing can be said, the difference measured is 0."]
    a, b = last.samples
    now, each = (f"{a}", counted(a, "sample")) if a == b else (f"{a} of A, {b} of B", "as many samples")
    size = points(abs(last.difference))
    lines = [f"What would settle it, if the difference is {size} points as measured (80% power):"]
    if not last.sampling_error.settled:
        lines.append(f"  these problems: {many(needed.samples_here)} samples per prompt of each (now {now})")
    if not last.clustered_error.settled:
        samples = "no number of samples of these problems; the problems differ too much in it"
        if needed.samples_elsewhere is not None:
            samples = f"{many(needed.samples_elsewhere)} samples per prompt of each (now {now})"
        problems = f"{many(needed.prompts_elsewhere)} problems with {each} each (now {last.prompts})"
        lines += [f"  problems like these: {samples}", f"  problems like these: {problems}"]
    return lines if len(lines) > 1 else ["Nothing more is needed to settle it, beyond other training runs."]


def _notes(a: Result, b: Result, comparisons: Sequence[Comparison]) -> list[str]:
    has_test = comparisons[-1].sampling_error.p is not None
    test = "p by reshuffling samples within each prompt" if has_test else "pass@k has no such test"
    notes = [
        f"sampling error: 95% interval for these problems, sampled again; {test}.",
        "clustered error: 95% interval for problems like these (standard error clustered by problem); p by flipping "
        "the signs of the prompts' differences.",
    ]
    for side, result in (("A", a), ("B", b)):
        facts = [f"scorer {result.scorer}"]
        for text, value in (("cut at the length limit", share([result], "truncated")),
                            ("without an answer that could be read", unparsed([result]))):  # fmt: skip
            facts += [f"{points(value)}% {text}"] if value is not None else []
        notes.append(f"{side}: {', '.join(facts)}.")
        notes += [f"{side}: its training run {result.collapse}."] if result.collapse is not None else []
        notes += [f"{side}: {note}." for note in result.notes]
    sizes = [{g.data: len(g.score) for g in side.graded} for side in (a, b)]
    both, alone = sizes[0].keys() & sizes[1].keys(), sizes[0].keys() ^ sizes[1].keys()
    return [
        *notes,
        *["A and B were graded by different scorers: the difference is theirs too."] * (a.scorer != b.scorer),
        *different_sampling([a, b]),
        *(
            f"{c.data}: {c.prompts} prompts in common, of {sizes[0][c.data]} of A and {sizes[1][c.data]} of B; the "
            "others do not count."
            for c in comparisons[: len(both)]
            if max(sizes[0][c.data], sizes[1][c.data]) > c.prompts
        ),
        *[f"Only one of the two has {', '.join(sorted(alone))}."] * bool(alone),
    ]


def different_sampling(results: Sequence[Result]) -> list[str]:
    """List the settings of sampling that differ between the results."""
    recorded = [result for result in results if result.sampling]
    different = []
    for key in dict.fromkeys(key for result in recorded for key in result.sampling if key not in ("n", "seed")):
        values = list(dict.fromkeys(str(result.sampling.get(key)) for result in recorded))
        different += [f"{key} ({', '.join(values)})"] if len(values) > 1 else []
    return [f"Sampled differently: {'; '.join(different)}."] if different else []


def comparison_data(a: Result, b: Result, comparisons: Sequence[Comparison], k: int | None = None) -> dict[str, Any]:
    """Return the comparison as plain data, for --json; shares, not points."""
    sides = {
        name: {
            "label": side.label, "source": str(side.source), "scorer": side.scorer,
            "truncated": share([side], "truncated"), "unparsed": unparsed([side]),
            "collapse": None if side.collapse is None else vars(side.collapse),
        }
        for name, side in (("a", a), ("b", b))
    }  # fmt: skip
    results = [dataclasses.asdict(c) for c in comparisons]
    for result in results:  # JSON has no infinity
        needed = result["needed"] or {}
        needed |= {name: None for name, value in needed.items() if value is not None and math.isinf(value)}
    return {**sides, "metric": f"pass@{k}" if k else "mean@n", "level": LEVEL, "results": results}
