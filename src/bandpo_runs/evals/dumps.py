"""Read answers of another program as graded samples. They are dumps of trainers and harnesses, and a user's files.

A row is one answer, or a problem with its answers in lists. Of the `formats` of verl and of harnesses it is known what
is where; of other files the names of columns tell it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bandpo.errors import UserError, nearest
from bandpo.files import check_text, shortened
from bandpo.rewards.grading import SCORERS

from ..data.golds import read_gold, solution_fault
from ..data.problems import without_looks
from ..data.questions import Question
from ..data.readers import value_at
from ..statistics.estimators import Graded
from .formats import Row, known, rows_of
from .grades import check_scorer, grader_of
from .samples import Sample, content_of

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
# The letters are inspect_ai's: correct, incorrect, no answer.
_RIGHT: dict[str, float] = {"1.0": 1, "true": 1, "c": 1, "0.0": 0, "-1.0": 0, "false": 0, "i": 0, "n": 0}

_EXPECTED = "text, chat messages with one of the assistant, or a list of such is expected"
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
        columns: names of columns by role, one of `NAMES`; a.b is field b of column a. The others have usual names.
        scorer: grades the responses anew; None: the scores in the file hold.
        drop_incomplete: problems with fewer answers than most are left out, and answers beyond that number.
        say: is told what was left out.

    Raises:
        UserError: no such file or column, a value that cannot be, or problems with different numbers of answers.
    """
    scorer = scorer and check_scorer(scorer)
    rows, names, by = _rows(path, columns or {}, scorer)
    problem, wanted = "problem" if "problem" in names else "prompt", "response" if scorer else "score"
    problems: dict[str, dict[str, _Answers]] = {}
    asked: dict[tuple[str, str], tuple[Any, Any]] = {}  # by data set and problem: the question, and its right answer
    # A column "answer" may hold what the model answered, where no other column does.
    is_gold = scorer is not None or "response" in names or names.get("answer") != "answer"
    for number, row in enumerate(rows, 1):
        where = f"{path}, row {number}"
        if row[problem] is None:
            raise UserError(f"{where}: {names[problem]!r} is missing")
        data = check_text(str(row.get("data") or "answers"), "the name")
        key, gold = _hash(row[problem]), row.get("answer")
        question, first = asked.setdefault((data, key), (row.get("prompt", row[problem]), gold))
        if is_gold and None not in (first, gold) and without_looks(str(first)) != without_looks(str(gold)):
            two = f"two right answers, {shortened(first)} and {shortened(gold)}"
            raise UserError(f"{where}: {two}, to the question {shortened(question)}")
        answers = problems.setdefault(data, {}).setdefault(key, [])
        found: _Answers = []
        if row[wanted] is not None and row[wanted] == row[wanted]:  # NaN, of a table
            found = _texts(row, names, where, scorer) if scorer else _scores(row, names, where)
        if not found and not drop_incomplete:
            raise UserError(f"{where}: {names[wanted]!r} is missing; --drop-incomplete leaves its problem out")
        answers += found
    graded = []
    for data, of_data in problems.items():
        even = _even(data, of_data, say) if drop_incomplete else of_data
        sizes = {len(answers) for answers in even.values()}
        if len(sizes) != 1 or sizes == {0}:
            raise UserError(
                f"{path}: problems of {data!r} have from {min(sizes)} to {max(sizes)} answers, expected as many for "
                "each; --drop-incomplete leaves out problems with fewer answers than most"
            )
        graded.append(_graded(data, even, scorer, scorer is not None or "extracted" in names, asked))
    return graded, by


def _rows(path: Path, given: Mapping[str, str], scorer: str | None) -> tuple[Sequence[Row], Mapping[str, str], str]:
    """Return the rows of a file by role, the column of each role, and who graded them."""
    if role := next((role for role in given if role not in NAMES), None):
        raise UserError(f"--column must name one of {', '.join(NAMES)}, got {role!r}{nearest(role, list(NAMES))}")
    rows = rows_of(path)
    if not rows:
        raise UserError(f"{path}: empty; expected an answer a row")
    if form := known(path, rows, given.get("score"), scorer):
        if others := [role for role in given if role != "score"]:
            raise UserError(f"{path} has known columns, and {form[1]}; --column {others[0]} is for other files")
        return form[0], {role: role for role in form[0][0]}, scorer or form[1]
    there = {role: next((name for name in names if name in rows[0]), None) for role, names in NAMES.items()}
    names = {role: name for role, name in there.items() if name is not None} | dict(given)
    has = ", ".join(list(rows[0])[:20]) + (f" and {len(rows[0]) - 20} more" if len(rows[0]) > 20 else "")
    for role, name in given.items():
        if name not in rows[0] and value_at(rows[0], name) is None:
            near = nearest(name, list(rows[0]))
            raise UserError(f"{path} has no column {name!r} (--column {role}={name}){near}; it has {has}")
    needed = ["response", "answer"] if scorer else ["score"]
    for role in needed if "problem" in names else ["prompt", *needed]:
        if role not in names:
            said = f"looked for {', '.join(NAMES[role])}; it has {has}. --column {role}=COLUMN names it"
            hint = ", or --scorer math grades the responses" if role == "score" else ""
            raise UserError(f"{path} has no column of the {role}; {said}{hint}")
    by_role = [{role: value_at(row, name) for role, name in names.items()} for row in rows]
    for number, row in enumerate(by_role, 1):
        texts, scores = (each if isinstance(each, list) else [] for each in (row.get("response"), row.get("score")))
        is_listed = texts and scores and not scorer and all(isinstance(text, str) for text in texts)
        if is_listed and len(texts) != len(scores):
            lengths = f"{names['response']!r} has {len(texts)} texts, {names['score']!r} has {len(scores)}"
            raise UserError(f"{path}, row {number}: {lengths}")
    return by_role, names, scorer or f"column {names['score']!r}"


def _texts(row: Row, names: Mapping[str, str], where: str, scorer: str) -> _Answers:
    """Return the texts in a row, each with the right answer. A scorer of texts gets that as it is written."""
    value = gold = row["answer"]
    try:
        if not isinstance(value, str) or scorer in (*SCORERS, "last-number"):
            gold = read_gold(value)[0]
            if fault := solution_fault(gold) or (None if gold else "no answer"):
                raise ValueError(fault)
    except ValueError as error:
        raise UserError(f"{where}: {names['answer']!r} is {shortened(value)}: {error}") from None
    return [(text, gold) for text in texts_of(row["response"], f"{where}: {names['response']!r}")]


def texts_of(found: Any, where: str) -> list[str]:
    """Read the text of each answer in a cell.

    Messages are one conversation, hence one answer: the text of the last one of the assistant ("" where it only calls
    tools). A list of anything else has an answer in each element, lists of lists too. A reply of a server that speaks
    OpenAI's protocol has one in each of its choices.

    Raises:
        UserError: no answer can be made out; the message begins with `where` and has what was found.
    """
    if found is None or found != found:  # NaN is how some tables say nothing
        return [""]
    if isinstance(found, str | int | float) and not isinstance(found, bool):
        return [str(found)]
    if isinstance(found, Mapping) and "role" not in found:
        for key in ("choices", "body", "message", "messages", "text"):  # of servers, of batches, and of vLLM
            if found.get(key) is not None:
                return texts_of(found[key], where)
        if "content" in found:
            return [content_of(found["content"], where)]
    parts: list[Any] = [found] if isinstance(found, Mapping) else found if isinstance(found, list) else []
    if parts and all(isinstance(part, Mapping) and "role" in part for part in parts):
        said = [message for message in parts if message["role"] in ("assistant", "model")]
        if not said:
            raise UserError(f"{where} has no message of the assistant, but {shortened(parts)}; {_EXPECTED}")
        return [content_of(said[-1].get("content"), where)]
    if isinstance(found, list) and len({isinstance(part, Mapping) for part in parts}) < 2:
        if parts and all(isinstance(part, Mapping) and "type" in part for part in parts):
            return [content_of(parts, where)]
        return [text for part in parts for text in texts_of(part, where)]
    raise UserError(f"{where} is {shortened(found)}; {_EXPECTED}")


def _scores(row: Row, names: Mapping[str, str], where: str) -> _Answers:
    """Return the scores in a row, 1.0 or 0.0, each with what was read."""
    scores, read = (each if isinstance(each, list) else [each] for each in (row["score"], row.get("extracted")))
    if "extracted" not in names:
        read = [None] * len(scores)
    if len(read) != len(scores):
        lengths = f"{names['extracted']!r} has {len(read)} values, {names['score']!r} has {len(scores)}"
        raise UserError(f"{where}: {lengths}")
    right = [_right(str(value).strip().lower()) for value in scores]
    if None in right:
        raise UserError(
            f"{where}: {names['score']!r} is {shortened(scores[right.index(None)])}; 1 or true (right), or 0, -1 or "
            "false (wrong), is expected; --scorer math grades the responses"
        )
    return list(zip(right, read, strict=True))


def _right(said: str) -> float | None:
    """Read a score: a number as text, such as "1.00", is that number."""
    with suppress(ValueError):
        said = str(float(said) + 0.0)  # not -0.0
    return _RIGHT.get(said)


def _hash(problem: Any) -> str:
    """Hash a text or messages as a question of an evaluation folder is hashed."""
    plain = json.loads(json.dumps(problem, default=str)) if isinstance(problem, list | dict) else str(problem)
    return Question("", 0, plain, "").id


def _even(data: str, problems: Mapping[str, _Answers], say: Callable[[str], None]) -> Mapping[str, _Answers]:
    """Leave out problems with fewer answers than most, and answers beyond that number."""
    sizes = Counter(map(len, problems.values()))
    n = max(sizes, key=lambda size: (size > 0, sizes[size], size))
    kept = {key: answers[:n] for key, answers in problems.items() if len(answers) >= n}
    if kept != problems:
        beyond = sum(max(0, len(answers) - n) for answers in problems.values())
        gone = f"{len(problems) - len(kept)} of {len(problems)} problems, which have fewer than {n} answers"
        say(f"{data}: left out {gone}, and {beyond} answers beyond the first {n} of a problem")
    return kept


def _graded(
    data: str, problems: Mapping[str, _Answers], scorer: str | None, is_read: bool, asked: Mapping[Any, tuple[Any, Any]]
) -> Graded:
    shape = len(problems), len(next(iter(problems.values())))
    flat = [answer for answers in problems.values() for answer in answers]
    if scorer:
        samples = [Sample(data, 0, 0, 0, text, 0, "stop") for text, _ in flat]
        grades = grader_of(scorer, {}, data)(samples, [Question(data, 0, "", gold) for _, gold in flat])
        flat = [(grade.score, grade.answer if grade.status == "ok" else None) for grade in grades]
    read = [None if text in (None, "", "[INVALID]", "[invalid]") else str(text) for _, text in flat]
    answers = np.array(read, object).reshape(shape)
    return Graded(
        data=data,
        score=np.array([score for score, _ in flat], np.float64).reshape(shape),
        answers=answers if is_read else None,
        tokens=None,
        truncated=None,
        parsed=answers != np.array(None) if is_read else None,
        prompt_ids=list(problems),
        asked=[asked[data, key] for key in problems],
    )
