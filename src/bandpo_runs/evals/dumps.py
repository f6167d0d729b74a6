"""Answers that another program wrote, read as graded samples: dumps of trainers and harnesses, a user's files.

A row is one answer, or a problem with its answers in lists. Of the `formats` of verl and of harnesses it is known what
is where; of other files the names of columns tell it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    "prompt": ("questions", ", or problem=COLUMN what names the problem"),
    "response": ("responses", ""),
    "answer": ("right answers", ""),
    "score": ("scores (1 or true where the response is right)", ", or --scorer math grades the responses"),
}
_WORDS = {"true": 1, "false": 0, "c": 1, "i": 0, "n": 0}  # the letters are inspect_ai's: correct, incorrect, no answer

_Answers = list[tuple[Any, Any]]  # a score and what was read or, for a scorer, a text and the right answer


def read_dump(
    path: Path,
    columns: Mapping[str, str] | None = None,
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
    scorer = scorer and check_scorer(scorer)
    rows, chosen, by = _rows(path, columns or {}, scorer)
    problems: dict[str, dict[str, _Answers]] = {}
    for number, row in enumerate(rows, 1):
        where = f"{path}, row {number}"
        values = {role: value_at(row, name) for role, name in chosen.items()}
        problem, wanted = "problem" if "problem" in chosen else "prompt", "response" if scorer else "score"
        if values[problem] is None:
            raise UserError(f"{where}: {chosen[problem]!r} is missing")
        data = check_text(str(values.get("data") or "answers"), "the name")
        answers = problems.setdefault(data, {}).setdefault(_hash(values[problem]), [])
        missing = values[wanted] is None or values[wanted] != values[wanted]  # NaN, of a table
        found: _Answers = []
        if not missing:
            found = _texts(values, chosen, where, scorer) if scorer else _scores(values, chosen, where)
        if not found and not drop_incomplete:
            raise UserError(f"{where}: {chosen[wanted]!r} is missing; --drop-incomplete leaves its problem out")
        answers += found
    graded = []
    for data, of_data in problems.items():
        even = _even(path, data, of_data, say) if drop_incomplete else of_data
        sizes = {len(answers) for answers in even.values()}
        if len(sizes) != 1 or sizes == {0}:
            raise UserError(
                f"{path}: problems of {data!r} have from {min(sizes, default=0)} to {max(sizes, default=0)} answers; "
                "expected as many for each (a problem that is twice in the data has twice as many). --drop-incomplete "
                "leaves out problems with fewer answers than most"
            )
        graded.append(_graded(data, even, scorer, scorer is not None or "extracted" in chosen))
    return graded, by


def _rows(path: Path, given: Mapping[str, str], scorer: str | None) -> tuple[Sequence[Row], dict[str, str], str]:
    """Return the rows of a file, the column of each role, and who graded them."""
    if role := next((role for role in given if role not in NAMES), None):
        raise UserError(f"--column must name one of {', '.join(NAMES)}, got {role!r}{nearest(role, list(NAMES))}")
    rows = rows_of(path)
    if not rows:
        raise UserError(f"{path}: empty; expected an answer a row")
    form = known(path, rows, given.get("score"), scorer)
    if form:
        rows, by = form
        given = {role: name for role, name in given.items() if role != "score"}
        chosen = {role: role for role in NAMES if role in rows[0]}
    else:
        there = {role: next((name for name in names if name in rows[0]), None) for role, names in NAMES.items()}
        chosen = {role: name for role, name in there.items() if name is not None}
        by = f"column {given.get('score', chosen.get('score'))!r}"
    names = [name if name and name == name.strip() else repr(name) for name in rows[0]]  # a blank at an end is shown
    has = (", ".join(names[:20]) or "none") + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    for role, name in given.items():
        if name not in rows[0] and value_at(rows[0], name) is None:
            near = nearest(name, list(rows[0]))
            raise UserError(f"{path} has no column {name!r} (--column {role}={name}){near}; it has {has}")
    chosen |= given
    needed = ["response", "answer"] if scorer else ["score"]
    for role in needed if "problem" in chosen else ["prompt", *needed]:
        if role not in chosen:
            what, other = _NEEDED[role]
            raise UserError(
                f"{path} has no column of {what}; looked for {', '.join(NAMES[role])}; it has {has}. --column "
                f"{role}=COLUMN names it{other}"
            )
    return rows, chosen, scorer or by


def _texts(values: Row, chosen: Mapping[str, str], where: str, scorer: str) -> _Answers:
    """Return the texts in a row, each with the right answer; as it is written for a scorer of texts."""
    value, where_gold = values["answer"], f"{where}: {chosen['answer']!r}"
    is_text = isinstance(value, str) and scorer not in (*SCORERS, "last-number")
    try:
        gold = value if is_text else read_gold(value)[0]
        if fault := "no answer" if gold == "" else None if is_text else solution_fault(gold):
            raise ValueError(fault)
    except ValueError as error:
        raise UserError(f"{where_gold} is {shortened(value)}: {error}") from None
    return [(text, gold) for text in texts_of(values["response"], f"{where}: {chosen['response']!r}")]


def _scores(values: Row, chosen: Mapping[str, str], where: str) -> _Answers:
    """Return the scores in a row, 1.0 or 0.0, each with what was read."""
    scores, read = _listed(values["score"]), _listed(values.get("extracted"))
    if "extracted" not in chosen:
        read = [None] * len(scores)
    if len(read) != len(scores):
        lengths = f"{chosen['extracted']!r} has {len(read)} values, {chosen['score']!r} has {len(scores)}"
        raise UserError(f"{where}: {lengths}")
    right = []
    for value in scores:
        number = value
        if isinstance(value, str):
            try:
                number = float(_WORDS.get(value.strip().lower(), value))
            except ValueError:
                number = math.nan
        if not isinstance(number, int | float) or number not in (-1, 0, 1):
            raise UserError(
                f"{where}: {chosen['score']!r} is {shortened(value)}; 1 or true (right), or 0, -1 or false (wrong), is "
                "expected; --scorer math grades the responses"
            )
        right.append(float(number > 0))
    return list(zip(right, read, strict=True))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _hash(problem: Any) -> str:
    """Hash a text or messages as a question of an evaluation folder is hashed."""
    plain = json.loads(json.dumps(problem, default=str)) if isinstance(problem, list | dict) else str(problem)
    return Question("", 0, plain, "").id


def _even(
    path: Path, data: str, problems: Mapping[str, _Answers], say: Callable[[str], None]
) -> Mapping[str, _Answers]:
    """Leave out problems with fewer answers than most, and answers beyond that number."""
    sizes = Counter(len(answers) for answers in problems.values())
    n = max(sizes, key=lambda size: (size > 0, sizes[size], size))
    kept = {key: answers[:n] for key, answers in problems.items() if len(answers) >= n}
    beyond = sum(max(0, len(answers) - n) for answers in problems.values())
    gone = len(problems) - len(kept)
    facts = [f"{gone} of {len(problems)} problems, which have fewer than {n} answers"] if gone else []
    facts += [f"{beyond} answers beyond the first {n} of a problem"] if beyond else []
    if facts:
        say(f"{data}: left out {', and '.join(facts)}")
    return kept


def _graded(data: str, problems: Mapping[str, _Answers], scorer: str | None, is_read: bool) -> Graded:
    shape = len(problems), len(next(iter(problems.values())))
    flat = [answer for answers in problems.values() for answer in answers]
    if scorer:
        samples = [Sample(data, 0, 0, 0, text, 0, "stop") for text, _ in flat]
        grades = grader_of(scorer, {}, data)(samples, [Question(data, 0, "", gold) for _, gold in flat])
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
