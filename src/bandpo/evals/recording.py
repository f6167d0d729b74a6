"""An evaluation folder that is written to, so that a process may be killed at any byte of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..data.questions import Question, fingerprint
from ..errors import UserError
from ..files.writing import Appender, line_of, write_atomically
from .folder import SampleRow, read_facts
from .samples import Key, Sample, Sampling, seed_of


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
        self._file = Appender(folder / "samples.jsonl", SampleRow)
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
