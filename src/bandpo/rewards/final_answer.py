r"""Find where in a text its final answer stands. The rules, which docs/scorers.md shows in examples:

1. Taken off first: end-of-text tokens, and the thinking, which is all up to the last `</think>` (or its like).
   A block of thinking that is never closed holds no answer.
2. The last statement counts, by its place and not by its kind. A statement is a `\boxed{}`, a line or heading
   "Answer:", `#### 7` on a line, `<answer>7</answer>`, the rest of a sentence after "the answer is", and a last line
   that holds nothing but an answer, whatever short label stands before it.
3. A box is the answer, whatever words or equations lead to it, with the unit that stands beside it.
4. Where arithmetic touches the box (`2\boxed{21}`, `\boxed{3}^2`), the formula around it is the answer.
5. A box that is negated, a part of something else or retracted ("not \boxed{7}", "half of \boxed{42}", "\boxed{7} is
   wrong") is no answer, and neither is a text that ends with one.
6. Boxes with only commas, "and" or "or" between them are a list where the right answer is a list; else the last of
   them counts, but none of them with "or".
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from .answers import without_unit
from .notation import closing_brace, plain
from .quantities import PARTS, SCALES, changes, number

# Of the characters of an answer that is looked at; the longest of MATH-500 has 159.
LONGEST = 500

# ---- what is not answer

_BAR = "\N{FULLWIDTH VERTICAL LINE}"
_END = re.compile(rf"(?:\s*(?:<[|{_BAR}][^<>\n]{{1,40}}[|{_BAR}]>|</?s>|<eos>|<pad>|<end_of_turn>|<turn\|>))+$")
_NAME = r"(?:seed:)?(?:think|thinking|thoughts?|reasoning|reason|reflection|scratchpad|analysis|cot)"
_OPENED = re.compile(
    rf"(?i)<{_NAME}>|\[THINK\]|\u25c1think\u25b7|<start_working_out>|<unused94>|\Aanalysis(?=(?-i:[A-Z]))"
    r"|<\|(?:begin_of_thought|START_THINKING|channel)\|>(?!\s*final)|<\|channel>thought"
)
_CLOSED = re.compile(
    rf"(?i)</{_NAME}>|\[/THINK\]|\u25c1/think\u25b7|<end_working_out>|<unused95>|<channel\|>"
    r"|<\|(?:end_of_thought|END_THINKING)\|>|<\|channel\|>\s*final[^<]*<\|message\|>|assistantfinal"
)
# One of these is in each of them; a search for all of them takes longer.
_SIGNS = ("<", "THINK]", "think\u25b7", "analysis", "assistantfinal")
Thinking = Literal["opened"] | None


def without_thinking(text: str, thinking: Thinking = None) -> str:
    """Return what follows the thinking; nothing where the prompt opened a block that the text never closes."""
    closed = None
    if any(sign in text for sign in _SIGNS):
        for closed in _CLOSED.finditer(text):
            pass
    if closed is None and thinking == "opened":
        return ""
    text = text[closed.end() :] if closed else text
    opened = _OPENED.search(text) if any(sign in text for sign in _SIGNS) else None
    return text[: opened.start()] if opened else text


# ---- statements

_MARK = r"[*_`#\"\s]{0,8}"
_STATEMENT = re.compile(
    r"(?P<box>\\(?:boxed|fbox|framebox)(?![A-Za-z]))"
    r"|(?P<tag>(?i:<(?:final[_ ]?)?answer>|<solution>))"
    r"|(?P<hashes>####(?!#))"
    rf"|(?P<line>(?<!check our )(?<!check the )(?<!verify the )(?i:answer|\u7b54\u6848){_MARK}(?:(?i:is){_MARK})?[:\uff1a](?:\s*####)?)"
    r"|(?P<heading>^[ \t#*_>-]*(?i:(?:the )?(?:final )?answer)[ \t*_]*$)"
    r"|(?P<sentence>(?i:answer(?: to\b[^.\n]{0,60}?)? is\b)|\u7b54\u6848[\u662f\u4e3a])",
    re.MULTILINE,
)
_ANSWER = re.compile(rf"(?i)answer{_MARK}:")
_NEXT_SENTENCE = re.compile(r"\.\s+(?=[A-Z])")
_DISPLAY = {"$$": "$$", r"\[": r"\]"}
_TAG = re.compile(r"</[A-Za-z_ ]+>")
_GAP = re.compile(r"(?:[*_`#>\s]|^-{3,}$)*", re.MULTILINE)
_BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_LEADING = re.compile(r"^[*_`#>\s]+")
_LABEL = re.compile(r"(?P<label>[A-Za-z][A-Za-z' ]{0,40}?)[*_`\s]*[:\uff1a][*_`\s]*")
# Labels that only an answer has; another one is a note beside the answer that was stated ("Confidence: 90").
_OF_ANSWER = re.compile(
    r"(?i)(?:(?:so|thus|hence|therefore|the|my|our|final|overall|correct) ?)*(?:result|solution|value|total|conclusion)?"
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_PROSE = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")


class Found(NamedTuple):
    """The answers that stand together as a text's last statement, mostly one; `any` with "or" between them."""

    answers: tuple[str, ...]
    any: bool = False


def final_answer(text: str, thinking: Thinking = None) -> Found | None:
    r"""Find the last statement of an answer in a text; None where it gives none.

    `thinking="opened"`: the prompt ended in an opened block of thinking.
    """
    text = without_thinking(text, thinking).rstrip()
    if end := _END.search(text, max(0, len(text) - 2 * LONGEST)):
        text = text[: end.start()]
    place, found = _last_statement(text)
    if found is not None and not found.answers:
        return None
    line = _last_line(text, place)
    return Found((line,)) if line else found


def _last_statement(text: str) -> tuple[int, Found | None]:
    """Find where the last statement stands, and what it says; nothing is said by a box that is taken back."""
    weak: tuple[int, Found | None] = (-1, None)
    for start in (max(0, len(text) - 2 * LONGEST), 0):  # most stand near the end; what is near is looked at twice
        for mark in reversed(list(_STATEMENT.finditer(text, start))):
            place, kind = mark.start(), mark.lastgroup
            around = next((box.start() for box in _BOX.finditer(text, max(start, place - LONGEST), place) if _ends(text, box) > place), None)
            if kind == "box" or around is not None:
                return place, _boxes(text, place if kind == "box" else around)
            if kind == "sentence" and _ANSWER.search(text, text.rfind("\n", 0, place) + 1, place):
                continue  # in a line "Answer: the answer is"
            line = _tagged(text, mark.end()) if kind == "tag" else _line(text, mark.end())
            if not line or (kind == "hashes" and (_PROSE.search(line) or not re.search(r"\d|\\\\|^\W*[A-J]\W*$", line))):  # #### Step 2
                continue
            if kind != "sentence" or re.search(r"[\d$\\]", line):
                return place, Found((line,))
            if weak[1] is None:  # "the answer is correct" takes back nothing that was said before it
                weak = place, Found((line,))
    return weak


def _line(text: str, start: int) -> str | None:
    """Return the first line from there that holds anything, or a displayed formula over several."""
    rest = text[start : start + 2 * LONGEST]
    rest = rest[_GAP.match(rest).end() :]  # pyright: ignore[reportOptionalMemberAccess]
    for opening, closing in _DISPLAY.items():
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) >= 0:
            return rest[len(opening) : end]
    line = _TAG.split(rest.partition("\n")[0], maxsplit=1)[0]
    return _NEXT_SENTENCE.split(line, maxsplit=1)[0].strip() or None


def _tagged(text: str, start: int) -> str | None:
    """Return what stands between tags: one line, a displayed formula, or the last line of several."""
    lines = _TAG.split(text[start:], maxsplit=1)[0].strip().splitlines()
    return _line(lines[0] if len(lines) == 1 or lines[0].strip() in _DISPLAY else lines[-1], 0) if lines else None


def _last_line(text: str, place: int) -> str | None:
    """Return the last line if it holds nothing but an answer; behind a statement at `place`, only one as plain."""
    start = text.rfind("\n", 0, len(text.rstrip())) + 1
    line = _LEADING.sub("", text[max(start, 0) :].strip())
    label = _LABEL.match(line)
    value = line[label.end() :] if label else line
    if place >= start or len(value) > LONGEST or (label and changes(label["label"])):
        return None
    value_alone, _ = without_unit(plain(value).replace("$", "").strip(" *_`.")) or (value, None)
    if place >= 0 and not (label and _OF_ANSWER.fullmatch(label["label"])) and (label or not number(value_alone)):
        return None
    return value if re.search(r"\d", value_alone) and not _PROSE.search(_COMMAND.sub(" ", value_alone)) else None


# ---- boxes

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
_UNBRACED = re.compile(r"[-+]?\d[\d.,]*(?<![.,])|\\[A-Za-z]+(?:\{[^{}]*\})*|[A-Za-z]")  # \boxed 7, \boxed\pi
_BETWEEN = re.compile(
    r"(?:[\s$,;&*]|\\[()\[\],;: ]|\\\\|\\q?quad|\\text\{[\s,]*(?:and|or)?[\s,]*\}|\b(?:and|or)\b"
    r"|\b[a-z](?:_\{?\w\}?)?\s*=)*"
)
_DELIMITER = re.compile(r"\\\$|\$\$?|\\[()\[\]]|\\(?:begin|end)\{(?:align|equation|gather|multline|eqnarray)\w*\*?\}")
# In a formula these change nothing: spaces, sizes, styles.
_SPACE = r"(?:\s|~|&|\{\s*\}|\\[,;:! ]|\\(?:q?quad|(?:display|text)style|[lL]arge|LARGE|[hH]uge|bf|it|rm|left|right)(?![A-Za-z]))"
_SPACES_BEFORE, _SPACES_AFTER = re.compile(rf"{_SPACE}+$"), re.compile(rf"{_SPACE}*")
_STYLE = r"boxed|fbox|text\w*|math(?:bf|rm|it|sf)|boldsymbol|bm|underline|mbox|(?:text)?color\{\w+\}"
_WRAPPERS = [
    (re.compile(rf"(?:\\(?:{_STYLE})|(?<![A-Za-z}}\]^_)]))\{{$"), re.compile(r"\}")),
    (re.compile(r"(?<!\\)\($"), re.compile(r"\)")),
    (re.compile(r"[\"'\u201c]$"), re.compile(r"[\"'\u201d]")),
    (re.compile(r"(?<!\w)(?:\*\*|__|[*_])$"), re.compile(r"\*\*|__|[*_]|")),
    (re.compile(r"\\[(\[]$|(?<!\\)\$\$?$"), re.compile(r"\\[)\]]|\$\$?")),
]
# What computes with what stands beside it, in a formula and, without a space between, in text.
_OPERATORS = (
    r"\\(?:cdot|times|div|pm|mp|[dtc]?frac|sqrt(?:\[\w+\])?|binom|sum|prod|int|lim|log|ln|lg|exp|gcd|lcm|max|min|bmod"
    r"|over|choose|(?:arc)?(?:sin|cos|tan|cot|sec|csc)|pi|alpha|beta|theta|phi|lambda|lfloor|lceil|lvert)"
)
_BEFORE = re.compile(
    rf"(?:[-*/^_!|)\]}}{{\d<>]|(?<![=&\s])\s*\+|(?<!\\)[(\[]|(?<![A-Za-z\\])[A-Za-z]|\\(?:[lg]eq?(?:slant)?|[lg]t)|{_OPERATORS})$"
)
_UNIT = r"(?:\\(?:text|mathrm|operatorname)|[{\s~]*[A-Za-z]{2}|(?:\$|\\[)\]])\s*[A-Za-z])"
_AFTER = re.compile(
    rf"\^(?!\s*\{{?\s*\\(?:circ|degree|prime))|/(?!\s*{_UNIT})|[-+*_!\d|]|\{{(?![\s~]*[A-Za-z])|\.\d|[A-Za-z](?![A-Za-z])"
    rf"|\((?!\s*(?:\\text|\\mathrm|[A-Za-z]{{2}}))|\\(?:neq?|not)(?![A-Za-z])|{_OPERATORS}(?![A-Za-z]|\{{\\(?:text|mathrm))"
)
_UNIT_LETTERS = {*"ghmsACFJKLNTVW"}
_WORDS = re.compile(r"\\(?:text\w*|mathrm|mbox|[hv]space|color|tag|operatorname|begin)\*?\s*\{[^{}]*\}$")
_BEFORE_IN_TEXT = re.compile(rf"[-+*/^_\d{{]$|(?<![A-Za-z])[a-z]$|(?:[\d)}}$]\s*[-+*/\u00d7\u00b7]|{_OPERATORS})\s+$")
_AFTER_IN_TEXT = re.compile(
    rf"[*+^_\d{{}}]|/(?!{_UNIT})|\.\d|-\d|[A-Za-z](?![A-Za-z])|\s+(?:[-+*/\u00d7\u00b7]\s*[\d$\\(]|{_OPERATORS}(?![A-Za-z]))"
)
# Words that govern a box which they stand directly before, in its clause.
_FILLERS = r"(?:\s+(?:the|an?|equal|to|be|being|exactly|simply|just|value|number|answer|necessarily|really|quite))*\s*$"
_PART = "|".join(PARTS)
_GOVERN = re.compile(
    r"(?i)(?:(?:\b(?:not|never|nor|neither|cannot|without|except|than|unlike|excluding|half|twice|thrice|double|triple"
    r"|minus|plus|times|negative|maybe|perhaps|possibly|probably|presumably|guess|between|(?:all|thing|one) but"
    r"|(?:divided|multiplied) by|(?:might|may|could) be"
    rf"|(?:{_PART}|percent|squares?|cubes?|(?:square|cube|th) root|multiples?|divisors?|reciprocal|inverse|opposite|digits|digit sum|%) of)"
    rf"|n['\u2019]t){_FILLERS})"
    r"|(?:\b(?:do|does|can)(?: not|n['\u2019]t)|\b(?:cannot|doubt|might|may|could)) (?:that|think|believe|know|expect|guess"
    r"|say|argue)\b|^\s*(?:suppose|assume|unless|whether)\b|\\(?:neq?|not)\s*$"
)
_CLAUSE = re.compile(r"[.;:!?,\n]\s")
# And behind it.
_BE = r"(?:\w+\s+)?(?:is|was|are|were|seems|looks|would be|must be)\s+(?:\w+\s+){0,2}?"
_RETRACT = re.compile(
    rf"(?i)[\s*_]*\(?(?:{_BE}not\b(?!\s*[\d$\\])|(?:{_BE})?(?:not (?:correct|right|the|an? answer|valid)|wrong|incorrect"
    r"|false|invalid|mistaken|impossible|excluded|rejected|ruled out|too (?:small|big|large|high|low|many|much|few))\b"
    r"|(?:\w+\s+)?(?:(?:isn|wasn|aren|can|doesn)['\u2019]t|cannot|fails|does not)\b"
    r"|(?<!\()or\b(?!\s+(?:equivalently|in other|about|approximately))"
    r"|(?:squared|cubed|doubled|tripled|halved|factorial)\b|\?"
    r"|(?:plus|minus|times|divided by|multiplied by|to the power(?: of)?|more than|less than|\\?% of)\s+[\d$\\])"
)
_UNIT_END = re.compile(r"[.,;:!?\n=<>&()]|\\\\|\\(?:implies|[rR]ight\w*|approx|q?quad|end)")


def _boxes(text: str, last: int) -> Found:
    """Read the last box, and those that stand with it; nothing where it is no answer."""
    box = _box_at(text, last)
    if box is None:
        return Found(())
    (begin, end, content), contents, any_of = box, [box[2]], False
    for mark in reversed(list(_BOX.finditer(text, max(0, begin - LONGEST), begin))):
        other = _box_at(text, mark.start())
        if other is None or other[1] > begin or not _BETWEEN.fullmatch(between := text[other[1] : begin]):
            break
        any_of |= re.search(r"\bor\b|^[\s$]*[,;]?[\s$]*$", between) is not None
        begin, contents = other[0], [other[2], *contents]
    before = text[max(0, begin - 4 * LONGEST) : begin].rpartition("\n\n")[2]
    before, after, touched = _unwrapped(before, text[end : end + 4 * LONGEST].partition("\n\n")[0])
    clause = _CLAUSE.split(_DELIMITER.sub(" ", before[-LONGEST:]))[-1]
    if touched or _GOVERN.search(clause) or _RETRACT.match(after):
        return Found(())
    return Found((*contents[:-1], _with_unit(content, before, after)), any_of)


def _ends(text: str, mark: re.Match[str]) -> int:
    box = _box_at(text, mark.start())
    return box[1] if box else -1


def _box_at(text: str, start: int) -> tuple[int, int, str] | None:
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
    formula = _LABEL.sub("", line)
    if not inside and not _PROSE.search(_COMMAND.sub(" ", formula)):  # a formula without delimiters
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
