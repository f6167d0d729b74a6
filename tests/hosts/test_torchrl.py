"""`BandPOLoss` against torchrl's own GRPOLoss, called with the same policy and tensordict."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from made import BANDS, DECADES, around, assert_near, batch, executed, gradient, policy_loss
from tensordict import TensorDict
from torchrl.modules.llm import Text, TransformersWrapper
from torchrl.objectives.llm import GRPOLoss

import bandpo
from bandpo.integrations.torchrl import BandPOLoss


class Policy:
    """What GRPOLoss asks of a policy: a distribution over the whole sequence, with the mask of the response."""

    in_keys = ()

    def __init__(self, logps, mask):
        self.dist = SimpleNamespace(log_prob=lambda action: logps, mask=mask)

    def get_dist(self, tensordict, logits_key):
        return self.dist


def run(cls, tensors, call=None, **named):
    """Value and gradient of the loss, and what it logs."""
    logps, old, advantages, mask = tensors
    sequences = TensorDict(
        {
            ("tokens", "full"): torch.zeros(mask.shape, dtype=torch.long),
            ("log_probs", "full"): old,
            "advantage": advantages[..., None],
        },
        batch_size=[len(mask)],
    )
    logged = {}

    def loss(x):
        module = cls(Policy(x, mask), entropy_bonus=False, **named)
        for _ in range(call or 1):
            out = module(sequences)
        logged.update(out.detach().to_dict())
        return out.loss_objective.sum()

    return *gradient(loss, logps), logged


@pytest.mark.parametrize("aggregation", ["token_mean", "prompt_mean", "none"])
def test_clip_is_torchrls_own_loss_bit_for_bit(aggregation):
    tensors = batch()
    value, slope, logged = run(GRPOLoss, tensors, clip_epsilon=(0.2, 0.28), aggregation=aggregation)
    ours = run(BandPOLoss, tensors, trust_region=bandpo.Clip(0.2, 0.28), aggregation=aggregation)
    assert ours[0] == value
    assert torch.equal(ours[1], slope)
    assert slope.count_nonzero() > 100
    assert ours[2]["clip_fraction"] == logged["clip_fraction"] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("region", BANDS)
@pytest.mark.parametrize("aggregation", ["token_mean", "prompt_mean", "none"])
def test_band_is_policy_loss(region, aggregation, dtype):
    tensors = around(region, dtype=dtype)
    rows, mask = len(tensors[0]), tensors[3]
    named = {"trust_region": region, "aggregation": aggregation}
    value, slope, _ = run(BandPOLoss, tensors, **named)
    if aggregation == "prompt_mean":
        arguments = (*tensors[1:], bandpo.Objective(region, aggregation="seq-mean-token-mean"))
        expected = gradient(lambda x: bandpo.policy_loss(x, *arguments, normalizer=float(rows))[0], tensors[0])
    else:
        expected = policy_loss(*tensors, region, float(mask.sum()) if aggregation == "token_mean" else 1.0)
    assert_near((value, slope), expected, dtype)
    assert not slope[~mask].any()
    assert rows > 10


def test_the_line_of_the_docstring_makes_the_loss_that_it_says():
    def made(policy, **named):
        return executed("torchrl", policy=policy, BandPOLoss=BandPOLoss)["loss"]

    found, wanted = (run(cls, around(BANDS[0])) for cls in (made, BandPOLoss))
    assert found[0] == wanted[0]
    assert torch.equal(found[1], wanted[1])


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A tiny Qwen2 in torchrl's own wrapper, and what it sampled, scored and was rewarded for before it changed."""
    folder = tmp_path_factory.mktemp("torchrl")
    pytest.importorskip("cluster.verl_toy", reason="verl is not installed", exc_type=ImportError).write(folder)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "model").float().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    common = {"tokenizer": tokenizer, "input_mode": "text", "pad_output": True}
    sampler = TransformersWrapper(model, generate_kwargs={"max_new_tokens": 8}, **common)
    policy = TransformersWrapper(model, generate=False, return_log_probs=True, **common)
    torch.manual_seed(0)
    with torch.no_grad():
        batch = policy(sampler(TensorDict(text=Text(prompt=["1+2=", "what is 3+4?"]), batch_size=[2])))
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    old = batch.get(("log_probs", "full"), as_padded_tensor=True, padding_side="left", padding_value=0.0)
    batch["advantage"] = torch.tensor([1.0, -1.0])[:, None, None].expand(*old.shape, 1).clone()
    return policy, batch


@pytest.mark.filterwarnings("ignore")  # of torchrl and tensordict, about themselves
def test_through_torchrls_own_wrapper(sampled):
    policy, batch = sampled
    weights = [x for x in policy.parameters() if x.requires_grad]
    named = {"entropy_bonus": False, "masking_strategy": "generic"}
    results = []
    for loss in (
        GRPOLoss(policy, clip_epsilon=0.2, **named),
        BandPOLoss(policy, trust_region=bandpo.Clip(0.2, 0.2), **named),
        BandPOLoss(policy, trust_region=bandpo.Band("kl", 0.05), **named),
    ):
        out = loss(batch.clone())
        results.append((out, torch.autograd.grad(out.loss_objective.sum(), weights)))
    (theirs, slopes), (ours, our_slopes), (band, band_slopes) = results
    assert ours.loss_objective == theirs.loss_objective
    assert ours.clip_fraction == theirs.clip_fraction > band.clip_fraction > 0
    assert all(map(torch.equal, our_slopes, slopes))
    assert not any(map(torch.equal, band_slopes, slopes))


def test_micro_batches_with_aggregation_none_add_up():
    tensors = batch(empty=False)
    named = {"trust_region": {"type": "band", "delta": 0.05}, "aggregation": "none"}
    value, slope, _ = run(BandPOLoss, tensors, **named)
    parts = [run(BandPOLoss, [x[i] for x in tensors], **named) for i in torch.arange(len(tensors[0])).split(7)]
    torch.testing.assert_close(sum(part[0] for part in parts), value, rtol=1e-4, atol=0)
    assert torch.equal(torch.cat([part[1] for part in parts]), slope)


@pytest.mark.parametrize("aggregation", ["token_mean", "prompt_mean"])
def test_alignment_pads_reach_nothing(aggregation):
    """torchrl marks them by NaN."""
    logps, old, advantages, mask = around(bandpo.Band(), empty=False)
    hole = mask & (torch.arange(len(DECADES)) % 3 == 1)
    kept = mask & ~hole
    tensors = logps, torch.where(hole, torch.nan, old), advantages, mask
    value, slope, _ = run(BandPOLoss, tensors, aggregation=aggregation)
    name = {"token_mean": "token-mean", "prompt_mean": "seq-mean-token-mean"}[aggregation]
    normalizer = float(kept.sum() if aggregation == "token_mean" else len(kept))

    def expected_loss(x):
        objective = bandpo.Objective(bandpo.Band(), aggregation=name)
        return bandpo.policy_loss(x, old, advantages, kept, objective, normalizer=normalizer)[0]

    expected, expected_slope = gradient(expected_loss, logps)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slope, expected_slope, rtol=1e-9, atol=0)


def test_the_bounds_are_those_of_each_call():
    tensors = around(bandpo.Band(), empty=False)
    once, twice = run(BandPOLoss, tensors), run(BandPOLoss, tensors, call=2)
    assert once[0] == twice[0]
    policy = Policy(tensors[0], tensors[3])
    module = BandPOLoss(policy, entropy_bonus=False)
    assert module._clip_bounds[1] == torch.tensor(0.2).log1p()  # before a call they are torchrl's default


def test_rules_get_advantages_and_mask():
    seen = {}

    class Spy(bandpo.Region):
        def bounds(self, old_logps, context=None):
            seen.update(vars(context), old=old_logps)
            return bandpo.Clip(0.2, 0.2).bounds(old_logps)

    _, old, advantages, mask = tensors = batch(empty=False)
    run(BandPOLoss, tensors, trust_region=Spy())
    assert torch.equal(seen["old"][mask], old[mask])
    assert torch.equal(seen["response_mask"], mask)
    assert torch.equal(seen["advantages"], advantages)


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="trust_region replaces clip_epsilon"):
        BandPOLoss(clip_epsilon=0.2)
    with pytest.raises(ValueError, match="dual_clip must be None through torchrl"):
        BandPOLoss(trust_region=bandpo.Objective(dual_clip=3.0))


def test_torchrl_has_the_names_that_are_leant_on():
    """GRPOLoss reads `_clip_bounds` after `_log_weight`, which gives (log_weight, dist, kl_approx, mask)."""
    assert isinstance(GRPOLoss._clip_bounds, property)
    assert "_log_weight" in inspect.unwrap(GRPOLoss.forward).__code__.co_names
    assert "_clip_bounds" in GRPOLoss._compute_policy_objective.__code__.co_names
