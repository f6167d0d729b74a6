"""The lab's task: a tiny model half-knows how to work step by step and almost never does. Does reward teach it that
working pays?

Running sum: the prompt is four symbols of an alphabet of 16 and `=`, the answer their sum modulo 16. A completion
answers at once (`A` answer, end: a blind guess, right 1 in 16) or writes the running sums first (`s2 s3 s4 A` answer,
end). The warm start knows both, writes a first working symbol with a small probability, and slips in a quarter of its
steps, so that working is right in about 40 %. The reward is 1 for a right answer. How fast the rare first token may
grow is what the clipping rule decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

BASE, LENGTH = 16, 4
ANSWER, END, EQUALS, PAD = BASE, BASE + 1, BASE + 2, BASE + 3
SYMBOLS = [*"abcdefghijklmnop", "A", "<end>", "=", "<pad>"]
MAX_COMPLETION = LENGTH + 2
SLIP = 0.25


@dataclass(frozen=True)
class Scene:
    """A starting point and settings of training on it.

    Attributes:
        p_work: how often the warm start works step by step.
        question: what the scene asks.
        seconds_per_round: on one core (research/log.md), for the estimate before the start.
        defaults: of the run configuration.
        flip: share of the rewards that are inverted.
    """

    p_work: float
    question: str
    seconds_per_round: float
    defaults: dict[str, Any] = field(hash=False)
    flip: float = 0.0


def _scene(p_work: float, question: str, seconds: float, rounds: int, *, flip: float = 0.0, **trainer: Any) -> Scene:
    common = {
        "max_completion_length": MAX_COMPLETION,
        "loss_type": "dapo",
        "lr_scheduler_type": "constant",
        "activation_checkpointing": False,
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 64,
        "logging_steps": trainer["steps_per_generation"] * trainer["num_iterations"],
        **trainer,
    }
    defaults = {
        "model": "lab",
        "data": {"source": "lab"},
        "reward": "lab",
        "rounds": rounds,
        "threads": 1,
        "trainer": common,
    }
    return Scene(p_work, question, seconds, defaults, flip)


SCENES = {
    # 64 prompts x 16 completions a round, 16 minibatches x 4 epochs: the clip must bind inside a round.
    "tail": _scene(
        0.005, "what a clip costs a rare good strategy", 2.3, 30,
        learning_rate=5e-6, num_generations=16, steps_per_generation=16, num_iterations=4,
    ),
    # 16 prompts x 8 completions a round, 2 minibatches x 8 epochs: small noisy batches used many times.
    "storm": _scene(
        0.3, "does a clip protect a skill from small noisy batches used many times?", 0.4, 64,
        learning_rate=4e-4, num_generations=8, steps_per_generation=2, num_iterations=8,
    ),
    # 4 prompts x 8 completions a round, as often as in storm, and some rewards wrong, without which all runs learn:
    # found by research/measurements/fast_lab_search.py.
    "both": _scene(
        0.01, "does a rare strategy live through small noisy batches used many times?", 0.2, 64,
        learning_rate=1e-4, num_generations=8, steps_per_generation=2, num_iterations=8,
        per_device_train_batch_size=16, flip=0.05,
    ),
}  # fmt: skip


def prompts(count: int, seed: int, flip: float = 0.0) -> list[dict[str, Any]]:
    """Make rows `{prompt, answer}`, the same for every rule; with the `flip` that `reward` is told, if any."""
    symbols = torch.randint(0, BASE, (count, LENGTH), generator=torch.Generator().manual_seed(1000 + seed))
    answers = symbols.sum(1) % BASE
    more = {"flip": flip} if flip else {}
    return [
        {"prompt": " ".join([*(SYMBOLS[i] for i in row), "="]), "answer": SYMBOLS[answer], **more}
        for row, answer in zip(symbols.tolist(), answers.tolist(), strict=True)
    ]


def reward(
    completions: list[str],
    completion_ids: list[list[int]],
    answer: list[str],
    log_metric: Callable[[str, float], None] | None = None,
    flip: list[float] | None = None,
    **columns: Any,
) -> list[float]:
    """Return 1 if the right answer and the end follow the first `A`, else 0; logs how many completions work.

    Of each reward `flip` is the probability that it is inverted, by torch's own random numbers, which a run's seed
    sets and its checkpoints keep; how many were right is logged then.
    """
    if log_metric is not None:
        log_metric("lab/work", sum(ids[0] < BASE for ids in completion_ids) / len(completion_ids))
    wanted = [SYMBOLS.index(a) for a in answer]
    right = [
        float(ANSWER in ids and ids[(at := ids.index(ANSWER)) + 1 : at + 3] == [symbol, END])
        for ids, symbol in zip(completion_ids, wanted, strict=True)
    ]
    if flip is None:
        return right
    if log_metric is not None:
        log_metric("lab/right", sum(right) / len(right))
    return [
        abs(value - (x < share)) for value, x, share in zip(right, torch.rand(len(right)).tolist(), flip, strict=True)
    ]
