"""Print the output of `bandpo eval` and `bandpo score`."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from bandpo.errors import counted

from ..data.problems import bare
from ..evals.folder import read_samples
from ..evals.grades import grade_folder, nothing_right, unanswered
from ..evals.results import (
    Columns,
    Result,
    answered,
    apart,
    files_at,
    is_ours,
    read_result,
    split_label,
)
from ..files.reading import check_different
from ..progress import console, grid
from ..statistics.intervals import summarize

Summary = dict[str, Any]


def score_and_show(
    texts: Sequence[str], scorer: str | None = None, ks: Sequence[int] = (), as_json: bool = False,
    columns: Columns | None = None, drop_incomplete: bool = False, wrong: int = 0,
) -> None:  # fmt: skip
    """Grade what is not graded, and print the numbers of each evaluation."""
    check_different(split_label(text)[1] for text in texts)
    results: list[tuple[Result, list[Summary]]] = []
    for text in texts:
        _, path = split_label(text)
        by = grade_folder(path, scorer) if path.is_dir() and not files_at(path) else scorer
        result = answered(read_result(text, by, columns, drop_incomplete))
        results += [
            (part, [summarize(graded, ks) for graded in part.graded]) for (part,) in apart([result])
        ]
    if as_json:
        print(
            json.dumps(
                [
                    {
                        "source": str(result.source),
                        "label": result.label,
                        "scorer": result.scorer,
                        "results": summaries,
                    }
                    | ({"left_out": result.notes} if result.notes else {})
                    | ({"wrong": _wrong(result, wrong)} if wrong else {})
                    for result, summaries in results
                ],
                indent=2,
            )
        )
        return
    for result, summaries in results:
        _print(result, summaries, ks)
        samples = read_samples(result.source) if is_ours(result.source) else []
        remarks = [*(f"{note}." for note in result.notes), *unanswered(samples)]
        if samples and not any(graded.score.any() for graded in result.graded):
            remarks += [nothing_right(samples, result.scorer)]
        for line in filter(None, remarks):
            console.print(line, style="yellow", soft_wrap=True)
        for row in _wrong(result, wrong):
            read = " ".join(str(row["read"]).split())[:100] or "(empty)"
            read = f"read: {read}" if row["status"] == "ok" else row["status"]
            console.print(
                f"\n{row['data']}, sample {row['sample']}: {row['question']}\n  right: {row['right']}; {read}",
                soft_wrap=True,
            )


def _wrong(result: Result, most: int) -> list[Summary]:
    """Choose answers judged wrong, evenly spread over the problems."""
    places = [
        (graded, i, j) for graded in result.graded for i, j in np.argwhere(graded.score == 0).tolist()
    ]
    rows: list[Summary] = []
    for graded, i, j in places[:: max(1, len(places) // max(1, most))][:most]:
        question, right = graded.questions[i]
        last = question[-1] if isinstance(question, list) and question else question  # of messages
        text = bare(str(last.get("content", last) if isinstance(last, dict) else last))
        read = None if graded.answers is None else graded.answers[i, j]
        unrecorded = "what was read is not recorded" if graded.answers is None else "unparsed"
        status = (unrecorded if read is None else "ok") if graded.status is None else graded.status[i, j]
        rows.append(
            {
                "data": graded.data,
                "sample": j,
                "question": " ".join(text.split())[:100],
                "right": right,
                "read": read,
                "status": status,
            }
        )
    return rows


def _print(result: Result, summaries: list[Summary], ks: Sequence[int]) -> None:
    counts = list(dict.fromkeys(summary["samples"] for summary in summaries))
    sampling = {"temperature": " at temperature {:g}", "max_tokens": ", at most {} tokens"}
    console.print(
        Text(result.label, "bold"),
        f" in {result.source}: {' or '.join(map(str, counts))} {'sample' if counts == [1] else 'samples'} a prompt",
        *(text.format(result.sampling[key]) for key, text in sampling.items() if key in result.sampling),
        f"; scorer {result.scorer}",
        sep="",
        soft_wrap=True,
    )
    rows: list[list[str]] = []

    def row(name: str, cell: Callable[[Summary, str], str], key: str = "") -> None:
        cells = [cell(summary, key or name) if (key or name) in summary else "-" for summary in summaries]
        rows.extend([[name, *cells]] if {*cells} != {"-"} else [])

    for n in counts:
        row(f"mean@{n}", _interval)
    rows.append(
        [
            "  sampling only",
            *(
                _brackets(summary[f"mean@{summary['samples']}"]["sampling_error"])
                for summary in summaries
            ),
        ]
    )
    for k in dict.fromkeys(ks or counts):
        if k > 1:
            row(f"pass@{k}", _interval)
            for name in f"maj@{k}/mean", f"best@{k}/mean":
                row(name, lambda summary, key: f"{100 * summary[key]['value']:.2f}")
    for name in ("truncated", "unparsed"):
        row(name, _interval)
    row(
        "tokens",
        lambda summary, key: "mean {mean:.1f}, median {median:g}, longest {max:g}".format(**summary[key]),
    )
    console.print(
        grid(
            [
                "",
                *[f"{summary['data']}\n{counted(summary['prompts'], 'prompt')}" for summary in summaries],
            ],
            rows,
        )
    )
    of_k = " pass@k is unbiased; verl's best@k, which the paper prints as pass@k, is at most that."
    console.print(
        "In %, with 95 % intervals for problems like these; `sampling only` is for these problems alone."
        + of_k * any(row[0].startswith("pass@") for row in rows)
        + " More: docs/evaluate.md",
        style="dim",
    )


def _interval(summary: Summary, key: str) -> str:
    return f"{100 * summary[key]['value']:.2f}  {_brackets(summary[key]['clustered_error'])}"


def _brackets(interval: Sequence[float]) -> str:
    return "[{:.1f}, {:.1f}]".format(*(100 * end for end in interval))
