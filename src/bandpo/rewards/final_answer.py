r"""Find the final answer in a text. The rules, which docs/evaluate.md shows in examples:

1. Taken off first: what follows the end of a turn, and the thinking, which is all up to the last `</think>` (or its
   like). A block of thinking that is never closed holds no answer.
2. The last statement counts, by its place and not by its kind. A statement is a `\boxed{}`, a line or heading
   "Answer:", `#### 7` on a line, `<answer>7</answer>`, the rest of a sentence after "the answer is", and a last line
   that holds nothing but an answer, whatever short label stands before it. A note about the answer is none.
3. A box is the answer, whatever words or equations lead to it, with the unit that stands beside it.
4. It is none where anything else stands beside it: `2\boxed{21}`, `-\boxed{3}`, `\boxed{3}^2`, `(1, \boxed{3})`.
5. It is none where words negate it or take a part of it: "not \boxed{7}", "half of \boxed{42}". Any statement is
   none where the next words take it back: "\boxed{7} is wrong", "Answer: 7. Wait, that is not right". A text whose
   last statement is such a one gives no answer.
6. Boxes with nothing but a space, a comma, "and" or "or" between them are a list where the right answer is a list. Else
   the last of them counts behind "and", and each must be right behind anything else.
"""

from __future__ import annotations

import bisect
import json
import re
from typing import Literal

from .answers import CHOICE, without_unit
from .boxes import LABEL, LONGEST, TAKEN_BACK, Found, box_at, read_boxes
from .notation import COMMAND, PROSE, plain
from .quantities import changes, number

# ---- what is not answer

_BAR = "\N{FULLWIDTH VERTICAL LINE}"
# What follows one of these was written in the name of somebody else.
_STOP = re.compile(
    rf"<\|(?:im_end|endoftext|eot_id|end_of_text)\|>|</s>|<eos>|<end_of_turn>|<{_BAR}end\u2581of\u2581sentence{_BAR}>"
)
_END = re.compile(rf"(?:\s|```|<[|{_BAR}][^<>\n]{{1,40}}[|{_BAR}]>|</?s>|<(?:pad|eo[a-z])>|<turn\|>|</[A-Za-z_ ]+>)+$")
# What models draw beside an answer: emoji, check marks, arrows, bullets, the end of a proof.
_MARKS = re.compile(
    "[\u2022\u2192\u21d2\u2234\u220e\u25a0-\u25a2\u25b6\u2600-\u2714\u2728\u27a1\ufe0f\U0001f300-\U0001faff]"
)
_NAME = r"(?:seed:)?(?:think|thinking|thoughts?|reasoning|reason|reflection|scratchpad|analysis|cot)"
_OPENED = re.compile(
    rf"(?i)<\|?{_NAME}\|?>|\[THINK\]|\u25c1think\u25b7|<start_working_out>|<unused94>|\Aanalysis(?=(?-i:[A-Z]))"
    r"|<\|(?:begin_of_thought|START_THINKING|channel)\|>(?!\s*final)|<\|channel>thought"
)
_CLOSED = re.compile(
    rf"(?i)<\|?/{_NAME}\|?>|\[/THINK\]|\u25c1/think\u25b7|<end_working_out>|<unused95>|<channel\|>"
    r"|<\|(?:end_of_thought|END_THINKING)\|>|<\|channel\|>\s*final.{0,40}?<\|message\|>|assistantfinal"
)
# One of these is in each of them; a search for all of them takes longer.
_SIGNS = ("<", "THINK]", "think\u25b7", "analysis", "assistantfinal")
Thinking = Literal["opened"] | None


def without_thinking(text: str, thinking: Thinking = None) -> str:
    """Return the text after the thinking. It is empty where the prompt opened a block that is never closed."""
    closed = opened = None
    if any(sign in text for sign in _SIGNS):
        *_, closed = (None, *_CLOSED.finditer(text))
        text = text[closed.end() :] if closed else text
        opened = _OPENED.search(text)
    if closed is None and thinking == "opened":
        return ""
    return text[: opened.start()] if opened else text


# ---- statements

_MARK = r"[*_`#\"}\s\u3011]{0,8}"
# What begins the line of an answer in other languages.
_OTHERS = "Antwort|R\u00e9ponse|Respuesta|Resposta|Risposta|\u041e\u0442\u0432\u0435\u0442"
_OTHERS += "|\u7b54\u3048?|\u56de\u7b54|\uc815?\ub2f5"
_IS = r"(?:(?:is|was|equals)\b|(?:should|must|would|will|has to|comes out to) be\b|\s*=)"
_BEST = r"(?:(?<=correct )|(?<=right )|(?<=best ))"
_STATEMENT = re.compile(
    # What they begin with, by which a search is fast.
    rf"(?=[\\<#\u7b54\u6545\u9009\u56de\uc815\ub2f5R\u041e]|[aA][nN]|opt|cho)(?:"
    r"(?P<box>(?:(?<!\\)\\)?\\(?:boxed|fbox|framebox)(?![A-Za-z]))"
    r"|(?P<tag>(?i:<(?:final[_ ]?)?answer>|<solution>))"
    r"|(?P<hashes>####(?!#))"
    rf"|(?P<line>(?:(?i:answer)(?: ?\([^()\n]{{1,30}}\))?|{_OTHERS}|\u6545?\u7b54\u6848|\u6545?\u9009){_MARK}"
    rf"(?:(?i:is){_MARK}|[\u4e3a\u662f])?[:\uff1a](?:\s*####)?|\u7b54\u6848\u3011)"
    r"|(?P<heading>(?i:answer)[ \t*_:]*$)"
    rf"|(?P<reversed>(?:(?<=\bis the )|(?<=\bis the final )|{_BEST})(?:answer|option|choice)\b(?! ?(?:to\b|{_IS}|:)))"
    rf"|(?P<sentence>(?i:answer|{_BEST}(?:option|choice))(?: to\b[^.\n]{{0,60}}?)? ?{_IS}"
    r"|(?<!\u4e0d)\u9009[\u62e9\u9879]?[\u662f:\uff1a]?(?=\s*\(?[A-J](?![A-Za-z]))|\u7b54\u6848\s*[\u4e3a\u662f\u9009]|\u6545\u7b54\u6848[\u4e3a\u662f\u9009]?|\u6545\u9009))",
    re.MULTILINE,
)
_ANSWER = re.compile(rf"(?i)answer{_MARK}:")
_HEADING = re.compile(r"[ \t#*_>-]*(?i:the )?(?i:final )?")
# A sentence states an answer if its value follows at once; another one counts only in a text that states none.
_AT_ONCE = re.compile(
    r"[\s:*_`\"]*(?:(?:indeed|then|thus|therefore|simply|just|exactly|actually|also|the|an?|number|value|option|choice"
    r"|(?:equal|given) (?:to|by))\s+)*[*_\"(]*(?:[-+]?\s*[\d$\\.]|[A-J](?![A-Za-z' ])|\()"
)
# Before "answer" these say that it is not stated here, and these that it is another.
_ABOUT = re.compile(
    r"(?i)\b(?:in|of|about|if|whether|check\w*|verif\w*|confirm\w*)\s+(?:(?:that|the|this|my|our|your|final)\s+)*$"
)
_DENIED = re.compile(
    r"(?i)(?:(?<![A-Za-z])(?:wrong|incorrect|false|invalid|rejected|discarded|previous|bad|unlikely|not|doubt|unsure|twice|half"
    r"|double)|n['\u2019]t)(?![A-Za-z])"
    r"(?:\s+(?!(?:so|then|hence|thus|therefore|and|but)\b)[\w'\u2019]+){0,5}[\s_]*$"
)
_REST = re.compile(r"\.\s+(?=[A-Z])|,?\s+\(?(?:because|since)\b")  # the next sentence, a reason
_CLAUSE = re.compile(r"[.,;:]\s+|\b(?i:so|thus|hence|therefore|and|that|option|choice)\s+")
_DISPLAY = {"$$": "$$", r"\[": r"\]"}
_TAG = re.compile(r"</[A-Za-z_ ]+>")
_GAP = re.compile(r"(?:[*_`#}\s\u3011]|(?<=\n)(?:-{3,}$|[->+] ))*", re.MULTILINE)
_LEADING = re.compile(r"^(?:[*_`#\s]|[->+] )+")
# Labels that only an answer has; another one is a note beside the answer that was stated ("Confidence: 90").
_NOTE = re.compile(r"(?i)answer|confidence|note|page|question|hint|problem")
_CHOSEN = re.compile(r"(?i)(?:option|choice)[*_`\s]*:[*_`\s]*\(?(?-i:[A-J])[).*_`\s]*$")
_SOMETHING = re.compile(r"\d|\\|^\W*[A-J]\W*$")
_OF_ANSWER = re.compile(
    r"(?i)(?:(?:so|thus|hence|therefore|the|my|our|final|overall|correct) ?)*"
    r"(?:result|solution|value|total|conclusion)?"
)


def final_answer(text: str, thinking: Thinking = None) -> Found | None:
    r"""Find the last statement of an answer in a text. None where it gives none.

    `thinking="opened"`: the prompt ended in an opened block of thinking.
    """
    text = _STOP.split(text, maxsplit=1)[0]
    text = without_thinking(text if text.isascii() else _MARKS.sub(" ", text), thinking).rstrip()
    if text.endswith((">", "`")) and (end := _END.search(text, max(0, len(text) - 2 * LONGEST))):
        text = text[: end.start()]
    place, found = _last_statement(text)
    if found is not None and not found.answers:
        return None
    line = _last_line(text, place)
    return Found((line,)) if line else found


def _last_statement(text: str) -> tuple[int, Found | None]:
    """Find the place and the content of the last statement. A box that is taken back says nothing."""
    weak: tuple[int, Found | None] = (-1, None)
    for start in (max(0, len(text) - 2 * LONGEST), 0):  # most stand near the end; what is near is looked at twice
        marks = list(_STATEMENT.finditer(text, start))
        boxes = [mark.start() for mark in marks if mark["box"]]
        for mark in reversed(marks):
            place, kind = mark.start(), mark.lastgroup
            near = boxes[bisect.bisect(boxes, place) - 1] if boxes else place
            if kind == "box" or (near < place and (box := box_at(text, near)) and box[1] > place):
                return place, read_boxes(text, near)
            before = text[max(text.rfind("\n", 0, place) + 1, place - LONGEST) : place]
            if (kind == "heading" and not _HEADING.fullmatch(before)) or _ABOUT.search(before):
                continue
            if kind == "sentence" and _ANSWER.search(before):  # in a line "Answer: the answer is"
                continue
            line = _said(text, mark, before)
            if not line or (kind == "hashes" and not _SOMETHING.search(line)):
                continue
            if kind == "hashes" and PROSE.search(line) and "\n" in text[mark.end() : mark.end() + LONGEST].strip():
                continue  # #### Step 2
            denied = kind in ("line", "sentence") and (_DENIED.search(before) or (kind == "line" and changes(mark[0])))
            stands = text.find(line, mark.end())
            if denied or (stands >= 0 and TAKEN_BACK.match(text, stands + len(line))):
                return place, Found(())
            at_once = _AT_ONCE.match(line)
            if kind == "reversed" and ("\\box" in line or PROSE.search(COMMAND.sub(" ", line)) or not at_once):
                continue
            if kind != "sentence" or at_once:
                return place, Found((line,))
            if weak[1] is None:  # "the answer is correct" takes back nothing that was said before it
                weak = place, Found((line,))
    return weak


def _said(text: str, mark: re.Match[str], before: str) -> str | None:
    """Return the content of a statement without a box."""
    if mark.lastgroup == "tag":
        return _tagged(text, mark.end())
    if mark.lastgroup == "reversed":
        named = re.search(r"\s+is the \w*\s*$", before)
        return _CLAUSE.split(before[: named.start()])[-1] if named else None
    if mark[0].count('"') == 1:
        try:
            return str(json.JSONDecoder(parse_float=str).raw_decode(text[mark.end() :].lstrip())[0])
        except (ValueError, RecursionError):
            pass
    return _line(text, mark.end())


def _line(text: str, start: int) -> str | None:
    """Return the first line from there that is not empty. A displayed formula may be several."""
    rest = text[start : start + 2 * LONGEST]
    rest = rest[_GAP.match(rest).end() :]  # pyright: ignore[reportOptionalMemberAccess]
    for opening, closing in _DISPLAY.items():
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) >= 0:
            return rest[len(opening) : end]
    line = _TAG.split(rest.partition("\n")[0], maxsplit=1)[0]
    return _REST.split(line, maxsplit=1)[0].strip() or None


def _tagged(text: str, start: int) -> str | None:
    """Return the text between tags. It is one line, a displayed formula, or the last of several lines."""
    closing = _TAG.search(text, start)
    inside = text[start : closing.start() if closing else None].strip()
    return _line(inside if inside.startswith(tuple(_DISPLAY)) else inside.rpartition("\n")[2], 0)


def _last_line(text: str, place: int) -> str | None:
    """Return the last line if it holds an answer alone. Behind a statement at `place` it must be as plain."""
    start = text.rfind("\n") + 1
    for opening, closing in _DISPLAY.items():
        if text.endswith(closing) and (begin := ("\n" + text[:-2].rstrip()).rfind("\n" + opening)) >= 0:
            start = begin
    if place >= start:
        return None
    line = _LEADING.sub("", text[start:].strip())
    label = LABEL.match(line)
    value = line[label.end() :] if label else line
    if len(value) > LONGEST or (label and (changes(label["label"]) or _NOTE.search(label["label"]))):
        return None
    value_alone = plain(value).replace("$", "").strip(" *_`.")
    if place < 0:
        value_alone, _ = without_unit(value_alone) or (value, None)
    alone = "" if label else plain(value).strip(" *_`.$\\[]")
    letter = (alone.isupper() and CHOICE.fullmatch(alone)) or (label and _CHOSEN.search(line))
    if place >= 0 and not (label and _OF_ANSWER.fullmatch(label["label"])) and (label or not number(value_alone)):
        return value if letter else None
    if letter or (start == 0 and re.match(r"\(?[A-J]\)\s", alone)):
        return value
    return value if re.search(r"\d", value_alone) and not PROSE.search(COMMAND.sub(" ", value_alone)) else None
