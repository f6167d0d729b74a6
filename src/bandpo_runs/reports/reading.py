"""Runs as curves, under one set of names: from run folders, and from the logs of TRL and verl."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bandpo.errors import UserError
from bandpo.files import checked, read_json_lines, read_yaml
from bandpo.losses.nodes import objective
from bandpo.losses.objective import Objective
from bandpo.trust_regions.base import Region
from bandpo.trust_regions.nodes import own_type

from ..config.run_folder import Info, read_info
from ..evals.results import split_label
from ..files.logs import Followed, logs_at, lost_in, name_of
from ..statistics.collapse import Collapse, find_collapse

# Names of TRL and verl, and ours for the same; the first that is there counts. Their clip rates count tokens that lose
# their gradient and are means of means, so they get our name for that.
_NAMES = (
    ("critic/score/mean", "reward"),
    ("critic/rewards/mean", "reward"),
    ("actor/entropy", "entropy"),
    ("actor/bandpo/controlled", "controlled/value"),
    ("actor/pg_clipfrac", "cut/fraction"),
    ("clip_ratio/region_mean", "cut/fraction"),
    ("clip_ratio/high_mean", "cut/high_fraction"),
    ("clip_ratio/low_mean", "cut/low_fraction"),
    ("actor/ppo_kl", "kl_old/k1"),
)
_OURS = ("actor/bandpo/", "bandpo/")


def renamed(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of a row under our names.

    Where both have one it is ours: a sum over counts, where TRL has a mean of means.
    """
    numbers = {name: _finite(value) for name, value in row.items() if type(value) in (int, float, bool, type(None))}
    out = {ours: numbers[theirs] for theirs, ours in reversed(_NAMES) if theirs in numbers} | numbers
    for name in numbers:
        if name.startswith(_OURS):
            out[name.partition("bandpo/")[2]] = out.pop(name)
    high, low = (out.get(f"clip/{side}_fraction") for side in ("high", "low"))
    if high is not None and low is not None:  # BandPOTrainer logs the two sides
        out.setdefault("clip/fraction", high + low)
    return out


def _finite(value: float | None) -> float | None:
    return None if value is None or not abs(value) < 1e300 else value  # larger ones cannot be summed


@dataclass(frozen=True, eq=False, kw_only=True)
class Curves:
    """A run's metrics.

    Attributes:
        axis: "round" or "step".
        x: its rounds (or steps).
        rows: the lines of its log in the order of `x`; several may be of one round.
        label: of its method, or its own.
        finished: it came to its end, or its log cannot tell.
        notes: remarks on its log.
        cache: of `total`, `mean` and `collapse`.
    """

    axis: str
    x: np.ndarray
    rows: list[dict[str, Any]]
    label: str = ""
    finished: bool = True
    notes: tuple[str, ...] = ()
    cache: dict[str | None, Any] = field(default_factory=dict, repr=False)

    def total(self, key: str) -> np.ndarray:
        """Sum a metric for each of `x`; NaN where unknown. A key may have a *."""
        return self._sums(key)[0]

    def mean(self, key: str) -> np.ndarray:
        """Average a metric for each of `x`; NaN where no line has it."""
        total, count = self._sums(key)
        return total / np.maximum(count, 1)

    def _sums(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        if key not in self.cache:
            names = fnmatch.filter({name for row in self.rows for name in row}, key) if "*" in key else [key]
            first = np.searchsorted(np.array([row[self.axis] for row in self.rows], float), self.x)
            total, count = np.zeros(len(self.x)), np.zeros(len(self.x), int)
            for name in sorted(names if len(self.x) else ()):
                values = np.array([row.get(name) for row in self.rows], float)
                known = np.isfinite(values)
                total += np.add.reduceat(np.where(known, values, 0.0), first)
                count += np.add.reduceat(known, first, dtype=int)
            self.cache[key] = np.where(count > 0, total, np.nan), count
        return self.cache[key]

    @property
    def collapse(self) -> Collapse | None:
        if None not in self.cache:
            self.cache[None] = find_collapse(self.mean("reward"), self.mean("entropy"), self.x, axis=self.axis)
        return self.cache[None]

    @property
    def points(self) -> int:
        """Count the rounds with a reward."""
        return int(np.isfinite(self.mean("reward")).sum())


def by_step(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return `axis`, `x` and `rows`: by round where all rows have one, else by step.

    Raises:
        UserError: a row has neither.
    """
    axis = "round" if all(row.get("round") is not None for row in rows) else "step"
    if any(row.get(axis) is None for row in rows):
        raise UserError(f"{name}: expected 'round' or 'step' in every line")
    rows = sorted(rows, key=lambda row: row[axis])
    return {"axis": axis, "x": np.unique(np.array([row[axis] for row in rows], float)), "rows": rows}


def notes_of(log: Followed) -> list[str]:
    """Say what happened to a log."""
    notes = []
    if log.damaged:
        notes.append(f"{log.damaged} of its lines are left out: damaged, or without a step")
    if log.went_back:
        notes.append(f"the log went back {log.went_back} times, as after a resume; the last values are shown")
    return notes


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(Curves):
    """One run, from its folder or from the log of another trainer.

    Attributes:
        folder: of the run, or the file of its log.
        info: its run.json; None for a log of another trainer, as the next three.
        config: its settings.
        objective: what it was trained with; None where that is `own`.
        own: the type of a user's rule, `module:Class`, whose module was not imported.
    """

    folder: Path
    info: Info | None = None
    config: dict[str, Any] | None = None
    objective: Objective | None = None
    own: str | None = None

    @property
    def region(self) -> Region | None:
        """Return the run's rule, if it is known and has an interval for each token."""
        return self.objective.trust_region if self.objective is not None and self.objective.is_per_token else None

    @property
    def rule(self) -> Any:
        """Return the objective, or the node of a rule that was not loaded."""
        return (self.config or {}).get("trust_region") if self.own is not None else self.objective

    @property
    def seed(self) -> int | None:
        return None if self.info is None else self.info["seed"]

    @property
    def name(self) -> str:
        return f"{self.label} ({self.folder})" if self.seed is None else f"{self.label}, seed {self.seed}"


def read_runs(given: Sequence[Path | str], *, trust: bool = False) -> list[Run]:
    """Read every run at or below each PATH or LABEL=PATH, each once.

    With `trust`, the module of a user's rule is imported, which runs what is in it.

    Raises:
        UserError: a run is missing or corrupt; the message names the file.
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
    unnamed = [run.info is None and label is None for run, (label, *_) in zip(runs, found.values(), strict=True)]
    names = [run.label for run, alone in zip(runs, unnamed, strict=True) if alone]
    return [
        replace(run, label=run.name) if alone and names.count(run.label) > 1 else run
        for run, alone in zip(runs, unnamed, strict=True)
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
    rows = [{key: _finite(value) for key, value in row.items()} for row in lines.rows]
    if info["finished"] and not rows:
        raise UserError(f"{path}: empty; expected a line a round, as run.json says that the run finished")
    notes = ("the last line of metrics.jsonl is cut off" if lines.rest else None, info.get("stopped"), lost_in(rows))
    return Run(
        **by_step(rows, str(path)), folder=folder, label=label or info["label"], info=info, config=config,
        objective=found, own=own, finished=info["finished"] and not lines.rest,
        notes=tuple(note for note in notes if note),
    )  # fmt: skip


def _run_of_a_log(key: Path, path: Path, label: str | None) -> Run:
    log = Followed(path, renamed)
    log.poll()
    if log.fault:
        raise UserError(log.fault)
    if not log.at:
        raise UserError(f"{path}: no row of a log is in it; expected JSON lines with 'step' or 'round', of TRL or verl")
    notes = [*notes_of(log), lost_in(log.rows)]
    notes.append("it does not say whether the run is finished" if log.last_step is None else None)
    return Run(
        **by_step(log.rows, str(path)), folder=key, label=label or name_of(key),
        finished=log.ended or log.last_step is None, notes=tuple(note for note in notes if note),
    )  # fmt: skip
