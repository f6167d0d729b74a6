"""The compiled part of the engine "numba": rollouts, and the optimizer steps of a round, lane by lane.

A lane is a run. Tokens of a round with the same state, sign and bounds are one entry with the sum of their advantages:
the same sum over tokens in another order. Bounds come from outside, so that no rule is written a second time.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUntypedFunctionDecorator=false

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from . import draws
from .arithmetic import INNER, OPTIONS, exp, features, forward, key_of, less, slope_of, uniform
from .world import GUESS, WORK

Array = NDArray[Any]

# Numba keeps what it compiled, and compiles anew where this file has changed, whatever has changed in those that it
# imports: with a digest of arithmetic.py and draws.py here, a change there is one of this file too.
MADE_WITH = "43b0564318c6"

OCTAVES = 16


class Sizes(NamedTuple):
    """The scene's counts that the loops go by, and what of it is a number."""

    prompts: int
    length: int
    free_steps: int
    groups: int
    group_size: int
    minibatches: int
    epochs: int
    stale: int
    from_trainer: bool
    luck: float
    flip: float
    has_ways: bool
    is_hidden: bool
    is_sgd: bool
    beta1: float
    beta2: float


class Worlds(NamedTuple):
    """The arrays of a `World`, states in one axis."""

    seeds: Array
    features: Array  # (S, states, d)
    right: Array
    ways: Array
    harder: Array
    prompts: Array


class Lanes(NamedTuple):
    """What each run is at. Moments of Adam stand behind what they belong to."""

    seed: Array  # (L,) index
    rate: Array
    weights: Array  # (3, L, d, V)
    hidden: Array  # (3, L, d, d)
    past: Array  # (L, stale + 1, states, V) log-probabilities, those of a round at round % (stale + 1)
    sampler: Array  # those of the policy that draws; `past` itself where that is the trainer's
    first: Array  # (L, states, V), or (L, 0, 0) where there is no penalty


class Drawn(NamedTuple):
    """The responses of a round, (L, N, T), N by prompts; (L, N) rewards."""

    tokens: Array
    mask: Array
    logps: Array  # of the anchor, as the entropies
    rollout: Array  # log-probabilities of the policy that drew
    entropies: Array
    rewards: Array


@numba.njit(**INNER)
def pass_at(k, right):
    """As `world.pass_at`."""
    return -math.expm1(k * math.log1p(-min(right, 1 - 1e-15)))


@numba.njit(**OPTIONS)
def measure(sizes, worlds, lanes, round, reward, p_work, skill, entropy, pass4, pass16, pass64, harder, kl):
    """The tables of all lanes in a round, kept in `lanes.past`, and their exact numbers, (L,) each."""
    size, tokens = lanes.weights.shape[2], lanes.weights.shape[3]
    states, keep = sizes.prompts * sizes.length, sizes.stale + 1
    h, logits, p = np.empty(size), np.empty(tokens), np.empty(tokens)
    for lane in range(lanes.seed.shape[0]):
        s, w = lanes.seed[lane], lanes.weights[0, lane]
        now, before = lanes.past[lane, round % keep], lanes.past[lane, (round + keep - 1) % keep]
        rewards = works = skills = entropies = moved = at4 = at16 = at64 = at_harder = 0.0
        for c in range(sizes.prompts):
            guess = work = right = left = 0.0
            solved = 0.0
            for t in range(sizes.length):
                i = c * sizes.length + t
                features(worlds.features[s, i], lanes.hidden[0, lane], sizes.is_hidden, h)
                norm = forward(h, w, logits, p)
                if round > 0:
                    for v in range(tokens):
                        moved += exp(before[i, v]) * (before[i, v] - (logits[v] - norm))
                for v in range(tokens):
                    now[i, v] = logits[v] - norm
                    entropies -= p[v] * (logits[v] - norm)
                if t == 0:
                    work, guess = p[WORK], p[GUESS]
                    if sizes.has_ways:
                        for v in range(tokens):
                            right += p[v] if worlds.ways[s, c, v] else 0.0
                            left += p[v] if worlds.harder[s, c, v] else 0.0
                elif t > sizes.free_steps:
                    solved += now[i, worlds.right[s, c, t - 1]]
            solved = math.exp(solved)
            if not sizes.has_ways:
                right = work * solved + sizes.luck * guess
            rewards += right
            at4 += pass_at(4, right)
            at16 += pass_at(16, right)
            at64 += pass_at(64, right)
            at_harder += pass_at(32, left)
            works += work
            skills += solved
        reward[lane], p_work[lane] = rewards / sizes.prompts, works / sizes.prompts
        pass4[lane], pass16[lane], pass64[lane] = at4 / sizes.prompts, at16 / sizes.prompts, at64 / sizes.prompts
        harder[lane] = at_harder / sizes.prompts
        skill[lane], entropy[lane], kl[lane] = skills / sizes.prompts, entropies / states, moved / states


@numba.njit(**OPTIONS)
def draw(sizes, worlds, lanes, round, drawn):
    """The responses of a round by the policy that was in force `stale` rounds before."""
    tokens, length, group = lanes.weights.shape[3], sizes.length, sizes.group_size
    now, at = round % (sizes.stale + 1), max(round - sizes.stale, 0) % (sizes.stale + 1)
    cdf, entropy = np.empty((length, tokens)), np.empty(length)
    for lane in range(lanes.seed.shape[0]):
        s = lanes.seed[lane]
        seed = worlds.seeds[s]
        for_tokens = key_of(seed, draws.TOKENS, round)
        for_luck, for_flips = key_of(seed, draws.LUCK, round), key_of(seed, draws.FLIP, round)
        for g in range(sizes.groups):
            c = worlds.prompts[s, round, g]
            drawer = lanes.sampler[lane, at, c * length : (c + 1) * length]
            old = lanes.past[lane, now, c * length : (c + 1) * length] if sizes.from_trainer else drawer
            made = 0
            for i in range(g * group, (g + 1) * group):
                ok = True
                last = 1
                for t in range(length):
                    drawn.mask[lane, i, t] = t < last
                    drawn.tokens[lane, i, t] = 0
                    drawn.logps[lane, i, t] = drawn.rollout[lane, i, t] = -1.0
                    drawn.entropies[lane, i, t] = 0.0
                    if t >= last:
                        continue
                    if t >= made:
                        total = bits = 0.0
                        for v in range(tokens):
                            total += exp(drawer[t, v])
                            cdf[t, v] = total
                            bits -= exp(old[t, v]) * old[t, v]
                        entropy[t] = bits
                        made = t + 1
                    y = uniform(for_tokens, i * length + t)
                    a = 0
                    for v in range(tokens - 1):
                        a += cdf[t, v] <= y
                    drawn.tokens[lane, i, t], drawn.logps[lane, i, t] = a, old[t, a]
                    drawn.rollout[lane, i, t], drawn.entropies[lane, i, t] = drawer[t, a], entropy[t]
                    if t == 0:
                        last = length if a == WORK else 1
                    elif t > sizes.free_steps:
                        ok = ok and a == worlds.right[s, c, t - 1]
                first = drawn.tokens[lane, i, 0]
                right = (first == WORK and ok) or (first == GUESS and uniform(for_luck, i) < sizes.luck)
                if sizes.has_ways:
                    right = worlds.ways[s, c, first]
                drawn.rewards[lane, i] = 1.0 if right != (uniform(for_flips, i) < sizes.flip) else 0.0


@numba.njit(**OPTIONS)
def distinct(sizes, worlds, lanes, round, drawn, advantages, index, place):
    """Tokens of which a rule that asks each token alone need be asked: one for each state, token and sign of A.

    `index` gets their places in the flattened (L, N, T), and `place`, (L, N, T), for each token that of its own among
    them; tokens with A = 0 have no gradient, whatever their bounds. Returns how many there are.
    """
    length, group = sizes.length, sizes.group_size
    slot = np.empty((2, lanes.weights.shape[3]), np.int64)
    count = at = 0
    for lane in range(lanes.seed.shape[0]):
        for g in range(sizes.groups):
            for t in range(length):
                slot[:] = -1
                for n in range(g * group, (g + 1) * group):
                    value = advantages[lane, n, t]
                    place[lane, n, t] = 0
                    if not drawn.mask[lane, n, t] or value == 0.0:
                        continue
                    side, a = 1 if value > 0 else 0, drawn.tokens[lane, n, t]
                    if slot[side, a] < 0:
                        slot[side, a] = count
                        index[count] = at + n * length + t
                        count += 1
                    place[lane, n, t] = slot[side, a]
        at += sizes.groups * group * length
    return count


@numba.njit(**INNER)
def _step(sizes, of, lane, gradient, rate, correction1, correction2):
    """One step upwards; `of` is (3, L, ...), parameters and moments."""
    parameters, mean, square = of[0, lane].reshape(-1), of[1, lane].reshape(-1), of[2, lane].reshape(-1)
    gradient = gradient.reshape(-1)
    if sizes.is_sgd:
        for i in range(gradient.shape[0]):
            parameters[i] += rate * gradient[i]
        return
    beta1, beta2 = sizes.beta1, sizes.beta2
    a, b = rate / correction1, 1.0 / math.sqrt(correction2)
    for i in range(gradient.shape[0]):
        g = gradient[i]
        mean[i] = beta1 * mean[i] + (1.0 - beta1) * g
        square[i] = beta2 * square[i] + (1.0 - beta2) * g * g
        parameters[i] += a * mean[i] / (math.sqrt(square[i]) * b + 1e-8)


class Entries(NamedTuple):
    """The tokens of a round of one run, merged.

    Rows are the states of which the round says something, those of minibatch k from row[k] on; the entries of a row
    stand from start[row] on.
    """

    row: Array  # (K + 1,)
    tokens: Array  # (K,) tokens of each minibatch, by which its loss is divided
    state: Array
    weight: Array  # tokens in the row
    start: Array
    token: Array
    up: Array
    gate: Array  # which of a step's draws is its own
    advantage: Array  # the sum
    count: Array
    old: Array
    low: Array
    high: Array
    first: Array  # log-probability of the first policy


@numba.njit(**INNER)
def _merge(sizes, worlds, lanes, lane, round, drawn, advantages, place, low, high, loss, slot, made):
    """Fill `made`; `slot`, (2, V), is for what was found last of a sign and token."""
    length, group, part = sizes.length, sizes.group_size, sizes.groups // sizes.minibatches
    slot[:] = -1
    row = entries = 0
    for g in range(sizes.groups):
        if g % part == 0:
            made.row[g // part], made.tokens[g // part] = row, 0.0
        for t in range(length):
            i = worlds.prompts[lanes.seed[lane], round, g] * length + t
            made.start[row], made.state[row] = entries, i
            here = 0
            for n in range(g * group, (g + 1) * group):
                if not drawn.mask[lane, n, t]:
                    continue
                here += 1
                value, a = advantages[lane, n, t], drawn.tokens[lane, n, t]
                if value == 0.0 and loss.beta == 0.0:
                    continue
                side = 1 if value >= 0 else 0
                e = slot[side, a]
                lo, hi = low[place[lane, n, t]], high[place[lane, n, t]]
                if e < made.start[row] or made.low[e] != lo or made.high[e] != hi or loss.by_chance:
                    e = entries
                    entries += 1
                    slot[side, a] = e
                    made.token[e], made.up[e], made.gate[e] = a, side == 1, n * length + t
                    made.advantage[e], made.count[e], made.old[e] = 0.0, 0.0, drawn.logps[lane, n, t]
                    made.low[e], made.high[e] = lo, hi
                    made.first[e] = lanes.first[lane, i, a] if loss.beta > 0.0 else 0.0
                made.advantage[e] += value
                made.count[e] += 1.0
            made.tokens[g // part] += here
            made.weight[row] = here
            if entries > made.start[row] or (here > 0 and loss.entropy_bonus > 0.0):
                row += 1
    made.start[row], made.row[sizes.minibatches] = entries, row


@numba.njit(**INNER)
def _cell(old, up):
    """The sign of A and the octave of an old probability."""
    octave = int(-old / math.log(2.0))
    return min(max(octave, 0), OCTAVES - 1) + (0 if up else OCTAVES)


@numba.njit(**INNER)
def _count_cuts(sizes, worlds, lanes, lane, made, k, h, logits, p, all_of, cut_of):
    """The sums of |A| of a minibatch by `_cell`, of all tokens and of those that the rule cuts."""
    s, w, u = lanes.seed[lane], lanes.weights[0, lane], lanes.hidden[0, lane]
    all_of[:] = 0.0
    cut_of[:] = 0.0
    for q in range(made.row[k], made.row[k + 1]):
        features(worlds.features[s, made.state[q]], u, sizes.is_hidden, h)
        norm = forward(h, w, logits, p)
        for e in range(made.start[q], made.start[q + 1]):
            log_ratio, mass = (logits[made.token[e]] - norm) - made.old[e], abs(made.advantage[e])
            cell = _cell(made.old[e], made.up[e])
            all_of[cell] += mass
            if log_ratio > made.high[e] if made.up[e] else log_ratio < made.low[e]:
                cut_of[cell] += mass


@numba.njit(**INNER)
def _excess(sizes, worlds, lanes, lane, made, k, loss, h, logits, p):
    """sum r A / sum r over the tokens of a minibatch that have a gradient."""
    s, w, u = lanes.seed[lane], lanes.weights[0, lane], lanes.hidden[0, lane]
    push = total = 0.0
    for q in range(made.row[k], made.row[k + 1]):
        features(worlds.features[s, made.state[q]], u, sizes.is_hidden, h)
        norm = forward(h, w, logits, p)
        for e in range(made.start[q], made.start[q + 1]):
            log_ratio = (logits[made.token[e]] - norm) - made.old[e]
            if slope_of(loss, log_ratio, made.advantage[e], made.low[e], made.high[e], made.up[e]) != 0.0:
                ratio = exp(min(log_ratio, loss.highest))
                push += ratio * made.advantage[e]
                total += ratio * made.count[e]
    return push / total if total > 0.0 else 0.0


@numba.njit(**OPTIONS)
def learn(sizes, worlds, lanes, round, drawn, advantages, place, low, high, loss, cuts, seen, stops):
    """All optimizer steps of a round. `advantages` are (L, N, T), and `place` says where in `low` and `high` the bounds
    of a token are; `cuts` and `seen`, (L, 4), are added to in the last epoch, and `stops`, (L, rounds, 6), in each."""
    size, tokens, parts = lanes.weights.shape[2], lanes.weights.shape[3], sizes.minibatches
    rows, most = sizes.groups * sizes.length, sizes.groups * sizes.group_size * sizes.length
    numbers = np.empty((6, most))
    made = Entries(
        np.empty(parts + 1, np.int64), np.empty(parts), np.empty(rows, np.int64), np.empty(rows),
        np.empty(rows + 1, np.int64), np.empty(most, np.int64), np.empty(most, np.bool_), np.empty(most, np.int64),
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5],
    )  # fmt: skip
    slot = np.empty((2, tokens), np.int64)
    logits, p, z, h, back = np.empty(tokens), np.empty(tokens), np.empty(tokens), np.empty(size), np.empty(size)
    gw, gu = np.empty((size, tokens)), np.empty((size, size))
    all_of, cut_of = np.empty((2, 2 * OCTAVES))
    for lane in range(lanes.seed.shape[0]):
        s, w, u = lanes.seed[lane], lanes.weights[0, lane], lanes.hidden[0, lane]
        _merge(sizes, worlds, lanes, lane, round, drawn, advantages, place, low, high, loss, slot, made)
        key = key_of(worlds.seeds[s], draws.GATE, round)
        for step in range(sizes.epochs * parts):
            k, is_last = step % parts, step >= (sizes.epochs - 1) * parts
            gw[:] = 0.0
            gu[:] = 0.0
            stops[lane, round, 4] += made.tokens[k]
            if loss.by_chance:
                _count_cuts(sizes, worlds, lanes, lane, made, k, h, logits, p, all_of, cut_of)
            excess = 0.0
            if loss.balanced:
                excess = _excess(sizes, worlds, lanes, lane, made, k, loss, h, logits, p)
            for q in range(made.row[k], made.row[k + 1]):
                x = worlds.features[s, made.state[q]]
                features(x, u, sizes.is_hidden, h)
                norm = forward(h, w, logits, p)
                z[:] = 0.0
                sum_z = 0.0
                for e in range(made.start[q], made.start[q + 1]):
                    a, up, advantage, old = made.token[e], made.up[e], made.advantage[e], made.old[e]
                    log_p = logits[a] - norm
                    matters, is_lost = advantage != 0.0, False
                    if loss.balanced:
                        slope = slope_of(loss, log_p - old, advantage, made.low[e], made.high[e], up)
                        is_lost = slope == 0.0
                    if loss.balanced and advantage != 0.0:
                        advantage = less(advantage, excess * made.count[e])
                    if loss.by_chance:
                        cell, y = _cell(old, up), uniform(key, step * most + made.gate[e])
                        stays = y * all_of[cell] >= cut_of[cell]
                        slope = slope_of(loss, log_p - old, advantage, -np.inf, np.inf, up) if stays else 0.0
                    else:
                        slope = slope_of(loss, log_p - old, advantage, made.low[e], made.high[e], up)
                    if matters:
                        is_lost = is_lost if loss.balanced else slope == 0.0
                        count = made.count[e]
                        stops[lane, round, 0 if up else 1] += count if is_lost else 0.0
                        stops[lane, round, 2] += count if log_p - old > made.high[e] else 0.0
                        stops[lane, round, 3] += count if log_p - old < made.low[e] else 0.0
                        stops[lane, round, 5] = max(stops[lane, round, 5], log_p - old)
                    if is_last and advantage != 0.0:
                        mass = exp(min(log_p - old, loss.highest)) * abs(advantage)
                        cell = (1 if old >= loss.log_rare else 0) + (0 if up else 2)
                        seen[lane, cell] += mass
                        if slope == 0.0:
                            cuts[lane, cell] += mass
                    if loss.beta > 0.0 and abs(made.first[e] - log_p) <= 20.0:
                        slope += loss.beta * made.count[e] * math.expm1(made.first[e] - log_p)
                    z[a] += slope
                    sum_z += slope
                for v in range(tokens):
                    z[v] -= sum_z * p[v]
                if loss.entropy_bonus > 0.0:
                    entropy = 0.0
                    for v in range(tokens):
                        entropy -= p[v] * (logits[v] - norm)
                    for v in range(tokens):
                        z[v] -= loss.entropy_bonus * made.weight[q] * p[v] * (logits[v] - norm + entropy)
                for j in range(size):
                    b = h[j] / made.tokens[k]
                    for v in range(tokens):
                        gw[j, v] += b * z[v]
                if sizes.is_hidden:
                    for j in range(size):
                        b = 0.0
                        for v in range(tokens):
                            b += w[j, v] * z[v]
                        back[j] = b * (1.0 - h[j] * h[j]) / made.tokens[k]
                    for i in range(size):
                        for j in range(size):
                            gu[i, j] += x[i] * back[j]
            done = round * sizes.epochs * parts + step + 1
            c1, c2 = 1.0 - sizes.beta1**done, 1.0 - sizes.beta2**done
            _step(sizes, lanes.weights, lane, gw, lanes.rate[lane], c1, c2)
            if sizes.is_hidden:
                _step(sizes, lanes.hidden, lane, gu, lanes.rate[lane], c1, c2)
