"""Every logged number against a plain loop over the tokens, and the sums that make them mergeable."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from regions import name_of

import bandpo
from bandpo import Band, Capped, Clip, Objective, Region
from bandpo.losses.metrics import TAIL, measure

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
    out = {
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
    return out


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
    logps, old, ref = -torch.rand(4, 4), -torch.rand(4, 4), -torch.rand(4, 4)
    advantages = torch.rand(4, 1).expand(4, 4) + 0.1
    objective = Objective(Clip(0.2, 0.2), ratio=ratio, beta=0.1)

    def count():
        loss, metrics = policy_loss(logps, old, advantages, mask, objective, ref_logps=ref)
        found = metrics.merge(metrics).compute()["not_finite/count"] / 2
        assert math.isfinite(loss) == (found == 0)
        return found

    logps[0, 3] = advantages[0, 3] = ref[0, 3] = bad
    logps[1, 1] = -math.inf
    assert count() == 0
    tokens = 1 if ratio == "token" else 3  # a response that has one ratio has one advantage
    advantages[1, :tokens] = bad
    assert count() == tokens
    ref[2, 1] = math.nan
    assert count() == tokens + 1
    logps[3, 1] = math.nan
    assert count() == 2 * tokens + 1
    alone = torch.tensor([1.0, bad, -1.0, 1.0])  # one for each response
    found = policy_loss(logps, old, alone, mask, Objective(Clip(0.2, 0.2), ratio=ratio))[1].compute()
    assert found["not_finite/count"] == 3 + tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tail_has_its_end_and_a_probability_of_zero(dtype):
    end = torch.tensor(TAIL, dtype=dtype).log()
    above = torch.nextafter(end, torch.tensor(1.0, dtype=dtype))
    for log_p, expected in ((end, 1), (above, 0), (torch.tensor(-math.inf, dtype=dtype), 1), (end * 0 + 1e-6, 0)):
        _, metrics = policy_loss(log_p.view(1, 1), log_p.view(1, 1), torch.ones(1), torch.ones(1, 1), Clip())
        assert metrics.compute()["clip/good_tail_tokens"] == expected


def test_a_token_on_its_bound_is_inside():
    bounds = Clip(0.2, 0.28).bounds(torch.zeros(2))
    log_ratio = torch.stack([bounds.log_low[0], bounds.log_high[0]])[None]
    metrics = measure(log_ratio, bounds, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2) > 0)
    assert metrics.compute()["clip/fraction"] == 0


@pytest.mark.parametrize(("ratio", "over"), [("sequence", torch.sum), ("sequence-mean", torch.mean)])
def test_of_a_ratio_of_responses_each_token_has_its_own_probability_and_its_own_kl(ratio, over):
    """Sides and log_ratio/* are those of the response's ratio; the tail and kl_old/* are the token's own."""
    data, region = batch(rows=60), Clip(0.2, 0.28)
    del data["ref_logps"]
    measured = policy_loss(**data, objective=Objective(region, ratio=ratio))[1].compute()
    by_token = policy_loss(**data, objective=region)[1].compute()
    own = {"kl_old/k1", "kl_old/k3", "tokens", "sequences", "clip/good_tail_tokens"}
    for name in own:
        assert measured[name] == pytest.approx(by_token[name], rel=1e-12), name
    mask, moves, tail, moved = data["response_mask"], [], [0, 0], data["logps"] - data["old_logps"]
    for row, inside in zip(moved, mask, strict=True):
        moves.append(over(row[inside]).clamp(-60, 60).item() if inside.any() else 0.0)
    for move, row, inside in zip(moves, data["old_logps"].exp(), mask, strict=True):
        tail[0] += int(inside.sum()) * (move > math.log(1.28) or move < math.log(0.8))
        tail[1] += int((inside & (row <= 0.2)).sum()) * (move > math.log(1.28))
    assert measured["clip/count"] == tail[0] > 0
    assert measured["clip/tail_high_count"] == tail[1] > 0
    assert measured["log_ratio/max"] == pytest.approx(max(moves))
    assert measured["log_ratio/min"] == pytest.approx(min(moves))


def test_micro_batches_merge_to_the_batch():
    data = batch()
    objective = Objective(REGIONS[2], dual_clip=1.3, beta=0.1)
    _, whole = policy_loss(**data, objective=objective)
    parts = []
    for rows in (slice(0, 1), slice(1, 17), slice(17, 40)):
        part = {name: x[rows] for name, x in data.items() if name != "extra"}
        extra = {"entropies": data["extra"]["entropies"][rows]}
        parts.append(policy_loss(**part, objective=objective, normalizer=1.0, extra=extra)[1])
    merged = parts[0].merge(parts[1]).merge(parts[2]).compute()
    assert merged == pytest.approx(whole.compute(), rel=1e-12)
    means = sum(part.compute()["clip/tail_high_share"] for part in parts) / 3
    assert means != pytest.approx(
        merged["clip/tail_high_share"], rel=1e-3
    )  # a mean of fractions would be another number


def test_what_has_nothing_to_divide_is_nan_and_what_was_not_given_is_absent():
    mask = torch.zeros(2, 3, dtype=torch.bool)
    _, metrics = policy_loss(-torch.ones(2, 3), -torch.ones(2, 3), torch.ones(2), mask, Clip(), normalizer=1.0)
    measured = metrics.compute()
    counts = {name for name, x in measured.items() if x == 0}
    assert counts == {
        *("tokens", "sequences", "clip/count", "clip/tail_high_count", "clip/good_tail_tokens", "cut/good_tail_count"),
        "not_finite/count",
    }
    assert all(math.isnan(x) for name, x in measured.items() if name not in counts)
    assert not {"entropy", "kl_ref"} & set(measured)
    _, metrics = policy_loss(-torch.ones(2, 3), -torch.ones(2, 3), -torch.ones(2), ~mask, Clip())
    measured = metrics.compute()
    assert measured["clip/fraction"] == 0
    assert math.isnan(measured["clip/tail_high_share"])  # nothing is clipped
    assert math.isnan(measured["cut/good_tail"])  # and no token of the tail has a positive advantage


@pytest.mark.parametrize("level", LEVELS)
def test_metrics_are_detached_and_of_fixed_size(level):
    data = batch()
    data["logps"].requires_grad_()
    loss, metrics = bandpo.policy_loss(**data, objective=Objective(Clip(), beta=0.1), metrics=level)
    assert loss.requires_grad
    tensors = metrics.totals | metrics.maxima
    assert not any(x.requires_grad for x in tensors.values())
    assert not any(x.dim() for x in tensors.values())


def test_the_main_numbers_are_a_part_of_all_and_none_are_none():
    data = batch()
    found = [bandpo.policy_loss(**data, objective=Objective(Clip(), beta=0.1), metrics=level) for level in LEVELS]
    assert len({loss.item() for loss, _ in found}) == 1
    everything, main, nothing = (metrics.compute() for _, metrics in found)
    assert {name: everything[name] for name in main} == main
    assert len(main) == 15 < len(everything)
    assert nothing == {}
    with pytest.raises(ValueError, match="metrics must be 'main', 'all' or None, got 'some'"):
        bandpo.policy_loss(**data, objective=Objective(Clip(), beta=0.1), metrics="some")


@pytest.mark.parametrize("level", LEVELS)
def test_metrics_of_every_level_go_over_ranks(level, monkeypatch):
    """One rank is the sum and the maximum of itself."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *args, **named: None)
    _, metrics = bandpo.policy_loss(**batch(), objective=Objective(Clip(), beta=0.1), metrics=level)
    assert metrics.all_reduce().compute() == metrics.compute()
