"""CPPO's budget for the prefix of a response: what is left, and who may depend on whom."""

from __future__ import annotations

import math

import pytest
import torch
from budget_promises import BudgetPromises, batch
from regions import parse_region

from bandpo import Context
from research.rules.batch import PrefixBudget

F64 = torch.float64


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


REGIONS = [PrefixBudget(), PrefixBudget("kl", 0.1, 0.002, 1)]


@pytest.mark.parametrize("region", REGIONS, ids=repr)
class TestPrefixBudget(BudgetPromises):
    of_one_token = "first token"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PrefixBudget("tv", math.inf), r"delta of PrefixBudget must be a number in \(0, inf\), got inf"),
        (lambda: PrefixBudget("tv", 0.1, -1), r"budget of PrefixBudget must be a number in \[0, inf\), got -1"),
        (lambda: PrefixBudget("tv", 0.1, 0.1, 0), r"least_weight of PrefixBudget must be a number in \(0, 1\], got 0"),
        (lambda: PrefixBudget("tw"), "divergence must be one of .*, got 'tw'"),
    ],
)
def test_what_is_wrong_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_labels_and_short_words():
    assert PrefixBudget().label == "Prefix-tv 0.15, 0.015 a token, weights to 0.8"
    assert parse_region("prefix_budget:kl:0.1:0.002") == PrefixBudget("kl", 0.1, 0.002)
