"""The engine in torch: one run after another, each loss by `bandpo.policy_loss` itself. Slow, plain, and for every
objective."""

import dataclasses
import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bandpo.losses.objective import Objective
from bandpo.losses.policy import policy_loss
from bandpo.trust_regions.base import Context
from bandpo.trust_regions.rules import Clip

from . import draws
from .learner import Learner
from .rounds import HIGHEST, RARE, Trace, of_some, start_of_round
from .world import World, divergence, entropies, exact, sample, sampler_table

_OCTAVES = 16


def run(world: World, lanes: Sequence[tuple[Learner, int]]) -> Trace:
    """Train each learner in the world of the seed at an index."""
    trace = Trace.empty(world.scene, len(lanes))
    for lane, (learner, index) in enumerate(lanes):
        _Run(world, learner, index, trace, lane).train()
    return trace


class _Run:
    def __init__(self, world: World, learner: Learner, index: int, trace: Trace, lane: int) -> None:
        scene = world.scene
        self.world, self.scene, self.learner, self.index = world, scene, learner, index
        self.trace, self.lane = trace, lane
        self.features = torch.from_numpy(world.features[index]).flatten(0, 1)
        arrays = [world.weights[index], world.hidden[index]] if scene.hidden else [world.weights[index]]
        self.parameters = [torch.from_numpy(array.copy()).requires_grad_() for array in arrays]
        if scene.sgd:
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.parameters, lr=learner.learning_rate)
        else:
            self.optimizer = torch.optim.Adam(self.parameters, lr=learner.learning_rate, betas=scene.betas)
        self.steps = 0

    def table(self) -> Tensor:
        """(states, tokens), log-probabilities of the policy. Always of all states, so that the same weights give the
        same numbers."""
        weights, *hidden = self.parameters
        x = torch.tanh(self.features @ hidden[0]) if hidden else self.features
        return torch.log_softmax(x @ weights, -1)

    def sampler(self, table: Any) -> Any:
        """The policy that would draw now, whose exact table this is."""
        if self.scene.sampler is None:
            return table
        weights, *hidden = (x.detach().numpy() for x in self.parameters)
        return sampler_table(self.scene, self.features.numpy(), weights, hidden[0] if hidden else weights)

    def train(self) -> None:
        past: list[Any] = []
        samplers: list[Any] = []
        for round in range(self.scene.rounds + 1):
            past = [*past, self.table().detach().numpy()][-2 - self.scene.stale :]
            self.measure(round, past)
            if round < self.scene.rounds:
                if round == 0:
                    self.first = past[0]
                samplers = [*samplers, self.sampler(past[-1])][-1 - self.scene.stale :]
                self.learn(round, samplers[0] if self.learner.anchor == "sampler" else past[-1], samplers[0])
        weights, *hidden = (x.detach().numpy() for x in self.parameters)
        unseen = self.world.on_unseen(self.index, weights, hidden[0] if hidden else weights)
        self.trace.unseen[self.lane] = unseen

    def measure(self, round: int, past: list[Any]) -> None:
        world, i = self.world, self.index
        numbers = exact(self.scene, past[-1], world.right[i], world.ways[i], world.harder[i])
        for name, value in numbers._asdict().items():
            getattr(self.trace, name)[self.lane, round] = value
        if round:
            self.trace.kl[self.lane, round] = divergence(past[-2], past[-1])

    def learn(self, round: int, old: Any, drawn: Any) -> None:
        """The optimizer steps on a round's responses, which the policy `drawn` drew."""
        scene, learner = self.scene, self.learner
        batch = sample(self.world, self.index, drawn, round)
        states, tokens, mask, rewards = map(torch.from_numpy, (batch.states, batch.tokens, batch.mask, batch.rewards))
        old_logps, rollout = (torch.where(mask, torch.from_numpy(x)[states, tokens], -1.0) for x in (old, drawn))
        old_entropies = torch.from_numpy(entropies(old))[states]
        context = start_of_round(scene, learner, old_logps, old_entropies, mask, rewards, round, rollout)
        count = scene.epochs * scene.minibatches
        uniforms = None
        if learner.by_chance:
            seed = self.world.seeds[self.index : self.index + 1]
            uniforms = torch.from_numpy(draws.uniforms(seed, draws.GATE, round, count * mask.numel()))
            uniforms = uniforms.view(count, *mask.shape)
        size = scene.responses // scene.minibatches
        for step in range(count):
            part = slice(step % scene.minibatches * size, (step % scene.minibatches + 1) * size)
            here = tuple(x[part] for x in (states, tokens, mask, old_logps))
            gate = None if uniforms is None else uniforms[step, part]
            is_last = step >= count - scene.minibatches
            self.step(here, of_some(context, itemgetter(part)), torch.from_numpy(old), gate, round, is_last)

    def step(self, batch: Any, context: Context, old: Tensor, gate: Tensor | None, round: int, is_last: bool) -> None:
        states, tokens, mask, old_logps = batch
        learner, objective = self.learner, self.learner.objective
        table = self.table()
        logps, now = table[states, tokens], table.detach()
        entropy = -(table.exp() * table).sum(-1)[states]
        extra: dict[str, Any] = {**context.extra, "step": self.steps, "entropies": entropy.detach()}
        extra["logps"] = logps.detach()
        extra["divergences"] = (0.5 * (now.exp() - old.exp()).abs().sum(-1))[states]
        gates = None
        if gate is not None:
            with_all = dataclasses.replace(context, extra=extra)
            gates = _by_chance(objective, logps.detach(), old_logps, mask, with_all, gate)
            objective = dataclasses.replace(objective, trust_region=Clip(1.0, math.inf), surrogate="clip")

        def loss_of(objective: Objective, advantages: Tensor) -> Any:
            reference = None
            if objective.beta > 0:
                reference = torch.from_numpy(self.first)[states, tokens]
            return policy_loss(
                logps, old_logps, advantages, mask, objective,
                ref_logps=reference, rollout_is_weights=gates, metrics="all", extra=extra,
            )  # fmt: skip

        def slope_of(advantages: Tensor) -> Tensor:
            """Of the surrogate alone, for each token."""
            plain = dataclasses.replace(objective, beta=0.0, kl_penalty=Objective.kl_penalty)
            return torch.autograd.grad(loss_of(plain, advantages)[0], logps, retain_graph=True)[0]

        advantages, log_ratio = cast(Tensor, context.advantages), logps.detach() - old_logps
        slope = slope_of(advantages)
        at_step = dataclasses.replace(context, extra=extra)
        bounds = learner.objective.trust_region.bounds(old_logps, at_step)
        self.count_stops(round, slope, log_ratio, bounds, advantages, mask)
        if learner.balanced:
            advantages = _balanced(advantages, log_ratio, slope != 0)
            slope = slope_of(advantages)
        loss, _ = loss_of(objective, advantages)
        if is_last:
            self.count_cuts(slope, log_ratio, old_logps, advantages, mask)
        if learner.entropy_bonus > 0:
            loss = loss - learner.entropy_bonus * entropy[mask].mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1

    def count_stops(
        self, round: int, slope: Tensor, log_ratio: Tensor, bounds: Any, advantages: Tensor, mask: Tensor
    ) -> None:
        matters = mask & (advantages != 0)
        lost = matters & (slope == 0)
        high, low = log_ratio > bounds.log_high, log_ratio < bounds.log_low
        counts = (lost & (advantages > 0), lost & (advantages < 0), matters & high, matters & low)
        stops = self.trace.stops[self.lane, round]
        stops[:4] += [float(x.sum()) for x in counts]
        stops[4] += float(mask.sum())
        stops[5] = max(stops[5], float(torch.where(matters, log_ratio, 0.0).max()))

    def count_cuts(self, slope: Tensor, log_ratio: Tensor, old_logps: Tensor, advantages: Any, mask: Tensor) -> None:
        mass = torch.where(mask, log_ratio.clamp(max=HIGHEST).exp() * advantages.abs(), 0.0)
        cell = (old_logps >= math.log(RARE)).long() + 2 * (advantages < 0)
        for sums, share in ((self.trace.cut, mass * (slope == 0)), (self.trace.seen, mass)):
            sums[self.lane] += np.bincount(cell.flatten(), share.flatten(), minlength=sums.shape[1])


def _balanced(advantages: Tensor, log_ratio: Tensor, inside: Tensor) -> Tensor:
    """Advantages minus sum r A / sum r over the tokens that are kept; 0 where that has another sign."""
    ratio = torch.where(inside, log_ratio.clamp(max=HIGHEST).exp(), 0.0)
    moved = advantages - (ratio * advantages).sum() / ratio.sum().clamp(min=1e-300)
    return torch.where(moved * advantages > 0, moved, 0.0)


def _by_chance(
    objective: Objective, logps: Tensor, old_logps: Tensor, mask: Tensor, context: Context, gate: Tensor
) -> Tensor:
    """1 where a token is kept, 0 where it is cut: at the share of |A| that the rule would cut, for each sign of A and
    octave of the old probability."""
    bounds = objective.trust_region.bounds(old_logps, context)
    log_ratio, advantages = logps - old_logps, cast(Tensor, context.advantages)
    up = advantages >= 0
    cut = torch.where(up, log_ratio > bounds.log_high, log_ratio < bounds.log_low)
    octave = (-old_logps / math.log(2)).long().clamp(0, _OCTAVES - 1)
    cell = (octave + _OCTAVES * ~up).flatten()
    mass = torch.where(mask, advantages.abs(), 0.0)
    all_of, cut_of = (torch.bincount(cell, x.flatten(), minlength=2 * _OCTAVES) for x in (mass, mass * cut))
    return (gate.flatten() * all_of[cell] >= cut_of[cell]).view(mask.shape).to(logps.dtype)
