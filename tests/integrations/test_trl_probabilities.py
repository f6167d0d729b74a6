"""BandPOTrainer's own `_compute_loss` of made log-probabilities, far beyond those of a tiny training.

They stand in the place of what the model gives.
"""

import pytest
import torch
from made import BANDS, around, assert_near, batch, gradient
from test_trl import AGGREGATION, DAPO_STEPS, build, full
from trl import GRPOTrainer

import bandpo
import tiny
from bandpo import Band, Capped, Clip
from bandpo.integrations.trl import BandPOTrainer
from bandpo.integrations.trl_settings import LOSS_TYPES

DTYPES = [torch.float32, torch.float64]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return value and gradient of a trainer's loss, and its normalizer, which `policy_loss` takes."""
    made, inner = {}, GRPOTrainer._get_per_token_logps_and_entropies
    monkeypatch.setattr(
        GRPOTrainer,
        "_get_per_token_logps_and_entropies",
        lambda *given, **named: (made["logps"], *inner(*given, **named)[1:]),
    )

    def loss_of(tensors, rule, loss_type):
        logps, old, advantages, mask = tensors
        changes = {"loss_type": loss_type, "max_completion_length": 20}
        if isinstance(rule, dict):  # TRL's own, with two epsilons
            trainer = build(GRPOTrainer, tiny.settings(tmp_path, **changes, **rule))
        else:
            trainer = build(BandPOTrainer, full(tmp_path, **changes), rule)
        trainer.current_gradient_accumulation_steps, zeros = 1, torch.zeros_like(mask, dtype=torch.long)
        inputs = {
            "prompt_ids": zeros[:, :2],
            "prompt_mask": zeros[:, :2] + 1,
            "completion_ids": zeros,
            "completion_mask": mask.long(),
            "old_per_token_logps": old,
            "advantages": advantages[:, 0],
            "num_items_in_batch": 4 * mask.sum(),
        }

        def loss(x):
            made["logps"] = x
            return trainer._compute_loss(trainer.model, dict(inputs))

        return gradient(loss, logps)

    return loss_of


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_clip_is_trls_own_loss_bit_for_bit(run, loss_type, dtype):
    tensors = batch(dtype=dtype)
    value, slope = run(tensors, {"epsilon": 0.2, "epsilon_high": 0.28}, loss_type)
    ours = run(tensors, Clip(0.2, 0.28), loss_type)
    assert all(map(torch.equal, (ours[0], ours[1]), (value, slope)))
    assert slope.count_nonzero() > 100


def expected(tensors, region, loss_type):
    logps, *rest, mask = tensors
    normalizers = {"dapo": 4.0 * mask.sum() / DAPO_STEPS, "dr_grpo": 20.0 * len(mask), "grpo": float(len(mask))}
    named = {"normalizer": normalizers.get(loss_type)}  # an empty response counts in TRL's grpo
    objective = bandpo.Objective(region, aggregation=AGGREGATION[loss_type])
    return gradient(lambda x: bandpo.policy_loss(x, *rest, mask, objective, **named)[0], logps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("region", [*BANDS, Capped(Band(), 2.0)], ids=str)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_band_is_policy_loss(run, loss_type, region, dtype):
    tensors = around(region, dtype=dtype)
    assert_near(run(tensors, region, loss_type), expected(tensors, region, loss_type), dtype)


@pytest.mark.parametrize("region", BANDS)
def test_rounding_decides_at_a_bound(run, region):
    """TRL compares ratios and `policy_loss` log-ratios, in float32: closer than 2^-21 to a bound, relative to one
    above 1, a token may have a gradient, or half of it, in one of them only. In float64 both agree about it."""
    parts = (1 + torch.linspace(-4, 4, 257) * 2**-22).tolist()
    logps, old, advantages, mask = tensors = around(region, dtype=torch.float32, parts=parts)
    (value, slope), (wanted, wanted_slope) = run(tensors, region, "bnpo"), expected(tensors, region, "bnpo")
    torch.testing.assert_close(value, wanted, rtol=1e-6, atol=0)
    other = ~torch.isclose(slope, wanted_slope, rtol=1e-6, atol=0)
    bounds = region.bounds(old.double())
    sides, ratio = torch.stack([bounds.log_low.exp(), bounds.log_high.exp()]), (logps.double() - old.double()).exp()
    near = ((ratio - sides).abs() / sides.clamp(min=1)).amin(0)
    assert 0 < near[other].max() < 2**-21
    exact = [logps.double(), old.double(), advantages.double(), mask]
    assert_near(run(exact, region, "bnpo"), expected(exact, region, "bnpo"), torch.float64)
