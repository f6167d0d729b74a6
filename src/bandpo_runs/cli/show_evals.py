"""Output of `bandpo eval` and `bandpo score`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table

from bandpo.errors import UserError, counted

from ..evals.folder import read_samples
from ..evals.grades import grade_folder, nothing_right, unanswered
from ..evals.results import Columns, Result, read_result, split_label
from ..progress import console
from ..statistics.intervals import summarize

UNREAD = 0.2  # share of samples without an answer that could be read, from which on it is told


def score_and_show(
    texts: Sequence[str],
    scorer: str | None = None,
    ks: Sequence[int] = (),
    as_json: bool = False,
    columns: Columns | None = None,
    drop_incomplete: bool = False,
) -> None:
    """Grade what is not graded, and print the numbers of each evaluation."""
    results: list[tuple[Result, list[dict[str, Any]]]] = []
    for text in texts:
        _, path = split_label(text)
        by = grade_folder(path, scorer) if path.is_dir() else scorer
        result = read_result(text, by, columns, drop_incomplete)
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
        samples = read_samples(result.source) if result.source.is_dir() else []
        remarks = [*(f"{note}." for note in result.notes), *unanswered(samples)]
        if samples and not any(graded.score.any() for graded in result.graded):
            remarks += [nothing_right(result.source, samples, result.scorer) or ""]
        elif samples or scorer:  # and no column of a file, whose grades may come from elsewhere
            remarks += _unread(result, summaries, Counter(sample.data for sample in samples if sample.error))
        for line in filter(None, remarks):
            console.print(line, style="yellow", soft_wrap=True)


def _print(result: Result, summaries: list[dict[str, Any]], ks: Sequence[int]) -> None:
    counts = list(dict.fromkeys(summary["samples"] for summary in summaries))
    shown = dict.fromkeys(ks or (1, *counts))
    console.print(result.label, style="bold", end="", soft_wrap=True)
    drawn = f" in {result.source}: {' or '.join(map(str, counts))} {'sample' if counts == [1] else 'samples'} a prompt"
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


def _unread(result: Result, summaries: list[dict[str, Any]], failed: Counter[str]) -> Iterator[str]:
    for summary in summaries:
        share = summary.get("unparsed", {"value": 0.0})["value"]
        share -= failed[summary["data"]] / (summary["prompts"] * summary["samples"])
        if share >= UNREAD:
            yield (
                f"{summary['data']}: the scorer {result.scorer} read no answer in {share:.0%} of the samples, which "
                "count as wrong. Look at some of them: another --scorer may read them (last-number, exact, math, "
                "dapo-strict)."
            )


def _lengths(summary: dict[str, Any]) -> str:
    tokens = summary["tokens"]
    return f"mean {tokens['mean']:.1f}, median {tokens['median']:g}, longest {tokens['max']:g}"
