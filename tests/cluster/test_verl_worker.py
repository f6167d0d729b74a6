"""verl's own TrainingWorker, on one and two ranks: what reaches the loss, what comes of it, what is logged."""

import pytest
import torch
import verl_toy
from test_verl_resume import same
from verl_toy import LOSS, MODES

from bandpo import Band

ACTOR = "actor_rollout_ref.actor"
OBJECTIVE = {"type": "objective", "trust_region": "{type:clip,eps_low:0.05,eps_high:0.08}", "dual_clip": 1.5}
CLIP = [*verl_toy.OURS, verl_toy.region(**OBJECTIVE)]
VANILLA = [f"{ACTOR}.clip_ratio_low=0.05", f"{ACTOR}.clip_ratio_high=0.08", f"{ACTOR}.clip_ratio_c=1.5"]
PENALTIES = [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.1", f"{ACTOR}.entropy_coeff=0.01"]
BAND = [*verl_toy.OURS, verl_toy.region(type="band", divergence="kl", delta=0.001)]
WATCHING = [*verl_toy.OURS, verl_toy.region(type="'verl_rule:Watching'")]
SAMPLER = [*CLIP, f"+{LOSS}.anchor=sampler"]
CASES = {
    **{f"vanilla {mode}": {"settings": [*VANILLA, f"{ACTOR}.loss_agg_mode={mode}"]} for mode in MODES},
    **{f"clip {mode}": {"settings": [*CLIP, f"{ACTOR}.loss_agg_mode={mode}"]} for mode in MODES},
    "vanilla with penalties": {"settings": [*VANILLA, *PENALTIES], "penalties": True},
    "clip with penalties": {"settings": [*CLIP, *PENALTIES], "penalties": True},
    "band": {"settings": BAND},
    "band in micro-batches of 1": {"settings": [*BAND, f"{ACTOR}.ppo_micro_batch_size_per_gpu=1"]},
    "band by tokens": {"settings": [*BAND, f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=30"]},
    "vanilla weighted": {"settings": VANILLA, "weights": True},
    "clip weighted": {"settings": CLIP, "weights": True},
    "empty responses": {"settings": BAND, "drop": 4},
    "context": {"settings": WATCHING, "context": True},
    "context by tokens": {
        "settings": [*WATCHING, f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=30"],
        "context": True,
    },
    "sampler": {"settings": SAMPLER, "context": True},
    "sampler by rLLM": {"settings": SAMPLER, "context": True, "rllm": True},
    "half": {"settings": [*BAND, f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16"]},
}


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    """{ranks: [{case: result}, one per rank]}, and what the processes printed."""
    folder = tmp_path_factory.mktemp("worker")
    verl_toy.write(folder)
    base = [
        *verl_toy.actor_settings(folder),
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
        f"{ACTOR}.optim.lr=1e-2",
        f"{ACTOR}.optim.total_training_steps=10",
    ]
    cases = {name: {**case, "settings": [*base, *case["settings"]]} for name, case in CASES.items()}
    fewer = {name: case for name, case in cases.items() if name.partition(" ")[2] not in MODES[1:]}
    runs = {n: verl_toy.update_actor(folder, folder / str(n), some, n) for n, some in ((1, fewer), (2, cases))}
    return {ranks: results for ranks, (results, _) in runs.items()}, {ranks: text for ranks, (_, text) in runs.items()}


@pytest.mark.parametrize(
    ("case", "ranks"), [(MODES[0], 1), ("with penalties", 1), *((case, 2) for case in (*MODES, "with penalties"))]
)
def test_clip_is_verls_own_loss_bit_for_bit(updates, case, ranks):
    """After four optimizer steps: the weights, and the loss and gradient norm of verl's log."""
    exact = ["loss", "grad_norm", "actor/pg_loss"]
    exact += ["kl_loss", "actor/entropy_loss"] if case == "with penalties" else []
    for result in updates[0][ranks]:
        ours, theirs = result[f"clip {case}"], result[f"vanilla {case}"]
        assert same(ours, theirs)
        assert [ours["metrics"][name] for name in exact] == [theirs["metrics"][name] for name in exact]
        assert all(theirs["metrics"][name] for name in exact[3:])
        for name in ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl"):
            assert ours["metrics"][name] == pytest.approx(theirs["metrics"][name], rel=1e-5)
            assert theirs["metrics"][name] != 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_rollout_weights_act_as_in_verls_own_loss(updates, ranks):
    """To rounding: r A w is not (r A) w."""
    for result in updates[0][ranks]:
        ours, theirs, plain = (
            {name: result[case]["metrics"][name] for name in ("loss", "grad_norm")}
            for case in ("clip weighted", "vanilla weighted", "clip token-mean")
        )
        assert ours == pytest.approx(theirs, rel=1e-4)
        assert ours["loss"] != pytest.approx(plain["loss"], rel=0.01)


@pytest.mark.parametrize("other", ["band in micro-batches of 1", "band by tokens"])
def test_the_update_does_not_depend_on_the_micro_batches(updates, other):
    (one,), two = updates[0][1], updates[0][2]
    results = [one["band"], one[other], two[0]["band"], two[1][other]]
    base, *others = ({name: each["metrics"][name] for name in ("loss", "grad_norm")} for each in results)
    assert others == [pytest.approx(base, rel=1e-3)] * 3


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", ["band", "band in micro-batches of 1", "empty responses"])
def test_ratios_of_what_is_logged_are_over_all_tokens(updates, case, ranks):
    """Against the tensors that all ranks' calls saw, uneven micro-batches and ranks included."""
    calls = [call for result in updates[0][ranks] for call in result[case]["calls"]]
    old, new, mask, advantages = (
        torch.cat([c[k]["value"] for c in calls]) for k in ("old_log_prob", "log_prob", "response_mask", "advantages")
    )
    bounds, log_ratio = Band("kl", 0.001).bounds(old), new - old
    above, below = (log_ratio > bounds.log_high) & mask, (log_ratio < bounds.log_low) & mask
    sums = {
        "tokens": mask.sum(),
        "clip/high_count": above.sum(),
        "clip/low_count": below.sum(),
        "cut/high_count": (above & (advantages > 0)).sum(),
        "cut/low_count": (below & (advantages < 0)).sum(),
        "kl_old/k1_nats": -log_ratio[mask].double().sum(),
    }
    expected = {f"actor/bandpo/{name}": x.item() / len(calls) for name, x in sums.items()}
    assert len({int(c["response_mask"]["value"].sum()) for c in calls}) > 1  # uneven
    assert sums["cut/high_count"] + sums["cut/low_count"] > 0
    for result in updates[0][ranks]:  # every rank has the numbers of all
        metrics = result[case]["metrics"]
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
        assert metrics["actor/bandpo/half_precision"] == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_half_precision_is_told(updates, ranks):
    results, printed = updates
    for result in results[ranks]:
        dtypes = {c["log_prob"]["dtype"] for c in result["half"]["calls"]}
        assert (result["half"]["metrics"]["actor/bandpo/half_precision"], dtypes) == (1, {"torch.bfloat16"})
    assert printed[ranks].count("log-probabilities reach the loss as torch.bfloat16") == 1


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", ["context", "context by tokens"])
def test_a_rule_sees_the_mask_and_the_advantages(updates, case, ranks):
    for result in updates[0][ranks]:
        assert len(result[case]["seen"]) == len(result[case]["calls"]) > 2
        for seen, call in zip(result[case]["seen"], result[case]["calls"], strict=True):
            mask = call["response_mask"]["value"].bool()
            assert torch.equal(seen["response_mask"], mask)
            for name, theirs in (("advantages", "advantages"), ("old_logps", "old_log_prob")):
                assert torch.equal(seen[name][mask], call[theirs]["value"][mask])


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_ratio_may_be_to_the_sampler(updates, ranks):
    """Which is 0.1 off, so that more is outside on one side and less on the other."""
    calls = [call for result in updates[0][ranks] for call in result["sampler"]["calls"]]
    old, new, mask = (torch.cat([c[k]["value"] for c in calls]) for k in ("old_log_prob", "log_prob", "response_mask"))
    ratio = (new - old + 0.1).exp()
    for result in updates[0][ranks]:
        metrics = result["sampler"]["metrics"]
        for name, outside in (("clip/high_count", ratio > 1.08), ("clip/low_count", ratio < 0.95)):
            assert metrics[f"actor/bandpo/{name}"] == pytest.approx((outside & mask).sum().item() / len(calls))
        plain = result["clip token-mean"]["metrics"]
        assert metrics["actor/bandpo/clip/high_count"] > plain["actor/bandpo/clip/high_count"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loss_that_is_an_object_with_the_configuration_sees_the_same(updates, ranks):
    """As rLLM's, by its own class where BANDPO_HOSTS has its source."""
    for result in updates[0][ranks]:
        ours, theirs = result["sampler"], result["sampler by rLLM"]
        mine, its = ({k: x for k, x in each["metrics"].items() if "perf/" not in k} for each in (ours, theirs))
        assert mine == its
        assert [same(ours, other) for other in (theirs, result["clip token-mean"])] == [True, False]
