"""Answers that another program wrote, read as graded samples: dumps of trainers and harnesses, a user's files.

A row is one answer, or a problem with its answers in lists. Of what verl writes to `trainer.validation_data_dir`, and
of the `formats` of harnesses, it is known what is where; of other files the names of columns tell it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bandpo.errors import UserError, nearest
from bandpo.files import check_text, shortened
from bandpo.rewards.grading import SCORERS

from ..data.golds import read_gold, solution_fault
from ..data.questions import Question
from ..data.readers import value_at
from ..statistics.estimators import Graded
from .formats import Row, known, rows_of
from .grades import check_scorer, grader_of
from .samples import Sample
from .texts import texts_of

# What each column is called, in the order in which names are looked for.
NAMES = {
    "prompt": ("prompt", "question", "problem", "input", "query"),
    "problem": ("problem_id", "question_id", "prompt_id", "custom_id"),
    "response": ("response", "responses", "completion", "completions", "output", "outputs", "generations"),
    "answer": ("gts", "answer", "ground_truth", "gold", "target", "reference"),
    "score": ("acc", "correct", "is_correct", "score", "scores", "reward"),
    "extracted": ("pred", "extracted_answer"),
    "data": ("data_source", "dataset"),
}
_NEEDED = {
    "prompt": "questions",
    "response": "responses",
    "answer": "right answers",
    "score": "scores (1 or true where the response is right)",
}
_RIGHT = "1 or true (right), or 0, -1 or false (wrong), is expected; --scorer math grades the responses"
_WORDS = {"true": 1, "false": 0, "c": 1, "i": 0, "n": 0}  # the letters are inspect_ai's: correct, incorrect, no answer


def read_dump(
    path: Path,
    columns: Mapping[str, str | None] | None = None,
    scorer: str | None = None,
    *,
    drop_incomplete: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[list[Graded], str]:
    """Read the answers in a file, data set by data set, and name their grader.

    Args:
        path: the file, of JSON lines, JSON, CSV or Parquet, or a log of inspect_ai.
        columns: names of columns by what they hold, one of `NAMES`; a.b is field b of column a. What is not named is
            looked for by the names that are common.
        scorer: grades the responses anew; None: the scores in the file hold.
        drop_incomplete: problems with fewer answers than most are left out, and answers beyond that number.
        say: is told what was left out.

    Raises:
        UserError: no such file or column, a value that cannot be, or problems with different numbers of answers.
    """
    problems, by, is_read = _problems(path, columns, scorer, drop_incomplete)
    graded = []
    for data, found in problems.items():
        even = _even(path, data, found, drop_incomplete, say)
        graded.append(_graded(data, even, scorer, is_read))
    return graded, by


def to_grade(path: Path, columns: Mapping[str, str | None] | None, scorer: str) -> list[tuple[Sample, Question]]:
    """Read all responses in a file that `read_dump` can read, each with its question, which has the right answer."""
    problems, _, _ = _problems(path, columns, scorer, drop_incomplete=True)
    return [pair for data, found in problems.items() for answers in found.values() for pair in _pairs(data, answers)]


def _problems(
    path: Path, columns: Mapping[str, str | None] | None, scorer: str | None, drop_incomplete: bool
) -> tuple[dict[str, dict[str, list[tuple[Any, Any]]]], str, bool]:
    """Return the answers by data set and problem, their grader, and whether the texts read in them are known.

    An answer
    is its score and what was read or, for a scorer, its text and the right answer."""
    given = {role: name for role, name in (columns or {}).items() if name is not None}
    scorer = scorer and check_scorer(scorer)
    rows = rows_of(path)
    if not rows:
        raise UserError(f"{path}: empty; expected an answer a row")
    of_verl = not given and {"input", "gts"} <= rows[0].keys()
    by = "verl's reward function" if of_verl else None
    if found := known(path, rows, given.get("score"), scorer):
        rows, by = found
        given.pop("score", None)
        chosen = {role: role for role in NAMES if role in rows[0]} | _named(path, rows[0], given)
    else:
        chosen = _chosen(path, rows[0], given, scorer)
    problems: dict[str, dict[str, list[tuple[Any, Any]]]] = {}
    for number, row in enumerate(rows, 1):
        values = {role: value_at(row, name) for role, name in chosen.items()}
        if of_verl and values.get("score") is None:
            values["score"] = row.get("score")
        where = f"{path}, row {number}"
        problem = "problem" if "problem" in chosen else "prompt"
        if values[problem] is None:
            raise UserError(f"{where}: {chosen[problem]!r} is missing")
        data = check_text(str(values.get("data") or ("validation" if of_verl else "answers")), "the name")
        # verl's questions are told apart by the right answer as well.
        key = _hash([values[problem], row["gts"]] if of_verl else values[problem])
        answers = problems.setdefault(data, {}).setdefault(key, [])
        answer = "response" if scorer else "score"
        if values[answer] is None or (scorer and values[answer] != values[answer]):  # NaN, of a table
            if drop_incomplete:
                continue
            raise UserError(f"{where}: {chosen[answer]!r} is missing; --drop-incomplete leaves its problem out")
        if scorer:
            gold = _gold(values["answer"], scorer, f"{where}: {chosen['answer']!r}")
            texts = texts_of(values["response"], f"{where}: {chosen['response']!r}")
            if not texts and not drop_incomplete:
                raise UserError(f"{where}: {chosen['response']!r} is empty; --drop-incomplete leaves its problem out")
            answers += [(text, gold) for text in texts]
            continue
        what = f"{where}: {chosen['score']!r}"
        scores = [_right(score, what, any_number=of_verl) for score in _listed(values["score"])]
        read = _listed(values["extracted"]) if "extracted" in chosen else [None] * len(scores)
        if len(read) != len(scores):
            raise UserError(
                f"{where}: {chosen['extracted']!r} has {len(read)} values, {chosen['score']!r} has {len(scores)}"
            )
        answers += zip(scores, read, strict=True)
    by = scorer or by or f"column {chosen['score']!r}"
    return problems, by, scorer is not None or "extracted" in chosen


def _gold(value: Any, scorer: str, where: str) -> str:
    """Return the right answer in a cell; a text as it is for a scorer of texts."""
    is_text = isinstance(value, str) and scorer not in (*SCORERS, "last-number")
    try:
        gold = value if is_text else read_gold(value)[0]
        if fault := "no answer" if gold == "" else None if is_text else solution_fault(gold):
            raise ValueError(fault)
    except ValueError as error:
        raise UserError(f"{where} is {shortened(value)}: {error}") from None
    return gold


def _even(
    path: Path, data: str, problems: Mapping[str, list[Any]], drop: bool, say: Callable[[str], None]
) -> Mapping[str, list[Any]]:
    """Return the problems, each with as many answers as the others."""
    sizes = Counter(len(answers) for answers in problems.values())
    if len(sizes) == 1 and 0 not in sizes:
        return problems
    if not drop or set(sizes) == {0}:
        drops = "" if drop else ". --drop-incomplete leaves out problems with fewer answers than most"
        raise UserError(
            f"{path}: problems of {data!r} have from {min(sizes)} to {max(sizes)} answers; expected as many for each "
            f"(a problem that is twice in the data has twice as many){drops}"
        )
    n = max((size for size in sizes if size), key=lambda size: (sizes[size], size))
    kept = {key: answers[:n] for key, answers in problems.items() if len(answers) >= n}
    beyond = sum(max(0, len(answers) - n) for answers in problems.values())
    gone = len(problems) - len(kept)
    facts = [f"{gone} of {len(problems)} problems, which have fewer than {n} answers"] if gone else []
    facts += [f"{beyond} answers beyond the first {n} of a problem"] if beyond else []
    say(f"{data}: left out {', and '.join(facts)}")
    return kept


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _hash(problem: Any) -> str:
    """Hash a text or messages as a question of an evaluation folder is hashed."""
    plain = json.loads(json.dumps(problem, default=str)) if isinstance(problem, list | dict) else str(problem)
    return Question("", 0, plain, "").id


def _right(value: Any, what: str, any_number: bool) -> float:
    """Return 1.0 or 0.0. verl's rewards are any numbers, and right is what is above 0."""
    number = value
    if isinstance(value, str):
        try:
            number = float(_WORDS.get(value.strip().lower(), value))
        except ValueError:
            number = math.nan
    if not isinstance(number, int | float) or not math.isfinite(number) or not (any_number or number in (-1, 0, 1)):
        raise UserError(f"{what} is {shortened(value)}; {_RIGHT}")
    return float(number > 0)


def _chosen(path: Path, row: Row, given: Mapping[str, str], scorer: str | None) -> dict[str, str]:
    """Choose the columns."""
    chosen = {role: name for role, names in NAMES.items() if (name := _first(names, row))} | _named(path, row, given)
    needed = ["response", "answer"] if scorer else ["score"]
    for role in needed if "problem" in chosen else ["prompt", *needed]:
        if role not in chosen:
            others = {"prompt": ", or --problem names the problem", "score": ", or --scorer math grades the responses"}
            raise UserError(
                f"{path} has no column of {_NEEDED[role]}; looked for {', '.join(NAMES[role])}; it has {_has(row)}. "
                f"--{role} names it{others.get(role, '')}"
            )
    return chosen


def _first(names: Sequence[str], row: Row) -> str | None:
    return next((name for name in names if name in row), None)


def _named(path: Path, row: Row, given: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that options name; raises UserError for one that is not there."""
    for role, name in given.items():
        if name not in row and value_at(row, name) is None:
            raise UserError(f"{path} has no column {name!r} (--{role}){nearest(name, list(row))}; it has {_has(row)}")
    return dict(given)


def _has(row: Row) -> str:
    """List the columns of a file; a blank at an end of a name, or an empty name, is shown."""
    names = [name if name and name == name.strip() else repr(name) for name in row]
    return (", ".join(names[:20]) or "none") + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _pairs(data: str, answers: Iterable[tuple[str, str]]) -> list[tuple[Sample, Question]]:
    return [(Sample(data, 0, 0, 0, text, 0, "stop"), Question(data, 0, "", gold)) for text, gold in answers]


def _graded(data: str, problems: Mapping[str, list[tuple[Any, Any]]], scorer: str | None, is_read: bool) -> Graded:
    shape = len(problems), len(next(iter(problems.values())))
    flat = [answer for answers in problems.values() for answer in answers]
    if scorer:
        samples, questions = zip(*_pairs(data, flat), strict=True)
        grades = grader_of(scorer, {}, data)(samples, questions)
        flat = [(grade.score, grade.answer if grade.status == "ok" else None) for grade in grades]
    read = np.empty(len(flat), dtype=object)
    read[:] = [None if text in (None, "", "[INVALID]", "[invalid]") else str(text) for _, text in flat]
    answers = read.reshape(shape)
    return Graded(
        data=data,
        score=np.array([score for score, _ in flat], np.float64).reshape(shape),
        answers=answers if is_read else None,
        tokens=None,
        truncated=None,
        parsed=answers != np.array(None) if is_read else None,
        prompt_ids=list(problems),
    )
