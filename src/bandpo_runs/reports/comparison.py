"""Two results side by side: `bandpo compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bandpo.errors import UserError, counted

from ..evals.results import Result, share, unparsed
from ..statistics.comparison import Comparison, compare
from ..statistics.intervals import LEVEL, Interval


def points(value: float, sign: str = "", digits: int = 1) -> str:
    """Write a share in points: 0.2345 -> 23.5 (with `sign` "+": +23.5)."""
    return f"{100 * value:{sign}.{digits}f}"


def _bracket(interval: Interval) -> str:
    return f"[{points(interval.low, '+')}, {points(interval.high, '+')}]"


def _p(p: float | None) -> str:
    return (
        ""
        if p is None
        else "< 0.0001"
        if p < 1e-4
        else f"{p:.4f}"
        if p < 0.01
        else f"{p:.3f}"
        if p < 0.1
        else f"{p:.2f}"
    )


def _equal(p: float) -> str:
    return _p(p) if p < 1e-4 else f"= {_p(p)}"


def _many(number: float | None) -> str:
    if number is None or not math.isfinite(number) or number > 1e6:
        return "more than 1,000,000"
    number = math.ceil(number)
    if number > 100:  # it is an estimate
        scale = 10 ** (len(str(number)) - 2)
        return f"about {round(number / scale) * scale:,}"
    return str(number)


def matched(a: Result, b: Result) -> tuple[Result, Result]:
    """Give the data sets of two results one name where each has only one: a file may not say what its own is called.

    Raises:
        UserError: no data set in common, and several of one result.
    """
    have = [[graded.data for graded in side.graded] for side in (a, b)]
    if not set(have[0]).isdisjoint(have[1]):
        return a, b
    if len(a.graded) + len(b.graded) > 2:
        raise UserError(
            f"no data set in common: A has {'; '.join(have[0])}, B has {'; '.join(have[1])}. A column data_source or "
            "dataset says what the data sets of a file are called"
        )
    name = " | ".join((*have[0], *have[1]))
    one, other = (replace(side, graded=[replace(side.graded[0], data=name)]) for side in (a, b))
    note = f"its data set {have[1][0]} is compared with A's {have[0][0]}, as each has no other"
    return one, replace(other, notes=(*b.notes, note))


def compare_results(a: Result, b: Result, k: int | None = None) -> list[Comparison]:
    """Compare B with A, data set by data set and on average.

    Raises:
        ValueError: nothing in common, or k larger than the number of samples.
    """
    for result in (a, b):
        for graded in result.graded:
            if k is not None and not 1 <= k <= graded.score.shape[-1]:
                raise UserError(f"k must be from 1 to the {graded.score.shape[-1]} samples of {result.source}, got {k}")
    try:
        return compare(a.graded, b.graded, k)
    except ValueError as error:  # of numbers that do not go together; it needs no files
        raise UserError(str(error)) from None


def _table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Write columns side by side, the first to the left, the others to the right.

    A label that is too wide gets a line by itself.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    above = sum(widths) + 2 * len(widths) - 2 > width
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines += [first] if above else []
        lines.append("  ".join(["" if above else first.ljust(widths[0]), *cells]).rstrip())
    return lines


def _named(result: Result) -> str:
    """Write a result's label and its source, once if both are the same."""
    is_same = result.label in (str(result.source), result.source.name, result.source.stem)
    return str(result.source) if is_same else f"{result.label} ({result.source})"


def _better(difference: float, sure: bool, where: str, span: str, p: str) -> str:
    if not sure:
        return f"{where}: not settled. B - A is {points(difference, '+')} points, {span}{p}."
    word = "better" if difference > 0 else "worse"
    return f"{where}: yes, B is {word} by {points(abs(difference))} points, {span}{p}."


def comparison_text(
    a: Result, b: Result, comparisons: Sequence[Comparison], k: int | None = None, width: int = 100
) -> str:
    """Return the output of `bandpo compare`.

    The table is at most `width` wide; words are one line for each paragraph.
    """
    last = comparisons[-1]
    samples = last.samples
    name = f"pass@{k}" if k else f"mean@{samples[0]}" if samples[0] == samples[1] else f"mean@{samples[0]}|{samples[1]}"
    lines = [*(f"{name} = {_named(each)}" for name, each in (("A", a), ("B", b))), ""]
    reshuffled = last.p_sampling is not None  # there is no such test of pass@k
    head = [name, "prompts", "A", "B", "B - A", "sampling error", *["p"] * reshuffled, "clustered error", "p"]
    body = [
        [
            c.data,
            str(c.prompts),
            points(c.a),
            points(c.b),
            points(c.difference, "+"),
            _bracket(c.sampling.interval(low=-1.0)),
            *[_p(c.p_sampling)] * reshuffled,
            _bracket(c.clustered.interval(low=-1.0)),
            _p(c.p_clustered),
        ]
        for c in comparisons
    ]
    lines += [*_table([head, *body], width), "", "Is B better?"]
    where = f" on average over {len(comparisons) - 1} data sets" if len(comparisons) > 1 else ""
    sampling, clustered = last.sampling.interval(low=-1.0), last.clustered.interval(low=-1.0)
    known = last.settled_here
    p_sampling = "" if last.p_sampling is None else f", p {_equal(last.p_sampling)}"
    lines += [
        "  " + _better(last.difference, known, f"On these problems{where}", _bracket(sampling), p_sampling),
        "  " + _better(last.difference, last.settled_elsewhere, f"On problems like these{where}", _bracket(clustered),
                       f", p {_equal(last.p_clustered)}"),
        "  Of the method: nothing. This compares two checkpoints; another training run may differ by more. It takes "
        "several runs of each (bandpo table).",
    ]  # fmt: skip
    if last.needed is not None:
        lines += ["", *_needed_text(last, known)]
    else:
        lines += ["", "What would settle it is computed for mean@n only: leave out -k."]
    lines += ["", *_notes_of_comparison(a, b, comparisons)]
    return "\n".join(lines)


def _needed_text(last: Comparison, known: bool) -> list[str]:
    needed, (a, b) = last.needed, last.samples
    assert needed is not None
    now, each = (f"{a}", counted(a, "sample")) if a == b else (f"{a} of A, {b} of B", "as many samples")
    if last.difference == 0:
        return ["What would settle it: nothing can be said, the difference measured is 0."]
    lines = [
        f"What would settle it, if the difference is {points(abs(last.difference))} points as measured (80% power):"
    ]
    if not known:
        lines.append(f"  these problems: {_many(needed.samples_here)} samples per prompt of each (now {now})")
    if not last.settled_elsewhere:
        if needed.samples_elsewhere is None:
            lines.append(
                "  problems like these: no number of samples of these problems; the problems differ too much in it"
            )
        else:
            lines.append(
                f"  problems like these: {_many(needed.samples_elsewhere)} samples per prompt of each (now {now})"
            )
        lines.append(
            f"  problems like these: {_many(needed.prompts_elsewhere)} problems with {each} each (now {last.prompts})"
        )
    return lines if len(lines) > 1 else ["Nothing more is needed to settle it, beyond other training runs."]


def _notes_of_comparison(a: Result, b: Result, comparisons: Sequence[Comparison]) -> list[str]:
    reshuffled = comparisons[-1].p_sampling is not None
    notes = [
        "sampling error: 95% interval for these problems, sampled again; "
        + ("p by reshuffling samples within each prompt." if reshuffled else "there is no test of it for pass@k."),
        "clustered error: 95% interval for problems like these (standard error clustered by problem); p by flipping "
        "the signs of the prompts' differences.",
    ]
    for side, result in (("A", a), ("B", b)):
        facts = [f"scorer {result.scorer}"]
        for text, value in (("cut at the length limit", share([result], "truncated")),
                            ("without an answer that could be read", unparsed([result]))):  # fmt: skip
            facts += [f"{points(value)}% {text}"] if value is not None else []
        tokens = [g.tokens for g in result.graded if g.tokens is not None]
        facts += [f"{np.concatenate([t.ravel() for t in tokens]).mean():.0f} tokens on average"] if tokens else []
        notes.append(f"{side}: {', '.join(facts)}.")
        if result.collapse is not None:
            notes.append(f"{side}: its training run {result.collapse}.")
        notes += [f"{side}: {note}." for note in result.notes]
    if a.scorer != b.scorer:
        notes.append("A and B were graded by different scorers: the difference is theirs too.")
    notes += different_sampling([a, b])
    seeds = {(side.sampling or {}).get("seed") for side in (a, b)}
    if len(seeds) == 1 and None not in seeds:
        notes.append(
            "Drawn with the same --seed, from the same random numbers: the intervals of sampling error are wider than "
            "they need be."
        )
    left = {g.data: len(g.score) for g in a.graded}, {g.data: len(g.score) for g in b.graded}
    for c in comparisons:
        have = [side[c.data] for side in left if c.data in side]
        if have and max(have) > c.prompts:
            notes.append(f"{c.data}: {c.prompts} prompts in common, of {have[0]} of A and {have[1]} of B; the others "
                         "do not count.")  # fmt: skip
    alone = left[0].keys() ^ left[1].keys()
    if alone:
        notes.append(f"Only one of the two has {', '.join(sorted(alone))}.")
    if any(not c.p_clustered_exact for c in comparisons):
        notes.append("Some p-values of clustered error are from random signs, not exact.")
    if any(c.p_sampling is not None and not c.p_sampling_exact for c in comparisons):
        notes.append("Some p-values of sampling error are from a normal approximation, not exact.")
    return notes


def different_sampling(results: Sequence[Result]) -> list[str]:
    """List the settings of sampling that differ between the results that recorded them."""
    recorded = [result for result in results if result.sampling]
    keys = dict.fromkeys(key for result in recorded for key in result.sampling if key not in ("n", "seed"))
    different = []
    for key in keys:
        values = sorted({str(result.sampling.get(key)) for result in recorded})
        different += [f"{key} ({', '.join(values)})"] if len(values) > 1 else []
    return [f"Sampled differently: {'; '.join(different)}."] if different else []


def comparison_data(a: Result, b: Result, comparisons: Sequence[Comparison], k: int | None = None) -> dict[str, Any]:
    """Return the comparison as plain data, for --json; shares, not points."""
    sides = {
        side: {
            "label": result.label,
            "source": str(result.source),
            "scorer": result.scorer,
            "truncated": share([result], "truncated"),
            "unparsed": unparsed([result]),
            "collapse": None if result.collapse is None else vars(result.collapse),
        }
        for side, result in (("a", a), ("b", b))
    }
    return {
        **sides,
        "metric": f"pass@{k}" if k else "mean@n",
        "level": LEVEL,
        "results": [
            {
                "data": c.data,
                "prompts": c.prompts,
                "samples": list(c.samples),
                "a": c.a,
                "b": c.b,
                "difference": c.difference,
                "sampling_error": {
                    "interval": list(c.sampling.interval(low=-1.0)), "p": c.p_sampling, "exact": c.p_sampling_exact,
                    "settled": c.settled_here,
                },
                "clustered_error": {
                    "interval": list(c.clustered.interval(low=-1.0)), "p": c.p_clustered, "exact": c.p_clustered_exact,
                    "settled": c.settled_elsewhere,
                },
                "needed": None if c.needed is None else {
                    name: value if value is None or math.isfinite(value) else None
                    for name, value in vars(c.needed).items()
                },
            }
            for c in comparisons
        ],
    }  # fmt: skip
