"""On a GPU: the numbers of a CPU, no waiting for the device, compiled graphs. Skipped where there is none."""

import pytest
import torch
from regions import sides

from bandpo import Band, Clip, Objective, band_bounds, policy_loss
from bandpo.losses import token_logps
from bandpo.losses.nodes import method, methods

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DIVERGENCES = ("kl", "tv", "chi2", "neyman_chi2", "hellinger", "reverse_kl", "jensen_shannon")


def batch(device, dtype=torch.float32, shape=(8, 512)):
    rng = torch.Generator().manual_seed(0)
    old = -8 * torch.rand(shape, generator=rng) ** 2
    new = (old + 0.3 * torch.randn(shape, generator=rng)).clamp(max=0)
    advantages, mask = torch.randn(shape[0], generator=rng), torch.rand(shape, generator=rng) < 0.9
    return [x.to(device) for x in (new.to(dtype), old.to(dtype), advantages, mask)]


def step(device, rule, call=policy_loss, dtype=torch.float32, **named):
    new, old, advantages, mask = batch(device, dtype)
    new.requires_grad_()
    loss, metrics = call(new, old, advantages, mask, rule, **named)
    loss.backward()
    return loss.detach(), new.grad, metrics


@pytest.mark.parametrize("name", DIVERGENCES)
def test_bounds_are_those_of_a_cpu(name):
    old = torch.cat([-torch.logspace(-7, 2, 5000, dtype=torch.float32), torch.tensor([0.0, -200.0, -torch.inf])])
    for delta in (1e-4, 0.05, 2.0):
        found, wanted = (sides(band_bounds(x, name, delta)) for x in (old.cuda(), old))
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", [one.name for one in methods()])
def test_methods_are_those_of_a_cpu(name):
    one = method(name).objective
    wanted, found = step("cpu", one), step("cuda", one)
    torch.testing.assert_close(found[0].cpu(), wanted[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found[1].cpu(), wanted[1], rtol=1e-4, atol=1e-8)
    assert found[2].compute() == pytest.approx(wanted[2].compute(), rel=1e-4, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("rule", [Clip(0.2, 0.2), Band("kl", 0.05), Band("tv", 0.05), Band("chi2", 0.05)], ids=str)
def test_a_loss_does_not_wait_for_the_device(rule):
    new, old, advantages, mask = batch("cuda")
    policy_loss(new.requires_grad_(), old, advantages, mask, rule, normalizer=8)[0].backward()  # what is made once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        policy_loss(new, old, advantages, mask, rule, normalizer=8)[0].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("rule", [Clip(0.2, 0.2), Band("kl", 0.05), Band("reverse_kl", 0.05)], ids=str)
def test_a_compiled_loss_is_the_plain_one(rule):
    found, wanted = step("cuda", rule, torch.compile(policy_loss, fullgraph=True)), step("cuda", rule)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.*half precision rounds them")
def test_half_precision_log_probabilities_give_the_loss_of_a_cpu():
    found, wanted = (step(device, Band("kl", 0.05), dtype=torch.bfloat16) for device in ("cuda", "cpu"))
    torch.testing.assert_close(found[0].cpu(), wanted[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1].cpu(), wanted[1], rtol=1e-2, atol=1e-6)


def test_log_probabilities_of_tokens_are_those_of_a_cpu():
    torch.manual_seed(0)
    hidden, weight, tokens = torch.randn(300, 32), torch.randn(999, 32) / 6, torch.randint(999, (300,))
    found = token_logps(hidden.cuda(), weight.cuda(), tokens.cuda(), entropies=True)
    wanted = token_logps(hidden, weight, tokens, entropies=True)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, check_device=False)


def test_an_objective_with_a_dual_clip_keeps_its_gradient_finite_on_extreme_ratios():
    new, old, advantages, mask = batch("cuda")
    new = (new - 200 * (torch.rand_like(new) < 0.1)).requires_grad_()
    policy_loss(new, old, advantages, mask, Objective(Band("kl", 0.05), dual_clip=10.0))[0].backward()
    assert new.grad.isfinite().all()
