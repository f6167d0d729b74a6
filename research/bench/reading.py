"""A contest is read from YAML and checked before anything runs.

Errors name the place in the file, as `families.2.grid`.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from bandpo.errors import UserError, nearest
from bandpo.files import shortened
from bandpo_runs.files.reading import read_yaml

from ..worlds import Learner, Scene, scene
from .contest import (
    ALWAYS,
    LARGER_IS_BETTER,
    LEARNING_RATE,
    NUMBERS,
    Contest,
    Control,
    Family,
    Seeds,
    Stages,
    grid_of,
    learner_of,
    name_of,
)
from .labs import CONTROLS, Lab, is_lab, lab_of, run_of
from .labs import NUMBERS as OF_LAB


def read_contest(path: Path) -> Contest:
    """A contest from its YAML file.

    Raises:
        UserError: no such file, no YAML, or a contest that cannot be held, or not fairly; the message names the place.
    """
    if not path.exists():
        near = nearest(path.name, [each.name for each in path.absolute().parent.glob("*.y*ml")])
        raise UserError(f"contest {path} does not exist{near}")
    return make_contest(read_yaml(path), str(path))


def make_contest(node: Any, where: str = "contest") -> Contest:
    """A contest from what its YAML holds; `where` is what it is called in errors."""
    if not isinstance(node, Mapping):
        raise UserError(f"{where}: a contest has keys such as worlds and families, got {shortened(node)}")
    try:
        contest = Contest.model_validate(node)
        _check_names(contest)
        _check_numbers(contest)
        _check_stages(contest)
        _check_families(contest)
        _check_controls(contest)
        _check_labs(contest, _check_worlds(contest))
    except pydantic.ValidationError as error:
        raise UserError(f"{where}: {_explained(error)}") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return contest


def _explained(error: pydantic.ValidationError) -> str:
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    # pydantic adds the member of a union to a place, and what a validator was put around
    parts = [str(part) for part in first["loc"] if not re.search(r"[\[(]", str(part)) and part not in ("str", "dict")]
    place = ".".join(parts)
    if first["type"] == "extra_forbidden":
        of = {"families": Family, "controls": Control, "stages": Seeds if len(parts) == 3 else Stages}
        model = of.get(parts[0], Contest) if len(parts) > 1 else Contest
        return f"unknown key {place!r}{nearest(parts[-1], list(model.model_fields))}"
    if first["type"] == "missing":
        return f"{place} is missing; it must be set"
    told = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    expected = "" if told != first["msg"] and first["type"] == "value_error" else "; expected is "
    return f"{place}: {told}" if not expected else f"{place} is {shortened(first['input'])}{expected}{told}"


def _check_names(contest: Contest) -> None:
    for key, parts in (("families", contest.families), ("controls", contest.controls)):
        names = [part.name for part in parts]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise UserError(f"{key}.{i}.name: {name!r} is there twice; every name must be its own")
    names = [family.name for family in contest.families]
    if contest.baseline not in names:
        raise UserError(
            f"baseline: must be the name of a family, got {contest.baseline!r}{nearest(contest.baseline, names)}"
        )


def _check_numbers(contest: Contest) -> None:
    for i, name in enumerate(contest.numbers):
        if name not in NUMBERS:
            raise UserError(f"numbers.{i} must be one of {', '.join(NUMBERS)}, got {name!r}{nearest(name, [*NUMBERS])}")
        if name in contest.numbers[:i]:
            raise UserError(f"numbers.{i}: {name!r} is there twice")
    if contest.metric not in LARGER_IS_BETTER:
        metrics = ", ".join(LARGER_IS_BETTER)
        near = nearest(contest.metric, [*LARGER_IS_BETTER])
        raise UserError(f"metric: must be one of {metrics}, of which more is better, got {contest.metric!r}{near}")
    for name in (contest.metric, *ALWAYS):
        if name not in contest.numbers:
            raise UserError(f"numbers: must hold {name!r}, got {list(contest.numbers)}")


def _check_stages(contest: Contest) -> None:
    stages = [(name, getattr(contest.stages, name).range) for name in ("search", "choose", "judge")]
    for (one, a), (other, b) in itertools.combinations(stages, 2):
        if max(a.start, b.start) < min(a.stop, b.stop):
            raise UserError(
                f"stages.{other}: its seeds {b.start} to {b.stop - 1} overlap those of {one}, {a.start} to "
                f"{a.stop - 1}; a choice must be judged on seeds that it was not made by"
            )


def _wanted(node: Any) -> set[str]:
    """The names behind a $ in a node."""
    if isinstance(node, Mapping | list | tuple):
        parts = node.values() if isinstance(node, Mapping) else node
        return set().union(*map(_wanted, parts))
    return {node[1:]} if isinstance(node, str) and node[:1] == "$" else set()


def _check_families(contest: Contest) -> None:
    sizes: dict[str, int] = {}
    for i, family in enumerate(contest.families):
        if LEARNING_RATE in family.grid:
            raise UserError(f"families.{i}.grid.{LEARNING_RATE}: give the family learning_rates in its place")
        wanted, names = _wanted(family.objective), set(family.grid)
        if missing := sorted(wanted - names):
            raise UserError(f"families.{i}.grid: has no values for ${missing[0]}, which the objective has")
        if unused := sorted(names - wanted):
            raise UserError(f"families.{i}.grid.{unused[0]}: is nowhere in the objective, as ${unused[0]}")
        axes = contest.axes(family)
        if any(type(rate) is str or not 0 < float(rate) < math.inf for rate in axes[LEARNING_RATE]):
            at = f"families.{i}.learning_rates" if family.learning_rates else "learning_rates"
            raise UserError(f"{at}: must be numbers above 0, got {list(axes[LEARNING_RATE])}")
        sizes[family.name] = math.prod(map(len, axes.values()))
    most = max(sizes.values())
    for i, (name, size) in enumerate(sizes.items()):
        if size != most:
            largest = next(each for each in sizes if sizes[each] == most)
            raise UserError(
                f"families.{i}.grid: {name!r} would have {size} settings (grid x learning rates) and {largest!r} has "
                f"{most}; a comparison is fair only if all were searched for equally long, so give all equally many"
            )


def _check_controls(contest: Contest) -> None:
    """Every learner can be made under every control, and every control does something that no other does."""
    made: list[list[Learner]] = []
    for j, control in enumerate(contest.controls):
        if control.objective is not None and _wanted(control.objective) != {"rule"}:
            raise UserError(f"controls.{j}.objective: must hold $rule, and no other name behind a $")
        if control.positive_from > 0 and control.positive_weight == 1:
            raise UserError(f"controls.{j}.positive_from: does nothing without a positive_weight other than 1")
        made.append([learner for i in range(len(contest.families)) for learner in _learners(contest, i, j)])
        for other in range(j):
            if made[other] == made[j]:
                same = contest.controls[other].name
                raise UserError(
                    f"controls.{j}: {control.name!r} is for every family what {same!r} is, controls.{other}"
                )


def _learners(contest: Contest, i: int, j: int) -> list[Learner]:
    """Of a family under a control, with the first learning rate."""
    family, control, learners = contest.families[i], contest.controls[j], []
    axes = contest.axes(family)
    for point in grid_of({**axes, LEARNING_RATE: axes[LEARNING_RATE][:1]}):
        try:
            learners.append(Learner(**learner_of(family, control, point)))
        except ValueError as error:
            at = ", ".join(f"{key} = {value}" for key, value in point.items() if key != LEARNING_RATE)
            under = f", under controls.{j} ({control.name})" if j else ""
            raise UserError(f"families.{i}.objective{f' at {at}' if at else ''}{under}: {error}") from None
    return learners


def _check_worlds(contest: Contest) -> list[Scene | Lab]:
    worlds: list[Scene | Lab] = []
    for i, world in enumerate(contest.worlds):
        try:
            made = lab_of(world) if is_lab(world) else scene(world)
        except ValueError as error:
            raise UserError(f"worlds.{i}: {error}") from None
        if made in worlds:
            at = worlds.index(made)
            raise UserError(f"worlds.{i}: {shortened(world)} is there twice, as worlds.{at} {contest.worlds[at]!r}")
        worlds.append(made)
    return worlds


def _check_labs(contest: Contest, worlds: Sequence[Scene | Lab]) -> None:
    """What a scene of the lab cannot do is refused before anything runs."""
    for world, lab in zip(contest.worlds, worlds, strict=True):
        if not isinstance(lab, Lab):
            continue
        where = f"{name_of(world)!r}, a scene of the lab"
        for i, name in enumerate(contest.numbers):
            if name not in OF_LAB:
                raise UserError(f"numbers.{i}: unknown number {name!r} of {where}, which has {', '.join(OF_LAB)}")
        for j, control in enumerate(contest.controls):
            for name in control.model_dump(exclude={"name"}, exclude_defaults=True):
                if name not in CONTROLS:
                    raise UserError(
                        f"controls.{j}.{name}: {control.name!r} cannot be in {where}, which has of controls "
                        f"{' and '.join(CONTROLS)} alone"
                    )
            for i, family in enumerate(contest.families):
                axes = contest.axes(family)
                for point in grid_of({**axes, LEARNING_RATE: axes[LEARNING_RATE][:1]}):
                    try:
                        run_of(lab, learner_of(family, control, point))
                    except ValueError as error:
                        under = f", under controls.{j} ({control.name})" if j else ""
                        raise UserError(f"families.{i}: {family.name!r} cannot be in {where}{under}: {error}") from None
