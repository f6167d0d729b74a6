"""Answers that another program wrote, read as graded samples: verl's dumps, lighteval's details, files of one's own.

A row is one answer, or a problem with its answers in lists. Of what verl writes to `trainer.validation_data_dir`, and
of the details of lighteval 0.10 and later, it is known what is where; of other files the names of columns tell it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.questions import Question
from ..data.readers import file_rows, value_at
from ..errors import UserError, nearest
from ..files.checks import check_text, shortened
from ..statistics.estimators import Graded
from .grades import check_scorer, grader_of
from .samples import Sample

Row = Mapping[str, Any]

# What each column is called, in the order in which names are looked for.
NAMES = {
    "prompt": ("prompt", "question", "problem", "input", "query"),
    "problem": ("problem_id", "question_id", "prompt_id"),
    "response": ("response", "responses", "completion", "completions", "output", "outputs", "generations"),
    "answer": ("gts", "answer", "ground_truth", "gold", "target", "reference"),
    "score": ("acc", "correct", "is_correct", "score", "scores"),
    "extracted": ("pred", "extracted_answer"),
    "data": ("data_source", "dataset"),
}
_NEEDED = {
    "prompt": "questions",
    "response": "responses",
    "answer": "right answers",
    "score": "scores (1 or true where the response is right)",
}
_RIGHT = "1 or true (right), or 0, -1 or false (wrong), is expected"


def read_dump(
    path: Path, columns: Mapping[str, str | None] | None = None, scorer: str | None = None
) -> tuple[list[Graded], str]:
    """The answers in a file of JSON lines, JSON, CSV or Parquet, data set by data set, and what graded them.

    Args:
        path: the file.
        columns: names of columns by what they hold, one of `NAMES`; a.b is field b of column a. What is not named is
            looked for by the names that are common.
        scorer: grades the responses anew; None: the scores in the file hold.

    Raises:
        UserError: no such file or column, a value that cannot be, or problems with different numbers of answers.
    """
    given = {role: name for role, name in (columns or {}).items() if name is not None}
    scorer = scorer and check_scorer(scorer)
    rows: Sequence[Row] = list(file_rows(path, str(path)))
    if not rows:
        raise UserError(f"{path}: empty; expected an answer a row")
    of_verl = not given and {"input", "gts"} <= rows[0].keys()
    by = "verl's reward function" if of_verl else None
    if {"doc", "model_response", "metric"} <= rows[0].keys():
        metric = None if scorer else _metric(path, rows[0], given.pop("score", None))
        rows = [_of_lighteval(row, metric, f"{path}, row {number}") for number, row in enumerate(rows, 1)]
        by = f"lighteval's {metric}"
    chosen = _chosen(path, rows[0], given, scorer)
    problems: dict[str, dict[str, list[tuple[Any, Any]]]] = {}
    for number, row in enumerate(rows, 1):
        values = {role: value_at(row, name) for role, name in chosen.items()}
        if of_verl and values.get("score") is None:
            values["score"] = row.get("score")
        where = f"{path}, row {number}"
        problem = "problem" if "problem" in chosen else "prompt"
        for role in (problem, *(("response", "answer") if scorer else ("score",))):
            if values[role] is None:
                raise UserError(f"{where}: {chosen[role]!r} is missing")
        data = check_text(str(values.get("data") or ("validation" if of_verl else "answers")), "the name")
        # verl's questions are told apart by the right answer as well.
        key = _hash([values[problem], row["gts"]] if of_verl else values[problem])
        answers = problems.setdefault(data, {}).setdefault(key, [])
        if scorer:
            answers += [(text, values["answer"]) for text in _listed(values["response"])]
            continue
        what = f"{where}: {chosen['score']!r}"
        scores = [_right(score, what, any_number=of_verl) for score in _listed(values["score"])]
        read = _listed(values["extracted"]) if "extracted" in chosen else [None] * len(scores)
        if len(read) != len(scores):
            raise UserError(
                f"{where}: {chosen['extracted']!r} has {len(read)} values, {chosen['score']!r} has {len(scores)}"
            )
        answers += zip(scores, read, strict=True)
    known = scorer is not None or "extracted" in chosen
    graded = [_graded(path, data, found, scorer, known) for data, found in problems.items()]
    return graded, scorer or by or f"column {chosen['score']!r}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _hash(problem: Any) -> str:
    """A text or messages have the hash that they have as a question of an evaluation folder."""
    plain = json.loads(json.dumps(problem, default=str)) if isinstance(problem, list | dict) else str(problem)
    return Question("", 0, plain, "").id


def _right(value: Any, what: str, any_number: bool) -> float:
    """1.0 or 0.0. verl's rewards are any numbers, and right is what is above 0."""
    number = value
    if isinstance(value, str):
        words = {"true": "1", "false": "0"}
        try:
            number = float(words.get(value.strip().lower(), value))
        except ValueError:
            number = math.nan
    if not isinstance(number, int | float) or not math.isfinite(number) or not (any_number or number in (-1, 0, 1)):
        raise UserError(f"{what} is {shortened(value)}; {_RIGHT}")
    return float(number > 0)


def _chosen(path: Path, row: Row, given: Mapping[str, str], scorer: str | None) -> dict[str, str]:
    """Which column is what."""
    there = list(row)
    has = (", ".join(there[:20]) or "none") + (f" and {len(there) - 20} more" if len(there) > 20 else "")
    for role, name in given.items():
        if name not in there and value_at(row, name) is None:
            raise UserError(f"{path} has no column {name!r} (--{role}){nearest(name, there)}; it has {has}")
    found = {role: next((name for name in names if name in there), None) for role, names in NAMES.items()}
    chosen = {role: name for role, name in found.items() if name is not None} | dict(given)
    needed = ["response", "answer"] if scorer else ["score"]
    for role in needed if "problem" in chosen else ["prompt", *needed]:
        if role not in chosen:
            others = {"prompt": ", or --problem names the problem", "score": ", or --scorer math grades the responses"}
            raise UserError(
                f"{path} has no column of {_NEEDED[role]}; looked for {', '.join(NAMES[role])}; it has {has}. "
                f"--{role} names it{others.get(role, '')}"
            )
    return chosen


def _graded(
    path: Path, data: str, problems: Mapping[str, list[tuple[Any, Any]]], scorer: str | None, known: bool
) -> Graded:
    counts = sorted({len(answers) for answers in problems.values()})
    if counts[0] != counts[-1] or not counts[0]:
        raise UserError(f"{path}: problems of {data!r} have from {counts[0]} to {counts[-1]} answers; expected as many "
                         "for each (a problem that is twice in the data has twice as many)")  # fmt: skip
    shape = len(problems), counts[0]
    flat = [answer for answers in problems.values() for answer in answers]
    if scorer:
        samples = [Sample(data, 0, 0, 0, str(text or ""), 0, "stop") for text, _ in flat]
        grades = grader_of(scorer, {}, data)(samples, [Question(data, 0, "", str(answer)) for _, answer in flat])
        flat = [(grade.score, grade.answer if grade.status == "ok" else None) for grade in grades]
    read = np.empty(len(flat), dtype=object)
    read[:] = [None if text in (None, "", "[INVALID]") else str(text) for _, text in flat]
    answers = read.reshape(shape)
    return Graded(
        data=data,
        score=np.array([score for score, _ in flat], np.float64).reshape(shape),
        answers=answers if known else None,
        tokens=None,
        truncated=None,
        parsed=answers != np.array(None) if known else None,
        prompt_ids=list(problems),
    )


# ------------------------------------------------------------------------------------------------------------ lighteval
# A metric is a number for each problem. Of these it is the share of right responses, which is all that the statistics
# ask of them; of others only where there is one response.
_SHARES = re.compile(r"avg@n(:|$)|(gpqa_)?pass@k:(.*&)?k=1(&|$)")


def _metric(path: Path, row: Row, given: str | None) -> str:
    """The metric by which lighteval's details say what is right."""
    metrics = list(row["metric"] or {}) if isinstance(row["metric"], Mapping) else []
    if given is not None:
        name = given.removeprefix("metric.")
        if name not in metrics:
            raise UserError(f"{path} has no metric {name!r} (--score){nearest(name, metrics)}; it has {metrics}")
        return name
    averages = [name for name in metrics if name.startswith("avg@n")]
    usable = averages or [name for name in metrics if _SHARES.match(name)] or metrics
    if len(usable) != 1:
        raise UserError(f"{path} has the metrics {metrics}; --score names the one that says what is right")
    return usable[0]


def _of_lighteval(row: Row, metric: str | None, where: str) -> Row:
    """A row of its details in names of ours: `doc`, what was asked; `model_response`, what came; `metric`."""
    try:
        doc, texts = row["doc"], row["model_response"]["text"]
        plain = {"prompt": doc["query"], "data_source": doc["task_name"], "response": texts}
        gold = _listed(doc["gold_index"])
        plain["answer"] = doc["choices"][gold[0]] if gold else None
        if metric is None:
            return plain
        count = int(found[1]) if (found := re.search(r"[:&]n=(\d+)", metric)) else len(texts) or 1
        right = row["metric"][metric] * count
        whole = abs(right - round(right)) < 1e-6 * count and 0 <= round(right) <= count
    except (KeyError, IndexError, TypeError) as error:
        raise UserError(f"{where}: not as lighteval writes it ({type(error).__name__}: {error})") from None
    if not whole or (count > 1 and not _SHARES.match(metric)):
        raise UserError(
            f"{where}: {metric} is {row['metric'][metric]} for {count} responses, which does not say how many of them "
            "are right; --score names another metric, such as avg@n, or --scorer math grades the responses"
        )
    return {**plain, "score": [1] * round(right) + [0] * (count - round(right))}
