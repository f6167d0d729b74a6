"""What a loss and the output layer cost on a GPU: time and memory, beside plain PyTorch.

    python -m research.measurements.gpu [loss graph compiled memory]
    python -m research.measurements.gpu memory --device cpu    # on a CPU: peaks, and times of fewer tokens
    python -m research.measurements.gpu --device cpu --tiny    # all but graphs, in seconds; the numbers say nothing

It needs no network. Rows are added to gpu.csv, case by case; a failure is a row with its error, and the rest goes on.
Whether a GPU's numbers are a CPU's, and whether a loss waits, is tested by tests/test_gpu.py; the error of bounds is
measured by numerics.py with `--mode cuda`.

loss      each method: time beside cost.py's page of plain PyTorch with a clip of 0.2, which gives the same main
          metrics; its peak
graph     the same in a CUDA graph
compiled  the same by torch.compile, for some methods
memory    ways from hidden states to log-probabilities and gradients: peak and time

Times are medians, on a GPU by its own clock from event to event; calls that are compared take turns.
"""

from __future__ import annotations

import argparse
import functools
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

import bandpo
from bandpo.losses import token_logps
from bandpo.losses.nodes import method, methods
from bandpo_runs.provenance import hardware, source_commit
from research.csv_rows import write_rows
from research.measurements import cost

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
import textbook

COLUMNS = ("part", "case", "measure", "value", "size", "hardware", "torch", "python", "commit")
COMPILED = ("grpo", "band-kl", "band-tv", "band-chi2", "no-clip", "clip-higher", "weighted-clip", "dcpo", "gspo")
VOCABULARY, WIDTH = 32768, 576
Measured = Iterator[tuple[str, float]]


class Setting(NamedTuple):
    """Where and how large."""

    device: str
    tiny: bool

    def size(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full


def times(on: Setting, calls: list[Callable[[], Any]]) -> list[list[float]]:
    """Return milliseconds of each call; of the processor without a GPU."""
    on_gpu = on.device == "cuda"

    def mark() -> Any:
        if not on_gpu:
            return time.process_time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    for call in 3 * calls:
        call()
    marks: list[list[Any]] = [[] for _ in calls]
    for _ in range(on.size(30 if on_gpu else 7, 2)):
        for call, own in zip(calls, marks, strict=True):
            start = mark()
            call()
            own.append((start, mark()))
    if on_gpu:
        torch.cuda.synchronize()  # only now can events be read
    return [[a.elapsed_time(b) if on_gpu else 1e3 * (b - a) for a, b in own] for own in marks]


def beside(on: Setting, call: Callable[[], Any], other: Callable[[], Any], name: str) -> Measured:
    """Give the times of two calls that take turns, and the median of their ratios."""
    own, others = times(on, [call, other])
    ratios = [x / max(y, 1e-9) for x, y in zip(own, others, strict=True)]
    for measure, values in {"ms": own, f"ms, {name}": others, f"times {name}": ratios}.items():
        yield measure, statistics.median(values)


def peak(call: Callable[[], Any], device: str) -> int:
    """Return the most bytes that live at once while `call` runs, beyond those that lived before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    return cost.peak(call)


# ---- losses


def batch(name: str, device: str, rows: int, columns: int) -> dict[str, Any]:
    """Return all arguments of `policy_loss` for a method; only `logps` has a gradient."""
    wanted = method(name)
    arguments = textbook.in_a_loop(wanted, *textbook.batch(wanted, rows, columns))
    for key, x in arguments.items():
        if isinstance(x, Tensor):
            arguments[key] = x.detach().to(device, torch.float32 if x.is_floating_point() else x.dtype)
    arguments["logps"].requires_grad_()
    return {**arguments, "objective": wanted.objective, "normalizer": float(rows)}


def step(arguments: dict[str, Any], loss: Callable[..., Any]) -> tuple[Tensor, Tensor, Any]:
    """Return loss, gradient, and the numbers that the loss gave."""
    value, numbers = loss(**arguments)
    return value, torch.autograd.grad(value, arguments["logps"])[0], numbers


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return the replay of a call's CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is made once is made before the capture
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def loss(name: str, on: Setting, how: str = "loss") -> Measured:
    arguments = batch(name, on.device, *on.size((64, 16384), (8, 32)))
    page = {"logps": arguments["logps"], "old": arguments["old_logps"], "advantages": arguments["advantages"][:, None]}
    page["mask"] = arguments["response_mask"]
    torch._dynamo.reset()  # else the cases before count against the limit of graphs
    compiler = functools.partial(torch.compile, fullgraph=True, backend=on.size("inductor", "aot_eager"))
    make = compiler if how == "compiled" else lambda function: function
    pairs = (arguments, make(bandpo.policy_loss)), (page, make(cost.page))
    calls = [functools.partial(step, *pair) for pair in pairs]
    own, other = map(captured, calls) if how == "graph" else calls
    yield from beside(on, own, other, "the plain page")
    if how != "graph":  # which holds its memory
        for what, call in (("", own), (", the plain page", other)):
            yield f"peak bytes a token{what}", peak(call, on.device) / arguments["logps"].numel()


# ---- the output layer


def plain(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """The leanest way through the logits: no entropies, and nothing but the log-probabilities is kept."""
    return linear(hidden, weight).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def ours(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    return token_logps(hidden, weight, tokens, entropies=True)[0]


def trls(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """As GRPOTrainer of TRL 1.16 calls it, with entropies."""
    from trl.kernels import ChunkedLogProbFunction

    arguments = hidden, weight, None, tokens, 1.0, 32768, None, 1.0, ("log_probs", "entropy")
    return ChunkedLogProbFunction.apply(*arguments)[0]  # type: ignore[index]


HEADS: dict[str, Callable[..., Tensor]] = {
    "token_logps": token_logps,
    "token_logps, with entropies": ours,
    "token_logps, half of the tokens masked": lambda h, w, t: ours(h[::2], w, t[::2]),
    "TRL's fused head, with entropies": trls,
}


def head(name: str, on: Setting) -> Measured:
    def calls(count: int) -> list[Callable[[], Any]]:
        vocabulary = on.size(VOCABULARY, 512)
        torch.manual_seed(0)
        hidden = torch.randn(count, WIDTH, device=on.device, requires_grad=True)
        weight = (torch.randn(vocabulary, WIDTH, device=on.device) / WIDTH**0.5).requires_grad_()
        tokens, slope = torch.randint(vocabulary, (count,), device=on.device), torch.randn(count, device=on.device)

        def gradients(way: Callable[..., Tensor]) -> tuple[Tensor, ...]:
            out = way(hidden, weight, tokens)
            return torch.autograd.grad(out, (hidden, weight), slope[: len(out)])

        return [functools.partial(gradients, way) for way in (HEADS[name], plain)]

    for what, call in zip(("", ", the plain way"), calls(on.size(4096, 8)), strict=True):
        yield f"peak MiB{what}", peak(call, on.device) / 2**20
    yield from beside(on, *calls(on.size(4096 if on.device == "cuda" else 512, 8)), "the plain way")


def parts(on: Setting) -> dict[str, tuple[Callable[[str, Setting], Measured], list[str]]]:
    """Return how each part is measured, and its cases."""
    every = [one.name for one in methods()]
    some = {
        "loss": (loss, every),
        "graph": (functools.partial(loss, how="graph"), every if on.device == "cuda" else []),
        "compiled": (functools.partial(loss, how="compiled"), [*COMPILED]),
        "memory": (head, [*HEADS]),
    }
    return {name: (measure, cases[: on.size(None, 2)]) for name, (measure, cases) in some.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["loss", "graph", "compiled", "memory", []])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="sizes that take seconds on a CPU")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    on, failed = Setting(args.device, args.tiny), False
    facts = dict(
        zip(
            COLUMNS[-5:],
            (
                on.size("full", "tiny"),
                hardware(on.device == "cuda"),
                torch.__version__,
                platform.python_version(),
                source_commit(),
            ),
            strict=True,
        )
    )
    for part, (measure, cases) in parts(on).items():
        for case in cases if part in (args.parts or parts(on)) else []:
            try:
                rows = [{"measure": name, "value": f"{value:.6g}"} for name, value in measure(case, on)]
            except Exception as error:
                rows, failed = [{"measure": "error", "value": f"{type(error).__name__}: {error}"[:300]}], True
            write_rows(args.out, [{"part": part, "case": case} | row | facts for row in rows], COLUMNS, add=True)
            print(f"{part}, {case}:", "; ".join(f"{row['measure']} {row['value']}" for row in rows), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
