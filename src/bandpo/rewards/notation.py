r"""Write LaTeX, Unicode and Markdown in one way. What looks the same becomes the same."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from .lexicon import P
from .quantities import VALUES

# What may stand around a whole answer.
_AROUND = [
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ('"', '"'),
    (r"\boldsymbol{", "}"),
    (r"\underline{", "}"),
    ("{", "}"),
]
# The same mathematics in other signs.
_SIGNS = str.maketrans(
    dict(
        re.findall(
            r"(\S)(\\\w+ )",
            r"π\pi ∞\infty √\sqrt ∅\emptyset ≤\le ≥\ge ≠\ne ≈\approx ±\pm ∈\in Ω\Omega ·\cdot ",
        )
    )
    | {
        "\N{MULTIPLICATION SIGN}": "\\times ",
        "\N{UNION}": "\\cup ",
        "÷": "/",
        "\N{FRACTION SLASH}": "/",
        "\N{ARABIC PERCENT SIGN}": "%",
    }
    | {"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-"}
)
_UNICODE: list[tuple[re.Pattern[str], Any]] = [
    (re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]"), ""),  # what is not seen
    (re.compile(r"√\s*([0-9.]+|[a-z])"), r"\\sqrt{\1}"),
    (re.compile("([\u00bc-\u00be\u2150-\u215e])"), r" \1"),  # one half and the like
    (re.compile("([⁰¹²³⁴-⁹⁻]+)"), r"^{\1}"),
    (re.compile("([₀-₉]+)"), r"_{\1}"),
    (re.compile("([\u2102\u2115\u211a\u211d\u2124])"), r"\\mathbb{\1}"),  # number sets
]
# The same in words.
_REWRITTEN: list[tuple[re.Pattern[str], Any]] = [
    (re.compile(r"\\nicefrac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\neq(?![A-Za-z])"), r"\\ne"),
    (re.compile(r"\\([lg]e)(?:q|qslant)(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"\\lg(?![A-Za-z])"), r"\\log_{10}"),
    (re.compile(r"\{:\}"), ":"),
    (re.compile(r"^\s*\\?%\s*([\d.,]+)[\s*]*$"), r"\1\\%"),  # as Turkish has it
    (re.compile(r",\\!"), ","),
    (
        re.compile(r"\(without quotes\)(?: where\b.*)?"),
        "",
    ),  # of a prompt: "Answer: $Answer (without quotes) where ..."
    (re.compile(r"(?i)(?<![a-z\\])(?:negative|minus) infinity"), r"-\\infty "),
    (re.compile(r"(?i)(?<![a-z\\])(?:the )?empty set"), r"\\emptyset "),
    (
        re.compile(r"(?i)\b([0-9]+) dollars?,?(?: and)? ([0-9]{1,2}) cents?\b"),
        lambda match: f"\\${match[1]}.{match[2].zfill(2)}",
    ),
    (re.compile(r"(?i)(?<![a-z])plus or minus (?=[0-9$\\])"), r"\\pm "),
    (re.compile(rf"(?i)(?:the )?\bsquare root of {P.texts.alone}"), r"\\sqrt{\1}"),
    (
        re.compile(rf"(?i)\b({'|'.join(VALUES)}) times (?=\\sqrt)"),
        lambda match: f"{VALUES[match[1].casefold()]}\\cdot ",
    ),
    (re.compile(r"(?i)\b([0-9]+) factorial\b"), r"\1!"),
    (
        re.compile(r"(?i)\b([0-9]+) choose ([0-9]+)\b|(?<![A-Za-z\\])C\(([0-9]+), ?([0-9]+)\)"),
        r"\\binom{\1\3}{\2\4}",
    ),
    (re.compile(r"(?i)\blog base ([0-9]+|[a-z])(?![A-Za-z0-9]) of "), r"\\log_{\1} "),
    (
        re.compile(rf"(?i)(?<![\w/.^)-])(\w+) (?:raised )?to the power (?:of )?{P.texts.alone}"),
        r"\1^{\2}",
    ),
    (re.compile(r"(?i)(?<![\w/.^)-])(\w+) raised to the ([0-9]+)(?:st|nd|rd|th) power"), r"\1^{\2}"),
    (re.compile(r"\b([a-z]) (?:is|must be) greater than (?=[-0-9$\\])"), r"\1 > "),
    (
        re.compile(rf"(?i)\b({'|'.join(VALUES)}) pi\b"),
        lambda match: f"{VALUES[match[1].casefold()]}\\pi ",
    ),
    (re.compile(r"(?<![\w)])\*\*([^*]+)\*\*"), r"\1"),  # bold; before a power of Python
    (re.compile(r"(?<=[\w)}$.])\*\*(?=[\s,;:]|$)"), ""),  # the end of bold that began before the answer
    (re.compile(r"(?<=[\w)])\*\*(?=[\w(])"), "^"),
    (re.compile(r"\\\\\[[0-9.]+(?:pt|ex|em)\]"), r"\\\\"),  # the space between two rows
    (re.compile(r"\\(?:text)?color\{\w+\}"), ""),
    (
        re.compile(
            r"\\(?:num|text|mbox|textrm|textnormal|textit|textbf|mathrm|mathbf|operatorname)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
        ),
        r" \1 ",
    ),
    (re.compile(rf"(?<!\\)\\(?:[;:!> ]|,(?!\d{{3}}(?!\d)))|{P.texts.style}|(?<!^)~"), " "),
    (re.compile(r"\s+"), " "),
]


def plain(text: str) -> str:
    r"""Remove \text{} and the like, colours and kinds of spaces. Signs of Unicode become commands."""
    if not text.isascii():
        for pattern, new in _UNICODE:
            text = pattern.sub(new, text)
        text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    if P.digits.fullmatch(text):
        return text
    for pattern, new in _REWRITTEN:
        text = pattern.sub(new, text)
    return text


def bare(text: str) -> str:
    """Remove what may stand around a whole answer. That is white space, Markdown, delimiters, boxes, full stops."""
    before = None
    while text != before and not text.isalnum():
        before = text
        text = re.sub(
            r"(?<![\\.])[.,;:\u3002\uff0c\uff1b]$", "", text.strip().strip("*`").lstrip("#").strip()
        )
        text = re.sub(r"^__|__$|^\\therefore", "", text)
        for opening, closing in _AROUND:
            inner = text[len(opening) : -len(closing)]
            if not inner or not (text.startswith(opening) and text.endswith(closing)):
                continue
            braced = closing == "}" and closing_brace(text, len(opening) - 1) == len(text) - 1
            if braced or closing not in inner + "}":
                text = inner
    return text


def compact(text: str) -> str:
    """Return one notation for texts that look the same. So \\dfrac, spaces, \\left and \\right go."""
    text = re.sub(r"\\[dtc](frac|binom)(?![A-Za-z])", r"\\\1", text)
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", P.unseen.sub("", text))


def closing_brace(text: str, opening: int) -> int | None:
    """Return the place where the brace at `opening` is closed, if near."""
    depth = 0
    for brace in re.finditer(r"(?<!\\)[{}]", text[opening : opening + 1000]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return opening + brace.start()
    return None
