"""Read the settings in a Python script. No script is run."""

import ast
import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.losses.objective import Objective
from bandpo.losses.surrogates import SurrogateWeight
from bandpo.trust_regions.base import Region

from ..config.recipe import put
from ..files.reading import content_of
from .shell import of_shell

CONFIGS = ("GRPOConfig", "BandPOConfig")  # classes that a script gives its settings to
_RULES = (*Region.kinds.values(), *SurrogateWeight.kinds.values(), Objective)
_MAKERS: dict[str, Any] = {each.__name__: each for each in (*_RULES, float, dict)}


def of_code(path: Path) -> dict[str, Any]:
    """Read the arguments of a script's calls, each below what is called. Its strings may hold flags."""
    calls, texts = _calls(path)
    values: dict[str, Any] = {}
    for key, value in ((f"{name}.{word}", words[word]) for name, words in calls for word in words):
        values[key] = value if values.setdefault(key, value) == value else ...
    config = of_shell("\n".join(texts))
    for key, value in values.items():
        with contextlib.suppress(UserError):  # a path below a plain value
            put(config, key, value)
    return config


def of_grpo(paths: Sequence[Path]) -> dict[str, Any]:
    """Read the settings of GRPOConfig or BandPOConfig, and BandPOTrainer's rule.

    A value that is not plain, or not the same in all calls, is `...`. Raises UserError without a call of a config.
    """
    calls = [(name.rpartition(".")[2], words) for path in paths for name, words in _calls(path)[0]]
    configs = [words for name, words in calls if name in CONFIGS]
    if not configs:
        raise UserError(
            f"{' and '.join(map(str, paths))} must call {' or '.join(CONFIGS)}; give settings as key=value"
        )
    settings = {
        key: _common([words.get(key, ...) for words in configs]) for words in configs for key in words
    }
    rules = [
        words.get("trust_region", ... if any("**" in word for word in words) else None)
        for name, words in calls
        if name == "BandPOTrainer"
    ]
    return settings | ({"trust_region": _common(rules)} if rules else {})


def _common(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else ...


def _calls(path: Path) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Read a script's calls, names and arguments by keyword, and its strings.

    A value that is not plain is `...`. So is one that may change: a name's if the script binds that twice, an
    argument's if the script sets an attribute of its name.
    """
    try:
        nodes = list(ast.walk(ast.parse(content_of(path))))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not Python: {error}") from None
    # A node that binds a name has it as text. Those that read one are `Load`, except for what follows.
    binding = [
        node
        for node in nodes
        if not isinstance(node, ast.keyword | ast.Constant)
        and not isinstance(getattr(node, "ctx", None), ast.Load)
    ]
    bound = Counter(
        text.partition(".")[0]
        for node in binding
        for _, text in ast.iter_fields(node)
        if isinstance(text, str)
    )
    attributes = {node.attr for node in binding if isinstance(node, ast.Attribute)}
    read = Counter(
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    constants = {
        node.targets[0].id: (node.value, read[node.targets[0].id])
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and bound[node.targets[0].id] == 1
    }
    calls: list[tuple[str, dict[str, Any]]] = []
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name, words = ast.unparse(call.func), dict[str, Any]()
        is_ours = name.endswith("bandpo_loss")  # takes its rule first
        for word in [
            *call.keywords,
            *(ast.keyword("trust_region", code) for code in call.args[:1] if is_ours),
        ]:
            value = _plain_value(word.value, constants)
            if word.arg is None and isinstance(value, dict):
                words |= value
            else:
                words[word.arg or f"**{ast.unparse(word.value)}"] = value
        may_change = attributes if name.rpartition(".")[2] in CONFIGS else attributes & words.keys()
        calls.append((name, words | dict.fromkeys(may_change, ...)))
    return calls, [
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _plain_value(code: ast.expr, constants: Mapping[str, tuple[ast.expr, int]]) -> Any:
    """Return the value of code. It is `...` if that is more than plain values, rules and constants."""
    constant, times = constants.get(code.id, (code, 1)) if isinstance(code, ast.Name) else (code, 1)
    try:
        value = _evaluated(constant)
    except (ValueError, TypeError, RecursionError):
        return ...
    # Where else it is read, it may be changed in place.
    return ... if times > 1 and isinstance(value, dict | list) else value


def _evaluated(code: ast.expr) -> Any:
    """Make plain values and rules. Raises ValueError for other code, TypeError for wrong arguments of a rule."""
    match code:
        case ast.Call(ast.Name(name) | ast.Attribute(attr=name), args, words) if name in _MAKERS and all(
            word.arg for word in words
        ):
            named = {str(word.arg): _evaluated(word.value) for word in words}
            return _MAKERS[name](*map(_evaluated, args), **named)
        case ast.Tuple(parts):
            return tuple(map(_evaluated, parts))
        case ast.Name("inf") | ast.Attribute(attr="inf"):
            return math.inf
        case _:
            return ast.literal_eval(code)
