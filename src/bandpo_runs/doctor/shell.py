"""Read the settings in a shell script. No script is run."""

import contextlib
import re
from pathlib import Path
from typing import Any

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
# A variable, perhaps with its default.
_DEFAULT = r"((?:[^{}]|\{[^{}]*\})*)\}"
_VARIABLE = rf"\$(\w+)|\$\{{(\w+)(?:\}}|:?[-=]{_DEFAULT})"


def script_text(path: Path, before: set[Path]) -> str:
    """Read a script. What it calls or sources beside it stands in the place of the call, with its arguments.

    What was read `before` is left out, and added to: scripts that call each other end.
    """
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
        # The arguments of the call stand where the script puts them, or else behind it.
        placed, times = re.subn(r"[\"']?\$(?:@|\{@\})[\"']?", lambda _: call["more"], inner)
        return f"{call['before']}\n{placed}\n{'' if times else call['more']}"

    return re.sub(_CALL, insert, text)


def not_beside(text: str) -> set[str]:
    """Name the scripts that are called in such a text and were not found. Those of the system do not count."""
    calls = (call for call in re.finditer(_CALL, text) if call["path"][0] not in "/~")
    return {call["name"] for call in calls if call["name"].endswith(SUFFIXES)}


def of_shell(script: str) -> dict[str, Any]:
    """Read `key.of=value` and `--flag value`. Variables must be set to one value."""
    script = re.sub(r"(?m)\\\n|(?:^|\s)#.*$", "\n", script.replace("=(", "= "))
    # What N=${N:-4} sets is what ${N:=4} sets.
    script = re.sub(r"(?<![^\s;])(\w+)=([\"']?)\$\{\1:?[-=]", r"\2${\1:=", script)
    words = [re.sub("[\"']", "", x) for x in re.findall(r"(?:[^\s\"';]|\"[^\"\n]*\"|'[^'\n]*')+", script)]
    pairs = [word.lstrip("+").partition("=") for word in words]
    values: dict[str, str] = {}  # $N for an N that is set to several values

    def fill(text: str) -> str:
        return re.sub(_VARIABLE, lambda x: values.get(x[1] or x[2]) or x[3] or x[0], text)

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
