"""The report of logs that other trainers wrote, and what it says in words."""
# ruff: noqa: RUF001  (minus signs are meant)

import itertools
import math
import re

import numpy as np
import pytest
from commands import missing
from disk import write
from report_runs import cells, make_rows, ramp, report_of, trls, write_run, write_state

pytest.importorskip("matplotlib")

from scipy import stats

from bandpo_runs.reports.sections import read_runs, read_sections
from bandpo_runs.reports.verdicts import verdicts
from bandpo_runs.statistics.collapse import Curves, by_step


def verls(step):
    return {"step": step, "data": {
        "critic/score/mean": 0.25, "actor/entropy": 0.7, "actor/pg_clipfrac": 0.017, "actor/bandpo/tokens": 400.0,
        "actor/bandpo/clip/count": 8.0, "actor/bandpo/clip/high_count": 6.0, "actor/bandpo/clip/tail_high_count": 2.0,
    }}  # fmt: skip


def test_runs_validated_on_other_data_and_sample_counts_have_panels_for_what_they_have(tmp_path):
    logs, aime = [], {"aime/acc/mean@8": 0.5, "aime/acc/best@8/mean": 0.6}
    for name, held_out in (("a", aime), ("b", {"math/acc/mean@4": 0.25})):
        data = {"critic/score/mean": 0.25} | {f"val-core/{key}": value for key, value in held_out.items()}
        logs.append(write(tmp_path / f"{name}.jsonl", [{"step": step, "data": data} for step in (1, 2)]))
    titles = [figure.panel.title for figure in report_of(*logs).parts[0].figures]
    assert titles[1:] == ["aime mean@8", "math mean@4", "aime best@8 (verl)"]


def test_a_run_is_given_its_methods_name_and_logs_of_one_name_are_runs_of_it(tmp_path):
    for seed in range(3):
        write(tmp_path / "grpo" / f"{seed}.jsonl", [verls(1), verls(2)])
    ours = write_run(tmp_path / "ours", "GRPO", 3, make_rows(ramp(4)))
    runs = read_runs([f"base={tmp_path / 'grpo'}", f"mine={ours}"])
    assert [(run.label, run.seed) for run in runs] == [("base", None)] * 3 + [("mine", 3)]
    first, second = read_sections([f"base={tmp_path / 'grpo'}", f"mine={ours}"])
    assert (len(first.methods["mine"]), len(second.methods["base"])) == (1, 3)


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
    folder = write_run(tmp_path, rows=rows, finished=False, stopped="weights are not finite")
    log = write(tmp_path / "run.jsonl", [trls(1), trls(2, 0.1), trls(2, 0.9, loss=float("nan"))])
    with log.open("a") as file:
        file.write('{"step": 3, "rew\n')
    ours, theirs = read_runs([folder, log])
    assert [note.partition(";")[0] for note in ours.notes] == [
        f"numbers are not finite: loss in {len(rows)} rows, first at step 1", "weights are not finite",
    ]  # fmt: skip
    assert theirs.mean("reward").tolist() == [0.5, 0.9]
    assert [note.partition(":")[0] for note in theirs.notes[:3]] == [
        "1 of its lines are left out", "the log went back 1 times, as after a resume; the last values are shown",
        "numbers are not finite",
    ]  # fmt: skip
    assert re.match(r"run( \(.*\))?: 1 of its lines are left out", report_of(log).parts[0].notes[0])


# ------------------------------------------------------------------------------------------------------------- the page
def test_a_page_of_logs_says_what_it_does_not_know(tmp_path):
    plain = write_state(tmp_path / "trl", [trls(step) for step in (1, 2)], most=2, now=2)
    verl = write(tmp_path / "verl.jsonl", [verls(step) for step in (1, 2)])
    report = report_of(f"TRL={plain}")
    assert "Overall clip rate (Fig. 4a): no value in the log of TRL." in report.parts[0].notes
    assert report.facts == [f"Read from logs, which hold no settings, versions or commands: TRL from {plain}."]
    assert (report.settings, report.commands, report.limits, len(report.parts[0].tables)) == (None, [], [], 1)
    assert cells(report, "Final numbers")["Reward at the end"]["TRL"] == "0.500"
    # The trainer's own clip rate, where the paper's is not there
    for sources, has_cut in (([f"TRL={plain}"], True), ([verl], False), ([f"TRL={plain}", verl], True)):
        assert ("Cut" in [figure.panel.title for figure in report_of(*sources).parts[0].figures]) == has_cut


def test_repetitions_of_verl_are_seeds_and_the_sets_of_the_paper_have_their_numbers(tmp_path):
    for (name, base, more), seed in itertools.product((("grpo", 0.2, 2), ("band-kl", 0.24, 3)), (1, 2, 3)):
        rows = [verls(step) for step in (1, 2, 3)]
        for (data, shift), (row, gain) in itertools.product(
            (("aime_2024", 0.0), ("aime_amc2023", 0.1)), ((rows[0], 0.0), (rows[2], 0.1))
        ):
            values = {"mean@32": base + shift + gain * seed * more, "best@32/mean": 0.9, "maj@32/mean": 0.7}
            row["data"] |= {f"val-core/{data}/acc/{name}": value for name, value in values.items()}
        write(tmp_path / "logs" / f"{name}-seed{seed}.jsonl", rows)
    write(tmp_path / "other" / "grpo-seed1.jsonl", [verls(1)])
    report = report_of(tmp_path / "logs")
    finals = cells(report, "Final numbers")
    names = [f"{data} {n}, %" for n in ("mean@32", "best@32 (verl)") for data in ("Average", "AMC2023", "AIME2024")]
    assert [name for name in finals if "@32" in name] == names
    assert [finals[names[i]][label] for i, label in ((2, "grpo"), (0, "band-kl"), (4, "grpo"))] == [
        "60.0 ± 20.0", "89.0 ± 30.0", "90.0 ± 0.0",
    ]  # fmt: skip
    assert cells(report, "Minus grpo")["Average mean@32, %"]["band-kl"].startswith("+24.0 ± 10.0")
    ((_, sentences),) = report.verdicts
    assert not missing(
        sentences[-2], "Average mean@32 of the last validation, in %, is 89.0, under grpo 65.0 (means of 3 pairs)",
        "is −0.8 to +48.8.",
    )  # fmt: skip
    assert [f"{f.panel.title}, %" for f in report.parts[0].figures if "@" in f.panel.title] == names
    labels = {run.label for run in read_runs([tmp_path / "logs", tmp_path / "other"])}
    assert labels == {f"grpo ({tmp_path / name})" for name in ("logs", "other")} | {"band-kl"}


def test_a_log_and_a_run_folder_stand_on_one_page(tmp_path):
    for label, rate in (("GRPO", 1), ("Band-KL 0.05", 2)):
        write_run(tmp_path / "runs", label, 0, make_rows(ramp(3)), {"lr": rate}, scene=None, learning_rate=None)
    log = write(tmp_path / "log.jsonl", [{"round": r, "reward": 0.5} for r in range(1, 13)])
    report = report_of(tmp_path / "runs", f"theirs={log}")
    assert cells(report, "Settings that differ")["lr"] == {"GRPO": "1", "Band-KL 0.05": "2", "theirs": "–"}
    assert [*cells(report, "Minus GRPO")["Reward at the end"]] == ["Band-KL 0.05"]
    assert "A log does not say the seed of its run, so it has no paired difference." in report.parts[0].tables[0].notes


def test_a_validation_without_a_number_has_no_panel_and_no_table(tmp_path, cli):
    rows = [{"step": step, "data": {"critic/score/mean": 0.1, "val-core/x/acc/mean@4": math.nan}} for step in (1, 2)]
    log = write(tmp_path / "log.jsonl", rows)
    assert not [figure for figure in report_of(log).parts[0].figures if "mean@4" in figure.panel.title]
    rows[1]["data"]["val-core/x/acc/best@4/mean"] = 0.5  # and no mean
    write(log, rows)
    for command in ("table", "score"):
        assert "log.jsonl: no validation in it" in cli.error(command, log)
    write(log, [rows[0], {"step": 5.5, "data": {"val-core/x/acc/mean@4": 0.5}}])
    assert "Validation at step 5.5." in cli.out("table", log)


def test_rows_of_a_round_are_summed_and_what_is_not_known_is_left_out():
    rows = [
        {"step": 1, "round": 1, "a": 0.1, "v/x/m": 1.0}, {"step": 2, "round": 1, "a": None, "v/y/m": 5.0},
        {"step": 3, "round": 2}, {"step": 5, "round": 4, "a": 0.2}, {"step": 4, "round": 4, "a": 0.4},
    ]  # fmt: skip
    run, nan = Curves(**by_step(rows[::-1])), math.nan
    assert (run.axis, run.x.tolist()) == ("round", [1, 2, 4])
    for curve, values in (
        (run.total("a"), [0.1, nan, 0.6]), (run.mean("a"), [0.1, nan, 0.3]), (run.mean("v/*/m"), [3, nan, nan]),
        (run.total("none"), [nan] * 3), (Curves(axis="step", x=np.array([]), rows=[]).mean("v/*/m"), []),
    ):  # fmt: skip
        np.testing.assert_allclose(curve, values)


# ---- the verdict of a comparison: the numbers in it against scipy, and when it is given at all


def verdicts_of(*sources, **options):
    (section,) = read_sections(sources, **options)
    return verdicts(section)


def compared(tmp_path, band, grpo):
    """The verdict on runs in which half of the completions work from these rounds on, seed by seed."""
    for label, halves in (("Band-KL 0.05", band), ("GRPO", grpo)):
        for seed, half in enumerate(halves):
            write_run(tmp_path, label, seed, make_rows(ramp(half)))
    return verdicts_of(tmp_path)


@pytest.mark.parametrize(
    ("band", "grpo", "seen", "verdict"),
    [
        ([4], [9], "at round 4, under GRPO at round 9.", "Too few pairs of seeds (1) to tell"),
        (
            [4, 5],
            [9, 10],
            "at round 4.5, under GRPO at round 9.5 (means of 2 pairs); sooner in 2",
            "pairs of seeds (2) to tell",
        ),
        ([4, 5, 6, 7, 8], [99] * 5, "under GRPO not within the run (medians of 5 pairs); sooner in 5 of 5", 0.0625),
        ([4, 5, 6, 7, 8, 9], [99] * 6, "sooner in 6 of 6 pairs", 0.03125),
        # A pair of which nothing is known speaks against a difference.
        ([4, 5, 6, 7, 8, 9, 99], [99] * 7, "sooner in 6 of 7 pairs", 0.125),
        ([99] * 6 + [4], [99] * 7, "sooner in 1 of 7 pairs", 1.0),
        # Both sides are means, or both are medians.
        ([2, 3, 7], [8, 9, 99], "at round 3.0, under GRPO at round 9.0 (medians of 3 pairs)", 0.25),
        ([8, 9, 99], [2, 3, 7], "at round 9.0, under GRPO at round 3.0 (medians of 3 pairs); later in 3 of 3", 0.25),
    ],
)
def test_pairs_of_seeds(tmp_path, band, grpo, seen, verdict):
    """Where only limits are known, a two-sided binomial test of the signs decides."""
    text = " ".join(compared(tmp_path, band, grpo)[:-1])
    if isinstance(verdict, float):
        told = "not significant" if verdict > 0.05 else "is significant"
        verdict = f"{told} over {len(band)} pairs of seeds (sign test, p = {verdict:.2g})."
    assert not missing(text, "Band-KL 0.05: half of the completions work ", seen, verdict)


@pytest.mark.parametrize(("band", "grpo"), [((4, 5, 7), (9, 10, 11)), ((4, 9, 10), (9, 4, 8))])
def test_the_interval_is_students_of_the_paired_differences(tmp_path, band, grpo):
    text, _ = compared(tmp_path, band, grpo)
    gaps = np.subtract(band, grpo)
    half = stats.t.ppf(0.975, 2) * stats.sem(gaps)
    low, high = (f"{gaps.mean() + sign * half:+.1f}".replace("-", "−") for sign in (-1, 1))
    told = "significant" if high.startswith("−") else "not significant"
    assert f"The difference is {told}: its 95\u00a0% interval from 3 pairs of seeds is {low} to {high} rounds." in text


WORKED = {half: make_rows(ramp(half)) for half in (4, 5, 8, 9)}
FLAT = [{"round": r, "reward": 0.25} for r in range(1, 13)]
VERDICTS = {  # runs of a label and a seed, and what is told of them
    "too few pairs are said once": (
        {("Band-KL 0.05", 0): WORKED[4], ("GRPO", 0): WORKED[9], ("wide", 0): WORKED[5]},
        ["Band-KL 0.05: half of the completions work at round 4", "wide: half of the completions work at round 5",
         "Too few pairs of seeds (1) to tell Band-KL 0.05 and wide from GRPO."],
    ),
    "pairs that are alike": (
        {(label, seed): FLAT for label in ("Band-KL 0.05", "GRPO") for seed in range(6)},
        ["Band-KL 0.05: the reward at the end is 0.250, under GRPO 0.250 (means of 6 pairs); no pair of seeds differs. "
         "The difference is not significant over 6 pairs of seeds (sign test, p = 1)."],
    ),
    "a single method": ({("GRPO", 0): WORKED[5]}, ["GRPO: half of the completions work at round 5."]),
    "two runs of one": (
        {("GRPO", 0): WORKED[5], ("GRPO", 1): WORKED[8]},
        ["GRPO: half of the completions work at round 6.5 (means of 2 runs)."],
    ),
    # What the shorter run did not reach, it might have reached later.
    "other lengths": (
        {("GRPO", 0): make_rows(ramp(99, rounds=6)), ("Band-KL 0.05", 0): WORKED[9]},
        ["Band-KL 0.05: the reward at the end is 0.600, under GRPO 0.008"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("runs", "told"), VERDICTS.values(), ids=VERDICTS)
def test_a_verdict_says_what_the_runs_show(tmp_path, runs, told):
    for (label, seed), rows in runs.items():
        write_run(tmp_path, label, seed, rows)
    sentences = verdicts_of(tmp_path)
    assert [line[: len(text)] for line, text in zip(sentences, told, strict=False)] == told
    assert sum("Too few pairs" in line for line in sentences) <= 1


def test_a_level_reached_from_the_start_is_not_compared(tmp_path):
    """Unless one of the runs comes to it later."""
    grpo, wide = (
        write(tmp_path / f"{label}.jsonl", [trls(step, first) for step in (1, 2, 3)])
        for label, first in (("GRPO", 0.6), ("wide", 0.7))
    )
    assert verdicts_of(grpo, wide)[0].startswith("wide: the reward at the end is 0.700, under GRPO 0.600 (1 run each).")
    write(grpo, [trls(1, 0.2), trls(2, 0.6)])
    assert verdicts_of(grpo, wide)[0].startswith("wide: the reward reaches 0.5 at step 1, under GRPO at step 2 (1 run")


def test_runs_of_logs_are_compared_without_pairs(tmp_path):
    rng, rewards = np.random.default_rng(0), {}
    for label, level in (("GRPO", 0.4), ("wide", 0.6)):
        rewards[label] = [[float(level + 0.02 * rng.normal()) for _ in range(20)] for _ in range(4)]
    given = [f"{label}={tmp_path / label}" for label in rewards]

    def write_runs(scale):
        for label, runs in rewards.items():
            for i, each in enumerate(runs):
                write(tmp_path / label / f"{i}.jsonl", [trls(step, scale * r) for step, r in enumerate(each)])

    write_runs(1.0)
    text, collapse = verdicts_of(*given)
    reached = "reaches 0.5 at step 0.0, under GRPO not within the run (medians of 4 runs each). Nothing can be told"
    assert (reached in text, collapse) == (True, "No collapse was found.")
    write_runs(0.6)
    ends = {m: [np.mean(each[-3:]) * 0.6 for each in runs] for m, runs in rewards.items()}
    found = re.search(r"from 4 and 4 runs is \+(\S+) to \+(\S+)\.$", verdicts_of(*given)[0])
    a, b = (np.var(each, ddof=1) / 4 for each in ends.values())
    df = int((a + b) ** 2 / (a**2 / 3 + b**2 / 3))  # rounded down, as everywhere here
    half, gap = stats.t.ppf(0.975, df) * np.sqrt(a + b), np.mean(ends["wide"]) - np.mean(ends["GRPO"])
    assert [float(limit) for limit in found.groups()] == pytest.approx([gap - half, gap + half], abs=6e-4)
    assert "Too few runs of a method (1)" in verdicts_of(*(f"{m}={tmp_path / m / '0.jsonl'}" for m in rewards))[0]


LOST = [0.6] * 20 + [0.02] * 20


@pytest.mark.parametrize(
    ("reward", "entropy", "finished", "told"),
    [
        (LOST, [1.0] * 20 + [3.0] * 20, False, "Collapsed: No clip in 1 of 1 run."),
        (
            LOST + [0.6] * 20,
            [1.0] * 20 + [3.0] * 20 + [1.0] * 20,
            True,
            "No lasting collapse was found; see the notes.",
        ),
        (LOST, [1.0] * 40, True, "No lasting collapse was found; see the notes."),
        ([0.6] * 40, [1.0] * 40, True, "No collapse was found."),
        ([0.6] * 9, [1.0] * 9, True, "The runs are too short to tell a collapse, which takes 16 points."),
        ([None] * 9, [1.0] * 9, True, "No reward is logged, so nothing can be said of a collapse."),
    ],
    ids=["stopped early", "recovered", "entropy stayed", "held", "short", "no reward"],
)
def test_the_sentence_on_collapse(tmp_path, reward, entropy, finished, told):
    write_state(tmp_path / "GRPO", [trls(1)], most=1, now=1)
    rows = [trls(step, r, entropy=e) for step, (r, e) in enumerate(zip(reward, entropy, strict=True), 1)]
    write_state(tmp_path / "No clip", rows, most=len(rows) if finished else 200, now=len(rows))
    assert verdicts_of(tmp_path / "No clip", *([] if finished else [tmp_path / "GRPO"]))[-1] == told


def test_runs_without_an_end_or_a_reward_are_not_compared(tmp_path):
    write_run(tmp_path / "other", "GRPO", 0, [{"step": 1, "entropy": 1.0}], finished=False)
    assert verdicts_of(tmp_path / "other") == ["No run has finished, so there is nothing to conclude yet."]
    assert "These logs hold no reward" in verdicts_of(write(tmp_path / "log.jsonl", [{"step": 1, "entropy": 1.0}]))[0]


def test_logs_of_one_file_name_are_not_one_method(tmp_path):
    for name in ("a", "b"):
        write_state(tmp_path / name / "out", [trls(1)], most=1, now=1)
    labels = [run.label for run in read_runs([tmp_path / "a" / "out", tmp_path / "b" / "out"])]
    assert labels == [f"out ({tmp_path / name / 'out'})" for name in ("a", "b")]
