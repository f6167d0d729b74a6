"""The report: numbers against values computed by hand, censoring, refusals, and the page itself in a browser."""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from regions import Wider
from report_runs import BAND, CHROMIUM, CLIP, browse, make_rows, ramp, table, with_script, write_run

from bandpo import BySign, Clip
from bandpo.errors import UserError
from bandpo.losses.nodes import methods
from bandpo_runs.reports.charts import draw, method_styles
from bandpo_runs.reports.page import write_report
from bandpo_runs.reports.runs import (
    PANELS,
    make_sections,
    mean_curve,
    ratio_bounds,
    read_runs,
    show,
    summarize,
)


def make_page(tmp_path: Path, **options) -> str:
    return write_report([tmp_path / "runs"], tmp_path / "report.html", **options).read_text(encoding="utf-8")


@pytest.fixture
def no_drawings(monkeypatch):
    """For tests of the words and numbers on a page: its drawings take nearly all of the time."""
    monkeypatch.setattr("bandpo_runs.reports.page.svg", lambda draw, name, *size, **options: "")


@pytest.fixture
def three_seeds(tmp_path: Path) -> Path:
    for label, halves in (("Band-KL 0.05", (4, 5, 7)), ("GRPO", (9, 10, 11))):
        for seed, half in enumerate(halves):
            write_run(tmp_path / "runs", label, seed, make_rows(ramp(half)))
    return tmp_path


def plus_minus(values, digits, sign=""):
    return f"{statistics.mean(values):{sign}.{digits}f} ± {statistics.stdev(values):.{digits}f}".replace("-", "−")


# ---- numbers


@pytest.mark.usefixtures("no_drawings")
@pytest.mark.parametrize("each", methods(), ids=lambda each: each.name)
def test_every_methods_bounds_are_drawn_or_said_to_depend_on_more(each):
    found = ratio_bounds(each.objective.trust_region, np.array([0.01, 0.5]))
    asks = each.objective.trust_region.all_required().keys() - {"advantages"}  # drawn for both signs
    assert (found is None) == bool(asks)


def test_a_run_whose_bounds_depend_on_more_than_p_is_in_the_report_without_a_line(tmp_path, no_drawings):
    for label, rule in (("GRPO", {"type": "clip"}), ("Wider", Wider().to_config())):
        for seed in range(2):
            write_run(tmp_path / "runs", label, seed, make_rows(ramp(6)), config={"trust_region": rule})
    page = make_page(tmp_path)
    assert "Wider: bounds depend on more than the old probability, and so no line." in page


def test_final_numbers_are_those_computed_by_hand(three_seeds):
    rows = table(make_page(three_seeds), "Final numbers, mean ± standard deviation")
    assert list(rows["Reward over the run"])[:2] == ["GRPO", "Band-KL 0.05"], "the baseline comes first"
    for label, halves in (("Band-KL 0.05", (4, 5, 7)), ("GRPO", (9, 10, 11))):
        rewards = [[0.8 * p for p in ramp(half)] for half in halves]
        clip = 100 * sum(10 + i for i in range(12)) / sum(1000 * (i + 1) for i in range(12))
        early = [100 * 5 * (half - 1) / sum(10 + i for i in range(half - 1)) for half in halves]
        cut = 100 * sum(4 + i for i in range(12)) / (12 * 50)
        expected = {
            "First round in which half work": plus_minus(halves, 1),
            "First round with reward 0.5": plus_minus(halves, 1),
            "Reward over the run": plus_minus([statistics.mean(r) for r in rewards], 3),
            "Reward at the end": plus_minus([statistics.mean(r[-3:]) for r in rewards], 3),
            "Entropy at the end": "0.25 ± 0.00",
            "Entropy at reward 0.5": "0.25 ± 0.00",
            "Clip rate, %": f"{clip:.2f} ± 0.00",
            "Early tail share, %": plus_minus(early, 1),
            "Good tail cut, %": f"{cut:.1f} ± 0.0",
        }
        assert {name: row[label] for name, row in rows.items()} == expected


@pytest.mark.usefixtures("no_drawings")
def test_differences_are_paired_by_seed(three_seeds):
    rows = table(make_page(three_seeds), "Minus GRPO")
    cell = rows["First round in which half work"]["Band-KL 0.05"]
    assert cell == f"{plus_minus([4 - 9, 5 - 10, 7 - 11], 1, '+')} | −5 −5 −4"
    gaps = [statistics.mean(0.8 * p - 0.8 * q for p, q in zip(ramp(a), ramp(b), strict=True)) for a, b in
            ((4, 9), (5, 10), (7, 11))]  # fmt: skip
    assert rows["Reward over the run"]["Band-KL 0.05"].startswith(plus_minus(gaps, 3, "+"))
    assert rows["Reward over the run"]["Band-KL 0.05"].endswith(" ".join(f"{gap:+.3f}" for gap in gaps))


@pytest.mark.usefixtures("no_drawings")
def test_only_seeds_of_both_methods_are_paired(tmp_path):
    for label, seeds in (("GRPO", (0, 1, 2, 3)), ("Band-KL 0.05", (2, 3, 4))):
        for seed in seeds:
            write_run(tmp_path / "runs", label, seed, make_rows(ramp(4 + seed)))
    page = make_page(tmp_path)
    assert table(page, "Minus GRPO")["First round in which half work"]["Band-KL 0.05"] == "+0.0 | +0 +0"
    assert "seeds 2 3<" in page
    assert "Band-KL 0.05: spread not estimated (fewer than 3 pairs)." in page
    page = make_page(tmp_path, baseline="Band-KL 0.05")
    assert table(page, "Minus Band-KL 0.05")["First round in which half work"]["GRPO"] == "+0.0 | +0 +0"
    write_run(tmp_path / "runs", "Mine", 2, make_rows(ramp(9)))
    cell = table(make_page(tmp_path), "Minus GRPO")["First round in which half work"]["Mine"]
    assert cell == "+3.0", "one pair is not told twice"


@pytest.mark.usefixtures("no_drawings")
@pytest.mark.parametrize(
    ("halves", "expected"),
    [
        ((4, 5, 6, 7, 8), "6.0 ± 1.6"),
        ((4, 99, 6, 7, 99), "median 7.0 | (2 of 5 not reached)"),
        ((4, 99, 99, 99, 6), "not reached | (3 of 5 not reached)"),
    ],
)
def test_a_censored_value_is_never_averaged(tmp_path, halves, expected):
    for seed, half in enumerate(halves):
        write_run(tmp_path / "runs", "GRPO", seed, make_rows(ramp(half)))
    page = make_page(tmp_path)
    assert table(page, "Final numbers")["First round in which half work"]["GRPO"] == expected
    assert ("Not reached: " in page) == (99 in halves)


@pytest.mark.usefixtures("no_drawings")
def test_nothing_is_said_of_rounds_without_the_metric(tmp_path):
    rows = make_rows(ramp(99), reward=[0.1] * 9 + [None] * 3)
    write_run(tmp_path / "runs", "GRPO", 0, rows)
    numbers = table(make_page(tmp_path), "Final numbers")
    assert numbers["First round with reward 0.5"]["GRPO"] == "not reached | (1 of 1 not reached)"


@pytest.mark.usefixtures("no_drawings")
def test_differences_to_a_censored_baseline_have_a_sign(tmp_path):
    for seed, (band, grpo) in enumerate([(4, 99), (5, 99), (6, 10), (99, 99), (99, 11)]):
        write_run(tmp_path / "runs", "Band-KL 0.05", seed, make_rows(ramp(band)))
        write_run(tmp_path / "runs", "GRPO", seed, make_rows(ramp(grpo)))
    cell = table(make_page(tmp_path), "Minus GRPO")["First round in which half work"]["Band-KL 0.05"]
    assert cell == "– | (3 of 4 pairs not reached) (defined in 4 of 5) | < 0 < 0 −4 – > 0"


def test_summaries_of_what_is_undefined():
    nan = math.nan
    assert summarize([nan, nan, nan], 1) == "–"
    assert summarize([nan, 1.0, 2.0, 3.0], 1) == "2.0 ± 1.0 (defined in 3 of 4)"
    assert summarize([nan, 1.0, 2.0], 1) == "1.5 (defined in 2 of 3)", "two values have no spread"
    assert show(12.0 - math.inf, 0, "+") == "<\xa00"


@pytest.mark.usefixtures("no_drawings")
def test_fewer_than_three_seeds_have_no_spread(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs", "GRPO", seed, make_rows(ramp(4 + seed)))
        write_run(tmp_path / "runs", "Band-KL 0.05", seed, make_rows(ramp(2)))
    page = make_page(tmp_path)
    assert "±" not in page
    assert "GRPO and Band-KL 0.05: spread not estimated (fewer than 3 seeds)." in page
    assert table(page, "Final numbers, mean over seeds")["First round in which half work"]["GRPO"] == "4.5"
    write_run(tmp_path / "runs", "GRPO", 2, make_rows(ramp(6)))
    page = make_page(tmp_path)
    assert "Band-KL 0.05: spread not estimated (fewer than 3 seeds)." in page
    rows = table(page, "Final numbers, mean ± standard deviation over seeds")
    assert rows["First round in which half work"] == {
        "GRPO": "5.0 ± 1.0",
        "Band-KL 0.05": "2.0",
        "definition": "P(work) ≥ 0.5",
    }


def test_a_page_of_one_rule_compares_nothing(tmp_path, no_drawings):
    write_run(tmp_path / "runs", "Band-KL 0.05", 0, make_rows(ramp(3)))
    page = make_page(tmp_path)
    assert "<title>Training under one rule: Band-KL 0.05</title>" in page
    assert "<h1>Training under one rule</h1>" in page
    assert "Trust regions compared" not in page


def test_several_lines_of_a_round_are_one_round(tmp_path):
    rows = [{"round": 1, "step": i, "tokens": t, "clip/count": c, "reward": r, "clip/fraction": 0.9}
            for i, (t, c, r) in enumerate([(100, 50, 0.2), (900, 0, 0.4), (0, 0, None)])]  # fmt: skip
    (run,) = read_runs([write_run(tmp_path, rows=rows)])
    panels = {panel.key: panel for panel in PANELS.values()}
    assert panels["reward"].curve(run) == pytest.approx([0.3])
    assert panels["clip/fraction"].curve(run) == pytest.approx([5.0]), "50 of 1000 tokens, not the mean of 50 % and 0 %"


@pytest.mark.usefixtures("no_drawings")
def test_rates_without_counts_are_means(tmp_path):
    rows = [{"round": i + 1, "step": i, "reward": 0.1, "clip/fraction": c, "cut/good_tail": g}
            for i, (c, g) in enumerate([(0.01, 0.5), (0.03, None), (0.02, 0.1)])]  # fmt: skip
    write_run(tmp_path / "runs", rows=rows)
    numbers = table(make_page(tmp_path), "Final numbers")
    assert numbers["Clip rate, %"]["GRPO"] == "2.00"
    assert numbers["Good tail cut, %"]["GRPO"] == "30.0"


def test_nulls_are_left_out_and_not_counted_as_zero(tmp_path):
    for seed in range(3):
        rows = make_rows(ramp(4), reward=[None] * 9 + [0.3, 0.4, None])
        for row in rows:
            row |= {"clip/count": 0, "clip/tail_high_count": 0, "clip/tail_high_share": None, "entropy": None}
        write_run(tmp_path / "runs", "GRPO", seed, rows)
    page = make_page(tmp_path)
    numbers = table(page, "Final numbers")
    assert numbers["Reward over the run"]["GRPO"] == numbers["Reward at the end"]["GRPO"] == "0.350 ± 0.000"
    assert "Early tail share, %" not in numbers, "nothing was clipped: 0 / 0 has no value"
    assert "Entropy at the end" not in numbers
    assert "Entropy (paper, Fig. 4c): no value in the log of GRPO." in page


def test_the_mean_curve_ends_where_the_first_seed_ends():
    nan = math.nan
    x, y = mean_curve([(np.arange(1, 5), np.array([1, nan, nan, 4])), (np.arange(1, 4), np.array([3, 5, nan]))])
    assert (x.tolist(), y.tolist()) == ([1, 2], [2, 5])


def test_rounds_are_whole_on_the_axis(tmp_path):
    write_run(tmp_path / "runs", rows=make_rows(ramp(2, rounds=3)))
    plot = re.search(r'aria-label="The tail scene, learning rate 5e-6: P\(work\).*?</svg>', make_page(tmp_path))
    assert plot
    ticks = re.findall(r"<text[^>]*>([\d.]+)</text>", plot[0])
    assert [tick for tick in ticks if float(tick) > 1 or "." not in tick] == ["1", "2", "3"]


# ---- sections, settings, origin


def test_a_section_for_each_scene_and_learning_rate(three_seeds):
    for rate in (3e-4, 1.5e-5):
        write_run(three_seeds / "runs", "GRPO", 0, make_rows(ramp(3)), scene="storm", learning_rate=rate)
    plain = [{"step": step, "reward": 0.25} for step in (10, 20)]
    write_run(three_seeds / "runs", "Mine", 0, plain, scene=None, learning_rate=None)
    page = make_page(three_seeds)
    titles = ["The storm scene, learning rate 1.5e-5", "The storm scene, learning rate 3e-4",
              "The tail scene, learning rate 5e-6", "Training"]  # fmt: skip
    assert re.findall(r"<h2>(.*?)</h2>", page)[:4] == titles
    assert page.count('aria-label="The storm scene, learning rate 3e-4: P(work)') == 1
    assert 'aria-label="Training: P(work)' not in page
    assert 'aria-label="Training: Reward, mean per completion, by step, for Mine"' in page
    assert table(page, "Final numbers", 2)["Reward at the end"]["definition"] == "mean over the last 3 steps"


@pytest.mark.usefixtures("no_drawings")
def test_the_honest_part_is_about_the_scenes_that_ran(tmp_path):
    write_run(tmp_path / "runs", rows=make_rows(ramp(3)), scene=None)
    assert "What this does not show" not in make_page(tmp_path)
    write_run(tmp_path / "runs", seed=1, rows=make_rows(ramp(3)))
    page = make_page(tmp_path)
    assert "shows what a clip costs a rare strategy, not what it protects" in page
    assert "storm scene asks what a clip protects" not in page
    write_run(tmp_path / "runs", seed=2, rows=make_rows(ramp(3)), scene="storm")
    assert "storm scene asks what a clip protects" in make_page(tmp_path)


@pytest.mark.usefixtures("no_drawings")
def test_settings_that_differ(tmp_path):
    same = {"train": {"rounds": 30, "log_dir": "x"}}
    write_run(tmp_path / "runs", "GRPO", 0, make_rows(ramp(3)), same)
    write_run(tmp_path / "runs", "GRPO", 1, make_rows(ramp(3)), {"train": {"rounds": 31, "log_dir": "y"}})
    write_run(tmp_path / "runs", "Band-KL 0.05", 0, make_rows(ramp(3)), same)
    rows = table(make_page(tmp_path), "Settings that differ")
    assert rows == {
        "train.rounds": {"GRPO": "30, 31", "Band-KL 0.05": "30"},
        "trust_region.type": {"GRPO": "clip", "Band-KL 0.05": "band"},
        "trust_region.eps_low": {"GRPO": "0.2", "Band-KL 0.05": "–"},
        "trust_region.eps_high": {"GRPO": "0.2", "Band-KL 0.05": "–"},
        "trust_region.divergence": {"GRPO": "–", "Band-KL 0.05": "kl"},
        "trust_region.delta": {"GRPO": "–", "Band-KL 0.05": "0.05"},
    }


@pytest.mark.usefixtures("no_drawings")
def test_only_the_seed_of_the_run_is_no_setting(tmp_path):
    for seed, options in enumerate(({"seed": 0}, {"seed": 1}, {})):
        settings = {"data": {"options": options}, "trainer": {"logging_dir": f"logs/{seed}"}}
        write_run(tmp_path / "runs", "GRPO", seed, make_rows(ramp(3)), settings, versions={})
    page = make_page(tmp_path)
    assert table(page, "Settings that differ") == {"data.options.seed": {"GRPO": "0, 1, –"}}
    assert "commit abc1234" in page
    assert "versions {}" not in page


@pytest.mark.usefixtures("no_drawings")
def test_a_command_is_told_once_for_all_its_runs(three_seeds):
    for seed in (0, 1):
        write_run(three_seeds / "runs", "Other", seed, make_rows(ramp(3)), command="bandpo lab --steps 1")
    page = make_page(three_seeds)
    told = re.findall(r"<pre><code>(.*?)</code></pre>", page)
    assert len(told) == 7
    assert told[-1] == "bandpo lab --steps 1"
    assert "bandpo 0.1.0; torch 2.13.0; commit abc1234; hardware x86_64, 2 cores;" in page


def test_a_ratio_of_responses_has_no_bounds_of_a_token(tmp_path):
    node = {"type": "objective", "trust_region": CLIP, "ratio": "sequence-mean"}
    write_run(tmp_path / "runs", "GSPO", 0, make_rows(ramp(3)), {"trust_region": node})
    alone = make_page(tmp_path)
    assert "Where the probability" not in alone
    assert "GSPO: one ratio for a whole response, and so no interval per token." in alone
    write_run(tmp_path / "runs", "GMPO", 0, make_rows(ramp(3)), {"trust_region": node | {"ratio": "mean-of-clipped"}})
    both = make_page(tmp_path)
    assert set(table(both, "Where the probability")) == {"GMPO"}
    assert "GSPO: one ratio for a whole response, and so no interval per token." in both


def test_bounds_are_those_of_the_trust_region(tmp_path):
    clips = {"GRPO": CLIP, "None": {"type": "clip", "eps_low": 1.0, "eps_high": math.inf}, "Band": BAND}
    for label, node in clips.items():
        write_run(tmp_path / "runs", label, 0, make_rows(ramp(3)), {"trust_region": node})
    rows = table(make_page(tmp_path), "Where the probability")
    assert rows["GRPO"] == {"p = 0.01": "0.008–0.012", "p = 0.1": "0.080–0.120", "p = 0.8": "0.640–0.960"}
    assert set(rows["None"].values()) == {"0.000–1.000"}
    low, high = map(float, rows["Band"]["p = 0.8"].split("–"))
    for q in low, high:  # the Bernoulli KL divergence from 0.8 is the radius
        assert 0.8 * math.log(0.8 / q) + 0.2 * math.log(0.2 / (1 - q)) == pytest.approx(0.05, abs=1e-3)


@pytest.mark.usefixtures("no_drawings")
def test_a_rule_is_the_same_rule_however_it_is_written(tmp_path):
    write_run(tmp_path / "runs", "Band-KL 0.05", 0, make_rows(ramp(3)))
    short = {"trust_region": {"type": "band", "delta": "5e-2"}}
    write_run(tmp_path / "runs", "Band-KL 0.05", 1, make_rows(ramp(3)), short)
    assert "n = 2" in make_page(tmp_path)


# ---- what is wrong with the input


def test_an_unfinished_run_with_a_cut_off_line_is_drawn(three_seeds):
    before = table(make_page(three_seeds), "Final numbers")
    folder = write_run(three_seeds / "runs", "GRPO", 3, make_rows(ramp(2, rounds=5)), finished=False, rounds=30)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 384, "rou')
    page = make_page(three_seeds)
    assert "Unfinished: GRPO, seed 3, 5 of 30 rounds." in page
    assert table(page, "Final numbers") == before
    (run,) = read_runs([folder])
    assert run.mean("lab/work").tolist() == [0.01, 0.75, 0.75, 0.75, 0.75]


@pytest.mark.usefixtures("no_drawings")
def test_a_collapse_is_a_note_below_the_panels(tmp_path):
    """The detector's words, with the run's name; a run that holds has no such note."""
    held, lost = [0.6] * 40, [0.6] * 20 + [0.02] * 20
    for label, work in (("GRPO", held), ("No clip", lost)):
        write_run(tmp_path, label, 0, make_rows(work))
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "No clip, seed 0: collapsed at round 21: reward 0.48 before, 0.02 after, entropy rose." in page
    assert "GRPO, seed 0: " not in page


def test_an_unfinished_run_has_come_as_far_as_its_last_line(tmp_path):
    write_run(tmp_path / "runs", "GRPO", 0, [{"step": step, "reward": 0.5} for step in (10, 20)], finished=False)
    rows = [{"step": 0, "round": 0, "eval/reward": 0.1}, *make_rows(ramp(2, rounds=5))]
    write_run(tmp_path / "runs", "GRPO", 1, rows, finished=False, rounds=30)
    page = make_page(tmp_path)
    assert "Unfinished: GRPO, seed 0, 20 steps." in page
    assert "Unfinished: GRPO, seed 1, 5 of 30 rounds." in page


def test_a_report_on_runs_that_only_began(tmp_path):
    write_run(tmp_path / "runs", "GRPO", 0, make_rows(ramp(2)), finished=False)
    write_run(tmp_path / "runs", "GRPO", 1, [], finished=False)
    page = make_page(tmp_path)
    assert "Unfinished: GRPO, seed 1, 0 of 0 rounds" not in page
    assert "Unfinished: GRPO, seed 1, 0 rounds" in page
    assert "no final numbers yet" in page


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", '{"label": "GRPO"', "corrupt"),
        ("run.json", "[]", "corrupt"),
        ("run.json", '{"label": "GRPO", "finished": true, "learning_rate": 1}', "'seed' is missing"),
        ("run.json", '{"label": "GRPO", "seed": "0", "finished": true, "learning_rate": 1}', "'seed' is '0'"),
        ("config.yaml", None, "No such file"),
        ("config.yaml", "a: [", "is not YAML"),
        ("config.yaml", "a: 1", "'trust_region' is missing"),
        ("metrics.jsonl", None, "No such file"),
        ("metrics.jsonl", "", "no row of a log is in it"),
        ("metrics.jsonl", '{"reward": 1}\n', "'step' or 'round'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_and_nothing_is_written(three_seeds, name, content, message):
    (three_seeds / "report.html").write_text("the page of yesterday")
    path = three_seeds / "runs" / "GRPO-0-1" / name
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}.*{message}") as caught:
        make_page(three_seeds)
    assert "\n" not in str(caught.value)
    assert (three_seeds / "report.html").read_text() == "the page of yesterday"


def test_what_is_missing_or_ambiguous_is_refused(three_seeds):
    runs, out = three_seeds / "runs", three_seeds / "out.html"
    with pytest.raises(ValueError, match="nowhere: no run found"):
        write_report([runs, three_seeds / "nowhere"], out)
    with pytest.raises(ValueError, match="no runs given"):
        write_report([], out)
    with pytest.raises(ValueError, match=r"baseline 'PPO': no such run; expected one of Band-KL 0\.05, GRPO"):
        write_report([runs], out, baseline="PPO")
    with pytest.raises(IsADirectoryError):
        write_report([runs], runs)
    twin = write_run(three_seeds / "more", "GRPO", 0, make_rows(ramp(2)))
    with pytest.raises(ValueError, match=f"^{re.escape(str(twin))}: same label and seed as .*GRPO-0-0"):
        write_report([runs, twin], out)
    other = write_run(three_seeds / "other", "GRPO", 7, make_rows(ramp(2)), {"trust_region": BAND})
    weight = {"type": "objective", "trust_region": CLIP, "surrogate": "weight"}
    weighed = write_run(three_seeds / "weighed", "GRPO", 7, make_rows(ramp(2)), {"trust_region": weight})
    with pytest.raises(ValueError, match=f"^{re.escape(str(weighed))}: label 'GRPO' stands for another"):
        write_report([runs, weighed], out)
    with pytest.raises(ValueError, match=f"^{re.escape(str(other))}: label 'GRPO' stands for another"):
        write_report([runs, other], out)
    unknown = write_run(three_seeds / "unknown", "Clap", 0, make_rows(ramp(2)), {"trust_region": {"type": "clap"}})
    with pytest.raises(ValueError, match=f"^{re.escape(str(unknown / 'config.yaml'))}: trust_region: .*'clap'"):
        write_report([runs, unknown], out)
    assert not out.exists()


def test_a_method_without_a_value_draws_no_line(tmp_path):
    """An unclipped line without points would count in the layout as one in the corner of the picture."""
    never = {"clip/count": [0] * 12, "clip/tail_high_count": [0] * 12, "clip/tail_high_share": [None] * 12}
    for seed in (0, 1):
        write_run(tmp_path, "GRPO", seed, make_rows(ramp(5)))
        write_run(tmp_path, "No clip", seed, make_rows(ramp(5), **never))
    (section,) = make_sections(read_runs([tmp_path]))
    (panel,) = [panel for panel in section.panels if panel.key == "clip/tail_high_share"]
    axes, styles = Figure().subplots(), method_styles(section.methods)
    draw(axes, panel.figure("round", {m: [*runs.values()] for m, runs in section.methods.items()}), styles)
    assert [len(line.get_xdata()) for line in axes.lines] == [12, 12, 12]  # two seeds of GRPO and their mean


def test_a_radius_that_steers_itself_is_drawn(tmp_path):
    radii = [0.05 * 1.1**i for i in range(12)]
    write_run(tmp_path, "Band", 0, make_rows(ramp(5)))
    write_run(tmp_path, "Steered", 0, make_rows(ramp(5), **{"controlled/value": radii}), {"trust_region": BAND})
    (section,) = make_sections(read_runs([tmp_path]))
    (panel,) = [panel for panel in section.panels if panel.key == "controlled/value"]
    axes = Figure().subplots()
    figure = panel.figure("round", {m: [*runs.values()] for m, runs in section.methods.items()})
    draw(axes, figure, method_styles(section.methods))
    (line,) = axes.lines
    assert list(line.get_ydata()) == radii


@pytest.mark.parametrize("again", ["runs/../runs", "runs/GRPO-0-1", "mine=runs/GRPO-0-1"])
def test_a_run_that_is_given_twice_does_not_count_as_two(three_seeds, monkeypatch, again):
    monkeypatch.chdir(three_seeds)
    assert len(read_runs(["runs"])) == 6
    with pytest.raises(UserError, match=r"runs/\S+: given twice"):
        read_runs(["runs", again])


def test_a_failed_write_leaves_the_old_report_and_no_litter(three_seeds, monkeypatch):
    (three_seeds / "report.html").write_text("the page of yesterday")

    def fail(self, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        make_page(three_seeds)
    assert (three_seeds / "report.html").read_text() == "the page of yesterday"
    assert sorted(path.name for path in three_seeds.iterdir()) == ["report.html", "runs"]


# ---- the page


def test_the_page_needs_nothing_from_elsewhere_and_trusts_no_file(tmp_path):
    nasty = '<script>alert("x")</script>'
    facts = {"scene": nasty, "command": nasty, "versions": {nasty: nasty}, "commit": nasty, "hardware": {nasty: nasty}}
    write_run(tmp_path / "runs", nasty, 0, make_rows(ramp(2)), {nasty: nasty}, **facts)
    write_run(tmp_path / "runs", "GRPO & 'co'", 0, make_rows(ramp(2)), {nasty: 1}, **facts, started=nasty)
    page = make_page(tmp_path)
    assert "<script>alert" not in page
    assert page.count("<script>") == 1, "ours"
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in page
    assert "GRPO &amp; &#39;co&#39;" in page
    assert not re.search(r"https?:|@import|<link|<iframe|<img|//[a-z]", page)
    assert set(re.findall(r'(?:src|href)="(.)', page)) == {"#"}
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_the_page_is_sound_html_for_all_readers(three_seeds):
    write_run(three_seeds / "runs", "GRPO", 0, make_rows(ramp(3)), learning_rate=1e-3)
    page = make_page(three_seeds)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids)), "an id twice: the second figure would use the marks of the first"
    assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', page)) <= {(i, "") for i in ids} | {("", i) for i in ids}
    assert '<html lang="en">' in page
    assert "<title>Trust regions compared: GRPO and Band-KL 0.05</title>" in page
    assert not re.search(r"<th(?! scope=\"(row|col)\")[ >]", page)
    svgs = re.findall(r"<svg([^>]*)>", page)
    assert all('role="img" aria-label="' in svg or 'aria-hidden="true"' in svg for svg in svgs)
    assert sum('role="img"' in svg for svg in svgs) == 5 + 5 + 1
    assert not re.search(r"#00000[12]|DejaVu", page), "left-overs of matplotlib"
    open_tags = []
    for slash, tag in re.findall(r"<(/?)([a-z][\w]*)[^>]*?(?<!/)>", page):
        if slash:
            assert open_tags.pop() == tag
        elif tag not in ("meta",):
            open_tags.append(tag)
    assert not open_tags


@pytest.mark.slow
def test_two_writes_are_the_same_bytes(three_seeds):
    first, second = three_seeds / "1.html", three_seeds / "2.html"
    write_report([three_seeds / "runs"], first)
    with matplotlib.rc_context({"font.size": 30, "xtick.major.size": 20, "svg.hashsalt": "x"}):
        write_report([three_seeds / "runs"], second)
        assert matplotlib.rcParams["font.size"] == 30
    assert first.read_bytes() == second.read_bytes()


MEASURE = """
const seen = {width: innerWidth, needed: document.documentElement.scrollWidth,
  dark: matchMedia("(prefers-color-scheme: dark)").matches, text: 99, contrast: 99, plot: 999};
const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
const paper = light(getComputedStyle(document.body).backgroundColor);
const contrast = c => { const [a, b] = [light(c), paper].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05) };
for (const text of document.querySelectorAll("svg text"))
  seen.text = Math.min(seen.text, text.getBoundingClientRect().height);
for (const svg of document.querySelectorAll("svg[role]"))
  seen.plot = Math.min(seen.plot, svg.getBoundingClientRect().width);
for (const node of document.querySelectorAll("p, h1, h2, h3, th, td, li, figcaption, small, code"))
  seen.contrast = Math.min(seen.contrast, contrast(getComputedStyle(node).color));
for (const node of document.querySelectorAll("svg text"))
  seen.contrast = Math.min(seen.contrast, contrast(getComputedStyle(node).fill));
seen.lines = [...new Set([...document.querySelectorAll(".key path")].map(p => getComputedStyle(p).stroke))]
  .filter(stroke => stroke !== "none");
seen.lineContrast = Math.min(...seen.lines.map(contrast));
parent.document.getElementById("measured").textContent = JSON.stringify(seen);
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome found")
@pytest.mark.slow
def test_in_a_browser_no_script_runs_in_the_page(tmp_path):
    """Were something not escaped after all."""
    write_run(tmp_path / "runs", "GRPO", 0, make_rows(ramp(3)))
    page = make_page(tmp_path)
    ran = "parent.document.getElementById('measured').textContent += 'ran '"
    page = page.replace("</body>", f'<script>{ran}</script><svg onload="{ran}"></svg></body>')
    (policy,) = re.findall('<meta http-equiv="Content-Security-Policy"[^>]*>', page)
    assert ">ran ran <" in browse(page.replace(policy, ""), tmp_path).stdout  # the test would notice
    assert '<pre id="measured"></pre>' in browse(page, tmp_path).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome found")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.slow
def test_in_a_browser_the_page_is_quiet_legible_and_fits_a_phone(three_seeds, dark):
    for index in range(5):  # seven methods with long names: all colours, and tables wider than a phone
        write_run(three_seeds / "runs", f"Method number {index} of a long name", 0, make_rows(ramp(3 + index)))
    done = browse(
        with_script(make_page(three_seeds), MEASURE),
        three_seeds,
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
    )
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout)
    assert found, done.stderr
    seen = json.loads(found[1])
    assert (seen["width"], seen["dark"]) == (375, dark)
    assert seen["needed"] <= 375, "the page scrolls sideways"
    assert seen["plot"] >= 335, "a plot fills the phone"
    assert seen["text"] >= 12, "px, the height of a line of the smallest text in a plot"
    assert seen["contrast"] >= 4.5, "WCAG AA for text"
    assert len(seen["lines"]) == 7
    assert seen["lineContrast"] >= 3, "WCAG AA for graphics"


def test_a_rule_that_needs_more_than_p_is_drawn_by_the_bound_that_binds():
    p = np.array([0.01, 0.5])
    low, high = ratio_bounds(BySign(Clip(0.1, 0.4), Clip(0.3, 0.2)), p)
    assert (low, high) == (pytest.approx([0.7, 0.7]), pytest.approx([1.4, 1.4]))
