"""Train learners in a scene, and the numbers of each run."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bandpo.errors import UserError

from . import compiled, reference
from .learner import Learner
from .rounds import CUTS, Trace
from .scenes import Scene
from .scenes import scene as scene_of
from .world import World, make_world

Engine = Literal["torch", "numba"]
# Rounds at the end over which a run is judged.
_LAST = 4


def train(
    scene: Scene | str | Mapping[str, Any],
    learners: Sequence[Learner],
    seeds: Sequence[int],
    *,
    engine: Engine | None = None,
    curves: bool = False,
) -> dict[str, NDArray[np.float64]]:
    """Train every learner on every seed.

    Learners share each seed's world, prompts and random numbers, so that differences between them are paired. A run is
    the same alone and among others, bit for bit.

    Args:
        scene: a `Scene`, the name of one, or `{base: name, field: value}`.
        learners: at least one.
        seeds: at least one, integers in [0, 2^64).
        engine: "torch" is the reference: one run after another through `bandpo.policy_loss`. "numba" is hundreds of
            times as fast, agrees to rounding, and takes the objectives of which `why_not_numba` says nothing. None
            takes numba for each learner where it can.
        curves: also the course of each run.

    Returns:
        (learners, seeds) each:
        - final: exact expected reward in the mean over the last four rounds; mean: over all; peak: the largest;
        - half: the first round before which P("work") > 1/2, rounds + 1 if never;
        - work: P("work") at the end; skill: P(all steps right after "work"), in the mean over the last four rounds;
        - pass4, pass16, pass64: the probability that one of so many answers is right, as `final`;
        - of a scene with `ways`, and else 0, harder: that one of 32 is right after about half of the right tokens
          stopped being so; unseen1, unseen16: pass@1 and pass@16 at the end on unseen prompts;
        - entropy: at the end, in the mean over states, nats; kl: KL(before || after) of a round, in the mean over
          states and rounds, nats;
        - lost_up, lost_down: the share of tokens without gradient, by A > 0 and A < 0, over all optimizer steps; above,
          below: of tokens with an advantage outside their bounds; ratio: the largest of one;
        - cut_rare_up, cut_head_up, cut_rare_down, cut_head_down: the share of r |A| of the tokens that had no gradient
          in the last epoch of the rounds; rare: old p < 0.2; up: A >= 0.
        With `curves`, (learners, seeds, rounds + 1) before each round and at the end: reward, p_work, covered
        (pass@16), nats (the entropy); and lost, (learners, seeds, rounds): the share of tokens without gradient.

    Raises:
        ValueError: bad arguments; "numba" for a learner that it cannot run, by name and reason, or where numba is not
            installed.
    """
    scene, learners, seeds = scene_of(scene), list(learners), list(seeds)
    for name, values in (("learners", learners), ("seeds", seeds)):
        if not values:
            raise ValueError(f"{name} must not be empty")
    for each in learners:
        if not isinstance(each, Learner):
            raise ValueError(f"learners must be research.worlds.Learner, got {each!r}")
    if engine not in (None, "torch", "numba"):
        raise ValueError(f"engine must be 'torch', 'numba' or None, got {engine!r}")
    world = make_world(scene, seeds)
    whole = Trace.empty(scene, len(learners) * len(seeds))
    for key, places in _alike(learners).items():
        lanes = [(learners[i], s) for i in places for s in range(len(seeds))]
        run = _engine(key, engine)
        rows = [i * len(seeds) + s for i in places for s in range(len(seeds))]
        for all_runs, these in zip(whole, run(world, lanes), strict=True):
            all_runs[rows] = these
    numbers = _numbers(scene, whole)
    if curves:
        numbers |= {"reward": whole.reward, "p_work": whole.p_work, "covered": whole.pass16, "nats": whole.entropy}
        numbers["lost"] = whole.stops[..., :2].sum(-1) / whole.stops[..., 4]
    return {name: x.reshape(len(learners), len(seeds), *x.shape[1:]) for name, x in numbers.items()}


def why_not_numba(learner: Learner) -> str | None:
    """Why the engine "numba" cannot run a learner, or None if it can. Numba itself is not asked for."""
    return compiled.examine(learner)[0]


def _engine(learner: Learner, engine: Engine | None) -> Callable[[World, Sequence[tuple[Learner, int]]], Trace]:
    if engine == "torch":
        return reference.run
    reason, is_single = compiled.examine(learner)
    if engine == "numba":
        if not compiled.is_installed():
            raise UserError("engine 'numba' needs numba: pip install 'bandpo[research]'")
        if reason is not None:
            raise ValueError(f"engine 'numba' cannot run {learner!r}: {reason}; engine 'torch' can")
    if reason is None and compiled.is_installed():
        return functools.partial(compiled.run, is_single=is_single)
    return reference.run


def _alike(learners: Sequence[Learner]) -> dict[Learner, list[int]]:
    """The places of learners that differ by their learning rates alone."""
    by_learner: dict[Learner, list[int]] = {}
    for place, learner in enumerate(learners):
        by_learner.setdefault(dataclasses.replace(learner, learning_rate=1.0), []).append(place)
    return by_learner


def _numbers(scene: Scene, trace: Trace) -> dict[str, NDArray[np.float64]]:
    more = trace.p_work > 0.5
    numbers = {
        "final": trace.reward[:, -_LAST:].mean(1),
        "mean": trace.reward.mean(1),
        "peak": trace.reward.max(1),
        "half": np.where(more.any(1), more.argmax(1), scene.rounds + 1).astype(np.float64),
        "work": trace.p_work[:, -1],
        "skill": trace.skill[:, -_LAST:].mean(1),
        **{name: getattr(trace, name)[:, -_LAST:].mean(1) for name in ("pass4", "pass16", "pass64", "harder")},
        "unseen1": trace.unseen[:, 0],
        "unseen16": trace.unseen[:, 1],
        "entropy": trace.entropy[:, -1],
        "kl": trace.kl[:, 1:].mean(1),
    }
    stops = trace.stops.sum(1)
    for i, name in enumerate(("lost_up", "lost_down", "above", "below")):
        numbers[name] = stops[:, i] / stops[:, 4]
    numbers["ratio"] = np.exp(trace.stops[..., 5].max(1))
    shares = trace.cut / np.where(trace.seen > 0, trace.seen, 1.0)
    return numbers | {name: shares[:, i] for i, name in enumerate(CUTS)}
