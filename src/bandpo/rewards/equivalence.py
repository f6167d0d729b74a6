r"""Compare short LaTeX strings by math-verify. This runs in worker processes (`workers`), for it may not end.

math-verify parses and compares. Three rules of ours decide what is let through to it, and what it says is believed:

- *size*: nothing is evaluated that could not be written out, so that an answer such as 9^{9^9} is wrong at once;
- *kind*: a point is not a set, a column not a row, and an infinity is equal only to the same plain infinity;
- *value*: two things that it calls equal must have the same value in numbers, too. sympy takes 42 - oo for 0.
"""

from __future__ import annotations

import contextlib
import functools
import re
import traceback
from typing import Any

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import NormalizationConfig, latex2sympy2
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core import cache, random

from . import sizes
from .sizes import Refused, size

_FORMULA = r"(?:\$[^$]+\$|\\\((?:(?!\\\)).)+\\\)|\\\[(?:(?!\\\]).)+\\\])"
_LIST = re.compile(rf"{_FORMULA}(?:\s*(?:[,;]|[,;]?\s*(?:and|or))\s*{_FORMULA})*")
_DELIMITER = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]")
# Units are taken off before, from a list of them: its own has "by", "more", "o" and "ab".
_NORMAL = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
_LATEX = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=_NORMAL)]
_INNER = r"((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)"
_GROUP = r"(?:[^{}]|\{[^{}]*\})"
# What its grammar does not know, in what it does.
_REWRITTEN = [
    (re.compile(r"\\(?:[bp])mod(?![a-z])"), r"\\mod"),
    (re.compile(r"\\varnothing"), r"\\emptyset"),
    (re.compile(r"\\[dt]?binom\s*(\w)\s*(\w)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\log_\{?e\}?(?![a-z])"), r"\\ln"),
    (re.compile(r"\\[bB]igg?[lrm]?(?![A-Za-z])"), ""),
    (re.compile(r"°|\\degree"), r"^{\\circ}"),
    *(
        (re.compile(rf"{begin}({_GROUP}*)\\{old}(?![a-z])({_GROUP}*){end}"), rf"\\{new}{{\1}}{{\2}}")
        for old, new in (("over", "frac"), ("choose", "binom"))
        for begin, end in ((r"\{", r"\}"), (r"(?<=^\$)", r"(?=\$$)"))
    ),
    (re.compile(r"\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"(\\sqrt\[\w+\])\s*(\d)"), r"\1{\2}"),
    (re.compile(r"\\l(?:angle|brace)|\\r(?:angle|brace)"), lambda m: _BRACKETS[m[0]]),
    (re.compile(rf"\\?(?<![A-Za-z])sqrt\s*\({_INNER}\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])a(sin|cos|tan)(?![A-Za-z])"), r"\\arc\1"),
    (
        re.compile(r"(?<![A-Za-z\\])((?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|sec|csc|cot|exp|log|ln|pi)(?![A-Za-z])"),
        r"\\\1",
    ),
    (re.compile(r"(?:,\s*)?(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"), ","),
    # To its grammar 2(21) and 2{21} are mixed numbers, 23.
    (re.compile(r"(?<![_^\\A-Za-z}.\d])(\d+)\s*(?=[({]\s*\d)"), r"\1\\cdot "),
]
_BRACKETS = {"\\langle": "(", "\\rangle": ")", "\\lbrace": "\\{", "\\rbrace": "\\}"}
_INDEX = re.compile(r"_\{?\s*i\s*=")
_TRIGONOMETRY = re.compile(r"(?<!arc)(?:sin|cos|tan|cot|sec|csc)")
_DEGREES = re.compile(r"(?:(\d+(?:\.\d+)?)\s*)?\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
_INFINITE = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)


class _Reader(latex2sympy2._Latex2Sympy):
    """Read LaTeX as math-verify does, in two stages. Letters stay as they are, and nothing is computed yet.

    The two stages: first without full context, which gives the same tree or an error, in half the time.
    """

    modes = (PredictionMode.SLL, PredictionMode.LL)
    mode = PredictionMode.LL

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # x is not X, and \Pi not \pi; the same letters are the same symbols in the right answer and in the other.
        self.config = latex2sympy2.ConversionConfig(lowercase_symbols=False)
        self.is_real = True

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = self.mode
        return parser

    def parse(self, latex_str: str) -> Any:
        self.i_is_index = bool(_INDEX.search(latex_str))
        for mode in self.modes:
            self.mode = mode
            try:
                return super().parse(latex_str)
            except Refused:
                raise
            except Exception:
                if mode == PredictionMode.LL:
                    raise
        raise AssertionError

    def convert_atom_expr(self, atom_expr: Any) -> Any:
        found = super().convert_atom_expr(atom_expr)
        if self.i_is_index:
            return found
        if isinstance(found, sympy.Pow) and str(found.base) == "i":
            return sympy.Pow(sympy.I, found.exp, evaluate=False)
        return sympy.I if str(found) == "i" else found

    def parse_number(self, text: str) -> Any:
        """Parse decimals exactly. Many places are somebody's rounding, and compared as such."""
        found = super().parse_number(text)
        _, _, places = text.partition(".")
        return sympy.Rational(text.replace(",", "")) if 0 < len(places) < 6 and places.isdigit() else found

    def convert_interval(self, expr: Any) -> Any:
        """Convert (4, -3) to a point. [4, -3] is refused, of which the parser would make one, too."""
        found = super().convert_interval(expr)
        if isinstance(found, sympy.Tuple) and not expr.getText().startswith(("(", "\\left(")):
            raise Refused
        return found

    # These three are computed at once by the reader.

    def convert_binom(self, binom: Any) -> Any:
        return sympy.binomial(self.convert_expr(binom.upper), self.convert_expr(binom.lower), evaluate=False)

    def convert_func_arg(self, arg: Any) -> Any:
        found = super().convert_func_arg(arg)
        size(found)
        name = arg.parentCtx.func_normal_single_arg()
        if name is not None and name.start.text in ("\\Gamma", "\\gamma") and size(found) > 12:
            raise Refused
        return found

    def handle_gcd_lcm(self, f: str, args: Any) -> Any:
        if any(size(arg) > 1000 for arg in args):
            raise Refused
        return super().handle_gcd_lcm(f, args)


latex2sympy2._Latex2Sympy = _Reader  # looked up by this name wherever math-verify parses


def compare(task: list[str]) -> list[Any]:
    """Compare [right answer, answer, ...]. Returns [all equal, the last's value as text or None if unread]."""
    right, *answers = task
    # sympy tries its facts in a random order, and keeps what it found: where two of them contradict one another (about
    # factorials of oo, say) a grade would depend on what was graded before.
    random.seed(0)
    cache.clear_cache()
    try:
        read = [_parse(answer) for answer in answers]
        if any(value is None for value in read):
            return [False, None]
        gold = _parse_right(right)
        same = gold is not None and all(_equal(gold, value) for value in read)
        return [same, _shown(read[-1])]
    except MemoryError:
        raise
    except Refused:
        return [False, None]
    except Exception as error:  # an answer that sympy cannot take is wrong; an error in these files is ours
        if traceback.extract_tb(error.__traceback__, limit=-1)[0].filename in (__file__, sizes.__file__):
            raise
        return [False, None]


def _shown(value: Any) -> str | None:
    try:
        return str(value)[:1000]
    except Exception:
        return None


@functools.lru_cache(maxsize=1000)
def _parse_right(answer: str) -> Any:
    return _parse(answer)


_BUILDER = re.compile(r"\$?\\\{\s*([a-z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?::|\\mid|\\colon|\|)\s*([^{}]+)\\\}\$?")
_JOINED = re.compile(r"\s*\$?\s*(?:,\s*)?(?<![A-Za-z\\])(or|and)(?![A-Za-z])\s*\$?\s*")
_EQUATION = re.compile(r"\s*\$?\s*[a-z]\s*=")
_ORDER = re.compile(r"[<>]|\\(?:[lg]eq?|[lg]t)(?![a-z])")


def _parse(answer: str) -> Any:
    """Parse a set by its conditions, such as "x < 1 or x > 2". Anything else is parsed at once."""
    builder = _BUILDER.fullmatch(answer.strip())
    conditions = builder[2] if builder else answer
    parts = _JOINED.split(conditions)
    if "or" in parts[1::2] and all(_EQUATION.match(part) for part in parts[::2]):
        letters = {part.strip("$ ")[0] for part in parts[::2]}
        if len(letters) > 1:  # x = 3 or y = -1 is not a point
            raise Refused
    if answer.count("\\pm") == 1:
        both = [_parsed(answer.replace("\\pm", sign)) for sign in "+-"]
        if all(isinstance(each, sympy.Expr) for each in both):
            return sympy.FiniteSet(*both)
    if (builder or len(parts) > 1) and len({*parts[1::2]}) <= 1 and all(map(_ORDER.search, parts[::2])):
        found = [_parsed(part) for part in parts[::2]]
        letters = {letter for each in found if each is not None for letter in getattr(each, "free_symbols", ())}
        if len(letters) > 1 or (builder and {str(letter) for letter in letters} != {builder[1]}):
            raise Refused
        if all(isinstance(each, sympy.logic.boolalg.Boolean) for each in found):
            sets = [each.as_set() for each in found]
            return sympy.Intersection(*sets) if "and" in parts[1::2] else sympy.Union(*sets)
    return _parsed(answer)


def _parsed(answer: str) -> Any:
    """Parse one formula, or a list of them ("$x = 1$ or $x = 2$"). Of others the parser would take the last."""
    if not _LIST.fullmatch(answer):
        answer = f"${_DELIMITER.sub('', answer)}$"
    for pattern, new in _REWRITTEN:
        answer = pattern.sub(new, answer)
    # The sine of 30 degrees is that of pi / 6; where only degrees are added, they are the unit.
    answer = _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})" if _TRIGONOMETRY.search(answer) else r"\1", answer)
    read = parse(answer, _LATEX, parsing_timeout=0)
    # The last of what it returns is the string that it parsed; alone, it was not parsed.
    if len(read) < 2 or isinstance(read[0], str):
        return None
    return read[0]


# ---- kind and value


def _point(gold: Any, answer: Any) -> Any:
    """Convert x = 3, y = -1 to its point, in the order of letters.

    (2, 6) is an interval to the parser.
    """
    count = len(gold) if isinstance(gold, sympy.Tuple) else 2 * isinstance(gold, sympy.Interval)
    named = [each for each in sorted(answer.args, key=str) if isinstance(each, sympy.Eq) and each.lhs.is_Symbol]
    if not count == len(answer.args) == len({each.lhs for each in named}):
        return answer
    values = [each.rhs for each in named]
    if isinstance(gold, sympy.Tuple):
        return sympy.Tuple(*values)
    return sympy.Interval.open(*values) if gold.is_open and all(each.is_real for each in values) else answer


def _equal(gold: Any, answer: Any) -> bool:
    for expr in (answer, gold):
        size(expr)
    if isinstance(answer, sympy.FiniteSet):
        answer = _point(gold, answer)
    one, other = gold, answer
    if not (isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq) and gold.lhs != answer.lhs):
        one, other = _unnamed(gold), _unnamed(answer)
    if not _defined(answer, gold) or not _same(one, other):
        return False
    if isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr):
        return True
    same: list[Any] = [answer]
    if isinstance(answer, sympy.logic.boolalg.Boolean) and gold.free_symbols == answer.free_symbols:
        with contextlib.suppress(Exception):
            same.append(answer.as_set())  # 5 >= x >= -2 for -2 <= x <= 5
    return verify([gold], same, numeric_precision=200, timeout_seconds=0, allow_set_relation_comp=True)


def _unnamed(expr: Any) -> Any:
    """Return the 42 of x = 42; of a list of such, all values."""
    if isinstance(expr, sympy.Eq) and (
        expr.lhs.is_Symbol or isinstance(expr.lhs, (sympy.Tuple, sympy.Function, sympy.Interval))
    ):
        return expr.rhs
    if isinstance(expr, sympy.FiniteSet) and expr.args and all(isinstance(arg, sympy.Eq) for arg in expr.args):
        return sympy.FiniteSet(*(_unnamed(arg) for arg in expr.args))
    return expr


_KINDS = [
    ("matrix", (sympy.MatrixBase, sympy.MatrixExpr)),
    ("point", (sympy.Tuple,)),
    ("set", (sympy.FiniteSet,)),
    ("interval", (sympy.Set,)),
    ("relation", (sympy.logic.boolalg.Boolean,)),
    ("value", (sympy.Expr,)),
]
# math-verify reads (1, 2) as an interval or as a point, by the size of the numbers; a union of sets may be a set, and
# an inequality is another way to write an interval.
_ALIKE = [{"point", "interval"}, {"set", "interval"}, {"relation", "interval"}]


def _kind(expr: Any) -> str:
    return next((name for name, types in _KINDS if isinstance(expr, types)), "none")


def _same_kind(gold: Any, answer: Any) -> bool:
    kinds = {_kind(gold), _kind(answer)}
    if kinds == {"matrix"}:
        return getattr(gold, "shape", None) == getattr(answer, "shape", None)
    if kinds == {"set", "interval"}:  # a union of sets, but not the open interval that is a point
        return not any(isinstance(expr, sympy.Interval) for expr in (gold, answer))
    if kinds == {"set"} and len(gold.args) == len(answer.args):
        one, other = (sorted(_kind(arg).replace("interval", "point") for arg in expr.args) for expr in (gold, answer))
        return one == other
    return len(kinds) == 1 or kinds in _ALIKE


def _defined(expr: Any, gold: Any) -> bool:
    """Check that no part is infinite or undefined. An infinity alone or as an end may be right."""
    if expr in (sympy.oo, -sympy.oo):
        return gold == expr
    if isinstance(expr, (sympy.Interval, sympy.Tuple)) and len(expr.args) >= 2:
        return all(part in (sympy.oo, -sympy.oo) or _defined(part, gold) for part in expr.args)
    if isinstance(expr, sympy.MatrixBase):
        return all(_defined(part, gold) for part in expr.flat())
    if not all(_defined(part, gold) for part in getattr(expr, "args", ()) if isinstance(part, sympy.Basic)):
        return False
    if isinstance(expr, (sympy.Pow, sympy.Function)) and not expr.free_symbols:
        expr = expr.doit()  # 1/ln 0 is 1/(-oo), which is 0 to sympy
    return not isinstance(expr, sympy.Expr) or not expr.has(*_INFINITE)


def _same(gold: Any, answer: Any) -> bool:
    """Check that both are of one kind and have equal parts. Sets and relations may be written in other ways."""
    if not _same_kind(gold, answer):
        return False
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        return _same_value(gold, answer)
    if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        return all(map(_same, gold.flat(), answer.flat()))
    ordered, sets = (sympy.Tuple, sympy.Interval), (sympy.FiniteSet, sympy.Union)
    if isinstance(gold, ordered) and isinstance(answer, ordered):
        ends = [(expr.start, expr.end) if isinstance(expr, sympy.Interval) else expr.args for expr in (gold, answer)]
        return len(ends[0]) == len(ends[1]) and all(map(_same, *ends))
    if isinstance(gold, sets) and type(gold) is type(answer) and len(gold.args) == len(answer.args):
        pairs = (gold.args, answer.args), (answer.args, gold.args)
        return all(any(_same(one, other) for other in others) for some, others in pairs for one in some)
    return True


def _same_value(gold: Any, answer: Any) -> bool:
    """Compare in numbers, at three places for letters. It is exact without a decimal of six places or more."""
    if gold in (sympy.oo, -sympy.oo):
        return gold == answer
    letters = sorted(gold.free_symbols | answer.free_symbols, key=str)
    agreed = False
    for start in (2, 5, -11 if gold.is_rational_function(*letters) else 11):  # |x| is not x
        places = {letter: sympy.Rational(start + 3 * i, 7 + i) for i, letter in enumerate(letters)}
        if gold.has(*_COUNTING) or answer.has(*_COUNTING):  # which are defined for whole numbers
            places = {letter: sympy.Integer(abs(start) + i) for i, letter in enumerate(letters)}
        values = [expr.subs(places).doit() for expr in (gold, answer)]
        bits = sum(map(size, values))
        one, other = (sympy.N(value, 20, maxn=200 + int(bits)) for value in values)
        if not all(
            value.is_number and not value.has(*_UNKNOWN) and not value.atoms(sympy.Function) for value in (one, other)
        ):
            if not letters:
                return False
            continue
        apart, scale = abs(one - other), abs(one)
        if gold.has(sympy.Float) or answer.has(sympy.Float):
            whole = isinstance(values[0], sympy.Integer) or isinstance(values[1], sympy.Integer)
            close = apart <= (0 if whole else 1e-6 * max(scale, min(1, 100 * scale)))
        else:
            close = values[0] == values[1] or (apart <= scale / 10**15 and _is_zero(values[0] - values[1], scale, bits))
        if not close:
            return False
        agreed = True
    return agreed


_COUNTING = (sympy.Sum, sympy.Product, sympy.binomial, sympy.factorial)
_UNKNOWN = (*_INFINITE, sympy.AccumBounds)


def _is_zero(difference: Any, scale: Any, bits: float) -> bool:
    """Check for 0 with enough digits for numbers of these sizes. 1/2^98 is not 1/2^99, nor 1 + 1/2^98."""
    if isinstance(difference, sympy.Rational):
        return difference == 0
    digits = 60 + int(bits)
    return abs(sympy.N(difference, 5, maxn=digits)) <= scale / sympy.Integer(10) ** (digits - 40)
