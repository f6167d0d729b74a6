"""Show the outcome of a training.

It has what was learned, what the rule did, answers before and after, the page, and the next commands.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.rewards.functions import text_of

from ..config.recipe import RunConfig
from ..files.logs import read
from ..files.reading import read_json_lines
from ..progress import console
from ..statistics.intervals import Spread, clustered_error, training_runs
from ..training.doctor import clip_finding
from ..training.models import FOUR_BIT, SMOLLM2, UNPACKED, locate
from ..training.on_trl import HELD_OUT
from ..training.validation import ACCURACIES


def show_outcome(folder: Path, config: RunConfig, command: str) -> None:
    """Show what a run's folder holds, and the next commands."""
    lines = read_json_lines(folder / HELD_OUT)[0] if (folder / HELD_OUT).exists() else []
    evaluations = sorted({line["step"]: line for line in lines}.values(), key=lambda line: line["step"])
    if len(evaluations) > 1:
        _show_held_out(evaluations[0], evaluations[-1], config)
    if config.model == SMOLLM2 and locate(SMOLLM2, unpack=False).endswith(UNPACKED):
        console.print(FOUR_BIT, soft_wrap=True)
    log = folder / "metrics.jsonl"
    if log.exists():  # of a run that was finished before, it may be gone
        console.print(f"{clip_finding(log, read(log)).what.partition(': ')[2]}.", soft_wrap=True)
    try:
        from ..reports.page import write_report

        console.print(f"Curves: {write_report([folder], folder / 'report.html', trust=True)}")
    except (ModuleNotFoundError, UserError) as error:
        console.print(f"No page of curves: {error}. When that is mended: bandpo report {shlex.quote(str(folder))}")
    rule = "band:kl:0.05" if config.trust_region["type"] == "clip" else "grpo"
    other = folder.with_name(f"{rule.replace(':', '-')}-seed{config.seed}")
    console.print(f"\nNext: the same under {rule}, and both in one report.", style="bold")
    console.print(f"  {command} --rule {rule} -o {shlex.quote(str(other))}", soft_wrap=True)
    console.print(f"  bandpo report {shlex.join([str(folder), str(other)])}", soft_wrap=True)
    console.print("Or your own model and questions, rows of {prompt, answer}.", style="bold")
    console.print("  bandpo train MODEL --data FILE.jsonl")
    print(folder)


def _show_held_out(before: dict[str, Any], after: dict[str, Any], config: RunConfig) -> None:
    is_share = config.reward in ACCURACIES  # of right answers; other rewards may be any number
    of_questions = clustered_error if is_share else training_runs

    def told(spread: Spread | None, signed: str = "") -> str:
        if spread is None:  # of one question
            return "-"
        low, high = spread.interval(
            low=0.0 if is_share and not signed else -math.inf, high=1.0 if is_share else math.inf
        )
        scale, digits = (100, 1) if is_share else (1, 3)
        numbers = [f"{scale * number:{signed}.{digits}f}" for number in (spread.value, low, high)]
        unit = "" if not is_share else " points" if signed else " %"
        return f"{numbers[0]}{unit} [{numbers[1]}, {numbers[2]}]"

    both = [number for number in before["scores"] if number in after["scores"]]  # a reward may not apply to some
    gain = training_runs([after["scores"][number] - before["scores"][number] for number in both])
    name, count = "Right" if is_share else "Reward", len(both)
    then, now = (told(of_questions([each["scores"][number] for number in both])) for each in (before, after))
    line = f"\n{name} on {count} held-out questions: {then} before, {now} after: {told(gain, '+')}."
    console.print(line, soft_wrap=True)
    for (prompt, old), (_, new) in zip(before["answers"], after["answers"], strict=True):
        question = prompt if isinstance(prompt, str) else text_of([{**prompt[-1], "role": "assistant"}])
        start, _, end = config.data.template.partition("{prompt}")
        console.print(f"  {_short(question.removeprefix(start).removesuffix(end))}", style="bold")
        console.print(f"    before: {_short(old)}\n    after:  {_short(new)}")


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 100 else f"{words[:97]}..."
