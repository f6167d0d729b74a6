r"""Where in a text its answer stands: after "Answer:", in a box with the formula around it, after "answer is"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .quantities import PARTS, SCALES

# Of the characters of an answer that is looked at; the longest of MATH-500 has 159.
LONGEST = 500

# "Answer: ...", "**Answer:** ...", "The answer is: ...", with the colon of Chinese text too.
_MARK = r"[*_`\s]{0,8}"
_ANSWER = re.compile(rf"(?i:answer|答案){_MARK}(?:is{_MARK})?[:\uff1a](?:\s*####)?")
_ANSWER_IS = re.compile(r"(?i:answer is)\b")
_NEXT_SENTENCE = re.compile(r"\.\s+(?=[A-Z])")
_DISPLAY = {"$$": "$$", r"\[": r"\]"}
# A tag around the answer ends with it.
_TAG = re.compile(r"\s*</?\w+>\s*$")


def final_answer(text: str) -> str | None:
    r"""What a text gives as its answer; None where it gives none.

    The line of the last "Answer:" that is followed by anything (in the same line or the next), else the last `\boxed{}`
    with what is computed with it, else the sentence after the last "answer is".
    """
    for mark in _last_first(_ANSWER, text):
        if line := _line(text, mark.end()):
            return line
    if (start := text.rfind("\\boxed{")) >= 0:
        return _boxed(text, start)
    mark = next(_last_first(_ANSWER_IS, text), None)
    return _line(text, mark.end()) if mark is not None else None


def _last_first(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Where it matches, from the end, which mostly is near it; what is near is given twice."""
    for start in (max(0, len(text) - 1000), 0):
        yield from reversed(list(pattern.finditer(text, start)))


def _line(text: str, start: int) -> str | None:
    """The first line from there that holds anything, or a displayed formula over several."""
    rest = text[start : start + 2 * LONGEST].lstrip("*_` \t\r\n")
    for opening, closing in _DISPLAY.items():
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) >= 0:
            return rest[len(opening) : end]
    line = _TAG.sub("", rest.partition("\n")[0])
    return _NEXT_SENTENCE.split(line, maxsplit=1)[0].strip() or None


# What belongs to a formula when no $ says where it begins: signs, digits, commands, single letters before "=".
_BEFORE_BOX = re.compile(
    r"(?:\\[A-Za-z]+|(?<![A-Za-z\\])[A-Za-z](?=\s*[=<>])|[-+*/^_=<>|()\[\]{}!\d]|(?<=\d)\.(?=\d)|\s)*$"
)
_AFTER_BOX = re.compile(
    r"\s*(?:[-+*/^_=<>!%{]|\.\d|\\(?:cdot|times|div|neq?|[gl]eq?|pm|approx|%)|[A-Za-z\\](?![A-Za-z]))"
    r"(?:\\[A-Za-z]+|[-+*/^_=<>|()\[\]{}!%\d]|\.\d|(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|\s)*|"
)
# Between boxes that are one answer together.
_NEXT_BOX = re.compile(r"[\s$]*(?:,|;|and|or|,\s*(?:and|or)|\\text\{\s*(?:and|or)\s*\}|\s)[\s$]*")
# Words that may change what stands beside them. Beside a box, within three words of it, they are all that matters.
_CHANGING = set(
    """
    not no never none nothing nobody neither nor cannot can may might could would should ought half halves twice
    thrice doubled tripled squared squares cubed cubes reciprocal inverted reverse reversed negation opposite
    negative minus plus times less more fewer than least most upper lower about approximate approximately nearly
    almost roughly around estimate estimated bound bounds rounded maybe perhaps possibly probably likely hopefully
    presumably apparently supposedly allegedly guess guessed think thinks believe believes suppose assume seems
    appears says say said claims claim wrong incorrect invalid erroneous untrue false mistaken mistake trap
    extraneous excluded excludes rejected eliminated different fails ruled if unless whether unlike however but
    instead wait except without or either anything everything everyone everybody many others until before previous
    let base modulo mod exceeds lacks misses differs contains includes knows likes divides follows precedes
    complement fraction part
    """.split()  # noqa: SIM905
) | set(PARTS)


def changes(words: str) -> bool:
    """Is there a word in them that may change what is beside them?"""
    found = re.findall(r"[a-z'-]+", words.casefold())
    if len(found) > _MOST_WORDS or _CHANGING_PHRASE.search(" ".join(found)):
        return True
    return any(word in _CHANGING or word.endswith("n't") for word in found)


_MOST_WORDS = 25
_CHANGING_PHRASE = re.compile(
    r"\b(?:(?:square|cube|[a-z]+th) root|inverse(?! (?:function|matrix))|(?:double|triple) (?:the|of|this|that|its))\b"
)


def _boxed(text: str, start: int) -> str | None:
    """The last box, which is in a sentence, with the formula around it: the 2 of 2\\boxed{42}, not the words."""
    end = closing_brace(text, start + len("\\boxed"))
    if end is None:
        return None
    content, begin = text[start + len("\\boxed{") : end], start
    # \boxed{1} and \boxed{2} are one answer.
    near = max(0, start - LONGEST)
    while (other := text.rfind("\\boxed{", near, begin)) >= 0:
        stop = closing_brace(text, other + len("\\boxed"))
        between = text[stop + 1 : begin] if stop is not None and stop < begin else "no"
        if not _NEXT_BOX.fullmatch(between):
            break
        content, begin = text[other + len("\\boxed{") : stop] + (between.replace("$", "") or " ") + content, other
    line = text.rfind("\n", 0, begin) + 1
    before, after = text[line:begin], text[end + 1 :].partition("\n")[0]
    sentence = _NEXT_SENTENCE.split(before)[-1], _NEXT_SENTENCE.split(after, maxsplit=1)[0]
    before, after = sentence
    words = re.findall(r"[A-Za-z']+", re.sub(r"\$[^$]*\$|\\[A-Za-z]+", " ", before))[-3:]
    behind = re.findall(r"[A-Za-z']+", after)[:3]
    if changes(" ".join(words)) or changes(" ".join(behind)) or not {"percent", *SCALES}.isdisjoint(behind):
        return None
    if before.count("$") % 2:
        before, after = before.rpartition("$")[2], after.partition("$")[0]
    else:
        # What is longer is no answer that is looked at; and a search of all of a long line takes its length squared.
        before = _BEFORE_BOX.search(before.rstrip("*_`")[-2 * LONGEST :])[0]  # pyright: ignore
        after = _AFTER_BOX.match(after)[0]  # pyright: ignore
    before, after = before.strip(" \t*:"), after.strip(" \t.,;*!")
    return f"{before}{_as_group(content, before)}{after}" if before or after else content


def _as_group(content: str, before: str) -> str:
    """The contents of a box as a factor, a base or an exponent of what stands around it."""
    if not before or before.endswith(("=", "(", "{", "$")) or "," in content:
        return f"{{{content}}}" if before.endswith(("^", "}")) else content
    return f"\\cdot({content})" if before[-1].isdigit() else f"({content})"


def unboxed(text: str) -> str:
    """Without boxes, which change no value: what stands beside them does."""
    while (start := text.rfind("\\boxed{")) >= 0 and (end := closing_brace(text, start + len("\\boxed"))) is not None:
        before, content, after = text[:start].rstrip(), text[start + len("\\boxed{") : end], text[end + 1 :]
        if after[:1] in ("^", "_", "!", ".", "{", "\\") or after[:1].isalnum() or before[-1:].isdigit():
            content = _as_group(content, before or "(" if after[:1] not in ("^", "_", "!") else before or "^(")
            if not before:
                content = f"({content})"
        text = f"{text[:start]}{content}{after}"
    return text


def closing_brace(text: str, opening: int) -> int | None:
    """Where the brace at `opening` is closed."""
    depth = 0
    for brace in re.finditer(r"(?<!\\)[{}]", text[opening : opening + 2 * LONGEST]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return opening + brace.start()
    return None
