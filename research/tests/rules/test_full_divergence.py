"""The divergence over a vocabulary against its definition at 60 digits, what lies between it and one token's, and the
mask that goes by it against DPPO's."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from bandpo import Band, Context, Objective, policy_loss
from bandpo.band import Divergence, divergence_at
from bandpo.band.divergences import _REGISTRY
from bandpo.testing import check_objective, check_trust_region
from bandpo.trust_regions import trust_region
from oracle import GENERATORS
from research.rules.exact import Exact
from research.rules.full_divergence import full_divergence, top_k_divergence

F64 = torch.float64
DIVERGENCES = GENERATORS
OWN = Divergence("my own", lambda u: (u - 1) ** 2)


def logits(shape=(3, 5, 17), dtype=F64, seed=0, spread=1.0):
    """Of a new policy and an old one that are `spread` apart."""
    torch.manual_seed(seed)
    old = 3 * torch.randn(shape, dtype=F64)
    return (old + spread * torch.randn(shape, dtype=F64)).to(dtype), old.to(dtype)


def definition(new, old, f, infinite=None):
    """sum p f(q / p) of two lists of logits; where p is 0, q times the limit of f(u) / u."""
    new, old = ([mp.exp(mpf(x)) for x in row.tolist()] for row in (new, old))
    total = mpf(0)
    for q, p in zip(new, old, strict=True):
        q, p = q / sum(new), p / sum(old)
        total += p * f(q / p) if p else (q * infinite if q else 0)
    return float(total)


def test_every_registered_divergence_is_here():
    assert set(_REGISTRY) <= set(DIVERGENCES)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize(("spread", "tolerance"), [(1.0, 1e-12), (1e-4, 1e-9)])
def test_it_is_its_definition(name, spread, tolerance):
    new, old = logits((4, 17), spread=spread)
    got = full_divergence(new, old, name)
    expected = [definition(a, b, DIVERGENCES[name]) for a, b in zip(new, old, strict=True)]
    assert got.tolist() == pytest.approx(expected, rel=tolerance, abs=0)


def test_a_generator_of_ones_own_is_taken_as_it_is():
    new, old = logits()
    torch.testing.assert_close(full_divergence(new, old, OWN), full_divergence(new, old, "chi2"), rtol=1e-10, atol=0)


# lim f(u) / u for u to infinity
SLOPES = {"kl": 1, "tv": 0.5, "hellinger": 0.5, "jensen_shannon": math.log(2) / 2, "neyman_chi2": 1}


@pytest.mark.parametrize("name", SLOPES)
def test_tokens_that_one_policy_does_not_allow_are_the_limit(name):
    """Both of them: nothing. Only the old one: the limit p -> 0. Only the new one: f(0), which may be infinite."""
    inf = math.inf
    old = torch.tensor([[1.0, 2.0, -inf, 0.5, -inf], [1.0, 2.0, 0.1, 0.5, -inf]], dtype=F64)
    new = torch.tensor([[1.5, 1.0, 0.3, 0.7, -inf], [1.5, 1.0, -inf, 0.7, -inf]], dtype=F64)
    expected = [definition(a, b, DIVERGENCES[name], SLOPES[name]) for a, b in zip(new, old, strict=True)]
    assert full_divergence(new, old, name).tolist() == pytest.approx(expected, rel=1e-12)
    assert expected[1] < inf or name in ("kl", "neyman_chi2")
    assert full_divergence(new, new, name).tolist() == [0, 0]


def test_of_two_words_it_is_the_one_tokens():
    new, old = (torch.cat([x, torch.log1p(-x.exp())], -1) for x in (-torch.rand(2, 9, 1, dtype=F64) - 0.01))
    for name in DIVERGENCES:
        expected = divergence_at((new - old)[:, 0], old[:, 0], name)
        torch.testing.assert_close(full_divergence(new, old, name), expected, rtol=1e-9, atol=1e-15)
        got = top_k_divergence(new, torch.zeros(9, 1, dtype=torch.int64), old[:, :1], name)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-15)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.sampled_from(sorted(DIVERGENCES)), st.integers(1, 9), st.floats(0.01, 6), st.booleans()
)
def test_merging_tokens_costs_nothing(seed, name, k, spread, likeliest):
    """The data processing inequality: the token that was drawn, then some more, then more of them, then all."""
    new, old = logits((6, 12), seed=seed, spread=spread)
    logps, old_logps = new.log_softmax(-1), old.log_softmax(-1)
    order = old.argsort(-1, descending=likeliest)
    drawn = torch.randint(12, (6, 1))
    one = divergence_at((logps - old_logps).gather(-1, drawn), old_logps.gather(-1, drawn), name)[:, 0]
    bounds = [one]
    for count in (0, k, k + 2):
        tokens = torch.cat([order[:, :count], drawn], -1)  # the drawn one may be among them
        bounds.append(top_k_divergence(new, tokens, old_logps.gather(-1, tokens), name))
    torch.testing.assert_close(bounds[1], one, rtol=1e-7, atol=1e-12)
    bounds.append(full_divergence(new, old, name))
    for less, more in itertools.pairwise(bounds):
        assert (less <= more * (1 + 1e-7) + 1e-12).all()
    everything = torch.cat([order, drawn], -1)
    got = top_k_divergence(new, everything, old_logps.gather(-1, everything), name)
    torch.testing.assert_close(got, bounds[-1], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", ["kl", "tv", "reverse_kl"])
def test_top_k_is_its_definition(name):
    new, old = logits((4, 17))
    tokens = torch.tensor([[3, 1, 3], [0, 16, 5], [2, 2, 2], [9, 8, 9]])
    got = top_k_divergence(new, tokens, old.log_softmax(-1).gather(-1, tokens), name)
    for i, row in enumerate(tokens.tolist()):
        q, p = new[i].softmax(-1), old[i].softmax(-1)
        merged = [torch.stack([*x[sorted(set(row))], 1 - x[sorted(set(row))].sum()]).log() for x in (q, p)]
        assert got[i].item() == pytest.approx(definition(*merged, DIVERGENCES[name]), rel=1e-9)


@pytest.mark.parametrize("frozen", [False, True])
def test_hidden_states_give_what_their_logits_give(frozen):
    """With the output matrix of each policy, or the same one for both; whole, and some tokens at a time."""
    torch.manual_seed(0)
    (new, old), (weight, old_weight) = (
        [torch.randn(size, dtype=F64) for _ in range(2)] for size in ((3, 5, 8), (29, 8))
    )
    if frozen:
        old_weight = weight
    got = full_divergence(new, old, "kl", weight=weight, old_weight=None if frozen else old_weight, chunk=4)
    logits, old_logits = new @ weight.T, old @ old_weight.T
    torch.testing.assert_close(got, full_divergence(logits, old_logits, "kl"), rtol=1e-12, atol=0)
    tokens = torch.randint(29, (3, 5, 4))
    old_logps = old_logits.log_softmax(-1).gather(-1, tokens)
    got = top_k_divergence(new, tokens, old_logps, "tv", weight=weight)
    torch.testing.assert_close(got, top_k_divergence(logits, tokens, old_logps, "tv"), rtol=1e-12, atol=0)


def test_the_old_rest_may_be_nothing():
    """The k of the old policy sum to 1, or by rounding to more."""
    new = torch.tensor([0.5, 0.25, 0.25]).log()
    for total in (1.0, 1 + 1e-6):
        old = (torch.tensor([0.6, 0.4]) * total).log()
        got = top_k_divergence(new, torch.tensor([0, 1]), old, "tv").item()
        assert got == pytest.approx(0.25, abs=1e-5)
        assert math.isfinite(top_k_divergence(new, torch.tensor([0, 1]), old, "kl").item())


# ---- the gate


def batch():
    new, old = logits((6, 9, 13), spread=0.7)
    torch.manual_seed(1)
    drawn = torch.distributions.Categorical(logits=old).sample()[..., None]
    logps, old_logps = (x.log_softmax(-1).gather(-1, drawn)[..., 0] for x in (new, old))
    mask = torch.arange(9) < torch.tensor([[9], [4], [9], [1], [7], [9]])
    return new, old, logps.requires_grad_(), old_logps, torch.tensor([1.0, -1.0, 2.0, -0.5, 0.3, -2.0]).to(F64), mask


@pytest.mark.parametrize("name", ["tv", "kl"])
@pytest.mark.parametrize("surrogate", ["mask", "clip"])
def test_the_gate_drops_what_moved_on_where_the_policy_has_moved_too_far(name, surrogate):
    """DPPO's mask: r A, but 0 where D > delta and A (r - 1) > 0; by plain torch and autograd. A token whose own move
    costs little is dropped too."""
    new, old, logps, old_logps, advantages, mask = batch()
    p, q = old.softmax(-1), new.softmax(-1)
    spent = {"tv": 0.5 * (q - p).abs().sum(-1), "kl": (p * (p / q).log()).sum(-1)}[name]
    divergences = full_divergence(new, old, name)
    torch.testing.assert_close(divergences, spent, rtol=1e-12, atol=0)
    delta = spent[mask].median().item() * 1.001
    loss, metrics = policy_loss(
        logps,
        old_logps,
        advantages,
        mask,
        Objective(Exact(delta), surrogate=surrogate),
        extra={"divergences": divergences},
        metrics="all",
    )
    (gradient,) = torch.autograd.grad(loss, logps)
    r, a = torch.exp(logps - old_logps), advantages[:, None]
    dropped = (spent > delta) & (a * (r - 1) > 0)
    terms = torch.where(dropped, 0.0 if surrogate == "mask" else a.expand_as(r), r * a)
    expected = -(torch.where(mask, terms, 0.0).sum(-1) / mask.sum(-1)).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logps)[0], rtol=1e-12, atol=0)
    assert 5 < (dropped & mask).sum() < mask.sum() - 5
    assert metrics.compute()["cut/fraction"] == pytest.approx((dropped & mask).sum().item() / mask.sum().item())
    inside = Band(name, delta).bounds(old_logps).contains((logps - old_logps).detach())
    assert (dropped & mask & inside).any()  # of which the bound of one token knows nothing
    assert not (mask & ~inside & (spent <= delta)).any()


def test_the_gate_is_a_rule():
    spent = torch.linspace(0, 0.3, 64)[None]
    rule = Exact(0.15)
    check_trust_region(rule, Context(extra={"divergences": spent}))
    check_objective(Objective(rule, surrogate="mask"), extra={"divergences": torch.linspace(0, 0.3, 48).view(6, 8)})
    assert trust_region({"type": "exact", "delta": 0.15}) == rule
    old = torch.tensor([[-1.0, -2.0, math.nan, -1.0, -3.0]], dtype=F64)
    bounds = rule.bounds(old, Context(extra={"divergences": torch.tensor([[0.15, 0.2, 0.1, math.nan, 0.0]])}))
    assert bounds.log_low[0, [0, 1, 4]].tolist() == [-math.inf, 0, -math.inf]  # on the radius is inside
    assert bounds.log_high[0, [0, 1, 4]].tolist() == [1, 0, 3]
    assert bounds.log_low.isnan().equal(bounds.log_high.isnan())
    assert bounds.log_high.isnan().tolist() == [[False, False, True, True, False]]
    with pytest.raises(ValueError, match=r"Exact needs divergences, which was not given"):
        rule.bounds(old)
    with pytest.raises(ValueError, match=r"delta of Exact must be a number in \(0, inf\), got 0"):
        Exact(0)
