"""The measurement extinction: it freezes what it says, rounds taken apart are those of the run, and its chain walks."""

import numpy as np
import pytest
from scripts import load

import bandpo
from research.worlds import Learner, train
from research.worlds import scene as scene_of
from research.worlds.world import make_world

pytest.importorskip("numba")


@pytest.fixture(scope="module")
def script():
    return load("research/measurements/extinction.py")


SCENE = {"base": "rare and noisy", "rounds": 6, "p_work": 0.2}
RULE = bandpo.Clip(0.2, 1), {}


def test_nothing_frozen_is_training_itself(script):
    plain = train(SCENE, [Learner(RULE[0], 0.02)], range(5), engine="numba", curves=True)["p_work"]
    np.testing.assert_array_equal(script.train(SCENE, RULE, [0.02], range(5)), plain)


def test_all_positive_tokens_frozen_is_a_positive_weight_of_0(script):
    names = [name for name in script.FREEZES if name.split()[0] in ("first", "later") and name.endswith(" +")]
    p_work = script.train(
        SCENE, RULE, [0.02], range(5), lambda v: np.any([script.FREEZES[name](v) for name in names], 0)
    )
    wanted = train(SCENE, [Learner(RULE[0], 0.02, positive_weight=0.0)], range(5), engine="numba", curves=True)
    assert len(names) == 4
    np.testing.assert_allclose(p_work, wanted["p_work"], rtol=1e-9)


def test_common_positive_tokens_frozen_is_the_weight_from_that_probability_on(script):
    names = ("first common +", "later common +")
    p_work = script.train(
        SCENE, RULE, [0.02], range(5), lambda v: np.any([script.FREEZES[name](v) for name in names], 0)
    )
    learner = Learner(RULE[0], 0.02, positive_weight=0.0, positive_from=script.COMMON)
    np.testing.assert_allclose(p_work, train(SCENE, [learner], range(5), curves=True)["p_work"], rtol=1e-9)


def test_groups_are_those_with_a_bad_answer_and_the_others(script):
    """By a loop over the responses of a round; and of all tokens about a half is drawn."""
    scene = scene_of({"base": "rare and noisy", "p_bad": 0.3, "rounds": 1})
    runs = script.Runs(make_world(scene, range(6)), [(Learner(RULE[0], 0.02), i) for i in range(6)], lambda v: v["up"])
    seen = []
    runs.frozen = lambda v: seen.append({name: x.copy() for name, x in v.items()}) or v["up"]
    runs.train()
    (views,), tokens, size = seen, runs.drawn.tokens, scene.responses_per_prompt
    for lane in range(6):
        for response in range(scene.responses):
            start = response // size * size
            wanted = any(tokens[lane, i, 0] > script.GUESS for i in range(start, start + size))
            assert (views["bad group"][lane, response] == wanted).all()
    assert 0 < views["bad group"][:6, :, 0].mean() < 1
    assert views["coin"][..., 0].mean() == pytest.approx(0.5, abs=0.15)
    both = [script.FREEZES[name](views) for name in script._QUIET[1:]]
    np.testing.assert_array_equal(both[0] | both[1], script.FREEZES["all in quiet rounds"](views))
    assert not (both[0] & views["bad group"]).any()
    assert (both[1] <= views["bad group"]).all()


def test_other_groups_are_as_many_and_none_of_those_in_whose_place_they_are(script):
    scene = scene_of({"base": "rare and noisy", "p_bad": 0.3, "rounds": 40})
    lanes = [(Learner(RULE[0], 0.02), i) for i in range(6)]
    seen = []
    runs = script.Runs(make_world(scene, range(6)), lanes, lambda v: v["up"])
    names = ("quiet rounds, groups with a bad answer", "as many other groups")

    def frozen(views):
        ours, others = (script.FREEZES[name](views)[:6, ::8, 0] for name in names)
        seen.append((ours, others, views["up"][:6].any(2).reshape(6, -1, 8).any(2)))
        return views["up"]

    runs.frozen = frozen
    runs.train()
    ours, others, pushed = np.array(seen).swapaxes(0, 1)  # (rounds, runs, groups) each
    assert not (ours & others).any()
    assert (others <= pushed).all()  # a group without an advantage would be frozen for nothing
    owed = np.cumsum(ours.sum(2) - others.sum(2), 0)
    assert owed.min() >= 0  # never more
    assert (owed[-1] == 0).any()
    assert ours.sum() > 60
