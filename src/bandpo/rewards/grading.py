r"""Grade final answers: `grade(texts, answers, scorer)`. docs/evaluate.md compares the scorers.

`math`: the answer is the last that the text states (`final_answer`); it is right if it is equal in value. Numbers are
compared here, by `fractions.Fraction`; whatever needs a parser goes to math-verify, in worker processes with hard
limits of time and memory (`workers`).

`dapo-strict` and `dapo`: what verl's `math_dapo` does, in the public runs and since verl 0.9.1 (`dapo`).
"""

from __future__ import annotations

import functools
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from types import NoneType
from typing import Literal

from ..errors import UserError, nearest
from .answers import predicate, read, without_lead, without_unit
from .boxes import LONGEST
from .dapo import minerva
from .final_answer import Thinking, final_answer
from .lexicon import P, in_english
from .notation import bare, compact, plain
from .quantities import VALUES, Number, changes, equal, number, unit_name
from .workers.comparisons import check_math_verify, pool
from .workers.pool import Raised, Stopped

SCORERS = ("math", "dapo-strict", "dapo")


@dataclass(frozen=True)
class Grade:
    """Hold the grade of one text by a scorer.

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


def grade(
    texts: Sequence[str],
    answers: Sequence[str],
    scorer: str = "math",
    thinking: Thinking = None,
) -> list[Grade]:
    """Score each text against its right answer.

    Args:
        texts: what a model wrote.
        answers: the right answers, one per text: numbers, LaTeX or words.
        scorer: `math`, `dapo-strict` or `dapo`.
        thinking: "opened" where the prompt ended in an opened block of thinking, as chat templates of reasoning models
            do: a text that never closes it holds no answer. Only `math` knows of it.

    Raises:
        UserError: an unknown scorer, or math-verify is missing.
        TypeError: texts or answers that are no list, or hold something else.
        ValueError: not as many answers as texts, or another `thinking`.
    """
    if scorer not in SCORERS:
        raise UserError(
            f"scorer must be one of {list(SCORERS)}, got {scorer!r}{nearest(scorer, list(SCORERS))}"
        )
    for name, values, kinds in (("texts", texts, (str,)), ("answers", answers, (str, Real, NoneType))):
        if isinstance(values, str) or not all(isinstance(each, kinds) for each in values):
            wanted = "texts" if name == "texts" else "texts or numbers, each one right answer"
            raise TypeError(f"{name} must be a list of {wanted}, got {reprlib.repr(values)}")
    if thinking not in (None, "opened"):
        raise ValueError(f"thinking must be 'opened' or None, got {thinking!r}")
    if len(texts) != len(answers):
        raise ValueError(f"texts and answers must be as many, got {len(texts)} and {len(answers)}")
    if scorer != "math":
        pairs = [
            minerva(text, str(answer), scorer == "dapo")
            for text, answer in zip(texts, answers, strict=True)
        ]
        return [Grade(float(right), read, "unparsed" if read is None else "ok") for right, read in pairs]
    check_math_verify()
    grades = [_by_value(text, str(answer), thinking) for text, answer in zip(texts, answers, strict=True)]
    open_pairs = list(dict.fromkeys(pair for pair in grades if isinstance(pair, _Pair)))
    tasks = [[_right(pair.right).value, *pair.values] for pair in open_pairs]
    results = dict(zip(open_pairs, pool().map(tasks), strict=True))
    return [pair.grade(results[pair]) if isinstance(pair, _Pair) else pair for pair in grades]


# ---- math: what can be decided without a parser


@dataclass(frozen=True)
class _Pair:
    """Hold a right answer and what must be equal to it. Only a parser can compare them."""

    right: str
    values: tuple[str, ...]

    def grade(self, result: list | Stopped | Raised) -> Grade:
        if isinstance(result, (Stopped, Raised)):
            return Grade(0.0, None, "timeout" if isinstance(result, Stopped) else "error")
        equal, shown = result
        return (
            Grade(1.0, _right(self.right).normal)
            if equal
            else Grade(0.0, shown, "ok" if shown else "unparsed")
        )


@dataclass(frozen=True)
class _Right:
    """Prepare a right answer for comparisons.

    `kind` is how answers are compared with it: `number` and `formula` by value; the others as they are written.
    """

    text: str
    kind: str
    value: str
    unit: str | None
    number: Number | None
    normal: str


# What data sets write for a missing answer; nothing is equal to it.
_NO_ANSWER = {"", "none", "null", "nan", "n/a", "proof", "notfound", "not found"}


@functools.lru_cache(maxsize=10_000)
def _right(answer: str) -> _Right:
    if re.sub(r"\\text|[^\w/ ]", "", answer).strip().casefold() in _NO_ANSWER:
        return _Right("", "none", "", None, None, "")
    stated = (
        final_answer(answer) if re.search(r"\\boxed|####|(?i:answer)", answer) else None
    )  # of a whole solution
    text = bare(plain(", ".join(stated.answers) if stated else answer))
    noted = P.with_unit.fullmatch(text)
    text = P.with_unit.sub(r"\1 \2", text)
    value, unit = (noted[1], unit_name(noted[2])) if noted else without_unit(text) or (text, None)
    parsed = None if P.euler.fullmatch(value) else number(value)
    if parsed is not None:
        return _Right(text, "number", _exact(value), unit, parsed, f"{parsed.value} {unit or ''}".strip())
    for kind, read_as in _WRITTEN.items():
        # i and e are numbers, a and b letters of a formula; a choice is a capital.
        plausible = (
            text[:2].strip("([").isupper()
            if kind == "choice"
            else kind != "based" or text.lstrip("-")[:1].isdigit()
        )
        normal = read_as(text) if plausible else ""
        if normal:
            return _Right(text, kind, text, None, None, normal)
    return _Right(text, "formula", value, unit, None, compact(text))


def _by_value(text: str, right: str, thinking: Thinking = None) -> Grade | _Pair:
    wanted, statement = _right(right), final_answer(text, thinking)
    if statement is None or wanted.kind == "none":
        return _UNPARSED
    is_list = len(statement.answers) > 1 and wanted.kind != "number" and P.list.match(wanted.text)
    answers = (
        [", ".join(statement.answers)] if is_list else statement.answers[0 if statement.each else -1 :]
    )
    grades = [_compared(answer, right) for answer in answers]
    if statement.scaled and isinstance(grades[-1], Grade) and not grades[-1].score:
        grades[-1] = _compared(statement.scaled, right)
    wrong = [each for each in grades if isinstance(each, Grade) and not each.score]
    values = tuple(value for each in grades if isinstance(each, _Pair) for value in each.values)
    return wrong[0] if wrong else _Pair(right, values) if values else grades[-1]  # "x+1 or 1+x"


def _compared(answer: str, right: str) -> Grade | _Pair:
    wanted = _right(right)
    raw = P.with_unit.sub(r"\1 \2", bare(plain(answer))) if len(answer) <= LONGEST else ""
    if raw and compact(raw) == compact(wanted.text):
        return Grade(1.0, wanted.normal)
    comma = P.decimal_comma if wanted.number and wanted.number.places else P.cents
    answer = in_english(comma.sub(r"\1.\2", raw) if wanted.number else raw).strip()
    parts = _clock(P.fraction.sub(r"\1\3:\2\4", answer))
    if parts and parts == _clock(P.fraction.sub(r"\1\3:\2\4", wanted.text)):
        return Grade(1.0, wanted.normal)  # 2/3 for 2:3
    if (
        wanted.kind == "based" and "_" in wanted.normal and answer.isalnum()
    ):  # the base may be the question's
        return Grade(float(wanted.normal.startswith(f"{answer}_")), answer)
    read_as = _WRITTEN.get(wanted.kind)
    if read_as:
        forms = [form for form in map(read_as, (without_lead(answer), answer, raw)) if form]
        if wanted.kind != "choice" or not forms:
            forms += filter(None, [read_as(bare(predicate(answer)))])
        # A right answer without "a.m." leaves it open.
        if wanted.normal in (*forms, *(re.sub(r"(?<=\d) [ap]m$", "", form) for form in forms)):
            return Grade(1.0, wanted.normal)
        return Grade(0.0, forms[0]) if forms else _UNPARSED
    values, unit = read(answer, wanted.value) or ((), None)
    numbers = [number(each) for each in values]
    if not values or (numbers[-1] is None and _clock(values[-1])):
        return _UNPARSED
    shown = f"{numbers[-1].value if numbers[-1] else compact(values[-1])} {unit or ''}".strip()
    # Without the question, a bare right answer leaves the unit open, and so does a bare answer.
    if None not in (unit, wanted.unit) and unit != wanted.unit:
        return Grade(0.0, shown)
    if wanted.number is None or None in numbers:
        return _Pair(right, tuple(map(_exact, values)))
    units = [None] * (len(numbers) - 1) + [unit]  # 35/100 = 35 %: the first has none
    same = [
        _equal(each, own, wanted.number, wanted.unit)
        for each, own in zip(numbers, units, strict=True)
        if each
    ]
    return Grade(1.0, wanted.normal) if all(same) else Grade(0.0, shown)


_UNPARSED = Grade(0.0, None, "unparsed")


def _equal(one: Number, unit: str | None, other: Number, other_unit: str | None) -> bool:
    """Compare numbers. 25 % is 0.25, and the 25 of a question that asks for percent."""
    if other_unit == "percent" != unit:
        one, other = other, one
    hundredth = Number(one.value / 100, one.places + 2 if one.places else 0)
    return equal(one, other) or (
        (unit == "percent") != (other_unit == "percent") and equal(hundredth, other)
    )


def _exact(text: str) -> str:
    """Remove separators, and write short decimals as fractions. To a parser separators are products."""
    parsed = number(text)
    return (
        text
        if parsed is None or (parsed.places >= 6 and "e" not in text.casefold())
        else str(parsed.value)
    )


# ---- math: what is compared as it is written; each returns a normal form, or nothing for another kind of text


def _clock(text: str) -> str:
    """Return the parts of a time or a ratio, each without needless zeros."""
    match = P.clock.fullmatch(text.replace("$", ""))
    if match is None or changes(text.rpartition("=")[0]):
        return ""
    parts = [str(Fraction(part)) for part in re.findall(r"\d+(?:\.\d+)?", match[1])]
    return ":".join(parts) + (f" {match[2].lower()}m" if match[2] else "")


def _choice(text: str) -> str:
    """Return the letters of choices, in order: "B,D"."""
    chosen = P.chosen.fullmatch(text)
    text = chosen[1] if chosen and chosen[2] and not P.other_letter.search(chosen[2]) else text
    letters = [P.choice.fullmatch(part.strip()) for part in re.split(r",\s*(?:and\s)?|\sand\s", text)]
    return ",".join(sorted({match[1].upper() for match in letters if match})) if all(letters) else ""


def _based(text: str) -> str:
    match = P.based.fullmatch(text)
    return (match[1] or f"{match[2]}_{VALUES.get(match[3], match[3])}").casefold() if match else ""


def _words(text: str) -> str:
    """Return the text in lower case, without punctuation, if it is prose. A formula gives nothing."""
    prose = [
        word for word in re.findall(r"[^\W\d_]{3,}", text) if not P.function.fullmatch(word.casefold())
    ]
    if "\\" in text or not (prose or text.casefold() in ("no", "yes")):
        return ""
    return P.articles.sub("", " ".join(re.findall(r"\w+", text.casefold())))


def _row(text: str) -> str:
    """Return numbers that only spaces part, such as a row of a grid. To the parser they are one product."""
    return " ".join(str(Fraction(part)) for part in text.split()) if P.row.fullmatch(text) else ""


_WRITTEN = {"clock": _clock, "choice": _choice, "based": _based, "row": _row, "words": _words}
