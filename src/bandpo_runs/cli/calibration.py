"""`bandpo calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option, Typer

from .arguments import RULES, Command, objective, page, several

app = Typer()
FILES = (
    ".jsonl or .parquet files of a run's tokens, a row for each token, or one for each response, with lists; columns "
    "of old and of current log-probabilities at least: docs/run.md"
)
SOUGHT = "whose number is sought [default: bands, clips, DCPO and RIPO, but for the type of --match]"
FIELDS = "its fields to set, e.g. delta, or region.delta [default: its radius, or its epsilons]"


def share(text: str) -> float:
    try:
        if 0 < (number := float(text)) < 1:
            return number
    except ValueError:
        pass
    raise ValueError(f"must be a share of the tokens in (0, 1), got {text!r}")


def positive(text: str | float) -> float:
    try:
        if 0 < (number := float(text)) < 1e6:
            return number
    except ValueError:
        pass
    raise ValueError(f"must be a positive number, got {text!r}")


@app.command(cls=Command, epilog=RULES)
def calibrate(
    files: Annotated[list[Path], Argument(metavar="FILES", help=FILES)],
    rate: Annotated[float | None, Option(parser=share, help="share of tokens to be outside, e.g. 0.01")] = None,
    match: Annotated[
        Any, Option(parser=objective, metavar="RULE", help="as many as this one has outside [default: clip:0.2:0.2]")
    ] = None,
    times: Annotated[float, Option(parser=positive, help="so many times what --match has outside")] = 1.0,
    among: Annotated[
        Literal["all", "tail", "positive", "negative"],
        Option(help="all tokens, those of p <= 0.2, or those cut with A > 0 or A < 0"),
    ] = "all",
    cut: Annotated[
        bool, Option("--cut", help="count tokens only if A drives them further outside: they lose their gradient")
    ] = False,
    rule: Annotated[list[Any] | None, several("RULE", SOUGHT, objective)] = None,
    parameter: Annotated[list[str] | None, several("FIELD", FIELDS)] = None,
    old: Annotated[str | None, Option(metavar="COLUMN", help="old log-probabilities [default: by its name]")] = None,
    new: Annotated[str | None, Option(metavar="COLUMN", help="current ones [default: by its name]")] = None,
    advantage: Annotated[str | None, Option(metavar="COLUMN", help="advantages [default: by its name]")] = None,
    response: Annotated[str | None, Option(metavar="COLUMN", help="a token's response [default: by its name]")] = None,
    mask: Annotated[str | None, Option(metavar="COLUMN", help="1: of the response [default: by its name]")] = None,
    clip_map: Annotated[
        Path | None,
        Option("--map", parser=page, metavar="FILE", help="also draw which tokens the rules stop, as one HTML page"),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="all numbers, for scripts")] = False,
) -> None:
    """Which radius or epsilon fits a run, from its own tokens.

    Find the number of each rule that leaves a share of the tokens outside, or as many as another rule does, with 95 %
    intervals over responses, and print the node to paste.
    """
    from .show_calibration import calibrate_and_show

    columns = {"old": old, "new": new, "advantage": advantage, "response": response, "mask": mask}
    calibrate_and_show(
        files, columns, rule, as_json=as_json, clip_map=clip_map, rate=rate, match=match, times=times, among=among,
        cut=cut, parameter=parameter or [],
    )  # fmt: skip
