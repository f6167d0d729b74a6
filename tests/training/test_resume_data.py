"""A resumed run knows its data and its tokens: what has changed or is gone is refused or told, in one line."""

import hashlib
import json
import os
import shutil
from types import SimpleNamespace

import pytest
import recipe
from commands import missing, refusal
from disk import contents, write
from stopped import run, run_until

from bandpo_runs import config
from bandpo_runs.config.run_folder import check_same_data
from bandpo_runs.data import rows as data_rows
from bandpo_runs.training import checkpoints


def resume(node, **options):
    """Resume, and return what was told."""
    return run(node, resume=True, **options)[1]


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped at step 10 of 12, with checkpoints at 4 and 8, and tokens."""
    home = recipe.make(tmp_path)
    evaluation = {"eval_strategy": "steps", "eval_steps": 6, "per_device_eval_batch_size": 8, "num_generations_eval": 2}
    questions = write(home / "questions.jsonl", (home / "rows.jsonl").read_text())
    node = recipe.node(
        home, tmp_path / "run", rounds=3, save_every=1, data={"eval_path": str(questions)}, trainer=evaluation
    )
    return SimpleNamespace(node=node, folder=run_until(node, 10), rows=home / "rows.jsonl", questions=questions)


def facts(folder):
    return json.loads((folder / "run.json").read_text())


def turned_round(file):
    """The same rows in another order."""
    return "".join(reversed(file.read_text().splitlines(keepends=True)))


@pytest.mark.parametrize("which", ["rows", "questions"])
def test_changed_data_are_refused_and_nothing_is_written(stopped, which):
    file = getattr(stopped, which)
    sums = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in (stopped.rows, stopped.questions)}
    assert facts(stopped.folder)["data"] == sums
    before, text = contents(stopped.folder), file.read_text()
    write(file, turned_round(file))
    parts = f"{file} changed since {stopped.folder} was started, ", f"model={stopped.folder}/checkpoints/checkpoint-"
    assert (missing(refusal(resume, stopped.node), *parts), contents(stopped.folder)) == ([], before)
    write(file, text)
    assert resume(stopped.node) == ["going on after step 8"]


def test_another_run_begins_from_the_checkpoint_with_changed_data(stopped, tmp_path):
    write(stopped.rows, turned_round(stopped.rows))
    start = str(stopped.folder / "checkpoints" / "checkpoint-8")
    run(stopped.node | {"model": start, "output": str(tmp_path / "other")})
    assert facts(tmp_path / "other")["data"][str(stopped.rows)] == hashlib.sha256(stopped.rows.read_bytes()).hexdigest()


def test_rows_of_the_hub_have_a_checksum_too_and_what_is_made_has_none(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    node = recipe.node(recipe.make(tmp_path), folder) | {"data": {"source": "hub", "path": "ORG/NAME"}}
    served = [{"prompt": f"{i}", "answer": "1"} for i in range(12)]
    monkeypatch.setattr(data_rows, "hub_rows", lambda *args, **named: (iter(served), None))

    def sums(node=node):
        run = config.build(node)
        return data_rows.checksums(run.data, data_rows.read_rows(run)[0])

    before, again = sums(), sums()
    served[3]["answer"] = "2"
    assert (before.keys(), before) == ({"data.source hub"}, again)
    write(folder / "run.json", {"label": "a", "seed": 0, "finished": False, "learning_rate": None, "data": before})
    assert refusal(check_same_data, folder, sums()).startswith("data.source hub changed since")
    assert sums({"scene": "storm", "output": str(folder)}) == {}


@pytest.mark.parametrize("rest", [0.5, None])
def test_lost_tokens_are_told(stopped, rest):
    file = stopped.folder / "tokens" / "tokens-0.jsonl"
    size = checkpoints.newest_whole(stopped.folder)[0].tokens["tokens-0.jsonl"][0]
    assert 0 < size < file.stat().st_size  # rows after the mark are no loss
    now = int((rest or 0) * size)
    if rest is None:
        shutil.rmtree(file.parent)
    else:
        os.truncate(file, now)
    line = f"{file} has {now} bytes and had {size}: the run goes on without these tokens, which bandpo calibrate reads"
    assert resume(stopped.node) == [line, "going on after step 8"]


def test_tokens_that_were_thinned_since_are_not_lost(tmp_path):
    row = '{"step":0,"response_id":"a","share":0.5,"advantage":1.0}\n'
    file = write(tmp_path / "tokens" / "tokens-0.jsonl", row * 4)
    mark = checkpoints.Mark(
        step=1, wall_seconds=0, processes=1, files={}, rows=(0, ""), tokens=checkpoints._tokens(tmp_path)
    )
    for rows, lost in ((row * 4, 0), (row.replace("0.5", "0.25") * 2, 0), (row * 2, 1)):
        write(file, rows)
        assert len([*checkpoints.lost_tokens(tmp_path, mark)]) == lost


def test_a_damaged_checkpoint_that_is_passed_over_is_told_in_one_line(stopped):
    file = stopped.folder / "checkpoints" / "checkpoint-8" / "optimizer.pt"
    os.truncate(file, file.stat().st_size - 1)
    told = f"{file} is missing or was changed: that checkpoint is passed over"
    assert resume(stopped.node) == [told, "going on after step 4"]
