"""No signal is swallowed: where the KeyboardInterrupt of one is lost in a `__del__`, the command still ends by it."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import recipe
from disk import json_rows, write

from bandpo_runs import signals
from bandpo_runs.cli import main, show_training, show_watch
from bandpo_runs.evals import grades
from bandpo_runs.evals.folder import Evaluation
from bandpo_runs.progress import Progress
from bandpo_runs.reports.watching import Watch
from bandpo_runs.training.on_trl import _Recorder

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


class Swallow:
    """When it goes, the signal comes, and Python ignores what a handler raises then."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        os.kill(os.getpid(), self.number)
        time.sleep(1)


def swallow(name):
    Swallow(getattr(signal, name))


@pytest.fixture(autouse=True)
def _handlers(monkeypatch):
    """The tests themselves may have been started by nohup."""
    before = {number: signal.getsignal(number) for number in (getattr(signal, name) for name in CODES)}
    for number in before:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signals.came.clear()


@pytest.fixture
def home(here, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return recipe.make(here)


DRAW = [
    *["eval", "model", "--data", "rows.jsonl", "-o", "ev", "--no-chat", "--scorer", "exact", "-n", "2"],
    *["--max-tokens", "4"],
]


def rewards_with_a_signal(completions, completion_ids, **columns):
    values = recipe.share_of_even(completions, completion_ids)
    if len(calls) == 1:
        swallow(calls[0])
    calls.append("")
    return values


calls: list[str] = []


@pytest.mark.parametrize("name", CODES)
def test_a_training_ends_at_the_next_step(home, capsys, name):
    calls[:] = [name]
    write("r.yaml", recipe.node(home, Path("run"), reward=f"{__name__}:rewards_with_a_signal"))
    assert (main(["train", "r.yaml"]), len(calls)) == (CODES[name], 2)  # one generation of five
    assert not json.loads(Path("run/run.json").read_text())["finished"]
    assert capsys.readouterr().err.endswith("; the same command with --resume goes on\n")
    assert main(["train", "r.yaml", "--resume"]) == 0  # the signal is not remembered


@pytest.mark.parametrize(("name", "what"), [("SIGTERM", "ended by SIGTERM"), ("SIGINT", "interrupted")])
def test_an_evaluation_ends_at_the_next_sample_and_goes_on(home, capsys, monkeypatch, name, what):
    add = Evaluation.add

    def interrupted(self, sample):
        add(self, sample)
        if len(self.done) == 3:
            swallow(name)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "add", interrupted)
        assert (main(DRAW), len(json_rows(Path("ev/samples.jsonl")))) == (CODES[name], 3)
    assert capsys.readouterr().err == f"{what}; 3 of 24 samples are kept in ev; the same command goes on\n"
    assert (main(DRAW), "; 3 of them are there" in capsys.readouterr().out) == (0, True)


def test_grading_ends_at_the_next_chunk(home, monkeypatch):
    grade = grades._lab
    monkeypatch.setattr(grades, "_lab", lambda *given: (swallow("SIGHUP"), grade(*given))[1])
    monkeypatch.setattr(grades, "CHUNK", 4)
    assert (main(DRAW), main(["score", "ev", "--scorer", "lab"])) == (0, 129)
    assert len(json_rows(Path("ev/grades-lab.jsonl"))) == 4


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 0)])
def test_watch_ends_at_the_next_look(tmp_path, monkeypatch, name, code):
    log = write(tmp_path / "log.jsonl", '{"step": 1, "reward": 0.5}\n')
    look, looks = Watch.look, []

    def interrupted(self, now):
        looks.append(now)
        if len(looks) == 2:
            swallow(name)
        assert len(looks) < 4
        return look(self, now)

    monkeypatch.setattr(Watch, "look", interrupted)
    monkeypatch.setattr(show_watch, "_PAUSE", 0)
    # A training that is called next does not end by it.
    assert (main(["watch", str(log), "--every", "0.01"]), signals.came) == (code, [])


def test_whatever_has_a_bar_ends_at_the_next_turn_but_not_a_thread_beside_it():
    """An evaluation in training has none, and ends too."""
    signals.came.append(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(Progress("turns").update, 1).result()
    recorder = object.__new__(_Recorder)
    for turn in (lambda: Progress("turns").update(1), lambda: recorder.on_prediction_step(None, None, None)):
        with pytest.raises(KeyboardInterrupt, match=f"^{int(signal.SIGTERM)}$"):
            turn()


@pytest.mark.parametrize("name", CODES)
def test_a_command_without_a_turn_ends_as_by_the_signal(monkeypatch, capsys, name):
    monkeypatch.setattr(show_training, "train_and_show", lambda *args: swallow(name))
    assert main(["train", "scene=tail"]) == CODES[name]
    assert "interrupted" in (said := capsys.readouterr().err) or name in said
