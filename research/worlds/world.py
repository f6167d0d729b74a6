"""What depends on the seed and not on the rule, and the exact numbers of a policy. All of it is float64.

A state is a prompt and a position, so a policy is a table (states, tokens) of log-probabilities, states in the order of
prompts and positions within them, and its expected reward is a sum over prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from . import draws
from .scenes import Scene

Array = NDArray[Any]

WORK, GUESS = 0, 1
# Draws of a state of which the one with the clearest right token is taken.
_CHOICES = 4
# Steps towards the priors, each of which leaves less than half of what was missing.
_STEPS = 60


@dataclass(frozen=True, eq=False)
class World:
    """The worlds of some seeds, (S, ...) each; d is `scene.features` + 2, T `scene.length`.

    Attributes:
        scene: what they are made by.
        seeds: (S,), uint64.
        features: x, (S, prompts, T, d).
        right: (S, prompts, steps), the right token of each step.
        ways: (S, prompts, tokens), which tokens are right at once; none where scene.ways is 0.
        harder: those of them that a harder variant of the prompt leaves right, about half.
        unseen: (S, unseen, d), the features of prompts that are never trained on; unseen_ways: as `ways`.
        weights: (S, d, tokens), those of the first policy.
        hidden: (S, d, d), the first U, orthogonal; not used where scene.hidden is false.
        prompts: (S, rounds, prompts_per_round), those of each round.
    """

    scene: Scene
    seeds: Array
    features: Array
    right: Array
    ways: Array
    harder: Array
    unseen: Array
    unseen_ways: Array
    weights: Array
    hidden: Array
    prompts: Array

    def first_policy(self) -> Array:
        """(S, states, tokens), the log-probabilities before training."""
        x = np.tanh(self.features @ self.hidden[:, None]) if self.scene.hidden else self.features
        table = log_softmax(x @ self.weights[:, None])
        return table.reshape(len(self.seeds), -1, self.scene.tokens)

    def on_unseen(self, index: int, weights: Array, hidden: Array) -> tuple[float, float]:
        """pass@1 and pass@16 of a policy on the unseen prompts of the world of the seed at `index`; 0 without any."""
        if not self.scene.unseen:
            return 0.0, 0.0
        x = self.unseen[index]
        logits = (np.tanh(x @ hidden) if self.scene.hidden else x) @ weights
        right = (np.exp(log_softmax(logits)) * self.unseen_ways[index]).sum(-1)
        return right.mean(), pass_at(16, right).mean()


class Exact(NamedTuple):
    """The numbers of a policy, in the mean over prompts, (...,) each.

    Attributes:
        reward: the expected reward, before flips.
        p_work: the probability of "work".
        skill: the probability that all steps that matter are right, after "work".
        entropy: in nats, in the mean over all states.
        pass4, pass16, pass64: the probability that one of so many answers is right.
        harder: that one of 32 is right after about half of the right tokens stopped being so; 0 without `ways`.
    """

    reward: Array
    p_work: Array
    skill: Array
    entropy: Array
    pass4: Array
    pass16: Array
    pass64: Array
    harder: Array


def log_softmax(x: Array) -> Array:
    """x - log sum exp x over the last axis."""
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def pass_at(k: int, right: Array) -> Array:
    """The probability that one of k answers is right, where each is with probability `right`."""
    return -np.expm1(k * np.log1p(-np.minimum(right, 1 - 1e-15)))


def sampler_table(scene: Scene, features: Array, weights: Array, hidden: Array) -> Array:
    """(..., states, tokens): the log-probabilities of the policy that draws, whose logits are rounded to the nearest
    number of `scene.sampler`. One too large for it is the largest there is."""
    logits = (np.tanh(features @ hidden) if scene.hidden else features) @ weights
    dtype = getattr(torch, str(scene.sampler))
    most = torch.finfo(dtype).max
    return log_softmax(torch.from_numpy(logits).clamp(-most, most).to(dtype).double().numpy())


def make_world(scene: Scene, seeds: Sequence[int]) -> World:
    """The worlds of these seeds, integers in [0, 2^64)."""
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
            raise ValueError(f"seeds must be integers in [0, 2^64), got {seed!r}")
    keys = np.array([int(seed) for seed in seeds], dtype=np.uint64)
    order = [np.argsort(draws.uniforms(keys, draws.PROMPTS, r, scene.prompts), axis=-1) for r in range(scene.rounds)]
    prompts = np.ascontiguousarray(np.stack(order, 1)[..., : scene.prompts_per_round])
    hidden = np.linalg.qr(draws.normals(keys, draws.HIDDEN, (scene.features + 2, scene.features + 2)))[0]
    if scene.ways:
        return _several_ways(scene, keys, hidden, prompts)
    count, length, size, tokens = scene.prompts, scene.length, scene.features, scene.tokens
    teacher = draws.normals(keys, draws.TEACHER, (tokens, size))
    tried = draws.normals(keys, draws.FEATURES, (_CHOICES, count, length, size))
    tried /= np.sqrt((tried**2).sum(-1, keepdims=True))
    scores = tried @ teacher.swapaxes(1, 2)[:, None, None]
    two = np.partition(scores, -2, axis=-1)
    clearest = (two[..., -1] - two[..., -2]).argmax(1)[:, None, :, :, None]
    chosen = np.take_along_axis(tried, clearest, 1)[:, 0]
    right = np.take_along_axis(scores, clearest, 1)[:, 0, :, 1:].argmax(-1)

    x = np.zeros((len(keys), count, length, size + 2))
    x[:, :, 0, 0], x[:, :, 1:, 1] = 1, 1
    x[:, :, 0, 2:] = scene.spread * (chosen[:, :, 0] - chosen[:, :, 0].mean(1, keepdims=True))
    x[:, :, 1:, 2:] = chosen[:, :, 1:]
    weights = np.zeros((len(keys), size + 2, tokens))
    noise = draws.normals(keys, draws.NOISE, (tokens, size))
    weights[:, 2:] = scene.sharpness * (teacher + scene.noise * noise).swapaxes(1, 2)
    first = x[:, :, 0]
    if scene.hidden:  # what the weights before the rotation are multiplied by
        first = np.tanh(first @ hidden) @ hidden.swapaxes(1, 2)
    weights[:, 0] = _biases(first @ weights, first[..., :1], scene)
    if scene.hidden:
        weights = hidden.swapaxes(1, 2) @ weights
    none = np.zeros((len(keys), count, tokens), dtype=bool)
    unseen = np.zeros((len(keys), 0, size + 2)), np.zeros((len(keys), 0, tokens), dtype=bool)
    return World(scene, keys, x, right, none, none, *unseen, weights, hidden, prompts)


def _several_ways(scene: Scene, keys: Array, hidden: Array, prompts: Array) -> World:
    """The worlds where several tokens are right for a prompt: those that a linear teacher ranks first."""
    count, size, tokens = scene.prompts, scene.features, scene.tokens
    every = draws.normals(keys, draws.FEATURES, (count + scene.unseen, size))
    every /= np.sqrt((every**2).sum(-1, keepdims=True))
    scores = every @ draws.normals(keys, draws.TEACHER, (tokens, size)).swapaxes(1, 2)
    ranks = scores.argsort(-1).argsort(-1)
    ways = ranks >= tokens - max(1, round(scene.ways * tokens))
    half = draws.uniforms(keys, draws.HARDER, 0, count * tokens).reshape(-1, count, tokens) < 0.5
    x = np.zeros((len(keys), count + scene.unseen, size + 2))
    x[..., 0], x[..., 2:] = 1, every
    weights = np.zeros((len(keys), size + 2, tokens))
    first = scene.sharpness * draws.normals(keys, draws.NOISE, (size + 1, tokens))
    weights[:, 0], weights[:, 2:] = first[:, 0], first[:, 1:]
    if scene.hidden:
        weights = hidden.swapaxes(1, 2) @ weights
    right = np.zeros((len(keys), count, 0), dtype=np.int64)
    seen, unseen = x[:, :count, None], x[:, count:]
    here = ways[:, :count]
    return World(scene, keys, seen, right, here, here & half, unseen, ways[:, count:], weights, hidden, prompts)


def _biases(logits: Array, factor: Array, scene: Scene) -> Array:
    """(S, tokens): b with softmax(logits + factor b), in the mean over prompts, equal to the priors."""
    bad = 1 / np.arange(1, scene.tokens - 1)
    priors = np.concatenate([[scene.p_work, 1 - scene.p_work - scene.p_bad], scene.p_bad * bad / bad.sum()])
    biases = np.zeros(logits.shape[::2])
    for _ in range(_STEPS):
        biases += 0.7 * np.log(priors / np.exp(log_softmax(logits + factor * biases[:, None])).mean(1))
    return biases - biases.mean(-1, keepdims=True)


_NONE = np.zeros(1, dtype=bool)


def exact(scene: Scene, table: Array, right: Array, ways: Array = _NONE, harder: Array = _NONE) -> Exact:
    """The exact numbers of policies.

    Args:
        scene: the scene.
        table: (..., states, tokens), log-probabilities.
        right: (..., prompts, steps), the right tokens.
        ways: (..., prompts, tokens), those that are right at once.
        harder: those of them that stay right.

    Returns:
        `Exact`, (...,) each: reward = mean over prompts of P("work") times the product of the probabilities of the
        right tokens that matter, plus luck times P("guess"); with `ways`, of P(one of them).
    """
    logps = table.reshape(*table.shape[:-2], scene.prompts, scene.length, scene.tokens)
    first = np.exp(logps[..., 0, :])
    steps = np.take_along_axis(logps[..., 1:, :], right[..., None], -1)[..., scene.free_steps :, 0]
    skill = np.exp(steps.sum(-1))
    by_luck = scene.luck * first[..., GUESS]
    reward = (first * ways).sum(-1) if scene.ways else first[..., WORK] * skill + by_luck
    covered = [pass_at(4, reward), pass_at(16, reward), pass_at(64, reward), pass_at(32, (first * harder).sum(-1))]
    means = (x.mean(-1) for x in (reward, first[..., WORK], skill, entropies(table), *covered))
    return Exact(*means)


def entropies(table: Array) -> Array:
    """(..., states): the entropy of each, in nats."""
    return -(np.exp(table) * table).sum(-1)


def divergence(old: Array, new: Array) -> Array:
    """(...,): KL(old || new) of two tables, in the mean over states, in nats."""
    return (np.exp(old) * (old - new)).sum(-1).mean(-1)


class Batch(NamedTuple):
    """The responses of a round, N of at most T tokens; those of a prompt stand next to each other.

    Attributes:
        tokens: (N, T), 0 in padding.
        states: (N, T), the row of each in a table.
        mask: (N, T), true at the tokens of the response.
        rewards: (N,), 0 or 1, as they are seen.
    """

    tokens: Array
    states: Array
    mask: Array
    rewards: Array


def sample(world: World, index: int, table: Array, round: int) -> Batch:
    """The responses of the policy `table` in a round of the world of the seed at `index`."""
    scene = world.scene
    groups, size, length = scene.prompts_per_round, scene.responses_per_prompt, scene.length
    prompts, seed = world.prompts[index, round], world.seeds[index : index + 1]
    states = prompts[:, None] * length + np.arange(length)
    cdf = np.cumsum(np.exp(table[states]), -1)[..., :-1]
    drawn = draws.uniforms(seed, draws.TOKENS, round, groups * size * length)
    tokens = (cdf[:, None] <= drawn.reshape(groups, size, length, 1)).sum(-1)
    mask = np.ones(tokens.shape, dtype=bool)
    mask[..., 1:] = tokens[..., :1] == WORK
    lucky, flipped = (
        draws.uniforms(seed, purpose, round, groups * size).reshape(groups, size) < chance
        for purpose, chance in ((draws.LUCK, scene.luck), (draws.FLIP, scene.flip))
    )
    solved = (tokens[..., 1:] == world.right[index, prompts][:, None])[..., scene.free_steps :].all(-1)
    right = np.where(tokens[..., 0] == WORK, solved, (tokens[..., 0] == GUESS) & lucky)
    if scene.ways:
        right = np.take_along_axis(world.ways[index, prompts], tokens[..., 0], -1)
    states = np.broadcast_to(states[:, None], tokens.shape)
    shape = groups * size, length
    rewards = (right ^ flipped).reshape(-1).astype(np.float64)
    return Batch(np.where(mask, tokens, 0).reshape(shape), states.reshape(shape), mask.reshape(shape), rewards)
