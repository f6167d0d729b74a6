"""Write checkpoints in one table for `bandpo table`, as Markdown or LaTeX."""
# ruff: noqa: RUF001  (dashes are meant)

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..evals.results import Result, in_paper, papers_order, share, unparsed
from ..statistics.estimators import best_at_k_bootstrap, per_prompt
from ..statistics.intervals import (
    Interval,
    Spread,
    average,
    clustered_error,
    difference,
    training_runs,
)
from .comparison import different_sampling
from .templates import rendered_text
from .texts import points


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

    @property
    def name(self) -> str:
        return f"{self.method} ({self.runs} runs)" if self.runs > 1 else self.method


@dataclass(frozen=True)
class Table:
    """Rows by heading, columns by data set and then the average."""

    columns: tuple[str, ...]
    measures: tuple[str, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]
    footnotes: tuple[str, ...]


def make_table(results: Sequence[Result]) -> Table:
    """Return the layout of the paper's Table 1: methods by data sets, average.

    `results` are in the order of the rows; those with one label are runs of one method. The k of pass@k is the smallest
    number of samples.
    """
    counts = {graded.score.shape[-1] for result in results for graded in result.graded}
    counts = sorted(counts | {logged.samples for result in results for logged in result.logged})
    at = counts[0]
    data = papers_order(
        in_paper(each.data) for result in results for each in (*result.graded, *result.logged)
    )
    measures = (f"mean@{counts[0] if len(counts) == 1 else 'n'}", f"best@{at} (verl)", f"pass@{at}")
    if at == 1:
        measures = measures[:1]
    elif not any(result.graded for result in results):
        measures = measures[
            : 1 + any(at in logged.best for result in results for logged in result.logged)
        ]
    by_label: dict[str, list[Result]] = {}
    for result in results:
        by_label.setdefault(result.label, []).append(result)
    footnotes: dict[str, int] = {}
    rows: list[TableRow] = []
    differences: list[str] = []
    for heading in dict.fromkeys(label.rpartition(" / ")[0] for label in by_label):
        block, last = [], {}
        for runs in [runs for label, runs in by_label.items() if label.rpartition(" / ")[0] == heading]:
            parts = [[_numbers(run, name, at)[: len(measures)] for run in runs] for name in data]
            parts += [[_average(of_run) for of_run in zip(*parts, strict=True)]] if len(data) > 1 else []
            cells = tuple(tuple(map(_value, zip(*part, strict=True))) for part in parts)
            block.append(
                TableRow(
                    heading,
                    runs[0].method,
                    len(runs),
                    cells,
                    tuple(footnotes.setdefault(note, len(footnotes) + 1) for note in _row_notes(runs)),
                )
            )
            last[runs[0].method] = [mean.value for mean, *_ in parts[-1] if mean is not None]
        rows += _with_best(block)
        differences += [f"{f'{heading}: ' * bool(heading)}{text}" for text in _differences(last)]
    columns = (*data, "Average") if len(data) > 1 else tuple(data)
    notes = _table_notes(results, rows, counts, measures)
    if differences:
        notes += [
            f"{columns[-1]}, {measures[0]}, over training runs (95% interval by Welch's t):",
            *differences,
        ]
    return Table(columns, measures, tuple(rows), tuple(notes), tuple(footnotes))


_Numbers = tuple[Spread | None, ...]  # mean@n, verl's best@k and pass@k


def _numbers(run: Result, data: str, k: int) -> _Numbers:
    for graded in (each for each in run.graded if in_paper(each.data) == data):
        values = (
            per_prompt(graded.score),
            best_at_k_bootstrap(graded.score, k),
            per_prompt(graded.score, k),
        )
        return tuple(map(clustered_error, values))
    for logged in (each for each in run.logged if in_paper(each.data) == data):
        values = logged.mean, logged.best.get(k), None
        return tuple(None if value is None else Spread(value, value, math.nan) for value in values)
    return (None,) * 3


def _average(parts: Sequence[_Numbers]) -> _Numbers:
    return tuple(
        None if None in measure else average([part for part in measure if part is not None])
        for measure in zip(*parts, strict=True)
    )


def _value(runs: _Numbers) -> Value | None:
    spreads = [run for run in runs if run is not None]
    if len(spreads) < len(runs):
        return None
    over_runs = training_runs([spread.value for spread in spreads])
    if over_runs is not None:
        # It is printed as one number, half of it, so nothing is cut off.
        return Value(over_runs.value, over_runs.interval(low=-math.inf, high=math.inf))
    return Value(spreads[0].value, None if math.isnan(spreads[0].error) else spreads[0].interval())


def _with_best(rows: Sequence[TableRow]) -> list[TableRow]:
    """Mark the highest of each measure and column among several rows, as printed."""
    columns = []
    for column in zip(*(row.cells for row in rows), strict=True):
        measures = []
        for values in zip(*column, strict=True):
            most = points(max((each.value for each in values if each), default=0.0))
            measures.append(
                [
                    each and replace(each, is_best=len(rows) > 1 and points(each.value) == most)
                    for each in values
                ]
            )
        columns.append([*zip(*measures, strict=True)])
    return [
        replace(row, cells=cells) for row, cells in zip(rows, zip(*columns, strict=True), strict=True)
    ]


def _differences(runs: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Compare methods with several runs with GRPO or the first one."""
    spreads = {method: training_runs(values) for method, values in runs.items()}
    spreads = {method: spread for method, spread in spreads.items() if spread is not None}
    first, *others = sorted(spreads, key=lambda method: not method.upper().startswith("GRPO")) or [""]
    for method in others:
        gap = difference(spreads[first], spreads[method])
        low, high = gap.interval(low=-math.inf, high=math.inf)
        text = (
            f"{method} minus {first}: {points(gap.value, '+')} [{points(low, '+')}, {points(high, '+')}]"
        )
        verdict = "settled" if low > 0 or high < 0 else "not settled"
        yield f"{text}, {verdict} by {len(runs[first])} and {len(runs[method])} runs."


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
    results: Sequence[Result],
    rows: Sequence[TableRow],
    counts: Sequence[int],
    measures: Sequence[str],
) -> list[str]:
    prompts: dict[str, set[frozenset[str]]] = {}
    for graded in (graded for result in results for graded in result.graded):
        prompts.setdefault(in_paper(graded.data), set()).add(frozenset(graded.prompt_ids))
    n = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    sizes = [
        f"{name} {'/'.join(map(str, sorted(set(map(len, prompts[name])))))}"
        for name in papers_order(prompts)
    ]
    samples = (
        f"Problems: {', '.join(sizes)}; {n} samples each" if sizes else f"{n} samples of each problem"
    )
    at = [(result.label, f"{result.step:.15g}") for result in results if result.step is not None]
    steps = {step for _, step in at}
    different = [name for name, sets in prompts.items() if len(sets) > 1]
    notes = {
        f"Percent. {samples}. Scorer: {', '.join(sorted({r.scorer for r in results}))}.": True,
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
        text = (
            "–"
            if each is None
            else bold.format(points(each.value))
            if each.is_best
            else points(each.value)
        )
        texts.append(f"{text} {small.format(span)}" if each and each.interval else text)
    return texts if any(cell) else ["–"]


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text)


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "–": "--",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
    }
)


def _stacked(texts: Sequence[str]) -> str:
    """Put the numbers of a cell above each other. With intervals they are too wide for a page."""
    lines = [text.replace("±", r"$\pm$").replace("–", "--") for text in texts]
    return "\\shortstack[r]{" + " \\\\ ".join(lines) + "}" if lines[1:] else lines[0]


def _rendered(template: str, table: Table) -> str:
    text = rendered_text(
        template,
        {"markdown": _markdown, "latex": lambda text: text.translate(_LATEX), "stacked": _stacked},
        table=table,
        width=len(table.columns),
        texts=_texts,
    )
    return text.rstrip() + "\n"


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": partial(_rendered, "table.md.jinja"),
    "latex": partial(_rendered, "table.tex.jinja"),  # it needs the package booktabs
}
