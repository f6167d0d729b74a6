"""Write checkpoints in one table for `bandpo table`, as Markdown or LaTeX."""
# ruff: noqa: RUF001  (dashes are meant)

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bandpo.errors import UserError

from ..evals.results import Result, share, unparsed
from ..statistics.estimators import per_prompt
from ..statistics.intervals import Interval, Spread, average, clustered_error, training_runs
from .comparison import different_sampling, points


@dataclass(frozen=True)
class Cell:
    """mean@n with its interval, and pass@k; best: highest under its heading."""

    mean: float
    interval: Interval
    over_runs: bool
    best_at: float
    mean_is_best: bool = False
    pass_is_best: bool = False


@dataclass(frozen=True)
class TableRow:
    heading: str
    method: str
    runs: int
    cells: tuple[Cell | None, ...]  # None: not evaluated
    marks: tuple[int, ...] = ()  # of footnotes


@dataclass(frozen=True)
class Table:
    """Rows by heading, columns by data set and then the average."""

    columns: tuple[str, ...]
    metric: str
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]
    footnotes: tuple[str, ...]


def make_table(results: Sequence[Result], k: int | None = None) -> Table:
    """Return the layout of the paper's Table 1: methods by data sets, average.

    Args:
        results: in the order of the rows; those with one label are runs of one method.
        k: of pass@k; by default the smallest number of samples.

    Raises:
        UserError: no results, the same folder twice, or k larger than the number of samples.
    """
    sources = [result.source.resolve() for result in results]
    if not results:
        raise UserError("no results; expected at least one evaluation folder")
    for result, source in zip(results, sources, strict=True):
        if sources.count(source) > 1:
            raise UserError(f"{result.source}: given twice; runs with one label must be different evaluations")
    counts = sorted({graded.score.shape[-1] for result in results for graded in result.graded})
    at = counts[0] if k is None else k
    if not 1 <= at <= counts[0]:
        raise UserError(f"k must be from 1 to the smallest number of samples {counts[0]}, got {k}")
    data = tuple(dict.fromkeys(graded.data for result in results for graded in result.graded))
    labels = list(dict.fromkeys(result.label for result in results))
    footnotes: dict[str, int] = {}
    rows: list[TableRow] = []
    for heading in dict.fromkeys(label.rpartition(" / ")[0] for label in labels):
        block = []
        for label in (label for label in labels if label.rpartition(" / ")[0] == heading):
            runs = [result for result in results if result.label == label]
            parts = [[_one(run, name, at) for run in runs] for name in data]
            parts += [[_average(of_run) for of_run in zip(*parts, strict=True)]] if len(data) > 1 else []
            marks = tuple(footnotes.setdefault(note, len(footnotes) + 1) for note in _row_notes(runs))
            block.append(TableRow(heading, runs[0].method, len(runs), tuple(map(_cell, parts)), marks))
        rows += _with_best(block)
    metric = f"mean@{counts[0] if len(counts) == 1 else 'n'} / pass@{at}"
    columns = (*data, "Average") if len(data) > 1 else data
    return Table(columns, metric, tuple(rows), tuple(_table_notes(results, rows, counts, at)), tuple(footnotes))


_Pair = tuple[Spread, Spread] | None  # mean@n and pass@k


def _one(run: Result, data: str, k: int) -> _Pair:
    graded = next((graded for graded in run.graded if graded.data == data), None)
    return graded and (clustered_error(per_prompt(graded.score)), clustered_error(per_prompt(graded.score, k)))


def _average(parts: Sequence[_Pair]) -> _Pair:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return average([mean for mean, _ in known]), average([best for _, best in known])


def _cell(runs: Sequence[_Pair]) -> Cell | None:
    known = [run for run in runs if run is not None]
    if not known:
        return None
    over_runs = training_runs([mean.value for mean, _ in known])
    spread = known[0][0] if over_runs is None else over_runs
    best = float(np.mean([best.value for _, best in known]))
    # Of runs it is printed as one number, half of it, so nothing is cut off.
    interval = spread.interval() if over_runs is None else spread.interval(low=-math.inf, high=math.inf)
    return Cell(spread.value, interval, over_runs is not None, best)


def _with_best(rows: Sequence[TableRow]) -> list[TableRow]:
    """Mark the highest of each column among several rows, as printed."""
    columns = []
    for column in zip(*(row.cells for row in rows), strict=True):
        known = [cell for cell in column if cell is not None and len(rows) > 1]
        mean, best = ({points(max(x))} if x else set() for x in ([c.mean for c in known], [c.best_at for c in known]))
        columns.append([
            cell and replace(cell, mean_is_best=points(cell.mean) in mean, pass_is_best=points(cell.best_at) in best)
            for cell in column
        ])  # fmt: skip
    return [replace(row, cells=cells) for row, cells in zip(rows, zip(*columns, strict=True), strict=True)]


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


def _table_notes(results: Sequence[Result], rows: Sequence[TableRow], counts: Sequence[int], k: int) -> list[str]:
    prompts: dict[str, set[frozenset[str]]] = {}
    for result in results:
        for graded in result.graded:
            prompts.setdefault(graded.data, set()).add(frozenset(graded.prompt_ids))
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    text = ", ".join(f"{name} {'/'.join(map(str, sorted({len(x) for x in sets})))}" for name, sets in prompts.items())
    notes = [f"Percent. Problems: {text}; {n} samples each. Scorer: {', '.join(sorted({r.scorer for r in results}))}."]
    if any(row.runs > 1 for row in rows):
        notes.append("mean ± half of the 95% interval over training runs (Student's t over as many runs as are given).")
    if any(row.runs == 1 for row in rows):
        notes.append("mean [95% interval for problems like these, clustered by problem] of one training run: what "
                     "another run would give is not in it.")  # fmt: skip
    notes.append(f"pass@{k} is unbiased (verl's best@{k}/mean estimates at most that). Bold: the highest of its column "
                 "under its heading; bandpo compare says whether that is more than noise.")  # fmt: skip
    if different := [name for name, sets in prompts.items() if len(sets) > 1]:
        notes.append(f"Not all rows have the same problems of {', '.join(different)}.")
    if len({result.scorer for result in results}) > 1:
        notes.append("Rows were graded by different scorers.")
    return notes + different_sampling(results)


# -------------------------------------------------------------------------------------------------------------- formats
def _texts(cell: Cell | None, bold: str) -> tuple[str, str, str] | None:
    """Return mean, interval and pass@k of a cell, the best in `bold`, a text with {}."""
    if cell is None:
        return None
    low, high = cell.interval
    span = f"± {points((high - low) / 2)}" if cell.over_runs else f"[{points(low)}, {points(high)}]"
    mean, best = (points(x) for x in (cell.mean, cell.best_at))
    return bold.format(mean) if cell.mean_is_best else mean, span, bold.format(best) if cell.pass_is_best else best


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
    lines.append(line(["", *[table.metric] * width]).replace("|  |", "| |", 1))
    for heading, rows in _blocks(table):
        lines += [f"| **{_markdown(heading)}** |{' |' * width}"] if heading else []
        for row in rows:
            marks = ",".join(map(str, row.marks))
            texts = [_texts(cell, "**{}**") for cell in row.cells]
            cells = ["–" if text is None else "{} {} / {}".format(*text) for text in texts]
            lines.append(line([_markdown(_name(row)) + (f"<sup>{marks}</sup>" if marks else ""), *cells]))
    notes = [*table.notes, *(f"<sup>{i}</sup> {_markdown(note)}" for i, note in enumerate(table.footnotes, 1))]
    return "\n".join([*lines, "", *(f"{note}  " for note in notes)]).rstrip() + "\n"


_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "<": r"\textless{}",
    ">": r"\textgreater{}",
})  # fmt: skip


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
            texts = [_texts(cell, "\\textbf{{{}}}") for cell in row.cells]
            cells = ["--" if x is None else f"{x[0]} {{\\scriptsize {x[1].translate(_LATEX)}}} / {x[2]}" for x in texts]
            lines.append(line([_name(row).translate(_LATEX) + marks, *cells]))
    notes = [note.translate(_LATEX) for note in table.notes]
    notes += [f"\\textsuperscript{{{i}}} {note.translate(_LATEX)}." for i, note in enumerate(table.footnotes, 1)]
    return "\n".join([
        "% \\usepackage{booktabs}", "\\begin{table}[t]", "\\centering", "\\small",
        f"\\begin{{tabular}}{{l{'r' * width}}}", "\\toprule",
        line(name.translate(_LATEX) for name in ("Method", *table.columns)),
        line(["", *[table.metric.translate(_LATEX)] * width]), *lines, "\\bottomrule", "\\end{tabular}",
        f"\\caption{{{' '.join(notes)}}}", "\\end{table}", "",
    ])  # fmt: skip


FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex}
