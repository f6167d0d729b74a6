"""Read answers of another program as graded samples. They are dumps of trainers and harnesses, and a user's files.

A row is one answer, or a problem with its answers in lists. Of the `formats` of verl and of harnesses it is known what
is where; of other files the names of columns tell it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from .columns import NAMES, Row, column_of, is_missing, is_right
from .formats import Say, chosen, of_form, rows_of
from .grades import check_scorer, grader_of
from .samples import Sample, content_of

_ASSISTANT = ("assistant", "model")
_EXPECTED = "text, chat messages with one of the assistant, or a list of such is expected"
Names = Mapping[str, str]  # of columns, by role; none of a form whose roles are known
# A score and what was read or, for a scorer, a text and the right answer.
_Answers = list[tuple[Any, Any]]


def read_dump(
    path: Path | Sequence[Path],
    columns: Mapping[str, str] | None = None,
    scorer: str | None = None,
    *,
    drop_incomplete: bool = False,
    say: Say = lambda line: None,
) -> tuple[list[Graded], str]:
    """Read the answers in a file, data set by data set, and name their grader.

    Several grades of one answer, such as of lm-eval's filters, are a `Graded` each, with its `scorer`.

    Args:
        path: the file, of JSON lines, JSON, CSV or Parquet, or a log of inspect_ai; or several, with other answers to
            the same problems.
        columns: names of columns by role, one of `NAMES`; a.b is field b of column a. The others have usual names.
        scorer: grades the responses anew; None: the scores in the file hold, or else `math` grades.
        drop_incomplete: problems with fewer answers than most are left out, and answers beyond that number.
        say: is told what was left out, and what was read under a name that is not the file's own.

    Raises:
        UserError: no such file or column, a value that cannot be, or problems with different numbers of answers.
    """
    paths = [path] if isinstance(path, Path) else path
    scorer = scorer and check_scorer(scorer)
    rows = [row for each in paths for row in rows_of(each, say)]
    if not rows:
        raise UserError(f"{paths[0]}: empty; expected an answer a row")
    columns = columns or {}
    by, names, answers = of_form(paths[0], rows, columns) or _by_role(
        paths[0], rows, columns, scorer, say
    )
    # A column that names the score is read by now.
    metrics = [] if scorer else chosen(paths[0], answers, None if names else columns.get("score"), say)
    graders = {by + metric: metric for metric in metrics} or {scorer or "math": None}
    graded = [
        each
        for grader, metric in graders.items()
        for each in _read(paths[0], answers, names, grader, metric, drop_incomplete, say)
    ]
    return graded, " and ".join(graders)


def _read(
    path: Path,
    rows: Sequence[Row],
    names: Names,
    grader: str,
    metric: str | None,
    drop_incomplete: bool,
    say: Say,
) -> Iterator[Graded]:
    """Read answers by role, with their scores by a metric. None: the grader is a scorer, which grades the texts."""
    problem, wanted = "problem" if "problem" in rows[0] else "prompt", "score" if metric else "response"
    problems: dict[str, dict[str, _Answers]] = {}
    questions: dict[tuple[str, str], tuple[Any, Any]] = {}  # with right answers, by data set and problem
    # A column "answer" may hold what the model answered, where no other column does.
    is_gold = metric is None or "response" in names or names.get("answer") != "answer"
    for number, row in enumerate(rows, 1):
        where = f"{path}, row {number}"
        if row[problem] is None:
            raise UserError(f"{where}: {names.get(problem, problem)!r} is missing")
        data = check_text(str(row.get("data") or "answers"), "the name")
        key, gold = _hash(row[problem]), row.get("answer")
        question, first = questions.setdefault((data, key), (row.get("prompt", row[problem]), gold))
        if (
            is_gold
            and None not in (first, gold)
            and without_looks(str(first)) != without_looks(str(gold))
        ):
            raise UserError(
                f"{where}: two right answers, {shortened(first)} and {shortened(gold)}, to the question "
                f"{shortened(question)}; {_TELL_APART}"
            )
        value, read = row["metrics"].get(metric, (None, None)) if metric else (row["response"], grader)
        own = [] if is_missing(value) else (_scores if metric else _texts)(row, names, where, value, read)
        if not own and not drop_incomplete:
            raise UserError(
                f"{where}: {names.get(wanted, wanted)!r} is missing; --drop-incomplete leaves its problem out"
            )
        problems.setdefault(data, {}).setdefault(key, []).extend(own)
    for data, of_data in problems.items():
        even = _even(data, of_data, say) if drop_incomplete else of_data
        few, many = (least(even, key=lambda key: len(even[key])) for least in (min, max))
        if len(even[few]) != len(even[many]) or not even[few]:
            raise UserError(
                f"{path}: problems of {data!r} have from {len(even[few])} to {len(even[many])} answers, expected as "
                f"many for each, and {shortened(questions[data, many][0])} has most; --drop-incomplete leaves out "
                f"problems with fewer answers than most; {_TELL_APART}"
            )
        yield _graded(data, even, grader, metric is None, [questions[data, key] for key in even])


_TELL_APART = "where one text is that of several problems, --column problem=COLUMN tells them apart"


def _by_role(
    path: Path,
    rows: Sequence[Row],
    columns: Mapping[str, str],
    scorer: str | None,
    say: Say,
) -> tuple[str, dict[str, str], list[dict[str, Any]]]:
    """Return the rows of a file by role, with their metrics.

    First come what precedes a grader's name, and the column of each role.
    """
    names = _names(path, rows, columns)
    used = {*names.values()}
    # Such as symbolic_correct and correctness_math_verify.
    verdicts = [
        name
        for name in rows[0]
        if "correct" in name.lower() and rows[0][name] is not None and name not in used
    ]
    if scorer or "score" in names:
        verdicts = [] if scorer else [names["score"]]
    ids = next((name for name in _IDS if name in rows[0]), None)
    if ids and not {"prompt", "problem"} & names.keys():
        names["problem"] = ids
    usual = [] if verdicts or {"response", "answer"} <= names.keys() else ["score"]
    needed = ["response", "answer"] if scorer else usual
    for role in needed if "problem" in names else ["prompt", *needed]:
        if role not in names:
            raise UserError(
                f"{path} has no column of the {role}; looked for {', '.join(NAMES[role][:9])} and such; it has "
                f"{_listed(rows[0])}. --column {role}=COLUMN names it"
                + (", or --scorer math grades the responses" if role == "score" else "")
            )
    inner = [
        f"{role} {name}" for role, name in names.items() if name not in rows[0] and role not in columns
    ]
    if inner:
        say(f"read: {', '.join(inner)}")
    made = [{role: value_at(row, name) for role, name in names.items()} for row in rows]
    for source, row in zip(rows, made, strict=True):
        row["metrics"] = {repr(name): (value_at(source, name), row.get("extracted")) for name in verdicts}
        if "prompt" in names and names["prompt"] == names.get("response"):
            row["prompt"] = _before_answer(row["prompt"])
    return "column ", {"score": "".join(verdicts[:1]), **names}, made


def _names(path: Path, rows: Sequence[Row], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each role that has one."""
    for role, name in columns.items():
        if role not in NAMES:
            raise UserError(
                f"--column must name one of {', '.join(NAMES)}, got {role!r}{nearest(role, list(NAMES))}"
            )
        if name not in rows[0] and value_at(rows[0], name) is None:
            raise UserError(
                f"{path} has no column {name!r} (--column {role}={name}){nearest(name, list(rows[0]))}; it has "
                f"{_listed(rows[0])}"
            )
    names = dict(columns)
    for role in ("answer", "response", "extracted", "score", "prompt", "problem", "data"):
        used = [
            name for other, name in names.items() if {role, other} != {"prompt", "response"}
        ]  # of messages both
        name = column_of(rows[0], role, used, 1 if role in ("problem", "data") else 4)
        if role not in names and name:
            names[role] = name
    return names


def _listed(row: Row) -> str:
    return ", ".join(list(row)[:20]) + (f" and {len(row) - 20} more" if len(row) > 20 else "")


def _before_answer(messages: Any) -> Any:
    """Return the messages before the last of the assistant, which is the answer."""
    if not isinstance(messages, list):
        return messages
    own = [
        i
        for i, each in enumerate(messages)
        if isinstance(each, Mapping) and each.get("role") in _ASSISTANT
    ]
    return messages[: max(own, default=None)]


_IDS = (
    "id",
    "idx",
    "index",
    "uid",
    "unique_id",
    "example_id",
)  # of problems, where no text tells them apart


def _texts(row: Row, names: Names, where: str, response: Any, scorer: str) -> _Answers:
    """Return the texts in a row, each with the right answer. A scorer of texts gets that as it is written."""
    value = gold = row["answer"]
    try:
        if not isinstance(value, str) or scorer in (*SCORERS, "last-number"):
            gold = read_gold(value)[0]
            fault = solution_fault(gold) or (None if gold else "no answer")
            if fault:
                raise ValueError(fault)
    except ValueError as error:
        raise UserError(
            f"{where}: {names.get('answer', 'answer')!r} is {shortened(value)}: {error}"
        ) from None
    return [
        (text, gold) for text in texts_of(response, f"{where}: {names.get('response', 'response')!r}")
    ]


def texts_of(cell: Any, where: str) -> list[str]:
    """Read the text of each answer in a cell.

    >>> texts_of([{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}], "row 1")
    ['2']

    Messages are one conversation, hence one answer: the text of the last one of the assistant ("" where it only calls
    tools). A list of anything else has an answer in each element, lists of lists too. A reply of a server that speaks
    OpenAI's protocol has one in each of its choices.

    Raises:
        UserError: no answer can be made out; the message begins with `where` and has what was cell.
    """
    if is_missing(cell):
        return [""]
    if isinstance(cell, str | int | float) and not isinstance(cell, bool):
        return [str(cell)]
    if isinstance(cell, Mapping) and "role" not in cell:
        for key in (
            "choices",
            "body",
            "message",
            "messages",
            "text",
        ):  # of servers, of batches, and of vLLM
            if cell.get(key) is not None:
                return texts_of(cell[key], where)
        if "content" in cell:
            return [content_of(cell["content"], where)]
    parts: list[Any] = [cell] if isinstance(cell, Mapping) else cell if isinstance(cell, list) else []
    if parts and all(isinstance(part, Mapping) and "role" in part for part in parts):
        own = [message for message in parts if message["role"] in _ASSISTANT]
        if not own:
            raise UserError(
                f"{where} has no message of the assistant, but {shortened(parts)}; {_EXPECTED}"
            )
        return [content_of(own[-1].get("content"), where)]
    if isinstance(cell, list) and len({isinstance(part, Mapping) for part in parts}) < 2:
        if parts and all(isinstance(part, Mapping) and "type" in part for part in parts):
            return [content_of(parts, where)]
        return [text for part in parts for text in texts_of(part, where)]
    raise UserError(f"{where} is {shortened(cell)}; {_EXPECTED}")


def _scores(row: Row, names: Names, where: str, value: Any, read: Any) -> _Answers:
    """Return the scores in a row, 1.0 or 0.0, each with what was read."""
    scores, name = value if isinstance(value, list) else [value], names.get("score", "score")
    read = (
        read
        if isinstance(read, list)
        else [read]
        if len(scores) == 1 or not is_missing(read)
        else [None] * len(scores)
    )
    texts = row.get("response") if names and isinstance(value, list) else None
    if (
        isinstance(texts, list)
        and len(texts) != len(scores)
        and all(isinstance(text, str) for text in texts)
    ):
        raise UserError(
            f"{where}: {names['response']!r} has {len(texts)} texts, {name!r} has {len(scores)}"
        )
    if len(read) != len(scores):
        raise UserError(
            f"{where}: {names.get('extracted')!r} has {len(read)} values, {name!r} has {len(scores)}"
        )
    right = [is_right(value) for value in scores]
    if None in right:
        raise UserError(
            f"{where}: {name!r} is {shortened(scores[right.index(None)])}; 1 or true (right), or 0, -1 or false "
            "(wrong), is expected; --scorer math grades the responses"
        )
    return list(zip(right, read, strict=True))


def _hash(problem: Any) -> str:
    """Hash a text or messages as a question of an evaluation folder is hashed."""
    plain = (
        json.loads(json.dumps(problem, default=str)) if isinstance(problem, list | dict) else str(problem)
    )
    return Question("", 0, plain, "").id


def _even(data: str, problems: Mapping[str, _Answers], say: Say) -> Mapping[str, _Answers]:
    """Leave out problems with fewer answers than most, and answers beyond that number."""
    sizes = Counter(map(len, problems.values()))
    n = max(sizes, key=lambda size: (size > 0, sizes[size], size))
    even = {key: answers[:n] for key, answers in problems.items() if len(answers) >= n}
    if even != problems:
        say(
            f"{data}: left out {len(problems) - len(even)} of {len(problems)} problems, which have fewer than {n} "
            f"answers, and {sum(max(0, len(answers) - n) for answers in problems.values())} answers beyond the first "
            f"{n} of a problem"
        )
    return even


def _graded(
    data: str,
    problems: Mapping[str, _Answers],
    grader: str,
    is_text: bool,
    questions: Sequence[tuple[Any, Any]],
) -> Graded:
    shape = len(problems), len(next(iter(problems.values())))
    flat = [answer for answers in problems.values() for answer in answers]
    if is_text:
        grades = grader_of(grader)(
            [Sample(data, 0, 0, 0, text, 0, "stop") for text, _ in flat],
            [Question(data, 0, "", gold) for _, gold in flat],
        )
        flat = [(grade.score, grade.answer if grade.status == "ok" else None) for grade in grades]
    is_read = is_text or not all(is_missing(text) for _, text in flat)
    read = [
        None if is_missing(text) or text in ("", "[INVALID]", "[invalid]") else str(text)
        for _, text in flat
    ]
    answers = np.array(read, object).reshape(shape) if is_read else None
    return Graded(
        data=data,
        score=np.array([score for score, _ in flat], np.float64).reshape(shape),
        answers=answers,
        tokens=None,
        truncated=None,
        parsed=answers != np.array(None) if is_read else None,
        prompt_ids=list(problems),
        questions=questions,
        scorer=grader,
    )
