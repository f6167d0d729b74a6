"""Logs that trackers and terminals keep, and what prime-rl's two processes write into one file."""

from __future__ import annotations

import json
import pprint
import sys

import numpy as np
import pytest

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.evals.results import read_result
from bandpo_runs.files.logs import Followed, is_log, logs_at, name_of, read
from bandpo_runs.reports.sections import read_runs
from bandpo_runs.reports.table import make_table, markdown

RAY = "\x1b[36m(TaskRunner pid=38606)\x1b[0m "


def test_the_lines_that_verl_prints_are_rows(tmp_path):
    """In colour and behind Ray's prefix, with numbers as numpy 2 prints them, among other lines."""
    path = tmp_path / "grpo-seed1.log"
    path.write_text(
        f"{RAY}step:0 - val-core/openai/gsm8k/acc/mean@8:np.float64(0.25)\n"
        "Training Progress:   1%|  | 1/100\rglobal_step:7 - is not a row\n"
        f"{RAY}step:1 - actor/entropy:0.6 - actor/pg_clipfrac:1e-03 - actor/lr(1e-4):0.01 - critic/score/mean:-0.5\n"
        "step:2 - actor/entropy:nan - name:text - critic/score/mean:0.25 - val-core/openai/gsm8k/acc/mean@8:0.5\n",
        newline="",
    )
    log = read(path)
    assert [*log.at] == [0, 1, 2]
    assert log.at[1] | {"actor/lr(1e-4)": 0} == {
        "step": 1, "actor/entropy": 0.6, "entropy": 0.6, "actor/pg_clipfrac": 1e-3, "cut/fraction": 1e-3,
        "critic/score/mean": -0.5, "reward": -0.5, "actor/lr(1e-4)": 0,
    }  # fmt: skip
    assert log.at[2]["entropy"] is None
    (run,) = read_runs([path])
    assert (run.label, run.seed) == ("grpo", 1)
    assert "| grpo | 50.0 |" in markdown(make_table([read_result(str(path))]))


def test_the_dictionaries_that_skyrl_prints_are_rows(tmp_path):
    names = {"policy/policy_entropy": "0.4000", "policy/loss_metrics/clip_ratio": "0.0020", "trainer/epoch": 0}
    lines = []
    for step in (1, 2):
        held_out = {"eval/all/avg_score": "0.9", "eval/all/pass_at_4": "0.9", "eval/gsm8k/pass_at_4": "0.6"}
        row = {**names, "reward/avg_raw_reward": f"{step / 4:.4f}", **(held_out if step == 2 else {})}
        row |= {"eval/gsm8k/avg_score": "0.3000"} if step == 2 else {}
        text = f"2026-11-26 | INFO | log:120 - Step {step}: \n{pprint.pformat(row)}\n| Finished: 'step', 'cost': 12.5\n"
        lines += [f"{RAY}{line}\n" for line in text.splitlines()]
    path = tmp_path / "skyrl.out"
    path.write_text("".join(lines))
    first, second = read(path).rows
    assert (
        (first["reward"], first["entropy"], first["cut/fraction"]),
        (second["reward"], second["trainer/epoch"]),
    ) == ((0.25, 0.4, 0.002), (0.5, 0))
    assert "cost" not in second
    result = read_result(str(path))
    assert [(each.data, each.samples, each.mean) for each in result.logged] == [("gsm8k", 4, 0.3)]
    table = markdown(make_table([result]))
    assert ("| skyrl | 30.0 |" in table, "best@" in table) == (True, False)


CHART = (
    '"Step","grpo-seed1 - train/{0}","grpo-seed1 - train/{0}__MIN","grpo-seed1 - train/{0}__MAX",'
    '"a/b - train/{0}","a/b - train/{0}__MIN","a/b - train/{0}__MAX"\n'
    '"1","0.1","7","8","","",""\n"2","0.2","7","8","0.5","7","8"\n'
)


def test_a_chart_of_wandb_has_the_runs_in_it(tmp_path, capsys):
    path = tmp_path / "export.csv"
    path.write_text(CHART.format("reward"))
    assert [name_of(key) for key in logs_at(path)] == ["grpo-seed1", "a-b"]
    first, second = read_runs([path])
    assert (first.label, first.seed, first.mean("reward").tolist()) == ("grpo", 1, [0.1, 0.2])
    assert (second.label, second.x.tolist(), second.mean("reward").tolist()) == ("a-b", [2], [0.5])
    assert {*first.rows[0]} == {"step", "reward"}
    (run,) = read_runs([f"mine={path}/a-b"])
    assert (run.label, run.mean("reward").tolist()) == ("mine", [0.5])
    path.write_text(CHART.format("reward").replace("a/b", "a/lr=1"))
    assert [run.label for run in read_runs([f"{path}/a-lr=1"])] == ["a-lr=1"]
    path.write_text(CHART.format("reward"))
    (tmp_path / "entropy.csv").write_text(CHART.format("entropy"))
    runs = read_runs([tmp_path])  # charts of a folder, of the same runs
    assert [(run.label, *(run.mean(name)[-1] for name in ("reward", "entropy"))) for run in runs] == [
        ("grpo", 0.2, 0.2), ("a-b", 0.5, 0.5),
    ]  # fmt: skip
    assert main(["watch", str(path), "--once", "--json"]) == 0
    assert [each["numbers"] for each in json.loads(capsys.readouterr().out)] == [{"reward": 0.2}, {"reward": 0.5}]


def test_a_history_of_wandb_has_the_steps_of_the_trainer(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(",_step,train/global_step,train/reward,eval/reward,note\n0,0,10,0.5,,x\n1,1,10,,0.9,\n2,2,20,1,,\n")
    (run,) = read_runs([tmp_path])
    assert (run.label, run.x.tolist(), run.mean("reward").tolist()) == ("mine", [10, 20], [0.5, 1.0])
    assert run.mean("eval/reward").tolist()[0] == 0.9
    assert run.notes == ("it does not say whether the run is finished",)
    answers = tmp_path / "answers.csv"
    answers.write_text("step,prompt,score\n1,a,1\n")
    assert (is_log(path), is_log(answers)) == (True, False)


def test_what_no_log_can_be_made_of_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chart.csv").write_text(CHART.format("reward"))
    (tmp_path / "runs.csv").write_text('"Name","State","lr"\n"a","finished","1"\n')
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\0")
    (tmp_path / "other.log").write_text("{'question': 'How many?', 'answer': 5}\n")
    for source, message in (
        ("runs.csv", "runs.csv: wandb's CSV of a chart or of run.history(), with one of the columns Step, "),
        ("runs.csv", "is expected; it has Name, State, lr"),
        ("bytes.csv", "bytes.csv cannot be read as CSV: 'utf-8' codec"),
        ("chart.csv/c", "chart.csv/c must name one of the runs grpo-seed1, a-b, as in chart.csv/grpo-seed1"),
        ("none.csv", "none.csv: no run found"),
        (
            "other.log",
            "other.log: no row of a log is in it; expected JSON lines with 'step' or 'round', or the steps that",
        ),
    ):
        assert main(["report", source]) == 2
        assert message in capsys.readouterr().err
    assert main(["table", "chart.csv"]) == 2
    assert "chart.csv must name one of the runs grpo-seed1, a-b" in capsys.readouterr().err
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing", None)
    with pytest.raises(UserError, match=r"1\.host needs the package tensorboard: pip install 'bandpo\[trackers\]'"):
        read(tmp_path / "events.out.tfevents.1.host")


def test_the_two_processes_of_prime_rl_write_rows_of_one_step_in_any_order(tmp_path):
    rows = []
    for step in (1, 2, 3):
        orchestrator = {"train/agg/effective/agent/reward/mean": step / 4, "train/agg/all/agent/reward/mean": 9}
        orchestrator |= {"eval/aime24/effective/agent/avg@8": 0.25} if step == 2 else {}
        rows.append({"step": step, "time": 10.0 + step, **orchestrator, "time/step": 1.0})
        for more in ({"entropy/all/mean": 0.5, "is_masked/mean": 0.01}, {"time/step": 2.0}):  # the trainer is late
            rows += [{"step": step - 1, "time": 11.0 + step, **more}] if step > 1 else []
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = Followed(path)
    log.poll()
    assert (log.went_back, [row["reward"] for row in log.rows]) == (0, [0.25, 0.5, 0.75])
    second = log.at[2]
    assert (log.at[1]["entropy"], second["cut/fraction"], second["val-core/aime24/acc/mean@8"]) == (0.5, 0.01, 0.25)
    (logged,) = read_result(str(tmp_path)).logged
    assert (logged.data, logged.samples, logged.mean) == ("aime24", 8, 0.25)
    resumed = rows[-3] | {"train/agg/effective/agent/reward/mean": 0.1}
    path.write_text(path.read_text() + json.dumps(resumed) + "\n")
    assert log.poll()
    assert log.went_back == 1


def test_tensorboards_events_are_a_run_for_each_folder(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for name, shift in (("grpo-seed1", 0.0), ("band-kl", 0.5)):
        with SummaryWriter(str(tmp_path / "runs" / name)) as writer:
            writer.add_text("args", "{}")
            for step in (1, 2, 3):
                writer.add_scalar("train/reward", step / 4 + shift, step)
                writer.add_scalar("eval/reward", 0.5, step)
    second, first = read_runs([tmp_path])
    assert (first.label, first.seed, second.label) == ("grpo", 1, "band-kl")
    np.testing.assert_allclose(first.mean("reward"), [0.25, 0.5, 0.75])
    np.testing.assert_allclose(second.mean("reward"), [0.75, 1.0, 1.25])
    (file,) = (tmp_path / "runs" / "band-kl").iterdir()
    (run,) = read_runs([file])
    assert (run.label, len(run.x)) == ("band-kl", 3)
    file.write_bytes(b"no events")
    with pytest.raises(UserError, match="no row of a log is in it"):
        read_runs([file])
