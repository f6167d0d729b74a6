r"""What is said as an answer: the value, and what may stand around it without changing it.

Whatever is not known to leave an answer as it is, is a reason to refuse it: the words before and after a value, its
unit, the LaTeX commands, the sides of an equation are looked up in lists of what is allowed. Before it there may also
be a sentence that says the value of its subject, in which no word could change it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .final_answer import changes, closing_brace, unboxed
from .quantities import SCALES, VALUES, number, split_unit

# Brackets within brackets: to read deeper ones takes a parser more time than it is worth.
DEEPEST = 12

_DELIMITERS = [("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ('"', '"')]
_WRAPPERS = ("\\boxed{", "\\fbox{", "\\textbf{", "\\mathbf{", "\\boldsymbol{", "\\mathrm{", "\\underline{", "{")
_COLOR = re.compile(r"\\(?:text)?color\{\w+\}")
_TEXT = re.compile(r"\\(?:text|mbox|textrm|textnormal|textit|textbf|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"(?<!\\)\\(?:[;:!> ]|,(?!\d{3}(?!\d)))|\\q?quad(?![a-z])|(?<!^)~|\N{NO-BREAK SPACE}")
# The same mathematics in other signs.
_SIGNS = {
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "π": "\\pi ",
    "∞": "\\infty ",
    "√": "\\sqrt",
    "\N{MULTIPLICATION SIGN}": "\\times ",
    "·": "\\cdot ",
    "÷": "/",
    "≤": "\\le ",
    "≥": "\\ge ",
    "≠": "\\ne ",
    "≈": "\\approx ",
    "±": "\\pm ",
    "∅": "\\emptyset ",
    "\N{UNION}": "\\cup ",
    "∈": "\\in ",
    "{:}": ":",
    ",\\!": ",",
    "\\geqslant": "\\ge ",
    "\\leqslant": "\\le ",
}
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "₀₁₂₃₄₅₆₇₈₉"
_LEVEL = str.maketrans(_RAISED + _LOWERED, "0123456789-0123456789")
_ROOT = re.compile(r"√\s*([0-9.]+|[a-z])")
_ALONE = r"([0-9]+|[a-z])(?=[\s$.),;]*$)"
# The same in words.
_NAMED: list[tuple[re.Pattern[str], Any]] = [
    (re.compile(r"(?i)(?<![a-z\\])(?:negative|minus) infinity"), r"-\\infty "),
    (re.compile(r"(?i)(?<![a-z\\])infinity"), r"\\infty "),
    (re.compile(r"(?i)(?<![a-z\\])(?:the )?empty set"), r"\\emptyset "),
    (re.compile(r"(?i)per cent\b"), "percent"),
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
    (re.compile(r"\b([a-z]) (?:is|must be) less than (?=[-0-9$\\])"), r"\1 < "),
    (re.compile(rf"(?i)\b({'|'.join(VALUES)}) pi\b"), lambda found: f"{VALUES[found[1].casefold()]}\\pi "),
    (re.compile(r"(?<![\w)])\*\*([^*]+)\*\*"), r"\1"),  # bold; before a power of Python
    (re.compile(r"(?<=[\w)}$.])\*\*(?=[\s,;:]|$)"), ""),  # the end of bold that began before the answer
    (re.compile(r"(?<=[\w)])\*\*(?=[\w(])"), "^"),
    (re.compile(r"\\\\\[[0-9.]+(?:pt|ex|em)\]"), r"\\\\"),  # the space between two rows
]


def plain(text: str) -> str:
    r"""Without \text{} and the like, colours, kinds of spaces; signs of Unicode as commands."""
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    for sign, command in _SIGNS.items():
        text = text.replace(sign, command)
    for pattern, command in _NAMED:
        text = pattern.sub(command, text)
    text = re.sub(f"[{_RAISED}]+", lambda found: f"^{{{found[0].translate(_LEVEL)}}}", text)
    text = re.sub(f"[{_LOWERED}]+", lambda found: f"_{{{found[0].translate(_LEVEL)}}}", text)
    text = _COLOR.sub("", text)
    text = _TEXT.sub(lambda match: f" {match[1]} ", text) if "\\" in text else text
    return re.sub(r"\s+", " ", _SPACE.sub(" ", text))


def bare(text: str) -> str:
    """Without what may stand around a whole answer: white space, Markdown, delimiters, boxes, full stops."""
    before = None
    while text != before:
        before = text
        text = re.sub(r"(?<!\\)[.,;:\u3002\uff0c\uff1b]+$", "", text.strip().strip("*`").strip())
        text = re.sub(r"^__|__$", "", text)
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            if text.startswith(opening) and text.endswith(closing) and closing not in inner and inner:
                text = inner
        for wrapper in _WRAPPERS:
            if text.startswith(wrapper) and closing_brace(text, len(wrapper) - 1) == len(text) - 1:
                text = text[len(wrapper) : -1]
        text = text.removeprefix("\\displaystyle").removeprefix("\\therefore")
    return text


_SPACES = re.compile(r"\s+(?=[^\w\s])|(?<=[^\w\s])\s+|(?<!\\)\\[!,;:]")


def compact(text: str) -> str:
    """The same for what looks the same: \\dfrac, spaces, \\left and \\right."""
    text = re.sub(r"\\[dtc](frac|binom)(?![A-Za-z])", r"\\\1", text)
    text = re.sub(r"\\(?:left|right|big|Big|bigg)(?![A-Za-z])", "", text)
    return _SPACES.sub("", text)


# Words before a value that leave it as it is, if the last of them is one of `_ENDS`.
_NOUNS = (
    "answer|value|result|solution|sum|total|area|volume|length|width|height|perimeter|radius|diameter|number|numbers|"
    "remainder|quotient|product|difference|probability|ratio|median|mean|mode|average|measure|angle|distance|cost|price|"
    "minimum|maximum|smallest|largest|least|greatest|integer|ways|solutions|required|desired|correct|final|possible|"
    "positive|center|centre|vertex|point|coordinates|midpoint|roots|zeros|term|coefficient|constant|limit|rate|amount|count|"
    "percentage|age|weight|mass|profit|score|side|hypotenuse|derivative|integral|determinant|range|domain|period|interval|"
    "set|all|real|line|midline|circle|common|factor|divisor|multiple|digit|digits|sequence|matrix|expression|function|equation|slope|degree|speed|time|year|day|month|expected|of|for|to"
)
_STARTS = "the|our|my|its|this|that|a|it|he|she|they|we|you|there|so|thus|hence|therefore|then|and|finally|in"
_ENDS = "is|are|equals|equal to|exactly|get|gets|have|has|needs|find|obtain|answer|so|thus|hence|therefore"
_ENDS += "|it's|that's|then|be|a total of|the year|in|the ratio|a ratio of|at|option|choice"
# Each \(...\) ends at the first \): else so many of them could be cut in as many ways as there are subsets.
_FORMULA = r"(?:\$[^$]+\$|\\\((?:(?!\\\)).)+\\\)|(?<![A-Za-z\\])[a-zA-Z](?=\s+(?:is|equals|has)\b)"
_NOBODY = "Half|Twice|Double|Triple|No|Not|None|Nobody|Nothing|Never|Neither"
_FORMULA += rf"|(?-i:(?!(?:{_NOBODY})\b)[A-Z][a-z]+)(?=\s+(?:has|gets|needs)\b))"  # Tom has 75
_LEAD = re.compile(
    rf"(?i)(?:(?!of (?:the |this |my |our )?(?:\w+ )?(?:answer|result|solution))"
    rf"(?:{_NOUNS}|{_STARTS}|{_ENDS})(?![A-Za-z])[\s,:]*|{_FORMULA}\s+(?!of\b))*"
    rf"(?:(?<![A-Za-z\\])(?:{_ENDS})(?![A-Za-z]):?|^[=:]|(?<=[a-z]):)[\s,:]*(?=\S)"
)
# A sentence that says one value of its subject, which is believed: "The vertex is at (3, -1)", "She earns 540".
_VERBS = (
    "get|need|cost|make|take|earn|pay|run|walk|give|spend|save|sell|buy|use|weigh|measure|last|reach|meet|intersect|score"
    "|win|lose|drink|eat|read|drive|travel|owe|receive|charge|produce|cover|hold|increase|decrease|grow|rise|fall|drop|swim"
    "|collect|write|bake|rent|burn|hire|plant|pick|work|sleep|own|raise|carry|require|fly|ride|complete|finish|arrive|leave"
)
_BETWEEN = (
    r"(?:\s+(?:exactly|equal to|simply|just|given by|at|the point|located at|therefore|thus|then|for|in|on|by|all"
    rf"|to (?:{_VERBS})|all real|x|her|him|them|us|me|you|the (?:interval|set|vector|matrix|ratio)"
    r"|an? (?:total|sum|profit|loss|length|distance|value|area|volume|score|speed|probability|ratio) of))*"
)
_VALUE = rf"(?=[-+]?\s*[\d$\\({{\[.€£¥]|[a-z]\b(?!\s+[a-z]{{2}})|(?:{'|'.join(VALUES)})\b)"
_VERB = re.compile(
    rf"(?<!\\)\b(?:(?:is|are|was|were|be|equals?|has|have|had|holds){_BETWEEN}[\s,:]+"
    rf"|(?:(?:{_VERBS})(?:e?s|e?d)?|made|took|paid|ran|gave|spent|sold|bought|lost|won|ate|drank|drove|grew|fell|rose|got)"
    rf"{_BETWEEN}\s+){_VALUE}"
)
_IS = re.compile(
    r"\b(?:at|is|are|was|be|represents|describes|falls|choose|pick|select|arrives|leaves|starts|ends)"
    r"\s+(?:(?:on|in|at)\s+)?"
)
_FORMULAS = re.compile(r"\$[^$]*\$|\\\((?:(?!\\\)).)*\\\)")
_SUBJECT = re.compile(r"(?i)\s*(?!(?:to|of|from|for|by)\b)[A-Za-z][A-Za-z0-9,'()\s-]*")
# What is said of the answer itself must be said of all of it: not of "the square of the answer".
_OF_ANSWER = re.compile(r"(?i)\b(?:answer|result|solution)s?\b")
_WHOLE_ANSWER = re.compile(
    r"(?i)\W*(?:(?:so|thus|hence|therefore|then|and|the|our|my|this|that),? )*"
    r"(?:(?!(?:of|to|and|from|by)\b)[a-z]+ ){0,3}"
    r"(?:answer|result|solution)s?(?: (?:in|to|of|for) (?!an?\b)[a-z ]+)?\s*"
)


def _said(text: str, verb: re.Pattern[str]) -> str:
    """What a sentence says of its subject; the text itself if it is none, or says more than that."""
    found = list(verb.finditer(text))
    if len(found) != 1:
        return text
    subject = _FORMULAS.sub(lambda each: " x " if re.search("[A-Za-z]", each[0]) else " 0 ", text[: found[0].start()])
    whole = _WHOLE_ANSWER.fullmatch(subject) or not _OF_ANSWER.search(subject)
    if whole and _SUBJECT.fullmatch(subject) and not changes(text[: found[0].end()]):
        return text[found[0].end() :]
    return text


def said(text: str) -> str:
    """The end of a sentence that says something of its subject: the ellipse of "The graph is an ellipse"."""
    return _said(text, _IS)


# What may follow a value: "540 a week", "35 % of the students", "120 ways to choose them", "3 hours to finish the job".
_BEHIND = re.compile(
    r"(?:\s+(?:(?:a|an|per|each|every) (?P<each>[a-z]+)"
    r"|(?:of|for|in) (?:the|these|those|all|his|her|their|its) (?P<of>[a-z ,'-]{3,60})"
    r"|ways (?:to|of|in which) (?P<to>[a-z ,'-]{3,80}))"
    r"|,\s+including (?P<including>[a-z ,'-]+)"
    r"|(?<=[a-zA-Z]{2}) (?:to(?! the)|of|on|at|from|for|in|with) (?P<what>[a-z ,'-]{3,60}))$"
)
_OFTEN = {"day", "week", "month", "year", "hour", "minute", "second"}
_OFTEN |= {"person", "student", "child", "friend", "ticket", "box"}
# Behind a value these are another value, or a part of this one.
_NO_END = {*VALUES, *SCALES, "denominator", "numerator", "place"}


def _without_end(text: str) -> str:
    """Without what follows the value and its unit."""
    while not number(text) and "/" not in (split_unit(text)[1] or "") and (behind := _BEHIND.search(text)):
        words = " ".join(filter(None, behind.groups()))
        known = behind["each"] is None or behind["each"] in _OFTEN
        # "42 dollars to start", not "two to three"
        counted = behind["what"] is None or split_unit(text[: behind.start()])[1]
        if not known or not counted or changes(words) or not _NO_END.isdisjoint(words.split()):
            break
        text = text[: behind.start()]
    return text


_TRAIL = re.compile(
    r"(?i)[\s,]+(?:in total|total|altogether|overall|"
    r"(?:is|as) (?:the|our|my) (?:(?:final|correct|required|desired) )?(?:answer|value|result|solution)|"
    r"as (?:required|desired|expected|needed|claimed)|"
    r"which is (?:prime|correct|an? (?:positive )?(?:prime|integer|prime number|whole number)|the (?:final )?answer))$|"
    r"\s+(?:left|remaining|each|apiece|apart|long|wide|tall|high|away)$|\s+of (?:them|these|those)$|"
    r"\s+such (?:numbers|integers|pairs|ways|values|triples|sets|functions)$"
)
_LETTERS = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "sqrt", "max", "min", "gcd", "lcm", "mod"}
_FUNCTIONS |= {
    "and",
    "or",
    "pi",
    "inf",
    "infty",
    "infinity",
    "matrix",
    "pmatrix",
    "bmatrix",
    "array",
    "cc",
    "ccc",
    "choose",
}
# What the parser is asked to read; another command is a reason to refuse.
_COMMANDS = set(
    """frac dfrac tfrac cfrac sqrt pi infty cdot times div pm mp left right big Big bigg circ degree over
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp max min gcd lcm mod bmod pmod
    binom dbinom tbinom choose
    lfloor rfloor lceil rceil lvert rvert vert le leq ge geq lt gt ne neq approx in cup cap setminus emptyset varnothing
    sum prod int lim to mathbb begin end lbrace rbrace langle rangle colon overline bar Gamma
    alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon
    phi varphi chi psi
    omega Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell angle triangle prime mid""".split()  # noqa: SIM905
)
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_PRIMES = re.compile(r"[\d)}]\s*(?:'|\\prime)")
_BASE = re.compile(r"(?<![A-Za-z}\\_])(?<!log)\d+\s*_")
_EQUALS = re.compile(r"(?<![<>!:\\=])=(?!=)")
_TRIGONOMETRY = re.compile(r"(?<!arc)(?:sin|cos|tan|cot|sec|csc)")
_DOTS = re.compile(r"\\[lc]?dots|\.\.\.|…")
# 1 % 0 and 0x1F are a programmer's, and nothing to the parser but products with 0.
_CODE = re.compile(r"%|(?<![\w.])0[xb][0-9A-Fa-f]")
# A power of powers of numbers: nobody can write it out.
_TOWER = re.compile(r"\^[\s{]*[0-9]+\s*\^")
_END = re.compile(r"[(\[]\s*-?\\infty\s*(?=,)|,\s*\+?\\infty\s*(?:\\right\s*)?[)\]]")
_INFINITE = re.compile(r"\\infty|(?<![A-Za-z\\])(?:inf|oo|zoo|nan)(?![A-Za-z])")


# 42 (forty-two), \\frac{1}{2} (or 0.5): both must be right.
_TWICE = re.compile(r"(.+?)\s+\((?:(?:or|i\.e\.,?|that is,?|equivalently,?)\s*([^()]+)|([a-z -]+))\)")
# The letter of a choice beside its value: (B) 7, B. 7, 7 (B).
_LETTER = re.compile(r"^(?:\(?[A-J]\)\s*[:.]?\s+|[A-J][.:]\s+)(?=\S)")
_LETTER_AFTER = re.compile(r"\s+\((?:option |choice )?[A-J]\)$")


class Reading(NamedTuple):
    """An answer's value, which may be given in several equal ways (6 \\cdot 7 = 42), and its unit."""

    values: tuple[str, ...]
    unit: str | None


def read(text: str, right: str) -> Reading | None:
    """What an answer says, of a bare `text`; None where anything stands beside it that may change it.

    What the right answer has too (its letters, commands, "=") is no reason to refuse.
    """
    text = _without_end(bare(_said(without_words(text), _VERB)))
    text = bare(_LETTER_AFTER.sub("", _LETTER.sub("", _TRAIL.sub("", text), count=1)))
    letters = "".join(re.findall(r"(?<!\\)\b[A-Za-z]\b|(?<=\d)[A-Za-z]", _COMMAND.sub(" ", right)))
    if "mod" not in right:
        text = _MODULO.sub(r"\1\2", text)
    values = (text,)
    if not _EQUALS.search(right):
        if named := _POINT_NAME.match(text):
            names = re.findall("[a-z]", named[2])
            if names != sorted({*names}):  # (y, x) is another order
                return None
            text = named[1] + text[named.end() :]
        values = _sides(text)
        if values is None:
            return None
    parts = [_without_unit(bare(value), letters) for value in values]
    if len({each for _, each in parts if each}) > 1:  # $42 = 42 cents
        return None
    last, unit = parts[-1]
    values = (*(value for value, _ in parts[:-1]), bare(last))
    if "(" in last and (twice := _TWICE.fullmatch(last)):
        values = (*values[:-1], twice[1], twice[2] or twice[3])
    if all(value and (number(value) or not _changed(value, right, letters)) for value in values):
        return Reading(values, unit)
    return None


def _without_unit(text: str, letters: str) -> tuple[str, str | None]:
    value, unit = split_unit(text, letters)
    # 30 degrees in sin 30 degrees are those of the angle, not of its sine.
    return (text, None) if unit == "degree" and _TRIGONOMETRY.search(value) else (value, unit)


def without_words(text: str) -> str:
    """The same without the words before it that leave it as it is: "The answer is"."""
    text = bare(unboxed(text))
    lead = _LEAD.match(text)
    return bare(text[lead.end() :]) if lead else text


_MODULO = re.compile(r"^(\$?)[A-Za-z]\s*\\equiv\s*(.+?)\s*\\pmod\s*\{?[0-9]+\}?(?=\$?$)")  # N \\equiv 809 \\pmod{1000}
_POINT_NAME = re.compile(r"^(\$?)\(([a-z](?:, ?[a-z])+)\)\s*=\s*")  # (x, y) = (2, 6) or (6, 2)


def _sides(text: str) -> tuple[str, ...] | None:
    """The sides of a chain of equations that are values; the others are names, such as x, f(2), m+n or "area"."""
    text = text.partition("\\approx")[0] if "\\approx" in text else text
    if re.search(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])|,.*=", text):  # x = 1 or x = 2 is a list
        return (text,)
    sides = [side.strip() for side in _split(text)]
    if len(sides) == 1:
        return (text,)
    if len(sides) == 2 and _is_name(sides[1]) and not _is_name(sides[0]):  # 42 = x
        sides.reverse()
    *first, last = sides
    if any(not side for side in sides) or "\\not" in text or any(changes(_COMMAND.sub(" ", side)) for side in first):
        return None
    return (*(side for side in first if not _is_name(side)), last)


def _split(text: str) -> list[str]:
    """At every "=" that is not within braces, as that of a sum is."""
    cuts = [match.start() for match in _EQUALS.finditer(text)]
    cuts = [cut for cut in cuts if text.count("{", 0, cut) == text.count("}", 0, cut)]
    return [text[start:stop] for start, stop in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(text)], strict=True)]


def _is_name(side: str) -> bool:
    if number(split_unit(bare(side))[0]):  # 42 cm
        return False
    letters = _COMMAND.sub(lambda match: " x " if match[1] in _GREEK else " ", re.sub(r"\$", "", side))
    return bool(re.search(r"(?<!\d)[A-Za-df-hj-z]", letters) or re.search(r"[A-Za-z]{2}", letters))


_GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu"}
_GREEK |= {"rho", "sigma", "tau", "phi", "varphi", "omega", "angle", "Delta"}


def _changed(value: str, right: str, letters: str) -> bool:
    """Is there anything in it that the parser would drop, or take for a product of letters?"""
    if not (_COMMANDS | set(_COMMAND.findall(right))).issuperset(_COMMAND.findall(value)):
        return True
    for pattern in (_PRIMES, _BASE, _DOTS, _INFINITE, _TOWER, _CODE):
        if pattern.search(_END.sub("", value)) and not pattern.search(right):
            return True
    depth = deepest = 0
    for sign in value:
        depth += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        return True
    words = _LETTERS.findall(_COMMAND.sub(" ", value))
    known = set(_LETTERS.findall(_COMMAND.sub(" ", right)))
    return any(
        w.casefold() not in _FUNCTIONS and w not in known and not (letters and set(w) <= set(letters)) for w in words
    )
