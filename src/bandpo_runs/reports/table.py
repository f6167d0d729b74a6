"""Write checkpoints in one table for `bandpo table`, as Markdown or LaTeX."""
# ruff: noqa: RUF001  (dashes are meant)

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bandpo.errors import UserError

from ..evals.results import Result, in_paper, papers_order, share, unparsed
from ..statistics.estimators import best_at_k_bootstrap, per_prompt
from ..statistics.intervals import (
    Interval,
    Spread,
    average,
    clustered_error,
    difference,
    runs_needed,
    training_runs,
)
from .comparison import different_sampling, many, points


@dataclass(frozen=True)
class Value:
    """A number with its interval, which one of a log has not. is_best: highest under its heading."""

    value: float
    interval: Interval | None
    is_best: bool = False


Cell = tuple[Value | None, ...]  # of each measure; None: not known of every run


@dataclass(frozen=True)
class TableRow:
    heading: str
    method: str
    runs: int
    cells: tuple[Cell, ...]
    marks: tuple[int, ...] = ()  # of footnotes


@dataclass(frozen=True)
class Table:
    """Rows by heading, columns by data set and then the average."""

    columns: tuple[str, ...]
    measures: tuple[str, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]
    footnotes: tuple[str, ...]


def make_table(results: Sequence[Result], k: int | None = None) -> Table:
    """Return the layout of the paper's Table 1: methods by data sets, average.

    Args:
        results: in the order of the rows; those with one label are runs of one method.
        k: of pass@k; by default the smallest number of samples.

    Raises:
        UserError: no results, or k larger than the number of samples.
    """
    if not results:
        raise UserError("no results; expected at least one evaluation folder")
    counts = sorted({graded.score.shape[-1] for result in results for graded in result.graded})
    counts = sorted({*counts, *(logged.samples for result in results for logged in result.logged)})
    at = counts[0] if k is None else k
    if not 1 <= at <= counts[0]:
        raise UserError(f"k must be from 1 to the smallest number of samples {counts[0]}, got {k}")
    data = papers_order(in_paper(each.data) for result in results for each in (*result.graded, *result.logged))
    names = f"mean@{counts[0] if len(counts) == 1 else 'n'}", f"best@{at} (verl)", f"pass@{at}"
    has_best = any(at in logged.best for result in results for logged in result.logged)
    measures = names[: 1 if at == 1 else 3 if any(result.graded for result in results) else 1 + has_best]
    labels = list(dict.fromkeys(result.label for result in results))
    footnotes: dict[str, int] = {}
    rows: list[TableRow] = []
    settled: list[str] = []
    for heading in dict.fromkeys(label.rpartition(" / ")[0] for label in labels):
        block, last = [], {}
        for label in (label for label in labels if label.rpartition(" / ")[0] == heading):
            runs = [result for result in results if result.label == label]
            parts = [[_numbers(run, name, at)[: len(measures)] for run in runs] for name in data]
            parts += [[_average(of_run) for of_run in zip(*parts, strict=True)]] if len(data) > 1 else []
            marks = tuple(footnotes.setdefault(note, len(footnotes) + 1) for note in _row_notes(runs))
            block.append(
                TableRow(
                    heading,
                    runs[0].method,
                    len(runs),
                    tuple(tuple(map(_value, zip(*part, strict=True))) for part in parts),
                    marks,
                )
            )
            last[runs[0].method] = [mean.value for mean, *_ in parts[-1] if mean is not None]
        rows += _with_best(block)
        settled += [f"{f'{heading}: ' * bool(heading)}{text}" for text in _settled(last)]
    columns = [*data, "Average"] if len(data) > 1 else data
    if settled:
        settled = [f"{columns[-1]}, {measures[0]}, over training runs (95% interval by Welch's t):", *settled]
    return Table(
        tuple(columns),
        measures,
        tuple(rows),
        (*_table_notes(results, rows, counts, measures), *settled),
        tuple(footnotes),
    )


_Numbers = tuple[Spread | None, ...]  # mean@n, verl's best@k and pass@k


def _numbers(run: Result, data: str, k: int) -> _Numbers:
    for graded in (each for each in run.graded if in_paper(each.data) == data):
        values = per_prompt(graded.score), best_at_k_bootstrap(graded.score, k), per_prompt(graded.score, k)
        return tuple(map(clustered_error, values))
    for logged in (each for each in run.logged if in_paper(each.data) == data):
        known = logged.mean, logged.best.get(k), None
        return tuple(value if value is None else Spread(value, value, math.nan) for value in known)
    return (None,) * 3


def _average(parts: Sequence[_Numbers]) -> _Numbers:
    known = [[part for part in each if part is not None] for each in zip(*parts, strict=True)]
    return tuple(average(each) if len(each) == len(parts) else None for each in known)


def _value(runs: _Numbers) -> Value | None:
    known = [run for run in runs if run is not None]
    if len(known) < len(runs):
        return None
    if over_runs := training_runs([run.value for run in known]):
        # It is printed as one number, half of it, so nothing is cut off.
        return Value(over_runs.value, over_runs.interval(low=-math.inf, high=math.inf))
    return Value(known[0].value, None if math.isnan(known[0].error) else known[0].interval())


def _with_best(rows: Sequence[TableRow]) -> list[TableRow]:
    """Mark the highest of each measure and column among several rows, as printed."""
    columns = []
    for column in zip(*(row.cells for row in rows), strict=True):
        measures = []
        for values in zip(*column, strict=True):
            most = points(max((each.value for each in values if each), default=0.0))
            measures.append(
                [each and replace(each, is_best=len(rows) > 1 and points(each.value) == most) for each in values]
            )
        columns.append([*zip(*measures, strict=True)])
    return [replace(row, cells=cells) for row, cells in zip(rows, zip(*columns, strict=True), strict=True)]


def _settled(runs: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Compare methods with several runs with GRPO or the first one. Say how many runs would settle it."""
    several = {method: (values, spread) for method, values in runs.items() if (spread := training_runs(values))}
    first, *others = sorted(several, key=lambda method: not method.upper().startswith("GRPO")) or [""]
    for method in others:
        (a, of_a), (b, of_b) = several[first], several[method]
        gap = difference(of_a, of_b)
        low, high = gap.interval(low=-math.inf, high=math.inf)
        told = f"{method} minus {first}: {points(gap.value, '+')} [{points(low, '+')}, {points(high, '+')}]"
        needed = many(runs_needed(gap.value, [float(np.var(each, ddof=1)) for each in (a, b)]))
        now = f"of each would settle such a difference (80% power; now {len(a)} and {len(b)})"
        yield f"{told}, {'settled' if low > 0 or high < 0 else f'not settled; {needed} runs {now}'}."


def _row_notes(runs: Sequence[Result]) -> list[str]:
    truncated, unread = share(runs, "truncated"), unparsed(runs)
    facts = [f"{points(truncated)}% of the samples cut at the length limit"] if truncated else []
    facts += [f"{points(unread)}% without an answer that could be read"] if unread else []
    notes = [", ".join(facts)] if facts else []
    for i, run in enumerate(runs, 1):
        which = f"run {i} of {len(runs)}" if len(runs) > 1 else "its run"
        notes += [f"{which} {run.collapse}"] if run.collapse is not None else []
        notes += [f"{which}, {note}" if len(runs) > 1 else note for note in run.notes]
    return notes


def _table_notes(
    results: Sequence[Result], rows: Sequence[TableRow], counts: Sequence[int], measures: Sequence[str]
) -> list[str]:
    prompts: dict[str, set[frozenset[str]]] = {}
    for graded in (graded for result in results for graded in result.graded):
        prompts.setdefault(in_paper(graded.data), set()).add(frozenset(graded.prompt_ids))
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    sizes = {name: "/".join(map(str, sorted({len(x) for x in prompts[name]}))) for name in papers_order(prompts)}
    text = ", ".join(f"{name} {size}" for name, size in sizes.items())
    said = f"Problems: {text}; {n} samples each" if text else f"{n} samples of each problem"
    at = [(result.label, f"{result.step:.15g}") for result in results if result.step is not None]
    steps = {step for _, step in at}
    different = [name for name, sets in prompts.items() if len(sets) > 1]
    notes = {
        f"Percent. {said}. Scorer: {', '.join(sorted({r.scorer for r in results}))}.": True,
        f"Validation at step {', '.join(steps)}.": len(steps) == 1,
        f"Not all of one step: {', '.join(dict.fromkeys(map(' '.join, at)))}.": len(steps) > 1,
        "± half of the 95% interval over training runs (Student's t over as many runs as are given).": any(
            row.runs > 1 for row in rows
        ),
        "[95% interval for problems like these, clustered by problem] of one training run: what another run would give "
        "is not in it.": any(row.runs == 1 for row in rows) and bool(prompts),
        "A row of one log has no interval: a log holds means and no answers. verl's dumps have them "
        "(trainer.validation_data_dir).": any(result.logged for result in results),
        f"{measures[len(measures) > 1]} is verl's best@k/mean, drawn with replacement, which the paper "
        "prints as pass@32; it is at most the unbiased pass@k.": len(measures) > 1,
        "Bold: the highest of its column under its heading, which may be noise.": True,
        f"Not all rows have the same problems of {', '.join(different)}.": bool(different),
        "Rows were graded by different scorers.": len({result.scorer for result in results}) > 1,
    }
    return [note for note, holds in notes.items() if holds] + different_sampling(results)


# -------------------------------------------------------------------------------------------------------------- formats
def _texts(cell: Cell, row: TableRow, bold: str, small: str = "{}") -> list[str]:
    """Write each number with its interval. The best is in `bold`, intervals in `small`, both texts with {}."""
    texts = []
    for each in cell:
        low, high = (each and each.interval) or (math.nan, math.nan)
        span = f"± {points((high - low) / 2)}" if row.runs > 1 else f"[{points(low)}, {points(high)}]"
        text = "–" if each is None else bold.format(points(each.value)) if each.is_best else points(each.value)
        texts.append(f"{text} {small.format(span)}" if each and each.interval else text)
    return texts if any(cell) else ["–"]


def _blocks(table: Table) -> list[tuple[str, list[TableRow]]]:
    return [(heading, list(rows)) for heading, rows in itertools.groupby(table.rows, lambda row: row.heading)]


def _name(row: TableRow) -> str:
    return row.method + (f" ({row.runs} runs)" if row.runs > 1 else "")


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text)


def markdown(table: Table) -> str:
    """Write the table for a README or an issue."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    width = len(table.columns)
    lines = [line(map(_markdown, ("Method", *table.columns))), f"|:--|{'--:|' * width}"]
    lines.append(line(["", *[" / ".join(table.measures)] * width]).replace("|  |", "| |", 1))
    for heading, rows in _blocks(table):
        lines += [f"| **{_markdown(heading)}** |{' |' * width}"] if heading else []
        for row in rows:
            marks = ",".join(map(str, row.marks))
            cells = [" / ".join(_texts(cell, row, "**{}**")) for cell in row.cells]
            lines.append(line([_markdown(_name(row)) + (f"<sup>{marks}</sup>" if marks else ""), *cells]))
    notes = [*table.notes, *(f"<sup>{i}</sup> {_markdown(note)}" for i, note in enumerate(table.footnotes, 1))]
    return "\n".join([*lines, "", *(f"{note}  " for note in notes)]).rstrip() + "\n"


_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "<": r"\textless{}",
    ">": r"\textgreater{}",
})  # fmt: skip


def _stacked(texts: Sequence[str]) -> str:
    """Put the numbers of a cell above each other. With intervals they are too wide for a page."""
    lines = [text.replace("±", r"$\pm$").replace("–", "--") for text in texts]
    return "\\shortstack[r]{" + " \\\\ ".join(lines) + "}" if lines[1:] else lines[0]


def latex(table: Table) -> str:
    """Write a LaTeX table environment, which needs the package booktabs."""
    width, lines = len(table.columns), []

    def line(cells: Iterable[str]) -> str:
        return f"{' & '.join(cells)} \\\\"

    for heading, rows in _blocks(table):
        lines += ["\\midrule"]
        lines += (
            [f"\\multicolumn{{{width + 1}}}{{c}}{{\\textbf{{{heading.translate(_LATEX)}}}}} \\\\"] if heading else []
        )
        for row in rows:
            marks = f"\\textsuperscript{{{','.join(map(str, row.marks))}}}" if row.marks else ""
            cells = [_stacked(_texts(cell, row, "\\textbf{{{}}}", "{{\\scriptsize {}}}")) for cell in row.cells]
            lines.append(line([_name(row).translate(_LATEX) + marks, *cells]))
    notes = [note.translate(_LATEX) for note in table.notes]
    notes += [f"\\textsuperscript{{{i}}} {note.translate(_LATEX)}." for i, note in enumerate(table.footnotes, 1)]
    return "\n".join([
        "% \\usepackage{booktabs}", "\\begin{table}[t]", "\\centering", "\\small",
        f"\\begin{{tabular}}{{l{'r' * width}}}", "\\toprule",
        line(name.translate(_LATEX) for name in ("Method", *table.columns)),
        line(["", *[_stacked(table.measures)] * width]), *lines, "\\bottomrule", "\\end{tabular}",
        f"\\caption{{{' '.join(notes)}}}", "\\end{table}", "",
    ])  # fmt: skip


FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex}
