"""The verdict of a comparison: the numbers in it against scipy, and when it is given at all."""
# ruff: noqa: RUF001  (minus signs are meant)

from __future__ import annotations

import re

import numpy as np
import pytest
from report_runs import make_rows, ramp, trls, write_lines, write_run, write_state
from scipy import stats

pytest.importorskip("matplotlib")

from bandpo_runs.reports.sections import read_sections
from bandpo_runs.reports.verdicts import verdicts


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
    assert text.startswith("Band-KL 0.05: half of the completions work ")
    assert seen in text
    if isinstance(verdict, float):
        told = "not significant" if verdict > 0.05 else "is significant"
        verdict = f"{told} over {len(band)} pairs of seeds (sign test, p = {verdict:.2g})."
    assert verdict in text


@pytest.mark.parametrize(("band", "grpo"), [((4, 5, 7), (9, 10, 11)), ((4, 9, 10), (9, 4, 8))])
def test_the_interval_is_students_of_the_paired_differences(tmp_path, band, grpo):
    text, _ = compared(tmp_path, band, grpo)
    gaps = np.subtract(band, grpo)
    half = stats.t.ppf(0.975, 2) * stats.sem(gaps)
    low, high = (f"{gaps.mean() + sign * half:+.1f}".replace("-", "−") for sign in (-1, 1))
    told = "significant" if high.startswith("−") else "not significant"
    assert f"The difference is {told}: its 95\u00a0% interval from 3 pairs of seeds is {low} to {high} rounds." in text
    assert ("pairs, one so large would be significant" in text) == (told == "not significant")


def test_too_few_pairs_are_said_once(tmp_path):
    for label, half in (("Band-KL 0.05", 4), ("GRPO", 9), ("wide", 5)):
        write_run(tmp_path, label, 0, make_rows(ramp(half)))
    assert [line.partition(":")[0] for line in verdicts_of(tmp_path)[:-1]] == [
        "Band-KL 0.05", "wide", "Too few pairs of seeds (1) to tell Band-KL 0.05 and wide from GRPO.",
    ]  # fmt: skip


def test_pairs_that_are_alike_do_not_differ(tmp_path):
    for label in ("Band-KL 0.05", "GRPO"):
        for seed in range(6):
            write_run(tmp_path, label, seed, [{"round": r, "reward": 0.25} for r in range(1, 13)])
    text = "no pair of seeds differs. The difference is not significant over 6 pairs of seeds (sign test, p = 1)."
    assert verdicts_of(tmp_path)[0].endswith(text)


def test_a_level_reached_from_the_start_is_not_compared(tmp_path):
    """Unless one of the runs comes to it later."""
    for label, first in (("GRPO", 0.6), ("wide", 0.7)):
        write_lines(tmp_path / f"{label}.jsonl", [trls(step, first) for step in (1, 2, 3)])
    given = [tmp_path / "GRPO.jsonl", tmp_path / "wide.jsonl"]
    assert verdicts_of(*given)[0].startswith("wide: the reward at the end is 0.700, under GRPO 0.600 (1 run each).")
    write_lines(tmp_path / "GRPO.jsonl", [trls(1, 0.2), trls(2, 0.6)])
    assert verdicts_of(*given)[0].startswith("wide: the reward reaches 0.5 at step 1, under GRPO at step 2 (1 run")


def test_runs_of_logs_are_compared_without_pairs(tmp_path):
    rng, rewards = np.random.default_rng(0), {}
    for label, level in (("GRPO", 0.4), ("wide", 0.6)):
        rewards[label] = [[float(level + 0.02 * rng.normal()) for _ in range(20)] for _ in range(4)]
    given = [f"{label}={tmp_path / label}" for label in rewards]

    def write(scale):
        for label, runs in rewards.items():
            for i, each in enumerate(runs):
                write_lines(tmp_path / label / f"{i}.jsonl", [trls(step, scale * r) for step, r in enumerate(each)])

    write(1.0)
    text, collapse = verdicts_of(*given)
    assert (
        "reaches 0.5 at step 0.0, under GRPO not within the run (medians of 4 runs each). Nothing can be told" in text
    )
    assert collapse == "No collapse was found."
    write(0.6)
    ends = {m: [np.mean(each[-3:]) * 0.6 for each in runs] for m, runs in rewards.items()}
    found = re.search(r"from 4 and 4 runs is \+(\S+) to \+(\S+)\.$", verdicts_of(*given)[0])
    a, b = (np.var(each, ddof=1) / 4 for each in ends.values())
    df = int((a + b) ** 2 / (a**2 / 3 + b**2 / 3))  # rounded down, as everywhere here
    half, gap = stats.t.ppf(0.975, df) * np.sqrt(a + b), np.mean(ends["wide"]) - np.mean(ends["GRPO"])
    assert [float(limit) for limit in found.groups()] == pytest.approx([gap - half, gap + half], abs=6e-4)
    assert "Too few runs of a method (1)" in verdicts_of(*(f"{m}={tmp_path / m / '0.jsonl'}" for m in rewards))[0]


def test_a_single_method_has_no_verdict(tmp_path):
    write_run(tmp_path, "GRPO", 0, make_rows(ramp(5)))
    assert verdicts_of(tmp_path)[0] == "GRPO: half of the completions work at round 5."
    write_run(tmp_path, "GRPO", 1, make_rows(ramp(8)))
    assert verdicts_of(tmp_path)[0] == "GRPO: half of the completions work at round 6.5 (means of 2 runs)."


def test_runs_of_other_lengths_are_compared_by_their_end(tmp_path):
    """What the shorter run did not reach, it might have reached later."""
    write_run(tmp_path, "GRPO", 0, make_rows(ramp(99, rounds=6)))
    write_run(tmp_path, "Band-KL 0.05", 0, make_rows(ramp(9)))
    assert verdicts_of(tmp_path)[0].startswith("Band-KL 0.05: the reward at the end is 0.600, under GRPO 0.008")


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
    log = write_lines(tmp_path / "log.jsonl", [{"step": 1, "entropy": 1.0}])
    assert verdicts_of(log)[0].startswith("These logs hold no reward, so nothing is said")
