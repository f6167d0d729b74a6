"""The lab's runs without TRL: the same training in a small loop of its own, for contests of hundreds of runs.

It takes the settings that a scene gives TRL's trainer and does what `BandPOTrainer` does with them, in the same order;
only the random numbers of the sampler are others. A test feeds TRL's own batches to `learn` and compares the weights;
research/measurements/fast_lab.py compares whole runs, in results and in time.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bandpo.errors import UserError
from bandpo.integrations import objective_for
from bandpo.losses.advantages import group_advantages
from bandpo.losses.metrics import Metrics
from bandpo.losses.objective import Method, Objective
from bandpo.losses.policy import policy_loss
from bandpo.numerics import not_finite
from bandpo.trust_regions.base import Region
from bandpo_runs import toy
from research.lab_settings import Settings
from research.prefixes import Completions, Prefixes, Weights, load_weights, log_probs, prefixes, sample, side_by_side

Row = dict[str, float]

# TRL adds it to the standard deviation of a group's rewards, and clips the norm of the gradient at this.
_STD_EPSILON, _MAX_GRAD_NORM = 1e-4, 1.0


class Minibatch(NamedTuple):
    """Completions that one optimizer step learns from, of one run, or as many of each of several.

    Attributes:
        tree: of their prefixes.
        completions: tokens, mask, and what the old policy said of them.
        advantages: one per completion, (B, 1).
    """

    tree: Prefixes
    completions: Completions
    advantages: Tensor

    @classmethod
    def of(cls, prompts: Tensor, completions: Completions, advantages: Tensor) -> Self:
        """With the tree of its own prefixes."""
        return cls(prefixes(prompts, completions.tokens, completions.mask), completions, advantages[:, None])

    @classmethod
    def side_by_side(cls, runs: Sequence[Self]) -> Self:
        """Those of several runs as one."""
        completions = Completions(*(torch.cat(x) for x in zip(*(run.completions for run in runs), strict=True)))
        return cls(side_by_side([run.tree for run in runs]), completions, torch.cat([run.advantages for run in runs]))


def train(
    settings: Settings | str,
    objective: Objective | Region | Method | Mapping[str, Any] | str,
    seeds: Sequence[int] = (0,),
    *,
    start_seed: int | None = None,
    measure: bool = True,
    say: Callable[[str], None] = lambda text: None,
    **changes: Any,
) -> list[list[Row]]:
    """Train the lab's model with each seed, side by side; returns for each a row of metrics for each round.

    The start and the prompts are those of `bandpo lab` with that seed; the sampler's random numbers are not, so single
    rounds differ as those of two seeds of the sampler do. The same call on the same machine gives the same rows; with
    other seeds beside it a run is rounded in another way, and goes its own way from there.

    Args:
        settings: a scene's name, or settings of your own.
        objective: what `bandpo.policy_loss` takes, or a node; the average over tokens is the scene's. Not a rule
            that needs more than TRL gives.
        seeds: of each run: of its prompts and its sampler, and of its warm start unless `start_seed` is that. Eight at
            once take less than half of the time that they take one after the other.
        start_seed: of the warm start of all runs: it takes longer than some of them.
        measure: have docs/run.md in the rows, for which each run has a loss of its own. Without, all runs are in
            one, and a row has rewards, work, loss and entropy alone.
        say: called with notices of the warm start.
        changes: to fields of the settings, such as `learning_rate=1e-5` or `rounds=36`.

    Returns:
        A row has those keys of a row of `metrics.jsonl` that the loop has numbers for: reward, lab/work, loss, entropy
        and all of docs/run.md. An undefined number is left out. `lab/p_work` is what lab/work is a sample of: the
        probability of working, mean over the round's prompts. With `flip` lab/right is the reward before that.

    Raises:
        ValueError: no such scene, a setting that cannot be, an objective that is none or that TRL would not take, no
            seed.
        UserError: the warm start cannot be kept anywhere; a loss or a weight is not finite after a step.
    """
    own = Settings.of(settings, **changes) if isinstance(settings, str) else dataclasses.replace(settings, **changes)
    value = learnable(objective)
    if not seeds:
        raise ValueError("seeds must be at least one, got none")
    folders = [toy.warm_start(own.p_work, seed if start_seed is None else start_seed, say)[0] for seed in seeds]
    with _one_thread():
        weights = load_weights(folders)
        optimizer = _optimizer(weights, own.learning_rate)
        rngs = [torch.Generator().manual_seed(seed) for seed in seeds]
        questions = [_Questions.of(own, seed) for seed in seeds]
        out: list[list[Row]] = [[] for _ in seeds]
        for i in range(own.rounds):
            of_round = [each.of_round(own, i) for each in questions]
            p_work = _p_work(weights, of_round)
            completions = sample(weights, [each.prompts for each in of_round], rngs)
            scored = [
                _scored(each, sampled, own, rng) for each, sampled, rng in zip(of_round, completions, rngs, strict=True)
            ]
            minibatches = [
                _split(each.prompts, sampled, advantages, own.steps_per_generation, rng)
                for each, sampled, (advantages, _), rng in zip(of_round, completions, scored, rngs, strict=True)
            ]
            learned = learn(
                weights, optimizer, minibatches, value, own.num_iterations, first_step=i * own.steps, measure=measure
            )
            at = {"step": (i + 1) * own.steps, "round": i + 1, "learning_rate": own.learning_rate}
            for rows, worked, (_, logged), learned_row in zip(out, p_work, scored, learned, strict=True):
                rows.append({**at, "lab/p_work": worked, **logged, **learned_row})
    return out


def learn(
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    minibatches: Sequence[Sequence[Minibatch]],
    objective: Objective,
    epochs: int,
    *,
    first_step: int = 0,
    measure: bool = True,
) -> list[Row]:
    """The optimizer steps of one round: each minibatch in turn, `epochs` times; returns what was measured in each run.

    The loss of a step is the sum over its tokens, divided by the tokens of the round over the number of minibatches
    (TRL's loss "dapo"), so that a token weighs the same in each.

    Args:
        weights: of all runs; changed in place.
        optimizer: of these weights.
        minibatches: of one round, as many for each run.
        objective: its average is the one above.
        epochs: times that each minibatch is used.
        first_step: optimizer steps before this round.
        measure: see `train`.
    """
    runs = len(minibatches)
    steps = [Minibatch.side_by_side(batches) for batches in zip(*minibatches, strict=True)]
    tokens = torch.stack([_per_run(step.completions.mask, runs) for step in steps]).sum(0)
    objective = dataclasses.replace(objective, aggregation="none")
    losses, entropies, norms = [], torch.zeros(runs), torch.zeros(runs)
    metrics: list[Metrics | None] = [None] * runs
    for done in range(epochs * len(steps)):
        tree, old, advantages = steps[done % len(steps)]
        choices = log_probs(weights, tree)
        flat = choices.detach()
        entropy = -(flat.exp() * flat).sum(-1)[tree.at]
        logps, terms = choices[tree.at, old.tokens], []
        size = len(logps) // runs if measure else len(logps)
        for i in range(len(logps) // size):
            rows = slice(i * size, (i + 1) * size)
            values, numbers = policy_loss(
                logps[rows],
                old.logps[rows],
                advantages[rows],
                old.mask[rows],
                objective,
                metrics="all",
                extra={"entropies": entropy[rows]},
            )
            terms.append(values)
            merged = metrics[i]
            metrics[i] = numbers if merged is None else merged.merge(numbers)
        loss = _per_run(torch.cat(terms), runs) / (tokens / len(steps))
        optimizer.zero_grad()
        loss.sum().backward()  # each run's depends on its own weights alone
        norms = _clip_gradients(weights)
        optimizer.step()
        losses.append(loss.detach())
        all_of_it = [*weights.items(), ("the loss", losses[-1])]
        if not_finite(all_of_it):
            names = not_finite((f"{name} of run {i + 1} of {runs}", x[i]) for i in range(runs) for name, x in all_of_it)
            raise UserError(
                f"step {first_step + done + 1}: {names[0]} is not finite; try a smaller learning_rate, or a rule that "
                "moves less"
            )
        entropies += _per_run(torch.where(old.mask, entropy, 0.0), runs)
    about = {"loss": torch.stack(losses).mean(0), "grad_norm": norms, "entropy": entropies / (tokens * epochs)}
    out: list[Row] = [{name: x[i].item() for name, x in about.items()} for i in range(runs)]
    for row, numbers in zip(out, metrics, strict=True):
        if measure and numbers is not None:
            row |= {name: x for name, x in numbers.compute().items() if not math.isnan(x)}
    return out


def _per_run(x: Tensor, runs: int) -> Tensor:
    return x.view(runs, -1).sum(1)


def _clip_gradients(weights: Weights) -> Tensor:
    """Scale each run's gradient to the norm that TRL allows, as torch's clip_grad_norm_; returns the norms before."""
    gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
    norms = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
    scale = (_MAX_GRAD_NORM / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
    return norms


class _Questions(NamedTuple):
    """Prompts (rows, 5) and their answers."""

    prompts: Tensor
    answers: list[str]

    @classmethod
    def of(cls, settings: Settings, seed: int) -> Self:
        """All of a run, which are those of `bandpo lab`."""
        rows = toy.prompts(settings.rounds * settings.prompts, seed)
        symbols = [[toy.SYMBOLS.index(symbol) for symbol in row["prompt"].split()] for row in rows]
        return cls(torch.tensor(symbols), [row["answer"] for row in rows])

    def of_round(self, settings: Settings, i: int) -> "_Questions":
        """Those of a round, each as often as it is answered."""
        mine, group = slice(i * settings.prompts, (i + 1) * settings.prompts), settings.num_generations
        answers = [answer for answer in self.answers[mine] for _ in range(group)]
        return _Questions(self.prompts[mine].repeat_interleave(group, 0), answers)


def _split(
    prompts: Tensor, completions: Completions, advantages: Tensor, parts: int, rng: torch.Generator
) -> list[Minibatch]:
    """The minibatches of a round, at random."""
    return [
        Minibatch.of(prompts[part], Completions(*(x[part] for x in completions)), advantages[part])
        for part in torch.randperm(len(prompts), generator=rng).chunk(parts)
    ]


@torch.no_grad()
def _p_work(weights: Weights, questions: Sequence[_Questions]) -> list[float]:
    # The last column of completions is not read: any will do.
    first = [prefixes(each.prompts, each.prompts[:, :1], torch.ones(len(each.prompts), 1).bool()) for each in questions]
    tree = side_by_side(first)
    works = log_probs(weights, tree)[tree.at[:, 0], : toy.BASE].exp().sum(-1)
    return works.view(len(questions), -1).mean(1).tolist()


def _scored(
    questions: _Questions, completions: Completions, settings: Settings, rng: torch.Generator
) -> tuple[Tensor, Row]:
    """The advantage of each completion, (B,), and what is logged of the rewards."""
    lengths = completions.mask.sum(1)
    ids = [row[:length] for row, length in zip(completions.tokens.tolist(), lengths.tolist(), strict=True)]
    logged: Row = {}
    rewards = torch.tensor(toy.reward([""] * len(ids), ids, questions.answers, logged.__setitem__))
    if settings.flip:
        logged["lab/right"] = rewards.mean().item()
        rewards = (rewards - (torch.rand(len(rewards), generator=rng) < settings.flip).float()).abs()
    groups = rewards.view(-1, settings.num_generations)
    advantages = group_advantages(rewards, settings.num_generations, epsilon=_STD_EPSILON)
    logged |= {
        "reward": rewards.mean().item(),
        "reward_std": rewards.std().item(),
        "frac_reward_zero_std": (groups.std(1) == 0).float().mean().item(),
        "completions/mean_length": lengths.float().mean().item(),
    }
    return advantages, logged


def learnable(node: Any) -> Objective:
    """The objective of what `train` is given. Raises ValueError for what it cannot train."""
    return objective_for("TRL", node)


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
