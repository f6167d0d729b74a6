"""Scenes of the lab as worlds of a contest: a run's numbers, rows that depend on their cell alone, what is refused.

Warm starts cost 20 s; the one here is untrained, and lies where every process looks for it."""

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml
from contests import node_of

from bandpo.errors import UserError
from bandpo_runs import toy
from research import fast_lab, grid
from research.bench import cells, labs
from research.bench.__main__ import main
from research.bench.cells import beginning, cell, run_cells
from research.bench.reading import make_contest

FOLDER = Path(__file__).parents[1] / "contests"
TINY = {"lab": "rare-and-noisy", "rounds": 2, "start_seed": 0, "prompts": 2, "num_generations": 4, "num_iterations": 2}
CLIP = {"objective": {"type": "clip", "eps_low": 0.2, "eps_high": 0.5}, "learning_rate": 0.001}
BAND = {"objective": {"type": "band", "delta": 0.05}, "learning_rate": 0.002, "positive_weight": 0.85}
TWO_FAMILIES: list[dict[str, Any]] = [
    {"name": "clip", "objective": CLIP["objective"]}, {"name": "band", "objective": BAND["objective"]},
]  # fmt: skip


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("BANDPO_CACHE", str(tmp_path / "cache"))
    toy.save_start(toy.WarmStart(0.01, 0).folder, toy.fresh_model(0), {"p_work": 0.8})


def made(world: Any = TINY, learner: Any = CLIP, seeds=range(2)):
    return cell(world, learner, seeds, labs.NUMBERS)


def tiny(**changes: Any) -> dict[str, Any]:
    return node_of(**{"worlds": [TINY], "families": TWO_FAMILIES, "learning_rates": [0.001, 0.002], **changes})


def row(p_work: float, reward: float, right: float | None = None) -> dict[str, float]:
    return {"lab/p_work": p_work, "reward": reward, **({} if right is None else {"lab/right": right})}


def test_the_numbers_of_a_run():
    right = [0.5, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9]
    work = [0.1, 0.5, 0.6, 0.2, 0.3, 0.6, 0.9]
    numbers = labs._numbers([row(p, 0.0, x) for p, x in zip(work, right, strict=True)])
    assert numbers == pytest.approx({"final": 0.4, "mean": 2.9 / 7, "half": 2, "work": 0.6})
    # Of a scene in which no reward is inverted; two rounds, and never half of the completions.
    assert labs._numbers([row(0.5, 0.25), row(0.2, 0.75)]) == {"final": 0.5, "mean": 0.5, "half": 3, "work": 0.35}


def test_a_row_depends_on_its_cell_alone(start, monkeypatch):
    """Seeds are trained in eights from the cell's first."""
    groups, train = [], labs.train
    monkeypatch.setattr(labs, "train", lambda *a, **k: groups.append([*a[2]]) or train(*a, **k))
    whole, other = (made(learner=each, seeds=range(5, 15)) for each in (CLIP, BAND))
    ours, theirs = run_cells([whole, other])
    assert groups == [[*range(5, 13)], [13, 14]] * 2
    assert [run_cells([each])[0] for each in (other, whole)] == [theirs, ours]
    assert ours["work"] != theirs["work"]
    assert len(set(ours["work"])) == 10
    first, rest = (run_cells([made(seeds=seeds)])[0] for seeds in (range(5, 13), range(13, 15)))
    for name in labs.NUMBERS:
        assert ours[name] == first[name] + rest[name]
    assert beginning(whole) == made(seeds=range(5, 13))
    assert beginning(made()) == made()
    assert beginning(made("rare and noisy", seeds=range(20))) == made("rare and noisy", seeds=range(20))
    in_torch = {**CLIP, "objective": {"type": "objective", "trust_region": CLIP["objective"], "surrogate": "quadratic"}}
    slow = made("rare and noisy", in_torch, seeds=range(5, 25))
    assert beginning(slow) == made("rare and noisy", in_torch, seeds=range(5, 13))


def test_a_lab_is_a_world_of_a_grid(start, tmp_path):
    node = {
        "worlds": {"tiny": TINY}, "learning_rates": [0.001, 0.002],
        "choose": {"first": 0, "count": 1}, "judge": {"first": 1, "count": 2},
        "rules": {name: {"objective": each["objective"]} for name, each in (("clip", CLIP), ("band", BAND))},
    }  # fmt: skip
    worlds = grid.run(node, tmp_path)
    settings = dataclasses.replace(labs.lab_of(TINY).settings, learning_rate=0.002)
    runs = fast_lab.train(settings, BAND["objective"], range(3), start_seed=0)
    for name, column in {"final": "lab/right", "entropy": "entropy", "lost_up": "cut/high_fraction"}.items():
        means = [statistics.fmean(row[column] for row in rows) for rows in runs]  # of two rounds, all of them
        assert worlds["tiny"][name][1, 1] == pytest.approx(means)
    *_, last = grid.rows(node, worlds)
    assert "pass4" not in last  # a lab knows samples, not probabilities
    assert len(last["reward_course"].split()) == grid.POINTS + 1


def test_what_is_trained_is_what_the_cell_says(start, monkeypatch):
    calls = []
    monkeypatch.setattr(labs, "train", lambda *a, **k: calls.append((a, k)) or [[row(0.6, 1.0)]] * len(a[2]))
    run_cells([made(learner=BAND)])
    run_cells([made({"lab": "rare-and-noisy"}, CLIP)])
    (settings, objective, seeds), more = calls[0]
    assert (settings.learning_rate, settings.rounds, settings.flip) == (0.002, 2, 0.05)
    assert (objective.trust_region.delta, objective.positive_weight, seeds) == (0.05, 0.85, [0, 1])
    assert more == {"start_seed": 0, "measure": False}
    assert calls[1][1] == {"start_seed": None, "measure": False}


def test_the_key_is_that_of_the_content(monkeypatch):
    key = made({"lab": "rare-and-noisy"}).key
    assert key == made({"lab": "rare-and-noisy", "rounds": 64, "flip": 0.05}).key
    changes = {"rounds": 48}, {"start_seed": 0}
    others = [*({"lab": "rare-and-noisy", **each} for each in changes), {"lab": "storm"}, "rare and noisy"]
    assert len({key, *(made(each).key for each in others)}) == 5
    for name, value in (("GROUP", 16), ("VERSION", 99)):
        with monkeypatch.context() as patch:
            patch.setattr(labs, name, value)
            cells._content.cache_clear()
            assert made({"lab": "rare-and-noisy"}).key != key
    cells._content.cache_clear()


WORLDS = {
    "a scene": ({"lab": "bth"}, "worlds.0: scene must be one of"),
    "no scene": ({"lab": ["rare and noisy"]}, "worlds.0: scene must be one of"),
    "a typo": ({"lab": "rare-and-noisy", "round": 3}, "worlds.0: unknown key 'round' in lab, did you mean 'rounds'"),
    "a world's field": ({"lab": "rare-and-noisy", "epochs": 3}, "worlds.0: unknown key 'epochs' in lab"),
    "the learner's": ({"lab": "rare-and-noisy", "learning_rate": 0.1}, "worlds.0: learning_rate is not the lab's"),
    "a value": ({"lab": "rare-and-noisy", "rounds": 0}, "worlds.0: rounds must be a positive integer, got 0"),
    "a word": ({"lab": "rare-and-noisy", "flip": "much"}, "worlds.0: flip must be a number, got 'much'"),
    "a start": (
        {"lab": "rare-and-noisy", "start_seed": -1},
        "worlds.0: start_seed must be a whole number of at least 0, got -1",
    ),
}


@pytest.mark.parametrize(("world", "told"), WORLDS.values(), ids=WORLDS)
def test_a_world_that_cannot_be_is_told_by_its_place(world, told):
    with pytest.raises(UserError, match=f"contest: {told}"):
        make_contest(node_of(worlds=[world]))


REFUSED = {
    "twice": (
        {"worlds": [{"lab": "rare-and-noisy"}, {"lab": "rare-and-noisy", "rounds": 64}]},
        r"worlds\.1: .* is there twice, as worlds\.0",
    ),
    "a number": (
        {"numbers": ["final", "work", "kl"]},
        r"numbers\.2: unknown number 'kl' of 'lab rare-and-noisy', .* which has final, mean, half, work",
    ),
    "a penalty of its own": (
        {"families": [*TWO_FAMILIES, {"name": "kl", "objective": {"type": "objective", "beta": 0.1}}]},
        "families.2: 'kl' cannot be in 'lab rare-and-noisy', .*beta must be 0.0",
    ),
    **{
        name: (
            {"controls": [{"name": "none"}, {"name": "other", name: value}]},
            rf"controls\.1\.{name}: 'other' cannot be in 'lab rare-and-noisy', .* positive_weight and objective alone",
        )
        for name, value in {"beta": 0.01, "entropy_bonus": 0.01, "balanced": True, "by_chance": True}.items()
    },
}  # fmt: skip


@pytest.mark.parametrize(("changes", "told"), REFUSED.values(), ids=REFUSED)
def test_what_the_lab_cannot_do_is_refused_before_anything_runs(changes, told):
    with pytest.raises(UserError, match=told):
        make_contest(tiny(**{"worlds": ["rare and noisy", {"lab": "rare-and-noisy"}], **changes}))


def test_a_smoke_test_of_the_command(start, tmp_path, capsys):
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(tiny(numbers=["final", "work"], widen=False), sort_keys=False))
    assert main([str(tmp_path / "lab.yaml"), "--smoke", "--jobs", "1", "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "lab rare-and-noisy, rounds 2, start seed 0, prompts 2" in out
    assert len((tmp_path / "out" / "rows.jsonl").read_text().splitlines()) == 2 * (2 + 1 + 1)


@pytest.mark.slow
def test_the_contest_of_the_lab_runs(start, tmp_path, capsys):
    assert main([str(FOLDER / "lab.yaml"), "--smoke", "-o", str(tmp_path), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [len(table["families"]) for table in results["tables"]] == [8] * 2
