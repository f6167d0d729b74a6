"""Objectives in words: `gspo` becomes an objective, and an objective its name in tables and legends."""

from __future__ import annotations

import ast
import dataclasses
import math
import re
from typing import Any, cast

import torch

from ..trust_regions.base import Context, Law, Region, depends_on_probability
from ..trust_regions.nodes import EXAMPLE, trust_region
from ..trust_regions.notation import node_of_text, not_loaded, own_type
from .methods import METHODS, method
from .nodes import method_of, objective
from .objective import Method, Objective
from .surrogates import Application, by_sign


def parse_objective(text: str) -> Method | Objective:
    """What a text describes: a method's name, a rule's short word (see `trust_region`), a YAML node of any of them, or
    Python such as `Band("kl", 0.05)`.

    Where a rule and a method have the same name, as `dcpo`, the word alone is the method, the same rule with the
    paper's values.

    Raises ValueError naming the text, what is wrong with it and what is allowed.

    >>> parse_objective("gspo").objective == parse_objective("{type: method, name: gspo}").objective
    True
    >>> parse_objective("band:kl:0.05") == parse_objective('Band("kl", 0.05)')
    True
    >>> parse_objective("band:kl:0.05")
    Objective(Band(divergence='kl', delta=0.05, delta_low=None, delta_high=None))
    """
    try:
        node = _of_python(text) if re.match(r"[\w.]+\(", text) else node_of_text(text)
        return method_of(node) or objective(node)
    except ValueError as error:
        raise ValueError(str(error) if repr(text) in str(error) else f"{text!r}: {error}") from None


def _of_python(text: str) -> Any:
    try:
        return read_python(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"{text!r} cannot be read as Python: {error}{EXAMPLE}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"a text of {len(text)} characters is too deep to be a rule{EXAMPLE}") from None


def read_python(code: ast.expr) -> Any:
    """Make what Python code says in plain values and calls of rules, e.g. `Band("kl", 0.05)`; nothing is run.

    Raises ValueError where there is more in it, and TypeError for arguments that a rule does not take.
    """
    kinds = (*Region.kinds.values(), *Law.kinds.values(), *Application.kinds.values())
    makers: dict[str, Any] = {name: each for each in kinds for name in (each.__name__, each.__name__.lower())}
    makers |= {"Objective": Objective, "method": method, "trust_region": trust_region, "float": float}
    called = code.func if isinstance(code, ast.Call) else code
    name = called.attr if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
    make = makers.get(getattr(called, "id", name))
    if isinstance(code, ast.Call):
        if make is None or any(keyword.arg is None for keyword in code.keywords):
            raise ValueError(_more(code))
        given = [*code.args, *(keyword.value for keyword in code.keywords)]
        if make is trust_region and (own := own_type([ast.literal_eval(each) for each in given])) is not None:
            raise ValueError(not_loaded(own))
        named = {str(keyword.arg): read_python(keyword.value) for keyword in code.keywords}
        return make(*map(read_python, code.args), **named)
    if make is not None:
        return make
    if isinstance(code, ast.Tuple):
        return tuple(map(read_python, code.elts))
    if isinstance(code, ast.Attribute) and code.attr == "inf":
        return math.inf
    try:
        return ast.literal_eval(code)
    except ValueError:
        raise ValueError(_more(code)) from None


def _more(code: ast.expr) -> str:
    return f"{ast.unparse(code)} is more than plain values and rules, and code is not run{EXAMPLE}"


def label_of_objective(value: Objective) -> str:
    """The name of an objective in tables and legends: that of its rule; where it has more than a rule, that of the
    method, e.g. `GSPO`, or the rule's and the other fields."""
    bare = dataclasses.replace(value, aggregation=None)
    named = [
        each.title
        for each in METHODS
        if each.is_complete and value.aggregation in (None, each.objective.aggregation) and each.without_average == bare
    ]
    if not bare.changed() and (value.aggregation is None or named):
        return value.trust_region.label
    fields = (f"{name} {_show(x)}" for name, x in value.changed().items())
    return named[0] if named else ", ".join([value.trust_region.label, *fields])


def _show(value: Any) -> str:
    return " / ".join(map(str, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else str(value)


def as_python(value: Any) -> str:
    """A rule or an objective as it is written in Python, without names of a rule's fields and without defaults."""
    if isinstance(value, Objective):
        fields = [f"{name}={as_python(each)}" for name, each in value.changed().items()]
        region = as_python(value.trust_region)
        return f"Objective({', '.join([region, *fields])})" if fields else region
    if dataclasses.is_dataclass(value):
        given = [getattr(value, each.name) for each in dataclasses.fields(value) if each.init]
        return f"{type(value).__name__}({', '.join(as_python(each) for each in given if each is not None)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(as_python, cast('tuple[Any, ...]', value)))})"
    return f'"{value}"' if isinstance(value, str) else repr(value).removesuffix(".0")


def in_words(value: Objective) -> str:
    """Say in one line how far a rule lets a token go: its ratio, or where that depends on the probability, two tokens.

    >>> from bandpo import Clip, Objective
    >>> in_words(Objective(Clip(0.2, 0.28)))
    "Clip(0.2, 0.28): a token's ratio may go from 0.8 to 1.28"
    >>> in_words(Objective())
    'Band("kl", 0.05): a token of probability 0.5 may go from 0.3458 to 0.6542, one of 0.001 up to 0.05355'
    """
    if not (said := allowed(value)):
        return f"{value.trust_region.label}: how far a token may go depends on more than its probability"
    bare = dataclasses.replace(value, aggregation=None)
    return re.sub(r"\d\.\d{6,}", lambda long: f"{float(long[0]):.4g}", as_python(bare)) + f": {said}"


def allowed(value: Objective) -> str:
    """The second half of `in_words`; nothing where a rule sees more than the probability."""
    log_p = torch.tensor([[0.5, 0.001]], dtype=torch.float64, device="cpu").log()
    try:
        bounds = value.trust_region.bounds(log_p, Context())
    except Exception:  # of a rule of one's own it may be anything
        return ""
    low, high = (cast(Any, x.exp()[0]).tolist() for x in (bounds.log_low, bounds.log_high))
    what = "a token" if value.is_per_token else "a response"
    if value.ratio == "sequence-mean" or not depends_on_probability(value.trust_region):
        mean = " mean" if value.ratio == "sequence-mean" else ""
        said = f"{what}'s{mean} ratio may go from {low[0]:.5g} to {high[0]:.5g}"
        if (low[0], high[0]) == (0.0, math.inf):
            said = f"no bound on {what}'s ratio"
    else:
        top, rare = min(0.5 * high[0], 1.0), min(0.001 * high[1], 1.0)
        said = f"{what} of probability 0.5 may go from {0.5 * low[0]:.4g} to {top:.4g}, one of 0.001 up to {rare:.4g}"
    if not {*by_sign(value.apply, value.dual_clip)} <= {"clip", "mask", "mask_two_sided"}:
        kept = "" if said.startswith("no bound") else "; outside it the gradient does not stop"
        said = f"{said.replace('may go', 'has the interval')}{kept} (apply {as_python(value.apply)})"
    return said if value.dual_clip is None else f"{said}; dual clip {value.dual_clip:g}"


def short_node(value: Objective) -> dict[str, Any]:
    """The node of an objective, of its rule where that is all of it."""
    return value.to_config() if value.changed() else value.to_config()["trust_region"]
