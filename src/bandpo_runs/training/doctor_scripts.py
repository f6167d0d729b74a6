"""Reader of a GRPOConfig's plain values in a Python script, for the doctor; the script is not run."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import Any

from bandpo.doctor import Finding
from bandpo.doctor.on_trl import CONFIGS, JUDGED, NO_RULE, TRAINERS, UNREADABLE
from bandpo.errors import UserError
from bandpo.files import content_of
from bandpo.losses.nodes import method
from bandpo.losses.objective import Objective
from bandpo.losses.surrogates import Application
from bandpo.trust_regions.base import Law, Region
from bandpo.trust_regions.nodes import not_loaded, own_type, trust_region


def script_settings(path: Path, given: Set[str]) -> tuple[dict[str, Any], frozenset[str], Any, list[Finding]]:
    """Read a Python script's plain values for GRPOConfig or BandPOConfig.

    Args:
        path: the script.
        given: names that are known without it.

    Returns:
        The settings by name; the names of arguments that are not plain values; the trust region that BandPOTrainer is
        given, None without one, `NO_RULE` without such a trainer, `UNREADABLE`; and what is to be said of the reading.

    Raises:
        UserError: it is not Python, or calls neither config, or more than one.
    """
    content = content_of(path)
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not Python: {error}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    configs, trainers = ([call for call in calls if _name(call.func) in names] for names in (CONFIGS, TRAINERS))
    if len(configs) != 1:
        raise UserError(
            f"{path} calls {' or '.join(CONFIGS)} {len(configs)} times; one call is expected; settings can be given as "
            "key=value, too"
        )
    once = _set_once(tree)

    def read(code: ast.expr) -> Any:
        try:
            return _plain_value(once.get(code.id, code) if isinstance(code, ast.Name) else code)
        except (ValueError, TypeError, RecursionError):
            return UNREADABLE

    found: dict[str, Any] = {}
    hidden: set[str] = set()
    said: list[Finding] = []
    for keyword in configs[0].keywords:
        value = read(keyword.value)
        if keyword.arg:
            found[keyword.arg] = value
        elif isinstance(value, dict):  # **{...}
            found |= value
        else:
            call, code = _name(configs[0].func), ast.unparse(keyword.value)
            what = f"{call}(**{code}): {code} cannot be read, for the script is not run; plain values in it can"
            cure = f"give what is in it too: bandpo doctor {path.name} epsilon_high=0.28 loss_type=dapo ..."
            said.append(Finding("warning", what, cure))
            hidden = JUDGED.keys() - found.keys()  # it may hold any
    unknown = {name for name, value in found.items() if value is UNREADABLE}
    if shown := sorted((unknown & JUDGED.keys()) - given):
        what = f"{', '.join(shown)}: not a plain value in the script; what depends on it is not judged"
        said.append(Finding("note", what))
    given_to = [keyword for call in trainers for keyword in call.keywords if keyword.arg in ("trust_region", None)]
    rule: Any = None if trainers else NO_RULE
    if given_to:
        rule = read(given_to[0].value) if len(trainers) == len(given_to) == 1 and given_to[0].arg else UNREADABLE
    known = {name: value for name, value in found.items() if name not in unknown}
    return known, frozenset((unknown | hidden) - known.keys() - given), rule, said


def _set_once(tree: ast.AST) -> dict[str, ast.expr]:
    """Return the values of names that are set once in a script, and by a plain assignment."""
    stored = Counter(name for each in ast.walk(tree) for name in _set_by(each))
    return {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Dict | ast.List)  # which may be added to
        for target in node.targets
        if isinstance(target, ast.Name) and stored[target.id] == 1
    }


def _set_by(node: ast.AST) -> list[str]:
    """List the names that a piece of code gives a value: by assignment, import, definition, or as parameters."""
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    fields = ("name", "asname") if isinstance(node, ast.keyword) else ("name", "asname", "arg")
    return [text.partition(".")[0] for field in fields if isinstance(text := getattr(node, field, None), str)]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _plain_value(code: ast.expr) -> Any:
    """Make the value of Python code that holds plain values and calls of rules alone; nothing is run.

    Raises ValueError where there is more in it, and TypeError for arguments that a rule does not take.
    """
    classes = (*Region.kinds.values(), *Law.kinds.values(), *Application.kinds.values())
    makers: dict[str, Any] = {each.__name__: each for each in classes}
    makers |= {"Objective": Objective, "method": method, "trust_region": trust_region, "float": float}
    called = code.func if isinstance(code, ast.Call) else code
    name = ast.unparse(called).rpartition(".")[2] if isinstance(called, ast.Name | ast.Attribute) else ""
    make = makers.get(name)
    if isinstance(code, ast.Call) and make is not None and all(keyword.arg for keyword in code.keywords):
        given = [_plain_value(each) for each in code.args]
        named = {str(keyword.arg): _plain_value(keyword.value) for keyword in code.keywords}
        if make is trust_region and (own := own_type([*given, *named.values()])) is not None:
            raise ValueError(not_loaded(own))
        return make(*given, **named)
    if isinstance(code, ast.Tuple):
        return tuple(map(_plain_value, code.elts))
    if not isinstance(code, ast.Call) and (make is not None or name == "inf"):
        return math.inf if make is None else make
    try:
        return ast.literal_eval(code)
    except ValueError:
        more = "is more than plain values and rules, and code is not run"
        raise ValueError(f"{ast.unparse(code)} {more}") from None
