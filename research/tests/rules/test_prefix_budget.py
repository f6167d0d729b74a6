"""CPPO's budget for the prefix of a response: what is left, and who may depend on whom."""

import pytest
import torch

from bandpo import Context, Objective, policy_loss
from bandpo.testing import check_objective, check_trust_region
from bandpo.trust_regions import trust_region
from research.rules.batch import PrefixBudget

F64 = torch.float64
REGIONS = [PrefixBudget(), PrefixBudget("kl", 0.1, 0.002, 1)]
of_both = pytest.mark.parametrize("region", REGIONS, ids=repr)


def batch(rows, columns, seed=0, spread=0.7):
    """Old and new log-probabilities: likely tokens and rare ones, of which none has become sure."""
    rng = torch.Generator().manual_seed(seed)
    power = torch.randint(1, 4, (rows, columns), generator=rng)
    p = 0.005 + 0.98 * torch.rand(rows, columns, generator=rng, dtype=F64) ** power
    moved = spread * torch.randn(rows, columns, generator=rng, dtype=F64)
    return p.log(), (p.log() + torch.minimum(moved, -0.9 * p.log()))


def test_the_radius_of_a_prefix_is_the_papers_in_a_loop():
    """Bounds and membership, of ragged responses, against Python's numbers."""
    old, new = batch(40, 12, seed=7, spread=0.25)
    mask = torch.arange(12) < torch.randint(1, 13, (40, 1), generator=torch.Generator().manual_seed(7))
    region = PrefixBudget("tv", 0.15, 0.015, 0.8)
    context = Context(response_mask=mask, extra={"logps": torch.where(mask, new, torch.nan)})
    bounds = region.bounds(old, context)
    inside = region.bounds(old, context).contains(new - old)
    pinned = 0
    for i in range(40):
        length, earned, paid = int(mask[i].sum()), 0.0, 0.0
        for t in range(length):
            p, q = old[i, t].exp().item(), new[i, t].exp().item()
            w = 1 - 0.2 * t / (length - 1) if length > 1 else 1.0
            left = min(0.15, 0.15 + 0.015 * earned - paid)
            low, high = max(1 - left / w / p, 0.0), min(1 + left / w / p, 1 / p)
            if left <= 0:
                low, high, pinned = 1.0, 1.0, pinned + 1
            assert bounds.log_low[i, t].exp().item() == pytest.approx(low, rel=1e-9, abs=1e-12)
            assert bounds.log_high[i, t].exp().item() == pytest.approx(high, rel=1e-9)
            assert inside[i, t].item() == (w * abs(q - p) <= left)
            earned, paid = earned + w, paid + w * abs(q - p)
    assert pinned > 5
    assert 50 < inside[mask].sum() < mask.sum() - 50


def test_a_prefix_depends_on_what_was_before_it_and_on_nothing_else():
    old, new = batch(2, 8, seed=8, spread=0.1)
    region = PrefixBudget("kl", 0.05, 0.002)
    before = region.bounds(old, Context(extra={"logps": new})).log_high
    later = new.clone()
    later[0, 5] -= 1.0
    after = region.bounds(old, Context(extra={"logps": later})).log_high
    assert torch.equal(after[0, :6], before[0, :6])
    assert (after[0, 6:] != before[0, 6:]).any()
    assert torch.equal(after[1], before[1])


def test_a_move_that_costs_infinitely_much_leaves_nothing_for_what_follows():
    old = torch.tensor([[-0.5, -0.5, -0.5]])
    new = torch.tensor([[-0.5, 0.0, -0.5]])  # certain: KL(old || new) is infinite
    bounds = PrefixBudget("kl", 0.1, 0.01).bounds(old, Context(extra={"logps": new}))
    assert bounds.log_high.tolist()[0][2] == bounds.log_low.tolist()[0][2] == 0
    assert (bounds.log_high[0, :2] > 0.1).all()


@of_both
def test_it_keeps_what_every_rule_promises(region):
    old = torch.linspace(-12, -1e-3, 64, dtype=F64)[None]
    check_trust_region(region, Context(extra={"logps": (old + 0.2 * torch.sin(9 * old)).clamp(max=-1e-4)}))
    seen = torch.linspace(-3, -0.01, 48, dtype=F64).view(6, 8)
    check_objective(Objective(region, surrogate="mask"), extra={"logps": seen})
    assert trust_region(region.to_config()) == region


@of_both
def test_padding_and_nan_reach_no_other_token(region):
    old, new = batch(3, 6, seed=9)
    mask = torch.arange(6) < torch.tensor([[6], [4], [0]])
    bounds = region.bounds(old, Context(response_mask=mask, extra={"logps": new}))
    noise = torch.where(mask, new, torch.nan)
    same = region.bounds(torch.where(mask, old, torch.nan), Context(response_mask=mask, extra={"logps": noise}))
    assert torch.equal(same.log_low[mask], bounds.log_low[mask])
    assert torch.equal(same.log_high[mask], bounds.log_high[mask])
    broken = region.bounds(torch.where(torch.arange(6) == 2, torch.nan, old), Context(mask, extra={"logps": new}))
    assert (broken.log_low.isnan() == (torch.arange(6) == 2)).all()
    assert (broken.log_high.isnan() == (torch.arange(6) == 2)).all()


@of_both
def test_a_token_may_be_impossible_or_sure(region):
    old = torch.tensor([[-torch.inf, 0.0, -1e30, -1.0, -700.0, 1e-6, -1e-7, -1.0]])
    new = torch.tensor([[-1.0, -0.5, -2.0, -torch.inf, -0.01, 0.0, 0.0, 0.0]])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        bounds = region.bounds(old.to(dtype), Context(extra={"logps": new.to(dtype)}))
        assert (bounds.log_low <= 0).all()
        assert (bounds.log_high >= 0).all()
    leaf = new.clone().requires_grad_()
    loss, _ = policy_loss(leaf, old, torch.ones(1), torch.ones(1, 8), region, extra={"logps": new})
    assert torch.autograd.grad(loss, leaf)[0].isfinite().all()
