"""Each method against its formula, written here without our rules and surrogates: values by plain torch, gradients by
autograd, in float64; and names, nodes, pages and commands of methods."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml
from regions import parse_region
from scripts import load as load_script
from torch import Tensor

import bandpo
from bandpo import (
    Band,
    BySign,
    Clip,
    Decaying,
    Objective,
    Preserve,
    Relaxed,
    integrations,
    method,
    objective,
    policy_loss,
)
from bandpo.cli import main
from bandpo.config.recipe import build, load
from bandpo.errors import UserError
from bandpo.integrations import REFUSED, SHOWN, objective_for, say_average, tell
from bandpo.losses.aggregation import Aggregation
from bandpo.losses.methods import METHODS
from bandpo.losses.notation import allowed, in_words, label_of_objective, parse_objective, short_node
from bandpo.reports.explanation import explain
from bandpo.training.on_verl import load as load_for_verl
from bandpo.training.side_by_side import plan
from bandpo.trust_regions.nodes import kinds

F64 = torch.float64
STEP = 400

# ---- the formulas, of one response: per token, from log pi, old log p, the sampler's log p, and A of the response


def ppo(r: Tensor, a: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """min(r A, clip(r, low, high) A)"""
    clipped = torch.where(r < low, low, torch.where(r > high, high, r))
    return torch.where(r * a <= clipped * a, r * a, clipped * a)


def fixed(low: float, high: float) -> Callable[..., Tensor]:
    return lambda log_pi, old, sampler, a: ppo((log_pi - old).exp(), a, low, high)


def two_levels(log_pi, old, sampler, a):
    high = 1.005 + (1.7 - 1.005) * (old.exp() <= 0.5).to(old)
    return ppo((log_pi - old).exp(), a, 0.95, high)


def weighted(log_pi, old, sampler, a):
    return (1 - 0.15 * (a > 0).to(old)) * ppo((log_pi - old).exp(), a, 0.98, 2.0)


def dual_clip(log_pi, old, sampler, a):
    """Where A < 0 max(min(r A, clip(r, 0.8, 1.2) A), 3 A)"""
    least = ppo((log_pi - old).exp(), a, 0.8, 1.2)
    return torch.where((a < 0) & (least < 3 * a), 3 * a, least)


def two_sided(log_pi, old, sampler, a):
    """min(min(r, 4) A, clip(r, 0.8, 1.2) A)"""
    r = torch.exp(log_pi - old)
    first, second = torch.where(r > 4, 4.0, r) * a, r.clamp(0.8, 1.2) * a
    return torch.where(first <= second, first, second)


def decaying_clip(log_pi, old, sampler, a):
    eps = 0.2 + (0.05 - 0.2) * STEP / 1000
    return ppo((log_pi - old).exp(), a, 1 - eps, 1 + eps)


def kl_ball(p: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """The ratios q / p at which KL(coin of p || coin of q) = delta, by bisection in log q / (1 - q)."""

    def kl(q):
        return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()

    ends = []
    for end in (-60.0, 30.0):
        near, far = torch.logit(p), torch.full_like(p, end)
        for _ in range(64):  # from 90 apart to less than a float's last digit
            middle = (near + far) / 2
            outside = kl(torch.sigmoid(middle)) > delta
            near, far = torch.where(outside, near, middle), torch.where(outside, middle, far)
        ends.append(torch.sigmoid(near) / p)
    return ends[0], ends[1]


def band(delta: float) -> Callable[..., Tensor]:
    return lambda log_pi, old, sampler, a: ppo((log_pi - old).exp(), a, *kl_ball(old.exp(), delta))


def decaying_band(log_pi, old, sampler, a):
    delta = 0.2 + (0.02 - 0.2) * (1 - math.cos(math.pi * STEP / 1000)) / 2
    return band(delta)(log_pi, old, sampler, a)


def within(rise: Tensor, log_pi: Tensor, old: Tensor, a: Tensor) -> Tensor:
    """PPO with |q - p| at most `rise`, of probabilities."""
    p = old.exp()
    return ppo((log_pi - old).exp(), a, (p - rise).clamp(min=0) / p, (p + rise).clamp(max=1) / p)


def band_tv(log_pi, old, sampler, a):
    return within(torch.tensor(0.05, dtype=F64), log_pi, old, a)


def band_chi2(log_pi, old, sampler, a):
    p = old.exp()
    return within((0.05 * p * (1 - p)).sqrt(), log_pi, old, a)


def band_relaxed(log_pi, old, sampler, a):
    low, high = kl_ball(old.exp(), 0.05)
    return ppo((log_pi - old).exp(), a, low.clamp(max=0.8), high.clamp(min=1.28))


def dcpo(log_pi, old, sampler, a):
    p = old.exp()
    low = 0.5 + 0.5 * (1 - 4 * 0.16 / p).clamp(min=0).sqrt()
    high = (0.5 + 0.5 * (1 + 4 * 0.2 / p).sqrt()).clamp(max=10)
    return ppo((log_pi - old).exp(), a, low, high)


def trgppo(log_pi, old, sampler, a):
    low, high = kl_ball(old.exp(), 0.03)
    return ppo((log_pi - old).exp(), a, low.clamp(max=0.8), high.clamp(min=1.2))


def band_of_response(log_pi, old, sampler, a):
    return ppo((log_pi - old).sum().exp(), a, *kl_ball(old.sum().exp(), 0.05))


def dppo(cap: float) -> Callable[..., Tensor]:
    """As verl writes it; mu is the sampler, and the trainer's old policy does not matter."""

    def formula(log_pi, old, mu, a):
        r, rise = torch.exp(log_pi - mu).detach(), (log_pi.exp() - mu.exp()).detach()
        return a * r.clamp(max=cap) * log_pi * (rise <= 0.15 if a > 0 else rise >= -0.15)

    return formula


def cppo(log_pi, old, mu, a):
    r, gap = torch.exp(log_pi - mu).detach(), (log_pi.exp() - mu.exp()).abs().detach()
    kept, spent, earned = [], 0.0, 0.0
    for t in range(len(r)):
        w = 1 - 0.2 * t / (len(r) - 1) if len(r) > 1 else 1.0
        spent += w * gap[t]
        inside = w * gap[t] <= 0.15 and spent <= 0.15 + 0.015 * earned
        earned += w
        kept.append(1.0 if inside or a * (r[t] - 1) <= 0 else 0.0)
    return a * r.clamp(max=20) * log_pi * torch.tensor(kept, dtype=F64)


def ripo(log_pi, old, sampler, a):
    eps = (0.05 / old.exp()).sqrt()
    return ppo((log_pi - old).exp(), a, (1 - eps).clamp(min=0), 1 + eps)


def cispo(log_pi, old, sampler, a):
    return torch.exp(log_pi - old).detach().clamp(max=5) * a * log_pi


def topr(log_pi, old, sampler, a):
    r = torch.exp((log_pi - old).sum()).detach()
    return (1 if a > 0 else r.clamp(0, 1)) * a * log_pi.sum()


def up(log_pi, old, sampler, a):
    r = torch.exp(log_pi - old)
    return torch.exp(log_pi - log_pi.detach()) * a if a > 0 else torch.where(r < 0.8, 0.8, r) * a


def ce_gppo(log_pi, old, sampler, a):
    r = torch.exp(log_pi - old)
    kept = r / r.detach()
    if a > 0:
        return torch.where(r > 1.2, 1.0 * 1.2 * kept, r) * a
    return torch.where(r < 0.8, 0.5 * 0.8 * kept, r) * a


def aspo(log_pi, old, sampler, a, entropies):
    r = torch.exp(log_pi - old)
    eps = torch.where(entropies <= torch.quantile(entropies, 0.8), 0.2, 0.4)
    flipped = torch.where(r > 1 + eps, 0.0, (1 / r.detach()).clamp(max=3) * a * log_pi)
    return flipped if a > 0 else torch.where(r < 1 - eps, 0.0, r.detach().clamp(max=3) * a * log_pi)


def gspo(log_pi, old, sampler, a):
    return ppo((log_pi - old).mean().exp(), a, 1 - 3e-4, 1 + 4e-4)


def gmpo(log_pi, old, sampler, a):
    s = log_pi - old
    held = torch.where(s > 0.4, 0.4, s) if a > 0 else torch.where(s < -0.4, -0.4, s)
    return held.mean().exp() * a


def dis(log_pi, old, sampler, a):
    r = torch.exp(log_pi - sampler)
    return torch.where((r < 0.7) | (r > 6.0), 0.0, r.detach() * a * log_pi)


def gppo(log_pi, old, sampler, a):
    r = torch.exp(log_pi - old)
    kept = r / r.detach()
    return torch.where(r > 1.28, 1.28 * kept, r) * a if a > 0 else torch.where(r < 0.8, 0.8 * kept, r).clamp(max=10) * a


def abc_grpo(log_pi, old, sampler, a):
    return torch.exp(log_pi - old).clamp(0.8, 1.2) * a


def atr_grpo(log_pi, old, sampler, a):
    """The gradient is stopped where r - 1 - log r > 0.02 and A drives r further from 1, by membership."""
    r = torch.exp(log_pi - old)
    outside = r - 1 - r.log() > 0.02
    bound = (1.21348 if a > 0 else 0.81333) * torch.ones_like(r)
    for _ in range(9):  # to all digits
        bound = bound - (bound - 1 - bound.log() - 0.02) / (1 - 1 / bound)
    return torch.where(outside & ((r > 1) == (a > 0)), bound, r) * a


def kpop(log_pi, old, sampler, a):
    p, q = sampler.exp(), log_pi.exp().detach()
    one = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
    other = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    return torch.where(torch.maximum(one, other) > 0.75, 0.0, q / p * a * log_pi)


def wilson(log_pi, old, sampler, a):
    """The centre and the half width of textbooks, for z^2 / n = 0.05."""
    p, z2 = old.exp(), 0.05
    centre = (p + z2 / 2) / (1 + z2)
    half = (z2 * p * (1 - p) + z2**2 / 4).sqrt() / (1 + z2)
    return ppo((log_pi - old).exp(), a, (centre - half) / p, (centre + half) / p)


def band_entropy(log_pi, old, sampler, a, old_entropies, mean_weight):
    weights = (old_entropies / 2).exp().clamp(max=10)
    low, high = kl_ball(old.exp(), 0.05 * weights / mean_weight)
    return ppo((log_pi - old).exp(), a, low, high)


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


def sapo(log_pi, old, sampler, a):
    tau = 1.0 if a > 0 else 1.05
    return 4 / tau / (1 + torch.exp(-tau * (torch.exp(log_pi - old) - 1))) * a


def dgpo(log_pi, old, sampler, a):
    """As the paper writes it, by the gradient of pi: W A pi, W a power of sg(pi) outside, continuous at the bounds."""
    pi, p = log_pi.exp(), old.exp()
    fixed, r = pi.detach(), (pi / p).detach()
    n, m, low, high = 1, 2, 0.8, 1.2
    weight = torch.where((r < low) & (a < 0), low**-n * p ** -(n + 1) * fixed**n, 1 / p)
    weight = torch.where((r > high) & (a > 0), high ** (1 / m) * p ** (1 / m - 1) * fixed ** (-1 / m), weight)
    return weight * a * pi


def cfpo(log_pi, old, sampler, a):
    r = torch.exp(log_pi - old)
    return r * a - a.abs() / (2 * 0.2) * (r - 1) ** 2


def drpo(log_pi, old, mu, a):
    r = torch.exp(log_pi - mu)
    return r * a - a.abs() * mu.exp() * (r - 1) ** 2 / (2 * 12.5)


FORMULAS: dict[str, Callable[..., Tensor]] = {
    "grpo": fixed(0.8, 1.2),
    "ppo": fixed(0.8, 1.2),
    "clip-higher": fixed(0.8, 1.28),
    "dapo": fixed(0.8, 1.28),
    "dr-grpo": fixed(0.8, 1.2),
    "dual-clip": dual_clip,
    "two-sided-grpo": two_sided,
    "clip-wide": fixed(0.8, 2.0),
    "weighted-clip": weighted,
    "two-level-clip": two_levels,
    "no-clip": fixed(0.0, math.inf),
    "decaying-clip": decaying_clip,
    "decaying-band": decaying_band,
    "dcpo": dcpo,
    "trgppo": trgppo,
    "band-kl": band(0.05),
    "band-tv": band_tv,
    "band-chi2": band_chi2,
    "band-relaxed": band_relaxed,
    "band-sequence": band_of_response,
    "dppo": dppo(20),
    "ripo": ripo,
    "cispo": cispo,
    "topr": topr,
    "up": up,
    "ce-gppo": ce_gppo,
    "gppo": gppo,
    "abc-grpo": abc_grpo,
    "gspo": gspo,
    "gmpo": gmpo,
    "dis": dis,
    "atr-grpo": atr_grpo,
    "kpop": kpop,
    "wilson": wilson,
    "sapo": sapo,
    "dgpo": dgpo,
    "cfpo": cfpo,
    "drpo": drpo,
    "cppo": cppo,
    "band-entropy": band_entropy,
    "aspo": aspo,
    "gapo": gapo,
    "erc": erc,
    "a-3po": a3po,
}
# Of these the value is another one with the same gradient: A log pi for A pi / sg(pi), r A for sg(r) A log pi, or 0
# for a constant.
OTHER_VALUE = {
    "up",
    "ce-gppo",
    "gppo",
    "abc-grpo",
    "dppo",
    "aspo",
    "dis",
    "kpop",
    "erc",
    "a-3po",
    "drpo",
    "cppo",
}
OF_RESPONSES = {"band-sequence", "topr", "gspo", "gapo"}


def batch(name: str, rows: int = 48, columns: int = 6) -> tuple[dict[str, Tensor], Tensor]:
    """Arguments of `policy_loss`, and log-probabilities of the sampler: ragged, half of what there is outside."""
    torch.manual_seed(len(name))
    old = (torch.rand(rows, columns, dtype=F64) * 0.98 + 0.005).log()
    far = 0.8
    if name in OF_RESPONSES:  # likely responses, else no bound binds
        old, far = old * 0.1, 0.1
    logps = (old + far * torch.randn(rows, columns, dtype=F64)).clamp(max=-1e-3)
    if name not in OF_RESPONSES:  # some are very far
        logps[:8] = (old[:8] + 3 * torch.randn(8, columns, dtype=F64)).clamp(max=-1e-3)
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
    """What more a rule may see of such a batch, the same each time: entropies that have changed a little, groups of 8
    of which some are right."""
    rng = torch.Generator().manual_seed(7)
    entropies = 2 * torch.rand(mask.shape, generator=rng, dtype=F64)
    changed = entropies * (1 + 0.06 * torch.randn(mask.shape, generator=rng, dtype=F64))
    return {
        "entropies": torch.where(mask, entropies, torch.nan),
        "old_entropies": torch.where(mask, changed, torch.nan),
        "group_mean": torch.randint(1, 9, (len(mask),), generator=rng).to(F64) / 8,
        "staleness": torch.randint(0, 6, (len(mask),), generator=rng),
        "mean_weight": torch.tensor(1.6, dtype=F64),
    }


def in_a_loop(line: str, data: dict[str, Tensor], sampler: Tensor) -> dict:
    """What a method says stands beside its objective, and the rest of a batch."""
    return data | eval(f"dict({line})", names_of_a_loop(data, sampler))


def names_of_a_loop(data: dict[str, Tensor], sampler: Tensor) -> dict:
    logps = data["logps"].detach()
    more = shown(data["response_mask"]) | {
        "minimum": torch.minimum,
        "sign": torch.sign,
        "step": STEP,
        "rollout_logps": sampler,
        # A vocabulary of two, of which the first one is the one that is drawn.
        "logits": torch.stack([logps, torch.log1p(-logps.exp())], -1),
        "top_logps": sampler[..., None],
        "top_tokens": torch.zeros_like(logps, dtype=torch.int64)[..., None],
    }
    return vars(bandpo) | vars(math) | data | more


def loss_and_gradient(data: dict, value) -> tuple[Tensor, Tensor]:
    loss, _ = policy_loss(**data, objective=value)
    return loss.detach(), torch.autograd.grad(loss, data["logps"])[0]


def textbook(
    formula: Callable[..., Tensor], data: dict[str, Tensor], sampler: Tensor, average: str | None = None
) -> tuple[Tensor, Tensor]:
    """Minus the mean over the batch by the method's average, by autograd."""
    log_pi = data["logps"].detach().requires_grad_()
    total = torch.zeros((), dtype=F64)
    names = list(inspect.signature(formula).parameters)[4:]
    known = {name: x for name, x in shown(data["response_mask"]).items() if name in names}
    for i, row in enumerate(data["response_mask"]):
        more = {name: x[i][row] if x.dim() == 2 else x[i] if x.dim() else x for name, x in known.items()}
        terms = formula(log_pi[i][row], data["old_logps"][i][row], sampler[i][row], data["advantages"][i], **more)
        whole = {"token-mean": data["response_mask"].sum(), "seq-mean-token-sum-norm": row.numel() * len(log_pi)}
        total = total - terms.expand(int(row.sum())).sum() / whole.get(average or "", row.sum() * len(log_pi))
    return total.detach(), torch.autograd.grad(total, log_pi)[0]


# The average of each method's paper, read once more.
AVERAGES = dict.fromkeys(FORMULAS)
AVERAGES |= dict.fromkeys(
    "grpo dcpo band-kl band-tv band-chi2 band-relaxed topr abc-grpo gspo gmpo kpop sapo gapo".split(),  # noqa: SIM905
    "seq-mean-token-mean",
)
AVERAGES |= dict.fromkeys(
    "ppo dapo ripo cispo up ce-gppo gppo dis dgpo aspo erc a-3po".split(),  # noqa: SIM905
    "token-mean",
)
AVERAGES |= dict.fromkeys("dr-grpo dppo drpo cppo".split(), "seq-mean-token-sum-norm")  # noqa: SIM905


def test_a_method_has_the_average_of_its_paper():
    assert {each.name: each.objective.aggregation for each in METHODS} == AVERAGES
    new = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    losses = {n: policy_loss(new, new, torch.tensor([1.0, -1.0]), mask, n)[0] for n in ("grpo", "dapo", "dr-grpo")}
    assert losses == {"grpo": 0, "dapo": -2 / 4, "dr-grpo": pytest.approx(-2 / 6)}


def test_every_method_has_a_formula_here():
    assert list(FORMULAS) == [each.name for each in METHODS]
    assert len({each.title for each in METHODS}) == len(METHODS)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_method_is_its_textbook(name):
    data, sampler = batch(name)
    line = method(name).arguments + (", mean_weight=mean_weight" if name == "band-entropy" else "")
    value, gradient = loss_and_gradient(in_a_loop(line, data, sampler), method(name).objective)
    expected, slope = textbook(FORMULAS[name], data, sampler, AVERAGES[name])
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-14)
    if name not in OTHER_VALUE:
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    free = loss_and_gradient(data, Clip(1.0, math.inf))[1]
    changed = ((gradient - free).abs() > 1e-9)[data["response_mask"]].double().mean()
    assert changed > 0.01 or name == "no-clip"  # what it does to the ratio is seen


@pytest.mark.parametrize("cap", [3, 10, 20])
def test_dppo_caps_the_ratio_by_its_weights(cap):
    """The cap of 20 is met by few tokens: with others the same line is the same formula."""
    data, sampler = batch("dppo", rows=80)  # of which few are beyond the cap
    line = method("dppo").arguments
    assert "log(20)" in line
    arguments = in_a_loop(line.replace("log(20)", f"log({cap})"), data, sampler)
    gradient = loss_and_gradient(arguments, method("dppo").objective)[1]
    expected = textbook(dppo(cap), data, sampler, AVERAGES["dppo"])[1]
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-14)
    if cap == 3:
        above = ((data["logps"] - sampler).exp() > cap) & data["response_mask"]
        assert (gradient[above] != 0).sum() > 3


def test_erc_has_a_dual_clip_at_10():
    """Few tokens of a batch are near it."""
    r = torch.tensor([[0.79, 0.81, 9.9, 10.1]], dtype=F64)
    data = {"logps": (r / 20).log().requires_grad_(), "old_logps": torch.full_like(r, math.log(0.05))}
    data |= {"advantages": -torch.ones(1), "response_mask": r > 0, "entropies": r, "old_entropies": r}
    _, gradient = loss_and_gradient(data, method("erc").objective)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.81, 9.9, 0.0]], dtype=F64) / 4)


def test_aspo_is_finite_however_far_a_ratio_is():
    old = torch.tensor([[-1.0, -1.0, -1.0, -90.0, -torch.inf]]).repeat(2, 1)
    logps = torch.tensor([[-46.0, -1.0, -torch.inf, -1.0, -1.0]]).repeat(2, 1).requires_grad_()
    data = {"logps": logps, "old_logps": old, "advantages": torch.tensor([1.0, -1.0]), "response_mask": old < 0}
    loss, gradient = loss_and_gradient(in_a_loop(method("aspo").arguments, data, old), method("aspo").objective)
    assert loss.isfinite()
    assert gradient.isfinite().all()


# ---- names and nodes


COMPLETE = [each.name for each in METHODS if each.is_complete]


def test_a_method_that_is_more_than_its_objective_takes_a_loop():
    more = {"dppo", "aspo", "dis", "kpop", "a-3po", "drpo", "cppo"}
    assert {each.name for each in METHODS} - set(COMPLETE) == more
    for name in more:
        for given in (name, method(name), method(name).to_config()):
            with pytest.raises(ValueError, match=f"method '{name}' is more than its objective: policy_loss is given "):
                objective(given)
        with pytest.raises(ValueError, match=f"bandpo.method\\('{name}'\\).objective"):
            objective_for("Liger", name)


@pytest.mark.parametrize("name", COMPLETE)
def test_a_name_a_node_and_a_method_are_its_objective(name):
    value = method(name).objective
    node = yaml.safe_load(yaml.safe_dump(method(name).to_config()))
    assert node == {"type": "method", "name": name}
    assert objective(name) == objective(node) == objective(method(name)) == value
    assert objective(value.to_config()) == objective(short_node(value)) == value  # what a run's record has
    assert hash(method(name)) == hash(method(name))
    assert parse_objective(name) == parse_objective(f"{{type: method, name: {name}}}") == method(name)
    data, sampler = batch(name, rows=9)
    data = in_a_loop(method(name).arguments, data, sampler)
    found = [loss_and_gradient(data, given) for given in (value, name, method(name))]
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in itertools.pairwise(found))


def test_a_method_named_like_a_rule_is_that_rule():
    both = [name for name in COMPLETE if name in {*kinds()} - {"trgppo"}]  # which research.rules names a rule, too
    assert both == ["dcpo", "ripo"]
    assert method("dcpo").objective.trust_region == parse_region("dcpo")
    assert method("ripo").objective.trust_region == parse_region("ripo")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("gspoo", "^no method or rule is called 'gspoo', did you mean 'gspo'. `bandpo methods` lists all$"),
        ({"type": "method", "name": "cipso"}, "no method or rule is called 'cipso', did you mean 'cispo'."),
        ({"type": "method", "name": 3}, "no method or rule is called 3; `bandpo methods` lists all"),
        ({"type": "method"}, r"a method's node is {type: method, name: ...}, got \[\] beside the type"),
        ({"type": "method", "name": "gspo", "beta": 0.1}, r"got \['beta', 'name'\] beside the type; .* write an obj"),
        (
            {"type": "objectve"},
            "no trust region type is called 'objectve', did you mean 'objective'",
        ),
        ({"type": "methd"}, "called 'methd', did you mean 'method'"),
        ({"type": ["method"]}, r"called \['method'\]"),
    ],
)
def test_what_is_no_method_is_named_with_what_is_nearest(node, message):
    with pytest.raises(ValueError, match=message):
        objective(node)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gspoo",
            "^no method or rule is called 'gspoo', did you mean 'gspo'[?] `bandpo methods` lists all$",
        ),
        ("clp", "no method or rule is called 'clp', did you mean 'clip'?"),
        ("clip:x", "'clip:x': eps_low of Clip must be a number"),
        (
            "{type: method, name: gsp}",
            "'{type: method, name: gsp}': no method or rule is called 'gsp', did you mean 'gspo'",
        ),
        ("{type: objective, aply: mask}", "unknown key 'aply' in objective, did you mean 'apply'"),
        ("gspo:0.1", "no method or rule is called 'gspo:0.1', did you mean 'gspo'"),
        ("ppo clip", "no method or rule is called 'ppo clip', did you mean 'ppo'"),
        ("KL", "no method or rule is called 'KL', did you mean 'band:KL'"),
        ("tv:0.1", "no method or rule is called 'tv:0.1', did you mean 'band:tv:0.1'"),
    ],
)
def test_a_wrong_text_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_objective(text)


def test_a_text_may_be_a_rule_or_an_objective():
    assert parse_objective("clip:0.2:0.28") == Objective(Clip(0.2, 0.28))
    assert parse_objective("clip") == Objective(Clip())
    assert parse_objective("{type: objective, apply: mask}") == Objective(apply="mask")


def test_a_label_is_the_rules_or_the_methods_or_says_what_differs():
    assert label_of_objective(Objective(Clip(0.2, 0.28))) == "Clip-Higher 0.2/0.28"
    assert label_of_objective(objective("gspo")) == "GSPO"
    assert label_of_objective(Objective(Clip(0.2, 0.28), dual_clip=3.0)) == "Clip-Higher 0.2/0.28, dual_clip 3.0"
    pair = Objective(Clip(0.2, 0.2), apply=("mask", "clip"))
    assert label_of_objective(pair) == "GRPO 0.2/0.2, apply mask / clip"  # ASPO is more than that
    assert label_of_objective(method("dis").without_average) == "Clip 0.3/5.0, apply mask_two_sided"
    assert label_of_objective(method("dapo").objective) == "Clip-Higher 0.2/0.28"
    mean = Objective(Clip(0.2, 0.28), aggregation="seq-mean-token-sum")
    assert label_of_objective(mean) == "Clip-Higher 0.2/0.28, aggregation seq-mean-token-sum"


# ---- trainers, recipes and commands


def test_a_trainer_takes_a_method_or_refuses_it_by_name():
    for host, name in ((host, name) for host in REFUSED for name in COMPLETE):
        value = dataclasses.replace(method(name).objective, aggregation=None)
        fields = set(value.changed()) & set(REFUSED[host])
        message = rf"({'|'.join(fields)}) must be .* through {host}" if fields else None
        asked = {each.partition("=")[0] for each in method(name).arguments.split(", ") if each}
        if message is None and asked - set(SHOWN[host]):
            message = rf"\w+ needs context\.\w+, which {host} does not show a rule; take another rule, or "
        if message is not None:
            with pytest.raises(ValueError, match=f"^method '{name}': {message}"):
                objective_for(host, name)
        else:
            assert objective_for(host, {"type": "method", "name": name}) == value


def test_a_trainer_says_which_average_a_method_gets(caplog):
    def said(host: str, name: str, average: str | None) -> str:
        caplog.clear()
        lines: list[str] = []
        for say in (None, lines.append):
            integrations._say_average.cache_clear()
            for _ in range(2):  # once in a process
                say_average(host, name, average, say)
        assert [record.getMessage() for record in caplog.records] == lines
        (line,) = lines
        return line

    assert said("TRL", "dapo", "dapo") == "dapo: TRL averages by loss_type='dapo' (token-mean); as its paper does"
    assert said("TRL", "gspo", "dapo") == (
        "gspo: TRL averages by loss_type='dapo' (token-mean); its paper takes 'seq-mean-token-mean', which is "
        "loss_type='grpo'"
    )
    assert said("verl", "cispo", "seq-mean-token-mean").endswith(
        "(seq-mean-token-mean); its paper takes 'token-mean', which is actor.loss_agg_mode='token-mean'"
    )
    assert said("SkyRL", "gspo", None).startswith("gspo: SkyRL averages by trainer.algorithm.loss_reduction; its paper")
    assert said("prime-rl", "dapo", "the mean over tokens").endswith(
        "the mean over tokens (token-mean); as its paper does"
    )
    assert said("tinker", "grpo", None).startswith("grpo: tinker averages by the sum over tokens; its paper takes 'seq")
    assert said("TRL", "clip-higher", "grpo").endswith("it names a rule and no average")
    say_average("TRL", Clip(0.2, 0.2), "grpo")  # no method
    say_average("TRL", Objective(), "grpo")
    assert len(caplog.records) == 1


def test_an_average_that_was_written_must_be_the_trainers():
    for host, (_, names) in integrations.AVERAGES.items():
        for average in get_args(Aggregation):
            written = Objective(Clip(0.2, 0.2), aggregation=average)
            for setting, its in names.items():
                if its == average:
                    assert objective_for(host, written, average=setting) == Objective(Clip(0.2, 0.2))
                else:
                    with pytest.raises(ValueError, match=f"aggregation must be None through {host}, got '{average}'"):
                        objective_for(host, written, average=setting)
            with pytest.raises(ValueError, match=f"aggregation must be None through {host}, got '{average}'"):
                objective_for(host, written)


def test_a_trainer_may_be_made_where_models_are_made_on_no_device():
    with torch.device("meta"):
        assert [objective_for(host, "band-kl") for host in REFUSED] == [Objective(Band("kl", 0.05))] * len(REFUSED)


def test_a_recipe_may_name_a_method_and_its_record_has_the_objective(tmp_path):
    config = build({"scene": "tail", "trust_region": "clip-higher"})
    assert config.trust_region == {"type": "clip", "eps_low": 0.2, "eps_high": 0.28}
    assert config.label == "Clip-Higher 0.2/0.28"
    config = load(None, ["scene=tail", "trust_region={type: method, name: gspo}"])
    assert config.trust_region == method("gspo").without_average.to_config()
    assert config.label == "GSPO"
    with pytest.raises(UserError, match=r"^trust_region: no method or rule is called .* did you mean 'gspo'"):
        load(None, ["scene=tail", "trust_region=gsppo"])


def test_a_command_for_verl_says_what_a_method_is():
    recipe = Path(__file__).parents[2] / "recipes" / "paper" / "qwen2.5-3b" / "band-kl.yaml"
    run = load_for_verl([recipe], ["trust_region=gspo"])
    assert run.loss["trust_region"] == method("gspo").without_average.to_config()
    with pytest.raises(UserError, match="trust_region: method 'aspo' is more than its objective"):
        load_for_verl([recipe], ["trust_region=aspo"])


def test_the_lab_runs_methods_and_refuses_those_that_trl_cannot_run(tmp_path):
    jobs = plan("tail", ["trgppo", "ppo", "{type: method, name: ripo}"], [0], tmp_path)
    assert [job.name for job in jobs] == ["trgppo", "grpo", "ripo"]  # PPO's clip is GRPO's
    assert [job.config.objective for job in jobs] == [
        method(name).without_average for name in ("trgppo", "ppo", "ripo")
    ]
    with pytest.raises(UserError, match="method 'aspo' is more than its objective"):
        plan("tail", ["aspo"], [0], tmp_path)
    with pytest.raises(UserError, match=r"^no method or rule is called 'gsspo', did you mean 'gspo'\? "):
        plan("tail", ["gsspo"], [0], tmp_path)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_method_is_explained(name, capsys):
    assert main(["explain", name, "--p", "0.3"]) == 0
    out = capsys.readouterr().out
    text, found = " ".join(out.split()), method(name)
    title = f"{found.title}{'' if found.arxiv is None else f' (arXiv {found.arxiv})'}: {found.formula}"
    if words := allowed(found.objective):
        assert in_words(found.objective).endswith(words)
        text = text.removeprefix(" ".join(in_words(found.objective).split()) + " ")
    assert text.startswith(" ".join(title.split()))
    for part in (found.source, found.unchecked, found.arguments):
        assert " ".join(part.split()) in text
    node = out.split(f"method {name}: ")[1].split("\n  formula and values")[0]
    assert parse_objective(node) == found.objective  # it can be copied, over several lines as it stands


def test_which_trainers_run_it_is_said(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["explain", "cispo", "--p", "0.3", "--vs", "band"]) == 0
    said = capsys.readouterr().out
    assert "\nIt runs in: TRL, verl, SkyRL, tinker, prime-rl.\n  not in Liger, torchrl: method 'cispo': apply" in said
    assert said.endswith("\nThe other one runs in: TRL, Liger, torchrl, verl, SkyRL, tinker, prime-rl.\n")
    assert main(["explain", "clip", "--p", "0.3", "--vs", "band"]) == 0
    assert capsys.readouterr().out.endswith("\nEither runs in: TRL, Liger, torchrl, verl, SkyRL, tinker, prime-rl.\n")
    assert main(["explain", "aspo", "--p", "0.3"]) == 0
    assert "\nIt runs in: no trainer.\n  not in TRL, Liger, " in capsys.readouterr().out


def test_what_becomes_of_tokens_outside_is_said():
    lines = {}
    for name in ("ppo", "dis", "cispo", "ce-gppo", "up", "dual-clip", "dgpo"):
        lines[name] = [line.strip() for line in explain(method(name)).splitlines() if "where A" in line][-3:]
    stop, stop_below = "none (value r_high A)", "none (value r_low A)"
    above = f"where A >= 0: {stop} above the interval, as inside below it"
    below = f"where A < 0: as inside above the interval, {stop_below} below it"
    assert lines["ppo"][-2:] == [above, below]
    assert lines["dual-clip"] == [above, below, "where A < 0 and r > 3 (dual clip): none (value 3 A)"]
    assert lines["dis"][-1] == "where A < 0: none (value 0) above the interval, none (value 0) below it"
    assert lines["cispo"][-2] == "where A >= 0: r_high A above the interval, r_low A below it"
    assert lines["ce-gppo"][-2:] == [
        "where A >= 0: 1 r_high A above the interval, as inside below it",
        "where A < 0: as inside above the interval, 0.5 r_low A below it",
    ]
    assert lines["up"][-2:] == ["where A >= 0: r_high A above the interval, r_low A below it", below]
    assert lines["dgpo"][-2:] == [
        "where A >= 0: (r_high / r)^0.5 r A above the interval, as inside below it",
        "where A < 0: as inside above the interval, (r / r_low)^1 r A below it",
    ]


def test_the_gradient_of_a_smooth_gate_is_said():
    text = explain(method("sapo"))
    assert (
        "gradient of the surrogate in log pi:\n    where A >= 0: 4 s (1 - s) r A at every r, s = sigmoid(1 (r" in text
    )
    assert "where A < 0: 4 s (1 - s) r A at every r, s = sigmoid(1.05 (r - 1))" in text
    text = explain(Objective(Clip(), apply=("clip", "quadratic")))
    assert "log pi: r A inside\n    where A >= 0: none" in text
    assert "where A < 0: r A (1 - (r - 1) / (r_low - 1)) on the side of r_low, beyond it too, and r A (1 + (r" in text
    text = explain(Objective(Clip(), apply=("soft", "clip"), ratio="sequence-mean"))
    assert "r A inside, for each of the tokens 1 / T of it" in text
    assert "where A >= 0: (r_high - 1) r / (r - 1) A above the interval, as inside below it" in text
    assert "a token outside goes on moving" in explain(Objective(Clip(), apply="soft"))


def test_rules_of_a_rule_are_explained_each():
    text = explain(method("up"), [0.1])
    assert "Ratio 1 (A >= 0): at p = 0.1 the interval of r is 1 to 1; a token outside goes on moving" in text
    assert "Clip 0.2/inf (A < 0): a token of p = 0.1 may fall to 0.08 (by 0.02) and rise to 1 (by 0.9)" in text
    text = explain(method("decaying-clip"), [0.5])
    assert "GRPO 0.2/0.2 (step 0): a token of p = 0.5 may fall to 0.4 (by 0.1)" in text
    assert "GRPO 0.05/0.05 (from step 1000): a token of p = 0.5 may fall to 0.475 (by 0.025)" in text


def test_a_geometric_mean_has_an_interval_and_no_p():
    text = explain(method("gspo"), [0.1])
    assert "GSPO: the interval of r is 1 - 0.0003 to 1 + 0.0004 (log r -0.0003 to 0.0003999), whatever the" in text
    assert "new probability" not in text
    assert explain(method("ppo"), (), method("gspo")).endswith("of different things, token and sequence-mean.")
    assert explain(method("ppo"), (), method("up")).endswith("one of them is several rules.")
    assert "Up, against Clip-Higher, the clip of DAPO: GRPO is tighter" in explain(
        method("grpo"), (), method("clip-higher")
    )


# ---- the pages


@pytest.fixture(scope="module")
def index():
    return load_script("docs/methods.py")


def test_the_index_is_that_of_the_methods(index):
    """`python docs/methods.py` writes it."""
    assert index.PAGE.read_text(encoding="utf-8") == index.page()
    assert set(index.GRADIENT_ONLY) == OTHER_VALUE


def test_a_method_without_a_sentence_is_named(index, monkeypatch):
    monkeypatch.setattr(index, "METHODS", METHODS[1:])
    with pytest.raises(ValueError, match="every method needs one sentence in SECTIONS"):
        index.page()


@pytest.mark.parametrize("name", FORMULAS)
def test_the_line_for_a_loop_is_the_method(index, name):
    """As it stands on the page, beside the names of a loop."""
    data, sampler = batch(name)
    known = names_of_a_loop(data, sampler) | {"bandpo": bandpo, "mask": data["response_mask"]}
    loss, _ = eval(index.loop(method(name)), known)
    expected = loss_and_gradient(in_a_loop(method(name).arguments, data, sampler), method(name).objective)
    assert torch.equal(loss, expected[0])
    assert torch.equal(torch.autograd.grad(loss, data["logps"])[0], expected[1])


def test_what_was_compared_is_a_test(index):
    for name, tests in index.COMPARED.items():
        for _, file, test in tests:
            assert f"def {test}(" in (index.PAGE.parent.parent / file).read_text(encoding="utf-8"), (name, test)


def test_the_table_says_which_trainers_run_a_method(index):
    said = {name: index.trainers(method(name)) for name in FORMULAS}
    assert said["band-kl"] == said["no-clip"] == "all"
    assert said["gspo"] == said["cispo"] == "all but Liger, torchrl"
    assert said["decaying-band"] == said["band-entropy"] == said["gapo"] == said["erc"] == said["a-3po"] == "TRL, verl"
    assert {said[name] for name in ("dppo", "drpo", "aspo")} == {"a loop of one's own"}
    assert said["dis"] == said["kpop"] == "all but Liger, torchrl"


def test_the_weight_of_good_tokens_is_explained():
    line = "    where A > 0: all of it times 0.85 (positive_weight)\n"
    assert line in explain(method("weighted-clip"))
    assert line in explain(dataclasses.replace(method("gmpo").objective, positive_weight=0.85))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Band-KL", "band-kl"),
        ("GSPO", "gspo"),
        ("BandPO", "band-kl"),
        ("dual_clip", "dual-clip"),
        ("Dual clip", "dual-clip"),
    ],
)
def test_a_name_is_known_whatever_its_capitals_and_as_its_paper_has_it(text, same):
    assert method(text) is method(same)
    assert objective(text) == parse_objective(text).objective == method(same).objective


@pytest.mark.parametrize("text", ["band:kl:0.1", "Band:kl:0.1", 'Band("kl", 0.1)', 'bandpo.Band("kl", delta=0.1)'])
def test_a_rule_is_known_as_a_word_and_as_python(text):
    assert objective_for("verl", text) == parse_objective(text) == Objective(Band("kl", 0.1))
    if "(" not in text:
        assert objective(text) == Objective(Band("kl", 0.1))


def test_python_is_read_and_not_run():
    text = 'Objective(BySign(Clip(0.2, math.inf), Clip(1, float("inf"))), apply=("weight", Preserve(0.5, 1)))'
    made = Objective(BySign(Clip(0.2, math.inf), Clip(1, math.inf)), apply=("weight", Preserve(0.5, 1)))
    assert parse_objective(text) == made
    for bad, message in (
        ("print(1)", "is more than plain values and rules, and code is not run; a rule is written Band"),
        ("Band(**{'delta': 1})", "and code is not run"),
        ('Band("kl", radius=1)', "cannot be read as Python: .*unexpected keyword argument 'radius'; a rule is written"),
        ("Band(", "cannot be read as Python"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_objective(bad)


WORDS = {
    Clip(0.8, 1.2): "Clip(0.8, 1.2): a token's ratio may go from 0.2 to 2.2",
    Clip(1.0, math.inf): "Clip(1, inf): no bound on a token's ratio",
    Band("tv", 0.1): 'Band("tv", 0.1): a token of probability 0.5 may go from 0.4 to 0.6, one of 0.001 up to 0.101',
    Decaying(
        Clip(), "eps_high", 0.1, 9
    ): "GRPO 0.2/0.2, eps_high to 0.1 in 9 steps (linear): how far a token may go depends on more than its probability",
    method("gspo"): 'Objective(Clip(0.0003, 0.0004), ratio="sequence-mean"): a response\'s mean ratio may go from '
    "0.9997 to 1.0004",
    method("cispo"): 'Objective(Clip(1, 4), apply="weight"): a token\'s ratio has the interval from 0 to 5; outside it '
    'the gradient does not stop (apply "weight")',
    method("sapo"): "Objective(Clip(1, inf), apply=Sapo(1, 1.05)): no bound on a token's ratio (apply Sapo(1, 1.05))",
    method("dual-clip"): "Objective(Clip(0.2, 0.2), dual_clip=3): a token's ratio may go from 0.8 to 1.2; dual clip 3",
    method(
        "two-level-clip"
    ): "ByProbability(0.5, Clip(0.05, 0.7), Clip(0.05, 0.005)): a token of probability 0.5 may go "
    "from 0.475 to 0.85, one of 0.001 up to 0.0017",
}


@pytest.mark.parametrize("rule", WORDS, ids=str)
def test_a_rule_in_words(rule):
    assert in_words(objective(rule)) == WORDS[rule]


def test_an_epsilon_that_looks_like_a_bound_is_doubted():
    assert Clip(0.8, 1.2).doubt().endswith("distances from 1, not the bounds; did you mean Clip(0.2, 0.2)?")
    assert "did you mean Clip(0.2, 0.28)?" in Relaxed(Band(), Clip(0.8, 1.28)).doubt()
    clips = [part for each in METHODS for part in [each.objective.trust_region]]
    others = [Clip(0.5, 1.0), Clip(0.2, 1.2), Clip(1.0, 1.5), Clip(0.8, 3.0)]
    assert not any(rule.doubt() for rule in [*clips, *others])


def test_what_a_rule_allows_is_said_once_and_by_the_first_process(caplog, monkeypatch):
    rule = Objective(Clip(0.8, 1.21))
    monkeypatch.setenv("RANK", "1")
    assert tell(rule) is rule
    assert not caplog.messages
    monkeypatch.setenv("RANK", "0")
    with pytest.warns(UserWarning, match=r"did you mean Clip\(0.2, 0.21\)"):
        tell(rule, "; 8 steps a batch")
    tell(rule, "; 8 steps a batch")
    assert caplog.messages == ["Clip(0.8, 1.21): a token's ratio may go from 0.2 to 2.21; 8 steps a batch"]


def test_all_methods_are_listed_in_80_columns(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1 : lines.index("")] if line[0] != " "] == [each.name for each in METHODS]
    assert "dapo 2503.14476 token-mean ratio from 0.8 to 1.28" in [" ".join(line.split()) for line in lines]
    assert "clip-higher 2503.14476 - ratio from 0.8 to 1.28" in [" ".join(line.split()) for line in lines]
    assert "band:divergence:delta" in "".join(lines)
