"""A sample: how it is drawn, from which seed, and what came back."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from bandpo.errors import UserError

from ..data.questions import Question

Key = tuple[str, int, int]  # data set, prompt, sample


@dataclass(frozen=True)
class Sampling:
    """Settings by which answers are drawn.

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
    """One sample of an answer.

    Attributes:
        data: set of the question.
        prompt: number of the question.
        sample: number of the sample.
        seed: of the sample.
        text: the answer, which is graded; empty where there is none.
        tokens: with the end token and the reasoning; None where a server does not count them.
        finish: `stop`; `length`, cut at max_tokens; `content_filter`, cut by a server's filter; `refused` by a server,
            such as a question that does not fit with max_tokens; or `error`, which may pass, and is tried again by the
            next process.
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
    """Return the seed of one sample, in [0, 2^31), which every server takes.

    It is the same whatever else is evaluated with it,
    and different for all samples of a question."""
    text = f"{seed} {question.id}".encode()
    return (int.from_bytes(hashlib.sha256(text).digest()[:8], "big") + sample) % 2**31
