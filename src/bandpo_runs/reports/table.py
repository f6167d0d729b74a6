"""Checkpoints in one table, as Markdown, LaTeX, HTML or data: `bandpo table`."""
# ruff: noqa: RUF001  (dashes are meant)

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np

from bandpo.errors import UserError

from ..evals.results import Result, share, unparsed
from ..statistics.estimators import per_prompt
from ..statistics.intervals import Interval, Spread, average, clustered_error, training_runs
from .comparison import different_sampling, points
from .content_security import POLICY


@dataclass(frozen=True)
class Cell:
    """mean@n with its interval, and pass@k; `best`: the highest of its column under its heading."""

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
    """Rows by heading, columns by data set and then the average; `notes` are for all, `footnotes` are numbered."""

    columns: tuple[str, ...]
    metric: str
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]
    footnotes: tuple[str, ...]


def make_table(results: Sequence[Result], k: int | None = None) -> Table:
    """Return the layout of the paper's Table 1: models and methods by data sets, mean@n / pass@k, average.

    Args:
        results: in the order of the rows; those with one label are runs of one method.
        k: of pass@k; by default the smallest number of samples.

    Raises:
        ValueError: no results, the same folder twice, or k larger than the number of samples.
    """
    if not results:
        raise UserError("no results; expected at least one evaluation folder")
    seen: dict[Path, Result] = {}
    for result in results:
        if result.source.resolve() in seen:
            raise UserError(f"{result.source}: given twice; runs with one label must be different evaluations")
        seen[result.source.resolve()] = result
    counts = sorted({graded.score.shape[-1] for result in results for graded in result.graded})
    at = counts[0] if k is None else k
    if not 1 <= at <= counts[0]:
        raise UserError(f"k must be from 1 to the smallest number of samples {counts[0]}, got {k}")
    data = tuple(dict.fromkeys(graded.data for result in results for graded in result.graded))
    labels = dict.fromkeys(result.label for result in results)
    headings = dict.fromkeys(label.rpartition(" / ")[0] for label in labels)
    footnotes: dict[str, int] = {}
    rows = []
    for heading in headings:
        block = []
        for label in labels:
            runs = [result for result in results if result.label == label]
            if runs[0].heading != heading:
                continue
            cells = [_cell([_one(run, name, at) for run in runs]) for name in data]
            if len(data) > 1:
                cells.append(_cell([_average(run, data, at) for run in runs]))
            marks = tuple(footnotes.setdefault(note, len(footnotes) + 1) for note in _row_notes(runs))
            block.append(TableRow(heading, runs[0].method, len(runs), tuple(cells), marks))
        rows += _with_best(block)
    metric = f"mean@{counts[0] if len(counts) == 1 else 'n'} / pass@{at}"
    columns = (*data, "Average") if len(data) > 1 else data
    return Table(columns, metric, tuple(rows), tuple(_table_notes(results, rows, counts, at)), tuple(footnotes))


def _one(run: Result, data: str, k: int) -> tuple[Spread, Spread] | None:
    graded = next((graded for graded in run.graded if graded.data == data), None)
    if graded is None:
        return None
    return clustered_error(per_prompt(graded.score)), clustered_error(per_prompt(graded.score, k))


def _average(run: Result, data: Sequence[str], k: int) -> tuple[Spread, Spread] | None:
    parts = [part for name in data if (part := _one(run, name, k)) is not None]
    if len(parts) < len(data):
        return None
    return average([mean for mean, _ in parts]), average([best for _, best in parts])


def _cell(runs: Sequence[tuple[Spread, Spread] | None]) -> Cell | None:
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
    """Mark the highest of each column among the rows of a heading, if there are several; as printed, to one decimal."""
    columns = list(zip(*(row.cells for row in rows), strict=True))
    tops = []
    for column in columns:
        known = [cell for cell in column if cell is not None]
        tops.append([max((points(v(cell)) for cell in known), key=float, default="") for v in (_mean, _pass)])

    def mark(cell: Cell | None, top: list[str]) -> Cell | None:
        if cell is None or len(rows) < 2:
            return cell
        best = [points(v(cell)) == t for v, t in zip((_mean, _pass), top, strict=True)]
        return Cell(cell.mean, cell.interval, cell.over_runs, cell.best_at, *best)

    return [TableRow(row.heading, row.method, row.runs, tuple(map(mark, row.cells, tops)), row.marks) for row in rows]


def _mean(cell: Cell) -> float:
    return cell.mean


def _pass(cell: Cell) -> float:
    return cell.best_at


def _row_notes(runs: Sequence[Result]) -> list[str]:
    notes = []
    truncated, unread = share(runs, "truncated"), unparsed(runs)
    facts = [f"{points(truncated)}% of the samples cut at the length limit"] if truncated else []
    facts += [f"{points(unread)}% without an answer that could be read"] if unread else []
    if facts:
        notes.append(", ".join(facts))
    for i, run in enumerate(runs, 1):
        which = f"run {i} of {len(runs)}" if len(runs) > 1 else "its run"
        if run.collapse is not None:
            notes.append(f"{which} {run.collapse}")
        notes += [f"{which}, {note}" if len(runs) > 1 else note for note in run.notes]
    return notes


def _table_notes(results: Sequence[Result], rows: Sequence[TableRow], counts: Sequence[int], k: int) -> list[str]:
    sizes: dict[str, set[int]] = {}
    prompts: dict[str, set[frozenset[str]]] = {}
    for result in results:
        for graded in result.graded:
            sizes.setdefault(graded.data, set()).add(len(graded.score))
            prompts.setdefault(graded.data, set()).add(frozenset(graded.prompt_ids))
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    text = ", ".join(f"{name} {'/'.join(map(str, sorted(size)))}" for name, size in sizes.items())
    notes = [f"Percent. Problems: {text}; {n} samples each. Scorer: {', '.join(sorted({r.scorer for r in results}))}."]
    several, single = any(row.runs > 1 for row in rows), any(row.runs == 1 for row in rows)
    if several:
        notes.append("mean ± half of the 95% interval over training runs (Student's t over as many runs as are given).")
    if single:
        notes.append("mean [95% interval for problems like these, clustered by problem] of one training run: what "
                     "another run would give is not in it.")  # fmt: skip
    notes.append(f"pass@{k} is unbiased (not verl's best@{k}/mean, which estimates at most that). Bold: the highest of "
                 "its column under its heading, which does not say that it is more than noise (bandpo compare does)."
    )  # fmt: skip
    different = [name for name, sets in prompts.items() if len(sets) > 1]
    if different:
        notes.append(f"Not all rows have the same problems of {', '.join(different)}.")
    if len({result.scorer for result in results}) > 1:
        notes.append("Rows were graded by different scorers.")
    return notes + different_sampling(results)


Format = Literal["markdown", "latex", "html"]


def _texts(cell: Cell | None, bold: Callable[[str], str], plus_minus: str, dash: str) -> tuple[str, str, str]:
    """Return mean, its interval and pass as text."""
    if cell is None:
        return dash, "", ""
    mean, best = points(cell.mean), points(cell.best_at)
    if cell.over_runs:
        span = f"{plus_minus}{points((cell.interval.high - cell.interval.low) / 2)}"
    else:
        span = f"[{points(cell.interval.low)}, {points(cell.interval.high)}]"
    return bold(mean) if cell.mean_is_best else mean, span, bold(best) if cell.pass_is_best else best


def markdown(table: Table) -> str:
    """Write the table for a README or an issue."""
    lines = [f"| Method | {' | '.join(_markdown(c) for c in table.columns)} |",
             f"|:--|{'--:|' * len(table.columns)}",
             f"| | {' | '.join([table.metric] * len(table.columns))} |"]  # fmt: skip
    heading = ""
    for row in table.rows:
        if row.heading != heading:
            heading = row.heading
            lines.append(f"| **{_markdown(heading)}** |{' |' * len(table.columns)}")
        cells = []
        for cell in row.cells:
            mean, span, best = _texts(cell, lambda text: f"**{text}**", "± ", "–")
            cells.append(f"{mean} {span} / {best}" if span else mean)
        marks = "".join(f"<sup>{mark}</sup>" for mark in row.marks)
        lines.append(f"| {_markdown(row.method)}{_runs(row)}{marks} | {' | '.join(cells)} |")
    lines += ["", *(f"{note}  " for note in table.notes)]
    lines += [f"<sup>{i}</sup> {_markdown(note)}  " for i, note in enumerate(table.footnotes, 1)]
    return "\n".join(lines).rstrip() + "\n"


def _runs(row: TableRow) -> str:
    return f" ({row.runs} runs)" if row.runs > 1 else ""


def _markdown(text: str) -> str:
    for character in "\\`*_<>|[]":
        text = text.replace(character, f"\\{character}")
    return text


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "<": r"\textless{}",
    ">": r"\textgreater{}",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def latex(table: Table) -> str:
    """Write a LaTeX table environment; it needs the package booktabs, and nothing else."""
    width = len(table.columns)
    lines = [
        "% \\usepackage{booktabs}",
        "\\begin{table}[t]",
        "\\centering",
        "\\small",
        f"\\begin{{tabular}}{{l{'r' * width}}}",
        "\\toprule",
        f"Method & {' & '.join(_latex(c) for c in table.columns)} \\\\",
        f" & {' & '.join([_latex(table.metric)] * width)} \\\\",
        "\\midrule",
    ]
    heading = ""
    for i, row in enumerate(table.rows):
        if row.heading != heading:
            heading = row.heading
            lines += ["\\midrule"] if i else []
            lines.append(f"\\multicolumn{{{width + 1}}}{{c}}{{\\textbf{{{_latex(heading)}}}}} \\\\")
        cells = []
        for cell in row.cells:
            mean, span, best = _texts(cell, lambda text: f"\\textbf{{{text}}}", "$\\pm$", "--")
            cells.append(f"{mean} {{\\scriptsize {span}}} / {best}" if span else mean)
        marks = f"\\textsuperscript{{{','.join(map(str, row.marks))}}}" if row.marks else ""
        lines.append(f"{_latex(row.method + _runs(row))}{marks} & {' & '.join(cells)} \\\\")
    notes = [_latex(note) for note in table.notes]
    notes += [f"\\textsuperscript{{{i}}} {_latex(note)}." for i, note in enumerate(table.footnotes, 1)]
    lines += ["\\bottomrule", "\\end{tabular}", f"\\caption{{{' '.join(notes)}}}", "\\end{table}"]
    return "\n".join(lines) + "\n"


_CSS = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;color:#1c2024;background:#fff}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;border-top:2px solid;border-bottom:2px solid}
th,td{padding:.4rem .9rem;text-align:right;white-space:nowrap;vertical-align:top}
thead th{font-weight:600;vertical-align:bottom}
thead{border-bottom:1px solid}
th:first-child{text-align:left}
tbody th{font-weight:400}
small{display:block;color:#5c646c;font-size:.8rem;font-weight:400}
.heading th,.heading th:first-child{background:#e9ebee;text-align:center;font-weight:600}
p,li{max-width:60rem;font-size:.9rem;margin:.3rem 0}
@media(prefers-color-scheme:dark){body{color:#e6e8ea;background:#16181b}small{color:#a0a8b0}
.heading th,.heading th:first-child{background:#2a2e33}}
"""


def html(table: Table) -> str:
    """Write a page that needs nothing else."""
    head = "".join(f'<th scope="col">{escape(c)}<small>{escape(table.metric)}</small></th>' for c in table.columns)
    body, heading = "", ""
    for row in table.rows:
        if row.heading != heading:
            heading = row.heading
            span = f'colspan="{len(table.columns) + 1}" scope="colgroup"'
            body += f'<tr class="heading"><th {span}>{escape(heading)}</th></tr>\n'
        cells = ""
        for cell in row.cells:
            mean, span, best = _texts(cell, lambda text: f"<b>{text}</b>", "± ", "–")
            cells += f"<td>{mean} / {best}<small>{span}</small></td>" if span else f"<td>{mean}</td>"
        marks = f"<sup>{','.join(map(str, row.marks))}</sup>" if row.marks else ""
        body += f'<tr><th scope="row">{escape(row.method + _runs(row))}{marks}</th>{cells}</tr>\n'
    notes = "".join(f"<p>{escape(note)}</p>\n" for note in table.notes)
    notes += "".join(f"<p><sup>{i}</sup> {escape(note)}</p>\n" for i, note in enumerate(table.footnotes, 1))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{POLICY}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Results</title><style>{_CSS}</style></head>\n<body>\n"
        f'<div class="scroll"><table><thead><tr><th scope="col">Method</th>{head}</tr></thead>\n<tbody>\n{body}</tbody>'
        f"</table></div>\n{notes}</body></html>\n"
    )


def as_json(table: Table) -> str:
    """Return the whole table as plain data, shares and not points."""
    return json.dumps(asdict(table), indent=2, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "html": html, "json": as_json}
