"""Packed rows are the padded batch: every method, average and metric; and what is no packed row is refused."""

from __future__ import annotations

import itertools
import math
import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import bandpo
from bandpo import Band, Clip, Objective
from bandpo.losses import method, packing
from bandpo.losses.nodes import methods

policy_loss = partial(bandpo.policy_loss, metrics="all")

F64 = torch.float64
AVERAGES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "none")
PER_RESPONSE = ("advantages", "group_mean", "group_std", "staleness")


def padded(seed: int, count: int = 7) -> dict[str, Any]:
    """A ragged batch with all that any rule asks for, the longest response as long as the batch is wide."""
    torch.manual_seed(seed)
    lengths = torch.tensor([*torch.randint(1, 9, (count - 1,)), 9])
    mask = torch.arange(9) < lengths[:, None]
    old = torch.rand(count, 9, dtype=F64).log()
    return {
        "logps": (old + torch.randn(count, 9, dtype=F64) / 2).clamp(max=-1e-3),
        "old_logps": old,
        "advantages": torch.randn(count, dtype=F64),
        "response_mask": mask,
        "rollout_is_weights": torch.rand(count, 9, dtype=F64) + 0.5,
        "entropies": torch.rand(count, 9, dtype=F64),
        "old_entropies": torch.rand(count, 9, dtype=F64),
        "divergences": torch.rand(count, 9, dtype=F64) / 2,
        "group_mean": torch.randint(0, 9, (count,)).to(F64) / 8,
        "group_std": torch.rand(count, dtype=F64),
        "staleness": torch.randint(1, 4, (count,)),
        "step": 300,
    }


def packed(batch: dict[str, Any], rows: int, seed: int) -> tuple[dict[str, Any], Tensor]:
    """The same tokens, several responses to a row, prompts and padding of junk between; and where each went to."""
    rng, mask = random.Random(seed), batch["response_mask"]
    parts = [range(i, len(mask), rows) for i in range(rows)]
    order = torch.tensor([i for part in parts for i in part])
    slots: list[list[tuple[int, int, int]]] = []  # (id, response, position) of each token, -1 for what is no response
    for part in parts:
        row = []
        for name, i in enumerate(part):
            row += [(name, -1, -1)] * rng.randint(0, 3)  # its prompt
            row += [(name, i, t) for t in range(int(mask[i].sum()))]
        slots.append(row)
    width = max(map(len, slots)) + 2
    ids = torch.tensor([[slot[0] for slot in row] + [0] * (width - len(row)) for row in slots])
    at = [[slot[1:] for slot in row] + [(-1, -1)] * (width - len(row)) for row in slots]
    inside = torch.tensor([[i >= 0 for i, _ in row] for row in at])
    response, position = (torch.tensor([[slot[k] for slot in row] for row in at]).clamp(min=0) for k in (0, 1))
    out: dict[str, Any] = {"sequence_ids": ids}
    for name, x in batch.items():
        if name in PER_RESPONSE:
            out[name] = x[order]
        elif isinstance(x, Tensor) and x.shape == mask.shape:
            moved = x[response, position]
            out[name] = moved & inside if name == "response_mask" else torch.where(inside, moved, torch.nan)
        else:
            out[name] = x
    return out, torch.stack([response, position])


def both(objective: Objective, seed: int, rows: int, **more: Any) -> None:
    """Value, gradient and metrics are those of the padded batch."""
    batch = padded(seed)
    if objective.beta:
        batch["ref_logps"] = batch["old_logps"] - 0.1
    row, where = packed(batch, rows, seed)
    found = []
    for given in (batch, row):
        leaf = given["logps"].clone().requires_grad_()
        loss, metrics = policy_loss(**given | more | {"logps": leaf}, objective=objective)
        (gradient,) = torch.autograd.grad(loss.nansum(), leaf)
        found.append((loss.detach(), gradient, metrics.compute()))
    (loss, gradient, metrics), (loss_of_rows, gradient_of_rows, metrics_of_rows) = found
    inside = row["response_mask"]
    moved = [torch.where(inside, x[where[0], where[1]], 0.0) for x in (gradient, loss.expand_as(gradient))]
    torch.testing.assert_close(gradient_of_rows, moved[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(loss_of_rows, moved[1] if loss.dim() else loss, rtol=1e-12, atol=1e-14)
    assert metrics == pytest.approx(metrics_of_rows, rel=1e-12, nan_ok=True)
    assert metrics["sequences"] == 7


@pytest.mark.parametrize("name", [each.name for each in methods()])
def test_each_method_on_packed_rows_is_that_of_the_padded_batch(name):
    both(method(name).objective, seed=0, rows=2)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("ratio", ["token", "sequence-mean", "mean-of-clipped"])
def test_each_average_of_each_ratio_on_packed_rows_is_that_of_the_padded_batch(average, ratio):
    objective = Objective(Clip(0.2, 0.3), ratio=ratio, aggregation=average, beta=0.1)
    for seed, rows in itertools.product(range(3), (1, 3)):
        both(objective, seed, rows)
        if average != "none":
            both(objective, seed, rows, normalizer=11.0)


def test_a_row_may_be_flat_and_advantages_may_be_of_tokens():
    row, _ = packed(padded(1), 1, 1)
    row = {name: x[0] if isinstance(x, Tensor) and x.dim() == 2 else x for name, x in row.items()}
    objective = Objective(Band("kl", 0.05), aggregation="none")
    flat, _ = policy_loss(**row, objective=objective)
    again, _ = policy_loss(**row, objective=objective, longest=9)
    inside = row["response_mask"]
    spread = torch.zeros_like(flat).masked_scatter(inside, row["advantages"][row["sequence_ids"][inside]])
    of_tokens, _ = policy_loss(**row | {"advantages": spread}, objective=objective)
    assert flat.shape == inside.shape
    assert torch.equal(flat, again)
    assert torch.equal(flat, of_tokens)
    wider, _ = policy_loss(**row, objective=Objective(aggregation="seq-mean-token-sum-norm"), longest=18)
    narrow, _ = policy_loss(**row, objective=Objective(aggregation="seq-mean-token-sum-norm"))
    torch.testing.assert_close(2 * wider, narrow)


def test_the_same_id_in_another_row_is_another_response():
    row, ids = torch.full((2, 3), -1.0), torch.tensor([[5, 5, 5], [5, 5, 5]])
    _, metrics = policy_loss(row, row, torch.ones(2), row < 0, "grpo", sequence_ids=ids)
    assert metrics.compute()["sequences"] == 2


def test_rows_without_a_response_token_need_a_normalizer_and_give_0():
    row, _ = packed(padded(2), 2, 2)
    row["response_mask"] = torch.zeros_like(row["response_mask"])
    row |= {name: row[name][:0] for name in PER_RESPONSE}
    loss, _ = policy_loss(**row, objective=Band("kl", 0.05), normalizer=3.0)
    assert loss == 0
    with pytest.raises(ValueError, match="response_mask is empty"):
        policy_loss(**row, objective=Band("kl", 0.05))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "ids of another shape": (
        {"sequence_ids": torch.zeros(1, 3, dtype=torch.long)},
        r"sequence_ids must be integers \(1, 6\)",
    ),
    "ids that are no integers": ({"sequence_ids": torch.zeros(1, 6)}, "sequence_ids must be integers .*float32"),
    "an id that comes back": (
        {"sequence_ids": torch.tensor([[4, 4, 5, 5, 4, 4]]), "advantages": torch.ones(2)},
        "one run of equal numbers .*got 4 again in row 0",
    ),
    "advantages of another number": ({"advantages": torch.ones(3)}, r"advantages must be one per response, \(2,\)"),
    "one advantage of the row": ({"advantages": torch.ones(1)}, r"one per response, \(2,\) .*, got 1 of them"),
    "too short": ({"longest": 3}, "longest must be the most tokens of a response, 4 here, got 3"),
    "half a length": ({"longest": 4.0}, "longest must be .* a positive integer, got 4.0"),
    "no length": ({"longest": 0}, "longest must be .* a positive integer, got 0"),
    "no ids": ({"sequence_ids": None, "longest": 4}, "longest goes with sequence_ids"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_packed_row_is_refused(case):
    changes, message = WRONG[case]
    given: dict[str, Any] = {
        "logps": torch.full((1, 6), -1.0),
        "old_logps": torch.full((1, 6), -1.1),
        "advantages": torch.ones(2),
        "response_mask": torch.ones(1, 6, dtype=torch.bool),
        "sequence_ids": torch.tensor([[4, 4, 4, 4, 5, 5]]),
    }
    policy_loss(**given, objective="grpo")
    with pytest.raises(ValueError, match=message):
        policy_loss(**given | changes, objective="grpo")


@pytest.mark.parametrize("ratio", ["sequence", "sequence-mean", "mean-of-clipped"])
def test_different_advantages_under_one_ratio_ask_for_sequence_ids(ratio):
    new, old, mask = torch.full((1, 6), -1.0), torch.full((1, 6), -1.1), torch.ones(1, 6)
    advantages = torch.tensor([[1.0, 1, 1, -1, -1, -1]])
    objective = Objective(Clip(0.2, 0.2), ratio=ratio)
    with pytest.raises(ValueError, match=r"vary in 1 row\. Are several responses packed into a row.* sequence_ids"):
        policy_loss(new, old, advantages, mask, objective)
    _, later = policy_loss(new, old, advantages, mask.bool(), objective, normalizer=1.0)  # which reads nothing
    with pytest.raises(ValueError, match="sequence_ids"):
        later.compute()
    ids = torch.tensor([[0, 0, 0, 1, 1, 1]])
    of_rows, _ = policy_loss(new, old, advantages, mask, objective, sequence_ids=ids)
    alone, _ = policy_loss(new.view(2, 3), old.view(2, 3), torch.tensor([1.0, -1.0]), mask.view(2, 3), objective)
    assert of_rows == alone
    policy_loss(new, old, advantages.where(mask.bool(), math.nan), torch.tensor([[1, 1, 1, 0, 0, 0]]), objective)


@pytest.mark.parametrize(
    ("ids", "mask", "advantages", "longest"),
    [
        ([1, 1, 2, 2, 2, 3], [1] * 6, [1.0, -1.0], 3),  # one response more than advantages
        ([1, 1, 2, 2, 2, 3], [0, 0, 1, 1, 1, 1], [1.0, -1.0, 1.0], 3),  # one of them has no token in the mask
        ([1, 1, 2, 2, 2, 3], [1] * 6, [1.0, -1.0, 1.0], 2),  # a longer one
        ([1, 1, 2, 2, 1, 1], [1] * 6, [1.0, -1.0, 1.0], 2),  # an id that comes back
    ],
)
def test_what_does_not_fit_is_found_later_where_nothing_is_looked_at(monkeypatch, ids, mask, advantages, longest):
    monkeypatch.setattr(packing, "_FREE", ())  # as on a GPU
    row = torch.full((1, 6), -1.0)
    given = (row, row, torch.tensor(advantages), torch.tensor([mask], dtype=torch.bool), "grpo")
    _, metrics = policy_loss(*given, normalizer=3.0, sequence_ids=torch.tensor([ids]), longest=longest)
    for read in (metrics.check, metrics.compute):
        with pytest.raises(ValueError, match="longest and advantages must fit sequence_ids"):
            read()
    with pytest.raises(ValueError, match="longest and advantages must fit sequence_ids"):
        policy_loss(*given, sequence_ids=torch.tensor([ids]), longest=longest)  # which waits for the device anyway
    fitting = torch.tensor([[1, 1, 1, 2, 2, 3]]), torch.tensor([1.0, -1.0, 1.0])
    _, metrics = policy_loss(row, row, fitting[1], row < 0, "grpo", normalizer=3.0, sequence_ids=fitting[0], longest=3)
    assert metrics.compute()["sequences"] == 3


def test_a_packed_row_of_negative_log_likelihoods_is_asked_about():
    row, ids = torch.full((1, 6), 1.0), torch.tensor([[0, 0, 0, 1, 1, 1]])
    for mask, normalizer in ((torch.ones(1, 6), 1.0), (torch.ones(1, 6, dtype=torch.bool), None)):
        with pytest.raises(ValueError, match="must be log-probabilities"):
            policy_loss(row, row, torch.ones(2), mask, "grpo", normalizer=normalizer, sequence_ids=ids)


def test_ids_that_are_no_tensor_get_a_sentence():
    row = torch.full((1, 3), -1.0)
    with pytest.raises(TypeError, match=r"sequence_ids must be a torch.Tensor, got list; torch.as_tensor"):
        policy_loss(row, row, torch.ones(1), torch.ones(1, 3), "grpo", sequence_ids=[[0, 0, 0]])


def test_a_flat_row_alone_is_said_to_be_packed():
    row = torch.full((6,), -1.0)
    with pytest.raises(ValueError, match=r"logps must be \(B, T\), got \(6,\); a packed row goes with sequence_ids"):
        policy_loss(row, row, torch.ones(6), torch.ones(6), "grpo")
