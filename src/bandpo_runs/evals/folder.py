"""Read and write the folder of an evaluation.

    eval.json            what ran: model, back end, sampling, data sets, versions
    prompts.jsonl        a question a line
    samples.jsonl        a sample a line, in the order in which they came; only ever appended to
    grades-SCORER.jsonl  a grade a line, likewise

A sample that ended in an `error` has no grade and is wrong, until a later line of samples.jsonl stands for it.

A process may be killed at any byte. A line is a fact once its newline is there; whoever goes on cuts off one without,
so that no other sample is lost, and none is there twice.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Self

import numpy as np
import pydantic
from typing_extensions import TypedDict

from bandpo.errors import UserError
from bandpo.files import check_text, line_of

from ..data.questions import Question, fingerprint
from ..files.reading import read_json, read_json_lines
from ..files.writing import Appender, check_own, write_atomically
from ..statistics.estimators import Graded
from .samples import Key, Request, Sample, Sampling, seed_of

_open = pydantic.with_config(pydantic.ConfigDict(extra="allow"))
_Count = Annotated[int, pydantic.Field(ge=0, lt=2**53)]
_Some = Annotated[int, pydantic.Field(ge=1, lt=2**31)]


@_open
class _Sampling(TypedDict):
    n: _Some
    temperature: pydantic.FiniteFloat
    max_tokens: _Count
    seed: NotRequired[_Count]


@_open
class _Data(TypedDict):
    rows: _Some
    sha256: str


@_open
class EvalMetadata(TypedDict):
    """Hold the fields of eval.json that are read again. `Evaluation` and `generate` write more."""

    label: str
    model: str
    scorer: str
    sampling: _Sampling
    data: Annotated[dict[str, _Data], pydantic.Field(min_length=1)]
    backend: NotRequired[str]
    body: NotRequired[dict[str, Any]]
    command: NotRequired[str]
    thinking: NotRequired[Literal["opened"] | None]


class _Prompt(TypedDict):
    data: Annotated[str, pydantic.AfterValidator(lambda value: check_text(value, "the name"))]
    prompt: _Count


@_open
class _Question(_Prompt):
    """Describe a line of prompts.jsonl; what else is in it is for a scorer."""

    content: str | list[dict[str, Any]]
    answer: str


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
class SampleRow(_Prompt):
    """Describe a line of samples.jsonl."""

    sample: _Count
    seed: _Count
    text: str
    tokens: _Count | None
    finish: str
    reasoning: NotRequired[str]
    error: NotRequired[str]


class GradeRow(_Prompt):
    """Describe a line of grades-SCORER.jsonl."""

    sample: _Count
    score: Literal[0, 1]
    answer: str | None
    status: str


def read_metadata(folder: Path) -> EvalMetadata:
    """Read eval.json."""
    path = folder / "eval.json"
    if not path.exists():
        raise UserError(f"{folder} holds no evaluation (no eval.json); bandpo eval makes one")
    return read_json(path, EvalMetadata)


def read_questions(folder: Path, metadata: EvalMetadata) -> list[Question]:
    """Read prompts.jsonl. It must hold the questions that eval.json says: a score over others would be another.

    Raises:
        UserError: it does not, or is damaged.
    """
    path = folder / "prompts.jsonl"
    questions = [Question.of(row) for row in read_json_lines(path, _Question)[0]]
    for name in dict.fromkeys([*metadata["data"], *(question.data for question in questions)]):
        own, recorded = (
            [question for question in questions if question.data == name],
            metadata["data"].get(name),
        )
        whole = [question.prompt for question in own] == list(range(len(own)))
        if (
            recorded is None
            or fingerprint(own) != recorded["sha256"]
            or len(own) != recorded["rows"]
            or not whole
        ):
            raise UserError(
                f"{path}: the questions of {name!r} are not those that were asked, by eval.json"
            )
    return questions


def read_samples(folder: Path, metadata: EvalMetadata | None = None) -> list[Sample]:
    """Read the whole lines of samples.jsonl, in the order of the questions."""
    path, metadata = folder / "samples.jsonl", metadata or read_metadata(folder)
    order, n = list(metadata["data"]), metadata["sampling"]["n"]
    samples = _by_key(
        path,
        read_json_lines(path, SampleRow)[0],
        lambda s: s.data in order and s.prompt < metadata["data"][s.data]["rows"] and s.sample < n,
    )
    return sorted(samples.values(), key=lambda s: (order.index(s.data), s.prompt, s.sample))


def _by_key(
    path: Path, rows: Iterable[Mapping[str, Any]], belongs: Callable[[Sample], bool]
) -> dict[Key, Sample]:
    """Return the samples in the lines of a file, each once. A later line stands for an earlier one that is an `error`.

    Raises:
        UserError: a sample is not asked for, or there twice.
    """
    samples: dict[Key, Sample] = {}
    for number, row in enumerate(rows, 1):
        sample = Sample(**row)
        twice = sample.key in samples and samples[sample.key].finish != "error"
        if twice or not belongs(sample):
            raise UserError(
                f"{path}, line {number}: corrupt: sample {sample.key} is "
                f"{'there twice' if twice else 'not asked for'}"
            )
        samples[sample.key] = sample
    return samples


def grades_path(folder: Path, scorer: str) -> Path:
    """Return the path of a scorer's grades."""
    return folder / f"grades-{scorer}.jsonl"


def read_graded(folder: Path, scorer: str | None = None) -> list[Graded]:
    """Read scores and answers of a finished evaluation. They are arrays [prompts, samples] of each data set.

    `scorer` is the one whose grades are read; None: the one that the evaluation was made with.

    Raises:
        UserError: samples or grades are missing, or a file is damaged.
    """
    metadata = read_metadata(folder)
    scorer = scorer or metadata["scorer"]
    n = metadata["sampling"]["n"]
    questions = read_questions(folder, metadata)
    samples = {sample.key: sample for sample in read_samples(folder, metadata)}
    if len(samples) < len(questions) * n:
        raise UserError(
            f"{folder} is not finished: {len(samples)} of {len(questions) * n} samples; go on with: "
            f"{metadata.get('command', 'the same command')}"
        )
    path = grades_path(folder, scorer)
    rows = read_json_lines(path, GradeRow)[0] if path.exists() else []
    grades = {(row["data"], row["prompt"], row["sample"]): row for row in rows} | {
        key: {"score": 0, "answer": None, "status": "error"}
        for key, sample in samples.items()
        if sample.finish == "error"
    }
    missing = len(samples.keys() - grades.keys())
    if missing:
        raise UserError(
            f"{path}: {missing} of {len(samples)} grades are missing; bandpo score {folder} --scorer {scorer}"
        )
    return [
        _graded(name, [q for q in questions if q.data == name], samples, grades, n)
        for name in metadata["data"]
    ]


def _graded(
    name: str,
    questions: Sequence[Question],
    samples: Mapping[Key, Sample],
    grades: Mapping[Key, Any],
    n: int,
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
        status=array(object, lambda key: grades[key]["status"]),
        questions=[(question.content, question.answer) for question in questions],
    )


class Evaluation:
    """Write to an evaluation folder. It is new, or where its last process left it.

    When an evaluation goes on, its questions, the `SETTINGS` of its metadata, and its sampling must be the same; only
    `n` may grow.

    Raises:
        UserError: the folder holds something else (the message names what differs) or is damaged, or another
            process is writing to it.
    """

    SETTINGS = ("model", "weights", "backend", "scorer", "body")

    def __init__(
        self, folder: Path, metadata: Mapping[str, Any], sampling: Sampling, questions: Sequence[Question]
    ) -> None:
        self.folder, self.sampling, self.questions = folder, sampling, questions
        self.metadata = {**metadata, "sampling": asdict(sampling), "data": {}}
        for name in dict.fromkeys(question.data for question in questions):
            own = [question for question in questions if question.data == name]
            self.metadata["data"][name] = {
                "rows": len(own),
                "sha256": fingerprint(own),
                **metadata.get("data", {}).get(name, {}),
            }
        check_own(folder, "eval.json")
        folder.mkdir(parents=True, exist_ok=True)
        self._file = Appender(folder / "samples.jsonl", SampleRow)
        try:
            self.done = self._begin_or_go_on()
        except BaseException:
            self._file.close()
            raise

    def _begin_or_go_on(self) -> dict[Key, str]:
        if not self._file.rows:  # without samples nothing binds
            write_atomically(
                self.folder / "prompts.jsonl",
                b"".join(line_of(question.row()) for question in self.questions),
            )
        else:
            stored: dict[str, Any] = {**read_metadata(self.folder)}
            self._check(stored)
            self.metadata |= {
                key: stored[key] for key in ("started", "command", "dtype", "thinking") if key in stored
            }
        prompts = {(question.data, question.prompt) for question in self.questions}
        samples = _by_key(
            self._file.path,
            self._file.rows,
            lambda s: s.key[:2] in prompts and s.sample < self.sampling.n,
        )
        self._write_metadata()
        return {key: sample.finish for key, sample in samples.items()}

    def _check(self, stored: Mapping[str, Any]) -> None:
        """Check for the same model, questions and sampling. The model may be elsewhere, and only n may grow."""
        before, now = self._settings(stored), self._settings(self.metadata)
        same = {key for key in {*before, *now} if before.get(key) == now.get(key)}
        same |= {"sampling.n"} if (now["sampling.n"] > before["sampling.n"]) else set()
        same |= {"model"} if "weights" in same and now["weights"] is not None else set()
        different = sorted({*before, *now} - same)
        if different:
            raise self._other(*((key, before.get(key), now.get(key)) for key in different))

    def _settings(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        settings = {key: metadata.get(key) for key in self.SETTINGS}
        settings |= {f"sampling.{key}": value for key, value in metadata["sampling"].items()}
        return settings | {f"data.{name}": node["sha256"] for name, node in metadata["data"].items()}

    def _other(self, *different: tuple[str, Any, Any]) -> UserError:
        differences = [
            f"other {key}" if key.startswith(("weights", "data.")) else f"{key}: {a!r} there, {b!r} now"
            for key, a, b in different
        ]
        return UserError(
            f"{self.folder} holds an evaluation with other settings ({'; '.join(differences)}); repeat it with the "
            "same ones (only n may grow), or choose another folder with -o"
        )

    def record(self, name: str, value: str | None) -> None:
        """Record what is known once a model is loaded. Raises UserError if the samples there have another."""
        recorded = self.metadata.setdefault(name, value)
        if recorded != value:
            raise self._other((name, recorded, value))
        self._write_metadata()

    def todo(self, again: bool = False) -> list[Request]:
        """List the samples to generate. They are missing, or ended in an error; those come last.

        Each question's first sample comes first, of short questions before long ones: if a server answers any, it
        answers those. The first one that was answered is there `again`.
        """
        questions = sorted(self.questions, key=lambda question: len(str(question.content)))
        requests = [
            Request(
                (question.data, question.prompt, i),
                question.content,
                seed_of(self.sampling.seed, question, i),
            )
            for i in range(self.sampling.n)
            for question in questions
        ]
        first = [
            request
            for request in requests
            if again and self.done.get(request.key, "error") not in ("error", "refused")
        ]
        waiting = [request for request in requests if self.done.get(request.key, "error") == "error"]
        # Those that failed come in another order in each process, as hashes of texts do: a few that always fail are
        # then not in the way of the same others.
        return first[:1] + sorted(
            waiting, key=lambda request: (request.key in self.done) * (1 + abs(hash(str(request.key))))
        )

    def add(self, sample: Sample) -> None:
        """Append a sample. It is there for good when this returns, were the process killed now."""
        self._file.add(
            {
                name: value
                for name, value in asdict(sample).items()
                if value is not None or name == "tokens"
            }
        )
        self.done[sample.key] = sample.finish

    def _write_metadata(self) -> None:
        write_atomically(self.folder / "eval.json", (json.dumps(self.metadata, indent=2) + "\n").encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
