"""Each method against its formula, written here without our rules and surrogates: values by plain torch, gradients by
autograd, in float64; and what trainers, pages and commands make of methods."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from scripts import load as load_script
from textbook import F64, batch, in_a_loop, kl_ball, loss_and_gradient, ppo, textbook
from torch import Tensor

import bandpo
from bandpo import Band, Clip, Objective, integrations, objective, policy_loss
from bandpo.errors import UserError
from bandpo.explain import explain
from bandpo.integrations import TRAINERS, log_rule, objective_for, say_average
from bandpo.losses import Decay, method
from bandpo.losses.aggregation import Aggregation
from bandpo.losses.nodes import methods
from bandpo.notation import describe, describe_interval
from bandpo.trust_regions import Relaxed
from bandpo_runs.cli import main
from bandpo_runs.config.recipe import build, load
from bandpo_runs.training.on_verl import load as load_for_verl
from bandpo_runs.training.side_by_side import plan

# ---- the formulas, of one response: per token, from log pi, old log p, the sampler's log p, and A of the response


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


def band(delta: float) -> Callable[..., Tensor]:
    return lambda log_pi, old, sampler, a: ppo((log_pi - old).exp(), a, *kl_ball(old.exp(), delta))


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
    """The share of each token; they sum to the response's."""
    return ppo((log_pi - old).sum().exp(), a, *kl_ball(old.sum().exp(), 0.05)) / len(old)


def dppo(cap: float = math.inf) -> Callable[..., Tensor]:
    """As verl writes it; mu is the sampler, and the trainer's old policy does not matter."""

    def formula(log_pi, old, mu, a):
        r, rise = torch.exp(log_pi - mu).detach(), (log_pi.exp() - mu.exp()).detach()
        return a * r.clamp(max=cap) * log_pi * (rise <= 0.15 if a > 0 else rise >= -0.15)

    return formula


def ripo(log_pi, old, sampler, a):
    eps = (0.05 / old.exp()).sqrt()
    return ppo((log_pi - old).exp(), a, (1 - eps).clamp(min=0), 1 + eps)


def cispo(log_pi, old, sampler, a):
    return torch.exp(log_pi - old).detach().clamp(max=5) * a * log_pi


def topr(log_pi, old, sampler, a):
    r = torch.exp((log_pi - old).sum()).detach()
    return (1 if a > 0 else r.clamp(0, 1)) * a * log_pi.mean()  # of each token


def up(log_pi, old, sampler, a):
    r = torch.exp(log_pi - old)
    return torch.exp(log_pi - log_pi.detach()) * a if a > 0 else torch.where(r < 0.8, 0.8, r) * a


def ce_gppo(log_pi, old, sampler, a):
    r = torch.exp(log_pi - old)
    kept = r / r.detach()
    if a > 0:
        return torch.where(r > 1.2, 1.0 * 1.2 * kept, r) * a
    return torch.where(r < 0.8, 0.5 * 0.8 * kept, r) * a


def gspo(log_pi, old, sampler, a):
    return ppo((log_pi - old).mean().exp(), a, 1 - 3e-4, 1 + 4e-4)


def gpg(log_pi, old, sampler, a):
    return log_pi * a


def luspo(log_pi, old, sampler, a):
    return ppo((log_pi - old).mean().exp(), a, 0.998, 1.0025)


def vespo(log_pi, old, sampler, a):
    r = torch.exp((log_pi - old).sum()).detach()
    return (
        (r**2 * torch.exp(3 * (1 - r)) if a > 0 else r**3 * torch.exp(2 * (1 - r))) * a * log_pi.mean()
    )  # of each token


def gmpo(log_pi, old, sampler, a):
    s = log_pi - old
    held = torch.where(s > 0.4, 0.4, s) if a > 0 else torch.where(s < -0.4, -0.4, s)
    return held.mean().exp() * a


def dis(log_pi, old, sampler, a):
    r = torch.exp(log_pi - sampler)
    return torch.where((r < 0.7) | (r > 6.0), 0.0, r.detach() * a * log_pi)


def ipo(log_pi, old, sampler, a):
    pi, mu = log_pi.exp(), sampler.exp()
    return torch.where((pi - mu).abs() > 0.1, 0.0, pi / mu * a)


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
    "dcpo": dcpo,
    "trgppo": trgppo,
    "band-kl": band(0.05),
    "band-tv": band_tv,
    "band-chi2": band_chi2,
    "band-relaxed": band_relaxed,
    "band-sequence": band_of_response,
    "dppo": dppo(),
    "ripo": ripo,
    "cispo": cispo,
    "topr": topr,
    "up": up,
    "ce-gppo": ce_gppo,
    "gppo": gppo,
    "abc-grpo": abc_grpo,
    "gspo": gspo,
    "gmpo": gmpo,
    "gpg": gpg,
    "luspo": luspo,
    "vespo": vespo,
    "dis": dis,
    "ipo": ipo,
    "atr-grpo": atr_grpo,
    "kpop": kpop,
    "wilson": wilson,
    "sapo": sapo,
    "dgpo": dgpo,
    "cfpo": cfpo,
}
# Of these the value is another one with the same gradient: A log pi for A pi / sg(pi), r A for sg(r) A log pi, or 0
# for a constant; the weight times A for that times A log pi.
OTHER_VALUE = {
    "up",
    "ce-gppo",
    "gppo",
    "abc-grpo",
    "dppo",
    "dis",
    "kpop",
    "vespo",
}


# The average of each method's paper, read once more.
AVERAGES = dict.fromkeys(FORMULAS)
AVERAGES |= dict.fromkeys(
    "grpo dcpo band-kl band-tv band-chi2 band-relaxed abc-grpo gspo gmpo kpop sapo".split(),  # noqa: SIM905
    "seq-mean-token-mean",
)
AVERAGES |= dict.fromkeys(
    "ppo dapo ripo cispo up ce-gppo gppo dis ipo dgpo".split(),  # noqa: SIM905
    "token-mean",
)
AVERAGES |= dict.fromkeys(["band-sequence", "luspo", "topr", "vespo"], "seq-mean-token-sum")
AVERAGES |= dict.fromkeys(["dr-grpo", "dppo"], "seq-mean-token-sum-norm")


def test_a_method_has_the_average_of_its_paper():
    assert {each.name: each.objective.aggregation for each in methods()} == AVERAGES
    new = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    losses = {n: policy_loss(new, new, torch.tensor([1.0, -1.0]), mask, n)[0] for n in ("grpo", "dapo", "dr-grpo")}
    assert losses == {"grpo": 0, "dapo": -2 / 4, "dr-grpo": pytest.approx(-2 / 6)}


def test_every_method_has_a_formula_here():
    assert {*FORMULAS} == {each.name for each in methods()}
    assert len({each.title for each in methods()}) == len(FORMULAS)


def test_methods_are_read_when_they_are_asked_for():
    code = "import sys, bandpo; bandpo.Objective(); print('yaml' in sys.modules); bandpo.losses.method('ppo')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", FORMULAS)
def test_a_method_is_its_textbook(name):
    data, sampler = batch(method(name))
    value, gradient = loss_and_gradient(in_a_loop(method(name), data, sampler), method(name).objective)
    expected, slope = textbook(FORMULAS[name], data, sampler, AVERAGES[name])
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-14)
    if name not in OTHER_VALUE:
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    free = loss_and_gradient(data, Clip(1.0, math.inf))[1]
    changed = ((gradient - free).abs() > 1e-9)[data["response_mask"]].double().mean()
    assert changed > 0.01 or name == "no-clip"  # what it does to the ratio is seen


@pytest.mark.parametrize("cap", [3, 10, 20])
def test_a_cap_of_dppos_ratio_is_a_weight(cap):
    data, sampler = batch(method("dppo"), rows=80)  # few of their tokens are beyond the cap
    weights = (math.log(cap) + sampler - data["logps"].detach()).clamp(max=0).exp()
    arguments = in_a_loop(method("dppo"), data, sampler) | {"rollout_is_weights": weights}
    gradient = loss_and_gradient(arguments, method("dppo").objective)[1]
    expected = textbook(dppo(cap), data, sampler, AVERAGES["dppo"])[1]
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-14)
    if cap == 3:
        above = ((data["logps"] - sampler).exp() > cap) & data["response_mask"]
        assert (gradient[above] != 0).sum() > 3


# ---- trainers, recipes and commands


def test_a_trainer_takes_a_method_or_refuses_it_by_name():
    for host, name in ((host, each.name) for host in TRAINERS for each in methods() if not each.from_sampler):
        value = dataclasses.replace(method(name).objective, aggregation=None)
        fields = set(value.changed()) & set(TRAINERS[host].refused(host))
        message = rf"({'|'.join(fields)}) must be .* through {host}" if fields else None
        if message is not None:
            with pytest.raises(ValueError, match=f"^method '{name}': {message}"):
                objective_for(host, name)
        else:
            assert objective_for(host, {"type": "method", "name": name}) == value


def test_a_trainer_says_which_average_a_method_gets(caplog):
    def said(host: str, name: str, average: str | None) -> str:
        caplog.clear()
        lines: list[str] = []
        for say in (integrations.RULE.warning, lines.append):
            integrations._SAID.clear()
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
    assert said("TRL", "luspo", "grpo").endswith("takes 'seq-mean-token-sum', which is loss_type='luspo'")
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
    for host, its in TRAINERS.items():
        for average in get_args(Aggregation):
            written = Objective(Clip(0.2, 0.2), aggregation=average)
            for setting, name in its.averages.items():
                if name == average:
                    assert objective_for(host, written, average=setting) == Objective(Clip(0.2, 0.2))
                else:
                    with pytest.raises(ValueError, match=f"aggregation must be None through {host}, got '{average}'"):
                        objective_for(host, written, average=setting)
            if its.averages.get(its.average) == average:  # its only one
                assert objective_for(host, written) == Objective(Clip(0.2, 0.2))
                continue
            with pytest.raises(ValueError, match=f"aggregation must be None through {host}, got '{average}'"):
                objective_for(host, written)


def test_a_trainer_may_be_made_where_models_are_made_on_no_device():
    with torch.device("meta"):
        assert [objective_for(host, "band-kl") for host in TRAINERS] == [Objective(Band("kl", 0.05))] * len(TRAINERS)


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
    with pytest.raises(UserError, match="trust_region: method 'dis': its ratio is to the sampler's policy; set actor"):
        load_for_verl([recipe], ["trust_region=dis"])


def test_the_lab_runs_methods_and_refuses_those_that_trl_cannot_run(tmp_path):
    jobs = plan("tail", ["trgppo", "ppo", "{type: method, name: ripo}"], [0], tmp_path)
    assert [job.name for job in jobs] == ["trgppo", "grpo", "ripo"]  # PPO's clip is GRPO's
    assert [job.config.objective for job in jobs] == [
        method(name).without_average for name in ("trgppo", "ppo", "ripo")
    ]
    with pytest.raises(UserError, match=r"^method 'dis': its ratio is to the sampler's policy; set anchor='sampler'"):
        plan("tail", ["dis"], [0], tmp_path)
    with pytest.raises(UserError, match=r"^no method or rule is called 'gsspo', did you mean 'gspo'\? "):
        plan("tail", ["gsspo"], [0], tmp_path)
    with pytest.raises(ValueError, match=r"^no method or rule is called None; `bandpo methods` lists all$"):
        method(None)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_method_is_explained(name, capsys):
    assert main(["explain", name, "--p", "0.3"]) == 0
    out = capsys.readouterr().out
    text, found = " ".join(out.split()), method(name)
    title = f"{found.title}{'' if found.arxiv is None else f' (arXiv {found.arxiv})'}: {found.formula}"
    if words := describe_interval(found.objective):
        assert describe(found.objective).endswith(words)
        text = text.removeprefix(" ".join(describe(found.objective).split()) + " ")
    assert text.startswith(" ".join(title.split()))
    for part in (found.source, found.unchecked, found.arguments):
        assert " ".join(part.split()) in text
    node = out.split(f"method {name}: ")[1].split("\n  formula and values")[0]
    assert objective(node) == found.objective  # it can be copied, over several lines as it stands


def test_which_trainers_run_it_is_said(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["explain", "cispo", "--p", "0.3", "--vs", "band"]) == 0
    said = capsys.readouterr().out
    with_limits = "Trinity-RFT, xtuner, RLinf, miles, slime, torchtitan, AsyncGRPO"
    refused = f"unsloth, Liger, torchrl, {with_limits}: method 'cispo': surrogate"
    assert f"\nIt runs in: TRL, axolotl, verl, SkyRL, tinker, prime-rl, rLLM.\n  not in {refused}" in said
    every = f"TRL, axolotl, unsloth, Liger, torchrl, verl, SkyRL, tinker, prime-rl, rLLM, {with_limits}"
    assert said.endswith(f"\nThe other one runs in: {every}.\n")
    assert main(["explain", "clip", "--p", "0.3", "--vs", "band"]) == 0
    assert capsys.readouterr().out.endswith(f"\nEither runs in: {every}.\n")
    assert main(["explain", "{type: objective, beta: 0.1}", "--p", "0.3"]) == 0
    assert "\nIt runs in: no trainer.\n  not in TRL: " in capsys.readouterr().out
    assert main(["explain", "dppo", "--p", "0.3"]) == 0
    also = "TRL (anchor='sampler' of BandPOConfig), axolotl (anchor: sampler in its YAML), verl "
    also += "(actor.policy_loss.anchor=sampler), SkyRL (anchor='rollout' of"
    said = capsys.readouterr().out
    assert f"\nIt runs in: tinker, prime-rl; with the sampler as anchor also in {also} register" in said
    assert "\n  not in unsloth, Liger, xtuner, RLinf: method 'dppo'" in said


def test_what_becomes_of_tokens_outside_is_said():
    lines = {}
    for name in ("ppo", "dis", "cispo", "ce-gppo", "up", "dual-clip", "dgpo"):
        lines[name] = [line.strip() for line in explain(method(name)).splitlines() if "where A" in line][-3:]
    above, below = (
        "where A >= 0: r A, none above r_high (value r_high A)",
        "where A < 0: r A, none below r_low (value r_low A)",
    )
    assert lines["ppo"][-2:] == [above, below]
    assert lines["dual-clip"] == [above, below, "where A < 0 and r > 3 (dual clip): none (value 3 A)"]
    assert lines["dis"][-1] == "where A < 0: r A, none outside the interval (value 0)"
    assert lines["cispo"][-2] == "where A >= 0: clip(r, r_low, r_high) A"
    assert lines["ce-gppo"][-2:] == [
        "where A >= 0: r A, 1 r_high A above r_high",
        "where A < 0: r A, 0.5 r_low A below r_low",
    ]
    assert lines["up"][-2:] == ["where A >= 0: clip(r, r_low, r_high) A", below]
    assert lines["dgpo"][-2:] == [
        "where A >= 0: r A, (r_high / r)^0.5 r A above r_high",
        "where A < 0: r A, (r / r_low)^1 r A below r_low",
    ]


def test_the_gradient_of_a_smooth_gate_is_said():
    text = explain(method("sapo"))
    assert "gradient of the surrogate in log pi:\n    where A >= 0: 4 s (1 - s) r A, s = sigmoid(1 (r - 1))\n" in text
    assert "where A < 0: 4 s (1 - s) r A, s = sigmoid(1.05 (r - 1))" in text
    text = explain(method("vespo"))
    assert "log pi: for each of the tokens\n    where A >= 0: r^2 e^(3 (1 - r)) A\n" in text
    assert "where A < 0: r^3 e^(2 (1 - r)) A" in text
    text = explain(Objective(Clip(), surrogate=("clip", "quadratic")))
    assert "where A < 0: r A - |A| r (r - 1) / e, e the distance from 1 to the bound on the side of r" in text
    text = explain(Objective(Clip(), surrogate=(Decay(1, 2), "clip"), ratio="sequence-mean"))
    assert "in log pi: for each of the tokens 1 / T of it" in text
    assert "where A >= 0: r A, (r_high / r)^2 r A above r_high" in text


def test_rules_of_a_rule_are_explained_each():
    text = explain(method("up"), [0.1])
    assert re.search(r"Ratio 1 \(A >= 0\) +0.1 to 0.1 +1 to 1 ", text)
    assert re.search(r"Clip 0.2/inf \(A < 0\) +0.08 to 1 +0.8 to inf ", text)


def test_a_geometric_mean_has_an_interval_and_no_p():
    text = explain(method("gspo"), [0.1])
    assert "a response's mean ratio may go from 0.9997 to 1.0004" in text
    assert "new probability" not in text


# ---- the pages


@pytest.fixture(scope="module")
def index():
    return load_script("docs/methods.py")


def test_the_page_is_that_of_the_methods(index):
    """`python docs/methods.py` writes it."""
    assert index.PAGE.read_text(encoding="utf-8") == index.page()
    assert index.ABSENT_PAGE.read_text(encoding="utf-8") == index.absent()


@pytest.mark.parametrize("name", FORMULAS)
def test_the_lines_for_a_loop_and_the_objective_are_the_method(index, name):
    found, (data, sampler) = method(name), batch(method(name))
    known = dict(zip(("logps", "old_logps", "advantages", "mask"), data.values(), strict=True))
    line = index.AT_SAMPLER_LINE if found.from_sampler else index.LINES["your loop"]
    more = in_a_loop(found, data, sampler)
    call = functools.partial(policy_loss, **{key: more[key] for key in more.keys() - data.keys()})
    names = {
        "bandpo": SimpleNamespace(policy_loss=call, losses=SimpleNamespace(method=method)),
        "rollout_logps": sampler,
    }
    loss, _ = eval(line.replace("NAME", name), known | names)
    assert torch.equal(loss.detach(), loss_and_gradient(more, found.objective)[0])
    everything = {"inf": math.inf, **vars(bandpo.trust_regions), **vars(bandpo.losses)}
    assert objective(eval(index.as_python(found.without_average), everything)) == found.without_average
    assert f"| `{name}` " in index.row(found)


def test_the_table_says_which_trainers_run_a_method(index):
    said = {name: index.trainers(method(name)) for name in FORMULAS}
    assert said["band-kl"] == said["no-clip"] == "all"
    assert said["gspo"] == said["cispo"] == said["dis"] == said["dppo"] == "most"
    assert all(said.values())


def test_papers_are_counted_and_what_is_missing_is_in_no_other_table(index):
    here = {each.arxiv for each in methods()} - {None, "2603.04918"}
    for page in ("README.md", "docs/index.md"):
        assert f"the methods of {len(here)} other papers" in (index.PAGE.parents[1] / page).read_text(encoding="utf-8")
    missing = [paper for _, papers, _ in index.ABSENT for paper in papers.split()]
    assert not here.intersection(missing)
    assert len({*missing}) == len(missing)
    assert "2607.06987))\\* |" in index.row(method("up"))  # whose average was not checked
    assert "2603.04918)) |" in index.row(method("band-kl"))


def test_the_weight_of_good_tokens_is_explained():
    line = "    where A > 0: all of it times 0.85 (positive_weight)\n"
    assert line in explain(method("weighted-clip"))
    assert line in explain(dataclasses.replace(method("gmpo").objective, positive_weight=0.85))


def test_an_epsilon_that_looks_like_a_bound_is_doubted():
    assert Clip(0.8, 1.2).suspicion().endswith("distances from 1, not the bounds; did you mean Clip(0.2, 0.2)?")
    assert "did you mean Clip(0.2, 0.28)?" in Relaxed(Band(), Clip(0.8, 1.28)).suspicion()
    clips = [each.objective.trust_region for each in methods()]
    others = [Clip(0.5, 1.0), Clip(0.2, 1.2), Clip(1.0, 1.5), Clip(0.8, 3.0)]
    assert not any(rule.suspicion() for rule in [*clips, *others])


def test_what_a_rule_allows_is_said_once_and_by_the_first_process(caplog, monkeypatch):
    rule = Objective(Clip(0.8, 1.21))
    monkeypatch.setenv("RANK", "1")
    assert log_rule(rule) is rule
    assert not caplog.messages
    monkeypatch.setenv("RANK", "0")
    with pytest.warns(UserWarning, match=r"did you mean Clip\(0.2, 0.21\)"):
        log_rule(rule, "; 8 steps a batch")
    log_rule(rule, "; 8 steps a batch")
    assert caplog.messages == ["Clip(0.8, 1.21): a token's ratio may go from 0.2 to 2.21; 8 steps a batch"]


def test_all_methods_are_listed_in_80_columns(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    named = [line.split()[0] for line in lines[1 : lines.index("")] if line[0] != " "]
    assert named == [each.name for each in methods()]
    assert "dapo 2503.14476 token-mean ratio from 0.8 to 1.28" in [" ".join(line.split()) for line in lines]
    assert "clip-higher 2503.14476 - ratio from 0.8 to 1.28" in [" ".join(line.split()) for line in lines]
    assert "band:divergence:delta" in "".join(lines)
