"""Output of `bandpo eval` and `bandpo score`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from bandpo.errors import UserError, counted

from ..evals.draw import evaluate
from ..evals.dumps import to_grade
from ..evals.folder import read_samples
from ..evals.grades import grade_folder
from ..evals.outcomes import nothing_right, right_by_others, told, without_answer
from ..evals.results import Columns, Result, read_answers, split_label
from ..progress import console
from ..statistics.summary import summarize

UNREAD = 0.2  # share of samples without an answer that could be read, from which on it is told


def evaluate_and_show(model: str, ks: Sequence[int] = (), **options: Any) -> None:
    """Run `bandpo eval`."""
    folder = evaluate(model, **options)
    score_and_show([str(folder)], None, ks, as_json=False)
    print(folder)


def score_and_show(
    texts: Sequence[str],
    scorer: str | None,
    ks: Sequence[int],
    as_json: bool,
    columns: Columns | None = None,
    drop_incomplete: bool = False,
) -> None:
    """Grade what is not graded, and print the numbers of each evaluation."""
    results: list[tuple[Result, list[dict[str, Any]]]] = []
    for text in texts:
        _, path = split_label(text)
        by = grade_folder(path, scorer) if path.is_dir() else scorer
        result = read_answers(text, by, columns, drop_incomplete)
        n = min(graded.score.shape[-1] for graded in result.graded)
        if ks and max(ks) > n:
            raise UserError(f"k must be from 1 to the {n} samples of {path}, got {max(ks)}")
        results.append((result, [summarize(graded, ks) for graded in result.graded]))
    if as_json:
        rows = [
            {"source": str(result.source), "label": result.label, "scorer": result.scorer, "results": summaries}
            | ({"left_out": result.notes} if result.notes else {})
            for result, summaries in results
        ]
        print(json.dumps(rows, indent=2))
        return
    for result, summaries in results:
        _print(result, summaries, ks)
        for note in result.notes:
            console.print(f"{note}.", style="yellow")
        folder = result.source if result.source.is_dir() else None
        samples = read_samples(folder) if folder else []
        failed = without_answer(samples)
        reason = None
        if not any(graded.score.any() for graded in result.graded):
            if folder:
                reason = nothing_right(folder, samples, result.scorer)
            elif scorer:
                reason = right_by_others(to_grade(result.source, columns, scorer), scorer, "--scorer", result.source)
        for line in (*told(failed), *([reason] if reason else [])):
            console.print(line, style="yellow", soft_wrap=True)
        if not reason and (scorer or folder):  # and no column of a file, whose grades may come from elsewhere
            _print_unread(result, summaries, Counter(sample.data for sample in failed))


def _print(result: Result, summaries: list[dict[str, Any]], ks: Sequence[int]) -> None:
    counts = list(dict.fromkeys(summary["samples"] for summary in summaries))
    shown = dict.fromkeys(ks or (1, *counts))
    console.print(result.label, style="bold", end="", soft_wrap=True)
    drawn = f" in {result.source}: {' or '.join(map(str, counts))} {'sample' if counts == [1] else 'samples'} a prompt"
    if result.sampling:
        drawn += f" at temperature {result.sampling['temperature']:g}" if "temperature" in result.sampling else ""
        drawn += f", at most {result.sampling['max_tokens']} tokens" if "max_tokens" in result.sampling else ""
    console.print(f"{drawn}; scorer {result.scorer}", soft_wrap=True)
    table = Table()
    table.add_column("")
    for summary in summaries:
        table.add_column(f"{summary['data']}\n{counted(summary['prompts'], 'prompt')}", justify="right")

    def row(name: str, show: Callable[[dict[str, Any]], str]) -> None:
        cells = [show(summary) if name in summary else "-" for summary in summaries]
        if any(cell != "-" for cell in cells):
            table.add_row(name, *cells)

    def cell(name: str, which: str = "clustered_error") -> Callable[[dict[str, Any]], str]:
        def text(summary: dict[str, Any]) -> str:
            number = summary[name]
            low, high = (100 * x for x in number[which])
            return f"{100 * number['value']:.2f}  [{low:.1f}, {high:.1f}]"

        return text

    for n in counts:
        row(f"mean@{n}", cell(f"mean@{n}"))
    only = [cell(f"mean@{summary['samples']}", "sampling_error")(summary).split("  ")[1] for summary in summaries]
    table.add_row("  sampling only", *only)
    for k in shown:
        if k > 1:
            row(f"pass@{k}", cell(f"pass@{k}"))
            row(f"maj@{k}/mean", lambda s, k=k: f"{100 * s[f'maj@{k}/mean']['value']:.2f}")
            row(f"best@{k}/mean", lambda s, k=k: f"{100 * s[f'best@{k}/mean']['value']:.2f}")
    row("truncated", cell("truncated"))
    row("unparsed", cell("unparsed"))
    row("tokens", _lengths)
    console.print(table)
    said = "In %, but for tokens. " if any("tokens" in summary for summary in summaries) else "In %. "
    said += (
        "Brackets: 95 % interval for problems like these (prompts as clusters); of the line `sampling only`, for these "
        "very problems, sampled again."
    )
    if any(k > 1 for k in shown):
        said += (
            " pass@k is unbiased. best@k and maj@k are verl's numbers, drawn with replacement; the paper prints best@k "
            "as pass@k, and it estimates at most that."
        )
    console.print(said, style="dim")


def _print_unread(result: Result, summaries: list[dict[str, Any]], failed: Counter[str]) -> None:
    for summary in summaries:
        share = summary.get("unparsed", {"value": 0.0})["value"]
        share -= failed[summary["data"]] / (summary["prompts"] * summary["samples"])
        if share >= UNREAD:
            console.print(
                f"{summary['data']}: the scorer {result.scorer} read no answer in {share:.0%} of the samples, which "
                "count as wrong. Look at some of them: another --scorer may read them (last-number, exact, math, "
                "dapo-strict).",
                style="yellow",
            )


def _lengths(summary: dict[str, Any]) -> str:
    tokens = summary["tokens"]
    return f"mean {tokens['mean']:.1f}, median {tokens['median']:g}, longest {tokens['max']:g}"
