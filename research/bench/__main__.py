"""`python -m research.bench`: what is asked."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from bandpo_runs import cli
from bandpo_runs.cli.shared import count, several

app = Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def bench(
    contest: Annotated[Path, Argument(metavar="CONTEST", help="a YAML file")],
    output: Annotated[
        Path | None,
        Option("-o", "--output", metavar="FOLDER", help="folder [default: runs/bench/ and the file's name]"),
    ] = None,
    smoke: Annotated[bool, Option("--smoke", help="few seeds and settings: seconds, to see that it runs")] = False,
    jobs: Annotated[int | None, Option(parser=count, help="cores to use [default: those of this machine]")] = None,
    only: Annotated[list[str] | None, several("FAMILY", "these families and the baseline alone")] = None,
    as_json: Annotated[bool, Option("--json", help="all numbers, for scripts")] = False,
) -> None:
    """Tune rules for equally long and compare them, in small worlds.

    A contest is a YAML file such as research/contests/scenes.yaml: worlds, families of rules with grids of their
    numbers, learning rates, controls and seeds. For each family the best setting is chosen on some seeds and compared
    with the best fixed clip on others. It may be ended at any moment; the same command goes on.
    """
    from .show import bench_and_show

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    folder = output or Path("runs/bench") / contest.stem
    bench_and_show(contest, folder, smoke=smoke, jobs=jobs or cores, only=only or [], as_json=as_json)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code is that of `bandpo_runs.cli.main`."""
    return cli.main(argv, app, "python -m research.bench")


if __name__ == "__main__":
    sys.exit(main())
