"""The error budget of research/pages/numerics.md: 10^5 points of its sweep, its reference, and what may not matter."""

import math

import numpy as np
import pytest
import torch
from scripts import load

import bandpo
from bandpo import Bounds, band_bounds
from bandpo.band import Divergence, divergences

benchmark = load("research/measurements/numerics.py")

NAMES = benchmark.DIVERGENCES
BOTH = ("low_bound", "high_bound")


@pytest.fixture(autouse=True, scope="module")
def a_power_divergence_has_its_name():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(divergences._REGISTRY, benchmark.POWER.name, benchmark.POWER)
        yield


def measured(name, delta, dtype, parts, bounds=None):
    """The row of the eager operator, or of another in its place, over these log-probabilities."""
    return benchmark.sweep(name, delta, dtype, {"": bounds or benchmark.operator(name, "eager")}, parts)[""]


def worst(row, *columns):
    return max(float(row[column]) for column in columns)


# ---- the sweep


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_float32_bounds_are_float64_ones_rounded(name):
    """Four mantissas of every exponent, all radii, and all special points: 10^5 over all divergences."""
    some, tokens = np.concatenate(list(benchmark.single(4))), 0
    for delta in benchmark.RADII:
        row = measured(name, delta, np.float32, [benchmark.special(name, delta, np.float32), some])
        tokens += row["tokens"]
        assert worst(row, *BOTH) <= 1.25, f"delta = {delta}: {row}"
        assert worst(row, "rest_bound", "gap_bound") <= 4, f"delta = {delta}: {row}"
        if name != "reverse_kl":  # below e^-300 its upper bound continues as a power, which it is not
            assert worst(row, "deep_bound") <= 1.25, f"delta = {delta}: {row}"
    assert tokens > 12_500


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("delta", [1e-10, 1e-9])
def test_float32_bounds_hold_down_to_the_smallest_radius(name, delta):
    some = np.concatenate(list(benchmark.single(2)))
    row = measured(name, delta, np.float32, [benchmark.special(name, delta, np.float32), some])
    assert worst(row, *BOTH) <= 1.25, f"delta = {delta}: {row}"


@pytest.mark.parametrize("delta", benchmark.RADII)
def test_float32_bounds_of_kl_without_a_table_are_float64_ones_rounded_too(delta):
    """With a radius per token, as in a compiled graph, there is no table: the solver answers."""
    parts = [benchmark.special("kl", delta, np.float32), np.concatenate(list(benchmark.single(4)))]
    row = measured(
        "kl", delta, np.float32, parts, lambda x, d: band_bounds(x, "kl", torch.full_like(x, d, dtype=torch.float64))
    )
    assert worst(row, *BOTH, "deep_bound") <= 1.25, row
    assert worst(row, "rest_bound", "gap_bound") <= 4, row


@pytest.mark.parametrize("name", ["kl", "tv", "chi2", "neyman_chi2", "hellinger"])
@pytest.mark.slow
@pytest.mark.parametrize("delta", benchmark.RADII)
def test_float64_bounds_are_within_four_conditioning_bounds(name, delta):
    some = np.concatenate(list(benchmark.double(1)))
    row = measured(name, delta, np.float64, [benchmark.special(name, delta, np.float64), some])
    assert worst(row, *BOTH, "deep_bound") <= 4, f"delta = {delta}: {row}"


@pytest.mark.parametrize("name", NAMES)
def test_the_sweep_sees_an_error_of_two_ulp(name):
    some = -np.exp(np.linspace(-9, 2, 200, dtype=np.float32))

    def off(x, delta):
        found = band_bounds(x, name, delta)
        return Bounds(found.log_low * (1 + 2.5e-7), found.log_high * (1 - 2.5e-7))

    assert worst(measured(name, 1e-3, np.float32, [some], off), *BOTH) > 2


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, np.float32) for name in NAMES), *((name, np.float64) for name in ("kl", "chi2"))]
)
@pytest.mark.slow
def test_the_reference_agrees_with_the_definition_at_250_digits(name, dtype):
    row = benchmark.check(name, dtype, 50, radii=[0.05])
    assert worst(row, *BOTH, "deep_bound", "rest_bound") <= (1e-6 if dtype == np.float32 else 0.25), row


# ---- what may not matter


BATCH = torch.cat([-torch.logspace(-12, 2.6, 300), torch.tensor([-math.inf, 0.0, -1e-45, 1e-7])])


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32), pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*NAMES, Divergence("by f alone", lambda u: (u - 1) ** 2)], ids=str)
def test_neighbours_position_shape_and_strides_change_no_bit(name, dtype):
    log_p = BATCH.to(dtype)
    together, grid = band_bounds(log_p, name), torch.arange(300).view(20, 15)
    # Every position in a vector register, and every length of the tail.
    some = [slice(at, at + length) for at in (1, 2, 3, 5) for length in (1, 2, 3, 7, 9, 17, 33)]
    views = [
        *((log_p[i], slice(i, i + 1)) for i in range(0, len(log_p), 13)),
        *((log_p[each], each) for each in some),
        (log_p.flip(0), torch.arange(len(log_p) - 1, -1, -1)),
        (log_p[::3], torch.arange(0, len(log_p), 3)),
        (log_p[:300].view(20, 15).T, grid.T),
        (log_p[:5, None].expand(5, 6), torch.arange(5)[:, None].expand(5, 6)),
    ]
    for view, at in views:
        bounds = band_bounds(view, name)
        for got, expected in ((bounds.log_low, together.log_low[at]), (bounds.log_high, together.log_high[at])):
            torch.testing.assert_close(got, expected.reshape(got.shape), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["kl", "chi2", "jensen_shannon"])
def test_threads_change_no_bit(name):
    log_p = -torch.logspace(-12, 2.6, 100_003)
    alone = band_bounds(log_p, name)
    torch.set_num_threads(2)  # until the test ends: conftest.py
    together = band_bounds(log_p, name)
    assert all(map(torch.equal, (alone.log_low, alone.log_high), (together.log_low, together.log_high)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_counts_as_exact(name, dtype):
    half, single = (band_bounds(x, name) for x in (BATCH.to(dtype), BATCH.to(dtype).float()))
    assert half.log_low.dtype == torch.float32
    assert all(map(torch.equal, (half.log_low, half.log_high), (single.log_low, single.log_high)))


# ---- what is not finite


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 17, 34])
def test_tensors_that_are_not_finite_are_named(dtype, bad, at):
    """Wherever it stands, in whatever layout; the largest finite numbers, and what can be no such number, are fine."""
    largest = torch.finfo(dtype).max
    fine = {
        "both ends": torch.tensor([largest, -largest], dtype=dtype),
        "empty": torch.zeros(0, dtype=dtype),
        "integers": torch.tensor([2**62]),
        "a byte": torch.ones(3).to(torch.float8_e4m3fn),
        "flags": torch.tensor([True]),
    }
    assert (bandpo.numerics.not_finite(fine.items()), bandpo.numerics.not_finite([])) == ([], [])
    x = torch.ones(7, 5, dtype=dtype, requires_grad=True)
    x.data.view(-1)[at] = bad
    broken = {"mine": x, "turned": x.t(), "scalar": x.flatten()[at]}
    assert bandpo.numerics.not_finite((fine | broken).items()) == [*broken]
