"""A resumed run knows its data and its tokens: what has changed or is gone is refused or told, in one line."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import recipe
import torch

from bandpo.errors import UserError
from bandpo_runs import config
from bandpo_runs.config.run_folder import check_same_data
from bandpo_runs.data import rows as data_rows
from bandpo_runs.training import checkpoints, on_trl


class Killed(BaseException):
    """Nothing catches it: the run stops where it is, like a process that is killed."""


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def resume(node, **options):
    """Resume, and return what was told."""
    told = []
    on_trl.run(config.build(node), resume=True, say=told.append, **options)
    return told


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped at step 10 of 12, with checkpoints at 4 and 8, and tokens."""
    home = recipe.make(tmp_path)
    evaluation = {"eval_strategy": "steps", "eval_steps": 6, "per_device_eval_batch_size": 8, "num_generations_eval": 2}
    questions = home / "questions.jsonl"
    questions.write_text((home / "rows.jsonl").read_text())
    node = recipe.node(
        home, tmp_path / "run", rounds=3, save_every=1, data={"eval_path": str(questions)}, trainer=evaluation
    )

    def stop(self, args, state, control, **named):
        if state.global_step == 10:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_trl._Recorder, "on_step_end", stop)
        with pytest.raises(Killed):
            on_trl.run(config.build(node))
    return SimpleNamespace(node=node, folder=tmp_path / "run", rows=home / "rows.jsonl", questions=questions)


def recorded(folder):
    return json.loads((folder / "run.json").read_text()).get("data")


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("which", ["rows", "questions"])
def test_changed_data_are_refused_and_nothing_is_written(stopped, which):
    file = getattr(stopped, which)
    sums = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in (stopped.rows, stopped.questions)}
    assert recorded(stopped.folder) == sums
    before, lines = content(stopped.folder), file.read_text().splitlines(keepends=True)
    file.write_text("".join(reversed(lines)))  # the same rows in another order
    with pytest.raises(UserError, match=rf"^{file} changed since {stopped.folder} was started, .* --changed-data if"):
        resume(stopped.node)
    assert content(stopped.folder) == before
    file.write_text("".join(lines))
    assert resume(stopped.node) == ["going on after step 8"]


def test_changed_data_may_be_meant_and_are_those_of_the_run_from_then_on(stopped):
    stopped.rows.write_text("".join(reversed(stopped.rows.read_text().splitlines(keepends=True))))
    told = resume(stopped.node, changed_data=True)
    assert told[1:] == [f"{stopped.rows} changed since {stopped.folder} was started; it goes on with what is there now"]
    assert recorded(stopped.folder)[str(stopped.rows)] == hashlib.sha256(stopped.rows.read_bytes()).hexdigest()


def test_a_run_of_before_resumes_and_is_told_to_be_unchecked(stopped):
    info = json.loads((stopped.folder / "run.json").read_text())
    (stopped.folder / "run.json").write_text(json.dumps({key: info[key] for key in info if key != "data"}))
    stopped.rows.write_text("".join(reversed(stopped.rows.read_text().splitlines(keepends=True))))
    _, line = resume(stopped.node)
    assert line == f"{stopped.folder / 'run.json'} has no checksum of the data, so a change of them cannot be seen"


def test_rows_of_the_hub_have_a_checksum_too_and_what_is_made_has_none(tmp_path, monkeypatch):
    node = recipe.node(recipe.make(tmp_path), tmp_path / "run")
    node["data"] = {"source": "hub", "path": "ORG/NAME"}
    served = [{"prompt": f"{i}", "answer": "1"} for i in range(12)]
    monkeypatch.setattr(data_rows, "hub_rows", lambda *args, **named: (iter(served), None))

    def sums():
        run = config.build(node)
        return data_rows.checksums(run.data, data_rows.read_rows(run)[0])

    before = sums()
    assert before == sums()
    served[3]["answer"] = "2"
    assert before.keys() == sums().keys() == {"data.source hub"}
    assert before != sums()
    (tmp_path / "run").mkdir()
    info = {"label": "a", "seed": 0, "finished": False, "learning_rate": None}
    (tmp_path / "run" / "run.json").write_text(json.dumps({**info, "data": before}))
    with pytest.raises(UserError, match=r"^data\.source hub changed since"):
        check_same_data(tmp_path / "run", sums(), changed=False)
    (tmp_path / "run" / "run.json").write_text(json.dumps(info))
    lab = config.build({"scene": "storm", "output": str(tmp_path / "run")})
    assert data_rows.checksums(lab.data, data_rows.read_rows(lab)[0]) == {}
    assert check_same_data(tmp_path / "run", {}, changed=False) is None  # there is nothing that could have changed


@pytest.mark.parametrize("rest", [0, 0.5, None])
def test_lost_tokens_are_told(stopped, rest):
    file = stopped.folder / "tokens" / "tokens-0.jsonl"
    size = checkpoints.newest_whole(stopped.folder)[0].tokens["tokens-0.jsonl"][0]
    assert 0 < size < file.stat().st_size  # rows after the mark are no loss
    if rest is None:
        file.unlink()
        file.parent.rmdir()
    else:
        file.write_bytes(file.read_bytes()[: int(rest * size)])
    line, last = resume(stopped.node)
    now = int((rest or 0) * size)
    assert line == f"{file} has {now} bytes and had {size}: the run goes on without these tokens, which " + (
        "bandpo calibrate reads"
    )
    assert last == "going on after step 8"


def test_tokens_that_were_thinned_since_are_not_lost(tmp_path):
    file = tmp_path / "tokens" / "tokens-0.jsonl"
    file.parent.mkdir()
    file.write_text('{"step":0,"response_id":"a","share":0.5,"advantage":1.0}\n' * 4)
    mark = checkpoints.Mark(step=1, wall_seconds=0, processes=1, files={}, rows=(0, 0), tokens={})
    assert [*checkpoints.lost_tokens(tmp_path, mark)] == []  # a mark of before
    mark.tokens = checkpoints._tokens(tmp_path)
    assert [*checkpoints.lost_tokens(tmp_path, mark)] == []
    file.write_text('{"step":0,"response_id":"a","share":0.25,"advantage":1.0}\n' * 2)
    assert [*checkpoints.lost_tokens(tmp_path, mark)] == []
    file.write_text('{"step":0,"response_id":"a","share":0.5,"advantage":1.0}\n' * 2)
    assert len([*checkpoints.lost_tokens(tmp_path, mark)]) == 1


@pytest.mark.parametrize("name", ["optimizer.pt", "bandpo.json"])
def test_a_damaged_checkpoint_that_is_passed_over_is_told_in_one_line(stopped, name):
    folder = Path(stopped.folder, "checkpoints", "checkpoint-8")
    size = (folder / name).stat().st_size
    if name == checkpoints.MARK:
        (folder / name).unlink()
        told = f"{folder} has no {name}, which is written last"
    else:
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])
        told = f"{folder / name} has {size - 1} bytes and had {size}"
    assert resume(stopped.node) == [f"{told}: that checkpoint is passed over", "going on after step 4"]
