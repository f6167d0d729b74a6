"""The rules: one contract for all of them, their formulas, and the way to YAML and back."""

import dataclasses
import math

import pytest
import torch
import yaml
from regions import HELLINGER, IN_YAML, NO_CLIP, REGIONS, Wider, name_of, sides
from scipy import stats
from textbook import kl_ball
from torch import Tensor

import bandpo
from bandpo import (
    DCPO,
    Band,
    ByProbability,
    BySign,
    Capped,
    Clip,
    Context,
    Intersect,
    Region,
    Union,
    numerics,
    policy_loss,
)
from bandpo.band import Divergence
from bandpo.integrations import bounds_of
from bandpo.trust_regions import RIPO, Relaxed, trust_region

LOG_P = torch.cat([torch.linspace(-12.0, -1e-3, 50), torch.tensor([-69.0, -1e-7, 0.0, 1e-6])])


def context_for(old_logps: Tensor) -> Context:
    ones = torch.ones_like(old_logps)
    return Context(ones > 0, ones, {"entropies": 0.5 * ones})


# What is no log-probability.
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LISTS, HIGH = ([-1.0, -2.0], -1.0, None), ([0.25, -1.0], [math.nan, 0.25])
PROBABILITY = r"must be log-probabilities, at most 0; the largest is 0\.25\. .* Is it a probability\? Then"


# ---- the contract of every rule


@pytest.mark.parametrize("region", REGIONS, ids=name_of)
class TestEveryRegion:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    def test_bounds_enclose_the_old_policy_for_every_log_p(self, region, dtype):
        log_p = torch.tensor([-math.inf, -1e30, -1e4, -800.0, -301.0, -80.0, -1.0, -1e-7, -1e-40, 0.0, 1e-8, 1e-6])
        log_p = log_p.to(dtype).requires_grad_()
        bounds = region.bounds(log_p, context_for(log_p))
        wanted = log_p.shape, torch.float64 if dtype == torch.float64 else torch.float32, False
        for edge in (bounds.log_low, bounds.log_high):
            assert (edge.shape, edge.dtype, edge.requires_grad) == wanted
        assert ((bounds.log_low <= 0) & (bounds.log_high >= 0)).all()
        assert region == NO_CLIP or not (torch.isinf(bounds.log_high) & (log_p > -torch.inf)).any()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_gives_the_bounds_of_the_upcast_input(self, region, dtype):
        got, expected = (region.bounds(x, context_for(x)) for x in (LOG_P.to(dtype), LOG_P.to(dtype).float()))
        assert all(map(torch.equal, (got.log_low, got.log_high), (expected.log_low, expected.log_high)))

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (torch.tensor([-1, 0]), r"must be floating point, got torch\.int64"),
            *((x, f"old_logps must be a torch.Tensor, got {type(x).__name__}") for x in LISTS),
            *((torch.tensor(x, dtype=dtype), PROBABILITY) for x in HIGH for dtype in DTYPES),
            (torch.tensor([1.1e-6, -1.0]), r"the largest is 1\.1e-06"),
        ],
    )
    def test_what_is_no_log_probability_is_refused(self, region, wrong, message):
        with pytest.raises((ValueError, TypeError), match=message):
            region.bounds(wrong, context_for(torch.zeros(2)))

    def test_a_loss_has_its_own_bound_and_looks_once(self, region, monkeypatch):
        """Samplers may be off by up to 0.001, and a trainer with a clamp may not wait for its device."""
        old, mask = torch.tensor([[9e-4, -1.0]]), torch.ones(1, 2, dtype=torch.bool)
        seen = []
        monkeypatch.setattr(numerics, "is_traced", lambda x: seen.append(x) or True)
        extra = {"entropies": -old} if "entropies" in region.all_required() else {}
        policy_loss(old, old, torch.ones(1), mask, region, extra=extra)
        if not extra:
            bounds_of(region, old, torch.ones(1, 2), mask)
        assert not seen
        region.bounds(old - 1, context_for(old))
        assert len(seen) == 1

    def test_nan_gives_nan_on_both_sides(self, region):
        log_p = torch.tensor([math.nan, -1.0, math.nan])
        bounds = region.bounds(log_p, context_for(log_p))
        assert bounds.log_low.isnan().tolist() == bounds.log_high.isnan().tolist() == [True, False, True]

    def test_equal_rules_are_equal_hashable_and_frozen(self, region):
        twin = dataclasses.replace(region)
        assert twin is not region
        assert {twin: hash(twin)} == {region: hash(region)} != {Clip(0.123, 0.456): hash(region)}
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(region, dataclasses.fields(region)[0].name, 0.5)

    def test_policy_loss_takes_it(self, region):
        old = LOG_P[:12].view(3, 4)
        logps = (old + 0.5).clamp(max=0).requires_grad_()
        extra = {"entropies": torch.ones_like(old)}
        loss, metrics = policy_loss(logps, old, torch.ones(3), old < 1, region, extra=extra)
        (gradient,) = torch.autograd.grad(loss, logps)
        log_ratio = (logps - old).detach()
        outside = log_ratio > region.bounds(old, Context(advantages=old + 99, extra=extra)).log_high
        torch.testing.assert_close(gradient, torch.where(outside, 0.0, -log_ratio.exp() / 12))
        assert metrics.compute()["clip/count"] == outside.sum()


@pytest.mark.parametrize("region", IN_YAML, ids=name_of)
def test_a_rule_goes_to_yaml_text_and_back(region):
    assert trust_region(yaml.safe_load(yaml.safe_dump(region.to_config()))) == region
    assert trust_region(region) is region


def test_the_yaml_that_people_write():
    text = """
    type: relaxed
    inner: {type: capped, max_ratio: 10, region: {type: band, divergence: kl, delta: 5e-2}}
    outer: {type: clip, eps_low: 1, eps_high: .inf}
    """
    node = yaml.safe_load(text)
    assert node["inner"]["region"]["delta"] == "5e-2"  # for PyYAML no number
    assert trust_region(node) == Relaxed(Capped(Band("kl", 0.05), 10.0), NO_CLIP)
    assert trust_region({"type": "band"}) == Band("kl", 0.05)
    assert yaml.safe_dump(NO_CLIP.to_config()) == "eps_high: .inf\neps_low: 1.0\ntype: clip\n"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"type": "bnd"},
            r"^no trust region type is called 'bnd', did you mean 'band'\? `bandpo methods` lists all$",
        ),
        ({}, "the type of a trust region is missing, as in {type: clip}"),
        (
            {"type": ["band"]},
            "no trust region type is called \\['band'\\]; `bandpo methods` lists all",
        ),
        ({"type": "band", "detla": 1}, r"unknown key 'detla' in trust region 'band', did you mean 'delta'\?"),
        ({"type": "clip", 7: 1}, r"unknown key '7' in trust region 'clip'; it has \['eps_low', 'eps_high'\]"),
        (
            {"type": "relaxed", "inner": {"type": "clip"}},
            r"trust region 'relaxed' lacks outer; it has \['inner', 'outer'\]",
        ),
        ({"type": "relaxed", "inner": {"type": "clip"}, "outer": 3}, "outer of Relaxed must be a trust region, got 3"),
        ({"type": "capped", "region": {"type": "clop"}}, "called 'clop', did you mean 'clip'"),
        ({"type": "intersect", "first": {"type": "clip"}}, "second"),
        ({"type": "intersct"}, "did you mean 'intersect'"),
        ("gspo", "no trust region type is called 'gspo'"),
        ("(0.2, 0.28)", r"no trust region type is called '\(0.2, 0.28\)'"),
        (
            0.05,
            r"^0.05 is not a trust region; a rule is written Band\('kl', 0.05\) or Clip\(0.2, 0.28\), as text",
        ),
        ((0.2, 0.28), r"^\(0.2, 0.28\) is not a trust region; a rule is written"),
        (True, "^True is not a trust region; a rule is written"),
        (math.nan, "^nan is not a trust region; a rule is written"),
        (Capped, r"^<class .*Capped'> is not a trust region; a rule is written Band\('kl', 0.05\)"),
        ({"type": "band", "divergence": 0.05}, r"divergence must be one of .* got 0\.05"),
        ("band:0.1", r"divergence must be one of .* got '0\.1'"),
        ("band:-1", "divergence must be one of .* got '-1'"),
    ],
)
def test_a_node_that_is_none_is_refused_with_the_nearest_name(node, message):
    with pytest.raises(ValueError, match=message):
        trust_region(node)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clip(-0.1, 0.2), r"eps_low of Clip must be a number in \[0, 1\], got -0.1"),
        (lambda: Clip(1.1, 0.2), r"eps_low of Clip must be a number in \[0, 1\], got 1.1"),
        (lambda: Clip(0.2, math.nan), r"eps_high of Clip must be a number in \[0, inf\], got nan"),
        (lambda: Clip(0.2, True), "eps_high of Clip .* got True"),
        (lambda: Clip(0.2, "wide"), "eps_high of Clip .* got 'wide'"),
        (lambda: Band("kl", 0), r"delta of Band must be a number in \(0, inf\), got 0"),
        (lambda: Band("kl", -1), r"delta of Band must be a number in \(0, inf\), got -1"),
        (lambda: Band("kl", delta_low=0), r"delta_low of Band must be a number in \(0, inf\), got 0"),
        (lambda: Band("kl", delta_high=math.nan), r"delta_high of Band must be a number in \(0, inf\), got nan"),
        (lambda: Band("kl", math.nan), "delta of Band .* got nan"),
        (lambda: Band("kl", True), "delta of Band .* got True"),
        (lambda: Band("kl", torch.ones(2)), "delta of Band .* got tensor"),
        (lambda: Band("kl", None), "delta of Band .* got None"),
        (lambda: Band("lk"), r"divergence must be one of \['chi2', .*, got 'lk'"),
        (lambda: DCPO(0), r"eps_low of DCPO must be a number in \(0, inf\), got 0"),
        (lambda: DCPO(0.1, math.inf), r"eps_high of DCPO must be a number in \(0, inf\), got inf"),
        (lambda: DCPO(0.1, 0.1, 1.0), r"max_ratio of DCPO must be a number in \(1, inf\], got 1.0"),
        (lambda: Capped(Band(), 1), r"max_ratio of Capped must be a number in \(1, inf\), got 1"),
        (lambda: Capped(Band(), math.inf), r"max_ratio of Capped must be a number in \(1, inf\), got inf"),
        (lambda: Capped({"type": "band"}), "region of Capped must be a trust region, got {'type': 'band'}"),
        (lambda: Capped(Band), "region of Capped must be a trust region, got <class"),
        (lambda: Relaxed(Band(), "clip"), "outer of Relaxed must be a trust region, got 'clip'"),
        (lambda: Union(Band(), 0.2), "second of Union must be a trust region, got 0.2"),
        (lambda: Intersect(Clip, Band()), "first of Intersect must be a trust region, got <class"),
        (lambda: ByProbability(0, Band(), Clip()), r"threshold of ByProbability must be a number in \(0, 1\), got 0"),
        (lambda: ByProbability(1, Band(), Clip()), r"must be a number in \(0, 1\), got 1"),
        (lambda: ByProbability(0.2, "band", Clip()), "below of ByProbability must be a trust region, got 'band'"),
        (lambda: Capped(Wider(0.2)).bounds(LOG_P), "Wider needs entropies"),
        (lambda: BySign(Clip(), Clip()).bounds(LOG_P), "BySign needs advantages"),
        (lambda: type("Another", (Region,), {"kind": "band"}), "kind 'band' of .*Another is taken by Band"),
        (lambda: RIPO(0), r"delta of RIPO must be a number in \(0, inf\), got 0"),
        (lambda: BySign(Clip(), 3), "negative of BySign must be a trust region, got 3"),
        (lambda: BySign("clip", Clip()), "positive of BySign must be a trust region, got 'clip'"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_by_name_value_and_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_numbers_are_stored_as_floats_whatever_they_were():
    assert {Clip(1, 2), Clip("1", "2.0"), Clip(1.0, 2.0)} == {Clip(1, 2)}
    assert isinstance(Capped(Band(), 10).max_ratio, float)


# ---- own divergences and own rules in YAML


def test_a_divergence_goes_to_yaml_once_it_is_registered(monkeypatch):
    monkeypatch.setattr(bandpo.band.divergences, "_REGISTRY", dict(bandpo.band.divergences._REGISTRY))
    mine = Capped(Band(HELLINGER, 0.05), 4.0)
    with pytest.raises(ValueError, match=r"'my hellinger' is an unregistered Divergence; call bandpo.band.reg"):
        mine.to_config()
    with pytest.raises(ValueError, match="got 'my hellinger'"):
        trust_region({"type": "band", "divergence": "my hellinger"})
    bandpo.band.register_divergence(HELLINGER)
    node = yaml.safe_load(yaml.safe_dump(mine.to_config()))
    assert node["region"]["divergence"] == "my hellinger"
    assert torch.equal(trust_region(node).bounds(LOG_P).log_high, mine.bounds(LOG_P).log_high)
    with pytest.raises(ValueError, match="unregistered"):  # the name is taken by another f
        Band(Divergence("my hellinger", lambda u: (u - 1) ** 2)).to_config()


# ---- the formulas of the rules


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.28), (1.0, math.inf)])
def test_clip_is_the_two_given_epsilons(low, high):
    bounds = Clip(low, high).bounds(LOG_P)
    assert (bounds.eps_low, bounds.eps_high) == (low, high)  # the floats themselves, no logarithm and back
    torch.testing.assert_close(bounds.log_low.exp(), torch.full_like(LOG_P, 1 - low))
    torch.testing.assert_close(bounds.log_high.exp(), torch.full_like(LOG_P, 1 + high))
    far = torch.linspace(-1e30, 1e30, len(LOG_P))
    assert bounds.contains(far).all() == torch.equal(bounds.clamp(far), far) == (high == math.inf)


def test_a_ratio_on_either_bound_is_inside():
    bounds = Clip(0.2, 0.28).bounds(LOG_P)
    for edge, outwards in ((bounds.log_low, -math.inf), (bounds.log_high, math.inf)):
        assert bounds.contains(edge).all()
        assert not bounds.contains(torch.nextafter(edge, torch.full_like(edge, outwards))).any()


@pytest.mark.parametrize("eps_low", [0.01, 0.16])
@pytest.mark.parametrize("max_ratio", [10.0, math.inf])
def test_dcpo_is_the_formula_of_its_paper(eps_low, max_ratio):
    bounds, p = DCPO(eps_low, 0.2, max_ratio).bounds(LOG_P.double()), LOG_P.double().clamp(max=0).exp()
    low, high = 0.5 + 0.5 * (1 - 4 * eps_low / p).clamp(min=0).sqrt(), 0.5 + 0.5 * (1 + 4 * 0.2 / p).sqrt()
    torch.testing.assert_close(bounds.log_low.exp(), low, rtol=1e-12, atol=0)
    torch.testing.assert_close(bounds.log_high.exp(), high.clamp(max=max_ratio), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("n", "confidence"), [(10, 0.95), (10, 0.5), (200, 0.99)])
def test_neymans_chi2_band_is_wilsons_interval(n, confidence):
    """Around the share p of k in n: q with (q - p)^2 <= z^2 / n q (1 - q). Pearson's, p (1 - p), is Wald's."""
    z = stats.norm.ppf(0.5 + confidence / 2)
    for k in range(1, n, max(1, n // 20)):
        p = k / n
        wilson = stats.binomtest(k, n).proportion_ci(confidence, method="wilson")
        half = z * math.sqrt(p * (1 - p) / n)
        for kind, ends in (("neyman_chi2", wilson), ("chi2", (max(p - half, 0), min(p + half, 1)))):
            bounds = sides(Band(kind, z**2 / n).bounds(torch.tensor(p, dtype=torch.float64).log()))
            assert (bounds.exp() * p).tolist() == pytest.approx(list(ends), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("n", "t"), [(5, 10), (100, 1000), (10000, 20000)])
def test_kl_band_is_the_interval_of_kl_ucb(n, t):
    """The largest and the smallest mean q of a coin with n KL(p || q) <= log t, p the share of n throws."""
    p = torch.arange(1, n, max(1, n // 20), dtype=torch.float64) / n
    delta = math.log(t) / n
    found = sides(Band("kl", delta).bounds(p.log())).exp()
    torch.testing.assert_close(found, kl_ball(p, delta), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("rule", "eps"), [(DCPO(0.16, 0.2, math.inf), 0.2), (RIPO(0.05), 0.05)], ids=str)
def test_dcpo_and_ripo_keep_growing_as_the_square_root_below_the_smallest_double(rule, eps):
    log_p = torch.tensor([-200.0, -1000.0, -1e6], dtype=torch.float64)
    torch.testing.assert_close(rule.bounds(log_p).log_high, 0.5 * (math.log(eps) - log_p), rtol=1e-12, atol=0)


@pytest.mark.parametrize("turned", [False, True])
def test_relaxed_is_the_wider_rule_on_each_side(turned):
    rules = (Band("kl", 0.05), Clip(0.2, 0.28))[:: -1 if turned else 1]
    first, second = (rule.bounds(LOG_P) for rule in rules)
    bounds = Relaxed(*rules).bounds(LOG_P)
    assert bounds.log_low.tolist() == [*map(min, first.log_low.tolist(), second.log_low.tolist())]
    assert bounds.log_high.tolist() == [*map(max, first.log_high.tolist(), second.log_high.tolist())]
    assert bounds.epsilons is None
    assert 0 < (first.log_high > second.log_high).sum() < len(LOG_P)


@pytest.mark.parametrize("rule", [Capped(Band("kl", 0.05), 10.0), Capped(Capped(Band("kl", 0.05), 10.0), 20.0)])
def test_capped_cuts_the_upper_bound(rule):
    log_p = torch.tensor([1e-5, 0.0070, 0.0073, 0.5]).log()
    free = Band("kl", 0.05).bounds(log_p)
    bounds = rule.bounds(log_p)
    assert torch.equal(bounds.log_low, free.log_low)
    torch.testing.assert_close(bounds.log_high, free.log_high.clamp(max=math.log(10)))
    assert (bounds.log_high < free.log_high).tolist() == [True, True, False, False]  # binds for p < 0.0071


@pytest.mark.parametrize("delta", [0.005, 0.05, 0.4])
@pytest.mark.parametrize(("least", "most"), [(0.5, 10.0), (0.0, math.inf)])
def test_ripo_is_one_plus_minus_the_root_of_delta_over_p(delta, least, most):
    bounds = Intersect(RIPO(delta), Clip(1 - least, most - 1)).bounds(LOG_P.double())
    eps = (delta / LOG_P.double().clamp(max=0).exp()).sqrt()
    torch.testing.assert_close(bounds.log_low.exp(), (1 - eps).clamp(min=least), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(bounds.log_high.exp(), (1 + eps).clamp(max=most), rtol=1e-12, atol=0)


@pytest.mark.parametrize("columns", [1, 2])
def test_by_sign_takes_the_rule_of_the_tokens_sign(columns):
    log_p = torch.tensor([[0.05, 0.9], [0.05, 0.9], [0.05, 0.9]]).log()
    region = BySign(Capped(Band("kl", 0.05), 2.0), Clip(0.1, 0.3))
    bounds = region.bounds(log_p, Context(advantages=torch.tensor([[1.0], [0.0], [-1.0]]).expand(3, columns)))
    capped, clip = region.positive.bounds(log_p), Clip(0.1, 0.3).bounds(log_p)
    assert torch.equal(bounds.log_low, torch.cat([capped.log_low[:2], clip.log_low[2:]]))
    assert torch.equal(bounds.log_high, torch.cat([capped.log_high[:2], clip.log_high[2:]]))
    assert bounds.epsilons is None
    inside = bounds.contains(torch.full((3, 2), math.log(1.2)))
    assert inside.tolist() == [[True, False], [True, False], [True, True]]


@pytest.mark.parametrize("name", ["label", "required", "bounds", "kind"])
def test_a_field_that_hides_a_member_is_refused_where_the_class_is_defined(name):
    with pytest.raises(TypeError, match=f"field '{name}' of Hiding hides what every trust region has by that name"):
        type("Hiding", (Region,), {"__annotations__": {name: "float"}, name: 0.1})
    fine = {"__annotations__": {"kind": "ClassVar[str]", "parts": float, "stops": "float"}, "kind": "not_hiding"}
    type("NotHiding", (Region,), fine)
    Region.kinds.pop("not_hiding")


def test_a_label_that_no_class_writes_is_made_of_the_fields():
    @dataclasses.dataclass(frozen=True)
    class Twice(Region):
        rules: tuple[Region, ...]
        times: float = 2.0

        def bounds(self, old_logps, context=None): ...

    assert Twice((Clip(), Capped(Band(), 3))).label == "Twice GRPO 0.2/0.2, (Band-KL 0.05 cap 3.0) 2.0"
