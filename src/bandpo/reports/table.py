"""How checkpoints stand to each other: `bandpo compare` and `bandpo table`, from what was sampled and graded.

A result is an evaluation folder (`bandpo eval`), or a file that verl wrote to `trainer.validation_data_dir`. Its label
is what comes before an = in front of the path, or the label of the evaluation; "MODEL / METHOD" puts METHOD under the
heading MODEL. Results with the same label are runs of one method with other seeds.
"""
# ruff: noqa: RUF001  (dashes are meant)

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
import pydantic
from typing_extensions import TypedDict

from ..errors import UserError
from ..evals.folder import read_facts, read_graded
from ..files import POLICY, check_text, read_json_lines
from ..statistics.collapse import Collapse, collapse_of, read_log
from ..statistics.comparison import Comparison, compare
from ..statistics.estimators import (
    LEVEL,
    Graded,
    Interval,
    Spread,
    average,
    per_prompt,
    such_problems,
    training_runs,
)


@dataclass(frozen=True, eq=False)
class Result:
    """What one checkpoint did: its graded samples, data set by data set, and the collapse in its run's log, if any."""

    label: str
    source: Path
    graded: list[Graded]
    scorer: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    collapse: Collapse | None = None

    @property
    def heading(self) -> str:
        return self.label.rpartition(" / ")[0]

    @property
    def method(self) -> str:
        return self.label.rpartition(" / ")[2]


# -------------------------------------------------------------------------------------------------------------- reading


def split_label(text: str) -> tuple[str | None, Path]:
    """ "LABEL=PATH" or "PATH"; a path that is there is a path, = or not."""
    label, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        return label, Path(path)
    return None, Path(text)


def read_logs(texts: Iterable[str]) -> dict[str, Path]:
    """Logs of runs by label, from LABEL=PATH.

    Raises:
        ValueError: a text without a label.
    """
    pairs = [text.partition("=") for text in texts]
    for label, _, path in pairs:
        if not (label and path):
            raise UserError(f"--log must be LABEL=PATH, got {label!r}")
    return {label: Path(path) for label, _, path in pairs}


def read_results(texts: Sequence[str], scorer: str | None = None, logs: Iterable[str] = ()) -> list[Result]:
    """`read_result` of each, with `logs` as for `read_logs`.

    Raises:
        ValueError: see there, or a log of a label that no result has.
    """
    of_label = read_logs(logs)
    results = [read_result(text, scorer, of_label) for text in texts]
    labels = dict.fromkeys(result.label for result in results)
    if unused := [label for label in of_label if label not in labels]:
        raise UserError(f"--log: no result has the label {unused[0]!r}; the labels are {', '.join(map(repr, labels))}")
    return results


def read_result(text: str, scorer: str | None = None, logs: Mapping[str, Path] | None = None) -> Result:
    """Read "PATH" or "LABEL=PATH". `logs` are logs of runs by label, besides those that lie beside the model.

    Raises:
        ValueError: nothing there, not finished, not graded, or damaged; the message names the file.
    """
    label, path = split_label(text)
    if path.is_file():
        graded, scorer, sampling, model = read_validation(path), "verl's reward function", {}, None
        label = label or path.stem
    elif path.is_dir():
        facts = read_facts(path)
        graded = read_graded(path, scorer)
        scorer = scorer or facts.get("scorer") or "math"
        sampling, model = facts["sampling"], facts.get("model")
        label = label or facts.get("label") or path.name
    else:
        raise UserError(f"{path}: no such file or folder; expected an evaluation folder or a file of verl's "
                         "trainer.validation_data_dir")  # fmt: skip
    log = (logs or {}).get(label) or _log_of(model)
    collapse = None if log is None else collapse_of(read_log(log))
    return Result(label, path, graded, str(scorer), sampling, collapse)


def _log_of(model: Any) -> Path | None:
    """The log of the run that made a model: metrics.jsonl in its folder or up to two above."""
    if not isinstance(model, str) or not Path(model).is_dir():
        return None
    folder = Path(model).resolve()
    logs = (place / "metrics.jsonl" for place in (folder, *list(folder.parents)[:2]))
    return next((log for log in logs if log.is_file()), None)


class _Validation(TypedDict):
    """A line of a file of verl's trainer.validation_data_dir."""

    __pydantic_config__ = pydantic.ConfigDict(extra="allow", allow_inf_nan=False)  # pyright: ignore[reportGeneralTypeIssues]
    input: Any
    gts: Any
    score: NotRequired[float | bool | None]
    acc: NotRequired[float | bool | None]
    data_source: NotRequired[Annotated[str, pydantic.AfterValidator(lambda text: check_text(text, "the name"))]]


def read_validation(path: Path) -> list[Graded]:
    """A file of verl's trainer.validation_data_dir: a sample a line, with input, output, gts, score and what the reward
    function returned. `acc` says what is right, or else a `score` above 0; `pred` is the answer. Lines with the same
    input are samples of one prompt; verl does not write the data source, so all are one data set unless lines have it.

    Raises:
        ValueError: lines that are not such, or prompts with different numbers of samples.
    """
    rows: dict[str, dict[str, list[Any]]] = {}
    for number, row in enumerate(read_json_lines(path, _Validation).rows, 1):
        if _verdict(row) is None:
            raise UserError(f"{path}, line {number}: 'score' is missing; verl writes input, gts and score")
        prompt = hashlib.sha256(json.dumps([row["input"], row["gts"]]).encode()).hexdigest()[:16]
        rows.setdefault(str(row.get("data_source", "validation")), {}).setdefault(prompt, []).append(row)
    if not rows:
        raise UserError(f"{path}: empty; expected a sample a line")
    return [_graded_of_verl(path, data, prompts) for data, prompts in rows.items()]


def _verdict(row: Mapping[str, Any]) -> float | None:
    return row["acc"] if row.get("acc") is not None else row.get("score")


def _graded_of_verl(path: Path, data: str, prompts: Mapping[str, list[dict[str, Any]]]) -> Graded:
    counts = sorted({len(samples) for samples in prompts.values()})
    if len(counts) > 1:
        raise UserError(f"{path}: prompts of {data!r} have from {counts[0]} to {counts[-1]} samples; expected as many "
                         "for each (a prompt that is twice in the data has twice as many)")  # fmt: skip
    table = list(prompts.values())
    answers = np.full((len(table), counts[0]), None, dtype=object)
    for i, samples in enumerate(table):
        for j, row in enumerate(samples):
            pred = row.get("pred")
            answers[i, j] = None if pred in (None, "", "[INVALID]") else str(pred)
    known = any("pred" in row for samples in table for row in samples)
    return Graded(
        data=data,
        score=np.array([[float((_verdict(row) or 0) > 0) for row in samples] for samples in table]),
        answers=answers if known else None,
        tokens=None,
        truncated=None,
        parsed=answers != np.array(None) if known else None,
        prompt_ids=list(prompts),
    )


def share(results: Iterable[Result], name: Literal["truncated", "parsed"]) -> float | None:
    """Over all samples of all results; None where it was not recorded."""
    arrays = [getattr(graded, name) for result in results for graded in result.graded]
    known = [np.asarray(array, float).ravel() for array in arrays if array is not None]
    return float(np.concatenate(known).mean()) if known else None


# ------------------------------------------------------------------------------------------------------------ comparing


def points(value: float, sign: str = "", digits: int = 1) -> str:
    """A share in points: 0.2345 -> 23.5 (with `sign` "+": +23.5)."""
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


def _many(number: float | None) -> str:
    if number is None or not math.isfinite(number) or number > 1e6:
        return "more than 1,000,000"
    number = math.ceil(number)
    if number > 100:  # it is an estimate
        scale = 10 ** (len(str(number)) - 2)
        return f"about {round(number / scale) * scale:,}"
    return str(number)


def compare_results(a: Result, b: Result, k: int | None = None) -> list[Comparison]:
    """B against A, data set by data set and on average.

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


def _tables(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def _better(difference: float, sure: bool, where: str, span: str, p: str) -> str:
    if not sure:
        return f"{where}: not settled. B - A is {points(difference, '+')} points, {span}{p}."
    word = "better" if difference > 0 else "worse"
    return f"{where}: yes, B is {word} by {points(abs(difference))} points, {span}{p}."


def comparison_text(a: Result, b: Result, comparisons: Sequence[Comparison], k: int | None = None) -> str:
    """What `bandpo compare` prints."""
    last = comparisons[-1]
    samples = last.samples
    name = f"pass@{k}" if k else f"mean@{samples[0]}" if samples[0] == samples[1] else f"mean@{samples[0]}|{samples[1]}"
    lines = [f"A  {a.label}  ({a.source})", f"B  {b.label}  ({b.source})", ""]
    head = [name, "prompts", "A", "B", "B - A", "these problems", "such problems", "p these", "p such"]
    body = [
        [
            c.data,
            str(c.prompts),
            points(c.a),
            points(c.b),
            points(c.difference, "+"),
            _bracket(c.these.interval(low=-1.0)),
            _bracket(c.such.interval(low=-1.0)),
            _p(c.p_these),
            _p(c.p_such),
        ]
        for c in comparisons
    ]
    lines += [*_tables([head, *body]), "", "Is B better?"]
    where = f" on average over {len(comparisons) - 1} data sets" if len(comparisons) > 1 else ""
    these, such = last.these.interval(low=-1.0), last.such.interval(low=-1.0)
    known = last.settled_for_these
    p_these = "" if last.p_these is None else f", p = {_p(last.p_these)}"
    lines += [
        "  " + _better(last.difference, known, f"On these problems{where}", _bracket(these), p_these),
        "  " + _better(last.difference, last.settled_for_such, f"On such problems{where}", _bracket(such),
                       f", p = {_p(last.p_such)}"),
        "  Of the method: nothing. This compares two checkpoints; another training run may differ by more. It takes "
        "several runs\n  of each (bandpo table).",
    ]  # fmt: skip
    if last.needed is not None:
        lines += ["", *_needed_text(last, known)]
    lines += ["", *_notes_of_comparison(a, b, comparisons)]
    return "\n".join(lines)


def _needed_text(last: Comparison, known: bool) -> list[str]:
    needed, now = last.needed, f"{last.samples[0]}" if last.samples[0] == last.samples[1] else f"{last.samples}"
    assert needed is not None
    if last.difference == 0:
        return ["What would settle it: nothing can be said, the difference measured is 0."]
    lines = [
        f"What would settle it, if the difference is {points(abs(last.difference))} points as measured (80% power):"
    ]
    if not known:
        lines.append(f"  these problems: {_many(needed.samples_for_these)} samples per prompt of each (now {now})")
    if not last.settled_for_such:
        if needed.samples_for_such is None:
            lines.append("  such problems: no number of samples of these problems; the problems differ too much in it")
        else:
            lines.append(f"  such problems: {_many(needed.samples_for_such)} samples per prompt of each (now {now})")
        lines.append(
            f"  such problems: {_many(needed.prompts_for_such)} problems with {now} samples each (now {last.prompts})"
        )
    return lines if len(lines) > 1 else ["Nothing more is needed to settle it, beyond other training runs."]


def _notes_of_comparison(a: Result, b: Result, comparisons: Sequence[Comparison]) -> list[str]:
    notes = [
        "these problems: 95% interval over the sampling, prompts fixed; p by reshuffling samples within each prompt.",
        "such problems: 95% interval over prompts, as if they were drawn from many like them; p by flipping the signs "
        "of the prompts' differences.",
    ]
    for side, result in (("A", a), ("B", b)):
        facts = [f"scorer {result.scorer}"]
        for text, value in (("cut at the length limit", share([result], "truncated")),
                            ("without an answer that could be read", _unparsed([result]))):  # fmt: skip
            facts += [f"{points(value)}% {text}"] if value is not None else []
        tokens = [g.tokens for g in result.graded if g.tokens is not None]
        facts += [f"{np.concatenate([t.ravel() for t in tokens]).mean():.0f} tokens on average"] if tokens else []
        notes.append(f"{side}: {', '.join(facts)}.")
        if result.collapse is not None:
            notes.append(f"{side}: its training run {result.collapse}.")
    if a.scorer != b.scorer:
        notes.append("A and B were graded by different scorers: the difference is theirs too.")
    notes += _different_sampling([a, b])
    seeds = {(side.sampling or {}).get("seed") for side in (a, b)}
    if len(seeds) == 1 and None not in seeds:
        notes.append(
            "Drawn with the same --seed, from the same random numbers: the intervals of these problems are wider than "
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
    if any(not c.p_such_exact for c in comparisons):
        notes.append("Some p-values of such problems are from random signs, not exact.")
    if any(c.p_these is not None and not c.p_these_exact for c in comparisons):
        notes.append("Some p-values of these problems are from a normal approximation, not exact.")
    return notes


def _unparsed(results: Iterable[Result]) -> float | None:
    parsed = share(results, "parsed")
    return None if parsed is None else 1 - parsed


def _different_sampling(results: Sequence[Result]) -> list[str]:
    """The settings of sampling that are not the same in all of the results that recorded them."""
    recorded = [result for result in results if result.sampling]
    keys = dict.fromkeys(key for result in recorded for key in result.sampling if key not in ("n", "seed"))
    different = []
    for key in keys:
        values = sorted({str(result.sampling.get(key)) for result in recorded})
        different += [f"{key} ({', '.join(values)})"] if len(values) > 1 else []
    return [f"Sampled differently: {'; '.join(different)}."] if different else []


def comparison_data(a: Result, b: Result, comparisons: Sequence[Comparison], k: int | None = None) -> dict[str, Any]:
    """The same as plain data, for --json; shares, not points."""
    sides = {
        side: {
            "label": result.label,
            "source": str(result.source),
            "scorer": result.scorer,
            "truncated": share([result], "truncated"),
            "unparsed": _unparsed([result]),
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
                "these_problems": {
                    "interval": list(c.these.interval(low=-1.0)), "p": c.p_these, "exact": c.p_these_exact,
                    "settled": c.settled_for_these,
                },
                "such_problems": {
                    "interval": list(c.such.interval(low=-1.0)), "p": c.p_such, "exact": c.p_such_exact,
                    "settled": c.settled_for_such,
                },
                "needed": None if c.needed is None else {
                    name: value if value is None or math.isfinite(value) else None
                    for name, value in vars(c.needed).items()
                },
            }
            for c in comparisons
        ],
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- table


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
    """The layout of the paper's Table 1: models and methods by data sets, mean@n / pass@k, average.

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
    return such_problems(per_prompt(graded.score)), such_problems(per_prompt(graded.score, k))


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
    truncated, unparsed = share(runs, "truncated"), _unparsed(runs)
    facts = [f"{points(truncated)}% of the samples cut at the length limit"] if truncated else []
    facts += [f"{points(unparsed)}% without an answer that could be read"] if unparsed else []
    if facts:
        notes.append(", ".join(facts))
    for i, run in enumerate(runs, 1):
        if run.collapse is not None:
            which = f"run {i} of {len(runs)}" if len(runs) > 1 else "its run"
            notes.append(f"{which} {run.collapse}")
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
        notes.append("mean [95% interval for such problems, over prompts] of one training run: what another run would "
                     "give is not in it.")  # fmt: skip
    notes.append(f"pass@{k} is unbiased (not verl's best@{k}/mean, which is lower). Bold: the highest of its column "
                 "under its heading, which does not say that it is more than noise (bandpo compare does).")  # fmt: skip
    different = [name for name, sets in prompts.items() if len(sets) > 1]
    if different:
        notes.append(f"Not all rows have the same problems of {', '.join(different)}.")
    if len({result.scorer for result in results}) > 1:
        notes.append("Rows were graded by different scorers.")
    return notes + _different_sampling(results)


Format = Literal["markdown", "latex", "html"]


def _texts(cell: Cell | None, bold: Callable[[str], str], plus_minus: str, dash: str) -> tuple[str, str, str]:
    """mean, its interval and pass as text."""
    if cell is None:
        return dash, "", ""
    mean, best = points(cell.mean), points(cell.best_at)
    if cell.over_runs:
        span = f"{plus_minus}{points((cell.interval.high - cell.interval.low) / 2)}"
    else:
        span = f"[{points(cell.interval.low)}, {points(cell.interval.high)}]"
    return bold(mean) if cell.mean_is_best else mean, span, bold(best) if cell.pass_is_best else best


def markdown(table: Table) -> str:
    """The table for a README or an issue."""
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
    """A table environment; needs the package booktabs, and nothing else."""
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
    """A page that needs nothing else."""
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


FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "html": html}
