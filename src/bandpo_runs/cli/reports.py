"""Explain rules and look at runs. The commands are `explain`, `methods`, `watch`, `report` and `calibrate`."""

import textwrap
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from bandpo.errors import UserError

from .app import Once, app
from .shared import (
    RULES,
    Json,
    Page,
    minutes,
    objective,
    probability,
    region,
    seconds,
    several,
    width,
    wrapped,
)

LOGS = (
    "A run is the folder of bandpo train or lab, TRL's output_dir, or a log: metrics.jsonl of bandpo or prime-rl, "
    "trainer_state.json of TRL, a .jsonl file of verl's file logger, of ms-swift or of wandb's history, the output of "
    "TRL, verl or SkyRL (.log, .out, .txt), tensorboard's event files or their folder, or wandb's .csv of a chart or a "
    "history; FILE.csv/RUN is one run of a chart, with - for each / in its name. LABEL=PATH gives it a name in the "
    "output."
)
Runs = Annotated[list[str], Argument(metavar="RUNS", help="Folders or logs of runs.")]


@app.command(epilog=RULES, cls=Once)
def explain(
    rule: Annotated[str, Argument(metavar="RULE", help="Method or rule to explain.")],
    p: Annotated[
        list[float] | None, several("P", "Old probabilities. [default: 0.001 to 0.99]", probability)
    ] = None,
    vs: Annotated[
        Any, Option(parser=objective, metavar="RULE", help="Second rule, to show beside the first.")
    ] = None,
) -> None:
    """Explain what a rule allows each token, in numbers and words."""
    from bandpo.explain import explain
    from bandpo.integrations import trainers_that_run

    try:
        rules = [objective(rule), *([] if vs is None else [vs])]
        trainers = [
            (trainers_that_run(each), trainers_that_run(each, anchor="sampler")) for each in rules
        ]
        print(wrapped(explain(rules[0], p or [], vs, width())))
    except ValueError as error:  # a rule that does not exist, or has no bounds by p alone
        raise UserError(str(error)) from error
    effect = (
        "A rule has an effect only where a ratio leaves its bounds, which takes several steps per batch."
    )
    print(wrapped(f"\n{effect} How many tokens of your run do: bandpo doctor LOG"))
    names = ("It", "The other one") if trainers[0] != trainers[-1] or vs is None else ("Either",)
    for name, (by_default, at_sampler) in zip(names, trainers, strict=False):
        _show_trainers(name, by_default, at_sampler)


def _show_trainers(name: str, by_default: dict[str, str], at_sampler: dict[str, str]) -> None:
    """Print the trainers that run a rule, and why others do not. An empty text is a trainer that does."""
    from bandpo.integrations import TRAINERS

    able = [host for host, why in by_default.items() if not why]
    more = [
        f"{host} ({TRAINERS[host].sampler})"
        for host, why in by_default.items()
        if why and not at_sampler[host]
    ]
    also = f"; with the sampler as anchor also in {', '.join(more)}" if more else ""
    print(wrapped(f"\n{name} runs in: {', '.join(able) or 'no trainer'}{also}."))
    reasons = {host: why.replace(host, "the trainer") for host, why in at_sampler.items() if why}
    for reason in dict.fromkeys(reasons.values()):
        print(
            wrapped(
                f"  not in {', '.join(host for host in reasons if reasons[host] == reason)}: {reason}"
            )
        )


@app.command(cls=Once)
def methods() -> None:
    """List all methods, and how to write a rule.

    Each row has a name, the paper on arXiv, the average over tokens in the objective, and what a token may do.
    """
    from bandpo.losses.nodes import methods as every_method
    from bandpo.notation import describe_interval
    from bandpo.trust_regions.nodes import kinds, usage

    widths, columns = (max(len(each.name) for each in every_method()), 10, 23), min(width(), 80)

    def row(name: str, paper: str, average: str, words: str) -> None:
        start = (
            "  ".join(cell.ljust(size) for cell, size in zip((name, paper, average), widths, strict=True))
            + "  "
        )
        print(textwrap.fill(words, columns, initial_indent=start, subsequent_indent=" " * len(start)))

    row("name", "arXiv", "average", "what it allows")
    for each in every_method():
        text = describe_interval(each.objective) or each.objective.trust_region.label
        for long, short in (
            ("a token's ratio may go ", "ratio "),
            ("a token's ratio has the interval ", "ratio "),
            ("; outside it the gradient does not stop (surrogate ", "; soft ("),
            ("a token of probability 0.5 may go from", "p=0.5:"),
            ("a response of probability 0.5 may go from", "response p=0.5:"),
            (", one of 0.001 up", "; p=0.001: up"),
            ("may go ", ""),
        ):
            text = text.replace(long, short)
        row(each.name, each.arxiv or "-", each.objective.aggregation or "-", text)
    print("\np: old probability. soft: beyond its bounds a token keeps some gradient.")
    print("Formulas: bandpo explain NAME\n\nRules, with their fields:")
    for kind in kinds():
        print(
            textwrap.fill(f"  {usage(kind)}", columns, subsequent_indent="    ", break_on_hyphens=False)
        )


@app.command(epilog=LOGS, cls=Once)
def watch(
    runs: Runs,
    every: Annotated[
        float, Option(parser=seconds, metavar="SECONDS", help="Time between two looks.")
    ] = 2.0,
    silent: Annotated[
        float,
        Option(
            parser=minutes,
            metavar="MINUTES",
            help="Time without a new line after which a run counts as stopped.",
        ),
    ] = 10.0,
    once: Annotated[bool, Option("--once", help="Show the runs once and end.")] = False,
) -> None:
    """Follow running training: rewards, clip fractions, collapse.

    It only reads the logs. It ends when all runs have ended, or with Ctrl-C.
    """
    from .show_watch import watch_and_show

    watch_and_show(runs, every=every, silent=60 * silent, once=once)


@app.command(epilog=LOGS, cls=Once)
def report(
    runs: Runs,
    output: Annotated[Path, Page("-o", "--output", help="Page to write.")] = Path("report.html"),
    baseline: Annotated[
        str | None, Option(help="Label to compare with. [default: what begins with GRPO]")
    ] = None,
) -> None:
    """Compare runs on one self-contained HTML page.

    It shows curves, final numbers and a verdict in words. Several runs of one label are runs of one method.
    """
    from ..reports.page import write_report

    print(write_report(runs, output, baseline=baseline))


@app.command(epilog=RULES, cls=Once)
def calibrate(
    files: Annotated[
        list[Path],
        Argument(metavar="FILES", help="Files of a run's tokens, .jsonl, or their folder."),
    ],
    rate: Annotated[
        float | None,
        Option(parser=probability, help="Share of the tokens outside their bounds, such as 0.01."),
    ] = None,
    match: Annotated[
        Any, Option(parser=region, metavar="RULE", help="Rule to match. [default: clip:0.2:0.2]")
    ] = None,
    cut: Annotated[bool, Option("--cut", help="Count only tokens that lose their gradient.")] = False,
    rule: Annotated[
        list[Any] | None, several("RULE", "Rules to calibrate. [default: seven]", region)
    ] = None,
    parameter: Annotated[
        list[str] | None, several("FIELD", "Fields of the rule to set, such as delta.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the radius or epsilon that fits a run, from its tokens.

    For each rule, it finds the number that leaves a share of the tokens outside its bounds, or as many as another rule
    does. It prints
    95 % intervals over responses, and the settings to paste. A file has a row for each response, with lists; it needs
    columns of old and of current log-probabilities (docs/run.md). The default rules are
    bands, clips, DCPO and RIPO.
    """
    from .show_calibration import calibrate_and_show

    calibrate_and_show(
        files,
        as_json=as_json,
        rules=rule,
        rate=rate,
        match=match,
        cut=cut,
        parameter=parameter or [],
    )
