"""Scenes of the lab as worlds of a contest: a run's numbers, rows that depend on their cell alone, what is refused.

Warm starts cost 20 s; the one here is untrained, and lies where every process looks for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from contests import killed, node_of

from bandpo.errors import UserError
from bandpo_runs import toy
from research.bench import cells, hold, labs, read_contest
from research.bench.__main__ import main
from research.bench.cells import batches, beginning, cell, run_cells, seconds_a_run
from research.bench.contest import name_of
from research.bench.labs import GROUP, lab_of
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
    found = labs._numbers([row(p, 0.0, x) for p, x in zip(work, right, strict=True)])
    assert found == pytest.approx({"final": 0.4, "mean": 2.9 / 7, "half": 2, "work": 0.6})
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


def test_what_is_trained_is_what_the_cell_says(start, monkeypatch):
    asked = []
    monkeypatch.setattr(labs, "train", lambda *a, **k: asked.append((a, k)) or [[row(0.6, 1.0)]] * len(a[2]))
    run_cells([made(learner=BAND)])
    run_cells([made({"lab": "rare-and-noisy"}, CLIP)])
    (settings, objective, seeds), more = asked[0]
    assert (settings.learning_rate, settings.rounds, settings.flip) == (0.002, 2, 0.05)
    assert (objective.trust_region.delta, objective.positive_weight, seeds) == (0.05, 0.85, [0, 1])
    assert more == {"start_seed": 0, "measure": False}
    assert asked[1][1] == {"start_seed": None, "measure": False}


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


def test_cells_of_the_lab_are_alone_since_each_takes_minutes():
    some = [made(seeds=range(1)), made(learner=BAND, seeds=range(1)), made("rare and noisy", seeds=range(1))]
    assert batches(some, 10**6) == [[each] for each in some]


def test_a_world_of_the_lab_has_a_name():
    assert name_of({"lab": "rare-and-noisy"}) == "lab rare-and-noisy"
    assert name_of({"lab": "rare-and-noisy", "start_seed": 0}) == "lab rare-and-noisy, start seed 0"


def controlled(kind: str, **law: Any) -> dict[str, Any]:
    region = {"type": "band", "divergence": "kl", "delta": 0.05}
    more = {"parameter": "delta", "measure": "clip/fraction", "target": 0.02, "low": 0.001, "high": 1}
    return {"type": kind, "region": region, "law": law, **(more if kind == "controlled" else {})}


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
    "a controller": (
        {"families": [*TWO_FAMILIES, {"name": "moving", "objective": controlled("controlled", type="pi")}]},
        "families.2: 'moving' cannot be in 'lab rare-and-noisy', a scene of the lab: Controlled "
        "needs controlled, which TRL does not give",
    ),
    "a law": (
        {"families": [*TWO_FAMILIES, {"name": "by entropy",
            "objective": controlled("adaptive", type="tilt", of="entropy", gain=0.5)}]},
        "families.2: 'by entropy' cannot be in 'lab rare-and-noisy', .*needs old_entropies, which TRL",
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


def test_what_it_can_do_is_not_refused():
    upper = {"type": "by_sign", "positive": "$rule", "negative": {"type": "clip", "eps_low": 1, "eps_high": 9}}
    controls = [{"name": "none"}, {"name": "less", "positive_weight": 0.85}, {"name": "up", "objective": upper}]
    contest = make_contest(
        tiny(worlds=["rare and noisy", {"lab": "tail", "rounds": 48}, {"lab": "rare-and-noisy"}], controls=controls)
    )
    world = contest.worlds[1]
    assert labs.is_lab(world)
    assert lab_of(world).settings.rounds == 48
    smaller = contest.smaller()
    assert smaller.worlds == (
        {"base": "rare and noisy", "rounds": 4},
        {"lab": "tail", "rounds": 3},
        {"lab": "rare-and-noisy", "rounds": 4},
    )


def test_the_time_of_a_run_is_that_of_its_rounds(monkeypatch):
    """With runs that take a second a round, and a minute for what is made once for a seed."""
    now, seen = [0.0], set()

    def slow(lab, learner, seeds):
        now[0] += lab.settings.rounds * len(seeds) + 60 * len({*seeds} - seen)
        seen.update(seeds)

    monkeypatch.setattr(labs, "numbers_of", slow)
    monkeypatch.setattr(labs.time, "perf_counter", lambda: now[0])
    assert seconds_a_run(make_contest(tiny(worlds=[{"lab": "rare-and-noisy"}]))) == 64


@pytest.mark.slow
def test_a_contest_in_the_lab_goes_on_and_gives_the_same_rows(start, tmp_path):
    """In processes of its own; then with rows missing, and with one that was changed."""
    stages = {
        "search": {"first": 0, "count": 2},
        "choose": {"first": 100, "count": 2},
        "judge": {"first": 200, "count": 9},
    }
    contest = make_contest(tiny(stages={**stages, "best": 1}, widen=False))
    whole = hold(contest, tmp_path / "one", jobs=2)
    path = tmp_path / "one" / "rows.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    assert sum(json.loads(each)["seeds"][1] for each in rows) == contest.fewest_runs == 2 * (2 * 2 + 2 + 9)
    path.write_text("".join(rows[:-2]))
    assert repr(hold(contest, tmp_path / "one", jobs=1)) == repr(whole)
    assert sorted(path.read_text().splitlines(keepends=True)) == sorted(rows)
    changed = [json.loads(each) for each in rows]
    for each in changed:
        each["work"][0] += 0.1
    path.write_text("".join(json.dumps(each) + "\n" for each in changed))
    with pytest.raises(UserError, match="run again, 'work' of seed"):
        hold(contest, tmp_path / "one")


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("research.bench.running.run_cells", killed)
    with pytest.raises(UserError, match=r"a worker was killed, .* the same command goes on"):
        hold(make_contest(tiny()), tmp_path, jobs=2)


def test_a_smoke_test_of_the_command(start, tmp_path, capsys):
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(tiny(numbers=["final", "work"], widen=False), sort_keys=False))
    assert main([str(tmp_path / "lab.yaml"), "--smoke", "--jobs", "1", "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "lab rare-and-noisy, rounds 2, start seed 0, prompts 2" in out
    assert len((tmp_path / "out" / "rows.jsonl").read_text().splitlines()) == 2 * (2 + 1 + 1)


def test_a_start_that_all_share_is_made_beforehand_and_told(monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(labs, "warm_start", lambda *given: asked.append(given[:2]) or given[2]("made"))
    told: list[str] = []
    labs.make_starts(["rare and noisy", {"lab": "tail", "start_seed": 7}, {"lab": "rare-and-noisy"}], told.append)
    assert (asked, told) == ([(0.005, 7)], ["made"])


def test_the_contest_of_the_lab_has_families_of_the_first_contest():
    contest, other = (read_contest(FOLDER / f"{name}.yaml") for name in ("lab", "rare_and_noisy"))
    assert contest.worlds == ({"lab": "rare-and-noisy", "start_seed": 0},)
    assert {each.name: each.objective for each in contest.families}.items() <= {
        each.name: each.objective for each in other.families
    }.items()
    assert contest.searched == 16
    rates = {rate for family in contest.families for rate in contest.axes(family)["learning_rate"]}
    assert (min(map(float, rates)), max(map(float, rates))) == (0.00003, 0.0004)
    assert contest.stages.judge.count % GROUP == contest.stages.choose.count % GROUP == 0
    assert 100 < contest.fewest_runs * 3.7 / 60 < 150  # minutes of a core, at the seconds that its head tells


@pytest.mark.slow
def test_the_contest_of_the_lab_runs(start, tmp_path, capsys):
    assert main([str(FOLDER / "lab.yaml"), "--smoke", "-o", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(table["families"]) for table in found["tables"]] == [8] * 2


@pytest.mark.slow
def test_no_process_is_left_by_a_kill(start, tmp_path):
    node = tiny(worlds=[{**TINY, "rounds": 20}])
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(node))
    command = [sys.executable, "-m", "research.bench", "one.yaml", "--jobs", "2", "-o", "killed"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    rows = tmp_path / "killed" / "rows.jsonl"
    while running.poll() is None and not (rows.exists() and rows.read_bytes().count(b"\n") > 1):
        time.sleep(0.02)
    assert running.poll() is None  # it was at work
    running.kill()
    running.communicate(timeout=20)  # its pipes are closed, so nobody else holds them
