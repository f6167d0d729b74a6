"""Describe a question: what a model is asked, and the right answer."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from bandpo.files import line_of

Content = str | list[dict[str, Any]]  # text, or chat messages


@dataclass(frozen=True)
class Question:
    """Hold a prompt and its answer. `more`: further columns, which a scorer may need."""

    data: str
    prompt: int
    content: Content
    answer: str
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Hash the question. The same question has the same hash in every folder."""
        return hashlib.sha256(line_of(self.content)).hexdigest()[:16]

    def row(self) -> dict[str, Any]:
        """Return the question as a line of prompts.jsonl has it."""
        return {name: value for name, value in vars(self).items() if name != "more"} | dict(self.more)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the question in a line of prompts.jsonl."""
        own = {name: row[name] for name in ("data", "prompt", "content", "answer")}
        return cls(**own, more={name: value for name, value in row.items() if name not in own})


def fingerprint(questions: Iterable[Question]) -> str:
    """Hash questions and answers, in order."""
    digest = hashlib.sha256()
    for question in questions:
        digest.update(line_of([question.content, question.answer]))
    return digest.hexdigest()
