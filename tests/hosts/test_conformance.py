"""Every case of trainers.py: with `Clip` the trainer's own loss, with `Band` `policy_loss`; and what each refuses.

`python benchmarks/host_installs.py` and `python benchmarks/hosts.py` run these tests with the trainers themselves.
"""

import re
from argparse import Namespace

import pytest
import torch
from hosts.trainers import CASES, CLIP, PROBABILITIES, Asking, stand_in
from made import BANDS, around, assert_near, batch, gradient, policy_loss

import bandpo
from bandpo import integrations
from bandpo.integrations import RULE, TRAINERS, Limits, objective_for

LEAST = {torch.float32: 1e-5, torch.float64: 1e-9}


def batches(case, **named):
    for dtype in case.clip_dtypes or case.dtypes:
        yield batch(case.decades, case.ratios, dtype=dtype, **named)


@pytest.mark.parametrize("trainer", [key for key, case in CASES.items() if case.exact], indirect=True)
def test_clip_is_the_trainers_own_loss_bit_for_bit(trainer):
    for tensors in batches(trainer.case):
        value, slope, logged = trainer.run(None, tensors)
        our_value, our_slope, ours = trainer.run(CLIP, tensors)
        assert all(map(torch.equal, (our_value, our_slope), (value, slope)))
        assert slope.count_nonzero() > 100
        for name in logged.keys() & ours.keys():
            assert ours[name] == pytest.approx(logged[name], rel=1e-6)
            assert 0 < logged[name] < 1


@pytest.mark.parametrize("trainer", [key for key, case in CASES.items() if not case.exact], indirect=True)
def test_clip_is_the_formula_of_the_trainers_loss(trainer):
    for tensors in batches(trainer.case, empty=trainer.case.takes_empty):
        (value, slope, _), (our_value, our_slope, _) = (trainer.run(rule, tensors) for rule in (None, CLIP))
        least = max(LEAST[tensors[0].dtype], trainer.case.rtol or 0.0)
        torch.testing.assert_close(our_value, value, rtol=least, atol=0, check_dtype=False)
        torch.testing.assert_close(our_slope, slope, rtol=least, atol=0)
        assert slope.count_nonzero() > 100


@pytest.mark.parametrize("region", BANDS)
@pytest.mark.parametrize("trainer", CASES, indirect=True)
def test_band_is_policy_loss(trainer, region):
    case = trainer.case
    for dtype in case.dtypes:
        tensors = around(region, case.decades, dtype, case.takes_empty)
        value, slope, logged = trainer.run(region, tensors)
        assert_near((value, slope), case.expected(region, tensors), dtype, case.rtol, case.sure(tensors[0]))
        counted = bandpo.policy_loss(*tensors, region, metrics="all")[1].compute()
        for name in logged.keys() & counted.keys():
            assert logged[name] == pytest.approx(counted[name], rel=1e-6), name
        assert not logged or max(logged.values()) > 0


@pytest.mark.parametrize("trainer", [key for key, case in CASES.items() if case.adds_up], indirect=True)
def test_micro_batches_add_up(trainer):
    for tensors in batches(trainer.case, empty=False):
        value, slope, logged = trainer.run(bandpo.Band(), tensors)
        rows = torch.arange(len(tensors[0])).split(7)
        parts = [trainer.run(bandpo.Band(), [x[i] for x in tensors]) for i in rows]
        torch.testing.assert_close(sum(part[0] for part in parts), value, rtol=1e-4, atol=0)
        assert torch.equal(torch.cat([part[1] for part in parts]), slope)
        assert sum(part[2].get("clip/count", 0) for part in parts) == logged.get("clip/count", 0)


# ---- what each refuses


# What every trainer is asked for, whether it is told that the sampler is the anchor, and the words of a refusal.
REQUESTS = {
    "sequence": ("gspo", "old", "'gspo': ratio must be 'token' through {0}, got 'sequence-mean': {0} clamps"),
    "dual_clip": (bandpo.Objective(dual_clip=3.0), "old", "dual_clip must be None through {0}, got 3.0"),
    "mask": (bandpo.Objective(surrogate="mask"), "old", "surrogate must be 'clip' through {0}, got 'mask': {0} clamps"),
    "beta": (bandpo.Objective(beta=0.1), "old", "beta must be 0.0 through {0}, got 0.1: the KL penalty is {0}'s own"),
    "average": (bandpo.Objective(aggregation="seq-mean-token-sum-norm"), "old", "aggregation must be None through {0}"),
    "dppo": ("dppo", "old", "'dppo': .* ratio is to the sampler's policy|'dppo': surrogate must be 'clip' through {0}"),
    "told": (
        "dppo",
        "sampler",
        "'dppo': .* ratio is to the sampler's policy|'dppo': surrogate must be 'clip' through {0}",
    ),
    **{
        name: (
            Asking(name),
            "old",
            f"Asking needs {name}, which {{0}} does not give a rule; take another rule, or {how}",
        )
        for name, how in {
            "nothing": "call policy_loss in your own loop",
            "response_mask": "train with TRL or axolotl or Liger or torchrl or verl",
            "advantages": "",
        }.items()
    },
}
GIVEN, LOSS = "response_mask advantages", "sequence dual_clip mask told"
CAN = {
    **dict.fromkeys(["TRL", "axolotl", "verl", "SkyRL", "rLLM"], f"{LOSS} {GIVEN}"),
    **dict.fromkeys(["tinker", "prime-rl"], f"{LOSS} dppo {GIVEN}"),
    **dict.fromkeys(["torchrl", "Trinity-RFT", "RLinf", "xtuner", "torchtitan", "Liger", "AsyncGRPO"], GIVEN),
    **dict.fromkeys(["miles", "slime", "unsloth"], "advantages"),
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("host", TRAINERS)
def test_a_wrong_rule_is_refused_by_name(host, request_name):
    rule, anchor, message = REQUESTS[request_name]
    if request_name in CAN[host].split():
        assert objective_for(host, rule, anchor=anchor)
        return
    with pytest.raises(ValueError, match=message.format(re.escape(host))):
        objective_for(host, rule, anchor=anchor)


def test_an_average_is_taken_where_it_is_the_hosts_and_a_methods_is_told(caplog):
    whole = bandpo.Objective(CLIP, aggregation="token-mean")
    for host, more in (("slime", {"average": "True"}), ("xtuner", {})):  # whose only one it is
        assert Limits(host, whole, "low", "high", **more).region == CLIP
    with pytest.raises(ValueError, match="of which calculate_per_token_loss='True' is that average"):
        Limits("slime", whole, "low", "high", average="False")
    with caplog.at_level("WARNING", RULE.name):
        integrations._SAID.clear()
        Limits("miles", "dapo", "low", "high", average="False")
    (line,) = [each for each in caplog.messages if each.startswith("dapo: ")]
    assert "calculate_per_token_loss='False' (seq-mean-token-mean)" in line


MEGATRON = {"slime": "slime.backends.megatron_utils.loss", "miles": "miles.backends.training_utils.loss_hub.losses"}
STANDING = {name: (path, {"policy_loss_function": lambda args, *_: args}) for name, path in MEGATRON.items()} | {
    "xtuner": ("xtuner.v1.rl.loss.loss_fn", {"pg_loss_fn": None}),
    "trinity": ("trinity.algorithm.policy_loss_fn.ppo_policy_loss", {"PPOPolicyLossFn": object}),
    "rlinf": (
        "rlinf.algorithms.registry",
        {"register_policy_loss": lambda name: lambda fn: fn(task_type="embodied"), "get_policy_loss": None},
    ),
}
ZERO = torch.zeros(2)
SETTINGS = [
    ("xtuner", "loss", (ZERO, ZERO, ZERO, ZERO, {"cliprange_low": 0.2}), {}, r"replaces \['cliprange_low'\]; remove"),
    ("trinity", "BandPOLoss", (), {"clip_range": True}, r"replaces \['clip_range'\]; remove"),
    (
        "trinity",
        "BandPOLoss",
        (),
        {"fallback_to_policy_gradient": True},
        r"replaces \['fallback_to_policy_gradient'\]; remove",
    ),
    ("rlinf", "register_bandpo_loss", (), {}, r"runner\.task_type must be .*, got 'embodied'"),
    *(
        (name, "loss", (Namespace(advantage_estimator="gspo"), {}, ZERO, None), {}, "gspo has no clip per token")
        for name in MEGATRON
    ),
]


@pytest.mark.parametrize(("name", "call", "arguments", "named", "message"), SETTINGS)
def test_a_wrong_setting_is_refused_before_the_first_step(monkeypatch, name, call, arguments, named, message):
    path, names = STANDING[name]
    module = stand_in(monkeypatch, path, name, **names)
    with pytest.raises(ValueError, match=message):
        getattr(module, call)(*arguments, **named)


@pytest.mark.parametrize("name", MEGATRON)
@pytest.mark.parametrize("anchor", ["log_probs", "rollout_log_probs"])
def test_a_flag_makes_the_sampler_the_anchor(monkeypatch, name, anchor):
    path, names = STANDING[name]
    args = Namespace(advantage_estimator="grpo", custom_pg_loss_reducer_function_path=None)
    args.use_rollout_logprobs, args.calculate_per_token_loss = anchor == "rollout_log_probs", False
    rows = {"log_probs": [torch.full((2,), -1.0)], "rollout_log_probs": [torch.full((2,), -2.0)]}
    loss = stand_in(monkeypatch, path, name, **names).loss
    changed = loss(args, rows | {"advantages": [torch.ones(2)]}, None, None)
    assert torch.equal(changed.eps_clip_high, bandpo.Band().bounds(rows[anchor][0]).eps_high)


# ---- `Limits`, on a loss of two numbers that is written here


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("region", [CLIP, *BANDS])
def test_bounds_stand_where_two_numbers_stood(region, dtype):
    tensors = logps, old, advantages, mask = around(region, PROBABILITIES, dtype)

    def loss(x, low, high, **others):
        ratio = (x - old).exp()
        least = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
        return -(least * mask).sum() / mask.sum()

    limits = Limits("slime", region.to_config(), "low", "high")
    mine, theirs = {"low": 0.2, "high": 0.28}, Namespace(low=0.2, high=0.28, more=1)
    as_dict, as_object = (limits(owner, old, advantages, mask) for owner in (mine, theirs))
    assert (mine, vars(theirs)) == ({"low": 0.2, "high": 0.28}, {"low": 0.2, "high": 0.28, "more": as_object.more})
    for numbers in (as_dict, vars(as_object)):
        result = gradient(lambda x, of=numbers: loss(x, **of), logps)
        assert_near(result, policy_loss(*tensors, region, float(mask.sum())), dtype)
    if region is CLIP:
        own = gradient(lambda x: loss(x, 0.2, 0.28), logps)
        assert all(map(torch.equal, result, own))


@pytest.mark.parametrize("mask", [None, torch.ones(2, dtype=torch.bool)])
def test_a_nan_of_the_old_policy_has_bounds_without_nan(mask):
    old = torch.tensor([float("nan"), -1.0])
    epsilons = Limits("miles", "band-kl", "low", "high")({}, old, torch.ones(2), mask)
    assert all(torch.isfinite(x).all() for x in epsilons.values())
