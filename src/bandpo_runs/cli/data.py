"""Commands about data: `bandpo data prepare` and `bandpo data list`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option, Typer

from .arguments import Command, count, several
from .width import wrapped

app = Typer(name="data", help="Prepare data sets, or list the known ones.")
NAMES = (
    "paper (all five files of the paper), another name of `bandpo data list`, a .jsonl, .json, .csv or .parquet file, "
    "or ORG/NAME of the hub"
)
TEMPLATE = "around a problem: paper, plain, boxed, or a text with {prompt} [default: paper for known data, else plain]"
ANSWER_FROM = "answers are solutions: take what stands behind the last ####, or in the last \\boxed{}"
EVALUATION = "an evaluation set: drop only rows without a problem or an answer, or with several answers"
AGAINST = "drop training rows that hold problems of these evaluation sets or files (paper, gsm8k: their own)"


@app.command(cls=Command)
def prepare(
    names: Annotated[list[str], Argument(metavar="NAME", help=NAMES)],
    output: Annotated[Path, Option("-o", "--output", help="folder for the files")],
    copies: Annotated[Path | None, Option("--from", help="folder with copies of the hub's data, as ORG/NAME")] = None,
    template: Annotated[str | None, Option(help=TEMPLATE)] = None,
    tokenizer: Annotated[str | None, Option(metavar="MODEL", help="its chat template counts a prompt's tokens")] = None,
    max_prompt_tokens: Annotated[int, Option(parser=count, help="drop longer ones")] = 1024,
    against: Annotated[list[str] | None, several("NAME", AGAINST)] = None,
    as_published: Annotated[
        bool, Option("--as-published", help="only count answers like 033, duplicates and leaks")
    ] = False,
    size: Annotated[int | None, Option(parser=count, help="the first rows")] = None,
    prompt: Annotated[str | None, Option(metavar="COLUMN", help="problems: text or messages [default: prompt]")] = None,
    answer: Annotated[
        str | None, Option(metavar="COLUMN", help="answers; a.b: field b of column a [default: answer]")
    ] = None,
    answer_from: Annotated[Literal["hashes", "box"] | None, Option(help=ANSWER_FROM)] = None,
    config: Annotated[str | None, Option(help="of the hub's data set")] = None,
    split: Annotated[str | None, Option(help="of it [default: train]")] = None,
    evaluation: Annotated[bool, Option("--evaluation", help=EVALUATION)] = False,
) -> None:
    """Make Parquet files that verl and TRL read, with a report.

    From data sets of the Hugging Face hub, copies of them on disk, or your files; report.md says what was dropped and
    changed. docs/evaluate.md says what is checked and why. The options from --prompt on are for data that bandpo does
    not know.
    """
    from ..data.preparation import Settings, prepare
    from ..data.sources import find

    read = functools.partial(
        find, prompt=prompt, answer=answer, config=config, split=split, size=size, evaluation=evaluation,
        answer_from=answer_from,
    )  # fmt: skip
    settings = Settings(template, tokenizer, max_prompt_tokens, tuple(against or ()), as_published, copies)
    say = functools.partial(print, flush=True)
    prepare([source for name in names for source in read(name)], output, settings, say=say)
    print(output / "report.md")


@app.command("list", cls=Command)
def known() -> None:
    """List the known data sets, and the rows that they must have."""
    from ..data.sources import listing

    print(wrapped(listing(), column=19))
