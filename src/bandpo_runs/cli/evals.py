"""Measure models, compare them, and prepare data. Commands: `bandpo eval`, `score`, `compare`, `table` and `data`."""

import functools
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Context, Option, Typer

from bandpo.errors import UserError

from ..files.writing import write_atomically
from .app import Once, app
from .shared import Json, count, pair, seconds, setting, several, width, wrapped

COLUMNS = (
    "A result is the folder of bandpo eval, a folder that lm-eval, lighteval, inspect_ai or verl wrote, or a file of "
    "answers: .jsonl, .json, .csv, .parquet, or .eval of inspect_ai. A file has one answer in a row, or one problem "
    "with its answers in lists. Columns with usual names are found, and others are named by --column. The roles are "
    "prompt, problem, response, answer, score, extracted and data. Without a score the scorer math grades. "
    "Files of SkyRL and verifiers are read as they are, and those of TRL's log_completions with --column "
    "score=REWARD_FUNCTION: docs/evaluate.md."
)
_RESULTS = "Folders of bandpo eval, verl's folders of dumps, or files of answers"
Results = Annotated[list[str], Argument(metavar="PATH|LABEL=PATH", help=f"{_RESULTS}.")]
Result = functools.partial(
    Argument, help="Folder of bandpo eval or of dumps, or file of answers; LABEL=PATH names it."
)
Step = Annotated[int | None, Option(help="Step whose validation is read, of verl. [default: the last]")]
Scorer = Annotated[
    str | None, Option(help="Scorer whose grades are used. [default: the one of the evaluation]")
]
Columns = Annotated[
    list[Any] | None,
    Option("--column", parser=pair, metavar="ROLE=COLUMN", help="Column of a file, by its role."),
]
Drop = Annotated[
    bool, Option("--drop-incomplete", help="Leave out problems that have fewer answers than most.")
]
Template = Annotated[
    str | None, Option(help="Text around a problem: paper, plain, boxed, or a text with {prompt}.")
]
Copies = Annotated[
    Path | None, Option("--from", help="Folder with copies of the hub's data sets, as ORG/NAME.")
]


@app.command("eval", cls=Once)
def evaluate(
    ctx: Context,
    model: Annotated[str, Argument(metavar="MODEL", help="Folder, hub id, run, or name on a server.")],
    data: Annotated[list[str] | None, several("NAME", "Data sets. [default: those of the run]")] = None,
    n: Annotated[int, Option("-n", parser=count, help="Samples for each question.")] = 32,
    temperature: Annotated[float, Option(help="Temperature of sampling; 0 with -n 1 is greedy.")] = 1.0,
    top_p: Annotated[
        float, Option(help="Sample from the likeliest tokens of this total probability.")
    ] = 1.0,
    top_k: Annotated[int, Option(help="Sample from this many likeliest tokens; -1 takes all.")] = -1,
    max_tokens: Annotated[int, Option(parser=count, help="Length at which an answer is cut.")] = 4096,
    seed: Annotated[int, Option(help="Seed of the samples.")] = 0,
    backend: Annotated[
        Literal["auto", "vllm", "transformers", "openai"],
        Option(help="Engine; auto takes the server, else vLLM, else transformers."),
    ] = "auto",
    base_url: Annotated[
        str | None, Option(metavar="URL", help="Server that speaks OpenAI's protocol.")
    ] = None,
    concurrency: Annotated[
        int | None, Option(parser=count, help="Requests to a server at once. [default: 32]")
    ] = None,
    timeout: Annotated[
        float | None, Option(parser=seconds, help="Seconds for one answer. [default: 3600]")
    ] = None,
    body: Annotated[
        list[Any] | None, several("FIELD=VALUE", "Fields to add to a request.", setting)
    ] = None,
    limit: Annotated[
        int | None, Option(parser=count, help="Use only the first questions of each data set.")
    ] = None,
    no_chat: Annotated[
        bool, Option("--no-chat", help="Send a question without the model's chat template.")
    ] = False,
    template: Template = None,
    copies: Copies = None,
    scorer: Annotated[
        str | None, Option(help="Scorer of answers. [default: the one that fits the data]")
    ] = None,
    label: Annotated[
        str | None, Option(help="Name in tables. [default: the rule of a run, or the path]")
    ] = None,
    output: Annotated[
        Path | None, Option("-o", "--output", help="Folder. [default: runs/eval/NAME]")
    ] = None,
) -> None:
    """Sample answers from a model, and score them.

    Answers are appended to a folder as they come, and scored. If it is stopped or killed, the same command continues;
    with a larger -n it samples what is missing.

    MODEL may be a folder of weights, an id of the Hugging Face hub, a folder of bandpo train or lab, or the name of a
    model on a server. For a checkpoint of verl an error names the command of verl that makes a model of it.

    A data set is aime24, aime25, amc23 or gsm8k-test, a .parquet, .jsonl, .json or .csv file of {prompt, answer}, a
    recipe or a run with held-out rows, or lab.

    The key of a server is $OPENAI_API_KEY. In --body, null leaves a field out: top_k=null,max_completion_tokens=4096.
    """
    from ..data.question_sets import read
    from ..evals import generate
    from .show_evals import score_and_show

    server = {
        "base_url": base_url,
        "concurrency": concurrency,
        "timeout": timeout,
        "body": dict(body or ()),
    }
    folder = generate.evaluate(
        model,
        data or [],
        generate.Sampling(n, temperature, top_p, top_k, max_tokens, seed),
        backend=backend,
        server={name: value for name, value in server.items() if value},
        read=functools.partial(read, limit=limit, chat=not no_chat, template=template, copies=copies),
        output=output,
        scorer=scorer,
        label=label,
        command=ctx.obj,
    )
    score_and_show([str(folder)])
    print(folder)


@app.command(epilog=COLUMNS, cls=Once)
def score(
    results: Results,
    scorer: Annotated[
        str | None, Option(help="Scorer of answers. [default: the one of the evaluation]")
    ] = None,
    k: Annotated[
        list[int] | None, several("K", "Values of k in pass@k. [default: all samples]", count, "-k")
    ] = None,
    column: Columns = None,
    drop_incomplete: Drop = False,
    wrong: Annotated[
        int | None, Option(parser=count, metavar="N", help="Show N of the answers judged wrong.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Grade answers, and print the scores.

    It grades the samples that have no grade yet, and prints mean@n, pass@k, maj@k and best@k with intervals, the
    lengths, and the shares of answers that were cut or could not be read. A scorer is lab, math, exact, last-number,
    dapo-strict or dapo.
    """
    from .show_evals import score_and_show

    score_and_show(
        results, scorer, k or [], as_json, _columns(results, column, drop_incomplete), drop_incomplete, wrong or 0,
    )  # fmt: skip


@app.command(epilog=COLUMNS, cls=Once)
def compare(
    a: Annotated[str, Result(metavar="A")],
    b: Annotated[str, Result(metavar="B")],
    scorer: Scorer = None,
    step: Step = None,
    column: Columns = None,
    drop_incomplete: Drop = False,
    as_json: Json = False,
) -> None:
    """Compare two checkpoints, with intervals.

    It compares the problems that both answered, for each data set and on average.
    """
    from ..evals.results import apart, read_results
    from ..reports.comparison import compare_results, comparison_data, comparison_text, matched

    columns = _columns([a, b], column, drop_incomplete)
    results = read_results([a, b], scorer, columns, drop_incomplete, step)
    pairs = [matched(*part) for part in apart(results) if len(part) == 2]
    if not pairs:
        raise UserError(
            f"no metric is of both: A has {results[0].scorer}, B has {results[1].scorer}; see --column score"
        )
    compared = [(*pair, compare_results(*pair)) for pair in pairs]
    data = [comparison_data(*each) for each in compared]
    heads = [f"By {one.scorer}\n\n" if len(pairs) > 1 else "" for one, _ in pairs]
    print(
        json.dumps(data if len(data) > 1 else data[0], indent=1)
        if as_json
        else "\n\n".join(
            [
                head + wrapped(comparison_text(*each, width()))
                for head, each in zip(heads, compared, strict=True)
            ]
        )
    )


@app.command(epilog=COLUMNS, cls=Once)
def table(
    results: Annotated[
        list[str], Argument(metavar="PATH|LABEL=PATH", help=f"{_RESULTS}; or logs of verl.")
    ],
    output: Annotated[Path | None, Option("-o", "--output", help="File to write.")] = None,
    form: Annotated[
        Literal["markdown", "latex"] | None,
        Option("--format", help="Format. [default: by the file's name, or markdown]"),
    ] = None,
    scorer: Scorer = None,
    step: Step = None,
    column: Columns = None,
    drop_incomplete: Drop = False,
) -> None:
    """Print results in the layout of the paper's Table 1.

    Rows are methods and columns are data sets, with mean@n, verl's best@k, which the paper prints, and pass@k; the best
    is bold. A log of verl has no pass@k and no intervals. The label MODEL / METHOD puts METHOD under the heading MODEL.
    Results of one label, or named METHOD-seed1, METHOD-seed2 and so on, are training runs of one method.
    """
    from ..evals.results import apart, read_results, split_label
    from ..reports.table import FORMATS, make_table

    inputs = [split_label(text)[1] for text in results]
    if output is not None and output.resolve() in [path.resolve() for path in inputs]:
        raise UserError(
            f"--output must be another file than those that are read, {', '.join(map(str, inputs))}"
        )
    if output is not None and output.suffix.lower() in (
        ".html",
        ".htm",
        ".json",
        ".csv",
        ".pdf",
        ".docx",
        ".xlsx",
    ):
        raise UserError(f"--output must be Markdown (.md) or LaTeX (.tex), got {output}")
    show = FORMATS[form or ("latex" if output is not None and output.suffix == ".tex" else "markdown")]
    columns = _columns(results, column, drop_incomplete)
    parts = apart(read_results(results, scorer, columns, drop_incomplete, step))
    text = "\n".join(show(make_table(part)) for part in parts)
    if output is None or output.name == "-":
        print(text, end="")
    else:
        write_atomically(output, text.encode())
        print(output)


def _columns(
    texts: list[str], pairs: list[tuple[str, str]] | None, drop_incomplete: bool
) -> dict[str, str]:
    """Return the columns of a file of answers. Raises UserError if no input has any."""
    from ..evals.results import files_at, split_label
    from ..files.logs import is_log

    paths = [split_label(text)[1] for text in texts] if pairs or drop_incomplete else []
    if paths and all(path.exists() and all(map(is_log, files_at(path))) for path in paths):
        raise UserError(
            f"{'--column' if pairs else '--drop-incomplete'} is for a file of answers, got only folders of bandpo eval "
            f"or logs: {', '.join(texts)}"
        )
    return dict(pairs or ())


data = Typer(name="data", help="Prepare data sets.")
app.add_typer(data)


@data.command(cls=Once)
def prepare(
    names: Annotated[list[str], Argument(metavar="NAME", help="Data sets to prepare.")],
    output: Annotated[Path, Option("-o", "--output", help="Folder for the files.")],
    copies: Copies = None,
    template: Template = None,
    against: Annotated[
        list[str] | None, several("NAME", "Drop training rows that are in these sets or files.")
    ] = None,
    as_published: Annotated[
        bool, Option("--as-published", help="Keep duplicates and leaks; only count them.")
    ] = False,
    prompt: Annotated[
        str | None, Option(metavar="COLUMN", help="Column of problems. [default: prompt]")
    ] = None,
    answer: Annotated[
        str | None, Option(metavar="COLUMN", help="Column of answers. [default: answer]")
    ] = None,
    answer_from: Annotated[
        Literal["hashes", "box"] | None,
        Option(help="Take answers from solutions: after ####, or in \\boxed{}."),
    ] = None,
    config: Annotated[str | None, Option(help="Configuration of a data set of the hub.")] = None,
    split: Annotated[str | None, Option(help="Split of a data set of the hub. [default: train]")] = None,
    evaluation: Annotated[
        bool, Option("--evaluation", help="Prepare an evaluation set; it drops fewer rows.")
    ] = False,
) -> None:
    """Make Parquet files that verl and TRL read, with a report.

    A data set is paper (all five files of the paper: aime24, aime25, amc23, dapo-math-17k and math-levels-3-5), gsm8k,
    a .jsonl, .json, .csv or .parquet file, or ORG/NAME of the Hugging Face hub. The options from --prompt on describe
    data that bandpo does not know; the column a.b is field b of column a. report.md says what was dropped and changed,
    and docs/evaluate.md says why.
    """
    from ..data.preparation import Settings, prepare
    from ..data.sources import find

    read = functools.partial(
        find, prompt=prompt, answer=answer, config=config, split=split, evaluation=evaluation,
        answer_from=answer_from,
    )  # fmt: skip
    prepare(
        [source for name in names for source in read(name)],
        output,
        Settings(template, tuple(against or ()), as_published, copies),
        say=functools.partial(print, flush=True),
    )
    print(output / "report.md")
