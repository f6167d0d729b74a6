"""`bandpo demo`."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option, Typer

from bandpo.errors import UserError

from .arguments import Command, count, page, seed_list
from .width import width

app = Typer()
_COLOURS = ("31", "35", "32", "1;34")  # those that are legible on black and on white


@app.command(cls=Command)
def demo(
    ctx: Context,
    uses: Annotated[int, Option(parser=count, metavar="N", help="how often each answer is used")] = 8,
    seeds: Annotated[Any, Option(parser=seed_list, metavar="N|A,B,...", help="how many, at least 8, or which")] = "64",
    out: Annotated[Path, Option("-o", "--out", parser=page, metavar="FILE", help="the page")] = Path("runs/demo.html"),
) -> None:
    """Compare four rules on a tiny task, in 20 seconds.

    It needs torch alone: 64 seeds under each rule, curves as they grow, a verdict with intervals, and a page. Rules act
    where answers are used several times: try --uses 1.
    """
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch says so at its import; no NumPy is needed
    import torch

    from .. import demo as experiment
    from ..files.writing import write_atomically

    torch.set_num_threads(1)  # these tensors are small: threads would wait for one another

    if len(seeds) < 8:
        raise UserError(f"--seeds must be at least 8, for an interval; got {len(seeds)}")
    rounds, columns = experiment.rounds_of(uses), min(width(), 80)

    def say(*paragraphs: str) -> None:
        for text in paragraphs:
            print(textwrap.fill(text, columns, break_on_hyphens=False))

    say(experiment.TASK, experiment.setting(len(experiment.RULES), len(seeds), uses, rounds))
    live = _is_live()
    print("" if live else f"{'round':>7}" + "".join(f"{name:>16}" for name in experiment.RULES), flush=True)
    history: list[Any] = []
    for done in experiment.train(experiment.RULES, seeds, uses, rounds):
        history.append(done)
        means = experiment.means_of(history)
        if live:
            lines = experiment.plot([*experiment.RULES], means, rounds, columns, _COLOURS)
            _draw(lines, again=len(history) > 1)
        elif (len(history) - 1) % max(rounds // 10, 1) == 0 or len(history) > rounds:
            print(f"{len(history) - 1:>7}" + "".join(f"{value:>16.1%}" for value in means[:, -1]), flush=True)
    result = experiment.Result.of(experiment.RULES, uses, history)
    print()
    for row in result.rows():
        print("{:16}{:>24}{:>22}{:>18}".format(*row))
    print()
    say(result.verdict())
    print()
    say(*result.notes())
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, experiment.page(result, ctx.obj).encode())
    if uses > 1:
        say("The same with each answer used once: bandpo demo --uses 1")
    print(f"page: {out}")


def _is_live() -> bool:
    """Check that someone watches, on a terminal that moves its cursor and is high enough."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain and shutil.get_terminal_size().lines > 18


def _draw(lines: list[str], *, again: bool) -> None:
    """Write the lines over those of the last time, past what keeps control characters from a terminal."""
    stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    stream.write((f"\x1b[{len(lines)}A" if again else "") + "".join(f"{line}\x1b[K\n" for line in lines))
    stream.flush()
