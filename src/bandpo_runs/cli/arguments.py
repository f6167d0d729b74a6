"""Readers of argument texts: numbers, rules, settings, and lists of them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from bandpo.files import parse_yaml

RULES = (
    "A rule is a short word, its type and its fields (clip:0.2:0.28, dcpo:0.16:0.2:10, band:kl:0.05, "
    "capped:band:kl:0.05:10, relaxed:band:kl:0.05:clip:0.2:0.28), or a YAML node such as '{type: band, delta: 0.05}'."
)

# Of the commands that read what others wrote, and import nothing that it names.
Trust = Annotated[
    bool,
    typer.Option("--trust", help="import the module of a rule of one's own, module:Class; this runs what is in it"),
]


def several(metavar: str, help: str, read: Callable[[str], Any] = str, *names: str) -> Any:
    """Return an option of several values: with commas between them, and as often as one likes."""

    def values(text: str) -> list[Any]:
        if not (parts := split(text)):
            raise ValueError("nothing is given")
        return [read(part) for part in parts]

    def joined(lists: Any) -> list[Any] | None:
        return lists and [value for values in lists for value in values]

    return typer.Option(*names, parser=values, callback=joined, metavar=f"{metavar},...", help=help)


def split(text: str) -> list[str]:
    """Split a text at its commas; those in {...}, [...] or (...) belong to a rule."""
    parts, depth = [""], 0
    for letter in text:
        depth = max(0, depth + (letter in "{[(") - (letter in "}])"))
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


class Command(TyperCommand):
    """A command whose help names no Python types, and which knows that lists are easily separated by spaces."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        lists = {name for option in self.params if str(option.metavar).endswith(",...") for name in option.opts}
        # A word behind the value of a list may be meant for the command, if none of those stands before.
        closed = (args[:1] and args[0][:1] != "-") or all(param.param_type_name == "option" for param in self.params)
        try:
            for i, name in enumerate(args):
                values = [*takewhile(lambda text: text[:1] != "-", args[i + 1 :])]
                if closed and name in lists and len(values) > 1 and len({*map(_is_number, values)}) == 1:
                    right = f"{name} {shlex.quote(','.join(values))}"
                    raise typer.BadParameter(f"values are separated by commas: {right}", param_hint=f"'{name}'")
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            vars(error)["ctx"] = ctx  # which of commands
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        params: list[Any] = self.get_params(ctx)
        for title, kind in ("Arguments", "argument"), ("Options", "option"):
            if rows := [param.get_help_record(ctx) for param in params if param.param_type_name == kind]:
                if kind == "argument":
                    rows = [(name.split(" <")[0], text) for name, text in rows]
                with formatter.section(title):
                    formatter.write_dl(rows)


def _is_number(text: str) -> bool:
    """Check for a number behind a word, which then is a value of its own."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def count(text: str) -> int:
    if not str(text).isdecimal() or int(text) < 1:  # a default is a number already
        raise ValueError(f"must be a positive number, got {text!r}")
    return int(text)


def page(text: str | Path) -> Path:
    """Return the path of a page to write; a file of another name may be a log, or an input of the page."""
    path = Path(text)
    is_file = path.is_file() or not path.exists()  # and no device or pipe
    if is_file and path.suffix.lower() not in (".html", ".htm") and not path.is_relative_to("/dev"):
        raise ValueError(f"must be the name of a page, which ends in .html or .htm, got {str(text)!r}")
    return path


def seconds(text: str) -> float:
    return _number(text, 1e9, "a positive number of seconds")


def probability(text: str) -> float:
    return _number(text, 1, "a probability in (0, 1]")


def _number(text: str, most: float, what: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) <= most:
            return number
    raise ValueError(f"must be {what}, got {text!r}")


def seed_list(text: str) -> list[int]:
    seeds: list[int] = []
    with contextlib.suppress(ValueError):
        seeds = [int(part) for part in text.split(",")] if "," in text else [*range(int(text))]
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise ValueError(f"must be a positive count or different seeds like 0,3,4; got {text!r}")
    return seeds


def objective(text: str) -> Any:
    from bandpo.losses.nodes import method_or_objective

    return method_or_objective(text)


def setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"must be KEY=VALUE, got {text!r}")
    return key, parse_yaml(value, f"the value of {key}")
