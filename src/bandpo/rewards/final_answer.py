r"""Find where in a text its final answer stands. The rules, which docs/scorers.md shows in examples:

1. Taken off first: end-of-text tokens, and the thinking, which is all up to the last `</think>` (or its like).
   A block of thinking that is never closed holds no answer.
2. The last statement counts, by its place and not by its kind. A statement is a `\boxed{}`, a line or heading
   "Answer:", `#### 7` on a line, `<answer>7</answer>`, the rest of a sentence after "the answer is", and a last line
   that holds nothing but an answer, whatever short label stands before it.
3. A box is the answer, whatever words or equations lead to it, with the unit that stands beside it.
4. It is none where arithmetic touches it in its formula: `2\boxed{21}`, `-\boxed{3}`, `\boxed{3}^2`, `\boxed{1}/3`.
5. It is none where words negate it, take a part of it or take it back: "not \boxed{7}", "half of \boxed{42}",
   "\boxed{7} is wrong". A text whose last statement is such a box gives no answer.
6. Boxes with only a comma, "and" or "or" between them are a list where the right answer is a list. Else the last of
   them counts behind "and", and each must be right behind a comma or "or".
"""

from __future__ import annotations

import re
from typing import Literal

from .answers import without_unit
from .boxes import COMMAND, LABEL, LONGEST, PROSE, Found, box_at, read_boxes
from .notation import plain
from .quantities import changes, number

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
    closed = opened = None
    if any(sign in text for sign in _SIGNS):
        *_, closed = (None, *_CLOSED.finditer(text))
        text = text[closed.end() :] if closed else text
        opened = _OPENED.search(text)
    if closed is None and thinking == "opened":
        return ""
    return text[: opened.start()] if opened else text


# ---- statements

_MARK = r"[*_`#\"\s]{0,8}"
_STATEMENT = re.compile(
    r"(?=[\\<#aA\u7b54])(?:"  # what they begin with, by which a search is fast
    r"(?P<box>\\(?:boxed|fbox|framebox)(?![A-Za-z]))"
    r"|(?P<tag>(?i:<(?:final[_ ]?)?answer>|<solution>))"
    r"|(?P<hashes>####(?!#))"
    rf"|(?P<line>(?<!check our )(?<!check the )(?<!verify the )"
    rf"(?i:answer|\u7b54\u6848){_MARK}(?:(?i:is){_MARK})?[:\uff1a]"
    r"(?:\s*####)?)"
    r"|(?P<heading>(?i:answer)[ \t*_]*$)"
    r"|(?P<sentence>(?i:answer(?: to\b[^.\n]{0,60}?)? is\b)|\u7b54\u6848[\u662f\u4e3a]))",
    re.MULTILINE,
)
_HEADING = re.compile(r"[ \t#*_>-]*(?i:the )?(?i:final )?")
_ANSWER = re.compile(rf"(?i)answer{_MARK}:")
# Before "answer" these say that it is not the answer.
_DENIED = re.compile(
    r"(?i)(?:\b(?:wrong|incorrect|false|invalid) (?:final )?"
    r"|\b(?:not|twice|half|half of|double) the (?:final |correct )?"
    r"|(?:(?:n['\u2019]t|\bnot) (?:think|believe|say)|\bdoubt|\bfalse)(?: that)? the (?:final |correct )?)\Z"
)
_NEXT_SENTENCE = re.compile(r"\.\s+(?=[A-Z])")
_DISPLAY = {"$$": "$$", r"\[": r"\]"}
_TAG = re.compile(r"</[A-Za-z_ ]+>")
_GAP = re.compile(r"(?:[*_`#\s]|^-{3,}$)*", re.MULTILINE)
_LEADING = re.compile(r"^[*_`#\s]+")
# Labels that only an answer has; another one is a note beside the answer that was stated ("Confidence: 90").
_SOMETHING = re.compile(r"\d|\\|^\W*[A-J]\W*$")
_OF_ANSWER = re.compile(
    r"(?i)(?:(?:so|thus|hence|therefore|the|my|our|final|overall|correct) ?)*"
    r"(?:result|solution|value|total|conclusion)?"
)


def final_answer(text: str, thinking: Thinking = None) -> Found | None:
    r"""Find the last statement of an answer in a text; None where it gives none.

    `thinking="opened"`: the prompt ended in an opened block of thinking.
    """
    text = without_thinking(text, thinking).rstrip()
    if text.endswith(">") and (end := _END.search(text, max(0, len(text) - 2 * LONGEST))):
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
        marks = list(_STATEMENT.finditer(text, start))
        boxes = [(mark.start(), (box_at(text, mark.start()) or (0, 0))[1]) for mark in marks if mark["box"]]
        for mark in reversed(marks):
            place, kind = mark.start(), mark.lastgroup
            around = next((begin for begin, end in boxes if begin < place < end), -1)
            if kind == "box" or around >= 0:
                return place, read_boxes(text, place if kind == "box" else around)
            if kind == "heading" and not _HEADING.fullmatch(text, text.rfind("\n", 0, place) + 1, place):
                continue
            if kind == "sentence" and _ANSWER.search(text, max(text.rfind("\n", 0, place) + 1, place - LONGEST), place):
                continue  # in a line "Answer: the answer is"
            line = _tagged(text, mark.end()) if kind == "tag" else _line(text, mark.end())
            if not line or (kind == "hashes" and (PROSE.search(line) or not _SOMETHING.search(line))):  # #### Step 2
                continue
            if kind in ("line", "sentence") and _DENIED.search(text, max(0, place - 60), place):
                return place, Found(())
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
    label = LABEL.match(line)
    value = line[label.end() :] if label else line
    if place >= start or len(value) > LONGEST or (label and changes(label["label"])):
        return None
    value_alone, _ = without_unit(plain(value).replace("$", "").strip(" *_`.")) or (value, None)
    if place >= 0 and not (label and _OF_ANSWER.fullmatch(label["label"])) and (label or not number(value_alone)):
        return None
    return value if re.search(r"\d", value_alone) and not PROSE.search(COMMAND.sub(" ", value_alone)) else None
