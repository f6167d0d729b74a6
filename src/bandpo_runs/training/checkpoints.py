"""Write and find whole checkpoints. What a kill, a full disk or a hand has left incomplete is never gone on from.

A checkpoint counts only with its mark, `bandpo.json`, which is written last and deleted first. The mark lists every
file with its size and checksum, and says how much of the run's rows was on the disk by then. The trainers' libraries
load what they find, and where a file of the optimizer or of a random state is missing they go on with a fresh one and
train another model.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pydantic

from bandpo.errors import UserError
from bandpo.files import lines_of

from ..data.readers import file_hash
from ..files.writing import sync_folder, write_atomically

MARK = "bandpo.json"
METRICS = "metrics.jsonl"


class Mark(pydantic.BaseModel, allow_inf_nan=False):
    """Record of a whole checkpoint. A checksum is the SHA-256.

    Attributes:
        step: of the optimizer.
        wall_seconds: that the run had taken.
        processes: that trained it; each has its own random state.
        files: of the checkpoint, with their checksums.
        rows: size and checksum of the beginning of metrics.jsonl that belongs to it.
        tokens: the size of each file in tokens/, and the share of responses in it, which falls as it is thinned.
    """

    step: int
    wall_seconds: pydantic.NonNegativeFloat
    processes: int
    files: dict[str, str]
    rows: tuple[pydantic.NonNegativeInt, str]
    tokens: dict[str, tuple[int, str]]


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint.name.rpartition("-")[2])


def place(run: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return run / "checkpoints" / f"checkpoint-{step}"


def write_mark(run: Path, step: int, wall_seconds: float, processes: int) -> None:
    """Bring the checkpoint and the rows so far onto the disk; then mark it as whole."""
    folder = place(run, step)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MARK)
    for path in (*files, run / METRICS):
        sync(path)
    mark = Mark(
        step=step,
        wall_seconds=wall_seconds,
        processes=processes,
        files={path.relative_to(folder).as_posix(): file_hash(path) for path in files},
        rows=((run / METRICS).stat().st_size, file_hash(run / METRICS)),
        tokens=_tokens(run),
    )
    write_atomically(folder / MARK, mark.model_dump_json(indent=1).encode() + b"\n")
    sync_folder(folder.parent)


def sync(path: Path) -> None:
    """Bring a file onto the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def newest_whole(run: Path) -> tuple[Mark | None, list[str]]:
    """Return the mark of the newest whole checkpoint. With it come the faults of newer ones.

    One without a mark does not count: it was being written or deleted when the run was killed, or its weights are not
    finite. Where there is no other, that is allowed.
    """
    wrong, begun = [], []
    for folder in _newest_first(run):
        if not (folder / MARK).is_file():
            begun.append(f"{folder} has no {MARK}, which is written last")
            continue
        try:
            mark = Mark.model_validate_json((folder / MARK).read_bytes())
        except pydantic.ValidationError:
            wrong.append(f"{folder / MARK} is not what was written, or an earlier release wrote it")
            continue
        fault = _fault(run, folder, mark)
        if fault is None:
            return mark, [*wrong, *begun]
        wrong.append(fault)
    return None, wrong


def _fault(run: Path, folder: Path, mark: Mark) -> str | None:
    """Name the fault of a checkpoint in words."""
    if mark.step != step_of(folder):
        return f"{folder} is the checkpoint of step {mark.step}"
    for name, checksum in mark.files.items():
        path = folder / name
        if not path.is_file() or file_hash(path) != checksum:
            return f"{path} is missing or was changed"
    size, checksum = mark.rows
    rows = (run / METRICS).read_bytes()[:size] if (run / METRICS).is_file() else b""
    is_same = hashlib.sha256(rows).hexdigest() == checksum
    return None if is_same else f"{run / METRICS} is missing or was changed"


def lost_tokens(run: Path, mark: Mark) -> Iterator[str]:
    """Say which files of tokens are gone, or shorter than at a mark."""
    for name, (size, share) in mark.tokens.items():
        now, share_now = _tokens(run).get(name, (0, "[]"))
        if now < size and share_now in (share, "[]"):
            yield f"{run / 'tokens' / name} has {now} bytes and had {size}"


def _tokens(run: Path) -> dict[str, tuple[int, str]]:
    return {
        path.name: (path.stat().st_size, str(re.findall(rb'"share":[^,]+', next(lines_of(path), b""))))
        for path in sorted(run.glob("tokens/tokens-*.jsonl"))
    }


def mark_to_resume(folder: Path, count: int, say: Callable[[str], None]) -> Mark | None:
    """Return the mark of the checkpoint to go on from; None if the run starts again.

    Raises:
        UserError: every checkpoint is damaged: starting again would throw away what may be mended. Or the run was made
            by another number of processes.
    """
    mark, wrong = newest_whole(folder)
    if mark is None:
        if wrong:
            raise UserError(
                f"no checkpoint of {folder} is whole: {'; '.join(wrong)}; put back what is missing, or start the run "
                "again in another output"
            )
        say(f"no whole checkpoint in {folder}: starting again")
        return None
    if mark.processes != count:
        raise UserError(
            f"{folder} was trained with WORLD_SIZE {mark.processes}, not {count}; start as many processes"
        )
    for fault in wrong:
        say(f"{fault}: that checkpoint is passed over")
    for lost in lost_tokens(folder, mark):
        say(f"{lost}: the run goes on without these tokens, which bandpo calibrate reads")
    say(f"going on after step {mark.step}")
    return mark


def rewind(run: Path, mark: Mark | None) -> None:
    """Cut off the rows after a mark, all of them without one. Newer checkpoints count no more."""
    if mark is None:
        shutil.rmtree(run / "tokens", ignore_errors=True)  # their writer cuts off those after a mark
    if (run / METRICS).is_file():
        os.truncate(run / METRICS, min(mark.rows[0] if mark else 0, (run / METRICS).stat().st_size))
    for folder in _newest_first(run):
        if mark is None or step_of(folder) > mark.step:
            (folder / MARK).unlink(missing_ok=True)


def rotate(run: Path, step: int, keep: int | None, best: str | None) -> None:
    """Delete old checkpoints, except the `keep` newest up to `step` and the best.

    The steps decide, as the times of files depend on a clock that may be set back.
    """
    if keep is None or keep <= 0:
        return
    past = [folder for folder in _newest_first(run) if step_of(folder) <= step]
    newest = [folder for folder in past if (folder / MARK).is_file()][:keep]
    for folder in past:
        if folder not in newest and folder.name != best:
            (folder / MARK).unlink(missing_ok=True)  # first: what is half deleted must not count
            shutil.rmtree(folder, ignore_errors=True)


def _newest_first(run: Path) -> list[Path]:
    return sorted(
        [
            path
            for path in (run / "checkpoints").glob("checkpoint-*")
            if re.fullmatch(r"checkpoint-\d+", path.name)
        ],
        key=step_of,
        reverse=True,
    )
