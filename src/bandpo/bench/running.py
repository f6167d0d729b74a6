"""Cells are run on the cores there are or over a Ray cluster, and their rows kept in a file that survives any kill."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import UserError
from ..files.writing import Appender
from ..progress import Progress, lines
from .cells import Cell, Row, batches, cell_of, run_cells
from .choosing import Results, decide
from .contest import Contest

ROWS = "rows.jsonl"
AGAIN = 3  # rows that are run again when a contest goes on
RUNS_AT_ONCE = 480  # about two seconds of a core: what a kill may cost


def hold(
    contest: Contest, folder: Path, *, jobs: int = 1, ray: bool = False, console: Console | None = None
) -> Results:
    """Run what of a contest has not been run yet, and say what it found.

    The folder gets `rows.jsonl`, a row for each cell. Where rows are there already, three of them are run again first
    and must be equal.

    Args:
        contest: see `Contest`.
        folder: made if it is not there; one process at a time writes to it.
        jobs: cores to use.
        ray: use a Ray cluster instead: the running one, or one made on this machine.
        console: where progress is shown; None: stderr.

    Raises:
        UserError: the folder is another process's, a row cannot be read or was changed, or a row run again differs.
    """
    spread = _over_ray if ray else _over_threads(jobs)
    with Appender(folder / ROWS) as file, Progress(
        "runs", contest.fewest_runs, title=contest.name, console=console or lines(stderr=True)
    ) as progress:  # fmt: skip
        rows = _Rows(file, spread, progress)
        rows.run_again()
        return decide(contest, rows.of)


class _Rows:
    """The rows that are there, and those that are made when they are asked for."""

    def __init__(self, file: Appender, spread: _Spread, progress: Progress) -> None:
        self.file, self.spread, self.progress = file, spread, progress
        self.done = 0
        self.at: dict[str, Row] = {}
        self.cells: list[Cell] = []
        for number, row in enumerate(file.rows, 1):
            made = cell_of(row, f"{file.path}, row {number}")
            self.cells.append(made)
            self.at[made.key] = row

    def run_again(self) -> None:
        """Some of the rows that are there must come out as they are."""
        places = random.Random(len(self.cells)).sample(range(len(self.cells)), min(AGAIN, len(self.cells)))
        for place in sorted(places):
            made, kept = self.cells[place], self.file.rows[place]
            (row,) = run_cells([made])
            for name in made.numbers:
                if row[name] != kept[name]:
                    at = next(i for i, pair in enumerate(zip(row[name], kept[name], strict=True)) if pair[0] != pair[1])
                    raise UserError(
                        f"{self.file.path}, row {place + 1} (key {made.key}): run again, {name!r} of seed "
                        f"{made.first + at} is {row[name][at]} and not {kept[name][at]}. The row was changed, or was "
                        "made by other code; choose another folder, or delete the file to run all again"
                    )

    def of(self, cells: Sequence[Cell], what: str, more: bool = False) -> dict[str, Row]:
        """The row of each cell, by its key; `more`: cells that the contest was not known to have."""
        asked = {each.key: each for each in cells}
        missing = [each for key, each in asked.items() if key not in self.at]
        wanted, to_run = (sum(each.count for each in some) for some in (cells, missing))
        if more and self.progress.total is not None:
            self.progress.total += wanted
        self.done += wanted - to_run
        self.progress.before += wanted - to_run  # so that what was there already does not flatter the time left
        self.progress.update(self.done, what)
        for rows in self.spread(batches(missing, RUNS_AT_ONCE)):
            self.file.add(*rows)
            self.at |= {row["key"]: row for row in rows}
            self.done += sum(row["seeds"][1] for row in rows)
            self.progress.update(self.done, what)
        return {key: self.at[key] for key in asked}


_Spread = Callable[[list[list[Cell]]], Iterator[list[Row]]]


def _over_threads(jobs: int) -> _Spread:
    """The engine of the worlds leaves Python's lock alone while it runs, so threads fill the cores, and none is left
    behind by a kill."""

    def spread(work: list[list[Cell]]) -> Iterator[list[Row]]:
        with ThreadPoolExecutor(jobs) as pool:
            try:
                pending = {pool.submit(run_cells, batch) for batch in work}
                while pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for each in done:
                        yield each.result()
            finally:
                pool.shutdown(cancel_futures=True)

    return spread


def _over_ray(work: list[list[Cell]]) -> Iterator[list[Row]]:
    """Plain tasks; Ray finds the running cluster, by RAY_ADDRESS or on this machine."""
    ray: Any = _import_ray()
    ray.init(ignore_reinit_error=True)
    remote = ray.remote(run_cells)
    pending = [remote.remote(batch) for batch in work]
    while pending:
        done, pending = ray.wait(pending)
        for each in done:
            yield ray.get(each)


def _import_ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise UserError("--ray needs Ray, which is not installed: pip install 'ray[default]'") from None
    return ray
