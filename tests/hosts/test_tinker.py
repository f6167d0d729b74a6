"""The loss for tinker's `forward_backward_custom`, run by the code of `TrainingClient` that runs it.

tinker's own `ppo` runs on its servers only, so the clip is compared with the textbook's, in float64.
"""

import inspect
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from made import BANDS, around, batch, executed, policy_loss
from tinker import ForwardBackwardOutput, ModelInput, TensorData, TrainingClient
from tinker import types as tinker_types

import bandpo
from bandpo.integrations.tinker import bandpo_loss


def datums(tensors, masked=True, drop=()):
    """One datum a response, of its length; what the server returns for them."""
    data, outputs = [], []
    for logps, old, advantages, mask in zip(*tensors, strict=True):
        n = max(1, int(mask.nonzero().max()) + 1) if mask.any() else 1
        inputs = {
            "target_tokens": TensorData.from_torch(torch.zeros(n, dtype=torch.long)),
            "logprobs": TensorData.from_torch(old[:n].float()),
            "advantages": TensorData.from_torch(advantages[:n].float()),
            "mask": TensorData.from_torch(mask[:n].float()),
        }
        inputs = {k: v for k, v in inputs.items() if k not in drop and (masked or k != "mask")}
        data.append(tinker_types.Datum(model_input=ModelInput.from_ints([1] * n), loss_fn_inputs=inputs))
        outputs.append({"logprobs": TensorData.from_torch(logps[:n].float())})
    return data, ForwardBackwardOutput(loss_fn_output_type="logprobs", loss_fn_outputs=outputs, metrics={})


def run(loss, tensors, **named):
    """What tinker sends back to its server, negated: the gradient, padded; the value; what it logs."""
    data, outputs = datums(tensors, **named)
    result = TrainingClient._compute_custom_loss(data, loss, outputs)
    slope = torch.zeros_like(tensors[0], dtype=torch.float32)
    for row, datum in zip(slope, result.data, strict=True):
        assert set(datum.loss_fn_inputs) == {"target_tokens", "weights"}
        weights = datum.loss_fn_inputs["weights"].to_torch()
        row[: len(weights)] = -weights
    return result.loss_sum, slope, result.metrics


@pytest.mark.parametrize("masked", [True, False])
def test_clip_is_the_sum_of_the_textbook(masked):
    logps, old, advantages, mask = tensors = batch(empty=masked)
    value, slope, logged = run(bandpo_loss(bandpo.Clip(0.2, 0.28)), tensors, masked=masked)
    ratio = (logps.double() - old.double()).exp()
    clipped = ratio.clamp(0.8, 1.28)
    expected = -torch.minimum(ratio * advantages, clipped * advantages)
    far = torch.where(advantages >= 0, ratio > clipped, ratio < clipped)
    expected_slope = torch.where(mask & ~far, -ratio * advantages, 0.0)
    assert value == pytest.approx(expected[mask].sum().item(), rel=1e-5)
    torch.testing.assert_close(slope, expected_slope.float(), rtol=1e-4, atol=0)  # log-ratios are rounded in float32
    assert slope.count_nonzero() > 100
    assert logged["bandpo/tokens"] == mask.sum()
    assert logged["bandpo/cut/fraction"] == pytest.approx((far & mask & (advantages != 0)).sum() / mask.sum())
    assert all(type(x) is float or type(x) is int for x in logged.values())


@pytest.mark.parametrize("surrogate", ["clip", "mask", "mask_two_sided"])
@pytest.mark.parametrize("region", BANDS)
def test_band_is_policy_loss(region, surrogate):
    tensors = around(region, dtype=torch.float32)  # as tinker's are
    value, slope, _ = run(bandpo_loss(bandpo.Objective(region, surrogate=surrogate).to_config()), tensors)
    expected, expected_slope = policy_loss(*tensors, region, 1.0, surrogate=surrogate)
    assert value == pytest.approx(expected.item(), rel=1e-4)  # a float32 sum in another order
    assert torch.equal(slope, expected_slope)


def test_the_lines_of_the_docstring_run_what_they_say():
    data, outputs = datums(batch())
    call = partial(TrainingClient._compute_custom_loss, data)
    given = []
    client = SimpleNamespace(forward_backward_custom=lambda *arguments: given.append(arguments))
    executed("tinker", training_client=client, data=data)
    ((its, loss),) = given
    assert its is data
    found, wanted = (call(each, outputs) for each in (loss, bandpo_loss(bandpo.Band("kl", 0.05))))
    assert (found.loss_sum, found.metrics) == (wanted.loss_sum, wanted.metrics)


def test_calls_add_up():
    tensors = batch(empty=False)
    value, slope, logged = run(bandpo_loss(), tensors)
    parts = [run(bandpo_loss(), [x[i] for x in tensors]) for i in torch.arange(len(tensors[0])).split(7)]
    assert sum(part[0] for part in parts) == pytest.approx(value, rel=1e-4)
    assert torch.equal(torch.cat([part[1] for part in parts]), slope)
    assert sum(part[2]["bandpo/clip/count"] for part in parts) == logged["bandpo/clip/count"]


def test_a_share_of_nothing_is_not_logged():
    _, slope, logged = run(bandpo_loss(), batch([0.5], [0.0], [1.0], empty=False))
    assert slope[0, 0] == -1
    assert logged["bandpo/clip/count"] == 0
    assert "bandpo/clip/tail_high_share" not in logged
    assert not any(math.isnan(x) for x in logged.values())


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match=r"beta must be 0.0 through tinker, got 0.1: "):
        bandpo_loss(bandpo.Objective(beta=0.1))
    tensors = batch()
    with pytest.raises(KeyError, match="logprobs"):
        run(bandpo_loss(), tensors, drop=["logprobs"])
    data, outputs = datums(tensors)
    data[3].loss_fn_inputs["advantages"] = TensorData.from_torch(torch.ones(99))
    with pytest.raises(ValueError, match=r"advantages must be .*99"):
        TrainingClient._compute_custom_loss(data, bandpo_loss(), outputs)


def test_tinker_has_the_names_that_are_leant_on():
    """`forward_backward_custom(data, loss_fn)` hands every input of a datum to the loss."""
    assert list(inspect.signature(TrainingClient.forward_backward_custom).parameters)[:3] == ["self", "data", "loss_fn"]
    assert "_compute_custom_loss" in inspect.getsource(inspect.unwrap(TrainingClient.forward_backward_custom))
