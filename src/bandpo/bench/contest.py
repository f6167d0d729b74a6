"""What is compared: a contest, read from YAML and checked before anything runs.

docs/command_line.md and benchmarks/contest/both.yaml show one. Errors name the place in the file, as `families.2.grid`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic

from ..errors import UserError, nearest
from ..files.checks import shortened
from ..files.yaml import read_yaml
from ..losses.nodes import objective

LEARNING_RATE = "learning_rate"
Value = float | int | str


def _values(given: Any) -> Any:
    """A list of values; of {from, to, count} so many evenly spaced in the logarithm."""
    if isinstance(given, Mapping):
        if set(given) != {"from", "to", "count"}:
            raise ValueError(f"values are a list, or from, to and count, got {sorted(map(str, given))}")
        first, last, count = given["from"], given["to"], given["count"]
        if not all(type(end) in (int, float) and 0 < end < math.inf for end in (first, last)) or first >= last:
            raise ValueError(f"from and to must be numbers above 0, the second the larger, got {first!r} and {last!r}")
        if type(count) is not int or count < 2:
            raise ValueError(f"count must be a whole number of at least 2, got {count!r}")
        steps = (first * (last / first) ** (i / (count - 1)) for i in range(count))
        given = [float(f"{x:.3g}") for x in steps]
    if not isinstance(given, list | tuple) or not given:
        raise ValueError("values are a list with at least one of them, or from, to and count")
    for value in given:
        if type(value) not in (int, float, str):
            raise ValueError(f"a value must be a number or a word, got {shortened(value)}")
        if given.count(value) > 1:
            raise ValueError(f"every value must be there once, got {value!r} twice")
    return tuple(given)


Values = Annotated[tuple[Value, ...], pydantic.BeforeValidator(_values)]
Node = str | dict[str, Any]
_Count = Annotated[int, pydantic.Field(ge=1, strict=True)]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Family(_Part):
    """Objectives that differ in their numbers only, of which the best is looked for.

    Attributes:
        name: as it is shown.
        objective: what `bandpo.objective` takes; a text $name in it is replaced by that parameter of the grid.
        grid: for each parameter its values; every combination is tried.
        learning_rates: instead of the contest's.
    """

    name: str
    objective: Node
    grid: dict[str, Values] = {}
    learning_rates: Values | None = None


class Control(_Part):
    """What is done to every family, to see whether the rule itself is what helps.

    Attributes:
        name: as it is shown.
        positive_weight: factor of advantages above 0.
        positive_from: only of tokens with an old probability above this.
        entropy_bonus: weight of the policy's entropy in what is maximised.
        beta: weight of a penalty on the KL divergence to the first policy.
        by_chance: tokens lose their gradient at random, as many as the rule stops at their probability.
        objective: a rule's node, in which $rule is the family's, such as one that has its upper side alone:
            {type: by_sign, positive: $rule, negative: {type: clip, eps_low: 1, eps_high: .inf}}.
    """

    name: str
    positive_weight: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 1.0
    positive_from: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.0
    entropy_bonus: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.0
    beta: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.0
    by_chance: bool = False
    objective: dict[str, Any] | None = None


class Seeds(_Part):
    """Seeds `first` to `first + count - 1`."""

    first: Annotated[int, pydantic.Field(ge=0, lt=2**31, strict=True)]
    count: _Count

    @property
    def range(self) -> range:
        return range(self.first, self.first + self.count)


class Stages(_Part):
    """On which seeds a setting is chosen, and on which others it is then judged.

    Attributes:
        search: every setting runs on these.
        choose: the `best` of each family in the search run on these, and the best of them is the family's setting.
        judge: the chosen ones run on these, which nothing was chosen by.
        best: how many of each family are in the second stage.
    """

    search: Seeds
    choose: Seeds
    judge: Seeds
    best: _Count = 10


class Contest(_Part):
    """Worlds x families x controls, chosen in stages.

    Attributes:
        name: of the contest.
        worlds: names of scenes, or their nodes, such as {base: both, flip: 0.1}.
        per_world: choose and compare in each world alone; otherwise one setting is chosen for all, by its mean.
        metric: the number by which is chosen and compared, larger is better: final, mean.
        lost_below: a run whose final reward is below this is lost.
        baseline: the family that all others are compared with.
        families: see `Family`.
        controls: see `Control`.
        learning_rates: of every family without its own.
        stages: see `Stages`.
        widen: where the chosen setting is at an edge of its grid, the grid is made wider there, once.
        settings: try only so many of each family's settings, drawn from its grid, which is then not widened.
        numbers: what is kept of each run.
    """

    name: str
    worlds: Annotated[tuple[Node, ...], pydantic.Field(min_length=1)]
    per_world: bool = False
    metric: str = "final"
    lost_below: float = 0.5
    baseline: str
    families: Annotated[tuple[Family, ...], pydantic.Field(min_length=1)]
    controls: Annotated[tuple[Control, ...], pydantic.Field(min_length=1)] = (Control(name="none"),)
    learning_rates: Values
    stages: Stages
    widen: bool = True
    settings: _Count | None = None
    numbers: tuple[str, ...] = ("final", "mean", "half")

    def axes(self, family: Family) -> dict[str, tuple[Value, ...]]:
        """The grid of a family, the learning rate its last axis."""
        return {**family.grid, LEARNING_RATE: family.learning_rates or self.learning_rates}

    @property
    def searched(self) -> int:
        """How many settings are tried of each family: as many of one as of the other."""
        grid = math.prod(map(len, self.axes(self.families[0]).values()))
        return grid if self.settings is None else min(grid, self.settings)

    @property
    def fewest_runs(self) -> int:
        """Training runs of the whole contest, if no grid is widened."""
        s = self.stages
        each = self.searched * s.search.count + min(s.best, self.searched) * s.choose.count + s.judge.count
        return each * len(self.families) * len(self.controls) * len(self.worlds)

    def smaller(self) -> Self:
        """A contest of seconds, of which nothing can be concluded: every part of it runs."""
        s, few = self.stages, {"search": 3, "choose": 3, "judge": 6}
        seeds = {name: Seeds(first=getattr(s, name).first, count=min(n, getattr(s, name).count))
                 for name, n in few.items()}  # fmt: skip
        stages = Stages(**seeds, best=1)
        return self.model_copy(update={"stages": stages, "settings": min(2, self.searched)})

    def only(self, names: Sequence[str]) -> Self:
        """With these families, and the one they are compared with."""
        known = [family.name for family in self.families]
        for name in names:
            if name not in known:
                raise UserError(f"there is no family {name!r} in this contest{nearest(name, known)}; it has {known}")
        families = tuple(family for family in self.families if family.name in {*names, self.baseline})
        return self.model_copy(update={"families": families})


def grid_of(axes: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Every combination of the values, the last axis fastest."""
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def learner_of(family: Family, control: Control, point: Mapping[str, Value]) -> dict[str, Any]:
    """The fields of `worlds.Learner`, as plain values; what is the default is left out, but for the objective.

    Raises:
        ValueError: no objective has these parameters.
    """
    made = objective(_filled(family.objective, {k: v for k, v in point.items() if k != LEARNING_RATE})).to_config()
    if control.objective is not None:
        made["trust_region"] = _filled(control.objective, {"rule": made["trust_region"]})
        made = objective(made).to_config()
    rest = control.model_dump(exclude={"name", "objective"}, exclude_defaults=True)
    return {"objective": made, LEARNING_RATE: float(point[LEARNING_RATE]), **rest}


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, Mapping):
        return {key: _filled(value, values) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_filled(value, values) for value in node]
    return values[node[1:]] if isinstance(node, str) and node[:1] == "$" else node


def _wanted(node: Any) -> set[str]:
    """The names behind a $ in a node."""
    if isinstance(node, Mapping | list | tuple):
        parts = node.values() if isinstance(node, Mapping) else node
        return set().union(*map(_wanted, parts))
    return {node[1:]} if isinstance(node, str) and node[:1] == "$" else set()


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
        _check_stages(contest)
        _check_families(contest)
        _check_worlds(contest)
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
    for i, world in enumerate(contest.worlds):
        if world in contest.worlds[:i]:
            raise UserError(f"worlds.{i}: {shortened(world)} is there twice")
    names = [family.name for family in contest.families]
    if contest.baseline not in names:
        raise UserError(
            f"baseline: must be the name of a family, got {contest.baseline!r}{nearest(contest.baseline, names)}"
        )
    for name in {contest.metric, "final"} - set(contest.numbers):
        raise UserError(f"numbers: must hold {name!r}, got {list(contest.numbers)}")


def _check_stages(contest: Contest) -> None:
    stages = [(name, getattr(contest.stages, name).range) for name in ("search", "choose", "judge")]
    for (one, a), (other, b) in itertools.combinations(stages, 2):
        if max(a.start, b.start) < min(a.stop, b.stop):
            raise UserError(
                f"stages.{other}: its seeds {b.start} to {b.stop - 1} overlap those of {one}, {a.start} to "
                f"{a.stop - 1}; a choice must be judged on seeds that it was not made by"
            )


def _check_families(contest: Contest) -> None:
    sizes: dict[str, int] = {}
    for i, family in enumerate(contest.families):
        wanted, given = _wanted(family.objective), set(family.grid)
        if missing := sorted(wanted - given):
            raise UserError(f"families.{i}.grid: has no values for ${missing[0]}, which the objective has")
        if unused := sorted(given - wanted):
            raise UserError(f"families.{i}.grid.{unused[0]}: is nowhere in the objective, as ${unused[0]}")
        axes = contest.axes(family)
        if any(type(rate) is str or not 0 < float(rate) < math.inf for rate in axes[LEARNING_RATE]):
            at = f"families.{i}.learning_rates" if family.learning_rates else "learning_rates"
            raise UserError(f"{at}: must be numbers above 0, got {list(axes[LEARNING_RATE])}")
        sizes[family.name] = math.prod(map(len, axes.values()))
        _check_settings(contest, i)
    most = max(sizes.values())
    for i, (name, size) in enumerate(sizes.items()):
        if size != most:
            largest = next(each for each in sizes if sizes[each] == most)
            raise UserError(
                f"families.{i}.grid: {name!r} would have {size} settings (grid x learning rates) and {largest!r} has "
                f"{most}; a comparison is fair only if all were searched for equally long, so give all equally many"
            )


def _check_settings(contest: Contest, i: int) -> None:
    """Every learner can be made, under every control."""
    from ..worlds import Learner

    family, axes = contest.families[i], contest.axes(contest.families[i])
    for j, control in enumerate(contest.controls):
        if control.objective is not None and _wanted(control.objective) != {"rule"}:
            raise UserError(f"controls.{j}.objective: must hold $rule, and no other name behind a $")
        for point in grid_of({**axes, LEARNING_RATE: axes[LEARNING_RATE][:1]}):
            try:
                Learner(**learner_of(family, control, point))
            except ValueError as error:
                at = ", ".join(f"{key} = {value}" for key, value in point.items() if key != LEARNING_RATE)
                under = f", under controls.{j} ({control.name})" if j else ""
                raise UserError(f"families.{i}.objective{f' at {at}' if at else ''}{under}: {error}") from None


def _check_worlds(contest: Contest) -> None:
    from ..worlds import scene

    for i, world in enumerate(contest.worlds):
        try:
            scene(world)
        except ValueError as error:
            raise UserError(f"worlds.{i}: {error}") from None
