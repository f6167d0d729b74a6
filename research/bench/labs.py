"""Scenes of the lab as worlds of a contest: runs of the transformer, in the lab's own loop.

Their node says `lab`, a scene's name, and what is different: {lab: tail, rounds: 48, start_seed: 0}. What a run gives
is measured on samples, where a world knows the expectation.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from bandpo.errors import nearest
from bandpo.losses.objective import Objective
from bandpo_runs.toy import warm_start
from research.fast_lab import Row, learnable, train
from research.lab_settings import Settings

# Runs that are trained side by side. Others beside it change how a run is rounded, and so where it goes: a cell has
# always the same groups, counted from its first seed, so that its row depends on nothing else.
GROUP = 8
NUMBERS = ("final", "mean", "half", "work")  # of those of a world
CONTROLS = ("positive_weight", "objective")
# Of what a run gives: to be raised when the loop or a warm start gives other numbers, so that rows of before are not
# taken.
VERSION = 1
# Rounds at the end over which a run is judged: by 192 answers in `rare-and-noisy`, so that a share has a standard error
# of at most 0.036; and by three rounds' P("work"), which is exact for the prompts of a round.
LAST, _LAST_WORK = 6, 3


@dataclass(frozen=True)
class Lab:
    """A scene of the lab, as a world.

    Attributes:
        settings: of a run; `learning_rate` is put in by what is trained.
        start_seed: of the warm start of all runs; None: each seed has its own.
    """

    settings: Settings
    start_seed: int | None = None

    @property
    def content(self) -> dict[str, Any]:
        """All that a row depends on beside learner and seeds."""
        own = {name: value for name, value in dataclasses.asdict(self.settings).items() if name != "learning_rate"}
        return {"lab": own, "start_seed": self.start_seed, "group": GROUP, "version": VERSION}


def is_lab(world: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a contest's world is a scene of the lab."""
    return isinstance(world, Mapping) and "lab" in world


def lab_of(world: Mapping[str, Any]) -> Lab:
    """The lab of a node.

    Raises:
        ValueError: no such scene, or no such field, or a value that cannot be.
    """
    changes: dict[str, Any] = {str(key): value for key, value in world.items() if key != "lab"}
    names = [each.name for each in dataclasses.fields(Settings) if each.name != "learning_rate"] + ["start_seed"]
    for name, value in changes.items():
        if name == "learning_rate":
            raise ValueError("learning_rate is not the lab's: a contest has learning_rates")
        if name not in names:
            raise ValueError(f"unknown key {name!r} in lab{nearest(name, names)}; it has {names}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, got {value!r}")
    start_seed = changes.pop("start_seed", None)
    if start_seed is not None and not (isinstance(start_seed, int) and start_seed >= 0):
        raise ValueError(f"start_seed must be a whole number of at least 0, got {start_seed!r}")
    return Lab(Settings.of(str(world["lab"]), **changes), start_seed)


def run_of(lab: Lab, learner: Mapping[str, Any]) -> tuple[Settings, Objective]:
    """What the loop trains for a learner's fields.

    Raises:
        ValueError: it cannot, with the reason.
    """
    for name in learner:
        if name not in ("objective", "learning_rate", "positive_weight"):
            raise ValueError(f"the lab has no {name}; of controls it has {' and '.join(CONTROLS)}")
    value = learnable(learner["objective"])
    weight = learner.get("positive_weight", 1.0) * value.positive_weight
    settings = dataclasses.replace(lab.settings, learning_rate=learner["learning_rate"])
    return settings, dataclasses.replace(value, positive_weight=weight)


def numbers_of(lab: Lab, learner: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, list[float]]:
    """The numbers of a run with each seed.

    - final: the share of answers that are right, before any reward is inverted, in the mean over the last six rounds;
      mean: over all;
    - half: the first round before which P("work") > 1/2, rounds + 1 if never;
    - work: P("work"), exact for a round's prompts, in the mean over those of the last three rounds.

    The same seeds give the same numbers on the same kind of machine with the same torch.
    """
    settings, objective = run_of(lab, learner)
    numbers: dict[str, list[float]] = {name: [] for name in NUMBERS}
    for i in range(0, len(seeds), GROUP):
        group = seeds[i : i + GROUP]
        for rows in train(settings, objective, group, start_seed=lab.start_seed, measure=False):
            for name, value in _numbers(rows).items():
                numbers[name].append(value)
    return numbers


def seconds_of(lab: Lab, learner: Mapping[str, Any], seeds: Sequence[int]) -> float:
    """How long a run takes, by a round of the first of these seeds, side by side."""
    short = dataclasses.replace(lab, settings=dataclasses.replace(lab.settings, rounds=1))
    group = seeds[:GROUP]
    numbers_of(short, learner, group)  # with the warm starts and what else is made once
    began = time.perf_counter()
    numbers_of(short, learner, group)
    return (time.perf_counter() - began) / len(group) * lab.settings.rounds


def _numbers(rows: Sequence[Row]) -> dict[str, float]:
    right = [row.get("lab/right", row["reward"]) for row in rows]
    work = [row["lab/p_work"] for row in rows]  # before each round
    return {
        "final": statistics.fmean(right[-LAST:]),
        "mean": statistics.fmean(right),
        "half": float(next((i for i, p in enumerate(work) if p > 0.5), len(rows) + 1)),
        "work": statistics.fmean(work[-_LAST_WORK:]),
    }


def make_starts(worlds: Iterable[Any], say: Callable[[str], None]) -> None:
    """Make the warm starts that all runs share, where they are not kept yet, and say so. Those that each seed has for
    itself are made when they are needed."""
    for world in worlds:
        if is_lab(world) and (lab := lab_of(world)).start_seed is not None:
            warm_start(lab.settings.p_work, lab.start_seed, say)
