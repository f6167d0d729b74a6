"""Describe a sample: its question and seed, how it is drawn, and what came back."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bandpo.errors import UserError
from bandpo.files import shortened

from ..data.questions import Content, Question

Key = tuple[str, int, int]  # data set, prompt, sample


@dataclass(frozen=True)
class Sampling:
    """Hold the settings by which answers are drawn. `n` are drawn for each prompt, each with its seed (`seed_of`).

    Temperature 0 is greedy, with one sample; `top_p` 1 and `top_k` -1 keep all tokens.
    """

    n: int = 32
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        rules = {
            "n must be from 1 to 100,000": not 1 <= self.n <= 100_000,
            "temperature must be 0 or more, and finite": not 0 <= self.temperature < math.inf,
            "top_p must be in (0, 1]": not 0 < self.top_p <= 1,
            "top_k must be -1 (all) or from 1 to 2^31": self.top_k != -1 and not 1 <= self.top_k < 2**31,
            "max_tokens must be at least 1, and below 2^31": not 1 <= self.max_tokens < 2**31,
            "seed must be 0 or more, and below 2^53": not 0 <= self.seed < 2**53,
            "n must be 1 at temperature 0, where all samples are the same": self.temperature == 0
            and self.n > 1,
        }
        for rule, broken in rules.items():
            if broken:
                raise UserError(f"{rule}, got {getattr(self, rule.split()[0])!r}")


@dataclass(frozen=True)
class Request:
    """Ask for one sample."""

    key: Key
    content: Content
    seed: int


@dataclass(frozen=True)
class Sample:
    """Hold a sample of an answer. It has its data set, question, own number, seed, and what came back.

    >>> Sample("aime24", prompt=0, sample=2, seed=7, text="so 204", tokens=3, finish="stop").key
    ('aime24', 0, 2)

    Attributes:
        text: the answer, which is graded; empty where there is none.
        tokens: with the end token and the reasoning; None where a server does not count them.
        finish: `stop`; `length`, cut at max_tokens; `content_filter`, cut by a server's filter; `refused` by a server,
            such as a question that does not fit with max_tokens; or `error`, which is tried again by the next process.
        reasoning: what a server keeps apart from the answer; it is not graded.
        error: what a server said instead of an answer.
    """

    data: str
    prompt: int
    sample: int
    seed: int
    text: str
    tokens: int | None
    finish: str
    reasoning: str | None = None
    error: str | None = None

    @property
    def key(self) -> Key:
        return self.data, self.prompt, self.sample


def seed_of(seed: int, question: Question, sample: int) -> int:
    """Return the seed of one sample, in [0, 2^31). It is the same whatever else is evaluated."""
    digest = hashlib.sha256(f"{seed} {question.id}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") + sample) % 2**31


def content_of(content: Any, where: str) -> str:
    """Return the text of a message. It may come in parts, of which thoughts and calls of tools are left out."""
    parts = content if isinstance(content, list) else [content or ""]
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if isinstance(text, str):
            texts.append(text if kind in ("text", "output_text", None) else "")
        elif kind == "text" or not isinstance(kind, str):
            raise UserError(f"{where} has a message with the part {shortened(part)}; text is expected")
    return "".join(texts)
