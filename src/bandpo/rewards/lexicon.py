"""Load the words and patterns by which an answer is found, read and compared.

`words.yaml` has the words that decide, in many languages, `numbers.yaml` numbers and units, `patterns.yaml` the rest.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

# The vowels of many scripts are marks, which Python's \w leaves out.
_MARKS = (
    "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0970-\u0df3\u0e31-\u0e4e\u0eb1-\u0ecd"
    "\u102b-\u109d\u17b4-\u17d3"
)
_LETTER = rf"(?:[^\W\d_]|(?!\w)[{_MARKS}\u200c\u200d])"
_LOOKAHEAD = re.compile(r"\(\?[=!].*?\)")
# Thai, Khmer, Chinese and their like put no space between words.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u9fff\uac00-\ud7af]")


def _load(name: str) -> dict[str, Any]:
    return yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))


def _any_of(words: list[str]) -> str:
    """Return a regular expression for any of these words, the longest first. With spaces, they are whole words."""
    words = sorted(
        words, key=lambda word: len(_LOOKAHEAD.sub("", word.replace(_LETTER, ""))), reverse=True
    )
    spaced = "|".join(word for word in words if not _UNSPACED.match(word))
    unspaced = "|".join(word for word in words if _UNSPACED.match(word))
    return rf"(?:(?<![^\W\d_]|\\)(?<![{_MARKS}])(?:{spaced})(?!{_LETTER})|{unspaced})"


# By the English that a word is read as; "*" is any ending.
WORDS: dict[str, list[str]] = {
    english: [
        word.replace("*", f"{_LETTER}*") for words in languages.values() for word in words.split(", ")
    ]
    for english, languages in _load("words").items()
}
NUMBERS = _load("numbers")
# A text has a statement in another language only where one of these stands, in small letters.
NOUNS = [*WORDS["answer"], "\u9009"]
ASCII_NOUNS = [noun for noun in NOUNS if noun.isascii()]


class _Patterns:
    """Compile a pattern at its first use. `P.box` is the `box` of patterns.yaml."""

    def __init__(self, **parts: str) -> None:
        for name, pieces in _load("patterns").items():
            parts[name] = re.sub("\u00ab(\\w+)\u00bb", lambda match: parts[match[1]], "".join(pieces))
        self.texts = SimpleNamespace(**parts)

    def __getattr__(self, name: str) -> re.Pattern[str]:
        self.__dict__[name] = re.compile(getattr(self.texts, name))
        return self.__dict__[name]


_DECIDING = {
    word: english for english, words in WORDS.items() if english not in ("answer", "is") for word in words
}
_ASCII = [
    word.replace(_LETTER, "[a-z]").lower() for word in _DECIDING if word.replace(_LETTER, "").isascii()
]
_FIRST = {re.split("[^a-z]", word[:5])[0] for word in _ASCII}
P = _Patterns(
    letter=_LETTER,
    noun=_any_of([*WORDS["answer"], *(word.capitalize() for word in WORDS["answer"])]),
    is_word=_any_of(WORDS["is"]),
    deciding=_any_of([*_DECIDING]),
    ascii_words="|".join(_ASCII),
    value_word="|".join([*NUMBERS["values"], *NUMBERS["tens"]]),
    scale_word="|".join(NUMBERS["scales"]),
    part_word=f"(?:{'|'.join(NUMBERS['parts'])})s?",
)
_STOPS = dict(
    zip(
        "\u3002\uff61\u0964\u06d4\uff01\uff1f\u061f\u3001\uff0c\u060c\uff1b\u061b\uff1a",
        "....!??,,,;;:",
        strict=True,
    )
)


@functools.lru_cache(maxsize=10_000)
def _english(word: str) -> str:
    return next(
        (
            english
            for each, english in _DECIDING.items()
            if re.fullmatch(_LOOKAHEAD.sub("", each), word, re.IGNORECASE)
        ),
        "word",
    )


def in_english(text: str) -> str:
    """Write the words that decide in English. Others are "word", but for those of the letters a to z."""
    if text.isascii():  # most is English: two quick looks, the second a tenth of the time of what follows
        lower = text.lower()
        if _FIRST.isdisjoint(P.first_letters.findall(lower)) or not P.ascii_deciding.search(lower):
            return text
    text = P.digit.sub(lambda match: str(unicodedata.decimal(match[0])), text)
    text = P.stop.sub(lambda match: f"{_STOPS.get(match[0], '')} ", text)
    text = P.any_deciding.sub(lambda match: f" {_english(match[0])} ", text)
    return P.space_before_mark.sub(
        "", P.other_word.sub(lambda match: " word" * (1 + len(match[0]) // 6) + " ", text)
    )
