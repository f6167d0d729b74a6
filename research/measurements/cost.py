"""What a rule costs: bounds, loss and compilation, interleaved in one process on one thread.

    python -m research.measurements.cost [--repeat 60] [--cases WORD ...] [--write]

Prints medians and quartiles of the processor's time, and medians of ratios; `--write` appends them to
cost.csv with hardware, versions and commit. `--cases` measures only those with one of the words in its name.
The shape is 8 x 4096 tokens in float32, log-probabilities of a made-up policy with a fat tail. What a GPU takes is
measured by gpu.py; rows of one here are those of an earlier form of this script.
"""

import argparse
import itertools
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bandpo
from bandpo import Band, Clip
from bandpo.band import Divergence
from bandpo.losses.metrics import MetricSet
from bandpo_runs.provenance import hardware, source_commit
from research.csv_rows import write_rows
from research.rules.adaptive import Adaptive, Tilt

SHAPE = (8, 4096)
# What is compared with what.
RATIOS = {
    "Clip / page (at most 1.6)": ("policy_loss Clip", "page Clip"),
    "Band kl / page (at most 1.2)": ("policy_loss Band kl", "page Band kl"),
    "Band kl, moving / fixed radius (at most 1.1)": ("policy_loss Band kl, a radius that moves", "policy_loss Band kl"),
    "compiled: Clip / page (at most 1.6)": ("policy_loss Clip, compiled", "page Clip, compiled"),
    "compiled: Band kl / page (at most 1.2)": ("policy_loss Band kl, compiled", "page Band kl, compiled"),
    "policy_loss Band kl / Clip": ("policy_loss Band kl", "policy_loss Clip"),
    "Clip / TRL's lines, both without metrics": ("policy_loss Clip, no metrics", "loss lines TRL"),
    **{
        f"Adaptive {name} / Band {name} (at most 1.5)": (f"policy_loss Adaptive {name}", f"policy_loss Band {name}")
        for name in ("kl", "tv", "chi2")
    },
    "bisection / bounds kl (at least 8)": ("bisection, 50 steps, both ends", "bounds kl"),
    "bisection / bounds of an own f (at least 4)": ("bisection, 50 steps, both ends", "bounds of an own f"),
    "Clip / verl's loss": ("policy_loss Clip", "loss of verl, vanilla, with its metrics"),
    "compiled: Band kl / Clip (at most 1.5)": ("policy_loss Band kl, compiled", "policy_loss Clip, compiled"),
    "compiled: Clip / TRL's lines, both without metrics (at most 1)": (
        "policy_loss Clip, no metrics, compiled",
        "loss lines TRL, compiled",
    ),
    "compiled: bisection / bounds kl (at least 7)": ("bisection, compiled", "bounds kl, compiled"),
    "eager bisection / compiled bounds kl (at least 30)": ("bisection, 50 steps, both ends", "bounds kl, compiled"),
}
DIVERGENCES = ("kl", "tv", "chi2", "neyman_chi2", "hellinger", "reverse_kl", "jensen_shannon")


def make(seed: int = 0) -> dict[str, Tensor]:
    """A batch some steps into a round: a quarter of the tokens rare, ratios spread over a few tens of percent."""
    rng = torch.Generator().manual_seed(seed)
    old = torch.where(
        torch.rand(SHAPE, generator=rng) < 0.25,
        -8 * torch.rand(SHAPE, generator=rng),
        -0.2 * torch.rand(SHAPE, generator=rng),
    )
    return {
        "old": old,
        "new": (old + 0.2 * torch.randn(SHAPE, generator=rng)).clamp(max=0),
        "advantages": torch.randn(SHAPE[0], 1, generator=rng),
        "mask": torch.rand(SHAPE, generator=rng) < 0.9,
    }


def bisection(old: Tensor, delta: float = 0.05, steps: int = 50) -> tuple[Tensor, Tensor]:
    """The paper's solver for KL (app:solver_bisection_alg), both ends, in ratio space."""
    p = old.exp()

    def g(r: Tensor) -> Tensor:
        return -p * torch.log(r) - (1 - p) * torch.log((1 - r * p) / (1 - p))

    low, high = torch.zeros_like(p), torch.ones_like(p)
    for _ in range(steps):
        middle = 0.5 * (low + high)
        inside = g(middle) <= delta
        low, high = torch.where(inside, low, middle), torch.where(inside, middle, high)
    lower = high
    low, high = torch.ones_like(p), 1 / p
    for _ in range(steps):
        middle = 0.5 * (low + high)
        inside = g(middle) <= delta
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return lower, low


def trl_lines(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The arithmetic of TRL's loss (loss_type grpo), without its metrics: what any implementation has to do."""
    coef_1 = torch.exp(new - old)
    coef_2 = torch.clamp(coef_1, 1 - 0.2, 1 + 0.2)
    per_token = -torch.min(coef_1 * advantages, coef_2 * advantages)
    return ((per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()


def page(logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, region: bandpo.Region) -> tuple[Tensor, Tensor]:
    """The loss as a textbook has it, and the numbers of metrics="main"."""
    log_ratio = logps - old
    ratio, bounds = log_ratio.exp(), region.bounds(old)
    if isinstance(region, Clip):
        clipped = ratio.clamp(1 - region.eps_low, 1 + region.eps_high)
    else:
        clipped = torch.clamp(ratio, bounds.log_low.exp(), bounds.log_high.exp())
    value = torch.min(ratio * advantages, clipped * advantages)
    loss = -((value * mask).sum(-1) / mask.sum(-1)).mean()
    with torch.no_grad():
        high, low = (log_ratio > bounds.log_high) & mask, (log_ratio < bounds.log_low) & mask
        tail = (old <= -1.609438) & mask
        good = tail & (advantages > 0)
        counts = [x.sum() for x in (mask, high, low, high & tail, good, good & high)]
        kl = ((log_ratio.expm1() - log_ratio) * mask).sum(dtype=torch.float64)
        ends = torch.where(mask, log_ratio, -9e9).amax(), torch.where(mask, log_ratio, 9e9).amin()
    return loss, torch.stack([*counts, kl, *ends])


def forward_backward(loss: Callable[[Tensor], Tensor], new: Tensor) -> Callable[[], None]:
    def call() -> None:
        leaf = new.detach().requires_grad_()
        loss(leaf).backward()

    return call


def cases(batch: dict[str, Tensor], compiled: bool) -> dict[str, Callable[[], Any]]:
    new, old, advantages, mask = (batch[k] for k in ("new", "old", "advantages", "mask"))
    mine = Divergence("mine", lambda u: u - 1 - torch.log(u))
    clip = Clip(0.2, 0.2)

    def full(region: bandpo.Region, metrics: MetricSet | None = "main") -> Callable[[Tensor], Tensor]:
        return lambda x: bandpo.policy_loss(x, old, advantages, mask, region, normalizer=8, metrics=metrics)[0]

    def textbook(region: bandpo.Region) -> Callable[[Tensor], Tensor]:
        return lambda x: page(x, old, advantages, mask, region)[0]

    radii = itertools.count(1)
    moving = lambda x: full(Band("kl", 0.05 + 1e-6 * next(radii)))(x)  # noqa: E731

    out = {
        "bisection, 50 steps, both ends": lambda: bisection(old),
        **{f"bounds {name}": lambda name=name: bandpo.band_bounds(old, name, 0.05) for name in DIVERGENCES},
        "bounds of an own f": lambda: bandpo.band_bounds(old, mine, 0.05),
        "loss lines TRL": forward_backward(lambda x: trl_lines(x, old, advantages, mask), new),
        "page Clip": forward_backward(textbook(clip), new),
        "page Band kl": forward_backward(textbook(Band("kl", 0.05)), new),
        "policy_loss Clip, no metrics": forward_backward(full(clip, None), new),
        "policy_loss Clip, all metrics": forward_backward(full(clip, "all"), new),
        "policy_loss Clip": forward_backward(full(clip), new),
        "policy_loss Band kl": forward_backward(full(Band("kl", 0.05)), new),
        "policy_loss Band kl, a radius that moves": forward_backward(moving, new),
        "policy_loss Band tv": forward_backward(full(Band("tv", 0.05)), new),
        "policy_loss Band chi2": forward_backward(full(Band("chi2", 0.05)), new),
        **{
            f"policy_loss Adaptive {name}": forward_backward(
                full(Adaptive(Band(name, 0.05), Tilt("surprise", 0.5))), new
            )
            for name in ("kl", "tv", "chi2")
        },
        "policy_loss DCPO": forward_backward(full(bandpo.DCPO()), new),
    }
    if (vanilla := verl_vanilla(old, advantages, mask)) is not None:
        out["loss of verl, vanilla, with its metrics"] = forward_backward(vanilla, new)
    if compiled:
        bisect, loss = torch.compile(bisection), torch.compile(bandpo.policy_loss)
        out["bisection, compiled"] = lambda: bisect(old)
        for name in "kl", "reverse_kl":
            solve = torch.compile(lambda x, name=name: bandpo.band_bounds(x, name, 0.05))
            out[f"bounds {name}, compiled"] = lambda solve=solve: solve(old)
        lines = torch.compile(trl_lines)
        out["loss lines TRL, compiled"] = forward_backward(lambda x: lines(x, old, advantages, mask), new)
        for name, region in {"Clip": clip, "Band kl": Band("kl", 0.05), "Band tv": Band("tv", 0.05)}.items():
            out[f"policy_loss {name}, compiled"] = forward_backward(
                lambda x, region=region: loss(x, old, advantages, mask, region, normalizer=8)[0], new
            )
        whole = torch.compile(page)  # which gives the numbers too: a graph leaves out what nobody asks for
        for name, region in {"Clip": clip, "Band kl": Band("kl", 0.05)}.items():
            out[f"page {name}, compiled"] = forward_backward(
                lambda x, region=region: whole(x, old, advantages, mask, region)[0], new
            )
        out["policy_loss Clip, no metrics, compiled"] = forward_backward(torch.compile(full(clip, None)), new)
    return out


def verl_vanilla(old: Tensor, advantages: Tensor, mask: Tensor) -> Callable[[Tensor], Tensor] | None:
    """verl's own loss, where it is installed (constraints/verl.txt)."""
    try:
        from omegaconf import OmegaConf
        from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    except ImportError:
        return None
    epsilons = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 10.0}
    config = OmegaConf.create({**epsilons, "global_batch_info": {}})
    ratio, keep = advantages.expand(SHAPE), mask.float()
    return lambda x: compute_policy_loss_vanilla(old, x, ratio, keep, "seq-mean-token-mean", config)[0]


def compilations(radii: int = 20) -> int:
    """How often torch.compile compiles band_bounds over different radii."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    bounds = torch.compile(lambda x, delta: bandpo.band_bounds(x, "kl", delta), backend=counter, fullgraph=True)
    x = torch.linspace(-9, -0.1, 64)
    for i in range(radii):
        bounds(x, 0.01 + 0.01 * i)
    return counter.frame_count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--cases", nargs="+", metavar="WORD", help="only those with one of the words in its name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    # As in a training process: once a large tensor has been freed, malloc keeps freed memory. Before that every
    # intermediate result costs page faults, and the numbers are those of the kernel.
    large = torch.ones(7_500_000)
    del large
    todo = cases(make(), compiled=not args.no_compile)
    if args.cases:
        todo = {name: call for name, call in todo.items() if any(word in name for word in args.cases)}
    times: dict[str, list[float]] = {name: [] for name in todo}
    for call in todo.values():
        for _ in range(3):
            call()
    for _ in range(args.repeat):
        for name, call in todo.items():
            began = time.process_time()
            call()
            times[name].append(1e3 * (time.process_time() - began))
    facts = {
        "shape": f"{SHAPE[0]}x{SHAPE[1]} float32, 1 thread",
        "hardware": hardware(gpu=False),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": source_commit(),
    }
    rows = []
    for name, t in times.items():
        low, median, high = statistics.quantiles(t, n=4)
        row = {"case": name, "median_ms": round(median, 3), "q1_ms": round(low, 3), "q3_ms": round(high, 3)}
        rows.append({**row, "repeats": args.repeat, **facts})
        print(f"{name:34} {median:8.3f} ms   [{low:.3f}, {high:.3f}]")
    ratios = {
        name: statistics.median(x / y for x, y in zip(times[one], times[other], strict=True))
        for name, (one, other) in RATIOS.items()
        if {one, other} <= times.keys()
    }
    if not args.no_compile and not args.cases:
        ratios["compilations over 20 radii (at most 2)"] = compilations()
    for name, value in ratios.items():
        print(f"{name:56} {value:.2f}")
        rows.append({"case": name, "median_ms": round(value, 3), "repeats": args.repeat, **facts})
    if args.write:
        columns = ("case", "median_ms", "q1_ms", "q3_ms", "repeats", *facts)
        write_rows(Path(__file__).with_suffix(".csv"), rows, columns, add=True)


if __name__ == "__main__":
    main()
