"""The report of logs that other trainers wrote, and what it says in words."""
# ruff: noqa: RUF001  (minus signs are meant)

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from report_runs import cells, make_rows, ramp, report_of, trls, write_lines, write_run, write_state

pytest.importorskip("matplotlib")

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.files.logs import read
from bandpo_runs.reports.panels import PANELS
from bandpo_runs.reports.sections import read_runs, read_sections
from bandpo_runs.statistics.collapse import Curves, by_step


def verls(step, score=0.25, high=6.0, tail=2.0):
    data = {"critic/score/mean": score, "actor/entropy": 0.7, "actor/pg_clipfrac": 0.017}
    data |= {"actor/bandpo/tokens": 400.0, "actor/bandpo/clip/count": high + 2, "actor/bandpo/clip/high_count": high}
    return {"step": step, "data": data | {"actor/bandpo/clip/tail_high_count": tail}}


PANEL = {panel.key: panel for panel in PANELS.values()}


# -------------------------------------------------------------------------------------------------------------- reading
def test_the_papers_three_curves_come_from_verls_sums(tmp_path):
    """Two rows of a step have 8 and 40 clipped of 400 tokens each: shares of sums, no means of shares."""
    log = write_lines(tmp_path / "verl" / "dapo.jsonl", [verls(1), verls(2, high=38.0, tail=10.0)])
    (run,) = read_runs([log])
    assert (run.label, run.seed, run.info, run.objective, run.axis) == ("dapo", None, None, None, "step")
    np.testing.assert_allclose(PANEL["clip/fraction"].curve(run), [2.0, 10.0])
    np.testing.assert_allclose(PANEL["clip/tail_high_share"].curve(run), [25.0, 25.0])
    np.testing.assert_allclose(PANEL["entropy"].curve(run), [0.7, 0.7])
    np.testing.assert_allclose(PANEL["cut/fraction"].curve(run), [1.7, 1.7])


def test_runs_validated_on_other_data_and_sample_counts_have_panels_for_what_they_have(tmp_path):
    logs, aime = [], {"aime/acc/mean@8": 0.5, "aime/acc/best@8/mean": 0.6}
    for name, held_out in (("a", aime), ("b", {"math/acc/mean@4": 0.25})):
        data = {"critic/score/mean": 0.25} | {f"val-core/{key}": value for key, value in held_out.items()}
        logs.append(write_lines(tmp_path / f"{name}.jsonl", [{"step": step, "data": data} for step in (1, 2)]))
    titles = [figure.panel.title for figure in report_of(*logs).parts[0].figures]
    assert titles[1:] == ["aime mean@8", "math mean@4", "aime best@8 (verl)"]


def test_the_clip_rate_of_bandpo_trainer_is_the_sum_of_its_sides(tmp_path):
    sides = {"bandpo/clip/high_fraction": 0.03, "bandpo/clip/low_fraction": 0.02, "bandpo/clip/tail_high_share": 0.4}
    write_state(tmp_path / "out", [trls(1, **sides), {"step": 1, "eval_reward": 3.0}], most=1, now=1)
    (run,) = read_runs([tmp_path / "out"])
    assert PANEL["clip/fraction"].curve(run) == pytest.approx([5.0])
    assert PANEL["clip/tail_high_share"].curve(run) == pytest.approx([40.0])
    assert (run.label, run.finished, len(run.x)) == ("out", True, 1)


def test_a_run_is_given_its_methods_name_and_logs_of_one_name_are_runs_of_it(tmp_path):
    for seed in range(3):
        write_lines(tmp_path / "grpo" / f"{seed}.jsonl", [verls(1), verls(2)])
    ours = write_run(tmp_path / "ours", "GRPO", 3, make_rows(ramp(4)))
    runs = read_runs([f"base={tmp_path / 'grpo'}", f"mine={ours}"])
    assert [(run.label, run.seed) for run in runs] == [("base", None)] * 3 + [("mine", 3)]
    first, second = read_sections([f"base={tmp_path / 'grpo'}", f"mine={ours}"])
    assert (len(first.methods["mine"]), len(second.methods["base"])) == (1, 3)


def test_logs_of_one_file_name_are_not_one_method(tmp_path):
    for name in ("a", "b"):
        write_state(tmp_path / name / "out", [trls(1)], most=1, now=1)
    labels = [run.label for run in read_runs([tmp_path / "a" / "out", tmp_path / "b" / "out"])]
    assert labels == [f"out ({tmp_path / name / 'out'})" for name in ("a", "b")]


def test_metrics_jsonl_of_a_run_folder_is_the_run(tmp_path):
    folder = write_run(tmp_path, "GRPO", 2, make_rows(ramp(4)))
    (run,) = read_runs([folder / "metrics.jsonl"])
    assert (run.folder, run.seed) == (folder, 2)
    with pytest.raises(UserError, match=f"{folder}: given twice"):
        read_runs([folder / "metrics.jsonl", folder])


@pytest.mark.parametrize(
    ("most", "now", "finished", "notes"),
    [(40, 40, True, ()), (40, 30, False, ()), (None, 30, True, ("it does not say whether the run is finished",))],
)
def test_a_state_says_whether_its_run_is_finished(tmp_path, most, now, finished, notes):
    """The last row need not be that of the last step."""
    write_state(tmp_path / "out", [trls(step) for step in (9, 18, 27)], most=most, now=now)
    (run,) = read_runs([tmp_path / "out"])
    (part,) = report_of(tmp_path / "out").parts
    assert (run.finished, run.notes, bool(part.tables[0].rows)) == (finished, notes, finished)


def test_what_happened_to_a_log_is_in_its_notes(tmp_path):
    rows = [{**row, "loss": None, "step": row["round"]} for row in make_rows(ramp(3))]
    folder = write_run(tmp_path, rows=rows)
    facts = json.loads((folder / "run.json").read_text()) | {"finished": False, "stopped": "weights are not finite"}
    (folder / "run.json").write_text(json.dumps(facts))
    log = write_lines(tmp_path / "run.jsonl", [trls(1), trls(2, 0.1), trls(2, 0.9, loss=float("nan"))])
    with log.open("a") as file:
        file.write('{"step": 3, "rew\n')
    ours, theirs = read_runs([folder, log])
    assert (len(ours.notes), ours.notes[-1]) == (2, "weights are not finite")
    assert ours.notes[0].startswith(f"numbers are not finite: loss in {len(rows)} rows, first at step 1; ")
    assert theirs.mean("reward").tolist() == [0.5, 0.9]
    assert [note.partition(":")[0] for note in theirs.notes[:3]] == [
        "1 of its lines are left out", "the log went back 1 times, as after a resume; the last values are shown",
        "numbers are not finite",
    ]  # fmt: skip
    notes = report_of(log).parts[0].notes
    assert notes[0].startswith(f"run ({log}): 1 of its lines are left out") or notes[0].startswith("run: 1 of its")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.jsonl", '{"reward": 1}\n', "no row of a log is in it"),
        ("run.jsonl", "\0\0", "no row of a log is in it"),
        ("trainer_state.json", "[]", "corrupt"),
        ("trainer_state.json", '{"log_history": 3}', "'log_history' is 3"),
    ],
)
def test_what_is_no_log_is_refused_by_name(tmp_path, capsys, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content)
    assert main(["report", f"mine={name}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {name}: ")
    assert message in error
    assert not (tmp_path / "report.html").exists()


# ------------------------------------------------------------------------------------------------------------- the page
def test_a_page_of_logs_says_what_it_does_not_know(tmp_path):
    plain = write_state(tmp_path / "trl", [trls(step) for step in (1, 2)], most=2, now=2)
    verl = write_lines(tmp_path / "verl.jsonl", [verls(step) for step in (1, 2)])
    report = report_of(f"TRL={plain}")
    assert "Overall clip rate (Fig. 4a): no value in the log of TRL." in report.parts[0].notes
    assert report.intervals.notes == ["TRL: a log does not say the rule of its run, so no interval is shown."]
    assert report.facts == [f"Read from logs, which hold no settings, versions or commands: TRL from {plain}."]
    assert (report.settings, report.commands, report.limits, len(report.parts[0].tables)) == (None, [], [], 1)
    assert cells(report, "Final numbers")["Reward at the end"]["TRL"] == "0.500"
    # The trainer's own clip rate, where the paper's is not there
    reports = report, report_of(verl), report_of(f"TRL={plain}", verl)
    shown = [[figure.panel.title for figure in each.parts[0].figures] for each in reports]
    assert ["Cut" in titles for titles in shown] == [True, False, True]


def test_repetitions_of_verl_are_seeds_and_the_sets_of_the_paper_have_their_numbers(tmp_path):
    for name, base in (("grpo", 0.2), ("band-kl", 0.24)):
        for seed in (1, 2, 3):
            rows = [verls(step) for step in (1, 2, 3)]
            for data, shift in (("aime_2024", 0.0), ("aime_amc2023", 0.1)):
                for row, gain in ((rows[0], 0.0), (rows[2], 0.1)):
                    value = base + shift + gain * seed * (2 if name == "grpo" else 3)
                    row["data"] |= {f"val-core/{data}/acc/mean@32": value, f"val-core/{data}/acc/best@32/mean": 0.9}
                    row["data"] |= {f"val-core/{data}/acc/maj@32/mean": 0.7}
            write_lines(tmp_path / "logs" / f"{name}-seed{seed}.jsonl", rows)
    write_lines(tmp_path / "other" / "grpo-seed1.jsonl", [verls(1)])
    report = report_of(tmp_path / "logs")
    finals = cells(report, "Final numbers")
    names = [f"{data} {n}, %" for n in ("mean@32", "best@32 (verl)") for data in ("Average", "AMC2023", "AIME2024")]
    assert [name for name in finals if "@32" in name] == names
    assert [finals[names[i]][label] for i, label in ((2, "grpo"), (0, "band-kl"), (4, "grpo"))] == [
        "60.0 ± 20.0", "89.0 ± 30.0", "90.0 ± 0.0",
    ]  # fmt: skip
    assert cells(report, "Minus grpo")["Average mean@32, %"]["band-kl"].startswith("+24.0 ± 10.0")
    ((_, sentences),) = report.verdicts
    assert "Average mean@32 of the last validation, in %, is 89.0, under grpo 65.0 (means of 3 pairs)" in sentences[-2]
    assert "is −0.8 to +48.8. With 4 pairs, one so large would be significant" in sentences[-2]
    titles = [figure.panel.title for figure in report.parts[0].figures]
    assert [f"{title}, %" for title in titles if "@" in title] == names
    labels = {run.label for run in read_runs([tmp_path / "logs", tmp_path / "other"])}
    assert labels == {f"grpo ({tmp_path / name})" for name in ("logs", "other")} | {"band-kl"}


def test_a_log_and_a_run_folder_stand_on_one_page(tmp_path):
    write_run(tmp_path / "runs", "GRPO", 0, make_rows(ramp(3)), {"lr": 1}, scene=None, learning_rate=None)
    write_run(tmp_path / "runs", "Band-KL 0.05", 0, make_rows(ramp(3)), {"lr": 2}, scene=None, learning_rate=None)
    log = write_lines(tmp_path / "log.jsonl", [{"round": r, "reward": 0.5} for r in range(1, 13)])
    report = report_of(tmp_path / "runs", f"theirs={log}")
    assert cells(report, "Settings that differ")["lr"] == {"GRPO": "1", "Band-KL 0.05": "2", "theirs": "–"}
    assert set(cells(report, "Minus GRPO")["Reward at the end"]) == {"Band-KL 0.05"}
    assert "A log does not say the seed of its run, so it has no paired difference." in report.parts[0].tables[0].notes


def test_a_validation_without_a_number_has_no_panel_and_no_table(tmp_path, capsys):
    rows = [{"step": step, "data": {"critic/score/mean": 0.1, "val-core/x/acc/mean@4": math.nan}} for step in (1, 2)]
    log = write_lines(tmp_path / "log.jsonl", rows)
    assert not [figure for figure in report_of(log).parts[0].figures if "mean@4" in figure.panel.title]
    rows[1]["data"]["val-core/x/acc/best@4/mean"] = 0.5  # and no mean
    write_lines(log, rows)
    assert [main([command, str(log)]) for command in ("table", "score")] == [2, 2]
    assert capsys.readouterr().err.count("log.jsonl: no validation in it") == 2
    write_lines(log, [rows[0], {"step": 5.5, "data": {"val-core/x/acc/mean@4": 0.5}}])
    assert main(["table", str(log)]) == 0
    assert "Validation at step 5.5." in capsys.readouterr().out


def test_a_row_keeps_its_step_whatever_another_name_becomes(tmp_path):
    write_lines(tmp_path / "log.jsonl", [{"step": i, "train/step": None, "reward": 0.5} for i in (1, 2)])
    assert [row["step"] for row in read(tmp_path / "log.jsonl").rows] == [1, 2]


def test_rows_of_a_round_are_summed_and_what_is_not_known_is_left_out():
    rows = [
        {"step": 1, "round": 1, "a": 0.1, "v/x/m": 1.0}, {"step": 2, "round": 1, "a": None, "v/y/m": 5.0},
        {"step": 3, "round": 2}, {"step": 5, "round": 4, "a": 0.2}, {"step": 4, "round": 4, "a": 0.4},
    ]  # fmt: skip
    run = Curves(**by_step(rows[::-1]))
    assert (run.axis, run.x.tolist()) == ("round", [1, 2, 4])
    np.testing.assert_allclose(run.total("a"), [0.1, np.nan, 0.6])
    np.testing.assert_allclose(run.mean("a"), [0.1, np.nan, 0.3])
    np.testing.assert_allclose(run.mean("v/*/m"), [3, np.nan, np.nan])
    assert np.isnan(run.total("none")).all()
    assert not len(Curves(axis="step", x=np.array([]), rows=[]).mean("v/*/m"))
