"""One setting of each family is chosen in stages, and then compared with the baseline, on seeds that nothing was chosen
by."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..statistics.contest import (
    Estimate,
    bootstrap,
    extinction_rate,
    holm,
    interquartile_mean,
    probability_of_improvement,
    swap_test,
)
from .cells import Cell, Row, cell, settings_of
from .contest import LEARNING_RATE, Contest, Control, Family, Node, Value, grid_of, learner_of

Point = dict[str, Value]
Run = Callable[..., Mapping[str, Row]]  # (cells, what they are for, more than was planned)
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Judged:
    """What was chosen of a family under a control, and how it did.

    Attributes:
        family: its name.
        control: the name of the control.
        worlds: as in the contest.
        point: the chosen values, the learning rate among them.
        searched: how many settings were tried, before any widening.
        more: how many more, where the grid was widened.
        chosen_by: the seeds that the choice was made by.
        seeds: those that it was judged on.
        edges: what is to be told of the edges of its grid.
        values: of each kept number (worlds, seeds).
    """

    family: str
    control: str
    worlds: tuple[str, ...]
    point: Point
    searched: int
    more: int
    chosen_by: tuple[range, ...]
    seeds: range
    edges: tuple[str, ...]
    values: Mapping[str, Numbers] = field(repr=False)


@dataclass(frozen=True)
class Compared:
    """A family beside the baseline, under one control, by the metric of the contest.

    Attributes:
        judged: what is compared.
        value: the mean over worlds and seeds, with its interval over seeds, as all that follow.
        middle: the interquartile mean.
        lost: the share of runs that ended below the contest's limit.
        half: rounds until the rare strategy is the usual one, the mean; None where that was not kept.
        difference: value minus that of the baseline; None for the baseline itself.
        middle_difference: of the interquartile means.
        better: the chance that one of its runs beats one of the baseline's.
        better_on_seed: that of a run with the same seed.
        p: of the paired swap test.
        p_adjusted: Holm's, over the families under this control.
    """

    judged: Judged
    value: Estimate
    middle: Estimate
    lost: Estimate
    half: float | None
    difference: Estimate | None = None
    middle_difference: Estimate | None = None
    better: float | None = None
    better_on_seed: Estimate | None = None
    p: float | None = None
    p_adjusted: float | None = None


@dataclass(frozen=True)
class Results:
    """All comparisons of a contest, by worlds and control: each a list with the best first."""

    contest: Contest
    tables: Mapping[tuple[tuple[str, ...], str], tuple[Compared, ...]]

    def table(self, worlds: Sequence[str], control: str) -> tuple[Compared, ...]:
        return self.tables[tuple(worlds), control]


@dataclass
class _Search:
    """The search of one family under one control, in worlds that share a setting."""

    contest: Contest
    worlds: tuple[Node, ...]
    family: Family
    control: Control
    axes: dict[str, tuple[Value, ...]]
    settings: list[Point]
    scores: dict[int, float] = field(default_factory=dict)  # of the first stage
    chosen: int = -1
    more: int = 0
    edges: list[str] = field(default_factory=list)
    _made: dict[tuple[int, range], list[Cell]] = field(default_factory=dict, repr=False)

    def cells(self, places: Sequence[int], seeds: range) -> list[Cell]:
        return [made for place in places for made in self._of_setting(place, seeds)]

    def _of_setting(self, place: int, seeds: range) -> list[Cell]:
        if (place, seeds) not in self._made:
            learner = learner_of(self.family, self.control, self.settings[place])
            made = [cell(world, learner, seeds, self.contest.numbers) for world in self.worlds]
            self._made[place, seeds] = made
        return self._made[place, seeds]

    def rows(self, places: Sequence[int], seeds: range, rows: Mapping[str, Row]) -> list[Row]:
        """Those of `cells`. Raises UserError for one of other seeds: a method that has better ones has an advantage."""
        found = [rows[made.key] for made in self.cells(places, seeds)]
        for row in found:
            if row["seeds"] != [seeds.start, len(seeds)]:
                first, count = row["seeds"]
                raise UserError(
                    f"{self.family.name} was run on seeds {_span(range(first, first + count))} where all families must "
                    f"be run on {_span(seeds)}: this comparison would not be fair"
                )
        return found

    def means(self, places: Sequence[int], seeds: range, rows: Mapping[str, Row]) -> dict[int, float]:
        """The mean over worlds and seeds of the metric, for each of these settings."""
        found = self.rows(places, seeds, rows)
        worlds = len(self.worlds)
        return {
            place: float(np.mean([_values(row, self.contest.metric) for row in found[i * worlds : (i + 1) * worlds]]))
            for i, place in enumerate(places)
        }

    def best(self) -> list[int]:
        """The best of the first stage; of equal ones the first of the grid."""
        return sorted(self.scores, key=lambda place: (-self.scores[place], place))[: self.contest.stages.best]


def decide(contest: Contest, run: Run) -> Results:
    """Search, choose, judge, compare. `run` gives the rows of cells by their keys, wherever it has them from.

    Raises:
        UserError: what is to be compared was not treated alike (see `compare`), or a row is of other seeds than asked.
    """
    groups = [(world,) for world in contest.worlds] if contest.per_world else [contest.worlds]
    searches = []
    for worlds, control, family in itertools.product(groups, contest.controls, contest.families):
        axes = contest.axes(family)
        searches.append(_Search(contest, worlds, family, control, axes, settings_of(contest, axes)))
    _search(searches, run, more=False)
    if contest.widen and contest.settings is None and (wider := [each for each in searches if _widen(each)]):
        _search(wider, run, more=True)
    stages = contest.stages
    for each in searches:
        each.edges += _edges_told(each)
    rows = run([made for each in searches for made in each.cells([each.chosen], stages.judge.range)], "judging")
    judged = [_judged(each, rows) for each in searches]
    tables: dict[tuple[tuple[str, ...], str], tuple[Compared, ...]] = {}
    for (worlds, control), some in itertools.groupby(judged, lambda one: (one.worlds, one.control)):
        tables[worlds, control] = compare(list(some), contest.baseline, contest.metric, contest.lost_below)
    return Results(contest, tables)


def _search(searches: Sequence[_Search], run: Run, more: bool) -> None:
    """The first two stages, of settings that have not been through them."""
    stages = searches[0].contest.stages
    new = {id(each): [i for i in range(len(each.settings)) if i not in each.scores] for each in searches}
    seeds = stages.search.range
    cells = [made for each in searches for made in each.cells(new[id(each)], seeds)]
    rows = run(cells, "wider grids" if more else "search", more)
    for each in searches:
        each.scores |= each.means(new[id(each)], seeds, rows)
    seeds = stages.choose.range
    rows = run([made for each in searches for made in each.cells(each.best(), seeds)], "choice", more)
    for each in searches:
        means = each.means(each.best(), seeds, rows)
        each.chosen = max(means, key=lambda place: (means[place], -place))


def _judged(search: _Search, rows: Mapping[str, Row]) -> Judged:
    stages, contest = search.contest.stages, search.contest
    found = search.rows([search.chosen], stages.judge.range, rows)
    return Judged(
        family=search.family.name,
        control=search.control.name,
        worlds=tuple(map(name_of, search.worlds)),
        point=search.settings[search.chosen],
        searched=len(search.settings) - search.more,
        more=search.more,
        chosen_by=(stages.search.range, stages.choose.range),
        seeds=stages.judge.range,
        edges=tuple(search.edges),
        values={name: np.stack([_values(row, name) for row in found]) for name in contest.numbers},
    )


def name_of(world: Node) -> str:
    """A world as it is shown."""
    return world if isinstance(world, str) else ", ".join(f"{key} {value}" for key, value in world.items())


def _values(row: Row, name: str) -> Numbers:
    """A policy whose numbers are no longer finite earns nothing, so that its reward counts as 0."""
    return np.array([0.0 if x is None else x for x in row[name]])


def compare(judged: Sequence[Judged], baseline: str, metric: str, lost_below: float) -> tuple[Compared, ...]:
    """Every family with the baseline, the best first.

    Intervals are over seeds: in each draw the same seeds for both and for all worlds, since a seed means the same
    random numbers everywhere. p-values are those of swapping the two on each seed, adjusted over the families.

    Raises:
        UserError: the comparison would not be fair: other seeds, worlds or another control than the baseline's, seeds
            that the choice was made by, or another number of settings searched.
    """
    (base,) = [one for one in judged if one.family == baseline] or [None]
    if base is None:
        raise UserError(f"the baseline {baseline!r} is not among {[one.family for one in judged]}")
    found = []
    for one in judged:
        _check_fair(one, base)
        found.append(_compared(one, None if one is base else base, metric, lost_below))
    others = [one for one in found if one.p is not None]
    adjusted = holm([one.p for one in others if one.p is not None])
    found = [one for one in found if one.p is None] + [
        dataclasses.replace(one, p_adjusted=float(p)) for one, p in zip(others, adjusted, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: -one.value.value))


def _check_fair(one: Judged, base: Judged) -> None:
    who = f"{one.family} and {base.family} cannot be compared"
    if one.seeds != base.seeds:
        raise UserError(f"{who}: one was judged on seeds {_span(one.seeds)}, the other on {_span(base.seeds)}")
    if (one.control, one.worlds) != (base.control, base.worlds):
        ran = [f"under {each.control!r} in {', '.join(each.worlds)}" for each in (one, base)]
        raise UserError(f"{who}: one ran {ran[0]}, the other {ran[1]}")
    if one.searched != base.searched:
        raise UserError(f"{who}: {one.searched} settings were tried of one, and {base.searched} of the other")
    for part in (*one.chosen_by, *base.chosen_by):
        if max(part.start, one.seeds.start) < min(part.stop, one.seeds.stop):
            raise UserError(f"{who}: seeds {_span(one.seeds)} overlap {_span(part)}, by which a setting was chosen")
    if one.chosen_by != base.chosen_by:
        raise UserError(f"{who}: their settings were chosen by different seeds")
    for name, values in one.values.items():
        if values.shape != (len(one.worlds), len(one.seeds)):
            raise UserError(f"{who}: {name} of {one.family} has {values.shape} numbers for {len(one.seeds)} seeds")


def _span(seeds: range) -> str:
    return f"{seeds.start} to {seeds.stop - 1}"


def _compared(one: Judged, base: Judged | None, metric: str, lost_below: float) -> Compared:
    x, groups = one.values[metric], ["same seeds"] * len(one.worlds)
    found = Compared(
        judged=one,
        value=bootstrap(_mean, x, groups=groups),
        middle=bootstrap(_middle, x, groups=groups),
        lost=extinction_rate(one.values["final"], lost_below),
        half=float(one.values["half"].mean()) if "half" in one.values else None,
    )
    if base is None:
        return found
    y = base.values[metric]
    p = swap_test(x.mean(0), y.mean(0))
    return dataclasses.replace(
        found,
        difference=bootstrap(lambda a, b: _mean(a - b), x, y, groups=groups),
        middle_difference=bootstrap(lambda a, b: _middle(a) - _middle(b), x, y, groups=groups),
        better=float(np.mean(probability_of_improvement(x, y))),
        better_on_seed=bootstrap(
            lambda a, b: probability_of_improvement(a, b, paired=True).mean(-1), x, y, groups=groups
        ),
        p=p,
    )


def _mean(x: Numbers) -> Any:
    return x.mean((-2, -1))


def _middle(x: Numbers) -> Any:
    return interquartile_mean(x, (-2, -1))


def _numeric(values: Sequence[Value]) -> list[float]:
    """The finite values in their order, if all are numbers."""
    if any(isinstance(value, str) for value in values):
        return []
    return sorted(float(value) for value in values if math.isfinite(float(value)))


def _at_edge(search: _Search) -> dict[str, bool]:
    """Of each parameter whose chosen value is at an end of its grid: whether that is the upper one. An infinite value
    is no edge: nothing lies beyond it."""
    found = {}
    for name, values in search.axes.items():
        finite, chosen = _numeric(values), search.settings[search.chosen][name]
        if len(finite) > 1 and (chosen == finite[0] or (chosen == finite[-1] and len(finite) == len(values))):
            found[name] = chosen != finite[0]
    return found


def _widen(search: _Search) -> bool:
    """Make the grid a third longer where the choice is at an edge; whether that gave settings.

    New are those beyond the edge, with every learning rate, and with the chosen values of what is not at an edge: a
    whole grid with several longer axes would be several times the search that the others had.
    """
    before, chosen = search.axes, search.settings[search.chosen]
    wider = dict(before)
    around: dict[str, tuple[Value, ...]] = {name: (value,) for name, value in chosen.items()}
    for name, up in _at_edge(search).items():
        beyond = [value for value in _beyond(_numeric(before[name]), up) if _allowed(search, name, value)]
        if beyond:
            wider[name] = tuple(sorted((*before[name], *beyond), key=float))
            around[name] = (chosen[name], *beyond)
            way = f"{'up' if up else 'down'} to {beyond[-1]:g}"
            search.edges.append(f"{shown(name)} was at the edge of its grid, which was widened {way}")
        else:
            search.edges.append(f"{shown(name)} can go no further than its grid")
    around[LEARNING_RATE] = wider[LEARNING_RATE]
    new = [] if wider == before else [point for point in grid_of(around) if point not in search.settings]
    search.axes, search.more = wider, len(new)
    search.settings += new
    return bool(new)


def _beyond(values: Sequence[float], up: bool) -> list[float]:
    """A third as many values more, with the ratio of the last two, or their difference where one is not above 0."""
    count = max(1, len(values) // 3)
    end, before = (values[-1], values[-2]) if up else (values[0], values[1])
    steps = range(1, count + 1)
    found = [end * (end / before) ** i for i in steps] if min(end, before) > 0 else [
        end + i * (end - before) for i in steps
    ]  # fmt: skip
    return [float(f"{x:.3g}") for x in found]


def _allowed(search: _Search, name: str, value: float) -> bool:
    try:
        learner_of(search.family, search.control, {**search.settings[search.chosen], name: value})
    except ValueError:
        return False
    return True


def _edges_told(search: _Search) -> list[str]:
    """What is left to say of the setting that was chosen in the end."""
    told = []
    for name, up in _at_edge(search).items():
        if not any(text.startswith(f"{shown(name)} can go") for text in search.edges):
            told.append(f"{shown(name)} is at the {'upper' if up else 'lower'} edge of its grid")
    return told


def shown(name: str) -> str:
    return "the learning rate" if name == LEARNING_RATE else name
