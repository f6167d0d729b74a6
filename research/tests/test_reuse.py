"""The contests over the number of uses of each answer, and on what share of tokens a rule acts."""

import csv
from pathlib import Path

import pytest

from bandpo import clipping
from bandpo.clipping import _WITH_ONE_EPOCH
from bandpo.trust_regions.rules import Clip
from research.bench import read_contest
from research.measurements import reuse_rates
from research.measurements.reuse_rates import CSV, shares
from research.report.rows import Pair, all_rows, judged
from research.worlds import Learner, scene

FOLDER = Path(__file__).parents[1] / "contests"
ONCE = read_contest(FOLDER / "reuse_once.yaml")


def test_each_judged_rule_of_these_contests_has_its_share_of_tokens():
    every = {(*one.place, one.told["family"], one.setting) for one in all_rows() if one.place[0].startswith("reuse")}
    assert {tuple(row[name] for name in reuse_rates.COLUMNS[:5]) for row in reuse_rates.read_rows(CSV)} == every


def test_the_share_of_tokens_a_rule_acts_on_is_of_all_steps_and_both_sides():
    small = scene({"base": "rare and noisy", "rounds": 2, "epochs": 2, "p_work": 0.2})
    learners = [Learner(Clip(*sides), 0.05) for sides in ((0.0, 1e9), (1.0, 0.0), (0.0, 0.0))]
    (low, _), (high, _), (whole, cut) = (shares(small, each, 3) for each in learners)
    assert whole == pytest.approx(75)  # all tokens have moved, but in the first of four steps on a round
    assert min(low, high) > 0
    assert 0 < cut < 75
    assert shares(small, Learner("no-clip", 0.05), 3) == (0, 0)


def test_the_doctor_tells_of_the_shares_that_were_measured():
    at = {"contest": "reuse once", "world": "calibrated, minibatches 4, epochs 1", "family": "GRPO .2/.2"}
    (once,) = (row for row in reuse_rates.read_rows(CSV) if at.items() <= row.items())
    (sentence, ours), (theirs_said, theirs) = _WITH_ONE_EPOCH[False], _WITH_ONE_EPOCH[True]
    assert (round(float(once["percent"]), 1), round(float(once["cut"]), 2)) == (ours, theirs)
    assert sentence.startswith(f"{ours} % of tokens were outside")
    assert theirs_said.startswith(f"{theirs} % of tokens were clipped")
    page = (FOLDER.parents[1] / "research" / "pages" / "worlds.md").read_text(encoding="utf-8")
    assert f"{ours} % outside their bounds, {theirs} % clipped" in page


def test_what_the_doctor_and_the_pages_say_of_rates_and_rules_is_that_of_rows():
    root = FOLDER.parents[1]
    with (root / "research" / "measurements" / "learning_rate.csv").open(newline="") as file:
        _, half, twice, *as_public = csv.DictReader(file)
    assert [row["rule"] for row in as_public] == list(reuse_rates.PUBLISHED)
    assert all(-0.02 < float(row["low"]) < 0 < float(row["high"]) for row in as_public)
    grpo, higher, band = (float(row["percent"]) for row in as_public)
    assert 0.12 <= grpo <= 0.15
    assert round(higher, 2) == 0.07
    assert band == 0
    half, twice = (f"{-float(row['difference']):.3f}" for row in (half, twice))
    doctor_text = (root / "src" / "bandpo" / "clipping.py").read_text()
    assert f"half the best one cost {half}." in doctor_text
    assert f"half the best learning rate cost {half} (small world)" in (root / "README.md").read_text()
    assert f"at half the best learning rate scored {half} lower" in (root / "docs" / "choose.md").read_text()
    assert twice == "0.060"
    rows = judged()
    more = {place for place, _ in rows if place[0] in ("reuse more", "reuse eight") and place[2] == "none"}
    clip, band = (
        sorted(Pair(rows[place, rule], rows[place, "no clip"]).difference for place in more)
        for rule in ("GRPO .2/.2", "Band-KL .05")
    )
    assert len(more) == 5
    assert f"GRPO's clip scored {-clip[-1].value:.3f} to {-clip[0].value:.3f} lower than no clip" in clipping.MORE
    assert f"Band-KL 0.05 up to {band[-1].value:.3f} higher" in clipping.MORE
    assert band[0].low < 0 < band[0].high
    worlds = {place[1] for place, _ in rows if place[0] == "reuse once"}
    once = {
        (place, family): one
        for (place, family), one in rows.items()
        if place[0] in ("reuse once", "reuse relaxed") and place[1] in worlds and family != "no clip"
    }
    ends = [Pair(one, rows[place, "no clip"]).difference for (place, _), one in once.items()]
    assert max(abs(end) for each in ends for end in each) < 0.02
    assert {len({family for place, family in once if place[1] == world}) for world in worlds} == {15}
    assert "15 of 15 tuned rules scored within 0.02 of no clip" in clipping.ONCE
    assert "15 of 15 tuned rules scored within 0.02" in (root / "README.md").read_text(encoding="utf-8")
    for page in ("docs/choose.md", "docs/report/index.md"):
        assert "15 of 15 tuned rules scored within 0.02" in (root / page).read_text(encoding="utf-8")
