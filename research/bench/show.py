"""What `python -m research.bench` shows."""

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bandpo.errors import counted
from bandpo_runs.files.writing import write_atomically
from bandpo_runs.progress import console, lines
from bandpo_runs.provenance import hardware, source_commit, versions
from bandpo_runs.statistics.intervals import LEVEL

from ..statistics import Estimate
from .cells import VERSION, seconds_a_run
from .choosing import Compared, Results, mean_of
from .contest import Contest
from .labs import VERSION as LAB_VERSION
from .labs import is_lab, make_starts
from .reading import read_contest
from .running import ROWS, hold

_ALPHA = 1 - LEVEL


def bench_and_show(path: Path, folder: Path, *, smoke: bool, jobs: int, only: Sequence[str], as_json: bool) -> None:
    """`python -m research.bench`."""
    contest = read_contest(path)
    contest = contest.only(only) if only else contest
    contest = contest.smaller() if smoke else contest
    aside = lines(stderr=True) if as_json else console
    _announce(contest, aside, smoke=smoke)
    results = hold(
        contest, folder, jobs=jobs, console=aside,
        announce=lambda missing: _announce_cost(contest, missing, aside, jobs=jobs),
    )  # fmt: skip
    data = json.dumps(_data(results), indent=1, allow_nan=False)
    file = folder / ("smoke.json" if smoke else "results-only.json" if only else "results.json")
    write_atomically(file, data.encode())
    if as_json:
        print(data)
        return
    for (worlds, control), table in results.tables.items():
        _show_table(results, worlds, control, table)
    _show_controls(results)
    if not smoke:  # of which every choice is at an edge
        _show_edges(results)
    _show_meaning(results)
    if smoke:
        console.print("A smoke test: nothing can be concluded from so few seeds and settings.", soft_wrap=True)
    if only:
        console.print(
            "Some families alone (--only): p is adjusted for them and not for all, and results.json of the whole "
            "contest stays as it is.",
            soft_wrap=True,
        )
    console.print(f"rows {folder / ROWS}, numbers {file}", soft_wrap=True)


def _announce(contest: Contest, aside: Console, *, smoke: bool) -> None:
    stages, searched = contest.stages, contest.searched
    aside.print(
        f"{contest.name}{' (smoke test)' if smoke else ''}: {counted(len(contest.worlds), 'world')} x "
        f"{counted(len(contest.families), 'family')} x {counted(len(contest.controls), 'control')}. Of each family "
        f"under each control {counted(searched, 'setting')} {'is' if searched == 1 else 'are'} tried on "
        f"{stages.search.count} seeds, the best {min(stages.best, searched)} on {stages.choose.count} others, and one "
        f"is judged on {stages.judge.count} more.",
        soft_wrap=True,
    )


def _seconds(x: float) -> str:
    return f"{x:.2g} s" if x >= 1 else f"{1000 * x:.3g} ms"


def _announce_cost(contest: Contest, missing: int, aside: Console, *, jobs: int) -> None:
    if not missing:
        aside.print(f"Of its {contest.fewest_runs:,} training runs none is missing.", soft_wrap=True)
        return
    cores = min(jobs, os.cpu_count() or 1)  # more threads than cores are no faster
    make_starts(contest.worlds, lambda text: aside.print(text, soft_wrap=True))
    each = seconds_a_run(contest)
    slow = find_spec("numba") is None and not all(map(is_lab, contest.worlds))
    without = "numba, which is not installed, is hundreds of times as fast (pip install 'bandpo[research]'). "
    all_runs = f", of {contest.fewest_runs:,}," if missing < contest.fewest_runs else ""
    aside.print(
        f"{without if slow else ''}That is {counted(missing, 'training run')}{all_runs} of about {_seconds(each)}: "
        f"{_minutes(missing * each / cores)} on {counted(cores, 'core')}"
        f"{', and more where a grid has to be widened' if contest.widens else ''}.",
        soft_wrap=True,
    )


def _minutes(seconds: float) -> str:
    return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:.0f} min"


def _show_table(results: Results, worlds: Sequence[str], control: str, compared: Sequence[Compared]) -> None:
    contest = results.contest
    under = "" if len(contest.controls) == 1 else f", control: {control}"
    console.print(f"\n{' and '.join(worlds)}{under}", soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("family", no_wrap=True)
    half = any(one.half is not None for one in compared)
    for name in (contest.metric, f"minus {contest.baseline}", "p", "better", "lost", *(["half"] if half else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for one in compared:
        table.add_row(
            one.judged.family,
            f"{one.value.value:.3f}",
            "-" if one.difference is None else _difference(one.difference),
            "-" if one.p_adjusted is None else _p(one.p_adjusted),
            "-" if one.better is None else f"{one.better:.2f}",
            f"{100 * one.lost.value:.1f} %",
            *(["-" if one.half is None else f"{one.half:.0f}"] if half else []),
            style="dim" if one.difference is None else None,
        )
    console.print(table)
    wide = max(len(one.judged.family) for one in compared)
    for one in compared:
        point = ", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in one.judged.point.items())
        more = one.judged.more
        wider = (
            f"; {counted(more, 'setting')} more than the {one.judged.searched} of all, in a wider grid" if more else ""
        )
        console.print(f"  {one.judged.family:{wide}}   {point}{wider}", soft_wrap=True)


def _show_controls(results: Results) -> None:
    """What is left of each family's advantage under each control."""
    contest = results.contest
    controls = [control.name for control in contest.controls]
    if len(controls) == 1:
        return
    for worlds in dict.fromkeys(worlds for worlds, _ in results.tables):
        by_control = {
            control: {one.judged.family: one for one in results.table(worlds, control)} for control in controls
        }
        console.print(f"\n{' and '.join(worlds)}: minus {contest.baseline} under the same control", soft_wrap=True)
        table = Table("family", box=box.SIMPLE_HEAD)
        for control in controls:
            table.add_column(control, justify="right")
        first = by_control[controls[0]].values()
        best = {
            family: max(controls, key=lambda control: by_control[control][family].judged.chosen_with)
            for family in by_control[controls[0]]
        }
        for family in [contest.baseline, *(one.judged.family for one in first if one.difference is not None)]:
            base = family == contest.baseline
            by_name = {control: by_control[control][family] for control in controls}
            cells = [
                (f"{one.value.value:.3f} " if base else _short(one)) + ("^" if best[family] == control else " ")
                for control, one in by_name.items()
            ]
            table.add_row(f"{family}, {contest.metric}" if base else family, *cells, style="dim" if base else None)
        console.print(table)
        console.print(
            f"* p < {_ALPHA:.2g}, adjusted over the families under that control.\n^ The control under which the family "
            "did best on the seeds of its choice, which judge nothing: take a family's best control by this mark, and "
            "not by the differences.",
            style="dim",
            soft_wrap=True,
        )


def _short(one: Compared) -> str:
    if one.difference is None:
        return "-"
    return f"{one.difference.value:+.3f}{'*' if one.p_adjusted is not None and one.p_adjusted < _ALPHA else ' '}"


def _show_edges(results: Results) -> None:
    told = [
        f"{one.judged.family} ({', '.join([*worlds, control])}): {'; '.join(one.judged.edges)}"
        for (worlds, control), table in results.tables.items()
        for one in table
        if one.judged.edges
    ]
    if told:
        console.print("\nChosen at the edge of a grid, beyond which better settings may lie:", soft_wrap=True)
        for text in told:
            console.print(f"  {text}", soft_wrap=True)


def _show_meaning(results: Results) -> None:
    contest, judge = results.contest, results.contest.stages.judge
    searched = contest.searched
    more = max(one.judged.more for table in results.tables.values() for one in table)
    tried = f"{counted(searched, 'setting')} {'was' if searched == 1 else 'were'} tried of each family"
    tried += f", and up to {more} more where a grid was widened" if more else ""
    tests = counted(len(contest.families) - 1, "test")
    console.print(
        f"\nBrackets: {100 * LEVEL:.0f} % intervals over {judge.count} seeds, by which nothing was chosen; the same "
        f"seeds for all. {tried}. p: of swapping the family's run and the baseline's on each seed, adjusted (Holm) for "
        f"the {tests} of a table, of all families under one control in the same worlds, and not for several tables. "
        f"better: the chance that a run beats one of the {contest.baseline}'s. lost: runs that ended with "
        f"P(work) < {contest.lost_below:g}, whose rare strategy has died out. half: rounds until it is the usual one.",
        style="dim",
        soft_wrap=True,
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _difference(one: Estimate) -> str:
    return f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"


def _p(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}"


def _data(results: Results) -> dict[str, Any]:
    contest = results.contest
    return {
        "contest": _finite(contest.model_dump(mode="python")),
        "searched": contest.searched,
        "runs": contest.fewest_runs,
        "level": LEVEL,
        "worlds_version": VERSION,
        "lab_version": LAB_VERSION,
        "versions": versions(("numpy", "numba", "torch", "scipy")),
        "commit": source_commit(),
        "hardware": hardware(False),
        "tables": [
            {"worlds": list(worlds), "control": control, "baseline": contest.baseline, "families": [*map(_row, table)]}
            for (worlds, control), table in results.tables.items()
        ],
    }


def _row(one: Compared) -> dict[str, Any]:
    judged = one.judged
    values = {each.name: getattr(one, each.name) for each in dataclasses.fields(one)[1:]}
    return {
        "family": judged.family,
        "point": _finite(judged.point),
        "searched": judged.searched,
        "more": judged.more,
        "chosen_with": judged.chosen_with,
        "seeds": [judged.seeds.start, len(judged.seeds)],
        "keys": list(judged.keys),
        "edges": list(judged.edges),
        **{name: x._asdict() if isinstance(x, Estimate) else x for name, x in values.items()},
        "means": {name: mean_of(x) for name, x in judged.values.items()},
    }


def _finite(value: Any) -> Any:
    """JSON knows no infinity: a word takes its place."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
