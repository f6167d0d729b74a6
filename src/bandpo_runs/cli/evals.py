"""Commands that measure models: `bandpo eval`, `score`, `compare` and `table`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Context, Option, Typer

from bandpo.errors import UserError

from ..files.writing import write_atomically
from .arguments import Command, count, seconds, setting, several
from .width import wrapped

app = Typer()
MODEL = (
    "a model's folder or hub id; the folder of a run of bandpo train or lab; its name on a server; lab: the start of "
    "the lab's tail scene"
)
DATA = (
    "aime24,aime25,amc23,gsm8k-test; a .parquet, .jsonl, .json or .csv file of {prompt, answer}; "
    "reasoning-gym:TASK:option=value:size=128; a recipe or a run (its held-out rows); lab [default: those of the run, "
    "or of the lab]"
)
BACKEND = "auto: a server if --base-url is given, else vLLM if it is installed, else transformers"
URL = "of a server that speaks OpenAI's protocol, e.g. http://localhost:8000/v1; its key is $OPENAI_API_KEY"
BODY = "more fields of a request to a server; null leaves a field out: top_k=null,max_completion_tokens=4096"
TEMPLATE = "around a problem: paper, plain, boxed, or text with {prompt} [default: paper for AIME, AMC]"
SCORERS = "math, dapo-strict, exact, last-number, reasoning-gym or lab [default: what the evaluation was made with]"
LOG = "the log of the run that made LABEL (metrics.jsonl, or verl's file logger), to look for a collapse in"
RESULTS = "a folder of bandpo eval, or a file of answers: .jsonl, .json, .csv, .parquet, .eval; LABEL=PATH names it"
COLUMN = "of a file: the column of the prompt, problem, response, answer, score, extracted answer or data"
COLUMNS = (
    "A file of answers has one in a row, or a problem with its answers in lists; question and score at least. Columns "
    "are found by usual names, or by --column, as in --column score=ok. Files of verl's trainer.validation_data_dir, "
    "lighteval's details, lm-eval's samples, inspect_ai's logs, verifiers' rollouts and, with --column "
    "score=REWARD_FUNCTION, TRL's log_completions are read as they are: docs/evaluate.md."
)


def pair(text: str) -> tuple[str, str]:
    role, equals, name = text.partition("=")
    if not (role and equals and name):
        raise ValueError(f"must be ROLE=COLUMN, got {text!r}")
    return role, name


Format = Literal["markdown", "latex"]
Results = Annotated[list[str], Argument(metavar="PATH|LABEL=PATH", help=RESULTS)]
Scorer = Annotated[str | None, Option(help="whose grades [default: those of the evaluation, or of the file]")]
Columns = Annotated[list[Any] | None, Option("--column", parser=pair, metavar="ROLE=COLUMN", help=COLUMN)]
Drop = Annotated[bool, Option("--drop-incomplete", help="of a file: leave out problems with fewer answers than most")]
Logs = Annotated[list[str] | None, Option(metavar="LABEL=PATH", help=LOG)]


@app.command("eval", cls=Command)
def evaluate(
    ctx: Context,
    model: Annotated[str, Argument(metavar="MODEL", help=MODEL)],
    data: Annotated[list[str] | None, several("NAME", DATA)] = None,
    n: Annotated[int, Option("-n", parser=count, help="samples for each question")] = 32,
    temperature: Annotated[float, Option(help="0 is greedy, with -n 1")] = 1.0,
    top_p: Annotated[float, Option(help="the likeliest tokens of this probability together")] = 1.0,
    top_k: Annotated[int, Option(help="the likeliest tokens; -1: all")] = -1,
    max_tokens: Annotated[int, Option(parser=count, help="where an answer is cut")] = 4096,
    seed: Annotated[int, Option(help="of the samples")] = 0,
    backend: Annotated[Literal["auto", "vllm", "transformers", "openai"], Option(help=BACKEND)] = "auto",
    base_url: Annotated[str | None, Option(metavar="URL", help=URL)] = None,
    concurrency: Annotated[int, Option(parser=count, help="requests to it at once")] = 32,
    timeout: Annotated[float | None, Option(parser=seconds, help="seconds for one answer [default: 3600]")] = None,
    body: Annotated[list[Any] | None, several("FIELD=VALUE", BODY, setting)] = None,
    batch_size: Annotated[int | None, Option(parser=count, help="with transformers [default: 64, CPU 32]")] = None,
    limit: Annotated[int | None, Option(parser=count, help="the first questions of each data set")] = None,
    no_chat: Annotated[bool, Option("--no-chat", help="send a question as it is, without the chat template")] = False,
    template: Annotated[str | None, Option(help=TEMPLATE)] = None,
    copies: Annotated[Path | None, Option("--from", help="a copy of the hub's data sets on disk")] = None,
    scorer: Annotated[str | None, Option(help="see bandpo score [default: the one that fits the data]")] = None,
    label: Annotated[str | None, Option(help="its name in tables [default: its path, or the rule of a run]")] = None,
    output: Annotated[Path | None, Option("-o", "--output", help="folder [default: runs/eval/NAME]")] = None,
) -> None:
    """Draw answers from a model, and score them.

    Draw answers to every question, append them to a folder as they come, and score them. The same command goes on
    where it was stopped or killed; with a larger -n it draws the samples that are missing.
    """
    from ..data.question_sets import read
    from ..evals import draw
    from .show_evals import score_and_show

    folder = draw.evaluate(
        model,
        data or [],
        draw.Sampling(n, temperature, top_p, top_k, max_tokens, seed),
        draw.Engine(backend, base_url, concurrency, timeout, dict(body or ()), batch_size),
        read=partial(read, limit=limit, chat=not no_chat, template=template, copies=copies),
        output=output,
        scorer=scorer,
        label=label,
        command=ctx.obj,
    )
    score_and_show([str(folder)])
    print(folder)


@app.command(cls=Command, epilog=COLUMNS)
def score(
    results: Results,
    scorer: Annotated[str | None, Option(help=SCORERS)] = None,
    k: Annotated[
        list[int] | None, several("K", "of pass@K and maj@K [default: the number of samples]", count, "-k")
    ] = None,
    column: Columns = None,
    drop_incomplete: Drop = False,
    as_json: Annotated[bool, Option("--json", help="all numbers, for scripts")] = False,
) -> None:
    """Grade answers, and print what they say.

    Grade the samples that have no grade yet, and print mean@n, pass@k, maj@k and best@k with their intervals, lengths,
    and the shares of answers that were cut or could not be read.
    """
    from .show_evals import score_and_show

    score_and_show(results, scorer, k or [], as_json, _columns(results, column, drop_incomplete), drop_incomplete)


@app.command(cls=Command, epilog=COLUMNS)
def compare(
    a: Annotated[str, Argument(metavar="A", help=RESULTS)],
    b: Annotated[str, Argument(metavar="B", help="another one")],
    k: Annotated[int | None, Option("-k", parser=count, help="pass@K [default: mean@n, of all samples]")] = None,
    scorer: Scorer = None,
    log: Logs = None,
    column: Columns = None,
    drop_incomplete: Drop = False,
    as_json: Annotated[bool, Option("--json", help="print plain data, as shares instead of points")] = False,
) -> None:
    """Compare two checkpoints, with intervals.

    Compare two evaluations on the problems that both answered, data set by data set and on average, and say what would
    settle it.
    """
    from ..evals.results import read_results
    from ..reports.comparison import compare_results, comparison_data, comparison_text, matched

    columns = _columns([a, b], column, drop_incomplete)
    one, other = matched(*read_results([a, b], scorer, log or [], columns, drop_incomplete))
    comparisons = compare_results(one, other, k)
    if as_json:
        print(json.dumps(comparison_data(one, other, comparisons, k), indent=1))
    else:
        print(wrapped(comparison_text(one, other, comparisons, k)))


@app.command(cls=Command, epilog=COLUMNS)
def table(
    results: Results,
    output: Annotated[Path | None, Option("-o", "--output", help="write to this file instead")] = None,
    form: Annotated[Format | None, Option("--format", help="[default: by the file's name, or markdown]")] = None,
    k: Annotated[int | None, Option("-k", parser=count, help="of pass@K [default: the number of samples]")] = None,
    scorer: Scorer = None,
    log: Logs = None,
    column: Columns = None,
    drop_incomplete: Drop = False,
) -> None:
    """Print results in the layout of the paper's Table 1.

    Methods by data sets, mean@n with its interval and pass@k, the best in bold. Label MODEL / METHOD puts METHOD under
    the heading MODEL; evaluations with one label are training runs of one method.
    """
    from ..evals.results import read_results, split_label
    from ..reports.table import FORMATS, make_table

    inputs = [split_label(text)[1] for text in results]
    if output is not None and output.resolve() in [path.resolve() for path in inputs]:
        raise UserError(f"--output must be another file than those that are read, {', '.join(map(str, inputs))}")
    show = FORMATS[form or ("latex" if output is not None and output.suffix == ".tex" else "markdown")]
    columns = _columns(results, column, drop_incomplete)
    text = show(make_table(read_results(results, scorer, log or [], columns, drop_incomplete), k))
    if output is None:
        print(text, end="")
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, text.encode())
        print(output)


def _columns(texts: list[str], pairs: list[tuple[str, str]] | None, drop_incomplete: bool) -> dict[str, str]:
    """Return the columns of a file of answers; raises UserError if there are folders only, which have none."""
    from ..evals.results import split_label

    if (pairs or drop_incomplete) and all(split_label(text)[1].is_dir() for text in texts):
        option = "--column" if pairs else "--drop-incomplete"
        raise UserError(f"{option} is for a file of answers, got only folders of bandpo eval: {', '.join(texts)}")
    return dict(pairs or ())
