"""Rules that see the batch, each against its formula: token by token in plain Python, and gradients by autograd."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bandpo import Band, Capped, Clip, Context, Intersect, Objective, policy_loss
from bandpo.testing import check_trust_region
from research.rules.batch import EntropyRatio, GroupClip, Stale

F64 = torch.float64
RULES = [
    GroupClip(3e-3, 5e-3, 8),
    EntropyRatio(Band("kl", 0.05)),
    EntropyRatio(Clip(0.2, 0.28), 0.5, 1.5),
    EntropyRatio(Capped(Band("kl", 0.05), 3.0)),
    Stale(Clip(0.2, 0.28)),
    Stale(GroupClip(0.2, 0.28, 4)),
    Intersect(Stale(Clip(0.2, 0.2)), Band("kl", 0.05)),
]


def batch(rows: int = 5, columns: int = 7, seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    old = (0.98 * torch.rand(rows, columns, generator=rng, dtype=F64) + 0.01).log()
    new = (old + 0.4 * torch.randn(rows, columns, generator=rng, dtype=F64)).clamp(max=-1e-3)
    mask = torch.arange(columns) < torch.randint(1, columns + 1, (rows, 1), generator=rng)
    advantages = torch.randn(rows, generator=rng, dtype=F64)
    return {"logps": new, "old_logps": old, "advantages": advantages, "response_mask": mask}


def of_batch(rows: int = 5, columns: int = 7, seed: int = 0) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(seed + 100)
    then = torch.rand(rows, columns, generator=rng, dtype=F64)
    return {
        "entropies": then * (1 + 0.1 * torch.randn(rows, columns, generator=rng, dtype=F64)),
        "old_entropies": then,
        "group_mean": torch.randint(0, 9, (rows,), generator=rng).to(F64) / 8,
        "staleness": torch.randint(0, 6, (rows,), generator=rng),
    }


def gradient(data: dict[str, Tensor], objective: object, **extra: Any) -> Tensor:
    leaf = data["logps"].clone().requires_grad_()
    extra = {"logps": data["logps"]} | extra
    loss, _ = policy_loss(**(data | {"logps": leaf}), objective=objective, extra=extra)
    return torch.autograd.grad(loss.sum(), leaf)[0]


# ---- what holds for each of them


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_contract_of_every_rule(rule):
    one = torch.linspace(0.1, 2, 64)[None]
    context = Context(
        extra={
            "entropies": one,
            "old_entropies": one.flip(-1),
            "group_mean": torch.tensor([[0.25]]),
            "staleness": 3,
            "logps": torch.linspace(-12, -1e-3, 64)[None] + one.sin() - 0.4,
        }
    )
    check_trust_region(rule, context)
    for log_p in (torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -2.0]], dtype=torch.bfloat16)):
        few = Context(
            extra={
                "entropies": log_p.abs(),
                "old_entropies": log_p.abs(),
                "group_mean": torch.ones(1, 1),
                "staleness": torch.tensor([[2]]),
                "logps": log_p / 2,
            }
        )
        bounds = rule.bounds(log_p, few)
        assert bounds.log_low.shape == bounds.log_high.shape == (1, 2)
        assert bounds.log_low.dtype == bounds.log_high.dtype == torch.float32


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_padding_reaches_nothing_and_nan_shows(rule):
    data, more = batch(), of_batch()
    mask = data["response_mask"]
    plain = gradient(data, rule, **more)
    assert plain.isfinite().all()
    of_tokens = ("entropies", "old_entropies")
    padded = {name: torch.where(mask, x, torch.nan) if name in of_tokens else x for name, x in more.items()}
    dirty = data | {name: torch.where(mask, data[name], torch.nan) for name in ("logps", "old_logps")}
    assert torch.equal(gradient(dirty, rule, **padded), plain)
    assert not mask.all()
    broken = data | {"logps": torch.where(torch.arange(7) == 0, torch.nan, data["logps"])}
    assert policy_loss(**broken, objective=rule, metrics="all", extra=more | {"logps": broken["logps"]})[0].isnan()


def test_what_is_not_known_of_a_token_gives_nan():
    first = torch.arange(7)[None] == 0
    data, more = batch(), of_batch()
    for rule, name in (
        (EntropyRatio(Clip()), "entropies"),
        (EntropyRatio(Clip()), "old_entropies"),
        (GroupClip(0.2, 0.3, 8), "group_mean"),
    ):
        seen = more | {"group_mean": more["group_mean"][:, None]}
        seen[name] = torch.where(first, torch.nan, seen[name].expand(5, 7))
        bounds = rule.bounds(data["old_logps"], Context(extra=seen))
        missing = bounds.log_high.isnan() | bounds.log_low.isnan()
        assert torch.equal(missing, first.expand(5, 7)), rule


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (GroupClip(0.1, 0.2, 4), "group_mean"),
        (EntropyRatio(Clip()), "entropies"),
        (Stale(Clip()), "staleness"),
    ],
)
def test_what_a_rule_needs_is_named(rule, field):
    with pytest.raises(ValueError, match=rf"{type(rule).__name__} needs {field}, which was not given"):
        rule.bounds(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"EntropyRatio needs old_entropies"):
        policy_loss(**batch(), objective=EntropyRatio(Clip()), extra={"entropies": of_batch()["entropies"]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupClip(1.1, 2, 8), r"eps_low of GroupClip must be a number in \[0, 1\], got 1.1"),
        (lambda: GroupClip(0.2, 0.1, 8), r"eps_high_max of GroupClip must be a number in \[0.2, inf\), got 0.1"),
        (lambda: GroupClip(0.2, math.inf, 8), r"must be a number in \[0.2, inf\), got inf"),
        (lambda: GroupClip(0.2, 0.3, 1), r"group_size of GroupClip must be a number in \[2, inf\), got 1"),
        (lambda: GroupClip(0.2, 0.3, 2.5), "group_size of GroupClip must be an integer, got 2.5"),
        (lambda: EntropyRatio(0.2), "region of EntropyRatio must be a trust region, got 0.2"),
        (lambda: EntropyRatio(Clip(), 1.0), r"low of EntropyRatio must be a number in \[0, 1\), got 1.0"),
        (lambda: EntropyRatio(Clip(), 0.9, 1), r"high of EntropyRatio must be a number in \(1, inf\], got 1"),
        (lambda: Stale(3), "region of Stale must be a trust region, got 3"),
        (lambda: Stale(Band()), r"region of Stale must be made of Clip, .* got Band\(.* other probabilities"),
        (lambda: Stale(Capped(Band(), 3.0)), "region of Stale must be made of Clip"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- the formulas


def test_group_clip_is_the_schedule_of_its_paper():
    """eps_high = eps_low + (max - eps_low) (k - c) / (k - 1), for c right ones among k, and 0 right counted as 1."""
    k, low, most = 8, 3e-3, 5e-3
    right = torch.arange(k + 1)
    old = -torch.rand(k + 1, 3, dtype=F64)
    bounds = GroupClip(low, most, k).bounds(old, Context(extra={"group_mean": (right / k).to(F64)[:, None]}))
    for c in range(k + 1):
        expected = low + (most - low) * (k - max(c, 1)) / (k - 1)
        assert bounds.log_high[c].exp().tolist() == pytest.approx([1 + expected] * 3, rel=1e-14)
        assert bounds.log_low[c].exp().tolist() == pytest.approx([1 - low] * 3, rel=1e-14)
    assert bounds.log_high[1, 0].exp().item() == pytest.approx(1 + most, rel=1e-14)
    assert bounds.log_high[k, 0].exp().item() == pytest.approx(1 + low, rel=1e-14)


@pytest.mark.parametrize("region", [Clip(0.2, 0.28), Band("kl", 0.05)], ids=repr)
def test_entropy_ratio_is_open_and_outside_nothing_moves(region):
    old = torch.tensor([[-1.0, -2.0, -0.5, -3.0, -1.0, -1.0, -1.0]], dtype=F64)
    then = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 2.0]], dtype=F64)
    now = torch.tensor([[1.04, 1.06, 0.96, 0.94, 0.0, 2.2, 1.8]], dtype=F64)
    bounds = EntropyRatio(region).bounds(old, Context(extra={"entropies": now, "old_entropies": then}))
    inner = region.bounds(old)
    inside = torch.tensor([[True, False, True, False, True, False, False]])
    assert torch.equal(bounds.log_low, torch.where(inside, inner.log_low, 0.0))
    assert torch.equal(bounds.log_high, torch.where(inside, inner.log_high, 0.0))
    halves = Context(extra={"entropies": torch.tensor([[0.5, 2.0]]) - 1e-8, "old_entropies": torch.ones(1, 2)})
    assert EntropyRatio(region, 0.5, 2.0).bounds(old[:, :2].float(), halves).log_high.tolist() == [[0.0, 0.0]]


def test_entropy_ratio_drops_tokens_or_holds_them():
    """Two-sided masking has no gradient outside the band, clipping still one that leads back to r = 1."""
    data, more = batch(rows=20), of_batch(rows=20)
    mask = data["response_mask"]
    ratio = (more["entropies"] + 1e-8) / (more["old_entropies"] + 1e-8)
    outside = ((ratio <= 0.95) | (ratio >= 1.05)) & mask
    rule = EntropyRatio(Clip(1.0, math.inf))
    seen = {"entropies": more["entropies"], "old_entropies": more["old_entropies"]}
    dropped = gradient(data, Objective(rule, surrogate="mask_two_sided"), **seen)
    assert (dropped[outside] == 0).all()
    assert (dropped[mask & ~outside] != 0).all()
    held = gradient(data, rule, **seen)
    back = (data["logps"] - data["old_logps"]).sign() != data["advantages"][:, None].sign()
    assert torch.equal((held != 0) & mask, (~outside | back) & mask)
    assert 9 < outside.sum() < mask.sum() - 9


def by_interpolated_anchor(data: dict[str, Tensor], d: Tensor, region: object) -> Tensor:
    """A-3PO as it is written: minus the mean of (prox / mu) min(pi / prox A, clip(pi / prox) A), prox stopped."""
    mask, mu = data["response_mask"], data["old_logps"]
    log_pi = data["logps"].clone().requires_grad_()
    alpha = torch.where(d == 0, 1.0, 1 / d.clamp(min=1).to(F64))[:, None]
    prox = (alpha * mu + (1 - alpha) * log_pi).detach()
    s, a = (log_pi - prox).exp(), data["advantages"][:, None]
    bounds = region.bounds(prox)
    held = torch.minimum(torch.maximum(s, bounds.log_low.exp()), bounds.log_high.exp())
    terms = (prox - mu).exp() * torch.where(s * a <= held * a, s * a, held * a)
    total = -(torch.where(mask, terms, 0.0).sum(1) / mask.sum(1)).mean()
    return torch.autograd.grad(total, log_pi)[0]


@pytest.mark.parametrize("d", [0, 1, 2, 5, None])
def test_stale_has_the_gradient_of_an_interpolated_anchor(d):
    data = batch(rows=40, columns=8)
    data["logps"] = (data["old_logps"] + 2 * (data["logps"] - data["old_logps"])).clamp(max=-1e-3)
    staleness = torch.randint(0, 6, (40,)) if d is None else torch.full((40,), d)
    expected = by_interpolated_anchor(data, staleness, Clip(0.2, 0.28))
    for age in (staleness, staleness[:, None], staleness.to(F64)) if d is None else (staleness, d):
        slope = gradient(data, Stale(Clip(0.2, 0.28)), staleness=age)
        torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-15)
    plain = gradient(data, Clip(0.2, 0.28))
    assert torch.equal(plain, slope) == (d in (0, 1))


# ---- in words
