"""What becomes of a token outside its interval: every application and ratio against the textbook, by autograd in
float64."""

import dataclasses
import itertools
import math

import pytest
import torch
from regions import (
    APPLICATIONS,
    BY_BOUNDS,
    DECAY,
    NO_CLIP,
    PRESERVE,
    RATIOS,
    REGIONS,
    SAPO,
    name_of,
)
from textbook import F64, loss_and_gradient, ppo, ragged
from textbook import textbook as mean_of
from torch import Tensor

from bandpo import Band, Bounds, Clip, Context, Objective, policy_loss
from bandpo.losses import Decay, Sapo, Vespo, kl_penalty, surrogate

PAIRS = [(a, b) for a in APPLICATIONS for b in APPLICATIONS]
TAKE_DUAL_CLIP = ["clip", "mask", PRESERVE, DECAY]
# Under these a token outside has a gradient, however far it is; under the smooth ones it is nowhere r A.
KEEP = ["weight", PRESERVE, DECAY]
SMOOTH = ["quadratic", SAPO]


def textbook(kind, log_pi: Tensor, old: Tensor, a: Tensor, bounds: Bounds, dual_clip: float = math.inf) -> Tensor:
    """The objective of one application as its paper writes it, for autograd."""
    s = (log_pi - old).clamp(-60, 60)
    r, low, high = s.exp(), bounds.log_low.exp(), bounds.log_high.exp()
    below, above = s < bounds.log_low, s > bounds.log_high
    clipped = torch.where(below, low, torch.where(above, high, r))
    tamed = torch.where((a < 0) & (r > dual_clip), dual_clip, r)
    self_ratio = torch.exp(log_pi - log_pi.detach())  # r / sg(r)
    if kind == "clip":
        least = ppo(r, a, low, high)
        return torch.where((a < 0) & (least < dual_clip * a), dual_clip * a, least)
    if kind == "mask":
        drop = (above & (a > 0)) | (below & (a < 0))
        return torch.where(drop, 0.0, tamed * a)
    if kind == "mask_two_sided":
        return torch.where(above | below, 0.0, r * a)
    if kind == "weight":
        return clipped.detach() * a * log_pi
    if kind == "quadratic":  # where r is pinned to 1 it is PPO's
        e = torch.where(r > 1, high - 1, 1 - low)
        return torch.where(e < 1e-6, ppo(r, a, low, high), r * a - a.abs() / (2 * e.clamp(min=1e-6)) * (r - 1) ** 2)
    if isinstance(kind, Sapo):
        tau = torch.where(a > 0, kind.tau_positive * torch.ones_like(r), kind.tau_negative)
        return 4 / tau * torch.sigmoid(tau * (r - 1)) * a
    if isinstance(kind, Vespo):
        k = torch.where(a > 0, kind.k_positive * torch.ones_like(r), kind.k_negative)
        rate = torch.where(a > 0, kind.lambda_positive * torch.ones_like(r), kind.lambda_negative)
        return (r**k * torch.exp(rate * (1 - r))).detach() * self_ratio * a
    if isinstance(kind, Decay):
        weight = torch.where(above, (high / r) ** kind.high, torch.where(below, (r / low) ** kind.low, 1.0))
        kept = weight.detach() * r * a
    else:
        kept = torch.where(a > 0, kind.high * torch.where(above, high, 1.0), kind.low * low) * self_ratio * a
    return torch.where((above & (a > 0)) | (below & (a < 0)), kept, tamed * a)


# ---- the contract of every application with every region


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16, torch.float32, F64], ids=str
)
@pytest.mark.parametrize(
    ("region", "kind"),
    [*itertools.product(REGIONS, BY_BOUNDS), (NO_CLIP, SAPO), (NO_CLIP, Vespo(1.5, 0.5, 2, 3))],
    ids=lambda value: str(value) if value in APPLICATIONS or isinstance(value, Vespo) else name_of(value),
)
@pytest.mark.filterwarnings("ignore:.*half precision rounds them")
def test_every_region_and_application_is_its_textbook(region, kind, dtype):
    data, entropies = ragged(6, 9, dtype=dtype), torch.full((6, 9), 0.5, dtype=dtype)
    objective = Objective(region, surrogate=kind, aggregation="none")
    got = loss_and_gradient(data, objective, extra={"entropies": entropies})
    log_pi = data["logps"].detach().double().requires_grad_()
    old, a, mask = data["old_logps"].double(), data["advantages"].double()[:, None], data["response_mask"]
    # Half precision is float32 from the start: so are its bounds.
    context = Context(mask, a, {"entropies": entropies})
    bounds = region.bounds(data["old_logps"].to(torch.promote_types(dtype, torch.float32)), context)
    bounds = Bounds(bounds.log_low.double(), bounds.log_high.double())
    expected = -torch.where(mask, textbook(kind, log_pi, old, a, bounds), 0.0)
    (gradient,) = torch.autograd.grad(expected.sum(), log_pi)
    rtol = {F64: 1e-12, torch.float32: 1e-5}.get(dtype, 1e-5)
    # Under "quadratic" two terms may cancel.
    atol = max(1e-14, rtol * expected.detach().abs().max().item() * (kind == "quadratic"))
    torch.testing.assert_close(got[0].double(), expected, rtol=rtol, atol=atol)
    rtol = {F64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    if dtype == torch.float16:
        gradient = gradient.to(dtype).double()  # of which some overflow
    torch.testing.assert_close(
        got[1].double(), gradient, rtol=rtol, atol=max(atol, 1e-7 if dtype == torch.float16 else 0.0)
    )
    assert got[1].dtype == dtype
    assert not got[1][~mask].any()


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_pairs_and_dual_clip_are_their_textbook(pair, dual_clip):
    """Each sign its own application; and a pair of one is that one."""
    data, region = ragged(6, 9, seed=1), NO_CLIP if pair == (SAPO, SAPO) else Band("kl", 0.05)
    options = {"dual_clip": dual_clip, "aggregation": "none"}
    if dual_clip is not None and pair[1] not in TAKE_DUAL_CLIP:
        with pytest.raises(ValueError, match=r"dual_clip must be None for surrogate = .*, which bounds r where A < 0"):
            Objective(region, surrogate=pair, **options)
        return
    loss, gradient = loss_and_gradient(data, Objective(region, surrogate=pair, **options))
    log_pi, a = data["logps"].detach().requires_grad_(), data["advantages"][:, None]
    bounds = region.bounds(data["old_logps"])
    positive, negative = (textbook(kind, log_pi, data["old_logps"], a, bounds, dual_clip or math.inf) for kind in pair)
    expected = -torch.where(data["response_mask"], torch.where(a >= 0, positive, negative), 0.0)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), log_pi)[0], rtol=1e-12, atol=0)
    s = data["logps"].detach() - data["old_logps"]
    if dual_clip:  # it acts somewhere
        assert ((s > math.log(dual_clip)) & (a < 0) & data["response_mask"]).sum() > 2
    if pair[0] == pair[1]:
        alone = loss_and_gradient(data, Objective(region, surrogate=pair[0], **options))
        assert all(map(torch.equal, alone, (loss, gradient)))


@pytest.mark.parametrize("kind", APPLICATIONS, ids=str)
def test_the_table_of_the_surrogate(kind):
    """Value and derivative for each sign and side, as its docstring has them; the bounds themselves are inside."""
    low, high = math.log(0.8), math.log(1.3)
    s = torch.tensor([-0.5, low, 0.1, high, 0.7], dtype=F64).requires_grad_()
    bounds = Bounds(torch.full((5,), low, dtype=F64), torch.full((5,), high, dtype=F64))
    r = s.detach().exp().tolist()
    r[1], r[3] = 0.8, 1.3
    rows = {  # value, slope: each below, on, inside, on, above
        ("clip", 1): ([*r[:4], 1.3], [*r[:4], 0]),
        ("clip", -1): ([0.8, *r[1:]], [0, *r[1:]]),
        ("mask", 1): ([*r[:4], 0], [*r[:4], 0]),
        ("mask", -1): ([0, *r[1:]], [0, *r[1:]]),
        ("mask_two_sided", 1): ([0, *r[1:4], 0], [0, *r[1:4], 0]),
        (PRESERVE, 1): ([*r[:4], 0.75 * 1.3], [*r[:4], 0.75 * 1.3]),
        (PRESERVE, -1): ([0.5 * 0.8, *r[1:]], [0.5 * 0.8, *r[1:]]),
        (DECAY, 1): ([*r[:4], r[4] * (1.3 / r[4]) ** 0.25],) * 2,
        (DECAY, -1): ([r[0] * (r[0] / 0.8) ** 1.5, *r[1:]],) * 2,
        ("quadratic", 1): (
            [x - (x - 1) ** 2 / (2 * e) for x, e in zip(r, [0.2, 0.2, 0.3, 0.3, 0.3], strict=True)],
            [r[0] * (1 + (1 - r[0]) / 0.2), 2 * r[1], r[2] * (1 - (r[2] - 1) / 0.3), 0, r[4] * (1 - (r[4] - 1) / 0.3)],
        ),
        ("quadratic", -1): (
            [x + (x - 1) ** 2 / (2 * e) for x, e in zip(r, [0.2, 0.2, 0.3, 0.3, 0.3], strict=True)],
            [r[0] * (1 - (1 - r[0]) / 0.2), 0, r[2] * (1 + (r[2] - 1) / 0.3), 2 * r[3], r[4] * (1 + (r[4] - 1) / 0.3)],
        ),
        **{
            (SAPO, sign): (
                [4 / tau / (1 + math.exp(tau * (1 - x))) for x in r],
                [x / math.cosh(tau * (x - 1) / 2) ** 2 for x in r],
            )
            for sign, tau in ((1, 0.7), (-1, 1.6))
        },
        ("weight", 1): (None, [0.8, *r[1:4], 1.3]),
    }
    for sign in (1, -1):
        values, slopes = rows.get((kind, sign)) or rows[kind, 1]
        values = values or [w * x for w, x in zip(slopes, s.tolist(), strict=True)]  # log r in the place of log pi
        got = surrogate(s, torch.tensor([2.0 * sign], dtype=F64), bounds, surrogate=kind)
        (slope,) = torch.autograd.grad(got.sum(), s)
        assert got.tolist() == pytest.approx([2 * sign * v for v in values], rel=1e-12)
        assert slope.tolist() == pytest.approx([2 * sign * v for v in slopes], rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("kind", APPLICATIONS, ids=str)
def test_a_surrogate_is_never_nan_however_far_a_ratio_is(kind, sign):
    """e^89 is inf in float32. Below the bound for A < 0, above it for A > 0, all values are finite."""
    s = torch.tensor([[100.0, 89.0, -100.0, -torch.inf, 0.1]], requires_grad=True)
    value = surrogate(s, torch.tensor([[sign]]), Clip(0.2, 0.2).bounds(torch.zeros(1, 5)), surrogate=kind)
    (slope,) = torch.autograd.grad(value.sum(), s)
    assert not (value.isnan() | slope.isnan()).any()
    if sign >= 0 or kind in ("mask_two_sided", "weight", *SMOOTH):  # else r A itself, which overflows
        assert value.isfinite().all() or kind == "weight"
        assert slope.isfinite().all()
    assert kind != "mask_two_sided" or (value[0, :4] == 0).all()


@pytest.mark.parametrize("kind", APPLICATIONS, ids=str)
def test_a_second_derivative_at_a_probability_of_zero_is_finite(kind):
    logps = torch.tensor([[-1.0, -torch.inf]], requires_grad=True)
    old = torch.full((1, 2), -1.0)
    region = NO_CLIP if kind == SAPO else Clip(1.0, 1.0)
    loss, _ = policy_loss(logps, old, torch.ones(1), torch.ones(1, 2), Objective(region, surrogate=kind))
    (first,) = torch.autograd.grad(loss, logps, create_graph=True)
    assert torch.equal(first.detach(), torch.autograd.grad(loss, logps, retain_graph=True)[0])
    if kind != "weight":
        (second,) = torch.autograd.grad(first.sum(), logps)
        assert second.isfinite().all()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_functional_transforms_give_what_autograd_gives():
    data, options = ragged(6, 9, seed=3), {"objective": Band("kl", 0.05), "normalizer": 1.0}
    rest = {name: x for name, x in data.items() if name != "logps"}

    def loss(logps, old_logps, advantages, response_mask):
        return policy_loss(logps, old_logps, advantages, response_mask, **options)[0]

    expected = loss_and_gradient(data, **options)[1]
    gradient = torch.func.grad(loss)(data["logps"].detach(), **rest)
    assert torch.equal(gradient, expected)
    rows = [data["logps"].detach()[:, None], *(x[:, None] for x in rest.values())]
    each = torch.func.vmap(torch.func.grad(loss))(*rows)
    assert torch.equal(each[:, 0], expected)


@pytest.mark.parametrize(("log_pi", "counts_as"), [(-2e3, -2e3), (-9e5, -9e5), (-2e6, -1e6)])
def test_the_value_of_a_weight_is_its_log_pi_down_to_a_million_nats(log_pi, counts_as):
    one = torch.tensor([[log_pi]])
    loss, _ = policy_loss(one, one, torch.ones(1), torch.ones(1, 1), Objective(Clip(0.2, 0.2), surrogate="weight"))
    assert loss.item() == -counts_as


SECOND = 1.1 / math.cosh(0.035) ** 2 * (1 - 0.7 * 1.1 * math.tanh(0.035))


@pytest.mark.parametrize(
    ("kind", "ratio", "slope", "expected"),
    [
        ("weight", 1.1, 1.1, 0.0),
        ("mask", 1.1, 1.1, 1.1),
        ("clip", 1.1, 1.1, 1.1),
        ("mask", 1.3, 0.0, 0.0),  # outside
        ("clip", 1.3, 0.0, 0.0),
        ("mask_two_sided", 1.3, 0.0, 0.0),
        (PRESERVE, 1.1, 1.1, 1.1),
        (DECAY, 1.1, 1.1, 1.1),
        ("quadratic", 1.1, 1.1 * 0.5, 1.1 * 0.5 - 1.1**2 / 0.2),
        (SAPO, 1.1, 1.1 / math.cosh(0.035) ** 2, SECOND),
        (("quadratic", "clip"), 1.1, 1.1 * 0.5, 1.1 * 0.5 - 1.1**2 / 0.2),
        (("clip", "quadratic"), 1.1, 1.1, 1.1),
        (("weight", SAPO), 1.1, 1.1, 0.0),
    ],
    ids=str,
)
def test_second_derivatives_of_weight_are_none_and_of_the_rest_the_exponentials(kind, ratio, slope, expected):
    s = torch.full((1, 1), math.log(ratio), dtype=F64).requires_grad_()
    value = surrogate(s, torch.ones(1, dtype=F64), Clip(0.2, 0.2).bounds(-torch.ones(1, 1)), surrogate=kind)
    (first,) = torch.autograd.grad(value.sum(), s, create_graph=True)
    second = torch.autograd.grad(first.sum(), s) if kind != "weight" else [torch.zeros(1)]
    assert first.requires_grad == (kind != "weight")  # whose gradient is constant
    assert [first.item(), second[0].item()] == pytest.approx([slope, expected], rel=1e-6)


@pytest.mark.parametrize("kind", APPLICATIONS, ids=str)
def test_rollout_weights_multiply_every_application_and_no_penalty(kind):
    data, weights, ref_logps = ragged(6, 9), 3 * torch.rand(6, 9, dtype=F64), torch.rand(6, 9, dtype=F64).log()
    objective = Objective(NO_CLIP if kind == SAPO else Band(), surrogate=kind, aggregation="none")
    plain, both = loss_and_gradient(data, objective), {"rollout_is_weights": weights, "ref_logps": ref_logps}
    loss, gradient = loss_and_gradient(data | both, dataclasses.replace(objective, beta=0.3))
    penalty = 0.3 * kl_penalty(data["logps"], ref_logps) * data["response_mask"]
    (slope,) = torch.autograd.grad(penalty.sum(), data["logps"])
    wanted = plain[0] * weights + penalty.detach(), plain[1] * weights + slope
    torch.testing.assert_close((loss, gradient), wanted, rtol=1e-12, atol=1e-15)
    total, _ = loss_and_gradient(data | both, dataclasses.replace(objective, beta=0.3, aggregation="token-mean"))
    torch.testing.assert_close(total, loss.sum() / data["response_mask"].sum(), rtol=1e-12, atol=0)


# ---- padding, infinities, NaN


@pytest.mark.parametrize(
    ("kind", "limit"), [*((kind, 2.0) for kind in APPLICATIONS), *((kind, None) for kind in BY_BOUNDS)], ids=str
)
def test_a_log_ratio_beyond_its_limit_counts_as_the_limit_and_has_no_gradient_but_under_weight(kind, limit):
    """The limit is 60 unless `max_log_ratio` is less."""
    far = limit or 60.0
    old = torch.full((1, 6), -200.0, dtype=F64)
    logps = (old + torch.tensor([[far - 0.1, far, far + 1, 0.1 - far, -far, -far - 1]])).requires_grad_()
    objective = Objective(NO_CLIP, surrogate=kind, max_log_ratio=limit, aggregation="none")
    loss, metrics = policy_loss(logps, old, torch.ones(1), torch.ones(1, 6), objective, metrics="all")
    if kind in ("clip", "mask", "mask_two_sided", PRESERVE, DECAY):
        torch.testing.assert_close(loss.detach(), -(logps - old).detach().clamp(-far, far).exp())
    (gradient,) = torch.autograd.grad(loss.sum(), logps)
    beyond = torch.tensor([[False, False, True] * 2])
    assert gradient[beyond].ne(0).tolist() == [kind == "weight"] * 2
    assert gradient[~beyond].ne(0).all() or kind == "quadratic"
    assert {name: metrics.compute()[f"log_ratio/{name}"] for name in ("max", "min", "saturated_fraction")} == (
        {"max": far, "min": -far, "saturated_fraction": pytest.approx(1 / 3)}
    )


# ---- the ratio of a response


@pytest.mark.parametrize("kind", APPLICATIONS, ids=str)
def test_gspo_is_the_geometric_mean_of_the_ratios(kind):
    def gspo(log_pi, old, sampler, a):
        return textbook(kind, log_pi.mean(), old.mean(), a, Clip(0.2, 0.28).bounds(old.mean()))

    data, region = ragged(6, 9, seed=12), NO_CLIP if kind == SAPO else Clip(0.2, 0.28)
    got = loss_and_gradient(data, Objective(region, ratio="sequence-mean", surrogate=kind))
    torch.testing.assert_close(got, mean_of(gspo, data, data["old_logps"]), rtol=1e-12, atol=1e-15)
    assert (got[1][data["response_mask"]] == 0).any() != (kind in [*KEEP, *SMOOTH])


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
@pytest.mark.parametrize("ratio", RATIOS[1:])
def test_every_term_of_a_response_sends_its_gradient_to_all_its_tokens(aggregation, ratio):
    """The gradient is that of the formula, by finite differences."""
    data = {n: x.detach() for n, x in ragged(3, 4, seed=10).items()}

    def loss(logps, ratio=ratio):
        objective = Objective(Clip(0.3, 0.3), ratio=ratio, aggregation=aggregation)
        return policy_loss(**data | {"logps": logps}, objective=objective)[0]

    assert torch.autograd.gradcheck(loss, data["logps"].clone().requires_grad_())


@pytest.mark.parametrize("region", [Clip(1 - math.exp(-0.4), math.exp(0.4) - 1), Band("kl", 0.05)], ids=str)
def test_gmpo_is_the_geometric_mean_of_the_clipped_ratios(region):
    """Clip log r where A drives it out, then average: prod(...)^(1/T) A. Each token has its bounds: a band is fine."""

    def gmpo(log_pi, old, sampler, a):
        s, bounds = log_pi - old, region.bounds(old)
        s = torch.minimum(s, bounds.log_high) if a > 0 else torch.maximum(s, bounds.log_low)
        return s.mean().exp() * a

    data = ragged(6, 9, seed=11)
    got = loss_and_gradient(data, Objective(region, ratio="mean-of-clipped"))
    torch.testing.assert_close(got, mean_of(gmpo, data, data["old_logps"]), rtol=1e-12, atol=1e-15)
    assert (got[1][data["response_mask"]] == 0).sum() > 3


# ---- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"surrogate": "clamp"}, "surrogate must be one of .*, got 'clamp'"),
        ({"surrogate": ("clip",)}, r"surrogate must be one of .*, got \('clip',\)"),
        ({"surrogate": ("clip", "clamp")}, r"surrogate must be one of .*, got \('clip', 'clamp'\)"),
        ({"surrogate": None}, "surrogate must be one of .*, got None"),
        ({"surrogate": "weight", "dual_clip": 3.0}, "dual_clip must be None for surrogate = 'weight'.*, got 3.0"),
        ({"surrogate": ("clip", SAPO), "dual_clip": 3.0}, "dual_clip must be None for surrogate = .*Sapo.*, got 3.0"),
        ({"surrogate": "mask", "dual_clip": 0.5}, "dual_clip must be .*, got 0.5"),
    ],
)
def test_the_function_alone_refuses_options_that_make_no_sense(options, message):
    """As `Objective` does."""
    old = -torch.ones(2, 3)
    with pytest.raises(ValueError, match=message):
        surrogate(old, torch.ones(2, 1), Clip().bounds(old), **options)
