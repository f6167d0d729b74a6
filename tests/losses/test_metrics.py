"""Every logged number against a plain loop over the tokens, and the sums that make them mergeable."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from regions import name_of

import bandpo
from bandpo import Band, Capped, Clip, Objective, Region
from bandpo.losses.metrics import TAIL

policy_loss = partial(bandpo.policy_loss, metrics="all")
LEVELS = ("all", "main", None)


def batch(rows: int = 40, columns: int = 30, seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    old = (4 * torch.rand(rows, columns, dtype=torch.float64)).mul(-1) * torch.rand(rows, columns, dtype=torch.float64)
    lengths = torch.randint(0, columns, (rows, 1))
    logps = old + 0.5 * torch.randn(rows, columns, dtype=torch.float64) ** 3
    return {
        "logps": logps.clamp(max=0),
        "old_logps": old,
        "advantages": torch.randint(-1, 2, (rows,)).double(),
        "response_mask": torch.arange(columns) < lengths,
        "ref_logps": (logps - 0.1).clamp(max=0),
        "extra": {"entropies": torch.rand(rows, columns, dtype=torch.float64)},
    }


def by_hand(data: dict[str, Any], region: Region, dual_clip: float) -> dict[str, float]:
    """The numbers of Metrics.compute by their formulas, token by token."""
    mask = data["response_mask"]
    bounds = region.bounds(data["old_logps"])
    log_ratio = data["logps"] - data["old_logps"]
    advantages = data["advantages"][:, None].expand_as(mask)
    columns = (data["old_logps"].exp(), log_ratio, bounds.log_low, bounds.log_high, advantages)
    tokens = list(zip(*(x[mask].tolist() for x in columns), strict=True))

    def share(part: list, whole: list) -> float:
        return len(part) / len(whole) if whole else math.nan

    high = [t for t in tokens if t[1] > t[3]]
    low = [t for t in tokens if t[1] < t[2]]
    cut_high, cut_low = [t for t in high if t[4] > 0], [t for t in low if t[4] < 0]
    tail_high = [t for t in high if t[0] <= 0.2]
    good_tail = [t for t in tokens if t[0] <= 0.2 and t[4] > 0]
    good_tail_cut = [t for t in good_tail if t in high]
    moves = sorted(t[1] for t in tokens)
    n = len(tokens)
    d = (data["ref_logps"] - data["logps"])[mask]
    return {
        "tokens": n,
        "sequences": sum(row.any().item() for row in mask),
        "clip/count": len(high) + len(low),
        "clip/fraction": share(high + low, tokens),
        "clip/high_fraction": share(high, tokens),
        "clip/low_fraction": share(low, tokens),
        "clip/tail_high_count": len(tail_high),
        "clip/tail_high_share": share(tail_high, high + low),
        "clip/good_tail_tokens": len(good_tail),
        "cut/fraction": share(cut_high + cut_low, tokens),
        "cut/high_fraction": share(cut_high, tokens),
        "cut/low_fraction": share(cut_low, tokens),
        "cut/good_tail_count": len(good_tail_cut),
        "cut/good_tail": share(good_tail_cut, good_tail),
        "not_finite/count": 0,
        "dual_clip/fraction": share([t for t in tokens if t[4] < 0 and t[1] > math.log(dual_clip)], tokens),
        "kl_old/k1": sum(-s for s in moves) / n,
        "kl_old/k3": sum(math.exp(s) - 1 - s for s in moves) / n,
        "kl_ref": sum(math.exp(x) - x - 1 for x in d.clamp(-20, 20).tolist()) / n,
        "entropy": sum(data["extra"]["entropies"][mask].tolist()) / n,
        "log_ratio/max": moves[-1],
        "log_ratio/min": moves[0],
        "log_ratio/saturated_fraction": share([s for s in moves if abs(s) > 60], moves),
    }


REGIONS = [Clip(0.2, 0.28), Band("kl", 0.05), Capped(Band("tv", 0.1), 1.5)]


@pytest.mark.parametrize("region", REGIONS, ids=name_of)
def test_every_number_is_its_formula(region):
    data = batch()
    _, metrics = policy_loss(**data, objective=Objective(region, dual_clip=1.3, beta=0.1))
    measured, expected = metrics.compute(), by_hand(data, region, 1.3)
    assert measured == pytest.approx(expected, rel=1e-9)
    assert (
        min(expected[k] for k in ("clip/high_fraction", "clip/low_fraction", "cut/good_tail", "dual_clip/fraction")) > 0
    )
    assert all(type(x) is float for x in measured.values())


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_tokens_whose_loss_is_not_finite_are_counted(ratio, bad):
    """One of a response: with a ratio of tokens it alone, else all of the response. What stands in padding does not
    count, and a log-ratio that is only infinite is clamped."""
    mask = torch.tensor([[1, 1, 1, 0]] * 4).bool()
    logps, old, ref, advantages = -torch.rand(4, 4), -torch.rand(4, 4), -torch.rand(4, 4), torch.ones(4, 4)
    objective, tokens = Objective(Clip(0.2, 0.2), ratio=ratio, beta=0.1), 1 if ratio == "token" else 3
    alone = torch.tensor([1.0, bad, -1.0, 1.0])  # one for each response
    # What is spoilt, and how many tokens count from then on; a response that has one ratio has one advantage.
    for x, at, value, count in (
        (logps, (0, 3), bad, 0),
        (advantages, (0, 3), bad, 0),
        (ref, (0, 3), bad, 0),
        (logps, (1, 1), -math.inf, 0),
        (advantages, (1, slice(tokens)), bad, tokens),
        (ref, (2, 1), math.nan, tokens + 1),
        (logps, (3, 1), math.nan, 2 * tokens + 1),
    ):
        x[at] = value
        loss, metrics = policy_loss(logps, old, advantages, mask, objective, ref_logps=ref)
        assert metrics.merge(metrics).compute()["not_finite/count"] == 2 * count
        assert math.isfinite(loss) == (count == 0)
    found = policy_loss(logps, old, alone, mask, Objective(Clip(0.2, 0.2), ratio=ratio))[1].compute()
    assert found["not_finite/count"] == 3 + tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tail_has_its_end_and_a_probability_of_zero(dtype):
    end = torch.tensor(TAIL, dtype=dtype).log()
    above = torch.nextafter(end, torch.tensor(1.0, dtype=dtype))
    old = torch.stack([end, torch.full_like(end, -math.inf), above, 0 * end + 1e-6])[:, None]
    found = [policy_loss(x, x, torch.ones(1), torch.ones(1, 1), Clip())[1].compute() for x in old[:, None]]
    assert [each["clip/good_tail_tokens"] for each in found] == [1, 1, 0, 0]


@pytest.mark.parametrize(("ratio", "over"), [("sequence", torch.sum), ("sequence-mean", torch.mean)])
def test_of_a_ratio_of_responses_each_token_has_its_own_probability_and_its_own_kl(ratio, over):
    """Sides and log_ratio/* are those of the response's ratio; the tail and kl_old/* are the token's own."""
    data, region = batch(rows=60), Clip(0.2, 0.28)
    del data["ref_logps"]
    measured = policy_loss(**data, objective=Objective(region, ratio=ratio))[1].compute()
    by_token = policy_loss(**data, objective=region)[1].compute()
    own = ("kl_old/k1", "kl_old/k3", "tokens", "sequences", "clip/good_tail_tokens")
    assert [measured[name] for name in own] == pytest.approx([by_token[name] for name in own], rel=1e-12)
    mask, moved = data["response_mask"], data["logps"] - data["old_logps"]
    moves = [
        over(row[inside]).clamp(-60, 60).item() if inside.any() else 0.0
        for row, inside in zip(moved, mask, strict=True)
    ]
    above = torch.tensor([move > math.log(1.28) for move in moves])[:, None] & mask
    below = torch.tensor([move < math.log(0.8) for move in moves])[:, None] & mask
    assert measured["clip/count"] == (above | below).sum() > 0
    assert measured["clip/tail_high_count"] == (above & (data["old_logps"].exp() <= 0.2)).sum() > 0
    assert [measured[f"log_ratio/{name}"] for name in ("max", "min")] == pytest.approx([max(moves), min(moves)])


def test_what_has_nothing_to_divide_is_nan_and_what_was_not_given_is_absent():
    new, mask = -torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    measured = policy_loss(new, new, torch.ones(2), mask, Clip(), normalizer=1.0)[1].compute()
    counts = {name for name in measured if name.endswith(("count", "tokens")) or name == "sequences"}
    assert {name for name, x in measured.items() if x == 0} == counts
    assert all(math.isnan(measured[name]) for name in measured.keys() - counts)
    assert not {"entropy", "kl_ref"} & set(measured)
    measured = policy_loss(new, new, -torch.ones(2), ~mask, Clip())[1].compute()
    assert measured["clip/fraction"] == 0  # nothing is clipped, and no token of the tail has a positive advantage
    assert all(math.isnan(measured[name]) for name in ("clip/tail_high_share", "cut/good_tail"))


@pytest.mark.parametrize("level", LEVELS)
def test_metrics_are_of_fixed_size_and_go_over_ranks(level, monkeypatch):
    """One rank is the sum and the maximum of itself."""
    metrics = bandpo.policy_loss(**batch(), objective=Objective(Clip(), beta=0.1), metrics=level)[1]
    assert not any(x.dim() for x in (metrics.totals | metrics.maxima).values())
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *args, **named: None)
    assert metrics.all_reduce().compute() == metrics.compute()


def test_the_main_numbers_are_a_part_of_all_and_none_are_none():
    named = batch() | {"objective": Objective(Clip(), beta=0.1)}
    found = [bandpo.policy_loss(**named, metrics=level) for level in LEVELS]
    assert len({loss.item() for loss, _ in found}) == 1
    everything, main, nothing = (metrics.compute() for _, metrics in found)
    assert {name: everything[name] for name in main} == main
    assert (len(main), nothing) == (15, {})
    with pytest.raises(ValueError, match="metrics must be 'main', 'all' or None, got 'some'"):
        bandpo.policy_loss(**named, metrics="some")
