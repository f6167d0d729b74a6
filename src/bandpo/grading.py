r"""Is the final answer in a text the right one? `grade(texts, answers, scorer)`; docs/scorers.md compares the scorers.

`math`: the answer is what stands on the last line with "Answer:", else in the last `\boxed{}`, else after the last
"answer is"; it is right if it is equal in value. Numbers are compared here, by `fractions.Fraction`; whatever needs a
parser goes to math-verify, in worker processes with hard limits of time and memory (`workers.py`).

`dapo-strict`: what the public runs' scorer does, `math_dapo` of verl 0.5: "Answer:" within the last 300 characters,
Minerva's normalisation (arXiv 2206.14858, app. D), equal strings.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from .config import UserError
from .divergences import nearest
from .workers import Pool, Raised, Stopped

SCORERS = ("math", "dapo-strict")
# Of the characters of an answer that is looked at; the longest of MATH-500 has 159.
LONGEST = 500
# Processor time of one comparison. Nearly all take less than 0.1 s.
SECONDS = 1.0


@dataclass(frozen=True)
class Grade:
    """What a scorer says of one text.

    Attributes:
        score: 1.0 for a right answer, else 0.0.
        answer: what was read out of the text. Of `math`, a right one is the right answer's own normal form, and numbers
            are reduced fractions, so that equal answers mostly have equal strings. None: nothing could be parsed.
        status: `ok`, `unparsed`, `timeout` (the comparison was stopped at its limit of time or memory), or `error` (the
            scorer itself failed, which it should for no answer; a warning tells of the first one).
    """

    score: float
    answer: str | None
    status: Literal["ok", "unparsed", "timeout", "error"] = "ok"


def grade(texts: Sequence[str], answers: Sequence[str], scorer: str = "math") -> list[Grade]:
    """Score each text against its right answer.

    Args:
        texts: what a model wrote.
        answers: the right answers, one per text: numbers, LaTeX or words.
        scorer: `math` or `dapo-strict`.

    Raises:
        UserError: an unknown scorer, or math-verify is missing.
        ValueError: not as many answers as texts.
    """
    if scorer not in SCORERS:
        raise UserError(f"scorer must be one of {list(SCORERS)}, got {scorer!r}{nearest(scorer, list(SCORERS))}")
    if len(texts) != len(answers):
        raise ValueError(f"texts and answers must be as many, got {len(texts)} and {len(answers)}")
    if scorer == "dapo-strict":
        return [_dapo_strict(text, str(answer)) for text, answer in zip(texts, answers, strict=True)]
    _check_math_verify()
    grades = [_by_value(text, str(answer)) for text, answer in zip(texts, answers, strict=True)]
    open_pairs = list(dict.fromkeys(pair for pair in grades if isinstance(pair, _Pair)))
    found = dict(zip(open_pairs, _pool().map([[pair.right, pair.answer] for pair in open_pairs]), strict=True))
    return [pair.grade(found[pair]) if isinstance(pair, _Pair) else pair for pair in grades]


# ---- math: what can be decided without a parser


@dataclass(frozen=True)
class _Pair:
    """Two answers that only a parser can compare."""

    right: str
    answer: str

    def grade(self, found: list | Stopped | Raised) -> Grade:
        if isinstance(found, (Stopped, Raised)):
            return Grade(0.0, None, "timeout" if isinstance(found, Stopped) else "error")
        equal, shown = found
        if equal:
            return Grade(1.0, _right(self.right).normal)
        return Grade(0.0, shown) if shown is not None else Grade(0.0, None, "unparsed")


@dataclass(frozen=True)
class _Right:
    """A right answer, made ready."""

    text: str
    compact: str
    number: tuple[Fraction, bool] | None
    words: str
    normal: str


@functools.lru_cache(maxsize=10_000)
def _right(answer: str) -> _Right:
    text = _bare(answer)
    compact, number, words = _compact(text), _number(text), _words(text)
    return _Right(text, compact, number, words, str(number[0]) if number else words or compact)


def _by_value(text: str, right: str) -> Grade | _Pair:
    wanted = _right(right)
    answer = final_answer(text)
    if answer is None or len(answer) > LONGEST:
        return _UNPARSED
    answer = _bare(answer)
    if "=" not in wanted.text:
        answer = _bare(_NAMED.sub("", answer))
    if not answer:
        return _UNPARSED
    if _compact(answer) == wanted.compact:
        return Grade(1.0, wanted.normal)
    number = _number(answer)
    if number is None and (words := _words(answer)):
        if wanted.words:
            return Grade(float(words == wanted.words), words)
        # "42 apples", "the value is $x^2$": the only number, or the only formula, among words that leave it as it is.
        formulas = _FORMULA.findall(answer)
        formulas += [word for word in _FORMULA.sub(" ", answer).split() if _DIGIT.search(word)]
        if len(formulas) != 1 or not _CHANGING.isdisjoint(words.split()):
            return _UNPARSED
        answer = _bare(formulas[0])
        number = _number(answer)
    if _TOWER.search(answer) and not _TOWER.search(wanted.text):
        return _UNPARSED
    if number is None or wanted.number is None:
        return _Pair(_plain(wanted.number) or wanted.text, _plain(number) or answer)
    (value, is_decimal), (right_value, right_is_decimal) = number, wanted.number
    if value == right_value:
        return Grade(1.0, wanted.normal)
    # Where there is a decimal, math-verify compares six places; what is so close is its to decide.
    if (is_decimal or right_is_decimal) and abs(value - right_value) < Fraction(1, 10**5):
        return _Pair(wanted.text, answer)
    return Grade(0.0, str(value))


_UNPARSED = Grade(0.0, None, "unparsed")
# "Answer: ...", "**Answer:** ...", "The answer is: ...", with the colon of Chinese text too.
_MARK = r"[*_`\s]{0,8}"
_ANSWER = re.compile(rf"(?i:answer|答案){_MARK}(?:is{_MARK})?[:\uff1a]")
_ANSWER_IS = re.compile(r"(?i:answer is)\b")
_NEXT_SENTENCE = re.compile(r"\.\s+(?=[A-Z])")
_DISPLAY = {"$$": "$$", r"\[": r"\]"}
_DELIMITERS = [("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ('"', '"')]
# What may stand around a whole answer without changing it.
_WRAPPERS = ("\\boxed{", "\\fbox{", "\\text{", "\\textbf{", "\\mathbf{", "\\mathrm{", "\\mbox{", "{")
_NAMED = re.compile(r"^[A-Za-z](?:_\w|_\{\w+\})?\s*=(?!.*=)")
# A power of powers of numbers, which nobody can write out: to stop a parser at it takes a second each time.
_TOWER = re.compile(r"\^[\s{]*[0-9]+\s*\^")
_FORMULA = re.compile(r"\$[^$]+\$|\\\(.+?\\\)|\\\[.+?\\\]")
_DIGIT = re.compile(r"\d")
_INTEGER = r"(?:[0-9]{1,3}(?:(?:,|\{,\}|,\\!|\\,| )[0-9]{3})+|[0-9]+)"
_DECIMAL_NUMBER = re.compile(rf"([-+]?)\s*({_INTEGER}?)(\.[0-9]*)?")
_RATIO = re.compile(
    r"([-+]?)\s*(?:\\[dt]?frac\s*\{\s*([-+]?[0-9]+)\s*\}\s*\{\s*([-+]?[0-9]+)\s*\}|([0-9]+)\s*/\s*([0-9]+))"
)
_COMMAND = re.compile(r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}|\\[A-Za-z]+")
_LETTERS = re.compile(r"[A-Za-z]{3,}")
# Words beside which a number is not the answer: "not 42", "negative 42", "42 million".
_CHANGING = {"not", "except", "than", "minus", "negative", "dozen", "hundred", "thousand", "million", "billion"}
# These are mathematics without a backslash too.
_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "and", "infty", "inf", "infinity"}


def final_answer(text: str) -> str | None:
    r"""What a text gives as its answer; None where it gives none.

    The line of the last "Answer:" that is followed by anything (in the same line or the next), else the contents of the
    last `\boxed{}`, else the sentence after the last "answer is".
    """
    for mark in _last_first(_ANSWER, text):
        if line := _line(text, mark.end()):
            return line
    start = text.rfind("\\boxed{")
    if start >= 0:
        end = _closing(text, start + len("\\boxed"))
        return text[start + len("\\boxed{") : end] if end is not None else None
    mark = next(_last_first(_ANSWER_IS, text), None)
    return _line(text, mark.end()) if mark is not None else None


def _last_first(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Where it matches, from the end, which mostly is near it; what is near is given twice."""
    for start in (max(0, len(text) - 1000), 0):
        yield from reversed(list(pattern.finditer(text, start)))


def _line(text: str, start: int) -> str | None:
    """The first line from there that holds anything, or a displayed formula over several."""
    rest = text[start : start + 2 * LONGEST].lstrip("*_` \t\r\n")
    for opening, closing in _DISPLAY.items():
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) >= 0:
            return rest[len(opening) : end]
    line = rest.partition("\n")[0]
    return _NEXT_SENTENCE.split(line, maxsplit=1)[0].strip() or None


def _closing(text: str, opening: int) -> int | None:
    """Where the brace at `opening` is closed."""
    depth = 0
    for brace in re.finditer(r"(?<!\\)[{}]", text[opening : opening + 2 * LONGEST]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return opening + brace.start()
    return None


def _bare(text: str) -> str:
    """Without what may stand around an answer: white space, Markdown, delimiters, boxes, full stops, currency."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("\N{EN DASH}", "-")
    before = None
    while text != before:
        before = text
        text = re.sub(r"(?<!\\)[.,;:\u3002\uff0c\uff1b]+$", "", text.strip().strip("*`").strip())
        if (start := text.rfind("\\boxed{")) >= 0 and (end := _closing(text, start + len("\\boxed"))) is not None:
            text = text[start + len("\\boxed{") : end]
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            if text.startswith(opening) and text.endswith(closing) and closing not in inner and inner:
                text = inner
        for wrapper in _WRAPPERS:
            if text.startswith(wrapper) and _closing(text, len(wrapper) - 1) == len(text) - 1:
                text = text[len(wrapper) : -1]
        text = text.removeprefix("\\displaystyle").removeprefix("\\$").lstrip("€£¥")
        if text.count("$") == 1:  # a price, or a delimiter without its other half
            text = text.strip("$")
    return text


_SPACES = re.compile(r"\s+(?=[^\w\s])|(?<=[^\w\s])\s+|\\[!,;:]")


def _compact(text: str) -> str:
    """The same for what looks the same: \\dfrac, spaces, \\left and \\right."""
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", text)
    return _SPACES.sub("", text)


def _number(text: str) -> tuple[Fraction, bool] | None:
    """(value, written as a decimal) of 42, 042, 4.20, 1,000, 3/4 or \\frac{3}{4}."""
    if match := _DECIMAL_NUMBER.fullmatch(text):
        sign, whole, decimals = match.groups()
        whole = re.sub(r"[^0-9]", "", whole)
        if whole or (decimals and len(decimals) > 1):
            return Fraction(f"{sign}{whole or 0}{decimals or ''}"), decimals is not None
    if match := _RATIO.fullmatch(text):
        sign, *parts = match.groups()
        above, below = (int(part) for part in parts if part is not None)
        if below:
            return Fraction(-above if sign == "-" else above, below), False
    return None


def _plain(number: tuple[Fraction, bool] | None) -> str | None:
    """Without separators, which are products to a parser; decimals stay as they were written."""
    return None if number is None or number[1] else str(number[0])


def _words(text: str) -> str:
    """The text in lower case, without punctuation, if it is prose and no formula; else nothing."""
    found = _LETTERS.findall(_COMMAND.sub(" ", text))
    if text.lower() == "no" or any(word.lower() not in _FUNCTIONS for word in found):
        return " ".join(re.findall(r"\w+", text.casefold()))
    return ""


# ---- math: the workers

_POOL: Pool | None = None
_POOL_LOCK = threading.Lock()
# Every worker knows what these teach: modules that sympy loads late, and the parser's tables. And where such a simple
# one is judged wrongly, math-verify or sympy is not what it should be, and no answer can be graded.
_WARM_UP = [
    (["7", "7"], [True, "7"]),
    (["x+1", "1+x"], [True, "x + 1"]),
    (["\\sqrt{3}", "2\\sqrt{3}"], [False, "2*sqrt(3)"]),
    (["\\frac{1}{2}", "\\frac{\\pi}{3}"], [False, "pi/3"]),
    (["\\{1,2\\}", "\\{2,1\\}"], [True, "{1, 2}"]),
    (["[0,1)", "[0,1)"], [True, "Interval.Ropen(0, 1)"]),
    (["x^2+3x", "x^2+3x"], [True, "x**2 + 3*x"]),
    (["\\log_2 3", "\\sin x"], [False, "sin(x)"]),
]


def _pool() -> Pool:
    """One per process, made when it is first needed."""
    global _POOL
    with _POOL_LOCK:
        if _POOL is None:
            _POOL = Pool("bandpo.equivalence:compare", seconds=SECONDS, warm_up=_WARM_UP)
        return _POOL


def _forget_pool() -> None:
    """In a forked process: the workers and the threads that serve them are the parent's."""
    global _POOL, _POOL_LOCK
    _POOL, _POOL_LOCK = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_pool)


@functools.cache
def _check_math_verify() -> None:
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("scorer 'math' needs math-verify: pip install 'bandpo[math]'")


# ---- dapo-strict

_INVALID = "[INVALID]"
_STRICT_ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
# Minerva's lists, in the order in which they are gone through, which matters.
_REPLACED = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
]
_REMOVED = [
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3"),
    *("\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
]
_UNWRAPPED = [
    (re.compile(r".*?\$(.*?)\$.*"), r"$\1$"),
    *((re.compile(rf"\\{command}\{{(.*?)\}}"), r"\1") for command in ("text", "textbf", "overline")),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
]


def _dapo_strict(text: str, right: str) -> Grade:
    found = _STRICT_ANSWER.findall(text[-300:])
    answer = _minerva(found[-1] if found else _INVALID)
    return Grade(float(answer == _minerva(right)), answer if found else None, "ok" if found else "unparsed")


def _minerva(answer: str) -> str:
    """Minerva's normal form of an answer."""
    answer = answer.split("=")[-1]
    for old, new in _REPLACED:
        answer = answer.replace(old, new)
    for unit in _REMOVED:
        answer = answer.replace(unit, "")
    for pattern, new in _UNWRAPPED:
        answer = pattern.sub(new, answer)
    answer = answer.replace("$", "")
    digits = answer.replace(",", "")
    return (digits if digits.isdigit() else answer).strip()
