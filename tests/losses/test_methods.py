"""Each method against its formula, written here without our rules and surrogates: values by plain torch, gradients by
autograd, in float64; and what trainers, pages and commands make of methods."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
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
from bandpo_runs.training.side_by_side import plan

# ---- the formulas, of one response: per token, from log pi, old log p, the sampler's log p, and A of the response


def fixed(low: float, high: float) -> Callable[..., Tensor]:
    return lambda log_pi, old, sampler, a: ppo((log_pi - old).exp(), a, low, high)


def dual_clip(log_pi, old, sampler, a):
    """Where A < 0 max(min(r A, clip(r, 0.8, 1.2) A), 3 A)"""
    least = ppo((log_pi - old).exp(), a, 0.8, 1.2)
    return torch.where((a < 0) & (least < 3 * a), 3 * a, least)


def two_sided(log_pi, old, sampler, a):
    """min(min(r, 4) A, clip(r, 0.8, 1.2) A)"""
    r = torch.exp(log_pi - old)
    first, second = torch.where(r > 4, 4.0, r) * a, r.clamp(0.8, 1.2) * a
    return torch.where(first <= second, first, second)


def band(delta: float, low: float = 1.0, high: float = 1.0) -> Callable[..., Tensor]:
    """PPO within the wider one of a ball and an interval."""

    def formula(log_pi, old, sampler, a):
        ends = kl_ball(old.exp(), delta)
        return ppo((log_pi - old).exp(), a, ends[0].clamp(max=low), ends[1].clamp(min=high))

    return formula


def of_mean(low: float, high: float) -> Callable[..., Tensor]:
    """PPO of the geometric mean of the ratios."""
    return lambda log_pi, old, sampler, a: ppo((log_pi - old).mean().exp(), a, low, high)


def within(rise: Tensor, log_pi: Tensor, old: Tensor, a: Tensor) -> Tensor:
    """PPO with |q - p| at most `rise`, of probabilities."""
    p = old.exp()
    return ppo((log_pi - old).exp(), a, (p - rise).clamp(min=0) / p, (p + rise).clamp(max=1) / p)


def band_chi2(log_pi, old, sampler, a):
    p = old.exp()
    return within((0.05 * p * (1 - p)).sqrt(), log_pi, old, a)


def dcpo(log_pi, old, sampler, a):
    p = old.exp()
    low = 0.5 + 0.5 * (1 - 4 * 0.16 / p).clamp(min=0).sqrt()
    high = (0.5 + 0.5 * (1 + 4 * 0.2 / p).sqrt()).clamp(max=10)
    return ppo((log_pi - old).exp(), a, low, high)


def dppo(cap: float = math.inf) -> Callable[..., Tensor]:
    """As verl writes it; mu is the sampler, and the trainer's old policy does not matter."""

    def formula(log_pi, old, mu, a):
        r, rise = torch.exp(log_pi - mu).detach(), (log_pi.exp() - mu.exp()).detach()
        return a * r.clamp(max=cap) * log_pi * (rise <= 0.15 if a > 0 else rise >= -0.15)

    return formula


def ripo(log_pi, old, sampler, a):
    eps = (0.05 / old.exp()).sqrt()
    return ppo((log_pi - old).exp(), a, (1 - eps).clamp(min=0), 1 + eps)


def up(log_pi, old, sampler, a):
    r = torch.exp(log_pi - old)
    return torch.exp(log_pi - log_pi.detach()) * a if a > 0 else torch.where(r < 0.8, 0.8, r) * a


def kept(above: float, below: float, high: float, low: float, most: float = math.inf) -> Callable[..., Tensor]:
    """Outside, a part of the bound with the gradient of the ratio."""

    def formula(log_pi, old, sampler, a):
        r = torch.exp(log_pi - old)
        if a > 0:
            return torch.where(r > high, above * high * r / r.detach(), r) * a
        return torch.where(r < low, below * low * r / r.detach(), r).clamp(max=most) * a

    return formula


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


FORMULAS: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("grpo", "ppo", "dr-grpo"), fixed(0.8, 1.2)),
    **dict.fromkeys(("clip-higher", "dapo"), fixed(0.8, 1.28)),
    "dual-clip": dual_clip,
    "two-sided-grpo": two_sided,
    "clip-wide": fixed(0.8, 2.0),
    "weighted-clip": lambda log_pi, old, mu, a: (1 - 0.15 * (a > 0).to(old)) * ppo((log_pi - old).exp(), a, 0.98, 2.0),
    "two-level-clip": lambda log_pi, old, mu, a: ppo(
        (log_pi - old).exp(), a, 0.95, 1.005 + (1.7 - 1.005) * (old.exp() <= 0.5).to(old)
    ),
    "no-clip": fixed(0.0, math.inf),
    "dcpo": dcpo,
    "trgppo": band(0.03, 0.8, 1.2),
    "band-kl": band(0.05),
    "band-tv": lambda log_pi, old, mu, a: within(torch.tensor(0.05, dtype=F64), log_pi, old, a),
    "band-chi2": band_chi2,
    "band-relaxed": band(0.05, 0.8, 1.28),
    "band-sequence": lambda log_pi, old, mu, a: (  # the share of each token; they sum to the response's
        ppo((log_pi - old).sum().exp(), a, *kl_ball(old.sum().exp(), 0.05)) / len(old)
    ),
    "dppo": dppo(),
    "ripo": ripo,
    "cispo": lambda log_pi, old, mu, a: torch.exp(log_pi - old).detach().clamp(max=5) * a * log_pi,
    "topr": lambda log_pi, old, mu, a: (  # of each token
        (1 if a > 0 else torch.exp((log_pi - old).sum()).detach().clamp(0, 1)) * a * log_pi.mean()
    ),
    "up": up,
    "ce-gppo": kept(1.0, 0.5, high=1.2, low=0.8),
    "gppo": kept(1.0, 1.0, high=1.28, low=0.8, most=10),
    "abc-grpo": lambda log_pi, old, mu, a: torch.exp(log_pi - old).clamp(0.8, 1.2) * a,
    "gspo": of_mean(1 - 3e-4, 1 + 4e-4),
    "gmpo": gmpo,
    "gpg": lambda log_pi, old, mu, a: log_pi * a,
    "luspo": of_mean(0.998, 1.0025),
    "vespo": vespo,
    "dis": dis,
    "ipo": ipo,
    "atr-grpo": atr_grpo,
    "kpop": kpop,
    "wilson": wilson,
    "sapo": sapo,
    "dgpo": dgpo,
    "cfpo": lambda log_pi, old, mu, a: (
        torch.exp(log_pi - old) * a - a.abs() / (2 * 0.2) * (torch.exp(log_pi - old) - 1) ** 2
    ),
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
OF_AVERAGE = {
    "seq-mean-token-mean": "grpo dcpo band-kl band-tv band-chi2 band-relaxed abc-grpo gspo gmpo kpop sapo",
    "token-mean": "ppo dapo ripo cispo up ce-gppo gppo dis ipo dgpo",
    "seq-mean-token-sum": "band-sequence luspo topr vespo",
    "seq-mean-token-sum-norm": "dr-grpo dppo",
}
AVERAGES = dict.fromkeys(FORMULAS) | {name: average for average, of in OF_AVERAGE.items() for name in of.split()}


def test_a_method_has_the_average_of_its_paper():
    assert {each.name: each.objective.aggregation for each in methods()} == AVERAGES
    assert len({each.title for each in methods()}) == len(FORMULAS)


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


@pytest.mark.parametrize("name", [each.name for each in methods() if not each.from_sampler])
@pytest.mark.parametrize("host", TRAINERS)
def test_a_trainer_takes_a_method_or_refuses_it_by_name(host, name):
    value = dataclasses.replace(method(name).objective, aggregation=None)
    fields = set(value.changed()) & set(TRAINERS[host].refused(host))
    if fields:
        with pytest.raises(ValueError, match=rf"^method '{name}': ({'|'.join(fields)}) must be .* through {host}"):
            objective_for(host, name)
    else:
        assert objective_for(host, {"type": "method", "name": name}) == value


@pytest.mark.parametrize(
    ("host", "name", "average", "words"),
    [
        ("TRL", "dapo", "dapo", "dapo: .*by loss_type='dapo' .token-mean.; as its paper does"),
        ("TRL", "gspo", "dapo", "gspo: .*'dapo' .token-mean.; .* 'seq-mean-token-mean', which is loss_type='grpo'"),
        ("TRL", "luspo", "grpo", ".* takes 'seq-mean-token-sum', which is loss_type='luspo'"),
        ("verl", "cispo", "seq-mean-token-mean", ".* takes 'token-mean', which is actor.loss_agg_mode='token-mean'"),
        ("SkyRL", "gspo", None, "gspo: SkyRL averages by trainer.algorithm.loss_reduction; its paper .*"),
        ("prime-rl", "dapo", "the mean over tokens", ".*the mean over tokens .token-mean.; as its paper does"),
        ("tinker", "grpo", None, "grpo: tinker averages by the sum over tokens; its paper takes 'seq.*"),
        ("TRL", "clip-higher", "grpo", ".*it names a rule and no average"),
    ],
)
def test_a_trainer_says_which_average_a_method_gets(caplog, host, name, average, words):
    lines: list[str] = []
    for say in (integrations.RULE.warning, lines.append):
        integrations._SAID.clear()
        for rule in (name, name, Clip(0.2, 0.2), Objective()):  # once in a process, and of methods alone
            say_average(host, rule, average, say)
    (line,) = lines
    assert caplog.messages == lines
    assert re.fullmatch(words, line)


@pytest.mark.parametrize("average", get_args(Aggregation))
@pytest.mark.parametrize("host", TRAINERS)
def test_an_average_that_was_written_must_be_the_trainers(host, average):
    written, its = Objective(Clip(0.2, 0.2), aggregation=average), TRAINERS[host]
    for setting in (None, *its.averages):
        if its.averages.get(setting or its.average) == average:  # without a setting: its only one
            assert objective_for(host, written, average=setting) == Objective(Clip(0.2, 0.2))
        else:
            with pytest.raises(ValueError, match=f"aggregation must be None through {host}, got '{average}'"):
                objective_for(host, written, average=setting)


@pytest.mark.parametrize("host", TRAINERS)
def test_a_trainer_may_be_made_where_models_are_made_on_no_device(host):
    with torch.device("meta"):
        assert objective_for(host, "band-kl") == Objective(Band("kl", 0.05))


def test_a_recipe_may_name_a_method_and_its_record_has_the_objective():
    config = build({"scene": "tail", "trust_region": "clip-higher"})
    assert config.trust_region == {"type": "clip", "eps_low": 0.2, "eps_high": 0.28}
    assert config.label == "Clip-Higher 0.2/0.28"
    config = load(None, ["scene=tail", "trust_region={type: method, name: gspo}"])
    assert (config.trust_region, config.label) == (method("gspo").without_average.to_config(), "GSPO")


def test_the_lab_runs_methods(tmp_path):
    jobs = plan("tail", ["trgppo", "ppo", "{type: method, name: ripo}"], [0], tmp_path)
    assert [job.name for job in jobs] == ["trgppo", "grpo", "ripo"]  # PPO's clip is GRPO's
    assert [job.config.objective for job in jobs] == [
        method(name).without_average for name in ("trgppo", "ppo", "ripo")
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan("tail", ["dis"], [0], None), r"^method 'dis': its ratio is to the sampler's policy; set anchor="),
        (lambda: plan("tail", ["gsspo"], [0], None), r"^no method or rule is called 'gsspo', did you mean 'gspo'\? "),
        (lambda: load(None, ["scene=tail", "trust_region=gsppo"]), r"^trust_region: no method .* did you mean 'gspo'"),
        (lambda: method(None), r"^no method or rule is called None; `bandpo methods` lists all$"),
    ],
)
def test_a_method_that_cannot_be_run_is_refused(call, message):
    with pytest.raises((UserError, ValueError), match=message):
        call()


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


EVERY = "TRL, axolotl, unsloth, Liger, torchrl, verl, SkyRL, tinker, prime-rl, rLLM, Trinity-RFT, xtuner, RLinf, "
EVERY += "miles, slime, torchtitan, AsyncGRPO"
CLAMPING = "unsloth, Liger, torchrl, Trinity-RFT, xtuner, RLinf, miles, slime, torchtitan, AsyncGRPO: "


@pytest.mark.parametrize(
    ("rules", "lines"),
    [
        ("cispo --vs band", f"It runs in: TRL, axolotl, verl, SkyRL, tinker, prime-rl, rLLM.\n  not in {CLAMPING}"),
        ("cispo --vs band", f"The other one runs in: {EVERY}.\n"),
        ("clip --vs band", f"Either runs in: {EVERY}.\n"),
        ("{type: objective, beta: 0.1}", "It runs in: no trainer.\n  not in TRL: "),
        ("dppo", "It runs in: tinker, prime-rl; with the sampler as anchor also in TRL (anchor='sampler' of "),
        ("dppo", "axolotl (anchor: sampler in its YAML), verl (actor.policy_loss.anchor=sampler), SkyRL (anchor="),
        ("dppo", "\n  not in unsloth, Liger, xtuner, RLinf: method 'dppo'"),
    ],
)
def test_which_trainers_run_it_is_said(capsys, monkeypatch, rules, lines):
    monkeypatch.setenv("COLUMNS", "1000")
    rule, *other = rules.split(" --vs ")
    assert main(["explain", rule, "--p", "0.3", *(["--vs", *other] if other else [])]) == 0
    assert lines in capsys.readouterr().out


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


def test_papers_are_counted_and_what_is_missing_is_in_no_other_table(index):
    here = {each.arxiv for each in methods()} - {None, "2603.04918"}
    for page in ("README.md", "docs/index.md"):
        assert f"the methods of {len(here)} other papers" in (index.PAGE.parents[1] / page).read_text(encoding="utf-8")
    missing = [paper for _, papers, _ in index.ABSENT for paper in papers.split()]
    assert not here.intersection(missing)
    assert len({*missing}) == len(missing)


ABOVE, BELOW = "where A >= 0: r A, none above r_high (value r_high A)", "where A < 0: r A, none below r_low"
SMOOTH = "where A < 0: r A - |A| r (r - 1) / e, e the distance from 1 to the bound on the side of r"
EXPLAINED = [
    ("ppo", [ABOVE, BELOW]),
    ("dual-clip", [ABOVE, BELOW, "where A < 0 and r > 3 (dual clip): none (value 3 A)"]),
    ("dis", ["where A < 0: r A, none outside the interval (value 0)"]),
    ("cispo", ["where A >= 0: clip(r, r_low, r_high) A"]),
    ("ce-gppo", ["where A >= 0: r A, 1 r_high A above r_high", "where A < 0: r A, 0.5 r_low A below r_low"]),
    ("up", ["where A >= 0: clip(r, r_low, r_high) A", BELOW, "Ratio 1 (A >= 0) 0.1 to 0.1 1 to 1 "]),
    ("up", ["Clip 0.2/inf (A < 0) 0.08 to 1 0.8 to inf "]),
    ("dgpo", ["r A, (r_high / r)^0.5 r A above r_high", "where A < 0: r A, (r / r_low)^1 r A below r_low"]),
    ("sapo", ["in log pi: where A >= 0: 4 s (1 - s) r A, s = sigmoid(1 (r - 1))", "s = sigmoid(1.05 (r - 1))"]),
    ("vespo", ["for each of the tokens where A >= 0: r^2 e^(3 (1 - r)) A", "where A < 0: r^3 e^(2 (1 - r)) A"]),
    (Objective(Clip(), surrogate=("clip", "quadratic")), [SMOOTH]),
    (
        Objective(Clip(), surrogate=(Decay(1, 2), "clip"), ratio="sequence-mean"),
        ["in log pi: for each of the tokens 1 / T of it", "where A >= 0: r A, (r_high / r)^2 r A above r_high"],
    ),
    ("gspo", ["a response's mean ratio may go from 0.9997 to 1.0004"]),
    ("weighted-clip", ["where A > 0: all of it times 0.85 (positive_weight)"]),
    (Objective(Clip(), ratio="sequence-mean", positive_weight=0.85), ["where A > 0: all of it times 0.85 (pos"]),
]


@pytest.mark.parametrize(("rule", "lines"), EXPLAINED, ids=str)
def test_what_becomes_of_tokens_is_said(rule, lines):
    text = " ".join(explain(method(rule) if isinstance(rule, str) else rule, [0.1]).split())
    assert [line for line in lines if line not in text] == []
    assert ("new probability" in text) != ("mean ratio" in text)  # which has an interval and no p


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
