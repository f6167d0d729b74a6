"""The folder of an evaluation: what was asked, what came back, how it was graded. It may be killed at any byte.

    eval.json            what ran: model, back end, sampling, data sets, versions, times
    prompts.jsonl        a question a line
    samples.jsonl        a sample a line, in the order in which they came; only ever appended to
    grades-SCORER.jsonl  a grade a line, likewise

A line is a fact once its newline is there. A process that is killed leaves at most one line without it, at the end:
whoever goes on cuts it off. So no sample is lost but the one that was being written, and none is there twice.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired

import numpy as np
import pydantic
from typing_extensions import TypedDict

from ..data.questions import Question
from ..errors import UserError
from ..files import Appender, check_text, line_of, read_json, read_json_lines, write_atomically
from ..statistics.estimators import Graded

Key = tuple[str, int, int]  # data set, prompt, sample


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
    wall_seconds: NotRequired[_Share]


class _Question(TypedDict):
    """A line of prompts.jsonl; what else is in it is for a scorer."""

    __pydantic_config__ = _MORE  # pyright: ignore[reportGeneralTypeIssues]
    data: _Name
    prompt: _Count
    text: NotRequired[str]
    messages: NotRequired[list[dict[str, Any]]]
    answer: str


class _Sample(TypedDict):
    """A line of samples.jsonl."""

    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")  # pyright: ignore[reportGeneralTypeIssues]
    data: _Name
    prompt: _Count
    sample: _Count
    seed: _Count
    text: str
    tokens: _Count
    finish: str


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


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn.

    Attributes:
        n: samples for each prompt.
        temperature: 0 is greedy, with one sample.
        top_p: the share of probability that is kept; 1 keeps all.
        top_k: how many tokens are kept; -1 keeps all.
        max_tokens: where an answer is cut.
        seed: of everything; each sample has its own, `seed_of`.
    """

    n: int = 32
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = {
            "n must be from 1 to 100,000": not 1 <= self.n <= 100_000,
            "temperature must be 0 or more, and finite": not 0 <= self.temperature < math.inf,
            "top_p must be in (0, 1]": not 0 < self.top_p <= 1,
            "top_k must be -1 (all) or from 1 to 2^31": self.top_k != -1 and not 1 <= self.top_k < 2**31,
            "max_tokens must be at least 1, and below 2^31": not 1 <= self.max_tokens < 2**31,
            "seed must be 0 or more, and below 2^53": not 0 <= self.seed < 2**53,
        }
        for rule, broken in wrong.items():
            if broken:
                raise UserError(f"{rule}, got {getattr(self, rule.split()[0])!r}")
        if self.temperature == 0 and self.n > 1:
            raise UserError(f"at temperature 0 all samples of a prompt are the same; n must be 1, got {self.n}")


@dataclass(frozen=True)
class Sample:
    """What came back. `tokens` counts the end token; `finish` is "length" where the answer was cut at max_tokens,
    "content_filter" where a server's filter cut it, else "stop"."""

    data: str
    prompt: int
    sample: int
    seed: int
    text: str
    tokens: int
    finish: str

    @property
    def key(self) -> Key:
        return self.data, self.prompt, self.sample


def seed_of(seed: int, question: Question, sample: int) -> int:
    """The seed of one sample, in [0, 2^31), which every server takes: the same whatever else is evaluated beside it,
    and different for all samples of a question."""
    text = f"{seed} {question.id}".encode()
    return (int.from_bytes(hashlib.sha256(text).digest()[:8], "big") + sample) % 2**31


def fingerprint(questions: Iterable[Question]) -> str:
    """A hash of questions and answers, in order."""
    digest = hashlib.sha256()
    for question in questions:
        digest.update(line_of([question.content, question.answer]))
    return digest.hexdigest()


# -------------------------------------------------------------------------------------------------------------- writing
class Evaluation:
    """An evaluation folder, open for writing: new, or where its last process left it.

    Args:
        folder: made if it is not there.
        facts: of eval.json. `SETTINGS` of them must be the same when an evaluation goes on; the rest may differ.
        sampling: more samples than before may be asked for, anything else must be the same.
        questions: all of them.

    Raises:
        UserError: the folder holds another evaluation (the message names what differs) or is damaged, or another
            process is writing to it.
    """

    SETTINGS = ("model", "weights", "backend", "scorer")

    def __init__(
        self, folder: Path, facts: Mapping[str, Any], sampling: Sampling, questions: Sequence[Question]
    ) -> None:
        self.folder, self.sampling, self.questions = folder, sampling, questions
        data = {}
        for question in questions:
            data.setdefault(question.data, []).append(question)
        known = facts.get("data", {})
        data = {
            name: {"rows": len(rows), "sha256": fingerprint(rows), **known.get(name, {})} for name, rows in data.items()
        }
        self.facts = {**facts, "sampling": asdict(sampling), "data": data, "finished": False, "wall_seconds": 0.0}
        folder.mkdir(parents=True, exist_ok=True)
        self._began = self._told = time.monotonic()
        self._drew = False
        self._file = Appender(folder / "samples.jsonl", _Sample)
        try:
            self.done = self._begin_or_go_on()
        except BaseException:
            self._file.close()
            raise

    def _begin_or_go_on(self) -> set[Key]:
        path = self.folder / "eval.json"
        if not self._file.rows or not path.exists():  # without samples nothing binds
            if self._file.rows:
                raise UserError(
                    f"{self.folder} holds samples, but no eval.json that says of what; choose another folder"
                )
            lines = b"".join(line_of(question.row()) for question in self.questions)
            write_atomically(self.folder / "prompts.jsonl", lines)
        else:
            stored: dict[str, Any] = {**read_facts(self.folder)}
            self._check(stored)
            kept = {key: stored[key] for key in ("started", "command", "wall_seconds", "dtype") if key in stored}
            changed = {k: v for k, v in stored.get("versions", {}).items() if self.facts["versions"].get(k) != v}
            if changed:  # part of the samples are theirs
                kept["versions_before"] = {**stored.get("versions_before", {}), **changed}
            self.facts |= kept
            self._began -= self.facts["wall_seconds"]
        done = _keys(self._file, {(q.data, q.prompt) for q in self.questions}, self.sampling.n)
        self._write_facts()
        return done

    def _check(self, stored: Mapping[str, Any]) -> None:
        """The same model, wherever it is, the same questions, the same sampling; only n may grow."""
        before = {f"sampling.{k}": v for k, v in stored["sampling"].items()}
        before |= {key: stored.get(key) for key in self.SETTINGS}
        before |= {f"data.{name}": node["sha256"] for name, node in stored["data"].items()}
        now = {f"sampling.{k}": v for k, v in self.facts["sampling"].items()}
        now |= {key: self.facts.get(key) for key in self.SETTINGS}
        now |= {f"data.{name}": node["sha256"] for name, node in self.facts["data"].items()}
        different = []
        for key in sorted({*before, *now}):
            a, b = before.get(key), now.get(key)
            grown = key == "sampling.n" and (b or 0) > (a or 0)
            moved = key == "model" and now["weights"] is not None and before["weights"] == now["weights"]
            if a != b and not grown and not moved:
                different.append(_difference(key, a, b))
        if different:
            raise self._other_settings("; ".join(different))

    def _other_settings(self, difference: str) -> UserError:
        return UserError(
            f"{self.folder} holds an evaluation with other settings ({difference}); repeat it with the same ones (only "
            "n may grow), or choose another folder with -o"
        )

    def record_dtype(self, dtype: str | None) -> None:
        """The precision of the model, known when it is loaded; raises UserError if the samples there have another."""
        known = self.facts.setdefault("dtype", dtype)
        if known != dtype:
            raise self._other_settings(_difference("dtype", known, dtype))

    def todo(self) -> Iterator[tuple[Question, int, int]]:
        """(question, sample, its seed) of all that is missing, question by question."""
        for question in self.questions:
            for sample in range(self.sampling.n):
                if (question.data, question.prompt, sample) not in self.done:
                    yield question, sample, seed_of(self.sampling.seed, question, sample)

    def add(self, sample: Sample) -> None:
        """Append a sample; it is there for good when this returns, were the process killed now."""
        if sample.key in self.done:
            raise ValueError(f"sample {sample.key} is there already")
        self._file.add(asdict(sample))
        self.done.add(sample.key)
        self._drew = True
        if time.monotonic() - self._told > 10:
            self._write_facts()

    def finish(self) -> None:
        """All samples are there."""
        missing = len(self.questions) * self.sampling.n - len(self.done)
        if missing:
            raise ValueError(f"{missing} samples are missing")
        self._file.sync()
        self.facts["finished"] = True
        self._write_facts()

    def _write_facts(self) -> None:
        self._told = time.monotonic()
        if self._drew:
            self.facts["wall_seconds"] = round(self._told - self._began, 1)
        write_atomically(self.folder / "eval.json", (json.dumps(self.facts, indent=2) + "\n").encode())

    def __enter__(self) -> Evaluation:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._write_facts()  # while the folder is still ours
        finally:
            self._file.close()


def _difference(key: str, before: Any, now: Any) -> str:
    if key.startswith("data."):
        said = "not in it" if before is None else "in it, but not asked for now" if now is None else "other questions"
        return f"{key}: {said}"
    if key == "weights":
        return "weights: the model's files have changed"
    return f"{key}: {before!r} there, {now!r} now"


# -------------------------------------------------------------------------------------------------------------- reading
def read_facts(folder: Path) -> Facts:
    """eval.json."""
    path = folder / "eval.json"
    if not path.exists():
        raise UserError(f"{folder} holds no evaluation (no eval.json); bandpo eval makes one")
    return read_json(path, Facts)


def read_questions(folder: Path, facts: Facts) -> list[Question]:
    """prompts.jsonl, which must hold the questions that eval.json says: a score over fewer would be another one."""
    path = folder / "prompts.jsonl"
    questions: list[Question] = []
    for number, row in enumerate(read_json_lines(path, _Question, ended=True).rows, 1):
        if "text" not in row and "messages" not in row:
            raise UserError(f"{path}, line {number}: 'text' or 'messages' is missing")
        questions.append(Question.of(row))
    by_data: dict[str, list[Question]] = {name: [] for name in facts["data"]}
    for question in questions:
        if question.data not in by_data:
            raise UserError(f"{path}: {question.data!r} is no data set of {folder / 'eval.json'}")
        by_data[question.data].append(question)
    for name, own in by_data.items():
        wanted = facts["data"][name]
        if len(own) != wanted["rows"]:
            raise UserError(f"{path}: {len(own)} questions of {name!r}; eval.json says {wanted['rows']}")
        if fingerprint(own) != wanted["sha256"] or {q.prompt for q in own} != set(range(len(own))):
            raise UserError(f"{path}: the questions of {name!r} are not those that were asked, by eval.json")
    return questions


def read_samples(folder: Path, facts: Facts | None = None) -> list[Sample]:
    """The whole lines of samples.jsonl, in the order of the questions."""
    path = folder / "samples.jsonl"
    facts = facts or read_facts(folder)
    order = {name: i for i, name in enumerate(facts["data"])}
    samples = [Sample(**row) for row in read_json_lines(path, _Sample, ended=True).rows]
    for number, sample in enumerate(samples, 1):
        rows, n = facts["data"].get(sample.data, {"rows": 0})["rows"], facts["sampling"]["n"]
        if not (sample.prompt < rows and sample.sample < n):
            raise UserError(f"{path}, line {number}: corrupt: sample {sample.key} is not asked for")
    return sorted(samples, key=lambda s: (order[s.data], s.prompt, s.sample))


def grades_path(folder: Path, scorer: str) -> Path:
    """Where the grades of a scorer are."""
    return folder / f"grades-{scorer}.jsonl"


def read_graded(folder: Path, scorer: str | None = None) -> list[Graded]:
    """What the statistics need, data set by data set, as arrays [prompts, samples].

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
    grades = {(row["data"], row["prompt"], row["sample"]): row for row in rows}
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
        for i, row in enumerate(keys):
            for j, key in enumerate(row):
                answers[i, j] = grades[key]["answer"]
        out.append(
            Graded(
                data=name,
                score=np.array([[float(grades[key]["score"]) for key in row] for row in keys]),
                answers=answers,
                tokens=np.array([[samples[key].tokens for key in row] for row in keys]),
                truncated=np.array([[samples[key].finish == "length" for key in row] for row in keys]),
                parsed=np.array([[grades[key]["status"] == "ok" for key in row] for row in keys]),
                prompt_ids=[question.id for question in own],
            )
        )
    return out


def _keys(file: Appender, known: set[tuple[str, int]], n: int) -> set[Key]:
    """Those of the samples that are there, each once."""
    keys: set[Key] = set()
    for number, row in enumerate(file.rows, 1):
        key = Sample(**row).key
        if key[:2] not in known or not 0 <= key[2] < n or key in keys:
            why = "there twice" if key in keys else "not asked for"
            raise UserError(f"{file.path}, line {number}: corrupt: sample {key} is {why}")
        keys.add(key)
    return keys
