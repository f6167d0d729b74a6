"""The loss against textbook formulas written out in loops, and at every input that it must survive."""

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np
import pytest
import torch
from regions import NO_CLIP, SAPO, WAYS, name_of, region_for, ways
from textbook import F64, loss_and_gradient, ragged, step
from torch.utils._python_dispatch import TorchDispatchMode

from bandpo import DCPO, Band, Bounds, Capped, Clip, Objective, Region, group_advantages, numerics, policy_loss
from bandpo.band import Divergence
from bandpo.losses import Metrics, aggregate, kl_penalty
from bandpo.losses.kl import KLPenalty
from bandpo.trust_regions import Relaxed

AGGREGATIONS = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


# ---- aggregation


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32])
def test_aggregations_are_their_formulas(mask_dtype):
    torch.manual_seed(0)
    values = torch.randn(4, 6, dtype=F64)
    # The longest response has 5 tokens, T is 6: what a trainer divides by must not depend on the longest response.
    mask = torch.tensor([[1, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
    mask = mask.to(mask_dtype)
    tokens = [[values[i, t].item() for t in range(6) if mask[i, t]] for i in range(4)]
    full = [row for row in tokens if row]
    everything = sum(sum(row) for row in tokens)
    expected = {
        "token-mean": everything / 9,
        "seq-mean-token-sum": everything / 3,
        "seq-mean-token-mean": sum(sum(row) / len(row) for row in full) / 3,
        "seq-mean-token-sum-norm": everything / (3 * 6),
    }
    for name, value in expected.items():
        assert aggregate(values, mask, name).item() == pytest.approx(value, rel=1e-12)
        default = {"token-mean": 9, "seq-mean-token-sum-norm": 18}.get(name, 3)
        for normalizer in (2.0, 7, torch.tensor(3.5)):
            scaled = aggregate(values, mask, name, normalizer).item()
            assert scaled == pytest.approx(value * default / float(normalizer), rel=1e-12)
    assert torch.equal(aggregate(values, mask, "none"), values * mask)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_unequal_micro_batches_add_up_to_the_batch(aggregation):
    whole, entropies = ragged(8, 6) | {"ref_logps": torch.rand(8, 6, dtype=F64).log()}, torch.rand(8, 6, dtype=F64)
    whole["response_mask"][3:4] = False  # a micro-batch without any token
    objective = Objective(aggregation=aggregation, dual_clip=1.5, beta=0.1)
    expected, gradient, metrics = step(whole, objective, extra={"entropies": entropies}, metrics="all")
    tokens, responses = (int(x.sum()) for x in (whole["response_mask"], whole["response_mask"].any(-1)))
    normalizer = {"token-mean": tokens, "seq-mean-token-sum-norm": 6 * responses}.get(aggregation, responses)
    parts = []
    for rows in (slice(0, 3), slice(3, 4), slice(4, 8)):
        part = {name: x.detach()[rows].requires_grad_(name == "logps") for name, x in whole.items()}
        extra = {"entropies": entropies[rows]}
        parts.append(step(part, objective, normalizer=normalizer, extra=extra, metrics="all"))
    losses, gradients, measured = zip(*parts, strict=True)
    torch.testing.assert_close(sum(losses), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.cat(gradients), gradient, rtol=1e-12, atol=0)
    merged = functools.reduce(Metrics.merge, measured)
    assert merged.compute() == pytest.approx(metrics.compute(), rel=1e-12, nan_ok=True)


@dataclass(frozen=True)
class OneForAll(Region):
    """A rule whose bounds have no shape of their own."""

    kind: ClassVar[str] = "one_for_all"

    def bounds(self, old_logps, context=None):
        return Bounds(torch.tensor(-0.2), torch.tensor(0.2))


@pytest.mark.parametrize("columns", [4, 40_000])
def test_bounds_may_broadcast(columns):
    old = torch.full((3, columns), -1.0)
    loss, metrics = policy_loss(old + 0.3, old, torch.ones(3), torch.ones(3, columns), OneForAll())
    assert (loss.item(), metrics.compute()["clip/fraction"]) == (pytest.approx(-math.exp(0.2), rel=1e-4), 1)


def test_an_empty_micro_batch_gives_zero_with_a_normalizer_and_an_error_without():
    arguments = ragged() | {"response_mask": torch.zeros(5, 7, dtype=torch.bool)}
    for objective, normalizer in ((Objective(), 3.0), (Objective(aggregation="none"), None)):
        value, gradient = loss_and_gradient(arguments, objective, normalizer=normalizer)
        assert not value.any() | gradient.any()
    with pytest.raises(ValueError, match=r"response_mask is empty: .* pass a normalizer"):
        policy_loss(**arguments, objective=Objective())
    nothing = {name: x[:0] for name, x in arguments.items()}
    assert policy_loss(**nothing, objective=Band(), normalizer=3.0)[0] == 0  # nor does (0, T) fail


# ---- shapes and dtypes


def test_one_advantage_per_sequence_is_that_also_for_a_square_batch():
    arguments = ragged(6, 6)
    per_token = arguments["advantages"][:, None].expand(6, 6)
    expected = loss_and_gradient(arguments | {"advantages": per_token}, Objective())
    for advantages in (arguments["advantages"], arguments["advantages"][:, None]):
        assert all(map(torch.equal, loss_and_gradient(arguments | {"advantages": advantages}, Objective()), expected))
    assert loss_and_gradient(arguments | {"advantages": per_token.T}, Objective())[0] != expected[0]


def test_only_the_new_log_probabilities_have_a_gradient():
    arguments = ragged() | {n: -torch.rand(5, 7, dtype=F64) for n in ("ref_logps", "rollout_is_weights")}
    others = [x for name, x in arguments.items() if name not in ("logps", "response_mask")]
    others = [x.requires_grad_() for x in (*others, torch.rand(5, 7, dtype=F64))]
    more = {"extra": {"entropies": others[-1]}, "metrics": "all"}
    loss, metrics = policy_loss(**arguments, objective=Objective(beta=0.1), **more)
    first, *gradients = torch.autograd.grad(loss, [arguments["logps"], *others], allow_unused=True)
    assert first.any()
    assert gradients == [None] * len(others)
    assert not any(x.requires_grad for x in (metrics.totals | metrics.maxima).values())


@pytest.mark.parametrize("name", ["old_logps", "ref_logps"])
def test_the_new_log_probabilities_given_twice_are_detached_where_they_are_the_old(name):
    given = ragged() | {"ref_logps": ragged()["old_logps"]}
    both = given["logps"], given["logps"].detach()
    slopes = [loss_and_gradient(given | {name: same}, Objective(beta=0.1))[1] for same in both]
    assert torch.equal(*slopes)
    assert slopes[0].any()


def test_new_and_old_log_probabilities_that_are_swapped_are_an_error():
    given = ragged()
    swapped = given | {"logps": given["old_logps"], "old_logps": given["logps"]}
    with pytest.raises(ValueError, match=r"^logps has no gradient and old_logps has one; are the two swapped\?$"):
        policy_loss(**swapped, objective=Band())
    policy_loss(**swapped | {"old_logps": given["logps"].detach()}, objective=Band())  # of an evaluation


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    half = ragged(dtype=dtype)
    full = {name: x.detach().float() if x.dtype == dtype else x for name, x in half.items()}
    full["logps"].requires_grad_()
    numerics._warn.cache_clear()
    with pytest.warns(UserWarning, match="^logps and old_logps are .*float16: .*as bandpo.token_logps does$") as warned:
        value, gradient = loss_and_gradient(half, Objective())
    assert [Path(each.filename).name for each in warned] == ["textbook.py"]  # where policy_loss is called
    loss_and_gradient(half, Objective())  # a second warning would be an error
    expected, slope = loss_and_gradient(full, Objective())
    assert all(map(torch.equal, (value, gradient), (expected, slope.to(dtype))))
    assert (value.dtype, gradient.dtype) == (torch.float32, dtype)
    entropies = torch.full((5, 7), 0.1, dtype=dtype)
    _, metrics = policy_loss(**half, objective=Band(), extra={"entropies": entropies})
    assert metrics.compute()["entropy"] == pytest.approx(entropies[0, 0].item(), rel=1e-6)
    with pytest.warns(UserWarning, match="^old_logps is .*float16: half precision rounds them"):
        policy_loss(**full | {"old_logps": half["old_logps"]}, objective=Band())


# ---- the surrogate


@pytest.mark.parametrize("ratio", ["token", "sequence", "mean-of-clipped"])
@pytest.mark.parametrize("weight", [0.0, 0.85, 1.5])
def test_a_positive_weight_is_that_of_the_advantages_and_nothing_else(weight, ratio):
    """Also beside a penalty and importance weights; metrics see the advantages as they are."""
    data = ragged(4, 6) | {n: torch.rand(4, 6, dtype=F64).log() for n in ("ref_logps", "rollout_is_weights")}
    data |= {"response_mask": torch.ones(4, 6), "rollout_is_weights": data["rollout_is_weights"].exp()}
    results = []
    for factor, own in ((1.0, weight), (weight, 1.0), (1.0, 1.0)):
        data["advantages"] = torch.tensor([factor, -1.0, 0.0, 2 * factor], dtype=F64)
        objective = Objective(Clip(0.2, 0.3), ratio=ratio, beta=0.1, positive_weight=own)
        results.append(step(data, objective))
    torch.testing.assert_close(results[0][:2], results[1][:2], rtol=1e-14, atol=0)
    assert results[0][2].compute() == pytest.approx(results[2][2].compute(), nan_ok=True)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("divergence", ["kl", "tv", "chi2"])
def test_on_policy_at_probability_one_the_gradient_is_full(divergence, advantage):
    """The upper bound is 0 there, and for chi2 the lower one too: a tie, which `minimum` would share out in halves."""
    ones = torch.zeros(1, 1)
    loss, _ = policy_loss(logps := ones.clone().requires_grad_(), ones, ones + advantage, ones + 1, Band(divergence))
    assert torch.autograd.grad(loss, logps)[0].item() == -advantage


def test_clamping_to_bounds_keeps_the_whole_gradient_on_the_bounds_themselves():
    bounds = Clip(0.2, 0.28).bounds(torch.zeros(4))
    log_ratio = torch.stack([bounds.log_low[0], bounds.log_high[0], torch.tensor(0.1), torch.tensor(0.5)])
    log_ratio.requires_grad_()
    assert torch.autograd.grad(bounds.clamp(log_ratio).sum(), log_ratio)[0].tolist() == [1.0, 1.0, 1.0, 0.0]


# ---- the KL penalty


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("k1", lambda d: -d),
        ("k2", lambda d: d * d / 2),
        ("k3", lambda d: math.exp(max(d, -20.0)) - max(d, -20.0) - 1),
        ("abs", abs),
    ],
)
def test_kl_penalties_are_their_formulas(kind, formula):
    logps = torch.tensor([-1.0, -2.0, -3.0, -0.1, -4.0], dtype=F64)
    ref_logps = torch.tensor([-1.5, -1.0, -3.0, -80.0, -1.0], dtype=F64)
    expected = [formula(d) for d in (-0.5, 1.0, 0.0, -79.9, 3.0)]
    assert kl_penalty(logps, ref_logps, kind).tolist() == pytest.approx(expected, rel=1e-12)
    half = kl_penalty(logps.half(), ref_logps.half(), kind)  # exact inputs but one, computed in float32
    assert (half.dtype, half[:3].tolist()) == (torch.float32, pytest.approx(expected[:3], rel=1e-6))


def test_what_is_cut_from_a_penalty_has_no_gradient():
    logps = torch.tensor([-3.0, -4.0, -30.0], dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(kl_penalty(logps, torch.zeros(3), "k3").sum(), logps)
    d = -logps.detach()
    torch.testing.assert_close(slope, torch.where(d < 20, 1 - d.exp(), 0.0))


@pytest.mark.parametrize("kind", get_args(KLPenalty))
def test_penalties_of_a_probability_of_zero_are_finite(kind):
    logps = torch.tensor([-torch.inf, -1.0, -torch.inf], requires_grad=True)
    values = kl_penalty(logps, torch.tensor([-1.0, -torch.inf, -torch.inf]), kind)
    assert (values.sum() * 1e6).isfinite()  # as a sum over a batch
    assert torch.autograd.grad(values.sum(), logps)[0].isfinite().all()


# Of a penalty over five actions: its value against KL(pi || ref), and what its gradient is.
ON_POLICY = {"k1": (1e-12, "nothing"), "k2": (2e-2, "to the reference"), "k3": (1e-12, "from the reference")}


@pytest.mark.parametrize(("kind", "rtol", "follows"), [(kind, *told) for kind, told in ON_POLICY.items()])
def test_values_of_k1_and_k3_are_kl_of_the_policy_to_the_reference(kind, rtol, follows):
    """That of k2 to second order; gradients follow different divergences."""
    torch.manual_seed(0)
    logits, noise = torch.randn(5, dtype=F64).requires_grad_(), torch.randn(5, dtype=F64)
    distances = (1e-2, 1e-3) if kind == "k2" else (0.7,)
    logps = logits.log_softmax(0)
    for distance in (*distances, 0.7):
        ref_logps = (logits.detach() + distance * noise).log_softmax(0)
        expectation = (logps.detach().exp() * kl_penalty(logps, ref_logps, kind)).sum()
        forward, backward = (logps.exp() * (logps - ref_logps)).sum(), (ref_logps.exp() * (ref_logps - logps)).sum()
        if distance in distances:
            torch.testing.assert_close(expectation, forward, rtol=min(rtol, 2 * distance), atol=0)
    got, *slopes = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (expectation, forward, backward))
    wanted = {"nothing": torch.zeros(5, dtype=F64), "to the reference": slopes[0], "from the reference": slopes[1]}
    torch.testing.assert_close(got, wanted[follows], rtol=1e-12, atol=1e-15)
    assert (slopes[0] - slopes[1]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", get_args(KLPenalty))
def test_the_penalty_is_added_and_its_mean_is_measured_before_beta(kind):
    arguments = ragged()
    plain, _ = loss_and_gradient(arguments, Objective(NO_CLIP, aggregation="token-mean"))
    arguments["ref_logps"] = torch.rand(5, 7, dtype=F64).log()
    objective = Objective(NO_CLIP, beta=0.3, kl_penalty=kind, aggregation="token-mean")
    loss, metrics = policy_loss(**arguments, objective=objective)
    penalties = kl_penalty(arguments["logps"].detach(), arguments["ref_logps"], kind)
    mean = penalties[arguments["response_mask"]].mean().item()
    assert (loss.detach() - plain).item() == pytest.approx(0.3 * mean, rel=1e-10)
    assert metrics.compute()["kl_ref"] == pytest.approx(mean, rel=1e-12)


# ---- padding, infinities and NaN


PADDED = [
    Objective(region, beta=0.1, dual_clip=2.0, aggregation=aggregation)
    for region in (Band(), Band("tv"), DCPO(), Clip(), NO_CLIP)
    for aggregation in (*AGGREGATIONS, "none")
]


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("objective", PADDED + ways(beta=0.1), ids=name_of)
def test_what_stands_in_padding_reaches_neither_value_nor_gradient_nor_metrics(objective, junk):
    clean = ragged() | {n: -torch.rand(5, 7, dtype=F64) for n in ("ref_logps", "rollout_is_weights")}
    mask, entropies = clean["response_mask"], torch.rand(5, 7, dtype=F64)
    clean["advantages"] = clean["advantages"][:, None].repeat(1, 7)
    if objective.ratio == "token":
        clean["advantages"] = torch.randn(5, 7, dtype=F64)
    dirty = {n: x if n == "response_mask" else torch.where(mask, x.detach(), junk) for n, x in clean.items()}
    dirty["logps"].requires_grad_()
    clean["extra"], dirty["extra"] = ({"entropies": x} for x in (entropies, torch.where(mask, entropies, junk)))
    (loss, gradient, measured), (expected, slope, metrics) = (step(x, objective) for x in (dirty, clean))
    assert all(map(torch.equal, (loss, gradient), (expected, slope)))
    assert not gradient[~mask].any()
    assert measured.compute() == pytest.approx(metrics.compute(), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", ["logps", "old_logps", "advantages"])
@pytest.mark.parametrize("named", [{"metrics": "all"}, {"normalizer": 5.0}], ids=str)
@pytest.mark.parametrize("objective", [*map(Objective, (Band(), NO_CLIP, Clip())), *ways()], ids=name_of)
def test_nan_at_a_response_token_gives_nan_where_it_is_counted_or_nothing_is_looked_at(objective, named, name):
    arguments = {n: x.detach().clone() for n, x in ragged().items()}
    arguments[name][0] = math.nan
    loss, _ = policy_loss(**arguments, objective=objective, **named)
    assert loss.isnan()


NOT_FINITE = {
    "advantages": ("advantages", math.nan, "advantages must be finite, got NaN or infinite at 3 of 8 response tokens"),
    "infinite advantages": ("advantages", -math.inf, "advantages must be finite, got NaN or infinite at 3 of 8"),
    "logps": ("logps", math.nan, "logps must be numbers, got NaN at 1 of 8 response tokens"),
    "old_logps": ("old_logps", math.nan, "old_logps must be numbers, got NaN at 1 of 8"),
    "ref_logps": ("ref_logps", math.nan, "ref_logps must be numbers, got NaN at 1 of 8 response tokens"),
    "weights": ("rollout_is_weights", math.inf, "rollout_is_weights must be finite, got NaN or infinite at 1 of 8"),
}


@pytest.mark.parametrize(("name", "bad", "message"), NOT_FINITE.values(), ids=NOT_FINITE)
@pytest.mark.parametrize("level", ["main", None])
def test_numbers_that_are_not_finite_are_refused_and_counted(name, bad, message, level):
    """In padding they may stand, and in a response without a token."""
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0]])
    given = {each: -torch.ones(4, 4) for each in ("logps", "old_logps", "ref_logps")} | {
        "advantages": torch.ones(4),
        "rollout_is_weights": torch.ones(4, 4),
        "response_mask": mask,
        "objective": Objective(beta=0.1),
        "metrics": level,
    }
    given[name][1] = bad
    if name != "advantages":
        given[name][0, 3] = bad
    loss, _ = policy_loss(**given)
    assert loss.isfinite()
    given[name][(0,) if name == "advantages" else (2, 3)] = bad
    with pytest.raises(ValueError, match=message):
        policy_loss(**given)
    given["metrics"] = "all"
    counted = policy_loss(**given)[1].compute()
    assert counted["not_finite/count"] + counted["log_ratio/saturated_fraction"] > 0
    given |= {"metrics": level, "response_mask": mask.bool(), "normalizer": 3.0}
    policy_loss(**given)  # nothing is looked at, so that no device is waited for


LOGPS = [-math.inf, -1e30, -1e4, -500.0, -80.0, -1.0, -1e-8, 0.0, 1e-7, 1e-6]
REGIONS = [
    Clip(),
    NO_CLIP,
    DCPO(),
    DCPO(0.1, 0.1, math.inf),
    Band("kl"),
    Band("tv"),
    Band("chi2"),
    Band(Divergence("hellinger", lambda u: (u.sqrt() - 1) ** 2)),
    Relaxed(Band(), Clip()),
    Capped(Band("chi2"), 10.0),
]


EXTREME = [Objective(region, aggregation="none") for region in REGIONS]
EXTREME += [dataclasses.replace(each, **more) for each in EXTREME for more in ({"beta": 0.1}, {"dual_clip": 3.0})]
EXTREME += [
    Objective(region, surrogate=kind, ratio=ratio)
    for kind, ratio in WAYS
    for region in (NO_CLIP, region_for(ratio), Clip(), Clip(0, 0))[: 1 if kind == SAPO else 4]
]


@pytest.mark.parametrize("objective", EXTREME, ids=name_of)
@pytest.mark.parametrize("shape", [(100, 1), (10, 10), (1, 100)])
@pytest.mark.parametrize("sign", [3.0, -3.0])
def test_value_and_gradient_are_finite_for_every_log_probability(objective, shape, sign):
    """Tokens one by one, and in responses that mix all of them."""
    new, old = torch.tensor(list(itertools.product(LOGPS, LOGPS))).reshape(*shape, 2).unbind(-1)
    data = {"logps": new.clone().requires_grad_(), "old_logps": old, "advantages": torch.full(shape[:1], sign)}
    data |= {"response_mask": torch.ones(shape), "ref_logps": old.flip(0) if objective.beta else None}
    loss, gradient, metrics = step(data, objective, metrics="all")
    assert loss.isfinite().all() & gradient.isfinite().all()
    measured = metrics.compute()
    assert all(math.isfinite(measured[name]) for name in ("kl_old/k1", "kl_old/k3", "log_ratio/min"))
    if objective.ratio == "token":
        too_far = (new - old).abs() > 60  # -inf minus -inf counts as no move
        assert measured["log_ratio/saturated_fraction"] == pytest.approx(too_far.double().mean().item())
        assert objective.beta or objective.surrogate == "weight" or not gradient[too_far].any()


# ---- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logps": torch.zeros(6)}, r"logps must be \(B, T\), got \(6,\); bandpo.losses.unpack"),
        ({"old_logps": torch.zeros(2, 4)}, r"old_logps must be \(2, 3\) like logps, got \(2, 4\)"),
        ({"old_logps": torch.zeros(2, 1)}, r"old_logps must be \(2, 3\) like logps, got \(2, 1\)"),
        ({"response_mask": torch.ones(3)}, r"response_mask must be \(2, 3\) like logps, got \(3,\)"),
        ({"response_mask": torch.ones(1, 3)}, r"response_mask must be \(2, 3\) like logps, got \(1, 3\)"),
        ({"advantages": torch.ones(3)}, r"advantages must be \(2, 3\) or \(2, 1\) or \(2,\) like logps, got \(3,\)"),
        ({"advantages": torch.ones(1, 3)}, r"advantages must be .*, got \(1, 3\)"),
        ({"advantages": torch.tensor(1.0)}, r"advantages must be .*, got \(\)"),
        ({"rollout_is_weights": torch.ones(2)}, r"rollout_is_weights must be \(2, 3\) like logps, got \(2,\)"),
        ({"extra": {"entropies": torch.ones(2, 1)}}, r"entropies must be \(2, 3\) like logps, got \(2, 1\)"),
        (
            {"ref_logps": torch.ones(3, 2), "objective": Objective(beta=0.1)},
            r"ref_logps must be \(2, 3\) like logps, got \(3, 2\)",
        ),
        ({"logps": torch.zeros(2, 3, dtype=torch.int64)}, "logps must be floating point, got torch.int64"),
        ({"old_logps": torch.zeros(2, 3, dtype=torch.int64)}, "old_logps must be floating point, got torch.int64"),
        ({"advantages": torch.ones(2, dtype=torch.int64)}, "advantages must be floating point, got torch.int64"),
        (
            {"extra": {"entropies": torch.ones(2, 3, dtype=torch.int32)}},
            "entropies must be floating point, got torch.int32",
        ),
        ({"response_mask": torch.full((2, 3), 0.5)}, "response_mask must be bool or hold 0 and 1 only, got a 0.5"),
        ({"response_mask": torch.full((2, 3), 2)}, "response_mask must be bool or hold 0 and 1 only, got a 2"),
        ({"response_mask": torch.full((2, 3), math.nan)}, "response_mask must be bool .* got a nan"),
        ({"response_mask": torch.full((2, 3), -1)}, "response_mask must be bool .* got a -1"),
        ({"response_mask": torch.zeros(2, 3)}, "response_mask is empty"),
        ({"stap": 1}, "unexpected keyword argument 'stap'"),
        ({"entropies": torch.rand(2, 3)}, "unexpected keyword argument 'entropies'"),
        ({"extra": {"entropies": torch.rand(2)}}, r"entropies must be \(2, 3\) like logps, got \(2,\)"),
        ({"extra": {"entropies": torch.tensor(1.0)}}, r"entropies must be \(2, 3\) like logps, got \(\)"),
        ({"extra": {"entropies": [1.0]}}, r"entropies must be a torch.Tensor, got list; torch.as_tensor\("),
        ({"extra": [3]}, r"extra must map names that Context does not have to values, got \[3\]"),
        ({"extra": {"advantages": 3}}, r"Context does not have to values, got \{'advantages': 3\}"),
        ({"extra": {"age": torch.rand(4)}}, r"extra\['age'\] must be \(2, 3\) or .* or \(\) like logps, got \(4,\)"),
        ({"objective": "bnd:kl"}, "no method or rule is called 'bnd:kl', did you mean 'band-kl'"),
        ({"objective": Band}, "Band'> is not a trust region; a rule is written Band"),
        ({"normalizer": torch.tensor(0.0)}, r"normalizer must be positive and finite, got tensor\(0\.\)"),
        ({"normalizer": True}, "normalizer must be positive and finite, got True"),
        ({"normalizer": "3"}, "normalizer must be positive and finite, got '3'"),
        ({"objective": Objective(beta=0.1)}, "beta > 0 and ref_logps go together, got beta = 0.1 and ref_logps = None"),
        ({"ref_logps": -torch.ones(2, 3)}, r"beta > 0 and ref_logps go together, got beta = 0.0 .* \(2, 3\)"),
        ({"old_logps": -torch.ones(2, 3).to_sparse()}, "old_logps must be a dense tensor, got torch.sparse_coo"),
        ({"logps": -torch.ones(2, 3).to_sparse()}, "logps must be a dense tensor, got torch.sparse_coo"),
        ({"logps": -torch.ones(2, 3, device="meta")}, "must be on device meta like logps, got cpu"),
        ({"advantages": torch.ones(2, device="meta")}, "advantages must be on device cpu like logps, got meta"),
        ({"normalizer": 0}, "normalizer must be positive and finite, got 0"),
        ({"normalizer": -1.0}, "normalizer must be positive and finite, got -1.0"),
        ({"normalizer": math.nan}, "normalizer must be positive and finite, got nan"),
        ({"normalizer": math.inf}, "normalizer must be positive and finite, got inf"),
        (
            {"objective": Objective(aggregation="none"), "normalizer": 3.0},
            "normalizer must be None for aggregation 'none'.*3.0",
        ),
        (
            {"objective": Objective(aggregation="none"), "normalizer": -1},
            "normalizer must be None for aggregation 'none'.*-1",
        ),
    ],
)
def test_a_wrong_argument_is_refused_by_name_value_and_what_is_allowed(changes, message):
    new, advantages, mask = -torch.ones(2, 3), torch.ones(2), torch.ones(2, 3)
    right = {"logps": new, "old_logps": new, "advantages": advantages, "response_mask": mask, "objective": Band()}
    with pytest.raises((ValueError, TypeError), match=message):
        policy_loss(**right | changes)


# ---- group-relative advantages


@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"normalize": False, "baseline": "leave-one-out"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_group_advantages_are_rewards_standardised_within_their_group(dtype, options):
    rewards = torch.randn(12, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = group_advantages(rewards, np.int64(4), **options)  # a number of numpy's, too
    assert found.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    assert found.tolist() == pytest.approx(by_hand(rewards.tolist(), [i // 4 for i in range(12)], **options), rel=1e-4)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1000.1, -7.7])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_a_group_of_equal_rewards_has_no_advantage(reward, size):
    """Also where the mean of equal floats is not that float."""
    assert not group_advantages(torch.full((2 * size,), reward), size).any()


def by_hand(rewards, ids, *, normalize=True, baseline="mean"):
    """The definition in a loop: what is missing (NaN) is nobody's baseline."""
    out = []
    for reward, own in zip(rewards, ids, strict=True):
        group = [r for r, other in zip(rewards, ids, strict=True) if other == own and not math.isnan(r)]
        if math.isnan(reward) or len(group) == 1:
            out.append(0.0)
            continue
        mean = sum(group) / len(group)
        others = (sum(group) - reward) / (len(group) - 1)
        sigma = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1))
        out.append((reward - (others if baseline != "mean" else mean)) / (sigma + 1e-6 if normalize else 1.0))
    return out


@pytest.mark.filterwarnings("ignore:.*groups have one reward")
@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"normalize": False, "baseline": "leave-one-out"}])
@pytest.mark.parametrize("seed", range(5))
def test_groups_of_any_size_in_any_order_are_those_of_a_loop(options, seed):
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(-4, 9, (60,), generator=rng)
    rewards = torch.randn(60, generator=rng, dtype=F64)
    rewards[torch.rand(60, generator=rng) < 0.2] = math.nan
    expected = torch.tensor(by_hand(rewards.tolist(), ids.tolist(), **options), dtype=F64)
    for names in (ids, ids.numpy(), [f"prompt {i}" for i in ids.tolist()], [(i, "x") for i in ids.tolist()]):
        torch.testing.assert_close(group_advantages(rewards, groups=names, **options), expected)


def test_equal_groups_in_a_row_are_the_same_in_both_ways_of_saying_them_and_in_trl():
    utils = pytest.importorskip("trl.trainer.utils")
    rewards = torch.randn(24)
    rewards[3] = math.nan
    ours = group_advantages(rewards, 4, epsilon=1e-4)
    assert torch.equal(ours, group_advantages(rewards, groups=torch.arange(24) // 4, epsilon=1e-4))
    table = rewards.view(-1, 4)
    theirs = (table - table.nanmean(1, keepdim=True)) / (utils.nanstd(table, 1, keepdim=True) + 1e-4)
    torch.testing.assert_close(ours, theirs.nan_to_num(0.0).flatten())


def test_a_reward_that_is_missing_is_nobodys_baseline():
    nan = math.nan
    torch.testing.assert_close(
        group_advantages(torch.tensor([1.0, nan, 0.0, 1.0]), 4), torch.tensor([0.57735, 0.0, -1.1547, 0.57735])
    )
    assert not group_advantages(torch.tensor([nan, nan, 2.0, 2.0]), 2).any()  # nothing is known of the first group
    rewards = torch.tensor([1.0, 3.0, 5.0, nan, 1.0], dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match="^2 of 3 groups have one reward; its advantage is 0$"):
        advantages = group_advantages(rewards, groups=["a", "a", "b", "c", "c"])
    assert advantages.dtype == torch.float32
    torch.testing.assert_close(advantages, torch.tensor([-0.70711, 0.70711, 0.0, 0.0, 0.0]))


SIZE = "group_size must be an integer of at least 2 .*, 4, got "
GROUPS = [
    ([1.0, math.inf, -math.inf], {"groups": [0, 0, 1]}, "rewards must be finite, .* got 2 of 3 infinite"),
    ([1.0, -math.inf], {"group_size": 2}, "rewards must be finite, .* got 1 of 2 infinite"),
    ([1.0, 2.0], {}, "group_size or groups must say which responses belong together, got neither"),
    ([1.0, 2.0], {"group_size": 2, "groups": [0, 0]}, "belong together, got both"),
    (
        [1.0, 2.0],
        {"groups": [0]},
        r"groups must be 2 texts, whole numbers or tuples, .*, got \[0\]",
    ),
    ([1.0, 2.0], {"groups": [torch.tensor(1)] * 2}, r"texts, whole numbers .* got \[tensor\(1\), tensor\(1\)\]"),
    ([1.0, 2.0], {"groups": [0, None]}, r"texts, whole numbers .* got \[0, None\]"),
    ([1.0, 2.0], {"groups": [0, math.nan]}, r"texts, whole numbers .* got \[0, nan\]"),
    ([1.0, 2.0], {"groups": torch.zeros(3)}, r"groups must be 2 .* got \[0.0, 0.0, 0.0\]"),
    ([1.0, 2.0], {"groups": torch.zeros(2)}, r"texts, whole numbers .* got \[0.0, 0.0\]"),
    ([1.0, 2.0], {"groups": torch.zeros(2, 1)}, r"texts, whole numbers .* got \[\[0.0\], \[0.0\]\]"),
    ([1.0, 2.0, 3.0], {"group_size": 2}, "rewards, 3, got 2; groups= takes groups of other sizes"),
    ([1.0, 2.0], {"groups": "ab"}, "groups must be 2 texts, .* got 'ab'"),  # not a group for each letter
    ([1.0, 2.0], {"groups": b"ab"}, "groups must be 2 texts, .* got b'ab'"),
    ([1.0, 2.0], {"groups": 5}, "groups must be 2 texts, .* got 5"),
    # A square that overflows would give advantages of 0, and a sum of them NaN.
    ([1e20, 0.0], {"group_size": 2}, r"must be closer together for torch\.float32, got up to 1e\+20"),
    ([3e38, -3e38], {"group_size": 2}, r"must be closer together for torch\.float32, got up to 3e\+38"),
    (
        [3e38, 1e38, 0.0, -3e38],
        {"group_size": 4, "normalize": False, "baseline": "leave-one-out"},
        r"must be closer together for torch\.float32, got up to 3e\+38",
    ),
    ([1.0] * 4, {"group_size": 1}, f"{SIZE}1"),
    ([1.0] * 4, {"group_size": True}, f"{SIZE}True"),
    ([1.0] * 4, {"group_size": 2.0}, f"{SIZE}2.0"),
    ([1.0] * 5, {"group_size": 2}, "that divides the number of rewards, 5, got 2"),
    ([], {"group_size": 2}, r"rewards must be .*, got \(0,\)"),
    ([[1.0, 1.0], [1.0, 1.0]], {"group_size": 2}, r"rewards must be .*, got \(2, 2\)"),
    ([1] * 4, {"group_size": 2}, r"rewards must be \(N,\) floats, .*, got \(4,\) of torch.int64"),
    ([1.0] * 4, {"group_size": 2, "epsilon": 0}, "epsilon must be positive and finite, got 0"),
    ([1.0] * 4, {"group_size": 2, "baseline": "median"}, "baseline must be 'mean', or 'leave-one-out' .*'median'"),
    ([1.0] * 4, {"group_size": 2, "baseline": "leave-one-out"}, "got 'leave-one-out' and normalize=True"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "arguments", "named", "message"),
    [
        *((group_advantages, [torch.tensor(rewards)], named, message) for rewards, named, message in GROUPS),
        (group_advantages, ([1.0, 0.0], 2), {}, r"rewards must be a torch.Tensor, got list; torch.as_tensor"),
        (aggregate, (torch.ones(2, 3), torch.ones(2)), {}, r"must be \(B, T\), got \(2, 3\) and \(2,\)"),
        (aggregate, (torch.ones(2, 3), torch.full((2, 3), 3.0)), {}, r"got a 3\.0"),
        (aggregate, (torch.ones(2, 3), torch.ones(2, 3), "mean"), {}, r"aggregation must be one of .*, got 'mean'"),
        (kl_penalty, (torch.ones(2, 3), torch.ones(2, 3), "k4"), {}, r"kl_penalty must be one of \['k1', .*'k4'"),
    ],
)
def test_what_does_not_fit_is_refused(call, arguments, named, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(*arguments, **named)


# ---- what is not a log-probability


@pytest.mark.parametrize("name", ["logps", "old_logps", "ref_logps"])
def test_what_is_no_log_probability_is_refused_and_asked_about(name):
    arguments = ragged() | {"ref_logps": ragged(seed=1)["old_logps"]}
    one = arguments[name].detach()
    above = torch.zeros_like(one, dtype=torch.bool)
    above[tuple(arguments["response_mask"].nonzero()[0])] = True
    for passed, message in (
        (-one, "negative log-likelihood.*negative.*probability.*logarithm"),  # of cross-entropy
        (one.exp(), "negative log-likelihood.*negative.*probability.*logarithm"),
        (torch.where(above, 2e-3, one), r"at most 0; the largest is 0\.002"),
    ):
        with pytest.raises(ValueError, match=message):
            policy_loss(**arguments | {name: passed}, objective=Objective(beta=0.1))
    rounded = torch.where(above, 1e-4, one)  # as a sampler does
    policy_loss(**arguments | {name: rounded}, objective=Objective(beta=0.1))


@pytest.mark.parametrize("normalizer", [3.0, torch.tensor(3.0)])
def test_what_is_no_log_probability_is_found_later_where_nothing_is_read(normalizer):
    arguments = ragged()
    arguments["logps"] = -arguments["logps"].detach()
    _, metrics = policy_loss(**arguments, objective=Band(), normalizer=normalizer)
    for read in (metrics.numbers, metrics.compute, metrics.merge(metrics).compute):
        with pytest.raises(ValueError, match="must be log-probabilities"):
            read()


NAMES = ["logps", "old_logps", "advantages", "response_mask", "ref_logps"]
NO_TENSORS = [(name, make) for name in NAMES for make in (torch.Tensor.numpy, torch.Tensor.tolist)]
NO_TENSORS += [(name, lambda x: None) for name in NAMES[:-1]]  # without a reference it is refused above


@pytest.mark.parametrize(("name", "make"), NO_TENSORS)
def test_what_is_no_tensor_gets_a_sentence(name, make):
    arguments = {n: x.detach() for n, x in ragged().items()} | {"ref_logps": ragged()["old_logps"]}
    wrong = make(arguments[name])
    with pytest.raises(TypeError, match=f"{name} must be a torch.Tensor, got {type(wrong).__name__}"):
        policy_loss(**arguments | {name: wrong}, objective=Objective(beta=0.1))


class _Counted(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("region", "most"), [(Clip(), 76), (Band("kl", 0.05), 200)], ids=name_of)
def test_a_loss_and_its_gradient_take_few_tensor_operations(region, most):
    old = torch.full((2, 3), -1.0)
    new, advantages, mask = (old + 0.1).requires_grad_(), torch.ones(2, 1), torch.ones(2, 3, dtype=torch.bool)
    with _Counted() as operations:
        loss, _ = policy_loss(new, old, advantages, mask, region, normalizer=2.0)
        loss.backward()
    assert 50 < operations.count <= most
