"""A made batch of log-probabilities over decades of the old probability, both signs of A, with garbage in padding."""

import ast
import itertools

import torch
from scripts import ROOT

import bandpo

DECADES = [1e-9, 1e-7, 1e-5, 1e-3, 0.01, 0.11, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 0.99999]
RATIOS = [-19.0, -3.0, -0.5, -0.2, -0.1, 0.0, 0.1, 0.2, 0.25, 0.4, 1.2, 3.0, 15.0]
ADVANTAGES = [2.0, 1.0, 0.0, -0.5, -4.0]  # powers of two: no product with them is rounded
BANDS = [bandpo.Band("kl", 0.05), bandpo.Band("tv", 0.2), bandpo.Band("chi2", 0.3)]


def batch(decades=DECADES, ratios=RATIOS, advantages=ADVANTAGES, dtype=torch.float32, empty=True):
    """logps, old_logps, advantages, mask, all (B, T): every pair of log-ratio and advantage at every decade."""
    cells = list(itertools.product(ratios, advantages))
    old = torch.tensor(decades, dtype=dtype).log().repeat(len(cells), 1)
    log_ratio = torch.tensor([[s] * len(decades) for s, _ in cells], dtype=dtype)
    return _padded(old, log_ratio, torch.tensor([a for _, a in cells], dtype=dtype), empty)


def around(region, decades=DECADES, dtype=torch.float64, empty=True, parts=(0.3, 0.99, 1.01, 2.0)):
    """The same, with tokens 1 % inside and outside of the region's bounds and far from them, or at such parts of it."""
    old = torch.tensor(decades, dtype=dtype).log()
    bounds = region.bounds(old)
    rows = [f * side for f in parts for side in (bounds.log_low, bounds.log_high)]
    rows = torch.stack([row.nan_to_num(neginf=-19.0).clamp(-19.0, 19.0) for row in rows])
    rows = torch.where(rows + old < 0, rows, 0.5 * (rows - old).clamp(max=0))  # a probability is at most 1
    advantages = torch.tensor([1.5] * len(rows) + [-0.75] * len(rows), dtype=dtype)
    return _padded(old.expand_as(rows).repeat(2, 1), rows.repeat(2, 1), advantages, empty)


def _padded(old, log_ratio, advantages, empty):
    """Rows of random length, their tokens in random order; the last row is empty."""
    rows, columns = old.shape
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, columns + 1, (rows, 1), generator=generator)
    if empty:
        lengths[-1] = 0
    mask = torch.arange(columns) < lengths
    order = torch.stack([torch.randperm(columns, generator=generator) for _ in range(rows)])
    old, log_ratio = old.gather(1, order), log_ratio.gather(1, order)
    logps = torch.minimum(old + log_ratio, torch.zeros_like(old))
    garbage = torch.where(mask, 0.0, 3.0).to(old.dtype)
    return logps - 2 * garbage, old - garbage, advantages[:, None].expand_as(old).contiguous(), mask


def gradient(loss, x):
    """Value and gradient of `loss` of a leaf."""
    x = x.clone().requires_grad_()
    value = loss(x)
    return value.detach(), torch.autograd.grad(value, x)[0]


def policy_loss(logps, old_logps, advantages, mask, region, normalizer, *, surrogate="clip", **tensors):
    """Value and gradient of `bandpo.policy_loss`: the sum over tokens by `normalizer`."""
    objective = bandpo.Objective(region, surrogate=surrogate, aggregation="token-mean")

    def loss(x):
        return bandpo.policy_loss(x, old_logps, advantages, mask, objective, normalizer=normalizer, **tensors)[0]

    return gradient(loss, logps)


def assert_near(found, wanted, dtype):
    """Values, and gradients within so much of the largest one; the same tokens have none."""
    least = {torch.float32: 1e-6, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(found[0], wanted[0], rtol=least, atol=0)
    torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=least * wanted[1].abs().max().item())
    assert torch.equal(found[1] != 0, wanted[1] != 0)


def docstring(host):
    """That of `bandpo.integrations.<host>`, which is not imported."""
    source = (ROOT / "src" / "bandpo" / "integrations" / f"{host}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def lines(host):
    """What the docstring gives to copy: its indented lines."""
    return "\n".join(line[4:] for line in docstring(host).splitlines() if line.startswith("    "))


def executed(host, **names):
    """The names after these lines, from the names before them."""
    exec(lines(host), names)
    return names
