"""The looked-up bounds of float32 log-probabilities against the solved ones of float64."""

import pytest
import torch

from bandpo import Divergence, band_bounds
from bandpo.divergences import _table, divergence

NAMES = ["kl", "reverse_kl", "jensen_shannon", "cressie_read(0.5)", "cressie_read(3)", "cressie_read(-0.7)"]
RADII = [1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.3, 1.0, 10.0]
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("delta", RADII)
def test_a_table_has_what_the_solver_finds(name, delta):
    log_p = log_probabilities()
    found, solved = band_bounds(log_p, name, delta), band_bounds(log_p.double(), name, delta)
    assert _table(divergence(name), delta, CPU).fits
    for a, b in ((found.log_low, solved.log_low), (found.log_high, solved.log_high)):
        # r is 0 in float32 from -104 on; below e^-300 the solver continues by a power law, and so does the table
        torch.testing.assert_close(a.clamp(min=-1000), b.clamp(min=-1000).float(), rtol=3e-7, atol=1e-45)


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
        for _ in range(100):
            middle = 0.5 * (near + far)
            near, far = torch.where(inside(middle), middle, near), torch.where(inside(middle), far, middle)
        ends.append(near.log())
    bounds = band_bounds(log_p, Divergence(name, f), delta)
    reachable = ends[0] > -20
    torch.testing.assert_close(bounds.log_low[reachable].double(), ends[0][reachable], rtol=3e-7, atol=1e-8)
    torch.testing.assert_close(bounds.log_high.double(), ends[1], rtol=3e-7, atol=1e-8)


def test_kinks_between_the_nodes_are_noticed():
    """All but "lines" and "hinge", whose kinks are of no consequence at some radius, have a table that does not fit."""
    assert not _table(Divergence("mixed", KINKED["mixed"]), 1e-3, CPU).fits
    assert not _table(Divergence("flat", KINKED["flat"]), 0.05, CPU).fits
    assert _table(Divergence("smooth", lambda u: (u - 1) ** 2), 0.05, CPU).fits


def test_a_table_is_made_once_per_radius():
    kind = Divergence("mine", lambda u: u - 1 - torch.log(u))
    assert _table(kind, 0.05, CPU) is _table(kind, 0.05, CPU)
    assert _table(kind, 0.05, CPU) is not _table(kind, 0.06, CPU)


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
