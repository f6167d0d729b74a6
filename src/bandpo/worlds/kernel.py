"""The compiled part of the engine "numba": rollouts, and the optimizer steps of a round, lane by lane.

A lane is a run. Tokens of a round with the same state, sign and bounds are one entry with the sum of their advantages:
the same sum over tokens in another order. Bounds come from outside, so that no rule is written a second time.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from . import draws
from .world import GUESS, WORK

Array = NDArray[Any]

# What is done with a token outside; see `losses.surrogates`.
CLIP, TWO_SIDED, WEIGHT, PRESERVE, DECAY = range(5)
OCTAVES = 16

# Sums may be taken in another order and products fused; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "fastmath": _FAST, "error_model": "numpy"}
_EXACT: dict[str, Any] = {"nogil": True, "cache": True, "fastmath": {"contract"}, "error_model": "numpy"}


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
    luck: float
    flip: float
    is_hidden: bool
    is_sgd: bool
    beta1: float
    beta2: float


class Worlds(NamedTuple):
    """The arrays of a `World`, states in one axis."""

    seeds: Array
    features: Array  # (S, states, d)
    right: Array
    prompts: Array


class Lanes(NamedTuple):
    """What each run is at. Moments of Adam stand behind what they belong to."""

    seed: Array  # (L,) index
    rate: Array
    weights: Array  # (3, L, d, V)
    hidden: Array  # (3, L, d, d)
    past: Array  # (L, stale + 1, states, V) log-probabilities, those of a round at round % (stale + 1)
    first: Array  # (L, states, V), or (L, 0, 0) where there is no penalty


class Drawn(NamedTuple):
    """The responses of a round, (L, N, T), N by prompts; (L, N) rewards."""

    tokens: Array
    mask: Array
    logps: Array
    entropies: Array
    rewards: Array


class Loss(NamedTuple):
    """The numbers of a loss and of the controls."""

    up: int  # application for A >= 0
    down: int
    preserve_low: float
    preserve_high: float
    decay_low: float
    decay_high: float
    dual_clip: float  # log c; inf for none
    limit: float  # of log r
    beta: float
    entropy_bonus: float
    by_chance: bool
    log_rare: float
    highest: float


_mix: Any = numba.njit(**_EXACT)(draws.mix)
_GOLDEN, _11, _ONE = draws.GOLDEN, np.uint64(11), np.uint64(1)


@numba.njit(**_EXACT)
def _key(seed, purpose, round):
    return _mix(_mix(_mix(seed + _GOLDEN) + purpose + _GOLDEN) + np.uint64(round) + _GOLDEN)


@numba.njit(**_EXACT)
def _uniform(key, index):
    return float(_mix(key + (np.uint64(index) + _ONE) * _GOLDEN) >> _11) * 2.0**-53


@intrinsic
def _bits_of(context, x):
    def made(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), made


@intrinsic
def _float_of(context, x):
    def made(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.int64), made


_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUNDING = 6755399441055744.0  # 1.5 2^52: adding it leaves the nearest integer in the low bits


@numba.njit(**_EXACT)
def exp(x):
    """e^x within 2 units in the last place, of x in [-708, 709]; below, that of -708. Plain arithmetic, which the
    compiler does for many numbers at once."""
    x = x if x > -708.0 else -708.0
    shifted = x * _LOG2_E + _ROUNDING
    k = shifted - _ROUNDING
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return _float_of(_bits_of(p) + (_bits_of(shifted) << 52))


@numba.njit(**_OPTIONS)
def _forward(h, w, logits, p):
    """The logits of a state, its probabilities, and log sum exp of the logits."""
    tokens = logits.shape[0]
    for v in range(tokens):
        logits[v] = 0.0
    for k in range(h.shape[0]):
        a = h[k]
        for v in range(tokens):
            logits[v] += a * w[k, v]
    top = logits[0]
    for v in range(1, tokens):
        top = max(top, logits[v])
    total = 0.0
    for v in range(tokens):
        p[v] = exp(logits[v] - top)
        total += p[v]
    for v in range(tokens):
        p[v] /= total
    return top + math.log(total)


@numba.njit(**_OPTIONS)
def _hidden_of(x, u, h):
    """h = tanh(x u)."""
    size = x.shape[0]
    for j in range(size):
        h[j] = 0.0
    for k in range(size):
        a = x[k]
        for j in range(size):
            h[j] += a * u[k, j]
    for j in range(size):
        h[j] = 1.0 - 2.0 / (exp(2.0 * h[j]) + 1.0)


@numba.njit(**_OPTIONS)
def measure(sizes, worlds, lanes, round, reward, p_work, skill, entropy, kl):
    """The tables of all lanes in a round, kept in `lanes.past`, and their exact numbers, (L,) each."""
    size, tokens = lanes.weights.shape[2], lanes.weights.shape[3]
    states, keep = sizes.prompts * sizes.length, sizes.stale + 1
    h, logits, p = np.empty(size), np.empty(tokens), np.empty(tokens)
    for lane in range(lanes.seed.shape[0]):
        s, w = lanes.seed[lane], lanes.weights[0, lane]
        now, before = lanes.past[lane, round % keep], lanes.past[lane, (round + keep - 1) % keep]
        rewards = works = skills = entropies = moved = 0.0
        for c in range(sizes.prompts):
            guess = work = 0.0
            solved = 0.0
            for t in range(sizes.length):
                i = c * sizes.length + t
                x = worlds.features[s, i]
                if sizes.is_hidden:
                    _hidden_of(x, lanes.hidden[0, lane], h)
                    norm = _forward(h, w, logits, p)
                else:
                    norm = _forward(x, w, logits, p)
                if round > 0:
                    for v in range(tokens):
                        moved += exp(before[i, v]) * (before[i, v] - (logits[v] - norm))
                for v in range(tokens):
                    now[i, v] = logits[v] - norm
                    entropies -= p[v] * (logits[v] - norm)
                if t == 0:
                    work, guess = p[WORK], p[GUESS]
                elif t > sizes.free_steps:
                    solved += now[i, worlds.right[s, c, t - 1]]
            solved = math.exp(solved)
            rewards += work * solved + sizes.luck * guess
            works += work
            skills += solved
        reward[lane], p_work[lane] = rewards / sizes.prompts, works / sizes.prompts
        skill[lane], entropy[lane], kl[lane] = skills / sizes.prompts, entropies / states, moved / states


@numba.njit(**_OPTIONS)
def draw(sizes, worlds, lanes, round, drawn):
    """The responses of a round by the policy that was in force `stale` rounds before."""
    tokens, length, group = lanes.weights.shape[3], sizes.length, sizes.group_size
    at = max(round - sizes.stale, 0) % (sizes.stale + 1)
    cdf, entropy = np.empty((length, tokens)), np.empty(length)
    for lane in range(lanes.seed.shape[0]):
        s = lanes.seed[lane]
        seed = worlds.seeds[s]
        for_tokens = _key(seed, draws.TOKENS, round)
        for_luck, for_flips = _key(seed, draws.LUCK, round), _key(seed, draws.FLIP, round)
        for g in range(sizes.groups):
            c = worlds.prompts[s, round, g]
            old = lanes.past[lane, at, c * length : (c + 1) * length]
            made = 0
            for i in range(g * group, (g + 1) * group):
                ok = True
                last = 1
                for t in range(length):
                    drawn.mask[lane, i, t] = t < last
                    drawn.tokens[lane, i, t] = 0
                    drawn.logps[lane, i, t] = -1.0
                    drawn.entropies[lane, i, t] = 0.0
                    if t >= last:
                        continue
                    if t >= made:
                        total = bits = 0.0
                        for v in range(tokens):
                            p = exp(old[t, v])
                            total += p
                            cdf[t, v] = total
                            bits -= p * old[t, v]
                        entropy[t] = bits
                        made = t + 1
                    y = _uniform(for_tokens, i * length + t)
                    a = 0
                    for v in range(tokens - 1):
                        a += cdf[t, v] <= y
                    drawn.tokens[lane, i, t], drawn.logps[lane, i, t] = a, old[t, a]
                    drawn.entropies[lane, i, t] = entropy[t]
                    if t == 0:
                        last = length if a == WORK else 1
                    elif t > sizes.free_steps:
                        ok = ok and a == worlds.right[s, c, t - 1]
                first = drawn.tokens[lane, i, 0]
                right = (first == WORK and ok) or (first == GUESS and _uniform(for_luck, i) < sizes.luck)
                drawn.rewards[lane, i] = 1.0 if right != (_uniform(for_flips, i) < sizes.flip) else 0.0


@numba.njit(**_OPTIONS)
def distinct(sizes, worlds, lanes, round, drawn, advantages, index, place):
    """Tokens of which a rule that asks each token alone need be asked: one for each state, token and sign of A.

    `index` gets their places in the flattened (L, N, T), and `place`, (L, N, T), for each token that of its own among
    them; tokens with A = 0 have no gradient, whatever their bounds. Returns how many there are.
    """
    length, group = sizes.length, sizes.group_size
    slot = np.empty((2, lanes.weights.shape[3]), np.int64)
    found = at = 0
    for lane in range(lanes.seed.shape[0]):
        for g in range(sizes.groups):
            for t in range(length):
                slot[:] = -1
                for n in range(g * group, (g + 1) * group):
                    value = advantages[lane, n, t]
                    if not drawn.mask[lane, n, t] or value == 0.0:
                        continue
                    side, a = 1 if value > 0 else 0, drawn.tokens[lane, n, t]
                    if slot[side, a] < 0:
                        slot[side, a] = found
                        index[found] = at + n * length + t
                        found += 1
                    place[lane, n, t] = slot[side, a]
        at += sizes.groups * group * length
    return found


@numba.njit(**_OPTIONS)
def _slope(loss, log_ratio, advantage, low, high, up):
    """d surrogate / d log pi of a token, or of several with the sum of their advantages."""
    limited = min(max(log_ratio, -loss.limit), loss.limit)
    clipped = min(max(limited, low), high)
    apply = loss.up if up else loss.down
    if apply == WEIGHT:
        return exp(clipped) * advantage
    if apply == TWO_SIDED:
        return exp(limited) * advantage if clipped == limited and limited == log_ratio else 0.0
    if limited > clipped if up else limited < clipped:
        if apply == PRESERVE:
            return (loss.preserve_high if up else loss.preserve_low) * exp(clipped) * advantage
        if apply == DECAY:
            power = -loss.decay_high if up else loss.decay_low
            return exp(limited + power * (limited - clipped)) * advantage
        return 0.0
    if limited != log_ratio or (not up and limited > loss.dual_clip):
        return 0.0
    return exp(limited) * advantage


@numba.njit(**_OPTIONS)
def _adam(sizes, w, gradient, rate, correction1, correction2):
    """One step upwards; w is (3, ...), parameters and moments, as plain rows."""
    parameters, mean, square = w
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


@numba.njit(**_OPTIONS)
def learn(sizes, worlds, lanes, round, drawn, advantages, place, low, high, loss, cuts, seen):
    """All optimizer steps of a round. `advantages` are (L, N, T), and `place` says where in `low` and `high` the bounds
    of a token are; `cuts` and `seen`, (L, 4), are added to in the last epoch."""
    size, tokens, length, group = lanes.weights.shape[2], lanes.weights.shape[3], sizes.length, sizes.group_size
    rows, most = sizes.groups * length, sizes.groups * group * length
    part = sizes.groups // sizes.minibatches
    # Rows are the states of which a batch says something; entries stand row by row, from start[row] on.
    state, start, weight = np.empty(rows, np.int64), np.empty(rows + 1, np.int64), np.empty(rows)
    token, up, gate = np.empty(most, np.int64), np.empty(most, np.bool_), np.empty(most, np.int64)
    total, old, lows, highs, count, first = np.empty((6, most))
    from_row, norm = np.empty(sizes.minibatches + 1, np.int64), np.empty(sizes.minibatches)
    slot = np.full((2, tokens), -1)
    logits, p, z, h, back = np.empty(tokens), np.empty(tokens), np.empty(tokens), np.empty(size), np.empty(size)
    gw, gu = np.empty((size, tokens)), np.empty((size, size))
    all_of, cut_of = np.empty((2, 2 * OCTAVES))
    for lane in range(lanes.seed.shape[0]):
        s, w, u = lanes.seed[lane], lanes.weights[0, lane], lanes.hidden[0, lane]
        row = entries = 0
        for g in range(sizes.groups):
            if g % part == 0:
                from_row[g // part], norm[g // part] = row, 0.0
            for t in range(length):
                i = worlds.prompts[s, round, g] * length + t
                start[row], state[row] = entries, i
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
                    if e < start[row] or lows[e] != lo or highs[e] != hi or loss.by_chance:
                        e = entries
                        entries += 1
                        slot[side, a] = e
                        token[e], up[e], gate[e], old[e] = a, side == 1, n * length + t, drawn.logps[lane, n, t]
                        total[e], lows[e], highs[e], count[e] = 0.0, lo, hi, 0.0
                        first[e] = lanes.first[lane, i, a] if loss.beta > 0.0 else 0.0
                    total[e] += value
                    count[e] += 1.0
                norm[g // part] += here
                weight[row] = here
                if entries > start[row] or (here > 0 and loss.entropy_bonus > 0.0):
                    row += 1
        start[row], from_row[sizes.minibatches] = entries, row
        slot[:] = -1

        key = _key(worlds.seeds[s], draws.GATE, round)
        for step in range(sizes.epochs * sizes.minibatches):
            k = step % sizes.minibatches
            is_last = step >= (sizes.epochs - 1) * sizes.minibatches
            gw[:] = 0.0
            if sizes.is_hidden:
                gu[:] = 0.0
            if loss.by_chance:
                all_of[:] = 0.0
                cut_of[:] = 0.0
                for q in range(from_row[k], from_row[k + 1]):
                    x = worlds.features[s, state[q]]
                    if sizes.is_hidden:
                        _hidden_of(x, u, h)
                        lse = _forward(h, w, logits, p)
                    else:
                        lse = _forward(x, w, logits, p)
                    for e in range(start[q], start[q + 1]):
                        log_ratio = (logits[token[e]] - lse) - old[e]
                        cell = _cell(old[e], up[e])
                        all_of[cell] += abs(total[e])
                        if log_ratio > highs[e] if up[e] else log_ratio < lows[e]:
                            cut_of[cell] += abs(total[e])
            for q in range(from_row[k], from_row[k + 1]):
                x = worlds.features[s, state[q]]
                if sizes.is_hidden:
                    _hidden_of(x, u, h)
                else:
                    h = x
                lse = _forward(h, w, logits, p)
                z[:] = 0.0
                sum_z = 0.0
                for e in range(start[q], start[q + 1]):
                    log_p = logits[token[e]] - lse
                    log_ratio = log_p - old[e]
                    if loss.by_chance:
                        cell = _cell(old[e], up[e])
                        y = _uniform(key, step * most + gate[e])
                        kept = y * all_of[cell] >= cut_of[cell]
                        slope = _slope(loss, log_ratio, total[e], -np.inf, np.inf, up[e]) if kept else 0.0
                    else:
                        slope = _slope(loss, log_ratio, total[e], lows[e], highs[e], up[e])
                    if is_last and total[e] != 0.0:
                        mass = exp(min(log_ratio, loss.highest)) * abs(total[e])
                        cell = (1 if old[e] >= loss.log_rare else 0) + (0 if up[e] else 2)
                        seen[lane, cell] += mass
                        if slope == 0.0:
                            cuts[lane, cell] += mass
                    if loss.beta > 0.0:
                        d = first[e] - log_p
                        if abs(d) <= 20.0:
                            slope += loss.beta * count[e] * math.expm1(d)
                    z[token[e]] += slope
                    sum_z += slope
                for v in range(tokens):
                    z[v] -= sum_z * p[v]
                if loss.entropy_bonus > 0.0:
                    entropy = 0.0
                    for v in range(tokens):
                        entropy -= p[v] * (logits[v] - lse)
                    for v in range(tokens):
                        z[v] -= loss.entropy_bonus * weight[q] * p[v] * (logits[v] - lse + entropy)
                for j in range(size):
                    a = h[j] / norm[k]
                    for v in range(tokens):
                        gw[j, v] += a * z[v]
                if sizes.is_hidden:
                    for j in range(size):
                        a = 0.0
                        for v in range(tokens):
                            a += w[j, v] * z[v]
                        back[j] = a * (1.0 - h[j] * h[j]) / norm[k]
                    for i in range(size):
                        a = x[i]
                        for j in range(size):
                            gu[i, j] += a * back[j]
            done = round * sizes.epochs * sizes.minibatches + step + 1
            c1, c2 = 1.0 - sizes.beta1**done, 1.0 - sizes.beta2**done
            _adam(sizes, _rows_of(lanes.weights, lane), gw.reshape(-1), lanes.rate[lane], c1, c2)
            if sizes.is_hidden:
                _adam(sizes, _rows_of(lanes.hidden, lane), gu.reshape(-1), lanes.rate[lane], c1, c2)


@numba.njit(**_OPTIONS)
def _rows_of(x, lane):
    return x[0, lane].reshape(-1), x[1, lane].reshape(-1), x[2, lane].reshape(-1)


@numba.njit(**_OPTIONS)
def _cell(old, up):
    """The sign of A and the octave of an old probability."""
    octave = int(-old / math.log(2.0))
    return min(max(octave, 0), OCTAVES - 1) + (0 if up else OCTAVES)
