"""Show a training: an estimate, a line a round, and the outcome."""

import math
import shlex
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from bandpo.errors import UserError, counted
from bandpo.integrations import say_average
from bandpo.notation import describe
from bandpo.rewards.functions import look_in_working_directory, text_of

from ..config.recipe import RunConfig, build, merge, read_settings
from ..config.run_folder import check_free, is_finished
from ..config.trust import sent_away
from ..files.logs import read
from ..files.reading import checked, read_json_lines, read_yaml
from ..files.writing import check_own, locked
from ..progress import Progress, console
from ..statistics.intervals import Spread, clustered_error, training_runs
from ..toy import SCENES
from ..training import processes
from ..training.preflight import SMOLLM2_RECIPE, prepare
from ..training.side_by_side import DEFAULT_METHODS, Job, plan, run_all
from ..training.validation import ACCURACIES

_PATIENCE = 20.0  # seconds that a process waits for the first one to say what is wrong


def compare_and_show(
    scene: str,
    methods: Sequence[str] | None,
    seeds: Sequence[int],
    output: Path,
    overrides: Mapping[str, Any],
    workers: int,
    resume: bool,
    command: str,
) -> None:
    """Run `bandpo lab`."""
    from ..reports.page import write_page  # drawing is not needed to train
    from ..reports.report import make_report
    from ..reports.sections import read_sections

    jobs = plan(scene, methods or DEFAULT_METHODS, seeds, output, overrides)
    check_own(output)
    with locked(output / scene / ".lock"):
        labels = ", ".join(dict.fromkeys(str(job.config.label) for job in jobs))
        console.print(Text(scene, "bold"), f": {SCENES[scene].question}", sep="")
        console.print(
            f"{len(jobs)} runs ({labels}; seeds {', '.join(map(str, seeds))}), {workers} at once, into {output}."
        )
        console.print(
            "Each row: the share of right answers (reward), of answers that work step by step (work), the entropy, the "
            "clip fraction (clip %), how many of these are rare (p <= 0.2) and above (tail %), and the "
            "minutes left for all runs.",
            style="dim",
        )
        began = time.monotonic()
        done = {job.folder: job.config.rounds if is_finished(job.folder) else 0 for job in jobs}
        total = sum(job.config.rounds for job in jobs)
        heads = [_LAB_ROW.format(*_LAB_HEADS)]
        # Rows are lines enough.
        with Progress("rounds", total, sum(done.values()), pause=math.inf) as progress:

            def on_row(job: Job, row: dict[str, Any]) -> None:
                progress.before += max(0, row["round"] - 1 - done[job.folder])  # of a run that is resumed
                done[job.folder], now = row["round"], time.monotonic()
                if heads:  # the warm starts are made by now
                    progress.began, progress.before = now, sum(done.values())
                left = progress.minutes_left(sum(done.values()), now)
                console.print("\n".join([*heads, _lab_row(job, row | {"left": left})]), soft_wrap=True)
                heads.clear()
                progress.update(sum(done.values()))

            folders = run_all(
                jobs,
                workers=workers,
                resume=resume,
                command=command,
                on_row=on_row,
                say=console.print,
            )
        report = make_report(read_sections(folders))
        page = output / f"report-{scene}.html"
        write_page(report, page)
        console.print(
            *(line for _, lines in report.verdicts for line in lines),
            *report.limits,
            f"Other scenes: --scene {', '.join(sorted(SCENES.keys() - {scene}))}.",
            f"{(time.monotonic() - began) / 60:.1f} min. Report:",
            sep="\n",
        )
        print(page)  # alone on its line, whole, for eyes and for scripts


def train_and_show(
    recipe: str | None,
    settings: Sequence[str],
    resume: bool,
    command: str,
) -> None:
    """Run `bandpo train`."""
    console.quiet = not processes.is_first()
    try:
        _train(recipe, settings, resume, command)
    except UserError:
        # An error of all is said once: the end of the first process ends the others.
        if not processes.is_first():
            time.sleep(_PATIENCE)
        raise


def _train(recipe: str | None, settings: Sequence[str], resume: bool, command: str) -> None:
    look_in_working_directory()  # for a rule or a reward of the user
    node = full = read_settings(recipe, settings)
    lines: list[str] = []
    if "scene" not in node and node.get("model") != "lab":
        full, lines = prepare(node, is_recipe=recipe not in (None, SMOLLM2_RECIPE))
        stored = Path(full["output"], "config.yaml")
        if resume and stored.exists():  # what was left open was chosen then
            full, lines = merge(checked(read_yaml(stored), dict[str, Any], str(stored)), node), []
    config = build(full)
    if not resume:
        check_free(Path(config.output))
    # The libraries' notices to programmers would drown the rows.
    warnings.simplefilter("ignore", FutureWarning)
    steps = f"{counted(config.rounds, 'round')} of {counted(config.steps_per_round, 'step')}"
    console.print(
        Text.assemble((str(config.label), "bold"), f" on {config.model}, {steps}, in {config.output}")
    )
    console.print(f"{describe(config.objective)}; {counted(config.steps_per_round, 'step')} a batch")
    if config.data.source == "largest-of-three":
        lines.insert(0, "It learns to name the largest of three numbers of two digits, and nothing else.")
    for line in lines:
        console.print(line, soft_wrap=True)
    say_average("TRL", config.method, config.trainer.get("loss_type", "dapo"), console.print)
    services = ", ".join(sent_away(config.trainer))
    if services:
        text = f"This run may send data to other machines, with the logins of this one: {services}."
        console.print(text, style="yellow", soft_wrap=True)
    from ..training.on_trl import run  # slow: it brings TRL

    with Progress("rounds", config.rounds, pause=math.inf) as progress:
        times, seconds = [time.monotonic()], list[float]()

        def on_row(row: dict[str, Any]) -> None:
            times.append(time.monotonic())
            if "reward" in row:  # a round; an evaluation has a row of its own
                seconds.append(times[-1] - times[-2])
            console.print(_line(row, config, seconds))
            progress.update(row["round"])

        folder = run(
            config,
            resume=resume,
            command=command,
            on_row=on_row,
            say=console.print,
        )
    if processes.is_first():
        show_outcome(folder, config, command)


_LAB_ROW = "{:>20.20} {:>4} {:>7} {:>7} {:>6} {:>8} {:>7} {:>7} {:>4}"  # of at most 80 columns
_LAB_HEADS = ("rule", "seed", "round", "reward", "work", "entropy", "clip %", "tail %", "left")


def _lab_row(job: Job, row: Mapping[str, Any]) -> str:
    return _LAB_ROW.format(
        str(job.config.label or job.name),
        job.config.seed,
        f"{row['round']}/{job.config.rounds}",
        _cell(row, "reward"),
        _cell(row, "lab/work"),
        _cell(row, "entropy", 2),
        _cell(row, "clip/fraction", 2, 100),
        _cell(row, "clip/tail_high_share", 0, 100),
        _cell(row, "left", 1),
    )


def _line(row: Mapping[str, Any], config: RunConfig, seconds: Sequence[float]) -> str:
    score, *style = ("right", 1, 100, " %") if config.reward in ACCURACIES else ("reward", 3, 1, "")
    is_evaluation = any(key.startswith("eval/") for key in row)
    columns: dict[str, Any] = {  # name, digits, scale and unit of what a row may have
        "reward": (score, *style),
        "lab/work": ("work", 3, 1, ""),
        "entropy": ("entropy", 2, 1, ""),
        "clip/fraction": ("clipped", 2, 100, " %"),
    }
    if is_evaluation:
        means = [key for key in row if key.startswith("val-core/") and "/best@" not in key]
        shown = means if config.data.eval_path is not None else []
        columns = {key: (" ".join(key.split("/")[1::2]), 3, 1, "") for key in shown}
        columns = {"eval/reward": (f"held-out {score}", *style), **columns}
    parts = [f"round {row['round']:{len(str(config.rounds))}d} of {config.rounds}"]
    for key, (name, digits, scale, unit) in columns.items():
        parts += [f"{name} {_cell(row, key, digits, scale)}{unit}"] if key in row else []
    if not is_evaluation:
        minutes = sum(seconds) / len(seconds) * (config.rounds - row["round"]) / 60
        parts += [f"{seconds[-1]:.0f} s", f"about {minutes:.1f} min left"]
    return "  ".join(parts if row["round"] else ["before", *parts[1:]])


def _cell(row: Mapping[str, Any], key: str, digits: int = 3, scale: float = 1) -> str:
    value = row.get(key)
    return "-" if value is None else f"{scale * value:.{digits}f}"


# ---------------------------------------------------------------------------------------------------------- the outcome
def show_outcome(folder: Path, config: RunConfig, command: str) -> None:
    """Show what a run's folder holds, and the next commands."""
    from ..doctor.examine import clip_findings
    from ..training.models import FOUR_BIT, SMOLLM2, UNPACKED, locate
    from ..training.on_trl import HELD_OUT  # slow: it brings TRL

    lines = read_json_lines(folder / HELD_OUT)[0] if (folder / HELD_OUT).exists() else []
    evaluations = sorted({line["step"]: line for line in lines}.values(), key=lambda line: line["step"])
    if len(evaluations) > 1:
        _show_held_out(evaluations[0], evaluations[-1], config)
    if config.model == SMOLLM2 and locate(SMOLLM2, unpack=False).endswith(UNPACKED):
        console.print(FOUR_BIT, soft_wrap=True)
    log = folder / "metrics.jsonl"
    if log.exists():  # of a run that was finished before, it may be gone
        console.print(f"{next(clip_findings(log, read(log))).what.partition(': ')[2]}.", soft_wrap=True)
    try:
        from ..reports.page import write_report

        console.print(f"Curves: {write_report([folder], folder / 'report.html')}")
    except (ModuleNotFoundError, UserError) as error:
        console.print(
            f"No page of curves: {error}. When that is fixed: bandpo report {shlex.quote(str(folder))}"
        )
    rule = "band:kl:0.05" if config.trust_region["type"] == "clip" else "grpo"
    other = folder.with_name(f"{rule.replace(':', '-')}-seed{config.seed}")
    console.print(
        Text(f"\nNext: the same under {rule}, and both in one report.", "bold"),
        f"  {command} --rule {rule} -o {shlex.quote(str(other))}",
        f"  bandpo report {shlex.join([str(folder), str(other)])}",
        Text("Or your own model and questions, rows of {prompt, answer}.", "bold"),
        "  bandpo train MODEL --data FILE.jsonl",
        sep="\n",
        soft_wrap=True,
    )
    print(folder)


def _show_held_out(before: dict[str, Any], after: dict[str, Any], config: RunConfig) -> None:
    is_share = config.reward in ACCURACIES  # of right answers; other rewards may be any number
    of_questions = clustered_error if is_share else training_runs

    def written(spread: Spread | None, signed: str = "") -> str:
        if spread is None:  # of one question
            return "-"
        low, high = spread.interval(
            low=0.0 if is_share and not signed else -math.inf, high=1.0 if is_share else math.inf
        )
        scale, digits = (100, 1) if is_share else (1, 3)
        numbers = [f"{scale * number:{signed}.{digits}f}" for number in (spread.value, low, high)]
        unit = "" if not is_share else " points" if signed else " %"
        return f"{numbers[0]}{unit} [{numbers[1]}, {numbers[2]}]"

    both = [
        number for number in before["scores"] if number in after["scores"]
    ]  # a reward may not apply to some
    gain = training_runs([after["scores"][number] - before["scores"][number] for number in both])
    name, count = "Right" if is_share else "Reward", len(both)
    then, now = (
        written(of_questions([each["scores"][number] for number in both])) for each in (before, after)
    )
    console.print(
        f"\n{name} on {count} held-out questions: {then} before, {now} after: {written(gain, '+')}.",
        soft_wrap=True,
    )
    for (prompt, old), (_, new) in zip(before["answers"], after["answers"], strict=True):
        question = prompt if isinstance(prompt, str) else text_of([{**prompt[-1], "role": "assistant"}])
        start, _, end = config.data.template.partition("{prompt}")
        console.print(f"  {_shortened(question.removeprefix(start).removesuffix(end))}", style="bold")
        console.print(f"    before: {_shortened(old)}\n    after:  {_shortened(new)}")


def _shortened(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 100 else f"{words[:97]}..."
