"""The log of a training run, whoever wrote it: where it is (`logs_at`), read once (`read_rows`), or while it grows
(`Followed`).

It is one of: JSON lines with a row each (`metrics.jsonl` of bandpo, or what a callback writes); the same with the step
and the row apart (verl's file logger); or `trainer_state.json`, which TRL leaves in each checkpoint.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bandpo.errors import UserError, counted
from bandpo.files.checks import shortened
from bandpo.files.reading import json_line, lines_in, open_regular, read_json, read_json_lines

Row = dict[str, Any]
STATE = "trainer_state.json"
_EVALUATION = ("eval_", "val-")  # how its numbers begin under TRL, and under verl
_TAIL = 256  # bytes before the place where reading ended, by which it is known again


def logs_at(path: Path) -> dict[Path, Path]:
    """Find the logs of the runs at a path, each by a key that stays while it runs.

    A file is a log. In a folder it is bandpo's metrics.jsonl, else TRL's newest trainer_state.json, else those of the
    run folders below, else every .jsonl in it, as verl's file logger leaves one for each experiment.
    """
    if not path.is_dir():
        return {path: path}
    if (path / "metrics.jsonl").exists() or (path / "run.json").exists():
        return {path: path / "metrics.jsonl"}
    if states := [file for file in (path / STATE, *path.glob(f"checkpoint-*/{STATE}")) if file.is_file()]:
        return {path: max(states, key=_age_of)}
    below = {file.parent: file.parent / "metrics.jsonl" for file in sorted(_runs_below(path))}
    return below or {file: file for file in sorted(path.glob("*.jsonl"))} or {path: path / "metrics.jsonl"}


def _runs_below(path: Path) -> Iterator[Path]:
    """Find the run.json of each run, without looking into it, and whatever is deleted meanwhile."""
    for folder, below, files in os.walk(path):  # unlike rglob, it goes on where a folder has gone
        if "run.json" in files:
            yield Path(folder, "run.json")
            below.clear()  # its checkpoints may be many


def name_of(key: Path) -> str:
    """Name the run of a log that `logs_at` found: its folder, or the file of verl's experiment."""
    if key.suffix in (".jsonl", ".json") and key.name not in ("metrics.jsonl", STATE):
        return key.stem
    return (key.resolve().parent if key.name in ("metrics.jsonl", STATE) else key.resolve()).name


def _age_of(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # a checkpoint that was deleted meanwhile
        return -math.inf


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a log; the end of its process may have cut off the last one.

    Raises:
        UserError: no regular file, or no log.
    """
    if path.name == STATE:
        return _rows_of_state(read_json(path), path)
    return [row_of(row) for row in read_json_lines(path).rows]


def row_of(row: Row) -> Row:
    """Return a row, whose values verl's file logger keeps apart from its step."""
    inner = row.get("data")
    return {**inner, "step": row.get("step")} if isinstance(inner, dict) else row


def _rows_of_state(state: Row, path: Path) -> list[Row]:
    rows = state.get("log_history", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: 'log_history' is {shortened(rows)}; a list of rows is expected")
    return rows


# Without them no step is made; what a row has of them without a number was NaN or infinite.
_NEEDED = ("loss", "grad_norm", "actor/pg_loss", "actor/grad_norm")
_SPOILT = ("not_finite/count", "bandpo/not_finite/count", "actor/bandpo/not_finite/count")  # tokens


def lost_in(rows: Iterable[Row]) -> str | None:
    """Name the numbers of a step that are not finite, and the first step of each, in words.

    The gradient of a step that a loss scaler has skipped does not count.
    """
    found: dict[str, list[Any]] = {}
    for row in rows:
        step = row.get("step", row.get("round"))
        skipped = "skipped_steps" in row or "bandpo/skipped_steps" in row
        for name in _NEEDED:
            value = row.get(name, 0)
            lost = value is None or (isinstance(value, float) and not math.isfinite(value))
            if lost and not (skipped and name == "grad_norm"):
                found.setdefault(name, []).append(step)
        for name in _SPOILT:
            if row.get(name):
                found.setdefault(name, []).append(step)
    if not found:
        return None
    parts = [
        f"{'tokens' if name in _SPOILT else name} in {counted(len(steps), 'row')}, first at step {steps[0]}"
        for name, steps in found.items()
    ]
    return f"numbers are not finite: {'; '.join(parts)}"


class Followed:
    """A log that is being written. It is only read, and nothing that may happen to it is an error.

    Half a line is waited for; a line that is no row is counted. Where the file is cut, replaced, or deleted and made
    again, it is read from its beginning: its first row takes the place of all rows from that step on, so that rows stay
    that were moved away or that a resumed run goes on from. A row whose step and names were there already does the
    same: the run went back. Other rows of one step are one row, and a step may be evaluated again.

    Attributes:
        path: of the file; it may be changed, to that of the next checkpoint.
        at: the rows by their step.
        damaged: lines of the file that are no rows, or have no step.
        went_back: how often rows took the place of others.
        written: when the file was last written to, in seconds since 1970; None: never seen.
        fault: why it cannot be read now; "" if it can.
        last_step: where the run will end, of TRL's state; None: not known.
        ended: TRL's state says that the run has come to that step, which need not have a row.
    """

    def __init__(self, path: Path, keep: Callable[[Row], Row] = dict) -> None:
        """Start a reader; `keep` selects the kept part of a row."""
        self.path, self.keep = path, keep
        self.at: dict[float, Row] = {}
        self.damaged = self.went_back = 0
        self.written: float | None = None
        self.fault = ""
        self.last_step: int | None = None
        self.ended = False
        self._seen: tuple[int, ...] = ()  # which file, its size and time
        self._read, self._tail, self._begins = 0, b"", True

    @property
    def rows(self) -> list[Row]:
        return [self.at[step] for step in sorted(self.at)]

    def poll(self) -> bool:
        """Read what is new; whether anything is to be seen of it."""
        before = self.fault, self.damaged, self.went_back, self._seen
        try:
            with open_regular(self.path) as file:
                found = os.fstat(file.fileno())
                seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
                self.written = found.st_mtime
                if seen != self._seen:
                    same = seen[:2] == self._seen[:2]
                    self._seen, self.fault = seen, ""
                    if self.path.name == STATE:
                        self._take_state()
                    else:
                        self._take_lines(file, same)
        except (UserError, OSError) as error:  # of the system: a file on another machine that goes while it is read
            self.fault = str(error)
            if not self.path.is_file():
                self._seen = ()  # another one may get its number
        return before != (self.fault, self.damaged, self.went_back, self._seen)

    def _take_state(self) -> None:
        state = read_json(self.path)
        rows = _rows_of_state(state, self.path)
        self.at, self.damaged, self.went_back, self._begins = {}, 0, 0, False
        for row in rows:
            self._take(row)
        most = state.get("max_steps")
        self.last_step = most if type(most) is int and most > 0 else None
        steps = [step for step in (state.get("global_step"), *self.at) if type(step) in (int, float)]
        self.ended = self.last_step is not None and max(steps, default=0) >= self.last_step

    def _take_lines(self, file: BinaryIO, same: bool) -> None:
        if same and self._read:
            file.seek(self._read - len(self._tail))
            same = file.read(len(self._tail)) == self._tail
        if not same:
            self._read, self._tail, self._begins, self.damaged = 0, b"", True, 0
        file.seek(self._read)
        for line in lines_in(file, str(self.path)):
            if line.strip():
                try:
                    row = row_of(json_line(line, str(self.path)))
                except UserError:
                    if not line.endswith(b"\n"):
                        return  # it is being written
                    self.damaged += 1
                else:
                    self._take(row)
            self._read += len(line)
            self._tail = (self._tail + line)[-_TAIL:]

    def _take(self, row: Row) -> None:
        step: Any = row.get("step", row.get("round"))
        if type(step) not in (int, float) or not abs(step) < 2**53:
            self.damaged += 1
            return
        row, known = {"step": step, **self.keep(row)}, self.at.get(step, {})
        again = (known.keys() & row.keys()) - {"step", "round", "epoch"}
        if self._begins or any(not name.startswith(_EVALUATION) for name in again):
            gone = [each for each in self.at if each >= step]
            self.went_back += bool(gone)
            for each in gone:
                del self.at[each]
            known = {}
        self._begins = False
        self.at[step] = {**known, **row}
