"""Read the settings in a shell script. No script is run."""

import ast
import contextlib
import operator
import re
from pathlib import Path
from typing import Any, cast

from bandpo.errors import UserError
from bandpo.files import parse_yaml

from ..config.recipe import put
from ..files.reading import content_of

SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")
# A shell script that a script calls or sources, and the arguments that it gets.
_CALL = (
    r"(?m)(?P<before>(?<![\w./-])(?:(?:exec|bash|sh|source|sbatch|\.)[ \t]+)+(?:-\w+[ \t]+)*"
    r"|^[ \t]*(?:\w+=\S*[ \t]+)*(?=\S{0,200}/\S{0,200}?\.sh\b))"
    r"(?P<path>[^\s;&|]{0,200}?(?P<name>[\w.-]{1,100})[\"']?)(?=[\s;&|)]|\Z)(?P<more>(?:\\\n|[^\n;&|])*)"
)
_ALL = r"[\"']?\$\{?[@*]\}?[\"']?"  # arguments of a script
# A variable, perhaps with its default, and arithmetic.
_DEFAULT = r"((?:[^{}]|\{[^{}]*\})*)\}"
_VARIABLE = rf"\$(\w+)|\$\{{(\w+)(?:\}}|:?[-=]{_DEFAULT})"
_SUM = r"\$\(\((.{0,500}?)\)\)(?!\))"
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def script_text(path: Path, before: set[Path] | None = None) -> str:
    """Read a script. What it calls or sources beside it stands in place of the call, with its arguments.

    Of what was read `before` these alone do: scripts that call each other end, however often.
    """
    before = set() if before is None else before
    before.add(path.resolve())
    text = re.sub(r"(?m)(^|\s)#.*$", r"\1", content_of(path).decode(errors="replace"))
    # What a command prints is one word, and not known; a second time for one in another.
    for _ in range(2):
        text = re.sub(r"\$\((?!\()[^()\n]*\)", "$_", text)

    def insert(call: re.Match[str]) -> str:
        # ${HERE}/x/y.sh is x/y.sh.
        below = re.sub(r"^[\"']?\$(\w+|\{\w+\})[\"']?/|[\"']", "", call["path"])
        file = next(filter(Path.is_file, (path.parent / below, path.parent / call["name"])), None)
        if file is None:
            return call[0]
        inner = "" if file.resolve() in before else script_text(file, before)
        return f"{call['before']}\n{re.sub(_ALL, lambda _: call['more'], inner or call['more'])}"

    return re.sub(_CALL, insert, text)


def not_beside(text: str) -> set[str]:
    """Name the scripts that are called in such a text and were not found. Those of the system do not count."""
    calls = (call for call in re.finditer(_CALL, text) if call["path"][0] not in "/~")
    return {call["name"] for call in calls if call["name"].endswith(SUFFIXES)}


def of_shell(script: str) -> dict[str, Any]:
    """Read `key.of=value` and `--flag value`. Variables must be set to one value; integer arithmetic is computed."""
    script = re.sub(r"(?m)\\\n|(?:^|\s)#.*$", "\n", script.replace("=(", "= "))
    # Arithmetic becomes one word, with ${N} for N. What N=${N:-4} sets is what ${N:=4} sets.
    script = re.sub(
        _SUM, lambda x: re.sub(r"(?<![\w${])([A-Za-z_]\w*)", r"${\1}", "".join(x[0].split())), script
    )
    script = re.sub(r"(?<![^\s;])(\w+)=([\"']?)\$\{\1:?[-=]", r"\2${\1:=", script)
    words = [re.sub("[\"']", "", x) for x in re.findall(r"(?:[^\s\"';]|\"[^\"\n]*\"|'[^'\n]*')+", script)]
    pairs = [word.lstrip("+").partition("=") for word in words]
    values: dict[str, str] = {}  # $N for an N that is set to several values

    def fill(text: str) -> str:
        text = re.sub(_VARIABLE, lambda x: values.get(x[1] or x[2]) or x[3] or x[0], text)
        return re.sub(_SUM, lambda x: _computed(x[1]) or x[0], text)

    for word, (name, equals, value) in zip(words, pairs, strict=True):
        default = re.search(rf"\$\{{(\w+):={_DEFAULT}", word)
        if default:
            values.setdefault(default[1], fill(default[2]))
        elif equals and name.isidentifier():
            value = fill(value)
            values[name] = (
                value if values.setdefault(name, value) == value and len(value) < 1000 else f"${name}"
            )
    config: dict[str, Any] = {}
    for (key, equals, value), after in zip(pairs, [*words[1:], "--"], strict=False):
        is_flag = re.match("--[a-z]", key) is not None
        if is_flag and not equals:
            value = "true" if after.startswith(("--", ")")) else after
        if is_flag or (equals and ("." in key or key == "trust_region")):
            with contextlib.suppress(UserError):  # text that is not YAML, or a path below a plain value
                put(config, key, parse_yaml(fill(fill(value)), key))
    return config


def _computed(text: str) -> str:
    """Compute integer arithmetic, and run nothing. "" for what is more than that."""

    def number(node: Any) -> int:
        if isinstance(node, ast.Constant):
            return operator.index(cast("Any", node.value))
        return _OPERATORS[type(node.op)](number(node.left), number(node.right))

    try:
        return str(number(ast.parse(text.replace("/", "//"), mode="eval").body))
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
    ):
        return ""
