"""Read numbers and units as people write them. Such are "1 1/2", "forty-two", "60 mph", "\\$42", "25\\%"."""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import Any, NamedTuple

from .lexicon import NUMBERS, P

# ---- numbers


class Number(NamedTuple):
    """Hold an exact value and its decimal places. A fraction or a whole number has none."""

    value: Fraction
    places: int = 0

    @property
    def digits(self) -> int:
        """Count the significant digits."""
        return len(str(abs(int(self.value * 10**self.places))))


SCALES: dict[str, int] = NUMBERS["scales"]
VALUES: dict[str, int] = NUMBERS["values"] | NUMBERS["tens"]
_BELOW_100 = VALUES | {
    f"{ten} {one}": a + b for ten, a in NUMBERS["tens"].items() for one, b in VALUES.items() if 0 < b < 10
}


@functools.lru_cache(maxsize=1000)
def number(text: str) -> Number | None:
    """Read a number. Such are 042, 4.20, 1,000, 3/4, 1\\frac{3}{4}, 0.\\overline{3}, 4e3 and "forty-two"."""
    if len(text) > 1000:  # int() takes no more than 4,300 digits
        return None
    sign = P.leading_sign.match(text)[0]  # pyright: ignore[reportOptionalSubscript]
    text, places = text[len(sign) :], 0
    decimal = P.decimal_number.fullmatch(text)
    fraction = None if decimal else P.fraction_number.fullmatch(text)
    if decimal:
        whole, decimals, again, power, name = decimal.groups("")
        scale = SCALES.get(name.casefold(), 1)
        value = Fraction(f"{re.sub('[^0-9]', '', whole) or 0}.{decimals or 0}e{power or 0}") * scale
        value += Fraction(int(again or 0), 10 ** len(decimals) * (10 ** len(again) - 1 or 1))
        places = 0 if again else max(0, len(decimals) - int(power or 0) - len(str(scale)) + 1)
    elif fraction:
        whole, *parts = fraction.groups("")
        above, below = (int(part.strip("{} ")) for part in parts if part)
        signed_part = whole and min(above, below) < 0  # 1 -1/2 is not a number
        value = int(whole or 0) + Fraction(above, below) if below and not signed_part else None
    else:
        words = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", re.sub("^half$", "a half", text.casefold()))
        words = re.sub(rf"({'|'.join(SCALES)})(?:,(?= )| and(?= \w))", r"\1", words)
        match = P.part_number.fullmatch(words)
        value = _whole(match[1] or "" if match else words or "?")
        if match and value is not None:
            value += Fraction(VALUES.get(match[2], 1), NUMBERS["parts"][match[3].removesuffix("s")])
    if value is None:
        return None
    return Number(Fraction(value if sign.strip() in ("", "+") else -value), places)


def _whole(words: str) -> Any:
    """Read "forty two" or "two million three hundred thousand". None for anything else."""
    for name, scale in SCALES.items():
        before, cut, after = words.partition(name)
        if cut:
            above, below = _whole(re.sub("^an? ", "one ", before).strip()), _whole(after.strip())
            return above * scale + below if above and below is not None and below < scale else None
    return (
        Fraction(words)
        if re.fullmatch("[0-9]+(?:/[1-9][0-9]*)?", words)
        else (_BELOW_100 | {"": 0}).get(words)
    )


def equal(one: Number, other: Number) -> bool:
    """Compare values. A decimal may be somebody's rounding.

    One for a fraction without an end (1/3) needs six places or more, all right. Two decimals of eight digits or more
    agree to the places of the shorter, and the 15 digits or more that a computer prints are right to a billionth.
    """
    short, long = sorted((one, other), key=lambda number: number.places)
    apart, size = abs(one.value - other.value), abs(short.value)
    if apart == 0 or (long.places and long.digits >= 15 and apart <= size / 10**9):
        return True
    if short.places:
        return min(one.digits, other.digits) >= 8 and apart < Fraction(1, 10**short.places)
    endless = 10 ** short.value.denominator.bit_length() % short.value.denominator > 0
    return endless and long.places >= 6 and apart < min(Fraction(1, 10**long.places), size / 100)


# ---- units

_UNITS = {name: names.split()[0] for names in NUMBERS["units"].split(",") for name in names.split()}
_UNITS |= {f"{name}s": unit for name, unit in _UNITS.items() if len(name) > 1}


def split_unit(text: str, letters: str = "") -> tuple[str, str | None]:
    """Return (text before the unit, the unit's one name). None without a unit.

    `letters` are variables: "5 m" has no metres if m is one of them.
    """
    text = P.unit_fraction.sub(r" \1/\2", text.strip())
    money = P.money.match(text)
    if money and (money[0] != "$" or text.count("$") == 1):  # $42$ is a formula
        value, unit = text[money.end() :].strip(), NUMBERS["signs"][money[0][-1]]
        rest, other = split_unit(value, letters)
        return (rest, unit) if other == unit or value.startswith(f"{rest}/") else (value, unit)
    for match in P.unit_begins.finditer(text, max(0, len(text) - 50)):
        start, end = match.span()
        if start == 0 or text[start - 1] in "+-*/^=(,<>&":
            continue
        unit = unit_name(text[end:], letters, start == end)
        if unit:
            return text[:start].strip(), unit
    return text, None


def unit_name(words: str, letters: str = "", joined: bool = False) -> str | None:
    """Return the one name of a unit, such as "%" or "miles per hour". None for things that are counted."""
    if P.unit_sign.fullmatch(words):
        return next((unit for sign, unit in NUMBERS["signs"].items() if sign in words), "degree")
    words = re.sub(r"\s+(?:old|of age)$", "", words.replace(".", ""))
    parts = [
        P.powered_unit.sub(lambda match: f"{match[2]}^{2 if match[1][0] == 's' else 3}", part)
        for part in P.per.split(words)
    ]
    products = [re.split(r"\s*\\cdot\s*|(?<!\^)\s+(?!\^)", part.strip()) for part in parts]
    names = [
        [_one_unit(name, letters, joined) for name in product] for product in products if product != [""]
    ]
    if not 1 <= len(names) <= 2 or any(None in product for product in names):
        return None
    return "/".join(" ".join(sorted(product)) for product in names)


def _one_unit(text: str, letters: str, joined: bool) -> Any:
    match = P.one_unit.fullmatch(text)
    name = match[1] if match else ""
    unit = _UNITS.get(name) or _UNITS.get(name.casefold() if len(name) > 1 else "")
    if unit is None or (len(name) == 1 and (joined or name in letters)):
        return None
    return unit + (f"^{match[3]}" if match and match[3] else "")


# ---- words

_CHANGING = {
    *(*NUMBERS["changing"].split(), *NUMBERS["parts"], *SCALES),
    *(f"{word}s" for word in (*NUMBERS["parts"], *VALUES, *SCALES, *(f"{scale}th" for scale in SCALES))),
}


def changes(words: str) -> bool:
    """Check for a word that may change its neighbours."""
    tokens = re.findall(r"[a-z'-]+", words.casefold())
    return P.changing_phrase.search(" ".join(tokens)) is not None or any(
        word in _CHANGING or word.endswith("n't") for word in tokens
    )
