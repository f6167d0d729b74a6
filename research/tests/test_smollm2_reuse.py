"""research/measurements/smollm2_reuse.py: its rows and its search."""

import hashlib
import itertools
import re
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import recipe
from commands import missing
from scripts import ROOT

from bandpo import clipping
from bandpo_runs import toy
from bandpo_runs.statistics.intervals import training_runs
from research.csv_rows import read_rows, write_rows
from research.measurements import smollm2_reuse
from research.measurements.smollm2_reuse import chosen, left, minus_no_clip, task_of

GRPO = "GRPO 0.2/0.2"


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
    monkeypatch.setattr(smollm2_reuse, "SETTINGS", node)
    monkeypatch.setattr(smollm2_reuse, "write_questions", lambda path: node["data"]["path"])
    monkeypatch.setitem(smollm2_reuse.RULES, "tight", {"type": "clip", "eps_low": 1e-4, "eps_high": 1e-4})
    row = smollm2_reuse.train(task_of("tight", 1, 5e-3, 0) | {"uses": 2, "rounds": 2}, str(tmp_path / "model"), "cpu")
    assert [*row] == [*read_rows(smollm2_reuse.CSV)[0]]
    assert 0 < float(row["right"]) < 1
    assert float(row["clipped"]) == pytest.approx(0.75, abs=0.05)  # the first of four steps has a ratio of 1


def test_the_questions_are_those_of_the_rows(tmp_path):
    """By the digest of what reasoning_gym 0.1.25 gave when the rows were measured."""
    text = Path(smollm2_reuse.write_questions(tmp_path / "chain_sum.jsonl")).read_bytes()
    assert hashlib.sha256(text).hexdigest() == "3fc93cf3468e6ab7949e0d733e4ce482d4f1317d0d327b9023052abd171249f3"


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


def absent(page, *parts):
    return missing((ROOT / page).read_text(encoding="utf-8"), *parts)


def rewards_minus_no_clip(uses):
    """Return the intervals of the other rules' mean rewards over the training minus no clip's, on the same seeds."""
    none, *others = smollm2_reuse.judged(uses, "reward").values()
    return [training_runs([x - none[seed] for seed, x in each.items()]).interval(low=-1.0) for each in others]


@pytest.mark.parametrize("uses", [1, 8])
def test_the_table_of_the_page_is_that_of_the_rows(uses):
    lines, values = [], smollm2_reuse.judged(uses)
    for rule, by_seed in values.items():
        assert sorted(by_seed) == [*range(100, 100 + len(by_seed))]
        gap = "" if rule == "no clip" else f"{minus_no_clip(rule, values)} "
        lines.append(f"| {rule} | {uses} | {len(by_seed)} | {100 * statistics.fmean(by_seed.values()):.0f} % | {gap}|")
    assert len(lines) == 4
    assert absent("research/pages/smollm2.md", *lines) == []


def test_pages_say_what_the_rows_say():
    (grpo, weighted, band), (_, above, _) = map(rewards_minus_no_clip, (1, 8))
    assert max(grpo.high, weighted.high) < 0 < band.high
    assert above.low > 0
    outside = [statistics.fmean(smollm2_reuse.judged(uses, "clipped")[GRPO].values()) for uses in (1, 8)]
    assert outside == pytest.approx([0.03, 0.5], rel=0.2)
    assert chosen(GRPO, 8) == 16 * chosen("no clip", 8)
    assert clipping.MORE.endswith("; SmolLM2-135M at eight epochs scored lower with both")
    rates = [100 * smollm2_reuse.searched(rule, 8)[rate][0] for rate in (1.25e-6, 1e-5) for rule in ("no clip", GRPO)]
    said = f"{(above.high + above.low) / 2:.3f} ± {(above.high - above.low) / 2:.3f} above", "a sixteenth of GRPO's"
    ends = "{:.0f} % right, {:.0f} % under GRPO's at 1.25e-6, {:.0f} % and, {:.0f} % at 1e-5".format(*rates)
    assert absent("research/pages/smollm2.md", *said, *ends.split(", ")) == []


def test_the_report_and_the_readme_say_what_the_rows_of_eight_uses_say():
    values = smollm2_reuse.judged(8)
    for rule in (GRPO, "Band-KL 0.05"):
        mean, low, high = map(float, re.findall(r"[+-][.\d]+", minus_no_clip(rule, values)))
        assert high < 0
        assert absent("docs/report/index.md", f"{-mean:.2f} ± {(high - low) / 2:.2f} below") == []
    none, grpo, _, band = (f"{100 * statistics.fmean(each.values()):.0f} %" for each in values.values())
    said = f"no clip {none} right", f"Band-KL {band}", f"GRPO's clip {grpo}", "was a sixteenth of GRPO's", "16 seeds"
    assert absent("README.md", *said) == []


def test_a_difference_is_of_the_same_seeds_with_students_interval():
    values = {"no clip": {1: 0.5, 2: 0.6, 3: 0.7, 4: 0.1}, "x": {1: 0.6, 2: 0.6, 3: 0.9, 5: 0.0}}
    mean, half = 0.1, 4.302653 * 0.1 / 3**0.5  # t of 2 degrees of freedom, standard deviation .1
    assert minus_no_clip("x", values) == f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"
    assert minus_no_clip("x", values | {"x": {1: 0.6, 2: 0.6}}) == ""
