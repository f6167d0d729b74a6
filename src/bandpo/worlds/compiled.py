"""The engine "numba": all runs with one rule at once, whose bounds its own region makes in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bounds import Bounds
from ..losses.objective import MAX_LOG_RATIO
from ..losses.surrogates import Application, Decay, Preserve, by_sign
from .learner import Learner
from .rounds import HIGHEST, RARE, Trace, start_of_round
from .scenes import Scene
from .world import World

# Tokens of a piece: what torch does with so few it does in one thread.
_PIECE = 2**14
_APPLIES = ("clip", "mask", "mask_two_sided", "weight")


def is_installed() -> bool:
    """Whether numba is there."""
    return find_spec("numba") is not None


def why_not(learner: Learner) -> str | None:
    """Why a learner cannot be compiled, or None if it can."""
    objective = learner.objective
    if objective.ratio != "token":
        return f"the ratio {objective.ratio!r} is one of several tokens, which move together"
    for apply in by_sign(objective.apply, objective.dual_clip):
        if not (apply in _APPLIES or isinstance(apply, Preserve | Decay)):
            return f"the application {apply!r} is not compiled"
    if objective.beta > 0 and objective.kl_penalty != "k3":
        return f"the KL penalty {objective.kl_penalty!r} is not compiled"
    return _why_no_bounds(learner)


def _why_no_bounds(learner: Learner) -> str | None:
    """Asks the rule for bounds of some made-up rounds of two runs, together and one by one."""
    scene = Scene(prompts_per_round=2, minibatches=2, responses_per_prompt=4)
    both = 2 * scene.responses
    old = -torch.linspace(0.01, 5, both * scene.length, dtype=torch.float64).view(both, -1)
    mask = torch.ones_like(old, dtype=torch.bool)
    mask[::3, 1:] = False
    rewards = (torch.arange(both) % 3 == 0).double()

    def bounds(rows: slice) -> Bounds:
        context = start_of_round(scene, learner, old[rows], old[rows].neg(), mask[rows], rewards[rows], 1)
        return learner.objective.trust_region.bounds(old[rows], context)

    try:
        together, size = bounds(slice(None)), scene.responses
        alone = [bounds(slice(start, start + size)) for start in (0, size)]
    except ValueError as error:
        return f"its bounds are not known before the policy moves: {error}"
    for name in ("log_low", "log_high"):
        parts = torch.cat([getattr(each, name).expand(size, scene.length) for each in alone])
        whole = getattr(together, name).expand(mask.shape)
        if not torch.allclose(parts[mask], whole[mask], rtol=1e-12, atol=1e-12):
            return "its bounds depend on what else is in the batch"
    return None


def run(world: World, lanes: Sequence[tuple[Learner, int]]) -> Trace:
    """Train learners that differ by their learning rates alone, each in the world of the seed at an index."""
    tokens = world.scene.responses * world.scene.length
    most = max(1, _PIECE // tokens)
    pieces = [_run(world, lanes[i : i + most]) for i in range(0, len(lanes), most)]
    return Trace(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))


def _run(world: World, lanes: Sequence[tuple[Learner, int]]) -> Trace:
    from . import kernel

    scene, learner, count = world.scene, lanes[0][0], len(lanes)
    trace = Trace.empty(scene, count)
    states, size = scene.prompts * scene.length, scene.features + 2
    seed = np.array([index for _, index in lanes])
    worlds = kernel.Worlds(world.seeds, world.features.reshape(-1, states, size), world.right, world.prompts)
    weights, hidden = np.zeros((3, count, size, scene.tokens)), np.zeros((3, count, size, size))
    weights[0], hidden[0] = world.weights[seed], world.hidden[seed]
    past = np.zeros((count, scene.stale + 1, states, scene.tokens))
    first = np.zeros((count, 0, 0))
    shape = count, scene.responses, scene.length
    drawn = kernel.Drawn(
        np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape), np.zeros(shape), np.zeros(shape[:2])
    )
    sizes = kernel.Sizes(
        scene.prompts, scene.length, scene.free_steps, scene.prompts_per_round, scene.responses_per_prompt,
        scene.minibatches, scene.epochs, scene.stale, scene.luck, scene.flip, scene.hidden, scene.sgd, *scene.betas,
    )  # fmt: skip
    rates = np.array([each.learning_rate for each, _ in lanes])
    state = kernel.Lanes(seed, rates, weights, hidden, past, first)
    loss = _loss(learner)
    exact = [np.zeros(count) for _ in range(5)]
    for round in range(scene.rounds + 1):
        kernel.measure(sizes, worlds, state, round, *exact)
        for curve, now in zip(trace, exact, strict=False):
            curve[:, round] = now
        if round == scene.rounds:
            return trace
        if round == 0 and loss.beta > 0:
            state = state._replace(first=past[:, 0].copy())
        kernel.draw(sizes, worlds, state, round, drawn)
        advantages, low, high = _bounds(scene, learner, drawn, round)
        kernel.learn(sizes, worlds, state, round, drawn, advantages, low, high, loss, trace.cut, trace.seen)
    return trace


def _bounds(scene: Scene, learner: Learner, drawn: Any, round: int) -> Any:
    """(L, N, T) each: advantages, and the bounds that the rule has for all tokens, in float64."""
    shape = drawn.tokens.shape
    old, entropies, mask = (torch.from_numpy(x).flatten(0, 1) for x in (drawn.logps, drawn.entropies, drawn.mask))
    rewards = torch.from_numpy(drawn.rewards).flatten()
    context = start_of_round(scene, learner, old, entropies, mask, rewards, round)
    bounds = learner.objective.trust_region.bounds(old, context)
    found: tuple[Tensor | None, ...] = (context.advantages, bounds.log_low, bounds.log_high)
    return tuple(
        np.ascontiguousarray(x.expand(old.shape).double().numpy()).reshape(shape) for x in found if x is not None
    )


def _loss(learner: Learner) -> Any:
    from . import kernel

    objective = learner.objective
    up, down = by_sign(objective.apply, objective.dual_clip)
    codes = {"clip": kernel.CLIP, "mask": kernel.CLIP, "mask_two_sided": kernel.TWO_SIDED, "weight": kernel.WEIGHT}

    def code(apply: Any) -> int:
        if isinstance(apply, Application):
            return kernel.PRESERVE if isinstance(apply, Preserve) else kernel.DECAY
        return codes[apply]

    def number(apply: Any, name: str) -> float:
        return getattr(apply, name, 0.0)

    return kernel.Loss(
        code(up), code(down), number(down, "low"), number(up, "high"), number(down, "low"), number(up, "high"),
        math.inf if objective.dual_clip is None else math.log(objective.dual_clip),
        MAX_LOG_RATIO if objective.max_log_ratio is None else objective.max_log_ratio,
        objective.beta, learner.entropy_bonus, learner.by_chance, math.log(RARE), HIGHEST,
    )  # fmt: skip
