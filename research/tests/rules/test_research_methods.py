"""The methods of research/methods.yaml against their formulas, as tests/losses/test_methods.py holds the library's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from textbook import F64, batch, in_a_loop, loss_and_gradient, ppo, textbook
from torch import Tensor

import research.rules.budget
import research.rules.exact  # noqa: F401 the methods name these rules
from bandpo.losses.nodes import methods, read_methods
from research.rules.full_divergence import top_k_divergence

METHODS = {each.name: each for each in read_methods(Path(__file__).parents[2] / "methods.yaml")}


def aspo(log_pi, old, sampler, a, entropies):
    r = torch.exp(log_pi - old)
    eps = torch.where(entropies <= torch.quantile(entropies, 0.8), 0.2, 0.4)
    flipped = torch.where(r > 1 + eps, 0.0, (1 / r.detach()).clamp(max=3) * a * log_pi)
    return flipped if a > 0 else torch.where(r < 1 - eps, 0.0, r.detach().clamp(max=3) * a * log_pi)


def drpo(log_pi, old, mu, a):
    r = torch.exp(log_pi - mu)
    return r * a - a.abs() * mu.exp() * (r - 1) ** 2 / (2 * 12.5)


def dppo_top_k(log_pi, old, mu, a):
    """For a vocabulary of two, of which the likeliest is the drawn one: there the divergence is |pi - mu|."""
    rise = (log_pi.exp() - mu.exp()).detach()
    return a * torch.exp(log_pi - mu).detach() * log_pi * ((rise.abs() <= 0.15) | (rise * a <= 0))


def band_budget(log_pi, old, sampler, a):
    p, r = old.exp(), torch.exp(log_pi - old)
    fixed, lowest, highest = r.detach(), 0 * p, 1 / p

    def interval(m):
        near, far = torch.ones_like(p).repeat(2, 1), torch.stack([lowest, highest])
        for _ in range(60):
            middle = (near + far) / 2
            flat = (p * (middle - 1) / (middle * (1 - middle * p))).abs() <= m
            near, far = torch.where(flat, middle, near), torch.where(flat, far, middle)
        return near

    def spends(m):
        low, high = interval(m)
        q = p * torch.minimum(torch.maximum(fixed, low), high)
        return (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum() > 0.05 * len(p)

    if not spends(torch.tensor(1e9, dtype=F64)):
        return ppo(r, a, lowest, highest)
    low, high = torch.tensor([-20.0, 20.0], dtype=F64)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if spends(middle.exp()) else (middle, high)
    return ppo(r, a, *interval(low.exp()))


FORMULAS = {"aspo": aspo, "drpo": drpo, "dppo-top-k": dppo_top_k, "band-budget": band_budget}


def flipped_ratio(data: dict[str, Tensor], sampler: Tensor) -> dict[str, Tensor]:
    """Return ASPO's weights: min(1 / r, 3) / r where A > 0, min(r, 3) / r elsewhere."""
    moved = (data["old_logps"] - data["logps"].detach()).clamp(-60, 60)
    return {
        "rollout_is_weights": torch.minimum(2 * moved * (data["advantages"][:, None] > 0), moved + math.log(3)).exp()
    }


def penalty(data: dict[str, Tensor], sampler: Tensor) -> dict[str, Tensor]:
    """Return DRPO's weights, 1 - sign(A) (pi - pi_rollout) / 12.5."""
    rise = data["logps"].detach().exp() - sampler.exp()
    return {"rollout_is_weights": 1 - data["advantages"].sign()[:, None] * rise / 12.5}


def of_the_vocabulary(data: dict[str, Tensor], sampler: Tensor) -> dict[str, Tensor]:
    """Return the divergences over a vocabulary of two, of which the first token is the one that is drawn."""
    logps = data["logps"].detach()
    logits, first = torch.stack([logps, torch.log1p(-logps.exp())], -1), torch.zeros_like(logps, dtype=torch.int64)
    return {"divergences": top_k_divergence(logits, first[..., None], sampler[..., None], "tv")}


MORE = {"aspo": flipped_ratio, "drpo": penalty, "dppo-top-k": of_the_vocabulary}


def test_every_method_has_a_formula_and_none_is_the_librarys():
    assert METHODS.keys() == FORMULAS.keys()
    assert not METHODS.keys() & {each.name for each in methods()}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_method_is_its_textbook(name):
    found = METHODS[name]
    data, sampler = batch(found, 16 if name == "band-budget" else 48)
    more = in_a_loop(found, data, sampler) | MORE.get(name, lambda *_: {})(data, sampler)
    value, gradient = loss_and_gradient(more, found.objective)
    expected, slope = textbook(FORMULAS[name], data, sampler, found.objective.aggregation)
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-14)
    if name == "band-budget":  # the others have another value with the same gradient
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)


def test_aspo_is_finite_however_far_a_ratio_is():
    old = torch.tensor([[-1.0, -1.0, -1.0, -90.0, -torch.inf]]).repeat(2, 1)
    logps = torch.tensor([[-46.0, -1.0, -torch.inf, -1.0, -1.0]]).repeat(2, 1).requires_grad_()
    data = {"logps": logps, "old_logps": old, "advantages": torch.tensor([1.0, -1.0]), "response_mask": old < 0}
    more = in_a_loop(METHODS["aspo"], data, old) | flipped_ratio(data, old)
    loss, gradient = loss_and_gradient(more, METHODS["aspo"].objective)
    assert loss.isfinite()
    assert gradient.isfinite().all()
