"""A contest survives any kill, and rows that are there are tested before more are added."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from contests import node_of
from rich.console import Console

import bandpo
from bandpo.errors import UserError
from bandpo_runs.files.locks import locked
from research.bench import hold
from research.bench import running as module
from research.bench.cells import run_cells
from research.bench.reading import make_contest
from research.worlds import Learner, scene, train


def rows_in(folder):
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_every_run_is_made_once_and_kept(small, worlds, tmp_path):
    hold(small, tmp_path)
    rows = rows_in(tmp_path)
    assert len({row["key"] for row in rows}) == len(rows)
    assert sum(row["seeds"][1] for row in rows) == small.fewest_runs == len(worlds.runs) == len(set(worlds.runs))


def test_a_finished_contest_is_read_and_not_run(small, worlds, tmp_path):
    first = hold(small, tmp_path)
    made = len(worlds.runs)
    second = hold(small, tmp_path)
    assert repr(second) == repr(first)
    again = worlds.runs[made:]
    assert len(rows_in(tmp_path)) > 3
    assert len({(scene, learner) for scene, learner, _ in again}) <= 3  # of the three rows that are run again
    assert again


@pytest.mark.parametrize("after", [1, 30, 70, 125, 170, 200])
def test_a_contest_that_was_killed_goes_on(small, worlds, tmp_path, after):
    whole = hold(small, tmp_path / "whole")
    worlds.stop_after = len(worlds.runs) + after
    with pytest.raises(KeyboardInterrupt):
        hold(small, tmp_path / "killed")
    worlds.stop_after = None
    with (tmp_path / "killed" / "rows.jsonl").open("ab") as file:
        file.write(b'{"key": "half a li')  # what a kill may leave
    assert repr(hold(small, tmp_path / "killed")) == repr(whole)
    assert sorted(map(repr, rows_in(tmp_path / "killed"))) == sorted(map(repr, rows_in(tmp_path / "whole")))


def test_a_row_that_was_changed_is_found_and_named(small, worlds, tmp_path, monkeypatch):
    monkeypatch.setattr("research.bench.running.AGAIN", 10**6)
    hold(small, tmp_path)
    rows = rows_in(tmp_path)
    before, rows[7]["final"][2] = rows[7]["final"][2], 0.999
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = rf"row 8 \(key {rows[7]['key']}\): run again, 'final' of seed 2 is {before} and not 0\.999"
    with pytest.raises(UserError, match=told):
        hold(small, tmp_path)


def test_two_rows_of_the_same_runs_with_other_numbers_are_refused(small, worlds, tmp_path):
    """Whichever is the last: the numbers of a known cell cannot be replaced by adding a line."""
    hold(small, tmp_path)
    rows = rows_in(tmp_path)
    judged = next(i for i, row in enumerate(rows) if row["seeds"] == [1000, 40])
    rows.append({**rows[judged], "final": [0.999] * 40})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = (
        rf"rows {judged + 1} and {len(rows)} are of the same runs \(key {rows[judged]['key']}\) and have other numbers"
    )
    with pytest.raises(UserError, match=told):
        hold(small, tmp_path)
    rows[-1] = {**rows[judged], "world": {"base": "rare and noisy"}}  # the same, said otherwise
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hold(small, tmp_path)


def test_the_rows_that_are_run_again_are_others_each_time_and_most_of_them_judge(worlds, tmp_path, monkeypatch):
    weights = [{"name": str(w), "positive_weight": w} for w in (0.5, 0.6, 0.7, 0.8, 0.9)]
    contest = make_contest(node_of(controls=weights))
    hold(contest, tmp_path)
    taken = []
    monkeypatch.setattr(module, "run_cells", lambda cells: [taken[-1].append(cells[0]), run_cells(cells)][1])
    for _ in range(20):
        taken.append([])
        hold(contest, tmp_path)
    judging = [{each.key for each in some if each.seeds == range(1000, 1040)} for some in taken]
    assert {len(some) for some in taken} == {3}
    assert min(map(len, judging)) >= 2
    assert len(set().union(*judging)) > 5  # of the 10 that judge
    assert len({each.key for some in taken for each in some}) > 15


def test_what_is_missing_is_announced(worlds, tmp_path, monkeypatch):
    """Exactly, once the choice is there; which grids are widened is known then."""
    monkeypatch.setattr("research.bench.running.RUNS_AT_ONCE", 1)
    worlds.best_up = 1000.0
    contest = make_contest(node_of())
    told = []
    hold(contest, tmp_path, announce=told.append)
    rows = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    total = sum(json.loads(row)["seeds"][1] for row in rows)
    assert total > contest.fewest_runs == told[0]
    for kept in (len(rows), len(rows) - 1, len(rows) - 2, 36, 30, 29, 7):
        (tmp_path / "rows.jsonl").write_text("".join(rows[:kept]))
        hold(contest, tmp_path, announce=told.append)
    wider = 3 * 4  # settings x seeds of the search
    assert told[1:4] == [0, 40, 80]
    assert told[4:] == [80 + wider, 80 + 36, 80 + 36 + 4, contest.fewest_runs - 28]


def test_three_rows_are_run_again_when_a_contest_goes_on(small, worlds, tmp_path):
    hold(small, tmp_path)
    rows = rows_in(tmp_path)
    for row in rows:
        row["mean"] = [x + 1 for x in row["mean"]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="run again, 'mean' of seed"):
        hold(small, tmp_path)


def test_a_row_of_other_seeds_than_its_key_is_refused(small, worlds, tmp_path):
    """A method that is given better seeds by hand."""
    hold(small, tmp_path)
    rows = rows_in(tmp_path)
    rows[-1]["seeds"][0] += 40
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=rf"row {len(rows)}: its key .* is not that of its world, learner and seeds"):
        hold(small, tmp_path)


def test_a_larger_contest_takes_the_rows_that_are_there(small, worlds, tmp_path, monkeypatch):
    monkeypatch.setattr("research.bench.running.AGAIN", 0)
    hold(small.model_copy(update={"families": small.families[:1]}), tmp_path)
    made = len(worlds.runs)
    hold(small, tmp_path)
    assert len(worlds.runs) == small.fewest_runs
    assert made == small.fewest_runs // 2


def test_families_with_the_same_learners_share_their_rows(worlds, tmp_path):
    node = node_of()
    node["families"][1] = {**node["families"][0], "name": "the same"}
    contest = make_contest(node)
    results = hold(contest, tmp_path)
    assert len(worlds.runs) == contest.fewest_runs // 2
    (table,) = results.tables.values()
    other = next(one for one in table if one.difference is not None)
    assert tuple(other.difference) == (0, 0, 0)
    assert (other.better, other.p, other.p_adjusted) == (0.5, 1, 1)


def test_the_order_of_threads_does_not_matter(small, worlds, tmp_path, monkeypatch):
    monkeypatch.setattr("research.bench.running.RUNS_AT_ONCE", 8)
    one, three = hold(small, tmp_path / "1", jobs=1), hold(small, tmp_path / "3", jobs=3)
    assert repr(one) == repr(three)


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_no_more_than_jobs_batches_run_at_once_slow_and_fast_ones_together(jobs, monkeypatch):
    lock, as_many, one_more = threading.Lock(), threading.Barrier(jobs), threading.Event()
    seen: list[int] = []
    running = 0

    def run_cells(batch):
        nonlocal running
        with lock:
            running += 1
            seen.append(running)
            if running > jobs:
                one_more.set()
        as_many.wait(timeout=60)  # broken if fewer than `jobs` run
        one_more.wait(0.05)  # time for one that is too many
        with lock:
            running -= 1
        return [batch]

    class Processes:
        def submit(self, f, batch):
            made = Future()
            threading.Thread(target=lambda: made.set_result(f(batch))).start()
            return made

    monkeypatch.setattr(module, "run_cells", run_cells)
    monkeypatch.setattr(module, "holds_lock", lambda cell: cell == "slow")
    monkeypatch.setattr(module, "workers", lambda number, goes_on: contextlib.nullcontext(Processes()))
    work: Any = [[["slow", "fast"][i % 2]] for i in range(4 * jobs)]
    with module._over_cores(jobs) as spread:
        assert len(list(spread(work))) == 4 * jobs
    assert max(seen) == jobs


def test_families_are_mixed_within_a_stage(small, worlds, tmp_path, monkeypatch):
    """So that the time left is not that of the first family."""
    monkeypatch.setattr("research.bench.running.RUNS_AT_ONCE", 1)
    hold(small, tmp_path)
    trained = [type(learner.objective.trust_region) for _, learner, _ in worlds.runs]
    half = 15 * 4  # settings x seeds of a family in the search
    assert set(trained[:half]) == set(trained[half : 2 * half]) == {bandpo.Clip, bandpo.Band}


def test_runs_in_torch_have_processes_of_their_own(worlds, tmp_path):
    """Here a fake stands for the worlds: what a process trained has the numbers of a real run."""
    node = node_of(worlds=[{"base": "rare and noisy", "rounds": 4}], learning_rates=[0.02], widen=False)
    clip, band = node["families"]
    soft = {"type": "objective", "trust_region": clip["objective"], "surrogate": "quadratic"}
    node["families"] = [{**clip, "objective": soft, "grid": {"up": [0.2]}}, {**band, "grid": {"delta": [0.01]}}]
    node["stages"] |= {"choose": {"first": 100, "count": 2}, "judge": {"first": 1000, "count": 3}}
    contest = make_contest(node)
    hold(contest, tmp_path)
    trained = {type(learner.objective.trust_region) for _, learner, _ in worlds.runs}
    assert trained == {bandpo.Band}
    soft_rows = [row for row in rows_in(tmp_path) if "surrogate" in row["learner"]["objective"]]
    assert len(soft_rows) == 3
    for row in soft_rows:
        seeds = list(range(row["seeds"][0], sum(row["seeds"])))
        alone = train(scene(row["world"]), [Learner(**row["learner"])], seeds)
        np.testing.assert_allclose(row["final"], alone["final"][0], rtol=1e-5)


def test_two_processes_do_not_write_to_one_folder(small, worlds, tmp_path):
    with locked(tmp_path / ".rows.jsonl.lock"), pytest.raises(UserError, match="another process"):
        hold(small, tmp_path)


def test_progress_counts_runs_to_the_planned_number(small, worlds, tmp_path, monkeypatch):
    monkeypatch.setattr("research.bench.running.RUNS_AT_ONCE", 1)
    told = []
    monkeypatch.setattr(
        "bandpo_runs.progress.Progress.update", lambda bar, done, note="": told.append((done, bar.total))
    )
    hold(small, tmp_path, console=Console(file=io.StringIO()))
    assert told[-1] == (small.fewest_runs, small.fewest_runs)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    told.clear()
    hold(small, tmp_path)
    assert told[-1] == (small.fewest_runs, small.fewest_runs)


class FakeRay(ModuleType):
    """Tasks that are run when they are waited for, the last first."""

    def __init__(self):
        super().__init__("ray")
        self.started, self.tasks = [], 0

    def is_initialized(self):
        return bool(self.started)

    def init(self, **options):
        self.started.append(options)

    def remote(self, function):
        ray = self

        class Remote:
            def remote(self, *arguments):
                ray.tasks += 1
                return (function, arguments)

        return Remote()

    def wait(self, pending):
        return pending[-1:], pending[:-1]

    def get(self, task):
        function, arguments = task
        return function(*arguments)


def test_over_ray_the_rows_are_the_same(small, worlds, tmp_path, monkeypatch):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("research.bench.running.RUNS_AT_ONCE", 8)
    assert repr(hold(small, tmp_path / "ray", ray=True)) == repr(hold(small, tmp_path / "here"))
    assert ray.tasks > 10
    assert ray.started == [{}]
    assert sorted(map(repr, rows_in(tmp_path / "ray"))) == sorted(map(repr, rows_in(tmp_path / "here")))


def test_without_ray_it_is_said(small, worlds, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="--ray needs Ray, which is not installed"):
        hold(small, tmp_path, ray=True)
