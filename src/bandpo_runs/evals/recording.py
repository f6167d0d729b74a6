"""An evaluation folder that is written to, so that a process may be killed at any byte of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.files import line_of

from ..data.questions import Question, fingerprint
from ..files.writing import Appender, write_atomically
from .folder import SampleRow, by_key, read_facts
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

    SETTINGS = ("model", "weights", "backend", "scorer", "body")

    def __init__(
        self, folder: Path, facts: Mapping[str, Any], sampling: Sampling, questions: Sequence[Question]
    ) -> None:
        self.folder, self.sampling, self.questions = folder, sampling, questions
        by_data: dict[str, list[Question]] = {}
        for question in questions:
            by_data.setdefault(question.data, []).append(question)
        known = facts.get("data", {})
        data = {
            name: {"rows": len(rows), "sha256": fingerprint(rows), **known.get(name, {})}
            for name, rows in by_data.items()
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

    def _begin_or_go_on(self) -> dict[Key, str]:
        exists = (self.folder / "eval.json").exists()
        if self._file.rows and not exists:
            raise UserError(f"{self.folder} holds samples, but no eval.json that says of what; choose another folder")
        if not self._file.rows:  # without samples nothing binds
            lines = b"".join(line_of(question.row()) for question in self.questions)
            write_atomically(self.folder / "prompts.jsonl", lines)
        else:
            stored: dict[str, Any] = {**read_facts(self.folder)}
            self._check(stored)
            lasting = ("started", "command", "wall_seconds", "dtype", "thinking")
            self.facts |= {key: stored[key] for key in lasting if key in stored}
            self._began -= self.facts["wall_seconds"]
        known = {(question.data, question.prompt) for question in self.questions}
        samples = by_key(self._file.path, self._file.rows, lambda s: s.key[:2] in known and s.sample < self.sampling.n)
        self._write_facts()
        return {key: sample.finish for key, sample in samples.items()}

    def _check(self, stored: Mapping[str, Any]) -> None:
        """Check for the same model, wherever it is, the same questions, the same sampling; only n may grow."""
        before, now = self._settings(stored), self._settings(self.facts)
        different = []
        for key in sorted({*before, *now}):
            a, b = before.get(key), now.get(key)
            grown = key == "sampling.n" and (b or 0) > (a or 0)
            moved = key == "model" and now["weights"] is not None and before["weights"] == now["weights"]
            if a != b and not grown and not moved:
                different.append(_difference(key, a, b))
        if different:
            raise self._other_settings("; ".join(different))

    def _settings(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        settings = {key: facts.get(key) for key in self.SETTINGS}
        settings |= {f"sampling.{key}": value for key, value in facts["sampling"].items()}
        return settings | {f"data.{name}": node["sha256"] for name, node in facts["data"].items()}

    def _other_settings(self, difference: str) -> UserError:
        return UserError(
            f"{self.folder} holds an evaluation with other settings ({difference}); repeat it with the same ones (only "
            "n may grow), or choose another folder with -o"
        )

    def record(self, name: str, value: str | None) -> None:
        """Record a fact that is known once a model is loaded; raises UserError if the samples there have another."""
        known = self.facts.setdefault(name, value)
        if known != value:
            raise self._other_settings(_difference(name, known, value))

    def todo(self, finish: str | None = None) -> list[tuple[Question, int, int]]:
        """List (question, sample, its seed) of all samples that are missing, or that ended in an "error"."""
        return [
            (question, sample, seed_of(self.sampling.seed, question, sample))
            for question in self.questions
            for sample in range(self.sampling.n)
            if self.done.get((question.data, question.prompt, sample)) == finish
        ]

    def add(self, sample: Sample) -> None:
        """Append a sample; it is there for good when this returns, were the process killed now."""
        if self.done.get(sample.key, "error") != "error":
            raise ValueError(f"sample {sample.key} is there already")
        self._file.add({name: value for name, value in asdict(sample).items() if value is not None or name == "tokens"})
        self.done[sample.key] = sample.finish
        self._drew = True
        if time.monotonic() - self._told > 10:
            self._write_facts()

    def finish(self) -> None:
        """Mark the evaluation as finished."""
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
