"""One setting of each family is chosen in stages, and then compared with the baseline, on seeds that nothing was chosen
by."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandpo.errors import UserError

from ..statistics import (
    Estimate,
    bootstrap,
    extinction_rate,
    holm,
    probability_of_improvement,
    swap_test,
)
from .cells import Cell, Row, cell, settings_of
from .contest import LARGER_IS_BETTER, Contest, Control, Family, Node, Value, learner_of, name_of
from .widening import Point, edges_told, widened

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
        chosen_with: the mean of the metric on the second of these, by which its controls can be compared too: a control
            that is picked by the seeds that judge would be flattered.
        edges: what is to be told of the edges of its grid.
        keys: of the rows that judged it, one a world.
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
    chosen_with: float
    edges: tuple[str, ...]
    keys: tuple[str, ...]
    values: Mapping[str, Numbers] = field(repr=False)


@dataclass(frozen=True)
class Compared:
    """A family beside the baseline, under one control, by the metric of the contest.

    Attributes:
        judged: what is compared.
        value: the mean over worlds and seeds, with its interval over seeds, as all that follow.
        lost: the share of runs that end with P("work") below the contest's limit.
        half: rounds until the rare strategy is the usual one, the mean over runs, of which one that never gets there
            counts as one round more than it has; None where the contest does not keep it.
        difference: value minus that of the baseline; None for the baseline itself.
        better: the chance that one of its runs beats one of the baseline's.
        p: of the paired swap test.
        p_adjusted: Holm's, over the families under this control in these worlds.
    """

    judged: Judged
    value: Estimate
    lost: Estimate
    half: float | None
    difference: Estimate | None = None
    better: float | None = None
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
    chosen_with: float = math.nan
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
        cell_rows = [rows[made.key] for made in self.cells(places, seeds)]
        for row in cell_rows:
            if row["seeds"] != [seeds.start, len(seeds)]:
                first, count = row["seeds"]
                raise UserError(
                    f"{self.family.name} was run on seeds {_span(range(first, first + count))} where all families must "
                    f"be run on {_span(seeds)}: this comparison would not be fair"
                )
        return cell_rows

    def means(self, places: Sequence[int], seeds: range, rows: Mapping[str, Row]) -> dict[int, float]:
        """The mean over worlds and seeds of the metric, for each of these settings."""
        values = [_values(row, self.contest.metric) for row in self.rows(places, seeds, rows)]
        worlds = len(self.worlds)
        return {place: float(np.mean(values[i * worlds : (i + 1) * worlds])) for i, place in enumerate(places)}

    def best(self) -> list[int]:
        """The best of the first stage; of equal ones the first of the grid."""
        return sorted(self.scores, key=lambda place: (-self.scores[place], place))[: self.contest.stages.best]


def decide(contest: Contest, run: Run) -> Results:
    """Search, choose, judge, compare. `run` gives the rows of cells by their keys, wherever it has them from.

    Raises:
        UserError: what is to be compared was not treated alike (see `compare`), or a row is of other seeds than asked.
    """
    judged = [_judged(each, rows) for each, rows in _run(contest, run)]
    tables: dict[tuple[tuple[str, ...], str], tuple[Compared, ...]] = {}
    for (worlds, control), some in itertools.groupby(judged, lambda one: (one.worlds, one.control)):
        tables[worlds, control] = compare(list(some), contest.baseline, contest.metric, contest.lost_below)
    return Results(contest, tables)


def missing_runs(contest: Contest, rows: Mapping[str, Row]) -> int:
    """How many training runs are not in `rows`, by the keys of cells.

    It is what `decide` would ask for if all that is missing ended with a reward of 0: exact where the choice has been
    made, and otherwise without the settings of wider grids, since which grids those are is not known.
    """
    if not rows:
        return contest.fewest_runs
    missing: dict[str, int] = {}

    def look(cells: Sequence[Cell], what: str, more: bool = False) -> Mapping[str, Row]:
        new = {each.key: each.count for each in cells if each.key not in rows}
        if not (more and missing):
            missing.update(new)
        return {each.key: rows.get(each.key) or _nothing(each) for each in cells}

    _run(contest, look)
    return sum(missing.values())


def _nothing(cell: Cell) -> Row:
    return {"seeds": [cell.first, cell.count], **{name: [0.0] * cell.count for name in cell.numbers}}


def _run(contest: Contest, run: Run) -> list[tuple[_Search, Mapping[str, Row]]]:
    """All stages: each search with what its choice was judged by."""
    groups = [(world,) for world in contest.worlds] if contest.per_world else [contest.worlds]
    searches = []
    for worlds, control, family in itertools.product(groups, contest.controls, contest.families):
        axes = contest.axes(family)
        searches.append(_Search(contest, worlds, family, control, axes, settings_of(contest, axes)))
    _search(searches, run, more=False)
    if contest.widens and (wider := [each for each in searches if _widen(each)]):
        _search(wider, run, more=True)
    for each in searches:
        each.edges += edges_told(each.axes, each.settings[each.chosen], each.edges)
    seeds = contest.stages.judge.range
    rows = run([made for each in searches for made in each.cells([each.chosen], seeds)], "judging")
    return [(each, rows) for each in searches]


def _widen(search: _Search) -> bool:
    """Whether there are settings beyond an edge of the grid, which are to be searched too."""

    def allowed(point: Point) -> bool:
        try:
            learner_of(search.family, search.control, point)
        except ValueError:
            return False
        return True

    search.axes, points, told = widened(search.axes, search.settings[search.chosen], allowed)
    new = [point for point in points if point not in search.settings]
    search.edges += told
    search.more = len(new)
    search.settings += new
    return bool(new)


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
        each.chosen_with = means[each.chosen]


def _judged(search: _Search, rows: Mapping[str, Row]) -> Judged:
    stages, contest = search.contest.stages, search.contest
    judging = search.rows([search.chosen], stages.judge.range, rows)
    return Judged(
        family=search.family.name,
        control=search.control.name,
        worlds=tuple(map(name_of, search.worlds)),
        point=search.settings[search.chosen],
        searched=len(search.settings) - search.more,
        more=search.more,
        chosen_by=(stages.search.range, stages.choose.range),
        seeds=stages.judge.range,
        chosen_with=search.chosen_with,
        edges=tuple(search.edges),
        keys=tuple(row["key"] for row in judging),
        values={name: np.stack([_values(row, name) for row in judging]) for name in contest.numbers},
    )


def _values(row: Row, name: str) -> Numbers:
    """A policy whose numbers are no longer finite earns nothing, so that its reward counts as 0; its other numbers
    are NaN."""
    instead = 0.0 if name in LARGER_IS_BETTER else math.nan
    return np.array([instead if x is None else x for x in row[name]], np.float64)


def mean_of(values: Numbers) -> float | None:
    """The mean of those that are not NaN, if there are any."""
    return None if np.isnan(values).all() else float(np.nanmean(values))


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
    compared = []
    for one in judged:
        _check_fair(one, base)
        compared.append(_compared(one, None if one is base else base, metric, lost_below))
    others = [one for one in compared if one.p is not None]
    adjusted = holm([one.p for one in others if one.p is not None])
    compared = [one for one in compared if one.p is None] + [
        dataclasses.replace(one, p_adjusted=float(p)) for one, p in zip(others, adjusted, strict=True)
    ]
    return tuple(sorted(compared, key=lambda one: -one.value.value))


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
    result = Compared(
        judged=one,
        value=bootstrap(_mean, x, groups=groups),
        lost=_lost(one.values["work"], lost_below, groups),
        half=mean_of(one.values["half"]) if "half" in one.values else None,
    )
    if base is None:
        return result
    y = base.values[metric]
    return dataclasses.replace(
        result,
        difference=bootstrap(lambda a, b: _mean(a - b), x, y, groups=groups),
        better=float(np.mean(probability_of_improvement(x, y))),
        p=swap_test(x.mean(0), y.mean(0)),
    )


def _lost(work: Numbers, below: float, groups: Sequence[str]) -> Estimate:
    """In one world Wilson's interval. Runs of several worlds with the same seed are not independent, as that asks."""
    if len(work) == 1:
        return extinction_rate(work, below)
    return bootstrap(_mean, ~(work >= below), groups=groups)


def _mean(x: Numbers) -> Any:
    return x.mean((-2, -1))
