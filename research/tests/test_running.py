"""A contest survives any kill, and rows that are there are tested before more are added."""

import json

import numpy as np
import pytest
from contests import node_of

import bandpo
from bandpo.errors import UserError
from bandpo_runs.files.writing import locked
from research.bench import hold
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


def test_the_order_of_threads_does_not_matter(small, worlds, tmp_path, monkeypatch):
    monkeypatch.setattr("research.bench.running.RUNS_AT_ONCE", 8)
    one, three = hold(small, tmp_path / "1", jobs=1), hold(small, tmp_path / "3", jobs=3)
    assert repr(one) == repr(three)


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
