"""torch.compile: one graph, the numbers of eager mode, and no new graph for a new radius."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from regions import Wider, name_of, ways
from torch import Tensor

from bandpo import DCPO, Band, Bounds, Capped, Clip, Objective, band_bounds, policy_loss
from bandpo.band import Divergence, divergences
from bandpo.losses import Metrics, Preserve
from bandpo.trust_regions import Relaxed

# The compiler warns of its own parts while it is imported, in each release of others.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

RADII = [0.01 + 0.005 * k for k in range(20)]
SQUARED = Divergence("squared", lambda u: (u - 1) ** 2)


@pytest.fixture(autouse=True, scope="module")
def a_graph_takes_registered_divergences():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divergences, "_REGISTRY", {**divergences._REGISTRY, "squared": SQUARED})
        yield


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Bounds):
        return [result.log_low, result.log_high]
    if isinstance(result, Metrics):
        return [*result.totals.values(), *result.maxima.values()]
    return [x for part in result for x in tensors(part)]


def compilations(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], backend: str = "eager") -> int:
    """Compare every call and its gradient with eager mode; the number of graphs that it took."""
    from torch._dynamo.testing import CompileCounterWithBackend  # loads the compiler

    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for arguments in calls:
        got, expected = (tensors(each(*arguments)) for each in (compiled, function))
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-30)
        if leaves := [x for x in arguments if isinstance(x, Tensor) and x.requires_grad]:
            slopes = [torch.autograd.grad(loss.sum(), leaves) for loss, *_ in (got, expected)]
            torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-30)
    return counter.frame_count


def batch(rows: int = 4, columns: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(logps, old_logps, advantages, response_mask) with a little of everything: p = 0 and 1, padding, large steps."""
    torch.manual_seed(seed)
    old = torch.rand(rows, columns).log()
    old[0, :3] = torch.tensor([-math.inf, 0.0, -80.0])[: old.shape[1]]
    logps = (old + torch.randn(rows, columns)).clamp(max=0)
    return logps.requires_grad_(), old, torch.randn(rows), torch.arange(columns) <= torch.arange(rows)[:, None] + 2


def test_half_precision_compiles_to_one_graph():
    logps, old, *rest = batch()
    halves = [x.detach().bfloat16().requires_grad_(x.requires_grad) for x in (logps, old)]
    assert compilations(lambda *x: policy_loss(*x, Band(), normalizer=36.0), [(*halves, *rest)]) == 1


@pytest.mark.parametrize("objective", ways(), ids=name_of)
def test_policy_loss_is_one_graph_for_every_surrogate_and_ratio(objective):
    assert compilations(policy_loss, [(*batch(), objective)]) == 1


@pytest.mark.parametrize("divergence", ["kl", "tv", "chi2", SQUARED], ids=str)
def test_twenty_float_radii_take_two_graphs_and_radii_in_tensors_one(divergence):
    """The first radius is taken for a constant; the second makes it a variable, and that graph serves all others."""
    old = batch()[1]
    for bounds, made, most in (
        (lambda p, delta: band_bounds(p, divergence, delta), float, 2),
        (lambda p, region: region.bounds(p), lambda delta: Band(divergence, delta), 2),
        (lambda p, delta: band_bounds(p, divergence, delta), torch.tensor, 1),
    ):
        torch._dynamo.reset()
        assert compilations(bounds, [(old, made(delta)) for delta in RADII]) <= most


@pytest.mark.parametrize(
    "region",
    [
        Clip(0.2, 0.28),
        Clip(1.0, math.inf),
        DCPO(),
        Band("kl"),
        Band("tv"),
        Band("chi2"),
        Band("jensen_shannon"),
        Relaxed(Band(), Clip(0.2, 0.28)),
        Capped(Band(), 10.0),
        Relaxed(Capped(DCPO(), 3.0), Clip()),
    ],
    ids=repr,
)
def test_policy_loss_is_one_graph_for_every_region(region):
    data = batch()
    extra = torch.rand(4, 6)

    def everything(*arguments):
        return policy_loss(*arguments, ref_logps=extra.log(), rollout_is_weights=extra, extra={"entropies": extra})

    objective = Objective(region, dual_clip=3.0, beta=0.1, max_log_ratio=20.0)
    assert compilations(everything, [(*data, objective)]) == 1
    assert compilations(lambda *given: policy_loss(*given, metrics="all"), [(*data, objective.trust_region)]) == 1
    assert compilations(policy_loss, [(*data, Objective(region, aggregation="token-mean"))]) == 1


def test_policy_loss_is_one_graph_for_a_rule_that_sees_the_batch():
    tensors = batch()
    entropies = torch.where(tensors[-1], torch.rand(4, 6) * torch.linspace(0.9, 1.1, 6), torch.nan)
    extra = {"entropies": entropies, "group": torch.tensor([0, 0, 1, 1])}
    assert compilations(lambda *arguments: policy_loss(*arguments, Wider(), extra=extra), [tensors]) == 1


def test_an_objective_is_a_constant_of_the_graph():
    """One graph for all steps, and for another object of the same values; a number that changes becomes a variable."""
    made = [Objective(Clip(0.2, 0.2), surrogate=("weight", Preserve(0.5, 1.0))) for _ in range(9)]
    assert compilations(policy_loss, [(*batch(seed=seed), each) for seed, each in enumerate(made)]) == 1
    torch._dynamo.reset()
    changing = [(*batch(), Objective(Clip(0.2, 0.2), surrogate=Preserve(0.5, 1 + delta))) for delta in RADII]
    assert compilations(policy_loss, changing) <= 2


NUMBERS = {
    "radii": lambda x, number: policy_loss(*x, Band("kl", number)),
    "weights": lambda x, number: policy_loss(*x, Objective(Band(), beta=number), ref_logps=x[1]),
    "normalizers": lambda x, number: policy_loss(*x, Band(), normalizer=100 * (1 + number)),
    "whole normalizers": lambda x, number: policy_loss(*x, Band(), normalizer=number),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_policy_loss_takes_two_graphs_for_twenty_numbers(name):
    numbers = range(101, 121) if name == "whole normalizers" else RADII
    assert compilations(NUMBERS[name], [(batch(), number) for number in numbers]) <= 2


def test_batches_of_any_size_take_two_graphs():
    sizes = (4, 6), (3, 9), (7, 5), (12, 31), (2, 4)
    assert compilations(policy_loss, [(*batch(*size), Band("kl", 0.05)) for size in sizes]) <= 2


def test_compiled_by_inductor_the_bounds_are_the_same():
    """Long enough for its vector code, whose expm1 has no accuracy near 0, where log p = 0 is."""
    old = torch.cat([torch.linspace(-69, 0, 4001), torch.tensor([-math.inf, 1e-6, -1e-7])])
    calls = [(old, delta) for delta in (0.01, 0.05, 0.3)]
    assert (
        compilations(lambda p, delta: [band_bounds(p, d, delta) for d in ("kl", "tv", "chi2")], calls, "inductor") <= 2
    )


def test_compiled_by_inductor_the_loss_has_the_same_gradient():
    assert compilations(policy_loss, [(*batch(16, 32), Band())], "inductor") == 1
