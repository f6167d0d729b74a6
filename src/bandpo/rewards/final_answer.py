r"""Find the final answer in a text. The rules, which docs/evaluate.md shows in examples:

1. Taken off first: what follows the end of a turn, and the thinking, which is all up to the last `</think>` (or its
   like). A block of thinking that is never closed holds no answer.
2. The last statement counts, by its place and not by its kind. A statement is a `\boxed{}`, a line or heading
   "Answer:", `#### 7` on a line, `<answer>7</answer>`, the rest of a sentence after "the answer is", and a last line
   that holds nothing but an answer, whatever short label stands before it. A note about the answer is none.
3. A box is the answer, whatever words or equations lead to it, with the unit that stands beside it. It is none where
   arithmetic touches it: `2\boxed{21}`, `-\boxed{3}`, `\boxed{3}^2`, `(1, \boxed{3})`.
4. It is none where words negate it or take a part of it: "not \boxed{7}", "half of \boxed{42}". Any statement is
   none where the next words take it back: "\boxed{7} is wrong", "Answer: 7. Wait, that is not right". A text whose
   last statement is such a one gives no answer. `words.yaml` has such words in other languages.
5. A sentence counts if only its paragraph and a short closing follow, or if it stands behind a closed thought or in the
   first paragraph. Elsewhere a text that goes on was a thought.
6. Boxes with nothing but a space, a comma, "and" or "or" between them are a list where the right answer is a list. Else
   the last of them counts behind "and", and each must be right behind anything else.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Literal

from .answers import without_unit
from .boxes import LONGEST, Statement, box_at, read_boxes
from .lexicon import ASCII_NOUNS, NOUNS, P, in_english
from .notation import plain
from .quantities import changes, number

# Characters from the end of a text that are looked at, and in them the last 50 statements.
REACH = 10_000
# Characters that may follow the paragraph of a sentence that states the answer.
CLOSING = 300

# ---- what is not answer

Thinking = Literal["opened"] | None


def without_thinking(text: str, thinking: Thinking = None) -> str:
    """Return the text after the thinking. It is empty where the prompt opened a block that is never closed."""
    # One of these is in each mark of a thought; a search for all of them takes longer.
    signed = any(sign in text for sign in ("<", "THINK]", "think\u25b7", "analysis", "assistantfinal"))
    ends = list(P.thought_ends.finditer(text)) if signed else []
    text = text[ends[-1].end() :] if ends else text
    opened = P.thought_begins.search(text) if signed else None
    if not ends and thinking == "opened":
        return ""
    return text[: opened.start()] if opened else text


# ---- statements


def final_answer(text: str, thinking: Thinking = None) -> Statement | None:
    r"""Find the last statement of an answer in a text. None where it gives none.

    `thinking="opened"`: the prompt ended in an opened block of thinking.
    """
    whole = P.end_of_turn.split(text, maxsplit=1)[0]
    text = without_thinking(whole, thinking)
    finished = text != whole and whole.endswith(text)  # behind a closed thought all was meant to be read
    text = (text[-REACH:] if text.isascii() else P.drawn.sub(" ", text[-REACH:])).rstrip()
    end = P.end_marks.search(text, max(0, len(text) - 2 * LONGEST)) if text.endswith((">", "`")) else None
    if end:
        text = text[: end.start()]
    text = P.display_ends.sub("", text)
    place, statement = _last_statement(text, finished)
    if statement is not None and not statement.answers:
        return None
    line = _last_line(text, place)
    return Statement((line,)) if line else statement


def _last_statement(text: str, finished: bool) -> tuple[int, Statement | None]:
    """Find the place and the content of the last statement. One that is taken back has no content."""
    weak: tuple[int, Statement | None] = (-1, None)
    # Most stand near the end; what is near is looked at twice.
    for start in (max(0, len(text) - 2 * LONGEST), 0):
        window = text[start:].lower()
        nouns = ASCII_NOUNS if window.isascii() else NOUNS
        foreign = any(noun in window for noun in nouns)
        marks = list((P.statement_in_any_language if foreign else P.statement).finditer(text, start))[
            -50:
        ]
        boxes = [box_at(text, mark.start()) for mark in marks if mark["box"]]
        for mark in reversed(marks):
            begins = [box[0] for box in boxes if box and box[0] <= mark.start() < box[1]]
            place = max(begins, default=None)
            place = mark.start() if mark["box"] and place is None else place
            statement = _stated(text, mark, finished) if place is None else read_boxes(text, place)
            if (
                statement
                and mark.lastgroup == "sentence"
                and not P.at_once.match(in_english(" ".join(statement.answers) or "7"))
            ):
                # "the answer is correct" takes nothing back.
                weak = weak if weak[1] else (mark.start(), statement)
            elif statement is not None:
                return mark.start(), statement
    return weak


def _stated(text: str, mark: re.Match[str], finished: bool) -> Statement | None:
    """Read a statement without a box. It is empty if it is taken back; None: it states nothing."""
    place, kind = mark.start(), mark.lastgroup
    line, end = _line(text, mark)
    before, after = text[max(text.rfind("\n", 0, place) + 1, place - LONGEST) : place], text[end:]
    step = kind == "hashes" and (
        not P.something.search(line or "") or (P.prose.search(line or "") and "\n" in after.strip())
    )
    if not line or step:
        return None
    if kind in ("heading", "title") and not P.heading.fullmatch(before):
        return None
    # Thai has no full stop.
    before = "" if kind in ("tag", "hashes") or "\u0e00" < mark[0][0] < "\u0e7f" else in_english(before)
    if kind in ("sentence", "says", "reversed"):
        first = finished or (len(text) < REACH and "\n\n" not in text[:place])
        begins = (P.soon if kind == "says" else P.at_once).match(in_english(line))
        if kind != "sentence" and ("\\box" in line or not begins):
            return None
        if not first and len(after.partition("\n\n")[2]) > CLOSING:
            return None
        if not finished and P.wait.search(in_english(after[: 2 * CLOSING])):
            return Statement(())
    if P.about.search(before if kind != "sentence" else before + mark[0]) or P.mistaken.search(before):
        return None
    denied = P.denied.search(before) or (
        kind in ("line", "label", "says") and changes(in_english(mark[0]))
    )
    if denied or P.taken_back.match(in_english(after[:LONGEST])):
        return Statement(())
    return Statement((line,))


def _line(text: str, mark: re.Match[str]) -> tuple[str | None, int]:
    """Return the first line behind a mark that is not empty, and its end. Between tags it is the last."""
    start = mark.end()
    if mark.lastgroup == "reversed":  # 7 is the answer
        return text[: mark.start()].rpartition("\n")[2].strip().rpartition(" ")[2], start
    if mark[0].count('"') == 1:
        with contextlib.suppress(ValueError, RecursionError):
            value, length = json.JSONDecoder(parse_float=str).raw_decode(text[start:].lstrip())
            return str(value), start + length
    rest = text[start : start + 2 * LONGEST]
    if mark.lastgroup == "tag":
        rest = P.tag.split(text[start:], maxsplit=1)[0].strip().rpartition("\n")[2]
    rest = P.gap.sub("", rest, count=1)
    line = P.rest.split(P.tag.split(rest.partition("\n")[0], maxsplit=1)[0], maxsplit=1)[0].strip()
    return line or None, text.find(line, start) + len(line)


def _last_line(text: str, place: int) -> str | None:
    """Return the last line if it holds an answer alone. Behind a statement at `place` it must be as plain."""
    start = text.rfind("\n") + 1
    line = P.leading.sub("", text[start:].strip())
    label = P.label.match(line)
    name, value = (label["label"], line[label.end() :]) if label else ("", line)
    if place >= start or len(value) > LONGEST or changes(in_english(name)) or P.note.search(name):
        return None
    alone = plain(in_english(value)).replace("$", "").strip(" *_`.\\[]")
    if alone.isupper() and P.choice.fullmatch(alone) and (not label or P.of_choice.match(name)):
        return value
    if place >= 0 and (number(alone) is None if not label else not P.of_answer.fullmatch(name)):
        return None
    if place < 0:
        if start == 0 and re.match(r"\(?[A-J]\)\s", alone):
            return value
        alone = (without_unit(alone) or ("words", None))[0]
    return value if re.search(r"\d", alone) and not P.prose.search(P.command.sub(" ", alone)) else None
