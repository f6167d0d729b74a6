"""`bandpo calibrate`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from .arguments import RULES, Command, objective, page, several

app = Typer()
FILES = (
    ".jsonl files of a run's tokens, a row for each response, with lists; columns of old and of current "
    "log-probabilities at least: docs/run.md"
)
SOUGHT = "find the number of these [default: bands, clips, DCPO and RIPO, without the type of --match]"
FIELDS = "its fields to set, e.g. delta, or region.delta [default: its radius, or its epsilons]"


def share(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < 1:
            return number
    raise ValueError(f"must be a share of the tokens in (0, 1), got {text!r}")


@app.command(cls=Command, epilog=RULES)
def calibrate(
    files: Annotated[list[Path], Argument(metavar="FILES", help=FILES)],
    rate: Annotated[float | None, Option(parser=share, help="share of tokens to stop, e.g. 0.01")] = None,
    match: Annotated[
        Any, Option(parser=objective, metavar="RULE", help="stop as many as this rule [default: clip:0.2:0.2]")
    ] = None,
    cut: Annotated[bool, Option("--cut", help="count only tokens that lose their gradient, by A")] = False,
    rule: Annotated[list[Any] | None, several("RULE", SOUGHT, objective)] = None,
    parameter: Annotated[list[str] | None, several("FIELD", FIELDS)] = None,
    old: Annotated[str | None, Option(metavar="COLUMN", help="old log-probabilities [default: by its name]")] = None,
    new: Annotated[str | None, Option(metavar="COLUMN", help="current ones [default: by its name]")] = None,
    advantage: Annotated[str | None, Option(metavar="COLUMN", help="advantages [default: by its name]")] = None,
    response: Annotated[str | None, Option(metavar="COLUMN", help="a token's response [default: by its name]")] = None,
    mask: Annotated[str | None, Option(metavar="COLUMN", help="1: of the response [default: by its name]")] = None,
    clip_map: Annotated[
        Path | None, Option("--map", parser=page, metavar="FILE", help="draw which tokens the rules stop, as a page")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="print all numbers, for scripts")] = False,
) -> None:
    """Find the radius or epsilon that fits a run, from its tokens.

    Find the number with which each rule stops a share of the tokens, or as many as another rule, with 95 % intervals
    over responses, and print the node to paste.
    """
    from .show_calibration import calibrate_and_show

    columns = {"old": old, "new": new, "advantage": advantage, "response": response, "mask": mask}
    calibrate_and_show(
        files, columns, rule, as_json=as_json, clip_map=clip_map, rate=rate, match=match,
        cut=cut, parameter=parameter or [],
    )  # fmt: skip
