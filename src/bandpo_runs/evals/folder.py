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

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired

import numpy as np
import pydantic
from typing_extensions import TypedDict

from bandpo.errors import UserError, counted
from bandpo.files import check_text, read_json, read_json_lines

from ..data.questions import Question, fingerprint
from ..statistics.estimators import Graded
from .samples import Key, Sample

# ------------------------------------------------------------------------------------- what the files of a folder hold
_Count = Annotated[int, pydantic.Field(ge=0, lt=2**53)]
_Share = Annotated[float, pydantic.Field(allow_inf_nan=False)]


def _of_text(value: str) -> str:
    return check_text(value, "the name")


_Name = Annotated[str, pydantic.AfterValidator(_of_text)]
_MORE = pydantic.ConfigDict(extra="allow")


class _Sampling(TypedDict):
    __pydantic_config__ = _MORE  # pyright: ignore[reportGeneralTypeIssues]
    n: Annotated[int, pydantic.Field(ge=1, lt=2**31)]
    temperature: _Share
    max_tokens: _Count
    top_p: NotRequired[_Share]
    top_k: NotRequired[int]
    seed: NotRequired[_Count]


class _Data(TypedDict):
    __pydantic_config__ = _MORE  # pyright: ignore[reportGeneralTypeIssues]
    rows: Annotated[int, pydantic.Field(ge=1, lt=2**53)]
    sha256: str


class Facts(TypedDict):
    """eval.json."""

    __pydantic_config__ = _MORE  # pyright: ignore[reportGeneralTypeIssues]
    label: str
    model: str
    weights: NotRequired[str | None]
    backend: NotRequired[str]
    scorer: str
    sampling: _Sampling
    data: Annotated[dict[str, _Data], pydantic.Field(min_length=1)]
    versions: NotRequired[dict[str, str]]
    versions_before: NotRequired[dict[str, str]]
    command: NotRequired[str]
    dtype: NotRequired[str | None]
    thinking: NotRequired[str | None]
    omit: NotRequired[list[str]]
    wall_seconds: NotRequired[_Share]


class _Question(TypedDict):
    """A line of prompts.jsonl; what else is in it is for a scorer."""

    __pydantic_config__ = _MORE  # pyright: ignore[reportGeneralTypeIssues]
    data: _Name
    prompt: _Count
    text: NotRequired[str]
    messages: NotRequired[list[dict[str, Any]]]
    answer: str


class SampleRow(TypedDict):
    """A line of samples.jsonl."""

    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")  # pyright: ignore[reportGeneralTypeIssues]
    data: _Name
    prompt: _Count
    sample: _Count
    seed: _Count
    text: str
    tokens: _Count | None
    finish: str
    reasoning: NotRequired[str]
    error: NotRequired[str]


def _right_or_wrong(value: float) -> float:
    if value not in (0, 1):
        raise ValueError("0 or 1")
    return value


class GradeRow(TypedDict):
    """A line of grades-SCORER.jsonl."""

    data: _Name
    prompt: _Count
    sample: _Count
    score: Annotated[float, pydantic.AfterValidator(_right_or_wrong)]
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
    """Read prompts.jsonl, which must hold the questions that eval.json says.

    A score over fewer would be another one.
    """
    path = folder / "prompts.jsonl"
    questions: list[Question] = []
    for number, row in enumerate(read_json_lines(path, _Question, ended=True).rows, 1):
        if "text" not in row and "messages" not in row:
            raise UserError(f"{path}, line {number}: 'text' or 'messages' is missing")
        questions.append(Question.of(row))
    by_data: dict[str, list[Question]] = {name: [] for name in facts["data"]}
    for question in questions:
        if question.data not in by_data:
            raise UserError(f"{path}: {question.data!r} is not a data set of {folder / 'eval.json'}")
        by_data[question.data].append(question)
    for name, own in by_data.items():
        wanted = facts["data"][name]
        if len(own) != wanted["rows"]:
            raise UserError(f"{path}: {counted(len(own), 'question')} of {name!r}; eval.json says {wanted['rows']}")
        if fingerprint(own) != wanted["sha256"] or {q.prompt for q in own} != set(range(len(own))):
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
    out = []
    for name in facts["data"]:
        own = [question for question in questions if question.data == name]
        keys = [[(name, question.prompt, i) for i in range(n)] for question in own]
        answers = np.empty((len(own), n), dtype=object)
        tokens = [[samples[key].tokens for key in row] for row in keys]
        counted = all(count is not None for row in tokens for count in row)
        for i, row in enumerate(keys):
            for j, key in enumerate(row):
                answers[i, j] = grades[key]["answer"]
        out.append(
            Graded(
                data=name,
                score=np.array([[float(grades[key]["score"]) for key in row] for row in keys]),
                answers=answers,
                tokens=np.array(tokens) if counted else None,
                truncated=np.array([[samples[key].finish == "length" for key in row] for row in keys]),
                parsed=np.array([[grades[key]["status"] == "ok" for key in row] for row in keys]),
                prompt_ids=[question.id for question in own],
            )
        )
    return out
