"""The folder of an evaluation: what was asked, what came back, how it was graded. It may be killed at any byte.

    eval.json            what ran: model, back end, sampling, data sets, versions, times
    prompts.jsonl        a question a line
    samples.jsonl        a sample a line, in the order in which they came; only ever appended to
    grades-SCORER.jsonl  a grade a line, likewise

A line is a fact once its newline is there. A process that is killed leaves at most one line without it, at the end:
whoever goes on cuts it off. So no sample is lost but the one that was being written, and none is there twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .config import UserError
from .evaluation import Graded
from .files import locked

Key = tuple[str, int, int]  # data set, prompt, sample
Content = str | list[dict[str, Any]]  # text, or chat messages

SECONDS_BETWEEN_SYNCS = 1.0  # what a loss of power may cost; a killed process loses nothing that was appended


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
            "n must be at least 1": self.n < 1,
            "temperature must be 0 or more": not self.temperature >= 0,
            "top_p must be in (0, 1]": not 0 < self.top_p <= 1,
            "top_k must be -1 (all) or at least 1": self.top_k != -1 and self.top_k < 1,
            "max_tokens must be at least 1": self.max_tokens < 1,
            "seed must be 0 or more": self.seed < 0,
        }
        for rule, broken in wrong.items():
            if broken:
                raise UserError(f"{rule}, got {getattr(self, rule.split()[0])!r}")
        if self.temperature == 0 and self.n > 1:
            raise UserError(f"at temperature 0 all samples of a prompt are the same; n must be 1, got {self.n}")


@dataclass(frozen=True)
class Question:
    """A prompt and its answer. `more`: further columns, which a scorer may need."""

    data: str
    prompt: int
    content: Content
    answer: str
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """A hash of what is asked: the same question has the same in every folder."""
        return hashlib.sha256(_line(self.content)).hexdigest()[:16]

    def row(self) -> dict[str, Any]:
        name = "text" if isinstance(self.content, str) else "messages"
        return {"data": self.data, "prompt": self.prompt, name: self.content, "answer": self.answer, **self.more}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Question:
        known = {"data", "prompt", "text", "messages", "answer"}
        content = row["text"] if "text" in row else row["messages"]
        more = {key: value for key, value in row.items() if key not in known}
        return cls(row["data"], row["prompt"], content, row["answer"], more)


@dataclass(frozen=True)
class Sample:
    """What came back. `tokens` counts the end token; `finish` is "length" where the answer was cut at max_tokens."""

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
        digest.update(_line([question.content, question.answer]))
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
        self._file = Appender(folder / "samples.jsonl")
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
            lines = b"".join(_line(question.row()) for question in self.questions)
            write_atomically(self.folder / "prompts.jsonl", lines)
        else:
            stored = read_facts(self.folder)
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
        self._file.close()
        self._write_facts()


class Appender:
    """A file of JSON lines that one process at a time adds to.

    Opening cuts off a line that was being written when the last process was killed; `rows` are the whole ones.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = contextlib.ExitStack()
        self._held.enter_context(locked(path.with_name(f".{path.name}.lock")))
        try:
            self._file: BinaryIO = self._held.enter_context(path.open("ab", buffering=0))
            self.rows, whole = _read(path)
            if whole < path.stat().st_size:
                self._file.truncate(whole)
                os.fsync(self._file.fileno())
        except BaseException:
            self._held.close()
            raise
        self._synced = time.monotonic()

    def add(self, *rows: Mapping[str, Any]) -> None:
        content = memoryview(b"".join(map(_line, rows)))
        while content:  # the system may take less than all of it
            content = content[self._file.write(content) :]
        if time.monotonic() - self._synced > SECONDS_BETWEEN_SYNCS:
            self.sync()

    def sync(self) -> None:
        """Onto the disk."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        if not self._file.closed:
            self.sync()
            self._held.close()

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def write_atomically(path: Path, content: bytes) -> None:
    """All of it or, if interrupted, nothing."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _line(row: Any) -> bytes:
    """ASCII: a lone surrogate, which some servers send, has no other bytes."""
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _difference(key: str, before: Any, now: Any) -> str:
    if key.startswith("data."):
        said = "not in it" if before is None else "in it, but not asked for now" if now is None else "other questions"
        return f"{key}: {said}"
    if key == "weights":
        return "weights: the model's files have changed"
    return f"{key}: {before!r} there, {now!r} now"


# -------------------------------------------------------------------------------------------------------------- reading
def read_facts(folder: Path) -> dict[str, Any]:
    """eval.json."""
    path = folder / "eval.json"
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{folder} holds no evaluation (no eval.json); bandpo eval makes one") from None
    except ValueError as error:
        raise UserError(f"{path}: corrupt: {error}") from None
    if not isinstance(facts, dict) or not {"sampling", "data"} <= facts.keys():
        raise UserError(f"{path}: corrupt: 'sampling' and 'data' are expected in it")
    return facts


def read_questions(folder: Path) -> list[Question]:
    """prompts.jsonl."""
    rows, _ = _read(folder / "prompts.jsonl")
    return [Question.of(row) for row in rows]


def read_samples(folder: Path) -> list[Sample]:
    """The whole lines of samples.jsonl, in the order of the questions."""
    rows, _ = _read(folder / "samples.jsonl")
    order = {name: i for i, name in enumerate(read_facts(folder)["data"])}
    return sorted((Sample(**row) for row in rows), key=lambda s: (order[s.data], s.prompt, s.sample))


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
    scorer = str(scorer or facts.get("scorer") or "math")
    n = facts["sampling"]["n"]
    questions = read_questions(folder)
    samples = {sample.key: sample for sample in read_samples(folder)}
    if len(samples) < len(questions) * n:
        raise UserError(
            f"{folder} is not finished: {len(samples)} of {len(questions) * n} samples; go on with: "
            f"{facts.get('command', 'the same command')}"
        )
    path = grades_path(folder, scorer)
    rows = _read(path)[0] if path.is_file() else []
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


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows of the lines that are whole, and how many bytes those are."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is missing; it belongs to every evaluation") from None
    whole = content.rfind(b"\n") + 1
    rows = []
    for number, line in enumerate(content[:whole].split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: corrupt: one JSON object is expected, got {line[:40]!r}")
        rows.append(row)
    return rows, whole


def _keys(file: Appender, known: set[tuple[str, int]], n: int) -> set[Key]:
    """Those of the samples that are there, each once."""
    keys: set[Key] = set()
    for number, row in enumerate(file.rows, 1):
        try:
            key = Sample(**row).key
        except TypeError:
            raise UserError(f"{file.path}, line {number}: corrupt: not the columns of a sample") from None
        if key[:2] not in known or not 0 <= key[2] < n or key in keys:
            why = "there twice" if key in keys else "not asked for"
            raise UserError(f"{file.path}, line {number}: corrupt: sample {key} is {why}")
        keys.add(key)
    return keys
