"""research/measurements/smollm2_rates.py: its runs, their order and what they give."""

import itertools
import random

import pytest
import recipe

from research.csv_rows import write_rows
from research.measurements import smollm2_random, smollm2_rates
from research.measurements.smollm2_rates import ORDER, RATES, RULES, pass_at, todo

COLUMNS = """rule learning_rate seed pass1 pass4 pass16 entropy reward clipped_above clipped_below highest_log_ratio
    reward_course entropy_course clipped_course counts seconds hardware torch commit"""


@pytest.fixture
def add(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2_rates, "CSV", tmp_path / "rows.csv")

    def add(rule, rate, seed, right):
        row = {"rule": rule, "learning_rate": rate, "seed": seed, "pass1": right, "pass16": 1, "entropy": 0.5}
        write_rows(smollm2_rates.CSV, [row], add=True)

    return add


@pytest.mark.parametrize("k", [1, 2, 4, 16])
def test_pass_at_k_is_the_share_of_all_choices_of_k_answers(k):
    choices = [[*itertools.combinations([i < count for i in range(16)], k)] for count in (0, 3, 16)]
    share = sum(sum(map(any, some)) / len(some) for some in choices) / 3
    assert pass_at(k, [0, 3, 16]) == pytest.approx(share, abs=1e-12)


def test_no_clip_chooses_the_rate_and_then_seeds_are_judged_in_turn(add, capsys):
    assert todo(2) == [("no clip", rate, seed) for seed in (0, 1) for rate in RATES]
    for seed, best in ((0, 1.25e-6), (1, 2.5e-6)):
        for rate in RATES:
            add("no clip", rate, seed, {1.25e-6: 0.6, best: 0.7}.get(rate, 0.1))
    rate = 1.25e-6
    claimed = [(rule, k * rate, 100 + i) for k in (4, 2) for i in (0, 1) for rule in ORDER[0][1]]
    others = [("Clip-Higher", k * rate, 100 + i) for k in (4, 2) for i in (0, 1)]
    assert todo(2) == [*claimed, *others, *((rule, rate, 100 + i) for i in (0, 1) for rule in RULES)]
    shared = todo(2, 0, 2), todo(2, 1, 2)
    assert sorted(shared[0] + shared[1]) == sorted(todo(2))
    assert len(shared[0]) == len(shared[1])
    for seed, gap in ((100, 0.1), (101, 0.3)):
        for rule in ORDER[0][1]:
            add(rule, 4 * rate, seed, 0.5 + gap * (rule == "Band-KL 0.05"))
    assert todo(2)[0] == ("no clip", 2 * rate, 100)
    assert todo(2, 0, 2) == shared[0][3:]  # its runs stay its own
    smollm2_rates.report(2)
    told = capsys.readouterr().out  # t of one degree of freedom at 1 - .05 / 6, 38.19, times .1
    assert "| Band-KL 0.05 | 2 | 0.700 | 1.000 | 0.500 |\n" in told
    assert "| Band-KL 0.05 minus no clip | 2 | +0.200 ± 3.819 | +0.000 ± 0.000 | +0.000 ± 0.000 |\n" in told
    assert "Clip-Higher" not in told


@pytest.mark.parametrize("experiment", [smollm2_rates, smollm2_random])
def test_a_run_is_a_row(tmp_path, monkeypatch, experiment):
    recipe.make(tmp_path)
    monkeypatch.setattr(smollm2_rates, "ROUNDS", 2)
    changed = {
        "model": str(tmp_path / "model"),
        "data.size": 64,
        "data.eval_size": 3,
        "trainer.max_completion_length": 3,
    }
    rule = "lower side alone" if experiment is smollm2_random else "GRPO 0.2/0.2"
    row = smollm2_rates.train(rule, 1e-3, 0, experiment.settings(rule) | changed)
    assert [*row] == COLUMNS.split()
    assert len(row["counts"]) == 3
    assert all(len(row[f"{name}_course"].split()) == 2 for name in ("reward", "entropy", "clipped"))
    learns = [float(reward) for reward in row["reward_course"].split()]
    if experiment is smollm2_random:  # a coin, where no answer of such a model is right
        assert all(0.3 < reward < 0.7 for reward in learns)
        assert (float(row["pass1"]), row["clipped_above"]) == (0, "0.000000")
        rewards = [smollm2_random.coin([0] * 99) for _ in range(2) if random.seed(3) is None]
        assert rewards[0] == rewards[1]
    else:
        assert learns == [0, 0]


def test_random_rewards_take_the_rate_of_the_search(add, monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2_random, "CSV", tmp_path / "random.csv")
    with pytest.raises(SystemExit, match=r"smollm2_rates\.csv"):
        smollm2_random.todo(2)
    for seed in (0, 1):
        for rate in RATES:
            add("no clip", rate, seed, {2.5e-6: 0.7}.get(rate, 0.1))
    runs = smollm2_random.todo(2)
    assert runs[:3] == [(rule, 2.5e-6, 100) for rule in ("no clip", "upper side alone", "lower side alone")]
    assert [run[0] for run in runs[6:]] == 2 * ["GRPO 0.2/0.2", "Band-KL 0.05"]


def test_the_table_of_the_page_is_that_of_the_rows(capsys):
    smollm2_rates.report(10, factors=[4])
    page = smollm2_rates.CSV.parents[1] / "pages" / "smollm2.md"
    assert capsys.readouterr().out.strip() in page.read_text(encoding="utf-8")
