"""Does each way of finding a bound pay? The whole loss, forward and backward, with it and without it.

    python -m research.measurements.paths [NAME ...] [--repeat 40] [--write]

Both are timed in turns in one process, on one thread, over 8 x 4096 tokens of float32 unless the case says otherwise.
Prints medians and their ratio; `--write` writes paths.csv. A way stays if it makes the loss at least 1.3
times as fast in a case that users have, or if it is what makes the case possible at all.
"""

import argparse
import contextlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import bandpo
from bandpo import Band
from bandpo.band import Divergence, kl, operator, solver
from bandpo.band.divergences import divergence
from bandpo_runs.provenance import hardware, source_commit
from research.csv_rows import write_rows
from research.measurements.cost import make

ROWS = Path(__file__).with_suffix(".csv")
COLUMNS = ["way", "case", "with_ms", "without_ms", "times_as_fast", "repeats", "hardware", "torch", "python", "commit"]
KL = divergence("kl")
MINE = bandpo.band.register_divergence(Divergence("mine", lambda u: (u - 1) ** 2, log_f=lambda x: torch.expm1(x) ** 2))


def loss(region: Any, rows: int = 8, radii: bool = False, compiled: bool = False, dtype: torch.dtype = torch.float32):
    """A step of it."""
    batch = make()
    times = rows // 8
    old, new = (batch[name].repeat(times, 1).to(dtype) for name in ("old", "new"))
    new.requires_grad_()
    advantages, mask = batch["advantages"].repeat(times, 1), batch["mask"].repeat(times, 1)
    if radii:
        region = PerToken(region.divergence, torch.full_like(old, 0.05))

    def objective(new: Tensor) -> Tensor:
        return bandpo.policy_loss(new, old, advantages, mask, region, normalizer=1000.0)[0]

    run = torch.compile(objective) if compiled else objective

    def step() -> None:
        run(new).backward()
        new.grad = None

    return step


@dataclass(frozen=True, eq=False)
class PerToken(bandpo.Region):
    """A band with a radius for each token."""

    divergence: Any
    delta: Tensor

    def bounds(self, old_logps: Tensor, context: Any = None) -> Any:
        return bandpo.band_bounds(old_logps, self.divergence, self.delta)


@contextlib.contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for where, name, what in changes:
            stack.enter_context(mock.patch.object(where, name, what))
        yield


def without_table() -> Any:
    """By secants."""

    def solved(kind: Divergence, log_p: Tensor, delta: Any) -> Any:
        return solver.tilt_log_bounds(log_p, delta, kind.generator, kind.slopes, True)

    return replaced((operator, "log_bounds", solved))


def in_float64(log_p: Tensor, delta: Any) -> Any:
    """KL's solver without its branch for float32."""
    return kl.kl_log_bounds(log_p.double(), delta)


def as_any(name: str) -> Divergence:
    """A divergence by its f alone, registered, so that a graph takes it."""
    kind = divergence(name)
    return bandpo.band.register_divergence(Divergence(f"plain {name}", kind.f, log_f=kind.log_f))


SOLVED = Divergence("solved", KL.f, log_bounds=lambda log_p, delta: kl.kl_log_bounds(log_p, delta), log_f=KL.log_f)
EXACT = Divergence("exact", KL.f, log_bounds=in_float64, log_f=KL.log_f)


def as_it_is() -> Any:
    return contextlib.nullcontext()


RADII, COMPILED = {"radii": True}, {"compiled": True}
# (way, case): with it, without it, what else is set, what is replaced while it is not there
CASES: dict[tuple[str, str], tuple[Any, Any, dict[str, Any], Callable[[], Any]]] = {
    ("table, any f", "eager float32"): (MINE, MINE, {}, without_table),
    ("solver of KL", "eager, radius per token"): (SOLVED, as_any("kl"), RADII, as_it_is),
    ("solver of KL", "compiled float32"): (SOLVED, as_any("kl"), COMPILED, as_it_is),
    ("its branch for float32", "eager, radius per token"): (SOLVED, EXACT, RADII, as_it_is),
    ("its branch for float32", "compiled float32"): (SOLVED, EXACT, COMPILED, as_it_is),
    **{
        (f"formula, {name}", case): (divergence(name), as_any(name), settings, as_it_is)
        for name in ("tv", "chi2", "hellinger", "neyman_chi2")
        for case, settings in {"eager float32": {}, "compiled float32": COMPILED, "radius per token": RADII}.items()
    },
}


def medians(case: tuple[str, str], repeats: int) -> tuple[float, float]:
    kind, other, settings, replacement = CASES[case]
    times: dict[str, list[float]] = {"with": [], "without": []}
    torch._dynamo.reset()
    steps = {"with": (as_it_is, loss(Band(kind), **settings)), "without": (replacement, loss(Band(other), **settings))}
    for way, step in steps.values():
        with way():
            for _ in range(3):
                step()
    for _ in range(repeats):
        for name, (way, step) in steps.items():
            with way():
                began = time.perf_counter()
                step()
                times[name].append(1e3 * (time.perf_counter() - began))
    return statistics.median(times["with"]), statistics.median(times["without"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of the ways' names; all")
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        if arguments.names and not any(name in case[0] for name in arguments.names):
            continue
        fast, slow = medians(case, arguments.repeat)
        found = [*case, f"{fast:.3f}", f"{slow:.3f}", f"{slow / fast:.2f}", arguments.repeat]
        found += [hardware(gpu=False), torch.__version__, platform.python_version(), source_commit()]
        rows.append(dict(zip(COLUMNS, found, strict=True)))
        print(
            *case, f"{fast:.2f} ms with it, {slow:.2f} without: {slow / fast:.2f} times as fast", sep=", ", flush=True
        )
    if arguments.write:
        write_rows(ROWS, rows)


if __name__ == "__main__":
    main()
