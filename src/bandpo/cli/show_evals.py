"""What `bandpo eval` and `bandpo score` show."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..errors import UserError
from ..evals.draw import evaluate
from ..evals.folder import read_facts, read_graded
from ..evals.grades import grade_folder
from ..progress import console
from ..statistics.summary import summarize


def evaluate_and_show(model: str, ks: Sequence[int] = (), **options: Any) -> None:
    """`bandpo eval`."""
    folder = evaluate(model, **options)
    score_and_show([folder], None, ks, as_json=False)
    print(folder)


def score_and_show(folders: Sequence[Path], scorer: str | None, ks: Sequence[int], as_json: bool) -> None:
    """Grade what is not graded, and print the numbers of each folder."""
    results = []
    for folder in folders:
        facts = read_facts(folder)
        n = facts["sampling"]["n"]
        if ks and not 1 <= max(ks) <= n:
            raise UserError(f"k must be from 1 to the {n} samples of {folder}, got {max(ks)}")
        used = grade_folder(folder, scorer)
        results.append((folder, facts, used, [summarize(graded, ks) for graded in read_graded(folder, used)]))
    if as_json:
        rows = [
            {"folder": str(folder), "label": facts["label"], "scorer": used, "results": summaries}
            for folder, facts, used, summaries in results
        ]
        print(json.dumps(rows, indent=2))
        return
    for folder, facts, used, summaries in results:
        _print(folder, facts, used, summaries, ks)


def _print(
    folder: Path, facts: Mapping[str, Any], scorer: str, summaries: list[dict[str, Any]], ks: Sequence[int]
) -> None:
    n = facts["sampling"]["n"]
    shown = dict.fromkeys(ks or (1, n))
    sampling = facts["sampling"]
    console.print(facts["label"], style="bold", end="", soft_wrap=True)
    console.print(
        f" in {folder}: {n} samples a prompt at temperature {sampling['temperature']:g}, at most "
        f"{sampling['max_tokens']} tokens; scorer {scorer}",
        soft_wrap=True,
    )
    table = Table()
    table.add_column("")
    for summary in summaries:
        table.add_column(f"{summary['data']}\n{summary['prompts']} prompts", justify="right")

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

    row(f"mean@{n}", cell(f"mean@{n}"))
    table.add_row(
        "  sampling only", *(cell(f"mean@{n}", "sampling_error")(summary).split("  ")[1] for summary in summaries)
    )
    for k in shown:
        if k > 1:
            row(f"pass@{k}", cell(f"pass@{k}"))
            row(f"maj@{k}", cell(f"maj@{k}"))
            row(f"best@{k}/mean", lambda s, k=k: f"{100 * s[f'best@{k}/mean']['value']:.2f}")
    row("truncated", cell("truncated"))
    row("unparsed", cell("unparsed"))
    row("tokens", lambda s: f"{s['tokens']['mean']:.0f}, half below {s['tokens']['median']:.0f}, "
        f"longest {s['tokens']['max']:.0f}")  # fmt: skip
    console.print(table)
    console.print(
        "All but tokens in %. Brackets: 95 % interval for problems like these (prompts as clusters); of the line "
        "`sampling only`, for these very problems, sampled again. pass@k and maj@k are unbiased; best@k/mean is verl's "
        "bootstrap, which the paper calls pass@k: with replacement, so it is lower.",
        style="dim",
    )
