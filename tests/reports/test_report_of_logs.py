"""The report of logs that other trainers wrote, and what it says in words."""
# ruff: noqa: RUF001  (minus signs are meant)

from __future__ import annotations

import json
import re
from html import unescape

import numpy as np
import pytest
from report_runs import make_rows, ramp, table, write_run
from scipy import stats

pytest.importorskip("matplotlib")

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.reports.charts import thinned
from bandpo_runs.reports.logs import Curves, by_step
from bandpo_runs.reports.page import write_report
from bandpo_runs.reports.reading import read_runs
from bandpo_runs.reports.runs import PANELS, read_sections
from bandpo_runs.reports.words import in_short


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_state(folder, rows, *, most=None, now=None):
    """What TRL leaves in its output_dir."""
    file = folder / f"checkpoint-{now}" / "trainer_state.json"
    file.parent.mkdir(parents=True)
    state = {"log_history": rows, "global_step": now} | ({} if most is None else {"max_steps": most})
    file.write_text(json.dumps(state))
    return folder


def trls(step, reward=0.5, **more):
    """A row of TRL's GRPOTrainer."""
    row = {"step": step, "epoch": step / 100, "reward": reward, "entropy": 1.0, "reward_std": 0.1, "kl": 0.01}
    return row | {"clip_ratio/region_mean": 0.02, "clip_ratio/high_mean": 0.01, "clip_ratio/low_mean": 0.01} | more


def verls(step, score=0.25, high=6.0, tail=2.0):
    data = {"critic/score/mean": score, "actor/entropy": 0.7, "actor/pg_clipfrac": 0.017}
    data |= {"actor/bandpo/tokens": 400.0, "actor/bandpo/clip/count": high + 2, "actor/bandpo/clip/high_count": high}
    return {"step": step, "data": data | {"actor/bandpo/clip/tail_high_count": tail}}


@pytest.fixture
def no_drawings(monkeypatch):
    monkeypatch.setattr("bandpo_runs.reports.page.svg", lambda draw, name, *size, **options: "")


def page_of(tmp_path, *given, **options):
    return unescape(write_report([*map(str, given)], tmp_path / "out.html", **options).read_text(encoding="utf-8"))


PANEL = {panel.key: panel for panel in PANELS}


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
    (run,) = read_runs([folder / "metrics.jsonl", folder])
    assert (run.folder, run.seed) == (folder, 2)


@pytest.mark.parametrize(
    ("most", "now", "finished", "note"),
    [(40, 40, True, ""), (40, 30, False, ""), (None, 30, True, "it does not say whether the run is finished")],
)
def test_a_state_says_whether_its_run_is_finished(tmp_path, no_drawings, most, now, finished, note):
    """The last row need not be that of the last step."""
    write_state(tmp_path / "out", [trls(step) for step in (9, 18, 27)], most=most, now=now)
    (run,) = read_runs([tmp_path / "out"])
    assert run.finished == finished
    page = page_of(tmp_path, tmp_path / "out")
    assert ("Unfinished: out" in page) == (not finished)
    assert ("no final numbers yet" in page) == (not finished)
    assert (f"{tmp_path / 'out'}): {note}." in page) == bool(note)


def test_a_run_that_broke_is_said_to_have(tmp_path, no_drawings):
    log = write_lines(tmp_path / "run.jsonl", [trls(1, loss=0.1), trls(2, loss=float("nan"))])
    said = "numbers are not finite: loss in 1 row, first at step 2"
    assert said in page_of(tmp_path, log)
    rows = [{**row, "loss": None, "step": row["round"]} for row in make_rows(ramp(3))]
    folder = write_run(tmp_path / "run", rows=rows)
    assert f"numbers are not finite: loss in {len(rows)} rows, first at step 1." in page_of(tmp_path, folder)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(
        json.dumps({**facts, "finished": False, "stopped": "step 9: weights are not finite"})
    )
    page = page_of(tmp_path, folder)
    assert "Unfinished" in page
    assert "(step 9: weights are not finite)" in page


def test_a_log_that_went_back_or_is_damaged_is_said(tmp_path, no_drawings):
    log = write_lines(tmp_path / "run.jsonl", [trls(1), trls(2, 0.1), trls(2, 0.9)])
    with log.open("a") as file:
        file.write('{"step": 3, "rew\n')
    (run,) = read_runs([log])
    assert run.mean("reward").tolist() == [0.5, 0.9]
    page = page_of(tmp_path, log)
    assert "1 of its lines are left out, which are damaged or have no step" in page
    assert "it went back (how often: 1), and what was written last is shown" in page


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.jsonl", "", "no row of a log is in it"),
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


def test_what_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: no run found; .* or a log of TRL or verl"):
        read_runs([f"mine={tmp_path / 'nowhere'}"])


# ------------------------------------------------------------------------------------------------------------- the page
def test_a_page_of_logs_says_what_it_does_not_know_and_what_would_log_it(tmp_path, no_drawings):
    plain = write_state(tmp_path / "trl", [trls(step) for step in (1, 2)], most=2, now=2)
    page = page_of(tmp_path, f"TRL={plain}")
    assert "Not logged by these runs: Overall clip rate (Fig. 4a) and Tail share of the clips (Fig. 4b)." in page
    assert "To have Overall clip rate (Fig. 4a) and Tail share of the clips (Fig. 4b) next time: under TRL Band" in page
    assert "A log does not say the rule of its run, so that no interval is shown of TRL." in page
    assert f"Read from logs, which hold no settings, versions or commands: TRL from {plain}." in page
    for absent in ("Settings that differ", "To repeat the runs", "with the same seed", "trained with seed", "None"):
        assert absent not in page
    assert "<h3>Cut</h3>" in page, "the trainer's own clip rate, where the paper's is not there"
    assert table(page, "Final numbers")["Reward at the end"]["TRL"] == "0.500"
    verl = write_lines(tmp_path / "verl.jsonl", [verls(step) for step in (1, 2)])
    page = page_of(tmp_path, verl)
    assert "Not logged" not in page
    assert "next time" not in page
    assert "<h3>Cut</h3>" not in page
    page = page_of(tmp_path, f"TRL={plain}", verl)
    assert "Overall clip rate (Fig. 4a): not in the log of TRL, or without a value there." in page
    assert "next time: under TRL BandPOTrainer" in page
    assert "<h3>Cut</h3>" in page
    assert "no twin and no paired difference" in page


def test_a_log_and_a_run_folder_stand_on_one_page(tmp_path, no_drawings):
    write_run(tmp_path / "runs", "GRPO", 0, make_rows(ramp(3)), {"lr": 1}, scene=None, learning_rate=None)
    write_run(tmp_path / "runs", "Band-KL 0.05", 0, make_rows(ramp(3)), {"lr": 2}, scene=None, learning_rate=None)
    log = write_lines(tmp_path / "log.jsonl", [{"round": r, "reward": 0.5} for r in range(1, 13)])
    page = page_of(tmp_path, tmp_path / "runs", f"theirs={log}", png=tmp_path / "out.png")
    assert table(page, "Settings that differ")["lr"] == {"GRPO": "1", "Band-KL 0.05": "2", "theirs": "–"}
    assert set(table(page, "Minus GRPO")["Reward at the end"]) == {"Band-KL 0.05"}
    assert "no interval is shown of theirs." in page
    assert (tmp_path / "out.png").stat().st_size > 1000


# ---------------------------------------------------------------------------------------------------------------- words
def words(tmp_path, band, grpo, **options):
    """In short, of runs in which half of the completions work from these rounds on, seed by seed."""
    for label, halves in (("Band-KL 0.05", band), ("GRPO", grpo)):
        for seed, half in enumerate(halves):
            write_run(tmp_path / "runs", label, seed, make_rows(ramp(half)))
    (section,) = read_sections([tmp_path / "runs"], **options)
    return in_short(section)


def test_one_pair_says_what_was_seen_and_draws_no_verdict(tmp_path):
    assert words(tmp_path, [4], [9]) == [
        "Band-KL 0.05: half of the completions work at round 4, with GRPO at round 9; sooner in the one pair of seeds. "
        "No difference can be told from 1 pair of seeds: luck alone could do that.",
        "The runs are too short to tell a collapse, which takes 16 points.",
    ]


def test_two_pairs_are_counted_and_are_too_few(tmp_path):
    (text, _) = words(tmp_path, [4, 5], [9, 10])
    assert text.startswith(
        "Band-KL 0.05: half of the completions work at round 4.5, with GRPO at round 9.5 (means of 2 pairs); sooner in "
        "2 of 2 pairs of seeds. No difference can be told from 2 pairs"
    )


@pytest.mark.parametrize(("band", "grpo"), [((4, 5, 7), (9, 10, 11)), ((4, 9, 10), (9, 4, 8))])
def test_the_interval_is_students_of_the_paired_differences(tmp_path, band, grpo):
    (text, _) = words(tmp_path, band, grpo)
    gaps = np.subtract(band, grpo)
    half = stats.t.ppf(0.975, 2) * stats.sem(gaps)
    low, high = (f"{gaps.mean() + sign * half:+.1f}".replace("-", "−") for sign in (-1, 1))
    if high.startswith("−"):
        assert text.endswith(
            f"The 95\u00a0% interval of the difference, from 3 pairs of seeds, is {low} to {high} rounds."
        )
        assert "sooner in 3 of 3 pairs" in text
    else:
        assert text.endswith(
            f"No difference can be told from 3 pairs of seeds: its 95\u00a0% interval, {low} to {high} rounds, holds 0."
        )
        assert "later in 2 of 3 pairs" in text


@pytest.mark.parametrize(("n", "p"), [(5, 0.0625), (6, 0.03125)])
def test_where_only_limits_are_known_signs_are_counted(tmp_path, n, p):
    """GRPO gets there in no run; two-sided binomial test."""
    (text, _) = words(tmp_path, [4, 5, 6, 7, 8, 9][:n], [99] * n)
    assert "with GRPO not by round 12" in text
    assert f"sooner in {n} of {n} pairs of seeds" in text
    assert f"p = {p:.2g}" in text
    assert ("No difference can be told" in text) == (p > 0.05)


def test_a_pair_of_which_nothing_is_known_speaks_against_a_difference(tmp_path):
    (text, _) = words(tmp_path, [4, 5, 6, 7, 8, 9, 99], [99] * 7)
    assert "sooner in 6 of 7 pairs of seeds" in text
    assert "No difference can be told from 7 pairs of seeds (sign test, p = 0.12)." in text


def test_pairs_that_all_miss_the_level_are_no_evidence(tmp_path):
    write_run(tmp_path / "runs", "A", 0, make_rows(ramp(4)))
    text = words(tmp_path, [99] * 6, [99] * 6)[1]
    assert text.startswith("Band-KL 0.05: ")
    assert "no pair of seeds shows which comes first. No difference can be told from 6 pairs of seeds" in text
    assert text.endswith("(sign test, p = 1).")


def test_pairs_that_are_alike_are_no_evidence(tmp_path):
    for label in ("Band-KL 0.05", "GRPO"):
        for seed in range(6):
            rows = [{"round": r, "reward": 0.25} for r in range(1, 13)]
            write_run(tmp_path / "runs", label, seed, rows)
    (section,) = read_sections([tmp_path / "runs"])
    text = in_short(section)[0]
    assert "no pair of seeds differs" in text
    assert text.endswith("No difference can be told from 6 pairs of seeds (sign test, p = 1).")


def test_both_sides_are_means_or_both_are_medians(tmp_path):
    (text, _) = words(tmp_path, [2, 3, 7], [8, 9, 99])
    assert "work at round 3.0, with GRPO at round 9.0 (medians of 3 pairs)" in text
    (text, _) = words(tmp_path / "other", [8, 9, 99], [2, 3, 7])
    assert "work at round 9.0, with GRPO at round 3.0 (medians of 3 pairs)" in text


def test_a_level_that_is_there_from_the_start_tells_nothing(tmp_path):
    """Where every run has it; where one of them comes to it later, that is told."""
    for label, first in (("GRPO", 0.6), ("wide", 0.7)):
        write_lines(tmp_path / f"{label}.jsonl", [trls(step, first) for step in (1, 2, 3)])
    given = [tmp_path / "GRPO.jsonl", tmp_path / "wide.jsonl"]
    (section,) = read_sections(given)
    assert in_short(section)[0].startswith("wide: the reward at the end is 0.700, with GRPO 0.600 (1 run each).")
    write_lines(tmp_path / "GRPO.jsonl", [trls(1, 0.2), trls(2, 0.6)])
    (section,) = read_sections(given)
    assert in_short(section)[0].startswith("wide: the reward reaches 0.5 at step 1, with GRPO at step 2 (1 run each).")


def test_runs_of_logs_are_told_apart_without_pairs(tmp_path):
    rng, rewards = np.random.default_rng(0), {}
    for label, level in (("GRPO", 0.4), ("wide", 0.6)):
        rewards[label] = [[float(level + 0.02 * rng.normal()) for _ in range(20)] for _ in range(4)]
        for i, each in enumerate(rewards[label]):
            write_lines(tmp_path / label / f"{i}.jsonl", [trls(step, r) for step, r in enumerate(each)])
    given = [f"{label}={tmp_path / label}" for label in rewards]
    (section,) = read_sections(given)
    text, collapse = in_short(section)
    starts = {m: [next((i for i, r in enumerate(each) if r >= 0.5), None) for each in rewards[m]] for m in rewards}
    assert starts["wide"] == [0, 0, 0, 0]
    assert None in starts["GRPO"], "so that limits are all that is known"
    assert text == (
        "wide: the reward reaches 0.5 at step 0.0, with GRPO not by step 19 (medians of 4 runs each). "
        "No difference can be told: for some of these runs only limits are known, or they do not vary."
    )
    assert collapse == "No collapse is found in these runs."
    low = {m: [[r * 0.6 for r in each] for each in rewards[m]] for m in rewards}
    for label, runs in low.items():
        for i, each in enumerate(runs):
            write_lines(tmp_path / label / f"{i}.jsonl", [trls(step, r) for step, r in enumerate(each)])
    (section,) = read_sections(given)
    ends = {m: [np.mean(each[-3:]) for each in runs] for m, runs in low.items()}
    welch = stats.ttest_ind(ends["wide"], ends["GRPO"], equal_var=False)
    text = in_short(section)[0]
    found = re.search(r"from 4 and 4 runs, is \+(\S+) to \+(\S+)\.$", text)
    a, b = (np.var(each, ddof=1) / 4 for each in ends.values())
    df = int((a + b) ** 2 / (a**2 / 3 + b**2 / 3))  # rounded down, as everywhere here
    half = stats.t.ppf(0.975, df) * np.sqrt(a + b)
    gap = np.mean(ends["wide"]) - np.mean(ends["GRPO"])
    assert [float(limit) for limit in found.groups()] == pytest.approx([gap - half, gap + half], abs=6e-4)
    assert welch.pvalue < 0.05
    (section,) = read_sections([f"{m}={tmp_path / m / '0.jsonl'}" for m in rewards])
    assert in_short(section)[0].endswith("No difference can be told from 1 run of a method: luck alone could do that.")


def test_many_comparisons_are_said_to_be_many(tmp_path):
    for i in range(6):
        for seed in range(3):
            write_run(tmp_path / "runs", f"{i or 'GRPO'}", seed, make_rows(ramp(9 - i + seed * (i % 2))))
    (section,) = read_sections([tmp_path / "runs"])
    assert "Each is compared on its own: of twenty methods that change nothing, one seems to differ." in in_short(
        section
    )
    (section,) = read_sections([tmp_path / "runs" / f"{name}-0-{s}" for name in ("GRPO", 1, 2) for s in range(3)])
    assert len(in_short(section)) == 3, "two, and one on collapse"


def test_methods_of_which_the_same_follows_share_the_sentence(tmp_path):
    for label in ("GRPO", "A", "B"):
        write_run(tmp_path / "runs", label, 0, make_rows(ramp(5)))
    (section,) = read_sections([tmp_path / "runs"])
    a, _, both, _ = in_short(section)
    assert a.endswith("no pair of seeds shows which comes first.")
    assert both == "Of each of them: no difference can be told from 1 pair of seeds: luck alone could do that."


def test_one_method_alone_is_compared_with_nothing(tmp_path):
    write_run(tmp_path / "runs", "GRPO", 0, make_rows(ramp(4)))
    (section,) = read_sections([tmp_path / "runs"])
    assert in_short(section)[0] == "GRPO: half of the completions work at round 4."
    write_run(tmp_path / "runs", "GRPO", 1, make_rows(ramp(7)))
    (section,) = read_sections([tmp_path / "runs"])
    assert in_short(section)[0] == "GRPO: half of the completions work at round 5.5 (means of 2 runs)."


@pytest.mark.parametrize(
    ("reward", "entropy", "finished", "said"),
    [
        ([0.6] * 20 + [0.02] * 20, [1.0] * 20 + [3.0] * 20, False, "Collapsed: No clip in 1 of 1 run."),
        (
            [0.6] * 20 + [0.02] * 20 + [0.6] * 20,
            [1.0] * 20 + [3.0] * 20 + [1.0] * 20,
            True,
            "No lasting collapse is found; the notes say what happened.",
        ),
        (
            [0.6] * 20 + [0.02] * 20,
            [1.0] * 40,
            True,
            "No lasting collapse is found; the notes say what happened.",
        ),
        ([0.6] * 40, [1.0] * 40, True, "No collapse is found in these runs."),
    ],
    ids=["stopped early", "recovered", "entropy stayed", "held"],
)
def test_what_is_said_of_a_collapse_is_what_the_notes_say(tmp_path, reward, entropy, finished, said):
    write_state(tmp_path / "GRPO", [trls(step) for step in range(1, 41)], most=40, now=40)
    rows = [trls(step, r, entropy=e) for step, (r, e) in enumerate(zip(reward, entropy, strict=True), 1)]
    write_state(tmp_path / "No clip", rows, most=len(rows) if finished else 200, now=len(rows))
    (section,) = read_sections([tmp_path / "GRPO", tmp_path / "No clip"])
    assert in_short(section)[-1] == said


def test_rows_of_a_round_are_summed_and_what_is_not_known_is_left_out():
    rows = [
        {"step": 1, "round": 1, "a": 0.1, "v/x/m": 1.0}, {"step": 2, "round": 1, "a": None, "v/y/m": 5.0},
        {"step": 3, "round": 2}, {"step": 5, "round": 4, "a": 0.2}, {"step": 4, "round": 4, "a": 0.4},
    ]  # fmt: skip
    axis, x, ordered = by_step(rows[::-1], "log")
    run = Curves(axis=axis, x=x, rows=ordered)
    assert (axis, x.tolist()) == ("round", [1, 2, 4])
    np.testing.assert_allclose(run.total("a"), [0.1, np.nan, 0.6])
    np.testing.assert_allclose(run.mean("a"), [0.1, np.nan, 0.3])
    np.testing.assert_allclose(run.mean("v/*/m"), [3, np.nan, np.nan])
    assert np.isnan(run.total("none")).all()
    assert not len(Curves(axis="step", x=np.array([]), rows=[]).mean("v/*/m"))


def test_a_long_curve_is_drawn_from_fewer_points_and_keeps_its_extremes():
    x = np.arange(100_000.0)
    y = np.sin(x / 3e4) + np.random.default_rng(0).normal(0, 0.01, len(x))
    y[[50_001, 70_003]] = 9, -9
    shown, heights = thinned(x, y)
    assert len(shown) < 8000
    assert (np.diff(shown) > 0).all()
    assert (heights == y[shown.astype(int)]).all()
    columns, kept = ((at * (1600 / 99_999)).astype(int).clip(max=1599) for at in (x, shown))
    for least_or_most in np.minimum, np.maximum:
        of_all, of_some = (
            least_or_most.reduceat(values, np.searchsorted(which, np.arange(1600)))
            for values, which in ((y, columns), (heights, kept))
        )
        assert (of_all == of_some).all()
    assert (shown[0], shown[-1]) == (0, 99_999)
    for some in x[:6400], np.r_[x[:6399], 1e9]:
        assert thinned(some, y[: len(some)])[0] is some


def test_collapse_and_the_lack_of_all_are_said(tmp_path, no_drawings):
    held, lost = [0.6] * 40, [0.6] * 20 + [0.02] * 20
    for seed in (0, 1):
        write_run(tmp_path / "runs", "GRPO", seed, make_rows(held))
        write_run(tmp_path / "runs", "No clip", seed, make_rows(lost if seed else held))
    page = page_of(tmp_path, tmp_path / "runs")
    assert "<li>Collapsed: No clip in 1 of 2 runs.</li>" in page
    assert page.index("Collapsed: No clip") < page.index("A trust region is")
    write_run(tmp_path / "other", "GRPO", 0, [{"step": 1, "entropy": 1.0}], finished=False)
    (section,) = read_sections([tmp_path / "other"])
    assert in_short(section) == ["No run has finished, so there is nothing to conclude yet."]
    log = write_lines(tmp_path / "log.jsonl", [{"step": 1, "entropy": 1.0}])
    (section,) = read_sections([log])
    assert in_short(section)[0] == "No reward is in these logs, so there is no word on who learned more."
    assert in_short(section)[-1] == "No reward is logged, so nothing can be said of a collapse."
