"""Read the runs to compare, and group them. They are run folders, and logs of TRL and verl.

Runs with one scene and learning rate form a section. In it, runs with one label are the seeds of one method, and runs
with one seed are a pair: they began alike, so their difference is the fairest comparison. The seed of a log is known
if its name ends in -seedN; else it has no pair.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bandpo.errors import UserError

from ..config.run_folder import Info, read_info
from ..evals.results import split_label
from ..files.logs import files_of, logs_at, name_of, read, repetition
from ..files.reading import check_different, checked, read_yaml
from ..statistics.collapse import Curves, by_step
from .panels import PANELS, Panel, validations

_IN_REPORT = ("P(work)", "reward", "entropy", "clipped", "tail share", "cut", "radius", "held out")


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(Curves):
    """One run, from its folder or from the log of another trainer.

    Attributes:
        folder: of the run, or the file of its log.
        info: its run.json; None for a log of another trainer, as the next three.
        config: its settings.
    """

    folder: Path
    info: Info | None = None
    config: dict[str, Any] | None = None

    @property
    def rule(self) -> Any:
        """Return the node of the rule. It is not made, for that may run a module's code."""
        return (self.config or {}).get("trust_region")

    @property
    def seed(self) -> int | None:
        return repetition(name_of(self.folder))[1] if self.info is None else self.info["seed"]

    @property
    def name(self) -> str:
        return f"{self.label} ({self.folder})" if self.seed is None else f"{self.label}, seed {self.seed}"


def read_runs(sources: Sequence[Path | str]) -> list[Run]:
    """Read every run at or below each PATH or LABEL=PATH.

    Raises:
        UserError: a run is missing, corrupt, or there twice; the message names the file.
    """
    places: list[tuple[str | None, Path, Path]] = []
    for text in sources:
        label, path = split_label(str(text))
        for key, log in logs_at(path).items():
            folder = key.parent if key.name == "metrics.jsonl" else key
            if not (folder / "run.json").is_file() and not files_of(log):
                raise UserError(
                    f"{path}: no run found; expected a folder with run.json in it or below it, or a log of another "
                    "trainer, such as those in docs/run.md"
                )
            places.append((label, folder, log))
    check_different(folder for _, folder, _ in places)
    runs = [_run(folder, log, label) for label, folder, log in places]
    # Logs without a label: those of one name are runs of one method only if they are repetitions in one folder.
    unnamed = [run for run, (label, *_) in zip(runs, places, strict=True) if run.info is label is None]
    homes = {run: run.folder if run.seed is None else run.folder.parent for run in unnamed}
    labels = [label for label, _ in {(run.label, home) for run, home in homes.items()}]
    return [
        replace(run, label=f"{run.label} ({homes[run]})")
        if run in homes and labels.count(run.label) > 1
        else run
        for run in runs
    ]


def _run(folder: Path, path: Path, label: str | None) -> Run:
    """Read the log of a run, and what its folder says of it if it is one of ours."""
    if (folder / "run.json").is_file():
        settings = _settings(folder)
        info, log = settings["info"], read(folder / "metrics.jsonl")
        finished, remark = info["finished"], info.get("stopped")
    else:
        settings, info, log = {}, None, read(path)
        finished = log.ended or log.last_step is None
        remark = "it does not say whether the run is finished" if log.last_step is None else None
    if not log.at and (info is None or finished):
        raise UserError(
            f"{log.path}: no row of a log is in it; expected JSON lines with 'step' or 'round', or the steps that TRL, "
            "verl or SkyRL prints"
        )
    return Run(
        **by_step(log.rows),
        folder=folder,
        label=label or (repetition(name_of(folder))[0] if info is None else str(info["label"])),
        finished=finished,
        notes=(*log.notes, *([remark] if remark else [])),
        **settings,
    )


def _settings(folder: Path) -> dict[str, Any]:
    """Return `info` and `config` of a run folder."""
    path = folder / "config.yaml"
    info, config = read_info(folder), checked(read_yaml(path), dict[str, Any], str(path))
    if "trust_region" not in config:
        raise UserError(f"{path}: 'trust_region' is missing; expected the resolved config of a run")
    return {"info": info, "config": config}


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
                f"{run.folder}: label {run.label!r} stands for another objective in {other.folder}, or for one that is "
                "written in another way; LABEL=PATH tells them apart"
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
        by_seed = {  # seeds first, then logs by their path
            label: dict(
                sorted(methods[label].items(), key=lambda run: (isinstance(run[0], Path), run[0]))
            )
            for label in dict.fromkeys(order)
        }
        sections.append(Section(scene, rate, axis, by_seed, first if first in methods else None))
    return sorted(sections, key=lambda s: (s.scene is None, str(s.scene), s.learning_rate or 0))


def read_sections(sources: Sequence[Path | str], baseline: str | None = None) -> list[Section]:
    """Read runs for a comparison, as `read_runs` does."""
    return make_sections(read_runs(sources), baseline)
