"""Batches of made-up responses, and losses of a formula per token by plain torch: what methods are held against."""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from bandpo import policy_loss
from bandpo.losses import Method, Metrics
from oracle import bisected

F64 = torch.float64
STEP = 400


def ppo(r: Tensor, a: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """min(r A, clip(r, low, high) A)"""
    clipped = torch.where(r < low, low, torch.where(r > high, high, r))
    return torch.where(r * a <= clipped * a, r * a, clipped * a)


def kl_ball(p: Tensor, delta: float) -> Tensor:
    """Return the ratios q / p at which KL(coin of p || coin of q) = delta."""
    return bisected(lambda u: u - 1 - u.log(), p, delta)


def ragged(rows: int = 5, columns: int = 7, seed: int = 0, dtype: torch.dtype = F64) -> dict[str, Tensor]:
    """Return arguments of `policy_loss`: one response empty, half of the tokens outside a usual interval."""
    torch.manual_seed(seed)
    old = torch.rand(rows, columns, dtype=F64).log()
    logps = (old + torch.randn(rows, columns, dtype=F64)).clamp(max=-1e-3)
    lengths = torch.randint(1, columns + 1, (rows,))
    lengths[1] = 0
    return {
        "logps": logps.to(dtype).requires_grad_(),
        "old_logps": old.to(dtype),
        "advantages": torch.randn(rows, dtype=F64).to(dtype),
        "response_mask": torch.arange(columns) < lengths[:, None],
    }


def batch(found: Method, rows: int = 48, columns: int = 6) -> tuple[dict[str, Tensor], Tensor]:
    """Return arguments of `policy_loss` and the sampler's log-probabilities: ragged, half of the tokens outside."""
    torch.manual_seed(len(found.name))
    old = (torch.rand(rows, columns, dtype=F64) * 0.98 + 0.005).log()
    if found.objective.is_per_token:
        logps = (old + 0.8 * torch.randn(rows, columns, dtype=F64)).clamp(max=-1e-3)
        logps[:8] = (old[:8] + 3 * torch.randn(8, columns, dtype=F64)).clamp(max=-1e-3)  # some are very far
    else:  # likely responses, else no bound binds
        old = old * 0.1
        logps = (old + 0.1 * torch.randn(rows, columns, dtype=F64)).clamp(max=-1e-3)
    sampler = (old + 0.1 * torch.randn(rows, columns, dtype=F64)).clamp(max=-1e-3)
    mask = torch.arange(columns) < torch.randint(1, columns + 1, (rows, 1))
    arguments = {
        "logps": logps.requires_grad_(),
        "old_logps": old,
        "advantages": torch.randn(rows, dtype=F64),
        "response_mask": mask,
    }
    return arguments, sampler


def shown(mask: Tensor) -> dict[str, Tensor]:
    """Return what more a rule may see: entropies that have changed a little, groups of 8 with some right answers."""
    rng = torch.Generator().manual_seed(7)
    entropies = 2 * torch.rand(mask.shape, generator=rng, dtype=F64)
    changed = entropies * (1 + 0.06 * torch.randn(mask.shape, generator=rng, dtype=F64))
    return {
        "entropies": torch.where(mask, entropies, torch.nan),
        "old_entropies": torch.where(mask, changed, torch.nan),
        "group_mean": torch.randint(1, 9, (len(mask),), generator=rng).to(F64) / 8,
        "staleness": torch.randint(0, 6, (len(mask),), generator=rng),
    }


def in_a_loop(found: Method, data: dict[str, Tensor], sampler: Tensor) -> dict:
    """Return the arguments of `policy_loss` in a loop: those that the method names, and the rest of a batch."""
    known = shown(data["response_mask"]) | {"step": STEP, "logps": data["logps"].detach()}
    extra = {name: known[name] for name in found.objective.trust_region.all_required() if name in known}
    assert all(f"{name!r}: {name}" in found.arguments for name in extra)
    assert ("old_logps=rollout_logps" in found.arguments) == found.from_sampler
    return data | ({"old_logps": sampler} if found.from_sampler else {}) | ({"extra": extra} if extra else {})


def step(data: dict, objective, **more) -> tuple[Tensor, Tensor, Metrics]:
    """Return the loss, its gradient, and what is logged."""
    loss, metrics = policy_loss(**data, objective=objective, **more)
    return loss.detach(), torch.autograd.grad(loss.sum(), data["logps"])[0], metrics


def loss_and_gradient(data: dict, objective, **more) -> tuple[Tensor, Tensor]:
    return step(data, objective, **more)[:2]


def textbook(
    formula: Callable[..., Tensor], data: dict[str, Tensor], sampler: Tensor, average: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return minus the mean over the batch by the method's average, and its gradient by autograd."""
    log_pi, mask = data["logps"].detach().requires_grad_(), data["response_mask"]
    total = torch.zeros((), dtype=F64)
    names = list(inspect.signature(formula).parameters)[4:]
    known = {name: x for name, x in shown(mask).items() if name in names}
    responses = [(i, row) for i, row in enumerate(mask) if row.any()]
    whole = {
        "token-mean": mask.sum(),
        "seq-mean-token-sum": len(responses),
        "seq-mean-token-sum-norm": len(responses) * mask.shape[1],
    }
    for i, row in responses:
        more = {name: x[i][row] if x.dim() == 2 else x[i] if x.dim() else x for name, x in known.items()}
        terms = formula(log_pi[i][row], data["old_logps"][i][row], sampler[i][row], data["advantages"][i], **more)
        total = total - terms.expand(int(row.sum())).sum() / whole.get(average or "", row.sum() * len(responses))
    return total.detach(), torch.autograd.grad(total, log_pi)[0]
