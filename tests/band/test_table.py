"""The looked-up bounds of float32 log-probabilities against the solved ones of float64."""

import copy
import functools
import math
import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import bandpo
from bandpo import (
    DCPO,
    RIPO,
    Band,
    Bounds,
    Capped,
    Clip,
    Decaying,
    Divergence,
    Region,
    Relaxed,
    Table,
    band_bounds,
    divergence_at,
)
from bandpo.band import dispatch
from bandpo.band.dispatch import table_of
from bandpo.band.divergences import divergence

NAMES = ["kl", "reverse_kl", "jensen_shannon", "cressie_read(0.5)", "cressie_read(3)", "cressie_read(-0.7)"]
RADII = [1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.3, 0.4, 0.6, 1.0, 10.0, 12.0, 30.0]
CPU = torch.device("cpu")
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


# All pairs; every day one in three, so that each divergence and each radius is among them.
PAIRS = [
    pytest.param(name, delta, marks=[] if (i + j) % 3 == 0 else [pytest.mark.slow])
    for i, delta in enumerate(RADII)
    for j, name in enumerate(NAMES)
]


@pytest.mark.parametrize(("name", "delta"), PAIRS)
def test_a_table_has_what_the_solver_finds(name, delta):
    log_p = log_probabilities()
    found, solved = band_bounds(log_p, name, delta), band_bounds(log_p.double(), name, delta)
    assert table_of(divergence(name), delta, CPU).fits
    for a, b in ((found.log_low, solved.log_low), (found.log_high, solved.log_high)):
        # r is 0 in float32 from -104 on; below e^-300 the solver continues by a power law, and so does the table
        torch.testing.assert_close(a.clamp(min=-1000), b.clamp(min=-1000).float(), rtol=5e-7, atol=1e-45)


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
    bounds = band_bounds(log_p, Divergence(name, f), delta)
    reachable = ends[0] > -20
    torch.testing.assert_close(bounds.log_low[reachable].double(), ends[0][reachable], rtol=3e-7, atol=1e-8)
    torch.testing.assert_close(bounds.log_high.double(), ends[1], rtol=3e-7, atol=1e-8)


def test_kinks_between_the_nodes_are_noticed():
    """All but "lines" and "hinge", whose kinks are of no consequence at some radius, have a table that does not fit."""
    assert not table_of(Divergence("mixed", KINKED["mixed"]), 1e-3, CPU).fits
    assert not table_of(Divergence("flat", KINKED["flat"]), 0.05, CPU).fits
    assert table_of(Divergence("smooth", lambda u: (u - 1) ** 2), 0.05, CPU).fits


def test_a_linear_part_does_not_keep_a_generator_from_its_table():
    shifted = Divergence("shifted", lambda u: (u - 1) ** 2 + 3 * (u - 1))
    assert table_of(shifted, 0.05, CPU).fits
    log_p = log_probabilities()[::20]
    found, closed = band_bounds(log_p, shifted, 0.05), band_bounds(log_p, "chi2", 0.05)
    torch.testing.assert_close(found.log_high, closed.log_high, rtol=5e-7, atol=1e-45)


def test_a_table_is_made_once_per_radius():
    kind = Divergence("mine", lambda u: u - 1 - torch.log(u))
    assert table_of(kind, 0.05, CPU) is table_of(kind, 0.05, CPU)
    assert table_of(kind, 0.05, CPU) is not table_of(kind, 0.06, CPU)


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


# ---- a table of any rule


@dataclass(frozen=True)
class Wavy(Region):
    """Not a rule that a table can hold: its interval is wider and narrower again while p falls."""

    kind: ClassVar[str] = "wavy"

    def bounds(self, old_logps, context=None):
        width = 0.3 + 0.1 * torch.sin(old_logps.float().clamp(min=-1e4))
        return Bounds(-width, width)


@dataclass(frozen=True)
class Runaway(Region):
    """r_high p grows while p falls."""

    kind: ClassVar[str] = "runaway"

    def bounds(self, old_logps, context=None):
        return Bounds(old_logps * 0 - 0.1, -1.5 * old_logps.clamp(min=-1e4))


TABULATED = [
    Band("kl", 0.05),
    Band("kl", 1e-6),
    Band("tv", 0.05),
    Band("chi2", 0.05),
    Band("reverse_kl", 0.05),
    Band("jensen_shannon", 0.05),
    Band(Divergence("own", lambda u: u - 1 - torch.log(u)), 0.3),
    Clip(0.2, 0.28),
    DCPO(),
    RIPO(),
    Relaxed(Band("kl", 0.05), Clip(0.2, 0.28)),
    Capped(Band("kl", 0.05), 10.0),
]


@pytest.mark.parametrize("region", TABULATED, ids=lambda region: region.label)
def test_table_is_within_what_is_proven(region):
    """Dense and random, over all of p in [e^-512, 1]; and the proof is not vacuous."""
    table = Table(region)
    assert 0 <= table.error <= table.tolerance == 5e-3
    rng = torch.Generator().manual_seed(2)
    log_p = torch.cat([-8 * torch.rand(50000, generator=rng), -torch.exp(torch.linspace(-40, 6.23, 50001))])
    looked_up, exact = table.bounds(log_p), region.bounds(log_p)
    rounding = 1e-6
    low = looked_up.log_low.exp() - exact.log_low.exp()
    high = (looked_up.log_high - exact.log_high) / (-log_p).clamp(min=1)
    assert low.abs().max() <= table.error + rounding
    assert high.abs().max() <= table.error + rounding


def test_table_at_the_ends():
    log_p = torch.tensor([0.0, -torch.inf, torch.nan, -600.0, 1e-7])
    for region in (Band("kl", 0.05), Clip(0.2, 0.28), Capped(Band("tv", 0.05), 3.0)):
        table, exact = Table(region).bounds(log_p), region.bounds(log_p)
        for a, b in ((table.log_low, exact.log_low), (table.log_high, exact.log_high)):
            torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-6, atol=1e-6)


def test_a_finer_tolerance_is_a_closer_proof():
    errors = [Table(Band("chi2", 0.05), tolerance).error for tolerance in (1e-1, 1e-2, 1e-3)]
    assert errors[0] > errors[1] > errors[2]
    with pytest.raises(ValueError, match=r"tolerance of Table must be at least 0\.00\d+ for Band"):
        Table(Band("reverse_kl", 0.05), 1e-4)
    with pytest.raises(ValueError, match=r"tolerance of Table must be a number in \[0\.0001, 1\)"):
        Table(Band("kl", 0.05), 0.0)


def test_a_table_needs_a_rule_of_the_probability_alone():
    with pytest.raises(ValueError, match=r"region of Table must depend on the old probability alone: Decaying needs"):
        Table(Decaying(Band("kl", 0.2), field="delta", end=0.02, steps=10))
    with pytest.raises(ValueError, match=r"must allow smaller tokens a wider interval .* Wavy\(\) does not at p ="):
        Table(Wavy())
    with pytest.raises(ValueError, match=r"and not more probability; Runaway\(\) does not"):
        Table(Runaway())


def test_a_table_knows_where_a_cap_holds():
    log_p = torch.linspace(-12, -0.01, 400).view(2, 200)
    region = Capped(Band("kl", 0.05), 10.0)
    looked_up, exact = Table(region).bounds(log_p).capped, region.bounds(log_p).capped
    assert (looked_up != exact).sum() <= 2  # in the cell where it begins
    assert exact.any()
    assert not exact.all()
    # There the bound is below the cap, so it is not the cap that has set it.
    inside = -torch.linspace(4, 8, 20001)
    table = Table(region).bounds(inside)
    assert not (table.capped & (table.log_high < math.log(10.0) - 1e-6)).any()


def test_a_table_is_a_value():
    table = Table(Band("kl", 0.05))
    assert table == Table(Band("kl", 0.05)) == bandpo.trust_region(table.to_config())
    assert table.to_config() == {"type": "table", "region": Band("kl", 0.05).to_config(), "tolerance": 5e-3}
    assert repr(table) == f"Table(region={Band('kl', 0.05)!r}, tolerance=0.005)"
    assert hash(table) == hash(copy.deepcopy(table))
    log_p = torch.linspace(-9, 0, 50)
    assert torch.equal(pickle.loads(pickle.dumps(table)).bounds(log_p).log_high, table.bounds(log_p).log_high)


@pytest.mark.slow
def test_a_table_compiles_to_one_graph():
    table = Table(Band("jensen_shannon", 0.05))
    compiled = torch.compile(table.bounds, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (7, 100):
        log_p = torch.linspace(-9, 0, n)
        assert torch.equal(compiled(log_p).log_high, table.bounds(log_p).log_high)
        assert torch.equal(compiled(log_p).log_low, table.bounds(log_p).log_low)


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


def squared():
    return Divergence("mine", lambda u: (u - 1) ** 2)


def by_number():
    kind = squared()
    return lambda x: band_bounds(x, kind)


def by_tensor():
    kind = squared()
    return lambda x: band_bounds(x, kind, 0.05 + 0 * x)


def by_the_table_of_kl():
    dispatch._MADE.clear()
    return lambda x: band_bounds(x, "kl")


def made_inside():
    made = []

    def call(x):
        made[:] = made or [squared(), Table(Band("kl"))]
        return band_bounds(x, made[0])

    return call


LOG_P = torch.tensor([-1.0, -2.0, -0.3])


@functools.cache
def in_no_mode(fresh):
    return fresh()(LOG_P).log_low


FRESH = [by_number, by_tensor, by_the_table_of_kl, made_inside]


@pytest.mark.parametrize("fresh", FRESH)
@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.slow] if i % 2 else []) for i, mode in enumerate(MODES)]
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_nothing_made_under_a_mode_of_torch_is_kept(mode, fresh, monkeypatch):
    """Neither a fake tensor, which would break every call after it, nor one of inference mode."""
    monkeypatch.setattr(dispatch, "_PROBES", (0.05,))  # one radius is enough to see whether this f has kinks
    expected, bounds = in_no_mode(fresh), fresh()
    inside = MODES[mode](lambda x: bounds(x).log_low, LOG_P)
    assert inside.shape == LOG_P.shape
    if mode.startswith("make_fx"):
        torch.testing.assert_close(inside, expected)
    found = bounds(LOG_P.clone().requires_grad_()).log_low
    assert type(found) is torch.Tensor
    assert not found.is_inference()
    assert torch.equal(found, expected)


def test_a_few_tables_are_kept(monkeypatch):
    monkeypatch.setattr(dispatch, "_KEPT", 4)
    kind = Divergence("mine", lambda u: (u - 1) ** 2)
    made = [table_of(kind, 0.01 * (i + 1), CPU) for i in range(6)]
    assert len(dispatch._MADE) <= 4
    assert table_of(kind, 0.06, CPU) is made[-1]


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
    with pytest.raises(ValueError, match=r"divergence 'lost' of this graph is not known in this process"):
        torch.ops.bandpo.solve(log_p, torch.tensor(0.05), "lost#3")
    # Another process need only have imported the package, even if before torch.
    path, expected = tmp_path / "bounds.pt2", program.module()(log_p)[3].item()
    torch.export.save(program, path)
    code = "import bandpo, sys, torch; graph = torch.export.load(sys.argv[1]).module()"
    code += "; print(graph(torch.linspace(-5, -0.1, 7))[3].item())"
    done = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True)
    assert float(done.stdout) == expected


def test_two_divergences_of_one_name_are_told_apart():
    log_p = torch.linspace(-5, -0.1, 7)
    one, other = (Divergence("mine", f) for f in (lambda u: (u - 1) ** 2, lambda u: 4 * (u - 1) ** 2))
    functions = [lambda x, kind=kind: band_bounds(x, kind, 0.05).log_high for kind in (one, other)]
    graphs = [torch.compile(function, backend="eager", fullgraph=True) for function in functions]
    for ways in (functions, graphs, graphs):  # both graphs are there when the first one runs again
        for way, delta in zip(ways, (0.05, 0.0125), strict=True):
            torch.testing.assert_close(way(log_p), band_bounds(log_p, "chi2", delta).log_high)


def test_the_operator_of_graphs_says_beforehand_what_it_gives():
    log_p, radii = torch.linspace(-5, -0.1, 7)[:, None], torch.tensor([0.01, 0.05])
    torch.library.opcheck(torch.ops.bandpo.solve.default, (log_p, radii, "jensen_shannon"))


FAR_KINKS = Divergence(
    "far kinks",
    lambda u: 0.1 * (u - 1) ** 2 / (u + 1) + 5 * (0.02 - u).clamp(min=0) + 5 * (u - 3).clamp(min=0),
)


@pytest.mark.slow
def test_bounds_at_kinks_are_bisected_where_the_radius_is_a_tensor():
    """Secants left one of these at a divergence of 0.06 for 0.05."""
    log_p = torch.cat([torch.linspace(-9, -0.01, 3000), torch.tensor([-0.8881144523620605])])
    compiled = torch.compile(lambda x, delta: band_bounds(x, FAR_KINKS, delta), backend="eager", fullgraph=True)
    for kind in (FAR_KINKS, *(Divergence(name, f) for name, f in KINKED.items())):
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
    kind = Divergence("close", lambda u: (u.sqrt() - 1) ** 2 + weight * (u - kink).clamp(min=0))
    log_p = torch.linspace(-3, -0.01, 300, dtype=torch.float64)
    for delta in (1.7e-5, 1e-3, 0.05):
        for radius in (delta, torch.tensor(delta, dtype=torch.float64)):
            bounds = band_bounds(log_p, kind, radius)
            for side in (bounds.log_low, bounds.log_high):
                g = divergence_at(side, log_p, kind)
                inside = (side > -torch.inf) & (side < -log_p)  # not saturated
                torch.testing.assert_close(g[inside], torch.full_like(g[inside], delta), rtol=1e-6, atol=1e-12)


def test_a_table_of_a_rule_is_one_graph_on_a_device_that_has_none_yet():
    table = Table(Band("kl", 0.05))
    log_low = torch.compile(lambda x: table.bounds(x).log_low, backend="eager", fullgraph=True)
    assert log_low(torch.zeros(3, device="meta")).device.type == "meta"


def test_float64_bounds_at_kinks_are_bisected_too():
    kind = Divergence("mixed", KINKED["mixed"])
    log_p = -8 * torch.rand(500, generator=torch.Generator().manual_seed(1))
    single, double = band_bounds(log_p, kind, 1e-3), band_bounds(log_p.double(), kind, 1e-3)
    torch.testing.assert_close(single.log_high, double.log_high.float(), rtol=3e-7, atol=1e-8)


@dataclass(frozen=True)
class Broken(Region):
    """NaN in the middle."""

    kind: ClassVar[str] = "nan_in_the_middle"

    def bounds(self, old_logps, context=None):
        width = torch.where((old_logps < -3) & (old_logps > -3.5), torch.nan, 0.1) + 0 * old_logps.clamp(min=-1e4)
        return Bounds(-width, width)


def test_a_table_of_no_clip_has_none_and_one_of_nan_is_refused():
    log_p = torch.linspace(-30, 0, 100)
    bounds = Table(Clip(1.0, torch.inf)).bounds(log_p)
    assert (bounds.log_low == -torch.inf).all()
    assert (bounds.log_high == torch.inf).all()
    with pytest.raises(ValueError, match=r"Broken\(\) does not at p = 0\.0"):
        Table(Broken())


@dataclass(frozen=True)
class Ramp(Region):
    """log r_high rises with x in half of the cell that begins at x = 1 with 64 cells an octave, and then no more."""

    kind: ClassVar[str] = "ramp"

    def bounds(self, old_logps, context=None):
        x = -old_logps.clamp(min=-1e4)
        return Bounds(0 * x - 0.1, 0.1 + (x - 1).clamp(0, 1 / 128))


def test_the_proof_counts_the_left_end_of_a_cell():
    table, x = Table(Ramp()), torch.linspace(1, 1 + 1 / 64, 1001)
    assert table._bits == 6
    real = (table.bounds(-x).log_high - Ramp().bounds(-x).log_high).abs() / x
    assert real.max() <= table.error + 1e-6
    # In a parallelogram that is twice as wide as high, the middle is half of its height off.
    assert table.error == pytest.approx(1 / 256, rel=1e-4)
