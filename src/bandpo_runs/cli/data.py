"""Commands about data: `bandpo data prepare` and `bandpo data list`."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option, Typer

from .arguments import Command, count, setting, several
from .width import wrapped

app = Typer(name="data", help="Prepare data sets, or list the known ones.")
NAMES = (
    "paper (all five files of the paper), another name of `bandpo data list`, reasoning-gym:TASK, a .jsonl, .json, "
    ".csv or .parquet file, or ORG/NAME of the hub"
)
TEMPLATE = "around a problem: paper, plain, boxed, or a text with {prompt} [default: paper for known data, else plain]"
ANSWER_FROM = "answers are solutions: take what stands behind the last ####, or in the last \\boxed{}"
EVALUATION = "an evaluation set: dropped are only rows without a problem or an answer, or with several answers"
AGAINST = "drop training rows that hold problems of these evaluation sets or files (paper, gsm8k: their own)"


@app.command(cls=Command)
def prepare(
    names: Annotated[list[str], Argument(metavar="NAME", help=NAMES)],
    output: Annotated[Path, Option("-o", "--output", help="folder for the files")],
    copies: Annotated[Path | None, Option("--from", help="file or folder: a copy of the hub's data sets")] = None,
    template: Annotated[str | None, Option(help=TEMPLATE)] = None,
    tokenizer: Annotated[str | None, Option(metavar="MODEL", help="its chat template counts a prompt's tokens")] = None,
    max_prompt_tokens: Annotated[int, Option(parser=count, help="drop longer ones")] = 1024,
    against: Annotated[list[str] | None, several("NAME", AGAINST)] = None,
    as_published: Annotated[
        bool, Option("--as-published", help="only count answers like 033, duplicates and leaks")
    ] = False,
    size: Annotated[int | None, Option(parser=count, help="the first rows; of a task: items [default: 1000]")] = None,
    strict: Annotated[bool, Option("--strict", help="counts that are not the recorded ones are an error")] = False,
    force: Annotated[bool, Option("--force", help="make finished files again")] = False,
    prompt: Annotated[str | None, Option(metavar="COLUMN", help="problems: text or messages [default: prompt]")] = None,
    answer: Annotated[
        str | None, Option(metavar="COLUMN", help="answers; a.b: field b of column a [default: answer]")
    ] = None,
    answer_from: Annotated[Literal["hashes", "box"] | None, Option(help=ANSWER_FROM)] = None,
    config: Annotated[str | None, Option(help="of the hub's data set")] = None,
    split: Annotated[str | None, Option(help="of it [default: train]")] = None,
    data_source: Annotated[str | None, Option(metavar="KEY", help="verl's, for scorers [default: math_dapo]")] = None,
    integers: Annotated[bool, Option("--integers", help="write answers as integers, count others")] = False,
    evaluation: Annotated[bool, Option("--evaluation", help=EVALUATION)] = False,
    option: Annotated[list[Any] | None, Option(parser=setting, metavar="KEY=VALUE", help="for reasoning_gym")] = None,
) -> None:
    """Make Parquet files that verl and TRL read, with a report.

    From data sets of the Hugging Face hub, copies of them on disk, files of your own or reasoning_gym tasks; report.md
    and report.json say what was dropped and changed. Finished files are not made again. docs/evaluate.md says what is
    checked and why. The options from --prompt on are for data that bandpo does not know.
    """
    from ..data.preparation import Settings, prepare
    from ..data.sources import GROUPS, find

    read = functools.partial(
        find, prompt=prompt, answer=answer, config=config, split=split, data_source=data_source, size=size,
        options=dict(option or []), integers=integers, evaluation=evaluation, answer_from=answer_from,
    )  # fmt: skip
    settings = Settings(
        template, tokenizer, max_prompt_tokens, tuple(against or ()), as_published, copies, strict, force
    )
    group = names[0] if len(names) == 1 and names[0] in GROUPS else None
    say = functools.partial(print, flush=True)
    print(prepare([source for name in names for source in read(name)], output, settings, group=group, say=say).report)


@app.command("list", cls=Command)
def known(as_json: Annotated[bool, Option("--json", help="for scripts")] = False) -> None:
    """List the known data sets: rows they must have, licences."""
    from ..data.sources import listing, listing_text

    print(json.dumps(listing(), indent=2) if as_json else wrapped(listing_text(), column=19))
