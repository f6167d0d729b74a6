"""What is compared: a contest, its families, controls and stages, and the learners that they make.

research/pages/bench.md and research/contests/rare_and_noisy.yaml show one; `reading.py` reads and checks it.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import pydantic

from bandpo.errors import UserError, nearest
from bandpo.files import shortened
from bandpo.losses.nodes import method_or_objective, objective
from bandpo.losses.objective import Method

from .labs import is_lab

LEARNING_RATE = "learning_rate"
# What `worlds.train` says of a run: rewards and other shares of which more is better, and the rest.
LARGER_IS_BETTER = (
    "final", "mean", "peak", "work", "skill", "pass4", "pass16", "pass64", "harder", "unseen1", "unseen16",
)  # fmt: skip
NUMBERS = (
    *LARGER_IS_BETTER, "half", "entropy", "kl", "lost_up", "lost_down", "above", "below", "ratio",
    "cut_rare_up", "cut_head_up", "cut_rare_down", "cut_head_down",
)  # fmt: skip
ALWAYS = ("final", "work")  # of each run: its reward, which docs/report shows, and P("work"), by which it is lost
_SMOKE = 1_000_000  # the first seed of a smoke test
Value = float | int | str


def _values(node: Any) -> Any:
    """A list of values; of {from, to, count} so many evenly spaced in the logarithm."""
    if isinstance(node, Mapping):
        if set(node) != {"from", "to", "count"}:
            raise ValueError(f"values are a list, or from, to and count, got {sorted(map(str, node))}")
        first, last, count = node["from"], node["to"], node["count"]
        if not all(type(end) in (int, float) and 0 < end < math.inf for end in (first, last)) or first >= last:
            raise ValueError(f"from and to must be numbers above 0, the second the larger, got {first!r} and {last!r}")
        if type(count) is not int or count < 2:
            raise ValueError(f"count must be a whole number of at least 2, got {count!r}")
        between = (first * (last / first) ** (i / (count - 1)) for i in range(1, count - 1))
        node = [float(first), *(float(f"{x:.3g}") for x in between), float(last)]
    if not isinstance(node, list | tuple) or not node:
        raise ValueError("values are a list with at least one of them, or from, to and count")
    for value in node:
        if type(value) not in (int, float, str):
            raise ValueError(f"a value must be a number or a word, got {shortened(value)}")
        if node.count(value) > 1:
            raise ValueError(f"every value must be there once, got {value!r} twice")
    return tuple(node)


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
        positive_weight: multiplies the positive advantages of tokens whose old probability is at least `positive_from`.
        positive_from: see there, in [0, 1]; goes with a positive_weight other than 1.
        entropy_bonus: weight of the policy's entropy in what is maximised.
        beta: weight of a penalty on the KL divergence to the first policy.
        balanced: sum r A / sum r over the tokens that have a gradient is subtracted from advantages at each step.
        by_chance: tokens lose their gradient at random, as many as the rule stops at their probability.
        anchor: where old log-probabilities come from: sampler, trainer, or trainer with weights, tis or icepop.
        objective: a rule's node, in which $rule is the family's, such as one that has its upper side alone:
            {type: by_sign, positive: $rule, negative: {type: clip, eps_low: 1, eps_high: .inf}}.
    """

    name: str
    positive_weight: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 1.0
    positive_from: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.0
    entropy_bonus: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.0
    beta: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.0
    balanced: bool = False
    by_chance: bool = False
    anchor: str = "sampler"
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
        worlds: names of scenes, or their nodes, such as {base: rare, flip: 0.1}; of the lab such as {lab: tail}.
        per_world: choose and compare in each world alone; otherwise one setting is chosen for all, by its mean.
        metric: the number by which is chosen and compared, one of `LARGER_IS_BETTER`.
        lost_below: a run that ends with P("work") below this is lost: its rare strategy has died out.
        baseline: the family that all others are compared with.
        families: see `Family`.
        controls: see `Control`.
        learning_rates: of every family without its own.
        stages: see `Stages`.
        widen: where the chosen setting is at an edge of its grid, the grid is made wider there, once.
        settings: try only so many of each family's settings, drawn from its grid, which is then not widened.
        numbers: what is kept of each run, of `NUMBERS`; the metric and `ALWAYS` must be among them.
    """

    name: str
    worlds: Annotated[tuple[Node, ...], pydantic.Field(min_length=1)]
    per_world: bool = False
    metric: str = "final"
    lost_below: Annotated[float, pydantic.Field(gt=0, le=1)] = 0.05
    baseline: str
    families: Annotated[tuple[Family, ...], pydantic.Field(min_length=1)]
    controls: Annotated[tuple[Control, ...], pydantic.Field(min_length=1)] = (Control(name="none"),)
    learning_rates: Values
    stages: Stages
    widen: bool = True
    settings: _Count | None = None
    numbers: tuple[str, ...] = ("final", "mean", "half", "work")

    def axes(self, family: Family) -> dict[str, tuple[Value, ...]]:
        """The grid of a family, the learning rate its last axis."""
        return {**family.grid, LEARNING_RATE: family.learning_rates or self.learning_rates}

    @property
    def widens(self) -> bool:
        return self.widen and self.settings is None

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
        """A contest of seconds, of which nothing can be concluded: every part of it runs.

        Of each family two learning rates at the middle of its grid, on seeds after all those of this contest. A world
        has four rounds, the lab two, or a few more, so that no two worlds become one.
        """
        s, few = self.stages, {"search": 3, "choose": 3, "judge": 6}
        first = max(_SMOKE, *(getattr(s, name).range.stop for name in few))
        seeds = {name: Seeds(first=first + 100 * i, count=min(n, getattr(s, name).count))
                 for i, (name, n) in enumerate(few.items())}  # fmt: skip
        rates = min(2, *(len(self.axes(family)[LEARNING_RATE]) for family in self.families))
        families = tuple(
            family.model_copy(update={
                "grid": {name: (values[len(values) // 2],) for name, values in family.grid.items()},
                "learning_rates": self.axes(family)[LEARNING_RATE][:rates],
            })
            for family in self.families
        )  # fmt: skip
        worlds = tuple(
            {**({"base": world} if isinstance(world, str) else world), "rounds": (2 if is_lab(world) else 4) + i}
            for i, world in enumerate(self.worlds)
        )
        changed = {"stages": Stages(**seeds, best=1), "families": families, "settings": None, "worlds": worlds}
        return self.model_copy(update=changed)

    def only(self, names: Sequence[str]) -> Self:
        """With these families, and the one they are compared with."""
        all_names = [family.name for family in self.families]
        for name in names:
            if name not in all_names:
                raise UserError(f"unknown family {name!r}{nearest(name, all_names)}; the contest has {all_names}")
        if not {*names} - {self.baseline}:
            others = [name for name in all_names if name != self.baseline]
            raise UserError(f"{self.baseline!r} is the baseline, and alone compares nothing; name some of {others}")
        families = tuple(family for family in self.families if family.name in {*names, self.baseline})
        return self.model_copy(update={"families": families})


def grid_of(axes: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Every combination of the values, the last axis fastest."""
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def name_of(world: Node) -> str:
    """A world as it is shown: {base: rare and noisy, p_bad: 0.2, sgd: true} is "rare and noisy, p bad 0.2, sgd"."""
    if isinstance(world, str):
        return world
    shown = {key.replace("_", " "): value for key, value in world.items()}
    return ", ".join(
        str(value) if name == "base" else name if value is True else f"{name} {value}" for name, value in shown.items()
    )


def learner_of(family: Family, control: Control, point: Mapping[str, Value]) -> dict[str, Any]:
    """The fields of `worlds.Learner`, as plain values; what is the default is left out, but for the objective.

    Raises:
        ValueError: no objective has these parameters.
    """
    node = _filled(family.objective, {k: v for k, v in point.items() if k != LEARNING_RATE})
    value = method_or_objective(node)
    if isinstance(value, Method):
        value = value.without_average  # the average is the world's
    made = value.to_config()
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
