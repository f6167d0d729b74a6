"""What bandpo does on a GPU: fills half an hour of one card by itself, the most telling first.

    python benchmarks/gpu.py [--minutes 30] [--smollm2 smollm2] [--only PART ...]
    python benchmarks/gpu.py --device cpu --only memory      # as exact on a CPU: peaks, and times of fewer tokens
    python benchmarks/gpu.py --device cpu --tiny             # all but graphs, in seconds; the numbers say nothing

It needs no network. Rows go to benchmarks/gpu.csv, case by case. A case that has rows of this hardware, torch and
commit is left out: after an interruption the same command goes on. Each part has a share of the time, and hands on what
it leaves. A case whose time is over is stopped, has no row, and is named at the end. A failure is a row with its error,
and the rest goes on. The exit status is 1 after a failure, and after a number beyond its `at_most`.

bounds    all divergences, in three dtypes: the error against the reference of numerics.py in B, what rounding of the
          inputs costs (research/pages/numerics.md), and of float64 against tests/oracle.py; units in the last place
          (ulp) from a CPU; and how many bounds are infinite or NaN on one of the two only. Of bfloat16 all numbers.
loss      each method: loss and gradient against a CPU; whether it waits for the device, 0 or 1; its time beside
          cost.py's page of plain PyTorch with a clip of 0.2, which gives the same main metrics; its peak
graph     the same in a CUDA graph, with other numbers than it was captured with
compiled  the same by torch.compile, for some methods
copy      10^7 tokens, beside a copy that moves the bytes that the call must read and write: 1 is the least possible
memory    ways from hidden states to log-probabilities and gradients: peak and time
lab       two scenes of `bandpo lab`, four rules, one seed; rows of CPUs are in lab.csv
smollm2   four rules of research/measurements/smollm2_reuse.py, one seed, each answer used 8 times; with --smollm2 only

Times are medians, on a GPU by its own clock from event to event; calls that are compared take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cost
import numerics
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import bandpo
from bandpo.losses import token_logps
from bandpo.losses.nodes import method, methods
from bandpo_runs.provenance import hardware, source_commit
from csv_rows import read_rows, write_rows

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT), str(ROOT / "tests")]
import textbook  # noqa: E402

FACTS = ("size", "hardware", "torch", "python", "commit")
COLUMNS = ("part", "case", "measure", "value", "at_most", "note", "seconds", *FACTS)
RADII = (1e-6, 1e-3, 0.05, 1.0)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
COMPILED = ("grpo", "band-kl", "band-tv", "band-chi2", "no-clip", "clip-higher", "weighted-clip", "dcpo", "gspo")
LAB = ("band-kl", "grpo", "clip-higher", "clip-wide")
SMOLLM2 = ("no clip", "Band-KL 0.05", "GRPO 0.2/0.2", "weighted clip")
WAITS: tuple[str, ...] = ()  # methods whose loss waits for the device
VOCABULARY, WIDTH = 32768, 576


class Row(NamedTuple):
    """A number of a case."""

    measure: str
    value: float | str
    at_most: float | str = ""
    note: str = ""


class Setting(NamedTuple):
    """Where and how large."""

    device: str
    tiny: bool
    smollm2: str | None

    def size(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full


# ---- measuring


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
    found: list[list[Any]] = [[] for _ in calls]
    if on_gpu:
        torch.cuda.synchronize()
    for _ in range(on.size(30 if on_gpu else 7, 2)):
        for call, marks in zip(calls, found, strict=True):
            start = mark()
            call()
            marks.append((start, mark()))
    if on_gpu:
        torch.cuda.synchronize()  # only now can events be read
    return [[a.elapsed_time(b) if on_gpu else 1e3 * (b - a) for a, b in marks] for marks in found]


def beside(on: Setting, call: Callable[[], Any], other: Callable[[], Any], name: str) -> list[Row]:
    """Return the times of two calls that take turns, and the median of their ratios."""
    own, others = times(on, [call, other])
    ratios = [x / max(y, 1e-9) for x, y in zip(own, others, strict=True)]
    numbers = {"ms": own, f"ms, {name}": others, f"times {name}": ratios}
    return [Row(measure, statistics.median(values)) for measure, values in numbers.items()]


def peak(call: Callable[[], Any], device: str) -> int:
    """Return the most bytes that live at once while `call` runs, beyond those that lived before."""
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


class Looks(TorchDispatchMode):
    """Warn, as CUDA does, where a number is read from a tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in ("_local_scalar_dense", "nonzero", "masked_select", "equal.default")):
            warnings.warn(f"{func}: called a synchronizing operation", stacklevel=1)
        return func(*args, **(kwargs or {}))


def waits(on: Setting, call: Callable[[], Any], at_most: float | str) -> Row:
    """Tell whether a call waits for the device. What is made once is made before."""
    call()
    with warnings.catch_warnings(record=True) as said, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        if on.device == "cuda":
            torch.cuda.synchronize()
            stack.callback(torch.cuda.set_sync_debug_mode, "default")
            torch.cuda.set_sync_debug_mode("warn")  # an error might be caught on the way
        else:
            stack.enter_context(Looks())
        call()
        # Not the warning that this mode of torch is a prototype.
        texts = [text for each in said if "called a synchronizing" in (text := str(each.message))]
        if on.device == "cuda" and not texts:
            torch.cuda.set_sync_debug_mode("error")
            call()
    return Row("waits", int(bool(texts)), at_most, texts[0] if texts else "")


def short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def apart(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, by the largest number; a NaN on one side only is infinite.

    One token in 10^5 is left out: where a ratio is at its bound, the last digit decides of the gradient.
    """
    found, wanted = found.detach().double().cpu().flatten(), wanted.detach().double().cpu().flatten()
    if not torch.equal(found.isnan(), wanted.isnan()):
        return math.inf
    gaps = (found - wanted).nan_to_num().abs().sort().values
    return float(gaps[-1 - len(gaps) // 10**5] / wanted.nan_to_num().abs().max().clamp(min=1e-30))


# ---- bounds


def bounds(name: str, on: Setting) -> Iterator[Row]:
    kind, dtype = name.split()
    solve = numerics.operator(kind, "cuda" if on.device == "cuda" else "eager")
    wide = np.float64 if dtype == "float64" else np.float32  # of the bounds
    if dtype == "bfloat16":
        half = torch.arange(-32768, 0, dtype=torch.int16).view(torch.bfloat16)
        some, sweep = half[half.isfinite() & (half < 0)].float().numpy(), lambda x, delta: solve(x.bfloat16(), delta)
    else:
        each = numerics.single(on.size(2**8, 1)) if dtype == "float32" else numerics.double(on.size(2**2, 1))
        some, sweep = np.concatenate(list(each)), solve
    worst: dict[str, Row] = {}

    def add(measure: str, value: float, at_most: float | str, note: str) -> None:
        if measure not in worst or not value <= worst[measure].value:
            worst[measure] = Row(measure, value, at_most, note)

    for delta in RADII:
        parts = [some] if dtype == "bfloat16" else [numerics.special(kind, delta, wide), some]
        row = numerics.sweep(kind, delta, wide, {"": sweep}, parts)[""]
        x = torch.from_numpy(np.concatenate(parts)).to(DTYPES[dtype])
        found, wanted = solve(x, delta), bandpo.band_bounds(x, kind, delta)
        for side in ("low", "high"):
            at = f"radius {delta:g}, log p {row[f'{side}_bound_at']}"
            limit = 4 if wide == np.float32 else 8 if kind not in numerics.SOLVED else ""
            add(f"{side}, B", float(row[f"{side}_bound"]), limit, at)
            one, other = getattr(found, f"log_{side}"), getattr(wanted, f"log_{side}")
            unlike = (one.isnan() != other.isnan()) | (one.isinf() != other.isinf())
            add(f"{side}, unlike a CPU", int(unlike.sum()), "", f"of {x.numel()}, radius {delta:g}")
            error = ((one - other).abs() / torch.from_numpy(numerics.ulp(other.numpy(), wide))).nan_to_num(0, 0)
            at = f"radius {delta:g}, log p {float(x[error.argmax()])!r}"
            add(f"{side}, ulp from a CPU", float(error.max()), 2 if wide == np.float32 else "", at)
        if dtype == "float64":
            value, at = oracle(kind, delta, solve, on.size(12, 1))
            add("relative error by the oracle", value, 1e-9, f"radius {delta:g}, log p {at!r}")
    yield from worst.values()


def oracle(kind: str, delta: float, solve: numerics.Bounds, count: int) -> tuple[float, float]:
    """Return the largest error of bounds of float64, beside the points of saturation too, and its log p."""
    from oracle import GENERATORS, exact_bounds_of, power

    f = GENERATORS[kind] if kind in GENERATORS else power(float(kind[13:-1]))
    saturates = [x * y for x in numerics._saturation(kind, delta) for y in (0.999, 1.001)]
    points = [*(-np.logspace(-6, 2, count)).tolist(), *saturates]
    found, errors = solve(torch.tensor(points, dtype=torch.float64), delta), {}
    for i, log_p in enumerate(points):
        exact = exact_bounds_of(f, log_p, delta)
        pairs = (float(found.log_low[i]), exact.log_low), (float(found.log_high[i]), exact.log_high)
        wrong = [0.0 if x == float(y) else float(abs((x - y) / y)) for x, y in pairs]
        errors[log_p] = math.inf if any(map(math.isnan, wrong)) else max(wrong)
    at = max(errors, key=lambda log_p: errors[log_p])
    return errors[at], at


# ---- losses


def batch(name: str, device: str, dtype: torch.dtype, rows: int = 48, columns: int = 6) -> dict[str, Any]:
    """Return all arguments of `policy_loss` for a method; only `logps` has a gradient."""
    found = method(name)
    given = textbook.in_a_loop(found, *textbook.batch(found, rows, columns))
    for key, x in given.items():
        if isinstance(x, Tensor):
            given[key] = x.detach().to(device, dtype if x.is_floating_point() else x.dtype)
    given["logps"].requires_grad_()
    return {**given, "objective": found.objective, "normalizer": float(rows)}


def step(given: dict[str, Any], loss: Callable[..., Any] = bandpo.policy_loss) -> tuple[Tensor, Tensor, Any]:
    """Return loss, gradient, and the numbers that the loss gave."""
    value, numbers = loss(**given)
    return value, torch.autograd.grad(value, given["logps"])[0], numbers


def compiler(on: Setting) -> Callable[..., Any]:
    torch._dynamo.reset()  # else the cases before count against the limit of graphs
    return functools.partial(torch.compile, fullgraph=True, backend=on.size("inductor", "aot_eager"))


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return the replay of a call's CUDA graph, which gives the tensors that it writes each time."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is made once is made before the capture
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay() -> Any:
        graph.replay()
        return out

    return replay


def loss(name: str, on: Setting, how: str = "eager") -> Iterator[Row]:
    given = batch(name, on.device, torch.float32, *on.size((64, 16384), (8, 32)))
    page = {"logps": given["logps"], "old": given["old_logps"], "advantages": given["advantages"][:, None]}
    page |= {"mask": given["response_mask"], "region": bandpo.Clip(0.2, 0.2)}
    make = compiler(on) if how == "compiled" else lambda function: function
    calls = [functools.partial(step, *each) for each in ((given, make(bandpo.policy_loss)), (page, make(cost.page)))]
    own, other = map(captured, calls) if how == "graph" else calls
    if how == "eager":
        for kind, limit in (("float64", 1e-9), ("float32", 1e-4), ("bfloat16", 1e-2)):
            found, wanted = (step(batch(name, device, DTYPES[kind])) for device in (on.device, "cpu"))
            for what, x, y in zip(("loss", "gradient"), found, wanted, strict=False):
                yield Row(f"{what}, {kind}, from a CPU", apart(x, y), limit)
    else:
        own()
        with torch.no_grad():  # other numbers, in the same place
            given["logps"].mul_(0.9)
        for what, x, y in zip(("loss", "gradient"), own(), step(given), strict=False):
            yield Row(f"{what}, from eager mode", apart(x, y), 1e-4)
    if on.device == "cuda" or how == "eager":
        yield waits(on, own, "" if name in WAITS else 0)
    yield from beside(on, own, other, "the plain page")
    if how != "graph":  # which holds its memory
        for what, call in (("", own), (", the plain page", other)):
            yield Row(f"peak bytes a token{what}", peak(call, on.device) / given["logps"].numel())


# ---- 10^7 tokens, and memory


def copy(name: str, on: Setting) -> Iterator[Row]:
    what, of, *how = name.split()
    shape = on.size((1000, 10_000), (10, 100))
    make = compiler(on) if how else lambda function: function
    if what == "bounds":
        old, size = -8 * torch.rand(shape, device=on.device), 4 + 8  # log p; both bounds
        call = functools.partial(make(lambda x: bandpo.band_bounds(x, of, 0.05)), old)
    else:
        given, size = batch(of, on.device, torch.float32, *shape), 4 + 4 + 1 + 4  # new, old, mask; the gradient
        call = functools.partial(step, given, make(bandpo.policy_loss))
    here = torch.ones(math.prod(shape) * size // 2, dtype=torch.uint8, device=on.device)  # is read, and written
    there = torch.empty_like(here)
    yield from (found := beside(on, call, lambda: there.copy_(here), "a copy"))
    yield Row("GB/s of the copy", 2 * here.numel() / max(found[1].value, 1e-9) / 1e6)


def plain(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """The leanest way through the logits: no entropies, and nothing but the log-probabilities is kept."""
    return linear(hidden, weight).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def ours(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    return token_logps(hidden, weight, tokens, entropies=True)[0]


def torchs_own(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """No entropies, no temperature, and results in the dtype of the parameters."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=256, chunking_method=None)
    return -torch.nn.functional.linear_cross_entropy(hidden, weight, tokens, reduction="none", options=options)


def trls(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """As GRPOTrainer of TRL 1.16 calls it, with entropies."""
    from trl.kernels import ChunkedLogProbFunction

    arguments = hidden, weight, None, tokens, 1.0, 32768, None, 1.0, ("log_probs", "entropy")
    return ChunkedLogProbFunction.apply(*arguments)[0]  # type: ignore[index]


HEADS: dict[str, Callable[..., Tensor]] = {
    "token_logps, with entropies": ours,
    "token_logps, half of the tokens masked": lambda h, w, t: ours(h[::2], w, t[::2]),
    "TRL's fused head, with entropies": trls,
}
if hasattr(torch.nn, "LinearCrossEntropyOptions"):  # torch 2.13
    HEADS["torch linear_cross_entropy per 256 tokens, no entropies"] = torchs_own


def head(name: str, on: Setting) -> Iterator[Row]:
    def calls(count: int) -> list[Callable[[], Any]]:
        vocabulary = on.size(VOCABULARY, 512)
        torch.manual_seed(0)
        hidden = torch.randn(count, WIDTH, device=on.device, requires_grad=True)
        weight = (torch.randn(vocabulary, WIDTH, device=on.device) / WIDTH**0.5).requires_grad_()
        tokens, up = torch.randint(vocabulary, (count,), device=on.device), torch.randn(count, device=on.device)

        def gradients(way: Callable[..., Tensor]) -> tuple[Tensor, ...]:
            out = way(hidden, weight, tokens)
            return torch.autograd.grad(out, (hidden, weight), up[: len(out)])

        return [functools.partial(gradients, way) for way in (HEADS[name], plain)]

    own, other = calls(on.size(4096, 8))
    if "masked" not in name:
        errors = [apart(x, y) for x, y in zip(own(), other(), strict=True)]
        yield Row("gradients, from the plain way", max(errors), 1e-4 if HEADS[name] is ours else "")
    for what, call in (("", own), (", the plain way", other)):
        yield Row(f"peak MiB{what}", peak(call, on.device) / 2**20, note=f"{on.size(4096, 8)} tokens")
    yield from beside(on, *calls(on.size(4096 if on.device == "cuda" else 512, 8)), "the plain way")


# ---- training


def lab(name: str, on: Setting) -> Iterator[Row]:
    from lab import NAMES, row_of

    from bandpo_runs import toy
    from bandpo_runs.reports.runs import read_runs
    from bandpo_runs.training.on_trl import run
    from bandpo_runs.training.side_by_side import plan

    scene, rule = name.split()
    changes: dict[str, Any] = {"trainer": {"use_cpu": on.device == "cpu"}, "save_every": 0}
    with tempfile.TemporaryDirectory() as folder:
        if on.tiny:
            os.environ["BANDPO_CACHE"] = folder  # of this process
            toy.save_start(toy.WarmStart(toy.SCENES[scene].p_work, 0).folder, toy.fresh_model(0), {})
            changes["rounds"] = 1
        (job,) = plan(scene, [rule], [0], Path(folder, "runs"), changes)
        run(job.config, say=lambda text: None)
        row = row_of(read_runs([job.folder])[0])
    for key in (*NAMES, "seconds"):
        yield Row(key, row[key], note="" if row[key] != "" else "not reached, or nothing to count")


def smollm2(name: str, on: Setting) -> Iterator[Row]:
    from research.measurements.smollm2_reuse import JUDGE, RATES, task_of, train

    task = task_of(name, 8, RATES[8][1], JUDGE)
    task["rounds"] = on.size(task["rounds"], 1)
    row = train(task, str(on.smollm2), on.device)
    note = ", ".join(f"{key} {task[key]}" for key in ("uses", "learning_rate", "seed", "rounds"))
    for key in ("right", "reward", "clipped", "seconds"):
        yield Row(key, float(row[key]), note=note)


# ---- the half hour


class Part(NamedTuple):
    """Minutes of thirty, and the cases that they are for."""

    minutes: float
    measure: Callable[[str, Setting], Iterator[Row]]
    cases: list[str]


def parts(on: Setting) -> dict[str, Part]:
    kinds, on_gpu = numerics.DIVERGENCES, on.device == "cuda"
    every = [*COMPILED, *(one.name for one in methods() if one.name not in COMPILED)]
    moved = [f"{what}{how}" for how in ("", " compiled") for what in ("bounds kl", "loss band-kl", "loss grpo")]
    runs = [f"{scene} {rule}" for scene in ("storm", "tail") for rule in LAB]
    found = {
        "bounds": Part(5, bounds, [f"{kind} {dtype}" for dtype in DTYPES for kind in on.size(kinds, kinds[5:6])]),
        "loss": Part(3, loss, on.size(every, [*COMPILED[:3], *WAITS])),
        "graph": Part(2, functools.partial(loss, how="graph"), [x for x in every if on_gpu and x not in WAITS]),
        "compiled": Part(5, functools.partial(loss, how="compiled"), [*COMPILED[: on.size(None, 1)]]),
        "copy": Part(1, copy, [*moved, *(f"bounds {kind}" for kind in kinds[1:])][: on.size(None, 2)]),
        "memory": Part(1, head, [*HEADS]),
        "lab": Part(6, lab, runs[: on.size(None, 1)]),
        "smollm2": Part(7, smollm2, [*SMOLLM2[: on.size(None, 1)]] if on.smollm2 else []),
    }
    return {name: part for name, part in found.items() if part.cases}


def work(pipe: Any, on: Setting) -> None:
    """Answer each (part, case) with its rows or its error, until the pipe is closed."""
    torch.set_num_threads(1)
    bandpo.band.register_divergence(numerics.POWER)
    plan = parts(on)
    with contextlib.suppress(EOFError):
        while True:
            part, case = pipe.recv()
            try:
                pipe.send(list(plan[part].measure(case, on)))
            except Exception as error:
                pipe.send(short(error))


class Worker:
    """A process of its own: what fails there or takes too long takes nothing with it."""

    def __init__(self, on: Setting) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, on), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, part: str, case: str, seconds: float) -> list[Row] | str | None:
        """Return rows, an error, or None after so many seconds."""
        try:
            self.pipe.send((part, case))
            return self.pipe.recv() if self.pipe.poll(seconds) else None
        except (EOFError, ConnectionError):
            self.process.join()
            return f"the process ended with status {self.process.exitcode}"

    def end(self) -> None:
        self.process.kill()
        self.process.join()


class Table:
    """The file, and the cases that have rows in it."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts
        rows = [row for row in read_rows(path, missing_ok=True) if row["measure"] != "error"]
        self.known = {(row["part"], row["case"]) for row in rows if self.key(row) == self.key(facts)}

    @staticmethod
    def key(row: dict[str, Any]) -> list[str]:
        # A tree counts as changed once it holds the first new row.
        return [row["size"], row["hardware"], row["torch"], (row["commit"] or "").removesuffix("-dirty")]

    def add(self, rows: list[dict[str, Any]]) -> None:
        write_rows(self.path, [row | self.facts for row in rows], COLUMNS, add=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--smollm2", metavar="MODEL", help="smollm2, as `bandpo train` finds it, or a folder")
    parser.add_argument("--only", nargs="+", metavar="PART")
    parser.add_argument("--tiny", action="store_true", help="sizes that take seconds on a CPU")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    args = parser.parse_args()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # of several cards one, else TRL takes all
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --device cpu --tiny runs the same code on a CPU")
    end = time.monotonic() + 60 * args.minutes
    on = Setting(args.device, args.tiny, args.smollm2)
    plan = parts(on)
    if unknown := {*(args.only or ())} - {*plan}:
        parser.error(f"--only takes {', '.join(plan)} here, got {', '.join(sorted(unknown))}")
    made_by = on.size("full", "tiny"), hardware(on.device == "cuda"), torch.__version__, platform.python_version()
    table = Table(args.out, dict(zip(FACTS, (*made_by, source_commit()), strict=True)))
    chosen = {name: [x for x in plan[name].cases if (name, x) not in table.known] for name in args.only or plan}
    left = {name: chosen[name] for name in plan if chosen.get(name)}
    worker: Worker | None = None
    unfit, wrong = list[str](), list[str]()
    for place, (part, cases) in enumerate(left.items()):
        now = time.monotonic()
        share = plan[part].minutes / sum(plan[other].minutes for other in [*left][place:])
        until = now + (end - now) * share
        for case in cases:
            began, name = time.monotonic(), f"{part}, {case}"
            if began >= until:
                unfit.append(name)
                continue
            worker = worker or Worker(on)
            found = worker.ask(part, case, until - began)
            if found is None:
                unfit.append(name)
            if isinstance(found, str):
                found = [Row("error", "", note=found)]
            for measure, value, at_most, note in found or []:
                if measure == "error" or (at_most != "" and not value <= at_most):
                    wrong.append(f"{name}: {measure} {value} {note}")
            told = {"part": part, "case": case, "seconds": f"{time.monotonic() - began:.1f}"}
            rows = [told | row._asdict() | {"value": row.value and f"{row.value:.6g}"} for row in found or []]
            table.add(rows)
            print(f"{name}:", "; ".join(f"{x['measure']} {x['value']}" for x in rows) or "stopped", flush=True)
            if not rows or rows[0]["measure"] == "error":  # a GPU may not answer in that process any more
                worker.end()
                worker = None
    if worker is not None:
        worker.end()
    ends = [*(f"WRONG: {each}" for each in wrong), *(f"did not fit: {each}" for each in unfit), f"rows: {args.out}"]
    print(*ends, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
