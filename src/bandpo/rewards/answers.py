r"""Read the value and the unit of an answer. Words that leave the value as it is are removed.

Words before and behind a value are dropped unless one of them may change it (`changes`). Where anything else stands
beside it that the parser would drop, or take for a product of letters, the answer is refused.
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from .notation import COMMAND, PROSE, bare
from .quantities import PARTS, SCALES, VALUES, changes, known_unit, number, split_unit

# The letter of a choice.
CHOICE = re.compile(r"(?:option|choice)?\s*[\[(]?([A-J])[\])]?[.:]?", re.IGNORECASE)
# Brackets within brackets: to read deeper ones takes a parser more time than it is worth.
DEEPEST = 12

FUNCTIONS = set(
    """
    sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh log ln lg exp sqrt max min gcd lcm mod
    and or pi inf infty infinity
    """.split()  # noqa: SIM905
)
_MATRICES = {"matrix", "pmatrix", "bmatrix", "array", "cc", "ccc"}
_NUMBER_WORD = rf"(?:{'|'.join(VALUES)})\b"
_NO_WORD = "|".join(sorted({*FUNCTIONS, *SCALES, *PARTS, "a", "an", "minus", "negative"}, key=len, reverse=True))
_WORD = (
    rf"(?:(?!(?i:{_NO_WORD}|{_NUMBER_WORD})(?![A-Za-z'\u2019]))[A-Za-z][A-Za-z'\u2019-]+|I(?=\s)"
    rf"|[Aa]n?(?=\s(?![=:]|[A-J]\b|(?:{'|'.join([*SCALES, *PARTS])})\b)))"
)
# Each \(...\) ends at the first \): else so many of them could be cut in as many ways as there are subsets.
_FORMULA = r"(?:\$[^$]+\$|\\\((?:(?!\\\)).)+\\\))"
_IS = r"(?:is|are|be|equals?|has|have|gets|needs|was|were)"
_NAME = (
    rf"(?:(?:{_FORMULA}|[\d.,]*\d)(?=[\s,].{{0,80}}?(?<!\()\b(?:{_IS}|in)\b)"
    rf"|(?<![A-Za-z\\])[A-Za-z](?=\s+{_IS}\b)|(?<=[a-z]\s)(?:{_NUMBER_WORD}|and(?=\s.{{0,80}}?\b{_IS}\b)))"
)
_VALUE = rf"(?=[-+]?\s?[\d$\\({{\[.|\u20ac\u00a3\u00a5]|(?i:{_NUMBER_WORD})|[A-Za-z](?![A-Za-z]))"
_LEAD = re.compile(rf"(?:(?:{_WORD}|{_NAME}),?:?\s)*(?:[A-Za-z]{{2,}}\s?[:=]|[:=])?\s?{_VALUE}")
_TAIL = re.compile(rf"(?<=\S)(?:[\s,]+\(?(?:{_WORD}|(?:(?<=on\s)|(?<=of\s)|(?<=for\s)){_NUMBER_WORD})\)?)+$")
# Chinese words around a value, and those of them that may change it.
_HAN = re.compile(r"^[\u4e00-\u9fff:,]+\s*(?=[-+\d$\\(])|(?<=[\d})$])\s*[\u4e00-\u9fff]+$")
_HAN_CHANGING = re.compile(
    "[\u4e0d\u975e\u7ea6\u534a\u500d\u4e07\u4ebf\u767e\u5341\u8d1f\u4ee5\u591a\u5c11\u4f59\u5206]|\u5343(?![\u7c73\u514b])"
)
# Behind a value these go on with it; before it they may tell what it is.
_CHANGING_BEHIND = set("over off errors gross score denominator factorials pis lakhs googols quintillions".split())  # noqa: SIM905
# Before a value these relate it to something else: "digits in 42", but "a total of 42", "equal to 42".
_RELATED = re.compile(
    r"(?i)\b(?:in|of|to|from|than|with|over|under|above|below|after|since|near|between|root|double|triple"
    r"|step|(?:divided|multiplied|divisible) by|before\b.*)$"
)
_UNRELATED = re.compile(
    r"(?i)(?:\b(?:an? (?:\w+ )?(?!multiple|divisor|factor|power|root|square|cube|part)\w+ of"
    r"|(?:equals?|equal|comes|amounts|simplifies|reduces) to|given by|year)|^in)$"
)

# What the parser would drop or read as something else, unless the right answer has it too: primes, bases, two numbers
# side by side, I for i, infinities, a programmer's 1 % 0 and 0x1F, logarithms to base 0 or 1.
_MISREAD = [
    re.compile(r"[\d)}]\s*(?:'|\\prime)"),
    re.compile(r"(?<![A-Za-z}\\_])(?<!log)\d+\s*_"),
    re.compile(r"(?<![\d_^])(?<!frac )\d+\s+\d|(?<![A-Za-z\\])I(?![A-Za-z])"),
    re.compile(r"\\(?:infty|phantom|equiv|ne|[lc]?dots)(?![a-z])|\.\.\.|(?<![A-Za-z\\])(?:inf|oo|zoo|nan)(?![A-Za-z])"),
    re.compile(r"%|(?<![\w.])0[xb][0-9A-Fa-f]|\\log_\s*\{?\s*[01]\s*(?:\}|(?!\d))"),
]
_EQUALS = re.compile(r"(?<![<>!:\\=])=(?!=)")
_TRIGONOMETRY = re.compile(r"(?<!arc)(?:sin|cos|tan|cot|sec|csc)")
_END = re.compile(r"[(\[]\s*-?\\infty\s*(?=,)|,\s*\+?\\infty\s*(?:\\right\s*)?[)\]]")


class Reading(NamedTuple):
    """Hold the value of an answer, and its unit. The value may be given in several equal ways (6 \\cdot 7 = 42)."""

    values: tuple[str, ...]
    unit: str | None


def read(text: str, right: str) -> Reading | None:
    """Read the value of a bare `text`; None where other text may change it.

    What the right answer has too (its letters, commands, "=") is not a reason to refuse.
    """
    letters = "".join(re.findall(r"(?<!\\)\b[A-Za-z]\b|(?<=\d)[A-Za-z]", COMMAND.sub(" ", right)))
    if (around := "".join(_HAN.findall(text))) and not _HAN_CHANGING.search(around):
        text = _HAN.sub("", text)
    text = without_lead(text)
    text = bare(_LETTER_AFTER.sub("", _LETTER.sub("", text, count=1)))
    if "mod" not in right:
        text = _MODULO.sub(r"\1\2", text)
    values = (text,)
    if not _EQUALS.search(right):
        if named := _POINT_NAME.match(text):
            names = re.findall("[a-z]", named[2])
            if names != sorted({*names}):  # (y, x) is another order
                return None
            text = named[1] + text[named.end() :]
        values = _sides(text)
        if values is None:
            return None
    parts = [without_unit(bare(value), letters) for value in values]
    units = {part[1] for part in parts if part and part[1]}
    if None in parts or len(units) > 1:  # $42 = 42 cents
        return None
    values = tuple(part[0] for part in parts if part)
    if "(" in values[-1] and (twice := _TWICE.fullmatch(values[-1])):
        values = (*values[:-1], twice[1], twice[2])
    if all(value and (number(value) or not _changed(value, right, letters)) for value in values):
        return Reading(values, parts[-1][1] if parts[-1] else None)
    return None


def without_lead(text: str) -> str:
    """Return the text without the words before its value. It stays if one of them may change it."""
    lead = _LEAD.match(text)
    if lead is None:
        return text
    words, value = re.sub(_FORMULA, " ", lead[0]).strip(" :=,"), bare(text[lead.end() :])
    related = _RELATED.search(words) and not _UNRELATED.search(words) and not re.match(r"[(\[]|\\(?!\$)", value)
    return text if related or (words and changes(words)) else value


def said(text: str) -> str:
    """Return what a sentence says of its subject. Of "The graph is an ellipse" it is the ellipse."""
    found = list(_SAYS.finditer(text))
    return text if not found or changes(text[: found[-1].end()]) else text[found[-1].end() :]


def without_unit(text: str, letters: str = "") -> tuple[str, str | None] | None:
    """Return a value without the unit and the words behind it, and the unit. None where these may change it."""
    unit = None
    if number(text) is None and (tail := _TAIL.search(text)):
        words = re.findall(r"[A-Za-z'\u2019-]+", tail[0])
        for count in range(min(4, len(words)), 0, -1):
            if words[:count] == ["in"] != words:  # 42 in total
                break
            if unit := known_unit(" ".join(words[:count]), letters):
                words = words[count:]
                break
        if words and (changes(" ".join(words)) or not _CHANGING_BEHIND.isdisjoint(words)):
            return None
        if unit is None and re.fullmatch(r"[a-z]{2,}(?<![su])s", words[0]):  # things that are counted
            unit = words[0]
        text = text[: tail.start()]
    value, sign = split_unit(bare(text), letters)
    if sign and unit and sign != unit:
        return None
    unit = unit or sign
    # 30 degrees in sin 30 degrees are those of the angle, not of its sine.
    return (text, None) if unit == "degree" and _TRIGONOMETRY.search(value) else (bare(value), unit)


_SAYS = re.compile(r"(?:\b(?:is|be)|:)\s+")
_TWICE = re.compile(r"(.+?)\s+\(([a-z -]+)\)")  # 42 (forty-two)
# The letter of a choice beside its value: (B) 7, B. 7, 7 (B).
_LETTER = re.compile(r"^(?:\(?[A-J]\)\s*[:.]?\s+|[A-J][.:]\s+)(?=\S)")
_LETTER_AFTER = re.compile(r"\s+\((?:option |choice )?[A-J]\)$")
_DECIMAL = re.compile(r"(?:^|=)\s*\$?\s*-?[\d.,]+\s*$")
_MODULO = re.compile(r"^(\$?)[A-Za-z]\s*\\equiv\s*(.+?)\s*\\pmod\s*\{?[0-9]+\}?(?=\$?$)")  # N \\equiv 809 \\pmod{1000}
_POINT_NAME = re.compile(r"^(\$?)\(([a-z](?:, ?[a-z])+)\)\s*=\s*")  # (x, y) = (2, 6) or (6, 2)


def _sides(text: str) -> tuple[str, ...] | None:
    """Return the values on the sides of a chain of equations.

    The others are names, such as x, f(2), m+n or "area".
    """
    text, about, _ = text.partition("\\approx")
    if about and _DECIMAL.search(text):  # 42 \approx 43 says two things; \frac13 \approx 0.33 one
        return None
    if re.search(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])|,.*=", text):  # x = 1 or x = 2 is a list
        return (text,)
    sides = [side.strip() for side in _split(text)]
    if len(sides) == 1:
        return (text,)
    if len(sides) == 2 and _is_name(sides[1]) and not _is_name(sides[0]):  # 42 = x
        sides.reverse()
    *first, last = sides
    if any(not side for side in sides) or "\\not" in text or any(changes(COMMAND.sub(" ", side)) for side in first):
        return None
    return (*(side for side in first if not _is_name(side)), last)


def _split(text: str) -> list[str]:
    """Split a text at every "=" outside braces (inside, it belongs to a sum)."""
    cuts = [match.start() for match in _EQUALS.finditer(text)]
    cuts = [cut for cut in cuts if text.count("{", 0, cut) == text.count("}", 0, cut)]
    return [text[start:stop] for start, stop in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(text)], strict=True)]


def _is_name(side: str) -> bool:
    if number(split_unit(bare(side))[0]):  # 42 cm
        return False
    letters = COMMAND.sub(
        lambda match: " x " if match[1].removeprefix("var").casefold() in _GREEK else " ", re.sub(r"\$", "", side)
    )
    if re.fullmatch(r"[^A-Za-z]*[xyz][^A-Za-z]*", letters) and re.search(r"[-+*/^!|]|\\(?:sqrt|frac)", side):
        return False  # -x = 42 and x^2 = 42 do not say that x is 42
    return not re.search(r"[<>]|\\(?:ne|le|ge)", side) and bool(
        re.search(r"(?<!\d)[A-Za-df-hj-z]", letters) or re.search(r"[A-Za-z]{2}", letters)
    )


_GREEK = set(  # all but pi, which is a number
    """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega
    angle""".split()  # noqa: SIM905
)


def _changed(value: str, right: str, letters: str) -> bool:
    """Check for text that the parser would drop, or take for a product of letters."""
    if any(pattern.search(_END.sub("", value)) and not pattern.search(right) for pattern in _MISREAD):
        return True
    if max(itertools.accumulate((sign in "([{") - (sign in ")]}") for sign in value)) > DEEPEST:
        return True
    known = {*FUNCTIONS, *_MATRICES, *PROSE.findall(COMMAND.sub(" ", right))}
    words = PROSE.findall(COMMAND.sub(" ", value))
    return any(known.isdisjoint((word, word.casefold())) and not set(word) <= {*letters} for word in words)
