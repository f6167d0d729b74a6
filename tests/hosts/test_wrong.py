"""Wrong configurations, two or more a trainer: each is refused before the first step, in words that a user can act on.

Of ROLL there is one: no setting shows how many optimizer steps it makes.

A row has the trainer, what is written, and words of the message: the setting, the reason, and what to write instead.
"""

import re

import pytest

from bandpo_runs.doctor import hosts
from bandpo_runs.doctor.examine import examine

LOSS = "actor_rollout_ref.actor.policy_loss"
VERL = f"{LOSS}.loss_mode=bandpo {LOSS}._target_=bandpo.integrations.verl.BandPOLossConfig "
FP32 = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32 trainer.use_legacy_worker_impl=disable"
SKYRL = "trainer.algorithm.policy_loss_type=bandpo trust_region=clip:0.2:0.28 "
SLIME = "python train.py --loss-type custom_loss --custom-loss-function-path bandpo.integrations.slime.loss "
MILES = SLIME.replace("slime", "miles")
PRIME = '[orchestrator]\n[trainer.loss]\ntype = "{}"\nimport_path = "bandpo.integrations.prime_rl.loss"\n'
PRIME += "[trainer.loss.kwargs]\ntrust_region = {}\n"
BAND = '{ type = "band", delta = 0.05 }'
TRINITY = "algorithm:\n  algorithm_type: grpo\n  policy_loss_fn: bandpo.integrations.trinity.BandPOLoss\n"
XTUNER = "import xtuner\npolicy_loss_cfg = dict(loss_type='bandpo.integrations.xtuner.loss', trust_region='grpo'{})\n"
RLINF = "algorithm: {{loss_type: bandpo, trust_region: band, n_minibatches: {}}}\nrunner: {{task_type: {}}}\n"
TITAN = "from torchtitan import x\nBandPOLoss.Config(trust_region={!r})\n"
AXOLOTL = "plugins: [bandpo.integrations.axolotl.Plugin]\nrl: {1}\ntrust_region: grpo\ntrl: {{{0}}}\n"
RLLM = "algorithm: {{loss_plugins: [bandpo.integrations.rllm], loss_fn: {}, loss_params: {{trust_region: {}}}}}\n"
TRL = "args = GRPOConfig({})\nBandPOTrainer(model, reward, args, data, trust_region={})\n"
ONE = "clipping has no effect: every ratio is 1"
RECIPES = {
    "AReaL": (".yaml", "actor: {recompute_logprob: true, ppo_n_minibatches: 1}", "more ppo_n_minibatches"),
    "OpenRLHF": (".sh", "python -m openrlhf.cli.train_ppo_ray --rollout.batch_size 128 --train.batch_size 128",
                 "a smaller --train.batch_size, or more --train.max_epochs"),
    "NeMo-RL": (".yaml", "policy: {train_global_batch_size: 8}\n"
                "grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 4}", "a smaller train_global_batch_size"),
    "open-instruct": (".sh", "python open_instruct/grpo_fast.py --num_mini_batches 1", "more --num_epochs"),
    "ROLL": (".yaml", "num_return_sequences_in_group: 8", ""),
    "EasyR1": (".sh", "python3 -m verl.trainer.main data.rollout_batch_size=128 worker.actor.global_batch_size=128",
               "a smaller global_batch_size, or more ppo_epochs"),
    "ms-swift": (".sh", "swift rlhf --rlhf_type grpo --gradient_accumulation_steps 4",
                 "a smaller --gradient_accumulation_steps, or more --num_iterations"),
}  # fmt: skip
RULE = {".yaml": "trust_region: {type: band, delta: 0.05}\n", ".sh": "echo trust_region=band\n"}


# ---- a file, by its ending: `bandpo doctor FILE` ends with 1, and says this
FILES = [
    ("TRL", ".py", TRL.format("steps_per_generation=4, epsilon_high=0.28", "bandpo.Band()"),
     ("Remove epsilon_high = 0.28", 'your Band("kl", 0.05) replaces it', "trust_region=bandpo.Clip(low, high)")),
    ("TRL", ".py", TRL.format("num_iterations=2, loss_type='sapo'", "'band-kl'"),
     ("loss_type 'sapo' has no clip", "set loss_type to 'grpo', 'bnpo', 'dr_grpo' or 'dapo'")),
    ("TRL", ".py", TRL.format("num_iterations=2", "'dppo'"),
     ("'dppo'", "ratio is to the sampler's policy", "anchor='sampler' of BandPOConfig")),
    ("TRL", ".py", TRL.format("", "'grpo'"),
     (ONE, "steps_per_generation 1", "steps_per_generation=4 for 4 optimizer steps")),
    ("verl", ".sh", f"{VERL} +{LOSS}.trust_region=band data.train_batch_size=64 {LOSS[:-12]}.ppo_mini_batch_size=64",
     (ONE, "ppo_mini_batch_size 64", "a smaller ppo_mini_batch_size, or more ppo_epochs")),
    ("verl", ".sh", VERL.partition(" ")[2] + f"+{LOSS}.trust_region=band",
     ("loss_mode is not set", "the loss is verl's own, and no trust_region is read", f"{LOSS}.loss_mode=bandpo")),
    ("verl", ".sh", f"{VERL} '+{LOSS}.trust_region={{type: objective, beta: 0.1}}'",
     ("beta must be 0.0 through verl, got 0.1", "the KL penalty is verl's own", "actor.use_kl_loss")),
    ("verl 0.7.1", ".sh", f"{VERL} +{LOSS}.trust_region=band {FP32}",
     ("the actor computes in bf16", "ratios are off by several percent", "dtype=float32 with the older workers")),
    ("SkyRL", ".sh", SKYRL + "trainer.train_batch_size=256 trainer.policy_mini_batch_size=256",
     (ONE, "policy_mini_batch_size 256", "a smaller policy_mini_batch_size")),
    ("SkyRL", ".sh", SKYRL + "trainer.algorithm.eps_clip_high=0.28",
     ("Remove eps_clip_high=0.28", "your trust_region replaces it", "{type: clip, eps_low: ..., eps_high: ...}")),
    ("prime-rl", ".toml", PRIME.format("default", BAND),
     ("type is default", "the loss is prime-rl's own, and no trust_region is read", "loss.type=custom")),
    ("prime-rl", ".toml", PRIME.format("custom", BAND.replace("band", "bnd")),
     ("trust_region", "'bnd'", "did you mean 'band'?")),
    ("prime-rl", ".toml", PRIME.format("custom", '"tv"'), ("trust_region", "'tv'", "did you mean")),
    ("rLLM", ".yaml", RLLM.format("ppo_clip", "band"),
     ("loss_fn is ppo_clip", "the loss is rLLM's own, and no trust_region is read", "loss_fn=bandpo_rllm")),
    ("rLLM", ".yaml", RLLM.format("bandpo_rllm", "dppo"),
     ("'dppo'", "ratio is to the sampler's policy", "set algorithm.loss_params.anchor=sampler")),
    ("Trinity-RFT", ".yaml", f"{TRINITY}  policy_loss_fn_args: {{trust_region: band, clip_range_high: 0.28}}",
     ("Remove clip_range_high=0.28", "your trust_region replaces it", "a clip is trust_region={type: ")),
    ("Trinity-RFT", ".yaml", f"{TRINITY}  bypass_old_logprobs: false\n  policy_loss_fn_args: {{trust_region: band}}",
     (ONE, "as Trinity-RFT always does", "bypass_old_logprobs=True, for ratios to the sampler")),
    ("xtuner", ".py", XTUNER.format(", cliprange_low=0.2"),
     ("Remove cliprange_low=0.2", "your trust_region replaces it")),
    ("xtuner", ".py", XTUNER.format("") + "WorkerConfig(optimizer_steps=1)\n",
     (ONE, "optimizer_steps 1", "more optimizer_steps")),
    ("RLinf", ".yaml", RLINF.format(4, "embodied"),
     ("task_type=embodied", "bandpo's loss refuses it", "task_type: one of reasoning, coding_online_rl")),
    ("RLinf", ".yaml", RLINF.format(1, "reasoning"),
     (ONE, "n_minibatches 1", "more n_minibatches")),
    ("slime", ".sh", SLIME.replace("--loss-type custom_loss", ""),
     ("--loss-type is not set", "the loss is slime's own, and no trust_region is read", "--loss-type custom_loss")),
    ("slime", ".sh", f"{SLIME} --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256",
     (ONE, "--global-batch-size 256", "a smaller --global-batch-size")),
    ("miles", ".sh", f"{MILES} --advantage-estimator gspo",
     ("--advantage-estimator=gspo", "bandpo's loss refuses it", "one of grpo, ppo")),
    ("miles", ".sh", f"{MILES} --num-steps-per-rollout 4 --eps-clip 0.3",
     ("Remove --eps-clip=0.3", "your trust_region replaces it", "a clip is trust_region=")),
    ("torchtitan", ".py", TITAN.format("gspo"),
     ("ratio must be 'token' through torchtitan, got 'sequence-mean'", "clamps the ratio of each token")),
    ("torchtitan", ".py", TITAN.format("clip:0.2:0.28") + "DAPOLoss.Config(ratio_clip_high=0.28)\n",
     ("Remove ratio_clip_high=0.28", "your trust_region replaces it")),
    ("axolotl", ".yaml", AXOLOTL.format("epsilon_high: 0.28", "grpo"),
     ("Remove trl.epsilon_high=0.28", "your trust_region replaces it", "a clip is trust_region={type: ")),
    ("axolotl", ".yaml", AXOLOTL.format("use_liger_loss: true", "grpo"),
     ("trl.use_liger_loss=True", "bandpo's loss refuses it", "remove trl.use_liger_loss")),
    ("axolotl", ".yaml", AXOLOTL.format("num_iterations: 1", "grpo"),
     (ONE, "num_iterations 1", "more num_iterations")),
    ("AsyncGRPO", ".py", "AsyncBandPOTrainer(model, reward, AsyncGRPOConfig(epsilon=0.3), trust_region='grpo')\n",
     ("Remove epsilon=0.3", "your trust_region replaces it", "a clip is trust_region={type: ")),
    ("AsyncGRPO", ".py", "AsyncBandPOTrainer(model, reward, AsyncGRPOConfig(), trust_region='gspo')\n",
     ("ratio must be 'token' through AsyncGRPO, got 'sequence-mean'", "clamps the ratio of each token")),
    ("torchrl", ".py", "import torchrl\nBandPOLoss(policy, trust_region='grpo', clip_epsilon=0.2)\n",
     ("Remove clip_epsilon=0.2", "your trust_region replaces it")),
    ("Liger", ".py", "import liger_kernel\nBandPOLoss(trust_region='grpo', epsilon_low=0.2)\n",
     ("Remove epsilon_low=0.2", "your trust_region replaces it")),
    ("tinker", ".py", "import tinker\nbandpo_loss(Objective(Band(), aggregation='token-mean'))\n",
     ("aggregation must be None through tinker", "the average is tinker's own, the sum over tokens")),
    ("tinker", ".py", "import tinker\nbandpo_loss(Objective(Band(), beta=0.1))\n",
     ("beta must be 0.0 through tinker, got 0.1", "which is given no reference policy")),
    *((host, suffix, f"{text}\n{RULE[suffix]}",
       (f"the loss is {host}'s own, and no trust_region is read", "docs/hosts.md"))
      for host, (suffix, text, _) in RECIPES.items()),
    *((host, suffix, text, (ONE, words))
      for host, (suffix, text, words) in RECIPES.items() if words),
]  # fmt: skip


@pytest.mark.parametrize(("host", "suffix", "text", "words"), FILES)
def test_a_wrong_configuration_is_told_by_the_doctor(tmp_path, monkeypatch, host, suffix, text, words):
    name, _, version = host.partition(" ")
    if version:
        monkeypatch.setattr(hosts, "version_of", {"verl": version}.get)
    file = tmp_path / f"run{suffix}"
    file.write_text(text, encoding="utf-8")
    blamed = [f"{f.what} -> {f.cure}" for f in examine([str(file)]) if f.level == "problem"]
    assert any(all(word in line for word in words) for line in blamed), blamed
    assert name == "TRL" or any(name in f.what for f in examine([str(file)]))


def test_the_list_is_of_all_trainers_whose_settings_the_doctor_knows():
    assert not [host for host in hosts.FACTS if not any(re.match(rf"{host}\b", row[0]) for row in FILES)]
