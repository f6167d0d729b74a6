"""Share options, readers of values, and the width of output among the commands."""

import contextlib
import shutil
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from bandpo.files import parse_yaml

RULES = (
    "A rule is a method's name (bandpo methods lists them), a type with its fields, such as band:kl:0.05, "
    "clip:0.2:0.28 or dcpo:0.16:0.2:10, or a YAML node such as '{type: capped, region: {type: band}, max_ratio: 10}'."
)
Json = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]


def several(metavar: str, help: str, read: Callable[[str], Any] = str, *names: str) -> Any:
    """Return an option of several values. They are separated by commas or given in several options."""

    def values(text: str) -> list[Any]:
        parts = split(text)
        if not parts:
            raise ValueError("nothing is given")
        return [read(part) for part in parts]

    def joined(lists: Any) -> list[Any] | None:
        return lists and [value for values in lists for value in values]

    return Option(*names, parser=values, callback=joined, metavar=f"{metavar},...", help=help)


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


def number(most: float, what: str) -> Callable[[Any], float]:
    """Return a reader of positive numbers up to `most`."""

    def read(text: Any) -> float:
        with contextlib.suppress(ValueError):
            if 0 < float(text) <= most:
                return float(text)
        raise ValueError(f"must be {what}, got {text!r}")

    return read


probability = number(1, "a probability in (0, 1]")
minutes = number(1e6, "a positive number of minutes")
seconds = number(1e9, "a positive number of seconds")


def count(text: str) -> int:
    """Read a positive integer."""
    if not str(text).isdecimal() or int(text) < 1:  # a default is a number already
        raise ValueError(f"must be a positive integer, got {text!r}")
    return int(text)


def page(text: str | Path) -> Path:
    """Read the path of a page to write. A file of another name may be a log, or an input of the page."""
    if Path(text).suffix not in (".html", ".htm"):
        raise ValueError(f"must be the name of a page, which ends in .html or .htm, got {str(text)!r}")
    return Path(text)


Page = partial(Option, parser=page, metavar="FILE")


def seed_list(text: str) -> list[int]:
    """Read seeds: a count, or a list such as 0,3,4."""
    seeds: list[int] = []
    with contextlib.suppress(ValueError):
        seeds = [int(part) for part in text.split(",")] if "," in text else [*range(int(text))]
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise ValueError(f"must be a positive count or different seeds like 0,3,4; got {text!r}")
    return seeds


def objective(text: str) -> Any:
    """Read a method or a rule."""
    from bandpo.losses.nodes import method_or_objective

    return method_or_objective(text)


def region(text: str) -> Any:
    """Read a rule of a token's ratio."""
    rule = objective(text)
    rule = getattr(rule, "objective", rule)  # of a method
    if rule.ratio != "token":
        raise ValueError(f"{text!r} has one ratio for a response; give a rule of a token's ratio")
    return rule.trust_region


def pair(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"must be NAME=VALUE, got {text!r}")
    return name, value


def setting(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE with a value in YAML."""
    name, value = pair(text)
    return name, parse_yaml(value, f"the value of {name}")


def width() -> int:
    """Return the width of the terminal, or 100 columns where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def wrapped(text: str, column: int | None = None) -> str:
    """Wrap long lines. Further lines begin at `column`, or two columns behind the first."""

    def fill(line: str) -> str:
        return textwrap.fill(
            line,
            width(),
            subsequent_indent=(" " * (len(line) - len(line.lstrip()) + 2 if column is None else column)),
            break_long_words=False,
            break_on_hyphens=False,
        )

    return "\n".join(map(fill, text.splitlines()))
