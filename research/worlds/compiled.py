"""The engine "numba": all runs with one rule at once, whose bounds its own region makes in torch."""

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bandpo.losses.surrogates import MAX_LOG_RATIO, Decay, Preserve, SurrogateWeight, as_pair
from bandpo.trust_regions.base import Context

from .learner import Learner
from .rounds import HIGHEST, RARE, Trace, of_some, start_of_round
from .scenes import Scene
from .world import World, sampler_table

# Tokens of a piece: what torch does with so few it does in one thread.
_PIECE = 2**15 - 1
# What torch does with numbers in a row it does with so many at once, and with the last few in another way, whose last
# bit may be another one. Rows are filled up to multiples of it, so that a run is the same wherever it stands in one.
_TOGETHER = 16
_APPLIES = ("clip", "mask", "mask_two_sided", "weight")


def is_installed() -> bool:
    """Whether numba is there."""
    return find_spec("numba") is not None


def examine(learner: Learner) -> tuple[str | None, bool]:
    """Why a learner cannot be compiled, or None if it can, and whether a token's bounds depend on that token alone."""
    objective = learner.objective
    if objective.ratio != "token":
        return f"the ratio {objective.ratio!r} is one of several tokens, which move together", False
    for surrogate in as_pair(objective.surrogate, objective.dual_clip):
        if not (surrogate in _APPLIES or isinstance(surrogate, Preserve | Decay)):
            return f"the surrogate {surrogate!r} is not compiled", False
    if objective.beta > 0 and objective.kl_penalty != "k3":
        return f"the KL penalty {objective.kl_penalty!r} is not compiled", False
    return _look_at_made_up_rounds(learner)


def _look_at_made_up_rounds(learner: Learner) -> tuple[str | None, bool]:
    """Why the rule cannot be asked before the policy moves, and whether a token's bounds depend on that token alone:
    made-up rounds of two runs are shown to it together, run by run, and token by token."""
    scene = Scene(prompts_per_round=2, minibatches=2, responses_per_prompt=4)
    both, size = 2 * scene.responses, scene.responses
    old = -torch.linspace(0.01, 5, both * scene.length, dtype=torch.float64).view(both, -1)
    mask = torch.ones_like(old, dtype=torch.bool)
    mask[::3, 1:] = False
    rewards = (torch.arange(both) % 3 == 0).double()

    def context(rows: slice) -> Context:
        return start_of_round(scene, learner, old[rows], old[rows].neg(), mask[rows], rewards[rows], 1)

    def bounds(old_logps: Tensor, context: Context) -> Tensor:
        bounds = learner.objective.trust_region.bounds(old_logps, context)
        return torch.stack([x.expand(old_logps.shape) for x in (bounds.log_low, bounds.log_high)])

    try:
        whole = context(slice(None))
        together = bounds(old, whole)[:, mask]
        rows = [slice(start, start + size) for start in (0, size)]
        alone = torch.cat([bounds(old[part], context(part)) for part in rows], 1)[:, mask]
        index = mask.flatten().nonzero()[:, 0]
        single = bounds(_column(old, index), _at(whole, index, old.shape))[..., 0]
    except ValueError as error:
        return f"its bounds are not known before the policy moves: {error}", False
    same = (torch.allclose(x, together, rtol=1e-12, atol=1e-12) for x in (alone, single))
    return (None if next(same) else "its bounds depend on what else is in the batch"), next(same)


def _column(x: Tensor, index: Tensor) -> Tensor:
    return x.flatten()[index][:, None]


def _at(context: Context, index: Tensor, shape: torch.Size) -> Context:
    """The context of some tokens, each as a response of its own."""
    return of_some(context, lambda x: _column(x.expand(shape), index))


def run(world: World, lanes: Sequence[tuple[Learner, int]], is_single: bool) -> Trace:
    """Train learners that differ by their learning rates alone, each in the world of the seed at an index.

    `is_single` is what `examine` says of them.
    """
    tokens = world.scene.responses * world.scene.length
    most = max(1, _PIECE // tokens)
    pieces = [_Piece(world, lanes[i : i + most], is_single).train() for i in range(0, len(lanes), most)]
    return Trace(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))


class _Piece:
    """Some runs, a lane each, and arrays for their rounds."""

    def __init__(self, world: World, lanes: Sequence[tuple[Learner, int]], is_single: bool) -> None:
        from . import kernel

        self.kernel, self.scene, self.learner, self.is_single = kernel, world.scene, lanes[0][0], is_single
        self.world = world
        scene, count = world.scene, len(lanes)
        states, size = scene.prompts * scene.length, scene.features + 2
        seed = np.array([index for _, index in lanes])
        at_once = world.features.reshape(-1, states, size)
        self.worlds = kernel.Worlds(world.seeds, at_once, world.right, world.ways, world.harder, world.prompts)
        self.features = self.worlds.features[seed]
        weights, hidden = np.zeros((3, count, size, scene.tokens)), np.zeros((3, count, size, size))
        weights[0], hidden[0] = world.weights[seed], world.hidden[seed]
        past = np.zeros((count, scene.stale + 1, states, scene.tokens))
        rates = np.array([each.learning_rate for each, _ in lanes])
        sampler = past if scene.sampler is None else past.copy()
        self.lanes = kernel.Lanes(seed, rates, weights, hidden, past, sampler, np.zeros((count, 0, 0)))
        unit = _TOGETHER // math.gcd(_TOGETHER, scene.prompts_per_round)
        shape = math.ceil(count / unit) * unit, scene.responses, scene.length
        tokens, logps, entropies = np.zeros(shape, np.int64), np.full(shape, -1.0), np.zeros(shape)
        self.drawn = kernel.Drawn(tokens, np.zeros(shape, bool), logps, logps.copy(), entropies, np.zeros(shape[:2]))
        self.place = np.arange(tokens.size).reshape(shape)
        self.index = np.zeros(tokens.size, np.int64)
        self.sizes = kernel.Sizes(
            scene.prompts, scene.length, scene.free_steps, scene.prompts_per_round, scene.responses_per_prompt,
            scene.minibatches, scene.epochs, scene.stale, self.learner.anchor != "sampler",
            scene.luck, scene.flip, scene.ways > 0, scene.hidden, scene.sgd, *scene.betas,
        )  # fmt: skip
        self.loss = _loss(self.learner)
        self.trace = Trace.empty(scene, count)

    def train(self) -> Trace:
        kernel, trace, count = self.kernel, self.trace, len(self.lanes.seed)
        exact = [np.zeros(count) for _ in range(9)]
        for round in range(self.scene.rounds + 1):
            kernel.measure(self.sizes, self.worlds, self.lanes, round, *exact)
            for curve, now in zip(trace, exact, strict=False):
                curve[:, round] = now
            if round == self.scene.rounds:
                break
            if round == 0 and self.loss.beta > 0:
                self.lanes = self.lanes._replace(first=self.lanes.past[:, 0].copy())
            if self.scene.sampler is not None:
                now = sampler_table(self.scene, self.features, self.lanes.weights[0], self.lanes.hidden[0])
                self.lanes.sampler[:, round % (self.scene.stale + 1)] = now
            start = self.sizes, self.worlds, self.lanes, round, self.drawn
            kernel.draw(*start)
            kernel.learn(*start, *self.bounds_of_round(round), self.loss, trace.cut, trace.seen, trace.stops)
        weights, hidden = self.lanes.weights[0], self.lanes.hidden[0]
        for lane, index in enumerate(self.lanes.seed):
            trace.unseen[lane] = self.world.on_unseen(index, weights[lane], hidden[lane])
        return trace

    def bounds_of_round(self, round: int) -> tuple[Any, Any, Any, Any]:
        """Advantages, (L, N, T), where the bounds of each token are, and the rule's bounds in float64."""
        drawn, shape = self.drawn, self.drawn.tokens.shape
        arrays = drawn.logps, drawn.rollout, drawn.entropies, drawn.mask
        old, rollout, entropies, mask = (torch.from_numpy(x).flatten(0, 1) for x in arrays)
        rewards = torch.from_numpy(drawn.rewards).flatten()
        context = start_of_round(self.scene, self.learner, old, entropies, mask, rewards, round, rollout)
        advantages = np.ascontiguousarray(cast(Any, context.advantages)).reshape(shape)
        if self.is_single:
            self.index[:] = 0
            start = self.sizes, self.worlds, self.lanes, round, drawn
            count = self.kernel.distinct(*start, advantages, self.index, self.place)
            index = torch.from_numpy(self.index[: max(1, math.ceil(count / _TOGETHER)) * _TOGETHER])
            context, old = _at(context, index, old.shape), _column(old, index)
        bounds = self.learner.objective.trust_region.bounds(old, context)
        low, high = (x.expand(old.shape).double().flatten().numpy() for x in (bounds.log_low, bounds.log_high))
        return advantages, self.place, low, high


def _loss(learner: Learner) -> Any:
    from . import arithmetic

    objective = learner.objective
    up, down = as_pair(objective.surrogate, objective.dual_clip)
    codes = dict(
        zip(_APPLIES, (arithmetic.CLIP, arithmetic.CLIP, arithmetic.TWO_SIDED, arithmetic.WEIGHT), strict=True)
    )

    def code(surrogate: Any) -> int:
        if isinstance(surrogate, SurrogateWeight):
            return arithmetic.PRESERVE if isinstance(surrogate, Preserve) else arithmetic.DECAY
        return codes[surrogate]

    def number(surrogate: Any, name: str) -> float:
        return getattr(surrogate, name, 0.0)

    return arithmetic.Loss(
        code(up), code(down), number(down, "low"), number(up, "high"), number(down, "low"), number(up, "high"),
        math.inf if objective.dual_clip is None else math.log(objective.dual_clip),
        MAX_LOG_RATIO if objective.max_log_ratio is None else objective.max_log_ratio,
        objective.beta, learner.entropy_bonus, learner.balanced, learner.by_chance, math.log(RARE), HIGHEST,
    )  # fmt: skip
