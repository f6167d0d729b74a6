"""Choose the runs to compare.

Runs with one scene and learning rate form a section. In it, runs with one label are the seeds of one method, and runs
with one seed are a pair: they began alike, so their difference is the fairest comparison. The seed of a log is known
if its name ends in -seedN; else it has no pair.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bandpo.errors import UserError

from .panels import PANELS, Panel, validations
from .reading import Run, read_runs

_IN_REPORT = ("P(work)", "reward", "entropy", "clipped", "tail share", "cut", "radius", "held out")


@dataclass(frozen=True, eq=False)
class Section:
    """The runs of one scene and learning rate, the baseline first."""

    scene: str | None
    learning_rate: float | None
    axis: str
    methods: dict[str, dict[int | Path, Run]]  # by seed; by its log where that is not known
    baseline: str | None  # None: it did not run here

    @property
    def title(self) -> str:
        name = f"The {self.scene} scene" if self.scene else "Training"
        if self.learning_rate is None:
            return name
        return f"{name}, learning rate {np.format_float_scientific(self.learning_rate, trim='-', exp_digits=1)}"

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.methods.values() for run in runs.values()]

    @property
    def panels(self) -> list[Panel]:
        """List the panels with values; what is cut only where a clip rate is missing."""
        validated = self.validated
        return [
            *(
                PANELS[name]
                for name in _IN_REPORT
                if len(self.lacking(name)) < len(self.methods)
                and (name != "cut" or self.lacking("clipped"))
                and (name != "held out" or not validated)
            ),
            *validated,
        ]

    @property
    def validated(self) -> list[Panel]:
        """List the numbers of validations that were logged."""
        return validations(self.runs)

    def lacking(self, name: str) -> list[str]:
        """List the methods of which no run has a value for a panel."""
        return [
            label
            for label, runs in self.methods.items()
            if all(map(math.isnan, map(PANELS[name].last, runs.values())))
        ]

    @property
    def finished(self) -> dict[str, dict[int | Path, Run]]:
        """Return the runs that are in the tables."""
        return {
            label: {s: r for s, r in runs.items() if r.finished} for label, runs in self.methods.items()
        }

    @property
    def pairs(self) -> dict[str, list[tuple[Run, Run]]]:
        """Pair the finished runs with the baseline's of the same seed."""
        if self.baseline is None:
            return {}
        done = self.finished
        twins = done.pop(self.baseline)
        return {
            label: [(run, twins[seed]) for seed, run in done[label].items() if seed in twins]
            for label in done
        }


def make_sections(runs: Sequence[Run], baseline: str | None = None) -> list[Section]:
    """Group the runs by section.

    Raises:
        UserError: two runs of one method and seed, one label for two objectives, or no run of the baseline.
    """
    labels = sorted({run.label for run in runs})
    if baseline is not None and baseline not in labels:
        raise UserError(f"baseline {baseline!r}: no such run; expected one of {', '.join(labels)}")
    first_of_label: dict[str, Run] = {}
    groups: dict[tuple, dict[str, dict[int | Path, Run]]] = {}
    for run in runs:
        other = first_of_label.setdefault(run.label, run) if run.rule is not None else run
        if other.rule != run.rule:
            raise UserError(
                f"{run.folder}: label {run.label!r} stands for another objective in {other.folder}"
            )
        settings = (run.info.get("scene"), run.info["learning_rate"]) if run.info else (None, None)
        seeds = groups.setdefault((*settings, run.axis), {}).setdefault(run.label, {})
        twin = seeds.setdefault(run.folder if run.seed is None else run.seed, run)
        if twin is not run:
            raise UserError(
                f"{run.folder}: same label and seed as {twin.folder}; expected only one of them"
            )
    sections = []
    for (scene, rate, axis), methods in groups.items():
        first = baseline or next(
            (label for label in methods if label.upper().startswith("GRPO")), next(iter(methods))
        )
        order = [first, *sorted(methods)] if first in methods else sorted(methods)
        by_seed = {
            label: dict(sorted(methods[label].items(), key=_of_seed)) for label in dict.fromkeys(order)
        }
        sections.append(Section(scene, rate, axis, by_seed, first if first in methods else None))
    return sorted(sections, key=lambda s: (s.scene is None, str(s.scene), s.learning_rate or 0))


def _of_seed(item: tuple[int | Path, Run]) -> tuple[bool, int | Path]:
    """Return what seeds are sorted by: numbers first, then logs by their path."""
    return isinstance(item[0], Path), item[0]


def read_sections(
    sources: Sequence[Path | str], baseline: str | None = None, *, trust: bool = False
) -> list[Section]:
    """Read runs for a comparison, as `read_runs` does."""
    return make_sections(read_runs(sources, trust=trust), baseline)
