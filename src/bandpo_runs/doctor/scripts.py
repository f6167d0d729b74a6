"""Read the settings in scripts, shell and Python. No script is run."""

import ast
import contextlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.files import parse_yaml
from bandpo.losses.objective import Objective
from bandpo.losses.surrogates import SurrogateWeight
from bandpo.trust_regions.base import Region

from ..config.recipe import put
from ..files.reading import content_of

SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm", ".env")
# A shell script that a script calls, or sources but for those of the system.
_CALL = (
    r"(?m)(?:(?<![\w./-])(?:(?:bash|sh|sbatch)[ \t]+(?:-\w+[ \t]+)*|(?:source|\.)[ \t]+(?![/~]))"
    r"|^[ \t]*(?:(?:\w+=\S*|exec)[ \t]+)*(?=[^\s=]*/))"
    r"[^\s;&|]{0,200}?((?:[\w.-]{1,100}/){0,9}[\w.-]{0,100}\.(?:sh|bash|sbatch|slurm|env))[\"']?(?=[\s;&|)]|\Z)"
)
# A variable, perhaps with its default.
_DEFAULT = r"((?:[^{}]|\{[^{}]*\})*)\}"
_VARIABLE = rf"\$(\w+)|\$\{{(\w+)(?:\}}|:?[-=]{_DEFAULT})"
CONFIGS = ("GRPOConfig", "BandPOConfig")  # classes that a script gives its settings to
_RULES = (*Region.kinds.values(), *SurrogateWeight.kinds.values(), Objective)
_MAKERS: dict[str, Any] = {each.__name__: each for each in (*_RULES, float, dict)}


def text_of(path: str) -> str:
    """Read a file, a shell script without its comments."""
    text = content_of(Path(path)).decode(errors="replace")
    if path.endswith(SUFFIXES):
        text = re.sub(r"(?m)(^|\s)#.*$", r"\1", text)
        # What a command prints is one word, and not known; a second time for one in another.
        for _ in range(2):
            text = re.sub(r"\$\((?!\()[^()\n]*\)", "$_", text)
    return text


def called(script: str) -> set[str]:
    """Name the scripts that such a text calls or sources. Those of the system do not count."""
    return set(re.findall(_CALL, script))


def of_shell(script: str) -> dict[str, Any]:
    """Read `key.of=value` and `--flag value`. Variables must be set to one value."""
    words, values = _words(script), dict[str, str]()  # $N for an N that is set to several values

    def fill(text: str) -> str:
        return re.sub(_VARIABLE, lambda x: values.get(x[1] or x[2]) or x[3] or x[0], text)

    for word in words:
        name, equals, value = word.lstrip("+").partition("=")
        default = re.search(rf"\$\{{(\w+):={_DEFAULT}", word)
        if default:
            values.setdefault(default[1], fill(default[2]))
        elif equals and name.isidentifier():
            value = fill(value)
            same = values.setdefault(name, value) == value and len(value) < 1000
            values[name] = value if same else f"${name}"
    config: dict[str, Any] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=False):
        key, equals, value = word.lstrip("+").partition("=")
        is_flag = re.match("--[a-z]", key) is not None
        if is_flag and not equals:
            value = "true" if after.startswith(("--", ")")) else after
        if is_flag or (equals and ("." in key or key == "trust_region")):
            with contextlib.suppress(UserError):  # text that is not YAML, or a path below a plain value
                put(config, key, parse_yaml(fill(fill(value)), key))
    return config


def _words(script: str) -> list[str]:
    """Split a script. Quotes go; what N=${N:-4} sets is what ${N:=4} sets."""
    script = re.sub(r"(?m)\\\n|(?:^|\s)#.*$", "\n", script.replace("=(", "= "))
    script = re.sub(r"(?<![^\s;])(\w+)=([\"']?)\$\{\1:?[-=]", r"\2${\1:=", script)
    return [re.sub("[\"']", "", x) for x in re.findall(r"(?:[^\s\"';]|\"[^\"\n]*\"|'[^'\n]*')+", script)]


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
    constants = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and bound[node.targets[0].id] == 1
    }
    calls: list[tuple[str, dict[str, Any]]] = []
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        words = {word.arg: _plain_value(word.value, constants) for word in call.keywords if word.arg}
        words |= {f"**{ast.unparse(word.value)}": ... for word in call.keywords if word.arg is None}
        if name.endswith("bandpo_loss") and call.args:  # takes its rule first
            words["trust_region"] = _plain_value(call.args[0], constants)
        may_change = attributes if name.rpartition(".")[2] in CONFIGS else attributes & words.keys()
        calls.append((name, words | dict.fromkeys(may_change, ...)))
    return calls, [
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _plain_value(code: ast.expr, constants: Mapping[str, ast.expr]) -> Any:
    """Return the value of code. It is `...` if that is more than plain values, rules and constants."""
    constant = constants.get(code.id, code) if isinstance(code, ast.Name) else code
    try:
        value = _evaluated(constant)
    except (ValueError, TypeError, RecursionError):
        return ...
    # What has a name may be changed in place.
    return ... if constant is not code and isinstance(value, dict | list) else value


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
