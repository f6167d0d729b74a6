r"""Write LaTeX, Unicode and Markdown in one way. What looks the same becomes the same."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from .quantities import VALUES

COMMAND = re.compile(r"\\([A-Za-z]+)")
PROSE = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")  # two letters together, which are no command
_DELIMITERS = [("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ('"', '"')]
_WRAPPERS = ("\\boldsymbol{", "\\underline{", "{")
_COLOR = re.compile(r"\\(?:text)?color\{\w+\}")
_TEXT = re.compile(
    r"\\(?:num|text|mbox|textrm|textnormal|textit|textbf|mathrm|mathbf|operatorname)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
# Spaces, sizes and styles, which change nothing in a formula.
STYLE = (
    r"\\(?:q?quad|checkmark|blacksquare|square|qed|(?:display|text)style|[lL]arge|LARGE|[hH]uge|bf|it|rm)(?![A-Za-z])"
)
_DIGITS = re.compile(r"[-+$]?[\d.,]+\$?")  # most answers, to which none of this applies
_SPACE = re.compile(rf"(?<!\\)\\(?:[;:!> ]|,(?!\d{{3}}(?!\d)))|{STYLE}|(?<!^)~|\xa0")
# The same mathematics in other signs.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_SIGNS = {chr(0xFEE0 + ord(sign)): sign for sign in map(chr, range(33, 127))}
_SIGNS |= {"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{FRACTION SLASH}": "/", "÷": "/"}
_BY_NAME = r"π\pi ∞\infty √\sqrt ∅\emptyset ≤\le ≥\ge ≠\ne ≈\approx ±\pm ∈\in Ω\Omega ·\cdot "
_SIGNS |= dict(re.findall(r"(\S)(\\\w+ )", _BY_NAME)) | {"\N{MULTIPLICATION SIGN}": "\\times ", "\N{UNION}": "\\cup "}
_SIGN = str.maketrans(_SIGNS)
_COMMANDS = {
    r"\nicefrac": r"\frac",
    r"\neq": r"\ne",
    r"\lg": r"\log_{10}",
    "{:}": ":",
    r",\!": ",",
    r"\geqslant": r"\ge ",
}
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "₀₁₂₃₄₅₆₇₈₉"
_LEVEL = str.maketrans(_RAISED + _LOWERED, "0123456789-0123456789")
_ROOT = re.compile(r"√\s*([0-9.]+|[a-z])")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")  # one half and the like
_ALONE = r"([0-9]+|[a-z])(?=[\s$.),;]*$)"
# The same in words.
_NAMED: list[tuple[re.Pattern[str], Any]] = [
    (re.compile(r"\(without quotes\)(?: where\b.*)?"), ""),  # of a prompt: "Answer: $Answer (without quotes) where ..."
    (re.compile(r"(?i)(?<![a-z\\])(?:negative|minus) infinity"), r"-\\infty "),
    (re.compile(r"(?i)(?<![a-z\\])(?:the )?empty set"), r"\\emptyset "),
    (
        re.compile(r"(?i)\b([0-9]+) dollars?,?(?: and)? ([0-9]{1,2}) cents?\b"),
        lambda found: f"\\${found[1]}.{found[2].zfill(2)}",
    ),
    (re.compile(r"(?i)(?<![a-z])plus or minus (?=[0-9$\\])"), r"\\pm "),
    (re.compile(rf"(?i)(?:the )?\bsquare root of {_ALONE}"), r"\\sqrt{\1}"),
    (
        re.compile(rf"(?i)\b({'|'.join(VALUES)}) times (?=\\sqrt)"),
        lambda found: f"{VALUES[found[1].casefold()]}\\cdot ",
    ),
    (re.compile(r"(?i)\b([0-9]+) factorial\b"), r"\1!"),
    (re.compile(r"(?i)\b([0-9]+) choose ([0-9]+)\b|(?<![A-Za-z\\])C\(([0-9]+), ?([0-9]+)\)"), r"\\binom{\1\3}{\2\4}"),
    (re.compile(r"(?i)\blog base ([0-9]+|[a-z])(?![A-Za-z0-9]) of "), r"\\log_{\1} "),
    (re.compile(rf"(?i)(?<![\w/.^)-])(\w+) (?:raised )?to the power (?:of )?{_ALONE}"), r"\1^{\2}"),
    (re.compile(r"(?i)(?<![\w/.^)-])(\w+) raised to the ([0-9]+)(?:st|nd|rd|th) power"), r"\1^{\2}"),
    (re.compile(r"\b([a-z]) (?:is|must be) greater than (?=[-0-9$\\])"), r"\1 > "),
    (re.compile(rf"(?i)\b({'|'.join(VALUES)}) pi\b"), lambda found: f"{VALUES[found[1].casefold()]}\\pi "),
    (re.compile(r"(?<![\w)])\*\*([^*]+)\*\*"), r"\1"),  # bold; before a power of Python
    (re.compile(r"(?<=[\w)}$.])\*\*(?=[\s,;:]|$)"), ""),  # the end of bold that began before the answer
    (re.compile(r"(?<=[\w)])\*\*(?=[\w(])"), "^"),
    (re.compile(r"\\\\\[[0-9.]+(?:pt|ex|em)\]"), r"\\\\"),  # the space between two rows
]


def plain(text: str) -> str:
    r"""Remove \text{} and the like, colours and kinds of spaces. Signs of Unicode become commands."""
    if not text.isascii():
        text = _ROOT.sub(r"\\sqrt{\1}", _INVISIBLE.sub("", text))
        text = _VULGAR.sub(lambda found: f" {unicodedata.normalize('NFKC', found[0])}", text).translate(_SIGN)
        text = re.sub(f"[{_RAISED}]+", lambda found: f"^{{{found[0].translate(_LEVEL)}}}", text)
        text = re.sub(f"[{_LOWERED}]+", lambda found: f"_{{{found[0].translate(_LEVEL)}}}", text)
    if _DIGITS.fullmatch(text):
        return text
    for command, other in _COMMANDS.items():
        text = text.replace(command, other)
    for pattern, command in _NAMED:
        text = pattern.sub(command, text)
    text = _COLOR.sub("", text)
    text = _TEXT.sub(lambda match: f" {match[1]} ", text) if "\\" in text else text
    return re.sub(r"\s+", " ", _SPACE.sub(" ", text))


def bare(text: str) -> str:
    """Remove what may stand around a whole answer. That is white space, Markdown, delimiters, boxes, full stops."""
    before = None
    while text != before:
        before = text
        if text.isalnum():
            break
        text = re.sub(r"(?<![\\.])[.,;:\u3002\uff0c\uff1b]$", "", text.strip().strip("*`").lstrip("#").strip())
        text = re.sub(r"^__|__$", "", text)
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            if text.startswith(opening) and text.endswith(closing) and closing not in inner and inner:
                text = inner
        for wrapper in _WRAPPERS:
            if text.startswith(wrapper) and closing_brace(text, len(wrapper) - 1) == len(text) - 1:
                text = text[len(wrapper) : -1]
        text = text.removeprefix("\\therefore")
    return text


_SPACES = re.compile(r"\s+(?=[^\w\s])|(?<=[^\w\s])\s+|(?<!\\)\\[!,;:]")


def compact(text: str) -> str:
    """Return one notation for texts that look the same. So \\dfrac, spaces, \\left and \\right go."""
    text = re.sub(r"\\[dtc](frac|binom)(?![A-Za-z])", r"\\\1", text)
    text = re.sub(r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])", "", text)
    return _SPACES.sub("", text)


def closing_brace(text: str, opening: int) -> int | None:
    """Return the place where the brace at `opening` is closed, if near."""
    depth = 0
    for brace in re.finditer(r"(?<!\\)[{}]", text[opening : opening + 1000]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return opening + brace.start()
    return None
