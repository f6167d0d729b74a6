r"""Grade final answers: `grade(texts, answers, scorer)`. docs/evaluate.md compares the scorers.

`math`: the answer is the last that the text states (`final_answer`); it is right if it is equal in value. Numbers are
compared here, by `fractions.Fraction`; whatever needs a parser goes to math-verify, in worker processes with hard
limits of time and memory (`workers`).

`dapo-strict`: what the public runs' scorer does, `math_dapo` of verl 0.5: "Answer:" within the last 300 characters,
Minerva's normalisation (arXiv 2206.14858, app. D), equal strings.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import UserError, nearest
from .answers import CHOICE, FUNCTIONS, read, said, without_lead, without_unit
from .boxes import LONGEST
from .final_answer import Thinking, final_answer
from .notation import bare, compact, plain
from .quantities import VALUES, Number, changes, equal, number
from .workers.pool import Pool, Raised, Stopped

SCORERS = ("math", "dapo-strict")
# Processor time of one comparison. Nearly all take less than 0.1 s.
SECONDS = 1.0


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


def grade(texts: Sequence[str], answers: Sequence[str], scorer: str = "math", thinking: Thinking = None) -> list[Grade]:
    """Score each text against its right answer.

    Args:
        texts: what a model wrote.
        answers: the right answers, one per text: numbers, LaTeX or words.
        scorer: `math` or `dapo-strict`.
        thinking: "opened" where the prompt ended in an opened block of thinking, as chat templates of reasoning models
            do: a text that never closes it holds no answer. `dapo-strict` knows no thinking.

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
    grades = [_by_value(text, str(answer), thinking) for text, answer in zip(texts, answers, strict=True)]
    open_pairs = list(dict.fromkeys(pair for pair in grades if isinstance(pair, _Pair)))
    found = dict(zip(open_pairs, _pool().map([_task(pair) for pair in open_pairs]), strict=True))
    return [pair.grade(found[pair]) if isinstance(pair, _Pair) else pair for pair in grades]


# ---- math: what can be decided without a parser


@dataclass(frozen=True)
class _Pair:
    """Hold a right answer and what must be equal to it. Only a parser can compare them."""

    right: str
    values: tuple[str, ...]

    def grade(self, found: list | Stopped | Raised) -> Grade:
        if isinstance(found, (Stopped, Raised)):
            return Grade(0.0, None, "timeout" if isinstance(found, Stopped) else "error")
        equal, shown = found
        if equal:
            return Grade(1.0, _right(self.right).normal)
        return Grade(0.0, shown) if shown is not None else Grade(0.0, None, "unparsed")


# The letter beside what it stands for: (B) 7. It counts unless the words name another one, or say something of it.
_CHOSEN = re.compile(
    r"(?:option |choice )?\(?([A-J])(?:\)[:.,]?|[:.,]|\s[-\u2013\u2014]|(?= is the))\s*(.*)", re.IGNORECASE
)
_OTHER_LETTER = re.compile(
    r"^\(?[A-J]\W*$|^(?:is (?!the (?:only )?(?:correct |right |best )?(?:answer|option|choice)\b)"
    r"|was|may|might|can|or|and)\b"
    r"|\(?\b[A-Ja-j]\)|(?:\b(?:or|and|also|but)|,|\()\s+\(?[A-J]\b|\([A-J]\b|\b[A-J] (?:is|also|works)\b"
    r"|\b(?:is|are|was|be) (?:\w+ )?(?:not|wrong|incorrect|false)\b|n['\u2019]t\b|\?$|too \w+$"
    r"|^\W*(?:wrong|incorrect|untrue|not(?! \(?[A-J]\b)|eliminated|excluded|rejected|ruled out|impossible)\b"
)
_CLOCK = re.compile(r"(\d+(?:\s*(?::|\\colon|(?<=\d)\s+to)\s*\d+)+)\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)
# 0x1F, 101_2, 101_{\\text{two}}, 101 (base 2), 101 in base 2.
_BASED = re.compile(r"(-?0[xb][0-9a-fA-F]+)|\(?(\w+?)\)?\s*(?:_\s*\{?|\(?(?:in )?base(?=[ _])[ _{]*)\s*(\w+)\s*[})]*")
_NAMED_RATIO = re.compile(r"([A-Za-z :]+)=\s*(.+)")
_PROSE = re.compile(r"[A-Za-z]{3,}")
_ARTICLES = re.compile(r"^(?:(?:on|in|an?|the|it is|it s)\s+)+")


@dataclass(frozen=True)
class _Right:
    """Prepare a right answer for comparisons.

    `kind` is how answers are compared with it: `number` and `formula` by value; `words`, `choice` (A to J), `clock`
    (10:30, which is a time or a ratio) and `based` (101_2) as they are written.
    """

    text: str
    compact: str
    kind: Literal["number", "formula", "words", "choice", "clock", "based", "none"]
    value: str
    unit: str | None
    number: Number | None
    normal: str


# What data sets write for a missing answer; nothing is equal to it.
_NO_ANSWER = {"", "none", "null", "nan", "n/a", "proof", "notfound", "not found"}
# 2e-1 and 3e+2 are formulas with Euler's number; 3e8, 1e-5 and 6.63e-34 are numbers.
_EULER = re.compile(r"[0-9]+e[-+][12]")
# A list, whose parts may stand in boxes of their own.
_LIST = re.compile(r".*(?:,|;|\\pm|\band\b|\bor\b)")


@functools.lru_cache(maxsize=10_000)
def _right(answer: str) -> _Right:
    if re.sub(r"\\text|[^\w/ ]", "", answer).strip().casefold() in _NO_ANSWER:
        return _Right("", "", "none", "", None, None, "")
    stated = final_answer(answer) if re.search(r"\\boxed|####|(?i:answer)", answer) else None  # of a whole solution
    text = bare(plain(", ".join(stated.answers) if stated else answer))
    compacted = compact(text)
    value, unit = without_unit(text) or (text, None)
    found = number(value) if not _EULER.fullmatch(value) else None
    if found is not None:
        normal = str(found.value) + (f" {unit}" if unit else "")
        return _Right(text, compacted, "number", value, unit, found, normal)
    written: list[tuple[Literal["clock", "choice", "based"], re.Pattern[str]]]
    written = [("clock", _CLOCK), ("choice", CHOICE), ("based", _BASED)]
    for name, pattern in written:
        # i and e are numbers, a and b letters of a formula; a choice is a capital.
        written_so = name == "clock" or text.lstrip("-")[:1].isdigit() or text.strip("()[].").isupper()
        if pattern.fullmatch(text) and written_so:
            return _Right(text, compacted, name, text, None, None, _as_written(name, text) or compacted)
    if (text.isupper() and _choices(text) is not None) or re.match(r"\(?[A-J]\) \S", text):
        return _Right(text, compacted, "choice", text, None, None, _as_written("choice", text) or compacted)
    if words := _words(text):
        return _Right(text, compacted, "words", text, None, None, words)
    return _Right(text, compacted, "formula", value, unit, None, compacted)


def _by_value(text: str, right: str, thinking: Thinking = None) -> Grade | _Pair:
    wanted = _right(right)
    found = final_answer(text, thinking)
    if found is None or wanted.kind == "none":
        return _UNPARSED
    last = found.answers[-1]
    if len(found.answers) > 1 and wanted.kind != "number" and _LIST.match(wanted.text):
        return _compared(", ".join(found.answers), right)
    if not found.each:
        return _compared(last, right)
    all_of = [_compared(answer, right) for answer in found.answers]  # "x+1 or 1+x"
    wrong = [each for each in all_of if isinstance(each, Grade) and not each.score]
    values = tuple(value for each in all_of if isinstance(each, _Pair) for value in each.values)
    return wrong[0] if wrong else _Pair(right, values) if values else all_of[0]


def _compared(answer: str, right: str) -> Grade | _Pair:
    wanted = _right(right)
    if len(answer) > LONGEST:
        return _UNPARSED
    answer = bare(plain(answer))
    if not answer:
        return _UNPARSED
    if compact(answer) == wanted.compact:
        return Grade(1.0, wanted.normal)
    if wanted.kind == "based" and "_" in wanted.normal and answer.isalnum():  # the base may be the question's
        return Grade(float(wanted.normal.startswith(f"{answer}_")), answer)
    if wanted.kind not in ("number", "formula"):
        forms = [without_lead(answer), answer]
        if wanted.kind != "choice" or _as_written("choice", answer) is None:
            forms.append(bare(said(answer)))
        if wanted.kind == "clock" and (named := _NAMED_RATIO.fullmatch(answer)) and not changes(named[1]):
            forms.append(named[2])
        forms = [_as_written(wanted.kind, form.replace("$", "")) for form in forms]
        written = wanted.normal if wanted.normal in forms else forms[0] or forms[1]
        return _UNPARSED if written is None else Grade(float(written == wanted.normal), written)
    reading = read(answer, wanted.text)
    if reading is None or _CLOCK.fullmatch(reading.values[-1]):
        return _UNPARSED
    *_, value = reading.values
    given = number(value)
    # Without the question, a bare right answer leaves the unit open, and so does a bare answer.
    if None not in (reading.unit, wanted.unit) and reading.unit != wanted.unit:
        return Grade(0.0, f"{given.value if given else compact(value)} {reading.unit}")
    numbers = [number(each) for each in reading.values]
    if given is not None and None not in numbers and wanted.number is not None:
        # 35/100 = 35 %: the first has no unit.
        rights, bares = _in_percent(wanted, reading.unit), _in_percent(wanted, None)
        same = [any(equal(each, one) for one in rights + bares) for each in numbers[:-1] if each]
        if all(same) and any(equal(given, one) for one in rights):
            return Grade(1.0, wanted.normal)
        return Grade(0.0, str(given.value) + (f" {reading.unit}" if reading.unit else ""))
    in_percent = given is not None and any(equal(given, one) for one in _in_percent(wanted, "percent")[1:])
    if reading.unit == "percent" and wanted.unit is None and not in_percent:
        value = f"\\frac{{{value}}}{{100}}"
    return _Pair(right, (*(_exact(part) for part in reading.values[:-1]), _exact(value)))


_UNPARSED = Grade(0.0, None, "unparsed")


def _in_percent(wanted: _Right, unit: str | None) -> list[Number]:
    """Return the ways to write the right number.

    25 % is 0.25, and the 25 of a question that asks for percent.
    """
    if wanted.number is None:
        return []
    value, places = wanted.number
    if (wanted.unit == "percent") == (unit == "percent"):
        return [wanted.number]
    if wanted.unit == "percent":
        return [wanted.number, Number(value / 100, places + 2 if places else 0)]
    hundredfold = Number(value * 100, max(0, places - 2))
    return [hundredfold, wanted.number] if value.denominator == 1 and not places else [hundredfold]


def _exact(text: str) -> str:
    """Remove separators, and write short decimals as fractions. To a parser separators are products."""
    found = number(text)
    return text if found is None or (found.places >= 6 and "e" not in text.casefold()) else str(found.value)


def _words(text: str) -> str:
    """Return the text in lower case, without punctuation, if it is prose. A formula gives nothing."""
    if "\\" in text:
        return ""
    found = _PROSE.findall(text)
    if text.casefold() in ("no", "yes") or any(word.casefold() not in FUNCTIONS for word in found):
        return _ARTICLES.sub("", " ".join(re.findall(r"\w+", text.casefold())))
    return ""


def _choices(text: str) -> str | None:
    """Return the letters of choices, in order: "B, D"."""
    letters = [CHOICE.fullmatch(part.strip()) for part in re.split(r",\s*(?:and\s)?|\sand\s", text)]
    return ",".join(sorted({match[1].upper() for match in letters if match})) if all(letters) else None


def _as_written(kind: str, text: str) -> str | None:
    """Return the normal form of an answer compared as text. None if the text is not of that kind."""
    match kind:
        case "choice":
            chosen = _CHOSEN.fullmatch(text)
            return _choices(chosen[1] if chosen and chosen[2] and not _OTHER_LETTER.search(chosen[2]) else text)
        case "words":
            return _words(text) or None
        case "clock" if match := _CLOCK.fullmatch(text):
            half = f" {match[2].lower()}m" if match[2] else ""
            return re.sub(r"\s*(?::|\\colon|\s+to)\s*", ":", match[1]) + half
        case "based" if match := _BASED.fullmatch(text):
            return match[1].casefold() if match[1] else f"{match[2]}_{VALUES.get(match[3], match[3])}"
    return None


# ---- math: the workers


def _task(pair: _Pair) -> list[str]:
    wanted = _right(pair.right)
    return [_exact(wanted.value) if wanted.kind == "number" else wanted.value, *pair.values]


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
    """Return the pool of this process, made on the first call."""
    global _POOL
    with _POOL_LOCK:
        if _POOL is None:
            _POOL = Pool("bandpo.rewards.equivalence:compare", seconds=SECONDS, warm_up=_WARM_UP)
        return _POOL


def _forget_pool() -> None:
    """Forget the pool in a forked process. The workers and their threads are the parent's."""
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
    """Return Minerva's normal form of an answer."""
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
