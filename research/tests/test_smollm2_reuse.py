"""research/measurements/smollm2_reuse.py: its rows and its search."""

from __future__ import annotations

import itertools
import re
import statistics
from types import SimpleNamespace

import pytest
import recipe
import yaml
from scripts import ROOT

from bandpo import clipping
from bandpo_runs import toy
from bandpo_runs.statistics.intervals import training_runs
from research.csv_rows import read_rows, write_rows
from research.measurements import smollm2_reuse
from research.measurements.smollm2_reuse import chosen, left, task_of


def of_odd_length(completions, answer, **columns):
    """A reward that a model without any skill earns now and then; all answers to a question come together."""
    assert all(len([*same]) % 4 == 0 for _, same in itertools.groupby(answer))
    return [float(len(text) % 2) for text in completions]


def test_questions_of_several_lengths_are_answered(tmp_path, monkeypatch):
    recipe.make(tmp_path)
    short, *_ = (row["prompt"] for row in toy.prompts(1, seed=0))
    held_out = {"prompt": [short + short, short], "answer": ["long", "short"]}
    reward = lambda completions, answer: [float(gold == "long" and len(completions) == 32) for gold in answer]  # noqa: E731
    monkeypatch.setattr(smollm2_reuse, "rows_and_reward", lambda config: (None, held_out, reward))
    config = SimpleNamespace(trainer={"max_completion_length": 2})
    assert smollm2_reuse.right(tmp_path / "model", config, "cpu") == [1, 0]


def test_a_run_is_a_row(tmp_path, monkeypatch):
    recipe.make(tmp_path)
    node = recipe.node(
        tmp_path, tmp_path / "run", rounds=2, data={"eval_size": 5},
        reward="test_smollm2_reuse:of_odd_length", trainer={"max_completion_length": 6},
    )  # fmt: skip
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(node))
    monkeypatch.setattr(smollm2_reuse, "RECIPE", tmp_path / "base.yaml")
    monkeypatch.setitem(smollm2_reuse.RULES, "tight", {"type": "clip", "eps_low": 1e-4, "eps_high": 1e-4})
    row = smollm2_reuse.train(task_of("tight", 1, 5e-3, 0) | {"uses": 2, "rounds": 2}, str(tmp_path / "model"), "cpu")
    assert [*row] == [*read_rows(smollm2_reuse.CSV)[0]]
    assert 0 < float(row["right"]) < 1
    assert float(row["clipped"]) == pytest.approx(0.75, abs=0.05)  # the first of four steps has a ratio of 1


@pytest.fixture
def add(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2_reuse, "CSV", tmp_path / "rows.csv")

    def add(rate, seed, right, rounds=24):
        row = task_of("no clip", 1, rate, seed) | {"rounds": rounds, "right": right}
        write_rows(smollm2_reuse.CSV, [row], add=True)

    return add


def test_rates_far_behind_are_given_up_and_fresh_seeds_judge(add, capsys):
    def todo():
        return [(task["learning_rate"], task["seed"]) for task in left(["no clip"], 1, 2, [])]

    add(5e-6, 0, 0.9, rounds=12)
    assert todo() == [(rate, seed) for seed in (0, 1, 2) for rate in (5e-6, 1e-5, 2e-5, 4e-5)]
    for rate, right in ((5e-6, 0.7), (1e-5, 0.8), (2e-5, 0.66), (4e-5, 0.6)):
        add(rate, 0, right)
    assert todo() == [(rate, seed) for seed in (1, 2) for rate in (5e-6, 1e-5, 2e-5)]  # 4e-5 is .2 behind
    for rate, right in ((5e-6, 0.9), (1e-5, 0.8), (2e-5, 0.62)):
        add(rate, 1, right)
    assert todo() == [(rate, 2) for rate in (5e-6, 1e-5)]  # 2e-5 is .16 behind on two seeds
    add(5e-6, 2, 0.7)
    assert chosen("no clip", 1) is None
    add(1e-5, 2, 0.75)
    assert chosen("no clip", 1) == 1e-5
    assert todo() == [(1e-5, 100), (1e-5, 101)]
    add(1e-5, 100, 0.5)
    assert todo() == [(1e-5, 101)]
    (judge,) = left(["no clip"], 1, 2, [task_of("no clip", 8, 1e-5, 0)])  # a search of other uses is another one
    assert judge["seed"] == 101
    assert left(["no clip"], 1, 2, [task_of("no clip", 1, 4e-5, 1)]) == []
    add(2e-5, 101, 0.1)  # of another rate, as from another search
    assert todo() == [(1e-5, 101)]
    smollm2_reuse.report(1)
    assert capsys.readouterr().out == "no clip, 1 uses, learning rate 1e-05, 1 seeds, right 0.500\n"


def differences(uses):
    """Return by rule how many seeds it shares with no clip, counted from the first, and the difference's ends."""
    by_rule = smollm2_reuse.judged(uses)
    ends = {}
    for rule in [*smollm2_reuse.RULES][1:]:
        seeds = sorted(set(by_rule[rule]) & set(by_rule["no clip"]))
        assert seeds == [*range(100, 100 + len(seeds))]
        ends[rule] = (
            len(seeds),
            [float(x) for x in re.findall(r"[+-][.\d]+", smollm2_reuse.minus_no_clip(rule, by_rule))],
        )
    return ends


def rewards_minus_no_clip(uses):
    """Return the intervals of the other rules' mean rewards over the training minus no clip's, on the same seeds."""
    none, *others = smollm2_reuse.judged(uses, "reward").values()
    return [training_runs([x - none[seed] for seed, x in each.items()]).interval(low=-1.0) for each in others]


def assert_in(page, sentence):
    assert sentence in (ROOT / page).read_text(encoding="utf-8")


def test_the_report_says_what_the_rows_of_one_use_say():
    (seeds, grpo), (same, weighted), (more, band) = differences(1).values()
    assert same == seeds
    ends = (grpo, weighted, band)
    assert all(low < 0 < high for _, low, high in ends)
    most, halves = max(abs(one[0]) for one in ends), sorted((high - low) / 2 for _, low, high in ends)
    sentence = f"on {seeds} seeds GRPO's `0.2` and the weighted clip (`0.98` to `2`, with the weight), on {more} "
    sentence += f"Band-KL `0.05` end at most {most:.3f} from no clip in right answers, none significantly "
    sentence += f"(± {halves[0]:.2f} to {halves[-1]:.2f}); in mean reward over the training both clips trail"
    assert_in("research/pages/smollm2.md", sentence)
    grpo, weighted, band = rewards_minus_no_clip(1)
    assert grpo.high < 0
    assert weighted.high < 0
    assert band.low < 0 < band.high
    assert 0.02 < statistics.fmean(smollm2_reuse.judged(1, "clipped")["GRPO 0.2/0.2"].values()) < 0.05
    assert_in("research/pages/smollm2.md", "though under GRPO's clip a few percent of tokens are outside their bounds")


def test_pages_say_what_the_rows_of_eight_uses_say():
    ends_of_rules = differences(8).values()
    (seeds,) = {count for count, _ in ends_of_rules}
    (clip, *around), (_, low, high), (band, *ends) = (each for _, each in ends_of_rules)
    assert around[1] < 0
    assert low < 0 < high
    assert ends[1] < 0
    assert clipping.MORE.endswith("; SmolLM2-135M at eight epochs scored lower with both")
    half, band_half = ((one[1] - one[0]) / 2 for one in (around, ends))
    assert 0.45 < statistics.fmean(smollm2_reuse.judged(8, "clipped")["GRPO 0.2/0.2"].values()) < 0.55
    assert chosen("GRPO 0.2/0.2", 8) == 16 * chosen("no clip", 8)
    assert_in("research/pages/smollm2.md", "no clip's rate was a sixteenth of GRPO's")
    grpo, weighted, level = rewards_minus_no_clip(8)
    assert weighted.low > 0
    middle, half_width = (weighted.high + weighted.low) / 2, (weighted.high - weighted.low) / 2
    sentence = f"the weighted clip was {middle:.3f} ± {half_width:.3f} above no clip's, on 16 of 16"
    assert_in("research/pages/smollm2.md", sentence)
    assert all(one.low < 0 < one.high for one in (grpo, level))
    sentence = (
        f"on {seeds} seeds, GRPO's `0.2` ends {clip:+.2f} ± {half:.2f} from no clip in right answers (half of its "
    )
    sentence += f"tokens outside their bounds), Band-KL `0.05` {band:+.2f} ± {band_half:.2f}, "
    sentence += "the weighted clip not significantly"
    assert_in("research/pages/smollm2.md", sentence)
    sentence = f"GRPO's clip scored {-clip:.2f} ± {half:.2f} below no clip, and Band-KL `0.05` "
    sentence += f"{-band:.2f} ± {band_half:.2f} below"
    assert_in("docs/report/index.md", sentence)
    sentence = f"It took {seeds} seeds to know SmolLM2's differences from no clip to {half:.2f} "
    sentence += f"(GRPO's) and {(high - low) / 2:.2f} (the weighted clip's) to each side (8 epochs)"
    assert_in("research/pages/smollm2.md", sentence)
    none, grpo, weighted, band = (100 * statistics.fmean(each.values()) for each in smollm2_reuse.judged(8).values())
    sentence = f"six rounds, {seeds} seeds: no clip {none:.0f} % right, Band-KL {band:.0f} %, GRPO's clip {grpo:.0f} %"
    assert_in("README.md", sentence)
    assert_in("README.md", "the best rate without a clip was a sixteenth of GRPO's")
    sentence = f"ended with {none:.0f} % right without a clip, {weighted:.0f} % under the weighted clip, "
    sentence += f"{band:.0f} % under Band-KL `0.05` and {grpo:.0f} % under GRPO's, each at the learning rate that "
    assert_in("research/pages/smollm2.md", f"{sentence}three seeds chose")
    assert smollm2_reuse.ROUNDS[8] == 6


def test_choose_says_what_the_rows_say_of_two_learning_rates():
    rules = ("no clip", "GRPO 0.2/0.2")
    ends = [100 * smollm2_reuse.searched(rule, 8)[rate][0] for rate in (1.25e-6, 1e-5) for rule in rules]
    sentence = "ended with {:.0f} % right without a clip and {:.0f} % under GRPO's at 1.25e-6, but with {:.0f} % and "
    sentence += "{:.0f} % at 1e-5"
    page = (ROOT / "research" / "pages" / "smollm2.md").read_text(encoding="utf-8")
    assert sentence.format(*ends) in page


def test_a_difference_is_of_the_same_seeds_with_students_interval():
    values = {"no clip": {1: 0.5, 2: 0.6, 3: 0.7, 4: 0.1}, "x": {1: 0.6, 2: 0.6, 3: 0.9, 5: 0.0}}
    mean, half = 0.1, 4.302653 * 0.1 / 3**0.5  # t of 2 degrees of freedom, standard deviation .1
    assert smollm2_reuse.minus_no_clip("x", values) == f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"
    assert smollm2_reuse.minus_no_clip("x", values | {"x": {1: 0.6, 2: 0.6}}) == ""
