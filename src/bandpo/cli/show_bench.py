"""What `bandpo bench` shows."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..bench.cells import VERSION, seconds_a_run
from ..bench.choosing import Compared, Results
from ..bench.contest import Contest, read_contest
from ..bench.running import ROWS, hold
from ..files.writing import write_atomically
from ..progress import console, lines
from ..provenance import hardware, source_commit, versions
from ..statistics.contest import Estimate, performance_profile
from ..statistics.intervals import LEVEL

_ALPHA = 1 - LEVEL
_ABOVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # rewards of the performance profile


def bench_and_show(
    path: Path, folder: Path, *, smoke: bool, jobs: int, ray: bool, only: Sequence[str], as_json: bool
) -> None:
    """`bandpo bench`."""
    contest = read_contest(path)
    contest = contest.only(only) if only else contest
    contest = contest.smaller() if smoke else contest
    aside = lines(stderr=True) if as_json else console
    _announce(contest, folder, aside, jobs=jobs, ray=ray, smoke=smoke)
    results = hold(contest, folder, jobs=jobs, ray=ray, console=aside)
    data = json.dumps(_data(results), indent=1, allow_nan=False)
    kept = folder / ("smoke.json" if smoke else "results.json")
    write_atomically(kept, data.encode())
    if as_json:
        print(data)
        return
    for (worlds, control), table in results.tables.items():
        _show_table(results, worlds, control, table)
    _show_controls(results)
    _show_edges(results)
    _show_meaning(contest)
    if smoke:
        console.print("A smoke test: nothing can be concluded from so few seeds and settings.", soft_wrap=True)
    console.print(f"rows {folder / ROWS}, numbers {kept}", soft_wrap=True)


def _announce(contest: Contest, folder: Path, aside: Console, *, jobs: int, ray: bool, smoke: bool) -> None:
    stages = contest.stages
    aside.print(
        f"{contest.name}{' (smoke test)' if smoke else ''}: {_many(contest.worlds, 'world')} x "
        f"{_many(contest.families, 'family')} x {_many(contest.controls, 'control')}. Of each family under each "
        f"control {contest.searched} settings are tried on {stages.search.count} seeds, the best {stages.best} on "
        f"{stages.choose.count} others, and one is judged on {stages.judge.count} more.",
        soft_wrap=True,
    )
    runs, each = contest.fewest_runs, seconds_a_run(contest)
    there = " Some of it may be there already." if (folder / ROWS).exists() else ""
    where = "on the cluster, divided by its cores" if ray else f"on {jobs} core{'s' if jobs > 1 else ''}"
    seconds = runs * each / (1 if ray else jobs)
    aside.print(
        f"That is {runs:,} training runs of about {1000 * each:.3g} ms: {_minutes(seconds)} {where}"
        f"{', and more where a grid has to be widened' if contest.widen and contest.settings is None else ''}.{there}",
        soft_wrap=True,
    )


def _many(things: Sequence[Any], name: str) -> str:
    plural = {"family": "families"}.get(name, f"{name}s")
    return f"{len(things)} {name if len(things) == 1 else plural}"


def _minutes(seconds: float) -> str:
    return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:.0f} min"


def _show_table(results: Results, worlds: Sequence[str], control: str, compared: Sequence[Compared]) -> None:
    contest = results.contest
    under = "" if len(contest.controls) == 1 else f", control: {control}"
    console.print(f"\n{' and '.join(worlds)}{under}", soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("family", no_wrap=True)
    half = compared[0].half is not None
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
            *([f"{one.half:.0f}"] if half and one.half is not None else []),
            style="dim" if one.difference is None else None,
        )
    console.print(table)
    wide = max(len(one.judged.family) for one in compared)
    for one in compared:
        point = ", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in one.judged.point.items())
        console.print(f"  {one.judged.family:{wide}}   {point}", soft_wrap=True)


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
        for family in [contest.baseline, *(one.judged.family for one in first if one.difference is not None)]:
            found = [by_control[control][family] for control in controls]
            if family == contest.baseline:
                table.add_row(f"{family}, {contest.metric}", *(f"{one.value.value:.3f}" for one in found), style="dim")
            else:
                table.add_row(family, *map(_short, found))
        console.print(table)
        console.print(f"* p < {_ALPHA:.2g}, adjusted over the families under that control.", style="dim")


def _short(one: Compared) -> str:
    if one.difference is None:
        return "-"
    return f"{one.difference.value:+.3f}{'*' if one.p_adjusted is not None and one.p_adjusted < _ALPHA else ' '}"


def _show_edges(results: Results) -> None:
    told = [
        f"{one.judged.family} ({', '.join([*worlds, control])}): {'; '.join(one.judged.edges)}"
        + (f"; {one.judged.more} settings more than the {one.judged.searched} of all" if one.judged.more else "")
        for (worlds, control), table in results.tables.items()
        for one in table
        if one.judged.edges
    ]
    if told and results.contest.settings is None:
        console.print("\nChosen at the edge of a grid, beyond which better settings may lie:", soft_wrap=True)
        for text in told:
            console.print(f"  {text}", soft_wrap=True)


def _show_meaning(contest: Contest) -> None:
    judge = contest.stages.judge
    console.print(
        f"\nBrackets: {100 * LEVEL:.0f} % intervals over {judge.count} seeds, by which nothing was chosen; the same "
        f"seeds for all. {contest.searched} settings were tried of each family. p: of swapping the two on each seed, "
        "adjusted for the number of families (Holm). better: the chance that a run beats one of the "
        f"{contest.baseline}'s. lost: runs that ended below {contest.lost_below:g}. half: rounds until the rare "
        "strategy is the usual one.",
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
    above = performance_profile(judged.values["final"], _ABOVE).tolist()
    values = {each.name: getattr(one, each.name) for each in dataclasses.fields(one)[1:]}
    return {
        "family": judged.family,
        "point": _finite(judged.point),
        "searched": judged.searched,
        "more": judged.more,
        "seeds": [judged.seeds.start, len(judged.seeds)],
        "edges": list(judged.edges),
        **{name: x._asdict() if isinstance(x, Estimate) else x for name, x in values.items()},
        "profile": dict(zip(map(str, _ABOVE), above, strict=True)),
        "means": {name: float(x.mean()) for name, x in judged.values.items()},
    }


def _finite(value: Any) -> Any:
    """JSON knows no infinity: a word takes its place."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
