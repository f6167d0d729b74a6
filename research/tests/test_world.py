"""Scenes, draws and exact numbers: against the published generator, all paths, and simulation."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

from research.worlds import SCENES, Scene, draws, make_world, scene
from research.worlds.world import GUESS, WORK, divergence, entropies, exact, log_softmax, sample

SMALL = Scene(tokens=3, steps=2, prompts=3, prompts_per_round=2, minibatches=1, responses_per_prompt=4, luck=0.3)


def table_of(scene, seed=0):
    """Some policy."""
    rng = np.random.default_rng(seed)
    return log_softmax(rng.normal(size=(scene.prompts * scene.length, scene.tokens)))


def test_a_scene_is_found_by_name_and_changed_by_a_mapping():
    assert scene("rare and noisy") is SCENES["rare and noisy"]
    assert scene({"base": "rare and noisy", "flip": 0.1}) == dataclasses.replace(SCENES["rare and noisy"], flip=0.1)
    assert scene(SCENES["long"]) is SCENES["long"]
    assert scene({"rounds": 3}) == Scene(rounds=3)
    assert hash(scene({"base": "rare and noisy", "betas": [0.5, 0.9]})) == hash(
        dataclasses.replace(SCENES["rare and noisy"], betas=(0.5, 0.9))
    )


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("rare or noisy", "scene must be one of .* got 'rare or noisy', did you mean 'rare and noisy'"),
        ({"base": "rare and noisy", "flips": 0.1}, "unknown key 'flips' in scene, did you mean 'flip'"),
        ({"tokens": 2}, r"tokens of Scene must be a number in \[3, inf\), got 2"),
        ({"rounds": 1.5}, "rounds of Scene must be an integer, got 1.5"),
        ({"flip": 1.5}, r"flip of Scene must be a number in \[0, 1\], got 1.5"),
        ({"p_work": 0.6, "p_bad": 0.5}, "p_work \\+ p_bad of Scene must be below 1"),
        ({"free_steps": 5}, "free_steps of Scene must be at most steps = 4, got 5"),
        ({"minibatches": 3}, "minibatches of Scene must divide prompts_per_round = 8, got 3"),
        ({"prompts_per_round": 32}, "prompts_per_round of Scene must be at most prompts = 16, got 32"),
        ({"hidden": 1}, "hidden of Scene must be true or false, got 1"),
        ({"betas": [0.9, 1.0]}, r"betas of Scene must be two numbers in \[0, 1\), got \[0.9, 1.0\]"),
        ({"betas": [False, 0.9]}, r"betas of Scene must be two numbers in \[0, 1\), got \[False, 0.9\]"),
        ({"betas": None}, r"betas of Scene must be two numbers in \[0, 1\), got None"),
        ({"sampler": "float16"}, r"sampler of Scene must be one of \['bfloat16', .* or null, got 'float16'"),
        (3, "scene must be one of .* got 3"),
    ],
)
def test_what_a_scene_cannot_be_is_said(node, message):
    with pytest.raises(ValueError, match=message):
        scene(node)


def test_draws_are_those_of_the_published_generator():
    """The first numbers of SplitMix64 from the state 1234567, as they are listed for it."""
    state = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * draws.GOLDEN
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert draws.mix(state).tolist() == wanted


def test_draws_are_uniform_and_normal():
    seeds = range(50)
    uniform = draws.uniforms(seeds, draws.TOKENS, 3, 2000)
    assert 0 <= uniform.min() < uniform.max() < 1
    assert stats.chisquare(np.histogram(uniform, 64, (0, 1))[0]).pvalue > 1e-3
    # Neighbours in index, seed, purpose and round do not go together.
    others = (draws.uniforms(seeds, draws.TOKENS, 4, 2000), draws.uniforms(seeds, draws.LUCK, 3, 2000))
    for a, b in [(uniform[:, 1:], uniform[:, :-1]), (uniform[1:], uniform[:-1]), *((uniform, x) for x in others)]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / np.sqrt(a.size)
    normal = draws.normals(seeds, draws.TEACHER, (20, 50))
    assert normal.shape == (50, 20, 50)
    assert stats.kstest(normal.ravel(), "norm").pvalue > 1e-3


def test_a_draw_depends_on_its_key_alone():
    whole = draws.uniforms([5, 6, 7], draws.FLIP, 2, 100)
    assert (draws.uniforms([6], draws.FLIP, 2, 40)[0] == whole[1, :40]).all()
    grid = itertools.product(range(6), map(np.uint64, range(6)), range(6))
    assert len({float(draws.uniforms([seed], purpose, round, 1)[0, 0]) for seed, purpose, round in grid}) == 6**3
    assert (draws.normals([7, 5], draws.NOISE, (3, 2))[1] == draws.normals([5], draws.NOISE, (3, 2))[0]).all()


@pytest.mark.parametrize("name", sorted(set(SCENES) - {"ways"}))
def test_a_world_begins_with_its_priors(name):
    chosen = SCENES[name]
    world = make_world(chosen, range(6))
    first = np.exp(world.first_policy().reshape(6, chosen.prompts, chosen.length, -1)[:, :, 0]).mean(1)
    np.testing.assert_allclose(first[:, WORK], chosen.p_work, rtol=1e-9)
    np.testing.assert_allclose(first[:, GUESS], 1 - chosen.p_work - chosen.p_bad, rtol=1e-9)
    np.testing.assert_allclose(first[:, 2] / first[:, 3 if chosen.tokens > 3 else 2], 2, rtol=1e-9)
    skill = exact(chosen, world.first_policy(), world.right).skill
    assert (skill > 0.1).all()
    assert (skill < 0.99).all()


def test_several_ways_are_right_and_half_of_them_stay_so():
    chosen = SCENES["ways"]
    world = make_world(chosen, range(6))
    assert (world.ways.sum(-1) == 16).all()
    assert not (world.harder & ~world.ways).any()
    assert 0.45 < world.harder.sum() / world.ways.sum() < 0.55
    first = np.exp(world.first_policy()).reshape(6, chosen.prompts, chosen.tokens)
    right = (first * world.ways).sum(-1)
    numbers = exact(chosen, world.first_policy(), world.right, world.ways, world.harder)
    np.testing.assert_allclose(numbers.reward, right.mean(-1), rtol=1e-12)
    np.testing.assert_allclose(numbers.pass16, (1 - (1 - right) ** 16).mean(-1), rtol=1e-12)
    np.testing.assert_allclose(numbers.harder, (1 - (1 - (first * world.harder).sum(-1)) ** 32).mean(-1), rtol=1e-12)
    assert 0.2 < right.mean() < 0.45  # the first policy knows nothing of what is right
    alone = [world.on_unseen(0, world.weights[0], world.hidden[0])[0], float(numbers.reward[0])]
    assert abs(alone[0] - alone[1]) < 0.15


def test_a_world_is_the_same_alone_and_the_prompts_of_a_round_differ():
    whole, alone = make_world(SCENES["hidden"], [9, 3, 4]), make_world(SCENES["hidden"], [9])
    for name in ("features", "right", "weights", "hidden", "prompts"):
        assert (getattr(whole, name)[0] == getattr(alone, name)[0]).all(), name
    assert all(len(set(prompts)) == 4 for prompts in whole.prompts.reshape(-1, 4).tolist())
    counts = np.bincount(make_world(SCENES["rare and noisy"], range(40)).prompts.ravel(), minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-3
    np.testing.assert_allclose(alone.hidden[0] @ alone.hidden[0].T, np.eye(18), atol=1e-12)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True])
def test_a_seed_is_an_integer(seed):
    with pytest.raises(ValueError, match=r"seeds must be integers in \[0, 2\^64\), got"):
        make_world(SMALL, [seed])


@pytest.mark.parametrize("free", [0, 1, 2])
def test_the_expected_reward_is_the_sum_over_all_paths(free):
    small = dataclasses.replace(SMALL, free_steps=free)
    right = np.array([[0, 1], [2, 2], [1, 0]])
    table = table_of(small)
    p = np.exp(table).reshape(3, 3, 3)
    reward = work = skill = 0.0
    for c in range(3):
        for path in itertools.product(range(3), repeat=3):
            probability = np.prod([p[c, t, a] for t, a in enumerate(path)])
            solved = all(path[1 + t] == right[c, t] for t in range(free, 2))
            works = path[0] == WORK
            reward += probability * (float(solved) if works else small.luck * (path[0] == GUESS)) / 3
            work += probability * works / 3
            skill += probability * solved / 3
    numbers = exact(small, table, right)
    np.testing.assert_allclose([numbers.reward, numbers.p_work, numbers.skill], [reward, work, skill], rtol=1e-12)
    np.testing.assert_allclose(numbers.entropy, stats.entropy(np.exp(table), axis=1).mean())


def test_divergence_and_entropies_are_those_of_scipy():
    old, new = table_of(SMALL, 1), table_of(SMALL, 2)
    np.testing.assert_allclose(divergence(old, new), stats.entropy(np.exp(old), np.exp(new), axis=1).mean())
    np.testing.assert_allclose(entropies(old), stats.entropy(np.exp(old), axis=1))


def test_responses_are_drawn_from_the_policy_and_rewarded_as_they_should():
    many = dataclasses.replace(SMALL, responses_per_prompt=20000, flip=0.1)
    world, table = make_world(many, [11]), table_of(many, 3)
    batch = sample(world, 0, table, round=7)
    for g, c in enumerate(world.prompts[0, 7]):
        part = slice(g * 20000, (g + 1) * 20000)
        tokens, mask = batch.tokens[part], batch.mask[part]
        assert (batch.states[part] == c * 3 + np.arange(3)).all()
        assert (mask[:, 1:] == (tokens[:, :1] == WORK)).all()
        for t in range(3):
            counts = np.bincount(tokens[mask[:, t], t], minlength=3)
            wanted = np.exp(table[c * 3 + t]) * counts.sum()
            assert stats.chisquare(counts, wanted * counts.sum() / wanted.sum()).pvalue > 1e-3
        alone = dataclasses.replace(many, prompts=1, prompts_per_round=1)
        value = float(exact(alone, table[c * 3 : c * 3 + 3], world.right[0, c : c + 1]).reward)
        seen = 0.9 * value + 0.1 * (1 - value)
        assert abs(batch.rewards[part].mean() - seen) < 4 * np.sqrt(seen * (1 - seen) / 20000)
