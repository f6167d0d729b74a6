r"""Tell whether a box is an answer. It is one unless arithmetic touches it, or words take it back."""

from __future__ import annotations

import re
from typing import NamedTuple

from .answers import without_unit
from .lexicon import P, in_english
from .notation import closing_brace, plain
from .quantities import SCALES

# Of the characters of an answer that is looked at; the longest of MATH-500 has 159.
LONGEST = 500


class Statement(NamedTuple):
    """Hold the answers of a text's last statement, mostly one.

    After an "or" `each` must be right. `scaled` is another way to read one: "8 dozen" for 8 in a box before "dozen".
    """

    answers: tuple[str, ...]
    each: bool = False
    scaled: str | None = None


# ---- arithmetic


def _touched(before: str, after: str) -> bool:
    """Find arithmetic that touches a box, or other entries of a tuple."""
    line = P.bullet.sub("", before.rpartition("\n")[2])
    rest = after.partition("\n")[0]
    inside = len(P.delimiter.findall(before)) % 2 == 1  # of a formula, where a letter is a variable
    return bool(
        P.touches_before.search(line)
        or P.touches_after.match(rest)
        or (inside and P.in_formula_before.search(P.delimiter.split(line)[-1]))
        or (inside and P.in_formula_after.match(P.delimiter.split(rest)[0]))
        or ("\\equiv" not in line and re.match(r"[\s$]*\\b?mod\b", rest))
        or (rest.startswith("!") and line.rstrip().endswith("="))
        or (re.match(r"\s*(?:\\right)?\s*[)\]]", rest) and P.of_a_tuple.search(line))
        or (re.match(r"\s*,", rest) and re.search(r"(?<!\\)[(\[][^()\[\]]*$", line))
    )


# ---- words


def read_boxes(text: str, last: int) -> Statement:
    """Read the last box and those that stand with it. There is nothing where it is not an answer."""
    box = box_at(text, last)
    if box is None:
        return Statement(())
    begin, end, content = box
    contents, each = [content], False
    for mark in reversed(list(P.box.finditer(text, max(0, begin - LONGEST), begin))):
        other = box_at(text, mark.start())
        if other is None or other[1] > begin:
            break
        between = text[other[1] : begin]
        if not P.between.fullmatch(between):
            break
        each |= re.search(r"\bor\b|^[\s$]*[,;]?[\s$]*$", between) is not None
        begin, contents = other[0], [other[2], *contents]
    before = in_english(text[max(0, begin - LONGEST) : begin].rpartition("\n\n")[2])
    after = in_english(text[end : end + LONGEST])
    behind = P.box_ends.sub("", after, count=1)
    if (
        P.taken_back.match(after)
        or P.retract.match(re.sub(r"\\text\{([^{}]*)\}", r"\1", behind))
        or P.govern.search(P.clause.split(P.delimiter.sub(" ", before))[-1])
        or P.mistaken.search(before)
        or (P.supposed.search(before) and re.search(r"[.!?]\s+\S", after))
        or _touched(P.prose_command.sub(" word ", before), P.prose_command.sub(" word ", after))
    ):
        return Statement(())
    return _with_unit(Statement((*contents[:-1], content), each), before, behind)


def box_at(text: str, start: int) -> tuple[int, int, str] | None:
    """Return the begin, end and content of the box at `start`. None where it is not closed."""
    mark = P.box.match(text, start)
    opening = mark.end() if mark else start
    end = closing_brace(text, opening) if text.startswith("{", opening) else None
    if end:
        return start, end + 1, text[opening + 1 : end]
    bare = P.unbraced.match(text, opening)
    return (start, bare.end(), bare[0]) if bare else None


def _with_unit(statement: Statement, before: str, after: str) -> Statement:
    """Add the unit or scale next to the last box: a currency, "cm", "%", "million"."""
    *others, content = statement.answers
    money = re.search(r"(\\\$|[\u20ac\u00a3\u00a5])\s*$", before)
    if money:
        return statement._replace(answers=(*others, f"{money[1]}{content}"))
    unit = plain(P.unit_end.split(after, maxsplit=1)[0]).replace("$", " ")[:40].strip(" *_~")
    word = unit.partition(" ")[0].casefold()
    if word in SCALES:
        return statement._replace(scaled=f"{content} {word}")
    with_unit = f"{content} {unit}" if unit[:1].isalpha() else f"{content}{unit}"
    value, name = without_unit(with_unit) or ("", None)
    if name and value == content and not content.isalpha():
        return statement._replace(answers=(*others, with_unit))
    return statement
