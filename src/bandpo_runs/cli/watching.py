"""`bandpo watch`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from .arguments import Command, page, seconds

app = Typer()
RUNS = (
    "folders of runs (of bandpo, or TRL's output_dir), or files: metrics.jsonl, verl's file logger (.jsonl), TRL's "
    "trainer_state.json; LABEL=PATH names one"
)


def minutes(text: str | float) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < 1e6:
            return number
    raise ValueError(f"must be a positive number of minutes, got {text!r}")


@app.command(cls=Command)
def watch(
    runs: Annotated[list[str], Argument(metavar="RUNS", help=RUNS)],
    html: Annotated[Path | None, Option(parser=page, metavar="FILE", help="write a page that reloads itself")] = None,
    every: Annotated[float, Option(parser=seconds, metavar="SECONDS", help="time between two looks")] = 2.0,
    silent: Annotated[float, Option(parser=minutes, metavar="MINUTES", help="time until a silent run is stopped")] = 10,
    once: Annotated[bool, Option("--once", help="show one view and end")] = False,
    as_json: Annotated[bool, Option("--json", help="print the last numbers for scripts, and end")] = False,
) -> None:
    """Follow running training: rewards, clip rates, collapse.

    It reads the logs that bandpo, TRL and verl write, and changes nothing. It ends when all runs have ended, or with
    Ctrl-C.
    """
    from .show_watch import watch_and_show

    watch_and_show(runs, html=html, every=every, silent=60 * silent, once=once or as_json, as_json=as_json)
