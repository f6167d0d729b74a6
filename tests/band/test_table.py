"""The looked-up bounds of float32 log-probabilities against the solved ones of float64."""

import functools
import math
import random
import subprocess
import sys
import types

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from bandpo import Bounds, band_bounds, numerics
from bandpo.band import Divergence, divergence, divergence_at, divergences, register_divergence, table

NAMES = sorted(divergences._REGISTRY)
RADII = [1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.3, 0.4, 0.6, 1.0, 10.0, 12.0, 30.0]
KINKED = {
    "hinge": lambda u: torch.maximum((u - 1) ** 2, 3 * (u - 1)),
    "flat": lambda u: ((u - 1).abs() - 0.2).clamp(min=0),
    "mixed": lambda u: ((u - 1).abs() - 0.3).clamp(min=0) + 0.1 * (u - 1) ** 2,
    "lines": lambda u: torch.maximum(2 * (1 - u), 0.5 * (u - 1)) + 4 * (u - 3).clamp(min=0),
}


def log_probabilities():
    """Everyday ones, ones that differ from 0 by e^-94 to e^6, and the ends."""
    rng = torch.Generator().manual_seed(0)
    wide = -torch.exp(torch.linspace(-94, 6, 4001))
    everyday = -8 * torch.rand(4000, generator=rng)
    return torch.cat([everyday, wide, torch.tensor([0.0, -1e-45, -700.0, -1e30, -torch.inf])])


def table_of(kind, delta):
    return table.table_of(divergence(kind), delta, torch.device("cpu"))


# All pairs; every day one in three, so that each divergence and each radius is among them.
PAIRS = [
    pytest.param(name, delta, marks=[] if (i + j) % 3 == 0 else [pytest.mark.slow])
    for i, delta in enumerate(RADII)
    for j, name in enumerate(NAMES)
]


@pytest.mark.parametrize(("name", "delta"), PAIRS)
def test_a_table_has_what_the_solver_finds(name, delta):
    log_p = log_probabilities()
    solved, looked_up = band_bounds(log_p.double(), name, delta), table_of(name, delta)
    if looked_up is None:  # far from everyday radii, or near the largest divergence that there is
        assert not 1e-3 <= delta <= 0.2
        found = band_bounds(log_p, name, delta)
    else:  # of those that have closed forms, too
        low, high = (x.float() for x in looked_up.look_up(log_p))
        found = Bounds(low.clamp(max=0), torch.minimum(high.clamp(min=0), -log_p))
    assert found.log_low.dtype == found.log_high.dtype == torch.float32
    assert ((found.log_low <= 0) & (found.log_high >= 0) & (found.log_high <= -log_p)).all()
    for a, b in ((found.log_low, solved.log_low), (found.log_high, solved.log_high)):
        # r is 0 in float32 from -104 on; below e^-300 the solver continues by a power law, and so does the table
        torch.testing.assert_close(a.clamp(min=-500), b.clamp(min=-500).float(), rtol=5e-7, atol=1e-45)


@pytest.mark.parametrize("name", KINKED)
@pytest.mark.parametrize("delta", [1e-4, 0.05, 1.0])
def test_a_generator_with_kinks_is_bisected(name, delta):
    f = KINKED[name]
    log_p = -8 * torch.rand(2000, generator=torch.Generator().manual_seed(1))
    p = log_p.double().exp()

    def inside(r):
        return p * f(r) + (1 - p) * f((1 - r * p) / (1 - p)) <= delta

    ends = []
    for far in (torch.zeros_like(p), 1 / p):
        near = torch.ones_like(p)
        for _ in range(64):
            middle = 0.5 * (near + far)
            near, far = torch.where(inside(middle), middle, near), torch.where(inside(middle), far, middle)
        ends.append(near.log())
    bounds = band_bounds(log_p, Divergence(name, f, kinks=True), delta)
    reachable = ends[0] > -20
    torch.testing.assert_close(bounds.log_low[reachable].double(), ends[0][reachable], rtol=3e-7, atol=1e-8)
    torch.testing.assert_close(bounds.log_high.double(), ends[1], rtol=3e-7, atol=1e-8)


@pytest.mark.parametrize(("name", "delta"), [("mixed", 1e-3), ("flat", 0.05)])
def test_a_table_that_does_not_fit_is_not_used(name, delta):
    """Kinks that nobody declared are seen in eager float32: there the bounds are bisected."""
    silent, declared = Divergence(name, KINKED[name]), Divergence(name, KINKED[name], kinks=True)
    assert table_of(silent, delta) is None
    log_p = log_probabilities()[::20]
    found, bisected = band_bounds(log_p, silent, delta), band_bounds(log_p, declared, delta)
    assert torch.equal(found.log_low, bisected.log_low)
    assert torch.equal(found.log_high, bisected.log_high)


@pytest.mark.parametrize("seed", range(6))
def test_a_table_that_fits_is_right_where_kinks_are_too_small_to_be_seen(seed):
    rng = random.Random(seed)
    kink, weight, delta = math.exp(rng.uniform(-3, 2)), 10 ** rng.uniform(-7, -3), 10 ** rng.uniform(-3, -0.5)

    def f(u):
        return (u - 1) ** 2 + weight * (u - kink).clamp(min=0) - weight * max(1 - kink, 0)

    silent, declared, log_p = Divergence("a", f), Divergence("a", f, kinks=True), log_probabilities()[::8]
    looked_up, bisected = band_bounds(log_p, silent, delta), band_bounds(log_p.double(), declared, delta)
    torch.testing.assert_close(looked_up.log_high.double(), bisected.log_high, rtol=2e-7, atol=1e-45)
    far = bisected.log_low > -140  # else r is 0 in float32
    torch.testing.assert_close(looked_up.log_low[far].double(), bisected.log_low[far], rtol=2e-7, atol=1e-45)


def test_a_linear_part_does_not_keep_a_generator_from_its_table():
    shifted = Divergence("shifted", lambda u: (u - 1) ** 2 + 3 * (u - 1))
    assert table_of(shifted, 0.05) is not None
    log_p = log_probabilities()[::20]
    found, closed = band_bounds(log_p, shifted, 0.05), band_bounds(log_p, "chi2", 0.05)
    torch.testing.assert_close(found.log_high, closed.log_high, rtol=5e-7, atol=1e-45)


def test_a_table_is_made_once_per_radius():
    kind = Divergence("mine", lambda u: u - 1 - torch.log(u))
    misses = table.table_of.cache_info().misses
    for delta in (0.05, 0.05, 0.06, 0.05):
        band_bounds(torch.tensor([-1.0]), kind, delta)
    assert table.table_of.cache_info().misses == misses + 2


@pytest.mark.parametrize("name", ["kl", "reverse_kl"])
def test_bounds_have_the_same_bits_whenever_and_after_whatever_a_radius_is_used(name):
    """A run that is resumed has another history of radii than one that went on."""
    log_p = -9 * torch.rand(200_000, generator=torch.Generator().manual_seed(2))
    results = []
    for before in ((), (0.07, 0.0701), (0.05, 0.05), (0.004, 0.3, 0.0625, 0.03125)):
        table.table_of.cache_clear()
        table._panel.cache_clear()
        for delta in before:
            band_bounds(log_p[:10], name, delta)
        results += [band_bounds(log_p, name, 0.05) for _ in range(3)]
    for bounds in results[1:]:
        assert torch.equal(bounds.log_low, results[0].log_low)
        assert torch.equal(bounds.log_high, results[0].log_high)


@pytest.fixture
def solved(monkeypatch):
    """The calls of the solver."""
    calls, solve = [], table.solve_lower
    monkeypatch.setattr(table, "solve_lower", lambda *inputs: calls.append(inputs) or solve(*inputs))
    return calls


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "jensen_shannon", "own"])
def test_a_radius_that_moves_solves_nothing(name, solved):
    kind = Divergence("mine", lambda u: (u - 1) ** 2 / (u + 1)) if name == "own" else name
    log_p = log_probabilities()[::50]
    table.table_of.cache_clear()
    table._panel.cache_clear()
    band_bounds(log_p, kind, 0.05)
    solved.clear()
    for i in range(20):
        band_bounds(log_p, kind, 0.032 + 0.0015 * i)
    assert not solved
    band_bounds(log_p, kind, 0.063)
    assert solved  # another octave


@pytest.mark.parametrize("ends", [(0.01, 0.2), (1e-3, 0.02)])
@pytest.mark.parametrize("name", ["reverse_kl", "jensen_shannon", "own"])
def test_a_radius_of_each_token_is_looked_up(name, ends, solved):
    kind = Divergence("mine", lambda u: (u - 1) ** 2 / (u + 1)) if name == "own" else name
    log_p, rng = log_probabilities(), torch.Generator().manual_seed(3)
    radii = ends[0] * (ends[1] / ends[0]) ** torch.rand(log_p.shape, dtype=torch.float64, generator=rng)
    radii[:3] = torch.tensor([1 / 64, 1 / 128, ends[1]])  # where octaves meet
    band_bounds(log_p[:10], kind, radii[:10])
    band_bounds(log_p, kind, radii)
    solved.clear()
    found, expected = band_bounds(log_p, kind, radii), band_bounds(log_p.double(), kind, radii)
    assert not solved
    for a, b in ((found.log_low, expected.log_low), (found.log_high, expected.log_high)):
        torch.testing.assert_close(a.clamp(min=-140), b.clamp(min=-140).float(), rtol=3e-7, atol=1e-45)
    rows = band_bounds(log_p[:6, None], kind, radii[None, :4])
    assert rows.log_low.shape == (6, 4)
    assert torch.equal(rows.log_low[2, 1], band_bounds(log_p[2], kind, radii[1]).log_low)


def test_radii_too_far_apart_for_tables_are_solved(solved):
    log_p, radii = log_probabilities()[::100], torch.logspace(-7, 1, 81, dtype=torch.float64)
    found, expected = band_bounds(log_p, "reverse_kl", radii), band_bounds(log_p.double(), "reverse_kl", radii)
    assert not solved
    torch.testing.assert_close(found.log_high.double(), expected.log_high, rtol=3e-7, atol=1e-45)
    nan = band_bounds(torch.tensor([torch.nan, -1.0]), "reverse_kl", torch.tensor([0.05, 0.06], dtype=torch.float64))
    assert nan.log_low.isnan().tolist() == nan.log_high.isnan().tolist() == [True, False]


def test_float64_is_computed_on_the_cpu_where_a_device_has_none():
    for name, expected in (("mps", "cpu"), ("cpu", "cpu"), ("cuda", "cuda")):
        x = types.SimpleNamespace(device=torch.device(name))
        assert numerics.working_device(x) == torch.device(expected)


def test_bounds_of_a_table_at_the_ends_and_in_half_precision():
    log_p = torch.tensor([0.0, -torch.inf, torch.nan, -600.0, 1e-6])
    found, solved = band_bounds(log_p, "kl", 0.05), band_bounds(log_p.double(), "kl", 0.05)
    exact = Bounds(solved.log_low.float(), solved.log_high.float())
    torch.testing.assert_close(found.log_low.clamp(min=-500), exact.log_low.clamp(min=-500), equal_nan=True)
    torch.testing.assert_close(found.log_high, exact.log_high, equal_nan=True)
    assert found.contains(torch.zeros(5)).tolist() == [True, True, False, True, True]  # where nothing moved
    half = log_probabilities()[::20].to(torch.bfloat16)
    assert torch.equal(band_bounds(half).log_high, band_bounds(half.float()).log_high)


def test_no_bound_depends_on_its_neighbours():
    log_p = log_probabilities()
    together = band_bounds(log_p, "reverse_kl", 0.05)
    for i in range(0, len(log_p), 500):
        alone = band_bounds(log_p[i], "reverse_kl", 0.05)
        assert alone.log_low == together.log_low[i]
        assert alone.log_high == together.log_high[i]
    turned = band_bounds(log_p[:8000].view(80, 100).T, "reverse_kl", 0.05)
    assert torch.equal(turned.log_high.T.flatten(), together.log_high[:8000])


def test_nan_is_nan_on_both_sides():
    bounds = band_bounds(torch.tensor([torch.nan, -1.0]), "jensen_shannon", 0.05)
    assert bounds.log_low.isnan().tolist() == bounds.log_high.isnan().tolist() == [True, False]


# ---- what a fresh pair of eyes found


class Unhashable:
    """A generator with state that is compared by value."""

    __hash__ = None

    def __call__(self, u):
        return (u - 1) ** 2


def test_a_generator_need_not_be_hashable():
    log_p = torch.tensor([-2.0])
    mine = band_bounds(log_p, Divergence("mine", Unhashable()), 0.05)
    torch.testing.assert_close(mine.log_high, band_bounds(log_p, "chi2", 0.05).log_high)


def test_what_is_made_once_is_made_on_the_cpu():
    kind = Divergence("mine", lambda u: (u - 1) ** 2)
    with torch.device("meta"):
        log_p = torch.full((1,), -2.0, device="cpu")
        first = band_bounds(log_p, kind, 0.05)
    assert torch.equal(first.log_high, band_bounds(log_p, kind, 0.05).log_high)


def in_fake_mode(call, x):
    with FakeTensorMode() as mode:
        return call(mode.from_tensor(x))


def on_the_meta_device(call, x):
    with torch.device("meta"):
        return call(x.to("meta"))


def in_inference_mode(call, x):
    with torch.inference_mode():
        return call(x)


MODES = {
    "fake": in_fake_mode,
    "meta": on_the_meta_device,
    "inference": in_inference_mode,
    "functionalize": lambda call, x: torch.func.functionalize(call)(x),
    "make_fx fake": lambda call, x: make_fx(call, tracing_mode="fake")(x)(x),
    "vmap": lambda call, x: torch.func.vmap(call)(x),
    "grad": lambda call, x: torch.func.grad(lambda y: (call(y) * y).sum())(x),
}


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(divergences, "_REGISTRY", dict(divergences._REGISTRY))


def squared():
    """A divergence of which nothing is known yet, under its name."""
    kind = divergences._REGISTRY["mine"] = Divergence("mine", lambda u: (u - 1) ** 2)
    return kind


def by_number():
    kind = squared()
    return lambda x: band_bounds(x, kind)


def by_tensor():
    kind = squared()
    return lambda x: band_bounds(x, kind, 0.05 + 0 * x)


def made_inside():
    made = []

    def call(x):
        made[:] = made or [squared()]
        return band_bounds(x, made[0])

    return call


LOG_P = torch.tensor([-1.0, -2.0, -0.3])


@functools.cache
def in_no_mode(fresh):
    return fresh()(LOG_P).log_low


FRESH = [by_number, by_tensor, made_inside]


@pytest.mark.parametrize("fresh", FRESH)
@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.slow] if i % 2 else []) for i, mode in enumerate(MODES)]
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_nothing_made_under_a_mode_of_torch_is_kept(mode, fresh):
    """Neither a fake tensor, which would break every call after it, nor one of inference mode."""
    expected, bounds = in_no_mode(fresh), fresh()
    inside = MODES[mode](lambda x: bounds(x).log_low, LOG_P)
    assert inside.shape == LOG_P.shape
    if mode.startswith("make_fx"):
        torch.testing.assert_close(inside, expected)
    found = bounds(LOG_P.clone().requires_grad_()).log_low
    assert type(found) is torch.Tensor
    assert not found.is_inference()
    assert torch.equal(found, expected)


def test_a_few_tables_are_kept():
    assert table.table_of.cache_info().maxsize == 64


@pytest.mark.slow
def test_an_exported_graph_knows_its_divergence_by_name(tmp_path):
    class Module(torch.nn.Module):
        def __init__(self, divergence):
            super().__init__()
            self.divergence = divergence

        def forward(self, log_p):
            return band_bounds(log_p, self.divergence, 0.05).log_high

    log_p = torch.linspace(-5, -0.1, 7)
    program = torch.export.export(Module("jensen_shannon"), (log_p,), strict=False)
    graphs = [str(module.graph) for module in program.graph_module.modules() if hasattr(module, "graph")]
    assert any("jensen_shannon" in graph for graph in graphs)
    assert torch.equal(program.module()(log_p), band_bounds(log_p, "jensen_shannon", 0.05).log_high)
    with pytest.raises(ValueError, match=r"divergence must be one of .* got 'lost'"):
        torch.ops.bandpo.solve(log_p, torch.tensor(0.05), "lost")
    # Another process must have imported the operator.
    path, expected = tmp_path / "bounds.pt2", program.module()(log_p)[3].item()
    torch.export.save(program, path)
    code = "import bandpo.band, sys, torch; graph = torch.export.load(sys.argv[1]).module()"
    code += "; print(graph(torch.linspace(-5, -0.1, 7))[3].item())"
    done = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True)
    assert float(done.stdout) == expected


def test_two_divergences_of_one_name_are_told_apart():
    log_p = torch.linspace(-5, -0.1, 7)
    one, other = (Divergence("mine", f) for f in (lambda u: (u - 1) ** 2, lambda u: 4 * (u - 1) ** 2))
    for _ in range(2):
        for kind, delta in ((one, 0.05), (other, 0.0125)):
            torch.testing.assert_close(
                band_bounds(log_p, kind, 0.05).log_high, band_bounds(log_p, "chi2", delta).log_high
            )


def test_a_compiled_graph_takes_registered_divergences_only():
    log_p, kind = torch.linspace(-5, -0.1, 7), Divergence("mine", lambda u: (u - 1) ** 2)
    graph = torch.compile(lambda x: band_bounds(x, kind, 0.05).log_high, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"'mine' is an unregistered Divergence; call bandpo\.band\.register"):
        graph(log_p)
    register_divergence(kind)
    torch._dynamo.reset()
    torch.testing.assert_close(graph(log_p), band_bounds(log_p, "chi2", 0.05).log_high)


def test_the_operator_of_graphs_says_beforehand_what_it_gives():
    log_p, radii = torch.linspace(-5, -0.1, 7)[:, None], torch.tensor([0.01, 0.05])
    torch.library.opcheck(torch.ops.bandpo.solve.default, (log_p, radii, "jensen_shannon"))


FAR_KINKS = Divergence(
    "far kinks",
    lambda u: 0.1 * (u - 1) ** 2 / (u + 1) + 5 * (0.02 - u).clamp(min=0) + 5 * (u - 3).clamp(min=0),
    kinks=True,
)


@pytest.mark.slow
def test_bounds_at_kinks_are_bisected_where_the_radius_is_a_tensor():
    """Secants left one of these at a divergence of 0.06 for 0.05."""
    log_p = torch.cat([torch.linspace(-9, -0.01, 3000), torch.tensor([-0.8881144523620605])])
    register_divergence(FAR_KINKS)
    compiled = torch.compile(lambda x, delta: band_bounds(x, FAR_KINKS, delta), backend="eager", fullgraph=True)
    for kind in (FAR_KINKS, *(Divergence(name, f, kinks=True) for name, f in KINKED.items())):
        number = band_bounds(log_p, kind, 0.05)
        for found in (
            band_bounds(log_p, kind, torch.tensor(0.05, dtype=torch.float64)),
            band_bounds(log_p, kind, torch.full_like(log_p, 0.05, dtype=torch.float64)),
            *([compiled(log_p, torch.full_like(log_p, 0.05, dtype=torch.float64))] if kind is FAR_KINKS else []),
        ):
            torch.testing.assert_close(found.log_low, number.log_low, rtol=3e-7, atol=1e-8)
            torch.testing.assert_close(found.log_high, number.log_high, rtol=3e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("kink", "weight"),
    [
        (1.0001, 0.03),
        (1.0003, 3.0),
        (1.001, 0.03),
        (1.3, 3.0),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in ((1.0001, 3.0), (1.0003, 0.03), (1.001, 3.0), (1.3, 0.03))
        ),
    ],
)
def test_bounds_at_a_kink_close_to_1_are_on_the_edge_of_the_ball(kink, weight):
    """The inverse of f is a power from its knots on down to 1; a kink in there left g at twice the radius."""
    kind = Divergence("close", lambda u: (u.sqrt() - 1) ** 2 + weight * (u - kink).clamp(min=0), kinks=True)
    log_p = torch.linspace(-3, -0.01, 300, dtype=torch.float64)
    for delta in (1.7e-5, 1e-3, 0.05):
        for radius in (delta, torch.tensor(delta, dtype=torch.float64)):
            bounds = band_bounds(log_p, kind, radius)
            for side in (bounds.log_low, bounds.log_high):
                g = divergence_at(side, log_p, kind)
                inside = (side > -torch.inf) & (side < -log_p)  # not saturated
                torch.testing.assert_close(g[inside], torch.full_like(g[inside], delta), rtol=1e-6, atol=1e-12)


def test_float64_bounds_at_kinks_are_bisected_too():
    kind = Divergence("mixed", KINKED["mixed"], kinks=True)
    log_p = -8 * torch.rand(500, generator=torch.Generator().manual_seed(1))
    single, double = band_bounds(log_p, kind, 1e-3), band_bounds(log_p.double(), kind, 1e-3)
    torch.testing.assert_close(single.log_high, double.log_high.float(), rtol=3e-7, atol=1e-8)
