"""Find texts of the same problem. They are repeated rows, and training rows that hold an evaluation problem."""

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def same_text(text: str) -> str:
    """Return a problem without white space and case. It is equal for two rows with the same problem."""
    return "".join(unicodedata.normalize("NFC", text).casefold().split())


# A leak: a training row that shares this many of an evaluation problem's runs of five words. research/pages/data.md has
# the measurement behind these numbers.
RUN, SHARE, COMMON = 5, 0.3, 3

_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|\d+|[^\W\d_{_CJK}]+")
# LaTeX that changes how a formula looks and not what it says.
_LOOK = re.compile(
    r"\\(?:left|right|displaystyle|[bB]igg?[lrm]?|q?quad|text(?:bf|it|rm)?|math(?:rm|bf|it|bb|cal)|operatorname|"
    r"[lcv]?dots|begin\{\w+\*?\}|end\{\w+\*?\}|item)(?![a-z])"
)


def words(text: str) -> list[str]:
    """Return the words, numbers and CJK characters of a problem. How its LaTeX looks does not matter."""
    text = _LOOK.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    text = re.sub(r"\\[dtc]?frac", r"\\frac ", text)
    text = re.sub(r"\\frac\s+(\d)(\d)", r"\\frac \1 \2", text)
    return _WORD.findall(text)


def _runs(text: list[str]) -> set[tuple[str, ...]]:
    return {tuple(text[i : i + RUN]) for i in range(len(text) - RUN + 1)}


@dataclass(frozen=True)
class Leak:
    """Hold an evaluation problem found in a text. `share` is the share of its runs of words that are there."""

    name: str
    row: int
    share: float
    problem: str


class Leaks:
    """Find which evaluation problems a text holds.

    >>> leaks = Leaks([("aime24", ["Find the sum of all primes below twenty."])])
    >>> leaks.find("Problem 7. Find the sum of all primes below twenty.").name
    'aime24'

    A text holds a problem if it shares at least `SHARE` of the problem's runs of `RUN` words, not counting runs that
    stand in `COMMON` evaluation problems or more ("where m and n are relatively prime ..."). A problem with no run of
    its own is held by the texts that have the same words.

    Args:
        sets: name and problems of each evaluation set.
    """

    def __init__(self, sets: Sequence[tuple[str, Iterable[str]]]) -> None:
        self.exact: dict[tuple[str, ...], Leak] = {}
        for name, problems in sets:
            for row, problem in enumerate(problems):
                self.exact.setdefault(tuple(words(problem)), Leak(name, row, 1.0, problem))
        self.problems = list(self.exact.values())
        runs = [_runs(list(text)) for text in self.exact]
        counts = Counter(run for each in runs for run in each)
        own = [{run for run in each if counts[run] < COMMON} for each in runs]
        self.sizes = [len(each) for each in own]
        self.index: dict[tuple[str, ...], list[int]] = {}
        for i, each in enumerate(own):
            for run in each:
                self.index.setdefault(run, []).append(i)

    def find(self, text: str) -> Leak | None:
        """Find the problem that shares most with the text, if the text holds one."""
        split = words(text)
        if tuple(split) in self.exact:
            return self.exact[tuple(split)]
        shared = Counter(i for run in _runs(split) for i in self.index.get(run, ()))
        share, i = max(((count / self.sizes[i], i) for i, count in shared.items()), default=(0.0, 0))
        return dataclasses.replace(self.problems[i], share=share) if share >= SHARE else None
