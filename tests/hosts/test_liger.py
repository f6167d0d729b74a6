"""`BandPOLoss` against Liger's own GRPO loss, from the same hidden states."""

from types import SimpleNamespace

import pytest
import torch
from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase
from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOLoss
from made import BANDS, DECADES, around, batch, executed

import bandpo
from bandpo.integrations.liger import LOSS_TYPES, BandPOLoss

# Not further up: a log-ratio of 88 overflows in Liger.
RATIOS = [-19.0, -3.0, -0.5, -0.2, -0.1, 0.0, 0.1, 0.2, 0.25, 0.4, 1.2, 3.0]


def hidden_states(logps):
    """Hidden states whose first token of a vocabulary of two has these log-probabilities, with the identity as head."""
    logps = logps.double().clamp(max=-1e-9)
    return torch.stack([logps - torch.log(-torch.expm1(logps)), torch.zeros_like(logps)], -1).float()


def run(loss, tensors, on_policy=False, **named):
    """Value, gradients of the hidden states and of the head, and Liger's metrics."""
    logps, old, advantages, mask = tensors
    hidden, head = hidden_states(logps).requires_grad_(), torch.eye(2, requires_grad=True)
    ids = torch.zeros(mask.shape, dtype=torch.long)
    old = None if on_policy else old.float()
    value, metrics = loss(hidden, head, ids, mask.long(), advantages[:, 0].float(), old_per_token_logps=old, **named)
    gradients = torch.autograd.grad(value, [hidden, head])
    return value.detach(), gradients, metrics


def options(loss_type, **more):
    return {"loss_type": loss_type, "beta": 0.0, "use_ref_model": False, "compiled": False, **more} | (
        {"max_completion_length": 20} if loss_type == "dr_grpo" else {}
    )


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_clip_is_ligers_own_loss_bit_for_bit(loss_type):
    tensors = batch(DECADES, RATIOS)
    value, (hidden, head), metrics = run(
        LigerFusedLinearGRPOLoss(epsilon_low=0.2, epsilon_high=0.28, chunk_size=len(tensors[0]), **options(loss_type)),
        tensors,
    )
    ours = run(BandPOLoss(bandpo.Clip(0.2, 0.28), **options(loss_type)), tensors)
    assert ours[0] == value
    assert torch.equal(ours[1][0], hidden)
    assert torch.equal(ours[1][1], head)
    assert hidden.count_nonzero() > 100
    assert ours[2][-1] == metrics[-1] > 0
    logps, old, advantages, mask = tensors
    ids = torch.zeros(mask.shape, dtype=torch.long)
    by_place = hidden_states(logps), torch.eye(2, requires_grad=True), ids, mask, advantages[:, 0], None, None, old
    assert BandPOLoss(bandpo.Clip(0.2, 0.28), **options(loss_type))(*by_place)[0] == value
    # Liger's own chunks of one sequence change the order of a sum only.
    chunked = run(LigerFusedLinearGRPOLoss(epsilon_low=0.2, epsilon_high=0.28, **options(loss_type)), tensors)
    torch.testing.assert_close(ours[0], chunked[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[1][0], chunked[1][0], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("region", BANDS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_band_is_policy_loss(region, loss_type):
    tensors = logps, old, advantages, mask = around(region, DECADES)
    value, (slope, _), metrics = run(BandPOLoss(region.to_config(), **options(loss_type)), tensors)
    hidden = hidden_states(logps).double().requires_grad_()
    aggregation, normalizer = {
        "grpo": ("seq-mean-token-mean", float(len(mask))),  # Liger counts an empty response
        "bnpo": ("token-mean", None),
        "dapo": ("token-mean", None),
        "dr_grpo": ("seq-mean-token-sum-norm", 20.0 * len(mask)),
    }[loss_type]
    arguments = hidden.log_softmax(-1)[..., 0], old.float().double(), advantages, mask
    objective = bandpo.Objective(region, aggregation=aggregation)
    expected, counted = bandpo.policy_loss(*arguments, objective, normalizer=normalizer, metrics="all")
    (expected_slope,) = torch.autograd.grad(expected, hidden)
    torch.testing.assert_close(value.double(), expected.detach(), rtol=1e-4, atol=1e-7)  # terms that cancel
    torch.testing.assert_close(slope.double(), expected_slope, rtol=0, atol=1e-6 * expected_slope.abs().max().item())
    known = (logps < -(2**-23))[..., None]  # a token of 1 - 1e-7 may be certain in float32, without a gradient
    assert torch.equal(known & (slope != 0), known & (expected_slope != 0))
    assert metrics[-1] == pytest.approx(counted.compute()["cut/fraction"], rel=1e-6)


def test_logits_in_float32_give_log_p_to_2_to_the_minus_24():
    """That is 0.6 % of it at 0.99999."""
    hidden = hidden_states(torch.linspace(-1.1e-5, -0.9e-5, 1001, dtype=torch.float64))
    off = hidden.log_softmax(-1) - hidden.double().log_softmax(-1)
    assert 0.9 * 2**-24 < off[..., 0].abs().max() <= 2**-24


def test_micro_batches_of_dapo_add_up():
    tensors = batch(DECADES, RATIOS, empty=False)
    items = tensors[3].sum()
    loss = BandPOLoss(bandpo.Band(), **options("dapo"))
    value, (slope, _), _ = run(loss, tensors, num_items_in_batch=items)
    parts = [
        run(loss, [x[i] for x in tensors], num_items_in_batch=items) for i in torch.arange(len(tensors[0])).split(7)
    ]
    torch.testing.assert_close(sum(part[0] for part in parts), value, rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.cat([part[1][0] for part in parts]), slope, rtol=1e-6, atol=0)


def test_without_old_log_probabilities_no_rule_acts_and_nothing_stays_behind():
    loss = BandPOLoss(bandpo.Band("kl", 0.001), **options("bnpo"))
    run(loss, batch(DECADES, RATIOS))
    assert (loss.epsilon_low, loss.epsilon_high) == (0.2, 0.2)
    tensors = batch(DECADES[:4], [0.0], empty=False)
    _, (slope, _), metrics = run(loss, tensors, on_policy=True)
    _, (expected, _), _ = run(LigerFusedLinearGRPOLoss(**options("bnpo")), tensors, on_policy=True)
    torch.testing.assert_close(slope, expected)
    assert metrics[-1] == 0


@pytest.mark.filterwarnings("ignore")  # of torch.compile and Liger, about themselves
def test_the_lines_of_the_docstring_compiled_as_by_default():
    tensors = logps, old, advantages, mask = around(bandpo.Band(), DECADES, empty=False)
    eager = run(BandPOLoss(bandpo.Band(), **options("grpo")), tensors)
    names = {"hidden": hidden_states(logps).requires_grad_(), "completion_mask": mask.long(), "old": old.float()}
    names |= {"lm_head": SimpleNamespace(weight=torch.eye(2)), "completion_ids": torch.zeros_like(mask).long()}
    names = executed("liger", **names, advantages=advantages[:, 0].float(), BandPOLoss=BandPOLoss)
    torch.testing.assert_close(names["value"].detach(), eager[0])
    (slope,) = torch.autograd.grad(names["value"], names["hidden"])
    torch.testing.assert_close(slope, eager[1][0], rtol=1e-4, atol=1e-9)


def test_wrong_input_is_named():
    for named, message in [
        ({"epsilon_low": 0.1}, r"trust_region replaces \['epsilon_low'\]"),
        ({"chunk_size": 4}, r"replaces \['chunk_size'\]"),
        ({"loss_type": "cispo"}, "loss_type must be one of .*, got 'cispo' and 'token'"),
        ({"importance_sampling_level": "sequence"}, "got 'dapo' and 'sequence'"),
        (
            {"trust_region": {"type": "objective", "surrogate": "mask"}},
            "must be 'clip' through Liger, got 'mask'",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            BandPOLoss(**named)


def test_liger_has_the_names_that_are_leant_on():
    """The batch is one chunk if `chunk_size` is its size; its epsilons may then be tensors of its shape."""
    names = LigerFusedLinearGRPOLoss.forward.__code__.co_names
    assert {"epsilon_low", "epsilon_high", "chunk_size"} <= set(names)
    assert "_input" in LigerFusedLinearPPOBase.forward.__code__.co_varnames
