"""What only one trainer has: its averages, its own losses beside the clip, its anchors, and its arguments."""

import importlib
import pickle
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hosts import trainers
from hosts.trainers import CLIP, MODERATE, hidden_states, names_of, of_skyrl
from made import BANDS, DECADES, around, assert_near, batch, executed, gradient, policy_loss

import bandpo

OURS_OF = "bandpo.integrations"
of = partial(pytest.mark.parametrize, "trainer", indirect=True)


# ---- arguments that are refused


WRONG = [
    (
        "torchrl",
        "BandPOLoss",
        {"clip_epsilon": 0.2},
        r"trust_region replaces \['clip_epsilon'\]; remove them. A plain clip is",
    ),
    ("liger", "BandPOLoss", {"epsilon_low": 0.1}, r"trust_region replaces \['epsilon_low'\]; remove them"),
    ("liger", "BandPOLoss", {"chunk_size": 4}, r"replaces \['chunk_size'\]"),
    ("liger", "BandPOLoss", {"loss_type": "cispo"}, "loss_type must be one of .*, got 'cispo' and 'token'"),
    ("liger", "BandPOLoss", {"importance_sampling_level": "sequence"}, "got 'dapo' and 'sequence'"),
    ("skyrl", "register_bandpo_loss", {"anchor": "sampler"}, "anchor must be 'old' or 'rollout', got 'sampler'"),
    ("skyrl", "register_bandpo_loss", {"name": "regular"}, "'regular' already registered"),
    ("trl", "BesideGMPO", {"model": "no/such-model"}, r"^GMPOTrainer\._compute_loss is not known to clamp the ratio"),
]
PACKAGES = {"liger": "liger_kernel", "trl": "trl.experimental.gmpo"}


@pytest.mark.parametrize(("module", "call", "named", "message"), WRONG)
def test_a_wrong_argument_is_refused_where_the_loss_is_made(monkeypatch, module, call, named, message):
    trainers.let_pydantic_take_typed_dicts(monkeypatch)
    theirs = pytest.importorskip(PACKAGES.get(module) or module)
    ours = importlib.import_module(f"bandpo.integrations.{module}")
    if call == "BesideGMPO":  # whose epsilons are those of a log-ratio
        monkeypatch.setattr(ours, call, type(call, (ours.BandPOTrainer, theirs.GMPOTrainer), {}), raising=False)
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(ours, call)(**named)


# ---- torchrl


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A tiny Qwen2 in torchrl's own wrapper, and what it sampled, scored and was rewarded for before it changed."""
    folder = tmp_path_factory.mktemp("torchrl")
    pytest.importorskip("torchrl")
    pytest.importorskip("cluster.verl_toy", reason="verl is not installed", exc_type=ImportError).write(folder)
    from tensordict import TensorDict
    from torchrl.modules.llm import Text, TransformersWrapper
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "model").float().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    common = {"tokenizer": tokenizer, "input_mode": "text", "pad_output": True}
    sampler = TransformersWrapper(model, generate_kwargs={"max_new_tokens": 8}, **common)
    policy = TransformersWrapper(model, generate=False, return_log_probs=True, **common)
    torch.manual_seed(0)
    with torch.no_grad():
        rows = policy(sampler(TensorDict(text=Text(prompt=["1+2=", "what is 3+4?"]), batch_size=[2])))
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    old = rows.get(("log_probs", "full"), as_padded_tensor=True, padding_side="left", padding_value=0.0)
    rows["advantage"] = torch.tensor([1.0, -1.0])[:, None, None].expand(*old.shape, 1).clone()
    return policy, rows


@pytest.mark.filterwarnings("ignore")  # of torchrl and tensordict, about themselves
def test_through_torchrls_own_wrapper(sampled):
    (policy, rows), results = sampled, []
    (its,), (own,) = names_of("torchrl.objectives.llm", "GRPOLoss"), names_of(f"{OURS_OF}.torchrl", "BandPOLoss")
    weights = [x for x in policy.parameters() if x.requires_grad]
    for kind, rule in (
        (its, {"clip_epsilon": 0.2}),
        (own, {"trust_region": bandpo.Clip(0.2, 0.2)}),
        (own, {"trust_region": bandpo.Band("kl", 0.05)}),
    ):
        out = kind(policy, **rule, entropy_bonus=False, masking_strategy="generic")(rows.clone())
        results.append((out, torch.autograd.grad(out.loss_objective.sum(), weights)))
    (theirs, slopes), (ours, our_slopes), (band, band_slopes) = results
    assert ours.loss_objective == theirs.loss_objective
    assert ours.clip_fraction == theirs.clip_fraction > band.clip_fraction > 0
    assert [{*map(torch.equal, each, slopes)} for each in (our_slopes, band_slopes)] == [{True}, {False}]


@of(argvalues=["torchrl token_mean", "torchrl prompt_mean"])
def test_alignment_pads_of_torchrl_reach_nothing(trainer):
    """It marks them by NaN."""
    logps, old, advantages, mask = around(bandpo.Band(), empty=False)
    pads = mask & (torch.arange(len(DECADES)) % 3 == 1)
    value, slope, _ = trainer.run(bandpo.Band(), (logps, torch.where(pads, torch.nan, old), advantages, mask))
    expected = trainer.case.expected(bandpo.Band(), (logps, old, advantages, mask & ~pads))
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(slope, expected[1], rtol=1e-9, atol=0)


@of(argvalues=["torchrl token_mean"])
def test_the_bounds_in_torchrl_are_those_of_each_call(trainer):
    tensors = around(bandpo.Band(), empty=False)
    once, twice = trainer.run(bandpo.Band(), tensors), trainer.run(bandpo.Band(), tensors, calls=2)
    assert once[0] == twice[0]
    seen = {}

    class Spy(bandpo.Region):
        def bounds(self, old_logps, context=None):
            seen.update(vars(context), old=old_logps)
            return CLIP.bounds(old_logps)

    _, old, advantages, mask = tensors = batch(empty=False)
    trainer.run(Spy(), tensors)
    shown = seen["old"][mask], seen["response_mask"], seen["advantages"]
    assert all(map(torch.equal, shown, (old[mask], mask, advantages)))


# ---- Liger


@of(argvalues=[f"liger {each}" for each in ("grpo", "bnpo", "dapo", "dr_grpo")])
def test_ligers_own_chunks_of_one_sequence_change_the_order_of_a_sum_only(trainer):
    (kind,) = names_of("liger_kernel.chunked_loss.grpo_loss", "LigerFusedLinearGRPOLoss")
    tensors = batch(DECADES, MODERATE)
    chunked = kind(epsilon_low=0.2, epsilon_high=0.28, **trainers.liger_settings(*trainer.case.loss.args))
    (value, slope, _), ours = trainer.run(None, tensors, module=chunked), trainer.run(CLIP, tensors)
    torch.testing.assert_close(ours[0], value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[1], slope, rtol=1e-5, atol=1e-9)


@of(argvalues=["liger dapo"])
def test_micro_batches_of_ligers_dapo_add_up(trainer):
    tensors = batch(DECADES, MODERATE, empty=False)
    items = tensors[3].sum()
    value, slope, _ = trainer.run(bandpo.Band(), tensors, num_items_in_batch=items)
    rows = torch.arange(len(tensors[0])).split(7)
    parts = [trainer.run(bandpo.Band(), [x[i] for x in tensors], num_items_in_batch=items) for i in rows]
    torch.testing.assert_close(sum(part[0] for part in parts), value, rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), slope, rtol=1e-6, atol=0)


@of(argvalues=["liger bnpo"])
def test_without_old_log_probabilities_no_rule_acts_in_liger_and_nothing_stays_behind(trainer):
    (kind,) = names_of(f"{OURS_OF}.liger", "BandPOLoss")
    loss, tensors = kind(bandpo.Band("kl", 0.001), **trainers.liger_settings("bnpo")), batch(DECADES, MODERATE)
    trainer.run(None, tensors, module=loss)
    assert (loss.epsilon_low, loss.epsilon_high) == (0.2, 0.2)
    tensors = batch(DECADES[:4], [0.0], empty=False)
    _, slope, logged = trainer.run(None, tensors, module=loss, on_policy=True)
    _, expected, _ = trainer.run(None, tensors, on_policy=True)
    torch.testing.assert_close(slope, expected)
    assert logged["cut/fraction"] == 0


@pytest.mark.filterwarnings("ignore")  # of torch.compile and Liger, about themselves
@of(argvalues=["liger grpo"])
def test_the_lines_for_liger_compiled_as_by_default(trainer):
    tensors = logps, old, advantages, mask = around(bandpo.Band(), DECADES, empty=False)
    value, slope, _ = trainer.run(bandpo.Band(), tensors)
    names = executed(
        "liger",
        hidden=hidden_states(logps).requires_grad_(),
        completion_mask=mask.long(),
        old=old.float(),
        lm_head=SimpleNamespace(weight=torch.eye(2)),
        completion_ids=torch.zeros_like(mask).long(),
        advantages=advantages[:, 0].float(),
        BandPOLoss=names_of(f"{OURS_OF}.liger", "BandPOLoss")[0],
    )
    torch.testing.assert_close(names["value"].detach(), value)
    (compiled,) = torch.autograd.grad(names["value"], names["hidden"])
    torch.testing.assert_close(compiled, slope, rtol=1e-4, atol=1e-9)


# ---- SkyRL


@of(argvalues=["skyrl rollout"])
@pytest.mark.parametrize("delta", [0.05, 0.2])
@pytest.mark.parametrize("name", ["kl", "tv"])
def test_band_against_the_sampler_has_the_gradient_of_skyrls_dppo(trainer, monkeypatch, name, delta):
    """There the anchor is the sampler too."""
    registry, settings, register = of_skyrl(monkeypatch)
    region, logged = bandpo.Band(name, delta), []
    dppo = {"dppo_type": f"binary_{name}", "delta_low": delta, "delta_high": delta}
    config = settings(policy_loss_type="dppo", dppo=type(settings().dppo)(**dppo))
    logps, rollout, advantages, mask = around(region)
    named = {"config": config, "loss_mask": mask.to(logps.dtype), "rollout_logprobs": rollout}

    def loss(x, of):
        value, metrics = registry.get(of)(x, torch.full_like(logps, -1.0), advantages, **named)
        logged.append(metrics["clip_ratio"])
        return value

    register(bandpo.Objective(region, surrogate="mask"), name="masked", anchor="rollout")
    theirs, ours = (gradient(partial(loss, of=each), logps)[1] for each in ("dppo", "masked"))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert torch.equal(ours != 0, theirs != 0)
    assert logged[1] == pytest.approx(logged[0], rel=1e-6)


def tis(**changes):
    (settings,) = names_of("skyrl.train.config", "AlgorithmConfig")
    return type(settings().off_policy_correction)(tis_ratio_type="token", **changes)


@of(argvalues=["skyrl regular"])
@pytest.mark.parametrize("region", BANDS)
def test_band_is_policy_loss_with_skyrls_correction_for_the_sampler(trainer, region):
    _, old, _, mask = tensors = around(region, dtype=torch.float32)  # in which SkyRL corrects
    rollout = old + 0.3 * torch.sin(100 * old)
    correction = tis(token_tis_ratio_clip_high=1.2)
    value, slope, logged = trainer.run(region, tensors, rollout=rollout, off_policy_correction=correction)
    weights = (old - rollout).exp().clamp(max=1.2)
    expected = policy_loss(*tensors, region, 1.0, rollout_is_weights=weights)
    assert_near((value, slope), expected, torch.float32)
    assert logged["tokens"] == mask.sum()
    assert 0 < logged["clip/count"] < logged["tokens"]
    assert 0 < logged["tis_token_clip_high_ratio"] < 1


REDUCTIONS = {
    "token_mean": ("token-mean", None),
    "sequence_mean": ("seq-mean-token-mean", None),
    "seq_mean_token_sum_norm": ("seq-mean-token-sum-norm", 99.0),
}


@of(argvalues=["skyrl regular"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_micro_batches_add_up_to_the_mean_that_skyrl_divided_the_advantages_for(trainer, reduction):
    (divide,) = names_of("skyrl.backends.skyrl_train.utils.ppo_utils", "apply_loss_reduction_to_advantages_minibatch")
    logps, old, advantages, mask = batch(empty=False)
    scaled = divide(advantages, mask.float(), reduction, micro_batch_size=5, max_seq_len=99)
    rows = torch.arange(len(logps)).split(5)
    parts = [trainer.run(bandpo.Band(), (logps[i], old[i], scaled[i], mask[i])) for i in rows]
    aggregation, length = REDUCTIONS[reduction]
    rest = old, advantages, mask, bandpo.Objective(bandpo.Band(), aggregation=aggregation)
    normalizer = length and length * len(logps)
    expected, slope = gradient(lambda x: bandpo.policy_loss(x, *rest, normalizer=normalizer)[0], logps)
    torch.testing.assert_close(sum(value for value, _, _ in parts), expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.cat([x for _, x, _ in parts]), slope, rtol=1e-5, atol=0)


@of(argvalues=["skyrl regular"])
def test_the_loss_travels_as_skyrl_sends_it_and_counts_every_token_without_a_mask(trainer, monkeypatch):
    cloudpickle, (registry, settings, register) = pytest.importorskip("cloudpickle"), of_skyrl(monkeypatch)
    logps, old, advantages, mask = batch()
    everything = trainer.run(bandpo.Band(), (logps, old, advantages, torch.ones_like(mask)))
    register(bandpo.Band(), name="ours")
    sent = pickle.loads(cloudpickle.dumps(registry.get("ours")))
    value, logged = sent(logps, old, advantages, settings(policy_loss_type="ours"))
    assert (value, logged["bandpo/tokens"]) == (everything[0], everything[2]["tokens"])
    value, slope, logged = trainer.run(bandpo.Band(), (logps, old, advantages, torch.zeros_like(mask)))
    assert (value, slope.any(), set(logged.values())) == (0, False, {0.0})


@of(argvalues=["skyrl rollout"])
def test_the_sampler_as_anchor_is_asked_for_in_skyrl(trainer, monkeypatch):
    with pytest.raises(ValueError, match="tis_ratio_type must be null"):
        trainer.run(bandpo.Band(), batch(), off_policy_correction=tis())
    registry, settings, register = of_skyrl(monkeypatch)
    register(anchor="rollout", name="ours")
    with pytest.raises(ValueError, match="needs the sampler's log-probabilities"):
        registry.get("ours")(*batch()[:3], config=settings(policy_loss_type="ours"))


# ---- tinker, prime-rl, rLLM


@of(argvalues=["tinker_loss"])
@pytest.mark.parametrize("surrogate", ["mask", "mask_two_sided"])
@pytest.mark.parametrize("region", BANDS)
def test_a_mask_in_tinker_is_policy_loss(trainer, region, surrogate):
    tensors = around(region, dtype=torch.float32)  # as tinker's are
    value, slope, _ = trainer.run(bandpo.Objective(region, surrogate=surrogate), tensors)
    expected, expected_slope = policy_loss(*tensors, region, 1.0, surrogate=surrogate)
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=0)  # a float32 sum in another order
    assert torch.equal(slope, expected_slope)


@of(argvalues=["tinker_loss"])
def test_a_share_of_nothing_is_not_logged_to_tinker(trainer):
    _, slope, logged = trainer.run(bandpo.Band(), batch([0.5], [0.0], [1.0], empty=False))
    assert (slope[0, 0], logged["clip/count"], "clip/tail_high_share" in logged) == (-1, 0, False)
    assert all(x == x for x in logged.values())


@of(argvalues=["tinker"])
def test_a_datum_that_lacks_an_input_is_named_in_tinker(trainer):
    with pytest.raises(KeyError, match="logprobs"):
        trainer.run(bandpo.Band(), batch(), drop=["logprobs"])
    logps, old, advantages, mask = batch([0.5], [0.0], [1.0], empty=False)
    with pytest.raises(ValueError, match=r"must be \(1, 1\) like logps, got \(1, 9\)"):
        trainer.run(bandpo.Band(), (logps, *(x.expand(1, 9) for x in (old, advantages, mask))))


# Its default losses by date: what they mask, their own settings, and ours. The last is read in pull request 3586.
DPPO = {"type": "objective", "trust_region": {"type": "band", "divergence": "tv", "delta": 0.2}, "surrogate": "mask"}
WIDE = DPPO | {"trust_region": {"type": "band", "divergence": "tv", "delta": 0.3}, "surrogate": "mask_two_sided"}
DEFAULTS = {
    "until 2026-08-27": (
        lambda moved, advantages: torch.where(advantages > 0, moved > 0.2, moved < -0.2),
        {"dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "kl_tau": 0.001},
        DPPO,
    ),
    "from then on": (lambda moved, _: moved.abs() > 0.1, {"ipo_threshold": 0.1, "kl_tau": 0.001}, "ipo"),
    "since 2026-09-18": (lambda moved, _: moved.abs() > 0.3, {"ipo_threshold": 0.3, "kl_tau": 0.0}, WIDE),
}


@of(argvalues=["prime_rl", "prime_rl source"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("default", DEFAULTS)
def test_prime_rls_default_loss_is_a_row_of_this_one(trainer, default, weighted):
    """A mask on the difference of probabilities, and kl_tau (log r)^2 for every token."""
    outside, settings, rule = DEFAULTS[default]
    logps, old, advantages, mask = tensors = around(bandpo.Band("tv", max(settings.values())))
    weights = torch.linspace(0.5, 2.0, mask.numel(), dtype=torch.float64).view_as(old) if weighted else None

    def as_read(x):
        log_ratio = x - old
        masked = outside(x.exp() - old.exp(), advantages)
        per_token = settings["kl_tau"] * log_ratio**2 * mask - (mask & ~masked) * advantages * log_ratio.exp()
        return (per_token * (1.0 if weights is None else weights)).sum() / mask.sum()

    expected = gradient(as_read, logps)
    if trainer.case.package:  # its source
        expected = trainer.run(None, tensors, weights=weights, settings={"adv_tau": 1.0} | settings)
    named = {"trust_region": rule, "kl_tau": settings["kl_tau"]}
    value, slope, _ = trainer.run(CLIP, tensors, weights=weights, **named)
    torch.testing.assert_close(value, expected[0], rtol=1e-9, atol=0)
    torch.testing.assert_close(slope, expected[1], rtol=1e-9, atol=1e-15)


RLLM = [
    ({"trust_region": "dppo"}, r"sampler's policy; set algorithm\.loss_params\.anchor=sampler"),
    ({"trust_region": "tv"}, r"'tv'.* did you mean"),
    ({"trust_region": BANDS[0].to_config(), "anchor": "sampler"}, "anchor = 'sampler' needs logp_rollout"),
    ({"trust_region": BANDS[0].to_config(), "anchor": "rollout"}, "anchor must be 'old' or 'sampler', got 'rollout'"),
]


@of(argvalues=["rllm"])
@pytest.mark.parametrize(("params", "message"), RLLM)
def test_a_wrong_parameter_is_refused_by_name_in_rllm(trainer, params, message):
    with pytest.raises(ValueError, match=message):
        trainer.run(CLIP, batch(), params=params)
