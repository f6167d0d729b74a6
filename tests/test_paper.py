"""The statements of the paper (arXiv 2603.04918), one test per LaTeX label.

Where a statement is false as it is written, the test holds the corrected one and says so.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bandpo
from bandpo import Band, Bounds, Clip, Divergence, band_bounds, band_contains, complement, divergence_at, policy_loss

torch.set_num_threads(1)  # on small tensors, threads mostly wait for each other

F64 = torch.float64
GENERATORS = {
    "kl": lambda u: u - 1 - u.log(),
    "tv": lambda u: 0.5 * (u - 1).abs(),
    "chi2": lambda u: (u - 1) ** 2,
    "reverse_kl": lambda u: torch.xlogy(u, u) - u + 1,  # known to the library by its generator only
}
DIVERGENCES = {name: name if name != "reverse_kl" else Divergence(name, GENERATORS[name]) for name in GENERATORS}


def ratios(p: float, divergence: str | Divergence, delta: float) -> tuple[float, float]:
    """(r_low, r_high) at probability p."""
    bounds = band_bounds(torch.tensor(p, dtype=F64).log(), divergence, delta)
    return bounds.log_low.exp().item(), bounds.log_high.exp().item()


def f_divergence(name: str, policies: Tensor, old: Tensor) -> Tensor:
    """D_f(Q || P) of rows of Q, by eq:f_divergence_def."""
    return (old * GENERATORS[name](policies / old)).sum(-1)


def simplex(shape: int, steps: int) -> Tensor:
    """All points of the simplex of that many tokens on a grid."""
    axes = torch.meshgrid(*[torch.arange(1, steps, dtype=F64)] * (shape - 1), indexing="ij")
    points = torch.stack([axis.flatten() for axis in axes], -1)
    points = points[points.sum(-1) < steps]
    return torch.cat([points, steps - points.sum(-1, keepdim=True)], -1) / steps


# ---- the bottleneck (sec:bottlenecks)


def test_eq_fixed_variation_range_set():
    """A clip allows -eps_low p <= dp <= eps_high p, as far as eq:theoretical_variation_range_set does."""
    p = torch.tensor([1e-6, 0.01, 0.08, 0.5, 0.78, 0.79, 0.9, 1.0], dtype=F64)
    variation = Clip(0.2, 0.28).bounds(p.log()).variation(p.log())
    torch.testing.assert_close(variation.low, -0.2 * p, rtol=1e-12, atol=0)
    expected = torch.tensor([min(0.28 * x, 1 - x) for x in p.tolist()], dtype=F64)
    torch.testing.assert_close(variation.high, expected, rtol=1e-12, atol=1e-16)
    tiny = Clip(1e-6, 1e-6).bounds(torch.tensor(0.5).log()).variation(torch.tensor(0.5).log())  # of float32
    assert [tiny.low.item(), tiny.high.item()] == pytest.approx([-5e-7, 5e-7], rel=1e-5)


@pytest.mark.parametrize("log_p", [-80.0, -1.0, -0.1, -1e-7, 0.0, 1e-6])
def test_eq_theoretical_variation_range_set(log_p):
    """No rule allows more than -p <= dp <= 1 - p; no clip at all allows exactly that."""
    log_p = torch.tensor(log_p, dtype=F64)
    p = log_p.clamp(max=0).exp()
    free = Clip(1.0, math.inf).bounds(log_p).variation(log_p)
    torch.testing.assert_close(free.low, -p)
    torch.testing.assert_close(free.high, -torch.expm1(log_p.clamp(max=0)))
    for region in (Clip(0.9, 30.0), Band("kl", 3.0), Band("tv", 0.999), bandpo.DCPO(0.2, 0.2)):
        variation = region.bounds(log_p).variation(log_p)
        assert -p <= variation.low <= 0 <= variation.high <= -torch.expm1(log_p.clamp(max=0))


def test_a_token_of_probability_zero_can_not_vary():
    nothing = torch.tensor([-math.inf])
    for region in (Clip(), Band("kl"), Band("chi2"), bandpo.DCPO(), Clip(1.0, math.inf)):
        assert [x.item() for x in region.bounds(nothing).variation(nothing)] == [0.0, 0.0]


def test_worked_example_of_the_tail_token():
    """p = 0.08: the clip of 0.2 allows dp <= 0.016, of a capacity of 0.92; for p = 0.8 a clip of 5 is vacuous.

    The example asks for dp of about 0.4. No band of a usual radius allows that: Band KL allows 0.083, 0.113 and 0.174
    for the three radii of the experiments. It allows five to eleven times what the clip does.
    """
    rare, common = torch.tensor(0.08, dtype=F64).log(), torch.tensor(0.8, dtype=F64).log()
    assert Clip(0.2, 0.2).bounds(rare).variation(rare).high.item() == pytest.approx(0.016)
    assert Clip(1.0, 5.0).bounds(rare).variation(rare).high.item() == pytest.approx(0.4)
    assert Clip(1.0, 5.0).bounds(common).variation(common).high.item() == pytest.approx(0.2)
    allowed = [band_bounds(rare, "kl", delta).variation(rare).high.item() for delta in (0.03, 0.05, 0.1)]
    assert [f"{x:.3f}" for x in allowed] == ["0.083", "0.113", "0.174"]


# ---- the reduction to one variable


@pytest.mark.parametrize("name", DIVERGENCES)
def test_lem_complement_rescaling(name):
    """Of all policies that give a token q, the one that rescales all others by one factor is closest.

    As written, the lemma says the optimum *must* keep the proportions. For TV, which is not strictly convex, it may:
    see the next test.
    """
    torch.manual_seed(0)
    for old in torch.distributions.Dirichlet(torch.ones(4, dtype=F64)).sample((20,)):
        others = torch.distributions.Dirichlet(torch.ones(3, dtype=F64)).sample((500,))
        for q in (0.02, 0.3, 0.9):
            policies = torch.cat([torch.full((500, 1), q, dtype=F64), (1 - q) * others], -1)
            log_ratio = torch.log(q / old[0])
            least = divergence_at(log_ratio, old[0].log(), DIVERGENCES[name])
            assert (f_divergence(name, policies, old) >= least - 1e-12).all()
            log_c = complement(log_ratio, old[0].log())
            rescaled = torch.cat([torch.tensor([q], dtype=F64), old[1:] * log_c.exp()])
            assert rescaled.sum().item() == pytest.approx(1)
            assert f_divergence(name, rescaled, old).item() == pytest.approx(least.item(), rel=1e-9, abs=1e-14)


def test_lem_complement_rescaling_is_not_unique_for_tv():
    old, policy = torch.tensor([0.2, 0.4, 0.4], dtype=F64), torch.tensor([0.3, 0.3, 0.4], dtype=F64)
    least = divergence_at(torch.tensor(1.5, dtype=F64).log(), old[0].log(), "tv")
    assert f_divergence("tv", policy, old).item() == pytest.approx(least.item())


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("delta", [0.01, 0.1])
def test_thm_scalar_reduction(name, delta):
    """The two roots of g_f(p, r) = delta are the extreme ratios in the ball, found here by trying the whole simplex."""
    steps = 400
    policies = simplex(3, steps)
    for old in ([0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.9, 0.06, 0.04]):
        old = torch.tensor(old, dtype=F64)
        inside = policies[f_divergence(name, policies, old) <= delta]
        for token in range(3):
            low, high = ratios(old[token].item(), DIVERGENCES[name], delta)
            seen = inside[:, token] / old[token]
            assert low - 1e-9 <= seen.min()
            assert seen.max() <= high + 1e-9
            # The grid has points within two steps of each extreme policy.
            assert seen.min() <= low + 3 / steps / old[token]
            assert seen.max() >= high - 3 / steps / old[token]


@pytest.mark.parametrize("name", DIVERGENCES)
def test_lem_gf_monotone_intervals(name):
    """g_f falls for r < 1, is 0 at r = 1, rises for r > 1, and is convex."""
    for p in (0.01, 0.4, 0.95):
        r = torch.linspace(1e-6, 1 / p - 1e-9, 2001, dtype=F64)
        g = divergence_at(r.log(), torch.full_like(r, math.log(p)), DIVERGENCES[name])
        assert (g.diff()[r[1:] <= 1] < 0).all()
        assert (g.diff()[r[:-1] >= 1] > 0).all()
        assert (g.diff().diff() > -1e-12).all()
        assert divergence_at(torch.zeros(1), torch.tensor([math.log(p)]), DIVERGENCES[name]).item() < 1e-15


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("delta", [0.03, 0.3])
def test_thm_bisection_global(name, delta):
    """The bisection of the paper's appendix, word for word, ends at the same bounds, saturated ones included."""
    for p in (0.01, 0.08, 0.5, 0.93):

        def allowed(r: float, p: float = p) -> bool:
            pair = torch.tensor([r, (1 - r * p) / (1 - p)], dtype=F64)
            return (torch.tensor([p, 1 - p], dtype=F64) * GENERATORS[name](pair)).sum().item() <= delta

        low, high = (0.0, 1.0), (1.0, 1 / p)
        for _ in range(100):
            middle = sum(low) / 2
            low = (low[0], middle) if allowed(middle) else (middle, low[1])
            middle = sum(high) / 2
            high = (middle, high[1]) if allowed(middle) else (high[0], middle)
        assert ratios(p, DIVERGENCES[name], delta) == pytest.approx((low[1], high[0]), rel=1e-9, abs=1e-12)


# ---- properties of the bounds


@pytest.mark.parametrize(
    ("name", "rare_q", "common_low"),
    [
        ("kl", lambda d: -math.expm1(-d), lambda d: math.exp(-d)),
        ("tv", lambda d: d, lambda d: 1 - d),
        ("chi2", lambda d: 0.0, lambda d: 1.0),
    ],
)
@pytest.mark.parametrize("delta", [0.03, 0.1, 0.5])
def test_prop_limits(name, rare_q, common_low, delta):
    """p -> 0: r_high -> inf, r_low -> 0; p -> 1: r_high -> 1.

    The proposition leaves out the lower bound for p -> 1, and fig:probability_ratio has it rise to 1. It does for chi2
    only; for KL it ends at e^-delta and for TV at 1 - delta. And r_high -> inf is not all: the probability r_high p
    that a rare token may reach tends to 1 - e^-delta for KL, to delta for TV, and to 0, as sqrt(delta p), for chi2.
    """
    low, high = ratios(1e-12, name, delta)
    assert low < 1e-12
    assert high > 1e5
    assert high * 1e-12 == pytest.approx(rare_q(delta), rel=1e-9, abs=1e-5)
    low, high = ratios(1 - 1e-12, name, delta)
    assert high == pytest.approx(1, abs=1e-11)
    assert low == pytest.approx(common_low(delta), abs=1e-5 if name == "chi2" else 1e-9)
    if name == "chi2":
        assert ratios(1e-12, name, delta)[1] * 1e-12 == pytest.approx(math.sqrt(delta * 1e-12), rel=1e-4)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("delta", [0.03, 0.3])
def test_prop_monotonicity(name, delta):
    """r_high falls and r_low rises with p, strictly wherever the bound is not a limit of the simplex.

    The proposition claims it strictly everywhere. But where r_low has saturated it is 0 for all p, and r_high is 1/p.
    """
    log_p = torch.linspace(-12, -1e-3, 3000, dtype=F64)
    bounds = band_bounds(log_p, DIVERGENCES[name], delta)
    assert (bounds.log_high.diff() < 0).all()
    free = bounds.log_low > (-600 if name == "kl" else -30)
    assert (bounds.log_low[free].diff() > 0).all()
    assert not (bounds.log_low[~free] > bounds.log_low[free].min()).any()
    if name != "kl":
        assert (bounds.log_low[: int((~free).sum())] == -math.inf).sum() > 100


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.4])
@pytest.mark.parametrize("p", [0.001, 0.009, 0.011, 0.08, 0.12, 0.3, 0.45, 0.7, 0.88, 0.92, 0.989, 0.995])
def test_prop_saturation(p, delta):
    """A bound is a limit of the simplex exactly if going there costs at most delta.

    Low for TV iff p <= delta, for chi2 iff p / (1 - p) <= delta; high for TV iff 1 - p <= delta, for chi2 iff (1 - p) /
    p <= delta; for KL never, because f(0) is infinite. (thm:scalar_reduction says "for any delta exactly two roots".)
    """
    odds = p / (1 - p)
    for name, empty, full in (("kl", False, False), ("tv", p <= delta, 1 - p <= delta), ("chi2", odds <= delta, None)):
        bounds = band_bounds(torch.tensor(p, dtype=F64).log(), name, delta)
        full = 1 / odds <= delta if full is None else full
        assert (bounds.log_low.item() == -math.inf) == empty
        if name != "kl":  # 1 - q = e^-35 is below the last digit of q
            assert math.isclose(bounds.log_high.item(), -math.log(p), rel_tol=1e-12) == full
        else:
            left = -math.expm1(bounds.log_high.item() + math.log(p))
            assert left > 0 or delta / (1 - p) > 30


def test_prop_saturation_at_the_very_point():
    """`<=`: at p = delta TV is saturated, below it, and one ulp above it no more."""
    log_p = torch.tensor(0.25).log()
    around = torch.stack([torch.nextafter(log_p, torch.tensor(-9.0)), log_p, torch.nextafter(log_p, torch.tensor(0.0))])
    assert torch.isinf(band_bounds(around, "tv", 0.25).log_low).tolist() == [True, True, False]


@pytest.mark.parametrize("delta", [0.01, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("p", [1e-6, 0.01, 0.04, 0.06, 0.3, 0.6, 0.96, 0.999])
def test_prop_closedform(p, delta):
    """eq:tv_bounds and eq:chi2_bounds within the simplex, which is eq:clamp_final_bounds."""
    move = math.sqrt(delta * (1 - p) / p)
    assert ratios(p, "tv", delta) == pytest.approx((max(1 - delta / p, 0), min(1 + delta / p, 1 / p)), rel=1e-12)
    assert ratios(p, "chi2", delta) == pytest.approx((max(1 - move, 0), min(1 + move, 1 / p)), rel=1e-10)


def test_kl_is_not_the_widest_band_at_equal_delta():
    """subsec:properties has it that "the KL variant permits a broader ratio range" than TV and chi2 at delta = 0.1.

    Equal radii of different divergences do not compare. Near r = 1 a half-width is sqrt(2 delta (1 - p) / (p f''(1))):
    KL at delta is as wide as chi2 at 2 delta. And pointwise TV is wider than KL at both ends.
    """
    assert ratios(1e-3, "kl", 0.1)[1] == pytest.approx(100.3, abs=0.05)
    assert ratios(1e-3, "tv", 0.1)[1] == pytest.approx(101)
    assert ratios(0.999, "kl", 0.1)[0] > ratios(0.999, "tv", 0.1)[0]
    for p in (0.3, 0.5, 0.9):
        kl, chi2, wider = (ratios(p, *d)[1] - 1 for d in (("kl", 1e-6), ("chi2", 2e-6), ("chi2", 1e-6)))
        assert kl == pytest.approx(chi2, rel=2e-3)
        assert kl == pytest.approx(math.sqrt(2) * wider, rel=2e-3)


def test_the_band_is_necessary_but_not_sufficient_for_the_trust_region():
    """The paper has the ratio "strictly confined". A token at r = 1 is inside its band however far all others moved."""
    old, policy = torch.tensor([0.2, 0.7, 0.1], dtype=F64), torch.tensor([0.2, 0.1, 0.7], dtype=F64)
    assert f_divergence("kl", policy, old) > 1
    assert band_contains((policy / old).log()[0], old.log()[0], "kl", 0.05)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(DIVERGENCES)),
    logit=st.floats(-15, 15),
    share=st.floats(-0.999, 0.999),
)
def test_g_is_the_same_for_a_token_and_for_all_others_together(name, logit, share):
    """g_f(p, r) = g_f(1 - p, c): what lets one solver give both bounds."""
    log_p = -torch.nn.functional.softplus(torch.tensor(-logit, dtype=F64))
    log_rest = -torch.nn.functional.softplus(torch.tensor(logit, dtype=F64))
    log_ratio = -log_p * share if share > 0 else torch.tensor(10 * share, dtype=F64)
    mine = divergence_at(log_ratio, log_p, DIVERGENCES[name])
    others = divergence_at(complement(log_ratio, log_p), log_rest, DIVERGENCES[name])
    torch.testing.assert_close(mine, others, rtol=1e-7, atol=1e-14)


# ---- the operator and the objective


def test_eq_band_operator():
    """Band(r) = clip(r, r_low, r_high)."""
    torch.manual_seed(0)
    log_p, log_ratio = torch.rand(200).log(), torch.randn(200)
    bounds = band_bounds(log_p, "kl", 0.05)
    clipped = bounds.clamp(log_ratio).tolist()
    for s, low, high, got in zip(
        log_ratio.tolist(), bounds.log_low.tolist(), bounds.log_high.tolist(), clipped, strict=True
    ):
        assert got == (low if s < low else high if s > high else s)
    moved = (bounds.clamp(log_ratio) != log_ratio).sum()
    assert 20 < moved < 180
    assert torch.equal(bounds.contains(log_ratio), bounds.clamp(log_ratio) == log_ratio)


def test_epsilons_of_a_bound_are_one_minus_and_plus_its_ratios():
    bounds = Bounds(torch.tensor([0.25, 0.0]).log(), torch.tensor([3.0, 1.0]).log())
    torch.testing.assert_close(bounds.eps_low, torch.tensor([0.75, 1.0]))
    torch.testing.assert_close(bounds.eps_high, torch.tensor([2.0, 0.0]))
    assert band_bounds(torch.tensor(-93.0)).eps_high == math.inf  # e^88 is a float32, e^89 is none


def random_batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(logps, old_logps, advantages, response_mask), ragged, in float64."""
    torch.manual_seed(seed)
    old = torch.rand(4, 6, dtype=F64).log()
    logps = (old + torch.randn(4, 6, dtype=F64)).clamp(max=-1e-3).requires_grad_()
    lengths = torch.tensor([6, 1, 4, 3])
    return logps, old, torch.tensor([1.3, -0.4, -2.0, 0.7], dtype=F64), torch.arange(6) < lengths[:, None]


def test_eq_bandpo_token_loss():
    """min(r A, Band(r) A) - beta KL, token by token."""
    logps, old, advantages, mask = random_batch()
    ref = old - 0.1
    logps = logps.detach()
    loss, _ = policy_loss(logps, old, advantages, mask, Band("kl", 0.05), beta=0.3, ref_logps=ref, aggregation="none")
    for i in range(4):
        for t in range(6):
            if not mask[i, t]:
                assert loss[i, t] == 0
                continue
            r, a = math.exp(logps[i, t] - old[i, t]), advantages[i].item()
            low, high = ratios(old[i, t].exp().item(), "kl", 0.05)
            d = (ref[i, t] - logps[i, t]).item()
            expected = min(r * a, min(max(r, low), high) * a) - 0.3 * (math.exp(d) - d - 1)
            assert -loss[i, t].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("region", [Band("kl", 0.05), Band("tv", 0.1), Clip(0.2, 0.28)], ids=str)
def test_eq_bandpo_full(region):
    """The mean over responses of the mean over their tokens: value and gradient of the textbook form."""
    logps, old, advantages, mask = random_batch(1)
    bounds = region.bounds(old)
    low, high = bounds.log_low.exp(), bounds.log_high.exp()
    objective = torch.zeros((), dtype=F64)
    for i in range(4):
        tokens = [t for t in range(6) if mask[i, t]]
        for t in tokens:
            r = torch.exp(logps[i, t] - old[i, t])
            clipped = torch.clamp(r, low[i, t], high[i, t])
            objective = objective + torch.minimum(r * advantages[i], clipped * advantages[i]) / len(tokens) / 4
    loss, _ = policy_loss(logps, old, advantages, mask, region)
    assert loss.item() == pytest.approx(-objective.item(), rel=1e-12)
    expected, got = torch.autograd.grad(-objective, logps)[0], torch.autograd.grad(loss, logps)[0]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    assert 0 < (got == 0).sum() - (~mask).sum() < mask.sum()  # some tokens are cut, not all
