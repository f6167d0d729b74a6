"""What every rule with a budget for a response must hold."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from bandpo import Capped, Clip, Context, Intersect, Objective, policy_loss
from bandpo.explain import explain
from bandpo.testing import check_objective, check_trust_region
from bandpo.trust_regions import trust_region
from bandpo.trust_regions.base import depends_on_probability
from research.rules.decaying import Decaying

F64 = torch.float64


def batch(rows, columns, seed=0, spread=0.7):
    """Old and new log-probabilities: likely tokens and rare ones, of which none has become sure."""
    rng = torch.Generator().manual_seed(seed)
    power = torch.randint(1, 4, (rows, columns), generator=rng)
    p = 0.005 + 0.98 * torch.rand(rows, columns, generator=rng, dtype=F64) ** power
    moved = spread * torch.randn(rows, columns, generator=rng, dtype=F64)
    return p.log(), (p.log() + torch.minimum(moved, -0.9 * p.log()))


class BudgetPromises:
    """Tests of a `region`; `of_one_token` is what `explain` calls the place of a token that it shows."""

    of_one_token = ""

    def test_it_keeps_what_every_rule_promises(self, region):
        old = torch.linspace(-12, -1e-3, 64, dtype=F64)[None]
        check_trust_region(region, Context(extra={"logps": (old + 0.2 * torch.sin(9 * old)).clamp(max=-1e-4)}))
        check_trust_region(region, Context(extra={"logps": torch.zeros(1, 64)}))
        seen = torch.linspace(-3, -0.01, 48, dtype=F64).view(6, 8)
        check_objective(Objective(region, surrogate="mask"), extra={"logps": seen})
        assert depends_on_probability(region)

    def test_padding_and_nan_reach_no_other_token(self, region):
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
        gone = region.bounds(old, Context(mask, extra={"logps": torch.where(torch.arange(6) == 2, torch.nan, new)}))
        assert gone.log_low.isfinite().logical_or(gone.log_low == -torch.inf).all()

    def test_holes_in_a_response_count_for_nothing(self, region):
        """Such as what a tool has said."""
        old, new = batch(4, 9, seed=12)
        place = torch.tensor([1, 2, 5, 8])
        mask = torch.zeros(4, 9, dtype=torch.bool)
        mask[:, place] = True
        holes = region.bounds(old, Context(response_mask=mask, extra={"logps": new}))
        alone = region.bounds(old[:, place], Context(extra={"logps": new[:, place]}))
        torch.testing.assert_close(holes.log_low[:, place], alone.log_low, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(holes.log_high[:, place], alone.log_high, rtol=1e-9, atol=1e-12)

    def test_a_response_may_be_empty_and_a_token_impossible_or_sure(self, region):
        for shape in ((2, 0), (0, 3)):
            none = torch.zeros(shape)
            assert region.bounds(none, Context(extra={"logps": none})).log_low.shape == shape
        old = torch.tensor([[-torch.inf, 0.0, -1e30, -1.0, -700.0, 1e-6, -1e-7, -1.0]])
        new = torch.tensor([[-1.0, -0.5, -2.0, -torch.inf, -0.01, 0.0, 0.0, 0.0]])
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            bounds = region.bounds(old.to(dtype), Context(extra={"logps": new.to(dtype)}))
            assert (bounds.log_low <= 0).all()
            assert (bounds.log_high >= 0).all()
        leaf = new.clone().requires_grad_()
        loss, _ = policy_loss(leaf, old, torch.ones(1), torch.ones(1, 8), region, extra={"logps": new})
        assert loss.isfinite()
        assert torch.autograd.grad(loss, leaf)[0].isfinite().all()

    def test_it_is_a_node_and_has_a_name(self, region):
        assert trust_region(region.to_config()) == region
        assert Capped(region, 3.0).label.endswith(" cap 3.0")

    def test_it_works_within_others(self, region):
        old, new = batch(2, 5, seed=10)
        context = Context(extra={"logps": new, "step": 10})
        own = region.bounds(old, context)
        both = Intersect(region, Clip(0.2, 0.2)).bounds(old, context)
        torch.testing.assert_close(both.log_high, own.log_high.clamp(max=math.log(1.2)))
        later = Decaying(region, "delta", end=1e-3, steps=10)
        assert (later.bounds(old, context).log_high <= own.log_high).all()

    def test_it_is_explained_by_bands(self, region):
        text = explain(region, [0.3])
        assert f"Band-{'tv' if region.divergence == 'tv' else region.divergence}".lower() in text.lower()
        assert self.of_one_token in text

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")  # the compiler warns of its own parts while it is imported
    def test_it_compiles_once_for_twenty_numbers(self, region):
        from torch._dynamo.testing import CompileCounter

        torch._dynamo.reset()
        counter = CompileCounter()
        old, new = (x.float() for x in batch(3, 6, seed=11))

        def bounds(x, y, rule):
            return rule.bounds(x, Context(extra={"logps": y}))

        call = torch.compile(bounds, backend=counter, fullgraph=True)
        for rule in (dataclasses.replace(region, delta=0.01 * k) for k in range(1, 21)):
            found, expected = call(old, new, rule), rule.bounds(old, Context(extra={"logps": new}))
            torch.testing.assert_close(found.log_low, expected.log_low, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.log_high, expected.log_high, rtol=1e-5, atol=1e-6)
        assert counter.frame_count <= 2
