"""Checkpoints in one table, as Markdown, LaTeX, HTML or data: the output of `bandpo table`."""
# ruff: noqa: RUF001  (dashes are meant)

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from bandpo.errors import UserError

from ..evals.results import Result, share, unparsed
from ..statistics.estimators import per_prompt
from ..statistics.intervals import Interval, Spread, average, clustered_error, training_runs
from . import templates
from .comparison import different_sampling, points
from .templates import rendered


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
        tops = [max((float(points(x)) for x in values), default=math.nan)
                for values in ([c.mean for c in known], [c.best_at for c in known])]  # fmt: skip
        columns.append([
            cell and replace(cell, mean_is_best=float(points(cell.mean)) == tops[0],
                             pass_is_best=float(points(cell.best_at)) == tops[1])
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
def _lines(table: Table, heading: Callable[[str], list[str]], cell: Callable[..., str], row: Callable[..., str]) -> str:
    """Write the rows by writers of a heading, of a cell and of a row of cells."""
    lines, before = [], ""
    for each in table.rows:
        if each.heading != before:
            before = each.heading
            lines += heading(before)
        cells = []
        for x in each.cells:
            if x is None:
                cells.append(cell("–", "", "", False, False))
                continue
            low, high = x.interval
            span = f"± {points((high - low) / 2)}" if x.over_runs else f"[{points(low)}, {points(high)}]"
            cells.append(cell(points(x.mean), span, points(x.best_at), x.mean_is_best, x.pass_is_best))
        name = each.method + (f" ({each.runs} runs)" if each.runs > 1 else "")
        lines.append(row(name, ",".join(map(str, each.marks)), cells))
    return "\n".join(lines)


def _markdown(text: str) -> str:
    for character in "\\`*_<>|[]":
        text = text.replace(character, f"\\{character}")
    return text


def markdown(table: Table) -> str:
    """Write the table for a README or an issue."""

    def bold(text: str, is_best: bool) -> str:
        return f"**{text}**" if is_best else text

    body = _lines(
        table,
        lambda name: [f"| **{_markdown(name)}** |{' |' * len(table.columns)}"],
        lambda mean, span, best, *is_best: (
            f"{bold(mean, is_best[0])} {span} / {bold(best, is_best[1])}" if span else mean
        ),
        lambda name, marks, cells: f"| {_markdown(name)}{marks and f'<sup>{marks}</sup>'} | {' | '.join(cells)} |",
    )
    head = f"| Method | {' | '.join(map(_markdown, table.columns))} |\n|:--|{'--:|' * len(table.columns)}"
    notes = [*table.notes, *(f"<sup>{i}</sup> {_markdown(note)}" for i, note in enumerate(table.footnotes, 1))]
    metric = f"| | {' | '.join([table.metric] * len(table.columns))} |"
    return "\n".join([head, metric, body, "", *(f"{note}  " for note in notes)]).rstrip() + "\n"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "<": r"\textless{}",
    ">": r"\textgreater{}",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def latex(table: Table) -> str:
    """Write a LaTeX table environment, which needs the package booktabs."""
    width, seen = len(table.columns), []

    def heading(name: str) -> list[str]:
        seen.append(name)
        title = f"\\multicolumn{{{width + 1}}}{{c}}{{\\textbf{{{_latex(name)}}}}} \\\\"
        return [*(["\\midrule"] if seen[1:] else []), title]

    def cell(mean: str, span: str, best: str, *is_best: bool) -> str:
        mean, best = (f"\\textbf{{{x}}}" if y else x for x, y in zip((mean, best), is_best, strict=True))
        return f"{mean} {{\\scriptsize {_latex(span)}}} / {best}" if span else "--"

    def row(name: str, marks: str, cells: list[str]) -> str:
        marks = f"\\textsuperscript{{{marks}}}" if marks else ""
        return f"{_latex(name)}{marks} & {' & '.join(cells)} \\\\"

    notes = [_latex(note) for note in table.notes]
    notes += [f"\\textsuperscript{{{i}}} {_latex(note)}." for i, note in enumerate(table.footnotes, 1)]
    return "\n".join([
        "% \\usepackage{booktabs}", "\\begin{table}[t]", "\\centering", "\\small",
        f"\\begin{{tabular}}{{l{'r' * width}}}", "\\toprule",
        f"Method & {' & '.join(map(_latex, table.columns))} \\\\",
        f" & {' & '.join([_latex(table.metric)] * width)} \\\\", "\\midrule", _lines(table, heading, cell, row),
        "\\bottomrule", "\\end{tabular}", f"\\caption{{{' '.join(notes)}}}", "\\end{table}", "",
    ])  # fmt: skip


def html(table: Table) -> str:
    """Write a page that needs nothing else."""
    rows: list[Any] = []

    def heading(name: str) -> list[str]:
        rows.append((name, []))
        return []

    def cell(mean: str, span: str, best: str, *is_best: bool) -> Any:
        bold = [Markup("<b>{}</b>").format(x) if y else x for x, y in zip((mean, best), is_best, strict=True)]
        return (Markup("{} / {}").format(*bold), span) if span else (mean,)

    def row(name: str, marks: str, cells: list[Any]) -> str:
        rows.append((Markup("{}<sup>{}</sup>").format(name, marks) if marks else name, cells))
        return ""

    _lines(table, heading, cell, row)
    notes = [*table.notes, *(Markup("<sup>{}</sup> {}").format(i, x) for i, x in enumerate(table.footnotes, 1))]
    head = [("Method", ""), *((name, table.metric) for name in table.columns)]
    return rendered("table.html.jinja", results=templates.Table("Results", head, rows, notes))


def as_json(table: Table) -> str:
    """Return the whole table as plain data, shares and not points."""
    return json.dumps(asdict(table), indent=2, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "html": html, "json": as_json}
