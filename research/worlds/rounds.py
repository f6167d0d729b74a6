"""What both engines make of a round before the policy moves: advantages, and what a rule may know of the responses."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bandpo.losses.advantages import group_advantages
from bandpo.trust_regions.base import Context, walk
from research.rules.adaptive import Adaptive

from .learner import ANCHORS, Learner
from .mismatch import rollout_weights
from .scenes import Scene

# Below this old probability a token counts as rare.
RARE = 0.2
# What log r counts as at most in the measured shares.
HIGHEST = 20.0
CUTS = ("cut_rare_up", "cut_head_up", "cut_rare_down", "cut_head_down")


class Trace(NamedTuple):
    """What an engine hands back of each run.

    Attributes:
        reward to kl: (lanes, rounds + 1), the exact numbers before each round and at the end.
        cut, seen: (lanes, 4), the sums of `CUTS`: of r |A| of the tokens without gradient, and of all.
        stops: (lanes, rounds, 6), over a round's optimizer steps: tokens with A > 0 and with A < 0 that lost their
            gradient, tokens with an advantage above and below their bounds, all tokens, and the largest log r.
        unseen: (lanes, 2), pass@1 and pass@16 on unseen prompts at the end; 0 without any.
    """

    reward: NDArray[np.float64]
    p_work: NDArray[np.float64]
    skill: NDArray[np.float64]
    entropy: NDArray[np.float64]
    pass4: NDArray[np.float64]
    pass16: NDArray[np.float64]
    pass64: NDArray[np.float64]
    harder: NDArray[np.float64]
    kl: NDArray[np.float64]
    cut: NDArray[np.float64]
    seen: NDArray[np.float64]
    stops: NDArray[np.float64]
    unseen: NDArray[np.float64]

    @classmethod
    def empty(cls, scene: Scene, lanes: int) -> Self:
        shapes = [(scene.rounds + 1,)] * 9 + [(len(CUTS),)] * 2 + [(scene.rounds, 6), (2,)]
        return cls(*[np.zeros((lanes, *shape)) for shape in shapes])


def start_of_round(
    scene: Scene, learner: Learner, old_logps: Tensor, old_entropies: Tensor, mask: Tensor, rewards: Tensor, round: int,
    rollout_logps: Tensor | None = None,
) -> Context:  # fmt: skip
    """What is known of a round's responses before the first optimizer step, of one run or of several with one rule.

    Args:
        scene: the scene.
        learner: whose rule asks.
        old_logps: (B, T), of the tokens by the learner's anchor; B is `scene.responses` for each run.
        old_entropies: (B, T), of that policy there.
        mask: (B, T), bool.
        rewards: (B,).
        round: the number of the round, from 0 on.
        rollout_logps: (B, T), of the tokens by the policy that drew them; None: they are old_logps.
    """
    size = scene.responses_per_prompt
    groups = rewards.view(-1, size)
    advantages = group_advantages(rewards, size)[:, None].expand(mask.shape)
    if learner.positive_weight != 1:
        least = math.log(learner.positive_from) if learner.positive_from > 0 else -math.inf
        weighted = (advantages > 0) & (old_logps >= least)
        advantages = torch.where(weighted, learner.positive_weight * advantages, advantages)
    correction = ANCHORS[learner.anchor]
    if correction is not None and rollout_logps is not None:
        advantages = advantages * rollout_weights(old_logps, rollout_logps, mask, *correction)
    context = Context(
        response_mask=mask,
        advantages=advantages,
        extra={
            "old_entropies": old_entropies,
            "group_mean": groups.mean(1).repeat_interleave(size)[:, None],
            "group_std": groups.std(1, correction=0).repeat_interleave(size)[:, None],
            "staleness": min(scene.stale, round),
        },
    )
    region = learner.objective.trust_region
    adaptive = next((each for each in walk(region) if isinstance(each, Adaptive)), None)
    if adaptive is not None:  # the mean over a round, as trainers have it, and not over a minibatch
        weights = torch.where(mask, adaptive.weights(old_logps, context), 0.0).view(-1, scene.responses, mask.shape[1])
        means = weights.sum((1, 2)) / mask.view(weights.shape).sum((1, 2))
        mean_weight = means.repeat_interleave(scene.responses)[:, None]
        context = dataclasses.replace(context, extra={**context.extra, "mean_weight": mean_weight})
    return context


def of_some(context: Context, choose: Callable[[Tensor], Tensor]) -> Context:
    """The context of a part of the tokens, which `choose` takes from each tensor."""

    def some(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: choose(x) if isinstance(x, Tensor) else x for name, x in fields.items()}

    fields = some(vars(context))
    fields["extra"] = some(context.extra)
    return Context(**fields)
