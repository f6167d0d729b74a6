"""What a training leaves in its folder: rows that the commands read once, and a sentence on what the clip did."""

import json
import math
import os
import re
import shutil

import pytest
import torch
from disk import json_rows
from test_trl import build, full, train
from transformers import TrainerCallback

import tiny
from bandpo import Band, Clip
from bandpo.clipping import clip_in_words
from bandpo.integrations.trl import BandPOTrainer
from bandpo_runs.cli import main
from bandpo_runs.files.logs import logs_at, read


def steps_in(folder):
    return [row["step"] for row in json_rows(folder / "metrics.jsonl")]


def band(folder, **changes):
    return train(BandPOTrainer, tiny.settings(folder, **changes), Band("kl", 0.05))


def test_every_row_is_written_without_a_checkpoint_and_the_commands_read_it(tmp_path, cli):
    trainer, rows = band(tmp_path, max_steps=8, logging_steps=3), json_rows(tmp_path / "metrics.jsonl")
    assert ([{**row, "max_steps": 8} for row in trainer.state.log_history], steps_in(tmp_path)) == (rows, [3, 6, 8])
    assert {"loss", "reward", "bandpo/tokens", "bandpo/clip/high_fraction"} <= rows[0].keys()
    assert rows[2].keys() >= {"train_runtime", "bandpo/tokens"}  # what came after the last row
    log = read(logs_at(tmp_path)[tmp_path])
    assert (log.path, log.last_step, log.ended, log.went_back) == (tmp_path / "metrics.jsonl", 8, True, 0)
    printed = [
        cli.out(*words, tmp_path) for words in (["watch", "--once"], ["doctor"], ["report", "-o", tmp_path / "x.html"])
    ]
    assert "finished" in printed[0]


def test_a_resumed_run_has_no_row_twice_and_none_is_lost(tmp_path):
    settings, (whole, killed) = {"save_strategy": "steps", "save_steps": 4}, (tmp_path / "whole", tmp_path / "killed")
    steps = [row["step"] for row in band(whole, **settings, max_steps=8).state.log_history]
    band(killed, **settings, max_steps=6)
    assert steps_in(killed) == [1, 2, 3, 4, 5, 6, 6]
    again = build(BandPOTrainer, tiny.settings(killed, **settings, max_steps=8), Band("kl", 0.05))
    again.train(resume_from_checkpoint=str(killed / "checkpoint-4"))
    assert steps_in(killed) == steps_in(whole) == steps == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert not (killed / "metrics-before.jsonl").exists()
    (killed / "metrics.jsonl").unlink()  # as of a run of an older release
    again.train(resume_from_checkpoint=str(killed / "checkpoint-4"))
    assert steps_in(killed) == steps


def test_a_new_run_in_the_same_folder_keeps_the_rows_before_and_replaces_the_tokens(tmp_path):
    band(tmp_path, max_steps=4)
    before, tokens = (tmp_path / "metrics.jsonl").read_bytes(), tmp_path / "tokens"
    shutil.copy(tokens / "tokens-0.jsonl", tokens / "tokens-1.jsonl")  # of a second process
    trainer = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=2), Clip(0.2, 0.2))
    assert ((tmp_path / "metrics-before.jsonl").read_bytes(), steps_in(tmp_path)) == (before, [1, 2, 2])
    assert [path.name for path in tokens.iterdir()] == ["tokens-0.jsonl"]
    lines = (tokens / "tokens-0.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in lines} == {0, 1}
    trainer.train()  # the same trainer once more
    assert steps_in(tmp_path) == [1, 2, 2]


def test_one_run_is_read_once_and_from_the_newer_of_two_logs(tmp_path):
    band(tmp_path, save_strategy="steps", save_steps=2, max_steps=4).save_state()
    assert logs_at(tmp_path) == {tmp_path: tmp_path / "metrics.jsonl"}
    for file in tmp_path.rglob("*.js*"):
        if "metrics" not in file.name:
            os.utime(file, (2e9, 2e9))  # a later run, of TRL's own trainer
    assert logs_at(tmp_path) == {tmp_path: tmp_path / "trainer_state.json"}
    (tmp_path / "run.json").write_text("{}")
    assert logs_at(tmp_path) == {tmp_path: tmp_path / "metrics.jsonl"}


class Second(TrainerCallback):
    """Makes this process not the first one."""

    def on_train_begin(self, args, state, control, **kwargs):
        state.is_world_process_zero = False


def test_the_first_process_alone_writes_and_speaks(tmp_path, caplog):
    trainer = build(BandPOTrainer, tiny.settings(tmp_path, max_steps=2), Band("kl", 0.05))
    trainer.callback_handler.callbacks.insert(0, Second())
    caplog.clear()
    trainer.train()
    assert trainer.state.log_history
    assert ((tmp_path / "metrics.jsonl").exists(), caplog.messages) == (False, [])


def test_what_json_cannot_hold_and_an_evaluation_before_training_do_no_harm(tmp_path):
    trainer = build(BandPOTrainer, full(tmp_path, max_steps=2, per_device_eval_batch_size=8), Band("kl", 0.05))
    trainer.evaluate(tiny.rows(8))
    assert not (tmp_path / "metrics.jsonl").exists()
    trainer.train()
    trainer.log({"mine": torch.tensor(1.0).numpy()[()], "text": object(), "lost": math.nan})
    *_, before, last = json_rows(tmp_path / "metrics.jsonl")
    assert last == {"epoch": before["epoch"], "step": 2, "max_steps": 2, "mine": 1.0, "lost": None}


def said(caplog):
    return [text for text in caplog.messages if text.startswith(("The rule clipped", "Clipping had"))]


@pytest.mark.parametrize(
    ("rule", "changes", "sentence"),
    [
        (Clip(0.9, 1e6), {}, "The rule clipped no token in 4 steps: any wider rule would have given this run"),
        (Clip(0.05, 0.05), {}, r"The rule clipped at most \d+ % of tokens in 4 steps, so it can matter"),
        (
            Clip(0.2, 0.2),
            {"steps_per_generation": 1, "num_iterations": 1},
            "Clipping had no effect in 4 steps: ",
        ),
        (Clip(1.0, math.inf), {}, None),
    ],
)
@pytest.mark.filterwarnings("ignore:Clipping has no effect")
@pytest.mark.filterwarnings("ignore:.*its numbers are distances")
def test_the_end_says_what_the_clip_did_as_the_doctor_does(tmp_path, caplog, capsys, rule, changes, sentence):
    train(BandPOTrainer, tiny.settings(tmp_path, **{"max_steps": 4, "learning_rate": 1e-3, **changes}), rule)
    assert len(said(caplog)) == (sentence is not None)
    main(["doctor", str(tmp_path)])
    told = " ".join(capsys.readouterr().out.split())
    for text in said(caplog):
        assert re.match(f"{sentence}.*`bandpo doctor {tmp_path}` says more$", text)
        assert text.partition(" in 4 steps")[0] in told  # the same share


@pytest.mark.parametrize(
    ("percent", "farthest", "cut", "level", "words"),
    [
        (0, 0.0, False, "problem", "Clipping had no effect in x: every ratio is 1"),
        (0, 2e-4, False, "warning", "The rule clipped no token in x: any wider rule would have given this run"),
        (
            0,
            None,
            True,
            "warning",
            "The rule clipped no token in x: every ratio is 1 (one optimizer step per batch)",
        ),
        (0.2, 1, False, "ok", "The rule clipped at most 0.2 % of tokens in x, so it can hardly matter"),
        (0.2, 1, True, "ok", "The rule clipped 0.2 % of tokens in x, so it has an effect on few tokens"),
        (1, 1, True, "ok", "The rule clipped 1 % of tokens in x, so it can matter"),
        (99.9, 1, True, "ok", "The rule clipped 100 % of tokens in x, so it can matter"),
    ],
)
def test_a_share_of_tokens_has_one_sentence(percent, farthest, cut, level, words):
    found, text, advice = clip_in_words(percent, "in x", farthest, cut=cut)
    assert (found, text[: len(words)], advice != "") == (level, words, True)
