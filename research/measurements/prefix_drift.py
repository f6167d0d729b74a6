"""Which denominator for samples of an old policy, where what an answer meets depends on its own tokens?

    python -m research.measurements.prefix_drift [--minutes 60]

A world of 48 states and 8 tokens: each token leads from a state to another, so that another policy meets other states
after a few tokens: prefixes drift. An answer is right if it visits enough good states; of the first policy's one to
eleven in a hundred are. One reward in ten is inverted. The policy's logits are linear in features of the state. A round
has 8 prompts of 8 answers, drawn by the policy of `age` rounds before, and four optimizer steps. The ratio's
denominator is the sampler, the trainer's policy at the round's begin, or that with a weight: TIS caps trainer over
sampler at 2, IcePop drops tokens outside [0.5, 5]. 16 seeds choose each cell's learning rate, 112 judge it. A row of
prefix_drift.csv is a cell at a rate, and it is made once. The reward is of 512 answers of the last policy, after 16
rounds, so it has the speed in it; the entropy is a mean over all states.
"""

import argparse
import itertools
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import bandpo
from bandpo_runs.provenance import source_commit
from research.csv_rows import read_rows, write_rows
from research.grid import difference

CSV = Path(__file__).with_suffix(".csv")
STATES, TOKENS, FEATURES = 48, 8, 24
PROMPTS, GROUP, STEPS, ROUNDS = 8, 8, 4, 16
RULES = {
    "no clip": bandpo.Clip(1.0, float("inf")), "GRPO 0.2/0.2": bandpo.Clip(0.2, 0.2),
    "Band-KL 0.05": bandpo.Band("kl", 0.05),
}  # fmt: skip
DENOMINATORS = ("sampler", "trainer", "trainer + TIS", "trainer + IcePop")
LENGTHS, AGES, RATES = (16, 64), (0, 1, 4), (0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
FLIPPED = 0.1  # of rewards, inverted at random
CHOOSE, SEEDS = 16, 128  # the first choose a rate, the others judge


class World(NamedTuple):
    """The worlds of all seeds: where tokens lead (S, states, tokens), features, good states, and visits to be right."""

    leads: Tensor
    features: Tensor
    good: Tensor
    enough: Tensor
    start: Tensor  # (S, features, tokens): the first policy's weights


def make_world(length: int, seeds: int = SEEDS) -> World:
    """Make the worlds, and set what is enough so that at most one of fifty answers visits more at first."""
    rng = torch.Generator().manual_seed(20_000 + length)
    leads = torch.randint(0, STATES, (seeds, STATES, TOKENS), generator=rng)
    features = torch.randn(seeds, STATES, FEATURES, generator=rng) / FEATURES**0.5
    good = torch.rand(seeds, STATES, generator=rng).argsort(-1) < STATES // 3
    start = torch.randn(seeds, FEATURES, TOKENS, generator=rng)
    world = World(leads, features, good, torch.zeros(seeds), start)
    visits = draw(world, start, length, 1024, rng)[2]
    return world._replace(enough=torch.quantile(visits, 0.98, dim=1))


def draw(
    world: World, weights: Tensor, length: int, answers: int, rng: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw answers in groups of GROUP, which begin in the same state.

    Returns:
        The states and the tokens of each, (S, answers, length), and its number of visits to good states.
    """
    seeds, policy = len(weights), (world.features @ weights).softmax(-1)
    here = torch.randint(0, STATES, (seeds, answers // GROUP), generator=rng).repeat_interleave(GROUP, 1)
    each, path, tokens = torch.arange(seeds)[:, None], [here], []
    for _ in range(length):
        edges = policy[each, path[-1]].cumsum(-1)
        drawn = torch.rand(seeds, answers, 1, generator=rng)
        tokens.append((drawn > edges[..., :-1]).sum(-1))
        path.append(world.leads[each, path[-1], tokens[-1]])
    visits = sum(world.good[each, state] for state in path[1:])
    return torch.stack(path[:-1], -1), torch.stack(tokens, -1), torch.as_tensor(visits).float()


def logps_of(world: World, weights: Tensor, states: Tensor, tokens: Tensor) -> Tensor:
    """The log-probabilities of drawn tokens, (S, answers, length)."""
    table = (world.features @ weights).log_softmax(-1)
    return table[torch.arange(len(weights))[:, None, None], states, tokens]


def train(world: World, length: int, age: int, denominator: str, rule: str, rate: float) -> dict[str, Tensor]:
    """Train all seeds side by side; (S,) each: the reward and the entropy at the end, and the share clipped."""
    rng = torch.Generator().manual_seed(10_000 + length)
    weights = world.start.clone().requires_grad_()
    optimizer, past, clipped = torch.optim.Adam([weights], rate), [world.start] * (age + 1), []
    for _ in range(ROUNDS):
        past = [*past[1:], weights.detach().clone()]
        states, tokens, visits = draw(world, past[0], length, PROMPTS * GROUP, rng)
        right = visits >= world.enough[:, None]
        groups = (right ^ (torch.rand(right.shape, generator=rng) < FLIPPED)).float().unflatten(1, (PROMPTS, GROUP))
        advantages = ((groups - groups.mean(-1, keepdim=True)) / (groups.std(-1, keepdim=True) + 1e-4)).flatten(1)
        sampler, trainer = (logps_of(world, policy, states, tokens) for policy in (past[0], past[-1]))
        gap = (trainer - sampler).exp()
        weight = {"trainer + TIS": gap.clamp(max=2), "trainer + IcePop": gap * ((gap >= 0.5) & (gap <= 5))}
        old = sampler if denominator == "sampler" else trainer
        order = torch.randperm(PROMPTS * GROUP, generator=rng).chunk(STEPS)
        for part in order:
            logps = logps_of(world, weights, states[:, part], tokens[:, part]).flatten(0, 1)
            loss, metrics = bandpo.policy_loss(
                logps, old[:, part].flatten(0, 1), advantages[:, part].flatten(), torch.ones_like(logps), RULES[rule],
                rollout_is_weights=weight[denominator][:, part].flatten(0, 1) if denominator in weight else None,
                metrics="all",
            )  # fmt: skip
            optimizer.zero_grad()
            (len(weights) * loss).backward()  # each seed's own mean
            optimizer.step()
            clipped.append(metrics.compute()["cut/fraction"])
    final = weights.detach()
    *_, visits = draw(world, final, length, 512, rng)
    logps = (world.features @ final).log_softmax(-1)
    return {
        "reward": (visits >= world.enough[:, None]).float().mean(1), "entropy": -(logps.exp() * logps).sum(-1).mean(1),
        "clipped": torch.tensor(clipped).mean().expand(len(final)),
    }  # fmt: skip


def cells() -> list[tuple[int, int, str, str, float]]:
    """Return all cells. Where samples are fresh, all denominators are one."""
    every = itertools.product(LENGTHS, AGES, DENOMINATORS, RULES, RATES)
    return [cell for cell in every if cell[1] or cell[2] == "sampler"]


def chosen() -> dict[tuple[str, ...], dict[str, str]]:
    """Return the row of each cell's best rate."""
    best: dict[tuple[str, ...], dict[str, str]] = {}
    for row in read_rows(CSV, missing_ok=True):
        key = (row["length"], row["age"], row["denominator"], row["rule"])
        if key not in best or float(row["chosen_by"]) > float(best[key]["chosen_by"]):
            best[key] = row
    return best


def report() -> None:
    """Print each cell at its best rate, and its difference from no clip against the sampler, at the same age."""
    best = chosen()
    for key, row in best.items():
        base = best[(*key[:2], "sampler", "no clip")]
        ours, theirs = (np.array(one["rewards"].split(), float) for one in (row, base))
        gap, half, _ = difference(ours, theirs)
        print(*key, f"rate {row['learning_rate']}: {row['reward']}, minus no clip's {gap:+.3f} ± {half:.3f}", sep=", ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no cell after so many")
    end = time.monotonic() + 60 * parser.parse_args().minutes
    torch.set_num_threads(1)
    done = {
        (int(row["length"]), int(row["age"]), row["denominator"], row["rule"], float(row["learning_rate"]))
        for row in read_rows(CSV, missing_ok=True)
    }
    worlds = {length: make_world(length) for length in LENGTHS}
    for cell in cells():
        if cell in done or time.monotonic() > end:
            continue
        length, age, denominator, rule, rate = cell
        runs = {name: values.numpy() for name, values in train(worlds[length], *cell).items()}
        reward = runs["reward"]
        row = {
            "length": length, "age": age, "denominator": denominator, "rule": rule, "learning_rate": rate,
            "chosen_by": f"{reward[:CHOOSE].mean():.4f}", "reward": f"{reward[CHOOSE:].mean():.4f}",
            "entropy": f"{runs['entropy'][CHOOSE:].mean():.4f}", "clipped": f"{runs['clipped'][0]:.6f}",
            "rewards": " ".join(f"{x:.3f}" for x in reward[CHOOSE:]), "commit": source_commit(),
        }  # fmt: skip
        write_rows(CSV, [row], add=True)
        print(*list(row.values())[:-2], flush=True)
    report()


if __name__ == "__main__":
    main()
