"""What a step holds in memory: the output matrix with and without the logits, and `policy_loss` alone.

    python benchmarks/memory.py [--device cuda] [--repeat 3] [--write]

Prints, per case, the peak of bytes live beyond the inputs in a forward and backward pass, the gradients included, and
the median time; `--write` appends the rows to benchmarks/memory.csv with hardware, versions and commit. On a CPU the
peak is the sum of the allocator's events as torch.profiler sees them, inside operators and compiled graphs too; on a
GPU it is the allocator's own.
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
from torch.nn.functional import linear
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from bandpo import Band, Clip, Region, policy_loss
from bandpo.losses import token_logps
from bandpo_runs.provenance import hardware, source_commit

MIB = 2**20
TOKENS, FEWER_TOKENS, VOCABULARY, WIDTH = 4096, 512, 32768, 576
LOSS_SHAPE = (32, 8192)
PLAIN, OURS = "plain: log_softmax and gather, no entropies", "token_logps, with entropies"


def peak(call: Callable[[], Any], device: str) -> int:
    """The most bytes that live at once while `call` runs, beyond those that lived before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as run:
        call()
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = top = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        top = max(top, live)
    return top


def seconds(calls: dict[str, Callable[[], Any]], device: str, repeat: int) -> dict[str, list[float]]:
    """Interleaved. On a CPU, time of the one thread: what else the machine does then hardly counts."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            began = clock()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append(clock() - began)
    return times


def plain(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """The leanest way through the logits: no entropies, and nothing but the log-probabilities is kept."""
    return linear(hidden, weight).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def checkpointed(hidden: Tensor, weight: Tensor, tokens: Tensor, chunk: int = 256) -> Tensor:
    """Plain lines, made again chunk by chunk in the backward pass by torch itself."""
    parts: Any = zip(hidden.split(chunk), tokens.split(chunk), strict=True)
    return torch.cat([checkpoint(plain, h, weight, t, use_reentrant=False) for h, t in parts])  # type: ignore[misc]


def torchs_own(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """torch 2.13; no entropies, no temperature, and results in the dtype of the parameters."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=256, chunking_method=None)
    return -torch.nn.functional.linear_cross_entropy(hidden, weight, tokens, reduction="none", options=options)


def trls(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """As GRPOTrainer of TRL 1.16 calls it, with entropies."""
    from trl.kernels import ChunkedLogProbFunction

    arguments = hidden, weight, None, tokens, 1.0, 32768, None, 1.0, ("log_probs", "entropy")
    return ChunkedLogProbFunction.apply(*arguments)[0]  # type: ignore[index]


def heads(count: int, device: str) -> dict[str, Callable[[], Any]]:
    """Ways from hidden states to log-probabilities and their gradients."""
    torch.manual_seed(0)
    hidden = torch.randn(count, WIDTH, device=device, requires_grad=True)
    weight = (torch.randn(VOCABULARY, WIDTH, device=device) / WIDTH**0.5).requires_grad_()
    tokens = torch.randint(VOCABULARY, (count,), device=device)
    up = torch.randn(count, device=device)
    half = torch.arange(count, device=device) % 2 == 0

    def step(function: Callable[..., Tensor], up: Tensor = up) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: torch.autograd.grad(function(hidden, weight, tokens), (hidden, weight), up)

    def ours(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
        return token_logps(hidden, weight, tokens, entropies=True)[0]

    cases = {
        PLAIN: step(plain),
        OURS: step(ours),
        "token_logps, half of the tokens masked": step(lambda h, w, t: ours(h[half], w, t[half]), up[half]),
        "torch.utils.checkpoint per 256 tokens, no entropies": step(checkpointed),
        "TRL's fused head, with entropies": step(trls),
    }
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):  # torch 2.13
        cases["torch linear_cross_entropy per 256 tokens, no entropies"] = step(torchs_own)
    return cases


def losses(device: str) -> dict[str, Callable[[], Any]]:
    """policy_loss with its metrics on a batch of 32 x 8192 tokens, eager and compiled."""
    rng = torch.Generator().manual_seed(0)
    old = -8 * torch.rand(LOSS_SHAPE, generator=rng).square()
    new = (old + 0.2 * torch.randn(LOSS_SHAPE, generator=rng)).clamp(max=0).to(device).requires_grad_()
    old, advantages = old.to(device), torch.randn(LOSS_SHAPE[0], generator=rng).to(device)
    mask = (torch.rand(LOSS_SHAPE, generator=rng) < 0.9).to(device)
    compiled = torch.compile(policy_loss)
    for region in Clip(), Band("kl", 0.05):  # here, so that compilation itself is not measured
        compiled(new, old, advantages, mask, region)[0].backward()

    def step(function: Callable[..., Any], region: Region, backward: bool) -> Callable[[], Any]:
        def call() -> Any:
            loss, metrics = function(new, old, advantages, mask, region)
            return (metrics, torch.autograd.grad(loss, new)) if backward else metrics

        return call

    return {
        f"policy_loss {name}, {how}{', forward only' * (not backward)}": step(function, region, backward)
        for name, region in {"Clip": Clip(), "Band kl": Band("kl", 0.05)}.items()
        for how, function in {"eager": policy_loss, "compiled": compiled}.items()
        for backward in (False, True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeat", type=int, default=3, help="0 or at least 2")
    parser.add_argument("--only", choices=["heads", "losses"])
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    facts = {
        "hardware": hardware(gpu=args.device == "cuda"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": source_commit(),
    }
    rows: list[dict[str, Any]] = []

    def add(shape: str, case: str, **numbers: float | str) -> None:
        shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in numbers.items()}
        rows.append({"shape": shape, "case": case, **shown, **facts})
        print(f"{shape:24} {case:56}", "  ".join(f"{k} {v}" for k, v in shown.items()), flush=True)

    def measure(shape: str, calls: dict[str, Callable[[], Any]], repeat: int, unit: int = 0) -> None:
        peaks = {name: peak(call, args.device) for name, call in calls.items()}
        times = seconds(calls, args.device, repeat) if repeat else {}
        for name in calls:
            numbers: dict[str, float] = {"peak_mib": peaks[name] / MIB}
            if unit:
                numbers["tensors"] = peaks[name] / unit
            else:
                numbers["peak_ratio"] = peaks[name] / peaks[PLAIN]
            if repeat:
                median = statistics.median(times[name])
                low, _, high = statistics.quantiles(times[name], n=4)
                numbers |= {"median_s": median, "q1_s": low, "q3_s": high, "repeats": repeat}
                if not unit:
                    numbers["time_ratio"] = median / statistics.median(times[PLAIN])
            add(shape, name, **numbers)

    if args.only != "losses":
        # On a CPU the time is that of fewer tokens: it is proportional to them, and minutes are enough.
        for count in TOKENS, FEWER_TOKENS:
            calls = heads(count, args.device)
            repeat = args.repeat if args.device == "cuda" or count == FEWER_TOKENS else 0
            measure(f"{count} x {VOCABULARY}, hidden {WIDTH}", calls, repeat)
        expected, got = (calls[name]() for name in (PLAIN, OURS))
        wrong = max((x - y).abs().max().item() for x, y in zip(got, expected, strict=True))
        add(rows[-1]["shape"], "largest difference of the gradients of the first two", error=f"{wrong:.1e}")
    if args.only != "heads":
        shape = f"{LOSS_SHAPE[0]} x {LOSS_SHAPE[1]}"
        measure(shape, losses(args.device), args.repeat, 4 * LOSS_SHAPE[0] * LOSS_SHAPE[1])
    if args.write:
        path = Path(__file__).with_suffix(".csv")
        new = not path.exists()
        names = [
            "shape",
            "case",
            "peak_mib",
            "peak_ratio",
            "tensors",
            "error",
            "median_s",
            "q1_s",
            "q3_s",
            "time_ratio",
            "repeats",
        ]
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*names, *facts])
            if new:
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
