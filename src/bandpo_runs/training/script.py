"""Read the settings in a Python script. No script is run."""

import ast
import contextlib
import math
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from bandpo.doctor import Finding, not_loaded, own_type
from bandpo.doctor.on_trl import JUDGED
from bandpo.errors import UserError
from bandpo.losses.nodes import method
from bandpo.losses.objective import Objective
from bandpo.losses.surrogates import SurrogateWeight
from bandpo.trust_regions.base import Region
from bandpo.trust_regions.nodes import trust_region

from ..config.recipe import put
from ..files.reading import content_of
from .shell import of_shell

CONFIGS = ("GRPOConfig", "BandPOConfig")  # classes that a script gives its settings to
_CHANGES = ("update", "setdefault", "pop", "popitem", "clear")  # a dict in place


def of_code(path: Path) -> dict[str, Any]:
    """Read the arguments of a script's calls, each below what is called. Its strings may hold flags."""
    values: dict[str, Any] = {}
    calls, texts = _calls(path)
    for key, value in (
        (f"{name}.{word}", value) for name, words in calls for word, value in words.items()
    ):
        values[key] = value if values.setdefault(key, value) == value else ...
    config = of_shell("\n".join(texts))
    for key, value in values.items():
        with contextlib.suppress(UserError):  # a path below a plain value
            put(config, key, value)
    return config


def _calls(path: Path) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Read a Python script's calls, names and arguments by keyword, and its strings. The script is not run.

    A value that is not plain is `...`; a name has the value that the script gives it, if nothing changes it later.
    """
    try:
        nodes = list(ast.walk(ast.parse(content_of(path))))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not Python: {error}") from None
    assigned: dict[str, ast.expr] = {}
    # Names that end with their loop, and those that have no value yet.
    inner = [each.target for each in nodes if isinstance(each, ast.comprehension)]
    inner += [each.target for each in nodes if isinstance(each, ast.AnnAssign) and each.value is None]
    local = {id(each) for target in inner for each in ast.walk(target)}
    changed: list[str] = []  # each name once for each time
    for node in (node for node in nodes if id(node) not in local):
        match node:
            case ast.Assign(targets=targets, value=value):
                assigned |= {_name(target): value for target in targets}
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                assigned[_name(target)] = value
            case ast.Attribute(attr=name, ctx=ast.Store()):
                changed.append(name)
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del())
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.alias(asname=str(name))
                | ast.alias(name=name)
            ):
                changed.append(name.partition(".")[0])
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in _CHANGES:
                changed.append(name)
    assigned = {name: value for name, value in assigned.items() if name and changed.count(name) < 2}
    attributes = {
        each.attr for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }
    calls: list[tuple[str, dict[str, Any]]] = []
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name, words = ast.unparse(call.func), dict[str, Any]()
        is_ours = name.endswith("bandpo_loss")  # takes its rule first
        for word in [
            *call.keywords,
            *(ast.keyword("trust_region", code) for code in call.args[:1] if is_ours),
        ]:
            try:
                value = _plain_value(assigned.get(_name(word.value)) or word.value)
            except (ValueError, TypeError, RecursionError):
                value = ...
            if word.arg is None and isinstance(value, dict):
                words |= value
            else:
                words[word.arg or f"**{ast.unparse(word.value)}"] = value
        may_change = attributes if name.rpartition(".")[2] in CONFIGS else attributes & words.keys()
        calls.append((name, words | dict.fromkeys(may_change, ...)))
    return calls, [
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def of_script(
    paths: Sequence[Path], overridden: Set[str]
) -> tuple[dict[str, Any], frozenset[str], list[Finding]]:
    """Read scripts' values for GRPOConfig or BandPOConfig.

    Returns the settings by name, with the trust region of BandPOTrainer; those whose values cannot be read, but for the
    `overridden` ones; and findings about the reading. Raises UserError if it is not Python, or calls neither config, or
    more than one.
    """
    calls = [(name.rpartition(".")[2], words) for path in paths for name, words in _calls(path)[0]]
    configs = [call for call in calls if call[0] in CONFIGS]
    if len(configs) != 1:
        what = f"calls {' or '.join(CONFIGS)} {len(configs)} times; one call is expected"
        raise UserError(
            f"{' and '.join(map(str, paths))} {what}; settings can be given as key=value, too"
        )
    ((called, values),) = configs
    for words in (words for name, words in calls if name == "BandPOTrainer"):
        values["trust_region"] = words.get(
            "trust_region", ... if any("**" in word for word in words) else None
        )
    findings: list[Finding] = []
    unread = {name for name, value in values.items() if value is ...}
    for code in [name[2:] for name in values if name[:2] == "**"]:
        what = f"{called}(**{code}): {code} cannot be read, for the script is not run; plain values in it can"
        cure = (
            f"give what is in it too: bandpo doctor {paths[0].name} epsilon_high=0.28 loss_type=dapo ..."
        )
        findings.append(Finding("warning", what, cure))
    # After such a warning it may hold any setting.
    hidden = JUDGED.keys() - values.keys() if findings else set[str]()
    shown = sorted(unread & ({*JUDGED, "trust_region"} - overridden))
    if shown:
        what = f"{', '.join(shown)}: not a plain value in the script; what depends on it is not judged"
        findings.append(
            Finding("note", what, f"give it too: bandpo doctor {paths[0].name} {shown[0]}=...")
        )
    plain = {name: values[name] for name in values.keys() - unread}
    return plain, frozenset((unread | hidden) - overridden), findings


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _plain_value(code: ast.expr) -> Any:
    """Make the value of code of plain values and calls of rules. Nothing else is run.

    Raises ValueError where there is more in it, and TypeError for arguments that a rule does not take.
    """
    classes = (*Region.kinds.values(), *SurrogateWeight.kinds.values())
    makers: dict[str, Any] = {each.__name__: each for each in classes}
    makers |= {
        "Objective": Objective,
        "method": method,
        "trust_region": trust_region,
        "float": float,
        "dict": dict,
    }
    called = code.func if isinstance(code, ast.Call) else code
    name = ast.unparse(called).rpartition(".")[2] if isinstance(called, ast.Name | ast.Attribute) else ""
    make = makers.get(name)
    if isinstance(code, ast.Call) and make is not None and all(keyword.arg for keyword in code.keywords):
        values = [_plain_value(each) for each in code.args]
        named = {str(keyword.arg): _plain_value(keyword.value) for keyword in code.keywords}
        own = own_type([*values, *named.values()]) if make is trust_region else None
        if own is not None:
            raise ValueError(not_loaded(own))
        return make(*values, **named)
    if isinstance(code, ast.Tuple):
        return tuple(map(_plain_value, code.elts))
    if not isinstance(code, ast.Call) and (make is not None or name == "inf"):
        return math.inf if make is None else make
    try:
        return ast.literal_eval(code)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(code)} is more than plain values and rules, and code is not run"
        ) from None
