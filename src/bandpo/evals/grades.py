"""`bandpo score`: the grades of an evaluation folder, and what they say, from the samples alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import lab
from ..data.sources import reasoning_gym_items
from ..errors import UserError, nearest
from ..files import Appender
from ..rewards.functions import exact, last_number, read_number
from ..rewards.grading import SCORERS, Grade, grade
from ..statistics.estimators import summarize
from .folder import (
    GradeRow,
    Question,
    Sample,
    grades_path,
    read_facts,
    read_graded,
    read_questions,
    read_samples,
)

GRADERS = (*SCORERS, "exact", "last-number", "reasoning-gym", "lab")
CHUNK = 512  # samples graded between two appends

console = Console(highlight=False, markup=False)


def check_scorer(scorer: str) -> str:
    """The scorer, if there is one of this name; raises UserError."""
    if scorer not in GRADERS:
        raise UserError(f"scorer must be one of {', '.join(GRADERS)}, got {scorer!r}{nearest(scorer, list(GRADERS))}")
    return scorer


def grade_folder(folder: Path, scorer: str | None = None, on_graded: Callable[[int], None] = lambda n: None) -> str:
    """Grade the samples that have no grade yet, and append the grades to grades-SCORER.jsonl; returns the scorer.

    Args:
        folder: of an evaluation, finished or not.
        scorer: one of `GRADERS`; None: the evaluation's own.
        on_graded: called with the number of samples graded, from time to time.
    """
    facts = read_facts(folder)
    scorer = check_scorer(scorer or facts["scorer"])
    questions = {(question.data, question.prompt): question for question in read_questions(folder, facts)}
    with Appender(grades_path(folder, scorer), GradeRow) as file:
        graded = {(row["data"], row["prompt"], row["sample"]) for row in file.rows}
        waiting = [sample for sample in read_samples(folder, facts) if sample.key not in graded]
        for data, group in groupby(waiting, key=lambda sample: sample.data):
            samples, grader = list(group), _grader(scorer, facts["data"][data], data)
            for first in range(0, len(samples), CHUNK):
                chunk = samples[first : first + CHUNK]
                grades = grader(chunk, [questions[sample.data, sample.prompt] for sample in chunk])
                file.add(
                    *(
                        {"data": s.data, "prompt": s.prompt, "sample": s.sample}
                        | {"score": g.score, "answer": g.answer, "status": g.status}
                        for s, g in zip(chunk, grades, strict=True)
                    )
                )
                on_graded(len(chunk))
    return scorer


_Grader = Callable[[Sequence[Sample], Sequence[Question]], list[Grade]]


def _grader(scorer: str, facts: Mapping[str, Any], data: str) -> _Grader:
    """What grades samples of one data set."""
    if scorer in SCORERS:
        return lambda samples, questions: grade([s.text for s in samples], [q.answer for q in questions], scorer)
    if scorer == "exact":
        return lambda samples, questions: [
            Grade(score, s.text.strip()) for s, score in zip(samples, _scores(exact, samples, questions), strict=True)
        ]
    if scorer == "last-number":
        return _last_numbers
    if scorer == "lab":
        return _lab
    if "task" not in facts:
        raise UserError(f"scorer reasoning-gym is for questions of reasoning_gym, and {data} is not; give another one")
    items, score_answer = reasoning_gym_items(facts["task"], facts["items"], facts["options"])

    def by_task(samples: Sequence[Sample], questions: Sequence[Question]) -> list[Grade]:
        # The task's score is partial for some answers; right is what has all of it.
        values = [score_answer(s.text.strip(), items[q.more["item"]]) for s, q in zip(samples, questions, strict=True)]
        return [Grade(float(value >= 1), s.text.strip()) for s, value in zip(samples, values, strict=True)]

    return by_task


def _scores(reward: Callable[..., Sequence[float]], samples: Sequence[Sample], questions: Sequence[Question]):
    return reward([s.text for s in samples], answer=[q.answer for q in questions])


def _last_numbers(samples: Sequence[Sample], questions: Sequence[Question]) -> list[Grade]:
    out = []
    for sample, score in zip(samples, _scores(last_number, samples, questions), strict=True):
        number = read_number(sample.text)
        # 7, 7.0 and 7.00 are one answer.
        out.append(Grade(0.0, None, "unparsed") if number is None else Grade(score, format(number.normalize(), "f")))
    return out


def _lab(samples: Sequence[Sample], questions: Sequence[Question]) -> list[Grade]:
    """The lab's reward asks for tokens. Those of a text are its letters; the end, which it does not have, is known."""
    ids = [
        [lab.SYMBOLS.index(letter) for letter in s.text if not letter.isspace()] + [lab.END] * (s.finish == "stop")
        for s in samples
    ]
    scores = lab.reward([s.text for s in samples], ids, [q.answer for q in questions])
    out = []
    for sample, score in zip(samples, scores, strict=True):
        _, mark, after = sample.text.partition(lab.SYMBOLS[lab.ANSWER])
        out.append(Grade(score, after.strip()) if mark else Grade(0.0, None, "unparsed"))
    return out


# ------------------------------------------------------------------------------------------------------------ the table
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

    def cell(name: str, which: str = "such_problems") -> Callable[[dict[str, Any]], str]:
        def text(summary: dict[str, Any]) -> str:
            number = summary[name]
            low, high = (100 * x for x in number[which])
            return f"{100 * number['value']:.2f}  [{low:.1f}, {high:.1f}]"

        return text

    row(f"mean@{n}", cell(f"mean@{n}"))
    table.add_row(
        "  sampling only", *(cell(f"mean@{n}", "these_problems")(summary).split("  ")[1] for summary in summaries)
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
