"""The power divergences against 100-digit arithmetic, the divergences that they contain, and the table."""

from __future__ import annotations

import math

import pytest
import torch

import bandpo
from bandpo import band_bounds
from bandpo.band import divergence_at
from bandpo.testing import check_divergence
from oracle import exact_bounds_of, power
from research.rules.cressie_read import cressie_read

ORDERS = [-3.0, -1 + 2**-20, -0.75, 2**-20, 0.5]
POINTS = torch.tensor([1e-30, 1e-6, 1e-3, 0.08, 0.5, 0.7, 0.95, 1 - 1e-6]).log()
GRID = torch.cat([-torch.logspace(-7, 1.85, 60, dtype=torch.float64), torch.tensor([-1e-20], dtype=torch.float64)])


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(bandpo.band.divergences, "_REGISTRY", dict(bandpo.band.divergences._REGISTRY))


def relative_error(got, exact):
    if got == exact or (math.isinf(got) and abs(exact) > 1e300):
        return 0.0
    return math.inf if math.isinf(got) else float(abs((got - exact) / exact))


@pytest.mark.parametrize("delta", [1e-8, 0.05, 1.0])
@pytest.mark.parametrize("order", ORDERS)
def test_bounds_agree_with_the_definition_at_100_digits(order, delta):
    kind = cressie_read(order)
    single, double = (band_bounds(POINTS.to(dtype), kind, delta) for dtype in (torch.float32, torch.float64))
    for i, x in enumerate(POINTS.tolist()):
        exact = exact_bounds_of(power(order), x, delta)
        for bounds, tolerance in ((single, 1.2e-7), (double, 1e-14)):
            low, high = bounds.log_low[i].item(), bounds.log_high[i].item()
            beyond = low < -1e38 and exact.log_low < -1e38  # of float32
            assert beyond or relative_error(low, exact.log_low) <= tolerance, f"lower at log p = {x}: {low}"
            assert relative_error(high, exact.log_high) <= tolerance, f"upper at log p = {x}: {high}"


@pytest.mark.parametrize("delta", [1e-8, 1e-4, 0.05, 0.4, 1.0, 12.0])
@pytest.mark.parametrize("order", [0.5, 3.0, -0.7])
def test_a_table_has_what_the_solver_finds(order, delta):
    kind = cressie_read(order)
    log_p = torch.cat([GRID.float(), torch.tensor([0.0, -1e-45, -700.0, -1e30, -torch.inf])])
    looked_up, solved = band_bounds(log_p, kind, delta), band_bounds(log_p.double(), kind, delta)
    for a, b in ((looked_up.log_low, solved.log_low), (looked_up.log_high, solved.log_high)):
        torch.testing.assert_close(a.clamp(min=-1000), b.clamp(min=-1000).float(), rtol=5e-7, atol=1e-45)


@pytest.mark.parametrize("order", [-1.5, -0.5, 2.0])
def test_power_divergences_pass_the_check(order):
    check_divergence(cressie_read(order))


@pytest.mark.parametrize(
    ("order", "name", "factor"),
    [(1, "chi2", 2), (-2, "neyman_chi2", 2), (-0.5, "hellinger", 0.25), (0, "reverse_kl", 1), (-1, "kl", 1)],
)
def test_a_power_divergence_is_a_named_one_up_to_a_factor_on_the_radius(order, name, factor):
    log_p = GRID
    solved, closed = band_bounds(log_p, cressie_read(order), 0.03), band_bounds(log_p, name, 0.03 * factor)
    edge = (divergence_at(torch.full_like(log_p, -torch.inf), log_p, name) / (0.03 * factor) - 1).abs() < 1e-9
    torch.testing.assert_close(solved.log_low[~edge], closed.log_low[~edge], rtol=1e-13, atol=0)
    torch.testing.assert_close(solved.log_high, closed.log_high, rtol=1e-13, atol=0)


@pytest.mark.parametrize("order", [-1.0, 0.0])
def test_power_divergences_are_continuous_across_both_kinds_of_kl(order):
    log_p = GRID
    at = band_bounds(log_p, cressie_read(order))
    for step in (1e-3, 1e-9, 1e-15):
        for side in (-step, step):
            near = band_bounds(log_p, cressie_read(order + side))
            clear = at.log_low > -40  # further down, the ratio is 0 in any float, and the tail depends on the order
            torch.testing.assert_close(near.log_low[clear], at.log_low[clear], rtol=100 * step, atol=1e-14)
            torch.testing.assert_close(near.log_high, at.log_high, rtol=100 * step, atol=1e-14)


def test_a_power_divergence_goes_to_yaml_and_back():
    region = bandpo.Band(bandpo.band.register_divergence(cressie_read(-0.75)), 0.1)
    assert region.to_config()["divergence"] == "cressie_read(-0.75)"
    assert bandpo.trust_regions.trust_region(region.to_config()) == region
