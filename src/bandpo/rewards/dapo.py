r"""Grade as verl's `math_dapo` does.

"Answer:" within the last 300 characters, Minerva's normalisation (arXiv 2206.14858, app. D), equal strings: so it is in
verl 0.5.0 to 0.9.0. Since 0.9.1 a \boxed{} in the last 100 characters is read where "Answer:" is missing.
"""

from __future__ import annotations

import itertools
import re

_INVALID = "[INVALID]"
_ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
# Minerva's lists, in the order in which they are gone through, which matters.
_REPLACED = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
]
_REMOVED = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    '"',
    "\\dots",
]
_UNWRAPPED = [
    (re.compile(r".*?\$(.*?)\$.*"), r"$\1$"),
    *((re.compile(rf"\\{command}\{{(.*?)\}}"), r"\1") for command in ("text", "textbf", "overline")),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
]


def minerva(text: str, right: str, boxes: bool) -> tuple[bool, str | None]:
    """Return whether a text is right, and what was read. With `boxes` one counts where there is no "Answer:"."""
    answers = _ANSWER.findall(text[-300:])
    answer = _normal(answers[-1] if answers else _INVALID)
    box = _last_box(text[-100:]) if boxes and answer == _INVALID else None
    if box is not None:
        return box == right, box
    return answer == _normal(right), answer if answers else None


def _last_box(text: str) -> str | None:
    r"""Return the content of the last \boxed{}. None if there is none, or if it does not end."""
    _, mark, after = text.rpartition("\\boxed{")
    depths = itertools.accumulate((letter == "{") - (letter == "}") for letter in after)
    end = next((place for place, depth in enumerate(depths) if depth < 0), None)
    return after[:end] if mark and end is not None else None


def _normal(answer: str) -> str:
    """Return Minerva's normal form of an answer."""
    answer = answer.split("=")[-1]
    for old, new in _REPLACED:
        answer = answer.replace(old, new)
    for unit in _REMOVED:
        answer = answer.replace(unit, "")
    for pattern, new in _UNWRAPPED:
        answer = pattern.sub(new, answer)
    answer = answer.replace("$", "")
    digits = answer.replace(",", "")
    return (digits if digits.isdigit() else answer).strip()
