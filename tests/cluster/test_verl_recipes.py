"""The recipes of the paper's runs through verl's own YAML, against the settings of the public runs, key by key."""

import math
import os
import subprocess
import sys

import pytest
import torch
import verl_toy
from omegaconf import OmegaConf
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl_toy import composed

from bandpo import DCPO, Band, Capped, Clip, Objective
from bandpo.integrations.verl import BandPOLossConfig
from bandpo.trust_regions import Relaxed
from bandpo_runs.config.recipe import leaves
from bandpo_runs.doctor.examine import examine
from research.plan import PAPER, plan, recipe

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

# What the scripts of the public runs set, and what they leave at a default that matters; read off them, not off ours.
PUBLIC = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.filter_groups.enable": False,
    "data.train_batch_size": 256,
    "data.max_prompt_length": 1024,
    "data.max_response_length": 4096,
    "data.filter_overlong_prompts": True,
    "data.truncation": "error",
    "data.shuffle": True,
    "data.seed": 1,
    f"{ACTOR}.strategy": "fsdp",
    f"{ACTOR}.ppo_mini_batch_size": 64,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 8,
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.shuffle": False,
    f"{ACTOR}.use_dynamic_bsz": False,
    f"{ACTOR}.grad_clip": 1.0,
    f"{ACTOR}.entropy_coeff": 0,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
    f"{ACTOR}.optim.optimizer": "AdamW",
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.lr_scheduler_type": "constant",
    f"{ACTOR}.optim.lr_warmup_steps": -1,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    f"{ACTOR}.optim.betas": [0.9, 0.999],
    f"{ACTOR}.optim.weight_decay": 0.01,
    f"{ACTOR}.optim.clip_grad": 1.0,
    f"{ACTOR}.fsdp_config.model_dtype": "fp32",
    f"{ACTOR}.fsdp_config.dtype": "bfloat16",
    f"{ACTOR}.ulysses_sequence_parallel_size": 1,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.lora_rank": 0,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 16,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_p": 1.0,
    f"{ROLLOUT}.top_k": -1,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    f"{ROLLOUT}.gpu_memory_utilization": 0.8,
    f"{ROLLOUT}.max_num_batched_tokens": 5120,
    # Of a repetition, beside data.seed.
    f"{ACTOR}.data_loader_seed": 1,
    f"{ROLLOUT}.seed": 11000,
    f"{ROLLOUT}.val_kwargs.n": 32,
    f"{ROLLOUT}.val_kwargs.temperature": 1.0,
    f"{ROLLOUT}.val_kwargs.top_p": 1.0,
    f"{ROLLOUT}.val_kwargs.do_sample": True,
    "reward.reward_manager.name": "naive",
    "reward.custom_reward_function.path": "pkg://bandpo.rewards",
    "reward.custom_reward_function.name": "compute_score_dapo_strict",
    "reward.reward_model.enable": False,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 10,
    "trainer.total_training_steps": None,
    "trainer.test_freq": 5,
    "trainer.save_freq": 10,
    "trainer.val_before_train": True,
}
# By the scripts' names: clip low / high, method and radius, relaxed, upper_bound_max.
RULES = {
    "grpo": Clip(0.2, 0.2),
    "clip-higher": Clip(0.2, 0.28),
    "band-kl-0.03": Capped(Band("kl", 0.03), 10.0),
    "band-kl": Capped(Band("kl", 0.05), 10.0),
    "band-kl-0.10": Capped(Band("kl", 0.1), 10.0),
    "band-tv": Capped(Band("tv", 0.05), 10.0),
    "band-chi2": Capped(Band("chi2", 0.05), 10.0),
    "relaxed": Capped(Relaxed(Band("kl", 0.05), Clip(0.2, 0.28)), 10.0),
    "dcpo": DCPO(0.16, 0.2, 10.0),
    # Controls of ours, in no script.
    "no-clip": Clip(1.0, math.inf),
    "clip-wide": Clip(0.2, 1.0),
    "weighted-clip": Clip(0.02, 1.0),
}
# The hub's name, and what the paper's text says where it differs.
MODELS = {
    "r1-qwen-1.5b": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 800),
    "qwen2.5-3b": ("Qwen/Qwen2.5-3B-Instruct", 800),
    "r1-qwen-7b": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 500),
    "r1-llama-8b": ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 500),
}


def resolved(*words):
    config = composed("paper", *words)
    # As main_ppo does before it starts Ray.
    validate_config(config, use_reference_policy=True, use_critic=False)
    return config


def test_there_is_a_file_for_every_model_and_every_rule():
    assert {path.stem for path in PAPER.glob("llm/*")} == {*MODELS}
    assert {path.stem for path in PAPER.glob("rule/*")} == {*RULES}


# Every method of one model and every model of one method; the other pairs weekly.
PAIRS = [
    pytest.param(model, method, marks=[] if model == "qwen2.5-3b" or method == "band-kl" else [pytest.mark.slow])
    for model in MODELS
    for method in RULES
]


@pytest.mark.parametrize(("model", "method"), PAIRS)
def test_the_settings_are_those_of_the_public_runs_and_of_the_paper(model, method):
    name, steps = MODELS[model]
    for text in ("public", "paper"):
        config = resolved(f"llm={model}", f"rule={method}", f"text={text}")
        expected = PUBLIC | {"actor_rollout_ref.model.path": name}
        expected |= {"trainer.total_training_steps": steps} if text == "paper" else {}
        got = {key: OmegaConf.select(config, key, throw_on_missing=True) for key in expected}
        got[f"{ACTOR}.optim.betas"] = list(got[f"{ACTOR}.optim.betas"])
        assert got == expected
        # FSDP's default: bfloat16 passes over float32 weights.
        assert "mixed_precision" not in config.actor_rollout_ref.actor.fsdp_config
        options = omega_conf_to_dataclass(config.actor_rollout_ref.actor).policy_loss
        assert type(options) is BandPOLossConfig
        rule = RULES[method]
        rule = rule.region if text == "paper" and isinstance(rule, Capped) else rule
        dual_clip = 10.0 if text == "public" else None
        more = {"dual_clip": dual_clip, "positive_weight": 0.85 if method == "weighted-clip" else 1.0}
        assert options.objective == Objective(rule, **more, aggregation="none", max_log_ratio=20.0)
        # Two runs never share a folder of checkpoints, which verl would go on from.
        run = f"{method}{'-public' if text == 'public' else ''}-seed1"
        assert config.trainer.validation_data_dir == f"checkpoints/paper-{model}/{run}/validation"


def test_the_models_differ_in_model_and_names_alone():
    def differing(model):
        configs = [resolved(f"llm={m}", "rule=band-kl", "text=public") for m in ("qwen2.5-3b", model)]
        first, other = (dict(leaves(OmegaConf.to_container(config, resolve=True))) for config in configs)
        first, other = ({k: x for k, x in each.items() if k[:5] != "plan."} for each in (first, other))
        assert first.keys() == other.keys()
        return {key for key in first if first[key] != other[key]}

    for model in MODELS.keys() - {"qwen2.5-3b"}:
        keys = differing(model)
        assert {key for key in keys if not key.endswith(("model.path", ".project_name", "served_model_name"))} == {
            "trainer.default_local_dir",
            "trainer.validation_data_dir",
        }


def test_a_repetition_has_its_own_value_for_every_seed_that_acts():
    whole, repeated = (
        dict(leaves(OmegaConf.to_container(resolved("llm=r1-qwen-7b", "rule=grpo", f"seed={n}"), resolve=True)))
        for n in (1, 2)
    )
    seeds = {key for key in whole if key.endswith(".seed") or key.endswith("_seed")}
    acting = {"data.seed": 2, f"{ACTOR}.data_loader_seed": 2, f"{ROLLOUT}.seed": 12000}
    changed = {key: value for key, value in repeated.items() if whole[key] != value}
    assert {key: value for key, value in changed.items() if isinstance(value, int)} == acting | {"seed": 2}
    assert changed["trainer.default_local_dir"] == "checkpoints/paper-r1-qwen-7b/grpo-seed2"
    # In GRPO there is no critic and no reward model, and FSDP's acts with full_determinism alone.
    without_effect = {f"{ACTOR}.fsdp_config.seed", "actor_rollout_ref.ref.fsdp_config.seed", "critic.data_loader_seed",
                      "critic.fsdp.seed", "reward.reward_model.rollout.seed"}  # fmt: skip
    assert seeds - acting.keys() == without_effect
    assert not any(value for key, value in whole.items() if key.endswith("full_determinism"))


def test_one_node_several_nodes_and_one_gpu_are_valid():
    assert resolved("llm=qwen2.5-3b", "rule=band-kl", "trainer.nnodes=4").trainer.nnodes == 4
    # Not by verl's own check, which asks vLLM for its largest rank.
    config = composed("lora", "llm=r1-qwen-1.5b", "rule=band-kl")
    assert omega_conf_to_dataclass(config.actor_rollout_ref.actor).optim.lr == 1e-5
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 1)
    assert config.actor_rollout_ref.model.lora_rank == 32
    assert config.actor_rollout_ref.rollout.load_format == "safetensors"
    assert config.trainer.default_local_dir == "checkpoints/paper-r1-qwen-1.5b/band-kl-lora-seed1"


@pytest.mark.parametrize(
    ("name", "words"),
    [("paper", ["llm=qwen2.5-3b", "text=public"]), ("lora", ["llm=r1-llama-8b"]), ("smoke", ["text=public"])],
)
def test_the_estimate_reads_what_verl_gets(name, words):
    config = composed(name, "rule=grpo", *words)
    for key, value in leaves(recipe(name, [*words, "rule=grpo"])):
        if key != "defaults" and "$" not in str(value):
            assert OmegaConf.select(config, key) == value, key


def test_the_parameters_of_an_adapter_are_pefts():
    few = ["llm=qwen2.5-3b", "plan.shape.num_hidden_layers=2"]
    run = recipe(words=few)
    full, adapted = (plan(recipe(words=[*few, *more])) for more in ([], ["actor_rollout_ref.model.lora_rank=32"]))
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**run["plan"]["shape"]))
        model = get_peft_model(model, LoraConfig(r=32, target_modules="all-linear"))
    trained = model.get_nb_trainable_parameters()[0]
    assert adapted.parameters == full.parameters
    assert adapted.training["gradients"] * 8 * 2**30 / 4 == pytest.approx(trained, rel=1e-6)
    # The frozen model is in float32 too; Adam has two numbers for each that is trained.
    assert adapted.checkpoint * 2**30 == pytest.approx(4 * full.parameters + 12 * trained, rel=1e-6)


def main_ppo(folder, *words):
    """Run verl's own command, as docs/reproduce.md has it."""
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", PAPER, "--config-name", "paper"]
    return subprocess.run(
        [*command, "llm=qwen2.5-3b", *words],
        cwd=folder,
        env=os.environ | verl_toy.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rule=band-kk"], "Could not find 'rule/band-kk'"),
        (["rule=band-kl", "rule.paper.type=bandd"], "policy_loss.trust_region: no trust region type is called 'bandd'"),
    ],
)
def test_a_wrong_rule_ends_the_run_before_ray(tmp_path, words, message):
    done = main_ppo(tmp_path, *words)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert "Ray" not in done.stdout + done.stderr


def test_the_doctor_reads_what_verl_composes(tmp_path):
    done = main_ppo(tmp_path, "rule=band-kl", "text=public", "--cfg", "job", "--resolve")
    (tmp_path / "run.yaml").write_text(done.stdout)
    rule, *rest = examine([str(tmp_path / "run.yaml")])
    assert rule.what.startswith('the loss of verl is Objective(Capped(Band("kl", 0.05), 10), dual_clip=10): ')
    assert any("in 4 optimizer steps" in finding.what for finding in rest)
