"""Check four claims about clips by an engine that shares no code with the rest of the repository.

    python research/independent.py        seven minutes of one core

It is plain numpy. Worlds, GRPO, Adam and the bounds were written anew from the descriptions in `research.worlds.scenes`
and the paper, and the random numbers are numpy's. The claims, in the words of the first look that they come from:

1. Several right answers, 8 epochs of 2 mini-batches, each rule at its best rate by pass@1: no clip, a lower side alone
   and Band-KL .005 have equal pass@1, the latter two .04 more coverage; an entropy bonus of .05 has more of both; an
   upper side alone loses both. A linear teacher says which answers are right; in "1 random" they are drawn at random,
   as in the first look, so that less can be learned.
2. The same world as "1" with random rewards, rate .02: an upper side alone lowers entropy and coverage, a lower side
   alone raises both, and the symmetric clip and Band-KL .05 raise entropy.
3. The calibrated world, 4 epochs of 4 mini-batches: at .06, four times the best rate, Band-KL .05 ends above no clip,
   GRPO's clip and Clip-Higher; at the best one, .016, level with no clip.
4. The same with 8 epochs of 2: Band-KL .05 is ahead of no clip at .016, .03 and .06.

Coverage is pass@32 after about half of the right answers stopped being right. Reward, pass@1 and coverage are exact and
the mean of the last four rounds; entropy is the last round's, in nats. Intervals are 1.96 standard errors of a paired
difference. Rows of "1 choosing" are those by which the rates of the first claim were chosen, on other seeds; "lost" is
the share of tokens without a gradient.
"""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

GROUPS, SIZE = 16, 8  # prompts of a round, answers to each
LUCK = 0.06
CHOOSE, JUDGE = range(7_000, 7_016), range(8_000, 8_096)
# The two bounds of the log-ratio or the radius of a band, and the weight of an entropy bonus.
RULES: dict[str, tuple[tuple[float, ...], float]] = {
    "no clip": ((-np.inf, np.inf), 0),
    "lower .2": ((np.log(0.8), np.inf), 0),
    "upper .2": ((-np.inf, np.log(1.2)), 0),
    "GRPO .2/.2": ((np.log(0.8), np.log(1.2)), 0),
    "Clip-Higher .2/.28": ((np.log(0.8), np.log(1.28)), 0),
    "Band-KL .05": ((0.05,), 0),
    "Band-KL .005": ((0.005,), 0),
    "bonus .05": ((-np.inf, np.inf), 0.05),
}
TUNED = ("no clip", "lower .2", "upper .2", "Band-KL .05", "Band-KL .005", "bonus .05")
SIDES = ("no clip", "lower .2", "upper .2", "GRPO .2/.2", "Band-KL .05")
PUBLISHED = ("no clip", "GRPO .2/.2", "Clip-Higher .2/.28", "Band-KL .05")


class Worlds(NamedTuple):
    """Hold a world for each of S seeds, and all that is drawn there.

    Attributes:
        features: (S, prompts, T, d), of the state before each token of an answer.
        weights: (S, d, tokens), of the first policy.
        ways: (S, prompts, tokens), 1 where an answer of this one token is right; nothing in the calibrated world.
        harder: those of them that stay right.
        steps: (S, prompts, T - 1), the right tokens after "work", which is token 0.
        order: (S, rounds, GROUPS), the prompts of each round.
        chances: (S, rounds, GROUPS, SIZE, T + 2), uniform numbers: of tokens, of a guess, of a flip.
    """

    features: Array
    weights: Array
    ways: Array
    harder: Array
    steps: Array
    order: Array
    chances: Array


def stacked(make: Callable[..., tuple[Array, ...]], seeds: Iterable[int], rounds: int, *more: bool) -> Worlds:
    """Make the world of each seed, and draw its rounds."""
    worlds: list[tuple[Array, ...]] = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        world = make(rng, *more)
        order = rng.permuted(np.tile(np.arange(len(world[0])), (rounds, 1)), axis=1)[:, :GROUPS]
        worlds.append((*world, order, rng.random((rounds, GROUPS, SIZE, world[0].shape[1] + 2))))
    return Worlds(*map(np.stack, zip(*worlds, strict=True)))


def ways(rng: np.random.Generator, is_taught: bool = True) -> tuple[Array, ...]:
    """Make a world where a third of 48 tokens is right for a prompt: a linear teacher's first ones, or any."""
    x = rng.normal(size=(64, 24))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    scores = x @ rng.normal(size=(24, 48))
    right = scores >= np.sort(scores, axis=1)[:, [-16]] if is_taught else rng.random(scores.shape) < 0.33
    harder = right & (rng.random(right.shape) < 0.5)
    weights = 1.6 * rng.normal(size=(25, 48))
    return np.insert(x, 0, 1, axis=1)[:, None], weights, right, harder, np.zeros((64, 0), dtype=int)


def calibrated(rng: np.random.Generator) -> tuple[Array, ...]:
    """Make a world where "work" is rare and four right steps after it pay, and "guess" is common and pays by luck."""
    teacher = rng.normal(size=(16, 16))
    candidates = rng.normal(size=(16, 5, 4, 16))
    candidates /= np.linalg.norm(candidates, axis=-1, keepdims=True)
    scores = np.sort(candidates @ teacher, axis=-1)
    clearest = (scores[..., -1] - scores[..., -2]).argmax(-1)[..., None, None]
    x = np.take_along_axis(candidates, clearest, 2)[:, :, 0]
    steps = (x[:, 1:] @ teacher).argmax(-1)
    x[:, 0] = 0.5 * (x[:, 0] - x[:, 0].mean(0))
    is_first = np.broadcast_to((np.arange(5) == 0)[:, None], (16, 5, 1))
    features = np.concatenate([is_first, ~is_first, x], axis=2)
    weights = np.concatenate([np.zeros((2, 16)), 4 * (teacher + 0.1 * rng.normal(size=(16, 16)))])
    bad = 1 / np.arange(1, 15)
    priors = np.concatenate([[0.03, 0.92], 0.05 * bad / bad.sum()])
    for _ in range(300):
        weights[0] += np.log(priors / np.exp(log_softmax(features[:, 0] @ weights)).mean(0))
    return features, weights, *np.zeros((2, 16, 16), dtype=bool), steps


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities over the last axis."""
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def band_kl(logps: Array, radius: float, up: Array) -> Array:
    """Return the log-ratio, above 0 where `up` and below elsewhere, at which a coin of p is `radius` from one of r p.

    It bisects KL(old || new) = p f(r) + (1 - p) f((1 - r p) / (1 - p)), with f(x) = x - 1 - log x, which is
    -p log r - (1 - p) log((1 - r p) / (1 - p)).
    """
    p, rest = np.exp(logps), -np.expm1(logps)
    inner, outer = np.zeros_like(logps), np.where(up, -logps, -radius / p - 1)
    for _ in range(50):
        middle = (inner + outer) / 2
        distance = -p * middle - rest * np.log(np.maximum(-np.expm1(logps + middle), 1e-300) / rest)
        inner, outer = np.where(distance > radius, inner, middle), np.where(distance > radius, middle, outer)
    return inner


def bound(rule: tuple[float, ...], logps: Array, up: Array) -> Array:
    """Return the log-ratio beyond which a rule stops a token that its advantage drives up, or down."""
    if len(rule) == 1:
        return band_kl(np.clip(logps, -600, -1e-15), rule[0], up)
    return np.where(up, rule[1], rule[0])


def measured(worlds: Worlds, weights: Array) -> tuple[Array, Array, Array]:
    """Return the expected reward, the coverage and the entropy of each seed's policy, all (S,)."""
    logps = log_softmax(worlds.features @ weights[:, None])
    first = np.exp(logps[:, :, 0])
    entropy = -(np.exp(logps) * logps).sum(-1).mean((1, 2))
    coverage = 1 - (1 - (first * worlds.harder).sum(-1)) ** 32
    reward = (first * worlds.ways).sum(-1)
    if worlds.steps.shape[-1]:
        skill = np.take_along_axis(logps[:, :, 1:], worlds.steps[..., None], -1).sum((2, 3))
        reward = first[..., 0] * np.exp(skill) + LUCK * first[..., 1]
    return reward.mean(1), coverage.mean(1), entropy


def answers(worlds: Worlds, round: int, old: Array, flip: float) -> tuple[Array, Array, Array]:
    """Draw a round's answers from `old`, (S, GROUPS, T, tokens): tokens, which of them count, and rewards."""
    chances, prompts = worlds.chances[:, round], worlds.order[:, round]
    seeds = np.arange(len(prompts))[:, None]
    tokens = (np.cumsum(np.exp(old), axis=-1)[:, :, None, :, :-1] <= chances[..., :-2, None]).sum(-1)
    counts = (tokens[..., :1] == 0) | (np.arange(tokens.shape[-1]) == 0)
    right = np.take_along_axis(worlds.ways[seeds, prompts], tokens[..., 0], -1)
    if worlds.steps.shape[-1]:
        solved = (tokens[..., 1:] == worlds.steps[seeds, prompts][:, :, None]).all(-1)
        lucky = (tokens[..., 0] == 1) & (chances[..., -2] < LUCK)
        right = np.where(tokens[..., 0] == 0, solved, lucky)
    return tokens, counts, (right ^ (chances[..., -1] < flip)).astype(float)


def gradient(
    now: Array, old: Array, tokens: Array, counts: Array, advantages: Array, bounds: Array, bonus: float
) -> tuple[Array, Array]:
    """Return the gradient of a mini-batch's clipped surrogate by the logits, and which tokens have none.

    Args:
        now: (S, G, T, tokens), log-probabilities.
        old: (S, G, SIZE, T), those of the answers as they were drawn.
        tokens: (S, G, SIZE, T), the answers.
        counts: which of them are not padding; the surrogate is the mean over these.
        advantages: (S, G, SIZE, 1).
        bounds: as `bound` returns them.
        bonus: the weight of the entropy, in the mean over the same tokens.
    """
    log_ratio = np.take_along_axis(now[:, :, None], tokens[..., None], -1)[..., 0] - old
    lost = counts & np.where(advantages > 0, log_ratio > bounds, (log_ratio < bounds) & (advantages < 0))
    weight = counts / counts.sum((1, 2, 3), keepdims=True)
    slope = np.where(lost, 0, weight * np.exp(log_ratio) * advantages)
    probabilities = np.exp(now)
    entropy = -(probabilities * now).sum(-1, keepdims=True)
    by_logits = -probabilities * (slope.sum(2)[..., None] + bonus * weight.sum(2)[..., None] * (now + entropy))
    places = np.arange(0, now.size, now.shape[-1]).reshape(*now.shape[:2], 1, -1) + tokens
    by_tokens = np.bincount(places.ravel(), slope.ravel(), minlength=now.size)
    return by_logits + by_tokens.reshape(now.shape), lost


def train(worlds: Worlds, name: str, rate: float, epochs: int, minibatches: int, flip: float) -> dict[str, Array]:
    """Train by GRPO with the rule of this name, and return its outcomes, (S,) each."""
    rule, bonus = RULES[name]
    weights, first, second = worlds.weights.copy(), np.zeros_like(worlds.weights), np.zeros_like(worlds.weights)
    curve, lost, steps = [measured(worlds, weights)], np.zeros(len(weights)), 0
    for round in range(worlds.order.shape[1]):
        x = worlds.features[np.arange(len(weights))[:, None], worlds.order[:, round]]
        old_table = log_softmax(x @ weights[:, None])
        tokens, counts, rewards = answers(worlds, round, old_table, flip)
        old = np.take_along_axis(old_table[:, :, None], tokens[..., None], -1)[..., 0]
        centred = rewards - rewards.mean(2, keepdims=True)
        advantages = (centred / (rewards.std(2, ddof=1, keepdims=True) + 1e-6))[..., None]
        bounds = np.zeros(old.shape)
        bounds[counts] = bound(rule, old[counts], np.broadcast_to(advantages > 0, old.shape)[counts])
        for part in np.array_split(np.arange(GROUPS), minibatches) * epochs:
            now = log_softmax(x[:, part] @ weights[:, None])
            batch = (y[:, part] for y in (old, tokens, counts, advantages, bounds))
            by_logits, without = gradient(now, *batch, bonus)
            slope = np.einsum("sgtd,sgtv->sdv", x[:, part], by_logits, optimize=True)
            lost += without.sum((1, 2, 3)) / counts[:, part].sum((1, 2, 3))
            steps += 1
            first = 0.9 * first + 0.1 * slope
            second = 0.99 * second + 0.01 * slope**2
            weights += rate * first / (1 - 0.9**steps) / (np.sqrt(second / (1 - 0.99**steps)) + 1e-8)
        curve.append(measured(worlds, weights))
    reward, coverage, entropy = np.array(curve).swapaxes(0, 1)
    ends = {"reward": reward[-4:].mean(0), "coverage": coverage[-4:].mean(0)}
    return ends | {"entropy": entropy[-1], "lost": lost / steps}


def compared(claim: str, worlds: Worlds, rates: dict[str, float], *regime: Any) -> list[dict[str, Any]]:
    """Return rows: the outcomes of each rule minus those of the first, and of the last rule minus each."""
    ends = {name: train(worlds, name, rate, *regime) for name, rate in rates.items()}
    first, *_, last = rates
    rows: list[dict[str, Any]] = []
    for a, b, outcome in itertools.product(rates, rates, ends[first]):
        if b == first or (a == last and a != b):
            x, difference = ends[a][outcome], ends[a][outcome] - ends[b][outcome]
            row = {"claim": claim, "rule": a, "rate": rates[a], "minus": b, "minus_rate": rates[b], "seeds": len(x)}
            row |= {"outcome": outcome, "mean": x.mean(), "difference": difference.mean()}
            rows.append(row | {"width": 1.96 * difference.std(ddof=1) / np.sqrt(len(x))})
    return rows


def table(claim: str, judge: Iterable[int] = JUDGE, choose: Iterable[int] = CHOOSE, rounds: int = 0) -> list[Any]:
    """Return the rows of a claim, "1" to "4" or "1 random"; `rounds` are 40 or 120 if they are left out."""
    if claim in ("3", "4"):
        worlds, regime = stacked(calibrated, judge, rounds or 120), {"3": (4, 4), "4": (8, 2)}[claim]
        each = [compared(claim, worlds, dict.fromkeys(PUBLISHED, rate), *regime, 0.2) for rate in (0.016, 0.03, 0.06)]
        return [row for rows in each for row in rows if row["outcome"] != "coverage"]
    worlds = stacked(ways, judge, rounds or 40, claim != "1 random")
    if claim == "2":
        return compared(claim, worlds, dict.fromkeys(SIDES, 0.02), 8, 2, 0.5)
    other, chosen = stacked(ways, choose, rounds or 40, claim != "1 random"), list[Any]()
    for rate in (0.02, 0.04, 0.08, 0.16):
        chosen += compared(f"{claim} choosing", other, dict.fromkeys(TUNED, rate), 8, 2, 0)
    best: dict[str, float] = dict.fromkeys(TUNED, 0.0)
    for row in sorted(chosen, key=lambda row: row["mean"] if row["outcome"] == "reward" else -1):
        best[row["rule"]] = row["rate"]  # the last one, which has the highest reward, stays
    return chosen + compared(claim, worlds, best, 8, 2, 0)


if __name__ == "__main__":
    rows = [row for claim in ("1", "1 random", "2", "3", "4") for row in table(claim)]
    lines = [[f"{x:.5f}" if isinstance(x, np.floating) else str(x) for x in row.values()] for row in rows]
    Path(__file__).with_suffix(".csv").write_text("\n".join(map(",".join, [rows[0], *lines, []])), encoding="utf-8")
