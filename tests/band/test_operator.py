"""The Band operator against 60-digit arithmetic, at its saturation points, outside its domain, and without a solver."""

import math
import random

import pytest
import torch
from mpmath import mp, mpf
from regions import sides
from torch import Tensor

import bandpo
from bandpo import band_bounds
from bandpo.band import Divergence, divergence_at
from oracle import GENERATORS, exact_bounds, exact_bounds_of, saturation_point, two_coins

DELTAS = [1e-3, 0.01, 0.03, 0.05, 0.1, 0.3, 1.0]
NAMES = ["kl", "tv", "chi2"]
JENSEN_SHANNON = Divergence("js", lambda u: 0.5 * torch.xlogy(u, u) - 0.5 * (u + 1) * torch.log((u + 1) / 2))

# log p from 1e-30 to 1 - 1e-7, and log p = 0.
GRID = torch.tensor(
    [0.0]
    + [math.log(m * 10.0**-k) for k in range(1, 31) for m in (1.0, 3.3)]
    + [math.log(k / 20) for k in range(1, 20)]
    + [math.log1p(-m * 10.0**-k) for k in range(2, 8) for m in (1.0, 3.3)],
    dtype=torch.float64,
)
# Everything that can stand where a log-probability is expected.
EXTREMES = [-math.inf, -1e30, -1e5, -1e4, -1500.0, -745.2, -301.0, -299.0, -104.0, -80.0, -1.0, -1e-7, -1e-20, -1e-45]
EXTREMES += [0.0, 1e-8, 1e-7, 1e-6]


def steps_from(x: Tensor, steps: int) -> Tensor:
    """The float that is so many ulp above (below, if negative) x."""
    for _ in range(abs(steps)):
        x = torch.nextafter(x, torch.full_like(x, math.copysign(math.inf, steps)))
    return x


def around_saturation(divergence: str, delta: float, dtype: torch.dtype) -> dict[int, float]:
    """log p at so many ulp from the point where the lower bound saturates."""
    point = torch.tensor(saturation_point(divergence, delta), dtype=dtype)
    near = {n: steps_from(point, n).item() for step in (1, 2, 5, 10, 100, 1000) for n in (-step, step)}
    return {n: x for n, x in ({0: point.item()} | near).items() if x <= 0}


def relative_error(got: float, exact: mpf) -> float:
    if got == exact or (math.isinf(got) and mp.isinf(exact)):
        return 0.0
    return math.inf if math.isinf(got) or mp.isinf(exact) else float(abs((mpf(got) - exact) / exact))


# ---- accuracy


@pytest.mark.parametrize(
    ("delta", "points", "dtype", "tolerance"),
    [
        *((delta, GRID, torch.float32, 3e-7) for delta in DELTAS),
        *((delta, GRID, torch.float64, 1e-13) for delta in DELTAS),
        *((delta, GRID[::5], torch.float64, 1e-13) for delta in (1e-8, 1e-6, 1e-4, 3.0, 20.0, 99.0, 1e3)),
    ],
    ids=lambda x: "" if isinstance(x, Tensor) else str(x),
)
@pytest.mark.parametrize("divergence", NAMES)
def test_bounds_agree_with_60_digit_arithmetic(divergence, delta, points, dtype, tolerance):
    bounds = band_bounds(points.to(dtype), divergence, delta)
    for x, *found in zip(points.to(dtype).tolist(), *sides(bounds).tolist(), strict=True):
        exact = exact_bounds(divergence, x, delta)
        errors = [*map(relative_error, found, exact[:2])]
        assert max(errors) <= tolerance, f"log p = {x}: {found}, not {exact}"
        assert found[1] <= -x


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("divergence", ["tv", "chi2", "hellinger"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-7), (torch.float64, 1e-13)])
def test_lower_bound_is_accurate_to_the_last_ulp_before_it_saturates(dtype, tolerance, divergence, delta):
    points = around_saturation(divergence, delta, dtype)
    bounds = band_bounds(torch.tensor(list(points.values()), dtype=dtype), divergence, delta)
    for (ulps, x), low, high in zip(points.items(), bounds.log_low.tolist(), bounds.log_high.tolist(), strict=True):
        exact = exact_bounds(divergence, x, delta)
        if abs(ulps) <= 2 and math.isinf(low) != mp.isinf(exact.log_low):
            continue  # on the edge itself -inf and a finite bound are both right
        assert relative_error(low, exact.log_low) <= tolerance, f"{ulps} ulp from it: {low}, not {exact.log_low}"
        assert relative_error(high, exact.log_high) <= tolerance
        assert math.isinf(low) == (ulps <= 0) or abs(ulps) <= 2


POINTS = torch.tensor([1e-30, 1e-6, 1e-3, 0.08, 0.5, 0.7, 0.95, 1 - 1e-6]).log()


@pytest.mark.parametrize("delta", [1e-8, 0.05, 1.0])
@pytest.mark.parametrize("divergence", GENERATORS)
def test_every_divergence_agrees_with_its_definition_at_100_digits(divergence, delta):
    f = GENERATORS[divergence]
    single, double = (band_bounds(POINTS.to(dtype), divergence, delta) for dtype in (torch.float32, torch.float64))
    for i, x in enumerate(POINTS.tolist()):
        exact = exact_bounds_of(f, x, delta)
        for bounds, tolerance in ((single, 1.2e-7), (double, 1e-14)):
            low, high = bounds.log_low[i].item(), bounds.log_high[i].item()
            beyond = low < -1e38 and exact.log_low < -1e38  # of float32
            assert beyond or relative_error(low, exact.log_low) <= tolerance, f"lower at log p = {x}: {low}"
            assert relative_error(high, exact.log_high) <= tolerance, f"upper at log p = {x}: {high}"


# log p = log of these, exact; log r_high, log(1 - q_high), log r_low. Published with the reference measurements.
VECTORS = [
    (0.05, 1e-6, 10.7951134501419, -0.0500118451247953, -50000.9999995),
    (0.05, 1e-3, 3.98058007850237, -0.0550351150267791, -50.9994998332499),
    (0.05, 0.01, 2.05538528243796, -0.0813168538579252, -5.99251080676177),
    (0.05, 0.1, 0.788814574314518, -0.248562135026106, -1.16224254169313),
    (0.05, 0.5, 0.268869467506229, -1.06201664806617, -0.368869467506229),
    (0.05, 0.9, 0.0735825046325701, -3.46482763468718, -0.14320161936828),
    (0.05, 0.99, 0.0100253616844624, -10.5976809927499, -0.0712665180044238),
    (0.05, 0.999999, 1.00000050000033e-6, -50014.815510058, -0.0500108451242953),
    (0.1, 0.01, 2.54832178792627, -0.13680106098407, -10.9949666313765),
    (0.1, 0.9, 0.0886574347279943, -4.10050200554599, -0.226453383124382),
]


@pytest.mark.parametrize(("delta", "p", "log_high", "log_rest", "log_low"), VECTORS)
def test_published_vectors_of_band_kl(delta, p, log_high, log_rest, log_low):
    exact = exact_bounds("kl", mp.log(mpf(str(p))), mpf(str(delta)))
    bounds = band_bounds(torch.tensor(p, dtype=torch.float64).log(), "kl", delta)
    assert [float(x) for x in exact] == pytest.approx([log_low, log_high, log_rest], rel=2e-14)
    assert [bounds.log_low.item(), bounds.log_high.item()] == pytest.approx([log_low, log_high], rel=2e-14)


@pytest.mark.parametrize("delta", [1e-3, 0.05, 1.0])
@pytest.mark.parametrize("divergence", [*GENERATORS])
@pytest.mark.slow
def test_bounds_go_on_below_the_probabilities_that_are_solved(divergence, delta):
    """By the power law of f: only reverse KL, u log u, is not one, and is 0.2 % off at e^-650."""
    f = GENERATORS[divergence]
    points = torch.tensor([-299.0, -310.0, -400.0, -650.0], dtype=torch.float64)
    bounds = band_bounds(points, divergence, delta)
    for x, low, high in zip(points.tolist(), bounds.log_low.tolist(), bounds.log_high.tolist(), strict=True):
        with mp.workdps(700):  # 1 - p is not 1
            exact = exact_bounds_of(f, x, delta)
        assert relative_error(high, exact.log_high) <= 2e-3
        if divergence != "kl":  # there -delta / p, beyond -1e118
            assert relative_error(low, exact.log_low) <= 1e-6


# ---- the domain


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, marks=pytest.mark.slow), torch.float16, torch.float32, torch.float64]
)
@pytest.mark.parametrize("divergence", [*GENERATORS, JENSEN_SHANNON], ids=str)
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-3, 0.05, 1.0, 50.0, 1e300])
def test_bounds_are_defined_and_in_the_simplex_for_every_log_p(divergence, dtype, delta):
    log_p = torch.tensor(EXTREMES, dtype=dtype)
    bounds = band_bounds(log_p, divergence, delta)
    assert ((bounds.log_low <= 0) & (bounds.log_high >= 0)).all()  # no NaN either
    assert (bounds.log_high.double() <= (-log_p.double()).clamp(min=0)).all()
    assert not (torch.isinf(bounds.log_high) & (log_p > -torch.inf)).any()


@pytest.mark.parametrize("divergence", [*GENERATORS, JENSEN_SHANNON], ids=str)
@pytest.mark.parametrize("delta", [0.05, torch.tensor([0.05, 0.06], dtype=torch.float64)])
def test_nan_gives_nan_on_both_sides(divergence, delta):
    bounds = band_bounds(torch.tensor([math.nan, -1.0]), divergence, delta)
    assert bounds.log_low.isnan().tolist() == bounds.log_high.isnan().tolist() == [True, False]


@pytest.mark.parametrize("divergence", [*NAMES, JENSEN_SHANNON], ids=str)
def test_a_radius_per_token_is_the_same_as_one_radius_after_the_other(divergence):
    log_p, deltas = GRID[::7], torch.tensor([0.01, 0.05, 0.4])
    together = sides(band_bounds(log_p, divergence, deltas[:, None]))
    alone = torch.stack([sides(band_bounds(log_p, divergence, delta)) for delta in deltas.tolist()], 1)
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=0)
    # A number for one side: both have one shape.
    mixed = band_bounds(log_p, divergence, deltas[1].item(), delta_low=deltas[:, None])
    expected = torch.stack([together[0], together[1, 1].expand(3, -1)])
    torch.testing.assert_close(sides(mixed), expected, rtol=1e-12, atol=0)
    one_token = band_bounds(log_p[3], divergence, deltas)  # a radius per row, and a single log p
    torch.testing.assert_close(sides(one_token), together[:, :, 3], rtol=1e-12, atol=0)


def test_many_tokens_with_a_radius_each_are_as_few_of_them():
    count = 40_007
    log_p, radii = -torch.linspace(1e-3, 9, count), torch.linspace(0.01, 0.3, count)
    some = torch.arange(0, count, 997)
    for whole, part, rtol in ((radii, radii[some], 1.3e-6), (0.05, 0.05, 0)):
        all_of_them = sides(band_bounds(log_p, "kl", whole, delta_high=0.1))[:, some]
        few = sides(band_bounds(log_p[some], "kl", part, delta_high=0.1))
        torch.testing.assert_close(all_of_them, few, rtol=rtol, atol=1e-5 * (rtol > 0))


# ---- the gate: membership without a solver


def gate(log_ratio: Tensor, log_p: Tensor, divergence: str | Divergence, delta: float) -> Tensor:
    inside = divergence_at(log_ratio.double(), log_p.double(), divergence) <= delta
    return inside | (log_p == -torch.inf)  # a token of p = 0 has no ratio


def ulp(x: Tensor) -> Tensor:
    return torch.nextafter(x.abs(), torch.full_like(x, math.inf)) - x.abs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("divergence", [*NAMES, JENSEN_SHANNON], ids=str)
def test_the_gate_agrees_with_the_solved_bounds(divergence, dtype):
    torch.manual_seed(0)
    compared = 0
    for delta in DELTAS:
        log_p = GRID.to(dtype)
        if divergence == "chi2" or (divergence == "tv" and delta < 1):
            if dtype == torch.float32:
                log_p = torch.cat([log_p, torch.tensor(list(around_saturation(divergence, delta, dtype).values()))])
            else:  # g_f is known to 1e-16, so within 1e-9 of a saturation point it cannot tell r = 1e-12 from 0
                log_p = log_p[(log_p - saturation_point(divergence, delta)).abs() > 1e-9]
        bounds = band_bounds(log_p, divergence, delta)
        edges = (bounds.log_low, bounds.log_high)
        near = [edge * (1 + sign * 10.0**-k) for edge in edges for k in range(1, 7) for sign in (-1, 1)]
        anywhere = [torch.randn_like(log_p) * width for width in (0.01, 0.1, 1.0, 10.0) for _ in range(5)]
        log_ratio = torch.stack(near + anywhere).clamp(-1e30, 80.0)  # e^80 is a float32
        clear = torch.ones_like(log_ratio, dtype=torch.bool)
        for edge in edges:
            clear &= (log_ratio - edge).abs() > 4 * ulp(log_ratio) + 1e-6 * edge.abs().clamp(max=1e30)
        inside = gate(log_ratio, log_p.expand_as(log_ratio), divergence, delta)
        assert torch.equal(inside[clear], bounds.contains(log_ratio)[clear])
        compared += int(clear.sum())
    assert compared > 25_000


@pytest.mark.parametrize("divergence", [*NAMES, JENSEN_SHANNON], ids=str)
def test_the_gate_agrees_with_the_bounds_for_every_log_p_of_the_domain(divergence):
    log_p = torch.tensor(EXTREMES)
    bounds = band_bounds(log_p, divergence, 0.05)
    log_ratio = torch.tensor([-60.0, -1.0, -0.06, -0.01, 0.0, 0.01, 1.0, 60.0])[:, None].expand(-1, len(log_p))
    assert torch.equal(gate(log_ratio, log_p, divergence, 0.05), bounds.contains(log_ratio))


@pytest.mark.parametrize("divergence", ["kl", "tv"])
def test_the_gate_knows_the_upper_bound_of_a_token_of_probability_e_to_the_minus_million(divergence):
    log_p = torch.tensor([-1e6, -1e30], dtype=torch.float64)
    log_high = band_bounds(log_p, divergence, 0.05).log_high
    assert gate(log_high * (1 - 1e-6), log_p, divergence, 0.05).all()
    assert not gate(log_high * (1 + 1e-6), log_p, divergence, 0.05).any()


# ---- g_f


@pytest.mark.parametrize("name", [*GENERATORS, "js"])
@pytest.mark.parametrize("log_p", [-60.0, -10.0, -1.0, -0.1, -1e-3, -1e-7])
def test_divergence_at_is_the_definition_with_one_factor_for_all_other_tokens(name, log_p):
    share = torch.tensor([0.01, 0.2, 0.5, 0.9, 0.999], dtype=torch.float64)
    log_ratio = torch.cat([share.log(), -log_p * share])  # down, and up to nearly 1/p
    at = torch.full_like(log_ratio, log_p)
    got = divergence_at(log_ratio, at, JENSEN_SHANNON if name == "js" else name)
    for s, value in zip(log_ratio.tolist(), got.tolist(), strict=True):
        log_q = mpf(s) + mpf(log_p)
        log_rest = mp.log(-mp.expm1(log_q))
        exact = two_coins(GENERATORS["jensen_shannon" if name == "js" else name], log_p, log_q, log_rest)
        assert value == pytest.approx(float(exact), rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("divergence", [*NAMES, JENSEN_SHANNON], ids=str)
def test_divergence_at_is_infinite_outside_the_simplex_and_zero_at_rest(divergence):
    log_p = torch.tensor([-3.0, -0.5, 0.0, 1e-6])
    assert divergence_at(torch.tensor([3.01, 0.51, 0.01, 0.01]), log_p, divergence).tolist() == [math.inf] * 4
    assert divergence_at(torch.zeros(4), log_p, divergence).abs().max() < 1e-12
    with pytest.raises(ValueError, match=r"log-probabilities must be floating point, got torch\.int64"):
        divergence_at(torch.tensor([-1]), torch.tensor([-1]))


# ---- divergences of one's own

BY_GENERATOR_ALONE = [
    ("kl", Divergence("kl alone", lambda u: -u.log())),  # f(0) = inf, and f'(1) = -1
    ("tv", Divergence("tv alone", lambda u: (1 - u).clamp(min=0))),  # a kink at 1
    ("chi2", Divergence("chi2 alone", lambda u: u * u - 1)),  # f'(1) = 2
]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize(("name", "generator"), BY_GENERATOR_ALONE, ids=str)
def test_a_generator_alone_gives_the_closed_form(name, generator, delta):
    alone, closed = (band_bounds(GRID, d, delta) for d in (generator, name))
    on_edge = (GRID - saturation_point(name, delta)).abs() < 1e-9  # where the lower bound is log 0, give or take an ulp
    on_edge &= torch.tensor(name != "kl")
    low, expected = (
        x.clamp(min=-700.0)[~on_edge] for x in (alone.log_low, closed.log_low)
    )  # ratios below e^-700 are 0
    torch.testing.assert_close((low, alone.log_high), (expected, closed.log_high), rtol=1e-10, atol=1e-60)


def test_exact_forms_of_ones_own_are_used_where_they_are_given():
    mine = Divergence(
        "mine",
        lambda u: (u - 1) ** 2,
        log_bounds=lambda log_p, delta: (0 * log_p - delta, 0 * log_p + 3 * delta),
        log_f=lambda log_u: 7 * log_u.abs(),
    )
    log_p = torch.tensor([-1.0, -0.01], dtype=torch.float64)
    bounds = band_bounds(log_p, mine, 0.05)
    assert bounds.log_low.tolist() == [-0.05, -0.05]
    assert bounds.log_high.tolist() == pytest.approx([0.15, 0.01])  # within the simplex, whatever they say
    moved = 0.5 * -log_p
    others = torch.log(-torch.expm1(log_p)) - torch.log(-torch.expm1(moved + log_p))
    expected = 7 * (log_p.exp() * moved - torch.expm1(log_p) * others)
    torch.testing.assert_close(divergence_at(moved, log_p, mine), expected)


def test_a_linear_part_of_the_generator_changes_nothing():
    shifted = Divergence("shifted", lambda u: (u - 1) ** 2 + 1e6 * (u - 1))
    torch.testing.assert_close(
        band_bounds(GRID, shifted).log_high, band_bounds(GRID, "chi2").log_high, rtol=1e-9, atol=0
    )


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda u: torch.sin(u - 1), "must be convex, but f"),
        (lambda u: -((u - 1) ** 2), "must be convex, but f"),
        (lambda u: torch.where(u < 10, (u - 1) ** 2, 9 * (u - 1)), r"must be convex, but f\((9\.\d+|10(\.\d+)?)\) is"),
        (
            lambda u: torch.where((u - 1).abs() < 0.02, -100 * (u - 1) ** 2, (u - 1) ** 2),
            r"must be convex, but f\(0\.9",
        ),
        (lambda u: torch.where(u > 3, torch.inf, (u - 1) ** 2), r"must be finite from 0\.001 to 100, f\(3\.\d+\)"),
        (
            lambda u: (u - 1).abs() - 0.01 * (0.01 - u).clamp(min=0) ** 2,
            "must be convex, but f",
        ),  # hardly, and far from 1
        (lambda u: u**2, r"must be 0 at u = 1, f\(1\) = 1"),
        (lambda u: 3 * (u - 1), r"must not be linear: D_f is 0"),
        (lambda u: torch.zeros_like(u), r"must not be linear: D_f is 0"),
        (lambda u: u * u.log(), r"must be a number or inf, f\(0\) = nan"),
        (lambda u: torch.log(u) * -torch.where(u > 0, 1.0, -1.0), r"must be a number or inf, f\(0\) = -inf"),
        (lambda u: (u - 1).sum(), r"must keep shape \(1282,\) and dtype torch.float64, got \(\) of"),
        (lambda u: (u - 1).float() ** 2, "must keep shape .* got .* of torch.float32"),
        (lambda u: 3.0, "must keep shape .* of float"),
    ],
)
def test_what_is_no_generator_is_refused_with_the_point_where_it_fails(f, message):
    with pytest.raises(ValueError, match=f"f of divergence 'mine' .*{message}"):
        Divergence("mine", f)


def hinges(seed):
    """A convex sum of hinges, whose terms may be 1e5 times its values near 1."""
    rng = random.Random(seed)
    parts = [(math.exp(rng.uniform(-6, 8)), math.exp(rng.uniform(-6, 3)), rng.choice((-1, 1))) for _ in range(7)]
    slope = rng.choice((0.0, -3.0, 5.0))

    def f(u):
        total = slope * (u - 1)
        for at, weight, sign in parts:
            total = total + (weight * (sign * (u - at)).clamp(min=0) - weight * max(sign * (1 - at), 0))
        return total

    return f


@pytest.mark.parametrize("seed", range(100))
def test_rounding_does_not_make_a_convex_sum_of_hinges_concave(seed):
    Divergence("hinges", hinges(seed))


@pytest.mark.parametrize("at", [1e-4, 0.1, 0.99, 0.999, 1.005, 1.3, 7.0, 900.0])
@pytest.mark.parametrize(
    "base", [lambda u: (u - 1) ** 2, lambda u: u - 1 - u.log(), lambda u: (u - 1).abs(), hinges(1), hinges(2)]
)
def test_a_bump_on_a_convex_generator_is_seen(base, at):
    width = min(0.2 * at, 0.8 * abs(at - 1))

    def bumped(u):
        return base(u) + (1 + 1 / at**2) * width**2 * (1 - ((u - at) / width) ** 2).clamp(min=0) ** 2

    with pytest.raises(ValueError, match="must be convex, but f"):
        Divergence("bumped", bumped)


@pytest.mark.parametrize(
    "f",
    [
        lambda u: (u - 1).abs(),
        lambda u: -u.log(),
        lambda u: (u - 1) ** 2 / u,
        lambda u: (u - 1) ** 4,
        lambda u: (u - 1.5).clamp(min=0),
        lambda u: torch.xlogy(u, u),
        lambda u: torch.exp(u - 1) - u,
        lambda u: torch.nn.functional.softplus(5 * (u - 1)) - math.log(2) - 2.5 * (u - 1),
        lambda u: 20 * (3000 - u).clamp(min=0) - 20 * 2999 + (u - 1) ** 2,
    ],
)
def test_convex_generators_are_accepted_and_enclose_their_ball(f):
    mine = Divergence("mine", f)
    log_p = torch.tensor([0.01, 0.3, 0.5, 0.9], dtype=torch.float64).log()
    bounds = band_bounds(log_p, mine, 0.05)
    for edge in (bounds.log_low, bounds.log_high):
        at_limit = (edge == -torch.inf) | (edge >= -log_p)
        g = divergence_at(edge, log_p, mine)
        assert ((g - 0.05).abs() < 1e-6)[~at_limit].all()
        assert (g[at_limit] <= 0.05).all()


RADII = [
    *((x, f" must be a positive finite number or tensor, got {x!r}") for x in (0, 0.0, -0.1, math.nan, True, "0.05")),
    (torch.ones(4), r" must be a number, or a tensor that broadcasts to old_logps, \(3,\), got \(4,\)"),
    (torch.tensor([1.0, 0.0, 0.5]), " must be positive and finite everywhere, got values from 0.0 to 1.0"),
    (torch.tensor([1.0, math.nan, 0.5]), " must be positive and finite everywhere"),
]


@pytest.mark.parametrize("name", ["delta", "delta_low", "delta_high"])
@pytest.mark.parametrize(("radius", "message"), RADII)
def test_a_radius_that_is_no_positive_number_or_does_not_fit_is_refused(radius, message, name):
    with pytest.raises(ValueError, match=name + message):
        band_bounds(-torch.ones(3), **{name: radius})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.tensor([0.5, -1.0]), r"at most 0; the largest is 0\.5\. .*Is it a probability\? Then pass its log"),
        (torch.tensor([-1, -2]), r"log-probabilities must be floating point, got torch\.int64"),
        ([-0.5], r"old_logps must be a torch.Tensor, got list"),
        (-0.5, r"old_logps must be a torch.Tensor, got float"),
    ],
)
@pytest.mark.parametrize("call", [band_bounds, bandpo.Band().bounds])
def test_probabilities_lists_and_numbers_are_refused(call, wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(wrong)
    vmapped = torch.vmap(lambda x: call(x).log_high)(torch.tensor([[0.5], [-1.0]]))
    assert vmapped.shape == (2, 1)  # where no number can be looked at


@pytest.mark.parametrize("divergence", [*GENERATORS, JENSEN_SHANNON], ids=str)
def test_the_two_sides_may_have_radii_of_their_own(divergence):
    low, high = (band_bounds(GRID, divergence, delta) for delta in (0.02, 0.3))
    moved = torch.randn(GRID.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inside = torch.where(moved < 0, gate(moved, GRID, divergence, 0.02), gate(moved, GRID, divergence, 0.3))
    radii = {"delta_low": 0.02, "delta_high": 0.3}
    for both in (band_bounds(GRID, divergence, **radii), bandpo.Band(divergence, **radii).bounds(GRID)):
        assert all(map(torch.equal, (both.log_low, both.log_high), (low.log_low, high.log_high)))
        assert torch.equal(inside, both.contains(moved))


@pytest.mark.parametrize("divergence", [*GENERATORS, JENSEN_SHANNON], ids=str)
def test_bounds_widen_with_the_radius_without_jumps(divergence):
    """11 decades in steps of 2.5 %; a step of a radius may not move a bound more than the bound's own derivative."""
    radii = torch.logspace(-8, 3, 1025, dtype=torch.float64)[:, None]
    log_p = torch.tensor([1e-30, 1e-6, 0.01, 0.3, 0.5, 0.9, 1 - 1e-7], dtype=torch.float64).log()
    bounds = band_bounds(log_p.expand(1025, -1), divergence, radii)
    assert (bounds.log_high.diff(dim=0) >= -1e-14 * bounds.log_high[1:]).all()
    assert (bounds.log_low.exp().diff(dim=0) <= 1e-14).all()
    for ratio in (bounds.log_low.exp(), bounds.log_high):
        move = ratio.diff(dim=0).abs()
        around = torch.maximum(torch.maximum(move[2:], move[:-2]), ratio[2:-1].abs() * 1e-9)
        assert (move[1:-1] <= 4 * around + 1e-12).all()


@pytest.mark.parametrize("name", ["kll", "cressie_read(0.5)", "", None, ["kl"]])
def test_an_unknown_divergence_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=r"divergence must be one of \['chi2', .*register_divergence"):
        band_bounds(torch.zeros(1), name)


def test_a_name_must_be_a_string_and_can_be_given_once(monkeypatch):
    monkeypatch.setattr(bandpo.band.divergences, "_REGISTRY", dict(bandpo.band.divergences._REGISTRY))
    for _ in range(2):
        assert bandpo.band.register_divergence(JENSEN_SHANNON) is JENSEN_SHANNON
    for name, message in (("", "name must be a non-empty string, got ''"), ("js", "name 'js' is taken by js")):
        with pytest.raises(ValueError, match=message):
            bandpo.band.register_divergence(Divergence(name, lambda u: (u - 1) ** 2))
    assert torch.equal(band_bounds(GRID, "js").log_high, band_bounds(GRID, JENSEN_SHANNON).log_high)


@pytest.mark.parametrize(
    ("name", "direction"),
    [("kl", "KL(pi_old || pi)"), ("tv", "TV(pi, pi_old)"), ("chi2", "chi2(pi || pi_old), Pearson")],
)
def test_a_divergence_prints_its_direction(name, direction):
    assert str(bandpo.band.divergences.divergence(name)) == f"{name}: {direction}"


def test_a_large_radius_in_a_tensor_is_as_exact_as_a_number():
    log_p, delta = torch.linspace(-2e-4, -1e-5, 50, dtype=torch.float64), torch.tensor(7831.0, dtype=torch.float64)
    number, tensor = band_bounds(log_p, "chi2", delta.item()), band_bounds(log_p, "chi2", delta)
    torch.testing.assert_close(tensor.log_low, number.log_low, rtol=1e-13, atol=0)


@pytest.mark.parametrize("kind", ["kl", "tv", "chi2", "hellinger", "neyman_chi2", "reverse_kl"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_radius_may_be_mapped_over(kind):
    log_p, radii = torch.tensor([-1.0, -2.0, -0.1]), torch.tensor([1e-3, 0.05, 1.0])
    mapped = torch.func.vmap(lambda delta: sides(band_bounds(log_p, kind, delta)))(radii)
    torch.testing.assert_close(mapped.transpose(0, 1), sides(band_bounds(log_p, kind, radii[:, None])))
