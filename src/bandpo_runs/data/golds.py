"""Read right answers as data sets hold them, and check them before a training."""

import ast
import contextlib
import json
import re
import unicodedata
import warnings
from collections.abc import Mapping
from typing import Any

from bandpo.rewards.notation import closing_brace

LONGEST = 500  # characters of an answer
HASHES, BOX = "####", r"\boxed"  # marks of the answer in a solution

# Fields that hold the answer where a cell holds more than that.
_FIELDS = ("ground_truth", "answer", "final_answer", "gold", "target", "reference", "value")
_PLACEHOLDERS = {"proof", "notfound", "not found", "nan", "none", "null", "n/a", "na"}
# How a list or mapping begins that was written as text.
_CONTAINER = re.compile(r"array\(|[\[{]\s*(\{\s*)?['\"]")
_SENTENCES = re.compile(r"[a-z)]{2}[.!?]\s+[A-Z]")
_BOXED = re.compile(r"\\f?box(?:ed)?\s*\{")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def read_gold(value: Any, after: str | None = None) -> tuple[str, list[str]]:
    """Read the right answer in a cell, and say what was changed to get it. It is "" where there is none.

    >>> read_gold("It is one more. #### 12", HASHES)
    ('12', [])
    >>> read_gold('{"ground_truth": "34", "style": "rule"}')
    ('34', ['answer taken out of a list or mapping'])

    Args:
        value: text or a number; a mapping with one answer (`{"ground_truth": "34", "style": "rule"}`) or a list of one,
            as such or written as JSON or by Python; None and NaN hold no answer.
        after: `HASHES` or `BOX`: the answer is what stands behind the last of these marks.

    Raises:
        ValueError: no answer, or more than one, can be made out; the message is the reason.
    """
    text, inside = _one(value)
    changes = ["answer taken out of a list or mapping"] * inside
    if after == BOX:
        text = _last_box(text)[1]
    elif after is not None:
        text = text.rpartition(after)[2] if after in text else ""
    seen = _visible(text)
    if seen != text:
        changes.append("invisible characters taken off")
    text = seen.strip()
    box, content = _last_box(text)
    if content.strip() and _undressed(text) == box:
        return content.strip(), [*changes, "box around the answer taken off"]
    return text, changes


def gold_fault(text: str) -> str | None:
    """Say why no answer can be compared with this right answer. None where nothing speaks against it."""
    if text.casefold() in _PLACEHOLDERS:
        return "answer is a placeholder (proof, notfound, nan, None)"
    if _CONTAINER.match(text):
        return "answer is a list or mapping written as text"
    return solution_fault(text) or (
        f"answer of more than {LONGEST} characters" if len(text) > LONGEST else None
    )


def solution_fault(text: str) -> str | None:
    """Say that a right answer is a whole solution. The text names the option that takes the answer out of it."""
    if HASHES in text:
        return "answer is a whole solution; bandpo data prepare --answer-from hashes takes what stands behind its ####"
    if _BOXED.search(text):
        return r"answer is a whole solution; bandpo data prepare --answer-from box takes what its last \boxed{} holds"
    return "answer is a whole solution" if _SENTENCES.search(text) and len(text.split()) >= 8 else None


def _one(value: Any) -> tuple[str, bool]:
    """Return the one text in a value, and whether it was inside a container."""
    if value is None or value != value:  # NaN is how some tables say nothing
        return "", False
    if isinstance(value, str):
        unpacked = unpack(value)
        texts = isinstance(unpacked, list) and all(isinstance(each, str | Mapping) for each in unpacked)
        if not (texts or isinstance(unpacked, Mapping)):
            return value, False  # [1, 2] is an interval, or a list that is the answer
        text, _ = _one(unpacked)
        if any(unicodedata.category(letter) == "Cc" for letter in text):
            raise ValueError(
                "answer is a list or mapping written as text, with characters that were lost"
            )
        return text, True
    if isinstance(value, int | float):
        return str(value), False
    if isinstance(value, Mapping):
        if "role" in value:
            raise ValueError("answer is messages")
        filled = {key: each for key, each in value.items() if each is not None}
        value = [filled[key] for key in _FIELDS if key in filled] or list(filled.values())
    if not isinstance(value, list):
        raise ValueError(f"answer is neither text nor a number, but {type(value).__name__}")
    texts = dict.fromkeys(_one(each)[0] for each in value)
    if len(texts) > 1:
        raise ValueError("answer has several values, where one is expected")
    return next(iter(texts), ""), True


def unpack(text: str) -> Any:
    """Parse a list or mapping as JSON or Python writes it; else None."""
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a backslash, which is LaTeX here
            return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _visible(text: str) -> str:
    """Remove invisible characters and marks of direction. Every space becomes a plain one."""
    return "".join(
        " " if kind == "Zs" else letter
        for letter, kind in zip(text, map(unicodedata.category, text), strict=True)
        if kind not in ("Cf", "Cc") or letter in "\t\n\r"
    )


def _undressed(text: str) -> str:
    """Remove a full stop and the delimiters of a formula."""
    text = text.removesuffix(".").rstrip()
    for left, right in _DELIMITERS:
        if text.startswith(left) and text.endswith(right):
            return text[len(left) : -len(right)].strip().removesuffix(".")
    return text


def _last_box(text: str) -> tuple[str, str]:
    r"""Return the last \boxed{} of a text, and its content. Both are empty if there is none, or if it does not end."""
    boxes = list(_BOXED.finditer(text))
    end = closing_brace(text, boxes[-1].end() - 1) if boxes else None
    return ("", "") if end is None else (text[boxes[-1].start() : end + 1], text[boxes[-1].end() : end])
