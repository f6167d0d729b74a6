"""Packed rows are laid out as the padded batch: tokens, order and gradients; what is not a packed row is refused."""

import random

import pytest
import torch
from torch import Tensor

from bandpo import Clip, Objective, policy_loss
from bandpo.losses import unpack

F64 = torch.float64


def padded(seed: int, count: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """A ragged batch, the longest response as long as the batch is wide."""
    torch.manual_seed(seed)
    mask = torch.arange(9) < torch.tensor([*torch.randint(1, 9, (count - 1,)), 9])[:, None]
    old = torch.rand(count, 9, dtype=F64).log()
    return mask, (old + torch.randn(count, 9, dtype=F64) / 2).clamp(max=-1e-3), old


def packed(
    mask: Tensor, tensors: tuple[Tensor, ...], rows: int, seed: int
) -> tuple[Tensor, Tensor, list[Tensor], list[int]]:
    """The same tokens, several responses to a row, with prompts and padding of junk between them."""
    rng = random.Random(seed)
    parts = [range(i, len(mask), rows) for i in range(rows)]
    lines: list[list[tuple[int, int, int]]] = []  # (id, response, position) of each token, -1 outside responses
    for part in parts:
        line = []
        for name, i in enumerate(part):  # after its prompt
            line += [(name, -1, -1)] * rng.randint(0, 3) + [(name, i, t) for t in range(int(mask[i].sum()))]
        lines.append(line)
    width = max(map(len, lines)) + 2
    ids, response, position = torch.tensor([line + [(0, -1, -1)] * (width - len(line)) for line in lines]).unbind(-1)
    inside = response >= 0
    moved = [torch.where(inside, x[response.clamp(min=0), position.clamp(min=0)], torch.nan) for x in tensors]
    return ids, inside, moved, [i for part in parts for i in part]


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_packed_rows_are_laid_out_as_the_padded_batch(seed, rows):
    mask, *tensors = padded(seed)
    ids, inside, moved, order = packed(mask, tuple(tensors), rows, seed)
    found, *laid_out = unpack(ids, inside.float(), *moved)
    assert torch.equal(found, mask[order])
    for x, expected in zip(laid_out, tensors, strict=True):
        assert torch.equal(x, torch.where(mask, expected, 0.0)[order])


def test_the_loss_and_its_gradient_are_those_of_the_padded_batch():
    mask, new, old = padded(0)
    advantages, leaf = torch.randn(7, dtype=F64), new.requires_grad_()
    ids, inside, moved, order = packed(mask, (leaf, old), 2, 0)
    found, *laid_out = unpack(ids, inside, *moved)
    results = []
    for tensors in ((*laid_out, advantages[order], found), (leaf, old, advantages, mask)):
        loss, metrics = policy_loss(*tensors, Objective(Clip(0.2, 0.3), ratio="sequence-mean"))
        results.append((loss.detach(), torch.autograd.grad(loss, leaf, retain_graph=True)[0], metrics.compute()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-15)


def test_a_row_may_be_flat_and_the_same_id_in_another_row_is_another_response():
    ids = torch.tensor([5, 5, 5, 2])
    assert unpack(ids, torch.ones(4), ids.float())[1].tolist() == [[5, 5, 5], [2, 0, 0]]
    assert unpack(torch.full((2, 3), 5), torch.ones(2, 3))[0].shape == (2, 3)
    assert unpack(ids, torch.zeros(4), ids.float())[1].shape == (0, 0)


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (torch.zeros(1, 6), torch.ones(1, 6), "sequence_ids must be integers.*float32"),
        (torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 6), r"must have one shape, .* got \[\(1, 3\), \(1, 6\)\]"),
        (torch.tensor([[4, 4, 5, 5, 4, 4]]), torch.full((1, 6), 0.5), "bool or hold 0 and 1 only, got a 0.5"),
        (torch.tensor([[4, 4, 5, 5, 4, 4]]), torch.ones(1, 6), "one run of equal numbers .*got 4 again in row 0"),
    ],
)
def test_what_is_no_packed_row_is_refused(ids, mask, message):
    with pytest.raises(ValueError, match=message):
        unpack(ids, mask)


@pytest.mark.parametrize("ratio", ["sequence", "sequence-mean", "mean-of-clipped"])
def test_different_advantages_under_one_ratio_are_refused(ratio):
    new, old, mask = torch.full((1, 6), -1.0), torch.full((1, 6), -1.1), torch.ones(1, 6)
    advantages, objective = torch.tensor([[1.0, 1, 1, -1, -1, -1]]), Objective(Clip(0.2, 0.2), ratio=ratio)
    with pytest.raises(ValueError, match=r"vary in 1 row\. Are several responses packed into a row.*losses\.unpack"):
        policy_loss(new, old, advantages, mask, objective)
    _, later = policy_loss(new, old, advantages, mask.bool(), objective, normalizer=1.0)  # which reads nothing
    with pytest.raises(ValueError, match=r"losses\.unpack"):
        later.compute()
    policy_loss(new, old, advantages.where(mask.bool(), torch.nan), torch.tensor([[1, 1, 1, 0, 0, 0]]), objective)
