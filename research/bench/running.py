"""Cells are run on the cores there are, and their rows kept in a file that survives any kill."""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from pathlib import Path

from rich.console import Console

from bandpo.errors import UserError
from bandpo_runs.files.writing import Appender
from bandpo_runs.progress import Progress, lines
from bandpo_runs.training.processes import workers

from .cells import Cell, Row, batches, beginning, cell_of, holds_lock, run_cells
from .choosing import Results, decide, missing_runs
from .contest import Contest

ROWS = "rows.jsonl"
AGAIN = 3  # rows that are run again when a contest goes on
RUNS_AT_ONCE = 480  # about two seconds of a core where a world is compiled: what a kill may cost


def hold(
    contest: Contest, folder: Path, *, jobs: int = 1, console: Console | None = None,
    announce: Callable[[int], None] | None = None,
) -> Results:  # fmt: skip
    """Run what of a contest has not been run yet, and say what it found.

    The folder gets `rows.jsonl`, a row for each cell. Where rows are there already, three of them, drawn anew each time
    and two of those that judge if there are any, are run again first and must be equal.

    Args:
        contest: see `Contest`.
        folder: made if it is not there; one process at a time writes to it.
        jobs: cores to use.
        console: where progress is shown; None: stderr.
        announce: called before anything runs with the number of training runs that are missing, see `missing_runs`.

    Raises:
        UserError: the folder is another process's, a row cannot be read or was changed, two rows of one cell differ, or
            a row run again differs.
    """
    with Appender(folder / ROWS) as file, _over_cores(jobs) as over_cores:
        there = _Kept(file)
        if announce:
            announce(missing_runs(contest, there.at))
        shown = console or lines(stderr=True)
        with Progress("runs", contest.fewest_runs, title=contest.name, console=shown) as progress:
            there.run_again(contest.stages.judge.range)
            return decide(contest, _Rows(there, over_cores, progress).of)


_Spread = Callable[[list[list[Cell]]], Iterator[list[Row]]]


class _Kept:
    """The rows that are there: `at` by their keys."""

    def __init__(self, file: Appender) -> None:
        self.file = file
        self.at: dict[str, Row] = {}
        self.cells: dict[int, Cell] = {}  # by the number of the row, each once
        numbers: dict[str, int] = {}
        for number, row in enumerate(file.rows, 1):
            made = cell_of(row, f"{file.path}, row {number}")
            first = numbers.setdefault(made.key, number)
            if first == number:
                self.cells[number], self.at[made.key] = made, row
            elif any(row[name] != self.at[made.key][name] for name in made.numbers):
                raise UserError(
                    f"{file.path}: rows {first} and {number} are of the same runs (key {made.key}) and have other "
                    "numbers. One of them was changed; delete both, and they will be run again"
                )

    def run_again(self, judge: range) -> None:
        """Some of the rows that are there must come out as they are: others each time, and most of those that judge,
        which decide everything."""
        judging = [number for number, made in self.cells.items() if made.seeds == judge]
        taken = random.sample(judging, min(AGAIN - AGAIN // 2, len(judging)))
        rest = [number for number in self.cells if number not in taken]
        taken += random.sample(rest, min(AGAIN - len(taken), len(rest)))
        for number in sorted(taken):
            made = beginning(self.cells[number])
            old = self.at[self.cells[number].key]
            (row,) = run_cells([made])
            for name in made.numbers:
                pairs = zip(row[name], old[name][: made.count], strict=True)
                if (at := next((i for i, (now, then) in enumerate(pairs) if now != then), None)) is not None:
                    raise UserError(
                        f"{self.file.path}, row {number} (key {old['key']}): run again, {name!r} of seed "
                        f"{made.first + at} is {row[name][at]} and not {old[name][at]}. The row was changed, or was "
                        "made by other code; choose another folder, or delete the file to run all again"
                    )


class _Rows:
    """The rows that are there, and those that are made when they are asked for."""

    def __init__(self, there: _Kept, spread: _Spread, progress: Progress) -> None:
        self.file, self.at = there.file, there.at
        self.spread, self.progress = spread, progress
        self.done = 0

    def of(self, cells: Sequence[Cell], what: str, more: bool = False) -> dict[str, Row]:
        """The row of each cell, by its key; `more`: cells that the contest was not known to have."""
        by_key = {each.key: each for each in cells}
        missing = [each for key, each in by_key.items() if key not in self.at]
        wanted, to_run = (sum(each.count for each in some) for some in (cells, missing))
        if more and self.progress.total is not None:
            self.progress.total += wanted
        self.done += wanted - to_run
        self.progress.before += wanted - to_run  # so that what was there already does not flatter the time left
        self.progress.update(self.done, what)
        work = batches(missing, RUNS_AT_ONCE)
        random.Random(0).shuffle(work)  # slow families among fast ones: otherwise the time left is that of the first
        for rows in self.spread(work):
            self.file.add(*rows)
            self.at |= {row["key"]: row for row in rows}
            self.done += sum(row["seeds"][1] for row in rows)
            self.progress.update(self.done, what)
        return {key: self.at[key] for key in by_key}


@contextlib.contextmanager
def _over_cores(jobs: int) -> Iterator[_Spread]:
    """The compiled engine leaves Python's lock alone while it runs, so threads fill the cores, and none is left behind
    by a kill. What holds that lock has processes, which are made when the first is to be run and end when this one
    does."""
    with contextlib.ExitStack() as pools:
        processes: ProcessPoolExecutor | None = None

        def spread(work: list[list[Cell]]) -> Iterator[list[Row]]:
            nonlocal processes
            if processes is None and any(holds_lock(batch[0]) for batch in work):
                processes = pools.enter_context(workers(jobs, "the same command goes on"))

            def run(batch: list[Cell]) -> list[Row]:
                if processes is None or not holds_lock(batch[0]):
                    return run_cells(batch)
                return processes.submit(run_cells, batch).result()

            threads = ThreadPoolExecutor(jobs)
            try:
                pending = {threads.submit(run, batch) for batch in work}
                while pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for each in done:
                        yield each.result()
            finally:  # without waiting for processes, which are killed if this ends early
                threads.shutdown(wait=False, cancel_futures=True)

        yield spread
