"""The looked-up bounds of float32 log-probabilities against the solved ones of float64."""

import functools
import math
import random
import subprocess
import sys
import types

import pytest
import torch
from regions import sides
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from bandpo import Bounds, band_bounds, numerics
from bandpo.band import Divergence, divergence, divergence_at, divergences, register_divergence, table
from oracle import bisected

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
    solved, looked_up = sides(band_bounds(log_p.double(), name, delta)), table_of(name, delta)
    if looked_up is None:  # far from everyday radii, or near the largest divergence that there is
        assert not 1e-3 <= delta <= 0.2
        found = band_bounds(log_p, name, delta)
    else:  # of those that have closed forms, too
        low, high = (x.float() for x in looked_up.look_up(log_p))
        found = Bounds(low.clamp(max=0), torch.minimum(high.clamp(min=0), -log_p))
    assert found.log_low.dtype == found.log_high.dtype == torch.float32
    assert ((found.log_low <= 0) & (found.log_high >= 0) & (found.log_high <= -log_p)).all()
    # r is 0 in float32 from -104 on; below e^-300 the solver continues by a power law, and so does the table
    wanted = solved.clamp(min=-500).float()
    torch.testing.assert_close(sides(found).clamp(min=-500), wanted, rtol=5e-7, atol=1e-45)


@pytest.mark.parametrize("name", KINKED)
@pytest.mark.parametrize("delta", [1e-4, 0.05, 1.0])
def test_a_generator_with_kinks_is_bisected(name, delta):
    f = KINKED[name]
    log_p = -8 * torch.rand(2000, generator=torch.Generator().manual_seed(1))
    ends = bisected(f, log_p.double().exp(), delta).log()
    for x in (log_p, log_p.double()):
        found = sides(band_bounds(x, Divergence(name, f, kinks=True), delta))
        reachable = ends > torch.tensor([[-20.0], [-1.0]])
        torch.testing.assert_close(found[reachable].double(), ends[reachable], rtol=3e-7, atol=1e-8)


@pytest.mark.parametrize(("name", "delta"), [("mixed", 1e-3), ("flat", 0.05)])
def test_a_table_that_does_not_fit_is_not_used(name, delta):
    """Kinks that nobody declared are seen in eager float32: there the bounds are bisected."""
    silent, declared = Divergence(name, KINKED[name]), Divergence(name, KINKED[name], kinks=True)
    log_p = log_probabilities()[::20]
    assert table_of(silent, delta) is None
    assert torch.equal(sides(band_bounds(log_p, silent, delta)), sides(band_bounds(log_p, declared, delta)))


@pytest.mark.parametrize("seed", range(6))
def test_a_table_that_fits_is_right_where_kinks_are_too_small_to_be_seen(seed):
    rng = random.Random(seed)
    kink, weight, delta = math.exp(rng.uniform(-3, 2)), 10 ** rng.uniform(-7, -3), 10 ** rng.uniform(-3, -0.5)

    def f(u):
        return (u - 1) ** 2 + weight * (u - kink).clamp(min=0) - weight * max(1 - kink, 0)

    log_p = log_probabilities()[::8]
    looked_up = sides(band_bounds(log_p, Divergence("a", f), delta)).double()
    bisected = sides(band_bounds(log_p.double(), Divergence("a", f, kinks=True), delta))
    far = bisected > -140  # else r is 0 in float32
    torch.testing.assert_close(looked_up[far], bisected[far], rtol=2e-7, atol=1e-45)


@pytest.mark.parametrize("name", ["kl", "reverse_kl"])
def test_bounds_have_the_same_bits_whenever_and_after_whatever_a_radius_is_used(name):
    """A run that is resumed has another history of radii than one that went on."""
    log_p, results = -9 * torch.rand(200_000, generator=torch.Generator().manual_seed(2)), []
    for before in ((), (0.07, 0.0701), (0.05, 0.05), (0.004, 0.3, 0.0625, 0.03125)):
        forget_tables()
        for delta in before:
            band_bounds(log_p[:10], name, delta)
        results += [sides(band_bounds(log_p, name, 0.05)) for _ in range(3)]
    assert all(torch.equal(each, results[0]) for each in results[1:])


def forget_tables():
    table.table_of.cache_clear()
    table._panel.cache_clear()


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
    forget_tables()
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
    for part in (slice(10), slice(None)):
        band_bounds(log_p[part], kind, radii[part])
    solved.clear()
    found, expected = (sides(band_bounds(x, kind, radii)).clamp(min=-140) for x in (log_p, log_p.double()))
    assert not solved
    torch.testing.assert_close(found, expected.float(), rtol=3e-7, atol=1e-45)
    rows = band_bounds(log_p[:6, None], kind, radii[None, :4]).log_low
    assert rows.shape == (6, 4)
    assert torch.equal(rows[2, 1], band_bounds(log_p[2], kind, radii[1]).log_low)


def test_radii_too_far_apart_for_tables_are_solved(solved):
    log_p, radii = log_probabilities()[::100], torch.logspace(-7, 1, 81, dtype=torch.float64)
    found, expected = (band_bounds(x, "reverse_kl", radii).log_high.double() for x in (log_p, log_p.double()))
    assert not solved
    torch.testing.assert_close(found, expected, rtol=3e-7, atol=1e-45)


@pytest.mark.parametrize(("name", "expected"), [("mps", "cpu"), ("cpu", "cpu"), ("cuda", "cuda")])
def test_float64_is_computed_on_the_cpu_where_a_device_has_none(name, expected):
    x = types.SimpleNamespace(device=torch.device(name))
    assert numerics.working_device(x) == torch.device(expected)


def test_bounds_of_a_table_at_the_ends():
    log_p = torch.tensor([0.0, -torch.inf, torch.nan, -600.0, 1e-6])
    found, exact = band_bounds(log_p, "kl", 0.05), sides(band_bounds(log_p.double(), "kl", 0.05)).float()
    torch.testing.assert_close(sides(found).clamp(min=-500), exact.clamp(min=-500), equal_nan=True)
    assert found.contains(torch.zeros(5)).tolist() == [True, True, False, True, True]  # where nothing moved


# ---- what a fresh pair of eyes found


class Unhashable:
    """A generator with state that is compared by value; its linear part keeps it from no table."""

    __hash__ = None

    def __call__(self, u):
        return (u - 1) ** 2 + 3 * (u - 1)


def test_a_generator_need_not_be_hashable():
    mine, log_p = Divergence("mine", Unhashable()), log_probabilities()[::20]
    assert table_of(mine, 0.05) is not None
    found, closed = band_bounds(log_p, mine, 0.05), band_bounds(log_p, "chi2", 0.05)
    torch.testing.assert_close(found.log_high, closed.log_high, rtol=5e-7, atol=1e-45)


def in_fake_mode(call, x):
    with FakeTensorMode() as mode:
        return call(mode.from_tensor(x))


def within(mode, call, x):
    with mode:
        return call(x)


MODES = {
    "fake": in_fake_mode,
    "meta": lambda call, x: within(torch.device("meta"), call, x.to("meta")),
    "meta, with tensors of the CPU": lambda call, x: within(torch.device("meta"), call, x),
    "inference": lambda call, x: within(torch.inference_mode(), call, x),
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
    return functools.partial(band_bounds, divergence=squared())


def by_tensor():
    kind = squared()
    return lambda x: band_bounds(x, kind, 0.05 + 0 * x)


def made_inside():
    made = functools.cache(squared)
    return lambda x: band_bounds(x, made())


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
    if mode.startswith(("make_fx", "meta, with")):
        torch.testing.assert_close(inside, expected)
    found = bounds(LOG_P.clone().requires_grad_()).log_low
    assert type(found) is torch.Tensor
    assert not found.is_inference()
    assert torch.equal(found, expected)


def test_a_few_tables_are_kept_and_made_once_per_radius():
    kind = Divergence("mine", lambda u: u - 1 - torch.log(u))
    before = table.table_of.cache_info()
    for delta in (0.05, 0.05, 0.06, 0.05):
        band_bounds(torch.tensor([-1.0]), kind, delta)
    after = table.table_of.cache_info()
    assert (after.misses - before.misses, after.maxsize) == (2, 64)


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
    for kind, delta in ((one, 0.05), (other, 0.0125)) * 2:
        found, expected = band_bounds(log_p, kind, 0.05), band_bounds(log_p, "chi2", delta)
        torch.testing.assert_close(found.log_high, expected.log_high)


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
@pytest.mark.parametrize("kind", [FAR_KINKS, *(Divergence(name, f, kinks=True) for name, f in KINKED.items())], ids=str)
def test_bounds_at_kinks_are_bisected_where_the_radius_is_a_tensor(kind):
    """Secants left one of these at a divergence of 0.06 for 0.05."""
    log_p = torch.cat([torch.linspace(-9, -0.01, 3000), torch.tensor([-0.8881144523620605])])
    register_divergence(kind)
    compiled = torch.compile(lambda x, delta: band_bounds(x, kind, delta), backend="eager", fullgraph=True)
    number, radius = sides(band_bounds(log_p, kind, 0.05)), torch.tensor(0.05, dtype=torch.float64)
    for bounds_of, radii in (
        (band_bounds, radius),
        (band_bounds, radius.expand(3001)),
        (compiled, radius.expand(3001)),
    ):
        named = () if bounds_of is compiled else (kind,)
        torch.testing.assert_close(sides(bounds_of(log_p, *named, radii)), number, rtol=3e-7, atol=1e-8)


@pytest.mark.parametrize("delta", [1.7e-5, 1e-3, 0.05])
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
def test_bounds_at_a_kink_close_to_1_are_on_the_edge_of_the_ball(kink, weight, delta):
    """The inverse of f is a power from its knots on down to 1; a kink in there left g at twice the radius."""
    kind = Divergence("close", lambda u: (u.sqrt() - 1) ** 2 + weight * (u - kink).clamp(min=0), kinks=True)
    log_p = torch.linspace(-3, -0.01, 300, dtype=torch.float64)
    for radius in (delta, torch.tensor(delta, dtype=torch.float64)):
        edges = sides(band_bounds(log_p, kind, radius))
        g = divergence_at(edges, log_p, kind)[(edges > -torch.inf) & (edges < -log_p)]  # not saturated
        torch.testing.assert_close(g, torch.full_like(g, delta), rtol=1e-6, atol=1e-12)
