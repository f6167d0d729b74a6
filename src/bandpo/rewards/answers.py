r"""Read the value and the unit of an answer. Words that leave the value as it is are removed.

Words before and behind a value are dropped unless one of them may change it (`changes`). Where anything else stands
beside it that the parser would drop, or take for a product of letters, the answer is refused.
"""

from __future__ import annotations

import itertools
import re

from .lexicon import P
from .notation import bare
from .quantities import changes, number, split_unit, unit_name

# What the parser would drop or read as something else, unless the right answer has it too: primes, bases, two numbers
# side by side, I for i, infinities, a programmer's 1 % 0 and 0x1F, logarithms to base 0 or 1.
_MISREAD = [
    re.compile(r"[\d)}]\s*(?:'|\\prime)"),
    re.compile(r"(?<![A-Za-z}\\_])(?<!log)\d+\s*_"),
    re.compile(r"(?<![\d_^])(?<!frac )\d+\s+\d|(?<![A-Za-z\\])I(?![A-Za-z])"),
    re.compile(
        r"\\(?:infty|phantom|equiv|ne|[lc]?dots)(?![a-z])|\.\.\.|(?<![A-Za-z\\])(?:inf|oo|zoo|nan)(?![A-Za-z])"
    ),
    re.compile(r"%|(?<![\w.])0[xb][0-9A-Fa-f]|\\log_\s*\{?\s*[01]\s*(?:\}|(?!\d))"),
]


def read(text: str, right: str) -> tuple[tuple[str, ...], str | None] | None:
    """Read the value of a bare `text` in English, and its unit.

    It is None where other text may change the value.

    The value may be given in several equal ways (6 \\cdot 7 = 42).

    What the right answer has too (its letters, commands, "=") is not a reason to refuse.
    """
    letters = "".join(re.findall(r"(?<!\\)\b[A-Za-z]\b|(?<=\d)[A-Za-z]", P.command.sub(" ", right)))
    text = bare(P.beside.sub("", P.modulo.sub(r"\1", without_lead(text))))
    sides = [text] if P.equals.search(right) else _sides(text)
    parts = [without_unit(bare(side), letters) or ("", None) for side in sides]
    values = tuple(value for value, _ in parts)
    readable = all(value and (number(value) or not _changed(value, right, letters)) for value in values)
    one_unit = len({unit for _, unit in parts if unit}) <= 1  # not $42 = 42 cents
    return (values, parts[-1][1]) if readable and one_unit else None


def without_lead(text: str) -> str:
    """Return the text without the words before its value. It stays if one of them may change it."""
    lead = P.lead.match(text)
    if not lead:
        return text
    words = P.formula.sub(" ", lead[0]).strip(" :=,")
    value = bare(text[lead.end() :])
    related = (
        P.related.search(words)
        and not P.unrelated.search(words)
        and not re.match(r"[(\[]|\\(?!\$)", value)
    )
    return text if related or changes(words) else value


def predicate(text: str) -> str:
    """Return what a sentence says of its subject. Of "The graph is an ellipse" it is the ellipse."""
    verbs = list(P.says.finditer(text))
    return text if not verbs or changes(text[: verbs[-1].end()]) else text[verbs[-1].end() :]


def without_unit(text: str, letters: str = "") -> tuple[str, str | None] | None:
    """Return a value without the unit and the words behind it, and the unit. None where these may change it."""
    unit = None
    tail = P.tail.search(text) if number(text) is None else None
    if tail:
        words = re.findall(r"[A-Za-z'\u2019-]+", tail[0])
        units = {
            count: unit_name(" ".join(words[:count]), letters) for count in range(min(5, len(words) + 1))
        }
        count = max((count for count, unit in units.items() if unit), default=0)
        others = " ".join(words[count:])
        if changes(others) or P.changing_behind.search(others):
            return None
        counted = re.fullmatch(r"[a-z]{2,}(?<![su])s", words[0])  # things
        unit = units[count] or (counted and counted[0])
        text = text[: tail.start()]
    value, sign = split_unit(bare(text), letters)
    # 30 degrees in sin 30 degrees are those of the angle, not of its sine.
    return (
        (text, None) if sign == "degree" and P.trigonometry.search(value) else (bare(value), sign or unit)
    )


def _sides(text: str) -> list[str]:
    """Return the values on the sides of a chain of equations.

    Other sides are names, such as x, f(2) or "area".

    It is [""] where a side may change the value.
    """
    text, about, _ = text.partition("\\approx")
    sides = [side.strip() for side in P.equals.split(text)]
    point = P.point.match(text)
    if point:  # (x, y) = (2, 6); (y, x) is another order
        names = re.findall("[a-z]", point[1])
        return sides[1:] if names == sorted({*names}) else [""]
    if len(sides) == 1 or P.list_of_equations.search(text):  # x = 1 or x = 2
        return [""] if about and P.decimal.search(text) else [text]  # 42 \approx 43 says two things
    *first, last = sides
    if "" in sides or "\\not" in text or any(changes(P.command.sub(" ", side)) for side in first):
        return [""]
    if len(sides) == 2 and _is_name(last) and not _is_name(first[0]):  # 42 = x
        return first
    return [*(side for side in first if not _is_name(side)), last]


def _is_name(side: str) -> bool:
    other = number(split_unit(bare(side))[0]) or re.search(r"[<>]|\\(?:ne|le|ge)", side)  # 42 cm
    letters = P.command.sub(
        lambda match: " x " if P.greek.fullmatch(match[1].removeprefix("var").casefold()) else " ",
        side,
    )
    # -x = 42 and x^2 = 42 do not say that x is 42.
    of_x = re.fullmatch(r"[^A-Za-z]*[xyz][^A-Za-z]*", letters) and re.search(
        r"[-+*/^!|]|\\(?:sqrt|frac)", side
    )
    return not (other or of_x) and re.search(r"(?<!\d)[A-Za-df-hj-z]|[A-Za-z]{2}", letters) is not None


def _changed(value: str, right: str, letters: str) -> bool:
    """Check for text that the parser would drop, or take for a product of letters."""
    # To read brackets within more than 12 brackets takes a parser more time than it is worth.
    misread = any(
        pattern.search(P.infinite_end.sub("", value)) and not pattern.search(right)
        for pattern in _MISREAD
    )
    depths = itertools.accumulate((sign in "([{") - (sign in ")]}") for sign in value)
    if misread or max(depths) > 12:
        return True
    words = {*P.prose.findall(P.command.sub(" ", value))} - {*P.prose.findall(P.command.sub(" ", right))}
    return any(
        not P.formula_word.fullmatch(word.casefold()) and not set(word) <= {*letters} for word in words
    )
