"""The pieces of which a contest is made: a cell is one learner in one world on a range of seeds, and gives one row."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bandpo.errors import UserError
from bandpo.files import shortened

from .contest import LEARNING_RATE, Contest, Node, grid_of, learner_of
from .labs import GROUP, is_lab, lab_of, numbers_of, seconds_of

# Of what a run gives: to be raised when `research.worlds` gives other numbers, so that rows of before are not taken.
VERSION = 1
_TIMED = 520  # runs that are timed to say how long a contest takes: four seconds
_SLOWER = 300  # a run in torch than a compiled one, about
_DIGITS = 6  # of a number in a row, which another processor gives too
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One learner in one world on some seeds.

    Attributes:
        world: the name or node of a scene, or a node of the lab, as JSON with sorted keys.
        learner: fields of `worlds.Learner`, as JSON with sorted keys.
        first: of its seeds.
        count: how many there are.
        numbers: which numbers of a run are kept.
    """

    world: str
    learner: str
    first: int
    count: int
    numbers: tuple[str, ...]

    @functools.cached_property
    def key(self) -> str:
        """A hash of all that the row depends on: scene, learner, seeds, kept numbers, and version of the worlds."""
        told = [_content(self.world), self.learner, self.first, self.count, self.numbers, VERSION]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:20]

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + self.count)


def cell(world: Node, learner: Mapping[str, Any], seeds: range, numbers: Sequence[str]) -> Cell:
    """A cell from plain values."""
    return Cell(_json(world), _json(learner), seeds.start, len(seeds), tuple(numbers))


def row_of(cell: Cell, numbers: Mapping[str, Sequence[float]]) -> Row:
    """What is kept of a cell: its key, what it is, and its numbers, one a seed; null for one that is not finite."""
    values = {name: [_rounded(x) for x in numbers[name]] for name in cell.numbers}
    world, learner = json.loads(cell.world), json.loads(cell.learner)
    return {"key": cell.key, "world": world, "learner": learner, "seeds": [cell.first, cell.count], **values}


def cell_of(row: Row, where: str) -> Cell:
    """The cell that a row says it is of.

    Raises:
        UserError: the row has not what a row has, or its key is of another cell: something in it was changed.
    """
    try:
        key, first, count = row["key"], *row["seeds"]
        numbers = [name for name in row if name not in ("key", "world", "learner", "seeds")]
        of_row = cell(row["world"], row["learner"], range(first, first + count), numbers)
        lengths, right = {len(row[name]) for name in numbers}, of_row.key
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where}: no row of a contest, {shortened(row)} ({type(error).__name__})") from None
    if lengths != {count}:
        raise UserError(f"{where}: it says that it has {count} seeds, and has {sorted(lengths)} numbers")
    if right != key:
        raise UserError(
            f"{where}: its key {key!r} is not that of its world, learner and seeds, which would be {right!r}: the "
            "row was changed, or is of another version of the worlds; delete it, and it will be run again"
        )
    return of_row


def run_cells(cells: Sequence[Cell]) -> list[Row]:
    """Rows of cells of one world and the same seeds: on this core, and the same as each would have alone."""
    from ..worlds import Learner, scene, train

    world, seeds = cells[0].world, cells[0].seeds
    if any((each.world, each.seeds) != (world, seeds) for each in cells):
        raise ValueError("cells must be of one world and the same seeds to be run together")
    node, fields = json.loads(world), [json.loads(each.learner) for each in cells]
    if is_lab(node):
        ran = [numbers_of(lab_of(node), each, list(seeds)) for each in fields]
        results = {name: [numbers[name] for numbers in ran] for name in ran[0]}
    else:
        results = train(scene(node), [Learner(**each) for each in fields], list(seeds))
    for name in cells[0].numbers:
        if name not in results:
            raise UserError(f"numbers must be of what a run gives, {', '.join(results)}, got {name!r}")
    return [row_of(each, {name: results[name][i] for name in each.numbers}) for i, each in enumerate(cells)]


def batches(cells: Iterable[Cell], runs: int) -> list[list[Cell]]:
    """Cells that are run together: of one world and the same seeds, in their order, with about so many runs."""
    made: list[list[Cell]] = []
    for _, alike in itertools.groupby(cells, lambda each: (each.world, each.seeds)):
        for each in alike:
            if made and _fits(made[-1], each, runs):
                made[-1].append(each)
            else:
                made.append([each])
    return made


def of_lab(cell: Cell) -> bool:
    return is_lab(json.loads(cell.world))


def holds_lock(cell: Cell) -> bool:
    """Whether it is trained in Python's own loops, so that two threads would take as long as one: those of torch, and
    the lab's, which also sets torch's threads for all of a process."""
    return of_lab(cell) or _weight(cell) > cell.count


def beginning(cell: Cell) -> Cell:
    """What of it is run again to see that its row is right: all, or the first seeds where a run takes seconds. Of the
    lab these are trained side by side."""
    return dataclasses.replace(cell, count=min(cell.count, GROUP)) if holds_lock(cell) else cell


def _fits(batch: list[Cell], cell: Cell, runs: int) -> bool:
    same = (batch[0].world, batch[0].seeds) == (cell.world, cell.seeds) and not of_lab(cell)
    return same and sum(map(_weight, (*batch, cell))) <= runs


def _weight(cell: Cell) -> int:
    """Of how many compiled runs it takes the time."""
    learner = {**json.loads(cell.learner), LEARNING_RATE: 1.0}
    return cell.count * (1 if _is_compiled(_json(learner)) else _SLOWER)


@functools.cache
def _is_compiled(learner: str) -> bool:
    from ..worlds import Learner, why_not_numba

    return why_not_numba(Learner(**json.loads(learner))) is None


def settings_of(contest: Contest, axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The settings of a grid that are tried: all, or as many of them as the contest says, drawn once for all."""
    every = grid_of(axes)
    if contest.settings is None or contest.settings >= len(every):
        return every
    return [every[i] for i in sorted(random.Random(0).sample(range(len(every)), contest.settings))]


def seconds_a_run(contest: Contest) -> float:
    """How long a training run takes on one core: the mean over worlds, families and controls.

    In each world as many pairs of a family and a control are timed as there are of either, so that every family and
    every control is in one of them. Each is a batch of the search with fewer seeds, which takes somewhat longer a run;
    of the lab the first round of some seeds of the search, which takes somewhat less than those that follow.
    """
    families, controls = contest.families, contest.controls
    count = max(len(families), len(controls))
    pairs = [(families[i % len(families)], controls[i % len(controls)]) for i in range(count)]
    cases = list(itertools.product(contest.worlds, pairs))
    settings = min(4, contest.searched)  # at most
    all_seeds = contest.stages.search.range
    seeds = all_seeds[: max(1, _TIMED // (len(cases) * settings))]
    spent = 0.0
    for world, (family, control) in cases:
        axes = contest.axes(family)
        middle = {name: values[len(values) // 2] for name, values in axes.items()}
        learners = [learner_of(family, control, {**middle, LEARNING_RATE: x}) for x in axes[LEARNING_RATE][:settings]]
        if is_lab(world):
            spent += seconds_of(lab_of(world), learners[0], all_seeds)
            continue
        first = cell(world, learners[0], range(1), contest.numbers)
        began = time.perf_counter()
        run_cells([first])  # with what is compiled or made once
        if _weight(first) == 1:
            began = time.perf_counter()
            run_cells([cell(world, learner, seeds, contest.numbers) for learner in learners])
        spent += (time.perf_counter() - began) / (len(learners) * len(seeds) if _weight(first) == 1 else 1)
    return spent / len(cases)


def _rounded(x: float) -> float | None:
    return float(f"{x:.{_DIGITS}g}") if math.isfinite(x) else None


@functools.cache
def _content(world: str) -> dict[str, Any]:
    """All fields of a scene, so that a name that means another scene is another key; those that rows of before have
    not, where they are used."""
    from ..worlds import scene

    node = json.loads(world)
    if is_lab(node):
        return lab_of(node).content
    fields = dataclasses.asdict(scene(node))
    return {name: x for name, x in fields.items() if x or name not in ("sampler", "ways", "unseen")}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
