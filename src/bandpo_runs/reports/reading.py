"""Runs as reports compare them: from run folders, and from the logs of TRL and verl."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.files import checked, read_json_lines, read_yaml
from bandpo.losses.nodes import objective
from bandpo.losses.objective import Objective
from bandpo.trust_regions.base import Region
from bandpo.trust_regions.notation import own_type

from ..config.run_folder import Info, read_info
from ..evals.results import split_label
from ..files.logs import Followed, logs_at, lost_in, name_of
from ..statistics.collapse import Collapse, find_collapse
from .logs import Curves, by_step, finite, renamed


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(Curves):
    """One run, from its folder; or as far as the log of another trainer knows it.

    Attributes:
        folder: of the run, or the file of its log.
        label: of its method.
        info: its run.json. None, as the two that follow: it is a log of another trainer.
        config: its settings.
        objective: what it was trained with; None, too, where that is `own`.
        own: the type of its rule, `module:Class` of one's own, whose module was not imported.
        finished: it came to its end, or nothing can tell that it did not.
        notes: what one should know of its log.
    """

    folder: Path
    label: str
    info: Info | None = None
    config: dict[str, Any] | None = None
    objective: Objective | None = None
    own: str | None = None
    finished: bool = True
    notes: tuple[str, ...] = ()

    @property
    def region(self) -> Region | None:
        """Return the run's rule, if it is known and has an interval for each token."""
        return self.objective.trust_region if self.objective is not None and self.objective.is_per_token else None

    @property
    def rule(self) -> Any:
        """Return the identity of a run's rule: the objective, or the node of one that was not loaded."""
        return (self.config or {}).get("trust_region") if self.own is not None else self.objective

    @property
    def seed(self) -> int | None:
        return None if self.info is None else self.info["seed"]

    @functools.cached_property
    def collapse(self) -> Collapse | None:
        return find_collapse(self.mean("reward"), self.mean("entropy"), self.x, axis=self.axis)

    @property
    def name(self) -> str:
        return f"{self.label} ({self.folder})" if self.seed is None else f"{self.label}, seed {self.seed}"


def read_runs(given: Sequence[Path | str], *, trust: bool = False) -> list[Run]:
    """Read every run at or below each PATH or LABEL=PATH, each once.

    With `trust`, the module of a user's rule is imported, which runs what is in it.
    """
    found: dict[Path, tuple[str | None, Path, Path]] = {}
    for text in given:
        label, path = split_label(str(text))
        for key, log in logs_at(path).items():
            folder = key.parent if key.name == "metrics.jsonl" else key
            if not (folder / "run.json").is_file() and not log.is_file():
                raise UserError(
                    f"{path}: no run found; expected a folder with run.json in it or below it, or a log of TRL or verl"
                )
            found.setdefault(folder.resolve(), (label, folder, log))
    if not found:
        raise UserError("no runs given; expected at least one run folder or log")
    runs = [
        _run_of_ours(folder, label, trust) if (folder / "run.json").is_file() else _run_of_a_log(folder, log, label)
        for label, folder, log in found.values()
    ]
    named = [name for name, _, _ in found.values()]
    unnamed = [run.label for run, name in zip(runs, named, strict=True) if name is None and run.info is None]
    return [
        replace(run, label=run.name) if name is None and run.info is None and unnamed.count(run.label) > 1 else run
        for run, name in zip(runs, named, strict=True)
    ]


def _run_of_ours(folder: Path, label: str | None, trust: bool) -> Run:
    info, path = read_info(folder), folder / "config.yaml"
    config = checked(read_yaml(path), dict[str, Any], str(path))
    if "trust_region" not in config:
        raise UserError(f"{path}: 'trust_region' is missing; expected the resolved config of a run")
    own = None if trust else own_type(config["trust_region"])
    try:
        found = objective(config["trust_region"]) if own is None else None
    except ValueError as error:
        raise UserError(f"{path}: trust_region: {error}") from error
    path = folder / "metrics.jsonl"
    lines = read_json_lines(path, dict[str, int | float | bool | None])
    rows = [{key: finite(value) for key, value in row.items()} for row in lines.rows]
    if info["finished"] and not rows:
        raise UserError(f"{path}: empty; expected a line a round, as run.json says that the run finished")
    axis, x, grouped = by_step(rows, str(path))
    return Run(
        axis=axis, x=x, rows=grouped, folder=folder, label=label or info["label"], info=info, config=config,
        objective=found, own=own, finished=info["finished"] and not lines.rest,
        notes=tuple(
            note
            for note in (
                # As a run leaves it that is killed while it writes.
                "the last line of metrics.jsonl is cut off" if lines.rest else None,
                info.get("stopped"),
                lost_in(rows),
            )
            if note
        ),
    )  # fmt: skip


def _run_of_a_log(key: Path, path: Path, label: str | None) -> Run:
    log = Followed(path, renamed)
    log.poll()
    if log.fault:
        raise UserError(log.fault)
    if not log.at:
        raise UserError(f"{path}: no row of a log is in it; expected JSON lines with 'step' or 'round', of TRL or verl")
    axis, x, rows = by_step(log.rows, str(path))
    notes = []
    if log.damaged:
        notes.append(f"{log.damaged} of its lines are left out, which are damaged or have no step")
    if log.went_back:
        notes.append(f"it went back (how often: {log.went_back}), and what was written last is shown")
    if lost := lost_in(log.rows):
        notes.append(lost)
    if log.last_step is None:
        notes.append("it does not say whether the run is finished")
    finished = log.ended or log.last_step is None
    return Run(
        axis=axis, x=x, rows=rows, folder=key, label=label or name_of(key), finished=finished, notes=tuple(notes)
    )
