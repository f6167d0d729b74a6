"""Reader of a GRPOConfig's plain values in a Python script, for the doctor; the script is not run."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import Any

from bandpo.doctor.findings import Finding
from bandpo.doctor.on_trl import NO_RULE, TRL, UNREADABLE
from bandpo.errors import UserError
from bandpo.files import content_of, decoded
from bandpo.losses.nodes import read_python


def script_settings(path: Path, given: Set[str]) -> tuple[dict[str, Any], frozenset[str], Any, list[Finding]]:
    """Read a Python script's plain values for GRPOConfig or BandPOConfig; it is not run.

    Args:
        path: the script.
        given: names that are known without it.

    Returns:
        The settings by name; the names of arguments that are not plain values; the trust region that BandPOTrainer is
        given, None without one, `NO_RULE` without such a trainer, `UNREADABLE`; and what is to be said of the reading.

    Raises:
        UserError: it is not Python, or calls neither config, or more than one.
    """
    try:
        tree = ast.parse(decoded(content_of(path), str(path)))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not Python: {error}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    configs, trainers = ([call for call in calls if _name(call.func) in names] for names in (TRL.configs, TRL.trainers))
    if len(configs) != 1:
        count = f"{len(configs)} times" if configs else "not once"
        raise UserError(
            f"{path} calls {' or '.join(TRL.configs)} {count}; one call is expected; settings can be given as "
            "key=value, too"
        )
    once = _set_once(tree)

    def read(code: ast.expr) -> Any:
        return read_python(once.get(code.id, code) if isinstance(code, ast.Name) else code)

    known: dict[str, Any] = {}
    unknown: set[str] = set()
    hides: Set[str] = set()
    said: list[Finding] = []
    for keyword in configs[0].keywords:
        try:
            known[keyword.arg or ""] = read(keyword.value) if keyword.arg else ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError):
            if keyword.arg:
                unknown.add(keyword.arg)
                continue
            call, hidden = _name(configs[0].func), ast.unparse(keyword.value)
            what = f"{call}(**{hidden}): {hidden} cannot be read, for the script is not run; plain values in it can"
            cure = f"give what is in it too: bandpo doctor {path.name} epsilon_high=0.28 loss_type=dapo ..."
            said.append(Finding("warning", what, cure))
            hides = TRL.judged.keys() - known.keys()  # it may hold any
    if isinstance(more := known.pop("", None), dict):  # **{...}
        known |= more
    rules = [keyword.value for call in trainers for keyword in call.keywords if keyword.arg == "trust_region"]
    rule: Any = None if trainers else NO_RULE
    if len(trainers) > 1 or any(keyword.arg is None for call in trainers for keyword in call.keywords):
        rule = UNREADABLE
    elif rules:
        try:
            rule = read(rules[0])
        except (ValueError, TypeError, RecursionError):
            rule = UNREADABLE
    if plain := sorted((unknown & TRL.judged.keys()) - given):
        what = f"{', '.join(plain)}: no plain value in the script; what depends on it is not judged"
        said.append(Finding("note", what))
    return known, frozenset((unknown | hides) - known.keys() - given), rule, said


def _set_once(tree: ast.AST) -> dict[str, ast.expr]:
    """Return the values of names that are set once in a script, and by a plain assignment."""
    stored = Counter(name for each in ast.walk(tree) for name in _set_by(each))
    return {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and stored[node.targets[0].id] == 1
        and not isinstance(node.value, ast.Dict | ast.List)  # which may be added to
    }


def _set_by(node: ast.AST) -> list[str]:
    """List the names that a piece of code gives a value.

    It gives one by assignment, import or definition, as parameters, in a match.
    """
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.alias(name=name, asname=known):
            return [known or name.partition(".")[0]]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
            return [node.name or ""]
        case ast.MatchAs() | ast.MatchStar():
            return [node.name or ""]
        case _:
            return []


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
