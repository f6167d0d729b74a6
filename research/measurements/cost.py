"""What a rule costs: bounds, loss, memory and compilation, interleaved in one process on one thread.

    python -m research.measurements.cost [--verl FOLDER] [--repeat 60] [--cases WORD ...] [--no-compile] [--write]

Prints medians and quartiles of the processor's time, and medians of ratios; `--write` appends them to cost.csv and
peaks to memory.csv, with hardware, versions and commit. `--cases` measures only those with one
of the words in its name. The shape is 8 x 4096 tokens in float32 where none is named, log-probabilities of a made-up
policy with a fat tail. What a GPU takes is measured by gpu.py; rows of one here are those of an earlier form of this
script. FOLDER has verl's wheel, unpacked: `pip download --no-deps verl==0.9.1`, and unzip.
"""

import argparse
import ast
import itertools
import platform
import resource
import statistics
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import bandpo
from bandpo import Band, Clip
from bandpo.band import Divergence
from bandpo.losses import token_logps
from bandpo.losses.metrics import MetricSet
from bandpo_runs.provenance import hardware, source_commit
from research.csv_rows import write_rows

SHAPE, SMALL, LARGE = (8, 4096), (1, 1024), (64, 4096)
MINE = Divergence("mine", lambda u: u - 1 - torch.log(u))
# Whose radius moves, or is each token's own.
SOLVED = {"kl": "kl", "reverse_kl": "reverse_kl", "jensen_shannon": "jensen_shannon", "an own f": MINE}
# What is compared with what.
RATIOS = {
    "Band kl / Clip (at most 2.2)": ("policy_loss Band kl", "policy_loss Clip"),
    "Band kl / page with band_bounds (at most 1.1)": ("policy_loss Band kl", "page Band kl"),
    "Clip / page": ("policy_loss Clip", "page Clip"),
    "Clip / verl's loss (at most 1.2)": ("policy_loss Clip", "loss of verl, vanilla, with its metrics"),
    "Clip / TRL's lines, both without metrics": ("policy_loss Clip, no metrics", "loss lines TRL"),
    **{
        f"Band {name}, moving / fixed radius{of} (at most 2)": (
            f"policy_loss Band {name}, a radius that moves{of}",
            f"policy_loss Band {name}{of}",
        )
        for of in ("", ", 1x1024")
        for name in SOLVED
    },
    **{
        f"a radius per token, {name} / kl (at most 2)": (
            f"page {name}, a radius per token",
            "page kl, a radius per token",
        )
        for name in ("reverse_kl", "jensen_shannon", "an own f")
    },
    "bisection / bounds kl": ("bisection, 50 steps, both ends", "bounds kl"),
    "bisection / bounds of an own f": ("bisection, 50 steps, both ends", "bounds of an own f"),
    "compiled: Clip / page": ("policy_loss Clip, compiled", "page Clip, compiled"),
    "compiled: Band kl / Clip": ("policy_loss Band kl, compiled", "policy_loss Clip, compiled"),
    "token_logps / log_softmax and gather": ("token_logps", "log_softmax and gather"),
    "token_logps with entropies / log_softmax and gather": ("token_logps with entropies", "log_softmax and gather"),
}
RADII = itertools.count(1)  # of a radius that moves, each of its own
DIVERGENCES = ("kl", "tv", "chi2", "neyman_chi2", "hellinger", "reverse_kl", "jensen_shannon")


def make(shape: tuple[int, int] = SHAPE, seed: int = 0) -> dict[str, Tensor]:
    """A batch some steps into a round: a quarter of the tokens rare, ratios spread over a few tens of percent."""
    rng = torch.Generator().manual_seed(seed)
    old = torch.where(
        torch.rand(shape, generator=rng) < 0.25,
        -8 * torch.rand(shape, generator=rng),
        -0.2 * torch.rand(shape, generator=rng),
    )
    return {
        "old": old,
        "new": (old + 0.2 * torch.randn(shape, generator=rng)).clamp(max=0),
        "advantages": torch.randn(shape[0], 1, generator=rng),
        "mask": torch.rand(shape, generator=rng) < 0.9,
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


def page(
    logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, bounds_of: Callable[..., Any] | None = None
) -> tuple[Tensor, Tensor]:
    """The loss as a textbook has it, and the numbers of metrics="main"; without bounds a clip at 0.2."""
    log_ratio = logps - old
    ratio, free = log_ratio.exp(), log_ratio.detach()
    if bounds_of is None:
        clipped = ratio.clamp(1 - 0.2, 1 + 0.2)
        high, low = ratio.detach() > 1.2, ratio.detach() < 0.8
    else:
        bounds = bounds_of(old)
        clipped = torch.clamp(log_ratio, bounds.log_low, bounds.log_high).exp()
        high, low = free > bounds.log_high, free < bounds.log_low
    value = torch.minimum(ratio * advantages, clipped * advantages)
    with torch.no_grad():
        tail = (old <= -1.609438) & mask
        good, inside = tail & (advantages > 0), torch.where(mask, free, 0.0)
        counts = [x.sum() for x in (mask, high & mask, low & mask, high & tail, good, good & high)]
        kl = (inside.expm1() - inside).sum(dtype=torch.float64)
        likeliest = torch.maximum(logps, old).masked_fill(~mask, -1).amax()
        numbers = torch.stack([*counts, kl, inside.amax(), inside.amin(), likeliest])
    return -((value * mask).sum(-1) / mask.sum(-1)).mean(), numbers


def forward_backward(loss: Callable[[Tensor], Tensor], new: Tensor) -> Callable[[], None]:
    def call() -> None:
        leaf = new.detach().requires_grad_()
        loss(leaf).backward()

    return call


def losses(batch: dict[str, Tensor], of: str = "") -> dict[str, Callable[[], Any]]:
    """The losses whose cost depends on the number of tokens."""
    new, old, advantages, mask = (batch[k] for k in ("new", "old", "advantages", "mask"))
    size = len(new)
    each = 0.01 * 20 ** torch.rand(old.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def full(region: bandpo.Region, metrics: MetricSet | None = "main") -> Callable[[Tensor], Tensor]:
        return lambda x: bandpo.policy_loss(x, old, advantages, mask, region, normalizer=size, metrics=metrics)[0]

    def moving(kind: Any) -> Callable[[Tensor], Tensor]:
        return lambda x: full(Band(kind, 0.05 + 1e-6 * next(RADII)))(x)

    def textbook(bounds_of: Callable[..., Any] | None = None) -> Callable[[Tensor], Tensor]:
        return lambda x: page(x, old, advantages, mask, bounds_of)[0]

    out = {
        "loss lines TRL": lambda x: trl_lines(x, old, advantages, mask),
        "page Clip": textbook(),
        "page Band kl": textbook(lambda old: bandpo.band_bounds(old, "kl", 0.05)),
        "policy_loss Clip, no metrics": full(Clip(), None),
        "policy_loss Clip, all metrics": full(Clip(), "all"),
        "policy_loss Clip": full(Clip()),
        **{f"policy_loss Band {name}": full(Band(kind)) for name, kind in SOLVED.items()},
        **{f"policy_loss Band {name}, a radius that moves": moving(kind) for name, kind in SOLVED.items()},
        **{
            f"page {name}, a radius per token": textbook(lambda old, kind=kind: bandpo.band_bounds(old, kind, each))
            for name, kind in SOLVED.items()
        },
        **{f"policy_loss Band {name}": full(Band(name)) for name in ("tv", "chi2", "neyman_chi2", "hellinger")},
        "policy_loss DCPO": full(bandpo.DCPO()),
    }
    return {name + of: forward_backward(loss, new) for name, loss in out.items()}


def cases(verl: Path | None = None, compiled: bool = False) -> dict[str, Callable[[], Any]]:
    batch = make()
    new, old, advantages, mask = (batch[k] for k in ("new", "old", "advantages", "mask"))
    out = {
        "bisection, 50 steps, both ends": lambda: bisection(old),
        **{f"bounds {name}": lambda name=name: bandpo.band_bounds(old, name, 0.05) for name in DIVERGENCES},
        "bounds of an own f": lambda: bandpo.band_bounds(old, MINE, 0.05),
        **losses(batch),
        **losses(make(SMALL), ", 1x1024"),
        **losses(make(LARGE), ", 64x4096"),
        **heads(512),
    }
    if verl is not None:
        vanilla = verl_vanilla(verl, old, advantages, mask)
        out["loss of verl, vanilla, with its metrics"] = forward_backward(vanilla, new)
    if compiled:
        loss, whole = torch.compile(bandpo.policy_loss), torch.compile(page)
        for name, region in {"Clip": Clip(), "Band kl": Band(), "Band tv": Band("tv")}.items():
            out[f"policy_loss {name}, compiled"] = forward_backward(
                lambda x, region=region: loss(x, old, advantages, mask, region, normalizer=8)[0], new
            )
        out["page Clip, compiled"] = forward_backward(lambda x: whole(x, old, advantages, mask)[0], new)
    return out


def heads(count: int, width: int = 256, vocabulary: int = 16_384) -> dict[str, Callable[[], Any]]:
    """The output layer's log-probabilities, forward and backward."""
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, width, generator=rng, requires_grad=True)
    weight = (torch.randn(vocabulary, width, generator=rng) / width**0.5).requires_grad_()
    tokens, up = torch.randint(vocabulary, (count,), generator=rng), torch.randn(count, generator=rng)
    ways = {
        "log_softmax and gather": lambda: (hidden @ weight.T).log_softmax(-1).gather(-1, tokens[:, None])[:, 0],
        "token_logps": lambda: token_logps(hidden, weight, tokens),
        "token_logps with entropies": lambda: token_logps(hidden, weight, tokens, entropies=True)[0],
    }
    return {name: lambda way=way: torch.autograd.grad(way(), (hidden, weight), up) for name, way in ways.items()}


def verl_vanilla(folder: Path, old: Tensor, advantages: Tensor, mask: Tensor) -> Callable[[Tensor], Tensor]:
    """verl's own loss, cut from its source: what it imports is not needed for it."""

    def functions(path: str, names: tuple[str, ...], **known: Any) -> dict[str, Any]:
        for node in ast.parse((folder / path).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                node.decorator_list = []
                exec(compile(ast.Module([node], []), path, "exec"), known)
        return known

    basic = {"torch": torch, "Any": Any, "Optional": Optional}
    sums = functions("verl/utils/torch_functional.py", ("masked_sum", "masked_mean"), **basic)
    named = {"ActorConfig": dict, "AlgoConfig": types.SimpleNamespace, "DictConfig": dict}
    names = ("agg_loss", "compute_policy_loss_vanilla")
    verl = functions("verl/trainer/ppo/core_algos.py", names, verl_F=types.SimpleNamespace(**sums), **named, **basic)

    class Config(dict[str, Any]):
        __getattr__ = dict.__getitem__

    epsilons = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 10.0}
    config = Config(**epsilons, global_batch_info={})
    each, keep = advantages.expand(old.shape), mask.float()
    call = verl["compute_policy_loss_vanilla"]
    return lambda x: call(old, x, each, keep, "seq-mean-token-mean", config)[0]


def compilations(name: str, radii: int = 20) -> int:
    """How often torch.compile compiles the loss over different radii."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter, batch = CompileCounter(), make(SMALL)
    loss = torch.compile(bandpo.policy_loss, backend=counter)
    for i in range(radii):
        loss(batch["new"], batch["old"], batch["advantages"], batch["mask"], Band(name, 0.01 + 0.01 * i), normalizer=1)
    return counter.frame_count


def cold(name: str) -> float:
    """The processor's seconds of the first call of a compiled loss, with its compilers."""

    def spent() -> float:
        of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(x.ru_utime + x.ru_stime for x in of)

    torch._dynamo.reset()
    torch._inductor.config.compile_threads, torch._inductor.config.force_disable_caches = 1, True
    loss, batch = torch.compile(bandpo.policy_loss), make(SMALL)
    region, began = Clip() if name == "Clip" else Band(name), spent()
    inputs = batch["old"], batch["advantages"], batch["mask"]
    forward_backward(lambda x: loss(x, *inputs, region, normalizer=1)[0], batch["new"])()
    return spent() - began


def peak(call: Callable[[], Any]) -> int:
    """Return the most bytes on the CPU that live at once while `call` runs, beyond those that lived before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as run:
        call()
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def memory() -> list[dict[str, Any]]:
    """Peaks: of the losses of 64 x 4096 tokens, and of the output layer's log-probabilities."""
    tokens = LARGE[0] * LARGE[1]
    todo = {f"{name}, 64x4096": (call, tokens) for name, call in losses(make(LARGE)).items()}
    todo |= {f"{name}, 4096 x 16384, hidden 256": (call, 4096) for name, call in heads(4096).items()}
    rows = []
    for name, (call, count) in todo.items():
        call()
        most = peak(call)
        rows.append({"case": name, "peak_mib": round(most / 2**20, 2), "bytes_a_token": round(most / count, 1)})
        print(f"{name:60} {most / 2**20:9.2f} MiB {most / count:9.1f} bytes a token")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--verl", type=Path, metavar="FOLDER", help="with verl's wheel, unpacked")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--cases", nargs="+", metavar="WORD", help="only those with one of the words in its name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    # As in a training process: once a large tensor has been freed, malloc keeps freed memory. Before that every
    # intermediate result costs page faults, and the numbers are those of the kernel.
    large = torch.ones(7_500_000)
    del large
    facts = {
        "hardware": hardware(gpu=False),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": source_commit(),
    }
    todo = cases(args.verl, compiled=not args.no_compile)
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
    rows = []
    for name, t in times.items():
        low, median, high = statistics.quantiles(t, n=4)
        rows.append({"case": name, "median_ms": round(median, 3), "q1_ms": round(low, 3), "q3_ms": round(high, 3)})
        print(f"{name:60} {median:8.3f} ms   [{low:.3f}, {high:.3f}]")
    ratios: dict[str, float] = {
        name: statistics.median(x / y for x, y in zip(times[one], times[other], strict=True))
        for name, (one, other) in RATIOS.items()
        if {one, other} <= times.keys()
    }
    if not args.no_compile and not args.cases:
        for name in ("kl", "reverse_kl"):
            ratios[f"compilations of the loss over 20 radii, {name} (at most 2)"] = compilations(name)
        for name in ("Clip", "kl", "reverse_kl"):
            ratios[f"seconds of the first call of a compiled loss, {name}"] = cold(name)
    for name, value in ratios.items():
        print(f"{name:70} {value:.2f}")
        rows.append({"case": name, "median_ms": round(value, 3)})
    columns = ("case", "median_ms", "q1_ms", "q3_ms", "repeats", "shape", *facts)
    shape = f"{SHAPE[0]}x{SHAPE[1]} float32, 1 thread"
    rows = [{**row, "repeats": args.repeat, "shape": shape, **facts} for row in rows]
    peaks = [] if args.cases else [{**row, **facts} for row in memory()]
    if args.write:
        write_rows(Path(__file__).with_suffix(".csv"), rows, columns, add=True)
        write_rows(Path(__file__).with_name("memory.csv"), peaks, add=True)


if __name__ == "__main__":
    main()
