"""Find the log of a training run (`logs_at`), and follow it (`Followed`).

It is one of: JSON lines with a row each (`metrics.jsonl` of `bandpo train`, `BandPOTrainer` or prime-rl); the same
with the step and the row apart (verl's file logger), or with the step of a tracker (wandb, ms-swift);
`trainer_state.json`, which TRL leaves in each checkpoint; or what `trackers` reads.
"""

import bisect
import contextlib
import fnmatch
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bandpo.errors import UserError, counted
from bandpo.files import json_line, lines_of, shortened

from .reading import read_json
from .trackers import (
    EVENTS,
    PRINTED,
    Row,
    files_of,
    is_tracked,
    printed,
    rows_in,
    runs_of,
    with_steps,
)

STATE = "trainer_state.json"
# How names of an evaluation begin under TRL, in a tracker, and under verl; and times, of which prime-rl's two processes
# write their own, TRL one more at the end, and ms-swift one with each evaluation.
_SEVERAL = ("eval_", "eval/", "val-", "time", "train_runtime", "train_speed", "memory")
# Names of verl (Trinity-RFT), SkyRL, prime-rl (of 2026 and before), TRL (axolotl, unsloth, ms-swift) and others, and
# ours for the same; the first that is there counts. Their clip rates are means of means. Most count tokens that lose
# their gradient, so they get our name for that. NeMo-RL and tinker's servers log none.
_NAMES = (
    ("critic/score/mean", "reward"),
    ("critic/rewards/mean", "reward"),
    ("reward/avg_raw_reward", "reward"),
    ("reward/all/mean", "reward"),
    ("reward/mean", "reward"),
    ("actor/entropy", "entropy"),
    ("policy/policy_entropy", "entropy"),
    ("entropy/all/mean", "entropy"),
    ("entropy/mean", "entropy"),
    ("actor/pg_clipfrac", "cut/fraction"),
    ("policy/loss_metrics/clip_ratio", "cut/fraction"),
    ("policy/ppo_clip_ratio", "cut/fraction"),
    ("is_masked/mean", "cut/fraction"),
    ("is_masked_high/mean", "cut/high_fraction"),
    ("is_masked_low/mean", "cut/low_fraction"),
    ("clip_ratio/region_mean", "cut/fraction"),
    ("clip_ratio", "cut/fraction"),
    ("policy/clip_ratio", "cut/fraction"),
    ("pg_clipfrac", "cut/fraction"),  # slime, miles
    ("actor/clip_fraction", "cut/fraction"),  # RLinf, and its runner of mathematics
    ("actor/training/actor/clip_fraction", "cut/fraction"),
    ("ppo_clip_ratio", "cut/fraction"),  # OpenRLHF
    (
        "policy/clipfrac_avg",
        "cut/fraction",
    ),  # open-instruct; under CISPO tokens above, whatever the advantage
    ("ppo_actor/update/clip_ratio/avg", "cut/fraction"),  # AReaL
    # Tokens that are outside, whatever the advantage. ROLL's actor/clipfrac is averaged as the loss, so not a share.
    ("actor/ppo_ratio_clipfrac", "clip/fraction"),  # ROLL
    ("loss/ratio_clipped_frac", "clip/fraction"),  # torchtitan
    ("training/clip_fraction", "clip/fraction"),  # torchrl's recipe and its loss, of padding too
    ("clip_fraction", "clip/fraction"),
    (
        "train_metrics/worker_0/step_avg_reduced_train_policy_clip_frac_high",
        "clip/high_fraction",
    ),  # xtuner
    ("train_metrics/worker_0/step_avg_reduced_train_policy_clip_frac_low", "clip/low_fraction"),
    ("clip_ratio/high_mean", "cut/high_fraction"),
    ("clip_ratio/low_mean", "cut/low_fraction"),
    ("actor/ppo_kl", "kl_old/k1"),
)
CLIP_RATES = {theirs: ours for theirs, ours in _NAMES if ours in ("cut/fraction", "clip/fraction")}


def logs_at(path: Path) -> dict[Path, Path]:
    """Find the logs of the runs at a path, each by a key that stays while it runs.

    A file is a log, but wandb's CSV of a chart has one of each run. In a folder it is the newest of its metrics.jsonl
    and of TRL's trainer_state.json (of several within a minute, as of a copy, the former, or the last step's: TRL may
    have trained there without BandPOTrainer since; of a run of ours always the former), else those of the run
    folders below, else every .jsonl in it, as verl's file logger leaves one for each experiment, else the runs in all
    .csv, else each folder with tensorboard's events.
    """
    if not path.is_dir():
        return {path / run: path / run for run in (path.suffix == ".csv" and runs_of(path)) or [""]}
    rows = path / "metrics.jsonl"
    if (path / "run.json").exists():
        return {path: rows}
    states: dict[Path, float] = {}
    for file in (rows, path / STATE, *path.glob(f"checkpoint-*/{STATE}")):
        with contextlib.suppress(OSError):  # a checkpoint that is deleted meanwhile
            states[file] = file.stat().st_mtime
    if states:
        copied = [file for file in states if max(states.values()) - states[file] < 60]  # in any order
        return {path: max(copied, key=lambda file: (file == rows, _number(file), states[file]))}
    below: list[Path] = []
    for folder, inner, files in os.walk(path):  # unlike rglob, it goes on where a folder has gone
        if "run.json" in files:
            below.append(Path(folder))
            inner.clear()  # its checkpoints may be many
    logs = {folder: folder / "metrics.jsonl" for folder in sorted(below)}
    logs = logs or {file: file for file in sorted(path.glob("*.jsonl"))}
    # Charts of the same runs, or the history of one.
    for file in [] if logs else sorted(path.glob("*.csv")):
        logs |= {
            (path if run else file) / run: (path / "*.csv" if run else file) / run
            for run in runs_of(file)
        }
    return (
        logs or {file.parent: file.parent / EVENTS for file in sorted(path.rglob(EVENTS))} or {path: rows}
    )


def _number(state: Path) -> float:
    """Return a checkpoint's step by its folder; inf for the run's own state."""
    number = re.fullmatch(r"checkpoint-(\d+)", state.parent.name)
    return float(number[1]) if number else math.inf


def name_of(key: Path) -> str:
    """Name the run of a log that `logs_at` found. It is its folder, a run in a CSV, or the file of an experiment."""
    if key.name in ("metrics.jsonl", STATE) or "tfevents" in key.name:
        return key.resolve().parent.name
    return key.stem if key.suffix in (".jsonl", ".json", ".csv", *PRINTED) else key.resolve().name


def repetition(name: str) -> tuple[str, int | None]:
    """Split the name of a repetition of a run, NAME-seedN. The number is None for another name."""
    parts = re.fullmatch(r"(.+)-seed(\d+)", name)
    return (parts[1], int(parts[2])) if parts else (name, None)


def is_log(path: Path) -> bool:
    """Tell a log from a file of answers, by its name or by verl's first row."""
    row: Row = {}
    if path.suffix == ".jsonl":
        with contextlib.suppress(UserError, StopIteration):
            row = json_line(next(filter(bytes.strip, lines_of(path))), str(path))
    if path.suffix == ".csv":
        return bool(runs_of(path))  # else it holds answers
    return (
        path.name == "metrics.jsonl"
        or path.name.endswith(STATE)
        or is_tracked(path)
        or bool(row.keys() & {"_step", "global_step/max_steps"})  # of wandb, of ms-swift
        or ("step" in row and isinstance(row.get("data"), dict))
    )


# What verl logs of a validation: the data set, which number, and of how many samples.
VALIDATED = re.compile(r"val-(?:core|aux)/(.+)/acc/(mean|best|worst)@(\d+)(?:/mean)?")
# The same of prime-rl; and of SkyRL, which logs the mean, avg_score, without the number of samples.
_AVERAGED = re.compile(r"eval/(.+)/effective/[^/]+/avg@(\d+)|eval/(?!all/)(.+)/pass_at_(\d+)")


def renamed(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of a row under our names.

    Where both have one it is ours: a sum over counts, where TRL has a mean of means.
    """
    numbers = {  # those of TRL have a prefix in a tracker; too large ones cannot be summed
        name.removeprefix("train/"): value if value is not None and abs(value) < 1e300 else None
        for name, value in row.items()
        if type(value) in (int, float, bool, type(None))
    }
    out = {ours: numbers[theirs] for theirs, ours in reversed(_NAMES) if theirs in numbers} | numbers
    rewards = fnmatch.filter(numbers, "agg/effective/*/reward/mean")  # of prime-rl's agents
    if len(rewards) == 1:
        out["reward"] = numbers[rewards[0]]
    for name, value in numbers.items():
        average = _AVERAGED.fullmatch(name)
        if average:
            data, n = average[1] or average[3], average[2] or average[4]
            out[f"val-core/{data}/acc/mean@{n}"] = (
                value if average[1] else numbers.get(f"eval/{data}/avg_score")
            )
        if "bandpo/" in name:  # prime-rl logs the mean of a count over sequences
            out[name.partition("bandpo/")[2].removesuffix("/mean")] = out.pop(name)
    high, low = (out.get(f"clip/{side}_fraction") for side in ("high", "low"))
    if high is not None and low is not None:  # BandPOTrainer logs the two sides
        out.setdefault("clip/fraction", high + low)
    return out


# Without them no step is made; what a row has of them without a number was NaN or infinite.
_NEEDED = (
    "loss",
    "grad_norm",
    "actor/pg_loss",
    "actor/grad_norm",
    "policy/policy_loss",
    "policy/grad_norm",
)
_SPOILT = ("not_finite/count", "bandpo/not_finite/count", "actor/bandpo/not_finite/count")  # tokens


def lost_in(rows: Iterable[Row]) -> str | None:
    """Name the numbers of a step that are not finite. The words have the first step of each.

    The gradient of a step that a loss scaler has skipped does not count.
    """
    steps: dict[str, list[Any]] = {}
    for row in rows:
        skipped = "skipped_steps" in row or "bandpo/skipped_steps" in row
        lost = [
            name
            for name in _NEEDED
            if _is_lost(row.get(name, 0)) and not (skipped and name == "grad_norm")
        ]
        for name in lost + ["tokens" for spoilt in _SPOILT if row.get(spoilt)]:
            steps.setdefault(name, []).append(row["step"])
    parts = [
        f"{name} in {counted(len(each), 'row')}, first at step {each[0]:g}"
        for name, each in steps.items()
    ]
    return f"numbers are not finite: {'; '.join(parts)}" if parts else None


def unscored_in(rows: Iterable[Row]) -> str | None:
    """Say which rows, with our names, have a reward without a number."""
    steps = [row["step"] for row in rows if _is_lost(row.get("reward", 0))]
    if not steps:
        return None
    return (
        f"reward without a number in {counted(len(steps), 'row')}, first at step {steps[0]:g}: it is not finite, or no "
        "reward function scored an answer"
    )


def _is_lost(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


class Followed:
    """Follow a log that may still be written. It is only read, and no damage to it is an error.

    A row with another value of what its step had, or of a step before the last one, replaces all rows from its step on:
    the run went back. Other rows of one step are one row, and a step may be evaluated again.

    Attributes:
        path: of the file; it may be changed, to that of the next checkpoint.
        at: the rows by their step, with numbers under our names; they stay when the file is emptied or deleted.
        damaged: lines of the file that are no rows, or have no step; half a line at its end is waited for.
        remarks: what is missing in a printed log, and how it was read.
        decimals: to how many a printed log rounds its numbers; None: it does not, as far as it shows.
        went_back: how often rows replaced others.
        written: when the file was last written to, in seconds since 1970; None: never seen.
        fault: why it cannot be read now; "" if it can.
        last_step: where the run will end, by TRL's state or BandPOTrainer's rows; None: not known.
        ended: they say that the run has come to that step, which need not have a row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at: dict[float, Row] = {}
        self.damaged = self.went_back = 0
        self.remarks: list[str] = []
        self.decimals: int | None = None
        self.written: float | None = None
        self.fault = ""
        self.last_step: int | None = None
        self.ended = False
        self._seen: tuple[Any, ...] | None = None  # which file, its size and time

    @property
    def rows(self) -> list[Row]:
        """Return the rows in the order of their steps."""
        return [self.at[step] for step in sorted(self.at)]

    @property
    def notes(self) -> list[str]:
        """Say what happened to the log."""
        notes = [f"{self.damaged} of its lines are left out: damaged, or without a step"] * bool(
            self.damaged
        )
        notes += self.remarks
        if self.went_back:
            notes.append(
                f"the log went back {self.went_back} times, as after a resume; the last values are shown"
            )
        lost, unscored = lost_in(self.rows), unscored_in(self.rows)
        notes += [f"{lost}; `bandpo doctor {self.path}` says what to do"] if lost else []
        return notes + ([unscored] if unscored else [])

    def poll(self) -> bool:
        """Read the file again if it has changed; return whether it has."""
        before, self._seen = self._seen, ()
        with contextlib.suppress(OSError):
            files = [file.stat() for file in files_of(self.path)]
            if files:
                self._seen = (
                    self.path,
                    *((each.st_ino, each.st_size, each.st_mtime_ns) for each in files),
                )
                self.written = max(each.st_mtime for each in files)
        if self._seen != before:
            try:
                self._read()
                self.fault = ""
            except UserError as error:
                self.fault = str(error)
        return self._seen != before

    def _read(self) -> None:
        damaged, rows, state = 0, list[Row](), {}
        if self.path.suffix in PRINTED:
            rows, self.remarks, self.decimals = printed(self.path)
        elif is_tracked(self.path):
            rows = rows_in(self.path)
        elif self.path.name.endswith(STATE):
            state = read_json(self.path)
            rows = state.get("log_history")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise UserError(
                    f"{self.path}: corrupt: 'log_history' is {shortened(rows)}; a list of rows is expected"
                )
        else:
            for line in filter(bytes.strip, lines_of(self.path)):
                try:
                    row = json_line(line, str(self.path))
                    inner = row.get("data")  # of verl's file logger
                    rows.append({**inner, "step": row.get("step")} if isinstance(inner, dict) else row)
                except UserError:
                    damaged += line.endswith(b"\n")
            rows = with_steps(rows)
        most = {**(rows[-1] if rows else {}), **state}.get("max_steps")
        self.last_step = most if type(most) is int and most > 0 else None
        at: dict[float, Row] = {}
        order: list[float] = []  # its steps
        self.went_back, last = 0, -math.inf
        for row in rows:
            step: Any = row.get("step", row.get("round"))
            if not _is_step(step):
                damaged += 1
                continue
            row, before = {**renamed(row), "step": step}, at.get(step, {})
            again = (before.keys() & row.keys()) - {"step", "round", "epoch"}
            if any(
                not name.startswith(_SEVERAL) and (step < last or row[name] != before[name])
                for name in again
            ):
                self.went_back += 1
                place = bisect.bisect_left(order, step)
                for each in order[place:]:
                    del at[each]
                del order[place:]
                before, last = {}, step
            if step not in at:
                bisect.insort(order, step)
            at[step], last = {**before, **row}, max(step, last)
        self.at, self.damaged = at or self.at, damaged
        steps: list[Any] = [*filter(_is_step, (state.get("global_step"), *order[-1:]))]
        self.ended = self.last_step is not None and max(steps, default=0) >= self.last_step


def _is_step(step: Any) -> bool:
    return type(step) in (int, float) and abs(step) < 2**53


def read(path: Path) -> Followed:
    """Read a log once. Raises UserError if it cannot be read."""
    log = Followed(path)
    log.poll()
    if log.fault:
        raise UserError(log.fault)
    return log
