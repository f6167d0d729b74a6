"""The methods of research/methods.yaml against their formulas, as tests/losses/test_methods.py holds the library's."""

import math
from pathlib import Path

import pytest
import torch
from textbook import F64, batch, in_a_loop, kl_ball, loss_and_gradient, ppo, shown, textbook
from torch import Tensor

import research.rules  # noqa: F401 the methods name these rules
from bandpo.losses.nodes import methods
from research.rules.full_divergence import top_k_divergence

METHODS = {each.name: each for each in methods(Path(__file__).parents[2] / "methods.yaml")}


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


def cppo(log_pi, old, mu, a):
    r, gap = torch.exp(log_pi - mu).detach(), (log_pi.exp() - mu.exp()).abs().detach()
    stays, spent, earned = [], 0.0, 0.0
    for t in range(len(r)):
        w = 1 - 0.2 * t / (len(r) - 1) if len(r) > 1 else 1.0
        spent += w * gap[t]
        inside = w * gap[t] <= 0.15 and spent <= 0.15 + 0.015 * earned
        earned += w
        stays.append(1.0 if inside or a * (r[t] - 1) <= 0 else 0.0)
    return a * r * log_pi * torch.tensor(stays, dtype=F64)


def gapo(log_pi, old, sampler, a, group_mean):
    right = group_mean * 8
    return ppo((log_pi - old).mean().exp(), a, 1 - 3e-3, 1 + 3e-3 + (5e-3 - 3e-3) * (8 - right) / 7)


def erc(log_pi, old, sampler, a, entropies, old_entropies):
    terms = ppo(torch.exp(log_pi - old), a, 0.8, 1.28)
    terms = torch.where((a < 0) & (terms < 10 * a), 10 * a, terms)
    ratio = (entropies + 1e-8) / (old_entropies + 1e-8)
    return torch.where((ratio > 0.95) & (ratio < 1.05), terms, terms.detach())


def a3po(log_pi, old, sampler, a, staleness):
    alpha = 1.0 if staleness == 0 else 1 / staleness
    prox = (alpha * sampler + (1 - alpha) * log_pi).detach()
    return (prox - sampler).exp() * ppo((log_pi - prox).exp(), a, 0.8, 1.2)


def band_entropy(log_pi, old, sampler, a, old_entropies):
    weights = (old_entropies / 2).exp().clamp(max=10)
    return ppo((log_pi - old).exp(), a, *kl_ball(old.exp(), 0.05 * weights / 1.6))


FORMULAS = {
    "band-entropy": band_entropy,
    "aspo": aspo,
    "drpo": drpo,
    "dppo-top-k": dppo_top_k,
    "cppo": cppo,
    "gapo": gapo,
    "erc": erc,
    "a-3po": a3po,
}
SAME_VALUE = ("band-entropy", "gapo")  # the others have another value with the same gradient


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
    return {"extra": {"divergences": top_k_divergence(logits, first[..., None], sampler[..., None], "tv")}}


def of_the_batch(name: str):
    return lambda data, sampler: {"extra": {name: shown(data["response_mask"])[name]}}


MORE = {
    "aspo": flipped_ratio,
    "drpo": penalty,
    "dppo-top-k": of_the_vocabulary,
    "gapo": of_the_batch("group_mean"),
    "a-3po": of_the_batch("staleness"),
}


def test_every_method_has_a_formula_and_none_is_the_librarys():
    assert METHODS.keys() == FORMULAS.keys()
    assert not METHODS.keys() & {each.name for each in methods()}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_method_is_its_textbook(name):
    method = METHODS[name]
    data, sampler = batch(method, 48)
    more = in_a_loop(method, data, sampler) | MORE.get(name, lambda *_: {})(data, sampler)
    if name == "band-entropy":  # the mean weight of a larger batch
        more["extra"] |= {"mean_weight": 1.6}
    value, gradient = loss_and_gradient(more, method.objective)
    expected, slope = textbook(FORMULAS[name], data, sampler, method.objective.aggregation)
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-14)
    if name in SAME_VALUE:
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)


def test_aspo_is_finite_however_far_a_ratio_is():
    old = torch.tensor([[-1.0, -1.0, -1.0, -90.0, -torch.inf]]).repeat(2, 1)
    logps = torch.tensor([[-46.0, -1.0, -torch.inf, -1.0, -1.0]]).repeat(2, 1).requires_grad_()
    data = {"logps": logps, "old_logps": old, "advantages": torch.tensor([1.0, -1.0]), "response_mask": old < 0}
    more = in_a_loop(METHODS["aspo"], data, old) | flipped_ratio(data, old)
    loss, gradient = loss_and_gradient(more, METHODS["aspo"].objective)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_cppo_spends_its_budget_along_a_response():
    """Near the sampler the sum over the tokens before decides, not the limit of a single token."""
    data, sampler = batch(METHODS["cppo"], rows=100, columns=24)
    data["logps"] = (sampler + 0.2 * (data["logps"].detach() - sampler)).requires_grad_()
    gradient = loss_and_gradient(in_a_loop(METHODS["cppo"], data, sampler), METHODS["cppo"].objective)[1]
    expected = textbook(cppo, data, sampler, METHODS["cppo"].objective.aggregation)[1]
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-14)


def test_erc_has_a_dual_clip_at_10():
    """Few tokens of a batch are near it."""
    r = torch.tensor([[0.79, 0.81, 9.9, 10.1]], dtype=F64)
    data = {"logps": (r / 20).log().requires_grad_(), "old_logps": torch.full_like(r, math.log(0.05))}
    data |= {"advantages": -torch.ones(1), "response_mask": r > 0, "extra": {"entropies": r, "old_entropies": r}}
    _, gradient = loss_and_gradient(data, METHODS["erc"].objective)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.81, 9.9, 0.0]], dtype=F64) / 4)
