"""The lab's runs without TRL: the same training in a small loop of its own, for contests of hundreds of runs.

It takes the settings that a scene gives TRL's trainer and does what `BandPOTrainer` does with them, in the same order;
only the random numbers of the sampler are others. A test feeds TRL's own batches to `learn` and compares the weights;
benchmarks/fast_lab.py compares whole runs, in results and in time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import lab
from ..integrations import objective_for
from ..lab.prefixes import Completions, Prefixes, Weights, load_weights, log_probs, prefixes, sample
from ..losses.advantages import group_advantages
from ..losses.objective import Method, Objective
from ..losses.policy import policy_loss
from ..trust_regions.adaptive import Adaptive
from ..trust_regions.base import TrustRegion, find_one
from ..trust_regions.control import Controlled

Row = dict[str, float]

# TRL adds it to the standard deviation of a group's rewards, and clips the norm of the gradient at this.
_STD_EPSILON, _MAX_GRAD_NORM = 1e-4, 1.0
# Of a scene's settings for TRL those that are read here, and those that say what is done here anyway.
_READ = {
    "learning_rate", "num_generations", "steps_per_generation", "num_iterations", "per_device_train_batch_size",
}  # fmt: skip
_DONE = {
    "max_completion_length": lab.MAX_COMPLETION, "loss_type": "dapo", "lr_scheduler_type": "constant", "use_cpu": True,
    "bf16": False, "activation_checkpointing": False,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What a scene sets of a run.

    Attributes:
        p_work: how often the warm start works step by step.
        rounds: sample, then learn, so many times.
        learning_rate: of AdamW, constant.
        prompts: in a round.
        num_generations: completions of each prompt, G.
        steps_per_generation: minibatches that a round's completions are split into, K.
        num_iterations: times that each of these is used, E; a round has K E optimizer steps.
        flip: share of the rewards that are inverted, chosen at random.
        positive_weight: advantages above 0 are multiplied by it. 1 is the method as it is; contests have less as a
            control, for whether a rule does more than that.
    """

    p_work: float
    rounds: int
    learning_rate: float
    prompts: int
    num_generations: int
    steps_per_generation: int
    num_iterations: int
    flip: float = 0.0
    positive_weight: float = 1.0

    def __post_init__(self) -> None:
        counts = ("rounds", "prompts", "num_generations", "steps_per_generation", "num_iterations")
        for name in counts:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        for name in ("learning_rate", "positive_weight"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        if not 0 <= self.flip < 0.5:
            raise ValueError(f"flip must be at least 0 and below a half, got {self.flip!r}")
        if not 0 < self.p_work < 1:
            raise ValueError(f"p_work must be between 0 and 1, got {self.p_work!r}")
        if self.num_generations < 2:
            raise ValueError(f"num_generations must be at least 2, got {self.num_generations}")
        if self.prompts * self.num_generations % self.steps_per_generation:
            raise ValueError(
                f"steps_per_generation must divide the {self.prompts} x {self.num_generations} completions of a round, "
                f"got {self.steps_per_generation}"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps in a round."""
        return self.steps_per_generation * self.num_iterations

    @classmethod
    def of(cls, scene: str, **changes: Any) -> Settings:
        """The settings of a scene of the lab, with `changes` to the fields.

        Raises:
            ValueError: no such scene, or a value that cannot be.
        """
        if scene not in lab.SCENES:
            raise ValueError(f"scene must be one of {sorted(lab.SCENES)}, got {scene!r}")
        found = lab.SCENES[scene]
        trainer: Mapping[str, Any] = found.defaults["trainer"]
        other = {name: value for name, value in trainer.items() if name not in _READ and name != "logging_steps"}
        assert other == _DONE, f"the fast loop does not do what scene {scene!r} sets: {other}"
        group, minibatches = trainer["num_generations"], trainer["steps_per_generation"]
        own = cls(
            p_work=found.p_work,
            rounds=found.defaults["rounds"],
            learning_rate=trainer["learning_rate"],
            prompts=trainer["per_device_train_batch_size"] * minibatches // group,
            num_generations=group,
            steps_per_generation=minibatches,
            num_iterations=trainer["num_iterations"],
        )
        return dataclasses.replace(own, **changes)


class Minibatch(NamedTuple):
    """Completions that one optimizer step learns from.

    Attributes:
        tree: of their prefixes.
        completions: tokens, mask, and what the old policy said of them.
        columns: one number per completion, (B, 1): `advantages`, and what else a rule may see, by its name in
            `bandpo.Context`.
    """

    tree: Prefixes
    completions: Completions
    columns: Mapping[str, Tensor]

    @classmethod
    def of(cls, prompts: Tensor, completions: Completions, columns: Mapping[str, Tensor]) -> Minibatch:
        """With the tree of its own prefixes, as deep as its longest completion."""
        longest = int(completions.mask.sum(1).max())
        completions = Completions(*(x[:, :longest] for x in completions))
        tree = prefixes(prompts, completions.tokens, completions.mask)
        return cls(tree, completions, {name: x[:, None] for name, x in columns.items()})


def train(
    settings: Settings | str,
    objective: Objective | TrustRegion | Method | Mapping[str, Any] | str,
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    **changes: Any,
) -> list[Row]:
    """Train the lab's model; returns a row of metrics for each round.

    The start and the prompts are those of `bandpo lab` with that seed; the sampler's random numbers are not, so single
    rounds differ as those of two seeds of the sampler do. A run repeated on the same machine gives the same rows.

    Args:
        settings: a scene's name, or settings of your own.
        objective: what `bandpo.policy_loss` takes, or a node; the average over tokens is the scene's. Not a rule whose
            number moves in training (`Controlled`, `Adaptive`).
        seed: of the warm start, the prompts and the sampler.
        say: called with notices of the warm start.
        changes: to fields of the settings, such as `learning_rate=1e-5` or `rounds=36`.

    Returns:
        A row has those keys of a row of `metrics.jsonl` that the loop has numbers for: reward, lab/work, loss, entropy
        and all of docs/metrics.md. An undefined number is left out.

    Raises:
        ValueError: no such scene, a setting that cannot be, an objective that is none or that TRL would not take.
        UserError: the warm start cannot be kept anywhere.
    """
    own = Settings.of(settings, **changes) if isinstance(settings, str) else dataclasses.replace(settings, **changes)
    value = _objective(objective)
    folder, _ = lab.warm_start(own.p_work, seed, say)
    with _one_thread():
        weights, rng = load_weights(folder), torch.Generator().manual_seed(seed)
        optimizer = _optimizer(weights, own.learning_rate)
        rows = lab.prompts(own.rounds * own.prompts, seed)
        symbols = torch.tensor([[lab.SYMBOLS.index(symbol) for symbol in row["prompt"].split()] for row in rows])
        answers = [row["answer"] for row in rows]
        out = []
        for i in range(own.rounds):
            mine = slice(i * own.prompts, (i + 1) * own.prompts)
            prompts = symbols[mine].repeat_interleave(own.num_generations, 0)
            right = [answer for answer in answers[mine] for _ in range(own.num_generations)]
            completions = sample(weights, prompts, rng)
            columns, about = _scored(completions, right, own, rng)
            order = torch.randperm(len(prompts), generator=rng)
            minibatches = [
                Minibatch.of(
                    prompts[part],
                    Completions(*(x[part] for x in completions)),
                    {name: x[part] for name, x in columns.items()},
                )
                for part in order.chunk(own.steps_per_generation)
            ]
            about |= learn(weights, optimizer, minibatches, value, own.num_iterations, first_step=i * own.steps)
            out.append({"step": (i + 1) * own.steps, "round": i + 1, "learning_rate": own.learning_rate, **about})
    return out


def learn(
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    minibatches: list[Minibatch],
    objective: Objective,
    epochs: int,
    *,
    first_step: int = 0,
) -> Row:
    """The optimizer steps of one round: each minibatch in turn, `epochs` times; returns what was measured.

    The loss of a step is the sum over its tokens, divided by the tokens of the round over the number of minibatches
    (TRL's loss "dapo"), so that a token weighs the same in each.

    Args:
        weights: changed in place.
        optimizer: of these weights.
        minibatches: of one round.
        objective: with the average "token-mean".
        epochs: times that each minibatch is used.
        first_step: optimizer steps before this round.
    """
    tokens = sum(int(batch.completions.mask.sum()) for batch in minibatches) / len(minibatches)
    losses, metrics, norm = [], None, torch.tensor(0.0)
    for epoch in range(epochs):
        for i, batch in enumerate(minibatches):
            done = epoch * len(minibatches) + i
            choices = log_probs(weights, batch.tree)
            logps = choices[batch.tree.at, batch.completions.tokens]
            flat = choices.detach()
            known: dict[str, Any] = {name: x for name, x in batch.columns.items() if name != "advantages"}
            loss, found = policy_loss(
                logps,
                batch.completions.logps,
                batch.columns["advantages"],
                batch.completions.mask,
                objective,
                normalizer=tokens,
                entropies=-(flat.exp() * flat).sum(-1)[batch.tree.at],
                old_entropies=batch.completions.entropies,
                step=first_step + done,
                staleness=done,
                **known,
            )
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(weights.values(), _MAX_GRAD_NORM)
            optimizer.step()
            losses.append(loss.detach())
            metrics = found if metrics is None else metrics.merge(found)
    assert metrics is not None
    measured = {name: value for name, value in metrics.compute().items() if not math.isnan(value)}
    return {"loss": torch.stack(losses).mean().item(), "grad_norm": norm.item(), **measured}


def _scored(
    completions: Completions, answers: list[str], settings: Settings, rng: torch.Generator
) -> tuple[dict[str, Tensor], Row]:
    """What the rewards make of each completion, (B,) each, and what is logged of them."""
    lengths = completions.mask.sum(1)
    ids = [row[:length] for row, length in zip(completions.tokens.tolist(), lengths.tolist(), strict=True)]
    logged: Row = {}
    rewards = torch.tensor(lab.reward([""] * len(ids), ids, answers, logged.__setitem__))
    if settings.flip:
        logged["lab/right"] = rewards.mean().item()
        rewards = (rewards - (torch.rand(len(rewards), generator=rng) < settings.flip).float()).abs()
    groups = rewards.view(-1, settings.num_generations)
    advantages = group_advantages(rewards, settings.num_generations, epsilon=_STD_EPSILON)
    columns = {
        "advantages": torch.where(advantages > 0, settings.positive_weight * advantages, advantages),
        "group_mean": groups.mean(1, keepdim=True).expand_as(groups).flatten(),
        "group_std": groups.std(1, keepdim=True, correction=0).expand_as(groups).flatten(),
    }
    logged |= {
        "reward": rewards.mean().item(),
        "reward_std": rewards.std().item(),
        "frac_reward_zero_std": (groups.std(1) == 0).float().mean().item(),
        "completions/mean_length": lengths.float().mean().item(),
    }
    return columns, logged


def _objective(node: Any) -> Objective:
    found = objective_for("TRL", node)
    for kind in (Controlled, Adaptive):
        if find_one(found.trust_region, kind) is not None:
            raise ValueError(
                f"objective must not have a number that moves in training here, got {found.trust_region!r}; train it "
                "with BandPOTrainer"
            )
    return dataclasses.replace(found, aggregation="token-mean")


def _optimizer(weights: Weights, learning_rate: float) -> torch.optim.Optimizer:
    """TRL's, fused as there."""
    return torch.optim.AdamW(weights.values(), lr=learning_rate, weight_decay=0.0, fused=True)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The same rows on every machine of a kind; and more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
