"""Training: the reference against a loop by hand and the exact gradient, the compiled engine against the reference."""

import dataclasses
import hashlib
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import bandpo
from bandpo import Band, ByProbability, BySign, Clip, Objective
from bandpo.losses.nodes import methods
from research.rules.adaptive import Adaptive, Tilt
from research.rules.batch import GroupClip, Stale
from research.worlds import Learner, Scene, make_world, reference, scene, train, why_not_numba
from research.worlds.learner import ANCHORS
from research.worlds.rounds import CUTS, Trace, start_of_round
from research.worlds.scenes import SAMPLERS
from research.worlds.world import exact, log_softmax, sample, sampler_table

WIDE = Clip(0.2, 1.0)
BY_ENTROPY = Adaptive(Band("kl", 0.05), Tilt("entropy", 0.5))
HEAD_BAND = BySign(ByProbability(0.2, WIDE, Band("kl", 0.0005)), Clip(0.02, 1))
SHORT = scene({"base": "rare and noisy", "rounds": 4, "p_work": 0.1})


def apart(chosen, learner, seeds=(3,)):
    """The largest difference between the two engines, in any number."""
    one, other = (train(chosen, [learner], seeds, engine=engine, curves=True) for engine in ("torch", "numba"))
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


BITS = {"bfloat16": (8, -133, 3.39e38), "float8_e4m3fn": (4, -9, 448.0), "float8_e5m2": (3, -16, 57344.0)}


def rounded(x, dtype):
    """The nearest number with so many bits of mantissa, of at least the smallest step, the even one of two; at most the
    largest."""
    bits, smallest, most = BITS[dtype]
    step = 2.0 ** np.maximum(np.frexp(x)[1] - bits, smallest)
    return np.clip(np.rint(x / step) * step, -most, most)


def by_hand(
    chosen, low, high, rate, seed, *, weight=1.0, weight_from=0.0, bonus=0.0, beta=0.0, balanced=False, anchor="sampler"
):
    """PPO's clip [low, high] in plain numpy, token by token: the reward before each round, and the shares of cuts."""
    world = make_world(chosen, [seed])
    w, x = world.weights[0].copy(), world.features[0].reshape(-1, chosen.features + 2)
    mean, square, done = np.zeros_like(w), np.zeros_like(w), 0
    tables, samplers, rewards = [], [], []
    cut: dict[str, float] = dict.fromkeys(CUTS, 0.0)
    seen = dict(cut)
    for r in range(chosen.rounds + 1):
        tables.append(log_softmax(x @ w))
        samplers.append(log_softmax(rounded(x @ w, chosen.sampler)) if chosen.sampler else tables[-1])
        rewards.append(float(exact(chosen, tables[-1], world.right[0]).reward))
        if r == chosen.rounds:
            break
        drawer = samplers[max(0, r - chosen.stale)]
        old = drawer if anchor == "sampler" else tables[-1]
        batch = sample(world, 0, drawer, r)
        per_group = batch.rewards.reshape(-1, chosen.responses_per_prompt)
        deviation = per_group.std(1, ddof=1, keepdims=True) + 1e-6
        advantages = ((per_group - per_group.mean(1, keepdims=True)) / deviation).ravel()
        size = chosen.responses // chosen.minibatches
        for step in range(chosen.epochs * chosen.minibatches):
            rows = range(step % chosen.minibatches * size, (step % chosen.minibatches + 1) * size)
            logps, gradient, count = log_softmax(x @ w), np.zeros_like(w), 0
            pushes, ratios = 0.0, 1e-300
            rho = np.exp(old - drawer)
            weights = {"tis": np.minimum(rho, 2), "icepop": np.where((rho >= 0.5) & (rho <= 5), rho, 0.0)}
            of_table = weights.get(anchor, np.ones_like(rho))
            for n, t in itertools.product(rows, range(chosen.length)):
                a, ratio = advantages[n], math.exp((logps - old)[batch.states[n, t], batch.tokens[n, t]])
                inside = ratio <= high if a > 0 else ratio >= low
                if balanced and batch.mask[n, t] and a != 0 and inside:
                    pushes, ratios = pushes + ratio * a, ratios + ratio
            for n in rows:
                for t in range(chosen.length):
                    if not batch.mask[n, t]:
                        continue
                    state, token, a = batch.states[n, t], batch.tokens[n, t], advantages[n]
                    a *= weight if a > 0 and old[state, token] >= math.log(max(weight_from, 1e-300)) else 1.0
                    a *= of_table[state, token]
                    if a != 0:
                        moved = a - pushes / ratios
                        a = moved if moved * a > 0 else 0.0
                    count += 1
                    p = np.exp(logps[state])
                    along = np.outer(x[state], np.eye(chosen.tokens)[token] - p)  # the gradient of log p
                    entropy = -(p * logps[state]).sum()
                    gradient += bonus * np.outer(x[state], -p * (logps[state] + entropy))
                    gradient += beta * math.expm1(tables[0][state, token] - logps[state, token]) * along
                    ratio = math.exp(logps[state, token] - old[state, token])
                    inside = ratio <= high if a > 0 else ratio >= low
                    if step >= chosen.epochs * chosen.minibatches - chosen.minibatches and a != 0:
                        where = "rare" if old[state, token] < math.log(0.2) else "head"
                        name = f"cut_{where}_{'up' if a > 0 else 'down'}"
                        seen[name] += ratio * abs(a)
                        cut[name] += 0 if inside else ratio * abs(a)
                    if inside:
                        gradient += ratio * a * along
            gradient /= count
            done += 1
            if chosen.sgd:
                w += rate * gradient
                continue
            b1, b2 = chosen.betas
            mean, square = b1 * mean + (1 - b1) * gradient, b2 * square + (1 - b2) * gradient**2
            w += rate * (mean / (1 - b1**done)) / (np.sqrt(square / (1 - b2**done)) + 1e-8)
    return np.array(rewards), {name: cut[name] / seen[name] if seen[name] else 0.0 for name in CUTS}


@pytest.mark.parametrize(
    ("changed", "rate", "controls"),
    [
        ({}, 0.05, {}),
        ({"stale": 2, "flip": 0.2}, 0.05, {}),
        ({"sgd": True}, 2.0, {}),
        ({"minibatches": 1}, 0.1, {}),
        ({}, 0.05, {"entropy_bonus": 0.05}),
        ({}, 0.05, {"beta": 0.2}),
        ({}, 0.05, {"positive_weight": 0.7, "positive_from": 0.3}),
        ({}, 0.05, {"balanced": True}),
        ({"luck": 0.5, "flip": 0.2}, 1.0, {"balanced": True}),  # so fast that advantages change their signs
        ({"sampler": "float8_e4m3fn"}, 0.05, {}),
        ({"sampler": "bfloat16"}, 0.05, {"anchor": "trainer"}),
        ({"sampler": "float8_e5m2", "stale": 1}, 0.2, {"anchor": "tis"}),
        ({"sampler": "float8_e5m2", "stale": 3}, 0.3, {"anchor": "icepop", "entropy_bonus": 0.05}),
    ],
)
def test_the_reference_is_a_loop_by_hand(changed, rate, controls):
    chosen = dataclasses.replace(
        Scene(steps=2, tokens=5, prompts=4, features=4, prompts_per_round=4, responses_per_prompt=6, rounds=5),
        p_work=0.3, minibatches=2, epochs=3, sharpness=2.0, betas=(0.8, 0.95),
    )  # fmt: skip
    chosen = dataclasses.replace(chosen, **changed)
    names = {"entropy_bonus": "bonus", "positive_weight": "weight", "positive_from": "weight_from"}
    rewards, cuts = by_hand(chosen, 0.9, 1.1, rate, seed=5, **{names.get(key, key): x for key, x in controls.items()})
    results = train(chosen, [Learner(Clip(0.1, 0.1), rate, **controls)], [5], engine="torch", curves=True)
    np.testing.assert_allclose(results["reward"][0, 0], rewards, rtol=1e-10)
    for rule in (Clip(0.1, 0.1), "no-clip"):
        assert apart(chosen, Learner(rule, rate, **controls), [5]) < 1e-9
    assert max(cuts.values()) > 0.05
    for name, share in cuts.items():
        np.testing.assert_allclose(results[name][0, 0], share, rtol=1e-10)


@pytest.mark.parametrize("dtype", SAMPLERS)
def test_logits_are_rounded_to_the_nearest_number_of_the_dtype(dtype):
    logits = np.random.default_rng(0).normal(size=(50, 16)) * np.logspace(-4, 1, 50)[:, None]
    logits[0, :6] = [1.0625, 1.1875, 2.5, 1.00390625, 0.0, 1e6]  # in the middle of two; nothing; too large
    table = sampler_table(scene({"sampler": dtype}), logits, np.eye(16), np.eye(16))
    assert (table == log_softmax(rounded(logits, dtype))).all()
    assert not np.allclose(table, log_softmax(logits), atol=1e-4)
    hidden = sampler_table(scene({"sampler": dtype, "hidden": True}), logits, np.eye(16), 2 * np.eye(16))
    assert (hidden == log_softmax(rounded(np.tanh(2 * logits), dtype))).all()


@pytest.mark.parametrize("dtype", SAMPLERS)
def test_with_weights_the_expected_gradient_is_that_of_the_trainers_policy(dtype):
    """Every token of a state is answered once. In the mean over what the sampler draws, sum of p A is to grow."""
    logits = torch.tensor([[1.7, -2.6, 0.33, -1.1]], dtype=torch.float64, requires_grad=True)
    table = torch.log_softmax(logits, -1)
    drawn = torch.from_numpy(
        sampler_table(scene({"sampler": dtype}), logits.detach().numpy(), np.eye(4), np.eye(4))
    )  # fmt: skip
    chosen = Scene(steps=1, prompts_per_round=1, minibatches=1, responses_per_prompt=4)
    mask, rewards = torch.tensor([[True, False]]).expand(4, 2), torch.tensor([0.0, 1.0, 0.0, 1.0])

    def expected(anchor):
        old, rollout = (x.detach().T.expand(4, 2) for x in (table, drawn))
        learner = Learner("no-clip", 1.0, anchor=anchor)
        start = start_of_round(chosen, learner, old, -old, mask, rewards, 0, rollout)
        loss = bandpo.policy_loss(table.T.expand(4, 2), old, start.advantages, mask, Objective(aggregation="none"))[0]
        return torch.autograd.grad(-(loss[:, 0] * drawn[0].exp()).sum(), logits, retain_graph=True)[0]

    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    wanted = torch.autograd.grad((table[0].exp() * advantages).sum(), logits, retain_graph=True)[0]
    for anchor in ("tis", "icepop"):
        torch.testing.assert_close(expected(anchor), wanted, rtol=1e-9, atol=1e-9)
    assert (expected("trainer") - wanted).abs().max() > 1e-4


@pytest.mark.parametrize("engine", ["torch", "numba"])
def test_all_anchors_are_the_same_where_the_sampler_is_the_trainer(engine):
    learners = [Learner("grpo", 0.05, anchor=anchor) for anchor in ANCHORS]
    results = train(SHORT, learners, [3], engine=engine, curves=True)
    assert all((numbers == numbers[:1]).all() for numbers in results.values())


def test_a_step_goes_along_the_gradient_of_the_exact_reward():
    """With very many responses GRPO's first step is the gradient of each prompt's reward over its deviation."""
    chosen = Scene(
        prompts=4,
        prompts_per_round=4,
        minibatches=1,
        epochs=1,
        rounds=1,
        responses_per_prompt=20000,
        sgd=True,
        p_work=0.3,
    )
    world = make_world(chosen, [2])
    run = reference._Run(world, Learner(Clip(1, math.inf), 1.0), 0, Trace.empty(chosen, 1), 0)
    run.train()
    step = run.parameters[0].detach() - torch.from_numpy(world.weights[0])
    w = torch.from_numpy(world.weights[0].copy()).requires_grad_()
    p = torch.log_softmax(run.features @ w, -1).exp().view(4, 5, 16)
    solved = p[:, 1:].gather(2, torch.from_numpy(world.right[0])[..., None]).prod(1)[:, 0]
    value = p[:, 0, 0] * solved + chosen.luck * p[:, 0, 1]
    (value / (value * (1 - value)).sqrt().detach()).sum().backward()
    assert w.grad is not None
    assert torch.cosine_similarity(step.flatten(), w.grad.flatten(), dim=0) > 0.999


@pytest.mark.parametrize(
    "rule",
    [
        Clip(0.0, 0.0), WIDE, Band("kl", 0.01), HEAD_BAND, bandpo.trust_regions.RIPO(0.01), "dual-clip", "ce-gppo",
        "dgpo", "cispo",
        "up", BY_ENTROPY, Objective(Clip(0.01, 0.01), surrogate=("mask_two_sided", "mask")),
        Objective(Band("tv", 0.02), surrogate="mask", max_log_ratio=0.05), Stale(Clip(0.02, 0.02)),
    ],
)  # fmt: skip
def test_the_compiled_engine_is_the_reference(rule):
    assert apart(SHORT, Learner(rule, 0.05)) < 1e-9


@pytest.mark.parametrize(
    "controls",
    [
        {"positive_weight": 0.5, "positive_from": 0.2},
        {"positive_weight": 0.0},
        {"entropy_bonus": 0.02},
        {"beta": 0.1},
        {"balanced": True},
        {"balanced": True, "positive_weight": 0.5, "beta": 0.1},
        {"by_chance": True},
        {"by_chance": True, "positive_weight": 0.9, "entropy_bonus": 0.01, "beta": 0.05},
    ],
)
def test_controls_are_the_same_in_both_engines(controls):
    plain, learner = Learner(Clip(0.02, 0.02), 0.05), Learner(Clip(0.02, 0.02), 0.05, **controls)
    assert apart(SHORT, learner) < 1e-9
    without, with_it = train(SHORT, [plain, learner], [3])["mean"]
    assert without != with_it


@pytest.mark.parametrize(
    ("node", "rate"),
    [
        ({"base": "hidden", "rounds": 4}, 0.005),
        ({"base": "ways", "rounds": 4, "prompts": 16, "unseen": 8}, 0.08),
        ({"base": "ways", "rounds": 3, "hidden": True, "flip": 0.2}, 0.02),
        ({"base": "stale", "rounds": 6}, 0.03),
        ({"base": "rare and noisy", "rounds": 5, "sgd": True}, 3.0),
        ({"base": "hidden", "rounds": 4, "sgd": True, "stale": 1}, 0.1),
        ({"base": "long", "rounds": 3}, 0.03),
        ({"base": "many", "rounds": 3}, 0.03),
        (
            {
                "base": "rare and noisy",
                "rounds": 5,
                "prompts_per_round": 3,
                "minibatches": 3,
                "responses_per_prompt": 3,
            },
            0.05,
        ),
        ({"base": "hidden", "rounds": 4, "sampler": "float8_e5m2", "stale": 1}, 0.005),
    ],
)
def test_scenes_are_the_same_in_both_engines(node, rate):
    chosen = scene(node | {"p_work": 0.1})
    anchor = "tis" if chosen.sampler else "sampler"
    assert apart(chosen, Learner(Band("kl", 0.02), rate, anchor=anchor)) < 1e-9


@pytest.mark.parametrize(
    "node",
    [
        {"base": "rare and noisy", "rounds": 4, "sampler": "bfloat16"},
        {"rounds": 4, "prompts_per_round": 1, "minibatches": 1, "responses_per_prompt": 7},
    ],
)
def test_a_run_is_the_same_alone_and_among_others(node):
    """Bit for bit, for rules whose arithmetic differs at the end of a row of numbers too."""
    chosen, seeds = scene(node | {"p_work": 0.2}), [8, 1, 5, 2, 9]
    rules = (
        Clip(0.1, 0.3),
        bandpo.trust_regions.RIPO(0.01),
        Band("kl", 0.01),
        BY_ENTROPY,
        GroupClip(0.1, 0.3, 3),
    )
    learners = [Learner(rule, rate) for rule in rules for rate in (0.03, 0.05)]
    learners += [
        Learner(WIDE, 0.05, anchor="tis"),
        Learner(WIDE, 0.05, by_chance=True),
        Learner(Objective(bandpo.trust_regions.RIPO(0.01), surrogate="weight"), 0.05),
    ]
    whole = train(chosen, learners, seeds, curves=True)
    for (i, learner), (j, seed) in itertools.product(enumerate(learners), enumerate(seeds)):
        for name, numbers in train(chosen, [learner], [seed], curves=True).items():
            assert (numbers[0, 0] == whole[name][i, j]).all(), (name, learner)


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.name)
def test_every_method_runs(method):
    chosen = scene({"base": "rare and noisy", "rounds": 1, "epochs": 2, "p_work": 0.2})
    learner = Learner(method.name, 0.05)
    assert learner.objective.trust_region == method.objective.trust_region
    assert np.isfinite(train(chosen, [learner], [1])["final"]).all()
    reason = why_not_numba(learner)
    if reason is not None:
        with pytest.raises(ValueError, match=r"(?s)engine 'numba' cannot run Learner\(.*; engine 'torch' can"):
            train(chosen, [learner], [1], engine="numba")


@dataclass(frozen=True)
class OfTheMean(bandpo.Region):
    """A rule that looks at all tokens at once."""

    kind: ClassVar[str] = "test_worlds_of_the_mean"

    def bounds(self, old_logps, context=None):
        high = -0.1 * old_logps.mean().expand(old_logps.shape)
        return bandpo.Bounds(-high, high)


def test_a_rule_that_looks_at_the_whole_batch_is_not_compiled():
    assert why_not_numba(Learner(OfTheMean(), 0.05)) == "its bounds depend on what else is in the batch"
    assert np.isfinite(train(SHORT, [Learner(OfTheMean(), 0.05)], [1])["final"]).all()


def test_the_numbers_are_those_of_the_curves():
    results = train("rare and noisy", [Learner(WIDE, rate) for rate in (0.002, 0.02)], range(3), curves=True)
    reward, work = results["reward"], results["p_work"]
    assert reward.shape == (2, 3, 65)
    np.testing.assert_allclose(results["final"], reward[..., -4:].mean(-1))
    np.testing.assert_allclose(results["mean"], reward.mean(-1))
    np.testing.assert_allclose(results["peak"], reward.max(-1))
    np.testing.assert_allclose(results["work"], work[..., -1])
    for learner, seed in np.ndindex(2, 3):
        above = np.flatnonzero(work[learner, seed] > 0.5)
        assert results["half"][learner, seed] == (above[0] if len(above) else 65)
    assert {65} < set(results["half"].flatten().tolist())
    assert (results["skill"] > 0.5).all()
    assert (results["kl"] > 0).all()


def test_chance_cuts_as_much_as_the_rule_for_each_sign_and_octave():
    rng, count = torch.Generator().manual_seed(0), 40000
    old = torch.rand(count, 1, generator=rng, dtype=torch.float64).log()
    logps = old + 0.1 * torch.randn(count, 1, generator=rng, dtype=torch.float64)
    mask = torch.rand(count, 1, generator=rng) < 0.9
    advantages = torch.randn(count, 1, generator=rng, dtype=torch.float64)
    gate = torch.rand(count, 1, generator=rng, dtype=torch.float64)
    context = bandpo.Context(advantages=advantages, response_mask=mask)
    gates = reference._by_chance(Objective(Clip(0.05, 0.1)), logps, old, mask, context, gate)
    ratio = (logps - old).exp()
    cut = torch.where(advantages > 0, ratio > 1.1, ratio < 0.95)
    for octave in range(4):
        for up in (True, False):
            here = mask & (old / -math.log(2) >= octave) & (old / -math.log(2) < octave + 1) & ((advantages > 0) == up)
            mass = advantages[here].abs()
            rate, share = (mass * cut[here]).sum() / mass.sum(), (mass * (1 - gates[here])).sum() / mass.sum()
            error = float((rate * (1 - rate) * (mass**2).sum()).sqrt() / mass.sum())
            assert abs(share - rate) < 4 * error
    assert not torch.equal(gates == 0, cut)


def test_chance_does_nothing_where_the_rule_cuts_nothing():
    none, chance = train(SHORT, [Learner("no-clip", 0.05), Learner("no-clip", 0.05, by_chance=True)], [1, 2])["final"]
    np.testing.assert_allclose(none, chance, rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "grppo"}, "no method or rule is called 'grppo'"),
        ({"learning_rate": 0}, r"learning_rate of Learner must be a number in \(0, inf\), got 0"),
        ({"positive_weight": -1}, "positive_weight of Learner must be"),
        ({"positive_from": 0.5}, "positive_from of Learner is 0.5, which without a positive_weight other"),
        (
            {"objective": Objective(WIDE, positive_weight=0.9), "positive_weight": 0.5, "positive_from": 0.2},
            "positive_from of Learner must be 0 for an objective with a positive_weight, .* got 0.2 and 0.9",
        ),
        ({"positive_from": 2}, r"positive_from of Learner must be a number in \[0, 1\], got 2"),
        ({"by_chance": 1}, "by_chance of Learner must be true or false, got 1"),
        ({"balanced": "yes"}, "balanced of Learner must be true or false, got 'yes'"),
        ({"anchor": "trainr"}, r"anchor of Learner must be one of \['sampler', 'trainer', .* got 'trainr'"),
        ({"balanced": True, "by_chance": True}, "balanced and by_chance of Learner do not go together"),
        (
            {"objective": Objective(WIDE, aggregation="seq-mean-token-sum")},
            "aggregation of a Learner's objective must be",
        ),
        ({"objective": Objective(WIDE, beta=0.1), "beta": 0.2}, "give one, got 0.2 and 0.1"),
        ({"objective": "gspo", "by_chance": True}, "by_chance of Learner goes with an objective that cuts tokens"),
        ({"objective": "cispo", "by_chance": True}, "by_chance of Learner goes with an objective that cuts tokens"),
    ],
)
def test_what_a_learner_cannot_be_is_said(arguments, message):
    with pytest.raises(ValueError, match=message):
        Learner(**{"objective": WIDE, "learning_rate": 0.1} | arguments)


def test_the_weight_of_an_objective_is_multiplied_to_the_learners():
    one = Learner(Objective(WIDE, positive_weight=0.9), 0.05, positive_weight=0.5)
    assert one == Learner(WIDE, 0.05, positive_weight=0.45)
    for engine in ("numba", "torch"):
        weighted = train(SHORT, [Learner(Objective(WIDE, positive_weight=0.5), 0.05)], [1], engine=engine)["final"]
        np.testing.assert_array_equal(
            weighted, train(SHORT, [Learner(WIDE, 0.05, positive_weight=0.5)], [1], engine=engine)["final"]
        )
        assert weighted != train(SHORT, [Learner(WIDE, 0.05)], [1], engine=engine)["final"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learners": []}, "learners must not be empty"),
        ({"seeds": []}, "seeds must not be empty"),
        ({"learners": [WIDE]}, "learners must be research.worlds.Learner, got Clip"),
        ({"engine": "jax"}, "engine must be 'torch', 'numba' or None, got 'jax'"),
        ({"scene": "bot"}, "scene must be one of"),
    ],
)
def test_what_cannot_be_trained_is_said(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**{"scene": SHORT, "learners": [Learner(WIDE, 0.1)], "seeds": [1]} | arguments)


def test_what_is_compiled_is_of_the_arithmetic_that_is_there():
    from research.worlds import arithmetic, draws, kernel

    told = hashlib.sha256(b"".join(Path(str(file.__file__)).read_bytes() for file in (arithmetic, draws)))
    assert told.hexdigest()[:12] == kernel.MADE_WITH, "write the first into kernel.py, so that numba compiles anew"


def test_the_compiled_exponential_is_that_of_numpy():
    from research.worlds import arithmetic

    x = np.concatenate([np.linspace(-708, 709, 20001), np.linspace(-1, 1, 20001), [0.0]])
    np.testing.assert_allclose([arithmetic.exp(each) for each in x], np.exp(x), rtol=5e-16, atol=0)
    assert arithmetic.exp(0.0) == 1
    assert arithmetic.exp(-np.inf) == arithmetic.exp(-708.0)


@pytest.mark.parametrize("engine", ["torch", "numba"])
def test_tokens_that_lose_their_gradient_are_counted_by_side(engine):
    tight = Clip(0.02, 0.02)
    rules = ("no-clip", tight, Clip(0.02, math.inf), Objective(tight, surrogate="mask_two_sided"))
    runs = [train(SHORT, [Learner(rule, 0.05)], [3], engine=engine) for rule in rules]
    none, clip, low_side, masked = ({name: float(values[0, 0]) for name, values in run.items()} for run in runs)
    assert none["lost_up"] == none["lost_down"] == none["above"] == none["below"] == 0
    assert 0 < clip["lost_up"] < clip["above"]  # a token above its bounds loses its gradient only if A > 0
    assert 0 < clip["lost_down"] < clip["below"]
    assert low_side["lost_up"] == 0 < low_side["lost_down"]
    assert masked["lost_up"] + masked["lost_down"] == pytest.approx(masked["above"] + masked["below"], rel=1e-12)
    assert none["ratio"] > clip["ratio"] > 1.02
