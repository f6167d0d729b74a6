"""The loss that prime-rl calls, which is not on the package registry.

What calls it and sums up is written here, as read in prime-rl 0.8.0; with a checkout in BANDPO_HOSTS/prime_rl it is
prime-rl's own `compute_loss`, with stand-ins for its configuration classes.
"""

import importlib
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from made import BANDS, around, assert_near, batch, gradient, lines, policy_loss
from test_limits import FOLDER, Sources, find, forget

import bandpo
from bandpo.integrations.prime_rl import loss

PAGE = tomllib.loads(lines("prime_rl"))["trainer"]["loss"]
ABSENT = ["beartype", "jaxtyping", "wandb", "prime_rl.configs", "prime_rl.utils.logger", "prime_rl.utils.pathing"]


@pytest.fixture(params=["as read", "its source"])
def theirs(request, monkeypatch):
    """prime-rl's module of losses, or None."""
    if request.param == "as read":
        yield None
        return
    before = set(sys.modules)
    find(monkeypatch, Sources(Path(FOLDER or "", "prime_rl", "src"), "prime_rl", ABSENT))
    module = importlib.import_module("prime_rl.trainer.rl.loss")
    for name in ("CustomLossConfig", "IPOLossConfig"):
        monkeypatch.setattr(module, name, type(name, (SimpleNamespace,), {}))
    yield module
    forget(before, "prime_rl", "beartype", "jaxtyping", "wandb")


def run(theirs, tensors, weights=None, config=None, **kwargs):
    """Value, gradient and metrics of a packed batch, by our loss or by the one of prime-rl's own `config`."""
    logps, old, advantages, mask = tensors
    logged = []

    def packed(x):
        rows = [None if each is None else [*each] for each in (x, old, advantages, mask, weights)]
        if theirs is not None:
            ours = theirs.CustomLossConfig(**PAGE | {"kwargs": kwargs})
            call, scale = theirs.setup_rl_loss_fn(config or ours), int(mask.sum())
            value, metrics = theirs.compute_loss(*rows[:2], None, *rows[2:], None, None, call, scale, 1, 1)
            logged.append({name: x.sum() for name, x in metrics.items()})
            return value
        total = 0.0
        for trainer, sampler, its, inside, of_row in zip(*rows[:4], rows[4] or [None] * len(x), strict=True):
            inputs = {"trainer_logprobs": trainer, "inference_logprobs": sampler, "advantages": its}
            out = loss(SimpleNamespace(**inputs, ref_logprobs=None, loss_mask=inside, loss_weights=of_row), **kwargs)
            logged.append(out.metrics)
            total = total + out.loss
        return total / mask.sum()

    value, slope = gradient(packed, logps)
    return value, slope, {k: torch.stack([row[k] for row in logged]).sum() for k in logged[0]}


def test_clip_is_the_loss_of_prime_rls_documentation(theirs):
    """The example of its page on custom losses: -min(r A, clip(r, 1 - eps, 1 + eps) A), summed over the mask."""
    logps, old, advantages, mask = tensors = batch(ratios=[-3.0, -0.5, -0.1, 0.0, 0.1, 0.4, 3.0])

    def documented(x):
        ratio = torch.exp(x - old)
        surrogates = ratio * advantages, ratio.clamp(0.8, 1.2) * advantages
        return -torch.min(*surrogates)[mask].sum() / mask.sum()

    expected, expected_slope = gradient(documented, logps)
    value, slope, _ = run(theirs, tensors, trust_region={"type": "clip", "eps_low": 0.2, "eps_high": 0.2})
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-6, atol=0)
    assert slope.count_nonzero() > 100


def dppo(moved, advantages):
    return torch.where(advantages > 0, moved > 0.2, moved < -0.2)


# Its default losses by date: what they mask, their own settings, and ours. The last is read in pull request 3586.
DPPO = {"type": "objective", "trust_region": {"type": "band", "divergence": "tv", "delta": 0.2}, "surrogate": "mask"}
WIDE = {"type": "objective", "trust_region": {"type": "band", "divergence": "tv", "delta": 0.3}}
DEFAULTS = {
    "until 2026-08-27": (dppo, {"dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "kl_tau": 0.001}, DPPO),
    "from then on": (lambda moved, _: moved.abs() > 0.1, {"ipo_threshold": 0.1, "kl_tau": 0.001}, "ipo"),
    "since 2026-09-18": (
        lambda moved, _: moved.abs() > 0.3,
        {"ipo_threshold": 0.3, "kl_tau": 0.0},
        WIDE | {"surrogate": "mask_two_sided"},
    ),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("default", DEFAULTS)
def test_its_default_loss_is_a_row_of_this_one(theirs, default, weighted):
    """A mask on the difference of probabilities, and kl_tau (log r)^2 for every token."""
    outside, settings, node = DEFAULTS[default]
    radius = max(settings.values())
    logps, old, advantages, mask = tensors = around(bandpo.Band("tv", radius))
    weights = torch.linspace(0.5, 2.0, mask.numel(), dtype=torch.float64).view_as(old) if weighted else None

    def as_read(x):
        log_ratio = x - old
        masked = outside(x.exp() - old.exp(), advantages)
        per_token = settings["kl_tau"] * log_ratio**2 * mask - (mask & ~masked) * advantages * log_ratio.exp()
        return (per_token * (1.0 if weights is None else weights)).sum() / mask.sum()

    expected, expected_slope = gradient(as_read, logps)
    if theirs is not None:
        kind = theirs.IPOLossConfig if "ipo_threshold" in settings else SimpleNamespace
        expected, expected_slope, _ = run(theirs, tensors, weights, kind(adv_tau=1.0, **settings))
    value, slope, _ = run(theirs, tensors, weights, trust_region=node, kl_tau=settings["kl_tau"])
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("region", BANDS)
def test_band_is_policy_loss(theirs, region, dtype):
    tensors = around(region, dtype=dtype)
    tokens = tensors[3].sum()
    kwargs = PAGE["kwargs"] if region == bandpo.Band("kl", 0.05) else {"trust_region": region.to_config()}
    value, slope, logged = run(theirs, tensors, **kwargs)
    assert_near((value, slope), policy_loss(*tensors, region, float(tokens)), dtype)
    _, metrics = bandpo.policy_loss(*tensors, region, metrics="all")
    counted = metrics.compute()
    assert logged["bandpo/tokens"] == tokens
    assert logged["bandpo/clip/count"] == counted["clip/count"] > 0
    assert logged["bandpo/clip/low_count"] == pytest.approx(counted["clip/low_fraction"] * float(tokens))
    assert logged["bandpo/cut/count"] == pytest.approx(counted["cut/fraction"] * float(tokens))
    assert all(value.dim() == 0 for value in logged.values())


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match=r"beta must be 0.0 through prime-rl, got 0.1: "):
        run(None, batch(), trust_region=bandpo.Objective(beta=0.1))
