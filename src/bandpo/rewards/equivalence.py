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
from latex2sympy2_extended import NormalizationConfig, latex2sympy2, normalize_latex
from math_verify import verify
from sympy.core import cache, random
from sympy.core.function import AppliedUndef

from . import sizes
from .lexicon import P
from .sizes import Refused, size

# Units are taken off before, from a list of them: its own has "by", "more", "o" and "ab".
_NORMAL = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
_GROUP = r"(?:[^{}]|\{[^{}]*\})"
# What its grammar does not know, in what it does.
_REWRITTEN = [
    (re.compile(r"\\?\$|(?<!\\)\\[()\[\]]"), ""),  # delimiters
    (re.compile(r"\\(?:[bp])mod(?![a-z])"), r"\\mod"),
    (re.compile(r"\\varnothing"), r"\\emptyset"),
    (re.compile(r"\\[dt]?binom\s*(\w)\s*(\w)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\log_\{?e\}?(?![a-z])"), r"\\ln"),
    (re.compile(r"\\[bB]igg?[lrm]?(?![A-Za-z])"), ""),
    (re.compile(r"°|\\degree"), r"^{\\circ}"),
    *(
        (re.compile(rf"{begin}({_GROUP}*)\\{old}(?![a-z])({_GROUP}*){end}"), rf"\\{new}{{\1}}{{\2}}")
        for old, new in (("over", "frac"), ("choose", "binom"))
        for begin, end in ((r"\{", r"\}"), ("^", "$"))
    ),
    (re.compile(r"\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"(\\sqrt\[\w+\])\s*(\d)"), r"\1{\2}"),
    (re.compile(r"\\langle"), "("),
    (re.compile(r"\\rangle"), ")"),
    (re.compile(r"\\([lr])brace"), lambda match: "\\{" if match[1] == "l" else "\\}"),
    (re.compile(r"\\?(?<![A-Za-z])sqrt\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])a(sin|cos|tan)(?![A-Za-z])"), r"\\arc\1"),
    (
        re.compile(
            r"(?<![A-Za-z\\])((?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|sec|csc|cot|exp|log|ln|pi)(?![A-Za-z])"
        ),
        r"\\\1",
    ),
    (re.compile(r"(?:,\s*)?(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"), ","),
    # To its grammar 2(21) and 2{21} are mixed numbers, 23.
    (re.compile(r"(?<![_^\\A-Za-z}.\d])(\d+)\s*(?=[({]\s*\d)"), r"\1\\cdot "),
]


class _Reader(latex2sympy2._Latex2Sympy):
    """Read LaTeX as math-verify does. Letters stay as they are, and nothing is computed yet."""

    def __init__(self, mode: PredictionMode) -> None:
        # x is not X, and \Pi not \pi; the same letters are the same symbols in the right answer and in the other.
        super().__init__(is_real=True, config=latex2sympy2.ConversionConfig(lowercase_symbols=False))
        self.mode = mode

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = self.mode
        return parser

    def parse_number(self, text: str) -> Any:
        """Parse decimals exactly. Many places are somebody's rounding, and compared as such."""
        return (sympy.Rational if re.search(r"\.[0-9]{1,5}$", text) else super().parse_number)(
            text.replace(",", "")
        )

    def convert_interval(self, expr: Any) -> Any:
        """Convert (4, -3) to a point. [4, -3] is refused, of which the parser would make one, too."""
        read = super().convert_interval(expr)
        if isinstance(read, sympy.Tuple) and not expr.getText().startswith(("(", "\\left(")):
            raise Refused
        return read

    # These three are computed at once by the reader.

    def convert_binom(self, binom: Any) -> Any:
        return sympy.binomial(
            self.convert_expr(binom.upper), self.convert_expr(binom.lower), evaluate=False
        )

    def convert_func_arg(self, arg: Any) -> Any:
        read = super().convert_func_arg(arg)
        if size(read) > 12 and re.match(r"\\[Gg]amma", arg.parentCtx.getText()):
            raise Refused
        return read

    def handle_gcd_lcm(self, f: str, args: Any) -> Any:
        if max(map(size, args)) > 1000:
            raise Refused
        return super().handle_gcd_lcm(f, args)


def compare(task: list[str]) -> list[Any]:
    """Compare [right answer, answer, ...]. Returns [all equal, the last's value as text or None if unread]."""
    right, *answers = task
    # sympy tries its facts in a random order, and keeps what it found: where two of them contradict one another (about
    # factorials of oo, say) a grade would depend on what was graded before.
    random.seed(0)
    cache.clear_cache()
    try:
        values = [_parse(answer) for answer in answers]
        return [all(_equal(_parse(right), value) for value in values), str(values[-1])[:1000]]
    # An answer that sympy cannot take is wrong; an error in these files is ours.
    except Exception as error:
        ours = traceback.extract_tb(error.__traceback__, limit=-1)[0].filename in (
            __file__,
            sizes.__file__,
        )
        if isinstance(error, MemoryError) or (ours and not isinstance(error, Refused)):
            raise
        return [False, None]


@functools.lru_cache(maxsize=1000)
def _parse(answer: str) -> Any:
    """Parse a set by its conditions, such as "x < 1 or x > 2". Anything else is parsed at once."""
    if P.refused.search(answer):
        raise Refused
    if answer.count("\\pm") == 1 and "," not in answer:
        return sympy.FiniteSet(*(_parsed(answer.replace("\\pm", sign)) for sign in "+-"))
    builder = P.builder.fullmatch(answer.strip())
    parts = P.joined.split(builder[2] if builder else answer)
    if (builder or len({*parts[1::2]}) == 1) and all(map(P.order.search, parts[::2])):
        conditions = [_parsed(part) for part in parts[::2]]
        letters = {str(letter) for condition in conditions for letter in condition.free_symbols}
        if len(letters) > 1 or (builder and letters != {builder[1]}):
            raise Refused
        sets = [condition.as_set() for condition in conditions]
        return sympy.Intersection(*sets) if "and" in parts else sympy.Union(*sets)
    return _parsed(answer)


def _parsed(answer: str) -> Any:
    """Parse one formula, or a list of them ("$x = 1$ or $x = 2$")."""
    for pattern, new in _REWRITTEN:
        answer = pattern.sub(new, answer)
    # The sine of 30 degrees is that of pi / 6; where only degrees are added, they are the unit.
    answer = P.degrees.sub(
        r"(\1\\cdot\\frac{\\pi}{180})" if P.trigonometry.search(answer) else r"\1", answer
    )
    latex = normalize_latex(answer, _NORMAL)
    with contextlib.suppress(Exception):
        # Without full context: the same or an error, in half the time.
        return _Reader(PredictionMode.SLL).parse(latex)
    return _Reader(PredictionMode.LL).parse(latex)


# ---- kind and value


# math-verify reads (1, 2) as an interval or as a point, by the size of the numbers; a union of sets may be a set, and
# an inequality is another way to write an interval.
_KINDS = {
    "matrix": sympy.MatrixBase,
    "value": sympy.Expr,  # before relations, of which a letter is one to sympy
    "point": sympy.Tuple,
    "list": sympy.FiniteSet,
    "interval": sympy.Interval,
    "union": sympy.Union,
    "set": sympy.Set,
    "relation": sympy.logic.boolalg.Boolean,
}
_ENDS = (sympy.oo, -sympy.oo)


def _equal(gold: Any, answer: Any) -> bool:
    answer, gold = _made(answer), _made(gold)
    if not (isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq) and gold.lhs != answer.lhs):
        gold = _unnamed(gold)
        answer = _unnamed(answer, isinstance(gold, (sympy.Tuple, sympy.Interval)))
    if not (gold == answer in _ENDS or _finite(answer)) or not _same(gold, answer):
        return False
    if isinstance(gold, (sympy.Expr, sympy.MatrixBase)):
        return True
    if (
        isinstance(gold, sympy.And)
        and len(gold.free_symbols) == 1
        and gold.free_symbols == answer.free_symbols
    ):
        gold = gold.as_set()  # 5 >= x >= -2 for -2 <= x <= 5
    return verify(
        [gold], [answer], numeric_precision=200, timeout_seconds=0, allow_set_relation_comp=True
    )


def _made(expr: Any) -> Any:
    """Return the expression with the imaginary unit for i.

    What is unknown, such as f(0), becomes a letter. Products of matrices are computed.
    """
    size(expr)
    new = {
        **{
            letter: sympy.I for letter in getattr(expr, "free_symbols", ()) if letter.name == "i"
        },  # no sum's index
        **{
            each: sympy.Symbol(str(each), real=True)
            for each in getattr(expr, "atoms", lambda kind: ())(AppliedUndef)
        },
    }
    expr = expr.subs(new) if new else expr
    return expr.doit() if isinstance(expr, sympy.MatrixExpr) else expr


def _unnamed(expr: Any, ordered: bool = False) -> Any:
    """Return the 42 of x = 42.

    Of a list of such it is all values, or the point that they are the coordinates of."""
    if isinstance(expr, sympy.Eq) and isinstance(
        expr.lhs, (sympy.Symbol, sympy.Tuple, sympy.Function, sympy.Interval)
    ):
        return expr.rhs
    if isinstance(expr, sympy.FiniteSet) and all(isinstance(arg, sympy.Eq) for arg in expr.args):
        names = {arg.args[0] for arg in expr.args}  # a point has one value for each
        make = sympy.Tuple if ordered and len(names) == len(expr.args) else sympy.FiniteSet
        return make(*map(_unnamed, sorted(expr.args, key=str)))
    return expr


def _parts(expr: Any) -> Any:
    """Return the parts of a whole. Such are rows of a matrix, ends of an interval, members of a list."""
    if isinstance(expr, sympy.MatrixBase):
        return [sympy.Tuple(*row) for row in expr.tolist()]
    return [expr.start, expr.end] if isinstance(expr, sympy.Interval) else getattr(expr, "args", ())


def _finite(expr: Any) -> bool:
    """Check that no part is infinite or undefined. An end of an interval may be infinite."""
    ends = _ENDS if isinstance(expr, (sympy.Interval, sympy.Tuple)) else ()
    if not all(part in ends or _finite(part) for part in _parts(expr)):
        return False
    if isinstance(expr, (sympy.Pow, sympy.Function)) and not expr.free_symbols:
        expr = expr.doit()  # 1/ln 0 is 1/(-oo), which is 0 to sympy
    return not (isinstance(expr, sympy.Expr) and expr.has(*_UNKNOWN))


def _same(gold: Any, answer: Any) -> bool:
    """Check that both are of one kind and have equal parts. Sets and relations may be written in other ways."""
    kinds = {
        next((name for name, type_ in _KINDS.items() if isinstance(expr, type_)), "none")
        for expr in (gold, answer)
    }
    if kinds == {"value"}:
        return gold == answer or _same_value(gold, answer)
    parts, others = _parts(gold), _parts(answer)
    if kinds == {"matrix"} or kinds <= {"point", "interval"}:
        return len(parts) == len(others) and all(map(_same, parts, others))
    if kinds in ({"list"}, {"union"}) and len(parts) == len(others):
        pairs = (parts, others), (others, parts)
        return all(any(_same(one, other) for other in those) for these, those in pairs for one in these)
    return kinds <= {"list", "union", "set"} or kinds <= {"interval", "union", "set", "relation"}


def _same_value(gold: Any, answer: Any) -> bool:
    """Compare in numbers, at three places for letters."""
    letters = sorted(gold.free_symbols | answer.free_symbols, key=str)
    # Sums, factorials and the like are defined for whole numbers.
    below = 1 if gold.has(*_COUNTING) or answer.has(*_COUNTING) else 7
    rational = gold.is_rational_function(*letters) or answer.is_rational_function(*letters)
    agreed: set[bool | None] = set()
    for start in (2, 5, -11 if below > 1 and rational else 11) if letters else (0,):  # |x| is not x
        places = {
            letter: sympy.Rational(start + 3 * i, below + i * (below > 1))
            for i, letter in enumerate(letters)
        }
        agreed.add(_same_number(gold.subs(places).doit(), answer.subs(places).doit()))
    return True in agreed and False not in agreed


_COUNTING = (sympy.Sum, sympy.Product, sympy.binomial, sympy.factorial)
_UNKNOWN = (*_ENDS, sympy.zoo, sympy.nan, sympy.AccumBounds)


def _same_number(gold: Any, answer: Any) -> bool | None:
    """Compare with enough digits for numbers of these sizes: 1/2^98 is not 1/2^99. None where one has no value.

    It is exact without a decimal of six places or more, which may be somebody's rounding, but of no integer.
    """
    bits = int(size(gold) + size(answer))
    one, other = (sympy.N(value, 20, maxn=200 + bits) for value in (gold, answer))
    if not all(value.is_number and not value.has(*_UNKNOWN, sympy.Function) for value in (one, other)):
        return None
    apart, scale = abs(one - other), abs(one)
    if gold.has(sympy.Float) or answer.has(sympy.Float):
        whole = gold.is_Integer or answer.is_Integer
        return bool(apart <= (0 if whole else 1e-6 * max(scale, min(1, 100 * scale))))
    if gold == answer or apart > scale / 10**15 or (gold - answer).is_Rational:
        return gold == answer
    return bool(
        abs(sympy.N(gold - answer, 5, maxn=60 + bits)) <= scale / sympy.Integer(10) ** (20 + bits)
    )
