r"""Tell whether a box is an answer: what wraps it, what computes with it, which words govern it or take it back."""

from __future__ import annotations

import re
from typing import NamedTuple

from .answers import without_unit
from .notation import STYLE, closing_brace, plain
from .quantities import PARTS, SCALES

# Of the characters of an answer that is looked at; the longest of MATH-500 has 159.
LONGEST = 500
PROSE = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
COMMAND = re.compile(r"\\[A-Za-z]+")
LABEL = re.compile(r"(?P<label>[A-Za-z][A-Za-z' ]{0,40}?)[*_`\s]*[:\uff1a][*_`\s]*")


class Found(NamedTuple):
    """The answers that stand together as a text's last statement, mostly one; `any` with "or" between them."""

    answers: tuple[str, ...]
    any: bool = False


_BULLET = re.compile(r"^\s*(?:[-*+>]|\d+[.)])\s+")

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
_UNBRACED = re.compile(r"[-+]?\d[\d.,]*(?<![.,])|\\[A-Za-z]+(?:\{[^{}]*\})*|[A-Za-z]")  # \boxed 7, \boxed\pi
_BETWEEN = re.compile(
    r"(?:[\s$,;&*]|\\[()\[\],;: ]|\\\\|\\q?quad|\\text\{[\s,]*(?:and|or)?[\s,]*\}|\b(?:and|or)\b"
    r"|\b[a-z](?:_\{?\w\}?)?\s*=)*"
)
_DELIMITER = re.compile(r"\\\$|\$\$?|\\[()\[\]]|\\(?:begin|end)\{(?:align|equation|gather|multline|eqnarray)\w*\*?\}")
# In a formula these change nothing: spaces, sizes, styles.
_SPACE = (
    r"(?:\s|~|&|\{\s*\}|\\[,;:! ]"
    rf"|{STYLE}|\\(?:left|right)(?![A-Za-z]))"
)
_SPACES_BEFORE, _SPACES_AFTER = re.compile(rf"{_SPACE}+\Z"), re.compile(rf"{_SPACE}*")
_STYLE = (
    r"boxed|(?:display|text)style|fbox|text\w*|math(?:bf|rm|it|sf)|boldsymbol|bm|underline|mbox|(?:text)?color\{\w+\}"
)
_WRAPPERS = [
    (re.compile(rf"(?:\\(?:{_STYLE})|(?<![A-Za-z}}\]^_)]))\{{\Z"), re.compile(r"\}")),
    (re.compile(r"(?<!\\)\(\Z"), re.compile(r"\)")),
    (re.compile(r"[\"'\u201c]\Z"), re.compile(r"[\"'\u201d]")),
    (re.compile(r"(?<!\w)(?:\*\*|__|[*_])\Z"), re.compile(r"\*\*|__|[*_]|")),
    (re.compile(r"\\[(\[]\Z|(?<!\\)\$\$?\Z"), re.compile(r"\\[)\]]|\$\$?")),
]
# What computes with what stands beside it, in a formula and, without a space between, in text.
_OPERATORS = (
    r"\\(?:cdot|times|div|pm|mp|[dtc]?frac|sqrt(?:\[\w+\])?|binom|sum|prod|int|lim|log|ln|lg|exp|gcd|lcm|max|min|bmod"
    r"|over|choose|(?:arc)?(?:sin|cos|tan|cot|sec|csc)|pi|alpha|beta|theta|phi|lambda|lfloor|lceil|lvert)"
)
_BEFORE = re.compile(
    rf"(?:[-*/^_!|)\]}}{{\d<>]|(?<![=&\s])\s*\+|(?:(?<!\\)[(\[]|\\\{{)[^()\[\]{{}}$=]*,|(?<!\\)[(\[]|(?<![A-Za-z\\])[A-Za-z]|\\(?:[lg]eq?(?:slant)?|[lg]t)|{_OPERATORS})\Z"
)
_UNIT = r"(?:\\(?:text|mathrm|operatorname)|[{\s~]*[A-Za-z]{2}|(?:\$|\\[)\]])\s*[A-Za-z])"
_AFTER = re.compile(
    rf"\^(?!\s*\{{?\s*\\(?:circ|degree|prime))|/(?!\s*{_UNIT})|[-+*_!\d|]|\{{(?![\s~]*[A-Za-z])|\.\d|[A-Za-z](?![A-Za-z])"
    rf"|\((?!\s*(?:\\text|\\mathrm|[A-Za-z]{{2}}))|\\(?:neq?|not)(?![A-Za-z])|{_OPERATORS}(?![A-Za-z]|\{{\\(?:text|mathrm))"
)
_UNIT_LETTERS = {*"ghmsACFJKLNTVW"}
_WORDS = re.compile(r"\\(?:text\w*|mathrm|mbox|[hv]space|color|tag|operatorname|begin)\*?\s*\{[^{}]*\}\Z")
_BEFORE_IN_TEXT = re.compile(
    rf"[-+*/^_\d{{]\Z|(?<![A-Za-z])[a-z]\Z|(?:[\d)}}$]\s*[-+*/\u00d7\u00b7]|{_OPERATORS})[ \t]+\Z"
)
_AFTER_IN_TEXT = re.compile(
    rf"[*+^_\d{{}}]|/(?!{_UNIT})|\.\d|-\d|[A-Za-z](?![A-Za-z])|\s+(?:[-+*/\u00d7\u00b7]\s*[\d$\\(]|{_OPERATORS}(?![A-Za-z]))"
)
# Words that govern a box which they stand directly before, in its clause.
_FILLERS = r"(?:\s+(?:the|an?|equal|to|be|being|exactly|simply|just|value|number|answer|necessarily|really|quite))*\s*$"
_PART = "|".join(PARTS)
_GOVERN = re.compile(
    r"(?i)(?:(?:\b(?:not|never|nor|neither|cannot|without|except|than|unlike|excluding|half|twice|thrice|double|triple"
    r"|minus|plus|times|negative|maybe|perhaps|possibly|probably|presumably|guess|between|(?:all|(?:any)?thing|one) but|(?:digits?|terms?|sum|zeros) in"
    r"|(?:divided|multiplied) by|(?:might|may|could) be"
    rf"|(?:{_PART}|percent|squares?|cubes?|(?:square|cube|th) root|multiples?|divisors?|reciprocal|inverse"
    r"|opposite|negative|digits|digit sum|%) of)"
    rf"|n['\u2019]t){_FILLERS})"
    r"|(?:\b(?:do|does|can)(?: not|n['\u2019]t)|\b(?:cannot|doubt|might|may|could)) (?:that|think|believe|know|expect"
    r"|guess|say|argue)\b|^\s*(?:suppose|assume|unless|whether)\b|\\(?:neq?|not)\s*$"
    r"|\b(?:wrong|incorrect|false|invalid) (?:final )?answer\b|(?:\u4e0d\u662f|\u4e0d\u7b49\u4e8e|\u5e76\u975e)\s*$"
)
_CLAUSE = re.compile(r"[.;:!?,\n]\s")
# And behind it.
_BE = r"(?:\w+\s+)?(?:is|was|are|were|seems|looks|would be|must be)\s+(?:\w+\s+){0,2}?"
_RETRACT = re.compile(
    rf"(?i)[\s*_]*\(?(?:{_BE}not\b(?!\s*[\d$\\])|(?:{_BE})?(?:not (?:correct|right|the|an? answer|valid)|wrong"
    r"|incorrect|false|invalid|mistaken|impossible|excluded|rejected|ruled out|too (?:small|big|large"
    r"|high|low|many|much|few))\b"
    r"|(?:\w+\s+)?(?:(?:isn|wasn|aren|can|doesn)['\u2019]t|cannot|fails|does not)\b"
    r"|(?<!\()or\b(?!\s+(?:equivalently|in other|about|approximately))"
    r"|(?:squared|cubed|doubled|tripled|halved|factorial)\b|\?"
    r"|(?:plus|minus|times|divided by|multiplied by|to the power(?: of)?|more than|less than|\\?%[\s$\\)]*of)\s+[\d$\\])"
)
_TAKEN_BACK = re.compile(
    r"(?i)[\s$*_.,;)}\]\\]*(?:(?:hmm|wait|no|but|actually)[,.]*\s+)*(?:that|this|which|it)(?:['\u2019]s| is)"
    r" (?:not (?:right|correct)|wrong|incorrect)\b"
)
_UNIT_END = re.compile(r"[.,;:!?\n=<>&()]|\\\\|\\(?:implies|[rR]ight\w*|approx|q?quad|end)")


def read_boxes(text: str, last: int) -> Found:
    """Read the last box, and those that stand with it; nothing where it is no answer."""
    box = box_at(text, last)
    if box is None:
        return Found(())
    (begin, end, content), contents, any_of = box, [box[2]], False
    for mark in reversed(list(_BOX.finditer(text, max(0, begin - LONGEST), begin))):
        other = box_at(text, mark.start())
        if other is None or other[1] > begin or not _BETWEEN.fullmatch(between := text[other[1] : begin]):
            break
        any_of |= re.search(r"\bor\b|^[\s$]*[,;]?[\s$]*$", between) is not None
        begin, contents = other[0], [other[2], *contents]
    before = text[max(0, begin - 4 * LONGEST) : begin].rpartition("\n\n")[2]
    after = text[end : end + 4 * LONGEST]
    if _TAKEN_BACK.match(after):
        return Found(())
    before, after, touched = _unwrapped(before, after.partition("\n\n")[0])
    clause = _CLAUSE.split(_DELIMITER.sub(" ", before[-LONGEST:]))[-1]
    if touched or _GOVERN.search(clause) or _RETRACT.match(after):
        return Found(())
    return Found((*contents[:-1], _with_unit(content, before, after)), any_of)


def box_at(text: str, start: int) -> tuple[int, int, str] | None:
    """Return where the box at `start` begins and ends, and what it holds; None where it is not closed."""
    mark = _BOX.match(text, start)
    opening = mark.end() if mark else start
    if text[opening : opening + 1] == "{":
        end = closing_brace(text, opening)
        return (start, end + 1, text[opening + 1 : end]) if end is not None else None
    found = _UNBRACED.match(text, opening)
    return (start, found.end(), found[0]) if found else None


def _unwrapped(before: str, after: str) -> tuple[str, str, bool]:
    """Take off what only wraps a box: delimiters, bold, colours, brackets; and tell whether arithmetic touches it."""
    inside, spaced = 0, False
    for found in _DELIMITER.finditer(before):
        opens = found[0][:2] in (r"\(", r"\[", r"\b") or (found[0][0] == "$" and not inside)
        inside = int(opens) if found[0] != r"\$" else inside
    line = _BULLET.sub("", before.rpartition("\n")[2])
    formula = LABEL.sub("", line)
    if not inside and not PROSE.search(COMMAND.sub(" ", formula)):  # a formula without delimiters
        inside, before, after = 1, line, after.partition("\n")[0]
        after = after.removeprefix("!") if formula == line else after
    while True:
        if inside:
            before, rest = _SPACES_BEFORE.sub("", before), _SPACES_AFTER.sub("", after, count=1)
            spaced, after = spaced or rest != after, rest
        for left, right in _WRAPPERS:
            if (opening := left.search(before)) and (closing := right.match(after)):
                before, after = before[: opening.start()], after[closing.end() :]
                inside = 0 if left is _WRAPPERS[-1][0] else inside
                break
        else:
            break
    if not inside:
        return before, after, bool(_BEFORE_IN_TEXT.search(before) or _AFTER_IN_TEXT.match(after))
    touched = _AFTER.match(after)
    if touched and spaced and touched[0] in _UNIT_LETTERS:  # 566 m
        touched = None
    touched = touched or (_BEFORE.search(before) and not _WORDS.search(before))
    return before, _DELIMITER.sub("", after, count=1) if _DELIMITER.match(after) else after, bool(touched)


def _with_unit(content: str, before: str, after: str) -> str:
    """Add the unit or scale that stands beside the box: a currency, "cm", "%", "million"."""
    if money := re.search(r"(\\\$|[\u20ac\u00a3\u00a5])\s*$", before):
        return f"{money[1]}{content}"
    unit = plain(_UNIT_END.split(after, maxsplit=1)[0]).replace("$", " ")[:40].strip(" *_~")
    word = unit.split()[0].casefold() if unit else ""
    if word in SCALES:
        return f"{content} {word}"
    with_unit = f"{content} {unit}" if unit[:1].isalpha() else f"{content}{unit}"
    value, name = without_unit(with_unit) or ("", None)
    return with_unit if name and value == content else content
