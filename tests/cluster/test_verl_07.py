"""verl 0.7 has two kinds of workers: the newer compute in half precision, the older show a rule nothing but tokens."""

import sys

import pytest
import torch
import verl
import verl_toy
from verl_toy import EPOCHS, LOSS, MINI_BATCH, OURS, SIZE, region

if not verl.__version__.startswith("0.7."):
    pytest.skip("verl is newer", allow_module_level=True)

import verl_before_09  # noqa: F401
from hydra import compose, initialize_config_module
from transformers import AutoModelForCausalLM
from update_actor import as_data, batch
from verl import DataProto
from verl.trainer.main_ppo import TaskRunner
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.actor import DataParallelPPOActor

ACTOR = "actor_rollout_ref.actor"
CLIP = [*OURS, region(type="objective", trust_region="{type:clip,eps_low:0.05,eps_high:0.08}", dual_clip=1.5)]
VANILLA = [f"{ACTOR}.clip_ratio_low=0.05", f"{ACTOR}.clip_ratio_high=0.08", f"{ACTOR}.clip_ratio_c=1.5"]
SIZES = [f"{ACTOR}.ppo_mini_batch_size={MINI_BATCH}", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"]
NEWER = "trainer.use_legacy_worker_impl=disable"


def resolved(*settings):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[*verl_toy.run_settings("folder", "out", 1), *SIZES, *settings])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    verl_toy.write(folder)
    return folder


def test_newer_workers_compute_in_half_precision_whatever_is_set(folder):
    """So our loss, which goes on in float32, is near verl's and not the same; the warning names what helps."""
    base = [*verl_toy.actor_settings(folder), *SIZES, f"{ACTOR}.optim.lr=1e-2"]  # with mixed_precision...=fp32
    cases = {"clip": {"settings": [*base, *CLIP]}, "vanilla": {"settings": [*base, *VANILLA]}}
    (results,), printed = verl_toy.update_actor(folder, folder / "out", cases)
    dtypes = {call["log_prob"]["dtype"] for call in results["clip"]["calls"]}
    assert (results["clip"]["metrics"]["actor/bandpo/half_precision"], dtypes) == (1, {"torch.bfloat16"})
    ours, theirs = (results[name]["metrics"]["actor/pg_loss"] for name in cases)
    assert theirs != ours == pytest.approx(theirs, abs=0.02)
    assert "fsdp_config.dtype=float32" in printed


def older_actor(folder, *settings):
    """Four updates of the older actor: its weights, and how often the loss saw half precision."""
    config = omega_conf_to_dataclass(resolved(*settings, f"{ACTOR}.ppo_epochs={EPOCHS}").actor_rollout_ref.actor)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager")
    actor = DataParallelPPOActor(config, model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    tensors = batch(0, 1)
    ids = tensors.pop("ids")
    data = as_data(ids, tensors["response_mask"]).select("prompts", "responses")  # its rows, padded
    tensors |= {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "prompts": data["prompts"],
        "responses": data["responses"],
        "position_ids": torch.arange(ids.shape[1]).expand_as(ids).contiguous(),
    }
    told = {"temperature": 1.0, "micro_batch_size": 4, "use_dynamic_bsz": False}
    proto = DataProto.from_dict(tensors, meta_info=told)
    old = actor.compute_log_prob(proto)["log_probs"]
    metrics = actor.update_policy(DataProto.from_dict(tensors | {"old_log_probs": old}, meta_info=told))
    return model.state_dict(), metrics


def test_the_older_actor_in_float32_has_the_weights_of_verls_loss(folder):
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    whole = f"{ACTOR}.fsdp_config.dtype=float32"
    (ours, metrics), (theirs, _) = older_actor(folder, *CLIP, whole), older_actor(folder, *VANILLA, whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert metrics["actor/bandpo/half_precision"] == [0.0] * (EPOCHS * SIZE // 4)
    assert sum(metrics["actor/bandpo/clip/count"]) > 0
    assert older_actor(folder, *CLIP)[1]["actor/bandpo/half_precision"] == [1.0] * (EPOCHS * SIZE // 4)


def test_the_older_workers_refuse_the_sampler_as_anchor_before_ray_has_workers(monkeypatch):
    """By the steps of verl's own start: it chooses the workers, then checks the configuration."""

    def start(*more):
        for name in [name for name in sys.modules if name.startswith("verl.workers.") and name.endswith("_workers")]:
            monkeypatch.delitem(sys.modules, name)
        config = resolved(*OURS, f"+{LOSS}.anchor=sampler", *more)
        TaskRunner().add_actor_rollout_worker(config)
        validate_config(config, use_reference_policy=False, use_critic=False)

    with pytest.raises(Exception, match=f"(?s)older workers of verl 0.7 .* {NEWER}"):
        start()
    start(NEWER)
