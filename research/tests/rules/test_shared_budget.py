"""Budgets for responses: what is spent, that it is spent where it buys most, and who may depend on whom."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from budget_promises import BudgetPromises, batch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from bandpo import Band, Context, Objective, policy_loss
from bandpo.band import Divergence, divergence_at
from bandpo.trust_regions import trust_region
from research.rules.budget import Budget

F64 = torch.float64
KINDS = ["kl", "chi2", "tv"]


def g(kind, p, r):
    """The divergence of two coins, by its textbook."""
    q, rest = r * p, 1 - p
    if kind == "kl":
        return -p * np.log(r) - rest * np.log((1 - q) / rest)
    return (q - p) ** 2 / (p * rest) if kind == "chi2" else np.abs(q - p)


def clipped(region, old, new, mask=None):
    """The log-ratios that are left."""
    return region.bounds(old, Context(response_mask=mask, extra={"logps": new})).clamp(new - old)


def spent(kind, old, log_ratio):
    return divergence_at(log_ratio, old, kind).sum(-1)


def gain(log_ratio):
    return torch.expm1(log_ratio).abs().sum(-1)


# ---- the optimal allotment


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.8, 0.3, 0.02])
def test_what_binds_is_spent_to_the_last_part_and_what_does_not_is_not_limited(kind, share):
    for columns in (1, 2, 7, 200):
        old, new = batch(60, columns)
        cost = spent(kind, old, new - old)
        delta = share * cost.mean().item() / columns
        left = spent(kind, old, clipped(Budget(kind, delta), old, new)) / (delta * columns)
        binds = cost > delta * columns
        assert binds.any()
        assert (left <= 1 + 1e-9).all()
        torch.testing.assert_close(left[binds], torch.ones_like(left[binds]), rtol=1e-9, atol=0)
        bounds = Budget(kind, delta).bounds(old, Context(extra={"logps": new}))
        free = ~binds
        assert torch.equal(bounds.log_low[free], torch.full_like(old[free], -torch.inf))
        assert torch.equal(bounds.log_high[free], -old[free])


@pytest.mark.parametrize("kind", KINDS)
def test_no_allotment_on_a_grid_buys_more(kind):
    """Three tokens: shares of each way from 1 to r on a grid, those within the budget."""
    old, new = batch(12, 3, seed=1)
    delta = 0.3 * spent(kind, old, new - old).mean().item() / 3
    ours = gain(clipped(Budget(kind, delta), old, new))
    shares = np.stack(np.meshgrid(*[np.linspace(0, 1, 61)] * 3, indexing="ij"), -1).reshape(-1, 3)
    for i in range(12):
        p, r = old[i].exp().numpy(), (new[i] - old[i]).exp().numpy()
        moved = 1 + shares * (r - 1)
        within = g(kind, p, moved).sum(-1) <= 3 * delta
        best = np.abs(moved - 1).sum(-1)[within].max()
        cell = 1 / 60 * np.abs(r - 1).sum()
        assert best <= ours[i] + 1e-9
        assert ours[i] <= best + 2 * cell  # and the grid comes close


@pytest.mark.parametrize("kind", KINDS)
def test_a_solver_of_convex_programmes_finds_no_more(kind):
    old, new = batch(6, 6, seed=2)
    delta = 0.4 * spent(kind, old, new - old).mean().item() / 6
    left = clipped(Budget(kind, delta), old, new)
    for i in range(6):
        p, r = old[i].exp().numpy(), (new[i] - old[i]).exp().numpy()
        found = minimize(
            lambda share, r=r: -(share * np.abs(r - 1)).sum(),
            np.full(6, 0.1),
            method="SLSQP",
            bounds=[(0, 1)] * 6,
            constraints={
                "type": "ineq",
                "fun": lambda share, p=p, r=r: 6 * delta - g(kind, p, 1 + share * (r - 1)).sum(),
            },
            options={"ftol": 1e-12, "maxiter": 300},
        )
        assert found.success
        assert gain(left[i]).item() == pytest.approx(-found.fun, rel=1e-6)


@pytest.mark.parametrize("kind", ["kl", "chi2"])
def test_the_bounds_are_points_of_one_slope_on_either_side(kind):
    old, new = batch(20, 30, seed=3)
    delta = 0.3 * spent(kind, old, new - old).mean().item() / 30
    bounds, p = Budget(kind, delta).bounds(old, Context(extra={"logps": new})), old.exp()
    r = torch.cat([bounds.log_low, bounds.log_high], -1).exp()
    p = torch.cat([p, p], -1)
    slope = (p * (r - 1) / (r * (1 - r * p)) if kind == "kl" else 2 * p * (r - 1) / (1 - p)).abs()
    slope = torch.where((r > 1e-6) & (r * p < 1 - 1e-6), slope, torch.nan)  # the others are the simplex's ends
    slope = slope[spent(kind, old, new - old) > 30 * delta]
    middle = slope.nanmedian(-1, keepdim=True).values
    assert len(middle) > 5
    torch.testing.assert_close(slope, torch.where(slope.isnan(), torch.nan, middle), rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_chi2_spends_all_of_the_budget_of_responses_of_every_kind(dtype):
    """Rare tokens that move far and likely ones that hardly do: against a sort of the slopes where tokens stop."""
    rng = torch.Generator().manual_seed(11)
    old = -20 * torch.rand(50, 200, generator=rng, dtype=F64) - 0.05
    far = 0.3 * torch.randn(50, 200, generator=rng, dtype=F64).abs() * torch.exp(-0.5 * old)
    new = (old + torch.log1p(far)).clamp(max=-0.02)
    old, new = old.to(dtype), new.to(dtype)
    p, r = old.double().exp(), (new.double() - old.double()).exp()
    cost = p * (r - 1) ** 2 / (1 - p)
    budget = 0.9 * cost.sum(-1)
    for i in range(50):
        bounds = Budget("chi2", budget[i].item() / 200).bounds(old[i : i + 1], Context(extra={"logps": new[i : i + 1]}))
        stop, order = (2 * p[i] * (r[i] - 1) / (1 - p[i])).sort()
        unit = ((1 - p[i]) / (4 * p[i]))[order]
        # With m where the k-th token stops: those before it cost what they cost, the others m^2 unit.
        spent = cost[i][order].cumsum(0) + stop**2 * (unit.sum() - unit.cumsum(0))
        k = int((spent <= budget[i]).sum())
        left = budget[i] - cost[i][order][:k].sum()
        expected = torch.sqrt(left / unit[k:].sum()) * (1 - p[i]) / (2 * p[i])
        inside = bounds.log_high[0] < -old[i]
        found = torch.expm1(bounds.log_high[0].double())
        torch.testing.assert_close(found[inside], expected[inside], rtol=1e-5 if dtype != F64 else 1e-9, atol=1e-9)
        assert inside.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_that_all_but_suffices_limits_all_but_nothing(kind):
    """By a few roundings: what a solver has left may then be less than nothing."""
    old = batch(2000, 1, seed=13)[0]
    band = Band(kind, 0.05).bounds(old)
    for end in (band.log_low, band.log_high):
        end = end.clamp(min=-5)  # the others cost less than the radius wherever they go
        for more in (-1e-15, 0, 1e-15, 3e-15):
            moved = torch.minimum(end * (1 + more), -old)
            left = Budget(kind, 0.05).bounds(old, Context(extra={"logps": old + moved})).clamp(moved)
            torch.testing.assert_close(left, moved, rtol=1e-6, atol=1e-9)


def test_total_variation_frees_the_rarest_and_pins_the_likeliest():
    p = torch.tensor([[0.5, 0.1, 0.3, 0.3, 0.05]], dtype=F64)
    r = torch.tensor([[1.4, 2.0, 0.5, 1.5, 0.4]], dtype=F64)  # of costs 0.2, 0.1, 0.15, 0.15, 0.03
    left = clipped(Budget("tv", 0.19 / 5), p.log(), (p * r).log()).exp()
    # 0.06 is left for the two of 0.3, which would take 0.3: a fifth.
    torch.testing.assert_close(left, torch.tensor([[1.0, 2.0, 0.9, 1.1, 0.4]], dtype=F64))


@pytest.mark.parametrize("kind", KINDS)
def test_a_response_of_one_token_is_clipped_as_by_the_band(kind):
    old, new = batch(300, 1, seed=4, spread=1.0)
    ours = clipped(Budget(kind, 0.05), old, new)
    expected = Band(kind, 0.05).bounds(old).clamp(new - old)
    torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-11)
    assert (expected != new - old).sum() > 30


def test_a_ratio_of_whole_responses_is_clipped_as_by_the_band():
    old, new = batch(8, 4, seed=5)
    old, new = old * 0.1, old * 0.1 + (new - old) * 0.1
    found = []
    for region in (Budget("kl", 0.002), Band("kl", 0.002)):
        leaf = new.clone().requires_grad_()
        objective = Objective(region, ratio="sequence")
        extra = {"logps": new.sum(-1, keepdim=True).expand_as(new)}
        policy_loss(leaf, old, torch.ones(8, dtype=F64), old < 0, objective, extra=extra)[0].backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)
    assert (found[0] == 0).any()


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 3),
    columns=st.integers(1, 9),
    delta=st.floats(1e-4, 0.5),
    spread=st.floats(0.05, 2),
)
def test_the_laws_of_a_budget(kind, seed, rows, columns, delta, spread):
    old, new = batch(rows, columns, seed, spread)
    region = Budget(kind, delta)
    bounds = region.bounds(old, Context(extra={"logps": new}))
    left = bounds.clamp(new - old)
    limit = delta * columns
    assert (spent(kind, old, left) <= limit * (1 + 1e-9)).all()
    # More budget, wider intervals.
    wider = Budget(kind, 1.3 * delta).bounds(old, Context(extra={"logps": new}))
    assert (wider.log_low.exp() <= bounds.log_low.exp() + 1e-8).all()
    assert (wider.log_high >= bounds.log_high - 1e-8).all()
    # Whatever the order of the tokens is.
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(clipped(region, old[:, order], new[:, order]), left[:, order], rtol=1e-7, atol=1e-9)
    # Whatever the other responses are.
    for i in range(rows):
        torch.testing.assert_close(clipped(region, old[i : i + 1], new[i : i + 1])[0], left[i], rtol=1e-12, atol=1e-15)
    # What is clipped is on the way from 1 to r.
    assert (left * (new - old) >= 0).all()
    assert (left.abs() <= (new - old).abs()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_float32_keeps_to_the_budget_too(kind):
    old, new = (x.float() for x in batch(60, 80, seed=6))
    limit = 0.5 * spent(kind, old.double(), (new - old).double()).mean().item()
    bounds = Budget(kind, limit / 80).bounds(old, Context(extra={"logps": new}))
    assert bounds.log_low.dtype == bounds.log_high.dtype == torch.float32
    moved = new.double() - old.double()
    left = spent(kind, old.double(), torch.clamp(moved, bounds.log_low.double(), bounds.log_high.double()))
    assert (left <= limit * (1 + 1e-5)).all()
    assert left.median() > 0.999 * limit


@pytest.mark.parametrize("kind", ["kl", "chi2", "tv"])
@pytest.mark.parametrize("length", [1, 5, 20])
def test_float32_leaves_little_of_the_budget_of_a_short_response(kind, length):
    old, new = (x.float().clamp(max=-1e-3) for x in batch(2000, length, seed=7))
    exact, found = (
        Budget(kind, 0.02).bounds(old.to(d), Context(extra={"logps": new.to(d)}))
        for d in (torch.float64, torch.float32)
    )
    moved = new.double() - old.double()
    ends = [torch.clamp(moved, b.log_low.double(), b.log_high.double()) for b in (exact, found)]
    limited = (ends[0] != moved).any(-1)
    left = spent(kind, old.double(), ends[1])[limited]
    assert limited.sum() > 100
    assert left.min() > 0.98 * 0.02 * length
    assert left.max() < 0.02 * length * (1 + 3e-7), "no more than the rounding of the bounds themselves"


REGIONS = [
    Budget("kl", 0.02),
    Budget("chi2", 0.02),
    Budget("tv", 0.02),
]


@pytest.mark.parametrize("region", REGIONS, ids=repr)
class TestBudget(BudgetPromises):
    of_one_token = "a response of one token"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget("hellinger"), r"divergence of Budget must be one of \['kl', 'chi2', 'tv'\], got 'hellinger'"),
        (lambda: Budget(Divergence("mine", lambda u: (u - 1) ** 2)), "divergence of Budget must be one of"),
        (lambda: Budget("kl", 0), r"delta of Budget must be a number in \(0, inf\), got 0"),
    ],
)
def test_what_is_wrong_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_labels_and_short_words():
    assert Budget().label == "Budget-KL 0.05"
    assert trust_region("budget:chi2:0.1") == Budget("chi2", 0.1)
