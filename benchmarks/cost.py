"""What a rule costs: bounds, loss and compilation, interleaved in one process on one thread.

    python benchmarks/cost.py [--repeat 60] [--write]

Prints medians and quartiles; `--write` appends them to benchmarks/cost.csv with hardware, versions and commit.
The shape is 8 x 4096 tokens in float32, log-probabilities of a made-up policy with a fat tail.
"""

import argparse
import csv
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bandpo
from bandpo import Band, Clip, Divergence, losses
from bandpo.train import source_commit

SHAPE = (8, 4096)
DIVERGENCES = ("kl", "tv", "chi2", "neyman_chi2", "hellinger", "reverse_kl", "jensen_shannon", "cressie_read(0.5)")


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


class Nothing:
    """In place of `Metrics`, to see what the loss costs without them."""

    @staticmethod
    def of(*args: Any) -> None:
        return None


def without_metrics(loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same loss, its metrics not computed: for comparison with lines that have none."""

    def call(new: Tensor) -> Tensor:
        measure, losses.Metrics = losses.Metrics, Nothing  # type: ignore[misc]
        try:
            return loss(new)
        finally:
            losses.Metrics = measure  # type: ignore[misc]

    return call


def forward_backward(loss: Callable[[Tensor], Tensor], new: Tensor) -> Callable[[], None]:
    def call() -> None:
        leaf = new.detach().requires_grad_()
        loss(leaf).backward()

    return call


def cases(batch: dict[str, Tensor], compiled: bool) -> dict[str, Callable[[], Any]]:
    new, old, advantages, mask = (batch[k] for k in ("new", "old", "advantages", "mask"))
    mine = Divergence("mine", lambda u: u - 1 - torch.log(u))
    clip = Clip(0.2, 0.2)

    def full(region: bandpo.TrustRegion) -> Callable[[Tensor], Tensor]:
        return lambda x: bandpo.policy_loss(x, old, advantages, mask, region)[0]

    out = {
        "bisection, 50 steps, both ends": lambda: bisection(old),
        **{f"bounds {name}": lambda name=name: bandpo.band_bounds(old, name, 0.05) for name in DIVERGENCES},
        "bounds of an own f": lambda: bandpo.band_bounds(old, mine, 0.05),
        "membership kl": lambda: bandpo.band_contains(new - old, old, "kl", 0.05),
        "loss lines TRL": forward_backward(lambda x: trl_lines(x, old, advantages, mask), new),
        "policy_loss Clip, no metrics": forward_backward(without_metrics(full(clip)), new),
        "policy_loss Clip": forward_backward(full(clip), new),
        "policy_loss Band kl": forward_backward(full(Band("kl", 0.05)), new),
        "policy_loss Band tv": forward_backward(full(Band("tv", 0.05)), new),
        "policy_loss Band chi2": forward_backward(full(Band("chi2", 0.05)), new),
        "policy_loss DCPO": forward_backward(full(bandpo.DCPO()), new),
    }
    if compiled:
        fast_bounds = torch.compile(lambda x: bandpo.band_bounds(x, "kl", 0.05))
        out["bounds kl, compiled"] = lambda: fast_bounds(old)
    return out


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
    args = parser.parse_args()
    torch.set_num_threads(1)
    # As in a training process: once a large tensor has been freed, malloc keeps freed memory. Before that every
    # intermediate result costs page faults, and the numbers are those of the kernel.
    large = torch.ones(7_500_000)
    del large
    todo = cases(make(), compiled=not args.no_compile)
    times: dict[str, list[float]] = {name: [] for name in todo}
    for call in todo.values():
        for _ in range(3):
            call()
    for _ in range(args.repeat):
        for name, call in todo.items():
            began = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - began))
    median = {name: statistics.median(t) for name, t in times.items()}
    facts = {
        "shape": "8x4096 float32, 1 thread",
        "hardware": f"{platform.machine()} {_cpu()}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": source_commit(),
    }
    rows = []
    for name, t in times.items():
        low, _, high = statistics.quantiles(t, n=4)
        row = {"case": name, "median_ms": round(median[name], 3), "q1_ms": round(low, 3), "q3_ms": round(high, 3)}
        rows.append({**row, "repeats": args.repeat, **facts})
        print(f"{name:34} {median[name]:8.3f} ms   [{low:.3f}, {high:.3f}]")
    ratios = {
        "policy_loss Band kl / Clip (at most 2.5)": median["policy_loss Band kl"] / median["policy_loss Clip"],
        "Clip / TRL's lines, both without metrics (at most 1.1)": median["policy_loss Clip, no metrics"]
        / median["loss lines TRL"],
        "bisection / bounds kl (at least 6)": median["bisection, 50 steps, both ends"] / median["bounds kl"],
    }
    if not args.no_compile:
        ratios["compilations over 20 radii (at most 2)"] = compilations()
    for name, value in ratios.items():
        print(f"{name:56} {value:.2f}")
        rows.append({"case": name, "median_ms": round(value, 3), "repeats": args.repeat, **facts})
    if args.write:
        path = Path(__file__).with_suffix(".csv")
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["case", "median_ms", "q1_ms", "q3_ms", "repeats", *facts])
            if new:
                writer.writeheader()
            writer.writerows(rows)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
