"""The folder of an evaluation: what was asked, what came back, how it was graded. It may be killed at any byte.

    eval.json            what ran: model, back end, sampling, data sets, versions, times
    prompts.jsonl        a question a line
    samples.jsonl        a sample a line, in the order in which they came; only ever appended to
    grades-SCORER.jsonl  a grade a line, likewise

A sample that ended in an `error` has no grade and is wrong, until a later line of samples.jsonl stands for it.

A line is a fact once its newline is there. A process that is killed leaves at most one line without it, at the end:
whoever goes on cuts it off. So no sample is lost but the one that was being written, and none is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
import pydantic
from typing_extensions import TypedDict

from bandpo.errors import UserError
from bandpo.files import check_text, read_json, read_json_lines

from ..data.questions import Question, fingerprint
from ..statistics.estimators import Graded
from .samples import Key, Sample

# ------------------------------------------------------------------------------------- what the files of a folder hold
_open = pydantic.with_config(pydantic.ConfigDict(extra="allow"))
_Count = Annotated[int, pydantic.Field(ge=0, lt=2**53)]
_Name = Annotated[str, pydantic.AfterValidator(lambda value: check_text(value, "the name"))]


@_open
class _Sampling(TypedDict):
    n: Annotated[int, pydantic.Field(ge=1, lt=2**31)]
    temperature: pydantic.FiniteFloat
    max_tokens: _Count
    seed: NotRequired[_Count]


@_open
class _Data(TypedDict):
    rows: Annotated[int, pydantic.Field(ge=1, lt=2**53)]
    sha256: str


@_open
class Facts(TypedDict):
    """eval.json, as far as it is read again; `recording` and `draw` write more."""

    label: str
    model: str
    scorer: str
    sampling: _Sampling
    data: Annotated[dict[str, _Data], pydantic.Field(min_length=1)]
    backend: NotRequired[str]
    body: NotRequired[dict[str, Any]]
    command: NotRequired[str]
    thinking: NotRequired[str | None]
    wall_seconds: NotRequired[pydantic.FiniteFloat]


@_open
class _Question(TypedDict):
    """A line of prompts.jsonl; what else is in it is for a scorer."""

    data: _Name
    prompt: _Count
    content: str | list[dict[str, Any]]
    answer: str


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
class SampleRow(TypedDict):
    """A line of samples.jsonl."""

    data: _Name
    prompt: _Count
    sample: _Count
    seed: _Count
    text: str
    tokens: _Count | None
    finish: str
    reasoning: NotRequired[str]
    error: NotRequired[str]


class GradeRow(TypedDict):
    """A line of grades-SCORER.jsonl."""

    data: _Name
    prompt: _Count
    sample: _Count
    score: Literal[0, 1]
    answer: str | None
    status: str


# -------------------------------------------------------------------------------------------------------------- reading
def read_facts(folder: Path) -> Facts:
    """Read eval.json."""
    path = folder / "eval.json"
    if not path.exists():
        raise UserError(f"{folder} holds no evaluation (no eval.json); bandpo eval makes one")
    return read_json(path, Facts)


def read_questions(folder: Path, facts: Facts) -> list[Question]:
    """Read prompts.jsonl, which must hold the questions that eval.json says: a score over others would be another.

    Raises:
        UserError: it does not, or is damaged.
    """
    path = folder / "prompts.jsonl"
    questions = [Question.of(row) for row in read_json_lines(path, _Question, ended=True).rows]
    for name in dict.fromkeys([*facts["data"], *(question.data for question in questions)]):
        own, known = [question for question in questions if question.data == name], facts["data"].get(name)
        whole = [question.prompt for question in own] == list(range(len(own)))
        if known is None or len(own) != known["rows"] or fingerprint(own) != known["sha256"] or not whole:
            raise UserError(f"{path}: the questions of {name!r} are not those that were asked, by eval.json")
    return questions


def read_samples(folder: Path, facts: Facts | None = None) -> list[Sample]:
    """Read the whole lines of samples.jsonl, in the order of the questions."""
    path = folder / "samples.jsonl"
    facts = facts or read_facts(folder)
    order = {name: i for i, name in enumerate(facts["data"])}
    rows, n = {name: data["rows"] for name, data in facts["data"].items()}, facts["sampling"]["n"]
    lines = read_json_lines(path, SampleRow, ended=True).rows
    samples = by_key(path, lines, lambda s: s.prompt < rows.get(s.data, 0) and s.sample < n)
    return sorted(samples.values(), key=lambda s: (order[s.data], s.prompt, s.sample))


def by_key(path: Path, rows: Iterable[Mapping[str, Any]], asked: Callable[[Sample], bool]) -> dict[Key, Sample]:
    """Return the samples in the lines of a file, each once.

    A later line stands for an earlier one that is an `error`.

    Raises:
        UserError: a sample is not asked for, or there twice.
    """
    samples: dict[Key, Sample] = {}
    for number, row in enumerate(rows, 1):
        sample = Sample(**row)
        twice = sample.key in samples and samples[sample.key].finish != "error"
        if twice or not asked(sample):
            why = "there twice" if twice else "not asked for"
            raise UserError(f"{path}, line {number}: corrupt: sample {sample.key} is {why}")
        samples[sample.key] = sample
    return samples


def grades_path(folder: Path, scorer: str) -> Path:
    """Return the path of a scorer's grades."""
    return folder / f"grades-{scorer}.jsonl"


def read_graded(folder: Path, scorer: str | None = None) -> list[Graded]:
    """Read scores and answers for the statistics, as arrays [prompts, samples] of each data set.

    Args:
        folder: of a finished evaluation.
        scorer: whose grades; None: the one that the evaluation was made with.

    Raises:
        UserError: samples or grades are missing, or a file is damaged.
    """
    folder = Path(folder)
    facts = read_facts(folder)
    scorer = scorer or facts["scorer"]
    n = facts["sampling"]["n"]
    questions = read_questions(folder, facts)
    samples = {sample.key: sample for sample in read_samples(folder, facts)}
    if len(samples) < len(questions) * n:
        raise UserError(
            f"{folder} is not finished: {len(samples)} of {len(questions) * n} samples; go on with: "
            f"{facts.get('command', 'the same command')}"
        )
    path = grades_path(folder, scorer)
    rows = read_json_lines(path, GradeRow, ended=True).rows if path.exists() else []
    failed = {key: {"score": 0, "answer": None, "status": "error"} for key, s in samples.items() if s.finish == "error"}
    grades = {(row["data"], row["prompt"], row["sample"]): row for row in rows} | failed
    missing = len(samples.keys() - grades.keys())
    if missing:
        raise UserError(
            f"{path}: {missing} of {len(samples)} grades are missing; bandpo score {folder} --scorer {scorer}"
        )
    return [_graded(name, [q for q in questions if q.data == name], samples, grades, n) for name in facts["data"]]


def _graded(
    name: str, questions: Sequence[Question], samples: Mapping[Key, Sample], grades: Mapping[Key, Any], n: int
) -> Graded:
    keys = [[(name, question.prompt, i) for i in range(n)] for question in questions]

    def array(kind: Any, read: Callable[[Key], Any]) -> Any:
        return np.array([[read(key) for key in row] for row in keys], kind)

    tokens = array(object, lambda key: samples[key].tokens)
    return Graded(
        data=name,
        score=array(float, lambda key: grades[key]["score"]),
        answers=array(object, lambda key: grades[key]["answer"]),
        tokens=None if (tokens == np.array(None)).any() else tokens.astype(int),
        truncated=array(bool, lambda key: samples[key].finish == "length"),
        parsed=array(bool, lambda key: grades[key]["status"] == "ok"),
        prompt_ids=[question.id for question in questions],
    )
