"""Commands that draw and explain: `bandpo report` and `explain`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from bandpo.errors import UserError

from .arguments import RULES, Command, Trust, objective, page, probability, several
from .width import width, wrapped

app = Typer()
RUNS = (
    "folders of runs (of bandpo, or TRL's output_dir), or files: metrics.jsonl, verl's file logger (.jsonl), TRL's "
    "trainer_state.json; LABEL=PATH names its method, and several of one label are runs of it"
)


@app.command(cls=Command)
def report(
    runs: Annotated[list[str], Argument(metavar="RUNS", help=RUNS)],
    output: Annotated[Path, Option("-o", "--output", parser=page, metavar="<path>", help="file")] = Path("report.html"),
    baseline: Annotated[str | None, Option(help="label to compare with [default: what begins with GRPO]")] = None,
    trust: Trust = False,
) -> None:
    """Compare runs and logs on one self-contained HTML page.

    It shows curves, final numbers and a verdict in words, from what bandpo, TRL and verl log.
    """
    from ..reports.page import write_report

    print(write_report(runs, output, baseline=baseline, trust=trust))


@app.command(cls=Command, epilog=f"Methods are gspo, cispo, clip-higher and others: bandpo methods. {RULES}")
def explain(
    rule: Annotated[Any, Argument(parser=objective, metavar="RULE", help="a method or a rule")],
    p: Annotated[list[float] | None, several("P", "old probabilities [default: 0.001 to 0.99]", probability)] = None,
    vs: Annotated[Any, Option(parser=objective, metavar="RULE", help="another one, and what differs")] = None,
    as_json: Annotated[bool, Option("--json", help="all numbers, for scripts")] = False,
) -> None:
    """Explain what a rule allows each token, in numbers and words."""
    from bandpo.explain import explain, explanation_data
    from bandpo.integrations import trainers_that_run

    trainers = [trainers_that_run(value) for value in (rule, vs) if value is not None]
    try:
        if as_json:
            data = explanation_data(rule, p or [], vs)
            for of, runs in zip(data["rules"], trainers, strict=True):
                of["not_in"] = {host: why for host, why in runs.items() if why}
                of["runs_in"] = [host for host, why in runs.items() if not why]
            print(json.dumps(data, indent=2, allow_nan=False))
            return
        print(wrapped(explain(rule, p or [], vs, width())))
    except ValueError as error:  # a rule that has no bounds by p alone
        raise UserError(str(error)) from error
    names = ("It", "The other one") if trainers[0] != trainers[-1] or vs is None else ("Either",)
    for name, runs in zip(names, trainers, strict=False):
        hosts: dict[str, list[str]] = {}  # by why they do not take it
        for host, why in runs.items():
            hosts.setdefault(why.replace(host, "the trainer"), []).append(host)
        print(wrapped(f"\n{name} runs in: {', '.join(hosts.pop('', ['no trainer']))}."))
        for why, names in hosts.items():
            print(wrapped(f"  not in {', '.join(names)}: {why}"))


@app.command(cls=Command)
def methods() -> None:
    """List all methods by name, and how rules are written.

    Of each its paper on arXiv, the average over tokens of its objective, and what it allows a token.
    """
    from bandpo.losses.nodes import methods as every_method
    from bandpo.losses.notation import allowed
    from bandpo.trust_regions.nodes import kinds, usage

    widths, columns = (max(len(each.name) for each in every_method()), 10, 23), min(width(), 80)

    def row(name: str, paper: str, average: str, words: str) -> None:
        start = "  ".join(cell.ljust(size) for cell, size in zip((name, paper, average), widths, strict=True)) + "  "
        print(textwrap.fill(words, columns, initial_indent=start, subsequent_indent=" " * len(start)))

    row("name", "arXiv", "average", "what it allows")
    for each in every_method():
        said = allowed(each.objective) or each.objective.trust_region.label
        for long, short in ("a token's ratio may go ", "ratio "), ("a token of probability ", "p "), ("may go ", ""):
            said = said.replace(long, short)
        row(each.name, each.arxiv or "-", each.objective.aggregation or "-", said)
    print("\nEach with its formula: bandpo explain NAME, and docs/methods.md.\nRules, with their fields:")
    words = ", ".join(usage(kind).rpartition(" ")[2] for kind in kinds())
    print(textwrap.fill(words, columns, break_on_hyphens=False, initial_indent="  ", subsequent_indent="  "))
