"""The loss for rLLM v1's `register_loss`, on a stand-in for that interface: as pull request 713 describes it.

rLLM's main does not have it, so nothing of rLLM runs here. A loss is given a `LossContext`: by verl a batch (B, T), by
tinker and Fireworks one response (T,); it returns a scalar that `ctx.aggregate` made, and numbers.
"""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import yaml
from made import BANDS, around, assert_near, batch, gradient, lines, policy_loss

import bandpo


@pytest.fixture
def registry(monkeypatch):
    """The losses of a stand-in for rLLM, after it has imported what our page's `loss_plugins` name."""
    rllm, known = ModuleType("rllm"), {}
    rllm.register_loss = lambda name, *, agg_mode=None: lambda loss: known.setdefault(name, loss)
    monkeypatch.setitem(sys.modules, "rllm", rllm)
    page = yaml.safe_load(lines("rllm"))["algorithm"]
    for name in page["loss_plugins"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module(name)
    yield known, page
    for name in page["loss_plugins"]:
        sys.modules.pop(name)


def context(x, old, advantages, mask, params, rollout=None):
    """What a backend gives; its average is the sum over the mask."""
    made = {"logp_curr": x, "logp_old": old, "advantages": advantages, "action_mask": mask, "params": params}
    made |= {"obs_mask": torch.zeros_like(mask), "logp_ref": None, "logp_rollout": rollout, "backend": "verl"}
    return SimpleNamespace(**made, aggregate=lambda values, mask, mode=None: (values * mask).sum())


def run(registry, tensors, params=None, each=False, rollout=None):
    """Value, gradient and numbers of a batch, in one call or in one for each response."""
    known, page = registry
    params = {"eps_clip": 0.2, "eps_clip_high": None, "kl_beta": 0.0} | (params or page["loss_params"])
    logps, old, advantages, mask = (*tensors[:3], tensors[3].to(tensors[0].dtype))
    logged = []

    def loss(x):
        rows = zip(x, old, advantages, mask, strict=True) if each else [(x, old, advantages, mask)]
        values = [known[page["loss_fn"]](context(*row, params, rollout)) for row in rows]
        logged.extend(numbers for _, numbers in values)
        return torch.stack([value for value, _ in values]).sum()

    value, slope = gradient(loss, logps)
    return value, slope, {name: sum(row[name] for row in logged) for name in logged[0]}


@pytest.mark.parametrize("each", [False, True])
def test_clip_is_the_textbook(registry, each):
    """rLLM's `ppo_clip`: -min(r A, clip(r, 1 - eps, 1 + eps_high) A), the log-ratio within +-20."""
    logps, old, advantages, mask = tensors = batch()

    def written(x):
        ratio = (x - old).clamp(-20, 20).exp()
        return -(torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages) * mask).sum()

    expected = gradient(written, logps)
    value, slope, _ = run(registry, tensors, {"trust_region": {"type": "clip", "eps_low": 0.2, "eps_high": 0.28}}, each)
    torch.testing.assert_close(value, expected[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(slope, expected[1], rtol=1e-5, atol=0)
    assert slope.count_nonzero() > 100


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("region", BANDS)
def test_band_is_policy_loss(registry, region, each):
    tensors = around(region)
    params = None if region == bandpo.Band("kl", 0.05) else {"trust_region": region.to_config()}
    value, slope, logged = run(registry, tensors, params, each)
    assert_near((value, slope), policy_loss(*tensors, region, 1.0), torch.float64)
    counted = bandpo.policy_loss(*tensors, region, metrics="all")[1].compute()
    assert logged["bandpo/tokens"] == counted["tokens"]
    assert logged["bandpo/clip/count"] == counted["clip/count"] > 0


def test_the_anchor_may_be_the_sampler(registry):
    logps, old, *rest = tensors = around(BANDS[0])
    params = {"trust_region": BANDS[0].to_config(), "anchor": "sampler"}
    value, slope, _ = run(registry, (logps, old - 0.1, *rest), params, rollout=old)
    assert_near((value, slope), policy_loss(*tensors, BANDS[0], 1.0), torch.float64)
    with pytest.raises(ValueError, match=r"anchor = 'sampler' needs logp_rollout"):
        run(registry, tensors, params)
    with pytest.raises(ValueError, match=r"anchor must be 'old' or 'sampler', got 'rollout'"):
        run(registry, tensors, params | {"anchor": "rollout"})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"trust_region": "dppo"}, r"sampler's policy; set algorithm\.loss_params\.anchor=sampler"),
        ({"trust_region": "tv"}, r"'tv'.* did you mean"),
        ({"trust_region": bandpo.Objective(beta=0.1)}, r"beta must be 0.0 through rLLM, got 0.1: "),
    ],
)
def test_a_wrong_rule_is_refused_by_name(registry, params, message):
    with pytest.raises(ValueError, match=message):
        run(registry, batch(), params)
