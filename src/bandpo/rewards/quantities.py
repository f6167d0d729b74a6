"""Read numbers and units as people write them. Such are "1 1/2", "forty-two", "60 mph", "\\$42", "25\\%"."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

# ---- numbers


class Number(NamedTuple):
    """Hold an exact value and its decimal places. A fraction or a whole number has none."""

    value: Fraction
    places: int = 0


_WHOLE = r"(?:[0-9]{1,3}(?:(?:,|\{,\}|,\\!|\\,| )[0-9]{3})+|[0-9]+)"
_DECIMAL = re.compile(rf"([-+]?)\s*({_WHOLE}?)(?:\.([0-9]*))?")
_REPEATING = re.compile(r"([-+]?)\s*([0-9]*)\.([0-9]*)\\(?:overline|bar)\{([0-9]+)\}")
# 3/4, \frac{3}{4}, and with a whole number before it: 1 3/4 and 1\frac{3}{4}.
_FRACTION = re.compile(
    r"([-+]?)\s*(?:([0-9]+)(?:\s*(?=\\[dtc]?frac)|\s+(?=[0-9]+\s*/)))?"
    r"(?:\\[dtc]?frac\s*(?:\{\s*([-+]?[0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([-+]?[0-9]+)\s*\}|([0-9]))|([0-9]+)\s*/\s*([0-9]+))"
)
_SCIENTIFIC = re.compile(r"([-+]?[0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,3})")
_NEGATIVE = re.compile(r"(?i)(?:minus|negative)\s+(?=[\w\\])|-\s*(?=[a-z])")
SCALES = {"trillion": 10**12, "billion": 10**9, "million": 10**6, "thousand": 1000, "hundred": 100, "dozen": 12}
_SCALED = re.compile(rf"(?i)([^a-z]*[0-9])\s*({'|'.join(SCALES)})")  # 2.5 million
_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()  # noqa: SIM905
_SMALL += ["seventeen", "eighteen", "nineteen"]
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
VALUES = {name: i for i, name in enumerate(_SMALL)} | _TENS
PARTS = {"half": 2, "third": 3, "fourth": 4, "quarter": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8}
PARTS |= {"ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12, "sixteenth": 16, "twentieth": 20, "hundredth": 100}
PARTS |= {f"{name}s": value for name, value in PARTS.items()} | {"halves": 2}


def number(text: str) -> Number | None:
    """Read a number. Such are 042, 4.20, 1,000, 3/4, 1\\frac{3}{4}, 0.\\overline{3}, 4e3 and "forty-two"."""
    if len(text) > 1000:  # int() takes no more than 4,300 digits
        return None
    if match := _DECIMAL.fullmatch(text):
        sign, whole, decimals = match.groups()
        whole = re.sub(r"[^0-9]", "", whole)
        if whole or decimals:
            return Number(Fraction(f"{sign}{whole or 0}.{decimals or 0}"), len(decimals or ""))
    if match := _FRACTION.fullmatch(text):
        sign, whole, *parts = match.groups()
        above, below = (int(part) for part in parts if part is not None)
        if below and (not whole or (above >= 0 and below > 0)):
            value = int(whole or 0) + Fraction(above, below)
            return Number(-value if sign == "-" else value)
    if match := _REPEATING.fullmatch(text):
        sign, whole, decimals, again = match.groups()
        value = Fraction(f"{whole or 0}.{decimals or 0}") + Fraction(
            int(again), (10 ** len(again) - 1) * 10 ** len(decimals)
        )
        return Number(-value if sign == "-" else value)
    if match := _NEGATIVE.match(text):
        positive = number(text[match.end() :])
        return Number(-positive.value, positive.places) if positive and positive.value > 0 else None
    if match := _SCIENTIFIC.fullmatch(text):
        return _scaled(number(match[1]), Fraction(10) ** int(match[2]), int(match[2]))
    if match := _SCALED.fullmatch(text):
        scale = SCALES[match[2].casefold()]
        return _scaled(number(match[1]), Fraction(scale), len(str(scale)) - 1)
    words = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", text.casefold())
    value = _in_words(re.sub(rf"(?<=[a-z]) *({'|'.join(SCALES)}),", r" \1 ", words).split())
    return Number(value) if value is not None else None


def _scaled(found: Number | None, scale: Fraction, digits: int) -> Number | None:
    """Multiply by a scale of so many digits. The point moves by them."""
    return found and Number(found.value * scale, max(0, found.places - digits))


def _in_words(words: list[str]) -> Fraction | None:
    """Read whole numbers, simple parts, or both, in words.

    "two thousand and five", "two thirds", "half", "three and a half".
    """
    match words:
        case ["half"]:
            return Fraction(1, 2)
        case ["a" | "an" | "one", part] if part in PARTS:
            return Fraction(1, PARTS[part])
        case [count, part] if count in VALUES and part in PARTS:
            return Fraction(VALUES[count], PARTS[part])
        case [*whole, "and", count, part] if part in PARTS:
            one, other = _whole(whole), _in_words([count, part])
            return one + other if one is not None and other is not None and other < 1 else None
    found = _whole(words)
    return Fraction(found) if found is not None else None


def _whole(words: list[str]) -> int | None:
    """Read "forty two" or "two million three hundred thousand". None for anything else."""
    for name, scale in SCALES.items():
        if name in words:
            cut = words.index(name)
            above = 1 if words[:cut] == ["a"] else _whole(words[:cut])
            rest = words[cut + 1 :]
            below = _whole(rest[1:] if rest[:1] == ["and"] else rest) if rest else 0
            return above * scale + below if above and below is not None and below < scale else None
    match words:
        case [one] if one in VALUES or one.isdecimal():
            return VALUES[one] if one in VALUES else int(one)
        case [ten, one] if ten in _TENS and one in _SMALL[1:10]:
            return _TENS[ten] + VALUES[one]
    return None


def equal(one: Number, other: Number) -> bool:
    """Compare values. A decimal for a longer fraction (1/3) needs six places or more, all right."""
    if one.value == other.value:
        return True
    for decimal, exact in ((one, other), (other, one)):
        below = exact.value.denominator
        if decimal.places >= 6 and not exact.places and 10 ** below.bit_length() % below:  # has no end as a decimal
            # Or as right as a computer's number of double precision.
            allowed = max(min(Fraction(1, 10**decimal.places), abs(exact.value) / 100), abs(exact.value) / 2**52)
            return abs(decimal.value - exact.value) < allowed
    return False


# ---- units

# One name for every way to write a unit. A single letter is a unit only after a space: 5m may be 5 times m.
_NAMES = """
mm millimeter millimetre, cm centimeter centimetre, m meter metre, km kilometer kilometre, inch inche in, ft foot feet,
mi mile, s second sec, min minute, h hour hr, day, week wk, month, year yr, g gram gm, kg kilogram, mg milligram, cent,
pound lb gbp, L liter litre l, mL milliliter millilitre ml, degree deg, radian rad, percent, unit, point, way,
dollar usd buck, euro eur, yen jpy, N newton, J joule, W watt, Hz hertz, K kelvin, Pa pascal, eV, V volt, A ampere,
C coulomb, T tesla, mol mole, ohm Omega
"""
_UNITS = {name: names.split()[0] for names in _NAMES.split(",") for name in names.split()}
_UNITS |= {f"{name}s": unit for name, unit in _UNITS.items() if len(name) > 1}
_UNITS |= {"mph": "mi/h", "kmh": "km/h", "kph": "km/h"}
_SIGNS = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "¢": "cent", "%": "percent", "°": "degree"}
_MONEY = re.compile(r"(?:[uU][sS])?\\?\$|[€£¥]")
_SQUARED = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_SIGN = re.compile(r"\\?%|[$€£¥¢]|\\\$|(?:°|\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-z]))(?:\s*[CF])?")
_ONE_UNIT = re.compile(r"(?:(square|sq|cubic|cu)\.?\s+)?\\?([A-Za-z]+)\s*(?:\^\s*\{?\s*(-?[1-4])\s*\}?)?")
_PER = re.compile(r"\s*/\s*|\s+per\s+")
_UNIT_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([A-Za-z]+)\s*\}\s*\{\s*([A-Za-z]+)\s*\}\s*$")
# A unit may begin after a digit, a closing bracket or a space.
_BOUNDARY = re.compile(r"(?<=[\d)}\]$.])(?=[^\d\s)}\]$.,])|(?<=\S)\s+(?=\S)|(?=\\?%$)|(?<=\\pi)\s*(?=[°^])")
_LONGEST_UNIT = 50


def split_unit(text: str, letters: str = "") -> tuple[str, str | None]:
    """Return (text before the unit, the unit's one name). None without a unit.

    `letters` are variables: "5 m" has no metres if m is one of them.
    """
    text = _UNIT_FRACTION.sub(r" \1/\2", text.strip())
    if (money := _MONEY.match(text)) and (money[0] != "$" or text.count("$") == 1):  # $42$ is a formula
        value, unit = text[money.end() :].strip(), _SIGNS[money[0][-1]]
        rest, other = split_unit(value, letters)
        return (rest, unit) if other == unit or value.startswith(f"{rest}/") else (value, unit)
    for match in _BOUNDARY.finditer(text, max(0, len(text) - _LONGEST_UNIT)):
        start, end = match.span()
        if start and text[start - 1] not in "+-*/^=(,<>&" and (unit := known_unit(text[end:], letters, start == end)):
            return text[:start].strip(), unit
    return text, None


def known_unit(words: str, letters: str = "", joined: bool = False) -> str | None:
    """Return the one name of a unit, such as "%" or "miles per hour". None for things that are counted."""
    if _SIGN.fullmatch(words):
        return next((unit for sign, unit in _SIGNS.items() if sign in words), "degree")
    above, *below = _PER.split(re.sub(r"\s+(old|of age)$", "", words.replace(".", "")))
    names = [_one_unit(part, letters, joined) for part in (above, *below) if part or not below]
    if len(names) > 2 or None in names:
        return None
    return "/".join(name for name in names if name)


def _one_unit(text: str, letters: str, joined: bool) -> str | None:
    match = _ONE_UNIT.fullmatch(text.strip())
    if not match:
        parts = re.split(r"\s*\\cdot\s*|\s+", text.strip())
        units = [_one_unit(part, letters, joined) for part in parts] if len(parts) > 1 else [None]
        return None if None in units else " ".join(sorted(unit for unit in units if unit))
    word, name, power = match.groups()
    if len(name) == 1 and (joined or name in letters):
        return None
    unit = _UNITS.get(name) or _UNITS.get(name.casefold() if len(name) > 1 else name)
    if unit is None or (word and power):
        return None
    power = _SQUARED[word] if word else f"^{power}" if power else ""
    return unit + power


# ---- words

# Words that may change the value that they stand beside.
_CHANGING = set(
    """
    not no never none nor neither nobody cannot without except excluded rejected eliminated extraneous wrong incorrect
    invalid erroneous untrue false mistaken mistake lie negation reciprocal mirror reverse half halved twice thrice
    doubled tripled squared cubed minus plus least most about almost nearly around roughly approximately upper too
    maybe perhaps possibly probably presumably apparently hopefully ought guess claims says base modulo binary mille
    pm o'clock bc outside many but
    """.split()  # noqa: SIM905
) | {*PARTS, *SCALES, *(f"{name}s" for name in (*VALUES, *SCALES, *(f"{scale}th" for scale in SCALES)))}


def changes(words: str) -> bool:
    """Check for a word that may change its neighbours."""
    found = re.findall(r"[a-z'-]+", words.casefold())
    return bool(_CHANGING_PHRASE.search(" ".join(found))) or any(
        word in _CHANGING or word.endswith("n't") for word in found
    )


_CHANGING_PHRASE = re.compile(
    r"^if\b|\b(?:could|may|might|can) be\b|\b(?:day|number|one) (?:before|after)\b|\bthan (?:that|this|it)\b"
    r"|\bdifferent (?:from|question|problem)|(?:square|cube|[a-z]+th) root\b|\binverse(?! (?:function|matrix))"
    r"|\b(?:double|triple) (?:the|of|this|that|its)\b|\b(?:square|cube|multiple|digits?|sum) of the (?:answer|result)\b"
    r"|\bof (?:it|(?:the|this|my|our) (?:answer|result|solution))\b"
)
