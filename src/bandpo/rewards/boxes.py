r"""Tell whether a box is an answer. What wraps it, what computes with it and the words around it decide."""

from __future__ import annotations

import re
from typing import NamedTuple

from .answers import without_unit
from .notation import STYLE, closing_brace, plain
from .quantities import PARTS, SCALES

# Of the characters of an answer that is looked at; the longest of MATH-500 has 159.
LONGEST = 500
LABEL = re.compile(r"(?P<label>[A-Za-z][A-Za-z' ]{0,40}?)[*_`\s]*[:\uff1a][*_`\s]*")


class Found(NamedTuple):
    """Hold the answers of a text's last statement, mostly one. After an "or" `each` must be right."""

    answers: tuple[str, ...]
    each: bool = False


_BULLET = re.compile(r"^\s*(?:[-*+>]|\(?(?:[a-z]|[ivx]+|\d+)[.)])\s+")

_BOX = re.compile(r"(?:(?<!\\)\\)?\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
_UNBRACED = re.compile(r"[-+]?\d[\d.,]*(?<![.,])|\\[A-Za-z]+(?:\{[^{}]*\})*|[A-Za-z]")  # \boxed 7, \boxed\pi
_BETWEEN = re.compile(
    r"(?:[\s$,;&*]|\\[()\[\],;: ]|\\\\|\\q?quad|\\text\{[\s,]*(?:and|or)?[\s,]*\}|\b(?:and|or)\b"
    r"|\b[a-z](?:_\{?\w\}?)?\s*=)*+"
)
_DELIMITER = re.compile(r"(?<!\\)\$\$?|\\[()\[\]]")
# What ends the formula or the words that a box stands in: relations, commas, words, \text{}, the end of a line.
_TEXT = r"\\(?:text\w*|mathrm|mbox|[hv]space|tag|operatorname|begin|end)\*?\s*\{[^{}]*\}"
_WORD = r"(?<![A-Za-z\\])[A-Za-z]{2,}(?:['\u2019][a-z]+)?|(?<=\w\s)a(?=\s)"
# 3:2 is a ratio, and 1,000 a number; "Step 3: " ends with a colon.
_COLON = r"(?<![\s\\{\d]):(?=[\s*]|$)|(?<=\d):(?=\s)|(?<=[A-Za-z*)\u4e00-\u9fff]):"
_EQUALS = r"(?<=\s)=>|(?<![<>])(?<!\s!)(?<!\\not)=\s*\+?"
_CUT = re.compile(
    rf"{_EQUALS}|(?<![\\{{])[,;](?!\d)|{_COLON}|[\u00d7\n&]\s*\+?|\\\\|</?\w+>|[\u3000-\u9fff\uff00-\uffef]"
    rf"|{_TEXT}"
    rf"|(?:{_WORD})(?:[.:)]|\s+[-\u2013\u2014](?=\s))?|(?:\\[)\]]|\$)\s+(?=\$|\\[(\[])|[.?](?!\.?\d)"
    r"|\\(?:equiv|approx|(?:prop)?to|sim(?:eq)?|in|therefore|because|implies|iff|\w*[rR]ightarrow|q?quad)(?![A-Za-z])"
)
_STYLED = (
    r"boxed|fbox|text\w*|math(?:bf|rm|it|sf)|boldsymbol|bm|underline|mbox|(?:text)?color\{\w+\}|(?:display|text)style"
)
_BEFORE = re.compile(
    rf"(?:[\s$*_`\"\u201c({{]|~(?!~)|\\[()\[\],;:! ]|\\left[.(]?"
    rf"|{STYLE}|\\(?:{_STYLED})\{{|\\\$|[\u20ac\u00a3\u00a5])*+"
)
_POWER = r"\^\s*\{?\s*(?:\\(?:circ|degree|prime)\s*)+\}?"
_UNIT = r"\{?[\s~]*[ghmsACFJKLNTVW]\b\}?(?:\^\{?-?\d\}?)?|\\(?:AA|mu|Omega|degree)(?![A-Za-z])"
_AFTER = re.compile(
    rf"(?:[\s$*_`\"\u201d)}}%\u00b0]|~(?!~)|\\[()\[\],;:! %]|\\right[.)]?|{STYLE}|{_POWER}"
    rf"|\{{\s*\}}|\\pmod\s*\{{?\w+\}}?"
    rf"|(?<=[\s~$])(?:{_UNIT})|/\s*(?:{_UNIT}|(?=[$\\)]))"
    r"|(?:[(\[{/\u2013\u2014]|(?:\[\d+\]|\d*)-|\\[dt]?frac\{)\s*$)*+"
)
_CLOSED = re.compile(r"(?:[\s$*_\"'\u201d)}]|\\[)\]])*")
# Words that govern a box which they stand directly before, in its clause.
_FILLERS = r"(?:\s+(?:the|an?|equal|to|be|being|exactly|simply|just|value|number|answer|necessarily|really|quite))*\s*$"
_PART = "|".join(PARTS)
_GOVERN = re.compile(
    r"(?i)(?:(?:\b(?:not|never|nor|neither|cannot|without|except|than|unlike|excluding|half|twice|thrice|double|triple"
    r"|minus|plus|times|negative|maybe|perhaps|possibly|probably|presumably|guess|between|(?:all|(?:any)?thing|one) but"
    r"|(?:digits?|terms?|sum|zeros) in|(?:divided|multiplied) by|instead of|no longer|number (?:after|before)"
    r"|(?:might|may|could) be"
    rf"|(?:{_PART}|percent|squares?|cubes?|(?:square|cube|th) root|multiples?|divisors?|reciprocal|inverse"
    r"|opposite|negative|successor|digits|digit sum|%) of|(?:add|subtract) [\d$\\]+ (?:to|from))"
    rf"|n['\u2019]t){_FILLERS})"
    r"|(?:\b(?:do|does|can)(?: not|n['\u2019]t)|\b(?:cannot|doubt|might|may|could)) (?:that|think|believe|know|expect"
    r"|guess|say|argue)\b|^\s*(?:suppose|assume|unless|whether)\b|\\(?:neq?|not)\s*$"
    r"|\b(?:wrong|incorrect|false|invalid) (?:final )?answer\b|(?:\u4e0d\u662f|\u4e0d\u7b49\u4e8e|\u5e76\u975e)\s*$"
)
_CLAUSE = re.compile(r"[.;:!?,\n]\s")
# Words that take a box back which they stand directly behind.
_BE = r"(?:\w+\s+)?(?:is|was|are|were|seems|looks|would be|must be)\s+(?:\w+\s+){0,2}?"
_RETRACT = re.compile(
    rf"(?i)[\s*_]*\(?(?:{_BE}not\b(?!\s*[\d$\\])|(?:{_BE})?(?:not (?:correct|right|the|an? answer|valid)|wrong"
    r"|incorrect|false|invalid|mistaken|impossible|extraneous|excluded|rejected|discarded|ruled out"
    r"|too (?:small|big|large|high|low|many|much|few))\b"
    r"|(?:\w+\s+)?(?:(?:isn|wasn|aren|can|doesn)['\u2019]t|cannot|fails|does not)"
    r" (?:be )?(?:right|correct|the|an? answer|valid|possible|work|satisfy|hold|count)\b"
    rf"|(?<!\()or\b(?!\s+(?:equivalently|in other|about|approximately))"
    r"|(?:squared|cubed|doubled|tripled|halved|factorial|-?ish|{_PART})\b|\?"
    r"|(?:plus|minus|times|choose|over|mod|point|(?:divided|multiplied|increased|reduced) by|added to"
    r"|to the power(?: of)?|(?:more|less)(?: than)?"
    r"|\\?%[\s$\\)]*of)\s+[\d$\\])"
)
# Behind any statement these take it back, also in the next line: "That is wrong", "Actually, 43".
_VALUE = r"(?:(?:it|that)(?:['\u2019]s| is| could also be) )?\(?(?:[\d$\\]|(?-i:[A-HJ])\b)"
TAKEN_BACK = re.compile(
    rf"(?i)[ \t$*.]*+(?:or|also)\s+{_VALUE}|(?:[\s$*_.,;)}}\]\\]|</\w+>)*+(?:"
    r"(?:(?:hmm|wait|no|but|actually)[,.]*\s+)*(?:(?:that|this|which|it)(?:['\u2019]s| is)|is)"
    rf" (?:not (?:right|correct)|wrong|incorrect)\b|(?:but )?(?:it|that) (?:could|might|may) (?:also )?be\b"
    rf"|(?:(?:no,? wait|wait|hmm|actually|correction|sorry)\b[,:.]*\s+|(?:no|but)[,.]+\s+)+"
    rf"(?:(?:no|but)[,.]*\s+)?{_VALUE})"
)
_UNIT_END = re.compile(r"[.,;:!?\n=<>&()]|\\\\|\\(?:implies|[rR]ight\w*|approx|q?quad|end)")


def read_boxes(text: str, last: int) -> Found:
    """Read the last box and those that stand with it. There is nothing where it is not an answer."""
    box = box_at(text, last)
    if box is None:
        return Found(())
    (begin, end, content), contents, each = box, [box[2]], False
    for mark in reversed(list(_BOX.finditer(text, max(0, begin - LONGEST), begin))):
        other = box_at(text, mark.start())
        if other is None or other[1] > begin or not _BETWEEN.fullmatch(between := text[other[1] : begin]):
            break
        each |= re.search(r"\bor\b|^[\s$]*[,;]?[\s$]*$", between) is not None
        begin, contents = other[0], [other[2], *contents]
    before = text[max(0, begin - 4 * LONGEST) : begin].rpartition("\n\n")[2]
    after = text[end : end + 4 * LONGEST]
    clause = _CLAUSE.split(_DELIMITER.sub(" ", before[-LONGEST:]))[-1]
    after_it = after[_CLOSED.match(after).end() :]  # pyright: ignore[reportOptionalMemberAccess]
    retracted = TAKEN_BACK.match(after) or _RETRACT.match(re.sub(r"\\text\{([^{}]*)\}", r"\1", after_it))
    if retracted or _GOVERN.search(clause) or _touched(before, after):
        return Found(())
    return Found((*contents[:-1], _with_unit(content, before, after_it)), each)


def _touched(before: str, after: str) -> bool:
    """Find text that touches a box. Spaces, brackets, styles, units and other entries of a tuple do not count."""
    *_, cut = (None, *_CUT.finditer(line := _BULLET.sub("", before.rpartition("\n")[2])))
    if not cut or cut[0][-1].isalpha():
        after = re.sub(r"^((?:\\[)\]]|[$*])*)!(?=\s|$)", r"\1", after)
    if cut and cut[0] == "\\equiv":
        after = re.sub(r"^([\s}]*)\\b?mod\b.*", r"\1", after)
    left, end = line[cut.end() if cut else 0 :], _CUT.search(after)
    right = after[: end.start()] if end else after
    if cut and cut[0] == ",":
        listed = re.match(r"\s*(?:\\right)?\s*[)\]]", right)
    else:
        listed = end and end[0] == "," and re.search(r"(?<!\\)\(", left)
    return bool(listed) or not (_BEFORE.fullmatch(left) and _AFTER.fullmatch(right))


def box_at(text: str, start: int) -> tuple[int, int, str] | None:
    """Return the begin, end and content of the box at `start`. None where it is not closed."""
    mark = _BOX.match(text, start)
    opening = mark.end() if mark else start
    if text[opening : opening + 1] == "{":
        end = closing_brace(text, opening)
        return (start, end + 1, text[opening + 1 : end]) if end is not None else None
    found = _UNBRACED.match(text, opening)
    return (start, found.end(), found[0]) if found else None


def _with_unit(content: str, before: str, after: str) -> str:
    """Add the unit or scale next to the box: a currency, "cm", "%", "million"."""
    if money := re.search(r"(\\\$|[\u20ac\u00a3\u00a5])\s*$", before):
        return f"{money[1]}{content}"
    unit = plain(_UNIT_END.split(after, maxsplit=1)[0]).replace("$", " ")[:40].strip(" *_~")
    word = unit.split()[0].casefold() if unit else ""
    if word in SCALES:
        return f"{content} {word}"
    with_unit = f"{content} {unit}" if unit[:1].isalpha() else f"{content}{unit}"
    value, name = without_unit(with_unit) or ("", None)
    return with_unit if name and value == content else content
